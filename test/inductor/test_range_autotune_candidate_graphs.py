# Owner(s): ["module: inductor"]
"""Each candidate as one symbolic graph, or the reason why not."""

import logging
import types

from range_autotune_testing import CallTestCase
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests, TestCase
from torch.utils import _pytree as pytree

import torch
from torch._inductor.range_autotune.call_site import CallSite
from torch._inductor.range_autotune.candidate_indices import FALLBACK
from torch._inductor.range_autotune.candidates.candidate_graphs import (
    trace_candidate,
    trace_fallback,
)
from torch._inductor.range_autotune.candidates.contract import Outputs
from torch._inductor.range_autotune.candidates.traced_candidates import (
    Rejection,
    TracedCandidate,
)
from torch._inductor.range_autotune.errors import CandidateError
from torch._inductor.range_autotune.registration import Candidate


aten = torch.ops.aten


class TestFallback(CallTestCase):
    def trace(self, schema="f(Tensor x) -> Tensor", fake=torch.empty_like):
        self.op = self.op_with_fake(schema, fake)
        return trace_fallback(CallSite.from_call(self.op, (self.x,), {}))

    def test_the_op_stays_one_node_that_is_called_eagerly(self):
        fallback, outputs = self.trace()
        (node,) = fallback.graph.graph.find_nodes(op="call_function", target=self.op)
        self.assertTrue(node.meta["should_fallback"])
        self.assertIs(fallback.candidate, FALLBACK)
        self.assertTrue(fallback.calls_python)
        self.assertEqual(outputs.spec, pytree.tree_structure(0))
        self.assertEqual(outputs.of_ops[0][0].shape[0].node.expr, self.s0)

    def test_an_overload_of_aten_stays_one_node_too(self):
        site = CallSite.from_call(aten.silu.default, (self.x,), {})
        fallback, _ = trace_fallback(site)
        targets = [n.target for n in fallback.graph.graph.nodes if n.op != "output"]
        self.assertEqual(targets[1:], [aten.silu.default])
        self.assertTrue(fallback.calls_python)

    def test_nesting_of_outputs(self):
        _, outputs = self.trace(
            "f(Tensor x) -> (Tensor, Tensor[])", lambda x: (x * 1, [x + 1, x + 2])
        )
        self.assertEqual(len(outputs.tensors), 3)
        self.assertEqual(outputs.spec, pytree.tree_structure((0, [0, 0])))

    def test_what_is_no_tensor_is_in_no_graph(self):
        fallback, outputs = self.trace(
            "f(Tensor x) -> (Tensor, int, Tensor?, SymInt, bool, Tensor)",
            lambda x: (x * 1, 3, None, 2 * x.shape[0], True, x + 1),
        )
        self.assertEqual(len(outputs.tensors), 2)
        self.assertEqual(len(fallback.graph.graph.output_node().args[0]), 2)
        nested = outputs.nested(["a", "b"])
        self.assertEqual(nested, ("a", 3, None, 2 * self.s0, True, "b"))
        self.assertEqual(outputs.without_known(nested), ["a", "b"])

    def test_attention(self):
        """None for the lengths of sequences in a batch, which it has not, and the longest ones."""
        query = self.tensor([2, 4, self.s0, 16], dtype=torch.float16)
        op = aten._scaled_dot_product_flash_attention.default
        site = CallSite.from_call(op, (query, query, query), {})
        _, outputs = trace_fallback(site)
        self.assertEqual(outputs.known, {2: None, 3: None, 4: self.s0, 5: self.s0})

    def test_no_tensor(self):
        self.assert_raises_inline(
            CandidateError,
            lambda: self.trace("f(Tensor x) -> (int, Tensor?)", lambda x: (3, None)),
            """it returns no tensor""",
        )

    def test_a_result_that_is_neither_tensor_nor_integer(self):
        self.assert_raises_inline(
            CandidateError,
            lambda: self.trace(
                "f(Tensor x) -> (Tensor, float)", lambda x: (x * 1, 0.5)
            ),
            """it returns a float, no tensor or integer or None""",
        )


