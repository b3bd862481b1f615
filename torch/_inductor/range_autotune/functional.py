"""Writes in candidates' graphs: made into new values, but for those of custom ops."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch._functorch._aot_autograd.functional_utils import has_data_mutation
from torch._subclasses.functional_tensor import (
    dispatch_functionalize,
    FunctionalTensorMode,
)
from torch.utils import _pytree as pytree

import torch

from ..virtualized import V
from .captures import captures_to_inputs, fake_constant, inputs_to_captures


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule, Node

    Trace = Callable[[Callable[..., Any], Sequence[Any]], GraphModule]

# What functionalize without Python knows.
_NAMESPACES_OF_FUNCTIONALIZE = ("aten", "prims", "prim")


def written(node: Node) -> list[Node]:
    """The arguments that a node writes to, if it is an op."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return []
    found: list[Node] = []
    for i, argument in enumerate(target._schema.arguments):
        if argument.is_write:
            value = node.args[i] if i < len(node.args) else None
            value = node.kwargs.get(argument.name, value)
            found += [
                n for n in pytree.tree_leaves(value) if isinstance(n, torch.fx.Node)
            ]
    return found


def functionalized(
    gm: GraphModule, fake_inputs: Sequence[Any], trace: Trace
) -> GraphModule:
    """
    The graph that computes the same without writing to its inputs or its own tensors.

    Custom ops go on to write to tensors of their own, which nobody reads as they were
    before. What is written to an input is copied to it at the end.

    Args:
        gm: changed.
        fake_inputs: fake tensors and SymInts, one for each placeholder.
        trace: from a function and its inputs to a graph.
    """
    writing = [node for node in gm.graph.nodes if written(node)]
    # Inductor lowers in-place collectives, and nothing functionalizes them.
    namespaces = {n.target.namespace for n in writing} - {"_c10d_functional"}  # type: ignore[union-attr]  # an OpOverload
    if not namespaces:
        return gm
    captured = captures_to_inputs(gm)
    inputs = [*fake_inputs, *(fake_constant(V.fake_mode, t) for t in captured)]
    if namespaces.issubset(_NAMESPACES_OF_FUNCTIONALIZE):
        result = trace(torch.func.functionalize(gm, remove="mutations"), inputs)
    else:
        result = _with_custom_ops(trace(_functionalized_in_python(gm), inputs))
    inputs_to_captures(result, captured)
    return result


def _functionalized_in_python(gm: GraphModule) -> Callable[..., Any]:
    """Custom ops that write become calls of ``auto_functionalized``, which do not."""

    def results_and_changes(*wrapped: Any) -> Any:
        results = gm(*wrapped)
        return results, {i: w for i, w in enumerate(wrapped) if has_data_mutation(w)}

    functional = dispatch_functionalize(results_and_changes, FunctionalTensorMode())

    def call(*inputs: Any) -> Any:
        results, changes = functional(*inputs)
        for i, value in changes.items():
            inputs[i].copy_(value)
        return results

    return call


def _with_custom_ops(gm: GraphModule) -> GraphModule:
    """Calls custom ops again, on copies only of what is read afterwards as it was."""
    from ..fx_passes.post_grad import (
        decompose_auto_functionalized,
        decompose_triton_kernel_wrapper_functional,
    )
    from ..fx_passes.reinplace import reinplace_inplaceable_ops_core

    reinplace_inplaceable_ops_core(gm.graph)
    decompose_triton_kernel_wrapper_functional(gm.graph)
    decompose_auto_functionalized(gm.graph)
    return gm
