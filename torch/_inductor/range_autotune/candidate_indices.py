"""
Indices of candidates: registered implementations, the op itself, its plain lowering, variants.

Registered implementations, and their pieces for parts of a range, have those from 0 on, all
others negative ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .registration import Candidate


if TYPE_CHECKING:
    from collections.abc import Iterable

# The op itself, called eagerly: the last resort of every call site.
FALLBACK = Candidate("fallback", None)
FALLBACK_INDEX = -1
# What the op would be lowered to if it were not registered.
PLAIN_INDEX = -2
PLAIN_NAME = "plain lowering"
# Variants have this index and those below: one of each kind for each candidate, in order.
_FIRST_VARIANT_INDEX = -3
APART = "neighbours apart"
AS_WRITTEN = "as written"
PERSISTENT = "persistent"
AS_WRITTEN_PERSISTENT = f"{AS_WRITTEN}, {PERSISTENT}"
_MOST_SIZES = 5
FOR_OTHER_SIZES = tuple(f"for other sizes, {n}" for n in range(_MOST_SIZES))
_KINDS = (APART, AS_WRITTEN, PERSISTENT, AS_WRITTEN_PERSISTENT, *FOR_OTHER_SIZES)


def index_of_variant(number: int, kind: str) -> int:
    """The index of a variant of the candidate of that number."""
    return _FIRST_VARIANT_INDEX - len(_KINDS) * number - _KINDS.index(kind)


def next_number(variants: Iterable[int]) -> int:
    """Of a candidate, for variants beside others: the first that none of these has."""
    offsets = (_FIRST_VARIANT_INDEX - index for index in variants)
    return max((offset // len(_KINDS) + 1 for offset in offsets), default=0)


def kind_of_variant(index: int) -> str | None:
    """Which variant of a candidate has that index; None for candidates themselves."""
    offset = _FIRST_VARIANT_INDEX - index
    return _KINDS[offset % len(_KINDS)] if offset >= 0 else None
