"""
A graph as a choice of Inductor's, such as an implementation of an op: compiled by itself to be
benchmarked, a buffer with a subgraph of its own where it wins.
"""

from __future__ import annotations

import functools
import itertools
import logging
import re
import threading
import uuid
from typing import Any, TYPE_CHECKING

import torch._inductor.config as config
from torch._dynamo.utils import counters
from torch._inductor.autotune_process import (
    SubgraphCPUBenchmarkRequest,
    SubgraphGPUBenchmarkRequest,
    TensorMeta,
)
from torch._inductor.codegen.common import KernelTemplate
from torch._inductor.runtime.benchmarking import benchmarker
from torch._inductor.utils import do_bench_using_profiling
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError

import torch
from torch._inductor import ir
from torch._inductor.range_autotune.candidates.contract import layout_of
from torch._inductor.range_autotune.contents.content import Unhashable
from torch._inductor.range_autotune.errors import one_line
from torch._inductor.range_autotune.graphs.graph_text import graph_text, SymbolNames
from torch._inductor.range_autotune.graphs.symbolic_graphs import (
    trace_subgraph,
)
from torch._inductor.range_autotune.modules.subgraph_module import generate_module
from torch._inductor.range_autotune.modules.threads import (
    as_from_here,
    loads_in_any_thread,
    Once,
    PYTHON_BUILDS_AST_IN_ONE_THREAD,
)
from torch._inductor.range_autotune.registering.signatures import implementation_name
from torch._inductor.range_autotune.sizes.guards import replaced, symbols_of


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import sympy

    from torch._inductor.range_autotune.modules.subgraph_module import SubgraphModule

    BenchmarkRequest = SubgraphGPUBenchmarkRequest | SubgraphCPUBenchmarkRequest
    InputGenFns = dict[int, Callable[[Any], torch.Tensor]]

log = logging.getLogger(__name__)

# Generating collects the guards of a whole shape environment.
_one_generates = threading.RLock()

# How a SubgraphBuffer lowers its graph; a benchmark of it must do the same.
_LOWERING_OF_SUBGRAPH_BUFFER: dict[str, Any] = {
    "max_autotune": False,
    "max_autotune_gemm": False,
    "max_autotune_gemm_backends": "ATEN",
    "benchmark_fusion": False,
    "pipeline_max_autotune_gemm": False,
}


