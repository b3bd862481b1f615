"""What a node of a model's graph does, and so whether it may be moved or computed again."""

from __future__ import annotations

import operator
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.proxy_tensor import py_sym_types
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._ordered_set import OrderedSet

import torch

from ...inductor_prims import lookup_seed, prepare_softmax_online, random
from ...utils import is_view as aliases
from ...utils import should_fallback_by_default
from ..registering.signatures import arguments_by_name
from .functional import has_effects
from .write_ops import AS_VALUES, stands_for_write


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_aten = torch.ops.aten
# Of elements in another order or shape, whatever their strides.
_VIEWS = (
    _aten.view,
    _aten._unsafe_view,
    _aten.reshape,
    _aten.permute,
    _aten.transpose,
    _aten.t,
    _aten.unsqueeze,
    _aten.squeeze,
    _aten.expand,
    _aten.select,
    _aten.slice,
    _aten.split,
    _aten.unbind,
    _aten.split_with_sizes,
)
_PERMUTES = (_aten.permute, _aten.transpose, _aten.t)
# Copies may cast and broadcast, too.
_MOVES = (_aten.cat, _aten.constant_pad_nd, _aten.copy, torch.ops.prims.rev)
INDEX_DTYPES = (torch.int64, torch.int32)
# The arguments that are a table and tell where it is read or written.
_INDEXED: dict[Any, tuple[str, str]] = {
    _aten.embedding.default: ("weight", "indices"),
    _aten.gather.default: ("self", "index"),
    _aten.index.Tensor: ("self", "indices"),
    AS_VALUES[_aten.index_put_.default]: ("to", "indices"),
}
# As large as their first argument says.
_EMPTY = (_aten.empty, _aten.empty_strided, _aten.empty_permuted)
_FACTORIES = (_aten.full, _aten.scalar_tensor, torch.ops.prims.iota, *_EMPTY)


def is_number(node: torch.fx.Node) -> bool:
    """Whether a node's value is a symbolic number, such as a size, and no tensor."""
    return isinstance(node.meta.get("val"), py_sym_types)


def is_given(node: torch.fx.Node) -> bool:
    """Whether a tensor is an input of the graph, or a buffer of a model compiled ahead."""
    if node.op != "get_attr":
        return node.op == "placeholder"
    return node.graph.find_nodes(op="get_attr", target=node.target) == [node]


def is_integral(dtype: torch.dtype) -> bool:
    """Of integers or bools."""
    return not (dtype.is_floating_point or dtype.is_complex)


def is_index(value: torch.Tensor) -> bool:
    """Whether it may be: zeros are valid then, and not what is computed from zeros."""
    return value.dtype in INDEX_DTYPES


def is_pointwise(node: torch.fx.Node) -> bool:
    """Whether each element of the one result depends on one of each operand only."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or _is_registered(node):
        return False
    return (
        torch.Tag.pointwise in target.tags
        and torch.Tag.nondeterministic_seeded not in target.tags
        and not target._schema.is_mutable
        and isinstance(node.meta.get("val"), torch.Tensor)
    )


def _is_registered(node: torch.fx.Node) -> bool:
    """Whether a node calls an op that is tuned by itself, if at all."""
    from ...lowering import user_lowerings

    return node.target in user_lowerings


def moves_elements(node: torch.fx.Node) -> bool:
    """Whether each element of the one result is one of an operand, at another place."""
    moves = _packet(node) in _MOVES and not _is_registered(node)
    return moves and has_generated_code(node)


def is_elementwise(node: torch.fx.Node) -> bool:
    """Whether each element of the one result is made of one of each operand, if any."""
    return is_pointwise(node) or moves_elements(node) or makes_random_numbers(node)


def is_gather(node: torch.fx.Node) -> bool:
    """
    Whether each element of the one result is one of a table, at a place that integers tell,
    and generated code reads it there.
    """
    places = [] if stands_for_write(node) or _is_registered(node) else indexed(node)
    if not places or arguments_of(node).get("sparse") or not has_generated_code(node):
        return False
    device = node.meta["val"].device
    return all(
        is_index(index.meta["val"])
        and index.meta["val"].device == device
        and statically_known_true(size > 0)
        for index, size in places
    )


def indexed(node: torch.fx.Node) -> list[tuple[torch.fx.Node, Any]]:
    """
    What tells a node where to read a table, or where what it stands for writes to one; each
    with the length of the dimension that it is for.
    """
    if node.target not in _INDEXED:
        return []
    given = arguments_of(node)
    table, indices = (given[name] for name in _INDEXED[node.target])
    sizes = table.meta["val"].shape
    if "dim" in given:
        sizes = sizes[given["dim"] :]
    each = indices if isinstance(indices, (list, tuple)) else [indices]
    return [(index, size) for index, size in zip(each, sizes) if index is not None]


def arguments_of(node: torch.fx.Node) -> dict[str, Any]:
    """What an op is called with, by parameter; nothing unless the node calls one."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return {}
    return arguments_by_name(target, node.args, node.kwargs)


def makes_random_numbers(node: torch.fx.Node) -> bool:
    """Whether each element of the one result is made of a seed and its place."""
    return node.target is random


def is_seed(node: torch.fx.Node) -> bool:
    """Whether a node's value is the one number that random ones are made of."""
    return node.target is lookup_seed


