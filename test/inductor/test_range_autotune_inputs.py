# Owner(s): ["module: inductor"]
"""Benchmark inputs that agree with each other, for one size."""

import math
from types import SimpleNamespace
from unittest import mock

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import OpTestCase, SymbolicTestCase
from torch._inductor.test_case import run_tests
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv, Mod

import torch
from torch._inductor import config, ir
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.call_site import CallSite, NotTunable, Slot
from torch._inductor.range_autotune.guards import is_about_index_width
from torch._inductor.range_autotune.inputs import check_memory, make_inputs
from torch._inductor.range_autotune.ranges import ANY_SIZE, DimRange
from torch._inductor.range_autotune.registration import DispatchDim
from torch._inductor.range_autotune.size_points import (
    concrete,
    hint_point,
    point_for_size,
    size_bounds,
    SizePoint,
)


EXAMPLES = settings(max_examples=100, deadline=None, derandomize=True)
# Sizes in terms of s0 and s1, and the value of s1.
S1 = 6
EXPRESSIONS = {
    "s0": lambda s0, s1: s0,
    "twice": lambda s0, s1: 2 * s0,
    "plus_5": lambda s0, s1: s0 + 5,
    "half": lambda s0, s1: FloorDiv(s0, 2),
    "product": lambda s0, s1: s0 * s1,
    "sum": lambda s0, s1: s0 + s1,
    "affine": lambda s0, s1: 3 * FloorDiv(s0, 4) + 1,
}


TWO_SYMBOLS = ("product", "sum")


class SiteTestCase(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        self.s0 = self.symbol("s0", 100)
        self.s1 = self.symbol("s1", S1)

    def site(self, **arguments):
        """A call of an op with IR tensors, lists of them, and symbolic integers."""
        leaves, spec = pytree.tree_flatten(
            arguments, is_leaf=lambda x: isinstance(x, ir.IRNode)
        )
        slots = [Slot(i) for i in range(len(leaves))]
        nested = pytree.tree_unflatten(slots, spec)
        return CallSite(torch.ops.aten.mul.Tensor, nested, tuple(leaves))

    def inputs(self, s0, input_gen_fns=None, **arguments):
        """Concrete arguments where the symbol s0 has a value."""
        point = SizePoint(None, {self.s0: s0, self.s1: S1})
        return make_inputs(self.site(**arguments), point, input_gen_fns or {})


@instantiate_parametrized_tests
class TestBounds(SiteTestCase):
    def test_unknown(self):
        self.assertExpectedInline(str(size_bounds(self.s0)), """[2, inf)""")
        self.assertExpectedInline(str(size_bounds(2 * self.s0 + 5)), """[9, inf)""")

    def test_declared(self):
        bounded = self.symbol("bounded", 32, (8, 64))
        self.assertExpectedInline(str(size_bounds(bounded)), """[8, 65)""")
        self.assertExpectedInline(str(size_bounds(2 * bounded + 1)), """[17, 130)""")

    def test_guarded(self):
        self.guard(sympy.Le(self.s0, 128))
        self.assertExpectedInline(str(size_bounds(self.s0)), """[2, 129)""")

    def test_where_indices_need_more_bits(self):
        """As behind the code of a forward pass, which has 32 bits for them."""
        V.graph.sizevars.check_leq(self.s0, 2**31 - 1)
        known = V.graph.sizevars.shape_env.bound_sympy(self.s0)
        self.assertEqual(known.upper, 2**31 - 1)
        self.assertExpectedInline(str(size_bounds(self.s0)), """[2, inf)""")
        self.assertExpectedInline(str(size_bounds(2 * self.s0 + 5)), """[9, inf)""")
        self.guard(sympy.Le(self.s0, 4096))
        self.assertExpectedInline(str(size_bounds(self.s0)), """[2, 4097)""")

    def test_static(self):
        self.assertEqual(size_bounds(sympy.Integer(7)), DimRange(7, 8))
        self.assertEqual(size_bounds(sympy.Integer(0)), DimRange(0, 1))

    def test_never_negative(self):
        self.assertEqual(size_bounds(self.s0 - 50).start, 0)


@instantiate_parametrized_tests
class TestSize(SiteTestCase):
    def size_of(self, index, *size):
        site = self.site(x=self.tensor(size))
        return site.size_of(DispatchDim("x", index))

    def test_a_dimension_may_count_from_the_end(self):
        self.assertEqual(self.size_of(1, 2, 2 * self.s0, 512), 2 * self.s0)
        self.assertEqual(self.size_of(-2, 2, 2 * self.s0, 512), 2 * self.s0)
        self.assertEqual(self.size_of(-3, 2, 2 * self.s0, 512), 2)

    @parametrize("index", [5, 3, -4])
    def test_out_of_range(self, index):
        with self.assertRaises(ValueError) as caught:
            self.size_of(index, 2, 128, 512)
        self.assertEqual(
            str(caught.exception),
            f"Dimension index {index} out of range for tensor 'x' with shape "
            "[2, 128, 512]",
        )

    def test_tensor_that_is_none(self):
        site = CallSite(torch.ops.aten.mul.Tensor, {"x": None}, ())
        with self.assertRaisesRegex(NotTunable, "dispatch tensor 'x' is None"):
            site.size_of(DispatchDim("x", 0))


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


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
]
INTEGER_DTYPES = [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]


