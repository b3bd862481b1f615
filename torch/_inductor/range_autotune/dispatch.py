"""
Winner table to one graph: the winner's own, or a balanced tree of ``torch.cond``.

The tree is built as FX graphs and lowered in place. All levels get the same operands: the
symbols that sizes are made of, the dispatch dimension, and the call site's inputs.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from typing import Any, TYPE_CHECKING

import torch

from .. import config, ir
from ..codegen.subgraph import inline_subgraph_to_ir_nodes
from ..utils import convert_shape_to_inductor
from ..virtualized import V
from .compiling import mark_candidate


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sympy

    from .call_site import CallSite
    from .candidates import Outputs, TracedCandidate
    from .ranges import Segment

_CONFIG_PATCHES = "custom_op_config_patches"
# Subgraphs of one compiled graph share a namespace.
_branch_numbers = itertools.count()


def emit_winner(
    winner: TracedCandidate, site: CallSite, outputs: Outputs, realized: bool = False
) -> list[ir.TensorBox]:
    """
    Lowers one candidate into the graph, brought to the op's strides.

    Args:
        realized: whether values that could still be fused into what reads them become
            buffers, too.
    """
    patches = dict(winner.candidate.config_patches)
    first = len(V.graph.operations)
    with config.patch(patches):
        results = inline_subgraph_to_ir_nodes(
            winner.graph, list(site.inputs), winner.name
        )
        results = _with_strides_of(outputs, results, realized)
    _tag(V.graph.operations[first:], patches)
    return results


def _with_strides_of(
    outputs: Outputs, results: Sequence[Any], realized: bool
) -> list[ir.TensorBox]:
    """
    Brings results to the op's strides where their own are fixed.

    One whose layout is still open may be fused into what reads it, as any other value.
    """
    boxes = []
    for result, expected in zip(results, outputs.tensors):
        box = result if isinstance(result, ir.TensorBox) else ir.TensorBox(result)
        if realized:
            box.realize()
        if realized or _has_fixed_layout(box):
            strides = convert_shape_to_inductor(expected.stride())
            exact = ir.ExternKernel.require_exact_strides(box, strides)
            box = exact if isinstance(exact, ir.TensorBox) else ir.TensorBox(exact)
        boxes.append(box)
    return boxes


def _has_fixed_layout(box: ir.TensorBox) -> bool:
    if not ir.is_storage_and_layout(box):
        return False
    return not isinstance(box.get_layout(), ir.FlexibleLayout)


def _tag(operations: Sequence[Any], patches: Mapping[str, Any]) -> None:
    """Code generation reads an operation's config patches; subgraphs have their own."""
    for operation in operations if patches else ():
        operation.set_config_patches(dict(patches))
        for subgraph in operation.get_subgraphs():
            if subgraph.graph:
                _tag(subgraph.graph.operations, patches)


@dataclasses.dataclass(frozen=True)
class _Operands:
    """What every level of the tree is given: fake values and, at the root, IR."""

    names: tuple[str, ...]
    fakes: tuple[Any, ...]
    nodes: tuple[Any, ...]

    @classmethod
    def of(cls, site: CallSite, size: sympy.Expr) -> _Operands:
        create = V.graph.sizevars.shape_env.create_symintnode
        symbols = sorted({*site.symbols(), *size.free_symbols}, key=str)
        names = [*(f"symbol_{s}" for s in symbols), "dispatch_size"]
        names += [f"input_{i}" for i in range(len(site.inputs))]
        integers = (*symbols, size)
        return cls(
            tuple(names),
            (*(create(e, hint=None) for e in integers), *site.fake_inputs()),
            (*integers, *site.inputs),
        )

    def placeholders(self, graph: torch.fx.Graph) -> list[torch.fx.Node]:
        nodes = [graph.placeholder(name) for name in self.names]
        for node, fake in zip(nodes, self.fakes):
            node.meta["val"] = fake
        return nodes


