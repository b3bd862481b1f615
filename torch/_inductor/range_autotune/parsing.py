"""
From what users pass to what is registered.

All checks that need no shapes happen here, before anything is registered.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import numbers
from collections.abc import Mapping
from types import NoneType
from typing import Any, TYPE_CHECKING

import torch

from .. import config as inductor_config
from .configs import CustomOpConfig, CustomOpRangeConfig
from .numerics import NUMERICS_CHECKS
from .ranges import as_int, check_disjoint, DimRange, ranges_from_split_points
from .registration import (
    Candidate,
    Contest,
    DispatchDim,
    RangeTable,
    Row,
    Split,
    TuningOptions,
)
from .signatures import (
    argument_names,
    check_callable_for,
    check_params,
    implementation_name,
    is_tensor_argument,
)


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .registration import InputGenFns

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


def parse_configs(
    op: torch._ops.OpOverload, configs: Any, config_generator: Any
) -> list[CustomOpConfig | CustomOpRangeConfig] | None:
    """
    The configs; None if there is a generator in their place.

    Raises:
        TypeError, ValueError: if there are both, or none, or one is of another kind.
    """
    if (configs is None) == (config_generator is None):
        problem = "Must specify either" if configs is None else "Cannot specify both"
        joint = "or" if configs is None else "and"
        raise ValueError(
            f"{problem} 'configs' {joint} 'config_generator' for {op}. Use "
            "'config_generator' for shape-dependent configs."
        )
    if configs is None:
        if not callable(config_generator):
            raise TypeError(
                f"config_generator must be callable, got {type(config_generator)}"
            )
        return None
    if isinstance(configs, CustomOpRangeConfig):
        configs = [configs]
    if not isinstance(configs, (list, tuple)):
        raise TypeError(f"configs must be a list or tuple, got {type(configs)}")
    if not configs:
        raise ValueError(f"At least one config must be provided for {op}")
    return list(configs)


def make_contest(
    op: torch._ops.OpOverload,
    configs: Sequence[CustomOpConfig | CustomOpRangeConfig],
    split: Split | None = None,
) -> Contest:
    """
    Who competes where, from any form of configs.

    Args:
        split: set in the form with ``dispatch_on``: all configs compete in all ranges.

    Raises:
        ValueError: if configs contradict each other or do not fit the op.
        TypeError: if one is none, or an implementation does not fit.
    """
    for i, config in enumerate(configs):
        if not isinstance(config, (CustomOpConfig, CustomOpRangeConfig)):
            raise TypeError(
                "Each config must be a CustomOpConfig object or a CustomOpRangeConfig, "
                f"got {type(config)} at index {i}"
            )
    entries = [entry for config in configs for entry in _entries(config)]
    for config, _, _ in entries:
        check_params(op, config.decomposition, config.params)
        if config.decomposition is not None:
            check_callable_for(op, config.decomposition, config.params)
        check_config_patches(op, config.config_patches)
    ranged = [entry for entry in entries if entry[1] is not None]
    if ranged and (split or len(ranged) < len(entries)):
        without = [config for config, dim, _ in entries if dim is None]
        _refuse_mixture(op, without, split)
    if split:
        entries = [(c, split.dim, r) for r in split.ranges for c, _, _ in entries]
    candidates, indices = _unique_candidates([entry[0] for entry in entries])
    if not ranged and not split:
        return Contest(candidates, None)
    table = _make_table(op, [(d, r) for _, d, r in entries if d and r], indices)
    return Contest(candidates, table)


_Entry = tuple[CustomOpConfig, "DispatchDim | None", "DimRange | None"]


def _entries(config: CustomOpConfig | CustomOpRangeConfig) -> list[_Entry]:
    if isinstance(config, CustomOpRangeConfig):
        dim = DispatchDim(config.tensor_name, config.dim_index)
        return [(c, dim, r) for r in config.ranges for c in config.implementations]
    if config.dim_range is None:
        return [(config, None, None)]
    assert config.tensor_name is not None and config.dim_index is not None
    dim = DispatchDim(config.tensor_name, config.dim_index)
    return [(config, dim, config.dim_range)]


def _refuse_mixture(
    op: torch._ops.OpOverload,
    without: Sequence[CustomOpConfig],
    split: Split | None,
) -> None:
    if split:
        raise ValueError(
            f"The configs of {op} have range fields of their own, so dispatch_on and "
            "split_points must be left out"
        )
    raise ValueError(
        f"Mixing configs with and without range fields is not possible for {op}. Without: "
        f"{', '.join(map(repr, without))}. Give every config tensor_name, dim_index and "
        "dim_range, or none"
    )


def _unique_candidates(
    configs: Sequence[CustomOpConfig],
) -> tuple[tuple[Candidate, ...], list[int]]:
    """One candidate for equal configs, and the index of each config's candidate."""
    unique: list[Candidate] = []
    indices: list[int] = []
    for config in configs:
        made = Candidate(
            _unused_name(config, [c.name for c in unique]),
            config.decomposition,
            dict(config.params),
            dict(config.config_patches),
        )
        found = next(
            (i for i, c in enumerate(unique) if c.does_the_same_as(made)), len(unique)
        )
        if found == len(unique):
            unique.append(made)
        indices.append(found)
    return tuple(unique), indices


