"""Measurements of an earlier process, from the timing cache, and new ones for later ones."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, TypeVar

from ...runtime.runtime_utils import next_power_of_2
from ..caching.timing_cache import lookup, lookup_record, store, store_record
from ..caching.timing_keys import measurement_text
from ..candidate_indices import FALLBACK_INDEX
from ..inputs import have_memory
from ..sizes.size_points import hint_point, Purpose, SizePoint
from ..times import Findings
from .conclusions import choose_kernel_configs, conclude, learn
from .measuring_points import schedule
from .ranks import known_to_all_ranks


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..kernel_configs.kernel_config_ranges import ConfigRecord, ConfigTimes
    from ..standing import ContestedRange
    from ..times import Failure
    from ..tuning import Tuning
    from .measuring_points import ScheduledPoint


T = TypeVar("T")


def recall(tuning: Tuning) -> bool:
    """
    Decides by what an earlier process has measured; False if it has not measured all of it.

    Candidates that failed there are rejected here, too; if something is missing, none is.
    """
    standing = tuning.standing
    tuning.standing = standing.copied()
    try:
        _recall_times(tuning)
        if may_have_kernel_configs(tuning):
            _recall_kernel_configs(tuning)
    except _NotKnown:
        standing.texts.update(tuning.standing.texts)
        standing.doubted |= tuning.standing.doubted  # whom the user was warned of
        tuning.standing = standing
        tuning.measured = []
        return False
    return True


def _recall_times(tuning: Tuning) -> None:
    """
    Concludes from the times that earlier processes have left.

    Raises:
        _NotKnown: if something was not measured.
    """
    scheduled = schedule(tuning)
    known = _on_all_ranks(tuning, _all_known(tuning, scheduled))
    found = [(*where, findings) for where, findings in zip(scheduled, known)]

    def known_between(competing: ContestedRange, point: SizePoint) -> Findings:
        findings = _on_all_ranks(tuning, _known_at(tuning, competing, point))
        learn(tuning.standing, competing, point, findings)
        _check_out(tuning, [(competing, point, findings)])
        return findings

    for competing, point, findings in found:
        learn(tuning.standing, competing, point, findings)
    _check_out(tuning, found)
    conclude(tuning, found, known_between)


def _check_out(
    tuning: Tuning, found: Iterable[tuple[ContestedRange, SizePoint, Findings]]
) -> None:
    """
    The earlier process did not call a candidate that it had rejected by then. If it competes
    in this one, whose ranges may be others, its time is missing. On any of several ranks: that
    one alone would measure.

    Raises:
        _NotKnown: if one is missing.
    """
    is_missing = any(
        tuning.standing.competes(index, competing)
        for competing, _, findings in found
        for index in findings.out
    )
    _on_all_ranks(tuning, None if is_missing else True)


def _on_all_ranks(tuning: Tuning, known: T | None) -> T:
    """
    What is known, on several ranks the first one's.

    Raises:
        _NotKnown: if it is None, on any of them.
    """
    if tuning.ranks:
        known = known_to_all_ranks(known, tuning.ranks)
    if known is None:
        raise _NotKnown
    return known


class _NotKnown(Exception):
    """The timing cache does not have a measurement."""


def _all_known(
    tuning: Tuning, scheduled: Iterable[ScheduledPoint]
) -> list[Findings] | None:
    """What the timing cache has for each point, if it has all."""
    known: list[Findings] = []
    for competing, point in scheduled:
        findings = _known_at(tuning, competing, point)
        if findings is None:
            return None
        known.append(findings)
    return known


def _known_at(
    tuning: Tuning, competing: ContestedRange, point: SizePoint
) -> Findings | None:
    measurement, texts = _names_in_cache(tuning, competing, point)
    if measurement is None:
        return None
    known = lookup(measurement, texts)
    outputs = tuning.outputs.tensors
    if known is None and not have_memory(tuning.site, point, outputs):
        return Findings()
    return known


def remember(
    tuning: Tuning,
    competing: ContestedRange,
    point: SizePoint,
    findings: Findings,
    failed: Mapping[int, Failure],
) -> None:
    """
    For later processes.

    Args:
        failed: candidates that do not compile, or did not run here. Others that are out of
            the range were not called.
    """
    out = tuning.standing.out_of(competing)
    if not (findings.times or findings.not_measured or out):
        return
    measurement, texts = _names_in_cache(tuning, competing, point)
    if measurement is not None:
        times = {**failed, **findings.times}
        not_called = frozenset(out.keys() - times.keys())
        store(
            measurement,
            texts,
            dataclasses.replace(findings, times=times, out=not_called),
        )


def may_have_kernel_configs(tuning: Tuning) -> bool:
    """Whether kernels may have several; ranks in step leave them to Inductor."""
    return not tuning.ranks and tuning.device.type != "cpu"


def _known_record(tuning: Tuning, index: int) -> ConfigRecord | None:
    """What an earlier process found out about the configs of a candidate's kernels."""
    measurement, text = _measurement_of_record(tuning), tuning.standing.text_of(index)
    if measurement is None or text is None:
        return None
    return lookup_record(measurement, text)


def remember_records(tuning: Tuning, records: Mapping[int, ConfigRecord]) -> None:
    """For later processes."""
    measurement = _measurement_of_record(tuning)
    for index, record in records.items():
        text = tuning.standing.text_of(index)
        if measurement is not None and text is not None:
            store_record(measurement, text, record)


def _measurement_of_record(tuning: Tuning) -> str | None:
    """
    The name of a config record: the call site at the model's sizes, rounded up to powers of
    two as they are in the source of kernels.
    """
    hints = hint_point(tuning.site).values
    rounded = {s: next_power_of_2(value) for s, value in hints.items()}
    options = tuning.registration.options
    return measurement_text(tuning.site, options, rounded, tuning.hosts)


def _recall_kernel_configs(tuning: Tuning) -> None:
    """
    Concludes from the configs of kernels that earlier processes have left.

    Raises:
        _NotKnown: if something was not measured.
    """
    records: dict[int, ConfigRecord] = {}

    def record_of(index: int) -> ConfigRecord:
        record = _known_record(tuning, index)
        if record is None:
            raise _NotKnown
        records[index] = record
        return record

    def known_at(index: int, point: SizePoint) -> ConfigTimes:
        if point.size not in records[index].at:
            raise _NotKnown
        return records[index].at[point.size]

    choose_kernel_configs(tuning, record_of, known_at)


def _names_in_cache(
    tuning: Tuning, competing: ContestedRange, point: SizePoint
) -> tuple[str | None, dict[int, str]]:
    """The timing cache's names for a measurement and those who compete there."""
    texts: dict[int, str] = {}
    for index in {*tuning.standing.texts, *tuning.standing.traced}:
        if not tuning.standing.enters(index, competing):
            continue
        if index == FALLBACK_INDEX and not tuning.fallback_competes:
            continue
        text = tuning.standing.text_of(index)
        if text is None:
            return None, {}
        texts[index] = text
    options = tuning.registration.options
    measurement = measurement_text(tuning.site, options, point.values, tuning.hosts)
    made = "" if tuning.made_at is None else f"\nmade at {tuning.made_at}"
    return measurement and f"{measurement}{_how_measured(point)}{made}", texts


def _how_measured(point: SizePoint) -> str:
    """What is found out at a size in one way is not what is in another."""
    usual = point.purpose is Purpose.STAND_FOR_RANGE
    return "" if usual else f"\n{point.purpose.value}"
