"""
Ops made by ``torch.library.triton_op``: whole in the graph where they are registered.

AOTAutograd puts such an op's body in its place, for Inductor to see the kernels that it
launches. A registered one is to be tuned first; its body competes as its plain lowering.
"""

from __future__ import annotations

import inspect
from typing import Any, TYPE_CHECKING

from torch._library import triton as triton_library
from torch._library.custom_ops import OPDEFS
from torch._subclasses.functional_tensor import FunctionalTensorMode

from ..caching.stale_code import note_lowered
from ..registry import registration_of


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch


class _WholeWhereRegistered:
    """
    What ``FunctionalTensorMode`` does with an op.

    Args:
        otherwise: the rule that the op was made with.
    """

    def __init__(self, otherwise: Callable[..., Any]) -> None:
        self._otherwise = otherwise

    def __call__(self, mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if registration_of(op) is not None:
            return mode.__torch_dispatch__(op, types, args, kwargs)
        note_lowered(op)
        return self._otherwise(mode, op, types, args, kwargs)


def keep_whole(op: torch._ops.OpOverload) -> None:
    """From now on AOTAutograd leaves the op to Inductor in compilations that tune it."""
    definition = OPDEFS.get(op._schema.name)
    if definition is None:
        return
    rule = definition._torch_dispatch_fns.get(FunctionalTensorMode)
    if rule is not None and not isinstance(rule, _WholeWhereRegistered):
        definition.register_torch_dispatch(
            FunctionalTensorMode, _WholeWhereRegistered(rule)
        )


def written_by_user(body: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a ``triton_op`` was made of; any other op's as it is."""
    if body.__module__ != triton_library.__name__:
        return body
    return inspect.getclosurevars(body).nonlocals["fn"]
