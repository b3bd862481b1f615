"""
Each candidate of a call site as one symbolic graph, or the reason why it has none.

The op's own fake kernel is the contract: number, shape, dtype and device of the outputs
must be provably equal to it; strides may differ and are brought to the op's on lowering.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
import os
import traceback
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters
from torch._library.custom_ops import OPDEFS
from torch._library.triton import triton_ops_to_kernels
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)
from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError
from torch.utils import _pytree as pytree

import torch

from ..codegen.subgraph import trace_subgraph
from ..utils import convert_shape_to_inductor
from ..virtualized import V
from .apart import keep_apart, NAMESPACE, register_lowering_of_boundary
from .body_state import may_read_state
from .cache_key import Unhashable
from .call_site import Inner
from .captures import captured_tensors
from .functional import written
from .graph_text import graph_text, SymbolNames
from .limits import call_within, time_limit_s, TookTooLong
from .node_kinds import memory_of
from .passes import is_other_form, optimized
from .registration import Candidate
from .signatures import bind
from .write_ops import put_writes_last, stands_for_write, WRITE_NAMESPACE


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from .call_site import CallSite
    from .config_ranges import KernelConfigs

    # Called with the op's arguments by name.
    _OpCall = Callable[[dict[str, Any]], Any]

log = logging.getLogger("torch._inductor.kernel.custom_op")

# The op itself, called eagerly: the last resort of every call site.
FALLBACK = Candidate("fallback", None)
# Its place among the indices of a contest's candidates.
FALLBACK_INDEX = -1
# Where that of the op's plain lowering is, which competes without being registered.
PLAIN_INDEX = -2
PLAIN_NAME = "plain lowering"
# From here down are those of variants, one of each kind for each candidate in order.
_FIRST_VARIANT_INDEX = -3
APART = "neighbours apart"
AS_WRITTEN = "as written"
PERSISTENT = "persistent"
AS_WRITTEN_PERSISTENT = f"{AS_WRITTEN}, {PERSISTENT}"
_KINDS = (APART, AS_WRITTEN, PERSISTENT, AS_WRITTEN_PERSISTENT)
# Their ops are lowered to generated code or to calls that cost little on the host.
_NAMESPACES_OF_TORCH = (
    "aten",
    "prims",
    "inductor",
    "_c10d_functional",
    "triton",
    NAMESPACE,
    WRITE_NAMESPACE,
)


def index_of_variant(number: int, kind: str) -> int:
    """The index of a variant of the candidate of that number."""
    return _FIRST_VARIANT_INDEX - len(_KINDS) * number - _KINDS.index(kind)


def kind_of_variant(index: int) -> str | None:
    """Which variant of a candidate has that index; None for candidates themselves."""
    place = _FIRST_VARIANT_INDEX - index
    return _KINDS[place % len(_KINDS)] if place >= 0 else None


class CandidateError(Exception):
    """A candidate cannot compete; says why."""


@dataclasses.dataclass(frozen=True)
class Outputs:
    """
    What a call site returns: fake tensors with symbolic sizes.

    Args:
        tensors: what its graph returns, flat.
        spec: how they are nested.
        of_ops: what each op itself returns, flat; the contract of every candidate.
    """

    tensors: tuple[torch.Tensor, ...]
    spec: pytree.TreeSpec
    of_ops: tuple[tuple[torch.Tensor, ...], ...]


@dataclasses.dataclass(frozen=True)
class TracedCandidate:
    """
    A candidate that may compete.

    Args:
        graph: takes the call site's inputs, returns a flat list of tensors.
        as_written: the same before graph passes, where they have made another form of it
            that may be slower; else None.
        kernel_configs: of its kernels in one part of a range, see ``config_ranges``.
    """

    candidate: Candidate
    graph: torch.fx.GraphModule
    as_written: torch.fx.GraphModule | None = None
    kernel_configs: KernelConfigs = ()

    @property
    def name(self) -> str:
        """The candidate's."""
        return self.candidate.name

    def does_the_same_as(self, other: TracedCandidate) -> bool:
        """Whether both would compile to the same code."""
        text = self.text()
        return text is not None and text == other.text()

    def text(self) -> str | None:
        """
        All that decides what is compiled, the same up to names of nodes and symbols.

        Returns:
            None if something in it has no content that could be compared.
        """
        try:
            graph = graph_text(self.graph.graph, SymbolNames(), self.graph)
        except Unhashable:
            return None
        return f"{graph}\n{sorted(self.candidate.config_patches.items())}"

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
    of_ops: dict[int, tuple[Any, ...]] = {}

    def call_op(number: int, values: dict[str, Any]) -> Any:
        called = site.calls[number]
        result = _call(called.op, called.op, _with_eager_strides(called, values))
        of_ops[number] = tuple(pytree.tree_leaves(result))
        return result

    def call(*leaves: Any) -> list[Any]:
        ops = [functools.partial(call_op, i) for i in range(len(site.calls))]
        flat, nesting = pytree.tree_flatten(site.run(leaves, *ops))
        nestings.append(nesting)
        return flat

    try:
        graph = _trace(call, site, {c.op for c in site.calls})
    except _ShapeEnvGuardError as e:
        raise CandidateError(f"it guards on a size itself: {e}") from e
    tensors = tuple(_output_values(graph))
    for value in (*itertools.chain(*of_ops.values()), *tensors):
        if not isinstance(value, torch.Tensor):
            raise CandidateError(f"it returns a {type(value).__name__}, not a tensor")
    contracts = tuple(of_ops[i] for i in range(len(site.calls)))
    outputs = Outputs(tensors, nestings[-1], contracts)
    return TracedCandidate(FALLBACK, graph), outputs


