"""Sizes between two at which something differs: the next to look at, and where it changes."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, TypeVar

from ..ranges import DimRange


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    Gap = tuple[int, int]

T = TypeVar("T")

# The next size is no further than this from a cut.
_NEAR = 1.5
_MOST_PROBES = 8


def with_probes(
    at: Mapping[int, T],
    find_gap: Callable[[Mapping[int, T], Collection[Gap]], Gap | None],
    measure_within: Callable[[DimRange, int], tuple[int, T] | None],
) -> dict[int, T]:
    """
    What was measured at sizes, and what was measured between them since.

    Args:
        at: by size, sorted.
        find_gap: two sizes next to each other to measure between, None if that is enough;
            not those in its second argument, with nothing to be measured between.
        measure_within: measures at one of some sizes, near the given one; None where that
            cannot be done.
    """
    at, closed = dict(at), set()
    for _ in range(_MOST_PROBES):
        gap = find_gap(at, closed)
        if gap is None:
            break
        low, high = gap
        middle = max(math.isqrt(low * high), low + 1)
        found = measure_within(DimRange(low + 1, high), middle)
        if found is None or not found[1]:
            closed.add(gap)
        else:
            at = dict(sorted({**at, found[0]: found[1]}.items()))
    return at


def widest_change(runs: Sequence[Sequence[int]], closed: Collection[Gap]) -> Gap | None:
    """
    The last size of a run and the first of the next, unless all such are close enough.

    Args:
        runs: of sizes with one winner, sorted.
        closed: not these.
    """
    return widest([gap for gap in _gaps(runs) if is_wide(*gap, _NEAR)], closed)


def widest(gaps: Sequence[Gap], closed: Collection[Gap]) -> Gap | None:
    """The one whose sizes are the furthest apart, by their ratio; not one of the closed."""
    left = [gap for gap in gaps if gap not in closed]
    return max(left, key=lambda gap: gap[1] / max(gap[0], 1), default=None)


def _gaps(runs: Sequence[Sequence[int]]) -> list[Gap]:
    return [(before[-1], behind[0]) for before, behind in itertools.pairwise(runs)]


def is_wide(low: int, high: int, limit: float) -> bool:
    """Whether there are sizes between two whose ratio is above a limit."""
    return high - low > 1 and high > limit * low


def pieces(sizes: DimRange, starts: Sequence[int]) -> list[DimRange]:
    """A range cut where others than the first begin."""
    edges = itertools.pairwise([sizes.start, *starts, sizes.end])
    return [DimRange(int(start), end) for start, end in edges]


def crossing(low: int, high: int, lead: float, deficit: float) -> int:
    """
    The size, above one and up to another, from which what is ahead at the first is behind.

    Args:
        lead: at the first, the logarithm of a ratio of times; infinity if the other fails.
        deficit: at the second, likewise.
    """
    if lead == deficit:
        share = 0.5
    elif math.isinf(lead):
        share = 1.0
    else:
        share = lead / (lead + deficit)
    return low + 1 + round(share * (high - low - 1))
