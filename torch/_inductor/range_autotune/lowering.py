"""One call of an autotuned op, from its arguments to IR nodes."""

from __future__ import annotations

import dataclasses
import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import preserve_rng_state
from torch.utils import _pytree as pytree

import torch

from .. import config, ir
from ..codegen.subgraph import (
    generate_module,
    inline_subgraph_to_ir_nodes,
    SubgraphModule,
)
from ..virtualized import V
from .call_site import CallSite, NotTunable
from .candidates import (
    CandidateError,
    FALLBACK_INDEX,
    one_line,
    Outputs,
    Rejection,
    trace_candidate,
    trace_fallback,
    TracedCandidate,
)
from .collectives import (
    can_measure,
    common_to_all_ranks,
    has_collective,
    time_in_step,
)
from .dispatch import emit_dispatch, emit_winner
from .inputs import (
    hint_point,
    is_about_index_width,
    make_inputs,
    may_hold,
    point_for_size,
    size_bounds,
    SizePoint,
)
from .measure import (
    ChoiceRules,
    choose_winners,
    Failure,
    RangeTimes,
    time_candidates,
    Times,
)
from .numerics import find_mismatch
from .ranges import ANY_SIZE, DimRange, fill_gaps, representative_sizes, Segment
from .registration import Contest, make_contest, Registration
from .report import log_header, log_winners, warn_left_out
from .timing_cache import candidate_text, lookup, place_text, store


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import sympy

log = logging.getLogger("torch._inductor.kernel.custom_op")


@dataclasses.dataclass(frozen=True)
class Round:
    """
    A range that can occur at this call site, and who competes in it.

    Args:
        sizes: the range as it was registered.
        possible: those of its sizes that can occur.
    """

    sizes: DimRange
    possible: DimRange
    candidates: tuple[int, ...]


@dataclasses.dataclass
class Tuning:
    """
    One call site on its way to a winner table.

    Args:
        size: the dispatch dimension, symbolic; None where none is dispatched on.
        bounds: the values that ``size`` can have.
        traced: the candidates still in, by index.
        collective: whether ranks have to measure in step.
        modules: what they are measured by, once ``compiled``.
        rejected: who is out by now, and why.
        texts: of candidates, for the timing cache; None for those that it cannot know.
    """

    registration: Registration
    contest: Contest
    site: CallSite
    outputs: Outputs
    size: sympy.Expr | None
    bounds: DimRange
    rounds: tuple[Round, ...]
    traced: dict[int, TracedCandidate]
    collective: bool = False
    modules: dict[int, SubgraphModule] = dataclasses.field(default_factory=dict)
    compiled: bool = False
    rejected: dict[int, str] = dataclasses.field(default_factory=dict)
    texts: dict[int, str | None] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The registration's, for logs."""
        return self.registration.name

    def reject(self, index: int, reason: str, where: str = "") -> None:
        """
        Takes a candidate out of all ranges and says so once.

        The op itself is no longer measured, but stays the last resort.
        """
        self.modules.pop(index, None)
        self.rejected[index] = reason
        if index == FALLBACK_INDEX:
            candidate = self.traced[index].candidate
        elif index in self.traced:
            candidate = self.traced.pop(index).candidate
        else:
            return
        warn_left_out(self.registration, Rejection(candidate, reason), where)


