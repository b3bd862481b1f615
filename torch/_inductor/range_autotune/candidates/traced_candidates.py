"""Candidates of a call site: what is traced of each, or why nothing is."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING

import torch

from ..contents.content import Unhashable
from ..graphs.control_flow import all_nodes
from ..graphs.graph_text import graph_text, SymbolNames
from ..graphs.split_sizes import with_sizes_of_parts
from ..graphs.write_ops import WRITE_NAMESPACE
from ..neighbours.apart import BOUNDARY_NAMESPACE
from ..sizes.known_sizes import knowing
from ..writes.without_copies import without_copies


if TYPE_CHECKING:
    from ..registration import Candidate
    from ..sizes.guards import Question
    from ..sizes.known_sizes import KnownSize
    from ..sizes.size_conditions import Values
    from ..sizes.size_points import SizePoint
    from ..winners import KernelConfigs

# Their ops are lowered to generated code or to calls that cost little on the host.
NAMESPACES_OF_TORCH = (
    "aten",
    "prims",
    "inductor",
    "_c10d_functional",
    "triton",
    BOUNDARY_NAMESPACE,
    WRITE_NAMESPACE,
)


@dataclasses.dataclass(frozen=True)
class TracedCandidate:
    """
    A candidate that may compete.

    Args:
        graph: takes the call site's inputs, returns a flat list of tensors.
        as_written: the same before graph passes, where they have made another form of it
            that may be slower; else None.
        kernel_configs: of its kernels in one part of a range, see ``kernel_config_ranges``.
        known: what its ranges say of the size, where that is more than is known anyway.
        optional_guards: whether tracing asked for guards that torch can do without, at the
            price of slower code.
        made_for: sizes that its code is generated for; without any those that the model is
            compiled with.
    """

    candidate: Candidate
    graph: torch.fx.GraphModule
    as_written: torch.fx.GraphModule | None = None
    kernel_configs: KernelConfigs = ()
    known: KnownSize | None = None
    optional_guards: bool = True
    made_for: SizePoint | None = None

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.name

    @property
    def hints(self) -> Values:
        """The sizes that its code is generated for, by symbol; the model's own if empty."""
        return self.made_for.values if self.made_for else {}

    @functools.cached_property
    def lowered(self) -> torch.fx.GraphModule:
        """The graph as it is lowered."""
        with knowing(self.known):
            return with_sizes_of_parts(without_copies(self.graph))

    def with_configs(self, kernel_configs: KernelConfigs) -> TracedCandidate:
        """The very graph that was measured, with configs of its kernels for some sizes."""
        configured = dataclasses.replace(self, kernel_configs=kernel_configs)
        vars(configured)["lowered"] = self.lowered
        return configured

    def does_the_same_as(self, other: TracedCandidate) -> bool:
        """Whether both would compile to the same code where they know the same of sizes."""
        text = self.code_text()
        return text is not None and text == other.code_text()

    def code_text(self) -> str | None:
        """
        Its graph and config, the same up to names of nodes and symbols.

        Returns:
            None if something in it has no content that could be compared.
        """
        try:
            graph = graph_text(self.graph.graph, SymbolNames(), self.graph)
        except Unhashable:
            return None
        return f"{graph}\n{sorted(self.candidate.config_patches.items())}"

    @property
    def calls_python(self) -> bool:
        """Whether it calls a custom op eagerly, the op itself for one."""
        return any(
            node.meta.get("should_fallback")
            or (
                isinstance(node.target, torch._ops.OpOverload)
                and node.target.namespace not in NAMESPACES_OF_TORCH
            )
            for node in all_nodes(self.graph)
        )


@dataclasses.dataclass(frozen=True)
class Rejection:
    """
    Why a candidate has no graph, or one that breaks the contract.

    Args:
        guards: whether that is because tracing it guards on a size.
        question: what it asks of sizes, if that is why.
    """

    reason: str
    guards: bool = False
    question: Question | None = None
