# Owner(s): ["module: inductor"]
"""Tables that a branch reads at places that it is given, such as an embedding's."""

from __future__ import annotations

from unittest import mock

import torch.nn.functional as F
from range_autotune_testing import row_numbers
from test_custom_op_fusion import (
    FusionTestCase,
    kernel_calls,
    RANGES,
    rows,
    SIZES,
    tuned_op,
    two_winners,
)
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_cpp_code
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.measuring import calls


TABLE_ROWS = 50


def places(n):
    """The same each time, in no order, and the last row of the table among them."""
    return (torch.arange(n, device=rows(1).device) * 7 + TABLE_ROWS - 1) % TABLE_ROWS


def given(n):
    return rows(n), rows(TABLE_ROWS).cos(), places(n)


def embedding(op, x, table, at):
    return op(F.embedding(at, table) * x).sin()


def residual(op, x, table, at):
    embedded = F.embedding(at, table)
    return op(embedded) + embedded + x


def angles(op, x, table, at):
    """Of a rotary embedding, by position; both tables are read at the same places."""
    return op(x) * table[at] + x * (table * 2)[at]


def by_views(op, x, table, at):
    return op(table[at.view(-1, 1)].view(-1, 8) + x)


def elements(op, x, table, at):
    return op(x.gather(1, (at % 8).unsqueeze(1).expand(-1, 8))) * x


def two_dimensions(op, x, table, at):
    return op(x) + table[at, at % 8].unsqueeze(1)


def rows_of_x(op, x, table, at):
    """Of another tensor of as many rows."""
    return op(x[at % x.shape[0]].cos())


@instantiate_parametrized_tests
class TestEmittedCode(FusionTestCase):
    @parametrize("fn", (embedding, residual, angles, by_views, rows_of_x))
    def test_one_kernel(self, fn):
        # One that computes what is no place yet, outside.
        outside = int(fn is rows_of_x)
        op = tuned_op()
        self.check(lambda *args: fn(op, *args), given, 1, outside)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    @parametrize("fn", (elements, two_dimensions))
    def test_places_of_several_shapes(self, fn):
        op = tuned_op()
        self.check(lambda *args: fn(op, *args), given, kernels=1, outside=1)

    def test_others_read_the_table_themselves(self):
        """As where the op is not registered: nobody stores what is gathered."""
        op = tuned_op()

        def fn(x, table, at):
            embedded = F.embedding(at, table)
            return op(embedded), (embedded + x).sum(0)

        compiled, code = self.compile(fn, *given(SIZES[0]))
        self.check_values(compiled, fn, given)
        self.assertEqual(kernel_calls(code)["call"], 1)
        self.assertEqual(code.count(" = empty_strided"), 1 + 2)

    @parametrize("in_front", (True, False))
    def test_of_a_table_that_is_written_to(self, in_front):
        """All of it is read before, though each row is written where the next one is read."""
        op = tuned_op()

        def fn(x, table, at):
            y = op(table[at] + x) if in_front else op(x)
            table[at + 1] = y if in_front else y + table[at]
            return y

        def make(n):
            return rows(n), rows(400).cos(), torch.arange(n, device=rows(1).device)

        compiled, code = self.compile(fn, *make(SIZES[0]))
        self.assertEqual(code.count("def size_branch"), 2)
        self.check_values(compiled, fn, make)

    def test_cpp_wrapper(self):
        op = tuned_op()
        compiled = torch.compile(lambda *args: residual(op, *args))
        args = given(SIZES[0])
        for arg in (args[0], args[2]):
            torch._dynamo.mark_dynamic(arg, 0)
        with config.patch(cpp_wrapper=True), two_winners():
            run_and_get_cpp_code(compiled, *args)
        self.check_values(compiled, lambda *args: residual(op, *args), given)

    def test_training(self):
        op = tuned_op()
        op.register_autograd(lambda ctx, grad: grad * 2)

        def gradient(fn, n):
            x, table, at = given(n)
            table.requires_grad_()
            for arg in (x, at):
                torch._dynamo.mark_dynamic(arg, 0)
            fn(x, table, at).sum().backward()
            return table.grad

        compiled = torch.compile(lambda *args: residual(op, *args))
        with two_winners():
            gradient(compiled, SIZES[0])
        for size in SIZES:
            expected = gradient(lambda *args: residual(op, *args), size)
            self.assertEqual(gradient(compiled, size), expected)


