"""Each range's candidates, run and timed at each of its sizes."""

from __future__ import annotations

import dataclasses
import functools
import logging
from typing import Any, TYPE_CHECKING

from .. import config
from . import compiling
from .candidates import FALLBACK_INDEX, one_line
from .collectives import (
    common_comparisons,
    common_to_all_ranks,
    known_to_all_ranks,
    time_in_step,
)
from .cuts import cut
from .inputs import (
    have_memory,
    make_inputs,
    may_hold,
    point_for_size,
    SizePoint,
)
from .limits import call_within, is_out_of_memory, time_limit_s
from .measure import Failure, RangeTimes, time_candidates, Times
from .numerics import find_mismatch, NotCompared
from .places import in_order, points_of_rounds
from .timing_cache import candidate_text, Entry, lookup, place_text, store
from .trial import try_in_process
from .tuning import LEFT_OUT_ELSEWHERE
from .tuning_progress import tuning_progress


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .numerics import Comparison
    from .ranges import DimRange
    from .subgraph_module import SubgraphModule
    from .tuning import Round, Tuning

    Runners = dict[int, Callable[[], Any]]

log = logging.getLogger("torch._inductor.kernel.custom_op")


def measure_rounds(tuning: Tuning, beside: Iterable[Tuning] = ()) -> None:
    """
    Compiles and times the candidates, range by range; keeps the times.

    Args:
        beside: other call sites, whose candidates may still be loaded; on a CPU that is
            waited for, since compilers take it from what is timed.
    """
    points = points_of_rounds(tuning)
    order = in_order(tuning, points)
    found: dict[tuple[int, int | None], Entry] = {}
    steps = len(tuning.loads) + sum(map(len, points))
    with tuning_progress(tuning.name, steps) as progress:
        inputs: list[Any] = []  # those of the first place, if it is called at before
        compiling.wait(tuning, progress.done, _caller(tuning, order[0], inputs))
        if tuning.device.type == "cpu":
            compiling.wait_for_quiet(beside)

        def measure(competing: Round, point: SizePoint) -> Entry:
            nonlocal inputs
            entry = _measure_point(tuning, competing, point, inputs)
            inputs = []
            _remember(tuning, competing, point, entry)
            progress.done(f"{competing.sizes} at {point.size}")
            return entry

        def measure_between(competing: Round, point: SizePoint) -> Entry:
            progress.add_steps(1)
            return measure(competing, point)

        for number, point in order:
            found[number, point.size] = measure(tuning.rounds[number], point)
        entries = [[found[i, p.size] for p in row] for i, row in enumerate(points)]
        _conclude(tuning, points, entries, measure_between)


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
        _judge(tuning, entry.comparisons, point)
        _reject_failures(tuning, entry.times, competing.sizes)

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
        _conclude(tuning, points, entries, known_between)
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


def _conclude(
    tuning: Tuning,
    points: Sequence[Sequence[SizePoint]],
    entries: Sequence[Sequence[Entry]],
    entry_at: Callable[[Round, SizePoint], Entry],
) -> None:
    """
    Keeps the times of those that have not failed in any range, cut where winners change.

    Args:
        entry_at: finds out about a place between the points.
    """
    _object_to_uncompared(tuning)
    rules = tuning.choice_rules()
    pieces: list[RangeTimes] = []
    for competing, row, known in zip(tuning.rounds, points, entries):
        at = {p.size: entry.times for p, entry in zip(row, known)}
        whole = _without_rejected(tuning, RangeTimes(competing.sizes, at))
        probe = functools.partial(_probe, tuning, competing, entry_at)
        pieces += cut(whole, rules, probe)
    tuning.measured = [_without_rejected(tuning, piece) for piece in pieces]


def _without_rejected(tuning: Tuning, measured: RangeTimes) -> RangeTimes:
    at = {
        size: {i: t for i, t in times.items() if i in tuning.traced}
        for size, times in measured.at.items()
    }
    return RangeTimes(
        measured.sizes, {size: times for size, times in at.items() if times}
    )


def _probe(
    tuning: Tuning,
    competing: Round,
    entry_at: Callable[[Round, SizePoint], Entry],
    within: DimRange,
    near: int,
) -> tuple[int, Times] | None:
    """The times at a size between those that are measured in any case."""
    assert tuning.size is not None
    point = point_for_size(tuning.site, tuning.size, near, within)
    if point is None or point.size is None:
        return None
    times = entry_at(competing, point).times
    return point.size, {i: t for i, t in times.items() if i in tuning.traced}


def _reject_failures(tuning: Tuning, times: Times, sizes: DimRange) -> None:
    for index, result in times.items():
        if isinstance(result, Failure) and index not in tuning.rejected:
            tuning.reject(index, result, str(sizes))


def _remember(tuning: Tuning, competing: Round, point: SizePoint, entry: Entry) -> None:
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


def _measure_point(
    tuning: Tuning, competing: Round, point: SizePoint, inputs: list[Any]
) -> Entry:
    """
    Those that fail are out of all ranges.

    Args:
        inputs: candidates' arguments; empty if they are still to be made.
    """
    reason = _too_large(tuning, point)
    if reason:
        log.info("%s: size %s is not measured: %s", tuning.name, point.size, reason)
    mine = {} if reason else _runners(tuning, competing, point, inputs)
    runners = _on_all_ranks(tuning, mine)
    if not runners:
        return Entry(too_large=reason)
    comparisons = _compare(tuning, runners)
    _judge(tuning, comparisons, point)
    for index in tuning.rejected:
        runners.pop(index, None)
    if not tuning.fallback_competes:
        runners.pop(FALLBACK_INDEX, None)
    times: Times = {
        index: result.of("it does not run") if isinstance(result, Failure) else result
        for index, result in _times(tuning, runners).items()
    }
    _reject_failures(tuning, times, competing.sizes)
    return Entry(times, comparisons)


