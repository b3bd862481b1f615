"""
Concatenations that are written to what they are computed from, such as the halves of each head
in a rotary embedding: as parts, each of which is put where it belongs.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true

import torch

from ..graphs.node_kinds import is_pointwise
from ..graphs.node_memory import memory_of, reads_of
from ..graphs.symbolic_graphs import new_call


if TYPE_CHECKING:
    from collections.abc import Iterator

_aten = torch.ops.aten
_cat = _aten.cat.default
# What gives elements another shape, and leaves them in their order.
_RESHAPES = (
    _aten.view.default,
    _aten.reshape.default,
    _aten._unsafe_view.default,
    _aten.unsqueeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.squeeze.default,
)


def put_parts(to: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node | None:
    """
    Puts parts of a value into a tensor, one behind the other.

    New nodes are inserted where the graph's next ones are.

    Args:
        to: the tensor, to which the value is to be copied.
        value: anything.

    Returns:
        The tensor with all of them, in its own shape. None if the value is not computed, element
        by element, from a concatenation, and that from the tensor, or has no parts of known sizes.
    """
    joined, behind = _without_last(value, to.meta["val"].dtype)
    joint = _concatenation_in(joined)
    if joint is None or not any(reads_of(memory_of(to), [joined])):
        return None
    whole = _in_shape_of(joined, to)
    dim, start = _dim(joint), 0
    for joined_part in _parts(joined, dim):
        part = joined_part
        for node in behind:
            part = _call(node.target, part, *node.args[1:], **node.kwargs)
        whole = _with_part(whole, part, dim, start)
        start += _size(part, dim)
    return _in_shape_of(to, whole)


def _with_part(
    whole: torch.fx.Node, part: torch.fx.Node, dim: int, start: int
) -> torch.fx.Node:
    """A tensor with a part of it replaced; as a loop without that dimension if it has size 1."""
    size = _size(part, dim)
    if size == 1:
        one = _call(_aten.select.int, part, dim, 0)
        return _call(_aten.select_scatter.default, whole, one, dim, start)
    return _call(_aten.slice_scatter.default, whole, part, dim, start, start + size)


def _call(op: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A new call with what it returns."""
    (graph,) = {a.graph for a in args if isinstance(a, torch.fx.Node)}
    return new_call(graph, op, *args, **kwargs)


def _without_last(
    value: torch.fx.Node, dtype: torch.dtype
) -> tuple[torch.fx.Node, list[torch.fx.Node]]:
    """
    What a value is computed from by casts and the like, and in other shapes; and these but for
    the shapes, in their order. Copies to the dtype in which it is written come to nothing.
    """
    behind: list[torch.fx.Node] = []
    while True:
        read = value.all_input_nodes
        is_copy = value.target is _aten.copy.default and not behind
        if is_copy and value.meta["val"].dtype == dtype:
            value = value.args[1]  # type: ignore[assignment]  # a node
            continue
        if is_pointwise(value) and read == [value.args[0]]:
            behind.insert(0, value)
        elif value.target not in _RESHAPES:
            return value, behind
        value = read[0]


def _concatenation_in(value: torch.fx.Node) -> torch.fx.Node | None:
    """The concatenation, of all dimensions of a value, that this is computed from, if any."""
    left = [value]
    for node in left:  # grows
        if node.target is _cat:
            is_all = node.meta["val"].dim() == value.meta["val"].dim()
            return node if is_all and None not in _sizes(node) else None
        if is_pointwise(node):
            left += [read for read in node.all_input_nodes if read not in left]
    return None


def _dim(joint: torch.fx.Node) -> int:
    """The dimension of a concatenation, counted from the last one."""
    dim: Any = joint.args[1] if len(joint.args) > 1 else joint.kwargs.get("dim", 0)
    return dim if dim < 0 else dim - joint.meta["val"].dim()


def _size(node: torch.fx.Node, dim: int) -> Any:
    return node.meta["val"].shape[dim]


def _sizes(joint: torch.fx.Node) -> list[int | None]:
    """Those of the parts of a concatenation; None for one that is not known."""
    parts: Any = joint.args[0]
    sizes = [_size(part, _dim(joint)) for part in parts]
    return [size if type(size) is int else None for size in sizes]


def _parts(value: torch.fx.Node, dim: int) -> Iterator[torch.fx.Node]:
    """The parts that make up a value in a dimension, each of which is no such again."""
    joint = _concatenation_in(value)
    if joint is None or _dim(joint) != dim:
        yield value
        return
    for i in range(len(_sizes(joint))):
        yield from _parts(_part(value, joint, i, {}), dim)


def _part(
    value: torch.fx.Node,
    joint: torch.fx.Node,
    i: int,
    known: dict[torch.fx.Node, torch.fx.Node],
) -> torch.fx.Node:
    """
    What a value has where a concatenation has one of its parts.

    Args:
        known: by value; is added to, so that what is read twice is computed once.
    """
    if value not in known:
        known[value] = _new_part(value, joint, i, known)
    return known[value]


def _new_part(
    value: torch.fx.Node,
    joint: torch.fx.Node,
    i: int,
    known: dict[torch.fx.Node, torch.fx.Node],
) -> torch.fx.Node:
    """See ``_part``."""
    dim, sizes = _dim(joint), _sizes(joint)
    if value.target is _cat and (_dim(value), _sizes(value)) == (dim, sizes):
        return value.args[0][i]  # type: ignore[index,return-value]  # nodes
    if _concatenation_in(value) is not None and is_pointwise(value):
        args, kwargs = torch.fx.map_arg(
            (value.args, value.kwargs), lambda node: _part(node, joint, i, known)
        )
        return _call(value.target, *args, **kwargs)
    if value.meta["val"].dim() < -dim or _size(value, dim) == 1:
        return value  # the same for all
    start = sum(sizes[:i])  # type: ignore[arg-type]  # known
    return _call(_aten.slice.Tensor, value, dim, start, start + sizes[i])


def _in_shape_of(shaped: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
    """A value as a view in another one's shape, of which at most one size is not known."""
    shape, own = shaped.meta["val"].shape, value.meta["val"].shape
    if len(shape) == len(own) and all(map(_is_known_equal, shape, own)):
        return value
    sizes = [size if type(size) is int else -1 for size in shape]
    return _call(_aten.view.default, value, sizes)


def _is_known_equal(size: Any, other: Any) -> bool:
    return statically_known_true(size == other)
