# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.measuring.open_ends``: times are made up."""

import dataclasses
import math
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import ExpTestCase
from test_custom_op_autotune import made_up_times
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpConfig
from torch._inductor.range_autotune.measuring import (
    comparing,
    conclusions,
    measure_ranges,
)
from torch._inductor.range_autotune.measuring.open_ends import next_size, with_open_end
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.times import Failure, RangeTimes, Timing
from torch._inductor.range_autotune.winners import ChoiceRules


RULES = ChoiceRules(fallback=-1)
TOO_LARGE = Failure("out of memory: too large", may_pass=True, lacks_memory=True)


def of_power(ms_at_1000, power):
    """The time in ms as a function of a size."""
    return lambda size: ms_at_1000 * (size / 1000) ** power


def times_at(models, size):
    return {
        i: result if isinstance(result, Failure) else Timing(result)
        for i, model in enumerate(models)
        if (result := model(size)) is not None
    }


class TestNextSize(TestCase):
    def next_size(self, *models, sizes=(1000, 2000), rules=RULES):
        return next_size({size: times_at(models, size) for size in sizes}, rules)

    def test_nobody_catches_up(self):
        self.assertIsNone(self.next_size(of_power(1, 1), of_power(2, 1)))
        self.assertIsNone(self.next_size(of_power(1, 1), of_power(2, 2)))

    def test_twice_where_another_gets_ahead(self):
        # From 1000 * 4 on.
        size = self.next_size(of_power(1, 2), of_power(4, 1))
        self.assertAlmostEqual(size, 8000, delta=1)

    def test_at_least_twice_the_last_and_not_too_far(self):
        self.assertEqual(self.next_size(of_power(1, 2), of_power(2, 1)), 4000)
        self.assertEqual(self.next_size(of_power(0.1, 2), of_power(9, 1)), 16_000)

    def test_too_far_away(self):
        self.assertIsNone(self.next_size(of_power(0.1, 2), of_power(13, 1)))
        self.assertIsNone(self.next_size(of_power(0.1, 1.2), of_power(10, 1)))

    def test_noise_is_no_growth(self):
        models = of_power(1, 1), lambda s: 1.03 if s == 1000 else 2.01
        self.assertIsNone(self.next_size(*models))

    def test_too_short_to_grow(self):
        short = of_power(0.01, 0), of_power(0.05, 0)
        self.assertEqual(self.next_size(*short), 16_000)
        self.assertIsNone(self.next_size(of_power(0.01, 0), of_power(0.1, 0)))

    def test_sizes_too_far_apart_to_tell(self):
        far = (2, 1000)
        self.assertEqual(
            self.next_size(of_power(1, 1), of_power(2, 1), sizes=far), 2000
        )
        self.assertIsNone(self.next_size(of_power(1, 1), of_power(9, 1), sizes=far))

    def test_calls_that_would_take_too_long(self):
        self.assertEqual(self.next_size(of_power(10, 2), of_power(22, 1)), 4400)
        self.assertIsNone(self.next_size(of_power(100, 2), of_power(220, 1)))

    def test_one_candidate_or_one_size(self):
        self.assertIsNone(self.next_size(of_power(0.001, 1)))
        self.assertIsNone(self.next_size(of_power(1, 2), of_power(4, 1), sizes=(1000,)))
        self.assertIsNone(self.next_size())

    def test_who_failed_or_may_not_win_is_no_rival(self):
        failing = lambda s: Failure("broken")  # noqa: E731
        self.assertIsNone(self.next_size(of_power(1, 2), failing))
        forced = dataclasses.replace(RULES, force=True, fallback=1)
        models = of_power(1, 2), of_power(4, 1)
        self.assertIsNone(self.next_size(*models, rules=forced))

    def test_sizes_that_are_nearly_equal(self):
        """A model's own size may be one more than one that is measured."""
        noisy = lambda s: {1000: 0.010, 2000: 0.010, 2001: 0.0125}[s]  # noqa: E731
        sizes = (1000, 2000, 2001)
        models = noisy, of_power(0.05, 0)
        self.assertEqual(self.next_size(*models, sizes=sizes), 8 * 2001)
        crossing = of_power(1, 2), of_power(4, 1)
        size = self.next_size(*crossing, sizes=sizes)
        self.assertAlmostEqual(size, 8000, delta=2)
        self.assertEqual(self.next_size(*models, sizes=(2000, 2001)), 8 * 2001)
        self.assertEqual(self.next_size(*crossing, sizes=(2000, 2001)), 2 * 2001)

    def test_times_of_nothing(self):
        self.assertIsNone(self.next_size(of_power(0, 1), of_power(1, 1)))

    @settings(max_examples=200, deadline=None, derandomize=True)
    @given(
        st.lists(
            st.tuples(st.floats(1e-4, 1e3), st.floats(0, 4)), min_size=1, max_size=4
        ),
        st.integers(0, 3000),
        st.integers(1, 3000),
    )
    def test_next_ones_are_larger_and_not_much(self, models, first, more):
        sizes = (first, first + more)
        models = [of_power(*model) for model in models]
        size = self.next_size(*models, sizes=sizes)
        if size is not None:
            self.assertGreaterEqual(size, 2 * sizes[1])
            self.assertLessEqual(size, 8 * sizes[1] + 1)


