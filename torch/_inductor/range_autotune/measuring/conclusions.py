"""
What follows from measurements: which candidates are rejected, and the times that winners are
chosen from.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import TYPE_CHECKING

from ..candidate_indices import FALLBACK_INDEX
from ..inputs import has_long_tensor
from ..kernel_configs.kernel_config_ranges import configs_of_winners
from ..sizes.size_points import measure_within, Purpose, SizePoint
from ..times import Failure, RangeTimes, Times, Timing
from ..winners import choose_winners
from .cuts import cut
from .measuring_points import end_points, has_open_end
from .open_ends import with_open_end


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..kernel_configs.kernel_config_ranges import (
        ConfigRecord,
        ConfigTimes,
        MeasureConfigs,
    )
    from ..standing import ContestedRange, Standing
    from ..times import Findings
    from ..tuning import Tuning
    from .numerics import Comparison

    Found = tuple[ContestedRange, SizePoint, Findings]

log = logging.getLogger("torch._inductor.kernel.custom_op")


def learn(
    standing: Standing, competing: ContestedRange, point: SizePoint, findings: Findings
) -> None:
    """
    Rejects candidates that failed, or differed from the op, at a point.

    Args:
        competing: the range that the point is in.
    """
    if point.is_timed or _is_called_there(standing, competing, findings.times):
        judge(standing, findings.comparisons, point)
        reject_failures(standing, competing, point, findings.times)


def _is_called_there(
    standing: Standing, competing: ContestedRange, times: Times
) -> bool:
    """
    Whether failures at a size that is not timed count: not if the op itself fails there, since
    no model can call it then. If the op does not compete, it was called only after all
    candidates had failed.
    """
    out = standing.out_of(competing)
    op = times.get(FALLBACK_INDEX) if FALLBACK_INDEX not in out else None
    return not isinstance(op, Failure)


def judge(
    standing: Standing, comparisons: Mapping[int, Comparison], point: SizePoint
) -> None:
    """Rejects candidates whose results differ from the op's, or warns of them."""
    where = "at the model's sizes" if point.size is None else f"at size {point.size}"
    for index, result in comparisons.items():
        if index not in standing.traced:
            continue
        if isinstance(result, Failure):
            standing.not_compared[index] = f"{result.reason}, {where}"
            log.info(
                "%s: candidate '%s' is not compared with the op %s: %s",
                standing.name,
                standing.name_of(index),
                where,
                result.reason,
            )
            continue
        standing.compared.add(index)
        if result is not None:
            _object_to(standing, index, f"{result}, {where}")


def _object_to(standing: Standing, index: int, reason: str) -> None:
    """
    Rejects a candidate whose results differ; or warns of it, once for all sizes and for the
    candidate with its variants, and logs the rest.
    """
    if index not in standing.traced:
        return
    if standing.registration.options.numerics_check == "drop":
        standing.reject(index, Failure(reason))
        return
    is_told = not standing.doubted.isdisjoint((index, standing.variants.get(index)))
    level = logging.INFO if is_told else logging.WARNING
    standing.doubted.add(index)
    name = standing.name_of(index)
    log.log(level, "%s: candidate '%s': %s", standing.name, name, reason)


def reject_failures(
    standing: Standing,
    competing: ContestedRange,
    point: SizePoint,
    times: Mapping[int, Timing | Failure],
) -> None:
    """
    Takes candidates that failed out of a range; not for failures at sizes beyond those that
    stand for it.
    """
    for index, result in times.items():
        if not isinstance(result, Failure) or index in standing.out_of(competing):
            continue
        if point.purpose is not Purpose.BEYOND:
            standing.reject_in(competing, index, result)
            continue
        name, reason = standing.name_of(index), result.reason
        out = "%s: candidate '%s' does not win at size %s: %s"
        log.info(out, standing.name, name, point.size, reason)


def conclude(
    tuning: Tuning,
    found: Sequence[Found],
    findings_at: Callable[[ContestedRange, SizePoint], Findings],
) -> None:
    """
    Keeps the times of those that have not failed in a range, cut where winners change.

    Args:
        found: at all that was scheduled.
        findings_at: finds out about a size between the points.
    """
    _object_to_uncompared(tuning.standing)
    cut_ranges: list[tuple[ContestedRange, list[RangeTimes]]] = []
    for competing in tuning.standing.ranges:
        at = {
            point.size: findings.times
            for of_range, point, findings in found
            if of_range == competing and point.is_timed
        }
        pieces = _pieces(tuning, competing, at, findings_at)
        cut_ranges.append((competing, pieces))
    _call_at_ends(tuning, found, findings_at)
    rows = [
        (competing, _of_those_in(tuning.standing, competing, piece))
        for competing, pieces in cut_ranges
        for piece in pieces
    ]
    measured = [row for _, row in rows if row.at]
    tuning.measured = [
        row if row.at else _with_loan(tuning, competing, row, measured)
        for competing, row in rows
    ]


