# Owner(s): ["module: inductor"]
"""Inductor's graph passes on implementations."""

import logging
import math
from unittest import mock

from range_autotune_testing import OpTestCase
from test_custom_op_autotune import made_up_times
from torch._dynamo.utils import counters
from torch._inductor.fx_passes import post_grad
from torch._inductor.inductor_prims import prepare_softmax_online
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import compile_fx, config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.candidate_indices import PLAIN_INDEX
from torch._inductor.range_autotune.candidates.passes import is_other_form


KEYS, WIDTH = 64, 32


def attention(q, k, v):
    return torch.softmax(q @ k.mT / WIDTH**0.5, -1) @ v


def attention_and_noise(q, k, v):
    return attention(q, k, v) + torch.rand_like(q) * 1e-6


def online(x):
    maximum, total = prepare_softmax_online(x, 0)
    return maximum + total


def second_from_100(size, index):
    return 1.0 if index == int(size >= 100) else 2.0


class TestPasses(OpTestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        op = self.define_op("attention(Tensor q, Tensor k, Tensor v) -> Tensor")
        self._library.impl("attention", attention, "CompositeExplicitAutograd")
        configs = [
            CustomOpRangeConfig(
                "q", 2, [(0, 100), (100, 1000)], [attention, attention_and_noise]
            )
        ]
        self.register(op, configs=configs)
        self.model = lambda q, k, v: op(q * 1.5, k, v).relu()
        self.keys = [torch.randn(2, 4, KEYS, WIDTH) for _ in range(2)]

    def compiled_code(self):
        """Of the model, which is right on both sides of the boundary."""
        compiled = torch.compile(self.model)
        q = torch.randn(2, 4, 50, WIDTH)
        torch._dynamo.mark_dynamic(q, 2)
        with (
            torch.no_grad(),
            made_up_times(second_from_100, dim=2),
        ):
            _, (code, *_) = run_and_get_code(compiled, q, *self.keys)
            for rows in (50, 200):
                q = torch.randn(2, 4, rows, WIDTH)
                expected = attention(q * 1.5, *self.keys).relu()
                torch.testing.assert_close(
                    compiled(q, *self.keys), expected, rtol=1e-4, atol=1e-4
                )
        return code

    def test_patterns_are_replaced(self):
        code = self.compiled_code()
        self.assertIn("aten._scaled_dot_product_flash_attention_for_cpu.default", code)

    def test_arguments_that_are_copied_are_not_written_to(self):
        """A pass takes the copy away, and the next ones write in place where they may."""

        def impl(x, i, y):
            copy = x.clone()
            copy.view(-1).index_put_((i,), y)
            return copy

        op = self.define_op("put(Tensor x, Tensor i, Tensor y) -> Tensor")
        self._library.impl("put", impl, "CompositeExplicitAutograd")
        configs = [CustomOpRangeConfig("x", 0, [(0, 100), (100, 1000)], [impl])]
        self.register(op, configs=configs)
        i, y = torch.tensor([1, 3]), torch.zeros(2)
        x = torch.ones(200, 4)
        torch._dynamo.mark_dynamic(x, 0)
        with made_up_times(lambda size, index: 1.0 - index):
            compiled = torch.compile(lambda x: (op(x, i, y) * 2, x + 1))
            compiled(x)
        for size in (3, 200):
            x = torch.ones(size, 4)
            result, shifted = compiled(x)
            self.assertEqual(result, impl(torch.ones(size, 4), i, y) * 2)
            self.assertEqual((x, shifted), (torch.ones(size, 4), torch.full_like(x, 2)))

    def test_random_numbers_may_be_drawn(self):
        code = self.compiled_code()
        self.assertIn("rand_cpu", code)

    def test_a_pass_that_fails_costs_no_candidate(self):
        def fails(gm):
            raise RuntimeError("a pass fails")

        # The model's own passes were imported before.
        self.assertIsNot(compile_fx.view_to_reshape, fails)
        with mock.patch.object(post_grad, "view_to_reshape", fails):
            self.assertIn("extern_kernels.bmm", self.compiled_code())

    def test_passes_of_users_see_the_model_once(self):
        seen = []
        with config.patch(post_grad_custom_pre_pass=seen.append, fx_graph_cache=False):
            self.compiled_code()
        self.assertEqual(len(seen), 1)


class TestIsOtherForm(TestCase):
    @parametrize(
        "before,after,expected",
        (
            (lambda x: x.mean(0), lambda x: x.sum(0) / 4, True),
            (lambda x: x.sum(0) / 4, lambda x: x.mean(0), True),
            (lambda x: x.amax(0) + x.exp().sum(0), online, True),
            (lambda x: x.mean(0) + 1, lambda x: x.mean(0), False),
            (lambda x: x.view(16), lambda x: x.reshape(16).clone(), False),
            (lambda x: x @ x + x, lambda x: torch.addmm(x, x, x), False),
            (lambda x: x.sin() + 1, lambda x: x.sin_() + 1, False),
            (
                lambda x: torch.rand_like(x) + x.mean(),
                lambda x: torch.rand_like(x) + x.sum() / 16,
                False,
            ),
        ),
    )
    def test_where_generated_code_computes_otherwise(self, before, after, expected):
        graphs = [make_fx(fn)(torch.ones(4, 4)) for fn in (before, after)]
        self.assertEqual(is_other_form(*graphs), expected)


class TestAsWritten(OpTestCase):
    """A softmax: of scaled values, a pass makes another form of it."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.op = self.define_op("softmax(Tensor x) -> Tensor")
        self._library.impl(
            "softmax", lambda x: torch.softmax(x, -1), "CompositeExplicitAutograd"
        )

        def directly(x):
            return torch.softmax(x, -1)

        def without_maximum(x):
            powers = x.exp()
            return powers / powers.sum(-1, keepdim=True)

        self.register(
            self.op,
            configs=[
                CustomOpRangeConfig(
                    "x", 0, [(0, 100), (100, math.inf)], [directly, without_maximum]
                )
            ],
            include_fallback=False,
        )

    def compiled(self, neighbour, ms):
        """
        The generated code and the log of a model, which is right for small and large sizes.

        Args:
            neighbour: the model's work in front of the op.
            ms: from a size and a candidate's index to its time.
        """
        compiled = torch.compile(lambda x: self.op(neighbour(x)) + 1)
        x = torch.randn(50, 64)
        torch._dynamo.mark_dynamic(x, 0)
        with (
            made_up_times(ms),
            self.assertLogs("torch._inductor.kernel.custom_op", logging.INFO) as logs,
        ):
            _, (code, *_) = run_and_get_code(compiled, x)
        for rows in (50, 200):
            x = torch.randn(rows, 64)
            expected = torch.softmax(neighbour(x), -1) + 1
            torch.testing.assert_close(compiled(x), expected)
        return code, "\n".join(logs.output)

    def test_may_win(self):
        seen = set()

        def ms(size, index):
            seen.add(index)
            as_written = index < PLAIN_INDEX
            return 1.0 if as_written == (size < 100) and index != 1 else 2.0

        code, log = self.compiled(lambda x: x * 0.125, ms)
        self.assertEqual(len(seen), 3)
        self.assertIn("Range [0, 100): directly, as written", log)
        self.assertRegex(log, r"Range \[100, inf\): directly\b(?!,)")
        # The pass has its kernel look for values that are not finite.
        kernels = code.split("cpp_pybinding")[1:]
        looked = ["abs(" in kernel for kernel in kernels]
        self.assertEqual(looked, [False, True], msg=code)

    def test_is_measured_where_passes_make_another_form_only(self):
        seen = set()
        self.compiled(torch.sin, lambda size, index: seen.add(index) or 1.0)
        self.assertEqual(seen, {0, 1})

    @config.patch(fusion_speedup_threshold=1.2)
    def test_variants_have_none(self):
        def scaled(x):
            return torch.softmax(x * 0.125, -1)

        op = self.define_op("scaled(Tensor x) -> Tensor")
        self._library.impl("scaled", scaled, "CompositeExplicitAutograd")
        ranges = CustomOpRangeConfig("x", 0, [(0, 100), (100, math.inf)], [scaled])
        self.register(op, [ranges], include_fallback=False)
        x = torch.randn(50, 64)
        torch._dynamo.mark_dynamic(x, 0)
        counters.clear()
        with made_up_times(lambda size, index: 1.0):
            result = torch.compile(lambda x: op(x.sin()) + 1)(x)
        torch.testing.assert_close(result, scaled(x.sin()) + 1)
        # The implementation, the same as written, and with its neighbours apart.
        self.assertEqual(counters["inductor"]["subgraph_modules_generated"], 3)


instantiate_parametrized_tests(TestIsOtherForm)


if __name__ == "__main__":
    run_tests()
