"""Each range's candidates, run and timed at each of its sizes."""

from __future__ import annotations

import logging
from typing import Any, TYPE_CHECKING

from .. import config
from . import compiling
from .candidates import call_of_candidate, FALLBACK, FALLBACK_INDEX, one_line
from .conclusions import (
    choose_kernel_configs,
    conclude,
    judge,
    learn,
    reject_failures,
)
from .config_ranges import ConfigRecord
from .in_step import call_in_step, time_in_step
from .inputs import make_inputs
from .integer_division import check_divisors
from .kernel_configs import ConfigSearch
from .limits import call_within, is_out_of_memory, time_limit_s
from .measure import call_once, synchronize, time_candidates
from .numerics import find_mismatch, NotCompared
from .places import in_order, points_of_rounds, spread
from .ranks import common_comparisons, common_to_all_ranks
from .recall import may_have_kernel_configs, remember, remember_records
from .second_opinion import find_mismatch_of_ops
from .size_points import may_hold, SizePoint, values_of
from .standing import LEFT_OUT_ELSEWHERE
from .times import Failure, failure_of, Times, Timing
from .timing_cache import Entry
from .trial import try_in_process
from .tuning_progress import tuning_progress


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import torch

    from .config_ranges import ConfigTimes
    from .numerics import Comparison
    from .standing import Round
    from .subgraph_module import SubgraphModule
    from .tuning import Tuning

    Runners = dict[int, Callable[[], Any]]

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Where kernels are launched with all their configs, beside the place that comes first.
_OTHER_PLACES = 3


def measure_rounds(tuning: Tuning, beside: Iterable[Tuning] = ()) -> None:
    """
    Compiles and times the candidates, range by range; keeps the times.

    Args:
        beside: other call sites, whose candidates may still be compiling. On a CPU that is
            waited for: compilers would disturb what is timed.
    """
    points = points_of_rounds(tuning)
    order = in_order(tuning, points)
    found: dict[tuple[int, int | None], Entry] = {}
    steps = len(tuning.loads) + sum(map(len, points))
    with tuning_progress(tuning.name, steps) as progress:
        inputs: list[Any] = []  # those of the first place, if it is called at before
        search = ConfigSearch(tuning.device)
        loaded = _caller(tuning, order[0], inputs, search)
        compiling.wait(tuning, progress.done, loaded)
        _settle_on_configs(tuning, order, inputs, search)
        if tuning.site.updated:
            inputs = []  # calls have updated them
        if tuning.device.type == "cpu":
            compiling.wait_for_quiet(beside)

        def measure(competing: Round, point: SizePoint) -> Entry:
            nonlocal inputs
            out_before = tuning.standing.out_of(competing)
            entry = _measure_point(tuning, competing, point, inputs)
            inputs = []
            remember(tuning, competing, point, entry, out_before)
            progress.done(f"{competing.sizes} at {point.size}")
            return entry

        def measure_between(competing: Round, point: SizePoint) -> Entry:
            progress.add_steps(1)
            return measure(competing, point)

        try:
            for number, point in order:
                found[number, point.size] = measure(
                    tuning.standing.rounds[number], point
                )
            entries = [[found[i, p.size] for p in row] for i, row in enumerate(points)]
            conclude(tuning, points, entries, measure_between)
            if may_have_kernel_configs(tuning):
                _compare_configs(tuning, search)
        finally:
            search.end()


def _measure_point(
    tuning: Tuning, competing: Round, point: SizePoint, inputs: list[Any]
) -> Entry:
    """
    Those that fail are out of the range.

    Args:
        inputs: in place of the call site's; empty if they are still to be made.
    """
    reason = _too_large(tuning, point)
    if reason:
        _tell_not_measured(tuning, point, reason)
    mine, restore = (
        ({}, _nothing) if reason else _runners(tuning, competing, point, inputs)
    )
    runners = _on_all_ranks(tuning, mine)
    if not runners:
        return Entry(not_measured=reason)
    if not point.timed:
        entry = _called(tuning, runners, point, restore)
        learn(tuning.standing, competing, point, entry)
        return entry
    comparisons = _compare(tuning, runners, point, restore)
    judge(tuning.standing, comparisons, point)
    for index in tuning.standing.rejected:
        runners.pop(index, None)
    if not tuning.fallback_competes:
        runners.pop(FALLBACK_INDEX, None)
    try:
        timed = _times(tuning, runners, restore)
    except Exception as e:  # the timer needs some, too
        if not is_out_of_memory(e):
            raise
        _tell_not_measured(tuning, point, one_line(e))
        return Entry()
    if FALLBACK_INDEX in timed and all(map(_lacks_memory, timed.values())):
        _tell_not_measured(tuning, point, "there is no memory for a call of anybody")
        return Entry()
    times: Times = {
        index: result.of("it does not run") if isinstance(result, Failure) else result
        for index, result in timed.items()
    }
    reject_failures(tuning.standing, competing, times)
    return Entry(times, comparisons)


