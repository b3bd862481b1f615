"""
Neighbours of an op share its choice, so that each branch of a dispatch is fused as if it
stood alone.

An FX pass behind the post-grad passes. A call whose choice depends on a symbolic size, or
that writes, becomes one node with a small graph inside: the op, what joins it (see
``neighbours.joining``), and other such calls. Candidates are that graph with the op replaced,
so that tracing, measuring and emitting all see the fused whole.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
from typing import Any, TYPE_CHECKING

from torch.fx.passes.utils.fuser_utils import erase_nodes, fuse_as_graphmodule

import torch

from .. import config
from .graphs.node_kinds import (
    is_gather,
    is_on_user_stream,
    is_row_reduction,
    is_seed,
    makes_random_numbers,
    moves_elements,
)
from .graphs.node_memory import REGION_WRITES
from .graphs.symbolic_graphs import copied
from .neighbours.dispatched_calls import dispatched_registration, may_depend_on_size
from .neighbours.region_copies import is_free, with_copies
from .neighbours.region_inputs import written_outputs
from .neighbours.region_search import find_region, Reach, SubgraphBoundaryInfo
from .ops.redefined_ops import follow_redefined_ops
from .writes.functional_calls import return_what_calls_write
from .writes.in_place import nodes_of_call, write_in_place, writes_of_call
from .writes.model_writes import write_places_only
from .writes.repeated_writes import write_once
from .writes.write_lowerings import register_lowering_of_writes
from .writes.writes_as_values import (
    is_write,
    mark_unread,
    read_writes_at_source,
    writes_as_values,
)


if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

_select = torch.ops.aten.select.int

log = logging.getLogger("torch._inductor.kernel.custom_op")


def prepare_calls(gm: torch.fx.GraphModule) -> None:
    """
    Brings calls of registered ops into the form in which they are tuned.

    Args:
        gm: see ``form_regions``.
    """
    follow_redefined_ops(gm)
    return_what_calls_write(gm)
    if config.enable_custom_op_fusion:
        if any(map(dispatched_registration, gm.graph.nodes)):
            write_places_only(gm)
        form_regions(gm)
    for op in write_in_place(gm):
        log.info("%s is not tuned here: no region takes in what it writes in place", op)


def form_regions(gm: torch.fx.GraphModule, reach: Reach = Reach.WIDE) -> bool:
    """
    Replaces each dispatched call and the neighbours that may join it by one node.

    Args:
        gm: a post-grad graph with fake values in its metadata; changed in place.
        reach: of the regions.

    Returns:
        Whether there is one now.
    """
    if any(map(is_on_user_stream, gm.graph.nodes)):
        return False  # events order the work on streams by where they are in the graph
    calls = [node for node in gm.graph.nodes if dispatched_registration(node)]
    outside = _out_of_reach(gm.graph, calls, reach)
    taken: set[torch.fx.Node] = set()
    for number, call in enumerate(calls):
        if call in taken:
            continue
        region = _find_whole(call, taken.union(outside))
        if region and len(region.nodes) > 1 and _is_read(region.nodes):
            behind = read_writes_at_source(region.nodes)
            nodes = tuple(with_copies(region.nodes))
            region = dataclasses.replace(region, nodes=nodes)
            taken.update(region.nodes)
            _replace(gm, region, behind, f"autotuned_region_{number}", reach)
        else:
            read_writes_at_source(writes_of_call(call))
    if taken:
        gm.graph.lint()
        gm.recompile()
    return bool(taken)


def _find_whole(
    call: torch.fx.Node, taken: set[torch.fx.Node]
) -> SubgraphBoundaryInfo | None:
    """
    The region of a call, in which all is written that its ops write in place; None if there is
    none. What its calls write where others of them have written is written once, or not at all
    if nobody else sees it there.
    """
    region = find_region(call, taken)
    writes = {other: _writes_outside(other, region.nodes) for other in region.calls}
    left_out = [other for other in region.calls if writes[other]]
    if not left_out:
        return region
    may_join = call not in left_out and all(map(may_depend_on_size, region.calls))
    if may_join and write_once(writes[left_out[0]], region.nodes):
        return _find_whole(call, taken)
    return None if call in left_out else _find_whole(call, {*taken, *left_out})


def _writes_outside(
    call: torch.fx.Node, nodes: Collection[torch.fx.Node]
) -> list[torch.fx.Node]:
    """What a call's op writes in place behind a region or beside it."""
    return [write for write in writes_of_call(call) if write not in nodes]


def _is_read(nodes: Collection[torch.fx.Node]) -> bool:
    """Whether others read anything of what is computed, be it written to what they have."""
    return any(
        is_write(node) or any(user not in nodes for user in node.users)
        for node in nodes
    )


