"""How far a region reaches from a call: to all neighbours that may join, and no path back."""

from __future__ import annotations

import dataclasses
import enum
import operator
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true

from ..graphs.node_kinds import (
    has_generated_code,
    indexed,
    is_any_view,
    is_elementwise,
    is_pointwise,
    is_view,
    readers,
)
from ..graphs.node_memory import memory_of, memory_written, reads_from
from ..ops.plain_bodies import are_generated
from ..settings import fusion_types, most_steps
from ..writes.in_place import writes_of_call
from ..writes.region_writes import (
    keeps_order_of_writes,
    places_of_writes,
    reads_as_before,
    reads_what_is_written,
    views_of_written,
    writes_between,
    writes_in_order_of_reads,
    written_by,
)
from ..writes.writes_as_values import is_write, value_written
from .dispatched_calls import (
    can_have_neighbours,
    dispatched_registration,
    made_by_user,
    registration_of_call,
    results_of,
)
from .joining import (
    can_follow,
    can_follow_as_call,
    can_follow_as_write,
    can_precede,
    is_step,
)
from .joint import joined
from .region_copies import is_free
from .region_inputs import views_of_parts
from .row_reductions import is_result_of_row_reduction, parts_calls


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    import torch

    from ..registration import Registration


class Reach(enum.IntEnum):
    """How far regions reach from a call; code of those that reach farther may guard on sizes."""

    # What the op itself writes in place.
    ALONE = 0
    # Pointwise neighbours.
    NARROW = 1
    # Through views and reductions, to writes, and to other calls.
    WIDE = 2


# Compilation time grows with a region, and every candidate repeats it.
_MOST_NODES = 64


@dataclasses.dataclass(frozen=True)
class SubgraphBoundaryInfo:
    """
    Calls and the nodes that join them, in the order of the graph.

    Args:
        registration: of the op, or of several joined.
        calls: nodes of registered ops whose choice depends on one size.
        nodes: all nodes of the region, the calls among them.
    """

    registration: Registration
    calls: tuple[torch.fx.Node, ...]
    nodes: tuple[torch.fx.Node, ...]


def find_region(
    call: torch.fx.Node,
    taken: set[torch.fx.Node],
    others: Collection[torch.fx.Node] = (),
) -> SubgraphBoundaryInfo:
    """
    The largest set of neighbours that may join a call.

    No path leads out of it and back in, and nothing else in the graph between its first
    and its last node writes to what it reads.

    Args:
        taken: nodes that stay outside, such as those of other regions.
        others: calls behind that one which may be decided together with it, too.
    """
    if not can_have_neighbours(call):
        return SubgraphBoundaryInfo(registration_of_call(call), (call,), (call,))
    order = {node: i for i, node in enumerate(call.graph.nodes)}
    calls, members = _with_epilogue(call, others, taken, order)
    if "prologue" in fusion_types():
        epilogue = {*members}
        _add_producers(members, calls, taken, order)
        producers = members.keys() - epilogue
        if any(is_write(user) for producer in producers for user in producer.users):
            calls, members = _with_epilogue(call, others, taken, order, producers)
            _add_producers(members, calls, taken, order)
    beside = _calls_beside(members, calls, taken, order)
    if not beside.issubset(others):
        return find_region(call, taken, beside.union(others))
    views = views_of_written(members)
    nodes = sorted({*members, *(views or ())}, key=order.__getitem__)
    knows_all = views is not None and not views & taken
    if not (
        knows_all and keeps_order_of_writes(nodes) and writes_in_order_of_reads(nodes)
    ):
        return find_region(call, {*taken, _in_the_way(nodes, calls, taken)}, others)
    return SubgraphBoundaryInfo(
        joined([registration_of_call(c) for c in calls]),
        tuple(calls),
        _without_views_of_inputs(nodes),
    )


def _in_the_way(
    nodes: Sequence[torch.fx.Node],
    calls: Sequence[torch.fx.Node],
    taken: Collection[torch.fx.Node],
) -> torch.fx.Node:
    """What to leave out of a region that cannot be: the last write, or the call that writes it."""
    write = [write for write in writes_between(nodes) if write not in taken][-1]
    of_calls = (call for call in calls[1:] if write in writes_of_call(call))
    return next(of_calls, write)


