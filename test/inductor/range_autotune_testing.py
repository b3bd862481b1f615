"""What several test files of ``torch._inductor.range_autotune`` share."""

import contextlib
import re
import subprocess
import sys
import textwrap
import threading
import types
from unittest import mock

import sympy
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch._inductor.cpp_builder import run_compile_cmd
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import TestCase
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StrictMinMaxConstraint,
)
from torch.utils import _pytree as pytree
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.value_ranges import ValueRanges

import torch
from torch._inductor import ir
from torch._inductor.kernel.custom_op import register_custom_op_autotuning
from torch._inductor.range_autotune import lowering
from torch._inductor.range_autotune.caching.timing_keys import Environment
from torch._inductor.range_autotune.call_site import CallSite, Slot
from torch._inductor.range_autotune.graphs.symbolic_graphs import trace_subgraph
from torch._inductor.range_autotune.measuring import measure_ranges
from torch._inductor.range_autotune.ranges import Segment
from torch._inductor.range_autotune.registration import Registration
from torch._inductor.range_autotune.times import Failure, Timing


THREADS = 8
ENVIRONMENT = Environment("torch", "system", ("gpu",), ("cpu",), 4, "config", ("high",))
# Of ``SiteTestCase``: the second symbol's hint, and sizes in terms of both.
S1 = 6
EXPRESSIONS = {
    "s0": lambda s0, s1: s0,
    "twice": lambda s0, s1: 2 * s0,
    "plus_5": lambda s0, s1: s0 + 5,
    "half": lambda s0, s1: FloorDiv(s0, 2),
    "product": lambda s0, s1: s0 * s1,
    "sum": lambda s0, s1: s0 + s1,
    "affine": lambda s0, s1: 3 * FloorDiv(s0, 4) + 1,
}


def row_numbers(x):
    """What post-grad passes leave of ``torch.arange(x.shape[0])``."""
    return torch.ops.prims.iota(
        x.shape[0],
        start=0,
        step=1,
        dtype=torch.int64,
        device=x.device,
        requires_grad=False,
    )


@contextlib.contextmanager
def made_up_times(ms, dim=0):
    """
    Replaces timing: candidates are run once, and take ``ms(size, index)``, or fail with it.

    Yields:
        The sizes measured at, filled while the block runs.
    """
    sizes = []

    def time_candidates(runners, *_):
        times = {}
        for index, run in runners.items():
            size = run()[0].shape[dim]
            result = ms(size, index)
            times[index] = result if isinstance(result, Failure) else Timing(result)
        sizes.append(size)
        return times

    with mock.patch.object(measure_ranges, "time_candidates", time_candidates):
        yield sizes


@contextlib.contextmanager
def guards_in_code_of(name, condition):
    """The code of candidates of some name guards on a condition on the size."""
    real = GraphLowering.codegen

    def codegen(graph):
        if name in (graph.name or ""):
            inputs = graph.graph_inputs.values()
            (size,) = (value for value in inputs if isinstance(value, sympy.Symbol))
            graph.sizevars.evaluate_expr(condition(size))
        return real(graph)

    with mock.patch.object(GraphLowering, "codegen", codegen):
        yield


def only(index):
    """As ``made_up_times`` takes them: one candidate is the best everywhere."""
    return lambda _, i: 1.0 if i == index else 2.0


def one_config_each(sizes, at, usual, measure_within, worth):
    """In the place of ``configs_by_range``: a winner's kernels have one config each."""
    return [Segment(sizes, ())]


