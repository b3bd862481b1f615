"""
Times of candidates at concrete sizes, and the winners that follow from them.

Times are values, a failure is one too. The choice over times is a pure function.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from typing import Any, TYPE_CHECKING, TypeVar

from torch._dynamo.device_interface import get_interface_for_device
from torch._dynamo.utils import counters

import torch

from ..runtime.benchmarking import benchmarker
from .candidates import one_line
from .limits import call_within, is_out_of_memory, TookTooLong
from .ranges import ANY_SIZE, DimRange, merge_neighbours, Segment


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    Runner = Callable[[], Any]
    Sampler = Callable[[Runner], float]

K = TypeVar("K")

# Samples of each candidate at each size; in turns, so that drift hits all alike.
_ROUNDS = 15
# Fewer are taken of slow candidates, as soon as all of them took this long together.
_FEWEST_ROUNDS = 3
_BUDGET_MS = 200.0
# A sample repeats a call until it is this long, so that the clock's own cost is small.
_SAMPLE_MS = 0.3
# A candidate is not sampled further once its lowest of so many samples is so many times
# that of the best.
_HOPELESS = ((_FEWEST_ROUNDS, 2.0), (6, 1.25))
# Nobody is sampled further once each of those left was about as fast twice: what is no
# faster the second time is as fast as it gets. Choices were as good as from all rounds.
_SETTLED = 0.02
_FEWEST_TO_SETTLE = 6
# No hiccup of the machine takes this long: one such sample tells enough.
_LONG_MS = 500.0
# Just below the largest block that glibc counts, see `keep_heap`.
_LARGE_BLOCK_BYTES = 31 * 2**20
# Two times of one kernel differ by this much now and then. On a machine so busy that
# they differ by more than the limit, the lowest samples still tell something.
NOISE = 0.03
_NOISE_LIMIT = 0.06
# One takes 60 µs on an H200.
_MOST_FLUSHES = 8
# For one sample: behind 1, 2, 4 and 8 flushes, and once more.
_MOST_CALLS = 5
# Larger than the last-level cache of any GPU as yet; and what will do where that is not free.
_FLUSH_BYTES = 256 * 2**20
_FEWEST_FLUSH_BYTES = 2**20


@dataclasses.dataclass(frozen=True)
class Timing:
    """
    What one call of a candidate takes.

    Args:
        ms: in milliseconds.
        error: how far more samples would move it, about; relative to ``ms``.
    """

    ms: float
    error: float = 0.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """
    Why a candidate has no time.

    Args:
        may_pass: whether it says more about the moment than about the candidate: memory
            that others held, a clock that ran out, a device that an earlier kernel broke.
        everywhere: whether it is not to be called at other sizes, either.
    """

    reason: str
    may_pass: bool = False
    everywhere: bool = False

    @property
    def lacks_memory(self) -> bool:
        """Whether less memory was free than a call takes."""
        return self.may_pass and not self.everywhere

    def of(self, what: str) -> Failure:
        """The same, saying what failed."""
        return dataclasses.replace(self, reason=f"{what}: {self.reason}")


Times = dict[int, "Timing | Failure"]


def time_candidates(
    runners: Mapping[int, Runner],
    device: torch.device,
    with_cudagraphs: bool = False,
    calling_python: Collection[int] = (),
    limit_s: float | None = None,
    restore: Callable[[], None] = lambda: None,
) -> Times:
    """
    Times candidates in turns.

    On a GPU a time is that of the device. Of candidates that call Python on the way it is
    the host's if that is longer: the caller has to wait for it, where the launches of
    generated code hide behind the work before. With CUDA graphs there is no host time.

    Args:
        runners: one call of each candidate, by index.
        calling_python: those that do.
        limit_s: a candidate is out if one call takes longer.
        restore: called before each sample, to undo what candidates write to their inputs.
    """
    if with_cudagraphs and device.type != "cpu":
        return {
            index: _time_replay(run, device, limit_s) for index, run in runners.items()
        }
    if device.type == "cpu":
        keep_heap()
    on_device = _sample_on_cpu if device.type == "cpu" else GpuSampler(device)
    samplers = dict.fromkeys(runners, on_device)
    if isinstance(on_device, GpuSampler):
        samplers.update(dict.fromkeys(calling_python, on_device.with_host))
    samples, failures = _warm_up(runners, samplers, device, limit_s)
    start = time.perf_counter()
    for done in range(_ROUNDS):
        elapsed_ms = (time.perf_counter() - start) * 1e3
        if done >= _FEWEST_ROUNDS and elapsed_ms > _BUDGET_MS:
            break
        for index in _worth_sampling(samples):
            restore()
            try:
                samples[index].append(_sample(samplers[index], runners[index], limit_s))
            except Exception as e:
                failures[index] = failure_of(e)
                del samples[index]
    timing = usual_timing_of if device.type == "cpu" else timing_of
    timings: Times = {index: timing(times) for index, times in samples.items()}
    return {**timings, **failures}


def keep_heap() -> None:
    """
    Has the C library keep memory that is freed, for the next call of what is timed.

    glibc returns the end of the heap to the system once twice the largest block so far is
    free there. A call then faults its pages in anew: by chance, as its results come to lie
    at the end or not, a candidate with a result of 1 MB took 1.1 ms instead of 0.1. A
    large block that comes and goes, untouched, ends that for all calls to come.
    """
    torch.empty(_LARGE_BLOCK_BYTES, dtype=torch.uint8)


def failure_of(error: BaseException) -> Failure:
    """What a candidate raised, as a value; nothing of the candidate is kept alive by it."""
    reason = one_line(error)
    if is_out_of_memory(error):
        return Failure(f"out of memory: {reason}", may_pass=True)
    passes = isinstance(error, (TookTooLong, TimeoutError, torch.AcceleratorError))
    return Failure(reason, may_pass=passes, everywhere=passes)


def _warm_up(
    runners: Mapping[int, Runner],
    samplers: Mapping[int, Sampler],
    device: torch.device,
    limit_s: float | None,
) -> tuple[dict[int, list[float]], Times]:
    """
    Runs each candidate twice, for its caches and the device's clocks.

    Returns:
        No samples of each candidate, but the one at hand of those that are very slow; and
        the failures.
    """
    samples: dict[int, list[float]] = {}
    failures: Times = {}
    for index, run in runners.items():
        counters["inductor"]["custom_op_candidate_timings"] += 1
        try:
            call_within(limit_s, "a call of it", finish, run, device)
            sample_ms = _sample(samplers[index], run, limit_s)
        except Exception as e:
            failures[index] = failure_of(e)
            continue
        samples[index] = [sample_ms] if sample_ms > _LONG_MS else []
    return samples, failures


def _sample(sampler: Sampler, run: Runner, limit_s: float | None) -> float:
    """A sample in ms, of what has come back in time before; raises TookTooLong."""
    sample_ms = sampler(run)
    if limit_s is not None and sample_ms > limit_s * 1e3:
        raise TookTooLong("a call of it", limit_s)
    return sample_ms


def call_once(
    run: Runner, device: torch.device, limit_s: float | None
) -> Timing | Failure:
    """
    What comes of one call.

    Args:
        limit_s: it has failed if it takes longer.
    """
    start = time.perf_counter()
    try:
        call_within(limit_s, "a call of it", finish, run, device)
    except Exception as e:
        return failure_of(e)
    return Timing((time.perf_counter() - start) * 1e3)


def finish(run: Runner, device: torch.device) -> None:
    """One call, and the device's work for it."""
    run()
    synchronize(device)


