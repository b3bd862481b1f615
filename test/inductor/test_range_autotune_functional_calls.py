# Owner(s): ["module: inductor"]
"""
Tests of ``range_autotune.writes.functional_calls`` and ``functional_variants``: ops
that write to their arguments.
"""

import itertools
import math
import re

from range_autotune_testing import only
from test_custom_op_autotune import (
    AutotuneTestCase,
    best_by_range,
    compile_at,
    made_up_times,
    no_recompile,
    ramp,
    RANGES,
)
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import HAS_GPU

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.ops.functional_variants import UNWRITTEN, variant_of


KERNEL = "async_compile.triton(" if HAS_GPU else "async_compile.cpp_pybinding("
LOGGER = "torch._inductor.kernel.custom_op"

_numbers = itertools.count()


def writing(fn, *written, tags=()):
    name = f"functional_calls::op{next(_numbers)}"
    mutates = written or ("out",)
    return torch.library.custom_op(name, mutates_args=mutates, tags=tags)(fn)


def add_zero(out: torch.Tensor, x: torch.Tensor) -> None:
    out.copy_(x.clone())


def adding(number):
    """An implementation that can be told from others by its result."""

    def impl(out, x):
        torch.add(x, number, out=out)

    return impl


def register(op, *impls, tensor="x"):
    ranges = CustomOpRangeConfig(tensor, 0, RANGES, [*impls])
    register_custom_op_autotuning(op, configs=[ranges])


