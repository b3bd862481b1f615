# Owner(s): ["module: inductor"]
"""Tests of ``torch._inductor.range_autotune.kernel_configs``: kernels and times are made up."""

import functools
import itertools
import types
from unittest import mock

from torch._inductor.runtime.triton_heuristics import CachingAutotuner, DEFER
from torch._inductor.test_case import run_tests, TestCase

import torch
from torch._inductor.range_autotune import kernel_configs
from torch._inductor.range_autotune.kernel_configs import ConfigSearch


_numbers = itertools.count(1)


class MadeUpKernel(CachingAutotuner):
    """Decides as its base does; that times configs and runs plugins for a GPU only."""

    def __init__(self, *launchers):
        self.fn = types.SimpleNamespace(__name__="kernel")
        self.launchers = list(launchers)
        self.compile_results = [
            types.SimpleNamespace(config=launcher.config) for launcher in launchers
        ]
        self.inductor_meta = {}
        self.precompile_time_taken_ns = 0
        self.kept = []
        self.save_cache_hook = lambda config, *_, **__: self.kept.append(config)
        self._plugins = []

    def clone_args(self, *args, **kwargs):
        return ["copy", *args[1:]], kwargs

    def benchmark_all_configs(self, *args, **kwargs):
        raise AssertionError("Inductor benchmarks configs")

    def run(self, written, size):
        if len(self.launchers) > 1:
            (plugin,) = self._plugins
            return plugin.pre_autotune(self, written, size, stream=7)
        return self.launchers[0](written, size, stream=7)


def launcher(ms, written_to=None):
    """Takes ``ms(size)``; keeps what it wrote to."""

    def launch(written, size, stream):
        assert stream == 7
        if written_to is not None:
            written_to.append(written)
        return ms(size)

    launch.config = types.SimpleNamespace(
        kwargs={"XBLOCK": next(_numbers)}, num_warps=4, num_stages=1
    )
    launch.cache_hash = None
    launch.n_regs = launch.n_spills = launch.shared = 0
    return launch


