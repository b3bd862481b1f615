# Owner(s): ["module: inductor"]
"""Tests of ``measure_ranges`` and ``kernel_config_calls`` of ``torch._inductor.range_autotune``."""

import types
from unittest import mock

import sympy
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.range_autotune.candidate_indices import FALLBACK_INDEX
from torch._inductor.range_autotune.measuring import calls as module_of_calls
from torch._inductor.range_autotune.measuring import kernel_config_calls, measure_ranges
from torch._inductor.range_autotune.measuring.calls import HeldInputs, Runners
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.sizes import size_points
from torch._inductor.range_autotune.sizes.size_points import SizePoint
from torch._inductor.range_autotune.times import RangeTimes, Timing
from torch._inductor.range_autotune.winners import ChoiceRules


POINT = SizePoint(1, {})


class CallsTestCase(TestCase):
    """With candidates that are no more than something to call, on any inputs."""

    def setUp(self):
        super().setUp()
        checked = mock.patch.object(kernel_config_calls, "check_inputs")
        self.check_inputs = checked.start()
        self.addCleanup(checked.stop)


class TestCallsAhead(CallsTestCase):
    """What is called as soon as it is loaded, at the place that is measured first."""

    def caller(self, ranks=None, device="cuda"):
        calls = []

        def call(args):
            calls.append(args)
            if len(calls) == 2:
                raise ValueError("not this one")

        module = types.SimpleNamespace(call=call, symbols=())
        module.load = lambda: module
        standing = types.SimpleNamespace(
            modules=dict.fromkeys(range(4), module),
            competes=lambda index, competing: index != 3,
        )
        tuning = types.SimpleNamespace(
            name="op", ranks=ranks, device=torch.device(device), standing=standing
        )
        held = HeldInputs(tuning)
        with mock.patch.object(
            kernel_config_calls, "broken_condition", return_value=None
        ):
            search = types.SimpleNamespace(call=lambda module, run: run())
            call = kernel_config_calls.caller_ahead(tuning, (None, POINT), held, search)
        return call, calls, held

    def test_each_gets_the_same_inputs(self):
        call, calls, held = self.caller()
        with mock.patch.object(module_of_calls, "inputs_at") as made:
            made.return_value = ["x", 1]
            for index in range(4):
                call(index)
            self.assertEqual(held.at(POINT), ["x", 1])
        # The second fails, which is told as it is timed; the last is in other ranges.
        self.assertEqual(calls, [["x", 1]] * 3)
        made.assert_called_once()

    def test_without_inputs_nothing_is_called(self):
        call, calls, held = self.caller()
        with mock.patch.object(module_of_calls, "inputs_at") as made:
            made.side_effect = MemoryError("none left")
            call(0)
            self.assertEqual(calls, [])
            made.side_effect = None
            self.assertIs(held.at(POINT), made.return_value)

    def test_who_would_end_the_process_is_not_called(self):
        call, calls, _ = self.caller()
        self.check_inputs.side_effect = IndexError("of 3 is given an index of 3")
        with mock.patch.object(module_of_calls, "inputs_at", return_value=["x"]):
            call(0)
        self.assertEqual(calls, [])

    @parametrize("where", ("cpu", "ranks", "subproc"))
    def test_not_where_others_come_first(self, where):
        with config.patch(autotune_in_subproc=where == "subproc"):
            call, calls, _ = self.caller(
                ranks=(0, 1) if where == "ranks" else None,
                device="cpu" if where == "cpu" else "cuda",
            )
        with mock.patch.object(module_of_calls, "inputs_at", return_value=["x"]):
            call(0)
        self.assertEqual(calls, [])


class TestSettleOnConfigs(CallsTestCase):
    def settle(self, undecided, sizes=(256, 1, 16, 64, 512, 1024), cannot=()):
        """
        The calls at other sizes, by candidate, the inputs that are held then, and how often
        some were made; the first size is the model's, for which there are some.
        """
        calls = [[] for _ in undecided]

        def inputs_at(tuning, point):
            if point.size in cannot:
                raise MemoryError("none left")
            return [point.size]

        modules = {}
        for index in range(len(undecided)):
            modules[index] = types.SimpleNamespace(
                call=lambda args: args[0], symbols=()
            )
            modules[index].load = lambda index=index: modules[index]
        search = mock.Mock()
        search.is_undecided = lambda m: undecided[list(modules.values()).index(m)]
        search.call = lambda m, run: calls[list(modules.values()).index(m)].append(
            run()
        )
        standing = types.SimpleNamespace(
            modules=modules,
            competes=lambda index, competing: competing == "all" or index == 0,
        )
        tuning = types.SimpleNamespace(name="op", standing=standing)
        places = [("small" if s == 1 else "all", SizePoint(s, {})) for s in sizes]
        held = HeldInputs(tuning)
        with (
            mock.patch.object(
                kernel_config_calls,
                "broken_condition",
                lambda _, point: point.size == 512,
            ),
            mock.patch.object(module_of_calls, "inputs_at", wraps=inputs_at) as made,
        ):
            held.at(places[0][1])
            kernel_config_calls.settle_on_configs(tuning, places, held, search)
            kept = held._inputs
            held.at(places[0][1])
        search.settle.assert_called_once()
        return calls, kept, made.call_count

    def test_where_there_are_several(self):
        calls, kept, made = self.settle([True, True, False])
        self.assertEqual(calls, [[1, 64, 1024], [64, 1024], []])
        self.assertEqual((kept, made), ([], 5))

    def test_only_where_it_can_be_called(self):
        calls, _, _ = self.settle([True, True], sizes=(256, 1, 64, 512), cannot={64})
        self.assertEqual(calls, [[1], []])

    def test_the_first_place_s_inputs_are_kept_where_there_are_none(self):
        for arguments in ([[False]], [[True], (256,)]):
            _, kept, made = self.settle(*arguments)
            self.assertEqual((kept, made), ([256], 1))


