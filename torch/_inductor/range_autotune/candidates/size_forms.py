"""
Forms of a candidate whose code is generated for other sizes than the model is compiled with.

By the sizes at hand Inductor chooses into how many parts it splits a reduction over a
dynamic size, or a long row, and which template of a product is the fastest. A model that is
compiled at one size runs at others: there, forms that are made for them compete.
"""

from __future__ import annotations

import dataclasses
import math
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
    from collections.abc import Callable, Collection, Iterator, Sequence

    from ..ranges import DimRange
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
    return _has(
        traced, lambda node: _is_tuned_product(node) or _is_split_by_hints(node)
    )


def forms_for_sizes(
    tuning: Tuning, index: int, here: SizePoint
) -> Iterator[tuple[str, TracedCandidate]]:
    """
    A candidate's forms for sizes far from the model's own, each with its kind.

    Args:
        here: the model's own.
    """
    standing = tuning.standing
    traced = standing.traced[index]
    ranges = [r.possible for r in standing.ranges if standing.enters(index, r)]
    ends = _ends_of(tuning, ranges)
    if ends is None:
        return
    own = max(here.size or 0, 1)
    wanted = [*_middles(ends[0], own / _FAR), *_middles(own * _FAR, ends[1])]
    # A product's templates change little by little, and to choose one takes seconds.
    if _has(traced, _is_split_by_hints):
        wanted += reversed(ends)
    points = _points_apart(tuning, wanted, ranges, own)
    for kind, point in zip(FOR_OTHER_SIZES, points):
        yield kind, dataclasses.replace(traced, as_written=None, made_for=point)


def _has(traced: TracedCandidate, is_it: Callable[[torch.fx.Node], bool]) -> bool:
    """Whether one of a candidate's nodes is so, under its config."""
    with config.patch(dict(traced.candidate.config_patches)):
        return any(map(is_it, all_nodes(traced.graph)))


def _ends_of(tuning: Tuning, ranges: Sequence[DimRange]) -> tuple[int, int] | None:
    """
    The least and the largest size that ranges are measured at; in place of that a large one
    where there is no end.
    """
    points = [point for sizes in ranges for point in points_within(tuning, sizes)]
    measured = [point.size for point in points if point.size]
    if ranges and has_open_end(tuning, ranges[-1]):
        # Those near what Inductor takes for a size that it knows nothing of.
        measured.append(_FAR * config.unbacked_symint_fallback)
    return (min(measured), max(measured)) if measured else None


def _middles(low: float, high: float) -> list[int]:
    """As few sizes as are near to all from one to another, evenly spread."""
    if low >= high:
        return []
    parts = math.ceil(math.log(high / low, _FAR**2))
    return [round(low * (high / low) ** ((i + 0.5) / parts)) for i in range(parts)]


def _points_apart(
    tuning: Tuning, wanted: Sequence[int], ranges: Sequence[DimRange], own: int
) -> Iterator[SizePoint]:
    """In one of some ranges each, apart from the model's own size and from each other."""
    assert tuning.size is not None
    not_empty = [sizes for sizes in ranges if sizes.last]
    made = [own]
    for size in wanted:
        within = min(not_empty, key=lambda r: _distance(_nearest(r, size), [size]))
        near = _nearest(within, size)
        point = point_for_size(tuning.site, tuning.size, near, within)
        if point and point.size and _distance(point.size, made) > _FAR / 2:
            yield point
            made.append(point.size)


def _nearest(sizes: DimRange, wanted: int) -> int:
    return int(min(max(wanted, sizes.start, 1), sizes.last))


def _distance(size: int, others: Collection[int]) -> float:
    """How many times as large or small as the nearest of others a size is."""
    return min(max(size / other, other / size) for other in others)


def _is_tuned_product(node: torch.fx.Node) -> bool:
    """Whether Inductor measures which template is the best for a product of dynamic size."""
    is_product = getattr(node.target, "overloadpacket", None) in _PRODUCTS
    is_tuned = config.max_autotune or config.max_autotune_gemm
    return is_product and is_tuned and bool(_dynamic_inputs(node))


def _is_split_by_hints(node: torch.fx.Node) -> bool:
    """Whether Inductor looks at dynamic sizes to tell how a reduction or scan is split."""
    is_scan = getattr(node.target, "overloadpacket", None) in _SCANS
    if not (is_scan or is_reduction(node.target)):
        return False
    given = _dynamic_inputs(node)
    if not (given and is_gpu(given[0].device.type)):
        return False
    return is_scan or _may_be_split(node, given[0])


def _dynamic_inputs(node: torch.fx.Node) -> list[torch.Tensor]:
    """All tensors that a node reads, if one has a dynamic size."""
    values = [i.meta.get("val") for i in node.all_input_nodes]
    given = [value for value in values if isinstance(value, torch.Tensor)]
    return given if any(free_symbols(x.shape) for x in given) else []


def _may_be_split(reduction: torch.fx.Node, given: torch.Tensor) -> bool:
    """Whether so many elements make one of a reduction's that they may be split into parts."""
    elements = elements_to_one(reduction)
    if not elements.is_Integer:
        return True
    is_of_rows = not {-1, given.dim() - 1}.isdisjoint(reduced_dims(reduction, given))
    return elements > (_MOST_OF_A_WHOLE_ROW if is_of_rows else _MOST_WHOLE_ROWS)
