"""
Calls of a region that write where others of it have written, or over what these have returned.

In a region such memory is written once, and what is between is read as the value that it is. Where
the region is lowered in parts, each call writes for itself again.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true

import torch

from ..graphs.node_kinds import is_any_view, is_view
from ..graphs.node_memory import aliases_of, memory_of, users_of_memory
from ..graphs.write_ops import stands_for_write
from .in_place import copies_of, is_write_of_call, parts_written
from .memory_layout import lie_alike, readers_of_elements, share_elements
from .region_writes import is_to_given
from .writes_as_values import mark_by_op, writes_value_as_it_is


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

_copy_ = torch.ops.aten.copy_.default


def write_once(
    writes: Iterable[torch.fx.Node], nodes: Collection[torch.fx.Node]
) -> bool:
    """
    Has a call write where a region has before, or what that has computed, as if both were one:
    what is written over is read as the value that it is.

    Args:
        writes: all that the call writes in place behind the region.
        nodes: of the region, in the order of the graph.

    Returns:
        Whether that can be; else nothing changes.
    """
    changes = []
    for write in writes:
        earlier = [n for n in nodes if writes_value_as_it_is(n) and _is_over(write, n)]
        if memory_of(write) in nodes and _may_become_value(write):
            changes.append(functools.partial(_become_value, write))
        elif earlier and _is_read_as_value(earlier[-1], write):
            changes.append(functools.partial(_drop, earlier[-1], write))
        else:
            return False
    for change in changes:
        change()
    return True


def _become_value(write: torch.fx.Node) -> None:
    """Has a value be memory of its own, and read in place of what it is written to."""
    to, value = write.args
    assert isinstance(to, torch.fx.Node) and isinstance(value, torch.fx.Node)
    to.replace_all_uses_with(value, delete_user_cb=lambda user: user > write)
    write.replace_all_uses_with(value)
    write.graph.erase_node(write)


def _may_become_value(write: torch.fx.Node) -> bool:
    """
    Whether a value is written over all of something that the graph has computed, and nobody
    behind sees that otherwise.
    """
    memory = memory_of(write)
    if memory.op != "call_function" or not writes_value_as_it_is(write):
        return False
    to: Any = write.args[0]
    others = {alias for alias in aliases_of(memory) if alias < write} - {to}
    numel, of_memory = (node.meta["val"].numel() for node in (to, memory))
    return statically_known_true(numel == of_memory) and not any(
        user > write for alias in others for user in alias.users
    )


def _is_over(write: torch.fx.Node, earlier: torch.fx.Node) -> bool:
    """Whether a write that a region may do is to the same elements as one before."""
    if not (earlier < write and (is_to_given(write) or is_write_of_call(write))):
        return False
    to, earlier_to = write.args[0], earlier.args[0]
    memory = memory_of(write)
    return memory is memory_of(earlier) and lie_alike(to, memory, earlier_to, memory)


def _is_read_as_value(write: torch.fx.Node, until: torch.fx.Node) -> bool:
    """
    Whether what is between two writes to the same elements reads only what is written, and
    nothing behind reads it where it is between them.
    """
    to: Any = write.args[0]
    views = [view for view in _views_of_shape(write) if view < until]
    own = {to, write, *views}
    others = {
        read
        for user in users_of_memory(memory_of(write))
        if write < user < until and not is_any_view(user)
        for read in user.all_input_nodes
        if read not in own
    }
    return not any(share_elements(read, to) for read in others) and not any(
        user > until for view in views for user in view.users
    )


def _views_of_shape(value: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The views of a value that would be the same ones however that is laid out."""
    for user in filter(is_view, value.users):
        yield user
        yield from _views_of_shape(user)


def _drop(write: torch.fx.Node, over: torch.fx.Node) -> None:
    """Erases a write; what is in front of the one over it reads the value."""
    to, value = write.args
    assert isinstance(to, torch.fx.Node) and isinstance(value, torch.fx.Node)
    to.replace_all_uses_with(value, lambda user: write < user < over)
    write.replace_all_uses_with(value, lambda user: user < over)
    write.replace_all_uses_with(to)
    write.graph.erase_node(write)
    mark_by_op(over)


def write_again(graph: torch.fx.Graph) -> None:
    """
    Has calls of a region, as far as nobody else reads that behind, write where calls before them
    have written, which in regions need not be memory of the model's.

    Args:
        graph: of the region, which returns what it writes.
    """
    for call in reversed([*graph.nodes]):
        for given, part in parts_written(call).values():
            memory = memory_of(given)
            if _is_part_written(memory) and max(users_of_memory(memory)) is call:
                _write_behind_earlier(call, given, part)


def _is_part_written(node: torch.fx.Node) -> bool:
    """Whether a functional variant returns it for what its op writes to."""
    call: Any = node.args[0] if node.target is operator.getitem else node
    return any(part is node for _, part in parts_written(call).values())


def _write_behind_earlier(
    call: torch.fx.Node, given: torch.fx.Node, part: torch.fx.Node
) -> None:
    """
    Writes what one call returns over what another one has, or where the last one is to be
    written, what it is given.
    """
    graph = call.graph
    last = next(filter(stands_for_write, copies_of(part)), None)
    if last is None:
        with graph.inserting_after(part):
            write = graph.call_function(_copy_, (given, part))
        write.meta = {**part.meta}
        part.replace_all_uses_with(write, lambda user: user is not write)
        return
    to: Any = last.args[0]
    earlier = memory_of(given)
    is_alike = given.meta["val"].shape == to.meta["val"].shape
    if is_alike and not any(node > earlier for node in readers_of_elements(to)):
        with graph.inserting_after(given):
            write = graph.call_function(_copy_, (to, given))
        write.meta = {**to.meta}
        call.replace_input_with(given, write)
