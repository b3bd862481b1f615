"""
Each candidate of a call site as one symbolic graph, or the reason why it has none.

The op's own fake kernel is the contract: number, shape, dtype and device of the outputs
must be provably equal to it, and so must results that are no tensors, which no graph
returns; strides may differ and are brought to the op's on lowering.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import textwrap
from typing import Any, TYPE_CHECKING, TypeVar

from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import (
    _ShapeEnvGuardError,
    GuardOnDataDependentSymNode,
)
from torch.utils import _pytree as pytree

import torch

from ...virtualized import V
from ..candidate_indices import FALLBACK, PLAIN_NAME
from ..errors import CandidateError, one_line
from ..graphs.symbolic_graphs import trace_subgraph
from ..graphs.write_ops import put_writes_last
from ..limits import call_within
from ..neighbours.apart import keep_apart, register_lowering_of_boundary
from ..ops.candidate_calls import call_as_op, call_of_candidate, plain_body
from ..ops.op_bodies import decompositions_without
from ..registering.signatures import tensors_in
from ..registration import Candidate
from ..settings import time_limit_s
from ..sizes.guards import refused_question, without_optional_guards
from ..sizes.known_sizes import knowing
from ..sizes.narrowed_sizes import no_answer_kept
from .contract import (
    check_graph,
    check_layouts_read,
    check_outputs,
    check_values_fit,
    copy_returned_inputs,
    Outputs,
    pin_strides,
    refusing_writes_to,
    with_own_memory,
)
from .eager_strides import with_eager_strides
from .passes import is_other_form, optimized
from .traced_candidates import NAMESPACES_OF_TORCH, Rejection, TracedCandidate


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import sympy

    from ..call_site import CallSite
    from ..ops.candidate_calls import OpCall
    from ..sizes.known_sizes import KnownSize

log = logging.getLogger("torch._inductor.kernel.custom_op")

T = TypeVar("T")

_LONGEST_CONDITION = 200  # letters, in a warning


def trace_fallback(site: CallSite) -> tuple[TracedCandidate, Outputs]:
    """
    The op itself as a candidate, and the contract that the others must keep.

    Raises:
        CandidateError: if the op's own fake kernel does not give one.
    """
    results: list[Any] = []
    nestings: list[pytree.TreeSpec] = []
    of_ops: dict[int, tuple[Any, ...]] = {}

    def call_op(number: int, values: dict[str, Any]) -> Any:
        called = site.calls[number]
        given = with_eager_strides(called, values)
        result = call_as_op(called.op, called.op, given)
        of_ops[number] = tuple(pytree.tree_leaves(result))
        return result

    def call(*leaves: Any) -> list[Any]:
        ops = [functools.partial(call_op, i) for i in range(len(site.calls))]
        flat, nesting = pytree.tree_flatten(site.run(leaves, *ops))
        results[:] = flat
        nestings.append(nesting)
        return tensors_in(flat)

    eager = {call.op for call in site.calls}
    try:
        graph, _ = _with_few_guards(None, lambda: _trace(call, site, eager))
    except _ShapeEnvGuardError as e:
        raise CandidateError(f"it guards on a size itself: {e}") from e
    contracts = [of_ops[i] for i in range(len(site.calls))]
    outputs = Outputs.from_call(results, nestings[-1], contracts)
    return TracedCandidate(FALLBACK, graph), outputs


def trace_candidate(
    candidate: Candidate,
    site: CallSite,
    outputs: Outputs,
    known: KnownSize | None = None,
    apart: bool = False,
) -> TracedCandidate | Rejection:
    """
    The candidate's graph, or why there is none that keeps the contract.

    Args:
        known: what its ranges say of the size.
        apart: whether the neighbours get kernels of their own.
    """
    limit_s = time_limit_s()
    try:
        parts = candidate.parts or (candidate,)
        calls = [call_of_candidate(part, call) for part, call in zip(parts, site.calls)]
        eager = {c.op for part, c in zip(parts, site.calls) if part.impl is None}
        graphs = functools.partial(
            _candidate_graphs, calls, site, outputs, eager, apart
        )
        return _traced(candidate, graphs, known, limit_s)
    except _ShapeEnvGuardError as e:
        counters["inductor"]["custom_op_decomp_guard_skips"] += 1
        condition = textwrap.shorten(str(e).partition(": ")[2], _LONGEST_CONDITION)
        of_torch = site.op.namespace in NAMESPACES_OF_TORCH
        place = "the model" if of_torch else "the op's fake kernel"
        in_range = "" if known else "; if in a range, let it compete there only"
        return Rejection(
            f"it guards on a size, {condition}. If that holds for all calls of the op, "
            f"say so with torch._check in {place}{in_range}",
            guards=True,
            question=refused_question(e),
        )
    except (DataDependentOutputException, DynamicOutputShapeException) as e:
        return Rejection(f"it depends on data, through {e.func}")
    except GuardOnDataDependentSymNode as e:
        return Rejection(one_line(e), question=refused_question(e))
    except Exception as e:
        return Rejection(one_line(e))


def trace_plain(
    site: CallSite, outputs: Outputs, known: KnownSize | None
) -> TracedCandidate | None:
    """
    What the op is lowered to where nothing is registered, or would be if Inductor could
    look into it: its decomposition, its lowering, or the body of a custom op.

    Args:
        known: of the size that is dispatched on.

    Returns:
        None if there is no such thing. Of several calls, those that have none, or one that
        guards, are eager.
    """
    bodies = [plain_body(c.op, outputs.device) for c in site.calls]
    plain = _trace_bodies(bodies, site, outputs, known)
    if plain or sum(body is not None for body in bodies) < 2:
        return plain

    def alone(call: int) -> list[Callable[..., Any] | None]:
        return [body if i == call else None for i, body in enumerate(bodies)]

    left = [
        body if _trace_bodies(alone(i), site, outputs, known) else None
        for i, body in enumerate(bodies)
    ]
    return _trace_bodies(left, site, outputs, known)


def _trace_bodies(
    bodies: Sequence[Callable[..., Any] | None],
    site: CallSite,
    outputs: Outputs,
    known: KnownSize | None,
) -> TracedCandidate | None:
    """
    Bodies in the places of calls; None if they cannot be traced.

    Args:
        bodies: one for each of the site's calls; calls without one are eager.
        known: see ``trace_plain``.
    """
    if not any(bodies):
        return None
    calls = [
        functools.partial(call_as_op, body, call.op)
        if body
        else call_of_candidate(FALLBACK, call)
        for body, call in zip(bodies, site.calls)
    ]
    eager = {call.op for body, call in zip(bodies, site.calls) if not body}
    parts = tuple(Candidate(PLAIN_NAME, body) if body else FALLBACK for body in bodies)
    candidate = Candidate(PLAIN_NAME, bodies[0], parts=parts if len(parts) > 1 else ())
    graphs = functools.partial(_candidate_graphs, calls, site, outputs, eager)
    limit_s = time_limit_s()
    try:
        return _traced(candidate, graphs, known, limit_s)
    except Exception as e:
        log.debug("%s has no plain lowering: %s", site.op, one_line(e))
        return None


def at_site(
    traced: TracedCandidate,
    site: CallSite,
    size: sympy.Expr | None,
    symbols: Mapping[sympy.Symbol, sympy.Symbol],
) -> TracedCandidate:
    """
    A candidate's graph at the sizes of an equal call site, whose symbols are others.

    Args:
        size: the dispatch dimension there.
        symbols: those there, by those of the call site that it is traced for.

    Raises:
        Whatever tracing the graph raises, a guard on a size for one.
    """
    old = traced.graph.graph
    eager = {node.target for node in old.nodes if node.meta.get("should_fallback")}
    known = traced.known and dataclasses.replace(traced.known, size=size)
    hints = {symbols.get(s, s): value for s, value in traced.hints.items()}
    made_for = traced.made_for and dataclasses.replace(traced.made_for, values=hints)
    with _assuming(known, traced.optional_guards):
        graph = trace_subgraph(traced.graph, site.fake_inputs(), {})
    _call_eagerly(graph, eager)
    return TracedCandidate(
        traced.candidate,
        graph,
        known=known,
        optional_guards=traced.optional_guards,
        made_for=made_for,
    )


def _traced(
    candidate: Candidate,
    graphs: Callable[[], tuple[torch.fx.GraphModule, torch.fx.GraphModule | None]],
    known: KnownSize | None,
    limit_s: float | None,
) -> TracedCandidate:
    """
    A candidate with its graphs, of which the one as written may be missing.

    Args:
        graphs: traces it, as ``_candidate_graphs`` does.
        known: of the size that is dispatched on.
        limit_s: for each of the two times that it may be traced.

    Raises:
        What tracing raises.
    """
    (graph, as_written), optional_guards = _with_few_guards(
        known, lambda: call_within(limit_s, "tracing it", graphs)
    )
    return TracedCandidate(
        candidate, graph, as_written, known=known, optional_guards=optional_guards
    )


def _with_few_guards(known: KnownSize | None, trace: Callable[[], T]) -> tuple[T, bool]:
    """
    What is traced, and whether with optional guards: without, if one of these is refused.

    Those are on what torch has a way for that it may not hold, such as whether ``x[1:]`` is
    one row. That way may compute something that is slower.

    Args:
        known: of the size that is dispatched on.

    Raises:
        What tracing raises; of two guards that are refused the one that torch needs.
    """
    try:
        with _assuming(known, optional_guards=True):
            return trace(), True
    except _ShapeEnvGuardError as e:
        question = refused_question(e)
        if question is None or not question.is_optional:
            raise
        try:
            with _assuming(known, optional_guards=False):
                return trace(), False
        except _ShapeEnvGuardError:
            raise
        except Exception:
            raise e from None


@contextlib.contextmanager
def _assuming(known: KnownSize | None, optional_guards: bool) -> Iterator[None]:
    """What goes for a trace, see ``_with_few_guards``."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(knowing(known))
        if not optional_guards:
            stack.enter_context(without_optional_guards())
            stack.enter_context(no_answer_kept(V.graph.sizevars.shape_env))
        yield