@instantiate_parametrized_tests
class TestInputs(SiteTestCase):
    def assert_like(self, made, size, stride):
        self.assertEqual(tuple(made.shape), tuple(size))
        self.assertEqual(made.stride(), tuple(stride))

    def test_all_sizes_follow_the_symbol(self):
        s0, s1 = self.s0, self.s1
        made = self.inputs(
            40,
            x=self.tensor([2, s0, 8]),
            y=self.tensor([2, s0, 8]),
            parts=[self.tensor([2 * s0, 8]), self.tensor([s0 + 5])],
            halves=self.tensor([FloorDiv(s0, 2), s0 * s1]),
            n=s0,
            m=3 * s0 - 1,
        )
        shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in made]
        self.assertExpectedInline(
            "\n".join(map(str, shapes)),
            """\
(2, 40, 8)
(2, 40, 8)
(80, 8)
(45,)
(20, 240)
40
119""",
        )
        self.assertEqual([type(n) for n in made[-2:]], [int, int])

    def test_layouts(self):
        s0 = self.s0
        layouts = {
            "transposed": ([8, s0], [1, 8]),
            "transposed_symbolic": ([s0, 8], [1, s0]),
            "padded": ([s0, 8], [16, 1]),
            "expanded": ([s0, 8], [0, 1]),
            "expanded_symbolic": ([8, s0], [0, 1]),
            "every_second": ([s0, 4], [8, 2]),
            "overlapping": ([s0, 4], [1, 1]),
            "channels_last": ([2, 3, s0, 5], [15 * s0, 1, 15, 3]),
            "no_dimension": ([], []),
        }
        tensors = {name: self.tensor(*layout) for name, layout in layouts.items()}
        made = self.inputs(40, **tensors)
        for (size, stride), tensor in zip(layouts.values(), made, strict=True):
            values = {s0: 40}
            self.assert_like(
                tensor,
                [concrete(s, values) for s in size],
                [concrete(s, values) for s in stride],
            )

    @parametrize("dtype", DTYPES)
    def test_floating_tensors_are_random(self, dtype):
        (made,) = self.inputs(64, x=self.tensor([self.s0, 8], dtype=dtype))
        self.assertIs(made.dtype, dtype)
        values = torch.view_as_real(made) if dtype.is_complex else made.float()
        self.assertTrue(values.isfinite().all())
        self.assertGreater(len(values.flatten().unique()), 10)

    @parametrize("dtype", INTEGER_DTYPES)
    def test_other_tensors_are_zero(self, dtype):
        (made,) = self.inputs(64, x=self.tensor([self.s0, 8], [1, self.s0], dtype))
        self.assertIs(made.dtype, dtype)
        self.assert_like(made, (64, 8), (1, 64))
        self.assertEqual(made.count_nonzero(), 0)

    def test_empty_tensors(self):
        tensors = [
            self.tensor([0, self.s0]),
            self.tensor([self.s0, 0, 3], [3, 3, 1]),
            self.tensor([self.s0 - 40], dtype=torch.int64),
        ]
        made = self.inputs(40, tensors=tensors)
        self.assertEqual([x.numel() for x in made], [0, 0, 0])
        self.assert_like(made[0], (0, 40), (40, 1))
        self.assert_like(made[1], (40, 0, 3), (3, 3, 1))

    def test_are_real_whatever_the_modes_around(self):
        with FakeTensorMode(), torch.enable_grad():
            (made,) = self.inputs(40, x=self.tensor([self.s0]))
        self.assertIs(type(made), torch.Tensor)
        self.assertFalse(made.requires_grad)
        self.assertEqual(len(made.tolist()), 40)

    def test_more_memory_than_there_is(self):
        with self.assertRaisesRegex(
            MemoryError, f"inputs and outputs take {2**62} bytes on cpu"
        ):
            self.inputs(2**60, x=self.tensor([self.s0]))
        (made,) = self.inputs(2**60, x=self.tensor([self.s0], [0]))
        self.assertEqual(made.shape, (2**60,))

    def test_outputs_take_memory_too(self):
        site = self.site(x=self.tensor([self.s0]))
        size = V.graph.sizevars.shape_env.create_symintnode(self.s0, hint=100)
        with self.fake_mode:
            square = torch.empty(size, size)
        values = {self.s0: 2**28, self.s1: S1}
        check_memory(site, values)
        with self.assertRaisesRegex(MemoryError, f"take {2**58 + 2**30} bytes on cpu"):
            check_memory(site, values, [square])

    def test_which_conditions_are_about_the_width_of_indices(self):
        for parts, offset in ((1, 0), (3, 0), (64, 0), (2000, 0), (1, 8), (1, -8)):
            limit = (2**31 - 1 + offset) // parts
            self.assertTrue(is_about_index_width(self.s0 <= limit))
            self.assertTrue(is_about_index_width(limit > 8 * self.s0 - 64))
        self.assertFalse(is_about_index_width(self.s0 <= 100_000))
        self.assertFalse(is_about_index_width(sympy.Eq(self.s0, 2**21)))
        # The next power of two is shifted by 32 bits on the way, too.
        self.assertFalse(is_about_index_width(FloorDiv(self.s0, 2**32) + self.s0 > 16))

    @EXAMPLES
    @given(st.data())
    def test_any_layout(self, data):
        make = st.sampled_from(list(EXPRESSIONS.values()))
        size = [f(self.s0, self.s1) for f in data.draw(st.lists(make, max_size=3))]
        size = data.draw(
            st.permutations([*size, sympy.Integer(data.draw(st.integers(0, 3)))])
        )
        stride, step = [sympy.Integer(0)] * len(size), sympy.Integer(1)
        for dim in data.draw(st.permutations(range(len(size)))):
            expanded = data.draw(st.integers(0, 3)) == 0
            stride[dim] = sympy.Integer(0) if expanded else step
            step = step * size[dim] + data.draw(st.integers(0, 2)) * (not expanded)
        dtype = data.draw(st.sampled_from(DTYPES + INTEGER_DTYPES))
        s0 = data.draw(st.integers(2, 9))
        (made,) = self.inputs(s0, x=self.tensor(size, stride, dtype))
        values = {self.s0: s0, self.s1: S1}
        self.assertIs(made.dtype, dtype)
        self.assert_like(
            made,
            [concrete(s, values) for s in size],
            [concrete(s, values) for s in stride],
        )


