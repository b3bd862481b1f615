# Owner(s): ["module: inductor"]
"""What counts as the same result, and what becomes of a candidate with another one."""

from __future__ import annotations

import logging
import math
import types
from unittest import mock

from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidate_indices import (
    AS_WRITTEN,
    FALLBACK_INDEX,
    index_of_variant,
)
from torch._inductor.range_autotune.limits import TookTooLong
from torch._inductor.range_autotune.measuring import comparing
from torch._inductor.range_autotune.measuring.calls import Runners
from torch._inductor.range_autotune.measuring.conclusions import judge
from torch._inductor.range_autotune.measuring.numerics import (
    allowed_difference,
    differ_widely,
    find_mismatch,
    relative_difference,
    rounded_otherwise,
)
from torch._inductor.range_autotune.registration import Candidate, TuningOptions
from torch._inductor.range_autotune.sizes.size_points import SizePoint
from torch._inductor.range_autotune.standing import Standing


DEVICE = GPU_TYPE if HAS_GPU else "cpu"


class TestComparison(TestCase):
    @parametrize("dtype", (torch.float64, torch.float32, torch.float16, torch.bfloat16))
    def test_tolerance_by_dtype(self, dtype):
        expected = torch.tensor([1.0, -8.0, 0.0], dtype=dtype)
        allowed = allowed_difference(dtype)
        near = expected.double() + 8 * allowed / 4
        far = expected.double() + 8 * allowed * 4
        self.assertIsNone(find_mismatch([near.to(dtype)], [expected]))
        self.assertIsNotNone(find_mismatch([far.to(dtype)], [expected]))

    def test_integers_are_exact(self):
        expected = torch.tensor([1, 1_000_000])
        self.assertIsNone(find_mismatch([expected.clone()], [expected]))
        self.assertIsNotNone(find_mismatch([expected + 1], [expected]))
        for large in (2**53, 2**62):
            expected = torch.tensor([large])
            self.assertIsNone(find_mismatch([expected.clone()], [expected]))
            self.assertIsNotNone(find_mismatch([expected + 1], [expected]))
        flags = torch.tensor([True, False])
        self.assertIsNotNone(find_mismatch([~flags], [flags]))

    def test_nan(self):
        """A logarithm of random inputs has some."""
        nan = torch.tensor([1.0, math.nan])
        self.assertEqual(relative_difference(nan, torch.ones(2)), math.inf)
        self.assertEqual(relative_difference(torch.ones(2), nan), math.inf)
        self.assertEqual(relative_difference(nan.flip(0), nan), math.inf)
        self.assertEqual(relative_difference(nan, nan), 0.0)
        self.assertEqual(relative_difference(nan * 3, nan), 2.0)

    def test_infinities(self):
        inf = torch.tensor([1.0, math.inf])
        self.assertEqual(relative_difference(inf, inf), 0.0)
        self.assertEqual(relative_difference(-inf, inf), math.inf)
        self.assertEqual(relative_difference(inf * 3, inf), 2.0)
        self.assertEqual(relative_difference(torch.ones(2), inf), math.inf)

    def test_empty_and_zero(self):
        self.assertEqual(relative_difference(torch.ones(0), torch.ones(0)), 0.0)
        self.assertEqual(relative_difference(torch.zeros(2), torch.zeros(2)), 0.0)
        self.assertEqual(relative_difference(torch.ones(2), torch.zeros(2)), math.inf)

    def test_wide_differences(self):
        expected = torch.arange(1000, dtype=torch.int32) % 100
        few, one = expected.clone(), expected + (expected == 7)
        few[:20] += 50
        wide = expected.clone()
        wide[:40] += 50
        self.assertFalse(differ_widely([expected], [expected], 0.0))
        self.assertFalse(differ_widely([few, one], [expected, expected], 0.0))
        self.assertTrue(differ_widely([one, wide], [expected, expected], 0.0))
        # Whole steps, as narrow types in front of them make: each by 1 of 99.
        self.assertTrue(differ_widely([expected + 1], [expected], 0.0))
        self.assertFalse(differ_widely([expected + 1], [expected], 5e-2))
        self.assertFalse(differ_widely([torch.ones(0)], [torch.ones(0)], 0.0))
        nan = torch.full((64,), math.nan)
        self.assertTrue(differ_widely([nan], [torch.ones(64)], 0.5))
        self.assertFalse(differ_widely([nan], [nan], 0.0))

    @parametrize(
        "dtype", (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64)
    )
    def test_rounded_otherwise(self, dtype):
        values = torch.linspace(1, 8, 12).reshape(3, 4).to(dtype)
        other = rounded_otherwise(values)
        self.assertEqual((other.dtype, other.shape), (dtype, values.shape))
        wide = torch.complex128 if dtype.is_complex else torch.float64
        off = other.to(wide).real / values.to(wide).real - 1
        eps = torch.finfo(dtype).eps
        self.assertTrue((off.flatten()[::2] < 0).all())
        self.assertTrue((off.flatten()[1::2] > 0).all())
        self.assertTrue((off.abs() <= 3 * eps).all())

    def test_integers_are_not_rounded(self):
        self.assertEqual(rounded_otherwise(torch.arange(4)), torch.arange(4))

    def test_message(self):
        good, bad = torch.tensor([4.0]), torch.tensor([3.0])
        self.assertExpectedInline(
            str(find_mismatch([good, bad], [good, good])),
            """output 1 differs from the op's by 0.25 of its largest value, allowed is 0.0001""",
        )