def synchronize(device: torch.device) -> None:
    """Waits for what the device has to do."""
    if device.type != "cpu":
        get_interface_for_device(device).synchronize()


def _worth_sampling(samples: Mapping[int, Sequence[float]]) -> list[int]:
    """Those that may win; none if that is one, sampled enough, or all are settled."""
    best = min((min(times, default=0.0) for times in samples.values()), default=0.0)
    left = [i for i, times in samples.items() if not _is_hopeless(times, best)]
    enough, _ = _HOPELESS[-1]
    decided = len(left) == 1 < len(samples) and len(samples[left[0]]) >= enough
    return [] if decided or all(_is_settled(samples[i]) for i in left) else left


def _is_hopeless(times: Sequence[float], best: float) -> bool:
    lowest = min(times, default=0.0)
    return (lowest > _LONG_MS and lowest > _HOPELESS[0][1] * best) or any(
        len(times) >= enough and lowest > slower * best for enough, slower in _HOPELESS
    )


def _is_settled(times: Sequence[float]) -> bool:
    if len(times) < _FEWEST_TO_SETTLE:
        return False
    lowest, second, *_ = sorted(times)
    return second <= (1 + _SETTLED) * lowest


def timing_of(samples: Sequence[float]) -> Timing:
    """
    From samples in ms: the lowest, for others on the machine only ever add to one. It is as
    far above what it tends to as the lowest quarter lies from one sample to the next.
    """
    lowest = min(samples)
    if len(samples) == 1 or not lowest:
        return Timing(lowest)
    quartile, *_ = _quartiles(samples)
    gap = (quartile - lowest) / ((len(samples) - 1) / 4)
    return Timing(lowest, gap / lowest)


