"""
Winner table to one graph: the winner's own, or a dispatch among several.

All branches of a dispatch get the same operands: the symbols that sizes are made of, and
the call site's inputs.
"""

from __future__ import annotations

import itertools
from typing import Any, TYPE_CHECKING

import torch

from .. import config, ir
from ..utils import convert_shape_to_inductor
from ..virtualized import V
from .emitting.branch_lowering import is_unaligned, lower_branch
from .emitting.operation_config import tag
from .emitting.size_dispatch import size_tests, SizeDispatch
from .graphs.symbolic_graphs import inline_subgraph_to_ir_nodes
from .kernel_configs.kernel_config_names import KERNEL_CONFIGS_OPTION
from .sizes.equal_sizes import distance
from .sizes.guards import without_optional_guards


if TYPE_CHECKING:
    from collections.abc import Sequence

    import sympy

    from .call_site import CallSite
    from .candidates.contract import Outputs
    from .candidates.traced_candidates import TracedCandidate
    from .emitting.size_dispatch import SizeTests
    from .ranges import Segment
    from .tuning import Tuning

    # By what they depend on; each with its winner's graph.
    Branches = dict[Any, tuple[torch.fx.GraphModule, ir.Subgraph]]

# Subgraphs of one compiled graph share a namespace.
_branch_numbers = itertools.count()


def emit_winner(
    winner: TracedCandidate, site: CallSite, outputs: Outputs, realized: bool = False
) -> list[ir.TensorBox]:
    """
    Lowers one candidate into the graph, brought to the op's strides.

    Args:
        realized: whether values that could still be fused into what reads them become
            buffers, too; those of a winner with config do, for only operations carry it.
    """
    patches = dict(winner.candidate.config_patches)
    first = len(V.graph.operations)
    with config.patch(patches), without_optional_guards():
        results = inline_subgraph_to_ir_nodes(
            winner.lowered, list(site.inputs), winner.name
        )
        realized = realized or bool(patches) or bool(winner.kernel_configs)
        results = with_strides_of(outputs, results, realized, site)
    tag(V.graph.operations[first:], _config_of_kernels(winner))
    return results


def with_strides_of(
    outputs: Outputs, results: Sequence[Any], realized: bool, site: CallSite
) -> list[ir.TensorBox]:
    """
    Brings results to the op's strides where their own are fixed.

    One whose layout is still open may be fused into what reads it, as any other value.
    What is written to an input is that input.
    """
    boxes = []
    for result, expected in zip(*map(site.without_written, (results, outputs.tensors))):
        box = result if isinstance(result, ir.TensorBox) else ir.TensorBox(result)
        if realized:
            box.realize()
        if realized or _has_fixed_layout(box):
            strides = convert_shape_to_inductor(expected.stride())
            exact = ir.ExternKernel.require_exact_strides(box, strides)
            box = exact if isinstance(exact, ir.TensorBox) else ir.TensorBox(exact)
        boxes.append(box)
    return site.with_written(boxes)


def _has_fixed_layout(box: ir.TensorBox) -> bool:
    if not ir.is_storage_and_layout(box):
        return False
    return not isinstance(box.get_layout(), ir.FlexibleLayout)


def emit_dispatch(
    segments: Sequence[Segment[TracedCandidate]],
    tuning: Tuning,
    where_unequal: Sequence[Segment[TracedCandidate]] = (),
) -> list[ir.TensorBox]:
    """
    Lowers a choice among winners by the runtime value of a size, without a guard on it.

    Args:
        segments: sorted; together they hold every value of the dispatch dimension. One alone
            is a branch, too, whose code is generated apart from that around it.
        tuning: its branches, which equal call sites use again, are added to.
        where_unequal: the same where sizes are not equal that are so for the others; if
            there are such sizes, without any the op itself runs.
    """
    site, outputs, otherwise = tuning.site, tuning.outputs, tuning.otherwise
    called = tuning.called.site
    operands = [*called.symbols(), *called.inputs]
    known = tuning.source.branches
    branches = [
        _known_branch(s.value, operands, site, outputs, known) for s in segments
    ]
    tests = _tests(segments, tuning)
    if otherwise:
        winners = [s.value for s in where_unequal] or [otherwise.traced]
        unequal = _tests(where_unequal, otherwise.tuning, first=len(branches))
        tests = distance(otherwise.equal), 1, tests, unequal
        branches += [
            _known_branch(w, operands, called, otherwise.outputs, known)
            for w in winners
        ]
    made = called.without_written(tuning.called.outputs.tensors)
    written = called.written_inputs
    dispatch = SizeDispatch(tests, branches, operands, made, written)
    return called.with_written(map(ir.TensorBox.create, dispatch.outputs))


