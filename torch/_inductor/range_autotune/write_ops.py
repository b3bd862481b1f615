"""
Ops that stand for writes to what a region is given, such as a cache or a buffer that is
updated in place.

To tracers and graph passes they are ops as any other, without side effects, whose results
stand for what was written to; where they are lowered or called, they write. ``unread`` is
what nobody reads behind the region: where a value is copied there, that is left out. ``by_op``
is what an op that is tuned has written there, and not to memory of its own, in eager mode.
"""

from __future__ import annotations

import functools
from typing import Any, TYPE_CHECKING

import sympy

import torch

from ..utils import sympy_product


if TYPE_CHECKING:
    from collections.abc import Sequence

WRITE_NAMESPACE = "inductor_write"
_aten = torch.ops.aten
_library = torch.library.Library(WRITE_NAMESPACE, "DEF")
_library.define(
    "copy(Tensor to, Tensor value, *, bool unread=False, bool by_op=False) -> Tensor"
)
_library.define("index_put(Tensor to, Tensor?[] indices, Tensor value) -> Tensor")
_library.define("own(Tensor value) -> Tensor")
# What a candidate is given to write to in the place of an argument: a copy that lies as that.
OWN = torch.ops.inductor_write.own.default
# By the op that writes. They take the first of its arguments.
AS_VALUES = {
    _aten.copy_.default: torch.ops.inductor_write.copy.default,
    _aten.index_put_.default: torch.ops.inductor_write.index_put.default,
}


@torch.library.register_fake(f"{WRITE_NAMESPACE}::copy", lib=_library)
@torch.library.register_fake(f"{WRITE_NAMESPACE}::index_put", lib=_library)
def _like(to: torch.Tensor, *_: Any, **kwargs: Any) -> torch.Tensor:
    return _lying_as(to)


@torch.library.register_fake(f"{WRITE_NAMESPACE}::own", lib=_library)
def _lying_as(value: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device=value.device
    )


@torch.library.impl(
    f"{WRITE_NAMESPACE}::own", "CompositeExplicitAutograd", lib=_library
)
def _own(value: torch.Tensor) -> torch.Tensor:
    return _lying_as(value).copy_(value)


@torch.library.impl(
    f"{WRITE_NAMESPACE}::copy", "CompositeExplicitAutograd", lib=_library
)
def _copy(to: torch.Tensor, value: torch.Tensor, **kwargs: Any) -> torch.Tensor:
    return to.copy_(value).clone()


@torch.library.impl(
    f"{WRITE_NAMESPACE}::index_put", "CompositeExplicitAutograd", lib=_library
)
def _index_put(
    to: torch.Tensor, indices: Sequence[torch.Tensor | None], value: torch.Tensor
) -> torch.Tensor:
    return torch.ops.aten.index_put_(to, indices, value).clone()


def register_lowering_of_writes() -> None:
    """Has the ops that stand for writes lowered to these."""
    from ..lowering import lowerings
    from .write_hazards import compute_first

    copy_, index_put_ = AS_VALUES
    lower_put = lowerings[index_put_]

    def lower_copy(
        to: Any, value: Any, unread: bool = False, by_op: bool = False
    ) -> Any:
        return to if unread or to is value else _copy_in_place(to, value)

    @functools.wraps(lower_put)
    def lower_index_put(to: Any, *given: Any) -> Any:
        compute_first(to, given)
        return lower_put(to, *given)

    lowerings.setdefault(AS_VALUES[copy_], lower_copy)
    lowerings.setdefault(OWN, lowerings[_aten.clone.default])
    lowerings.setdefault(AS_VALUES[index_put_], lower_index_put)


def _copy_in_place(to: Any, value: Any) -> Any:
    """
    Lowers a copy. Inductor's own puts the value in the place of what the graph has computed,
    for those who read that later; who is lowered by now knows it by name.
    """
    from .. import ir
    from ..lowering import expand, lowerings, to_device, to_dtype
    from .write_hazards import compute_first

    finer = _as_computed(to, value)
    if finer is not None:
        _copy_in_place(*finer)
        return to
    storage = to.data
    if not (
        isinstance(storage, ir.StorageBox) and isinstance(storage.data, ir.Operation)
    ):
        return lowerings[_aten.copy_.default](to, value)
    compute_first(to, value)
    value = to_dtype(to_device(value, to.get_device()), to.get_dtype())
    ir.MutationLayoutSHOULDREMOVE.realize_into(expand(value, to.get_size()), storage)
    return to


def _as_computed(to: Any, value: Any) -> tuple[Any, Any] | None:
    """
    A copy's arguments with the dimensions that the value is computed in, where it is seen with
    some of these as one: heads in a row, for one. Loops over the same elements are one then,
    which on a GPU they may not be if their dimensions differ. None if it is computed as it is
    seen.
    """
    from .. import ir

    view = value.data
    if type(view) is not ir.View or not ir.is_storage_and_layout(to):
        return None
    computed, sizes = view.data, view.data.get_size()
    storage, layout = ir.as_storage_and_layout(to, freeze=False)
    if not isinstance(layout, ir.FixedLayout) or len(sizes) <= len(layout.size):
        return None
    strides = _split(layout, sizes)
    if strides is None:
        return None
    place = ir.FixedLayout(
        layout.device, layout.dtype, sizes, strides, layout.offset, layout.is_pinned
    )
    seen = ir.TensorBox(ir.ReinterpretView(data=storage, layout=place))
    return seen, ir.TensorBox(computed)


def _split(layout: Any, sizes: Sequence[Any]) -> list[Any] | None:
    """The strides of a layout's dimensions, each split into some; None if sizes do not."""
    from ..virtualized import V

    equals = V.graph.sizevars.statically_known_equals
    left = [*sizes]
    strides: list[Any] = []
    for size, stride in zip(layout.size, layout.stride):
        parts, product = [], sympy.S.One
        while left and not (parts and equals(product, size)):
            parts.append(left.pop(0))
            product = product * parts[-1]
        if not parts or not equals(product, size):
            return None
        strides += [stride * sympy_product(parts[i:]) for i in range(1, len(parts) + 1)]
    return None if left else strides


def stands_for_write(node: torch.fx.Node) -> bool:
    """Whether a node writes as it is lowered, though its op does not."""
    return node.target in AS_VALUES.values()


def put_writes_last(graph: torch.fx.Graph) -> None:
    """Behind all that reads what is written to; only outputs read what writes return."""
    output = graph.output_node()
    for node in [node for node in graph.nodes if stands_for_write(node)]:
        output.prepend(node)
