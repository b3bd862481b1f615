"""
What holds of sizes that are rounded or divided, whatever they are.

An implementation that pads to whole blocks asks whether ``s <= 16 * ((s + 15) // 16)``, or
whether ``s + -s % 16`` is a multiple of 16; one that works on halves whether ``s // 2 <= s``.
A shape environment adds a guard for either, since it bounds a quotient or a remainder apart
from what is divided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy
from torch.utils._sympy.functions import (
    CeilToInt,
    CleanDiv,
    FloorDiv,
    IntTrueDiv,
    Mod,
    PythonMod,
)


if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv


_ROUNDED = (FloorDiv, Mod, PythonMod, CeilToInt)


def holds(condition: sympy.Basic, shape_env: ShapeEnv) -> bool | None:
    """
    Whether a comparison of sums of sizes, their quotients and remainders by constants is
    true, or false, for all values that the sizes can have; None if that cannot be told. Of
    products of such sums what follows from the signs, of several conditions what follows
    from writing remainders as quotients.
    """
    if not condition.has(*_ROUNDED):
        return None
    condition = condition.replace(_is_rounded, _by_quotient)
    if condition in (sympy.true, sympy.false):
        return bool(condition)
    if not isinstance(condition, sympy.core.relational.Relational):
        return None
    difference = shape_env.replace(condition.lhs - condition.rhs)
    difference = _without_own_remainders(difference, shape_env)
    bounds = _bounds_of_product(*_without_quotients(difference), shape_env)
    if bounds is None or not difference.is_integer:
        return None
    low, high = bounds
    return _decided(type(condition), sympy.ceiling(low), sympy.floor(high))


def _is_rounded(expr: sympy.Basic) -> bool:
    """Whether it is a remainder by a positive constant, or a quotient by one rounded up."""
    if isinstance(expr, CeilToInt) and isinstance(expr.args[0], IntTrueDiv):
        divisor = expr.args[0].args[1]
    elif isinstance(expr, (Mod, PythonMod)):
        divisor = expr.args[1]
    else:
        return False
    return bool(divisor.is_Integer and divisor > 0)


def _by_quotient(expr: sympy.Expr) -> sympy.Expr:
    """``x - k * (x // k)`` for ``x % k``, ``-(-x // k)`` for ``ceil(x / k)``."""
    if isinstance(expr, CeilToInt):
        base, divisor = expr.args[0].args
        return -FloorDiv(-base, divisor)
    base, divisor = expr.args
    return base - divisor * FloorDiv(base, divisor)


def _without_own_remainders(expr: sympy.Expr, shape_env: ShapeEnv) -> sympy.Expr:
    """
    With ``x`` in place of each remainder of a positive ``x`` by twice ``x`` or more, and
    nothing in place of one by what ``x`` is a multiple of.
    """

    def remainder(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        if sympy.cancel(base / divisor).is_Integer:
            return sympy.Integer(0)
        factor = divisor / base
        if factor.is_Integer and factor > 1:
            bounds = _bounds_of_sum(*_without_quotients(base), shape_env)
            if bounds is not None and bounds[0] > 0:
                return base
        return Mod(base, divisor)

    return expr.replace(Mod, remainder)


def _without_quotients(
    expr: sympy.Expr,
) -> tuple[sympy.Expr, dict[sympy.Symbol, int]]:
    """
    With ``(x - r) / k`` in place of each ``x // k``, where ``r`` is a symbol of the remainder.

    Returns:
        The expression; for each of these symbols its largest value.
    """
    remainders: dict[sympy.Symbol, int] = {}
    known: dict[sympy.Expr, sympy.Expr] = {}

    def divided(base: sympy.Expr, divisor: sympy.Expr) -> sympy.Expr:
        quotient = FloorDiv(base, divisor)
        if not (divisor.is_Integer and divisor > 0):
            return quotient
        if quotient not in known:
            remainder = sympy.Dummy("remainder", integer=True)
            remainders[remainder] = int(divisor) - 1
            known[quotient] = (base - remainder) / divisor
        return known[quotient]

    # Those inside of others come first.
    expr = expr.replace(CleanDiv, lambda base, divisor: base / divisor)
    return sympy.expand(expr.replace(FloorDiv, divided)), remainders


def _bounds_of_product(
    expr: sympy.Expr, remainders: dict[sympy.Symbol, int], shape_env: ShapeEnv
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
    expr: sympy.Expr, remainders: dict[sympy.Symbol, int], shape_env: ShapeEnv
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
