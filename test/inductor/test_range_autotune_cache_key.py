# Owner(s): ["module: inductor"]
"""What is registered is part of the cache keys: all of it, and nothing else."""

import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import types
import typing
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import torch.nn.functional as F
from range_autotune_testing import OpTestCase
from torch._dynamo.utils import counters
from torch._inductor.codecache import BypassFxGraphCache
from torch._inductor.codegen.common import custom_backend_passes
from torch._inductor.decomposition import decompositions
from torch._inductor.fx_passes import post_grad
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests
from torch._subclasses import FakeTensorMode
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpConfig
from torch._inductor.range_autotune.cache_key import fingerprint, registrations_key
from torch._inductor.range_autotune.contents import content_of_values
from torch._inductor.range_autotune.contents.content import Unhashable
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.registration import (
    Candidate,
    Contest,
    DispatchDim,
    RangeTable,
    Registration,
    Row,
    Split,
    TuningOptions,
)


OP = torch.ops.aten.mul.Tensor
HELPERS = "range_autotune_made_up_helpers"


def impl(x, y):
    return x * y


def other_impl(x, y):
    return y * x


def register(contest, **others):
    return Registration(OP, "name", contest, TuningOptions(), **others)


def key_of(implementation):
    """The fingerprint of a registration with one candidate."""
    return fingerprint(register(Contest((Candidate("impl", implementation),), None)))


# Has imported by now what compiling imports: `written` restores `sys.modules`.
torch.compile(impl)


def written(source, value):
    """``impl`` as a module with this source has it, with VALUE in place."""
    source = textwrap.dedent(source).replace("VALUE", str(value))
    helpers = types.ModuleType(HELPERS)
    vars(helpers).update(
        scale=eval(f"lambda x: x * {value}", {"__name__": HELPERS}),
        unread=value,
        sub=types.ModuleType(f"{HELPERS}.sub"),
    )
    helpers.sub.helpers, helpers.sub.number = helpers, value
    namespace = {"__name__": "made_up", "torch": torch, "helpers": helpers}
    with mock.patch.dict(sys.modules, {HELPERS: helpers}):
        exec(source, namespace)
        return key_of(namespace["impl"])


class TestFields(OpTestCase):
    """Changes each field of a registration: a new field must be added here."""

    def assert_every_field_counts(self, original, changes, wrap):
        names = [field.name for field in dataclasses.fields(original)]
        self.assertEqual(sorted(changes), sorted(names))
        keys = {None: fingerprint(wrap(original))}
        for name, value in changes.items():
            changed = dataclasses.replace(original, **{name: value})
            keys[name] = fingerprint(wrap(changed))
        self.assertEqual(len(set(keys.values())), len(keys), keys)
        self.assertEqual(fingerprint(wrap(dataclasses.replace(original))), keys[None])

    def test_registration(self):
        self.assert_every_field_counts(
            register(None),
            {
                "op": torch.ops.aten.mul.Scalar,
                "name": "other",
                "contest": Contest((), None),
                "options": TuningOptions(min_speedup_threshold=2.0),
                "config_generator": impl,
                "split": Split(DispatchDim("x", 0), (DimRange(0, 8),)),
                "joins": (register(None),),
            },
            lambda registration: registration,
        )

    def test_contest(self):
        candidates = (Candidate("a", impl), Candidate("b", other_impl))
        self.assert_every_field_counts(
            Contest(candidates, None),
            {"candidates": candidates[::-1], "table": RangeTable((), ())},
            register,
        )

    def test_candidate(self):
        self.assert_every_field_counts(
            Candidate("a", impl),
            {
                "name": "b",
                "impl": other_impl,
                "params": {"chunk": 1},
                "config_patches": {"max_autotune": True},
                "parts": (Candidate("c", impl),),
            },
            lambda candidate: register(Contest((candidate,), None)),
        )

    def test_table(self):
        self.assert_every_field_counts(
            RangeTable((DispatchDim("x", 0),), (Row((DimRange(0, 8),), (0,)),)),
            {
                "dims": (DispatchDim("x", 1),),
                "rows": (Row((DimRange(0, 9),), (0,)),),
            },
            lambda table: register(Contest((), table)),
        )

    def test_row(self):
        self.assert_every_field_counts(
            Row((DimRange(0, 8),), (0,)),
            {"box": (DimRange(1, 8),), "candidates": (0, 1)},
            lambda row: register(Contest((), RangeTable((), (row,)))),
        )

    def test_dimension(self):
        self.assert_every_field_counts(
            DispatchDim("x", 0),
            {"tensor_name": "y", "dim_index": -1},
            lambda dim: register(Contest((), RangeTable((dim,), ()))),
        )

    def test_options(self):
        self.assert_every_field_counts(
            TuningOptions(),
            {
                "input_gen_fns": {"x": impl},
                "min_speedup_threshold": 1.5,
                "benchmark_with_cudagraphs": True,
                "include_fallback": False,
                "unbounded_size": 4096,
                "representative_sizes": (64,),
                "numerics_check": "warn",
            },
            lambda options: Registration(OP, "name", None, options),
        )