def _calls_beside(
    members: Collection[torch.fx.Node],
    calls: Sequence[torch.fx.Node],
    taken: Collection[torch.fx.Node],
    order: Mapping[torch.fx.Node, int],
) -> set[torch.fx.Node]:
    """
    The calls behind the first one that the region reads, and that may be decided together with
    those in it: such as a norm of keys where a rotary embedding follows that and one of queries.
    """
    found: set[torch.fx.Node] = set()
    for node in members:
        for read in node.all_input_nodes:
            source = _source_of(read)
            is_behind = order.get(source, -1) > order[calls[0]]
            if not is_behind or source in members or source in taken:
                continue
            if can_follow_as_call(source, [*calls, *found]):
                found.add(source)
    return found


def _source_of(value: Any) -> torch.fx.Node:
    """The node that has computed a value, of which that may be a view or a part."""
    while is_any_view(value) or value.target is operator.getitem or is_write(value):
        value = value_written(value) if is_write(value) else value.all_input_nodes[0]
    return value


def _with_epilogue(
    call: torch.fx.Node,
    others: Collection[torch.fx.Node],
    taken: set[torch.fx.Node],
    order: Mapping[torch.fx.Node, int],
    producers: Collection[torch.fx.Node] = (),
) -> tuple[list[torch.fx.Node], dict[torch.fx.Node, int]]:
    """
    The call, and what joins behind it: work on its result, writes of that, and such calls again.

    Args:
        others: see ``find_region``.
        order: of the graph.
        producers: in front of the call, of what may be written behind it.

    Returns:
        The calls, and each member's steps from a call.
    """
    calls, members = [call], {call: 0}
    # Nodes outside that depend on the region: what reads them cannot be inside.
    behind: set[torch.fx.Node] = set()
    # Members that calls are decided apart from.
    parting: set[torch.fx.Node] = set()
    # Nothing behind it reads the region or the producers.
    last = _last_reader([call, *others, *producers], order)
    node = call.next
    while order[node] <= last and node.op != "output" and not _is_full(members, node):
        writes = node not in taken and can_follow_as_write(
            node, members, behind, producers
        )
        if not writes and _ends_region(node, members, taken):
            break
        inputs = node.all_input_nodes
        reads = [members[i] for i in inputs if i in members]
        steps = max(reads, default=0) + is_step(node)
        joins = node in others and node not in taken
        if writes:
            members[node] = steps
        elif any(i in behind for i in inputs) or (reads and node in taken):
            behind.add(node)
        elif (
            (reads or joins)
            and parting.isdisjoint(inputs)
            and can_follow_as_call(node, calls)
        ):
            calls.append(node)
            members[node] = 0
        elif reads and steps <= most_steps() and can_follow(node, calls, members):
            members[node] = steps
        elif reads:
            behind.add(node)
        if node in members:
            last = max(last, _last_reader([node], order))
            if parts_calls(node, calls) or not parting.isdisjoint(inputs):
                parting.add(node)
        node = node.next
    _drop_better_outside(calls, members)
    return calls, members


def _drop_better_outside(
    calls: Sequence[torch.fx.Node], members: dict[torch.fx.Node, int]
) -> None:
    for node in reversed([*members]):
        if not _belongs_at_end(node, calls, members):
            del members[node]


def _last_reader(
    nodes: Iterable[torch.fx.Node], order: Mapping[torch.fx.Node, int]
) -> int:
    """The place of the last node that reads any of them."""
    readers_of = (user for node in nodes for user in node.users)
    return max((order[user] for user in readers_of), default=0)


def _ends_region(
    node: torch.fx.Node,
    members: Collection[torch.fx.Node],
    taken: Collection[torch.fx.Node],
) -> bool:
    """
    Whether nothing behind a node may join: it writes to who knows what, or where that is in
    the way; or it reads what the region has written, or unless it is a call or what that
    writes, something in the same memory.
    """
    memory = memory_written(node)
    if memory is None or (memory and node in taken):
        return True
    if is_any_view(node):
        return False
    if dispatched_registration(node) or is_write(node):
        return reads_what_is_written(node, members)
    return bool(reads_as_before(node, members) & written_by(members))


