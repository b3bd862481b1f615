"""
Each candidate of a call site as one symbolic graph, or the reason why it has none.

The op's own fake kernel is the contract: number, shape, dtype and device of the outputs
must be provably equal to it; strides may differ and are brought to the op's on lowering.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError
from torch.utils import _pytree as pytree

import torch

from ..codegen.subgraph import trace_subgraph, writes
from ..utils import convert_shape_to_inductor
from ..virtualized import V
from .registration import Candidate
from .signatures import bind


if TYPE_CHECKING:
    from collections.abc import Sequence

    from .call_site import CallSite

# The op itself, called eagerly: the last resort of every call site.
FALLBACK = Candidate("fallback", None)
# Its place among the indices of a contest's candidates.
FALLBACK_INDEX = -1
# Their ops are lowered to generated code or to calls that cost little on the host.
_NAMESPACES_OF_TORCH = ("aten", "prims", "inductor", "_c10d_functional", "triton")


class CandidateError(Exception):
    """A candidate cannot compete; says why."""


@dataclasses.dataclass(frozen=True)
class Outputs:
    """
    What a call site returns: fake tensors with symbolic sizes.

    Args:
        tensors: what its graph returns, flat.
        spec: how they are nested.
        of_op: what the op itself returns, flat; the contract of every candidate.
    """

    tensors: tuple[torch.Tensor, ...]
    spec: pytree.TreeSpec
    of_op: tuple[torch.Tensor, ...]


@dataclasses.dataclass(frozen=True)
class TracedCandidate:
    """
    A candidate that may compete.

    Args:
        graph: takes the call site's inputs, returns a flat list of tensors.
    """

    candidate: Candidate
    graph: torch.fx.GraphModule

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.name

    @property
    def calls_python(self) -> bool:
        """Whether it calls a custom op eagerly, the op itself for one."""
        return any(
            node.meta.get("should_fallback")
            or (
                isinstance(node.target, torch._ops.OpOverload)
                and node.target.namespace not in _NAMESPACES_OF_TORCH
            )
            for node in self.graph.graph.nodes
        )


@dataclasses.dataclass(frozen=True)
class Rejection:
    """A candidate that is out, and why."""

    candidate: Candidate
    reason: str


def trace_fallback(site: CallSite) -> tuple[TracedCandidate, Outputs]:
    """
    The op itself as a candidate, and the contract that the others must keep.

    Raises:
        CandidateError: if the op's own fake kernel does not give one.
    """
    nestings: list[pytree.TreeSpec] = []
    of_op: list[Any] = []

    def call_op(values: dict[str, Any]) -> Any:
        result = _call_op(site, values)
        of_op[:] = pytree.tree_leaves(result)
        return result

    def call(*leaves: Any) -> list[Any]:
        flat, nesting = pytree.tree_flatten(site.run(leaves, call_op))
        nestings.append(nesting)
        return flat

    try:
        graph = _trace(call, site, keep_op=True)
    except _ShapeEnvGuardError as e:
        raise CandidateError(f"it guards on a size itself: {e}") from e
    tensors = tuple(_output_values(graph))
    for value in (*of_op, *tensors):
        if not isinstance(value, torch.Tensor):
            raise CandidateError(f"it returns a {type(value).__name__}, not a tensor")
    outputs = Outputs(tensors, nestings[-1], tuple(of_op))
    return TracedCandidate(FALLBACK, graph), outputs


def trace_candidate(
    candidate: Candidate, site: CallSite, outputs: Outputs
) -> TracedCandidate | Rejection:
    """The candidate's graph; a Rejection if it has none or breaks the contract."""
    try:
        graph = _candidate_graph(candidate, site, outputs)
        _check_no_writes(graph)
        _pin_strides(graph, outputs)
    except _ShapeEnvGuardError as e:
        counters["inductor"]["custom_op_decomp_guard_skips"] += 1
        condition = str(e).partition(": ")[2]
        return Rejection(
            candidate,
            f"it guards on a size, {condition}. If that always holds, say so with "
            "torch._check in the op's fake kernel",
        )
    except (DataDependentOutputException, DynamicOutputShapeException) as e:
        return Rejection(candidate, f"it depends on data, through {e.func}")
    except Exception as e:
        return Rejection(candidate, one_line(e))
    return TracedCandidate(candidate, graph)


def one_line(error: BaseException) -> str:
    """An exception for a warning."""
    first, kind = str(error).strip().partition("\n")[0], type(error).__name__
    if not first:
        return kind
    return first if isinstance(error, CandidateError) else f"{kind}: {first}"


