"""The winners that follow from times: a pure function of them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from typing import TYPE_CHECKING, TypeVar

from .ranges import merge_neighbours, Segment
from .times import Timing


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .times import Failure, RangeTimes, Times

K = TypeVar("K")

# Names of kernels and their configs, sorted.
KernelConfigs = tuple[tuple[str, str], ...]

# Two times of one kernel differ by this much now and then. On a machine so busy that
# they differ by more than the limit, what is taken from the samples still tells something.
NOISE = 0.03
_NOISE_LIMIT = 0.06


@dataclasses.dataclass(frozen=True)
class Winner:
    """
    What runs at some sizes.

    Args:
        index: of the candidate.
        kernel_configs: of those of its kernels that have several.
    """

    index: int
    kernel_configs: KernelConfigs = ()


@dataclasses.dataclass(frozen=True)
class ChoiceRules:
    """
    How winners follow from times.

    Args:
        fallback: index of the op itself, the last resort.
        min_speedup: fallback time over candidate time that a candidate needs to win.
        force: True if only implementations may win, False if only the fallback may.
        merge: whether a range may have its neighbour's winner where both are as good.
        plain: index of the op's plain lowering, if that competes.
        apart: candidates whose neighbours have kernels of their own, by index: the index
            of the same one with its neighbours fused.
        forms: candidates that compute the same as another in another form, by index: the
            index of that one.
        fusion_speedup: time of the first over time of the second that fusing needs.
    """

    fallback: int
    min_speedup: float = 1.0
    force: bool | None = None
    merge: bool = True
    plain: int | None = None
    apart: Mapping[int, int] = dataclasses.field(default_factory=dict)
    forms: Mapping[int, int] = dataclasses.field(default_factory=dict)
    fusion_speedup: float = 1.0


def slowdowns(
    at: Mapping[int | None, Mapping[K, Timing | Failure]],
) -> dict[K, float]:
    """
    How far each candidate is from the best of its size, as a geometric mean over sizes.

    A candidate that failed at any size is not in it.
    """
    logs: dict[K, list[float]] = {}
    for times in at.values():
        timed = {i: t.ms for i, t in times.items() if isinstance(t, Timing)}
        best = min(timed.values(), default=0.0)
        for index, ms in timed.items():
            logs.setdefault(index, []).append(math.log(ms / best) if best else 0.0)
    return {
        index: math.exp(statistics.fmean(values))
        for index, values in logs.items()
        if len(values) == len(at)
    }


def as_good_as_best(
    at: Mapping[int | None, Times], rules: ChoiceRules
) -> dict[int, float]:
    """
    The candidates that differ from the best over some sizes by no more than noise.

    One that is clearly slower at any of the sizes is not among them, whatever it gains at
    others, so that ranges whose best candidates differ clearly are not merged.

    Returns:
        Their slowdowns by index, at least one.
    """
    scores = _scores(at, rules)
    if not scores:
        return {rules.fallback: 1.0}
    best = min(scores, key=scores.__getitem__)
    fallback = scores.get(rules.fallback, math.inf)
    if fallback < rules.min_speedup * scores[best]:
        return {rules.fallback: fallback}
    return {
        index: score
        for index, score in scores.items()
        if score <= scores[best] * (1 + noise_between(_both(at, best, index)))
        and not _is_clearly_slower(at, best, index)
        and (rules.min_speedup <= 1 or score * rules.min_speedup <= fallback)
    }


def loss_of_winner(at: Mapping[int, Times], rules: ChoiceRules) -> float:
    """
    How much slower a range's winner is at one of its sizes than the winner there, beyond
    what is taken for noise on a busy machine; zero if it is at none, infinity if it may not
    win at one, since it fails or is not fast enough beside the op.
    """
    winner = best_of(at, rules)
    losses = [0.0]
    for size, times in at.items():
        best_there = best_of({size: times}, rules)
        ours, best = times.get(winner), times.get(best_there)
        if not isinstance(best, Timing):
            continue
        misses_speedup = (
            rules.min_speedup > 1 and best_there == rules.fallback != winner
        )
        if misses_speedup or not isinstance(ours, Timing):
            return math.inf
        losses.append(_loss(best, ours) - noise_between([(best, ours)]))
    return max(losses)


def best_of(at: Mapping[int, Times], rules: ChoiceRules) -> int:
    """The winner of some sizes by themselves."""
    good = as_good_as_best({**at}, rules)
    return min(good, key=good.__getitem__)


def lead_of_winner(times: Times, rules: ChoiceRules) -> float:
    """
    How many times as long as the fastest the next one takes at a size; infinitely many if
    no other may win.
    """
    scores = sorted(contenders(times, rules).values())
    return scores[1] / scores[0] if len(scores) > 1 else math.inf


def contenders(times: Times, rules: ChoiceRules) -> dict[int, float]:
    """Those that may win at a size, and how many times as long as the best each takes."""
    return _scores({None: times}, rules)


def _scores(at: Mapping[int | None, Times], rules: ChoiceRules) -> dict[int, float]:
    """The slowdowns of those that may win."""
    scores = _fused_or_apart(slowdowns(at), rules)
    if rules.force is None:
        return scores
    return {i: score for i, score in scores.items() if _may_win(i, rules)}


def _fused_or_apart(scores: dict[int, float], rules: ChoiceRules) -> dict[int, float]:
    """Keeps, of each candidate, its fused forms or the one with its neighbours apart."""
    out: set[int] = set()
    for apart, fused in rules.apart.items():
        forms = {fused, *(i for i, of in rules.forms.items() if of == fused)}
        forms &= scores.keys()
        if apart in scores and forms:
            best = min(scores[i] for i in forms)
            keep_fused = scores[apart] >= rules.fusion_speedup * best
            out |= {apart} if keep_fused else forms
    return {index: score for index, score in scores.items() if index not in out}


def _may_win(index: int, rules: ChoiceRules) -> bool:
    if rules.force:
        origin = {**rules.apart, **rules.forms}.get(index, index)
        return origin not in (rules.fallback, rules.plain)
    return index == rules.fallback


def _is_clearly_slower(at: Mapping[int | None, Times], first: int, second: int) -> bool:
    """Whether the second is slower than the first by more than noise at any size."""
    return any(
        _loss(one, other) > noise_between([(one, other)])
        for one, other in _both(at, first, second)
    )


def _both(
    at: Mapping[int | None, Times], first: int, second: int
) -> list[tuple[Timing, Timing]]:
    """The times of two candidates at the sizes where both have one."""
    pairs = [(times.get(first), times.get(second)) for times in at.values()]
    return [
        (one, other)
        for one, other in pairs
        if isinstance(one, Timing) and isinstance(other, Timing)
    ]


def _loss(best: Timing, other: Timing) -> float:
    """By how much one is slower than the best, relative to that."""
    return other.ms / best.ms - 1 if best.ms else 0.0


def noise_between(pairs: Sequence[tuple[Timing, Timing]]) -> float:
    """The error of a comparison of two candidates, within NOISE and its limit."""
    errors = [math.hypot(one.error, other.error) for one, other in pairs]
    error = statistics.fmean(errors) if errors else 0.0
    return min(max(error, NOISE), _NOISE_LIMIT)


def choose_winners(
    measured: Sequence[RangeTimes], rules: ChoiceRules
) -> tuple[Segment[int], ...]:
    """
    The winner table: for each range the index of its winner, neighbours merged.

    A run of touching ranges that have one good candidate in common gets one winner; a
    change of winner that gains less than the noise is not a change.
    """
    winners: list[Segment[int]] = []
    run: list[RangeTimes] = []
    common: dict[int, float] = {}
    for row in measured:
        good = as_good_as_best(row.at, rules)
        both = {i: common[i] * good[i] for i in common.keys() & good.keys()}
        touches = bool(run) and run[-1].sizes.end == row.sizes.start
        if not (rules.merge and touches and both):
            winners += _winner_of_run(run, common)
            run, both = [], good
        run.append(row)
        common = both
    winners += _winner_of_run(run, common)
    return merge_neighbours(winners) if rules.merge else tuple(winners)


def _winner_of_run(
    run: Sequence[RangeTimes], common: Mapping[int, float]
) -> list[Segment[int]]:
    return [Segment(row.sizes, min(common, key=common.__getitem__)) for row in run]
