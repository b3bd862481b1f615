# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.emitting.loop_invariants``: what loops need not repeat."""

import re
import unittest
from types import SimpleNamespace
from unittest import mock

import sympy
from range_autotune_testing import OpTestCase
from torch._inductor.codegen.common import DeferredLine, InplacedBuffer, KernelArgs
from torch._inductor.codegen.cpp_utils import CppCSEVariable
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import IndentedBuffer, run_and_get_code
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._sympy.value_ranges import ValueRanges

import torch
from torch._inductor import config, cpu_vec_isa
from torch._inductor.kernel.custom_op import CustomOpConfig
from torch._inductor.range_autotune.emitting import loop_invariants
from torch._inductor.range_autotune.emitting.loop_invariants import _take


ROW, COLUMN = sympy.symbols("x0 x1", integer=True)


def loops_around(code, text):
    """The variables of the loops around each line of C++ code with a text."""
    found, open_blocks, begun = [], [], None
    for line in code.splitlines():
        if loop := re.match(r"\s*for\(int64_t (\w+)=", line):
            begun = loop[1]
        elif line.strip() == "{":
            open_blocks.append(begun)
            begun = None
        elif line.strip() == "}":
            open_blocks.pop()
        elif text in line:
            found.append([var for var in open_blocks if var])
    return found


needs_vectors = unittest.skipUnless(
    cpu_vec_isa.pick_vec_isa(), "loops over single numbers are left alone"
)


def scaled(x, scale):
    return x * torch.rsqrt(scale + 1)[:, None] + x.cos()


class TestTakenLines(TestCase):
    """Which lines of a made-up loop over x1 are taken out of it."""

    def take(self, loads, compute, stores=(), vectors=(), args=None):
        """
        What is taken, and what is left of loads and computations.

        Args:
            loads, compute: definitions of variables: their types, whether they depend on
                x1, and their lines; or lines as they are.
            vectors: the names of those variables that are vectors.
        """
        known = {}

        def body(entries):
            buffer = IndentedBuffer()
            for entry in entries:
                if isinstance(entry, str):
                    buffer.writeline(entry)
                    continue
                dtype, varies, line = entry
                name = line.split()[1]
                known[name] = CppCSEVariable(name, ValueRanges.unknown(), dtype)
                known[name].is_vec = name in vectors
                known[name].dependent_itervars |= {COLUMN} if varies else {ROW}
                buffer.writeline(line)
            return buffer

        kernel = SimpleNamespace(
            loads=body(loads),
            compute=body(compute),
            stores=IndentedBuffer(),
            cse=SimpleNamespace(varname_map=known),
            args=args or KernelArgs(),
        )
        for line in stores:
            kernel.stores.writeline(DeferredLine("buf0", line))
        lines = _take(kernel, COLUMN)
        return lines, kernel.loads.getvalue() + kernel.compute.getvalue()

    def test_what_follows_from_loads_of_the_row(self):
        loads = [
            (torch.float, True, "auto tmp0 = Vec::loadu(in_ptr0 + x1);"),
            (torch.float, False, "auto tmp1 = in_ptr1[static_cast<int64_t>(x0)];"),
        ]
        compute = [
            (torch.float, False, "auto tmp2 = 1 / std::sqrt(tmp1);"),
            (torch.float, False, "auto tmp3 = Vec(tmp2);"),
            (torch.float, True, "auto tmp4 = tmp0 * tmp3;"),
        ]
        taken, left = self.take(loads, compute, vectors=("tmp0", "tmp3", "tmp4"))
        self.assertEqual(taken, [loads[1][2], compute[0][2]])
        self.assertEqual(left, "\n".join(e[2] for e in [loads[0], *compute[1:]]) + "\n")

    def check_stays(self, *args, **kwargs):
        loads, compute = args
        taken, left = self.take(*args, **kwargs)
        self.assertEqual(taken, [])
        whole = [e[2] if isinstance(e, tuple) else e for e in [*loads, *compute]]
        self.assertEqual(left.split("\n")[:-1], whole)

    LOAD = (torch.float, False, "auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];")
    ROOT = (torch.float, False, "auto tmp1 = std::sqrt(tmp0);")

    def test_loads_and_constants_alone_gain_nothing(self):
        constant = (torch.float, False, "auto tmp1 = static_cast<float>(2.0);")
        self.check_stays([self.LOAD], [constant])

    def test_what_the_loop_writes(self):
        self.check_stays([self.LOAD], [self.ROOT], stores=["in_ptr0[x1] = tmp5;"])
        taken, _ = self.take([self.LOAD], [self.ROOT], stores=["out_ptr0[x1] = tmp5;"])
        self.assertEqual(len(taken), 2)

    def test_what_the_loop_writes_by_another_name(self):
        args = KernelArgs()
        args.input_buffers["arg0"] = "in_ptr0"
        args.output_buffers["arg0"] = "out_ptr0"
        stores = ["out_ptr0[x1] = tmp5;"]
        self.check_stays([self.LOAD], [self.ROOT], stores=stores, args=args)

    def test_what_the_loop_writes_in_place_of_an_input(self):
        args = KernelArgs()
        args.input_buffers["arg0"] = "in_ptr0"
        names = ["arg0", "buf0"]
        args.inplace_buffers["buf0"] = InplacedBuffer("in_out_ptr0", names)
        stores = ["in_out_ptr0[x1] = tmp5;"]
        self.check_stays([self.LOAD], [self.ROOT], stores=stores, args=args)

    def test_loads_at_places_that_were_loaded(self):
        """A check of the place may be behind."""
        place = (torch.int64, False, "auto tmp2 = in_ptr1[static_cast<int64_t>(x0)];")
        load = (torch.float, False, "auto tmp0 = in_ptr0[static_cast<int64_t>(tmp2)];")
        self.check_stays([place, load], [self.ROOT])

    def test_divisions_of_integers(self):
        load = (torch.int64, False, "auto tmp0 = in_ptr0[static_cast<int64_t>(x0)];")
        self.check_stays([load], [(torch.int64, False, "auto tmp1 = 7 / tmp0;")])

    def test_blocks(self):
        block = ["auto tmp2 = [&]", "{", self.ROOT, "}", ";"]
        self.check_stays([self.LOAD], block)

    def test_loads_inside_of_expressions(self):
        value = "static_cast<float>(in_ptr0[static_cast<int64_t>(x0)])"
        load = (torch.float, False, f"auto tmp0 = {value};")
        self.check_stays([load], [self.ROOT], stores=["in_ptr0[x1] = tmp5;"])

    def test_what_differs_from_turn_to_turn(self):
        load = (torch.float, True, "auto tmp0 = in_ptr0[static_cast<int64_t>(x1)];")
        self.check_stays([load], [(torch.float, True, self.ROOT[2])])


