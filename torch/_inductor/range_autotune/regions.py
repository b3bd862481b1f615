"""
Which neighbours of an op share its choice, so that each branch of a dispatch is fused as
if it stood alone.

An FX pass behind the post-grad passes. A call whose choice depends on a symbolic size
becomes one node with a small graph inside: the op, the pointwise work on its result, and
that on what these read. Candidates are that graph with the op replaced, so that
tracing, measuring and emitting all see the fused whole.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.fx.passes.utils.fuser_utils import (
    erase_nodes,
    fuse_as_graphmodule,
    insert_subgm,
)
from torch.utils import _pytree as pytree

import torch

from .. import config
from .fusion_options import fusion_types, most_steps
from .integer_division import divides_integers
from .joint import can_join, joined
from .node_kinds import (
    has_generated_code,
    is_computed_from_stored,
    is_index,
    is_number,
    is_pointwise,
    is_row_reduction,
    is_view,
    makes_random_numbers,
    memory_of,
    memory_written,
    moves_elements,
    readers,
    REGION_WRITES,
)
from .plain_bodies import is_generated
from .region_copies import is_free, with_copies
from .region_writes import (
    can_join_as_write,
    is_write,
    keeps_order_of_writes,
    last_write,
    read_writes_at_source,
    views_of_written,
    writes_as_values,
    written_by,
    written_outputs,
)
from .signatures import arguments_by_name
from .stale_code import registration_of
from .write_ops import register_lowering_of_writes


if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from .registration import Registration

log = logging.getLogger("torch._inductor.kernel.custom_op")

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


def form_regions(gm: torch.fx.GraphModule, wide: bool = True) -> None:
    """
    Replaces each dispatched call and the neighbours that may join it by one node.

    Args:
        gm: a post-grad graph with fake values in its metadata; changed in place.
        wide: whether regions reach through views and reductions and hold several calls;
            such code may guard on sizes where it would not without.
    """
    calls = [node for node in gm.graph.nodes if _dispatched_registration(node)]
    narrow = () if wide else (*calls, *filter(_needs_wide, gm.graph.nodes))
    taken: set[torch.fx.Node] = set()
    for number, call in enumerate(calls):
        if call in taken:
            continue
        region = find_region(call, taken.union(narrow))
        if len(region.nodes) > 1 and _is_read(region.nodes):
            nodes = tuple(with_copies(region.nodes))
            region = dataclasses.replace(region, nodes=nodes)
            taken.update(region.nodes)
            _replace(gm, region, f"autotuned_region_{number}", wide)
    if taken:
        gm.graph.lint()
        gm.recompile()


def _is_read(nodes: Collection[torch.fx.Node]) -> bool:
    """Whether others read anything of what is computed, be it written to what they have."""
    return any(
        is_write(node) or any(user not in nodes for user in node.users)
        for node in nodes
    )


def _needs_wide(node: torch.fx.Node) -> bool:
    return (
        is_free(node)
        or moves_elements(node)
        or is_row_reduction(node)
        or is_write(node)
    )


def _dispatched_registration(node: torch.fx.Node) -> Registration | None:
    """The registration of a call that may get more than one winner."""
    registration = registration_of(node.target)
    if registration is None:
        return None
    if registration.dim is None:
        return None
    has_symbols = any(
        isinstance(tensor, torch.Tensor) and tensor._has_symbolic_sizes_strides
        for tensor in _values(node.all_input_nodes)
    )
    return registration if has_symbols else None


def _values(nodes: Iterable[torch.fx.Node]) -> Iterator[Any]:
    return (node.meta.get("val") for node in nodes)


def find_region(call: torch.fx.Node, taken: set[torch.fx.Node]) -> SubgraphBoundaryInfo:
    """
    The largest set of neighbours that may join a call.

    No path leads out of it and back in, and nothing else in the graph between its first
    and its last node writes to what it reads.

    Args:
        taken: nodes that stay outside, such as those of other regions.
    """
    if not can_have_neighbours(call):
        return SubgraphBoundaryInfo(_registration_of(call), (call,), (call,))
    order = {node: i for i, node in enumerate(call.graph.nodes)}
    calls, members = _with_epilogue(call, taken)
    if "prologue" in fusion_types():
        epilogue = {*members}
        _add_producers(members, calls, taken, order)
        producers = members.keys() - epilogue
        if any(is_write(user) for producer in producers for user in producer.users):
            calls, members = _with_epilogue(call, taken, producers)
            _add_producers(members, calls, taken, order)
    views = views_of_written(members)
    nodes = sorted({*members, *(views or ())}, key=order.__getitem__)
    knows_all = views is not None and not views & taken
    if not (knows_all and keeps_order_of_writes(nodes)):
        return find_region(call, {*taken, last_write(nodes)})
    return SubgraphBoundaryInfo(
        joined([_registration_of(c) for c in calls]),
        tuple(calls),
        _without_views_of_inputs(nodes),
    )


def can_have_neighbours(call: torch.fx.Node) -> bool:
    """Whether anything may join a call: not those with collectives, if told so."""
    joins = config.benchmark_collective_epilogue_fusion
    return joins or not _registration_of(call).mentions_collective


def _registration_of(call: torch.fx.Node) -> Registration:
    registration = _dispatched_registration(call)
    assert registration is not None
    return registration


def _with_epilogue(
    call: torch.fx.Node,
    taken: set[torch.fx.Node],
    producers: Collection[torch.fx.Node] = (),
) -> tuple[list[torch.fx.Node], dict[torch.fx.Node, int]]:
    """
    The call and the work on its result, as far as it is pointwise or such a call again.

    Args:
        producers: in front of the call, of what may be written behind it.

    Returns:
        The calls, and each member's steps from a call.
    """
    calls, members = [call], {call: 0}
    # Nodes outside that depend on the region: what reads them cannot be inside.
    behind: set[torch.fx.Node] = set()
    node = call.next
    while node.op != "output" and not _is_full(members, node):
        writes = node not in taken and can_follow_as_write(
            node, members, behind, producers
        )
        if not writes and _ends_region(node, members, taken):
            break
        inputs = node.all_input_nodes
        reads = [members[i] for i in inputs if i in members]
        steps = max(reads, default=0) + _is_step(node)
        if writes:
            members[node] = steps
        elif any(i in behind for i in inputs) or (reads and node in taken):
            behind.add(node)
        elif reads and can_follow_as_call(node, calls):
            calls.append(node)
            members[node] = 0
        elif reads and steps <= most_steps() and can_follow(node, calls, members):
            members[node] = steps
        elif reads:
            behind.add(node)
        node = node.next
    for node in reversed([*members]):
        if not _belongs_at_end(node, calls, members):
            del members[node]
    return calls, members


def _ends_region(
    node: torch.fx.Node,
    members: Collection[torch.fx.Node],
    taken: Collection[torch.fx.Node],
) -> bool:
    """
    Whether nothing behind a node may join: it writes to who knows what, or where that is in
    the way; or it reads what the region has written.
    """
    memory = memory_written(node)
    if memory is None or (memory and node in taken):
        return True
    return _reads(node, written_by(members))


def _is_full(members: Collection[torch.fx.Node], node: torch.fx.Node) -> bool:
    return len(members) >= _MOST_NODES and node.target is not operator.getitem


def _belongs_at_end(
    node: torch.fx.Node,
    calls: Sequence[torch.fx.Node],
    members: Collection[torch.fx.Node],
) -> bool:
    """
    Whether a node that reads the region is better computed in it, if it ends there.

    A view is not, nor what is larger than the ops' results and need not be stored, since
    who reads it can compute it.
    """
    if any(user in members for user in node.users):
        return True
    if is_view(node):
        return False
    if not _is_elementwise(node):
        return True
    value = node.meta["val"]
    may_grow = not any(
        statically_known_true(value.numel() <= result.numel())
        for result in _results(calls)
    )
    return not may_grow or not all(map(has_generated_code, readers(node)))


def _results(calls: Iterable[torch.fx.Node]) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves([call.meta.get("val") for call in calls])
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


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
    inputs = {*taken, *(node for call in calls for node in _generated(call))}
    node = max(members, key=order.__getitem__)
    while node.op != "root" and len(members) < _MOST_NODES:
        if node not in members:
            memory = memory_written(node)
            if memory is None or (memory and order[node] < order[calls[0]]):
                break
            passed |= memory
            inside = [members[user] for user in node.users if user in members]
            leads_in = any(user in before for user in node.users)
            steps = min(inside, default=0) + _is_step(node)
            joins = (
                inside
                and node not in inputs
                and (is_free(node) or not leads_in)
                and steps <= most_steps()
                and can_precede(node, calls, members)
                and not _reads(node, passed)
            )
            if joins:
                members[node] = steps
            if leads_in or (inside and not joins):
                before.add(node)
        node = node.prev


def _reads(node: torch.fx.Node, memory: Collection[torch.fx.Node]) -> bool:
    """Whether a node is given something in some memory, see ``memory_of``."""
    return bool(memory) and any(memory_of(i) in memory for i in node.all_input_nodes)


def _without_views_of_inputs(
    nodes: Sequence[torch.fx.Node],
) -> tuple[torch.fx.Node, ...]:
    """
    A region's nodes but for views of what it reads, which become its inputs.

    Unless the region reads the same memory otherwise, too: a kernel would load twice what
    it is given as two inputs. Nor of what it writes to.

    Args:
        nodes: in the order of the graph.
    """
    members = set(nodes)
    written = written_by(nodes)
    for node in filter(is_view, nodes):
        if memory_of(node) in written:
            continue
        (viewed,) = (read for read in node.all_input_nodes if not is_number(read))
        inside = {reader for reader in readers(viewed) if reader in members}
        is_read_twice = len(inside) > 1 and any(map(is_pointwise, inside))
        if viewed not in members and not is_read_twice:
            members.remove(node)
    return tuple(node for node in nodes if node in members)


def _is_elementwise(node: torch.fx.Node) -> bool:
    return is_pointwise(node) or moves_elements(node) or makes_random_numbers(node)


def _is_step(node: torch.fx.Node) -> bool:
    return _is_elementwise(node) or is_row_reduction(node)


def can_follow(
    node: torch.fx.Node,
    calls: Sequence[torch.fx.Node],
    members: Collection[torch.fx.Node],
) -> bool:
    """Whether a node that reads the region may be computed in each branch."""
    if is_view(node) or (node.target is operator.getitem and node.args[0] in members):
        return True
    if "reduction" in fusion_types() and is_row_reduction(node):
        # One kernel with the op's, if that is generated.
        return all(map(is_generated, calls))
    if "epilogue" not in fusion_types() or not can_be_measured(node):
        return False
    return _is_on_device_of(node, calls)


def can_precede(
    node: torch.fx.Node,
    calls: Sequence[torch.fx.Node],
    members: Collection[torch.fx.Node],
) -> bool:
    """
    Whether a node that the region reads may be computed in each branch.

    If others read it, too, nothing shall have to be stored for it that is not; and of what
    has one size always, such as a weight, one region is no better place than another.
    """
    if is_view(node):
        return True
    if not isinstance(node.meta.get("val"), torch.Tensor):
        return False
    if not _is_on_device_of(node, calls):
        return False
    if is_free(node):
        return True
    if not can_be_measured(node) or is_index(node.meta["val"]):
        return False
    if all(reader in members for reader in readers(node)):
        return True
    symbolic = node.meta["val"]._has_symbolic_sizes_strides
    return symbolic and is_computed_from_stored(node)


def _is_on_device_of(node: torch.fx.Node, calls: Iterable[torch.fx.Node]) -> bool:
    device = node.meta["val"].device
    return any(device == result.device for result in _results(calls))


def can_be_measured(node: torch.fx.Node) -> bool:
    """Whether a node is work on single elements, and its inputs may be made up."""
    return _is_elementwise(node) and not divides_integers(node)


def can_follow_as_call(node: torch.fx.Node, calls: Sequence[torch.fx.Node]) -> bool:
    """Whether a call that reads the region may be decided together with those in it."""
    if "cross_subgraph" not in fusion_types():
        return False
    if _dispatched_registration(node) is None or not can_have_neighbours(node):
        return False
    return _one_size([*calls, node]) and can_join(
        [_registration_of(call) for call in (*calls, node)]
    )


def can_follow_as_write(
    node: torch.fx.Node,
    members: Collection[torch.fx.Node],
    behind: Collection[torch.fx.Node],
    producers: Collection[torch.fx.Node] = (),
) -> bool:
    """Whether a node that writes what the region computes may do so in each branch."""
    if not is_write(node) or "epilogue" not in fusion_types():
        return False
    if _reads(node, written_by(members)):
        return False
    return can_join_as_write(node, members, behind, producers)


def _one_size(calls: Sequence[torch.fx.Node]) -> bool:
    """Whether the calls are known to depend on one size."""
    sizes = [_dispatch_size(call) for call in calls]
    return None not in sizes and all(
        statically_known_true(size == sizes[0]) for size in sizes
    )


def _arguments(call: torch.fx.Node) -> dict[str, Any]:
    """What a registered op is called with, by parameter."""
    assert isinstance(call.target, torch._ops.OpOverload)
    return arguments_by_name(call.target, call.args, call.kwargs)


def _generated(call: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments of a call that the user makes to benchmark with; inputs of its region."""
    makers = _registration_of(call).options.input_gen_fns
    made = [value for name, value in _arguments(call).items() if name in makers]
    return [
        leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.fx.Node)
    ]


