# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.kernel_configs.kernel_config_ranges``: times are made up."""

import itertools
import math
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import OpTestCase
from test_custom_op_autotune import made_up_times
from torch._inductor.test_case import run_tests, TestCase

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune import dispatch
from torch._inductor.range_autotune.candidate_indices import FALLBACK_INDEX
from torch._inductor.range_autotune.kernel_configs import kernel_config_ranges
from torch._inductor.range_autotune.kernel_configs.kernel_config_names import (
    KERNEL_CONFIGS_OPTION,
)
from torch._inductor.range_autotune.kernel_configs.kernel_config_ranges import (
    ConfigRecord,
    configs_by_range,
    configs_of_winners,
    excesses,
    with_configs,
)
from torch._inductor.range_autotune.kernel_configs.kernel_config_search import (
    ConfigSearch,
)
from torch._inductor.range_autotune.measuring import (
    kernel_config_calls,
    measure_ranges,
    recall,
)
from torch._inductor.range_autotune.ranges import ANY_SIZE, DimRange, Segment
from torch._inductor.range_autotune.sizes.probes import _NEAR
from torch._inductor.range_autotune.times import Failure, RangeTimes, Timing
from torch._inductor.range_autotune.winners import Winner


class Kernels:
    """
    Times of a call by kernel, config and size.

    Args:
        models: from a size to ms, or to None for a failure, by kernel and config.
    """

    def __init__(self, **models):
        self.models = models
        self.measured = []

    def at(self, size):
        self.measured.append(size)
        return {
            kernel: {
                name: Timing(ms) if (ms := model(size)) else Failure("no")
                for name, model in configs.items()
            }
            for kernel, configs in self.models.items()
        }

    def within(self, sizes, near):
        assert near in sizes
        return near, self.at(near)

    def choose(self, sizes=(1, 64, 512, 4096), **worth):
        usual = dict.fromkeys(self.models, "usual")
        at = {size: self.at(size) for size in sizes}
        return configs_by_range(ANY_SIZE, at, usual, self.within, **worth)


def large_from(limit, gain):
    """Two configs: the usual one is better below a size by so much, the other above."""
    return {
        "usual": lambda size: 1.0 if size < limit else 1.0 + gain,
        "large": lambda size: 1.0 + gain if size < limit else 1.0,
    }


