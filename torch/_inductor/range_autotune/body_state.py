"""
Whether a custom op's body computes the same from the same arguments, now and later.

Code that is compiled without a registration calls such an op eagerly. Where its body competes
it is traced instead: variables would become constants, and caches be filled with fake tensors.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, TYPE_CHECKING

import torch

from .cache_key import closed_over, globals_read, imports, names_in


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WITHOUT_STATE = ("torch", "math", "operator", "builtins", "itertools", "typing")
_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype)
_OPS = (
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._library.custom_ops.CustomOpDef,
)


def may_read_state(body: Callable[..., Any]) -> bool:
    """
    Whether a function, or one that it calls, reads more than its arguments: variables of
    modules and closures, constant or not, or objects that may remember, such as a cache.

    Args:
        body: a custom op's, as PyTorch keeps it.
    """
    return _is_stateful(_as_written(body), set())


def _as_written(body: Callable[..., Any]) -> Any:
    """The user's function inside of PyTorch's wrapper, which looks if it is disabled."""
    inner: Any = inspect.unwrap(body)
    if isinstance(inner, types.FunctionType) and _is_known(inner.__module__):
        return inspect.getclosurevars(inner).nonlocals.get("fn", inner)
    return inner


def _is_known(module: str | None) -> bool:
    return (module or "").partition(".")[0] in _WITHOUT_STATE


def _is_stateful(value: Any, seen: set[int]) -> bool:
    if isinstance(value, types.ModuleType):
        return not _is_known(value.__name__)
    if isinstance(value, types.BuiltinFunctionType):
        return _is_stateful(value.__self__, seen)  # its module, its class, or an object
    if isinstance(value, type):
        return not _is_known(value.__module__)
    if not isinstance(value, types.FunctionType):
        return not isinstance(value, _OPS)
    if _is_known(value.__module__) or id(value) in seen:
        return False
    seen.add(id(value))
    return any(_is_stateful(read, seen) for read in _read_by(value))


def _read_by(function: types.FunctionType) -> Iterator[Any]:
    """What a function reads besides its arguments; of modules the attributes that it names."""
    code = function.__code__
    defaults = [*(function.__defaults__ or ())]
    defaults += (function.__kwdefaults__ or {}).values()
    read = [value for value in defaults if not isinstance(value, _CONSTANTS)]
    read += [*closed_over(function), *globals_read(function).values()]
    for value in read:
        if isinstance(value, types.ModuleType) and not _is_known(value.__name__):
            used = names_in(code) & vars(value).keys()
            yield from (vars(value)[name] for name in used)
        else:
            yield value
    for module, _, level in imports(code):
        if level or not _is_known(module):
            yield None  # whatever is in it