def _dispatch_size(call: torch.fx.Node) -> Any:
    """A fake size; None if the dispatch tensor is missing or has no such dimension."""
    dim = _registration_of(call).dim
    assert dim is not None
    node = _arguments(call).get(dim.tensor_name)
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    in_range = -value.dim() <= dim.dim_index < value.dim()
    return value.shape[dim.dim_index] if in_range else None


def _replace(
    gm: torch.fx.GraphModule, region: SubgraphBoundaryInfo, name: str, wide: bool
) -> None:
    """Puts one node in the place of a region's nodes."""
    nodes = list(region.nodes)
    read_writes_at_source(nodes)
    before = nodes[0].prev
    body, inputs, outputs = fuse_as_graphmodule(
        gm, nodes, name, always_return_tuple=True
    )
    _put_placeholders_first(body.graph)
    _view_any_strides(body.graph)
    writes_as_values(body.graph)
    body.recompile()
    targets = {call.target for call in region.calls}
    calls = [node for node in body.graph.nodes if node.target in targets]
    insert_subgm(gm, body, inputs, outputs, nodes[-1])
    erase_nodes(gm, nodes)
    module_call = gm.graph.find_nodes(op="call_module", target=name)[0]
    with gm.graph.inserting_before(module_call):
        node = gm.graph.call_function(
            _lowering_of(region, body, calls, name, wide), inputs
        )
    returned: Any = body.graph.output_node().args[0]
    node.meta = {**module_call.meta, "val": tuple(_values(returned))}
    module_call.replace_all_uses_with(node)
    gm.graph.erase_node(module_call)
    gm.delete_submodule(name)
    _put_behind(node, before)
    log.debug("%s: joined by %s", list(region.calls), [n.name for n in nodes])


