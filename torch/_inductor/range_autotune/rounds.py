"""Each range's candidates, run and timed at each of its sizes."""

from __future__ import annotations

import logging
from typing import Any, TYPE_CHECKING

from .. import config
from .candidates import FALLBACK_INDEX, one_line
from .collectives import common_to_all_ranks, time_in_step
from .inputs import hint_point, make_inputs, may_hold, point_for_size, SizePoint
from .limits import call_within, is_out_of_memory, time_limit_s
from .measure import Failure, RangeTimes, time_candidates, Times
from .numerics import find_mismatch
from .ranges import DimRange, representative_sizes
from .trial import try_in_process


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .subgraph_module import SubgraphModule
    from .tuning import Round, Tuning

    Runners = dict[int, Callable[[], Any]]

log = logging.getLogger("torch._inductor.kernel.custom_op")


def measure_rounds(tuning: Tuning) -> list[RangeTimes]:
    """Times of the candidates that are still in at the end, range by range."""
    measured = [_measure_round(tuning, competing) for competing in tuning.rounds]
    return [_without_rejected(tuning, row) for row in measured]


def _without_rejected(tuning: Tuning, row: RangeTimes) -> RangeTimes:
    """What failed in one range must win in none."""
    at = {
        size: {index: time for index, time in times.items() if index in tuning.traced}
        for size, times in row.at.items()
    }
    return RangeTimes(row.sizes, at)


def _measure_round(tuning: Tuning, competing: Round) -> RangeTimes:
    """Times a range's candidates; those that fail are out of all ranges to come."""
    at: dict[int | None, Times] = {}
    for point in _points(tuning, competing.possible):
        runners = _runners(tuning, competing, point)
        if tuning.collective:
            runners = {i: runners[i] for i in common_to_all_ranks(runners)}
        if not runners:
            continue
        _check_numerics(tuning, runners, point)
        if not tuning.fallback_competes:
            runners.pop(FALLBACK_INDEX, None)
        times = _times(tuning, runners)
        at[point.size] = times
        for index, result in times.items():
            if isinstance(result, Failure):
                tuning.reject(
                    index, f"it does not run: {result.reason}", str(competing.sizes)
                )
    return RangeTimes(competing.sizes, at)


def _points(tuning: Tuning, sizes: DimRange) -> list[SizePoint]:
    """Where a range is measured."""
    size, site = tuning.size, tuning.site
    if size is None:
        return [hint_point(site)]
    options = tuning.registration.options
    wanted = [s for s in options.representative_sizes if s in sizes]
    wanted = wanted or list(representative_sizes(sizes, options.unbounded_size))
    points = [point_for_size(site, size, w, sizes) for w in wanted]
    found = {p.size: p for p in points if p is not None}
    if not found:
        point = hint_point(site, size)
        log.info(
            "%s: no input has a size %s in range %s; measured at %s",
            tuning.name,
            size,
            sizes,
            point.size,
        )
        return [point]
    return list(found.values())


def _runners(tuning: Tuning, competing: Round, point: SizePoint) -> Runners:
    """One call of each candidate at a size, none if it needs more memory than there is."""
    for module in tuning.modules.values():
        if not all(may_hold(c, point.values) for c in module.conditions):
            log.info("%s: size %s is too large to measure", tuning.name, point.size)
            return {}
    try:
        _reject_in_process(tuning, competing, point)
        inputs = make_inputs(
            tuning.site, point, tuning.registration.options.input_gen_fns
        )
    except Exception as e:
        if not is_out_of_memory(e):
            raise
        log.info(
            "%s: size %s is not measured: %s", tuning.name, point.size, one_line(e)
        )
        return {}
    symbol_values = [point.values[symbol] for symbol in tuning.site.symbols()]

    def runner(module: SubgraphModule) -> Callable[[], Any]:
        call = module.load().call
        return lambda: call([*symbol_values, *inputs])

    return {
        index: runner(module)
        for index, module in tuning.modules.items()
        if tuning.competes(index, competing)
    }


def _reject_in_process(tuning: Tuning, competing: Round, point: SizePoint) -> None:
    """Takes out candidates that another process did not survive, or not in time."""
    if not config.autotune_in_subproc or tuning.collective:
        return
    modules = {
        index: module
        for index, module in tuning.modules.items()
        if tuning.competes(index, competing) and not tuning.traced[index].calls_python
    }
    gen_fns = tuning.registration.options.input_gen_fns
    reasons = try_in_process(modules, tuning.site, point, gen_fns, time_limit_s())
    for index, reason in reasons.items():
        tuning.reject(index, reason, str(competing.sizes))


def _check_numerics(tuning: Tuning, runners: Runners, point: SizePoint) -> None:
    """Compares with the op itself; takes those that differ out, if asked to."""
    check = tuning.registration.options.numerics_check
    if check == "off" or FALLBACK_INDEX not in runners:
        return
    limit_s = time_limit_s()
    try:
        expected = call_within(limit_s, "a call of it", runners[FALLBACK_INDEX])
    except Exception:  # timing it says why
        return
    for index in [index for index in runners if index != FALLBACK_INDEX]:
        try:
            actual = call_within(limit_s, "a call of it", runners[index])
            mismatch = find_mismatch(actual, expected)
        except Exception:  # timing it says why
            continue
        if mismatch is None:
            continue
        reason = f"{mismatch}, at size {point.size}"
        if check == "warn":
            name = tuning.traced[index].name
            log.warning("%s: candidate '%s': %s", tuning.name, name, reason)
            continue
        tuning.reject(index, reason)
        del runners[index]


def _times(tuning: Tuning, runners: Mapping[int, Callable[[], Any]]) -> Times:
    if tuning.collective:
        return time_in_step(runners, tuning.device)
    return time_candidates(
        runners,
        tuning.device,
        tuning.registration.options.benchmark_with_cudagraphs,
        [index for index in runners if tuning.traced[index].calls_python],
        time_limit_s(),
    )
