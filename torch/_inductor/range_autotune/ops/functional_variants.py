"""
Functional variants of ops that write to their arguments: they return what those write.

A registered op that writes, such as one that is given where its result is to go, is tuned in
this form: candidates are compared and measured, and fused with neighbours, by what they return.
"""

from __future__ import annotations

import re
import threading
from typing import Any, TYPE_CHECKING

from torch._library.utils import is_builtin, is_inplace, is_out
from torch.utils import _pytree as pytree

import torch

from ..contents.content import digest
from ..graphs.write_ops import OWN
from ..registering.signatures import argument_names, written_arguments


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_NAMESPACE = "inductor_functional"
# The variants' last parameter: which of what is written nobody has written before, by place.
UNWRITTEN = "inductor_unwritten"  # no name that an op has for its own
_library = torch.library.Library(_NAMESPACE, "DEF")
_ops = getattr(torch.ops, _NAMESPACE)
# The op that writes, by name of its variant.
_mutable: dict[str, torch._ops.OpOverload] = {}
_defining = threading.Lock()


def check_has_variant(op: torch._ops.OpOverload) -> None:
    """Raises ValueError if an op returns what no functional variant could return."""
    if not op._schema.is_mutable or returns_arguments(op):
        return
    returns = op._schema.returns
    if any(returned.alias_info is not None for returned in returns):
        raise ValueError(
            f"{op} returns an argument that it writes to, and is no custom op whose tags say "
            "so (torch.Tag.inplace, torch.Tag.out). Tag it, or have it return nothing"
        )
    others = [str(r.type) for r in returns if not isinstance(r.type, torch.TensorType)]
    if others and returns_list(op):
        raise ValueError(
            f"{op} writes to a list, or to what may be None, and returns {others}; such an "
            "op cannot be tuned. Register one that returns nothing, or tensors"
        )


def returns_arguments(op: torch._ops.OpOverload) -> bool:
    """Whether what a custom op returns is what it writes to, in that order."""
    return not is_builtin(op) and (is_inplace(op) or is_out(op))


def count_results(op: torch._ops.OpOverload) -> int:
    """How many tensors an op returns that are no arguments."""
    return 0 if returns_arguments(op) else len(op._schema.returns)


def returns_list(op: torch._ops.OpOverload) -> bool:
    """Whether it depends on the call how many tensors an op writes to."""
    written = [a.type for a in op._schema.arguments if a.is_write]
    return not all(isinstance(kind, torch.TensorType) for kind in written)


def define_variant(op: torch._ops.OpOverload) -> None:
    """Defines the op that returns what ``op`` returns and, behind that, what it writes."""
    schema = _schema_of(op)
    name = _name_of(op, schema)
    with _defining:
        if name not in _mutable:
            _define(name, schema, [*argument_names(op), UNWRITTEN])
        _mutable[name] = op  # it may have been defined anew


def _define(name: str, schema: str, parameters: Sequence[str]) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(parameters, args)), **kwargs}
        return _on_own_copies(_mutable[name], given, lambda op, own: op(**own))

    _library.define(name + schema)
    _library.impl(name, call, "CompositeExplicitAutograd")
    torch.library.register_fake(f"{_NAMESPACE}::{name}", call, lib=_library)


def _name_of(op: torch._ops.OpOverload, schema: str) -> str:
    return f"{re.sub(r'[^0-9a-zA-Z]', '_', op.name())}_{digest([schema])[:8]}"


def _schema_of(op: torch._ops.OpOverload) -> str:
    """A variant's, behind its name."""
    text = re.sub(r"Tensor\(\w+!\)", "Tensor", str(op._schema))
    arguments, _, returned = text.partition("(")[2].rpartition(") -> ")
    keyword_only = "" if any(a.kwarg_only for a in op._schema.arguments) else "*, "
    results = [returned.removeprefix("(").removesuffix(")")] * bool(count_results(op))
    written = ["Tensor"] * len(written_arguments(op))
    returns = "Tensor[]" if returns_list(op) else f"({', '.join(results + written)})"
    return f"({arguments}, {keyword_only}int[] {UNWRITTEN}=[]) -> {returns}"


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
    unwritten = values.get(UNWRITTEN, ())
    own: list[torch.Tensor] = []

    def own_copy(value: torch.Tensor) -> torch.Tensor:
        is_unwritten = len(own) in unwritten
        own.append(torch.empty_like(value) if is_unwritten else OWN(value))
        return own[-1]

    given = {name: value for name, value in values.items() if name != UNWRITTEN}
    for name in written_arguments(op):
        if name in given:
            given[name] = pytree.tree_map_only(torch.Tensor, own_copy, given[name])
    returned = call(op, given)
    results = (
        list(returned) if count_results(op) > 1 else [returned] * count_results(op)
    )
    returned_all = results + own
    if returns_list(op):
        return returned_all
    return tuple(returned_all) if len(returned_all) > 1 else returned_all[0]
