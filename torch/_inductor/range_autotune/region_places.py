"""Integers that tell a region where to read tables, such as an embedding's, or to write."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from .node_kinds import indexed


if TYPE_CHECKING:
    import torch


def places_given(graph: torch.fx.Graph) -> dict[int, list[Any]]:
    """
    Inputs of a region's graph that tell where it reads or writes, and nothing else.

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
