# Owner(s): ["module: inductor"]
"""
Ordinary uses of autotuned ops: whatever op, arguments, implementations and ways to
compile there are, the result is right on both sides of each boundary, in one compilation.
"""

from __future__ import annotations

import functools
import logging
import math
import re
import unittest
from unittest import mock

import sympy
from range_autotune_testing import guards_in_code_of
from test_custom_op_autotune import (
    AutotuneTestCase,
    best_by_range,
    compile_at,
    define_op,
    DEVICE,
    identity_op,
    made_up_times,
    no_recompile,
    plus,
    ramp,
    RANGES,
    SIZES,
)
from torch._dynamo.utils import counters
from torch._inductor.graph import GraphLowering
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental import _config as symbolic_config
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention.flex_attention import flex_attention
from torch.testing._internal.common_utils import (
    DeterministicGuard,
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import HAS_GPU
from torch.utils.checkpoint import checkpoint

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.modules.subgraph_module import SubgraphModule


BELOW, ABOVE = RANGES[:2]
branch_for_each_range = config.patch("test_configs.force_no_impl_grouping", True)


def register(op, *impls, tensor_name="x", dim=0, ranges=(BELOW, ABOVE), **options):
    """Every implementation competes in each range; all must compute what the op does."""
    configs = [CustomOpRangeConfig(tensor_name, dim, list(ranges), list(impls))]
    register_custom_op_autotuning(op, configs=configs, **options)


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def doubling_op():
    op = define_op(double, torch.empty_like)
    register(op, lambda x: x + x, lambda x: 2 * x, ranges=RANGES)
    return op


def scaled_rows(x: torch.Tensor) -> torch.Tensor:
    return x * x.pow(2).mean(-1, keepdim=True).rsqrt()


class UsesTestCase(AutotuneTestCase):
    def check(self, fn, make, dims=((0, 0),)):
        """Under real times, with a branch for each range; no candidate is left out."""
        with branch_for_each_range:
            compiled = compile_at(fn, *make(SIZES[0]), dims=dims)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        self.assert_like_eager(fn, compiled, make)
        return compiled


class TestArguments(UsesTestCase):
    def test_plain_values(self):
        def fn(
            x: torch.Tensor,
            times: int,
            scale: float,
            negate: bool,
            mode: str,
            dtype: torch.dtype,
            dims: list[int],
            *,
            eps: float = 0.5,
        ) -> torch.Tensor:
            result = x.to(dtype) * (scale * times) + eps
            result = result.sum(dims, keepdim=True) if mode == "sum" else result
            return -result if negate else result.clone()

        op = define_op(fn, fn)

        def other(x, times, scale, negate, mode, dtype, dims, *, eps=0.5):
            result = (times * scale) * x.to(dtype) + eps
            result = result.sum(dims, keepdim=True) if mode == "sum" else result
            return result * -1 if negate else result * 1

        register(op, other)
        self.check(
            lambda x: (
                op(x, 3, 0.25, True, "sum", torch.float64, [1]),
                op(x, 2, 1.5, False, "none", torch.float16, [], eps=2.0),
            ),
            lambda n: (ramp(n, 4) % 7,),
        )

    def test_lists_and_optional_tensors(self):
        def fn(
            xs: list[torch.Tensor],
            bias: torch.Tensor | None = None,
            mask: torch.Tensor | None = None,
        ) -> torch.Tensor:
            result = xs[0] * 2 + xs[-1]
            result = result if bias is None else result + bias
            return result if mask is None else result * mask

        def fake(xs, bias=None, mask=None):
            for tensor in (bias, mask):
                torch._check(tensor is None or tensor.shape == xs[0].shape)
            return torch.empty_like(xs[0])

        op = define_op(fn, fake)

        def other(tensors, bias=None, mask=None):
            result = tensors[0] + tensors[0] + tensors[-1]
            result = result if bias is None else bias + result
            return result if mask is None else mask * result

        register(op, other, tensor_name="bias")

        def model(x, mask):
            given = op([x, x + 1, x], x - 1)
            by_name = op(xs=[x], mask=mask, bias=x)
            without_dispatch_tensor = op([x, x], mask=mask)
            return given, by_name, without_dispatch_tensor

        self.check(model, lambda n: (ramp(n, 4), ramp(n, 4) > 9), dims=((0, 0), (1, 0)))

    def test_sizes_in_a_list_are_told_apart(self):
        def first(xs: list[torch.Tensor]) -> torch.Tensor:
            return xs[0].clone()

        op = define_op(first, lambda xs: torch.empty_like(xs[0]))
        configs = [CustomOpConfig(lambda xs: xs[0] + 0 * xs[1])]
        register_custom_op_autotuning(op, configs=configs)
        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            compile_at(
                lambda x, y: op([x, y]), ramp(128), ramp(64), dims=((0, 0), (1, 0))
            )
        (told,) = (record.getMessage() for record in logs.records)
        self.assertRegex(told, r"xs\[0\].shape\[0\] is s\d+, xs\[1\].shape\[0\] is s")

    def test_one_tensor_as_two_arguments(self):
        def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

        def fake(x, y):
            torch._check(x.shape == y.shape)
            return torch.empty_like(x)

        op = define_op(fn, fake)
        register(op, lambda x, y: y + x, tensor_name="y")
        self.check(
            lambda x: (op(x, x), op(x, x.mT.contiguous().mT)), lambda n: (ramp(n, 4),)
        )

    @parametrize("dtype", (torch.bool, torch.uint8, torch.int32, torch.float16))
    def test_dtypes(self, dtype):
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x.flip(1)

        op = define_op(fn, torch.empty_like)
        register(op, lambda x: x[:, [3, 2, 1, 0]])
        self.check(op, lambda n: ((ramp(n, 4) % 5 - 1).to(dtype),))

    def test_float8(self):
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x.to(torch.bfloat16) * 2

        op = define_op(fn, lambda x: torch.empty_like(x, dtype=torch.bfloat16))
        register(op, lambda x: 2 * x.to(torch.bfloat16))
        self.check(op, lambda n: ((ramp(n, 4) % 5).to(torch.float8_e4m3fn),))

    def test_channels_last(self):
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x.relu()

        op = define_op(fn, torch.empty_like)
        register(op, lambda x: x.clamp(min=0))

        def make(n):
            images = ramp(n, 3, 2, 2) - 9
            return (images.to(memory_format=torch.channels_last),)

        compiled = self.check(op, make)
        for size in (5, 600):
            (images,) = make(size)
            self.assertEqual(compiled(images).stride(), images.stride())

    def test_expanded_inputs(self):
        def fn(x: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
            return x * row

        op = define_op(fn, lambda x, row: x.new_empty(x.shape))
        register(op, lambda x, row: row * x, tensor_name="row")
        self.check(
            lambda x, row: op(x, row.expand(x.shape[0], -1)),
            lambda n: (ramp(n, 4), ramp(4)),
        )


instantiate_parametrized_tests(TestArguments)


class TestSizesOfZeroAndNone(UsesTestCase):
    def test_zero_dimensional_tensors(self):
        def fn(
            x: torch.Tensor, scale: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return x * scale, x.amax() + scale

        op = define_op(fn, lambda x, scale: (torch.empty_like(x), x.new_empty(())))
        register(op, lambda x, scale: (scale * x, scale + x.amax()))
        self.check(op, lambda n: (ramp(n, 4) % 3, ramp(1)[0] + 2))

    def test_only_zero_dimensional_tensors(self):
        op = define_op(double, torch.empty_like)
        register_custom_op_autotuning(op, configs=[CustomOpConfig(lambda x: x + x)])
        x = ramp(3)[2]
        self.assertEqual(torch.compile(lambda x: op(x) + 1)(x), x * 2 + 1)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    def test_another_dimension_is_zero(self):
        self.check(doubling_op(), lambda n: (ramp(n, 0),))

    def test_dispatch_size_of_zero_at_compile_time(self):
        op = identity_op()
        register(op, plus(1), plus(2))
        with made_up_times(best_by_range) as sizes:
            result = torch.compile(op)(ramp(0, 4))
        self.assertEqual(result, ramp(0, 4))
        self.assertEqual(sizes, [0])

    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_dispatch_size_of_zero_at_run_time(self):
        op = identity_op()
        register(op, plus(1), plus(2))

        def fn(x, least):
            return op(x[x[:, 0] >= least])

        least = torch.tensor(0.0, device=DEVICE)
        with made_up_times(best_by_range):
            compiled = compile_at(fn, ramp(128, 4), least)
        with no_recompile:
            for size, kept, marker in (
                (7, 0, 0),
                (600, 0, 0),
                (600, 511, 1),
                (600, 512, 2),
            ):
                x = ramp(size, 4)
                expected = x[size - kept :] + marker
                self.assertEqual(compiled(x, least + (size - kept) * 4), expected)

    def test_unbacked_size_of_an_input(self):
        op = identity_op()
        register(op, plus(1), plus(2))
        x = ramp(128, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        compiled = torch.compile(op)
        with made_up_times(best_by_range) as sizes:
            compiled(x)
        self.assertGreater(min(sizes), 0)
        self.assert_markers(compiled, {0: 1, 1: 1, 511: 1, 512: 2, 2047: 2, 2048: 0})

    def test_range_of_empty_tensors(self):
        op = identity_op()
        ranges = [(0, 1), (1, math.inf)]
        configs = [CustomOpRangeConfig("x", 0, ranges, [plus(1), plus(2)])]
        register_custom_op_autotuning(op, configs=configs)
        x = ramp(128, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        compiled = torch.compile(op)
        with made_up_times(lambda size, index: 1.0 if index == (size > 0) else 2.0):
            compiled(x)
        self.assert_markers(compiled, {0: 1, 1: 2, 300: 2})

    @parametrize("candidates", (1, 2))
    def test_view_of_an_unbacked_size(self, candidates):
        """Inductor guesses how it cuts a value that is in no buffer; of a buffer it need not."""
        op = identity_op()
        register(op, *[lambda x: x * 1, lambda x: x + 0][:candidates])

        def fn(x):
            return op(x).view(-1, 2).relu()

        x = ramp(128, 4)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        compiled = torch.compile(fn)
        for size in (128, 5, 600):
            x = ramp(size, 4)
            self.assertEqual(compiled(x), fn(x))

    @torch._dynamo.config.patch(capture_scalar_outputs=True)
    def test_rows_of_a_cache_that_data_tell(self):
        """What the position may be is checked nowhere."""
        op = doubling_op()

        def fn(x, cache, position):
            start = position.item()
            cache[start : start + x.shape[0]].copy_(op(x))
            return cache.amax()

        compiled = compile_at(fn, ramp(32, 4), ramp(700, 4), torch.tensor(3))
        for size, start in ((32, 3), (5, 0), (600, 90)):
            x, position = ramp(size, 4), torch.tensor(start)
            cache, expected = ramp(700, 4), ramp(700, 4)
            self.assertEqual(compiled(x, cache, position), fn(x, expected, position))
            self.assertEqual(cache, expected)

    @torch._dynamo.config.patch(capture_scalar_outputs=True)
    def test_number_that_is_checked_against_a_size_outside(self):
        def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
            return x * 2 + n

        op = define_op(scaled, lambda x, n: torch.empty_like(x))
        register(op, lambda x, n: x + x + n, lambda x, n: n + 2 * x)

        def fn(x, y, number):
            n = number.item()
            torch._check(n >= 0)
            torch._check(n <= y.shape[0])
            return op(x, n)

        counters.clear()
        number = torch.tensor(7)
        compiled = compile_at(fn, ramp(128), ramp(64), number)
        for size in (5, 600):
            x = ramp(size)
            self.assertEqual(compiled(x, ramp(64), number), x * 2 + 7)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    @parametrize("used_outside", (False, True))
    def test_number_that_is_known_behind_dynamo(self, used_outside):
        """A view that is returned guards on its size only when autograd is traced."""

        def scaled(x: torch.Tensor, n: int) -> torch.Tensor:
            return x * (n % 7)

        op = define_op(scaled, lambda x, n: torch.empty_like(x))
        register(op, lambda x, n: n % 7 * x, lambda x, n: x * (n % 7) * x.new_ones(()))

        def fn(x, y):
            n = y.shape[0]
            return op(x, n).relu() * (n + 1 if used_outside else 1), y.tanh()[1:]

        compiled = compile_at(fn, ramp(128, 4), ramp(5, 3), dims=((0, 0), (1, 0)))
        for size in (5, 600):
            x, y = ramp(size, 4), ramp(2, 3)
            self.assertEqual(compiled(x, y), fn(x, y))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_size_after_nonzero(self):
        op = identity_op()
        register(op, plus(1), plus(2))

        def fn(x):
            return op(x.nonzero()[:, 0])

        with made_up_times(best_by_range):
            compiled = compile_at(fn, ramp(128))
        with no_recompile:
            for size, marker in ((2, 1), (512, 1), (513, 2), (3000, 0)):
                expected = torch.arange(1, size, device=DEVICE) + marker
                self.assertEqual(compiled(ramp(size)), expected)

    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_result_whose_size_data_tell(self):
        """It is not tuned, nor does anything join it."""

        def positive(x: torch.Tensor) -> torch.Tensor:
            return x[x > 0].clone()

        def fake(x):
            return x.new_empty(torch.library.get_ctx().new_dynamic_size())

        op = define_op(positive, fake)
        register(op, lambda x: x[x > 0])
        counters.clear()
        compiled = compile_at(lambda x: op(x * 2) + 1, ramp(128))
        with no_recompile:
            for size in (5, 128, 3000):
                x = ramp(size) - size // 2
                self.assertEqual(compiled(x), positive(x * 2) + 1)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    @torch._dynamo.config.patch(capture_scalar_outputs=True)
    def test_size_that_is_checked_against_another(self):
        """A branch, which does not know the other one, has no assertion of it."""
        op = identity_op()
        register(op, plus(1), plus(2))

        def fn(x, kept):
            size = kept.item()
            torch._check(size >= 2)
            torch._check(size <= x.shape[0])
            return op(x[:size])

        with made_up_times(best_by_range):
            compiled = compile_at(fn, ramp(128), torch.tensor(100))
        with no_recompile:
            for size, marker in ((2, 1), (511, 1), (512, 2), (3000, 0)):
                expected = ramp(3000)[:size] + marker
                self.assertEqual(compiled(ramp(3000), torch.tensor(size)), expected)

    def test_dtype_that_is_a_default(self):
        def fn(x: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
            return x.to(dtype)

        op = define_op(fn, lambda x, dtype=torch.bfloat16: x.to(dtype))
        given = []

        def impl(x, dtype):
            given.append(dtype)
            return (x + 1).to(dtype)

        register(op, impl, lambda x: (x + 2).to(torch.bfloat16))
        with made_up_times(best_by_range):
            compiled = compile_at(op, ramp(128, 2))
        for size, marker in ((5, 1), (600, 2)):
            x = ramp(size, 2)
            self.assertEqual(compiled(x), (x + marker).to(torch.bfloat16))
        self.assertEqual({*given}, {torch.bfloat16})

    def test_results_that_are_what_an_implementation_is_given(self):
        """Copies of it: the model writes to them."""
        table = ramp(4)
        op = identity_op()
        impls = (lambda x: x, lambda x: x.view(-1).view(x.shape))
        register(op, *impls, ranges=RANGES, include_fallback=False)

        def expanded(x: torch.Tensor) -> torch.Tensor:
            return table.expand(x.shape).clone()

        tables = define_op(expanded, lambda x: x.new_empty(x.shape))
        register(tables, lambda x: table.expand(x.shape), include_fallback=False)

        def fn(x):
            y = op(x)
            y.add_(1)
            z = tables(x)
            z.mul_(x)
            return y, z, x.sin()

        self.check(fn, lambda n: (ramp(n, 4),))
        self.assertEqual(table, ramp(4))

    def test_conjugated_input(self):
        """Which is a bit that says so."""

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x.imag.clone()

        op = define_op(fn, lambda x: torch.empty_like(x.real))
        register(op, lambda x: x.imag * 1.0, include_fallback=False)
        x = torch.complex(ramp(128, 2), ramp(128, 2))
        for model, given in ((lambda x: op(x.conj()) * 2, x), (op, x.conj())):
            self.assertEqual(compile_at(model, given)(given), model(given))

    def test_conjugated_result(self):
        """Of an implementation, where the op returns what is."""

        def fn(x: torch.Tensor) -> torch.Tensor:
            return torch.conj_physical(x * 2)

        op = define_op(fn, torch.empty_like)
        register(op, lambda x: (x * 2).conj(), include_fallback=False)
        x = torch.complex(ramp(128, 2), ramp(128, 2))
        result = compile_at(op, x)(x)
        self.assertFalse(result.is_conj())
        self.assertEqual(result, op(x))

        def parts(x):
            return torch.view_as_real(op(x)) + 1

        self.assertEqual(compile_at(parts, x)(x), parts(x))

    @torch._dynamo.config.patch(capture_scalar_outputs=True)
    def test_size_that_is_what_data_leave_of_another(self):
        op = identity_op()
        register(op, plus(1), plus(2))

        def fn(x, left):
            start = left.item()
            torch._check(start >= 0)
            torch._check(start <= x.shape[0])
            return op(x[start:])

        # The hint of what is data is 128.
        with made_up_times(best_by_range):
            compiled = compile_at(fn, ramp(32), torch.tensor(10))
        with no_recompile:
            for start, marker in ((0, 0), (900, 0), (1000, 2), (2600, 1)):
                expected = ramp(3000)[start:] + marker
                self.assertEqual(compiled(ramp(3000), torch.tensor(start)), expected)

    @config.patch({"test_configs.force_custom_op_decomposition": True})
    def test_ops_that_are_made_of_each_other(self):
        """Inside of what an op was decided to be it is not decided again."""
        first, second = identity_op(), identity_op()
        register(first, second, lambda x: second(x) * 1, include_fallback=False)
        register(second, first, lambda x: first(x) * 1, include_fallback=False)
        with made_up_times(best_by_range):
            compiled = compile_at(lambda x: first(x) + 1, ramp(128, 4))
        self.assert_markers(compiled, {2: 1, 511: 1, 512: 1})


instantiate_parametrized_tests(TestSizesOfZeroAndNone)


class Scaler:
    def __init__(self, marker):
        self.marker = marker

    def __call__(self, x, k):
        return x * k + self.marker

    def scale(self, x, k):
        return k * x + self.marker


def positional_only(x, k, /):
    return x * k + 6


def keyword_only(*, x, k):
    return x * k + 7


def open_ended(*args, **kwargs):
    return args[0] * kwargs["k"] + kwargs["bias"] + 8


def same_name(marker):
    def impl(x, k, bias=0.0):
        return x * k + bias + marker

    return impl


@instantiate_parametrized_tests
class TestImplementations(UsesTestCase):
    def test_its_one_output_in_a_tuple(self):
        op = define_op(double, torch.empty_like)
        register(op, lambda x: (x + x,), lambda x: [2 * x], ranges=RANGES)
        self.check(lambda x: torch.relu(op(x)) + x, lambda n: (ramp(n, 4),))

    def test_every_kind_of_callable(self):
        def fn(x: torch.Tensor, k: int = 1, *, bias: float = 0.0) -> torch.Tensor:
            return x * k + bias

        op = define_op(fn, lambda x, k=1, *, bias=0.0: torch.empty_like(x))

        impls = [
            functools.partial(lambda x, k, more: x * k + more, more=1),
            lambda x, k: x * k + 2,
            Scaler(3),
            Scaler(4).scale,
            CustomOpConfig(lambda x, k, tuned: x * k + tuned, tuned=5),
            positional_only,
            keyword_only,
            open_ended,
            same_name(9),
            same_name(10),
        ]
        ranges = [(i * 10, i * 10 + 10) for i in range(len(impls))]
        register(op, *impls, ranges=ranges)
        with made_up_times(lambda size, index: 1.0 if index == size // 10 else 2.0):
            compiled = compile_at(lambda x: op(x, 3), ramp(15, 4))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        with no_recompile:
            for size in (2, *(n for i in range(1, 10) for n in (10 * i - 1, 10 * i))):
                x = ramp(size, 4)
                self.assertEqual(compiled(x), x * 3 + size // 10 + 1)

    @no_recompile
    def test_branches_that_capture_tensors(self):
        """Those of the call, and others; also where Dynamo may compile nothing again."""
        three = torch.full((4,), 3.0, device=DEVICE)

        def scaled(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return 3 * x * y

        def of_call(x, y):
            return torch.cond(x.sum() >= 0, lambda: 3 * x * y, lambda: x * (3 * y))

        def of_others(x, y):
            either = (lambda x: x * y * three, lambda x: x * three * y)
            return torch.cond(x.sum() >= 0, *either, (x,))

        op = define_op(scaled, lambda x, y: torch.empty_like(x))
        register(op, of_call, of_others, include_fallback=False)

        def make(size):
            return ramp(size, 4), ramp(4)

        with branch_for_each_range, made_up_times(best_by_range):
            compiled = compile_at(op, *make(128))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        self.assert_like_eager(op, compiled, make)

    @unittest.skipIf(
        not HAS_GPU and torch.backends.cpu.get_cpu_capability() == "AVX2",
        "Inductor's own kernel for it returns wrong values there",
    )
    def test_flex_attention(self):
        """Emitted in the op's place, its kernel knows the score's graph by a name."""

        def attention(q: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
            mask = bias[:, None, None].expand(-1, q.shape[2], q.shape[2])
            return torch.nn.functional.scaled_dot_product_attention(q, q, q, mask)

        def flex(q, bias):
            return flex_attention(q, q, q, lambda score, b, h, i, j: score + bias[h])

        op = define_op(attention, lambda q, bias: torch.empty_like(q))
        ranges = [(0, math.inf)]  # on a GPU its kernel is another one below 128
        register(
            op, flex, tensor_name="q", dim=2, ranges=ranges, include_fallback=False
        )

        def make(size):
            return torch.randn(1, 2, size, 16, device=DEVICE), ramp(2)

        compiled = compile_at(op, *make(200), dims=((0, 2),))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        for size in (40, 130):
            args = make(size)
            with no_recompile:
                self.assertEqual(compiled(*args), op(*args), atol=1e-3, rtol=1e-3)

    @parametrize("fullgraph", (False, True))
    def test_implementation_that_is_compiled(self, fullgraph):
        op = define_op(double, torch.empty_like)
        register(op, torch.compile(lambda x: x + x, fullgraph=fullgraph))
        self.check(lambda x: op(x) + 1, lambda n: (ramp(n, 4),))

    def test_choice_by_data(self):
        def through_cond(marker):
            return lambda x: torch.cond(
                x.sum() >= 0, lambda x: x + marker, lambda x: x - marker, (x,)
            )

        op = identity_op()
        register(op, through_cond(1), through_cond(2))
        with made_up_times(best_by_range):
            compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {2: 1, 511: 1, 512: 2, 2048: 0})
        with no_recompile:
            self.assertEqual(compiled(-ramp(600, 4)), -ramp(600, 4) - 2)

    @torch._dynamo.config.patch(capture_scalar_outputs=True)
    def test_asserts_of_its_own_data(self):
        """
        What implementations assert of numbers that they read is no guard; it is checked
        where they run, also behind a trace that makes writes to their own tensors values.
        """

        def first_rows(x: torch.Tensor, number: torch.Tensor) -> torch.Tensor:
            return x + (torch.arange(x.shape[0], device=x.device) < number)[:, None]

        def rows_of(x, number):
            n = number.item()
            torch._check(n >= 0)
            torch._check(n <= x.shape[0])
            return n

        def in_parts(x, number):
            n = rows_of(x, number)
            return torch.cat([x[:n] + 1, x[n:]])

        def in_place(x, number):
            result, n = x.clone(), rows_of(x, number)
            result[:n] += 1
            return result

        op = define_op(first_rows, lambda x, number: torch.empty_like(x))
        register(op, in_parts, in_place)

        def make(size):
            return ramp(size, 4), torch.tensor(size // 2)

        counters.clear()
        with branch_for_each_range, made_up_times(best_by_range):
            compiled = compile_at(op, *make(128))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        self.assert_like_eager(op, compiled, make)
        for size in (128, 600):
            for wrong, expected in ((-1, ">= 0"), (size + 1, "<= s")):
                with self.assertRaisesRegex(RuntimeError, expected):
                    compiled(ramp(size, 4), torch.tensor(wrong))

    @torch._dynamo.config.patch(capture_scalar_outputs=True)
    def test_scan_over_the_dispatch_size(self):
        from torch._higher_order_ops.scan import scan

        def total(x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(0)

        def step(carry, row):
            result = carry + row
            return result, result.clone()

        op = define_op(total, torch.empty_like)
        register(op, lambda x: scan(step, x.new_zeros(x.shape[1]), x)[1])
        with made_up_times(best_by_range):
            self.check(op, lambda size: (ramp(size, 2),))

    def test_op_that_changes_the_number_of_threads(self):
        """Dynamo would take that for an error, if measuring it did."""

        def in_one_thread(x: torch.Tensor) -> torch.Tensor:
            torch.set_num_threads(1)
            return x + 1

        self.addCleanup(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(2)
        op = define_op(in_one_thread, torch.empty_like)
        register(op, lambda x: 1 + x)
        compiled = compile_at(op, ramp(128))
        with no_recompile:
            self.assertEqual(compiled(ramp(600)), ramp(600) + 1)

    @parametrize(
        "part",
        ("behind_the_first", "first_half", "every_other", "suffix", "behind_a_number"),
    )
    def test_part_of_what_the_model_is_given(self, part):
        """What its own guards tell of such a size is no guard of an implementation."""
        op = define_op(scaled_rows, torch.empty_like)
        register(op, scaled_rows, lambda x: x / x.pow(2).mean(-1, True).sqrt())
        cut = {
            "behind_the_first": lambda x, y: x[1:],
            "first_half": lambda x, y: x[: x.shape[0] // 2],
            "every_other": lambda x, y: x[::2],
            "suffix": lambda x, y: x[y.shape[0] :],
            # Which may be counted from the end, as far as is known without a guard.
            "behind_a_number": lambda x, y: x[y.shape[0] - 3 :],
        }[part]
        of_two_sizes = part in ("suffix", "behind_a_number")

        def fn(x, y):
            return op(cut(x, y).contiguous())

        counters.clear()
        dims = ((0, 0), (1, 0)) if of_two_sizes else ((0, 0),)
        with branch_for_each_range, made_up_times(best_by_range):
            compiled = compile_at(fn, ramp(40, 4) + 1, ramp(6), dims=dims)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        with no_recompile:
            for size in (20, 1100, 3000):
                x, y = ramp(size, 4) + 1, ramp(7 if of_two_sizes else 6)
                self.assertEqual(compiled(x, y), fn(x, y))

    @parametrize("oblivious", (False, True))
    def test_suffix_of_rows_of_a_dynamic_length(self, oblivious):
        """Whether its memory is empty is asked in terms that its sizes do not answer."""
        op = doubling_op()

        def fn(x, y):
            return op(x[y.shape[0] :]) + 1

        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        dims = ((0, 0), (0, 1), (1, 0))
        with (
            symbolic_config.patch(backed_size_oblivious=oblivious),
            branch_for_each_range,
            self.assertLogs(logger, logging.INFO) as logs,
        ):
            compiled = compile_at(fn, ramp(40, 6), ramp(6), dims=dims)
        self.assertIn(
            "Dispatch dimension: x[0]", [r.getMessage() for r in logs.records]
        )
        with no_recompile:
            for size in (20, 600, 3000):
                x, y = ramp(size, 5), ramp(7)
                self.assertEqual(compiled(x, y), fn(x, y))

    @parametrize("row", ((), (4,)))
    @parametrize("way", ("padded", "added"))
    @parametrize("ranges", (RANGES, [(0, math.inf)]))
    def test_part_that_is_one_row_at_one_size(self, row, way, ranges):
        """Who asks whether it is so can do without: its strides are in order either way."""
        called = []

        def with_the_last(x: torch.Tensor) -> torch.Tensor:
            called.append(x.shape[0])
            return torch.cat((x[:1], x[1:] + x[:-1]))

        def padded(x):
            return torch.nn.functional.pad(x[:-1], (0, 0) * len(row) + (1, 0)) + x

        def added(x):
            result = x.clone()
            result[1:] += x[:-1]
            return result

        op = define_op(with_the_last, torch.empty_like)
        impl = {"padded": padded, "added": added}[way]
        register(op, impl, ranges=ranges, include_fallback=False)
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with branch_for_each_range, self.assertNoLogs(logger, logging.WARNING):
            compiled = compile_at(lambda x: op(x) + 1, ramp(128, *row))
        called.clear()
        with no_recompile:
            for size in (2, 3, 511, 512, 3000):
                x = ramp(size, *row)
                self.assertEqual(compiled(x), impl(x) + 1)
        self.assertEqual(called, [])

    def test_question_that_needs_an_answer_is_the_reason(self):
        """The first one asked is whether a part is one row, which does not."""

        def shifted(x):
            later = x[1:] + x[:-1]
            return torch.cat((x[:1], later if x.shape[0] // 8 % 2 else later * 1))

        def eager(x: torch.Tensor) -> torch.Tensor:
            return torch.cat((x[:1], x[1:] + x[:-1]))

        op = define_op(eager, torch.empty_like)
        register(op, shifted, ranges=[(0, math.inf)])
        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            compile_at(op, ramp(128, 4))
        self.assertRegex(
            logs.records[0].getMessage(),
            r"it guards on a size, Ne\(Mod\(\(s\d+//8\), 2\), 0\)",
        )

    def test_sum_over_the_dispatch_size(self):
        """Where C++ for more than 4096 elements is other code, no size is guarded on."""

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x + x.sum()

        op = define_op(fn, torch.empty_like)
        ranges = [(0, 4096), (4096, math.inf)]
        register(op, lambda x: x.sum() + x, lambda x: x + x.sum() * 1, ranges=ranges)
        with made_up_times(lambda size, index: 1.0 if index == size // 4096 else 2.0):
            compiled = compile_at(op, torch.ones(128, device=DEVICE))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        with no_recompile:
            for size in (2, 4095, 4096, 4097, 100_003):
                x = torch.ones(size, device=DEVICE)
                self.assertEqual(compiled(x), x * (size + 1))

    @parametrize("winners", (1, 2))
    def test_sort_over_the_dispatch_size(self, winners):
        """Inductor sorts with 16 bits for a place where it knows, or guards, that they do."""

        def order(x: torch.Tensor) -> torch.Tensor:
            return x.argsort(0)

        def of_negated(x):
            return (-x).sort(0, descending=True).indices

        op = define_op(order, lambda x: torch.empty_like(x, dtype=torch.int64))
        impls = (lambda x: x.sort(0).indices, of_negated)
        register(op, *impls, ranges=RANGES[1:], include_fallback=False)
        first_of_second = 2048 if winners == 2 else math.inf

        def best(size, index):
            return 1.0 + (index != (size >= first_of_second))

        with made_up_times(best):
            compiled = compile_at(lambda x: op(x) + 1, torch.rand(128, device=DEVICE))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        with no_recompile:
            for size in (4, 1024, 32766, 40000):
                x = torch.randperm(size, device=DEVICE).float()
                self.assertEqual(compiled(x), order(x) + 1)

    def test_lacking_parameter(self):
        def fn(x: torch.Tensor, k: int = 1) -> torch.Tensor:
            return x * k

        op = define_op(fn, lambda x, k=1: torch.empty_like(x))

        def without(x):
            return x + 0

        register(op, without, name="op")
        self.check(op, lambda n: (ramp(n, 4),))
        with self.assertLogs(
            "torch._inductor.kernel.custom_op", logging.WARNING
        ) as logs:
            compiled = compile_at(lambda x: op(x, 3), ramp(128, 4))
        (record,) = logs.records
        self.assertExpectedInline(
            record.getMessage().replace(str(op._opoverload), "autotuned.op.default"),
            """op: candidate 'without' is left out: TypeError: implementation 'without' of autotuned.op.default does not take the op's parameter 'k', which is not at its default here""",
        )
        self.assert_like_eager(lambda x: x * 3, compiled, lambda n: (ramp(n, 4),))


class TestTraining(UsesTestCase):
    def op_with_backward(self):
        """x * x, its gradient another autotuned op; both count their branches."""

        def square(x: torch.Tensor) -> torch.Tensor:
            return x * x

        def gradient(x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
            return 2 * x * grad

        def fake(x, grad):
            torch._check(x.shape == grad.shape)
            return torch.empty_like(x)

        forward = define_op(square, torch.empty_like)
        backward = define_op(gradient, fake)
        register(forward, lambda x: x.pow(2), lambda x: 1 * x * x)
        register(backward, lambda x, grad: grad * x * 2, tensor_name="grad")

        def save(ctx, inputs, output):
            ctx.save_for_backward(*inputs)

        forward.register_autograd(
            lambda ctx, grad: backward(ctx.saved_tensors[0], grad), setup_context=save
        )
        return forward

    def check_training(self, fn):
        """One compilation serves both directions at each size; both dispatch."""
        compiled = torch.compile(fn)
        x = ramp(SIZES[0], 4).requires_grad_()
        torch._dynamo.mark_dynamic(x, 0)
        with branch_for_each_range:
            _, codes = run_and_get_code(lambda: compiled(x).sum().backward())
        dispatches = ["size_branch" in code for code in codes]
        self.assertEqual(dispatches, [True, True])
        # A GPU may take a sum in another order.
        near = {"atol": 1e-4, "rtol": 1e-4} if HAS_GPU else {}
        for size in SIZES:
            x, wanted = (ramp(size, 4).div(size).requires_grad_() for _ in range(2))
            with no_recompile:
                result = compiled(x)
                result.sum().backward()
            fn(wanted).sum().backward()
            where = f"at size {size}"
            self.assertEqual(result, fn(wanted), msg=where, **near)
            self.assertEqual(x.grad, wanted.grad, msg=where, **near)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    def test_forward_and_backward(self):
        op = self.op_with_backward()
        self.check_training(lambda x: op(x.sin()) + 1)

    def test_donated_input(self):
        """What the backward pass may write to is still read behind the dispatch."""
        op = doubling_op()
        op.register_autograd(lambda ctx, grad: op(grad))

        def fn(x):
            saved = x.sigmoid()
            return op(saved * saved.sum(0))

        self.check_training(fn)

    def test_checkpoint(self):
        op = self.op_with_backward()

        def block(x):
            return op(x.sin()).cos()

        self.check_training(lambda x: checkpoint(block, x, use_reentrant=False) * 2)


class TestWaysToCompile(UsesTestCase):
    def test_automatic_dynamic(self):
        op = identity_op()
        register(op, plus(1), plus(2))
        compiled = torch.compile(op)
        with made_up_times(best_by_range) as sizes:
            self.assertEqual(compiled(ramp(128, 4)), ramp(128, 4) + 1)
            self.assertEqual(sizes, [128])
            self.assertEqual(compiled(ramp(600, 4)), ramp(600, 4) + 2)
        self.assertEqual(sizes, [128, 512, 511, 1280, 257, 2047, 2])
        self.assert_markers(compiled, {2: 1, 511: 1, 512: 2, 2047: 2, 2048: 0})

    def test_all_dynamic(self):
        op = identity_op()
        register(op, plus(1), plus(2), dim=1)
        compiled = torch.compile(lambda x: op(x) * 2, dynamic=True, fullgraph=True)
        with made_up_times(best_by_range, dim=1):
            compiled(ramp(3, 128, 4))
        with no_recompile:
            for size, marker in {2: 1, 511: 1, 512: 2, 2047: 2, 2048: 0}.items():
                x = ramp(5, size, 7)
                self.assertEqual(compiled(x), (x + marker) * 2)

    def test_a_graph_without_symbolic_sizes(self):
        op = identity_op()
        register_custom_op_autotuning(op, configs=[CustomOpConfig(plus(1))])
        graph = make_fx(lambda x: [op(x) * 2])(ramp(8, 4))
        with made_up_times(lambda size, index: 1.0 if index == 0 else 2.0):
            compiled = torch._inductor.compile(graph, [ramp(8, 4)])
        self.assertEqual(compiled(ramp(8, 4)), [(ramp(8, 4) + 1) * 2])

    def test_module(self):
        op = doubling_op()

        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(4, 4)

            def forward(self, x):
                return op(self.linear(x)).relu() + x

        model = torch.nn.Sequential(Block(), Block()).to(DEVICE)
        with torch.no_grad():
            self.check(model, lambda n: (ramp(n, 4) / n,))

    def test_reduce_overhead(self):
        op = doubling_op()
        compiled = torch.compile(lambda x: op(x + 1) * 3, mode="reduce-overhead")
        for i, size in enumerate(SIZES):
            x = ramp(size, 4)
            torch._dynamo.mark_dynamic(x, 0)
            with (
                torch._dynamo.config.patch(error_on_recompile=i > 0),
                branch_for_each_range,
            ):
                for _ in range(3):
                    self.assertEqual(compiled(x), (x + 1) * 6)
        if HAS_GPU:
            self.assertEqual(counters["inductor"]["cudagraph_skips"], 0)

    def test_max_autotune(self):
        op = identity_op()
        register(op, plus(1), plus(2))
        x = ramp(128, 4)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(op, mode="max-autotune-no-cudagraphs")
        with made_up_times(best_by_range):
            compiled(x)
        self.assert_markers(compiled, {2: 1, 511: 1, 512: 2, 2047: 2, 2048: 0})


class TestDeterministic(UsesTestCase):
    """Every run is to compute the same, so that no times may decide."""

    def compiled(self, op, **options):
        with made_up_times(best_by_range) as sizes, config.patch(options):
            compiled = compile_at(lambda x: op(x) * 2 / 2, ramp(128, 4))
        self.assertEqual(sizes, [])
        self.assertEqual(counters["inductor"]["subgraph_modules_generated"], 0)
        return compiled

    @parametrize("mode", ("deterministic", "batch_invariant"))
    def test_the_op_itself(self, mode):
        op = identity_op()
        register(op, plus(1), plus(2))
        compiled = self.compiled(op, **{mode: True})
        self.assert_markers(compiled, {2: 0, 511: 0, 512: 0, 2048: 0})

    def test_by_torch_s_own_setting(self):
        op = identity_op()
        register(op, plus(1), plus(2))
        with DeterministicGuard(True):
            compiled = self.compiled(op)
            self.assert_markers(compiled, {2: 0, 512: 0})

    def test_the_first_implementation_where_the_op_does_not_compete(self):
        op = identity_op()
        everywhere = plus(3)
        ranges = [
            CustomOpRangeConfig("x", 0, RANGES[:1], [plus(1), everywhere]),
            CustomOpRangeConfig("x", 0, RANGES[1:2], [plus(2), everywhere]),
        ]
        register_custom_op_autotuning(op, configs=ranges, include_fallback=False)
        compiled = self.compiled(op, deterministic=True)
        beyond = RANGES[1][1]
        self.assert_markers(compiled, {2: 3, 511: 3, 512: 3, beyond: 0})

    def test_no_implementation_for_all_ranges(self):
        op = identity_op()
        ranges = [
            CustomOpRangeConfig("x", 0, [RANGES[i]], [plus(1 + i)]) for i in range(2)
        ]
        register_custom_op_autotuning(op, configs=ranges, include_fallback=False)
        compiled = self.compiled(op, deterministic=True)
        self.assert_markers(compiled, {2: 0, 512: 0})


instantiate_parametrized_tests(TestDeterministic)


class TestFailures(AutotuneTestCase):
    """What a bad candidate costs: itself and exactly this warning."""

    def warning(self, bad, make=lambda n: ramp(n, 4), **options):
        """The one warning for a candidate beside a good one; the model is right."""
        op = identity_op()
        register(op, bad, lambda x: 1 * x, ranges=RANGES, name="op", **options)
        with self.assertLogs(
            "torch._inductor.kernel.custom_op", logging.WARNING
        ) as logs:
            compiled = compile_at(op, make(128))
        self.assert_like_eager(torch.clone, compiled, lambda n: (make(n),))
        (record,) = logs.records
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 1)
        return re.sub(r"\b[su]\d+", "s0", record.getMessage())

    def raising_at_run_time(self, error):
        def fails(x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 1000:
                raise error
            return x.clone()

        inner = define_op(fails, torch.empty_like)

        def bad(x):
            return inner(x)

        return bad

    def test_out_of_device_memory(self):
        error = torch.OutOfMemoryError("tried to allocate 2 GiB")
        self.assertExpectedInline(
            self.warning(self.raising_at_run_time(error)),
            """op: candidate 'bad' is left out in range [512, 2048): it does not run: out of memory: OutOfMemoryError: tried to allocate 2 GiB""",
        )

    def test_out_of_host_memory(self):
        self.assertExpectedInline(
            self.warning(self.raising_at_run_time(MemoryError())),
            """op: candidate 'bad' is left out in range [512, 2048): it does not run: out of memory: MemoryError""",
        )

    def test_out_of_memory_while_traced(self):
        def bad(x):
            raise MemoryError

        self.assertExpectedInline(
            self.warning(bad), """op: candidate 'bad' is left out: MemoryError"""
        )

    def test_does_not_generate(self):
        def bad(x):
            return x.clone()

        real = GraphLowering.codegen

        def codegen(graph):
            if "bad" in (graph.name or ""):
                raise NotImplementedError("no such instruction")
            return real(graph)

        with mock.patch.object(GraphLowering, "codegen", codegen):
            self.assertExpectedInline(
                self.warning(bad),
                """op: candidate 'bad' is left out: it does not compile: NotImplementedError: no such instruction""",
            )

    def test_does_not_load(self):
        def bad(x):
            return x.clone()

        real = SubgraphModule._load

        def load(module, graph):
            if "bad" in (graph.name or ""):
                raise RuntimeError("ptxas: too many registers")
            return real(module, graph)

        with mock.patch.object(SubgraphModule, "_load", load):
            self.assertExpectedInline(
                self.warning(bad),
                """op: candidate 'bad' is left out: it does not compile: RuntimeError: ptxas: too many registers""",
            )

    def test_code_guards_on_a_size_in_a_region_that_cannot_be_smaller(self):
        """It is one part where it falls apart, and equal to itself as it was."""
        op = identity_op()

        def bad(x):
            return x.clone()

        register(op, bad, lambda x: 1 * x, ranges=RANGES, name="op")
        with (
            guards_in_code_of("bad", lambda size: sympy.Eq(size % 8, 0)),
            self.assertLogs("torch._inductor.kernel.custom_op", logging.WARNING),
        ):
            compiled = compile_at(lambda x: op(x + 1) * 3, ramp(128, 4))
        self.assert_like_eager(lambda x: (x + 1) * 3, compiled, lambda n: (ramp(n, 4),))

    def test_code_of_a_view_of_the_size(self):
        """A stride says how many rows there are, of more than one; nobody asks."""
        op = identity_op()
        ranges = CustomOpRangeConfig("x", 1, RANGES, [plus(1), plus(2)])
        register_custom_op_autotuning(op, configs=[ranges])

        def fn(x):
            return op(x[:, : x.shape[1] // 2]) * 3

        with made_up_times(best_by_range, dim=1):
            compiled = compile_at(fn, ramp(2, 128, 2), dims=[(0, 1)])
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        with no_recompile:
            for size, marker in ((4, 1), (1023, 1), (1024, 2)):
                x = ramp(2, size, 2)
                self.assertEqual(compiled(x), (x[:, : size // 2] + marker) * 3)

    def test_code_guards_on_a_size(self):
        def bad(x):
            return x.clone()

        with guards_in_code_of("bad", lambda size: sympy.Eq(size % 8, 0)):
            self.assertExpectedInline(
                self.warning(bad),
                """op: candidate 'bad' is left out: its code guards on a size: Eq(Mod(s0, 8), 0) (x.shape[0] is s0)""",
            )

    @config.patch(nan_asserts=True)
    def test_made_up_inputs_may_lead_to_nan(self):
        op = identity_op()
        register(op, lambda x: 1 * x, ranges=RANGES)
        with self.assertNoLogs("torch._inductor.kernel.custom_op", logging.WARNING):
            compiled = compile_at(lambda x: op(x).sqrt() * 3, ramp(128, 4))
        self.assert_like_eager(
            lambda x: x.sqrt() * 3, compiled, lambda n: (ramp(n, 4),)
        )
        with self.assertRaises(AssertionError):
            compiled(-ramp(128, 4) - 1)

    def test_other_device(self):
        def bad(x):
            return x.to("meta")

        here = ramp(1).device
        self.assertEqual(
            self.warning(bad),
            f"op: candidate 'bad' is left out: output 0 has device meta, the op's has {here}",
        )

    def test_depends_on_data(self):
        def bad(x):
            return x.clone() if x.sum() > 0 else x + 0

        self.assertExpectedInline(
            self.warning(bad),
            """op: candidate 'bad' is left out: it depends on data, through aten._local_scalar_dense.default""",
        )

    def test_reads_data(self):
        def bad(x):
            return x * x.max().item()

        self.assertExpectedInline(
            self.warning(bad),
            """op: candidate 'bad' is left out: it depends on data, through aten._local_scalar_dense.default""",
        )

    def test_data_dependent_shape(self):
        def bad(x):
            return x[x[:, 0] >= 0]

        self.assertExpectedInline(
            self.warning(bad),
            """op: candidate 'bad' is left out: it depends on data, through aten.nonzero.default""",
        )

    def test_other_rank(self):
        def bad(x):
            return x.unsqueeze(0).clone()

        self.assertExpectedInline(
            self.warning(bad),
            """op: candidate 'bad' is left out: output 0 has shape [1, s0, 4], the op's has [s0, 4] (x.shape[0] is s0)""",
        )

    def test_returns_no_tensor(self):
        def bad(x):
            return x.shape[0]

        self.assertExpectedInline(
            self.warning(bad),
            """op: candidate 'bad' is left out: output 0 is s0, not a tensor (x.shape[0] is s0)""",
        )

    def test_returns_nothing(self):
        def bad(x):
            pass

        self.assertExpectedInline(
            self.warning(bad),
            """op: candidate 'bad' is left out: output 0 is None, not a tensor""",
        )

    def test_wrong_results(self):
        def bad(x):
            return x + 1

        self.assertExpectedInline(
            self.warning(bad, numerics_check="drop"),
            """op: candidate 'bad' is left out: output 0 differs from the op's by 0.29 of its largest value, allowed is 0.0001, at size 257""",
        )

    def test_nan(self):
        def bad(x):
            return x / 0 * 0

        self.assertExpectedInline(
            self.warning(bad, numerics_check="drop"),
            """op: candidate 'bad' is left out: output 0 differs from the op's by inf of its largest value, allowed is 0.0001, at size 257""",
        )

    def test_two_bad_candidates_cost_a_warning_each(self):
        def bad(x):
            raise RuntimeError("no such kernel")

        op = identity_op()
        register(op, bad, CustomOpConfig(bad), bad, ranges=RANGES, name="op")
        with self.assertLogs(
            "torch._inductor.kernel.custom_op", logging.WARNING
        ) as logs:
            compiled = compile_at(op, ramp(128, 4))
        self.assertEqual(len(logs.records), 1)
        self.assert_markers(compiled, {5: 0, 600: 0, 3000: 0})


if __name__ == "__main__":
    run_tests()
