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
from torch._subclasses.fake_tensor import disable_fake_tensor_cache
from torch.fx.experimental import _config as symbolic_config
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from ..virtualized import V
from .guards import replaced


if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from .ranges import DimRange


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

    Nothing where nothing is known, or where the size is more than a multiple of a symbol
    and a constant.
    """
    symbol_range = None if known is None else _range_of_symbol(known)
    return (
        contextlib.nullcontext() if symbol_range is None else _narrowed(*symbol_range)
    )


def _range_of_symbol(known: KnownSize) -> tuple[sympy.Symbol, ValueRanges] | None:
    """The values of the size's symbol, if there are fewer than the shape environment has."""
    size, sizes = replaced(known.size), known.sizes
    # Answers must be the hints' there, which may be of another range.
    if len(size.free_symbols) != 1 or symbolic_config.backed_size_oblivious:
        return None
    (symbol,) = size.free_symbols
    offset = size.subs(symbol, 0)
    factor = sympy.cancel((size - offset) / symbol)
    if not (factor.is_Integer and offset.is_Integer and factor > 0):
        return None
    first = -((int(offset) - sizes.start) // int(factor))
    last = (sizes.last - int(offset)) // int(factor) if sizes.bounded else math.inf
    before = _shape_env().var_to_range[symbol]
    if last < first or last < before.lower or first > before.upper:
        return None
    upper = int(last) if last < math.inf else int_oo
    narrowed = before & ValueRanges(first, upper)
    return None if narrowed == before else (symbol, narrowed)


@contextlib.contextmanager
def _narrowed(symbol: sympy.Symbol, values: ValueRanges) -> Iterator[None]:
    shape_env = _shape_env()
    before = shape_env.var_to_range[symbol]
    with disable_fake_tensor_cache(V.fake_mode):
        try:
            _set_range(shape_env, symbol, values)
            yield
        finally:
            _set_range(shape_env, symbol, before)


def _set_range(shape_env: ShapeEnv, symbol: sympy.Symbol, values: ValueRanges) -> None:
    """Also where the new range has more values; no answer is kept from before."""
    shape_env.var_to_range[symbol] = values
    shape_env._version_counter += 1
    type(shape_env)._inner_evaluate_expr.cache_clear()
    type(shape_env).guard_or_defer_runtime_assert.cache_clear()


def _shape_env() -> ShapeEnv:
    return V.graph.sizevars.shape_env
