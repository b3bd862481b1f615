"""Whether two ways through memory, each of which is loops with a stride, come to one place."""

from __future__ import annotations

import math
from typing import Any, TYPE_CHECKING

import sympy


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    # A stride, in elements, and how often it lies between two places, at least and at most.
    Step = tuple[int, float, float]

# In how many rows two places are looked for, before they are said to meet.
_MOST_ROWS = 8


def can_meet(
    distance: Any, loops: Iterable[Sequence[Any]], other_loops: Iterable[Sequence[Any]]
) -> bool:
    """
    Whether two ways through one memory may have a place in common.

    Args:
        distance: how many elements the other way starts behind the one. As strides and sizes
            a sympy expression, or an integer.
        loops: of each the stride, in elements, and the size.
        other_loops: the same, of the other way.

    Returns:
        False if no place is on both ways, whatever symbols stand for.
    """
    known, unknown = sympy.sympify(distance).expand().as_coeff_Add()
    steps = [_step(stride, size) for stride, size in loops]
    back = (_step(stride, size) for stride, size in other_loops)
    steps += [(stride, -most, -least) for stride, least, most in back]
    steps.append(_step(unknown, math.inf))
    if not known.is_Integer or any(stride < 0 for stride, *_ in steps):
        return True
    return _can_reach(int(known), _in_order(steps))


def _step(stride: Any, size: Any) -> Step:
    """Of a stride that is not known, one that it is a multiple of, any times."""
    stride, size = sympy.sympify(stride), sympy.sympify(size)
    if stride.is_Integer:
        return int(stride), 0, int(size) - 1 if size.is_Integer else math.inf
    part, _ = stride.primitive()
    return int(part) if part.is_Integer else 1, -math.inf, math.inf


def _in_order(steps: Sequence[Step]) -> list[Step]:
    """The largest stride first, each once; all that may be there any times as one."""
    endless = math.gcd(*(stride for stride, *n in steps if math.inf in map(abs, n)))
    rest: dict[int, Step] = {}
    for stride, least, most in sorted(steps):
        if endless and stride >= endless:
            endless = math.gcd(endless, stride)
        elif stride:
            _, low, high = rest.get(stride, (stride, 0, 0))
            rest[stride] = (stride, low + least, high + most)
    first: list[Step] = [(endless, -math.inf, math.inf)] * bool(endless)
    return first + [*rest.values()][::-1]


def _can_reach(distance: int, steps: Sequence[Step]) -> bool:
    """Whether steps, from the largest stride on, may add up to a distance."""
    if not steps:
        return distance == 0
    (stride, least, most), *rest = steps
    low, high = (sum(s * n[i] for s, *n in rest) for i in (0, 1))
    first = max(least, -((high - distance) // stride))
    last = min(most, (distance - low) // stride)
    if last - first >= _MOST_ROWS:
        return True
    times = range(int(first), int(last) + 1)
    return any(_can_reach(distance - stride * n, rest) for n in times)
