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
    first_before_op,
    identity_op,
    made_up_times,
    no_recompile,
    plus,
    ramp,
    RANGES,
)
from test_custom_op_uses import register
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.range_autotune import measure_ranges
from torch._inductor.range_autotune.candidate_indices import FALLBACK_INDEX
from torch._inductor.range_autotune.times import Failure, Timing


def with_number(marker):
    """What returns its argument plus a marker, and three times its rows."""

    def fn(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        return x + marker, 3 * x.shape[0]

    return fn


def number_op():
    """An op that returns a number beside a tensor; its own result is its argument."""
    op = define_op(
        with_number(0), lambda x: (torch.empty_like(x), x.shape[0] + 2 * x.shape[0])
    )
    register(op, *map(with_number, (1, 2, 3)), ranges=RANGES)
    return op


MODELS = {
    "returned": lambda x, op: op(x),
    "read inside": lambda x, op: op(x)[0] * op(x)[1],
    "read on both sides": lambda x, op: [op(x)[0].relu() * op(x)[1], op(x)[1] + 1],
    "size": lambda x, op: [op(x)[0] * 2, torch.ones(op(x)[1], 2)],
    "part of a view": lambda x, op: op(x)[0].view(op(x)[1] // 3, 2, 2) - 1,
}


class TestNumbers(AutotuneTestCase):
    def check(self, model, op):
        with made_up_times(best_by_range):
            compiled = compile_at(lambda x: model(x, op), ramp(128, 4))
        for size, marker in {2: 1, 511: 1, 512: 2, 2047: 2, 2048: 3, 9000: 3}.items():
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
        self.check(MODELS[use], number_op())

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
        for size, marker in {2: 1, 512: 2, 9000: 3}.items():
            x, cache, expected = (ramp(size, 4) for _ in range(3))
            wanted = model(x, expected, with_number(marker))
            self.assertEqual(compiled(x, cache), wanted)
            self.assertEqual(cache, expected)

    @parametrize("join", (True, False))
    def test_given_to_another_op(self, join):
        def times(x: torch.Tensor, n: int) -> torch.Tensor:
            return x * n

        first, second = number_op(), define_op(times, lambda x, n: torch.empty_like(x))
        register(
            second, lambda x, n: (x + 1) * n, lambda x, n: (x + 2) * n, ranges=RANGES
        )

        def model(x, op, then):
            y, n = op(x)
            return then(y, n), n

        types = ["epilogue", "cross_subgraph"] if join else ["epilogue"]
        with (
            config.patch(custom_op_fusion_types=types),
            mock.patch.object(measure_ranges, "time_candidates", first_before_op),
        ):
            compiled = compile_at(lambda x: model(x, first, second), ramp(128, 4))
        for size in (2, 511, 512, 9000):
            x = ramp(size, 4)
            with no_recompile:
                wanted = model(x, with_number(1), lambda y, n: (y + 1) * n)
                self.assertEqual(compiled(x), wanted)

    def test_ops_in_a_row_that_fail_together(self):
        """They are decided one by one then, behind the lowering of what reads the number."""
        first, second = number_op(), identity_op()
        register(second, plus(10), ranges=RANGES)

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
        for size in (2, 511, 512, 9000):
            x = ramp(size, 4)
            with no_recompile:
                wanted = model(x, with_number(1), plus(10))
                self.assertEqual(compiled(x), wanted)


instantiate_parametrized_tests(TestNumbers)

if __name__ == "__main__":
    run_tests()
