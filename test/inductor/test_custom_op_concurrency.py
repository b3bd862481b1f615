# Owner(s): ["module: inductor"]
"""
Threads and processes: models compiled at once, registrations meanwhile, a shared cache
folder, and an interrupt in the middle.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

from range_autotune_testing import made_up_times
from test_custom_op_autotune import (
    AutotuneTestCase,
    define_op,
    DEVICE,
    identity_op,
    plus,
    ramp,
    RANGES,
)
from torch._dynamo.utils import counters
from torch._inductor.test_case import run_tests
from torch._inductor.utils import fresh_cache
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidates import tracing


# A wait that ends by itself only if something is broken.
TIMEOUT_S = 240
# Of processes that are interrupted.
COMPILE_THREADS = 2
RANGE_BOUND = RANGES[0][1]


def register(op, *markers):
    """Each marker's implementation is the fastest in its own range."""
    ranges = RANGES[: len(markers)]
    impls = [plus(marker) for marker in markers]
    register_custom_op_autotuning(
        op, configs=[CustomOpRangeConfig("x", 0, ranges, impls)]
    )


def first_is_fastest_below(size, index):
    return 1.0 if index == int(size >= RANGE_BOUND) else 2.0


def compile_for_all_sizes(fn):
    compiled = torch.compile(fn)

    def call(x):
        torch._dynamo.mark_dynamic(x, 0)
        return compiled(x)

    return call


class ThreadsTestCase(AutotuneTestCase):
    def setUp(self):
        super().setUp()
        # Threads start with the config's defaults, so nothing is patched here.
        self.enterContext(made_up_times(first_is_fastest_below))

    def in_threads(self, *calls):
        """What each returns; they start together."""
        barrier = threading.Barrier(len(calls))

        def start(call):
            barrier.wait(TIMEOUT_S)
            return call()

        with ThreadPoolExecutor(len(calls)) as pool:
            started = [pool.submit(start, call) for call in calls]
            return [future.result(TIMEOUT_S) for future in started]

    def assert_ranges(self, compiled, below, above):
        for size, marker in ((128, below), (511, below), (512, above)):
            self.assertEqual(compiled(ramp(size, 4)), ramp(size, 4) + marker)


class TestThreads(ThreadsTestCase):
    def test_different_models_at_once(self):
        ops = [identity_op() for _ in range(3)]
        for i, op in enumerate(ops):
            register(op, 10 * i + 1, 10 * i + 2)
        models = [compile_for_all_sizes(lambda x, op=op: op(x) * 1) for op in ops]
        self.in_threads(*(lambda m=model: m(ramp(128, 4)) for model in models))
        for i, model in enumerate(models):
            self.assert_ranges(model, 10 * i + 1, 10 * i + 2)
        self.assertEqual(counters["inductor"]["custom_op_candidates_left_out"], 0)

    def test_one_model_at_once(self):
        op = identity_op()
        register(op, 1, 2)
        model = compile_for_all_sizes(op)
        results = self.in_threads(*[lambda: model(ramp(128, 4))] * 3)
        self.assertEqual(results, [ramp(128, 4) + 1] * 3)
        self.assert_ranges(model, 1, 2)

    def test_training_in_threads(self):
        ops = [identity_op() for _ in range(2)]
        for i, op in enumerate(ops):
            op.register_autograd(lambda ctx, grad, op=op: op(grad))
            register(op, 10 * i + 1, 10 * i + 2)

        def step(model):
            x = ramp(128, 4).requires_grad_()
            torch._dynamo.mark_dynamic(x, 0)
            model(x).sum().backward()
            return x.grad

        gradients = self.in_threads(
            *(lambda op=op: step(torch.compile(lambda x: op(x) * 3)) for op in ops)
        )
        for i, gradient in enumerate(gradients):
            self.assertEqual(gradient, torch.full((128, 4), 3.0 + 10 * i + 1))


