# Owner(s): ["module: inductor"]
"""Candidates that never return, or end their process, in a process of their own."""

import logging
import os
import subprocess
import sys
import textwrap
from unittest import mock

from range_autotune_testing import OpTestCase
from torch._dynamo.utils import counters
from torch._inductor.autotune_process import TuningProcess
from torch._inductor.codecache import PyCodeCache
from torch._inductor.test_case import run_tests, TestCase

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpConfig, CustomOpRangeConfig
from torch._inductor.range_autotune.inputs import TensorSpec
from torch._inductor.range_autotune.measuring import trial, trial_process
from torch._inductor.range_autotune.measuring.trial import SentTensor, Trial
from torch._inductor.range_autotune.measuring.trial_process import TrialProcess
from torch._inductor.range_autotune.modules import compiling
from torch._inductor.range_autotune.times import Failure


LOGGER = "torch._inductor.kernel.custom_op"
# Of which no call here that returns takes a part, on however busy a machine.
LONG_S = 1000.0
# Calls into C, which no exception ends.
NEVER_RETURN = (
    "import threading; lock = threading.Lock(); lock.acquire(); lock.acquire()"
)
CRASH = "import ctypes; ctypes.string_at(0)"


def make_trial(body, arguments=(), constants=None, settings=None, preamble=""):
    """Of a module whose ``call`` is given by its statements."""
    body = textwrap.indent(textwrap.dedent(body), "    ")
    code = f"{preamble}\ndef call(args):\n{body}\n"
    key, path = PyCodeCache.write(code)
    return Trial(key, path, constants or {}, arguments, settings or {})


class TestSentTensor(TestCase):
    def test_layouts(self):
        base = torch.arange(24.0).view(4, 6)
        for tensor in (
            base,
            base.t(),
            base[1:3, 2:4],
            base[:1].expand(3, 6),
            base[::2, ::3],
            base[:0],
            torch.tensor(1.5),
            torch.tensor([True, False]),
        ):
            made = SentTensor.of(tensor).make()
            self.assertEqual(made, tensor)
            self.assertEqual(made.stride(), tensor.stride())

    def test_only_what_the_tensor_has_is_sent(self):
        sent = SentTensor.of(torch.zeros(1000)[10:13])
        self.assertEqual(sent.flat.untyped_storage().nbytes(), 3 * 4)