def _pieces(
    tuning: Tuning,
    competing: ContestedRange,
    at: Mapping[int | None, Times],
    findings_at: Callable[[ContestedRange, SizePoint], Findings],
) -> list[RangeTimes]:
    """
    What a range is cut into, with what is measured for that.

    Args:
        at: what was measured at the sizes that stand for it.
    """
    standing, rules = tuning.standing, tuning.choice_rules()
    whole = _of_those_in(standing, competing, RangeTimes(competing.sizes, at))
    last = max((size for size in whole.at if size is not None), default=0)
    times_at = functools.partial(_times_at, tuning, competing, findings_at, last)
    within = measure_within(tuning.site, tuning.size, times_at)
    if has_open_end(tuning, competing.possible):
        whole = with_open_end(whole, rules, within)
    return cut(whole, rules, within)


def _with_loan(
    tuning: Tuning,
    competing: ContestedRange,
    row: RangeTimes,
    measured: Sequence[RangeTimes],
) -> RangeTimes:
    """
    A range that could not be measured, since all of its sizes take more memory than is free,
    with the times of the nearest range that was: the best guess there is.
    """
    for lender in sorted(measured, key=lambda m: m.sizes.gap_to(row.sizes)):
        lent = _of_those_in(tuning.standing, competing, lender)
        if lent.at:
            return dataclasses.replace(lent, sizes=row.sizes, lender=lender.sizes)
    return row


def _call_at_ends(
    tuning: Tuning,
    found: Sequence[Found],
    findings_at: Callable[[ContestedRange, SizePoint], Findings],
) -> None:
    """
    Calls all candidates once at ends of ranges, too, where these are not measured: at ends
    up to the largest size measured, or at all ends if a candidate is out of one range only,
    for it may fail from somewhere in the next one on.
    """
    if tuning.size is None:
        return
    measured = {(competing, point.size) for competing, point, _ in found}
    largest = _largest_of(found)
    for competing in tuning.standing.ranges:
        for point in end_points(tuning, competing.possible):
            assert point.size is not None
            is_called = point.size <= largest or _is_somebody_out(tuning.standing)
            if is_called and (competing, point.size) not in measured:
                findings_at(competing, point)


def _is_somebody_out(standing: Standing) -> bool:
    """Of a range, not of all."""
    out = {index for of_range in standing.left_out.values() for index in of_range}
    return not out.isdisjoint(standing.traced)


def _largest_of(found: Iterable[Found]) -> int:
    """The largest size that some range is measured at; of ranks, the same on each."""
    return max(
        (
            point.size or 0
            for competing, point, _ in found
            if point.size in competing.possible  # else it is the model's
        ),
        default=0,
    )


def choose_kernel_configs(
    tuning: Tuning,
    record_of: Callable[[int], ConfigRecord],
    times_at: Callable[[int, SizePoint], ConfigTimes],
) -> None:
    """
    Keeps configs of winners' kernels for parts of their ranges.

    Args:
        record_of: a candidate's, by index.
        times_at: finds out about a candidate at a size.
    """

    def measure(index: int) -> MeasureConfigs:
        times = functools.partial(times_at, index)
        return measure_within(tuning.site, tuning.size, times)

    winners = choose_winners(tuning.measured, tuning.choice_rules())
    tuning.kernel_configs = configs_of_winners(
        winners, tuning.measured, record_of, measure
    )


def _object_to_uncompared(standing: Standing) -> None:
    """
    Objects to candidates that were compared at no size. A comparison takes more memory than a
    call, so that it may be left out at the largest sizes, but not at all of them.
    """
    for index, reason in standing.not_compared.items():
        if index not in standing.compared:
            _object_to(
                standing, index, f"it could not be compared with the op: {reason}"
            )


def _of_those_in(
    standing: Standing, competing: ContestedRange, measured: RangeTimes
) -> RangeTimes:
    at = {
        size: _still_in(standing, competing, times)
        for size, times in measured.at.items()
    }
    return RangeTimes(
        measured.sizes, {size: times for size, times in at.items() if times}
    )


def _still_in(standing: Standing, competing: ContestedRange, times: Times) -> Times:
    return {i: time for i, time in times.items() if standing.competes(i, competing)}


def _times_at(
    tuning: Tuning,
    competing: ContestedRange,
    findings_at: Callable[[ContestedRange, SizePoint], Findings],
    last: int,
    point: SizePoint,
) -> Times:
    """
    The times of one range's candidates at a size.

    Args:
        last: the largest size that stands for the range. Larger ones at which no candidate
            runs are ignored, and so are, without a call, those at which a tensor is too long
            for 32-bit indices, which users' kernels may rely on.
    """
    if point.size is None or point.size <= last:
        return _still_in(
            tuning.standing, competing, findings_at(competing, point).times
        )
    if has_long_tensor(tuning.site, point.values, tuning.outputs.tensors):
        return {}
    times = findings_at(
        competing, dataclasses.replace(point, purpose=Purpose.BEYOND)
    ).times
    runs = any(isinstance(time, Timing) for time in times.values())
    return _still_in(tuning.standing, competing, times) if runs else {}