class SubgraphChoiceCaller(ir.ChoiceCaller):
    """
    A graph as a choice of ``select_algorithm``, compiled to a module to be benchmarked.

    Compiling has two steps, each taken once: code is generated, with V's handlers and the
    config overrides that the choice was made under; and loaded, which compiles kernels.
    ``generate`` and ``precompile`` take them ahead of ``benchmark``, which takes those
    that are left. An error in either is kept, and raised by ``benchmark``.

    Args:
        input_nodes: IR tensors; their layouts are frozen here. Sizes may be symbolic,
            unbacked symbols are refused.
        layout: of the one output.
        make_fx_graph: called once with fake tensors (symbolic sizes) for the inputs;
            returns the GraphModule.
        input_gen_fns: by index of the input; makes the concrete tensor whose sizes stand
            for the symbols in benchmarks. Without one a symbol's hint stands for it.
    """

    def __init__(
        self,
        name: str,
        input_nodes: list[ir.Buffer],
        layout: ir.Layout,
        description: str,
        make_fx_graph: Callable[..., Any],
        input_gen_fns: InputGenFns | None = None,
    ) -> None:
        super().__init__(name, input_nodes, layout, description)
        for node in input_nodes:
            _check_backed(node)
            node.data.freeze_layout()  # type: ignore[attr-defined]
        with V.fake_mode:
            self.example_inputs = [ir.ir_node_to_tensor(node) for node in input_nodes]
            self.benchmark_inputs = [
                _benchmark_input(node, (input_gen_fns or {}).get(i))
                for i, node in enumerate(input_nodes)
            ]
        self.gm = make_fx_graph(*self.example_inputs)
        ir.gm_original_output_strides(self.gm)

        self.sym_inputs = symbols_of(input_nodes)
        self.sym_input_values = self._symbol_values(input_gen_fns or {})
        self.decomposition: Callable[..., Any] | None = None
        self.decomposition_kwargs: dict[str, Any] = {}
        self.config_patches: dict[str, Any] = {}
        self._generated: Once[SubgraphModule] = Once(as_from_here(self._generate))
        self._bmreq: BenchmarkRequest | None = None
        if config.pipeline_max_autotune_gemm:
            # The benchmark then runs in another process, and compiling needs V here.
            with V.fake_mode:
                self._bmreq = self._create_benchmark_request(self._module())

    def _symbol_values(self, generated: Collection[int]) -> list[int]:
        """
        One value for each of ``sym_inputs``, from the benchmark inputs' sizes.

        Args:
            generated: indices of inputs whose sizes count more than hints do.
        """
        known: dict[sympy.Expr, int] = {}
        for i in sorted(range(len(self.input_nodes)), key=lambda i: i in generated):
            sizes = map(replaced, self.input_nodes[i].get_size())
            known.update(zip(sizes, self.benchmark_inputs[i].shape))
        shape_env = V.graph.sizevars.shape_env
        return [
            int(known[symbol])
            if symbol in known
            else int(shape_env.optimization_hint(symbol, fallback=1))
            for symbol in self.sym_inputs
        ]

    def cache_decomposition(
        self, decomposition: Callable[..., Any], kwargs: dict[str, Any]
    ) -> None:
        """Remembers which implementation with which arguments the graph came from."""
        self.decomposition = decomposition
        self.decomposition_kwargs = kwargs

    def __str__(self) -> str:
        return f"SubgraphCaller({self.name})"

    def generate(self) -> None:
        """
        Generates the code, for ``precompile`` to load.

        To be called by the thread that lowers: it uses the shape environment.
        """
        try:
            self._generated.get()
        except Exception as e:
            log.debug("No code for %s", self.name, exc_info=e)

    def loads_in_any_thread(self) -> bool:
        """Whether ``precompile`` may run beside other threads, see there; generates."""
        try:
            return loads_in_any_thread(self._generated.get().source)
        except Exception:  # precompile takes the choice out
            return True

    def precompile(self) -> None:
        """
        Compiles the choice, in any thread; one that comes later waits.

        A choice that does not compile is marked as failed. Where ``generate`` was not
        called before, this does as much, and the lowering thread must wait meanwhile.
        """
        try:
            self._module()
        except Exception as e:
            log.warning("%s is left out, it does not compile: %s", self, one_line(e))
            self.mark_failed()

    def _generate(self) -> SubgraphModule:
        assert self.gm is not None
        # Without symbols the sizes are those of the benchmark inputs.
        inputs = self.example_inputs if self.sym_inputs else self.benchmark_inputs
        with _one_generates, config.patch(_LOWERING_OF_SUBGRAPH_BUFFER):
            return generate_module(
                self.gm, inputs, self.sym_inputs, self.name, self.config_patches
            )

    def _module(self) -> Any:
        return self._generated.get().load()

    def _create_benchmark_request(self, module: Any) -> BenchmarkRequest:
        on_cpu = self.layout.device.type == "cpu"
        request = SubgraphCPUBenchmarkRequest if on_cpu else SubgraphGPUBenchmarkRequest
        return request(
            kernel_name=self.name,
            input_tensor_meta=TensorMeta.from_irnodes(self.input_nodes),
            output_tensor_meta=TensorMeta.from_irnodes(self.layout),
            extra_args=(),
            module_path=module.__file__,
            module_cache_key=module.key,
            sym_input_values=self.sym_input_values,
        )

    @property
    def bmreq(self) -> BenchmarkRequest:
        """The request for a benchmark in another process."""
        assert self._bmreq is not None, (
            f"{self.name} has no benchmark request: pipeline_max_autotune_gemm was off "
            "when it was made"
        )
        return self._bmreq

    def benchmark(self, *args: Any, out: torch.Tensor) -> float:
        """
        The time of one call in ms; compiles where ``precompile`` did not.

        Args:
            args: concrete tensors, one for each input node.
            out: not written; the compiled graph allocates its output.

        Raises:
            What compiling raised, each time.
        """
        module = self._module()

        def call() -> Any:
            return module.call([*self.sym_input_values, *args])

        if self._benchmark_with_cudagraphs:
            return benchmarker.benchmark_gpu_with_cuda_graph(call)
        if config.profile_bandwidth_with_do_bench_using_profiling:
            return do_bench_using_profiling(call)
        return benchmarker.benchmark(call, device=benchmarker.infer_device(*args))

    def benchmark_collective(self, *args: Any, out: torch.Tensor) -> None:
        """Runs once; the caller keeps the ranks in step and takes the time."""
        self._module().call([*self.sym_input_values, *args])

    def hash_key(self) -> str:
        """
        Same graph at the same layouts under the same config, whatever the running number;
        constants and kernels that the graph has count by their contents.

        It is a key of timings on disk, and of what one precompilation serves.
        """
        assert self.gm is not None
        layouts = [(n.get_size(), n.get_stride()) for n in self.input_nodes]
        patches = sorted(self.config_patches.items())
        name = re.sub(r"_\d+$", "", self.name)
        try:
            graph = graph_text(self.gm.graph, SymbolNames(), self.gm)
        except Unhashable:
            graph = self._unlike_others
        return "-".join((name, str(layouts), graph, str(patches)))

    @functools.cached_property
    def _unlike_others(self) -> str:
        """In no other choice's key, not even of another process, where names recur."""
        return uuid.uuid4().hex

    def output_node(self) -> ir.TensorBox:
        """The choice as a buffer with a subgraph of its own."""
        assert self.gm is not None
        return ir.TensorBox.create(
            ir.SubgraphBuffer(
                layout=self.layout,
                input_nodes=self.input_nodes,
                gm=self.gm,
                example_inputs=self.example_inputs,
                subgraph_name=self.name,
                config_patches=self.config_patches or None,
            )
        )

    def info_dict(self) -> dict[str, Any]:
        """For the autotune log."""
        return {"backend": "subgraph", "kernel_name": self.name}

    def autoheuristic_id(self) -> str:
        """A name for AutoHeuristic."""
        return f"subgraph_{self.name}"