class TestLegality(FusionTestCase):
    def test_what_joins(self):
        op = tuned_op()
        at = torch.zeros(4, 1, dtype=torch.int64)
        table = torch.ones(5)

        def names(fn, table=table, at=at):
            return self.joined(fn, rows(4).cpu(), table, at)

        self.assertEqual(
            names(lambda x, table, at: op(F.embedding(at[:, 0], table[:, None]) + x)),
            ["embedding", "add", "op"],
        )
        self.assertEqual(names(lambda x, t, at: op(x.gather(1, at))), ["gather", "op"])
        self.assertEqual(names(lambda x, t, at: op(x) * t[at]), ["op", "index", "mul"])
        # A step as any other.
        with config.patch(max_fusion_depth=1):
            self.assertEqual(names(lambda x, t, at: op(x) * t[at]), ["op", "mul"])

    def test_what_stays_outside(self):
        op = tuned_op()
        at = torch.zeros(4, 1, dtype=torch.int64)
        x = rows(4).cpu()

        def names(fn, *args):
            return self.joined(fn, x, *args)

        def sparse(x, at):
            return op(F.embedding(at[:, 0], x, sparse=True) + x)

        self.assertEqual(names(sparse, at), ["add", "op"])
        # What an op made is no table of its own epilogue.
        self.assertEqual(names(lambda x, at: op(x)[at[:, 0]] + x, at), ["op"])
        # Integers may be indices themselves.
        table = torch.zeros(5, dtype=torch.int64)
        self.assertEqual(
            names(lambda x, t, at: op(x) * t[at], table, at), ["op", "mul"]
        )

    def test_places_are_given(self):
        """Those made of sizes may not exist in the table at another size."""
        op = tuned_op()

        def fn(x, table):
            return op(table[row_numbers(x)] * x)

        self.assertEqual(
            self.joined(fn, rows(4).cpu(), torch.ones(5, 8)), ["index", "mul", "op"]
        )

    def test_what_the_user_makes_is_for_the_op(self):
        def double(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return x * 2

        op = torch.library.custom_op("region_places::made", mutates_args=())(double)
        op.register_fake(lambda x, at: torch.empty_like(x))
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [double])],
            input_gen_fns={"at": torch.ones_like},
        )

        def fn(x, table, at):
            return op(x, at) * table[at]

        at = torch.zeros(4, 1, dtype=torch.int64)
        self.assertEqual(
            self.joined(fn, rows(4).cpu(), torch.ones(5), at), ["made", "mul"]
        )


class TestMeasured(FusionTestCase):
    def measured_with(self, fn, *args):
        """The integers that candidates are called with, by the size that they are called at."""
        found = {}
        make_inputs = calls.make_inputs

        def spy(site, point, *rest):
            made = make_inputs(site, point, *rest)
            found[point.size] = [
                x for x in made if getattr(x, "dtype", None) == torch.int64
            ]
            return made

        with mock.patch.object(calls, "make_inputs", spy):
            self.compile(fn, *args)
        self.assertGreater(len(found), 2)
        return found

    def test_at_all_places_in_turns(self):
        op = tuned_op()
        found = self.measured_with(lambda *args: residual(op, *args), *given(SIZES[0]))
        for size, (at,) in found.items():
            self.assertEqual(at, torch.arange(size, device=at.device) % TABLE_ROWS)

    def test_of_the_smallest_table(self):
        op = tuned_op()

        def fn(x, table, at):
            return op(x) * table[at] + table[:3, 0][at].unsqueeze(1)

        x, table, at = given(SIZES[0])
        found = self.measured_with(fn, x, table, at % 3)
        for size, (at,) in found.items():
            self.assertEqual(at, torch.arange(size, device=at.device) % 3)

    def test_zeros_where_the_op_reads_them_too(self):
        def picked(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            return x + at.unsqueeze(1)

        op = torch.library.custom_op("region_places::picked", mutates_args=())(picked)
        op.register_fake(lambda x, at: torch.empty_like(x))
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [picked] * 2)]
        )
        found = self.measured_with(
            lambda x, table, at: op(x, at) * table[at], *given(SIZES[0])
        )
        self.assertTrue(all(not at.any() for (at,) in found.values()))


if __name__ == "__main__":
    run_tests()
