"""
Writes in place, of a candidate that writes to a copy of what its region writes to, or of a copy
that it has written to.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch

from ..graphs.node_kinds import has_effects_as_lowered, is_any_view, is_view
from ..graphs.node_memory import (
    memory_of,
    readers_of_memory,
    reads_of,
    tensors_written,
    writers_of_memory,
)
from ..graphs.symbolic_graphs import copied
from ..graphs.write_ops import AS_VALUES, OWN, stands_for_write
from .memory_layout import are_of_one_shape, lie_alike, share_elements
from .written_places import try_write_places_only


if TYPE_CHECKING:
    from collections.abc import Sequence

_aten = torch.ops.aten
_CLONES = (_aten.clone.default, OWN)
_copy_ = _aten.copy_.default


def without_copies(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """
    A candidate's graph as it is lowered. Where it makes a copy of what its region writes to,
    writes to that, or to some places of it, and copies it back, it writes in place, unless
    what was there is read behind that; so it does where an op that writes there in eager mode is
    given a copy of what another one has computed. It makes no copy of a copy to write to, nor of a
    value to be written.
    """
    if not any(stands_for_write(n) or n.target in _CLONES for n in gm.graph.nodes):
        return gm
    gm = copied(gm)
    _write_to_one_copy(gm.graph)
    writes = _copies_to_inputs(gm)
    _write_copies_in_place(writes)
    for i in range(len(writes)):
        changed = copied(gm)
        if try_write_places_only(_copies_to_inputs(changed)[i]):
            gm = changed
    _write_what_is_copied(_copies_to_inputs(gm))
    for node in reversed(gm.graph.nodes):
        if is_view(node) and not node.users:
            gm.graph.erase_node(node)
    _compute_last(gm.graph)
    gm.recompile()
    return gm


def _write_to_one_copy(graph: torch.fx.Graph) -> None:
    """Has ops write where others have before, as each to a copy of the last one's."""
    for copy in [node for node in graph.nodes if node.target in _CLONES]:
        source: Any = copy.args[0]
        is_like = source.target in _CLONES and lie_alike(copy, copy, source, source)
        if is_like and _are_written_in_turn(source, copy):
            _read_instead(copy, source)


def _are_written_in_turn(source: torch.fx.Node, copy: torch.fx.Node) -> bool:
    """Whether a copy is made of what has been written, and nobody reads that once it is written."""
    earlier, later = writers_of_memory(source), writers_of_memory(copy)
    if not (earlier and later and max(earlier) < copy):
        return False
    return all(reader < min(later) for reader in readers_of_memory(source))


def _read_instead(copy: torch.fx.Node, source: Any) -> None:
    """Has what is given a copy be given what that is of, which lies alike."""
    users = copy.replace_all_uses_with(source)
    copy.graph.erase_node(copy)
    for user in users:
        _tell_strides(user)


def _compute_last(graph: torch.fx.Graph) -> None:
    """
    Moves what is computed to where it is first read, if nothing between writes what it reads: a
    part of memory is written by the loop that has read it, and not behind all that read others.
    """
    writers = [*filter(tensors_written, graph.nodes)]
    for node in [*graph.nodes][::-1]:
        if not node.users or is_any_view(node) or has_effects_as_lowered(node):
            continue
        user = min(node.users)
        between = [writer for writer in writers if node < writer < user]
        behind = next((w for w in between if _may_write_to(w, node)), user)
        if between:
            behind.prepend(node)


def _may_write_to(writer: torch.fx.Node, reader: torch.fx.Node) -> bool:
    """Whether a node writes to what is read, however far back, for another one."""
    return any(
        share_elements(to, read)
        for to in tensors_written(writer)
        for read in reads_of(memory_of(to), [reader])
    )


def _copies_to_inputs(gm: torch.fx.GraphModule) -> list[torch.fx.Node]:
    """The nodes that stand for copies to what the region is given, as it returns them."""
    returned: Any = gm.graph.output_node().args[0]
    is_copy = AS_VALUES[_copy_]
    return [node for node in returned if getattr(node, "target", None) is is_copy]


def _write_copies_in_place(writes: Sequence[torch.fx.Node]) -> None:
    """Has ops write to the memory itself that they write to a copy of."""
    found = ((write, _copy_that_is_written(write)) for write in writes)
    copies = {write: copy for write, copy in found if copy is not None}
    for memory in {memory_of(write.args[0]) for write in copies}:  # type: ignore[arg-type]  # nodes
        of_memory = {w: c for w, c in copies.items() if memory_of(w.args[0]) is memory}  # type: ignore[arg-type]  # nodes
        first = min(
            writer for copy in of_memory.values() for writer in writers_of_memory(copy)
        )
        if any(node >= first for node in readers_of_memory(memory)):
            continue
        for write, copy in of_memory.items():
            to, source = write.args[0], copy.args[0]
            write.args = (to, to)
            if memory_of(source) is memory:
                _read_instead(copy, source)
                continue
            with write.graph.inserting_before(min(writers_of_memory(copy))):
                put = write.graph.call_function(AS_VALUES[_copy_], (to, source))
            put.meta = {**write.meta}
            _read_instead(copy, to)


def _write_what_is_copied(writes: Sequence[torch.fx.Node]) -> None:
    """
    Has a value written that is copied to an argument of the op, and that to memory. The copy would
    be computed in the argument's dimensions, which may not be those of the value's own loop.
    """
    for write in writes:
        copy: Any = write.args[1]
        if copy.target is not _aten.copy.default or [*copy.users] != [write]:
            continue
        argument, value = copy.args[:2]
        is_there = argument.meta["val"].device == value.meta["val"].device
        if is_there and are_of_one_shape(argument, value):
            write.args = (write.args[0], value)
            write.graph.erase_node(copy)


def _copy_that_is_written(write: torch.fx.Node) -> Any:
    """
    The copy that ops write to and this copies there, of what was there or of what else ops write
    to there in eager mode; None if none.
    """
    to: Any = write.args[0]
    value: Any = write.args[1]
    copy = memory_of(value)
    if not (copy.target in _CLONES and any(writers_of_memory(copy))):
        return None
    is_whole = value is copy and not _are_strides_told(copy)
    source: Any = copy.args[0]
    if memory_of(source) is not memory_of(to):
        is_by_op = is_whole and write.kwargs.get("by_op")
        return copy if is_by_op and are_of_one_shape(copy, to) else None
    is_same = is_whole and source is to
    return copy if is_same or lie_alike(value, copy, to, source) else None


def _are_strides_told(node: torch.fx.Node) -> bool:
    """Whether those who read a tensor have been told its strides, as Triton kernels are."""
    return any(
        is_any_view(user) or not isinstance(user.target, torch._ops.OpOverload)
        for user in node.users
    )


def _tell_strides(node: torch.fx.Node) -> None:
    """Has an op's call remember the strides of what it is given now, for Inductor."""
    if "eager_input_vals" in node.meta:
        given = node.args, node.kwargs
        values = torch.fx.map_arg(given, lambda given: given.meta["val"])
        node.meta["eager_input_vals"] = values