class TestWithOpenEnd(TestCase):
    def extended(self, *models, rules=RULES, largest=math.inf):
        def within(sizes, near):
            self.assertIn(near, sizes)
            return (near, times_at(models, near)) if near <= largest else None

        at = {size: times_at(models, size) for size in (1000, 2000)}
        measured = RangeTimes(DimRange(1000, math.inf), at)
        found = with_open_end(measured, rules, within)
        self.assertEqual(found.sizes, measured.sizes)
        self.assertEqual({s: found.at[s] for s in at}, at)
        return [*found.at][2:]

    def test_until_another_is_ahead(self):
        self.assertEqual(self.extended(of_power(1, 2), of_power(4, 1)), [8000])

    def test_short_calls_until_they_are_not(self):
        models = of_power(0.001, 1), of_power(0.002, 1)
        self.assertEqual(self.extended(*models), [16_000, 128_000])

    def test_not_for_ever(self):
        models = of_power(0.001, 0), of_power(0.002, 0)
        self.assertEqual(self.extended(*models), [16_000, 128_000, 1_024_000])

    def test_as_far_as_can_be_measured(self):
        models = of_power(0.001, 0), of_power(0.002, 0)
        self.assertEqual(self.extended(*models, largest=20_000), [16_000])
        self.assertEqual(self.extended(of_power(1, 2), of_power(4, 1), largest=0), [])

    def test_not_where_winners_are_forced_on_each_range(self):
        rules = dataclasses.replace(RULES, merge=False)
        self.assertEqual(self.extended(of_power(1, 2), of_power(4, 1), rules=rules), [])


def quadratic(x):
    return torch.exp(x)


def linear(x):
    return torch.exp(x + 0)


def best_from_4000(size, index):
    """The first one is quadratic, the op itself twice as slow as the second."""
    return [(size / 1000) ** 2, 4 * size / 1000, 8 * size / 1000][index]


def always_best(size, index):
    """The first one, as long as calls are too short to tell how they grow."""
    return [0.001, 0.004, 0.002][index]