class TestCandidate(CallTestCase):
    def setUp(self):
        super().setUp()
        self.op = self.op_with_fake("f(Tensor x, int k=1) -> Tensor", self.fake_kernel)

    @staticmethod
    def fake_kernel(x, k=1):
        return torch.empty_like(x)

    def trace(self, impl, op=None, node=None, **params):
        site = CallSite.from_call(op or self.op, (node or self.x,), {})
        _, self.outputs = trace_fallback(site)
        return trace_candidate(Candidate("c", impl, params), site, self.outputs)

    def targets(self, impl, **kwargs):
        traced = self.trace(impl, **kwargs)
        self.assertIsInstance(traced, TracedCandidate)
        graph = traced.graph.graph
        return [node.target for node in graph.nodes if node.op == "call_function"]

    def reason(self, impl, **kwargs):
        result = self.trace(impl, **kwargs)
        self.assertIsInstance(result, Rejection)
        return result.reason

    def two_outputs(self):
        return self.op_with_fake(
            "g(Tensor x) -> (Tensor, Tensor)",
            lambda x: (x.new_empty(x.shape[0], 2), x.new_empty(x.shape[0], 2)),
        )

    def test_graph_has_symbolic_sizes(self):
        traced = self.trace(lambda x: x.expand(3, -1, -1).sum(0))
        expand = traced.graph.graph.find_nodes(
            op="call_function", target=aten.expand.default
        )
        self.assertEqual(expand[0].meta["val"].shape[1].node.expr, self.s0)
        self.assertFalse(traced.calls_python)
        self.assertEqual(self.shape_env.guards, [])
        self.assertEqual(counters["inductor"]["custom_op_candidate_traces"], 2)

    def test_tuning_parameters_go_to_the_implementation(self):
        traced = self.trace(lambda x, block=1: x + block, block=64)
        (add,) = traced.graph.graph.find_nodes(
            op="call_function", target=aten.add.Tensor
        )
        self.assertEqual(add.args[1], 64)

    def test_op_itself_with_parameters(self):
        traced = self.trace(None, k=7)
        (node,) = traced.graph.graph.find_nodes(op="call_function", target=self.op)
        self.assertEqual(node.args[1:], (7,))
        self.assertTrue(node.meta["should_fallback"])
        self.assertTrue(traced.calls_python)

    def test_implementation_that_calls_a_custom_op_calls_python(self):
        inner = self.op_with_fake("inner(Tensor x) -> Tensor", torch.empty_like)
        traced = self.trace(lambda x: inner(x) + 1)
        self.assertTrue(traced.calls_python)
        (node,) = traced.graph.graph.find_nodes(op="call_function", target=inner)
        self.assertNotIn("should_fallback", node.meta)

    def reason_of_result(self, given, expected, kind):
        """Of one that returns another second result than the op, neither of them a tensor."""
        op = self.op_with_fake(
            f"{kind.lower().strip('?')}(Tensor x) -> (Tensor, {kind})",
            lambda x: (torch.empty_like(x), expected(x)),
        )
        reason = self.reason(lambda x: (x * 2, given(x)), op=op)
        return reason.replace(str(self.s0), "s0")

    def test_same_numbers_and_none(self):
        op = self.op_with_fake(
            "g(Tensor x) -> (Tensor, SymInt, Tensor?, bool)",
            lambda x: (torch.empty_like(x), x.shape[0] * x.shape[1], None, True),
        )
        targets = self.targets(lambda x: (x * 2, x.numel(), None, True), op=op)
        self.assertEqual(targets, [aten.mul.Tensor])

    def test_another_number(self):
        self.assertExpectedInline(
            self.reason_of_result(lambda x: x.shape[0], lambda x: x.numel(), "SymInt"),
            """output 1 is s0, the op's is 4*s0""",
        )

    def test_number_that_is_the_op_s_at_one_size_only(self):
        self.assertExpectedInline(
            self.reason_of_result(lambda x: x.shape[0], lambda x: 100, "int"),
            """output 1 is s0, the op's is 100""",
        )

    def test_integer_for_a_switch(self):
        self.assertExpectedInline(
            self.reason_of_result(lambda x: 1, lambda x: True, "bool"),
            """output 1 is 1, the op's is True""",
        )

    def test_tensor_where_the_op_has_none(self):
        self.assertExpectedInline(
            self.reason_of_result(lambda x: x + 1, lambda x: None, "Tensor?"),
            """output 1 is a tensor, the op's is None""",
        )

    def test_none_where_the_op_has_a_tensor(self):
        self.assertExpectedInline(
            self.reason_of_result(lambda x: None, lambda x: x + 1, "Tensor?"),
            """output 1 is None, not a tensor""",
        )

    def test_strides_are_pinned_to_the_ops(self):
        traced = self.trace(lambda x: x.t().contiguous().t())
        meta = traced.graph.graph.output_node().meta
        self.assertEqual(meta["user_visible_output_idxs"], [0])
        self.assertEqual(meta["original_output_strides"], [(4, 1)])

    def test_outputs_that_share_memory_get_their_own(self):
        targets = self.targets(
            lambda x: (lambda y: (y[:, :2], y[:, 2:]))(x * 2), op=self.two_outputs()
        )
        self.assertEqual(targets.count(aten.clone.default), 1)

    def test_one_value_as_two_outputs(self):
        targets = self.targets(lambda x: [x[:, :2] * 2] * 2, op=self.two_outputs())
        self.assertEqual(targets.count(aten.clone.default), 1)

    def test_output_inside_its_memory_gets_its_own(self):
        half = self.op_with_fake(
            "h(Tensor x) -> Tensor", lambda x: x.new_empty(x.shape[0], 2)
        )
        targets = self.targets(lambda x: (x * 2)[:, 2:], op=half)
        self.assertEqual(targets.count(aten.clone.default), 1)
        targets = self.targets(lambda x: (x * 2)[:, :2], op=half)
        self.assertEqual(targets.count(aten.clone.default), 0)

    def test_own_tensor_may_be_written_to(self):
        targets = self.targets(lambda x: torch.zeros_like(x).add_(x))
        self.assertNotIn(aten.add_.Tensor, targets)

    def test_writes_to_an_input(self):
        self.assertExpectedInline(
            self.reason(lambda x: x.add_(1) + 1),
            """it writes to an argument with aten.add_.Tensor""",
        )

    def test_writes_to_a_tensor_that_it_captures(self):
        table = torch.zeros(4)
        self.assertExpectedInline(
            self.reason(lambda x: x + table.add_(1)),
            """it writes to a tensor that it captures with aten.copy_.default""",
        )
        self.assertEqual(table, torch.zeros(4))

    def test_copy_of_a_tensor_that_it_captures(self):
        """Passes drop the copy, for nobody writes to it in the graph."""
        table = torch.zeros(1, 4)
        targets = self.targets(lambda x: table.expand(x.shape).clone())
        self.assertEqual(targets[-1], aten.clone.default)

    def test_copy_of_a_view(self):
        """Of a tensor that it captures, or of an input; callers may write to it."""
        table = torch.zeros(1, 4)
        for impl in (
            lambda x: table.expand(x.shape),
            lambda x: x,
            lambda x: x.view(-1).view(x.shape),
        ):
            self.assertEqual(self.targets(impl)[-1], aten.clone.default)

    def test_guards(self):
        reason = self.reason(lambda x: x + 1 if x.shape[0] > 50 else x + 2)
        self.assertExpectedInline(
            reason.replace(str(self.s0), "s0"),
            """it guards on a size, s0 > 50 == True. If that holds for all calls of the op, say so with torch._check in the op's fake kernel; if in a range, let it compete there only""",
        )
        self.assertEqual(counters["inductor"]["custom_op_decomp_guard_skips"], 1)

    def test_guards_in_an_op(self):
        """Who refuses says it, nobody else."""
        with self.assertNoLogs("torch._subclasses.fake_tensor", logging.WARNING):
            reason = self.reason(lambda x: torch.ones(3, 50) @ x)
        self.assertIn("it guards on a size, Eq(", reason)

    def test_raises(self):
        def impl(x):
            raise RuntimeError("one\ntwo")

        self.assertExpectedInline(self.reason(impl), """RuntimeError: one""")

    def test_lacks_a_parameter(self):
        site = CallSite.from_call(self.op, (self.x, 5), {})
        _, outputs = trace_fallback(site)
        result = trace_candidate(Candidate("c", lambda x: x + 1), site, outputs)
        self.assertExpectedInline(
            result.reason,
            """TypeError: implementation '<lambda>' of range_autotune_test.f.default does not take the op's parameter 'k', which is not at its default here""",
        )

    def test_number_of_outputs(self):
        self.assertExpectedInline(
            self.reason(lambda x: (x + 1, x + 2)),
            """it returns 2 outputs, the op 1""",
        )

    def test_output_that_is_no_tensor(self):
        self.assertExpectedInline(
            self.reason(lambda x: 3), """output 0 is 3, not a tensor"""
        )

    def test_dtype(self):
        self.assertExpectedInline(
            self.reason(lambda x: x.double()),
            """output 0 has dtype torch.float64, the op's has torch.float32""",
        )

    def test_device(self):
        self.assertExpectedInline(
            self.reason(lambda x: torch.empty(x.shape, device="meta")),
            """output 0 has device meta, the op's has cpu""",
        )

    def test_shape(self):
        reason = self.reason(lambda x: x.t() + 1)
        self.assertExpectedInline(
            reason.replace(str(self.s0), "s0"),
            """output 0 has shape [4, s0], the op's has [s0, 4]""",
        )

    def test_shape_that_is_only_equal_at_the_hint(self):
        reason = self.reason(lambda x: x.new_empty(100, 4))
        self.assertExpectedInline(
            reason.replace(str(self.s0), "s0"),
            """output 0 has shape [100, 4], the op's has [s0, 4]""",
        )

    def test_the_second_output_is_checked_too(self):
        self.assertExpectedInline(
            self.reason(
                lambda x: (x[:, :2] * 1, (x[:, :2] * 1).half()), op=self.two_outputs()
            ),
            """output 1 has dtype torch.float16, the op's has torch.float32""",
        )


class TestOutputs(TestCase):
    def test_device(self):
        def device_of(*names):
            tensors = [types.SimpleNamespace(device=torch.device(n)) for n in names]
            return Outputs(tuple(tensors), None, ()).device.type

        self.assertEqual(device_of("cpu", "cpu"), "cpu")
        self.assertEqual(device_of("cpu", "cuda", "cpu"), "cuda")  # MoE's counts


if __name__ == "__main__":
    run_tests()
