# Owner(s): ["module: inductor"]
"""Forms of candidates for other sizes than the model's: who has them, and what they are."""

import logging
import math
import re
from types import SimpleNamespace
from unittest import mock

import sympy
from range_autotune_testing import ExpTestCase, made_up_times, SymbolicTestCase
from torch._inductor.lowering import lowerings, register_lowering
from torch._inductor.sizevars import SizeVarAllocator
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import fresh_cache, run_and_get_code
from torch._inductor.virtualized import V
from torch.fx import Graph
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.candidate_indices import (
    FALLBACK_INDEX,
    FOR_OTHER_SIZES,
    index_of_variant,
)
from torch._inductor.range_autotune.candidates import size_forms
from torch._inductor.range_autotune.candidates.size_forms import (
    depends_on_sizes,
    forms_for_sizes,
)
from torch._inductor.range_autotune.candidates.traced_candidates import TracedCandidate
from torch._inductor.range_autotune.graphs.symbolic_graphs import trace_subgraph
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.registration import Candidate
from torch._inductor.range_autotune.sizes.size_hints import hinted, without_hints
from torch._inductor.range_autotune.sizes.size_points import SizePoint


aten = torch.ops.aten
CANDIDATE = Candidate("candidate", None)
FIRST = index_of_variant(0, FOR_OTHER_SIZES[0])

TRITON = """
import triton
async_compile.triton('triton_per_fused_sum_0', '''
@triton_heuristics.persistent_reduction(
    size_hints={{'x': {x}, 'r0_': 128}},
    inductor_meta={{'kernel_name': 'triton_per_fused_sum_0_{name}', 'tiling_scores': {{'x': {score}}}}}
)
def triton_per_fused_sum_0_{name}(in_ptr0, XBLOCK: tl.constexpr):
    {body}
''')

def get_args():
    arg0 = rand_strided(({x}, 128), (128, 1))
"""


def kernels_in(code):
    """How many C++ kernels a model's code has."""
    return len({*re.findall(r"cpp_fused_\w+", code)})


@instantiate_parametrized_tests
class TestWhoDependsOnHints(SymbolicTestCase):
    def depends(self, fn, *shape, device="cuda", **patches):
        """Whether the code of a function of a tensor does whose first size is dynamic."""
        size = self.shape_env.create_symintnode(self.symbol("s0", 50), hint=50)
        with self.fake_mode:
            x = torch.empty(size, *shape, device=device)
        graph = trace_subgraph(fn, [x], {})
        with config.patch(patches):
            return depends_on_sizes(TracedCandidate(CANDIDATE, graph))

    @parametrize("device", ("cuda", "cpu"))
    @parametrize(
        "fn",
        (
            lambda x: x.sum(0),
            lambda x: (x + 1).amax(),
            lambda x: x.cumsum(1),
            lambda x: aten.var_mean.correction(x, [0])[0],
        ),
    )
    def test_reductions_of_a_dynamic_size(self, fn, device):
        self.assertEqual(self.depends(fn, 64, device=device), device == "cuda")

    def test_long_rows(self):
        lengths = [n for n in (64, 8192, 8193) if self.depends(lambda x: x.sum(1), n)]
        self.assertEqual(lengths, [8193])

    def test_sums_of_many_rows(self):
        rows = [n for n in (32, 33) if self.depends(lambda x: x.sum(1), n, 64)]
        self.assertEqual(rows, [33])
        self.assertFalse(self.depends(lambda x: x.sum((1, -1)), 33, 64))

    def test_of_one_number(self):
        self.assertFalse(self.depends(lambda x: x.sum((0, 1)).sum(0), 0, device="cpu"))
        self.assertFalse(self.depends(lambda x: x.new_ones(()).sum(0)))

    def test_no_other_work(self):
        self.assertFalse(self.depends(lambda x: torch.relu(x.mT) + 1, 64, 64))

    @parametrize("device", ("cuda", "cpu"))
    @parametrize("option", ("max_autotune", "max_autotune_gemm"))
    def test_products_that_templates_compete_for(self, option, device):
        def product(x):
            return x @ x.new_ones(64, 32)

        self.assertFalse(self.depends(product, 64, device=device))
        self.assertTrue(self.depends(product, 64, device=device, **{option: True}))