@instantiate_parametrized_tests
class TestFunctionalCalls(AutotuneTestCase):
    def tuned(self, fn=add_zero, *written, impls=None, tensor="x"):
        op = writing(fn, *written)
        register(op, *(impls or map(adding, (1, 2, 5))), tensor=tensor)
        return op

    def code_at(self, fn, *args, times=best_by_range):
        """The compiled function, and its code."""
        for arg in args:
            torch._dynamo.mark_dynamic(arg, 0)
        compiled = torch.compile(fn)
        with made_up_times(times):
            _, codes = run_and_get_code(compiled, *args)
        return compiled, codes[-1]

    def assert_not_tuned(self, fn, reason, *make):
        """It is compiled as if the op was not registered, and the log says why."""
        args = [m(128) for m in make]
        with self.assertLogs(LOGGER, "INFO") as logs:
            compiled = compile_at(fn, *args, dims=[(i, 0) for i in range(len(args))])
        self.assertRegex("\n".join(logs.output), rf"is not tuned here: .*{reason}")
        for size in (2, 3000):
            given, expected = ([m(size) for m in make] for _ in range(2))
            with no_recompile:
                self.assertEqual(compiled(*given), fn(*expected))
            self.assertEqual(given, expected)

    def test_where_its_result_goes_is_made_by_the_caller(self):
        op = self.tuned()

        def fn(x):
            out = torch.empty_like(x)
            op(out, x * 2)
            return out * 3

        compiled, code = self.code_at(fn, ramp(128, 4))
        with no_recompile:
            for size, number in {2: 1, 511: 1, 512: 2, 2048: 5}.items():
                x = ramp(size, 4)
                self.assertEqual(compiled(x), (x * 2 + number) * 3)
        # One kernel for each range, with the neighbours; what was to be written to is gone.
        self.assertEqual(code.count(KERNEL), 3)
        self.assertEqual(len(re.findall(r"= empty_strided_", code)), 3)

    def test_it_writes_itself_where_that_is_best(self):
        op = self.tuned()

        def fn(x):
            out = torch.empty_like(x)
            op(out, x)
            return out

        compiled, code = self.code_at(fn, ramp(128, 4), times=only(-1))
        with no_recompile:
            self.assertEqual(compiled(ramp(700, 4)), ramp(700, 4))
        self.assertNotIn(KERNEL, code)
        self.assertEqual(len(re.findall(r"= empty_strided_", code)), 1)

    @parametrize("best", (-1, 0))
    def test_what_was_there_counts(self, best):
        def add_to(out: torch.Tensor, x: torch.Tensor) -> None:
            out.add_(x)

        op = self.tuned(add_to, impls=[lambda out, x: out.copy_(out + x)])

        def fn(x):
            out = x * 2
            op(out, x)
            return out * 3

        compiled, code = self.code_at(fn, ramp(128, 4), times=only(best))
        with no_recompile:
            self.assertEqual(compiled(ramp(3000, 4)), ramp(3000, 4) * 9)
        # The copy that the op writes to is what computes its content.
        self.assertEqual(code.count(KERNEL), 1 if best == 0 else 2)

    def test_it_is_read_again_as_it_was(self):
        def negate(out: torch.Tensor) -> None:
            out.neg_()

        op = self.tuned(negate, impls=[lambda out: out.copy_(-out)], tensor="out")

        def fn(x):
            before = x.relu()
            after = before.clone()
            op(after)
            return before + 1, after.view(-1) * 2

        with made_up_times(only(0)):
            compiled = compile_at(fn, ramp(128, 4))
        self.assert_like_eager(fn, compiled, lambda n: [ramp(n, 4) - n])

    def test_a_flat_buffer_is_written_to_in_another_shape(self):
        op = self.tuned()

        def fn(x):
            out = x.new_empty(x.shape[0] * 4)
            op(out.view(-1, 4), x)
            return out * 3

        # What is timed is four times as long as ``x``.
        compiled, code = self.code_at(
            fn, ramp(128, 4), times=lambda length, i: best_by_range(length // 4, i)
        )
        with no_recompile:
            for size, number in {2: 1, 512: 2, 2048: 5}.items():
                x = ramp(size, 4)
                self.assertEqual(compiled(x), (x + number).flatten() * 3)
        self.assertEqual(code.count(KERNEL), 3)

    def test_one_after_the_other_are_one_dispatch(self):
        op = self.tuned()

        def fn(x):
            out, second = torch.empty_like(x), torch.empty_like(x)
            op(out, x)
            op(second, out * 2)
            return second * 3

        compiled, code = self.code_at(fn, ramp(128, 4), times=lambda size, i: i + 9.0)
        self.assertEqual(code.count("cond_buf"), 0)
        with no_recompile:
            result = compiled(ramp(600, 4))
        self.assertEqual(result, ramp(600, 4) * 6)

    @parametrize("best", (-1, 0))
    def test_results_beside_what_is_written(self, best):
        def split(
            x: torch.Tensor, low: torch.Tensor, high: torch.Tensor
        ) -> torch.Tensor:
            low.copy_(x.clamp(max=0))
            high.copy_(x.clamp(min=0))
            return x.abs()

        def impl(x, low, high):
            torch.minimum(x, torch.zeros_like(x), out=low)
            torch.maximum(x, torch.zeros_like(x), out=high)
            return torch.maximum(x, -x)

        op = self.tuned(split, "low", "high", impls=[impl])
        op.register_fake(lambda x, low, high: torch.empty_like(x))

        def fn(x):
            low, high = torch.empty_like(x), torch.empty_like(x)
            return op(x, low, high) + 1, low + 2, high + 3

        with made_up_times(only(best)):
            compiled = compile_at(fn, ramp(128, 4) - 99)
        self.assert_like_eager(fn, compiled, lambda n: [ramp(n, 4) - 99])

    def test_one_size(self):
        op = writing(add_zero)
        register_custom_op_autotuning(op, configs=[CustomOpConfig(adding(1))])

        def fn(x):
            out = torch.empty_like(x)
            op(out, x * 2)
            return out * 3

        with made_up_times(only(0)):
            result, (code,) = run_and_get_code(torch.compile(fn), ramp(8, 4))
        self.assertEqual(result, (ramp(8, 4) * 2 + 1) * 3)
        self.assertEqual(code.count(KERNEL), 1)
        self.assertEqual(len(re.findall(r"= empty_strided_", code)), 1)

    def test_not_tuned_is_a_call_of_it(self):
        op = writing(add_zero)
        register_custom_op_autotuning(op, config_generator=lambda tensors: [])

        def fn(x):
            out = torch.empty_like(x)
            op(out, x)
            return out

        result, (code,) = run_and_get_code(torch.compile(fn), ramp(8, 4))
        self.assertEqual(result, ramp(8, 4))
        self.assertIn(f"torch.ops.functional_calls.{op._name}.default(buf", code)
        self.assertNotIn(KERNEL, code)

    def test_training(self):
        op = self.tuned()

        @torch.library.custom_op(
            f"functional_calls::op{next(_numbers)}", mutates_args=()
        )
        def around(x: torch.Tensor) -> torch.Tensor:
            out = torch.empty_like(x)
            op(out, x)
            return out

        def fn(x):
            out = torch.empty_like(x)
            op(out, x.detach())
            return (out * x).sum()

        x = ramp(600, 4).requires_grad_()
        with made_up_times(best_by_range):
            compile_at(fn, x)(x).backward()
        self.assertEqual(x.grad, x.detach() + 2)

    @parametrize("rows", (1, None))
    def test_other_arguments_share_its_memory(self, rows):
        def add_row(out: torch.Tensor, x: torch.Tensor) -> None:
            out.add_(x.clone())

        op = self.tuned(add_row)

        def fn(x):
            out = x * 2
            op(out, out[:rows])
            return out

        self.assert_not_tuned(fn, "share memory with 'out'", lambda n: ramp(n, 4))

    def test_registered_anew(self):
        op = self.tuned()

        def fn(x):
            out = torch.empty_like(x)
            op(out, x)
            return out * 3

        compiled = torch.compile(fn)
        with made_up_times(only(0)):
            self.assertEqual(compiled(ramp(8, 4)), (ramp(8, 4) + 1) * 3)
            register(op, adding(7))
            self.assertEqual(compiled(ramp(8, 4)), (ramp(8, 4) + 7) * 3)

    def test_first_registered_when_it_is_compiled(self):
        op = writing(add_zero)

        def fn(x):
            out = torch.empty_like(x)
            op(out, x)
            return out

        compiled = torch.compile(fn)
        self.assertEqual(compiled(ramp(8, 4)), ramp(8, 4))
        register(op, adding(7))
        with made_up_times(only(0)):
            self.assertEqual(compiled(ramp(8, 4)), ramp(8, 4) + 7)


@instantiate_parametrized_tests
class TestFunctionalVariants(AutotuneTestCase):
    def variant(self, fn, *written, tensor="x", tags=()):
        op = writing(fn, *written, tags=tags)
        register(op, fn, tensor=tensor)
        return op, variant_of(op._opoverload)

    def test_schema(self):
        def fn(
            out: torch.Tensor, x: torch.Tensor, unwritten: str = "Tensor", *, n: int = 3
        ) -> None:
            out.copy_(x * n)

        _, variant = self.variant(fn)
        schema = str(variant._schema).partition("(")[2]
        self.assertExpectedInline(
            schema,
            """Tensor out, Tensor x, str unwritten="Tensor", *, SymInt n=3, int[] inductor_unwritten=[]) -> Tensor""",
        )

    def test_schema_where_it_depends_on_the_call_what_is_written(self):
        def fn(x: torch.Tensor, y: torch.Tensor | None, z: list[torch.Tensor]) -> None:
            pass

        _, variant = self.variant(fn, "x", "y", "z")
        schema = str(variant._schema).partition("(")[2]
        self.assertExpectedInline(
            schema,
            """Tensor x, Tensor? y, Tensor[] z, *, int[] inductor_unwritten=[]) -> Tensor[]""",
        )

    @parametrize("tag", (torch.Tag.inplace, torch.Tag.out))
    def test_schema_where_arguments_are_returned(self, tag):
        def add_(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return y.add_(x)

        def add(x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
            return y.add_(x)

        fn = add_ if tag is torch.Tag.inplace else add
        _, variant = self.variant(fn, "y", tags=(tag,))
        self.assertEqual(str(variant._schema).rpartition(" -> ")[2], "Tensor")

    def test_returns_what_is_written(self):
        def fn(x: torch.Tensor, out: torch.Tensor, n: int = 3) -> torch.Tensor:
            out.mul_(n).add_(x)
            return x + 1

        op, variant = self.variant(fn, "out")
        op.register_fake(lambda x, out, n=3: torch.empty_like(x))
        x, out = ramp(2, 4), ramp(2, 4)
        result, written = variant(x, out, 2)
        self.assertEqual(out, ramp(2, 4))
        self.assertEqual((result, written), (x + 1, x * 3))
        torch.library.opcheck(variant, (x, out))
        unwritten = variant(x, torch.full_like(x, math.nan), **{UNWRITTEN: [1]})[1]
        self.assertFalse(unwritten.data_ptr() == out.data_ptr())

    def test_returns_what_a_call_writes(self):
        def fn(x: torch.Tensor, y: torch.Tensor | None, z: list[torch.Tensor]) -> None:
            for tensor in (x, y, *z):
                if tensor is not None:
                    tensor.add_(1)

        _, variant = self.variant(fn, "x", "y", "z")
        x, y, z = (ramp(n, 4) for n in (2, 3, 4))
        self.assertEqual(variant(x, y, [z, y]), [x + 1, y + 1, z + 1, y + 1])
        self.assertEqual(variant(x, None, []), [x + 1])
        unwritten = variant(x, None, [y, z], **{UNWRITTEN: [1]})
        self.assertEqual((len(unwritten), unwritten[2]), (3, z + 1))
        torch.library.opcheck(variant, (x, None, [y]))

    def test_defined_anew(self):
        name = f"functional_calls::op{next(_numbers)}"
        for number in (1, 2):
            impl = adding(number)

            def fn(out: torch.Tensor, x: torch.Tensor, impl=impl) -> None:
                impl(out, x)

            def body(out: torch.Tensor, x: torch.Tensor) -> None:
                fn(out, x)

            op = torch.library.custom_op(name, body, mutates_args=("out",))
            register(op, add_zero)
            variant = variant_of(op._opoverload)
            self.assertEqual(variant(ramp(2, 4), ramp(2, 4)), ramp(2, 4) + number)


if __name__ == "__main__":
    run_tests()
