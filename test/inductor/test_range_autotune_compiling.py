# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.modules.compiling``."""

import itertools
import subprocess
import sys
import threading
import types
from concurrent.futures import BrokenExecutor, Future, ThreadPoolExecutor
from unittest import mock

from range_autotune_testing import compilers, OpTestCase
from test_custom_op_autotune import made_up_times
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch._inductor.virtualized import V
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpConfig, CustomOpRangeConfig
from torch._inductor.range_autotune import dispatch
from torch._inductor.range_autotune.modules import compiling, cpp_units
from torch._inductor.range_autotune.modules.compiling import kernel_suffix
from torch._inductor.range_autotune.modules.limited_executor import fulfil
from torch._inductor.range_autotune.modules.subgraph_module import SubgraphModule


JOIN_S = 60.0
_numbers = itertools.count()


def done(result=None, error=None):
    future = Future()
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
    return future


class TestImport(TestCase):
    def test_without_fork(self):
        """As on Windows."""
        script = (
            f"import os, torch; del os.register_at_fork; import {compiling.__name__}"
        )
        subprocess.run([sys.executable, "-c", script], check=True)


class TestWait(TestCase):
    def wait(self, loads, loaded):
        """Those that are out, and why."""
        out = {}
        standing = types.SimpleNamespace(reject=out.__setitem__)
        tuning = types.SimpleNamespace(loads=loads, standing=standing)
        args = (tuning, lambda text: None, loaded)
        thread = threading.Thread(target=compiling.wait, args=args, daemon=True)
        thread.start()
        thread.join(JOIN_S)
        self.assertFalse(thread.is_alive())
        self.assertEqual(tuning.loads, {})
        return out

    def test_told_of_each_while_others_go_on(self):
        slow = Future()
        told = []

        def loaded(index):
            told.append(index)
            if index == 1:
                slow.set_result(None)

        self.assertEqual(self.wait({0: slow, 1: done()}, loaded), {})
        self.assertEqual(told, [1, 0])

    def test_failures_are_out_in_order(self):
        told = []
        loads = {i: done(error=ValueError("bad") if i else None) for i in (2, 1, 0)}
        self.assertEqual([*self.wait(loads, told.append)], [2, 1])
        self.assertEqual(told, [0])

    def test_which_failures_may_pass(self):
        errors = [ValueError("bad"), OSError(28, "No space left"), BrokenExecutor()]
        loads = {i: done(error=error) for i, error in enumerate(errors)}
        out = self.wait(loads, lambda index: None)
        self.assertEqual(
            [failure.may_pass for failure in out.values()], [False, True, True]
        )


class TestCalledHere(TestCase):
    def test_an_exception_is_kept(self):
        error = ValueError("failed")
        future = compiling._called_here(mock.Mock(side_effect=error))
        self.assertIs(future.exception(), error)

    def test_an_interrupt_is_no_failure(self):
        with self.assertRaises(KeyboardInterrupt):
            compiling._called_here(mock.Mock(side_effect=KeyboardInterrupt))


class TestStartedAfter(TestCase):
    @parametrize("error", (None, ValueError("failed")))
    def test_starts_when_the_first_is_over(self, error):
        first, second, started = Future(), Future(), []

        def start():
            started.append(True)
            return second

        result = compiling._started_after(first, start)
        self.assertEqual(started, [])
        fulfil(first, done(error=error).result)
        self.assertEqual((started, result.done()), ([True], False))
        second.set_result("loaded")
        self.assertEqual(result.result(), "loaded")

    def test_hands_on_what_was_raised(self):
        failed = done(error=ValueError("failed"))
        result = compiling._started_after(done(), lambda: failed)
        self.assertIsInstance(result.exception(), ValueError)

    @parametrize("first_is_over", (False, True))
    def test_hands_on_that_it_does_not_start(self, first_is_over):
        first, error = Future(), RuntimeError("can't start new thread")
        if first_is_over:
            first.set_result(None)
        result = compiling._started_after(first, mock.Mock(side_effect=error))
        if not first_is_over:
            first.set_result(None)
        self.assertTrue(result.done())
        self.assertIs(result.exception(), error)


def in_one_step(x):
    return torch.exp(x)


def in_three_steps(x):
    return torch.exp(x + 1 - 1)


