"""
Functional variants of ops that write to their arguments: they return what those write.

A registered op that writes, such as one that is given where its result is to go, is tuned in
this form: candidates are compared and measured, and fused with neighbours, by what they return.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, TYPE_CHECKING

import torch

from .signatures import argument_names


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_NAMESPACE = "inductor_functional"
# The variants' last parameter: indices of arguments whose content no one has written.
UNWRITTEN = "unwritten"
_library = torch.library.Library(_NAMESPACE, "DEF")
# By name of the variant, the op that writes; and the reverse.
_mutable: dict[str, torch._ops.OpOverload] = {}
_variants: dict[str, torch._ops.OpOverload] = {}


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


def define_variant(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The op that returns what ``op`` returns and, behind that, what it writes."""
    schema = _schema_of(op)
    name = f"{re.sub(r'[^0-9a-zA-Z]', '_', op.name())}_{_digest(schema)}"
    qualname = f"{_NAMESPACE}::{name}"
    if qualname not in _mutable:
        names = [*argument_names(op), UNWRITTEN]

        def call(*args: Any, **kwargs: Any) -> Any:
            given = {**dict(zip(names, args)), **kwargs}
            mutable = _mutable[qualname]
            return call_as_variant(mutable, given, lambda own: mutable(**own))

        _library.define(name + schema)
        _library.impl(name, call, "CompositeExplicitAutograd")
        torch.library.register_fake(qualname, call, lib=_library)
    _mutable[qualname] = op  # it may have been defined anew
    variant = getattr(getattr(torch.ops, _NAMESPACE), name).default
    _variants[op.name()] = variant
    return variant


def _schema_of(op: torch._ops.OpOverload) -> str:
    """A variant's, behind its name."""
    text = re.sub(r"Tensor\(\w+!\)", "Tensor", str(op._schema))
    arguments, _, returns = text.partition("(")[2].rpartition(") -> ")
    keyword_only = "" if any(a.kwarg_only for a in op._schema.arguments) else "*, "
    results = returns.removeprefix("(").removesuffix(")")
    written = ["Tensor"] * len(written_arguments(op))
    all_results = ", ".join([results] * bool(results) + written)
    return f"({arguments}, {keyword_only}int[] {UNWRITTEN}=[]) -> ({all_results})"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def variant_of(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The functional variant of a registered op that writes."""
    return _variants.get(op.name()) if op._schema.is_mutable else None


def mutable_op(op: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """The op that a functional variant is of; None for any other op."""
    return _mutable.get(op._schema.name)


def registered_op(op: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """What users know an op as."""
    return mutable_op(op) or op


def call_as_variant(
    op: torch._ops.OpOverload,
    values: Mapping[str, Any],
    call: Callable[[dict[str, Any]], Any],
) -> Any:
    """
    What a functional variant returns.

    Args:
        op: the op that writes.
        values: what the variant is called with, by name.
        call: writes as the op does; given the op's arguments by name, it writes to tensors
            that are its own.
    """
    given = {name: value for name, value in values.items() if name != UNWRITTEN}
    unwritten = values.get(UNWRITTEN, ())
    written = written_arguments(op)
    for i, name in written.items():
        value = given[name]
        given[name] = torch.empty_like(value) if i in unwritten else value.clone()
    returned = call(given)
    results = list(returned) if len(op._schema.returns) > 1 else [returned]
    values_written = [given[name] for name in written.values()]
    returned_all = (results if op._schema.returns else []) + values_written
    return tuple(returned_all) if len(returned_all) > 1 else returned_all[0]
