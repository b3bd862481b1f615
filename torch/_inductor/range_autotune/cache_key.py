"""
What registrations contribute to the keys of the FX graph and AOTAutograd caches.

Functions count by their compiled code, defaults, closures and the globals that they read,
so that a changed implementation is a cache miss, also in a new process, and an unchanged
one a hit. Line numbers and comments do not count.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import logging
import sys
import types
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .registration import Registration


log = logging.getLogger("torch._inductor.kernel.custom_op")

# Tensors in closures are hashed by value up to this size.
_LARGEST_TENSOR_BYTES = 2**20
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice)
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)


class Unhashable(Exception):
    """Something in a registration has no content that could be compared."""


def registrations_key() -> str:
    """
    A digest of all registrations.

    All count, not only those of ops in the graph: an implementation may call any op.

    Raises:
        BypassFxGraphCache: where one cannot be hashed; the graph is then not cached.
    """
    from ..codecache import BypassFxGraphCache
    from ..lowering import user_lowerings

    registrations = [
        registration
        for lowering in user_lowerings.values()
        if isinstance(
            registration := getattr(lowering, "registration", None), Registration
        )
    ]
    parts = []
    for registration in sorted(registrations, key=lambda r: str(r.op)):
        try:
            parts.append(fingerprint(registration))
        except Unhashable as e:
            reason = f"{registration.op} has an autotuning registration with {e}"
            log.info("Not cached: %s", reason)
            raise BypassFxGraphCache(reason) from e
    return digest(parts) if parts else ""


def fingerprint(registration: Registration) -> str:
    """A digest of one registration; every field counts."""
    seen = _Seen()
    fields = dataclasses.fields(registration)
    return digest(
        [(field.name, _content(getattr(registration, field.name), seen)) for field in fields]
    )


def digest(content: Any) -> str:
    return hashlib.sha256(repr(content).encode()).hexdigest()


class _Seen:
    """Numbers for functions and objects under way, for those that refer to themselves."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._alive: list[Any] = []

    def number(self, value: Any) -> int | None:
        """The number of a value met before; None for a new one."""
        if id(value) in self._numbers:
            return self._numbers[id(value)]
        self._numbers[id(value)] = len(self._numbers)
        self._alive.append(value)
        return None


@functools.singledispatch
def _content(value: Any, seen: _Seen) -> Any:
    """
    A value whose repr is the same in every process if and only if the content is.

    Raises:
        Unhashable: for an object whose content is unknown.
    """
    if isinstance(value, (*_PLAIN, *_TORCH_VALUES)):
        return (type(value).__name__, repr(value))
    if (number := seen.number(value)) is not None:
        return ("seen", number)
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return ("op", str(value))
    if isinstance(value, torch._library.custom_ops.CustomOpDef):
        return ("custom op", value._qualname, _content(value._init_fn, seen))
    if hasattr(value, "cache_key") and hasattr(value, "arg_names"):
        return ("triton kernel", _qualified_name(value), value.cache_key)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return _object(value, {f.name: getattr(value, f.name) for f in fields}, seen)
    if callable(value) and hasattr(value, "__dict__"):
        return _object(value, vars(value), seen)
    raise Unhashable(f"a {type(value).__qualname__}, which has no hashable content")


def _object(value: Any, state: dict[str, Any], seen: _Seen) -> Any:
    return ("object", _content(type(value), seen), _content(state, seen))


@_content.register
def _(value: tuple | list, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return (type(value).__name__, [_content(item, seen) for item in value])


@_content.register
def _(value: dict, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return ("dict", [(_content(k, seen), _content(v, seen)) for k, v in value.items()])


@_content.register
def _(value: set | frozenset, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return (type(value).__name__, sorted(repr(_content(item, seen)) for item in value))


@_content.register
def _(value: enum.Enum, seen: _Seen) -> Any:
    return ("enum", _qualified_name(type(value)), value.name)


@_content.register
def _(value: torch.Tensor, seen: _Seen) -> Any:
    with _disable_current_modes(), torch.no_grad():
        if value.numel() * value.element_size() > _LARGEST_TENSOR_BYTES:
            raise Unhashable(f"a tensor of {value.numel()} elements")
        raw = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data = hashlib.sha256(bytes(raw.tolist())).hexdigest()
    return ("tensor", str(value.dtype), str(value.device), tuple(value.shape), data)


@_content.register
def _(value: functools.partial, seen: _Seen) -> Any:  # type: ignore[type-arg]
    parts = (value.func, value.args, value.keywords)
    return ("partial", [_content(part, seen) for part in parts])


@_content.register
def _(value: types.MethodType, seen: _Seen) -> Any:
    return ("method", _content(value.__func__, seen), _content(value.__self__, seen))


@_content.register
def _(value: types.BuiltinFunctionType | types.ModuleType, seen: _Seen) -> Any:
    return (type(value).__name__, _qualified_name(value))


@_content.register
def _(value: type, seen: _Seen) -> Any:
    name = _qualified_name(value)
    if _is_library(value) or seen.number(value) is not None:
        return ("class", name)
    members = {k: v for k, v in vars(value).items() if isinstance(v, types.FunctionType)}
    return ("class", name, _content(members, seen))


@_content.register
def _(value: types.FunctionType, seen: _Seen) -> Any:
    name = _qualified_name(value)
    if _is_library(value):
        return ("function", name)
    if (number := seen.number(value)) is not None:
        return ("seen", number)
    cells = [_content(_cell_value(cell), seen) for cell in value.__closure__ or ()]
    defaults = _content((value.__defaults__, value.__kwdefaults__), seen)
    globals_read = [
        (read, _content(value.__globals__[read], seen))
        for read in sorted(_names_read(value.__code__))
        if read in value.__globals__
    ]
    return ("function", name, _code(value.__code__), cells, defaults, globals_read)


def _cell_value(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def _names_read(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= _names_read(const)
    return names


def _code(code: types.CodeType) -> Any:
    """Bytecode without line numbers and file names."""
    consts = [
        _code(const)
        if isinstance(const, types.CodeType)
        else _content(const, _Seen())
        for const in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    return (code.co_code, consts, names, counts, code.co_flags)


def _qualified_name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
    return f"{module}.{name}"


def _is_library(value: Any) -> bool:
    """Torch is in the cache keys as a whole, the standard library comes with Python."""
    root = (getattr(value, "__module__", None) or "").partition(".")[0]
    return root in ("torch", "triton") or root in sys.stdlib_module_names
