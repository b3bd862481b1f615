# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.modules.cpp_units``."""

import importlib.util
import os
import re
import sys
import types
from pathlib import Path
from unittest import mock

from range_autotune_testing import compilers
from torch._dynamo.utils import counters
from torch._inductor.codecache import CppPythonBindingsCodeCache
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import fresh_cache

import torch
from torch._inductor import config
from torch._inductor.range_autotune.modules import cpp_units
from torch._inductor.range_autotune.modules.cpp_units import (
    compile_together,
    CppKernel,
    kernels_of,
)


ARGTYPES = ("const float*", "float*", "const int64_t")


def kernel_of(expression, before=""):
    return CppKernel(
        ARGTYPES,
        f"""
#include <torch/csrc/inductor/cpp_prefix.h>
{before}
extern "C"  void kernel(const float* in, float* out, const int64_t n) {{
    for (int64_t i = 0; i < n; ++i) out[i] = {expression};
}}
""",
    )


def module_of(source="", **patches):
    """What matters of a module: its code, and the config that it is loaded under."""

    def run_in_context(call):
        with config.patch(patches):
            return call()

    return types.SimpleNamespace(source=source, run_in_context=run_in_context)


class TestKernelsOf(TestCase):
    def test_those_in_generated_code(self):
        module = module_of(
            "async_compile = AsyncCompile()\n"
            "first = async_compile.cpp_pybinding(['float*', 'long'], r'''one\\n''')\n"
            "other = async_compile.triton('name', '''kernel''')\n"
            "second = async_compile.cpp_pybinding([], '''two''')\n"
        )
        expected = [CppKernel(("float*", "long"), "one\\n"), CppKernel((), "two")]
        self.assertEqual(kernels_of(module), expected)

    def test_none(self):
        self.assertEqual(kernels_of(module_of("extern_kernels.mm(a, b)")), [])


class TestFull(TestCase):
    def test_is_a_matter_of_length(self):
        small = CppKernel((), "x" * 4000)
        self.assertFalse(cpp_units.is_full([small, small]))
        self.assertTrue(cpp_units.is_full([small, small, small]))


class TestCompileTogether(TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(fresh_cache())
        counters.clear()

    def units(self):
        return counters["inductor"]["custom_op_cpp_units"]

    def call(self, kernel):
        x = torch.arange(5.0)
        result = torch.empty_like(x)
        call = CppPythonBindingsCodeCache.load_pybinding(kernel.argtypes, kernel.source)
        call(x, result, 5)
        return result.tolist()

    def test_one_compiler_for_all(self):
        helper = "static float helper(float x) {{ return x {} 1; }}\nstruct Same {{}};"
        plus = kernel_of("helper(in[i])", helper.format("+"))
        minus = kernel_of("helper(in[i])", helper.format("-"))
        twice = kernel_of("2 * in[i]", "#include <vector>\nusing Same = int;")
        with compilers() as commands:
            compile_together([(module_of(), k) for k in (plus, minus, twice)])
            self.assertEqual(len(commands), 1)
            self.assertEqual(self.units(), 1)
            CppPythonBindingsCodeCache.cache_clear()  # as in another process
            self.assertEqual(self.call(twice), [0, 2, 4, 6, 8])
            self.assertEqual(self.call(plus), [1, 2, 3, 4, 5])
            self.assertEqual(self.call(minus), [-1, 0, 1, 2, 3])
            self.assertEqual(len(commands), 1)

    def test_says_when_only_compilers_are_left(self):
        started = []
        kernels = [(module_of(), kernel_of(f"in[i] * {n}")) for n in (3, 4)]
        with compilers() as commands:
            compile_together(kernels, lambda: started.append(len(commands)))
            self.assertEqual((started, len(commands)), ([0], 1))

    def test_what_is_compiled_already_stays(self):
        known, new = kernel_of("in[i]"), kernel_of("-in[i]")
        self.call(known)
        with compilers() as commands:
            compile_together([(module_of(), k) for k in (known, new, known)])
            self.assertEqual((len(commands), self.units()), (0, 0))
            self.assertEqual(self.call(new), [0, -1, -2, -3, -4])
            self.assertEqual(len(commands), 1)

    def test_one_kernel_twice_is_no_unit(self):
        kernel = kernel_of("in[i]")
        compile_together([(module_of(), kernel), (module_of(), kernel)])
        self.assertEqual(self.units(), 0)

    def test_of_one_command_line_only(self):
        fast = module_of(**{"cpp.enable_floating_point_contract_flag": "fast"})
        plain = module_of(**{"cpp.enable_floating_point_contract_flag": "off"})
        kernels = [kernel_of(f"in[i] + {i}") for i in range(4)]
        with (
            mock.patch(
                "torch._inductor.codecache._precompile_header", lambda *a, **k: ""
            ),
            mock.patch.object(cpp_units, "_build") as build,
        ):
            compile_together(zip((fast, plain, fast, plain), kernels))
        units = [
            [x.source.read_text() for x in c.args[0]] for c in build.call_args_list
        ]
        numbers = [
            [re.search(r"in\[i\] \+ (\d)", x)[1] for x in unit] for unit in units
        ]
        self.assertEqual(numbers, [["0", "2"], ["1", "3"]])

    def test_libraries_do_not_mix(self):
        # Some programs have Python load all libraries so; then the first symbol counts.
        self.addCleanup(sys.setdlopenflags, sys.getdlopenflags())
        sys.setdlopenflags(os.RTLD_NOW | os.RTLD_GLOBAL)
        for number in (1, 3):
            kernels = [kernel_of(f"in[i] + {n}") for n in (number, number + 1)]
            compile_together([(module_of(), kernel) for kernel in kernels])
            firsts = [self.call(kernel)[0] for kernel in kernels]
            self.assertEqual(firsts, [number, number + 1])

    def test_does_no_harm_where_it_does_not_compile(self):
        good, bad = kernel_of("in[i]"), kernel_of("nonsense")
        with self.assertLogs(cpp_units.log, "INFO") as logs:
            compile_together([(module_of(), good), (module_of(), bad)])
        self.assertIn("C++ kernels are compiled one by one", logs.output[0])
        self.assertEqual(self.call(good), [0, 1, 2, 3, 4])
        with self.assertRaisesRegex(Exception, "nonsense"):
            self.call(bad)

    def test_a_library_has_the_kernels_of_its_unit_only(self):
        kernels = [kernel_of("in[i]"), kernel_of("-in[i]")]
        with mock.patch.object(
            cpp_units, "_install", wraps=cpp_units._install
        ) as install:
            compile_together([(module_of(), k) for k in kernels])
        (unit, target), _ = install.call_args
        self.assertEqual(Path(unit).read_bytes(), target.read_bytes())
        spec = importlib.util.spec_from_file_location("other.kernel", unit)
        with self.assertRaisesRegex(
            ImportError, "unit without the kernel other.kernel"
        ):
            importlib.util.module_from_spec(spec)


if __name__ == "__main__":
    run_tests()
