# Owner(s): ["module: inductor"]
"""A line before each slow step and a heartbeat while it lasts."""

import subprocess
import sys
import time
import unittest
from contextlib import redirect_stdout
from io import StringIO
from unittest import mock

from made_up import MadeUpTestCase, REPO_ROOT

from tools import progress


class TestStep(MadeUpTestCase):
    def test_the_heartbeat_is_shorter_than_the_silence_allowed(self):
        self.assertLess(progress.HEARTBEAT_S, 5)

    def test_lines(self):
        out = StringIO()
        with (
            mock.patch.object(progress, "HEARTBEAT_S", 0.01),
            redirect_stdout(out),
            progress.step("pack it"),
        ):
            while "… pack it" not in out.getvalue():
                time.sleep(0.01)
        lines = out.getvalue().splitlines()
        self.assertEqual(lines[0], "==> pack it")
        self.assertRegex(lines[1], r"^    … pack it: \d+ s$")
        self.assertRegex(lines[-1], r"^    done in \d+\.\d s$")


class TestCommand(MadeUpTestCase):
    def run_command(self, code, heartbeat_s=4.0):
        """Exit status and output of a Python command run as a step."""
        wrapper = (
            f"import sys; from tools import progress; progress.HEARTBEAT_S = {heartbeat_s};"
            "sys.exit(progress.main(sys.argv[1:]))"
        )
        command = [sys.executable, "-c", wrapper, "count", sys.executable, "-c", code]
        done = subprocess.run(command, cwd=REPO_ROOT, capture_output=True, text=True)
        return done.returncode, done.stdout

    def test_the_exit_status_and_the_last_line_are_kept(self):
        code = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
        status, out = self.run_command(code)
        self.assertEqual(status, 3)
        self.assertEqual(sorted(out.splitlines()), ["==> count", "one", "two"])

    def test_a_silence_has_heartbeats_on_lines_of_their_own(self):
        code = "import time; print('.', end='', flush=True); time.sleep(2); print('.')"
        _, out = self.run_command(code, heartbeat_s=0.5)
        lines = out.splitlines()
        self.assertEqual(lines[:2], ["==> count", "."])
        self.assertRegex(lines[2], r"^    … count: \d s$")
        self.assertEqual(lines[-1], ".")


if __name__ == "__main__":
    unittest.main()