def _out_of_reach(
    graph: torch.fx.Graph, calls: Sequence[torch.fx.Node], reach: Reach
) -> set[torch.fx.Node]:
    """The nodes that join no call; the calls themselves where they join no other one."""
    if reach is Reach.WIDE:
        return set()
    own = {node for call in calls for node in nodes_of_call(call)}
    others = [node for node in graph.nodes if node not in own]
    if reach is Reach.NARROW:
        others = [*filter(_needs_wide, others)]
    return {*calls, *others}


def _needs_wide(node: torch.fx.Node) -> bool:
    return (
        is_free(node)
        or moves_elements(node)
        or is_gather(node)
        or is_row_reduction(node)
        or is_write(node)
    )


def _replace(
    gm: torch.fx.GraphModule,
    region: SubgraphBoundaryInfo,
    behind: set[torch.fx.Node],
    name: str,
    reach: Reach,
) -> None:
    """
    Puts one node in the place of a region's nodes.

    Args:
        behind: other nodes that are to stay behind these.
    """
    nodes = list(region.nodes)
    mark_unread(nodes)
    _give_seeds(nodes)
    before = nodes[0].prev
    body, inputs, outputs = fuse_as_graphmodule(
        gm, nodes, name, always_return_tuple=True
    )
    body = copied(body)  # placeholders come where each is first read
    _view_any_strides(body.graph)
    writes_as_values(body.graph)
    body.recompile()
    targets = {call.target for call in region.calls}
    calls = [node for node in body.graph.nodes if node.target in targets]
    with gm.graph.inserting_after(nodes[-1]):
        lowering = _lowering_of(region, body, calls, name, reach)
        node = gm.graph.call_function(lowering, inputs)
    returned: Any = body.graph.output_node().args[0]
    node.meta = {"val": tuple(result.meta.get("val") for result in returned)}
    with gm.graph.inserting_before(node.next):
        for i, output in enumerate(outputs):
            part = gm.graph.call_function(operator.getitem, (node, i))
            part.meta = {**output.meta}
            output.replace_all_uses_with(part)
    erase_nodes(gm, nodes)
    _put_behind(behind, node, before)
    log.debug("%s: joined by %s", list(region.calls), [n.name for n in nodes])


def _give_seeds(nodes: Collection[torch.fx.Node]) -> None:
    """
    Has random numbers of a region read their seed where it lies among the model's seeds.

    The region is given it as an input then, and is the same as that of an equal layer.
    """
    for node in filter(makes_random_numbers, nodes):
        seed: Any = node.args[1]
        if not is_seed(seed):
            continue
        seeds, index = seed.args
        with node.graph.inserting_after(seed):
            view = node.graph.call_function(_select, (seeds, 0, index))
        view.meta = {**seed.meta}
        node.replace_input_with(seed, view)
        if not seed.users:
            node.graph.erase_node(seed)


def _put_behind(
    late: set[torch.fx.Node], node: torch.fx.Node, start: torch.fx.Node
) -> None:
    """
    Moves nodes, and what depends on them, behind a node, from where they are between ``start``
    and that.
    """
    last = node
    while last.next in node.users:  # the parts of what it returns
        last = last.next
    late.update(node.users, [node])
    at = start.next
    while at is not node:
        following = at.next
        if at in late or any(read in late for read in at.all_input_nodes):
            late.add(at)
            last.append(at)
            last = at
        at = following


def _view_any_strides(graph: torch.fx.Graph) -> None:
    """Candidates may return other strides than the op, of which there is no view."""
    for view in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default):
        for node in graph.find_nodes(op="call_function", target=view):
            node.target = torch.ops.aten.reshape.default


def _lowering_of(
    region: SubgraphBoundaryInfo,
    body: torch.fx.GraphModule,
    calls: Sequence[torch.fx.Node],
    name: str,
    reach: Reach,
) -> Any:
    """A target for the region's node that Inductor calls with IR in place of tensors."""

    def lower(*inputs: Any) -> list[Any]:
        from .lowering import lower_region

        register_lowering_of_writes()
        if any(isinstance(x, (torch.Tensor, torch.SymInt)) for x in inputs):
            # Lowering torch.cond runs its branches' graphs to look for aliases.
            return list(body(*inputs))
        return lower_region(region.registration, body, calls, inputs, reach)

    lower.__name__ = lower.__qualname__ = name
    lower._inductor_lowering_function = True  # type: ignore[attr-defined]  # its protocol
    setattr(lower, REGION_WRITES, [*written_outputs(body.graph).values()])
    return lower
