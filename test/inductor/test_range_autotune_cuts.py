# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.measuring.cuts`` and ``sizes.probes``: times are made up."""

import dataclasses
import math
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st
from range_autotune_testing import ExpTestCase
from test_custom_op_autotune import made_up_times
from torch._inductor.test_case import run_tests, TestCase

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.measuring import measure_ranges
from torch._inductor.range_autotune.measuring.cuts import cut
from torch._inductor.range_autotune.ranges import (
    DimRange,
    representative_sizes,
    Segment,
)
from torch._inductor.range_autotune.sizes.probes import crossing, widest
from torch._inductor.range_autotune.times import Failure, RangeTimes, Timing
from torch._inductor.range_autotune.winners import ChoiceRules, choose_winners


RULES = ChoiceRules(fallback=-1)
# No time is longer than this times that of the best, at a size next to a cut.
NEAR_LOSS = 1.5


class Machine:
    """Times of candidates as functions of a size, and the sizes that were measured."""

    def __init__(self, *models, error=0.0):
        self.models = models
        self.error = error
        self.probed = []

    def times(self, size):
        return {
            i: Timing(float(ms), self.error)
            for i, model in enumerate(self.models)
            if (ms := model(size)) is not None
        }

    def within(self, sizes, near):
        assert near in sizes, (near, sizes)
        self.probed.append(near)
        return near, self.times(near)

    def measured(self, sizes):
        return RangeTimes(
            sizes, {s: self.times(s) for s in representative_sizes(sizes)}
        )

    def cut(self, sizes, rules=RULES):
        return cut(self.measured(sizes), rules, self.within)


def constant(ms):
    return lambda size: ms


def per_row(us):
    return lambda size: us * size


class TestMinSpeedup(TestCase):
    """An implementation wins where it is so many times as fast as the op, at each size."""

    def winners(self, *models, min_speedup):
        rules = ChoiceRules(fallback=0, min_speedup=min_speedup)
        cut_range = Machine(*models).cut(DimRange(2, 400), rules)
        return choose_winners(cut_range, rules)

    def test_where_it_is_fast_enough(self):
        first, last = self.winners(constant(10), per_row(0.0041), min_speedup=9)
        self.assertEqual((first.value, last.value), (1, 0))
        self.assertTrue(200 < last.sizes.start <= 275, last)

    def test_faster_one_is_not_hidden(self):
        models = (constant(10), per_row(0.0041), constant(1.0))
        first, last = self.winners(*models, min_speedup=9)
        self.assertEqual((first.value, last.value), (1, 2))
        self.assertTrue(200 < last.sizes.start <= 275, last)


