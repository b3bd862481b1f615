# Owner(s): ["module: inductor"]
"""Times that survive the process: what names them, what is kept, what a file may be."""

import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from range_autotune_testing import (
    made_up_triton,
    MadeUpAutotuner,
    MadeUpConfig,
    MadeUpJitFunction,
    SymbolicTestCase,
)
from torch._dynamo.utils import counters
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import fresh_cache
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.range_autotune import graph_text, timing_cache
from torch._inductor.range_autotune.call_site import CallSite, Slot
from torch._inductor.range_autotune.candidates import TracedCandidate
from torch._inductor.range_autotune.graph_text import SymbolNames
from torch._inductor.range_autotune.kernel_config_ranges import ConfigRecord
from torch._inductor.range_autotune.known_sizes import KnownSize
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.registration import Candidate, TuningOptions
from torch._inductor.range_autotune.times import Failure, failure_of, Timing
from torch._inductor.range_autotune.timing_cache import (
    cache_key,
    candidate_text,
    Entry,
    Environment,
    lookup,
    lookup_record,
    measurement_text,
    store,
    store_record,
)


aten = torch.ops.aten
ENVIRONMENT = Environment("torch", "system", ("gpu",), ("cpu",), 4, "config", ("high",))
TIMES = {0: Timing(1.5, 0.25), 1: Failure("it does not run: no"), -1: Timing(3.0)}
COMPARISONS = {0: None, 1: "it differs", -1: Failure("no memory")}
FOUND = Entry(TIMES, COMPARISONS)
TEXTS = {0: "zero", 1: "one", -1: "fallback"}


def file_content(candidate):
    """A file's, with what is kept of candidate zero."""
    known = f'{{"zero": {candidate}}}'
    return f'{{"format": 3, "not_measured": null, "candidates": {known}}}'


class CacheTestCase(TestCase):
    def setUp(self):
        super().setUp()
        counters.clear()
        self.enterContext(fresh_cache())
        self.enterContext(
            mock.patch.object(Environment, "current", return_value=ENVIRONMENT)
        )

    def files(self):
        folder = pathlib.Path(timing_cache.cache_dir()) / "custom_op_timings"
        return sorted(path for path in folder.rglob("*") if path.is_file())