def trace_candidate(
    candidate: Candidate, site: CallSite, outputs: Outputs, apart: bool = False
) -> TracedCandidate | Rejection:
    """
    The candidate's graph; a Rejection if it has none or breaks the contract.

    Args:
        apart: whether the neighbours get kernels of their own.
    """
    limit_s = time_limit_s()
    try:
        parts = candidate.parts or (candidate,)
        calls = [call_of_candidate(part, call) for part, call in zip(parts, site.calls)]
        eager = {c.op for part, c in zip(parts, site.calls) if part.impl is None}
        graphs = call_within(
            limit_s, "tracing it", _candidate_graphs, calls, site, outputs, eager, apart
        )
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
    return TracedCandidate(candidate, *graphs)


def trace_plain(site: CallSite, outputs: Outputs) -> TracedCandidate | None:
    """
    What the op is lowered to where nothing is registered, or would be if Inductor could
    look into it: its decomposition, its lowering, or the body of a custom op.

    Returns:
        None if there is no such thing.
    """
    bodies = [plain_body(c.op, outputs.tensors[0].device) for c in site.calls]
    calls = [
        functools.partial(_call, body, call.op)
        for body, call in zip(bodies, site.calls)
        if body is not None
    ]
    if len(calls) < len(bodies):
        return None
    try:
        graphs = call_within(
            time_limit_s(), "tracing it", _candidate_graphs, calls, site, outputs
        )
    except Exception as e:
        log.debug("%s has no plain lowering: %s", site.op, one_line(e))
        return None
    return TracedCandidate(Candidate(PLAIN_NAME, bodies[0]), *graphs)


def at_site(traced: TracedCandidate, site: CallSite) -> TracedCandidate:
    """
    A candidate's graph at the sizes of an equal call site, whose symbols are others.

    Raises:
        Whatever tracing the graph raises, a guard on a size for one.
    """
    old = traced.graph.graph
    eager = {node.target for node in old.nodes if node.meta.get("should_fallback")}
    graph = trace_subgraph(traced.graph, site.fake_inputs(), {})
    _call_eagerly(graph, eager)
    return TracedCandidate(traced.candidate, graph)


def plain_body(
    op: torch._ops.OpOverload, device: torch.device
) -> Callable[..., Any] | None:
    """What Inductor could look into to lower an op that nobody registered; None for nothing."""
    from ..decomposition import select_decomp_table
    from ..lowering import fallbacks, lowerings

    custom_op = OPDEFS.get(op._name)
    if custom_op is not None:
        bodies = custom_op._backend_fns
        body = bodies.get(device.type) or bodies.get(None)
        is_looked_into = op._name in triton_ops_to_kernels
        traceable = body and (is_looked_into or not may_read_state(body))
        return body if traceable else None
    if op in select_decomp_table() or (op in lowerings and op not in fallbacks):
        return op
    return None


