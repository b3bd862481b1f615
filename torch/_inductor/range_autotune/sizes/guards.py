"""Guards on sizes: refused while a candidate is traced, collected while it is compiled."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import threading
from typing import Any, TYPE_CHECKING

import sympy
from torch.fx.experimental.symbolic_shapes import (
    _ShapeEnvGuardError,
    GuardOnDataDependentSymNode,
)

import torch

from ...virtualized import V
from .compound_sizes import holds_of_compound, on_whole_alone, WHOLE
from .narrowed_sizes import (
    compounds_in_ranges,
    value_at_all_of_few,
    without_ruled_out_ends,
)
from .rounded_sizes import holds, known_quotient
from .size_multiples import Blocks


if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from torch.fx.experimental.symbolic_shapes import ShapeEnv

# Who logs that a guard is refused, and that an op's fake kernel asked for it.
_TELLERS = (
    logging.getLogger("torch.fx.experimental.symbolic_shapes"),
    logging.getLogger("torch._subclasses.fake_tensor"),
)
_REFUSED = ("failed during evaluate_expr", "failed while attempting to run meta")
_SMALLEST_INDEX_LIMIT = 2**20
# An attribute of the error of a guard that is refused.
_QUESTION = "_custom_op_question"


@dataclasses.dataclass(frozen=True)
class Question:
    """
    What something asks of sizes.

    Args:
        condition: or a number that is to be known.
        is_optional: whether there is a way for that the answer is not known.
    """

    condition: sympy.Basic
    is_optional: bool = False


def replaced(expr: Any) -> sympy.Expr:
    """
    An expression in the symbols that are left.

    Symbols that were found equal to others stay in the sizes of IR nodes, while fake
    tensors and generated code know only those that replace them.
    """
    return V.graph.sizevars.shape_env.replace(sympy.sympify(expr))


def symbols_of(nodes: Sequence[Any]) -> list[sympy.Symbol]:
    """The symbols in sizes, strides and offsets of IR tensors and in sympy expressions."""
    found: set[sympy.Symbol] = set()
    for node in nodes:
        if isinstance(node, sympy.Basic):
            exprs: tuple[Any, ...] = (node,)
        else:
            exprs = (*node.get_size(), *node.get_stride(), node.get_layout().offset)
        for expr in exprs:
            found |= replaced(expr).free_symbols  # type: ignore[arg-type]  # typed Basic
    return sorted(found, key=lambda symbol: symbol.name)


@contextlib.contextmanager
def frozen_shapes() -> Iterator[None]:
    """
    Fake mode of the graph being compiled, in which a new guard is an error.

    What is asserted of sizes that come up in the block, which depend on data, is no guard.

    Raises:
        _ShapeEnvGuardError: from inside the block, where something guards on a size; also
            if an error is raised there that quotes it, as that of ``unflatten``.
    """
    shape_env = V.fake_mode.shape_env
    refused: list[_ShapeEnvGuardError] = []
    with contextlib.ExitStack() as stack:
        stack.enter_context(V.fake_mode)
        if shape_env:
            stack.enter_context(without_ruled_out_ends(shape_env))
            stack.enter_context(shape_env.error_on_new_guards())
            stack.enter_context(_answering(shape_env, refused))
            stack.enter_context(_accepting_asserts_of_own_data(shape_env))
            stack.enter_context(without_symbols_of_failures(shape_env))
        stack.enter_context(torch.no_grad())
        stack.enter_context(_guard_errors_not_logged())
        # In here: an error that one of the contexts raises in place of another would refer to
        # the stack's frame, and that to the error.
        try:
            yield
        except _ShapeEnvGuardError:
            raise
        except Exception as e:
            for guard_error in refused:
                if str(guard_error) in str(e):
                    # A copy, which no frame on the way of the error refers to; and the error
                    # without this frame, whose caller refers to it from Python 3.12 on.
                    trace = e.__traceback__ and e.__traceback__.tb_next
                    raise copy.copy(guard_error) from e.with_traceback(trace)
            raise


def refused_question(
    error: _ShapeEnvGuardError | GuardOnDataDependentSymNode,
) -> Question | None:
    """What was asked in the block of ``frozen_shapes`` that an error is from, if known."""
    return vars(error).get(_QUESTION)


@contextlib.contextmanager
def without_optional_guards() -> Iterator[None]:
    """
    Traces or lowers without the guards that torch would have only to do better.

    Where it asks whether something holds, and has a way for that it may not, it takes that
    way, as with sizes that depend on data. What only very large sizes break it may ask. Of sizes
    that do, what is known is known here as it is to a trace, whose sizes follow from it.
    """
    shape_env = V.graph.sizevars.shape_env

    def answer(
        expr: sympy.Basic,
        *args: Any,
        fallback_value: bool | None = None,
        **kwargs: Any,
    ) -> sympy.Basic:
        is_backed = _is_backed(expr, shape_env)
        optional = fallback_value is not None and is_backed
        if optional and _is_open(expr, shape_env) and not is_about_index_width(expr):
            return sympy.sympify(fallback_value)
        known = None if is_backed else _known_value(expr, shape_env)
        if known is not None:
            return known
        return outer(expr, *args, fallback_value=fallback_value, **kwargs)

    outer = shape_env.evaluate_expr
    with _with_method(shape_env, "evaluate_expr", answer):
        yield


@contextlib.contextmanager
def _answering(
    shape_env: ShapeEnv, refused: list[_ShapeEnvGuardError]
) -> Iterator[None]:
    """
    Without a guard, what holds whatever the sizes are.

    Args:
        refused: errors of what is asked otherwise are added.
    """

    def answer(expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        # Where sizes are oblivious, torch asserts that what it knows is as at their hints,
        # which may be of another range: it is not asked what is known.
        known = known_answer(expr, shape_env)
        if known is not None:
            return known
        try:
            return outer(expr, *args, **kwargs)
        except _ShapeEnvGuardError as e:
            value = value_at_all_of_few(expr, shape_env)
            if value is not None:
                return value
            is_optional = kwargs.get("fallback_value") is not None
            vars(e).setdefault(_QUESTION, Question(expr, is_optional))
            refused.append(copy.copy(e))  # without the frames that it comes through
            raise
        except GuardOnDataDependentSymNode as e:
            # Its own condition has the model's sizes in the place of those with hints.
            vars(e).setdefault(_QUESTION, Question(expr))
            raise

    outer = shape_env.evaluate_expr
    with _with_method(shape_env, "evaluate_expr", answer):
        yield


@contextlib.contextmanager
def _accepting_asserts_of_own_data(shape_env: ShapeEnv) -> Iterator[None]:
    """
    Takes what is asserted of symbols that come up in the block, which are data of what is
    traced there: they are checked when its code runs. Of others, what holds whatever they are.
    """
    outside = {*shape_env.var_to_range}

    def expect(expr: sympy.Basic, *args: Any, **kwargs: Any) -> bool:
        if known_answer(expr, shape_env) == sympy.true:
            return True
        real = type(shape_env).guard_or_defer_runtime_assert
        own = expr.free_symbols - outside
        with _learning_only_of(own, shape_env) if own else contextlib.nullcontext():
            return real(shape_env, expr, *args, **kwargs)

    with _with_method(shape_env, "guard_or_defer_runtime_assert", expect):
        yield


@contextlib.contextmanager
def _learning_only_of(
    own: Collection[sympy.Basic], shape_env: ShapeEnv
) -> Iterator[None]:
    """
    Takes what is asserted of some symbols, and draws no conclusions on others, which other
    code uses, too.

    Raises:
        _ShapeEnvGuardError: from inside the block, where it would replace another one, or
            be known only if that one had fewer values.
    """

    def narrow(symbol: sympy.Symbol, *args: Any, **kwargs: Any) -> None:
        if symbol in own:
            type(shape_env)._update_var_to_range(shape_env, symbol, *args, **kwargs)

    def replace(symbol: sympy.Symbol, by: sympy.Expr, *args: Any) -> None:
        bounds = shape_env.bound_sympy(by)
        if symbol not in own or not bounds.issubset(shape_env.var_to_range[symbol]):
            raise _ShapeEnvGuardError(f"Assertion outside: Eq({symbol}, {by}) == True")
        type(shape_env)._set_replacement(shape_env, symbol, by, *args)

    state = shape_env.frozen, shape_env._error_on_new_guards
    shape_env.frozen = shape_env._error_on_new_guards = False
    try:
        with (
            _with_method(shape_env, "_update_var_to_range", narrow),
            _with_method(shape_env, "_set_replacement", replace),
        ):
            yield
    finally:
        shape_env.frozen, shape_env._error_on_new_guards = state


@contextlib.contextmanager
def without_symbols_of_failures(shape_env: ShapeEnv) -> Iterator[None]:
    """
    Forgets what a trace or a lowering that fails leaves of fresh symbols, sizes that depend
    on data: the next one would be asked for the nodes that they are from.
    """
    before = [*shape_env.pending_fresh_unbacked_symbols]
    try:
        yield
    except BaseException:
        shape_env.pending_fresh_unbacked_symbols = before
        raise


@contextlib.contextmanager
def _with_method(
    shape_env: ShapeEnv, name: str, method: Callable[..., Any]
) -> Iterator[None]:
    """
    With a function in the place of a method of one shape environment.

    Maybe of another: where an implementation calls another autotuned op, what is traced or
    generated for that one's benchmarks asks for nothing of the outer one.
    """
    outer = vars(shape_env).get(name)
    setattr(shape_env, name, method)
    try:
        yield
    finally:
        if outer is None:
            delattr(shape_env, name)
        else:
            setattr(shape_env, name, outer)


@contextlib.contextmanager
def _guard_errors_not_logged() -> Iterator[None]:
    """Torch warns of each error on its way, with tracebacks; our callers say it once."""
    thread = threading.get_ident()

    def keep(record: logging.LogRecord) -> bool:
        ours = record.thread == thread
        return not (ours and str(record.msg).startswith(_REFUSED))

    for teller in _TELLERS:
        teller.addFilter(keep)
    try:
        yield
    finally:
        for teller in _TELLERS:
            teller.removeFilter(keep)


@contextlib.contextmanager
def recorded_guards() -> Iterator[list[sympy.Basic]]:
    """
    Collects the guards that lowering and code generation ask for, in place of adding them.

    Yields:
        Conditions on sizes under which the generated code is valid, in symbols of the
        graph being compiled; filled while the block runs. Inductor would assert those on
        data-dependent sizes when the code runs.
    """
    shape_env = V.graph.sizevars.shape_env
    found: list[sympy.Basic] = []

    def record(expr: sympy.Basic, *args: Any, **kwargs: Any) -> sympy.Basic:
        # The model's own size, which it is evaluated at, need not be one of those.
        if (known := _known_value(expr, shape_env)) is not None:
            return known
        value = type(shape_env).evaluate_expr(shape_env, expr, *args, **kwargs)
        # Data-dependent symbols have no guards, only answers that hold for any value.
        if _is_backed(expr, shape_env):
            found.append(_condition(expr, value))
        return value

    def expect(expr: sympy.Basic, *args: Any, **kwargs: Any) -> bool:
        real = type(shape_env).guard_or_defer_runtime_assert
        value = real(shape_env, expr, *args, **kwargs)
        if not _is_backed(expr, shape_env) and _is_open(expr, shape_env):
            found.append(expr)
        return value

    try:
        with (
            without_ruled_out_ends(shape_env),
            _with_method(shape_env, "evaluate_expr", record),
            _with_method(shape_env, "guard_or_defer_runtime_assert", expect),
            shape_env.suppress_guards(),
        ):
            yield found
    finally:
        # It would answer later callers from here, and not add the guards they need.
        type(shape_env).guard_or_defer_runtime_assert.cache_clear()


def _is_backed(expr: sympy.Basic, shape_env: ShapeEnv) -> bool:
    """Whether guards can be on it: no size in it depends on data."""
    return expr.free_symbols <= shape_env.backed_var_to_val.keys()


def _is_open(expr: sympy.Basic, shape_env: ShapeEnv) -> bool:
    """Whether what is known of the sizes does not decide it."""
    return _known_value(expr, shape_env) is None


def _known_value(expr: sympy.Basic, shape_env: ShapeEnv) -> sympy.Basic | None:
    """What it is whatever the sizes are; None if that cannot be told."""
    known = known_answer(expr, shape_env)
    return value_at_all_of_few(expr, shape_env) if known is None else known


def known_answer(expr: sympy.Basic, shape_env: ShapeEnv) -> sympy.Basic | None:
    """
    What follows from all that is known of the sizes, by torch or here, whatever they are; None
    if that cannot be told.
    """
    known: Any = shape_env._maybe_evaluate_static(expr)
    if known is None:
        known = _holds(expr, shape_env)
    for on, sizes in [*_on_compounds(expr, shape_env), (expr, shape_env)]:
        known = known_quotient(on, sizes) if known is None else known
    return None if known is None else sympy.sympify(known)


def _holds(expr: sympy.Basic, shape_env: ShapeEnv) -> bool | None:
    """What torch does not know: of compound sizes, and of rounded ones."""
    for size, values in compounds_in_ranges(shape_env):
        known = holds_of_compound(expr, size, values, shape_env)
        if known is not None:
            return known
    answers = (holds(*on) for on in _on_compounds(expr, shape_env))
    known = next((answer for answer in answers if answer is not None), None)
    return holds(expr, shape_env) if known is None else known


def _on_compounds(
    expr: sympy.Basic, shape_env: ShapeEnv
) -> Iterator[tuple[sympy.Basic, Blocks]]:
    """An expression as one on each compound alone that is in a range, with the values of that."""
    for size, values in compounds_in_ranges(shape_env):
        on_whole = on_whole_alone(expr, size, shape_env)
        if on_whole is not None:
            yield on_whole, Blocks({WHOLE: values})


def _condition(expr: sympy.Basic, value: sympy.Basic) -> sympy.Basic:
    if value in (sympy.true, sympy.false):
        return expr if value == sympy.true else sympy.Not(expr)
    return sympy.Eq(expr, value)


def is_about_index_width(condition: sympy.Basic) -> bool:
    """
    Whether a condition only says that 32 bits are enough to index a tensor.

    Inductor puts that guard on nearly every kernel of every model, the limit of 2**31, more
    or less by where a view starts, divided by what the sizes have in common.
    """
    # What is equal to a large number is a size that code is specialized to.
    comparisons = condition.atoms(sympy.Lt, sympy.Le, sympy.Gt, sympy.Ge)
    constants = (s.as_coeff_Add()[0] for c in comparisons for s in c.args)
    return any(constant >= _SMALLEST_INDEX_LIMIT for constant in constants)