def _tests(
    segments: Sequence[Segment[TracedCandidate]], tuning: Tuning | None, first: int = 0
) -> SizeTests:
    """
    What finds the branch of a size.

    Args:
        first: the index of the branch of the first segment, or of the only branch.
    """
    if tuning is None or tuning.size is None:
        return first
    starts = [int(s.sizes.start) for s in segments[1:]]
    return size_tests(tuning.size, starts, first)


def _known_branch(
    winner: TracedCandidate,
    operands: Sequence[Any],
    site: CallSite,
    outputs: Outputs,
    known: Branches,
) -> ir.Subgraph:
    """The branch of an equal call site where it becomes a function, else a new one."""
    if V.graph.cpp_wrapper or V.graph.aot_mode:  # written in place
        return _branch(winner, operands, site, outputs)
    unaligned = [is_unaligned(operand) for operand in operands]
    patches = sorted(_config_of_kernels(winner).items())
    how = str(patches), winner.known, tuple(winner.hints.items())
    key = id(V.graph), id(winner.graph), tuple(unaligned), *how
    if key not in known:
        # With the graph, for that its id is no other's.
        known[key] = winner.graph, _branch(winner, operands, site, outputs)
    return known[key][1]


def _branch(
    winner: TracedCandidate, operands: Sequence[Any], site: CallSite, outputs: Outputs
) -> ir.Subgraph:
    """The winner's graph, lowered as what runs in its range of sizes."""
    patches = winner.candidate.config_patches
    name = f"size_branch_{next(_branch_numbers)}"
    symbols = operands[: len(operands) - len(site.inputs)]
    gm, fakes = _with_symbols(winner.lowered, symbols, site)
    made = site.without_written(outputs.tensors)
    known, hints = winner.known, winner.hints
    branch = lower_branch(gm, name, operands, fakes, made, patches, known, hints)
    assert branch.graph is not None
    tag(branch.graph.operations, _config_of_kernels(winner))
    return branch


def _config_of_kernels(winner: TracedCandidate) -> dict[str, Any]:
    """Inductor config that its kernels are generated under."""
    patches = dict(winner.candidate.config_patches)
    if winner.kernel_configs:
        patches[KERNEL_CONFIGS_OPTION] = dict(winner.kernel_configs)
    return patches


def _with_symbols(
    gm: torch.fx.GraphModule, symbols: Sequence[sympy.Symbol], site: CallSite
) -> tuple[torch.fx.GraphModule, list[Any]]:
    """
    A candidate's graph that takes symbols before the call site's inputs, and returns what is
    not written to these.

    Returns:
        It and its inputs, fake.
    """
    create = V.graph.sizevars.shape_env.create_symintnode
    fakes = [*(create(s, hint=None) for s in symbols), *site.fake_inputs()]
    graph = torch.fx.Graph()
    names = [*(f"symbol_{s}" for s in symbols)]
    names += [f"input_{i}" for i in range(len(site.inputs))]
    nodes = [graph.placeholder(name) for name in names]
    for node, fake in zip(nodes, fakes):
        node.meta["val"] = fake
    inputs = gm.graph.find_nodes(op="placeholder")
    results: Any = graph.graph_copy(gm.graph, dict(zip(inputs, nodes[len(symbols) :])))
    graph.output(site.without_written(results))
    return torch.fx.GraphModule(gm, graph), fakes
