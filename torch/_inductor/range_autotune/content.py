"""
Values as digests of their content, the same in every process if and only if that is.

Functions count by their compiled code, defaults, closures, and the globals and module
attributes that they read; objects by their class and attributes. Line numbers and comments
do not count.
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
import inspect
import os
import sys
import types
from typing import Any, TYPE_CHECKING

from torch._library.custom_ops import OPDEFS
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils.weak import WeakTensorKeyDictionary

import torch

from .body_state import may_be_traced
from .code_reads import (
    closed_over,
    globals_read,
    Import,
    imports,
    names_handed_on,
    names_in,
    strings_in,
)
from .op_bodies import (
    decompositions_of,
    is_composite,
    ops_with_functions,
    written_bodies,
)
from .triton_kernels import kernel_parts


if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from torch._library.custom_ops import CustomOpDef

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
_LIBRARIES = frozenset(
    {"torch", "triton", "numpy", "typing_extensions", *sys.stdlib_module_names}
)
_OF_ENVIRONMENT = ("environ", "getenv")
_LOOK_UP_MODULES = frozenset({"modules", "import_module", "__import__"})
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


def content_digest(value: Any) -> str:
    """A digest of any value; raises Unhashable where it has none."""
    return digest(_whole_content(value))


def content_text(value: Any) -> str:
    """
    All that counts of a value, as text: names that its code uses among it.

    Raises Unhashable as ``content_digest`` does.
    """
    return repr(_whole_content(value))


def digest(content: Any) -> str:
    """Of a value whose repr says all."""
    return hashlib.sha256(repr(content).encode()).hexdigest()


def _whole_content(value: Any) -> Any:
    names = _Names()
    try:
        content = _content(value, _Seen(names))
        while names.matter and not names.met <= names.of_modules:
            names = _Names(frozenset(names.met))
            content = _content(value, _Seen(names))
    except RecursionError:
        raise Unhashable("something that contains itself") from None
    environment = names.environment
    return (content, environment) if environment else content


@dataclasses.dataclass
class _Names:
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


class _Seen:
    """
    Numbers for what is under way, for functions and objects that refer to themselves.

    Args:
        names: what is found out about them on the way.
    """

    def __init__(self, names: _Names) -> None:
        self.names = names
        self._numbers: dict[Any, int] = {}
        self._alive: list[Any] = []

    def branch(self) -> _Seen:
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
def _content(value: Any, seen: _Seen) -> Any:
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
    if isinstance(value, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        is_packet = isinstance(value, torch._ops.OpOverloadPacket)
        name = value._qualified_op_name if is_packet else value._schema.name
        return ("op", str(value), _named_op(name, seen))
    if isinstance(value, torch._library.custom_ops.CustomOpDef):
        bodies = written_bodies(value)
        return ("custom op", value._qualname, _content(bodies, seen))
    if (parts := kernel_parts(value)) is not None:
        return ("triton kernel", _content(parts, seen))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ("object", _content((type(value), _attributes(value)), seen))
    return ("object", _content(_pickled_parts(value), seen))


def _attributes(value: Any) -> dict[str, Any]:
    """Of a dataclass's instance, those too that are no fields."""
    names = {field.name for field in dataclasses.fields(value)}
    for owner in type(value).__mro__:
        names |= {k for k, v in vars(owner).items() if _is_slot(v)}
    found = {name: getattr(value, name) for name in names if hasattr(value, name)}
    found.update(getattr(value, "__dict__", {}))
    return dict(sorted(_own_attributes(found).items()))


def _is_slot(member: Any) -> bool:
    return isinstance(member, types.MemberDescriptorType)


def _own_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
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
    start = [_own_attributes(p) if isinstance(p, dict) else p for p in parts[:3]]
    return (*start, *(None if part is None else list(part) for part in parts[3:5]))


def _unhashable(value: Any) -> Unhashable:
    return Unhashable(f"a {type(value).__qualname__}, which has no hashable content")


@_content.register(tuple)
@_content.register(list)
def _(value: tuple | list, seen: _Seen) -> Any:  # type: ignore[type-arg]
    if type(value) not in (tuple, list):
        return _subclass_content(value, seen)
    return (type(value).__name__, [_content(item, seen) for item in value])


@_content.register
def _(value: dict, seen: _Seen) -> Any:  # type: ignore[type-arg]
    if type(value) is not dict:
        return _subclass_content(value, seen)
    return ("dict", [(_content(k, seen), _content(v, seen)) for k, v in value.items()])


