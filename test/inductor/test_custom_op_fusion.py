# Owner(s): ["module: inductor"]
"""An autotuned op and its neighbours: which join it, and what is emitted for them."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import one_config_each, row_numbers
from test_custom_op_autotune import made_up_times
from torch._dynamo.utils import counters
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
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
from torch._inductor.range_autotune import regions
from torch._inductor.range_autotune.candidate_indices import (
    FALLBACK_INDEX,
    PLAIN_INDEX,
)
from torch._inductor.range_autotune.kernel_configs import kernel_config_ranges
from torch._inductor.range_autotune.measuring import measure_ranges
from torch._inductor.range_autotune.neighbours import region_search
from torch._inductor.range_autotune.times import failure_of, Timing


DEVICE = GPU_TYPE if HAS_GPU else "cpu"
RANGES = [(0, 100), (100, math.inf)]
SIZES = (64, 2, 99, 100, 333)
_numbers = itertools.count()


def tuned_op(fn=None, impls=(lambda x: x + x, lambda x: 2 * x), ranges=RANGES):
    """x * 2 by default, with implementations for each of two ranges; all are equal."""

    def double(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    fn = fn or double
    op = torch.library.custom_op(f"fusion::op{next(_numbers)}", mutates_args=())(fn)
    op.register_fake(torch.empty_like)
    register_custom_op_autotuning(
        op,
        configs=[CustomOpRangeConfig("x", 0, ranges, [*impls])],
    )
    return op


def first_then_second(runners, *_):
    """Made-up times: the first candidate there is wins in the first range, and so on."""
    times = {}
    first, second, *_ = sorted(runners, key=lambda index: (index < 0, index))
    for index, run in runners.items():
        try:
            best = second if max(run()[0].shape) >= 100 else first
        except RuntimeError as e:
            times[index] = failure_of(e)
            continue
        times[index] = Timing(1.0 if index == best else 2.0)
    return times


@contextlib.contextmanager
def two_winners():
    """The first below 100 rows, the second from there, kernels with one config each."""
    with (
        mock.patch.object(measure_ranges, "time_candidates", first_then_second),
        mock.patch.object(kernel_config_ranges, "configs_by_range", one_config_each),
    ):
        yield


class FusionTestCase(TestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        before = dict(user_lowerings)
        self.addCleanup(lambda: (user_lowerings.clear(), user_lowerings.update(before)))

    def compile(self, fn, *args):
        """The compiled function, and the wrapper code of each branch and of the rest."""
        for arg in args:
            if arg.dim() and arg.shape[0] == SIZES[0]:
                torch._dynamo.mark_dynamic(arg, 0)
        compiled = torch.compile(fn)
        with two_winners():
            _, codes = run_and_get_code(compiled, *args)
        return compiled, codes[-1]

    def check(self, fn, make, kernels, outside=0):
        """
        Compiles and compares at sizes in both ranges.

        Args:
            kernels: of each branch.
            outside: kernels outside of them.
        """
        compiled, code = self.compile(fn, *make(SIZES[0]))
        self.check_values(compiled, fn, make)
        calls = kernel_calls(code)
        branches = [n for name, n in calls.items() if name.startswith("size_branch")]
        self.assertEqual(branches, [kernels] * 2, msg=code)
        self.assertEqual(calls["call"], outside, msg=code)

    def check_values(self, compiled, fn, make):
        """Of results and of what is written to, at sizes in both ranges."""
        for size in SIZES:
            args, given = make(size), make(size)
            with torch._dynamo.config.patch(error_on_recompile=True):
                result = compiled(*args)
            self.assertEqual(result, fn(*given), msg=f"at size {size}")
            self.assertEqual(args, given, msg=f"written at size {size}")

    def joined(self, fn, *args, op=None):
        """The names of the nodes that join the first call of a registered op, or of one."""
        gm, ops = traced(fn, *args), [op._opoverload] if op else user_lowerings
        call = next(n for n in gm.graph.nodes if n.target in ops)
        with V.set_fake_mode(call.meta["val"].fake_mode):
            found = region_search.find_region(call, set())
        names = [n.target.__name__.partition(".")[0] for n in found.nodes]
        return [re.sub(r"op\d+", "op", name) for name in names]


def kernel_calls(code):
    """The number of kernel launches in each function of a Python wrapper."""
    counts = {"call": 0}
    name = None
    for line in code.splitlines():
        if found := re.match(r"\s*def (\w+)\((?:self, )?args\):", line):
            name = found[1]
            counts[name] = 0
        elif name and re.match(r"\s+(cpp_fused|triton_\w+_fused)_\w+(\.run)?\(", line):
            counts[name] += 1
        elif line and not line[0].isspace() and not line.startswith("def"):
            name = None
    return counts


def rows(n, columns=8):
    return torch.linspace(-1, 1, n * columns, device=DEVICE).view(n, columns)


class TestEmittedCode(FusionTestCase):
    @config.patch({"trace.provenance_tracking_level": 1})
    def test_with_provenance(self):
        """Nodes have metadata as soon as they are made."""
        op = tuned_op()
        self.check(lambda x: op(x.sin()).relu() + 1, lambda n: (rows(n),), kernels=1)

    def arguments(self, fn, *args, impls=None):
        """The code of what branches are called with."""
        op = tuned_op(impls=impls) if impls else tuned_op()

        def make(n):
            return rows(n, 16), *args

        compiled, code = self.compile(lambda *args: fn(op, *args), *make(SIZES[0]))
        self.check_values(compiled, lambda *args: fn(op, *args), make)
        (line,) = (line for line in code.splitlines() if "_args = [" in line)
        return line

    def test_kernels_are_given_buffers_in_place_of_views(self):
        """They take where it starts; a view of it takes the host a microsecond."""
        line = self.arguments(lambda op, x: op(x.view(-1, 8)) * 3)
        self.assertRegex(line, r"_args = \[s\d+, arg\d+_1\]$")

    def test_views_that_start_elsewhere_are_made(self):
        line = self.arguments(lambda op, x: op(x[:, 8:]) * 3)
        self.assertIn("reinterpret_tensor(arg", line)

    def test_views_of_what_is_written_to(self):
        def fn(op, x):
            x.view(-1, 8).copy_(op(x.view(-1, 8)))
            return op(x.view(-1, 8) + 1)

        op = tuned_op()
        compiled, _ = self.compile(lambda x: fn(op, x), rows(SIZES[0], 16))
        self.check_values(compiled, lambda x: fn(op, x), lambda n: (rows(n, 16),))

    def test_views_for_other_than_generated_code_are_made(self):
        """A product is told the sizes of what it is given."""
        eye = torch.eye(8, device=DEVICE)
        line = self.arguments(
            lambda op, x, eye: op(x.view(-1, 8)) * 3 + eye[0],
            eye,
            impls=[
                lambda x: x @ (2 * torch.eye(8, device=x.device)),
                lambda x: (2 * torch.eye(8, device=x.device) @ x.t()).t(),
            ],
        )
        self.assertIn("reinterpret_tensor(arg", line)

    def test_two_ops_in_a_row_become_one_dispatch(self):
        first, second = tuned_op(), tuned_op()

        def fn(x, gate):
            return second(first(x).sin() * gate) + x

        self.check(fn, lambda n: (rows(n), rows(n).cos()), kernels=1)

    def test_bad_part_of_combinations_is_reported_once(self):
        first, second = tuned_op(), tuned_op()

        def bad(x):
            raise NotImplementedError("not today")

        impls = [lambda x: x + x, lambda x: 2 * x, bad]
        register_custom_op_autotuning(
            second, configs=[CustomOpRangeConfig("x", 0, RANGES, impls)]
        )
        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            self.compile(lambda x: second(first(x)), rows(SIZES[0]))
        (record,) = logs.records
        self.assertIn("NotImplementedError: not today", record.getMessage())

    def test_each_bad_part_of_combinations_is_reported(self):
        """Also where they fail for one reason."""
        first, second = tuned_op(), tuned_op()

        def bad(x):
            raise NotImplementedError("not today")

        def worse(x):
            return bad(x)

        impls = [lambda x: x + x, bad, worse]
        register_custom_op_autotuning(
            second, configs=[CustomOpRangeConfig("x", 0, RANGES, impls)]
        )
        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            self.compile(lambda x: second(first(x)), rows(SIZES[0]))
        for record, name in zip(logs.records, ("bad", "worse"), strict=True):
            self.assertIn(f"+ {name}'", record.getMessage())

    def test_epilogue(self):
        op = tuned_op()
        self.check(lambda x: torch.relu(op(x)) * 3 + 1, lambda n: (rows(n),), 1)

    def test_without_fusion(self):
        op = tuned_op()
        with config.patch(enable_custom_op_fusion=False):
            self.check(lambda x: torch.relu(op(x)), lambda n: (rows(n),), 1, 1)

    def test_prologue(self):
        op = tuned_op()
        self.check(lambda x: op(torch.sin(x) + 1), lambda n: (rows(n),), 1)

    def test_gate_and_bias(self):
        """The other operands' own work joins where only the region reads it."""
        op = tuned_op()
        bias = torch.arange(8.0, device=DEVICE)

        def fn(x, gate):
            return torch.nn.functional.silu(gate) * op(x) + bias

        self.check(fn, lambda n: (rows(n), rows(n).cos()), 1)

    def test_residual_and_cast(self):
        op = tuned_op()

        def fn(x):
            return (op(x.half().float()) + x).half()

        self.check(fn, lambda n: (rows(n),), 1)

    @parametrize("keeps_mask", (False, True))
    def test_dropout(self, keeps_mask):
        """Random numbers are made where they are read, as the mask that is kept is."""
        op = tuned_op()

        def fn(x):
            mask = torch.rand_like(x) > 0.25
            dropped = torch.where(mask, op(x), 0) * 4 + x
            return (dropped, mask) if keeps_mask else (dropped,)

        make = lambda n: rows(n, 32) + 2  # noqa: E731
        compiled, code = self.compile(fn, make(SIZES[0]))
        self.assertEqual([*kernel_calls(code).values()], [0, 1, 1], msg=code)
        for size in SIZES:
            x = make(size)
            torch.manual_seed(size)
            dropped, *masks = compiled(x)
            torch.manual_seed(size)
            self.assertEqual(compiled(x)[0], dropped)
            kept = dropped != x
            for mask in masks:
                self.assertEqual(mask, kept)
            self.assertEqual(dropped, x + 8 * x * kept)
            self.assertTrue(0.5 < kept.float().mean() < 1)

    def test_reduction_behind_one_generated_implementation(self):
        """The other one and the op itself have it in a kernel behind theirs."""

        def product(x: torch.Tensor) -> torch.Tensor:
            return x @ x.new_ones(8, 8).tril().triu().mul(2)

        def fn(x):
            y = op(x).relu()
            scale = y.amax(1, keepdim=True) + 1
            return y / scale, scale

        op = tuned_op(product, [lambda x: x + x, product])
        compiled, code = self.compile(fn, rows(SIZES[0]))
        self.check_values(compiled, fn, lambda n: (rows(n),))
        outside, *branches = kernel_calls(code).values()
        self.assertEqual(outside, 0, msg=code)
        self.assertIn(1, branches, msg=code)

    def test_value_read_elsewhere_too(self):
        op = tuned_op()

        def fn(x):
            y = torch.relu(op(x))
            return y, (y * 3).amax(0)

        self.check(fn, lambda n: (rows(n),), 1, 1)

    def test_residual_read_elsewhere_too(self):
        """The sum in front of a norm, which a later layer reads, is one more output."""
        op = tuned_op()

        def fn(x, product):
            residual = x + product
            return residual, op(residual).amax(0)

        self.check(fn, lambda n: (rows(n), rows(n).cos()), 1, 1)

    @parametrize(
        "fn",
        (
            lambda y: torch.softmax(y + 1, dim=-1),
            lambda y: torch.nn.functional.layer_norm(y, [8], eps=1.0),
            lambda y: (y / (s := y.abs().amax(-1, True) / 127), s),
        ),
    )
    def test_reduction_of_rows(self, fn):
        op = tuned_op()
        self.check(lambda x: fn(op(x)), lambda n: (rows(n),), 1)

    @parametrize(
        "fn",
        (
            lambda op, x: (y := op(x) + x, torch.softmax(y * 2, dim=-1)),
            lambda op, x: torch.nn.functional.layer_norm(op(x) + x, [8], eps=1.0),
            lambda op, x: op(torch.nn.functional.layer_norm(x, [8], eps=1.0)),
            lambda op, x: op(x / (1 + x.abs().amax(-1, keepdim=True))) + x,
        ),
    )
    def test_reduction_of_rows_beside_a_product(self, fn):
        """One kernel with the work around the op, which has none of its own."""

        def product(x: torch.Tensor) -> torch.Tensor:
            return x @ torch.eye(8, device=x.device)

        op = tuned_op(product, [lambda x: product(x + 0), product])
        compiled, code = self.compile(lambda x: fn(op, x), rows(SIZES[0]))
        self.check_values(compiled, lambda x: fn(op, x), lambda n: (rows(n),))
        outside, *branches = kernel_calls(code).values()
        self.assertEqual(outside, 0, msg=code)
        _, plain = self.compile(lambda x: fn(product, x), rows(SIZES[0]))
        fewest = sum(kernel_calls(plain).values())
        self.assertLessEqual(min(branches), fewest, msg=code)

    def test_reduction_stays_outside(self):
        """Of more than rows, or where no kernel can be one with the op's, or by config."""
        op = tuned_op()

        def make(n):
            return (rows(n),)

        self.check(lambda x: op(x).sin().amax(0), make, 1, 1)
        with config.patch(custom_op_fusion_types=("epilogue",)):
            self.check(lambda x: op(x).sin().sum(1), make, 1, 1)

    def test_several_outputs(self):
        def fn(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * 2, x + 1

        op = torch.library.custom_op(f"fusion::op{next(_numbers)}", mutates_args=())(fn)
        op.register_fake(lambda x: (torch.empty_like(x), torch.empty_like(x)))
        impls = [lambda x: (x + x, 1 + x), lambda x: (2 * x, x + 1)]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, impls)]
        )

        def model(x):
            a, b = op(x)
            return torch.relu(a) + torch.sin(b)

        self.check(model, lambda n: (rows(n),), 1)

    def test_op_behind_op(self):
        """Each has a dispatch of its own; what lies between them joins one."""
        op = tuned_op()
        compiled, code = self.compile(lambda x: op(torch.sin(op(x))) + x, rows(64))
        for n in SIZES:
            self.assertEqual(compiled(rows(n)), torch.sin(rows(n) * 2) * 2 + rows(n))
        self.assertEqual(kernel_calls(code)["call"], 0)

    @parametrize(
        "fn",
        (
            lambda op, x: op(x.view(-1, 2, 4).sin().flatten(1)).view(-1, 4, 2) + 1,
            lambda op, x: x + op(x.view(-1, 2, 4).mT.reshape(-1, 8)),
            lambda op, x: torch.sigmoid(x[:, 0])[:, None] * op(x),
            lambda op, x: (op(x).t() * 2).contiguous(),
            lambda op, x: torch.mul(*op(x).chunk(2, dim=1)),
            lambda op, x: (y := op(x)) * x + torch.cat([-y[:, 4:], y[:, :4]], 1) * 0.5,
            lambda op, x: torch.nn.functional.pad(op(x.flip(1)), (0, 3)),
            lambda op, x: op(x + 1).view(-1, 4, 2).unsqueeze(1).expand(-1, 3, 4, 2) + 1,
        ),
    )
    def test_views_between(self, fn):
        op = tuned_op()
        self.check(lambda x: fn(op, x), lambda n: (rows(n),), 1)

    def test_view_that_others_read_too(self):
        """They look at what the region stores."""
        op = tuned_op()

        def fn(x):
            heads = op(x).view(-1, 2, 4)
            return heads.sin(), heads.amax(0), heads[:, 0]

        self.check(fn, lambda n: (rows(n),), 1, 1)

    def test_view_of_a_candidate_with_other_strides(self):
        op = tuned_op()
        impls = [lambda x: (x.t() * 2).contiguous().t(), lambda x: 2 * x]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, impls)]
        )

        def fn(x):
            return op(x.sin()).view(-1, 2, 4).transpose(1, 2) + 1

        self.check(fn, lambda n: (rows(n),), 1)

    def test_what_is_made_of_sizes(self):
        """Also if others read it: they make it themselves."""
        op = tuned_op()

        def fn(x):
            row = torch.arange(x.shape[0], device=x.device)
            column = torch.arange(8, device=x.device)
            mask = row[:, None] >= column
            return torch.where(mask, op(x + row[:, None]), -1.0), mask.sum(0)

        self.check(fn, lambda n: (rows(n),), 1, 1)

    def test_result_that_is_broadcast(self):
        op = tuned_op()
        self.check(
            lambda x: x * torch.rsqrt(op(x.square()[:, 0]) + 1)[:, None],
            lambda n: (rows(n),),
            1,
        )

    def test_region_that_nobody_reads(self):
        op = tuned_op()

        def fn(x):
            y = op(x) + 1
            y.copy_(x.sin())
            return y

        compiled, _ = self.compile(fn, rows(64))
        for n in SIZES:
            self.assertEqual(compiled(rows(n)), fn(rows(n)))

    def test_region_of_sizes_alone_inside_of_cond(self):
        op = tuned_op()

        def made(x):
            return op(x.new_ones(x.shape[0], 8)).sin()

        def fn(x, which):
            return torch.cond(which.sum() > 0, made, torch.cos, (x,))

        which = torch.ones(3, device=DEVICE)
        compiled, _ = self.compile(fn, rows(64), which)
        for n in SIZES:
            for p in (which, -which):
                self.assertEqual(compiled(rows(n), p), fn(rows(n), p))

    @parametrize("given, others", ((64, (16, 104, 336)), (13, (11, 99, 335))))
    def test_neighbour_that_guards_on_a_size_stays_outside(self, given, others):
        """
        It does so where the op is not registered, too. With multiples of 8 the model's own
        guards say all that the view asks.
        """
        op = tuned_op()

        def fn(x):
            return op(x.sin()).view(8, -1) + 1

        x = rows(given)
        torch._dynamo.mark_dynamic(x, 0)
        with self.assertNoLogs("torch._inductor.kernel.custom_op", "WARNING"):
            compiled, code = self.compile(fn, x)
        for n in (given, *others):
            with torch._dynamo.config.patch(error_on_recompile=True):
                self.assertEqual(compiled(rows(n)), fn(rows(n)))
        calls = kernel_calls(code)
        self.assertEqual(len(calls), 3, msg=code)  # the sine is in two of them
        self.assertEqual(calls["call"], 0 if given == 64 else 1, msg=code)

    def test_neighbour_that_guards_in_some_candidates_stays_outside(self):
        """Where one stores what it views, and another does not."""
        first, second = tuned_op(), tuned_op()

        def fn(x):
            y = first(x + 1)
            return second(y).view(2, -1).sin(), y * x

        with self.assertNoLogs("torch._inductor.kernel.custom_op", "WARNING"):
            compiled, code = self.compile(fn, rows(64))
        for n in (64, 8, 98, 100, 334):
            with torch._dynamo.config.patch(error_on_recompile=True):
                self.assertEqual(compiled(rows(n)), fn(rows(n)))
        self.assertIn("def size_branch", code)

    @parametrize("deferred", (True, False))
    def test_op_in_a_row_with_one_that_cannot_be_tuned(self, deferred):
        """It guards on a size: it is called as it is, and the other one is tuned around it."""

        def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x * y

        name = f"fusion::op{next(_numbers)}"
        product = torch.library.custom_op(name, mutates_args=())(fn)
        product.register_fake(lambda x, y: torch.empty_like(x))

        def guards(x, y):
            return y * x if x.shape[0] % 7 else x * y

        register_custom_op_autotuning(
            product, configs=[CustomOpRangeConfig("x", 0, RANGES, [guards])]
        )
        op = tuned_op()
        with (
            config.patch(defer_custom_op_choices=deferred),
            self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs,
        ):
            compiled, code = self.compile(
                lambda x, y: op(product(x, y)) + 1, rows(64), rows(64).cos()
            )
        (record,) = logs.records
        self.assertIn("it guards on a size, ", record.getMessage())
        self.assertIn("product", record.getMessage().replace(name, "product"))
        for n in SIZES:
            args = rows(n), rows(n).cos()
            self.assertEqual(compiled(*args), fn(*args) * 2 + 1, msg=f"at size {n}")
        self.assertEqual(code.count("def size_branch"), 2, msg=code)
        self.assertEqual(code.count(f"torch.ops.{name.replace('::', '.')}.default("), 2)

    @parametrize("guards", (False, True))
    def test_plain_lowering_in_a_row_with_an_op_that_has_none(self, guards):
        calls = []

        def not_looked_into(x: torch.Tensor) -> torch.Tensor:
            calls.append(x.shape)
            return x * 3

        def guarding(x: torch.Tensor) -> torch.Tensor:
            return x * 3 if x.shape[0] % 8 else x + x * 2

        fn = guarding if guards else not_looked_into
        name = f"fusion::op{next(_numbers)}"
        opaque = torch.library.custom_op(name, mutates_args=())(fn)
        opaque.register_fake(torch.empty_like)
        register_custom_op_autotuning(
            opaque, configs=[CustomOpRangeConfig("x", 0, RANGES, [lambda x: 3 * x])]
        )
        op = tuned_op(impls=(lambda x: x + x,))
        with made_up_times(lambda _, index: 1.0 if index == PLAIN_INDEX else 2.0):
            compiled = torch.compile(lambda x: opaque(op(x)) + 1)
            x = rows(64)
            torch._dynamo.mark_dynamic(x, 0)
            _, (code,) = run_and_get_code(compiled, x)
        self.assertIn(f"torch.ops.{opaque._opoverload}(", code)
        self.assertNotIn(f"torch.ops.{op._opoverload}(", code)
        self.assertNotIn("def size_branch", code)
        self.assertEqual(compiled(rows(8)), rows(8) * 6 + 1)

    def test_fallback_in_a_branch(self):
        op = tuned_op()
        register_custom_op_autotuning(
            op,
            configs=[
                CustomOpRangeConfig(
                    "x", 0, RANGES[1:], [lambda x: 2 * x, lambda x: x * 2]
                )
            ],
        )
        compiled, code = self.compile(lambda x: torch.relu(op(x)) + 1, rows(64))
        for n in SIZES:
            self.assertEqual(compiled(rows(n)), torch.relu(rows(n) * 2) + 1)
        self.assertEqual(kernel_calls(code)["call"], 0)

    @parametrize("view", (lambda x: x[1:, 1:], lambda x: x[:, :3], lambda x: x.mT))
    def test_layout_of_what_neighbours_compute(self, view):
        """Generated code lays a slice out anew, which its strides do not tell."""

        def pairs(x: torch.Tensor) -> torch.Tensor:
            sizes = (x.shape[0] - 1, 2)
            return x.as_strided(sizes, (x.stride(0), 1)).clone()

        name = f"fusion::op{next(_numbers)}"
        op = torch.library.custom_op(name, mutates_args=())(pairs)
        op.register_fake(lambda x: x.new_empty(x.shape[0] - 1, 2))
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [pairs])],
            include_fallback=False,
        )

        def fn(x):
            return op(view(x + 1)) + 1

        x = rows(64)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(fn)
        self.assertEqual(compiled(x), fn(x))
        for n in SIZES:
            self.assertEqual(compiled(rows(n)), fn(rows(n)))

    def test_no_candidate_left(self):
        def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return x - y

        name = f"fusion::op{next(_numbers)}"
        op = torch.library.custom_op(name, mutates_args=())(fn)
        op.register_fake(lambda x, y: torch.empty_like(x))

        def bad(x, y):
            raise NotImplementedError

        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [bad])]
        )
        # An input that is read behind the region's first node.
        y = rows(1)[0]
        compiled, _ = self.compile(lambda x: op(x * 3, y).relu(), rows(64))
        for n in SIZES:
            self.assertEqual(compiled(rows(n)), (rows(n) * 3 - y).relu())

    def test_argument_that_is_computed_and_written_to(self):
        """Who writes is out, as it is where the op stands alone."""

        def bad(x):
            x.mul_(3)
            return x - x / 3

        def fn(x):
            y = x * 2
            return op(y) + y

        op = tuned_op(impls=(bad, lambda x: x + x))
        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            compiled, _ = self.compile(fn, rows(64))
        (message,) = logs.output
        self.assertIn("'bad' is left out: it writes to an argument with aten.", message)
        self.check_values(compiled, fn, lambda n: [rows(n)])

    def test_input_that_is_written_later(self):
        op = tuned_op()

        def fn(x, state):
            y = torch.relu(op(x)) + state
            state.add_(1)
            return y + 1

        x = rows(64)
        state, expected = torch.zeros(8, device=DEVICE), torch.zeros(8, device=DEVICE)
        compiled, _ = self.compile(fn, x, state)
        expected.add_(1)
        for n in SIZES:
            result = compiled(rows(n), state)
            self.assertEqual(result, torch.relu(rows(n) * 2) + expected + 1)
            expected.add_(1)
            self.assertEqual(state, expected)