class TestRegistrationMeanwhile(ThreadsTestCase):
    @contextlib.contextmanager
    def compiling(self, model):
        """
        While the block runs, another thread waits in the middle of its compilation.

        Yields:
            A future of that thread's result.
        """
        reached, go_on = threading.Event(), threading.Event()
        real = tracing.trace_candidate
        compiling_thread = []

        def trace_candidate(*args):
            if threading.get_ident() in compiling_thread and not reached.is_set():
                reached.set()
                self.assertTrue(go_on.wait(TIMEOUT_S))
            return real(*args)

        def compile_model():
            compiling_thread.append(threading.get_ident())
            return model(ramp(128, 4))

        with (
            mock.patch.object(tracing, "trace_candidate", trace_candidate),
            ThreadPoolExecutor(1) as pool,
        ):
            future = pool.submit(compile_model)
            future.add_done_callback(lambda _: reached.set())
            try:
                self.assertTrue(reached.wait(TIMEOUT_S))
                self.assertFalse(future.done(), msg=future)
                yield future
            finally:
                go_on.set()
            future.result(TIMEOUT_S)

    def test_of_another_op(self):
        op, other = identity_op(), identity_op()
        register(op, 1, 2)
        model = compile_for_all_sizes(op)
        with self.compiling(model) as result:
            register(other, 5, 6)
        self.assertEqual(result.result(), ramp(128, 4) + 1)
        with torch.compiler.set_stance("fail_on_recompile"):
            self.assert_ranges(model, 1, 2)
        self.assert_ranges(compile_for_all_sizes(other), 5, 6)

    @parametrize("registered_before", (True, False))
    def test_of_the_same_op(self, registered_before):
        op, other = identity_op(), identity_op()
        register(other, 10, 20)
        if registered_before:
            register(op, 1, 2)
        # Nothing that the two would be joined through to one choice.
        between = torch.eye(4, device=DEVICE)
        model = compile_for_all_sizes(lambda x: op(other(x) @ between))
        with self.compiling(model) as result:
            register(op, 3, 4)
        before = 1 if registered_before else 0
        self.assertEqual(result.result(), ramp(128, 4) + 10 + before)
        self.assert_ranges(model, 13, 24)
        with torch.compiler.set_stance("fail_on_recompile"):
            self.assert_ranges(model, 13, 24)

    def test_caches_are_not_mixed_up(self):
        op = identity_op()

        def compile_again(markers):
            self.assert_ranges(compile_for_all_sizes(op), *markers)

        with fresh_cache():
            register(op, 1, 2)
            with self.compiling(compile_for_all_sizes(op)):
                register(op, 3, 4)
            for markers, hits in (((1, 2), 1), ((3, 4), 0), ((3, 4), 1)):
                torch._dynamo.reset()
                counters.clear()
                register(op, *markers)
                # In a thread as the first, for the config is in the keys: compiling
                # ahead of time leaves traces in that of this one.
                self.in_threads(lambda markers=markers: compile_again(markers))
                self.assertEqual(counters["inductor"]["fxgraph_cache_hit"], hits)

    def test_does_not_wait_for_the_compilation(self):
        """As it must not, for a module may be imported by both threads."""
        op = identity_op()
        register(op, 1, 2)
        with self.compiling(compile_for_all_sizes(op)) as result:
            thread = threading.Thread(target=register, args=(op, 3, 4))
            thread.start()
            thread.join(TIMEOUT_S)
            self.assertFalse(thread.is_alive())
            self.assertFalse(result.done())

    def test_of_an_op_that_another_thread_runs(self):
        op = identity_op()
        register(op, 1, 2)
        entered, go_on = threading.Event(), threading.Event()

        def fn(x: torch.Tensor) -> torch.Tensor:
            entered.set()
            self.assertTrue(go_on.wait(TIMEOUT_S))
            return x.clone()

        waits = define_op(fn, torch.empty_like)
        model = torch.compile(lambda x: op(waits(x)), dynamic=False)
        go_on.set()
        model(ramp(128, 4))
        entered.clear()
        go_on.clear()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(model, ramp(128, 4))
            self.assertTrue(entered.wait(TIMEOUT_S))
            register(op, 3, 4)
            go_on.set()
            self.assertEqual(running.result(TIMEOUT_S), ramp(128, 4) + 1)
        self.assertEqual(model(ramp(128, 4)), ramp(128, 4) + 3)


instantiate_parametrized_tests(TestRegistrationMeanwhile)


# Only calls of library kernels, so that nothing is built by a C++ compiler.
MODEL = """
import json
import math
import sys
import time

import torch
from torch._dynamo.utils import counters
from torch._inductor.kernel.custom_op import CustomOpRangeConfig, register_custom_op_autotuning
from torch._inductor.range_autotune.candidates import tracing


@torch.library.custom_op("shared_cache::squared", mutates_args=())
def squared(x: torch.Tensor) -> torch.Tensor:
    return x @ x


@squared.register_fake
def _(x):
    return torch.empty_like(x)


def by_mm(x):
    return torch.mm(x, x)


def by_addmm(x):
    return torch.addmm(x, x, x, beta=0)


traces = []
real_trace = tracing.trace_candidate
tracing.trace_candidate = lambda *args: traces.append(args) or real_trace(*args)
register_custom_op_autotuning(
    squared,
    configs=[CustomOpRangeConfig("x", 0, [(0, 8), (8, math.inf)], [by_mm, by_addmm])],
)


def run():
    print("ready", flush=True)
    sys.stdin.readline()
    model = torch.compile(lambda x: squared(x), dynamic=True)
    right = []
    for size in (5, 7, 8, 100):
        x = torch.eye(size) * 2
        right.append(torch.equal(model(x), x * 2))
    counted = {k: counters["inductor"][k] for k in ("fxgraph_cache_hit", "fxgraph_cache_miss")}
    print(json.dumps({"right": right, "traces": len(traces), **counted}))


run()
"""


