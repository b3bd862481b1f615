# Owner(s): ["module: inductor"]
"""Ranges of a size: validation, representative sizes, merging and gaps."""

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.range_autotune.ranges import (
    ANY_SIZE,
    check_disjoint,
    DimRange,
    fill_gaps,
    merge_neighbours,
    parse_range,
    parse_ranges,
    ranges_from_split_points,
    representative_sizes,
    Segment,
)


# Large enough for several ranges, small enough to look at every size.
LARGEST = 40
EXAMPLES = settings(max_examples=200, deadline=None, derandomize=True)


def table(segments):
    return "\n".join(f"{s.sizes}: {s.value}" for s in segments)


def winners_at(segments, size):
    """The winners of all segments that hold a size: at most one in a right table."""
    return [s.value for s in segments if size in s.sizes]


@st.composite
def dim_ranges(draw):
    start = draw(st.integers(0, LARGEST))
    end = draw(st.integers(start + 1, LARGEST + 1) | st.just(math.inf))
    return DimRange(start, end)


@st.composite
def winner_tables(draw):
    """Sorted segments without overlaps, with and without gaps between them."""
    edges = sorted(draw(st.sets(st.integers(0, LARGEST), min_size=2)))
    edges += draw(st.sampled_from([[], [math.inf]]))
    return [
        Segment(DimRange(a, b), draw(st.sampled_from("abc")))
        for a, b in itertools.pairwise(edges)
        if draw(st.booleans())
    ]


@instantiate_parametrized_tests
class TestDimRange(TestCase):
    @parametrize("start", [True, False, -1, 0.0, math.nan, math.inf, "0", None])
    def test_start_must_be_a_size(self, start):
        message = f"start must be an integer of at least 0 in [{start!r}, 512)"
        with self.assertRaises(ValueError) as caught:
            DimRange(start, 512)
        self.assertEqual(str(caught.exception), message)

    @parametrize("end", [True, False, 512.0, math.nan, -math.inf, "512", None])
    def test_end_must_be_a_size_or_infinite(self, end):
        with self.assertRaises(ValueError) as caught:
            DimRange(0, end)
        message = f"end must be an integer or math.inf in [0, {end!r})"
        self.assertEqual(str(caught.exception), message)

    def test_end_that_has_no_plain_truth(self):
        with self.assertRaisesRegex(ValueError, r"end must be .* in \[0, tensor"):
            DimRange(0, torch.ones(2))

    @parametrize("start,end", [(512, 512), (512, 511), (1, 0), (0, -1)])
    def test_holds_a_size(self, start, end):
        with self.assertRaises(ValueError) as caught:
            DimRange(start, end)
        message = f"start must be less than end in [{start}, {end})"
        self.assertEqual(str(caught.exception), message)

    def test_no_size_is_larger_than_a_size_can_be(self):
        self.assertEqual(DimRange(8, 2**64), DimRange(8, math.inf))
        self.assertEqual(DimRange(8, 2**63 - 1).end, 2**63 - 1)
        with self.assertRaisesRegex(ValueError, "start must be less than 2.*63"):
            DimRange(2**64, math.inf)

    def test_is_half_open(self):
        sizes = DimRange(2, 4)
        self.assertEqual([n for n in range(6) if n in sizes], [2, 3])
        self.assertEqual(sizes.last, 3)
        self.assertTrue(sizes.bounded)
        self.assertNotIn(2.0, sizes)

    def test_without_end(self):
        sizes = DimRange(2, math.inf)
        self.assertIn(2**62, sizes)
        self.assertNotIn(1, sizes)
        self.assertEqual(sizes.last, math.inf)
        self.assertFalse(sizes.bounded)
        self.assertEqual(str(sizes), "[2, inf)")

    @EXAMPLES
    @given(dim_ranges(), dim_ranges())
    def test_intersection_holds_the_sizes_in_both(self, a, b):
        both = a.intersect(b)
        self.assertEqual(both, b.intersect(a))
        self.assertEqual(both is not None, a.overlaps(b))
        for size in range(LARGEST + 2):
            in_both = both is not None and size in both
            self.assertEqual(in_both, size in a and size in b)

    @EXAMPLES
    @given(dim_ranges(), dim_ranges())
    def test_gap_is_what_lies_between(self, a, b):
        self.assertEqual(a.gap_to(b), b.gap_to(a))
        low, high = min(a.end, b.end), max(a.start, b.start)
        self.assertEqual(a.gap_to(b), 0 if a.overlaps(b) else high - low)


