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

import functools
import itertools
import math
from typing import Any, TYPE_CHECKING

from ..sizes.probes import crossing, is_wide, pieces, widest, widest_change, with_probes
from ..times import RangeTimes, Times, Timing
from ..winners import best_of, ChoiceRules, lead_of_winner, loss_of_winner


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from ..ranges import DimRange
    from ..sizes.probes import Gap

    # From sizes to one of them, near the second argument, and the times there.
    MeasureWithin = Callable[[DimRange, int], tuple[int, Times] | None]

# The next size is no further than this within a piece where another candidate takes no
# longer than so many times as long as the winner, as far as a bend in their times goes.
_FAR = 10
_CLOSE = 1.25


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
    at = by_size(measured.at)
    if not rules.merge or len(at) < 2:
        return [measured]
    find_gap = functools.partial(_widest_gap, rules=rules)
    at = with_probes(at, find_gap, measure_within)
    runs = [{size: at[size] for size in run} for run in _runs(at, rules)]
    starts = [_start_of(run, last, rules) for last, run in itertools.pairwise(runs)]
    return [
        RangeTimes(sizes, {**run})
        for sizes, run in zip(pieces(measured.sizes, starts), runs)
    ]


def by_size(at: Mapping[Any, Times]) -> dict[int, Times]:
    """Those at sizes that are dispatched on, sorted."""
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
    at: Mapping[int, Times], closed: Collection[Gap], rules: ChoiceRules
) -> Gap | None:
    """Around a change of winners if there is one to be found, or where one may hide."""
    runs = _runs(at, rules)
    in_doubt = [
        gap
        for run in runs
        for gap in itertools.pairwise(run)
        if is_wide(*gap, _FAR)
        and min(lead_of_winner(at[size], rules) for size in gap) < _CLOSE
    ]
    return widest_change(runs, closed) or widest(in_doubt, closed)


def _start_of(
    run: Mapping[int, Times], before: Mapping[int, Times], rules: ChoiceRules
) -> int:
    """Where the winner of a run of sizes begins to be better than that of those before."""
    ours, theirs = best_of(run, rules), best_of(before, rules)
    low, high = max(before), min(run)
    # Where one of the two is the op itself, the other needs the minimum speedup.
    against_op = rules.fallback in (ours, theirs)
    weights = dict.fromkeys((ours, theirs), rules.min_speedup if against_op else 1.0)
    weights[rules.fallback] = 1.0
    lead = _lead(before[low], theirs, ours, weights)
    return crossing(low, high, lead, _lead(run[high], ours, theirs, weights))


def _lead(times: Times, first: int, second: int, weights: Mapping[int, float]) -> float:
    """
    How far one candidate is ahead of another at a size; zero if it is not.

    Args:
        weights: of their times.
    """
    one, other = times.get(first), times.get(second)
    if not isinstance(one, Timing):
        return 0.0
    if not isinstance(other, Timing):
        return math.inf
    mine, others = one.ms * weights[first], other.ms * weights[second]
    return max(math.log(others / mine), 0.0) if mine and others else 0.0
