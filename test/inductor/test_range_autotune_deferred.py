# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.deferred`` and of sharing among equal calls."""

import collections
import dataclasses
import gc
import itertools
import math
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import torch._inductor.config as config
from range_autotune_testing import made_up_times
from torch._dynamo.utils import counters
from torch._higher_order_ops._invoke_quant import InvokeQuant
from torch._inductor.ir import FallbackKernel, MultiTemplateBuffer
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune import deferred, lowering
from torch._inductor.range_autotune.measuring import calls, measure_ranges
from torch._inductor.range_autotune.modules import compiling
from torch._inductor.range_autotune.sizes.size_points import SizePoint
from torch._inductor.range_autotune.times import Timing


_numbers = itertools.count()
RANGES = [(0, 64), (64, math.inf)]


def define_op(fn, fake):
    """A custom op with a body that Inductor cannot look into."""
    name = f"deferred::op{next(_numbers)}"
    op = torch.library.custom_op(name, fn, mutates_args=())
    op.register_fake(fake)
    return op


def linear_op(*impls, ranges=None):
    """``x @ w`` over the last dimension of ``x``, with implementations."""

    def body(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(x.numpy() @ w.numpy())

    op = define_op(body, lambda x, w: x.new_empty(*x.shape[:-1], w.shape[1]))
    register(op, impls, ranges)
    return op


def register(op, impls, ranges=None):
    if ranges is None:
        configs = [CustomOpConfig(impl) for impl in impls]
    else:
        configs = [CustomOpRangeConfig("x", 0, ranges, list(impls))]
    register_custom_op_autotuning(op, configs=configs)


def through_mm(x, w):
    return x @ w


def through_sum(x, w):
    return (x.unsqueeze(-1) * w).sum(-2)


def plus_one(x):
    return x + 1


def one_plus(x):
    return 1 + x


def winner(choose):
    """Made-up times: ``choose(size)`` is the index of the best candidate."""
    return made_up_times(lambda size, index: 1.0 if index == choose(size) else 2.0)


def by_size(size):
    return 0 if size < 64 else 1


class DeferredTestCase(TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        self.enterContext(mock.patch.dict(user_lowerings))

    def check(self, fn, *args, sizes=(), choose=lambda size: 0):
        """Compiled equals eager, at other sizes of the first argument too; the code."""
        if sizes:
            torch._dynamo.mark_dynamic(args[0], 0)
        with winner(choose):
            result, (code, *_) = run_and_get_code(torch.compile(fn), *args)
        self.assertEqual(result, fn(*args))
        compiled = torch.compile(fn)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for size in sizes:
                x = torch.randn(size, *args[0].shape[1:])
                self.assertEqual(compiled(x, *args[1:]), fn(x, *args[1:]))
        return code


class TestDeferral(DeferredTestCase):
    def setUp(self):
        super().setUp()
        self.x, self.w = torch.randn(20, 8), torch.randn(8, 4)

    def test_nothing_is_compiled_while_candidates_are_timed_on_a_cpu(self):
        op = linear_op(through_mm)
        loads, quiet = [], []

        def start_slowly(load):
            loads.append(pool.submit(lambda: (time.sleep(0.2), load())))
            return loads[-1]

        def time_candidates(runners, *_):
            quiet.append(all(load.done() for load in loads))
            return dict.fromkeys(runners, Timing(1.0))

        v = torch.randn(8, 6)
        with (
            ThreadPoolExecutor(1) as pool,
            mock.patch.object(compiling, "_starter", lambda: start_slowly),
            mock.patch.object(measure_ranges, "time_candidates", time_candidates),
        ):
            fn = torch.compile(lambda x, w, v: (op(x, w).sin(), op(x, v).sin()))
            fn(self.x, self.w, v)
        self.assertEqual(len(loads), 4)
        self.assertEqual(quiet, [True, True])

    def test_lowering_returns_a_multi_template_buffer(self):
        op = linear_op(through_mm, through_sum)
        returned = []

        def spy(*args):
            returned.extend(defer(*args))
            return returned

        defer = deferred.defer
        with mock.patch.object(lowering, "defer", spy):
            self.check(lambda x, w: op(x, w) + 1, self.x, self.w)
        (box,) = returned
        buffer = box.data.data
        self.assertIsInstance(buffer, MultiTemplateBuffer)
        self.assertEqual(
            [choice.traced.name for choice in buffer.choices],
            ["through_mm", "through_sum", "fallback"],
        )
        self.assertEqual(counters["inductor"]["custom_op_choices_deferred"], 1)
        first = buffer.choices[0]
        keys = {choice.hash_key() for choice in buffer.choices}
        # Generated for other sizes, the same graph is other code.
        first.traced = dataclasses.replace(first.traced, made_for=SizePoint(2, {}))
        self.assertEqual(len({*keys, first.hash_key()}), 4)

    @config.patch(defer_custom_op_choices=False)
    def test_switch(self):
        op = linear_op(through_mm, through_sum)
        self.check(lambda x, w: op(x, w) + 1, self.x, self.w)
        self.assertEqual(counters["inductor"]["custom_op_choices_deferred"], 0)

    @parametrize("deferring", (True, False))
    def test_all_is_lowered_and_generated_before_anything_is_measured(self, deferring):
        first, second = linear_op(through_mm), linear_op(through_sum)

        def fn(x, w):
            return first(x, w).cos() + second(x, w).sum(0)

        seen = []

        def spy(*args):
            generated = counters["inductor"]["subgraph_modules_generated"]
            seen.append((generated, len(V.graph.operations)))
            return measure(*args)

        measure = measure_ranges.measure_ranges
        with (
            mock.patch.object(lowering, "measure_ranges", spy),
            config.patch(defer_custom_op_choices=deferring),
        ):
            self.check(fn, self.x, self.w)
        generated, operations = seen[0]
        # A candidate and the op itself of each; the two choices, the sum, and the rest.
        self.assertEqual(generated, 4 if deferring else 2)
        self.assertEqual(operations, 4 if deferring else 0)

    def test_one_winner_is_fused_with_its_neighbours(self):
        def body(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy() * w.numpy())

        op = define_op(body, lambda x, w: torch.empty_like(x))
        register(op, [lambda x, w: x * w])
        code = self.check(
            lambda x, w: torch.sigmoid(op(x * 2, w)) * 3, self.x, torch.randn(8)
        )
        self.assertEqual(code.count("async_compile.cpp_pybinding("), 1, msg=code)

    def test_winner_with_buffers_of_its_own(self):
        def through_sums(x, w):
            parts = (x.unsqueeze(-1) * w).view(x.shape[0], 2, -1, w.shape[1]).sum(-2)
            total = parts.sum(1)
            return total - (total - total.mean(0)).square().sum(0) * parts.amax(1)

        op = linear_op(through_sums)
        with winner(lambda size: 0):
            compiled = torch.compile(lambda x, w: op(x, w).cos())
            result = compiled(self.x, self.w)
        expected = through_sums(self.x, self.w).cos()
        self.assertEqual(result, expected, atol=1e-3, rtol=1e-3)

    @config.patch(assume_unaligned_fallback_output=True)
    @config.patch("test_configs.force_custom_op_decomposition", True)
    def test_names_of_what_may_lie_anywhere(self):
        """Of results of calls Inductor is told to assume nothing."""

        def body(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        op, inner = (define_op(body, torch.empty_like) for _ in range(2))
        register(op, [inner])
        known = []

        def resolve_choices(graph):
            resolve(graph)
            known.append((graph.unaligned_buffers, {*graph.name_to_buffer}))

        resolve = deferred.resolve_choices
        with mock.patch.object(deferred, "resolve_choices", resolve_choices):
            self.check(lambda x: op(x.sin()).cos() + 1, self.x)
        unaligned, buffers = known[-1]
        self.assertTrue(unaligned & buffers)
        self.assertLessEqual(unaligned - {*"x", "arg0_1"}, buffers)

    def test_names_that_calls_keep_as_text(self):
        call = object.__new__(FallbackKernel)
        call.alias_names, call.mutation_names = ["buf1", "x"], ["buf2"]
        deferred._rename_within(call, {"buf1": "buf2", "buf2": "buf3"})
        self.assertEqual(call.alias_names, ["buf2", "x"])
        self.assertEqual(call.mutation_names, ["buf3"])

    def test_config_of_its_time(self):
        op = linear_op(through_mm)
        seen = []

        def spy(*args, **kwargs):
            seen.append(config.realize_reads_threshold)
            return emit(*args, **kwargs)

        def lower(*args):
            with config.patch(realize_reads_threshold=11):
                return user_lowering(*args)

        emit = lowering.emit_winner
        user_lowering = user_lowerings[op._opoverload]
        lower.registration = user_lowering.registration
        user_lowerings[op._opoverload] = lower
        with mock.patch.object(lowering, "emit_winner", spy):
            self.check(op, self.x, self.w)
        self.assertEqual(seen, [11])

    def test_input_that_is_written_to_afterwards(self):
        op = linear_op(through_sum, through_mm, ranges=RANGES)

        def fn(x, w):
            y = op(x, w)
            x.add_(1)
            return y + x[:, :4]

        compiled = torch.compile(fn)
        x = self.x.clone()
        torch._dynamo.mark_dynamic(x, 0)
        with winner(by_size):
            compiled(x, self.w)
        for size in (20, 100):
            x = torch.randn(size, 8)
            expected_x = x.clone()
            expected = fn(expected_x, self.w)
            self.assertEqual(compiled(x, self.w), expected)
            self.assertEqual(x, expected_x)

    def test_output_that_is_written_to_afterwards(self):
        op = linear_op(through_sum, through_mm, ranges=RANGES)

        def fn(x, w):
            y = op(x, w)
            y[0] = 5
            y.mul_(2)
            return y, y @ w.t()

        self.check(fn, self.x, self.w, sizes=(20, 100), choose=by_size)

    @config.patch(fallback_random=True)
    def test_random_numbers_in_order(self):
        """By the names of operations, which change with what is chosen."""
        op = linear_op(through_mm, through_sum, ranges=RANGES)

        def fn(x, w):
            torch.manual_seed(0)
            y = op(x, w)
            kept = torch.nn.functional.dropout(y)
            noise = torch.randn_like(x)
            return y + noise @ w, kept, torch.nn.functional.dropout(x)

        for size in (32, 128):
            x, w = torch.randn(size, 8), torch.randn(8, 4)
            torch._dynamo.mark_dynamic(x, 0)
            with winner(by_size):
                self.assertEqual(torch.compile(fn)(x, w), fn(x, w))

    def test_result_in_low_precision(self):
        """Which Inductor knows by the names of operations, too."""
        op = linear_op(through_mm, through_sum, ranges=RANGES)
        in_low_precision = InvokeQuant(codegen_low_precision=True)

        def fn(x, w):
            y = in_low_precision(op, x, w, scheme="any")
            return y.relu(), y.sum()

        self.check(fn, self.x, self.w, sizes=(20, 100), choose=by_size)

    def test_inside_a_branch(self):
        op = linear_op(through_sum, through_mm, ranges=RANGES)

        def fn(x, w):
            return torch.cond(
                x.sum() > 0,
                lambda x, w: op(x, w) + 1,
                lambda x, w: op(x, w) - 1,
                (x, w),
            )

        self.check(fn, self.x, self.w, sizes=(20, 100), choose=by_size)

    def test_many_in_a_row(self):
        op = linear_op(through_sum, through_mm, ranges=RANGES)
        square = torch.randn(8, 8)

        def fn(x, w):
            y, outputs = x, []
            for i in range(4):
                y = op(y, w).relu()
                outputs.append(y.sum(0) if i % 2 else y @ w)
            return outputs

        self.check(fn, self.x, square / 8, sizes=(20, 100), choose=by_size)

    @parametrize("deferring", (True, False))
    def test_several_outputs(self, deferring):
        def body(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.from_numpy(x.numpy() + 1), torch.from_numpy(x.numpy().sum(0))

        op = define_op(body, lambda x: (torch.empty_like(x), x.new_empty(x.shape[1])))
        register(
            op, [lambda x: (x + 1, x.sum(0)), lambda x: (1 + x, x.t().sum(1))], RANGES
        )

        def fn(x):
            y, total = op(x)
            return y * 2, total.cos(), op(y)[1]

        with config.patch(defer_custom_op_choices=deferring):
            self.check(fn, self.x, sizes=(20, 100), choose=by_size)

    def pooled(self, dim, autotune_in_subproc=False):
        """
        A choice by one of two dynamic dimensions; what is lowered behind settles the last.

        Returns:
            The code, and how often each candidate was measured.
        """
        measured = collections.Counter()

        def ms(size, index):
            measured[index] += 1
            return 1.0 if index == by_size(size) else 2.0

        def body(x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy() + 1)

        op = define_op(body, torch.empty_like)
        configs = [CustomOpRangeConfig("x", dim, RANGES, [plus_one, one_plus])]
        register_custom_op_autotuning(op, configs=configs)

        def fn(x):
            return torch.nn.functional.adaptive_avg_pool2d(op(x).sin(), (2, 2))

        x = torch.randn(20, 1, 4, 6)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.maybe_mark_dynamic(x, 3)
        with (
            made_up_times(ms),
            config.patch(autotune_in_subproc=autotune_in_subproc),
        ):
            compiled = torch.compile(fn)
            result, (code, *_) = run_and_get_code(compiled, x)
        self.assertEqual(result, fn(x))
        with torch._dynamo.config.patch(error_on_recompile=True):
            y = torch.randn(100, 1, 4, 6)
            self.assertEqual(compiled(y), fn(y))
        return code, measured

    def test_a_size_is_settled_behind_the_call(self):
        """Modules of candidates were generated with its symbol, and are given its value."""
        code, measured = self.pooled(dim=0, autotune_in_subproc=True)
        self.assertEqual(len({*measured.values()}), 1)
        self.assertLessEqual({0, 1}, measured.keys())
        self.assertIn("if s", code)

    def test_the_dispatch_dimension_is_settled_behind_the_call(self):
        code, measured = self.pooled(dim=3)
        self.assertLessEqual({0, 1}, measured.keys())
        self.assertNotIn("size_branch", code)


class TestResultsThatAreViews(DeferredTestCase):
    """A winner's result may be a view of what it computed: of the rows of a product."""

    def setUp(self):
        super().setUp()
        self.x, self.w = torch.randn(3, 5, 8), torch.randn(8, 8)

    def compiled_code(self, fn):
        op = linear_op(through_mm, through_sum)
        return self.check(lambda x, w: fn(op(x, w), w), self.x, self.w)

    def assert_one_product_without_a_copy(self, code, kernels):
        self.assertEqual(code.count("extern_kernels.mm("), 1, msg=code)
        self.assertEqual(code.count("async_compile.cpp_pybinding("), kernels, msg=code)

    def test_returned(self):
        code = self.compiled_code(lambda y, w: y)
        self.assert_one_product_without_a_copy(code, kernels=0)

    def test_read_by_a_generated_kernel(self):
        code = self.compiled_code(lambda y, w: y.cos() + y.sum(1, keepdim=True))
        self.assert_one_product_without_a_copy(code, kernels=1)

    def test_read_by_a_call(self):
        def body(x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy().cumsum(1))

        eager = define_op(body, torch.empty_like)
        code = self.compiled_code(lambda y, w: eager(y))
        self.assert_one_product_without_a_copy(code, kernels=0)

    def test_view_of_an_input_is_copied(self):
        def body(x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(x.numpy().copy())

        op = define_op(body, torch.empty_like)
        register(op, [lambda x: (x.unsqueeze(0) * 1).squeeze(0)])
        self.check(lambda x: (op(x), x), self.x)


class TestEqualCallSites(DeferredTestCase):
    def setUp(self):
        super().setUp()
        self.w = torch.randn(8, 8)
        self.calls = 0

    def counted(self, x, w):
        self.calls += 1
        return x @ w

    def assert_once(self, sizes, looks=0):
        """
        The implementation is traced and measured for one of the calls.

        ``looks`` counts the calls that only tell whether a reduction behind the op joins.
        """
        self.assertEqual(self.calls, looks + 1)
        # The implementation and the op itself.
        self.assertEqual(counters["inductor"]["subgraph_modules_generated"], 2)
        self.assertEqual(counters["inductor"]["subgraph_module_loads"], 2)
        self.assertEqual(len(sizes), len(set(sizes)))

    def test_equal_ones_that_cannot_share_are_each_tuned(self):
        op = linear_op(self.counted)
        with mock.patch.object(lowering, "as_for", return_value=None):
            self.check(
                lambda x, w: op(op(x, w).cumsum(0), w), torch.randn(8, 8), self.w
            )
        self.assertEqual(self.calls, 2)

    def test_same_symbols(self):
        op = linear_op(self.counted, ranges=RANGES)

        def fn(x, w):
            for _ in range(5):
                x = op(x, w).tanh().mean(1, keepdim=True) + x
            return x

        x = torch.randn(20, 8)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(fn)
        with winner(lambda size: 0 if size < 64 else -1) as sizes:
            compiled(x, self.w)
        self.assert_once(sizes, looks=1)
        for size in (20, 100):
            x = torch.randn(size, 8)
            self.assertEqual(compiled(x, self.w), fn(x, self.w))

    def test_other_parts_of_one_tensor(self):
        """The weights of all layers."""
        op = linear_op(self.counted, ranges=RANGES)

        def fn(x, weights):
            for w in weights.unbind():
                x = op(x, w).tanh().mean(1, keepdim=True) + x
            return x

        weights = torch.randn(4, 8, 8)
        x = torch.randn(20, 8)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(fn)
        with winner(lambda size: 0 if size < 64 else -1) as sizes:
            _, (code,) = run_and_get_code(compiled, x, weights)
        self.assert_once(sizes, looks=1)
        # The first one reads an input of the graph, which may lie anywhere.
        self.assertEqual(code.count("def size_branch"), 4, msg=code)
        for size in (20, 100):
            x = torch.randn(size, 8)
            self.assertEqual(compiled(x, weights), fn(x, weights))

    def test_dropout_in_each(self):
        """Other seeds, but one choice and the same branches."""
        op = linear_op(self.counted, ranges=RANGES)

        def fn(x, w):
            kept = []
            for _ in range(3):
                y = torch.nn.functional.dropout(op(x, w), 0.25)
                kept.append(y != 0)
                x = y @ w
            return x, *kept

        x = torch.randn(20, 8)
        torch._dynamo.mark_dynamic(x, 0)
        with winner(lambda size: 0 if size < 64 else -1) as sizes:
            (_, *kept), (code,) = run_and_get_code(torch.compile(fn), x, self.w)
        self.assert_once(sizes)
        # The first ones read an input of the graph, which may lie anywhere.
        self.assertEqual(code.count("def size_branch"), 4, msg=code)
        self.assertEqual(code.count("async_compile.cpp_pybinding("), 1, msg=code)
        self.assertFalse(kept[0].equal(kept[1]) or kept[1].equal(kept[2]))

    def test_other_symbols(self):
        op = linear_op(self.counted, ranges=RANGES)

        def fn(x, y, w):
            return op(x, w) * 2, op(y, w) * 2

        x, y = torch.randn(20, 8), torch.randn(30, 8)
        for tensor in (x, y):
            torch._dynamo.mark_dynamic(tensor, 0)
        compiled = torch.compile(fn)
        with winner(lambda size: 0 if size < 64 else -1) as sizes:
            compiled(x, y, self.w)
        self.assert_once(sizes)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for sizes in ((20, 100), (100, 20), (65, 63)):
                x, y = (torch.randn(size, 8) for size in sizes)
                self.assertEqual(compiled(x, y, self.w), fn(x, y, self.w))

    def test_equal_to_one_without_candidates(self):
        def guarding(x, w):
            return x @ w if x.shape[0] // 10 % 2 == 0 else (2 * x) @ w

        op = linear_op(guarding, ranges=RANGES)
        x, y = torch.randn(20, 8), torch.randn(30, 8)
        for tensor in (x, y):
            torch._dynamo.mark_dynamic(tensor, 0)
        with winner(lambda size: 0) as sizes:
            result = torch.compile(lambda x, y, w: op(x, w) @ op(y, w).t())(
                x, y, self.w
            )
        self.assertEqual(result, op(x, self.w) @ op(y, self.w).t())
        self.assertEqual(sizes, [])
        self.assertEqual(counters["inductor"]["custom_op_choices_deferred"], 0)

    def test_other_layouts_are_no_equals(self):
        op = linear_op(self.counted)
        with winner(lambda size: 0):
            torch.compile(lambda x, y, w: (op(x, w), op(y, w)))(
                torch.randn(20, 8), torch.randn(8, 20).t(), self.w
            )
        self.assertEqual(self.calls, 2)

    def test_other_arguments_are_no_equals(self):
        def body(x: torch.Tensor, scale: float) -> torch.Tensor:
            return torch.from_numpy(x.numpy() * scale)

        op = define_op(body, lambda x, scale: torch.empty_like(x))
        register(op, [lambda x, scale: x * scale])

        def fn(x):
            return op(x, 2.0) + op(x, 3.0)

        self.check(fn, torch.randn(4, 4))
        self.assertEqual(counters["inductor"]["subgraph_modules_generated"], 4)

    def test_candidate_that_fails_is_reported_once(self):
        def bad(x, w):
            raise RuntimeError("no")

        op = linear_op(bad, through_mm)
        log = "torch._inductor.kernel.custom_op"
        with self.assertLogs(log, "WARNING") as logs:
            self.check(lambda x, w: op(op(x, w), w), torch.randn(20, 8), self.w)
        self.assertEqual(len(logs.output), 1)


instantiate_parametrized_tests(TestDeferral)


class TestMemory(DeferredTestCase):
    """What tuning needs is bounded, and freed."""

    def tune(self, seen):
        op = linear_op(through_mm, through_sum, ranges=[(0, 64), (64, math.inf)])
        with config.patch(fx_graph_cache=False):
            self.check(
                lambda x, w: op(x, w) + 1,
                torch.randn(20, 8),
                torch.randn(8, 4),
                sizes=(5, 100),
                choose=by_size,
            )
        gc.collect()
        self.assertGreater(len(seen), 1)
        self.assertEqual([ref() for ref in seen if ref() is not None], [])

    def test_inputs_of_one_size_at_a_time(self):
        make_inputs, seen = calls.make_inputs, []

        def spy(*args):
            alive = [ref for ref in seen if ref() is not None]
            self.assertEqual(alive, [], "inputs of another size are still there")
            inputs = make_inputs(*args)
            seen.extend(weakref.ref(x) for x in inputs)
            return inputs

        with mock.patch.object(calls, "make_inputs", spy):
            self.tune(seen)

    def tune_watching(self, module, name, parts):
        """What a function makes, in parts, is gone with the model."""
        make, seen = getattr(module, name), []

        def spy(*args):
            made = make(*args)
            seen.extend(map(weakref.ref, parts(made)))
            return made

        with mock.patch.object(module, name, spy):
            self.tune(seen)

    def test_compiled_candidates(self):
        self.tune_watching(compiling, "generate_module", lambda module: [module])

    def test_decisions(self):
        self.tune_watching(lowering, "prepare", lambda made: [made, made.outputs])


if __name__ == "__main__":
    run_tests()
