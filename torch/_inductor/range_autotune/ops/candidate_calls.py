"""How what competes is called in the op's place: an implementation, the op, or its own body."""

from __future__ import annotations

import functools
from typing import Any, TYPE_CHECKING

from torch._library.custom_ops import OPDEFS

from ..registering.signatures import bind
from .body_state import may_be_traced
from .functional_variants import call_for, registered_op
from .op_bodies import body_on
from .traced_state import state_restored
from .triton_ops import written_by_user


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from ..call_site import CallSite
    from ..registration import Candidate

    # Called with the op's arguments by name.
    OpCall = Callable[[dict[str, Any]], Any]


def call_of_candidate(candidate: Candidate, site: CallSite) -> OpCall:
    """Calls the implementation with what it takes of the op's arguments."""
    return functools.partial(
        call_implementation, candidate, site.op, tensor_names=site.tensor_names
    )


def call_implementation(
    candidate: Candidate,
    op: torch._ops.OpOverload,
    values: dict[str, Any],
    tensor_names: frozenset[str],
) -> Any:
    """
    What a candidate returns, as it is traced.

    Args:
        values: every argument of the op by name, defaults included.
        tensor_names: those that hold tensors or lists of tensors.
    """

    def call(called: torch._ops.OpOverload, given: dict[str, Any]) -> Any:
        if candidate.impl is None:
            return call_as_op(called, called, {**given, **candidate.params})
        args, kwargs = bind(
            called, candidate.impl, given, tensor_names, candidate.params
        )
        with state_restored(candidate.impl):
            return candidate.impl(*args, **kwargs)

    return call_for(op, values, call)


def plain_body(
    op: torch._ops.OpOverload, device: torch.device
) -> Callable[..., Any] | None:
    """What Inductor could look into to lower an op that nobody registered; None for nothing."""
    from ...decomposition import select_decomp_table
    from ...lowering import fallbacks, lowerings

    op = registered_op(op)
    definition = OPDEFS.get(op._schema.name)
    if definition is not None:
        body = body_on(definition, device.type)
        return written_by_user(body) if body and may_be_traced(op, body) else None
    if op in select_decomp_table() or (op in lowerings and op not in fallbacks):
        return op
    return None


def call_as_op(
    fn: Callable[..., Any], op: torch._ops.OpOverload, values: dict[str, Any]
) -> Any:
    """
    Calls a function that has the op's own signature; of a functional variant, that of the op
    that writes.
    """

    def call(called: torch._ops.OpOverload, given: dict[str, Any]) -> Any:
        schema = called._schema.arguments
        args = [given[a.name] for a in schema if not a.kwarg_only]
        kwargs = {a.name: given[a.name] for a in schema if a.kwarg_only}
        return (called if fn is op else fn)(*args, **kwargs)

    return call_for(op, values, call)
