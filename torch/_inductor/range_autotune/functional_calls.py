"""
Calls of registered ops that write to tensors, as calls that return what they write.

An FX pass behind the post-grad passes, which have decided whether such an op writes in place
or to a copy. It is tuned where that is memory that nobody has written yet, such as of
``torch.empty_like``, or what generated code has computed, which can as well compute a copy.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

import torch

from ..lowering import lowerings
from ..virtualized import V
from .decomposed_ops import LoweringByDecomposition
from .errors import NotTunable
from .functional_variants import UNWRITTEN, variant_of, written_arguments
from .node_kinds import (
    arguments_of,
    has_generated_code,
    is_empty,
    is_pointwise,
    makes_sizes,
    memory_of,
    shares_memory,
)
from .stale_code import registration_of


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

log = logging.getLogger("torch._inductor.kernel.custom_op")

_aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class _Write:
    """
    What a call writes to.

    Args:
        index: of the op's argument.
        value: the argument.
        memory: the node whose memory that is.
        is_unwritten: whether nobody has written to it before.
    """

    index: int
    value: torch.fx.Node
    memory: torch.fx.Node
    is_unwritten: bool


def return_what_calls_write(gm: torch.fx.GraphModule) -> None:
    """
    Puts functional variants in the places of registered ops that write, where these can be.

    Args:
        gm: a post-grad graph with fake values in its metadata; changed in place.
    """
    changed = False
    for node in [node for node in gm.graph.nodes if _is_call_that_writes(node)]:
        try:
            _replace(node, _writes_of(node))
        except NotTunable as e:
            log.info("%s is not tuned here: %s", node.target, e)
        else:
            changed = True
    if changed:
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
        NotTunable: if something of that is not the graph's own, or others would see that it is
            not written to.
    """
    if makes_sizes(call):
        raise NotTunable("sizes of its results depend on data")
    leaves = pytree.tree_leaves((call.args, call.kwargs))
    reads = [leaf for leaf in leaves if isinstance(leaf, torch.fx.Node)]
    if any("val" not in read.meta for read in reads):
        raise NotTunable("nothing is known of a constant that it is given")
    memories = [*map(memory_of, reads)]
    given = arguments_of(call)
    writes = []
    for index, name in written_arguments(call.target).items():  # type: ignore[arg-type]  # an OpOverload
        if memories.count(memory_of(given[name])) > 1:
            raise NotTunable(f"other arguments share memory with '{name}'")
        writes.append(_write_to(call, name, index, given[name]))
    return writes


def _write_to(
    call: torch.fx.Node, name: str, index: int, value: torch.fx.Node
) -> _Write:
    """See ``_writes_of``."""
    memory = memory_of(value)
    aliases = [*_aliases_of(memory)]
    earlier = [read for alias in aliases for read in alias.users if read < call]
    views = {alias for alias in aliases if alias < call} - {memory}
    if any(user > call for view in views for user in view.users):
        raise NotTunable(f"'{name}' is read behind it through an earlier view")
    is_unwritten = is_empty(memory) and views.issuperset(earlier)
    if not (is_unwritten or _is_cheap_to_copy(memory)):
        raise NotTunable(f"it writes to '{name}' in place, which is {memory.target}")
    if value is not memory and not (is_unwritten and _is_all_of(value, memory)):
        raise NotTunable(f"'{name}' is a part of a tensor")
    return _Write(index, value, memory, is_unwritten)


def _aliases_of(memory: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A node, and all that are views of it."""
    yield memory
    for user in memory.users:
        if shares_memory(user) and user.all_input_nodes[0] is memory:
            yield from _aliases_of(user)


def _is_cheap_to_copy(node: torch.fx.Node) -> bool:
    """Whether generated code computes it, which can as well compute a copy."""
    is_copy = node.target is _aten.clone.default
    return has_generated_code(node) and (is_copy or is_pointwise(node))


def _is_all_of(view: torch.fx.Node, memory: torch.fx.Node) -> bool:
    """Whether a view has all elements, in the order in which they are in memory."""
    seen, whole = view.meta["val"], memory.meta["val"]
    return (
        view.target is _aten.as_strided.default
        and view.args[0] is memory
        and statically_known_true(seen.storage_offset() == 0)
        and statically_known_true(seen.numel() == whole.numel())
        and _is_row_major(seen)
        and _is_row_major(whole)
    )


def _is_row_major(tensor: torch.Tensor) -> bool:
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if not statically_known_true(stride == expected):
            return False
        expected = expected * size
    return True


def _replace(call: torch.fx.Node, writes: Sequence[_Write]) -> None:
    """Puts the functional variant in the place of a call."""
    graph, op = call.graph, call.target
    assert isinstance(op, torch._ops.OpOverload)
    variant = variant_of(op)
    assert variant is not None
    lowerings.setdefault(variant, LoweringByDecomposition(variant))
    with graph.inserting_before(call):
        given = {write.value: _given_for(write) for write in writes}
        args = torch.fx.map_arg(call.args, lambda node: given.get(node, node))
        kwargs = torch.fx.map_arg(call.kwargs, lambda node: given.get(node, node))
        unwritten = [write.index for write in writes if write.is_unwritten]
        functional = graph.call_function(
            variant, args, {**kwargs, UNWRITTEN: unwritten}
        )
        functional.meta = {**call.meta, "val": _value_of(functional)}
        results = len(op._schema.returns)
        parts = _parts_of(functional)
        written = [_whole(w, part) for w, part in zip(writes, parts[results:])]
    call.replace_all_uses_with(parts[0] if results == 1 else functional)
    for write, value in zip(writes, written):
        for user in [user for user in write.memory.users if user > call]:
            user.replace_input_with(write.memory, value)
    graph.erase_node(call)
    for write in writes:
        _erase_unread(write.value)


def _given_for(write: _Write) -> torch.fx.Node:
    """What the variant is given for what the call writes to."""
    if write.value is write.memory:
        return write.memory
    _, size, stride, _ = write.value.args
    seen = write.value.meta["val"]
    kwargs = {"dtype": seen.dtype, "device": seen.device}
    made = write.value.graph.call_function(
        _aten.empty_strided.default, (size, stride), kwargs
    )
    made.meta = {**write.value.meta, "val": _value_of(made)}
    return made


def _value_of(call: torch.fx.Node) -> Any:
    """What a call returns, fake."""
    op: Any = call.target
    args, kwargs = torch.fx.map_arg(
        (call.args, call.kwargs), lambda node: node.meta["val"]
    )
    with V.fake_mode:
        return op(*args, **kwargs)


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


def _whole(write: _Write, value: torch.fx.Node) -> torch.fx.Node:
    """What is written, in the shape of the memory."""
    if write.value is write.memory:
        return value
    sizes = write.memory.args[0]
    whole = value.graph.call_function(_aten.reshape.default, (value, sizes))
    whole.meta["val"] = _value_of(whole)
    return whole


def _erase_unread(node: torch.fx.Node) -> None:
    """Erases a node that nobody reads, and what it is a view of."""
    while not node.users and node.op == "call_function":
        read = node.all_input_nodes[0] if shares_memory(node) else None
        node.graph.erase_node(node)
        if read is None:
            return
        node = read
