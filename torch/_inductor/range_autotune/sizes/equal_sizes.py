"""
Sizes that implementations need to be equal, or multiples, where nothing says that they are.

A rotary embedding gets as many positions as rows, attention over sequences of several lengths
one offset more than lengths, a batch as many rows as two parts have together: where only a
custom op sees all of them, a model has a symbol for each. What is traced with one symbol less
is right where they are equal, which can be tested when the code runs.

So it is with rows that are viewed in blocks: ``8 * t`` stands for their number, with a symbol
for that of the blocks.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any, TYPE_CHECKING

import sympy
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic
from torch.utils._sympy.functions import FloorDiv, Max, Mod, PythonMod

from ...virtualized import V
from .guards import known_answer, replaced
from .size_conditions import hint


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence, Set

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

_REMAINDERS = (Mod, PythonMod, sympy.Mod, FloorDiv)
_UNEQUAL = (sympy.Ne, sympy.Lt, sympy.Gt)


@dataclasses.dataclass(frozen=True)
class EqualSize:
    """
    A size that is equal to something.

    Args:
        symbol: the size.
        by: what stands for it.
        blocks: a symbol of ``by`` that is none of the model's, with what it is in the model's.
    """

    symbol: sympy.Symbol
    by: sympy.Expr
    blocks: tuple[sympy.Symbol, sympy.Expr] | None = None

    @property
    def condition(self) -> sympy.Basic:
        """What follows from it for the size, symbolic."""
        if self.blocks is None:
            return sympy.Eq(self.symbol, self.by)
        factor, rest = _factor_and_rest(self.by, self.blocks[0])
        return sympy.Eq(Mod(self.symbol - rest, factor), 0)


if TYPE_CHECKING:
    # To be replaced in order.
    EqualSizes = tuple[EqualSize, ...]


def _factor_and_rest(expr: sympy.Expr, symbol: sympy.Symbol) -> tuple[int, int]:
    """Of ``8 * symbol + 3``."""
    factor = expr.coeff(symbol)
    return int(factor), int(expr - factor * symbol)


def needed_equal(condition: sympy.Basic, size: sympy.Expr | None) -> EqualSizes:
    """
    A size and what decides a condition if it is equal to it, as it is in the model that is
    being compiled, or a multiple, if it is in that model or not; nothing if there are none, or
    they depend on data.

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
    # What is asked is whether something is left, or whether nothing is.
    whole = sympy.false if isinstance(condition, _UNEQUAL) else sympy.true
    in_blocks = [(s, *blocks) for s in symbols for blocks in _blocks(condition, s)]
    in_blocks.sort(
        key=lambda found: (hint(found[0]) % found[1] != found[2], found[0] not in kept)
    )
    for symbol, factor, rest in in_blocks:
        # Of one block alone code is asked for, too; ranges can be cut where it is.
        least = 1 if symbol in kept else 2
        equal = _in_blocks(symbol, factor, rest, least, shape_env)
        if equal and known_answer(at_equal(condition, equal), shape_env) == whole:
            return equal
    return ()


def _blocks(condition: sympy.Basic, symbol: sympy.Symbol) -> list[tuple[int, int]]:
    """
    What to divide a size by so that nothing is left of it, or of what is asked for it, where a
    condition rounds: a number, and the remainder.
    """
    found = []
    for rounded in condition.atoms(*_REMAINDERS):
        size, by = sympy.expand(rounded.args[0]), rounded.args[1]
        if symbol not in size.free_symbols or not by.is_Integer or by < 2:
            continue
        factor = size.coeff(symbol)
        left = sympy.expand(size - factor * symbol)
        rests = {0}  # of a number of blocks that is rounded up, too
        if factor.is_Integer and left.is_Integer:
            rests |= {next((n for n in range(by) if (factor * n + left) % by == 0), 0)}
            by //= math.gcd(by, factor)
        else:
            by //= math.gcd(by, size.as_content_primitive()[0])
        found += [(int(by), rest) for rest in rests if by > 1]
    return sorted(found)


def _in_blocks(
    symbol: sympy.Symbol, factor: int, rest: int, least: int, shape_env: ShapeEnv
) -> EqualSizes:
    """
    A size as ``factor * t + rest``, if it can be that; the symbol is made once.

    Args:
        least: value of ``t``.
    """
    values = shape_env.var_to_range[symbol]
    first = max(-_floor_div(rest - values.lower, factor), least)
    last = _floor_div(values.upper - rest, factor)
    if first > last:
        return ()
    quotient = FloorDiv(symbol - rest, factor)
    number = ConstantSource(f"blocks of {symbol}: {quotient}, {first} at least")
    blocks = shape_env.source_to_var.get(number.name)
    if blocks is None:
        here = min(max(_floor_div(hint(symbol) - rest, factor), first), last)
        blocks = shape_env.create_symbol(
            int(here), number, DimDynamic.DYNAMIC, do_not_specialize_zero_one=True
        )
        shape_env.constrain_symbol_range(blocks, first, last)
    by = factor * blocks + rest
    if values.lower <= factor * (first - 1) + rest:  # a size that is none of those
        quotient = Max(first, quotient)
    return (EqualSize(symbol, by, (blocks, quotient)),)


def _floor_div(size: Any, by: int) -> Any:
    """Rounded down; what is infinite stays so."""
    return size // by if sympy.sympify(size).is_Integer else size


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
            found.append((*fits, symbol not in kept, EqualSize(symbol, by)))
    return (max(found, key=lambda solution: solution[:3])[3],) if found else ()


def at_equal(expr: sympy.Basic, equal: EqualSizes) -> sympy.Basic:
    """A symbolic expression where sizes are equal."""
    for size in equal:
        expr = expr.xreplace({size.symbol: size.by})
    return expr


def numbers_of_blocks(equal: EqualSizes) -> dict[sympy.Symbol, sympy.Expr]:
    """Symbols that the model does not have, each with what it is in the model's."""
    found: dict[sympy.Symbol, sympy.Expr] = {}
    for size in equal:
        if size.blocks:
            symbol, number = size.blocks
            found[symbol] = number.xreplace(found)
    return found


def distance(equal: EqualSizes) -> sympy.Expr:
    """How far sizes are from being equal, symbolic, in the model's: 0 only where they all are."""
    apart = sympy.Add(*(sympy.Abs(size.symbol - size.by) for size in equal))
    return apart.xreplace(numbers_of_blocks(equal))


def implies(equal: EqualSizes, others: EqualSizes) -> bool:
    """Whether others are always equal where some are."""
    shape_env = V.graph.sizevars.shape_env
    numbers = numbers_of_blocks(others)
    conditions = (at_equal(size.condition.xreplace(numbers), equal) for size in others)
    return all(
        known_answer(condition, shape_env) == sympy.true for condition in conditions
    )


def text_of(equal: EqualSizes) -> str:
    """For logs, in the model's symbols."""
    numbers = numbers_of_blocks(equal)
    texts = []
    for size in equal:
        symbol = size.symbol.xreplace(numbers)
        if size.blocks is None:
            texts.append(f"{symbol} == {size.by.xreplace(numbers)}")
        else:
            factor, rest = _factor_and_rest(size.by, size.blocks[0])
            texts.append(f"{symbol} % {factor} == {rest}")
    return ", ".join(texts)
