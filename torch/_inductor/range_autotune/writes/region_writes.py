"""
Which writes to tensors that the graph is given, such as a cache or a buffer that is updated in
place, the region that computes what is written may make.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import guard_or_false, statically_known_true
from torch.utils import _pytree as pytree

import torch

from ..graphs.node_kinds import (
    arguments_of,
    has_generated_code,
    is_any_view,
    is_given,
    is_index,
    is_number,
    is_view,
    permutes,
)
from ..graphs.node_memory import (
    memory_of,
    memory_written,
    shares_memory,
    values_read,
)
from .in_place import is_write_of_call
from .memory_layout import is_in_order, share_elements
from .writes_as_values import (
    is_by_op,
    is_write,
    places_written,
    value_written,
    writes_value_as_it_is,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence


def can_join_as_write(
    node: torch.fx.Node,
    members: Collection[torch.fx.Node],
    behind: Collection[torch.fx.Node],
    producers: Collection[torch.fx.Node],
) -> bool:
    """
    Whether a write to what the graph is given may be done by the region that computes the
    value. Once the region is known as a whole, ``keeps_order_of_writes`` has to agree.

    Args:
        behind: nodes outside that depend on the region.
        producers: of what the region reads, which will be members.
    """
    if not _is_generated(node):
        return False
    to, value = arguments_of(node)["self"], value_written(node)
    places = places_of_writes([node])
    return (
        (value in members or value in producers)
        and (is_to_given(node) or is_write_of_call(node) or is_by_op(node))
        and memory_of(to) not in members
        and to.meta["val"].device == value.meta["val"].device
        and not any(read in members or read in behind for read in places)
        and _has_shape_of_places(node)
    )


def reads_as_before(
    node: torch.fx.Node, members: Collection[torch.fx.Node]
) -> set[torch.fx.Node]:
    """
    The memory that a node reads, see ``memory_of``, but for what it reads where a write of the
    region has put a value, which in the region is read as that.
    """
    reads = [read for read in node.all_input_nodes if not _is_value(read, members)]
    return {*map(memory_of, reads)}


def _is_value(read: torch.fx.Node, members: Collection[torch.fx.Node]) -> bool:
    """Whether what is read is, or is a view of, what a write of the region returns."""
    while shares_memory(read):
        if read in members and is_write(read):
            return writes_value_as_it_is(read)
        read = read.all_input_nodes[0]
    return False


def is_to_given(write: torch.fx.Node) -> bool:
    """
    Whether it is to an input, as what has the input's dtype, and others can read that in place of
    the result.
    """
    to = write.args[0]
    assert isinstance(to, torch.fx.Node)
    memory = memory_of(to)
    if not is_given(memory) or memory.meta["val"].dtype != to.meta["val"].dtype:
        return False
    return is_given(to) or not write.users


def _has_shape_of_places(write: torch.fx.Node) -> bool:
    """
    Whether the value has the sizes of what is written over, which PyTorch asks for but in
    dimensions of one element; guards on it, for the places may have a size of their own.
    """
    places, sizes = places_written(write).shape, value_written(write).meta["val"].shape
    wanted = places[len(places) - len(sizes) :]
    return len(wanted) == len(sizes) and all(
        statically_known_true(size == 1) or _are_equal(size, want)
        for size, want in zip(sizes, wanted)
    )


def _are_equal(size: Any, want: Any) -> bool:
    """Guards on it where both are symbolic; a guard would make a constant of a single one."""
    if isinstance(size, int) or isinstance(want, int):
        return statically_known_true(size == want)
    return guard_or_false(size == want)


def _others(write: torch.fx.Node) -> list[torch.fx.Node]:
    """What it is given beside what it writes to: the value, and the places if any."""
    given = {**arguments_of(write), "self": None}
    leaves = pytree.tree_leaves(given)
    return [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]


def _is_generated(write: torch.fx.Node) -> bool:
    """Whether Inductor writes its kernel, and that adds nothing up in memory."""
    given = arguments_of(write)
    indices = [index for index in given.get("indices", ()) if index is not None]
    device = given["self"].meta["val"].device
    return (
        has_generated_code(write)
        and not given.get("accumulate")
        and all(is_index(index.meta["val"]) for index in indices)
        and all(index.meta["val"].device == device for index in indices)
    )


def written_by(nodes: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """The memory that nodes of a region write to, see ``memory_of``."""
    return {memory_of(node) for node in nodes if is_write(node)}


def is_given_what_is_written(
    node: torch.fx.Node, members: Collection[torch.fx.Node]
) -> bool:
    """Whether a node is given elements, to read or write, that nodes of a region write to."""
    return any(_is_written(given, members) for given in node.all_input_nodes)


def reads_what_is_written(
    node: torch.fx.Node, members: Collection[torch.fx.Node]
) -> bool:
    """Whether a node is given such elements but as values, see ``reads_as_before``."""
    return any(
        _is_written(given, members)
        for given in node.all_input_nodes
        if not _is_value(given, members)
    )


def _is_written(view: torch.fx.Node, members: Collection[torch.fx.Node]) -> bool:
    """Whether nodes of a region write to elements of a view."""
    return any(
        share_elements(view, write.args[0])  # type: ignore[arg-type]  # a node
        for write in filter(is_write, members)
    )


def places_of_writes(nodes: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """
    What says where nodes of a region write, which the region is given.

    To be measured, it is given places that exist; those computed from a size may not.
    """
    return {
        place
        for node in filter(is_write, nodes)
        for place in _others(node)
        if place is not value_written(node)
    }


def views_of_written(members: Collection[torch.fx.Node]) -> set[torch.fx.Node] | None:
    """
    The views that a region has to know to see all that it reads in memory that it writes
    to; None if it cannot.
    """
    written = written_by(members)
    views: set[torch.fx.Node] = set()
    left = [read for node in members for read in node.all_input_nodes]
    for read in left:  # grows
        if read in written or memory_of(read) not in written:
            continue
        if read not in members:
            if not (_is_known_view(read) and _is_known_at_start(read)):
                return None
            views.add(read)
        left.append(read.all_input_nodes[0])
    return views


def _is_known_view(node: torch.fx.Node) -> bool:
    """
    Whether a node is a view of elements in another shape or order, or by strides of some that
    it has in the order in which they lie in memory.
    """
    if node.target is not torch.ops.aten.as_strided.default:
        return is_view(node)
    return all(is_in_order(n.meta["val"]) for n in (node, *node.all_input_nodes[:1]))


def _is_known_at_start(view: torch.fx.Node) -> bool:
    """Whether the numbers that a view is made with are made of those the graph is given."""
    numbers = [read for read in view.all_input_nodes if is_number(read)]
    for number in numbers:  # grows
        numbers += number.all_input_nodes
    return all(number.op == "placeholder" or is_number(number) for number in numbers)


def keeps_order_of_writes(nodes: Sequence[torch.fx.Node]) -> bool:
    """
    Whether nodes may become one in the place of the last: who reads what one of them, or a
    node between them, writes to stays on the same side of the write.

    Nor may they read integers that they write to and that may be indices, which would be
    others each time that the region is called to be measured.

    Args:
        nodes: in the order of the graph.
    """
    members = set(nodes)
    own = written_by(nodes)
    others_have = _views_of_given(nodes)
    written: set[torch.fx.Node] = set()
    read: set[torch.fx.Node] = set()
    behind: set[torch.fx.Node] = set()
    for node in _between(nodes[0], nodes[-1]):
        given = {*node.all_input_nodes} - others_have
        memory = set() if is_any_view(node) else reads_as_before(node, members)
        if node in members:
            read |= memory
            if is_write(node):
                written.add(memory_of(node))
                memory = {*map(memory_of, _others(node))}
            if any(is_index(n.meta["val"]) for n in memory & own):
                return False
        elif any(other in members or other in behind for other in given):
            behind.add(node)
            read |= memory
            if memory & own or memory_written(node):
                return False
        elif memory & written or (memory_written(node) or set()) & read:
            return False
    return True


def _views_of_given(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """
    The views, among nodes in the order of the graph, of what the others have not computed: who
    else reads one can have it for itself.
    """
    members, found = {*nodes}, set()
    for node in nodes:
        if is_any_view(node) and found.issuperset(members & {*node.all_input_nodes}):
            found.add(node)
    return found


def writes_in_order_of_reads(nodes: Collection[torch.fx.Node]) -> bool:
    """
    Whether what nodes read of memory that they write to is not transposed against that.

    One kernel would overwrite elements that it still has to read, which Inductor does not
    see where the matrix is a square.
    """
    written = written_by(nodes)
    transposed = {
        memory_of(read)
        for node in nodes
        for read in node.all_input_nodes
        if memory_of(read) in written and _is_transposed(read)
    }
    given = (_others(n) if is_write(n) else values_read(n) for n in nodes)
    return not any(memory_of(read) in transposed for reads in given for read in reads)


def _is_transposed(node: torch.fx.Node) -> bool:
    """
    Whether a value has dimensions in another order than the memory that it is in, and two
    are known to be as long as each other.
    """
    while shares_memory(node):
        sizes = node.meta["val"].shape if permutes(node) else ()
        if any(statically_known_true(a == b) for a, b in combinations(sizes, 2)):
            return True
        node = node.all_input_nodes[0]
    return False


def writes_between(nodes: Sequence[torch.fx.Node]) -> list[torch.fx.Node]:
    """The nodes that write to memory, from the first of these to the last."""
    return [n for n in _between(nodes[0], nodes[-1]) if memory_written(n)]


def _between(first: torch.fx.Node, last: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """Both included, in the order of the graph."""
    node = first
    while node is not last:
        yield node
        node = node.next
    yield last
