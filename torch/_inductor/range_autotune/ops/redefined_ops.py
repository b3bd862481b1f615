"""
Ops that have become other objects since they were registered.

An op may be defined anew, as where a cell of a notebook is run again. And PyTorch forgets
the object that an op is known as when the library of an earlier definition is collected,
which may be later. What is registered is for the op of that name.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from ..registry import registration_of, replace_registration
from .functional_variants import define_variant, registered_op


if TYPE_CHECKING:
    import torch

    from ..registration import Registration

log = logging.getLogger("torch._inductor.kernel.custom_op")


def follow_redefined_ops(gm: torch.fx.GraphModule) -> None:
    """Makes registrations those of the ops that a graph calls under these names."""
    for target in {node.target for node in gm.graph.nodes}:
        registration = registration_of(target)
        if registration is not None:
            op = registered_op(target)
            if op is not registration.op:
                _follow(registration, op)


def _follow(registration: Registration, op: torch._ops.OpOverload) -> None:
    if str(op._schema) != str(registration.op._schema):
        log.warning(
            "%s is not tuned: it was registered as '%s', and has been defined anew as "
            "'%s'. Register it again",
            *(op, registration.op._schema, op._schema),
        )
        replace_registration(registration, None)
        return
    if op._schema.is_mutable:
        define_variant(op)
    replace_registration(registration, dataclasses.replace(registration, op=op))
