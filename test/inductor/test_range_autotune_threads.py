# Owner(s): ["module: inductor"]
"""Threads that load candidates: what is computed once, what crosses, what may hang."""

import sys
import threading
from unittest import mock

from range_autotune_testing import in_threads, THREADS
from torch._inductor.async_compile import AsyncCompile
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.virtualized import NullHandler, V
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from torch._inductor import config
from torch._inductor.range_autotune.modules import threads
from torch._inductor.range_autotune.modules.threads import (
    as_from_here,
    autotune_threads,
    is_compiled_by_workers,
    loads_in_any_thread,
    Once,
)


# Only a failing test waits so long.
LONG_S = 60


class TestOnce(TestCase):
    def test_computes_once_in_many_threads(self):
        calls = []

        def compute():
            calls.append(threading.get_ident())
            return object()

        once = Once(compute)
        values = in_threads(once.get)
        self.assertEqual(len(calls), 1)
        self.assertEqual({id(value) for value in values}, {id(once.get())})

    def test_an_error_is_for_every_caller(self):
        error = ValueError("no")
        compute = mock.Mock(side_effect=error)
        once = Once(compute)
        self.assertEqual({id(e) for e in in_threads(once.get)}, {id(error)})
        with self.assertRaises(ValueError):
            once.get()
        self.assertEqual(compute.call_count, 1)


class TestAsFromHere(TestCase):
    def test_handlers_and_config(self):
        def seen():
            return config.realize_reads_threshold, V.get_aot_compilation()

        other = config.realize_reads_threshold + 1
        with (
            config.patch(realize_reads_threshold=other),
            V.set_aot_compilation("handler"),
        ):
            call = as_from_here(seen)
        self.assertNotEqual(config.realize_reads_threshold, other)
        self.assertEqual(in_threads(call), [(other, "handler")] * THREADS)

    def test_the_thread_keeps_its_own(self):
        def fail():
            V.set_aot_compilation("left behind")
            raise ValueError("no")

        failing = as_from_here(fail)

        def call():
            with V.set_aot_compilation("its own"):
                try:
                    failing()
                except ValueError:
                    return V.get_aot_compilation()

        self.assertEqual(in_threads(call, 2), ["its own"] * 2)
        self.assertIsInstance(V.get_aot_compilation(), NullHandler)


class TestNumberOfThreads(TestCase):
    @parametrize(
        "option,compile_threads,expected",
        [(None, 3, 3), (None, 1, 1), (5, 1, 5), (1, 8, 1), (0, 8, 1)],
    )
    def test_number_of_threads(self, option, compile_threads, expected):
        with config.patch(
            custom_op_autotune_threads=option, compile_threads=compile_threads
        ):
            self.assertEqual(autotune_threads(), expected)


instantiate_parametrized_tests(TestNumberOfThreads)


NO_KERNELS = "async_compile = AsyncCompile()\nasync_compile.wait(g)"
CPP = "k = async_compile.cpp_pybinding(['int'], '''{}''')\nasync_compile.wait(g)"
TRITON = "k = async_compile.triton('k', '''{}''')\nasync_compile.wait(g)"


def workers(are_up):
    return mock.patch.object(AsyncCompile, "use_process_pool", lambda: are_up)


class TestCompiledByWorkers(TestCase):
    @parametrize("are_up", (False, True))
    def test_which_code_is(self, are_up):
        with workers(are_up):
            self.assertTrue(is_compiled_by_workers(NO_KERNELS))
            self.assertEqual(is_compiled_by_workers(TRITON), are_up)
            self.assertFalse(is_compiled_by_workers(CPP))
            self.assertFalse(is_compiled_by_workers(CPP + TRITON))


instantiate_parametrized_tests(TestCompiledByWorkers)


class TestBuildingAst(TestCase):
    """Of CPython 3.11.8 and older."""

    def fit(self, source, affected=True, workers_are_up=False):
        with (
            mock.patch.object(threads, "PYTHON_BUILDS_AST_IN_ONE_THREAD", affected),
            workers(workers_are_up),
        ):
            return loads_in_any_thread(source)

    def test_no_kernels(self):
        self.assertTrue(self.fit(NO_KERNELS))

    def test_cpp(self):
        self.assertTrue(self.fit(CPP))

    @parametrize("workers_are_up", (False, True))
    def test_triton_in_workers_only(self, workers_are_up):
        for source in (TRITON, CPP + TRITON):
            self.assertEqual(
                self.fit(source, workers_are_up=workers_are_up), workers_are_up
            )

    def test_other_dialects(self):
        source = "k = async_compile.cutedsl('k', '')"
        self.assertFalse(self.fit(source + TRITON, workers_are_up=True))

    def test_other_pythons(self):
        self.assertTrue(self.fit(TRITON, affected=False))

    def test_which_pythons(self):
        affected = (3, 11, 0) <= sys.version_info[:3] <= (3, 11, 8)
        self.assertEqual(threads.PYTHON_BUILDS_AST_IN_ONE_THREAD, affected)


instantiate_parametrized_tests(TestBuildingAst)


if __name__ == "__main__":
    run_tests()
