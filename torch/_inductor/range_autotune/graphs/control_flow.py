"""A graph with the graphs of the control flow in it, and copies of what one returns."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.fx import GraphModule, Node


def all_graphs(gm: GraphModule) -> Iterator[GraphModule]:
    """A graph and those of the control flow in it."""
    return (m for m in gm.modules() if isinstance(m, torch.fx.GraphModule))


def all_nodes(gm: GraphModule) -> Iterator[Node]:
    """The nodes of a graph and of the control flow in it."""
    return (node for graph in all_graphs(gm) for node in graph.graph.nodes)


def all_called(gm: GraphModule) -> Iterator[Any]:
    """What those nodes call, and the ops that are given to a higher-order op among these."""
    for node in all_nodes(gm):
        yield from filter(callable, (node.target, *node.args))


def copy_for_output(node: Node) -> Node:
    """A copy of a tensor, made in front of its graph's output."""
    with node.graph.inserting_before(node.graph.output_node()):
        copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = {**node.meta}
    return copy
