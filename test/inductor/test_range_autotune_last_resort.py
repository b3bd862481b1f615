# Owner(s): ["module: inductor"]
"""What becomes of a graph whose code fails with what was chosen."""

import contextlib
from unittest import mock

from test_custom_op_autotune import made_up_times
from test_custom_op_fusion import FusionTestCase, rows, tuned_op, two_winners
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import Scheduler
from torch._inductor.test_case import run_tests
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch._inductor.virtualized import V
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune import last_resort
from torch._inductor.range_autotune.registration import Registration


LOGGER = "torch._inductor.kernel.custom_op"


@contextlib.contextmanager
def schedulers_that_fail(times, of_branches=False, error=None):
    """The first so many of models, or of branches in them; not of candidates."""
    failed = []

    def scheduler(operations):
        is_branch = hasattr(V.graph, "parent")
        counts = is_branch if of_branches else V.graph.name is None
        if counts and len(failed) < times:
            failed.append(operations)
            raise error or KeyError("buf0")
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

    @contextlib.contextmanager
    def raising_at_once(self, error=None, message="KeyError: 'buf0'"):
        """In the block a scheduler fails, and there is no second try, nor a warning."""
        with (
            schedulers_that_fail(1, error=error) as failed,
            self.assertNoLogs(LOGGER, "WARNING"),
            self.assertRaisesRegex(InductorError, message),
        ):
            yield
        self.assertEqual(len(failed), 1)

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
        self.assertIn(f"compiled with {name} as called: KeyError: 'buf0'", message)
        self.assertIn(f"torch.ops.{name}(", code)
        self.check_values(compiled, fn)

    @parametrize("of_branches", (False, True))
    def test_in_a_branch_of_the_model(self, of_branches):
        op = tuned_op()

        def fn(x):
            inner = lambda x: torch.relu(op(x.sin())) + 1  # noqa: E731
            return torch.cond(x.sum() > 1e6, inner, lambda x: op(x).cos(), (x,))

        with (
            schedulers_that_fail(1, of_branches) as failed,
            self.assertLogs(LOGGER, "WARNING"),
        ):
            compiled, _ = self.compile(fn, rows(4))
        self.assertEqual(len(failed), 1)
        self.check_values(compiled, fn)

    def test_backward_graph_in_a_cpp_wrapper(self):
        op = tuned_op()
        op.register_autograd(lambda ctx, grad: op(grad))
        fn = around(op)
        compiled = torch.compile(fn, options={"cpp_wrapper": True})
        x, y = rows(4).requires_grad_(), rows(4).requires_grad_()
        with two_winners():
            result = compiled(x)
            with schedulers_that_fail(1) as failed, self.assertLogs(LOGGER, "WARNING"):
                result.sum().backward()
        self.assertEqual(len(failed), 1)
        fn(y).sum().backward()
        self.assertEqual(x.grad, y.grad)

    def test_no_cache_keeps_it(self):
        op = tuned_op()
        fn = around(op)
        with fresh_cache():
            with schedulers_that_fail(1), self.assertLogs(LOGGER, "WARNING"):
                self.compile(fn, rows(4))
            torch._dynamo.reset()
            compiled, code = self.compile(fn, rows(4))
        self.assertNotIn("torch.ops.fusion", code)
        self.check_values(compiled, fn)

    def test_strides_of_results(self):
        """Results have those of eager mode, which passes leave notes of."""
        op = tuned_op()

        def fn(x):
            return op(x).view(2, -1, 8).transpose(0, 1) + 1

        seen = []

        def note(graph):
            if graph.name is None:
                seen.append([*graph.user_visible_output_strides.values()])
            return finish(graph)

        finish = GraphLowering._update_scheduler
        with (
            mock.patch.object(GraphLowering, "_update_scheduler", note),
            schedulers_that_fail(1),
            self.assertLogs(LOGGER, "WARNING"),
        ):
            compiled, _ = self.compile(fn, rows(4))
        first, second = seen
        self.assertEqual(first, second)
        self.assertTrue(first)
        self.assertEqual(compiled(rows(6)).stride(), fn(rows(6)).stride())

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
        with self.raising_at_once():
            torch.compile(lambda x: x.sin())(rows(4))

    def test_not_where_nothing_was_chosen(self):
        op = tuned_op()
        configs = [
            CustomOpConfig(
                lambda x: x + x, tensor_name="x", dim_index=0, dim_range=sizes
            )
            for sizes in ((0, 8), (8, 16))
        ]
        register_custom_op_autotuning(op, configs=configs, include_fallback=False)
        with config.patch(deterministic=True), self.raising_at_once():
            self.compile(around(op), rows(4))

    def test_not_for_what_the_user_has_to_mend_behind_another_compilation(self):
        """What is measured makes one, of a graph without registered ops."""
        inner = torch.compile(torch.sin)
        compiled = []

        def compiles(x: torch.Tensor) -> torch.Tensor:
            compiled.append(inner(x))
            return x * 2

        def generate(x):
            if compiled:
                raise RuntimeError("of the user")
            return torch.zeros(x.shape)

        op = torch.library.custom_op("last_resort::compiles", mutates_args=())(compiles)
        op.register_fake(torch.empty_like)
        ranges = [(0, 8), (8, 16)]
        register_custom_op_autotuning(
            op,
            configs=[CustomOpRangeConfig("x", 0, ranges, [lambda x: x + x])],
            input_gen_fns={"x": generate},
        )
        x = rows(4)
        torch._dynamo.mark_dynamic(x, 0)
        with self.assertRaisesRegex(InductorError, "of the user"):
            torch.compile(op)(x)
        self.assertTrue(compiled)

    def test_not_for_what_the_user_has_to_mend(self):
        def broken(x):
            raise RuntimeError("of the user")

        op = tuned_op()
        register_custom_op_autotuning(
            op,
            configs=[CustomOpConfig(lambda x: x + x)],
            input_gen_fns={"x": broken},
        )

        def in_a_branch(x):
            return torch.cond(x.sum() > 1e6, lambda x: op(x) + 1, torch.sin, (x,))

        for fn in (around(op), in_a_branch):
            for deferred in (True, False):
                torch._dynamo.reset()
                with (
                    config.patch(defer_custom_op_choices=deferred),
                    self.assertRaisesRegex(InductorError, "of the user"),
                ):
                    torch.compile(fn)(rows(4))

    def test_not_where_memory_is_short(self):
        with self.raising_at_once(MemoryError("none left"), "none left"):
            self.compile(around(tuned_op()), rows(4))

    def test_not_where_ranks_have_agreed(self):
        with (
            mock.patch.object(last_resort, "several_ranks", lambda: True),
            mock.patch.object(Registration, "mentions_collective", True),
            self.raising_at_once(),
        ):
            self.compile(around(tuned_op()), rows(4))


instantiate_parametrized_tests(TestLastResort)


if __name__ == "__main__":
    run_tests()