class TestTrialProcess(TestCase):
    """Starting a process takes seconds, so that each test does what it can with one."""

    def setUp(self):
        super().setUp()
        counters.clear()
        self.process = TrialProcess()
        self.addCleanup(self.process.end)

    def outcome(self, body, *arguments, limit_s=LONG_S, **of_trial):
        return self.process.try_one(make_trial(body, arguments, **of_trial), limit_s)

    def check_failure(self, expected, failure, everywhere=True, may_pass=False):
        self.assertEqual(failure, Failure(expected, may_pass, everywhere))

    def started(self):
        return counters["inductor"]["custom_op_trial_processes"]

    def test_one_process_for_all_that_return(self):
        self.assertIsNone(self.outcome("pass"))
        first = self.process._process.process.pid
        self.check_inputs()
        self.check_constants_and_settings()
        self.check_failures()
        self.check_terminal()
        self.check_one_that_cannot_be_loaded()
        self.assertEqual(self.process._process.process.pid, first)
        self.assertEqual(self.started(), 1)
        self.check_one_that_cannot_be_sent()

    def check_one_that_cannot_be_sent(self):
        with self.assertLogs(LOGGER, logging.INFO) as logs:
            self.assertIsNone(self.outcome("pass", lambda: 0))
        self.assertIn("cannot be tried in another process", logs.output[0])
        self.check_failures()

    def check_inputs(self):
        spec = TensorSpec((2, 3), (1, 2), torch.float32, torch.device("cpu"))
        index = TensorSpec((3,), (1,), torch.int64, torch.device("cpu"))
        body = """
            n, x, index, sent = args
            assert n == 7 and x.shape == (2, 3) and x.stride() == (1, 2)
            assert x.any() and not index.any() and sent.tolist() == [1, 2]
        """
        sent = SentTensor.of(torch.tensor([1, 2]))
        self.assertIsNone(self.outcome(body, 7, spec, index, sent))

    def check_constants_and_settings(self):
        constants = {"c0": SentTensor.of(torch.tensor(5))}
        body = """
            from torch._inductor import config
            assert c0.item() == 5 and config.unroll_reductions_threshold == 3
        """
        settings = {"unroll_reductions_threshold": 3}
        outcome = self.outcome(body, constants=constants, settings=settings)
        self.assertIsNone(outcome)
        body = """
            import gc, torch
            assert not any(torch.is_tensor(x) and x.ndim == 0 for x in gc.get_objects())
        """
        self.assertIsNone(self.outcome(body))  # of those before nothing is kept

    def check_failures(self):
        self.check_failure(
            "it does not run: ValueError: broken",
            self.outcome("raise ValueError('broken')"),
            everywhere=False,
        )
        # Of less memory than those have who measure.
        self.assertIsNone(self.outcome("raise MemoryError"))

    def check_terminal(self):
        body = """
            import os, sys
            assert sys.stdin.read() == ""
            assert os.fstat(1) == os.fstat(2)
        """
        self.assertIsNone(self.outcome(body))

    def check_one_that_cannot_be_loaded(self):
        preamble = "raise OSError('not found')"
        with self.assertLogs(LOGGER, logging.INFO) as logs:
            self.assertIsNone(self.outcome("pass", preamble=preamble))
        self.assertRegex(
            logs.output[-1], "cannot be tried in another process: OSError: not found$"
        )

    def test_one_that_ends_its_process(self):
        self.check_failure(
            "it crashed with signal 11 (Segmentation fault)", self.outcome(CRASH)
        )
        self.check_failure(
            "it ended its process with status 3", self.outcome("import os; os._exit(3)")
        )
        self.assertIsNone(self.outcome("pass"))
        self.assertEqual(self.started(), 3)

    def test_one_that_never_returns(self):
        self.assertIsNone(self.outcome("pass"))
        hanging = self.process._process.process
        self.check_failure(
            "a call of it takes longer than 0.5 s, see "
            "torch._inductor.config.custom_op_candidate_time_limit_s",
            self.outcome(NEVER_RETURN, limit_s=0.5),
            may_pass=True,
        )
        self.assertEqual(hanging.returncode, -9)
        self.assertIsNone(self.process._process)

    def test_ctrl_c_ends_the_process(self):
        self.assertIsNone(self.outcome("pass"))
        running = self.process._process
        with (
            mock.patch.object(
                running.selector, "select", side_effect=KeyboardInterrupt
            ),
            self.assertRaises(KeyboardInterrupt),
        ):
            self.outcome("pass")
        self.assertEqual(running.process.returncode, -9)
        self.assertIsNone(self.process._process)

    def test_device_that_an_error_left_unusable(self):
        broken = Failure("it does not run: broken")
        answers = [None, trial.Verdict(broken, reusable=False)]
        with (
            mock.patch.object(TrialProcess, "_is_running", return_value=True),
            mock.patch.object(TrialProcess, "_ask", side_effect=answers),
            mock.patch.object(TrialProcess, "end") as end,
        ):
            self.assertEqual(self.outcome("pass"), broken)
        end.assert_called_once_with()

    def test_no_process_can_be_had(self):
        with (
            mock.patch.object(TuningProcess, "start", side_effect=OSError("no room")),
            self.assertLogs(LOGGER, logging.WARNING) as logs,
        ):
            self.assertIsNone(self.outcome("pass"))
            self.assertIsNone(self.outcome("pass"))
        self.assertExpectedInline(
            "\n".join(r.getMessage() for r in logs.records),
            """Candidates are not tried in a process of their own: OSError: no room""",
        )
        self.assertEqual(self.started(), 1)

    def test_a_fork_has_a_process_of_its_own(self):
        self.process._process = mock.Mock()
        self.addCleanup(setattr, self.process, "_process", None)
        child = os.fork()
        if not child:
            os._exit(0 if self.process._process is None else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)

    def test_it_ends_with_the_process_that_started_it(self):
        script = """
            from torch._inductor.range_autotune.measuring.trial_process import PROCESS
            PROCESS._start()
            print(PROCESS._process.process.pid)
        """
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(script)],
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        with self.assertRaises(ProcessLookupError):
            os.kill(int(done.stdout), 0)