class TestConfigsByRange(TestCase):
    def test_another_config_where_it_gains_something(self):
        kernels = Kernels(norm=large_from(1000, 0.05))
        low, high = kernels.choose()
        self.assertEqual(low.value, ())
        self.assertEqual(high.value, (("norm", "large"),))
        self.assertEqual((low.sizes.start, high.sizes.end), (0, math.inf))
        self.assertEqual(low.sizes.end, high.sizes.start)
        self.assertLess(abs(math.log(low.sizes.end / 1000)), math.log(_NEAR))

    def test_the_usual_ones_where_nothing_is_gained(self):
        kernels = Kernels(norm=large_from(1000, 0.015))
        self.assertEqual(kernels.choose(), [Segment(ANY_SIZE, ())])
        self.assertEqual(kernels.measured, [1, 64, 512, 4096])

    def test_another_config_everywhere(self):
        kernels = Kernels(norm=large_from(0, 0.05))
        self.assertEqual(kernels.choose(), [Segment(ANY_SIZE, (("norm", "large"),))])

    def test_the_best_in_the_middle_costs_two_cuts(self):
        def configs(gain):
            return {
                "usual": lambda size: 1.0 + gain * (100 < size < 1000),
                "other": lambda size: 1.0 + gain * (not 100 < size < 1000),
            }

        for gain, parts in ((0.03, 1), (0.05, 3)):
            chosen = Kernels(k=configs(gain)).choose((1, 300, 4096))
            self.assertEqual(len(chosen), parts)

    def test_the_first_cut_may_cost_more(self):
        kernels = Kernels(norm=large_from(1000, 0.03))
        self.assertEqual(len(kernels.choose(worth=0.03)), 1)
        self.assertEqual(len(kernels.choose(worth=0.02)), 2)
        kernels = Kernels(b=large_from(100, 0.1), a=large_from(1000, 0.03))
        self.assertEqual(len(kernels.choose(worth=0.03)), 3)

    def test_kernels_that_change_at_two_sizes(self):
        kernels = Kernels(b=large_from(100, 0.1), a=large_from(1000, 0.1))
        low, middle, high = (part.value for part in kernels.choose())
        self.assertEqual(low, ())
        self.assertEqual(middle, (("b", "large"),))
        self.assertEqual(high, (("a", "large"), ("b", "large")))

    def test_a_config_whose_time_rises_before_that_of_another(self):
        """There is room for 264 blocks of one at once, for 410 of the other."""
        configs = {
            "usual": lambda size: 1.05 if size <= 410 else 1.4,
            "other": lambda size: 1.0 if size <= 264 else 1.4,
        }
        parts = Kernels(norm=configs).choose((2, 257, 512))
        (at_300,) = (part.value for part in parts if 300 in part.sizes)
        self.assertEqual(at_300, ())
        self.assertEqual(parts[0].value, (("norm", "other"),))

    def test_sizes_between_which_times_may_rise_in_steps(self):
        def measured(ms):
            kernels = Kernels(norm={"usual": ms, "other": lambda size: None})
            kernels.choose((1, 64, 512, 4096))
            return sorted({*kernels.measured} - {1, 64, 512, 4096})

        self.assertEqual(measured(lambda size: 1.0 + size / 1e5), [])
        self.assertEqual(measured(lambda size: 1.0 * size), [])
        self.assertEqual(measured(lambda size: None), [])
        rising = measured(lambda size: min(max(size / 64, 1.0), 8.0) ** 0.5)
        self.assertEqual(rising, [82, 107, 139, 181, 234, 304, 394])
        self.assertEqual(measured(lambda size: 1.0 + (size > 100)), [82, 107, 181])

    def test_a_gain_counts_by_the_sizes_that_have_it(self):
        def parts(sizes):
            kernels = Kernels(norm=large_from(1000, 0.011))
            kernels.within = lambda sizes, near: None
            return len(kernels.choose((1, 16, *sizes)))

        self.assertEqual(parts((1000, 4000, 16000)), 2)
        self.assertEqual(parts((1000, 2000)), 1)
        self.assertEqual(parts(range(1000, 2000, 10)), 1)
        self.assertEqual(parts(range(1000, 4000, 10)), 2)

    def test_a_config_that_fails_at_some_sizes(self):
        kernels = Kernels(
            k={
                "usual": lambda size: 2.0,
                "small": lambda size: 1.0 if size < 100 else None,
            }
        )
        low, high = kernels.choose()
        self.assertEqual((low.value, high.value), ((("k", "small"),), ()))
        self.assertIn(low.sizes.end, DimRange(64, 140))

    def test_where_all_fail(self):
        kernels = Kernels(k={"usual": lambda size: None, "other": lambda size: None})
        self.assertEqual(kernels.choose(), [Segment(ANY_SIZE, ())])

    def test_a_kernel_that_is_not_launched_at_all_sizes(self):
        kernels = Kernels(often=large_from(0, 0.05), once=large_from(0, 0.05))
        at = {1: kernels.at(1), 2: {"often": kernels.at(2)["often"]}}
        usual = {"often": "usual", "once": "usual"}
        (part,) = configs_by_range(ANY_SIZE, at, usual, lambda *_: None)
        self.assertEqual(part.value, (("often", "large"), ("once", "large")))

    def test_one_that_nothing_is_to_be_chosen_for(self):
        kernels = Kernels(norm=large_from(0, 0.05), sum=large_from(0, 0.05))
        at = {1: kernels.at(1)}
        (part,) = configs_by_range(
            DimRange(1, 2), at, {"sum": "usual"}, lambda *_: None
        )
        self.assertEqual(part, Segment(DimRange(1, 2), (("sum", "large"),)))

    def test_where_nothing_can_be_measured_between(self):
        kernels = Kernels(norm=large_from(1000, 0.05))
        kernels.within = lambda sizes, near: None
        low, _ = kernels.choose((10, 2000))
        self.assertEqual(low.sizes.end, 1005)

    @settings(deadline=None, max_examples=60, derandomize=True)
    @given(
        st.lists(
            st.lists(st.integers(0, 6), min_size=3, max_size=3), min_size=1, max_size=5
        )
    )
    def test_no_other_way_to_cut_loses_less(self, table):
        sizes = [10**i for i in range(len(table))]
        names = ("usual", "first", "second")
        at = {
            size: {"k": {n: Timing(1 + ms / 100) for n, ms in zip(names, row)}}
            for size, row in zip(sizes, table)
        }
        parts = configs_by_range(ANY_SIZE, at, {"k": "usual"}, lambda *_: None)

        def loss(chosen):
            cuts = sum(a != b for a, b in itertools.pairwise(chosen))
            lost = sum(excesses(at[s]["k"])[n] for s, n in zip(sizes, chosen))
            return lost + kernel_config_ranges._WORTH * cuts

        chosen = [
            dict(next(p.value for p in parts if size in p.sizes)).get("k", "usual")
            for size in sizes
        ]
        least = min(map(loss, itertools.product(names, repeat=len(sizes))))
        # Up to what another config than the usual one has to gain.
        self.assertLess(loss(chosen), least + kernel_config_ranges._WORTH * len(table))
        self.assertEqual(parts[0].sizes.start, 0)
        self.assertEqual(parts[-1].sizes.end, math.inf)


