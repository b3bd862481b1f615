"""Who competes at a call site, who is out of which ranges, and why."""

from __future__ import annotations

import collections
import copy
import dataclasses
import logging
from itertools import chain
from typing import TYPE_CHECKING

from .caching.timing_keys import candidate_text
from .candidate_indices import (
    FALLBACK,
    FALLBACK_INDEX,
    kind_of_variant,
    PLAIN_INDEX,
    PLAIN_NAME,
)
from .compiled_graph import told_left_out
from .report import warn_left_out
from .times import Failure


if TYPE_CHECKING:
    from .call_site import CallSite
    from .candidates.traced_candidates import TracedCandidate
    from .modules.subgraph_module import SubgraphModule
    from .ranges import DimRange
    from .registration import Candidate, Registration

log = logging.getLogger("torch._inductor.kernel.custom_op")

LEFT_OUT_ELSEWHERE = Failure("another rank has left it out")


@dataclasses.dataclass(frozen=True)
class ContestedRange:
    """
    A range that can occur at this call site, and who competes in it.

    Args:
        sizes: the range as it was registered, or a part of it.
        possible: those of its sizes that can occur.
        candidates: indices of those registered for it, or of their pieces; the op itself is not
            among them.
    """

    sizes: DimRange
    possible: DimRange
    candidates: tuple[int, ...]

    def within(self, sizes: DimRange) -> ContestedRange | None:
        """What there is of it among sizes; None if none of those can occur."""
        possible = self.possible.intersect(sizes)
        registered = self.sizes.intersect(sizes)
        if possible is None or registered is None:
            return None
        return dataclasses.replace(self, sizes=registered, possible=possible)

    def with_candidate(self, index: int, in_place_of: int) -> ContestedRange:
        """The same with another candidate in the place of one."""
        candidates = (index if i == in_place_of else i for i in self.candidates)
        return dataclasses.replace(self, candidates=tuple(candidates))


