# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.writes.meeting_places``."""

import itertools

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from torch._inductor.range_autotune.writes.meeting_places import can_meet


ROWS = sympy.Symbol("rows", integer=True, positive=True)
STRIDE = sympy.Symbol("stride", integer=True, positive=True)
HALF = [(64, ROWS), (1, 32)]

LOOPS = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 4)), max_size=3)


def places(start, loops):
    """The elements that loops of known strides and sizes come to."""
    return {
        start + sum(stride * i for (stride, _), i in zip(loops, indices))
        for indices in itertools.product(*(range(size) for _, size in loops))
    }


@instantiate_parametrized_tests
class TestCanMeet(TestCase):
    @parametrize(
        "distance,loops,others,expected",
        [
            (32, HALF, HALF, False),  # the halves of rows
            (64, HALF, HALF, True),  # the first ones, from the second row on
            (31, HALF, HALF, True),
            (1, [(64, ROWS), (2, 32)], [(64, ROWS), (2, 32)], False),  # pairs
            (2, [(64, ROWS), (2, 32)], [(64, ROWS), (2, 32)], True),
            (32, [(64, 8), (64 * ROWS, 8), (1, 32)], HALF, False),  # heads first
            (32, [(STRIDE, ROWS), (1, 32)], [(STRIDE, ROWS), (1, 32)], True),
            (64 * ROWS + 32, HALF, HALF, False),
            (ROWS, HALF, HALF, True),
            (0, HALF, [(1, 1)], True),
            (5, [], [], False),
            (-32, HALF, [(64, ROWS), (1, 8)], False),
            (512, [(1, 512)], [(1, 512)], False),
            (3, [(-1, 4)], [(1, 4)], True),  # not known
        ],
    )
    def test_examples(self, distance, loops, others, expected):
        self.assertEqual(can_meet(distance, loops, others), expected)

    @given(st.integers(-40, 40), LOOPS, LOOPS)
    @settings(max_examples=400, deadline=None, derandomize=True)
    def test_apart_is_apart(self, distance, loops, others):
        if not can_meet(distance, loops, others):
            self.assertFalse(places(0, loops) & places(distance, others))

    @given(st.integers(-40, 40), LOOPS, LOOPS, st.integers(1, 4), st.integers(1, 9))
    @settings(max_examples=400, deadline=None, derandomize=True)
    def test_apart_is_apart_whatever_symbols_stand_for(
        self, distance, loops, others, rows, stride
    ):
        """The first loops have symbols in the places of a size and a stride."""
        known = {ROWS: rows, STRIDE: stride}
        symbolic = (
            [(s * STRIDE, n) for s, n in loops[:1]],
            [(s, ROWS) for s, _ in others],
        )
        if not can_meet(distance + 3 * STRIDE, *symbolic):
            ways = [
                [
                    (sympy.sympify(s).subs(known), sympy.sympify(n).subs(known))
                    for s, n in way
                ]
                for way in symbolic
            ]
            start = distance + 3 * stride
            self.assertFalse(places(0, ways[0]) & places(start, ways[1]))


if __name__ == "__main__":
    run_tests()
