# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.ops.decomposed_ops``: ops of torch, registered."""

import itertools
from unittest import mock

import torch.nn.functional as F
from test_custom_op_autotune import (
    AutotuneTestCase,
    best_by_range,
    compile_at,
    DEVICE,
    identity_op,
    made_up_times,
    no_recompile,
    plus,
    ramp,
    RANGES,
)
from torch._inductor.decomposition import decompositions, fast_random_decomps
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import HAS_GPU

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidate_indices import PLAIN_INDEX


GELU = torch.ops.aten.gelu.default
LAYER_NORM = torch.ops.aten.native_layer_norm.default
KERNEL = "async_compile.triton(" if HAS_GPU else "async_compile.cpp_pybinding("

_numbers = itertools.count()


def register(op, *impls, tensor="self"):
    ranges = CustomOpRangeConfig(tensor, 0, RANGES, list(impls))
    register_custom_op_autotuning(op, configs=[ranges])


def layer_norm(x, normalized_shape, weight, bias, eps):
    mean = x.mean(-1, keepdim=True)
    rstd = torch.rsqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    return (x - mean) * rstd * weight + bias, mean, rstd


@instantiate_parametrized_tests
class TestDecomposedOps(AutotuneTestCase):
    def decomposed_op(self, decompose):
        name = f"op{next(_numbers)}"
        library = torch.library.Library("decomposed_ops", "FRAGMENT")
        self.addCleanup(library._destroy)
        library.define(f"{name}(Tensor self) -> Tensor")
        library.impl(name, lambda x: x.clone(), "CompositeExplicitAutograd")
        op = getattr(torch.ops.decomposed_ops, name).default
        patched = mock.patch.dict(decompositions, {op: decompose})
        patched.start()
        self.addCleanup(patched.stop)
        self.addCleanup(fast_random_decomps.cache_clear)
        fast_random_decomps.cache_clear()
        return op

    def assert_gelu_in_one_kernel(self, fn, expected):
        x = torch.randn(128, 4, device=DEVICE)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(fn)
        result, (code,) = run_and_get_code(compiled, x)
        self.assertEqual(result, expected(x))
        self.assertEqual(code.count(KERNEL), 1)
        self.assertNotIn("torch.ops.aten.gelu", code)
        x = torch.randn(3000, 4, device=DEVICE)
        with no_recompile:
            self.assertEqual(compiled(x), expected(x))

    def test_is_tuned(self):
        register(GELU, plus(1), plus(2), plus(5))
        with made_up_times(best_by_range):
            compiled = compile_at(lambda x: F.gelu(x) * 3, ramp(128, 4))
        self.assert_adds(compiled, {2: 1, 511: 1, 512: 2, 2048: 5})

    def test_its_decomposition_competes(self):
        register(GELU, plus(1), plus(2), plus(5))
        with made_up_times(lambda size, index: 1.0 if index == PLAIN_INDEX else 2.0):
            self.assert_gelu_in_one_kernel(
                lambda x: F.gelu(x * 2) * 3, lambda x: F.gelu(x * 2) * 3
            )

    def test_it_runs_eagerly_where_that_is_best(self):
        register(GELU, plus(1))
        with made_up_times(lambda size, index: 1.0 if index == -1 else 2.0):
            compiled = compile_at(lambda x: F.gelu(x) * 3, ramp(128, 4))
        x = torch.randn(3000, 4, device=DEVICE)
        self.assertEqual(compiled(x), F.gelu(x) * 3)

    @parametrize("why", ("deterministic", "no config", "another op"))
    def test_untuned_is_its_decomposition(self, why):
        if why == "no config":
            register_custom_op_autotuning(GELU, config_generator=lambda tensors: [])
        elif why == "another op":
            register(torch.ops.aten.silu.default, plus(1))
        else:
            register(GELU, plus(1), plus(2), plus(5))
        with config.patch(deterministic=why == "deterministic"):
            self.assert_gelu_in_one_kernel(
                lambda x: F.gelu(x * 2) * 3, lambda x: F.gelu(x * 2) * 3
            )

    def test_untuned_whose_decomposition_guards(self):
        op = self.decomposed_op(lambda x: x + 1 if x.shape[0] < 1000 else x + 2)
        register_custom_op_autotuning(op, config_generator=lambda tensors: [])
        compiled = compile_at(lambda x: op(x) * 3, ramp(128, 4))
        self.assert_adds(compiled, {128: 0, 3000: 0})

    @parametrize("joined", (False, True))
    def test_code_of_before_it_was_registered(self, joined):
        """Joined to a call of another op, it is lowered with that one."""
        op = self.decomposed_op(lambda x: x + 1)
        other = identity_op()
        if joined:
            register(other, lambda x: x.clone(), tensor="x")

        def fn(x):
            return op(other(x)) * 3

        compiled = compile_at(fn, ramp(128, 4))
        self.assert_adds(compiled, {128: 1})
        register(op, plus(3), plus(4), plus(6))
        with made_up_times(lambda size, index: 1.0 if index in (0, 2) else 2.0):
            compiled(ramp(128, 4))
        x = ramp(128, 4)
        self.assertNotEqual(compiled(x), 3 * (x + 1))

    def test_training(self):
        register(LAYER_NORM, layer_norm, tensor="input")
        weight, bias = (torch.rand(16, device=DEVICE) for _ in range(2))

        def fn(x):
            return F.layer_norm(x, (16,), weight, bias, 1e-5) * 2

        results = []
        with made_up_times(lambda size, index: 1.0 if index == 0 else 2.0):
            x = torch.randn(128, 16, device=DEVICE, requires_grad=True)
            compiled = compile_at(fn, x)
        for run in (compiled, fn):
            x = ramp(3000, 16).sin().requires_grad_()
            with no_recompile:
                y = run(x)
            y.square().sum().backward()
            results.append((y, x.grad))
        self.assertEqual(*results)

    def test_implementations_may_call_it(self):
        register_custom_op_autotuning(
            GELU, configs=[CustomOpConfig(lambda x: F.gelu(x) * 1)]
        )
        with made_up_times(lambda size, index: 1.0 if index == 0 else 2.0):
            self.assert_gelu_in_one_kernel(F.gelu, F.gelu)


if __name__ == "__main__":
    run_tests()
