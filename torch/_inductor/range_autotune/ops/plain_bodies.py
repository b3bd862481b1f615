"""
What ops' bodies and implementations are made of, for passes that fuse a call with its
neighbours.

Inductor leaves a sum of a product and another tensor to the GEMM, unless all that reads it
is pointwise work and can compute the sum itself. A registered op reads it by its
candidates: as pointwise work if its body does, which competes as plain lowering. And
reductions of what it returns are one kernel with a candidate that is generated code.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import weakref
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch

from ... import config
from ...utils import is_pointwise_use
from ...utils import is_view as is_view_op
from ...virtualized import V
from ..errors import one_line
from ..graphs.node_kinds import has_generated_code
from ..graphs.symbolic_graphs import trace_subgraph
from ..limits import call_within
from ..registering.signatures import all_arguments
from ..registry import registration_of
from ..settings import fusion_types, time_limit_s
from .candidate_calls import call_as_op, call_implementation, plain_body


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch._subclasses.fake_tensor import FakeTensorMode

    from ..registration import Candidate

log = logging.getLogger("torch._inductor.kernel.custom_op")


@dataclasses.dataclass(frozen=True)
class _Body:
    """
    What is known of an op's body or of an implementation.

    Args:
        reads: for each tensor among the op's arguments, whether a read of it is pointwise
            work.
        is_generated: whether Inductor generates all of its code.
    """

    reads: Mapping[int, Sequence[bool]]
    is_generated: bool


_UNKNOWN = _Body({}, False)
# By compilation, whose symbols decide what guards: by body or implementation, op, tuning
# parameters and arguments.
_known: weakref.WeakKeyDictionary[FakeTensorMode, dict[Any, _Body]] = (
    weakref.WeakKeyDictionary()
)


def is_pointwise_read(use: torch.fx.Node, value: torch.fx.Node) -> bool:
    """
    Whether a node is a call of a registered op whose body reads a value by pointwise work
    only, or a view of it that only such calls and pointwise nodes read.

    Args:
        use: one of the value's users, with fake values in the metadata.
    """
    target = use.target
    if not isinstance(target, torch._ops.OpOverload) or not _joins_calls():
        return False
    if is_view_op(target):
        return bool(use.users) and all(
            is_pointwise_use(user) or is_pointwise_read(user, use) for user in use.users
        )
    if registration_of(target) is None:
        return False
    leaves = pytree.tree_leaves((use.args, use.kwargs))
    body = _body_of(use)
    reads = [
        is_pointwise
        for i, leaf in enumerate(leaves)
        if leaf is value
        for is_pointwise in body.reads.get(i, ())
    ]
    return bool(reads) and all(reads)


def are_generated(calls: Iterable[torch.fx.Node]) -> bool:
    """
    Whether Inductor generates all code of each op's body or of an implementation of it, so
    that more may be one kernel with that.
    """
    return all(map(_is_generated, calls))


def _is_generated(call: torch.fx.Node) -> bool:
    return _body_of(call).is_generated or any(
        _implementation_of(call, candidate).is_generated
        for candidate in _candidates_of(call)
    )


def _joins_calls() -> bool:
    """Whether what computes the value would join the call's region."""
    return config.enable_custom_op_fusion and "prologue" in fusion_types()


def _body_of(call: torch.fx.Node) -> _Body:
    tensors = [x for x in _fakes_of(call) if isinstance(x, torch.Tensor)]
    op = _op_of(call)
    body = plain_body(op, tensors[0].device) if tensors else None
    if body is None:
        return _UNKNOWN

    def run(*args: Any, **kwargs: Any) -> Any:
        return call_as_op(body, op, all_arguments(op, args, kwargs))

    return _look_into(body, run, call, {})


def _op_of(call: torch.fx.Node) -> torch._ops.OpOverload:
    assert isinstance(call.target, torch._ops.OpOverload)
    return call.target


def _fakes_of(call: torch.fx.Node) -> list[Any]:
    return [node.meta.get("val") for node in call.all_input_nodes]


def _candidates_of(call: torch.fx.Node) -> Sequence[Candidate]:
    """Those that are known before they are generated for a call."""
    registration = registration_of(call.target)
    contest = None if registration is None else registration.contest
    return () if contest is None else contest.candidates


def _implementation_of(call: torch.fx.Node, candidate: Candidate) -> _Body:
    op, impl = _op_of(call), candidate.impl

    def run(*args: Any, **kwargs: Any) -> Any:
        values = all_arguments(op, args, kwargs)
        tensor_names = frozenset(n for n, value in values.items() if _has_tensor(value))
        return call_implementation(candidate, op, values, tensor_names)

    return _UNKNOWN if impl is None else _look_into(impl, run, call, candidate.params)


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(value))


def _look_into(
    source: Callable[..., Any],
    run: Callable[..., Any],
    call: torch.fx.Node,
    params: Mapping[str, Any],
) -> _Body:
    """
    What a function computes, given what an op is called with.

    Args:
        source: what the user wrote, which is looked into once.
        run: calls it with the op's arguments.
        params: tuning parameters that ``run`` adds.
    """
    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    known = _known.setdefault(V.fake_mode, {})
    key = (source, call.target, repr(params), str(spec), tuple(map(_kind, leaves)))
    try:
        body = known.get(key)
    except TypeError:  # not hashable
        return _UNKNOWN
    if body is None:
        body = known[key] = _trace(run, leaves, spec)
    return body


def _kind(leaf: Any) -> Any:
    """What an op's body may look at in an argument."""
    if not isinstance(leaf, torch.fx.Node):
        return repr(leaf)
    value = leaf.meta["val"]
    if not isinstance(value, torch.Tensor):
        return type(value)
    return value.dtype, value.device, str((value.shape, value.stride()))


def _trace(
    run: Callable[..., Any], leaves: Sequence[Any], spec: pytree.TreeSpec
) -> _Body:
    """
    What a body does with its arguments, traced.

    Args:
        leaves: of a call's arguments, flat.
    """
    fakes = {
        i: leaf.meta["val"]
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.fx.Node)
    }

    def call(*values: Any) -> Any:
        given = dict(zip(fakes, values))
        filled = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return run(*args, **kwargs)

    try:
        graph = call_within(
            time_limit_s(),
            "tracing it",
            trace_subgraph,
            call,
            [*fakes.values()],
        ).graph
    except Exception as e:
        log.debug("%s is not traced: %s", run, one_line(e))
        return _UNKNOWN
    placeholders = graph.find_nodes(op="placeholder")
    reads = {
        i: [*map(is_pointwise_use, placeholder.users)]
        for i, placeholder in zip(fakes, placeholders)
    }
    called = [node for node in graph.nodes if node.op == "call_function"]
    return _Body(reads, all(map(_has_generated_code, called)))


def _has_generated_code(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem or has_generated_code(node)
