"""
Benchmark inputs that agree with each other, for one size of the dispatch dimension.

The size's own expression is solved for one symbol; every size and stride of every input
then follows from its own expression. Sizes are symbolic where they are sympy expressions
and concrete where they are ints.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
from typing import Any, TYPE_CHECKING, TypeVar

import sympy
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._python_dispatch import _disable_current_modes

import torch

from ..utils import convert_shape_to_inductor
from ..virtualized import V
from .guards import replaced
from .limits import is_out_of_memory
from .ranges import DimRange


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from .call_site import CallSite
    from .registration import InputGenFns

    Values = Mapping[sympy.Symbol, int]

T = TypeVar("T")

# A guard such as 8 | s0 is met by one of this many neighbours of the size asked for.
_NEIGHBOURS_TRIED = 64
_LARGEST_SYMBOL = 2**40
# Where a condition wants another size to be larger, so many times as large as the one that is
# asked for, at the nearest of these neighbours.
_FACTORS_RAISED = (1, 4)
_NEIGHBOURS_CHANGED = 16
_SMALLEST_INDEX_LIMIT = 2**20
# Benchmark tensors may take this part of what is free; temporaries need some.
_USABLE_MEMORY = 0.7
_MEMORY_INFO = pathlib.Path("/proc/meminfo")  # Linux has it


@dataclasses.dataclass(frozen=True)
class SizePoint:
    """
    A size at which to measure.

    Args:
        size: concrete value of the dispatch dimension; None where no size is dispatched
            on.
        values: a concrete value for each symbol of the call site.
        timed: whether candidates are timed there; else they are called, to see if they
            can be.
    """

    size: int | None
    values: Values
    timed: bool = True


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """
    A benchmark tensor to be made, maybe in another process; sizes are concrete.

    Args:
        places: of integers, how many numbers from 0 on they run through in turns.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    places: int = 1

    @property
    def storage_length(self) -> int:
        """In elements."""
        if 0 in self.size:
            return 0
        return 1 + sum((s - 1) * step for s, step in zip(self.size, self.stride))

    def make(self) -> torch.Tensor:
        """Random if floating, else zero, which is valid where it is an index, or in turns."""
        if self.places > 1:
            numbers = torch.arange(self.storage_length, device=self.device)
            flat = (numbers % self.places).to(self.dtype)
        else:
            flat = _fill(self.storage_length, self.dtype, self.device)
        return flat.as_strided(self.size, self.stride)

    def make_zero(self) -> torch.Tensor:
        """For input generators."""
        return torch.empty_strided(
            self.size, self.stride, dtype=self.dtype, device=self.device
        ).zero_()


def size_bounds(size: sympy.Expr) -> DimRange:
    """
    The values that the shape environment knows a symbolic size to have.

    Where 32 bits end to be enough for an index is no bound: that is no size that anybody
    has, and what is compiled behind such a guard, as a backward pass is, would be measured
    there.
    """
    bounds = V.graph.sizevars.shape_env.bound_sympy(size)
    upper = _finite(bounds.upper, math.inf)
    if upper < math.inf and any(map(_is_bounded_by_index_width, size.free_symbols)):
        upper = math.inf
    return DimRange(max(_finite(bounds.lower, 0), 0), upper + 1)


def _is_bounded_by_index_width(symbol: sympy.Symbol) -> bool:
    """Whether only a guard on the width of indices forbids the next larger value."""
    shape_env = V.graph.sizevars.shape_env
    last = _finite(shape_env.bound_sympy(symbol).upper, None)
    if last is None:
        return False
    broken = [
        guard.expr
        for guard in shape_env.guards
        if symbol in guard.expr.free_symbols
        and not _holds_at(guard.expr, symbol, last + 1)
    ]
    return bool(broken) and all(map(is_about_index_width, broken))


def _holds_at(condition: sympy.Basic, symbol: sympy.Symbol, value: int) -> bool:
    """With the other symbols at their hints."""
    hints = {other: hint(other) for other in condition.free_symbols}
    return may_hold(condition, {**hints, symbol: value})


