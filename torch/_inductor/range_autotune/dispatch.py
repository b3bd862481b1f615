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
from .sizes.equal_sizes import distance, numbers_of_blocks
from .sizes.guards import without_optional_guards


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import sympy

    from .call_site import CallSite
    from .candidates.contract import Outputs
    from .candidates.traced_candidates import TracedCandidate
    from .emitting.size_dispatch import SizeTests
    from .ranges import Segment
    from .tuning import Tuning

    # All sizes that can occur, sorted, each range with what runs there. One range alone is a
    # branch, too, whose code is generated apart from that around it.
    Case = tuple[Tuning, Sequence[Segment[TracedCandidate]]]
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


def emit_dispatch(cases: Sequence[Case]) -> list[ir.TensorBox]:
    """
    Lowers a choice among winners by the runtime values of sizes, without a guard on them.

    Args:
        cases: in the order in which it is tested which one a call is, see ``Tuning.cases``.
    """
    last, _ = cases[-1]
    called, outputs = last.site, last.outputs.tensors
    own: dict[sympy.Symbol, sympy.Expr] = {}
    for tuning, _ in cases:
        if tuning.otherwise:
            own |= numbers_of_blocks(tuning.otherwise.equal)
    symbols = called.symbols()
    operands = [*symbols, *own.values(), *called.inputs]
    branches: list[ir.Subgraph] = []
    tests = []
    for tuning, segments in cases:
        size = tuning.size
        if own and tuning.table is not None:  # the model's
            size = called.size_of(tuning.table.dim)
        tests.append(_tests(segments, size, first=len(branches)))
        branches += [
            _known_branch(s.value, symbols, own, operands, tuning) for s in segments
        ]
    test = tests.pop()
    for (tuning, _), inner in zip(reversed(cases[:-1]), reversed(tests)):
        assert tuning.otherwise is not None
        test = distance(tuning.otherwise.equal), 1, inner, test
    made = called.without_written(outputs)
    written = called.written_inputs
    dispatch = SizeDispatch(test, branches, operands, made, written, own)
    return called.with_written(map(ir.TensorBox.create, dispatch.outputs))


def _tests(
    segments: Sequence[Segment[TracedCandidate]], size: sympy.Expr | None, first: int
) -> SizeTests:
    """
    What finds the branch of a size.

    Args:
        size: symbolic; None where none is dispatched on.
        first: the index of the branch of the first segment.
    """
    if size is None:
        return first
    starts = [int(s.sizes.start) for s in segments[1:]]
    return size_tests(size, starts, first)


def _known_branch(
    winner: TracedCandidate,
    symbols: Sequence[sympy.Symbol],
    own: Mapping[sympy.Symbol, sympy.Expr],
    operands: Sequence[Any],
    tuning: Tuning,
) -> ir.Subgraph:
    """The branch of an equal call site where it becomes a function, else a new one."""
    site, outputs, known = tuning.site, tuning.outputs, tuning.source.branches
    if V.graph.cpp_wrapper or V.graph.aot_mode:  # written in place
        return _branch(winner, symbols, own, operands, site, outputs)
    unaligned = [is_unaligned(operand) for operand in operands]
    patches = sorted(_config_of_kernels(winner).items())
    how = str(patches), winner.known, tuple(winner.hints.items()), tuple(own)
    key = id(V.graph), id(winner.graph), tuple(unaligned), *how
    if key not in known:
        # With the graph, for that its id is no other's.
        branch = _branch(winner, symbols, own, operands, site, outputs)
        known[key] = winner.graph, branch
    return known[key][1]


def _branch(
    winner: TracedCandidate,
    symbols: Sequence[sympy.Symbol],
    own: Mapping[sympy.Symbol, sympy.Expr],
    operands: Sequence[Any],
    site: CallSite,
    outputs: Outputs,
) -> ir.Subgraph:
    """
    The winner's graph, lowered as what runs in its range of sizes.

    Args:
        symbols: of the model, in sizes.
        own: more symbols, with what they are in the model's.
        operands: both of these, and the site's inputs.
    """
    patches = winner.candidate.config_patches
    name = f"size_branch_{next(_branch_numbers)}"
    gm, fakes = _with_symbols(winner.lowered, [*symbols, *own], site)
    made = site.without_written(outputs.tensors)
    known, hints = winner.known, winner.hints
    branch = lower_branch(gm, name, operands, fakes, made, patches, known, hints, own)
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
