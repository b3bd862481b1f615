"""Candidates' results beside those of the op itself, at a size."""

from __future__ import annotations

import logging
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

from ..candidate_indices import FALLBACK, FALLBACK_INDEX
from ..candidates.candidate_calls import call_of_candidate
from ..limits import call_candidate
from ..times import Failure, failure_of
from .calls import inputs_at
from .numerics import find_mismatch
from .ranks import common_comparisons


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from ..call_site import CallSite
    from ..registration import Candidate
    from ..sizes.size_points import SizePoint
    from ..tuning import Tuning
    from .calls import Runners
    from .numerics import Comparison

log = logging.getLogger("torch._inductor.kernel.custom_op")


def compare(
    tuning: Tuning, runners: Runners, point: SizePoint
) -> Mapping[int, Comparison]:
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
    if site.body is None:
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
    """
    Whether results that differ do so before neighbours make something of them: rounded to
    integers behind the op, two sums in another order may be a whole step apart.
    """
    site, candidate = tuning.site, tuning.standing.traced[index].candidate

    def call_ops() -> Comparison:
        return _find_mismatch_of_ops(candidate, site, inputs_at(tuning, point))

    try:
        return call_candidate(call_ops)
    except Exception as e:
        log.debug("%s: no second opinion", tuning.name, exc_info=e)
        return mismatch


def _find_mismatch_of_ops(
    candidate: Candidate, site: CallSite, leaves: Sequence[Any]
) -> str | None:
    """
    What is wrong with what a candidate's implementations return, called eagerly with what
    the ops are called with among their neighbours; None if nothing.

    Args:
        leaves: concrete, in place of the site's inputs.
    """
    found: list[str] = []

    def compared(part: Candidate, call: CallSite) -> Callable[[dict[str, Any]], Any]:
        def call_op(values: dict[str, Any]) -> Any:
            expected = call_of_candidate(FALLBACK, call)(values)
            actual = call_of_candidate(part, call)(values)
            both = (pytree.tree_leaves(x) for x in (actual, expected))
            if mismatch := find_mismatch(*both):
                found.append(mismatch)
            return expected

        return call_op

    site.run(leaves, *map(compared, candidate.parts or (candidate,), site.calls))
    return found[0] if found else None


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
