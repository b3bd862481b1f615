# Owner(s): ["module: inductor"]
"""Autotuned ops on a GPU: CUDA graphs, kernels compiled once, other wrappers, templates."""

import contextlib
import itertools
import math
import re
import unittest
from unittest import mock

from range_autotune_testing import made_up_times, one_config_each
from torch._dynamo.utils import counters
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.lowering import user_lowerings
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune import measure
from torch._inductor.range_autotune.candidate_indices import (
    index_of_variant,
    PERSISTENT,
)
from torch._inductor.range_autotune.kernel_configs import (
    kernel_config_ranges,
    kernel_config_search,
    settled_kernels,
)
from torch._inductor.range_autotune.kernel_configs.kernel_config_names import text_of
from torch._inductor.range_autotune.modules import compiling
from torch._inductor.range_autotune.ranges import DimRange, Segment
from torch._inductor.range_autotune.times import Timing


RANGES = [(0, 64), (64, math.inf)]
SIZES = (2, 63, 64, 500)
_numbers = itertools.count()


def rows(n, columns=256):
    return torch.randn(n, columns, device=GPU_TYPE)


def norm_by_mean(x):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def norm_by_sum(x):
    total = x.square().sum(-1, keepdim=True)
    return x * torch.rsqrt(total / x.shape[-1] + 1e-6)


def norm_op(config_patches=None):
    def body(x: torch.Tensor) -> torch.Tensor:
        return norm_by_mean(x)

    op = torch.library.custom_op(f"on_gpu::norm{next(_numbers)}", mutates_args=())(body)
    op.register_fake(torch.empty_like)
    impls = [norm_by_mean, norm_by_sum]
    if config_patches:
        impls = [CustomOpConfig(f, config_patches=config_patches) for f in impls]
    register_custom_op_autotuning(
        op, configs=[CustomOpRangeConfig("x", 0, RANGES, impls)]
    )
    return op


