# Owner(s): ["module: inductor"]
"""Candidates with kernels that keep long rows: who has them, and how a kernel is told."""

import itertools
import logging
import math
from types import SimpleNamespace
from unittest import mock

import sympy
from range_autotune_testing import made_up_times, SymbolicTestCase
from torch._inductor.choices import InductorChoices
from torch._inductor.lowering import user_lowerings
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidate_indices import (
    FALLBACK_INDEX,
    index_of_variant,
    PERSISTENT,
)
from torch._inductor.range_autotune.candidates import kernel_forms
from torch._inductor.range_autotune.candidates.kernel_forms import (
    with_persistent_reductions,
)
from torch._inductor.range_autotune.candidates.traced_candidates import TracedCandidate
from torch._inductor.range_autotune.kernel_configs.long_rows import (
    meta_of_form,
    with_other_warps,
)
from torch._inductor.range_autotune.registration import Candidate


LIMIT = "triton.persistent_inner_reduction_limit"
_numbers = itertools.count()


def traced(fn, columns, device="cuda", **config_patches):
    with FakeTensorMode(shape_env=ShapeEnv()):
        x = torch.empty(50, columns, device=device)
        graph = make_fx(fn, tracing_mode="symbolic")(x)
    return TracedCandidate(Candidate("fn", fn, config_patches=config_patches), graph)


def total(x):
    return x / x.sum(-1, keepdim=True)


def eager_total(x: torch.Tensor) -> torch.Tensor:
    return total(x)


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
        for patches in (
            {"triton.multi_kernel": 1},
            {"triton.persistent_reductions": False},
        ):
            self.assertFalse(self.has_one(total, 4096, **patches))
            with config.patch(patches):
                self.assertFalse(self.has_one(total, 4096))
        with config.patch({LIMIT: 4096}):
            self.assertFalse(self.has_one(total, 4096))
            self.assertTrue(self.has_one(total, 4097))

    def test_it_is_the_same_graph_under_other_config(self):
        one = traced(total, 4096, max_autotune=True)
        other = with_persistent_reductions(one)
        self.assertEqual(
            other.candidate.config_patches, {"max_autotune": True, LIMIT: 16384}
        )
        self.assertIs(other.graph, one.graph)
        self.assertNotEqual(other.code_text(), one.code_text())
        self.assertEqual(one.candidate.config_patches, {"max_autotune": True})


