"""One call of an autotuned op, from its arguments to IR nodes."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any, TYPE_CHECKING

from torch._C import _AutoDispatchBelowAutograd, _DisablePythonDispatcher
from torch._dynamo.utils import preserve_rng_state

import torch

from .. import config, ir
from ..virtualized import V
from .caching.stale_code import note_lowered
from .call_site import CallSite, CONJUGATED
from .candidate_indices import FALLBACK_INDEX, kind_of_variant
from .candidates.preparing import as_for, prepare
from .compiled_graph import known_tunings
from .contents.content import Unhashable
from .deferred import defer, lowered_as_not_registered, lowered_as_registered
from .dispatch import emit_dispatch, emit_winner, with_strides_of
from .errors import CandidateError, NotTunable, one_line
from .graphs.collectives import has_collective
from .graphs.graph_text import SymbolNames
from .graphs.node_kinds import is_conjugated, is_on_user_stream, makes_sizes
from .graphs.symbolic_graphs import copied, inline_subgraph_to_ir_nodes
from .kernel_configs.kernel_config_ranges import with_configs
from .measure import as_current
from .measuring.measure_ranges import measure_ranges
from .measuring.recall import recall
from .modules import compiling
from .modules.inner_compilations import outside_of_compilation
from .neighbours.region_search import Reach
from .ops.functional_variants import variant_of
from .ranges import fill_gaps, merge_neighbours, Segment
from .regions import form_regions
from .report import log_header, log_winners
from .sizes.equal_sizes import text_of
from .sizes.guards import replaced
from .sizes.size_conditions import hint, size_bounds
from .sizes.size_points import hint_point
from .winners import choose_winners, Winner
from .writes.in_place import write_in_place
from .writes.repeated_writes import write_again
from .writes.writes_as_values import values_as_writes


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from .candidates.traced_candidates import TracedCandidate
    from .registration import Registration
    from .standing import ContestedRange, Standing
    from .tuning import Tuning

    Decided = tuple[Tuning, Sequence[Segment[Winner]]]

log = logging.getLogger("torch._inductor.kernel.custom_op")


class _FellApart(Exception):
    """A region is to be lowered in parts; what is left to be told of why is in its standing."""

    def __init__(self, standing: Standing) -> None:
        super().__init__()
        self.standing = standing


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
        if any(map(is_conjugated, V.graph.current_node.all_input_nodes)):
            raise NotTunable(CONJUGATED)
        if is_on_user_stream(V.graph.current_node):
            raise NotTunable("it runs on a stream of the user's")
        if makes_sizes(V.graph.current_node):
            raise NotTunable(
                "what it returns, or the size of that, depends on data, anew in each "
                "candidate"
            )
        op = variant_of(registration.op) or registration.op
        site = CallSite.from_call(op, args, kwargs)
        return _tune(registration, site)
    except (NotTunable, CandidateError) as e:
        log.info("%s is not tuned here: %s", registration.name, one_line(e))
        return None


def lower_region(
    registration: Registration,
    body: torch.fx.GraphModule,
    calls: Sequence[torch.fx.Node],
    inputs: Sequence[Any],
    reach: Reach,
) -> list[Any]:
    """
    Tunes and lowers calls of registered ops together with their neighbours.

    Where no implementation works with these, they are lowered with fewer or alone.

    Args:
        registration: of the op, or of several joined.
        body: the region's graph.
        calls: the ops' nodes in it, in order.
        inputs: what a lowering is called with, one for each placeholder.
        reach: of the region.

    Returns:
        IR nodes, one for each output of the region.
    """

    def lower_in_parts(
        given: Sequence[Any], fallen: Standing | None = None
    ) -> list[Any]:
        parts = copied(body)  # equal calls are still compared with the region as it is
        is_tuned = False
        if reach > Reach.ALONE:
            write_again(parts.graph)
            values_as_writes(parts.graph)
            is_tuned = form_regions(parts, Reach(reach - 1))
        if fallen and not is_tuned:  # nor is what writes in place tuned otherwise
            fallen.tell()
        write_in_place(parts)
        return inline_subgraph_to_ir_nodes(parts, list(given), registration.name)

    result = fallen = None
    for node in body.graph.nodes:
        note_lowered(node.target, node.meta.get("original_aten"))
    with lowered_as_not_registered(call.target for call in calls):
        try:
            site = CallSite.from_region(body.graph, calls, inputs)
            result = _tune(registration, site, lower_in_parts, reach)
        except _FellApart as e:
            fallen = e.standing
        except (NotTunable, CandidateError) as e:
            log.info("%s is not tuned here: %s", registration.name, one_line(e))
    return lower_in_parts(inputs, fallen) if result is None else result


def _tune(
    registration: Registration,
    site: CallSite,
    lower_in_parts: Callable[[Sequence[Any]], list[Any]] | None = None,
    reach: Reach = Reach.ALONE,
) -> Any:
    """
    Prepares, decides and emits one call site, which may be a region, see ``lower_call``.

    Args:
        lower_in_parts: lowers a region's inputs to its outputs by smaller regions.
        reach: of the region.

    Raises:
        _FellApart: if that is better.
    """
    tuning = _tuning_of(registration, site)
    uncut = [case.source.standing.ranges for case in tuning.cases]
    _recall_or_compile(tuning)
    # What is measured, here or by an earlier process, was so with these neighbours.
    to_measure = not tuning.source.measured
    if lower_in_parts and to_measure and _is_better_in_parts(tuning, reach):
        raise _FellApart(tuning.standing)
    # An equal call site, in front of this one, fell apart.
    is_second = tuning.first is not None and bool(tuning.source.standing.suspended)
    for other in tuning.cases[1:]:
        _recall_or_compile(other)
    _compile_guarded(tuning, uncut)
    if is_second:
        return _tune(registration, site, lower_in_parts, reach)
    if not tuning.standing.traced:
        tuning.standing.tell()
        return None

    def settle(realized: bool = False) -> list[ir.TensorBox]:
        winners = decide(tuning)
        joined = len(site.calls) > 1
        if lower_in_parts and joined and _is_better_in_parts(tuning.source):
            ops = (call.op for call in site.calls)
            with (
                lowered_as_registered(ops),
                config.patch(defer_custom_op_choices=False),
            ):
                parts = tuning.outputs.without_known(lower_in_parts(site.inputs))
            return with_strides_of(tuning.called.outputs, parts, realized, site)
        tuning.standing.tell()
        return emit([(tuning, winners), *decide_others(tuning)], realized)

    if config.defer_custom_op_choices:
        results = defer(tuning, functools.partial(settle, realized=True))
    else:
        results = settle()
    return tuning.called.outputs.nested(results)


def _recall_or_compile(tuning: Tuning) -> None:
    """Has candidates compiled, unless it is known, or will be, who wins."""
    undecided = tuning.first is None and tuning.winners is None
    if tuning.standing.traced and undecided and not recall(tuning):
        compiling.submit(tuning)


def _compile_guarded(tuning: Tuning, uncut: Sequence[Sequence[ContestedRange]]) -> None:
    """
    The same for those whose code guarded, in all cases of a call site.

    Args:
        uncut: the ranges of each case before guards cut any, as they may have in an earlier
            process.
    """
    for case, ranges in zip(tuning.cases, uncut):
        source = case.source
        if source.standing.suspended:
            compiling.submit_guarded(source)
        if source.standing.ranges != ranges and not source.measured:
            recall(source)


def _is_better_in_parts(tuning: Tuning, reach: Reach = Reach.ALONE) -> bool:
    """
    Whether a region has lost all of the ops' implementations, which may work alone, or reaches
    far and has lost some to guards. Never on several ranks, which would have to agree.
    """
    standing = tuning.standing
    if tuning.ranks:
        return False
    if standing.has_implementation and not (
        reach is Reach.WIDE and standing.lost_to_guards
    ):
        return False
    log.info("%s: implementations do not work with these neighbours", tuning.name)
    return True


def _tuning_of(registration: Registration, site: CallSite) -> Tuning:
    """
    What there is to decide at a call site.

    Of equal ones only the first is traced, compiled and measured.
    """
    key = _call_site_key(registration, site) or object()
    known = known_tunings()
    if key in known:
        same = as_for(known[key], site)
        if same is not None:
            return same
        key = object()
    tuning = known[key] = prepare(registration, site)
    known |= {object(): other for other in tuning.cases[1:]}
    return tuning


def _call_site_key(registration: Registration, site: CallSite) -> Any:
    """A key that call sites share if only names of symbols differ; None if it has none."""
    size = None if registration.dim is None else site.size_of(registration.dim)
    names = SymbolNames()
    try:
        text = site.layout_text(names)
    except Unhashable as e:
        log.debug("%s shares nothing with other calls: %s", registration.name, e)
        return None
    dispatched = frozenset() if size is None else size.free_symbols
    hints = [None if s in dispatched else hint(s) for s in names.met]
    on = None if size is None else names(size)
    return id(registration), config.get_hash(), text, on, tuple(hints)


def decide(tuning: Tuning) -> tuple[Segment[Winner], ...]:
    """Measures and chooses: the winner table, over all sizes that can occur."""
    source = tuning.source
    if source.winners is None:
        source.winners = _measure_and_choose(source)
    elif tuning.first:
        log.info("%s: the choice is that of an equal call before", tuning.name)
    return source.winners


def decide_others(tuning: Tuning) -> list[Decided]:
    """The same in the other cases, with fewer equal sizes, see ``Tuning.cases``."""
    return [(other, _decide_other(other)) for other in tuning.cases[1:]]


def _decide_other(tuning: Tuning) -> tuple[Segment[Winner], ...]:
    if len(tuning.standing.traced) > 1:
        equal = tuning.otherwise.equal if tuning.otherwise else ()
        where = f"only {text_of(equal)}" if equal else "that is not so"
        log.info("%s: where %s:", tuning.name, where)
    winners = decide(tuning)
    tuning.standing.tell()
    return winners


def _measure_and_choose(tuning: Tuning) -> tuple[Segment[Winner], ...]:
    log_header(tuning)
    graphs = (t.graph for t in tuning.standing.traced.values())
    if not tuning.ranks and has_collective(graphs):
        log.warning(
            "%s: its candidates contain collectives, and there is no process group to "
            "measure them with: the op itself runs",
            tuning.name,
        )
        return (Segment(tuning.bounds, Winner(FALLBACK_INDEX)),)
    if not tuning.measured:
        with as_current(tuning.device), preserve_rng_state(), _as_compiled_code():
            measure_ranges(tuning, known_tunings().values())
        if tuning.device.type != "cpu":
            torch.get_device_module(tuning.device).empty_cache()
    rules = tuning.choice_rules()
    winners = choose_winners(tuning.measured, rules)
    log_winners(tuning, winners)
    configured = with_configs(winners, tuning.kernel_configs)
    everywhere = fill_gaps(configured, tuning.bounds, Winner(FALLBACK_INDEX))
    return merge_neighbours(everywhere) if rules.merge else everywhere


@contextlib.contextmanager
def _as_compiled_code() -> Iterator[None]:
    """
    Calls ops as compiled code does, not as the compiler around it does.

    The compiler has the Python dispatcher on, which costs time in each call and holds the
    interpreter's lock through it: a wait for a collective then blocks gloo's threads,
    which need the lock to free tensors. Compiled code is run below autograd, whose Python
    kernels for custom ops and collectives cost time too. Dynamo, which is at work around
    the compiler, takes it for an error of its own if the number of threads changes.
    """
    threads = torch.get_num_threads()
    try:
        with (
            torch.no_grad(),
            _AutoDispatchBelowAutograd(),
            _DisablePythonDispatcher(),
            outside_of_compilation(),
        ):
            yield
    finally:
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)


def _to_emit(tuning: Tuning, winner: Winner) -> TracedCandidate:
    return tuning.standing.traced[winner.index].with_configs(winner.kernel_configs)


def _is_made_for_model(winner: TracedCandidate, tuning: Tuning) -> bool:
    """Whether its code is generated for the same sizes as that around it."""
    if winner.made_for is None or not replaced(tuning.size).free_symbols:
        return True
    return winner.made_for.size == hint_point(tuning.site, tuning.size).size


def _possible(
    tuning: Tuning, winners: Sequence[Segment[Winner]]
) -> Sequence[Segment[Winner]]:
    """Those of sizes that can occur: more may be known than when the call was lowered."""
    if tuning.size is None:
        return winners
    possible = size_bounds(replaced(tuning.size))
    return fill_gaps(winners, possible, Winner(FALLBACK_INDEX))


def _table(
    tuning: Tuning, winners: Sequence[Segment[Winner]]
) -> list[Segment[TracedCandidate]]:
    return [Segment(s.sizes, _to_emit(tuning, s.value)) for s in winners]


def _are_same(one: Decided, other: Decided) -> bool:
    """Whether the same candidates win at the same sizes, none of them a variant."""
    winners = [segment.value for _, segments in (one, other) for segment in segments]
    return _who_wins(*one) == _who_wins(*other) and not any(
        kind_of_variant(winner.index) for winner in winners
    )


def _who_wins(tuning: Tuning, segments: Sequence[Segment[Winner]]) -> list[Any]:
    """Candidates, with their configs, and the sizes that others win below and from there."""
    candidates = tuning.standing.candidates
    winners = [segment.value for segment in segments]
    return [
        *(segment.sizes.start for segment in segments[1:]),
        *((candidates[w.index] if w.index >= 0 else w.index) for w in winners),
        *(winner.kernel_configs for winner in winners),
    ]


def emit(decided: Sequence[Decided], realized: bool = False) -> list[ir.TensorBox]:
    """
    Lowers the winner, or the dispatch among several; see ``emit_winner``.

    Args:
        decided: each case with its winners, see ``Tuning.cases``.
    """
    cases = [(tuning, _possible(tuning, winners)) for tuning, winners in decided]
    while len(cases) > 1 and _are_same(*cases[-2:]):
        del cases[-2]
    tables = [(tuning, _table(tuning, winners)) for tuning, winners in cases]
    if len(tables) == 1:
        ((tuning, table),) = tables
        winner = table[0].value
        if len(table) == 1 and _is_made_for_model(winner, tuning):
            return emit_winner(winner, tuning.site, tuning.outputs, realized)
    tuning, table = max(tables, key=lambda case: len(case[1]))
    if len(table) == 1:
        return emit_dispatch(tables)
    assert tuning.table is not None
    dim = tuning.table.dim
    log.info("Generating torch.cond dispatch for %s with %d ranges", dim, len(table))
    results = emit_dispatch(tables)
    log.info(
        "Successfully generated torch.cond dispatch tree with %d conditional branches",
        len(table) - 1,
    )
    return results
