# Owner(s): ["module: inductor"]
"""Writes to inputs by the branch that computes what is written."""

import contextlib
import inspect
import logging
import math
import re
import unittest
from unittest import mock

from test_custom_op_fusion import (
    first_then_second,
    FusionTestCase,
    kernel_calls,
    RANGES,
    rows,
    SIZES,
    traced,
    tuned_op,
    two_winners,
)
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_cpp_code
from torch._inductor.virtualized import V
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
from torch._inductor.range_autotune import deferred, regions
from torch._inductor.range_autotune.graphs.node_memory import REGION_WRITES
from torch._inductor.range_autotune.inputs import TensorSpec
from torch._inductor.range_autotune.measuring import measure_ranges
from torch._inductor.range_autotune.neighbours.region_inputs import (
    updated_inputs,
    written_outputs,
)
from torch._inductor.range_autotune.times import Timing


def two(n):
    return rows(n), rows(n).cos()


def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def copied(op, x, y):
    y.copy_(op(x) + 1)


def added(op, x, y):
    x.add_(op(x))
    return x * 3, y


def of_half_the_columns(op, x, y):
    y[:, :4].copy_(op(x)[:, ::2])


def as_doubles(op, x, y):
    y[:, 2:].copy_(op(x)[:, 2:].double())
    return y.sin()


def two_values(op, x, y):
    z = op(x)
    x.copy_(z.sin() + y)
    y.copy_(z.cos() * y)


def shifted(op, x, y):
    y[:, :4].copy_(op(x)[:, :4] + y[:, 4:])


def turned(op, x, y):
    y.T.copy_(op(x).T + 1)


class Cache(torch.nn.Module):
    """Writes rows of its buffer."""

    def __init__(self, op):
        super().__init__()
        self.op = op
        self.register_buffer("rows", rows(400).cos())

    def forward(self, x, places):
        self.rows[places] = self.op(x).sin()
        return self.rows[:2] + x.amax()


@contextlib.contextmanager
def numbered_operations():
    """The names of a graph's operations behind each choice that is made."""
    found = []
    resolve = deferred._Waiting.resolve

    def note(waiting):
        resolve(waiting)
        found.append([op.get_operation_name() for op in V.graph.operations])

    with mock.patch.object(deferred._Waiting, "resolve", note):
        yield found


