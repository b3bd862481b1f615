"""What a call site begins with: who competes in which range, each traced."""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

import torch

from ... import config
from ...virtualized import V
from ..candidate_indices import FALLBACK_INDEX
from ..errors import CandidateError, NotTunable, one_line
from ..graphs.collectives import can_measure, has_collective, ranks_of
from ..graphs.graph_text import SymbolNames
from ..measuring.ranks import common_to_all_ranks, is_same_on_all_ranks, topology
from ..ranges import ANY_SIZE, DimRange, fill_gaps, merge_neighbours, Segment
from ..registering.contests import make_contest
from ..registering.parsing import naming
from ..report import log_equal_sizes
from ..sizes.equal_sizes import implies
from ..sizes.size_conditions import size_bounds
from ..standing import ContestedRange, LEFT_OUT_ELSEWHERE, Standing
from ..tuning import Otherwise, Tuning
from ..winners import Winner
from .candidate_graphs import at_site, trace_fallback
from .equal_sites import at_equal_sizes
from .traced_candidates import NAMESPACES_OF_TORCH
from .tracing import add_plain_lowering, add_variants, trace_candidates


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import sympy

    from ..call_site import CallSite
    from ..registration import Contest, Registration
    from ..sizes.equal_sizes import EqualSizes
    from .traced_candidates import TracedCandidate
    from .tracing import NeedsEqualSizes

log = logging.getLogger("torch._inductor.kernel.custom_op")

# So many tests one behind the other find out in a call which sizes are equal.
_MOST_TESTS = 3


@dataclasses.dataclass(frozen=True)
class _Case:
    """
    Calls in which sizes are equal.

    Args:
        equal: these.
        tuning: what there is to decide.
    """

    equal: EqualSizes
    tuning: Tuning


def prepare(registration: Registration, site: CallSite) -> Tuning:
    """
    Finds out who competes where, and traces each candidate once.

    Sizes that a candidate needs to be equal are taken for it; where they are not, those
    compete that do not need them to be.

    Raises:
        ValueError: if the registration does not fit the call: a dimension that the
            tensor lacks, a bad config from a generator.
        NotTunable, CandidateError: if the call is to be lowered as if not registered.
    """
    cases = _cases(registration, site)
    if len(cases) == 1:
        tuning = cases[0].tuning
        if not (_times_may_decide() or tuning.standing.traced):
            tuning.standing.tell()
            raise NotTunable("no implementation is for all ranges, and no times decide")
        return tuning
    tuned = [case for case in cases if case.tuning.standing.has_implementation]
    others_compete = bool(tuned) and not tuned[-1].equal
    tuning = tuned.pop().tuning if others_compete else _op_alone(registration, site)
    for case in reversed(tuned):
        # Who needs equal sizes has them; who is out anyway is so in all, and told of once.
        tuning.standing.untold = []
        case.tuning.otherwise = Otherwise(case.equal, tuning)
        tuning = case.tuning
        log_equal_sizes(registration.name, case.equal, site, others_compete)
    return tuning


def _cases(
    registration: Registration,
    site: CallSite,
    equal: EqualSizes = (),
    unequal: tuple[EqualSizes, ...] = (),
    unhelped: frozenset[int] | None = frozenset(),
) -> list[_Case]:
    """
    What there is to decide, in the order in which it is tested which case a call is.

    Args:
        site: the call site, with sizes equal.
        equal: these.
        unequal: sizes of which not all are equal.
        unhelped: indices of candidates that do not work with equal sizes either; None to
            leave out all that need some.
    """

    def may_help(index: int, needed: EqualSizes) -> bool:
        if unhelped is None or index in unhelped:
            return False
        return not any(implies((*equal, *needed), sizes) for sizes in unequal)

    tuning = _competing(registration, site, may_help)
    if isinstance(tuning, Tuning):
        return [_Case(equal, tuning)]
    index, both = tuning.index, (*equal, *tuning.equal)
    try:
        _check_can_dispatch()
        there = at_equal_sizes(site, tuning.equal)
        cases = _cases(registration, there, both, unequal, unhelped)
    except (NotTunable, CandidateError) as e:
        log.debug("%s: not for equal sizes: %s", registration.name, one_line(e))
        cases = []
    if not any(_is_traced(index, case.tuning) for case in cases):
        unhelped = (unhelped or frozenset()) | {index}
        return _cases(registration, site, equal, unequal, unhelped)
    is_last = len(equal) + len(unequal) >= _MOST_TESTS
    if is_last and equal:  # calls with fewer equal sizes are another case
        return cases
    rest = (*unequal, both), None if is_last else unhelped
    try:
        return cases + _cases(registration, site, equal, *rest)
    except (NotTunable, CandidateError) as e:
        log.debug("%s: not where sizes differ: %s", registration.name, one_line(e))
        return cases


