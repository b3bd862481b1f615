# Owner(s): ["module: inductor"]
"""
Autotuned custom ops, compiled and run.

Implementations here return different values on purpose, so that a result tells which one
ran, and times are made up where a test needs a certain winner.
"""

from __future__ import annotations

import itertools
import logging
import math
import re
import unittest
from typing import Any, TYPE_CHECKING
from unittest import mock

import sympy
from range_autotune_testing import guards_in_code_of, made_up_times
from torch._dynamo.utils import counters
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch.testing import FileCheck
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    _create_fallback_choice,
    autotune_custom_op,
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune import measure
from torch._inductor.range_autotune.candidate_indices import PLAIN_INDEX
from torch._inductor.range_autotune.measuring import calls, measure_ranges
from torch._inductor.range_autotune.times import Failure, failure_of, Timing


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DEVICE = GPU_TYPE if HAS_GPU else "cpu"
RANGES = [(0, 512), (512, 2048), (2048, math.inf)]
# Both sides of each boundary.
SIZES = (128, 2, 511, 512, 2047, 2048, 3000)

_numbers = itertools.count()


def define_op(fn: Callable[..., Any], fake: Callable[..., Any]) -> Any:
    op = torch.library.custom_op(f"autotuned::op{next(_numbers)}", mutates_args=())(fn)
    op.register_fake(fake)
    return op


def plus(marker: int) -> Callable[[Tensor], Tensor]:
    """An implementation that can be told from others by its result."""

    def impl(x: Tensor) -> Tensor:
        return x + marker

    impl.__name__ = f"plus_{marker}"
    return impl


def identity_op() -> Any:
    """An op whose own result is its argument plus 0."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    return define_op(fn, torch.empty_like)


def ramp(*shape: int) -> Tensor:
    return torch.arange(math.prod(shape), dtype=torch.float32, device=DEVICE).view(
        shape
    )


def first_before_op(runners: Any, *_: Any) -> Any:
    """Made-up times of those that run: candidate 0 is the fastest, the op itself is next."""
    times: dict[int, Any] = {}
    for index, run in runners.items():
        try:
            run()
            times[index] = Timing({0: 1.0, -1: 1.5}.get(index, 2.0))
        except Exception as e:
            times[index] = failure_of(e)
    return times


def best_by_range(size: int, index: int) -> float:
    """Candidate i is the best in range i, the op itself nowhere."""
    place = next(i for i, (start, end) in enumerate(RANGES) if start <= size < end)
    return 1.0 if index == place else 2.0


def compile_at(fn: Callable[..., Any], *args: Any, dims: Any = ((0, 0),)) -> Any:
    """Compiled for all sizes of the given (argument, dimension) pairs."""
    for index, dim in dims:
        torch._dynamo.mark_dynamic(args[index], dim)
    compiled = torch.compile(fn)
    compiled(*args)
    return compiled


no_recompile = torch._dynamo.config.patch(error_on_recompile=True)


class AutotuneTestCase(TestCase):
    def setUp(self) -> None:
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        registered = dict(user_lowerings)
        self.addCleanup(
            lambda: (user_lowerings.clear(), user_lowerings.update(registered))
        )

    def assert_markers(
        self, compiled: Any, markers: dict[int, int], make: Any = lambda n: ramp(n, 4)
    ) -> None:
        """Each size runs the implementation with its marker, without compiling again."""
        with no_recompile:
            for size, marker in markers.items():
                x = make(size)
                self.assertEqual(compiled(x), x + marker, msg=f"at size {size}")

    def assert_adds(self, compiled: Any, by_size: dict[int, int]) -> None:
        """The same of a model that multiplies the op's result by three."""
        with no_recompile:
            for size, number in by_size.items():
                x = ramp(size, 4)
                self.assertEqual(compiled(x), 3 * (x + number), msg=f"at {size}")

    def assert_like_eager(self, fn: Any, compiled: Any, make: Any) -> None:
        for size in SIZES:
            args = make(size)
            expected = fn(*args)
            with no_recompile:
                self.assertEqual(compiled(*args), expected, msg=f"at size {size}")