@instantiate_parametrized_tests
class TestParsing(TestCase):
    def assert_refused(self, call, *args):
        with self.assertRaises(ValueError) as caught:
            call(*args)
        return str(caught.exception)

    def test_pairs_lists_and_ranges(self):
        ranges = parse_ranges([(0, 512), [512, 2048], DimRange(4096, math.inf)])
        self.assertEqual(
            ranges,
            (DimRange(0, 512), DimRange(512, 2048), DimRange(4096, math.inf)),
        )

    @parametrize("value", [512, None, "ab", (0,), (0, 1, 2), range(2), {0: 1, 1: 2}])
    def test_not_a_pair(self, value):
        message = self.assert_refused(parse_range, value, 3)
        self.assertEqual(
            message,
            "Range 3 must be a pair (start, end) with start included and end excluded, "
            f"got {value!r}",
        )

    @parametrize("values", [None, [], (), 512, {(0, 512)}])
    def test_not_a_list(self, values):
        message = self.assert_refused(parse_ranges, values)
        self.assertEqual(
            message,
            f"ranges must be a non-empty list of pairs (start, end), got {values!r}",
        )

    def test_bad_range_is_shown_with_its_index(self):
        self.assertExpectedInline(
            self.assert_refused(parse_ranges, [(0, 512), (2048, 512)]),
            """Range 1 is not valid: start must be less than end in [2048, 512)""",
        )
        self.assertExpectedInline(
            self.assert_refused(parse_ranges, [(0, 512), (512, math.nan)]),
            """Range 1 is not valid: end must be an integer or math.inf in [512, nan)""",
        )
        self.assertExpectedInline(
            self.assert_refused(parse_ranges, [(-1, 512)]),
            """Range 0 is not valid: start must be an integer of at least 0 in [-1, 512)""",
        )

    def test_overlap(self):
        self.assertExpectedInline(
            self.assert_refused(parse_ranges, [(0, 512), (256, 1024)]),
            """Ranges 0 and 1 overlap: [0, 512) and [256, 1024)""",
        )

    def test_overlap_of_ranges_that_are_not_next_to_each_other(self):
        self.assertExpectedInline(
            self.assert_refused(parse_ranges, [(0, 8), (8, 16), (4, math.inf)]),
            """Ranges 0 and 2 overlap: [0, 8) and [4, inf)""",
        )

    def test_equal_ranges_overlap(self):
        self.assertExpectedInline(
            self.assert_refused(parse_ranges, [(0, 8), (0, 8)]),
            """Ranges 0 and 1 overlap: [0, 8) and [0, 8)""",
        )

    def test_unsorted(self):
        self.assertExpectedInline(
            self.assert_refused(parse_ranges, [(0, 8), (512, 1024), (8, 512)]),
            """Ranges must be sorted, but range 2, [8, 512), lies below range 1, [512, 1024)""",
        )

    @EXAMPLES
    @given(st.lists(dim_ranges(), max_size=4))
    def test_disjoint_means_that_no_size_is_in_two(self, ranges):
        shared = any(sum(n in r for r in ranges) > 1 for n in range(LARGEST + 2))
        if shared:
            self.assertIn("overlap", self.assert_refused(check_disjoint, ranges))
        else:
            check_disjoint(ranges)


@instantiate_parametrized_tests
class TestSplitPoints(TestCase):
    def assert_refused(self, points):
        with self.assertRaises(ValueError) as caught:
            ranges_from_split_points(points)
        return str(caught.exception)

    def test_a_point_belongs_to_the_range_below_it(self):
        ranges = ranges_from_split_points([512, 2048])
        self.assertExpectedInline(
            " ".join(map(str, ranges)), """[0, 513) [513, 2049) [2049, inf)"""
        )

    def test_duplicate(self):
        self.assertExpectedInline(
            self.assert_refused([512, 512]),
            """split_points[1] is a duplicate of 512: [512, 512]""",
        )

    def test_unsorted(self):
        self.assertExpectedInline(
            self.assert_refused([512, 2048, 1024]),
            """split_points must be sorted in ascending order, but split_points[2] is 1024 after 2048""",
        )

    @parametrize("point", [0, -1, 512.0, math.nan, math.inf, True, "512", None])
    def test_a_point_must_be_a_size(self, point):
        self.assertEqual(
            self.assert_refused([1, point]),
            f"split_points[1] must be an integer of at least 1, got {point!r}",
        )

    @parametrize("points", [None, [], 512, {512}])
    def test_not_a_list(self, points):
        self.assertEqual(
            self.assert_refused(points),
            f"split_points must be a non-empty list of integers, got {points!r}",
        )

    @EXAMPLES
    @given(st.sets(st.integers(1, LARGEST), min_size=1))
    def test_every_size_is_in_the_range_of_the_next_point(self, points):
        ranges = ranges_from_split_points(sorted(points))
        for size in range(LARGEST + 2):
            (sizes,) = (r for r in ranges if size in r)
            next_point = min((p for p in points if p >= size), default=math.inf)
            self.assertEqual(sizes.last, next_point)


