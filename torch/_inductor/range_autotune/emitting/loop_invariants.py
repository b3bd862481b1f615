"""
What a loop of a C++ kernel computes anew for each vector, and could once before it.

A norm's scale is one number a row: a square root and two divisions, which Inductor writes
into the loop over the row. A C++ compiler leaves them there, for what the loop stores might
be what they are computed from. Where neighbours join the norm, the loop has enough to do
without: LayerNorm, gelu and a residual of 512 columns took 20 to 25 % longer, and longer
than with a loop for the neighbours.
"""

from __future__ import annotations

import collections
import re
from typing import TYPE_CHECKING

from ...codegen.common import InplacedBuffer
from ...codegen.cpp_utils import CppCSEVariable
from ..compiled_graph import has_autotuned_op


if TYPE_CHECKING:
    from collections.abc import Sequence

    import sympy

    import torch

    from ...codegen.cpp import CppVecKernel, LoopNest
    from ...codegen.cpp_utils import IndentedBuffer

_DEFINITION = re.compile(r"auto (tmp\d+) = (.+);")
_LOAD = re.compile(r"(\w+)\[([^\[\]]+)\]")
_VARIABLE = re.compile(r"\btmp\d+\b")
_WORD = re.compile(r"\w+")


def take_out_of_loop(nest: LoopNest, depth: int) -> list[str]:
    """
    Lines of a kernel's body to be written before its innermost loop instead. Called by C++
    code generation before it writes a loop.

    Args:
        depth: of the loop that is to be written next.

    Returns:
        Definitions of variables, no longer in the body; none if nothing is gained, or in a
        graph without an autotuned op.
    """
    from ...codegen.cpp import CppKernelProxy, CppVecKernel

    assert nest.loops is not None
    proxy = nest.get_kernel()
    is_innermost = depth == len(nest.loops) - 1
    if not (is_innermost and isinstance(proxy, CppKernelProxy) and has_autotuned_op()):
        return []
    loop, main = nest.loops[depth], proxy.kernels[0]
    if type(main) is not CppVecKernel or _is_shared_by_threads(nest, depth):
        return []
    return _take(main, loop.var) if loop.simd_vec else []


def _is_shared_by_threads(nest: LoopNest, depth: int) -> bool:
    """Whether threads share a loop out, alone or with loops around it."""
    assert nest.loops is not None
    return any(
        loop.parallel > depth - outer
        for outer, loop in enumerate(nest.loops[: depth + 1])
    )


def _take(kernel: CppVecKernel, var: sympy.Symbol) -> list[str]:
    written = _written(kernel)
    bodies = (kernel.loads, kernel.compute)
    taken: dict[str, str] = {}
    for line in [line for body in bodies for line in _statements(body)]:
        if not (found := _DEFINITION.fullmatch(line)):
            continue
        name, value = str(found[1]), str(found[2])
        dtype = _dtype_if_fixed(kernel, var, name)
        if dtype is None or not {*_VARIABLE.findall(value)} <= taken.keys():
            continue
        if _is_safe(value, dtype, written):
            taken[name] = line
    if not any(_VARIABLE.search(line.split(" = ", 1)[1]) for line in taken.values()):
        return []  # loads and constants only
    lines = [*taken.values()]
    for body in bodies:
        body._lines = [line for line in body._lines if line not in lines]
    return lines


def _dtype_if_fixed(
    kernel: CppVecKernel, var: sympy.Symbol, name: str
) -> torch.dtype | None:
    """Of a scalar that is the same in each turn of a loop, else None."""
    variable = kernel.cse.varname_map.get(name)
    if not isinstance(variable, CppCSEVariable) or variable.is_vec:
        return None
    return None if variable.depends_on(var) else variable.dtype


def _is_safe(value: str, dtype: torch.dtype, written: set[str]) -> bool:
    """
    Whether an expression is of the same value before the loop, and fails in no case.

    Args:
        written: C++ names of what the loop stores to.
    """
    if load := _LOAD.fullmatch(value):
        pointer, index = load.groups()
        # A place that was loaded itself may be checked in the loop.
        return pointer not in written and not _VARIABLE.search(index)
    # Divisions of integers may fail, and brackets begin blocks.
    return dtype.is_floating_point and not re.search(r"[\[{]", value)


def _written(kernel: CppVecKernel) -> set[str]:
    """What is named in a kernel's stores, and by which other names it has that memory."""
    words = {
        word
        for line in kernel.stores._lines
        for word in _WORD.findall(getattr(line, "line", None) or str(line))
    }
    args = kernel.args
    names: dict[str, set[str]] = collections.defaultdict(set)
    for table in (args.input_buffers, args.output_buffers):
        for buffer, name in table.items():
            names[buffer].add(str(name))
    inplaced = [
        b for b in args.inplace_buffers.values() if isinstance(b, InplacedBuffer)
    ]
    shared = [
        {b.inner_name}.union(*(names[o] for o in b.other_names)) for b in inplaced
    ]
    for of_one in [*names.values(), *shared]:
        words |= of_one if words & of_one else set()
    return words


def _statements(body: IndentedBuffer) -> Sequence[str]:
    """The lines of a body that are in no block of it."""
    lines, depth = [], 0
    for line in body._lines:
        text = getattr(line, "line", line)
        if isinstance(text, str):
            if not depth and isinstance(line, str):
                lines.append(line)
            depth += text.count("{") - text.count("}")
    return lines
