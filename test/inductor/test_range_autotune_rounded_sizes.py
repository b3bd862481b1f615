# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.sizes.rounded_sizes``: what holds for all sizes."""

import itertools
import logging
import math
from types import SimpleNamespace

import sympy
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_custom_op_autotune import (
    AutotuneTestCase,
    compile_at,
    define_op,
    identity_op,
    made_up_times,
    no_recompile,
    ramp,
)
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._sympy.functions import (
    BitwiseFn_bitwise_and,
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Max,
    Min,
    Mod,
    PythonMod,
)
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.sizes.compound_sizes import holds_of_compound
from torch._inductor.range_autotune.sizes.rounded_sizes import holds, known_quotient


S, T = sympy.symbols("s t", integer=True, positive=True)
BLOCKS = FloorDiv(S + 15, 16)
HALF = Min(S, FloorDiv(S, 2))  # as torch says where it does not know that s is positive
OF_REST = FloorDiv(S - FloorDiv(S, 3) + 15, 16)  # of which torch knows no sign
RELATIONS = (sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt, sympy.Eq, sympy.Ne)
integers = st.integers(-20, 20)


def sizes(divisible=(), **ranges):
    """What is asked of a shape environment, of sizes with such first and last values."""
    known = {sympy.Symbol(n, integer=True, positive=True): r for n, r in ranges.items()}
    values = {symbol: ValueRanges(*r) for symbol, r in known.items()}
    return SimpleNamespace(
        var_to_range=values, replace=lambda expr: expr, divisible=divisible
    )


ANY = sizes(s=(2, int_oo), t=(2, 100))


def rounded_up(base, divisor):
    return CeilToInt(IntTrueDiv(base, divisor))


