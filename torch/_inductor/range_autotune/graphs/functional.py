"""
Writes in candidates' graphs: made into new values, but for those of custom ops and of
Triton kernels.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch._functorch._aot_autograd.functional_utils import has_data_mutation
from torch._higher_order_ops import triton_kernel_wrap
from torch._subclasses.functional_tensor import (
    dispatch_functionalize,
    FunctionalTensorMode,
)
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts
from torch.utils import _pytree as pytree

import torch

from ...virtualized import V
from ..registering.signatures import arguments_by_name, values_written
from .captures import captures_to_inputs, fake_constant, inputs_to_captures
from .control_flow import all_graphs, all_nodes


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.fx import GraphModule, Node

    Trace = Callable[[Callable[..., Any], Sequence[Any]], GraphModule]

# What functionalize without Python knows.
_NAMESPACES_OF_FUNCTIONALIZE = ("aten", "prims", "prim")
# Of a node that launches a Triton kernel: the names of the arguments that are written to.
_MUTATED = "custom_op_mutated_by_triton"


def arguments_written(node: Node) -> list[Node]:
    """The arguments that a node writes to, if it is an op or a Triton kernel."""
    target = node.target
    if target is triton_kernel_wrap.triton_kernel_wrapper_mutation:
        return _written_by_triton(node)
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return []
    given = arguments_by_name(target, node.args, node.kwargs)
    written = values_written(target, given)
    return [value for value in written if isinstance(value, torch.fx.Node)]


def _written_by_triton(node: Node) -> list[Node]:
    """The arguments that a launch of a Triton kernel writes to."""
    launch: dict[str, Any] = dict(node.kwargs)
    arguments = launch["kwargs"]
    if _MUTATED not in node.meta:  # Triton is asked, which takes a while
        values = pytree.tree_map_only(
            torch.fx.Node, lambda n: n.meta["val"], dict(arguments)
        )
        names = ("kernel_idx", "constant_args_idx", "tma_descriptor_metadata")
        kernel, constants, descriptors = map(launch.__getitem__, names)
        node.meta[_MUTATED] = triton_kernel_wrap.get_mutated_tensors(
            kernel, constants, values, descriptors
        )
    return [arguments[name] for name in node.meta[_MUTATED]]


def has_effects(node: Node) -> bool:
    """Whether a node is more than its value."""
    return node.is_impure() or bool(arguments_written(node))


def functionalized(
    gm: GraphModule, fake_inputs: Sequence[Any], trace: Trace
) -> GraphModule:
    """
    The graph that computes the same without writing to its inputs or its own tensors.

    Custom ops and Triton kernels go on to write to tensors of their own, which nobody reads
    as they were before. What is written to an input is copied to it at the end, unless a
    branch of control flow writes to it, which raises.

    Args:
        gm: changed.
        fake_inputs: fake tensors and SymInts, one for each placeholder.
        trace: from a function and its inputs to a graph.
    """
    writing = [node for node in all_nodes(gm) if arguments_written(node)]
    # Inductor lowers in-place collectives, and nothing functionalizes them.
    namespaces = {node.target.namespace for node in writing} - {"_c10d_functional"}  # type: ignore[union-attr]  # ops
    if not namespaces:
        return gm
    captured = captures_to_inputs(gm)
    inputs = [*fake_inputs, *(fake_constant(V.fake_mode, t) for t in captured)]
    # What was asserted of symbols that are data holds for those that take their places.
    run = PropagateUnbackedSymInts(gm).run
    if namespaces.issubset(_NAMESPACES_OF_FUNCTIONALIZE):
        result = trace(torch.func.functionalize(run, remove="mutations"), inputs)
    else:
        result = _with_custom_ops(trace(_functionalized_in_python(run), inputs))
    inputs_to_captures(result, captured)
    return result


def _functionalized_in_python(run: Callable[..., Any]) -> Callable[..., Any]:
    """Custom ops that write become calls of ``auto_functionalized``, which do not."""

    def results_and_changes(*wrapped: Any) -> Any:
        results = run(*wrapped)
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
    from ...fx_passes.post_grad import (
        decompose_auto_functionalized,
        decompose_triton_kernel_wrapper_functional,
    )
    from ...fx_passes.reinplace import reinplace_inplaceable_ops_core

    graphs = [graph.graph for graph in all_graphs(gm)]
    for step in (
        reinplace_inplaceable_ops_core,
        decompose_triton_kernel_wrapper_functional,
        decompose_auto_functionalized,
    ):
        for graph in graphs:
            step(graph)
    return gm