class TestCut(TestCase):
    def test_one_winner_needs_no_cut(self):
        machine = Machine(constant(1), constant(2))
        (piece,) = machine.cut(DimRange(16, 512))
        self.assertEqual(piece.sizes, DimRange(16, 512))
        self.assertEqual(machine.probed, [])

    def test_no_other_is_close(self):
        machine = Machine(constant(1), constant(2))
        self.assertEqual(len(machine.cut(DimRange(1, 100_000))), 1)
        self.assertEqual(machine.probed, [])

    def test_another_is_better_between_sizes_that_agree(self):
        machine = Machine(constant(1), lambda s: 0.5 if 10 < s < 200 else 1.1)
        pieces = machine.cut(DimRange(1, 1000))
        best = [s.value for s in choose_winners(pieces, RULES)]
        self.assertEqual(best, [0, 1, 0])

    def test_another_is_close_but_never_better(self):
        machine = Machine(constant(1), constant(1.1))
        self.assertEqual(len(machine.cut(DimRange(1, 1000))), 1)
        self.assertEqual(sorted(machine.probed), [4, 22, 104])

    def test_who_may_not_win_is_no_rival(self):
        machine = Machine(constant(1), constant(1.1))
        forced = dataclasses.replace(RULES, force=True, fallback=1)
        self.assertEqual(len(machine.cut(DimRange(1, 1000), forced)), 1)
        self.assertEqual(machine.probed, [])

    def test_where_lines_cross(self):
        machine = Machine(constant(100), per_row(1))
        low, high = machine.cut(DimRange(1, 1000))
        self.assertEqual((low.sizes.start, high.sizes.end), (1, 1000))
        self.assertEqual(low.sizes.end, high.sizes.start)
        self.assertGreater(low.sizes.end, 100 / 1.5)
        self.assertLess(low.sizes.end, 100 * 1.5)
        winners = choose_winners([low, high], RULES)
        self.assertEqual(winners, (Segment(low.sizes, 1), Segment(high.sizes, 0)))

    def test_a_cut_is_where_times_are_expected_to_cross(self):
        within = mock.Mock(return_value=None)
        for lead, deficit, start in ((1.5, 1.5, 111), (3.0, 1.5, 116), (1.5, 9.0, 104)):
            times = {
                100: {0: Timing(1.0), 1: Timing(lead)},
                121: {0: Timing(deficit), 1: Timing(1.0)},
            }
            _, high = cut(RangeTimes(DimRange(1, 999), times), RULES, within)
            self.assertEqual(high.sizes.start, start)

    def test_crossings(self):
        self.assertEqual(crossing(1, 2, 0.0, 1.0), 2)
        self.assertEqual(crossing(10, 20, 0.0, 0.0), 15)
        self.assertEqual(crossing(10, 20, 0.0, 1.0), 11)
        self.assertEqual(crossing(10, 20, 1.0, 0.0), 20)
        self.assertEqual(crossing(10, 20, math.inf, 1.0), 20)
        self.assertEqual(crossing(10, 20, 1.0, math.inf), 11)
        self.assertEqual(crossing(10, 20, math.inf, math.inf), 15)

    def test_two_cuts(self):
        machine = Machine(per_row(1), lambda s: 50 + s / 2, lambda s: 300 + s / 20)
        pieces = machine.cut(DimRange(1, 10_000))
        best = [s.value for s in choose_winners(pieces, RULES)]
        self.assertEqual(best, [0, 1, 2])

    def test_without_an_end(self):
        machine = Machine(constant(1500), per_row(1))
        sizes = DimRange(1000, math.inf)
        pieces = cut(machine.measured(sizes), RULES, machine.within)
        self.assertEqual(len(pieces), 2)
        self.assertEqual(pieces[-1].sizes.end, math.inf)

    def test_noise_is_no_reason(self):
        for error, pieces in ((0.0, 2), (0.04, 1)):
            models = constant(1.05), lambda s: 1.0 if s < 100 else 1.1
            machine = Machine(*models, error=error)
            self.assertEqual(len(machine.cut(DimRange(1, 1000))), pieces)

    def test_uncertain_times_are_no_excuse(self):
        machine = Machine(constant(1.2), lambda s: 1.0 if s < 100 else 1.4, error=0.2)
        self.assertEqual(len(machine.cut(DimRange(1, 1000))), 2)

    def test_gaps_from_no_size_at_all(self):
        self.assertEqual(widest([(0, 3), (4, 8)], ()), (0, 3))
        self.assertEqual(widest([(0, 3), (4, 16)], ()), (4, 16))

    def test_one_size_is_no_range(self):
        times = {0: Timing(1.0)}
        for at in ({}, {None: times}, {7: times}):
            measured = RangeTimes(DimRange(1, 100), at)
            self.assertEqual(cut(measured, RULES, None), [measured])

    def test_not_where_winners_are_forced_on_each_range(self):
        machine = Machine(constant(100), per_row(1))
        rules = dataclasses.replace(RULES, merge=False)
        self.assertEqual(len(machine.cut(DimRange(1, 1000), rules)), 1)

    def test_nothing_between_can_be_measured(self):
        machine = Machine(constant(100), per_row(1))
        for nothing in (None, (40, {})):
            asked = mock.Mock(return_value=nothing)
            pieces = cut(machine.measured(DimRange(1, 1000)), RULES, asked)
            self.assertEqual(len(pieces), 2)
            asked.assert_called_once()

    def test_one_that_fails_on_the_way_is_out(self):
        machine = Machine(constant(100), per_row(1))
        within = machine.within

        def failing(sizes, near):
            size, times = within(sizes, near)
            return size, {**times, 1: Failure("broken")}

        pieces = cut(machine.measured(DimRange(1, 1000)), RULES, failing)
        alive = [
            RangeTimes(p.sizes, {s: {0: t[0]} for s, t in p.at.items()}) for p in pieces
        ]
        (segment,) = choose_winners(alive, RULES)
        self.assertEqual(segment, Segment(DimRange(1, 1000), 0))

    @example(lines=[(0.0, 3.0), (2.0, 2.0)], start=1, length=4)
    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(
        st.lists(
            st.tuples(st.floats(0, 1000), st.floats(0.001, 10)), min_size=1, max_size=4
        ),
        st.integers(1, 500),
        st.integers(2, 5000),
    )
    def test_pieces_are_the_range_and_their_winners_good(self, lines, start, length):
        models = [lambda s, a=a, b=b: a + b * s + 1 for a, b in lines]
        machine = Machine(*models)
        sizes = DimRange(start, start + length)
        pieces = machine.cut(sizes)
        edges = [piece.sizes.start for piece in pieces] + [pieces[-1].sizes.end]
        self.assertEqual(edges, sorted({sizes.start, *edges, sizes.end}))
        self.assertLessEqual(len(machine.probed), 8)
        for segment in choose_winners(pieces, RULES):
            for size in {segment.sizes.start, int(segment.sizes.last)}:
                best = min(model(size) for model in models)
                self.assertLess(models[segment.value](size), best * NEAR_LOSS)


def fast_below_100(x):
    return torch.exp(x)


def fast_from_100(x):
    return torch.exp(x + 0)


class TestCutRange(ExpTestCase):
    def setUp(self):
        super().setUp()
        impls = [fast_below_100, fast_from_100]
        self.register(
            self.op, configs=[CustomOpRangeConfig("x", 0, [(0, 1024)], impls)]
        )

    def compile(self):
        """The winner table of a model with the op."""
        with made_up_times(lambda s, i: 1.0 if i == int(s >= 100) else 2.0):
            return self.winner_table(300, (2, 99, 100, 1000))

    def test_one_range_two_winners(self):
        with self.assertLogs("torch._inductor.kernel.custom_op", "INFO") as logs:
            table = self.compile()
        low, high = [s for s in table if s.value.index >= 0]
        self.assertEqual([low.value.index, high.value.index], [0, 1])
        self.assertGreater(low.sizes.end, 66)
        self.assertLess(low.sizes.end, 150)
        said = "\n".join(record.getMessage() for record in logs.records)
        self.assertIn(f"Range [0, 1024) is cut at {low.sizes.end}", said)
        self.assertIn(f"Range [0, {low.sizes.end}): Selected implementation", said)

    def test_a_later_process_measures_nothing(self):
        with config.patch(fx_graph_cache=False):
            first = self.compile()
            with mock.patch.object(
                measure_ranges, "_measure_point", side_effect=AssertionError
            ):
                second = self.compile()
        self.assertEqual(second, first)
        self.assertGreater(len(first), 1)


if __name__ == "__main__":
    run_tests()
