# Owner(s): ["module: inductor"]
"""Winners that follow from made-up times, and how times are taken from made-up runners."""

import dataclasses
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

from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.range_autotune import limits, measure
from torch._inductor.range_autotune.measure import (
    as_good_as_best,
    ChoiceRules,
    choose_winners,
    Failure,
    NOISE,
    RangeTimes,
    slowdowns,
    time_candidates,
    Timing,
)
from torch._inductor.range_autotune.ranges import DimRange


FALLBACK = -1
RULES = ChoiceRules(FALLBACK)
FAILED = Failure("RuntimeError: broken")
EXAMPLES = settings(max_examples=60, deadline=None)


def row(start, end, *at_sizes):
    """A range measured at as many sizes as there are dicts: ms by candidate."""
    at = {
        start + i: {index: as_time(value) for index, value in times.items()}
        for i, times in enumerate(at_sizes)
    }
    return RangeTimes(DimRange(start, end), at)


def as_time(value):
    return Timing(float(value)) if isinstance(value, (int, float)) else value


def winners(*rows, **rules):
    """The winner table, as text."""
    segments = choose_winners(rows, dataclasses.replace(RULES, **rules))
    return ", ".join(f"{s.sizes}: {s.winner}" for s in segments)


def winner_of(times, **rules):
    """The winner of one range from the times at its sizes."""
    at_sizes = times if isinstance(times, list) else [times]
    (segment,) = choose_winners(
        [row(0, 8, *at_sizes)], dataclasses.replace(RULES, **rules)
    )
    return segment.winner


class TestWinnerOfARange(TestCase):
    def test_fastest(self):
        self.assertEqual(winner_of({0: 2.0, 1: 1.0, FALLBACK: 3.0}), 1)
        self.assertEqual(winner_of({0: 2.0, 1: 3.0, FALLBACK: 1.0}), FALLBACK)

    def test_slowdowns_are_geometric_means_over_sizes(self):
        at = row(0, 8, {0: 1.0, 1: 4.0}, {0: 9.0, 1: 1.0}).at
        self.assertEqual(slowdowns(at), {0: 3.0, 1: 2.0})

    def test_a_large_size_counts_no_more_than_a_small_one(self):
        small, large = {0: 0.01, 1: 0.03}, {0: 120.0, 1: 100.0}
        self.assertEqual(winner_of([small, large]), 0)

    def test_fallback_wins_where_nothing_was_measured(self):
        self.assertEqual(winner_of([{}]), FALLBACK)
        self.assertEqual(winners(row(0, 8)), "[0, 8): -1")

    def test_one_that_failed_at_one_size_is_out(self):
        times = [{0: 1.0, 1: 2.0}, {0: FAILED, 1: 2.0}]
        self.assertEqual(winner_of(times), 1)
        self.assertEqual(slowdowns(row(0, 8, *times).at), {1: math.sqrt(2)})

    def test_one_that_was_not_measured_at_one_size_is_out(self):
        self.assertEqual(winner_of([{0: 1.0, 1: 2.0}, {1: 2.0}]), 1)

    def test_all_failed(self):
        self.assertEqual(winner_of({0: FAILED, 1: FAILED, FALLBACK: FAILED}), FALLBACK)
        self.assertEqual(slowdowns(row(0, 8, {0: FAILED}).at), {})

    def test_fallback_failed(self):
        self.assertEqual(winner_of({0: 2.0, FALLBACK: FAILED}), 0)
        self.assertEqual(winner_of({0: 2.0, FALLBACK: FAILED}, min_speedup=1.5), 0)