class TestCandidates(OpTestCase):
    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        self.addCleanup(trial_process.PROCESS.end)
        self.op = self.define_op("op(Tensor x) -> Tensor")
        self._library.impl("op", torch.clone, "CPU")
        self._library.impl("op", torch.empty_like, "Meta")

    def compiled(self, configs, x, bad=(), **options):
        """
        The result of a compiled call of the op.

        Args:
            bad: statements that the calls of candidates with such a name are made of.
        """
        generate = compiling.generate_module

        def with_bad_call(gm, inputs, symbols, name, *how):
            module = generate(gm, inputs, symbols, name, *how)
            for bad_name, body in dict(bad).items():
                if name.endswith(f"_{bad_name}"):
                    call = textwrap.indent(body, "    ")
                    module.source += f"\ndef call(args):\n{call}\n"
            return module

        self.register(self.op, configs=configs, include_fallback=False, **options)
        with (
            config.patch(force_disable_caches=True, autotune_in_subproc=True),
            mock.patch.object(compiling, "generate_module", with_bad_call),
        ):
            return torch.compile(self.op)(x)

    def test_those_that_are_not_survived(self):
        def crashes(x):
            return x + 1

        def hangs(x):
            return x + 2

        def good(x):
            return x + 100

        table = CustomOpRangeConfig(
            "x", 0, [(0, 512), (512, 2048)], [crashes, hangs, good]
        )
        x = torch.zeros(16)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=1024)
        with (
            self.assertLogs(LOGGER, logging.WARNING) as logs,
            mock.patch.object(trial_process, "time_limit_s", lambda: 3.0),
        ):
            result = self.compiled(
                [table], x, {"crashes": CRASH, "hangs": NEVER_RETURN}
            )
        self.assertExpectedInline(
            "\n".join(record.getMessage() for record in logs.records),
            """\
range_autotune_test::op_autotuned: candidate 'crashes' is left out: in range [0, 512), it crashed with signal 11 (Segmentation fault)
range_autotune_test::op_autotuned: candidate 'hangs' is left out: in range [0, 512), a call of it takes longer than 3 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )
        self.assertEqual(result, x + 100)
        # The two that are out at one size, the other one at each, and where it is not timed.
        trials = counters["inductor"]["custom_op_candidate_trials"]
        timings = counters["inductor"]["custom_op_candidate_timings"]
        self.assertEqual(trials, timings + 3)

    def test_those_that_call_custom_ops_are_not_tried(self):
        def calls_op2(x):
            return op2(x)

        configs = [CustomOpConfig(calls_op2)]
        op2 = self.define_op("op2(Tensor x) -> Tensor")
        self._library.impl("op2", torch.clone, "CPU")
        self._library.impl("op2", torch.empty_like, "Meta")
        x = torch.ones(4)
        self.assertEqual(self.compiled(configs, x), op2(x))
        self.assertEqual(counters["inductor"]["custom_op_candidate_trials"], 0)

    def test_what_an_input_generator_made_is_sent(self):
        made = torch.arange(4.0).neg()

        def bad(x):
            return x + 1

        check = f"assert args[0].tolist() == {made.tolist()}, args[0]\nraise ValueError('as expected')"
        with self.assertLogs(LOGGER, logging.WARNING) as logs:
            self.compiled(
                [CustomOpConfig(bad)],
                torch.ones(4),
                {"bad": check},
                input_gen_fns={"x": lambda x: x.copy_(made)},
            )
        self.assertExpectedInline(
            logs.records[0].getMessage(),
            """range_autotune_test::op_autotuned: candidate 'bad' is left out in range [0, inf): it does not run: ValueError: as expected""",
        )


if __name__ == "__main__":
    run_tests()
