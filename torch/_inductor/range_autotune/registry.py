"""
The registrations there are, and those that a compilation goes by.

A compilation goes by the registrations at the moment it first asks for one, its backward
pass included, whatever is registered meanwhile: cache keys and the code under them agree.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import threading
import weakref
from typing import Any, TYPE_CHECKING

from torch._guards import TracingContext

import torch

from .ops.functional_variants import registered_op, variant_of
from .registration import Registration


if TYPE_CHECKING:
    from collections.abc import Iterator

    Registrations = dict[str, Registration]

# Held for moments, and never around an import or a compilation.
lock = threading.RLock()
_in_force: weakref.WeakKeyDictionary[TracingContext, Registrations] = (
    weakref.WeakKeyDictionary()
)
# Whether no registration counts for what this context compiles.
_untuned: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "custom_ops_untuned", default=False
)


def registrations_in_force() -> Registrations:
    """
    By name of the op, all registrations that the compilation under way goes by; outside
    of one those of now.
    """
    if _untuned.get():
        return {}
    context = TracingContext.try_get()
    known = None if context is None else _in_force.get(context)
    if known is not None:
        return known
    now = registered_now()
    if context is None:
        return now
    with lock:
        return _in_force.setdefault(context, now)


@contextlib.contextmanager
def without_registrations() -> Iterator[None]:
    """In the block no registration counts."""
    token = _untuned.set(True)
    try:
        yield
    finally:
        _untuned.reset(token)


def registered_now() -> Registrations:
    """By name of the op, those that there are, whatever a compilation goes by."""
    from ..lowering import user_lowerings

    found = {}
    for op, lowering in list(user_lowerings.items()):
        registration = getattr(lowering, "registration", None)
        if isinstance(registration, Registration):
            found[registered_op(op).name()] = registration
    return found


def registration_of(target: Any) -> Registration | None:
    """That of an op (or any other target of an FX node) for the compilation under way."""
    if not isinstance(target, torch._ops.OpOverload):
        return None
    return registrations_in_force().get(registered_op(target).name())


def replace_registration(old: Registration, new: Registration | None) -> None:
    """
    Puts a registration in the place of another one of the same name, also for the compilation
    under way, and drops no code.

    Args:
        new: None to forget the old one.
    """
    from ..lowering import user_lowerings

    with lock:
        for op, lowering in list(user_lowerings.items()):
            if getattr(lowering, "registration", None) is old:
                del user_lowerings[op]
                if new is not None:
                    key = variant_of(new.op) or new.op
                    followed: Any = dataclasses.replace(lowering, registration=new)  # type: ignore[type-var]  # a dataclass of ours
                    user_lowerings[key] = followed
        in_force = registrations_in_force()
        in_force.pop(old.op.name(), None)  # outside of a compilation it is gone by now
        if new is not None:
            in_force[new.op.name()] = new
