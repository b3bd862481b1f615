# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.kernel_configs.kernel_config_search``: kernels and times are made up."""

import itertools
import types
from unittest import mock

from torch._inductor.codegen.multi_kernel import MultiKernelCall
from torch._inductor.runtime.triton_heuristics import CachingAutotuner, DEFER
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.range_autotune.kernel_configs import kernel_config_search
from torch._inductor.range_autotune.kernel_configs.kernel_config_names import text_of
from torch._inductor.range_autotune.kernel_configs.kernel_config_search import (
    ConfigSearch,
)


_numbers = itertools.count(1)


class MadeUpKernel(CachingAutotuner):
    """Decides as its base does; that times configs and runs plugins for a GPU only."""

    def __init__(self, *launchers):
        self.fn = types.SimpleNamespace(__name__="kernel")
        self.launchers = list(launchers)
        self.compile_results = [
            types.SimpleNamespace(config=launcher.config) for launcher in launchers
        ]
        self.inductor_meta = {"kernel_name": "triton_per_fused_add_77"}
        self.custom_kernel = False
        self.precompile_time_taken_ns = 0
        self.kept = []
        self.save_cache_hook = lambda config, *_, **__: self.kept.append(config)
        self._plugins = []

    def benchmark_all_configs(self, *args, **kwargs):
        raise AssertionError("Inductor benchmarks configs")

    def run(self, size):
        if len(self.launchers) > 1:
            (plugin,) = self._plugins
            return plugin.pre_autotune(self, size, stream=7)
        return self.launchers[0](size, stream=7)


class MadeUpGpu:
    """Made-up time, and what was launched."""

    def __init__(self):
        self.ms = 0.0
        self.launched = []
        self.calls_a_sample = 1
        self.event_ms = 0.0

    def event(self):
        event = types.SimpleNamespace()

        def record():
            self.ms += self.event_ms
            event.ms = self.ms

        event.record = record
        event.elapsed_time = lambda later: later.ms - event.ms
        return event

    def __call__(self, run):
        """The time of the fastest of some calls; events take some, too."""
        calls = []
        for _ in range(self.calls_a_sample):
            before = self.ms
            run()
            calls.append(self.ms - before)
        return min(calls)

    def launcher(self, ms):
        """Takes ``ms(size)``."""

        def launch(size, stream):
            assert stream == 7
            self.launched.append(launch)
            self.ms += ms(size)

        launch.config = types.SimpleNamespace(
            kwargs={"XBLOCK": next(_numbers)}, num_warps=4, num_stages=1
        )
        launch.cache_hash = None
        launch.n_regs = launch.n_spills = launch.shared = 0
        return launch


