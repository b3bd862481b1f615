# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.sizes.narrowed_sizes``."""

import contextlib

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import SymbolicTestCase
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._sympy.functions import BitwiseFn_bitwise_or, FloorDiv, Mod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from torch._inductor.range_autotune.sizes.narrowed_sizes import (
    _left_by,
    compound_in_range,
    compounds_in_ranges,
    narrowed,
    value_at_all_of_few,
    without_ruled_out_ends,
)


S = sympy.Symbol("s", integer=True, positive=True)


class TestLeftBy(TestCase):
    @given(
        st.lists(
            st.tuples(st.integers(-3, 3), st.integers(-9, 9), st.integers(1, 4)),
            max_size=4,
        ),
        st.integers(1, 9),
        st.integers(0, 9),
    )
    @settings(max_examples=200, deadline=None, derandomize=True)
    def test_all_that_meet_the_guards_are_left(self, guards, first, more):
        told = tuple(
            sympy.Ne(factor * FloorDiv(S, divisor) + constant, 1, evaluate=False)
            for factor, constant, divisor in guards
        )
        left = _left_by(told, S, ValueRanges(first, first + more))
        for value in range(first, first + more + 1):
            meets = all(guard.subs(S, value) != sympy.false for guard in told)
            self.assertTrue(value in left or not meets)
        if left.lower < left.upper:
            for end in (left.lower, left.upper):
                self.assertFalse(any(g.subs(S, end) == sympy.false for g in told))


@instantiate_parametrized_tests
class TestGuards(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        self.s0, self.s1 = self.symbol("first", 100), self.symbol("second", 60)

    def values(self, symbol):
        return self.shape_env.var_to_range[symbol]

    def test_ends_that_they_rule_out(self):
        """One by one, in whatever order they come; those of two symbols say nothing."""
        before = [self.values(symbol) for symbol in (self.s0, self.s1)]
        self.guard(sympy.Ne(self.s0 - 3, 1))
        self.guard(sympy.Ne(self.s0, 3))
        self.guard(sympy.Ne(FloorDiv(self.s0, 2), 1))
        self.guard(sympy.Ne(self.s0, 50))
        self.guard(sympy.Ne(self.s0 - self.s1, 1))
        with without_ruled_out_ends(self.shape_env):
            self.assertEqual(self.values(self.s0), ValueRanges(5, int_oo))
            self.assertEqual(self.values(self.s1), before[1])
            with without_ruled_out_ends(self.shape_env):
                self.assertEqual(self.values(self.s0), ValueRanges(5, int_oo))
            self.assertEqual(self.values(self.s0), ValueRanges(5, int_oo))
        self.assertEqual([self.values(s) for s in (self.s0, self.s1)], before)

    def test_a_part_that_is_more_than_one_block_long(self):
        self.guard(sympy.Ne(-FloorDiv(-self.s0, 80), 1))
        with without_ruled_out_ends(self.shape_env):
            self.assertEqual(self.values(self.s0), ValueRanges(81, int_oo))

    def test_behind_an_error(self):
        self.guard(sympy.Ne(self.s0, 2))
        with contextlib.suppress(RuntimeError), without_ruled_out_ends(self.shape_env):
            raise RuntimeError
        self.assertEqual(self.values(self.s0), ValueRanges(2, int_oo))

    @parametrize("make", (lambda s, t: s - t, lambda s, t: s - FloorDiv(s, 2)))
    def test_sums(self, make):
        size = make(self.s0, self.s1)
        self.guard(sympy.Ne(size, 0))
        self.guard(sympy.Ne(8 * size, 8))
        self.guard(sympy.And(self.s1 >= 3, self.s1 <= self.s0))
        with compound_in_range(self.shape_env, size, ValueRanges(0, 15)):
            self.assertEqual(
                compounds_in_ranges(self.shape_env), ((size, ValueRanges(2, 15)),)
            )
        self.assertEqual(compounds_in_ranges(self.shape_env), ())

    def test_values_one_by_one(self):
        def at_all(expr, first=17, last=32):
            with narrowed(self.shape_env, {self.s0: ValueRanges(first, last)}):
                return value_at_all_of_few(expr, self.shape_env)

        bits = BitwiseFn_bitwise_or(self.s0 - 1, FloorDiv(self.s0 - 1, 2))
        self.assertEqual(at_all(FloorDiv(bits, 16)), 1)
        self.assertEqual(at_all(bits < 32), sympy.true)
        self.assertIsNone(at_all(FloorDiv(bits, 16), last=33))
        # Of too many, of one of two, of two symbols, and where there is none.
        self.assertIsNone(at_all(self.s0 > 3, last=5000))
        self.assertIsNone(at_all(self.s0 > 3, last=int_oo))
        self.assertIsNone(at_all(self.s0 + self.s1 > 3))
        self.assertIsNone(at_all(FloorDiv(100, self.s0 - 20)))
        # Of multiples, which there may be none of.
        self.assertIsNone(at_all(FloorDiv(bits, 16), first=9))
        self.shape_env.divisible.add(Mod(self.s0, 24))
        self.assertEqual(at_all(FloorDiv(bits, 16), first=9), 1)
        self.assertIsNone(at_all(bits < 32, last=23))


if __name__ == "__main__":
    run_tests()
