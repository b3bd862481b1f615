"""
What counts of a value: numbers and strings, containers, objects, tensors.

What counts of functions, classes and modules is in ``content_of_code.py``.
"""

from __future__ import annotations

import builtins
import copy
import copyreg
import ctypes
import dataclasses
import enum
import functools
import hashlib
import os
import sys
import types
from typing import Any, TYPE_CHECKING

from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

import torch

from .triton_kernels import kernel_parts


if TYPE_CHECKING:
    from collections.abc import MutableMapping

# Tensors in closures are hashed by value up to this size, which takes 0.2 s; above the other
# once, as long as PyTorch knows of no write.
_LARGEST_TENSOR_BYTES = 2**28
_HASHED_ONCE_BYTES = 2**20
# Of these: their versions and digests.
_tensors_hashed: MutableMapping[torch.Tensor, tuple[int, str]] = (
    WeakTensorKeyDictionary()
)
_PLAIN = (type(None), bool, int, float, complex, str, bytes, type(...), range, slice)
# Torch is in the cache keys as a whole, the standard library comes with Python, and what
# numpy's functions return does not change. Decorators of torch come from typing_extensions.
LIBRARIES = frozenset(
    {"torch", "triton", "numpy", "typing_extensions", *sys.stdlib_module_names}
)
# Attributes that decorators copy, and that do not change what an object computes.
_COPIED = (
    "__doc__",
    "__annotations__",
    "__annotate__",
    "__type_params__",
    "_torchdynamo_wrapper_id",
)
_TORCH_VALUES = (
    torch.dtype,
    torch.device,
    torch.layout,
    torch.memory_format,
    torch.Size,
)


class Unhashable(Exception):
    """Something has no content that could be compared."""


@dataclasses.dataclass
class Names:
    """
    Names in code, for what it is not known from which code they are read.

    Args:
        of_modules: what counts of a module that code hands on.
        met: in all code that was looked at, and strings that may be names.
        matter: whether there was such a module.
        of_environment: whether there was code that reads the process's environment.
    """

    of_modules: frozenset[str] = frozenset()
    met: set[str] = dataclasses.field(default_factory=set)
    matter: bool = False
    of_environment: bool = False

    @property
    def environment(self) -> list[tuple[str, str]]:
        """The variables that code may read, with their values."""
        known = self.met & os.environ.keys() if self.of_environment else ()
        return [(name, os.environ[name]) for name in sorted(known)]


class Seen:
    """
    Numbers for what is under way, for functions and objects that refer to themselves.

    Args:
        names: what is found out about them on the way.
    """

    def __init__(self, names: Names) -> None:
        self.names = names
        self._numbers: dict[Any, int] = {}
        self._alive: list[Any] = []

    def branch(self) -> Seen:
        """For a part whose place among the others is not known yet."""
        branch = copy.copy(self)
        branch._numbers = dict(self._numbers)
        return branch

    def number(self, value: Any, names: frozenset[str] | None = None) -> int | None:
        """The number of a value met before, with the same names; None for a new one."""
        key = (id(value), names)
        if key in self._numbers:
            return self._numbers[key]
        self._numbers[key] = len(self._numbers)
        self._alive.append(value)
        return None


@functools.singledispatch
def content_of(value: Any, seen: Seen) -> Any:
    """
    A value whose repr is the same in every process if and only if the content is.

    Raises:
        Unhashable: for an object whose content is unknown.
    """
    if type(value) in _PLAIN or isinstance(value, _TORCH_VALUES):
        if isinstance(value, str):
            seen.names.met.add(value)
        return (type(value).__name__, repr(value))
    if (number := seen.number(value)) is not None:
        return ("seen", number)
    if (parts := kernel_parts(value)) is not None:
        return ("triton kernel", content_of(parts, seen))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ("object", content_of((type(value), _attributes(value)), seen))
    return ("object", content_of(_pickled_parts(value), seen))


def _attributes(value: Any) -> dict[str, Any]:
    """Of a dataclass's instance, those too that are no fields."""
    names = {field.name for field in dataclasses.fields(value)}
    for owner in type(value).__mro__:
        names |= {k for k, v in vars(owner).items() if _is_slot(v)}
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    found.update(getattr(value, "__dict__", {}))
    return dict(sorted(own_attributes(found).items()))


def _is_slot(member: Any) -> bool:
    return isinstance(member, types.MemberDescriptorType)


def own_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Without those that decorators copy, and that change nothing."""
    return {k: v for k, v in attributes.items() if k not in _COPIED}


def _pickled_parts(value: Any) -> tuple[Any, ...] | str:
    """What an object would be pickled as: its class and its state, or a library's name."""
    try:
        reduce = copyreg.dispatch_table.get(type(value))
        parts: Any = reduce(value) if reduce else value.__reduce_ex__(2)
    except Exception as e:  # objects refuse to be pickled in many ways
        raise _unhashable(value) from e
    if isinstance(parts, str):
        if is_library(value) and is_library(type(value)):
            return f"{value.__module__}.{parts}"
        raise _unhashable(value)
    start = [own_attributes(p) if isinstance(p, dict) else p for p in parts[:3]]
    return (*start, *(None if part is None else list(part) for part in parts[3:5]))


