# Owner(s): ["module: inductor"]
"""How times are taken of made-up runners."""

import contextlib
import gc
import itertools
import math
import platform
import subprocess
import sys
import types
import unittest
import weakref
from unittest import mock

from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests, TestCase

import torch
from torch._inductor import config
from torch._inductor.range_autotune import limits, measure
from torch._inductor.range_autotune.measure import time_candidates
from torch._inductor.range_autotune.times import Failure, Timing


FAILED = Failure("RuntimeError: broken")

PAGE_FAULTS = """
import resource
import torch
from torch._inductor.range_autotune.measure import keep_heap


def page_faults(loops=20):
    def loop():
        _ = [torch.ones(8_000_000, dtype=torch.uint8) for _ in range(3)]

    loop()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(loops):
        loop()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // loops


torch.ones(2**23, dtype=torch.uint8)
print(page_faults())
keep_heap()
print(page_faults())
"""


class TestKeepHeap(TestCase):
    @unittest.skipIf(platform.libc_ver()[0] != "glibc", "glibc's allocator")
    def test_no_call_faults_its_pages_in_anew(self):
        output = subprocess.check_output([sys.executable, "-c", PAGE_FAULTS], text=True)
        before, after = map(int, output.split()[-2:])
        self.assertGreater(before, 5)
        self.assertLess(after, 5)

    def test_before_candidates_are_timed_on_a_cpu(self):
        with mock.patch.object(measure, "keep_heap") as keep_heap:
            times = time_candidates(
                {0: keep_heap.assert_called_once}, torch.device("cpu")
            )
        self.assertIsInstance(times[0], Timing)


class MadeUpTime:
    """In place of the ``time`` module: time passes only in runners."""

    def __init__(self):
        self.ms = 0.0
        self.log = []

    def perf_counter(self):
        return self.ms / 1e3

    monotonic = perf_counter

    def runner(self, index, *durations_ms, fails_at=math.inf):
        """Takes the durations in turn; from call ``fails_at`` on it raises."""
        durations = itertools.cycle(durations_ms)

        def run():
            self.log.append(index)
            if self.log.count(index) >= fails_at:
                raise RuntimeError("broken\nand more about it")
            self.ms += next(durations)

        return run


class MadeUpGpu:
    """A device with one queue, and cache flushes of a millisecond, in made-up time."""

    def __init__(self, time):
        self.time = time
        self.free_ms = 0.0
        self.flushes = 0
        self.hiccups_ms = iter(())  # of the host, before each flush

    def enqueue(self, ms):
        self.free_ms = max(self.free_ms, self.time.ms) + ms

    def synchronize(self, device=None):
        self.time.ms = max(self.time.ms, self.free_ms)

    def Event(self, enable_timing):
        event = types.SimpleNamespace()
        event.record = lambda: setattr(event, "ms", max(self.free_ms, self.time.ms))
        event.query = lambda: event.ms <= self.time.ms
        event.elapsed_time = lambda later: later.ms - event.ms
        return event

    def zero_(self):
        self.time.ms += next(self.hiccups_ms, 0.0)
        self.flushes += 1
        self.enqueue(1.0)

    def runner(self, launch_ms, *kernels_ms):
        """Takes the host some time before each kernel."""

        def run():
            for kernel_ms in kernels_ms:
                self.time.ms += launch_ms
                self.enqueue(kernel_ms)

        return run

    def sampler(self):
        with (
            mock.patch.object(measure, "get_interface_for_device", lambda _: self),
            mock.patch.object(torch, "empty", return_value=self),
        ):
            return measure.GpuSampler(torch.device("cuda"))


