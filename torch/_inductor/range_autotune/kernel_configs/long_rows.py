"""
Kernels that keep long rows in registers, see ``candidates.kernel_forms``: with how many warps.

Asked by Inductor where it generates such a kernel, and where that chooses its config.
"""

from __future__ import annotations

import copy
from typing import Any, TYPE_CHECKING

from ... import config


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_USUALLY_KEPT = 1024
_MOST_THREADS = 1024  # of a block on any GPU
# In a kernel's ``inductor_meta``.
_OTHER_WARPS = "custom_op_other_warps"


def meta_of_form() -> dict[str, bool]:
    """What the source of a kernel that may keep long rows says in its ``inductor_meta``."""
    keeps = config.triton.persistent_inner_reduction_limit > _USUALLY_KEPT
    return {_OTHER_WARPS: True} if keeps else {}


def with_other_warps(
    configs: Sequence[Any],
    elements: int,
    warp_size: int,
    inductor_meta: Mapping[str, Any],
) -> list[Any]:
    """
    Configs of a persistent reduction, and the same with other warps for long rows.

    Inductor has one config for them. Few warps are faster where the device is full, many
    where it is not: RMSNorm of 4096 columns on an H200 takes 4 % less with 4 than with 8
    at 32768 rows, and 10 % more at 32, where 16 take 3 % less. There 8 to 32 elements a
    thread were among the best of all that was tried.

    Args:
        configs: Triton's, for blocks of one row.
        elements: of a row.
        warp_size: in threads.
        inductor_meta: the kernel's; one that sums several rows by itself has no others.
    """
    asked = inductor_meta.get(_OTHER_WARPS) and not inductor_meta.get("RSPLIT_SIZE")
    if not asked or elements <= _USUALLY_KEPT:
        return [*configs]
    most = _MOST_THREADS // warp_size
    others = {min(elements // each // warp_size, most) for each in (8, 16, 32)}
    others -= {known.num_warps for known in configs}
    return [*configs, *(_with_warps(configs[0], warps) for warps in sorted(others))]


def _with_warps(config: Any, warps: int) -> Any:
    config = copy.deepcopy(config)
    config.num_warps = warps
    return config