def usual_timing_of(samples: Sequence[float]) -> Timing:
    """
    From samples in ms on a CPU: their lower quartile.

    Who reads and writes more memory is slowed down more by others on the machine, which
    the lowest does not tell. Of 624 choices between an op called eagerly and its
    implementations, made from samples on a shared machine with two cores, the mean time of
    who was chosen was 3 % above the best one's in 61 and 10 % in 24 by the lowest; in 43
    and 15 by the quartile, in 55 and 14 by the median.
    """
    if len(samples) == 1:
        return Timing(samples[0])
    quartile, median, _ = _quartiles(samples)
    gap = (median - min(samples)) / ((len(samples) - 1) / 2)
    return Timing(quartile, gap / quartile if quartile else 0.0)


def _quartiles(samples: Sequence[float]) -> list[float]:
    return statistics.quantiles(samples, n=4, method="inclusive")


def _time_replay(
    run: Runner, device: torch.device, limit_s: float | None
) -> Timing | Failure:
    """The time of one replay of a CUDA graph."""
    counters["inductor"]["custom_op_candidate_timings"] += 1
    try:
        call_within(limit_s, "a call of it", finish, run, device)
        return Timing(benchmarker.benchmark_gpu_with_cuda_graph(run))
    except Exception as e:
        return failure_of(e)


def _sample_on_cpu(run: Runner) -> float:
    calls = 0
    start = time.perf_counter()
    while True:
        run()
        calls += 1
        elapsed_ms = (time.perf_counter() - start) * 1e3
        if elapsed_ms >= _SAMPLE_MS:
            return elapsed_ms / calls


def make_flush_buffer(device: torch.device) -> torch.Tensor:
    """
    What flushes a GPU's caches as it is written to: of 256 MiB, or of what is left of them.

    Raises OutOfMemoryError where nothing is.
    """
    size = _FLUSH_BYTES
    while True:
        try:
            return torch.empty(size, dtype=torch.int8, device=device)
        except torch.OutOfMemoryError:
            if size <= _FEWEST_FLUSH_BYTES:
                raise
            size //= 4


class GpuSampler:
    """
    One call behind cache flushes that take longer than the call's launch.

    The host's time is that of the call until it returns, the device's that between two
    events around it. Where the device comes to the first one before the host is done, it
    may wait for launches on the way, be they slow or the host busy; the call is repeated.
    """

    def __init__(self, device: torch.device) -> None:
        self._interface = get_interface_for_device(device.type)
        self._flushed = make_flush_buffer(device)
        self._flushes = 1

    def __call__(self, run: Runner) -> float:
        """The device's time in ms."""
        return self._device_and_host(run)[0]

    def event(self) -> Any:
        """One of the device that takes the time where it is recorded."""
        return self._interface.Event(enable_timing=True)

    def with_host(self, run: Runner) -> float:
        """The device's time in ms or the host's, whichever is longer."""
        return max(self._device_and_host(run))

    def _device_and_host(self, run: Runner) -> tuple[float, float]:
        """The lowest of some calls if the launches of none are hidden."""
        device_ms = host_ms = math.inf
        for _ in range(_MOST_CALLS):
            of_device, of_host, is_hidden = self._behind_flushes(run)
            # As long as before: that was no hiccup, nor does another flush save much.
            shorter, longer = sorted((device_ms, of_device))
            is_steady = longer <= (1 + _SETTLED) * shorter
            device_ms, host_ms = min(device_ms, of_device), min(host_ms, of_host)
            if is_hidden or is_steady or of_device > _LONG_MS:
                break
            self._flushes = min(2 * self._flushes, _MOST_FLUSHES)
        return device_ms, host_ms

    def _behind_flushes(self, run: Runner) -> tuple[float, float, bool]:
        """The device's time of a call, the host's, and if the flushes took longer."""
        start, end = self.event(), self.event()
        self._interface.synchronize()
        for _ in range(self._flushes):
            self._flushed.zero_()
        start.record()
        start_s = time.perf_counter()
        run()
        host_ms = (time.perf_counter() - start_s) * 1e3
        end.record()
        is_hidden = not start.query()
        self._interface.synchronize()
        return start.elapsed_time(end), host_ms, is_hidden


