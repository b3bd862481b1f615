# Owner(s): ["module: inductor"]
"""What names measured times: each thing that they depend on counts."""

import dataclasses
import functools
import math
import threading
from unittest import mock

from range_autotune_testing import (
    ENVIRONMENT,
    made_up_triton,
    MadeUpAutotuner,
    MadeUpConfig,
    MadeUpJitFunction,
    SymbolicTestCase,
)
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.test_case import run_tests, TestCase

import torch
from torch._inductor import config
from torch._inductor.range_autotune.caching import timing_keys
from torch._inductor.range_autotune.caching.timing_keys import (
    cache_key,
    candidate_text,
    Environment,
    measurement_text,
)
from torch._inductor.range_autotune.call_site import CallSite, Slot
from torch._inductor.range_autotune.candidates.traced_candidates import TracedCandidate
from torch._inductor.range_autotune.graphs import graph_text
from torch._inductor.range_autotune.graphs.graph_text import SymbolNames
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.registration import Candidate, TuningOptions
from torch._inductor.range_autotune.sizes.known_sizes import KnownSize
from torch._inductor.range_autotune.sizes.size_points import SizePoint


aten = torch.ops.aten


class TestKey(TestCase):
    def test_every_field_counts(self):
        keys = {cache_key("here", ENVIRONMENT), cache_key("there", ENVIRONMENT)}
        fields = dataclasses.fields(Environment)
        for field in fields:
            other = dataclasses.replace(ENVIRONMENT, **{field.name: "other"})
            keys.add(cache_key("here", other))
        with mock.patch.object(timing_keys, "FORMAT", 0):
            keys.add(cache_key("here", ENVIRONMENT))
        self.assertEqual(len(keys), 3 + len(fields))

    def test_the_same_in_the_same_environment(self):
        self.assertEqual(Environment.current(), Environment.current())
        self.assertEqual(cache_key("here", ENVIRONMENT), cache_key("here", ENVIRONMENT))

    def test_accelerators_without_names(self):
        with (
            mock.patch.object(torch.accelerator, "is_available", return_value=True),
            mock.patch.object(torch.accelerator, "device_count", return_value=2),
            mock.patch.object(torch, "get_device_module", return_value=torch.mps),
        ):
            accelerators = Environment.current().accelerators
        self.assertEqual(accelerators, ("torch.mps", "torch.mps"))

    def test_of_the_cpu_s_compiler(self):
        def told(get_cpp_compiler, version="13.1"):
            with (
                mock.patch.object(timing_keys, "get_cpp_compiler", get_cpp_compiler),
                mock.patch.object(
                    timing_keys, "get_compiler_version_info", lambda _: version
                ),
            ):
                return timing_keys._cpu.__wrapped__()

        def missing():
            raise InvalidCxxCompiler

        self.assertNotEqual(told(lambda: "g++"), told(lambda: "g++", "13.2"))
        self.assertEqual(told(missing), (*told(lambda: "g++")[:-1], ""))

    def test_config_that_changes_code(self):
        before = Environment.current()
        with config.patch(realize_reads_threshold=7):
            changed = Environment.current()
        self.assertNotEqual(before.inductor_config, changed.inductor_config)
        self.assertEqual(
            before, dataclasses.replace(changed, inductor_config=before.inductor_config)
        )
        with config.patch(fx_graph_cache=not config.fx_graph_cache):
            self.assertEqual(before, Environment.current())

    def test_threads(self):
        before = Environment.current()
        with mock.patch.object(torch, "get_num_threads", return_value=77):
            self.assertEqual(
                Environment.current(), dataclasses.replace(before, threads=77)
            )

    def test_precision(self):
        before = Environment.current()
        with mock.patch.object(
            torch, "get_float32_matmul_precision", return_value="medium"
        ):
            self.assertNotEqual(Environment.current().numerics, before.numerics)


def double(x):
    return x * 2


def traced(build, name="made_up", impl=double, params=None, patches=None):
    """
    A candidate of two inputs.

    Args:
        build: from a graph and the placeholders to the result.
    """
    graph = torch.fx.Graph()
    inputs = [graph.placeholder(f"{name}_{i}") for i in range(2)]
    owner = torch.nn.Module()
    graph.output([build(graph, *inputs, owner)])
    candidate = Candidate(name, impl, params or {}, patches or {})
    return TracedCandidate(candidate, torch.fx.GraphModule(owner, graph))


