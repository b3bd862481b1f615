# Owner(s): ["module: inductor"]
"""What an implementation is called with, given what the op was called with."""

import functools

from range_autotune_testing import OpTestCase
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.range_autotune.registering.signatures import (
    arguments_by_name,
    bind,
    check_callable_for,
    check_params,
    default_of,
    implementation_name,
)


# Strings stand for tensors: binding looks at names, never into a tensor.
TENSORS = {"x": "X", "w": "W"}


@torch.library.custom_op("range_autotune_signatures::scaled_mm", mutates_args=())
def scaled_mm(a: torch.Tensor, b: torch.Tensor, *, split: int = 1) -> torch.Tensor:
    return a @ b


class Scaler:
    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x, w, scale=1.0):
        return self.factor, x, w, scale

    def method(self, first, second):
        return self.factor, first, second

    @classmethod
    def class_method(cls, x, w, scale):
        return x, w, scale

    @staticmethod
    def static_method(second, x):
        return second, x


class Module(torch.nn.Module):
    def forward(self, w, x):
        return x, w


class SignatureTestCase(OpTestCase):
    def setUp(self):
        super().setUp()
        self.op = self.define_op(
            "f(Tensor x, Tensor w, float scale=1.0, int[] pads=[1, 2], *, int? n=None)"
            " -> Tensor"
        )

    def bind(self, impl, params=None, **arguments):
        """``args`` and ``kwargs`` for an implementation of ``self.op``."""
        schema = self.op._schema.arguments
        given = {**TENSORS, **arguments}
        values = {a.name: given.get(a.name, a.default_value) for a in schema}
        tensor_names = frozenset(n for n, v in values.items() if is_tensor(v))
        return bind(self.op, impl, values, tensor_names, params or {})

    def call(self, impl, params=None, **arguments):
        args, kwargs = self.bind(impl, params, **arguments)
        return impl(*args, **kwargs)


def is_tensor(value):
    leaves = value if isinstance(value, list) else [value]
    return all(isinstance(leaf, str) for leaf in leaves)


@instantiate_parametrized_tests
class TestNames(SignatureTestCase):
    def test_by_name_in_any_order(self):
        def impl(w, scale, x):
            return x, w, scale

        self.assertEqual(self.call(impl, scale=2.0), ("X", "W", 2.0))

    def test_renamed_tensors_keep_the_op_s_order(self):
        self.assertEqual(self.call(lambda a, b: (a, b)), ("X", "W"))

    def test_modules_are_called_as_their_forward_is(self):
        for module in (Module(), functools.partial(Module())):
            self.assertEqual(self.call(module), ("X", "W"))
            with self.assertRaisesRegex(TypeError, "does not take the op's .*'scale'"):
                self.bind(module, scale=2.0)
            with self.assertRaisesRegex(ValueError, "Unknown parameter 'block'"):
                check_params(self.op, module, {"block": 64})

    def test_one_renamed_tensor(self):
        self.assertEqual(self.call(lambda w, rows: (w, rows)), ("W", "X"))

    def test_renamed_tensors_leave_room_for_other_arguments(self):
        def impl(a, scale, b, pads):
            return a, scale, b, pads

        self.assertEqual(self.call(impl), ("X", 1.0, "W", [1, 2]))

    def test_a_renamed_scalar_is_not_guessed(self):
        def impl(x, w, factor=1.0):
            return factor

        self.assertEqual(self.call(impl), 1.0)
        with self.assertRaisesRegex(TypeError, "does not take the op's .*'scale'"):
            self.bind(impl, scale=2.0)

    def test_a_tensor_does_not_take_the_place_of_a_plain_default(self):
        self.assert_raises_inline(
            TypeError,
            lambda: self.bind(lambda x, chunk=4: x),
            """implementation '<lambda>' of range_autotune_test.f.default does not take the op's parameter 'w', which has no default""",
        )

    def test_a_missing_optional_tensor_keeps_its_place(self):
        self.op = self.define_op(
            "g(Tensor x, Tensor? b=None, Tensor? w=None) -> Tensor"
        )

        def impl(rows, bias=None, weight=None):
            return rows, bias, weight

        self.assertEqual(self.call(impl), ("X", None, "W"))
        self.assertEqual(self.call(impl, b="B", w=None), ("X", "B", None))

    def test_a_list_of_tensors_is_a_tensor(self):
        self.op = self.define_op("g(Tensor[] w, Tensor x, int n=1) -> Tensor")
        result = self.call(lambda parts, x: (parts, x), w=["A", "B"])
        self.assertEqual(result, (["A", "B"], "X"))


