"""What an op is called with in a region, at the strides that it has in eager mode."""

from __future__ import annotations

import math
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch

from ...utils import convert_shape_to_inductor
from ..call_site import Inner
from .contract import known_equal


if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..call_site import CallSite


def with_eager_strides(call: CallSite, values: dict[str, Any]) -> dict[str, Any]:
    """
    An op's arguments with the strides that they have in eager mode, which its kernel may
    count on, where neighbours compute them from tensors that Inductor has laid out
    otherwise or another op's candidate returns otherwise.
    """

    def strided(place: Any, value: Any) -> Any:
        if not (isinstance(place, Inner) and isinstance(value, torch.Tensor)):
            return value
        strides = place.node.meta["val"].stride()
        return value if _lies_as(value, strides) else _copy_at(value, strides)

    return pytree.tree_map(strided, dict(call.arguments), values)


def _copy_at(value: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """
    A copy whose elements lie at these strides.

    Of sizes alone if it can be: strides may be products that no tensor of the graph has,
    which is then not known to the tracer.
    """
    order = _order_of_dense(value.shape, strides)
    if order is not None:
        places = [order.index(dim) for dim in range(len(order))]
        dense = value.permute(order).clone(memory_format=torch.contiguous_format)
        return dense.permute(places)
    made = torch.empty_strided(
        value.shape, strides, dtype=value.dtype, device=value.device
    )
    return made.copy_(value)


def _order_of_dense(sizes: Sequence[Any], strides: Sequence[Any]) -> list[int] | None:
    """The dimensions, outermost first, if elements lie next to each other; else None."""
    left = list(range(len(sizes)))
    order: list[int] = []
    while left:
        step = math.prod(convert_shape_to_inductor([sizes[dim] for dim in order]))
        fits = [
            dim
            for dim in left
            if known_equal([sizes[dim]], [1]) or known_equal([strides[dim]], [step])
        ]
        if not fits:
            return None
        order.insert(0, fits[0])
        left.remove(fits[0])
    return order


def _lies_as(value: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Whether elements are known to lie at these strides; those of one element have none."""
    return all(
        known_equal([size], [1]) or known_equal([stride], [wanted])
        for size, stride, wanted in zip(value.shape, value.stride(), strides)
    )