@needs_vectors
class TestLoops(TestCase):
    """Of graphs that are taken for one with an autotuned op."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        has_op = mock.patch.object(
            loop_invariants, "has_autotuned_op", return_value=True
        )
        self.has_op = self.enterContext(has_op)

    def loops(self, fn, *args, **tolerance):
        """The loops around each root in a function's code; compares it with eager."""
        result, (code,) = run_and_get_code(torch.compile(fn), *args)
        self.assertEqual(result, fn(*args), **tolerance)
        return loops_around(code, "std::sqrt")

    @parametrize("dtype", (torch.float, torch.bfloat16))
    def test_rows(self, dtype):
        args = torch.randn(64, 96, dtype=dtype), torch.rand(64, dtype=dtype)
        loops = self.loops(scaled, *args, atol=0.01, rtol=0.01)
        self.assertEqual(loops, [["x0"]])

    def test_graphs_without_an_autotuned_op(self):
        self.has_op.return_value = False
        args = torch.randn(64, 96), torch.rand(64)
        self.assertEqual(self.loops(scaled, *args), [["x0", "x1"]])

    def test_the_rest_of_a_row_computes_it_itself(self):
        args = torch.randn(64, 100), torch.rand(64)
        self.assertEqual(self.loops(scaled, *args), [["x0"], ["x0", "x1"]])

    @config.patch({"cpp.threads": 2})
    def test_loops_that_threads_share(self):
        """Between loops of which threads share all turns there is no place."""
        args = torch.randn(3, 4096), torch.rand(3)
        self.assertEqual(self.loops(scaled, *args), [["x0", "x1"]])

    def test_loops_side_by_side_in_one(self):
        def fn(x, scale):
            return torch.softmax(scaled(x, scale), -1)

        loops = self.loops(fn, torch.randn(64, 96), torch.rand(64))
        self.assertGreater(len(loops), 1)
        self.assertEqual(loops, [["x0"]] * len(loops))

    def test_columns_that_are_read_across(self):
        def fn(x, scale):
            return scaled(x.t(), scale).t() + x

        self.loops(fn, torch.randn(96, 64), torch.rand(64))

    @config.patch({"cpp.threads": 1})
    def test_vectors_of_an_outer_loop(self):
        def fn(x, scale):
            return scaled(x, scale).sum(0)

        loops = self.loops(fn, torch.randn(64, 96), torch.rand(64))
        self.assertEqual(loops, [["x0", "x1"]])

    def test_an_input_that_is_written_to(self):
        def fn(x):
            return x.mul_(torch.rsqrt(x[:, :1] + 2))

        x = torch.rand(64, 96)
        torch.compile(fn)(given := x.clone())
        self.assertEqual(given, fn(x))


instantiate_parametrized_tests(TestLoops)


@needs_vectors
class TestAutotunedOp(OpTestCase):
    def test_a_norm_and_its_neighbours(self):
        def norm(x: torch.Tensor) -> torch.Tensor:
            return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)

        name = "range_autotune_test::norm"
        op = torch.library.custom_op(name, mutates_args=())(norm)
        op.register_fake(torch.empty_like)
        self.register(op, configs=[CustomOpConfig(norm)], include_fallback=False)

        def model(x):
            return torch.nn.functional.gelu(op(x)) + x

        x = torch.randn(64, 96)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(model)
        _, codes = run_and_get_code(compiled, x)
        loops = [around for code in codes for around in loops_around(code, "std::sqrt")]
        self.assertEqual({*map(tuple, loops)}, {("x0",)})
        for rows in (2, 63, 200):
            x = torch.randn(rows, 96)
            self.assertEqual(compiled(x), model(x))


if __name__ == "__main__":
    run_tests()
