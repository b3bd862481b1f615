# Owner(s): ["module: inductor"]
"""The IR node of a dispatch: its tests of the size, its branches, what it tells others."""

import bisect
import itertools
import math
from unittest import mock

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import SymbolicTestCase
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.virtualized import V

import torch
from torch._inductor import config, ir
from torch._inductor.range_autotune.call_site import CallSite, Slot
from torch._inductor.range_autotune.candidates.contract import Outputs
from torch._inductor.range_autotune.candidates.traced_candidates import TracedCandidate
from torch._inductor.range_autotune.dispatch import emit_dispatch
from torch._inductor.range_autotune.emitting import branch_lowering, size_dispatch
from torch._inductor.range_autotune.emitting.size_dispatch import (
    size_tests,
    SizeDispatch,
)
from torch._inductor.range_autotune.ranges import ANY_SIZE, DimRange, Segment
from torch._inductor.range_autotune.registration import Candidate
from torch._inductor.range_autotune.standing import Standing
from torch._inductor.range_autotune.tuning import Tuning


aten = torch.ops.aten
SIZE = sympy.Symbol("s0")


def branch_at(tests, size):
    """The index of the branch that a size reaches, and how many tests it took."""
    taken = 0
    while not isinstance(tests, int):
        _, start, below, above = tests
        tests = below if size < start else above
        taken += 1
    return tests, taken


@st.composite
def starts(draw):
    """Of all branches but the first: 2 to 9 branches."""
    return sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=8)))


class TestSizeTests(TestCase):
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(starts())
    def test_each_size_reaches_its_branch(self, starts):
        tests = size_tests(SIZE, starts)
        for size in range(starts[-1] + 2):
            index, _ = branch_at(tests, size)
            self.assertEqual(index, bisect.bisect_right(starts, size), f"at {size}")

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(starts())
    def test_balanced(self, starts):
        tests = size_tests(SIZE, starts)
        taken = {branch_at(tests, size)[1] for size in [0, *starts]}
        most = math.ceil(math.log2(len(starts) + 1))
        self.assertLessEqual(taken, {most, most - 1})

    def test_one_branch(self):
        self.assertEqual(size_tests(SIZE, []), 0)

    def test_four_branches(self):
        self.assertEqual(
            size_tests(SIZE, [10, 20, 30]),
            (SIZE, 20, (SIZE, 10, 0, 1), (SIZE, 30, 2, 3)),
            "half, then halves",
        )


def candidate(returns, config_patches=None, x=None, constants=None):
    """
    A candidate of one input.

    Args:
        returns: from a graph and its placeholder to the list of results.
        x: the fake input.
        constants: of the graph, by name.
    """
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    node.meta["val"] = x
    graph.output(returns(graph, node))
    module = torch.fx.GraphModule(constants or {}, graph)
    return TracedCandidate(Candidate("made_up", None, {}, config_patches or {}), module)


def plus(marker):
    """What a candidate returns that adds a number."""
    return lambda graph, x: [graph.call_function(aten.add.Tensor, (x, marker))]


def plus_a_row(graph, x):
    """Of a constant named table."""
    table = graph.create_node("get_attr", "table")
    row = graph.call_function(aten.select.int, (table, 0, 3))
    return [graph.call_function(aten.add.Tensor, (x, row))]


def twice_the_same(graph, x):
    (result,) = plus(1)(graph, x)
    return [result, result]


def by_way_of_the_cpu(graph, x):
    there = graph.call_function(aten.add.Tensor, (x, 1))
    for device in ("cpu", "cuda:0"):
        there = graph.call_function(
            torch.ops.prims.device_put.default, (there, torch.device(device))
        )
        there.meta["val"] = None
    return [there]