class TestStrides(FusionTestCase):
    """An op's kernel gets the strides that it gets in eager mode."""

    def op(self, *impls):
        """Returns an op, and the strides that its kernel is called with."""
        strides = []

        def fn(x: torch.Tensor) -> torch.Tensor:
            strides.append(x.stride())
            return (x * 2).contiguous()

        op = torch.library.custom_op(f"fusion::op{next(_numbers)}", mutates_args=())(fn)
        op.register_fake(lambda x: x.new_empty(x.shape))
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, list(impls))]
        )
        return op, strides

    def check(self, model, winner, make, strides):
        def only(runners, *_):
            return {i: Timing(1.0 if i == winner else 2.0) for i in runners}

        x = make(SIZES[0])
        compiled = torch.compile(model)
        with mock.patch.object(measure_ranges, "time_candidates", only):
            compiled(x)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        for n in SIZES:
            strides.clear()
            self.assertEqual(compiled(make(n)), model(make(n)), msg=f"at size {n}")
            as_compiled, as_eager = strides
            self.assertEqual(as_compiled, as_eager, msg=f"at size {n}")

    def test_behind_a_neighbour_that_keeps_those_of_its_input(self):
        op, strides = self.op(lambda x: x + x)

        def make(n):
            x = rows(6, n)
            torch._dynamo.mark_dynamic(x, 1)
            return x

        self.check(lambda x: op(x.t().flip(0) * 2), FALLBACK_INDEX, make, strides)

    def test_behind_a_candidate_that_returns_others(self):
        first, _ = self.op(lambda x: (x.t().contiguous() * 2).t())
        second, strides = self.op(lambda x: x + x)

        def make(n):
            x = rows(n)
            torch._dynamo.mark_dynamic(x, 0)
            return x

        # Of the combinations the second: the first op's implementation, the other op.
        self.check(lambda x: second(first(x)), 1, make, strides)
        self.check(lambda x: second(first(x).sin()), 1, make, strides)

    def test_of_products_that_are_no_size_of_an_input(self):
        first, _ = self.op(lambda x: (x.mT.contiguous() * 2).mT)
        second, strides = self.op(lambda x: x + x)

        def make(n):
            x = rows(n, 15).view(n, 5, 3)
            for dim in range(x.dim()):
                torch._dynamo.mark_dynamic(x, dim)
            return x

        self.check(lambda x: second(first(torch.cat([x, x], 2))), 1, make, strides)


