"""How the ops that stand for writes are lowered: to writes."""

from __future__ import annotations

import functools
from typing import Any, TYPE_CHECKING

import sympy

import torch

from ...utils import sympy_product
from ..graphs.write_ops import AS_VALUES, OWN
from .write_hazards import compute_first


if TYPE_CHECKING:
    from collections.abc import Sequence


def register_lowering_of_writes() -> None:
    """Has the ops that stand for writes lowered to these."""
    from ...lowering import lowerings

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
    lowerings.setdefault(OWN, lowerings[torch.ops.aten.clone.default])
    lowerings.setdefault(AS_VALUES[index_put_], lower_index_put)


def _copy_in_place(to: Any, value: Any) -> Any:
    """
    Lowers a copy. Inductor's own puts the value in the place of what the graph has computed,
    for those who read that later; who is lowered by now knows it by name.
    """
    from ... import ir
    from ...lowering import expand, lowerings, to_device, to_dtype

    finer = _as_computed(to, value)
    if finer is not None:
        _copy_in_place(*finer)
        return to
    storage = to.data
    if not (
        isinstance(storage, ir.StorageBox) and isinstance(storage.data, ir.Operation)
    ):
        return lowerings[torch.ops.aten.copy_.default](to, value)
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
    from ... import ir

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
    from ...virtualized import V

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