def _is_full(members: Collection[torch.fx.Node], node: torch.fx.Node) -> bool:
    return len(members) >= _MOST_NODES and node.target is not operator.getitem


def _belongs_at_end(
    node: torch.fx.Node,
    calls: Sequence[torch.fx.Node],
    members: Collection[torch.fx.Node],
) -> bool:
    """
    Whether a node that reads the region is better computed in it, if it ends there.

    A view is not, nor what need not be stored, since who reads it can compute it, if it takes
    more memory than the ops' results or is no kernel with the ops.
    """
    if any(user in members for user in node.users):
        return True
    if is_view(node):
        return False
    if not is_elementwise(node):
        return True
    if not all(map(has_generated_code, readers(node))):
        return True
    size = _bytes_of(node.meta["val"])
    return are_generated(calls) and any(
        statically_known_true(size <= _bytes_of(result)) for result in results_of(calls)
    )


def _bytes_of(value: torch.Tensor) -> Any:
    return value.numel() * value.element_size()


def _add_producers(
    members: dict[torch.fx.Node, int],
    calls: Sequence[torch.fx.Node],
    taken: set[torch.fx.Node],
    order: Mapping[torch.fx.Node, int],
) -> None:
    """
    Adds what the region's inputs are computed with, back to the last write before it.

    What others read, too, is one more output: it has to be written anyway, but need not be
    read again.

    Args:
        order: of the graph.
    """
    # Nodes outside that the region depends on: what they read cannot be inside.
    before: set[torch.fx.Node] = set()
    # What is written to between here and the region.
    passed: set[torch.fx.Node] = set()
    inputs = {*taken, *(node for call in calls for node in made_by_user(call))}
    inputs |= places_of_writes(members) | written_by(members)
    # Nothing in front of it is read in the region.
    first = min((order[read] for read in _computed_for(members)), default=len(order))
    node = max(members, key=order.__getitem__)
    while order.get(node, -1) >= first and len(members) < _MOST_NODES:
        if node not in members:
            memory = memory_written(node)
            if memory is None or (memory and order[node] < order[calls[0]]):
                break
            passed |= memory
            inside = [members[user] for user in node.users if user in members]
            leads_in = any(user in before for user in node.users)
            steps = min(inside, default=0) + is_step(node)
            joins = (
                inside
                and node not in inputs
                and (is_free(node) or not leads_in)
                and steps <= most_steps()
                and can_precede(node, calls, members)
                and not reads_from(node, passed)
            )
            if joins:
                members[node] = steps
                first = min([first, *(order[read] for read in _computed_for([node]))])
                # There have to be such places at each size that is measured.
                inputs |= {index for index, _ in indexed(node)}
            if leads_in or (inside and not joins):
                before.add(node)
        node = node.prev
    for node in [*filter(is_result_of_row_reduction, members)]:
        if node.args[0] not in members:
            del members[node]


def _computed_for(nodes: Iterable[torch.fx.Node]) -> list[torch.fx.Node]:
    """What nodes read that is computed in the graph."""
    inputs = (read for node in nodes for read in node.all_input_nodes)
    return [read for read in inputs if read.op == "call_function"]


def _without_views_of_inputs(
    nodes: Sequence[torch.fx.Node],
) -> tuple[torch.fx.Node, ...]:
    """
    A region's nodes but for views of what it reads, which become its inputs.

    Unless the region reads the same memory otherwise, too: a kernel would load twice what
    it is given as two inputs. Of what it writes to only those of its parts.

    Args:
        nodes: in the order of the graph.
    """
    members = set(nodes)
    written = written_by(nodes)
    for memory in written:
        members -= views_of_parts(memory, members)
    for node in filter(is_view, nodes):
        if memory_of(node) in written:
            continue
        viewed = node.all_input_nodes[0]
        inside = {reader for reader in readers(viewed) if reader in members}
        is_read_twice = len(inside) > 1 and any(map(is_pointwise, inside))
        if viewed not in members and not is_read_twice:
            members.remove(node)
    return tuple(node for node in nodes if node in members)
