# Owner(s): ["module: inductor"]
"""Graphs at symbolic sizes: traced, and inlined into the graph being compiled."""

import gc
import logging
import threading
import weakref

import sympy
from range_autotune_testing import GraphTestCase
from torch._inductor.test_case import run_tests
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError
from torch.nn.attention.flex_attention import flex_attention

import torch
from torch._inductor import ir
from torch._inductor.range_autotune.graphs.functional import arguments_written
from torch._inductor.range_autotune.graphs.symbolic_graphs import (
    inline_subgraph_to_ir_nodes,
)
from torch._inductor.range_autotune.sizes.guards import (
    frozen_shapes,
    refused_question,
    symbols_of,
)


aten = torch.ops.aten


class TestTrace(GraphTestCase):
    def test_sizes_are_symbolic(self):
        gm = self.trace(lambda x: x.new_zeros(x.shape) + x)
        self.assertEqual(
            gm.graph.output_node().args[0].meta["val"].shape[0].node.expr, self.s0
        )

    def test_writes_are_functionalized(self):
        def fn(x):
            result = torch.empty_like(x)
            result[:, :2] = x[:, :2]
            result[:, 2:].zero_().add_(x[:, 2:])
            return result

        gm = self.trace(fn)
        mutable = [
            t
            for t in self.targets(gm)
            if getattr(t, "_schema", None) and t._schema.is_mutable
        ]
        self.assertEqual(mutable, [])
        x = torch.randn(6, 4)
        size = [6] if len(gm.graph.find_nodes(op="placeholder")) > 1 else []
        self.assertEqual(gm(*size, x), x)

    def test_writes_to_out_are_functionalized(self):
        def fn(x):
            result = x.new_empty(x.shape[0], x.shape[0])
            torch.mm(x, x.t(), out=result)
            return torch.add(result, 1, out=result).relu_()

        gm = self.trace(fn)
        expected = [aten.mm.default, aten.add.Tensor, aten.relu.default]
        self.assertEqual([t for t in self.targets(gm) if t in expected], expected)
        self.assertFalse(any(map(arguments_written, gm.graph.nodes)))

    def test_writes_of_decompositions_are_functionalized(self):
        def decomposed(x):
            return (x * x).add_(1).rsqrt()

        gm = self.trace(
            aten.silu.default, decomposition_table={aten.silu.default: decomposed}
        )
        self.assertEqual(
            self.targets(gm), [aten.mul.Tensor, aten.add.Tensor, aten.rsqrt.default]
        )

    def test_dead_code_is_gone(self):
        gm = self.trace(lambda x: (x.sin(), x + 1)[1])
        self.assertEqual(self.targets(gm), [aten.add.Tensor])

    def test_flex_attention(self):
        q = self.tensor([1, 2, self.s0, 16])
        gm = self.trace(lambda q: flex_attention(q, q, q), q)
        self.assertIn(torch.ops.higher_order.flex_attention, self.targets(gm))

    def test_decompositions(self):
        decomposed = self.targets(self.trace(aten.silu.default))
        kept = self.targets(self.trace(aten.silu.default, decomposition_table={}))
        self.assertEqual(kept, [aten.silu.default])
        self.assertNotIn(aten.silu.default, decomposed)

    def test_guards_raise_and_log_nothing(self):
        with (
            self.assertNoLogs("torch.fx.experimental.symbolic_shapes", logging.WARNING),
            self.assertRaises(_ShapeEnvGuardError),
        ):
            self.trace(lambda x: x + 1 if x.shape[0] > 50 else x)
        self.assertEqual(self.shape_env.guards, [])

    def test_errors_of_others_are_still_logged(self):
        name = "torch.fx.experimental.symbolic_shapes"
        log = logging.getLogger(name)
        message = "failed during evaluate_expr(%s)"
        with self.assertLogs(name, logging.WARNING) as logs:
            with frozen_shapes():
                log.warning(message, "ours")
                log.warning("another message")
                other = threading.Thread(target=log.warning, args=(message, "other"))
                other.start()
                other.join()
            log.warning(message, "later")
        self.assertEqual(
            [record.getMessage() for record in logs.records],
            [
                "another message",
                "failed during evaluate_expr(other)",
                "failed during evaluate_expr(later)",
            ],
        )

    def test_guards_in_errors_of_others(self):
        """Errors that come from one another, but in no circle, and nothing kept alive."""
        inside = []

        def ask():
            local = torch.nn.Module()
            inside.append(weakref.ref(local))
            try:
                self.shape_env.evaluate_expr(self.s0 > 50)
            except Exception as e:
                raise RuntimeError(f"unexpected: {e}") from e

        gc.disable()
        self.addCleanup(gc.enable)
        try:
            with frozen_shapes():
                ask()
        except _ShapeEnvGuardError as e:
            errors = [e, e.__cause__, e.__cause__.__cause__]
            self.assertIsNotNone(refused_question(e))
        self.assertIsInstance(errors[1], RuntimeError)
        self.assertIsNone(errors[2].__cause__)
        del errors
        self.assertIsNone(inside[0]())

    def test_guards_are_possible_again_behind(self):
        with self.assertRaises(_ShapeEnvGuardError), frozen_shapes():
            self.shape_env.evaluate_expr(self.s0 > 50)
        self.guard(self.s0 > 50)
        self.assertEqual(len(self.shape_env.guards), 1)

    def test_asserts_of_data_that_come_up_inside(self):
        """They teach nothing of sizes outside, nor replace one."""
        outside = self.shape_env.create_unbacked_symint().node.expr
        ranges = [self.shape_env.var_to_range[s] for s in (self.s0, outside)]
        with frozen_shapes():
            inside = self.shape_env.create_unbacked_symint().node.expr

            def check(condition):
                self.shape_env.guard_or_defer_runtime_assert(condition, "")
                self.assertTrue(self.shape_env.evaluate_expr(condition))

            check(inside <= self.s0)
            check(inside <= outside)
            with self.assertRaises(_ShapeEnvGuardError):
                self.shape_env.guard_or_defer_runtime_assert(outside <= self.s0, "")
            check(sympy.Eq(inside + 1, outside))
            other = self.shape_env.create_unbacked_symint().node.expr
            check(other >= 7)
            with self.assertRaises(_ShapeEnvGuardError):
                check(sympy.Eq(other, self.s0))
        now = [self.shape_env.var_to_range[s] for s in (self.s0, outside)]
        self.assertEqual(now, ranges)
        self.assertNotIn(outside, self.shape_env.replacements)
        self.assertEqual(self.shape_env.guards, [])

    def test_symbols_of_a_trace_that_fails_are_not_pending(self):
        pending = self.shape_env.create_unbacked_symint().node.expr
        with self.assertRaises(_ShapeEnvGuardError), frozen_shapes():
            self.shape_env.create_unbacked_symint()
            self.shape_env.evaluate_expr(self.s0 > 50)
        self.assertEqual(self.shape_env.pending_fresh_unbacked_symbols, [pending])


