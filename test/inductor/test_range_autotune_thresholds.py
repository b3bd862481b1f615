# Owner(s): ["module: inductor"]
"""Implementations that ask how large the size is that is dispatched on."""

from __future__ import annotations

import itertools
import logging
import math
from unittest import mock

import sympy
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from range_autotune_testing import guards_in_code_of, only, SymbolicTestCase
from test_custom_op_autotune import (
    AutotuneTestCase,
    compile_at,
    define_op,
    DEVICE,
    identity_op,
    made_up_times,
    ramp,
)
from torch._dynamo.utils import counters
from torch._inductor.lowering import lowerings
from torch._inductor.test_case import run_tests
from torch._inductor.virtualized import V
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._sympy.functions import (
    BitwiseFn_bitwise_and,
    CeilToInt,
    FloorDiv,
    IntTrueDiv,
    Min,
    Mod,
    PythonMod,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidate_indices import APART, kind_of_variant
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.sizes.thresholds import thresholds


RELATIONS = (sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt, sympy.Eq, sympy.Ne)
ANY = DimRange(0, math.inf)


def rounded_up(size):
    """How many blocks of 16 there are, as ``math.ceil(size / 16)`` says."""
    return CeilToInt(IntTrueDiv(size, 16))


def padded(size):
    """To whole blocks of 16, by ``-size % 16`` more."""
    return size + PythonMod(-size, 16)


def parts(size, number):
    """How many ``torch.chunk`` makes, which may be less than it is asked for."""
    each = FloorDiv(size + number - 1, number)
    return FloorDiv(size + each - 1, each)


@instantiate_parametrized_tests
class TestThresholds(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        self.s, self.t = self.symbol("s", 100), self.symbol("t", 50)

    @parametrize(
        "size, condition, expected",
        (
            (lambda s, t: s, lambda s, t: s <= 16, [17]),
            (lambda s, t: s, lambda s, t: sympy.Not(s < 16), [16]),
            (lambda s, t: s, lambda s, t: sympy.Eq(s - 1, 2), [3, 4]),
            (lambda s, t: s, lambda s, t: sympy.Eq(s - 1, 1), [3]),
            (lambda s, t: s, lambda s, t: sympy.And(s > 8, s <= 16), [9, 17]),
            (lambda s, t: s, lambda s, t: FloorDiv(s, 16) < 4, [64]),
            (lambda s, t: s, lambda s, t: s - FloorDiv(s, 2) <= 8, [17]),
            (lambda s, t: s, lambda s, t: sympy.Eq(2 * s, 5, evaluate=False), []),
            # Numbers that are to be known.
            (lambda s, t: s, lambda s, t: Min(FloorDiv(s, 16), 2), [16, 32]),
            (lambda s, t: s, lambda s, t: FloorDiv(1024, s), [1025]),  # many below
            (lambda s, t: s, lambda s, t: parts(s, 4), [10]),
            (lambda s, t: s, lambda s, t: sympy.Eq(parts(s, 8), 8), [50]),
            (lambda s, t: s, lambda s, t: FloorDiv(2**70, s), []),
            # In terms of another size than the one that is dispatched on.
            (lambda s, t: 2 * s + 1, lambda s, t: s <= 16, [35]),
            (lambda s, t: 200 - s, lambda s, t: s <= 16, [184]),
            (lambda s, t: s * t, lambda s, t: s * t <= 16, [17]),
            (lambda s, t: s * t, lambda s, t: 4 * s * t < 64, [16]),
            (lambda s, t: s + t, lambda s, t: s <= 16 - t, [17]),
            # Where s is 16 or 17 the size is 8.
            (lambda s, t: FloorDiv(s, 2), lambda s, t: s <= 16, [8, 9]),
            # Too many, none, of others, and where nobody goes.
            (lambda s, t: s, lambda s, t: sympy.Eq(Mod(s, 8), 0), []),
            (lambda s, t: s, lambda s, t: sympy.Eq(4 * s, 64 * FloorDiv(s, 16)), []),
            (lambda s, t: s, lambda s, t: 16 * FloorDiv(s, 16) < s, []),
            (lambda s, t: s, lambda s, t: sympy.Eq(s, 16 * rounded_up(s)), []),
            (
                lambda s, t: s,
                lambda s, t: sympy.Eq(BitwiseFn_bitwise_and(s, 15), 0),
                [],
            ),
            (lambda s, t: s, lambda s, t: rounded_up(s) <= 4, [65]),
            (lambda s, t: s, lambda s, t: FloorDiv(padded(s), 16) <= 4, [65]),
            (lambda s, t: s, lambda s, t: sympy.Ne(FloorDiv(padded(s), 16), 1), [17]),
            (lambda s, t: s, lambda s, t: sympy.Eq(padded(s), s), []),
            (
                lambda s, t: s,
                lambda s, t: sympy.Or(sympy.Eq(s, 16), sympy.Eq(Mod(s, 16), 0)),
                [],
            ),
            (lambda s, t: s, lambda s, t: s + 1, []),
            (lambda s, t: s, lambda s, t: t <= 16, []),
            (lambda s, t: s, lambda s, t: s <= t, []),
            (lambda s, t: s * t, lambda s, t: s <= 16, []),
            (lambda s, t: s, lambda s, t: 4096 * s < 2**31, []),
        ),
    )
    def test_first_sizes_with_another_answer(self, size, condition, expected):
        size, condition = size(self.s, self.t), condition(self.s, self.t)
        self.assertEqual(thresholds(condition, size, ANY), expected)

    def test_of_multiples(self):
        """No part of a range is left without a size."""
        self.shape_env.divisible.add(Mod(self.s, 8))
        for condition, expected in (
            (self.s < 9, [16]),
            (self.s <= 16, [24]),
            (sympy.Eq(self.s, 24), [24, 32]),
            (sympy.Eq(FloorDiv(self.s, 8), 1), [16]),
            (self.s > 60, []),
        ):
            self.assertEqual(
                thresholds(condition, self.s, DimRange(3, 64)), expected, condition
            )

    def test_within_a_range(self):
        for sizes, expected in (
            (DimRange(0, 17), []),
            (DimRange(17, 64), []),
            (DimRange(16, 18), [17]),
        ):
            self.assertEqual(thresholds(self.s <= 16, self.s, sizes), expected)

    def test_within_a_range_without_a_size_that_can_be(self):
        for condition in (self.s <= 16, sympy.Eq(parts(self.s, 4), 4)):
            self.assertEqual(thresholds(condition, 2 * self.s, DimRange(29, 30)), [])

    @given(
        st.lists(
            st.tuples(
                st.sampled_from(RELATIONS),
                st.integers(-3, 3),
                st.integers(1, 5),
                st.integers(-20, 20),
            ),
            min_size=1,
            max_size=3,
        ),
        st.sampled_from((sympy.And, sympy.Or)),
        st.integers(2, 9),
        st.integers(2, 30),
    )
    @settings(max_examples=200, deadline=None, derandomize=True)
    def test_between_them_there_is_one_answer(self, terms, join, start, length):
        condition = join(
            *(
                relation(factor * FloorDiv(self.s, divisor), constant)
                for relation, factor, divisor, constant in terms
            )
        )
        sizes = range(start, start + length)
        answers = [condition.subs(self.s, size) for size in sizes]
        assume(self.s in condition.free_symbols)
        expected = [
            size
            for size, before, answer in zip(sizes[1:], answers, answers[1:])
            if before != answer
        ]
        found = thresholds(condition, self.s, DimRange(start, start + length))
        self.assertEqual(found, expected)


def by_size(x):
    """As kernel libraries do it."""
    if x.shape[0] <= 16:
        return x + 1
    return x + 2 if x.shape[0] <= 64 else x + 3


def always(x):
    return x + 9


# Of ``by_size``.
MARKERS = {2: 1, 16: 1, 17: 2, 64: 2, 65: 3, 511: 3, 512: 3, 5000: 3}


def pieces_fastest(size, index):
    """Those behind the two that are registered, which are pieces of them."""
    return 1.0 if index >= 2 else 2.0


@instantiate_parametrized_tests
class TestCompiled(AutotuneTestCase):
    def registered(self, *implementations, ranges=((0, 512), (512, math.inf))):
        op = identity_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, [*ranges], [*implementations])],
            name="op",
        )
        return op

    def compiled(self, op, *args, **kwargs):
        """With pieces the fastest, and no warning."""
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with made_up_times(pieces_fastest), self.assertNoLogs(logger, logging.WARNING):
            return compile_at(op, *args, **kwargs)

    def compiled_with_warning(self, op, hint=100):
        """With pieces the fastest, and the one warning."""
        logger = "torch._inductor.kernel.custom_op"
        with (
            made_up_times(pieces_fastest),
            self.assertLogs(logger, logging.WARNING) as logs,
        ):
            compiled = compile_at(op, ramp(hint, 4))
        (record,) = logs.records
        return compiled, record.getMessage()

    @parametrize("hint", (8, 100))
    @parametrize("ranges", (((0, 512), (512, math.inf)), ((0, math.inf),)))
    def test_ranges_are_cut_where_the_answer_changes(self, hint, ranges):
        op = self.registered(by_size, always, ranges=ranges)
        with (
            made_up_times(pieces_fastest),
            self.assertLogs("torch._inductor.kernel.custom_op", "INFO") as logs,
        ):
            compiled = compile_at(op, ramp(hint, 4))
        self.assert_markers(compiled, MARKERS)
        cut = f"range {DimRange(*ranges[0])} is cut at 17, 65, where answers"
        self.assertIn(cut, logs.records[0].getMessage())
        self.assertNotIn("WARNING", {record.levelname for record in logs.records})
        # In vain twice, in three pieces; the other one, the op and its plain lowering.
        self.assertEqual(counters["inductor"]["custom_op_candidate_traces"], 8)

    @parametrize("ranges", (((0, 512), (512, math.inf)), ((0, math.inf),)))
    def test_code_is_generated_for_each_answer(self, ranges):
        def asking(x):
            return x + 1

        def condition(size):
            return sympy.Or(size < 40, size >= 600)

        op = self.registered(asking, always, ranges=ranges)
        with guards_in_code_of("asking", condition):
            compiled = self.compiled(op, ramp(100, 4))
        self.assert_markers(compiled, dict.fromkeys((2, 39, 40, 511, 512, 700), 1))

    def test_each_answer_s_code_has_a_branch(self):
        """Where Inductor asks, and not the implementation: there is one graph for all."""

        def lower(x):
            is_small = V.graph.sizevars.evaluate_expr(sympy.Lt(x.get_size()[0], 40))
            return lowerings[torch.ops.aten.add](x, 1.0 if is_small else 2.0)

        def asking(x):
            return torch.ops.aten.tanh(x)

        op = self.registered(asking, ranges=[(0, math.inf)])
        with (
            mock.patch.dict(lowerings, {torch.ops.aten.tanh.default: lower}),
            made_up_times(lambda size, index: 1.0 if index >= 0 else 2.0),
        ):
            compiled = compile_at(op, ramp(100, 4))
        self.assert_markers(compiled, {2: 1, 39: 1, 40: 2, 512: 2})

    def test_neighbours_and_variants_are_in_each_part(self):
        def asking(x):
            return x + 1

        kinds = {}

        def note_kind(size, index):
            kinds.setdefault(size, set()).add(kind_of_variant(index))
            return 1.0 if index > 0 else 2.0

        op = self.registered(asking, ranges=((0, math.inf),))
        with (
            guards_in_code_of("asking", lambda size: size < 40),
            made_up_times(note_kind),
            self.assertLogs("torch._inductor.kernel.custom_op", "INFO") as logs,
            config.patch(fusion_speedup_threshold=1.0),
        ):
            compiled = compile_at(lambda x: op(x * 2) + 1, ramp(100, 4))
        log = "".join(logs.output)
        self.assertIn("range [0, inf) is cut at 40", log)
        self.assertNotIn("do not work with these neighbours", log)
        for size in (2, 39, 40, 700):
            self.assertEqual(compiled(ramp(size, 4)), ramp(size, 4) * 2 + 2)
        for size, found in kinds.items():
            self.assertIn(APART, found, msg=f"at size {size}")

    def test_ops_in_a_row_whose_code_guards_stay_together(self):
        def asking(x):
            return x + 1

        op = self.registered(asking, ranges=((0, math.inf),))
        other = self.registered(always, ranges=((0, math.inf),))
        with (
            guards_in_code_of("asking", lambda size: size < 40),
            made_up_times(pieces_fastest),
            self.assertLogs("torch._inductor.kernel.custom_op", "INFO") as logs,
        ):
            compiled = compile_at(lambda x: other(op(x * 2).cos()) + 1, ramp(100, 4))
        log = "".join(logs.output)
        self.assertIn("is cut at 40", log)
        self.assertEqual(log.count("Autotuning Summary"), 1)
        for size in (2, 39, 40, 700):
            marker = compiled(ramp(size, 4)) - (ramp(size, 4) * 2 + 1).cos() - 1
            self.assertIn(round(marker.mean().item()), (0, 9))

    def test_neighbours_stay_where_code_guards_on_another_size(self):
        """Of a sort of up to 32767 elements Inductor makes faster code, but it need not."""

        def rows(x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
            return x[ids.argsort(stable=True) % 2]

        def new_rows(x, ids):
            return x.new_empty(ids.shape[0], x.shape[1])

        op = define_op(rows, new_rows)
        configs = [CustomOpRangeConfig("x", 0, [(0, math.inf)], [rows])]
        register_custom_op_autotuning(op, configs, name="op")
        x, ids = ramp(8, 4), torch.tensor([3, 1, 2, 0], device=DEVICE)
        with (
            made_up_times(only(0)),
            self.assertLogs("torch._inductor.kernel.custom_op", "INFO") as logs,
        ):
            compiled = compile_at(
                lambda x, ids: op(x, ids).cos(), x, ids, dims=((0, 0), (1, 0))
            )
        log = "".join(logs.output)
        self.assertNotIn("do not work with these neighbours", log)
        self.assertIn("Range [0, inf): rows", log)
        for size in (3, 40_000):
            ids = torch.arange(size, 0, -1, device=DEVICE)
            self.assertEqual(compiled(x, ids), rows(x, ids).cos())

    def test_times_in_cut_ranges_are_recalled(self):
        def asking(x):
            return x + 1

        op = self.registered(asking, ranges=((0, 512),))
        for is_first in (True, False):
            counters.clear()
            with guards_in_code_of("asking", lambda size: size < 40):
                compile_at(op, ramp(100, 4))
            timings = counters["inductor"]["custom_op_candidate_timings"]
            self.assertEqual(timings > 0, is_first)

    def test_who_asks_nothing_competes_in_all_parts(self):
        op = self.registered(always, by_size)
        with made_up_times(lambda size, index: 1.0 if index == 0 else 2.0) as sizes:
            compiled = compile_at(op, ramp(100, 4))
        self.assertTrue({2, 16, 17, 64, 65, 511, 512} <= {*sizes}, msg=sizes)
        self.assert_markers(compiled, dict.fromkeys(MARKERS, 9))

    def test_two_that_ask_at_other_sizes(self):
        def other(x):
            return x + 4 if x.shape[0] < 40 else x + 5

        def fastest(size, index):
            """Pieces of the second one; the first of its own where the other is not."""
            return 1.0 + abs(index - (5 if size < 40 else 6)) / 10

        op = self.registered(by_size, other)
        with made_up_times(fastest):
            compiled = compile_at(op, ramp(100, 4))
        self.assert_markers(compiled, {2: 4, 17: 4, 39: 4, 40: 5, 65: 5, 512: 5})

    def test_out_where_it_asks_too_much(self):
        def aligned(x):
            if x.shape[0] <= 16:
                return x + 1
            return x + 2 if x.shape[0] // 8 % 2 == 0 else x + 3

        op = self.registered(aligned, always)
        compiled, message = self.compiled_with_warning(op)
        self.assertIn(
            "'aligned' is left out in range [17, inf): it guards on a size", message
        )
        self.assertEqual(compiled(ramp(16, 4)), ramp(16, 4) + 1)
        self.assertNotEqual(compiled(ramp(17, 4))[0, 0], 1)

    def test_out_of_all_where_no_answer_helps(self):
        def never(x):
            assert not (x.shape[0] < 64 or x.shape[0] > 32)
            return x + 1

        _, message = self.compiled_with_warning(self.registered(never, always))
        self.assertIn("'never' is left out: AssertionError", message)

    def test_who_asks_at_many_sizes_is_cut_at_some(self):
        def many(x):
            for size in range(16, 1600, 16):
                if x.shape[0] < size:
                    return x + 1
            return x + 1

        compiled, message = self.compiled_with_warning(self.registered(many, always))
        self.assertIn("it guards on a size", message)
        self.assert_markers(compiled, {8: 1, 100: 1})

    @parametrize("multiple", (1, 8))
    def test_the_next_power_of_two(self, multiple):
        """By which kernels choose their blocks; in a range that ends soon."""

        def by_blocks(x):
            n = x.shape[0] - 1
            for bits in (1, 2, 4, 8):
                n |= n >> bits
            return x + int(max(16, n + 1))

        op = self.registered(by_blocks, always, ranges=((0, 100),))

        def model(x):
            torch._check(x.shape[0] % multiple == 0)
            return op(x)

        compiled = self.compiled(model, ramp(304, 4))
        markers = {2: 16, 16: 16, 17: 32, 32: 32, 33: 64, 64: 64, 65: 128, 99: 128}
        markers |= {8: 16, 24: 32, 40: 64, 72: 128, 96: 128, 104: 0}
        of_multiples = {n: m for n, m in markers.items() if n % multiple == 0}
        self.assert_markers(compiled, of_multiples)

    def test_of_a_product(self):
        """Tokens of a batch of sequences, too few of them for the model's own batch."""
        op = self.registered(by_size, always)
        compiled = self.compiled(
            lambda x: op(x.flatten(0, 1)), ramp(30, 40, 4), dims=((0, 0), (0, 1))
        )
        for batch, tokens in ((2, 8), (3, 5), (4, 8), (2, 32), (5, 13), (5, 200)):
            x = ramp(batch, tokens, 4)
            marker = 1 if batch * tokens <= 16 else 2 if batch * tokens <= 64 else 3
            self.assertEqual(compiled(x), x.flatten(0, 1) + marker)

    def test_of_a_sum(self):
        op = self.registered(by_size, always)
        compiled = self.compiled(
            lambda x, y: op(torch.cat([x, y])),
            ramp(30, 4),
            ramp(40, 4),
            dims=((0, 0), (1, 0)),
        )
        for n, m in ((2, 3), (8, 8), (8, 9), (60, 4), (4, 61), (300, 300)):
            x, y = ramp(n, 4), ramp(m, 4)
            marker = 1 if n + m <= 16 else 2 if n + m <= 64 else 3
            self.assertEqual(compiled(x, y), torch.cat([x, y]) + marker)

    def test_of_a_size_that_is_data(self):
        op = self.registered(by_size, always)
        x = ramp(100, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        compiled = self.compiled(op, x, dims=())
        self.assert_markers(compiled, MARKERS)

    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_of_a_sum_with_one_that_is_data(self):
        """Torch's error quotes the question with the model's size in place of the other."""
        op = self.registered(by_size, always)

        def fn(x, y):
            return op(torch.cat([x, y[y[:, 0] > 0]]))

        args = ramp(30, 4), ramp(40, 4)
        compiled = self.compiled(fn, *args, dims=((0, 0), (1, 0)))
        for n, m in ((2, 3), (8, 9), (8, 10), (60, 5), (60, 6), (4, 62), (300, 300)):
            x, y = ramp(n, 4), ramp(m, 4)
            total = n + m - 1  # the first row of y begins with 0
            marker = 1 if total <= 16 else 2 if total <= 64 else 3
            self.assertEqual(compiled(x, y), torch.cat([x, y[1:]]) + marker)

    def test_with_neighbours_and_in_a_row(self):
        """Combinations of both answers; the fastest is the last of them there is."""
        op, other = self.registered(by_size, always), self.registered(by_size, always)

        def last(size, index):
            return 1.0 / (index + 10)

        with made_up_times(last):
            compiled = compile_at(lambda x: other(op(x * 2).cos()) + 1, ramp(100, 4))
        found = set()
        for size, marker in MARKERS.items():
            x, both = ramp(size, 4), itertools.product((marker, 9, 0), repeat=2)
            result = compiled(x)
            found |= {
                (first != 9, second != 9)
                for first, second in both
                if torch.allclose(result, (2 * x + first).cos() + second + 1)
            }
        self.assertIn(True, itertools.chain(*found))

    def test_cuts_of_all_candidates_have_a_limit(self):
        def asks_from(start):
            def impl(x):
                for size in range(start, start + 60, 10):
                    if x.shape[0] < size:
                        return x + 1
                return x + 1

            return impl

        op = self.registered(*(asks_from(20 + i) for i in range(6)))
        with (
            made_up_times(lambda size, index: 1.0) as sizes,
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
        ):
            compile_at(op, ramp(100, 4))
        # Of 36 cuts: three sizes of a range each, and of the first one without.
        self.assertLess(len(sizes), 3 * (16 + 2) + 5)
        self.assertIn("it guards on a size", logs.records[-1].getMessage())

    @parametrize("good_first", (False, True))
    def test_who_is_out_of_all_parts_uses_no_cuts_up(self, good_first):
        def fails_from(start):
            def fails(x):
                for size in range(start, start + 80, 10):
                    if x.shape[0] < size:
                        break
                raise RuntimeError("no kernel")

            return fails

        def good(x):
            return x + 1 if x.shape[0] <= 500 else x + 2

        bad = fails_from(20), fails_from(25)
        order = (good, *bad) if good_first else (*bad, good)
        op = self.registered(*order, ranges=((0, math.inf),))
        with (
            made_up_times(pieces_fastest),
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
        ):
            compiled = compile_at(op, ramp(100, 4))
        self.assertEqual(len(logs.records), 2)
        for record in logs.records:
            self.assertIn("no kernel", record.getMessage())
        self.assert_markers(compiled, {8: 1, 500: 1, 501: 2})

    @parametrize("hint", (9, 100))
    def test_who_takes_parts_of_a_size(self, hint):
        """Of few rows there are fewer, now and then, be it where the model is compiled."""

        def in_parts(x):
            return torch.cat([part + 1 for part in x.chunk(4)])

        op = self.registered(in_parts, ranges=((0, math.inf),))
        compiled, message = self.compiled_with_warning(op, hint)
        self.assertIn("'in_parts' is left out in range [2, 10)", message)
        self.assert_markers(compiled, {2: 0, 9: 0, 10: 1, 11: 1, 700: 1})

    def test_who_takes_parts_of_a_product(self):
        def in_parts(x):
            return torch.cat([part + 1 for part in x.chunk(4)])

        op = self.registered(in_parts, ranges=((0, math.inf),))
        with made_up_times(pieces_fastest):
            compiled = compile_at(
                lambda x: op(x.flatten(0, 1)), ramp(5, 12, 4), dims=((0, 0), (0, 1))
            )
        for batch, tokens in ((2, 2), (3, 3), (2, 5), (4, 3), (6, 50)):
            x = ramp(batch, tokens, 4)
            marker = 1 if batch * tokens >= 10 else 0
            self.assertEqual(compiled(x), x.flatten(0, 1) + marker)

    def test_question_without_a_value_somewhere(self):
        def shifted(x):
            return x + 1 if (1 << (x.shape[0] - 20)) < 3 else x + 2

        op = self.registered(shifted, always, ranges=((0, 512),))
        _, message = self.compiled_with_warning(op)
        self.assertIn("'shifted' is left out: it guards", message)

    def test_one_that_asks_whether_a_part_is_one_row(self):
        """As views in another order do, where torch cannot do without an answer."""

        def shifted(x):
            later = x[1:].t().contiguous().t()
            return torch.cat([later * 0 + x[1:], x[:1] * 1]).roll(1, 0) + 1

        op = self.registered(shifted, always)
        with (
            made_up_times(pieces_fastest),
            self.assertLogs("torch._inductor.kernel.custom_op", "INFO") as logs,
        ):
            compiled = compile_at(op, ramp(100, 4))
        self.assertIn("[0, 512) is cut at 3, where", logs.records[0].getMessage())
        self.assertNotIn("WARNING", {record.levelname for record in logs.records})
        self.assert_markers(compiled, dict.fromkeys((2, 3, 100, 600), 1))


if __name__ == "__main__":
    run_tests()