class TestRanges(AutotuneTestCase):
    def test_each_size_runs_the_winner_of_its_range(self):
        op = identity_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [plus(1), plus(2), plus(3)])],
            name="dynamic_op_autotuned",
        )
        with (
            made_up_times(best_by_range) as sizes,
            self.assertLogs("torch._inductor.kernel.custom_op", logging.INFO) as logs,
        ):
            compiled = compile_at(op, ramp(128, 4))
        # Those near the model's own size come first.
        self.assertEqual(sizes, [257, 511, 512, 1280, 2047, 2048, 4096, 2])
        self.assert_markers(
            compiled, {2: 1, 511: 1, 512: 2, 2047: 2, 2048: 3, 100_000: 3}
        )
        self.assertExpectedInline(
            "\n".join(record.getMessage() for record in logs.records),
            """\
=== Range-based Autotuning for dynamic_op_autotuned ===
Dispatch dimension: x[0]
Range [0, 512): Selected implementation 'plus_1' after benchmarking 5 candidates
Range [512, 2048): Selected implementation 'plus_2' after benchmarking 5 candidates
Range [2048, inf): Selected implementation 'plus_3' after benchmarking 5 candidates
=== Range-based Autotuning Summary for dynamic_op_autotuned ===
  Range [0, 512): plus_1
  Range [512, 2048): plus_2
  Range [2048, inf): plus_3
=== Different ranges selected different implementations ===
Generating torch.cond dispatch for x[0] with 3 ranges
Successfully generated torch.cond dispatch tree with 2 conditional branches""",
        )

    @parametrize("form", ("fields", "range_config", "split_points"))
    def test_forms_of_registration(self, form):
        op = identity_op()
        if form == "fields":
            arguments = {
                "configs": [
                    CustomOpConfig(
                        plus(i), tensor_name="x", dim_index=0, dim_range=sizes
                    )
                    for i, sizes in enumerate(RANGES, 1)
                ]
            }
        elif form == "range_config":
            configs = [
                CustomOpRangeConfig("x", -2, RANGES, [plus(1), plus(2), plus(3)])
            ]
            arguments = {"configs": configs}
        else:
            arguments = {
                "configs": [CustomOpConfig(plus(i)) for i in (1, 2, 3)],
                "dispatch_on": {"tensor_name": "x", "dim": 0},
                "split_points": [511, 2047],
            }
        register_custom_op_autotuning(op, **arguments)
        with made_up_times(best_by_range):
            compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {2: 1, 511: 1, 512: 2, 2047: 2, 2048: 3})

    def test_one_winner_is_inlined_and_fused(self):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [plus(1), plus(2)])]
        )

        def fn(x):
            return torch.sigmoid(op(x * 2)) * 3

        x = ramp(128, 4)
        torch._dynamo.mark_dynamic(x, 0)
        with made_up_times(lambda size, index: 1.0 if index == 1 else 2.0):
            result, codes = run_and_get_code(torch.compile(fn), x)
        self.assertEqual(result, torch.sigmoid(x * 2 + 2) * 3)
        kernels = "async_compile.triton(" if HAS_GPU else "async_compile.cpp_pybinding("
        FileCheck().check_count(kernels, 1, exactly=True).check_not("if s").run(
            codes[-1]
        )

    def test_tree_is_balanced(self):
        op = identity_op()
        ranges = [(i * 10, i * 10 + 10) for i in range(8)]
        impls = [plus(i) for i in range(1, 9)]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, ranges, impls)]
        )
        x = ramp(15, 4)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=79)
        compiled = torch.compile(op)
        with made_up_times(lambda size, index: 1.0 if index == size // 10 else 2.0):
            _, codes = run_and_get_code(compiled, x)
        self.assert_markers(
            compiled,
            {n: n // 10 + 1 for i in range(8) for n in (max(10 * i, 2), 10 * i + 9)},
        )
        bounds = [
            line.split("<")[1].strip(" :")
            for line in codes[-1].splitlines()
            if line.strip().startswith("if s")
        ]
        self.assertEqual(sorted(bounds, key=int), [str(10 * i) for i in range(1, 8)])
        self.assertIn("40", bounds[-1:] + bounds[:1])

    def test_gaps_run_the_op_itself(self):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, [(10, 20), (30, 40)], [plus(1)])]
        )
        with (
            made_up_times(lambda size, index: 1.0 if index == 0 else 2.0),
            self.assertLogs("torch._inductor.kernel.custom_op", logging.INFO) as logs,
        ):
            compiled = compile_at(op, ramp(15, 4))
        gaps = "  In no range, where the op itself runs: [2, 10), [20, 30), [40, inf)"
        self.assertIn(gaps, [record.getMessage() for record in logs.records])
        self.assert_markers(
            compiled, {2: 0, 9: 0, 10: 1, 19: 1, 20: 0, 29: 0, 30: 1, 39: 1, 40: 0}
        )

    def test_static_size_measures_its_range_only(self):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [plus(1), plus(2)])]
        )
        with made_up_times(best_by_range) as sizes:
            result, codes = run_and_get_code(
                torch.compile(op, dynamic=False), ramp(600, 4)
            )
        self.assertEqual(result, ramp(600, 4) + 2)
        self.assertEqual(sizes, [600])
        FileCheck().check_not("size_branch").run(codes[-1])

    def test_bounds_prune_ranges(self):
        op = identity_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [plus(1), plus(2), plus(3)])],
        )
        x = ramp(600, 4)
        torch._dynamo.mark_dynamic(x, 0, min=500, max=1000)
        with made_up_times(best_by_range) as sizes:
            compiled = torch.compile(op)
            compiled(x)
        self.assertEqual(sorted(sizes), [500, 506, 511, 512, 756, 1000])
        self.assert_markers(compiled, {500: 1, 511: 1, 512: 2, 1000: 2})

    def test_representative_sizes_of_the_user(self):
        op = identity_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [plus(1)])],
            representative_sizes=[16, 5000, 64],
        )
        with made_up_times(lambda size, index: 1.0) as sizes:
            compile_at(op, ramp(128, 4))
        self.assertEqual(sorted(sizes), [16, 64, 512, 1280, 2047, 5000])

    def test_model_beyond_twice_the_start_of_a_range_without_an_end(self):
        op = identity_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, [(8, math.inf)], [plus(1), plus(2)])],
        )
        faster_from_100 = lambda size, index: 1.0 if index == (size >= 100) else 2.0  # noqa: E731
        with made_up_times(faster_from_100) as sizes:
            compiled = compile_at(op, ramp(900, 4))
        self.assertLessEqual({8, 16, 900}, set(sizes))
        self.assert_markers(compiled, {8: 1, 16: 1, 500: 2, 900: 2, 5000: 2})

    @parametrize(
        "named", ({"range_upper_bound": 40}, {"representative_sizes": [10, 40]})
    )
    def test_the_user_names_sizes_of_a_range_without_an_end(self, named):
        op = identity_op()
        sizes_to_measure_at = named.get("representative_sizes")
        dispatch_on = {"tensor_name": "x", "dim": 0, **named}
        dispatch_on.pop("representative_sizes", None)
        register_custom_op_autotuning(
            op,
            configs=[CustomOpConfig(plus(1))],
            dispatch_on=dispatch_on,
            split_points=[9],
            representative_sizes=sizes_to_measure_at,
        )
        with made_up_times(lambda size, index: 1.0) as sizes:
            compile_at(op, ramp(900, 4))
        self.assertEqual(max(sizes), 40)

    def test_dispatch_reads_the_named_tensor(self):
        def fn(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return x * weight

        op = define_op(fn, lambda weight, x: torch.empty_like(x))
        impls = [lambda weight, x, k=k: x * weight + k for k in (1, 2, 3)]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 1, RANGES, impls)]
        )
        weight = torch.ones(4, device=DEVICE)
        with made_up_times(best_by_range, dim=1):
            compiled = compile_at(op, weight, ramp(2, 128, 4), dims=[(1, 1)])
        self.assert_markers(
            lambda x: compiled(weight, x),
            {2: 1, 511: 1, 512: 2, 2047: 2, 2048: 3},
            make=lambda n: ramp(2, n, 4),
        )

    def test_dimension_out_of_range(self):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 5, RANGES, [plus(1)])]
        )
        message = (
            r"Dimension index 5 out of range for tensor 'x' with shape \[2, 128, 512\]"
        )
        with self.assertRaisesRegex(Exception, message):
            torch.compile(op)(ramp(2, 128, 512))

    def test_one_trace_and_one_compilation_a_candidate(self):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [plus(1), plus(2)])]
        )
        with made_up_times(best_by_range):
            compile_at(op, ramp(128, 4))
        # Two implementations, the op itself, and its plain lowering.
        self.assertEqual(counters["inductor"]["custom_op_candidate_traces"], 4)
        self.assertEqual(counters["inductor"]["subgraph_modules_generated"], 4)

    @parametrize("everywhere", (False, True))
    def test_plain_lowering_competes_where_nobody_does_the_same(self, everywhere):
        op = identity_op()
        same_from = 0 if everywhere else 512
        configs = [
            CustomOpConfig(impl, tensor_name="x", dim_index=0, dim_range=sizes)
            for impl, sizes in (
                (plus(1), (0, 512)),
                (torch.clone, (same_from, 512)),
                (torch.clone, (512, 2048)),
            )
            if sizes[0] < sizes[1]
        ]
        register_custom_op_autotuning(op, configs=configs)
        competing = {}

        def ms(size, index):
            competing.setdefault(size < 512, set()).add(index)
            return 1.0

        with made_up_times(ms):
            compile_at(op, ramp(128, 4))
        self.assertEqual(PLAIN_INDEX in competing[True], not everywhere)
        self.assertEqual(PLAIN_INDEX in competing[False], not everywhere)

    def test_call_sites_choose_for_themselves(self):
        op = identity_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [plus(1), plus(2), plus(3)])],
        )

        def fn(x, y):
            return op(x), op(y)

        x, y = ramp(128, 4), ramp(700, 8)
        with made_up_times(best_by_range):
            compiled = compile_at(fn, x, y, dims=[(0, 0), (1, 0)])
        with no_recompile:
            for (m, first), (n, second) in itertools.product(
                {5: 1, 512: 2, 2048: 3}.items(), repeat=2
            ):
                x, y = ramp(m, 4), ramp(n, 8)
                self.assertEqual(compiled(x, y), (x + first, y + second))

    def test_each_branch_is_lowered_under_its_own_config(self):
        op = identity_op()
        seen = {}

        def spy(marker):
            def impl(x):
                return x + marker

            return impl

        register_custom_op_autotuning(
            op,
            configs=[
                CustomOpRangeConfig(
                    "x",
                    0,
                    RANGES[:2],
                    [
                        CustomOpConfig(
                            spy(1), config_patches={"realize_reads_threshold": 7}
                        ),
                        CustomOpConfig(
                            spy(2), config_patches={"realize_reads_threshold": 9}
                        ),
                    ],
                )
            ],
        )
        real_run = torch._inductor.graph.SubgraphLowering.run

        def run(graph, *args):
            seen[graph.name] = config.realize_reads_threshold
            return real_run(graph, *args)

        with (
            made_up_times(best_by_range),
            mock.patch.object(torch._inductor.graph.SubgraphLowering, "run", run),
        ):
            compile_at(op, ramp(128, 4))
        self.assertEqual({7, 9} & set(seen.values()), {7, 9})


