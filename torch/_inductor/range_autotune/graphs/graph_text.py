"""
FX graphs and symbolic sizes as text that is the same wherever the same would run.

Names of nodes and symbols do not count, nor the process: symbols are numbered in the order
in which they appear, kernels and custom ops stand with a digest of their source.
"""

from __future__ import annotations

from typing import Any

import sympy
from torch._higher_order_ops.triton_kernel_wrap import (
    kernel_side_table,
    triton_kernel_wrapper_functional,
    triton_kernel_wrapper_mutation,
)
from torch._library.custom_ops import OPDEFS
from torch.fx.node import map_aggregate

import torch

from ..contents.content import content_digest
from ..sizes.guards import replaced


_TRITON_WRAPPERS = (triton_kernel_wrapper_functional, triton_kernel_wrapper_mutation)


class SymbolNames:
    """Names for symbols by the order in which they are first met: ``v0``, ``v1``, …"""

    def __init__(self) -> None:
        self._names: dict[sympy.Symbol, sympy.Symbol] = {}

    def __call__(self, expr: Any) -> str:
        """A size, stride or symbol as text."""
        expr = replaced(sympy.sympify(expr))
        for symbol in sorted(expr.free_symbols, key=str):
            if symbol not in self._names:
                name = f"v{len(self._names)}"
                self._names[symbol] = sympy.Symbol(name, **symbol.assumptions0)
        return str(expr.xreplace(self._names))

    @property
    def met(self) -> list[sympy.Symbol]:
        """The symbols, in the order of their names."""
        return list(self._names)


def graph_text(
    graph: torch.fx.Graph,
    symbols: SymbolNames,
    owner: torch.nn.Module | None = None,
) -> str:
    """
    A line for each node: number, target, arguments.

    Args:
        symbols: goes on counting here.
        owner: has the attributes that the graph gets.

    Raises:
        Unhashable: where something in it has no content that could be compared.
    """
    numbers = node_numbers(graph)
    lines = [
        f"n{number} = {_node_text(node, numbers, symbols, owner)}"
        for node, number in numbers.items()
    ]
    return "\n".join(lines)


def node_numbers(graph: torch.fx.Graph) -> dict[torch.fx.Node, int]:
    """The nodes of a graph by place."""
    return {node: number for number, node in enumerate(graph.nodes)}


def _node_text(
    node: torch.fx.Node,
    numbers: dict[torch.fx.Node, int],
    symbols: SymbolNames,
    owner: torch.nn.Module | None,
) -> str:
    if node.op == "placeholder":
        return "placeholder"
    if node.op == "get_attr":
        return _attribute_text(owner, str(node.target), symbols)

    def text(leaf: Any) -> Any:
        if isinstance(leaf, torch.fx.Node):
            return f"n{numbers[leaf]}"
        return value_text(leaf, symbols)

    kwargs = dict(node.kwargs)
    if node.target in _TRITON_WRAPPERS:
        kwargs |= _triton_kernel(kwargs)
    arguments = (map_aggregate(node.args, text), map_aggregate(kwargs, text))
    eagerly = " eagerly" if node.meta.get("should_fallback") else ""
    return f"{node.op} {_target_text(node.target)}{arguments}{eagerly}"


def value_text(value: Any, symbols: SymbolNames) -> str:
    """An argument that is no node; numbers and strings can be read in it."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return symbols(value.node.expr)
    if isinstance(value, sympy.Basic):
        return symbols(value)
    if value is None or isinstance(value, (bool, int, float, str, torch.dtype)):
        return repr(value)
    return content_digest(value)


def _attribute_text(
    owner: torch.nn.Module | None, path: str, symbols: SymbolNames
) -> str:
    value: Any = owner
    for name in path.split("."):
        value = getattr(value, name)
    if isinstance(value, torch.fx.GraphModule):
        return f"{{\n{graph_text(value.graph, symbols, value)}\n}}"
    return content_digest(value)


def _triton_kernel(kwargs: dict[str, Any]) -> dict[str, Any]:
    """In place of numbers in a table of the process what they stand for there."""
    kernel, constants = kwargs["kernel_idx"], kwargs["constant_args_idx"]
    return {
        "kernel_idx": content_digest(kernel_side_table.get_kernel(kernel)),
        "constant_args_idx": kernel_side_table.get_constant_args(constants),
    }


def _target_text(target: Any) -> str:
    """A custom op with what it does, where Python knows."""
    if isinstance(target, torch._ops.OpOverload):
        definition = OPDEFS.get(target._schema.name)
        return f"{target} {content_digest(definition)}" if definition else f"{target}"
    if isinstance(target, torch._ops.HigherOrderOperator):
        return target.name()
    if isinstance(target, str):
        return target
    return content_digest(target)