@instantiate_parametrized_tests
class TestHolds(TestCase):
    @parametrize(
        "condition",
        (
            16 * FloorDiv(S + 15, 16) >= S,
            16 * FloorDiv(S + 15, 16) < S + 16,
            16 * FloorDiv(S, 16) <= S,
            FloorDiv(S, 2) < S,
            S - FloorDiv(S, 2) >= 1,
            FloorDiv(FloorDiv(S, 4) + 1, 2) <= S,
            FloorDiv(T, 16) < 7,
            sympy.Ne(Mod(BLOCKS, 16 * BLOCKS), 0),
            Mod(BLOCKS, 2 * BLOCKS) <= S,
            sympy.Ne(Mod(BLOCKS, 16 * BLOCKS + 1), 0),
            sympy.Ne(PythonMod(OF_REST, 16 * OF_REST), 0),
            Max(1, FloorDiv(S + 2, 2)) < Max(1, FloorDiv(S + 2, 2)) ** 2,
            Max(2, Min(64, S)) <= 64,
            S - Min(S, T) >= 0,
            S - Min(S, FloorDiv(S, 2)) >= 0,
            sympy.Eq(Mod(4 * Min(S, 8 * FloorDiv(S, 8)), 32), 0),
            BitwiseFn_bitwise_and(S + 31, -32) >= S,
            BitwiseFn_bitwise_and(-S, 7) + S >= S,
            sympy.Eq(Mod(BitwiseFn_bitwise_and(S, -16), 8), 0),
            16 * FloorDiv(Min(S, T) + 15, 16) - Min(S, T) >= 0,
            sympy.Eq(Min(HALF, 16 * FloorDiv(HALF + 15, 16)), HALF),
            sympy.Eq(16 * FloorDiv(S + 15, 16), -16 * FloorDiv(-S, 16)),
            sympy.Eq(16 * FloorDiv(S + 15, 16), S + PythonMod(-S, 16)),
            sympy.Eq(FloorDiv(S + 47, 16), FloorDiv(S - 1, 16) + 3),
            sympy.Eq(FloorDiv(15 - S - T, 16), -FloorDiv(S + T, 16)),
            S + Min(S, FloorDiv(S, 2)) - Min(S, FloorDiv(S, 3)) >= 0,
            2 * Min(S, T) - 2 * T < 1,
            sympy.Ne(FloorDiv(S, 3) + FloorDiv(T, 3), -1, evaluate=False),
            sympy.Eq(Mod(8 * S + 8 * PythonMod(-S, 8), 64), 0),
            sympy.Eq(Mod(S + Mod(8 - Mod(S, 8), 8), 8), 0),
            sympy.Eq(Mod(S - Mod(S, 8) + 8, FloorDiv(S - Mod(S, 8), 8) + 1), 0),
            S - Mod(S, 4) >= -1,
            S + PythonMod(-S, 8) < S + 8,
            8 * CeilToInt(IntTrueDiv(S, 8)) >= S,
            8 * T * FloorDiv(S + 1, 2) - 4 * T > 0,
            sympy.expand((2 - T - FloorDiv(T, 3)) * (S - FloorDiv(S, 2))) <= 0,
        ),
    )
    def test_true(self, condition):
        self.assertIs(holds(condition, ANY), True)

    @parametrize(
        "condition",
        (
            sympy.Eq(Mod(4 * S, 64), 0),
            sympy.Eq(Mod(4 * S * T, 64 * T), 0),
            sympy.Eq(4 * S, 64 * FloorDiv(S, 16)),
            sympy.Eq(FloorDiv(S, FloorDiv(S, 16)), 16),
            FloorDiv(S, 16) >= 1,
            S - FloorDiv(S, 16) >= 15,
        ),
    )
    @parametrize("known", (Mod(S, 16), Mod(4 * S, 64), Mod(6 * S, 32)))
    def test_of_a_multiple(self, condition, known):
        multiple, any_size = (sizes(d, s=(2, 100), t=(2, 9)) for d in ({known}, ()))
        self.assertIs(holds(condition, multiple), True)
        self.assertIsNone(holds(condition, any_size))
        for other in (sympy.Eq(Mod(S, 32), 0), FloorDiv(S, 16) > 1):
            self.assertIsNone(holds(other, multiple))
        unbounded = sizes({known}, s=(-int_oo, int_oo), t=(2, 9))
        self.assertIs(holds(sympy.Eq(Mod(S * T, 16), 0), unbounded), True)
        self.assertIsNone(holds(FloorDiv(S, 16) >= 0, unbounded))
        one = sizes({known}, s=(2, 31))
        self.assertIs(holds(S < 17, one), True)
        self.assertIs(holds(sympy.Ne(S, 16), one), False)
        none = sizes({known}, s=(2, 15))
        self.assertIs(holds(sympy.Eq(Mod(S, 16), 0), none), False)

    @parametrize(
        "condition",
        (
            FloorDiv(S, 2) >= S,
            sympy.Eq(FloorDiv(S, 2), S),
            FloorDiv(T, 16) > 6,
            sympy.Eq(Mod(S, 8), 9, evaluate=False),
        ),
    )
    def test_false(self, condition):
        self.assertIs(holds(condition, ANY), False)

    @parametrize(
        "condition",
        (
            FloorDiv(S, 16) < 3,
            BitwiseFn_bitwise_and(S + 31, -24) >= S,
            sympy.Ne(Mod(FloorDiv(S, 16), 16 * FloorDiv(S, 16)), 0),
            16 * FloorDiv(S, 16) < S,
            Max(1, FloorDiv(S, 2)) < Max(1, FloorDiv(S, 2)) ** 2,
            Min(64, S) < 64,
            S - Min(S, T) >= 1,
            2 * FloorDiv(Min(S, T), 2) - Min(S, T) >= 0,
            S - T + Min(S, T) >= 1,
            FloorDiv(S, T) <= S,
            S * FloorDiv(S, 2) <= S,
            sympy.Eq(16 * FloorDiv(S, 16), S),
            sympy.Eq(Mod(S, 8), 0),
            sympy.Ne(Mod(S * T, 4), 0),
            Mod(S, T) < T,
            sympy.Symbol("u") <= FloorDiv(S, 2),
            S <= T,
            sympy.true,
        ),
    )
    def test_cannot_be_told(self, condition):
        self.assertIsNone(holds(condition, ANY))

    @given(
        st.sampled_from(RELATIONS),
        st.tuples(*[st.integers(-2, 2)] * 5),
        st.integers(-5, 5),
    )
    @settings(max_examples=200, deadline=None, derandomize=True)
    def test_is_so_of_minima(self, relation, factors, constant):
        terms = (S, T, Min(S, T), Min(T, 4, FloorDiv(S, 2)), FloorDiv(Min(S, T) + 3, 4))
        condition = relation(sum(f * t for f, t in zip(factors, terms)), constant)
        told = holds(condition, sizes(s=(2, 6), t=(1, 9)))
        if told is not None:
            for s, t in itertools.product(range(2, 7), range(1, 10)):
                actual = condition.subs({S: s, T: t})
                self.assertEqual(bool(actual), told, msg=f"{condition} at {s}, {t}")

    @given(
        st.sampled_from(RELATIONS),
        st.sampled_from(
            (
                FloorDiv(S, 2),
                FloorDiv(S + 3, 4),
                Min(7, S),
                Min(S - T, 4),
                Min(3, FloorDiv(S + T, 2)),
            )
        ),
        st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.integers(-9, 9)),
        st.tuples(st.integers(2, 9), st.integers(0, 25)),
    )
    @settings(max_examples=200, deadline=None, derandomize=True)
    def test_is_so_of_parts(self, relation, part, factors, values):
        first, last = values[0], sum(values)
        once, twice, constant = factors
        at_least_1 = Max(1, part)
        condition = relation(once * at_least_1 + twice * at_least_1**2, constant)
        told = holds(condition, sizes(s=(first, last), t=(2, 4)))
        if told is not None:
            for s, t in itertools.product(range(first, last + 1), (2, 3, 4)):
                actual = condition.subs({S: s, T: t})
                self.assertEqual(bool(actual), told, msg=f"{condition} at {s}, {t}")

    @parametrize("size", (S - T, T - S, S + T, S - FloorDiv(S, 2), S * T, 3 * S * T))
    def test_of_a_compound(self, size):
        """Of which less or nothing follows from its parts."""

        def told(condition):
            return holds_of_compound(condition, size, ValueRanges(2, 9), ANY)

        self.assertIs(told(size < 2), False)
        self.assertIs(told(3 * size >= 6), True)
        self.assertIs(told(sympy.Eq(size, -1, evaluate=False)), False)
        self.assertIs(told(Max(1, size) < Max(1, size) ** 2), True)
        self.assertIsNone(told(size < 5))
        self.assertIsNone(told(sympy.Symbol("u") > 0))

    def test_of_a_part_of_a_compound(self):
        self.assertIsNone(holds_of_compound(S > 7, S * T, ValueRanges(8, 9), ANY))
        self.assertIsNone(
            holds_of_compound(2 * S > 7, 2 * S - 3 * T, ValueRanges(8, 9), ANY)
        )

    @given(
        st.sampled_from(RELATIONS),
        st.lists(
            st.tuples(
                integers,
                integers,
                integers,
                st.integers(1, 9),
                st.sampled_from(
                    (FloorDiv, PythonMod, rounded_up, BitwiseFn_bitwise_and)
                ),
            ),
            max_size=2,
        ),
        st.tuples(integers, integers, integers),
        st.tuples(integers, st.integers(0, 1)),
        st.tuples(st.integers(0, 9), st.integers(0, 25)),
    )
    @example(sympy.Le, [(-16, 1, 15, 16, FloorDiv)], (1, 0, 0), (1, 0), (2, 25))
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_is_so_at_all_sizes(self, relation, quotients, rest, times, values):
        first, last = values[0], sum(values)
        factor, of_other, constant = rest
        expr = factor * S + of_other * T + constant
        for outer, inner, offset, divisor, kind in quotients:
            expr += outer * kind(inner * S + offset, sympy.Integer(divisor))
        condition = relation(sympy.expand(expr * (times[0] + times[1] * T)), 0)
        told = holds(condition, sizes(s=(first, last), t=(2, 4)))
        if told is not None:
            for s in range(first, last + 1):
                for t in (2, 3, 4):
                    actual = condition.subs({S: s, T: t})
                    self.assertEqual(bool(actual), told, msg=f"{condition} at {s}, {t}")