@instantiate_parametrized_tests
class TestGenerators(SiteTestCase):
    def test_gets_zeros_of_the_right_kind(self):
        seen = []

        def generate(x):
            seen.append((x.shape, x.stride(), x.dtype, x.device, x.count_nonzero()))
            return torch.full_like(x, 7)

        node = self.tensor([self.s0, 8], [1, self.s0], torch.int32)
        made = self.inputs(40, {"x": generate}, y=self.tensor([self.s0]), x=node)
        self.assertEqual(
            seen, [((40, 8), (1, 40), torch.int32, torch.device("cpu"), 0)]
        )
        self.assertEqual(made[1].unique().tolist(), [7])
        self.assertGreater(len(made[0].unique()), 10)

    def test_is_asked_for_each_tensor_of_a_list(self):
        made = self.inputs(
            40,
            {"parts": lambda x: x + x.shape[0]},
            parts=[self.tensor([self.s0]), self.tensor([2 * self.s0])],
        )
        self.assertEqual([x.unique().tolist() for x in made], [[40.0], [80.0]])

    def test_other_strides_are_brought_to_those_of_the_input(self):
        def generate(x):
            return torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape)

        (made,) = self.inputs(
            4, {"x": generate}, x=self.tensor([self.s0, 3], [1, self.s0])
        )
        self.assertEqual(made.stride(), (1, 4))
        self.assertEqual(made, torch.arange(12.0).reshape(4, 3))

    def test_other_strides_than_those_of_an_expanded_input(self):
        (made,) = self.inputs(
            4, {"x": torch.ones_like}, x=self.tensor([self.s0, 3], [0, 1])
        )
        self.assertEqual(made, torch.ones(4, 3))

    @parametrize(
        "generate,expected",
        [
            (lambda x: x.to("meta"), "one of torch.strided on meta"),
            (lambda x: x.to_sparse(), "one of torch.sparse_coo on cpu"),
            (lambda x: None, "<class 'NoneType'>"),
            (lambda x: 1.0, "<class 'float'>"),
        ],
        name_fn=lambda generate, expected: expected.split()[-1].strip("<>'")[:5],
    )
    def test_must_return_a_tensor(self, generate, expected):
        with self.assertRaises(ValueError) as caught:
            self.inputs(40, {"x": generate}, x=self.tensor([self.s0, 8]))
        self.assertEqual(
            str(caught.exception),
            "input_gen_fns['x'] of aten.mul.Tensor must return a dense tensor of "
            f"shape [40, 8], got {expected}",
        )

    def test_another_dtype(self):
        x = self.tensor([self.s0, 8], dtype=torch.bfloat16)
        (made,) = self.inputs(40, {"x": lambda x: torch.ones(x.shape)}, x=x)
        self.assertEqual(made, torch.ones(40, 8, dtype=torch.bfloat16))

    def test_one_shape_whatever_is_asked_for(self):
        def made_at(size):
            fixed = {"x": lambda x: torch.full((4, 8), 3.0)}
            (made,) = self.inputs(size, fixed, x=self.tensor([self.s0, 8]))
            return made

        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            self.assertEqual(made_at(4), torch.full((4, 8), 3.0))
            self.assertEqual({made_at(size).shape[0] for size in (40, 50)}, {40, 50})
        (record,) = logs.records
        self.assertIn("returns a tensor of shape (4, 8) for", record.getMessage())