@instantiate_parametrized_tests
class TestLeftOut(SignatureTestCase):
    @parametrize(
        "at_default",
        [{}, {"scale": 1.0}, {"scale": 1}, {"pads": [1, 2]}, {"n": None}],
    )
    def test_at_its_default(self, at_default):
        args, kwargs = self.bind(lambda x, w: None, **at_default)
        self.assertEqual((args, kwargs), (["X", "W"], {}))

    @parametrize(
        "name,value",
        [("scale", 2.0), ("scale", None), ("pads", [1]), ("n", 0)],
    )
    def test_not_at_its_default(self, name, value):
        with self.assertRaises(TypeError) as caught:
            self.bind(lambda x, w: None, **{name: value})
        self.assertEqual(
            str(caught.exception),
            "implementation '<lambda>' of range_autotune_test.f.default does not take "
            f"the op's parameter '{name}', which is not at its default here",
        )

    def test_a_value_that_cannot_be_compared_is_not_at_its_default(self):
        with self.assertRaisesRegex(TypeError, "parameter 'pads'"):
            self.bind(lambda x, w: None, pads=torch.tensor([1, 2]))

    def test_a_tensor(self):
        with self.assertRaisesRegex(TypeError, "parameter 'w'"):
            self.bind(lambda x: None)


@instantiate_parametrized_tests
class TestKindsOfValues(OpTestCase):
    def test_what_schemas_and_graphs_have_as_numbers(self):
        op = self.define_op(
            "f(Tensor x, ScalarType dtype=bfloat16, *, Layout layout=strided,"
            " MemoryFormat like=contiguous_format, ScalarType? other=None, int n=1)"
            " -> Tensor"
        )
        expected = {
            "dtype": torch.bfloat16,
            "layout": torch.strided,
            "like": torch.contiguous_format,
            "other": None,
            "n": 1,
        }
        _, *arguments = op._schema.arguments
        self.assertEqual({a.name: default_of(a) for a in arguments}, expected)
        filled_in = {"layout": 4, "like": 2, "other": 6}
        self.assertEqual(
            arguments_by_name(op, ("X", 15), filled_in),
            {
                "x": "X",
                "dtype": torch.bfloat16,
                "layout": torch.sparse_csc,
                "like": torch.channels_last,
                "other": torch.float32,
            },
        )
        given = {"other": torch.half}
        self.assertEqual(arguments_by_name(op, ("X",), given), {"x": "X", **given})


class TestKindsOfParameters(SignatureTestCase):
    def test_positional_only(self):
        def impl(a, b, scale, /):
            return a, b, scale

        self.assertEqual(self.bind(impl, scale=2.0), (["X", "W", 2.0], {}))

    def test_positional_only_behind_a_default(self):
        def impl(x, chunk=4, w=None, /):
            return x, chunk, w

        self.assertEqual(self.call(impl), ("X", 4, "W"))

    def test_keyword_only(self):
        def impl(x, *, w, scale):
            return x, w, scale

        self.assertEqual(self.bind(impl), (["X"], {"w": "W", "scale": 1.0}))

    def test_keyword_only_tensors_are_not_guessed(self):
        def impl(x, *, weight=None):
            return x, weight

        with self.assertRaisesRegex(TypeError, "parameter 'w'"):
            self.bind(impl)

    def test_args_take_the_tensors_that_no_name_takes(self):
        self.assertEqual(self.bind(lambda *args: args), (["X", "W"], {}))
        self.assertEqual(self.bind(lambda x, *rest: rest), (["X", "W"], {}))
        self.assertEqual(self.call(lambda w, *rest: (w, rest)), ("W", ("X",)))

    def test_args_behind_a_default(self):
        result = self.call(lambda x, chunk=4, *rest: (x, chunk, rest))
        self.assertEqual(result, ("X", 4, ("W",)))

    def test_args_do_not_take_scalars(self):
        with self.assertRaisesRegex(TypeError, "parameter 'scale'"):
            self.bind(lambda *args: args, scale=2.0)

    def test_args_do_not_take_nones(self):
        self.op = self.define_op(
            "g(Tensor x, Tensor? b=None, Tensor? w=None) -> Tensor"
        )
        self.assertEqual(self.bind(lambda *args: args), (["X", "W"], {}))

    def test_args_named_as_the_op_s_tensor(self):
        self.assertEqual(self.bind(lambda w, *x: x), (["W", "X"], {}))

    def test_kwargs_take_all_that_is_left(self):
        def impl(x, **kwargs):
            return kwargs

        rest = {"w": "W", "scale": 1.0, "pads": [1, 2], "n": 3, "chunk": 8}
        self.assertEqual(self.bind(impl, {"chunk": 8}, n=3), (["X"], rest))

    def test_args_and_kwargs(self):
        args, kwargs = self.bind(lambda *args, **kwargs: None)
        self.assertEqual(args, ["X", "W"])
        self.assertEqual(kwargs, {"scale": 1.0, "pads": [1, 2], "n": None})


