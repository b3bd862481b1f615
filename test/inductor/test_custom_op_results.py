# Owner(s): ["module: inductor"]
"""
Autotuned ops whose results are not all tensors: what is None or an integer that follows from
sizes is so whichever implementation runs.
"""

from __future__ import annotations

from unittest import mock

from test_custom_op_autotune import (
    AutotuneTestCase,
    best_by_range,
    compile_at,
    define_op,
    DEVICE,
    first_before_op,
    identity_op,
    made_up_times,
    no_recompile,
    plus,
    ramp,
    RANGES,
)
from test_custom_op_uses import register
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests
from torch._inductor.utils import fresh_cache
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.range_autotune.candidate_indices import FALLBACK_INDEX
from torch._inductor.range_autotune.measuring import measure_ranges
from torch._inductor.range_autotune.times import Failure, Timing


# Which candidate runs at which size; from 2048 on the op itself, which has none.
MARKERS = {2: 1, 511: 1, 512: 2, 2047: 2, 2048: 0, 9000: 0}
WITHOUT_OP = {**MARKERS, 2048: 3, 9000: 3}


def with_number(marker):
    """What returns its argument plus a marker, and three times its rows."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + marker, 3 * x.shape[0]

    return fn


def number_op(ranges=RANGES[:2]):
    """An op that returns a number beside a tensor; its own result is its argument."""
    op = define_op(
        with_number(0), lambda x: (torch.empty_like(x), x.shape[0] + 2 * x.shape[0])
    )
    register(op, *map(with_number, (1, 2, 3)[: len(ranges)]), ranges=ranges)
    return op


def op_first(size, index):
    """The op itself is faster than all that ``best_by_range`` knows."""
    return 0.01 if index == FALLBACK_INDEX else best_by_range(size, index)


MODELS = {
    "returned": lambda x, op: op(x),
    "read inside": lambda x, op: op(x)[0] * op(x)[1],
    "read on both sides": lambda x, op: [op(x)[0].relu() * op(x)[1], op(x)[1] + 1],
    "size": lambda x, op: [op(x)[0] * 2, torch.ones(op(x)[1], 2)],
    "part of a view": lambda x, op: op(x)[0].view(op(x)[1] // 3, 2, 2) - 1,
}


class TestNumbers(AutotuneTestCase):
    def check(self, model, op, markers=MARKERS):
        with made_up_times(best_by_range):
            compiled = compile_at(lambda x: model(x, op), ramp(128, 4))
        for size, marker in markers.items():
            x = ramp(size, 4)
            with no_recompile:
                self.assertEqual(compiled(x), model(x, with_number(marker)))

    @parametrize("use", [*MODELS])
    def test_of_sizes(self, use):
        self.check(MODELS[use], number_op())

    @parametrize("use", ["returned", "read on both sides"])
    @config.patch(defer_custom_op_choices=False)
    def test_choice_made_at_once(self, use):
        self.check(MODELS[use], number_op())

    @parametrize("use", ["returned", "read on both sides"])
    @config.patch(cpp_wrapper=True)
    def test_cpp_wrapper(self, use):
        """There the op itself cannot be called, with a registration or without."""
        self.check(MODELS[use], number_op(RANGES), WITHOUT_OP)

    @config.patch(cpp_wrapper=True)
    def test_cpp_wrapper_where_the_op_is_the_fastest(self):
        """It does not compete: what calls it does not compile."""
        op = number_op(RANGES)
        with made_up_times(op_first):
            compiled = compile_at(op, ramp(128, 4))
        for size, marker in WITHOUT_OP.items():
            x = ramp(size, 4)
            with no_recompile:
                self.assertEqual(compiled(x), with_number(marker)(x))

    def test_ahead_of_time(self):
        op = number_op(RANGES)

        class Model(torch.nn.Module):
            def forward(self, x):
                y, n = op(x)
                return y * n, torch.ones(n)

        size = torch.export.Dim("size", min=2, max=100_000)
        exported = torch.export.export(
            Model(), (ramp(128, 4),), dynamic_shapes=({0: size},)
        )
        with made_up_times(best_by_range):
            package = torch._inductor.aoti_compile_and_package(exported)
        loaded = torch._inductor.aoti_load_package(package)
        for size, marker in WITHOUT_OP.items():
            x = ramp(size, 4)
            y, n = with_number(marker)(x)
            self.assertEqual(loaded(x), (y * n, torch.ones(n, device=DEVICE)))

    def test_code_from_the_cache(self):
        """The number follows from the size there, too."""
        op = number_op()
        with fresh_cache():
            self.check(MODELS["read on both sides"], op)
            torch._dynamo.reset()
            self.check(MODELS["read on both sides"], op)
        self.assertEqual(counters["inductor"]["fxgraph_cache_hit"], 1)

    def test_training(self):
        """The op is differentiable in its tensor, and its backward pass reads the number."""
        op = number_op()

        def save(ctx, inputs, output):
            ctx.n = output[1]

        op.register_autograd(lambda ctx, grad, _: grad * ctx.n, setup_context=save)

        def fn(x):
            y, n = op(x.sin())
            return y * n

        with made_up_times(best_by_range):
            compiled = compile_at(fn, ramp(128, 4).requires_grad_())
        for size, marker in MARKERS.items():
            x, wanted = (ramp(size, 4).div(size).requires_grad_() for _ in range(2))
            with no_recompile:
                result = compiled(x)
                result.sum().backward()
            fn(wanted).sum().backward()
            self.assertEqual(result, fn(wanted) + marker * 3 * size)
            self.assertEqual(x.grad, wanted.grad)

    def test_written_behind(self):
        """A number among the region's outputs, in front of one that is written to an input."""
        op = number_op()

        def model(x, cache, op):
            y, n = op(x)
            cache.copy_(y * n)
            return n, y + 1

        with made_up_times(best_by_range):
            compiled = compile_at(
                lambda x, cache: model(x, cache, op),
                *(ramp(128, 4), ramp(128, 4)),
                dims=((0, 0), (1, 0)),
            )
        for size, marker in MARKERS.items():
            x, cache, expected = (ramp(size, 4) for _ in range(3))
            wanted = model(x, expected, with_number(marker))
            self.assertEqual(compiled(x, cache), wanted)
            self.assertEqual(cache, expected)

    @parametrize("join", (True, False))
    def test_given_to_another_op(self, join):
        def times(x: torch.Tensor, n: int) -> torch.Tensor:
            return x * n

        first, second = number_op(), define_op(times, lambda x, n: torch.empty_like(x))
        register(second, lambda x, n: (x + 1) * n, lambda x, n: (x + 2) * n)

        def model(x, op, then):
            y, n = op(x)
            return then(y, n), n

        types = ["epilogue", "cross_subgraph"] if join else ["epilogue"]
        with (
            config.patch(custom_op_fusion_types=types),
            mock.patch.object(measure_ranges, "time_candidates", first_before_op),
        ):
            compiled = compile_at(lambda x: model(x, first, second), ramp(128, 4))
        for size in (2, 511, 512, 2047):
            x = ramp(size, 4)
            with no_recompile:
                wanted = model(x, with_number(1), lambda y, n: (y + 1) * n)
                self.assertEqual(compiled(x), wanted)

    def test_ops_in_a_row_that_fail_together(self):
        """They are decided one by one then, behind the lowering of what reads the number."""
        first, second = number_op(), identity_op()
        register(second, plus(10))

        def model(x, op, then):
            y, n = op(x)
            return then(y), n

        def times(runners, *_):
            if len(runners) <= 5:
                return first_before_op(runners)
            failed = dict.fromkeys(runners, Failure("it crashes", everywhere=True))
            return {**failed, FALLBACK_INDEX: Timing(1.0)}

        with mock.patch.object(measure_ranges, "time_candidates", times):
            compiled = compile_at(lambda x: model(x, first, second), ramp(128, 4))
        for size in (2, 511, 512, 2047):
            x = ramp(size, 4)
            with no_recompile:
                wanted = model(x, with_number(1), plus(10))
                self.assertEqual(compiled(x), wanted)