@instantiate_parametrized_tests
class TestRules(TestCase):
    @parametrize(
        "times,expected",
        [
            ({0: 1.0, FALLBACK: 1.1}, FALLBACK),
            ({0: 1.0, FALLBACK: 1.3}, 0),
            ({0: 1.0, 1: 1.3, FALLBACK: 1.5}, 0),
            ({0: 1.0, FALLBACK: 0.5}, FALLBACK),
        ],
    )
    def test_min_speedup(self, times, expected):
        self.assertEqual(winner_of(times, min_speedup=1.2), expected)

    def test_min_speedup_counts_over_all_sizes(self):
        times = [{0: 1.0, FALLBACK: 1.1}, {0: 1.0, FALLBACK: 2.0}]
        self.assertEqual(winner_of(times, min_speedup=1.2), 0)

    def test_noise_does_not_help_over_min_speedup(self):
        good = as_good_as_best(
            row(0, 8, {0: 1.0, 1: 1.02, FALLBACK: 1.21}),
            dataclasses.replace(RULES, min_speedup=1.2),
        )
        self.assertEqual(list(good), [0])

    def test_force_implementations(self):
        times = {0: 3.0, 1: 2.0, FALLBACK: 1.0}
        self.assertEqual(winner_of(times, force=True), 1)
        self.assertEqual(winner_of(times, force=True, min_speedup=1.5), 1)

    def test_force_implementations_of_which_none_is_left(self):
        self.assertEqual(winner_of({0: FAILED, FALLBACK: 1.0}, force=True), FALLBACK)

    def test_force_fallback(self):
        self.assertEqual(winner_of({0: 1.0, FALLBACK: 9.0}, force=False), FALLBACK)
        self.assertEqual(winner_of({0: 1.0, FALLBACK: FAILED}, force=False), FALLBACK)

    @parametrize("over,expected", [(0.5, [0, 1]), (1.5, [0])])
    def test_as_good_as_best_is_within_noise(self, over, expected):
        times = {0: 1.0, 1: 1.0 + over * NOISE, FALLBACK: 9.0}
        self.assertEqual(list(as_good_as_best(row(0, 8, times), RULES)), expected)

    def test_uncertain_times_have_more_noise(self):
        certain = {0: Timing(1.0), 1: Timing(1.05)}
        self.assertEqual(list(as_good_as_best(row(0, 8, certain), RULES)), [0])
        uncertain = {0: Timing(1.0, error=0.04), 1: Timing(1.05, error=0.04)}
        self.assertEqual(list(as_good_as_best(row(0, 8, uncertain), RULES)), [0, 1])

    def test_no_uncertainty_makes_twice_the_time_as_good(self):
        chaos = {0: Timing(1.0, error=9.0), 1: Timing(2.0, error=9.0)}
        self.assertEqual(list(as_good_as_best(row(0, 8, chaos), RULES)), [0])

    def test_slowdowns_of_the_good_ones(self):
        good = as_good_as_best(row(0, 8, {0: 1.0, 1: 1.02}), RULES)
        self.assertEqual(good, {0: 1.0, 1: 1.02})

    def test_neighbours_are_fused_where_that_gains_enough(self):
        apart = {-3: 0}
        for speedup, expected in ((1.1, 0), (1.2, 0), (1.3, -3)):
            best = winner_of({0: 1.0, -3: 1.2}, apart=apart, fusion_speedup=speedup)
            self.assertEqual(best, expected, msg=f"threshold {speedup}")

    def test_neighbours_apart_win_if_fused_there_is_nothing(self):
        rules = {"apart": {-3: 0}, "fusion_speedup": 1.2}
        self.assertEqual(winner_of({0: FAILED, -3: 5.0}, **rules), -3)
        self.assertEqual(winner_of({0: 5.0, -3: FAILED}, **rules), 0)

    def test_neighbours_of_plain_lowering_apart_are_no_implementation(self):
        times = {0: 3.0, -2: 2.0, -3: 1.0}
        rules = {"plain": -2, "apart": {-3: -2}, "fusion_speedup": 1.2}
        self.assertEqual(winner_of(times, **rules), -3)
        self.assertEqual(winner_of(times, force=True, **rules), 0)

    def test_either_form_may_gain_enough_from_fusing(self):
        rules = {"apart": {-3: 0}, "forms": {-4: 0}, "fusion_speedup": 1.2}
        self.assertEqual(winner_of({0: 1.1, -4: 1.0, -3: 1.3}, **rules), -4)
        self.assertEqual(winner_of({0: 1.0, -4: 1.1, -3: 1.3}, **rules), 0)
        self.assertEqual(winner_of({0: 1.1, -4: 1.0, -3: 1.1}, **rules), -3)
        self.assertEqual(winner_of({0: FAILED, -4: 1.0, -3: 1.3}, **rules), -4)

    def test_plain_lowering_as_written_is_no_implementation(self):
        rules = {"plain": -2, "forms": {-4: -2}}
        times = {0: 3.0, -2: 2.0, -4: 1.0}
        self.assertEqual(winner_of(times, **rules), -4)
        self.assertEqual(winner_of(times, force=True, **rules), 0)