instantiate_parametrized_tests(TestRanges)


class TestSizes(AutotuneTestCase):
    """Benchmark inputs follow the model's own expressions; results are right."""

    def check(self, fn, make, dims=((0, 0),)):
        """Compiles under real times with a branch for each range."""
        with config.patch("test_configs.force_no_impl_grouping", True):
            compiled = compile_at(fn, *make(128), dims=dims)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        self.assert_like_eager(fn, compiled, make)

    def doubling_op(self, dim=0):
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        op = define_op(fn, torch.empty_like)
        impls = [lambda x: x + x, lambda x: (2 * x).contiguous()]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", dim, RANGES, impls)]
        )
        return op

    def test_shared_size(self):
        def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x + y

        def fake(x, y):
            torch._check(x.shape == y.shape)
            return torch.empty_like(x)

        op = define_op(fn, fake)
        register_custom_op_autotuning(
            op,
            configs=[
                CustomOpRangeConfig(
                    "x", 1, RANGES, [lambda x, y: x + y, lambda x, y: y + x]
                )
            ],
        )
        self.check(
            lambda x, y: op(x, y).relu(),
            lambda n: (ramp(2, n, 4), ramp(2, n, 4)),
            dims=((0, 1), (1, 1)),
        )

    def test_expressions(self):
        op = self.doubling_op()
        self.check(lambda x: op(torch.cat([x, x])) + 1, lambda n: (ramp(n, 4),))

    def test_sum_of_sizes(self):
        op = self.doubling_op()
        padded = torch.nn.functional.pad
        self.check(lambda x: op(padded(x, (0, 0, 0, 5))) + 1, lambda n: (ramp(n, 4),))

    def test_views(self):
        op = self.doubling_op()

        def fn(x):
            transposed = op(x.transpose(1, 2))
            strided = op(x[:, :, ::2])
            expanded = op(x[:, :1].expand(-1, 3, -1))
            return transposed, strided, expanded

        self.check(fn, lambda n: (ramp(n, 3, 4),))

    def test_integer_tensors(self):
        def fn(index: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
            return table[index]

        op = define_op(
            fn, lambda index, table: table.new_empty(index.shape[0], table.shape[1])
        )
        impls = [
            lambda index, table: table[index],
            lambda index, table: torch.index_select(table, 0, index),
        ]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("index", 0, RANGES, impls)]
        )
        table = ramp(10, 4)
        self.check(op, lambda n: (torch.arange(n, device=DEVICE) % 10, table))

    def test_symbolic_integer_argument(self):
        def fn(x: torch.Tensor, k: int) -> torch.Tensor:
            return x * k

        op = define_op(fn, lambda x, k: torch.empty_like(x))
        impls = [lambda x, k: x * k, lambda x, k: k * x]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, impls)]
        )
        self.check(lambda x: op(x, 2 * x.shape[0]), lambda n: (ramp(n, 4),))

    @torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
    def test_data_dependent_size(self):
        op = self.doubling_op()
        self.check(lambda x: op(x[x[:, 0] > 7]), lambda n: (ramp(n, 4),))

    def compile_with_blocks(self, sizes):
        """With a generator of blocks of 16 rows, measured at sizes."""
        op = identity_op()

        def generate(fake):
            return torch.zeros(fake.shape[0] // 16, 16, 4).reshape(fake.shape)

        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES[:1], [plus(1)])],
            input_gen_fns={"x": generate},
            representative_sizes=sizes,
        )
        with made_up_times(lambda size, index: 1.0 if index == 0 else 2.0):
            return compile_at(op, ramp(128, 4))

    @unittest.skipIf(HAS_GPU, "the generator is one for a CPU")
    def test_input_generator_that_fails_at_a_size_that_nobody_named(self):
        self.assert_markers(self.compile_with_blocks([64]), {5: 1, 64: 1})

    @unittest.skipIf(HAS_GPU, "the generator is one for a CPU")
    def test_input_generator_that_fails(self):
        failure = r"input_gen_fns\['x'\] of .* fails for a tensor of shape \[65, 4\]: "
        with self.assertRaisesRegex(Exception, failure):
            self.compile_with_blocks([65])

    def test_input_generator_gets_the_size_of_the_range(self):
        op = identity_op()
        shapes = []

        def generate(fake):
            shapes.append(tuple(fake.shape))
            return torch.randn_like(fake)

        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES[:1], [plus(1)])],
            input_gen_fns={"x": generate},
        )
        with made_up_times(lambda size, index: 1.0 if index == 0 else 2.0):
            compile_at(op, ramp(128, 4))
        measured = [(2, 4), (256 + 1, 4), (511, 4)]
        if HAS_GPU:  # and where kernels' configs change
            self.assertLessEqual(set(measured), set(shapes))
            self.assertTrue(all(2 <= rows <= 511 for rows, _ in shapes))
        else:
            self.assertEqual(sorted(shapes), measured)