def _lacks_memory(result: Timing | Failure) -> bool:
    return isinstance(result, Failure) and result.lacks_memory


def _tell_not_measured(tuning: Tuning, point: SizePoint, reason: str) -> None:
    log.info("%s: size %s is not measured: %s", tuning.name, point.size, reason)


def _called(
    tuning: Tuning, runners: Runners, point: SizePoint, restore: Callable[[], None]
) -> Entry:
    """What comes of one call of each candidate."""
    if tuning.ranks:
        times = call_in_step(runners, tuning.device, tuning.ranks)
    else:
        times = {
            i: call_once(run, tuning.device, time_limit_s())
            for i, run in runners.items()
        }
    if FALLBACK_INDEX not in runners and not any(
        isinstance(time, Timing) for time in times.values()
    ):
        failure = _failure_of_op(tuning, point)
        if failure:
            return Entry(not_measured=None if failure.may_pass else failure.reason)
    what = f"it does not run at size {point.size} (if the model has none, say so with torch._check)"
    times = {i: t.of(what) if isinstance(t, Failure) else t for i, t in times.items()}
    run = {i: runners[i] for i, time in times.items() if isinstance(time, Timing)}
    return Entry(times, _compare(tuning, run, point, restore) if run else {})


def _failure_of_op(tuning: Tuning, point: SizePoint) -> Failure | None:
    """Of the op itself among its neighbours, called eagerly, if it fails at a size."""
    if tuning.ranks:
        return Failure("nobody runs there, and the ranks do not call the op itself")
    site = tuning.site
    calls = [call_of_candidate(FALLBACK, call) for call in site.calls]

    def call() -> None:
        site.run(_inputs(tuning, point), *calls)
        synchronize(tuning.device)

    try:
        call_within(time_limit_s(), "a call of it", call)
    except Exception as e:
        return failure_of(e).of("the op itself does not run there")
    return None


def _too_large(tuning: Tuning, point: SizePoint) -> str | None:
    """Whether the candidates' code, which has 32 bits for an index, ends below a size."""
    for module in tuning.standing.modules.values():
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
            tuning.standing.reject(index, LEFT_OUT_ELSEWHERE)
    return {index: runners[index] for index in common}


def _runners(
    tuning: Tuning, competing: Round, point: SizePoint, inputs: list[Any]
) -> tuple[Runners, Callable[[], None]]:
    """
    One call of each candidate at a size, and what restores its inputs. No calls if there is
    not enough memory, or if the user's generators fail at a size that nobody named.
    """
    try:
        _reject_in_process(tuning, competing, point)
        inputs = inputs or _inputs(tuning, point)
        restore = _restorer(tuning, inputs)
    except Exception as e:
        if point.timed and not is_out_of_memory(e):
            raise
        _tell_not_measured(tuning, point, one_line(e))
        return {}, _nothing
    if tuning.device.type == "cpu" and not tuning.ranks:
        _reject_where_divisors_are_zero(tuning, competing, inputs)
    runners = {
        index: _runner(module, point, inputs)
        for index, module in tuning.standing.modules.items()
        if tuning.standing.competes(index, competing)
    }
    return runners, restore


def _nothing() -> None:
    """Inputs that nobody writes to stay as they are."""


def _restorer(tuning: Tuning, inputs: Sequence[Any]) -> Callable[[], None]:
    """
    What undoes the updates of inputs in place: called again and again with what they have
    become, candidates would soon be measured on infinities, or on numbers too small for a
    CPU to be fast with.
    """
    updated = [inputs[at] for at in tuning.site.updated]
    kept = [tensor.clone() for tensor in updated]

    def restore() -> None:
        for tensor, values in zip(updated, kept):
            tensor.copy_(values)

    return restore if updated else _nothing


def _reject_where_divisors_are_zero(
    tuning: Tuning, competing: Round, inputs: Sequence[Any]
) -> None:
    """Takes out candidates that would end the process."""
    standing = tuning.standing
    for index in [i for i in standing.modules if standing.competes(i, competing)]:
        try:
            check_divisors(standing.traced[index].graph, inputs, time_limit_s())
        except Exception as e:
            reason = (
                f"it does not run: {one_line(e)}; integers are zeros unless input_gen_fns "
                "makes others"
            )
            standing.reject_in(competing, index, Failure(reason))


