# Owner(s): ["module: inductor"]
"""Benchmark inputs that agree with each other, for one size."""

import math

import sympy
from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import EXPRESSIONS, OpTestCase, S1, SiteTestCase
from torch._inductor.test_case import run_tests
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._sympy.functions import FloorDiv

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.inputs import check_memory, make_inputs
from torch._inductor.range_autotune.sizes.size_points import concrete, SizePoint


EXAMPLES = settings(max_examples=100, deadline=None, derandomize=True)


class InputsTestCase(SiteTestCase):
    def inputs(self, s0, input_gen_fns=None, **arguments):
        """Concrete arguments where the symbol s0 has a value."""
        point = SizePoint(None, {self.s0: s0, self.s1: S1})
        return make_inputs(self.site(**arguments), point, input_gen_fns or {})


DTYPES = [
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.complex64,
]
INTEGER_DTYPES = [torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool]


@instantiate_parametrized_tests
class TestInputs(InputsTestCase):
    def assert_like(self, made, size, stride):
        self.assertEqual(tuple(made.shape), tuple(size))
        self.assertEqual(made.stride(), tuple(stride))

    def test_all_sizes_follow_the_symbol(self):
        s0, s1 = self.s0, self.s1
        made = self.inputs(
            40,
            x=self.tensor([2, s0, 8]),
            y=self.tensor([2, s0, 8]),
            parts=[self.tensor([2 * s0, 8]), self.tensor([s0 + 5])],
            halves=self.tensor([FloorDiv(s0, 2), s0 * s1]),
            n=s0,
            m=3 * s0 - 1,
        )
        shapes = [tuple(x.shape) if isinstance(x, torch.Tensor) else x for x in made]
        self.assertExpectedInline(
            "\n".join(map(str, shapes)),
            """\
(2, 40, 8)
(2, 40, 8)
(80, 8)
(45,)
(20, 240)
40
119""",
        )
        self.assertEqual([type(n) for n in made[-2:]], [int, int])

    def test_layouts(self):
        s0 = self.s0
        layouts = {
            "transposed": ([8, s0], [1, 8]),
            "transposed_symbolic": ([s0, 8], [1, s0]),
            "padded": ([s0, 8], [16, 1]),
            "expanded": ([s0, 8], [0, 1]),
            "expanded_symbolic": ([8, s0], [0, 1]),
            "every_second": ([s0, 4], [8, 2]),
            "overlapping": ([s0, 4], [1, 1]),
            "channels_last": ([2, 3, s0, 5], [15 * s0, 1, 15, 3]),
            "no_dimension": ([], []),
        }
        tensors = {name: self.tensor(*layout) for name, layout in layouts.items()}
        made = self.inputs(40, **tensors)
        for (size, stride), tensor in zip(layouts.values(), made, strict=True):
            values = {s0: 40}
            self.assert_like(
                tensor,
                [concrete(s, values) for s in size],
                [concrete(s, values) for s in stride],
            )

    @parametrize("dtype", DTYPES)
    def test_floating_tensors_are_random(self, dtype):
        (made,) = self.inputs(64, x=self.tensor([self.s0, 8], dtype=dtype))
        self.assertIs(made.dtype, dtype)
        values = torch.view_as_real(made) if dtype.is_complex else made.float()
        self.assertTrue(values.isfinite().all())
        self.assertGreater(len(values.flatten().unique()), 10)

    @parametrize("dtype", INTEGER_DTYPES)
    def test_other_tensors_are_zero(self, dtype):
        (made,) = self.inputs(64, x=self.tensor([self.s0, 8], [1, self.s0], dtype))
        self.assertIs(made.dtype, dtype)
        self.assert_like(made, (64, 8), (1, 64))
        self.assertEqual(made.count_nonzero(), 0)

    def test_empty_tensors(self):
        tensors = [
            self.tensor([0, self.s0]),
            self.tensor([self.s0, 0, 3], [3, 3, 1]),
            self.tensor([self.s0 - 40], dtype=torch.int64),
        ]
        made = self.inputs(40, tensors=tensors)
        self.assertEqual([x.numel() for x in made], [0, 0, 0])
        self.assert_like(made[0], (0, 40), (40, 1))
        self.assert_like(made[1], (40, 0, 3), (3, 3, 1))

    def test_are_real_whatever_the_modes_around(self):
        with FakeTensorMode(), torch.enable_grad():
            (made,) = self.inputs(40, x=self.tensor([self.s0]))
        self.assertIs(type(made), torch.Tensor)
        self.assertFalse(made.requires_grad)
        self.assertEqual(len(made.tolist()), 40)

    def test_more_memory_than_there_is(self):
        with self.assertRaisesRegex(
            MemoryError, f"inputs and outputs take {2**62} bytes on cpu"
        ):
            self.inputs(2**60, x=self.tensor([self.s0]))
        (made,) = self.inputs(2**60, x=self.tensor([self.s0], [0]))
        self.assertEqual(made.shape, (2**60,))

    def test_outputs_take_memory_too(self):
        site = self.site(x=self.tensor([self.s0]))
        size = V.graph.sizevars.shape_env.create_symintnode(self.s0, hint=100)
        with self.fake_mode:
            square = torch.empty(size, size)
        values = {self.s0: 2**28, self.s1: S1}
        check_memory(site, values)
        with self.assertRaisesRegex(MemoryError, f"take {2**58 + 2**30} bytes on cpu"):
            check_memory(site, values, [square])

    @EXAMPLES
    @given(st.data())
    def test_any_layout(self, data):
        make = st.sampled_from(list(EXPRESSIONS.values()))
        size = [f(self.s0, self.s1) for f in data.draw(st.lists(make, max_size=3))]
        size = data.draw(
            st.permutations([*size, sympy.Integer(data.draw(st.integers(0, 3)))])
        )
        stride, step = [sympy.Integer(0)] * len(size), sympy.Integer(1)
        for dim in data.draw(st.permutations(range(len(size)))):
            expanded = data.draw(st.integers(0, 3)) == 0
            stride[dim] = sympy.Integer(0) if expanded else step
            step = step * size[dim] + data.draw(st.integers(0, 2)) * (not expanded)
        dtype = data.draw(st.sampled_from(DTYPES + INTEGER_DTYPES))
        s0 = data.draw(st.integers(2, 9))
        (made,) = self.inputs(s0, x=self.tensor(size, stride, dtype))
        values = {self.s0: s0, self.s1: S1}
        self.assertIs(made.dtype, dtype)
        self.assert_like(
            made,
            [concrete(s, values) for s in size],
            [concrete(s, values) for s in stride],
        )