class TestCompiling(OpTestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.enterContext(config.patch(force_disable_caches=True))
        name = (
            f"op{next(_numbers)}"  # PyTorch may remember an op of another test by name
        )
        self.op = self.define_op(f"{name}(Tensor x) -> Tensor")
        self._library.impl(name, torch.exp, "CPU")
        self._library.impl(name, torch.empty_like, "Meta")

    def test_the_largest_is_compiled_first(self):
        impls = (in_one_step, in_three_steps)
        self.register(self.op, configs=[CustomOpConfig(impl) for impl in impls])
        order, measured = [], []
        generate = compiling.generate_module

        def generate_module(gm, inputs, symbols, name, *how):
            order.append(len(gm.graph.nodes))
            return generate(gm, inputs, symbols, name, *how)

        def first_is_best(size, index):
            measured.append(index)
            return 1.0 + index

        with (
            mock.patch.object(compiling, "generate_module", generate_module),
            made_up_times(first_is_best),
        ):
            torch.compile(self.op)(torch.randn(8))
        self.assertEqual(len(order), 3)
        self.assertEqual(order, sorted(order, reverse=True))
        self.assertEqual(measured[0], 0)  # the order of configs

    def tune(self, **options):
        """Two candidates with a kernel each, and the op, which has none."""
        self.register(
            self.op,
            configs=[CustomOpConfig(in_one_step), CustomOpConfig(in_three_steps)],
        )
        counters.clear()
        x = torch.randn(8)
        with (
            fresh_cache(),
            config.patch(options),
            made_up_times(lambda size, index: 1.0 + index) as measured,
        ):
            self.assertEqual(torch.compile(self.op)(x), x.exp())
        self.assertEqual(measured, [8])

    @parametrize("threads", (1, 2))
    @parametrize("limit_s", (None, 60.0))
    def test_their_kernels_are_compiled_together(self, threads, limit_s):
        with compilers() as commands:
            self.tune(
                custom_op_autotune_threads=threads,
                custom_op_candidate_time_limit_s=limit_s,
            )
        self.assertEqual(counters["inductor"]["custom_op_cpp_units"], 1)
        self.assertEqual(len(commands), 1)

    def test_one_by_one_where_that_fails(self):
        with (
            mock.patch.object(cpp_units, "_text", return_value="nonsense"),
            compilers() as commands,
        ):
            self.tune()
        self.assertEqual(counters["inductor"]["custom_op_cpp_units"], 1)
        self.assertGreater(len(commands), 2)

    def test_one_by_one_where_that_takes_too_long(self):
        over = threading.Event()
        self.addCleanup(over.set)
        with (
            mock.patch.object(compiling, "compile_together", lambda *_: over.wait()),
            compilers() as commands,
        ):
            self.tune(
                custom_op_autotune_threads=2, custom_op_candidate_time_limit_s=10.0
            )
        self.assertGreater(len(commands), 1)

    def test_compilers_start_before_lowering_goes_on(self):
        went_on = threading.Event()
        before = []

        def together(kernels, begin):
            before.append(not went_on.wait(0.1))
            begin()

        module = types.SimpleNamespace(load=lambda: None)
        standing = types.SimpleNamespace(modules={0: module})
        tuning = types.SimpleNamespace(standing=standing, loads={})
        with (
            ThreadPoolExecutor(1) as pool,
            mock.patch.object(compiling, "_HANDOVER_S", 60.0),
            mock.patch.object(compiling, "compile_together", together),
        ):
            compiling._load_unit(tuning, {0: ["one", "two"]}, pool.submit)
            went_on.set()
            tuning.loads[0].result()
        self.assertEqual(before, [True])

    def test_what_workers_compile_is_loaded_behind_the_last(self):
        steps = []
        generate, load = compiling.generate_module, SubgraphModule.load

        def generate_module(*args):
            steps.append("generate")
            return generate(*args)

        def loaded(module):
            steps.append("load")
            return load(module)

        with (
            mock.patch.object(compiling, "generate_module", generate_module),
            mock.patch.object(SubgraphModule, "load", loaded),
            mock.patch.object(compiling, "kernels_of", lambda module: []),
            mock.patch.object(compiling, "is_compiled_by_workers", lambda source: True),
        ):
            self.tune(custom_op_autotune_threads=1)
        self.assertEqual(steps[:6], 3 * ["generate"] + 3 * ["load"])

    @parametrize("winners", (1, 2))
    def test_kernels_have_one_name_where_measured_and_where_emitted(self, winners):
        ranges = [(0, 100), (100, 1000)]
        self.register(
            self.op,
            configs=[
                CustomOpRangeConfig("x", 0, ranges, [in_one_step, in_three_steps])
            ],
        )
        names = {"measured": set(), "emitted": set()}

        def spy(cls, method, kind, graph_of=lambda result: V.graph):
            original = getattr(cls, method)

            def call(*args, **kwargs):
                result = original(*args, **kwargs)
                with V.set_graph_handler(graph_of(result)):
                    names[kind].add(kernel_suffix("source"))
                return result

            self.enterContext(mock.patch.object(cls, method, call))

        spy(SubgraphModule, "__init__", "measured")
        spy(dispatch, "lower_branch", "emitted", lambda branch: branch.graph)
        spy(GraphLowering, "codegen", "emitted")

        def best(size, index):
            return 1.0 if index == int(winners == 2 and size >= 100) else 2.0

        x = torch.randn(200)
        torch._dynamo.mark_dynamic(x, 0)
        with made_up_times(best):
            torch.compile(self.op)(x)
        self.assertEqual(len(names["measured"]), 1)
        self.assertNotIn(None, names["measured"])
        self.assertEqual(names["emitted"], names["measured"])

    def test_kernels_of_other_graphs_are_numbered(self):
        suffixes = []
        codegen = GraphLowering.codegen

        def spy(graph):
            suffixes.append(kernel_suffix("source"))
            return codegen(graph)

        with mock.patch.object(GraphLowering, "codegen", spy):
            torch.compile(lambda x: x.exp())(torch.randn(8))
        self.assertEqual(suffixes, [None])

    def test_kernels_are_named_after_the_ops_in_them(self):
        self.register(self.op, configs=[CustomOpConfig(lambda x: torch.exp(-x))])
        with (
            config.patch("cpp.descriptive_names", "original_aten"),
            made_up_times(lambda size, index: 1.0 if index == 0 else 2.0),
        ):
            _, (code,) = run_and_get_code(torch.compile(self.op), torch.randn(8))
        self.assertIn("cpp_fused_exp_neg_0 = ", code)


instantiate_parametrized_tests(TestStartedAfter)
instantiate_parametrized_tests(TestCompiling)


if __name__ == "__main__":
    run_tests()