class TestWinnerTable(TestCase):
    def test_several_winners(self):
        self.assertExpectedInline(
            winners(
                row(0, 512, {0: 1, 1: 2}),
                row(512, 2048, {0: 2, 1: 1}),
                row(2048, math.inf, {0: 1, 1: 2}),
            ),
            """[0, 512): 0, [512, 2048): 1, [2048, inf): 0""",
        )

    def test_neighbours_with_one_winner_merge(self):
        rows = [
            row(0, 512, {0: 1, 1: 2}),
            row(512, 2048, {0: 1, 1: 2}),
            row(2048, math.inf, {0: 2, 1: 1}),
        ]
        self.assertExpectedInline(winners(*rows), """[0, 2048): 0, [2048, inf): 1""")
        self.assertExpectedInline(
            winners(*rows, merge=False),
            """[0, 512): 0, [512, 2048): 0, [2048, inf): 1""",
        )

    def test_ranges_with_a_gap_between_them_do_not_merge(self):
        self.assertExpectedInline(
            winners(row(0, 512, {0: 1, 1: 2}), row(1024, 2048, {0: 1, 1: 2})),
            """[0, 512): 0, [1024, 2048): 0""",
        )

    def test_a_change_that_gains_less_than_the_noise_is_none(self):
        rows = [row(0, 8, {0: 1.0, 1: 2.0}), row(8, 16, {0: 1.01, 1: 1.0})]
        self.assertExpectedInline(winners(*rows), """[0, 16): 0""")
        self.assertExpectedInline(
            winners(*rows, merge=False), """[0, 8): 0, [8, 16): 1"""
        )

    def test_a_change_that_gains_at_one_size_is_one(self):
        first = row(0, 8, {0: 1.0, 1: 2.0})
        at_one = [{0: 0.95, 1: 1.0}, {0: 1.1, 1: 1.0}]
        self.assertExpectedInline(
            winners(first, row(8, 16, *at_one)), """[0, 8): 0, [8, 16): 1"""
        )
        at_none = [{0: 0.99, 1: 1.0}, {0: 1 + 0.9 * NOISE, 1: 1.0}]
        self.assertExpectedInline(
            winners(first, row(8, 16, *at_none)), """[0, 16): 0"""
        )

    def test_a_gain_within_the_error_of_times_is_none(self):
        def times(error):
            return [{0: Timing(0.98, error), 1: 1.0}, {0: Timing(1.05, error), 1: 1.0}]

        first = row(0, 8, {0: 1.0, 1: 2.0})
        for error, expected in (
            (0.01, "[0, 8): 0, [8, 16): 1"),
            (0.055, "[0, 16): 0"),
        ):
            self.assertEqual(winners(first, row(8, 16, *times(error))), expected)

    def test_a_change_that_gains_less_than_the_noise_is_one_behind_a_gap(self):
        self.assertExpectedInline(
            winners(row(0, 8, {0: 1.0, 1: 2.0}), row(9, 16, {0: 1.01, 1: 1.0})),
            """[0, 8): 0, [9, 16): 1""",
        )

    def test_the_first_of_a_run_takes_the_winner_of_the_rest(self):
        self.assertExpectedInline(
            winners(row(0, 8, {0: 1.0, 1: 1.01}), row(8, 16, {0: 2.0, 1: 1.0})),
            """[0, 16): 1""",
        )

    def test_a_run_s_winner_is_the_best_over_all_its_ranges(self):
        rows = [{0: 1.0, 1: 1.01}, {0: 1.02, 1: 1.0}]
        for first, second in (rows, rows[::-1]):
            self.assertExpectedInline(
                winners(row(0, 8, first), row(8, 16, second)), """[0, 16): 1"""
            )

    def test_a_chain_of_small_differences_does_not_carry_a_bad_winner(self):
        table = winners(
            row(0, 8, {0: 1.0, 1: 1.02, 2: 1.5}),
            row(8, 16, {0: 1.02, 1: 1.0, 2: 1.02}),
            row(16, 24, {0: 1.5, 1: 1.02, 2: 1.0}),
            row(24, 32, {0: 2.0, 1: 1.5, 2: 1.0}),
        )
        self.assertExpectedInline(table, """[0, 24): 1, [24, 32): 2""")

    def test_one_that_failed_in_a_range_does_not_win_the_run(self):
        self.assertExpectedInline(
            winners(
                row(0, 8, {0: 1.0, 1: 1.01}),
                row(8, 16, {0: FAILED, 1: 1.0}),
            ),
            """[0, 16): 1""",
        )
        self.assertExpectedInline(
            winners(row(0, 8, {0: 1.0, 1: 2.0}), row(8, 16, {0: FAILED, 1: 1.0})),
            """[0, 8): 0, [8, 16): 1""",
        )

    def test_one_that_does_not_compete_in_a_range_does_not_win_it(self):
        self.assertExpectedInline(
            winners(row(0, 8, {0: 1.0}), row(8, 16, {1: 1.0, FALLBACK: 1.01})),
            """[0, 8): 0, [8, 16): 1""",
        )

    def test_without_ranges(self):
        self.assertEqual(choose_winners([], RULES), ())


