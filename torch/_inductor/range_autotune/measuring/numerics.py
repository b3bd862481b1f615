"""Whether a candidate computes what the op does: an optional check before it may win."""

from __future__ import annotations

import math
import sys
from typing import Literal, TYPE_CHECKING

import torch

from ..graphs.node_kinds import is_integral


if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..times import Failure

    # What is wrong with a candidate's results, None if nothing; or why they were not compared.
    Comparison = str | Failure | None

NumericsCheck = Literal["off", "warn", "drop"]
NUMERICS_CHECKS: tuple[NumericsCheck, ...] = ("off", "warn", "drop")

# Allowed difference relative to the largest value: sums in another order differ by some
# multiples of the type's resolution; wrong results by far more.
_ALLOWED = {
    torch.float64: 1e-9,
    torch.complex128: 1e-9,
    torch.float32: 1e-4,
    torch.complex64: 1e-4,
    torch.float16: 1e-2,
    torch.bfloat16: 5e-2,
}
_ALLOWED_IN_ONE_BYTE = 0.3


def allowed_difference(dtype: torch.dtype) -> float:
    """Relative to the largest value of the expected tensor; 0 for integers and bools."""
    if is_integral(dtype):
        return 0.0
    return _ALLOWED.get(dtype, _ALLOWED_IN_ONE_BYTE)


def relative_difference(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """
    The largest difference of two elements, relative to the largest expected value.

    Args:
        actual, expected: concrete tensors of one shape and dtype.

    Returns:
        0 for equal tensors; inf where one alone has NaN, or infinities that differ.
    """
    if not actual.numel():
        return 0.0
    wide = torch.complex128 if actual.dtype.is_complex else torch.float64
    got, wanted = actual.to(wide), expected.to(wide)
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    if is_integral(actual.dtype):
        same = actual == expected  # float64 does not hold all of them
    if same.all():
        return 0.0
    off = torch.where(same, 0.0, (got - wanted).abs()).max().item()
    scale = torch.where(wanted.isfinite(), wanted.abs(), 0.0).max().item()
    relative = max(off / scale, sys.float_info.epsilon) if scale else math.inf
    return relative if math.isfinite(relative) else math.inf


def find_mismatch(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
) -> str | None:
    """What is wrong with a candidate's outputs, and by how much; None if nothing."""
    for i, (got, wanted) in enumerate(zip(actual, expected)):
        allowed = allowed_difference(wanted.dtype)
        found = relative_difference(got, wanted)
        if found > allowed:
            return (
                f"output {i} differs from the op's by {found:.2g} of its largest value, "
                f"allowed is {allowed:.2g}"
            )
    return None
