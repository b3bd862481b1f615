"""
Whether a custom op's body computes the same from the same arguments, now and later.

Code that is compiled without a registration calls such an op eagerly. Where its body competes
it is traced instead: variables would become constants, and caches be filled with fake tensors.
"""

from __future__ import annotations

import types
from typing import Any, TYPE_CHECKING

from torch._library.triton import triton_ops_to_kernels

import torch

from ..contents.code_reads import (
    closed_over,
    globals_read,
    imports,
    names_in,
    operands_of,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_WITHOUT_STATE = ("torch", "math", "operator", "builtins", "itertools", "typing")
# Builtins and functions of torch that read or change what is no argument.
_WITH_EFFECTS = frozenset(
    [
        "__array__",
        "__class__",
        "__import__",
        "_base",
        "_is_view",
        "_version",
        "backends",
        "breakpoint",
        "config",
        "data_ptr",
        "default_generator",
        "delattr",
        "environ",
        "eval",
        "exec",
        "fill_uninitialized_memory",
        "get_rank",
        "get_rng_state",
        "get_world_size",
        "getattr",
        "getenv",
        "globals",
        "hasattr",
        "initial_seed",
        "input",
        "is_anomaly_enabled",
        "is_compiling",
        "is_dynamo_compiling",
        "is_exporting",
        "is_fx_tracing",
        "is_inference",
        "is_inference_mode_enabled",
        "is_tracing",
        "load",
        "locals",
        "manual_seed",
        "numpy",
        "open",
        "print",
        "save",
        "seed",
        "set_default_device",
        "set_default_dtype",
        "set_device",
        "set_float32_matmul_precision",
        "set_grad_enabled",
        "set_num_threads",
        "setattr",
        "storage_offset",
        "tolist",
        "untyped_storage",
        "use_deterministic_algorithms",
        "vars",
    ]
)
# Compiled code has random numbers of its own, others than a body that is called.
_OF_CHANCE = frozenset(
    [
        "alpha_dropout",
        "bernoulli",
        "bernoulli_",
        "cauchy_",
        "dropout",
        "exponential_",
        "feature_dropout",
        "geometric_",
        "log_normal_",
        "multinomial",
        "normal",
        "normal_",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "random_",
        "randperm",
        "uniform_",
    ]
)
_STORES = ("STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL")
# Builtins that tell something else of what stands for a tensor while a function is traced.
_OF_OBJECTS = frozenset(["id", "type"])
_CONSTANTS = (type(None), bool, int, float, complex, str, torch.dtype)
_OPS = (
    torch._ops.OpOverload,
    torch._ops.OpOverloadPacket,
    torch._library.custom_ops.CustomOpDef,
)


def may_be_traced(op: torch._ops.OpOverload, body: Callable[..., Any]) -> bool:
    """
    Whether a custom op's body may be traced in its place: it computes the same always, or
    it is that of a ``torch.library.triton_op``, which is for that.

    Args:
        body: as its author wrote it.
    """
    return op._schema.name in triton_ops_to_kernels or not may_read_state(body)


def may_read_state(body: Callable[..., Any]) -> bool:
    """
    Whether a function, or one that it calls, reads more than its arguments: variables of
    modules and closures, constant or not, or objects that may remember, such as a cache;
    or does more than computing, such as printing.

    Args:
        body: a custom op's, as its author wrote it.
    """
    return _is_stateful(body, set())


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
    if _does_more(value.__code__):
        return True
    return any(_is_stateful(read, seen) for read in _read_by(value))


def _does_more(code: types.CodeType) -> bool:
    """Whether code by itself does more than computing, or names what is no argument."""
    told = _OF_OBJECTS.intersection(operands_of(code, "LOAD_GLOBAL", "LOAD_NAME"))
    named = (_WITH_EFFECTS | _OF_CHANCE) & names_in(code)
    return bool(told or named or operands_of(code, *_STORES))


def _read_by(function: types.FunctionType) -> Iterator[Any]:
    """What a function reads besides its arguments; of modules and ops what it names of them."""
    code = function.__code__
    defaults = [*(function.__defaults__ or ())]
    defaults += (function.__kwdefaults__ or {}).values()
    read = [value for value in defaults if not isinstance(value, _CONSTANTS)]
    read += [*closed_over(function), *globals_read(function).values()]
    for value in read:
        is_module = isinstance(value, types.ModuleType)
        is_op = isinstance(value, torch._library.custom_ops.CustomOpDef)
        if is_op or (is_module and not _is_known(value.__name__)):
            used = names_in(code) & vars(value).keys()
            yield from (vars(value)[name] for name in used)
        else:
            yield value
    for module, _, level in imports(code):
        if level or not _is_known(module):
            yield None  # whatever is in it
