"""
What implementations remember, such as a cache of tables, as it was before they were traced.

A tensor that is made while tracing is a fake one, of that trace, and a size a symbolic one.
Who keeps it would have it in place of a real one in the next call, as would the op itself, if
it has the same cache.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import threading
import types
from typing import Any, TYPE_CHECKING

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import py_sym_types

import torch

from ..contents.code_reads import globals_read, names_in
from ..contents.content_of_values import is_library


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# If more objects are reached than this, the rest are left alone.
_MOST_OBJECTS = 2_000
_DEFINITIONS = (types.FunctionType, types.ModuleType, type)
_HOLD_NOTHING = (type(None), bool, int, float, complex, str, bytes)
_CACHE = type(functools.cache(lambda: None))
_Namespace = dict[Any, Any]
# What may be written to by name: a closure's cell has one, a list has numbers, classes and
# objects with slots have attributes.
_Holder = Any
_ABSENT = object()


@dataclasses.dataclass
class _Remembered:
    """
    What was there before a function is traced, by the identity of what it was in.

    Args:
        holders: with their contents then.
        caches: with the number of their misses then; None if what is in there now is of
            a trace in any case.
    """

    holders: dict[int, tuple[_Holder, _Namespace]]
    caches: dict[int, tuple[Any, int | None]]


# Of traces that are under way, in several threads perhaps, the first one first.
_under_way: list[_Remembered] = []
_lock = threading.RLock()


@contextlib.contextmanager
def state_restored(function: Callable[..., Any]) -> Iterator[None]:
    """
    While a function is traced; it forgets the fake tensors that it keeps of that.

    Globals, closures, attributes of objects and classes, and dicts and lists in these are as
    they were before where they have come to hold some. A ``functools.cache`` that was added
    to is emptied. Other threads may trace what writes to the same; each forgets what any of
    them keeps.
    """
    reached = _reached_from(function)
    with _lock:
        remembered = _remember(reached)
        _under_way.append(remembered)
    try:
        yield
    finally:
        with _lock:
            _under_way[:] = [other for other in _under_way if other is not remembered]
            _restore_all(remembered)


def _remember(reached: Iterable[Any]) -> _Remembered:
    remembered = _Remembered({}, {})
    for value in reached:
        if isinstance(value, _CACHE):
            remembered.caches[id(value)] = value, value.cache_info().misses
        else:
            remembered.holders[id(value)] = value, _before_all_traces(value)
    return remembered


def _before_all_traces(holder: _Holder) -> _Namespace:
    """The contents of a holder, without the fake tensors of traces that are under way."""
    contents = _contents(holder)
    for other in _under_way:
        if id(holder) in other.holders:
            _, before = other.holders[id(holder)]
            _put_back(contents, before)
    return contents


def _restore_all(remembered: _Remembered) -> None:
    for cache, misses in remembered.caches.values():
        if cache.cache_info().misses != misses:
            _clear(cache)
    for holder, before in remembered.holders.values():
        _put_back(holder, before)


def _clear(cache: Any) -> None:
    """Its misses count from zero again, also for those who look at them later."""
    cache.cache_clear()
    for other in _under_way:
        if id(cache) in other.caches:
            other.caches[id(cache)] = cache, None


def _put_back(holder: _Holder, before: _Namespace) -> None:
    """
    Undoes what has changed in a holder that has come to hold values of a trace, but for
    those that were there before. What goes with these, such as their size, goes, too.
    """
    now = _contents(holder)
    changed = {n for n, value in now.items() if value is not before.get(n, _ABSENT)}
    if not any(_is_of_trace(now[name]) for name in changed):
        return
    if isinstance(holder, list):
        holder[:] = [value for value in before.values() if not _is_of_trace(value)]
        return
    for name in changed | (before.keys() - now.keys()):
        old = before.get(name, _ABSENT)
        if old is not _ABSENT and not _is_of_trace(old):
            _set(holder, name, old)
        elif name in now and not isinstance(now[name], _DEFINITIONS):
            _remove(holder, name)


def _contents(holder: _Holder) -> _Namespace:
    """A closure may have nothing there; then its cell has no contents."""
    if isinstance(holder, dict):
        return {**holder}
    if isinstance(holder, list):
        return dict(enumerate(holder))
    if isinstance(holder, type):
        return {**vars(holder)}
    names = ["cell_contents"] if isinstance(holder, types.CellType) else _slots(holder)
    contents = {}
    for name in names:
        with contextlib.suppress(ValueError, AttributeError):  # it is empty
            contents[name] = getattr(holder, name)
    return contents


def _slots(value: Any) -> list[str]:
    """Names of what an object has beside its ``__dict__``."""
    return [
        name
        for owner in type(value).__mro__
        if not is_library(owner)
        for name, member in vars(owner).items()
        if isinstance(member, types.MemberDescriptorType)
    ]


def _set(holder: _Holder, name: Any, value: Any) -> None:
    if isinstance(holder, dict):
        holder[name] = value
    else:
        setattr(holder, name, value)


def _remove(holder: _Holder, name: Any) -> None:
    if isinstance(holder, dict):
        holder.pop(name, None)
    else:
        delattr(holder, name)


def _is_of_trace(value: Any) -> bool:
    """Whether a value is a fake tensor or a symbolic number, or holds one, however deep."""
    seen: set[int] = set()
    left = [value]
    while left and len(seen) < _MOST_OBJECTS:
        leaf = left.pop()
        if isinstance(leaf, (FakeTensor, *py_sym_types)):
            return True
        if isinstance(leaf, torch.Tensor):
            if torch._is_functional_tensor(leaf):
                return True
        elif not isinstance(leaf, _HOLD_NOTHING) and id(leaf) not in seen:
            seen.add(id(leaf))
            left += _held(leaf)
    return False


def _held(value: Any) -> list[Any]:
    """What is in a container or an object, for what it is and not by what it calls."""
    if isinstance(value, _DEFINITIONS):
        return []
    if isinstance(value, dict):
        return [*value.values()]
    if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        return [*value]
    return [*getattr(value, "__dict__", {}).values(), *_contents_of_slots(value)]


def _contents_of_slots(value: Any) -> list[Any]:
    return [*_contents(value).values()] if _slots(value) else []


def _reached_from(function: Callable[..., Any]) -> list[Any]:
    """Caches, cells and namespaces that a function, or one that it calls, may write to."""
    reached: list[Any] = []
    seen: set[int] = set()
    left: list[Any] = [function]
    while left and len(seen) < _MOST_OBJECTS:
        value = left.pop()
        if id(value) in seen or isinstance(value, (torch.Tensor, *_HOLD_NOTHING)):
            continue
        seen.add(id(value))
        if isinstance(value, (_CACHE, types.CellType, dict, list)) or (
            isinstance(value, type) and not is_library(value)
        ):
            reached.append(value)
        elif isinstance(value, types.FunctionType) and not is_library(value):
            reached.append(value.__globals__)
        elif isinstance(value, types.ModuleType):
            reached.append(vars(value))
        elif _slots(value):
            reached.append(value)
        left += _parts(value)
    return reached


def _parts(value: Any) -> list[Any]:
    """What is reached from a value; of modules what the functions name that read them."""
    for kind, parts in _PARTS_OF:
        if isinstance(value, kind):
            return [*parts(value)]
    if is_library(type(value)) and not isinstance(value, torch.nn.Module):
        return []
    return [getattr(value, "__dict__", None), *_contents_of_slots(value), type(value)]


def _parts_of_class(owner: type) -> list[Any]:
    return [] if is_library(owner) else [*vars(owner).values(), *owner.__bases__]


def _read_by(function: types.FunctionType) -> list[Any]:
    if is_library(function):
        return []
    read = [*(function.__closure__ or ()), function.__defaults__, vars(function)]
    names = names_in(function.__code__)
    modules: list[types.ModuleType] = []
    left = [*globals_read(function).values()]
    for value in left:  # grows
        if not isinstance(value, types.ModuleType):
            read.append(value)
        elif value not in modules and not is_library(value):
            modules.append(value)
            left += [member for n, member in vars(value).items() if n in names]
    return [*read, *modules]


_PARTS_OF: tuple[tuple[Any, Callable[[Any], Iterable[Any]]], ...] = (
    (dict, dict.values),
    ((list, tuple), iter),
    (types.CellType, lambda cell: _contents(cell).values()),
    (functools.partial, lambda partial: (partial.func, partial.args, partial.keywords)),
    (types.MethodType, lambda method: (method.__func__, method.__self__)),
    ((classmethod, staticmethod), lambda method: (method.__func__,)),
    (property, lambda made: (made.fget, made.fset)),
    (functools.cached_property, lambda made: (made.func,)),
    (_CACHE, lambda cache: (cache.__wrapped__,)),
    (types.FunctionType, _read_by),
    (type, _parts_of_class),
    (types.ModuleType, lambda module: ()),
)
