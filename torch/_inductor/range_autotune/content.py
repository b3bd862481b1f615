"""
Values as digests of their content, the same in every process if and only if that is.

Functions count by their compiled code, defaults, closures, and the globals and module
attributes that they read. Line numbers and comments do not count.
"""

from __future__ import annotations

import copyreg
import dataclasses
import dis
import enum
import functools
import hashlib
import os
import sys
import types
from typing import Any, TYPE_CHECKING

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

import torch

from .op_bodies import written_bodies


if TYPE_CHECKING:
    from collections.abc import Iterator

# Tensors in closures are hashed by value up to this size.
_LARGEST_TENSOR_BYTES = 2**20
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice)
# Torch is in the cache keys as a whole, the standard library comes with Python, and what
# numpy's functions return does not change.
_LIBRARIES = frozenset({"torch", "triton", "numpy", *sys.stdlib_module_names})
_TORCH_VALUES = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


class Unhashable(Exception):
    """Something has no content that could be compared."""


def content_digest(value: Any) -> str:
    """A digest of any value; raises Unhashable where it has none."""
    return digest(_whole_content(value))


def content_text(value: Any) -> str:
    """
    All that counts of a value, as text: names that its code uses among it.

    Raises Unhashable as ``content_digest`` does.
    """
    return repr(_whole_content(value))


def digest(content: Any) -> str:
    """Of a value whose repr says all."""
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _whole_content(value: Any) -> Any:
    try:
        return _content(value, _Seen())
    except RecursionError:
        raise Unhashable("something that contains itself") from None


class _Seen:
    """Numbers for what is under way, for functions and objects that refer to themselves."""

    def __init__(self, before: _Seen | None = None) -> None:
        self._numbers: dict[Any, int] = dict(before._numbers) if before else {}
        self._alive: list[Any] = []

    def number(self, value: Any, names: frozenset[str] | None = None) -> int | None:
        """The number of a value met before, with the same names; None for a new one."""
        key = (id(value), names)
        if key in self._numbers:
            return self._numbers[key]
        self._numbers[key] = len(self._numbers)
        self._alive.append(value)
        return None


@functools.singledispatch
def _content(value: Any, seen: _Seen) -> Any:
    """
    A value whose repr is the same in every process if and only if the content is.

    Raises:
        Unhashable: for an object whose content is unknown.
    """
    if isinstance(value, (*_PLAIN, *_TORCH_VALUES)):
        return (type(value).__name__, repr(value))
    if (number := seen.number(value)) is not None:
        return ("seen", number)
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return ("op", str(value))
    if isinstance(value, torch._library.custom_ops.CustomOpDef):
        bodies = written_bodies(value)
        return ("custom op", value._qualname, _content(bodies, seen))
    if hasattr(value, "cache_key") and hasattr(value, "arg_names"):
        return ("triton kernel", _qualified_name(value), value.cache_key)
    if hasattr(value, "configs") and hasattr(getattr(value, "fn", None), "cache_key"):
        return ("triton autotuner", str(value.configs), _content(value.fn, seen))
    if hasattr(value, "__wrapped__"):  # for instance by functools.cache
        wrapper = _qualified_name(type(value))
        return ("wrapper", wrapper, _content(value.__wrapped__, seen))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return ("object", _content(type(value), seen), _content(fields, seen))
    return ("object", _content(_pickled_parts(value), seen))