class TestSharedCacheFolder(AutotuneTestCase):
    def start(self, folder):
        caches = ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE")
        inherited = {k: v for k, v in os.environ.items() if k not in caches}
        path = Path(folder, "model.py")
        path.write_text(MODEL)
        process = subprocess.Popen(
            [sys.executable, str(path)],
            env={**inherited, "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "cache"))},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "ready\n")
        return process

    def finish(self, process):
        output, _ = process.communicate("go\n", TIMEOUT_S)
        self.assertEqual(process.returncode, 0)
        found = json.loads(output.splitlines()[-1])
        self.assertEqual(found.pop("right"), [True] * 4)
        return found

    def test_two_at_once_and_one_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            both = [self.start(folder) for _ in range(2)]
            with ThreadPoolExecutor(2) as pool:
                first, second = pool.map(self.finish, both)
            third = self.finish(self.start(folder))
        self.assertGreater(first["traces"] + second["traces"], 0)
        self.assertEqual(
            third, {"fxgraph_cache_hit": 1, "fxgraph_cache_miss": 0, "traces": 0}
        )


# Waits where it is told to, until it is interrupted. Only calls of library kernels, too.
INTERRUPTED = """
import math
import os
import signal
import sys
import threading
import time

import torch
from torch._inductor.kernel.custom_op import CustomOpRangeConfig, register_custom_op_autotuning
from torch._inductor.range_autotune.modules import compiling
from torch._inductor.range_autotune.modules.subgraph_module import SubgraphModule

where, catches = sys.argv[1], sys.argv[2] == "caught"
# A shell has what it starts in the background ignore Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)
waits = True


def wait_in(place):
    if waits and place == where:
        os.write(1, b"waiting\\n")  # at once, whoever else does
        for _ in range(6000):
            time.sleep(0.1)  # a signal just before a long one would not end it


def clone_op(name, kernel):
    op = torch.library.custom_op(f"interrupted::{name}", mutates_args=())(kernel)
    op.register_fake(torch.empty_like)
    return op


def kernel(x: torch.Tensor) -> torch.Tensor:
    return x @ x


def slow_kernel(x: torch.Tensor) -> torch.Tensor:
    wait_in("running")
    return x @ x


tuned, slow = clone_op("tuned", kernel), clone_op("slow", slow_kernel)


def slow_impl(x):
    wait_in("tracing")
    return slow(x)


# More than there are threads to load them.
others = [lambda x, k=k: torch.addmm(x, x, x, beta=0 * k) for k in range(6)]
real_load = SubgraphModule._load


def load(module, graph):
    assert threading.current_thread() is not threading.main_thread()
    if waits and where == "loading":
        os.write(1, b"waiting\\n")  # at once, whoever else does
        time.sleep(3 if catches else 60)  # the exit takes a while on a busy machine
    return real_load(module, graph)


real_wait = compiling.wait


def wait(tuning, *args):
    while not all(load.done() for load in tuning.loads.values()):
        time.sleep(0.1)  # here, too: loads take as long as they hang
    real_wait(tuning, *args)


SubgraphModule._load = load
compiling.wait = wait
register_custom_op_autotuning(
    tuned,
    configs=[CustomOpRangeConfig("x", 0, [(0, 8), (8, math.inf)], [slow_impl, *others])],
)
model = torch.compile(tuned, dynamic=True)
try:
    model(torch.eye(5))
except KeyboardInterrupt:
    if not catches:
        raise
    waits = False
    for size in (5, 7, 8, 100):
        assert torch.equal(model(torch.eye(size) * 2), torch.eye(size) * 4)
    print("right", flush=True)
"""


class TestInterrupt(AutotuneTestCase):
    def interrupt(self, where, then):
        """Presses Ctrl-C: returns the status, and what is printed from then on."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "interrupted.py")
            path.write_text(INTERRUPTED)
            process = subprocess.Popen(
                [sys.executable, str(path), where, then],
                env={
                    **os.environ,
                    "TORCHINDUCTOR_COMPILE_THREADS": str(COMPILE_THREADS),
                    "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "cache")),
                },
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                text=True,
            )
            self.addCleanup(process.kill)
            self.assertEqual(process.stdout.readline(), "waiting\n")
            os.killpg(process.pid, signal.SIGINT)
            output, errors = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, output, errors

    def test_ends_the_process(self):
        status, output, errors = self.interrupt("loading", "raised")
        # CPython forgets the signal if another thread compiles code at exit.
        self.assertIn(status, (-signal.SIGINT, 1), msg=errors)
        # One exception of one thread, which may find Python handling another one,
        # as each import does that looks for a module in a folder new to it.
        tracebacks = errors.count("Traceback (most recent call last)")
        self.assertEqual(tracebacks, errors.count("\nDuring handling") + 1, msg=errors)
        self.assertEqual(errors.splitlines()[-1], "KeyboardInterrupt", msg=errors)
        self.assertLess(output.count("waiting"), COMPILE_THREADS, msg=output)

    @parametrize("where", ("tracing", "loading", "running"))
    def test_caught_and_compiled_again(self, where):
        status, output, errors = self.interrupt(where, "caught")
        self.assertEqual((status, output.splitlines()[-1:]), (0, ["right"]), msg=errors)
        self.assertNotIn("Traceback", errors)


instantiate_parametrized_tests(TestInterrupt)

if __name__ == "__main__":
    run_tests()
