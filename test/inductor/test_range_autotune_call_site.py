# Owner(s): ["module: inductor"]
"""What a call of an op was given, alone or in a region."""

import sympy
from range_autotune_testing import CallTestCase, SiteTestCase
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import ir
from torch._inductor.range_autotune.call_site import CallSite, Inner, Slot
from torch._inductor.range_autotune.candidates.lone_sites import without_neighbours
from torch._inductor.range_autotune.errors import NotTunable
from torch._inductor.range_autotune.registration import DispatchDim


aten = torch.ops.aten


@instantiate_parametrized_tests
class TestArguments(CallTestCase):
    def arguments(self, schema, *args, **kwargs):
        return CallSite.from_call(self.define_op(schema), args, kwargs).arguments

    def test_tensors_lists_and_none(self):
        arguments = self.arguments(
            "f(Tensor x, Tensor[] ys, Tensor? z=None) -> Tensor",
            self.x,
            [self.x, self.tensor([3])],
        )
        self.assertEqual(arguments, {"x": Slot(0), "ys": [Slot(1), Slot(2)], "z": None})

    def test_keywords_and_defaults_are_in_the_ops_order(self):
        arguments = self.arguments(
            "f(Tensor x, float a=1.5, *, int b=3, str mode='sum') -> Tensor",
            self.x,
            mode="max",
        )
        self.assertEqual(
            list(arguments.items()),
            [("x", Slot(0)), ("a", 1.5), ("b", 3), ("mode", "max")],
        )

    def test_tensor_by_keyword(self):
        site = CallSite.from_call(
            self.define_op("f(Tensor x, Tensor? y=None, Tensor? z=None) -> Tensor"),
            (self.x,),
            {"z": self.tensor([3])},
        )
        self.assertEqual(site.arguments, {"x": Slot(0), "y": None, "z": Slot(1)})
        self.assertEqual([list(i.get_size()) for i in site.inputs], [[self.s0, 4], [3]])
        self.assertEqual(site.tensor_names, {"x", "z"})
        self.assertEqual([site.parameter_of(i) for i in range(3)], ["x", "z", None])

    def test_symbolic_integers_are_inputs(self):
        schema = "f(Tensor x, SymInt k, SymInt[] ns) -> Tensor"
        op = self.define_op(schema)
        site = CallSite.from_call(op, (self.x, 2 * self.s0, [4, self.s0 + 1]), {})
        self.assertEqual(
            site.arguments, {"x": Slot(0), "k": Slot(1), "ns": [4, Slot(2)]}
        )
        self.assertEqual(site.inputs[1:], (2 * self.s0, self.s0 + 1))
        self.assertEqual(site.tensor_names, {"x"})
        fakes = site.fake_inputs()
        self.assertEqual([f.node.expr for f in fakes[1:]], [2 * self.s0, self.s0 + 1])

    @parametrize(
        "given,plain",
        [
            (sympy.Integer(4), 4),
            (sympy.Float(0.5), 0.5),
            (sympy.true, True),
            (None, None),
            (torch.float16, torch.float16),
        ],
    )
    def test_constants_are_plain_values(self, given, plain):
        arguments = self.arguments(
            "f(Tensor x, ScalarType? k=None) -> Tensor", self.x, given
        )
        self.assertEqual(arguments["k"], plain)
        self.assertIs(type(arguments["k"]), type(plain))

    def test_size_as_a_buffer(self):
        size = ir.ShapeAsConstantBuffer(expr=self.s0 + 1)
        op = self.define_op("f(Tensor x, SymInt k) -> Tensor")
        site = CallSite.from_call(op, (self.x, size), {})
        self.assertEqual(site.inputs[1], self.s0 + 1)

    def test_no_tensor(self):
        self.assert_raises_inline(
            NotTunable,
            lambda: self.arguments("f(Tensor[] xs) -> Tensor", []),
            """it has no tensor argument""",
        )

    def test_symbolic_float(self):
        scale = sympy.Symbol("scale", real=True)
        self.assert_raises_inline(
            NotTunable,
            lambda: self.arguments("f(Tensor x, float k) -> Tensor", self.x, scale),
            """symbolic argument scale is not an integer""",
        )

    def test_filled(self):
        op = self.define_op("f(Tensor x, Tensor[] ys, SymInt k, int n=3) -> Tensor")
        site = CallSite.from_call(op, (self.x, [self.x, self.x], self.s0), {})
        filled = {"x": "a", "ys": ["b", "c"], "k": 7, "n": 3}
        self.assertEqual(site.filled(["a", "b", "c", 7], {}), filled)
        self.assertEqual(site.run(["a", "b", "c", 7], lambda values: values), filled)


