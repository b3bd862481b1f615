"""
Sums, products, quotients and minima of sizes that have values of their own.

From what ``s0`` and ``s1`` can be little follows for ``s0 - s1``, of which a range may be known.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import sympy
from torch.fx.experimental.symbolic_shapes import (
    _maybe_evaluate_static_worker,
    _SymbolInfo,
)
from torch.utils._sympy.functions import FloorDiv, Min
from torch.utils._sympy.value_ranges import bound_sympy, ValueRanges


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from .size_multiples import Sizes

_PARTS = (FloorDiv, Min)
# Stands for a sum or a product whose values are known.
WHOLE = sympy.Symbol("whole", integer=True)


def holds_of_compound(
    condition: sympy.Basic, size: sympy.Expr, values: ValueRanges, shape_env: ShapeEnv
) -> bool | None:
    """
    Whether a condition is true, or false, where a sum or a product has some values only: of
    ``s0 - s1`` none follow from those of ``s0`` and ``s1``, so that it takes the place of one
    of them in the condition.
    """
    if condition.free_symbols.isdisjoint(size.free_symbols):
        return None
    parts = Parts(shape_env)
    on_whole = _putting_whole_for(size, parts)(condition)
    parts.ranges[WHOLE] = values
    return parts.decide(on_whole)


def told_of_compound(
    conditions: Iterable[sympy.Basic], size: sympy.Expr, shape_env: ShapeEnv
) -> tuple[sympy.Basic, ...]:
    """Those of conditions that are on a sum or product alone, which is ``WHOLE`` in them."""
    parts = Parts(shape_env)
    on_whole = _putting_whole_for(size, parts)
    told = (_on_one_side(on_whole(condition)) for condition in conditions)
    return tuple(condition for condition in told if condition.free_symbols == {WHOLE})


def on_whole_alone(
    expr: sympy.Basic, size: sympy.Expr, shape_env: ShapeEnv
) -> sympy.Basic | None:
    """
    An expression on a sum or a product alone, be it rounded or divided, which is ``WHOLE`` in
    it; None for others.
    """
    expr, size = shape_env.replace(expr), shape_env.replace(size)
    if size.is_Add:
        expr = expr.xreplace(_in_place_of_term(size)).replace(FloorDiv, _expanded)
    else:
        expr = expr.subs(size, WHOLE)
    return expr if expr.free_symbols == {WHOLE} else None


def _expanded(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
    return FloorDiv(sympy.expand(base), sympy.expand(divisor))


def _on_one_side(condition: sympy.Basic) -> sympy.Basic:
    """Each comparison in it with nothing, so that no terms are there that cancel out."""
    if isinstance(condition, sympy.core.relational.Relational):
        return condition.func(sympy.expand(condition.lhs - condition.rhs), 0)
    if isinstance(condition, (sympy.And, sympy.Or, sympy.Not)):
        return condition.func(*map(_on_one_side, condition.args))
    return condition


def _putting_whole_for(
    size: sympy.Expr, parts: Parts
) -> Callable[[sympy.Basic], sympy.Basic]:
    """What puts ``WHOLE`` for a sum or a product of symbols into conditions on that."""
    size = parts.general(size)
    instead = _in_place_of_term(size) if size.is_Add else {}

    def on_whole(condition: sympy.Basic) -> sympy.Basic:
        condition = parts.general(condition)
        return condition.xreplace(instead) if instead else condition.subs(size, WHOLE)

    return on_whole


def _in_place_of_term(size: sympy.Expr) -> dict[sympy.Symbol, sympy.Expr]:
    """
    What one of a sum's symbols is in terms of the others and of the sum, which is ``WHOLE``;
    empty if it has none that is its own multiple by 1 or -1.
    """
    for symbol in sorted(size.free_symbols, key=str):
        factor = size.coeff(symbol)
        rest = size - factor * symbol
        if factor in (1, -1) and symbol not in rest.free_symbols:
            return {symbol: factor * (WHOLE - rest)}
    return {}


class Parts:
    """
    Quotients and minima in conditions, each of which a symbol stands for.

    Args:
        shape_env: knows what the symbols of sizes can be.
    """

    def __init__(self, shape_env: Sizes) -> None:
        self.ranges = {**shape_env.var_to_range}
        self._shape_env = shape_env
        self._symbols: dict[sympy.Basic, sympy.Symbol] = {}

    def general(self, expr: Any) -> Any:
        """The expression with symbols for its parts."""
        return self._with_symbols(self._shape_env.replace(expr))

    def _with_symbols(self, expr: Any) -> Any:
        if isinstance(expr, _PARTS):
            return self._symbol_of(expr)
        return expr.func(*map(self._with_symbols, expr.args)) if expr.args else expr

    def _symbol_of(self, part: sympy.Expr) -> sympy.Symbol:
        if part not in self._symbols:
            symbol = sympy.Symbol(f"part{len(self._symbols)}", integer=True)
            self._symbols[part] = symbol
            self.ranges[symbol] = bound_sympy(part, self._shape_env.var_to_range)
        return self._symbols[part]

    def decide(self, condition: Any) -> bool | None:
        """Whether a condition follows from what its symbols can be."""
        symbols = sorted(condition.free_symbols, key=str)
        if not all(symbol in self.ranges for symbol in symbols):
            return None
        infos = tuple(_SymbolInfo(s, self.ranges[s], None, False) for s in symbols)
        known = _maybe_evaluate_static_worker(condition, infos, False, False)
        return bool(known) if known in (sympy.true, sympy.false) else None
