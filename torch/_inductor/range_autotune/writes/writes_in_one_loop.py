"""
Whether loops may be one though one of them writes in place to what the other one reads or
writes: the scheduler asks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TYPE_CHECKING

from torch.utils._sympy.symbol import free_symbol_is_type, SymT

from ...dependencies import MemoryDep, WeakDep
from .meeting_places import can_meet


if TYPE_CHECKING:
    from collections.abc import Iterator

    import sympy

    from ...dependencies import Dep
    from ...scheduler import BaseSchedulerNode, Scheduler


class _Use(NamedTuple):
    """Where iterations of a loop read memory, or write it."""

    place: Dep
    writes: bool


def meet_in_one_iteration(
    scheduler: Scheduler, dep: Dep, first: BaseSchedulerNode, second: BaseSchedulerNode
) -> bool:
    """
    Whether a dependency of ``second`` on ``first`` is one of writes in place, and one loop would
    keep to it: where both use an element that one of them writes, the same iteration does.

    A rotary embedding in place is such. Each iteration reads an element of each half of a head,
    and then writes these.
    """
    name: Any = dep.mutating_buf if isinstance(dep, WeakDep) else dep.name
    memory = scheduler.mutation_real_name.get(name)
    if memory is None or dep.name not in first.get_buffer_names():
        return False
    if not (_is_loop(first) and _is_loop(second)):
        return False
    return all(
        _keep_order(one, other)
        for one in _uses(scheduler, memory, first)
        for other in _uses(scheduler, memory, second)
    )


def _keep_order(use: _Use, later: _Use) -> bool:
    """Whether iterations of one loop may use memory in any order, or just as those of two do."""
    one, other = use.place, later.place
    if not (use.writes or later.writes):
        return True
    if not (isinstance(one, MemoryDep) and isinstance(other, MemoryDep)):
        return False
    if _is_same_element(one, other):
        return True
    # Generated code takes what it has written for what it reads in that memory.
    is_read_behind = use.writes and not later.writes
    return not is_read_behind and _are_apart(one, other)


def _is_loop(node: BaseSchedulerNode) -> bool:
    """Whether a node runs one loop, and all that it reads and writes are elements."""
    from ...scheduler import FusedSchedulerNode, SchedulerNode

    if type(node) not in (SchedulerNode, FusedSchedulerNode):
        return False
    bodies = [getattr(part, "_body", None) for part in node.get_nodes()]
    # Templates have none.
    return all(body is not None and not body.has_op("bucketize") for body in bodies)


def _uses(scheduler: Scheduler, memory: str, node: BaseSchedulerNode) -> Iterator[_Use]:
    """What a loop reads of memory, and what it writes."""
    real_name = scheduler.mutation_real_name
    for writes in (False, True):
        deps = node.read_writes.writes if writes else node.read_writes.reads
        for dep in deps:
            # Other reads than these say in which order loops run.
            is_use = writes or isinstance(dep, MemoryDep)
            if is_use and real_name.get(dep.name, dep.name) == memory:
                yield _Use(dep, writes)


def _is_same_element(one: MemoryDep, other: MemoryDep) -> bool:
    """Whether iterations use the same element, and each one of its own."""
    one, other = one.normalize(), other.normalize()
    return (
        one.index == other.index
        and one.size == other.size
        and one.mode is None
        and other.mode is None
        and not free_symbol_is_type(one.index, SymT.TMP)
        and one.index.free_symbols.issuperset(one.var_names)
    )


def _are_apart(one: MemoryDep, other: MemoryDep) -> bool:
    """Whether no iterations, the same or others, use the same element."""
    way, other_way = _linear(one), _linear(other)
    if way is None or other_way is None:
        return False
    (start, loops), (other_start, other_loops) = way, other_way
    return not can_meet(other_start - start, loops, other_loops)


def _linear(
    dep: MemoryDep,
) -> tuple[sympy.Expr, list[tuple[sympy.Expr, sympy.Expr]]] | None:
    """Where iterations start, and by how much, how often, each loop moves on; None if by more."""
    index: Any = dep.index.expand()
    strides = [(index.coeff(var), size) for var, size in dep.ranges.items()]
    start = index - sum(index.coeff(var) * var for var in dep.var_names)
    left = start.free_symbols.union(*(stride.free_symbols for stride, _ in strides))
    if left & {*dep.var_names} or free_symbol_is_type(dep.index, SymT.TMP):
        return None
    return start, strides
