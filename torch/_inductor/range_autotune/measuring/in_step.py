"""
Calls of candidates that contain collectives: by all ranks in step.

A collective hangs unless every rank runs it, so that ranks must agree on who competes
before a candidate is run, and on times before a winner is chosen.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from typing import Any, TYPE_CHECKING

from torch._dynamo.device_interface import get_interface_for_device
from torch._dynamo.utils import counters

from ... import config
from ..measure import keep_heap, make_flush_buffer, synchronize
from ..times import Failure, failure_of, Timing, timing_of
from .ranks import gather, made_on_all_ranks, of_all_ranks


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import torch

    from ..times import Times
    from .ranks import Ranks

    Runner = Callable[[], Any]
    Sampler = Callable[[Runner, int], float]

# Samples of each candidate, in turns; ``collective_benchmark_nruns`` calls in all.
_ROUNDS = 10
# Fewer are taken where all candidates together would take longer.
_FEWEST_ROUNDS = 3
_BUDGET_MS = 2000.0
# A candidate this many times slower than the best in its warm-up is not sampled, if its
# calls take that long: a busy host makes any short one look so.
_HOPELESS = 4.0
_LONG_MS = 5.0
# Calls of each that are timed there; a hiccup of the machine must not decide.
_WARM_UP_CALLS = 3
# Of the cache, before each call on a GPU: so many that twice its launch hides behind them.
# One takes 60 µs on an H200. On a slow host two collectives of 20 µs looked like 170 µs
# behind four of them.
_FLUSHES = (3, 16)
_FLUSH_MS = 0.06


def time_in_step(
    runners: Mapping[int, Runner],
    device: torch.device,
    ranks: Ranks,
    calling_python: Collection[int] = (),
    restore: Callable[[], None] = lambda: None,
) -> Times:
    """
    Times candidates that every rank has, and agrees on the times.

    Every rank runs the same calls in the same order. What raises on one rank is a failure
    on all; a rank that is slow makes the others wait. A collective that one rank never
    enters ends with the group's timeout. Where one lacks memory for its timer, no rank
    calls anybody.

    Args:
        runners: one call of each candidate, by index; the same indices on every rank.
        calling_python: those that do on the way, so that on a GPU theirs is the host's
            time if that is longer.
        restore: called before each sample, to undo what candidates write to their inputs.

    Returns:
        The slowest rank's times, the same on every rank.
    """
    flushed = made_on_all_ranks(lambda: _flush_buffer(device), ranks)
    if isinstance(flushed, Failure):
        return dict.fromkeys(runners, flushed)
    counters["inductor"]["custom_op_candidate_timings"] += len(runners)
    first = _first_calls(runners, device, ranks)
    called = {i: call for i, call in first.items() if isinstance(call, _Call)}
    best_ms = min((call.ms for call in called.values()), default=0.0)
    slowest_ms = max(_HOPELESS * best_ms, _LONG_MS)
    running = {i: call for i, call in called.items() if call.ms <= slowest_ms}
    calls = max(1, config.collective_benchmark_nruns // _ROUNDS)
    round_ms = (1 + calls) * sum(call.ms for call in running.values())
    rounds = min(_ROUNDS, max(_FEWEST_ROUNDS, int(_BUDGET_MS / max(round_ms, 1e-3))))
    flushes = _flushes_to_hide(max((c.launch_ms for c in running.values()), default=0))
    sampled = {index: runners[index] for index in running}
    samplers = {
        index: _sampler(device, flushed, flushes, with_host=index in calling_python)
        for index in running
    }
    samples = _take_samples(sampled, samplers, rounds, calls, restore)
    return {**_roughly(first), **_merged(gather(samples, ranks))}


def call_in_step(
    runners: Mapping[int, Runner], device: torch.device, ranks: Ranks
) -> Times:
    """
    What comes of some calls of each candidate, the same on every rank.

    Args:
        runners: see ``time_in_step``.

    Returns:
        Failures, and about what a call took on the slowest rank.
    """
    return _roughly(_first_calls(runners, device, ranks))


def _first_calls(
    runners: Mapping[int, Runner], device: torch.device, ranks: Ranks
) -> dict[int, _Call | Failure]:
    return {
        index: _first_calls_of(runners[index], device, ranks)
        for index in sorted(runners)
    }


def _first_calls_of(run: Runner, device: torch.device, ranks: Ranks) -> _Call | Failure:
    """
    One call, then agreement, then the others: a rank whose call failed must not leave the
    rest in a collective.
    """
    first = _agreed(_lowest_call(run, device, 1), ranks)
    if isinstance(first, Failure):
        return first
    return _agreed(_lowest_call(run, device, _WARM_UP_CALLS), ranks)


def _roughly(calls: Mapping[int, _Call | Failure]) -> Times:
    return {i: c if isinstance(c, Failure) else Timing(c.ms) for i, c in calls.items()}


@dataclasses.dataclass(frozen=True)
class _Call:
    """What a call takes until the device is done, and until it returns, in ms."""

    ms: float
    launch_ms: float


def _lowest_call(run: Runner, device: torch.device, times: int) -> _Call | Failure:
    """What a call takes, roughly: the lowest of so many."""
    try:
        calls = [_timed_call(run, device) for _ in range(times)]
    except Exception as e:
        return failure_of(e)
    return _Call(min(c.ms for c in calls), min(c.launch_ms for c in calls))


def _timed_call(run: Runner, device: torch.device) -> _Call:
    start = time.perf_counter()
    launch_ms = _host_ms(run)
    synchronize(device)
    return _Call((time.perf_counter() - start) * 1e3, launch_ms)


def _agreed(mine: _Call | Failure, ranks: Ranks) -> _Call | Failure:
    """The failure of any rank, else what the slowest takes."""
    calls = of_all_ranks(mine, ranks)
    if isinstance(calls, Failure):
        return calls
    return _Call(max(c.ms for c in calls), max(c.launch_ms for c in calls))


def _flush_buffer(device: torch.device) -> torch.Tensor | None:
    """All the memory that timing needs: of a GPU, to flush caches. May raise that it lacks."""
    if device.type == "cpu":
        keep_heap()
        return None
    return make_flush_buffer(device)


def _flushes_to_hide(launch_ms: float) -> int:
    fewest, most = _FLUSHES
    return min(max(math.ceil(2 * launch_ms / _FLUSH_MS), fewest), most)


_Samples = dict[int, "list[float] | Failure"]


def _take_samples(
    runners: Mapping[int, Runner],
    samplers: Mapping[int, Sampler],
    rounds: int,
    calls: int,
    restore: Callable[[], None] = lambda: None,
) -> _Samples:
    """
    Samples in ms, in turns, each on restored inputs.

    Ends with the first failure: what follows would be out of step with the other ranks.
    """
    samples: dict[int, list[float]] = {index: [] for index in runners}
    for _ in range(rounds):
        for index, run in runners.items():
            try:
                restore()
                samples[index].append(samplers[index](run, calls))
            except Exception as e:
                return {**samples, index: failure_of(e)}
    return {**samples}


def _merged(of_ranks: Sequence[_Samples]) -> Times:
    """
    From all ranks' samples to times, of those that have any on all of them; a sample takes
    as long as on its slowest rank.
    """
    times: Times = {}
    for index in of_ranks[0]:
        results = [samples[index] for samples in of_ranks]
        failures = [r for r in results if isinstance(r, Failure)]
        slowest = list(map(max, zip(*(r for r in results if isinstance(r, list)))))
        if failures:
            times[index] = failures[0]
        elif slowest:
            times[index] = timing_of(slowest)
    return times


def _sampler(
    device: torch.device, flushed: torch.Tensor | None, flushes: int, with_host: bool
) -> Sampler:
    """
    From a number of calls to the time of one, in ms: the median, so that one that waited
    for a rank that was disturbed does not count.

    A call before them brings the ranks into step. On a GPU each is timed by itself,
    behind cache flushes that hide its launch.

    Args:
        flushed: written to for a flush; None on a CPU.
        flushes: as many on each rank: who is early waits for the others.
        with_host: whether a GPU's time is the host's if that is longer.
    """
    if flushed is None:
        return _sample_on_cpu
    interface = get_interface_for_device(device.type)

    def sample(run: Runner, calls: int) -> float:
        run()
        events, host_ms = [], []
        for _ in range(calls):
            start, end = (interface.Event(enable_timing=True) for _ in range(2))
            for _ in range(flushes):
                flushed.zero_()
            start.record()
            host_ms.append(_host_ms(run))
            end.record()
            events.append((start, end))
        interface.synchronize()
        device_ms = statistics.median(a.elapsed_time(b) for a, b in events)
        return max(device_ms, statistics.median(host_ms)) if with_host else device_ms

    return sample


def _sample_on_cpu(run: Runner, calls: int) -> float:
    run()
    return statistics.median(_host_ms(run) for _ in range(calls))


def _host_ms(run: Runner) -> float:
    start = time.perf_counter()
    run()
    return (time.perf_counter() - start) * 1e3
