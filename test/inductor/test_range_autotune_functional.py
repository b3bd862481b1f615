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
from torch._inductor.kernel.custom_op import CustomOpConfig, CustomOpRangeConfig
from torch._inductor.range_autotune.call_site import CallSite
from torch._inductor.range_autotune.candidates.candidate_graphs import (
    trace_candidate,
    trace_fallback,
)
from torch._inductor.range_autotune.candidates.contract import check_graph
from torch._inductor.range_autotune.candidates.traced_candidates import (
    Rejection,
    TracedCandidate,
)
from torch._inductor.range_autotune.errors import CandidateError
from torch._inductor.range_autotune.graphs.functional import arguments_written
from torch._inductor.range_autotune.graphs.node_memory import memory_of
from torch._inductor.range_autotune.graphs.symbolic_graphs import trace_subgraph
from torch._inductor.range_autotune.registration import Candidate


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


def launch(x, out):
    """As an implementation launches a kernel."""
    table = triton_kernel_wrap.kernel_side_table
    launch_triton_kernel(
        kernel_idx=table.add_kernel(Kernel()),
        constant_args_idx=table.add_constant_args({}),
        grid=[(1, 1, 1)],
        tma_descriptor_metadata={},
        kwargs={"x": x, "out": out},
    )


def writes_to_out():
    """Kernels are said to write to that argument."""
    return mock.patch.object(
        triton_kernel_wrap, "get_mutated_tensors", return_value=["out"]
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
        (input_written,) = arguments_written(last)
        self.assertEqual(last.target, aten.copy_.default)
        self.assertEqual(input_written.op, "placeholder")


class TestTriton(SymbolicTestCase):
    """Launches of a kernel that is said to write to one of its arguments."""

    def traced(self, fn):
        with self.fake_mode:
            x = ir.ir_node_to_tensor(self.tensor([self.symbol("s0", 100), 4]))
        with made_up_triton(), writes_to_out():
            gm = trace_subgraph(fn, [x])
            (launched,) = gm.graph.find_nodes(
                op="call_function", target=launch_triton_kernel
            )
            return gm, launched, arguments_written(launched)

    def test_a_launch_is_no_dead_code(self):
        def fn(x):
            out = torch.empty_like(x)
            launch(x, out)
            return out

        gm, launched, (out,) = self.traced(fn)
        self.assertIs(gm.graph.output_node().args[0], out)
        self.assertIs(launched.kwargs["kwargs"]["out"], out)
        self.assertEqual(out.target, aten.empty.memory_format)
        check_graph(gm)

    def test_what_is_read_as_it_was_is_copied(self):
        def fn(x):
            out = x + 1
            launch(x, out)
            return out, x + 1

        gm, _, (out,) = self.traced(fn)
        first, second = gm.graph.output_node().args[0]
        self.assertIs(first, out)
        self.assertIsNot(second, out)

    def test_a_write_to_an_input_is_found(self):
        def fn(x):
            launch(x + 1, x)
            return x + 1

        gm, *_ = self.traced(fn)
        with self.assertRaisesRegex(CandidateError, "writes to an argument"):
            check_graph(gm)


class TestArguments(OpTestCase, SymbolicTestCase):
    """Writes to an op's argument where its neighbours compute that: sin(x) -> op."""

    def traced(self, impl):
        """An implementation of the second of two ops in a row; the first returns x + 1."""
        op = self.define_op("f(Tensor x) -> Tensor")
        torch.library.register_fake(op._name, torch.empty_like, lib=self._library)
        given = self.tensor([self.symbol("s0", 100), 4])
        with self.fake_mode:
            value = ir.ir_node_to_tensor(given)
        body = torch.fx.Graph()
        x = body.placeholder("x")
        sin = body.call_function(aten.sin.default, (x,))
        first = body.call_function(op, (sin,))
        second = body.call_function(op, (first,))
        for node in (x, sin, first, second):
            node.meta["val"] = value
        body.output([second, first, sin])
        site = CallSite.from_region(body, [first, second], (given,))
        parts = (Candidate("first", lambda x: x + 1), Candidate("second", impl))
        both = Candidate("both", None, parts=parts)
        with made_up_triton(), writes_to_out():
            return trace_candidate(both, site, trace_fallback(site)[1])

    @parametrize(
        "write,op",
        [
            (lambda x: x.mul_(3), "aten.mul_.Tensor"),
            (lambda x: x[:, :1].add_(1), "aten.add_.Tensor"),
            (lambda x: x.contiguous().view(-1).neg_(), "aten.neg_.default"),
            (lambda x: torch._foreach_add_([x], 1), "aten._foreach_add_.Scalar"),
            (lambda x: x.unsqueeze_(0), "aten.unsqueeze_.default"),
            (lambda x: double(x * 2, x), "range_autotune_writes.double.default"),
            (
                lambda x: both(x + 1, x.clone(), x[:, 1:]),
                "range_autotune_writes.both.default",
            ),
            (lambda x: launch(x + 1, x), "triton_kernel_wrapper_mutation"),
            (lambda x: launch(x + 1, x.view(-1)), "triton_kernel_wrapper_mutation"),
        ],
    )
    def test_one_that_is_written_to(self, write, op):
        def impl(x):
            result = x * 2
            write(x)
            return result

        rejection = self.traced(impl)
        self.assertIsInstance(rejection, Rejection)
        self.assertEqual(rejection.reason, f"it writes to an argument with {op}")

    @parametrize(
        "write",
        [
            lambda x: x.clone().mul_(3),
            lambda x: torch.empty_like(x).copy_(x)[:, :1].add_(1),
            lambda x: double(x, torch.empty_like(x)),
            lambda x: both(x, x * 2, x.clone()),
            lambda x: launch(x, torch.empty_like(x)),
        ],
    )
    def test_one_that_is_read_to_write_elsewhere(self, write):
        def impl(x):
            write(x)
            return x * 2

        self.assertIsInstance(self.traced(impl), TracedCandidate)

    @parametrize("impl", [lambda x: x, lambda x: x.view(-1).view(x.shape)])
    def test_one_that_is_returned(self, impl):
        """As a copy: the model and callers may write to it."""
        traced = self.traced(impl)
        self.assertIsInstance(traced, TracedCandidate)
        second, first, sin = traced.graph.graph.output_node().args[0]
        self.assertEqual(second.target, aten.clone.default)
        self.assertEqual(len({*map(memory_of, (second, first, sin))}), 3)


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
instantiate_parametrized_tests(TestArguments)
instantiate_parametrized_tests(TestCandidates)


if __name__ == "__main__":
    run_tests()