class TestEmittedCode(FusionTestCase):
    @parametrize("deferred", (True, False))
    @parametrize(
        "fn",
        (copied, added, of_half_the_columns, two_values, turned),
    )
    def test_in_place(self, fn, deferred):
        op = tuned_op()
        with config.patch(defer_custom_op_choices=deferred):
            self.check(
                lambda x, y: fn(op, x, y),
                two,
                kernels=1,
            )

    def test_of_what_lies_elsewhere_in_it(self):
        op = tuned_op()
        self.check(lambda x, y: shifted(op, x, y), two, kernels=1)

    def test_of_what_the_op_reads(self):
        """A residual stream: the sum is stored where it was."""
        op = tuned_op()

        def fn(x, residual):
            residual.add_(x)
            return op(residual).sin()

        self.check(fn, two, kernels=1)

        def layers(x, residual):
            residual.add_(x)
            y = op(residual) @ torch.ones(8, 8, device=x.device)
            residual.add_(y)
            return op(residual).sin()

        compiled, _ = self.compile(layers, *two(SIZES[0]))
        self.check_values(compiled, layers, two)

    def test_behind_a_softmax(self):
        """Whose loops share a row with the write's."""

        def fn(op, x):
            y = op(x)
            z = torch.softmax(y, -1) + y
            x.copy_(z)
            return z

        op = tuned_op()
        self.check(lambda x: fn(op, x), lambda n: (rows(n),), kernels=1)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)
        for op in (tuned_op(), tuned_op(ranges=[(0, math.inf)])):
            x, given = rows(SIZES[0]), rows(SIZES[0])
            with two_winners():
                result = torch.compile(fn)(op, x)
            self.assertEqual((result, x), (fn(op, given), given))

    def test_another_dtype(self):
        op = tuned_op()
        self.check(
            lambda x, y: as_doubles(op, x, y),
            lambda n: (rows(n), rows(n).cos().double()),
            kernels=1,
            outside=1,
        )

    def test_rows_of_a_cache(self):
        op = tuned_op()

        def fn(x, cache, places):
            key = op(x).sin()
            cache[places] = key
            return key

        def make(n):
            places = torch.arange(n, device=rows(1).device).flip(0) + 3
            return rows(n), rows(400).cos(), places

        self.check(fn, make, kernels=1)

    def test_places_of_a_fixed_size(self):
        """They do not fix that of the rows, which is marked to be dynamic."""
        op = tuned_op()

        def fn(x, cache, places):
            cache[places] = op(x).sin()

        n = SIZES[0]
        x, places = rows(n), torch.arange(n, device=rows(1).device)
        torch._dynamo.mark_dynamic(x, 0)
        cache, expected = rows(400), rows(400)
        with two_winners():
            torch.compile(fn)(x, cache, places)
        fn(x, expected, places)
        self.assertEqual(cache, expected)

    def test_rows_of_a_paged_cache(self):
        op = tuned_op()

        def fn(x, cache, places):
            key = op(x)
            cache[places // 16, places % 16] = key.half()
            return key + 1

        def make(n):
            places = torch.arange(n, device=rows(1).device).flip(0) + 3
            return rows(n), rows(400).view(25, 16, 8).half(), places

        self.check(fn, make, kernels=1, outside=1)

    def test_who_reads_it_before_and_behind(self):
        op = tuned_op()

        def fn(x, y):
            before = y * 3
            y.copy_(op(x).sin())
            return before, y.amax()

        self.check(fn, two, kernels=1, outside=2)

    def test_of_two_ops(self):
        """Neither write is in the other's way."""
        first, second = tuned_op(), tuned_op()

        def fn(x, keys, values):
            k, v = first(x).sin(), second(x).cos()
            keys.copy_(k)
            values.copy_(v)

        make = lambda n: (rows(n), rows(n) * 3, rows(n) * 4)  # noqa: E731
        compiled, code = self.compile(fn, *make(SIZES[0]))
        self.check_values(compiled, fn, make)
        calls = kernel_calls(code)
        self.assertEqual([n for name, n in calls.items() if name != "call"], [1] * 4)
        self.assertEqual(calls["call"], 0)

    @config.patch(combo_kernels=True)
    def test_choices_behind_two_writes(self):
        """A dispatch is one operation, however many it stands for: names stay unique."""
        op = tuned_op()

        def fn(x, keys, values):
            h = op(x)
            keys.copy_(h + 1)
            values.copy_(h * 3)
            y = op(x.cumsum(0))
            return y, op(y.cumsum(0))

        # Sums of integers, which have no rounding errors.
        make = lambda n: (rows(n).round(), rows(n) * 3, rows(n) * 4)  # noqa: E731
        with numbered_operations() as numbers:
            compiled, _ = self.compile(fn, *make(SIZES[0]))
        self.check_values(compiled, fn, make)
        self.assertEqual(len(numbers), 3)
        for found in numbers:
            self.assertEqual(found, [f"op{i}" for i in range(len(found))])

    @unittest.skipIf(not HAS_GPU, "CUDA graphs")
    def test_cuda_graphs_of_a_cache(self):
        op = tuned_op()
        cache, expected = Cache(op), Cache(op)
        with mock.patch.object(measure_ranges, "time_candidates", first_then_second):
            compiled = torch.compile(cache, mode="reduce-overhead")
            for _ in range(4):
                for size in SIZES:
                    args = rows(size), torch.arange(size, device=rows(1).device)
                    for arg in args:
                        torch._dynamo.maybe_mark_dynamic(arg, 0)
                    self.assertEqual(compiled(*args), expected(*args))
                    self.assertEqual(cache.rows, expected.rows)
        self.assertEqual(counters["inductor"]["cudagraph_skips"], 0)

    def test_branches_in_cpp(self):
        op = tuned_op()

        def fn(x, y):
            z = op(x)
            x.add_(z)
            y.copy_(z.sin())

        with config.patch(cpp_wrapper=True):
            compiled, _ = self.compile(fn, *two(SIZES[0]))
        self.check_values(compiled, fn, two)

    def test_buffer_of_a_model_compiled_ahead(self):
        op = tuned_op()

        def make(n):
            return rows(n), torch.arange(n, device=rows(1).device)

        size = torch.export.Dim("size", min=2, max=400)
        exported = torch.export.export(
            Cache(op), make(SIZES[0]), dynamic_shapes=({0: size}, {0: size})
        )
        with two_winners():
            package, code = run_and_get_cpp_code(
                lambda: torch._inductor.aoti_compile_and_package(exported)
            )
        kernels = set(re.findall(r"fused_\w*index_put\w*", code))
        self.assertTrue(kernels)
        self.assertTrue(all("sin" in kernel for kernel in kernels), msg=kernels)
        loaded, expected = torch._inductor.aoti_load_package(package), Cache(op)
        for n in SIZES:
            self.assertEqual(loaded(*make(n)), expected(*make(n)))

    def test_no_candidate_left(self):
        """The model writes."""
        op = torch.library.custom_op("region_writes::alone", mutates_args=())(double)
        op.register_fake(torch.empty_like)

        def broken(x):
            raise RuntimeError("broken")

        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [broken, broken])]
        )

        def fn(x, y):
            y.copy_(op(x).sin() + y)

        x, y, expected = rows(64), rows(64), rows(64)
        fn(x, expected)
        for tensor in (x, y):
            torch._dynamo.mark_dynamic(tensor, 0)
        torch.compile(fn)(x, y)
        self.assertEqual(y, expected)


