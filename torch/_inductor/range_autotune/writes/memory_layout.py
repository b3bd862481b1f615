"""How tensors lie in memory, symbolic sizes and strides included."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true

import torch

from ...utils import convert_shape_to_inductor
from ..graphs.node_kinds import is_any_view
from ..graphs.node_memory import memory_of, readers_of_memory
from .meeting_places import can_meet


if TYPE_CHECKING:
    from collections.abc import Iterator


def share_elements(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Whether tensors may have elements in the same place."""
    if memory_of(a) is not memory_of(b):
        return False
    one, other = a.meta["val"], b.meta["val"]
    if one.itemsize != other.itemsize:  # which strides and offsets are counted in
        return True
    if _lies_before(one, other) or _lies_before(other, one):
        return False
    start, other_start = convert_shape_to_inductor(
        [one.storage_offset(), other.storage_offset()]
    )
    return can_meet(other_start - start, _loops(one), _loops(other))


def readers_of_elements(view: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """The nodes that are given elements of a view, be it in another one."""
    for node in readers_of_memory(view):
        if any(share_elements(view, read) for read in node.all_input_nodes):
            yield node


def _loops(tensor: torch.Tensor) -> list[tuple[Any, Any]]:
    """The strides and sizes of a tensor's dimensions."""
    return [*zip(*map(convert_shape_to_inductor, (tensor.stride(), tensor.shape)))]


def _lies_before(first: torch.Tensor, second: torch.Tensor) -> bool:
    """
    Whether all elements of a tensor lie before those of another one in the same memory, or in
    each row of that, as the heads of queries before those of keys.
    """
    start, other_start = first.storage_offset(), second.storage_offset()
    if statically_known_true(start + _length(first, 0) <= other_start):
        return True
    if not (first.dim() and second.dim()):
        return False
    row = first.stride(0)
    conditions = (
        row == second.stride(0),
        start + _length(first, 1) <= other_start,
        other_start + _length(second, 1) <= start + row,
    )
    return all(map(statically_known_true, conditions))


def _length(tensor: torch.Tensor, first_dim: int) -> Any:
    """How much memory dimensions reach over, from the first that is asked for on."""
    dims = [*zip(tensor.shape, tensor.stride())][first_dim:]
    return 1 + sum((size - 1) * stride for size, stride in dims)


def is_row_major(tensor: torch.Tensor) -> bool:
    """Whether elements lie in memory as they are counted, one right behind the other."""
    expected: Any = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride())):
        if not statically_known_true(stride == expected):
            return False
        expected = expected * size
    return True


def is_in_order(tensor: torch.Tensor) -> bool:
    """Whether elements lie in memory as they are counted, each at a place of its own."""
    sizes, strides = tensor.shape, tensor.stride()
    steps = [size * stride for size, stride in zip(sizes[1:], strides[1:])]
    return all(
        statically_known_true(stride >= step)
        for stride, step in zip(strides, [*steps, 1])
    )


def has_elements_twice(tensor: torch.Tensor) -> bool:
    """Whether an element may be in several places of a tensor, as one that is expanded has it."""
    return any(
        statically_known_true(stride == 0) and not statically_known_true(size == 1)
        for size, stride in zip(tensor.shape, tensor.stride())
    )


def are_of_one_shape(a: torch.fx.Node, b: torch.fx.Node) -> bool:
    """Whether tensors are of one dtype and have the same sizes."""
    one, other = a.meta["val"], b.meta["val"]
    return (
        one.dtype == other.dtype
        and len(one.shape) == len(other.shape)
        and all(statically_known_true(a == b) for a, b in zip(one.shape, other.shape))
    )


def lie_alike(view: Any, whole: Any, other: Any, other_whole: Any) -> bool:
    """
    Whether values lie in two tensors, or in views of one, in the same way and with the same
    dtype, and those are laid out alike.
    """

    def layout(node: torch.fx.Node, of: torch.fx.Node) -> list[Any]:
        seen, base = node.meta["val"], of.meta["val"]
        start = seen.storage_offset() - base.storage_offset()
        dtypes = [seen.dtype, base.dtype]
        return [
            *dtypes,
            *seen.shape,
            *seen.stride(),
            start,
            *base.shape,
            *base.stride(),
        ]

    layouts = layout(view, whole), layout(other, other_whole)
    return len(layouts[0]) == len(layouts[1]) and all(
        statically_known_true(a == b) for a, b in zip(*layouts)
    )


def views_alike(view: torch.fx.Node) -> set[torch.fx.Node]:
    """A view of some memory, and all others by which the same elements are known, as they are."""
    memory = memory_of(view)
    return {view} | {
        other
        for other in _views_of(memory)
        if are_of_one_shape(other, view) and lie_alike(other, memory, view, memory)
    }


def _views_of(value: torch.fx.Node) -> Iterator[torch.fx.Node]:
    """A tensor and the views of it."""
    if isinstance(value.meta.get("val"), torch.Tensor):
        yield value
    for user in filter(is_any_view, value.users):
        if user.all_input_nodes[0] is value:
            yield from _views_of(user)
