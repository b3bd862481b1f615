# Owner(s): ["module: inductor"]
"""Configs of kernels for other sizes: which a kernel has, and whose kernels have them."""

import dataclasses
import math
from types import SimpleNamespace
from unittest import mock

import sympy
from range_autotune_testing import ExpTestCase, made_up_times, SymbolicTestCase
from torch._inductor.runtime import triton_heuristics
from torch._inductor.runtime.hints import ReductionHint
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune import dispatch
from torch._inductor.range_autotune.candidates import preparing, tracing
from torch._inductor.range_autotune.candidates.traced_candidates import TracedCandidate
from torch._inductor.range_autotune.emitting.kernel_sizes import meta_of_other_sizes
from torch._inductor.range_autotune.kernel_configs.configs_for_sizes import (
    configs_for_others,
    OTHER_HINTS,
    OTHER_SIZES_OPTION,
)
from torch._inductor.range_autotune.kernel_configs.kernel_config_names import (
    KERNEL_CONFIGS_OPTION,
)
from torch._inductor.range_autotune.modules import compiling
from torch._inductor.range_autotune.registration import Candidate
from torch._inductor.range_autotune.sizes.size_points import SizePoint


class TestHeuristics(TestCase):
    def configs(self, heuristic, hints, *others, **options):
        """Blocks and warps of all that a kernel gets. There may be no Triton."""
        found = []

        def made(kwargs, num_warps, num_stages=1, **_):
            return SimpleNamespace(
                kwargs=kwargs, num_warps=num_warps, num_stages=num_stages
            )

        def chosen(configs, inductor_meta):
            found.extend(configs)
            return configs[:1]

        meta = {OTHER_HINTS: [*others], **options.pop("meta", {})}
        device = SimpleNamespace(warp_size_or_default=32, multi_processor_count=132)
        triton_meta = {"device": device, "signature": {}}
        with mock.patch.multiple(
            triton_heuristics,
            InductorConfig=made,
            Config=made,
            configs_of_kernel=chosen,
            check_autotune_cache=lambda configs, *_: (configs, None, {}),
        ):
            heuristic(
                size_hints=hints,
                triton_meta=triton_meta,
                inductor_meta=meta,
                **options,
            )
        self.assertEqual(configs_for_others(meta), [])
        return [(c.kwargs["XBLOCK"], c.num_warps) for c in found]

    def test_pointwise(self):
        """Larger blocks for more elements; small ones are no better for few."""
        few, many = {"x": 2**16}, {"x": 2**26}
        pointwise = triton_heuristics.pointwise
        of_few, of_many = (self.configs(pointwise, h) for h in (few, many))
        self.assertEqual({x for x, _ in of_few}, {512, 256})
        self.assertEqual({x for x, _ in of_many}, {1024, 512})
        both = self.configs(pointwise, few, {"x": 2**12}, many)
        self.assertEqual(both, [*dict.fromkeys([*of_few, *of_many])])
        self.assertEqual(self.configs(pointwise, many, few), of_many)

    def test_reductions_of_short_rows(self):
        """One warp for a row where there are many, several where there are few."""
        few, many = {"x": 16, "r0_": 512}, {"x": 2**14, "r0_": 512}

        def configs(*hints):
            persistent = triton_heuristics.persistent_reduction
            return self.configs(persistent, *hints, reduction_hint=ReductionHint.INNER)

        with mock.patch.object(torch.cuda, "is_available", lambda: True):
            of_few, of_many = configs(few), configs(many)
            self.assertNotEqual(of_few, of_many)
            self.assertEqual(configs(few, many), of_few + of_many)
            self.assertEqual(configs(many, few), of_many + of_few)

    def test_a_kernel_that_names_its_config(self):
        named = {"custom_op_kernel_config": "{}"}
        few, many = {"x": 2**16}, {"x": 2**26}
        pointwise = triton_heuristics.pointwise
        found = self.configs(pointwise, few, many, meta=named)
        self.assertEqual(found, self.configs(pointwise, few))