def wrong(x):
    return x * 3


class TestCheck(TestCase):
    def result_and_warnings(
        self, number, dim_range=None, around=None, bad=wrong, **options
    ):
        """
        Compiles an op whose two implementations are wrong and right, up to rounding.

        Args:
            dim_range: of x[0], in which both compete; None for all sizes.
            around: calls the op and computes something from the result.
            bad: the wrong one.
        """

        def fn(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        def right(x):
            return x * 0.2 * 10

        op = torch.library.custom_op(f"numerics::op{number}", mutates_args=())(fn)
        op.register_fake(torch.empty_like)
        where = {"tensor_name": "x", "dim_index": 0, "dim_range": dim_range}
        given = where if dim_range else {}
        register_custom_op_autotuning(
            op,
            configs=[CustomOpConfig(bad, **given), CustomOpConfig(right, **given)],
            name="op",
            include_fallback=False,
            **options,
        )
        self.addCleanup(user_lowerings.pop, op._opoverload)
        torch._dynamo.reset()
        logger = logging.getLogger("torch._inductor.kernel.custom_op")
        with self.assertLogs(logger, logging.WARNING) as logs:
            logger.warning("start")
            x = torch.ones(64, device=DEVICE)
            if dim_range:
                torch._dynamo.mark_dynamic(x, 0)
            result = torch.compile(lambda x: around(op, x) if around else op(x))(x)
        return result, [record.getMessage() for record in logs.records[1:]]

    def test_drop(self):
        result, warnings = self.result_and_warnings(0, numerics_check="drop")
        self.assertEqual(result, torch.full((64,), 2.0, device=DEVICE))
        self.assertExpectedInline(
            "\n".join(warnings),
            """op: candidate 'wrong' is left out: output 0 differs from the op's by 0.5 of its largest value, allowed is 0.0001, at the model's sizes""",
        )

    def test_a_rest_that_is_forgotten(self):
        """At 64 and 128, where it is timed, it is right."""

        def tiles(x: torch.Tensor) -> torch.Tensor:
            whole = len(x) // 32 * 32
            return torch.cat([x[:whole] * 2, torch.zeros_like(x[whole:])])

        tiles_op = torch.library.custom_op("numerics::tiles", mutates_args=())(tiles)
        tiles_op.register_fake(torch.empty_like)
        result, warnings = self.result_and_warnings(
            8, dim_range=(64, math.inf), bad=tiles_op, numerics_check="drop"
        )
        self.assertEqual(result, torch.full((64,), 2.0, device=DEVICE))
        (warning,) = warnings
        self.assertIn("'tiles' is left out: output 0 differs from the op's", warning)
        self.assertIn("at size 65", warning)

    def test_neighbours_make_more_of_what_rounding_does(self):
        def in_steps(op, x):
            return (op(x / 3) * 3e7).to(torch.int32) % 2

        for number, around in enumerate((in_steps, lambda op, x: op(x) > 2)):
            _, warnings = self.result_and_warnings(
                6 + number, dim_range=(2, 200), around=around, numerics_check="drop"
            )
            (warning,) = warnings
            self.assertIn("'wrong' is left out: output 0 differs", warning)

    def test_generated_code_at_fault_among_neighbours(self):
        """What is called eagerly is right, and what is made of the traced graph is not."""

        def astray(x):
            return x * (2 if type(x) is torch.Tensor else 3)

        _, warnings = self.result_and_warnings(
            "astray",
            dim_range=(2, 200),
            around=lambda op, x: op(x) + 1,
            bad=astray,
            numerics_check="drop",
        )
        (warning,) = warnings
        self.assertIn("'astray' is left out: output 0 differs", warning)
        self.assertIn("by its generated code: called eagerly it does not", warning)

    def test_warn(self):
        _, warnings = self.result_and_warnings(1, numerics_check="warn")
        self.assertEqual(len(warnings), 1)
        self.assertIn("op: candidate 'wrong': output 0 differs", warnings[0])

    def test_warn_at_several_sizes(self):
        _, warnings = self.result_and_warnings(
            "several", dim_range=(2, 200), numerics_check="warn"
        )
        self.assertEqual(len(warnings), 1)
        self.assertIn("at size", warnings[0])

    def test_off(self):
        _, warnings = self.result_and_warnings(2)
        self.assertEqual(warnings, [])

    def no_memory_from(self, size):
        """Results of so many elements cannot be compared."""

        def find(actual, expected):
            if len(actual[0]) >= size:
                raise MemoryError("too large")
            return find_mismatch(actual, expected)

        return mock.patch.object(comparing, "find_mismatch", find)

    @parametrize("check", ("drop", "warn"))
    def test_what_is_never_compared_has_not_passed(self, check):
        with self.no_memory_from(0):
            _, warnings = self.result_and_warnings(f"4{check}", numerics_check=check)
        out = " is left out" if check == "drop" else ""
        reason = "it could not be compared with the op: out of memory: MemoryError: too large"
        self.assertEqual(
            warnings,
            [
                f"op: candidate '{name}'{out}: {reason}, at the model's sizes"
                for name in ("wrong", "right")
            ],
        )

    def test_a_size_without_memory_is_passed_over(self):
        with self.no_memory_from(100):
            result, warnings = self.result_and_warnings(
                5,
                dim_range=(2, 200),
                representative_sizes=[64, 128],
                numerics_check="drop",
            )
        self.assertEqual(result, torch.full((64,), 2.0, device=DEVICE))
        (warning,) = warnings
        self.assertIn("'wrong' is left out: output 0 differs", warning)

    @parametrize("error", (MemoryError, TimeoutError, TookTooLong, ValueError))
    def test_what_may_pass(self, error):
        runners = Runners(dict.fromkeys((FALLBACK_INDEX, 0), lambda: [torch.ones(2)]))
        tuning = types.SimpleNamespace(
            registration=types.SimpleNamespace(
                options=TuningOptions(numerics_check="drop")
            ),
            site=types.SimpleNamespace(body=None, without_unread=list),
            ranks=None,
        )
        raised = error("a call", 1.0) if error is TookTooLong else error("now")
        with mock.patch.object(comparing, "find_mismatch", side_effect=raised):
            found = comparing.compare(tuning, runners)
        self.assertEqual(found[0].may_pass, error is not ValueError)

    @parametrize("first_differs", (False, True))
    def test_a_variant_is_told_by_its_own_name(self, first_differs):
        options = TuningOptions(numerics_check="warn")
        registration = types.SimpleNamespace(name="op", options=options)
        candidates = (Candidate("wrong", wrong),)
        standing = Standing(registration, mock.Mock(), (), candidates)
        variant = index_of_variant(0, AS_WRITTEN)
        standing.traced = dict.fromkeys((0, variant), mock.Mock(made_for=None))
        standing.variants = {variant: 0}
        found = {0: "differs" if first_differs else None, variant: "differs, too"}
        with self.assertLogs("torch._inductor.kernel.custom_op", "INFO") as logs:
            judge(standing, found, SizePoint(2, {}))
        told = [f"{r.levelname} {r.getMessage()}" for r in logs.records]
        form = "op: candidate 'wrong, as written': differs, too, at size 2"
        if first_differs:
            first = "WARNING op: candidate 'wrong': differs, at size 2"
            self.assertEqual(told, [first, f"INFO {form}"])
        else:
            self.assertEqual(told, [f"WARNING {form}"])

    def test_unknown_value(self):
        with self.assertRaisesRegex(
            ValueError, r"must be one of \['off', 'warn', 'drop'\], got 'on'"
        ):
            self.result_and_warnings(3, numerics_check="on")


instantiate_parametrized_tests(TestComparison)
instantiate_parametrized_tests(TestCheck)


if __name__ == "__main__":
    run_tests()
