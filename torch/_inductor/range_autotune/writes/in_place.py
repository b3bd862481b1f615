"""
Writes of a call of a functional variant in its op's place: where no region takes the call in,
and in the region's graph where the op itself is called.
"""

from __future__ import annotations

import operator
from typing import Any, TYPE_CHECKING

import torch

from ..graphs.node_kinds import arguments_of, is_view, parts_of, without_views
from ..graphs.node_memory import memory_of
from ..graphs.write_ops import AS_VALUES, stands_for_write
from ..ops.functional_variants import count_results, mutable_op, returns_list, UNWRITTEN
from ..registering.signatures import values_written
from .memory_layout import readers_of_elements


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

_clone = torch.ops.aten.clone.default
_copy_ = torch.ops.aten.copy_.default


def writes_of_call(call: torch.fx.Node) -> list[torch.fx.Node]:
    """
    Of a call of a functional variant, the nodes that write what it returns to what it is given
    for that: in the op's place they are one with it.
    """
    return [write for writes in _writes_by_place(call).values() for write in writes]


def _writes_by_place(call: torch.fx.Node) -> dict[int, list[torch.fx.Node]]:
    """See ``writes_of_call``; by place among what the op writes to."""
    found = {
        place: [
            copy
            for copy in copies_of(part)
            if memory_of(copy.args[0]) is memory_of(value)  # type: ignore[arg-type]  # a node
        ]
        for place, (value, part) in parts_written(call).items()
    }
    return {place: writes for place, writes in found.items() if writes}


def copies_of(value: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes that copy a value to tensors, maybe in another shape."""
    for user in value.users:
        if is_copy_to(user) and user.args[1] is value:
            yield user
        elif is_view(user):
            yield from copies_of(user)


def nodes_of_call(call: torch.fx.Node) -> set[torch.fx.Node]:
    """A call, what it returns, its writes, see ``writes_of_call``, and what is between."""
    found = {call}
    left: list[Any] = [*parts_of(call), *writes_of_call(call)]
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
    value = without_views(write.args[1])  # type: ignore[arg-type]  # a node
    call: Any = value.args[0] if value.target is operator.getitem else value
    return call if write in writes_of_call(call) else None


def is_copy_to(node: torch.fx.Node) -> bool:
    """Whether a node copies a value to a tensor; its first two arguments."""
    return node.target in (_copy_, AS_VALUES[_copy_])


def parts_written(
    call: torch.fx.Node,
) -> dict[int, tuple[torch.fx.Node, torch.fx.Node]]:
    """
    Of what the op of a functional variant's call writes to, what the variant is given and the
    node that it returns, if there is one; by place.
    """
    target = call.target
    op = mutable_op(target) if isinstance(target, torch._ops.OpOverload) else None
    if op is None:
        return {}
    written = values_written(op, arguments_of(call))
    results = count_results(op)
    if results + len(written) == 1 and not returns_list(op):
        return {0: (written[0], call)}
    parts: dict[Any, torch.fx.Node] = {part.args[1]: part for part in parts_of(call)}
    found = ((i, value, parts.get(results + i)) for i, value in enumerate(written))
    return {i: (value, part) for i, value, part in found if part is not None}


def write_in_place(gm: torch.fx.GraphModule) -> list[torch._ops.OpOverload]:
    """
    Puts the ops that write in the places of their functional variants, where what these return
    is written behind them.

    Args:
        gm: a graph, or that of a region; changed.

    Returns:
        These ops, one for each call.
    """
    ops = [
        _call_in_place(call, writes)
        for call in [*gm.graph.nodes]
        if (writes := _writes_by_place(call))
    ]
    if ops:
        gm.graph.lint()
        gm.recompile()
    return ops


def _call_in_place(
    call: torch.fx.Node, writes: Mapping[int, Sequence[torch.fx.Node]]
) -> torch._ops.OpOverload:
    """
    Puts an op in the place of its functional variant's call, and returns it.

    Args:
        writes: see ``_writes_by_place``: they follow from the op then, and are erased; those
            that stand for a write in a region's graph stay, and write nothing.
    """
    op = mutable_op(call.target)  # type: ignore[arg-type]  # an OpOverload
    assert op is not None
    in_place = {i: w for i, w in writes.items() if not _is_read_behind(call, w)}
    own = _own_copies(call, op, in_place)
    with call.graph.inserting_before(call):
        kwargs = {k: value for k, value in call.kwargs.items() if k != UNWRITTEN}
        args, kwargs = torch.fx.map_arg(
            (call.args, kwargs), lambda node: own.get(node, node)
        )
        node = call.graph.call_function(op, args, kwargs)
    for value, part in parts_written(call).values():
        part.replace_all_uses_with(own.get(value, value))
    for write in [write for of_one in in_place.values() for write in of_one]:
        to = write.args[0]
        if stands_for_write(write):
            write.args = (to, to)
        else:
            write.replace_all_uses_with(to)  # type: ignore[arg-type]  # a node
            call.graph.erase_node(write)
    _return_results(call, op, node)
    return op


def _own_copies(
    call: torch.fx.Node, op: torch._ops.OpOverload, in_place: Collection[int]
) -> dict[Any, torch.fx.Node]:
    """Copies of arguments that are to stay as they were, unless nobody has written them."""
    given = arguments_of(call)
    unneeded = {*in_place, *given[UNWRITTEN]}
    copies = {}
    with call.graph.inserting_before(call):
        for place, value in enumerate(values_written(op, given)):
            if place not in unneeded:
                copies[value] = call.graph.call_function(_clone, (value,))
                copies[value].meta["val"] = value.meta["val"]
    return copies


def _is_read_behind(call: torch.fx.Node, writes: Sequence[torch.fx.Node]) -> bool:
    """Whether a region's graph, which writes at its end, reads behind a call what was there."""
    to = writes[0].args[0]
    return stands_for_write(writes[0]) and any(
        node > call
        for node in readers_of_elements(to)  # type: ignore[arg-type]  # a node
    )


def _return_results(
    call: torch.fx.Node, op: torch._ops.OpOverload, node: torch.fx.Node
) -> None:
    """Has those who read what the op returns from its functional variant read it from a node."""
    results = count_results(op)
    values = call.meta["val"]
    node.meta = {**call.meta, "val": values[:results] if results > 1 else None}
    parts = parts_of(call)
    if results == 1:
        node.meta["val"] = values[0]
        for part in parts:
            part.replace_all_uses_with(node)
    call.replace_all_uses_with(node, delete_user_cb=lambda user: bool(user.users))
    for unread in (*parts, call):
        if not unread.users:
            call.graph.erase_node(unread)