@_content.register
def _(value: types.MappingProxyType, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return ("view", _content(dict(value), seen))


@_content.register(set)
@_content.register(frozenset)
def _(value: set | frozenset, seen: _Seen) -> Any:  # type: ignore[type-arg]
    if type(value) not in (set, frozenset):
        raise _unhashable(value)
    return (
        type(value).__name__,
        sorted(repr(_content(item, seen.branch())) for item in value),
    )


def _subclass_content(value: Any, seen: _Seen) -> Any:
    """Of a container whose class may have methods and attributes of its own."""
    if (number := seen.number(value)) is not None:
        return ("seen", number)
    return ("object", _content(_pickled_parts(value), seen))


@_content.register
def _(value: enum.Enum, seen: _Seen) -> Any:
    content = _content((type(value), value.value), seen)
    return ("enum", value.name, content)


@_content.register
def _(value: torch.Tensor, seen: _Seen) -> Any:
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
    return ("tensor", *kind, sha, _content(own, seen))


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


@_content.register
def _(value: functools.partial, seen: _Seen) -> Any:  # type: ignore[type-arg]
    parts = (type(value), value.func, value.args, value.keywords)
    return ("partial", _content((*parts, _own_attributes(vars(value))), seen))


@_content.register(functools._lru_cache_wrapper)
def _(value: Any, seen: _Seen) -> Any:
    return ("cache", _content(_own_attributes(vars(value)), seen))


@_content.register
def _(value: types.MethodType, seen: _Seen) -> Any:
    return ("method", _content(value.__func__, seen), _content(value.__self__, seen))


@_content.register
def _(value: types.BuiltinFunctionType, seen: _Seen) -> Any:
    owner = value.__self__
    if isinstance(owner, types.ModuleType | type) or owner is None:
        return ("builtin", _qualified_name(value))
    return ("builtin", _qualified_name(value), _content(owner, seen))


@_content.register(types.MethodDescriptorType)
@_content.register(types.WrapperDescriptorType)
def _(value: Any, seen: _Seen) -> Any:
    return ("builtin", _qualified_name(value.__objclass__), value.__name__)


@_content.register
def _(value: types.ModuleType, seen: _Seen) -> Any:
    # In a container, say: any code may get it from there.
    has_ops = isinstance(value, torch._ops._Ops | torch._ops._OpNamespace)
    seen.names.matter |= has_ops or not is_library(value)
    return _read(value, seen.names.of_modules, seen)


@_content.register
def _(value: type, seen: _Seen) -> Any:
    name = _qualified_name(value)
    if is_library(value) or seen.number(value) is not None:
        return ("class", name)
    members = {k: v for k, v in vars(value).items() if _is_own_content(k, v)}
    made_of = (type(value), value.__bases__)
    return ("class", name, _content(made_of, seen), _content(members, seen))


def _is_own_content(name: str, member: Any) -> bool:
    """Not the bookkeeping of classes: docstrings, annotations, slots, weak references."""
    if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
        return False
    methods = (types.FunctionType, staticmethod, classmethod, property)
    dunder = name.startswith("__") and name.endswith("__")
    return isinstance(member, methods) or not (dunder or name == "_abc_impl")


@_content.register(staticmethod)
@_content.register(classmethod)
def _(value: Any, seen: _Seen) -> Any:
    return (type(value).__name__, _content(value.__func__, seen))


@_content.register
def _(value: property, seen: _Seen) -> Any:
    return ("property", _content((value.fget, value.fset, value.fdel), seen))


@_content.register
def _(value: functools.cached_property, seen: _Seen) -> Any:  # type: ignore[type-arg]
    return ("property", _content(value.func, seen))


@_content.register
def _(value: types.FunctionType, seen: _Seen) -> Any:
    if (wrapped := _wrapped_for_dynamo(value)) is not None:
        return _content(wrapped, seen)
    name = _qualified_name(value)
    if is_library(value) and (not value.__closure__ or _is_in_its_module(value)):
        return ("function", name)
    if (number := seen.number(value)) is not None:
        return ("seen", number)
    code = value.__code__
    names, strings = names_in(code), strings_in(code) | _strings_read(value)
    seen.names.met |= names | strings
    seen.names.of_environment |= not names.isdisjoint(_OF_ENVIRONMENT)
    by_string = _named_by_strings(value, names, strings)
    handed_on = names_handed_on(code) | by_string.keys()
    cells = [
        _read(cell, None if name in handed_on else names, seen)
        for name, cell in zip(code.co_freevars, closed_over(value))
    ]
    defaults = _content((value.__defaults__, value.__kwdefaults__), seen)
    found = [
        (k, _read(v, None if k in handed_on else names, seen))
        for k, v in {**globals_read(value), **by_string}.items()
    ]
    imported = [
        (statement, _imported(statement, value.__globals__, names, seen))
        for statement in imports(code)
    ]
    own = _content(_own_attributes(vars(value)), seen)
    ops = _ops_named(names | strings, seen) if "ops" in names else []
    reads = (cells, defaults, found, imported, own, ops)
    return ("function", name, _code(code), reads)


def _wrapped_for_dynamo(function: types.FunctionType) -> Any:
    """
    What ``torch.compile`` or ``torch.compiler.disable`` was given to make a function, and
    what it computes; None of others. Theirs have state and numbers of the process.
    """
    is_dynamo = function.__globals__.get("__name__") == "torch._dynamo.eval_frame"
    return vars(function).get("_torchdynamo_orig_callable") if is_dynamo else None


def _strings_read(function: types.FunctionType) -> frozenset[str]:
    """Values of globals and closed-over names that are strings, such as ``__name__``."""
    read = (*globals_read(function).values(), *closed_over(function))
    return frozenset(value for value in read if isinstance(value, str))


def _named_by_strings(
    function: types.FunctionType, names: frozenset[str], strings: frozenset[str]
) -> dict[str, Any]:
    """Globals and modules that code with such names may look up by its strings."""
    tables: list[Any] = []
    if "globals" in names:
        tables.append(function.__globals__)
    if names & _LOOK_UP_MODULES:
        tables.append(sys.modules)
    return {name: t[name] for t in tables for name in sorted(strings & t.keys())}


def _ops_named(names: frozenset[str], seen: _Seen) -> list[Any]:
    """What counts of ops that code with such names may call as ``torch.ops.ns.op``."""
    known = sorted(ops_with_functions())
    found = [name for name in known if names.issuperset(name.split("::"))]
    return [_named_op(name, seen) for name in found]


def _named_op(name: str, seen: _Seen) -> Any:
    """What counts of an op that is called by its name: its bodies, and what replaces it."""
    if is_composite(name):
        raise Unhashable(f"{name}, whose CompositeImplicitAutograd kernel is not known")
    bodies = _bodies_of_named(OPDEFS.get(name))
    return _content((bodies, decompositions_of(name)), seen)


def _is_in_its_module(function: types.FunctionType) -> bool:
    """Under its name, and not made by another function, such as ``torch.vmap``."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _read(value: Any, names: frozenset[str] | None, seen: _Seen) -> Any:
    """
    What code that uses ``names`` can see of a value: of a module not all of it.

    Args:
        names: None if it hands a module on to other code.
    """
    if names is None or not isinstance(value, types.ModuleType):
        return _content(value, seen)
    if isinstance(value, torch._ops._Ops):
        return ("ops", _ops_named(names, seen))
    if isinstance(value, torch._ops._OpNamespace):
        known = ops_with_functions()
        ops = [f"{value.name}::{name}" for name in sorted(names)]
        called = [_named_op(op, seen) for op in ops if op in known]
        return ("ops", value.name, called)
    if is_library(value):
        return ("module", value.__name__)
    if (number := seen.number(value, names)) is not None:
        return ("seen", number)
    known = vars(value)
    found = sorted(names & known.keys())
    attributes = [(name, _read(known[name], names, seen)) for name in found]
    if "__getattr__" in known and names - known.keys():  # of what is not there
        attributes.append(("__getattr__", _content(known["__getattr__"], seen)))
    return ("module", value.__name__, attributes)


def _imported(
    statement: Import, namespace: dict[str, Any], names: frozenset[str], seen: _Seen
) -> Any:
    """What code sees of a module that it imports when it runs."""
    module, imported, level = statement
    if not level and _root(module) in _LIBRARIES:
        return ("module", module)
    try:
        found = __import__(module, namespace, None, imported, level)
    except Exception as e:  # importing runs any code
        raise Unhashable(f"an import of {module!r}, which fails: {e}") from e
    return _read(found, names, seen)


def _bodies_of_named(definition: CustomOpDef | None) -> dict[str | None, Any]:
    """
    What counts of an op that is called by its name, the registered one for one, by kind of
    device. Code that is compiled calls bodies that may not be traced as they then are; what
    they read may be a model's state, changes from call to call, and does not count.
    """
    if definition is None:
        return {}
    op = definition._opoverload
    return {
        device: body if may_be_traced(op, body) else own_code(body)
        for device, body in written_bodies(definition).items()
    }


def own_code(function: Any) -> Any:
    """The code of a function without what it reads; None of what is no function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _code(code) if isinstance(code, types.CodeType) else None


def _code(code: types.CodeType) -> Any:
    """Bytecode without line numbers and file names."""
    consts = [
        _code(const) if isinstance(const, types.CodeType) else _whole_content(const)
        for const in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    handlers = getattr(code, "co_exceptiontable", b"")
    return (code.co_code, consts, names, counts, code.co_flags, handlers)


def _qualified_name(value: Any) -> str:
    module = getattr(value, "__module__", None)
    name = getattr(value, "__qualname__", None) or getattr(value, "__name__", "?")
    return f"{module}.{name}"


def _root(module: str | None) -> str:
    return (module or "").partition(".")[0]


def is_library(value: Any) -> bool:
    """Whether a module, function or class is of torch, Python or what these build on."""
    if isinstance(value, types.ModuleType):
        return _root(value.__name__) in _LIBRARIES
    modules = [getattr(value, "__module__", None)]
    if isinstance(value, types.FunctionType):  # decorators change its __module__
        modules.append(value.__globals__.get("__name__"))
    if modules == ["builtins"]:  # that of a class without a module, too
        return getattr(builtins, getattr(value, "__name__", ""), None) is value
    return all(_root(module) in _LIBRARIES for module in modules)