class TestFarPoints(TestCase):
    def points(self, here, *ranges, splits=False):
        """
        Sizes that there are forms for, of a model that is compiled at a size.

        Args:
            splits: whether a reduction is split by hints.
        """

        def measured(tuning, sizes):
            ends = [sizes.start, sizes.last if sizes.bounded else 2 * sizes.start]
            return [SizePoint(size, {}) for size in ends]

        def point(site, size, wanted, within):
            self.assertIn(wanted, within)
            return SizePoint(wanted, {})

        entered = [SimpleNamespace(possible=DimRange(*r)) for r in ranges]
        standing = SimpleNamespace(
            ranges=entered,
            enters=lambda index, r: True,
            traced={0: TracedCandidate(CANDIDATE, torch.fx.GraphModule({}, Graph()))},
        )
        tuning = SimpleNamespace(size=sympy.Symbol("s0"), standing=standing, site=None)
        with mock.patch.multiple(
            size_forms,
            points_within=measured,
            has_open_end=lambda _, sizes: not sizes.bounded,
            point_for_size=point,
            _has=lambda *_: splits,
        ):
            forms = forms_for_sizes(tuning, 0, SizePoint(here, {}))
            return [form.made_for.size for _, form in forms]

    def test_all_sizes_are_near_one(self):
        for here, expected in (
            (1, [38, 846]),
            (16, [1, 716]),
            (4000, [5, 106]),
            (100, [4, 1789]),
        ):
            points = self.points(here, (1, 256), (256, 4001))
            self.assertEqual(points, expected)
            made = [here, *points]
            far = [s for s in range(1, 4001) if size_forms._distance(s, made) > 9]
            self.assertEqual(far, [])

    def test_near_the_model_s_own(self):
        self.assertEqual(self.points(1, (1, 9)), [])
        self.assertEqual(self.points(1, (1, 10)), [8])
        self.assertEqual(self.points(64, (9, 512)), [])

    def test_of_a_range_without_an_end(self):
        self.assertEqual(self.points(16, (16, 64), (64, math.inf)), [609, 13777])
        self.assertEqual(self.points(8192, (2048, math.inf)), [])

    def test_between_ranges(self):
        """The nearest in one of them, but not beside another."""
        self.assertEqual(self.points(4, (1, 16), (1000, 100_000)), [1000, 13375])
        self.assertEqual(self.points(100, (90, 101), (2000, 2001)), [2000])
        far = 2_000_000
        self.assertEqual(self.points(100, (100, 301), (far, far + 1)), [far])

    def test_ends_of_what_is_split(self):
        """After those between, whose code they may have: of one row a kernel is the worst."""
        ranges = (1, 256), (256, 4001)
        expected = [5, 106, 1], [1, 716, 4000]
        found = [self.points(here, *ranges, splits=True) for here in (4000, 16)]
        self.assertEqual(found, [*expected])

    def test_empty_tensors(self):
        self.assertEqual(self.points(0, (0, 101)), [28])
        self.assertEqual(
            self.points(16, (0, 1), (1, 4000), splits=True), [1, 715, 3999]
        )


class TestHints(SymbolicTestCase):
    def test_are_of_other_sizes(self):
        s0, s1 = self.symbol("s0", 100), self.symbol("s1", 7)
        known = V.graph.sizevars
        precomputed = known.lookup_precomputed_size(s0 * 3)
        with hinted({s0: 16}):
            sizes = V.graph.sizevars
            self.assertIsInstance(sizes, SizeVarAllocator)
            self.assertEqual(sizes.optimization_hint(2 * s0 + s1), 39)
            self.assertEqual(sizes.optimization_hints([s0, 5]), (16, 5))
            self.assertEqual(sizes.optimization_hint(precomputed), 48)
            self.assertEqual(sizes.replace_backed_symbols_with_hints(s0 + 1), 17)
            self.assertEqual(sizes.guarding_hint_or_throw(s0), 100)
        self.assertIs(V.graph.sizevars, known)
        self.assertEqual(known.optimization_hint(s0), 100)

    def test_code_without_them(self):
        def code(**changes):
            values = {"x": 64, "name": "0123456789", "score": 12, "body": "pass"}
            return without_hints(TRITON.format(**{**values, **changes}))

        same = code(x=4096, name="abcdef0123", score=99)
        self.assertEqual(same, code())
        self.assertNotEqual(code(body="return"), code())


