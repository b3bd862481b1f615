"""
What a model itself writes to places of its inputs, such as rows of a layer's part of a cache.

An FX pass in front of the one that forms regions, which take in what is written in place.
Functionalization has new tensors that are copied back: the part, or all of the input. The post-grad
passes undo that for the rows of a whole input only.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch

from ..graphs.node_kinds import is_given, is_on_user_stream
from ..graphs.node_memory import (
    memory_of,
    readers_of_memory,
    tensors_written,
    users_of_memory,
    writers_of_memory,
)
from ..graphs.symbolic_graphs import copied
from .memory_layout import share_elements
from .written_places import changes_to, try_make_changes_in_place


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_copy_ = torch.ops.aten.copy_.default


def write_places_only(gm: torch.fx.GraphModule) -> None:
    """
    Has what is computed for places of the graph's inputs written there.

    Args:
        gm: a post-grad graph with fake values in its metadata; changed in place.
    """
    if any(map(is_on_user_stream, gm.graph.nodes)):
        return
    left = {write.name for write in _writes_of_changes(gm.graph)}
    while left:
        changed = copied(gm)
        failed = _write_in_place(changed.graph, left)
        if not failed:
            changed.graph.lint()
            gm.graph = changed.graph
            gm.recompile()
            return
        left -= failed  # the graph that these have failed in is of no use


def _write_in_place(graph: torch.fx.Graph, names: Collection[str]) -> set[str]:
    """
    Has changes made where some copies put them.

    Args:
        names: of the copies.

    Returns:
        Those for which it cannot be; of several to one tensor the first, with which the others
        may yet be made.
    """
    failed: dict[torch.fx.Node, str] = {}
    for write in [w for w in _writes_of_changes(graph) if w.name in names]:
        memory = memory_of(write)
        if memory not in failed and not _try_make_in_place(write):
            failed[memory] = write.name
    return {*failed.values()}


def _writes_of_changes(graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The copies to an input of what has some places of it changed."""
    for write in graph.find_nodes(op="call_function", target=_copy_):
        to: Any = write.args[0]
        changes = changes_to(write) if is_given(memory_of(to)) else []
        source: Any = min(changes).args[0] if changes else None
        if changes and memory_of(source) is memory_of(to):
            yield write


def _try_make_in_place(write: torch.fx.Node) -> bool:
    """Has changes made where they are copied to, if they can be."""
    to: Any = write.args[0]
    changes = changes_to(write)
    reads_change = {user for change in changes for user in users_of_memory(change)}
    if _is_written_by_others(to, min(changes), max([write, *reads_change])):
        return False
    behind = {node for node in readers_of_memory(to) if node >= write} - reads_change
    if not try_make_changes_in_place(write, _copy_, {write, *behind}):
        return False
    write.replace_all_uses_with(to)
    write.graph.erase_node(write)
    return True


def _is_written_by_others(
    to: torch.fx.Node, first: torch.fx.Node, last: torch.fx.Node
) -> bool:
    """Whether elements are written between two nodes, but by their copy."""
    return any(
        first < writer < last and share_elements(other, to)
        for writer in writers_of_memory(memory_of(to))
        for other in tensors_written(writer)
        if other is not to
    )