@dataclasses.dataclass(frozen=True)
class RangeTimes:
    """
    What was measured in one range: the times of candidates by concrete size.

    Args:
        lender: the range that was measured instead, if nothing could be in this one.
    """

    sizes: DimRange
    at: Mapping[int | None, Times]
    lender: DimRange | None = None


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


def as_good_as_best(measured: RangeTimes, rules: ChoiceRules) -> dict[int, float]:
    """
    The candidates of a range that differ from its best by no more than noise.

    At none of its sizes may one be clearly slower, whatever it gains at others: a range
    that has a winner of its own takes no other to be merged.

    Returns:
        Their slowdowns by index, at least one.
    """
    scores = _scores(measured.at, rules)
    if not scores:
        return {rules.fallback: 1.0}
    best = min(scores, key=scores.__getitem__)
    fallback = scores.get(rules.fallback, math.inf)
    if fallback < rules.min_speedup * scores[best]:
        return {rules.fallback: fallback}
    return {
        index: score
        for index, score in scores.items()
        if score <= scores[best] * (1 + _noise_between(_both(measured, best, index)))
        and not _is_clearly_slower(measured, best, index)
        and (rules.min_speedup <= 1 or score * rules.min_speedup <= fallback)
    }


def loss_of_winner(at: Mapping[int, Times], rules: ChoiceRules) -> float:
    """
    How much slower a range's winner is at one of its sizes than the winner there, beyond
    what is taken for noise on a busy machine; zero if it is at none.
    """
    winner = best_of(at, rules)
    losses = [0.0]
    for size, times in at.items():
        ours, best = times.get(winner), times.get(best_of({size: times}, rules))
        if not isinstance(best, Timing):
            continue
        if not isinstance(ours, Timing):
            return math.inf
        losses.append(_loss(best, ours) - _noise_between([(best, ours)]))
    return max(losses)


def best_of(at: Mapping[int, Times], rules: ChoiceRules) -> int:
    """The winner of some sizes by themselves."""
    good = as_good_as_best(RangeTimes(ANY_SIZE, {**at}), rules)
    return min(good, key=good.__getitem__)


def lead_of_winner(times: Times, rules: ChoiceRules) -> float:
    """
    How many times as long as the fastest the next one takes at a size; infinitely many if
    no other may win.
    """
    scores = sorted(_scores({None: times}, rules).values())
    return scores[1] / scores[0] if len(scores) > 1 else math.inf


def _scores(at: Mapping[int | None, Times], rules: ChoiceRules) -> dict[int, float]:
    """The slowdowns of those that may win."""
    scores = _fused_or_apart(slowdowns(at), rules)
    if rules.force is None:
        return scores
    return {i: score for i, score in scores.items() if _may_win(i, rules)}


def _fused_or_apart(scores: dict[int, float], rules: ChoiceRules) -> dict[int, float]:
    """Of each candidate those with its neighbours fused or the one with them apart."""
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


def _is_clearly_slower(measured: RangeTimes, first: int, second: int) -> bool:
    """Whether the second is slower than the first by more than noise at any size."""
    return any(
        _loss(one, other) > _noise_between([(one, other)])
        for one, other in _both(measured, first, second)
    )


def _both(measured: RangeTimes, first: int, second: int) -> list[tuple[Timing, Timing]]:
    """The times of two candidates at the sizes where both have one."""
    pairs = [(times.get(first), times.get(second)) for times in measured.at.values()]
    return [
        (one, other)
        for one, other in pairs
        if isinstance(one, Timing) and isinstance(other, Timing)
    ]


def _loss(best: Timing, other: Timing) -> float:
    """By how much one is slower than the best, relative to that."""
    return other.ms / best.ms - 1 if best.ms else 0.0


def _noise_between(pairs: Sequence[tuple[Timing, Timing]]) -> float:
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
        good = as_good_as_best(row, rules)
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
