# Owner(s): ["module: inductor"]
"""Threads that load candidates: what is computed once, what crosses, what may hang."""

import subprocess
import sys
import textwrap
import threading
from concurrent.futures import CancelledError
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
from torch._inductor.range_autotune import threads
from torch._inductor.range_autotune.threads import (
    as_from_here,
    autotune_threads,
    DaemonThreads,
    Loading,
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


class TestDaemonThreads(TestCase):
    def setUp(self):
        super().setUp()
        self.release = threading.Event()
        self.addCleanup(self.release.set)

    def test_results_and_errors(self):
        with DaemonThreads(2) as pool:
            futures = [pool.submit(divmod, 7, n) for n in (2, 0)]
            self.assertEqual(futures[0].result(LONG_S), (3, 1))
            self.assertIsInstance(futures[1].exception(LONG_S), ZeroDivisionError)

    def test_no_more_than_its_workers(self):
        started = threading.Semaphore(0)
        pool = DaemonThreads(2)

        def wait():
            started.release()
            return self.release.wait(LONG_S)

        futures = [pool.submit(wait) for _ in range(5)]
        for _ in range(2):
            self.assertTrue(started.acquire(timeout=LONG_S))
        self.assertEqual(sum(f.running() for f in futures), 2)
        self.release.set()
        self.assertTrue(all(f.result(LONG_S) for f in futures))

    def test_shutdown_beside_a_call_that_hangs(self):
        pool = DaemonThreads(1)
        running = threading.Event()

        def hang():
            running.set()
            return self.release.wait(LONG_S)

        hanging, waiting = pool.submit(hang), pool.submit(int)
        self.assertTrue(running.wait(LONG_S))
        pool.shutdown(wait=False, cancel_futures=True)
        with self.assertRaises(CancelledError):
            waiting.result(LONG_S)
        self.assertFalse(hanging.done())
        with self.assertRaisesRegex(RuntimeError, "no calls are taken after shutdown"):
            pool.submit(int)
        self.release.set()
        self.assertTrue(hanging.result(LONG_S))

    def test_takes_calls_after_it_was_idle(self):
        pool = DaemonThreads(1)
        for n in range(3):
            self.assertEqual(pool.submit(lambda n=n: n).result(LONG_S), n)

    def test_a_call_that_hangs_does_not_keep_the_process(self):
        script = """
            import threading
            from torch._inductor.range_autotune import threads
            threads._EXIT_WAIT_S = 0.1
            started = threading.Event()
            def hang():
                started.set()
                threading.Event().wait()
            threads.DaemonThreads(1).submit(hang)
            started.wait()
            print("the end")
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            capture_output=True,
            text=True,
            timeout=5 * LONG_S,
        )
        self.assertEqual((done.returncode, done.stdout), (0, "the end\n"))

    def test_the_end_of_the_process_waits_a_little(self):
        pool = DaemonThreads(1)
        future = pool.submit(self.release.wait, LONG_S)
        threading.Timer(0.05, self.release.set).start()
        with mock.patch.object(threads, "_EXIT_WAIT_S", LONG_S):
            threads._wait_at_exit()
        self.assertTrue(future.done())


class TestLoading(TestCase):
    def threads_used(self, count, sources=("",) * 4):
        with Loading(count) as loading:
            futures = [loading.submit(threading.get_ident, s) for s in sources]
        return {future.result() for future in futures}

    def test_one_is_the_caller(self):
        self.assertEqual(self.threads_used(1), {threading.get_ident()})

    def test_more_are_others(self):
        used = self.threads_used(3)
        self.assertNotIn(threading.get_ident(), used)

    def test_what_builds_ast_is_for_the_caller(self):
        source = "k = async_compile.cutedsl('k')"
        with mock.patch.object(threads, "PYTHON_BUILDS_AST_IN_ONE_THREAD", True):
            used = self.threads_used(3, [source])
        self.assertEqual(used, {threading.get_ident()})

    @parametrize("count", (1, 2))
    def test_an_error_is_in_the_future(self, count):
        with Loading(count) as loading:
            future = loading.submit(lambda: 1 // 0)
        self.assertIsInstance(future.exception(), ZeroDivisionError)

    def test_an_interrupt_in_the_caller_is_no_result(self):
        with self.assertRaises(KeyboardInterrupt), Loading(1) as loading:
            loading.submit(mock.Mock(side_effect=KeyboardInterrupt))

    def test_an_error_in_the_block_ends_without_waiting(self):
        release, running = threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def hang():
            running.set()
            release.wait(LONG_S)

        with self.assertRaises(KeyboardInterrupt), Loading(2) as loading:
            futures = [loading.submit(hang) for _ in range(3)]
            self.assertTrue(running.wait(LONG_S))
            raise KeyboardInterrupt
        self.assertTrue(futures[2].cancelled())
        self.assertFalse(futures[0].done())

    @parametrize(
        "option,compile_threads,expected",
        [(None, 3, 3), (None, 1, 1), (5, 1, 5), (1, 8, 1), (0, 8, 1)],
    )
    def test_number_of_threads(self, option, compile_threads, expected):
        with config.patch(
            custom_op_autotune_threads=option, compile_threads=compile_threads
        ):
            self.assertEqual(autotune_threads(), expected)


instantiate_parametrized_tests(TestLoading)


class TestBuildingAst(TestCase):
    """Of CPython 3.11.8 and older."""

    CPP = "k = async_compile.cpp_pybinding(['int'], '''{}''')\nasync_compile.wait(g)"
    TRITON = "k = async_compile.triton('k', '''{}''')\nasync_compile.wait(g)"

    def fit(self, source, affected=True, workers_are_up=False):
        with (
            mock.patch.object(threads, "PYTHON_BUILDS_AST_IN_ONE_THREAD", affected),
            mock.patch.object(AsyncCompile, "use_process_pool", lambda: workers_are_up),
        ):
            return loads_in_any_thread(source)

    def test_no_kernels(self):
        self.assertTrue(self.fit("async_compile = AsyncCompile()"))

    def test_cpp(self):
        self.assertTrue(self.fit(self.CPP))

    @parametrize("workers_are_up", (False, True))
    def test_triton_in_workers_only(self, workers_are_up):
        for source in (self.TRITON, self.CPP + self.TRITON):
            self.assertEqual(
                self.fit(source, workers_are_up=workers_are_up), workers_are_up
            )

    def test_other_dialects(self):
        source = "k = async_compile.cutedsl('k', '')"
        self.assertFalse(self.fit(source + self.TRITON, workers_are_up=True))

    def test_other_pythons(self):
        self.assertTrue(self.fit(self.TRITON, affected=False))

    def test_which_pythons(self):
        affected = (3, 11, 0) <= sys.version_info[:3] <= (3, 11, 8)
        self.assertEqual(threads.PYTHON_BUILDS_AST_IN_ONE_THREAD, affected)


instantiate_parametrized_tests(TestBuildingAst)


if __name__ == "__main__":
    run_tests()