def traced(fn, *args):
    """A graph as it is behind the post-grad passes, symbolic in the first size."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx
    from torch.fx.experimental.symbolic_shapes import (
        DimDynamic,
        ShapeEnv,
        StatelessSymbolicContext,
    )

    mode = FakeTensorMode(shape_env=ShapeEnv())
    fakes = []
    for arg in args:
        sizes = [DimDynamic.STATIC] * arg.dim()
        if arg.dim() == 2:
            sizes[0] = DimDynamic.DYNAMIC
        context = StatelessSymbolicContext(sizes)
        fakes.append(mode.from_tensor(arg, symbolic_context=context))
    with mode:
        return make_fx(fn, tracing_mode="real")(*fakes)


# Each of two tensors of eight columns, and to one.
STEPS = {
    "relu": lambda op, a, b: torch.relu(a),
    "sin": lambda op, a, b: torch.sin(a),
    "add": lambda op, a, b: a + b,
    "mul": lambda op, a, b: a * b,
    "sum": lambda op, a, b: a.sum(-1, keepdim=True).expand(-1, 8),
    "half": lambda op, a, b: a.half().float(),
    "op": lambda op, a, b: op(a),
    "flip": lambda op, a, b: a.flip(-1),
    "heads": lambda op, a, b: a.reshape(-1, 2, 4).mT.reshape(-1, 8),
    "repeat": lambda op, a, b: a[:, None, ::2].expand(-1, 2, -1).reshape(-1, 8),
    "gate": lambda op, a, b: a[:, 0][:, None] * b,
    "halves": lambda op, a, b: torch.cat(a.chunk(2, -1)[::-1], -1),
    "causal": lambda op, a, b: (
        a * (torch.arange(a.shape[0], device=a.device)[:, None] > 1)
    ),
}

# To the first of two tensors of eight columns.
WRITES = {
    "copy": lambda to, a: to.copy_(a),
    "part": lambda to, a: to[:, 2:6].copy_(a.abs()[:, ::2]),
    "reversed": lambda to, a: torch.ops.aten.index_put_(
        to, [None, torch.arange(7, -1, -1, device=to.device)], a.abs()
    ),
    "increase": lambda to, a: to.add_(a),
}


class TestLegality(FusionTestCase):
    def test_chain_and_tree(self):
        op = tuned_op()
        self.assertEqual(
            self.joined(lambda x: torch.relu(op(x)) * torch.sin(op(x) + x), rows(4)),
            ["op", "relu", "op", "add", "sin", "mul"],
        )
        self.assertEqual(
            self.joined(lambda x: (y := op(x)).relu() * (y.sin() + x), rows(4)),
            ["op", "relu", "sin", "add", "mul"],
        )

    def test_no_way_out_and_back_in(self):
        op = tuned_op()

        def fn(x):
            y = op(x)
            return y.sin() + y.sum(0)

        self.assertEqual(self.joined(fn, rows(4)), ["op", "sin"])

    def test_producer_with_another_reader(self):
        op = tuned_op()

        def fn(x):
            z = x.sin()
            return op(z.cos()), z, z.sum()

        self.assertEqual(self.joined(fn, rows(4)), ["sin", "cos", "op"])

    @parametrize(
        "compute,outside",
        (
            (lambda x, z: (x + z, torch.sin), ["add", "sin"]),
            (lambda x, z: (x + z[:1], torch.sin, torch.cos), ["add", "sin", "cos"]),
            (lambda x, z: (x + z, torch.sin, torch.cos), ["sin", "cos"]),
            (lambda x, z: (x + z, torch.sum), ["sum"]),
            (lambda x, z: (x + z, lambda t: t), []),
            (lambda x, z: (x + z * 0.5, torch.sin), ["mul", "add", "sin"]),
            (lambda x, z: (x + z + x.flip(0), torch.sin), ["flip", "sin"]),
            (lambda x, z: (z.half() + x, torch.sin), ["_to_copy", "add", "sin"]),
        ),
    )
    def test_what_another_reader_may_compute_itself(self, compute, outside):
        """If that moves no more memory than storing it for both."""
        op = tuned_op()

        def fn(x, z):
            value, *readers = compute(x, z)
            return [op(value), *(read(value) for read in readers)]

        args = rows(4), rows(4).cos()
        gm = traced(fn, *args)
        regions.form_regions(gm)
        names = [
            node.target.__name__.partition(".")[0]
            for node in gm.graph.nodes
            if node.op == "call_function"
            and isinstance(node.target, torch._ops.OpOverload)
        ]
        self.assertEqual([name for name in names if name != "slice"], outside)
        self.assertEqual(gm(*args), fn(*args))

    def test_producer_whose_other_reader_leads_back_stays_outside(self):
        op = tuned_op()

        def fn(x):
            z = x.sin()
            return op(z.cos() + z.sum(0, keepdim=True))

        self.assertEqual(self.joined(fn, rows(4)), ["cos", "add", "op"])

        def behind(x):
            z = x.sin()
            return op(z) * z.sum(0, keepdim=True).cos()

        self.assertEqual(self.joined(behind, rows(4)), ["op", "cos", "mul"])

    def test_producer_of_what_is_not_stored_stays_outside(self):
        """Unless nobody else reads it."""
        op = tuned_op()

        def fn(x):
            z = x.sum(-1, keepdim=True).sin()
            return op(z), z

        self.assertEqual(self.joined(fn, rows(4)), ["op"])
        self.assertEqual(self.joined(lambda x: fn(x)[0], rows(4)), ["sum", "sin", "op"])

    def test_producer_of_one_size_with_another_reader_stays_outside(self):
        op = tuned_op()

        def fn(x, weight):
            scale = weight + 1
            return op(x * scale), scale

        self.assertEqual(self.joined(fn, rows(4), rows(1)[0]), ["mul", "op"])

    def test_what_made_up_inputs_may_break_stays_outside(self):
        """Zeros are good divisors of nothing, and good indices until one is subtracted."""
        op = tuned_op()
        x, n = torch.ones(4, 8, dtype=torch.int64), torch.ones(8, dtype=torch.int64)

        def truncated(x, n):
            return torch.div(op(x), n, rounding_mode="trunc")

        def floored(x, n):
            return torch.div(op(x), n, rounding_mode="floor")

        self.assertEqual(self.joined(truncated, x, n), ["op"])
        self.assertEqual(self.joined(floored, x, n), ["op"])
        self.assertEqual(self.joined(truncated, rows(4), rows(1)[0]), ["op", "div"])
        self.assertEqual(self.joined(lambda x, n: op(x) % n, x, n), ["op"])
        self.assertEqual(self.joined(lambda x, n: torch.fmod(op(x), n), x, n), ["op"])
        self.assertEqual(self.joined(lambda x: op(x) % 3, x), ["op", "remainder"])
        self.assertEqual(self.joined(lambda x: op(x - 1), x), ["op"])
        self.assertEqual(self.joined(lambda x: op(x > 1), x), ["gt", "op"])

    def test_what_the_user_makes_to_benchmark_with_is_an_input(self):
        op = tuned_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [lambda x: x + x])],
            input_gen_fns={"x": torch.ones_like},
        )
        self.assertEqual(
            self.joined(lambda x: op(x.sin()).cos(), rows(4)), ["op", "cos"]
        )

    def test_nothing_moves_past_a_write(self):
        op = tuned_op()

        def fn(x, state):
            y = op(x).sin() + state
            state.add_(1)
            return y.cos()

        self.assertEqual(self.joined(fn, rows(4), rows(1)[0]), ["op", "sin", "add"])

        def before(x, state):
            z = x + state
            state.add_(1)
            return op(z)

        self.assertEqual(self.joined(before, rows(4), rows(1)[0]), ["op"])

    def test_random_numbers_stay_outside(self):
        op = tuned_op()
        self.assertEqual(
            self.joined(lambda x: torch.bernoulli(op(x).abs()), rows(4)), ["op", "abs"]
        )

    def test_views_at_the_ends_stay_outside(self):
        op = tuned_op()
        self.assertEqual(self.joined(lambda x: op(x.mT.mT).mT, rows(4)), ["op"])
        self.assertEqual(
            self.joined(lambda x: op(x.mT.mT).mT.sin().split(2), rows(4)),
            ["op", "transpose", "sin"],
        )

    def test_view_of_an_input_that_is_read_as_it_is_too(self):
        op = tuned_op()
        self.assertEqual(
            self.joined(lambda x: op(x.mT.mT) + x, rows(4)),
            ["transpose", "transpose", "op", "add"],
        )

    def test_what_is_larger_joins_where_it_is_stored(self):
        """A kernel that reads it could compute it instead."""
        op = tuned_op()

        def larger(x):
            return op(x).unsqueeze(2) * x.cos().unsqueeze(1)

        self.assertEqual(
            self.joined(larger, rows(4)),
            ["op", "unsqueeze", "cos", "unsqueeze", "mul"],
        )
        self.assertEqual(self.joined(lambda x: larger(x).amax(0), rows(4)), ["op"])
        self.assertEqual(
            self.joined(lambda x: (y := larger(x)).amax(0) @ y[0], rows(4)),
            ["op", "unsqueeze", "cos", "unsqueeze", "mul"],
        )
        self.assertEqual(
            self.joined(lambda x: op(x).narrow(1, 0, 2).sin().amax(0), rows(4)),
            ["op", "slice", "sin"],
        )

    def test_indices_made_of_sizes_join(self):
        op = tuned_op()

        self.assertEqual(
            self.joined(lambda x: op(row_numbers(x).unsqueeze(1) - 1), rows(4)),
            ["iota", "unsqueeze", "sub", "op"],
        )
        self.assertEqual(
            self.joined(lambda x: op(row_numbers(x).flip(0).unsqueeze(1) - 1), rows(4)),
            ["op"],
        )

    def test_calls_in_a_row_with_one_size(self):
        op = tuned_op()

        def fn(x):
            y = op(op(x).sin()).cos()
            return y + x

        self.assertEqual(self.joined(fn, rows(4)), ["op", "sin", "op", "cos", "add"])

    def test_not_where_work_is_on_streams(self):
        """Events order it by where they are in the graph."""
        op = tuned_op()
        gm = traced(lambda x: (op(x).sin(), x.cos()), rows(4))
        (cos,) = gm.graph.find_nodes(
            op="call_function", target=torch.ops.aten.cos.default
        )
        cos.meta["custom"] = {"stream": 3}
        before = str(gm.graph)
        regions.form_regions(gm)
        self.assertEqual(str(gm.graph), before)
        cos.meta["custom"] = None
        regions.form_regions(gm)
        self.assertIn("autotuned_region_0", str(gm.graph))

    def test_calls_whose_results_are_read_together(self):
        """As norms of queries and of keys, where what follows reads both."""
        op, other = tuned_op(), tuned_op()

        def added(x):
            return op(x).sin() + other(x.cos()).cos()

        names = ["op", "sin", "cos", "op", "cos", "add"]
        self.assertEqual(self.joined(added, rows(4), op=op), names)

        def in_a_tree(x):
            return op(added(x)) * added(x.neg())

        names = [*names, "op", "neg", *names, "mul"]
        self.assertEqual(self.joined(in_a_tree, rows(4), op=op), names)

        def one_depends_on_a_sum_of_the_other(x):
            y = op(x)
            return y.sin() + other(x.cos() + y.sum(0))

        self.assertEqual(
            self.joined(one_depends_on_a_sum_of_the_other, rows(4), op=op),
            ["op", "sin"],
        )

        def of_another_size(x, y):
            return op(x)[:1] + other(y)[:1]

        names = self.joined(of_another_size, rows(4), rows(5), op=op)
        self.assertEqual(names.count("op"), 1)
        with config.patch(custom_op_fusion_types=["epilogue", "prologue"]):
            names = self.joined(added, rows(4), op=op)
        self.assertEqual(names, ["op", "sin", "cos", "add"])

    def test_calls_whose_results_are_read_together_unless_one_is_taken(self):
        op = tuned_op()
        gm = traced(lambda x: op(x) + op(x.cos()), rows(4))
        first, second = (n for n in gm.graph.nodes if n.target is op._opoverload)
        with V.set_fake_mode(first.meta["val"].fake_mode):
            found = region_search.find_region(first, {second}, {second})
        self.assertNotIn(second, found.nodes)

    def test_calls_whose_results_are_read_together_become_one_dispatch(self):
        first, second = tuned_op(), tuned_op()

        def fn(x, gate):
            return first(x).sin() * gate + second(gate.cos()) * x

        self.check(fn, lambda n: (rows(n), rows(n).cos()), kernels=1)

    def test_calls_that_do_not_read_each_other_stay_apart(self):
        op = tuned_op()
        self.assertEqual(
            self.joined(lambda x: (op(x).sin(), op(x.cos())), rows(4)), ["op", "sin"]
        )

    def test_producers_from_before_another_region(self):
        op = tuned_op()

        def fn(x):
            first, second = x.sin(), x.cos()
            return op(first), op(second)

        gm = traced(fn, rows(4))
        regions.form_regions(gm)
        called = [n.target.__name__ for n in gm.graph.nodes if n.op == "call_function"]
        self.assertEqual(
            [name for name in called if name != "getitem"],
            ["autotuned_region_0", "autotuned_region_1"],
        )
        self.assertEqual(gm(rows(5)), fn(rows(5)))

    def test_reductions_of_rows_join_what_they_are_one_kernel_with(self):
        def product(x: torch.Tensor) -> torch.Tensor:
            return x @ x.new_ones(8, 8)

        op, other = tuned_op(), tuned_op(product, [product, lambda x: product(x) * 1])
        half = tuned_op(product, [product, lambda x: x.sum(1, keepdim=True) + 0 * x])
        names = ["op", "sin", "amax", "sub"]

        def behind(y):
            y = y.sin()
            return y - y.amax(1, keepdim=True)

        self.assertEqual(self.joined(lambda x: behind(op(x)), rows(4)), names)
        self.assertEqual(self.joined(lambda x: behind(other(x)), rows(4)), names)
        self.assertEqual(self.joined(lambda x: behind(half(x)), rows(4)), names)
        self.assertEqual(
            self.joined(lambda x: behind(other(op(x))), rows(4)), ["op", *names]
        )
        self.assertEqual(self.joined(lambda x: op(x).amax(1), rows(4)), ["op", "amax"])
        self.assertEqual(self.joined(lambda x: other(x).amax(1), rows(4)), ["op"])
        self.assertEqual(
            self.joined(lambda x: ((y := other(x)).amax(1), y.sin()), rows(4)),
            ["op", "amax", "sin"],
        )
        self.assertEqual(
            self.joined(
                lambda x: ((y := other(x)).sin(), y.view(-1, 2, 4).amax(2)), rows(4)
            ),
            ["op", "sin", "view", "amax"],
        )
        self.assertEqual(
            self.joined(lambda x: torch.softmax(other(x), 1), rows(4)), ["op"]
        )
        self.assertEqual(self.joined(lambda x: op(behind(other(x))), rows(4)), names)
        self.assertEqual(
            self.joined(lambda x: other(behind(op(x))), rows(4)), [*names, "op"]
        )
        self.assertEqual(self.joined(lambda x: op(x).sin().amax(0), rows(4)), names[:2])
        self.assertEqual(self.joined(lambda x: op(x).sin().amax(), rows(4)), names[:2])
        self.assertEqual(
            self.joined(lambda x: op(x).sin().var(1, unbiased=False), rows(4)),
            ["op", "sin", "var"],
        )

    def test_reductions_of_rows_in_front(self):
        def product(x: torch.Tensor) -> torch.Tensor:
            return x @ x.new_ones(8, 8)

        op, other = tuned_op(), tuned_op(product, [product, lambda x: product(x) * 1])

        def normed(x):
            variance, mean = torch.var_mean(x.sin(), 1, keepdim=True)
            return x - mean * variance

        names = ["sin", "var_mean", "getitem", "getitem", "mul", "sub", "op"]
        self.assertEqual(self.joined(lambda x: op(normed(x)), rows(4)), names)
        self.assertEqual(self.joined(lambda x: other(normed(x)), rows(4)), names)
        self.assertEqual(
            self.joined(lambda x: other(x - x.sum(0)), rows(4)), ["sub", "op"]
        )

        def read_elsewhere(x):
            variance, mean = torch.var_mean(x.sin(), 1, keepdim=True)
            return op(x - mean * variance), mean

        self.assertEqual(self.joined(read_elsewhere, rows(4)), names[-3:])
        with config.patch(custom_op_fusion_types=("prologue",)):
            self.assertEqual(self.joined(lambda x: op(normed(x)), rows(4)), names[-3:])

        def place(x):
            return x.argmax(1, keepdim=True) + 1

        self.assertEqual(
            self.joined(lambda x: op(x * place(x)), rows(4)), ["mul", "op"]
        )
        maximum = lambda x: x.amax(1, keepdim=True)  # noqa: E731
        self.assertEqual(self.joined(lambda x: op(maximum(x)), rows(4)), ["amax", "op"])
        self.assertEqual(self.joined(lambda x: other(maximum(x)), rows(4)), ["op"])

    def test_work_for_others_is_left_to_them_behind_what_is_no_kernel(self):
        """What reduces columns, say, is one kernel with that, and not with a product."""

        def product(x: torch.Tensor) -> torch.Tensor:
            return x @ x.new_ones(8, 8)

        op, other = tuned_op(), tuned_op(product, [product, lambda x: product(x) * 1])

        def fn(called):
            return lambda x: called(x).sin().cos().sum(0)

        def kept(called):
            return lambda x: ((y := called(x).sin()), y.cos().sum(0))

        def in_double(called):
            return lambda x: called(x).sin().double().sum(0)

        self.assertEqual(self.joined(fn(op), rows(4)), ["op", "sin", "cos"])
        self.assertEqual(self.joined(fn(other), rows(4)), ["op"])
        self.assertEqual(self.joined(kept(op), rows(4)), ["op", "sin", "cos"])
        self.assertEqual(self.joined(kept(other), rows(4)), ["op", "sin"])
        self.assertEqual(self.joined(in_double(op), rows(4)), ["op", "sin"])

    def test_outputs_of_the_last_reduction_join(self):
        op = tuned_op()
        with mock.patch.object(region_search, "_MOST_NODES", 2):
            self.assertEqual(
                self.joined(lambda x: torch.max(op(x), 1), rows(4)),
                ["op", "max", "getitem", "getitem"],
            )

    def test_calls_with_a_reduction_between_stay_apart(self):
        op = tuned_op()
        self.assertEqual(
            self.joined(lambda x: op((y := op(x)) + y.sum(0)), rows(4)), ["op"]
        )

    @parametrize(
        "types,expected",
        (
            (("epilogue",), ["op", "sin"]),
            (("prologue",), ["neg", "op"]),
            (("cross_subgraph",), ["op"]),
            (("epilogue", "cross_subgraph"), ["op", "sin", "op", "cos"]),
            ((), ["op"]),
        ),
    )
    def test_types(self, types, expected):
        op = tuned_op()
        with config.patch(custom_op_fusion_types=types):
            found = self.joined(lambda x: op(op(-x).sin()).cos(), rows(4))
        self.assertEqual(found, expected)

    @parametrize(
        "other,fn",
        (
            (
                "embedding",
                lambda op, x: op(torch.ops.aten.embedding(x, x.long()[:, 0])),
            ),
            ("cat", lambda op, x: op(torch.cat([x, x], 1))),
        ),
    )
    def test_registered_ops_that_move_elements(self, other, fn):
        """They are no neighbours, but to be tuned by themselves."""
        op = tuned_op()
        self.assertIn(other, self.joined(lambda x: fn(op, x), rows(4)))
        target = getattr(torch.ops.aten, other).default
        register_custom_op_autotuning(
            target, configs=[CustomOpConfig(lambda *args, **kwargs: target(*args))]
        )
        with config.patch(custom_op_fusion_types=("prologue", "epilogue")):
            self.assertEqual(self.joined(lambda x: fn(op, x), rows(4), op=op), ["op"])

    @config.patch(custom_op_fusion_types=("epilog",))
    def test_unknown_type(self):
        op = tuned_op()
        message = (
            "custom_op_fusion_types has .'epilog'.; known are .'epilogue', 'prologue'"
        )
        with self.assertRaisesRegex(ValueError, message):
            self.joined(lambda x: op(x).sin(), rows(4))

    @parametrize(
        "options,expected",
        (
            ({"max_fusion_depth": 2}, ["neg", "abs", "op", "sin", "cos"]),
            ({"enable_recursive_fusion": False}, ["abs", "op", "sin"]),
        ),
    )
    def test_depth(self, options, expected):
        op = tuned_op()
        with config.patch(options):
            found = self.joined(
                lambda x: op((-x.exp()).abs()).sin().cos().tan(), rows(4)
            )
        self.assertEqual(found, expected)

    def test_static_and_rangeless_calls_form_no_region(self):
        op = tuned_op()
        static = torch.fx.symbolic_trace(lambda x: op(x).sin())
        regions.form_regions(static)
        self.assertEqual(len(static.graph.nodes), 4)
        register_custom_op_autotuning(op, configs=[CustomOpConfig(lambda x: 2 * x)])
        gm = traced(lambda x: op(x).sin(), rows(4))
        regions.form_regions(gm)
        self.assertEqual(
            [n.target.__name__ for n in gm.graph.nodes if n.op == "call_function"],
            [op._opoverload.__name__, "sin.default"],
        )

    # The first operand of a step is a value made before, the second a value or an input.
    steps = st.lists(
        st.tuples(
            st.sampled_from(sorted(STEPS)) | st.sampled_from(sorted(WRITES)),
            st.integers(0, 9),
            st.integers(0, 9),
        ),
        min_size=1,
        max_size=10,
    )

    @settings(max_examples=100, deadline=None, derandomize=True)
    @given(steps, st.lists(st.integers(0, 9), min_size=1, max_size=3))
    def test_random_graphs_compute_the_same(self, steps, returned):
        op = tuned_op()

        def fn(x, other):
            values = [x, other, op(x)]
            for kind, i, j in steps:
                a, b = values[i % len(values)], values[j % len(values)]
                if kind in WRITES:
                    WRITES[kind](values[j % 2], a)
                else:
                    values.append(STEPS[kind](op, a, b))
            return [values[-1 - i % len(values)] for i in returned]

        given, args = ((rows(4), rows(4).cos()) for _ in range(2))
        gm = traced(fn, *given)
        expected = gm(*given)
        regions.form_regions(gm)
        gm.graph.lint()
        self.assertEqual(gm(*args), expected)
        self.assertEqual(args, given)


instantiate_parametrized_tests(TestEmittedCode)
instantiate_parametrized_tests(TestLegality)

if __name__ == "__main__":
    run_tests()