def calls(target, *args, **meta):
    def build(graph, x, y, owner):
        node = graph.call_function(target, (x, *args))
        node.meta.update(meta)
        return node

    return build


def constant(*values):
    def build(graph, x, y, owner):
        owner.constant = torch.tensor(values)
        at = graph.get_attr("constant")
        return graph.call_function(aten.add.Tensor, (x, at))

    return build


class TestKnownSizes(SymbolicTestCase):
    def test_what_is_known_of_the_size_counts(self):
        """Of which of a tensor's sizes, too."""
        s0, s1 = self.symbol("s0", 100), self.symbol("s1", 50)
        few, many = DimRange(0, 64), DimRange(64, math.inf)
        one = traced(calls(aten.sin.default))
        texts = {
            candidate_text(dataclasses.replace(one, known=known))
            for known in (
                None,
                KnownSize(s0, few),
                KnownSize(s0, many),
                KnownSize(s0 * s1, few),
                KnownSize(2 * s0, few),
            )
        }
        self.assertEqual(len(texts), 5)

    def test_sizes_that_code_is_made_for_count(self):
        s0, s1 = self.symbol("s0", 100), self.symbol("s1", 50)
        one = traced(calls(aten.sin.default))
        points = (None, {s0: 8}, {s0: 4096}, {s0: 8, s1: 2})
        texts = {
            candidate_text(
                dataclasses.replace(one, made_for=values and SizePoint(8, values))
            )
            for values in points
        }
        self.assertEqual(len(texts), len(points))


class TestCandidateText(TestCase):
    def test_names_do_not_count(self):
        one = candidate_text(traced(calls(aten.sin.default), "one"))
        self.assertIsNotNone(one)
        self.assertEqual(one, candidate_text(traced(calls(aten.sin.default), "two")))

    def test_what_counts(self):
        def other_impl(x):
            return x * 3

        texts = [
            candidate_text(candidate)
            for candidate in (
                traced(calls(aten.add.Tensor, 1)),
                traced(calls(aten.add.Tensor, 2)),
                traced(calls(aten.add.Tensor, 1.0)),
                traced(calls(aten.mul.Tensor, 1)),
                traced(calls(aten.add.Tensor, 1, should_fallback=True)),
                traced(lambda g, x, y, _: g.call_function(aten.add.Tensor, (y, 1))),
                traced(calls(aten.add.Tensor, 1), impl=other_impl),
                traced(calls(aten.add.Tensor, 1), params={"block": 64}),
                traced(calls(aten.add.Tensor, 1), patches={"max_autotune": True}),
                traced(constant(1.0, 2.0)),
                traced(constant(1.0, 3.0)),
                traced(constant(1, 2)),
            )
        ]
        self.assertNotIn(None, texts)
        self.assertEqual(len(set(texts)), len(texts))

    def test_custom_ops_count_by_what_they_do(self):
        texts = set()
        for implementation in (lambda x: x + 1, lambda x: x + 2):
            op = torch.library.custom_op(
                "timing_cache::called",
                implementation,
                mutates_args=(),
                schema="(Tensor x) -> Tensor",
            )
            texts.add(candidate_text(traced(calls(op._opoverload))))
            op._lib._destroy()
        self.assertEqual(len(texts), 2)

    def launch_text(self, kernel, constants):
        """Of a candidate that launches it, numbered anew."""
        table = graph_text.kernel_side_table
        numbers = {
            "kernel_idx": table.add_kernel(kernel),
            "constant_args_idx": table.add_constant_args(constants),
        }
        wrapper = torch.ops.higher_order.triton_kernel_wrapper_functional
        return candidate_text(
            traced(lambda g, x, *_: g.call_function(wrapper, (), numbers | {"x": x}))
        )

    def test_launches_count_by_kernel_and_constants(self):
        def autotuned(source, num_warps):
            """As each trace makes one where the number of warps is given at a launch."""
            kernel = MadeUpJitFunction(torch.neg, source)
            return MadeUpAutotuner(kernel, [MadeUpConfig({}, num_warps)], [])

        with made_up_triton():
            texts = [
                self.launch_text(autotuned(source, num_warps), {"b": constant})
                for source, num_warps, constant in (
                    ("one", 4, 8),
                    ("two", 4, 8),
                    ("one", 8, 8),
                    ("one", 4, 16),
                    ("one", 4, 8),
                )
            ]
        self.assertNotIn(None, texts)
        self.assertEqual(texts[0], texts[-1])
        self.assertEqual(len(set(texts)), 4)

    def test_subgraphs(self):
        def build(number):
            inner = traced(calls(aten.add.Tensor, number)).graph

            def through_it(graph, x, y, owner):
                owner.inner = inner
                return graph.call_function(double, (graph.get_attr("inner"), x, y))

            return through_it

        texts = [candidate_text(traced(build(number))) for number in (1, 2, 1)]
        self.assertEqual(texts[0], texts[2])
        self.assertNotEqual(texts[0], texts[1])

    def test_none_where_content_is_unknown(self):
        class Handle:
            def __reduce_ex__(self, protocol):
                raise TypeError("a handle")

        handle = Handle()
        impl = lambda x: handle  # noqa: E731  # an implementation that reads it
        self.assertIsNone(candidate_text(traced(calls(aten.sin.default), impl=impl)))


