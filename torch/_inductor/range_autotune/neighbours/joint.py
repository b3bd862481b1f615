"""Ops that are decided together: their registrations as one."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import TYPE_CHECKING

from ..candidate_indices import FALLBACK
from ..ranges import ANY_SIZE, DimRange, fill_gaps, Segment
from ..registration import (
    Candidate,
    Contest,
    RangeTable,
    Registration,
    Row,
    TuningOptions,
)
from ..registry import registration_of


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Every combination is compiled and measured: four each of two ops, themselves included. Where
# there would be more, calls of one op take the same implementation.
_MOST_COMBINATIONS = 16
_joined: dict[tuple[int, ...], Registration] = {}


def can_join(registrations: Sequence[Registration]) -> bool:
    """
    Whether ops can be decided together: few candidates, measured in the same way, and
    compiled under one config.
    """
    tables = [r.contest.table for r in registrations if r.contest is not None]
    if len(tables) < len(registrations) or None in tables:
        return False
    options = [_how_measured(r.options) for r in registrations]
    if any(o != options[0] or o.input_gen_fns for o in options):
        return False
    patches = [c.config_patches for r in registrations for c in _registered(r)]
    if any(p != patches[0] for p in patches):
        return False
    return _count(_different(registrations)) <= _MOST_COMBINATIONS


def _count(registrations: Iterable[Registration]) -> int:
    """Of combinations, if each may take another implementation."""
    return math.prod(len(_choices(registration)) for registration in registrations)


def _different(registrations: Iterable[Registration]) -> list[Registration]:
    return [
        *{id(registration): registration for registration in registrations}.values()
    ]


def _combinations(
    registrations: Sequence[Registration],
) -> Iterator[tuple[Candidate, ...]]:
    """What each may take, at the same time."""
    if _count(registrations) <= _MOST_COMBINATIONS:
        yield from itertools.product(*map(_choices, registrations))
        return
    different = _different(registrations)
    for parts in itertools.product(*map(_choices, different)):
        of_each = dict(zip(map(id, different), parts))
        yield tuple(of_each[id(registration)] for registration in registrations)


def _how_measured(options: TuningOptions) -> TuningOptions:
    return dataclasses.replace(options, unbounded_size=None, representative_sizes=())


def _registered(registration: Registration) -> tuple[Candidate, ...]:
    assert registration.contest is not None
    return registration.contest.candidates


def _choices(registration: Registration) -> tuple[Candidate, ...]:
    """What may compete at some size."""
    registered = _registered(registration)
    if not registration.options.include_fallback and _has_all_sizes(registration):
        return registered
    return (*registered, FALLBACK)


def _has_all_sizes(registration: Registration) -> bool:
    """Whether there are implementations for every size."""
    rows = [Segment(row.sizes, True) for row in _rows(registration)]
    return all(segment.value for segment in fill_gaps(rows, ANY_SIZE, False))


def _rows(registration: Registration) -> Sequence[Row]:
    assert registration.contest is not None and registration.contest.table is not None
    return registration.contest.table.rows


def joined(registrations: Sequence[Registration]) -> Registration:
    """
    The one registration, or one whose candidates are the combinations of those of several.

    Its ranges are those on which none of the several changes its competitors.

    Args:
        registrations: of ops that ``can_join``; the same one for the same ops.
    """
    if len(registrations) == 1:
        return registrations[0]
    key = tuple(map(id, registrations))
    known = _joined.get(key)
    if known is None:
        _drop_replaced()
        # Another thread may have joined them meanwhile, and may drop them at any time.
        known = _joined.setdefault(key, _join(registrations))
    return known


def _drop_replaced() -> None:
    """Joins nothing that was registered anew; what it captures may be large."""
    for key, registration in [*_joined.items()]:
        if any(registration_of(part.op) is not part for part in registration.joins):
            _joined.pop(key, None)


def _join(registrations: Sequence[Registration]) -> Registration:
    candidates = tuple(
        _combination(parts)
        for parts in _combinations(registrations)
        if any(part is not FALLBACK for part in parts)
    )
    first = registrations[0]
    tables = [r.contest.table for r in registrations if r.contest and r.contest.table]
    rows = []
    for sizes in _refined([row.sizes for table in tables for row in table.rows]):
        competing = [_competing_in(sizes, r) for r in registrations]
        indices = tuple(
            i
            for i, candidate in enumerate(candidates)
            if all(part in who for part, who in zip(candidate.parts, competing))
        )
        if indices:
            rows.append(Row((sizes,), indices))
    measured_at = {s for r in registrations for s in r.options.representative_sizes}
    typical = [r.options.unbounded_size or 0 for r in registrations]
    return Registration(
        op=first.op,
        name=" + ".join(r.name for r in registrations),
        contest=Contest(candidates, RangeTable(tables[0].dims, tuple(rows))),
        options=dataclasses.replace(
            first.options,
            representative_sizes=tuple(sorted(measured_at)),
            unbounded_size=max(typical) or None,
        ),
        joins=tuple(registrations),
    )


def _combination(parts: Sequence[Candidate]) -> Candidate:
    return Candidate(
        name=" + ".join(part.name for part in parts),
        impl=None,
        config_patches=functools.reduce(
            lambda a, b: {**a, **b}, (part.config_patches for part in parts)
        ),
        parts=tuple(parts),
    )


def _competing_in(sizes: DimRange, registration: Registration) -> list[Candidate]:
    """The op itself, too, unless its user takes it out; where nobody else does, in any case."""
    registered = _registered(registration)
    competing = [
        registered[i]
        for row in _rows(registration)
        if row.sizes.overlaps(sizes)
        for i in row.candidates
    ]
    if not competing or registration.options.include_fallback:
        competing.append(FALLBACK)
    return competing


def _refined(ranges: Iterable[DimRange]) -> list[DimRange]:
    """The ranges between neighbouring bounds, as far as they are in any of ``ranges``."""
    ranges = list(ranges)
    bounds = sorted({bound for r in ranges for bound in (r.start, r.end)})
    between = (DimRange(int(a), b) for a, b in itertools.pairwise(bounds))
    return [sizes for sizes in between if any(r.overlaps(sizes) for r in ranges)]
