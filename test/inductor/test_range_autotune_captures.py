# Owner(s): ["module: inductor"]
"""Tensors that implementations bring along, while traced and where they win."""

import gc
import math
import weakref

from range_autotune_testing import made_up_times, OpTestCase, SymbolicTestCase
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU

import torch
from torch._inductor import config, ir
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.graphs.captures import captured_tensors
from torch._inductor.range_autotune.graphs.functional import arguments_written
from torch._inductor.range_autotune.graphs.symbolic_graphs import trace_subgraph


DEVICE = GPU_TYPE if HAS_GPU else "cpu"
# Inductor makes smaller ones part of the code.
SIZE = 20


class TestTracing(SymbolicTestCase):
    def traced(self, fn):
        with self.fake_mode:
            x = ir.ir_node_to_tensor(self.tensor([self.symbol("s0", 100), SIZE]))
        return trace_subgraph(fn, [x])

    def constants(self, gm):
        return list(captured_tensors(gm).values())

    def test_real_tensors_are_constants_of_the_graph(self):
        table, weight = torch.ones(SIZE), torch.nn.Parameter(torch.ones(SIZE))
        gm = self.traced(lambda x: x * table + table * weight)
        first, second = self.constants(gm)
        self.assertIs(first, table)
        self.assertIs(second, weight)

    def test_nothing_is_computed_with_them(self):
        table = torch.ones(SIZE)
        seen = []

        def fn(x):
            table.mul_(2)
            seen.append(table[:4] * 3)
            return x + table

        self.traced(fn)
        self.assertEqual(table, torch.ones(SIZE))
        self.assertIsInstance(seen[0], torch._subclasses.FakeTensor)

    def test_a_copy_may_be_written_to(self):
        table, other = torch.ones(SIZE), torch.full((SIZE,), 3.0)

        def fn(x):
            copy = table.clone()
            copy += x[0] * other
            return x + copy

        gm = self.traced(fn)
        self.assertEqual(list(filter(arguments_written, gm.graph.nodes)), [])
        x = torch.rand(2, SIZE)
        self.assertEqual(gm(x), fn(x))

    def test_a_graph_with_constants_is_traced_again(self):
        table = torch.ones(SIZE)
        once = self.traced(lambda x: x + table)
        (constant,) = self.constants(self.traced(once))
        self.assertIs(constant, table)

    def test_constants_of_torch_tensor_are_none_of_them(self):
        gm = self.traced(lambda x: x + torch.tensor([1.0] * SIZE))
        self.assertEqual(self.constants(gm), [])


class TestCompiled(OpTestCase):
    @parametrize("cpp_wrapper", (False, True))
    def test_in_the_branches_of_a_dispatch(self, cpp_wrapper):
        table = torch.arange(float(SIZE), device=DEVICE)
        numbers = table.tolist()

        def captured(x):
            return x + table

        def literal(x):
            return torch.tensor(numbers, device=x.device) + x

        op = torch.library.custom_op("captures::op", mutates_args=())(_first_of_two)
        op.register_fake(torch.empty_like)
        ranges = [(2, 16), (16, 64), (64, math.inf)]
        configs = [CustomOpRangeConfig("x", 0, ranges, [captured, literal])]
        self.register(op, configs, include_fallback=False)

        def ms(size, index):
            return 1.0 + (index != (1 if 16 <= size < 64 else 0))

        compiled = torch.compile(lambda x: op(x * 2) * 3)
        with (
            made_up_times(ms),
            config.patch(cpp_wrapper=cpp_wrapper),
        ):
            for i, size in enumerate((20, 5, 80)):
                x = torch.rand(size, SIZE, device=DEVICE)
                torch._dynamo.mark_dynamic(x, 0)
                with torch._dynamo.config.patch(error_on_recompile=i > 0):
                    self.assertEqual(compiled(x), (x * 2 + table) * 3)

    @parametrize("dispatches", (False, True))
    def test_given_to_ops_that_inductor_calls(self, dispatches):
        """With fake inputs, too, to know the strides of what they return."""
        counters.clear()
        table = torch.arange(float(SIZE), device=DEVICE)
        kernel = torch.library.custom_op("captures::kernel", mutates_args=())(_sum_of)
        kernel.register_fake(_sum_of)
        op = torch.library.custom_op("captures::of_kernel", mutates_args=())(_plus_ramp)
        op.register_fake(torch.empty_like)

        def sorts(x):
            return x + table.sort().values

        ranges = [(2, 16), (16, math.inf)]
        implementations = [lambda x: kernel(x, table), sorts]
        self.register(op, [CustomOpRangeConfig("x", 0, ranges, implementations)])

        def ms(size, index):
            return 1.0 + (index != int(dispatches and size >= 16))

        compiled = torch.compile(lambda x: op(x * 2) * 3)
        with made_up_times(ms):
            for size in (20, 5):
                x = torch.rand(size, SIZE, device=DEVICE)
                torch._dynamo.mark_dynamic(x, 0)
                self.assertEqual(compiled(x), (x * 2 + table) * 3)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    def test_weights_of_a_package_are_replaced_without_them(self):
        table = torch.arange(float(SIZE), device=DEVICE)
        op = torch.library.custom_op("captures::packaged", mutates_args=())(_plus_ramp)
        op.register_fake(torch.empty_like)
        ranges = [(0, math.inf)]
        configs = [CustomOpRangeConfig("x", 0, ranges, [lambda x: x + table])]
        self.register(op, configs)

        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.weight = torch.nn.Parameter(torch.ones(SIZE, device=DEVICE))

            def forward(self, x):
                return op(x * self.weight)

        x = torch.rand(8, SIZE, device=DEVICE)
        exported = torch.export.export(Model(), (x,))
        with made_up_times(first_is_best):
            package = torch._inductor.aoti_compile_and_package(exported)
        loaded = torch._inductor.aoti_load_package(package)
        weight = torch.full((SIZE,), 3.0, device=DEVICE)
        loaded.load_constants({"weight": weight}, check_full_update=True)
        self.assertEqual(loaded(x), x * 3 + table)


class TestLifetime(OpTestCase):
    def test_what_did_not_win_is_not_kept(self):
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        op = torch.library.custom_op("captures::double", mutates_args=())(double)
        op.register_fake(torch.empty_like)

        def compile_with_table():
            table = torch.ones(SIZE, device=DEVICE)
            ranges = [(0, math.inf)]
            impls = [lambda x: x * 2, lambda x: x + x * table]
            self.register(op, [CustomOpRangeConfig("x", 0, ranges, impls)])
            compiled = torch.compile(op)
            x = torch.rand(SIZE, SIZE, device=DEVICE)
            with made_up_times(first_is_best):
                self.assertEqual(compiled(x), x * 2)
            return weakref.ref(table)

        table = compile_with_table()
        self.register(op, [CustomOpRangeConfig("x", 0, [(0, 9)], [lambda x: x * 2])])
        torch._dynamo.reset()
        gc.collect()
        self.assertIsNone(table())


def first_is_best(size, index):
    return 1.0 + (index != 0)


def _first_of_two(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the op itself does not run")


def _sum_of(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    return x + table


def _plus_ramp(x: torch.Tensor) -> torch.Tensor:
    return x + torch.arange(SIZE, device=x.device)


instantiate_parametrized_tests(TestCompiled)


if __name__ == "__main__":
    run_tests()
