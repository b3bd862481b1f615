"""
What implementations remember, such as a cache of tables, as it was before they were traced.

A tensor that is made while tracing is a fake one, of that trace. Who keeps it would have it
in place of a real one in the next call, as would the op itself, if it has the same cache.
"""

from __future__ import annotations

import contextlib
import functools
import types
from typing import Any, TYPE_CHECKING

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

import torch

from .content import globals_read, is_library, names_in


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Who reaches more has the rest left alone.
_MOST_OBJECTS = 2_000
_CACHE = type(functools.cache(lambda: None))
_Namespace = dict[Any, Any]


@contextlib.contextmanager
def state_restored(function: Callable[..., Any]) -> Iterator[None]:
    """
    While a function is traced; it forgets the fake tensors that it keeps of that.

    What was there before takes their place in globals, closures, attributes of objects and
    dicts in these. A ``functools.cache`` that was added to is emptied.
    """
    reached = _reached_from(function)
    caches = [(x, x.cache_info().misses) for x in reached if isinstance(x, _CACHE)]
    cells = [(x, _in_cell(x)) for x in reached if isinstance(x, types.CellType)]
    namespaces = [(x, {**x}) for x in reached if isinstance(x, dict)]
    try:
        yield
    finally:
        for cache, misses in caches:
            if cache.cache_info().misses != misses:
                cache.cache_clear()
        for cell, before in cells:
            _restore_cell(cell, before)
        for namespace, kept in namespaces:
            _restore(namespace, kept)


def _in_cell(cell: types.CellType) -> tuple[Any, ...]:
    """What a closure has there; nothing while that is not bound."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def _restore_cell(cell: types.CellType, before: tuple[Any, ...]) -> None:
    if _has_fake(before) or not _has_fake(_in_cell(cell)):
        return
    if before:
        (cell.cell_contents,) = before
    else:
        del cell.cell_contents


def _restore(now: _Namespace, before: _Namespace) -> None:
    absent = object()
    for name in [*now]:
        old = before.get(name, absent)
        if now[name] is old or not _has_fake(now[name]):
            continue
        if old is absent:
            del now[name]
        else:
            now[name] = old


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
        return [*_in_cell(value)]
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
