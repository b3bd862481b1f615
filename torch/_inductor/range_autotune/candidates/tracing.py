"""Who competes at a call site: its candidates, each traced once, and what they vary."""

from __future__ import annotations

import dataclasses
import itertools
import logging
import math
from typing import TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from ..candidate_indices import (
    APART,
    AS_WRITTEN,
    AS_WRITTEN_PERSISTENT,
    index_of_variant,
    next_number,
    PERSISTENT,
    PLAIN_INDEX,
)
from ..measuring.measuring_points import has_points
from ..ranges import DimRange
from ..settings import fusion_speedup_threshold
from ..sizes.equal_sizes import needed_equal
from ..sizes.known_sizes import is_compound, KnownSize
from ..sizes.size_points import hint_point
from ..sizes.thresholds import thresholds
from .candidate_graphs import trace_candidate, trace_plain
from .kernel_forms import with_persistent_reductions
from .size_forms import depends_on_sizes, forms_for_sizes
from .traced_candidates import Rejection, TracedCandidate


if TYPE_CHECKING:
    from collections.abc import (
        Callable,
        Collection,
        Iterable,
        Iterator,
        Mapping,
        Sequence,
        Set,
    )

    import sympy

    from ..registration import Candidate, Row
    from ..sizes.equal_sizes import EqualSizes
    from ..standing import ContestedRange, Standing
    from ..tuning import Tuning

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Sizes at which ranges are cut for one candidate, and for all: each is one more piece to
# compile, and one more range to measure all in.
_MOST_CUTS = 8
_MOST_CUTS_OF_SITE = 16


@dataclasses.dataclass(frozen=True)
class _Piece:
    """
    What a candidate is, or why it is out, in some of its ranges.

    Args:
        ranges: those of the call site, or parts of them, in order.
    """

    ranges: tuple[ContestedRange, ...]
    result: TracedCandidate | Rejection

    @property
    def is_traced(self) -> bool:
        """Whether the candidate competes there."""
        return isinstance(self.result, TracedCandidate)


@dataclasses.dataclass(frozen=True)
class NeedsEqualSizes:
    """Sizes that a candidate needs to be equal, and its index."""

    equal: EqualSizes
    index: int


def trace_candidates(
    tuning: Tuning, may_help: Callable[[int, EqualSizes], bool] | None = None
) -> NeedsEqualSizes | None:
    """
    Traces each candidate once, for all of its ranges where that is possible.

    One that asks how large the size is that is dispatched on becomes a candidate for each
    answer, and ranges are cut where the answer changes.

    Args:
        may_help: whether equal sizes may help a candidate, by its index; None if they help none.

    Returns:
        The first other one that needs sizes to be equal, with which this ends; None if all
        are traced, or out.
    """
    standing = tuning.standing
    in_pieces: dict[int, list[_Piece]] = {}
    edges = _edges(standing.ranges)
    for index in sorted({i for r in standing.ranges for i in r.candidates}):
        candidate = standing.candidates[index]
        entered = tuple(r for r in standing.ranges if standing.enters(index, r))
        whole = _trace_in(tuning, candidate, entered)
        pieces = _trace_in_pieces(tuning, candidate, whole, edges)
        for equal in filter(None, (_needed_equal(tuning, piece) for piece in pieces)):
            if may_help and may_help(index, equal):
                return NeedsEqualSizes(equal, index)
        pieces = _with_gaps_closed(pieces)
        reasons = [p.result for p in pieces if isinstance(p.result, Rejection)]
        if isinstance(whole.result, TracedCandidate):
            standing.traced[index] = whole.result
        elif len(reasons) < len(pieces):
            in_pieces[index] = pieces
            edges |= _edges(r for p in pieces if p.is_traced for r in p.ranges)
        else:
            # If in parts, of the first one: what is wrong with it behind what a cut answers.
            is_answered = reasons[0].question != whole.result.question
            rejection = reasons[0] if is_answered else whole.result
            standing.warn(candidate, rejection.reason)
    if in_pieces:
        _cut_ranges(standing, sorted(edges))
        _take_apart(tuning, in_pieces)
    return None


def _needed_equal(tuning: Tuning, piece: _Piece) -> EqualSizes:
    """What would answer the question that a candidate is out for, see ``needed_equal``."""
    if isinstance(piece.result, TracedCandidate) or piece.result.question is None:
        return ()
    return needed_equal(piece.result.question.condition, tuning.size)


def _trace_in(
    tuning: Tuning, candidate: Candidate, ranges: tuple[ContestedRange, ...]
) -> _Piece:
    known = _known_of_size(tuning, ranges)
    result = trace_candidate(candidate, tuning.site, tuning.outputs, known)
    return _Piece(ranges, result)