def _inputs(tuning: Tuning, point: SizePoint) -> list[Any]:
    """What stands for the call site's inputs at a size; raises as ``make_inputs``."""
    gen_fns = tuning.registration.options.input_gen_fns
    return make_inputs(tuning.site, point, gen_fns, tuning.outputs.tensors)


def _runner(
    module: SubgraphModule, point: SizePoint, inputs: Sequence[Any]
) -> Callable[[], Any]:
    """One call of a candidate with a call site's inputs at a size."""
    call = module.load().call
    arguments = [*values_of(module.symbols, point.values), *inputs]
    return lambda: call([*arguments])


def _caller(
    tuning: Tuning,
    first: tuple[int, SizePoint],
    inputs: list[Any],
    search: ConfigSearch,
) -> Callable[[int], None]:
    """
    What calls a candidate where it is measured first, while others are compiled.

    Its Triton kernels are launched with all their configs. Errors are ignored: they recur,
    and are reported, when the candidate is timed. Nothing is called on a CPU, whose cores
    are the compilers', nor what is to be called by all ranks in step or in another process
    before.

    Args:
        inputs: filled with those at that place, before the first call.
        search: for the configs of their kernels.
    """
    number, point = first
    waits = tuning.ranks or config.autotune_in_subproc
    if waits or tuning.device.type == "cpu" or _too_large(tuning, point):
        return lambda index: None
    competing = tuning.standing.rounds[number]

    def call(index: int) -> None:
        if tuning.standing.competes(index, competing):
            _call_ahead(tuning, index, point, inputs, search)

    return call


def _call_ahead(
    tuning: Tuning,
    index: int,
    point: SizePoint,
    inputs: list[Any],
    search: ConfigSearch,
) -> None:
    """Calls a candidate before it is timed, whatever comes of it; makes inputs if need be."""

    def call() -> None:
        module = tuning.standing.modules[index]
        inputs.extend(() if inputs else _inputs(tuning, point))
        search.call(module.load(), _runner(module, point, inputs))

    try:
        call_within(time_limit_s(), "a call of it", call)
    except Exception as e:
        log.debug("%s: a call ahead of time failed", tuning.name, exc_info=e)


def _settle_on_configs(
    tuning: Tuning,
    places: Sequence[tuple[int, SizePoint]],
    inputs: list[Any],
    search: ConfigSearch,
) -> None:
    """
    Calls candidates at other sizes, too, whose kernels have several configs.

    Args:
        inputs: of the first place, where they were called; emptied if there is another,
            for there are those of one size at a time.
    """
    for number, point in spread(places[1:], _OTHER_PLACES):
        undecided = [
            index
            for index, module in tuning.standing.modules.items()
            if search.is_undecided(module.load())
            and tuning.standing.competes(index, tuning.standing.rounds[number])
        ]
        if undecided and not _too_large(tuning, point):
            inputs.clear()
            for index in undecided:
                _call_ahead(tuning, index, point, inputs, search)
            inputs.clear()
    search.settle()


def _compare_configs(tuning: Tuning, search: ConfigSearch) -> None:
    """Calls winners with other configs of their kernels; keeps those of parts of ranges."""
    records: dict[int, ConfigRecord] = {}

    def record_of(index: int) -> ConfigRecord:
        if index not in records:
            records[index] = _record(tuning, index, search)
        return records[index]

    def times_at(index: int, point: SizePoint) -> ConfigTimes:
        at = records[index].at
        assert point.size is not None
        if point.size in at:
            return at[point.size]
        try:
            at[point.size] = _config_times(tuning, index, search, point)
        except Exception as e:
            log.debug("%s: a call with other configs failed", tuning.name, exc_info=e)
            return {}
        return at[point.size]

    choose_kernel_configs(tuning, record_of, times_at)
    remember_records(tuning, records)


def _record(tuning: Tuning, index: int, search: ConfigSearch) -> ConfigRecord:
    """What is known of a candidate's kernels before it is called with each config again."""
    if index not in tuning.standing.modules:
        return ConfigRecord()
    module = tuning.standing.modules[index].load()
    return ConfigRecord(search.usual_configs(module), search.in_doubt(module))


