"""What Inductor's config says about which neighbours join an op."""

from __future__ import annotations

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