class TestWritesAndReads(FusionTestCase):
    """What is written to may be what candidates read, return or are told to write to."""

    def check_values(self, fn, make):
        for waits in (True, False):
            torch._dynamo.reset()
            with config.patch(defer_custom_op_choices=waits):
                compiled, _ = self.compile(fn, *make(SIZES[0]))
            super().check_values(compiled, fn, make)

    def test_places_that_only_some_sizes_have(self):
        """They are given, so that none are made up that the cache lacks."""
        op = tuned_op(ranges=[(0, 100), (100, 4000)])

        def fn(x, cache):
            cache[torch.arange(x.shape[0], device=x.device)] = op(x)
            return cache.amax(1)

        self.check_values(fn, lambda n: (rows(n), rows(400).cos()))
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    def test_dtype_that_no_code_is_generated_for(self):
        def twice(x: torch.Tensor) -> torch.Tensor:
            return x + x

        op = tuned_op(twice, [lambda x: x + x, lambda x: x * 2])

        def fn(x, cache):
            y = op(x)
            cache[: x.shape[0]].copy_(y)
            return y + 1

        def make(n):
            return tuple(values.to(torch.complex64) for values in (rows(n), rows(400)))

        self.check_values(fn, make)

    def test_result_that_equals_an_input(self):
        """Passes drop the product with ones."""

        def equal(x: torch.Tensor) -> torch.Tensor:
            return x * 1.0

        op = tuned_op(equal, [lambda x: x * torch.ones_like(x)] * 2)

        def in_the_region(x, y):
            saved = op(x)
            x.mul_(saved.sigmoid())
            return saved

        def outside(x, y):
            saved = op(x)
            x.copy_(y.sort(0)[0])
            return saved

        self.check_values(in_the_region, two)
        self.check_values(outside, two)

    def test_op_that_fills_its_result(self):
        @torch.library.custom_op("region_writes::fill", mutates_args=("out",))
        def fill(out: torch.Tensor, x: torch.Tensor) -> None:
            out.copy_(x * 2)

        fill.register_fake(lambda out, x: None)

        def through_fill(x):
            out = torch.empty_like(x)
            fill(out, x)
            return out

        op = tuned_op(impls=[through_fill] * 2)

        def fn(x, cache, places):
            key = op(x) + 1
            cache[places - 1] = key
            return key

        def make(n):
            return rows(n), rows(400).cos(), torch.arange(n, device=rows(1).device) + 1

        self.check_values(fn, make)

    def test_moved(self):
        """A view of a result is written beside where it was read."""
        op = tuned_op()

        def by_one(x):
            x[:, 1:].copy_(op(x)[:, :-1])

        def by_two_the_other_way(x):
            x[:, :-2].copy_((op(x) + 1)[:, 2:])

        def turned_within_each_row(x):
            x.copy_(op(x).view(-1, 2, 4).transpose(1, 2).reshape(-1, 8))

        for fn in (by_one, by_two_the_other_way, turned_within_each_row):
            self.check_values(fn, lambda n: (rows(n),))

    def test_transposed(self):
        op = tuned_op()

        def square(n):
            x = rows(n, n)
            torch._dynamo.maybe_mark_dynamic(x, 1)
            return (x,)

        def written(x):
            x.T.copy_(op(x))

        def read(x):
            x.copy_(op(x.T) + 1)

        def turned_behind(x):
            x.copy_(op(x).T + 1)

        for fn in (written, read, turned_behind):
            self.check_values(fn, square)


