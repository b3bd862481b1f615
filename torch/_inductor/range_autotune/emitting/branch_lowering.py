"""One branch of a dispatch by size: a graph lowered inside of the one being compiled."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from ... import config, ir
from ...graph import SubgraphLowering
from ...virtualized import V
from ..graphs.captures import constants_may_be_real
from ..modules.subgraph_module import TrustsInputs
from ..sizes.guards import without_optional_guards
from ..sizes.known_sizes import emitting
from ..sizes.size_hints import generate_for


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sympy

    import torch

    from ...graph import GraphLowering
    from ..sizes.known_sizes import KnownSize
    from ..sizes.size_conditions import Values


class _BranchLowering(TrustsInputs, SubgraphLowering):
    """
    A branch's graph; in Python a function, whose inputs its caller has checked.

    Attributes:
        known: of the size wherever the branch runs.
        own_symbols: that the graph around does not have, with what they are in its.
        handed_over: code of a branch that is written in place, which drops the variables
            around it that nobody reads behind it; the branch's own hold what it reads.
    """

    known: KnownSize | None = None
    own_symbols: Mapping[sympy.Symbol, sympy.Expr] = {}
    handed_over: Sequence[str] = ()

    def codegen(self) -> Any:
        """Kernels and wrapper of a function."""
        with emitting(self.known, self.own_symbols):
            return super().codegen()

    def codegen_subgraph(self, parent_graph: GraphLowering) -> None:
        """The same, written in place."""
        for line in self.handed_over:
            parent_graph.wrapper_code.writeline(line)
        with emitting(self.known, self.own_symbols):
            super().codegen_subgraph(parent_graph)

    def allocate_non_dup_const_name(self, name: str | None, data: torch.Tensor) -> str:
        """The code finds constants by name in its module, which has the outermost graph's."""
        known = self.parent.allocate_non_dup_const_name(name, data)
        self.constants[known] = data
        return known

    def init_wrapper_code(self, *args: Any, **kwargs: Any) -> None:
        """No assertions on inputs: they are for those who call from outside."""
        super().init_wrapper_code(*args, **kwargs)
        self.wrapper_code._pending_input_asserts.clear()
        # Globals of the one module, which each wrapper would number from zero.
        named = self.parent.wrapper_code.multi_kernel_state.subkernel_to_kernel_name
        self.wrapper_code.multi_kernel_state.subkernel_to_kernel_name = named

    def _update_scheduler(self) -> None:
        """The dispatch is an operation on a device, and runs with that set."""
        super()._update_scheduler()
        devices = {operation.get_device() for operation in self.operations}
        if len(devices) == 1:
            (self.scheduler.default_device_context,) = devices


def lower_branch(
    gm: torch.fx.GraphModule,
    name: str,
    operands: Sequence[Any],
    fakes: Sequence[Any],
    outputs: Sequence[torch.Tensor],
    config_patches: Mapping[str, Any],
    known: KnownSize | None,
    hints: Values,
    own_symbols: Mapping[sympy.Symbol, sympy.Expr],
) -> ir.Subgraph:
    """
    Lowers a graph as a branch of a dispatch in the graph being compiled.

    Args:
        gm: one placeholder for each operand, and a flat list of outputs.
        name: of the branch; no other subgraph of the graph being compiled has it.
        operands: IR tensors and sympy expressions.
        fakes: the operands as fake tensors and SymInts, sizes symbolic.
        outputs: fake tensors with the strides that the branch must return.
        config_patches: Inductor config to lower the branch under.
        known: of the size wherever the branch runs.
        hints: sizes to generate it for, by symbol; the model's own if empty.
        own_symbols: that the graph being compiled does not have, with what they are in its.
    """
    parent = V.graph
    graph = _BranchLowering(
        parent=parent,
        gm=gm,
        example_inputs=list(fakes),
        shape_env=parent._shape_env,
        cpp_wrapper=parent.cpp_wrapper,
        aot_mode=parent.aot_mode,
        extern_node_serializer=parent.extern_node_serializer,
        is_inference=parent.is_inference,
        is_backward=parent.is_backward,
        name=parent.qualify_name(name),
    )
    graph.bw_donated_idxs = None  # places among the outermost graph's inputs
    generate_for(graph, hints)
    placeholders = gm.graph.find_nodes(op="placeholder")
    for node, operand in zip(placeholders, operands):
        if is_unaligned(operand):
            graph.unaligned_buffers.add(graph.qualify_name(node.target))
    graph.known = known
    graph.own_symbols = own_symbols
    with (
        V.set_graph_handler(graph),
        config.patch(dict(config_patches)),
        emitting(known, own_symbols),
        constants_may_be_real(),
        without_optional_guards(),
    ):
        graph.run(*fakes)
        graph.graph_outputs = _own_buffers(graph.graph_outputs, outputs)
    return ir.Subgraph(name=name, graph_module=gm, graph=graph)


def is_unaligned(operand: Any) -> bool:
    """Whether kernels may not count on where a tensor starts; one number is just read."""
    is_tensor = isinstance(operand, ir.IRNode) and bool(operand.get_size())
    return is_tensor and ir.is_unaligned(operand)


def _own_buffers(
    results: Sequence[Any], outputs: Sequence[torch.Tensor]
) -> list[ir.IRNode]:
    """A branch's results with the strides asked for, each a buffer that no other is."""
    owned: list[ir.IRNode] = []
    seen: set[str] = set()
    for result, expected in zip(results, outputs):
        box = ir.ExternKernel.require_exact_strides(
            ir.TensorBox(result), expected.stride(), allow_padding=False
        )
        if box.get_name() in seen or box.get_name() in V.graph.graph_inputs:
            box = ir.ExternKernel.copy_input(box)
        seen.add(box.get_name())
        owned.append(box)
    return owned
