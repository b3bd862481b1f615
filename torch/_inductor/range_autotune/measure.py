"""Calls of candidates at concrete sizes, timed by the host's clock or the device's events."""

from __future__ import annotations

import contextlib
import math
import time
from typing import Any, TYPE_CHECKING

from torch._dynamo.device_interface import get_interface_for_device
from torch._dynamo.utils import counters

import torch

from .limits import A_CALL, call_candidate, TookTooLong
from .settings import time_limit_s
from .times import failure_of, Timing, timing_of, usual_timing_of


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractContextManager

    from .times import Failure, Times

    Runner = Callable[[], Any]
    Sampler = Callable[[Runner], float]

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
# Nobody is sampled further once the two lowest samples of each candidate left are within
# this of each other. Choices were as good as from all rounds.
_SETTLED = 0.02
_FEWEST_TO_SETTLE = 6
# No hiccup of the machine takes this long: one such sample tells enough.
_LONG_MS = 500.0
# Just below the largest block that glibc counts, see `keep_heap`.
_LARGE_BLOCK_BYTES = 31 * 2**20
# One takes 60 µs on an H200.
_MOST_FLUSHES = 8
# For one sample: behind 1, 2, 4 and 8 flushes, and once more.
_MOST_CALLS = 5
# Larger than the last-level cache of any GPU as yet; and what will do where that is not free.
_FLUSH_BYTES = 256 * 2**20
_FEWEST_FLUSH_BYTES = 2**20


def time_candidates(
    runners: Mapping[int, Runner],
    device: torch.device,
    with_cudagraphs: bool = False,
    calling_python: Collection[int] = (),
    restore: Callable[[], None] = lambda: None,
) -> Times:
    """
    Times candidates in turns.

    On a GPU a time is that of the device. Of candidates that call Python on the way it is
    the host's if that is longer: the caller has to wait for it, where the launches of
    generated code hide behind the work before. With CUDA graphs there is no host time.

    A candidate is out if one call takes longer than its time limit.

    Args:
        runners: one call of each candidate, by index.
        calling_python: those that do.
        restore: called before each sample, to undo what candidates write to their inputs.
    """
    if with_cudagraphs and device.type != "cpu":
        return {
            index: _time_replay(run, device, restore) for index, run in runners.items()
        }
    if device.type == "cpu":
        keep_heap()
    on_device = _sample_on_cpu if device.type == "cpu" else GpuSampler(device)
    samplers = dict.fromkeys(runners, on_device)
    if isinstance(on_device, GpuSampler):
        samplers.update(dict.fromkeys(calling_python, on_device.with_host))
    samples, failures = _warm_up(runners, samplers, device)
    start = time.perf_counter()
    for done in range(_ROUNDS):
        elapsed_ms = (time.perf_counter() - start) * 1e3
        if done >= _FEWEST_ROUNDS and elapsed_ms > _BUDGET_MS:
            break
        for index in _worth_sampling(samples):
            restore()
            try:
                samples[index].append(_sample(samplers[index], runners[index]))
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


def _warm_up(
    runners: Mapping[int, Runner],
    samplers: Mapping[int, Sampler],
    device: torch.device,
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
            call_candidate(call_and_synchronize, run, device)
            sample_ms = _sample(samplers[index], run)
        except Exception as e:
            failures[index] = failure_of(e)
            continue
        samples[index] = [sample_ms] if sample_ms > _LONG_MS else []
    return samples, failures


def _sample(sampler: Sampler, run: Runner) -> float:
    """A sample in ms, of what has come back in time before; raises TookTooLong."""
    sample_ms, limit_s = sampler(run), time_limit_s()
    if limit_s is not None and sample_ms > limit_s * 1e3:
        raise TookTooLong(A_CALL, limit_s)
    return sample_ms


def call_once(run: Runner, device: torch.device) -> Timing | Failure:
    """What comes of one call; it has failed if it takes longer than its time limit."""
    start = time.perf_counter()
    try:
        call_candidate(call_and_synchronize, run, device)
    except Exception as e:
        return failure_of(e)
    return Timing((time.perf_counter() - start) * 1e3)


def call_and_synchronize(run: Runner, device: torch.device) -> None:
    """One call, and the device's work for it."""
    run()
    synchronize(device)


def synchronize(device: torch.device) -> None:
    """Waits for what the device has to do."""
    if device.type != "cpu":
        get_interface_for_device(device).synchronize(device)


def as_current(device: torch.device) -> AbstractContextManager[Any]:
    """
    A context in which a device is the one that events, streams and random numbers are of
    where none is named: a model may be on another one than the process's.
    """
    if device.type == "cpu" or device.index is None:
        return contextlib.nullcontext()
    return torch.accelerator.device_index(device.index)


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


def _time_replay(
    run: Runner, device: torch.device, restore: Callable[[], None]
) -> Timing | Failure:
    """
    The time of one replay of a CUDA graph, sampled as calls are, but by itself: the memory
    that a graph keeps is free for the next one.
    """
    try:
        call_candidate(call_and_synchronize, run, device)
        replay = _captured(run, device)
    except Exception as e:
        return failure_of(e)
    return time_candidates({0: replay}, device, restore=restore)[0]


def _captured(run: Runner, device: torch.device) -> Runner:
    """A replay of what a call does on the device; the call has been made before."""
    graph = torch.cuda.CUDAGraph()
    # Others go on compiling, and may load what they have compiled.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        run()
    synchronize(device)
    return graph.replay


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
