"""
What candidates may take for granted: a size is in one of the ranges that they compete in.

An implementation for small sizes may say so with an assertion, or ask the size which of
two kernels to take. Traced, lowered and generated for every size that can occur, it would
guard; where its ranges are known, the answer is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import TYPE_CHECKING

import sympy
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from ...virtualized import V
from .guards import recorded_guards, replaced
from .narrowed_sizes import compound_in_range, narrowed, no_answer_kept


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from ..ranges import DimRange


@dataclasses.dataclass(frozen=True)
class KnownSize:
    """
    A size that is in a range wherever a candidate runs.

    Args:
        size: symbolic.
        sizes: some of those that can occur.
    """

    size: sympy.Expr
    sizes: DimRange


def knowing(known: KnownSize | None) -> AbstractContextManager[None]:
    """
    For what is traced, lowered or generated in the block, a size is in its range.

    A size that is made of one symbol by constants, also rounded up to a multiple, narrows the
    values of that; of others, such as a sum or a product of two, it is known which values they
    have.
    """
    if known is None:
        return contextlib.nullcontext()
    size, sizes = replaced(known.size), known.sizes
    if not size.free_symbols:
        return contextlib.nullcontext()
    values = values_of_symbol(size, sizes.start, sizes.last)
    if values is None:
        return _in_range(size, sizes)
    possible = _range_of_symbol(*values)
    if possible is None:
        return contextlib.nullcontext()
    return narrowed(_shape_env(), {values[0]: possible})


@contextlib.contextmanager
def emitting(
    known: KnownSize | None, own_symbols: Mapping[sympy.Symbol, sympy.Expr]
) -> Iterator[None]:
    """
    The same for code that is emitted: what it guards on is added behind the block.

    A guard has the shape environment look up whether the model's own size is in its range,
    which it may not be in this one.

    Args:
        own_symbols: of the code, that the model does not have, with what they are in the
            model's, which guards are on.
    """
    if not own_symbols and (known is None or free_unbacked_symbols(known.size)):
        with knowing(known):
            yield
        return
    with recorded_guards() as conditions, knowing(known):
        yield
    for condition in (c.xreplace(dict(own_symbols)) for c in conditions):
        if free_unbacked_symbols(condition):
            _shape_env().guard_or_defer_runtime_assert(condition, "a candidate's code")
        else:
            _shape_env().evaluate_expr(condition)


def values_of_symbol(
    size: sympy.Expr, first: float, last: float
) -> tuple[sympy.Symbol, float, float] | None:
    """
    The symbol that a size is made of, and its first and last value where the size is from
    ``first`` to ``last``; None if it is not made of one by factors, constants and quotients.
    """
    if isinstance(size, sympy.Symbol):
        return size, first, last
    if isinstance(size, FloorDiv):
        inner, divisor = size.args
        if not (divisor.is_Integer and divisor > 0):
            return None
        by = int(divisor)
        return values_of_symbol(inner, first * by, (last + 1) * by - 1)
    offset, multiple = size.as_coeff_Add()
    factor, inner = multiple.as_coeff_Mul()
    if inner == size or not (offset.is_Integer and factor.is_Integer and factor):
        return None
    ends = (first - int(offset), last - int(offset))
    lowest, highest = ends if factor > 0 else (-ends[1], -ends[0])
    by = abs(int(factor))
    return values_of_symbol(inner, -_quotient(-lowest, by), _quotient(highest, by))


def _quotient(value: float, by: int) -> float:
    """Rounded down; what is infinite stays so."""
    return value if math.isinf(value) else value // by


def _range_of_symbol(
    symbol: sympy.Symbol, first: float, last: float
) -> ValueRanges | None:
    """Its values from ``first`` to ``last``, if not all it can have."""
    before = _shape_env().var_to_range[symbol]
    if last < first or last < before.lower or first > before.upper:
        return None
    lower = int(first) if first > -math.inf else -int_oo
    upper = int(last) if last < math.inf else int_oo
    possible = before & ValueRanges(lower, upper)
    return None if possible == before else possible


def _bounds_of(size: sympy.Expr, sizes: DimRange) -> list[sympy.Basic]:
    """The conditions that a size is in a range by, as a shape environment writes them."""
    bounds = [sympy.Le(sizes.start, size, evaluate=False)]
    return bounds + [sympy.Lt(size, sizes.end, evaluate=False)] * sizes.bounded


@contextlib.contextmanager
def _in_range(size: sympy.Expr, sizes: DimRange) -> Iterator[None]:
    last = int(sizes.last) if sizes.bounded else int_oo
    values = ValueRanges(int(sizes.start), last)
    with (
        compound_in_range(_shape_env(), size, values),
        _taken_for_true(_bounds_of(size, sizes)),
    ):
        yield


def is_compound(size: sympy.Expr) -> bool:
    """Whether it is made of several symbols, or of one and what is made of it."""
    return bool(size.free_symbols) and values_of_symbol(size, 0, math.inf) is None


@contextlib.contextmanager
def _taken_for_true(conditions: Iterable[sympy.Basic]) -> Iterator[None]:
    shape_env = _shape_env()
    implied = {
        implied: value
        for condition in conditions
        for implied, value in shape_env.get_implications(shape_env.simplify(condition))
        if implied not in shape_env.axioms
    }
    with no_answer_kept(shape_env):
        shape_env.axioms.update(implied)
        try:
            yield
        finally:
            for condition in implied:
                shape_env.axioms.pop(condition, None)


def _shape_env() -> ShapeEnv:
    return V.graph.sizevars.shape_env
