"""
Writes to places of a tensor, of a candidate or a model that computes all of the tensor with these
places changed, as functionalization has it.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any, Concatenate, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree
from typing_extensions import ParamSpec

import torch

from ...utils import convert_shape_to_inductor
from ..graphs.node_kinds import has_effects_as_lowered, is_view, without_views
from ..graphs.node_memory import (
    aliases_of,
    memory_of,
    readers_of_memory,
    reads_of,
    users_of_memory,
    writers_of_memory,
)
from ..graphs.symbolic_graphs import new_call, read_instead, value_of
from ..graphs.write_ops import AS_VALUES, stands_for_write
from ..sizes.guards import frozen_shapes
from .memory_layout import has_elements_twice, lie_alike, readers_of_elements
from .parts_of_concatenations import put_parts


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

log = logging.getLogger("torch._inductor.kernel.custom_op")

_aten = torch.ops.aten
_copy = _aten.copy.default
_write_copy = AS_VALUES[_aten.copy_.default]
# What returns a tensor with some places changed, and what changes these.
_IN_PLACE = {
    _aten.index_put.default: _aten.index_put_.default,
    _aten._unsafe_index_put.default: _aten.index_put_.default,
    _aten.scatter.src: _aten.scatter_.src,
    _aten.scatter.value: _aten.scatter_.value,
}
_SCATTERS = (_aten.scatter.src, _aten.scatter.value)
# What returns a tensor with what is in a view of it replaced, and what makes that view.
_VIEWS = {
    _aten.slice_scatter.default: _aten.slice.Tensor,
    _aten.select_scatter.default: _aten.select.int,
}

_P = ParamSpec("_P")


def _where_it_can_be_told(
    change: Callable[Concatenate[torch.fx.Node, _P], bool],
) -> Callable[Concatenate[torch.fx.Node, _P], bool]:
    """False where what changes a write raises what asking about views does, or would guard."""

    @functools.wraps(change)
    def attempt(write: torch.fx.Node, *args: _P.args, **kwargs: _P.kwargs) -> bool:
        try:
            with frozen_shapes():
                return change(write, *args, **kwargs)
        except Exception as e:
            log.debug("Not only places of %s are written: %s", write.args[0], e)
            return False

    return attempt


@_where_it_can_be_told
def try_write_places_only(write: torch.fx.Node) -> bool:
    """
    Has what is computed for some places of a tensor written there, where all of it, with these
    changed, would be copied to it.

    Args:
        write: stands for the copy.

    Returns:
        Whether that is so now. If not, the graph may be of no use any more.
    """
    to: Any = write.args[0]
    _find_views_anew(write.graph)
    _write_parts(write)
    if not try_make_changes_in_place(write, _write_copy):
        return False
    write.args = (to, to)
    return True


@_where_it_can_be_told
def try_make_changes_in_place(
    write: torch.fx.Node, put: Any, behind: Collection[torch.fx.Node] = ()
) -> bool:
    """
    Has changes of places that a write copies to a tensor made there, one by one.

    Args:
        put: the op that replaces what is in a view.
        behind: nodes that read in that tensor what is written.

    Returns:
        Whether that is so now, and nothing is left to copy. If not, the graph may be of no use
        any more.
    """
    to: Any = write.args[0]
    memory = memory_of(to)
    within = {change: {*_changes_within(change)} for change in changes_to(write)}
    if not within or _are_most_of(within, to) or not _try_start_at(within, to):
        return False
    for change in sorted(within):
        _compute_before(change)
        if not _try_make_in_place(change, within, put, behind):
            return False
    value: Any = write.args[1]
    return memory_of(value) is memory and lie_alike(value, memory, to, memory)


def changes_to(write: torch.fx.Node) -> list[torch.fx.Node]:
    """What has changed places of what a write copies, the last one first."""
    return [*_changes(write.args[1])]


def _find_views_anew(graph: torch.fx.Graph) -> None:
    """Has views known as what they are of what is known of their memory, at the same offsets."""
    for node in graph.nodes:
        if is_view(node):
            node.meta["val"] = value_of(node)


def _write_parts(write: torch.fx.Node) -> None:
    """Has parts of concatenations changed one behind the other where all would be at once."""
    copies = [change for change in _changes(write.args[1]) if change.target is _copy]
    for copy in [*copies, write]:
        to, value = copy.args
        with copy.graph.inserting_before(copy):
            changed = put_parts(to, value)  # type: ignore[arg-type]  # nodes
        if changed is None:
            continue
        if copy is write:
            copy.args = (to, changed)
        else:
            copy.replace_all_uses_with(changed)
    write.graph.eliminate_dead_code(has_effects_as_lowered)


def _changes(value: Any) -> Iterator[torch.fx.Node]:
    """What has changed places of a tensor one behind the other, and returns a value at last."""
    node = without_views(value)
    while node.target in (*_IN_PLACE, *_VIEWS):
        yield node
        yield from _changes_within(node)
        node = without_views(node.args[0])  # type: ignore[arg-type]  # a node


def _changes_within(change: torch.fx.Node) -> list[torch.fx.Node]:
    """
    Where a change replaces what is in a view: the changes within that view that what is put
    there is made by, if it is made so.
    """
    if change.target not in _VIEWS:
        return []
    whole, changed = change.args[:2]
    whole, node = without_views(whole), without_views(changed)  # type: ignore[arg-type]  # nodes
    found = []
    while node is not whole:
        if node.target not in (_copy, *_IN_PLACE, *_VIEWS):
            return []
        found += [node, *_changes_within(node)]
        changed = node.args[0]
        node = without_views(changed)  # type: ignore[arg-type]  # a node
    return found if found and _is_within(changed, change) else []


def _is_within(view: Any, change: torch.fx.Node) -> bool:
    """Whether a view of what is changed is one of the view that a change replaces, or that."""
    whole: Any = change.args[0]
    with _looking_at_view_replaced(change) as replaced:
        while is_view(view):
            if lie_alike(view, whole, replaced, whole):
                return True
            view = view.all_input_nodes[0]
        return False


@contextlib.contextmanager
def _looking_at_view_replaced(change: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """``_view_replaced``, in the graph for the block only."""
    with change.graph.inserting_before(change):
        view = _view_replaced(change)
    try:
        yield view
    finally:
        change.graph.erase_node(view)


def _view_replaced(change: torch.fx.Node) -> torch.fx.Node:
    """The view whose elements a change replaces, as a new node."""
    whole, _, *where = change.args
    make = _VIEWS[change.target]  # type: ignore[index]  # an OpOverload
    return new_call(change.graph, make, whole, *where, **change.kwargs)


def _are_most_of(
    within: Mapping[torch.fx.Node, Collection[torch.fx.Node]], to: torch.fx.Node
) -> bool:
    """
    Whether one kernel for all of a tensor costs no more than writing the places that are
    changed: if these are all of it; or half, and what is written there is computed from the
    tensor, which one kernel can read and write element by element. It cannot, and would have to
    write a copy, where an element is computed from others.

    Args:
        within: see ``_changes_within``, by change.
    """
    if any(change.target in _IN_PLACE for change in within):
        return False
    memory = memory_of(to)
    if any(
        _is_moved_to(change, memory) for change, inner in within.items() if not inner
    ):
        return False
    # A copy may broadcast its value.
    put: list[Any] = [
        change if change.target is _copy else change.args[1]
        for change, inner in within.items()
        if not inner
    ]
    changed = sum(value.meta["val"].numel() for value in put)
    is_read = any(node not in within for node in readers_of_memory(memory))
    parts = 2 if is_read else 1
    return statically_known_true(changed * parts >= to.meta["val"].numel())


def _try_start_at(changes: Collection[torch.fx.Node], to: torch.fx.Node) -> bool:
    """
    Whether what changes places starts at the memory to be written to. It does where that is
    copied for those who read what was there; the copy is taken away.
    """
    source = without_views(min(changes).args[0])  # type: ignore[arg-type]  # a node
    if source.target is _aten.clone.default and not any(writers_of_memory(source)):
        copied: Any = source.args[0]
        if not _try_read_instead(copied, source):
            return False
        source.graph.erase_node(source)
        source = copied
    return memory_of(source) is memory_of(to)


def _compute_before(change: torch.fx.Node) -> None:
    """
    Moves what is behind a change and does not depend on it before that, up to effects and to
    writes that others have become: who reads behind these does not depend on them either.
    """
    behind = {change}
    node = change.next
    while not has_effects_as_lowered(node):
        following = node.next
        if behind.isdisjoint(node.all_input_nodes):
            change.prepend(node)
        else:
            behind.add(node)
        node = following


def _try_make_in_place(
    change: torch.fx.Node,
    within: Mapping[torch.fx.Node, Collection[torch.fx.Node]],
    put: Any,
    behind: Collection[torch.fx.Node],
) -> bool:
    """
    Has a change made in the tensor that it returns with places changed.

    Args:
        within: see ``_changes_within``, by change; each is made before.
        put, behind: see ``try_make_changes_in_place``.
    """
    graph, whole = change.graph, change.args[0]
    assert isinstance(whole, torch.fx.Node)
    memory = memory_of(whole)
    with graph.inserting_before(change):
        place = _view_replaced(change) if change.target in _VIEWS else whole
        is_put = change.target not in _IN_PLACE
        leaves = pytree.tree_leaves((change.args[1:], change.kwargs))
        given = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
        if has_elements_twice(whole.meta["val"]):
            is_made = False
        elif any(memory_of(node) is memory for node in given):
            # What is to be there is there, or is to be moved within the tensor.
            is_made = is_put and lie_alike(change.args[1], memory, place, memory)
        elif within.get(change) or _is_read_later(place, change, within, behind):
            is_made = False
        elif change.target in _SCATTERS and any(reads_of(memory, given)):
            is_made = False  # maybe in one loop with the write
        elif is_put:
            written = graph.call_function(put, (place, change.args[1]))
            written.meta = {**change.meta, "val": place.meta["val"]}
            is_made = True
        else:
            change.target = _IN_PLACE[change.target]  # type: ignore[index]  # an OpOverload
            is_made = True
    if not (is_made and _try_read_instead(whole, change)):
        return False
    if is_put:
        graph.erase_node(change)
    return True


def _is_moved_to(change: torch.fx.Node, memory: torch.fx.Node) -> bool:
    """Whether what is put somewhere is computed from other elements of a tensor."""
    to: Any = contextlib.nullcontext(
        change.args[0]
    )  # what a copy is made in the place of
    if change.target in _VIEWS:
        to = _looking_at_view_replaced(change)
    with to as place:
        whole = memory_of(place)
        read = reads_of(memory, [change.args[1]])  # type: ignore[list-item]  # a node
        return not all(lie_alike(view, memory, place, whole) for view in read)


def _is_read_later(
    place: torch.fx.Node,
    change: torch.fx.Node,
    within: Mapping[torch.fx.Node, Collection[torch.fx.Node]],
    behind: Collection[torch.fx.Node],
) -> bool:
    """Whether somebody reads behind a change what was there, but for those it is made for."""
    return any(
        node > change and node not in behind and change not in within.get(node, ())
        for node in readers_of_elements(place)
    )


def _try_read_instead(place: torch.fx.Node, node: torch.fx.Node) -> bool:
    """Has a place in memory read where a node with a value of its own is, if it can."""
    _, *views = aliases_of(node)
    readers = users_of_memory(node) - {*views}
    is_op = (isinstance(reader.target, torch._ops.OpOverload) for reader in readers)
    if not (all(map(is_view, views)) and all(is_op)):
        return False
    before = _strides([node, *views])
    views = read_instead(node, place)
    after = _strides([place, *views])
    is_as_told = before == after or not any(map(_knows_strides, readers))
    return is_as_told and all(_is_in_memory_of(view, place) for view in views)


def _knows_strides(node: torch.fx.Node) -> bool:
    """Whether a node has been told the strides of what it reads."""
    return "eager_input_vals" in node.meta and not stands_for_write(node)


def _strides(nodes: Sequence[torch.fx.Node]) -> list[tuple[Any, ...]]:
    """Symbolic, of each tensor."""
    values = pytree.tree_leaves([node.meta["val"] for node in nodes])
    return [tuple(convert_shape_to_inductor(value.stride())) for value in values]


def _is_in_memory_of(view: torch.fx.Node, place: torch.fx.Node) -> bool:
    """Whether a view, which PyTorch copies where strides do not allow for it, is none."""
    storages = (
        tensor.untyped_storage()._cdata
        for node in (view, place)
        for tensor in pytree.tree_leaves(node.meta["val"])
    )
    return len({*storages}) == 1
