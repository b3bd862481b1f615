"""
Configs of a winner's Triton kernels, for parts of the sizes at which it won.

Inductor keeps one config of a kernel for all sizes. Which one is the best changes with the
size: RMSNorm of 4096 columns on an H200 takes 4 % less with 4 than with 8 warps at 32768
rows, and 10 % more at 2, where 16 take 4 % less. Where another config than the usual one
gains something, a branch of the dispatch gets kernels that name theirs.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import TYPE_CHECKING, TypeVar

from ..ranges import DimRange, fill_gaps, Segment
from ..sizes.probes import crossing, is_wide, pieces, widest, widest_change, with_probes
from ..times import Failure, Timing
from ..winners import KernelConfigs, Winner


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ..times import RangeTimes

    # Of a call, by kernel and config; see ``kernel_config_names`` for their names.
    ConfigTimes = Mapping[str, Mapping[str, Timing | Failure]]
    MeasureConfigs = Callable[[DimRange, int], tuple[int, ConfigTimes] | None]
    Run = tuple[list[int], "KernelConfigs"]

C = TypeVar("C")

# As far as the times of one config differ on a GPU, beside the error of a timing.
_NOISE_ON_DEVICE = 0.005
# Between two sizes a call's time has no steps if it grows by less than the first factor (all
# blocks run at once) or in proportion to the size, up to a power of it of the second (they run
# in many turns). Elsewhere sizes are measured no further apart than the third.
_FLAT, _IN_PROPORTION, _STEP = 1.1, 0.15, 1.5
# A cut is another branch to compile: it has to gain this much over sizes up to twice as large
# as each other, or half as much where they are up to four times as large.
_WORTH = 0.015
# The first one of a call site makes a dispatch of a winner that would be inlined.
_WORTH_A_DISPATCH = 0.03


@dataclasses.dataclass(frozen=True)
class ConfigRecord:
    """
    What was found out about the configs of one candidate's kernels.

    Args:
        usual: what kernels have settled on.
        in_doubt: those of them that may be faster with another config at some size.
        at: their times by size; empty where they cannot be taken.
    """

    usual: Mapping[str, str] = dataclasses.field(default_factory=dict)
    in_doubt: Sequence[str] = ()
    at: dict[int, ConfigTimes] = dataclasses.field(default_factory=dict)


def with_configs(
    winners: Sequence[Segment[int]], configs: Sequence[Segment[KernelConfigs]]
) -> tuple[Segment[Winner], ...]:
    """
    Winners with the configs of their kernels.

    Args:
        winners: sorted.
        configs: sorted; of some of the winners, none for the rest.
    """
    cut: list[Segment[Winner]] = []
    for won in winners:
        parts = [Segment(p.sizes, Winner(won.value, p.value)) for p in configs]
        cut += fill_gaps(parts, won.sizes, Winner(won.value))
    return tuple(cut)


def excesses(times: Mapping[C, Timing | Failure]) -> dict[C, float]:
    """
    How much longer than the best each config takes at a size, beyond noise.

    Returns:
        Logarithms of ratios; infinity for one that failed, nothing if all did.
    """
    timed = [time for time in times.values() if isinstance(time, Timing)]
    if not timed:
        return {}
    best = min(timed, key=lambda time: time.ms)

    def excess(time: Timing | Failure) -> float:
        if isinstance(time, Failure):
            return math.inf
        if not best.ms:
            return 0.0
        noise = math.hypot(time.error, best.error) + _NOISE_ON_DEVICE
        return max(0.0, math.log(time.ms / best.ms) - noise)

    return {config: excess(time) for config, time in times.items()}


def configs_of_winners(
    winners: Sequence[Segment[int]],
    measured: Sequence[RangeTimes],
    record_of: Callable[[int], ConfigRecord],
    measure_within: Callable[[int], MeasureConfigs],
) -> tuple[Segment[KernelConfigs], ...]:
    """
    The configs of winners' kernels, the ranges cut where the best ones change.

    Args:
        measured: the times that the winners follow from.
        record_of: a candidate's, by index.
        measure_within: from a candidate to what ``configs_by_range`` measures with.
    """
    chosen: list[Segment[KernelConfigs]] = []
    for won in winners:
        record = record_of(won.value)
        parts = [Segment(won.sizes, KernelConfigs())]
        if record.in_doubt:
            # Some are outside: a lender's, or the model's where its range has none.
            timed = {size for row in measured for size in row.at if size is not None}
            sizes = sorted(size for size in timed if size in won.sizes)
            measure = measure_within(won.value)
            found = [measure(DimRange(size, size + 1), size) for size in sizes]
            if at := dict(times for times in found if times and times[1]):
                usual = {kernel: record.usual[kernel] for kernel in record.in_doubt}
                worth = _WORTH if len(winners) > 1 else _WORTH_A_DISPATCH
                parts = configs_by_range(won.sizes, at, usual, measure, worth)
        for part in parts:
            configs = {**record.usual, **dict(part.value)}
            chosen.append(Segment(part.sizes, tuple(sorted(configs.items()))))
    return tuple(chosen)


def configs_by_range(
    sizes: DimRange,
    at: Mapping[int, ConfigTimes],
    usual: Mapping[str, str],
    measure_within: MeasureConfigs,
    worth: float = _WORTH,
) -> list[Segment[KernelConfigs]]:
    """
    Configs of one winner's kernels other than the usual, for parts of its range; most often
    none for all.

    Args:
        sizes: the range.
        at: by size, sorted; not empty.
        usual: of the kernels whose configs are to be chosen.
        measure_within: measures at one of some sizes, near the given one; None where that
            cannot be done.
        worth: what the first cut has to gain.
    """

    def find_gap(
        at: Mapping[int, ConfigTimes], closed: Collection[tuple[int, int]]
    ) -> tuple[int, int] | None:
        return widest_change([run for run, _ in _runs(at, usual, worth)], closed)

    at = with_probes(at, _gap_in_steps, measure_within)
    at = with_probes(at, find_gap, measure_within)
    runs = _runs(at, usual, worth)
    starts = [_start_of(*pair, at, usual) for pair in itertools.pairwise(runs)]
    parts = pieces(sizes, starts)
    return [Segment(part, configs) for part, (_, configs) in zip(parts, runs)]


def _start_of(
    before: Run, run: Run, at: Mapping[int, ConfigTimes], usual: Mapping[str, str]
) -> int:
    """Where the configs of some sizes begin to be better than those of the sizes before."""
    low, high = before[0][-1], run[0][0]

    def lead(size: int, first: Run, second: Run) -> float:
        ours, theirs = (
            _loss(at[size], {**usual, **dict(r[1])}) for r in (first, second)
        )
        return theirs - ours if theirs > ours else 0.0

    return crossing(low, high, lead(low, before, run), lead(high, run, before))


def _loss(times: ConfigTimes, configs: Mapping[str, str]) -> float:
    """What some configs lose at a size, of all kernels launched there."""
    lost = {kernel: excesses(of) for kernel, of in times.items() if kernel in configs}
    return sum(of.get(configs[kernel], math.inf) for kernel, of in lost.items() if of)


def _gap_in_steps(
    at: Mapping[int, ConfigTimes], closed: Collection[tuple[int, int]]
) -> tuple[int, int] | None:
    """
    Where a config may be worse than at both sizes.

    A device runs as many blocks at once as there is room for, more of one config than of
    another. Two norms in one kernel took 20 % more with 16 warps than with 8 from 265 to
    410 rows (H200), and the same below and at 512.
    """
    gaps = [
        (low, high)
        for low, high in itertools.pairwise(at)
        if is_wide(low, high, _STEP) and _rises_in_steps(at, low, high)
    ]
    return widest(gaps, closed)


def _rises_in_steps(at: Mapping[int, ConfigTimes], low: int, high: int) -> bool:
    before, after = (_shortest_ms(at[size]) for size in (low, high))
    if not (before and after):
        return False
    power = math.log(after / before) / math.log(high / max(low, 1))
    return after > _FLAT * before and abs(power - 1) > _IN_PROPORTION


def _shortest_ms(times: ConfigTimes) -> float | None:
    """What the call takes with the best of all configs."""
    found = itertools.chain.from_iterable(of.values() for of in times.values())
    return min((time.ms for time in found if isinstance(time, Timing)), default=None)


def _runs(
    at: Mapping[int, ConfigTimes], usual: Mapping[str, str], worth: float
) -> list[Run]:
    """
    Sizes next to each other that have their configs in common, with these.

    Of all ways to cut it is the one with the least loss over all sizes, a cut being as
    much of a loss as it has to gain.
    """
    order = list(at)
    losses = [
        {k: _weighted(excesses(at[size].get(k, {})), octaves) for k in usual}
        for size, octaves in zip(order, _octaves(order))
    ]
    best: list[tuple[float, list[Run]]] = [(0.0, [])]
    for end in range(1, len(order) + 1):
        ways = []
        for start in range(end):
            loss, configs = _configs_for(losses[start:end], usual)
            before, runs = best[start]
            cut = (_WORTH if len(runs) > 1 else worth) if runs else 0.0
            cost = before + loss + cut
            ways.append((cost, [*runs, (order[start:end], configs)]))
        best.append(min(ways, key=lambda way: way[0]))
    return _without_empty_cuts(best[-1][1])


def _octaves(sizes: Sequence[int]) -> list[float]:
    """
    How many sizes each one stands for: those nearer to it than to the next, up to half an
    octave on each side, so that a part does not count for more where more is measured.
    """
    logs = [math.log2(max(size, 1)) for size in sizes]
    halves = [min((b - a) / 2, 0.5) for a, b in itertools.pairwise(logs)]
    return [below + above for below, above in zip([0.5, *halves], [*halves, 0.5])]


def _weighted(losses: Mapping[C, float], weight: float) -> dict[C, float]:
    return {config: weight * loss for config, loss in losses.items()}


def _without_empty_cuts(runs: Sequence[Run]) -> list[Run]:
    """The same, runs with the same configs joined."""
    grouped = itertools.groupby(runs, key=lambda run: run[1])
    return [
        ([size for sizes, _ in group for size in sizes], configs)
        for configs, group in grouped
    ]


def _configs_for(
    losses: Sequence[Mapping[str, Mapping[str, float]]], usual: Mapping[str, str]
) -> tuple[float, KernelConfigs]:
    """
    Of each kernel the config that loses the least over some sizes, and what all lose.

    A kernel has its usual one, unless another is worth it.
    """
    total, others = 0.0, []
    for kernel, config in usual.items():
        known = [at[kernel] for at in losses if at[kernel]]
        names = dict.fromkeys(itertools.chain.from_iterable(known))
        sums = {c: sum(at.get(c, math.inf) for at in known) for c in names}
        best = min(sums, key=sums.__getitem__, default=config)
        if sums.get(config, 0.0) - sums.get(best, 0.0) >= _WORTH:
            others.append((kernel, best))
        else:
            best = config
        total += sums.get(best, 0.0)
    return total, tuple(sorted(others))