class TestEntries(CacheTestCase):
    def test_what_is_stored_is_found(self):
        self.assertIsNone(lookup("here", TEXTS))
        store("here", TEXTS, FOUND)
        self.assertEqual(lookup("here", TEXTS), FOUND)
        self.assertIsNone(lookup("there", TEXTS))
        self.assertEqual(counters["inductor"]["custom_op_timing_cache_hit"], 1)
        self.assertEqual(counters["inductor"]["custom_op_timing_cache_miss"], 2)

    def test_where_nothing_can_be_measured(self):
        not_measured = Entry(not_measured="for 32 bits")
        store("here", TEXTS, not_measured)
        self.assertEqual(lookup("here", TEXTS), not_measured)
        store("here", TEXTS, Entry())
        self.assertIsNone(lookup("here", TEXTS))

    def test_who_was_not_called(self):
        for entry in (
            Entry({0: Timing(1.0)}, out=frozenset({1, -1})),
            Entry({0: Failure("it crashed", everywhere=True)}, out=frozenset({1, -1})),
        ):
            store("here", TEXTS, entry)
            self.assertEqual(lookup("here", TEXTS), entry)

    def test_configs_of_kernels(self):
        times = {"usual": TIMES[0], "other": TIMES[1]}
        at = {16: {"kernel": times}, 4096: {}}
        record = ConfigRecord({"kernel": "usual", "sum": "usual"}, ["kernel"], at)
        self.assertIsNone(lookup_record("here", "zero"))
        store_record("here", "zero", record)
        self.assertEqual(lookup_record("here", "zero"), record)
        self.assertIsNone(lookup_record("here", "one"))
        self.assertIsNone(lookup_record("there", "zero"))
        with config.patch(autotune_local_cache=False):
            self.assertIsNone(lookup_record("here", "zero"))

    def test_what_may_pass_is_not_kept_of_configs(self):
        full = {"kernel": {"usual": TIMES[0], "other": Failure("busy", may_pass=True)}}
        fine = {"kernel": {"usual": TIMES[0], "other": TIMES[1]}}
        store_record("here", "zero", ConfigRecord({}, [], {1: full, 2: fine}))
        self.assertEqual(lookup_record("here", "zero"), ConfigRecord({}, [], {2: fine}))

    @parametrize(
        "content",
        (
            "",
            "[]",
            "[" * 100_000,
            '{"format": 1, "usual": {}, "in_doubt": [], "at": []}',
            '{"format": 3, "usual": {}, "at": []}',
            '{"format": 3, "usual": [], "in_doubt": [], "at": []}',
            '{"format": 3, "usual": {}, "in_doubt": 0, "at": []}',
            '{"format": 3, "usual": {}, "in_doubt": [], "at": [["x", {}]]}',
            '{"format": 3, "usual": {}, "in_doubt": [], "at": [[1, {"k": 2}]]}',
            '{"format": 3, "usual": {}, "in_doubt": [], "at": [[1, {"k": {"c": {"ms": 1}}}]]}',
        ),
    )
    def test_a_damaged_record(self, content):
        store_record("here", "zero", ConfigRecord())
        (file,) = self.files()
        file.write_text(content)
        self.assertIsNone(lookup_record("here", "zero"))

    def test_indices_do_not_matter(self):
        store("here", TEXTS, FOUND)
        self.assertEqual(
            lookup("here", {7: "fallback", 3: "zero"}),
            Entry({7: TIMES[-1], 3: TIMES[0]}, {7: COMPARISONS[-1], 3: COMPARISONS[0]}),
        )

    def test_one_missing_candidate_is_a_miss_of_all(self):
        store("here", TEXTS, FOUND)
        self.assertIsNone(lookup("here", {**TEXTS, 2: "new"}))

    def test_times_of_two_runs_are_never_mixed(self):
        store("here", TEXTS, FOUND)
        store("here", {0: "zero", 2: "new"}, Entry({0: Timing(9.0), 2: Timing(8.0)}))
        self.assertEqual(lookup("here", {0: "zero"}), Entry({0: Timing(9.0)}))
        self.assertIsNone(lookup("here", TEXTS))

    def test_failures_that_may_pass_are_not_kept(self):
        for passing in (
            Entry({**TIMES, 1: Failure("no memory", may_pass=True)}),
            Entry(TIMES, {1: Failure("no memory", may_pass=True)}),
        ):
            store("here", TEXTS, passing)
        self.assertIsNone(lookup("here", TEXTS))
        self.assertEqual(lookup("here", {0: "zero"}), Entry({0: TIMES[0]}))

    @parametrize(
        "error, may_pass",
        (
            (torch.OutOfMemoryError("no"), True),
            (MemoryError("no"), True),
            (TimeoutError("no"), True),
            (torch.AcceleratorError("no"), True),
            (RuntimeError("no"), False),
        ),
    )
    def test_which_failures_may_pass(self, error, may_pass):
        name = type(error).__name__
        found = failure_of(error)
        self.assertEqual(found.may_pass, may_pass)
        self.assertIn(f"{name}: no", found.reason)

    @parametrize(
        "content",
        (
            "",
            '{"format": 3, "candidates"',
            "[]",
            "null",
            "{}",
            '{"format": 3}',
            '{"format": 3, "candidates": {"zero": {"ms": 1.0, "error": 0.0}}}',
            '{"format": 3, "not_measured": null, "candidates": []}',
            '{"format": 0, "times": {"zero": {"ms": 1.0, "error": 0.0}}}',
            "[" * 100_000,
            file_content("1.0"),
            file_content('{"ms": 1.0}'),
            file_content('{"ms": "fast", "error": 0.0}'),
            file_content('{"ms": NaN, "error": 0.0}'),
            file_content('{"ms": -1.0, "error": 0.0}'),
            file_content(f'{{"ms": {10**400}, "error": 0.0}}'),
            file_content('{"ms": 1.0, "error": 0.0, "mismatch": [1]}'),
            file_content("{}").replace("null", "1"),
            "no UTF-8: \xff",
        ),
    )
    def test_a_bad_file_is_a_miss(self, content):
        store("here", TEXTS, FOUND)
        (file,) = self.files()
        file.write_bytes(content.encode("latin-1"))
        self.assertIsNone(lookup("here", {0: "zero"}))
        store("here", TEXTS, FOUND)
        self.assertEqual(lookup("here", TEXTS), FOUND)

    def test_a_file_says_what_it_holds(self):
        store("here", TEXTS, FOUND)
        (file,) = self.files()
        self.assertEqual(
            json.loads(file.read_text()),
            {
                "format": 3,
                "not_measured": None,
                "candidates": {
                    "zero": {"ms": 1.5, "error": 0.25, "mismatch": None},
                    "one": {
                        "failure": "it does not run: no",
                        "all": False,
                        "mismatch": "it differs",
                    },
                    "fallback": {"ms": 3.0, "error": 0.0, "not_compared": "no memory"},
                },
            },
        )

    def test_writers_at_once(self):
        runs = [
            Entry({0: Timing(float(n)), 1: Timing(float(n)), -1: Timing(float(n))})
            for n in range(1, 9)
        ]

        def write_and_read(entry):
            store("here", TEXTS, entry)
            return lookup("here", TEXTS)

        with ThreadPoolExecutor(8) as pool:
            found = [*pool.map(write_and_read, runs * 8)]
        self.assertEqual(len(found), 64)
        for entry in found:
            self.assertIn(entry, runs)
        self.assertEqual(len(self.files()), 1)

    def test_a_folder_that_cannot_be_written(self):
        folder = pathlib.Path(timing_cache.cache_dir()) / "custom_op_timings"
        folder.write_text("a file in its place")
        with self.assertLogs(timing_cache.log, "INFO") as logged:
            store("here", TEXTS, FOUND)
        self.assertIn("Measured times cannot be cached: ", logged.output[0])
        self.assertIsNone(lookup("here", TEXTS))

    @parametrize(
        "patch", ({"autotune_local_cache": False}, {"force_disable_caches": True})
    )
    def test_switched_off(self, patch):
        with config.patch(patch):
            store("here", TEXTS, FOUND)
            self.assertIsNone(lookup("here", TEXTS))
        self.assertEqual(self.files(), [])
        self.assertNotIn("custom_op_timing_cache_miss", counters["inductor"])
        store("here", TEXTS, FOUND)
        with config.patch(patch):
            self.assertIsNone(lookup("here", TEXTS))


