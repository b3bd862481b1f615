"""
Ops that stand for writes to what a region is given, such as a cache or a buffer that is
updated in place.

To tracers and graph passes they are ops as any other, without side effects, whose results
stand for what was written to; where they are lowered or called, they write.
"""

from __future__ import annotations

import functools
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WRITE_NAMESPACE = "inductor_write"
_aten = torch.ops.aten
_library = torch.library.Library(WRITE_NAMESPACE, "DEF")
_library.define("copy(Tensor to, Tensor value) -> Tensor")
_library.define("index_put(Tensor to, Tensor?[] indices, Tensor value) -> Tensor")
# By the op that writes. They take the first of its arguments.
AS_VALUES = {
    _aten.copy_.default: torch.ops.inductor_write.copy.default,
    _aten.index_put_.default: torch.ops.inductor_write.index_put.default,
}


@torch.library.register_fake(f"{WRITE_NAMESPACE}::copy", lib=_library)
@torch.library.register_fake(f"{WRITE_NAMESPACE}::index_put", lib=_library)
def _like(to: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_strided(to.shape, to.stride(), dtype=to.dtype, device=to.device)


@torch.library.impl(
    f"{WRITE_NAMESPACE}::copy", "CompositeExplicitAutograd", lib=_library
)
def _copy(to: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
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

    for op, as_value in AS_VALUES.items():
        lowerings.setdefault(as_value, _behind_reads(lowerings[op]))


def _behind_reads(lower: Callable[..., Any]) -> Callable[..., Any]:
    """
    The lowering of a write that has what it is given computed before, if that reads what is
    written to: the scheduler then sees whether both may be one loop. Inductor computes a
    view of a value, ``(x * 2)[:-1]`` for ``x[1:]``, in the loop that writes, which would
    read elements that it has written.
    """

    @functools.wraps(lower)
    def lower_write(to: Any, *given: Any) -> Any:
        from .. import ir

        for value in pytree.tree_leaves(given):
            is_computed = isinstance(value, ir.TensorBox)
            if is_computed and to.get_name() in value.get_read_names():
                value.realize()
        return lower(to, *given)

    return lower_write


def stands_for_write(node: torch.fx.Node) -> bool:
    """Whether a node writes as it is lowered, though its op does not."""
    return node.target in AS_VALUES.values()


def put_writes_last(graph: torch.fx.Graph) -> None:
    """Behind all that reads what is written to; only outputs read what writes return."""
    output = graph.output_node()
    for node in [node for node in graph.nodes if stands_for_write(node)]:
        output.prepend(node)