def _finite(bound: Any, otherwise: Any) -> Any:
    # The largest index stands for "unknown" in shape environments, as infinities do.
    known = sympy.sympify(bound).is_Integer and abs(int(bound)) < 2**62
    return int(bound) if known else otherwise


def hint_point(site: CallSite, size: sympy.Expr | None = None) -> SizePoint:
    """The size that the model was compiled with; of sizes that are data, one that may be."""
    values = _as_asserted(site, {symbol: hint(symbol) for symbol in site.symbols()})
    return SizePoint(None if size is None else concrete(size, values), values)


def hint(symbol: sympy.Symbol) -> int:
    """The size that the model is compiled with."""
    return int(V.graph.sizevars.optimization_hint(symbol))


def concrete(expr: Any, values: Values) -> int:
    """The value of a symbolic size."""
    known = replaced(expr).xreplace(
        {symbol: sympy.Integer(value) for symbol, value in values.items()}
    )
    rest = {symbol: hint(symbol) for symbol in known.free_symbols}
    return int(known.subs(rest))


def _as_asserted(site: CallSite, values: Values) -> Values:
    """
    With sizes that are data at what is asserted of them and of those with hints, if there
    are such values near enough: solutions of equations, or hints halved or doubled.
    """
    data = [symbol for symbol in values if free_unbacked_symbols(symbol)]
    if not data:
        return values
    not_negative = [sympy.Ge(expr, 0) for expr in site.exprs()]
    conditions = [*_conditions(), *not_negative]
    for halvings in range(max(values[s] for s in data).bit_length() + 1):
        halved = {symbol: values[symbol] >> halvings for symbol in data}
        found = _met(conditions, {**values, **halved}, data)
        if found is not None:
            return found
    return values


def _met(
    conditions: Sequence[sympy.Basic], values: Values, changing: Sequence[sympy.Symbol]
) -> Values | None:
    """Values that meet conditions, with some symbols changed one by one; None if not found."""
    met = {**values}
    settled = values.keys() - {*changing}
    for symbol in changing:
        settled |= {symbol}
        mine = [
            condition
            for condition in conditions
            if symbol in condition.free_symbols
            and condition.free_symbols & values.keys() <= settled
        ]
        for value in _solutions_or_doubled(mine, symbol, met):
            met[symbol] = value
            if _all_hold(mine, met):
                break
        else:
            return None
    return met


def _solutions_or_doubled(
    conditions: Sequence[sympy.Basic], symbol: sympy.Symbol, values: Values
) -> list[int]:
    """Within its bounds: solutions of equations, what is nearest to its value, that doubled."""
    equations = [c for c in conditions if isinstance(c, sympy.Eq)]
    solutions = [_solution(equation, symbol, values) for equation in equations]
    bounds = size_bounds(symbol)
    nearest = int(min(max(values[symbol], bounds.start), bounds.last))
    doubled = [nearest << n for n in range(_LARGEST_SYMBOL.bit_length())]
    return [v for v in (*solutions, *doubled) if v is not None and v in bounds]


def _conditions() -> list[sympy.Basic]:
    """
    What sizes have to meet, in the symbols that are left: guards, and what is asserted of
    sizes that are data.
    """
    shape_env = V.graph.sizevars.shape_env
    asserted = itertools.chain(*shape_env.deferred_runtime_asserts.values())
    return [replaced(known.expr) for known in (*shape_env.guards, *asserted)]


def values_of(symbols: Iterable[sympy.Symbol], values: Values) -> list[int]:
    """Of symbols in order; also of those that have got a value of their own since."""
    return [concrete(symbol, values) for symbol in symbols]


def point_for_size(
    site: CallSite, size: sympy.Expr, wanted: int, within: DimRange
) -> SizePoint | None:
    """
    Values for the call site's symbols that give the dispatch dimension a size.

    Args:
        size: the dispatch dimension's expression, such as ``2*s0 + 5``.
        wanted: where that size cannot occur, a size nearby in ``within`` will do.

    Returns:
        None if no value of one symbol alone gives a size in ``within``.
    """
    hints = hint_point(site).values
    symbols = sorted(size.free_symbols, key=lambda symbol: symbol.name)
    if not symbols:
        point = hint_point(site, size)
        return point if point.size in within else None
    points = [
        point
        for symbol in symbols
        if (point := _point_by_symbol(symbol, size, wanted, within, hints))
    ]
    return min(points, key=lambda p: abs((p.size or 0) - wanted), default=None)