instantiate_parametrized_tests(TestEntries)


class TestKey(TestCase):
    def test_every_field_counts(self):
        keys = {cache_key("here", ENVIRONMENT), cache_key("there", ENVIRONMENT)}
        fields = dataclasses.fields(Environment)
        for field in fields:
            other = dataclasses.replace(ENVIRONMENT, **{field.name: "other"})
            keys.add(cache_key("here", other))
        with mock.patch.object(timing_cache, "_FORMAT", 0):
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
                mock.patch.object(timing_cache, "get_cpp_compiler", get_cpp_compiler),
                mock.patch.object(
                    timing_cache, "get_compiler_version_info", lambda _: version
                ),
            ):
                return timing_cache._cpu.__wrapped__()

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
        }
        self.assertEqual(len(texts), 12)

    def test_none_where_content_is_unknown(self):
        lock = threading.Lock()
        options = TuningOptions({"x": lambda x: lock})
        self.assertIsNone(self.text(options=options))


# Nothing in it needs a C++ compiler, which would take most of the time.
MODEL = """
    import json, math, sys, torch
    from torch._dynamo.utils import counters
    from torch._inductor.kernel.custom_op import *
    from torch._inductor.range_autotune import lowering
    from torch._inductor.range_autotune.subgraph_module import SubgraphModule

    @torch.library.custom_op("timing_cache::op", mutates_args=())
    def op(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x @ w

    op.register_fake(lambda x, w: x.new_empty(x.shape[0], w.shape[1]))

    def guards(x, w):
        return x @ w if x.shape[0] > 32 else torch.mm(x, w)

    def fails(x, w):
        return torch.ops.timing_cache.raises(x @ w)

    @torch.library.custom_op("timing_cache::raises", mutates_args=())
    def raises(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("it always does")

    raises.register_fake(torch.empty_like)

    def wrong(x, w):
        return torch.mm(x, w.T)

    def tiles(x, w):
        return torch.ops.timing_cache.raises_elsewhere(x @ w)

    @torch.library.custom_op("timing_cache::raises_elsewhere", mutates_args=())
    def raises_elsewhere(x: torch.Tensor) -> torch.Tensor:
        assert len(x) in (32, 100)  # where it is timed
        return x.clone()

    raises_elsewhere.register_fake(torch.empty_like)

    def few(x, w):
        return torch.ops.timing_cache.raises_for_many(x @ w)

    @torch.library.custom_op("timing_cache::raises_for_many", mutates_args=())
    def raises_for_many(x: torch.Tensor) -> torch.Tensor:
        assert len(x) < 64
        return x.clone()

    raises_for_many.register_fake(torch.empty_like)

    def uncompiled(x, w):
        return torch.mm(torch.mm(x, w), w)

    real_load = SubgraphModule._load

    def load(module, graph):
        if "uncompiled" in (graph.name or ""):
            raise RuntimeError("no registers left")
        return real_load(module, graph)

    SubgraphModule._load = load
    impls = [torch.mm, lambda x, w: torch.mm(x, w), guards, fails, wrong, tiles, few]
    impls += [uncompiled]
    register_custom_op_autotuning(
        op,
        configs=[CustomOpRangeConfig("x", 0, [(0, 64), (64, math.inf)], impls)],
        representative_sizes=[32, 100, 2**40],  # the last has no room in any memory
        numerics_check=sys.argv[1],
    )
    winners = []
    decide = lowering.decide
    lowering.decide = lambda tuning: winners.append(decide(tuning)) or winners[-1]
    x = torch.randn(100, 16)
    torch._dynamo.mark_dynamic(x, 0)
    torch.compile(op)(x, torch.randn(16, 16))
    print(json.dumps([str(winners), counters["inductor"]]))
"""


