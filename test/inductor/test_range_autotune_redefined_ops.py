# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.ops.redefined_ops``."""

import itertools

from range_autotune_testing import ExpTestCase, made_up_times, OpTestCase
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)


_numbers = itertools.count()
forced = config.patch("test_configs.force_custom_op_decomposition", True)


class TestForgottenObject(ExpTestCase):
    """PyTorch forgets what ``torch.ops.ns.op.default`` was; the op is the same."""

    def register_and_forget(self, *impls):
        self.register(self.op, [CustomOpConfig(impl) for impl in impls])
        torch.library._clear_torch_ops_cache({self.op.name()})
        self.assertIsNot(torch.ops.range_autotune_test.op.default, self.op)

    def test_is_tuned(self):
        self.register_and_forget(torch.exp, lambda x: torch.exp(x + 0))
        with made_up_times(lambda size, index: 2.0 - index):
            (segment,) = self.winner_table(100, (7, 200))
        self.assertEqual(segment.value.index, 1)

    @forced
    def test_caches_know_its_registration(self):
        x = torch.zeros(100)
        for add in (lambda x: x + 1, lambda x: x + 2):
            self.register_and_forget(add)
            torch._dynamo.reset()
            self.assertEqual(torch.compile(self.op)(x), add(x))
        self.assertEqual(counters["inductor"]["fxgraph_cache_hit"], 0)


class TestDefinedAnew(OpTestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.name = f"redefined_ops::op{next(_numbers)}"
        self.x = torch.zeros(100)

    def define(self, body, mutates_args=()):
        op = torch.library.custom_op(self.name, mutates_args=mutates_args)(body)
        op.register_fake(lambda x, *_: None if mutates_args else torch.empty_like(x))
        return op

    def define_adding(self, number):
        def body(x: torch.Tensor) -> torch.Tensor:
            return x + number

        return self.define(body)

    def assert_adds(self, op, number):
        self.assertEqual(torch.compile(lambda x: op(x) * 1)(self.x), self.x + number)

    @forced
    def test_is_tuned_as_registered_before(self):
        self.register(self.define_adding(1), [CustomOpConfig(lambda x: x + 2)])
        self.assert_adds(self.define_adding(3), 2)

    def test_competes_as_it_is_now(self):
        self.register(self.define_adding(1), [CustomOpConfig(lambda x: x + 2)])
        op = self.define_adding(3)
        with made_up_times(lambda size, index: 2.0 + index):  # -1 is the op itself
            self.assert_adds(op, 3)

    @forced
    def test_is_tuned_as_registered_again(self):
        old = self.define_adding(1)
        self.register(old, [CustomOpConfig(lambda x: x + 2)])
        op = self.define_adding(3)
        self.register(op, [CustomOpConfig(lambda x: x + 4)])
        # What the end of the old library does, whenever it is collected.
        torch.library._clear_torch_ops_cache({self.name})
        self.assert_adds(op, 4)

    @forced
    def test_with_other_parameters(self):
        def body(x: torch.Tensor, number: int = 3) -> torch.Tensor:
            return x + number

        self.register(self.define_adding(1), [CustomOpConfig(lambda x: x + 2)])
        op = self.define(body)
        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            self.assert_adds(op, 3)
        said = logs.records[0].getMessage()
        self.assertIn(f"'{self.name}(Tensor x) -> Tensor'", said)
        self.assertIn(f"'{self.name}(Tensor x, SymInt number=3) -> Tensor'", said)
        self.register(op, [CustomOpConfig(lambda x, number: x + number + 1)])
        self.assert_adds(op, 4)

    @parametrize("winner", (0, -1))
    def test_one_that_writes(self, winner):
        def body(x: torch.Tensor, out: torch.Tensor) -> None:
            out.copy_(x + number)

        def into_new(x):
            out = torch.empty_like(x)
            op(x, out)
            return out

        def implementation(x, out):
            out.copy_(x + 2)

        number = 1
        op = self.define(body, ("out",))
        register_custom_op_autotuning(op, [CustomOpConfig(implementation)])
        number = 3
        op = self.define(body, ("out",))
        with made_up_times(lambda size, index: 1.0 + (index != winner)):
            result = torch.compile(into_new)(self.x)
        self.assertEqual(result, self.x + (3 if winner == -1 else 2))


instantiate_parametrized_tests(TestDefinedAnew)


if __name__ == "__main__":
    run_tests()