def is_reduction(target: Any) -> bool:
    """Whether a node's target reduces dimensions, be it tagged as what does so or not."""
    return isinstance(target, torch._ops.OpOverload) and (
        torch.Tag.reduction in target.tags or target is prepare_softmax_online
    )


def is_row_reduction(node: torch.fx.Node) -> bool:
    """Whether a node reduces dimensions that have one size always, by generated code."""
    if not is_reduction(node.target) or _is_registered(node):
        return False
    if not has_generated_code(node):
        return False
    read = node.args[0].meta["val"]  # type: ignore[union-attr]  # a node
    return all(isinstance(read.shape[dim], int) for dim in reduced_dims(node, read))


def reduced_dims(node: torch.fx.Node, read: torch.Tensor) -> Sequence[int]:
    """Those that a reduction is over; all, where none are given."""
    dims = arguments_of(node).get("dim")
    if dims is None or dims == []:
        return range(read.dim())
    return dims if isinstance(dims, (list, tuple)) else [dims]  # type: ignore[return-value]  # ints


def is_view(node: torch.fx.Node) -> bool:
    """Whether a node only gives elements another order or shape, and not another dtype."""
    if node.target is operator.getitem:
        return is_view(node.args[0])  # type: ignore[arg-type]  # a node
    return _packet(node) in _VIEWS and node.target is not _aten.view.dtype


def is_any_view(node: torch.fx.Node) -> bool:
    """
    Whether a node only gives another view of memory, be it one that depends on how that is laid
    out, or has another dtype.
    """
    return is_view(node) or node.target in (_aten.as_strided.default, _aten.view.dtype)


def without_views(node: torch.fx.Node) -> torch.fx.Node:
    """What a node is a view of, see ``is_view``, maybe itself."""
    while is_view(node):
        node = node.all_input_nodes[0]
    return node


def permutes(node: torch.fx.Node) -> bool:
    """Whether a node only gives dimensions another order."""
    return _packet(node) in _PERMUTES


def _packet(node: torch.fx.Node) -> Any:
    return getattr(node.target, "overloadpacket", None)


def is_made_of_sizes(node: torch.fx.Node) -> bool:
    """Whether a tensor depends on sizes and constants only, such as a causal mask."""
    if is_number(node):
        return False
    return all(_packet(source) in _FACTORIES for source in _sources(node))


def is_empty(node: torch.fx.Node) -> bool:
    """Whether a node is memory that nobody has written to yet."""
    return _packet(node) in _EMPTY


def is_computed_from_stored(node: torch.fx.Node) -> bool:
    """Whether what a node is computed from, by generated code, is in memory in any case."""
    return all(
        all(map(is_computed_from_stored, source.all_input_nodes))
        if is_gather(source)
        else is_seed(source) or not has_generated_code(source)
        for source in _sources(node)
    )


def _sources(node: torch.fx.Node) -> OrderedSet[torch.fx.Node]:
    """
    The tensors that a node is computed from by pointwise work, views and random numbers;
    maybe itself.
    """
    found: OrderedSet[torch.fx.Node] = OrderedSet()
    seen: set[torch.fx.Node] = set()
    left = [node]
    while left:
        node = left.pop()
        if node in seen or is_number(node):
            continue
        seen.add(node)
        if is_part_or_alias(node) or is_pointwise(node) or makes_random_numbers(node):
            left += node.all_input_nodes
        else:
            found.add(node)
    return found


def is_part_or_alias(node: torch.fx.Node) -> bool:
    """Whether a node gives a part of what a call returns, or another view of memory."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return aliases(target)
    return target is operator.getitem


def has_generated_code(node: torch.fx.Node) -> bool:
    """Whether Inductor writes a node's kernel, so that it may be one with its neighbours'."""
    from ...lowering import fallbacks, lowerings

    lowering = lowerings.get(node.target)  # type: ignore[call-overload]  # None for a name
    return (
        lowering is not None
        and lowering.__module__ == "torch._inductor.lowering"
        and node.target not in fallbacks
        and not _is_called_eagerly(node)
    )


def _is_called_eagerly(node: torch.fx.Node) -> bool:
    """Whether Inductor has no code for a node's dtypes or device, or is to generate none."""
    from ...lowering import fallback_node_due_to_unsupported_type

    is_op = isinstance(node.target, torch._ops.OpOverload)
    return fallback_node_due_to_unsupported_type(node) or (
        is_op and should_fallback_by_default(node)
    )


def has_effects_as_lowered(node: torch.fx.Node) -> bool:
    """Whether a node is more than its value, if only where it is lowered."""
    return stands_for_write(node) or has_effects(node)


def readers(node: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes that read a node's value, themselves or through views of it."""
    for user in node.users:
        if is_view(user):
            yield from readers(user)
        else:
            yield user


def makes_sizes(node: torch.fx.Node) -> bool:
    """Whether data say how large what it returns is."""
    return bool(node.meta.get("unbacked_bindings"))


def is_on_user_stream(node: torch.fx.Node) -> bool:
    """Whether the user runs it in a block of ``torch.cuda.stream``."""
    return (node.meta.get("custom") or {}).get("stream") is not None


def is_conjugated(node: torch.fx.Node) -> bool:
    """Whether a value has a conjugate or negative bit, so that reading it conjugates it."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg())


def parts_of(call: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that take one of several results of a call."""
    return [user for user in call.users if user.target is operator.getitem]
