# Owner(s): ["module: inductor"]
"""From a winner table to one graph: what branches are made of, and what is emitted."""

import itertools
import math
import operator
import re
import textwrap
import unittest
from unittest import mock

from range_autotune_testing import made_up_times, SymbolicTestCase
from torch._dynamo.utils import counters
from torch._inductor.codegen.wrapper import PythonWrapperCodegen
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
from torch._inductor.range_autotune import dispatch, lowering
from torch._inductor.range_autotune.call_site import CallSite
from torch._inductor.range_autotune.sizes.guards import is_about_index_width


DEVICE = GPU_TYPE if HAS_GPU else "cpu"
W = torch.eye(4, device=DEVICE)


class TestBranches(SymbolicTestCase):
    def test_a_candidate_behind_the_symbols(self):
        size = self.symbol("s0", 100)
        graph = torch.fx.Graph()
        x, n = graph.placeholder("x"), graph.placeholder("n")
        graph.output([graph.call_function(torch.ops.aten.add.Tensor, (x, n))])
        site = CallSite(
            torch.ops.aten.abs.default, {}, (self.tensor([2 * size, 4]), size + 1)
        )
        gm, fakes = dispatch._with_symbols(
            torch.fx.GraphModule({}, graph), [size], site
        )
        self.assertExpectedInline(
            gm.code.strip().replace(str(size), "s0"),
            """\
def forward(self, symbol_s0, input_0, input_1):
    add_tensor = torch.ops.aten.add.Tensor(input_0, input_1);  input_0 = input_1 = None
    return [add_tensor]""",
        )
        values = [node.meta["val"] for node in gm.graph.find_nodes(op="placeholder")]
        self.assertTrue(all(map(operator.is_, values, fakes)))
        self.assertEqual(
            [str(v.node.expr) for v in values[::2]], [f"{size}", f"{size} + 1"]
        )
        self.assertEqual(values[1].shape[0].node.expr, 2 * size)


_numbers = itertools.count()


def tuned_op(ranges, config_patches=None, work=lambda x: x):
    """An identity, with an implementation for each range that works and adds its marker."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    op = torch.library.custom_op(f"dispatch::op{next(_numbers)}", mutates_args=())(fn)
    op.register_fake(torch.empty_like)

    def implementation(marker):
        return CustomOpConfig(
            lambda x: work(x) + marker,
            config_patches=config_patches,
        )

    impls = [implementation(i) for i in range(1, len(ranges) + 1)]
    register_custom_op_autotuning(
        op, configs=[CustomOpRangeConfig("x", 0, ranges, impls)]
    )
    return op


def winner_by_range(ranges):
    """Made-up times: candidate i wins in range i, the op itself nowhere."""

    def ms(size, index):
        start, end = ranges[index] if index >= 0 else (0, 0)
        return 1.0 if start <= size < end else 2.0

    return made_up_times(ms)


def body_of_call(code):
    """The generated ``call`` behind its preamble, names of symbols and branches unified."""
    lines = code[code.index("def call(") :].split("\n\nrunner =")[0].splitlines()
    kept = [line for line in lines if line.strip() and "#" not in line]
    (first,) = [i for i, line in enumerate(kept) if "_size[0]" in line]
    body = textwrap.dedent("\n".join(kept[first + 1 :]))
    branches = re.findall(r"size_branch_\d+", body)
    for new, old in enumerate(dict.fromkeys(branches)):
        body = body.replace(f"{old}(", f"size_branch_{new}(")
    return re.sub(r"\bs\d+\b", "s0", body)


def peak_bytes(call):
    """The most that a call has allocated at once."""
    if HAS_GPU:
        device = torch.get_device_module(GPU_TYPE)
        before = device.memory_allocated()
        device.reset_peak_memory_stats()
        call()
        return device.max_memory_allocated() - before
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, profile_memory=True) as profile:
        call()
    events = profile.profiler.kineto_results.events()
    changes = [event.nbytes() for event in events if event.name() == "[memory]"]
    return max(itertools.accumulate(changes))


def guards_on_sizes(shape_env):
    """Without those that every kernel on a GPU has, that 32 bits can index it."""
    exprs = [guard.expr for guard in shape_env.guards]
    return [str(expr) for expr in exprs if not is_about_index_width(expr)]


class TestEmittedCode(TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.enterContext(mock.patch.dict(user_lowerings))

    def compile(self, fn, ranges, others=0):
        """
        The compiled function, its code, and the graph's guards on sizes.

        Args:
            others: how many more inputs it takes, of the same shape.
        """
        guards = []

        def emit_dispatch(*args):
            shape_env = V.graph.sizevars.shape_env
            before = guards_on_sizes(shape_env)
            results = emit(*args)
            guards.append((before, shape_env))
            return results

        emit = lowering.emit_dispatch
        inputs = [torch.zeros(20, 4, device=DEVICE) for _ in range(1 + others)]
        for x in inputs:
            torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(fn)
        with (
            winner_by_range(ranges),
            mock.patch.object(lowering, "emit_dispatch", emit_dispatch),
        ):
            _, codes = run_and_get_code(compiled, *inputs)
        before, shape_env = guards[0]
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
        branch_of = dispatch._branch

        def spy(*args):
            branch = branch_of(*args)
            tagged.extend(o.get_config_patches() for o in branch.graph.operations)
            return branch

        with mock.patch.object(dispatch, "_branch", spy):
            self.compile(op, ranges)
        self.assertGreaterEqual(len(tagged), 2)
        self.assertEqual(
            {str(patches) for patches in tagged}, {"{'realize_reads_threshold': 7}"}
        )

    @unittest.skipIf(HAS_GPU, "the code of a GPU has its guards in between")
    def test_code_of_the_dispatch(self):
        ranges = [(0, 10), (10, 20), (20, math.inf)]
        op = tuned_op(ranges)
        _, code, *_ = self.compile(lambda x, y: op(x * y), ranges, others=1)
        self.assertExpectedInline(
            body_of_call(code),
            """\
