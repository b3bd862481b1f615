"""What Inductor's config says about fusing neighbours and about a candidate's time, checked."""

from __future__ import annotations

import math
from typing import Any

from .. import config


# In messages.
TIME_LIMIT = "torch._inductor.config.custom_op_candidate_time_limit_s"

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
    if threshold is None or _is_positive(threshold):
        return threshold
    raise ValueError(
        "torch._inductor.config.fusion_speedup_threshold must be a positive number, or "
        f"None to fuse without measuring, got {threshold!r}"
    )


def time_limit_s() -> float | None:
    """
    What each step of a candidate may take; None for no limit.

    Raises:
        ValueError: if the setting is neither.
    """
    limit_s: Any = config.custom_op_candidate_time_limit_s
    if limit_s is None or (_is_positive(limit_s) and limit_s < math.inf):
        return limit_s
    raise ValueError(
        f"{TIME_LIMIT} must be a positive number of seconds, or None for no limit, "
        f"got {limit_s!r}"
    )


def _is_positive(value: Any) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and value > 0
