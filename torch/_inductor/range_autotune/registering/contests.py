"""
Who competes where, from any form of configs that users write.

All checks of them that need no shapes happen here.
"""

from __future__ import annotations

import difflib
from typing import Any, TYPE_CHECKING

from ... import config as inductor_config
from ..ranges import as_int, check_disjoint, DimRange, ranges_from_split_points
from ..registration import Candidate, Contest, DispatchDim, RangeTable, Row, Split
from .configs import CustomOpConfig, CustomOpRangeConfig
from .signatures import (
    check_callable_for,
    check_params,
    implementation_name,
    is_tensor_argument,
)


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    # A config, and where it competes if a size is dispatched on.
    Placement = tuple[CustomOpConfig, DispatchDim | None, DimRange | None]

_DISPATCH_ON_KEYS = ("tensor_name", "dim", "range_upper_bound", "unbounded_size")


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
    placements = [placement for config in configs for placement in _placements(config)]
    for config, _, _ in placements:
        check_params(op, config.decomposition, config.params)
        if config.decomposition is not None:
            check_callable_for(op, config.decomposition, config.params)
        _check_config_patches(op, config.config_patches)
    ranged = [placement for placement in placements if placement[1] is not None]
    if ranged and (split or len(ranged) < len(placements)):
        without = [config for config, dim, _ in placements if dim is None]
        _refuse_mixture(op, without, split)
    if split:
        placements = [(c, split.dim, r) for r in split.ranges for c, _, _ in placements]
    candidates, indices = _unique_candidates([placement[0] for placement in placements])
    if not ranged and not split:
        return Contest(candidates, None)
    table = _make_table(op, [(d, r) for _, d, r in placements if d and r], indices)
    return Contest(candidates, table)


def _placements(config: CustomOpConfig | CustomOpRangeConfig) -> list[Placement]:
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


def _check_config_patches(
    op: torch._ops.OpOverload, patches: Mapping[str, Any]
) -> None:
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
    _check_dispatch_tensor(op, dims[0].tensor_name)
    ranges = sorted({sizes for _, sizes in places})
    check_disjoint(ranges)
    competing: dict[DimRange, list[int]] = {sizes: [] for sizes in ranges}
    for (_, sizes), index in zip(places, indices, strict=True):
        if index not in competing[sizes]:
            competing[sizes].append(index)
    rows = (Row((sizes,), tuple(who)) for sizes, who in competing.items())
    return RangeTable((dims[0],), tuple(rows))


def _check_dispatch_tensor(op: torch._ops.OpOverload, tensor_name: str) -> None:
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
    _check_dispatch_tensor(op, dispatch_on["tensor_name"])
    dim = DispatchDim(dispatch_on["tensor_name"], dispatch_on["dim"])
    return Split(dim, ranges_from_split_points(split_points)), unbounded


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
                f"dispatch_on['{key}'] must be a positive integer, got {size!r}"
            )
    return dispatch_on.get("range_upper_bound", dispatch_on.get("unbounded_size"))
