"""
How far a range without an end is measured.

Who wins at the largest of its sizes that are measured wins at all beyond. Where times grow
so that another will be ahead before long, or are too short, or of sizes too far apart, to
tell how they grow, candidates are measured further on.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..ranges import DimRange
from ..times import RangeTimes, Timing
from ..winners import contenders, noise_between
from .cuts import by_size


if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..times import Times
    from ..winners import ChoiceRules
    from .cuts import MeasureWithin

    # Of one candidate at the two largest sizes.
    Pair = tuple[Timing, Timing]

_MOST_PROBES = 3
# The next size is at most this many times as large as the last one, and at least twice.
_LONGEST_STEP = 8.0
# Two sizes tell how times grow behind them if their ratio is between these.
_APART, _NEAR = 1.5, 8
# No time grows with a higher power of the size.
_MOST_POWER = 4.0
# A call that takes less is overhead, which does not grow yet.
_OVERHEAD_MS = 0.02
# Where growth cannot be told, a candidate that is so many times as slow as the best is no rival.
_HOPELESS = 8
# Where it can be, one that gets ahead only at so many times the last size is none.
_FAR = 64.0
# What one call of each candidate may take at the next size.
_LONGEST_MS = 500.0


def with_open_end(
    measured: RangeTimes, rules: ChoiceRules, measure_within: MeasureWithin
) -> RangeTimes:
    """
    What was measured in a range without an end, and what was measured further on since.

    Args:
        measured: at two sizes or more, else nothing is known of growth.
        measure_within: measures at one of some sizes, near the given one; None where that
            cannot be done.
    """
    at = dict(measured.at)
    for _ in range(_MOST_PROBES if rules.merge else 0):
        known = by_size(at)
        wanted = next_size(known, rules)
        if wanted is None:
            break
        found = measure_within(DimRange(max(known) + 1, math.inf), wanted)
        if found is None or not found[1]:
            break
        at[found[0]] = found[1]
    return RangeTimes(measured.sizes, at)


def next_size(at: Mapping[int, Times], rules: ChoiceRules) -> int | None:
    """
    The size beyond those measured that may tell of another winner, None if none will.

    Args:
        at: by size, sorted.
    """
    if len(at) < 2:
        return None
    *smaller, high = at
    # Times of sizes that are nearly equal tell of noise.
    clear = [size for size in smaller if high >= _APART * size]
    low = clear[-1] if clear else smaller[0]
    ratio = high / low if low else math.inf
    rivals = _rivals(at[low], at[high], rules)
    step = _step(rivals, ratio) if len(rivals) > 1 else None
    if step is None or _ms_after(rivals, ratio, step) > _LONGEST_MS:
        return None
    return math.ceil(step * high)


def _rivals(before: Times, last: Times, rules: ChoiceRules) -> list[Pair]:
    """Times of the candidates that may win at both of two sizes, the best at the second first."""
    able = contenders(before, rules).keys() & contenders(last, rules).keys()
    pairs = [(before[index], last[index]) for index in able]
    timed = [
        (one, other)
        for one, other in pairs
        if isinstance(one, Timing) and isinstance(other, Timing) and one.ms and other.ms
    ]
    return sorted(timed, key=lambda pair: pair[1].ms)


def _step(rivals: list[Pair], ratio: float) -> float | None:
    """
    How many times as large as the last size the next one is to be.

    Args:
        ratio: of the two sizes that rivals were measured at.
    """
    best, *others = rivals
    best_ms, second_ms = best[1].ms, others[0][1].ms
    is_overhead = best_ms < _OVERHEAD_MS
    if is_overhead or not _APART <= ratio <= _NEAR:
        longest = _LONGEST_STEP if is_overhead else 2.0
        return longest if second_ms < _HOPELESS * best_ms else None
    nearest = min(_ahead_after(best, other, ratio) for other in others)
    # Where it gets ahead both are as good; behind that it is the better one.
    return min(max(2 * nearest, 2.0), _LONGEST_STEP) if nearest < _FAR else None


def _ahead_after(best: Pair, other: Pair, ratio: float) -> float:
    """At how many times the last size another gets ahead if both grow as they did."""
    gain = math.log(best[1].ms / best[0].ms * other[0].ms / other[1].ms)
    noise = sum(noise_between([both]) for both in zip(best, other))
    if gain <= noise:
        return math.inf
    powers = math.log(other[1].ms / best[1].ms) / gain
    return ratio**powers if powers * math.log(ratio) < math.log(_FAR) else math.inf


def _ms_after(rivals: list[Pair], ratio: float, step: float) -> float:
    """What one call of each takes at so many times the last size, if they grow as they did."""
    powers = [math.log(last.ms / before.ms, ratio) for before, last in rivals]
    return sum(
        last.ms * step ** min(max(power, 1.0), _MOST_POWER)
        for power, (_, last) in zip(powers, rivals)
    )