def measure_within(
    site: CallSite,
    size: sympy.Expr | None,
    measure: Callable[[SizePoint], T],
) -> Callable[[DimRange, int], tuple[int, T] | None]:
    """
    What measures at one of some sizes, near a given one.

    Args:
        size: see ``point_for_size``.

    Returns:
        A function that returns the size and what was measured; None if no symbol's value
        gives such a size. Not to be called where no size is dispatched on.
    """

    def measure_near(within: DimRange, near: int) -> tuple[int, T] | None:
        assert size is not None
        point = point_for_size(site, size, near, within)
        if point is None or point.size is None:
            return None
        return point.size, measure(point)

    return measure_near


def _point_by_symbol(
    symbol: sympy.Symbol,
    size: sympy.Expr,
    wanted: int,
    within: DimRange,
    hints: Values,
) -> SizePoint | None:
    """
    The nearest size that one symbol can give while the others are at their hints, or what
    conditions on both want them to be: as large as two halves of one, or no smaller, as a
    cache is than what is written to it.
    """
    conditions = _conditions()
    refused: list[Values] = []
    for value in _values_near(symbol, size, wanted, hints):
        values = {**hints, symbol: value}
        if (got := concrete(size, values)) not in within:
            continue
        if _all_hold(conditions, values):
            return SizePoint(got, values)
        if len(refused) < _NEIGHBOURS_CHANGED:
            refused.append(values)
            values = _solved(conditions, values, symbol)
            got = concrete(size, values)
            if got in within and _all_hold(conditions, values):
                return SizePoint(got, values)
    for factor in _FACTORS_RAISED:
        for values in refused:
            raised = _raised(conditions, values, symbol, factor)
            got = concrete(size, raised)
            if got in within and _all_hold(conditions, raised):
                return SizePoint(got, raised)
    return None


def _solved(
    conditions: Sequence[sympy.Basic], values: Values, symbol: sympy.Symbol
) -> Values:
    """With other symbols at the least that makes equations with one hold, one by one."""
    solved, settled = {**values}, {symbol}
    for equation in conditions:
        if not isinstance(equation, sympy.Eq) or _may_hold(equation, solved):
            continue
        symbols = equation.free_symbols
        if symbols.isdisjoint(settled):
            continue
        for other in sorted(symbols & solved.keys() - settled, key=str):
            value = _solution(equation, other, solved)
            if value is not None:
                solved[other] = value
                settled.add(other)
                break
    return solved


def _solution(equation: sympy.Eq, symbol: sympy.Symbol, values: Values) -> int | None:
    """The least value of one symbol, by bisection; None if there is none to be found."""
    if not (equation.lhs.is_integer and equation.rhs.is_integer):
        return None
    known = {s: sympy.Integer(v) for s, v in values.items() if s != symbol}
    difference = (equation.lhs - equation.rhs).xreplace(known)
    if difference.free_symbols != {symbol}:
        return None
    bounds = size_bounds(symbol)
    low, high = bounds.start, int(min(bounds.last, _LARGEST_SYMBOL))

    def at(value: int) -> sympy.Expr:
        return difference.xreplace({symbol: sympy.Integer(value)})

    sign = -1 if at(low) > 0 else 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if sign * at(middle) >= 0 else (middle + 1, high)
    return low if at(low) == 0 else None


def _raised(
    conditions: Sequence[sympy.Basic],
    values: Values,
    symbol: sympy.Symbol,
    factor: int,
) -> Values:
    """
    With other symbols at least so many times as large as one, where conditions on it and
    them do not hold.
    """
    least = factor * values[symbol]
    others: set[Any] = set()
    for condition in conditions:
        symbols = condition.free_symbols
        if symbol in symbols and not _may_hold(condition, values):
            others |= symbols - {symbol}
    raised = {
        other: max(value, least)
        for other, value in values.items()
        if other in others and least in size_bounds(other)
    }
    return {**values, **raised}


