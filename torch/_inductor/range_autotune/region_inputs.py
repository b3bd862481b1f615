"""What a region's graph does with its inputs: which it writes to, which tell it where."""

from __future__ import annotations

from typing import Any

import torch

from .node_kinds import indexed, is_any_view, is_number, memory_of
from .write_ops import stands_for_write


def places_given(graph: torch.fx.Graph) -> dict[int, list[Any]]:
    """
    Inputs of a region's graph that tell where it reads a table, such as an embedding's, or
    writes, and nothing else.

    Returns:
        By their index, how many places there are in each of the dimensions that they are
        for; as in the metadata.
    """
    told: dict[torch.fx.Node, list[Any]] = {}
    for node in graph.nodes:
        for index, size in indexed(node):
            told.setdefault(index, []).append(size)
    inputs = graph.find_nodes(op="placeholder")
    return {
        i: told[index]
        for i, index in enumerate(inputs)
        if index in told and all(_tells_where(index, user) for user in index.users)
    }


def _tells_where(index: torch.fx.Node, user: torch.fx.Node) -> bool:
    return any(index is other for other, _ in indexed(user))


def written_outputs(graph: torch.fx.Graph) -> dict[int, int]:
    """
    Of a region's graph, outputs that are written: by index among the tensors, which input is
    written to.
    """
    inputs = graph.find_nodes(op="placeholder")
    returned: Any = graph.output_node().args[0]
    return {
        i: inputs.index(memory_of(node.args[0]))
        for i, node in enumerate(node for node in returned if not is_number(node))
        if stands_for_write(node)
    }


def unread_outputs(graph: torch.fx.Graph) -> set[int]:
    """Of a region's graph, outputs that nobody reads: by index among the tensors."""
    returned: Any = graph.output_node().args[0]
    tensors = [node for node in returned if not is_number(node)]
    return {i for i, node in enumerate(tensors) if node.kwargs.get("unread")}


def updated_inputs(graph: torch.fx.Graph) -> set[int]:
    """Inputs of a region's graph that are read there and written to: by their index."""
    inputs = graph.find_nodes(op="placeholder")
    read = {memory_of(value) for node in graph.nodes for value in values_read(node)}
    return {at for at in written_outputs(graph).values() if inputs[at] in read}


def values_read(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose values it takes to compute a node, not only their layout."""
    if node.op != "call_function" or is_any_view(node) or stands_for_write(node):
        return []
    is_copy = node.target is torch.ops.aten.copy.default
    return [
        read for read in node.all_input_nodes if not (is_copy and read is node.args[0])
    ]
