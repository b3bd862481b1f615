"""
What implementations remember, such as a cache of tables, as it was before they were traced.

A tensor that is made while tracing is a fake one, of that trace. Who keeps it would have it
in place of a real one in the next call, as would the op itself, if it has the same cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
import types
from typing import Any, TYPE_CHECKING

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

import torch

from .code_reads import globals_read, names_in
from .content import is_library


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# Who reaches more has the rest left alone.
_MOST_OBJECTS = 2_000
_CACHE = type(functools.cache(lambda: None))
_Namespace = dict[Any, Any]
# What may be written to by name; a closure's cell has one name.
_Place = _Namespace | types.CellType
_ABSENT = object()


@dataclasses.dataclass
class _Remembered:
    """
    What was there before a function is traced, by the identity of what it was in.

    Args:
        places: with their contents then.
        caches: with the number of their misses then; None if what is in there now is of
            a trace in any case.
    """

    places: dict[int, tuple[_Place, _Namespace]]
    caches: dict[int, tuple[Any, int | None]]


# Of traces that are under way, in several threads perhaps, the first one first.
_under_way: list[_Remembered] = []
_lock = threading.RLock()


@contextlib.contextmanager
def state_restored(function: Callable[..., Any]) -> Iterator[None]:
    """
    While a function is traced; it forgets the fake tensors that it keeps of that.

    What was there before takes their place in globals, closures, attributes of objects and
    dicts in these. A ``functools.cache`` that was added to is emptied. Other threads may
    trace what writes to the same; each forgets what any of them keeps.
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
            remembered.places[id(value)] = value, _before_all_traces(value)
    return remembered


def _before_all_traces(place: _Place) -> _Namespace:
    """The contents of a place, without the fake tensors of traces that are under way."""
    contents = _contents(place)
    for other in _under_way:
        if id(place) in other.places:
            _, before = other.places[id(place)]
            _put_back(contents, before)
    return contents


def _restore_all(remembered: _Remembered) -> None:
    for cache, misses in remembered.caches.values():
        if cache.cache_info().misses != misses:
            _clear(cache)
    for place, before in remembered.places.values():
        _put_back(place, before)


def _clear(cache: Any) -> None:
    """Its misses count from zero again, also for those who look at them later."""
    cache.cache_clear()
    for other in _under_way:
        if id(cache) in other.caches:
            other.caches[id(cache)] = cache, None


def _put_back(place: _Place, before: _Namespace) -> None:
    """Takes fake tensors out of a place, but for those that were there before."""
    for name, value in _contents(place).items():
        old = before.get(name, _ABSENT)
        if value is old or not _has_fake(value):
            continue
        if old is _ABSENT or _has_fake(old):
            _remove(place, name)
        else:
            _set(place, name, old)


def _contents(place: _Place) -> _Namespace:
    """A closure may have nothing there; then its cell has no contents."""
    if isinstance(place, dict):
        return {**place}
    try:
        return {"cell_contents": place.cell_contents}
    except ValueError:
        return {}


def _set(place: _Place, name: Any, value: Any) -> None:
    if isinstance(place, dict):
        place[name] = value
    else:
        place.cell_contents = value


def _remove(place: _Place, name: Any) -> None:
    if isinstance(place, dict):
        place.pop(name, None)
    else:
        del place.cell_contents


def _has_fake(value: Any) -> bool:
    return any(
        isinstance(leaf, FakeTensor)
        or (isinstance(leaf, torch.Tensor) and torch._is_functional_tensor(leaf))
        for leaf in pytree.tree_leaves(value)
    )


def _reached_from(function: Callable[..., Any]) -> list[Any]:
    """Caches, cells and namespaces that a function, or one that it calls, may write to."""
    reached: list[Any] = []
    seen: set[int] = set()
    left: list[Any] = [function]
    while left and len(seen) < _MOST_OBJECTS:
        value = left.pop()
        if id(value) in seen or isinstance(value, torch.Tensor):
            continue
        seen.add(id(value))
        if isinstance(value, (_CACHE, types.CellType, dict)):
            reached.append(value)
        elif isinstance(value, types.FunctionType) and not is_library(value):
            reached.append(value.__globals__)
        elif isinstance(value, types.ModuleType):
            reached.append(vars(value))
        left += _parts(value)
    return reached


def _parts(value: Any) -> list[Any]:
    """What is reached from a value; of modules what the functions name that read them."""
    if isinstance(value, dict):
        return [*value.values()]
    if isinstance(value, (list, tuple)):
        return [*value]
    if isinstance(value, types.CellType):
        return [*_contents(value).values()]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, types.MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, types.FunctionType):
        return [] if is_library(value) else _read_by(value)
    if isinstance(value, (type, types.ModuleType)) or not hasattr(value, "__dict__"):
        return []
    if isinstance(value, _CACHE):
        return [value.__wrapped__]
    if is_library(type(value)) and not isinstance(value, torch.nn.Module):
        return []
    classes = [c for c in type(value).__mro__ if not is_library(c)]
    return [vars(value), *(member for c in classes for member in vars(c).values())]


def _read_by(function: types.FunctionType) -> list[Any]:
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
