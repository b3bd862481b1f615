# Owner(s): ["module: inductor"]
"""How the body of a registered op reads its arguments."""

from __future__ import annotations

import itertools
from unittest import mock

from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.virtualized import V

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.ops import plain_bodies
from torch._inductor.range_autotune.ops.functional_variants import variant_of
from torch._inductor.range_autotune.ops.plain_bodies import is_pointwise_read


_numbers = itertools.count()


def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * weight


def total(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x.sum(-1, keepdim=True) * weight


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x @ weight.diag()


class TestPlainBodies(TestCase):
    def setUp(self):
        super().setUp()
        before = dict(user_lowerings)
        self.addCleanup(lambda: (user_lowerings.clear(), user_lowerings.update(before)))

    def op(self, body, registered=True):
        name = f"plain_bodies::op{next(_numbers)}"
        op = torch.library.custom_op(name, mutates_args=())(body)
        op.register_fake(lambda x, weight: torch.empty_like(x))
        if registered:
            register_custom_op_autotuning(op, configs=[CustomOpConfig(body)])
        return op

    def reads(self, fn):
        """Whether all that reads the product in a graph is such work."""
        from torch._subclasses.fake_tensor import FakeTensorMode
        from torch.fx.experimental.proxy_tensor import make_fx
        from torch.fx.experimental.symbolic_shapes import ShapeEnv

        mode = FakeTensorMode(shape_env=ShapeEnv())
        x, weight = (mode.from_tensor(torch.rand(s)) for s in [(4, 8), (8,)])
        gm = make_fx(fn, tracing_mode="real")(x, weight)
        neg = next(n for n in gm.graph.nodes if n.target is torch.ops.aten.neg.default)
        with V.set_fake_mode(mode):
            return [is_pointwise_read(use, neg) for use in neg.users]

    def test_body_of_pointwise_reads(self):
        op = self.op(norm)
        self.assertEqual(self.reads(lambda x, w: op(-x, w)), [True])

    def test_body_of_other_reads(self):
        first, second = self.op(total), self.op(product)
        self.assertEqual(
            self.reads(lambda x, w: (first(y := -x, w), second(y, w))), [False] * 2
        )

    def test_the_argument_counts(self):
        op = self.op(product)
        self.assertEqual(self.reads(lambda x, w: op(x, -w)), [False])
        op = self.op(total)
        self.assertEqual(self.reads(lambda x, w: op(x, -w)), [True])

    def test_the_list_that_it_is_in_counts(self):
        def body(
            x: torch.Tensor, a: list[torch.Tensor], b: list[torch.Tensor]
        ) -> torch.Tensor:
            return x * a[0] if a else x @ b[0].diag()

        name = f"plain_bodies::op{next(_numbers)}"
        op = torch.library.custom_op(name, mutates_args=())(body)
        op.register_fake(lambda x, a, b: torch.empty_like(x))
        register_custom_op_autotuning(op, configs=[CustomOpConfig(body)])
        self.assertEqual(self.reads(lambda x, w: op(-x, [w], [])), [True])
        self.assertEqual(self.reads(lambda x, w: op(x, [], [-w])), [False])

    def test_known_sizes_count(self):
        def body(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x * weight if x.shape[0] < 4 else x @ weight.diag()

        op = self.op(body)
        self.assertEqual(self.reads(lambda x, w: op(-x, w)), [False])
        self.assertEqual(self.reads(lambda x, w: op(-x[:2], w)), [True])

    def test_op_that_writes(self):
        def body(out: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
            out.add_(x.sum(-1, keepdim=True) * weight)

        name = f"plain_bodies::op{next(_numbers)}"
        op = torch.library.custom_op(name, body, mutates_args=("out",))
        register_custom_op_autotuning(op, configs=[CustomOpConfig(body)])
        variant = variant_of(op._opoverload)
        self.assertEqual(self.reads(lambda x, w: variant(x, -x, w)), [False])
        self.assertEqual(self.reads(lambda x, w: variant(-x, x, w)), [True])

    def test_through_views(self):
        op, other = self.op(norm), self.op(total)

        def fn(x, w):
            y = -x
            view = y.view(2, 2, 8)
            return op(view, w), view.sin(), y.view(4, 8)

        self.assertEqual(self.reads(fn), [True, False])
        self.assertEqual(self.reads(lambda x, w: other((-x).view(2, 16), w)), [False])

    def test_not_registered(self):
        op = self.op(norm, registered=False)
        self.assertEqual(
            self.reads(lambda x, w: (op(y := -x, w), y.sin())), [False] * 2
        )

    def test_work_that_would_not_join(self):
        op = self.op(norm)
        for options in (
            {"enable_custom_op_fusion": False},
            {"custom_op_fusion_types": ("epilogue",)},
        ):
            with config.patch(options):
                self.assertEqual(self.reads(lambda x, w: op(-x, w)), [False])

    def test_body_that_depends_on_data(self):
        def body(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.sum() > 0 else x

        op = self.op(body)
        self.assertEqual(self.reads(lambda x, w: op(-x, w)), [False])

    def test_traced_once(self):
        op = self.op(norm)
        trace = plain_bodies.trace_subgraph
        with mock.patch.object(plain_bodies, "trace_subgraph", wraps=trace) as traced:
            self.reads(lambda x, w: (op(y := -x, w), op(y, w + 1), op(y, w)))
            self.assertEqual(traced.call_count, 1)
            self.reads(lambda x, w: op(-x, w))  # symbols are others there
            self.assertEqual(traced.call_count, 2)


if __name__ == "__main__":
    run_tests()
