"""
The IR of a choice among graphs by a size: one node, however many graphs there are.

``torch.cond`` has two branches, so that a choice among more would nest it, and each level
would check its inputs and outputs again and pass them on. Here the wrapper tests the size
in a balanced tree and runs the one branch from there. Nothing is checked: branches read
what the graph around them has checked or made, and their outputs come from generated code.

The size is a number that the host knows, so that a CUDA graph, which is recorded for the
sizes of its inputs, holds the right branch.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from ... import ir
from ...codegen.wrapper import (
    EnterSubgraphLine,
    ExitSubgraphLine,
    MemoryPlanningLine,
    MemoryPlanningState,
)
from ...utils import is_cudagraph_unsafe_op
from ...virtualized import V
from ..candidates.contract import layout_of, main_device


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    import sympy

    import torch

    from ...codegen.wrapper import PythonWrapperCodegen
    from ...graph import GraphLowering

    BranchWriter = Callable[[ir.Subgraph], None]
    # A branch; or a size, and what to run below so much of it, and from there.
    SizeTests = int | tuple[sympy.Expr, int, "SizeTests", "SizeTests"]


class SizeDispatch(ir.ExternKernel):
    """
    Runs one of several graphs; sizes say which. Or a single one, which is generated for other
    sizes than the graph around it.

    Args:
        tests: which one it is; of symbolic sizes that are numbers on the host at run time.
        branches: lowered.
        operands: IR tensors and sympy expressions, the inputs of every branch.
        outputs: fake tensors, what every branch returns.
        written: those of the operands that branches write to.
        own_symbols: of branches, with what they are in those of the graph around.
    """

    def __init__(
        self,
        tests: SizeTests,
        branches: Sequence[ir.Subgraph],
        operands: Sequence[Any],
        outputs: Sequence[torch.Tensor],
        written: Collection[ir.TensorBox],
        own_symbols: Mapping[sympy.Symbol, sympy.Expr],
    ) -> None:
        realized = [ir.ExternKernel.realize_input(operand) for operand in operands]
        tensors = [x for x in realized if not isinstance(x, ir.ShapeAsConstantBuffer)]
        numbers = [x.expr for x in realized if isinstance(x, ir.ShapeAsConstantBuffer)]
        devices = [x.device for x in outputs] + [
            box.get_device_or_error() for box in written
        ]
        super().__init__(
            name=None,
            layout=ir.MultiOutputLayout(device=main_device(devices)),
            inputs=self.unwrap_storage(tensors),
            constant_args=(*_sizes_in(tests), *numbers),
        )
        self.tests = tests
        self.branches = tuple(branches)
        self.own_symbols = own_symbols
        self.operands = tuple(realized)
        for box in written:  # who reads it as it was is to come before
            V.graph.mark_buffer_mutated(box.get_name())
        self.name = V.graph.register_buffer(self)
        V.graph.register_operation(self)
        self.mutation_outputs = [
            ir.MutationOutput(ir.NoneLayout(device=box.get_device()), box, self)
            for box in written
        ]
        self.outputs = [_Output(self, i, fake) for i, fake in enumerate(outputs)]
        self._report_limits()

    def get_subgraphs(self) -> list[ir.Subgraph]:
        """The branches."""
        return list(self.branches)

    def _report_limits(self) -> None:
        """Tells the graph and the scheduler what in a branch rules CUDA graphs out."""
        # The scheduler looks at the FX node of an operation.
        self.fx_node = None  # type: ignore[bad-assignment]  # upstream has None too
        for graph in self._graphs():
            for device in graph.device_node_mapping:
                V.graph.add_device_info(device)
                if device.type == "cpu" and self.get_device() != device:
                    V.graph.disable_cudagraphs_reason = "a branch runs on the CPU"
            if reason := graph.disable_cudagraphs_reason:
                V.graph.disable_cudagraphs_reason = reason
            for operation in graph.operations:
                if is_cudagraph_unsafe_op(operation):
                    self.fx_node = operation.fx_node

    def _graphs(self) -> list[Any]:
        return [branch.graph for branch in self.branches]

    def codegen(self, wrapper: PythonWrapperCodegen) -> None:
        """Writes the tests of the size, and the branch or its call behind each."""
        operands = [self._argument(i) for i in range(len(self.operands))]
        names = [output.get_name() for output in self.outputs]
        run = _branch_writer(wrapper, self, operands, names)
        wrapper.writeline(_EndOfReuse(wrapper))
        if isinstance(self.tests, int):
            self._codegen_alone(wrapper, run)
        else:
            self._codegen_tests(wrapper, self.tests, run)
        for output in self.outputs:
            if output.get_name() in V.graph.removed_buffers:
                wrapper.writeline(wrapper.make_buffer_free(output))
        # Only the outputs are variables.
        wrapper.freed.add(self.get_name())

    def _argument(self, index: int) -> str:
        """
        Code for an operand: for a view what it is a view of, if only generated kernels read
        it, which are given where it starts. Making one takes the host about a microsecond.
        """
        operand = self.operands[index]
        written = {
            name for out in self.mutation_outputs for name in out.get_mutation_names()
        }
        in_python = not (V.graph.cpp_wrapper or V.graph.aot_mode)
        if (
            in_python
            and _starts_where_its_buffer_does(operand)
            and operand.get_name() not in written
            and all(_only_kernels_read(graph, index) for graph in self._graphs())
        ):
            return operand.get_name()
        return operand.codegen_reference()

    def _codegen_alone(self, wrapper: PythonWrapperCodegen, run: BranchWriter) -> None:
        """In C++ in a block, whose variables, precomputed sizes for some, end with it."""
        if not V.graph.cpp_wrapper:
            run(self.branches[0])
            return
        wrapper.writeline("{")
        wrapper.writeline(EnterSubgraphLine(wrapper, self._graphs()[0]))
        run(self.branches[0])
        wrapper.writeline(ExitSubgraphLine(wrapper))
        wrapper.writeline("}")

    def _codegen_tests(
        self, wrapper: PythonWrapperCodegen, tests: SizeTests, run: BranchWriter
    ) -> None:
        if isinstance(tests, int):
            run(self.branches[tests])
            return
        size, start, below, above = tests
        if_, else_, end = _IF_IN_CPP if V.graph.cpp_wrapper else _IF_IN_PYTHON
        test = f"{wrapper.codegen_sizevar(size)} < {start}"
        for line, inner in ((if_.format(test), below), (else_, above)):
            wrapper.writeline(line)
            # Wrappers remember by this graph which variables a block declares.
            graph = self._graphs()[inner] if isinstance(inner, int) else V.graph
            wrapper.writeline(EnterSubgraphLine(wrapper, graph))
            self._codegen_tests(wrapper, inner, run)
            wrapper.writeline(ExitSubgraphLine(wrapper))
        if end:
            wrapper.writeline(end)


def _starts_where_its_buffer_does(operand: Any) -> bool:
    """Whether it is a view that differs from its buffer by sizes and strides only."""
    return (
        isinstance(operand, ir.ReinterpretView)
        and operand.get_layout().offset == 0
        and operand.get_dtype() == V.graph.get_dtype(operand.get_name())
    )


def _only_kernels_read(graph: GraphLowering, index: int) -> bool:
    """Whether all that reads an input of a branch is generated code, templates aside."""
    name = graph.graph_input_names[index]
    others = (op for op in graph.operations if not isinstance(op, ir.ComputedBuffer))
    return all(read.name != name for op in others for read in op.get_reads())


def size_tests(size: sympy.Expr, starts: Sequence[int], first: int = 0) -> SizeTests:
    """
    The balanced tree of tests that finds a size's branch.

    Args:
        size: symbolic.
        starts: the first sizes of all branches but the first, ascending.
        first: the index of the first branch.

    Returns:
        The index of the only branch, or: the size, what to compare it with, the tests if
        it is below, and those if it is not.
    """
    if not starts:
        return first
    half = (len(starts) + 1) // 2
    below = size_tests(size, starts[: half - 1], first)
    above = size_tests(size, starts[half:], first + half)
    return size, starts[half - 1], below, above


def _sizes_in(tests: SizeTests) -> list[sympy.Expr]:
    """Those that are tested."""
    if isinstance(tests, int):
        return []
    size, _, below, above = tests
    return [*dict.fromkeys([size, *_sizes_in(below), *_sizes_in(above)])]


_IF_IN_PYTHON = ("if {}:", "else:", "")
_IF_IN_CPP = ("if ({}) {{", "} else {", "}")


def _branch_writer(
    wrapper: PythonWrapperCodegen,
    dispatch: SizeDispatch,
    operands: list[str],
    outputs: list[str],
) -> BranchWriter:
    """
    How the wrapper at hand runs a branch; what all branches share is written at once.

    Args:
        operands: code for each.
        outputs: names of variables, not declared as yet.
    """
    if V.graph.cpp_wrapper or V.graph.aot_mode:
        return _writer_in_place(wrapper, dispatch, operands, outputs)
    arguments = f"{dispatch.get_name()}_args"
    wrapper.writeline(f"{arguments} = [{', '.join(operands)}]")
    # The list holds them; the function that gets it frees them as early as it can.
    V.graph.scheduler.free_buffers()

    def call(branch: ir.Subgraph) -> None:
        wrapper.codegen_subgraph_common(branch)
        function = branch.graph.name  # type: ignore[union-attr]  # it is lowered
        results = f"({', '.join(outputs)},) = " if outputs else ""
        wrapper.writeline(f"{results}{function}({arguments})")

    return call


def _writer_in_place(
    wrapper: PythonWrapperCodegen,
    dispatch: SizeDispatch,
    operands: list[str],
    outputs: list[str],
) -> BranchWriter:
    """See ``_branch_writer``."""
    writer: Any = wrapper
    write = writer.codegen_subgraph_by_inlining
    if V.graph.cpp_wrapper:
        write = writer.codegen_subgraph
        for name in outputs:
            wrapper.writeline(f"RAIIAtenTensorHandle {name};")
    before = len(wrapper.lines)
    V.graph.scheduler.free_buffers()
    freed: list[Any] = wrapper.lines[before:]
    del wrapper.lines[before:]
    lines = [wrapper.make_buffer_free(line.node) for line in freed]
    handed_over = [line for line in lines if line]

    def write_branch(branch: ir.Subgraph) -> None:
        for symbol, size in dispatch.own_symbols.items():
            value = wrapper.codegen_sizevar(size)
            wrapper.writeline(f"{writer.declare}{symbol} = {value}{writer.ending}")
        branch.graph.handed_over = handed_over  # type: ignore[union-attr]  # lowered
        write(branch, operands, outputs)

    return write_branch


class _EndOfReuse(MemoryPlanningLine):
    """
    Frees what nobody has taken over by here.

    A branch takes its memory from the allocator. What was kept over it, for a buffer that is
    allocated behind it, would be missing there: a decoder's peak was one activation higher.
    """

    def plan(self, state: MemoryPlanningState) -> MemoryPlanningLine:
        """Later lines find nothing that was freed before."""
        state.reuse_pool.clear()
        return self


class _Output(ir.MultiOutput):
    """One output of a dispatch, which gives it its value."""

    def __init__(self, dispatch: SizeDispatch, index: int, fake: torch.Tensor) -> None:
        results = [graph.graph_outputs[index] for graph in dispatch._graphs()]
        layout = layout_of(fake, is_pinned=results[0].get_layout().is_pinned)
        super().__init__(layout, dispatch, [(list, index)])
        for graph, result in zip(dispatch._graphs(), results):
            if result.get_name() in graph.unaligned_buffers:
                V.graph.unaligned_buffers.add(self.get_name())

    def codegen(self, wrapper: PythonWrapperCodegen) -> None:
        """Nothing is left to do."""