def _too_large(tuning: Tuning, point: SizePoint) -> str | None:
    """Whether the candidates' code, which has 32 bits for an index, ends below a size."""
    for module in tuning.modules.values():
        for condition in module.conditions:
            if not may_hold(condition, point.values):
                return f"it is too large for code with {condition}"
    return None


def _on_all_ranks(tuning: Tuning, runners: Runners) -> Runners:
    """Those that every rank has; where one can run none, nobody measures."""
    if tuning.ranks is None:
        return runners
    common = common_to_all_ranks(runners, tuning.ranks)
    for index in runners if common else ():
        if index not in common:
            tuning.reject(index, LEFT_OUT_ELSEWHERE)
    return {index: runners[index] for index in common}


def _runners(
    tuning: Tuning, competing: Round, point: SizePoint, inputs: list[Any]
) -> Runners:
    """One call of each candidate at a size, none if it needs more memory than there is."""
    try:
        _reject_in_process(tuning, competing, point)
        inputs = inputs or _inputs(tuning, point)
    except Exception as e:
        if not is_out_of_memory(e):
            raise
        log.info(
            "%s: size %s is not measured: %s", tuning.name, point.size, one_line(e)
        )
        return {}
    return {
        index: _runner(module, inputs)
        for index, module in tuning.modules.items()
        if tuning.competes(index, competing)
    }


def _inputs(tuning: Tuning, point: SizePoint) -> list[Any]:
    """The arguments of candidates' modules at a size: values of symbols, then inputs."""
    symbol_values = [point.values[symbol] for symbol in tuning.site.symbols()]
    gen_fns = tuning.registration.options.input_gen_fns
    return [*symbol_values, *make_inputs(tuning.site, point, gen_fns)]


def _runner(module: SubgraphModule, arguments: Sequence[Any]) -> Callable[[], Any]:
    call = module.load().call
    return lambda: call([*arguments])


def _caller(
    tuning: Tuning, first: tuple[int, SizePoint], inputs: list[Any]
) -> Callable[[int], None]:
    """
    What calls a candidate where it is measured first, while others are compiled.

    At its first call a Triton kernel benchmarks its configs. What goes wrong there goes
    wrong again as it is timed. Nothing is called on a CPU, whose cores are the compilers',
    nor what is to be called by all ranks in step or in another process before.

    Args:
        inputs: filled with the arguments at that place, before the first call.
    """
    number, point = first
    waits = tuning.ranks or config.autotune_in_subproc
    if waits or tuning.device.type == "cpu" or _too_large(tuning, point):
        return lambda index: None
    competing = tuning.rounds[number]

    def call(index: int) -> None:
        if not tuning.competes(index, competing):
            return
        try:
            if not inputs:
                inputs.extend(_inputs(tuning, point))
            run = _runner(tuning.modules[index], inputs)
            call_within(time_limit_s(), "a call of it", run)
        except Exception as e:
            log.debug("%s: a call ahead of time failed", tuning.name, exc_info=e)

    return call


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
        tuning.reject(index, Failure(reason), str(competing.sizes))


def _compare(tuning: Tuning, runners: Runners) -> Mapping[int, Comparison]:
    """With the op itself, if asked to; the same on every rank."""
    if tuning.registration.options.numerics_check == "off":
        return {}
    found = _comparisons(runners)
    return common_comparisons(found, tuning.ranks) if tuning.ranks else found


def _judge(
    tuning: Tuning, comparisons: Mapping[int, Comparison], point: SizePoint
) -> None:
    """Takes those that differ from the op itself out, or warns of them."""
    where = "at the model's sizes" if point.size is None else f"at size {point.size}"
    for index, result in comparisons.items():
        if index not in tuning.traced:
            continue
        if isinstance(result, NotCompared):
            tuning.not_compared[index] = f"{result.reason}, {where}"
            log.info(
                "%s: candidate '%s' is not compared with the op %s: %s",
                tuning.name,
                tuning.traced[index].name,
                where,
                result.reason,
            )
            continue
        tuning.compared.add(index)
        if result is not None:
            _object_to(tuning, index, f"{result}, {where}")


def _comparisons(runners: Runners) -> dict[int, Comparison]:
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
    found: dict[int, Comparison] = {}
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
    for index, reason in tuning.not_compared.items():
        if index not in tuning.compared:
            _object_to(tuning, index, f"it could not be compared with the op: {reason}")


def _object_to(tuning: Tuning, index: int, reason: str) -> None:
    """Takes a candidate out, or warns of it only."""
    if index not in tuning.traced:
        return
    if tuning.registration.options.numerics_check == "drop":
        tuning.reject(index, Failure(reason))
    else:
        name = tuning.traced[index].name
        log.warning("%s: candidate '%s': %s", tuning.name, name, reason)


def _times(tuning: Tuning, runners: Mapping[int, Callable[[], Any]]) -> Times:
    cudagraphs = tuning.registration.options.benchmark_with_cudagraphs
    waits_for_host = not (cudagraphs or config.triton.cudagraphs)
    calling_python = [
        i for i in runners if waits_for_host and tuning.traced[i].calls_python
    ]
    if tuning.ranks:
        return time_in_step(runners, tuning.device, tuning.ranks, calling_python)
    return time_candidates(
        runners, tuning.device, cudagraphs, calling_python, time_limit_s()
    )