def with_decomposed_op(impl):
    """The source of a module whose ``impl`` calls an op that Inductor decomposes."""
    return f"""
from torch._inductor.decomposition import decompositions
ours = torch.ops.range_autotune_cache_key_decomposed
decompositions[ours.inner.default] = lambda x: x + VALUE
impl = {impl}
"""


def with_inner_op(impl, result="x + VALUE", before=""):
    """The source of a module whose ``impl`` calls a custom op."""
    return f"""
{before}
@torch.library.custom_op("range_autotune_cache_key::inner", mutates_args=())
def inner(x: torch.Tensor) -> torch.Tensor:
    return {result}
ours = torch.ops.range_autotune_cache_key
impl = {impl}
"""


BY_NAMESPACE = "lambda x: torch.ops.range_autotune_cache_key.inner(x)"
COUNTS = {
    "custom_op": with_inner_op("lambda x: inner(x)"),
    "what_a_custom_op_reads": with_inner_op("lambda x: inner(x)", "x + N", "N = VALUE"),
    "custom_op_by_namespace": with_inner_op(BY_NAMESPACE),
    "custom_op_by_kept_namespace": with_inner_op("lambda x: ours.inner(x)"),
    "custom_op_in_a_container": with_inner_op("lambda x, o=[ours]: o[0].inner(x)"),
    "custom_op_in_a_namespace_handed_on": with_inner_op(
        "lambda x: call(ours, x)", before="def call(o, x): return o.inner(x)"
    ),
    "custom_op_in_a_closure_over_all": with_inner_op(
        "(lambda o: lambda x: o.range_autotune_cache_key.inner(x))(torch.ops)"
    ),
    "custom_op_by_a_name_in_a_global": with_inner_op(
        "lambda x: getattr(torch.ops.range_autotune_cache_key, NAME)(x)",
        before="NAME = 'inner'",
    ),
    "custom_op_as_overload": with_inner_op("ours.inner.default"),
    "decomposition_of_an_op": with_decomposed_op("ours.inner.default"),
    "decomposition_of_an_op_by_kept_namespace": with_decomposed_op(
        "lambda x: ours.inner(x)"
    ),
    "decomposition_of_an_op_by_namespace": with_decomposed_op(
        "lambda x: torch.ops.range_autotune_cache_key_decomposed.inner(x)"
    ),
    "decomposition_of_a_custom_op": with_inner_op("lambda x: inner(x)", "x + 1")
    + """
from torch._inductor.decomposition import decompositions
decompositions[inner._opoverload] = lambda x: x + VALUE
""",
    "read_only_view": """
        import types
        N = types.MappingProxyType({"n": VALUE})
        def impl(x): return x + N["n"]
        """,
    "single_dispatch": """
        import functools
        @functools.singledispatch
        def impl(x): return x
        @impl.register
        def _(x: int): return x + VALUE
        """,
    "body": "def impl(x): return x + VALUE",
    "operation": "def impl(x): return [x.sin, x.cos][0]() if VALUE == 1 else x",
    "default": "def impl(x, n=VALUE): return x + n",
    "keyword_default": "def impl(x, *, n=VALUE): return x + n",
    "parameter": "def impl(x, nVALUE=0): return x",
    "lambda": "impl = lambda x: x + VALUE",
    "closure": """
        def make(n):
            def impl(x):
                return x + n
            return impl
        impl = make(VALUE)
        """,
    "nested_function": """
        def impl(x):
            def inner(y):
                return y + VALUE
            return inner(x)
        """,
    "global": """
        N = VALUE
        def impl(x):
            return x + N
        """,
    "global_in_nested_function": """
        N = VALUE
        def impl(x):
            return [y + N for y in x]
        """,
    "type_of_a_number": "N = [1, True][VALUE - 1]\ndef impl(x): return x + N",
    "helper": """
        def helper(x):
            return x + VALUE
        def impl(x):
            return helper(x)
        """,
    "helper_of_helper": """
        def inner(x):
            return x + VALUE
        def helper(x):
            return inner(x)
        def impl(x):
            return helper(x)
        """,
    "environment": """
        import os
        os.environ["CUSTOM_OP_TEST"] = str(VALUE)
        def impl(x):
            return x + int(os.environ["CUSTOM_OP_TEST"])
        """,
    "environment_in_a_helper": """
        import os
        os.environ["CUSTOM_OP_TEST"] = str(VALUE)
        def helper():
            from os import getenv
            return int(getenv("CUSTOM_OP_TEST"))
        def impl(x):
            return x + helper()
        """,
    "environment_by_a_helper_s_argument": """
        import os
        os.environ["CUSTOM_OP_TEST"] = str(VALUE)
        def number(name):
            return int(os.environ.get(name, "0"))
        def impl(x):
            return x + number("CUSTOM_OP_TEST")
        """,
    "environment_by_a_default": """
        import os
        os.environ["CUSTOM_OP_TEST"] = str(VALUE)
        def impl(x, name="CUSTOM_OP_TEST"):
            return x + int(os.getenv(name))
        """,
    "environment_by_attributes_of_a_module": """
        import os
        os.environ["CUSTOM_OP_TEST"] = str(VALUE)
        known = {"CUSTOM_OP_TEST": lambda: int(os.getenv("CUSTOM_OP_TEST"))}
        helpers.__getattr__ = lambda name: known[name]()
        def impl(x):
            return x + helpers.CUSTOM_OP_TEST
        """,
    "module_that_is_handed_on": """
        helpers.number = VALUE
        def read(module):
            return module.number
        def impl(x):
            return x + read(helpers)
        """,
    "module_that_is_handed_on_with_a_name": """
        helpers.number = VALUE
        def read(module, name):
            return getattr(module, name)
        def impl(x):
            return x + read(helpers, "number")
        """,
    "module_that_is_closed_over_and_handed_on": """
        helpers.number = VALUE
        def read(module):
            return module.number
        def made(module):
            return lambda x: x + read(module)
        impl = made(helpers)
        """,
    "attribute_of_a_module_by_attrgetter": """
        import operator
        helpers.number = VALUE
        read = operator.attrgetter("number")
        def impl(x):
            return x + read(helpers)
        """,
    "namespace_of_a_module": """
        helpers.number = VALUE
        def impl(x):
            return x + helpers.__dict__["number"]
        """,
    "global_by_name": """
        number = VALUE
        def impl(x):
            return x + globals()["number"]
        """,
    "metaclass": """
        class Meta(type):
            @property
            def number(cls):
                return VALUE
        class Settings(metaclass=Meta):
            pass
        def impl(x):
            return x + Settings.number
        """,
    "class_without_a_module": """
        namespace = {}
        exec("class Impl:\\n  def __call__(self, x): return x + VALUE", namespace)
        impl = namespace["Impl"]()
        """,
    "strides_of_a_tensor": """
        table = torch.arange(4.0).expand(4, 4)
        if VALUE > 1:
            table = table.contiguous()
        def impl(x):
            return x + table.stride(0)
        """,
    "attribute_of_a_module_by_name": """
        import types
        helpers = types.ModuleType("helpers")
        helpers.scale = VALUE
        def impl(x):
            return x * getattr(helpers, "scale")
        """,
    "recursive_helper": """
        def helper(x):
            return helper(x - 1) if x > 1 else VALUE
        def impl(x):
            return helper(x)
        """,
    "cached_helper": """
        import functools
        @functools.cache
        def helper(x):
            return x + VALUE
        def impl(x):
            return helper(x)
        """,
    "cached_helper_s_attribute": """
        import functools
        @functools.cache
        def helper(x):
            return x + helper.block
        helper.block = VALUE
        def impl(x):
            return helper(x)
        """,
    "decorator_object_s_state": """
        import functools
        class Tuned:
            def __init__(self, function, block):
                functools.update_wrapper(self, function)
                self.function, self.block = function, block
            def __call__(self, x):
                return self.function(x) * self.block
        impl = Tuned(lambda x: x, VALUE)
        """,
    "decorator_object_s_code": """
        import functools
        class Tuned:
            def __init__(self, function):
                functools.update_wrapper(self, function)
            def __call__(self, x):
                return self.__wrapped__(x) * VALUE
        impl = Tuned(lambda x: x)
        """,
    "function_with_the_name_of_torch_s": """
        import functools
        @functools.wraps(torch.nn.functional.silu)
        def impl(x):
            return x + VALUE
        """,
    "function_with_torch_s_name_in_a_decorator_of_torch": """
        import functools
        @torch.no_grad()
        @functools.wraps(torch.nn.functional.silu)
        def impl(x):
            return x + VALUE
        """,
    "function_in_a_decorator_of_torch": """
        @torch.no_grad()
        def impl(x):
            return x + VALUE
        """,
    "function_that_is_compiled": """
        @torch.compile
        def impl(x):
            return x + VALUE
        """,
    "function_that_is_not_compiled": """
        @torch.compiler.disable
        def impl(x):
            return x + VALUE
        """,
    "function_around_one_that_is_not_compiled": """
        import functools
        disabled = torch.compiler.disable(torch.nn.functional.silu)
        @functools.wraps(disabled)
        def impl(x):
            return x + VALUE
        """,
    "function_that_torch_makes": """
        impl = torch.vmap(torch.nn.functional.silu, in_dims=VALUE)
        """,
    "decorated_helper": """
        import functools
        def twice(function):
            @functools.wraps(function)
            def wrapper(x):
                return function(function(x))
            return wrapper
        @twice
        def impl(x):
            return x + VALUE
        """,
    "helper_in_a_module": "def impl(x): return helpers.scale(x)",
    "number_in_a_module_in_a_module": "def impl(x): return x * helpers.sub.number",
    "helper_imported_when_it_runs": f"""
        def impl(x):
            from {HELPERS} import scale
            return scale(x)
        """,
    "module_imported_when_it_runs": f"""
        def impl(x):
            import {HELPERS} as lazily
            return lazily.scale(x)
        """,
    "module_by_a_name_in_a_global": f"""
        import sys
        __name__ = "{HELPERS}"
        def impl(x):
            return sys.modules[__name__].scale(x)
        """,
    "module_in_a_closure": """
        def make(module):
            return lambda x: module.scale(x)
        impl = make(helpers)
        """,
    "module_as_a_default": "def impl(x, given=helpers): return given.scale(x)",
    "module_in_a_partial": """
        import functools
        impl = functools.partial(lambda x, given: x * given.sub.number, given=helpers)
        """,
    "module_in_a_container": """
        D = {"known": [helpers]}
        def impl(x):
            return D["known"][0].scale(x)
        """,
    "module_as_an_attribute": """
        class Impl:
            def __init__(self):
                self.given = helpers
            def __call__(self, x):
                return self.given.scale(x)
        impl = Impl()
        """,
    "module_as_an_attribute_that_others_read": """
        import types
        settings = types.SimpleNamespace(given=helpers)
        def impl(x):
            return x * settings.given.sub.number
        """,
    "module_in_a_class": """
        class Impl:
            given = helpers
            def __call__(self, x):
                return self.given.scale(x)
        impl = Impl()
        """,
    "module_that_only_a_module_in_a_container_reads": """
        import types
        inner, outer = types.ModuleType("inner"), types.ModuleType("outer")
        inner.number = VALUE
        outer.scale = lambda x, known=[inner]: x * known[0].number
        def impl(x, known=[outer]):
            return known[0].scale(x)
        """,
    "function_attribute": """
        def impl(x):
            return x + impl.block
        impl.block = VALUE
        """,
    "exception_handler": """
        def impl(x):
            try:
                return x.sin()
            except (TypeError, ValueError)[VALUE - 1]:
                return x
        """,
    "partial": """
        import functools
        impl = functools.partial(lambda x, n: x + n, n=VALUE)
        """,
    "partial_argument": """
        import functools
        impl = functools.partial(lambda n, x: x + n, VALUE)
        """,
    "partial_of": """
        import functools
        impl = functools.partial(lambda x, n: x + VALUE, n=0)
        """,
    "partial_s_attribute": """
        import functools
        impl = functools.partial(lambda x: x + impl.block)
        impl.block = VALUE
        """,
    "partial_s_class": """
        import functools
        class Twice(functools.partial):
            def __call__(self, x):
                return super().__call__(x) * VALUE
        impl = Twice(lambda x: x)
        """,
    "callable_object_s_state": """
        class Impl:
            def __init__(self, n):
                self.n = n
            def __call__(self, x):
                return x + self.n
        impl = Impl(VALUE)
        """,
    "callable_object_s_code": """
        class Impl:
            def __call__(self, x):
                return x + VALUE
        impl = Impl()
        """,
    "slots": """
        class Impl:
            __slots__ = ("n",)
            def __call__(self, x):
                return x + self.n
        impl = Impl()
        impl.n = VALUE
        """,
    "bound_method_s_object": """
        class Impl:
            def __init__(self, n):
                self.n = n
            def run(self, x):
                return x + self.n
        impl = Impl(VALUE).run
        """,
    "bound_method_s_code": """
        class Impl:
            def run(self, x):
                return x + VALUE
        impl = Impl().run
        """,
    "class_attribute": """
        class Impl:
            N = VALUE
            def __call__(self, x):
                return x + self.N
        impl = Impl()
        """,
    "static_method": """
        class Impl:
            @staticmethod
            def run(x):
                return x + VALUE
        def impl(x):
            return Impl.run(x)
        """,
    "class_method": """
        class Impl:
            @classmethod
            def run(cls, x):
                return x + VALUE
        impl = Impl.run
        """,
    "property": """
        class Impl:
            @property
            def n(self):
                return VALUE
            def __call__(self, x):
                return x + self.n
        impl = Impl()
        """,
    "cached_property": """
        import functools
        class Impl:
            @functools.cached_property
            def n(self):
                return VALUE
            def __call__(self, x):
                return x + self.n
        impl = Impl()
        """,
    "method_of_a_base_class": """
        class Base:
            def __call__(self, x):
                return x + VALUE
        class Impl(Base):
            pass
        impl = Impl()
        """,
    "autograd_function": """
        class Impl(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x + VALUE
        def impl(x):
            return Impl.apply(x)
        """,
    "dataclass": """
        import dataclasses
        @dataclasses.dataclass
        class Settings:
            n: int
            def apply(self, x):
                return x + self.n
        settings = Settings(VALUE)
        def impl(x):
            return settings.apply(x)
        """,
    "dataclass_attribute_that_is_no_field": """
        import dataclasses
        @dataclasses.dataclass
        class Impl:
            n: int
            def __call__(self, x):
                return x * self.scale
        impl = Impl(0)
        impl.scale = VALUE
        """,
    "frozen_dataclass_with_slots": """
        import dataclasses
        @dataclasses.dataclass(frozen=True, slots=True)
        class Impl:
            n: int
            def __call__(self, x):
                return x * self.n
        impl = Impl(VALUE)
        """,
    "slots_of_a_dataclass_that_are_no_fields": """
        import dataclasses
        class Base:
            __slots__ = ("scale", "never_set")
        @dataclasses.dataclass(slots=True)
        class Impl(Base):
            n: int
            def __call__(self, x):
                return x * self.scale
        impl = Impl(0)
        impl.scale = VALUE
        """,
    "dataclass_default": """
        import dataclasses
        @dataclasses.dataclass
        class Settings:
            n: int = VALUE
        def impl(x):
            return x + Settings().n
        """,
    "named_tuple": """
        import collections
        Settings = collections.namedtuple("Settings", ["n"])
        settings = Settings(VALUE)
        def impl(x):
            return x + settings.n
        """,
    "enum": """
        import enum
        class Mode(enum.Enum):
            FAST = VALUE
        mode = Mode.FAST
        def impl(x):
            return x + mode.value
        """,
    "enum_s_method": """
        import enum
        class Mode(enum.Enum):
            FAST = 0
            def factor(self):
                return VALUE
        mode = Mode.FAST
        def impl(x):
            return x + mode.factor()
        """,
    "number_s_class": """
        class Factor(int):
            def apply(self, x):
                return x * VALUE
        factor = Factor(1)
        def impl(x):
            return factor.apply(x)
        """,
    "namespace": """
        import types
        settings = types.SimpleNamespace(n=VALUE)
        def impl(x):
            return x + settings.n
        """,
    "dict": "D = {'n': VALUE}\ndef impl(x): return x + D['n']",
    "dict_s_attribute": """
        class Settings(dict):
            pass
        settings = Settings(a=1)
        settings.n = VALUE
        def impl(x):
            return x + settings.n
        """,
    "dict_s_default": """
        import collections
        D = collections.defaultdict(lambda: VALUE)
        def impl(x):
            return x + D.copy()["n"]
        """,
    "list_s_method": """
        class Weights(list):
            def total(self):
                return sum(self) * VALUE
        weights = Weights([1, 2])
        def impl(x):
            return x + weights.total()
        """,
    "list": "L = [0, [VALUE]]\ndef impl(x): return x + L[1][0]",
    "set": "S = {'a', 'bVALUE'}\ndef impl(x): return x if 'b' in S else -x",
    "method_of_a_dict": "get = {'n': VALUE}.get\ndef impl(x): return x + get('n')",
    "tensor": "t = torch.tensor([1.0, VALUE])\ndef impl(x): return x + t",
    "tensor_in_a_closure": """
        def make(table):
            return lambda x: x + table
        impl = make(torch.full((2,), VALUE, dtype=torch.bfloat16))
        """,
    "tensor_of_complex_numbers": "t = torch.tensor(1j * VALUE)\ndef impl(x): return x + t",
    "transposed_tensor": "t = torch.arange(4.0).view(2, 2)[:, : VALUE].t()\nimpl = lambda x: x + t",
    "tensor_of_a_class": """
        class Scaled(torch.Tensor):
            pass
        t = torch.ones(2).as_subclass(Scaled)
        t.scale = VALUE
        def impl(x):
            return x * t * t.scale
        """,
    "tensor_s_shape": "t = torch.zeros(VALUE, 2 // VALUE)\ndef impl(x): return x + t",
    "conjugated_tensor": "t = torch.tensor([1j * VALUE]).conj()\nimpl = lambda x: x + t",
    "dtype": "t = [torch.half, torch.float][VALUE - 1]\ndef impl(x): return x.to(t)",
    "module": "net = torch.nn.PReLU(init=VALUE)\ndef impl(x): return net(x)",
    "op": "f = [torch.ops.aten.sin, torch.ops.aten.cos][VALUE - 1]\nimpl = lambda x: f(x)",
    "builtin": "f = [torch.sin, torch.cos][VALUE - 1]\ndef impl(x): return f(x)",
    "tensor_method": "impl = [torch.Tensor.sin, torch.Tensor.cos][VALUE - 1]",
}

