"""
What graph passes and lowerings overlook where memory is written that others read: calls from
Inductor, for ops that are registered and for others.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch._higher_order_ops.auto_functionalize import (
    auto_functionalized,
    auto_functionalized_v2,
)
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch.utils import _pytree as pytree

import torch

from ..graphs.node_kinds import arguments_of, parts_of, without_views
from ..graphs.node_memory import memory_of, users_of_memory, writers_of_memory
from ..ops.functional_variants import returns_arguments
from ..registering.signatures import arguments_by_name, values_written


if TYPE_CHECKING:
    from collections.abc import Sequence

_aten = torch.ops.aten
# Calls that may become, or become part of, such as write to what they are given.
_MAY_WRITE = (
    auto_functionalized,
    auto_functionalized_v2,
    triton_kernel_wrapper_functional,
    _aten.copy.default,
    _aten.index_put.default,
    _aten._unsafe_index_put.default,
    _aten.scatter.src,
    _aten.select_scatter.default,
    _aten.slice_scatter.default,
)


def is_copy_needed(copy: torch.fx.Node, source: torch.fx.Node) -> bool:
    """
    Whether a copy is read where what it was made of is written, or behind that.

    Args:
        copy: computes what it reads, ``source``, maybe as a view of that.
    """
    memory = memory_of(source)
    if memory is memory_of(copy):
        return False
    users, writers = users_of_memory(memory), writers_of_memory(memory)
    return any(
        (reader in users and reader.target in _MAY_WRITE)
        or any(reader > writer for writer in writers)
        for reader in users_of_memory(copy)
    )


def is_read_behind(
    call: torch.fx.Node, argument: torch.fx.Node, write: torch.fx.Node
) -> bool:
    """
    Whether what a call makes of an argument, maybe in its memory, or what is made of that in the
    same memory, is read behind a copy of something else to there.

    Args:
        write: the copy.
    """
    kept = without_views(write.args[1])  # type: ignore[arg-type]  # a node
    left = _made_of(argument, call)
    for made in left:  # grows
        users = [] if made is kept else users_of_memory(made)
        if any(user > write for user in users):
            return True
        for user in users:
            more = [user, *parts_of(user)] if user.target in _MAY_WRITE else []
            left += [node for node in more if node not in left]
    return False


def _made_of(argument: torch.fx.Node, call: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes of what a call that does not write makes of an argument."""
    parts = parts_of(call)
    op: Any = call.args[0] if call.args else None
    if call.target is auto_functionalized_v2 and isinstance(op, torch._ops.OpOverload):
        results = max(1, len(op._schema.returns))
        bases: Any = call.kwargs["_all_bases"]
        return [p for p in parts if p.args[1] == results + bases.index(argument)]
    if call.target is triton_kernel_wrapper_functional:
        given: Any = call.kwargs["kwargs"]
        return [p for p in parts if given[p.args[1]] is argument]
    return parts or [call]


def read_arguments(graph: torch.fx.Graph) -> None:
    """Has arguments read where calls are that return these, as memory that goes by one name."""
    for call in [*graph.nodes]:
        op = call.target
        if not (isinstance(op, torch._ops.OpOverload) and returns_arguments(op)):
            continue
        written = values_written(op, arguments_of(call))
        if len(op._schema.returns) == 1:
            call.replace_all_uses_with(written[0])
        for part in [*call.users]:
            part.replace_all_uses_with(written[part.args[1]])  # type: ignore[index]  # an integer
            graph.erase_node(part)


def settle_earlier_readers(op: Any, args: Sequence[Any], kwargs: Any) -> None:
    """
    Called before an op is put into the graph: has computed what was to read later what it writes
    to, and is to read that as it was.

    Args:
        op: what is called; nothing happens if it is no op that writes.
        args, kwargs: what it is called with, as IR.
    """
    from ... import ir
    from ...virtualized import V

    if not (isinstance(op, torch._ops.OpOverload) and op._schema.is_mutable):
        return
    for value in values_written(op, arguments_by_name(op, args, kwargs)):
        if isinstance(value, ir.TensorBox):
            V.graph.mark_buffer_mutated(ir.ExternKernel.realize_input(value).get_name())


def compute_first(to: Any, given: Any) -> None:
    """
    Has what a write is given computed before, if that reads what is written to: the scheduler
    then sees whether both may be one loop. Inductor computes a view of a value,
    ``(x * 2)[:-1]`` for ``x[1:]``, in the loop that writes, which would read elements that it
    has written.

    Args:
        to: what is written to, as IR.
        given: values, maybe nested.
    """
    from ... import ir

    name = ir.try_get_name(to)
    for value in pytree.tree_leaves(given):
        if isinstance(value, ir.TensorBox) and name in value.get_read_names():
            value.realize()


def compute_indices_first(to: Any, indices: Sequence[Any]) -> None:
    """
    The same for what says where a write puts values. A mask is read where it is asked for, by the
    element that may be written there.
    """
    masks = (torch.bool, torch.uint8)
    compute_first(
        to, [i for i in indices if i is not None and i.get_dtype() not in masks]
    )
