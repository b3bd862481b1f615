"""The functions that compute a custom op, as its author wrote them."""

from __future__ import annotations

import inspect
from typing import Any, TYPE_CHECKING

from torch._library.custom_ops import OPDEFS

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from torch._library.custom_ops import CustomOpDef

_COMPOSITE = "CompositeImplicitAutograd"
# Torch's own that are composite by Python functions.
_COMPOSITE_OF_TORCH = ("c10d_functional", "quantized_decomposed")


def written_bodies(definition: CustomOpDef) -> dict[str | None, Any]:
    """By kind of device; under None what those run that have none of their own."""
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


def ops_with_functions() -> frozenset[str]:
    """Names, such as ``mylib::op``, of ops that Python functions compute or decompose."""
    from ...decomposition import decompositions

    decomposed = (
        op._schema.name
        for op in decompositions
        if isinstance(op, torch._ops.OpOverload) and op.namespace != "aten"
    )
    return frozenset((*OPDEFS, *decomposed, *_composites()))


def decompositions_of(name: str) -> dict[str, Any]:
    """What graphs that Inductor compiles have in place of an op, by overload."""
    from ...decomposition import decompositions

    if name.startswith("aten::"):
        return {}
    overloads = _overloads(name)
    return {o: decompositions[f] for o, f in overloads.items() if f in decompositions}


def decompositions_without(ops: Collection[Any]) -> dict[Any, Callable[..., Any]]:
    """Inductor's table, but for some ops, which stay whole where it is used."""
    from ...decomposition import select_decomp_table

    return {op: fn for op, fn in select_decomp_table().items() if op not in ops}


def is_composite(name: str) -> bool:
    """
    Whether a CompositeImplicitAutograd kernel in Python replaces an op in graphs; PyTorch does
    not tell which function that is.
    """
    namespace, _, op = name.partition("::")
    if namespace in _COMPOSITE_OF_TORCH:
        return False
    names = (op, *(f"{op}.{overload}" for overload in _overloads(name)))
    return any(f"{namespace}/{n}/{_COMPOSITE}" in torch.library._impls for n in names)


def _overloads(name: str) -> dict[str, torch._ops.OpOverload]:
    namespace, _, op = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), op, None)
    found = () if packet is None else packet.overloads()
    return {overload: getattr(packet, overload) for overload in found}


def _composites() -> Iterator[str]:
    for kernel in torch.library._impls:
        namespace, op, key = kernel.split("/")
        if key == _COMPOSITE and namespace not in _COMPOSITE_OF_TORCH:
            yield f"{namespace}::{op.partition('.')[0]}"
