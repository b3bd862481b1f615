"""
Sizes that implementations need to be equal, where nothing says that they are.

A rotary embedding gets as many positions as rows: where only a custom op sees both, a model has
a symbol for each. What is traced with one symbol for both is right where they are equal, which
can be tested when the code runs.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import sympy

from ...virtualized import V
from .guards import replaced
from .size_conditions import hint


if TYPE_CHECKING:
    # Symbols, each with the one that stands for it; to be replaced in order.
    EqualSizes = tuple[tuple[sympy.Symbol, sympy.Symbol], ...]


def needed_equal(condition: sympy.Basic, size: sympy.Expr | None) -> EqualSizes:
    """
    Two sizes that decide a condition if they are equal, as they are in the model that is being
    compiled; nothing if there are none, or they depend on data.

    Args:
        condition: on sizes, symbolic.
        size: the dispatch dimension, whose symbol stays where both have the same bounds.
    """
    condition = replaced(condition)
    backed = V.graph.sizevars.shape_env.backed_var_to_val
    symbols = sorted(condition.free_symbols & backed.keys(), key=str)
    for pair in itertools.combinations(symbols, 2):
        if hint(pair[0]) == hint(pair[1]):
            equal = (_in_order(*pair, size),)
            if at_equal(condition, equal) in (sympy.true, sympy.false):
                return equal
    return ()


def _in_order(
    one: sympy.Symbol, other: sympy.Symbol, size: sympy.Expr | None
) -> tuple[sympy.Symbol, sympy.Symbol]:
    """The symbol with fewer values stands for both, so that no other ones are measured."""
    values = V.graph.sizevars.shape_env.var_to_range
    if values[one] != values[other]:
        is_narrower = values[one].issubset(values[other])
        return (other, one) if is_narrower else (one, other)
    is_kept = size is not None and one in size.free_symbols
    return (other, one) if is_kept else (one, other)


def at_equal(expr: sympy.Basic, equal: EqualSizes) -> sympy.Basic:
    """A symbolic expression where sizes are equal."""
    for symbol, by in equal:
        expr = expr.xreplace({symbol: by})
    return expr


def distance(equal: EqualSizes) -> sympy.Expr:
    """How far sizes are from being equal, symbolic: 0 only where they all are."""
    return sympy.Add(*(sympy.Abs(symbol - by) for symbol, by in equal))
