"""Which reductions of rows may be computed in each branch, where that saves memory traffic."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import torch

from ..graphs.node_kinds import (
    is_elementwise,
    is_row_reduction,
    readers,
    without_views,
)
from ..ops.plain_bodies import are_generated
from ..settings import fusion_types


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence


def can_reduce_behind(
    reduction: torch.fx.Node,
    calls: Sequence[torch.fx.Node],
    members: Collection[torch.fx.Node],
) -> bool:
    """
    Whether a reduction that reads the region is one kernel with some of it: with the ops', or
    with work on single elements that makes what is reduced or reads that, too.

    Args:
        members: of the region so far.
    """
    if "reduction" not in fusion_types():
        return False
    if are_generated(calls):
        return True
    reduced = without_views(reduction.all_input_nodes[0])
    if reduced in members and is_elementwise(reduced):
        return True
    others = filter(is_elementwise, readers(reduced))
    return any(not _depends_on(other, reduction) for other in others)


def can_reduce_in_front(
    reduction: torch.fx.Node,
    calls: Sequence[torch.fx.Node],
    members: Collection[torch.fx.Node],
) -> bool:
    """The same of one that the region, and nobody else, reads."""
    if "reduction" not in fusion_types():
        return False
    found = [*_readers_of_results(reduction)]
    if not all(reader in members for reader in found):
        return False
    return are_generated(calls) or any(map(is_elementwise, found))


def parts_calls(node: torch.fx.Node, calls: Sequence[torch.fx.Node]) -> bool:
    """
    Whether a call behind a node had better be decided by itself: behind a reduction that is no
    kernel with the calls in front of it. What they have to store is read there anyway, and the
    layers of a model stay equal.
    """
    return is_row_reduction(node) and not are_generated(calls)


def is_result_of_row_reduction(node: torch.fx.Node) -> bool:
    """Whether a node is one of several results, such as a variance beside its mean."""
    return node.target is operator.getitem and is_row_reduction(node.args[0])  # type: ignore[arg-type]  # a node


def _readers_of_results(reduction: torch.fx.Node) -> Iterator[torch.fx.Node]:
    if isinstance(reduction.meta["val"], torch.Tensor):
        yield from readers(reduction)
    else:
        for result in reduction.users:
            yield from readers(result)


def _depends_on(node: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether a node is computed from another one."""
    left, seen = [node], {node}
    for source in left:  # grows
        reads = (read for read in source.all_input_nodes if not read < other)
        new = [read for read in reads if read not in seen]
        left += new
        seen.update(new)
    return other in seen
