"""
Calls of registered ops that write to tensors, as calls that return what they write.

An FX pass behind the post-grad passes, which have decided whether such an op writes in place
or to a copy. Memory that nobody has written yet, such as of ``torch.empty_like``, or that
generated code has computed, which can as well compute a copy, is no longer needed then. What
is returned for other memory, such as a cache, is written to it behind the call; if no region
takes these writes in, to be one with the call again where the op itself is called, the op
is left as it was.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

import torch

from ... import config
from ...lowering import lowerings
from ..errors import NotTunable
from ..graphs.node_kinds import (
    arguments_of,
    has_generated_code,
    is_empty,
    is_made_of_sizes,
    is_pointwise,
    makes_sizes,
)
from ..graphs.node_memory import (
    aliases_of,
    memory_of,
    memory_written,
    shares_memory,
    tensors_written,
    users_of_memory,
)
from ..graphs.symbolic_graphs import new_call, value_of
from ..ops.decomposed_ops import LoweringByDecomposition
from ..ops.functional_variants import count_results, UNWRITTEN, variant_of
from ..registering.signatures import values_written
from ..registry import registration_of
from ..settings import fusion_types
from .memory_layout import is_row_major, share_elements, views_alike
from .write_lowerings import register_lowering_of_writes


if TYPE_CHECKING:
    from collections.abc import Sequence

log = logging.getLogger("torch._inductor.kernel.custom_op")

_aten = torch.ops.aten
_reshape = torch.ops.aten.reshape.default


@dataclasses.dataclass(frozen=True)
class _Write:
    """
    What a call writes to.

    Args:
        place: of the value, among what the op writes to.
        value: an argument, or of a list of these.
        to: what others know the memory as: the node whose memory that is where the argument
            has all elements of that in their order, or else the argument.
        is_unwritten: whether nobody has written to it before.
        in_place: whether others see that this memory is written to.
    """

    place: int
    value: torch.fx.Node
    to: torch.fx.Node
    is_unwritten: bool
    in_place: bool


def return_what_calls_write(gm: torch.fx.GraphModule) -> None:
    """
    Puts functional variants in the places of registered ops that write, where these can be.

    Args:
        gm: a post-grad graph with fake values in its metadata; changed in place.
    """
    replaced = False
    behind: list[torch.fx.Node] = []
    for node in [node for node in gm.graph.nodes if _is_call_that_writes(node)]:
        try:
            behind += _replace(node, _writes_of(node))
        except NotTunable as e:
            log.info("%s is not tuned here: %s", node.target, e)
        else:
            replaced = True
    for write in behind:
        _read_behind(write)
    if replaced:
        gm.graph.lint()
        gm.recompile()


def _is_call_that_writes(node: torch.fx.Node) -> bool:
    target = node.target
    is_op = isinstance(target, torch._ops.OpOverload)
    return is_op and target._schema.is_mutable and registration_of(target) is not None


def _writes_of(call: torch.fx.Node) -> list[_Write]:
    """
    What a call writes to.

    Raises:
        NotTunable: if they cannot be returned, or not be written behind it.
    """
    if makes_sizes(call):
        raise NotTunable("sizes of its results depend on data")
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    reads = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    if any("val" not in read.meta for read in reads):
        raise NotTunable("nothing is known of a constant that it is given")
    written = values_written(call.target, arguments_of(call))  # type: ignore[arg-type]  # an OpOverload
    for value in written:
        if sum(share_elements(value, read) for read in reads) > 1:
            name = _name_of(value, call)
            raise NotTunable(f"other arguments share memory with '{name}'")
    return [_write_to(call, place, value) for place, value in enumerate(written)]


def _write_to(call: torch.fx.Node, place: int, value: torch.fx.Node) -> _Write:
    """See ``_writes_of``."""
    memory = memory_of(value)
    aliases = [*aliases_of(memory)]
    earlier = [read for read in users_of_memory(memory) if read < call]
    views = {alias for alias in aliases if alias < call} - {memory}
    is_seen = any(user > call for view in views for user in view.users)
    is_unwritten = is_empty(memory) and views.issuperset(earlier)
    is_own = is_unwritten or _is_cheap_to_copy(memory)
    is_whole = value is memory or _is_all_of(value, memory)
    in_place = is_seen or not (is_own and is_whole)
    if in_place and not _can_write_behind():
        name = _name_of(value, call)
        raise NotTunable(
            f"it writes to '{name}' in place, and nothing joins its region"
        )
    to = memory if is_whole else value
    return _Write(place, value, to, is_unwritten and not in_place, in_place)


def _name_of(value: torch.fx.Node, call: torch.fx.Node) -> str:
    """The argument of a call that a value is, or is in."""
    given = arguments_of(call).items()
    return next(name for name, held in given if value in pytree.tree_leaves(held))


def _can_write_behind() -> bool:
    """Whether regions are formed that take writes in."""
    return config.enable_custom_op_fusion and "epilogue" in fusion_types()


def _is_cheap_to_copy(node: torch.fx.Node) -> bool:
    """Whether generated code computes it, which can as well compute a copy."""
    is_copy = node.target is _aten.clone.default
    is_constant = is_made_of_sizes(node) and not is_empty(node)
    return has_generated_code(node) and (is_copy or is_constant or is_pointwise(node))


def _is_all_of(view: torch.fx.Node, memory: torch.fx.Node) -> bool:
    """
    Whether a view has all elements, in the order in which they are in memory, and either can be
    made of the other.
    """
    seen, whole = view.meta["val"], memory.meta["val"]
    return (
        view.target in (_aten.as_strided.default, _aten.view.default, _reshape)
        and view.args[0] is memory
        and isinstance(whole, torch.Tensor)
        and statically_known_true(seen.storage_offset() == whole.storage_offset())
        and statically_known_true(seen.numel() == whole.numel())
        and is_row_major(seen)
        and is_row_major(whole)
        and sum(type(size) is not int for size in whole.shape) <= 1
    )


def _replace(call: torch.fx.Node, writes: Sequence[_Write]) -> list[torch.fx.Node]:
    """
    Puts the functional variant in the place of a call.

    Returns:
        The nodes behind it that write in place what it returns.
    """
    graph, op = call.graph, call.target
    assert isinstance(op, torch._ops.OpOverload)
    variant = variant_of(op)
    assert variant is not None
    lowerings.setdefault(variant, LoweringByDecomposition(variant))
    register_lowering_of_writes()
    with graph.inserting_before(call):
        given = {write.value: _given_for(write) for write in writes}
        args = torch.fx.map_arg(call.args, lambda node: given.get(node, node))
        kwargs = torch.fx.map_arg(call.kwargs, lambda node: given.get(node, node))
        unwritten = [write.place for write in writes if write.is_unwritten]
        functional = graph.call_function(
            variant, args, {**kwargs, UNWRITTEN: unwritten}
        )
        functional.meta = {**call.meta, "val": value_of(functional)}
        results = count_results(op)
        parts = _parts_of(functional)
        behind = []
        for write, part in zip(writes, parts[results:]):
            value = _as_known(write, part)
            if write.in_place:
                behind.append(_write_behind(call, write.to, value))
            else:
                write.to.replace_all_uses_with(value, lambda node: node > call)
    call.replace_all_uses_with(parts[0] if results == 1 else functional)
    graph.erase_node(call)
    for write in writes:
        _erase_unread(write.value)
    return behind


def _write_behind(
    call: torch.fx.Node, to: torch.fx.Node, value: torch.fx.Node
) -> torch.fx.Node:
    """A node in front of a call that copies a value to a tensor."""
    memory = memory_of(to)
    if memory.op == "call_function":
        # Else it may be computed anew for each view of it, and these are not one memory.
        memory.meta["inductor_realize_to_strides"] = True
    write = call.graph.call_function(_aten.copy_.default, (to, value))
    write.meta = {"val": to.meta["val"]}
    return write


def _read_behind(write: torch.fx.Node) -> None:
    """
    Has those behind a write, up to the next one to the same elements, who read these read its
    result.
    """
    to: Any = write.args[0]
    same = views_alike(to)
    readers = {user for view in same for user in view.users if user > write}
    last, node = max(readers, default=write), write
    while node is not last:
        node = node.next
        if memory_written(node) is None or any(
            other in same
            or share_elements(other, to)  # one without elements shares none
            for other in tensors_written(node)
        ):
            break
        if node in readers:
            for view in same - {node}:
                node.replace_input_with(view, write)
    for view in same - {to}:
        _erase_unread(view)


def _given_for(write: _Write) -> torch.fx.Node:
    """What the variant is given for what the call writes to."""
    if write.to is write.value:
        return write.value
    graph, seen, sizes = write.to.graph, write.value.meta["val"], write.value.args[1]
    if write.is_unwritten:
        kwargs = {"dtype": seen.dtype, "device": seen.device}
        made = graph.call_function(_aten.empty.memory_format, (sizes,), kwargs)
    else:
        made = graph.call_function(_reshape, (write.to, sizes))
    made.meta = {**write.value.meta, "val": value_of(made)}
    return made


def _parts_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Nodes for each of the values that a node returns."""
    values = node.meta["val"]
    if isinstance(values, torch.Tensor):
        return [node]
    parts = []
    for i, value in enumerate(values):
        part = node.graph.call_function(operator.getitem, (node, i))
        part.meta["val"] = value
        parts.append(part)
    return parts


def _as_known(write: _Write, value: torch.fx.Node) -> torch.fx.Node:
    """What is written, in the shape that others know the memory in."""
    if write.to is write.value:
        return value
    sizes = [s if type(s) is int else -1 for s in write.to.meta["val"].shape]
    return new_call(value.graph, _reshape, value, sizes)


def _erase_unread(node: torch.fx.Node) -> None:
    """Erases a node that nobody reads, and what it is a view of."""
    while not node.users and node.op == "call_function":
        is_part = node.target is operator.getitem
        read = node.all_input_nodes[0] if is_part or shares_memory(node) else None
        node.graph.erase_node(node)
        if read is None:
            return
        node = read