class TestCompiled(OpTestCase):
    @config.patch({"test_configs.force_custom_op_decomposition": True})
    def test_generators_see_every_representative_size(self):
        op = self.define_op("mm(Tensor a, Tensor b) -> Tensor")
        self._library.impl("mm", lambda a, b: a @ b, "CPU")
        self._library._register_fake(
            "mm", lambda a, b: a.new_empty(a.shape[0], b.shape[1])
        )
        seen = []

        def generate(x):
            seen.append((tuple(x.shape), x.stride()))
            return x

        self.register(
            op,
            [CustomOpRangeConfig("a", 0, [(0, 64), (64, math.inf)], [torch.mm])],
            input_gen_fns={"a": generate, "b": generate},
            representative_sizes=[32, 101, 1000],
        )

        def model(x, weight):
            return op(x.view(-1, 4), weight.t())

        x, weight = torch.randn(20, 8), torch.randn(5, 4)
        torch._dynamo.mark_dynamic(x, 0)
        self.assertEqual(torch.compile(model)(x, weight), model(x, weight))
        # s0 rows of 8 are 2 * s0 rows of 4: 102 is what is nearest to 101. Where nobody is
        # timed comes last: 34, which is no multiple of 32, and ends of ranges.
        self.assertExpectedInline(
            "\n".join(map(str, seen)),
            """\
((32, 4), (4, 1))
((4, 5), (1, 4))
((102, 4), (4, 1))
((4, 5), (1, 4))
((1000, 4), (4, 1))
((4, 5), (1, 4))
((34, 4), (4, 1))
((4, 5), (1, 4))
((4, 4), (4, 1))
((4, 5), (1, 4))
((62, 4), (4, 1))
((4, 5), (1, 4))
((64, 4), (4, 1))
((4, 5), (1, 4))""",
        )


if __name__ == "__main__":
    run_tests()
