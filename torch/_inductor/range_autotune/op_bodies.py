"""The functions that compute a custom op, as its author wrote them."""

from __future__ import annotations

import inspect
from typing import Any, TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._library.custom_ops import CustomOpDef


def written_bodies(definition: CustomOpDef | None) -> dict[str | None, Any]:
    """
    By kind of device; under None what those run that have none of their own.

    Args:
        definition: none where PyTorch knows no Python function of an op.
    """
    if definition is None:
        return {}
    return {
        device: body_on(definition, device)
        for device in sorted(definition._backend_fns, key=str)
    }


def body_on(definition: CustomOpDef, device: str | None) -> Callable[..., Any] | None:
    """
    What computes the op on a kind of device while no kernel is registered or enabled anew;
    None where nothing does.
    """
    kernels = definition._backend_fns
    key = device if device in kernels else None
    if key not in kernels:
        return None
    if key in definition._disabled_kernel:
        return definition._init_fn
    return _without_wrapper(kernels[key])


def _without_wrapper(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The user's function inside of PyTorch's, which looks if it is disabled."""
    wrapper = inspect.unwrap(kernel)
    return inspect.getclosurevars(wrapper).nonlocals["fn"]
