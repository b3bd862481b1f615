# Owner(s): ["module: inductor"]
"""Registering an op drops the code that was compiled with it, and no other."""

import itertools
import unittest
from unittest import mock

from range_autotune_testing import OpTestCase
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests
from torch._inductor.utils import fresh_cache
from torch.testing._internal.inductor_utils import HAS_GPU

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidates import tracing


_numbers = itertools.count()
no_recompile = torch._dynamo.config.patch(error_on_recompile=True)


def clone_op():
    """An op that returns its argument."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    name = f"stale_code::op{next(_numbers)}"
    op = torch.library.custom_op(name, mutates_args=())(fn)
    op.register_fake(torch.empty_like)
    return op


def register(op, marker):
    """The op adds a marker from now on."""
    register_custom_op_autotuning(op, [CustomOpConfig(lambda x: x + marker)])


class StaleCodeTestCase(OpTestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        forced = config.patch("test_configs.force_custom_op_decomposition", True)
        self.enterContext(forced)
        self.x = torch.zeros(8)

    def assert_marker(self, compiled, marker):
        self.assertEqual(compiled(self.x), self.x + marker)


class TestDroppedCode(StaleCodeTestCase):
    def test_registered_after_it_was_compiled(self):
        op = clone_op()
        compiled = torch.compile(op)
        self.assert_marker(compiled, 0)
        register(op, 1)
        self.assert_marker(compiled, 1)

    def test_registered_anew(self):
        op = clone_op()
        compiled = torch.compile(lambda x: op(x) * 1)
        register(op, 1)
        self.assert_marker(compiled, 1)
        register(op, 2)
        self.assert_marker(compiled, 2)

    def test_a_failed_registration_drops_nothing(self):
        op = clone_op()
        register(op, 1)
        compiled = torch.compile(op)
        self.assert_marker(compiled, 1)
        with self.assertRaises(TypeError):
            register_custom_op_autotuning(op, [3])
        with torch.compiler.set_stance("fail_on_recompile"):
            self.assert_marker(compiled, 1)

    def test_code_without_the_op_stays(self):
        op, other = clone_op(), clone_op()
        compiled = torch.compile(lambda x: other(x) + 3)
        self.assert_marker(compiled, 3)
        register(op, 1)
        with torch.compiler.set_stance("fail_on_recompile"):
            self.assert_marker(compiled, 3)

    def test_is_no_recompilation_and_counts_against_no_limit(self):
        op = clone_op()
        compiled = torch.compile(op)
        limit = torch._dynamo.config.recompile_limit
        with no_recompile:
            for marker in range(limit + 2):
                register(op, marker)
                self.assert_marker(compiled, marker)

    @config.patch({"test_configs.force_custom_op_decomposition": None})
    def test_what_is_measured_compiles_something_itself(self):
        op = clone_op()
        inner = torch.compile(lambda x: x.sin())
        name = f"stale_code::compiles{next(_numbers)}"

        @torch.library.custom_op(name, mutates_args=())
        def compiles(x: torch.Tensor) -> torch.Tensor:
            return inner(x)

        compiles.register_fake(torch.empty_like)

        def register_with(marker):
            impls = [lambda x: compiles(x) + marker, lambda x: marker + compiles(x)]
            configs = [CustomOpConfig(impl) for impl in impls]
            register_custom_op_autotuning(op, configs, include_fallback=False)

        compiled = torch.compile(lambda x: op(x) * 1)
        for marker in (1, 2):
            register_with(marker)
            self.assert_marker(compiled, marker)

    def test_other_entries_of_the_function_stay(self):
        op = clone_op()

        def fn(x, with_op):
            return op(x) if with_op else x + 5

        compiled = torch.compile(fn)
        self.assert_marker(lambda x: compiled(x, True), 0)
        self.assert_marker(lambda x: compiled(x, False), 5)
        register(op, 1)
        with torch.compiler.set_stance("fail_on_recompile"):
            self.assert_marker(lambda x: compiled(x, False), 5)
        self.assert_marker(lambda x: compiled(x, True), 1)

    def test_behind_a_graph_break(self):
        op = clone_op()

        def fn(x):
            x = x + 1
            torch._dynamo.graph_break()
            return op(x)

        compiled = torch.compile(fn)
        self.assert_marker(compiled, 1)
        register(op, 1)
        self.assert_marker(compiled, 2)

    def test_an_op_that_only_an_implementation_calls(self):
        outer, inner = clone_op(), clone_op()
        register_custom_op_autotuning(outer, [CustomOpConfig(lambda x: inner(x) + 1)])
        compiled = torch.compile(outer)
        self.assert_marker(compiled, 1)
        register(inner, 10)
        self.assert_marker(compiled, 11)

    def test_overload_of_aten(self):
        compiled = torch.compile(lambda x: x @ x)
        self.x = torch.eye(4)
        self.assert_marker(compiled, 0)
        register_custom_op_autotuning(
            torch.ops.aten.mm.default,
            [CustomOpConfig(lambda self, mat2: (self[:, :, None] * mat2).sum(1) + 1)],
        )
        self.assert_marker(compiled, 1)

    def test_op_of_the_backward_graph(self):
        op, of_backward = clone_op(), clone_op()
        op.register_autograd(lambda ctx, grad: of_backward(grad))
        compiled = torch.compile(op)

        def gradient():
            x = self.x.clone().requires_grad_()
            compiled(x).sum().backward()
            return x.grad

        self.assertEqual(gradient(), torch.ones(8))
        register(of_backward, 2)
        self.assertEqual(gradient(), torch.full((8,), 3.0))

    def test_code_from_a_cache(self):
        for cached_by in ("fxgraph_cache_hit", "autograd_cache_hit"):
            with (
                self.subTest(cached_by),
                fresh_cache(),
                torch._functorch.config.patch(
                    enable_autograd_cache=cached_by == "autograd_cache_hit"
                ),
            ):
                op = clone_op()
                compiled = torch.compile(op)
                self.assert_marker(compiled, 0)
                torch._dynamo.reset()
                counters.clear()
                self.assert_marker(compiled, 0)
                hits = counters["inductor"] + counters["aot_autograd"]
                self.assertEqual(hits[cached_by], 1)
                register(op, 1)
                self.assert_marker(compiled, 1)

    def test_while_its_code_runs(self):
        op = clone_op()
        markers = iter((1, 2))

        def fn(x: torch.Tensor) -> torch.Tensor:
            register(op, next(markers))
            return x.clone()

        registers = torch.library.custom_op(
            f"stale_code::op{next(_numbers)}", mutates_args=()
        )(fn)
        registers.register_fake(torch.empty_like)
        compiled = torch.compile(lambda x: op(registers(x)))
        self.assert_marker(compiled, 0)
        self.assert_marker(compiled, 1)

    @unittest.skipUnless(HAS_GPU, "CUDA graphs need a GPU")
    def test_cuda_graphs(self):
        op = clone_op()
        self.x = self.x.cuda()
        compiled = torch.compile(op, mode="reduce-overhead")
        for marker in (0, 1, 2):
            for _ in range(3):
                self.assert_marker(compiled, marker)
            register(op, marker + 1)


class TestCompilationUnderWay(StaleCodeTestCase):
    """Registrations while the same thread compiles: threads are in another file."""

    def registering_while_traced(self, *registrations):
        """Runs each when a candidate is traced, one after the other."""
        real, waiting = tracing.trace_candidate, list(registrations)

        def trace_candidate(*args):
            if waiting:
                waiting.pop(0)()
            return real(*args)

        return mock.patch.object(tracing, "trace_candidate", trace_candidate)

    def test_ends_under_the_registrations_that_it_began_with(self):
        op, late = clone_op(), clone_op()
        register(op, 1)
        compiled = torch.compile(lambda x: late(op(x)))
        with (
            self.registering_while_traced(
                lambda: register(op, 2), lambda: register(late, 20)
            ),
            no_recompile,
        ):
            self.assert_marker(compiled, 1)
            self.assert_marker(compiled, 2)
            self.assert_marker(compiled, 22)
        with torch.compiler.set_stance("fail_on_recompile"):
            self.assert_marker(compiled, 22)

    def test_caches_hold_what_their_keys_say(self):
        op = clone_op()
        register(op, 1)
        with fresh_cache():
            with self.registering_while_traced(lambda: register(op, 2)):
                self.assert_marker(torch.compile(op), 1)
            for marker, hits in ((1, 1), (2, 0)):
                torch._dynamo.reset()
                counters.clear()
                register(op, marker)
                self.assert_marker(torch.compile(op), marker)
                self.assertEqual(counters["inductor"]["fxgraph_cache_hit"], hits)

    def test_backward_goes_by_the_registrations_of_forward(self):
        op, of_backward = clone_op(), clone_op()
        op.register_autograd(lambda ctx, grad: of_backward(grad))
        compiled = torch.compile(op)
        x = self.x.clone().requires_grad_()
        result = compiled(x).sum()
        register(of_backward, 2)
        result.backward()
        self.assertEqual(x.grad, torch.ones(8))
        x.grad = None
        compiled(x).sum().backward()
        self.assertEqual(x.grad, torch.full((8,), 3.0))


if __name__ == "__main__":
    run_tests()
