# Owner(s): ["module: inductor"]
"""The bar of a tuning that takes long, on a made-up terminal with a made-up clock."""

import io
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import tqdm.std
from torch._inductor.test_case import run_tests, TestCase

from torch._inductor import config
from torch._inductor.range_autotune.measuring.tuning_progress import tuning_progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


class TestTuningProgress(TestCase):
    def setUp(self):
        super().setUp()
        self.now = 1000.0
        self.enterContext(mock.patch.object(tqdm.std, "time", lambda: self.now))
        self.terminal = Terminal()
        self.enterContext(mock.patch.object(sys, "stderr", self.terminal))

    def run_for(self, seconds_a_step, steps=4):
        """What is on the terminal after each step, and at the end."""
        seen = []
        with tuning_progress("my_op", steps) as progress:
            for step in range(steps):
                self.now += seconds_a_step
                progress.done(f"step {step}")
                seen.append(self.terminal.getvalue())
        return seen, self.terminal.getvalue()

    def test_long_tuning_shows_a_bar(self):
        seen, end = self.run_for(2.0)
        self.assertEqual(seen[0], "")
        self.assertIn("Tuning my_op:  50%", seen[1])
        self.assertIn("2/4", seen[1])
        self.assertIn("step 1", seen[1])
        self.assertIn("4/4", seen[3])
        self.assertTrue(end.endswith("\r"))
        self.assertEqual(end.split("\r")[-2].strip(), "", "the line is wiped")
        self.assertNotIn("\n", end)

    def test_short_tuning_shows_nothing(self):
        _, end = self.run_for(0.5)
        self.assertEqual(end, "")

    def test_nothing_where_nobody_looks(self):
        self.terminal.isatty = lambda: False
        _, end = self.run_for(2.0)
        self.assertEqual(end, "")

    def test_nothing_where_nobody_can_tell_who_looks(self):
        class WriteOnly:
            """As a program puts in place of standard error."""

        closed = io.StringIO()
        closed.close()
        for stream in (WriteOnly(), closed, None):
            with (
                self.subTest(stream),
                mock.patch.object(sys, "stderr", stream),
                tuning_progress("my_op", 2) as progress,
            ):
                self.now += 10
                progress.done("it")

    def test_nothing_when_switched_off(self):
        with config.patch(custom_op_autotune_progress=False):
            _, end = self.run_for(2.0)
        self.assertEqual(end, "")

    def test_nothing_without_tqdm(self):
        with mock.patch.dict(sys.modules, {"tqdm": None}):
            _, end = self.run_for(2.0)
        self.assertEqual(end, "")

    def test_more_steps_than_known_at_first(self):
        with tuning_progress("my_op", 1) as progress:
            progress.add_steps(4)
            self.now += 10
            progress.done("it")
        self.assertIn("1/5", self.terminal.getvalue())

    def test_an_exception_wipes_the_bar(self):
        with (
            self.assertRaisesRegex(RuntimeError, "stop"),
            tuning_progress("my_op", 4) as progress,
        ):
            self.now += 10
            progress.done("it")
            raise RuntimeError("stop")
        shown = self.terminal.getvalue()
        self.assertIn("1/4", shown)
        self.assertEqual(shown.split("\r")[-2].strip(), "")
        progress.done("a step that ends later")
        progress.add_steps(1)
        self.assertEqual(self.terminal.getvalue(), shown)

    def test_steps_of_many_threads(self):
        with tuning_progress("my_op", 400) as progress:
            with ThreadPoolExecutor(8) as pool:
                for _ in range(399):
                    pool.submit(progress.done, "it")
            self.now += 10
            progress.done("the last")
        self.assertIn("400/400", self.terminal.getvalue())

    def test_no_thread_is_left(self):
        before = set(threading.enumerate())  # of other tests, some may end meanwhile
        self.run_for(2.0)
        self.assertLessEqual(set(threading.enumerate()), before)

    def test_caches_do_not_look_at_the_switch(self):
        with config.patch(custom_op_autotune_progress=True):
            on = config.save_config_portable()
        with config.patch(custom_op_autotune_progress=False):
            self.assertEqual(config.save_config_portable(), on)


if __name__ == "__main__":
    run_tests()