def _put_behind(node: torch.fx.Node, start: torch.fx.Node) -> None:
    """Moves what depends on a node behind it, from where it is between ``start`` and that."""
    late = {node, *node.users}
    last = node
    while last.next in node.users:  # the parts of what it returns
        last = last.next
    at = start.next
    while at is not node:
        following = at.next
        if any(read in late for read in at.all_input_nodes):
            late.add(at)
            last.append(at)
            last = at
        at = following


def _put_placeholders_first(graph: torch.fx.Graph) -> None:
    """As Inductor counts on; they come where each is first read."""
    start = next(node for node in graph.nodes if node.op != "placeholder")
    for placeholder in graph.find_nodes(op="placeholder"):
        start.prepend(placeholder)


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
    wide: bool,
) -> Any:
    """A target for the region's node that Inductor calls with IR in place of tensors."""

    def lower(*inputs: Any) -> list[Any]:
        from .lowering import lower_region

        register_lowering_of_writes()
        if any(isinstance(x, (torch.Tensor, torch.SymInt)) for x in inputs):
            # Lowering torch.cond runs its branches' graphs to look for aliases.
            return list(body(*inputs))
        return lower_region(region.registration, body, calls, inputs, wide)

    lower.__name__ = lower.__qualname__ = name
    lower._inductor_lowering_function = True  # type: ignore[attr-defined]  # its protocol
    setattr(lower, REGION_WRITES, [*written_outputs(body.graph).values()])
    return lower