if HAS_GPU:
    import triton
    import triton.language as tl

    @triton.jit
    def scale_kernel(out, x, factor, elements, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < elements
        tl.store(out + at, tl.load(x + at, inside) * factor, inside)

    @triton.autotune(
        [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 512}, num_warps=8)],
        key=["elements"],
    )
    @triton.jit
    def add_kernel(out, x, elements, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = at < elements
        total = tl.load(out + at, inside) + tl.load(x + at, inside)
        tl.store(out + at, total, inside)


def grid(meta):
    return (triton.cdiv(meta["elements"], meta["BLOCK"]),)


def threefold_by_one_launch(x):
    out, x = torch.empty_like(x), x.contiguous()
    blocks = (triton.cdiv(x.numel(), 256),)
    torch.library.wrap_triton(scale_kernel)[blocks](out, x, 3.0, x.numel(), BLOCK=256)
    return out


def threefold_by_two_launches(x):
    """The second one updates what the first one wrote, with one of several configs."""
    out, x = torch.zeros_like(x), x.contiguous()
    scale = torch.library.wrap_triton(scale_kernel)
    scale[grid](out, x, 2.0, elements=x.numel(), BLOCK=128)
    torch.library.wrap_triton(add_kernel)[grid](out, x, elements=x.numel())
    return out


@contextlib.contextmanager
def made_up_winners(number, configs_by_range=one_config_each):
    """Made-up times: with two winners candidate i wins in range i, else the first."""

    def ms(size, index):
        return 1.0 if index == int(number == 2 and size >= RANGES[1][0]) else 2.0

    with (
        made_up_times(ms),
        mock.patch.object(kernel_config_ranges, "configs_by_range", configs_by_range),
    ):
        yield


@unittest.skipUnless(HAS_GPU, "needs a GPU")
class TestOnGpu(TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        self.enterContext(mock.patch.dict(user_lowerings))

    def compiled(
        self, fn, winners=2, columns=256, configs_by_range=one_config_each, **options
    ):
        x = rows(20, columns)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(fn, **options)
        with made_up_winners(winners, configs_by_range):
            _, (code, *_) = run_and_get_code(compiled, x)
        return compiled, code

    def assert_like_eager(self, compiled, fn, columns=256):
        with torch._dynamo.config.patch(error_on_recompile=True):
            for size in SIZES:
                x = rows(size, columns)
                self.assertEqual(
                    compiled(x), fn(x), atol=1e-4, rtol=1e-4, msg=f"at size {size}"
                )

    @parametrize("deferring", (True, False))
    def test_dispatch_with_its_neighbours(self, deferring):
        op = norm_op()

        def fn(x):
            return torch.relu(op(x * 2)) + x

        with config.patch(defer_custom_op_choices=deferring):
            compiled, code = self.compiled(fn)
        self.assert_like_eager(compiled, fn)
        self.assertEqual(code.count("@triton.jit"), 2, msg=code)

    @unittest.skipUnless(GPU_TYPE == "cuda", "the user's streams are CUDA's")
    def test_on_a_stream_of_the_user(self):
        """The op stays on it, and nothing joins either call."""
        op, side = norm_op(), torch.cuda.Stream()

        def fn(x):
            y = x * 2
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                z = op(y + 1) * 3
            w = op(y) + 1
            torch.cuda.current_stream().wait_stream(side)
            return z + w

        compiled, _ = self.compiled(fn)
        self.assert_like_eager(compiled, fn)

    @parametrize("bias", (False, True))
    def test_sum_behind_a_product_is_the_kernels(self, bias):
        """As unregistered: the GEMM neither adds it nor copies it first."""
        op, weight, other = norm_op(), rows(256), rows(256)[0]

        def fn(x):
            y = (other if bias else x) + x @ weight
            return op(y), y.sin()

        compiled, code = self.compiled(fn)
        self.assert_like_eager(compiled, fn)
        self.assertNotIn("addmm", code)
        self.assertEqual(code.count("@triton.jit"), 3, msg=code)  # sin for one

    @parametrize("winners", (1, 2))
    def test_kernels_of_winners_are_compiled_once(self, winners):
        op = norm_op()
        sources = []

        def triton(compiler, kernel_name, source_code, *args, **kwargs):
            sources.append(source_code)
            return original(compiler, kernel_name, source_code, *args, **kwargs)

        original = AsyncCompile.triton
        with mock.patch.object(AsyncCompile, "triton", triton):
            self.compiled(lambda x: torch.relu(op(x * 2)) + x, winners)
        # One of each implementation, and two around the op called eagerly. A source may be
        # given to Inductor more than once, before it is compiled and when it is loaded.
        self.assertEqual(len(set(sources)), 4)

    def test_configs_are_the_best_over_several_sizes(self):
        op = norm_op()
        calls = []

        def spy(at):
            calls.append(len(at))
            return original(at)

        original = kernel_config_search.slowdowns
        with (
            fresh_cache(),
            mock.patch.object(kernel_config_search, "slowdowns", spy),
            # Nor are they chosen again, where the winners are emitted.
            mock.patch.object(CachingAutotuner, "bench", side_effect=AssertionError),
        ):
            compiled, _ = self.compiled(lambda x: torch.relu(op(x * 2)) + x)
            self.assert_like_eager(compiled, lambda x: torch.relu(op(x * 2)) + x)
        self.assertEqual(set(calls), {4})

    def test_kernels_of_a_branch_have_its_configs(self):
        op = norm_op({"triton.persistent_inner_reduction_limit": 4096})
        named, usuals, launched = {}, [], set()

        def fn(x):
            return torch.relu(op(x * 2)) + x

        def configs_by_range(sizes, at, usual, measure_within, worth):
            """Another one than the usual from 64 on."""
            times = at[max(at)]
            named.update({k: max({*times[k]} - {usual[k]}) for k in usual})
            usuals.extend(usual.values())
            self.assertEqual(measure_within(DimRange(100, 200), 150)[0], 150)
            return [
                Segment(DimRange(sizes.start, 64), ()),
                Segment(DimRange(64, sizes.end), tuple(sorted(named.items()))),
            ]

        def run(kernel, *args, **kwargs):
            result = original(kernel, *args, **kwargs)
            if text := kernel.inductor_meta.get("custom_op_kernel_config"):
                launched.add((text, *(text_of(x.config) for x in kernel.launchers)))
            return result

        original = CachingAutotuner.run
        with (
            fresh_cache(),
            mock.patch.object(
                settled_kernels.SettledKernel, "is_in_doubt", lambda _: True
            ),
            mock.patch.object(CachingAutotuner, "bench", side_effect=AssertionError),
        ):
            compiled, code = self.compiled(fn, 1, 4096, configs_by_range)
            with mock.patch.object(CachingAutotuner, "run", run):
                self.assert_like_eager(compiled, fn, columns=4096)
        (other,) = named.values()
        # What a source names is what is launched.
        self.assertEqual(launched, {(text, text) for text in (other, *usuals)})
        self.assertEqual(code.count("@triton.jit"), 2, msg=code)

    @parametrize("everywhere", (False, True))
    def test_kernels_keep_long_rows_where_that_is_faster(self, everywhere):
        op = norm_op()

        def fn(x):
            return torch.relu(op(x * 2)) + x

        kept = index_of_variant(0, PERSISTENT)
        competing = set()

        def ms(size, index):
            competing.add(index)
            winner = kept if everywhere or size >= RANGES[1][0] else 0
            return 1.0 if index == winner else 2.0

        x = rows(20, 4096)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(fn)
        with (
            made_up_times(ms),
            mock.patch.object(
                kernel_config_ranges, "configs_by_range", one_config_each
            ),
        ):
            _, (code, *_) = run_and_get_code(compiled, x)
        self.assertIn(kept, competing)
        for size in SIZES:
            x = rows(size, 4096)
            self.assertEqual(compiled(x), fn(x), atol=1e-4, rtol=1e-4)
        looping = code.count("@triton_heuristics.reduction(")
        keeping = code.count("@triton_heuristics.persistent_reduction(")
        self.assertEqual((looping, keeping), (int(not everywhere), 1), msg=code)
        self.assertEqual(code.count("@triton.jit"), looping + keeping, msg=code)
        self.assertEqual(code.count("'custom_op_other_warps'"), 1, msg=code)

    @config.patch("triton.multi_kernel", 1)
    def test_kernels_of_others_have_the_warps_that_they_had(self):
        norm_op()
        _, (code, *_) = run_and_get_code(torch.compile(norm_by_mean), rows(20, 4096))
        self.assertIn("@triton_heuristics.persistent_reduction(", code)
        self.assertNotIn("custom_op_other_warps", code)

    @parametrize("columns", (256, 4096))
    def test_two_dispatches_in_cpp(self, columns):
        op = norm_op({"triton.persistent_inner_reduction_limit": 4096})

        def fn(x):
            return op(x).sum(0) + op(x.flip(0)).sum(0)

        with config.patch(cpp_wrapper=True):
            compiled, code = self.compiled(fn, columns=columns)
        self.assert_like_eager(compiled, fn, columns)
        # There is one config for short rows.
        self.assertEqual("custom_op_kernel_config" in code, columns == 4096)

    def test_cuda_graphs(self):
        op = norm_op()

        def fn(x):
            return torch.relu(op(x * 2)) + x

        compiled, _ = self.compiled(fn, mode="reduce-overhead")
        for _ in range(3):
            self.assert_like_eager(compiled, fn)
        self.assertEqual(counters["inductor"]["cudagraph_skips"], 0)

    def test_replays_are_on_inputs_as_they_were(self):
        x = rows(64)
        kept = x.clone()
        times = measure.time_candidates(
            {0: lambda: x.mul_(2.0)},
            x.device,
            with_cudagraphs=True,
            restore=lambda: x.copy_(kept),
        )
        self.assertIsInstance(times[0], Timing)
        self.assertTrue(x.isfinite().all())

    def test_winner_by_max_autotune_takes_its_epilogue(self):
        def body(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            return a @ b

        op = torch.library.custom_op(f"on_gpu::mm{next(_numbers)}", mutates_args=())(
            body
        )
        op.register_fake(lambda a, b: a.new_empty(a.shape[0], b.shape[1]))
        patches = {
            "max_autotune": True,
            "max_autotune_gemm_backends": "TRITON",
        }
        impl = CustomOpConfig(lambda a, b: a @ b, config_patches=patches)
        register_custom_op_autotuning(op, configs=[impl])

        def fn(a, b):
            return torch.relu(op(a, b) + 1)

        a, b = rows(512, 256).half(), rows(256, 512).half()
        # Else times decide whether it is fused.
        fusing = {"benchmark_epilogue_fusion": False}
        with config.patch(
            {"test_configs.force_custom_op_decomposition": True, **fusing}
        ):
            result, (code, *_) = run_and_get_code(torch.compile(fn), a, b)
        self.assertEqual(result, fn(a, b), atol=1e-1, rtol=1e-2)
        self.assertEqual(code.count("@triton.jit"), 1, msg=code)

    @config.patch("triton.multi_kernel", 1)
    def test_multi_kernels_of_branches_and_of_the_rest(self):
        op = norm_op()

        def fn(x):
            y = torch.relu(op(x * 2)) + x
            return y / y.sum(-1, keepdim=True).abs().clamp(min=1)

        compiled, code = self.compiled(fn)
        self.assert_like_eager(compiled, fn)
        names = re.findall(r"^(multi_kernel_\d+) =", code, re.MULTILINE)
        self.assertGreater(len(names), 1, msg=code)
        self.assertEqual(len(names), len(set(names)), msg=code)

    @parametrize("winners", (1, 2))
    @parametrize("deferring", (True, False))
    def test_kernels_have_the_form_that_config_asks_for(self, winners, deferring):
        looped = "@triton_heuristics.reduction("
        kept = "@triton_heuristics.persistent_reduction("
        op = norm_op({"triton.persistent_reductions": False})
        measured = []
        generate = compiling.generate_module

        def noting(*args):
            module = generate(*args)
            if "norm_by" in args[3]:
                measured.append(module.source)
            return module

        with (
            mock.patch.object(compiling, "generate_module", noting),
            config.patch(defer_custom_op_choices=deferring),
        ):
            compiled, code = self.compiled(lambda x: torch.relu(op(x)), winners)
        self.assertNotIn(kept, code)
        self.assertEqual(code.count(looped), winners, msg=code)
        self.assertEqual([kept in source for source in measured], [False, False])
        self.assertEqual([looped in source for source in measured], [True, True])
        self.assert_like_eager(compiled, lambda x: torch.relu(norm_by_mean(x)))

    @parametrize("winners", (1, 2))
    @parametrize("cpp_wrapper", (False, True))
    def test_kernels_that_implementations_launch(self, winners, cpp_wrapper):
        def threefold(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        name = f"on_gpu::threefold{next(_numbers)}"
        op = torch.library.custom_op(name, threefold, mutates_args=())
        op.register_fake(torch.empty_like)
        impls = [threefold_by_one_launch, threefold_by_two_launches]
        ranges = CustomOpRangeConfig("x", 0, RANGES, impls)
        register_custom_op_autotuning(op, configs=[ranges])

        def fn(x):
            y = op(x * 2).relu()
            return op(y + x) - 1

        with config.patch(cpp_wrapper=cpp_wrapper):
            compiled, code = self.compiled(fn, winners)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        self.assertEqual("def scale_kernel(" in code, True, msg=code)
        self.assertEqual("def add_kernel(" in code, winners == 2, msg=code)
        self.assert_like_eager(compiled, fn)

    def test_memory_is_given_back(self):
        op = norm_op()
        x = rows(20)
        torch._dynamo.mark_dynamic(x, 0)
        before = torch.cuda.memory_allocated()
        torch.compile(lambda x: op(x) + 1)(x)
        self.assertEqual(torch.cuda.memory_allocated(), before)

    def test_freely_measured(self):
        op = norm_op()
        x = rows(20)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(lambda x: torch.relu(op(x)))
        compiled(x)
        self.assert_like_eager(compiled, lambda x: torch.relu(norm_by_mean(x)))


instantiate_parametrized_tests(TestOnGpu)

if __name__ == "__main__":
    run_tests()