def _unhashable(value: Any) -> Unhashable:
    return Unhashable(f"a {type(value).__qualname__}, which has no hashable content")


@content_of.register(tuple)
@content_of.register(list)
def _(value: tuple | list, seen: Seen) -> Any:  # type: ignore[type-arg]
    if type(value) not in (tuple, list):
        return _subclass_content(value, seen)
    return (type(value).__name__, [content_of(item, seen) for item in value])


@content_of.register
def _(value: dict, seen: Seen) -> Any:  # type: ignore[type-arg]
    if type(value) is not dict:
        return _subclass_content(value, seen)
    return (
        "dict",
        [(content_of(k, seen), content_of(v, seen)) for k, v in value.items()],
    )


@content_of.register
def _(value: types.MappingProxyType, seen: Seen) -> Any:  # type: ignore[type-arg]
    return ("view", content_of(dict(value), seen))


@content_of.register(set)
@content_of.register(frozenset)
def _(value: set | frozenset, seen: Seen) -> Any:  # type: ignore[type-arg]
    if type(value) not in (set, frozenset):
        raise _unhashable(value)
    return (
        type(value).__name__,
        sorted(repr(content_of(item, seen.branch())) for item in value),
    )


def _subclass_content(value: Any, seen: Seen) -> Any:
    """Of a container whose class may have methods and attributes of its own."""
    if (number := seen.number(value)) is not None:
        return ("seen", number)
    return ("object", content_of(_pickled_parts(value), seen))


@content_of.register
def _(value: enum.Enum, seen: Seen) -> Any:
    content = content_of((type(value), value.value), seen)
    return ("enum", value.name, content)


@content_of.register
def _(value: torch.Tensor, seen: Seen) -> Any:
    if isinstance(value, FakeTensor):  # whose sizes may be symbolic
        raise _unhashable(value)
    if _size_bytes(value) > _LARGEST_TENSOR_BYTES:
        raise Unhashable(f"a tensor of {value.numel()} elements")
    try:
        sha = _tensor_digest(value)
    except Exception as e:  # tensors without data, or with another layout
        raise Unhashable(f"a tensor whose data cannot be read: {e}") from e
    own = None if is_library(type(value)) else (type(value), vars(value))
    kind = (str(value.dtype), str(value.device), tuple(value.shape), value.stride())
    return ("tensor", *kind, sha, content_of(own, seen))


def _size_bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _tensor_digest(tensor: torch.Tensor) -> str:
    """Of its values; of a large one that was hashed before, and not written to, that."""
    if _size_bytes(tensor) <= _HASHED_ONCE_BYTES or tensor.is_inference():
        return _values_digest(tensor)
    version, sha = _tensors_hashed.get(tensor, (None, ""))
    if version != tensor._version:
        version, sha = tensor._version, _values_digest(tensor)
        _tensors_hashed[tensor] = version, sha
    return sha


def _values_digest(tensor: torch.Tensor) -> str:
    with _disable_current_modes(), torch.no_grad():
        raw = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return _memory_digest(raw.reshape(-1).view(torch.uint8))


def _memory_digest(data: torch.Tensor) -> str:
    """
    Of a tensor's memory as a whole: a list of its elements takes 20 times as long.

    Args:
        data: contiguous bytes on the CPU.

    Raises:
        ValueError: where they are not in the tensor, but in others that it stands for.
    """
    address, size_bytes = data.data_ptr(), data.numel()
    if size_bytes and not address:
        raise ValueError("it has no memory of its own")
    memory = (ctypes.c_char * size_bytes).from_address(address) if size_bytes else b""
    return hashlib.sha256(memory).hexdigest()


@content_of.register
def _(value: functools.partial, seen: Seen) -> Any:  # type: ignore[type-arg]
    parts = (type(value), value.func, value.args, value.keywords)
    return ("partial", content_of((*parts, own_attributes(vars(value))), seen))


@content_of.register(functools._lru_cache_wrapper)
def _(value: Any, seen: Seen) -> Any:
    return ("cache", content_of(own_attributes(vars(value)), seen))


def qualified_name(value: Any) -> str:
    """Of a function or class, with its module."""
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
    return f"{module}.{name}"


def root_module(module: str | None) -> str:
    """The package that a module is in."""
    return (module or "").partition(".")[0]


def is_library(value: Any) -> bool:
    """Whether a module, function or class is of torch, Python or what these build on."""
    if isinstance(value, types.ModuleType):
        return root_module(value.__name__) in LIBRARIES
    modules = [getattr(value, "__module__", None)]
    if isinstance(value, types.FunctionType):  # decorators change its __module__
        modules.append(value.__globals__.get("__name__"))
    if modules == ["builtins"]:  # that of a class without a module, too
        return getattr(builtins, getattr(value, "__name__", ""), None) is value
    return all(root_module(module) in LIBRARIES for module in modules)
