"""
State of one compilation: attributes of the outermost graph that is being compiled.

It refers to the graph. In a table by graph it would keep the graph alive, and so would one by
shape environment, since Inductor keeps these for long.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch.fx import GraphModule

from ..virtualized import V


if TYPE_CHECKING:
    from ..graph import GraphLowering
    from .ranges import DimRange
    from .tuning import Tuning

_TUNINGS = "_custom_op_tunings"
_TOLD = "_custom_op_candidates_left_out"
# In the metadata of graphs that are compiled to be measured.
_IS_CANDIDATE = "custom_op_candidate"


def outermost_graph() -> GraphLowering:
    """The graph that is being compiled, or the one that has it for a branch."""
    graph = V.graph
    while parent := getattr(graph, "parent", None):
        graph = parent
    return graph


def known_tunings() -> dict[Any, Tuning]:
    """The tunings in the graph and its branches so far, by key of the call site."""
    return vars(outermost_graph()).setdefault(_TUNINGS, {})


def told_left_out() -> set[tuple[str, str, str, DimRange | None]]:
    """Warnings given for the graph so far: op, candidate, reason, and range if it is of one."""
    return vars(outermost_graph()).setdefault(_TOLD, set())


def mark_candidate(gm: GraphModule) -> None:
    """Says of a graph that it is compiled to be measured."""
    gm.meta[_IS_CANDIDATE] = True


def has_autotuned_op() -> bool:
    """Whether the graph being compiled has an autotuned op, or is a candidate of one."""
    module = outermost_graph().module
    candidate = isinstance(module, GraphModule) and _IS_CANDIDATE in module.meta
    return candidate or bool(known_tunings())