@instantiate_parametrized_tests
class TestConfigSearch(TestCase):
    def setUp(self):
        super().setUp()
        self.gpu = MadeUpGpu()
        sampler = mock.patch.object(
            kernel_config_search, "GpuSampler", lambda _: self.gpu
        )
        self.enterContext(sampler)
        self.module = types.SimpleNamespace(other=torch)

    def kernel(self, *times):
        """Configs take ``times[i](size)``, or as long at any size."""
        return MadeUpKernel(
            *(self.gpu.launcher(t if callable(t) else lambda _, t=t: t) for t in times)
        )

    def search(self, kernel, sizes, rest=lambda size: 0.0):
        """
        Args:
            rest: from a size to what a call takes beside the kernel.
        """
        self.module.kernel = self.module.the_same = kernel
        search = ConfigSearch(torch.device("cuda"))

        def call(size):
            kernel.run(size)
            self.gpu.ms += rest(size)

        for size in sizes:
            search.call(self.module, lambda size=size: call(size))
            self.assertEqual(kernel._plugins, [])
        return search

    def test_the_best_over_all_sizes(self):
        times = [
            lambda size: 1.0 if size < 100 else 2.0,
            1.05,
            lambda size: 2.0 if size < 100 else 1.0,
        ]
        for sizes, best in (((10,), 0), ((1000,), 2), ((10, 1000, 20, 200), 1)):
            kernel = self.kernel(*times)
            launchers = kernel.launchers
            search = self.search(kernel, sizes)
            self.assertTrue(search.is_undecided(self.module))
            search.settle()
            self.assertEqual(kernel.launchers, [launchers[best]])
            self.assertEqual(kernel.kept, [])  # its source says so
            self.assertFalse(search.is_undecided(self.module))
            with self.assertRaisesRegex(AssertionError, "Inductor benchmarks"):
                kernel.benchmark_all_configs()

    def test_the_time_of_the_whole_call_counts(self):
        for rest_ms, best in ((0.0, 0), (0.01, 1)):
            kernel = self.kernel(
                lambda size: 0.001 if size < 100 else 1.05,
                lambda size: 0.0012 if size < 100 else 1.0,
            )
            launchers = kernel.launchers
            self.search(kernel, (10, 1000), lambda _, ms=rest_ms: ms).settle()
            self.assertEqual(kernel.launchers, [launchers[best]])

    def test_one_config_is_no_choice(self):
        kernel = self.kernel(1.0)
        search = self.search(kernel, (10, 20))
        self.assertEqual(len(self.gpu.launched), 2)
        self.assertFalse(search.is_undecided(self.module))
        search.settle()
        self.assertEqual(len(kernel.launchers), 1)

    def test_a_kernel_of_two_candidates_is_decided_on_once(self):
        kernel = self.kernel(1.0, lambda size: 1.0 + size)
        _, best = kernel.launchers
        search = self.search(kernel, (1,))
        other = types.SimpleNamespace(kernel=kernel)
        search.call(other, lambda: kernel.run(-0.9))
        self.assertTrue(search.is_undecided(other))
        search.settle()
        self.assertEqual(kernel.launchers, [best])

    def test_a_kernel_that_is_launched_several_times_in_a_call(self):
        # Either is the faster one somewhere.
        kernel = self.kernel(lambda size: size, lambda size: 4 - size)
        first, _ = kernel.launchers
        self.module.kernel = kernel
        search = ConfigSearch(torch.device("cuda"))
        search.call(self.module, lambda: [kernel.run(n) for n in (1, 3, 1)])
        search.settle()
        self.assertEqual(kernel.launchers, [first])

    def test_kernels_take_their_turns_at_once(self):
        two, three = self.kernel(2.0, 1.0), self.kernel(3.0, 2.0, 1.0)
        self.module.two, self.module.three = two, three
        best = [two.launchers[-1], three.launchers[-1]]
        search = ConfigSearch(torch.device("cuda"))
        calls = []
        search.call(self.module, lambda: calls.append((two.run(1), three.run(1))))
        self.assertEqual(len(calls), 3 * (1 + 3) + 3)
        search.settle()
        self.assertEqual(two.launchers + three.launchers, best)

    def test_a_kernel_that_somebody_else_has_decided_on(self):
        kernel = self.kernel(1.0, 2.0)
        search = self.search(kernel, (10,))
        kernel.launchers = kept = kernel.launchers[1:]
        search.settle()
        self.assertIs(kernel.launchers, kept)
        kernel = self.kernel(1.0, 2.0)
        search = self.search(kernel, (10,))
        search.settle()
        kernel.launchers = kept = kernel.launchers[:]
        search.close()
        self.assertIs(kernel.launchers, kept)

    def test_where_it_cannot_be_decided(self):
        kernel = self.kernel(1.0, 2.0)
        kernel.custom_kernel = True
        search = self.search(kernel, (10,))
        with mock.patch.object(
            kernel, "autotune_to_one_config", side_effect=AssertionError
        ):
            search.settle()
        self.assertEqual(len(kernel.launchers), 2)
        self.assertNotIn("benchmark_all_configs", vars(kernel))

    def test_all_configs_again_where_they_have_settled(self):
        """A kernel goes on with the best over all sizes, and tells the rest of one size."""
        kernel = self.kernel(1.0, lambda size: 1.5 if size < 100 else 0.8, 3.0)
        names = [text_of(launcher.config) for launcher in kernel.launchers]
        all_launchers = kernel.launchers
        search = self.search(kernel, (10, 1000), lambda size: 0.2)
        search.settle()
        self.assertEqual(kernel.launchers, all_launchers[:1])
        self.assertEqual(search.usual_configs(self.module), {"77": names[0]})
        self.assertEqual(search.in_doubt(self.module), ["77"])
        kernel._cached_launcher = all_launchers[0]

        def run():
            self.assertIsNone(kernel._cached_launcher)
            kernel.run(1000)
            self.gpu.ms += 0.2

        times = search.times_with_each(self.module, run)
        self.assertEqual([*times], ["77"])
        found = [times["77"][name].ms for name in names]
        self.assertEqual([round(ms, 6) for ms in found], [1.2, 1.0, 3.2])
        self.assertEqual(kernel.launchers, all_launchers[:1])
        # Nor does it get the others back where it is loaded once more.
        self.assertEqual(len(kernel.compile_results), 1)
        self.assertEqual(kernel.kept, [])
        kernel._cached_launcher = all_launchers[0]
        search.close()
        # The next search may choose again.
        self.assertEqual(kernel.launchers, all_launchers)
        self.assertEqual(len(kernel.compile_results), 3)
        self.assertIsNone(kernel._cached_launcher)
        self.assertEqual(search.usual_configs(self.module), {})
        again = self.search(kernel, (1000,))
        again.settle()
        self.assertEqual(kernel.launchers, all_launchers[1:2])

    def test_all_configs_again_and_a_failure(self):
        kernel = self.kernel(1.0, lambda size: 1.5 if size < 100 else 0.8)
        search = self.search(kernel, (10, 1000))
        search.settle()
        (best,) = kernel.launchers
        with self.assertRaisesRegex(RuntimeError, "no"):
            search.times_with_each(
                self.module, mock.Mock(side_effect=RuntimeError("no"))
            )
        self.assertEqual((kernel.launchers, kernel._plugins), ([best], []))

    def test_no_configs_in_doubt_where_none_comes_close(self):
        for close, in_doubt in ((1.06, []), (1.04, ["77"])):
            models = {10: 2.0, 1000: close}
            search = self.search(self.kernel(1.0, models.get, 2.0), (10, 1000))
            search.settle()
            self.assertEqual([*search.usual_configs(self.module)], ["77"])
            self.assertEqual(search.in_doubt(self.module), in_doubt)

    def test_a_kernel_that_somebody_else_decides_on_meanwhile(self):
        kernel = self.kernel(1.0, lambda size: 1.5 if size < 100 else 0.8)
        search = self.search(kernel, (10, 1000))
        search.settle()
        kernel.launchers = kept = kernel.launchers[:]
        self.assertEqual(search.times_with_each(self.module, lambda: None), {})
        search.close()
        self.assertIs(kernel.launchers, kept)

    def test_kernels_whose_source_cannot_name_a_config(self):
        for by_hand in (True, False):
            kernel = self.kernel(1.0, lambda size: 1.5 if size < 100 else 0.8)
            kernel.custom_kernel = by_hand
            if not by_hand:
                kernel.inductor_meta["combo_grid_meta"] = {}
            search = self.search(kernel, (10, 1000))
            (best, _) = kernel.launchers
            search.settle()
            self.assertEqual(search.usual_configs(self.module), {})
            self.assertEqual((kernel.launchers, kernel.kept), ([best], [best.config]))
            run = lambda kernel=kernel: kernel.run(10)  # noqa: E731
            self.assertEqual(search.times_with_each(self.module, run), {})

    def test_a_clock_that_gets_faster(self):
        """Times of later calls may be less than those of launches before."""
        slowly = itertools.chain([2.0] * 4, itertools.repeat(0.9))
        kernel = self.kernel(lambda size: next(slowly), 0.8)
        _, best = kernel.launchers
        self.search(kernel, (10,)).settle()
        self.assertEqual(kernel.launchers, [best])

    @parametrize("how", ("coordinate_descent_tuning", "combo_tuning_groups"))
    def test_inductor_goes_on_from_the_best(self, how):
        kernel = self.kernel(2.0, 1.0, lambda size: 2.0 if size < 100 else 0.9)
        _, best, _ = kernel.launchers
        kernel.inductor_meta[how] = True
        search = self.search(kernel, (10, 1000))
        search.settle()
        self.assertEqual(kernel.kept, [best.config])
        self.assertEqual(search.usual_configs(self.module), {})

    def test_slow_candidates_are_called_less(self):
        launches = []
        for ms in (1.0, 10.0, 1000.0):
            self.gpu.launched.clear()
            search = self.search(self.kernel(ms, ms), (10,))
            launches.append(len(self.gpu.launched))
        self.assertEqual(launches, [2 * (1 + 3) + 3, 2 * (1 + 1) + 1, 2])
        self.assertFalse(search.is_undecided(self.module))

    def test_the_fastest_of_repeated_calls_counts(self):
        slow, fast = 2.0, 1.0
        hiccups = itertools.cycle([9.0, 0.0, 5.0])
        self.gpu.calls_a_sample = 3
        kernel = self.kernel(
            lambda size: slow + next(hiccups), lambda size: fast + next(hiccups)
        )
        self.module.kernel = kernel
        search = ConfigSearch(torch.device("cuda"))
        search.call(self.module, lambda: kernel.run(1))
        (times,) = search._times[kernel]
        self.assertEqual([round(time.ms, 6) for time in times.values()], [slow, fast])

    def test_events_do_not_count(self):
        self.gpu.event_ms = 0.25
        two, three = self.kernel(2.0, 1.0), self.kernel(4.0, 6.0, 5.0)
        self.module.two, self.module.three = two, three
        search = ConfigSearch(torch.device("cuda"))
        search.call(self.module, lambda: (two.run(1), three.run(1)))
        times = [[t.ms for t in search._times[k][0].values()] for k in (two, three)]
        self.assertEqual(times, [[6.0, 5.0], [6.0, 8.0, 7.0]])

    def test_what_is_launched_the_first_time_only(self):
        kernel, once = self.kernel(2.0, 1.0), self.kernel(1.0, 2.0)
        self.module.kernel, self.module.once = kernel, once
        search = ConfigSearch(torch.device("cuda"))
        first = iter([True])
        search.call(
            self.module, lambda: (kernel.run(1), next(first, False) and once.run(1))
        )
        self.assertEqual([*search._times], [kernel])

    def test_alternatives_are_left_to_inductor(self):
        kernel = self.kernel(2.0, 1.0)
        self.module.kernel = kernel
        self.module.alternatives = mock.Mock(spec=MultiKernelCall)
        search = ConfigSearch(torch.device("cuda"))
        search.call(self.module, lambda: self.assertEqual(kernel._plugins, []))
        self.assertFalse(search.is_undecided(self.module))

    def fails_unless(self, works):
        def ms(size):
            if not works(size):
                raise RuntimeError("no such config here")
            return 0.1

        return ms

    def test_a_config_that_fails_somewhere_is_out(self):
        kernel = self.kernel(self.fails_unless(lambda size: size < 100), 1.0)
        _, works = kernel.launchers
        self.search(kernel, (10, 1000)).settle()
        self.assertEqual(kernel.launchers, [works])

    def test_a_call_in_which_a_config_fails_tells_nothing(self):
        sizes = itertools.chain([1] * 3, itertools.repeat(1000))
        kernel = self.kernel(self.fails_unless(lambda size: size < 100), 1.0)
        _, works = kernel.launchers
        self.module.kernel = kernel
        search = ConfigSearch(torch.device("cuda"))
        search.call(self.module, lambda: [kernel.run(next(sizes)) for _ in range(2)])
        (times,) = search._times[kernel]
        self.assertAlmostEqual(times[works].ms, 2.0)
        search.settle()
        self.assertEqual(kernel.launchers, [works])

    def test_where_all_fail(self):
        never = self.fails_unless(lambda size: False)
        kernel = self.kernel(never, never)
        with self.assertRaisesRegex(RuntimeError, "no such config"):
            self.search(kernel, (10,))
        self.assertEqual(kernel._plugins, [])

    def test_an_interrupted_call(self):
        kernel = self.kernel(1.0, 2.0)
        search = self.search(kernel, ())
        with self.assertRaises(KeyboardInterrupt):
            search.call(self.module, mock.Mock(side_effect=KeyboardInterrupt))
        self.assertEqual(kernel._plugins, [])
        search.close()
        self.assertIs(search.pre_autotune(kernel, 10, stream=7), DEFER)

    def test_nothing_in_common(self):
        kernel = self.kernel(
            *(self.fails_unless(lambda size, n=n: size == n) for n in (10, 20))
        )
        self.search(kernel, (10, 20)).settle()
        self.assertEqual((len(kernel.launchers), kernel.kept), (2, []))

    def test_times_of_nothing(self):
        kernel = self.kernel(0.0, 0.0)
        first = kernel.launchers[0]
        self.search(kernel, (10,)).settle()
        self.assertEqual(kernel.launchers, [first])


if __name__ == "__main__":
    run_tests()