def _is_traced(index: int, tuning: Tuning) -> bool:
    """Whether a candidate is, at any sizes."""
    candidate = tuning.standing.candidates[index]
    return any(t.candidate is candidate for t in tuning.standing.traced.values())


def _op_alone(registration: Registration, site: CallSite) -> Tuning:
    """A decided case: the op itself runs."""
    fallback, outputs = trace_fallback(site)
    traced = {FALLBACK_INDEX: fallback}
    standing = Standing(registration, site, (), (), traced)
    winners = (Segment(ANY_SIZE, Winner(FALLBACK_INDEX)),)
    return Tuning(outputs, None, None, ANY_SIZE, standing, winners=winners)


def _competing(
    registration: Registration,
    site: CallSite,
    may_help: Callable[[int, EqualSizes], bool],
) -> Tuning | NeedsEqualSizes:
    """
    Who competes where; or a candidate that needs sizes to be equal, if that may help it.

    Raises:
        ValueError, NotTunable, CandidateError: see ``prepare``.
    """
    if not _times_may_decide() and registration.options.include_fallback:
        raise NotTunable("Inductor is to be deterministic, so that no times decide")
    contest = registration.contest or _generated_contest(registration, site)
    table = contest.table
    size = None if table is None else site.size_of(table.dim)
    if size is not None and size.free_symbols:
        _check_can_dispatch()
    bounds = ANY_SIZE if size is None else size_bounds(size)
    ranges = _possible_ranges(contest, bounds)
    fallback, outputs = trace_fallback(site)
    standing = Standing(registration, site, ranges, contest.candidates)
    can_call_op = all(_can_be_called(call.op) for call in site.calls)
    tuning = Tuning(outputs, table, size, bounds, standing, can_call_op=can_call_op)
    concerns_ranks = _concerns_ranks(registration, [fallback])
    needing = trace_candidates(tuning, None if concerns_ranks else may_help)
    if needing:
        return needing
    _agree_with_ranks(tuning, fallback)
    if not _times_may_decide():
        _decide_without_times(tuning)
    elif tuning.standing.traced:
        if registration.options.include_fallback:
            add_plain_lowering(tuning)
        add_variants(tuning)
    if tuning.standing.traced:
        tuning.standing.traced[FALLBACK_INDEX] = fallback
    return tuning


def _can_be_called(op: torch._ops.OpOverload) -> bool:
    """
    Whether generated code can call an op: C++ does not know integers that an op returns that is
    not torch's own, nor, unless ahead of time, tensors that may be None or a list beside others.
    """
    if not V.graph.cpp_wrapper or op.namespace in NAMESPACES_OF_TORCH:
        return True
    kinds = [result.type.kind() for result in op._schema.returns]
    unknown = {"IntType", "SymIntType"}
    if not V.graph.aot_mode:
        unknown |= {"OptionalType", "ListType"} if len(kinds) > 1 else {"OptionalType"}
    return unknown.isdisjoint(kinds)


def _times_may_decide() -> bool:
    """Not where every run is to compute the same; torch's own setting implies Inductor's."""
    return not (config.deterministic or config.batch_invariant)


def _decide_without_times(tuning: Tuning) -> None:
    """
    Chooses the first candidate that competes in all ranges, where no times may decide and
    the op itself does not compete. If there is none, nobody is left.
    """
    for index, traced in tuning.standing.traced.items():
        if tuning.standing.enters_all_ranges(index):
            tuning.standing.traced = {index: traced}
            ranges = [
                Segment(r.possible, Winner(index)) for r in tuning.standing.ranges
            ]
            tuning.winners = merge_neighbours(
                fill_gaps(ranges, tuning.bounds, Winner(FALLBACK_INDEX))
            )
            return
    tuning.standing.traced = {}


def _check_can_dispatch() -> None:
    """Raises NotTunable where the wrapper cannot be given branches."""
    if config.fx_wrapper:
        raise NotTunable("the FX wrapper has no dispatch by a size")
    if config.memory_planning and V.graph.cpp_wrapper:
        # Pools that it declares in one branch are used behind it.
        raise NotTunable("memory_planning knows no branches in C++")


