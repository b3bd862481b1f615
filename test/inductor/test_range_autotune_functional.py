# Owner(s): ["module: inductor"]
"""Implementations that write to tensors of their own, through custom ops and without."""

import sys
import types
from unittest import mock

from range_autotune_testing import OpTestCase, SymbolicTestCase
from test_custom_op_autotune import made_up_times
from torch._dynamo.utils import counters
from torch._higher_order_ops import triton_kernel_wrap
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import ir
from torch._inductor.codegen.subgraph import trace_subgraph
from torch._inductor.kernel.custom_op import CustomOpConfig, CustomOpRangeConfig
from torch._inductor.range_autotune.contract import CandidateError, check_graph
from torch._inductor.range_autotune.functional import written


aten = torch.ops.aten
launch_triton_kernel = torch.ops.higher_order.triton_kernel_wrapper_mutation


class Kernel:
    """In place of Triton's, which is not everywhere."""

    fn = staticmethod(torch.neg)


def made_up_triton():
    """The modules that are asked what kind of kernel one is."""
    autotuner = types.SimpleNamespace(Autotuner=type(None))
    jit = types.SimpleNamespace(JITFunction=Kernel)
    modules = {"autotuner": autotuner, "jit": jit}
    return mock.patch.dict(
        sys.modules,
        {"triton": types.SimpleNamespace(), "triton.runtime": types.SimpleNamespace()}
        | {f"triton.runtime.{name}": module for name, module in modules.items()},
    )


@torch.library.custom_op("range_autotune_writes::double", mutates_args=("out",))
def double(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x * 2)


double.register_fake(lambda x, out: None)


