# Owner(s): ["module: inductor"]
"""Sums in C++ that may be long: right on both sides, and short ones without a helper."""

import re
from unittest import mock

from range_autotune_testing import ExpTestCase, made_up_times
from torch._inductor.codegen.common import IndentedBuffer
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.codegen import cpp
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.emitting import short_sums


SIZES = (3, 4095, 4096, 4097, 9001, 30000)


def sums(x):
    return x.sum(0), (x * 2).sum(), (x.mT + 1).mean(1), x.sum(1, keepdim=True).sum(0)


@instantiate_parametrized_tests
class TestSums(ExpTestCase):
    def compiled(self, columns):
        """A model that is compiled with few rows, and its code."""
        ranges = [CustomOpRangeConfig("x", 0, [(0, 10**6)], [torch.exp])]
        self.register(self.op, ranges)
        x = torch.randn(12, columns)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=10**6 - 1)
        model = torch.compile(lambda x: sums(self.op(x)))
        with (
            config.patch(fx_graph_cache=False),
            made_up_times(lambda size, index: 1.0 if index == 0 else 2.0),
        ):
            _, (code, *_) = run_and_get_code(model, x)
        return model, code

    @parametrize("columns", (256, 250, 3))
    def test_are_right_at_any_length(self, columns):
        model, code = self.compiled(columns)
        # Those that are short have no memory.
        kinds = re.findall(r"_is_short \? (CascadeSumHelper<.*?>)\(\) : \1\(", code)
        self.assertGreater(len(kinds), 0)
        self.assertEqual(len(kinds), len(re.findall(r"bool \w+_is_short =", code)))
        for size in (*SIZES, 900_000 if columns == 3 else 2):
            x = torch.rand(size, columns)
            expected = sums(x.double().exp())
            with torch._dynamo.config.patch(error_on_recompile=True):
                found = model(x)
            # Of 900,000 in one go the error is ten times as large.
            torch.testing.assert_close(
                found, expected, atol=0, rtol=1e-5, check_dtype=False
            )

    def test_of_other_models(self):
        x = torch.randn(9000, 64)
        _, (code, *_) = run_and_get_code(torch.compile(lambda x: x.sum(0)), x)
        self.assertIn("cascade_sum_combine", code)
        self.assertNotIn("_is_short", code)


class TestText(TestCase):
    def test_of_a_tail_that_is_summed_in_one_way(self):
        """As Inductor has it, whose accumulators are many there."""
        for tuned in (True, False):
            with mock.patch.object(short_sums, "has_autotuned_op", return_value=tuned):
                text = cpp.reduction_combine("sum", "acc[i]", "f(x)", "helper0")
            self.assertEqual("_is_short" in text, tuned)
            buffer = IndentedBuffer()
            buffer.writeline(f"acc[i] = {text};")
            cpp.replace_cascade_sum_with_add(buffer)
            self.assertEqual(buffer.getvalue(), "acc[i] = acc[i] + f(x);\n")


if __name__ == "__main__":
    run_tests()
