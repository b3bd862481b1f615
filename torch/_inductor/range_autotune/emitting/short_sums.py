"""
Sums in C++ kernels that are long or not by the size at run time.

Inductor sums more than some thousand elements in chunks, which takes a helper on the heap for
each sum, and a step through it for each element. Which way is taken it decides with a guard. With
an op that is autotuned there are no guards: of a sum that may be long the code has both ways.
With chunks for any size the gradient of a norm's weight, 256 sums over rows, took 1.5 times
as long at 16 and 128 rows (CPU, two cores).
"""

from __future__ import annotations

from ..compiled_graph import has_autotuned_op


def helper_of_sum(kind: str, helper: str, count: str, chunk: int) -> str:
    """
    What declares the helper of a sum that may be long; without memory where it is short.
    Called by C++ code generation.

    Args:
        kind: the helper's type.
        count: in C++, of how many elements the sum is.
        chunk: a sum of no more is short.
    """
    if not has_autotuned_op():
        return f"{kind} {helper}({count});"
    is_short = _is_short(helper)
    return (
        f"const bool {is_short} = {count} <= {chunk}; "
        f"auto {helper} = {is_short} ? {kind}() : {kind}({count});"
    )


def sum_by_length(helper: str, long: str, short: str) -> str:
    """
    An expression for either kind of sum.

    Args:
        long: if it is in chunks.
        short: if it is not.
    """
    return f"{_is_short(helper)} ? {short} : {long}" if has_autotuned_op() else long


def _is_short(helper: str) -> str:
    return f"{helper}_is_short"
