# Owner(s): ["module: inductor"]
"""Ranks that measure in step and take one decision."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import logging
import math
import operator
import os
import re
import tempfile
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import torch.distributed as dist
import torch.multiprocessing as mp
from test_range_autotune_measure import MadeUpTime
from torch._dynamo.utils import counters
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.graphs import collectives
from torch._inductor.range_autotune.measuring import in_step, ranks
from torch._inductor.range_autotune.times import Failure, Timing


RANGES = [(0, 64), (64, math.inf)]
SIZES = (2, 63, 64, 200)
FULL_ON_RANK_1 = Failure(
    "on rank 1: out of memory: OutOfMemoryError: full",
    may_pass=True,
    lacks_memory=True,
)
c10d = torch.ops._c10d_functional


def graph_calling(target, *args):
    graph = torch.fx.Graph()
    graph.call_function(target, (graph.placeholder("x"), *args))
    return torch.fx.GraphModule({}, graph)


@contextlib.contextmanager
def gathering(gather):
    """With an exchange between ranks in the place of the real one."""
    with (
        mock.patch.object(ranks, "gather", gather),
        mock.patch.object(in_step, "gather", gather),
    ):
        yield


class Group:
    """Stands for a default group of ranks."""


class TestAgreement(TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(user_lowerings))

    def gathered(self, *values):
        return gathering(lambda *_: list(values))

    def test_detection(self):
        plain = graph_calling(operator.neg)
        for op in (c10d.all_reduce, c10d.all_gather_into_tensor_out):
            with_one = graph_calling(op.default)
            self.assertFalse(collectives.has_collective([plain]))
            self.assertTrue(collectives.has_collective([plain, with_one]))

    def test_the_ranks_of_the_one_group_decide(self):
        tp, pp = (
            graph_calling(c10d.all_reduce.default, "sum", name) for name in ("tp", "pp")
        )
        groups = {"tp": (2, 3), "pp": (1, 3)}
        with (
            mock.patch.object(collectives, "_members", groups.get),
            mock.patch.object(dist, "get_world_size", lambda: 4),
        ):
            self.assertEqual(collectives.ranks_of([tp, tp]), (2, 3))
            self.assertEqual(collectives.ranks_of([tp, pp]), (0, 1, 2, 3))
            self.assertEqual(collectives.ranks_of([]), (0, 1, 2, 3))

    def test_a_rank_that_never_comes_is_named(self):
        store = dist.HashStore()
        store.set_timeout(datetime.timedelta(milliseconds=10))
        with (
            self.ranks_in_threads(store) as as_rank,
            self.assertRaisesRegex(RuntimeError, r"Ranks \[1\] do not take part"),
        ):
            as_rank(0, Group(), lambda: ranks.gather("mine", (0, 1)))

    @contextlib.contextmanager
    def ranks_in_threads(self, store):
        """
        What makes a call as a rank in a default group, and returns its result: with this
        store, whatever the group is.
        """
        here = threading.local()
        c10d_module = dist.distributed_c10d

        def as_rank(rank, group, call):
            here.rank, here.group = rank, group
            return call()

        with (
            mock.patch.object(c10d_module, "_get_default_store", lambda: store),
            mock.patch.object(c10d_module, "_get_default_group", lambda: here.group),
            mock.patch.object(dist, "get_rank", lambda: here.rank),
        ):
            yield as_rank

    def on_two_ranks(self, call):
        """What a call comes to on each rank, in its thread."""
        store = dist.HashStore()
        store.set_timeout(datetime.timedelta(seconds=10))
        with (
            self.ranks_in_threads(store) as as_rank,
            ThreadPoolExecutor(2) as pool,
        ):
            groups = [Group(), Group()]
            return [*pool.map(as_rank, range(2), groups, [call] * 2)]

    def in_a_collective(self, called, fail=lambda: None):
        """
        A candidate that waits for the other rank.

        Args:
            called: told the rank at each call.
            fail: called behind that.
        """
        both = threading.Barrier(2)

        def run():
            called.append(dist.get_rank())
            both.wait(timeout=5)
            fail()

        return run

    def test_ranks_that_form_a_group_anew(self):
        """One of them may have begun anew, and the store may know of the last time."""
        store = dist.HashStore()
        store.set_timeout(datetime.timedelta(seconds=10))
        with (
            self.ranks_in_threads(store) as as_rank,
            ThreadPoolExecutor(2) as pool,
        ):

            def take_part(rank, group, values):
                def exchange():
                    return [ranks.gather(value, (0, 1)) for value in values]

                return as_rank(rank, group, exchange)

            for values in ((["a", "b"], ["c", "d"]), (["e"], ["f"])):
                groups = [Group(), Group()]
                found = [*pool.map(take_part, range(2), groups, values)]
                self.assertEqual(found, [[*map(list, zip(*values))]] * 2)

    def test_exchanges_leave_little_in_the_store(self):
        stores = []

        def exchange():
            stores.append(dist.distributed_c10d._get_default_store())
            return [ranks.gather(n, (0, 1)) for n in range(20)]

        self.assertEqual(self.on_two_ranks(exchange)[0], [[n, n] for n in range(20)])
        # One of each rank, and how many there are.
        self.assertEqual(stores[0].num_keys(), 3)

    def test_only_what_every_rank_has(self):
        with self.gathered([0, 1, 2], [-1, 1, 2], [2, 1]):
            self.assertEqual(ranks.common_to_all_ranks([0], (0, 1, 2)), [1, 2])

    def test_what_all_ranks_see(self):
        for theirs, same in ((["[2, 17)"], True), (["[2, 65)"], False)):
            with self.gathered(["[2, 17)"], theirs):
                told = ranks.is_same_on_all_ranks(["[2, 17)"], (0, 1))
                self.assertEqual(told, same)

    def test_what_one_rank_has_against_a_candidate_all_have(self):
        no_memory = Failure("no memory")
        mine = {0: None, 1: None, 2: None, 3: no_memory}
        others = {0: None, 1: "wrong", 2: no_memory, 3: "differs"}
        with self.gathered(mine, others, {**others, 1: "broken"}):
            self.assertEqual(
                ranks.common_comparisons(mine, (4, 5, 6)),
                {
                    0: None,
                    1: "on rank 5: wrong",
                    2: Failure("on rank 5: no memory"),
                    3: "on rank 5: differs",
                },
            )

    def test_what_not_all_ranks_know_is_not_known(self):
        for known in ((None, [1]), ([1], None), (None, None)):
            with self.gathered(*known):
                self.assertIsNone(ranks.known_to_all_ranks([1], (0, 1)))
        with self.gathered([1], [2]):
            self.assertEqual(ranks.known_to_all_ranks([2], (0, 1)), [1])

    def test_topology(self):
        exchanges = ranks._Exchanges("prefix")
        with (
            self.gathered("a", "b", "a", "b"),
            mock.patch.object(ranks, "_exchanges_of", lambda ranks: exchanges),
        ):
            self.assertEqual(ranks.topology((4, 5, 6, 7)), (4, 5, 4, 5))
        with mock.patch.object(ranks, "_exchanges_of", lambda ranks: exchanges):
            self.assertEqual(ranks.topology((4, 5, 6, 7)), (4, 5, 4, 5))

    def test_the_first_rank_decides_what_ranks_see_in_different_ways(self):
        with self.gathered(128, 4):
            self.assertEqual(ranks.as_on_first_rank(4, (0, 1)), 128)

    def test_the_slowest_rank_counts(self):
        calls = [in_step._Call(*ms) for ms in ((1.0, 0.5), (3.0, 0.1), (2.0, 0.2))]
        with self.gathered(*calls):
            agreed = in_step._agreed(calls[0], (0, 1, 2))
        self.assertEqual(agreed, in_step._Call(3.0, 0.5))

    def test_a_failure_on_one_rank_is_one_on_all(self):
        call = in_step._Call(1.0, 0.5)
        with self.gathered(call, Failure("broken"), call):
            agreed = in_step._agreed(call, (4, 5, 6))
        self.assertEqual(agreed, Failure("on rank 5: broken"))

    def test_what_may_pass_on_one_rank_may_pass_on_all(self):
        full = Failure("no memory", may_pass=True)
        with self.gathered(full):
            agreed = in_step._agreed(full, (4,))
        self.assertEqual(agreed, Failure("on rank 4: no memory", may_pass=True))

    def test_a_sample_takes_as_long_as_on_its_slowest_rank(self):
        first = {0: [1.0, 5.0, 2.0], 1: [7.0]}
        second = {0: [4.0, 2.0], 1: Failure("broken")}
        self.assertEqual(
            in_step._merged([first, second]),
            {0: Timing(4.0, 0.25), 1: Failure("broken")},
        )

    def test_a_rank_without_a_sample(self):
        self.assertEqual(in_step._merged([{0: [1.0]}, {0: []}]), {})

    def test_samples_end_with_the_first_failure(self):
        def broken():
            raise RuntimeError("broken")

        runners = {0: lambda: None, 1: broken, 2: lambda: None}
        samplers = dict.fromkeys(runners, in_step._sample_on_cpu)
        samples = in_step._take_samples(runners, samplers, 3, 2)
        self.assertEqual(len(samples[0]), 1)
        self.assertEqual(samples[1], Failure("RuntimeError: broken"))
        self.assertEqual(samples[2], [])

    def test_a_hiccup_does_not_count(self):
        made_up = MadeUpTime()
        cpu = torch.device("cpu")
        with (
            mock.patch.object(in_step, "time", made_up),
            gathering(lambda value, ranks: [value]),
        ):
            run = made_up.runner(0, 1.0, 1.0, 50.0, 1.0)
            self.assertAlmostEqual(in_step._sample_on_cpu(run, 3), 1.0)
            run = made_up.runner(1, 9.0, 50.0, 2.0, 3.0)
            call = in_step._first_calls_of(run, cpu, (0,))
            self.assertAlmostEqual(call.ms, 2.0)
            self.assertAlmostEqual(call.launch_ms, 2.0)

    def test_a_slow_launch_hides_behind_more_flushes(self):
        flushes = [in_step._flushes_to_hide(ms) for ms in (0.0, 0.02, 0.2, 9.0)]
        self.assertEqual(flushes, [3, 3, 7, 16])

    def timed(self, *ms):
        """For how many flushes there were samples, and the times: 1 ms if sampled."""
        made_up = MadeUpTime()
        runners = {index: made_up.runner(index, each) for index, each in enumerate(ms)}
        given = []

        def sampler(device, flushed, flushes, with_host):
            given.append(flushes)
            return lambda run, calls: 1.0

        with (
            mock.patch.object(in_step, "time", made_up),
            gathering(lambda value, ranks: [value]),
            mock.patch.object(in_step, "_sampler", sampler),
        ):
            times = in_step.time_in_step(runners, torch.device("cpu"), (0,))
        return given, times

    def test_the_slowest_launch_counts_and_a_hopeless_one_is_not_sampled(self):
        given, times = self.timed(0.1, 0.2, 9.0)
        self.assertEqual({*given}, {7})  # for 0.2 ms
        self.assertEqual([times[0], times[1]], [Timing(1.0), Timing(1.0)])
        self.assertAlmostEqual(times[2].ms, 9.0)

    @parametrize("device", ("cpu", "cuda"))
    def test_where_a_rank_lacks_memory_for_the_timer_nobody_is_called(self, device):
        def full_on_rank_1(*_):
            if dist.get_rank() == 1:
                raise torch.OutOfMemoryError("full")

        called = []
        runners = {i: self.in_a_collective(called) for i in range(2)}
        makes = {"cpu": "keep_heap", "cuda": "make_flush_buffer"}[device]
        with mock.patch.object(in_step, makes, full_on_rank_1):
            of_ranks = self.on_two_ranks(
                lambda: in_step.time_in_step(runners, torch.device(device), (0, 1))
            )
        self.assertEqual(of_ranks, [{0: FULL_ON_RANK_1, 1: FULL_ON_RANK_1}] * 2)
        self.assertEqual(called, [])

    @parametrize("calls_in_step", ("call_in_step", "time_in_step"))
    def test_who_fails_on_one_rank_leaves_none_in_a_collective(self, calls_in_step):
        def fail_on_rank_1():
            if dist.get_rank() == 1:
                raise torch.OutOfMemoryError("full")

        calls = [], []
        runners = {
            0: self.in_a_collective(calls[0], fail_on_rank_1),
            1: self.in_a_collective(calls[1]),
        }
        start = time.monotonic()
        of_ranks = self.on_two_ranks(
            lambda: getattr(in_step, calls_in_step)(
                runners, torch.device("cpu"), (0, 1)
            )
        )
        self.assertLess(time.monotonic() - start, 5, "a rank has waited in vain")
        for times in of_ranks:
            self.assertEqual(times[0], FULL_ON_RANK_1)
            self.assertIsInstance(times[1], Timing)
        self.assertEqual(sorted(calls[0]), [0, 1])
        self.assertEqual(calls[1].count(0), calls[1].count(1))

    def test_a_short_call_is_sampled_however_long_its_launch_took(self):
        _, times = self.timed(0.1, 4.5)
        self.assertEqual(times, {0: Timing(1.0), 1: Timing(1.0)})

    def test_who_calls_python_is_charged_the_host_s_time(self):
        def sampler(device, flushed, flushes, with_host):
            return lambda run, calls: 3.0 if with_host else 1.0

        runners = dict.fromkeys((0, 1), lambda: None)
        with (
            gathering(lambda value, ranks: [value]),
            mock.patch.object(in_step, "_sampler", sampler),
        ):
            times = in_step.time_in_step(
                runners, torch.device("cpu"), (0,), calling_python=[1]
            )
        self.assertEqual(times, {0: Timing(1.0), 1: Timing(3.0)})

    def test_each_sample_is_on_inputs_as_they_were(self):
        log = []

        def sampler(device, flushed, flushes, with_host):
            return lambda run, calls: (run(), 1.0)[1]

        with (
            gathering(lambda value, ranks: [value]),
            mock.patch.object(in_step, "_sampler", sampler),
        ):
            runners = {i: lambda i=i: log.append(i) for i in range(2)}
            restore = lambda: log.append("restored")  # noqa: E731
            in_step.time_in_step(runners, torch.device("cpu"), (0,), restore=restore)
        sampled = log[log.index("restored") :]
        self.assertEqual(sampled, ["restored", 0, "restored", 1] * (len(sampled) // 4))

    def test_names_tell_collectives(self):
        def functional(x):
            return torch.ops._c10d_functional.all_reduce(x, "sum", "0")

        def through_dist(x):
            dist.all_reduce(x)
            return x

        def through_another(x):
            return functional(x)

        def none(x):
            return torch.relu(x)

        mentions = collectives.mentions_collective
        for fn in (functional, through_dist, through_another):
            self.assertTrue(mentions(fn), fn)
        self.assertFalse(mentions(none))

    def test_ops_are_measured_without_the_python_dispatcher(self):
        # With it, a wait for a collective holds the lock that gloo's threads need.
        key = torch._C.DispatchKey.PythonDispatcher
        dispatched = []

        def eager(x: torch.Tensor) -> torch.Tensor:
            if type(x) is torch.Tensor:  # no fake one
                included = torch._C._dispatch_tls_is_dispatch_key_included(key)
                dispatched.append(included)
            return x.clone()

        op = torch.library.custom_op(
            f"collectives::seen{next(_numbers)}", mutates_args=()
        )(eager)
        op.register_fake(torch.empty_like)
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, RANGES, [torch.clone])]
        )
        with torch._inductor.config.patch(fx_graph_cache=False):
            torch.compile(lambda x: op(x) + 1, dynamic=True)(torch.ones(8, 4))
        self.assertGreater(len(dispatched), 2)
        self.assertNotIn(True, dispatched)

    def test_without_a_group_the_op_itself_runs(self):
        def eager(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        op = reducing_op([functional], eager)
        logger = "torch._inductor.kernel.custom_op"
        with (
            self.assertLogs(logger, logging.WARNING) as logs,
            mock.patch.object(dist, "is_initialized", lambda: False),
            mock.patch(
                "torch._inductor.range_autotune.modules.compiling.generate_module"
            ) as generate,
        ):
            generate.return_value.configure_mock(conditions=(), source="")
            code = torch._inductor.utils.run_and_get_code(
                torch.compile(lambda x: op(x) + 1, dynamic=True), torch.ones(8, 4)
            )[1][-1]
        self.assertIn("no process group", logs.records[-1].getMessage())
        self.assertIn("collectives.reduced", code)


instantiate_parametrized_tests(TestAgreement)

_numbers = itertools.count()


def summed_over_ranks(x: torch.Tensor) -> torch.Tensor:
    return c10d.wait_tensor(c10d.all_reduce(x, "sum", "0"))


def reducing_op(impls, eager=summed_over_ranks):
    """An op that sums a tensor over ranks, with implementations for two ranges."""
    name = f"collectives::reduced{next(_numbers)}"
    op = torch.library.custom_op(name, mutates_args=())(eager)
    op.register_fake(torch.empty_like)
    register_custom_op_autotuning(
        op,
        configs=[CustomOpRangeConfig("x", 0, RANGES, impls)],
        include_fallback=False,
    )
    return op


# Each implementation adds its own marker, so that the result tells which one ran.


def functional(x):
    return c10d.wait_tensor(c10d.all_reduce(x, "sum", "0")) + 1


def in_place(x):
    return c10d.wait_tensor(c10d.all_reduce_(x.clone(), "sum", "0")) + 2


def in_two_steps(x):
    flat = x.reshape(-1)
    part = c10d.wait_tensor(c10d.reduce_scatter_tensor(flat, "sum", 2, "0"))
    whole = c10d.wait_tensor(c10d.all_gather_into_tensor(part, 2, "0"))
    return whole.view(x.shape) + 3


def gathered(x):
    parts = c10d.wait_tensor(c10d.all_gather_into_tensor(x, 2, "0"))
    return parts.view(2, *x.shape).sum(0) + 4


def not_traced_on_rank_1(x):
    if dist.get_rank() == 1:
        raise RuntimeError("not on this rank")
    return x + 5


@torch.library.custom_op("collectives::fails_on_rank_1", mutates_args=())
def fails_on_rank_1(x: torch.Tensor) -> torch.Tensor:
    if dist.get_rank() == 1:
        raise RuntimeError("not on this rank")
    return x + 6


fails_on_rank_1.register_fake(torch.empty_like)


def not_run_on_rank_1(x):
    return fails_on_rank_1(x)


def model(op, x):
    return torch.relu(op(x * 2)) * 3


@contextlib.contextmanager
def made_up_times(*tables):
    """
    What each rank says to have measured, once it has run all candidates in step.

    Args:
        tables: for each range, ms by rank and candidate.
    """
    take_samples = in_step._take_samples

    def made_up_samples(runners, *args):
        rows = next(iter(runners.values()))()[0].shape[0]
        of_rank = tables[rows >= 64][dist.get_rank()]
        samples = take_samples(runners, *args)
        return {
            index: [of_rank[index]] if isinstance(sample, list) else sample
            for index, sample in samples.items()
        }

    with (
        mock.patch.object(in_step, "_take_samples", made_up_samples),
        mock.patch.object(in_step, "_HOPELESS", math.inf),
        torch._inductor.config.patch(collective_benchmark_nruns=10),
    ):
        yield


def compiled_results(impls, rank):
    """What a model returns at each size, its code, and the log of its tuning."""
    op = reducing_op(impls)
    x = torch.ones(8, 4)
    torch._dynamo.mark_dynamic(x, 0)
    compiled = torch.compile(functools.partial(model, op))
    logger = logging.getLogger("torch._inductor.kernel.custom_op")
    records = []
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())
    logger.addHandler(handler)
    try:
        code = torch._inductor.utils.run_and_get_code(compiled, x)[1][-1]
    finally:
        logger.removeHandler(handler)
    with torch._dynamo.config.patch(error_on_recompile=True):
        results = {
            rows: compiled(torch.full((rows, 4), rank + 1.0)).unique().tolist()
            for rows in SIZES
        }
    return results, code, records


def contradicting_times(rank):
    """The slowest rank's times decide: in place below 64, functional above."""
    impls = [functional, in_place, not_traced_on_rank_1, not_run_on_rank_1]
    below = ({0: 1.0, 1: 3.0, 3: 0.1}, {0: 4.0, 1: 3.0})
    above = ({0: 5.0, 1: 9.0, 3: 0.1}, {0: 1.0, 1: 9.0})
    with made_up_times(below, above):
        return compiled_results(impls, rank)