class TestConfigsOfWinners(CallsTestCase):
    """What is called with all configs once winners are known; each is called with a size."""

    def choose(self, cannot=(), in_doubt=(0, 1, 2)):
        """What is chosen, and the sizes that each candidate was called at."""
        calls = {}

        def module(index):
            loaded = types.SimpleNamespace(
                index=index, call=calls.setdefault(index, []).extend, symbols=()
            )
            loaded.load = lambda: loaded
            return loaded

        def inputs_at(tuning, point):
            if point.size in cannot:
                raise MemoryError("none left")
            return [point.size]

        def times_with_each(module, run):
            run()
            size = calls[module.index][-1]
            better = Timing(0.9 if size > 100 else 1.1)
            return {"k": {"usual": Timing(1.0), "better": better}}

        search = mock.Mock(times_with_each=times_with_each)
        search.usual_configs = lambda m: {"k": "usual"}
        search.in_doubt = lambda m: ["k"] if m.index in in_doubt else []
        size = sympy.Symbol("s0", positive=True, integer=True)
        measured = [
            RangeTimes(DimRange(start, end), {start: times, end - 1: times})
            for start, end, times in (
                (1, 65, {0: Timing(1.0), 1: Timing(2.0)}),
                (65, 129, {0: Timing(1.0), 1: Timing(2.0)}),
                (129, 1025, {0: Timing(2.0), 1: Timing(1.0)}),
                (1025, 2049, {FALLBACK_INDEX: Timing(1.0)}),
            )
        ]
        tuning = types.SimpleNamespace(
            name="op",
            size=size,
            site=None,
            standing=types.SimpleNamespace(modules={i: module(i) for i in range(3)}),
            measured=measured,
            choice_rules=lambda: ChoiceRules(fallback=FALLBACK_INDEX),
        )
        with (
            mock.patch.object(kernel_config_calls, "inputs_at", inputs_at),
            mock.patch.object(
                size_points,
                "point_for_size",
                lambda site, size, n, within: SizePoint(n, {}),
            ),
            mock.patch.object(
                kernel_config_calls,
                "broken_condition",
                lambda _, point: point.size == 64,
            ),
            mock.patch.object(
                kernel_config_calls,
                "remember_records",
                lambda _, records: self.known.update(records),
            ),
        ):
            kernel_config_calls.compare_configs(tuning, search)
        return tuning.kernel_configs, calls

    def setUp(self):
        super().setUp()
        self.known = {}

    def test_at_the_sizes_that_it_won(self):
        chosen, calls = self.choose()
        usual, better = (("k", "usual"),), (("k", "better"),)
        # The first is cut: between 65 and 128 is 91, at 64 it cannot be called. The last
        # is the op itself, which has no code here.
        self.assertEqual([c.value for c in chosen], [usual, better, better, ()])
        self.assertEqual(
            [(c.sizes.start, c.sizes.end) for c in chosen],
            [(1, 109), (109, 129), (129, 1025), (1025, 2049)],
        )
        self.assertEqual(calls, {0: [1, 65, 128, 91], 1: [129, 1024], 2: []})

    def test_where_nothing_is_in_doubt(self):
        chosen, calls = self.choose(in_doubt=(1, 2))
        self.assertEqual(
            [(c.sizes.start, c.value) for c in chosen],
            [(1, (("k", "usual"),)), (129, (("k", "better"),)), (1025, ())],
        )
        self.assertEqual((calls[0], calls[2]), ([], []))

    def test_where_some_sizes_cannot_be_called(self):
        chosen, calls = self.choose(cannot=(65, 128, 91, 129, 1024))
        self.assertEqual([c.value for c in chosen], [(("k", "usual"),)] * 2 + [()])
        self.assertEqual(calls, {0: [1], 1: [], 2: []})
        # There may be memory another time; the code for 64 ends below it.
        self.assertEqual([*self.known[0].at], [1, 64])

    def test_what_is_kept_for_later_processes(self):
        self.choose()
        self.assertEqual([*self.known[0].at], [1, 64, 65, 128, 91])
        self.assertNotIn(2, self.known)  # it did not win


class TestHostsTime(TestCase):
    """Which candidates are charged it."""

    def charged(self, ranks=None, benchmark_with_cudagraphs=False):
        candidates = [types.SimpleNamespace(calls_python=i > 0) for i in range(3)]
        options = types.SimpleNamespace(
            benchmark_with_cudagraphs=benchmark_with_cudagraphs
        )
        tuning = types.SimpleNamespace(
            ranks=ranks,
            device=torch.device("cuda"),
            standing=types.SimpleNamespace(traced=candidates),
            registration=types.SimpleNamespace(options=options),
        )
        name = "time_in_step" if ranks else "time_candidates"
        with mock.patch.object(measure_ranges, name) as timed:
            measure_ranges._times(tuning, Runners(dict.fromkeys(range(3))))
        return timed.call_args.args[3]

    @parametrize("ranks", (None, (0, 1)))
    def test_those_that_call_python(self, ranks):
        self.assertEqual(self.charged(ranks), [1, 2])

    @parametrize("ranks", (None, (0, 1)))
    def test_none_where_cuda_graphs_are_replayed(self, ranks):
        with config.patch("triton.cudagraphs", True):
            self.assertEqual(self.charged(ranks), [])
        self.assertEqual(self.charged(ranks, benchmark_with_cudagraphs=True), [])


instantiate_parametrized_tests(TestCallsAhead)
instantiate_parametrized_tests(TestHostsTime)


if __name__ == "__main__":
    run_tests()
