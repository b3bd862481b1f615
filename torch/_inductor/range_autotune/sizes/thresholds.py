"""
Sizes from which on what is asked of the size that is dispatched on has another answer.

An implementation with a kernel for small sizes and one for large ones asks whether
``x.shape[0] <= 16``, which guards; below 17 and from there on it can be traced.
"""

from __future__ import annotations

import bisect
import functools
import itertools
from typing import Any, TYPE_CHECKING

import sympy
from sympy.logic.boolalg import Boolean
from torch.utils._sympy.functions import (
    BitwiseFn_bitwise_and,
    CeilToInt,
    FloorDiv,
    FloorToInt,
    Mod,
    PythonMod,
)
from torch.utils._sympy.value_ranges import ValueRanges

from ...runtime.runtime_utils import ceildiv
from ...virtualized import V
from .compound_sizes import on_whole_alone, told_of_compound, WHOLE
from .guards import is_about_index_width, replaced
from .known_sizes import values_of_symbol
from .rounded_sizes import known_quotient, with_quotients
from .size_conditions import LARGEST_SYMBOL, size_bounds
from .size_multiples import Blocks, divisor_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..ranges import DimRange

_MOST_STEPS = 16
# What may have one value again and again as a size grows, in sums with others.
_RECURRING = (FloorDiv, CeilToInt, FloorToInt, BitwiseFn_bitwise_and)
# Inductor's own code asks for those of sympy.
_REMAINDERS = (Mod, PythonMod, sympy.Mod)
# How many values at each end of what has one answer are looked at, if something is rounded.
_MOST_BESIDE = 256


def thresholds(condition: sympy.Basic, size: sympy.Expr, within: DimRange) -> list[int]:
    """
    Where the answer to a condition changes within a range.

    Args:
        condition: on sizes, symbolic.
        size: the one that is dispatched on, symbolic.
        within: concrete values of it.

    Returns:
        The first sizes with another answer than the one below, increasing; multiples where
        the model says that there are no others. Empty if the condition is on other sizes,
        too, changes every few, as ``size % 8 == 0`` does and ``size == 8 * (size // 8)``, or
        is about the width of indices. Of a quotient of two sizes only from where on it is one
        number.
    """
    condition, size = replaced(condition), replaced(size)
    if isinstance(condition, Boolean):
        condition = with_quotients(condition)
    possible = within.intersect(size_bounds(size))
    if possible is None or not size.free_symbols:
        return []
    values = values_of_symbol(size, possible.start, possible.last)
    if values is None:
        shape_env = V.graph.sizevars.shape_env
        told = [
            *told_of_compound([condition], size, shape_env),
            on_whole_alone(condition, size, shape_env),
        ]
        condition = next((c for c in told if c is not None), condition)
        size = WHOLE
        values = WHOLE, possible.start, possible.last
    symbol, first, last = values
    if condition.free_symbols != {symbol} or condition.has(*_REMAINDERS):
        return []
    if is_about_index_width(condition):
        return []
    low, high = int(first), int(min(last, LARGEST_SYMBOL))
    if low > high:  # as of ``2 * s``, which is never 29
        return []
    try:
        if not _is_one_number(condition, symbol, low, high):
            changes = _settling(condition, symbol, low, high)
        elif isinstance(condition, Boolean):
            changes = _changes(condition, symbol, low, high)
        else:
            changes = _steps(condition, symbol, low, high)
        ends = (_ends_between(size, symbol, value) for value in changes)
        found = set(itertools.chain(*ends))
    except (ArithmeticError, ValueError):  # it has none somewhere, as 1 << (s - 20)
        return []
    by = divisor_of(size, V.graph.sizevars.shape_env)
    first, *starts = (ceildiv(start, by) * by for start in (possible.start, *found))
    return sorted({start for start in starts if first < start < possible.end})