def _pickled_parts(value: Any) -> tuple[Any, ...]:
    """What an object would be pickled as: its class and its state."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        parts: Any = reduce(value) if reduce else value.__reduce_ex__(2)
    except Exception as e:  # objects refuse to be pickled in many ways
        raise _unhashable(value) from e
    if isinstance(parts, str):
        raise _unhashable(value)
    start, items = parts[:3], parts[3:]
    return (*start, *(None if part is None else list(part) for part in items[:2]))


def _unhashable(value: Any) -> Unhashable:
    return Unhashable(f"a {type(value).__qualname__}, which has no hashable content")


@_content.register(tuple)
@_content.register(list)
def _(value: tuple | list, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return (type(value).__name__, [_content(item, seen) for item in value])


@_content.register
def _(value: dict, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return ("dict", [(_content(k, seen), _content(v, seen)) for k, v in value.items()])


@_content.register(set)
@_content.register(frozenset)
def _(value: set | frozenset, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return (
        type(value).__name__,
        sorted(repr(_content(item, _Seen(seen))) for item in value),
    )


@_content.register
def _(value: enum.Enum, seen: _Seen) -> Any:
    content = _content(value.value, seen)
    return ("enum", _qualified_name(type(value)), value.name, content)


@_content.register
def _(value: torch.Tensor, seen: _Seen) -> Any:
    if isinstance(value, FakeTensor):  # whose sizes may be symbolic
        raise _unhashable(value)
    if value.numel() * value.element_size() > _LARGEST_TENSOR_BYTES:
        raise Unhashable(f"a tensor of {value.numel()} elements")
    try:
        with _disable_current_modes(), torch.no_grad():
            raw = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
            data = bytes(raw.reshape(-1).view(torch.uint8).tolist())
    except Exception as e:  # tensors without data, or with another layout
        raise Unhashable(f"a tensor whose data cannot be read: {e}") from e
    sha = hashlib.sha256(data).hexdigest()
    return ("tensor", str(value.dtype), str(value.device), tuple(value.shape), sha)


@_content.register
def _(value: functools.partial, seen: _Seen) -> Any:  # type: ignore[type-arg]
    parts = (value.func, value.args, value.keywords)
    return ("partial", [_content(part, seen) for part in parts])


@_content.register
def _(value: types.MethodType, seen: _Seen) -> Any:
    return ("method", _content(value.__func__, seen), _content(value.__self__, seen))


@_content.register
def _(value: types.BuiltinFunctionType, seen: _Seen) -> Any:
    owner = value.__self__
    if isinstance(owner, types.ModuleType | type) or owner is None:
        return ("builtin", _qualified_name(value))
    return ("builtin", _qualified_name(value), _content(owner, seen))


@_content.register(types.MethodDescriptorType)
@_content.register(types.WrapperDescriptorType)
def _(value: Any, seen: _Seen) -> Any:
    return ("builtin", _qualified_name(value.__objclass__), value.__name__)


@_content.register
def _(value: types.ModuleType, seen: _Seen) -> Any:
    return ("module", value.__name__)


@_content.register
def _(value: type, seen: _Seen) -> Any:
    name = _qualified_name(value)
    if is_library(value) or seen.number(value) is not None:
        return ("class", name)
    members = {k: v for k, v in vars(value).items() if _is_own_content(k, v)}
    return ("class", name, _content(value.__bases__, seen), _content(members, seen))


def _is_own_content(name: str, member: Any) -> bool:
    """Not the bookkeeping of classes: docstrings, annotations, slots, weak references."""
    if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
        return False
    methods = (types.FunctionType, staticmethod, classmethod, property)
    dunder = name.startswith("__") and name.endswith("__")
    return isinstance(member, methods) or not (dunder or name == "_abc_impl")


@_content.register(staticmethod)
@_content.register(classmethod)
def _(value: Any, seen: _Seen) -> Any:
    return (type(value).__name__, _content(value.__func__, seen))


@_content.register
def _(value: property, seen: _Seen) -> Any:
    return ("property", _content((value.fget, value.fset, value.fdel), seen))


@_content.register
def _(value: functools.cached_property, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return ("property", _content(value.func, seen))


@_content.register
def _(value: types.FunctionType, seen: _Seen) -> Any:
    name = _qualified_name(value)
    if is_library(value):
        return ("function", name)
    if (number := seen.number(value)) is not None:
        return ("seen", number)
    code, names = value.__code__, names_in(value.__code__)
    cells = [_read(cell, names, seen) for cell in closed_over(value)]
    defaults = _content((value.__defaults__, value.__kwdefaults__), seen)
    found = [(k, _read(v, names, seen)) for k, v in globals_read(value).items()]
    imported = [
        (statement, _imported(statement, value.__globals__, names, seen))
        for statement in imports(code)
    ]
    own = _content(vars(value), seen)
    reads = (cells, defaults, found, imported, own, _environment_read(code))
    return ("function", name, _code(code), reads)


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


def _read(value: Any, names: frozenset[str], seen: _Seen) -> Any:
    """What code that uses ``names`` can see of a value: of a module not all of it."""
    if not isinstance(value, types.ModuleType):
        return _content(value, seen)
    if is_library(value):
        return ("module", value.__name__)
    if (number := seen.number(value, names)) is not None:
        return ("seen", number)
    found = sorted(names & vars(value).keys())
    attributes = [(name, _read(vars(value)[name], names, seen)) for name in found]
    return ("module", value.__name__, attributes)


_Import = tuple[str, tuple[str, ...], int]


def _imported(
    statement: _Import, namespace: dict[str, Any], names: frozenset[str], seen: _Seen
) -> Any:
    """What code sees of a module that it imports when it runs."""
    module, imported, level = statement
    if not level and _root(module) in _LIBRARIES:
        return ("module", module)
    try:
        found = __import__(module, namespace, None, imported, level)
    except Exception as e:  # importing runs any code
        raise Unhashable(f"an import of {module!r}, which fails: {e}") from e
    return _read(found, names, seen)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """The code and that of the functions defined in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def names_in(code: types.CodeType) -> frozenset[str]:
    """Of globals and attributes that code uses, that of functions in it too."""
    names = frozenset(name for inner in _codes(code) for name in inner.co_names)
    return names | _strings_in(code) if "getattr" in names else names


def _strings_in(code: types.CodeType) -> frozenset[str]:
    constants = (const for inner in _codes(code) for const in inner.co_consts)
    return frozenset(const for const in constants if isinstance(const, str))


def _environment_read(code: types.CodeType) -> list[tuple[str, str | None]]:
    """The variables of the process's environment whose names code has, and their values."""
    if names_in(code).isdisjoint(("environ", "getenv")):
        return []
    return [(name, os.environ.get(name)) for name in sorted(_strings_in(code))]


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


def imports(code: types.CodeType) -> list[_Import]:
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


def _code(code: types.CodeType) -> Any:
    """Bytecode without line numbers and file names."""
    consts = [
        _code(const) if isinstance(const, types.CodeType) else _content(const, _Seen())
        for const in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    handlers = getattr(code, "co_exceptiontable", b"")
    return (code.co_code, consts, names, counts, code.co_flags, handlers)


def _qualified_name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
    return f"{module}.{name}"


def _root(module: str | None) -> str:
    return (module or "").partition(".")[0]


def is_library(value: Any) -> bool:
    """Whether a module, function or class is of torch, Python or what these build on."""
    is_module = isinstance(value, types.ModuleType)
    name = value.__name__ if is_module else getattr(value, "__module__", None)
    return _root(name) in _LIBRARIES