class TestExcesses(TestCase):
    def test_beyond_noise(self):
        times = {"a": Timing(1.0), "b": Timing(1.004), "c": Timing(1.1)}
        found = excesses(times)
        self.assertEqual((found["a"], found["b"]), (0.0, 0.0))
        self.assertAlmostEqual(found["c"], math.log(1.1) - 0.005)

    def test_beyond_the_error_of_both(self):
        times = {"a": Timing(1.0, 0.03), "b": Timing(1.1, 0.04)}
        self.assertAlmostEqual(excesses(times)["b"], math.log(1.1) - 0.05 - 0.005)

    def test_without_times(self):
        self.assertEqual(excesses({"a": Failure("no")}), {})
        found = excesses({"a": Timing(0.0), "b": Timing(0.0), "c": Failure("no")})
        self.assertEqual(found, {"a": 0.0, "b": 0.0, "c": math.inf})


class TestConfigsOfWinners(TestCase):
    def chosen(self, won, *measured):
        """Of a kernel whose other config is better at sizes of at most 100."""
        kernels = Kernels(norm=large_from(100, -0.5))
        return configs_of_winners(
            [Segment(won, 0)],
            measured,
            lambda index: ConfigRecord({"norm": "usual"}, ["norm"]),
            lambda index: kernels.within,
        )

    def test_times_of_a_lender(self):
        """They are of sizes in another range."""
        won, lender = DimRange(4096, math.inf), DimRange(1, 4096)
        at = {1: {0: Timing(1.0)}, 4095: {0: Timing(2.0)}}
        found = self.chosen(won, RangeTimes(won, at, lender))
        self.assertEqual(found, (Segment(won, (("norm", "usual"),)),))

    def test_times_at_the_model_s_size(self):
        """It is outside of a range in which nothing can be measured."""
        won = DimRange(100, 400)
        outside = RangeTimes(DimRange(100, 200), {30: {0: Timing(1.0)}})
        inside = RangeTimes(DimRange(200, 400), {200: {0: Timing(1.0)}})
        found = self.chosen(won, outside, inside)
        self.assertEqual(found, (Segment(won, (("norm", "usual"),)),))


