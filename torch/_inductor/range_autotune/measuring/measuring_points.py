"""Where candidates are measured: the sizes of each range, and their order."""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ..ranges import DimRange, representative_sizes
from ..sizes.size_points import hint_point, point_for_size, Purpose, SizePoint
from .ranks import as_on_first_rank


if TYPE_CHECKING:
    from collections.abc import Sequence

    import sympy

    from ..call_site import CallSite
    from ..standing import ContestedRange
    from ..tuning import Tuning

    ScheduledPoint = tuple[ContestedRange, SizePoint]

log = logging.getLogger("torch._inductor.kernel.custom_op")


def has_points(tuning: Tuning, sizes: DimRange) -> bool:
    """Whether a range is measured at sizes that are in it, not only at the model's."""
    return bool(points_within(tuning, sizes))


def schedule(tuning: Tuning) -> list[ScheduledPoint]:
    """
    What is measured when: each range's points, at least one.

    Begins near the size that the model is compiled with, for Triton kernels whose configs
    are chosen at their first call get the same ones as without tuning. Of ranks that
    measure in step, which may be compiled with a size each, the first one's counts. Where
    nobody is timed comes last.
    """
    scheduled = [
        (competing, point)
        for competing in tuning.standing.ranges
        for point in _points(tuning, competing.possible)
    ]
    if tuning.size is None:
        return scheduled
    here = max(hint_point(tuning.site, tuning.size).size or 1, 1)
    if tuning.ranks:
        here = as_on_first_rank(here, tuning.ranks)

    def distance(entry: ScheduledPoint) -> tuple[bool, float]:
        _, point = entry
        return not point.is_timed, abs(math.log((point.size or 1) / here))

    return sorted(scheduled, key=distance)


def spread(scheduled: Sequence[ScheduledPoint], number: int) -> list[ScheduledPoint]:
    """At most so many of those timed: the smallest, the largest, and others between."""
    timed = [entry for entry in scheduled if entry[1].is_timed]
    by_size = sorted(timed, key=lambda entry: entry[1].size or 0)
    if len(by_size) <= number:
        return by_size
    last = len(by_size) - 1
    return [by_size[round(i * last / (number - 1))] for i in range(number)]


def _points(tuning: Tuning, sizes: DimRange) -> list[SizePoint]:
    """Where a range is measured."""
    size, site = tuning.size, tuning.site
    if size is None:
        return [hint_point(site)]
    timed = points_within(tuning, sizes)
    if not timed:
        point = hint_point(site, size)
        log.info(
            "%s: no input has a size %s in range %s; measured at %s",
            tuning.name,
            size,
            sizes,
            point.size,
        )
        return [point]
    timed = [*timed, *_point_of_model(tuning, sizes, timed)]
    measured = [p.size for p in timed if p.size is not None]
    unaligned = _unaligned_point(site, size, sizes, measured)
    return timed if unaligned is None else [*timed, unaligned]


def points_within(tuning: Tuning, sizes: DimRange) -> list[SizePoint]:
    """Those with representative sizes of a range; of a size that is dispatched on."""
    assert tuning.size is not None
    if sizes not in tuning.points:
        options = tuning.registration.options
        wanted = [s for s in options.representative_sizes if s in sizes]
        wanted = wanted or list(representative_sizes(sizes, options.unbounded_size))
        near = _points_near(tuning, wanted, sizes)
        # Empty tensors tell nothing about speed.
        tuning.points[sizes] = [point for point in near if point.size] or near
    return tuning.points[sizes]


def _point_of_model(
    tuning: Tuning, sizes: DimRange, timed: Sequence[SizePoint]
) -> list[SizePoint]:
    """
    In a range without an end the model's own size, if it is beyond those that are measured:
    what wins at twice the start may not be what wins there.

    Not of sizes that are data, which have none while the model is compiled.
    """
    size = tuning.size
    if not has_open_end(tuning, sizes) or free_unbacked_symbols(size):
        return []
    point = hint_point(tuning.site, size)
    assert point.size is not None
    return [point] if point.size > max(p.size or 0 for p in timed) else []


def has_open_end(tuning: Tuning, sizes: DimRange) -> bool:
    """
    Whether nobody has said how large sizes of a range get, nor where to measure it.

    Ranks that measure in step stay with what they know: other sizes than the one that is
    dispatched on, and with them what can be measured, may differ from one to another.
    """
    options = tuning.registration.options
    is_named = any(wanted in sizes for wanted in options.representative_sizes)
    is_named |= options.unbounded_size is not None
    return not (sizes.bounded or is_named or tuning.ranks)


def _points_near(
    tuning: Tuning, wanted: Sequence[int], sizes: DimRange
) -> list[SizePoint]:
    """One of each size that there is in a range near those wanted."""
    assert tuning.size is not None
    points = [point_for_size(tuning.site, tuning.size, w, sizes) for w in wanted]
    return [*{point.size: point for point in points if point is not None}.values()]


def end_points(tuning: Tuning, sizes: DimRange) -> list[SizePoint]:
    """At the ends of a range of a size that is dispatched on; to be called at only."""
    ends = [sizes.start, int(sizes.last)] if sizes.bounded else [sizes.start]
    points = _points_near(tuning, ends, sizes)
    return [dataclasses.replace(point, purpose=Purpose.CALL) for point in points]


def _unaligned_point(
    site: CallSite, size: sympy.Expr, sizes: DimRange, measured: Sequence[int]
) -> SizePoint | None:
    """
    Near the smallest size where a range is measured, one that is a multiple of less.

    Sizes that people write down are multiples of powers of two, which is what kernels that
    forget the rest of a block, or refuse it, are right for. None where that is no danger:
    some size is odd as it is, or all that can occur are as aligned.
    """
    alignment = math.gcd(*measured)
    alignment &= -alignment  # the largest power of two in it
    larger = sizes.intersect(DimRange(min(measured) + 1, math.inf))
    # 0 if nothing but empty tensors can be measured.
    if alignment <= 1 or larger is None:
        return None
    point = point_for_size(site, size, larger.start, larger)
    if point is None or not (point.size or 0) % alignment:
        return None
    return dataclasses.replace(point, purpose=Purpose.CALL)
