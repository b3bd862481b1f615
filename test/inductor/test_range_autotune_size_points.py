# Owner(s): ["module: inductor"]
"""Values for all symbols of a call site that give the dispatch dimension a size."""

import math
from types import SimpleNamespace
from unittest import mock

import sympy
from range_autotune_testing import EXPRESSIONS, S1, SiteTestCase
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._sympy.functions import FloorDiv, Mod

from torch._inductor.range_autotune.ranges import ANY_SIZE, DimRange
from torch._inductor.range_autotune.sizes.size_points import (
    concrete,
    hint_point,
    point_for_size,
    SizePoint,
)


TWO_SYMBOLS = ("product", "sum")


@instantiate_parametrized_tests
class TestPoint(SiteTestCase):
    def point(self, size, wanted, within=ANY_SIZE):
        site = self.site(x=self.tensor([size, self.s1]))
        return point_for_size(site, sympy.sympify(size), wanted, within)

    @parametrize(
        "name,wanted,s0",
        [
            ("s0", 512, 512),
            ("s0", 2**20 + 1, 2**20 + 1),
            ("twice", 512, 256),
            ("plus_5", 512, 507),
            ("half", 512, 1024),
            ("product", 510, 85),
            ("sum", 512, 506),
        ],
    )
    def test_gives_the_size(self, name, wanted, s0):
        self.s0, self.s1 = self.symbol("first", 100), self.symbol("second", S1)
        size = EXPRESSIONS[name](self.s0, self.s1)
        symbols = sorted((self.s0, self.s1), key=str)
        point = self.point(size, wanted, DimRange(wanted, wanted + 1))
        self.assertEqual(point.size, wanted)
        self.assertEqual(concrete(size, point.values), wanted)
        self.assertEqual(set(point.values), set(symbols))
        if name in ("s0", "twice", "plus_5", "half"):
            self.assertEqual(point.values, {self.s0: s0, self.s1: S1})

    @parametrize("name", [name for name in EXPRESSIONS if name not in TWO_SYMBOLS])
    @parametrize("within", [(0, 8), (7, 13), (100, 104), (90, math.inf)])
    def test_finds_a_size_in_the_range_if_there_is_one(self, name, within):
        within = DimRange(*within)
        make = EXPRESSIONS[name]
        size = make(self.s0, self.s1)
        possible = {
            int(make(sympy.Integer(v), sympy.Integer(S1))) for v in range(2, 300)
        }
        for wanted in range(within.start, min(within.end, 110)):
            point = self.point(size, wanted, within)
            if wanted in possible:
                self.assertEqual(point.size, wanted)
            elif any(p in within for p in possible):
                self.assertIn(point.size, within)
            self.assertTrue(point is None or concrete(size, point.values) == point.size)

    def test_the_symbol_that_comes_nearest_is_taken(self):
        for i in range(8):  # names are hashes: both orders occur
            large, small = self.symbol(f"large{i}", 100), self.symbol(f"small{i}", 6)
            site = self.site(x=self.tensor([large * small]))
            point = point_for_size(site, large * small, 120, DimRange(90, math.inf))
            self.assertEqual(point.values, {large: 20, small: 6})

    def test_all_symbols_change_where_one_cannot_give_the_size(self):
        """Halved, or doubled within bounds; and with one what seems to be the same size."""
        batch, rows, ids = (
            self.symbol(n, h) for n, h in (("b", 30), ("r", 40), ("i", 30))
        )
        site = self.site(x=self.tensor([batch, rows]), i=self.tensor([ids]))
        for size, within in (
            (batch * rows, DimRange(8, 17)),
            (batch + rows, DimRange(4, 9)),
        ):
            point = point_for_size(site, size, 8, within)
            self.assertEqual(point.size, 8)
            self.assertEqual(concrete(size, point.values), 8)
            self.assertEqual(point.values[ids], point.values[batch])
        first, second = (self.symbol(n, h, (2, 100)) for n, h in (("c", 30), ("d", 40)))
        site = self.site(c=self.tensor([first]), d=self.tensor([second]))
        point = point_for_size(site, first + second, 190, DimRange(180, 200))
        self.assertEqual(point.size, 190)
        self.assertIsNone(
            point_for_size(site, first + second, 300, DimRange(201, math.inf))
        )

    def test_all_symbols_change_where_one_gives_none_but_0(self):
        rows, columns = self.data(), self.data()
        size = rows * columns
        site = self.site(x=self.tensor([rows, columns, 4]))
        within = DimRange(0, 64)
        for wanted in (1, 32, 63):
            self.assertIn(point_for_size(site, size, wanted, within).size, range(1, 64))
        self.assertEqual(point_for_size(site, size, 0, within).size, 0)
        within = DimRange(0, 1)
        self.assertEqual(point_for_size(site, size, 1, within).size, 0)

    def test_a_size_that_cannot_occur(self):
        self.assertIsNone(self.point(2 * self.s0, 513, DimRange(513, 514)))
        self.assertIsNone(self.point(self.s0 + 5, 5, DimRange(0, 7)))

    def test_a_size_out_of_declared_bounds(self):
        bounded = self.symbol("bounded", 32, (8, 64))
        self.assertIsNone(self.point(bounded, 100, DimRange(65, math.inf)))
        self.assertEqual(self.point(bounded, 100, DimRange(0, 100)).size, 64)
        self.assertEqual(self.point(bounded, 1, DimRange(0, 100)).size, 8)

    @parametrize("wanted", [512, 513, 515, 519])
    def test_guards_are_met(self, wanted):
        multiple = self.symbol("multiple", 64)
        self.guard(sympy.Eq(Mod(multiple, 8), 0))
        point = self.point(multiple, wanted)
        self.assertEqual(point.size % 8, 0)
        self.assertLess(abs(point.size - wanted), 8)

    def test_guards_that_no_size_in_the_range_meets(self):
        multiple = self.symbol("multiple", 64)
        self.guard(sympy.Eq(Mod(multiple, 8), 0))
        self.assertIsNone(self.point(multiple, 515, DimRange(513, 520)))

    def test_guards_between_symbols(self):
        self.guard(sympy.Ge(self.s0, 10 * self.s1))
        self.assertIsNone(self.point(self.s0, 50, DimRange(0, 60)))
        self.assertEqual(self.point(self.s0, 50, DimRange(0, 61)).size, 60)

    @parametrize("factor", (1, 3))
    def test_others_are_raised_where_guards_want_them_larger(self, factor):
        """As many rows as a cache has at most; whose do not follow where they need not."""
        rows, other = self.symbol("rows", 100), self.symbol("other", 7)
        self.guard(sympy.Le(factor * rows, self.symbol("cache", 400)))
        cache = self.shape_env.guards[0].expr.free_symbols - {rows}
        site = self.site(x=self.tensor([rows, other, *cache]))
        point = point_for_size(site, rows, 5000, DimRange(2048, math.inf))
        (raised,) = (point.values[symbol] for symbol in cache)
        self.assertEqual((point.size, point.values[other]), (5000, 7))
        self.assertGreaterEqual(raised, factor * 5000)

    @parametrize("related", ("halves", "rounded_up", "one_more", "chained"))
    def test_others_follow_from_equations(self, related):
        """Inputs with sizes of their own, of which a view has as many rows as another."""
        rows, other, third = (self.symbol(name, 32) for name in ("rows", "a", "b"))
        guard, expected = {
            "halves": ([sympy.Eq(rows, FloorDiv(other, 2))], {other: 2000}),
            "rounded_up": ([sympy.Eq(rows, FloorDiv(other + 1, 2))], {other: 1999}),
            "one_more": ([sympy.Eq(other - 1, rows)], {other: 1001}),
            "chained": (
                [sympy.Eq(rows, FloorDiv(other, 2)), sympy.Eq(other, 2 * third)],
                {other: 2000, third: 1000},
            ),
        }[related]
        hints = {rows: 32, other: 32, third: 32}
        guards = [SimpleNamespace(expr=condition) for condition in guard]
        site = self.site(x=self.tensor([rows, other, third]))
        with mock.patch.object(self.shape_env, "guards", guards):
            point = point_for_size(site, rows, 1000, DimRange(512, math.inf))
        self.assertEqual(point.values, {**hints, rows: 1000, **expected})

    def data(self, *conditions):
        """A size that is data, with a hint of its own, and what is asserted of it."""
        size = self.shape_env.create_unbacked_symint().node
        for condition in (lambda u: sympy.Ge(u, 0), *conditions):
            self.shape_env.guard_or_defer_runtime_assert(condition(size.expr), "")
        return size.expr

    def test_others_that_seem_to_be_the_same_size(self):
        """Of another input, with the same hint: as many places as rows. Within its bounds."""
        rows, columns, other = (self.symbol(name, 64) for name in ("r", "c", "o"))
        places, few = self.symbol("p", 64), self.symbol("f", 64, (2, 100))
        third = self.symbol("t", 65)
        x = self.tensor([rows, columns])
        site = self.site(x=x, y=self.tensor([columns, 3]), p=self.tensor([places]))
        point = point_for_size(site, rows, 1000, DimRange(512, math.inf))
        self.assertEqual(point.values, {rows: 1000, columns: 64, places: 1000})
        site = self.site(x=x, f=self.tensor([few]), o=self.tensor([third, other]))
        point = point_for_size(site, rows, 1000, DimRange(512, math.inf))
        expected = {rows: 1000, columns: 64, few: 64, third: 65, other: 1000}
        self.assertEqual(point.values, expected)

    def test_others_of_which_the_size_is_a_sum(self):
        """As of two inputs that are concatenated in front of the op."""
        first, second = self.symbol("a", 64), self.symbol("b", 64)
        site = self.site(a=self.tensor([first]), b=self.tensor([second]))
        point = point_for_size(site, first + second, 1000, DimRange(512, math.inf))
        self.assertEqual(point.size, 1000)
        self.assertEqual(sorted(point.values.values()), [64, 936])

    def test_others_that_only_seem_to_be_the_same_size(self):
        rows, other = self.symbol("r", 64), self.symbol("o", 64)
        self.guard(sympy.Le(8 * other, 4096))
        site = self.site(x=self.tensor([rows]), o=self.tensor([other]))
        point = point_for_size(site, rows, 1000, DimRange(512, math.inf))
        self.assertEqual(point.values, {rows: 1000, other: 64})

    def test_sizes_that_are_data_are_what_is_asserted_of_them(self):
        """Rows that are prefilled, and the others of a batch."""
        head = self.data(lambda u: sympy.Le(u, self.s0))
        tail = self.s0 - head
        site = self.site(x=self.tensor([head, 4]), y=self.tensor([tail, 4]))
        point = hint_point(site, tail)
        self.assertEqual(point.values, {self.s0: 100, head: 64})
        self.assertEqual(point.size, 36)
        for size, other in ((head, tail), (tail, head)):
            point = point_for_size(site, size, 1000, DimRange(512, math.inf))
            self.assertEqual(point.size, 1000)
            self.assertGreaterEqual(concrete(other, point.values), 0)

    def test_sizes_that_are_data_as_equations_have_them(self):
        first, second = self.data(), self.data()
        equation = SimpleNamespace(expr=sympy.Eq(first + second, 3 * self.s0))
        asserted = {second: [equation]}
        site = self.site(x=self.tensor([first, second, self.s0]))
        with mock.patch.object(self.shape_env, "deferred_runtime_asserts", asserted):
            values = hint_point(site).values
        self.assertEqual(values[first] + values[second], 300)

    def test_no_other_follows(self):
        rows, other = self.symbol("rows", 32), self.symbol("bounded", 32, (2, 300))
        site = self.site(x=self.tensor([rows, other]))
        guards = [SimpleNamespace(expr=sympy.Eq(rows, FloorDiv(other, 2)))]
        with mock.patch.object(self.shape_env, "guards", guards):
            self.assertIsNone(point_for_size(site, rows, 1000, DimRange(512, math.inf)))

    def test_others_are_raised_within_their_bounds(self):
        cache = self.symbol("bounded_cache", 200, (2, 300))
        self.guard(sympy.Le(self.s0, cache))
        site = self.site(x=self.tensor([self.s0, cache]))
        self.assertIsNone(point_for_size(site, self.s0, 500, DimRange(400, math.inf)))
        point = point_for_size(site, self.s0, 250, DimRange(220, math.inf))
        self.assertEqual(point.values, {self.s0: 250, cache: 250})

    def test_sizes_at_which_one_is_divided_by_nothing(self):
        """In a condition, and in the size itself; the least size that has both is 8."""
        rows = self.symbol("rows", 32)
        parts = FloorDiv(rows, 8)
        guards = [SimpleNamespace(expr=sympy.Ne(Mod(rows + 1, parts), parts))]
        for size in (rows, FloorDiv(rows * 8, parts)):
            site = self.site(x=self.tensor([rows, 8 * parts]))
            with mock.patch.object(self.shape_env, "guards", guards):
                point = point_for_size(site, size, 2, DimRange(0, 100))
            self.assertGreaterEqual(point.values[rows], 8)

    def test_static_size(self):
        self.assertEqual(self.point(128, 512, ANY_SIZE).size, 128)
        self.assertIsNone(self.point(128, 512, DimRange(512, 1024)))

    def test_hint(self):
        site = self.site(x=self.tensor([2 * self.s0, self.s1]))
        point = hint_point(site, 2 * self.s0)
        self.assertEqual(point, SizePoint(200, {self.s0: 100, self.s1: S1}))
        self.assertIsNone(hint_point(site).size)


if __name__ == "__main__":
    run_tests()
