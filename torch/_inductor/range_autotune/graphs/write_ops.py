"""
Ops that stand for writes to what a region is given, such as a cache or a buffer that is
updated in place.

To tracers and graph passes they are ops as any other, without side effects, whose results
stand for what was written to; where they are lowered or called, they write. ``unread`` is
what nobody reads behind the region: where a value is copied there, that is left out. ``by_op``
is what an op that is tuned has written there, and not to memory of its own, in eager mode.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch


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


def stands_for_write(node: torch.fx.Node) -> bool:
    """Whether a node writes as it is lowered, though its op does not."""
    return node.target in AS_VALUES.values()


def put_writes_last(graph: torch.fx.Graph) -> None:
    """Behind all that reads what is written to; only outputs read what writes return."""
    output = graph.output_node()
    for node in [node for node in graph.nodes if stands_for_write(node)]:
        output.prepend(node)
