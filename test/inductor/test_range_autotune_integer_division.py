# Owner(s): ["module: inductor"]
"""Integers are benchmarked as zeros, by which generated C++ must not divide."""

import functools
import logging

from range_autotune_testing import OpTestCase
from torch._inductor.test_case import run_tests
from torch.fx.experimental.proxy_tensor import make_fx

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.graphs.integer_division import (
    check_divisors,
    divides_integers,
)


def graph_of(fn, *args):
    def call(*inputs):  # of as many as there are, and not all that fn may take
        return fn(*inputs)

    return make_fx(call, tracing_mode="fake")(*args)


def truncated(x, n):
    return torch.div(x, n, rounding_mode="trunc")


def remainder_first(x, n):
    return (x - x % n) // n


class TestIntegerDivision(OpTestCase):
    def test_what_divides_integers(self):
        ints, floats = torch.ones(3, dtype=torch.int32), torch.ones(3)

        def divides(fn, *args):
            return any(map(divides_integers, graph_of(fn, *args).graph.nodes))

        for fn in (torch.floor_divide, torch.remainder, torch.fmod):
            self.assertTrue(divides(fn, ints, ints))
            self.assertFalse(divides(fn, ints, floats))
            self.assertFalse(divides(functools.partial(fn, other=3), ints))
        self.assertTrue(divides(lambda x: 7 % x, ints))
        self.assertFalse(divides(torch.true_divide, ints, ints))
        self.assertFalse(divides(torch.add, ints, ints))
        self.assertFalse(divides(torch.div, ints * 1j, ints * 1j))

    def test_divisors(self):
        x, zeros = torch.arange(3), torch.zeros(3, dtype=torch.int64)
        check_divisors(graph_of(torch.add, x, x), self.fail)  # is not called
        graph = graph_of(torch.floor_divide, x, x)
        check_divisors(graph, lambda: [x, x + 1])
        with self.assertRaisesRegex(RuntimeError, "ZeroDivisionError"):
            check_divisors(graph, lambda: [x, zeros])

    def tune(self, **options):
        """What is said of candidates; a process that divides by zero says nothing."""
        configs = [CustomOpRangeConfig("x", 0, [(0, 99)], [truncated, remainder_first])]
        self.register(self.op, configs=configs, **options)
        x, n = torch.arange(8).view(4, 2), torch.full((4, 2), 3)  # nor lengths
        torch._dynamo.reset()
        with (
            config.patch(fx_graph_cache=False),
            self.assertLogs("torch._inductor.kernel.custom_op", logging.INFO) as logs,
        ):
            self.assertEqual(torch.compile(self.op)(x, n), x // n)
        return [r.getMessage() for r in logs.records if r.levelno == logging.WARNING]

    def test_candidates_that_divide_by_made_up_inputs(self):
        self.op = self.define_op("divided(Tensor x, Tensor n) -> Tensor")
        self._library.impl("divided", torch.floor_divide, "CPU")
        self._library.impl("divided", lambda x, n: torch.empty_like(x), "Meta")
        first, *_ = said = self.tune()
        self.assertIn("ZeroDivisionError", first)
        self.assertIn("integers are made up, see input_gen_fns", first)
        self.assertEqual(self.tune(input_gen_fns={"n": torch.ones_like}), [])
        self.assertGreater(len(said), 1)


if __name__ == "__main__":
    run_tests()
