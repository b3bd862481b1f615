"""
From what users pass to what is registered: the op and how it is tuned.

All checks that need no shapes happen before anything is registered; those of configs are in
``contests.py``.
"""

from __future__ import annotations

import contextlib
import logging
import numbers
from collections.abc import Mapping
from types import NoneType
from typing import Any, TYPE_CHECKING

import torch

from ..ranges import as_int
from ..registration import NUMERICS_CHECKS, TuningOptions
from .signatures import argument_names, may_hold_tensors


if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..registration import InputGenFns

log = logging.getLogger("torch._inductor.kernel.custom_op")


@contextlib.contextmanager
def naming(op: torch._ops.OpOverload) -> Iterator[None]:
    """Has errors that checks in the block raise say which op they are about."""
    try:
        yield
    except (TypeError, ValueError) as e:
        if str(op) not in str(e):
            e.args = (f"{e} (registering {op})",)
        raise


def parse_op(custom_op: Any) -> torch._ops.OpOverload:
    """Raises TypeError if it is neither a CustomOpDef nor an overload."""
    if isinstance(custom_op, torch._library.custom_ops.CustomOpDef):
        return custom_op._opoverload
    if isinstance(custom_op, torch._ops.OpOverload):
        return custom_op
    message = f"custom_op must be a CustomOpDef or OpOverload, got {type(custom_op)}."
    if isinstance(custom_op, torch._ops.OpOverloadPacket):
        overloads = ", ".join(f"{custom_op}.{name}" for name in custom_op.overloads())
        message += f" {custom_op} has overloads, give one of them: {overloads}"
    raise TypeError(message)


def parse_name(op: torch._ops.OpOverload, name: Any) -> str:
    """The name in logs, by default the op's; raises TypeError if it is no string."""
    if not isinstance(name, str | NoneType):
        raise TypeError(f"name of {op} must be a string, got {name!r}")
    return name or f"{op._name}_autotuned"


def parse_options(
    op: torch._ops.OpOverload,
    *,
    input_gen_fns: Any,
    min_speedup_threshold: Any,
    benchmark_with_cudagraphs: Any,
    include_fallback: Any = True,
    unbounded_size: int | None = None,
    representative_sizes: Any = None,
    numerics_check: Any = "off",
) -> TuningOptions:
    """
    How an op is tuned, from what users pass.

    Args:
        unbounded_size: checked already; the others as users pass them.

    Raises:
        TypeError, ValueError: if one is not as described.
    """
    _check_min_speedup_threshold(op, min_speedup_threshold)
    _check_switch(op, "benchmark_with_cudagraphs", benchmark_with_cudagraphs)
    _check_switch(op, "include_fallback", include_fallback)
    _check_numerics_check(op, numerics_check)
    return TuningOptions(
        input_gen_fns=_input_gen_fns(op, input_gen_fns),
        min_speedup_threshold=min_speedup_threshold,
        benchmark_with_cudagraphs=benchmark_with_cudagraphs,
        include_fallback=include_fallback,
        unbounded_size=unbounded_size,
        representative_sizes=_representative_sizes(op, representative_sizes),
        numerics_check=numerics_check,
    )


def _input_gen_fns(op: torch._ops.OpOverload, input_gen_fns: Any) -> InputGenFns:
    """
    Raises ValueError or TypeError for a name that the op lacks or a non-callable; warns of
    one that is never called.
    """
    if not isinstance(input_gen_fns, Mapping | NoneType):
        raise TypeError(
            f"input_gen_fns of {op} must be a dict from argument names to callables, got "
            f"{type(input_gen_fns)}"
        )
    known = argument_names(op)
    for name, generate in (input_gen_fns or {}).items():
        if name not in known:
            raise ValueError(
                f"Unknown argument name '{name}' in input_gen_fns. "
                f"Available argument names: {known}"
            )
        if not callable(generate):
            raise TypeError(
                f"input_gen_fns['{name}'] of {op} must be callable, got "
                f"{type(generate)}"
            )
    for argument in op._schema.arguments:
        is_given = argument.name in (input_gen_fns or {})
        if is_given and not may_hold_tensors(argument):
            log.warning(
                "input_gen_fns['%s'] of %s is never called: the argument is of type %s, "
                "and only tensors are made up for benchmarks. Leave it out",
                argument.name,
                op,
                argument.type,
            )
    return dict(input_gen_fns or {})


def _representative_sizes(op: torch._ops.OpOverload, sizes: Any) -> tuple[int, ...]:
    """Raises TypeError if it is no list, ValueError if it is empty or one is not a size."""
    if sizes is None:
        return ()
    if not isinstance(sizes, (list, tuple)):
        raise TypeError(
            f"representative_sizes of {op} must be a list or tuple, got {type(sizes)}"
        )
    if not sizes:
        raise ValueError(
            f"representative_sizes of {op} is empty; leave it out for the default sizes"
        )
    sizes = [*map(as_int, sizes)]
    for i, size in enumerate(sizes):
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"representative_sizes[{i}] of {op} must be an integer of at least 1, "
                f"got {size!r}"
            )
    return tuple(sizes)


def _check_numerics_check(op: torch._ops.OpOverload, value: Any) -> None:
    if value not in NUMERICS_CHECKS:
        raise ValueError(
            f"numerics_check of {op} must be one of {list(NUMERICS_CHECKS)}, got {value!r}"
        )


def _check_switch(op: torch._ops.OpOverload, name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} of {op} must be True or False, got {value!r}")


def _check_min_speedup_threshold(op: torch._ops.OpOverload, value: Any) -> None:
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not float(value) >= 0:
        raise ValueError(
            f"min_speedup_threshold of {op} must be a number of at least 0, got {value!r}"
        )


def warn_if_decomposed(op: torch._ops.OpOverload) -> None:
    """Says so if no graph that Inductor compiles will have the op."""
    if op._can_decompose():
        log.warning(
            "%s is decomposed before Inductor sees it, so that it is never tuned: it has a "
            "CompositeImplicitAutograd kernel. Register an op that it is made of, or call "
            "one of your own (torch.library.custom_op) in its place",
            op,
        )
