"""Graphs at symbolic sizes: traced, copied, and inlined into the graph being compiled."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any, TYPE_CHECKING

from torch._C._dynamo.eval_frame import set_fullgraph_compiled_frame_count
from torch._dynamo import config as dynamo_config
from torch.fx.experimental.symbolic_shapes import resolve_unbacked_bindings
from torch.fx.traceback import preserve_node_meta

import torch

from ...virtualized import V
from ..sizes.guards import frozen_shapes
from .captures import CapturesAsConstants, constants_may_be_real
from .cond_branches import with_tuples
from .functional import functionalized, has_effects
from .node_memory import aliases_of, writers_of_memory
from .write_ops import OWN


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

log = logging.getLogger("torch._inductor.codegen.subgraph")


def trace_subgraph(
    fn: Callable[..., Any],
    fake_inputs: Sequence[Any],
    decomposition_table: Mapping[Any, Callable[..., Any]] | None = None,
) -> torch.fx.GraphModule:
    """
    The FX graph of ``fn`` at symbolic sizes, without writes to its inputs' or its own
    tensors. Tensors that ``fn`` captures become attributes of it.

    Args:
        fake_inputs: fake tensors and SymInts of the graph being compiled; each becomes
            a placeholder.
        decomposition_table: Inductor's by default.

    Raises:
        _ShapeEnvGuardError: if ``fn`` depends on a size being this or that.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    from ...decomposition import select_decomp_table

    table = (
        select_decomp_table() if decomposition_table is None else decomposition_table
    )
    # Those of `add` are registered for `add.out`, too, which they cannot be called as.
    table = {op: fn for op, fn in table.items() if not _writes_to_out(op)}

    def trace(
        traced: Callable[..., Any], inputs: Sequence[Any]
    ) -> torch.fx.GraphModule:
        with preserve_node_meta(), frozen_shapes(), compiled_functions_inlined():
            return make_fx(
                traced,
                decomposition_table=table,
                tracing_mode="symbolic" if V.fake_mode.shape_env else "fake",
            )(*inputs)

    def with_constants(*inputs: Any) -> Any:
        with CapturesAsConstants(V.fake_mode):
            return fn(*inputs)

    # Of the graph, for decompositions write to their own tensors, too.
    gm = functionalized(trace(with_constants, fake_inputs), fake_inputs, trace)
    gm = with_tuples(gm)
    _read_arguments_themselves(gm.graph)
    gm.graph.eliminate_dead_code(has_effects)
    gm.recompile()
    return gm


def _read_arguments_themselves(graph: torch.fx.Graph) -> None:
    """Has code that does not write to its own copy of an argument read that itself."""
    for own in graph.find_nodes(op="call_function", target=OWN):
        if not any(writers_of_memory(own)):
            with frozen_shapes():
                read_instead(own, own.args[0])  # type: ignore[arg-type]  # a node
            graph.erase_node(own)


@functools.cache
def _writes_to_out(op: Any) -> bool:
    is_op = isinstance(op, torch._ops.OpOverload)
    return is_op and any(argument.is_out for argument in op._schema.arguments)


@contextlib.contextmanager
def compiled_functions_inlined() -> Iterator[None]:
    """
    In the block functions that are compiled without graph breaks are traced as others are.

    Dynamo leaves functions alone in a trace, and takes that for an error where no graph break
    is allowed, unless such a compilation is under way, as if this were a part of it. Those of
    control flow it compiles in each trace, which is no recompilation of the model.
    """
    before = set_fullgraph_compiled_frame_count(0)
    try:
        with dynamo_config.patch(error_on_recompile=False):
            yield
    finally:
        set_fullgraph_compiled_frame_count(before)


def inline_subgraph_to_ir_nodes(
    gm: torch.fx.GraphModule, inputs: list[Any], name: str
) -> Any:
    """
    Lowers a graph into the graph being compiled, where its nodes can be fused.

    Args:
        inputs: IR nodes (or sympy expressions for SymInts), one for each placeholder.
        name: of the op, for the debug log.

    Returns:
        What the graph returns, as IR nodes.
    """
    from ...lowering import process_subgraph_nodes

    log.debug("Inlining %s: %d nodes", name, len(gm.graph.nodes))
    outer = V.graph.module
    V.graph.module = inlined = copied(gm)
    _expect_asserts_on_data(inlined)
    try:
        with constants_may_be_real():
            return process_subgraph_nodes(inlined, inputs)
    finally:
        V.graph.module = outer


def _expect_asserts_on_data(gm: torch.fx.GraphModule) -> None:
    """
    Lets the lowering make what is asserted of data of a graph, which was traced after the
    lowering had taken note of all assertions.
    """
    shape_env = V.graph.sizevars.shape_env
    asserted = shape_env.deferred_runtime_asserts
    for node in gm.graph.nodes:
        bound = resolve_unbacked_bindings(shape_env, node.meta.get("unbacked_bindings"))
        for symbol in bound or ():
            V.graph.ras_by_symbol.setdefault(symbol, [*asserted.get(symbol, ())])


def copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """With nodes of its own, to be inlined more than once, and its placeholders first."""
    graph = torch.fx.Graph()
    nodes: dict[torch.fx.Node, torch.fx.Node] = {}
    for placeholder in gm.graph.find_nodes(op="placeholder"):
        nodes[placeholder] = graph.node_copy(placeholder)
    output = graph.output(graph.graph_copy(gm.graph, nodes))
    output.meta = {**gm.graph.output_node().meta}
    return torch.fx.GraphModule(gm, graph)


def value_of(call: torch.fx.Node) -> Any:
    """What an op's call returns, fake; guards on sizes as calling it does."""
    op: Any = call.target
    args, kwargs = torch.fx.map_arg(
        (call.args, call.kwargs), lambda node: node.meta["val"]
    )
    with V.fake_mode:
        return op(*args, **kwargs)


def new_call(
    graph: torch.fx.Graph, op: Any, *args: Any, **kwargs: Any
) -> torch.fx.Node:
    """A call where the graph's next nodes are inserted, with what it returns, see ``value_of``."""
    call = graph.call_function(op, args, kwargs)
    call.meta["val"] = value_of(call)
    return call


def read_instead(node: torch.fx.Node, other: torch.fx.Node) -> list[torch.fx.Node]:
    """
    Has another node read in the place of one.

    Returns:
        The views of it, which are known to be in the other one's memory now.
    """
    _, *views = aliases_of(node)
    node.replace_all_uses_with(other)
    for view in views:
        view.meta["val"] = value_of(view)
    return views