class TestLegality(FusionTestCase):
    def test_what_reads_it_elsewhere_ends_the_region(self):
        op = tuned_op()

        def fn(x, y):
            z = op(x)
            flat = y.view(-1)
            y.copy_(z.sin())
            return z.cos() + flat[:8], z.exp()

        self.assertEqual(
            self.joined(fn, rows(4), rows(4)), ["op", "sin", "copy_", "cos"]
        )

    def test_what_reads_the_value_joins(self):
        op = tuned_op()

        def fn(x, y):
            z = op(x)
            y.copy_(z.sin())
            return z.cos() + y, z.exp()

        self.assertEqual(
            self.joined(fn, rows(4), rows(4)),
            ["op", "sin", "copy_", "cos", "add", "exp"],
        )

        def rounded(x, y):
            z = op(x)
            y.copy_(z.sin())
            return z.cos() + y

        self.assertEqual(
            self.joined(rounded, rows(4), rows(4).half()),
            ["op", "sin", "copy_", "cos"],
        )

    def test_not_across_what_reads_it_as_it_was(self):
        op = tuned_op()

        def fn(x, y):
            z = op(x)
            total = z.sum(0) + y
            y.copy_(z.sin())
            return total

        self.assertEqual(self.joined(fn, rows(4), rows(4)), ["op", "sin"])
        without = lambda x, y: (z := op(x), z.sum(0), y.copy_(z.sin()))[1]  # noqa: E731
        self.assertEqual(self.joined(without, rows(4), rows(4)), ["op", "sin", "copy_"])

    def test_views_of_it_are_known_as_such(self):
        op = tuned_op()

        def fn(x, y):
            y.copy_(op(x) + y.mT.sin().mT)

        self.assertEqual(
            self.joined(fn, rows(4), rows(4)),
            ["op", "transpose", "sin", "transpose", "add", "copy_"],
        )

        def unknown(x, y):
            y.copy_(op(x) + y.as_strided([y.shape[0], 8], [8, 0]))

        self.assertEqual(self.joined(unknown, rows(4), rows(4)), ["op", "add"])

        def square(x):
            x.copy_(op(x.mT) + 1)

        self.assertEqual(self.joined(square, rows(4, 4)), ["op", "add"])

    def test_integers_that_are_read_and_written_stay_outside(self):
        """Called again and again, as in measuring, they would leave their bounds."""
        op = tuned_op()

        def fn(x, places):
            z = op(x + places)
            places.copy_(z > 0)
            return z

        places = torch.ones(4, 8, dtype=torch.int32, device=rows(1).device)
        self.assertEqual(self.joined(fn, rows(4), places), ["add", "op", "gt"])

        def as_places(x, y, places):
            z = op(x)
            y.index_put_([places[:, 0]], z)
            places.copy_(z > 0)

        self.assertEqual(
            self.joined(as_places, rows(4), rows(4), places.long()),
            ["op", "index_put_", "gt"],
        )

        def its_own(x, places):
            places.index_put_([places], (op(x) > 0)[0, 0])

        self.assertEqual(self.joined(its_own, rows(4), places[0].long())[:1], ["op"])
        self.assertNotIn("index_put_", self.joined(its_own, rows(4), places[0].long()))

        def unread(x, places):
            z = op(x)
            places.copy_(z > 0)

        self.assertEqual(self.joined(unread, rows(4), places), ["op", "gt", "copy_"])
        # Nobody takes such for places.
        self.assertIn("copy_", self.joined(fn, rows(4), places.to(torch.int8)))

    def test_of_a_producer(self):
        op = tuned_op()

        def fn(x, y):
            z = x + y
            total = op(z).sum(0)
            y.copy_(z)
            return total

        self.assertEqual(self.joined(fn, rows(4), rows(4)), ["add", "op", "copy_"])

        def read_between(x, y):
            z = x + y
            total = op(z).sum(0) + y
            y.copy_(z)
            return total

        self.assertEqual(self.joined(read_between, rows(4), rows(4)), ["add", "op"])

    def test_sums_in_memory_stay_outside(self):
        op = tuned_op()

        def fn(x, y, places):
            y.index_put_([places], op(x).sin(), accumulate=True)

        places = torch.arange(4, device=rows(1).device)
        self.assertEqual(self.joined(fn, rows(4), rows(4), places), ["op", "sin"])

    def test_masks_stay_outside(self):
        op = tuned_op()

        def fn(x, y, mask):
            y.index_put_([mask], op(x).sum())

        mask = rows(4)[:, 0] > 0
        self.assertEqual(self.joined(fn, rows(4), rows(4), mask), ["op"])

    def test_broadcast_value(self):
        op = tuned_op()

        def fn(x, y):
            y.copy_(op(x)[:1])

        self.assertEqual(self.joined(fn, rows(4), rows(4)), ["op", "slice", "copy_"])

    def test_places_that_the_op_tells_stay_outside(self):
        op = tuned_op()

        def fn(x, y):
            z = op(x)
            y.index_put_([z[:, 0].long()], z.sin())

        self.assertNotIn("index_put_", self.joined(fn, rows(4), rows(4)))

    def test_tensors_that_the_graph_makes_stay_outside(self):
        op = tuned_op()

        def fn(x, y):
            made = y.sum(0, keepdim=True)
            made.copy_(op(x)[:1])
            return made

        self.assertEqual(self.joined(fn, rows(4), rows(4)), ["op"])

    def test_without_epilogues(self):
        op = tuned_op()
        with config.patch(custom_op_fusion_types=["prologue"]):
            self.assertEqual(
                self.joined(lambda x, y: y.copy_(op(x)), rows(4), rows(4)), ["op"]
            )


