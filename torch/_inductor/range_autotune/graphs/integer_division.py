"""
Divisions of integers, some of which end the process where generated C++ divides by zero; and
benchmark inputs of integers are zeros unless the user makes others.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch

from ..limits import call_candidate
from .control_flow import all_nodes
from .node_kinds import is_integral, is_number


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_DIVISIONS = (
    torch.ops.aten.div,
    torch.ops.aten.floor_divide,
    torch.ops.aten.remainder,
    torch.ops.aten.fmod,
    torch.ops.prims.div,
    torch.ops.prims.remainder,
    torch.ops.prims.fmod,
)


def divides_integers(node: torch.fx.Node) -> bool:
    """Whether a node divides integers by those of a tensor."""
    packet = getattr(node.target, "overloadpacket", None)
    divisor = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
    if packet not in _DIVISIONS or not isinstance(divisor, torch.fx.Node):
        return False
    if is_number(divisor):
        return False
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and is_integral(value.dtype)


def check_divisors(
    graph: torch.fx.GraphModule, inputs: Callable[[], Sequence[Any]]
) -> None:
    """
    Raises what PyTorch raises where generated code would divide integers by zero, and
    what ``call_candidate`` does: the graph is called eagerly for that.

    Args:
        inputs: makes one for each placeholder of the graph.
    """
    if any(map(divides_integers, all_nodes(graph))):
        call_candidate(graph, *inputs())