class TestOps(AutotuneTestCase):
    """Ops as they come."""

    def check(self, fn, make, dims=((0, 0),), left_out=0):
        with config.patch("test_configs.force_no_impl_grouping", True):
            compiled = compile_at(fn, *make(128), dims=dims)
        self.assertEqual(
            counters["inductor"]["custom_op_candidates_left_out"], left_out
        )
        self.assert_like_eager(fn, compiled, make)

    def test_several_outputs(self):
        def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, x.argmax(-1)

        op = define_op(
            fn,
            lambda x: (torch.empty_like(x), x.new_empty(x.shape[0], dtype=torch.long)),
        )
        impls = [lambda x: (x + x, x.argmax(-1)), lambda x: [x * 2, x.max(-1).indices]]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, impls)]
        )
        self.check(op, lambda n: (ramp(n, 4),))

    def test_lists_optionals_and_keywords(self):
        def fn(
            xs: list[torch.Tensor],
            scale: float = 2.0,
            bias: torch.Tensor | None = None,
            *,
            mode: str = "sum",
        ) -> torch.Tensor:
            result = (xs[0] + xs[1]) * scale
            return result if bias is None else result + bias

        op = define_op(fn, lambda xs, scale=2.0, bias=None, *, mode="": xs[0].clone())

        def other(xs, scale=2.0, bias=None):
            result = xs[0] * scale + xs[1] * scale
            return result if bias is None else bias + result

        register_custom_op_autotuning(op, configs=[CustomOpConfig(other)])
        self.check(
            lambda x: op([x, x + 1]) + op([x, x], 3.0) + op([x, x], bias=x),
            lambda n: (ramp(n, 4),),
        )

    def test_overload_of_aten(self):
        mm = torch.ops.aten.mm.default

        def by_product(left, right):
            return (left[:, :, None] * right).sum(1)

        register_custom_op_autotuning(
            mm,
            configs=[
                CustomOpRangeConfig(
                    "self", 0, RANGES, [by_product, lambda self, mat2: self @ mat2]
                )
            ],
        )
        right = torch.eye(4, device=DEVICE)
        self.check(lambda x: torch.relu(x @ right), lambda n: (ramp(n, 4),))

    def test_training(self):
        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        op = define_op(fn, torch.empty_like)
        op.register_autograd(lambda ctx, grad: op(grad))
        register_custom_op_autotuning(
            op,
            configs=[
                CustomOpRangeConfig("x", 0, RANGES, [lambda x: 3 * x, lambda x: x * 3])
            ],
        )
        with config.patch("test_configs.force_no_impl_grouping", True):
            compiled = torch.compile(lambda x: op(x).sin())
            for i, size in enumerate(SIZES):
                x = ramp(size, 4).requires_grad_()
                if i == 0:
                    torch._dynamo.mark_dynamic(x, 0)
                with torch._dynamo.config.patch(error_on_recompile=i > 0):
                    compiled(x).backward(torch.ones_like(x))
                self.assertEqual(x.grad, 3 * torch.cos(3 * x.detach()))

    def test_inside_control_flow(self):
        op = TestSizes.doubling_op(self)

        def fn(x, flag):
            return torch.cond(flag, lambda x: op(x) + 1, lambda x: op(x) - 1, (x,))

        self.check(fn, lambda n: (ramp(n, 4), torch.tensor(n % 2 == 0, device=DEVICE)))

    def test_cpp_wrapper(self):
        op = TestSizes.doubling_op(self)
        with config.patch(cpp_wrapper=True):
            self.check(lambda x: op(op(x) + 1), lambda n: (ramp(n, 4),))

    def test_ahead_of_time(self):
        op = TestSizes.doubling_op(self)

        class Model(torch.nn.Module):
            def forward(self, x):
                return op(x) + 1

        size = torch.export.Dim("size", min=2, max=100_000)
        exported = torch.export.export(
            Model(), (ramp(128, 4),), dynamic_shapes=({0: size},)
        )
        with config.patch("test_configs.force_no_impl_grouping", True):
            package = torch._inductor.aoti_compile_and_package(exported)
        loaded = torch._inductor.aoti_load_package(package)
        for n in SIZES:
            self.assertEqual(loaded(ramp(n, 4)), ramp(n, 4) * 2 + 1)


