"""
What registrations contribute to the keys of the FX graph and AOTAutograd caches.

A changed implementation is a cache miss, also in a new process, and an unchanged one a hit.
So is a changed body of the op, where that competes as plain lowering; of one that is always
called eagerly its own code counts, for it competes, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
from typing import Any, TYPE_CHECKING

from .. import config
from .candidates.traced_candidates import NAMESPACES_OF_TORCH
from .contents.content import content_digest, digest, Unhashable
from .graphs.collectives import several_ranks
from .graphs.control_flow import all_called
from .registry import registrations_in_force


if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch

    from .registration import Registration

log = logging.getLogger("torch._inductor.kernel.custom_op")


def registrations_key(
    gm: torch.fx.GraphModule | None = None, is_lowered: bool = False
) -> str:
    """
    A digest of all registrations that the compilation under way goes by.

    All count, not only those of ops in the graph: an implementation may call any op. Empty
    where lowering cannot come upon a registered op.

    Args:
        gm: the graph that is to be cached, if there is one.
        is_lowered: whether it is what Inductor is given, and not what Dynamo has traced,
            whose ops may come to call others.

    Raises:
        BypassFxGraphCache: where the graph must not be cached: a registration cannot be
            hashed, or ranks decide together, and one whose cache has the graph would
            leave the others waiting.
    """
    from ..codecache import BypassFxGraphCache

    in_force = [of_op for _, of_op in sorted(registrations_in_force().items())]
    if not in_force:
        return ""
    called = set() if gm is None else _called(gm)
    if is_lowered and not _may_come_upon(in_force, called):
        return ""
    parts = []
    for registration in in_force:
        if (
            registration.op._schema.name in called
            and several_ranks()
            and registration.mentions_collective
        ):
            raise BypassFxGraphCache(f"all ranks decide on {registration.op}")
        try:
            parts.append(fingerprint(registration))
        except Unhashable as e:
            reason = f"{registration.op} has an autotuning registration with {e}"
            log.info("Not cached: %s", reason)
            raise BypassFxGraphCache(reason) from e
    return digest(parts)


def _called(gm: torch.fx.GraphModule) -> set[Any]:
    """
    What a graph or one inside it calls, ops by their names without overload: they may have
    become other objects since they were registered.
    """
    packets = (getattr(found, "overloadpacket", found) for found in all_called(gm))
    return {getattr(packet, "_qualified_op_name", packet) for packet in packets}


def _may_come_upon(registered: Iterable[Registration], called: set[Any]) -> bool:
    """
    Whether lowering a graph that calls such ops may come to one that is registered: passes
    put others into it, Inductor's those of torch.
    """
    return _passes_are_added() or any(
        of_op.op._schema.name in called or of_op.op.namespace in NAMESPACES_OF_TORCH
        for of_op in registered
    )


def _passes_are_added() -> bool:
    """
    Whether others than torch have passes behind the cache's key, or patterns with a handler
    in Inductor's. Whose a replacement is cannot be told; no key has those either.
    """
    from ..codegen.common import custom_backend_passes
    from ..fx_passes.post_grad import pass_patterns

    passes = (
        config.post_grad_custom_pre_pass,
        config.post_grad_custom_post_pass,
        *custom_backend_passes.values(),
    )
    of_one_target = (
        entries for table in pass_patterns for entries in table.patterns.values()
    )
    patterns = itertools.chain.from_iterable(of_one_target)
    handlers = (getattr(pattern, "handler", None) for pattern in patterns)
    return any(passes) or any(
        handler and not handler.__module__.startswith("torch.") for handler in handlers
    )


def fingerprint(registration: Registration) -> str:
    """
    A digest of one registration; every field counts, and the bodies of the op.

    Raises Unhashable where one of them refers to something without comparable content.
    """
    fields = {
        f.name: getattr(registration, f.name) for f in dataclasses.fields(registration)
    }
    return content_digest(fields)  # the op's bodies count with it
