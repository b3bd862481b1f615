"""Whether a candidate computes what the op does: an optional check before it may win."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

import torch

from ..graphs.node_kinds import is_integral


if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..times import Failure

    # What is wrong with a candidate's results, None if nothing; or why they were not compared.
    Comparison = str | Failure | None

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
# Of a tensor's elements.
_FEW = 0.02


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
    return _relative_differences(actual, expected).max().item()


def _relative_differences(actual: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Of each element of tensors that have some, as ``relative_difference`` has them."""
    got, wanted = _wide(actual), _wide(expected)
    same = (got == wanted) | (got.isnan() & wanted.isnan())
    if is_integral(actual.dtype):
        same = actual == expected  # float64 does not hold all of them
    scale = torch.where(wanted.isfinite(), wanted.abs(), 0.0).max()
    relative = ((got - wanted).abs() / scale).clamp(min=sys.float_info.epsilon)
    return torch.where(same, 0.0, relative.nan_to_num(nan=math.inf, posinf=math.inf))


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.dtype.is_complex else torch.float64)


def rounded_otherwise(tensor: torch.Tensor) -> torch.Tensor:
    """
    Values that differ from a concrete tensor's by two of its type's last places, up and
    down in turns: what another order of the same sums might make. Integers as they are.
    """
    if is_integral(tensor.dtype):
        return tensor
    step = 2 * torch.finfo(tensor.dtype).eps
    turns = torch.arange(tensor.numel(), device=tensor.device) % 2
    factors = 1 + step * (2 * turns - 1).reshape(tensor.shape).double()
    return (_wide(tensor) * factors).to(tensor.dtype)


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


def differ_widely(
    actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], allowed: float
) -> bool:
    """
    Whether more than a few elements of an output differ, by more than allowed: rounding
    errors can make such differences, too, where something asks for a sign or a next integer,
    but in few places.

    Args:
        actual, expected: concrete tensors, pair by pair of one shape and dtype.
        allowed: relative to the largest value; no less than the dtype's own in any case.
    """
    for got, wanted in zip(actual, expected):
        if not got.numel():
            continue
        limit = max(allowed, allowed_difference(wanted.dtype))
        beyond = _relative_differences(got, wanted) > limit
        if beyond.sum().item() > 1 + _FEW * got.numel():
            return True
    return False