def _unused_name(config: CustomOpConfig, taken: Sequence[str]) -> str:
    impl = config.decomposition
    base = "default" if impl is None else implementation_name(impl)
    if config.params:
        base += f"({', '.join(f'{k}={_shown(v)}' for k, v in config.params.items())})"
    name, number = base, 1
    while name in taken:
        number += 1
        name = f"{base}#{number}"
    return name


def _shown(value: Any) -> str:
    """A parameter in a name: what prints in several lines by its type."""
    text = str(value)
    return type(value).__name__ if "\n" in text else text


def _make_table(
    op: torch._ops.OpOverload,
    places: Sequence[tuple[DispatchDim, DimRange]],
    indices: Sequence[int],
) -> RangeTable:
    dims = sorted({dim for dim, _ in places}, key=str)
    if len(dims) > 1:
        raise ValueError(
            f"The configs of {op} dispatch on more than one dimension: "
            f"{', '.join(map(str, dims))}. All must name the same tensor and dimension"
        )
    check_dispatch_tensor(op, dims[0].tensor_name)
    ranges = sorted({sizes for _, sizes in places})
    check_disjoint(ranges)
    competing: dict[DimRange, list[int]] = {sizes: [] for sizes in ranges}
    for (_, sizes), index in zip(places, indices, strict=True):
        if index not in competing[sizes]:
            competing[sizes].append(index)
    rows = (Row((sizes,), tuple(who)) for sizes, who in competing.items())
    return RangeTable((dims[0],), tuple(rows))


def check_dispatch_tensor(op: torch._ops.OpOverload, tensor_name: str) -> None:
    """Raises ValueError unless ``tensor_name`` is a tensor parameter of the op."""
    arguments = {argument.name: argument for argument in op._schema.arguments}
    if tensor_name not in arguments:
        raise ValueError(
            f"Tensor '{tensor_name}' not found in function arguments. "
            f"Available arguments: {list(arguments)}"
        )
    if not is_tensor_argument(arguments[tensor_name]):
        tensors = [name for name, a in arguments.items() if is_tensor_argument(a)]
        raise ValueError(
            f"Argument '{tensor_name}' of {op} is of type "
            f"{arguments[tensor_name].type}, not a tensor. Tensor arguments: {tensors}"
        )


