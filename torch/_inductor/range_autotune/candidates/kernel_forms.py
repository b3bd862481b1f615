"""
Another form of a candidate's kernels, which Inductor would not choose and which may be faster.

Inductor loops over a row of more than 1024 elements, and loads it a second time for what
comes behind its sum. A kernel that keeps the row in registers takes less time (RMSNorm,
LayerNorm and softmax of 4096 columns on an H200: 9, 13 and 22 %), unless they do not hold it.
How many warps do so is tried, too.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any, TYPE_CHECKING

import sympy

import torch

from ... import config
from ...utils import convert_shape_to_inductor, is_gpu, sympy_product
from ..graphs.control_flow import all_nodes


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .traced_candidates import TracedCandidate

_LIMIT = "triton.persistent_inner_reduction_limit"
# As far as Inductor goes where it measures kernels (``triton.multi_kernel``).
_MOST_ELEMENTS = 16 * 1024
_USUALLY_KEPT = 1024
_MOST_THREADS = 1024  # of a block on any GPU
# In a kernel's ``inductor_meta``.
_OTHER_WARPS = "custom_op_other_warps"
# A reduction, too, but not tagged as one.
_SOFTMAX = "prims::prepare_softmax_online"


def with_persistent_reductions(traced: TracedCandidate) -> TracedCandidate | None:
    """
    A candidate whose kernels keep rows that Inductor would load twice.

    Returns:
        None if it has no such rows, or if the form of its kernels is up to its user.
    """
    candidate = traced.candidate
    if _LIMIT in candidate.config_patches:
        return None
    with config.patch(dict(candidate.config_patches)):
        if config.triton.multi_kernel or not config.triton.persistent_reductions:
            return None
        if not _has_long_rows(traced.graph):
            return None
    patches = {**candidate.config_patches, _LIMIT: _MOST_ELEMENTS}
    candidate = dataclasses.replace(candidate, config_patches=patches)
    return dataclasses.replace(traced, candidate=candidate, as_written=None)


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


def _has_long_rows(gm: torch.fx.GraphModule) -> bool:
    """Whether it reduces rows on a GPU that Inductor loops over."""
    shorter = config.triton.persistent_inner_reduction_limit
    return any(
        shorter < _length_of_rows(node) <= _MOST_ELEMENTS
        for node in all_nodes(gm)
        if _is_reduction(node.target)
    )


def _is_reduction(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and (
        torch.Tag.reduction in target.tags or target._name == _SOFTMAX
    )


def _length_of_rows(reduction: torch.fx.Node) -> int:
    """How many elements make one of the result; 0 where that is no constant, or on a CPU."""
    given = reduction.all_input_nodes[0].meta["val"]
    result = reduction.meta["val"]
    first = result[0] if isinstance(result, (tuple, list)) else result
    numels = [sympy_product(convert_shape_to_inductor(x.shape)) for x in (given, first)]
    length = sympy.cancel(numels[0] / numels[1])
    return int(length) if is_gpu(given.device.type) and length.is_Integer else 0