def _config_times(
    tuning: Tuning, index: int, search: ConfigSearch, point: SizePoint
) -> ConfigTimes:
    """What a call of a candidate takes with each config of its kernels, if it can be told."""
    if _too_large(tuning, point):
        return {}
    module = tuning.standing.modules[index]

    def call() -> ConfigTimes:
        run = _runner(module, point, _inputs(tuning, point))
        return search.times_with_each(module.load(), run)

    times = call_within(time_limit_s(), "a call of it", call)
    log.debug("%s: with each config at size %s: %s", tuning.name, point.size, times)
    return times


def _reject_in_process(tuning: Tuning, competing: Round, point: SizePoint) -> None:
    """Takes out candidates that another process did not survive, or not in time."""
    if not config.autotune_in_subproc or tuning.ranks:
        return
    standing = tuning.standing
    modules = {
        index: module
        for index, module in standing.modules.items()
        if standing.competes(index, competing)
        and not standing.traced[index].calls_python
    }
    gen_fns = tuning.registration.options.input_gen_fns
    failures = try_in_process(modules, tuning.site, point, gen_fns, time_limit_s())
    for index, failure in failures.items():
        standing.reject_in(competing, index, failure)


def _compare(
    tuning: Tuning, runners: Runners, point: SizePoint, restore: Callable[[], None]
) -> Mapping[int, Comparison]:
    """With the op itself, if asked to; the same on every rank."""
    if tuning.registration.options.numerics_check == "off":
        return {}
    expected = _results_of_op(runners, restore)
    if tuning.ranks:  # nobody is called where one rank has nothing to compare with
        missing = expected if isinstance(expected, NotCompared) else None
        of_op = common_comparisons({FALLBACK_INDEX: missing}, tuning.ranks)
        expected = of_op[FALLBACK_INDEX] or expected
    found = _comparisons(runners, expected, restore)
    if tuning.ranks:
        return common_comparisons(found, tuning.ranks)
    if tuning.site.body is None:
        return found
    return {
        index: _without_neighbours(tuning, index, point, result)
        if isinstance(result, str)
        else result
        for index, result in found.items()
    }


def _without_neighbours(
    tuning: Tuning, index: int, point: SizePoint, mismatch: str
) -> Comparison:
    """Whether results that differ do so before neighbours make something of them."""
    site, candidate = tuning.site, tuning.standing.traced[index].candidate

    def compare() -> Comparison:
        return find_mismatch_of_ops(candidate, site, _inputs(tuning, point))

    try:
        return call_within(time_limit_s(), "a call of it", compare)
    except Exception as e:
        log.debug("%s: no second opinion", tuning.name, exc_info=e)
        return mismatch


def _results_of_op(
    runners: Runners, restore: Callable[[], None]
) -> list[torch.Tensor] | NotCompared:
    """What candidates are compared with, or why there is nothing."""
    if FALLBACK_INDEX not in runners:
        return NotCompared("the op itself does not compile")
    try:
        # They may be inputs that the others write to, too.
        results = _called_anew(runners[FALLBACK_INDEX], restore)
        return [result.clone() for result in results]
    except Exception as e:
        reason = f"the op itself does not run: {one_line(e)}"
        return NotCompared(reason, is_out_of_memory(e))


def _called_anew(run: Callable[[], Any], restore: Callable[[], None]) -> Any:
    restore()
    return call_within(time_limit_s(), "a call of it", run)


def _comparisons(
    runners: Runners,
    expected: list[torch.Tensor] | Comparison,
    restore: Callable[[], None],
) -> dict[int, Comparison]:
    """How each candidate's results differ from those of the op itself; None for not."""
    others = [index for index in runners if index != FALLBACK_INDEX]
    if not isinstance(expected, list):
        return dict.fromkeys(others, expected)
    found: dict[int, Comparison] = {}
    for index in others:
        try:
            found[index] = find_mismatch(
                _called_anew(runners[index], restore), expected
            )
        except Exception as e:
            found[index] = NotCompared(one_line(e), is_out_of_memory(e))
    return found


def _times(
    tuning: Tuning,
    runners: Mapping[int, Callable[[], Any]],
    restore: Callable[[], None] = _nothing,
) -> Times:
    cudagraphs = tuning.registration.options.benchmark_with_cudagraphs
    waits_for_host = not (cudagraphs or config.triton.cudagraphs)
    calling_python = [
        i for i in runners if waits_for_host and tuning.standing.traced[i].calls_python
    ]
    if tuning.ranks:
        return time_in_step(
            runners, tuning.device, tuning.ranks, calling_python, restore
        )
    return time_candidates(
        runners, tuning.device, cudagraphs, calling_python, time_limit_s(), restore
    )