@torch.library.custom_op("range_autotune_writes::both", mutates_args=("a", "b"))
def both(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.copy_(x)
    b.add_(x)
    return x * 4


both.register_fake(lambda x, a, b: torch.empty_like(x))


def into_new(x):
    out = torch.empty_like(x)
    double(x, out)
    return out


def into_what_was_read_before(x):
    out = torch.empty_like(x)
    double(x, out)
    twice = out * 1
    double(twice, out)
    return out - twice


def into_what_is_read_as_it_was(x):
    changed = x * 3
    old = changed - x
    double(x, changed)
    return changed + changed - old


def into_views(x):
    out = torch.zeros_like(x)
    double(x[:, 1:], out[:, 1:])
    out[:, 0].add_(x[:, 0])
    out[:, 0].mul_(2)
    return out


def into_two(x):
    a, b = torch.empty_like(x), x.clone()
    return both(x, a, b) - a + b - 3 * x


def into_an_input_s_copy(x):
    y = x.clone()
    double(x, y)
    return y


WRITERS = (
    into_new,
    into_what_was_read_before,
    into_what_is_read_as_it_was,
    into_views,
    into_two,
    into_an_input_s_copy,
)


class TestGraphs(SymbolicTestCase):
    def traced(self, fn):
        with self.fake_mode:
            x = ir.ir_node_to_tensor(self.tensor([self.symbol("s0", 100), 4]))
        return trace_subgraph(fn, [x])

    def calls(self, gm):
        return [n.target for n in gm.graph.nodes if n.op == "call_function"]

    def test_a_new_tensor_is_not_copied(self):
        targets = self.calls(self.traced(into_new))
        self.assertEqual(targets[-1], torch.ops.range_autotune_writes.double.default)
        self.assertNotIn(aten.clone.default, targets)

    @parametrize("fn", WRITERS)
    def test_a_graph_computes_the_same_and_keeps_its_inputs(self, fn):
        gm = self.traced(fn)
        x = torch.randn(6, 4)
        before = x.clone()
        sizes = [6] * (len(gm.graph.find_nodes(op="placeholder")) - 1)
        self.assertEqual(gm(*sizes, x), fn(before.clone()))
        self.assertEqual(x, before)

    def test_a_write_to_an_input_comes_last(self):
        def fn(x):
            y = x + 1
            double(y, x)
            return y

        gm = self.traced(fn)
        last = [node for node in gm.graph.nodes if node.op == "call_function"][-1]
        (input_written,) = written(last)
        self.assertEqual(last.target, aten.copy_.default)
        self.assertEqual(input_written.op, "placeholder")


class TestTriton(SymbolicTestCase):
    """Launches of a kernel that is said to write to one of its arguments."""

    def traced(self, fn):
        with self.fake_mode:
            x = ir.ir_node_to_tensor(self.tensor([self.symbol("s0", 100), 4]))
        mutated = mock.patch.object(
            triton_kernel_wrap, "get_mutated_tensors", return_value=["out"]
        )
        with made_up_triton(), mutated:
            gm = trace_subgraph(fn, [x])
            (launch,) = gm.graph.find_nodes(
                op="call_function", target=launch_triton_kernel
            )
            return gm, launch, written(launch)

    def launch(self, x, out):
        launch_triton_kernel(
            kernel_idx=triton_kernel_wrap.kernel_side_table.add_kernel(Kernel()),
            constant_args_idx=triton_kernel_wrap.kernel_side_table.add_constant_args(
                {}
            ),
            grid=[(1, 1, 1)],
            tma_descriptor_metadata={},
            kwargs={"x": x, "out": out},
        )

    def test_a_launch_is_no_dead_code(self):
        def fn(x):
            out = torch.empty_like(x)
            self.launch(x, out)
            return out

        gm, launch, (out,) = self.traced(fn)
        self.assertIs(gm.graph.output_node().args[0], out)
        self.assertIs(launch.kwargs["kwargs"]["out"], out)
        self.assertEqual(out.target, aten.empty.memory_format)
        check_graph(gm)

    def test_what_is_read_as_it_was_is_copied(self):
        def fn(x):
            out = x + 1
            self.launch(x, out)
            return out, x + 1

        gm, _, (out,) = self.traced(fn)
        first, second = gm.graph.output_node().args[0]
        self.assertIs(first, out)
        self.assertIsNot(second, out)

    def test_a_write_to_an_input_is_found(self):
        def fn(x):
            self.launch(x + 1, x)
            return x + 1

        gm, *_ = self.traced(fn)
        with self.assertRaisesRegex(CandidateError, "writes to an argument"):
            check_graph(gm)


def in_branch(fn):
    def impl(x):
        return torch.cond(x.sum() > -1e9, fn, lambda x: x * 2, (x,))

    return impl


class TestBranches(OpTestCase):
    def tuned(self, fn):
        """With one implementation that always wins: the compiled op, a call's input."""

        def body(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        op = torch.library.custom_op(
            f"range_autotune_test::branch_{fn.__name__}", mutates_args=()
        )(body)
        op.register_fake(torch.empty_like)
        self.register(op, configs=[CustomOpConfig(in_branch(fn))])
        compiled, x = torch.compile(op), torch.ones(5)
        with made_up_times(lambda size, index: 1.0 if index == 0 else 2.0):
            result, codes = run_and_get_code(compiled, x)
        return result, x, "true_graph" in "".join(codes)

    def test_one_that_writes_to_the_input_is_out(self):
        def into_input(x):
            x.add_(1)
            return x * 2 - 2

        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            result, x, has_branch = self.tuned(into_input)
        self.assertIn("might be modifying the input", "".join(logs.output))
        self.assertEqual((result, x, has_branch), (x * 2, torch.ones(5), False))

    def test_one_that_writes_to_its_own(self):
        def into_own(x):
            y = x + 1
            y.mul_(2)
            return y - 2

        result, x, has_branch = self.tuned(into_own)
        self.assertEqual((result, has_branch), (x * 2, True))

    def test_one_that_returns_the_input_returns_a_copy(self):
        def the_input(x):
            return x.view(5)

        result, x, has_branch = self.tuned(the_input)
        result.add_(7)
        self.assertEqual((result, x, has_branch), (x + 7, torch.ones(5), True))


class TestCandidates(OpTestCase):
    # Inductor reads a value again that was to be kept, with or without autotuning.
    @parametrize("fn", [fn for fn in WRITERS if fn is not into_what_was_read_before])
    def test_compete(self, fn):
        def body(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        def other(x):
            return x + x

        def second_from_6(size, index):
            return 1.0 if index == int(size >= 6) else 2.0

        name = f"range_autotune_test::op_{fn.__name__}"
        op = torch.library.custom_op(name, mutates_args=())(body)
        op.register_fake(torch.empty_like)
        config = CustomOpRangeConfig("x", 0, [(0, 6), (6, 100)], [fn, other])
        self.register(op, configs=[config])
        counters.clear()
        compiled = torch.compile(lambda x: op(x.sin()).tanh())
        x = torch.randn(4, 5)
        torch._dynamo.mark_dynamic(x, 0)
        with made_up_times(second_from_6):
            _, (code, *_) = run_and_get_code(compiled, x)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        self.assertIn("ops.range_autotune_writes.", code)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for rows in (4, 3, 6, 9):
                x = torch.randn(rows, 5)
                before = x.clone()
                self.assertEqual(compiled(x), (before.sin() * 2).tanh())
                self.assertEqual(x, before)


instantiate_parametrized_tests(TestGraphs)
instantiate_parametrized_tests(TestCandidates)


if __name__ == "__main__":
    run_tests()