def _agree_with_ranks(tuning: Tuning, fallback: TracedCandidate) -> None:
    """Finds the ranks to measure with; what one of them could not trace is out on all."""
    traced = (*tuning.standing.traced.values(), fallback)
    if not _concerns_ranks(tuning.registration, traced):
        return
    tuning.ranks = ranks_of([t.graph for t in traced])
    tuning.hosts = topology(tuning.ranks)
    ranges = [(str(r.possible), r.candidates) for r in tuning.standing.ranges]
    if not is_same_on_all_ranks(ranges, tuning.ranks):
        raise NotTunable("ranks see other ranges, or candidates for them")
    common = common_to_all_ranks(tuning.standing.traced, tuning.ranks)
    for index in tuning.standing.traced.keys() - common:
        tuning.standing.reject(index, LEFT_OUT_ELSEWHERE)


def _concerns_ranks(
    registration: Registration, traced: Sequence[TracedCandidate]
) -> bool:
    """Whether several ranks have to take one decision: there are collectives."""
    if not can_measure():
        return False
    return registration.mentions_collective or has_collective(t.graph for t in traced)


def as_for(first: Tuning, site: CallSite) -> Tuning | None:
    """
    What there is to decide at a call site that is equal up to the names of symbols.

    No implementation is called again. None where candidates rely on what is known of the
    first site's symbols only.
    """
    otherwise = first.otherwise
    is_same = site.exprs() == first.called.site.exprs()
    if otherwise and not is_same:
        return None
    if is_same or not first.standing.traced:
        if otherwise:
            tuning = as_for(otherwise.tuning, site)
            assert tuning is not None
            otherwise = dataclasses.replace(otherwise, tuning=tuning)
            site = at_equal_sizes(site, otherwise.equal)
        standing = dataclasses.replace(first.standing, site=site)
        return dataclasses.replace(
            first, standing=standing, otherwise=otherwise, first=first.source
        )
    try:
        fallback, outputs = trace_fallback(site)
        size = None if first.table is None else site.size_of(first.table.dim)
        symbols = {} if first.made_at is None else _symbols_at(first.site, site)
        traced = {
            index: at_site(t, site, size, symbols)
            for index, t in first.standing.traced.items()
        }
    except Exception as e:
        log.debug("%s: not as for an equal call: %s", first.name, one_line(e))
        return None
    traced[FALLBACK_INDEX] = fallback
    return dataclasses.replace(
        first,
        outputs=outputs,
        size=size,
        standing=dataclasses.replace(first.standing, site=site, traced=traced),
        first=first.source,
    )


def _symbols_at(first: CallSite, site: CallSite) -> dict[sympy.Symbol, sympy.Symbol]:
    """The symbols of a call site, by those of an equal one."""
    names = SymbolNames(), SymbolNames()
    first.layout_text(names[0])
    site.layout_text(names[1])
    return dict(zip(*(n.met for n in names), strict=True))


def _possible_ranges(contest: Contest, bounds: DimRange) -> tuple[ContestedRange, ...]:
    """The table's rows, cut down to the sizes that can occur."""
    if contest.table is None:
        return (
            ContestedRange(ANY_SIZE, ANY_SIZE, tuple(range(len(contest.candidates)))),
        )
    ranges = []
    for row in contest.table.rows:
        possible = row.sizes.intersect(bounds)
        if possible is not None:
            ranges.append(ContestedRange(row.sizes, possible, row.candidates))
    return tuple(ranges)


def _generated_contest(registration: Registration, site: CallSite) -> Contest:
    generate = registration.config_generator
    assert generate is not None
    with V.fake_mode:
        fakes = site.fake_arguments()
        tensors = {n: v for n, v in fakes.items() if isinstance(v, torch.Tensor)}
        try:
            configs = generate(tensors)
        except Exception as e:
            raise ValueError(
                f"config_generator of {registration.op} fails: {type(e).__name__}: {e}"
            ) from e
    if not isinstance(configs, (list, tuple)):
        raise TypeError(
            f"config_generator of {registration.op} must return a list or tuple of "
            f"CustomOpConfig, got {type(configs)}"
        )
    if not configs:
        raise NotTunable("config_generator returned no config")
    with naming(registration.op):
        return make_contest(registration.op, configs, registration.split)
