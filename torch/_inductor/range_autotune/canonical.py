"""Texts that two graphs, or two call sites, share where they differ by names only."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import sympy

import torch

from ..virtualized import V
from .call_site import CallSite, exprs_of
from .guards import replaced


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


def graph_text(gm: torch.fx.GraphModule) -> str:
    """
    A graph's nodes, numbered in order; sizes are what the graph computes them as.

    Attributes are named by identity, so that the text means something in this process only.
    """
    return "\n".join(
        _node_lines(gm.graph, lambda name: f"object {id(_attribute(gm, name))}")
    )


def _attribute(gm: torch.fx.GraphModule, name: str) -> Any:
    value: Any = gm
    for part in name.split("."):
        value = getattr(value, part)
    return value


def _node_lines(
    graph: torch.fx.Graph, attribute_text: Callable[[str], str]
) -> Iterable[str]:
    numbers = {node: f"%{i}" for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op == "get_attr":
            what: Any = attribute_text(node.target)
        else:
            what = "" if node.op == "placeholder" else node.target
        args = torch.fx.map_arg((node.args, node.kwargs), lambda n: _Text(numbers[n]))
        eager = "eager" if node.meta.get("should_fallback") else ""
        yield f"{node.op} {what} {args if node.op != 'placeholder' else ''} {eager}"


class _Text(str):
    """Printed without quotes, so that no string argument looks like a node."""

    def __repr__(self) -> str:
        return str(self)


def call_site_text(site: CallSite, size: sympy.Expr | None) -> str:
    """
    All that candidates of a call depend on: the op, its arguments, the layouts of its
    inputs, its neighbours, and the bounds of sizes.

    Symbols are numbered as they appear; those that are not dispatched on have their hints.

    Args:
        size: the dispatch dimension, symbolic; None where none is dispatched on.
    """
    names = _canonical_names(site)
    lines = [str(site.op)]
    if site.body is None:
        lines += [f"{name}={value!r}" for name, value in site.arguments.items()]
    else:
        lines += _node_lines(site.body, str)
    lines += [_input_text(leaf, names) for leaf in site.inputs]
    if size is not None:
        lines.append(f"dispatch on {_renamed(size, names)}")
    dispatched = size.free_symbols if size is not None else frozenset()
    for symbol, name in names.items():
        bounds = V.graph.sizevars.shape_env.bound_sympy(symbol)
        hint = (
            "" if symbol in dispatched else V.graph.sizevars.optimization_hint(symbol)
        )
        lines.append(f"{name} in [{bounds.lower}, {bounds.upper}] {hint}")
    return "\n".join(lines)


def _canonical_names(site: CallSite) -> dict[sympy.Symbol, sympy.Symbol]:
    """New symbols in the order in which the inputs' sizes have the old ones."""
    names: dict[sympy.Symbol, sympy.Symbol] = {}
    for leaf in site.inputs:
        for expr in exprs_of(leaf):
            for symbol in sorted(expr.free_symbols, key=str):
                new = sympy.Symbol(f"k{len(names)}", **symbol.assumptions0)
                names.setdefault(symbol, new)
    return names


def _input_text(leaf: Any, names: dict[sympy.Symbol, sympy.Symbol]) -> str:
    exprs = [str(_renamed(expr, names)) for expr in exprs_of(leaf)]
    if isinstance(leaf, sympy.Basic):
        return f"size {exprs}"
    return f"{leaf.get_dtype()} on {leaf.get_device()} {exprs}"


def _renamed(expr: sympy.Expr, names: dict[sympy.Symbol, sympy.Symbol]) -> sympy.Basic:
    return replaced(expr).xreplace(names)