assert_size_stride(arg1_1, (s0, 4), (4, 1), 'input')
assert_size_stride(arg2_1, (s0, 4), (4, 1), 'input')
buf1_args = [s0, arg1_1, arg2_1]
del arg1_1
del arg2_1
if s0 < 10:
    (buf0,) = size_branch_0(buf1_args)
else:
    if s0 < 20:
        (buf0,) = size_branch_1(buf1_args)
    else:
        (buf0,) = size_branch_2(buf1_args)
return (buf0, )""",
        )

    @parametrize("cpp_wrapper", (False, True))
    def test_checks_are_not_repeated(self, cpp_wrapper):
        ranges = [(0, 10), (10, 20), (20, math.inf)]
        op = tuned_op(ranges)
        with config.patch(cpp_wrapper=cpp_wrapper):
            compiled, code, *_ = self.compile(lambda x, y: op(x * y), ranges, others=1)
            for i, size in enumerate((5, 15, 30), 1):
                x, y = (torch.randn(size, 4, device=DEVICE) for _ in range(2))
                self.assertEqual(compiled(x, y), x * y + i)
        for check, count in (("assert_size_stride(", 2), ("assert_alignment(", 0)):
            self.assertEqual(code.count(check), count, msg=code)

    @parametrize("cpp_wrapper", (False, True))
    def test_equal_call_sites_share_branches(self, cpp_wrapper):
        ranges = [(0, 10), (10, math.inf)]
        op = tuned_op(ranges)

        def fn(x):
            for _ in range(3):  # what is between them keeps them apart
                x = op(x @ x.T @ x)
            return x

        with config.patch(cpp_wrapper=cpp_wrapper):
            compiled, code, *_ = self.compile(fn, ranges)
        if not cpp_wrapper:  # there a branch is no function
            self.assertEqual(len(set(re.findall(r"def size_branch_\d+", code))), 2)
            self.assertEqual(len(re.findall(r"= size_branch_\d+\(", code)), 6)
        for size, marker in ((5, 1), (15, 2)):
            x = expected = torch.randn(size, 4, device=DEVICE) / size
            for _ in range(3):
                expected = expected @ expected.T @ expected + marker
            self.assertEqual(compiled(x), expected)

    def test_names_of_multi_kernels_are_those_of_one_module(self):
        """They are numbered by how many there are, whichever function calls them."""
        ranges = [(0, 10), (10, math.inf)]
        op = tuned_op(ranges)
        known = []

        def write(wrapper):
            known.append(wrapper.multi_kernel_state.subkernel_to_kernel_name)

        with mock.patch.object(PythonWrapperCodegen, "_write_multi_kernel_defs", write):
            self.compile(lambda x: op(x).sum(0), ranges)
        # Modules of what is measured come first, then the branches, then all of it.
        measured, emitted = known[:-3], known[-3:]
        self.assertTrue(all(names is emitted[0] for names in emitted))
        self.assertFalse(any(names is emitted[0] for names in measured))

    def test_only_what_is_read_is_kept(self):
        """Of two outputs one is read by nobody; the input is not needed any more."""
        ranges = [(0, 10), (10, math.inf)]

        def both(marker):
            return lambda x: (x + marker, x - marker)

        def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x.clone(), x.clone()

        op = torch.library.custom_op(f"dispatch::op{next(_numbers)}", mutates_args=())(
            fn
        )
        op.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, ranges, [both(1), both(2)])]
        )
        with config.patch(enable_custom_op_fusion=False):
            compiled, code, *_ = self.compile(
                lambda x: op(x @ x.T @ x)[1].sum(0), ranges
            )
        body = textwrap.dedent(code[code.index("def call(") :])
        given, first, last = (body.index(text) for text in ("_args = [", "if s", "sum"))
        freed = re.findall(r"del (buf\d+)", body[given:first])
        self.assertEqual(len(freed), 1, msg=code)
        unread, _ = re.search(r"\((buf\d+), (buf\d+),\) = ", body).groups()
        self.assertIn(f"del {unread}\n", body[first:last])
        x = torch.randn(7, 4, device=DEVICE)
        self.assertEqual(compiled(x), (x @ x.T @ x - 1).sum(0))

    @parametrize("cpp_wrapper", (False, True))
    def test_peak_is_that_of_inlined_code(self, cpp_wrapper):
        """
        Of two products, as between others: the first one in front is of the size of the
        last one, but free memory until then; that of the second one, within.
        """
        ranges = [(0, 10), (10, math.inf)]
        op = tuned_op(ranges, work=lambda x: x @ W @ W)
        with config.patch(cpp_wrapper=cpp_wrapper):
            compiled, *_ = self.compile(lambda x: op(x @ W @ W) @ W, ranges)
            x = torch.randn(500, 4, device=DEVICE)
            peak = peak_bytes(lambda: compiled(x))
        self.assertLess(peak, 2.5 * x.nbytes)

    def test_fx_wrapper_runs_the_op_itself(self):
        op = tuned_op([(0, 10), (10, math.inf)])
        x = torch.randn(20, 4, device=DEVICE)
        counters.clear()
        # It has no lines for these assertions.
        with config.patch(fx_wrapper=True, alignment_asserts=False):
            self.assertEqual(torch.compile(op, dynamic=True)(x), x)
        self.assertEqual(counters["inductor"]["custom_op_candidate_timings"], 0)

    def test_memory_planning_in_cpp_runs_the_op_itself(self):
        op = tuned_op([(0, 10), (10, math.inf)])
        x = torch.randn(20, 4, device=DEVICE)
        counters.clear()
        with config.patch(memory_planning=True, cpp_wrapper=True):
            compiled = torch.compile(lambda x: (op(x @ x.T) + 1) @ x, dynamic=True)
            self.assertEqual(compiled(x), (x @ x.T + 1) @ x)
        self.assertEqual(counters["inductor"]["custom_op_candidate_timings"], 0)

    @unittest.skipUnless(HAS_GPU, "CUDA graphs need a GPU")
    @parametrize("graph_partition", (False, True))
    def test_with_cuda_graphs(self, graph_partition):
        ranges = [(0, 10), (10, 20), (20, math.inf)]
        op = tuned_op(ranges)
        patches = {"triton.cudagraphs": True, "graph_partition": graph_partition}
        counters.clear()
        with config.patch(patches):
            compiled, *_ = self.compile(lambda x: op(x * 2) * 3, ranges)
            for _ in range(3):  # warm up, record, replay
                for i, size in enumerate((5, 15, 30), 1):
                    x = torch.randn(size, 4, device=DEVICE)
                    torch.compiler.cudagraph_mark_step_begin()
                    self.assertEqual(compiled(x), (x * 2 + i) * 3)
        self.assertEqual(counters["inductor"]["cudagraph_skips"], 0)
        self.assertEqual(counters["inductor"]["cudagraph_partitions"], 0)
        self.assertGreaterEqual(
            torch._inductor.cudagraph_trees.get_container(
                torch.accelerator.current_device_index()
            )
            .tree_manager.new_graph_id()
            .id,
            3,
        )

    @parametrize("deferring", (True, False))
    def test_one_winner_is_tagged_too(self, deferring):
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
            config.patch(defer_custom_op_choices=deferring),
        ):
            torch.compile(lambda x: op(x).sum(0), dynamic=True)(x)
        self.assertEqual(tagged, [{"realize_reads_threshold": 7}])


instantiate_parametrized_tests(TestEmittedCode)

if __name__ == "__main__":
    run_tests()
