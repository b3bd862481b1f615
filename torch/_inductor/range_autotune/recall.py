"""What an earlier process found out at sizes, in the timing cache."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from .candidates import FALLBACK_INDEX
from .collectives import known_to_all_ranks
from .conclusions import conclude, judge, reject_failures
from .inputs import have_memory, SizePoint
from .places import in_order, points_of_rounds
from .timing_cache import candidate_text, Entry, lookup, place_text, store


if TYPE_CHECKING:
    from collections.abc import Sequence

    from .tuning import Round, Tuning


def recall(tuning: Tuning) -> bool:
    """
    Finds what an earlier process found out, if that is all that there is to find out.

    Candidates that failed there are out here, too.
    """
    points = points_of_rounds(tuning)
    entries = _known_entries(tuning, points)
    if tuning.ranks:
        entries = known_to_all_ranks(entries, tuning.ranks)
    if entries is None:
        return False

    def learn(competing: Round, point: SizePoint, entry: Entry) -> None:
        judge(tuning, entry.comparisons, point)
        reject_failures(tuning, entry.times, competing.sizes)

    def known_between(competing: Round, point: SizePoint) -> Entry:
        entry = _known_entry(tuning, competing, point)
        if tuning.ranks:
            entry = known_to_all_ranks(entry, tuning.ranks)
        if entry is None:
            raise _NotKnown
        learn(competing, point, entry)
        return entry

    for number, point in in_order(tuning, points):
        entry = entries[number][points[number].index(point)]
        learn(tuning.rounds[number], point, entry)
    try:
        conclude(tuning, points, entries, known_between)
    except _NotKnown:
        return False
    return True


class _NotKnown(Exception):
    """The timing cache does not have a place."""


def _known_entries(
    tuning: Tuning, points: Sequence[Sequence[SizePoint]]
) -> list[list[Entry]] | None:
    """What the timing cache has for each point, if it has all."""
    entries: list[list[Entry]] = []
    for competing, row in zip(tuning.rounds, points):
        entries.append([])
        for point in row:
            entry = _known_entry(tuning, competing, point)
            if entry is None:
                return None
            entries[-1].append(entry)
    return entries


def _known_entry(tuning: Tuning, competing: Round, point: SizePoint) -> Entry | None:
    place, texts = _cache_entry(tuning, competing, point)
    if place is None:
        return None
    known = lookup(place, texts)
    if known is None and not have_memory(tuning.site, point):
        return Entry()
    return known


def remember(tuning: Tuning, competing: Round, point: SizePoint, entry: Entry) -> None:
    """For later processes; candidates that are out by now are out there, too."""
    if not (entry.times or entry.too_large or tuning.rejected):
        return
    place, texts = _cache_entry(tuning, competing, point)
    if place is not None:
        times = {**tuning.rejected, **entry.times}
        store(place, texts, dataclasses.replace(entry, times=times))


def _cache_entry(
    tuning: Tuning, competing: Round, point: SizePoint
) -> tuple[str | None, dict[int, str]]:
    """The timing cache's names for a place and those who compete there."""
    texts: dict[int, str] = {}
    for index in {*tuning.texts, *tuning.traced}:
        if not tuning.enters(index, competing):
            continue
        if index == FALLBACK_INDEX and not tuning.fallback_competes:
            continue
        if index not in tuning.texts:
            tuning.texts[index] = candidate_text(tuning.traced[index])
        text = tuning.texts[index]
        if text is None:
            return None, {}
        texts[index] = text
    options = tuning.registration.options
    return place_text(tuning.site, options, point.values, tuning.hosts), texts
