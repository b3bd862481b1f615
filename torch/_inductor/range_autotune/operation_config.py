"""
Inductor config of single operations: winners bring theirs into the graph being compiled.

What a candidate is measured with must be emitted. Lowering runs under its config; what
generates kernels reads it from the operations, measured and emitted alike. Config that
concerns a graph as a whole (fusion, memory, C++ compilers) is that of the graph.
"""

from __future__ import annotations

import functools
from typing import Any, TYPE_CHECKING

from .. import config


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..codegen.simd import SIMDScheduling
    from ..scheduler import BaseSchedulerNode


def tag(operations: Sequence[Any], patches: Mapping[str, Any]) -> None:
    """Gives operations, and those of their subgraphs, the config of their kernels."""
    for operation in operations if patches else ():
        operation.set_config_patches(dict(patches))
        for subgraph in operation.get_subgraphs():
            if subgraph.graph:
                tag(subgraph.graph.operations, patches)


def under_config_of_operations(codegen: Callable[..., Any]) -> Callable[..., Any]:
    """
    Generates a node's kernel under the config of its operations, from the start.

    Inductor applies it to a kernel's text, when it has chosen between a loop and a
    persistent, cooperative or multi-kernel reduction.

    Args:
        codegen: a method of ``SIMDScheduling`` that takes a node of the scheduler.
    """

    @functools.wraps(codegen)
    def generate(scheduling: SIMDScheduling, node: BaseSchedulerNode) -> Any:
        with config.patch(scheduling._collect_config_patches(list(node.get_nodes()))):
            return codegen(scheduling, node)

    return generate