@instantiate_parametrized_tests
class TestForms(ExpTestCase):
    """With an implementation that is lowered by hints, for rows of more or of fewer."""

    def setUp(self):
        super().setUp()
        self.inner = self.define_op("inner(Tensor x) -> Tensor")
        self._library.impl("inner", torch.exp, "CPU")
        self._library.impl("inner", torch.empty_like, "Meta")
        self.enterContext(mock.patch.dict(lowerings))
        depends = mock.patch.object(size_forms, "_is_split_by_hints", self.is_inner)
        self.enterContext(depends)
        self.enterContext(config.patch(fx_graph_cache=False))
        register_lowering(self.inner, type_promotion_kind=None)(self.lower)
        self.ends = [(0, 64), (64, 4096)]
        self.lowered = []

    def is_inner(self, node):
        return node.target is self.inner

    def lower(self, x):
        """The same in one way or in another."""
        exp, is_large = lowerings[aten.exp], self.is_large_by_hint(x)
        self.lowered.append(is_large)
        return (
            lowerings[aten.reciprocal](exp(lowerings[aten.neg](x)))
            if is_large
            else exp(x)
        )

    def is_large_by_hint(self, x):
        return V.graph.sizevars.optimization_hint(x.get_size()[0]) >= 100

    def compiled(self, here, wins, *sizes, calls=1, **options):
        """
        The code of a model compiled at a size, and the log.

        Args:
            wins: from a size to the index of its winner.
            calls: of the op, each with an argument of a size of its own.
        """
        ranges = [CustomOpRangeConfig("x", 0, self.ends, [self.inner])]
        self.register(self.op, ranges)
        self.tried = {}

        def ms(size, index):
            self.tried.setdefault(size, set()).add(index)
            return 1.0 if index == wins(size) else 2.0

        def inputs(size):
            given = [torch.randn(size + i) for i in range(calls)]
            for x in given:
                torch._dynamo.mark_dynamic(x, 0)
            return given

        model = torch.compile(lambda *given: [self.op(x) for x in given])
        logger = "torch._inductor.kernel.custom_op"
        with (
            made_up_times(ms),
            self.assertLogs(logger, logging.INFO) as logs,
            config.patch(options),
        ):
            _, (code, *_) = run_and_get_code(model, *inputs(here))
            with torch._dynamo.config.patch(error_on_recompile=True):
                for size in (2, 63, 64, 500, 5000):
                    given = inputs(size)
                    self.assertEqual(model(*given), [x.exp() for x in given])
        # Nor is it a second try without choices.
        self.assertEqual([r for r in logs.records if r.levelno >= logging.WARNING], [])
        return code, "\n".join(logs.output)

    @parametrize("here, small, large", ((16, 0, FIRST), (2000, FIRST, 0)))
    @parametrize("cpp_wrapper", (False, True))
    def test_each_form_has_a_branch(self, here, small, large, cpp_wrapper):
        code, log = self.compiled(
            here, lambda size: small if size < 64 else large, cpp_wrapper=cpp_wrapper
        )
        competing = {FALLBACK_INDEX, 0, FIRST}
        self.assertEqual(self.tried, dict.fromkeys(self.tried, competing))
        at = 724 if here == 16 else 7
        name = {FIRST: f"inner.default, for size {at}", 0: "inner.default"}
        self.assertIn(f"Range [0, 64): {name[small]}\n", log)
        self.assertIn(f"Range [64, 4096): {name[large]}\n", log)
        self.assertEqual(kernels_in(code), 2, msg=code)

    @parametrize("cpp_wrapper", (False, True))
    def test_one_form_wins(self, cpp_wrapper):
        self.ends = [(0, math.inf)]
        code, log = self.compiled(16, lambda size: FIRST, cpp_wrapper=cpp_wrapper)
        self.assertIn("Range [0, inf): inner.default, for size 609\n", log)
        self.assertNotIn("Generating torch.cond dispatch", log)
        self.assertEqual(kernels_in(code), 1, msg=code)
        self.assertTrue(self.lowered[-1])

    def test_equal_calls_of_other_sizes(self):
        """What was measured is generated for the first one's sizes."""
        x, y = torch.randn(16), torch.randn(5000)
        self.register(
            self.op, [CustomOpRangeConfig("x", 0, [(0, math.inf)], [self.inner])]
        )
        for given in (x, y):
            torch._dynamo.mark_dynamic(given, 0)
        model = torch.compile(lambda x, y: (self.op(x), self.op(y)))
        with made_up_times(lambda size, index: 1.0 if index == 0 else 2.0):
            self.assertEqual(model(x, y), (x.exp(), y.exp()))
        # The implementation and forms for 609, 13777, 65536 and 2, then the first one at both.
        forms = [True, True, True, False]
        self.assertEqual(self.lowered, [False, *forms, False, False])

    def test_a_later_process_at_another_size(self):
        """What was measured of code that was made for one size says nothing of it there."""

        def measured_at(here):
            torch._dynamo.reset()
            self.tried = {}
            self.compiled(here, lambda size: 0)
            return bool(self.tried)

        with fresh_cache():
            self.assertEqual(
                [measured_at(n) for n in (16, 16, 2000)], [True, False, True]
            )

    def test_equal_calls(self):
        code, log = self.compiled(16, lambda size: 0 if size < 64 else FIRST, calls=2)
        self.assertIn("the choice is that of an equal call before", log)
        self.assertEqual(kernels_in(code), 2, msg=code)

    @parametrize("is_large", (False, True))
    def test_of_the_same_code_only_one_competes(self, is_large):
        self.is_large_by_hint = lambda x: is_large
        _, log = self.compiled(16, lambda size: 0)
        competing = {FALLBACK_INDEX, 0}
        self.assertEqual(self.tried, dict.fromkeys(self.tried, competing))
        self.assertNotIn("is left out", log)

    def test_none_near_the_model_s_own_size(self):
        self.ends = [(40, 500)]
        _, log = self.compiled(130, lambda size: 0)
        self.assertNotIn("after benchmarking 3", log)
        self.assertIn("after benchmarking 2", log)


if __name__ == "__main__":
    run_tests()
