"""
Each candidate of a call site as one symbolic graph, or the reason why it has none.

The op's own fake kernel is the contract: number, shape, dtype and device of the outputs
must be provably equal to it; strides may differ and are brought to the op's on lowering.
"""

from __future__ import annotations

import dataclasses
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters
from torch.fx.experimental.symbolic_shapes import (
    _ShapeEnvGuardError,
    statically_known_true,
)
from torch.utils import _pytree as pytree

import torch

from ..codegen.subgraph import trace_subgraph
from .registration import Candidate
from .signatures import bind


if TYPE_CHECKING:
    from collections.abc import Sequence

    from .call_site import CallSite

# The op itself, called eagerly: the last resort of every call site.
FALLBACK = Candidate("fallback", None)


class CandidateError(Exception):
    """A candidate cannot compete; says why."""


@dataclasses.dataclass(frozen=True)
class Outputs:
    """What the op returns: fake tensors with symbolic sizes, and how they are nested."""

    tensors: tuple[torch.Tensor, ...]
    spec: pytree.TreeSpec


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
    spec: list[pytree.TreeSpec] = []

    def call(*leaves: Any) -> list[Any]:
        flat, nesting = pytree.tree_flatten(_call_op(site, site.filled(leaves)))
        spec.append(nesting)
        return flat

    graph = _trace(call, site, keep_op=True)
    tensors = tuple(_output_values(graph))
    for value in tensors:
        if not isinstance(value, torch.Tensor):
            raise CandidateError(f"it returns a {type(value).__name__}, not a tensor")
    return TracedCandidate(FALLBACK, graph), Outputs(tensors, spec[-1])


def trace_candidate(
    candidate: Candidate, site: CallSite, outputs: Outputs
) -> TracedCandidate | Rejection:
    """The candidate's graph; a Rejection if it has none or breaks the contract."""
    try:
        graph = _candidate_graph(candidate, site)
        _check_outputs(graph, outputs)
        _pin_strides(graph, outputs)
    except _ShapeEnvGuardError as e:
        counters["inductor"]["custom_op_decomp_guard_skips"] += 1
        condition = str(e).partition(": ")[2]
        return Rejection(
            candidate,
            f"it guards on a size, {condition}. If that always holds, say so with "
            "torch._check in the op's fake kernel",
        )
    except Exception as e:
        return Rejection(candidate, one_line(e))
    return TracedCandidate(candidate, graph)


def one_line(error: BaseException) -> str:
    """An exception for a warning."""
    first = (str(error).strip() or repr(error)).splitlines()[0]
    if isinstance(error, CandidateError):
        return first
    return f"{type(error).__name__}: {first}"


def _candidate_graph(candidate: Candidate, site: CallSite) -> torch.fx.GraphModule:
    impl = candidate.impl

    def call(*leaves: Any) -> list[Any]:
        values = site.filled(leaves)
        if impl is None:
            return pytree.tree_leaves(_call_op(site, {**values, **candidate.params}))
        args, kwargs = bind(site.op, impl, values, site.tensor_names, candidate.params)
        return _with_own_memory(pytree.tree_leaves(impl(*args, **kwargs)))

    return _trace(call, site, keep_op=impl is None)


def _with_own_memory(results: list[Any]) -> list[Any]:
    """Copies outputs that share memory with an earlier one or start inside theirs."""
    seen: set[int] = set()
    owned = []
    for result in results:
        if not isinstance(result, torch.Tensor):
            owned.append(result)
            continue
        at_start = statically_known_true(result.storage_offset() == 0)
        apart = _storage(result) not in seen
        owned.append(result if apart and at_start else result.clone())
        seen.add(_storage(owned[-1]))
    return owned


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


def output_nodes(graph: torch.fx.GraphModule) -> Sequence[Any]:
    """What a candidate\'s graph returns."""
    (results,) = graph.graph.find_nodes(op="output")[0].args
    return results


def _output_values(graph: torch.fx.GraphModule) -> list[Any]:
    return [
        node.meta["val"] if isinstance(node, torch.fx.Node) else node
        for node in output_nodes(graph)
    ]


def _check_outputs(graph: torch.fx.GraphModule, outputs: Outputs) -> None:
    values = _output_values(graph)
    if len(values) != len(outputs.tensors):
        raise CandidateError(
            f"it returns {len(values)} outputs, the op {len(outputs.tensors)}"
        )
    for i, (value, expected) in enumerate(zip(values, outputs.tensors)):
        _check_output(i, value, expected)
    _check_no_alias(graph)
    _check_no_writes(graph)


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
    if value.dim() != expected.dim() or not all(
        statically_known_true(a == b) for a, b in zip(value.shape, expected.shape)
    ):
        raise CandidateError(
            f"output {index} has shape {list(value.shape)}, the op's has "
            f"{list(expected.shape)}"
        )


def _check_no_alias(graph: torch.fx.GraphModule) -> None:
    """An op returns tensors of its own: callers may write to them."""
    inputs = [node.meta["val"] for node in graph.graph.find_nodes(op="placeholder")]
    taken = {_storage(value) for value in inputs if isinstance(value, torch.Tensor)}
    for i, value in enumerate(_output_values(graph)):
        if _storage(value) in taken:
            raise CandidateError(f"output {i} shares memory with an input")


def _check_no_writes(graph: torch.fx.GraphModule) -> None:
    for node in graph.graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and target._schema.is_mutable:
            raise CandidateError(f"it writes to an argument with {target}")