@instantiate_parametrized_tests
class TestFailingCandidates(AutotuneTestCase):
    """A bad candidate costs itself and one warning."""

    def test_the_only_one_of_a_region(self):
        """It is tried alone then, and fails for the same reason."""

        def bad(x):
            raise RuntimeError("no such kernel")

        op = identity_op()
        ranges = CustomOpRangeConfig("x", 0, RANGES, [bad])
        register_custom_op_autotuning(op, configs=[ranges], name="op")
        with self.assertLogs(
            "torch._inductor.kernel.custom_op", logging.WARNING
        ) as log:
            compiled = compile_at(lambda x: op(x) + op(x.cos()), ramp(128, 4))
        self.assert_like_eager(lambda x: x + x.cos(), compiled, lambda n: (ramp(n, 4),))
        self.assertEqual(len(log.records), 1)

    def reason(self, bad, make=lambda: ramp(128, 4)):
        """The warning for a candidate beside a good one; checks the model's result."""
        op = identity_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [bad, lambda x: 1 * x])],
            name="op",
        )
        with self.assertLogs(
            "torch._inductor.kernel.custom_op", logging.WARNING
        ) as log:
            compiled = compile_at(op, make())
        self.assert_like_eager(lambda x: x.clone(), compiled, lambda n: (ramp(n, 4),))
        (record,) = log.records
        return record.getMessage()

    def test_raises(self):
        def bad(x):
            raise RuntimeError("no such kernel\non this machine")

        self.assertExpectedInline(
            self.reason(bad),
            """op: candidate 'bad' is left out: RuntimeError: no such kernel""",
        )

    def test_guards_on_a_size(self):
        def bad(x):
            return x.clone() if x.shape[0] // 8 % 2 == 0 else x + 0

        self.assertExpectedInline(
            re.sub(r"s\d+", "s0", self.reason(bad)),
            """op: candidate 'bad' is left out: it guards on a size, Eq(Mod((s0//8), 2), 0) == True. If that holds for all calls of the op, say so with torch._check in the op's fake kernel; if in a range, let it compete there only (x.shape[0] is s0)""",
        )
        # For all ranges, and for each.
        self.assertEqual(counters["inductor"]["custom_op_decomp_guard_skips"], 4)

    def test_guards_in_an_operation_with_errors_of_its_own(self):
        def bad(x):
            return x[: x.shape[0] // 2].unflatten(0, (-1, 16)).flatten(0, 1)

        self.assertRegex(self.reason(bad), r"it guards on a size, .*Mod\(")

    def test_guards_on_a_size_of_an_op_of_torch(self):
        """Whose fake kernel is not the user's."""

        def bad(self, mat2):
            return (self[..., None] * mat2).sum(1 if self.shape[0] // 8 % 2 else -2)

        register_custom_op_autotuning(
            torch.ops.aten.mm.default, configs=[CustomOpConfig(bad)]
        )
        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            compiled = compile_at(torch.mm, ramp(12, 4), ramp(4, 3))
        self.assertIn("torch._check in the model", logs.records[0].getMessage())
        self.assertEqual(compiled(ramp(16, 4), ramp(4, 3)), ramp(16, 4) @ ramp(4, 3))

    def test_depends_on_data(self):
        def bad(x):
            return x.clone() if x.sum() > 0 else x + 0

        self.assertIn("op: candidate 'bad' is left out: ", self.reason(bad))

    def test_other_shape(self):
        def bad(x):
            return x[:, :2].clone()

        self.assertRegex(
            self.reason(bad),
            r"output 0 has shape \[s\d+, 2\], the op's has \[(s\d+), 4\] \(x.shape\[0\] is \1\)$",
        )

    def test_other_dtype(self):
        def bad(x):
            return x.double()

        self.assertExpectedInline(
            self.reason(bad),
            """op: candidate 'bad' is left out: output 0 has dtype torch.float64, the op's has torch.float32""",
        )

    def test_other_number_of_outputs(self):
        def bad(x):
            return x.clone(), x + 1

        self.assertExpectedInline(
            self.reason(bad),
            """op: candidate 'bad' is left out: it returns 2 outputs, the op 1""",
        )

    def test_writes_to_an_input(self):
        def bad(x):
            x.add_(1)
            return x + 0

        self.assertExpectedInline(
            self.reason(bad),
            """op: candidate 'bad' is left out: it writes to an argument with aten.add_.Tensor""",
        )

    def test_fails_to_run(self):
        def fails(x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > 1000:
                raise RuntimeError("too large")
            return x.clone()

        inner = define_op(fails, torch.empty_like)

        def bad(x):
            return inner(x)

        self.assertExpectedInline(
            self.reason(bad),
            """op: candidate 'bad' is left out in range [512, 2048): it does not run: RuntimeError: too large""",
        )

    def refuses_rests(self, model=None, itself=False, **options):
        """
        The warnings, and who was taken in [512, inf) of an op and an implementation that
        refuses what is no multiple of 16, and is faster.

        Args:
            model: from the op and its argument; by default calls it.
            itself: whether the op does so, too.
        """

        def refuse(x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] % 16:
                raise RuntimeError(f"{x.shape[0]} rows")
            return x + 1

        def fn(x: torch.Tensor) -> torch.Tensor:
            return refuse(x) - 1 if itself else x.clone()

        inner = define_op(refuse, torch.empty_like)

        def tiles(x):
            return inner(x)

        op = define_op(fn, torch.empty_like)
        ranges = CustomOpRangeConfig("x", 0, [(512, math.inf)], [tiles])
        register_custom_op_autotuning(op, configs=[ranges], name="op", **options)
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        fastest = made_up_times(lambda size, index: 1.0 if index == 0 else 2.0)
        with fastest as sizes, self.assertLogs(logger, logging.WARNING) as log:
            logger.warning("start")
            compiled = compile_at(
                (lambda x: model(op, x)) if model else op, ramp(640, 4)
            )
        self.assertEqual(sorted(sizes), [512, 1024])
        marker = (compiled(ramp(640, 4)) - ramp(640, 4))[0, 0].item()
        return [record.getMessage() for record in log.records[1:]], marker

    def test_fails_where_sizes_are_no_powers_of_two(self):
        self.assertEqual(
            self.refuses_rests(),
            (
                [
                    """op: candidate 'tiles' is left out in range [512, inf): it does not run at size 513 (if the model has none, say so with torch._check): RuntimeError: 513 rows"""
                ],
                0,
            ),
        )

    def test_fails_at_sizes_that_cannot_occur(self):
        def multiples(op, x):
            torch._check(x.shape[0] % 16 == 0)
            return op(x)

        self.assertEqual(self.refuses_rests(multiples), ([], 1))

    def test_fails_where_the_op_does(self):
        self.assertEqual(self.refuses_rests(itself=True), ([], 1))

    def test_fails_where_the_op_is_the_last_resort_only(self):
        messages, marker = self.refuses_rests(include_fallback=False)
        self.assertEqual((len(messages), marker), (1, 0))

    def test_fails_where_the_op_does_and_is_the_last_resort_only(self):
        found = self.refuses_rests(itself=True, include_fallback=False)
        self.assertEqual(found, ([], 1))

    def warnings_of_limited(self, most_rows, markers, error=RuntimeError, **options):
        """
        What is told of an implementation, the fastest, that does not run with more rows.

        Args:
            markers: of winners by size: 1 is that one's, 0 the op's, which is next.
        """

        def fn(x: torch.Tensor) -> torch.Tensor:
            if x.shape[0] > most_rows:
                raise error("too large")
            return x + 1

        inner, op = define_op(fn, torch.empty_like), identity_op()

        def limited(x):
            return inner(x)

        ranges = CustomOpRangeConfig("x", 0, RANGES, [limited, plus(2)])
        register_custom_op_autotuning(op, configs=[ranges], name="op", **options)

        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with (
            mock.patch.object(measure_ranges, "time_candidates", first_before_op),
            self.assertLogs(logger, logging.WARNING) as log,
        ):
            compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, markers)
        return "\n".join(record.getMessage() for record in log.records)

    def test_fails_in_another_range_than_it_wins(self):
        self.assertExpectedInline(
            self.warnings_of_limited(1000, {5: 1, 511: 1, 600: 0, 3000: 0}),
            """op: candidate 'limited' is left out in range [512, 2048): it does not run: RuntimeError: too large""",
        )

    def test_fails_in_all_ranges(self):
        self.assertExpectedInline(
            self.warnings_of_limited(1, {5: 0, 600: 0, 3000: 0}),
            """op: candidate 'limited' is left out in range [0, 512): it does not run: RuntimeError: too large""",
        )

    def test_fails_between_sizes_that_the_user_named(self):
        """In the next range: nobody may win where it was not called at the ends."""
        named = (128, 1000, 4000)
        self.assertExpectedInline(
            self.warnings_of_limited(1500, {5: 1, 600: 0}, representative_sizes=named),
            """op: candidate 'limited' is left out in range [2048, inf): it does not run: RuntimeError: too large""",
        )

    def winners_where_a_range_has_no_memory(self, at_2048):
        """Of the first two ranges the first and the second candidate win; and the log."""
        op = identity_op()
        configs = [
            CustomOpConfig(fn, tensor_name="x", dim_index=0, dim_range=sizes)
            for fn, ranges in ((plus(1), RANGES), (plus(2), RANGES[:2]))
            for sizes in ranges
        ]
        register_custom_op_autotuning(op, configs=configs)

        def ms(size, index):
            if size >= 2048:
                return at_2048(index)
            return 1.0 if index == (0 if size < 512 else 1) else 2.0

        with (
            made_up_times(ms),
            self.assertLogs("torch._inductor.kernel.custom_op", logging.INFO) as logs,
        ):
            compiled = compile_at(op, ramp(128, 4))
        return compiled, "\n".join(logs.output)

    def test_a_range_without_memory_for_the_timer(self):
        """Who wins next to it does not compete there; the next one further off does."""

        def full(index):
            raise torch.OutOfMemoryError("full")

        compiled, text = self.winners_where_a_range_has_no_memory(full)
        self.assert_markers(compiled, {5: 1, 600: 2, 3000: 1})
        self.assertIn("as in range [512, 2048), for nothing could be measured", text)

    def test_a_range_without_memory_for_anybody(self):
        full = Failure("out of memory", may_pass=True, lacks_memory=True)
        compiled, text = self.winners_where_a_range_has_no_memory(lambda index: full)
        self.assert_markers(compiled, {5: 1, 600: 2, 3000: 1})
        self.assertNotIn("left out", text)

    def sizes_called_at(self, fits):
        """
        With 128 and 600 named, of ranges up to 511 and 99999; what fits is the fastest.

        Returns:
            The sizes, and what is compiled.
        """
        called_at = []
        inner = self.limited_to(lambda rows: called_at.append(rows) or fits(rows))
        op = identity_op()
        impls = [lambda x: inner(x) + 1, plus(2)]
        ranges = CustomOpRangeConfig("x", 0, [(0, 512), (512, 100_000)], impls)
        register_custom_op_autotuning(
            op, configs=[ranges], representative_sizes=[128, 600]
        )
        with mock.patch.object(measure_ranges, "time_candidates", first_before_op):
            compiled = compile_at(op, ramp(128, 4))
        return {*called_at}, compiled

    def test_called_at_ends_no_larger_than_the_sizes_that_the_user_named(self):
        sizes, compiled = self.sizes_called_at(lambda rows: True)
        self.assertLessEqual({2, 128, 511, 512, 600}, sizes)
        self.assertLess(max(sizes), 1000)
        self.assert_markers(compiled, {5: 1, 600: 1})

    def test_fails_below_the_sizes_that_the_user_named(self):
        sizes, compiled = self.sizes_called_at(lambda rows: rows >= 16)
        self.assertIn(99_999, sizes)
        self.assert_markers(compiled, {5: 0, 15: 0, 128: 0, 600: 1})

    def limited_to(self, fits, error=RuntimeError):
        """An op that runs where it fits, and raises elsewhere."""

        def fn(x: torch.Tensor) -> torch.Tensor:
            if not fits(x.shape[0]):
                raise error(f"{x.shape[0]} rows")
            return x.clone()

        return define_op(fn, torch.empty_like)

    def compile_anew(self, op, configs, rows, **options):
        """As a later process: what an earlier one measured is known, its code is not."""
        torch._dynamo.reset()
        register_custom_op_autotuning(op, configs=configs, name="op", **options)
        with (
            mock.patch.object(measure_ranges, "time_candidates", first_before_op),
            config.patch(fx_graph_cache=False),
        ):
            return compile_at(op, ramp(rows, 4))

    def test_ranges_cut_where_one_failed_before(self):
        """What is known of a range that was whole does not count in its parts."""
        inner = self.limited_to(lambda rows: not 50 <= rows < 64)
        op, odd = identity_op(), [33, 55, 101]

        def limited(x):
            return inner(x) + 1

        def compile_with(*bounds):
            ranges = [*itertools.pairwise([0, *bounds, math.inf])]
            table = CustomOpRangeConfig("x", 0, ranges, [limited])
            return self.compile_anew(op, [table], 60, representative_sizes=odd)

        for _ in range(2):
            self.assert_markers(compile_with(64), {33: 0, 55: 0, 64: 1})
            self.assert_markers(compile_with(50, 64), {33: 1, 49: 1, 55: 0, 64: 1})

    @parametrize("everywhere", (False, True))
    def test_other_process_does_not_survive_in_a_range(self, everywhere):
        def try_in_process(modules, site, point, *_):
            failure = Failure("it crashed", everywhere=everywhere)
            return {0: failure} if 0 in modules and point.size >= 512 else {}

        op = identity_op()
        table = CustomOpRangeConfig("x", 0, RANGES, [plus(1)])
        for tried in (try_in_process, None):  # the second knows it from the first
            with (
                mock.patch.object(calls, "try_in_process", tried),
                config.patch(autotune_in_subproc=True),
            ):
                compiled = self.compile_anew(op, [table], 128)
            marker = 0 if everywhere else 1
            self.assert_markers(compiled, {5: marker, 511: marker, 600: 0, 3000: 0})

    @parametrize("error", (RuntimeError, TimeoutError))
    def test_the_op_fails_in_a_range(self, error):
        """In others it is measured, whichever comes first; not if it took too long."""
        op = self.limited_to(lambda rows: rows < 512, error)
        marker = 0 if error is RuntimeError else 1
        table = CustomOpRangeConfig("x", 0, [(0, 512), (512, 600)], [plus(1)])
        for rows in (2, 550):
            options = {"min_speedup_threshold": 5.0}
            with config.patch(force_disable_caches=True):
                compiled = self.compile_anew(op, [table], rows, **options)
            self.assertEqual(compiled(ramp(128, 4)), ramp(128, 4) + marker)
            self.assertEqual(compiled(ramp(550, 4)), ramp(550, 4) + 1)

    def test_takes_too_long_in_a_range(self):
        """It would in others, too."""
        self.assertExpectedInline(
            self.warnings_of_limited(1000, {5: 0, 600: 0}, TimeoutError),
            """op: candidate 'limited' is left out: in range [512, 2048), it does not run: TimeoutError: too large""",
        )

    def test_op_itself_fails_to_run(self):
        def fn(x: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError("no eager kernel")

        op = define_op(fn, torch.empty_like)
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [plus(1)])]
        )
        compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {5: 1, 600: 1, 3000: 1})

    def test_other_strides_are_no_failure(self):
        op = identity_op()

        def transposed(x):
            return x.t().contiguous().t()

        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [transposed, plus(2)])]
        )
        with made_up_times(best_by_range):
            compiled = compile_at(op, ramp(128, 4))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        with no_recompile:
            for n, marker in ((5, 0), (600, 2)):
                result = compiled(ramp(n, 4))
                self.assertEqual(result, ramp(n, 4) + marker)
                self.assertEqual(result.stride(), (4, 1))

    def test_writes_to_its_own_tensor_are_no_failure(self):
        op = identity_op()

        def by_parts(x):
            result = torch.empty_like(x)
            result[:, :2] = x[:, :2] + 5
            result[:, 2:] = x[:, 2:] + 5
            return result

        register_custom_op_autotuning(
            op, configs=[CustomOpConfig(by_parts)], include_fallback=False
        )
        compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {3: 5, 1000: 5})

    def test_outputs_that_share_memory_are_no_failure(self):
        def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x[:, :2] * 2, x[:, 2:] * 2

        def fake(x):
            return x.new_empty(x.shape[0], 2), x.new_empty(x.shape[0], 2)

        op = define_op(fn, fake)
        register_custom_op_autotuning(
            op,
            configs=[
                CustomOpRangeConfig("x", 0, RANGES[1:], [lambda x: (x * 2).chunk(2, 1)])
            ],
            include_fallback=False,
        )
        compiled = compile_at(op, ramp(128, 4))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        self.assert_like_eager(op, compiled, lambda n: (ramp(n, 4),))

    def test_no_candidate_left(self):
        def bad(x):
            raise NotImplementedError

        op = identity_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [bad])],
            include_fallback=False,
        )
        compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {5: 0, 600: 0})


