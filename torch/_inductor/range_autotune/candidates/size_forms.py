"""
Forms of a candidate whose code is generated for other sizes than the model is compiled with.

By the sizes at hand Inductor chooses into how many parts it splits a reduction over a
dynamic size, or a long row, and which template of a product is the fastest. A model that is
compiled at one size runs at others: there, forms that are made for them compete.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch

from ... import config
from ...utils import is_gpu
from ..candidate_indices import FOR_OTHER_SIZES
from ..graphs.control_flow import all_nodes
from ..graphs.node_kinds import is_reduction, reduced_dims
from ..measuring.measuring_points import has_open_end, points_within
from ..sizes.size_points import hint_point, point_for_size
from .kernel_forms import elements_to_one


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..sizes.size_points import SizePoint
    from ..tuning import Tuning
    from .traced_candidates import TracedCandidate

# Code that is made for a size will do at others less than so many times as large or small.
_FAR = 8
# Inductor leaves rows on a GPU whole that are no longer, and sums of no more rows.
_MOST_OF_A_WHOLE_ROW = 8192
_MOST_WHOLE_ROWS = 32
_aten = torch.ops.aten
_PRODUCTS = (
    _aten.mm,
    _aten.addmm,
    _aten.bmm,
    _aten.baddbmm,
    _aten._int_mm,
    _aten._scaled_mm,
)
_SCANS = (_aten.cumsum, _aten.cumprod, _aten.logcumsumexp)


def forms_for_sizes(
    tuning: Tuning, index: int, traced: TracedCandidate
) -> Iterator[tuple[str, TracedCandidate]]:
    """
    A candidate's forms for sizes far from the model's own, each with its kind; none where sizes
    decide nothing.
    """
    with config.patch(dict(traced.candidate.config_patches)):
        if not any(map(_depends_on_hints, all_nodes(traced.graph))):
            return
    for kind, point in zip(FOR_OTHER_SIZES, _far_points(tuning, index)):
        yield kind, dataclasses.replace(traced, as_written=None, made_for=point)


def _far_points(tuning: Tuning, index: int) -> Iterator[SizePoint]:
    """
    Sizes at which a candidate is measured that are far from the model's own and from each
    other, the farthest first. None where ranks measure in step, which may each be compiled at
    another size.
    """
    if tuning.size is None or tuning.ranks:
        return
    standing = tuning.standing
    ranges = [r.possible for r in standing.ranges if standing.enters(index, r)]
    points = [point for sizes in ranges for point in points_within(tuning, sizes)]
    if ranges and has_open_end(tuning, ranges[-1]):
        # What Inductor takes for a size that it knows nothing of.
        typical = config.unbacked_symint_fallback
        beyond = point_for_size(tuning.site, tuning.size, typical, ranges[-1])
        points += [beyond] if beyond else []
    by_size = {point.size: point for point in points if point.size}
    made = [max(hint_point(tuning.site, tuning.size).size or 0, 1)]
    while by_size:
        farthest = max(by_size, key=lambda size: _distance(size, made))
        if _distance(farthest, made) < _FAR:
            return
        yield by_size[farthest]
        made.append(farthest)


def _distance(size: int, others: Collection[int]) -> float:
    """How many times as large or small as the nearest of others a size is."""
    return min(max(size / other, other / size) for other in others)


def _depends_on_hints(node: torch.fx.Node) -> bool:
    """Whether Inductor looks at sizes to choose how it computes a node."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _PRODUCTS:
        return config.max_autotune or config.max_autotune_gemm
    if not (is_reduction(node.target) or packet in _SCANS):
        return False
    given = node.all_input_nodes[0].meta["val"]
    if not is_gpu(given.device.type):
        return False
    return packet in _SCANS or _may_be_split(node, given)


def _may_be_split(reduction: torch.fx.Node, given: torch.Tensor) -> bool:
    """Whether so many elements make one of a reduction's that they may be split into parts."""
    elements = elements_to_one(reduction)
    if not elements.is_Integer:
        return True
    is_of_rows = not {-1, given.dim() - 1}.isdisjoint(reduced_dims(reduction, given))
    return elements > (_MOST_OF_A_WHOLE_ROW if is_of_rows else _MOST_WHOLE_ROWS)
