"""
Functional variants of ops that write to their arguments: they return what those write.

A registered op that writes, such as one that is given where its result is to go, is tuned in
this form: candidates are compared and measured, and fused with neighbours, by what they return.
"""

from __future__ import annotations

import re
from typing import Any, TYPE_CHECKING

import torch

from .content import digest
from .signatures import argument_names
from .write_ops import OWN


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAMESPACE = "inductor_functional"
# The variants' last parameter: indices of arguments whose content no one has written.
UNWRITTEN = "unwritten"
_library = torch.library.Library(_NAMESPACE, "DEF")
_ops = getattr(torch.ops, _NAMESPACE)
# The op that writes, by name of its variant.
_mutable: dict[str, torch._ops.OpOverload] = {}


def written_arguments(op: torch._ops.OpOverload) -> dict[int, str]:
    """The arguments that an op writes to, by their index."""
    return {i: a.name for i, a in enumerate(op._schema.arguments) if a.is_write}


def check_has_variant(op: torch._ops.OpOverload) -> None:
    """Raises ValueError if an op writes to what no functional variant could return."""
    written = [a for a in op._schema.arguments if a.is_write]
    others = [a.name for a in written if not isinstance(a.type, torch.TensorType)]
    is_view = any(returned.alias_info is not None for returned in op._schema.returns)
    if written and is_view:
        raise ValueError(
            f"{op} returns an argument that it writes to, and such an op cannot be tuned. "
            "Register one that returns nothing, or new tensors"
        )
    if others:
        raise ValueError(
            f"{op} writes to {others}, and an op that writes to lists, or to what may be "
            "None, cannot be tuned. Register one that writes to tensors, or returns them"
        )


def define_variant(op: torch._ops.OpOverload) -> None:
    """Defines the op that returns what ``op`` returns and, behind that, what it writes."""
    schema = _schema_of(op)
    name = _name_of(op, schema)
    if name not in _mutable:
        names = [*argument_names(op), UNWRITTEN]

        def call(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args)), **kwargs}
            return _on_own_copies(_mutable[name], given, lambda op, own: op(**own))

        qualname = f"{_NAMESPACE}::{name}"
        _library.define(name + schema)
        _library.impl(name, call, "CompositeExplicitAutograd")
        torch.library.register_fake(qualname, call, lib=_library)
    _mutable[name] = op  # it may have been defined anew


def _name_of(op: torch._ops.OpOverload, schema: str) -> str:
    return f"{re.sub(r'[^0-9a-zA-Z]', '_', op.name())}_{digest([schema])[:8]}"


def _schema_of(op: torch._ops.OpOverload) -> str:
    """A variant's, behind its name."""
    text = re.sub(r"Tensor\(\w+!\)", "Tensor", str(op._schema))
    arguments, _, returns = text.partition("(")[2].rpartition(") -> ")
    keyword_only = "" if any(a.kwarg_only for a in op._schema.arguments) else "*, "
    results = returns.removeprefix("(").removesuffix(")")
    written = ["Tensor"] * len(written_arguments(op))
    all_results = ", ".join([results] * bool(results) + written)
    return f"({arguments}, {keyword_only}int[] {UNWRITTEN}=[]) -> ({all_results})"


def variant_of(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The functional variant of a registered op that writes."""
    if not op._schema.is_mutable:
        return None
    name = _name_of(op, _schema_of(op))
    return getattr(_ops, name).default if name in _mutable else None


def mutable_op(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The op that a functional variant is of; None for any other op."""
    return _mutable[op._opname] if op.namespace == _NAMESPACE else None


def registered_op(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """What users know an op as."""
    return mutable_op(op) or op


def call_for(
    op: torch._ops.OpOverload,
    values: dict[str, Any],
    call: Callable[[torch._ops.OpOverload, dict[str, Any]], Any],
) -> Any:
    """
    What an op, or a functional variant, returns where something is called in its place.

    Args:
        values: what the op is called with, by name.
        call: given an op and its arguments by name; of a variant the op that writes, and
            tensors of its own to write to.
    """
    mutable = mutable_op(op)
    if mutable is None:
        return call(op, values)
    return _on_own_copies(mutable, values, call)


def _on_own_copies(
    op: torch._ops.OpOverload,
    values: Mapping[str, Any],
    call: Callable[[torch._ops.OpOverload, dict[str, Any]], Any],
) -> Any:
    """See ``call_for``; of an op that writes."""
    given = {name: value for name, value in values.items() if name != UNWRITTEN}
    unwritten = values.get(UNWRITTEN, ())
    written = written_arguments(op)
    for i, name in written.items():
        value = given[name]
        given[name] = torch.empty_like(value) if i in unwritten else OWN(value)
    returned = call(op, given)
    results = list(returned) if len(op._schema.returns) > 1 else [returned]
    values_written = [given[name] for name in written.values()]
    returned_all = (results if op._schema.returns else []) + values_written
    return tuple(returned_all) if len(returned_all) > 1 else returned_all[0]
