# Owner(s): ["module: inductor"]
"""From a winner table to one graph: the tree of conditionals, and what is emitted."""

import contextlib
import itertools
import math
import re
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import SymbolicTestCase
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune import dispatch, lowering, rounds
from torch._inductor.range_autotune.call_site import CallSite, Slot
from torch._inductor.range_autotune.candidates import Outputs, TracedCandidate
from torch._inductor.range_autotune.dispatch import branch_config
from torch._inductor.range_autotune.inputs import is_about_index_width
from torch._inductor.range_autotune.measure import Timing
from torch._inductor.range_autotune.ranges import DimRange, Segment
from torch._inductor.range_autotune.registration import Candidate


DEVICE = GPU_TYPE if HAS_GPU else "cpu"
COND = torch.ops.higher_order.cond


def winner(marker, config_patches=None):
    """A candidate that adds its marker."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output([graph.call_function(torch.ops.aten.add.Tensor, (x, marker))])
    module = torch.fx.GraphModule({}, graph)
    return TracedCandidate(
        Candidate(f"plus_{marker}", None, {}, config_patches or {}), module
    )


def segments_between(starts, patches=()):
    """From 0 to infinity, each with a marker that is its index."""
    edges = [0, *starts, math.inf]
    return [
        Segment(DimRange(a, b), winner(i, dict(patches[i : i + 1] and patches[i])))
        for i, (a, b) in enumerate(itertools.pairwise(edges))
    ]


def conditionals(gm):
    """The torch.cond nodes of a graph, not of its branches."""
    return gm.graph.find_nodes(op="call_function", target=COND)


def branches(gm):
    """The graphs of the one conditional: where its predicate holds, and else."""
    (cond,) = conditionals(gm)
    return [getattr(gm, branch.target) for branch in cond.args[1:3]]


def leaves_with_depth(gm, depth=0):
    """From the smallest sizes to the largest."""
    if not conditionals(gm):
        return [(gm, depth)]
    return [leaf for b in branches(gm) for leaf in leaves_with_depth(b, depth + 1)]


def marker_at(gm, size):
    """The leaf that a size reaches, found by evaluating the predicates."""
    while conditionals(gm):
        (cond,) = conditionals(gm)
        names = [node.name for node in gm.graph.find_nodes(op="placeholder")]
        predicate = cond.args[0]
        operand, bound = predicate.args
        assert names.index(operand.name) == names.index("dispatch_size")
        gm = branches(gm)[0 if predicate.target(size, bound) else 1]
    (add,) = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)
    return add.args[1]


@st.composite
def starts(draw):
    """Of all segments but the first: 2 to 9 segments."""
    return sorted(draw(st.sets(st.integers(1, 40), min_size=1, max_size=8)))


class TestTree(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        size = self.symbol("s0", 100)
        self.size = 2 * size
        self.site = CallSite(
            torch.ops.aten.abs.default, {"self": Slot(0)}, (self.tensor([size, 4]),)
        )
        self.outputs = Outputs(tuple(self.site.fake_inputs()), None, ())

    def tree(self, starts, patches=()):
        operands = dispatch._Operands.of(self.site, self.size)
        with mock.patch.object(dispatch, "_branch_numbers", itertools.count()):
            return dispatch._tree(
                segments_between(starts, patches), operands, self.outputs
            )

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(starts())
    def test_each_size_reaches_its_segment(self, starts):
        tree = self.tree(starts)
        for index, (start, end) in enumerate(
            itertools.pairwise([0, *starts, starts[-1] + 50])
        ):
            for size in (start, end - 1):
                self.assertEqual(marker_at(tree, size), index, msg=f"at size {size}")

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(starts())
    def test_is_balanced(self, starts):
        leaves = leaves_with_depth(self.tree(starts))
        self.assertEqual([marker_at(gm, 0) for gm, _ in leaves], [*range(len(leaves))])
        self.assertEqual(len(leaves), len(starts) + 1)
        deepest = math.ceil(math.log2(len(leaves)))
        self.assertLessEqual({depth for _, depth in leaves}, {deepest, deepest - 1})

    def test_graphs_of_three_segments(self):
        tree = self.tree([512, 2048])
        _, above = branches(tree)
        leaf, _ = branches(above)
        code = "\n\n".join(gm.code.strip() for gm in (tree, above, leaf))
        code = re.sub(r";  .* = None", "", re.sub(r"symbol_s\d+", "symbol_s0", code))
        self.assertExpectedInline(
            code,
            """\
def forward(self, symbol_s0, dispatch_size, input_0):
    lt = dispatch_size < 512
    size_branch_2 = self.size_branch_2
    size_branch_3 = self.size_branch_3
    cond = torch.ops.higher_order.cond(lt, size_branch_2, size_branch_3, (symbol_s0, dispatch_size, input_0))
    getitem = cond[0]
    return [getitem]

def forward(self, symbol_s0, dispatch_size, input_0):
    lt = dispatch_size < 2048
    size_branch_0 = self.size_branch_0
    size_branch_1 = self.size_branch_1
    cond = torch.ops.higher_order.cond(lt, size_branch_0, size_branch_1, (symbol_s0, dispatch_size, input_0))
    getitem = cond[0]
    return [getitem]