class TestTuning(ExpTestCase):
    """A range without an end is cut behind the sizes that stand for it."""

    def compile(self, ms, include_fallback=True, numerics_check="off", **options):
        """The winner table of a model with the op, and the sizes measured at."""
        self.register(
            self.op,
            configs=[CustomOpConfig(quadratic), CustomOpConfig(linear)],
            dispatch_on={"tensor_name": "x", "dim": 0, **options},
            split_points=[1000],
            include_fallback=include_fallback,
            numerics_check=numerics_check,
        )
        with made_up_times(ms) as sizes:
            table = self.winner_table(1500, (2, 1001, 2002, 10_000, 20_000))
        return table, sizes

    def test_where_another_gets_ahead(self):
        table, sizes = self.compile(best_from_4000)
        self.assertEqual([s.value.index for s in table], [0, 1])
        self.assertGreater(table[1].sizes.start, 4000 / 1.5)
        self.assertLess(table[1].sizes.start, 4000 * 1.5)
        self.assertEqual(table[1].sizes.end, math.inf)
        self.assertGreater(max(sizes), 4000)

    def test_not_where_its_size_is_told(self):
        table, sizes = self.compile(best_from_4000, range_upper_bound=2002)
        self.assertEqual([s.value.index for s in table], [0])
        self.assertEqual(max(sizes), 2002)

    def test_who_fails_there_wins_before(self):
        def fails_from_3000(size, index):
            if index == 0 and size > 3000:
                return TOO_LARGE
            return best_from_4000(size, index)

        with self.assertLogs("torch._inductor.kernel.custom_op", "INFO") as logs:
            table, _ = self.compile(fails_from_3000)
        self.assertEqual([s.value.index for s in table], [0, 1])
        self.assertGreater(table[1].sizes.start, 2002)
        self.assertLessEqual(table[1].sizes.start, 3001)
        said = [r.getMessage() for r in logs.records if "too large" in r.getMessage()]
        self.assertIn("candidate 'quadratic' does not win at size", said[0])
        self.assertFalse([r for r in logs.records if r.levelname == "WARNING"])

    def test_who_takes_too_long_there_wins_before(self):
        def slow(size, index):
            if index == 0 and size > 3000:
                return Failure("takes too long", may_pass=True, everywhere=True)
            return best_from_4000(size, index)

        table, _ = self.compile(slow)
        self.assertEqual([s.value.index for s in table], [0, 1])

    @parametrize("check", ("drop", "warn"))
    def test_whose_results_differ_there_wins_before(self, check):
        """A later process finds that, too."""

        def find(actual, expected):
            return "it differs" if len(actual[0]) > 3000 and differs else None

        differs = True
        with (
            config.patch(fx_graph_cache=False),
            mock.patch.object(comparing, "find_mismatch", find),
        ):
            first, _ = self.compile(always_best, numerics_check=check)
            differs = False
            with mock.patch.object(
                measure_ranges, "_measure_point", side_effect=AssertionError
            ):
                second, _ = self.compile(always_best, numerics_check=check)
        self.assertEqual(second, first)
        winners = [s.value.index for s in first]
        self.assertEqual(winners, [0, -1] if check == "drop" else [0])

    def test_not_where_tensors_are_too_long_for_32_bits(self):
        with mock.patch.object(conclusions, "has_long_tensor", lambda *_: True):
            table, sizes = self.compile(best_from_4000)
        self.assertEqual([s.value.index for s in table], [0])
        self.assertEqual(max(sizes), 2002)

    @parametrize("who", ("first", "all", "all but the op"))
    def test_a_later_process_measures_nothing(self, who):
        include_fallback = who != "all but the op"

        def fails_from_3000(size, index):
            if size > 3000 and (index == 0 or who != "first"):
                return TOO_LARGE
            return best_from_4000(size, index)

        with config.patch(fx_graph_cache=False):
            first, _ = self.compile(fails_from_3000, include_fallback=include_fallback)
            with mock.patch.object(
                measure_ranges, "_measure_point", side_effect=AssertionError
            ):
                second, _ = self.compile(
                    fails_from_3000, include_fallback=include_fallback
                )
        self.assertEqual(second, first)
        winners = [s.value.index for s in first]
        self.assertEqual(winners, [0, 1] if who == "first" else [0])


instantiate_parametrized_tests(TestTuning)


if __name__ == "__main__":
    run_tests()
