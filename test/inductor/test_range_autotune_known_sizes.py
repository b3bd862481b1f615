# Owner(s): ["module: inductor"]
"""Implementations that rely on the ranges that they compete in."""

from __future__ import annotations

import contextlib
import logging
import math

import sympy
from range_autotune_testing import SymbolicTestCase
from test_custom_op_autotune import (
    AutotuneTestCase,
    compile_at,
    define_op,
    identity_op,
    made_up_times,
    ramp,
)
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError
from torch.testing import FileCheck
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._sympy.functions import FloorDiv

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.sizes.guards import frozen_shapes
from torch._inductor.range_autotune.sizes.known_sizes import knowing, KnownSize


def within(size, start, end):
    return knowing(KnownSize(size, DimRange(start, end)))


@instantiate_parametrized_tests
class TestKnowing(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        self.s0 = self.symbol("s0", 100)

    def node(self, expr):
        return self.shape_env.create_symintnode(expr, hint=None)

    def knows(self, condition):
        return self.shape_env._maybe_evaluate_static(condition) == sympy.true

    def test_in_the_block_only(self):
        condition = sympy.Lt(self.s0, 17)
        self.assertFalse(self.knows(condition))
        with within(self.s0, 0, 17):
            self.assertTrue(self.knows(condition))
            self.assertFalse(self.knows(sympy.Lt(self.s0, 16)))
            with within(self.s0, 0, 16):
                self.assertTrue(self.knows(sympy.Lt(self.s0, 16)))
            self.assertFalse(self.knows(sympy.Lt(self.s0, 16)))
        self.assertFalse(self.knows(condition))

    def test_behind_an_error(self):
        with contextlib.suppress(RuntimeError), within(self.s0, 0, 17):
            raise RuntimeError
        self.assertFalse(self.knows(sympy.Lt(self.s0, 17)))

    def test_no_answer_is_kept(self):
        """The model is compiled with 100: there, to be less than 17 is a guard."""
        with within(self.s0, 0, 17), frozen_shapes():
            self.assertTrue(bool(self.node(self.s0) < 17))
        self.assertFalse(bool(self.node(self.s0) < 17))
        (guard,) = self.shape_env.guards
        self.assertEqual(guard.expr, sympy.Ge(self.s0, 17))

    def test_no_fake_result_is_kept(self):
        """The first 17 of at most 16 are all."""

        def cut():
            with self.fake_mode:
                x = torch.empty(self.node(self.s0), device="cpu")
                return x[:17].shape[0]

        with within(self.s0, 0, 17):
            self.assertEqual(cut().node.expr, self.s0)
        with frozen_shapes(), self.assertRaises(_ShapeEnvGuardError):
            cut()

    @parametrize(
        "size, sizes, first, last",
        (
            (lambda s: 2 * s, (8, 100), 4, 49),
            (lambda s: 2 * s + 5, (8, 100), 2, 47),
            (lambda s: s - 3, (8, math.inf), 11, math.inf),
            (lambda s: 100 - 2 * s, (20, 81), 10, 40),
            (lambda s: FloorDiv(s, 4), (8, 16), 32, 63),
            (lambda s: 8 * FloorDiv(s + 7, 8), (32, math.inf), 25, math.inf),
            (lambda s: -8 * FloorDiv(-s, 8), (32, 64), 25, 56),
            (lambda s: 2 * FloorDiv(FloorDiv(s, 3) + 1, 4) + 1, (5, 8), 21, 44),
        ),
    )
    def test_multiples(self, size, sizes, first, last):
        with within(size(self.s0), *sizes):
            self.assertTrue(self.knows(sympy.Ge(self.s0, first)))
            self.assertFalse(self.knows(sympy.Gt(self.s0, first)))
            if last < math.inf:
                self.assertTrue(self.knows(sympy.Le(self.s0, last)))
                self.assertFalse(self.knows(sympy.Lt(self.s0, last)))

    @parametrize("make", (lambda s, t: s * t, lambda s, t: s + t, lambda s, t: s * s))
    def test_bounds_of_others(self, make):
        """Of a product, what it is asked for where its range begins and ends."""
        size = make(self.s0, self.symbol("s1", 50))
        below = [sympy.Lt(size, 64), sympy.Le(size, 63), sympy.Gt(64, size)]
        above = [sympy.Ge(size, 64), sympy.Gt(size, 63), sympy.Ne(size, 63)]
        with within(size, 0, 64):
            self.assertTrue(all(map(self.knows, below)))
            self.assertFalse(any(map(self.knows, above)))
            self.assertFalse(self.knows(sympy.Lt(size, 50)))
        with within(size, 64, math.inf):
            self.assertFalse(any(map(self.knows, below)))
            self.assertTrue(all(map(self.knows, above[:2])))
        self.assertFalse(any(map(self.knows, below + above)))
        self.assertEqual(self.shape_env.axioms, {})

    def test_what_says_nothing(self):
        before = dict(self.shape_env.var_to_range)
        with within(sympy.Integer(100), 8, 200):
            self.assertEqual(self.shape_env.var_to_range, before)
        for sizes in ((0, 2), (0, math.inf)):  # the least is 2
            with within(self.s0, *sizes):
                self.assertEqual(self.shape_env.var_to_range, before)
        with knowing(None):
            self.assertEqual(self.shape_env.var_to_range, before)

    def test_where_torch_asserts_that_answers_are_the_hints(self):
        size = self.shape_env.create_symintnode(self.s0, hint=100)
        with (
            symbolic_config.patch(backed_size_oblivious=True),
            within(self.s0, 0, 17),
            frozen_shapes(),
        ):
            self.assertTrue(size < 17)
            with self.assertRaises(_ShapeEnvGuardError):
                bool(size < 16)


def few(x):
    assert x.shape[0] < 64
    return x + 1


def many(x):
    return x + 2 if x.shape[0] >= 64 else x.clone()


def few_or_many(x):
    return few(x) if x.shape[0] < 64 else many(x)


def first(x):
    return x[:, :64] + 1


def whole(x):
    return x + 2


# By size, of few below 64 and many from there.
MARKERS = {2: 1, 63: 1, 64: 2, 128: 2, 3000: 2}


def fastest(size, index):
    return 2.0 if index < 0 else 1.0


@instantiate_parametrized_tests
class TestCompiled(AutotuneTestCase):
    def registered(self, *ranges, dim=0):
        """An op whose implementations each compete in a range."""
        op = identity_op()
        configs = [
            CustomOpConfig(fn, tensor_name="x", dim_index=dim, dim_range=sizes)
            for fn, sizes in ranges
        ]
        register_custom_op_autotuning(op, configs=configs, name="op")
        return op

    def few_and_many(self):
        return self.registered((few, (0, 64)), (many, (64, math.inf)))

    @parametrize("hint", (32, 128))
    @parametrize("cpp_wrapper", (False, True))
    def test_each_in_its_own(self, hint, cpp_wrapper):
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with (
            config.patch(cpp_wrapper=cpp_wrapper),
            made_up_times(fastest),
            self.assertNoLogs(logger, logging.WARNING),
        ):
            compiled = compile_at(self.few_and_many(), ramp(hint, 4))
        self.assert_markers(compiled, MARKERS)
        self.assertEqual(counters["inductor"]["custom_op_decomp_guard_skips"], 0)

    @parametrize("hint", (32, 128))
    def test_oblivious_sizes(self, hint):
        """One graph for sizes 0 and 1, too; whoever asks is traced for each answer."""
        op = identity_op()
        ranges = [(0, 128), (128, math.inf)]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, ranges, [few_or_many])]
        )
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with (
            symbolic_config.patch(backed_size_oblivious=True),
            made_up_times(fastest),
            self.assertNoLogs(logger, logging.WARNING),
        ):
            compiled = compile_at(op, ramp(hint, 4))
        self.assert_markers(compiled, {0: 1, 1: 1, **MARKERS})

    def test_not_elsewhere(self):
        op = self.registered((few, (0, 65)), (many, (65, 200)))
        with (
            made_up_times(fastest),
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
        ):
            compiled = compile_at(op, ramp(128, 4))
        (record,) = logs.records
        self.assertIn(
            "'few' is left out in range [64, 65): AssertionError", record.getMessage()
        )
        self.assert_markers(compiled, {32: 1, 63: 1, 64: 0, 65: 2, 199: 2, 3000: 0})

    @parametrize("hint", (32, 128))
    def test_guards_of_emitted_code(self, hint):
        """
        Inductor asks whether the end of a slice, the largest integer there is, is below the
        size, which it then takes for granted for all sizes.
        """

        def written(x):
            y = torch.zeros_like(x)
            y[1:] = x[1:]
            y[:1] = x[:1]
            return y + 2

        op = self.registered((few, (0, 64)), (written, (64, math.inf)))
        with made_up_times(fastest):
            compiled = compile_at(op, ramp(hint, 4))
        self.assert_markers(compiled, MARKERS)

    def test_of_a_product(self):
        """Tokens of a batch of sequences, as one dimension."""
        op = self.few_and_many()
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with made_up_times(fastest), self.assertNoLogs(logger, logging.WARNING):
            compiled = compile_at(
                lambda x: op(x.flatten(0, 1)).view(x.shape),
                ramp(3, 40, 4),
                dims=((0, 0), (0, 1)),
            )
        for batch, tokens in ((3, 21), (4, 16), (2, 31), (5, 200)):
            x = ramp(batch, tokens, 4)
            self.assertEqual(compiled(x), x + (1 if batch * tokens < 64 else 2))

    def test_of_a_padded_size(self):
        """Who views it in blocks needs more than one, or Inductor asks."""

        def blocks(x):
            return x.view(-1, 8, x.shape[1]).add(2).flatten(0, 1)

        op = self.registered((few, (0, 32)), (blocks, (32, math.inf)))

        def fn(x):
            rows = -(-x.shape[0] // 8) * 8
            return op(torch.nn.functional.pad(x, (0, 0, 0, rows - x.shape[0])))

        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with made_up_times(fastest), self.assertNoLogs(logger, logging.WARNING):
            compiled = compile_at(fn, ramp(100, 4))
        for n in (2, 24, 25, 64, 99):
            x = ramp(n, 4)
            marker = 1 if n < 25 else 2
            self.assertEqual(compiled(x)[:n], x + marker)

    def test_one_that_asks_in_which_of_its_ranges_it_is(self):
        """It is traced for all of them in vain, then for those with each answer."""

        def both(x):
            return x + 1 if x.shape[0] < 64 else x + 2

        op = identity_op()
        ranges = [(0, 64), (64, 128), (128, math.inf)]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, ranges, [both, few])], name="op"
        )
        with (
            made_up_times(fastest),
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
        ):
            compiled = compile_at(op, ramp(100, 4))
        self.assert_markers(compiled, MARKERS)
        # Each in vain and twice; the op itself and its plain lowering.
        self.assertEqual(counters["inductor"]["custom_op_candidate_traces"], 8)
        # The other one competes where it can.
        (record,) = logs.records
        where = "op: candidate 'few' is left out in range [64, inf): AssertionError"
        self.assertIn(where, record.getMessage())

    def test_reason_is_what_no_cut_answers(self):
        def even_blocks(x):
            marker = 1 if x.shape[0] < 64 else 2
            return x if x.shape[0] // 8 % 2 else x + marker

        op = identity_op()
        configs = [CustomOpRangeConfig("x", 0, [(0, math.inf)], [even_blocks])]
        register_custom_op_autotuning(op, configs=configs, name="op")
        with (
            made_up_times(fastest),
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
        ):
            compile_at(op, ramp(100, 4))
        (record,) = logs.records
        self.assertRegex(record.getMessage(), r"guards on a size, .*(Mod|%)")

    def test_nothing_is_known_of_a_range_without_sizes(self):
        """It is measured at the model's size, which its code need not hold for."""

        def small(x):
            assert x.shape[0] < 72
            rows = torch.zeros(72, 4, device=x.device)
            rows[torch.arange(x.shape[0], device=x.device)] = x
            return rows[: x.shape[0]] + 1

        op = self.registered((small, (65, 72)))

        def model(x):
            torch._check(x.shape[0] % 8 == 0)
            return op(x)

        with (
            made_up_times(fastest),
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
        ):
            compiled = compile_at(model, ramp(4096, 4))
        self.assertIn("it guards on a size", logs.records[0].getMessage())
        self.assert_markers(compiled, {64: 0, 72: 0, 800: 0})

    @parametrize("hint", (20, 100))
    def test_shape_of_results_where_the_range_proves_it(self, hint):
        """Whatever the model is compiled with."""

        def padded(x: torch.Tensor) -> torch.Tensor:
            return x.new_zeros((x.shape[0] + 63) // 64 * 64, x.shape[1])

        op = define_op(padded, padded)

        def one_block(x):
            return x.new_ones(64, x.shape[1])

        register_custom_op_autotuning(
            op,
            configs=[
                CustomOpConfig(
                    one_block, tensor_name="x", dim_index=0, dim_range=(2, 65)
                )
            ],
        )
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with made_up_times(fastest), self.assertNoLogs(logger, logging.WARNING):
            compiled = compile_at(op, ramp(hint, 4))
        for size in (2, 64, 65, 300):
            result = compiled(ramp(size, 4))
            self.assertEqual(result, torch.full_like(result, size < 65))
            self.assertEqual(len(result), (size + 63) // 64 * 64)

    def test_equal_calls(self):
        """One is traced, for the other's size, too."""
        op = self.registered((first, (0, 64)), (whole, (64, math.inf)), dim=1)
        with made_up_times(fastest, dim=1):
            compiled = compile_at(
                lambda x, y: (op(x), op(y)),
                ramp(4, 128),
                ramp(4, 96),
                dims=((0, 1), (1, 1)),
            )
        # The op at both, the implementations and its plain lowering at one.
        self.assertEqual(counters["inductor"]["custom_op_candidate_traces"], 5)
        for n, m in ((2, 3000), (63, 64), (100, 32)):
            results = compiled(ramp(4, n), ramp(4, m))
            for result, size in zip(results, (n, m)):
                self.assertEqual(result, ramp(4, size) + (1 if size < 64 else 2))

    def test_with_neighbours(self):
        """What joins an op is traced with it, and its size need not be the tensor's."""
        op = self.few_and_many()

        def model(x):
            return op(x.view(-1, 4).relu()).sin() * 2

        with made_up_times(fastest):
            compiled = compile_at(model, ramp(128, 8))
        for n in (2, 31, 32, 33, 1000):
            x = ramp(n, 8)
            added = 1 if 2 * n < 64 else 2
            self.assertEqual(compiled(x), (x.view(-1, 4) + added).sin() * 2)

    @parametrize("hint", (6, 16))
    @parametrize("parts", (lambda x: x.split(1), lambda x: x.unbind(0)))
    def test_as_many_parts_as_there_are_rows(self, hint, parts):
        """Where Inductor asks for the number, it is the range's, not the model's."""

        def in_parts(x):
            return torch.cat([part.reshape(1, -1) + 1 for part in parts(x)])

        op = self.registered((in_parts, (6, 7)), (whole, (7, math.inf)))
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with made_up_times(fastest), self.assertNoLogs(logger, logging.WARNING):
            compiled = compile_at(op, ramp(hint, 4))
        for size, added in ((6, 1), (7, 2), (100, 2)):
            self.assertEqual(compiled(ramp(size, 4)), ramp(size, 4) + added)

    def test_code_is_for_the_range(self):
        """Of less than 64 columns the first 64 are all."""
        op = self.registered((first, (0, 64)), (whole, (64, math.inf)), dim=1)
        with made_up_times(fastest, dim=1):
            x = ramp(4, 128)
            torch._dynamo.mark_dynamic(x, 1)
            compiled = torch.compile(op)
            _, (code,) = run_and_get_code(compiled, x)
        FileCheck().check_count("def size_branch", 2, exactly=True).run(code)
        self.assertNotIn("min(64", code.lower())
        self.assert_markers(compiled, MARKERS, lambda n: ramp(4, n))


if __name__ == "__main__":
    run_tests()
