# Owner(s): ["module: inductor"]
"""Threads for which nobody waits longer than a limit."""

import threading
import time
from unittest import mock

from range_autotune_testing import run_script
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from torch._inductor.range_autotune.modules import limited_executor
from torch._inductor.range_autotune.modules.limited_executor import LimitedExecutor


SHORT_S = 0.05
# Of which no step here takes a part, on however busy a machine.
LONG_S = 1000.0


@instantiate_parametrized_tests
class TestLimitedExecutor(TestCase):
    def setUp(self):
        super().setUp()
        self.hang = threading.Event()
        self.addCleanup(self.hang.set)

    def test_results_and_errors(self):
        executor = LimitedExecutor(2, "it", LONG_S)
        results = [executor.submit(divmod, 7, n) for n in (2, 0)]
        self.assertEqual(results[0].result(), (3, 1))
        self.assertIsInstance(results[1].exception(), ZeroDivisionError)

    def test_so_many_run_at_once(self):
        running, most = [], []
        both = threading.Barrier(2)

        def run():
            running.append(None)
            both.wait(timeout=LONG_S)
            most.append(len(running))
            running.pop()
            both.wait(timeout=LONG_S)

        executor = LimitedExecutor(2, "it", None)
        results = [executor.submit(run) for _ in range(6)]
        for result in results:
            result.result()
        self.assertLessEqual(max(most), 2)

    def test_what_waits_has_no_thread(self):
        before = threading.active_count()
        executor = LimitedExecutor(2, "it", None)
        for _ in range(50):
            executor.submit(self.hang.wait)
        self.assertLessEqual(threading.active_count(), before + 2)

    def test_call_that_hangs_makes_room(self):
        def take_long(_):
            executor._limit_s = LONG_S

        executor = LimitedExecutor(1, "loading", SHORT_S)
        hanging = executor.submit(self.hang.wait)
        hanging.add_done_callback(take_long)  # the others may, on a busy machine
        others = [executor.submit(abs, -n) for n in range(3)]
        self.assertExpectedInline(
            str(hanging.exception()),
            """loading takes longer than 0.05 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )
        self.assertEqual([o.result() for o in others], [0, 1, 2])

    def test_timeout_of_the_call_s_own(self):
        executor = LimitedExecutor(1, "it", LONG_S)
        result = executor.submit(mock.Mock(side_effect=TimeoutError("mine")))
        self.assertEqual(str(result.exception()), "mine")

    def test_the_end_of_the_process_waits_a_little(self):
        begun, exiting = threading.Event(), threading.Event()
        executor = LimitedExecutor(1, "it", None)
        first = executor.submit(lambda: (begun.set(), self.hang.wait(LONG_S)))
        begun.wait()
        second = executor.submit(abs, -1)

        def go_on():
            exiting.wait(LONG_S)
            time.sleep(SHORT_S)
            self.hang.set()

        threading.Thread(target=go_on).start()
        with (
            mock.patch.object(limited_executor, "_EXIT_WAIT_S", LONG_S),
            mock.patch.object(limited_executor, "_exiting", exiting),
        ):
            limited_executor._wait_at_exit()
        self.assertTrue(first.done())
        self.assertTrue(second.cancelled())  # it had not begun

    def test_process_exits_while_a_call_hangs(self):
        script = """
            import threading
            from torch._inductor.range_autotune.modules import limited_executor
            limited_executor._EXIT_WAIT_S = 0.1
            executor = limited_executor.LimitedExecutor(1, "it", 0.01)
            result = executor.submit(threading.Event().wait)
            print(type(result.exception()).__name__)
        """
        self.assertEqual(run_script(script).stdout, "TookTooLong\n")

    @parametrize("started", (0, 1))
    def test_no_thread_to_be_had(self, started):
        """Neither for a call nor, behind that, for one that is not waited for long."""
        error = RuntimeError("no thread")
        effects = [*[mock.DEFAULT] * started, error]
        executor = LimitedExecutor(1, "it", LONG_S)
        with mock.patch.object(
            limited_executor,
            "_start_daemon",
            wraps=limited_executor._start_daemon,
            side_effect=effects,
        ):
            self.assertIs(executor.submit(int).exception(), error)


if __name__ == "__main__":
    run_tests()
