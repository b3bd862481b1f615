"""
What ops' own bodies are made of, for passes that fuse a call with its neighbours.

Inductor leaves a sum of a product and another tensor to the GEMM, unless all that reads it
is pointwise work and can compute the sum itself. A registered op reads it by its
candidates: as pointwise work if its body does, which competes as plain lowering. And
reductions of what it returns are one kernel with it only if generated code is.
"""

from __future__ import annotations

import dataclasses
import logging
import operator
import weakref
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch

from .. import config
from ..codegen.subgraph import trace_subgraph
from ..utils import is_pointwise_use, is_view
from .candidates import one_line, plain_body
from .fusion_options import fusion_types
from .limits import call_within, time_limit_s
from .node_kinds import has_generated_code
from .stale_code import registration_of


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

log = logging.getLogger("torch._inductor.kernel.custom_op")


@dataclasses.dataclass(frozen=True)
class _Body:
    """
    What is known of an op's body.

    Args:
        reads: for each tensor among the arguments, whether a read of it is pointwise work.
        is_generated: whether Inductor generates all of its code.
    """

    reads: Mapping[int, Sequence[bool]]
    is_generated: bool


_UNKNOWN = _Body({}, False)
# By an op's body: by what kinds of arguments there are.
_known: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, _Body]] = (
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
    if is_view(target):
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


def is_generated(call: torch.fx.Node) -> bool:
    """Whether Inductor generates all code of an op's body, so that more may be one with it."""
    return _body_of(call).is_generated


def _joins_calls() -> bool:
    """Whether what computes the value would join the call's region."""
    return config.enable_custom_op_fusion and "prologue" in fusion_types()


def _body_of(call: torch.fx.Node) -> _Body:
    assert isinstance(call.target, torch._ops.OpOverload)
    leaves, spec = pytree.tree_flatten((call.args, call.kwargs))
    fakes = {
        i: leaf.meta["val"]
        for i, leaf in enumerate(leaves)
        if isinstance(leaf, torch.fx.Node)
    }
    tensors = [x for x in fakes.values() if isinstance(x, torch.Tensor)]
    body = plain_body(call.target, tensors[0].device) if tensors else None
    if body is None:
        return _UNKNOWN
    key = (call.target, tuple(map(_kind, leaves)))
    known = _known.setdefault(body, {})
    if key not in known:
        known[key] = _trace(body, leaves, spec, fakes)
    return known[key]


def _kind(leaf: Any) -> Any:
    """What an op's body may look at in an argument without a guard on a size."""
    if not isinstance(leaf, torch.fx.Node):
        return repr(leaf)
    value = leaf.meta["val"]
    if not isinstance(value, torch.Tensor):
        return type(value)
    return value.dtype, value.device, value.dim()


def _trace(
    body: Callable[..., Any],
    leaves: Sequence[Any],
    spec: pytree.TreeSpec,
    fakes: Mapping[int, Any],
) -> _Body:
    """
    Args:
        leaves: of a call's arguments, flat.
        fakes: for the nodes among them.
    """

    def call(*values: Any) -> Any:
        given = dict(zip(fakes, values))
        filled = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return body(*args, **kwargs)

    try:
        graph = call_within(
            time_limit_s(),
            "tracing it",
            trace_subgraph,
            call,
            [*fakes.values()],
        ).graph
    except Exception as e:
        log.debug("the body of %s is not traced: %s", body, one_line(e))
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
