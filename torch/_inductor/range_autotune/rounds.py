"""Each range's candidates, run and timed at each of its sizes."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from typing import Any, TYPE_CHECKING

from .. import config
from . import compiling
from .candidates import FALLBACK_INDEX, one_line
from .collectives import (
    as_on_first_rank,
    common_reasons,
    common_to_all_ranks,
    time_in_step,
)
from .inputs import hint_point, make_inputs, may_hold, point_for_size, SizePoint
from .limits import call_within, is_out_of_memory, time_limit_s
from .measure import Failure, RangeTimes, time_candidates, Times
from .numerics import find_mismatch, NotCompared
from .ranges import DimRange, representative_sizes
from .timing_cache import candidate_text, lookup, place_text, store
from .trial import try_in_process
from .tuning import LEFT_OUT_ELSEWHERE
from .tuning_progress import tuning_progress


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .subgraph_module import SubgraphModule
    from .tuning import Round, Tuning

    Runners = dict[int, Callable[[], Any]]

log = logging.getLogger("torch._inductor.kernel.custom_op")


def measure_rounds(tuning: Tuning) -> None:
    """Compiles and times the candidates, range by range; keeps the times."""
    points = [_points(tuning, competing.possible) for competing in tuning.rounds]
    measured: dict[tuple[int, int | None], Times] = {}
    steps = len(tuning.loads) + sum(map(len, points))
    with tuning_progress(tuning.name, steps) as progress:
        compiling.wait(tuning, progress.done)
        for number, point in _in_order(tuning, points):
            competing = tuning.rounds[number]
            times = _measure_point(tuning, competing, point)
            if times is not None:
                measured[number, point.size] = times
                _remember(tuning, competing, point, times)
            progress.done(f"{competing.sizes} at {point.size}")
    _object_to_uncompared(tuning)
    rows = []
    for number, competing in enumerate(tuning.rounds):
        keys = [(number, point.size) for point in points[number]]
        at = {key[1]: measured[key] for key in keys if key in measured}
        rows.append(RangeTimes(competing.sizes, at))
    tuning.measured = _without_rejected(tuning, rows)


def _in_order(
    tuning: Tuning, points: Sequence[Sequence[SizePoint]]
) -> list[tuple[int, SizePoint]]:
    """
    What is measured when: each round's points, by the number of the round.

    Begins near the size that the model is compiled with, for Triton kernels choose their
    configs at their first call: at the size where they would without tuning. Of ranks
    that measure in step, which may be compiled with a size each, the first one's counts.
    """
    numbered = [(i, point) for i, row in enumerate(points) for point in row]
    if tuning.size is None:
        return numbered
    here = hint_point(tuning.site, tuning.size).size or 1
    if tuning.ranks:
        here = as_on_first_rank(here, tuning.ranks)

    def distance(entry: tuple[int, SizePoint]) -> float:
        return abs(math.log((entry[1].size or 1) / here))

    return sorted(numbered, key=distance)


def recall(tuning: Tuning) -> bool:
    """
    Finds the times of an earlier process, if it measured all that is to be measured here.

    Candidates that failed there are out here, too.
    """
    rows = []
    for competing in tuning.rounds:
        times: dict[int | None, Times] = {}
        for point in _points(tuning, competing.possible):
            place, texts = _cache_entry(tuning, competing, point)
            known = None if place is None else lookup(place, texts)
            if known is None:
                return False
            times[point.size] = known
        rows.append(RangeTimes(competing.sizes, times))
    for row in rows:
        for at_point in row.at.values():
            _reject_failures(tuning, at_point, row.sizes)
    tuning.measured = _without_rejected(tuning, rows)
    return True


def _reject_failures(tuning: Tuning, times: Times, sizes: DimRange) -> None:
    for index, result in times.items():
        if isinstance(result, Failure) and index not in tuning.rejected:
            tuning.reject(index, result.reason, str(sizes))


def _without_rejected(tuning: Tuning, rows: Sequence[RangeTimes]) -> list[RangeTimes]:
    """What failed in one range must win in none."""
    return [
        RangeTimes(
            row.sizes,
            {
                size: {index: t for index, t in times.items() if index in tuning.traced}
                for size, times in row.at.items()
            },
        )
        for row in rows
    ]


def _remember(tuning: Tuning, competing: Round, point: SizePoint, times: Times) -> None:
    """For later processes; candidates that are out by now are out there, too."""
    place, texts = _cache_entry(tuning, competing, point)
    if place is not None:
        out = {index: Failure(reason) for index, reason in tuning.rejected.items()}
        store(place, texts, {**out, **times})


def _cache_entry(
    tuning: Tuning, competing: Round, point: SizePoint
) -> tuple[str | None, dict[int, str]]:
    """The timing cache's names for a place and those who compete there."""
    options = tuning.registration.options
    if tuning.ranks or options.numerics_check != "off":
        return None, {}
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
    return place_text(tuning.site, options, point.values), texts


