"""
What symbols of sizes can be, narrowed for a block: by what is known there, or by guards.

A shape environment keeps the first and the last value of each symbol, and asks guards only
for exactly what they say. Where a model reads ``x[1:]`` there is a guard ``s - 1 != 1``; for
``s - 1 < 2`` another one would be added.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

import sympy
from torch._subclasses.fake_tensor import disable_fake_tensor_cache
from torch.utils._sympy.value_ranges import ValueRanges

from ...runtime.runtime_utils import ceildiv
from ...virtualized import V
from .compound_sizes import told_of_compound, WHOLE
from .size_multiples import divisor_of


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

# An attribute of a shape environment, since one inside of another has symbols of its own.
_COMPOUNDS = "_custom_op_compounds_in_ranges"
# How many values at the ends of a symbol's range guards may rule out.
_MOST_RULED_OUT = 1024
# How many values are tried out one by one.
_MOST_VALUES = 1024


@contextlib.contextmanager
def narrowed(
    shape_env: ShapeEnv, values: Mapping[sympy.Symbol, ValueRanges]
) -> Iterator[None]:
    """In the block symbols have some of their values only."""
    ranges = shape_env.var_to_range
    before = {symbol: ranges[symbol] for symbol in values}
    with no_answer_kept(shape_env):
        ranges.update(values)
        try:
            yield
        finally:
            ranges.update(before)


@contextlib.contextmanager
def no_answer_kept(shape_env: ShapeEnv) -> Iterator[None]:
    """From before the block in it, or from it behind."""
    with disable_fake_tensor_cache(V.fake_mode):
        _forget_answers(shape_env)
        try:
            yield
        finally:
            _forget_answers(shape_env)


def _forget_answers(shape_env: ShapeEnv) -> None:
    shape_env._version_counter += 1
    type(shape_env)._inner_evaluate_expr.cache_clear()
    type(shape_env).guard_or_defer_runtime_assert.cache_clear()


@contextlib.contextmanager
def without_ruled_out_ends(shape_env: ShapeEnv) -> Iterator[None]:
    """In the block symbols have no first or last values that guards on them rule out."""
    of_one: dict[sympy.Symbol, list[sympy.Basic]] = {}
    for guard in shape_env.guards:
        symbols = guard.expr.free_symbols
        if len(symbols) == 1:
            of_one.setdefault(next(iter(symbols)), []).append(guard.expr)
    ranges = shape_env.var_to_range
    narrower = {
        symbol: values
        for symbol, guards in of_one.items()
        if symbol in ranges and ranges[symbol].is_int
        if (values := _left_by(tuple(guards), symbol, ranges[symbol])) != ranges[symbol]
    }
    with narrowed(shape_env, narrower) if narrower else contextlib.nullcontext():
        yield


@contextlib.contextmanager
def compound_in_range(
    shape_env: ShapeEnv, size: sympy.Expr, values: ValueRanges
) -> Iterator[None]:
    """
    In the block a sum or a product of symbols has some values only, of which guards leave
    the rest.
    """
    guards = told_of_compound((g.expr for g in shape_env.guards), size, shape_env)
    before, left = compounds_in_ranges(shape_env), _left_by(guards, WHOLE, values)
    with no_answer_kept(shape_env):
        vars(shape_env)[_COMPOUNDS] = (*before, (size, left))
        try:
            yield
        finally:
            vars(shape_env)[_COMPOUNDS] = before


def compounds_in_ranges(
    shape_env: ShapeEnv,
) -> tuple[tuple[sympy.Expr, ValueRanges], ...]:
    """Those of the blocks around, and the values that they have."""
    return vars(shape_env).get(_COMPOUNDS, ())


def value_at_all_of_few(expr: sympy.Basic, shape_env: ShapeEnv) -> sympy.Basic | None:
    """
    What an expression of one symbol is for all of its values, where these are few, as the
    next power of two in a small range; None if it is not one thing, or of others.
    """
    expr = shape_env.replace(expr)
    if len(expr.free_symbols) != 1:
        return None
    (symbol,) = expr.free_symbols
    values = shape_env.var_to_range.get(symbol)
    if values is None or not (values.lower.is_Integer and values.upper.is_Integer):
        return None
    if values.upper - values.lower >= _MOST_VALUES:
        return None
    by = divisor_of(symbol, shape_env)
    first = ceildiv(int(values.lower), by) * by
    return _value_at_all(expr, symbol, range(first, int(values.upper) + 1, by))


@functools.lru_cache(maxsize=1024)
def _value_at_all(
    expr: sympy.Basic, symbol: sympy.Symbol, values: range
) -> sympy.Basic | None:
    def at(value: int) -> sympy.Basic:
        return expr.xreplace({symbol: sympy.Integer(value)})

    if not values:
        return None
    try:
        known = at(values[0])
        # That it is another one shows at the ends first.
        if any(at(value) != known for value in reversed(values)):
            return None
    except (ArithmeticError, ValueError):  # it has none somewhere, as 1 << (s - 20)
        return None
    is_told = known in (sympy.true, sympy.false) or known.is_number
    return known if is_told else None


@functools.lru_cache(maxsize=1024)
def _left_by(
    guards: tuple[sympy.Basic, ...], symbol: sympy.Symbol, values: ValueRanges
) -> ValueRanges:
    """Values of a symbol without those at the ends that make a guard on it false."""

    def is_ruled_out(value: sympy.Expr) -> bool:
        return any(guard.xreplace({symbol: value}) == sympy.false for guard in guards)

    lower, upper = values.lower, values.upper
    for _ in range(_MOST_RULED_OUT):
        if lower.is_Integer and lower < upper and is_ruled_out(lower):
            lower += 1
        elif upper.is_Integer and lower < upper and is_ruled_out(upper):
            upper -= 1
        else:
            break
    return ValueRanges(lower, upper)
