# Owner(s): ["module: inductor"]
"""Inductor's graph passes on implementations."""

from unittest import mock

from range_autotune_testing import OpTestCase
from test_custom_op_autotune import made_up_times
from torch._inductor.fx_passes import post_grad
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_code

import torch
from torch._inductor import compile_fx, config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig


KEYS, WIDTH = 64, 32


def attention(q, k, v):
    return torch.softmax(q @ k.mT / WIDTH**0.5, -1) @ v


def attention_and_noise(q, k, v):
    return attention(q, k, v) + torch.rand_like(q) * 1e-6


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


if __name__ == "__main__":
    run_tests()