def slow_rank(rank):
    """One rank comes to its first measurement much later than the other."""
    first_calls = in_step._first_calls
    waited = []

    def slow_first_calls(*args):
        if rank == 1 and not waited:
            waited.append(time.sleep(3))
        return first_calls(*args)

    below, above = {0: 1.0, 1: 2.0}, {0: 2.0, 1: 1.0}
    with (
        made_up_times((below, below), (above, above)),
        mock.patch.object(in_step, "_first_calls", slow_first_calls),
    ):
        return compiled_results([in_two_steps, gathered], rank)


def epilogue_outside(rank):
    with torch._inductor.config.patch(benchmark_collective_epilogue_fusion=False):
        return slow_rank(rank)


def measured_before(rank):
    """
    The values, and the counters of two compilations of one model, with one that only one rank
    has to leave out.
    """
    op = reducing_op([in_two_steps, gathered, not_traced_on_rank_1])
    compiled = torch.compile(functools.partial(model, op), dynamic=True)
    found = []
    for _ in range(2):
        torch._dynamo.reset()
        counters.clear()
        values = compiled(torch.full((8, 4), rank + 1.0)).unique().tolist()
        found.append((values, dict(counters["inductor"])))
    return found


SCENES = (contradicting_times, slow_rank, epilogue_outside, measured_before)