def emit_dispatch(
    segments: Sequence[Segment[TracedCandidate]],
    size: sympy.Expr,
    site: CallSite,
    outputs: Outputs,
) -> list[ir.TensorBox]:
    """
    Lowers a choice among winners by the runtime value of a size, without a guard on it.

    Args:
        segments: two or more, sorted; together they hold every value of ``size``.
        size: the dispatch dimension, symbolic.
    """
    operands = _Operands.of(site, size)
    tree = _tree(segments, operands, outputs)
    first = len(V.graph.operations)
    results = inline_subgraph_to_ir_nodes(tree, list(operands.nodes), "dispatch")
    for operation in V.graph.operations[first:]:
        _tag_branches(operation)
    return list(results)


def _tree(
    segments: Sequence[Segment[TracedCandidate]],
    operands: _Operands,
    outputs: Outputs,
) -> torch.fx.GraphModule:
    """The graph of one subtree, of the form that a torch.cond branch has."""
    if len(segments) == 1:
        return _leaf(segments[0].winner, operands)
    half = len(segments) // 2
    below = _tree(segments[:half], operands, outputs)
    above = _tree(segments[half:], operands, outputs)
    return _branch(int(segments[half].sizes.start), below, above, operands, outputs)


def _leaf(winner: TracedCandidate, operands: _Operands) -> torch.fx.GraphModule:
    """A candidate's graph behind the placeholders of the tree."""
    graph = torch.fx.Graph()
    nodes = operands.placeholders(graph)
    inputs = winner.graph.graph.find_nodes(op="placeholder")
    inner = dict(zip(inputs, nodes[len(nodes) - len(inputs) :]))
    results = graph.graph_copy(winner.graph.graph, inner)
    graph.output(results)
    gm = torch.fx.GraphModule(winner.graph, graph)
    gm.meta[_CONFIG_PATCHES] = dict(winner.candidate.config_patches)
    mark_candidate(gm)
    return gm


def _branch(
    bound: int,
    below: torch.fx.GraphModule,
    above: torch.fx.GraphModule,
    operands: _Operands,
    outputs: Outputs,
) -> torch.fx.GraphModule:
    """``torch.cond(dispatch_size < bound, below, above, operands)``"""
    graph = torch.fx.Graph()
    root = torch.nn.Module()
    nodes = operands.placeholders(graph)
    at = operands.names.index("dispatch_size")
    predicate = graph.call_function(operator.lt, (nodes[at], bound))
    predicate.meta["val"] = operands.fakes[at] < bound
    branches = [_attach(root, graph, gm) for gm in (below, above)]
    chosen = graph.call_function(
        torch.ops.higher_order.cond, (predicate, *branches, tuple(nodes))
    )
    chosen.meta["val"] = list(outputs.tensors)
    results = []
    for i, tensor in enumerate(outputs.tensors):
        results.append(graph.call_function(operator.getitem, (chosen, i)))
        results[-1].meta["val"] = tensor
    graph.output(results)
    return torch.fx.GraphModule(root, graph)


def _attach(
    root: torch.nn.Module, graph: torch.fx.Graph, gm: torch.fx.GraphModule
) -> torch.fx.Node:
    name = f"size_branch_{next(_branch_numbers)}"
    root.add_module(name, gm)
    return graph.get_attr(name)


def branch_config(gm: torch.fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """
    The Inductor config under which a branch of ``torch.cond`` is lowered: that of the
    candidate in it, where there is one. Called by ``ir.Conditional``.
    """
    patches = gm.meta.get(_CONFIG_PATCHES)
    return config.patch(patches) if patches else contextlib.nullcontext()


def _tag_branches(operation: Any) -> None:
    """Gives the operations of each branch the config patches of its own candidate."""
    for subgraph in operation.get_subgraphs():
        patches = subgraph.graph_module.meta.get(_CONFIG_PATCHES)
        for inner in subgraph.graph.operations if subgraph.graph else ():
            if patches:
                inner.set_config_patches(dict(patches))
            _tag_branches(inner)
