"""
Sizes to measure at: values for all symbols of a call site that go together.

The dispatch dimension's own expression is solved for one symbol; the others follow from what
is known of sizes. Sizes are symbolic where they are sympy expressions and concrete where they
are ints.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from typing import Any, TYPE_CHECKING, TypeVar

import sympy
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ..ranges import ANY_SIZE, DimRange
from .guards import replaced, symbols_of
from .size_conditions import (
    all_hold,
    hint,
    known_conditions,
    LARGEST_SYMBOL,
    nearest_possible,
    size_bounds,
    with_conditions_met,
    with_equations_solved,
    with_others_raised,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..call_site import CallSite
    from .size_conditions import Values

T = TypeVar("T")

# A guard such as 8 | s0 is met by one of this many neighbours of the size asked for.
_NEIGHBOURS_TRIED = 64
# Where a condition wants another size to be larger, so many times as large as the one that is
# asked for, at the nearest of these neighbours.
_FACTORS_RAISED = (1, 4)
_NEIGHBOURS_CHANGED = 16
# Where no symbol by itself gives a size, so many of the ways to halve or double all of them.
_SCALINGS_TRIED = 3


class Purpose(enum.Enum):
    """What candidates are run at a size for."""

    STAND_FOR_RANGE = "stand for range"  # timed; who does not run there is out of it
    BEYOND = "beyond"  # larger than those: timed, and who does not run there stays in
    CALL = "called"  # once, to see if they can be


@dataclasses.dataclass(frozen=True)
class SizePoint:
    """
    A size at which to measure.

    Args:
        size: concrete value of the dispatch dimension; None where no size is dispatched
            on.
        values: a concrete value for each symbol of the call site.
    """

    size: int | None
    values: Values
    purpose: Purpose = Purpose.STAND_FOR_RANGE

    @property
    def is_timed(self) -> bool:
        """Whether candidates are timed there, and not only called."""
        return self.purpose is not Purpose.CALL


def hint_point(site: CallSite, size: sympy.Expr | None = None) -> SizePoint:
    """The size that the model was compiled with; of sizes that are data, one that may be."""
    values = _as_asserted(site, {symbol: hint(symbol) for symbol in site.symbols()})
    return SizePoint(None if size is None else concrete(size, values), values)


def concrete(expr: Any, values: Values) -> int:
    """The value of a symbolic size."""
    known = replaced(expr).xreplace(
        {symbol: sympy.Integer(value) for symbol, value in values.items()}
    )
    rest = {symbol: hint(symbol) for symbol in known.free_symbols}
    return int(known.subs(rest))


def _as_asserted(site: CallSite, values: Values) -> Values:
    """
    With sizes that are data at what is asserted of them and of those with hints, if there
    are such values near enough: solutions of equations, or hints halved or doubled.
    """
    data = [symbol for symbol in values if free_unbacked_symbols(symbol)]
    if not data:
        return values
    not_negative = [sympy.Ge(expr, 0) for expr in site.exprs()]
    conditions = [*known_conditions(), *not_negative]
    for halvings in range(max(values[s] for s in data).bit_length() + 1):
        halved = {symbol: values[symbol] >> halvings for symbol in data}
        found = with_conditions_met(conditions, {**values, **halved}, data)
        if found is not None:
            return found
    return values


def values_of(symbols: Iterable[sympy.Symbol], values: Values) -> list[int]:
    """Of symbols in order; also of those that have got a value of their own since."""
    return [concrete(symbol, values) for symbol in symbols]


def point_for_size(
    site: CallSite, size: sympy.Expr, wanted: int, within: DimRange
) -> SizePoint | None:
    """
    Values for the call site's symbols that give the dispatch dimension a size.

    Args:
        size: the dispatch dimension's expression, such as ``2*s0 + 5``.
        wanted: where that size cannot occur, a size nearby in ``within`` will do.

    Returns:
        None if none is found in ``within``. Of several symbols one changes, with the others at
        their hints; or, if that gives no such size, or none but 0, at these halved, or doubled.
    """
    hints = hint_point(site).values
    symbols = sorted(size.free_symbols, key=lambda symbol: symbol.name)
    if not symbols:
        point = hint_point(site, size)
        return point if point.size in within else None
    alike = {symbol: _symbols_alike(site, symbol, size, hints) for symbol in symbols}
    conditions = known_conditions()

    def nearest(*others: Values) -> SizePoint | None:
        points = [
            _point_by_symbol(
                symbol, alike[symbol], size, wanted, within, values, conditions
            )
            for values in others
            for symbol in symbols
        ]
        found = (point for point in points if point is not None)
        return min(found, key=lambda p: abs((p.size or 0) - wanted), default=None)

    at_hints = nearest(hints)
    found = at_hints is not None and (at_hints.size or not wanted)
    if found or len(symbols) == 1:
        return at_hints
    scaled = sorted(
        _scaled(hints, alike), key=lambda values: _miss(size, values, wanted)
    )
    return nearest(*scaled[:_SCALINGS_TRIED]) or at_hints


def _miss(size: sympy.Expr, values: Values, wanted: int) -> float:
    """How far values are from giving a size; infinitely far where they give none."""
    got = _value_within(ANY_SIZE, size, values)
    return math.inf if got is None else abs(got - wanted)


def _scaled(
    hints: Values, alike: Mapping[sympy.Symbol, Iterable[sympy.Symbol]]
) -> list[Values]:
    """
    Hints, with those of some symbols halved again and again, or doubled, within their bounds.

    Args:
        alike: for each of these symbols those that are to have its value.
    """
    largest = max(hints.get(symbol, 0) for symbol in alike)
    powers = [2**n for n in range(1, largest.bit_length() + 1)]
    found: list[Values] = []
    for times, parts in (*((1, p) for p in powers), *((p, 1) for p in powers)):
        scaled = {**hints}
        for symbol in alike.keys() & hints.keys():
            value = hints[symbol] * times // parts
            for same in (symbol, *alike[symbol]):
                scaled[same] = nearest_possible(same, value)
        if scaled not in found:
            found.append(scaled)
    return found


def measure_within(
    site: CallSite,
    size: sympy.Expr | None,
    measure: Callable[[SizePoint], T],
) -> Callable[[DimRange, int], tuple[int, T] | None]:
    """
    What measures at one of some sizes, near a given one.

    Args:
        size: see ``point_for_size``.

    Returns:
        A function that returns the size and what was measured; None if no symbol's value
        gives such a size. Not to be called where no size is dispatched on.
    """

    def measure_near(within: DimRange, near: int) -> tuple[int, T] | None:
        assert size is not None
        point = point_for_size(site, size, near, within)
        if point is None or point.size is None:
            return None
        return point.size, measure(point)

    return measure_near


def _point_by_symbol(
    symbol: sympy.Symbol,
    same: Iterable[sympy.Symbol],
    size: sympy.Expr,
    wanted: int,
    within: DimRange,
    hints: Values,
    conditions: Sequence[sympy.Basic],
) -> SizePoint | None:
    """
    The nearest size that changing one symbol can give. The others stay as they are, but where
    a condition couples them: a cache is no smaller than what is written to it; and where
    others seem to be the same size.

    Args:
        same: these; see ``_symbols_alike``.
        conditions: see ``known_conditions``.
    """
    refused: list[Values] = []
    for value in _values_near(symbol, size, wanted, hints):
        alone = {**hints, symbol: value}
        if (got := _value_within(within, size, alone)) is None:
            continue
        together = {other: value for other in same if value in size_bounds(other)}
        if together and all_hold(conditions, {**alone, **together}):
            return SizePoint(got, {**alone, **together})
        if all_hold(conditions, alone):
            return SizePoint(got, alone)
        if len(refused) < _NEIGHBOURS_CHANGED:
            refused.append(alone)
            solved = with_equations_solved(conditions, alone, symbol)
            if point := _point_with(solved, size, within, conditions):
                return point
    for factor in _FACTORS_RAISED:
        for values in refused:
            raised = with_others_raised(conditions, values, symbol, factor)
            if point := _point_with(raised, size, within, conditions):
                return point
    return None


def _point_with(
    values: Values,
    size: sympy.Expr,
    within: DimRange,
    conditions: Sequence[sympy.Basic],
) -> SizePoint | None:
    """None if values do not meet the conditions, or give no size in a range."""
    got = _value_within(within, size, values)
    if got is None or not all_hold(conditions, values):
        return None
    return SizePoint(got, values)


def _symbols_alike(
    site: CallSite, symbol: sympy.Symbol, size: sympy.Expr, hints: Values
) -> set[sympy.Symbol]:
    """
    Those of other inputs that the model is compiled with the same value for, but for those
    that are part of the size itself, as of two inputs that are concatenated.

    Where nothing says that sizes are equal, as of tokens and the places that they go to, an
    implementation may rely on it all the same: nobody calls it with others. Two sizes of
    one input that are equal by chance are two sizes.
    """
    if symbol not in hints:  # no input has it
        return set()
    beside: set[sympy.Basic] = {*size.free_symbols}
    for node in site.inputs:
        symbols = {*symbols_of([node])}
        if symbol in symbols:
            beside |= symbols
    return {
        other
        for other in site.symbols()
        if other not in beside
        and hints[other] == hints[symbol]
        and not free_unbacked_symbols(other)
    }


def _value_within(within: DimRange, size: sympy.Expr, values: Values) -> int | None:
    """The value of a size, if it is in a range, and not divided by nothing, as by ``s // 8``."""
    try:
        value = concrete(size, values)
    except ZeroDivisionError:
        return None
    return value if value in within else None


def _values_near(
    symbol: sympy.Symbol, size: sympy.Expr, wanted: int, hints: Values
) -> Iterator[int]:
    """Values for a symbol by their distance from the one that gives ``wanted``."""
    bounds = size_bounds(symbol)
    middle = _smallest_reaching(symbol, size, wanted, hints, bounds)
    for distance in range(_NEIGHBOURS_TRIED):
        for value in {middle - distance, middle + distance}:
            if value in bounds:
                yield value


def _smallest_reaching(
    symbol: sympy.Symbol,
    size: sympy.Expr,
    wanted: int,
    hints: Values,
    bounds: DimRange,
) -> int:
    """By bisection: sizes that people dispatch on grow with their symbols."""
    low = bounds.start
    high = max(low, 1)
    last = min(bounds.last, LARGEST_SYMBOL)
    reached = DimRange(wanted, math.inf)

    def reaches(value: int) -> bool:
        values = {**hints, symbol: value}
        return _value_within(reached, size, values) is not None

    while high < last and not reaches(high):
        low, high = high, int(min(2 * high, last))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle + 1, high)
    return low