def precompilable(choices: Sequence[ir.ChoiceCaller]) -> set[ir.ChoiceCaller]:
    """
    The choices of one selection whose ``precompile`` may be called in threads.

    To be called by the thread that lowers; generates the code of subgraph choices.
    """
    offered: set[ir.ChoiceCaller] = set()
    for choice in choices:
        if isinstance(choice, SubgraphChoiceCaller):
            choice.generate()
            may = choice.loads_in_any_thread()
        else:
            may = not PYTHON_BUILDS_AST_IN_ONE_THREAD and hasattr(choice, "precompile")
        if may:
            offered.add(choice)
    return offered


def _check_backed(node: ir.Buffer) -> None:
    for exprs in (node.get_size(), node.get_stride()):
        unbacked = ir.get_free_symbols(exprs, unbacked_only=True)
        assert not unbacked, f"{node.get_name()} has data-dependent sizes: {unbacked}"


def _benchmark_input(
    node: ir.Buffer, generate: Callable[[Any], torch.Tensor] | None
) -> torch.Tensor:
    if generate is not None:
        return generate(node)
    return ir.ir_node_to_tensor(node, replace_symbols_with_hints=True)


class SubgraphTemplate(KernelTemplate):
    """Makes subgraph choices."""

    index_counter = itertools.count()

    def generate(  # type: ignore[override]  # a template of one kind takes its own arguments
        self,
        name: str,
        input_nodes: list[ir.Buffer],
        layout: ir.Layout,
        make_fx_graph: Callable[..., Any],
        description: str = "",
        input_gen_fns: InputGenFns | None = None,
        **kwargs: Any,
    ) -> SubgraphChoiceCaller:
        """One choice; its name gets a running number. See SubgraphChoiceCaller."""
        return SubgraphChoiceCaller(
            name=f"{name}_{next(SubgraphTemplate.index_counter)}",
            input_nodes=input_nodes,
            layout=layout,
            description=description,
            make_fx_graph=make_fx_graph,
            input_gen_fns=input_gen_fns,
        )

    def generate_custom_op_choices(
        self,
        name: str,
        decompositions: list[Callable[..., Any]],
        input_nodes: list[ir.Buffer],
        non_tensor_args: list[dict[str, Any]],
        default_impl: Callable[..., Any] | None = None,
        input_gen_fns: InputGenFns | None = None,
        config_patches_list: list[dict[str, Any]] | None = None,
    ) -> list[SubgraphChoiceCaller]:
        """
        One choice for each implementation with one tensor output.

        An implementation that guards on a size is left out and counted in
        ``counters["inductor"]["custom_op_decomp_guard_skips"]``.

        Args:
            decompositions: called with the tensors by position and, by keyword, what
                ``non_tensor_args`` has at the same place.
            default_impl: not needed any more: each layout comes from its own graph.
            config_patches_list: Inductor config for each.

        Raises:
            AssertionError: if two implementations return different layouts.
        """
        assert len(decompositions) == len(non_tensor_args), (
            f"{name}: {len(decompositions)} implementations but "
            f"{len(non_tensor_args)} dicts of arguments"
        )
        patches_list = config_patches_list or [{} for _ in decompositions]
        choices: list[SubgraphChoiceCaller] = []
        for fn, kwargs, patches in zip(decompositions, non_tensor_args, patches_list):
            _check_no_tensors(name, kwargs)
            try:
                gm = _trace_implementation(fn, kwargs, input_nodes)
            except _ShapeEnvGuardError as e:
                log.info("%s: leaving out %s: %s", name, implementation_name(fn), e)
                counters["inductor"]["custom_op_decomp_guard_skips"] += 1
                continue
            choice = self.generate(
                name=f"{name}_{_variant_name(implementation_name(fn), kwargs)}",
                input_nodes=input_nodes,
                layout=_output_layout(gm),
                make_fx_graph=lambda *_, gm=gm: gm,
                description=f"CustomOp {implementation_name(fn)}",
                input_gen_fns=input_gen_fns,
            )
            choice.cache_decomposition(fn, kwargs)
            choice.config_patches = patches
            choices.append(choice)
        _check_same_layout(name, choices)
        return choices