INDICES = [FALLBACK, 0, 1, 2]
TIMINGS = st.builds(
    Timing, st.floats(0.01, 100) | st.sampled_from([1.0, 1.01, 1.02]), st.floats(0, 0.2)
)


@st.composite
def measured_tables(draw):
    """Touching and separate ranges, each at up to three sizes, with failures."""
    edges = sorted(draw(st.sets(st.integers(0, 100), min_size=2, max_size=6)))
    table = []
    for start, end in itertools.pairwise([*edges, math.inf]):
        competing = draw(st.sets(st.sampled_from(INDICES)))
        times = {index: TIMINGS | st.just(FAILED) for index in sorted(competing)}
        if draw(st.integers(0, 4)):
            at_sizes = st.lists(st.fixed_dictionaries(times), max_size=3)
            table.append(row(start, end, *draw(at_sizes)))
    return table


RULE_SETS = st.builds(
    ChoiceRules,
    st.just(FALLBACK),
    st.sampled_from([0.5, 1.0, 1.2]),
    st.sampled_from([None, True, False]),
    st.booleans(),
)


def winner_in(segments, measured):
    """The only winner of a range."""
    (winner,) = {s.winner for s in segments if s.sizes.overlaps(measured.sizes)}
    return winner


class TestChoiceProperties(TestCase):
    @EXAMPLES
    @given(measured_tables(), RULE_SETS)
    def test_segments_hold_the_sizes_that_the_ranges_hold(self, table, rules):
        segments = choose_winners(table, rules)
        for size in range(102):
            in_ranges = sum(size in measured.sizes for measured in table)
            self.assertEqual(sum(size in s.sizes for s in segments), in_ranges)

    @EXAMPLES
    @given(measured_tables(), RULE_SETS)
    def test_winner_was_timed_at_every_size_or_is_the_fallback(self, table, rules):
        segments = choose_winners(table, rules)
        for measured in table:
            winner = winner_in(segments, measured)
            times = [at.get(winner) for at in measured.at.values()]
            timed = times and all(isinstance(t, Timing) for t in times)
            self.assertTrue(timed or winner == FALLBACK)

    @EXAMPLES
    @given(measured_tables(), RULE_SETS)
    def test_winner_is_as_good_as_the_best_of_each_range(self, table, rules):
        segments = choose_winners(table, rules)
        for measured in table:
            self.assertIn(
                winner_in(segments, measured), as_good_as_best(measured, rules)
            )

    @EXAMPLES
    @given(measured_tables())
    def test_winner_loses_no_more_than_noise(self, table):
        segments = choose_winners(table, RULES)
        for measured in table:
            scores = slowdowns(measured.at)
            if scores:
                lost = scores[winner_in(segments, measured)] / min(scores.values())
                self.assertLess(lost, 1.2)

    @EXAMPLES
    @given(measured_tables())
    def test_without_merging_each_range_has_its_best(self, table):
        rules = dataclasses.replace(RULES, merge=False)
        segments = choose_winners(table, rules)
        self.assertEqual([s.sizes for s in segments], [m.sizes for m in table])
        for measured, segment in zip(table, segments, strict=True):
            scores = slowdowns(measured.at)
            if scores:
                self.assertEqual(scores[segment.winner], min(scores.values()))

    @EXAMPLES
    @given(measured_tables(), RULE_SETS)
    def test_merging_makes_no_more_segments(self, table, rules):
        merged, apart = (
            choose_winners(table, dataclasses.replace(rules, merge=merge))
            for merge in (True, False)
        )
        self.assertLessEqual(len(merged), len(apart))

    @EXAMPLES
    @given(measured_tables(), RULE_SETS)
    def test_forced_winners(self, table, rules):
        segments = choose_winners(table, rules)
        for measured in table:
            winner = winner_in(segments, measured)
            if rules.force is False:
                self.assertEqual(winner, FALLBACK)
            if rules.force is True and slowdowns(measured.at).keys() - {FALLBACK}:
                self.assertNotEqual(winner, FALLBACK)

    @EXAMPLES
    @given(measured_tables(), st.sampled_from([1.05, 1.5]))
    def test_implementations_win_by_min_speedup(self, table, min_speedup):
        rules = dataclasses.replace(RULES, min_speedup=min_speedup)
        segments = choose_winners(table, rules)
        for measured in table:
            scores, winner = slowdowns(measured.at), winner_in(segments, measured)
            if FALLBACK in scores and winner != FALLBACK:
                speedup = scores[FALLBACK] / scores[winner]
                self.assertGreaterEqual(speedup, min_speedup * (1 - 1e-9))

    @EXAMPLES
    @given(measured_tables(), RULE_SETS)
    def test_the_unit_of_time_does_not_matter(self, table, rules):
        def in_other_unit(t):
            return (
                dataclasses.replace(t, ms=t.ms * 1024) if isinstance(t, Timing) else t
            )

        other = [
            RangeTimes(
                m.sizes,
                {
                    size: {i: in_other_unit(t) for i, t in at.items()}
                    for size, at in m.at.items()
                },
            )
            for m in table
        ]
        self.assertEqual(choose_winners(other, rules), choose_winners(table, rules))


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

    def synchronize(self):
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

    def test_more_samples_make_a_time_more_certain(self):
        few, many = ([1.0 + 0.5 * i / n for i in range(n)] for n in (5, 50))
        times = [measure.timing_of(samples) for samples in (few, many)]
        self.assertEqual([round(time.error, 6) for time in times], [0.1, 0.01])

    def test_on_a_cpu_a_lucky_sample_decides_nothing(self):
        lucky = self.time.runner(0, 2.0, 2.0, 1.0, *(2.0 + 0.1 * i for i in range(20)))
        times = self.times(lucky, self.time.runner(1, 1.2))
        self.assertLess(times[1].ms, times[0].ms)
        samples = [1.0, 2.0, 3.0, 4.0, 5.0]
        self.assertEqual(measure.timing_of(samples), Timing(1.0, 1.0))
        self.assertEqual(measure.usual_timing_of(samples), Timing(2.0, 0.5))
        self.assertEqual(measure.usual_timing_of([2.0]), Timing(2.0))
        self.assertEqual(measure.usual_timing_of([0.0, 0.0]), Timing(0.0))

    def test_what_is_slow_now_and_then_is_certain_where_it_is_not(self):
        samples = [1.0] * 4 + [2.0] * 3
        self.assertEqual(measure.timing_of(samples), Timing(1.0))
        self.assertEqual(measure.timing_of([2.0, 1.0]), Timing(1.0, 1.0))
        self.assertEqual(measure.timing_of([2.0]), Timing(2.0))
        self.assertEqual(measure.timing_of([0.0, 0.0]), Timing(0.0))

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
        self.assertEqual(times[0], Failure("RuntimeError: broken"))
        self.assertAlmostEqual(times[1].ms, 1.0)
        self.assertEqual(self.calls(0), 1)

    def test_failure_in_the_middle(self):
        times = self.times(self.unsteady(0, fails_at=6), self.unsteady(1))
        self.assertEqual(times[0], Failure("RuntimeError: broken"))
        self.assertLess(times[1].ms, 2.0)
        self.assertEqual(self.calls(0), 6)
        self.assertGreaterEqual(self.calls(1), 10)

    def test_all_fail(self):
        times = self.times(*(self.time.runner(i, 1.0, fails_at=1) for i in range(2)))
        self.assertEqual(times, {0: FAILED, 1: FAILED})

    def test_first_call_that_takes_too_long(self):
        self.enterContext(mock.patch.object(limits, "time", self.time))
        slow = self.time.runner(0, 6000.0)
        times = self.times(slow, self.time.runner(1, 1.0), limit_s=5.0)
        self.assertExpectedInline(
            times[0].reason,
            """a call of it takes longer than 5 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )
        self.assertAlmostEqual(times[1].ms, 1.0)
        self.assertEqual(self.calls(0), 1)

    def test_later_call_that_takes_too_long(self):
        slow = self.time.runner(0, *[1.0] * 5, 6000.0)
        times = self.times(slow, self.time.runner(1, 1.0), limit_s=5.0)
        self.assertRegex(times[0].reason, "^a call of it takes longer than 5 s")
        self.assertAlmostEqual(times[1].ms, 1.0)
        self.assertEqual(self.calls(0), 6)

    def test_without_a_limit(self):
        times = self.times(self.time.runner(0, 1e9), limit_s=None)
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
            self.times(allocate_and_fail, next_one, limit_s=limit_s)
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
