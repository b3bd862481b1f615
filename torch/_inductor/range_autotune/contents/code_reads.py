"""What a function's code reads besides its arguments, as far as its bytecode tells."""

from __future__ import annotations

import dis
import itertools
import types
from typing import Any, TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLOSURE")
_READS_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
# What reads attributes whose names are strings.
_READ_BY_STRING = frozenset({"getattr", "__dict__", "vars", "attrgetter"})

# A statement: module, imported names, number of leading dots.
Import = tuple[str, tuple[str, ...], int]


def closed_over(function: types.FunctionType) -> list[Any]:
    """What its closure has, None for names that are not bound yet."""
    return [_cell_value(cell) for cell in function.__closure__ or ()]


def globals_read(function: types.FunctionType) -> dict[str, Any]:
    """The globals that its code uses, and that of functions in it, by name."""
    known = function.__globals__
    names = operands_of(function.__code__, "LOAD_GLOBAL", "LOAD_NAME")
    return {name: known[name] for name in names if name in known}


def _cell_value(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and that of the functions defined in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def names_in(code: types.CodeType) -> frozenset[str]:
    """Of globals and attributes that code uses, that of functions in it too."""
    names = frozenset(name for inner in _codes(code) for name in inner.co_names)
    return names | strings_in(code) if names & _READ_BY_STRING else names


def strings_in(code: types.CodeType) -> frozenset[str]:
    """Constants of code, and of functions in it, that are strings."""
    constants = (const for inner in _codes(code) for const in inner.co_consts)
    return frozenset(const for const in constants if isinstance(const, str))


def names_handed_on(code: types.CodeType) -> frozenset[str]:
    """
    Globals and closed-over names whose values code does more with than reading attributes
    that it names.
    """
    found = set()
    for inner in _codes(code):
        # What is loaded last is returned, by an instruction that follows.
        for load, then in itertools.pairwise(dis.get_instructions(inner)):
            reads = then.opname in _READS_ATTRIBUTE and then.argval != "__dict__"
            if load.opname in _LOADS and not reads:
                found.add(load.argval)
    return frozenset(found)


def operands_of(code: types.CodeType, *operations: str) -> list[str]:
    """The names that operations of the bytecode have, such as ``LOAD_GLOBAL``."""
    return sorted(
        {
            instruction.argval
            for inner in _codes(code)
            for instruction in dis.get_instructions(inner)
            if instruction.opname in operations
        }
    )


def imports(code: types.CodeType) -> list[Import]:
    """The import statements in code: module, imported names, number of leading dots."""
    found = set()
    for inner in _codes(code):
        instructions = [
            instruction
            for instruction in dis.get_instructions(inner)
            if instruction.opname != "EXTENDED_ARG"
        ]
        for level, imported, instruction in zip(
            instructions, instructions[1:], instructions[2:], strict=False
        ):
            if instruction.opname == "IMPORT_NAME":
                found.add((instruction.argval, imported.argval or (), level.argval))
    return sorted(found)