def _candidate_graph(
    candidate: Candidate, site: CallSite, outputs: Outputs
) -> torch.fx.GraphModule:
    impl = candidate.impl

    def call_op(values: dict[str, Any]) -> Any:
        if impl is None:
            result = _call_op(site, {**values, **candidate.params})
        else:
            args, kwargs = bind(
                site.op, impl, values, site.tensor_names, candidate.params
            )
            result = impl(*args, **kwargs)
        flat, nesting = pytree.tree_flatten(result)
        _check_outputs(flat, outputs.of_op, pytree.tree_leaves(values))
        return pytree.tree_unflatten(_with_own_memory(flat), nesting)

    def call(*leaves: Any) -> list[Any]:
        return pytree.tree_leaves(site.run(leaves, call_op))

    return _trace(call, site, keep_op=impl is None)


def _with_own_memory(results: list[Any]) -> list[Any]:
    """Copies outputs that share memory with an earlier one or start inside theirs."""
    seen: set[int] = set()
    owned = []
    for result in results:
        if not isinstance(result, torch.Tensor):
            owned.append(result)
            continue
        at_start = _known_equal([result.storage_offset()], [0])
        apart = _storage(result) not in seen
        owned.append(result if apart and at_start else result.clone())
        seen.add(_storage(owned[-1]))
    return owned


def _known_equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether sizes are provably equal; asked of their expressions, which no tracer sees."""
    return len(a) == len(b) and all(
        V.graph.sizevars.statically_known_equals(x, y)
        for x, y in zip(convert_shape_to_inductor(a), convert_shape_to_inductor(b))
    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _call_op(site: CallSite, values: dict[str, Any]) -> Any:
    schema = site.op._schema.arguments
    args = [values[a.name] for a in schema if not a.kwarg_only]
    kwargs = {a.name: values[a.name] for a in schema if a.kwarg_only}
    return site.op(*args, **kwargs)


def _trace(fn: Any, site: CallSite, keep_op: bool) -> torch.fx.GraphModule:
    """
    Args:
        keep_op: the op stays one node that is called eagerly, whatever decompositions
            and lowerings there are for it.
    """
    from ..decomposition import select_decomp_table

    counters["inductor"]["custom_op_candidate_traces"] += 1
    table = dict(select_decomp_table())
    if keep_op:
        table.pop(site.op, None)
    graph = trace_subgraph(fn, site.fake_inputs(), table)
    if keep_op:
        for node in graph.graph.find_nodes(op="call_function", target=site.op):
            node.meta["should_fallback"] = True
    return graph


def _output_values(graph: torch.fx.GraphModule) -> list[Any]:
    results: Any = graph.graph.output_node().args[0]
    return [
        node.meta["val"] if isinstance(node, torch.fx.Node) else node
        for node in results
    ]


def _check_outputs(
    values: Sequence[Any], expected: Sequence[torch.Tensor], inputs: Sequence[Any]
) -> None:
    """
    Raises CandidateError unless fake ``values`` are as the op's own.

    Args:
        inputs: what the implementation was given; callers may write to what an op
            returns, so that it must have memory of its own.
    """
    if len(values) != len(expected):
        raise CandidateError(
            f"it returns {len(values)} outputs, the op {len(expected)}"
        )
    taken = {_storage(x) for x in inputs if isinstance(x, torch.Tensor)}
    for i, (value, wanted) in enumerate(zip(values, expected)):
        _check_output(i, value, wanted)
        if _storage(value) in taken:
            raise CandidateError(f"output {i} shares memory with an input")


def _pin_strides(graph: torch.fx.GraphModule, outputs: Outputs) -> None:
    """Compiled by itself, the graph returns the op's strides, as it must where it wins."""
    meta = graph.graph.find_nodes(op="output")[0].meta
    meta["user_visible_output_idxs"] = list(range(len(outputs.tensors)))
    meta["original_output_strides"] = [t.stride() for t in outputs.tensors]


def _check_output(index: int, value: Any, expected: torch.Tensor) -> None:
    if not isinstance(value, torch.Tensor):
        raise CandidateError(f"output {index} is {value!r}, not a tensor")
    for what in ("dtype", "device"):
        got, wanted = getattr(value, what), getattr(expected, what)
        if got != wanted:
            raise CandidateError(
                f"output {index} has {what} {got}, the op's has {wanted}"
            )
    if not _known_equal(value.shape, expected.shape):
        raise CandidateError(
            f"output {index} has shape {list(value.shape)}, the op's has "
            f"{list(expected.shape)}"
        )


def _check_no_writes(graph: torch.fx.GraphModule) -> None:
    """What is still written after functionalization must be the graph's own."""
    inputs = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    taken = {_storage(value) for value in inputs if isinstance(value, torch.Tensor)}
    for node in graph.graph.nodes:
        if not writes(node):
            continue
        given = [argument.meta["val"] for argument in node.all_input_nodes]
        if any(_storage(x) in taken for x in given if isinstance(x, torch.Tensor)):
            raise CandidateError(f"it writes to an argument with {node.target}")