class TestTwoProcesses(TestCase):
    def compile(self, cache_dir, numerics_check):
        """
        The winner table and the counters of a process that compiles the model; its
        warnings.
        """
        env = {
            **os.environ,
            "TORCHINDUCTOR_CACHE_DIR": cache_dir,
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        }
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(MODEL), numerics_check],
            env=env,
            capture_output=True,
            text=True,
        )
        self.assertEqual(done.returncode, 0, msg=done.stderr)
        warnings = re.findall(r"candidate '.*", done.stderr)
        return *json.loads(done.stdout.splitlines()[-1]), warnings

    @parametrize("check", ("off", "warn", "drop"))
    def test_the_second_measures_nothing(self, check):
        with fresh_cache():
            cache_dir = timing_cache.cache_dir()
            winners, first, warnings = self.compile(cache_dir, check)
            again, second, warnings_again = self.compile(cache_dir, check)
        self.assertGreater(first["custom_op_candidate_timings"], 0)
        self.assertEqual(winners, again)
        for count in (
            "custom_op_candidate_timings",
            "subgraph_modules_generated",
            "subgraph_module_loads",
        ):
            self.assertGreater(first[count], 0)
            self.assertNotIn(count, second)
        self.assertGreater(second["custom_op_timing_cache_hit"], 0)
        self.assertLessEqual({*warnings_again}, {*warnings})
        self.assertIn("'tiles'", str(warnings_again))
        self.assertIn("'uncompiled' is left out: it does not", str(warnings_again))
        self.assertIn("'few' is left out in range [64, inf)", str(warnings_again))
        self.assertEqual("'wrong'" in str(warnings_again), check != "off")


instantiate_parametrized_tests(TestTwoProcesses)


if __name__ == "__main__":
    run_tests()