def _is_one_number(
    condition: sympy.Basic, symbol: sympy.Symbol, low: int, high: int
) -> bool:
    """Whether each quotient of two sizes in a condition is, for all values of their symbol."""
    values = Blocks({symbol: ValueRanges(low, high)})
    return all(
        known_quotient(quotient, values) is not None
        for quotient in condition.atoms(FloorDiv)
        if quotient.args[1].free_symbols
    )


def _settling(
    condition: sympy.Basic, symbol: sympy.Symbol, low: int, high: int
) -> list[int]:
    """
    The value from which on quotients of two sizes are one number each, if they are among the
    larger half, as that of parts in ``x.chunk(4)`` from 10 rows on. Among small values they
    may go up and down.
    """
    half = (low + high) // 2
    if not _is_one_number(condition, symbol, half, high):
        return []

    def is_settled(first: int) -> bool:
        return _is_one_number(condition, symbol, first, high)

    return [low + bisect.bisect_left(range(low, half), True, key=is_settled)]


def _changes(
    condition: Boolean, symbol: sympy.Symbol, low: int, high: int
) -> list[int]:
    """Values at which a condition on one symbol is not what it is for the value below."""

    def holds(part: sympy.Basic, value: int) -> bool:
        return part.xreplace({symbol: sympy.Integer(value)}) == sympy.true

    answer = functools.partial(holds, condition)
    changes = set()
    for part in _inequalities(condition):
        at = _first_change(functools.partial(holds, part), low, high)
        if at <= high and answer(at) != answer(at - 1):
            changes.add(at)
    if condition.has(*_RECURRING):
        for start, end in itertools.pairwise([low, *sorted(changes), high + 1]):
            if not _is_one(answer, start, end):
                raise ValueError(f"{condition} changes every few values")
    return sorted(changes)


def _is_one(answer: Callable[[int], Any], start: int, end: int) -> bool:
    """
    Whether an answer is the same for all values in a range, as far as can be seen from its
    ends; that to ``s <= 16 * (s // 16)`` is not.
    """
    values = {
        *range(start, min(end, start + _MOST_BESIDE)),
        *range(max(start, end - _MOST_BESIDE), end),
    }
    return len({*map(answer, values)}) <= 1


def _steps(expr: sympy.Expr, symbol: sympy.Symbol, low: int, high: int) -> list[int]:
    """
    Values at which a number is not what it is for the value below; none if there are more than
    a few.
    """

    def at(value: int) -> sympy.Basic:
        return expr.xreplace({symbol: sympy.Integer(value)})

    found: list[int] = []
    while low < high and at(low) != at(high) and len(found) <= _MOST_STEPS:
        low = _first_change(at, low, high)
        found.append(low)
    return found if len(found) <= _MOST_STEPS else []


def _inequalities(condition: sympy.Basic) -> Iterator[sympy.Basic]:
    """What a condition is made of, each of which changes once as a size grows."""
    if isinstance(condition, (sympy.Eq, sympy.Ne)):
        yield sympy.Le(condition.lhs, condition.rhs)
        yield sympy.Ge(condition.lhs, condition.rhs)
    elif isinstance(condition, (sympy.And, sympy.Or, sympy.Not)):
        for part in condition.args:
            yield from _inequalities(part)
    else:
        yield condition


def _first_change(answer: Callable[[int], Any], low: int, high: int) -> int:
    """By bisection the least value with another answer than ``low``; above ``high`` if none."""
    before = answer(low)
    values = range(low, high + 1)
    return low + bisect.bisect_left(values, True, key=lambda v: answer(v) != before)


def _ends_between(
    size: sympy.Expr, symbol: sympy.Symbol, value: int
) -> tuple[int, ...]:
    """
    Ends of ranges that part what a size is below a symbol's value from what it is there.

    If that is one size, as of ``s // 2``, nothing parts them, and it is left by itself.
    """
    below, there = (
        int(size.xreplace({symbol: sympy.Integer(v)})) for v in (value - 1, value)
    )
    return (there, there + 1) if below == there else (max(below, there),)
