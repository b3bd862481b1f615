"""Candidates compiled to be measured: generated here, loaded in other threads."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import threading
from concurrent.futures import as_completed, BrokenExecutor, Future
from concurrent.futures import wait as wait_for
from itertools import chain
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from ..candidate_indices import FALLBACK_INDEX, FOR_OTHER_SIZES, kind_of_variant
from ..candidates.candidate_graphs import trace_candidate, trace_fallback
from ..candidates.lone_sites import without_neighbours
from ..candidates.traced_candidates import TracedCandidate
from ..candidates.tracing import cuts_at_guards, take_apart_at
from ..compiled_graph import has_autotuned_op, mark_candidate
from ..errors import one_line
from ..kernel_configs.kernel_config_names import content_name
from ..limits import call_within
from ..settings import time_limit_s
from ..sizes.guards import is_about_index_width
from ..sizes.known_sizes import knowing
from ..sizes.size_hints import without_hints
from ..times import Failure, failure_of
from .cpp_units import compile_together, CppKernel, is_full, kernels_of
from .limited_executor import fulfil, LimitedExecutor
from .subgraph_module import generate_module, SubgraphModule
from .threads import autotune_threads, is_compiled_by_workers, loads_in_any_thread


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import sympy

    from ..call_site import CallSite
    from ..registration import Candidate
    from ..sizes.known_sizes import KnownSize
    from ..standing import Standing
    from ..tuning import Tuning

    Start = Callable[[Callable[[], Any]], Future[Any]]

log = logging.getLogger("torch._inductor.kernel.custom_op")

_LOADING = "loading its code"
_SAME_CODE = Failure("its code is that for other sizes")
# For a thread that starts compilers. Its few milliseconds of Python took 0.15 s in turns
# with this one's, 5 ms at a time.
_HANDOVER_S = 0.05


def kernel_suffix(source: str) -> str | None:
    """
    What tells a kernel from others of its kind, in place of a running number.

    With one name a kernel is compiled once, for a candidate's benchmark and where that
    candidate wins. Called by Triton's code generation.

    Args:
        source: the kernel's, its name left open.

    Returns:
        None for kernels of graphs without an autotuned op.
    """
    return content_name(source) if has_autotuned_op() else None


def submit(tuning: Tuning) -> None:
    """
    Generates each candidate once, whatever the number of its ranges, and starts its load.

    While one is generated here, those before it are compiled in other threads: the largest
    first, so that little is left to wait for behind the last. Those whose code guards on a
    size are generated for parts of their ranges, see ``cuts_at_guards``, or suspended.
    """
    standing, guards_alone = tuning.standing, _guards_alone(tuning)

    def generated() -> Iterator[tuple[int, SubgraphModule]]:
        waiting = _largest_first(tuning)
        for index in waiting:  # grows
            if index not in standing.traced:
                continue
            try:
                module = _generate(standing.traced[index], tuning.site, tuning.name)
            except Exception as e:
                _take_out(standing, index, e)
                continue
            guards = _guards_in(module) if index != FALLBACK_INDEX else []
            alone = bool(guards) and guards_alone(standing.traced[index])
            cuts = cuts_at_guards(tuning, index, guards) if alone else ()
            if cuts:
                waiting += take_apart_at(tuning, index, cuts)
            elif guards:
                standing.suspend(index, _failure_by(guards), alone)
            elif _has_code_of_another_form(standing, index, module):
                standing.reject(index, _SAME_CODE)
            else:
                yield index, module

    _start_loads(tuning, generated())


def _guards_alone(tuning: Tuning) -> Callable[[TracedCandidate], bool]:
    """
    Tells whether a candidate's code guards without its neighbours, too. Where it is they who
    do, they had better stay outside.
    """
    site = tuning.site
    found: dict[Any, bool] = {}  # of an implementation at a call, which are in several

    def guards_at(number: int, part: Candidate, known: KnownSize | None) -> bool:
        key = number, id(part), known
        if key not in found:
            found[key] = _guards_at(site.calls[number], part, known, tuning.name)
        return found[key]

    def guards(traced: TracedCandidate) -> bool:
        parts = traced.candidate.parts or (traced.candidate,)
        return site.body is None or any(
            part.impl is not None and guards_at(number, part, traced.known)
            for number, part in enumerate(parts)
        )

    return guards


def _guards_at(
    call: CallSite, candidate: Candidate, known: KnownSize | None, name: str
) -> bool:
    """Whether a candidate's code guards at one of a region's calls, if it stood alone."""
    try:
        site = without_neighbours(call)
        _, outputs = trace_fallback(site)
        alone = trace_candidate(candidate, site, outputs, known)
        return isinstance(alone, TracedCandidate) and bool(
            _guards_in(_generate(alone, site, name))
        )
    except Exception as e:
        log.debug("%s: %s alone: %s", name, candidate.name, one_line(e))
        return False


def _has_code_of_another_form(
    standing: Standing, index: int, module: SubgraphModule
) -> bool:
    """
    Whether a form for some sizes came out as the candidate that it varies, or as the form
    for others. Those are generated before it.
    """
    if kind_of_variant(index) not in FOR_OTHER_SIZES:
        return False
    varied = standing.variants[index]
    others = (
        other
        for i, other in standing.modules.items()
        if varied in (i, standing.variants.get(i))
    )
    code = without_hints(module.source)
    return any(without_hints(other.source) == code for other in others)


def submit_guarded(tuning: Tuning) -> None:
    """
    The same for those that were suspended, without the guards that Inductor can do without.

    Their code may be slower for it. What guards on a size all the same is generated for parts
    of its ranges, see ``cuts_at_guards``, or is out.
    """
    standing = tuning.standing

    def generated() -> Iterator[tuple[int, SubgraphModule]]:
        left = standing.readmit()
        for index in left:  # grows
            if index not in standing.traced:
                continue
            traced, failure = standing.traced[index], standing.guarded.get(index)
            is_part = failure is None
            try:
                module = _generate(
                    traced, tuning.site, tuning.name, optional_guards=is_part
                )
            except Exception as e:
                standing.reject(index, failure or _failure_to_compile(e))
                continue
            guards = _guards_in(module)
            cuts = cuts_at_guards(tuning, index, guards)
            if guards and not cuts:
                standing.reject(index, _failure_by(guards))
                continue
            if cuts:
                left += take_apart_at(tuning, index, cuts)
            standing.guarded.pop(index, None)
            if _has_code_of_another_form(standing, index, module):
                standing.reject(index, _SAME_CODE)
            elif not guards:
                yield index, module

    _start_loads(tuning, generated())


def _start_loads(
    tuning: Tuning, generated: Iterable[tuple[int, SubgraphModule]]
) -> None:
    """
    Starts to load modules, each as soon as it is there.

    C++ kernels are compiled several at a time. What compile workers have anyway is loaded
    at the end: it would take turns with this thread for nothing.
    """
    start = _starter()
    unit: dict[int, list[CppKernel]] = {}
    by_workers: list[int] = []
    standing = tuning.standing
    for index, module in generated:
        standing.modules[index] = module
        if not loads_in_any_thread(module.source):
            tuning.loads[index] = _called_here(module.load)
        elif kernels := kernels_of(module):
            unit[index] = kernels
        elif is_compiled_by_workers(module.source):
            by_workers.append(index)
        else:
            tuning.loads[index] = start(module.load)
        if is_full(chain.from_iterable(unit.values())):
            _load_unit(tuning, unit, start)
            unit = {}
    _load_unit(tuning, unit, start)
    modules = standing.modules
    tuning.loads.update({i: start(modules[i].load) for i in by_workers})
    standing.modules = {i: modules[i] for i in standing.traced if i in modules}


def _largest_first(tuning: Tuning) -> list[int]:
    """Indices of the candidates that are measured, the largest graphs first."""
    traced = tuning.standing.traced
    indices = [i for i in traced if i != FALLBACK_INDEX or _fallback_runs(tuning)]
    return sorted(indices, key=lambda i: -len(traced[i].graph.graph.nodes))


def wait(
    tuning: Tuning, done: Callable[[str], None], loaded: Callable[[int], None]
) -> None:
    """
    Waits for the loads; those that failed are out.

    Args:
        done: told of each.
        loaded: given the index of each that is loaded, as soon as it is.
    """
    indices = {load: index for index, load in tuning.loads.items()}
    for load in as_completed(indices):
        done("compiled")
        if load.exception() is None:
            loaded(indices[load])
    for index, load in tuning.loads.items():
        if error := load.exception():
            tuning.standing.reject(index, _failure_to_compile(error))
    tuning.loads.clear()


def wait_for_quiet(tunings: Iterable[Tuning]) -> None:
    """Waits until no candidate of these is being loaded, whether that works or not."""
    wait_for([load for tuning in tunings for load in tuning.loads.values()])


def _starter() -> Start:
    """What runs calls, in other threads where there are any to use; for any thread."""
    limit_s, threads = time_limit_s(), autotune_threads()
    if threads == 1 and limit_s is None:
        return _called_here

    def start(call: Callable[[], Any]) -> Future[Any]:
        future = _executor(threads, limit_s).submit(call)
        if threads == 1:
            wait_for([future])
        return future

    return start


def _called_here(call: Callable[[], Any]) -> Future[Any]:
    """What a call came to; unlike ``fulfil``, lets an interrupt of this thread pass."""
    future: Future[Any] = Future()
    try:
        future.set_result(call_within(time_limit_s(), _LOADING, call))
    except Exception as e:
        future.set_exception(e)
    return future


def _load_unit(
    tuning: Tuning, unit: Mapping[int, Sequence[CppKernel]], start: Start
) -> None:
    """
    Compiles C++ kernels together, then loads their modules.

    Args:
        unit: the kernels of each candidate.
    """
    modules = tuning.standing.modules
    kernels = [(modules[index], k) for index in unit for k in unit[index]]
    if len(kernels) < 2:
        tuning.loads.update({i: start(modules[i].load) for i in unit})
        return
    begun = threading.Event()
    compiled = start(functools.partial(compile_together, kernels, begun.set))
    compiled.add_done_callback(lambda _: begun.set())
    begun.wait(_HANDOVER_S)
    for index in unit:
        load = functools.partial(start, modules[index].load)
        tuning.loads[index] = _started_after(compiled, load)


def _started_after(first: Future[Any], start: Callable[[], Future[Any]]) -> Future[Any]:
    """What a call comes to that starts when another one is over, whatever came of that."""
    result: Future[Any] = Future()

    def go_on(_: Future[Any]) -> None:
        try:
            started = start()
        except Exception as e:  # there may be no thread to be had
            result.set_exception(e)
        else:
            started.add_done_callback(lambda second: fulfil(result, second.result))

    first.add_done_callback(go_on)
    return result


@functools.cache
def _executor(threads: int, limit_s: float | None) -> LimitedExecutor:
    return LimitedExecutor(threads, _LOADING, limit_s)


if hasattr(os, "register_at_fork"):  # not on Windows
    # A forked process has none of its threads.
    os.register_at_fork(after_in_child=_executor.cache_clear)


def _generate(
    traced: TracedCandidate, site: CallSite, name: str, **options: bool
) -> SubgraphModule:
    """
    The candidate's module; raises what generating it raises.

    Args:
        name: of what is tuned.
        options: of ``generate_module``.
    """
    mark_candidate(traced.lowered)
    with knowing(traced.known):
        return call_within(
            time_limit_s(),
            "generating its code",
            functools.partial(generate_module, **options),
            traced.lowered,
            site.fake_inputs(),
            site.symbols(),
            f"{name}_{traced.name}",
            traced.candidate.config_patches,
            traced.hints,
        )


def _take_out(standing: Standing, index: int, error: Exception) -> None:
    """Whose code is not generated; suspended if that is for a size that depends on data."""
    failure = _failure_to_compile(error)
    if index != FALLBACK_INDEX and _asks_for_data(error):
        standing.suspend(index, failure)
    else:
        standing.reject(index, failure)


def _failure_to_compile(error: BaseException) -> Failure:
    """May pass if it is the machine's: a full disk, a worker that was killed."""
    failure = failure_of(error).of("it does not compile")
    may_pass = failure.may_pass or isinstance(error, (OSError, BrokenExecutor))
    return dataclasses.replace(failure, may_pass=may_pass)


def _asks_for_data(error: BaseException | None) -> bool:
    """Whether an error is, or comes from, a guard on a size that depends on data."""
    if error is None or isinstance(error, GuardOnDataDependentSymNode):
        return error is not None
    return _asks_for_data(error.__cause__ or error.__context__)


def _guards_in(module: SubgraphModule) -> list[sympy.Basic]:
    return [c for c in module.conditions if not is_about_index_width(c)]


def _failure_by(guards: Sequence[sympy.Basic]) -> Failure:
    return Failure(f"its code guards on a size: {guards[0]}")


def _fallback_runs(tuning: Tuning) -> bool:
    checks = tuning.registration.options.numerics_check != "off"
    return checks or tuning.fallback_competes