DOES_NOT_COUNT = {
    "what_a_custom_op_remembers": with_inner_op(
        BY_NAMESPACE, "x * len(calls)", "calls = [0] * VALUE"
    ),
    "comment": "def impl(x):\n    # VALUE\n    return x",
    "empty_lines": "N = VALUE; '''" + "\n" * 3 + "'''\ndef impl(x): return x",
    "unread_global": "N = VALUE\ndef impl(x): return x",
    "global_of_an_attribute_s_name": "size = VALUE\ndef impl(x): return x.size()",
    "unread_name_in_a_module": "def impl(x): return helpers.sub",
    "unread_name_in_a_module_as_a_default": "def impl(x, given=helpers): return given.sub",
    "documentation_of_an_object": """
        import typing
        class Impl:
            def __call__(self, x):
                return x
        impl = Impl()
        impl.__doc__, impl.__annotations__ = "VALUE", {"x": typing.TypeVar("T")}
        """,
    "memory_around_a_tensor": """
        t = torch.tensor([0.0, VALUE, 1.0])[::2]
        def impl(x):
            return x + t
        """,
    "no_elements": "t = torch.zeros(2, 0) + VALUE\ndef impl(x): return x + t",
    "class_docstring": """
        class Impl:
            'VALUE'
            def __call__(self, x):
                return x
        impl = Impl()
        """,
}