@dataclasses.dataclass
class Standing:
    """
    The candidates of a call site, and what is known against each by now.

    Equal call sites share all of it but the graphs, see ``as_for`` of ``preparing.py``.

    Args:
        registration: what they were registered by.
        site: the call site, for warnings.
        ranges: those that can occur, and who was registered for each.
        candidates: those that were registered; behind them those traced in pieces again,
            for each piece.
        traced: the candidates still in, by index.
        variants: generated variants, by index: the index of the candidate that they vary.
        modules: what those still in are measured by.
        rejected: who is out of all ranges by now, and why.
        left_out: who is out of a range only, in which it does not run, by its sizes.
        guarded: of those who are out, those whose code guards on a size, and on which.
        suspended: of these, those that may be in again.
        guarded_alone: of these, those whose code guards without their neighbours, too.
        untold: who is out without a warning so far, why, and of which range; None once
            each is told as it is found out.
        compared: whose results were compared with the op's, at one size at least.
        not_compared: whose were not, at a size, and why.
        doubted: of whom the user was warned that their results differ.
        texts: of candidates, for the timing cache; None for those that it cannot know.
    """

    registration: Registration
    site: CallSite
    ranges: tuple[ContestedRange, ...]
    candidates: tuple[Candidate, ...]
    traced: dict[int, TracedCandidate] = dataclasses.field(default_factory=dict)
    variants: dict[int, int] = dataclasses.field(default_factory=dict)
    modules: dict[int, SubgraphModule] = dataclasses.field(default_factory=dict)
    rejected: dict[int, Failure] = dataclasses.field(default_factory=dict)
    left_out: dict[DimRange, dict[int, Failure]] = dataclasses.field(
        default_factory=lambda: collections.defaultdict(dict)
    )
    guarded: dict[int, Failure] = dataclasses.field(default_factory=dict)
    suspended: dict[int, TracedCandidate] = dataclasses.field(default_factory=dict)
    guarded_alone: set[int] = dataclasses.field(default_factory=set)
    untold: list[tuple[Candidate, str, DimRange | None]] | None = dataclasses.field(
        default_factory=list
    )
    compared: set[int] = dataclasses.field(default_factory=set)
    not_compared: dict[int, str] = dataclasses.field(default_factory=dict)
    doubted: set[int] = dataclasses.field(default_factory=set)
    texts: dict[int, str | None] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The registration's, for logs."""
        return self.registration.name

    def name_of(self, index: int) -> str:
        """A candidate's, for logs; with what it varies."""
        if kind := kind_of_variant(index):
            made_for = index in self.traced and self.traced[index].made_for
            form = f"for size {made_for.size}" if made_for else kind
            return f"{self.name_of(self.variants[index])}, {form}"
        if index in (FALLBACK_INDEX, PLAIN_INDEX):
            return FALLBACK.name if index == FALLBACK_INDEX else PLAIN_NAME
        return self.candidates[index].name

    def copied(self) -> Standing:
        """One for which nothing counts that is found out about this one from now on."""
        containers = {
            name: copy.copy(value)
            for name, value in vars(self).items()
            if isinstance(value, (dict, list, set))
        }
        copied = dataclasses.replace(self, **containers)
        for sizes, out in self.left_out.items():
            copied.left_out[sizes] = {**out}
        return copied

    def add_variant(self, index: int, traced: TracedCandidate, varied: int) -> None:
        """
        Lets another form of a candidate compete wherever that does.

        Args:
            varied: the index of that one.
        """
        self.traced[index] = traced
        self.variants[index] = varied

    def drop_with_variants(self, index: int) -> TracedCandidate:
        """Takes a candidate out, which others take the place of; says nothing."""
        for variant, varied in self.variants.items():
            if varied == index:
                self.traced.pop(variant, None)
                self.suspended.pop(variant, None)
        return self.traced.pop(index)

    def competes(self, index: int, competing: ContestedRange) -> bool:
        """Whether a candidate that is still in runs in a range."""
        is_in = index in self.traced and index not in self.out_of(competing)
        return is_in and self.enters(index, competing)

    def enters(self, index: int, competing: ContestedRange) -> bool:
        """Whether a candidate is for a range, be it rejected since or not."""
        origin = self.variants.get(index, index)
        everywhere = origin in (FALLBACK_INDEX, PLAIN_INDEX)
        return everywhere or origin in competing.candidates

    def out_of(self, competing: ContestedRange) -> dict[int, Failure]:
        """Who is out of a range by now, and why; of that one only, or of all."""
        return {**self.rejected, **self.left_out[competing.sizes]}

    def enters_all_ranges(self, index: int) -> bool:
        """Whether it is for all ranges that can occur."""
        return all(self.enters(index, competing) for competing in self.ranges)

    @property
    def has_implementation(self) -> bool:
        """
        Whether one of those that were registered is still in, or is out for a while for what
        is not its neighbours' doing.
        """
        asked_for = {
            index for competing in self.ranges for index in competing.candidates
        }
        left = chain(self.traced, self.guarded_alone & self.suspended.keys())
        return any(self.variants.get(i, i) in asked_for for i in left)

    def _parts_left(self, where: DimRange | None = None) -> set[tuple[int, str]]:
        """See ``_parts``, of all candidates that are still in: in a range, or in any."""
        left = (
            self.traced[index].candidate
            for competing in self.ranges
            for index in self.traced
            if where is None or where.overlaps(competing.sizes)
            if self.competes(index, competing)
        )
        return set().union(*map(_parts, left))

    @property
    def lost_to_guards(self) -> bool:
        """
        Whether an implementation is out altogether, for guards in its code that it does not
        have alone.
        """
        left = self._parts_left()
        return any(
            _parts(self.candidates[index]) - left
            for index in self.guarded.keys() - self.guarded_alone
            if index in range(len(self.candidates))
        )

    def suspend(self, index: int, failure: Failure, alone: bool = False) -> None:
        """
        Takes out whose code guards on a size, maybe for a while; says nothing yet.

        Args:
            alone: whether it does so without neighbours, too.
        """
        self.guarded[index] = failure
        if alone:
            self.guarded_alone.add(index)
        self.suspended[index] = self.traced[index]
        self._remove(index, failure)

    def readmit(self) -> list[int]:
        """Lets those in again that are suspended; they are ``guarded`` still."""
        back = [*self.suspended]
        for index in back:
            self.traced[index] = self.suspended.pop(index)
            del self.rejected[index]
        return back

    def reject(self, index: int, failure: Failure) -> None:
        """
        Takes a candidate out of all ranges and says so once.

        The op itself stays the last resort. Nobody asked for its plain lowering or for
        variants, which go without a word.
        """
        candidate = self._remove(index, failure)
        if candidate is not None:
            self._warn_of(index, candidate, failure)

    def reject_in(
        self, competing: ContestedRange, index: int, failure: Failure
    ) -> None:
        """
        Takes a candidate that does not run out of a range; of several it says the first.

        Out of all if there is no other, or, said again, if it would cost those as much.
        """
        if failure.everywhere:
            self.reject(index, failure)
            return
        where = competing.sizes
        candidate = self.traced[index].candidate
        is_told = any(index in out for out in self.left_out.values())
        self.left_out[where][index] = failure
        if not any(self.competes(index, other) for other in self.ranges):
            self._remove(index, failure)
        if is_told:
            out = "%s: candidate '%s' is left out in range %s, too: %s"
            log.info(out, self.name, self.name_of(index), where, failure.reason)
        else:
            self._warn_of(index, candidate, failure, where)

    def _remove(self, index: int, failure: Failure) -> Candidate | None:
        """The candidate, if it was in."""
        self.modules.pop(index, None)
        self.rejected[index] = failure
        if index not in self.traced:
            return None
        candidate = self.traced[index].candidate
        if index != FALLBACK_INDEX:
            self.text_of(index)  # the timing cache keeps who is out
            self.traced.pop(index)
        return candidate

    def _warn_of(
        self,
        index: int,
        candidate: Candidate,
        failure: Failure,
        where: DimRange | None = None,
    ) -> None:
        if index != PLAIN_INDEX and index not in self.variants:
            self.warn(candidate, failure.reason, where)

    def warn(
        self, candidate: Candidate, reason: str, where: DimRange | None = None
    ) -> None:
        """Logs one warning a graph for each part that fails in all its combinations."""
        if self.untold is not None:
            self.untold.append((candidate, reason, where))
            return
        told = told_left_out()
        bad = {
            (str(self.site.calls[i].op), name, reason, where)
            for i, name in _parts(candidate) - self._parts_left(where)
        }
        known = bool(bad) and bad <= told
        warn_left_out(self.name, candidate.name, reason, self.site, where, known)
        told |= bad

    def tell(self) -> None:
        """Warns of who is out, and from now on of each that is rejected."""
        untold, self.untold = self.untold or [], None
        while untold:  # equal calls have the same list
            self.warn(*untold.pop(0))

    def text_of(self, index: int) -> str | None:
        """A candidate that is in, or was when it was asked for, as the timing cache knows it."""
        if index not in self.texts:
            self.texts[index] = candidate_text(self.traced[index])
        return self.texts[index]


def _parts(candidate: Candidate) -> set[tuple[int, str]]:
    """Places and names of what a combination is made of, the ops themselves aside."""
    parts = candidate.parts or (candidate,)
    return {(i, p.name) for i, p in enumerate(parts) if p is not FALLBACK}
