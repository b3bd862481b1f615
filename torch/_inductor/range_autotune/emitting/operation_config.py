"""
Inductor config of single operations: winners bring theirs into the graph being compiled.

What a candidate is measured with must be emitted. Lowering runs under its config; what
generates kernels reads it from the operations, measured and emitted alike: where several
in one kernel differ, the last one's counts, as Inductor has it. Config that concerns a graph
as a whole (fusion, memory, C++ compilers) is that of the graph.
"""

from __future__ import annotations

import functools
from typing import Any, TYPE_CHECKING

from ... import config
from ..kernel_configs.kernel_config_names import KERNEL_CONFIGS_OPTION


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ...codegen.simd import SIMDScheduling
    from ...scheduler import BaseSchedulerNode


def tag(operations: Sequence[Any], patches: Mapping[str, Any]) -> None:
    """Gives operations, and those of their subgraphs, the config of their kernels."""
    for operation in operations if patches else ():
        operation.set_config_patches(dict(patches))
        for subgraph in operation.get_subgraphs():
            if subgraph.graph:
                tag(subgraph.graph.operations, patches)


def under_config_of_operations(codegen: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates what generates a kernel, to do so under the config of the kernel's operations.

    Inductor applies that config later, to the kernel's text, when it has already chosen between
    a loop and a persistent, cooperative or multi-kernel reduction.

    Args:
        codegen: a method of ``SIMDScheduling`` whose first argument is a node of the
            scheduler, or several.
    """

    @functools.wraps(codegen)
    def generate(
        scheduling: SIMDScheduling, node: Any, *args: Any, **kwargs: Any
    ) -> Any:
        nodes = node if isinstance(node, (list, tuple)) else node.get_nodes()
        with config.patch(scheduling._collect_config_patches([*nodes])):
            return codegen(scheduling, node, *args, **kwargs)

    return generate


def without_config(nodes: Sequence[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
    """
    Those whose kernels may be joined with others in a combo kernel, which has none.

    Configs of kernels are no reason: those of combo kernels are never chosen.
    """
    return [
        node
        for node in nodes
        if not any(
            {*n.node.get_config_patches()} - {KERNEL_CONFIGS_OPTION}
            for n in node.get_nodes()
            if n.node
        )
    ]
