"""
What a region's graph does with its inputs: which it writes to, and in which parts; which tell it
where.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true

import torch

from ..graphs.node_kinds import indexed, is_any_view, is_given, is_number, is_view
from ..graphs.node_memory import aliases_of, memory_of, values_read
from ..graphs.write_ops import stands_for_write
from ..writes.memory_layout import share_elements


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator


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


def views_of_parts(
    memory: torch.fx.Node, members: Collection[torch.fx.Node]
) -> set[torch.fx.Node]:
    """
    The views by which alone a region sees an input of the graph, if they are of parts that have
    nothing in common, such as a layer's keys and values in the cache of all layers. It can be
    given the parts then, and is the same for each layer.
    """
    views: set[torch.fx.Node] = set()
    left = [memory] if is_given(memory) else []
    for seen in left:  # grows
        parts = [*_seen_in(seen, members)]
        if all(_is_part(part, seen) for part in parts) and not any(
            share_elements(a, b) for a, b in combinations(parts, 2)
        ):
            views.update(parts, (part.all_input_nodes[0] for part in parts))
            left += parts
    return views - {memory}


def _seen_in(
    seen: torch.fx.Node, members: Collection[torch.fx.Node]
) -> Iterator[torch.fx.Node]:
    """The members that are given a tensor, or an item of a list of views of it."""
    for user in seen.users:
        if user in members:
            is_list = isinstance(user.meta.get("val"), (list, tuple)) and is_view(user)
            yield from _seen_in(user, members) if is_list else [user]


def _is_part(view: torch.fx.Node, seen: torch.fx.Node) -> bool:
    """
    Whether a node is a view of less than all of another one, and what is a view of that does not
    tell where in all of the memory it lies.
    """
    if not is_any_view(view):
        return False
    _, *views = aliases_of(view)
    if any(further.target is torch.ops.aten.as_strided.default for further in views):
        return False
    part, whole = (node.meta["val"].numel() for node in (view, seen))
    return not statically_known_true(part == whole)


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