instantiate_parametrized_tests(TestNumbers)


class TestNone(AutotuneTestCase):
    def masked_op(self):
        """Two gradients, the second if it is asked for; an implementation for each range."""
        op = torch.library.custom_op(
            "autotuned_results::masked",
            lambda x, both: (x + 0, x * 2 if both else None),
            mutates_args=(),
            schema="(Tensor x, bool both) -> (Tensor, Tensor?)",
        )
        op.register_fake(
            lambda x, both: (torch.empty_like(x), torch.empty_like(x) if both else None)
        )

        def marked(marker):
            return lambda x, both: (x + marker, x * 2 + marker if both else None)

        register(op, *map(marked, (1, 2)))
        return op, marked

    @parametrize("both", (True, False))
    def test_result_that_is_asked_for(self, both):
        op, marked = self.masked_op()
        with made_up_times(best_by_range):
            compiled = compile_at(lambda x: op(x.abs(), both), ramp(128, 4))
        for size, marker in MARKERS.items():
            x = ramp(size, 4)
            with no_recompile:
                self.assertEqual(compiled(x), marked(marker)(x, both))

    @config.patch(cpp_wrapper=True)
    def test_cpp_wrapper_where_the_op_is_the_fastest(self):
        """It does not compete: C++ cannot call it."""
        op, marked = self.masked_op()
        with made_up_times(op_first):
            compiled = compile_at(lambda x: op(x, False)[0], ramp(128, 4))
        for size, marker in MARKERS.items():
            if marker:
                x = ramp(size, 4)
                self.assertEqual(compiled(x), marked(marker)(x, False)[0])

    @config.patch(cpp_wrapper=True)
    def test_cpp_wrapper_where_an_op_returns_a_list_beside_others(self):
        """The op does not compete: C++ cannot call it."""

        def marked(marker):
            return lambda x: ([x + marker, x * 2], x - marker)

        op = torch.library.custom_op(
            "autotuned_results::parts",
            marked(0),
            mutates_args=(),
            schema="(Tensor x) -> (Tensor[], Tensor)",
        )
        op.register_fake(
            lambda x: ([torch.empty_like(x) for _ in range(2)], x.new_empty(x.shape))
        )
        register(op, *map(marked, (1, 2, 3)), ranges=RANGES)
        with made_up_times(op_first):
            compiled = compile_at(lambda x: op(x.abs()), ramp(128, 4))
        for size, marker in WITHOUT_OP.items():
            x = ramp(size, 4)
            with no_recompile:
                self.assertEqual(compiled(x), marked(marker)(x))

    def test_backward_of_a_norm_whose_weight_is_frozen(self):
        op = torch.ops.aten.native_layer_norm_backward.default

        def marked(marker):
            def impl(
                grad_out, x, normalized_shape, mean, rstd, weight, bias, output_mask
            ):
                grad, normal = grad_out * weight, (x - mean) * rstd
                by_normal = (grad * normal).mean(-1, keepdim=True) * normal
                grad = rstd * (grad - grad.mean(-1, keepdim=True) - by_normal)
                return grad + marker, None, None

            return impl

        register(op, *map(marked, (1, 2)), tensor_name="input")
        weight = torch.arange(4.0, device=DEVICE)

        def fn(x):
            return torch.nn.functional.layer_norm(x, (4,), weight)

        def step(fn, x):
            (fn(x) * x.detach()).sum().backward()
            return x.grad

        def make(size):
            return ramp(size, 4).sin().requires_grad_()

        compiled = torch.compile(fn)
        x = make(128)
        torch._dynamo.mark_dynamic(x, 0)
        with made_up_times(best_by_range):
            step(compiled, x)
        for size, marker in MARKERS.items():
            with no_recompile:
                grad = step(compiled, make(size))
            self.assertEqual(grad, step(fn, make(size)) + marker)


instantiate_parametrized_tests(TestNone)


if __name__ == "__main__":
    run_tests()