@instantiate_parametrized_tests
class TestKindsOfCallables(SignatureTestCase):
    def test_partial(self):
        def impl(chunk, x, w, scale=0.0, *, split):
            return chunk, x, w, scale, split

        by_position = functools.partial(impl, 8, split=2)
        self.assertEqual(self.call(by_position), (8, "X", "W", 1.0, 2))
        by_name = functools.partial(impl, chunk=8, split=2)
        self.assertEqual(self.call(by_name), (8, "X", "W", 1.0, 2))

    def test_partial_of_partial_is_named_after_the_function(self):
        def impl(x, w, split, chunk):
            return x

        nested = functools.partial(functools.partial(impl, split=2), chunk=8)
        self.assertEqual(implementation_name(nested), "impl")
        self.assertEqual(self.call(nested), "X")

    def test_callable_object(self):
        self.assertEqual(self.call(Scaler(3), scale=2.0), (3, "X", "W", 2.0))

    @parametrize(
        "impl,expected",
        [
            (Scaler(3).method, (3, "X", "W")),
            (Scaler.class_method, ("X", "W", 1.0)),
            (Scaler.static_method, ("W", "X")),
        ],
        name_fn=lambda impl, expected: impl.__name__,
    )
    def test_method(self, impl, expected):
        self.assertEqual(self.call(impl), expected)

    def test_decorated_function(self):
        def impl(x, w):
            return x, w

        @functools.wraps(impl)
        def wrapper(*args, **kwargs):
            return impl(*args, **kwargs)

        self.assertEqual(self.call(wrapper), ("X", "W"))

    def test_builtin_takes_tensors_by_position_and_the_rest_by_name(self):
        self.assertEqual(
            self.bind(torch.add, {"alpha": 2}, scale=3.0),
            (["X", "W"], {"scale": 3.0, "pads": [1, 2], "alpha": 2}),
        )

    @parametrize(
        "impl",
        [torch.ops.aten.mm.default, scaled_mm],
        name_fn=lambda impl: implementation_name(impl).replace(".", "_"),
    )
    def test_an_op_takes_what_its_schema_says(self, impl):
        args, kwargs = self.bind(impl)
        self.assertEqual((args, kwargs), (["X", "W"], {}))
        with self.assertRaisesRegex(TypeError, "parameter 'scale'"):
            self.bind(impl, scale=2.0)

    @parametrize(
        "impl,name",
        [
            (Scaler, "Scaler"),
            (Scaler(3), "Scaler"),
            (Scaler(3).method, "method"),
            (functools.partial(Scaler(3), scale=1.0), "Scaler"),
            (lambda x: x, "<lambda>"),
            (torch.mm, "mm"),
            (torch.ops.aten.mm.default, "mm.default"),
            (scaled_mm, "scaled_mm"),
        ],
        name_fn=lambda impl, name: f"{name}_{type(impl).__name__}",
    )
    def test_name(self, impl, name):
        self.assertEqual(implementation_name(impl), name)