def _trace_implementation(
    fn: Callable[..., Any], kwargs: Mapping[str, Any], input_nodes: Sequence[ir.Buffer]
) -> torch.fx.GraphModule:
    for node in input_nodes:
        node.data.freeze_layout()  # type: ignore[attr-defined]  # of a TensorBox
    with V.fake_mode:
        fake_inputs = [ir.ir_node_to_tensor(node) for node in input_nodes]
    return trace_subgraph(lambda *tensors: fn(*tensors, **kwargs), fake_inputs)


def _check_no_tensors(name: str, kwargs: dict[str, Any]) -> None:
    for key, value in kwargs.items():
        assert not isinstance(value, (torch.Tensor, ir.Buffer)), (
            f"{name}: argument '{key}' is a tensor; tensors belong in input_nodes"
        )


def _variant_name(impl_name: str, kwargs: Mapping[str, Any]) -> str:
    """An identifier for an implementation with its arguments."""
    parts = [impl_name, *(f"{k}_{v}" for k, v in sorted(kwargs.items()))]
    return re.sub(r"\W", "_", "_".join(parts))


def _output_layout(gm: torch.fx.GraphModule) -> ir.FixedLayout:
    (result,) = gm.graph.find_nodes(op="output")[0].args
    assert isinstance(result, torch.fx.Node), (
        f"Expected single tensor output, got {type(result)}"
    )
    return layout_of(result.meta["val"])


def _check_same_layout(name: str, choices: Sequence[SubgraphChoiceCaller]) -> None:
    for choice in choices[1:]:
        first, other = choices[0].layout, choice.layout
        assert first == other, (
            f"Layout mismatch in custom op '{name}': {choice.name} returns {other}, "
            f"{choices[0].name} returns {first}"
        )
