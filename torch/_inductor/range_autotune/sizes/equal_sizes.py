"""
Sizes that implementations need to be equal, where nothing says that they are.

A rotary embedding gets as many positions as rows, attention over sequences of several lengths
one offset more than lengths, a batch as many rows as two parts have together: where only a
custom op sees all of them, a model has a symbol for each. What is traced with one symbol less
is right where they are equal, which can be tested when the code runs.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import sympy

from ...virtualized import V
from .guards import known_answer, replaced
from .size_conditions import hint


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Symbols, each with what stands for it; to be replaced in order.
    EqualSizes = tuple[tuple[sympy.Symbol, sympy.Expr], ...]


def needed_equal(condition: sympy.Basic, size: sympy.Expr | None) -> EqualSizes:
    """
    A size and what decides a condition if it is equal to it, as it is in the model that is
    being compiled; nothing if there are none, or they depend on data.

    Args:
        condition: on sizes, symbolic.
        size: the dispatch dimension, whose symbols stay where others may go as well.
    """
    condition = replaced(condition)
    shape_env = V.graph.sizevars.shape_env
    symbols = condition.free_symbols & shape_env.backed_var_to_val.keys()
    kept = set() if size is None else size.free_symbols
    for zero in _zero_where_equal(condition, sorted(symbols, key=str)):
        if zero.xreplace({s: hint(s) for s in zero.free_symbols}) != 0:
            continue
        equal = _solved(zero, kept, shape_env)
        if equal and known_answer(at_equal(condition, equal), shape_env) is not None:
            return equal
    return ()


def _zero_where_equal(
    condition: sympy.Basic, symbols: Sequence[sympy.Symbol]
) -> Iterator[sympy.Expr]:
    """
    Differences of symbols that are in a condition, and factors of the difference that it
    compares to 0.
    """
    for one, other in itertools.combinations(symbols, 2):
        yield one - other
    if isinstance(condition, sympy.Rel):
        _, factors = sympy.factor_list(condition.lhs - condition.rhs)
        for factor, _ in factors:
            if factor.free_symbols <= {*symbols} and factor.is_polynomial():
                yield factor


def _solved(
    zero: sympy.Expr, kept: Set[sympy.Basic], shape_env: ShapeEnv
) -> EqualSizes:
    """
    A symbol and what it is where a polynomial is 0; nothing if that is not a sum of products
    of the others, with integers.

    Where there are several, one that can have each value that the others give it, so that
    no other ones are measured; if there is none, one that would at least be no negative size.
    """
    found = []
    for symbol in sorted(zero.free_symbols, key=str):
        factor = zero.coeff(symbol)
        by = sympy.expand(symbol - factor * zero)
        if factor not in (1, -1) or symbol in by.free_symbols:
            continue
        values, own = shape_env.bound_sympy(by), shape_env.var_to_range[symbol]
        if by.free_symbols and values.lower >= 0:
            fits = bool(values.issubset(own)), bool(values.lower >= own.lower)
            found.append((*fits, symbol not in kept, (symbol, by)))
    return (max(found, key=lambda solution: solution[:3])[3],) if found else ()


def at_equal(expr: sympy.Basic, equal: EqualSizes) -> sympy.Basic:
    """A symbolic expression where sizes are equal."""
    for symbol, by in equal:
        expr = expr.xreplace({symbol: by})
    return expr


def distance(equal: EqualSizes) -> sympy.Expr:
    """How far sizes are from being equal, symbolic: 0 only where they all are."""
    return sympy.Add(*(sympy.Abs(symbol - by) for symbol, by in equal))
