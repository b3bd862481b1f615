"""
Which compiled code a new registration makes stale.

What a compilation lowered is remembered, on disk too. Registering an op drops the code in
which the op was lowered, registered or not, so that the next call compiles again; code that
is just being compiled is dropped by its own first call.

Nothing here waits for a compilation: a thread may register while it holds the import lock
of a module that a compiling thread is about to import.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from typing import Any, TYPE_CHECKING

from torch._guards import CompileContext, CompileId

import torch

from ..ops.functional_variants import registered_op, variant_of
from ..registry import lock, registered_now, registrations_in_force


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    # By identity: Dynamo counts from zero again when it is reset.
    CompileIds = dict[int, CompileId]

# By identity: a compilation, and the ops that it lowered.
_compiled: dict[int, tuple[CompileId, frozenset[str]]] = {}
# Compilations whose code is to be dropped as soon as it is there.
_stale: CompileIds = {}


class _Lowered(threading.local):
    """
    The ops lowered in this thread since it last finished a compiled graph, by compilation:
    an op that is measured may compile something itself.
    """

    def __init__(self) -> None:
        self.ops: dict[CompileId | None, set[str]] = {}


_lowered = _Lowered()


def install(op: torch._ops.OpOverload, lowering: Callable[..., Any]) -> None:
    """
    Registers an op's lowering, and drops the compiled code in which the op was lowered.

    Calls of that code that are under way end as they began. Code that another thread is
    just compiling serves the calls that wait for it.
    """
    from ...lowering import user_lowerings

    with lock:
        user_lowerings[variant_of(op) or op] = lowering
        stale = {
            key: compile_id
            for key, (compile_id, ops) in _compiled.items()
            if op.name() in ops
        }
        for key in stale:
            del _compiled[key]
        _stale.update(stale)
    _drop(stale)


def note_lowered(target: Any, decomposed: Any = None) -> None:
    """
    Called with the target of each node that is lowered.

    Args:
        decomposed: the op that the node is a part of the decomposition of, if any.
    """
    ops = _lowered.ops.setdefault(CompileContext.current_compile_id(), set())
    for op in (target, decomposed):
        if isinstance(op, torch._ops.OpOverload):
            ops.add(sys.intern(registered_op(op).name()))


def take_lowered() -> frozenset[str]:
    """The ops lowered into the graph that is just finished, by name."""
    return frozenset(_lowered.ops.pop(CompileContext.current_compile_id(), ()))


def tracked(post_compile: Callable[..., None]) -> Callable[..., None]:
    """
    Decorates a compiled graph's ``post_compile``, which runs for new graphs and for those from
    caches: remembers which ops the graph has, and drops it in its first call if it is stale by
    then.

    The graph has ``lowered_ops``, from ``take_lowered``, and a ``current_callable``.
    """

    @functools.wraps(post_compile)
    def wrapper(graph: Any, *args: Any, **kwargs: Any) -> None:
        post_compile(graph, *args, **kwargs)
        compile_id = CompileContext.current_compile_id()
        if compile_id is not None:
            # Those that only AOTAutograd met, too, where the graph is found in a cache.
            _note_compiled(compile_id, graph.lowered_ops | take_lowered())
            _drop_in_first_call(compile_id, graph)

    return wrapper


def _note_compiled(compile_id: CompileId, ops: Iterable[str]) -> None:
    in_force = registrations_in_force()
    with lock:
        now = registered_now()
        _, before = _compiled.get(id(compile_id), (compile_id, frozenset()))
        _compiled[id(compile_id)] = compile_id, before.union(ops)
        for op in ops:
            if now.get(op) is not in_force.get(op):
                _stale[id(compile_id)] = compile_id


def _drop_in_first_call(compile_id: CompileId, graph: Any) -> None:
    """
    Drops stale code in its first call, made by the thread that compiles: before that Dynamo
    has no cache entry to drop.
    """
    call = graph.current_callable

    def first_call(inputs: Any) -> Any:
        if graph.current_callable is first_call:  # nobody has put another around it
            graph.current_callable = call
        if id(compile_id) in _stale:
            _drop({id(compile_id): compile_id})
        return call(inputs)

    graph.current_callable = first_call


def _drop(stale: CompileIds) -> None:
    """Makes Dynamo forget what these compilations made, as far as it is there."""
    if not stale:
        return
    for entry in _dynamo_entries():
        if id(entry.compile_id) in stale:
            manager = entry.guard_manager
            if manager.extra_state is not None:
                manager.extra_state.invalidate(entry, _stale_guards())
            with lock:
                _stale.pop(id(entry.compile_id), None)


def _dynamo_entries() -> Iterator[Any]:
    """Of all functions, what Dynamo would run in their place."""
    convert_frame: Any = sys.modules.get("torch._dynamo.convert_frame")
    if convert_frame is None:
        return
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    for reference in list(convert_frame.input_codes.seen):
        code = reference()
        if code is not None:
            yield from _debug_get_cache_entry_list(code)


def _stale_guards() -> Any:
    """
    In place of the guards of dropped code: they fail.

    Removing the code's entry would pull it away from under a thread that is compiling the
    same function. It stays, looks like one for other objects than those of the call, and
    so counts neither as a recompilation nor against the limit on them.
    """
    from torch._dynamo.guards import DeletedGuardManagerWrapper

    guards = DeletedGuardManagerWrapper("a custom op in it was registered anew")
    guards.id_matched_objs = {"": weakref.ref(guards)}
    return guards