class TestSizeDispatch(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        self.size = self.symbol("s0", 100)

    def emit(self, *candidates, outputs=1, device="cpu"):
        """The node of a dispatch among candidates, and what it returns."""
        x = self.tensor([self.size, 4])
        x.get_layout().device = torch.device(device)
        site = CallSite(aten.abs.default, {"self": Slot(0)}, (x,))
        fakes = tuple(site.fake_inputs() * outputs)
        edges = [*(10 * i for i in range(len(candidates))), math.inf]
        segments = [
            Segment(DimRange(a, b), c)
            for (a, b), c in zip(itertools.pairwise(edges), candidates)
        ]
        standing = Standing(None, site, (), ())
        outputs = Outputs(fakes, None, fakes)
        tuning = Tuning(outputs, None, 2 * self.size, ANY_SIZE, standing)
        results = emit_dispatch([(tuning, segments)])
        (node,) = [o for o in V.graph.operations if isinstance(o, SizeDispatch)]
        return node, results

    def test_one_node_whatever_the_number_of_branches(self):
        node, (result,) = self.emit(*(candidate(plus(i)) for i in range(5)))
        starts = [10, 20, 30, 40]
        self.assertEqual(node.tests, size_tests(2 * self.size, starts))
        self.assertEqual(len(node.get_subgraphs()), 5)
        self.assertEqual(result.get_size(), [self.size, 4])
        self.assertEqual(result.get_stride(), [4, 1])
        self.assertEqual(len(V.graph.operations), 2)  # it and its output
        self.assertEqual(self.shape_env.guards, [])

    def test_operands(self):
        node, _ = self.emit(candidate(plus(1)), candidate(plus(2)))
        self.assertEqual([x.get_name() for x in node.inputs], ["made_up"])
        self.assertEqual(node.constant_args, (2 * self.size, self.size))
        self.assertEqual(node.get_free_symbol_uses(), {self.size})
        self.assertEqual({dep.name for dep in node.get_reads()}, {"made_up"})
        for branch in node.get_subgraphs():
            first, second = branch.graph.graph_inputs.values()
            self.assertEqual(first, self.size)
            self.assertEqual(second.get_size(), [self.size, 4])

    def test_each_branch_is_lowered_under_its_own_config(self):
        run, seen = branch_lowering._BranchLowering.run, []

        def spy(graph, *args):
            seen.append(config.realize_reads_threshold)
            return run(graph, *args)

        patches = ({"realize_reads_threshold": 7}, {}, {"realize_reads_threshold": 9})
        with mock.patch.object(branch_lowering._BranchLowering, "run", spy):
            node, _ = self.emit(*(candidate(plus(1), p) for p in patches))
        self.assertEqual(seen, [7, config.realize_reads_threshold, 9])
        tags = [b.graph.operations[0].get_config_patches() for b in node.branches]
        self.assertEqual(tags, list(patches))

    def test_constants_are_those_of_the_graph_around_it(self):
        table = torch.rand(20, 4)
        reads_it = candidate(plus_a_row, constants={"table": table})
        node, _ = self.emit(reads_it, candidate(plus(1)), reads_it)
        ((name, constant),) = V.graph.constants.items()
        self.assertIs(constant, table)
        for branch in (node.branches[0], node.branches[2]):
            (computed,) = branch.graph.graph_outputs
            self.assertIn(name, computed.get_read_names())

    def test_outputs_do_not_share_a_buffer(self):
        both = candidate(twice_the_same)
        node, results = self.emit(both, both, outputs=2)
        self.assertEqual(len({result.get_name() for result in results}), 2)
        for branch in node.branches:
            names = [output.get_name() for output in branch.graph.graph_outputs]
            self.assertEqual(len(set(names)), 2)

    def test_an_output_is_no_input(self):
        itself = candidate(lambda graph, x: [x])
        node, _ = self.emit(itself, itself)
        for branch in node.branches:
            (output,) = branch.graph.graph_outputs
            self.assertNotIn(output.get_name(), branch.graph.graph_inputs)

    def test_unaligned_input_is_unaligned_in_branches(self):
        V.graph.unaligned_buffers.add("made_up")
        node, _ = self.emit(candidate(plus(1)), candidate(plus(2)))
        for branch in node.branches:
            _, name = branch.graph.graph_inputs
            self.assertIn(name, branch.graph.unaligned_buffers)

    def test_output_is_unaligned_if_a_branch_s_is(self):
        own_buffers, called = branch_lowering._own_buffers, []

        def unaligned_the_first_time(*args):
            owned = own_buffers(*args)
            if not called:
                V.graph.unaligned_buffers.add(owned[0].get_name())
            called.append(1)
            return owned

        with mock.patch.object(
            branch_lowering, "_own_buffers", unaligned_the_first_time
        ):
            _, (result,) = self.emit(candidate(plus(1)), candidate(plus(2)))
        self.assertIn(result.get_name(), V.graph.unaligned_buffers)

    def test_cuda_graphs_stay_possible(self):
        node, _ = self.emit(candidate(plus(1)), candidate(plus(2)), device="cuda:0")
        self.assertIsNone(V.graph.disable_cudagraphs_reason)
        self.assertNotIsInstance(node, ir.Conditional)
        self.assertFalse(size_dispatch.is_cudagraph_unsafe_op(node))

    def test_an_earlier_reason_against_cuda_graphs_stays(self):
        V.graph.disable_cudagraphs_reason = "an earlier one"
        self.emit(candidate(plus(1)), candidate(plus(2)), device="cuda:0")
        self.assertEqual(V.graph.disable_cudagraphs_reason, "an earlier one")

    def test_a_branch_on_the_cpu_rules_cuda_graphs_out(self):
        self.emit(candidate(plus(1)), candidate(by_way_of_the_cpu), device="cuda:0")
        self.assertEqual(V.graph.disable_cudagraphs_reason, "a branch runs on the CPU")

    def test_an_op_that_cannot_be_captured_makes_the_dispatch_one(self):
        unsafe = torch.library.custom_op(
            "size_dispatch::unsafe",
            lambda x: x.clone(),
            mutates_args=(),
            schema="(Tensor x) -> Tensor",
            tags=[torch.Tag.cudagraph_unsafe],
        )
        unsafe.register_fake(torch.empty_like)

        def calls_it(graph, x):
            result = graph.call_function(torch.ops.size_dispatch.unsafe.default, (x,))
            result.meta["val"] = torch.empty_like(x.meta["val"])
            return [result]

        with self.fake_mode:
            x = self.tensor([self.size, 4])
            unsafe_candidate = candidate(calls_it, x=ir.ir_node_to_tensor(x))
        node, _ = self.emit(candidate(plus(1)), unsafe_candidate)
        self.assertTrue(size_dispatch.is_cudagraph_unsafe_op(node))


if __name__ == "__main__":
    run_tests()