class TestPlaceText(SymbolicTestCase):
    def site(self, name="s0", more="s1", **layout):
        """A call with two tensors that share a symbol; another symbol in the second."""
        size, other = self.symbol(name, 100), self.symbol(more, 7)
        layout = {"size": [2 * size, other], **layout}
        inputs = (self.tensor([size, 4]), self.tensor(**layout))
        arguments = {"x": Slot(0), "tensors": [Slot(1)], "alpha": 2}
        site = CallSite(aten.abs.default, arguments, inputs)
        return site, [size, other]

    def text(self, *args, options=None, at=None, hosts=(), **layout):
        site, _ = self.site(*args, **layout)
        names = SymbolNames()
        site.layout_text(names)
        symbols = names.met
        values = dict(zip(symbols, at)) if at else dict.fromkeys(symbols, 64)
        return measurement_text(site, options or TuningOptions(), values, hosts)

    def test_text(self):
        site, symbols = self.site()
        names = SymbolNames()
        self.assertExpectedInline(
            site.layout_text(names),
            """\
aten.abs.default
input: torch.float32 cpu [v0, 4] strides [4, 1] from 0
input: torch.float32 cpu [2*v0, v1] strides [v1, 1] from 0
x: input 0
tensors: ['input 1']
alpha: 2
v0 in VR[2, int_oo]
v1 in VR[2, int_oo]""",
        )
        self.assertEqual(names.met, symbols)

    def test_all_calls_count(self):
        site, _ = self.site()
        node = torch.fx.Graph().placeholder("x")
        texts = set()
        for alpha in (1, 2):
            second = dataclasses.replace(site, arguments={"x": Slot(1), "alpha": alpha})
            both = dataclasses.replace(site, call=node, following=(second,))
            texts.add(both.layout_text(SymbolNames()))
        self.assertEqual(len(texts), 2)

    def test_names_of_symbols_do_not_count(self):
        self.assertEqual(self.text("a", "b"), self.text("y", "x"))

    def test_what_counts(self):
        size = self.symbol("s7", 100)
        bounded = self.symbol("s9", 100, bounds=(2, 512))
        texts = {
            self.text(),
            self.text(size=[bounded, bounded]),
            self.text(at=(64, 9)),
            self.text(at=(65, 8)),
            self.text(dtype=torch.int64),
            self.text(size=[size, size]),
            self.text(size=[8, size], stride=[1, 8]),
            self.text(options=TuningOptions(benchmark_with_cudagraphs=True)),
            self.text(options=TuningOptions({"x": double})),
            self.text(options=TuningOptions(numerics_check="drop")),
            self.text(hosts=(0, 0)),
            self.text(hosts=(0, 1)),
            self.text(offset=1),
            self.text(offset=size),
        }
        self.assertEqual(len(texts), 14)

    def test_of_a_fixed_place_its_alignment_counts(self):
        self.assertEqual(self.text(offset=4), self.text())
        self.assertEqual(self.text(offset=1), self.text(offset=13))
        self.assertNotEqual(self.text(offset=2), self.text(offset=1))
        half = functools.partial(self.text, dtype=torch.half)
        self.assertEqual(half(offset=8), half())
        self.assertNotEqual(half(offset=4), half())

    def test_none_where_content_is_unknown(self):
        lock = threading.Lock()
        options = TuningOptions({"x": lambda x: lock})
        self.assertIsNone(self.text(options=options))


if __name__ == "__main__":
    run_tests()
