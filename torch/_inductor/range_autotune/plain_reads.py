"""
How ops read their arguments, for passes that fuse a value with what reads it.

Inductor leaves a sum of a product and another tensor to the GEMM, unless all that reads it
is pointwise work and can compute the sum itself. A registered op reads it by its
candidates: as pointwise work if its body does, which competes as plain lowering.
"""

from __future__ import annotations

import logging
import weakref
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch

from .. import config
from ..codegen.subgraph import trace_subgraph
from ..utils import is_pointwise_use, is_view
from .candidates import one_line, plain_body
from .limits import call_within, time_limit_s
from .regions import fusion_types
from .stale_code import registration_of


if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("torch._inductor.kernel.custom_op")

# By an op's body: by which argument and what kinds of arguments there are.
_known: weakref.WeakKeyDictionary[Callable[..., Any], dict[Any, bool]] = (
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
    body = plain_body(target, value.meta["val"].device)
    if body is None:
        return False
    leaves, spec = pytree.tree_flatten((use.args, use.kwargs))
    key = (target, tuple(map(_kind, leaves)), tuple(leaf is value for leaf in leaves))
    known = _known.setdefault(body, {})
    if key not in known:
        known[key] = _body_reads_pointwise(body, leaves, spec, value)
    return known[key]


def _joins_calls() -> bool:
    """Whether what computes the value would join the call's region."""
    return config.enable_custom_op_fusion and "prologue" in fusion_types()


def _kind(leaf: Any) -> Any:
    """What an op's body may look at in an argument without a guard on a size."""
    if not isinstance(leaf, torch.fx.Node):
        return repr(leaf)
    value = leaf.meta["val"]
    if not isinstance(value, torch.Tensor):
        return type(value)
    return value.dtype, value.device, value.dim()


def _body_reads_pointwise(
    body: Callable[..., Any],
    leaves: list[Any],
    spec: pytree.TreeSpec,
    value: torch.fx.Node,
) -> bool:
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.fx.Node)]

    def call(*values: Any) -> Any:
        given = dict(zip(places, values))
        filled = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
        args, kwargs = pytree.tree_unflatten(filled, spec)
        return body(*args, **kwargs)

    fakes = [leaves[i].meta["val"] for i in places]
    try:
        graph = call_within(
            time_limit_s(), "tracing it", trace_subgraph, call, fakes
        ).graph
    except Exception as e:
        log.debug("the body of %s is not traced: %s", body, one_line(e))
        return False
    placeholders = graph.find_nodes(op="placeholder")
    reads = [
        user
        for i, placeholder in zip(places, placeholders)
        if leaves[i] is value
        for user in placeholder.users
    ]
    return bool(reads) and all(map(is_pointwise_use, reads))