class TestGpuSampler(TestCase):
    def setUp(self):
        super().setUp()
        time = MadeUpTime()
        self.enterContext(mock.patch.object(measure, "time", time))
        self.gpu = MadeUpGpu(time)
        self.sample = self.gpu.sampler()

    def test_one_flush_hides_a_fast_launch(self):
        self.assertAlmostEqual(self.sample(self.gpu.runner(0.2, 0.5, 0.25)), 0.75)
        self.assertEqual(self.gpu.flushes, 1)

    def test_more_flushes_hide_a_slow_launch(self):
        slow = self.gpu.runner(1.5, 0.5, 0.25)
        self.assertAlmostEqual(self.sample(slow), 0.75)
        known = self.gpu.flushes
        self.assertAlmostEqual(self.sample(slow), 0.75)
        self.assertEqual(self.gpu.flushes, known + 4)

    def test_a_launch_that_nothing_hides(self):
        self.assertGreater(self.sample(self.gpu.runner(100.0, 0.5)), 90.0)
        self.assertLess(self.gpu.flushes, 32)

    def test_nothing_is_repeated_in_vain(self):
        def called(launch_ms, kernel_ms):
            calls = []
            run = self.gpu.runner(launch_ms, kernel_ms)
            self.gpu.sampler()(lambda: calls.append(run()))
            return len(calls)

        self.assertEqual(called(100.0, 0.5), 2)  # as long the second time
        self.assertEqual(called(1.5, 600.0), 1)
        self.assertEqual(called(1.5, 0.5), 2)  # hidden the second time

    def flush_buffer(self, free):
        """The bytes of the one that is made while so many are free."""

        def empty(size, **_):
            if size > free:
                raise torch.OutOfMemoryError("full")
            return size

        with mock.patch.object(torch, "empty", empty):
            return measure.make_flush_buffer(torch.device("cuda"))

    def test_little_memory_for_flushes(self):
        sizes = [self.flush_buffer(mib * 2**20) // 2**20 for mib in (300, 200, 1)]
        self.assertEqual(sizes, [256, 64, 1])
        with self.assertRaises(torch.OutOfMemoryError):
            self.flush_buffer(2**10)

    def test_a_hiccup_of_the_host(self):
        launches_ms = itertools.chain([0.1, 50.0], itertools.repeat(0.1))

        def run():
            for kernel_ms in (0.5, 0.25):
                self.gpu.runner(next(launches_ms), kernel_ms)()

        self.assertAlmostEqual(self.sample(run), 0.75)
        self.assertEqual(self.gpu.flushes, 1 + 2)

    def test_a_hiccup_between_flushes_hides_nothing(self):
        self.sample(self.gpu.runner(1.5, 0.5))  # behind two from here on
        known = self.gpu.flushes
        self.gpu.hiccups_ms = iter([0.0, 50.0])
        self.assertAlmostEqual(self.sample(self.gpu.runner(1.5, 0.5)), 0.5)
        self.assertEqual(self.gpu.flushes, known + 2 + 4)

    def test_with_the_host_s_time(self):
        self.assertAlmostEqual(self.sample.with_host(self.gpu.runner(1.5, 0.5)), 1.5)
        self.assertAlmostEqual(self.sample.with_host(self.gpu.runner(1.5, 2.5)), 2.5)


class TestReplays(TestCase):
    """Of CUDA graphs, on a made-up device where a capture is a call, too."""

    def setUp(self):
        super().setUp()
        self.time = MadeUpTime()
        self.gpu = MadeUpGpu(self.time)
        self.log = []
        graph = types.SimpleNamespace(replay=self.replay)
        for owner, name, made_up in (
            (measure, "time", self.time),
            (measure, "get_interface_for_device", lambda _: self.gpu),
            (torch, "empty", lambda *_, **__: self.gpu),
            (torch.cuda, "CUDAGraph", lambda: graph),
            (torch.cuda, "graph", lambda *_, **__: contextlib.nullcontext()),
        ):
            self.enterContext(mock.patch.object(owner, name, made_up))
        self.replays_ms = itertools.repeat(0.5)

    def replay(self):
        self.log.append("replay")
        self.gpu.enqueue(next(self.replays_ms))

    def times(self, *runners, **options):
        device = torch.device("cuda")
        return time_candidates(
            dict(enumerate(runners)), device, with_cudagraphs=True, **options
        )

    def test_a_time_is_that_of_a_replay(self):
        times = self.times(self.gpu.runner(0.1, 5.0))
        self.assertAlmostEqual(times[0].ms, 0.5)

    def test_each_sample_is_on_inputs_as_they_were(self):
        """What restores them takes no time of a sample."""

        def restore():
            self.log.append("restored")
            self.gpu.enqueue(7.0)

        times = self.times(self.gpu.runner(0.1, 0.5), restore=restore)
        self.assertAlmostEqual(times[0].ms, 0.5)
        sampled = self.log[self.log.index("restored") :]
        self.assertGreaterEqual(len(sampled), 6)
        self.assertEqual(sampled, ["restored", "replay"] * (len(sampled) // 2))

    @config.patch(custom_op_candidate_time_limit_s=5.0)
    def test_one_that_takes_too_long(self):
        self.replays_ms = itertools.chain([0.5] * 4, itertools.repeat(6000.0))
        times = self.times(self.gpu.runner(0.1, 0.5))
        self.assertRegex(times[0].reason, "^a call of it takes longer than 5 s")

    def test_failure_is_a_value(self):
        fails_at_capture = self.time.runner(0, 1.0, fails_at=2)
        times = self.times(fails_at_capture, self.gpu.runner(0.1, 0.5))
        self.assertEqual(times[0], FAILED)
        self.assertAlmostEqual(times[1].ms, 0.5)


class TestAsCurrent(TestCase):
    def test_a_gpu_is_the_current_one_there(self):
        with mock.patch.object(torch.accelerator, "device_index") as context:
            for device in ("cpu", "cuda"):
                with measure.as_current(torch.device(device)):
                    pass
            context.assert_not_called()
            with measure.as_current(torch.device("cuda", 1)):
                context.assert_called_once_with(1)
                context.return_value.__enter__.assert_called_once()


class TestTiming(TestCase):
    def setUp(self):
        super().setUp()
        self.time = MadeUpTime()
        self.enterContext(mock.patch.object(measure, "time", self.time))

    def times(self, *runners, **options):
        runners = dict(enumerate(runners))
        return time_candidates(runners, torch.device("cpu"), **options)

    def calls(self, index):
        return self.time.log.count(index)

    def unsteady(self, index, scale=1.0, **options):
        """Never about as fast twice."""
        durations_ms = (scale * (2.0 - 0.05 * i) for i in range(20))
        return self.time.runner(index, *durations_ms, **options)

    def test_a_time_is_that_of_one_call(self):
        runner = self.time.runner
        times = self.times(runner(0, 1.0), runner(1, 0.01), runner(2, 0.5))
        self.assertEqual([round(times[i].ms, 6) for i in range(3)], [1.0, 0.01, 0.5])
        self.assertEqual([round(times[i].error, 6) for i in range(3)], [0, 0, 0])

    def test_each_sample_is_on_inputs_as_they_were(self):
        log = self.time.log
        runners = (self.unsteady(0), self.unsteady(1))
        self.times(*runners, restore=lambda: log.append("restored"))
        sampled = log[log.index("restored") :]
        self.assertEqual(sampled, ["restored", 0, "restored", 1] * (len(sampled) // 4))

    def test_a_disturbed_sample_does_not_count(self):
        steady, disturbed = self.time.runner(0, 1.0), self.time.runner(1, 1.0, 1.0, 3.0)
        times = self.times(steady, disturbed)
        self.assertAlmostEqual(times[0].ms, times[1].ms)

    def test_unsteady_times_are_uncertain(self):
        steady = self.time.runner(0, 1.0)
        durations_ms = [1.0 + 0.1 * i for i in range(11)]
        times = self.times(steady, self.time.runner(1, *durations_ms))
        # Of 15 samples from 1.0 to 2.0 ms, the lower half is 0.4 ms wide.
        self.assertAlmostEqual(times[0].error, 0.0)
        self.assertAlmostEqual(times[1].error * times[1].ms, 0.4 / 7)
        lowest = [measure.timing_of(samples) for samples in ([1.0] * 11, durations_ms)]
        self.assertGreater(lowest[1].error, lowest[0].error + 0.05)

    def test_on_a_cpu_a_lucky_sample_decides_nothing(self):
        lucky = self.time.runner(0, 2.0, 2.0, 1.0, *(2.0 + 0.1 * i for i in range(20)))
        times = self.times(lucky, self.time.runner(1, 1.2))
        self.assertLess(times[1].ms, times[0].ms)

    def test_candidates_take_turns(self):
        self.times(self.unsteady(0), self.unsteady(1))
        self.assertEqual(self.calls(0), self.calls(1))
        self.assertGreaterEqual(self.calls(0), 10)
        in_turns = self.time.log[4:]
        self.assertEqual(in_turns, [0, 1] * (len(in_turns) // 2))

    def test_a_short_call_is_repeated(self):
        self.times(self.time.runner(0, 1.0), self.time.runner(1, 0.01))
        self.assertGreater(self.calls(1), 10 * self.calls(0))

    def test_a_hopeless_candidate_is_not_sampled_to_the_end(self):
        self.times(self.time.runner(0, 1.0), self.time.runner(1, 10.0))
        self.assertEqual(self.calls(0), self.calls(1) + 3)
        self.assertGreaterEqual(self.calls(1), 3)

    def test_a_slower_candidate_is_sampled_until_that_is_sure(self):
        runner = self.unsteady
        self.times(runner(0, 1.0), runner(1, 1.1), runner(2, 1.4), runner(3, 2.5))
        calls = [self.calls(index) for index in range(4)]
        self.assertEqual(calls[0], calls[1])
        self.assertEqual(calls[1:], sorted(set(calls[1:]), reverse=True))

    def test_nothing_is_sampled_once_all_are_about_as_fast_twice(self):
        self.times(self.time.runner(0, 1.0), self.time.runner(1, 1.1))
        settled = self.calls(0)
        self.assertEqual(settled, self.calls(1))
        self.time.log.clear()
        self.times(self.time.runner(0, 1.4), self.unsteady(1))
        self.assertEqual(self.calls(0), self.calls(1))
        self.assertGreaterEqual(self.calls(0), settled + 5)

    def test_nothing_is_sampled_once_the_choice_is_sure(self):
        self.times(self.unsteady(0), self.unsteady(1, 1.4))
        self.assertEqual(self.calls(0), self.calls(1))
        self.assertLess(self.calls(0), 10)

    def test_slow_candidates_are_sampled_less(self):
        self.times(self.unsteady(0), self.unsteady(1))
        fast = self.calls(0)
        self.time.log.clear()
        self.times(self.unsteady(0, 400.0), self.unsteady(1, 400.0))
        self.assertGreater(fast, 2 * self.calls(0))
        self.assertGreaterEqual(self.calls(0), 3)

    def test_failure_is_a_value(self):
        times = self.times(
            self.time.runner(0, 1.0, fails_at=1), self.time.runner(1, 1.0)
        )
        self.assertEqual(times[0], FAILED)
        self.assertAlmostEqual(times[1].ms, 1.0)
        self.assertEqual(self.calls(0), 1)

    def test_failure_in_the_middle(self):
        times = self.times(self.unsteady(0, fails_at=6), self.unsteady(1))
        self.assertEqual(times[0], FAILED)
        self.assertLess(times[1].ms, 2.0)
        self.assertEqual(self.calls(0), 6)
        self.assertGreaterEqual(self.calls(1), 10)

    def test_all_fail(self):
        times = self.times(*(self.time.runner(i, 1.0, fails_at=1) for i in range(2)))
        self.assertEqual(times, {0: FAILED, 1: FAILED})

    @config.patch(custom_op_candidate_time_limit_s=5.0)
    def test_first_call_that_takes_too_long(self):
        self.enterContext(mock.patch.object(limits, "time", self.time))
        slow = self.time.runner(0, 6000.0)
        times = self.times(slow, self.time.runner(1, 1.0))
        self.assertExpectedInline(
            times[0].reason,
            """a call of it takes longer than 5 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )
        self.assertAlmostEqual(times[1].ms, 1.0)
        self.assertEqual(self.calls(0), 1)

    @config.patch(custom_op_candidate_time_limit_s=5.0)
    def test_later_call_that_takes_too_long(self):
        slow = self.time.runner(0, *[1.0] * 5, 6000.0)
        times = self.times(slow, self.time.runner(1, 1.0))
        self.assertRegex(times[0].reason, "^a call of it takes longer than 5 s")
        self.assertAlmostEqual(times[1].ms, 1.0)
        self.assertEqual(self.calls(0), 6)

    @config.patch(custom_op_candidate_time_limit_s=None)
    def test_without_a_limit(self):
        times = self.times(self.time.runner(0, 1e9))
        self.assertAlmostEqual(times[0].ms, 1e9)

    def test_out_of_memory(self):
        errors = [
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 TiB."),
            MemoryError(),
        ]
        times = self.times(*(mock.Mock(side_effect=error) for error in errors))
        self.assertExpectedInline(
            "\n".join(times[i].reason for i in range(2)),
            """\
out of memory: OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 TiB.
out of memory: MemoryError""",
        )

    def test_memory_of_a_failure_is_free_for_the_next_candidate(self):
        held, alive = [], []

        def allocate_and_fail():
            tensor = torch.empty(8)
            held.append(weakref.ref(tensor))
            raise MemoryError

        def next_one():
            alive.extend(ref() for ref in held)
            self.time.ms += 1.0

        gc.disable()
        self.addCleanup(gc.enable)
        for limit_s in (None, 1000.0):
            with config.patch(custom_op_candidate_time_limit_s=limit_s):
                self.times(allocate_and_fail, next_one)
        self.assertEqual(len(held), 2)
        self.assertEqual(set(alive), {None})

    def test_nothing_to_time(self):
        self.assertEqual(self.times(), {})

    def test_an_interrupt_is_no_failure(self):
        def interrupted():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.times(interrupted)

    def test_counter(self):
        before = counters["inductor"]["custom_op_candidate_timings"]
        self.times(self.time.runner(0, 1.0), self.time.runner(1, 1.0, fails_at=1))
        after = counters["inductor"]["custom_op_candidate_timings"]
        self.assertEqual(after - before, 2)


if __name__ == "__main__":
    run_tests()