class TestChoice(TestCase):
    """On a CPU, whose kernels are the same in either form."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.enterContext(mock.patch.dict(user_lowerings))
        self.enterContext(mock.patch.object(kernel_forms, "is_gpu", lambda _: True))

    def op(self):
        """One with one implementation, which has two forms."""
        name = f"kernel_forms::total{next(_numbers)}"
        op = torch.library.custom_op(name, mutates_args=())(eager_total)
        op.register_fake(torch.empty_like)
        ranges = [(0, 64), (64, math.inf)]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, ranges, [total])]
        )
        return op

    def compiled(self, wins, *ops, candidates=(0,)):
        """
        The code of ops in a row, and the log.

        Args:
            wins: from a size to whether kept rows are faster.
            candidates: who competes, the op itself and the first one's other form aside.
        """

        def in_a_row(fns, x):
            for fn in fns:
                x = fn(x) + 1
            return x

        kept = index_of_variant(0, PERSISTENT)
        tried = {}

        def ms(size, index):
            tried.setdefault(size, set()).add(index)
            return 1.0 if index == (kept if wins(size) else 0) else 2.0

        x = torch.rand(20, 4096)
        torch._dynamo.mark_dynamic(x, 0)
        model = torch.compile(lambda x: in_a_row(ops, x))
        logger = "torch._inductor.kernel.custom_op"
        with (
            made_up_times(ms),
            self.assertLogs(logger, logging.INFO) as logs,
            config.patch(fx_graph_cache=False),
        ):
            _, (code, *_) = run_and_get_code(model, x)
        for rows in (2, 500):
            x = torch.rand(rows, 4096)
            self.assertEqual(model(x), in_a_row([total] * len(ops), x))
        competing = {FALLBACK_INDEX, *candidates, kept}
        self.assertEqual(tried, dict.fromkeys(tried, competing))
        return code, "\n".join(logs.output)

    def test_each_form_has_a_branch(self):
        code, log = self.compiled(lambda rows: rows >= 64, self.op())
        self.assertIn("Range [0, 64): total\n", log)
        self.assertIn("Range [64, inf): total, persistent", log)
        self.assertEqual(code.count("def size_branch_"), 2, msg=code)

    def test_one_form_wins(self):
        code, log = self.compiled(lambda rows: True, self.op())
        self.assertIn("Range [0, 64): total, persistent", log)
        self.assertNotIn("def size_branch_", code)

    def test_ops_in_a_row(self):
        # With either op called eagerly, rows are kept by nobody.
        ops, candidates = (self.op(), self.op()), (0, 1, 2)
        _, log = self.compiled(lambda rows: True, *ops, candidates=candidates)
        self.assertIn("Range [0, 64): total + total, persistent", log)


class TestLimit(SymbolicTestCase):
    def is_persistent(self, length):
        hint = ReductionHint.INNER
        rows = SimpleNamespace(
            reduction_numel=sympy.Integer(length), get_reduction_hint=lambda: hint
        )
        return InductorChoices.should_use_persistent_reduction(rows, False)

    def test_is_config(self):
        self.assertTrue(self.is_persistent(1024))
        self.assertFalse(self.is_persistent(1025))
        with config.patch({LIMIT: 4096}):
            self.assertTrue(self.is_persistent(4096))
            self.assertFalse(self.is_persistent(4097))


@instantiate_parametrized_tests
class TestWarps(TestCase):
    def warps(self, elements, hint=ReductionHint.INNER, warp_size=32, **meta):
        """Of the configs that a kernel gets, for rows of up to that many elements."""

        def made(kwargs, num_warps, **_):  # there may be no Triton
            return SimpleNamespace(kwargs=kwargs, num_warps=num_warps)

        device = SimpleNamespace(warp_size_or_default=warp_size)
        with config.patch({LIMIT: 16 * 1024}):
            meta = {**meta_of_form(), **meta}
        with mock.patch.object(triton_heuristics, "InductorConfig", made):
            configs = triton_heuristics._persistent_reduction_configs(
                {"x": 4096, "r0_": elements}, hint, meta, {"device": device}
            )
        self.assertEqual({str(c.kwargs) for c in configs}, {"{'XBLOCK': 1}"})
        return [c.num_warps for c in configs]

    @parametrize("meta", ({}, {"max_autotune": True}))
    def test_long_rows(self, meta):
        lengths = (2048, 4096, 8192, 16384)
        warps = [self.warps(n, **meta) for n in lengths]
        self.assertEqual(warps, [[8, 2, 4], [8, 4, 16], [8, 16, 32], [16, 32]])

    def test_wide_warps(self):
        warps = [self.warps(n, warp_size=64) for n in (4096, 8192, 16384)]
        self.assertEqual(warps, [[4, 2, 8], [4, 8, 16], [8, 16]])

    def test_no_others(self):
        usual = [SimpleNamespace(num_warps=1)]
        with config.patch({LIMIT: 16 * 1024}):
            self.assertEqual(with_other_warps(usual, 1024, 32, meta_of_form()), usual)
        self.assertEqual(with_other_warps(usual, 4096, 32, meta_of_form()), usual)
        self.assertEqual(self.warps(4096, hint=ReductionHint.OUTER_TINY), [16])
        self.assertEqual(self.warps(4096, RSPLIT_SIZE=64), [8])


if __name__ == "__main__":
    run_tests()
