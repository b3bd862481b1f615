"""Which nodes may be computed in each branch of a dispatch, next to those that are."""

from __future__ import annotations

import operator
from typing import Any, TYPE_CHECKING

import torch

from ..graphs.integer_division import divides_integers
from ..graphs.node_kinds import (
    is_computed_from_stored,
    is_elementwise,
    is_gather,
    is_index,
    is_row_reduction,
    is_view,
    readers,
)
from ..graphs.node_memory import memory_of, reads_from
from ..settings import fusion_types
from ..writes.in_place import are_of_one_call
from ..writes.region_writes import can_join_as_write, is_given_what_is_written
from ..writes.writes_as_values import is_write
from .dispatched_calls import (
    can_have_neighbours,
    dispatched_registration,
    have_one_size,
    made_by_user,
    registration_of_call,
    results_of,
)
from .joint import can_join
from .region_copies import is_free
from .row_reductions import (
    can_reduce_behind,
    can_reduce_in_front,
    is_result_of_row_reduction,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence


def can_follow(
    node: torch.fx.Node,
    calls: Sequence[torch.fx.Node],
    members: Collection[torch.fx.Node],
) -> bool:
    """Whether a node that reads the region may be computed in each branch."""
    if is_view(node) or (node.target is operator.getitem and node.args[0] in members):
        return True
    if is_row_reduction(node):
        return can_reduce_behind(node, calls, members)
    if "epilogue" not in fusion_types() or not _can_be_measured(node):
        return False
    return _is_on_device_of(node, calls)


def can_follow_as_call(node: torch.fx.Node, calls: Sequence[torch.fx.Node]) -> bool:
    """Whether a call that reads the region may be decided together with those in it."""
    if "cross_subgraph" not in fusion_types():
        return False
    if dispatched_registration(node) is None or not can_have_neighbours(node):
        return False
    return have_one_size([*calls, node]) and can_join(
        [registration_of_call(call) for call in (*calls, node)]
    )


def can_follow_as_write(
    node: torch.fx.Node,
    members: Collection[torch.fx.Node],
    behind: Collection[torch.fx.Node],
    producers: Collection[torch.fx.Node],
) -> bool:
    """Whether a node that writes what the region computes may do so in each branch."""
    if not is_write(node) or "epilogue" not in fusion_types():
        return False
    others = [member for member in members if not are_of_one_call(member, node)]
    if is_given_what_is_written(node, others):
        return False
    return can_join_as_write(node, members, behind, producers)


def can_precede(
    node: torch.fx.Node,
    calls: Sequence[torch.fx.Node],
    members: Collection[torch.fx.Node],
) -> bool:
    """
    Whether a node that the region reads may be computed in each branch.

    If others read it, too, joining must not force a new buffer. What has one size always,
    such as a weight, stays outside: one region is no better place than another.
    """
    if is_view(node):
        return True
    is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
    if is_tensor and not _is_on_device_of(node, calls):
        return False
    if is_free(node):
        return is_tensor
    if is_tensor and is_index(node.meta["val"]):
        return False
    reduction: Any = node.args[0] if is_result_of_row_reduction(node) else node
    if is_row_reduction(reduction):
        return can_reduce_in_front(reduction, calls, members)
    if not is_tensor:
        return False
    if not (_can_be_measured(node) or _can_gather(node, calls)):
        return False
    if all(reader in members for reader in readers(node)):
        return True
    symbolic = node.meta["val"]._has_symbolic_sizes_strides
    return symbolic and is_computed_from_stored(node)


def _can_gather(node: torch.fx.Node, calls: Iterable[torch.fx.Node]) -> bool:
    """
    Whether a node reads a table at places that may be made up: those that the user makes
    for an op are for that.
    """
    if not is_gather(node):
        return False
    made = {memory_of(value) for call in calls for value in made_by_user(call)}
    return not reads_from(node, made)


def _can_be_measured(node: torch.fx.Node) -> bool:
    """Whether a node is work on single elements, and its inputs may be made up."""
    return is_elementwise(node) and not divides_integers(node)


def is_step(node: torch.fx.Node) -> bool:
    """Whether a node counts for how deep a region may be, where a view does not."""
    return is_elementwise(node) or is_row_reduction(node) or is_gather(node)


def _is_on_device_of(node: torch.fx.Node, calls: Iterable[torch.fx.Node]) -> bool:
    device = node.meta["val"].device
    return any(device == result.device for result in results_of(calls))