def forward(self, symbol_s0, dispatch_size, input_0):
    add_tensor = torch.ops.aten.add.Tensor(input_0, 1)
    return [add_tensor]""",
        )

    def test_values_of_the_graph(self):
        tree = self.tree([512])
        (cond,) = conditionals(tree)
        values = {node.name: node.meta["val"] for node in tree.graph.nodes if node.meta}
        self.assertEqual(str(values["dispatch_size"].node.expr), str(self.size))
        self.assertEqual(str(values["lt"].node.expr), f"{self.size} < 512")
        self.assertIs(cond.meta["val"][0], self.outputs.tensors[0])
        self.assertIs(values["getitem"], self.outputs.tensors[0])
        self.assertEqual(self.shape_env.guards, [])

    def test_each_leaf_has_the_config_of_its_candidate(self):
        patches = [{"realize_reads_threshold": 7}, {}, {"realize_reads_threshold": 9}]
        tree = self.tree([512, 2048], patches)
        seen = []
        for gm, _ in leaves_with_depth(tree):
            with branch_config(gm):
                seen.append(config.realize_reads_threshold)
        default = config.realize_reads_threshold
        self.assertEqual(seen, [7, default, 9])
        with branch_config(tree):
            self.assertEqual(config.realize_reads_threshold, default)


instantiate_parametrized_tests(TestTree)

_numbers = itertools.count()


def tuned_op(ranges, config_patches=None):
    """An identity, with an implementation for each range that adds its marker."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    op = torch.library.custom_op(f"dispatch::op{next(_numbers)}", mutates_args=())(fn)
    op.register_fake(torch.empty_like)

    def implementation(marker):
        return CustomOpConfig(
            lambda x: x + marker,
            config_patches=config_patches,
        )

    impls = [implementation(i) for i in range(1, len(ranges) + 1)]
    register_custom_op_autotuning(
        op, configs=[CustomOpRangeConfig("x", 0, ranges, impls)]
    )
    return op


@contextlib.contextmanager
def winner_by_range(ranges):
    """Made-up times: candidate i wins in range i, the op itself nowhere."""

    def time_candidates(runners, *_):
        times = {}
        for index, run in runners.items():
            start, end = ranges[index] if index >= 0 else (0, 0)
            won = start <= run()[0].shape[0] < end
            times[index] = Timing(1.0 if won else 2.0)
        return times

    with mock.patch.object(rounds, "time_candidates", time_candidates):
        yield


def guards_on_sizes(shape_env):
    """Without those that every kernel on a GPU has, that 32 bits can index it."""
    exprs = [guard.expr for guard in shape_env.guards]
    return [str(expr) for expr in exprs if not is_about_index_width(expr)]


class TestEmittedCode(TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.enterContext(mock.patch.dict(user_lowerings))

    def compile(self, fn, ranges):
        """The compiled function, its code, and the graph's guards on sizes."""
        guards = []

        def emit_dispatch(*args):
            shape_env = V.graph.sizevars.shape_env
            before = guards_on_sizes(shape_env)
            results = emit(*args)
            guards.append((before, shape_env))
            return results

        emit = lowering.emit_dispatch
        x = torch.zeros(20, 4, device=DEVICE)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(fn)
        with (
            winner_by_range(ranges),
            mock.patch.object(lowering, "emit_dispatch", emit_dispatch),
        ):
            _, codes = run_and_get_code(compiled, x)
        ((before, shape_env),) = guards
        after = guards_on_sizes(shape_env)
        return compiled, codes[-1], before, after

    @parametrize("count", (2, 3, 5))
    def test_one_conditional_less_than_segments_and_no_guard(self, count):
        ranges = [(i * 10, i * 10 + 10) for i in range(count - 1)]
        ranges.append((count * 10 - 10, math.inf))
        op = tuned_op(ranges)
        compiled, code, before, after = self.compile(op, ranges)
        tests = [line for line in code.splitlines() if line.strip().startswith("if s")]
        self.assertEqual(len(tests), count - 1, msg=code)
        self.assertEqual(before, after)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for i, (start, _) in enumerate(ranges, 1):
                for size in (max(start, 2), start + 9):
                    x = torch.zeros(size, 4, device=DEVICE)
                    self.assertEqual(compiled(x), x + i)

    def test_operations_have_the_config_patches_of_their_candidate(self):
        ranges = [(0, 10), (10, math.inf)]
        op = tuned_op(ranges, {"realize_reads_threshold": 7})
        tagged = []
        tag = dispatch._tag_branches

        def spy(operation):
            tag(operation)
            for subgraph in operation.get_subgraphs():
                tagged.extend(
                    inner.get_config_patches() for inner in subgraph.graph.operations
                )

        with mock.patch.object(dispatch, "_tag_branches", spy):
            self.compile(op, ranges)
        self.assertGreaterEqual(len(tagged), 2)
        self.assertEqual(
            {str(patches) for patches in tagged}, {"{'realize_reads_threshold': 7}"}
        )

    def test_one_winner_is_tagged_too(self):
        ranges = [(0, math.inf)]
        op = tuned_op(ranges, {"realize_reads_threshold": 7})
        tagged = []

        def emit_winner(*args):
            known = len(V.graph.operations)
            results = emit(*args)
            tagged.extend(o.get_config_patches() for o in V.graph.operations[known:])
            return results

        emit = lowering.emit_winner
        x = torch.zeros(20, 4, device=DEVICE)
        with (
            winner_by_range(ranges),
            mock.patch.object(lowering, "emit_winner", emit_winner),
        ):
            torch.compile(lambda x: op(x).sum(0), dynamic=True)(x)
        self.assertEqual(tagged, [{"realize_reads_threshold": 7}])


instantiate_parametrized_tests(TestEmittedCode)

if __name__ == "__main__":
    run_tests()