def _candidate_graphs(
    call_impls: Sequence[OpCall],
    site: CallSite,
    outputs: Outputs,
    eager: Collection[torch._ops.OpOverload],
    apart: bool = False,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule | None]:
    """
    A candidate's graph, and the same as it is written where that is another form of it.

    Args:
        call_impls: for each of the site's calls.
        eager: see ``_trace``.
        apart: see ``trace_candidate``.
    """

    def checked(call_impl: OpCall, of: CallSite, contract: Sequence[Any]) -> OpCall:
        def call_op(values: dict[str, Any]) -> Any:
            given = with_eager_strides(of, values)
            given = _all_apart(given) if apart else given
            with refusing_writes_to(given):
                flat, nesting = pytree.tree_flatten(call_impl(given))
            check_outputs(flat, contract)
            if _returns_one_tensor(of.op):  # its only output in a tuple, for one
                nesting = pytree.tree_structure(flat[0])
            own = with_own_memory(flat, pytree.tree_leaves(given))
            result = pytree.tree_unflatten(own, nesting)
            return _all_apart(result) if apart else result

        return call_op

    def call(*leaves: Any) -> list[Any]:
        ops = map(checked, call_impls, site.calls, outputs.of_ops)
        return tensors_in(site.run(leaves, *ops))

    traced = _trace(call, site, eager)
    check_values_fit(traced)
    graph = optimized(traced)
    as_written = traced if is_other_form(traced, graph) else None
    for form in (graph, as_written):
        if form is not None:
            copy_returned_inputs(form.graph)
            put_writes_last(form.graph)
            check_graph(form)
            check_layouts_read(form, alone=site.body is None)
            pin_strides(form, outputs)
    return graph, as_written


def _returns_one_tensor(op: torch._ops.OpOverload) -> bool:
    returned = [result.type for result in op._schema.returns]
    return len(returned) == 1 and isinstance(returned[0], torch.TensorType)


def _all_apart(values: Any) -> Any:
    register_lowering_of_boundary()
    return pytree.tree_map_only(torch.Tensor, keep_apart, values)


def _trace(
    fn: Any, site: CallSite, eager: Collection[torch._ops.OpOverload]
) -> torch.fx.GraphModule:
    """
    The graph of a function of the call site's inputs.

    Args:
        eager: ops that stay one node each and are called eagerly, whatever
            decompositions and lowerings there are for them.
    """
    counters["inductor"]["custom_op_candidate_traces"] += 1
    table = decompositions_without(eager)
    graph = trace_subgraph(fn, site.fake_inputs(), table)
    _call_eagerly(graph, eager)
    return graph


def _call_eagerly(graph: torch.fx.GraphModule, targets: Collection[Any]) -> None:
    for target in targets:
        for node in graph.graph.find_nodes(op="call_function", target=target):
            node.meta["should_fallback"] = True
