"""
Ranges of a size and what is known about each: values and pure functions, no torch.

All sizes are concrete integers. A range is half-open; an end of ``math.inf`` means that
it has none.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import numbers
from typing import Any, Generic, TYPE_CHECKING, TypeVar


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

V = TypeVar("V")

_LARGEST_SIZE = 2**63 - 1


def as_int(value: Any) -> Any:
    """An integer of another type, NumPy's for one, as an int; anything else as it is."""
    is_other = isinstance(value, numbers.Integral) and not isinstance(value, int)
    return int(value) if is_other else value


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_infinite(value: object) -> bool:
    return isinstance(value, float) and value == math.inf


@dataclasses.dataclass(frozen=True, order=True)
class DimRange:
    """
    The sizes ``start <= size < end``.

    Args:
        start: the first size in the range, at least 0.
        end: the first size behind the range, or ``math.inf``, which is what larger ones become
            than a size can be.

    Raises:
        ValueError: if no size lies in it or a bound is not a size.
    """

    start: int
    end: int | float

    def __post_init__(self) -> None:
        if not _is_size(self.start) or self.start < 0:
            raise ValueError(f"start must be an integer of at least 0 in {self}")
        if not _is_size(self.end) and not _is_infinite(self.end):
            raise ValueError(f"end must be an integer or math.inf in {self}")
        if self.start >= self.end:
            raise ValueError(f"start must be less than end in {self}")
        if self.start > _LARGEST_SIZE:
            raise ValueError(f"start must be less than 2**63, as sizes are, in {self}")
        if self.end > _LARGEST_SIZE:
            object.__setattr__(self, "end", math.inf)

    def __str__(self) -> str:
        end = "inf" if _is_infinite(self.end) else repr(self.end)
        return f"[{self.start!r}, {end})"

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.start <= size < self.end

    @property
    def bounded(self) -> bool:
        """Whether it has an end."""
        return self.end != math.inf

    @property
    def last(self) -> int | float:
        """The largest size in the range, ``math.inf`` if there is none."""
        return self.end - 1

    def overlaps(self, other: DimRange) -> bool:
        """Whether some size is in both."""
        return self.start < other.end and other.start < self.end

    def intersect(self, other: DimRange) -> DimRange | None:
        """The sizes in both, None if there are none."""
        if not self.overlaps(other):
            return None
        return DimRange(max(self.start, other.start), min(self.end, other.end))

    def gap_to(self, other: DimRange) -> int | float:
        """How many sizes lie between the two."""
        return max(other.start - self.end, self.start - other.end, 0)


ANY_SIZE = DimRange(0, math.inf)


def parse_range(value: Any, index: int = 0) -> DimRange:
    """
    The range that a user wrote as a pair.

    Args:
        value: ``(start, end)``, or a DimRange.
        index: its place in the user's list, for the message.

    Raises:
        ValueError: shows the offending value and its index.
    """
    if isinstance(value, DimRange):
        return value
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise ValueError(
            f"Range {index} must be a pair (start, end) with start included and end "
            f"excluded, got {value!r}"
        )
    try:
        return DimRange(*map(as_int, value))
    except ValueError as e:
        raise ValueError(f"Range {index} is not valid: {e}") from None


def parse_ranges(values: Any) -> tuple[DimRange, ...]:
    """
    A user's list of ranges: sorted, without overlaps, gaps allowed.

    Raises:
        ValueError: shows the offending range and its index.
    """
    if not isinstance(values, (tuple, list)) or not values:
        raise ValueError(
            f"ranges must be a non-empty list of pairs (start, end), got {values!r}"
        )
    ranges = tuple(parse_range(value, i) for i, value in enumerate(values))
    check_disjoint(ranges)
    for i, (before, after) in enumerate(itertools.pairwise(ranges)):
        if after.start < before.start:
            raise ValueError(
                f"Ranges must be sorted, but range {i + 1}, {after}, lies below "
                f"range {i}, {before}"
            )
    return ranges


def check_disjoint(ranges: Sequence[DimRange]) -> None:
    """Raises ValueError if two of the ranges share a size."""
    for i, first in enumerate(ranges):
        for j in range(i + 1, len(ranges)):
            if first.overlaps(ranges[j]):
                raise ValueError(f"Ranges {i} and {j} overlap: {first} and {ranges[j]}")


def ranges_from_split_points(points: Any) -> tuple[DimRange, ...]:
    """
    The ranges that split points cut all sizes into; a point belongs to the range below it.

    Example: ``[512, 2048]`` gives ``[0, 513) [513, 2049) [2049, inf)``.

    Raises:
        ValueError: if they are not increasing sizes; shows the point and its index.
    """
    if not isinstance(points, (tuple, list)) or not points:
        raise ValueError(
            f"split_points must be a non-empty list of integers, got {points!r}"
        )
    points = [*map(as_int, points)]
    for i, point in enumerate(points):
        if not _is_size(point) or point < 1:
            raise ValueError(
                f"split_points[{i}] must be an integer of at least 1, got {point!r}"
            )
        if i and point == points[i - 1]:
            raise ValueError(f"split_points[{i}] is a duplicate of {point}: {points}")
        if i and point < points[i - 1]:
            raise ValueError(
                f"split_points must be sorted in ascending order, but split_points[{i}] "
                f"is {point} after {points[i - 1]}"
            )
    edges = [0, *(point + 1 for point in points), math.inf]
    return tuple(DimRange(int(a), b) for a, b in itertools.pairwise(edges))


def representative_sizes(
    sizes: DimRange, unbounded_size: int | None = None
) -> tuple[int, ...]:
    """
    The sizes at which a range's candidates are timed, increasing.

    A bounded range gives its ends and its middle; an unbounded one its start and
    ``unbounded_size``, by default twice the start. Empty tensors tell nothing about
    speed, so size 0 stands in only for a range that has no other.
    """
    first = min(max(sizes.start, 1), sizes.last)
    if sizes.bounded:
        picks = {first, (sizes.start + sizes.end) // 2, sizes.last}
        return tuple(sorted(int(size) for size in picks if size)) or (int(first),)
    typical = max(2 * int(first), 2) if unbounded_size is None else unbounded_size
    return tuple(sorted({int(first), max(typical, int(first))}))


@dataclasses.dataclass(frozen=True)
class Segment(Generic[V]):
    """Sizes, and what goes for all of them, such as who wins there."""

    sizes: DimRange
    value: V


def merge_neighbours(segments: Iterable[Segment[V]]) -> tuple[Segment[V], ...]:
    """Joins segments that touch and have one value. The segments come sorted."""
    merged: list[Segment[V]] = []
    for segment in segments:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.sizes.end == segment.sizes.start
            and last.value == segment.value
        ):
            joined = DimRange(last.sizes.start, segment.sizes.end)
            merged[-1] = Segment(joined, last.value)
        else:
            merged.append(segment)
    return tuple(merged)


def fill_gaps(
    segments: Sequence[Segment[V]], within: DimRange, value: V
) -> tuple[Segment[V], ...]:
    """
    Gives every size in ``within`` a segment: those between the given ones get ``value``.

    The given segments come sorted, and are cut to ``within``.
    """
    filled: list[Segment[V]] = []
    covered: int | float = within.start
    for segment in segments:
        sizes = segment.sizes.intersect(within)
        if sizes is None:
            continue
        if covered < sizes.start:
            filled.append(Segment(DimRange(int(covered), sizes.start), value))
        filled.append(Segment(sizes, segment.value))
        covered = sizes.end
    if covered < within.end:
        filled.append(Segment(DimRange(int(covered), within.end), value))
    return tuple(filled)
