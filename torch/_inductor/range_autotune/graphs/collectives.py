"""Which candidates contain collectives, and the ranks that must then decide as one."""

from __future__ import annotations

import re
from typing import Any, TYPE_CHECKING

import torch.distributed as dist

import torch

from ...utils import is_collective_op
from ..contents.content import content_text, Unhashable
from ..registering.signatures import argument_names
from .control_flow import all_nodes
from .node_kinds import arguments_of


if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..measuring.ranks import Ranks

# What code that runs collectives mentions: a namespace of ops, a module, a name.
_COLLECTIVE = re.compile(
    r"c10d|symm_mem|torch\.distributed|'distributed'"
    r"|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
)


def has_collective(graphs: Iterable[torch.fx.GraphModule]) -> bool:
    """Whether any of the graphs calls a collective."""
    return any(_is_collective(n) for graph in graphs for n in all_nodes(graph))


def _is_collective(node: torch.fx.Node) -> bool:
    """Whether Inductor knows it as one, or it is told a group of ranks."""
    op = node.target
    if not isinstance(op, torch._ops.OpOverload):
        return False
    return "group_name" in argument_names(op) or is_collective_op(f"torch.ops.{op}")


def mentions_collective(registered: object) -> bool:
    """
    Whether the code of what is registered may run collectives, by the names in it.

    The same on every rank, where a trace may fail on one. Says yes rather than no; no for
    what cannot be read.
    """
    try:
        return _COLLECTIVE.search(content_text(registered)) is not None
    except Unhashable:
        return False


def can_measure() -> bool:
    """Whether there is a group of ranks to measure with."""
    return (
        dist.is_available() and dist.is_initialized() and dist.get_backend() != "fake"
    )


def several_ranks() -> bool:
    """Whether a decision may concern other processes than this one."""
    return can_measure() and dist.get_world_size() > 1


def ranks_of(graphs: Iterable[torch.fx.GraphModule]) -> Ranks:
    """
    Who takes the decision: the ranks of the one group that the graphs' collectives use.

    With other stages of a pipeline there is nothing to agree on, and they may never
    compile the op. All ranks where groups differ or none is named.
    """
    names = {_group_name(n) for graph in graphs for n in all_nodes(graph)}
    groups = {ranks for name in names if name and (ranks := _members(name))}
    return groups.pop() if len(groups) == 1 else tuple(range(dist.get_world_size()))


def _group_name(node: torch.fx.Node) -> str | None:
    name = arguments_of(node).get("group_name")
    return name if isinstance(name, str) else None


def _members(name: Any) -> Ranks | None:
    """A group's ranks; None for one that is not known, or not this rank's."""
    try:
        group = dist.distributed_c10d._resolve_process_group(name)
    except Exception:
        return None
    ranks = tuple(sorted(dist.get_process_group_ranks(group)))
    return ranks if dist.get_rank() in ranks else None
