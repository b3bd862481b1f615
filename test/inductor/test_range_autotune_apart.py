# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.neighbours.apart``: is fusing neighbours worth it?"""

import itertools
import unittest
from unittest import mock

import torch._inductor.config as config
from range_autotune_testing import one_config_each
from test_custom_op_fusion import FusionTestCase, RANGES, rows, SIZES
from torch._inductor.scheduler import FusedSchedulerNode, Scheduler, SchedulerNode
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.virtualized import V
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import HAS_GPU

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidate_indices import (
    APART,
    FALLBACK_INDEX,
    index_of_variant,
)
from torch._inductor.range_autotune.graphs.integer_division import check_divisors
from torch._inductor.range_autotune.kernel_configs import kernel_config_ranges
from torch._inductor.range_autotune.measuring import calls, measure_ranges
from torch._inductor.range_autotune.neighbours.apart import keep_apart
from torch._inductor.range_autotune.times import Timing


_numbers = itertools.count()
APART_INDICES = {index_of_variant(number, APART) for number in range(5)}


def softmax_op():
    """The reduction and the division fuse to one kernel."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x, -1)

    def by_parts(x):
        powers = (x - x.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    return registered(fn, by_parts)


def registered(fn, impl):
    op = torch.library.custom_op(f"apart::op{next(_numbers)}", mutates_args=())(fn)
    op.register_fake(torch.empty_like)
    register_custom_op_autotuning(
        op, configs=[CustomOpRangeConfig("x", 0, RANGES, [impl])]
    )
    return op


class TestBoundary(TestCase):
    def test_called_eagerly(self):
        for x in (torch.randn(3, 4).t(), torch.arange(3), torch.zeros(0, 2)):
            value = keep_apart(x)
            self.assertEqual(value, x)
            self.assertEqual(value.stride(), x.stride())
            self.assertFalse(value._is_view())
        full = torch.ones(3)
        keep_apart(full).zero_()
        self.assertEqual(full, torch.ones(3))

    def test_a_graph_with_one_is_called(self):
        def fn(x):
            return keep_apart(x) // x

        one, zero = torch.ones(2).long(), torch.zeros(2).long()
        graph = make_fx(fn, tracing_mode="symbolic")(one)
        self.assertIn("inductor_apart", graph.code)
        check_divisors(graph, lambda: [one])
        with self.assertRaisesRegex(RuntimeError, "ZeroDivisionError"):
            check_divisors(graph, lambda: [zero])


class TestFusionSpeedup(FusionTestCase):
    def compile_with(self, apart_ms, fn, *args):
        """
        How many kernels are generated for the graph and each branch, by its name; those
        on a CPU may share a function. All fused candidates take 1 ms.

        Args:
            apart_ms: from a size to the times of those with their neighbours apart.
        """

        def time_candidates(runners, *_):
            times = {}
            for index, run in runners.items():
                ms = apart_ms(run()[0].shape[0]) if index in APART_INDICES else 1.0
                times[index] = Timing(9.0 if index == FALLBACK_INDEX else ms)
            self.measured.append(set(times))
            return times

        def codegen(scheduler):
            kinds = (SchedulerNode, FusedSchedulerNode)
            kernels = [n for n in scheduler.nodes if isinstance(n, kinds)]
            self.kernels[V.graph.name] = len(kernels)
            return real_codegen(scheduler)

        real_codegen = Scheduler.codegen
        self.measured, self.kernels = [], {}
        for arg in args:
            torch._dynamo.mark_dynamic(arg, 0)
        compiled = torch.compile(fn)
        with (
            mock.patch.object(measure_ranges, "time_candidates", time_candidates),
            mock.patch.object(
                kernel_config_ranges, "configs_by_range", one_config_each
            ),
            mock.patch.object(Scheduler, "codegen", codegen),
        ):
            compiled(*args)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for size in SIZES:
                args = [rows(size).cos() for _ in args]
                self.assertEqual(compiled(*args), fn(*args), msg=f"at size {size}")
        own = {None: self.kernels[None]}
        branches = {k: n for k, n in self.kernels.items() if "size_branch" in str(k)}
        return list({**own, **branches}.values())

    def model(self):
        op = softmax_op()
        return lambda x, gate: torch.sigmoid(op(x * 3) * gate) + 1

    @config.patch(fusion_speedup_threshold=1.2)
    def test_each_range_has_its_own_answer(self):
        gained = lambda size: 1.3 if size < 100 else 1.1  # noqa: E731
        kernels = self.compile_with(gained, self.model(), rows(64), rows(64))
        # Those of the graph around, and: before the op, the op, and behind it.
        self.assertEqual(kernels, [0, 1, 3])

    @config.patch(fusion_speedup_threshold=1.2)
    @parametrize("deferred", (False, True))
    def test_apart_everywhere(self, deferred):
        with config.patch(defer_custom_op_choices=deferred):
            kernels = self.compile_with(
                lambda size: 1.1, self.model(), rows(64), rows(64)
            )
        self.assertEqual(kernels, [3])

    def test_not_measured_unless_asked_for(self):
        kernels = self.compile_with(lambda size: 0.1, self.model(), rows(64), rows(64))
        self.assertEqual(kernels, [1])
        self.assertFalse(APART_INDICES & set().union(*self.measured))

    @unittest.skipIf(HAS_GPU, "a GPU does not end the process where a divisor is zero")
    @config.patch(fusion_speedup_threshold=1.2)
    def test_measured_with_a_division_of_integers(self):
        def divided(x: torch.Tensor) -> torch.Tensor:
            return torch.softmax(x, -1) * (x.long() // (x.long().abs() + 1))

        op = registered(divided, lambda x: divided(x) * 1)
        with mock.patch.object(
            calls, "check_divisors", wraps=calls.check_divisors
        ) as checked:
            self.compile_with(lambda size: 0.5, lambda x: op(x * 3) + 1, rows(64))
        self.assertTrue(checked.called)
        self.assertTrue(APART_INDICES & set().union(*self.measured))

    @config.patch(fusion_speedup_threshold=1.2)
    def test_not_measured_without_neighbours(self):
        op = softmax_op()
        self.compile_with(lambda size: 0.1, op, rows(64))
        self.assertFalse(APART_INDICES & set().union(*self.measured))

    @parametrize("setting", (0, -1.0, True, "2"))
    def test_bad_setting(self, setting):
        with (
            config.patch(fusion_speedup_threshold=setting),
            self.assertRaisesRegex(
                Exception,
                "torch._inductor.config.fusion_speedup_threshold must be a positive "
                f"number, or None to fuse without measuring, got {setting!r}",
            ),
        ):
            torch.compile(self.model(), dynamic=True)(rows(64), rows(64))


instantiate_parametrized_tests(TestFusionSpeedup)

if __name__ == "__main__":
    run_tests()