class TestKnownQuotient(TestCase):
    def chunks(self, number):
        """How many parts ``x.chunk(number)`` has."""
        size = FloorDiv(S + number - 1, number)
        return FloorDiv(S + size - 1, size)

    def test_chunks(self):
        self.assertEqual(known_quotient(self.chunks(2), ANY), 2)
        self.assertIsNone(known_quotient(self.chunks(3), ANY))
        self.assertEqual(known_quotient(self.chunks(3), sizes(s=(5, int_oo))), 3)

    def test_of_two_sizes(self):
        self.assertIsNone(known_quotient(FloorDiv(S, T), ANY))
        small = sizes(s=(16, 20), t=(14, 16))
        self.assertEqual(known_quotient(FloorDiv(S, T), small), 1)

    def test_of_what_may_be_nothing(self):
        self.assertIsNone(known_quotient(FloorDiv(T - 2, S - 2), ANY))

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(st.integers(2, 6), st.integers(2, 40))
    def test_is_so_at_all_sizes(self, number, first):
        chunks = self.chunks(number)
        known = known_quotient(chunks, sizes(s=(first, int_oo)))
        if known is not None:
            for value in range(first, 100):
                self.assertEqual(chunks.xreplace({S: sympy.Integer(value)}), known)


@instantiate_parametrized_tests
class TestCandidates(AutotuneTestCase):
    def check(self, padded, **where):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpConfig(padded, **where)], include_fallback=False
        )
        compiled = compile_at(lambda x: op(x) * 2, ramp(40, 4))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        first, _ = where.get("dim_range", (0, 0))
        self.assert_like_eager(
            lambda x: (x + 1) * 2, compiled, lambda n: (ramp(first + n, 4),)
        )

    def test_those_that_work_on_whole_blocks(self):
        """Where the model says that there is no other; who asks if it is one is answered."""

        def averaged(x: torch.Tensor) -> torch.Tensor:
            blocks = x.reshape(2, x.shape[1] // 16, 16, 4)
            return (blocks - blocks.mean(2, keepdim=True)).reshape(x.shape)

        def by_view(x):
            blocks = x.view(2, -1, 16, 4)
            return (blocks - blocks.sum(2, keepdim=True) / 16).view(x.shape)

        def by_flattening(x):
            blocks = x.unflatten(1, (-1, 16))
            return (blocks - blocks.mean(2, keepdim=True)).flatten(1, 2)

        op = define_op(averaged, torch.empty_like)
        ranges = [(0, 512), (512, math.inf)]
        configs = [CustomOpRangeConfig("x", 1, ranges, [by_view, by_flattening])]
        register_custom_op_autotuning(op, configs=configs)

        def model(x):
            torch._check(x.shape[1] % 16 == 0)
            return op(x * 2) + 1

        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with (
            made_up_times(lambda size, index: 1.0 if index >= 0 else 2.0, dim=1),
            self.assertNoLogs(logger, logging.WARNING),
        ):
            compiled = compile_at(model, ramp(2, 128, 4), dims=((0, 1),))
        for blocks in (1, 2, 3, 31, 32, 100):
            x = ramp(2, 16 * blocks, 4) % 97
            with no_recompile:
                self.assertEqual(compiled(x), model(x))

    def test_one_that_pads_to_whole_blocks(self):
        def padded(x):
            rows = x.shape[0]
            blocks = (rows + 15) // 16 * 16
            return F.pad(x, (0, 0, 0, blocks - rows))[:rows] + 1

        self.check(padded)

    def test_those_that_round_otherwise_than_the_op(self):
        """What they return is as large as what the op does, however each says so."""

        def padded(x: torch.Tensor) -> torch.Tensor:
            rows = (x.shape[0] + 15) // 16 * 16
            return F.pad(x, (0, 0, 0, rows - x.shape[0]))

        def as_told(rows):
            def impl(x):
                return F.pad(x, (0, 0, 0, rows(x.shape[0]) - x.shape[0]))

            return impl

        ways = (
            lambda rows: rows + -rows % 16,
            lambda rows: -(-rows // 16) * 16,
            lambda rows: rows + (16 - rows % 16) % 16,
            lambda rows: math.ceil(rows / 16) * 16,
        )
        op = define_op(padded, padded)
        configs = [CustomOpConfig(as_told(way)) for way in ways]
        register_custom_op_autotuning(op, configs=configs)
        compiled = compile_at(lambda x: op(x + 1) * 2, ramp(40, 4))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        self.assert_like_eager(
            lambda x: padded(x + 1) * 2, compiled, lambda n: (ramp(n, 4),)
        )

    def test_one_that_works_on_parts(self):
        self.check(lambda x: torch.cat([part + 1 for part in x.chunk(2)]))

    @parametrize(
        "lacking",
        (
            lambda rows: -rows % 16,
            lambda rows: (16 - rows % 16) % 16,
            lambda rows: 16 - rows % 16,
            lambda rows: math.ceil(rows / 16) * 16 - rows,
            lambda rows: ((rows + 15) & ~15) - rows,
        ),
    )
    def test_one_that_works_on_several_whole_blocks(self, lacking):
        def padded(x):
            rows = x.shape[0]
            blocks = F.pad(x, (0, 0, 0, lacking(rows))).view(-1, 16, 4)
            return (blocks + 1).view(-1, 4)[:rows].clone()

        in_range = {"tensor_name": "x", "dim_index": 0, "dim_range": (32, math.inf)}
        self.check(padded, **in_range)

    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_those_that_work_on_parts_of_a_size_that_is_data(self):
        def in_halves(x):
            result, half = torch.empty_like(x), x.shape[0] // 2
            result[:half] = x[:half] + 1
            result[half:] = x[half:] + 1
            return result

        def padded(x):
            blocks = F.pad(x, (0, 0, 0, -x.shape[0] % 16)).view(-1, 16, 4)
            return (blocks + 1).view(-1, 4)[: x.shape[0]].clone()

        op = identity_op()

        def in_tiles(x):
            full = x.shape[0] // 8 * 8
            return torch.cat([(x[:full].view(-1, 8, 4) + 1).view(-1, 4), x[full:] + 1])

        def in_parts(x):
            rest = x.shape[0] - x.shape[0] // 2
            return torch.cat([x[:rest] + 1, x[rest:] + 1])

        impls = (in_halves, padded, in_tiles, in_parts)
        configs = [CustomOpConfig(impl) for impl in impls]
        register_custom_op_autotuning(op, configs=configs, include_fallback=False)

        def fn(x):
            chosen = x[x[:, 0] > 0]
            return op(chosen), op(chosen[: chosen.shape[0] // 2])

        compiled = compile_at(fn, ramp(40, 4))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        for size in (3, 40, 97, 600):
            x = ramp(size, 4)
            self.assertEqual(compiled(x), (x[1:] + 1, x[1 : 1 + (size - 1) // 2] + 1))


if __name__ == "__main__":
    run_tests()