@instantiate_parametrized_tests
class TestRepresentativeSizes(TestCase):
    @parametrize(
        "start,end,expected",
        [
            (512, 2048, (512, 1280, 2047)),
            (0, 512, (1, 256, 511)),
            (0, 1, (0,)),
            (0, 2, (1,)),
            (7, 8, (7,)),
            (7, 9, (7, 8)),
            (0, math.inf, (1, 2)),
            (1, math.inf, (1, 2)),
            (2048, math.inf, (2048, 4096)),
        ],
    )
    def test_ends_and_middle(self, start, end, expected):
        self.assertEqual(representative_sizes(DimRange(start, end)), expected)

    @parametrize("typical,expected", [(8192, (2048, 8192)), (1024, (2048,))])
    def test_the_user_names_the_size_of_an_unbounded_range(self, typical, expected):
        sizes = representative_sizes(DimRange(2048, math.inf), typical)
        self.assertEqual(sizes, expected)

    def test_the_size_of_an_unbounded_range_is_not_for_others(self):
        sizes = DimRange(512, 2048)
        self.assertEqual(representative_sizes(sizes, 600), representative_sizes(sizes))

    @EXAMPLES
    @given(dim_ranges(), st.none() | st.integers(1, 2 * LARGEST))
    def test_lie_in_the_range(self, sizes, typical):
        picks = representative_sizes(sizes, typical)
        self.assertGreater(len(picks), 0)
        self.assertEqual(list(picks), sorted(set(picks)))
        self.assertTrue(all(type(pick) is int and pick in sizes for pick in picks))
        self.assertEqual(picks[0], min(max(sizes.start, 1), sizes.last))
        if sizes.bounded:
            self.assertEqual(picks[-1], sizes.last)
        if sizes != DimRange(0, 1):
            self.assertNotIn(0, picks)


class TestSegments(TestCase):
    def test_merge(self):
        segments = [
            Segment(DimRange(0, 8), "a"),
            Segment(DimRange(8, 16), "a"),
            Segment(DimRange(16, 32), "b"),
            Segment(DimRange(64, 128), "b"),
            Segment(DimRange(128, math.inf), "b"),
        ]
        self.assertExpectedInline(
            table(merge_neighbours(segments)),
            """\
[0, 16): a
[16, 32): b
[64, inf): b""",
        )

    def test_fill_gaps(self):
        segments = [Segment(DimRange(8, 16), "a"), Segment(DimRange(32, 64), "b")]
        self.assertExpectedInline(
            table(fill_gaps(segments, ANY_SIZE, "op")),
            """\
[0, 8): op
[8, 16): a
[16, 32): op
[32, 64): b
[64, inf): op""",
        )

    def test_fill_the_whole(self):
        filled = fill_gaps([], DimRange(2, 8), "op")
        self.assertExpectedInline(table(filled), """[2, 8): op""")

    def test_nothing_to_fill(self):
        segments = (Segment(DimRange(2, 5), "a"), Segment(DimRange(5, 8), "b"))
        self.assertEqual(fill_gaps(segments, DimRange(2, 8), "op"), segments)

    @EXAMPLES
    @given(winner_tables())
    def test_merging_changes_no_size_s_winner(self, segments):
        merged = merge_neighbours(segments)
        for size in range(LARGEST + 2):
            self.assertEqual(winners_at(merged, size), winners_at(segments, size))

    @EXAMPLES
    @given(winner_tables())
    def test_merging_leaves_nothing_to_merge(self, segments):
        merged = merge_neighbours(segments)
        for a, b in itertools.pairwise(merged):
            touching = a.sizes.end == b.sizes.start
            self.assertFalse(touching and a.value == b.value)
        self.assertEqual(merge_neighbours(merged), merged)

    @EXAMPLES
    @given(winner_tables(), dim_ranges())
    def test_filling_gives_every_size_one_winner(self, segments, within):
        filled = fill_gaps(segments, within, "op")
        for size in range(LARGEST + 3):
            expected = winners_at(segments, size) or ["op"]
            wanted = expected if size in within else []
            self.assertEqual(winners_at(filled, size), wanted)


if __name__ == "__main__":
    run_tests()