class TestSource(SymbolicTestCase):
    def test_says_the_hints_at_other_sizes(self):
        s0, s1 = self.symbol("s0", 16), self.symbol("s1", 4)
        precomputed = V.graph.sizevars.lookup_precomputed_size(s0 * 3)
        numels = {"y": precomputed, "x": 100 * s1}
        self.assertEqual(meta_of_other_sizes(numels), {})
        few = (s0.name, 1), ("unknown", 7)
        sizes = few, ((s0.name, 4096), (s1.name, 8))
        with config.patch({OTHER_SIZES_OPTION: sizes}):
            meta = meta_of_other_sizes(numels)
        hints = [{"y": 4, "x": 512}, {"y": 16384, "x": 1024}]
        self.assertEqual(meta, {OTHER_HINTS: hints})


class TestCandidates(ExpTestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.object(tracing, "is_gpu", lambda device: True))
        self.enterContext(config.patch(fx_graph_cache=False))

    def other_sizes(self, here, ranges, calls=1):
        """
        Those in the config of each of the modules that are generated to be measured.

        Args:
            calls: of the op, each with an argument of a size of its own.
        """
        found, generate = [], compiling.generate_module

        def generated(gm, fakes, symbols, name, patches, *args, **kwargs):
            sizes = patches.get(OTHER_SIZES_OPTION, ())
            found.append([values for point in sizes for _, values in point])
            return generate(gm, fakes, symbols, name, patches, *args, **kwargs)

        impl = [torch.exp, lambda x: 1 / torch.exp(-x)]
        self.register(self.op, [CustomOpRangeConfig("x", 0, ranges, impl)])
        given = [torch.randn(here + i) for i in range(calls)]
        for x in given:
            torch._dynamo.mark_dynamic(x, 0)
        model = torch.compile(lambda *given: [self.op(x) + 1 for x in given])
        with (
            made_up_times(lambda size, index: 1.0 if index == 0 else 2.0),
            mock.patch.object(compiling, "generate_module", generated),
        ):
            results, (self.code, *_) = run_and_get_code(model, *given)
        self.assertEqual(results, [x.exp() + 1 for x in given])
        return found

    def test_ends_that_are_far(self):
        for here, ranges, expected in (
            (16, [(0, 64), (64, 4097)], [2, 4096]),
            (1000, [(0, 64), (64, 4001)], [2]),
            (1000, [(300, 3001)], []),
            (16, [(16, math.inf)], [65536]),
        ):
            found = self.other_sizes(here, ranges)
            self.assertGreater(len(found), 1)
            self.assertEqual(found, [expected] * len(found))

    def test_equal_calls_have_their_own_symbols(self):
        there, at_site = [], preparing.at_site

        def spy(traced, site, *args):
            there.append((at_site(traced, site, *args), *site.symbols()))
            return there[-1][0]

        with mock.patch.object(preparing, "at_site", spy):
            self.other_sizes(16, [(0, math.inf)], calls=2)
        self.assertGreater(len(there), 1)
        for traced, symbol in there:
            points = [dict(point.values) for point in traced.configs_for]
            self.assertEqual(points, [{symbol: 2}, {symbol: 65536}])

    def test_emitted_with_what_was_chosen(self):
        candidate = Candidate("exp", None, config_patches={"max_autotune": True})
        graph = torch.fx.GraphModule({}, torch.fx.Graph())
        point = SizePoint(4096, {sympy.Symbol("s0"): 4096})
        traced = TracedCandidate(candidate, graph, configs_for=(point,))
        config_of = dispatch._config_of_kernels
        measured = {"max_autotune": True, OTHER_SIZES_OPTION: ((("s0", 4096),),)}
        self.assertEqual(config_of(traced), measured)
        named = dataclasses.replace(traced, kernel_configs=(("kernel", "config"),))
        chosen = {KERNEL_CONFIGS_OPTION: {"kernel": "config"}}
        self.assertEqual(config_of(named), {**measured, **chosen})
        not_measured = dataclasses.replace(traced, configs_for=())
        self.assertEqual(config_of(not_measured), {"max_autotune": True})


if __name__ == "__main__":
    run_tests()
