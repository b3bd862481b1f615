"""
What holds of sizes that are rounded, divided, sums or products, whatever they are.

An implementation that pads to whole blocks asks whether ``s <= 16 * ((s + 15) // 16)``, or
whether ``s + -s % 16`` is a multiple of 16; one that works on halves whether ``s // 2 <= s``.
A shape environment adds a guard for either, since it bounds a quotient or a remainder apart
from what is divided.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import sympy
from torch.utils._sympy.functions import (
    BitwiseFn_bitwise_and,
    CeilToInt,
    CleanDiv,
    FloorDiv,
    IntTrueDiv,
    Min,
    Mod,
    PythonMod,
)
from torch.utils._sympy.value_ranges import bound_sympy

from .compound_sizes import Parts
from .size_multiples import Blocks, in_blocks


if TYPE_CHECKING:
    from .size_multiples import Sizes


_ROUNDED = (FloorDiv, Mod, PythonMod, CeilToInt, BitwiseFn_bitwise_and, Min)


def holds(condition: sympy.Basic, shape_env: Sizes) -> bool | None:
    """
    Whether a condition on sizes is true, or false, for all values that they can have; None
    if that cannot be told, or has nothing to do with rounding or multiples.
    """
    condition, sizes = in_blocks(condition, shape_env)
    if sizes is shape_env and not condition.has(*_ROUNDED):
        return None
    known = _holds_of_sums(condition, sizes)
    return _holds_of_any_parts(condition, sizes) if known is None else known


def known_quotient(expr: sympy.Basic, shape_env: Sizes) -> sympy.Integer | None:
    """
    What a size divided by another one is, rounded down, whatever they are, such as how many
    parts ``x.chunk(2)`` has; None if that cannot be told.
    """
    expr, ranges = shape_env.replace(expr), shape_env.var_to_range
    if not isinstance(expr, FloorDiv) or not expr.free_symbols <= ranges.keys():
        return None
    base, divisor = expr.args
    if not (divisor.free_symbols and _holds_of_sums(divisor > 0, shape_env)):
        return None
    value = expr.xreplace({s: ranges[s].lower for s in expr.free_symbols})
    if not value.is_Integer:
        return None
    rest = sympy.expand(base - value * divisor)
    is_so = (_holds_of_sums(c, shape_env) for c in (rest >= 0, rest < divisor))
    return value if all(is_so) else None


def _holds_of_sums(condition: sympy.Basic, shape_env: Sizes) -> bool | None:
    """
    Of a comparison of sums of sizes, their quotients and remainders by constants. Of products
    of such sums what follows from the signs, of several conditions what follows from writing
    remainders as quotients.
    """
    condition = with_quotients(condition)
    condition = condition.replace(FloorDiv, functools.partial(_divided, shape_env))
    condition = condition.replace(Min, functools.partial(_least, shape_env))
    if condition in (sympy.true, sympy.false):
        return bool(condition)
    if not isinstance(condition, sympy.core.relational.Relational):
        return None
    difference = shape_env.replace(condition.lhs - condition.rhs)
    difference = _without_own_remainders(difference, shape_env)
    bounds = _bounds_with_minima(difference, shape_env)
    if bounds is None or not difference.is_integer:
        return None
    low, high = bounds
    return _decided(type(condition), sympy.ceiling(low), sympy.floor(high))


def _holds_of_any_parts(condition: sympy.Basic, shape_env: Sizes) -> bool | None:
    """
    Whether it holds whatever quotients and minima are within their bounds, as
    ``Max(1, s // 2) < Max(1, s // 2) ** 2`` does if ``s`` is at least 4.
    """
    parts = Parts(shape_env)
    return parts.decide(parts.general(condition))


def with_quotients(condition: sympy.Basic) -> sympy.Basic:
    """With quotients rounded down in place of remainders, and of what is rounded up."""
    return condition.replace(_is_rounded, _by_quotient)


def _is_rounded(expr: sympy.Basic) -> bool:
    """
    Whether it is a remainder by a positive constant, a quotient by one rounded up, or a number
    without its last bits, or these alone.
    """
    if isinstance(expr, BitwiseFn_bitwise_and):
        mask = expr.args[1]
        return bool(mask.is_Integer and int(max(-mask, mask + 1)).bit_count() == 1)
    if isinstance(expr, CeilToInt) and isinstance(expr.args[0], IntTrueDiv):
        divisor = expr.args[0].args[1]
    elif isinstance(expr, (Mod, PythonMod)):
        divisor = expr.args[1]
    else:
        return False
    return bool(divisor.is_Integer and divisor > 0)


def _by_quotient(expr: sympy.Expr) -> sympy.Expr:
    """
    ``x - k * (x // k)`` for ``x % k`` and ``x & (k - 1)``, ``k * (x // k)`` for ``x & -k``,
    ``-(-x // k)`` for ``ceil(x / k)``.
    """
    if isinstance(expr, BitwiseFn_bitwise_and):
        base, mask = expr.args
        if mask < 0:
            return -mask * FloorDiv(base, -mask)
        return base - (mask + 1) * FloorDiv(base, mask + 1)
    if isinstance(expr, CeilToInt):
        base, divisor = expr.args[0].args
        return -FloorDiv(-base, divisor)
    base, divisor = expr.args
    return base - divisor * FloorDiv(base, divisor)


def _divided(shape_env: Sizes, base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
    """A quotient, as the number that it is known to be."""
    quotient = FloorDiv(base, divisor)
    known = known_quotient(quotient, shape_env)
    return quotient if known is None else known


def _least(shape_env: Sizes, *sizes: sympy.Expr) -> sympy.Expr:
    """The one of some sizes that is known to be no larger than the others, or their minimum."""

    def is_least(size: sympy.Expr) -> bool:
        above = (_bounds_with_minima(other - size, shape_env) for other in sizes)
        return all(bounds is not None and bounds[0] > -1 for bounds in above)

    return next(filter(is_least, sizes), Min(*sizes))


def _without_own_remainders(expr: sympy.Expr, shape_env: Sizes) -> sympy.Expr:
    """
    With ``x`` in place of each remainder of a positive ``x`` by twice ``x`` or more, and
    nothing in place of one by what ``x`` is a multiple of.
    """

    def remainder(kind: type, base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        if sympy.cancel(base / divisor).is_Integer:
            return sympy.Integer(0)
        factor = divisor / base
        if factor.is_Integer and factor > 1:
            bounds = _bounds_of_sum(*_without_quotients(base), shape_env)
            if bounds is not None and bounds[0] > 0:
                return base
        return kind(base, divisor)

    for kind in (Mod, PythonMod):
        expr = expr.replace(kind, functools.partial(remainder, kind))
    return expr


def _without_quotients(
    expr: sympy.Expr,
) -> tuple[sympy.Expr, dict[sympy.Symbol, int]]:
    """
    With ``(x - r) / k`` in place of each ``x // k``, where ``r`` is a symbol of the remainder:
    of ``-x // k`` and ``(x + k - 1) // k``, or ``x // k`` and ``(x + k) // k``, it is the same.

    Returns:
        The expression; for each of these symbols its largest value.
    """
    remainders: dict[sympy.Symbol, int] = {}
    known: dict[sympy.Expr, sympy.Expr] = {}

    def divided(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        if not (divisor.is_Integer and divisor > 0):
            return FloorDiv(base, divisor)
        base = sympy.expand(base)
        symbols = sorted(base.free_symbols, key=sympy.default_sort_key)
        if symbols and base.coeff(symbols[0]).is_negative:
            return -divided(divisor - 1 - base, divisor)
        whole = base.as_coeff_Add()[0] // divisor
        if whole:
            return whole + divided(base - whole * divisor, divisor)
        quotient = FloorDiv(base, divisor)
        if quotient not in known:
            remainder = sympy.Dummy("remainder", integer=True)
            remainders[remainder] = int(divisor) - 1
            known[quotient] = (base - remainder) / divisor
        return known[quotient]

    # Those inside of others come first.
    expr = expr.replace(CleanDiv, lambda base, divisor: base / divisor)
    return sympy.expand(expr.replace(FloorDiv, divided)), remainders


def _bounds_with_minima(
    expr: sympy.Expr, shape_env: Sizes
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """
    The least and the most that an expression can be. A minimum in it is one of its arguments,
    and at most each: what is left of a slice, ``s - Min(k, s)``, is never negative. One that is
    divided, too, may be anything within its bounds.
    """
    minima = sorted(expr.atoms(Min), key=lambda m: (-m.count_ops(), str(m)))
    if not minima:
        return _bounds_of_product(*_without_quotients(expr), shape_env)
    expr, minimum = sympy.expand(expr), minima[0]
    factor = expr.coeff(minimum)
    if not factor.is_Integer or (expr - factor * minimum).has(minimum):
        part = sympy.Dummy("minimum", integer=True)
        values = bound_sympy(minimum, shape_env.var_to_range)
        ranges = Blocks({**shape_env.var_to_range, part: values})
        return _bounds_with_minima(expr.xreplace({minimum: part}), ranges)
    each = [
        _bounds_with_minima(expr.xreplace({minimum: arg}), shape_env)
        or (-sympy.oo, sympy.oo)
        for arg in minimum.args
    ]
    lows, highs = zip(*each)
    return (min(lows), min(highs)) if factor > 0 else (max(lows), max(highs))


def _bounds_of_product(
    expr: sympy.Expr, remainders: dict[sympy.Symbol, int], shape_env: Sizes
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """The least and the most that sums can be that are multiplied; None of others."""
    low = high = sympy.Integer(1)
    for factor in sympy.Mul.make_args(sympy.factor(expr)):
        bounds = _bounds_of_sum(sympy.expand(factor), remainders, shape_env)
        if bounds is None:
            return None
        ends = [_product(a, b) for a in (low, high) for b in bounds]
        low, high = min(ends), max(ends)
    return low, high


def _product(a: sympy.Expr, b: sympy.Expr) -> sympy.Expr:
    """Of ends of intervals: infinitely often nothing is nothing."""
    return sympy.Integer(0) if 0 in (a, b) else a * b


def _bounds_of_sum(
    expr: sympy.Expr, remainders: dict[sympy.Symbol, int], shape_env: Sizes
) -> tuple[sympy.Expr, sympy.Expr] | None:
    """The least and the most that a sum of multiples of symbols can be; None of others."""
    low = high = sympy.Integer(0)
    for term, factor in expr.as_coefficients_dict().items():
        if term == 1:
            least, most = sympy.Integer(1), sympy.Integer(1)
        elif term in remainders:
            least, most = sympy.Integer(0), sympy.Integer(remainders[term])
        elif term in shape_env.var_to_range:
            values = shape_env.var_to_range[term]
            least, most = (_number(value) for value in (values.lower, values.upper))
        else:
            return None
        ends = sorted((factor * least, factor * most))
        low, high = low + ends[0], high + ends[1]
    return low, high


def _number(value: sympy.Expr) -> sympy.Expr:
    return (
        sympy.Integer(int(value)) if value.is_Integer else sympy.oo * sympy.sign(value)
    )


def _decided(
    relation: type[sympy.Basic], low: sympy.Expr, high: sympy.Expr
) -> bool | None:
    """Of what is at least and at most so much, compared with zero."""
    zero, other = low == high == 0, bool(low > 0 or high < 0)
    always, never = {
        sympy.Le: (high <= 0, low > 0),
        sympy.Lt: (high < 0, low >= 0),
        sympy.Ge: (low >= 0, high < 0),
        sympy.Gt: (low > 0, high <= 0),
        sympy.Eq: (zero, other),
        sympy.Ne: (other, zero),
    }[relation]
    return bool(always) if always or never else None
