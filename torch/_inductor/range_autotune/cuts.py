"""
Ranges cut where their winner changes.

Whoever registered a range may not know where one implementation begins to beat another.
Where the range's best candidate is clearly slower at one of its sizes than the best there,
no one candidate is good in all of it: sizes between are measured until it is known about
where the winner changes, and each piece gets a winner of its own.

Sizes that have one winner may be far apart, and another one close behind it at either: it
may be the faster one between them, which is measured too.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, TYPE_CHECKING

from .measure import ChoiceRules, lead_of_winner, loss_of_winner, RangeTimes, Times
from .ranges import DimRange


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    # From sizes to one of them, near the second argument, and the times there.
    MeasureWithin = Callable[[DimRange, int], tuple[int, Times] | None]

# The next size is no further than this from a cut.
_NEAR = 1.5
# Nor is it further than this within a piece where another candidate takes no longer than
# so many times as long as the winner, which is as far as a bend in their times goes.
_FAR = 10
_CLOSE = 1.25
_MOST_PROBES = 8


def cut(
    measured: RangeTimes, rules: ChoiceRules, measure_within: MeasureWithin
) -> list[RangeTimes]:
    """
    The pieces of a range in which one candidate each is good; most often the range.

    Args:
        measured: at two sizes or more, else it stays whole.
        measure_within: measures at one of some sizes, near the given one; None where that
            cannot be done.
    """
    at = _by_size(measured.at)
    if not rules.merge or len(at) < 2:
        return [measured]
    closed: set[tuple[int, int]] = set()
    for _ in range(_MOST_PROBES):
        gap = _widest_gap(at, rules, closed)
        if gap is None:
            break
        low, high = gap
        middle = max(math.isqrt(low * high), low + 1)
        found = measure_within(DimRange(low + 1, high), middle)
        if found is None or not found[1]:
            closed.add(gap)
        else:
            at = _by_size({**at, found[0]: found[1]})
    return _pieces(measured.sizes, at, _runs(at, rules))


def _by_size(at: Mapping[Any, Times]) -> dict[int, Times]:
    return {size: at[size] for size in sorted(s for s in at if s is not None)}


def _runs(at: Mapping[int, Times], rules: ChoiceRules) -> list[list[int]]:
    """Sizes next to each other for which one candidate is good enough."""
    runs: list[list[int]] = []
    for size in at:
        longer = [*runs[-1], size] if runs else [size]
        if runs and loss_of_winner({s: at[s] for s in longer}, rules) <= 0:
            runs[-1] = longer
        else:
            runs.append([size])
    return runs


def _widest_gap(
    at: Mapping[int, Times], rules: ChoiceRules, closed: Collection[tuple[int, int]]
) -> tuple[int, int] | None:
    """
    Two sizes to measure between, around a change of winners if there is one to be found.

    Args:
        closed: pairs with nothing to be measured between.
    """
    runs = _runs(at, rules)
    changes = [gap for gap in _gaps(runs) if _is_wide(*gap, _NEAR)]
    in_doubt = [
        gap
        for run in runs
        for gap in itertools.pairwise(run)
        if _is_wide(*gap, _FAR)
        and min(lead_of_winner(at[size], rules) for size in gap) < _CLOSE
    ]
    for gaps in (changes, in_doubt):
        if left := [gap for gap in gaps if gap not in closed]:
            return max(left, key=lambda gap: gap[1] / gap[0])
    return None


def _gaps(runs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The last size of each run and the first of the next."""
    return [(before[-1], behind[0]) for before, behind in itertools.pairwise(runs)]


def _is_wide(low: int, high: int, limit: float) -> bool:
    return high - low > 1 and high > limit * low


def _pieces(
    sizes: DimRange, at: Mapping[int, Times], runs: Sequence[Sequence[int]]
) -> list[RangeTimes]:
    cuts = [(low + high + 1) // 2 for low, high in _gaps(runs)]
    edges = itertools.pairwise([sizes.start, *cuts, sizes.end])
    return [
        RangeTimes(DimRange(int(start), end), {size: at[size] for size in run})
        for (start, end), run in zip(edges, runs)
    ]