def one_line(error: BaseException) -> str:
    """An exception for a warning; an assertion that says nothing gets its place."""
    first, kind = str(error).strip().partition("\n")[0].strip(), type(error).__name__
    if not first or first.endswith(":"):
        return f"{kind}: {first}".rstrip(": ") + _place_of_assertion(error)
    says_all = isinstance(error, (CandidateError, TookTooLong))
    return first if says_all else f"{kind}: {first}"


def _place_of_assertion(error: BaseException) -> str:
    """Where the assertion behind an exception is, if that was the first to be raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not isinstance(error, AssertionError):
        return ""
    last = frames[-1]
    return f" in {last.name} ({os.path.basename(last.filename)}:{last.lineno})"


def call_of_candidate(candidate: Candidate, site: CallSite) -> _OpCall:
    """Calls the implementation with what it takes of the op's arguments."""

    def call(values: dict[str, Any]) -> Any:
        if candidate.impl is None:
            return _call(site.op, site.op, {**values, **candidate.params})
        args, kwargs = bind(
            site.op, candidate.impl, values, site.tensor_names, candidate.params
        )
        return candidate.impl(*args, **kwargs)

    return call


def _candidate_graphs(
    call_impls: Sequence[_OpCall],
    site: CallSite,
    outputs: Outputs,
    eager: Collection[torch._ops.OpOverload] = (),
    apart: bool = False,
) -> tuple[torch.fx.GraphModule, torch.fx.GraphModule | None]:
    """
    A candidate's graph, and the same as it is written where that is another form of it.

    Args:
        call_impls: for each of the site's calls.
        eager: see ``_trace``.
        apart: see ``trace_candidate``.
    """

    def checked(
        call_impl: _OpCall, of: CallSite, contract: Sequence[torch.Tensor]
    ) -> _OpCall:
        def call_op(values: dict[str, Any]) -> Any:
            given = _with_eager_strides(of, values)
            given = _all_apart(given) if apart else given
            flat, nesting = pytree.tree_flatten(call_impl(given))
            _check_outputs(flat, contract, pytree.tree_leaves(given))
            if _returns_one_tensor(of.op):  # its only output in a tuple, for one
                nesting = pytree.tree_structure(flat[0])
            result = pytree.tree_unflatten(_with_own_memory(flat), nesting)
            return _all_apart(result) if apart else result

        return call_op

    def call(*leaves: Any) -> list[Any]:
        ops = map(checked, call_impls, site.calls, outputs.of_ops)
        return pytree.tree_leaves(site.run(leaves, *ops))

    written = _trace(call, site, eager)
    graph = optimized(written)
    as_written = written if is_other_form(written, graph) else None
    for form in (graph, as_written):
        if form is not None:
            put_writes_last(form.graph)
            _check_writes_kept(form)
            _check_no_writes(form)
            _check_captures_kept(form)
            _pin_strides(form, outputs)
    return graph, as_written


def _with_eager_strides(call: CallSite, values: dict[str, Any]) -> dict[str, Any]:
    """
    An op's arguments with the strides that they have in eager mode, which its kernel may
    count on, where neighbours compute them from tensors that Inductor has laid out
    otherwise or another op's candidate returns otherwise.
    """

    def strided(place: Any, value: Any) -> Any:
        if not (isinstance(place, Inner) and isinstance(value, torch.Tensor)):
            return value
        strides = place.node.meta["val"].stride()
        return value if _lies_as(value, strides) else _copy_at(value, strides)

    return pytree.tree_map(strided, dict(call.arguments), values)


def _copy_at(value: torch.Tensor, strides: Sequence[Any]) -> torch.Tensor:
    """
    A copy whose elements lie at these strides.

    Of sizes alone if it can be: strides may be products that no tensor of the graph has,
    which is then not known to the tracer.
    """
    order = _order_of_dense(value.shape, strides)
    if order is not None:
        places = [order.index(dim) for dim in range(len(order))]
        dense = value.permute(order).clone(memory_format=torch.contiguous_format)
        return dense.permute(places)
    made = torch.empty_strided(
        value.shape, strides, dtype=value.dtype, device=value.device
    )
    return made.copy_(value)