def _trace_in_pieces(
    tuning: Tuning, candidate: Candidate, whole: _Piece, edges: Set[int]
) -> list[_Piece]:
    """
    In parts of ranges by what it asks of the size, until it asks no more; in order.

    Args:
        edges: of the call site's ranges, and of parts of them for candidates before this one.
    """
    waiting, done = [whole], list[_Piece]()
    mine: set[int] = set()
    most = len(_edges(tuning.standing.ranges)) + _MOST_CUTS_OF_SITE
    own_starts = {competing.sizes.start for competing in whole.ranges}
    while waiting:
        piece = waiting.pop(0)
        parts = _parts_by_answer(tuning, piece)
        cuts = mine | {part[0].sizes.start for part in parts[1:]} - own_starts
        is_cut = len(cuts) <= _MOST_CUTS and len(edges | cuts) <= most
        if len(parts) > 1 and is_cut:
            mine = cuts
            traced = [_trace_in(tuning, candidate, part) for part in parts]
            waiting = traced + waiting
        else:
            done.append(piece)
    return done


def _with_gaps_closed(pieces: Sequence[_Piece]) -> list[_Piece]:
    """With one piece for parts beside each other that a candidate is out of."""
    closed: list[_Piece] = []
    for piece in pieces:
        if closed and not (closed[-1].is_traced or piece.is_traced):
            last = closed.pop()
            closed.append(_Piece(last.ranges + piece.ranges, last.result))
        else:
            closed.append(piece)
    return closed


def _parts_by_answer(tuning: Tuning, piece: _Piece) -> list[tuple[ContestedRange, ...]]:
    """
    Parts of a piece's ranges in each of which what was asked there has one answer, as far as
    that can be told; or each range by itself.
    """
    result, ranges = piece.result, piece.ranges
    if tuning.size is None or isinstance(result, TracedCandidate):
        return [ranges]
    question = result.question
    if question:
        ends = thresholds(question.condition, tuning.size, _hull(ranges))
        if ends:
            return _between(ranges, ends)
    return [(r,) for r in ranges] if result.guards else [ranges]


def _between(
    ranges: Iterable[ContestedRange], ends: Iterable[int]
) -> list[tuple[ContestedRange, ...]]:
    """
    The parts of ranges below the first of some sizes, between each two, and from the last on;
    none that is empty.
    """
    edges = itertools.pairwise((0, *ends, math.inf))
    between = [DimRange(int(start), end) for start, end in edges]
    parts = (tuple(p for r in ranges if (p := r.within(b))) for b in between)
    return [part for part in parts if part]


def cuts_at_guards(
    tuning: Tuning, index: int, guards: Collection[sympy.Basic]
) -> list[int]:
    """
    Where the answers to what a candidate's code guards on change in its ranges; none if they do
    not, or at too many sizes, or nobody registered it.

    Not on several ranks, whose devices may have others ask for other guards.
    """
    standing = tuning.standing
    is_registered = index in range(len(standing.candidates))
    if not (guards and is_registered) or tuning.table is None or tuning.ranks:
        return []
    assert tuning.size is not None
    hull = _hull(r for r in standing.ranges if standing.enters(index, r))
    ends = {end for g in guards for end in thresholds(g, tuning.size, hull)}
    most = len(_edges(tuning.table.rows)) + _MOST_CUTS_OF_SITE
    is_few = len(ends) <= _MOST_CUTS and len(ends | _edges(standing.ranges)) <= most
    return sorted(ends) if is_few else []


def take_apart_at(tuning: Tuning, index: int, ends: Sequence[int]) -> list[int]:
    """
    Replaces a candidate by one for each part of its ranges between some sizes.

    Returns:
        The indices of these and of their variants.
    """
    standing = tuning.standing
    entered = [r for r in standing.ranges if standing.enters(index, r)]
    traced = standing.drop_with_variants(index)
    pieces = [
        _Piece(part, dataclasses.replace(traced, known=_known_of_size(tuning, part)))
        for part in _between(entered, ends)
    ]
    others = standing.traced.keys() | {index}
    _cut_ranges(standing, ends)
    _take_apart(tuning, {index: pieces})
    add_variants(tuning, standing.traced.keys() - others)
    return [i for i in standing.traced if i not in others]


def _edges(ranges: Iterable[ContestedRange | Row]) -> set[int]:
    """Where ranges start and end, if not at 0 or nowhere."""
    ends = {end for r in ranges for end in (r.sizes.start, r.sizes.end)}
    return {int(end) for end in ends - {0, math.inf}}


def _take_apart(tuning: Tuning, in_pieces: Mapping[int, Sequence[_Piece]]) -> None:
    """Replaces candidates by one for each of their pieces."""
    standing = tuning.standing
    for index, pieces in in_pieces.items():
        for piece in pieces:
            # Whether it is traced or not: ranks know candidates by their indices.
            number = len(standing.candidates)
            standing.candidates += (standing.candidates[index],)
            sizes = _hull(piece.ranges)
            standing.ranges = tuple(
                r.with_candidate(number, index) if r.possible.overlaps(sizes) else r
                for r in standing.ranges
            )
            if isinstance(piece.result, TracedCandidate):
                standing.traced[number] = piece.result
            elif any(has_points(tuning, r.possible) for r in piece.ranges):
                standing.warn(standing.candidates[index], piece.result.reason, sizes)