def parse_split(
    op: torch._ops.OpOverload, dispatch_on: Any, split_points: Any
) -> tuple[Split | None, int | None]:
    """
    The form with ``dispatch_on`` and ``split_points``.

    Returns:
        None if neither argument was given; and the size that stands for the unbounded
        range, None for the default.
    """
    if dispatch_on is None and split_points is None:
        return None, None
    if dispatch_on is None or split_points is None:
        raise ValueError(
            "Both dispatch_on and split_points must be specified for range-based "
            f"autotuning of {op}"
        )
    if not isinstance(dispatch_on, dict):
        raise ValueError(
            "dispatch_on must be a dict with 'tensor_name' and 'dim' keys, e.g., "
            f"{{'tensor_name': 'x', 'dim': 1}}. Got: {type(dispatch_on)}"
        )
    dispatch_on = {key: as_int(value) for key, value in dispatch_on.items()}
    unbounded = _check_dispatch_on(dispatch_on)
    check_dispatch_tensor(op, dispatch_on["tensor_name"])
    dim = DispatchDim(dispatch_on["tensor_name"], dispatch_on["dim"])
    return Split(dim, ranges_from_split_points(split_points)), unbounded


_DISPATCH_ON_KEYS = ("tensor_name", "dim", "range_upper_bound", "unbounded_size")


def _check_dispatch_on(dispatch_on: dict[str, Any]) -> int | None:
    if "tensor_name" not in dispatch_on or "dim" not in dispatch_on:
        raise ValueError(
            "dispatch_on must contain 'tensor_name' and 'dim' keys, e.g., "
            f"{{'tensor_name': 'x', 'dim': 1}}. Got keys: {list(dispatch_on)}"
        )
    for key in dispatch_on:
        if key not in _DISPATCH_ON_KEYS:
            raise ValueError(
                f"Unknown key '{key}' in dispatch_on. Known keys: "
                f"{list(_DISPATCH_ON_KEYS)}"
            )
    for key, kind in (("tensor_name", str), ("dim", int)):
        if type(dispatch_on[key]) is not kind:
            raise ValueError(
                f"dispatch_on['{key}'] must be of {kind}, got {type(dispatch_on[key])}"
            )
    for key in ("range_upper_bound", "unbounded_size"):
        size = dispatch_on.get(key)
        if size is not None and (type(size) is not int or size <= 0):
            raise ValueError(
                f"dispatch_on['{key}'] must be a positive integer, got {size}"
            )
    return dispatch_on.get("range_upper_bound", dispatch_on.get("unbounded_size"))


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
        kind = str(argument.type)
        if argument.name in (input_gen_fns or {}) and "Tensor" not in kind:
            log.warning(
                "input_gen_fns['%s'] of %s is never called: the argument is of type %s, "
                "and only tensors are made up for benchmarks. Leave it out",
                argument.name,
                op,
                kind,
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


def check_config_patches(op: torch._ops.OpOverload, patches: Mapping[str, Any]) -> None:
    """Raises ValueError if Inductor has no such config, TypeError if that is no name."""
    for name in patches:
        if not isinstance(name, str):
            raise TypeError(
                f"config_patches for {op} must be a dict from names of configs to values, "
                f"got {name!r} for a name"
            )
        if not _is_config(name):
            known = inductor_config.get_config_copy()
            near = difflib.get_close_matches(name, known, n=3)
            raise ValueError(
                f"Unknown config '{name}' in config_patches for {op}; "
                f"torch._inductor.config has none of that name. Similar: {near}"
            )


def _is_config(name: str) -> bool:
    """Whether Inductor has such a config, be it an alias, which the copy of all lacks."""
    try:
        inductor_config.get_type(name)  # type: ignore[attr-defined]  # not in its stub
    except KeyError:
        return False
    return True


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


def check_not_mutating(op: torch._ops.OpOverload) -> None:
    """Raises ValueError if the op writes to an argument: its benchmark would too."""
    written = [
        argument.name
        for argument in op._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    if written:
        raise ValueError(
            f"{op} mutates {written}, and an op that writes to its arguments cannot be "
            "tuned. Register an op that returns the new value and copy it where it is "
            "called"
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