class TestMeasuring(FusionTestCase):
    def called(self, fn, *args):
        """What candidates return as they are measured: of each, of a call and the next."""
        found = []

        def call(runners, *others):
            restore = others[-1]
            for run in runners.values():
                found.append([])
                for _ in range(2):
                    restore()
                    found[-1].append([result.clone() for result in run()])
            return {index: Timing(1.0) for index in runners}

        for arg in args:
            if arg.shape[0] == SIZES[0]:
                torch._dynamo.mark_dynamic(arg, 0)
        with mock.patch.object(measure_ranges, "time_candidates", call):
            torch.compile(fn)(*args)
        return found

    def test_each_call_is_on_what_was_there_before(self):
        op = tuned_op()
        calls = self.called(lambda x: x.add_(op(x)), rows(SIZES[0]))
        self.assertGreater(len(calls), 1)
        for first, second in calls:
            self.assertEqual(first, second)

    def test_only_what_is_read_is_kept(self):
        """A cache may be large."""
        x, y = rows(4), rows(4)
        op = tuned_op()

        def updated(fn):
            gm = traced(fn, x, y)
            regions.form_regions(gm)
            (region,) = (n for n in gm.graph.nodes if hasattr(n.target, REGION_WRITES))
            body = inspect.getclosurevars(region.target).nonlocals["body"]
            self.assertEqual(len(written_outputs(body.graph)), 1)
            return len(updated_inputs(body.graph))

        self.assertEqual(updated(lambda x, y: y.copy_(op(x) + y)), 1)
        self.assertEqual(updated(lambda x, y: y.copy_(op(x).sin())), 0)
        copy = torch.ops.aten.copy.default
        self.assertEqual(updated(lambda x, y: y.copy_(copy(y, op(x).sin()))), 0)

    def test_all_places_are_written(self):
        op = tuned_op()

        def fn(x, cache, places):
            cache[places] = op(x).sin() + 3

        places = torch.arange(SIZES[0], device=rows(1).device)
        calls = self.called(fn, rows(SIZES[0]), rows(32).double(), places % 32)
        written = [(call[0][0] > 1.9).all(-1) for call in calls]
        self.assertEqual({len(rows) for rows in written}, {32})
        self.assertEqual({int(rows.sum()) for rows in written}, {2, 10, 32})

    def test_places_in_two_caches(self):
        """The smaller one has no more."""
        op = tuned_op()

        def fn(x, places, *caches):
            for cache in caches:
                cache[places] = op(x).sin() + 3

        places = torch.arange(SIZES[0], device=rows(1).device) % 32
        for sizes in ((32, 9000), (9000, 32)):
            caches = map(rows, sizes)
            self.assertTrue(self.called(fn, rows(SIZES[0]), places, *caches))

    def test_places_run_through_in_turns(self):
        spec = TensorSpec((7,), (1,), torch.int32, torch.device("cpu"), places=3)
        self.assertEqual(spec.make().tolist(), [0, 1, 2, 0, 1, 2, 0])

    def test_what_the_user_made_stays(self):
        op = torch.library.custom_op("region_writes::made", mutates_args=())(double)
        op.register_fake(torch.empty_like)
        made = []

        def ones(x):
            made.append(torch.ones_like(x))
            return made[-1]

        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, RANGES, [lambda x: x + x, double])],
            input_gen_fns={"x": ones},
        )
        self.called(lambda x: x.copy_(op(x)), rows(SIZES[0]))
        self.assertTrue(made)
        for tensor in made:
            self.assertEqual(tensor, torch.ones_like(tensor))

    def test_wrong_values_are_found(self):
        """Whichever is called first: both write to the same memory."""
        op = torch.library.custom_op("region_writes::double", mutates_args=())(double)
        op.register_fake(torch.empty_like)

        def wrong(x):
            return x * 3

        register_custom_op_autotuning(
            op,
            configs=[
                CustomOpConfig(
                    wrong, tensor_name="x", dim_index=0, dim_range=(0, math.inf)
                )
            ],
            numerics_check="drop",
        )

        def fn(x, y):
            y.copy_(op(x).sin())

        x, y = rows(64), rows(64)
        for tensor in (x, y):
            torch._dynamo.mark_dynamic(tensor, 0)
        with self.assertLogs(
            "torch._inductor.kernel.custom_op", logging.WARNING
        ) as logs:
            torch.compile(fn)(x, y)
        self.assertIn("'wrong' is left out: output 0 differs", logs.output[0])
        self.assertEqual(y, (x * 2).sin())


instantiate_parametrized_tests(TestEmittedCode)

if __name__ == "__main__":
    run_tests()