@instantiate_parametrized_tests
class TestGenerators(InputsTestCase):
    def test_gets_zeros_of_the_right_kind(self):
        seen = []

        def generate(x):
            seen.append((x.shape, x.stride(), x.dtype, x.device, x.count_nonzero()))
            return torch.full_like(x, 7)

        node = self.tensor([self.s0, 8], [1, self.s0], torch.int32)
        made = self.inputs(40, {"x": generate}, y=self.tensor([self.s0]), x=node)
        self.assertEqual(
            seen, [((40, 8), (1, 40), torch.int32, torch.device("cpu"), 0)]
        )
        self.assertEqual(made[1].unique().tolist(), [7])
        self.assertGreater(len(made[0].unique()), 10)

    def test_is_asked_for_each_tensor_of_a_list(self):
        made = self.inputs(
            40,
            {"parts": lambda x: x + x.shape[0]},
            parts=[self.tensor([self.s0]), self.tensor([2 * self.s0])],
        )
        self.assertEqual([x.unique().tolist() for x in made], [[40.0], [80.0]])

    def test_other_strides_are_brought_to_those_of_the_input(self):
        def generate(x):
            return torch.arange(x.numel(), dtype=x.dtype).reshape(x.shape)

        (made,) = self.inputs(
            4, {"x": generate}, x=self.tensor([self.s0, 3], [1, self.s0])
        )
        self.assertEqual(made.stride(), (1, 4))
        self.assertEqual(made, torch.arange(12.0).reshape(4, 3))

    def test_other_strides_than_those_of_an_expanded_input(self):
        (made,) = self.inputs(
            4, {"x": torch.ones_like}, x=self.tensor([self.s0, 3], [0, 1])
        )
        self.assertEqual(made, torch.ones(4, 3))

    @parametrize(
        "generate,expected",
        [
            (lambda x: x.to("meta"), "one of torch.strided on meta"),
            (lambda x: x.to_sparse(), "one of torch.sparse_coo on cpu"),
            (lambda x: None, "<class 'NoneType'>"),
            (lambda x: 1.0, "<class 'float'>"),
        ],
        name_fn=lambda generate, expected: expected.split()[-1].strip("<>'")[:5],
    )
    def test_must_return_a_tensor(self, generate, expected):
        with self.assertRaises(ValueError) as caught:
            self.inputs(40, {"x": generate}, x=self.tensor([self.s0, 8]))
        self.assertEqual(
            str(caught.exception),
            "input_gen_fns['x'] of aten.mul.Tensor must return a dense tensor of "
            f"shape [40, 8], got {expected}",
        )

    def test_another_dtype(self):
        x = self.tensor([self.s0, 8], dtype=torch.bfloat16)
        (made,) = self.inputs(40, {"x": lambda x: torch.ones(x.shape)}, x=x)
        self.assertEqual(made, torch.ones(40, 8, dtype=torch.bfloat16))

    def test_one_shape_whatever_is_asked_for(self):
        def made_at(size):
            fixed = {"x": lambda x: torch.full((4, 8), 3.0)}
            (made,) = self.inputs(size, fixed, x=self.tensor([self.s0, 8]))
            return made

        with self.assertLogs("torch._inductor.kernel.custom_op", "WARNING") as logs:
            self.assertEqual(made_at(4), torch.full((4, 8), 3.0))
            self.assertEqual({made_at(size).shape[0] for size in (40, 50)}, {40, 50})
        (record,) = logs.records
        self.assertIn("returns a tensor of shape (4, 8) for", record.getMessage())