def _values_near(
    symbol: sympy.Symbol, size: sympy.Expr, wanted: int, hints: Values
) -> Iterator[int]:
    """Values for a symbol by their distance from the one that gives ``wanted``."""
    bounds = size_bounds(symbol)
    middle = _smallest_reaching(symbol, size, wanted, hints, bounds)
    for distance in range(_NEIGHBOURS_TRIED):
        for value in {middle - distance, middle + distance}:
            if value in bounds:
                yield value


def _smallest_reaching(
    symbol: sympy.Symbol,
    size: sympy.Expr,
    wanted: int,
    hints: Values,
    bounds: DimRange,
) -> int:
    """By bisection: sizes that people dispatch on grow with their symbols."""
    low = bounds.start
    high = max(low, 1)
    last = min(bounds.last, _LARGEST_SYMBOL)

    def reaches(value: int) -> bool:
        return concrete(size, {**hints, symbol: value}) >= wanted

    while high < last and not reaches(high):
        low, high = high, int(min(2 * high, last))
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if reaches(middle) else (middle + 1, high)
    return low


def _all_hold(conditions: Iterable[sympy.Basic], values: Values) -> bool:
    """Whether values make none of ``_conditions`` false."""
    return all(_may_hold(condition, values) for condition in conditions)


def may_hold(condition: sympy.Basic, values: Values) -> bool:
    """False only if the values make a condition on sizes false."""
    return _may_hold(replaced(condition), values)


def _may_hold(condition: sympy.Basic, values: Values) -> bool:
    """See ``may_hold``, of one in the symbols that are left."""
    known = {symbol: sympy.Integer(value) for symbol, value in values.items()}
    return condition.xreplace(known) is not sympy.false


def is_about_index_width(condition: sympy.Basic) -> bool:
    """
    Whether a condition only says that 32 bits are enough to index a tensor.

    Inductor puts that guard on nearly every kernel of every model, the limit of 2**31, more
    or less by where a view starts, divided by what the sizes have in common.
    """
    numbers = condition.atoms(sympy.Integer)
    return any(number >= _SMALLEST_INDEX_LIMIT for number in numbers)


def make_inputs(
    site: CallSite, point: SizePoint, input_gen_fns: InputGenFns
) -> list[Any]:
    """
    Concrete arguments for the call site's inputs: tensors, and ints for SymInts.

    Floating tensors are random, all others zero, which is valid where they are indices; but
    what tells a region where to read tables or to write are as many places as there are.

    Raises:
        MemoryError: if they would take more than the memory at hand.
        ValueError: if an input generator returns a tensor of another shape, dtype or
            device.
    """
    described = describe_inputs(site, point, input_gen_fns)
    with _disable_current_modes(), torch.no_grad():
        return [x.make() if isinstance(x, TensorSpec) else x for x in described]


def describe_inputs(
    site: CallSite, point: SizePoint, input_gen_fns: InputGenFns
) -> list[Any]:
    """
    What ``make_inputs`` makes inputs of, with the same exceptions.

    Returns:
        One for each input: an int, a TensorSpec, or the tensor of an input generator.
    """
    check_memory(site, point.values)
    with _disable_current_modes(), torch.no_grad():
        return [
            _describe_input(site, i, point.values, input_gen_fns)
            for i in range(len(site.inputs))
        ]


def _describe_input(
    site: CallSite, index: int, values: Values, input_gen_fns: InputGenFns
) -> Any:
    node = site.inputs[index]
    if isinstance(node, sympy.Basic):
        return concrete(node, values)
    spec = _spec(node, values)
    name = site.parameter_of(index)
    if name is not None and name in input_gen_fns:
        shaped = spec.make_zero()
        is_written = index in site.written.values()
        try:
            made = input_gen_fns[name](shaped)
        except Exception as e:
            if is_out_of_memory(e):
                raise
            raise ValueError(
                f"input_gen_fns['{name}'] of {site.op} fails for a tensor of shape "
                f"{[*shaped.shape]}: {type(e).__name__}: {e}"
            ) from e
        return _generated(site, name, made, shaped, is_written)
    places = [concrete(size, values) for size in site.places.get(index, [1])]
    return dataclasses.replace(spec, places=min(places))