def _measure_point(tuning: Tuning, competing: Round, point: SizePoint) -> Times | None:
    """Those that fail are out of all ranges; None where nothing can be measured."""
    runners = _on_all_ranks(tuning, _runners(tuning, competing, point))
    if not runners:
        return None
    _check_numerics(tuning, runners, point)
    if not tuning.fallback_competes:
        runners.pop(FALLBACK_INDEX, None)
    times: Times = {
        index: dataclasses.replace(result, reason=f"it does not run: {result.reason}")
        if isinstance(result, Failure)
        else result
        for index, result in _times(tuning, runners).items()
    }
    _reject_failures(tuning, times, competing.sizes)
    return times


def _on_all_ranks(tuning: Tuning, runners: Runners) -> Runners:
    """Those that every rank has; where one can run none, nobody measures."""
    if tuning.ranks is None:
        return runners
    common = common_to_all_ranks(runners, tuning.ranks)
    for index in runners if common else ():
        if index not in common:
            tuning.reject(index, LEFT_OUT_ELSEWHERE)
    return {index: runners[index] for index in common}


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
    if not config.autotune_in_subproc or tuning.ranks:
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
    if tuning.registration.options.numerics_check == "off":
        return
    where = f"at size {point.size}"
    found = _comparisons(runners)
    for index, result in found.items():
        if isinstance(result, NotCompared):
            tuning.not_compared[index] = f"{result.reason}, {where}"
            log.info(
                "%s: candidate '%s' is not compared with the op %s: %s",
                tuning.name,
                tuning.traced[index].name,
                where,
                result.reason,
            )
        else:
            tuning.compared.add(index)
    wrong = {i: f"{m}, {where}" for i, m in found.items() if isinstance(m, str)}
    for index, reason in _of_all_ranks(tuning, wrong).items():
        _object_to(tuning, index, reason)
        if index not in tuning.traced:
            runners.pop(index, None)


def _comparisons(runners: Runners) -> dict[int, str | NotCompared | None]:
    """How each candidate's results differ from those of the op itself; None for not."""
    others = [index for index in runners if index != FALLBACK_INDEX]
    call = functools.partial(call_within, time_limit_s(), "a call of it")
    if FALLBACK_INDEX not in runners:
        return dict.fromkeys(others, NotCompared("the op itself does not compile"))
    try:
        expected = call(runners[FALLBACK_INDEX])
    except Exception as e:
        problem = NotCompared(f"the op itself does not run: {one_line(e)}")
        return dict.fromkeys(others, problem)
    found: dict[int, str | NotCompared | None] = {}
    for index in others:
        try:
            found[index] = find_mismatch(call(runners[index]), expected)
        except Exception as e:
            found[index] = NotCompared(one_line(e))
    return found


def _object_to_uncompared(tuning: Tuning) -> None:
    """
    A comparison takes more memory than a call, so that the largest sizes may go without;
    but who was compared at no size has not passed.
    """
    never = {
        index: f"it could not be compared with the op: {reason}"
        for index, reason in tuning.not_compared.items()
        if index in tuning.traced and index not in tuning.compared
    }
    for index, reason in _of_all_ranks(tuning, never).items():
        _object_to(tuning, index, reason)


def _of_all_ranks(tuning: Tuning, reasons: dict[int, str]) -> dict[int, str]:
    return common_reasons(reasons, tuning.ranks) if tuning.ranks else reasons


def _object_to(tuning: Tuning, index: int, reason: str) -> None:
    """Takes a candidate out, or warns of it only."""
    if index not in tuning.traced:
        return
    if tuning.registration.options.numerics_check == "drop":
        tuning.reject(index, reason)
    else:
        name = tuning.traced[index].name
        log.warning("%s: candidate '%s': %s", tuning.name, name, reason)


def _times(tuning: Tuning, runners: Mapping[int, Callable[[], Any]]) -> Times:
    calling_python = [i for i in runners if tuning.traced[i].calls_python]
    if tuning.ranks:
        return time_in_step(runners, tuning.device, tuning.ranks, calling_python)
    return time_candidates(
        runners,
        tuning.device,
        tuning.registration.options.benchmark_with_cudagraphs,
        calling_python,
        time_limit_s(),
    )
