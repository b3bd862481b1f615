"""
Another form of a candidate's kernels, which Inductor would not choose and which may be faster.

Inductor loops over a row of more than 1024 elements, and loads it a second time for what
comes behind its sum. A kernel that keeps the row in registers takes less time (RMSNorm,
LayerNorm and softmax of 4096 columns on an H200: 9, 13 and 22 %), unless they do not hold it.
How many warps do so is tried, too, see ``kernel_configs.long_rows``.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import sympy

from ... import config
from ...utils import convert_shape_to_inductor, is_gpu, sympy_product
from ..graphs.control_flow import all_nodes
from ..graphs.node_kinds import is_reduction


if TYPE_CHECKING:
    import torch

    from .traced_candidates import TracedCandidate

_LIMIT = "triton.persistent_inner_reduction_limit"
# As far as Inductor goes where it measures kernels (``triton.multi_kernel``).
_MOST_ELEMENTS = 16 * 1024


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


def _has_long_rows(gm: torch.fx.GraphModule) -> bool:
    """Whether it reduces rows on a GPU that Inductor loops over."""
    shorter = config.triton.persistent_inner_reduction_limit
    return any(
        shorter < _length_of_rows(node) <= _MOST_ELEMENTS
        for node in all_nodes(gm)
        if is_reduction(node.target)
    )


def elements_to_one(reduction: torch.fx.Node) -> sympy.Expr:
    """How many elements make one of a reduction's result."""
    given = reduction.all_input_nodes[0].meta["val"]
    result = reduction.meta["val"]
    first = result[0] if isinstance(result, (tuple, list)) else result
    numels = [sympy_product(convert_shape_to_inductor(x.shape)) for x in (given, first)]
    return sympy.cancel(numels[0] / numels[1])


def _length_of_rows(reduction: torch.fx.Node) -> int:
    """Of a reduction on a GPU, where it is constant; else 0."""
    length = elements_to_one(reduction)
    on_gpu = is_gpu(reduction.all_input_nodes[0].meta["val"].device.type)
    return int(length) if on_gpu and length.is_Integer else 0