def _spec(node: Any, values: Values) -> TensorSpec:
    return TensorSpec(
        tuple(concrete(s, values) for s in node.get_size()),
        tuple(concrete(s, values) for s in node.get_stride()),
        node.get_dtype(),
        node.get_device(),
    )


def _spec_of_fake(tensor: torch.Tensor, values: Values) -> TensorSpec:
    size, stride = (
        tuple(concrete(s, values) for s in convert_shape_to_inductor(numbers))
        for numbers in (tensor.shape, tensor.stride())
    )
    return TensorSpec(size, stride, tensor.dtype, tensor.device)


def _fill(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if not (dtype.is_floating_point or dtype.is_complex):
        return torch.zeros(length, dtype=dtype, device=device)
    if dtype.itemsize > 1:
        return torch.randn(length, dtype=dtype, device=device)
    if dtype is torch.float4_e2m1fn_x2:
        packed = torch.randint(0, 256, (length,), dtype=torch.uint8, device=device)
        return packed.view(dtype)
    return torch.randn(length, dtype=torch.float32, device=device).to(dtype)


def _generated(
    site: CallSite, name: str, made: Any, wanted: torch.Tensor, is_written: bool
) -> torch.Tensor:
    """
    What an input generator made, with the strides that compiled code expects.

    Args:
        is_written: by candidates, so that it has to be a copy: the user may keep it.
    """
    wanted_part = wanted
    for what in ("shape", "dtype", "device"):
        if not isinstance(made, torch.Tensor) or (
            getattr(made, what) != getattr(wanted, what)
        ):
            got = getattr(made, what, type(made))
            raise ValueError(
                f"input_gen_fns['{name}'] of {site.op} must return a tensor with {what} "
                f"{getattr(wanted, what)}, got {got}"
            )
    if made.stride() == wanted.stride() and not is_written:
        return made
    # Along a stride of 0 there is one element, however many there seem to be.
    for dim in range(wanted.dim()):
        if wanted.stride(dim) == 0 and wanted.size(dim):
            made = made.narrow(dim, 0, 1)
            wanted_part = wanted_part.narrow(dim, 0, 1)
    wanted_part.copy_(made)
    return wanted


def have_memory(
    site: CallSite, point: SizePoint, outputs: Sequence[torch.Tensor]
) -> bool:
    """Whether a call takes no more than the memory at hand, see ``check_memory``."""
    try:
        check_memory(site, point.values, outputs)
    except MemoryError:
        return False
    return True


def check_memory(
    site: CallSite, values: Values, outputs: Sequence[torch.Tensor] = ()
) -> None:
    """
    Raises MemoryError if a call's inputs, a copy of each that it updates, and its outputs
    take more than the memory at hand, of which temporaries need some.

    Args:
        outputs: fake, sizes symbolic.
    """
    given = [site.inputs[i] for i in (*range(len(site.inputs)), *site.updated)]
    specs = [_spec(node, values) for node in given if not isinstance(node, sympy.Basic)]
    specs += [_spec_of_fake(tensor, values) for tensor in outputs]
    needed: dict[torch.device, int] = {}
    for spec in specs:
        tensor_bytes = spec.storage_length * spec.dtype.itemsize
        needed[spec.device] = needed.get(spec.device, 0) + tensor_bytes
    for device, needed_bytes in needed.items():
        free_bytes = _free_bytes(device)
        if free_bytes is not None and needed_bytes > _USABLE_MEMORY * free_bytes:
            raise MemoryError(
                f"inputs and outputs take {needed_bytes} bytes on {device}, where "
                f"{free_bytes} are free"
            )


def _free_bytes(device: torch.device) -> int | None:
    """None where it cannot be known."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept  # for tensors like these
    if device.type == "cpu" and _MEMORY_INFO.exists():
        lines = _MEMORY_INFO.read_text().splitlines()
        fields = dict(line.split(":") for line in lines)
        return int(fields["MemAvailable"].split()[0]) * 1024
    return None