class TestPlainRegistration(AutotuneTestCase):
    """Without ranges: as in the base."""

    def test_tuning_parameters_take_precedence(self):
        def fn(x: torch.Tensor, k: int = 4) -> torch.Tensor:
            return x + k

        op = define_op(fn, lambda x, k=4: torch.empty_like(x))
        register_custom_op_autotuning(
            op, configs=[CustomOpConfig(k=1), CustomOpConfig(k=2), CustomOpConfig(k=3)]
        )
        with made_up_times(lambda size, index: 1.0 if index == 1 else 2.0):
            compiled = compile_at(lambda x: op(x, 7), ramp(128, 4))
        self.assert_markers(compiled, {128: 2, 600: 2})

    def test_config_generator(self):
        op = identity_op()
        seen = []

        def generate(tensors):
            seen.append({name: tuple(t.shape[1:]) for name, t in tensors.items()})
            return [CustomOpConfig(plus(k)) for k in range(1, tensors["x"].shape[1])]

        register_custom_op_autotuning(op, config_generator=generate)
        with made_up_times(lambda size, index: 1.0 if index == 2 else 2.0):
            compiled = compile_at(op, ramp(128, 4))
        self.assertEqual(seen, [{"x": (4,)}])
        self.assert_markers(compiled, {128: 3, 600: 3})

    def test_config_generator_with_ranges(self):
        op = identity_op()
        register_custom_op_autotuning(
            op,
            config_generator=lambda tensors: [CustomOpConfig(plus(i)) for i in (1, 2)],
            dispatch_on={"tensor_name": "x", "dim": 0},
            split_points=[511],
        )
        with made_up_times(best_by_range):
            compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {511: 1, 512: 2})

    def test_config_generator_without_configs(self):
        op = identity_op()
        register_custom_op_autotuning(op, config_generator=lambda tensors: [])
        self.assert_markers(compile_at(op, ramp(128, 4)), {128: 0, 600: 0})

    def test_config_generator_with_something_else(self):
        op = identity_op()
        register_custom_op_autotuning(op, config_generator=lambda tensors: [plus(1)])
        with self.assertRaisesRegex(
            Exception, "must be a CustomOpConfig .* at index 0"
        ):
            compile_at(op, ramp(128, 4))

    def test_config_generator_that_fails(self):
        op = identity_op()

        def generate(tensors):
            return [CustomOpConfig(plus(1), block=tensors["y"].shape[0])]

        register_custom_op_autotuning(op, config_generator=generate)
        with self.assertRaisesRegex(
            Exception, f"config_generator of {op._opoverload} fails: KeyError: 'y'"
        ):
            compile_at(op, ramp(128, 4))

    @parametrize("threshold,marker", ((1.0, 1), (1.4, 1), (1.6, 0)))
    def test_min_speedup_threshold(self, threshold, marker):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpConfig(plus(1))], min_speedup_threshold=threshold
        )
        with made_up_times(lambda size, index: 1.5 if index < 0 else 1.0):
            compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {128: marker})

    @parametrize("force,marker", ((None, 0), (True, 1), (False, 0)))
    def test_forced_choice(self, force, marker):
        op = identity_op()
        register_custom_op_autotuning(op, configs=[CustomOpConfig(plus(1))])
        with (
            config.patch({"test_configs.force_custom_op_decomposition": force}),
            made_up_times(lambda size, index: 1.0 if index < 0 else 5.0),
        ):
            compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {128: marker})

    def test_include_fallback(self):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpConfig(plus(1))], include_fallback=False
        )
        measured = []
        with made_up_times(lambda size, index: measured.append(index) or 1.0):
            compiled = compile_at(op, ramp(128, 4))
        self.assertEqual(measured, [0])
        self.assert_markers(compiled, {128: 1})

    @unittest.skipUnless(HAS_GPU, "CUDA graphs need a GPU")
    def test_benchmark_with_cudagraphs(self):
        op = identity_op()
        register_custom_op_autotuning(
            op, configs=[CustomOpConfig(plus(1))], benchmark_with_cudagraphs=True
        )
        times = [Timing(ms) for ms in (1.0, 2.0, 2.0)]
        with mock.patch.object(measure, "_time_replay", side_effect=times) as replay:
            compiled = compile_at(op, ramp(128, 4))
        # The implementation, the op's plain lowering, the op itself.
        self.assertEqual(replay.call_count, 3)
        self.assert_markers(compiled, {128: 1, 600: 1})

    def test_fallback_choice_is_made_once(self):
        overload = identity_op()._opoverload
        choice = _create_fallback_choice(overload)
        self.assertIs(_create_fallback_choice(overload), choice)
        self.assertIs(choice.op_overload, overload)
        self.assertTrue(choice.use_fallback_kernel)

    def test_random_state_is_kept(self):
        op = identity_op()
        register_custom_op_autotuning(op, configs=[CustomOpConfig(plus(1))])
        x = ramp(128, 4)
        torch.manual_seed(0)
        expected = torch.rand(3)
        torch.manual_seed(0)
        compile_at(op, x)
        self.assertEqual(torch.rand(3), expected)

    def test_autotune_custom_op_says_why_nobody_is_left(self):
        op = identity_op()
        user_lowerings[op._opoverload] = lambda x: autotune_custom_op(
            "by_hand", [lambda x: x[:1] + 0], [x], [{}], op._opoverload
        )
        with (
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
            self.assertRaisesRegex(Exception, "No valid choices generated for by_hand"),
        ):
            compile_at(op, ramp(128, 4))
        self.assertIn("output 0 has shape", "".join(logs.output))

    def test_autotune_custom_op_whose_code_guards(self):
        op = identity_op()

        def lower(x):
            given = [plus(1), plus(2)], [x], [{}, {}], op._opoverload
            return autotune_custom_op("by_hand", *given)[0]

        user_lowerings[op._opoverload] = lower
        with (
            guards_in_code_of("plus_1", lambda size: sympy.Eq(size % 8, 0)),
            made_up_times(lambda size, index: 1.0 if index >= 0 else 2.0),
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
        ):
            compiled = compile_at(op, ramp(128, 4))
        self.assertIn("its code guards on a size", "".join(logs.output))
        self.assert_markers(compiled, {128: 2, 601: 2})

    def test_autotune_custom_op(self):
        op = identity_op()
        overload = op._opoverload
        won = []

        def lower(x):
            result, choice = autotune_custom_op(
                "by_hand",
                [plus(1), plus(2)],
                [x],
                [{}, {}],
                overload,
                user_input_gen_fns={"x": torch.ones_like},
            )
            won.append(choice)
            return result

        user_lowerings[overload] = lower
        with made_up_times(lambda size, index: 1.0 if index == 1 else 2.0):
            compiled = compile_at(op, ramp(128, 4))
        self.assert_markers(compiled, {128: 2, 600: 2})
        self.assertEqual(won[0].decomposition.__name__, "plus_2")
        self.assertIsNotNone(won[0].gm)


instantiate_parametrized_tests(TestPlainRegistration)

if __name__ == "__main__":
    run_tests()
