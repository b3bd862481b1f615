"""Each range's candidates, run and timed at each of its sizes."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, TYPE_CHECKING

from ... import config
from ..candidate_indices import FALLBACK, FALLBACK_INDEX
from ..errors import is_out_of_memory, one_line
from ..inputs import have_memory
from ..kernel_configs.kernel_config_search import ConfigSearch
from ..limits import call_candidate
from ..measure import call_once, synchronize, time_candidates
from ..modules import compiling
from ..ops.candidate_calls import call_of_candidate
from ..sizes.size_points import Purpose
from ..standing import LEFT_OUT_ELSEWHERE
from ..times import Failure, failure_of, Findings, Times, Timing
from .calls import (
    broken_condition,
    HeldInputs,
    inputs_at,
    Runners,
    runners_at,
    tell_not_measured,
)
from .comparing import compare
from .conclusions import (
    conclude,
    judge,
    learn,
    reject_failures,
)
from .in_step import call_in_step, time_in_step
from .kernel_config_calls import (
    caller_ahead,
    compare_configs,
    settle_on_configs,
)
from .made_up_sequences import choose_sequences
from .measuring_points import schedule
from .ranks import common_to_all_ranks
from .recall import may_have_kernel_configs, remember
from .tuning_progress import tuning_progress


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ..sizes.size_points import SizePoint
    from ..standing import ContestedRange, Standing
    from ..tuning import Tuning
    from .numerics import Comparison


def measure_ranges(tuning: Tuning, beside: Iterable[Tuning]) -> None:
    """
    Compiles and times the candidates, range by range; keeps the times.

    Args:
        beside: other call sites, whose candidates may still be compiling. On a CPU that is
            waited for: compilers would disturb what is timed.
    """
    scheduled = schedule(tuning)
    steps = len(tuning.loads) + len(scheduled)
    search, held = ConfigSearch(tuning.device), HeldInputs(tuning)
    with tuning_progress(tuning.name, steps) as progress, contextlib.closing(search):
        choose_sequences(tuning, scheduled[0], held)
        loaded = caller_ahead(tuning, scheduled[0], held, search)
        compiling.wait(tuning, progress.done, loaded)
        uncompiled = _out_by_their_code(tuning.standing)
        settle_on_configs(tuning, scheduled, held, search)
        if tuning.site.updated:
            held.drop()  # calls have updated them
        if tuning.device.type == "cpu":
            compiling.wait_for_quiet(beside)

        def measure(competing: ContestedRange, point: SizePoint) -> Findings:
            out_before = tuning.standing.out_of(competing)
            findings = _measure_point(tuning, competing, point, held)
            held.drop()
            out = tuning.standing.out_of(competing)
            failed = {i: failure for i, failure in out.items() if i not in out_before}
            remember(tuning, competing, point, findings, {**uncompiled, **failed})
            progress.done(f"{competing.sizes} at {point.size}")
            return findings

        def measure_between(competing: ContestedRange, point: SizePoint) -> Findings:
            progress.add_steps(1)
            return measure(competing, point)

        found = [(*where, measure(*where)) for where in scheduled]
        conclude(tuning, found, measure_between)
        if may_have_kernel_configs(tuning):
            compare_configs(tuning, search)


def _out_by_their_code(standing: Standing) -> dict[int, Failure]:
    """Failures of candidates that do not compile, so that later processes need not try."""
    return {
        index: dataclasses.replace(failure, everywhere=True)
        for index, failure in standing.rejected.items()
        if failure is not LEFT_OUT_ELSEWHERE
    }


def _measure_point(
    tuning: Tuning, competing: ContestedRange, point: SizePoint, held: HeldInputs
) -> Findings:
    """Candidates that fail are out of the range, unless the point is beyond its sizes."""
    reason = broken_condition(tuning, point)
    if reason:
        tell_not_measured(tuning, point, reason)
        mine, failures = Runners(), {}
    else:
        mine, failures = runners_at(tuning, competing, point, held)
        failures = {i: _saying_where(f, competing) for i, f in failures.items()}
    reject_failures(tuning.standing, competing, point, failures)
    runners = _on_all_ranks(tuning, mine)
    if not runners:
        findings = Findings(not_measured=reason)
    elif point.is_timed:
        findings = _timed(tuning, competing, runners, point)
    else:
        findings = _called(tuning, runners, point)
        learn(tuning.standing, competing, point, findings)
    beyond = point.purpose is Purpose.BEYOND
    return _to_stay(tuning, point, findings, failures) if beyond else findings


def _to_stay(
    tuning: Tuning,
    point: SizePoint,
    findings: Findings,
    failures: Mapping[int, Failure],
) -> Findings:
    """
    Findings at a size beyond those that stand for the range, with lack of memory as a lasting
    failure: the size may never be met, and no process is to measure it again for that.

    Args:
        failures: of candidates that were not called for that reason.
    """

    def lasting(result: Any) -> Any:
        if not _lacks_memory(result):
            return result
        return dataclasses.replace(result, may_pass=False, lacks_memory=False)

    times = {i: lasting(result) for i, result in {**failures, **findings.times}.items()}
    if not times and not have_memory(tuning.site, point, tuning.outputs.tensors):
        return Findings()  # as later processes find, or not, before they call anybody
    comparisons = {i: lasting(result) for i, result in findings.comparisons.items()}
    reason = findings.not_measured or (None if times else "nobody could be called")
    return Findings(times, comparisons, reason)


def _timed(
    tuning: Tuning, competing: ContestedRange, runners: Runners, point: SizePoint
) -> Findings:
    """What candidates take, and whether they do what the op does, if that is asked for."""
    comparisons = compare(tuning, runners)
    wrong: dict[int, Failure] = {}
    drop = tuning.registration.options.numerics_check == "drop"
    if drop and point.purpose is Purpose.BEYOND:
        # Out at this size only: failures there, and no objections to be judged.
        wrong = {i: Failure(r) for i, r in comparisons.items() if isinstance(r, str)}
        comparisons = {**comparisons, **dict.fromkeys(wrong)}
    judge(tuning.standing, comparisons, point)
    out = {*tuning.standing.rejected, *wrong}
    if not tuning.fallback_competes:
        out.add(FALLBACK_INDEX)
    try:
        timed = _times(tuning, runners.only(i for i in runners if i not in out))
    except Exception as e:  # the timer needs some, too
        if not is_out_of_memory(e):
            raise
        tell_not_measured(tuning, point, one_line(e))
        return Findings()
    if timed and all(map(_lacks_memory, timed.values())):
        tell_not_measured(tuning, point, "there is no memory for a call of anybody")
        return Findings()
    times: Times = {
        index: _saying_where(result.of("it does not run"), competing)
        if isinstance(result, Failure)
        else result
        for index, result in timed.items()
    }
    times.update(wrong)
    reject_failures(tuning.standing, competing, point, times)
    return Findings(times, comparisons)


def _saying_where(failure: Failure, competing: ContestedRange) -> Failure:
    """A failure that counts in all ranges, saying in which one it occurred."""
    if not failure.everywhere:
        return failure
    reason = f"in range {competing.sizes}, {failure.reason}"
    return dataclasses.replace(failure, reason=reason)


def _lacks_memory(result: Timing | Failure | Comparison) -> bool:
    return isinstance(result, Failure) and result.lacks_memory


def _called(tuning: Tuning, runners: Runners, point: SizePoint) -> Findings:
    """What comes of one call of each candidate."""
    if tuning.ranks:
        times = call_in_step(runners, tuning.device, tuning.ranks)
    else:
        times = {i: call_once(run, tuning.device) for i, run in runners.items()}
    if FALLBACK_INDEX not in runners and not any(
        isinstance(time, Timing) for time in times.values()
    ):
        failure = _failure_of_op(tuning, point)
        if failure:
            return Findings(not_measured=None if failure.may_pass else failure.reason)
    what = f"it does not run at size {point.size} (if the model has none, say so with torch._check)"
    times = {i: t.of(what) if isinstance(t, Failure) else t for i, t in times.items()}
    run = runners.only(i for i, time in times.items() if isinstance(time, Timing))
    return Findings(times, compare(tuning, run) if run else {})


def _failure_of_op(tuning: Tuning, point: SizePoint) -> Failure | None:
    """Of the op itself among its neighbours, called eagerly, if it fails at a size."""
    if tuning.ranks:
        return Failure("nobody runs there, and the ranks do not call the op itself")
    site = tuning.site
    calls = [call_of_candidate(FALLBACK, call) for call in site.calls]

    def call() -> None:
        site.run(inputs_at(tuning, point), *calls)
        synchronize(tuning.device)

    try:
        call_candidate(call)
    except Exception as e:
        return failure_of(e).of("the op itself does not run there")
    return None


def _on_all_ranks(tuning: Tuning, runners: Runners) -> Runners:
    """The runners that every rank has; none if a rank has none."""
    if tuning.ranks is None:
        return runners
    common = common_to_all_ranks(runners, tuning.ranks)
    for index in runners if common else ():
        if index not in common:
            tuning.standing.reject(index, LEFT_OUT_ELSEWHERE)
    return runners.only(common)


def _times(tuning: Tuning, runners: Runners) -> Times:
    cudagraphs = tuning.registration.options.benchmark_with_cudagraphs
    waits_for_host = not (cudagraphs or config.triton.cudagraphs)
    calling_python = [
        i for i in runners if waits_for_host and tuning.standing.traced[i].calls_python
    ]
    if tuning.ranks:
        return time_in_step(
            runners, tuning.device, tuning.ranks, calling_python, runners.restore
        )
    return time_candidates(
        runners,
        tuning.device,
        cudagraphs,
        calling_python,
        runners.restore,
    )
