"""
A boundary around an op in a candidate's graph: on either side generated code has kernels of
its own, as it would if the op's neighbours were not in the region.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch

from ...virtualized import V


if TYPE_CHECKING:
    from ...scheduler import BaseSchedulerNode

BOUNDARY_NAMESPACE = "inductor_apart"
_library = torch.library.Library(BOUNDARY_NAMESPACE, "DEF")
_library.define("value(Tensor x) -> Tensor")
# Where a graph keeps the names of buffers that are a boundary.
_NAMES = "_custom_op_boundaries"


def keep_apart(x: torch.Tensor) -> torch.Tensor:
    """The same value, behind a boundary."""
    return torch.ops.inductor_apart.value(x)


@torch.library.register_fake(f"{BOUNDARY_NAMESPACE}::value", lib=_library)
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=x.device)


@torch.library.impl(_library, "value", "CompositeExplicitAutograd")
def _eager_value(x: torch.Tensor) -> torch.Tensor:
    """For graphs that are called as they are; no output may be an input."""
    return x.clone()


def register_lowering_of_boundary() -> None:
    """Has the boundary lowered to a mark on a buffer; nothing is copied or called."""
    from ...lowering import lowerings

    lowerings.setdefault(torch.ops.inductor_apart.value.default, _mark)


def _mark(x: Any) -> Any:
    x.realize()
    boundaries(V.graph).add(x.get_name())
    return x


def boundaries(graph: Any) -> set[str]:
    """The names of a graph's buffers that are a boundary; to be added to."""
    return vars(graph).setdefault(_NAMES, set())


def are_apart(first: BaseSchedulerNode, second: BaseSchedulerNode) -> bool:
    """Whether one reads what the other writes across a boundary. Called by the scheduler."""
    names = vars(V.graph).get(_NAMES)
    return bool(names) and (
        _reads_across(first, second, names) or _reads_across(second, first, names)
    )


def _reads_across(
    writer: BaseSchedulerNode, reader: BaseSchedulerNode, names: set[str]
) -> bool:
    written = names & writer.get_buffer_names()
    return any(dep.name in written for dep in reader.read_writes.reads)
