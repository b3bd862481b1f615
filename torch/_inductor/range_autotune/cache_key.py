"""
What registrations contribute to the keys of the FX graph and AOTAutograd caches.

A changed implementation is a cache miss, also in a new process, and an unchanged one a hit.
So is a changed body of the op, where that competes as plain lowering; of one that is always
called eagerly its own code counts, for it competes, too.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, TYPE_CHECKING

from torch._library.custom_ops import OPDEFS

import torch

from .body_state import may_be_traced
from .content import content_digest, digest, own_code, Unhashable
from .op_bodies import written_bodies
from .stale_code import registrations_in_force


if TYPE_CHECKING:
    from .registration import Registration

log = logging.getLogger("torch._inductor.kernel.custom_op")


def registrations_key(gm: torch.fx.GraphModule | None = None) -> str:
    """
    A digest of all registrations that the compilation under way goes by.

    All count, not only those of ops in the graph: an implementation may call any op.

    Args:
        gm: the graph that is to be cached, if there is one.

    Raises:
        BypassFxGraphCache: where the graph must not be cached: a registration cannot be
            hashed, or ranks decide together, and one whose cache has the graph would
            leave the others waiting.
    """
    from ..codecache import BypassFxGraphCache
    from .collectives import several_ranks

    parts = []
    called = _called(gm) if gm is not None and several_ranks() else ()
    for _, registration in sorted(registrations_in_force().items()):
        if (
            registration.op.overloadpacket in called
            and registration.mentions_collective
        ):
            raise BypassFxGraphCache(f"all ranks decide on {registration.op}")
        try:
            parts.append(fingerprint(registration))
        except Unhashable as e:
            reason = f"{registration.op} has an autotuning registration with {e}"
            log.info("Not cached: %s", reason)
            raise BypassFxGraphCache(reason) from e
    return digest(parts) if parts else ""


def _called(gm: torch.fx.GraphModule) -> set[Any]:
    """The ops, whatever their overload, that a graph or one inside it calls."""
    targets = {
        node.target
        for module in gm.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    }
    return {getattr(target, "overloadpacket", target) for target in targets}


def fingerprint(registration: Registration) -> str:
    """
    A digest of one registration; every field counts, and the bodies of the op.

    Raises Unhashable where one of them refers to something without comparable content.
    """
    fields = {
        f.name: getattr(registration, f.name) for f in dataclasses.fields(registration)
    }
    return content_digest((fields, _bodies(registration.op)))


def _bodies(op: torch._ops.OpOverload) -> dict[str | None, Any]:
    """
    By kind of device. Code that is compiled calls those that may not be traced as they then
    are; what they remember changes from call to call and does not count.
    """
    definition = OPDEFS.get(op._schema.name)
    return {
        device: body if may_be_traced(op, body) else own_code(body)
        for device, body in written_bodies(definition).items()
    }
