"""Who competes at a call site: its candidates, each traced once, and what they vary."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .apart import fusion_speedup_threshold
from .candidate_indices import (
    APART,
    AS_WRITTEN,
    AS_WRITTEN_PERSISTENT,
    index_of_variant,
    PERSISTENT,
    PLAIN_INDEX,
)
from .candidates import Rejection, trace_candidate, trace_plain, TracedCandidate
from .kernel_forms import with_persistent_reductions
from .known_sizes import is_sum, KnownSize
from .measuring_points import has_points
from .ranges import DimRange


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .standing import ContestedRange
    from .tuning import Tuning


def trace_candidates(tuning: Tuning) -> None:
    """Traces each candidate once, for all of its ranges where that is possible."""
    standing = tuning.standing
    registered, ranges = len(standing.candidates), len(standing.ranges)
    # Whichever of these are traced: ranks know candidates by their indices.
    standing.candidates += tuple(
        c for c in standing.candidates for _ in standing.ranges
    )
    for index in sorted({i for r in standing.ranges for i in r.candidates}):
        candidate = standing.candidates[index]
        entered = [r for r in standing.ranges if standing.enters(index, r)]
        known = _known_of_size(tuning, entered)
        result = trace_candidate(candidate, tuning.site, tuning.outputs, known)
        if isinstance(result, TracedCandidate):
            standing.traced[index] = result
            continue
        first = registered + index * ranges
        if not (result.guards and _trace_in_each_range(tuning, index, entered, first)):
            standing.warn(result)


def _trace_in_each_range(
    tuning: Tuning, index: int, entered: Sequence[ContestedRange], first: int
) -> bool:
    """
    Replaces a candidate that asks in which of its ranges a size is by one trace for each.

    Not done for ops in a row, whose combinations are many as it is.

    Args:
        first: the index of the one in the first range that can occur.

    Returns:
        Whether there is any.
    """
    if len(entered) < 2 or len(tuning.site.calls) > 1:
        return False
    standing = tuning.standing
    candidate = standing.candidates[index]
    numbers = {r: first + i for i, r in enumerate(standing.ranges) if r in entered}
    traced: dict[int, TracedCandidate] = {}
    refused: list[tuple[Rejection, DimRange]] = []
    for competing, number in numbers.items():
        known = _known_of_size(tuning, [competing])
        result = trace_candidate(candidate, tuning.site, tuning.outputs, known)
        if isinstance(result, TracedCandidate):
            traced[number] = result
        else:
            refused.append((result, competing.sizes))
    if not traced:
        return False
    for rejection, where in refused:
        standing.warn(rejection, where)
    standing.traced |= traced
    standing.ranges = tuple(
        r.with_candidate(numbers[r], index) if numbers.get(r) in traced else r
        for r in standing.ranges
    )
    return True


def _known_of_size(
    tuning: Tuning, entered: Sequence[ContestedRange]
) -> KnownSize | None:
    """
    What ranges say of the size that is dispatched on.

    None if that is nothing that is not known anyway, or if one of them is measured at the
    model's size only, which lies outside of it.
    """
    if tuning.size is None:
        return None
    ranges = [competing.possible for competing in entered]
    hull = DimRange(min(r.start for r in ranges), max(r.end for r in ranges))
    if not all(has_points(tuning, r) for r in ranges):
        return None
    return _known_in(tuning, hull)


def _known_in(tuning: Tuning, sizes: DimRange) -> KnownSize | None:
    """That the size that is dispatched on is in a range, if that tells anything."""
    if tuning.size is None or (sizes == tuning.bounds and not is_sum(tuning.size)):
        return None
    return KnownSize(tuning.size, sizes)


def add_plain_lowering(tuning: Tuning) -> None:
    """
    What the op would be lowered to without a registration, unless one that does the same
    competes wherever that would.
    """
    known = _known_in(tuning, tuning.bounds)
    plain = trace_plain(tuning.site, tuning.outputs, known)
    standing = tuning.standing
    everywhere = [
        traced
        for index, traced in standing.traced.items()
        if standing.enters_all_ranges(index)
    ]
    if plain and not any(map(plain.does_the_same_as, everywhere)):
        standing.traced[PLAIN_INDEX] = plain


def add_variants(tuning: Tuning) -> None:
    """The variants of all candidates; their indices are the same on every rank."""
    standing, threshold = tuning.standing, fusion_speedup_threshold()
    joined = len(tuning.site.calls) > 1
    for number, (index, traced) in enumerate([*standing.traced.items()]):
        if threshold is not None and tuning.site.body is not None:
            _add_apart(tuning, number, index, traced)
        for kind, form in _other_forms(traced):
            # Combinations of ops that are joined are many as it is.
            if joined and (kind != PERSISTENT or traced.calls_python):
                continue
            variant = index_of_variant(number, kind)
            standing.add_variant(variant, form, index)


def _other_forms(traced: TracedCandidate) -> Iterator[tuple[str, TracedCandidate]]:
    """Forms of a candidate that may be faster than it is, with their kinds."""
    if persistent := with_persistent_reductions(traced):
        yield PERSISTENT, persistent
    if traced.as_written is None:
        return
    as_written = dataclasses.replace(traced, graph=traced.as_written, as_written=None)
    yield AS_WRITTEN, as_written
    if persistent := with_persistent_reductions(as_written):
        yield AS_WRITTEN_PERSISTENT, persistent


def _add_apart(
    tuning: Tuning, number: int, index: int, traced: TracedCandidate
) -> None:
    """Of a candidate in a region, the one whose neighbours get kernels of their own."""
    result = trace_candidate(
        traced.candidate, tuning.site, tuning.outputs, traced.known, apart=True
    )
    if isinstance(result, TracedCandidate):
        variant = index_of_variant(number, APART)
        tuning.standing.add_variant(variant, result, index)