class TestCompiled(OpTestCase):
    @config.patch({"test_configs.force_custom_op_decomposition": True})
    def test_generators_see_every_representative_size(self):
        op = self.define_op("mm(Tensor a, Tensor b) -> Tensor")
        self._library.impl("mm", lambda a, b: a @ b, "CPU")
        self._library._register_fake(
            "mm", lambda a, b: a.new_empty(a.shape[0], b.shape[1])
        )
        seen = []

        def generate(x):
            seen.append((tuple(x.shape), x.stride()))
            return x

        self.register(
            op,
            [CustomOpRangeConfig("a", 0, [(0, 64), (64, math.inf)], [torch.mm])],
            input_gen_fns={"a": generate, "b": generate},
            representative_sizes=[32, 101, 1000],
        )

        def model(x, weight):
            return op(x.view(-1, 4), weight.t())

        x, weight = torch.randn(20, 8), torch.randn(5, 4)
        torch._dynamo.mark_dynamic(x, 0)
        self.assertEqual(torch.compile(model)(x, weight), model(x, weight))
        # s0 rows of 8 are 2 * s0 rows of 4: 102 is what is nearest to 101. Where nobody is
        # timed comes last: 34, which is no multiple of 32, and ends of ranges.
        self.assertExpectedInline(
            "\n".join(map(str, seen)),
            """\
((32, 4), (4, 1))
((4, 5), (1, 4))
((102, 4), (4, 1))
((4, 5), (1, 4))
((1000, 4), (4, 1))
((4, 5), (1, 4))
((34, 4), (4, 1))
((4, 5), (1, 4))
((4, 4), (4, 1))
((4, 5), (1, 4))
((62, 4), (4, 1))
((4, 5), (1, 4))
((64, 4), (4, 1))
((4, 5), (1, 4))""",
        )


if __name__ == "__main__":
    run_tests()