class TestConfigSearch(TestCase):
    def setUp(self):
        super().setUp()
        # A launch returns its time.
        sampler = mock.patch.object(
            kernel_configs, "GpuSampler", lambda device: lambda run: run()
        )
        self.enterContext(sampler)
        self.module = types.SimpleNamespace(other=torch)

    def search(self, kernel, sizes):
        self.module.kernel = self.module.the_same = kernel
        search = ConfigSearch(torch.device("cuda"))
        for size in sizes:
            search.call(self.module, lambda size=size: kernel.run("argument", size))
            self.assertEqual(kernel._plugins, [])
        return search

    def test_the_best_over_all_sizes(self):
        launchers = [
            launcher(lambda size: 1.0 if size < 100 else 2.0),
            launcher(lambda size: 1.05),
            launcher(lambda size: 2.0 if size < 100 else 1.0),
        ]
        for sizes, best in (((10,), 0), ((1000,), 2), ((10, 1000, 20, 200), 1)):
            kernel = MadeUpKernel(*launchers)
            search = self.search(kernel, sizes)
            self.assertTrue(search.is_undecided(self.module))
            search.decide()
            self.assertEqual(kernel.launchers, [launchers[best]])
            self.assertEqual(kernel.kept, [launchers[best].config])
            self.assertFalse(search.is_undecided(self.module))
            with self.assertRaisesRegex(AssertionError, "Inductor benchmarks"):
                kernel.benchmark_all_configs()

    def test_noise_of_short_kernels_counts_little(self):
        launchers = [
            launcher(lambda size: 0.001 if size < 100 else 1.05),
            launcher(lambda size: 0.0012 if size < 100 else 1.0),
        ]
        kernel = MadeUpKernel(*launchers)
        self.search(kernel, (10, 1000)).decide()
        self.assertEqual(kernel.launchers, [launchers[1]])

    def test_one_config_is_no_choice(self):
        kernel = MadeUpKernel(launcher(lambda size: 1.0))
        search = self.search(kernel, (10, 20))
        self.assertFalse(search.is_undecided(self.module))
        search.decide()
        self.assertEqual(len(kernel.launchers), 1)

    def test_a_kernel_of_two_candidates_is_decided_on_once(self):
        launchers = [launcher(lambda size: 1.0), launcher(lambda size: 1.0 + size)]
        kernel = MadeUpKernel(*launchers)
        search = self.search(kernel, (1,))
        other = types.SimpleNamespace(kernel=kernel)
        search.call(other, lambda: kernel.run("argument", -0.9))
        self.assertTrue(search.is_undecided(other))
        search.decide()
        self.assertEqual(kernel.kept, [launchers[1].config])
        self.assertEqual(kernel.launchers, [launchers[1]])

    def test_a_kernel_that_somebody_else_has_decided_on(self):
        kernel = MadeUpKernel(launcher(lambda size: 1.0), launcher(lambda size: 2.0))
        search = self.search(kernel, (10,))
        kernel.launchers = kept = kernel.launchers[1:]
        search.decide()
        self.assertIs(kernel.launchers, kept)

    def test_where_it_cannot_be_decided(self):
        kernel = MadeUpKernel(launcher(lambda size: 1.0), launcher(lambda size: 2.0))
        search = self.search(kernel, (10,))
        with mock.patch.object(
            kernel, "autotune_to_one_config", side_effect=AssertionError
        ):
            search.decide()
        self.assertEqual(len(kernel.launchers), 2)
        self.assertNotIn("benchmark_all_configs", vars(kernel))

    def test_arguments_are_written_to_once(self):
        seen = []
        slow, fast = [launcher(lambda size, ms=ms: ms, seen) for ms in (2.0, 1.0)]
        self.search(MadeUpKernel(slow, fast), (10,))
        self.assertEqual(seen.count("argument"), 1)
        self.assertEqual(seen[-1], "argument")

    def test_slow_kernels_are_launched_less(self):
        launches = []
        for ms in (1.0, 1000.0):
            seen = []
            takes = functools.partial(launcher, lambda size, ms=ms: ms, seen)
            self.search(MadeUpKernel(takes(), takes()), (10,))
            launches.append(seen.count("copy"))
        self.assertEqual(launches, [2 * 4, 2 * 2])

    def test_a_config_that_fails_somewhere_is_out(self):
        def fails(size):
            if size > 100:
                raise RuntimeError("no such config here")
            return 0.1

        kernel = MadeUpKernel(launcher(fails), launcher(lambda size: 1.0))
        works = kernel.launchers[1]
        search = self.search(kernel, (10, 1000))
        search.decide()
        self.assertEqual(kernel.launchers, [works])

    def test_where_all_fail(self):
        def fails(size):
            raise RuntimeError("no such config here")

        kernel = MadeUpKernel(launcher(fails), launcher(fails))
        with self.assertRaisesRegex(RuntimeError, "no such config"):
            self.search(kernel, (10,))
        self.assertEqual(kernel._plugins, [])

    def test_an_interrupted_call(self):
        kernel = MadeUpKernel(launcher(lambda size: 1.0), launcher(lambda size: 2.0))
        search = self.search(kernel, ())
        with self.assertRaises(KeyboardInterrupt):
            search.call(self.module, mock.Mock(side_effect=KeyboardInterrupt))
        self.assertEqual(kernel._plugins, [])
        search.decide()
        self.assertIs(search.pre_autotune(kernel, "argument", 10, stream=7), DEFER)

    def test_nothing_in_common(self):
        def fails_unless(wanted):
            def ms(size):
                if size != wanted:
                    raise RuntimeError("no such config here")
                return 1.0

            return launcher(ms)

        kernel = MadeUpKernel(fails_unless(10), fails_unless(20))
        self.search(kernel, (10, 20)).decide()
        self.assertEqual((len(kernel.launchers), kernel.kept), (2, []))

    def test_times_of_nothing(self):
        kernel = MadeUpKernel(launcher(lambda size: 0.0), launcher(lambda size: 0.0))
        first = kernel.launchers[0]
        self.search(kernel, (10,)).decide()
        self.assertEqual(kernel.launchers, [first])


if __name__ == "__main__":
    run_tests()
