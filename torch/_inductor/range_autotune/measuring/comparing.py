"""Candidates' results beside those of the op itself, at a size."""

from __future__ import annotations

import functools
import logging
from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch

from ..candidate_indices import FALLBACK, FALLBACK_INDEX
from ..limits import call_candidate
from ..ops.candidate_calls import call_of_candidate
from ..registering.signatures import tensors_in
from ..times import Failure, failure_of
from .numerics import (
    allowed_difference,
    differ_widely,
    find_mismatch,
    rounded_otherwise,
)
from .ranks import common_comparisons


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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
    site, candidate = tuning.site, tuning.standing.traced[index].candidate
    found: list[str] = []
    compared = [
        _compared(part, call, found)
        for part, call in zip(candidate.parts or (candidate,), site.calls)
    ]

    def run(call_ops: Iterable[OpCall]) -> list[torch.Tensor]:
        runners.restore()
        with torch.no_grad():
            return site.without_unread(site.run(runners.inputs, *call_ops))

    def is_by_code() -> bool:
        """
        Compiled results are far from the compiled op's, and neither the op called eagerly
        nor another rounding among the same neighbours is.
        """
        far = functools.partial(differ_widely, allowed=_allowed_of_ops(site))
        if not far(site.without_unread(runners.results_of(index)), expected):
            return False
        rounded = run(map(_rounded, site.calls))
        return not (far(rounded, eager) or far(expected, eager))

    try:
        eager = call_candidate(run, compared)
        if found:
            return found[0]
        is_own = call_candidate(is_by_code)
    except Exception as e:
        log.debug("%s: no second opinion", tuning.name, exc_info=e)
        return mismatch
    if is_own:
        return f"{mismatch}, by its generated code: called eagerly it does not"
    return None


def _compared(part: Candidate, call: CallSite, found: list[str]) -> OpCall:
    """
    Calls an op, and an implementation of it to be compared.

    Args:
        found: what is wrong with the implementation's results is added.
    """

    def call_op(values: dict[str, Any]) -> Any:
        expected = call_of_candidate(FALLBACK, call)(values)
        actual = call_of_candidate(part, call)(values)
        if mismatch := find_mismatch(tensors_in(actual), tensors_in(expected)):
            found.append(mismatch)
        return expected

    return call_op


def _rounded(call: CallSite) -> OpCall:
    """Calls an op, and rounds what it returns in another way."""

    def call_op(values: dict[str, Any]) -> Any:
        result = call_of_candidate(FALLBACK, call)(values)
        return pytree.tree_map_only(torch.Tensor, rounded_otherwise, result)

    return call_op


def _allowed_of_ops(site: CallSite) -> float:
    """The most that results of the ops may differ by: what neighbours make has it from there."""
    results = tensors_in([call.call.meta["val"] for call in site.calls if call.call])
    return max(allowed_difference(result.dtype) for result in results)


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
