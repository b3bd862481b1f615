"""Calls of registered ops in a model's graph: what regions are formed around."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

import torch

from ... import config
from ..graphs.node_kinds import arguments_of, makes_sizes
from ..registering.signatures import tensors_in
from ..registry import registration_of
from ..writes.in_place import writes_of_call


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ..registration import Registration


def dispatched_registration(node: torch.fx.Node) -> Registration | None:
    """
    The registration of a call that may get more than one winner, or that has to be one with
    writes behind it.
    """
    registration = registration_of(node.target)
    if registration is None:
        return None
    if writes_of_call(node):
        return registration
    if node.target._schema.is_mutable:  # type: ignore[union-attr]  # an OpOverload
        return None
    return registration if may_depend_on_size(node) else None


def may_depend_on_size(call: torch.fx.Node) -> bool:
    """Whether a call of a registered op may get more than one winner."""
    registration = registration_of(call.target)
    has_dim = registration is not None and registration.dim is not None
    return has_dim and any(
        isinstance(tensor := read.meta.get("val"), torch.Tensor)
        and tensor._has_symbolic_sizes_strides
        for read in call.all_input_nodes
    )


def registration_of_call(call: torch.fx.Node) -> Registration:
    """Of a call that ``dispatched_registration`` found one for."""
    registration = dispatched_registration(call)
    assert registration is not None
    return registration


def can_have_neighbours(call: torch.fx.Node) -> bool:
    """
    Whether anything may join a call: not those with collectives, if told so, nor those
    whose result has a size of its own.
    """
    joins = config.benchmark_collective_epilogue_fusion
    may_join = joins or not registration_of_call(call).mentions_collective
    return may_join and not makes_sizes(call)


def results_of(calls: Iterable[torch.fx.Node]) -> list[torch.Tensor]:
    """All tensors that calls return, fake ones."""
    return tensors_in([call.meta.get("val") for call in calls])


def made_by_user(call: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments of a call that the user makes to benchmark with; inputs of its region."""
    makers = registration_of_call(call).options.input_gen_fns
    made = [value for name, value in arguments_of(call).items() if name in makers]
    return [
        leaf for leaf in pytree.tree_leaves(made) if isinstance(leaf, torch.fx.Node)
    ]


def have_one_size(calls: Sequence[torch.fx.Node]) -> bool:
    """Whether the calls are known to depend on one size."""
    sizes = [_dispatch_size(call) for call in calls]
    return None not in sizes and all(
        statically_known_true(size == sizes[0]) for size in sizes
    )


def _dispatch_size(call: torch.fx.Node) -> Any:
    """A fake size; None if there is none, or the tensor is missing or has no such dimension."""
    dim = registration_of_call(call).dim
    if dim is None:
        return None
    node = arguments_of(call).get(dim.tensor_name)
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor):
        return None
    in_range = -value.dim() <= dim.dim_index < value.dim()
    return value.shape[dim.dim_index] if in_range else None
