"""What Inductor's config says about fusing an op with its neighbours."""

from __future__ import annotations

from typing import Any

from .. import config


FUSION_TYPES = ("epilogue", "prologue", "reduction", "cross_subgraph")


def fusion_types() -> tuple[str, ...]:
    """
    What joins a call.

    Raises:
        ValueError: for a name that is none of FUSION_TYPES.
    """
    types = tuple(config.custom_op_fusion_types)
    if unknown := set(types) - set(FUSION_TYPES):
        raise ValueError(
            f"custom_op_fusion_types has {sorted(unknown)}; known are {list(FUSION_TYPES)}"
        )
    return types


def most_steps() -> int:
    """How many nodes may lie in a row from a call to the end of its region."""
    return config.max_fusion_depth if config.enable_recursive_fusion else 1


def fusion_speedup_threshold() -> float | None:
    """
    What fusing must gain by Inductor's config, as a ratio of times; None: not measured.

    Raises:
        ValueError: if the setting is neither that nor a positive number.
    """
    threshold: Any = config.fusion_speedup_threshold
    is_number = isinstance(threshold, (int, float)) and not isinstance(threshold, bool)
    if threshold is None or (is_number and threshold > 0):
        return threshold
    raise ValueError(
        "torch._inductor.config.fusion_speedup_threshold must be a positive number, or "
        f"None to fuse without measuring, got {threshold!r}"
    )