def in_threads(call, number=THREADS):
    """What a call returns or raises in each of many threads that start together."""
    results = [None] * number
    barrier = threading.Barrier(number)

    def run(i):
        barrier.wait()
        try:
            results[i] = call()
        except BaseException as e:
            results[i] = e

    started = [threading.Thread(target=run, args=(i,)) for i in range(number)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return results


@contextlib.contextmanager
def compilers():
    """Gathers the command lines of the compilers of C++ kernels."""
    commands = []

    def run(command, *args, **kwargs):
        if re.search(r"\.(main|unit)\.cpp", command):  # not a header, nor a test
            commands.append(command)
        return run_compile_cmd(command, *args, **kwargs)

    with mock.patch("torch._inductor.cpp_builder.run_compile_cmd", run):
        yield commands


def made_fx(fn):
    """As upstream's templates make the graph of a choice."""
    return make_fx(fn, select_decomp_table(), tracing_mode="symbolic")


def dense_layout(node, size=None):
    """Contiguous, as large as a node."""
    return ir.FixedLayout(node.get_device(), node.get_dtype(), size or node.get_size())


@contextlib.contextmanager
def winner_tables():
    """Gathers those of the call sites that are decided while the block runs."""
    tables = []
    decide = lowering.decide

    def spy(tuning):
        tables.append(decide(tuning))
        return tables[-1]

    with mock.patch.object(lowering, "decide", spy):
        yield tables


class MadeUpJitFunction:
    """In place of Triton's ``JITFunction``, as far as it matters what one consists of."""

    def __init__(self, fn, src="def body", do_not_specialize=(), noinline=None):
        self.fn, self.src = fn, src
        self.do_not_specialize, self.noinline = list(do_not_specialize), noinline
        self.arg_names, self.cache_key = ["x", "BLOCK"], src
        self.device_caches = {}

    def launch(self):
        self.device_caches[0] = lambda: None


class MadeUpConfig:
    """In place of Triton's ``Config``, which has no ``__repr__`` either."""

    def __init__(self, kwargs, num_warps=4, maxnreg=None, pre_hook=None):
        self.kwargs, self.num_warps = kwargs, num_warps
        self.maxnreg, self.pre_hook = maxnreg, pre_hook


class MadeUpAutotuner:
    """In place of Triton's ``Autotuner``."""

    def __init__(
        self, fn, configs, key, reset_to_zero=(), restore_value=(), **prune_by
    ):
        self.fn, self.configs, self.keys = fn, configs, key
        self.reset_to_zero, self.restore_value = (
            list(reset_to_zero),
            list(restore_value),
        )
        self.perf_model = prune_by.get("perf_model")
        self.configs_top_k = prune_by.get("configs_top_k", 1.0)
        self.early_config_prune = prune_by.get("early_config_prune")
        self.pre_hook = lambda kwargs: self.restore_value and 0
        self.post_hook = lambda kwargs, exception: 0
        self.cache = {}

    def launch(self):
        self.nargs, self.best_config = {"x": object()}, self.configs[-1]
        self.cache[1, "torch.float32"] = self.best_config
        self.fn.launch()


class MadeUpHeuristics:
    """In place of Triton's ``Heuristics``."""

    def __init__(self, fn, values):
        self.fn, self.values = fn, values

    def launch(self):
        self.fn.launch()


def made_up_triton():
    """A context in which these are the classes of Triton."""
    jit = types.SimpleNamespace(JITCallable=MadeUpJitFunction)
    autotuner = types.SimpleNamespace(
        Autotuner=MadeUpAutotuner, Config=MadeUpConfig, Heuristics=MadeUpHeuristics
    )
    modules = {"triton.runtime.jit": jit, "triton.runtime.autotuner": autotuner}
    return mock.patch.dict(sys.modules, modules)


class OpTestCase(TestCase):
    """Tests with ops and registrations of their own."""

    def setUp(self):
        super().setUp()
        scope = torch.library._scoped_library("range_autotune_test", "FRAGMENT")
        self._library = self.enterContext(scope)
        self.enterContext(mock.patch.dict(user_lowerings))

    def define_op(self, schema: str) -> torch._ops.OpOverload:
        """An op without kernels from a schema such as ``f(Tensor x) -> Tensor``."""
        name = self._library.define(schema)
        return getattr(torch.ops.range_autotune_test, name).default

    def register(self, op, *args, **kwargs) -> Registration:
        """What ``register_custom_op_autotuning`` registered."""
        register_custom_op_autotuning(op, *args, **kwargs)
        return user_lowerings[getattr(op, "_opoverload", op)].registration

    def assert_raises_inline(self, error: type[Exception], call, expected: str) -> None:
        """``call`` raises exactly ``error`` with the expected text, written in place."""
        with self.assertRaises(error) as caught:
            call()
        self.assertIs(type(caught.exception), error)
        self.assertExpectedInline(str(caught.exception), expected, skip=1)


class ExpTestCase(OpTestCase):
    """Tests with an op that is ``exp``, of vectors of a dynamic size."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        self.op = self.define_op("op(Tensor x) -> Tensor")
        self._library.impl("op", torch.exp, "CPU")
        self._library.impl("op", torch.empty_like, "Meta")

    def winner_table(self, size, others):
        """That of a model with the op, compiled at a size; its results are right at others."""
        torch._dynamo.reset()
        x = torch.randn(size)
        torch._dynamo.mark_dynamic(x, 0)
        compiled = torch.compile(self.op)
        with winner_tables() as tables:
            compiled(x)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for other in others:
                x = torch.randn(other)
                self.assertEqual(compiled(x), x.exp())
        return tables[0]


class SymbolicTestCase(TestCase):
    """With an empty graph under compilation, its shape environment and fake mode."""

    def setUp(self):
        super().setUp()
        self.shape_env = ShapeEnv()
        graph = torch.fx.Graph()
        graph.output(())
        module = torch.fx.GraphModule({}, graph)
        lowering = GraphLowering(module, shape_env=self.shape_env)
        self.fake_mode = FakeTensorMode(shape_env=self.shape_env)
        self.enterContext(V.set_graph_handler(lowering))
        self.enterContext(V.set_fake_mode(self.fake_mode))

    def symbol(self, name, hint, bounds=None):
        """A symbolic size, maybe with declared bounds, both included."""
        declared = bounds and StrictMinMaxConstraint(False, ValueRanges(*bounds))
        return self.shape_env.create_symbol(
            hint,
            ConstantSource(name),
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=declared,
        )

    def guard(self, condition):
        """The compiled code is for sizes that meet a condition, as the hints do."""
        self.assertTrue(self.shape_env.evaluate_expr(condition))

    def tensor(self, size, stride=None, dtype=torch.float32, offset=0):
        """An IR tensor with symbolic sizes, contiguous without strides."""
        size = [sympy.sympify(s) for s in size]
        stride = stride or ir.FlexibleLayout.contiguous_strides(size)
        offset = sympy.sympify(offset)
        layout = ir.FixedLayout(torch.device("cpu"), dtype, size, stride, offset)
        buffer = ir.InputBuffer(name="made_up", layout=layout)
        return ir.TensorBox(ir.StorageBox(buffer))


class SiteTestCase(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        self.s0 = self.symbol("s0", 100)
        self.s1 = self.symbol("s1", S1)

    def site(self, **arguments):
        """A call of an op with IR tensors, lists of them, and symbolic integers."""
        leaves, spec = pytree.tree_flatten(
            arguments, is_leaf=lambda x: isinstance(x, ir.IRNode)
        )
        slots = [Slot(i) for i in range(len(leaves))]
        nested = pytree.tree_unflatten(slots, spec)
        return CallSite(torch.ops.aten.mul.Tensor, nested, tuple(leaves))


class CallTestCase(OpTestCase, SymbolicTestCase):
    """With a tensor that an op is called with."""

    def setUp(self):
        super().setUp()
        counters.clear()
        self.s0 = self.symbol("s0", 100)
        self.x = self.tensor([self.s0, 4])

    def op_with_fake(self, schema, fake):
        op = self.define_op(schema)
        torch.library.register_fake(op._name, fake, lib=self._library)
        return op


class GraphTestCase(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        counters.clear()
        self.s0 = self.symbol("s0", 100)
        self.x = self.tensor([self.s0, 4])
        self.y = self.tensor([self.s0, 4])

    def fakes(self, *nodes):
        with V.fake_mode:
            return [ir.ir_node_to_tensor(node) for node in nodes or (self.x,)]

    def trace(self, fn, *nodes, **kwargs):
        return trace_subgraph(fn, self.fakes(*nodes), **kwargs)

    def targets(self, gm):
        return [node.target for node in gm.graph.nodes if node.op == "call_function"]


def run_script(script):
    """In a process of its own, that must come to its end."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
