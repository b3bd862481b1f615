# Owner(s): ["module: inductor"]
"""Candidates that take too long, and what is left of them: nothing."""

import contextlib
import functools
import gc
import logging
import os
import pathlib
import signal
import tempfile
import threading
import time
import weakref
from concurrent import futures
from unittest import mock

from range_autotune_testing import OpTestCase, run_script
from torch._dynamo.utils import counters
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpConfig
from torch._inductor.range_autotune import limits
from torch._inductor.range_autotune.limits import (
    call_within,
    Exited,
    TookTooLong,
)
from torch._inductor.range_autotune.modules import compiling
from torch._inductor.range_autotune.modules.limited_executor import LimitedExecutor
from torch._inductor.range_autotune.modules.subgraph_module import SubgraphModule


SHORT_S = 0.05
# Of which no step here takes a part, on however busy a machine.
LONG_S = 1000.0
LOGGER = "torch._inductor.kernel.custom_op"


def spin():
    while True:
        pass


def threads_named(name):
    return [t for t in threading.enumerate() if t.name == name]


class Spinning:
    """
    Endless loops, and alarms that ring as soon as one has begun.

    So a limit can be so long that nothing else ever reaches it.
    """

    def __init__(self):
        self.begun = threading.Event()

    def spin(self):
        self.begun.set()
        spin()

    @contextlib.contextmanager
    def ends(self):
        begun = self.begun

        class Alarm(limits._Alarm):
            def _watch(self):
                begun.wait()
                if not self._stopped.is_set():
                    begun.clear()
                self._limit_s = 0.0
                super()._watch()

        with mock.patch.object(limits, "_Alarm", Alarm):
            yield
        begun.set()


