"""
What guards say that sizes are multiples of.

Where a shape environment knows that ``s`` is a multiple of 16, it still adds a guard for
whether ``4 * s`` is one of 64, as rows that are viewed in blocks of 16 ask.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeAlias

import sympy
from torch.utils._sympy.functions import Mod
from torch.utils._sympy.value_ranges import ValueRanges


if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    Sizes: TypeAlias = "ShapeEnv | Blocks"


@dataclasses.dataclass(frozen=True)
class Blocks:
    """What symbols can be that are left, in the place of a shape environment."""

    var_to_range: dict[sympy.Symbol, ValueRanges]
    divisible: tuple[sympy.Basic, ...] = ()

    def replace(self, expr: sympy.Basic) -> sympy.Basic:
        """As a shape environment puts symbols for others, of which there are none here."""
        return expr


def in_blocks(condition: sympy.Basic, shape_env: Sizes) -> tuple[sympy.Basic, Sizes]:
    """
    A condition with ``16 * s`` for each ``s`` that guards say is a multiple of 16, and what
    its symbols can then be.
    """
    if not shape_env.divisible:
        return condition, shape_env
    condition = shape_env.replace(condition)
    divisors = _known_divisors(shape_env)
    ranges = {**shape_env.var_to_range}
    multiples = {}
    for symbol in divisors.keys() & condition.free_symbols & ranges.keys():
        values, by = ranges[symbol], divisors[symbol]
        first, last = -_quotient(-values.lower, by), _quotient(values.upper, by)
        if first <= last:
            ranges[symbol] = ValueRanges(first, last)
            multiples[symbol] = by * symbol
    return condition.xreplace(multiples), Blocks(ranges) if multiples else shape_env


def divisor_of(size: sympy.Expr, shape_env: ShapeEnv) -> int:
    """What guards say that a symbolic size is a multiple of."""
    return _known_divisors(shape_env).get(size, 1)


def _quotient(value: sympy.Expr, by: int) -> sympy.Expr:
    """Rounded down; what is infinite stays so."""
    return value // by if value.is_Integer else value


def _known_divisors(shape_env: Sizes) -> dict[sympy.Symbol, int]:
    """What sizes are multiples of, as guards on remainders say."""
    known: dict[sympy.Symbol, int] = {}
    for remainder in shape_env.divisible:
        if not isinstance(remainder, Mod):
            continue
        base, divisor = (shape_env.replace(arg) for arg in remainder.args)
        factor, symbol = base.as_coeff_Mul()
        if symbol.is_Symbol and factor.is_Integer and divisor.is_Integer:
            by = divisor // sympy.gcd(divisor, factor)
            known[symbol] = int(sympy.lcm(known.get(symbol, 1), by))
    return known
