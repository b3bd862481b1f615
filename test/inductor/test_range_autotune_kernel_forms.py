# Owner(s): ["module: inductor"]
"""Candidates with kernels that keep long rows: who has them, and how a kernel is told."""

from types import SimpleNamespace

from torch._inductor.test_case import run_tests, TestCase
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.range_autotune.candidates import TracedCandidate
from torch._inductor.range_autotune.kernel_forms import (
    inner_reduction_limit,
    with_persistent_reductions,
)
from torch._inductor.range_autotune.registration import Candidate


LIMIT = "triton.persistent_inner_reduction_limit"


def traced(fn, columns, device="cuda", **config_patches):
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.empty(50, columns, device=device)
        graph = make_fx(fn, tracing_mode="symbolic")(x)
    return TracedCandidate(Candidate("fn", fn, config_patches=config_patches), graph)


def total(x):
    return x / x.sum(-1, keepdim=True)


def variance(x):
    return torch.ops.aten.var_mean.correction(x, [-1])[0]


def online_softmax(x):
    return torch.ops.prims.prepare_softmax_online(x, 1)[1]


def blocks(x):
    return x.view(x.shape[0], -1, 64).sum(-1)


@instantiate_parametrized_tests
class TestWhoHasAnotherForm(TestCase):
    def has_one(self, *args, **kwargs):
        return with_persistent_reductions(traced(*args, **kwargs)) is not None

    @parametrize("fn", (total, variance, online_softmax))
    def test_reductions_of_long_rows(self, fn):
        lengths = [n for n in (512, 1024, 1025, 16384, 16385) if self.has_one(fn, n)]
        self.assertEqual(lengths, [1025, 16384])

    def test_no_other_work(self):
        self.assertFalse(self.has_one(blocks, 4096))
        self.assertFalse(self.has_one(torch.relu, 4096))
        self.assertFalse(self.has_one(lambda x: x.sum(0), 4096))  # no constant

    def test_not_on_a_cpu(self):
        self.assertFalse(self.has_one(total, 4096, device="cpu"))

    def test_not_where_users_choose(self):
        self.assertFalse(self.has_one(total, 4096, **{LIMIT: 2048}))
        with config.patch({"triton.multi_kernel": 1}):
            self.assertFalse(self.has_one(total, 4096))
        with config.patch({"triton.persistent_reductions": False}):
            self.assertFalse(self.has_one(total, 4096))
        with config.patch({LIMIT: 4096}):
            self.assertFalse(self.has_one(total, 4096))
            self.assertTrue(self.has_one(total, 4097))

    def test_it_is_another_graph_under_other_config(self):
        one = traced(total, 4096, max_autotune=True)
        other = with_persistent_reductions(one)
        self.assertEqual(
            other.candidate.config_patches, {"max_autotune": True, LIMIT: 16384}
        )
        self.assertIsNot(other.graph, one.graph)
        self.assertNotEqual(other.text(), one.text())
        self.assertEqual(one.candidate.config_patches, {"max_autotune": True})


class TestLimit(TestCase):
    def limit(self, *patches):
        operations = [
            SimpleNamespace(get_config_patches=lambda p=p: p) for p in patches
        ]
        nodes = [SimpleNamespace(node=operation) for operation in (*operations, None)]
        return inner_reduction_limit(SimpleNamespace(scheduler_nodes=lambda: nodes))

    def test_is_config_unless_operations_have_their_own(self):
        self.assertEqual(self.limit(), 1024)
        self.assertEqual(self.limit({}, {"max_autotune": True}), 1024)
        self.assertEqual(self.limit({}, {LIMIT: 4096}, {LIMIT: 2048}), 4096)
        with config.patch({LIMIT: 8192}):
            self.assertEqual(self.limit({}), 8192)
            self.assertEqual(self.limit({LIMIT: 256}), 256)


if __name__ == "__main__":
    run_tests()
