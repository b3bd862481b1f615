# Owner(s): ["module: inductor"]
"""What becomes of a graph whose code fails with what was chosen."""

import contextlib
from unittest import mock

from test_custom_op_autotune import made_up_times
from test_custom_op_fusion import FusionTestCase, rows, tuned_op, two_winners
from torch._inductor.exc import InductorError
from torch._inductor.scheduler import Scheduler
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)


LOGGER = "torch._inductor.kernel.custom_op"


@contextlib.contextmanager
def schedulers_that_fail(times):
    """The first so many of models, not of candidates nor of branches."""
    failed = []

    def scheduler(operations):
        if V.graph.name is None and len(failed) < times:
            failed.append(operations)
            raise KeyError("buf0")
        return Scheduler(operations)

    with mock.patch("torch._inductor.scheduler.Scheduler", scheduler):
        yield failed


def around(op):
    return lambda x: torch.relu(op(x.sin())) + 1


class TestLastResort(FusionTestCase):
    def compile(self, fn, *args, **options):
        torch._dynamo.mark_dynamic(args[0], 0)
        compiled = torch.compile(fn, **options)
        with two_winners():
            _, codes = run_and_get_code(compiled, *args)
        return compiled, codes[-1]

    def check_values(self, compiled, fn):
        for n in (2, 99, 100, 300):
            expected = fn(rows(n))
            with torch._dynamo.config.patch(error_on_recompile=True):
                self.assertEqual(compiled(rows(n)), expected)

    def test_is_called_eagerly(self):
        op = tuned_op()
        fn = around(op)
        with (
            schedulers_that_fail(1) as failed,
            self.assertLogs(LOGGER, "WARNING") as logs,
        ):
            compiled, code = self.compile(fn, rows(4))
        self.assertEqual(len(failed), 1)
        (message,) = [r.getMessage() for r in logs.records]
        name = str(op._opoverload)
        self.assertIn(f"as if {name} were not registered: KeyError: 'buf0'", message)
        self.assertIn(f"torch.ops.{name}(", code)
        self.check_values(compiled, fn)

    def test_in_a_branch_of_the_model(self):
        op = tuned_op()

        def fn(x):
            inner = lambda x: torch.relu(op(x.sin())) + 1  # noqa: E731
            return torch.cond(x.sum() > 1e6, inner, lambda x: op(x).cos(), (x,))

        with schedulers_that_fail(1), self.assertLogs(LOGGER, "WARNING"):
            compiled, _ = self.compile(fn, rows(4))
        self.check_values(compiled, fn)

    def test_registered_anew(self):
        """The code is dropped, as any other in which the op was lowered."""
        op = tuned_op()
        with schedulers_that_fail(1), self.assertLogs(LOGGER, "WARNING"):
            compiled, code = self.compile(lambda x: op(x) + 1, rows(4))
        register_custom_op_autotuning(
            op, configs=[CustomOpConfig(lambda x: x * 3 - x)], include_fallback=False
        )
        with made_up_times(lambda size, index: 1.0):
            _, (code,) = run_and_get_code(compiled, rows(4))
        self.assertNotIn("torch.ops.fusion", code)

    def test_fails_in_both(self):
        op = tuned_op()
        with (
            schedulers_that_fail(2) as failed,
            self.assertLogs(LOGGER, "WARNING"),
            self.assertRaisesRegex(InductorError, "KeyError: 'buf0'"),
        ):
            self.compile(around(op), rows(4))
        self.assertEqual(len(failed), 2)

    def test_not_for_models_without_registered_ops(self):
        with (
            schedulers_that_fail(1) as failed,
            self.assertNoLogs(LOGGER, "WARNING"),
            self.assertRaisesRegex(InductorError, "KeyError: 'buf0'"),
        ):
            torch.compile(lambda x: x.sin())(rows(4))
        self.assertEqual(len(failed), 1)

    def test_not_for_what_the_user_has_to_mend(self):
        def broken(x):
            raise RuntimeError("of the user")

        op = tuned_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpConfig(lambda x: x + x)],
            input_gen_fns={"x": broken},
        )
        for deferred in (True, False):
            torch._dynamo.reset()
            with (
                config.patch(defer_custom_op_choices=deferred),
                self.assertRaisesRegex(InductorError, "of the user"),
            ):
                torch.compile(around(op))(rows(4))


if __name__ == "__main__":
    run_tests()