HAS_NO_CONTENT = {
    "generator": "state = (n for n in [VALUE])\ndef impl(x): return x + next(state)",
    "lock": """
        import threading
        lock = threading.Lock()
        def impl(x):
            with lock:
                return x
        """,
    "tensor_of_a_gigabyte": "impl = lambda x, t=torch.empty(2**28): x + t",
    "tensor_without_data": "impl = lambda x, t=torch.zeros(2, device='meta'): x + t",
    "tensor_in_two_parts": """
        from torch.testing._internal.two_tensor import TwoTensor
        t = TwoTensor(torch.ones(2), torch.zeros(2))
        def impl(x):
            return x + t
        """,
    "set_of_a_class": """
        class Names(set):
            pass
        names = Names("a")
        def impl(x):
            return x if "a" in names else -x
        """,
    "module_with_something_unknown": """
        helpers.state = (n for n in [VALUE])
        def impl(x, known=[helpers]):
            return x + next(known[0].state)
        """,
    "list_in_itself": "loop = []; loop.append(loop)\ndef impl(x): return loop",
    "op_of_unknown_code": """
        def impl(x):
            return torch.ops.range_autotune_cache_key_composite.inner(x)
        """,
    "failing_import": "def impl(x):\n    import not_there_at_all\n    return x",
}


