"""What counts of code: functions with all that they read, classes, modules and ops."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from typing import Any

from torch._library.custom_ops import CustomOpDef, OPDEFS

import torch

from ..ops.body_state import may_be_traced
from ..ops.op_bodies import (
    decompositions_of,
    is_composite,
    ops_with_functions,
    written_bodies,
)
from .code_reads import (
    closed_over,
    globals_read,
    Import,
    imports,
    names_handed_on,
    names_in,
    strings_in,
)
from .content_of_values import (
    content_of,
    is_library,
    LIBRARIES,
    Names,
    own_attributes,
    qualified_name,
    root_module,
    Seen,
    Unhashable,
)


_OF_ENVIRONMENT = ("environ", "getenv")
_LOOK_UP_MODULES = frozenset({"modules", "import_module", "__import__"})


@content_of.register
def _(value: torch._ops.OpOverload, seen: Seen) -> Any:
    return ("op", str(value), _named_op(value._schema.name, seen))


@content_of.register
def _(value: torch._ops.OpOverloadPacket, seen: Seen) -> Any:
    return ("op", str(value), _named_op(value._qualified_op_name, seen))


@content_of.register
def _(value: CustomOpDef, seen: Seen) -> Any:
    name = value._qualname
    parts = written_bodies(value), decompositions_of(name)
    return ("custom op", name, content_of(parts, seen))


@content_of.register
def _(value: types.MethodType, seen: Seen) -> Any:
    return (
        "method",
        content_of(value.__func__, seen),
        content_of(value.__self__, seen),
    )


@content_of.register
def _(value: types.BuiltinFunctionType, seen: Seen) -> Any:
    owner = value.__self__
    if isinstance(owner, types.ModuleType | type) or owner is None:
        return ("builtin", qualified_name(value))
    return ("builtin", qualified_name(value), content_of(owner, seen))


@content_of.register(types.MethodDescriptorType)
@content_of.register(types.WrapperDescriptorType)
def _(value: Any, seen: Seen) -> Any:
    return ("builtin", qualified_name(value.__objclass__), value.__name__)


@content_of.register
def _(value: types.ModuleType, seen: Seen) -> Any:
    # In a container, say: any code may get it from there.
    has_ops = isinstance(value, torch._ops._Ops | torch._ops._OpNamespace)
    seen.names.matter |= has_ops or not is_library(value)
    return _read(value, seen.names.of_modules, seen)


@content_of.register
def _(value: type, seen: Seen) -> Any:
    name = qualified_name(value)
    if is_library(value) or seen.number(value) is not None:
        return ("class", name)
    members = {k: v for k, v in vars(value).items() if _is_own_content(k, v)}
    made_of = (type(value), value.__bases__)
    return ("class", name, content_of(made_of, seen), content_of(members, seen))


def _is_own_content(name: str, member: Any) -> bool:
    """Not the bookkeeping of classes: docstrings, annotations, slots, weak references."""
    if isinstance(member, types.MemberDescriptorType | types.GetSetDescriptorType):
        return False
    methods = (types.FunctionType, staticmethod, classmethod, property)
    dunder = name.startswith("__") and name.endswith("__")
    return isinstance(member, methods) or not (dunder or name == "_abc_impl")


@content_of.register(staticmethod)
@content_of.register(classmethod)
def _(value: Any, seen: Seen) -> Any:
    return (type(value).__name__, content_of(value.__func__, seen))


@content_of.register
def _(value: property, seen: Seen) -> Any:
    return ("property", content_of((value.fget, value.fset, value.fdel), seen))


@content_of.register(functools.cached_property)
def _(value: Any, seen: Seen) -> Any:
    return ("property", content_of(value.func, seen))


@content_of.register
def _(value: types.FunctionType, seen: Seen) -> Any:
    if (wrapped := _wrapped_for_dynamo(value)) is not None:
        return content_of(wrapped, seen)
    name = qualified_name(value)
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
    defaults = content_of((value.__defaults__, value.__kwdefaults__), seen)
    found = [
        (k, _read(v, None if k in handed_on else names, seen))
        for k, v in {**globals_read(value), **by_string}.items()
    ]
    imported = [
        (statement, _imported(statement, value.__globals__, names, seen))
        for statement in imports(code)
    ]
    own = content_of(own_attributes(vars(value)), seen)
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


def _ops_named(names: frozenset[str], seen: Seen) -> list[Any]:
    """What counts of ops that code with such names may call as ``torch.ops.ns.op``."""
    known = sorted(ops_with_functions())
    found = [name for name in known if names.issuperset(name.split("::"))]
    return [_named_op(name, seen) for name in found]


def _named_op(name: str, seen: Seen) -> Any:
    """What counts of an op that is called by its name: its bodies, and what replaces it."""
    if is_composite(name):
        raise Unhashable(f"{name}, whose CompositeImplicitAutograd kernel is not known")
    bodies = _bodies_of_named(OPDEFS.get(name))
    return content_of((bodies, decompositions_of(name)), seen)


def _is_in_its_module(function: types.FunctionType) -> bool:
    """Under its name, and not made by another function, such as ``torch.vmap``."""
    found: Any = sys.modules.get(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _read(value: Any, names: frozenset[str] | None, seen: Seen) -> Any:
    """
    What code that uses ``names`` can see of a value: of a module not all of it.

    Args:
        names: None if it hands a module on to other code.
    """
    if names is None or not isinstance(value, types.ModuleType):
        return content_of(value, seen)
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
        attributes.append(("__getattr__", content_of(known["__getattr__"], seen)))
    return ("module", value.__name__, attributes)


def _imported(
    statement: Import, namespace: dict[str, Any], names: frozenset[str], seen: Seen
) -> Any:
    """What code sees of a module that it imports when it runs."""
    module, imported, level = statement
    if not level and root_module(module) in LIBRARIES:
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
        device: body if may_be_traced(op, body) else _own_code(body)
        for device, body in written_bodies(definition).items()
    }


def _own_code(function: Any) -> Any:
    """The code of a function without what it reads; None of what is no function."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return _code(code) if isinstance(code, types.CodeType) else None


def _code(code: types.CodeType) -> Any:
    """Bytecode without line numbers and file names."""
    consts = [
        _code(const)
        if isinstance(const, types.CodeType)
        else content_of(const, Seen(Names()))
        for const in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount)
    handlers = getattr(code, "co_exceptiontable", b"")
    return (code.co_code, consts, names, counts, code.co_flags, handlers)
