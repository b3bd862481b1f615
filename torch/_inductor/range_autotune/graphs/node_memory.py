"""The memory that values of a graph's nodes are in; who reads it, and who writes to it."""

from __future__ import annotations

import operator
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch

from ...utils import is_view as aliases
from .functional import arguments_written
from .node_kinds import is_any_view, is_number, is_part_or_alias
from .write_ops import stands_for_write


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

# An attribute of what is called for a region in its graph: which arguments it writes to.
REGION_WRITES = "_autotuned_region_writes"


def shares_memory(node: torch.fx.Node) -> bool:
    """Whether a node's value is in the memory of one that it reads."""
    return is_part_or_alias(node) and not _is_part_apart(node)


def _is_part_apart(node: torch.fx.Node) -> bool:
    """Whether a node is a part of what returns tensors that each have memory of their own."""
    call: Any = node
    while call.target is operator.getitem:
        call = call.args[0]
    if isinstance(call.target, torch._ops.OpOverload):
        return not aliases(call.target)
    return hasattr(call.target, REGION_WRITES)


def memory_of(node: torch.fx.Node) -> torch.fx.Node:
    """The node whose value has memory of its own, in which a node's value is."""
    while shares_memory(node):
        node = node.all_input_nodes[0]
    return node


def aliases_of(memory: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A node, and all that are views of it."""
    yield memory
    for user in memory.users:
        if shares_memory(user) and user.all_input_nodes[0] is memory:
            yield from aliases_of(user)


def memory_written(node: torch.fx.Node) -> set[torch.fx.Node] | None:
    """
    The memory that a node writes to, see ``memory_of``: nodes are not moved past that
    unseen. None if it cannot be told.
    """
    target: Any = node.target
    if isinstance(target, torch._ops.OpOverload):
        tensors = tensors_written(node)
    elif node.op != "call_function" or target is operator.getitem or is_number(node):
        tensors = ()
    elif hasattr(target, REGION_WRITES):
        tensors = [node.args[at] for at in getattr(target, REGION_WRITES)]
    else:
        return None
    return {*map(memory_of, tensors)}


def tensors_written(node: torch.fx.Node) -> Sequence[Any]:
    """The nodes of what an op or a Triton kernel writes to, or stands for a write to."""
    return node.args[:1] if stands_for_write(node) else arguments_written(node)


def reads_from(node: torch.fx.Node, memory: Collection[torch.fx.Node]) -> bool:
    """Whether a node is given something in some memory, see ``memory_of``."""
    return bool(memory) and any(memory_of(i) in memory for i in node.all_input_nodes)


def readers_of_memory(value: Any) -> Iterator[torch.fx.Node]:
    """
    The nodes that are given a value's memory, whatever the view of it, in their order; but for
    those that stand for writes to it.
    """
    memory = memory_of(value)
    for node in memory.graph.nodes:
        if not is_any_view(node) and any(
            memory_of(given) is memory for given in _given(node)
        ):
            yield node


def reads_of(
    memory: torch.fx.Node, nodes: Iterable[torch.fx.Node]
) -> Iterator[torch.fx.Node]:
    """The nodes in a value's memory that are read, however far back, for what nodes return."""
    found = dict.fromkeys(nodes)
    left = [*found]
    for node in left:  # grows
        if memory_of(node) is memory:
            yield node
            continue
        left += [read for read in node.all_input_nodes if read not in found]
        found.update(dict.fromkeys(node.all_input_nodes))


def _given(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What a node is given, but for what it stands for a write to."""
    if not stands_for_write(node):
        return node.all_input_nodes
    to, *others = node.args
    leaves = pytree.tree_leaves(others)
    return [x for x in leaves if isinstance(x, torch.fx.Node) and x is not to]


def users_of_memory(memory: torch.fx.Node) -> set[torch.fx.Node]:
    """The nodes that are given a node or a view of it; views, too."""
    return {user for alias in aliases_of(memory) for user in alias.users}


def writers_of_memory(memory: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose ops write to a node's memory."""
    return [
        user
        for user in users_of_memory(memory)
        if memory in map(memory_of, arguments_written(user))
    ]


def values_read(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes whose values it takes to compute a node, not only their layout."""
    if node.op != "call_function" or is_any_view(node) or stands_for_write(node):
        return []
    is_copy = node.target is torch.ops.aten.copy.default
    return [
        read for read in node.all_input_nodes if not (is_copy and read is node.args[0])
    ]
