"""Who competes beside the implementations that are registered, and the indices of all."""

from __future__ import annotations

from .registration import Candidate


# The op itself, called eagerly: the last resort of every call site.
FALLBACK = Candidate("fallback", None)
# Indices of candidates count those registered from 0. These are of the others: the op,
FALLBACK_INDEX = -1
# its plain lowering, which competes without being registered,
PLAIN_INDEX = -2
PLAIN_NAME = "plain lowering"
# and, from here down, variants, one of each kind for each candidate in order.
_FIRST_VARIANT_INDEX = -3
APART = "neighbours apart"
AS_WRITTEN = "as written"
PERSISTENT = "persistent"
AS_WRITTEN_PERSISTENT = f"{AS_WRITTEN}, {PERSISTENT}"
_KINDS = (APART, AS_WRITTEN, PERSISTENT, AS_WRITTEN_PERSISTENT)


def index_of_variant(number: int, kind: str) -> int:
    """The index of a variant of the candidate of that number."""
    return _FIRST_VARIANT_INDEX - len(_KINDS) * number - _KINDS.index(kind)


def kind_of_variant(index: int) -> str | None:
    """Which variant of a candidate has that index; None for candidates themselves."""
    offset = _FIRST_VARIANT_INDEX - index
    return _KINDS[offset % len(_KINDS)] if offset >= 0 else None