def lower_call(
    registration: Registration, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """
    Tunes and lowers one call of a registered op.

    Args:
        args, kwargs: what a lowering is called with.

    Returns:
        IR nodes nested as the op's outputs are; None to lower the call as if the op were
        not registered.

    Raises:
        ValueError: if the registration does not fit the call: a dimension that the
            tensor lacks, a bad config from a generator.
    """
    try:
        site = CallSite.from_call(registration.op, args, kwargs)
        return _tune(registration, site)
    except (NotTunable, CandidateError) as e:
        log.info("%s is not tuned here: %s", registration.name, one_line(e))
        return None


def _tune(registration: Registration, site: CallSite) -> Any:
    tuning = prepare(registration, site)
    if not tuning.traced:
        return None
    results = emit(tuning, decide(tuning))
    return pytree.tree_unflatten(results, tuning.outputs.spec)


def lower_region(
    registration: Registration,
    body: torch.fx.GraphModule,
    call: torch.fx.Node,
    inputs: Sequence[Any],
) -> list[Any]:
    """
    Tunes and lowers one call of a registered op together with its neighbours.

    Args:
        body: the region's graph.
        call: the op's node in it.
        inputs: what a lowering is called with, one for each placeholder.

    Returns:
        IR nodes, one for each output of the region.
    """
    result = None
    V.active_user_lowering_ops.add(registration.op)
    try:
        site = CallSite.from_region(body.graph, call, inputs)
        result = _tune(registration, site)
    except (NotTunable, CandidateError) as e:
        log.info("%s is not tuned here: %s", registration.name, one_line(e))
    finally:
        V.active_user_lowering_ops.discard(registration.op)
    if result is not None:
        return result
    return inline_subgraph_to_ir_nodes(body, list(inputs), registration.name)


def prepare(registration: Registration, site: CallSite) -> Tuning:
    """Finds out who competes where, and traces each candidate once."""
    contest = registration.contest or _generated_contest(registration, site)
    table = contest.table
    size = None if table is None else site.size_of(table.dim)
    if config.fx_wrapper and size is not None and size.free_symbols:
        raise NotTunable("the FX wrapper has no dispatch by a size")
    bounds = ANY_SIZE if size is None else size_bounds(size)
    rounds = _possible_rounds(contest, bounds)
    competing = sorted({i for r in rounds for i in r.candidates})
    fallback, outputs = trace_fallback(site)
    tuning = Tuning(
        registration, contest, site, outputs, size, bounds, rounds, traced={}
    )
    for index in competing:
        result = trace_candidate(contest.candidates[index], site, outputs)
        if isinstance(result, Rejection):
            warn_left_out(registration, result)
        else:
            tuning.traced[index] = result
    if tuning.traced:
        tuning.traced[FALLBACK_INDEX] = fallback
    return tuning


def _possible_rounds(contest: Contest, bounds: DimRange) -> tuple[Round, ...]:
    """The table's rows, cut down to the sizes that can occur."""
    if contest.table is None:
        return (Round(ANY_SIZE, ANY_SIZE, tuple(range(len(contest.candidates)))),)
    rounds = []
    for row in contest.table.rows:
        possible = row.sizes.intersect(bounds)
        if possible is not None:
            rounds.append(Round(row.sizes, possible, row.candidates))
    return tuple(rounds)


def _generated_contest(registration: Registration, site: CallSite) -> Contest:
    generate = registration.config_generator
    assert generate is not None
    with V.fake_mode:
        fakes = site.fake_arguments()
        tensors = {n: v for n, v in fakes.items() if isinstance(v, torch.Tensor)}
        configs = generate(tensors)
    if not isinstance(configs, (list, tuple)):
        raise TypeError(
            f"config_generator of {registration.op} must return a list or tuple of "
            f"CustomOpConfig, got {type(configs)}"
        )
    if not configs:
        raise NotTunable("config_generator returned no config")
    return make_contest(registration.op, configs, registration.split)


def decide(tuning: Tuning) -> tuple[Segment[int], ...]:
    """Measures and chooses: the winner table, over all sizes that can occur."""
    log_header(tuning)
    tuning.collective = has_collective(t.graph for t in tuning.traced.values())
    if tuning.collective and not can_measure():
        log.warning(
            "%s: its candidates contain collectives, and there is no process group to "
            "measure them with: the op itself runs",
            tuning.name,
        )
        return (Segment(tuning.bounds, FALLBACK_INDEX),)
    # Compiled code is run below autograd, whose Python kernels for custom ops and
    # collectives cost time and hold the interpreter's lock.
    with preserve_rng_state(), torch.no_grad(), torch._C._AutoDispatchBelowAutograd():
        measured = [_measure_round(tuning, r) for r in tuning.rounds]
    measured = [_without_rejected(tuning, row) for row in measured]
    rules = _choice_rules(tuning)
    winners = choose_winners(measured, rules)
    log_winners(tuning, measured, winners)
    return _over_possible_sizes(winners, tuning.bounds)


def _without_rejected(tuning: Tuning, row: RangeTimes) -> RangeTimes:
    """What failed in one range must win in none."""
    at = {
        size: {index: time for index, time in times.items() if index in tuning.traced}
        for size, times in row.at.items()
    }
    return RangeTimes(row.sizes, at)


def _over_possible_sizes(
    winners: Sequence[Segment[int]], bounds: DimRange
) -> tuple[Segment[int], ...]:
    """Winners for the sizes that can occur; the op itself for those without a range."""
    possible = [
        Segment(sizes, segment.winner)
        for segment in winners
        if (sizes := segment.sizes.intersect(bounds))
    ]
    return fill_gaps(possible, bounds, FALLBACK_INDEX)


def _choice_rules(tuning: Tuning) -> ChoiceRules:
    return ChoiceRules(
        fallback=FALLBACK_INDEX,
        min_speedup=tuning.registration.options.min_speedup_threshold,
        force=config.test_configs.force_custom_op_decomposition,
        merge=not config.test_configs.force_no_impl_grouping,
    )


def compile_candidates(tuning: Tuning) -> None:
    """
    Compiles each candidate once, whatever the number of its ranges.

    While one is generated here, those before it are compiled in other threads.
    """
    threads = max(config.compile_threads or 1, 1)
    with ThreadPoolExecutor(threads, "custom_op_precompile") as pool:
        loads = {}
        for index, traced in list(tuning.traced.items()):
            if index == FALLBACK_INDEX and not _fallback_runs(tuning):
                continue
            module = _generate(tuning, index, traced)
            if module is not None:
                tuning.modules[index] = module
                loads[index] = pool.submit(module.load)
    for index, load in loads.items():
        if error := load.exception():
            tuning.reject(index, f"it does not compile: {one_line(error)}")


def _generate(
    tuning: Tuning, index: int, traced: TracedCandidate
) -> SubgraphModule | None:
    """The candidate's module; None if it is out."""
    try:
        module = generate_module(
            traced.graph,
            tuning.site.fake_inputs(),
            tuning.site.symbols(),
            f"{tuning.name}_{traced.name}",
            traced.candidate.config_patches,
        )
    except Exception as e:
        tuning.reject(index, f"it does not compile: {one_line(e)}")
        return None
    guards = [c for c in module.conditions if not is_about_index_width(c)]
    if guards and index != FALLBACK_INDEX:
        tuning.reject(index, f"its code guards on a size: {guards[0]}")
        return None
    return module


def _fallback_competes(tuning: Tuning) -> bool:
    return (
        tuning.registration.options.include_fallback
        or config.test_configs.force_custom_op_decomposition is False
    )


def _fallback_runs(tuning: Tuning) -> bool:
    checks = tuning.registration.options.numerics_check != "off"
    return checks or _fallback_competes(tuning)


def _check_numerics(
    tuning: Tuning, runners: dict[int, Callable[[], Any]], point: SizePoint
) -> None:
    """Compares with the op itself; takes those that differ out, if asked to."""
    check = tuning.registration.options.numerics_check
    if check == "off" or FALLBACK_INDEX not in runners:
        return
    expected = runners[FALLBACK_INDEX]()
    for index in [index for index in runners if index != FALLBACK_INDEX]:
        try:
            mismatch = find_mismatch(runners[index](), expected)
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


def _measure_round(tuning: Tuning, competing: Round) -> RangeTimes:
    """Times a range's candidates; those that fail are out of all ranges to come."""
    at: dict[int | None, Times] = {}
    for point in _points(tuning, competing.possible):
        times = _known_times(tuning, competing, point)
        if times is None:
            continue
        at[point.size] = times
        for index, result in times.items():
            if isinstance(result, Failure) and index not in tuning.rejected:
                tuning.reject(index, result.reason, str(competing.sizes))
    return RangeTimes(competing.sizes, at)


def _known_times(tuning: Tuning, competing: Round, point: SizePoint) -> Times | None:
    """The times at a size, from an earlier process or measured now."""
    place, texts = _cache_entry(tuning, competing, point)
    if place is not None and (cached := lookup(place, texts)) is not None:
        return cached
    times = _measure_point(tuning, competing, point)
    if place is not None and times is not None:
        out = {index: Failure(reason) for index, reason in tuning.rejected.items()}
        store(place, texts, {**out, **times})
    return times


def _cache_entry(
    tuning: Tuning, competing: Round, point: SizePoint
) -> tuple[str | None, dict[int, str]]:
    """The timing cache's names for a place and those who compete there."""
    options = tuning.registration.options
    if tuning.collective or options.numerics_check != "off":
        return None, {}
    texts: dict[int, str] = {}
    for index in (*competing.candidates, FALLBACK_INDEX):
        if index not in tuning.traced or index in tuning.rejected:
            continue
        if index == FALLBACK_INDEX and not _fallback_competes(tuning):
            continue
        if index not in tuning.texts:
            tuning.texts[index] = candidate_text(tuning.traced[index])
        text = tuning.texts[index]
        if text is None:
            return None, {}
        texts[index] = text
    return place_text(tuning.site, options, point.values), texts


def _measure_point(tuning: Tuning, competing: Round, point: SizePoint) -> Times | None:
    """None where nothing can be measured."""
    if not tuning.compiled:
        compile_candidates(tuning)
        tuning.compiled = True
    runners = _runners(tuning, competing, point)
    if tuning.collective:
        runners = {i: runners[i] for i in common_to_all_ranks(runners)}
    if not runners:
        return None
    _check_numerics(tuning, runners, point)
    if not _fallback_competes(tuning):
        runners.pop(FALLBACK_INDEX, None)
    return {
        index: dataclasses.replace(result, reason=f"it does not run: {result.reason}")
        if isinstance(result, Failure)
        else result
        for index, result in _times(tuning, runners).items()
    }


def _times(tuning: Tuning, runners: Mapping[int, Callable[[], Any]]) -> Times:
    device = tuning.outputs.tensors[0].device
    if tuning.collective:
        return time_in_step(runners, device)
    return time_candidates(
        runners,
        device,
        tuning.registration.options.benchmark_with_cudagraphs,
        [index for index in runners if tuning.traced[index].calls_python],
    )


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


def _runners(
    tuning: Tuning, competing: Round, point: SizePoint
) -> dict[int, Callable[[], Any]]:
    """One call of each candidate at a size, none if it needs more memory than there is."""
    for module in tuning.modules.values():
        if not all(may_hold(c, point.values) for c in module.conditions):
            log.info("%s: size %s is too large to measure", tuning.name, point.size)
            return {}
    try:
        inputs = make_inputs(
            tuning.site, point, tuning.registration.options.input_gen_fns
        )
    except (MemoryError, torch.OutOfMemoryError) as e:
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
        if index in tuning.traced
        and (index in competing.candidates or index == FALLBACK_INDEX)
    }


def emit(tuning: Tuning, winners: Sequence[Segment[int]]) -> list[ir.TensorBox]:
    """Lowers the winner, or the dispatch among several."""
    table = [Segment(s.sizes, tuning.traced[s.winner]) for s in winners]
    if len(table) == 1:
        return emit_winner(table[0].winner, tuning.site, tuning.outputs)
    assert tuning.size is not None and tuning.contest.table is not None
    dim = tuning.contest.table.dim
    log.info("Generating torch.cond dispatch for %s with %d ranges", dim, len(table))
    results = emit_dispatch(table, tuning.size, tuning.site, tuning.outputs)
    log.info(
        "Successfully generated torch.cond dispatch tree with %d conditional branches",
        len(table) - 1,
    )
    return results
