"""
Ranges cut where their winner changes.

Whoever registered a range may not know where one implementation begins to beat another.
Where the range's best candidate is clearly slower at one of its sizes than the best there,
no one candidate is good in all of it: sizes between are measured until it is known about
where the winner changes, and each piece gets a winner of its own.
"""

from __future__ import annotations

import itertools
import math
from typing import Any, TYPE_CHECKING

from .measure import ChoiceRules, loss_of_winner, RangeTimes, Times
from .ranges import DimRange


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    # From sizes to one of them, near the second argument, and the times there.
    MeasureWithin = Callable[[DimRange, int], tuple[int, Times] | None]

# The next size is no further than this from a cut.
_NEAR = 1.5
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
        gaps = [g for g in _gaps(_runs(at, rules)) if _is_wide(*g) and g not in closed]
        if not gaps:
            break
        low, high = max(gaps, key=lambda gap: gap[1] / gap[0])
        found = measure_within(DimRange(low + 1, high), math.isqrt(low * high))
        if found is None or not found[1]:
            closed.add((low, high))
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


def _gaps(runs: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """The last size of each run and the first of the next."""
    return [(before[-1], behind[0]) for before, behind in itertools.pairwise(runs)]


def _is_wide(low: int, high: int) -> bool:
    return high - low > 1 and high > _NEAR * low


def _pieces(
    sizes: DimRange, at: Mapping[int, Times], runs: Sequence[Sequence[int]]
) -> list[RangeTimes]:
    cuts = [(low + high + 1) // 2 for low, high in _gaps(runs)]
    edges = itertools.pairwise([sizes.start, *cuts, sizes.end])
    return [
        RangeTimes(DimRange(int(start), end), {size: at[size] for size in run})
        for (start, end), run in zip(edges, runs)
    ]