class TestInline(GraphTestCase):
    def test_nodes_are_lowered_into_the_graph(self):
        gm = self.trace(lambda x, y: [x.sin() + y, y * 2], self.x, self.y)
        outer = V.graph.module
        results = inline_subgraph_to_ir_nodes(gm, [self.x, self.y], "op")
        self.assertEqual([list(r.get_size()) for r in results], [[self.s0, 4]] * 2)
        (first, _) = (result.data.data.data for result in results)
        self.assertIsInstance(first, ir.Pointwise)
        self.assertEqual({node.name for node in first.origins}, {"sin", "add"})
        self.assertIs(V.graph.module, outer)

    def test_the_module_is_put_back_behind_an_error(self):
        gm = self.trace(lambda x: x + 1)
        outer = V.graph.module
        with self.assertRaises(Exception):  # noqa: B017
            inline_subgraph_to_ir_nodes(gm, [], "op")
        self.assertIs(V.graph.module, outer)

    def test_symbols_of(self):
        s1 = self.symbol("s1", 6)
        view = self.tensor([4, 4], [s1, 1])
        both = symbols_of([view, self.x, 2 * self.s0])
        self.assertEqual(both, sorted((self.s0, s1), key=str))
        self.assertEqual(symbols_of([self.tensor([4])]), [])


if __name__ == "__main__":
    run_tests()
