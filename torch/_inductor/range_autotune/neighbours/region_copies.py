"""What a region and others compute each for themselves, where neither has to store it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true

import torch

from ..graphs.node_kinds import (
    is_any_view,
    is_gather,
    is_made_of_sizes,
    is_pointwise,
    is_view,
    readers,
)
from ..graphs.node_memory import memory_of


if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


def is_free(node: torch.fx.Node) -> bool:
    """Whether a node may be computed again wherever it is read: it reads no memory."""
    return is_view(node) or is_made_of_sizes(node)


def with_copies(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """
    A region's nodes, with copies in place of those that readers outside can compute for
    themselves, as where the op is not registered; the originals stay outside.

    Args:
        nodes: in the order of the graph, which gets the copies.
    """
    members = set(nodes)
    again = _computed_again(nodes)
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in nodes:
        if node in again:
            copies[node] = _copy_of(node, copies)
            node.replace_all_uses_with(
                copies[node], delete_user_cb=(members - again).__contains__
            )
    return [copies.get(node, node) for node in nodes]


def _copy_of(
    node: torch.fx.Node, copies: Mapping[torch.fx.Node, torch.fx.Node]
) -> torch.fx.Node:
    with node.graph.inserting_after(node):
        return node.graph.node_copy(node, lambda read: copies.get(read, read))


def _computed_again(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """What others compute, too; of free nodes, all that these read."""
    members = set(nodes)
    again: set[torch.fx.Node] = set()
    for node in reversed(nodes):
        if not (is_free(node) or is_any_view(node)):
            again |= _cheap_again(node, members)
        elif not all(user in members and user not in again for user in node.users):
            again.add(node)
    return again


def _cheap_again(
    node: torch.fx.Node, members: Collection[torch.fx.Node]
) -> set[torch.fx.Node]:
    """
    A node and those of the region that it is computed with, if its other readers are
    pointwise and computing it again reads no more than storing and loading it would. Else
    nothing.
    """
    others = {reader for reader in readers(node) if reader not in members}
    if not (others and _is_cheap(node) and all(map(is_pointwise, others))):
        return set()
    parts, read = _computed_with(node, members)
    if not (parts and all(map(_is_stored, read))):
        return set()
    value = node.meta["val"]
    loaded = [*read, *filter(is_gather, parts)]  # of a table what is gathered
    tensors = [x for r in loaded if isinstance(x := r.meta.get("val"), torch.Tensor)]
    bytes_read = sum(x.dtype.itemsize for x in tensors if _same_numel(x, value))
    own = value.dtype.itemsize
    return parts if len(others) * (bytes_read - own) <= own else set()


def _same_numel(a: torch.Tensor, b: torch.Tensor) -> bool:
    return statically_known_true(a.numel() == b.numel())


def _computed_with(
    node: torch.fx.Node, members: Collection[torch.fx.Node]
) -> tuple[set[torch.fx.Node], set[torch.fx.Node]]:
    """
    A node and those of the region that it is computed with, and what these read outside;
    nothing if one of them is neither free nor cheap work that nobody outside reads.
    """
    parts, outside = [node], set()
    for part in parts:  # grows
        for read in part.all_input_nodes:
            if read not in members:
                outside.add(read)
            elif not (is_free(read) or _is_cheap_inside(read, members)):
                return set(), set()
            elif read not in parts:
                parts.append(read)
    return set(parts), outside


def _is_cheap_inside(node: torch.fx.Node, members: Collection[torch.fx.Node]) -> bool:
    return _is_cheap(node) and all(reader in members for reader in readers(node))


def _is_cheap(node: torch.fx.Node) -> bool:
    return is_pointwise(node) or is_gather(node)


def _is_stored(node: torch.fx.Node) -> bool:
    """Whether a node, or what it shows another view of, is no cheap work."""
    return not _is_cheap(memory_of(node))
