# Owner(s): ["module: inductor"]
"""Implementations that need sizes to be equal, or multiples: tuned where they are, and only there."""

import itertools
import logging
import re
from unittest import mock

import sympy
from range_autotune_testing import made_up_times, OpTestCase, SiteTestCase
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._sympy.functions import FloorDiv, Mod

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.call_site import CallSite, Inner
from torch._inductor.range_autotune.candidates.equal_sites import at_equal_sizes
from torch._inductor.range_autotune.emitting import branch_lowering
from torch._inductor.range_autotune.sizes.equal_sizes import (
    at_equal,
    distance,
    EqualSize,
    implies,
    needed_equal,
    text_of,
)


LOGGER = "torch._inductor.kernel.custom_op"
aten = torch.ops.aten


class TestNeeded(SiteTestCase):
    """With s0 = 100 rows, 6 of something else, and as many places as rows."""

    def setUp(self):
        super().setUp()
        self.places = self.symbol("s2", 100)

    def needed(self, condition, size=None):
        return needed_equal(condition, self.s0 if size is None else size)

    def test_conditions_that_equal_sizes_decide(self):
        expected = (EqualSize(self.places, self.s0),)
        s0, places = self.s0, self.places
        for condition in (
            sympy.Eq(s0, places),
            sympy.Ne(places, s0),
            sympy.Eq(64 * s0, 64 * places),
            sympy.Lt(s0, places),
            sympy.Eq(s0 * self.s1, places * self.s1),
        ):
            self.assertEqual(self.needed(condition), expected, msg=str(condition))

    def test_conditions_that_a_size_in_others_decides(self):
        """One size more, three times as many, as many as others have together."""
        s0, s1, places = self.s0, self.s1, self.places
        offsets, triple = self.symbol("s3", 101), self.symbol("s4", 300)
        for condition, expected in (
            (sympy.Eq(offsets - 1, s0), (offsets, s0 + 1)),
            (sympy.Eq(64 * s0 + 64, 64 * offsets), (offsets, s0 + 1)),
            (sympy.Ne(s1 * offsets, s1 * s0 + s1), (offsets, s0 + 1)),
            (sympy.Lt(offsets, s0 + 1), (offsets, s0 + 1)),
            (sympy.Eq(triple, 3 * s0), (triple, 3 * s0)),
            (sympy.Eq(triple, s0 + 2 * places), (triple, s0 + 2 * places)),
            (sympy.Eq(triple - offsets + 1, 2 * s0), (triple, 2 * s0 + offsets - 1)),
        ):
            found = self.needed(condition)
            self.assertEqual(found, (EqualSize(*expected),), msg=str(condition))

    def test_other_conditions(self):
        s0, places = self.s0, self.places
        for condition in (
            sympy.Eq(s0, self.s1),  # other hints
            sympy.Eq(s0, 100),
            sympy.Eq(s0 + places, 200),
            sympy.Le(s0, 2 * places - 50),
            sympy.Eq(s0, self.s1 + 95),  # nor is it 94 more
            sympy.Eq(2 * s0, 25 * self.s1 + 50),  # half of a size
            sympy.Eq(s0 * places, 10000),
        ):
            self.assertEqual(self.needed(condition), (), msg=str(condition))

    def test_data_is_not_taken_for_equal(self):
        data = self.shape_env.create_unbacked_symint().node.expr
        self.assertEqual(self.needed(sympy.Eq(self.s0, data)), ())
        self.assertEqual(self.needed(sympy.Eq(self.s0 + data, 100)), ())
        condition = sympy.Eq(self.s0 * data, self.places * data)
        self.assertEqual(self.needed(condition), (EqualSize(self.places, self.s0),))

    def test_which_one_stands_for_both(self):
        condition = sympy.Eq(self.s0, self.places)
        self.assertEqual(
            self.needed(condition, 2 * self.places), (EqualSize(self.s0, self.places),)
        )
        few = self.symbol("s3", 100, (2, 128))
        condition = sympy.Eq(self.s0, few)
        self.assertEqual(self.needed(condition), (EqualSize(self.s0, few),))
        # Less than two rows are never measured.
        offsets = self.symbol("s4", 101)
        condition = sympy.Eq(offsets, self.s0 + 1)
        found = self.needed(condition, offsets)
        self.assertEqual(found, (EqualSize(offsets, self.s0 + 1),))

    def test_multiples(self):
        """Of a number, also with a remainder; of one block only where ranges can be cut."""
        s0, s1 = self.s0, self.s1
        for condition, factor, rest, least in (
            (sympy.Eq(Mod(s0, 8), 0), 8, 0, 1),
            (sympy.Ne(Mod(s0, 7), 0), 7, 0, 1),
            (sympy.Eq(16 * s0, 128 * FloorDiv(s0, 8)), 8, 0, 1),
            (sympy.Eq(Mod(16 * s0, 128), 0), 8, 0, 1),
            (sympy.Eq(Mod(s0 + 3, 8), 0), 8, 5, 1),
            (sympy.Eq(Mod(s1, 4), 0), 4, 0, 2),
            (sympy.Eq(Mod(s0 * s1, 8), 0), 8, 0, 1),
            (sympy.Eq(s0, 8 * FloorDiv(s0 + 7, 8)), 8, 0, 1),
            (sympy.Lt(8 * FloorDiv(s0, 8), s0), 8, 0, 1),
        ):
            with self.subTest(str(condition)):
                (found,) = self.needed(condition)
                text = f"{found.symbol} % {factor} == {rest}"
                self.assertEqual(text_of((found,)), text)
                blocks, number = found.blocks
                self.assertEqual(found.by, factor * blocks + rest)
                self.assertEqual(self.shape_env.var_to_range[blocks].lower, least)
                self.assertEqual(self.needed(condition), (found,))  # made once
                far = distance((found,))
                for n in range(2, 64):
                    is_one = n % factor == rest and n >= factor * least + rest
                    at = {found.symbol: sympy.Integer(n)}
                    self.assertEqual(far.xreplace(at) == 0, is_one, msg=str(n))
                    if is_one:
                        self.assertEqual(number.xreplace(at), n // factor)

    def test_no_multiples(self):
        s0, few = self.s0, self.symbol("s3", 5, (2, 6))
        data = self.shape_env.create_unbacked_symint().node.expr
        for condition in (
            sympy.Eq(Mod(FloorDiv(s0, 8), 2), 0),
            sympy.Eq(Mod(2 * s0 + 1, 8), 0),
            sympy.Eq(Mod(few, 8), 0),
            sympy.Eq(Mod(data, 8), 0),
            sympy.Eq(Mod(s0, self.s1), 0),
            sympy.Lt(s0, 8 * FloorDiv(s0, 8) + 5),
            sympy.Lt(FloorDiv(s0, 8), 20),
        ):
            self.assertEqual(self.needed(condition), (), msg=str(condition))

    def test_multiples_of_multiples(self):
        (eights,) = self.needed(sympy.Eq(Mod(self.s0, 8), 0))
        (threes,) = self.needed(sympy.Eq(Mod(eights.by, 12), 0), eights.by)
        text = f"{self.s0} % 8 == 0, ({self.s0}//8) % 3 == 0"
        self.assertEqual(text_of((eights, threes)), text)
        far = distance((eights, threes))
        self.assertEqual(far.free_symbols, {self.s0})
        for n in range(2, 100):
            at = {self.s0: sympy.Integer(n)}
            self.assertEqual(far.xreplace(at) == 0, n % 24 == 0, msg=str(n))

    def test_what_implies_what(self):
        s0, places = self.s0, self.places
        fours, eights, twelves = (
            self.needed(sympy.Eq(Mod(s0, n), 0)) for n in (4, 8, 12)
        )
        same = (EqualSize(places, s0),)
        for equal, others, expected in (
            (eights, fours, True),
            (fours, eights, False),
            (twelves, eights, False),
            (same, same, True),
            (same, eights, False),
            ((*eights, EqualSize(places, eights[0].by)), same, True),
            ((*eights, EqualSize(places, eights[0].by)), fours, True),
        ):
            text = f"{text_of(equal)}: {text_of(others)}"
            self.assertEqual(implies(equal, others), expected, msg=text)

    def test_distance(self):
        s0, s1, s2 = self.s0, self.s1, self.places
        equal = EqualSize(s2, s1), EqualSize(s1, s0)
        self.assertEqual(at_equal(s0 + 2 * s1 + 3 * s2, equal), 6 * s0)
        far = distance(equal)
        for values in itertools.product((3, 4, 5), repeat=3):
            at = far.xreplace(dict(zip((s0, s1, s2), map(sympy.Integer, values))))
            self.assertEqual(at == 0, len({*values}) == 1, msg=f"{values} {at}")


class TestSites(SiteTestCase):
    def test_inputs(self):
        x, y = self.tensor([self.s0, 4]), self.tensor([4, self.s1], offset=self.s1)
        site = self.site(x=x, y=y, n=self.s1 + 2)
        equal = at_equal_sizes(site, (EqualSize(self.s1, self.s0),))
        self.assertEqual(equal.symbols(), [self.s0])
        self.assertEqual(equal.inputs[0].get_size(), [self.s0, 4])
        self.assertEqual(equal.inputs[1].get_size(), [4, self.s0])
        self.assertEqual(equal.inputs[1].get_stride(), [self.s0, 1])
        self.assertEqual(equal.inputs[1].get_layout().offset, self.s0)
        self.assertEqual(equal.inputs[2], self.s0 + 2)
        names = [box.get_name() for box in equal.inputs[:2]]
        self.assertEqual(names, [x.get_name(), y.get_name()])
        self.assertEqual(y.get_size(), [4, self.s1])

    def test_graph(self):
        x = self.tensor([self.s1, 4])
        (fake,) = self.site(x=x).fake_inputs()
        graph = torch.fx.Graph()
        given = graph.placeholder("x")
        doubled = graph.call_function(aten.mul.Tensor, (given, 2))
        call = graph.call_function(aten.abs.default, (doubled,))
        graph.output((call,))
        for node in (given, doubled, call):
            node.meta["val"] = fake
        site = CallSite(
            aten.abs.default, {"self": Inner(doubled)}, (x,), body=graph, call=call
        )
        equal = at_equal_sizes(site, (EqualSize(self.s1, self.s0),))
        arguments = equal.fake_arguments()
        self.assertEqual(arguments["self"].shape[0].node.expr, self.s0)
        self.assertEqual(equal.call.args[0], equal.arguments["self"].node)
        self.assertIsNot(equal.body, graph)
        self.assertEqual(doubled.meta["val"].shape[0].node.expr, self.s1)
        with V.fake_mode:
            (result,) = equal.run(equal.fake_inputs(), lambda values: values["self"])
        self.assertEqual(result.shape[0].node.expr, self.s0)


@instantiate_parametrized_tests
class TestModels(OpTestCase):
    """An op of rows and of a place for each, whose sizes only the op sees together."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        self.op = self.define_op("pair(Tensor x, Tensor y) -> Tensor")
        self.called = []
        self._library.impl("pair", self.kernel, "CPU")
        self._library.impl("pair", lambda x, y: torch.empty_like(x), "Meta")
        self.enterContext(config.patch(fx_graph_cache=False))

    def kernel(self, x, y):
        """Where sizes differ it computes something else."""
        self.called.append((len(x), len(y)))
        return x * y if len(x) == len(y) else -x

    def expected(self, x, y):
        return x * y if len(x) == len(y) else -x

    def register_two(self, *impls, **options):
        """The first below 64 rows, the second from there to 4096."""
        first, second = impls or (lambda x, y: x * y, lambda x, y: y * x)
        options.setdefault("include_fallback", False)
        register_custom_op_autotuning(
            self.op,
            [
                CustomOpConfig(first, tensor_name="x", dim_index=0, dim_range=(0, 64)),
                CustomOpConfig(
                    second, tensor_name="x", dim_index=0, dim_range=(64, 4096)
                ),
            ],
            **options,
        )

    def inputs(self, *sizes):
        given = [torch.randn(n, 8) for n in sizes]
        for x in given:
            torch._dynamo.mark_dynamic(x, 0)
        return given

    def compiled(self, model, *sizes, **options):
        """The model, compiled at some sizes, its code and its log."""
        compiled = torch.compile(model)
        with config.patch(options), self.assertLogs(LOGGER, logging.INFO) as logs:
            _, (code, *_) = run_and_get_code(compiled, *self.inputs(*sizes))
        warnings = [r for r in logs.records if r.levelno >= logging.WARNING]
        return compiled, code, "\n".join(logs.output), warnings

    def check(self, compiled, model, *sizes):
        for at in sizes:
            given = self.inputs(*at)
            with torch._dynamo.config.patch(error_on_recompile=True):
                self.assertEqual(compiled(*given), model(*given), msg=f"at {at}")

    def check_calls(self, called, each, compiled, model, *sizes):
        """
        The same, and that the op's kernel is called so many times at each of the sizes: once
        by the model, and once for each op that runs in compiled code.
        """
        called.clear()
        self.check(compiled, model, *sizes)
        self.assertEqual(len(called), each * len(sizes))

    @parametrize("cpp_wrapper", (False, True))
    def test_tuned_where_equal(self, cpp_wrapper):
        self.register_two()

        def model(x, y):
            return self.op(x.sin(), y).relu() + 1

        compiled, code, log, warnings = self.compiled(
            model, 16, 16, cpp_wrapper=cpp_wrapper
        )
        self.assertEqual(warnings, [])
        self.assertRegex(
            log,
            r"pair_autotuned: implementations need (s\d+) == (s\d+) "
            r"\(y\.shape\[0\] is \1, x\.shape\[0\] is \2\)",
        )
        if not cpp_wrapper:  # neighbours are in the branches, be sizes equal or not
            start = code.index("def call(")
            self.assertNotIn("cpp_fused", code[start:])
            self.assertEqual(code.count("def size_branch"), 4, msg=code)
        self.called.clear()
        self.check(compiled, model, (3, 3), (63, 63), (64, 64), (500, 500))
        self.assertEqual(self.called, [(n, n) for n in (3, 63, 64, 500)])  # by model
        self.check_calls(
            self.called, 2, compiled, model, (3, 64), (64, 3), (65, 64), (5000, 5000)
        )

    def test_of_one_winner(self):
        self.register_two(lambda x, y: x * y, lambda x, y: x * y)
        compiled, code, _, warnings = self.compiled(self.op, 16, 16)
        self.assertEqual(warnings, [])
        self.assertEqual(len(re.findall(r"if abs\(", code)), 1)
        self.check(compiled, self.op, (3, 3), (70, 70), (3, 4))

    def test_op_itself_wins(self):
        self.register_two(include_fallback=True)
        fallback = -1
        with made_up_times(lambda size, index: 1.0 if index == fallback else 2.0):
            compiled, code, *_ = self.compiled(self.op, 16, 16)
        self.assertNotIn("size_branch", code)
        self.check(compiled, self.op, (3, 3), (70, 70), (3, 4))

    def test_compiled_where_sizes_differ(self):
        self.register_two()
        compiled, code, _, warnings = self.compiled(self.op, 16, 17)
        self.assertIn("it guards on a size", warnings[0].getMessage())
        self.assertNotIn("size_branch", code)
        self.check(compiled, self.op, (3, 3), (70, 70), (3, 4))

    def test_who_does_not_work_with_equal_sizes_either(self):
        def bad(x, y):
            return x * y if x.shape[0] // 8 % 2 == 0 else x + y

        self.register_two(bad, bad)
        compiled, code, log, warnings = self.compiled(self.op, 16, 16)
        self.assertIn("it guards on a size", warnings[0].getMessage())
        self.assertNotIn("implementations need", log)
        self.assertNotIn("size_branch", code)
        self.check(compiled, self.op, (3, 3), (70, 70), (3, 4))

    def test_those_that_work_with_equal_sizes_beside_one_that_does_not(self):
        def bad(x, y):
            return x * y if x.shape[0] // 8 % 2 == 0 else x + y

        self.register_two(bad, lambda x, y: y * x)
        compiled, code, log, warnings = self.compiled(self.op, 16, 16)
        self.assertEqual(len(warnings), 1)
        self.assertIn("it guards on a size", warnings[0].getMessage())
        self.assertEqual(log.count("implementations need"), 1)
        self.assertEqual(code.count("if abs("), 1, msg=code)
        self.check(compiled, self.op, (3, 3), (70, 70), (70, 71))

    def test_those_that_do_not_need_equal_sizes_beside_one_that_does_not_work(self):
        def bad(x, y):
            return x * y if x.shape[0] // 8 % 2 == 0 else x + y

        self.register_two(bad, lambda x, y: -x)
        compiled, code, log, warnings = self.compiled(self.op, 16, 16)
        self.assertEqual(len(warnings), 1)
        self.assertNotIn("implementations need", log)
        self.assertNotIn("abs(", code)
        self.assertEqual(compiled(*self.inputs(70, 71)).shape, (70, 8))

    def model_of_three(self, name, kernel, fake, impl):
        """An op of three tensors, with one implementation, and a neighbour."""
        op = self.define_op(f"{name}(Tensor x, Tensor y, Tensor z) -> Tensor")
        self._library.impl(name, kernel, "CPU")
        self._library.impl(name, fake, "Meta")
        dims = {"tensor_name": "z", "dim_index": 0, "dim_range": (0, 4096)}
        configs = [CustomOpConfig(impl, **dims)]
        self.register(op, configs, include_fallback=False)

        def model(x, y, z):
            return op(x, y, z) * 2

        return model

    def test_several_sizes(self):
        def kernel(x, y, z):
            return x * y + z if len(x) == len(y) == len(z) else -x

        model = self.model_of_three(
            "three",
            kernel,
            lambda x, y, z: torch.empty_like(x),
            lambda x, y, z: x * y + z,
        )
        compiled, code, _, warnings = self.compiled(model, 16, 16, 16)
        self.assertEqual(warnings, [])
        self.assertEqual(len(re.findall(r"\babs\(", code)), 2)
        self.check(compiled, model, *itertools.product((3, 4), repeat=3))

    @parametrize("tensor", ("x", "offsets"))
    def test_one_more(self, tensor):
        op = self.define_op("stretch(Tensor x, Tensor offsets) -> Tensor")
        called = []

        def kernel(x, offsets):
            called.append((len(x), len(offsets)))
            return -x if len(offsets) != len(x) + 1 else x * offsets.diff(dim=0)

        self._library.impl("stretch", kernel, "CPU")
        self._library.impl("stretch", lambda x, offsets: torch.empty_like(x), "Meta")
        self.op = op
        dims = {"tensor_name": tensor, "dim_index": 0}
        impls = (
            (lambda x, offsets: x * (offsets[1:] - offsets[:-1]), (0, 64)),
            (lambda x, offsets: x * offsets.diff(dim=0), (64, 4096)),
        )
        configs = [CustomOpConfig(f, **dims, dim_range=r) for f, r in impls]
        self.register(op, configs, include_fallback=False)

        def model(x, offsets):
            return op(x.sin(), offsets).relu() + 1

        compiled, code, log, warnings = self.compiled(model, 16, 17)
        self.assertEqual(warnings, [])
        self.assertRegex(log, r"implementations need (s\d+) == s\d+ \+ 1")
        self.assertNotIn("cpp_fused", code[code.index("def call(") :])
        self.check_calls(
            called, 1, compiled, model, (3, 4), (62, 63), (63, 64), (64, 65), (500, 501)
        )
        self.check_calls(
            called, 2, compiled, model, (3, 3), (3, 5), (64, 64), (5000, 5001)
        )

    def test_as_many_as_others_together(self):
        def kernel(x, y, z):
            same = len(x) + len(y) == len(z)
            return torch.cat([x, y]) + z if same else -z

        model = self.model_of_three(
            "add_to",
            kernel,
            lambda x, y, z: torch.empty_like(z),
            lambda x, y, z: torch.cat([x, y]) + z,
        )
        compiled, code, log, warnings = self.compiled(model, 16, 20, 36)
        self.assertEqual(warnings, [])
        self.assertRegex(log, r"need s\d+ == s\d+ \+ s\d+ ")
        self.assertEqual(len(re.findall(r"\babs\(", code)), 1)
        self.check(compiled, model, (3, 4, 7), (3, 4, 8), (300, 50, 350), (3000, 50, 9))

    def register_beside_other(self):
        """Below 64 rows one that needs as many places as rows, and one that does not."""

        def any_sizes(x, y):
            rows = torch.arange(x.shape[0])
            same = x.shape[0] == torch.scalar_tensor(y.shape[0])
            near = y[rows.clamp(max=y.shape[0] - 1)]
            return torch.where(same, x * near, -x)

        self.register(
            self.op,
            [
                CustomOpConfig(f, tensor_name="x", dim_index=0, dim_range=r)
                for f, r in (
                    (lambda x, y: x * y, (0, 64)),
                    (any_sizes, (0, 64)),
                    (any_sizes, (64, 4096)),
                )
            ],
            include_fallback=False,
        )

    @parametrize("cpp_wrapper", (False, True))
    def test_others_where_sizes_differ(self, cpp_wrapper):
        self.register_beside_other()

        def model(x, y):
            z = self.op(x.sin(), y).relu() + 1
            return self.op(z.cumsum(0), y), z

        with made_up_times(lambda size, index: 2.0 if index == 1 else 1.0):
            compiled, code, log, warnings = self.compiled(
                model, 16, 16, cpp_wrapper=cpp_wrapper
            )
        self.assertEqual(warnings, [])
        self.assertIn("where that is not so, the others compete", log)
        self.assertIn("pair_autotuned: where that is not so:", log)
        if not cpp_wrapper:
            # Of the first call three and two, neighbours inside; the second one's alone.
            self.assertEqual(code.count("if abs("), 2, msg=code)
        self.called.clear()
        at = (3, 3), (64, 64), (500, 500), (3, 4), (64, 3), (500, 499)
        self.check(compiled, model, *at)
        self.assertEqual(self.called, [n for n in at for _ in range(2)])  # by model
        self.check_calls(self.called, 4, compiled, model, (5000, 5000), (5000, 3))

    def test_one_that_needs_no_equal_sizes_wins_everywhere(self):
        self.register_beside_other()
        with made_up_times(lambda size, index: 2.0 if index == 0 else 1.0):
            compiled, code, log, _ = self.compiled(self.op, 16, 16)
        self.assertIn("where that is not so, the others compete", log)
        self.assertNotIn("abs(", code)
        self.check(compiled, self.op, (3, 3), (70, 70), (3, 4), (70, 3), (5000, 3))

    def test_without_times(self):
        """The first one, where sizes are equal; elsewhere the op itself."""
        self.register(
            self.op,
            [CustomOpConfig(lambda x, y: x * y)],
            include_fallback=False,
        )
        compiled, code, _, warnings = self.compiled(self.op, 16, 16, deterministic=True)
        self.assertEqual(warnings, [])
        self.assertEqual(code.count("if abs("), 1, msg=code)
        self.check(compiled, self.op, (3, 3), (70, 70), (3, 4))

    @parametrize("in_place", (False, True))
    def test_values_for_places(self, in_place):
        """Tracing ``x[places] = values`` does not ask whether they are as many, eagerly it does."""

        def put(x, values, places):
            n = min(len(values), len(places))
            x[places[:n]] = values[:n]

        def put_out(x, values, places):
            result = x.clone()
            put(result, values, places)
            return result

        def as_many(x, values, places):
            result = x if in_place else x.clone()
            result[places] = values * 2 / 2
            return None if in_place else result

        name, kernel = ("put_", put) if in_place else ("put", put_out)
        written, returned = ("(a!)", "()") if in_place else ("", "Tensor")
        arguments = f"Tensor{written} x, Tensor values, Tensor places"
        op = self.define_op(f"{name}({arguments}) -> {returned}")
        called = []

        def eager(x, values, places):
            called.append(len(values))
            return kernel(x, values, places)

        self._library.impl(name, eager, "CPU")
        fake = (lambda *_: None) if in_place else (lambda x, *_: torch.empty_like(x))
        self._library.impl(name, fake, "Meta")
        dims = {"tensor_name": "values", "dim_index": 0, "dim_range": (0, 4096)}
        configs = [CustomOpConfig(as_many, **dims)]
        register_custom_op_autotuning(op, configs, include_fallback=False)

        def model(x, values, places):
            result = op(x, values, places)
            return values + 1 if in_place else result * 2

        def inputs(n, k):
            values, places = torch.randn(n, 8), torch.arange(k)
            for given in (values, places):
                torch._dynamo.mark_dynamic(given, 0)
            return torch.randn(20, 8), values, places

        compiled = torch.compile(model)
        compiled(*inputs(9, 9))
        for at in ((3, 3), (20, 20), (3, 5), (5, 3), (2, 9)):
            given = inputs(*at)
            wanted = [x.clone() for x in given]
            called.clear()
            result = compiled(*given)
            self.assertEqual(len(called), at[0] != at[1])
            expected = model(*wanted)
            self.assertEqual((result, given[0]), (expected, wanted[0]), msg=f"at {at}")

    def model_of_blocks(self, *sizes, beside=None, asks_from=0):
        """
        An op of blocks of rows, which does something else to rows that are left over, with an
        implementation for each size of blocks below 4096 rows.

        Args:
            beside: one more implementation, for any rows.
            asks_from: from so many rows on implementations need blocks.
        """
        op = self.define_op("blocks(Tensor x) -> Tensor")
        called = []

        def kernel(x):
            called.append(len(x))
            return -x if len(x) % sizes[0] else x * 2

        def implementation(size):
            def blocks(x):
                if x.shape[0] < asks_from:
                    return x + x
                inside = x.view(x.shape[0] // size, size, x.shape[1])
                return (inside + inside).view(x.shape)

            return blocks

        self._library.impl("blocks", kernel, "CPU")
        self._library.impl("blocks", torch.empty_like, "Meta")
        dims = {"tensor_name": "x", "dim_index": 0, "dim_range": (0, 4096)}
        impls = [implementation(size) for size in sizes]
        configs = [CustomOpConfig(f, **dims) for f in (*impls, beside) if f]
        self.register(op, configs, include_fallback=False)

        def model(x):
            return op(x.sin()).relu() + 1

        return model, called

    @parametrize("cpp_wrapper", (False, True))
    @parametrize("compiled_at", (40, 41))
    def test_blocks(self, compiled_at, cpp_wrapper):
        model, called = self.model_of_blocks(8)
        compiled, code, log, warnings = self.compiled(
            model, compiled_at, cpp_wrapper=cpp_wrapper
        )
        self.assertEqual(warnings, [])
        self.assertRegex(log, r"implementations need (s\d+) % 8 == 0 \(x\.shape\[0\]")
        self.assertIn("the op itself runs", log)
        self.assertRegex(code, r"if \(?s\d+L? < 4096L?\)?")
        if not cpp_wrapper:  # neighbours are in the branches
            self.assertNotIn("cpp_fused", code[code.index("def call(") :])
        self.check_calls(called, 1, compiled, model, (8,), (16,), (4088,))
        self.check_calls(called, 2, compiled, model, (2,), (9,), (12,), (4096,))

    def test_blocks_of_several_sizes(self):
        """Each competes wherever its blocks fit."""
        sizes = 4, 8, 6
        model, called = self.model_of_blocks(*sizes)
        with made_up_times(lambda size, index: 1.0 + abs(index - 1)):
            compiled, _, log, warnings = self.compiled(model, 48)
        self.assertEqual(warnings, [])
        found = re.findall(r"implementations need (.*?) \(x\.shape", log)
        self.assertEqual(len(found), len({*found}), msg=log)
        called.clear()
        at = range(2, 50)
        fitting = [n for n in at if n % 4 == 0 or n % 6 == 0]
        for n in fitting:
            self.check(compiled, model, (n,)) if n % 4 == 0 else compiled(
                *self.inputs(n)
            )
        self.assertEqual(called, [n for n in fitting if n % 4 == 0])  # by model
        self.check_calls(
            called, 2, compiled, model, *((n,) for n in at if n not in fitting)
        )

    def test_blocks_with_a_size_that_follows_from_others(self):
        """Of no block there is none, which code asks for first."""

        def inferred(x):
            inside = x.view(x.shape[0] // 8, 8, -1)
            return (inside + inside).view(x.shape)

        model, called = self.model_of_blocks(8, beside=inferred)
        with made_up_times(lambda size, index: 2.0 - index / 8):
            compiled, code, _, warnings = self.compiled(model, 40)
        self.assertEqual(warnings, [])
        self.assertNotIn("cpp_fused", code[code.index("def call(") :])
        self.check_calls(called, 1, compiled, model, (16,), (4088,))

    def test_guards_are_on_sizes_of_the_model(self):
        """Here as on a GPU, where one is on the width of indices."""
        model, called = self.model_of_blocks(8)
        guards = []

        def codegen(graph):
            guard = 8 * graph.sizevars.shape_env.create_symintnode(
                self.blocks_of(graph), hint=None
            )
            guards.append(bool(guard < 2**30))
            return real(graph)

        real = branch_lowering._BranchLowering._update_scheduler
        with mock.patch.object(
            branch_lowering._BranchLowering, "_update_scheduler", codegen
        ):
            compiled, _, _, warnings = self.compiled(model, 40)
        self.assertEqual(warnings, [])
        self.assertIn(True, guards)
        self.check_calls(called, 1, compiled, model, (8,), (16,), (4088,))

    def blocks_of(self, graph):
        """The symbol that the model does not have; else any."""
        return [*graph.own_symbols, *graph.sizevars.shape_env.var_to_range][0]

    def test_who_asks_for_blocks_among_large_sizes(self):
        model, called = self.model_of_blocks(8, asks_from=100)
        compiled, _, log, warnings = self.compiled(model, 120)
        self.assertEqual(warnings, [])
        self.assertIn("is cut at 100", log)
        self.check_calls(called, 1, compiled, model, (8,), (96,), (104,), (4088,))

    def test_who_rounds_up_needs_no_blocks(self):
        def padded(x):
            rows = (x.shape[0] + 7) // 8 * 8
            inside = torch.nn.functional.pad(x, (0, 0, 0, rows - x.shape[0]))
            return (inside.view(-1, 8, x.shape[1]) * 2).view(rows, -1)[: x.shape[0]]

        model, called = self.model_of_blocks(1, beside=padded)
        with made_up_times(lambda size, index: 1.0 if index > 0 else 2.0):
            compiled, _, log, warnings = self.compiled(model, 40)
        self.assertEqual(warnings, [])
        self.assertNotIn("implementations need", log)
        self.check_calls(called, 1, compiled, model, (8,), (9,), (2,), (4000,))

    def test_others_where_blocks_do_not_fit(self):
        def any_rows(x):
            whole = torch.scalar_tensor(x.shape[0]) % 8 == 0
            return torch.where(whole, x * 2, -x)

        model, called = self.model_of_blocks(8, beside=any_rows)
        with made_up_times(lambda size, index: 1.0 + index):
            compiled, _, log, warnings = self.compiled(model, 41)
        self.assertEqual(warnings, [])
        self.assertIn("the others compete", log)
        self.check_calls(
            called, 1, compiled, model, (8,), (80,), (9,), (3000,), (3001,)
        )

    def test_blocks_of_a_size_that_is_not_dispatched_on(self):
        op = self.define_op("groups(Tensor x, Tensor y) -> Tensor")
        called = []

        def kernel(x, y):
            called.append(len(x))
            return x.sum(0) + y if len(x) % 8 == 0 else -y

        def groups(x, y):
            return x.unflatten(0, (-1, 8)).sum(0).sum(0) + y

        self._library.impl("groups", kernel, "CPU")
        self._library.impl("groups", lambda x, y: torch.empty_like(y), "Meta")
        dims = {"tensor_name": "y", "dim_index": 0, "dim_range": (0, 4096)}
        self.register(op, [CustomOpConfig(groups, **dims)], include_fallback=False)

        def model(x, y):
            return op(x.sin(), y) * 2

        compiled, _, _, warnings = self.compiled(model, 40, 5)
        self.assertEqual(warnings, [])
        self.check_calls(called, 1, compiled, model, (16, 5), (24, 300))
        self.check_calls(called, 2, compiled, model, (8, 5), (9, 5), (17, 300))

    def test_equal_sizes_in_blocks(self):
        """Both are needed, and tested."""

        def blocks(x, y):
            x, y = (given.unflatten(0, (-1, 8)) for given in (x, y))
            return (x * y).flatten(0, 1)

        self.register_two(blocks, lambda x, y: y * x)
        compiled, _, _, warnings = self.compiled(self.op, 16, 16)
        self.assertEqual(warnings, [])
        self.called.clear()
        self.check(compiled, self.op, (16, 16), (63, 64), (64, 64), (67, 67), (9, 9))
        self.assertEqual([n for n, _ in self.called], [16, 63, 63, 64, 67, 9, 9])

    def test_equal_calls(self):
        self.register_two()

        def model(x, y):
            z = self.op(x, y)
            return self.op(z.cumsum(0), y)

        compiled, _, log, _ = self.compiled(model, 16, 16)
        self.assertIn("the choice is that of an equal call before", log)
        self.assertEqual(log.count("=== Range-based Autotuning for"), 1)
        self.check(compiled, model, (3, 3), (70, 70), (3, 4))

    def test_written_in_place(self):
        op = self.define_op("pair_(Tensor(a!) x, Tensor y) -> ()")

        def write(x, y):
            x.copy_(self.expected(x, y))

        self._library.impl("pair_", write, "CPU")
        self._library.impl("pair_", lambda x, y: None, "Meta")
        self.op = op
        self.register_two(
            lambda x, y: (x.mul_(y), None)[1], lambda x, y: (x.copy_(y * x), None)[1]
        )

        def model(x, y):
            z = x + 1
            op(x, y)
            return z + x

        compiled, code, _, warnings = self.compiled(model, 16, 16)
        self.assertEqual(warnings, [])
        self.assertIn("abs(", code)
        for at in ((3, 3), (70, 70), (3, 4), (5000, 5000)):
            given = self.inputs(*at)
            wanted = [x.clone() for x in given]
            result, expected = compiled(*given), model(*wanted)
            self.assertEqual((result, given), (expected, wanted), msg=f"at {at}")

    def test_gradients(self):
        def backward(ctx, gradient):
            return self.op(gradient, *ctx.saved_tensors), None

        def setup(ctx, inputs, output):
            ctx.save_for_backward(inputs[1])

        torch.library.register_autograd(
            self.op._name, backward, setup_context=setup, lib=self._library
        )
        self.register_two()

        def model(x, y):
            return (self.op(x.sin(), y) * x).sum()

        compiled = torch.compile(model)
        for at in ((16, 16), (3, 3), (70, 70), (3, 4)):
            x, y = self.inputs(*at)
            x.requires_grad_()
            found, expected = (
                torch.autograd.grad(f(x, y), x) for f in (compiled, model)
            )
            self.assertEqual(found, expected, msg=f"at {at}")

    def test_ahead_of_time(self):
        self.register_two()

        class Model(torch.nn.Module):
            def forward(_, x, y):
                return self.op(x.sin(), y) + 1

        sizes = {"x": {0: torch.export.Dim("n")}, "y": {0: torch.export.Dim("m")}}
        program = torch.export.export(
            Model(), (torch.randn(16, 8), torch.randn(16, 8)), dynamic_shapes=sizes
        )
        loaded = torch._inductor.aoti_load_package(
            torch._inductor.aoti_compile_and_package(program)
        )
        for at in ((3, 3), (70, 70), (3, 4), (5000, 5000)):
            x, y = (torch.randn(n, 8) for n in at)
            self.assertEqual(loaded(x, y), Model()(x, y), msg=f"at {at}")


if __name__ == "__main__":
    run_tests()