@instantiate_parametrized_tests
class TestCallWithin(TestCase):
    def setUp(self):
        super().setUp()
        self.spinning = Spinning()

    def tearDown(self):
        for thread in threads_named("custom_op_time_limit"):
            thread.join(timeout=60)
        self.assertEqual(threads_named("custom_op_time_limit"), [])
        super().tearDown()

    def assert_too_long(self, call, limit_s=SHORT_S):
        with self.assertRaises(TookTooLong):
            call_within(limit_s, "it", call)

    def test_what_the_call_returns(self):
        self.assertEqual(call_within(LONG_S, "it", divmod, 7, 2), (3, 1))

    def test_what_the_call_raises(self):
        error = KeyError("mine")
        with self.assertRaises(KeyError) as caught:
            call_within(LONG_S, "it", mock.Mock(side_effect=error))
        self.assertIs(caught.exception, error)

    def test_without_a_limit(self):
        with mock.patch.object(limits, "_Alarm", side_effect=AssertionError):
            self.assertEqual(call_within(None, "it", abs, -1), 1)

    def test_endless_loop(self):
        with self.assertRaises(TookTooLong) as caught:
            call_within(SHORT_S, "spinning", spin)
        self.assertExpectedInline(
            str(caught.exception),
            """spinning takes longer than 0.05 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )

    def test_endless_loop_in_another_thread(self):
        with futures.ThreadPoolExecutor(1) as pool:
            error = pool.submit(call_within, SHORT_S, "it", spin).exception()
        self.assertIsInstance(error, TookTooLong)

    def test_endless_loop_that_catches_exceptions(self):
        def catch_all():
            while True:
                with contextlib.suppress(Exception):
                    spin()

        self.assert_too_long(catch_all)

    def test_interruption_that_is_swallowed_comes_again(self):
        swallowed = []

        def swallow_two():
            endless = self.spinning.spin
            while True:
                try:
                    endless()
                except BaseException as e:
                    if len(swallowed) == 2:
                        raise
                    swallowed.append(type(e).__name__)
                    endless = spin

        with (
            mock.patch.object(limits, "_AGAIN_S", SHORT_S),
            self.spinning.ends(),
        ):
            self.assert_too_long(swallow_two, LONG_S)
        self.assertEqual(swallowed, ["_Interruption"] * 2)

    def test_start_of_a_thread_is_not_interrupted(self):
        """What is raised could hit the new thread, and the old one would wait for it."""
        steps, ring, raised = [], self.spinning.begun.set, []
        set_exception = limits._set_async_exception

        def note(thread_id, exception):
            raised.append([*steps])
            set_exception(thread_id, exception)

        class Slow(threading.Thread):
            def _bootstrap(self):
                ring()
                time.sleep(4 * SHORT_S)
                steps.append("begun")
                super()._bootstrap()

        def start():
            Slow().start()
            spin()

        with (
            mock.patch.object(limits, "_set_async_exception", note),
            self.spinning.ends(),
        ):
            self.assert_too_long(start, LONG_S)
        self.assertEqual(raised[0], ["begun"])

    def test_call_into_c_is_out_when_it_comes_back(self):
        self.assert_too_long(functools.partial(time.sleep, 4 * SHORT_S))

    def test_error_of_a_call_that_took_too_long(self):
        def fail_late():
            try:
                spin()
            except BaseException:
                raise ValueError from None

        self.assert_too_long(fail_late)

    def test_ctrl_c_of_a_call_that_took_too_long(self):
        def interrupted():
            try:
                self.spinning.spin()
            except BaseException:
                raise KeyboardInterrupt from None

        with self.spinning.ends(), self.assertRaises(KeyboardInterrupt):
            call_within(LONG_S, "it", interrupted)

    @parametrize("limit_s", (None, LONG_S))
    def test_call_that_would_end_the_process(self, limit_s):
        class Panic(BaseException):
            """As bindings of other languages have."""

        for error in (SystemExit(3), Panic("in native code")):
            with self.assertRaises(Exited) as caught:
                call_within(limit_s, "it", mock.Mock(side_effect=error))
            self.assertIn(type(error).__name__, str(caught.exception))
        with self.assertRaises(KeyboardInterrupt):
            call_within(limit_s, "it", mock.Mock(side_effect=KeyboardInterrupt))

    def test_inner_limit_is_not_the_outer_one(self):
        def outer():
            self.assert_too_long(spin)
            return "went on"

        self.assertEqual(call_within(LONG_S, "it", outer), "went on")

    def test_outer_limit_ends_the_inner_call(self):
        inner, alarm = [], limits._Alarm

        def outer():
            with mock.patch.object(limits, "_Alarm", alarm):
                try:
                    call_within(LONG_S, "inner", self.spinning.spin)
                except BaseException as e:
                    inner.append(type(e).__name__)
                    raise

        with self.spinning.ends(), self.assertRaisesRegex(TookTooLong, "^outer"):
            call_within(LONG_S, "outer", outer)
        self.assertEqual(inner, ["_Interruption"])

    def test_both_limits_pass(self):
        alarm = limits._Alarm

        def outer():
            with mock.patch.object(limits, "_Alarm", alarm):
                self.assert_too_long(spin)
            self.spinning.spin()

        with self.spinning.ends():
            self.assert_too_long(outer, LONG_S)

    def test_interruption_while_the_alarm_is_stopped(self):
        stops = []

        class Alarm(limits._Alarm):
            def stop(self):
                stops.append(self.over)
                if len(stops) == 1:
                    self._may_raise.acquire()
                    self._raised = True
                    raise self.interruption
                super().stop()

        with mock.patch.object(limits, "_Alarm", Alarm):
            self.assert_too_long(lambda: None, LONG_S)
        self.assertEqual(stops, [True, True])

    def test_ctrl_c_while_the_alarm_is_stopped(self):
        stop = limits._Alarm.stop
        with mock.patch.object(limits._Alarm, "stop", autospec=True) as stopped:
            stopped.side_effect = [KeyboardInterrupt, None]
            with self.assertRaises(KeyboardInterrupt):
                call_within(LONG_S, "it", lambda: None)
        stop(stopped.call_args.args[0])

    def test_nothing_is_raised_after_calls_that_end_with_the_limit(self):
        outcomes = set()
        for _ in range(300):
            end = time.perf_counter() + 0.001

            def work(end=end):
                while time.perf_counter() < end:
                    pass

            try:
                call_within(0.001, "it", work)
                outcomes.add("in time")
            except TookTooLong:
                outcomes.add("too long")
            for _ in range(100):
                pass
        self.assertIn("too long", outcomes)

    def test_what_is_traced_behind_goes_on(self):
        """CPython 3.11 never comes to its end with nothing to raise on its way."""
        script = """
            import sys
            from torch._inductor.range_autotune.limits import call_within, TookTooLong

            def spin():
                while True:
                    pass

            def traced():
                return "went on"

            try:
                call_within(0.01, "it", spin)
            except TookTooLong:
                sys.settrace(lambda *_: None)
                print(traced())
        """
        self.assertEqual(run_script(script).stdout, "went on\n")

    def test_frames_do_not_outlive_the_failure(self):
        held = []

        class Thing:
            pass

        def hold_and_spin():
            thing = Thing()
            held.append(weakref.ref(thing))
            self.spinning.spin()

        def hold_and_fail():
            thing = Thing()
            held.append(weakref.ref(thing))
            raise MemoryError

        gc.disable()
        self.addCleanup(gc.enable)
        with self.spinning.ends():
            for call in (hold_and_spin, hold_and_fail):
                with contextlib.suppress(TookTooLong, MemoryError):
                    call_within(LONG_S, "it", call)
                self.assertIsNone(held[-1]())


class TestCandidates(OpTestCase):
    """Each with a candidate that is out, one that wins, and the op itself."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        self.spinning = Spinning()
        self.op = self.define_op("op(Tensor x) -> Tensor")
        self._library.impl("op", torch.clone, "CPU")
        self._library.impl("op", torch.empty_like, "Meta")

    def warnings_of(self, bad, **patches):
        """Compiles a call of the op; ``bad`` does not win, and the result is right."""
        self.register(
            self.op,
            configs=[CustomOpConfig(bad), CustomOpConfig(lambda x: x + 100)],
            include_fallback=False,
        )
        x = torch.arange(8.0)
        with (
            config.patch(force_disable_caches=True, **patches),
            self.assertLogs(LOGGER, logging.WARNING) as logs,
        ):
            result = torch.compile(self.op)(x)
        self.assertEqual(result, x + 100)
        return "\n".join(record.getMessage() for record in logs.records)

    def test_endless_while_traced(self):
        def endless(x):
            self.spinning.spin()

        with self.spinning.ends():
            warnings = self.warnings_of(endless)
        self.assertExpectedInline(
            warnings,
            """range_autotune_test::op_autotuned: candidate 'endless' is left out: tracing it takes longer than 600 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )

    def inner_op(self):
        """An op, and a candidate named endless that calls it."""
        inner = self.define_op("inner(Tensor x) -> Tensor")
        self._library.impl("inner", torch.empty_like, "Meta")

        def endless(x):
            return inner(x)

        return inner, endless

    def test_endless_while_code_is_generated(self):
        inner, endless = self.inner_op()
        user_lowerings[inner] = lambda x: self.spinning.spin()
        with self.spinning.ends():
            warnings = self.warnings_of(endless)
        self.assertExpectedInline(
            warnings,
            """range_autotune_test::op_autotuned: candidate 'endless' is left out: it does not compile: generating its code takes longer than 600 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )
        self.assertEqual(counters["inductor"]["subgraph_module_loads"], 1)

    def test_endless_call(self):
        _, endless = self.inner_op()
        self._library.impl("inner", lambda x: self.spinning.spin(), "CPU")
        with self.spinning.ends():
            warnings = self.warnings_of(endless)
        self.assertExpectedInline(
            warnings,
            """range_autotune_test::op_autotuned: candidate 'endless' is left out: in range [0, inf), it does not run: a call of it takes longer than 600 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )

    def test_load_that_hangs(self):
        hang = threading.Event()
        self.addCleanup(hang.set)
        load = SubgraphModule.load
        loads = []

        def hang_first(module):
            loads.append(module)
            if module is loads[0]:
                hang.wait()
            return load(module)

        def hangs(x):
            return x + 1

        def raises(x):
            raise ValueError

        executor = LimitedExecutor(1, "loading its code", 3.0)
        self.warnings_of(raises)  # now the winner's kernel takes no time to load
        torch._dynamo.reset()
        with (
            mock.patch.object(SubgraphModule, "load", hang_first),
            mock.patch.object(compiling, "_executor", lambda *_: executor),
        ):
            warnings = self.warnings_of(hangs)
        self.assertExpectedInline(
            warnings,
            """range_autotune_test::op_autotuned: candidate 'hangs' is left out: it does not compile: loading its code takes longer than 3 s, see torch._inductor.config.custom_op_candidate_time_limit_s""",
        )

    def test_compiler_that_hangs(self):
        """The model compiles, and the process exits, with no regard to it."""
        with tempfile.TemporaryDirectory() as folder:
            compiler = pathlib.Path(folder, "g++")
            compiler.write_text(
                '#!/bin/sh\nfor file in "$@"; do case $file in *.cpp)'
                " grep -q erfinv $file && echo $$ >> $0.pid && exec sleep 100000;;"
                ' esac; done\nexec g++ "$@"\n'
            )
            compiler.chmod(0o755)
            started = pathlib.Path(f"{compiler}.pid")
            started.touch()
            done = run_script(
                f"""
                import torch
                from torch._inductor import config
                from torch._inductor.kernel.custom_op import *
                from torch._inductor.range_autotune.modules import compiling
                from torch._inductor.range_autotune.modules.limited_executor import *

                @torch.library.custom_op("limits::op", mutates_args=())
                def op(x: torch.Tensor) -> torch.Tensor:
                    return x + 1

                def hangs(x):
                    return torch.erfinv(x) + 1

                op.register_fake(torch.empty_like)
                register_custom_op_autotuning(op, configs=[CustomOpConfig(hangs)])
                config.cpp.cxx = ("{compiler}",)
                config.cpp.vec_isa_ok = True  # asking the compiler takes seconds
                executor = LimitedExecutor(1, "loading its code", 5.0)
                compiling._executor = lambda *_: executor
                config.force_disable_caches = True
                print(torch.compile(lambda x: op(x))(torch.zeros(())).item())
                """
            )
            for pid in started.read_text().split():
                os.kill(int(pid), signal.SIGKILL)
        self.assertEqual(done.stdout, "1.0\n")
        self.assertRegex(
            done.stderr,
            "'hangs' is left out: it does not compile: loading its code takes longer",
        )

    def test_bad_setting_is_the_user_s_error(self):
        with self.assertRaisesRegex(Exception, "must be a positive number of seconds"):
            self.warnings_of(torch.clone, custom_op_candidate_time_limit_s=0)


if __name__ == "__main__":
    run_tests()
