"""
What is known of the values of symbols: hints, bounds, and conditions that they have to meet;
and how some of them follow from the others.

Sizes are symbolic where they are sympy expressions and concrete where they are ints.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, TYPE_CHECKING

import sympy

from ...virtualized import V
from ..ranges import DimRange
from .guards import is_about_index_width, replaced


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Values = Mapping[sympy.Symbol, int]

LARGEST_SYMBOL = 2**40


def size_bounds(size: sympy.Expr) -> DimRange:
    """
    The values that the shape environment knows a symbolic size to have.

    A bound that only comes from a guard on the width of indices does not count: nobody has
    such a size, and what is compiled behind one, as a backward pass is, would be measured
    there.
    """
    bounds = V.graph.sizevars.shape_env.bound_sympy(size)
    upper = _finite(bounds.upper, math.inf)
    if upper < math.inf and any(map(_is_bounded_by_index_width, size.free_symbols)):
        upper = math.inf
    return DimRange(max(_finite(bounds.lower, 0), 0), upper + 1)


def nearest_possible(symbol: sympy.Symbol, value: int) -> int:
    """The nearest value within a symbol's bounds."""
    bounds = size_bounds(symbol)
    return int(min(max(value, bounds.start), bounds.last))


def _is_bounded_by_index_width(symbol: sympy.Symbol) -> bool:
    """Whether only a guard on the width of indices forbids the next larger value."""
    shape_env = V.graph.sizevars.shape_env
    last = _finite(shape_env.bound_sympy(symbol).upper, None)
    if last is None:
        return False
    broken = [
        guard.expr
        for guard in shape_env.guards
        if symbol in guard.expr.free_symbols
        and not _holds_at(guard.expr, symbol, last + 1)
    ]
    return bool(broken) and all(map(is_about_index_width, broken))


def _holds_at(condition: sympy.Basic, symbol: sympy.Symbol, value: int) -> bool:
    """With the other symbols at their hints."""
    hints = {other: hint(other) for other in condition.free_symbols}
    return may_hold(replaced(condition), {**hints, symbol: value})


def _finite(bound: Any, otherwise: Any) -> Any:
    # The largest index stands for "unknown" in shape environments, as infinities do.
    known = sympy.sympify(bound).is_Integer and abs(int(bound)) < 2**62
    return int(bound) if known else otherwise


def hint(symbol: sympy.Symbol) -> int:
    """The size that the model is compiled with."""
    return int(V.graph.sizevars.optimization_hint(symbol))


def known_conditions() -> list[sympy.Basic]:
    """
    What sizes have to meet, in the symbols that are left: guards, and what is asserted of
    sizes that are data.
    """
    shape_env = V.graph.sizevars.shape_env
    asserted = itertools.chain(*shape_env.deferred_runtime_asserts.values())
    return [replaced(known.expr) for known in (*shape_env.guards, *asserted)]


def all_hold(conditions: Iterable[sympy.Basic], values: Values) -> bool:
    """Whether values make none of ``known_conditions`` false."""
    return all(may_hold(condition, values) for condition in conditions)


def may_hold(condition: sympy.Basic, values: Values) -> bool:
    """
    False only if values make a condition on sizes false, or divide by nothing in it.

    Args:
        condition: in the symbols that are left.
    """
    known = {symbol: sympy.Integer(value) for symbol, value in values.items()}
    try:
        return condition.xreplace(known) is not sympy.false
    except ZeroDivisionError:  # by a quotient such as s // 8
        return False


def with_conditions_met(
    conditions: Sequence[sympy.Basic], values: Values, changing: Sequence[sympy.Symbol]
) -> Values | None:
    """Values that meet conditions, with some symbols changed one by one; None if not found."""
    met = {**values}
    settled = values.keys() - {*changing}
    for symbol in changing:
        settled |= {symbol}
        mine = [
            condition
            for condition in conditions
            if symbol in condition.free_symbols
            and condition.free_symbols & values.keys() <= settled
        ]
        for value in _solutions_or_doubled(mine, symbol, met):
            met[symbol] = value
            if all_hold(mine, met):
                break
        else:
            return None
    return met


def _solutions_or_doubled(
    conditions: Sequence[sympy.Basic], symbol: sympy.Symbol, values: Values
) -> list[int]:
    """Within its bounds: solutions of equations, what is nearest to its value, that doubled."""
    equations = [c for c in conditions if isinstance(c, sympy.Eq)]
    solutions = [_solution(equation, symbol, values) for equation in equations]
    bounds = size_bounds(symbol)
    nearest = nearest_possible(symbol, values[symbol])
    doubled = [nearest << n for n in range(LARGEST_SYMBOL.bit_length())]
    return [v for v in (*solutions, *doubled) if v is not None and v in bounds]


def with_equations_solved(
    conditions: Sequence[sympy.Basic], values: Values, symbol: sympy.Symbol
) -> Values:
    """With other symbols at the least that makes equations with one hold, one by one."""
    solved, settled = {**values}, {symbol}
    for equation in conditions:
        if not isinstance(equation, sympy.Eq) or may_hold(equation, solved):
            continue
        symbols = equation.free_symbols
        if symbols.isdisjoint(settled):
            continue
        for other in sorted(symbols & solved.keys() - settled, key=str):
            value = _solution(equation, other, solved)
            if value is not None:
                solved[other] = value
                settled.add(other)
                break
    return solved


def _solution(equation: sympy.Eq, symbol: sympy.Symbol, values: Values) -> int | None:
    """The least value of one symbol, by bisection; None if there is none to be found."""
    if not (equation.lhs.is_integer and equation.rhs.is_integer):
        return None
    known = {s: sympy.Integer(v) for s, v in values.items() if s != symbol}
    difference = (equation.lhs - equation.rhs).xreplace(known)
    if difference.free_symbols != {symbol}:
        return None
    bounds = size_bounds(symbol)
    low, high = bounds.start, int(min(bounds.last, LARGEST_SYMBOL))

    def at(value: int) -> sympy.Expr:
        return difference.xreplace({symbol: sympy.Integer(value)})

    try:
        sign = -1 if at(low) > 0 else 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if sign * at(middle) >= 0 else (middle + 1, high)
        return low if at(low) == 0 else None
    except ZeroDivisionError:
        return None


def with_others_raised(
    conditions: Sequence[sympy.Basic],
    values: Values,
    symbol: sympy.Symbol,
    factor: int,
) -> Values:
    """
    With other symbols at least so many times as large as one, where conditions on it and
    them do not hold.
    """
    least = factor * values[symbol]
    others: set[Any] = set()
    for condition in conditions:
        symbols = condition.free_symbols
        if symbol in symbols and not may_hold(condition, values):
            others |= symbols - {symbol}
    raised = {
        other: max(value, least)
        for other, value in values.items()
        if other in others and least in size_bounds(other)
    }
    return {**values, **raised}