class TestRegion(CallTestCase):
    """sin(x) -> op(sin(x), y) -> abs; both values are outputs."""

    def setUp(self):
        super().setUp()
        self.op = self.define_op("f(Tensor x, Tensor? y=None, *, int k=2) -> Tensor")
        self.fake = self.fake_of(self.x)
        body = torch.fx.Graph()
        x, y, other = (body.placeholder(name) for name in ("x", "y", "other"))
        self.sin = body.call_function(aten.sin.default, (x,))
        self.call = body.call_function(self.op, (self.sin, y), {"k": 3})
        last = body.call_function(aten.add.Tensor, (self.call, other), {"alpha": 2})
        for node in (x, y, other, self.sin, self.call, last):
            node.meta["val"] = self.fake
        body.output([last, self.sin])
        inputs = (self.x, self.tensor([self.s0, 4]), self.tensor([self.s0, 4]))
        self.site = CallSite.from_region(body, [self.call], inputs)

    def fake_of(self, node):
        (fake,) = CallSite(self.op, {"x": Slot(0)}, (node,)).fake_inputs()
        return fake

    def test_arguments(self):
        self.assertEqual(
            self.site.arguments, {"x": Inner(self.sin), "y": Slot(1), "k": 3}
        )
        self.assertEqual(self.site.tensor_names, {"x", "y"})
        self.assertEqual(
            [self.site.parameter_of(i) for i in range(3)], [None, "y", None]
        )

    def test_run(self):
        x, y, other = torch.rand(3, 2, 4)
        seen = []

        def call_op(values):
            seen.append(values)
            return values["x"] * values["k"] + values["y"]

        results = self.site.run([x, y, other], call_op)
        self.assertEqual(results, [x.sin() * 3 + y + 2 * other, x.sin()])
        self.assertEqual(seen, [{"x": x.sin(), "y": y, "k": 3}])

    def test_fake_arguments(self):
        arguments = self.site.fake_arguments()
        self.assertIs(arguments["x"], self.fake)
        self.assertEqual(arguments["y"].shape[0].node.expr, self.s0)

    def test_without_neighbours(self):
        alone = without_neighbours(self.site)
        self.assertEqual(alone.arguments, {"x": Slot(0), "y": Slot(1), "k": 3})
        self.assertIsNone(alone.body)
        for given, made_up in zip(self.site.inputs, alone.inputs, strict=False):
            self.assertEqual(made_up.get_size(), given.get_size())
            self.assertEqual(made_up.get_stride(), given.get_stride())


@instantiate_parametrized_tests
class TestSize(SiteTestCase):
    def size_of(self, index, *size):
        site = self.site(x=self.tensor(size))
        return site.size_of(DispatchDim("x", index))

    def test_a_dimension_may_count_from_the_end(self):
        self.assertEqual(self.size_of(1, 2, 2 * self.s0, 512), 2 * self.s0)
        self.assertEqual(self.size_of(-2, 2, 2 * self.s0, 512), 2 * self.s0)
        self.assertEqual(self.size_of(-3, 2, 2 * self.s0, 512), 2)

    @parametrize("index", [5, 3, -4])
    def test_out_of_range(self, index):
        with self.assertRaises(ValueError) as caught:
            self.size_of(index, 2, 128, 512)
        self.assertEqual(
            str(caught.exception),
            f"Dimension index {index} out of range for tensor 'x' with shape "
            "[2, 128, 512]",
        )

    def test_tensor_that_is_none(self):
        site = CallSite(torch.ops.aten.mul.Tensor, {"x": None}, ())
        with self.assertRaisesRegex(NotTunable, "dispatch tensor 'x' is None"):
            site.size_of(DispatchDim("x", 0))


if __name__ == "__main__":
    run_tests()