def _order_of_dense(sizes: Sequence[Any], strides: Sequence[Any]) -> list[int] | None:
    """The dimensions, outermost first, if elements lie next to each other; else None."""
    left = list(range(len(sizes)))
    order: list[int] = []
    while left:
        step = math.prod(convert_shape_to_inductor([sizes[dim] for dim in order]))
        fits = [
            dim
            for dim in left
            if _known_equal([sizes[dim]], [1]) or _known_equal([strides[dim]], [step])
        ]
        if not fits:
            return None
        order.insert(0, fits[0])
        left.remove(fits[0])
    return order


def _lies_as(value: torch.Tensor, strides: Sequence[Any]) -> bool:
    """Whether elements are known to lie at these strides; those of one element have none."""
    return all(
        _known_equal([size], [1]) or _known_equal([stride], [wanted])
        for size, stride, wanted in zip(value.shape, value.stride(), strides)
    )


def _returns_one_tensor(op: torch._ops.OpOverload) -> bool:
    returned = [result.type for result in op._schema.returns]
    return len(returned) == 1 and isinstance(returned[0], torch.TensorType)


def _all_apart(values: Any) -> Any:
    register_lowering_of_boundary()
    return pytree.tree_map_only(torch.Tensor, keep_apart, values)


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


def _call(
    fn: Callable[..., Any], op: torch._ops.OpOverload, values: dict[str, Any]
) -> Any:
    """Calls a function that has the op's own signature."""
    schema = op._schema.arguments
    args = [values[a.name] for a in schema if not a.kwarg_only]
    kwargs = {a.name: values[a.name] for a in schema if a.kwarg_only}
    return fn(*args, **kwargs)


def _trace(
    fn: Any, site: CallSite, eager: Collection[torch._ops.OpOverload]
) -> torch.fx.GraphModule:
    """
    Args:
        eager: ops that stay one node each and are called eagerly, whatever
            decompositions and lowerings there are for them.
    """
    from ..decomposition import select_decomp_table

    counters["inductor"]["custom_op_candidate_traces"] += 1
    table = dict(select_decomp_table())
    for op in eager:
        table.pop(op, None)
    graph = trace_subgraph(fn, site.fake_inputs(), table)
    _call_eagerly(graph, eager)
    return graph


def _call_eagerly(graph: torch.fx.GraphModule, targets: Collection[Any]) -> None:
    for target in targets:
        for node in graph.graph.find_nodes(op="call_function", target=target):
            node.meta["should_fallback"] = True


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


def _check_writes_kept(graph: torch.fx.GraphModule) -> None:
    """What a region writes to is still memory that it is given."""
    for node in graph.graph.nodes:
        if stands_for_write(node) and memory_of(node.args[0]).op != "placeholder":
            raise CandidateError(f"{node.target} would write to a copy")


def _check_captures_kept(graph: torch.fx.GraphModule) -> None:
    """Callers may write to what an op returns."""
    taken = {_storage(node.meta["val"]) for node in captured_tensors(graph)}
    for i, value in enumerate(_output_values(graph)):
        if _storage(value) in taken:
            raise CandidateError(
                f"output {i} shares memory with a tensor that it captures"
            )


def _check_no_writes(graph: torch.fx.GraphModule) -> None:
    """What is still written after functionalization must be the graph's own."""
    given = dict.fromkeys(graph.graph.find_nodes(op="placeholder"), "an argument")
    given |= dict.fromkeys(captured_tensors(graph), "a tensor that it captures")
    taken = {
        _storage(node.meta["val"]): what
        for node, what in given.items()
        if isinstance(node.meta["val"], torch.Tensor)
    }
    for node in graph.graph.nodes:
        for value in [argument.meta.get("val") for argument in written(node)]:
            if isinstance(value, torch.Tensor) and _storage(value) in taken:
                raise CandidateError(
                    f"it writes to {taken[_storage(value)]} with {node.target}"
                )
