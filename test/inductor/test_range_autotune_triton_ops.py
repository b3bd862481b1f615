# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.ops.triton_ops``: ops that launch kernels, registered."""

import itertools
import unittest
from unittest import mock

from test_custom_op_autotune import (
    AutotuneTestCase,
    best_by_range,
    compile_at,
    DEVICE,
    made_up_times,
    plus,
    ramp,
    RANGES,
)
from torch._dynamo.utils import counters
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing._internal.inductor_utils import HAS_GPU

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidate_indices import PLAIN_INDEX


_numbers = itertools.count()

if HAS_GPU:
    import triton
    import triton.language as tl

    @triton.jit
    def plus_kernel(out, x, elements, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < elements
        tl.store(out + at, tl.load(x + at, inside) + 9, inside)


def by_launch(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    kernel = torch.library.wrap_triton(plus_kernel)
    kernel[(triton.cdiv(x.numel(), 256),)](out, x, x.numel(), BLOCK=256)
    return out


def plus_9(x: torch.Tensor) -> torch.Tensor:
    return x + 9


def made_op(body):
    name = f"triton_ops::op{next(_numbers)}"
    return torch.library.triton_op(name, body, mutates_args=())


def register(op, *impls):
    ranges = CustomOpRangeConfig("x", 0, RANGES, list(impls))
    register_custom_op_autotuning(op, configs=[ranges])


class TestTritonOps(AutotuneTestCase):
    def test_is_tuned(self):
        op = made_op(plus_9)
        register(op, plus(1), plus(2), plus(5))
        with made_up_times(best_by_range):
            compiled = compile_at(lambda x: op(x) * 3, ramp(128, 4))
        self.assert_adds(compiled, {2: 1, 511: 1, 512: 2, 2048: 5})

    def best_is_plain(self, size, index):
        return 1.0 if index == PLAIN_INDEX else 2.0

    def test_its_body_competes(self):
        op = made_op(plus_9)
        register(op, plus(1), plus(2), plus(5))
        with made_up_times(self.best_is_plain):
            compiled = compile_at(lambda x: op(x) * 3, ramp(128, 4))
        self.assert_adds(compiled, {2: 9, 2048: 9})

    @unittest.skipUnless(HAS_GPU, "needs a GPU")
    def test_its_launches_compete(self):
        op = made_op(by_launch)
        register(op, plus(1), plus(2), plus(5))
        x = ramp(128, 4)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(lambda x: op(x) * 3)
        with made_up_times(self.best_is_plain):
            _, (code,) = run_and_get_code(compiled, x)
        self.assertIn("def plus_kernel(", code)
        self.assert_adds(compiled, {2: 9, 2048: 9})

    def test_unregistered_is_its_body(self):
        """Another op's registration does not matter, nor does one that is gone."""
        op = made_op(plus_9)
        register(op, plus(1))
        del user_lowerings[op._opoverload]
        x = torch.ones(4, device=DEVICE)
        with mock.patch.object(op, "_init_fn", side_effect=AssertionError):
            _, (code,) = run_and_get_code(torch.compile(lambda x: op(x) * 3), x)
        self.assertNotIn("torch.ops.triton_ops", code)

    def test_registered_anew(self):
        op = made_op(plus_9)
        register(op, plus(1), plus(2), plus(5))
        with made_up_times(best_by_range):
            compiled = compile_at(lambda x: op(x) * 3, ramp(128, 4))
            register(op, plus(3), plus(4), plus(6))
            compiled(ramp(128, 4))
        self.assert_adds(compiled, {2: 3, 512: 4, 2048: 6})

    def test_code_of_before_it_was_registered_again(self):
        op = made_op(plus_9)
        register(op, plus(1))
        del user_lowerings[op._opoverload]
        compiled = compile_at(lambda x: op(x) * 3, ramp(128, 4))
        self.assert_adds(compiled, {128: 9})
        register(op, plus(3), plus(4), plus(6))
        with made_up_times(best_by_range):
            compiled(ramp(128, 4))
        self.assert_adds(compiled, {2: 3, 512: 4, 2048: 6})

    def test_code_that_another_model_left_in_the_cache(self):
        """It has the same kernels, and does not know of the op."""
        op = made_op(plus_9)
        register(op, plus(1))
        del user_lowerings[op._opoverload]
        counters.clear()
        with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=False):
            compile_at(lambda x: plus_9(x) * 3, ramp(128, 4))
            compiled = compile_at(lambda x: op(x) * 3, ramp(128, 4))
        self.assertEqual(counters["inductor"]["fxgraph_cache_hit"], 1)
        self.assert_adds(compiled, {128: 9})
        register(op, plus(3), plus(4), plus(6))
        with made_up_times(best_by_range):
            compiled(ramp(128, 4))
        self.assert_adds(compiled, {2: 3, 512: 4, 2048: 6})


if __name__ == "__main__":
    run_tests()
