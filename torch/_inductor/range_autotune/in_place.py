"""
Writes in place: of a candidate that writes to a copy of what its region writes to, and of
calls that no region takes in.
"""

from __future__ import annotations

import operator
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

import torch

from .functional import arguments_written
from .functional_variants import mutable_op, UNWRITTEN, written_arguments
from .node_kinds import arguments_of, is_any_view, is_view, memory_of
from .symbolic_graphs import copied
from .write_ops import AS_VALUES, stands_for_write


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_clone = torch.ops.aten.clone.default
_copy_ = torch.ops.aten.copy_.default
# What returns a tensor with some places changed, and what changes these.
_IN_PLACE = {
    torch.ops.aten.index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten._unsafe_index_put.default: torch.ops.aten.index_put_.default,
    torch.ops.aten.scatter.src: torch.ops.aten.scatter_.src,
    torch.ops.aten.scatter.value: torch.ops.aten.scatter_.value,
}


def without_copies(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """
    A candidate's graph as it is lowered. Where it makes a copy of what its region writes to,
    writes to that, or to some places of it, and copies it back, it writes in place, unless
    what was there is read behind that.
    """
    if not any(map(stands_for_write, gm.graph.nodes)):
        return gm
    gm = copied(gm)
    writes = gm.graph.find_nodes(op="call_function", target=AS_VALUES[_copy_])
    _write_copies_in_place(writes)
    for write in writes:
        _write_places_only(write)
    gm.recompile()
    return gm


def _write_copies_in_place(writes: Sequence[torch.fx.Node]) -> None:
    """Has ops write to the memory itself that they write to a copy of."""
    found = ((write, _copy_that_is_written(write)) for write in writes)
    copies = {write: copy for write, copy in found if copy is not None}
    for memory in {memory_of(write.args[0]) for write in copies}:  # type: ignore[arg-type]  # nodes
        of_memory = {w: c for w, c in copies.items() if memory_of(w.args[0]) is memory}  # type: ignore[arg-type]  # nodes
        first = min(writer for copy in of_memory.values() for writer in _writers(copy))
        if any(node >= first for node in readers_of_memory(memory)):
            continue
        for write, copy in of_memory.items():
            write.args = (write.args[0], write.args[0])
            users = copy.replace_all_uses_with(copy.args[0])
            copy.graph.erase_node(copy)
            for user in users:
                _tell_strides(user)


def _write_places_only(write: torch.fx.Node) -> None:
    """
    Has what is computed for some places of a tensor written there, where all of it, with these
    changed, would be copied to it.
    """
    to, changed = write.args[0], _without_views(write.args[1])
    if changed.target not in _IN_PLACE:
        return
    before: Any = changed.args[0]
    copy = memory_of(before)
    is_copy = copy.target is _clone and not any(_writers(copy))
    source: Any = memory_of(copy.args[0]) if is_copy else copy  # type: ignore[arg-type]  # a node
    if source is not memory_of(to):  # type: ignore[arg-type]  # a node
        return
    if is_copy and not _lie_alike(copy, copy, copy.args[0], copy.args[0]):
        return
    readers = {*readers_of_memory(source), *readers_of_memory(copy)} - {copy}
    is_last = all(node <= changed for node in readers)
    if is_last and _lie_alike(write.args[1], changed, to, before):
        if is_copy:
            copy.replace_all_uses_with(copy.args[0])  # type: ignore[arg-type]  # a node
            copy.graph.erase_node(copy)
        changed.target = _IN_PLACE[changed.target]
        write.args = (to, to)


def _without_views(value: Any) -> Any:
    """What a value is a view of, in whatever shape."""
    while is_view(value):
        value = value.args[0]
    return value


def _copy_that_is_written(write: torch.fx.Node) -> Any:
    """The copy of what is written to, that ops write to and this copies back; None if none."""
    to, value = write.args
    copy = memory_of(value)  # type: ignore[arg-type]  # a node
    is_copy = copy.target is _clone and memory_of(copy.args[0]) is memory_of(to)  # type: ignore[arg-type]  # nodes
    if not (is_copy and any(_writers(copy))):
        return None
    is_same = value is copy and copy.args[0] is to and not _are_strides_told(copy)
    return copy if is_same or _lie_alike(value, copy, to, copy.args[0]) else None


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


def _lie_alike(view: Any, whole: Any, other: Any, other_whole: Any) -> bool:
    """
    Whether values lie in two tensors, or in views of one, in the same way, and those are laid
    out alike.
    """

    def layout(node: torch.fx.Node, of: torch.fx.Node) -> list[Any]:
        seen, base = node.meta["val"], of.meta["val"]
        start = seen.storage_offset() - base.storage_offset()
        return [*seen.shape, *seen.stride(), start, *base.shape, *base.stride()]

    layouts = layout(view, whole), layout(other, other_whole)
    return len(layouts[0]) == len(layouts[1]) and all(
        statically_known_true(a == b) for a, b in zip(*layouts)
    )


def _writers(memory: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes that write to a node's memory."""
    for node in readers_of_memory(memory):
        if any(memory_of(to) is memory for to in arguments_written(node)):
            yield node


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


def _given(node: torch.fx.Node) -> list[torch.fx.Node]:
    """What a node is given, but for what it stands for a write to."""
    if not stands_for_write(node):
        return node.all_input_nodes
    to, *others = node.args
    leaves = pytree.tree_leaves(others)
    return [x for x in leaves if isinstance(x, torch.fx.Node) and x is not to]


def writes_of_call(call: torch.fx.Node) -> list[torch.fx.Node]:
    """
    Of a call of a functional variant, the nodes that write what it returns to what it is given
    for that: in the op's place they are one with it.
    """
    return [write for writes in _writes_by_argument(call).values() for write in writes]


def _writes_by_argument(call: torch.fx.Node) -> dict[str, list[torch.fx.Node]]:
    """See ``writes_of_call``; of the arguments that are written in place."""
    given = arguments_of(call)
    found = {
        name: [
            copy
            for copy in _copies_of(part)
            if memory_of(copy.args[0]) is memory_of(given[name])  # type: ignore[arg-type]  # a node
        ]
        for name, part in _parts_written(call).items()
    }
    return {name: writes for name, writes in found.items() if writes}


def _copies_of(value: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes that copy a value to tensors, maybe in another shape."""
    for user in value.users:
        if is_copy_to(user) and user.args[1] is value:
            yield user
        elif is_view(user):
            yield from _copies_of(user)


def nodes_of_call(call: torch.fx.Node) -> set[torch.fx.Node]:
    """A call, its writes, see ``writes_of_call``, and what is between."""
    found = {call}
    left: list[Any] = [*_parts_written(call).values(), *writes_of_call(call)]
    for node in left:  # grows
        if node not in found:
            found.add(node)
            left.append(node.args[1] if is_copy_to(node) else node.args[0])
    return found


def is_write_of_call(write: torch.fx.Node) -> bool:
    """Whether ``writes_of_call`` finds it for the call whose value it writes."""
    return _call_of(write) is not None


def are_of_one_call(write: torch.fx.Node, other: torch.fx.Node) -> bool:
    """Whether ``writes_of_call`` finds both for one call: they write to different places."""
    call = _call_of(write)
    return call is not None and call is _call_of(other)


def _call_of(write: torch.fx.Node) -> torch.fx.Node | None:
    """See ``is_write_of_call``."""
    if not is_copy_to(write):
        return None
    value = _without_views(write.args[1])
    call = value.args[0] if value.target is operator.getitem else value
    return call if write in writes_of_call(call) else None


def is_copy_to(node: torch.fx.Node) -> bool:
    """Whether a node copies a value to a tensor; its first two arguments."""
    return node.target in (_copy_, AS_VALUES[_copy_])


def _parts_written(call: torch.fx.Node) -> dict[str, torch.fx.Node]:
    """What a call of a functional variant returns of what the op writes, by argument."""
    target = call.target
    op = mutable_op(target) if isinstance(target, torch._ops.OpOverload) else None
    if op is None:
        return {}
    names = [*written_arguments(op).values()]
    results = len(op._schema.returns)
    if results + len(names) == 1:
        return {names[0]: call}
    parts: dict[Any, torch.fx.Node] = {
        user.args[1]: user for user in call.users if user.target is operator.getitem
    }
    return {n: parts[i] for i, n in enumerate(names, results) if i in parts}


def write_in_place(gm: torch.fx.GraphModule) -> None:
    """
    Puts the ops that write in the places of their functional variants, where what these return
    is written behind them.

    Args:
        gm: a graph, or that of a region; changed.
    """
    changed = False
    for call in [*gm.graph.nodes]:
        if writes := _writes_by_argument(call):
            _call_in_place(call, writes)
            changed = True
    if changed:
        gm.graph.lint()
        gm.recompile()


def _call_in_place(
    call: torch.fx.Node, writes: Mapping[str, Sequence[torch.fx.Node]]
) -> None:
    """
    Puts an op in the place of its functional variant's call.

    Args:
        writes: by argument, what follows from the op then, and is erased; those that stand
            for a write in a region's graph stay, and write nothing.
    """
    op = mutable_op(call.target)  # type: ignore[arg-type]  # an OpOverload
    assert op is not None
    in_place = {name: w for name, w in writes.items() if not _is_read_behind(call, w)}
    own = _own_copies(call, op, in_place)
    with call.graph.inserting_before(call):
        kwargs = {k: value for k, value in call.kwargs.items() if k != UNWRITTEN}
        args, kwargs = torch.fx.map_arg(
            (call.args, kwargs), lambda node: own.get(node, node)
        )
        node = call.graph.call_function(op, args, kwargs)
    given = arguments_of(call)
    for name, part in _parts_written(call).items():
        part.replace_all_uses_with(own.get(given[name], given[name]))
    for write in [write for of_one in in_place.values() for write in of_one]:
        to = write.args[0]
        if stands_for_write(write):
            write.args = (to, to)
        else:
            write.replace_all_uses_with(to)  # type: ignore[arg-type]  # a node
            call.graph.erase_node(write)
    _return_results(call, op, node)


def _own_copies(
    call: torch.fx.Node, op: torch._ops.OpOverload, in_place: Collection[str]
) -> dict[Any, torch.fx.Node]:
    """Copies of arguments that are to stay as they were, unless nobody has written them."""
    given = arguments_of(call)
    copies = {}
    with call.graph.inserting_before(call):
        for i, name in written_arguments(op).items():
            value = given[name]
            if i not in given[UNWRITTEN] and name not in in_place:
                copies[value] = call.graph.call_function(_clone, (value,))
                copies[value].meta["val"] = value.meta["val"]
    return copies


def _is_read_behind(call: torch.fx.Node, writes: Sequence[torch.fx.Node]) -> bool:
    """Whether a region's graph, which writes at its end, reads behind a call what was there."""
    to = writes[0].args[0]
    return stands_for_write(writes[0]) and any(
        node > call for node in readers_of_memory(to)
    )


def _return_results(
    call: torch.fx.Node, op: torch._ops.OpOverload, node: torch.fx.Node
) -> None:
    """Has those who read what the op returns from its functional variant read it from a node."""
    results = len(op._schema.returns)
    values = call.meta["val"]
    node.meta = {**call.meta, "val": values[:results] if results > 1 else None}
    parts = [user for user in call.users if user.target is operator.getitem]
    if results == 1:
        node.meta["val"] = values[0]
        for part in parts:
            part.replace_all_uses_with(node)
    call.replace_all_uses_with(node, delete_user_cb=lambda user: bool(user.users))
    for unread in (*parts, call):
        if not unread.users:
            call.graph.erase_node(unread)