def _cut_ranges(standing: Standing, ends: Sequence[int]) -> None:
    for competing in standing.ranges:
        starts = [part.sizes.start for (part,) in _between([competing], ends)]
        if cuts := ", ".join(map(str, starts[1:])):
            log.info(
                "%s: range %s is cut at %s, where answers to what implementations ask change",
                standing.name,
                competing.sizes,
                cuts,
            )
    standing.ranges = tuple(itertools.chain(*_between(standing.ranges, ends)))


def _hull(ranges: Iterable[ContestedRange]) -> DimRange:
    """From the first to the last size that can occur in ranges."""
    possible = [competing.possible for competing in ranges]
    return DimRange(min(r.start for r in possible), max(r.end for r in possible))


def _known_of_size(
    tuning: Tuning, entered: Sequence[ContestedRange]
) -> KnownSize | None:
    """
    What ranges say of the size that is dispatched on.

    None if that is nothing that is not known anyway, or if one of them is measured at the
    model's size only, which lies outside of it.
    """
    if tuning.size is None:
        return None
    if not all(has_points(tuning, competing.possible) for competing in entered):
        return None
    return _known_in(tuning, _hull(entered))


def _known_in(tuning: Tuning, sizes: DimRange) -> KnownSize | None:
    """That the size that is dispatched on is in a range, if that tells anything."""
    if tuning.size is None or (sizes == tuning.bounds and not is_compound(tuning.size)):
        return None
    return KnownSize(tuning.size, sizes)


def add_plain_lowering(tuning: Tuning) -> None:
    """
    What the op would be lowered to without a registration, unless one that does the same
    competes wherever that would.
    """
    known = _known_in(tuning, tuning.bounds)
    plain = trace_plain(tuning.site, tuning.outputs, known)
    standing = tuning.standing
    everywhere = [
        traced
        for index, traced in standing.traced.items()
        if standing.enters_all_ranges(index)
    ]
    if plain and not any(map(plain.does_the_same_as, everywhere)):
        standing.traced[PLAIN_INDEX] = plain


def add_variants(tuning: Tuning, of: Collection[int] | None = None) -> None:
    """
    The variants of candidates; their indices are the same on every rank.

    Args:
        of: the candidates' indices; None for all.
    """
    standing, threshold = tuning.standing, fusion_speedup_threshold()
    joined = len(tuning.site.calls) > 1
    varied = [i for i in standing.traced if of is None or i in of]
    for number, index in enumerate(varied, next_number(standing.variants)):
        traced = standing.traced[index]
        if threshold is not None and tuning.site.body is not None:
            _add_apart(tuning, number, index, traced)
        for kind, form in _other_forms(traced):
            # Combinations of ops that are joined are many as it is.
            if joined and (kind != PERSISTENT or traced.calls_python):
                continue
            variant = index_of_variant(number, kind)
            standing.add_variant(variant, form, index)
        if not joined and depends_on_sizes(traced):
            _add_forms_for_sizes(tuning, number, index)


def _add_forms_for_sizes(tuning: Tuning, number: int, index: int) -> None:
    """
    Of a candidate whose code depends on the sizes that it is generated for.

    Those are the first one's at equal call sites, too. Not on several ranks, each of which may
    be compiled at another size.
    """
    size, standing = tuning.size, tuning.standing
    if size is None or tuning.ranks or free_unbacked_symbols(size):
        return
    here = hint_point(tuning.site, size)
    standing.traced[index] = dataclasses.replace(standing.traced[index], made_for=here)
    tuning.made_at = here.size
    for kind, form in forms_for_sizes(tuning, index, here):
        standing.add_variant(index_of_variant(number, kind), form, index)


def _other_forms(traced: TracedCandidate) -> Iterator[tuple[str, TracedCandidate]]:
    """Forms of a candidate that may be faster than it is, with their kinds."""
    if persistent := with_persistent_reductions(traced):
        yield PERSISTENT, persistent
    if traced.as_written is None:
        return
    as_written = dataclasses.replace(traced, graph=traced.as_written, as_written=None)
    yield AS_WRITTEN, as_written
    if persistent := with_persistent_reductions(as_written):
        yield AS_WRITTEN_PERSISTENT, persistent


def _add_apart(
    tuning: Tuning, number: int, index: int, traced: TracedCandidate
) -> None:
    """Of a candidate in a region, the one whose neighbours get kernels of their own."""
    result = trace_candidate(
        traced.candidate, tuning.site, tuning.outputs, traced.known, apart=True
    )
    if isinstance(result, TracedCandidate):
        variant = index_of_variant(number, APART)
        tuning.standing.add_variant(variant, result, index)
