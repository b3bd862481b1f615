"""
Forms of a candidate whose code is generated for other sizes than the model is compiled with.

By the sizes at hand Inductor chooses into how many parts it splits a reduction over a
dynamic size, or a long row, and which template of a product is the fastest. A model that is
compiled at one size runs at others: there, forms that are made for them compete.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import free_symbols

import torch

from ... import config
from ...utils import is_gpu
from ..candidate_indices import FOR_OTHER_SIZES
from ..graphs.control_flow import all_nodes
from ..graphs.node_kinds import is_reduction, reduced_dims
from ..measuring.measuring_points import has_open_end, points_within
from ..sizes.size_points import point_for_size
from .kernel_forms import elements_to_one


if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from ..sizes.size_points import SizePoint
    from ..tuning import Tuning
    from .traced_candidates import TracedCandidate

# Code that is made for a size will do at others less than so many times as large or small: on
# an H100 a product's template at 4 times its size; at 16 times it took twice as long as its own.
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


def depends_on_sizes(traced: TracedCandidate) -> bool:
    """Whether a candidate's code depends on the sizes that it is generated for."""
    with config.patch(dict(traced.candidate.config_patches)):
        return any(map(_depends_on_hints, all_nodes(traced.graph)))


def forms_for_sizes(
    tuning: Tuning, index: int, here: SizePoint
) -> Iterator[tuple[str, TracedCandidate]]:
    """
    A candidate's forms for sizes far from the model's own, each with its kind.

    Args:
        here: the model's own.
    """
    traced = tuning.standing.traced[index]
    for kind, point in zip(FOR_OTHER_SIZES, _far_points(tuning, index, here)):
        yield kind, dataclasses.replace(traced, as_written=None, made_for=point)


def _far_points(tuning: Tuning, index: int, here: SizePoint) -> Iterator[SizePoint]:
    """
    Sizes in a candidate's ranges that are far from the model's own and from each other, the
    farthest first: those at which it is measured, and a large one where there is no end.
    """
    assert tuning.size is not None
    standing = tuning.standing
    ranges = [r.possible for r in standing.ranges if standing.enters(index, r)]
    points = [point for sizes in ranges for point in points_within(tuning, sizes)]
    if ranges and has_open_end(tuning, ranges[-1]):
        # What Inductor takes for a size that it knows nothing of.
        typical = config.unbacked_symint_fallback
        beyond = point_for_size(tuning.site, tuning.size, typical, ranges[-1])
        points += [beyond] if beyond else []
    by_size = {point.size: point for point in points if point.size}
    made = [max(here.size or 0, 1)]
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
    """Whether Inductor looks at dynamic sizes to choose how it computes a node."""
    given = [
        x
        for i in node.all_input_nodes
        if isinstance(x := i.meta.get("val"), torch.Tensor)
    ]
    if not any(free_symbols(x.shape) for x in given):
        return False
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _PRODUCTS:
        return config.max_autotune or config.max_autotune_gemm
    if not (is_reduction(node.target) or packet in _SCANS):
        return False
    if not is_gpu(given[0].device.type):
        return False
    return packet in _SCANS or _may_be_split(node, given[0])


def _may_be_split(reduction: torch.fx.Node, given: torch.Tensor) -> bool:
    """Whether so many elements make one of a reduction's that they may be split into parts."""
    elements = elements_to_one(reduction)
    if not elements.is_Integer:
        return True
    is_of_rows = not {-1, given.dim() - 1}.isdisjoint(reduced_dims(reduction, given))
    return elements > (_MOST_OF_A_WHOLE_ROW if is_of_rows else _MOST_WHOLE_ROWS)