class TestWithConfigs(TestCase):
    def test_of_some_winners(self):
        winners = [Segment(DimRange(0, 10), 3), Segment(DimRange(10, 90), 4)]
        configs = [
            Segment(DimRange(10, 50), ()),
            Segment(DimRange(50, 90), (("k", "c"),)),
        ]
        self.assertEqual(
            with_configs(winners, configs),
            (
                Segment(DimRange(0, 10), Winner(3)),
                Segment(DimRange(10, 50), Winner(4)),
                Segment(DimRange(50, 90), Winner(4, (("k", "c"),))),
            ),
        )


class TestEmitted(OpTestCase):
    """Configs as a GPU would have them; the code is a CPU's, which has no use for them."""

    def setUp(self):
        super().setUp()
        self.op = self.define_op("op(Tensor x) -> Tensor")
        self._library.impl("op", torch.exp, "CPU")
        self._library.impl("op", torch.empty_like, "Meta")
        impls = [lambda x: x.exp() * 1, lambda x: torch.exp(x + 0)]
        self.register(self.op, configs=[CustomOpRangeConfig("x", 0, [(0, 99)], impls)])

    def compile(self, times, rows=30, best=0):
        """The configs of each branch's operations, and the sizes that were measured."""
        tagged, kernels = [], Kernels(k=times)
        search = {"usual_configs": {"k": "usual"}, "in_doubt": ["k"]}

        def lower_branch(gm, name, operands, fakes, outputs, patches, *of_sizes):
            self.assertEqual(patches, {})
            return lower(gm, name, operands, fakes, outputs, patches, *of_sizes)

        lower = dispatch.lower_branch
        torch._dynamo.reset()
        x = torch.randn(rows)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(self.op)
        with (
            config.patch(fx_graph_cache=False),
            mock.patch.object(recall, "may_have_kernel_configs", lambda _: True),
            mock.patch.object(
                measure_ranges, "may_have_kernel_configs", lambda _: True
            ),
            mock.patch.multiple(
                ConfigSearch, **{n: lambda *_, v=v: v for n, v in search.items()}
            ),
            mock.patch.object(
                kernel_config_calls,
                "_config_times",
                lambda *args: kernels.at(args[-1].size),
            ),
            mock.patch.object(
                dispatch,
                "tag",
                lambda _, patches: tagged.append(patches.get(KERNEL_CONFIGS_OPTION)),
            ),
            mock.patch.object(dispatch, "lower_branch", lower_branch),
            made_up_times(lambda s, i: 1.0 if i == best else 2.0),
        ):
            compiled(x)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for size in (2, 40, 98, 150):
                x = torch.randn(size)
                self.assertEqual(compiled(x), x.exp())
        return tagged, kernels.measured

    def test_each_branch_has_its_configs_and_a_later_process_the_same(self):
        times = large_from(50, 0.1)
        # That with the usual configs, that with others, and the op behind the range.
        tagged = [{"k": "usual"}, {"k": "large"}, None]
        first, measured = self.compile(times)
        self.assertEqual((first, measured[:3]), (tagged, [2, 50, 98]))
        self.assertEqual(self.compile(times), (tagged, []))

    def test_what_is_known_without_configs_is_measured_again(self):
        with mock.patch.object(kernel_config_calls, "remember_records"):
            first, _ = self.compile(large_from(50, 0.1))
        again, measured = self.compile(large_from(200, 0.1))
        self.assertEqual((len(first), measured), (3, [2, 50, 98]))
        self.assertEqual(again, [{"k": "usual"}, None])

    def test_hints_are_in_the_source_of_kernels(self):
        times = large_from(50, 0.1)
        self.compile(times)
        for rows, measured in ((20, []), (40, [2, 50, 98]), (64, [])):
            _, again = self.compile(times, rows=rows)
            self.assertEqual(again[:3], measured, msg=f"{rows} rows")

    def test_the_op_itself_and_its_neighbours(self):
        times = large_from(50, 0.1)
        first, _ = self.compile(times, best=FALLBACK_INDEX)
        self.assertEqual(first, [{"k": "usual"}, {"k": "large"}, None])
        self.assertEqual(self.compile(times, best=FALLBACK_INDEX), (first, []))


if __name__ == "__main__":
    run_tests()