@instantiate_parametrized_tests
class TestTuningParameters(SignatureTestCase):
    def test_go_by_name(self):
        def impl(x, w, chunk, *, split=1):
            return x, w, chunk, split

        result = self.call(impl, {"split": 4, "chunk": 8})
        self.assertEqual(result, ("X", "W", 8, 4))

    def test_win_over_the_op_s_arguments(self):
        def impl(x, w, scale):
            return scale

        self.assertEqual(self.call(impl, {"scale": 3.0}, scale=2.0), 3.0)

    def test_do_not_stand_in_for_the_op_s_arguments(self):
        with self.assertRaisesRegex(TypeError, "parameter 'scale'"):
            self.bind(lambda x, w, chunk: None, {"chunk": 8}, scale=2.0)

    def test_unknown(self):
        def impl(x, w, *args, chunk=8):
            return x

        self.assert_raises_inline(
            ValueError,
            lambda: check_params(self.op, impl, {"chunk": 1, "chunks": 2}),
            """Unknown parameter 'chunks' in a config for range_autotune_test.f.default: implementation 'impl' of range_autotune_test.f.default has no such parameter. Its parameters: ['x', 'w', 'chunk']""",
        )

    def test_unknown_to_the_op_itself(self):
        check_params(self.op, None, {"scale": 2.0})
        self.assert_raises_inline(
            ValueError,
            lambda: check_params(self.op, None, {"chunk": 8}),
            """Unknown parameter 'chunk' in a config for range_autotune_test.f.default: op range_autotune_test.f.default has no such parameter. Its parameters: ['x', 'w', 'scale', 'pads', 'n']""",
        )

    def test_unknown_to_another_op(self):
        check_params(self.op, scaled_mm, {"split": 2})
        with self.assertRaisesRegex(ValueError, "Unknown parameter 'chunk'"):
            check_params(self.op, scaled_mm, {"chunk": 2})

    @parametrize(
        "impl",
        [lambda x, w, **kwargs: x, torch.add],
        name_fn=lambda impl: implementation_name(impl).strip("<>"),
    )
    def test_may_be_anything_where_the_parameters_are_open(self, impl):
        check_params(self.op, impl, {"chunk": 8})


class TestRegistration(SignatureTestCase):
    """What can be told without a call."""

    def check(self, impl, **params):
        check_callable_for(self.op, impl, params)

    def test_a_parameter_of_the_op_that_has_no_place(self):
        self.assert_raises_inline(
            TypeError,
            lambda: self.check(lambda x: x),
            """implementation '<lambda>' of range_autotune_test.f.default does not take the op's parameter 'w', which has no default""",
        )
        self.op = self.define_op("g(Tensor x, int k, Tensor? w) -> Tensor")
        with self.assertRaisesRegex(TypeError, "parameter 'k', which has no default"):
            self.check(lambda x, y: x)
        with self.assertRaisesRegex(TypeError, "parameter 'w', which has no default"):
            self.check(lambda x, k: x)
        self.check(lambda x, k, y: x)
        self.check(lambda *args, k: args)

    def test_a_parameter_of_an_implementation_that_nothing_fills(self):
        def impl(x, w, block, stages):
            return x

        self.assert_raises_inline(
            TypeError,
            lambda: self.check(impl, block=64),
            """implementation 'impl' of range_autotune_test.f.default cannot be called with the op's parameters ['x', 'w', 'scale', 'pads', 'n'] and those of its config ['block']: missing a required argument: 'stages'""",
        )
        self.check(impl, block=64, stages=2)
        self.check(functools.partial(impl, block=64, stages=2))

    def test_what_a_call_may_bring_or_not(self):
        self.check(scaled_mm)
        self.op = self.define_op(
            "g(Tensor x, Tensor?[] ts, Tensor? b=None, float s=1.0) -> Tensor"
        )
        self.check(lambda rows, parts: rows)
        self.check(lambda rows, parts, bias, s: rows)
        self.check(lambda rows, *rest: rows)
        self.check(lambda x, ts, **rest: x)
        self.check(Scaler(1).method)
        self.check(torch.add)


if __name__ == "__main__":
    run_tests()
