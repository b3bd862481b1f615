"""
What is kept with the graph that is being compiled, for as long as it is.

It refers to the graph, and Inductor keeps shape environments for long: no table of ours or
theirs would let the graph go.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from ..virtualized import V


if TYPE_CHECKING:
    from ..graph import GraphLowering
    from .ranges import DimRange
    from .tuning import Tuning

_TUNINGS = "_custom_op_tunings"
_TOLD = "_custom_op_candidates_left_out"


def outermost_graph() -> GraphLowering:
    """The graph that is being compiled, or the one that has it for a branch."""
    graph = V.graph
    while parent := getattr(graph, "parent", None):
        graph = parent
    return graph


def known_tunings() -> dict[Any, Tuning]:
    """What there was to decide in the graph and its branches as yet, by call site."""
    return vars(outermost_graph()).setdefault(_TUNINGS, {})


def told_left_out() -> set[tuple[str, str, str, DimRange | None]]:
    """Whom the user was warned of in the graph: op, candidate, reason, and range if one."""
    return vars(outermost_graph()).setdefault(_TOLD, set())
