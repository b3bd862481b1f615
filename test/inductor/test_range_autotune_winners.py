# Owner(s): ["module: inductor"]
"""Winners that follow from made-up times."""

import dataclasses
import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.times import Failure, RangeTimes, Timing
from torch._inductor.range_autotune.winners import (
    as_good_as_best,
    ChoiceRules,
    choose_winners,
    NOISE,
    slowdowns,
)


FALLBACK = -1
RULES = ChoiceRules(FALLBACK)
FAILED = Failure("RuntimeError: broken")
EXAMPLES = settings(max_examples=60, deadline=None, derandomize=True)


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
    return ", ".join(f"{s.sizes}: {s.value}" for s in segments)


def winner_of(times, **rules):
    """The winner of one range from the times at its sizes."""
    at_sizes = times if isinstance(times, list) else [times]
    (segment,) = choose_winners(
        [row(0, 8, *at_sizes)], dataclasses.replace(RULES, **rules)
    )
    return segment.value


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
            row(0, 8, {0: 1.0, 1: 1.02, FALLBACK: 1.21}).at,
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
        self.assertEqual(list(as_good_as_best(row(0, 8, times).at, RULES)), expected)

    def test_uncertain_times_have_more_noise(self):
        certain = {0: Timing(1.0), 1: Timing(1.05)}
        self.assertEqual(list(as_good_as_best(row(0, 8, certain).at, RULES)), [0])
        uncertain = {0: Timing(1.0, error=0.04), 1: Timing(1.05, error=0.04)}
        self.assertEqual(list(as_good_as_best(row(0, 8, uncertain).at, RULES)), [0, 1])

    def test_no_uncertainty_makes_twice_the_time_as_good(self):
        chaos = {0: Timing(1.0, error=9.0), 1: Timing(2.0, error=9.0)}
        self.assertEqual(list(as_good_as_best(row(0, 8, chaos).at, RULES)), [0])

    def test_slowdowns_of_the_good_ones(self):
        good = as_good_as_best(row(0, 8, {0: 1.0, 1: 1.02}).at, RULES)
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
    (winner,) = {s.value for s in segments if s.sizes.overlaps(measured.sizes)}
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
                winner_in(segments, measured), as_good_as_best(measured.at, rules)
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
                self.assertEqual(scores[segment.value], min(scores.values()))

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


if __name__ == "__main__":
    run_tests()