@instantiate_parametrized_tests
class TestContent(OpTestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(mock.patch.dict(decompositions))
        for kind in ("decomposed", "composite"):
            namespace = f"range_autotune_cache_key_{kind}"
            library = torch.library._scoped_library(namespace, "DEF")
            library = self.enterContext(library)
            library.define("inner(Tensor x) -> Tensor")
            if kind == "composite":
                library.impl("inner", torch.sin, "CompositeImplicitAutograd")

    @parametrize("what", list(COUNTS))
    def test_counts(self, what):
        keys = [written(COUNTS[what], value) for value in (1, 1, 2)]
        self.assertEqual(keys[0], keys[1])
        self.assertNotEqual(keys[0], keys[2])

    @parametrize("what", list(DOES_NOT_COUNT))
    def test_does_not_count(self, what):
        keys = [written(DOES_NOT_COUNT[what], value) for value in (1, 2)]
        self.assertEqual(keys[0], keys[1])

    def test_lines_do_not_count(self):
        source = "def impl(x):\n    y = x + 1\n    return y"
        self.assertEqual(
            written(source, 0), written("\n\n" + source.replace("\n", "\n\n"), 0)
        )

    @parametrize("what", list(HAS_NO_CONTENT))
    def test_has_no_content(self, what):
        with self.assertRaises(Unhashable):
            written(HAS_NO_CONTENT[what], 1)

    def test_hashing_a_tensor_runs_no_code_for_each_element(self):
        table = torch.zeros(2**18)
        with mock.patch.object(torch.Tensor, "tolist", side_effect=AssertionError):
            key_of(functools.partial(impl, y=table))

    @parametrize(
        "dtype", [torch.bool, torch.int8, torch.float8_e4m3fn, torch.complex64]
    )
    def test_tensors_count_as_they_are_in_memory(self, dtype):
        wide = torch.ones(2, 6, dtype=torch.uint8).to(dtype)
        whole = torch.ones(2, 3, dtype=torch.uint8).to(dtype)
        wide[:, 3:] = 0  # not in the view of it
        tensors = (wide[0, :3], whole[0])
        with FakeTensorMode():
            keys = [key_of(functools.partial(impl, t)) for t in tensors]
        self.assertEqual(keys[0], keys[1])
        whole[0, 2] = 0
        self.assertNotEqual(key_of(functools.partial(impl, whole[0])), keys[0])

    def test_a_large_tensor_is_hashed_once(self):
        table = torch.zeros(300_000)
        with mock.patch.object(
            content_of_values, "_memory_digest", wraps=content_of_values._memory_digest
        ) as hashed:
            keys = [key_of(functools.partial(impl, table)) for _ in range(2)]
            hashed.assert_called_once()
            table[7] = 1
            keys.append(key_of(functools.partial(impl, table)))
            self.assertEqual(hashed.call_count, 2)
        self.assertEqual(keys[0], keys[1])
        self.assertNotEqual(keys[1], keys[2])

    def test_libraries_are_names(self):
        for function in (
            F.silu,
            F.max_pool2d,
            torch.Tensor.norm,
            torch.sin,
            typing.Any,
        ):
            key_of(functools.partial(impl, [torch, function]))

    def test_order_of_a_set_does_not_count(self):
        keys = set()
        for _ in range(8):  # functions hash by address
            functions = [
                eval(f"lambda x: x + {name!r}", {"__name__": "made_up"})
                for name in "abcdefgh"
            ]
            unordered = {"all": set(functions), "first": functions[0]}
            keys.add(key_of(functools.partial(impl, unordered)))
        self.assertEqual(len(keys), 1)


class TestRegistrationsKey(OpTestCase):
    def setUp(self):
        super().setUp()
        schema = "{}(Tensor x) -> Tensor"
        self.ops = [self.define_op(schema.format(name)) for name in "fg"]

    def test_all_registrations_count_in_any_order(self):
        keys = [registrations_key()]
        for op in self.ops:
            self.register(op, [CustomOpConfig(torch.sin)])
            keys.append(registrations_key())
        self.assertEqual(len(set(keys)), 3)
        user_lowerings[self.ops[0]] = user_lowerings.pop(self.ops[0])
        self.assertEqual(registrations_key(), keys[-1])

    def test_lowerings_of_others_do_not_count(self):
        before = registrations_key()
        user_lowerings[self.ops[0]] = lambda x: x
        self.assertEqual(registrations_key(), before)

    def test_what_cannot_be_hashed_bypasses_the_caches(self):
        state = (n for n in [1])
        self.register(self.ops[0], [CustomOpConfig(lambda x: x + next(state))])
        self.assert_raises_inline(
            BypassFxGraphCache,
            registrations_key,
            """range_autotune_test.f.default has an autotuning registration with a generator, which has no hashable content""",
        )

    def test_what_several_ranks_decide_bypasses_the_caches(self):
        def over_ranks(x):
            return torch.ops._c10d_functional.all_reduce(x, "sum", "0")

        for op, impl in zip(self.ops, (over_ranks, torch.sin)):
            self.register(op, [CustomOpConfig(impl)])

        def key(op):
            return registrations_key(graph_of(op))

        several = "torch._inductor.range_autotune.cache_key.several_ranks"
        with mock.patch(several, lambda: True):
            for op in (self.ops[0], self.ops[0].overloadpacket):
                with self.assertRaisesRegex(BypassFxGraphCache, "all ranks decide on"):
                    key(op)
            key(self.ops[1])
        key(self.ops[0])

    def test_a_graph_without_registered_ops_has_no_key(self):
        """As it is given to Inductor; Dynamo's ops may come to call any."""
        first, second = self.ops
        self.register(first, [CustomOpConfig(torch.sin)])
        key = registrations_key()
        self.assertEqual(registrations_key(graph_of(second), True), "")
        self.assertEqual(registrations_key(graph_of(second)), key)
        for callables in (
            [first],
            [first.overloadpacket],
            [torch.ops.higher_order.with_effects, first],
        ):
            self.assertEqual(registrations_key(graph_of(*callables), True), key)
        inner = torch.fx.Graph()
        inner.call_module("branch")
        nested = torch.fx.GraphModule({"branch": graph_of(first)}, inner)
        self.assertEqual(registrations_key(nested, True), key)

    def test_what_passes_may_put_into_a_graph_counts(self):
        first, second = self.ops
        self.register(first, [CustomOpConfig(torch.sin)])
        patterns = {("call_function", second): [SimpleNamespace(handler=impl)]}
        for added in (
            config.patch(post_grad_custom_post_pass=lambda graph: None),
            mock.patch.dict(custom_backend_passes, cpu=lambda gm: None),
            mock.patch.dict(post_grad.pass_patterns[1].patterns, patterns),
        ):
            with added:
                self.assertNotEqual(registrations_key(graph_of(second), True), "")
            self.assertEqual(registrations_key(graph_of(second), True), "")
        self.register(torch.ops.aten.mm.default, [CustomOpConfig(torch.sin)])
        self.assertNotEqual(registrations_key(graph_of(second), True), "")

    def test_models_without_a_cache(self):
        """Where something cannot be hashed, those that do not call it have that of graphs."""

        @torch.library.custom_op("range_autotune_cache_key::one", mutates_args=())
        def op(x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        op.register_fake(torch.empty_like)
        state = (n for n in [0])
        self.register(op, [CustomOpConfig(lambda x: x + next(state))])
        x = torch.ones(8, 8)
        for fn, misses in ((lambda x: x @ x, 1), (lambda x: op(x @ x), 0)):
            counters.clear()
            self.assertEqual(torch.compile(fn)(x), fn(x))
            self.assertEqual(counters["aot_autograd"]["autograd_cache_bypass"], 1)
            self.assertEqual(counters["inductor"]["fxgraph_cache_miss"], misses)


def graph_of(target, *others):
    """A graph of one call."""
    graph = torch.fx.Graph()
    graph.call_function(target, (*others, graph.placeholder("x")))
    return torch.fx.GraphModule({}, graph)


FACTORS = [2.0]


class TestBodies(OpTestCase):
    """Bodies that compete as plain lowering become code; others are called as they are."""

    def key_of(self, body, kernel=None):
        """The fingerprint of a registration of an op with a body, and one for the CPU."""
        op = torch.library.custom_op("range_autotune_cache_key::op", mutates_args=())(
            body
        )
        if kernel is not None:
            op.register_kernel("cpu")(kernel)
        registration = register(Contest((Candidate("impl", impl),), None))
        return fingerprint(dataclasses.replace(registration, op=op._opoverload))

    def test_counts(self):
        def doubled(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        def tripled(x: torch.Tensor) -> torch.Tensor:
            return x * 3

        keys = {
            self.key_of(body, kernel)
            for body in (doubled, tripled)
            for kernel in (None, lambda x: x + 1, lambda x: x + 2)
        }
        self.assertEqual(len(keys), 6)

    def test_counts_without_what_it_reads_where_that_may_be_state(self):
        def guarded_by(lock):
            def guarded(x: torch.Tensor) -> torch.Tensor:
                with lock:
                    return x * FACTORS[0]

            return guarded

        def scaled(x: torch.Tensor) -> torch.Tensor:
            return x * FACTORS[0]

        keys = [
            self.key_of(body)
            for body in (guarded_by(threading.Lock()), guarded_by([0]), scaled)
        ]
        self.assertEqual(keys[0], keys[1])
        self.assertNotEqual(keys[0], keys[2])


# Only calls of library kernels, so that nothing is built by a C++ compiler.
MODEL = """
import contextlib
import io
import json

import torch
from torch._dynamo.utils import counters
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpConfig, register_custom_op_autotuning
from torch._inductor.range_autotune.cache_key import registrations_key

FACTOR = 2.0
MODES = frozenset({"twice", "thrice", "never"})


@torch.library.custom_op("range_autotune_cached::scaled", mutates_args=())
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x @ x * FACTOR


@scaled.register_fake
def _(x):
    return torch.empty_like(x)


def implementation(x, mode="twice"):
    print("traced")
    alpha = FACTOR if mode in MODES else 0
    return torch.addmm(x, x, x, beta=0, alpha=alpha)


def compile_and_run():
    torch._dynamo.reset()
    counters.clear()
    with (
        config.patch({"test_configs.force_custom_op_decomposition": True}),
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        result = torch.compile(lambda x: scaled(x))(torch.ones(8, 8))
    inductor, aot = counters["inductor"], counters["aot_autograd"]
    return {
        "result": result.unique().tolist(),
        "hits": [inductor["fxgraph_cache_hit"], aot["autograd_cache_hit"]],
        "misses": [inductor["fxgraph_cache_miss"], aot["autograd_cache_miss"]],
        "traces": printed.getvalue().count("traced"),
    }


def run(compile_before=False):
    runs = [compile_and_run()] if compile_before else []
    register_custom_op_autotuning(scaled, [CustomOpConfig(implementation)])
    runs.append(compile_and_run())
    print(json.dumps({"runs": runs, "key": registrations_key()}))
"""


class TestProcesses(OpTestCase):
    """Processes that share a cache folder and a model, with the default cache settings."""

    def start(self, folder, source, call, hash_seed):
        module = Path(folder, f"sources_{hash_seed}", "cached_model.py")
        module.parent.mkdir()
        module.write_text(source)
        caches = ("TORCHINDUCTOR_FX_GRAPH_CACHE", "TORCHINDUCTOR_AUTOGRAD_CACHE")
        inherited = {k: v for k, v in os.environ.items() if k not in caches}
        return subprocess.Popen(
            [sys.executable, "-c", f"import cached_model; cached_model.{call}"],
            cwd=module.parent,
            env={
                **inherited,
                "TORCHINDUCTOR_CACHE_DIR": str(Path(folder, "cache")),
                "PYTHONHASHSEED": str(hash_seed),
            },
            stdout=subprocess.PIPE,
            text=True,
        )

    def finish(self, process):
        output, _ = process.communicate()
        self.assertEqual(process.returncode, 0)
        return json.loads(output.splitlines()[-1])

    def test_changed_is_a_miss_and_unchanged_a_hit(self):
        hit = {"hits": [1, 1], "misses": [0, 0], "traces": 0}
        miss = {"hits": [0, 0], "misses": [1, 1], "traces": 1}
        changed = MODEL.replace("FACTOR = 2.0", "FACTOR = 3.0")
        with tempfile.TemporaryDirectory() as folder:
            call = "run(compile_before=True)"
            first = self.finish(self.start(folder, MODEL, call, 1))
            others = [
                self.start(folder, source, "run()", hash_seed)
                for hash_seed, source in ((2, MODEL), (3, changed))
            ]
            same, new = map(self.finish, others)
        unregistered, registered = first["runs"]
        self.assertEqual(unregistered, {**miss, "traces": 0, "result": [16.0]})
        self.assertEqual(registered, {**miss, "result": [16.0]})
        self.assertEqual(same["key"], first["key"])
        self.assertEqual(same["runs"], [{**hit, "result": [16.0]}])
        self.assertEqual(new["runs"], [{**miss, "result": [24.0]}])
        self.assertNotEqual(new["key"], first["key"])


if __name__ == "__main__":
    run_tests()
