"""
What holds of sizes that are rounded, divided, sums or products, whatever they are.

An implementation that pads to whole blocks asks whether ``s <= 16 * ((s + 15) // 16)``, or
whether ``s + -s % 16`` is a multiple of 16; one that works on halves whether ``s // 2 <= s``.
A shape environment adds a guard for either, since it bounds a quotient or a remainder apart
from what is divided. Where it knows that ``s`` is a multiple of 16, it still adds one for whether
``4 * s`` is one of 64, as rows that are viewed in blocks of 16 ask.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TYPE_CHECKING, TypeAlias

import sympy
from torch.fx.experimental.symbolic_shapes import (
    _maybe_evaluate_static_worker,
    _SymbolInfo,
)
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
from torch.utils._sympy.value_ranges import bound_sympy, ValueRanges


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    _Sizes: TypeAlias = "ShapeEnv | _Blocks"


_ROUNDED = (FloorDiv, Mod, PythonMod, CeilToInt, BitwiseFn_bitwise_and, Min)
_PARTS = (FloorDiv, Min)
# Stands for a sum or a product whose values are known.
WHOLE = sympy.Symbol("whole", integer=True)


def holds(condition: sympy.Basic, shape_env: ShapeEnv) -> bool | None:
    """
    Whether a condition on sizes is true, or false, for all values that they can have; None
    if that cannot be told, or has nothing to do with rounding or multiples.
    """
    condition, sizes = _in_blocks(condition, shape_env)
    if sizes is shape_env and not condition.has(*_ROUNDED):
        return None
    known = _holds_of_sums(condition, sizes)
    return _holds_of_any_parts(condition, sizes) if known is None else known


def _holds_of_sums(condition: sympy.Basic, shape_env: _Sizes) -> bool | None:
    """
    Of a comparison of sums of sizes, their quotients and remainders by constants. Of products
    of such sums what follows from the signs, of several conditions what follows from writing
    remainders as quotients.
    """
    condition = with_quotients(condition)
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


def holds_of_compound(
    condition: sympy.Basic, size: sympy.Expr, values: ValueRanges, shape_env: ShapeEnv
) -> bool | None:
    """
    The same where a sum or a product has some values only: of ``s0 - s1`` none follow from
    those of ``s0`` and ``s1``, so that it takes the place of one of them in the condition.
    """
    if condition.free_symbols.isdisjoint(size.free_symbols):
        return None
    parts = _Parts(shape_env)
    on_whole = _putting_whole_for(size, parts)(condition)
    parts.ranges[WHOLE] = values
    return parts.decide(on_whole)


def told_of_compound(
    conditions: Iterable[sympy.Basic], size: sympy.Expr, shape_env: ShapeEnv
) -> tuple[sympy.Basic, ...]:
    """Those of conditions that are on a sum or product alone, which is ``WHOLE`` in them."""
    parts = _Parts(shape_env)
    on_whole = _putting_whole_for(size, parts)
    told = (_on_one_side(on_whole(condition)) for condition in conditions)
    return tuple(condition for condition in told if condition.free_symbols == {WHOLE})


def _on_one_side(condition: sympy.Basic) -> sympy.Basic:
    """Each comparison in it with nothing, so that no terms are there that cancel out."""
    if isinstance(condition, sympy.core.relational.Relational):
        return condition.func(sympy.expand(condition.lhs - condition.rhs), 0)
    if isinstance(condition, (sympy.And, sympy.Or, sympy.Not)):
        return condition.func(*map(_on_one_side, condition.args))
    return condition


def _putting_whole_for(
    size: sympy.Expr, parts: _Parts
) -> Callable[[sympy.Basic], sympy.Basic]:
    """What puts ``WHOLE`` for a sum or a product of symbols into conditions on that."""
    size = parts.general(size)
    instead = _in_place_of_term(size) if size.is_Add else {}

    def on_whole(condition: sympy.Basic) -> sympy.Basic:
        condition = parts.general(condition)
        return condition.xreplace(instead) if instead else condition.subs(size, WHOLE)

    return on_whole


def _in_place_of_term(size: sympy.Expr) -> dict[sympy.Symbol, sympy.Expr]:
    """
    What one of a sum's symbols is in terms of the others and of the sum, which is ``WHOLE``;
    empty if it has none that is its own multiple by 1 or -1.
    """
    for symbol in sorted(size.free_symbols, key=str):
        factor = size.coeff(symbol)
        rest = size - factor * symbol
        if factor in (1, -1) and symbol not in rest.free_symbols:
            return {symbol: factor * (WHOLE - rest)}
    return {}


def _holds_of_any_parts(condition: sympy.Basic, shape_env: _Sizes) -> bool | None:
    """
    Whether it holds whatever quotients and minima are within their bounds, as
    ``Max(1, s // 2) < Max(1, s // 2) ** 2`` does if ``s`` is at least 4.
    """
    parts = _Parts(shape_env)
    return parts.decide(parts.general(condition))


class _Parts:
    """
    Quotients and minima in conditions, each of which a symbol stands for.

    Args:
        shape_env: knows what the symbols of sizes can be.
    """

    def __init__(self, shape_env: _Sizes) -> None:
        self.ranges = {**shape_env.var_to_range}
        self._shape_env = shape_env
        self._symbols: dict[sympy.Basic, sympy.Symbol] = {}

    def general(self, expr: Any) -> Any:
        """The expression with symbols for its parts."""
        return self._with_symbols(self._shape_env.replace(expr))

    def _with_symbols(self, expr: Any) -> Any:
        if isinstance(expr, _PARTS):
            return self._symbol_of(expr)
        return expr.func(*map(self._with_symbols, expr.args)) if expr.args else expr

    def _symbol_of(self, part: sympy.Expr) -> sympy.Symbol:
        if part not in self._symbols:
            symbol = sympy.Symbol(f"part{len(self._symbols)}", integer=True)
            self._symbols[part] = symbol
            self.ranges[symbol] = bound_sympy(part, self._shape_env.var_to_range)
        return self._symbols[part]

    def decide(self, condition: Any) -> bool | None:
        """Whether a condition follows from what its symbols can be."""
        symbols = sorted(condition.free_symbols, key=str)
        if not all(symbol in self.ranges for symbol in symbols):
            return None
        infos = tuple(_SymbolInfo(s, self.ranges[s], None, False) for s in symbols)
        known = _maybe_evaluate_static_worker(condition, infos, False, False)
        return bool(known) if known in (sympy.true, sympy.false) else None


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """What symbols can be that are left, in the place of a shape environment."""

    var_to_range: dict[sympy.Symbol, ValueRanges]

    def replace(self, expr: sympy.Basic) -> sympy.Basic:
        return expr


def _in_blocks(
    condition: sympy.Basic, shape_env: ShapeEnv
) -> tuple[sympy.Basic, _Sizes]:
    """
    A condition with ``16 * s`` for each ``s`` that guards say is a multiple of 16, and what
    its symbols can then be.
    """
    if not shape_env.divisible:
        return condition, shape_env
    condition = shape_env.replace(condition)
    divisors = _known_divisors(shape_env)
    ranges = {**shape_env.var_to_range}
    multiples = {}
    for symbol in divisors.keys() & condition.free_symbols & ranges.keys():
        values, by = ranges[symbol], divisors[symbol]
        first, last = -_quotient(-values.lower, by), _quotient(values.upper, by)
        if first <= last:
            ranges[symbol] = ValueRanges(first, last)
            multiples[symbol] = by * symbol
    return condition.xreplace(multiples), _Blocks(ranges) if multiples else shape_env


def divisor_of(size: sympy.Expr, shape_env: ShapeEnv) -> int:
    """What guards say that a symbolic size is a multiple of."""
    return _known_divisors(shape_env).get(size, 1)


def _quotient(value: sympy.Expr, by: int) -> sympy.Expr:
    """Rounded down; what is infinite stays so."""
    return value // by if value.is_Integer else value


def _known_divisors(shape_env: ShapeEnv) -> dict[sympy.Symbol, int]:
    """What sizes are multiples of, as guards on remainders say."""
    known: dict[sympy.Symbol, int] = {}
    for remainder in shape_env.divisible:
        if not isinstance(remainder, Mod):
            continue
        base, divisor = (shape_env.replace(arg) for arg in remainder.args)
        factor, symbol = base.as_coeff_Mul()
        if symbol.is_Symbol and factor.is_Integer and divisor.is_Integer:
            by = divisor // sympy.gcd(divisor, factor)
            known[symbol] = int(sympy.lcm(known.get(symbol, 1), by))
    return known


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


def _least(shape_env: _Sizes, *sizes: sympy.Expr) -> sympy.Expr:
    """The one of some sizes that is known to be no larger than the others, or their minimum."""

    def is_least(size: sympy.Expr) -> bool:
        above = (_bounds_with_minima(other - size, shape_env) for other in sizes)
        return all(bounds is not None and bounds[0] > -1 for bounds in above)

    return next(filter(is_least, sizes), Min(*sizes))


def _without_own_remainders(expr: sympy.Expr, shape_env: _Sizes) -> sympy.Expr:
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


def _bounds_with_minima(
    expr: sympy.Expr, shape_env: _Sizes
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
        ranges = _Blocks({**shape_env.var_to_range, part: values})
        return _bounds_with_minima(expr.xreplace({minimum: part}), ranges)
    each = [
        _bounds_with_minima(expr.xreplace({minimum: arg}), shape_env)
        or (-sympy.oo, sympy.oo)
        for arg in minimum.args
    ]
    lows, highs = zip(*each)
    return (min(lows), min(highs)) if factor > 0 else (max(lows), max(highs))


def _bounds_of_product(
    expr: sympy.Expr, remainders: dict[sympy.Symbol, int], shape_env: _Sizes
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
    expr: sympy.Expr, remainders: dict[sympy.Symbol, int], shape_env: _Sizes
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
