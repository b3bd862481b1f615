"""Candidates' results beside those of the op itself, at a size."""

from __future__ import annotations

import logging
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch

from ..candidate_indices import FALLBACK, FALLBACK_INDEX
from ..limits import call_candidate
from ..ops.candidate_calls import call_of_candidate
from ..times import Failure, failure_of
from .numerics import (
    allowed_difference,
    differ_widely,
    find_mismatch,
    rounded_otherwise,
)
from .ranks import common_comparisons


if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..call_site import CallSite
    from ..ops.candidate_calls import OpCall
    from ..registration import Candidate
    from ..tuning import Tuning
    from .calls import Runners
    from .numerics import Comparison

log = logging.getLogger("torch._inductor.kernel.custom_op")


def compare(tuning: Tuning, runners: Runners) -> Mapping[int, Comparison]:
    """With the op itself, if asked to; the same on every rank."""
    if tuning.registration.options.numerics_check == "off":
        return {}
    site = tuning.site
    expected = _results_of_op(site, runners)
    if tuning.ranks:  # nobody is called where one rank has nothing to compare with
        missing = expected if isinstance(expected, Failure) else None
        of_op = common_comparisons({FALLBACK_INDEX: missing}, tuning.ranks)
        expected = of_op[FALLBACK_INDEX] or expected
    found = _comparisons(site, runners, expected)
    if tuning.ranks:
        return common_comparisons(found, tuning.ranks)
    if site.body is None or not isinstance(expected, list):
        return found
    return {
        index: _own_fault(tuning, runners, index, expected, result)
        if isinstance(result, str)
        else result
        for index, result in found.items()
    }


def _own_fault(
    tuning: Tuning,
    runners: Runners,
    index: int,
    expected: list[torch.Tensor],
    mismatch: str,
) -> Comparison:
    """
    What of a mismatch is a candidate's own fault, and not what neighbours make of rounding:
    rounded to integers behind the op, two sums in another order may be a whole step apart.
    """
    candidate = tuning.standing.traced[index].candidate

    def call_eagerly() -> Comparison:
        eager = _EagerResults(tuning.site, candidate, runners)
        if eager.mismatch_of_ops:
            return eager.mismatch_of_ops
        results = tuning.site.without_unread(runners.results_of(index))
        if eager.blame_code(results, expected):
            return f"{mismatch}, by its generated code: called eagerly it does not"
        return None

    try:
        return call_candidate(call_eagerly)
    except Exception as e:
        log.debug("%s: no second opinion", tuning.name, exc_info=e)
        return mismatch


class _EagerResults:
    """
    What a region computes with its ops called eagerly with the inputs of its runners, and
    what it makes of the same values rounded in another way.

    Attributes:
        mismatch_of_ops: what is wrong with what a candidate's implementations return,
            before neighbours make something of it; None if nothing.
    """

    def __init__(self, site: CallSite, candidate: Candidate, runners: Runners) -> None:
        self.mismatch_of_ops: str | None = None
        # Relative, in what the ops return: neighbours have it from there.
        self._allowed = 0.0
        with torch.no_grad():
            runners.restore()
            compared = map(self._compared, candidate.parts or (candidate,), site.calls)
            self._expected = site.without_unread(site.run(runners.inputs, *compared))
            if self.mismatch_of_ops:
                return
            runners.restore()
            rounded = map(self._rounded_otherwise, site.calls)
            self._rounded = site.without_unread(site.run(runners.inputs, *rounded))

    def _compared(self, part: Candidate, call: CallSite) -> OpCall:
        """Calls an op, and an implementation of it to be compared."""

        def call_op(values: dict[str, Any]) -> Any:
            expected = call_of_candidate(FALLBACK, call)(values)
            actual = call_of_candidate(part, call)(values)
            results, wanted = map(_tensors_of, (actual, expected))
            for tensor in wanted:
                self._allowed = max(self._allowed, allowed_difference(tensor.dtype))
            mismatch = find_mismatch(results, wanted)
            self.mismatch_of_ops = self.mismatch_of_ops or mismatch
            return expected

        return call_op

    def _rounded_otherwise(self, call: CallSite) -> OpCall:
        def call_op(values: dict[str, Any]) -> Any:
            result = call_of_candidate(FALLBACK, call)(values)
            return pytree.tree_map_only(torch.Tensor, rounded_otherwise, result)

        return call_op

    def blame_code(
        self, results: list[torch.Tensor], expected: list[torch.Tensor]
    ) -> bool:
        """
        Whether compiled results are far from the compiled op's, and neither the op called
        eagerly nor another rounding among the same neighbours is.
        """
        return differ_widely(results, expected, self._allowed) and not (
            differ_widely(self._rounded, self._expected, self._allowed)
            or differ_widely(expected, self._expected, self._allowed)
        )


def _tensors_of(result: Any) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves(result)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _results_of_op(site: CallSite, runners: Runners) -> list[torch.Tensor] | Failure:
    """What candidates are compared with, or why there is nothing."""
    if FALLBACK_INDEX not in runners:
        return Failure("the op itself does not compile, or does not run")
    try:
        # They may be inputs that the others write to, too.
        results = site.without_unread(runners.results_of(FALLBACK_INDEX))
        return [result.clone() for result in results]
    except Exception as e:
        return failure_of(e).of("the op itself does not run")


def _comparisons(
    site: CallSite, runners: Runners, expected: list[torch.Tensor] | Comparison
) -> dict[int, Comparison]:
    """How each candidate's results differ from those of the op itself; None for not."""
    others = [index for index in runners if index != FALLBACK_INDEX]
    if not isinstance(expected, list):
        return dict.fromkeys(others, expected)
    found: dict[int, Comparison] = {}
    for index in others:
        try:
            results = site.without_unread(runners.results_of(index))
            found[index] = find_mismatch(results, expected)
        except Exception as e:
            found[index] = failure_of(e)
    return found
