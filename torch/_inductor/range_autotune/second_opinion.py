"""
Whether implementations differ from their ops, or only what neighbours make of both: rounded
to integers behind the op, two sums in another order may be a whole step apart.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

from .candidate_calls import call_of_candidate
from .candidate_indices import FALLBACK
from .numerics import find_mismatch


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .call_site import CallSite
    from .registration import Candidate


def find_mismatch_of_ops(
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
