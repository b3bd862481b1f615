"""
Loops of C++ kernels that run in threads where there is enough for them to do.

Inductor decides that by the sizes that a model is compiled with, once for all others: a
kernel made for few rows runs in one thread whatever it is given, one for many starts its
threads for a single row. Here the loop asks for the size when it runs.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import sympy

from ... import config
from ...codegen.cpp import OuterLoopFusedKernel
from ...codegen.cpp_utils import cexpr
from ...utils import sympy_product
from ...virtualized import V
from ..compiled_graph import has_autotuned_op
from ..sizes.size_hints import hinted


if TYPE_CHECKING:
    from ...codegen.cpp import CppKernelProxy, LoopNest, ParallelDepth


def parallel_by_size(
    proxy: CppKernelProxy, nest: LoopNest, depth: ParallelDepth, threads: int
) -> tuple[ParallelDepth, str]:
    """
    How many loops of a nest are shared by threads, and the clause of OpenMP that says when.
    Called by C++ code generation before it writes the loops.

    Args:
        depth: what Inductor has decided by hints.

    Returns:
        ``depth`` and no clause where sizes are constant, or in a graph without an autotuned op;
        no clause either where there is always enough to do, or never.
    """
    amounts = _elements(nest)
    symbols = {symbol for amount in amounts for symbol in amount.free_symbols}
    by_runtime = threads == 1 or config.cpp.dynamic_threads
    if by_runtime or not symbols or not has_autotuned_op():
        return depth, ""
    enough = threads * config.cpp.min_chunk_size
    known = V.graph.sizevars.statically_known_true
    if all(known(sympy.Lt(amount, enough)) for amount in amounts):
        return dataclasses.replace(depth, parallel_depth=0), ""
    if not depth.parallel_depth:
        # What Inductor takes for sizes that it knows nothing of.
        typical = dict.fromkeys(symbols, config.unbacked_symint_fallback)
        with hinted(typical):
            most = nest.max_parallel_depth()
            depth = nest.get_kernel().decide_parallel_depth(most, threads)
    if not depth.parallel_depth:
        return depth, ""
    if any(known(sympy.Ge(amount, enough)) for amount in amounts):
        return depth, ""
    tests = (f"{cexpr(proxy.rename_indexing(n))} >= {enough}" for n in amounts)
    return depth, f" if({' || '.join(dict.fromkeys(tests))})"


def _elements(nest: LoopNest) -> list[sympy.Expr]:
    """How many elements loops go over: those of a nest, or several that share the outer ones."""
    kernel = nest.get_kernel()
    are_fused = isinstance(kernel, OuterLoopFusedKernel)
    kernels = [n.get_kernel() for n in kernel.inner] if are_fused else [kernel]
    return [sympy_product(k.call_ranges or ()) for k in kernels]