def run_rank(rank, world_size, folder):
    torch.set_num_threads(1)  # ranks share the machine's cores
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, f"cache{rank}")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=120),
    )
    results = {}
    for scene in SCENES:
        try:
            results[scene.__name__] = scene(rank)
        except Exception:
            results[scene.__name__] = traceback.format_exc()
            break  # the ranks may be out of step
    torch.save(results, os.path.join(folder, f"results{rank}"))
    dist.destroy_process_group()


def run_ranks(folder, limit_s=400):
    """What each of two ranks saved; a rank that hangs is killed."""
    processes = mp.spawn(run_rank, (2, folder), nprocs=2, join=False)
    end = time.monotonic() + limit_s
    try:
        while not processes.join(timeout=1):
            if time.monotonic() > end:
                raise TimeoutError(f"the ranks are not done after {limit_s} s")
    finally:
        for process in processes.processes:
            process.kill()
    return [torch.load(f"{folder}/results{rank}") for rank in range(2)]


class TestTwoRanks(TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with tempfile.TemporaryDirectory() as folder:
            cls.of_ranks = run_ranks(folder)

    def results(self, scene):
        """Of both ranks; their values must be the expected ones on each."""
        found = [results.get(scene.__name__, "not run") for results in self.of_ranks]
        for result in found:
            self.assertNotIsInstance(result, str, result)
        return found

    def assert_markers(self, values, below, above):
        # The sum over ranks is 2 * 1 + 2 * 2 = 6.
        markers = {2: below, 63: below, 64: above, 200: above}
        self.assertEqual(values, {n: [3.0 * (6 + m)] for n, m in markers.items()})

    def test_both_emit_the_same_choice(self):
        for values, _, _ in self.results(contradicting_times):
            self.assert_markers(values, below=2, above=1)

    def test_a_candidate_that_fails_on_one_rank_is_out_on_both(self):
        logs = ["\n".join(log) for _, _, log in self.results(contradicting_times)]
        not_traced = "'not_traced_on_rank_1' is left out"
        self.assertIn(f"{not_traced}: another rank has left it out", logs[0])
        self.assertIn(f"{not_traced}: RuntimeError: not on this rank", logs[1])
        for log in logs:
            self.assertRegex(
                log, "'not_run_on_rank_1' is left out .*on rank 1: RuntimeError"
            )

    def test_a_slow_rank_is_waited_for(self):
        results = self.results(slow_rank)
        for values, _, _ in results:
            self.assert_markers(values, below=3, above=4)
        collectives_in_code = [
            re.findall(r"_c10d_functional\.\w+", code) for _, code, _ in results
        ]
        self.assertEqual(*collectives_in_code)
        self.assertIn("_c10d_functional.reduce_scatter_tensor", collectives_in_code[0])

    def test_the_epilogue_is_in_the_branches(self):
        for _, code, _ in self.results(slow_rank):
            self.assertNotIn("cpp_fused", self.call_of(code))
            # Below 64 there is a kernel before the collectives and one behind; above,
            # the one behind is that of the sum.
            bodies = re.findall(r"def size_branch_\w+\(.*?\n\n", code, re.DOTALL)
            self.assertEqual([b.count("cpp_fused") for b in bodies], [2, 2], bodies)

    def test_the_epilogue_is_outside_if_told_so(self):
        for values, code, _ in self.results(epilogue_outside):
            self.assert_markers(values, below=3, above=4)
            before, _, behind = self.call_of(code).partition("if ")
            self.assertEqual((before + behind).count("cpp_fused"), 2)

    def test_what_was_measured_before_is_not_measured_again(self):
        for first, second in self.results(measured_before):
            measured = "custom_op_candidate_timings"
            self.assertGreater(first[1][measured], 0)
            self.assertNotIn(measured, second[1])
            self.assertNotIn("subgraph_modules_generated", second[1])
            self.assertEqual(first[0], second[0])

    def call_of(self, code):
        """The code of the call itself, without that of the branches."""
        return code[code.index("def call(") : code.index("def benchmark_")]


if __name__ == "__main__":
    run_tests()
