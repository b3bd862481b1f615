"""
What an implementation is called with, given what the op was called with.

An implementation need not repeat the op's signature: it may name its tensors otherwise,
leave out parameters that have their default value, and take tuning parameters of its own.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_POSITIONAL = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
)
# By number, as in c10's enumerations.
_KINDS = {
    "Layout": (
        torch.strided,
        torch.sparse_coo,
        torch.sparse_csr,
        torch._mkldnn,  # type: ignore[missing-attribute]  # has no stub
        torch.sparse_csc,
        torch.sparse_bsr,
        torch.sparse_bsc,
        torch.jagged,  # type: ignore[missing-attribute]  # has no stub
    ),
    "MemoryFormat": (
        torch.contiguous_format,
        torch.preserve_format,
        torch.channels_last,
        torch.channels_last_3d,
    ),
}
_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def implementation_name(fn: Callable[..., Any]) -> str:
    """A name for messages and logs: functions, partials, bound methods, callable objects."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    if isinstance(fn, torch._library.custom_ops.CustomOpDef):
        return fn._name
    if isinstance(fn, torch.jit.ScriptFunction):
        return fn.name  # type: ignore[return-value]  # a property
    return getattr(fn, "__name__", None) or type(fn).__name__


def arguments_by_name(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """What an op is called with, without the defaults, as Python has it."""
    given = {**dict(zip(argument_names(op), args)), **kwargs}
    return {
        argument.name: _in_python(argument, given[argument.name])
        for argument in op._schema.arguments
        if argument.name in given
    }


def all_arguments(
    op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """What an op is called with, by name in its order, defaults included."""
    given = arguments_by_name(op, args, kwargs)
    return {a.name: given.get(a.name, default_of(a)) for a in op._schema.arguments}


def argument_names(op: torch._ops.OpOverload) -> list[str]:
    """The op's parameters, in its order."""
    return [argument.name for argument in op._schema.arguments]


def written_arguments(op: torch._ops.OpOverload) -> list[str]:
    """The arguments that an op writes to."""
    return [a.name for a in op._schema.arguments if a.is_write]


def values_written(op: torch._ops.OpOverload, given: Mapping[str, Any]) -> list[Any]:
    """
    What a call of an op writes to, flat; without arguments that are None.

    Args:
        given: what it is called with, by name.
    """
    written = [given.get(name) for name in written_arguments(op)]
    return [value for value in pytree.tree_leaves(written) if value is not None]


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Those in nested arguments or results, in order."""
    leaves = pytree.tree_leaves(value)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def is_tensor_argument(argument: torch._C.Argument) -> bool:
    """Whether it holds one tensor, maybe None."""
    kind = argument.type
    if isinstance(kind, torch.OptionalType):
        kind = kind.getElementType()
    return isinstance(kind, torch.TensorType)


def may_hold_tensors(argument: torch._C.Argument) -> bool:
    """Whether it holds tensors, one or a list."""
    return "Tensor" in str(argument.type)


def _parameters(fn: Callable[..., Any]) -> Mapping[str, inspect.Parameter] | None:
    """None where they are unknown."""
    if isinstance(fn, torch._library.custom_ops.CustomOpDef):
        fn = fn._opoverload
    try:
        if isinstance(fn, torch._ops.OpOverload):
            return {a.name: _schema_parameter(a) for a in fn._schema.arguments}
        return inspect.signature(_forward_of_module(fn)).parameters
    except (TypeError, ValueError):  # builtins without a text signature
        return None


def _forward_of_module(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What a module, or a partial of one, takes; calling it takes anything."""
    if isinstance(fn, functools.partial):
        inner = _forward_of_module(fn.func)
        return functools.partial(inner, *fn.args, **fn.keywords)
    return fn.forward if isinstance(fn, torch.nn.Module) else fn


def _schema_parameter(argument: torch._C.Argument) -> inspect.Parameter:
    kind = inspect.Parameter
    return inspect.Parameter(
        argument.name,
        kind.KEYWORD_ONLY if argument.kwarg_only else kind.POSITIONAL_OR_KEYWORD,
        default=default_of(argument) if argument.has_default_value() else kind.empty,
    )


def default_of(argument: torch._C.Argument) -> Any:
    """An argument's default as Python has it; None where there is none."""
    return _in_python(argument, argument.default_value)


def _in_python(argument: torch._C.Argument, value: Any) -> Any:
    """
    An argument's value as a kernel in Python gets it: schemas, and graphs with their
    defaults filled in, have integers for dtypes, layouts and memory formats.
    """
    if not isinstance(value, int):
        return value
    kind = str(argument.real_type).removeprefix("Optional[").removesuffix("]")
    if kind == "ScalarType":
        return torch.ops.aten.empty.memory_format([0], dtype=value, device="meta").dtype
    return _KINDS[kind][value] if kind in _KINDS else value


def check_params(
    op: torch._ops.OpOverload,
    impl: Callable[..., Any] | None,
    params: Mapping[str, Any],
) -> None:
    """
    Raises ValueError if a tuning parameter is one that nothing takes.

    Args:
        impl: the implementation, None for the op itself.
    """
    if impl is None:
        who, known = f"op {op}", argument_names(op)
    else:
        parameters = _parameters(impl)
        if parameters is None or _takes_any_keyword(parameters):
            return
        who = f"implementation '{implementation_name(impl)}' of {op}"
        known = _named(parameters)
    unknown = [name for name in params if name not in known]
    if unknown:
        raise ValueError(
            f"Unknown parameter '{unknown[0]}' in a config for {op}: {who} has no such "
            f"parameter. Its parameters: {known}"
        )


def check_callable_for(
    op: torch._ops.OpOverload, impl: Callable[..., Any], params: Mapping[str, Any]
) -> None:
    """
    Raises TypeError if no call of the op can be a call of an implementation: if a parameter
    that one of the two needs is none of the other's.
    """
    parameters = _parameters(impl)
    if parameters is None:
        return
    schema = op._schema.arguments
    needed = [a for a in schema if not a.has_default_value()]
    values = {a.name: default_of(a) for a in schema} | {a.name: ... for a in needed}
    tensor_names = frozenset(a.name for a in needed if may_hold_tensors(a))
    args, kwargs = bind(op, impl, values, tensor_names, params)
    try:
        inspect.Signature([*parameters.values()]).bind(*args, **kwargs)
    except TypeError as e:
        raise TypeError(
            f"implementation '{implementation_name(impl)}' of {op} cannot be called with "
            f"the op's parameters {argument_names(op)} and those of its config "
            f"{[*params]}: {e}"
        ) from None


def _named(parameters: Mapping[str, inspect.Parameter]) -> list[str]:
    return [name for name, p in parameters.items() if p.kind not in _VARIADIC]


def _takes_any_keyword(parameters: Mapping[str, inspect.Parameter]) -> bool:
    return any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())


def bind(
    op: torch._ops.OpOverload,
    impl: Callable[..., Any],
    values: Mapping[str, Any],
    tensor_names: frozenset[str],
    params: Mapping[str, Any],
) -> tuple[list[Any], dict[str, Any]]:
    """
    The positional and keyword arguments for one call of an implementation.

    Arguments go to the parameter of their name; tensors without one, and Nones in place
    of tensors, go in the op's order to the positional parameters that nothing else fills
    and that have no default but None. Tuning parameters win over the op's arguments.

    Args:
        values: every argument of the op by name, in the op's order, defaults included.
        tensor_names: those of ``values`` that hold tensors or lists of tensors.
        params: the candidate's tuning parameters.

    Raises:
        TypeError: if an argument that is not at its default has nowhere to go; names
            both.
    """
    merged = {**values, **params}
    parameters = _parameters(impl)
    if parameters is None:
        return _bind_uninspected(merged, tensor_names)
    maybe_none = {a.name for a in op._schema.arguments if is_tensor_argument(a)}
    named = _named(parameters)
    unnamed = [
        name
        for name, value in values.items()
        if name not in named
        and (name in tensor_names or (value is None and name in maybe_none))
    ]
    args, kwargs, used = _fill(parameters, merged, unnamed)
    left = {name: value for name, value in merged.items() if name not in used}
    if _takes_any_keyword(parameters):
        return args, {**kwargs, **left}
    _check_left_out(op, impl, left)
    return args, kwargs


def _bind_uninspected(
    merged: Mapping[str, Any], tensor_names: frozenset[str]
) -> tuple[list[Any], dict[str, Any]]:
    args = [value for name, value in merged.items() if name in tensor_names]
    kwargs = {
        name: value
        for name, value in merged.items()
        if name not in tensor_names and value is not None
    }
    return args, kwargs


def _fill(
    parameters: Mapping[str, inspect.Parameter],
    merged: Mapping[str, Any],
    unnamed: list[str],
) -> tuple[list[Any], dict[str, Any], set[str]]:
    """Positional arguments as long as every parameter has one, keywords from then on."""
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    used: set[str] = set()
    positional = True
    queue = list(unnamed)
    for name, parameter in parameters.items():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL and positional:
            args += [merged[tensor] for tensor in queue if merged[tensor] is not None]
            used.update(queue)
            queue.clear()
        if parameter.kind in _VARIADIC:
            continue
        positional = positional and parameter.kind in _POSITIONAL
        source = name
        if name not in merged and queue and _takes_unnamed(parameter):
            source = queue.pop(0)
        if source in merged:
            used.add(source)
            value = merged[source]
        elif positional and parameter.default is not inspect.Parameter.empty:
            value = parameter.default
        else:
            positional = False
            continue
        if positional:
            args.append(value)
        else:
            kwargs[name] = value
    return args, kwargs, used


def _takes_unnamed(parameter: inspect.Parameter) -> bool:
    return parameter.kind in _POSITIONAL and (
        parameter.default is None or parameter.default is inspect.Parameter.empty
    )


def _check_left_out(
    op: torch._ops.OpOverload, impl: Callable[..., Any], left: Mapping[str, Any]
) -> None:
    defaults = {
        argument.name: default_of(argument)
        for argument in op._schema.arguments
        if argument.has_default_value()
    }
    for name, value in left.items():
        if name in defaults and same_value(value, defaults[name]):
            continue
        why = "is not at its default here" if name in defaults else "has no default"
        raise TypeError(
            f"implementation '{implementation_name(impl)}' of {op} does not take the "
            f"op's parameter '{name}', which {why}"
        )


def same_value(value: Any, other: Any) -> bool:
    """Whether two arguments are known to be equal."""
    try:
        return bool(value is other or value == other)
    except Exception:  # tensors, symbolic values: anything that has no plain truth
        return False
