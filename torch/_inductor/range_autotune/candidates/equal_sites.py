"""A call site as it is where a size with a symbol of its own is equal to others, or a multiple."""

from __future__ import annotations

import dataclasses
from typing import Any, TYPE_CHECKING

import sympy
from torch.utils import _pytree as pytree

import torch

from ... import ir
from ...utils import convert_symint_to_expr
from ...virtualized import V
from ..call_site import CallSite, Inner
from ..sizes.equal_sizes import at_equal
from ..sizes.guards import replaced


if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..sizes.equal_sizes import EqualSizes


def at_equal_sizes(site: CallSite, equal: EqualSizes) -> CallSite:
    """
    The call site with fewer symbols: what is traced for it is right where sizes are equal.

    Its inputs lie where the site's do; its graph is a copy.
    """
    inputs = tuple(_input_at(leaf, equal) for leaf in site.inputs)
    if site.body is None:
        return dataclasses.replace(site, inputs=inputs)
    body, copies = _graph_at(site.body, equal)

    def moved(call: CallSite) -> CallSite:
        return dataclasses.replace(
            call,
            inputs=inputs,
            body=body,
            call=call.call and copies[call.call],
            arguments=pytree.tree_map_only(
                Inner, lambda leaf: Inner(copies[leaf.node]), dict(call.arguments)
            ),
            following=tuple(map(moved, call.following)),
        )

    return moved(site)


def _input_at(leaf: Any, equal: EqualSizes) -> Any:
    """A tensor as it is seen with other symbols, or a number."""
    if isinstance(leaf, sympy.Basic):
        return at_equal(replaced(leaf), equal)
    old = leaf.get_layout()
    layout = ir.FixedLayout(
        old.device,
        old.dtype,
        _exprs_at(old.size, equal),
        _exprs_at(old.stride, equal),
        *_exprs_at([old.offset], equal),
        is_pinned=old.is_pinned,
    )
    seen = leaf.data
    storage = seen.data if isinstance(seen, ir.ReinterpretView) else seen
    return ir.TensorBox(ir.ReinterpretView(data=storage, layout=layout))


def _exprs_at(exprs: Iterable[Any], equal: EqualSizes) -> list[Any]:
    return [at_equal(replaced(expr), equal) for expr in exprs]


def _graph_at(
    graph: torch.fx.Graph, equal: EqualSizes
) -> tuple[torch.fx.Graph, dict[torch.fx.Node, torch.fx.Node]]:
    """A copy of a graph with other symbols in its metadata, and the copies of its nodes."""
    copy = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    output = copy.output(copy.graph_copy(graph, copies))
    output.meta = {**graph.output_node().meta}
    with V.fake_mode:
        for node in copies.values():
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map(
                    lambda value: _value_at(value, equal), node.meta["val"]
                )
    return copy, copies


def _value_at(value: Any, equal: EqualSizes) -> Any:
    """Of a tensor one that has its sizes and strides; in fake mode."""
    if isinstance(value, torch.SymInt):
        create = V.graph.sizevars.shape_env.create_symintnode
        expr = at_equal(replaced(convert_symint_to_expr(value)), equal)
        return int(expr) if expr.is_Integer else create(expr, hint=None)
    if not isinstance(value, torch.Tensor):
        return value
    size, stride = (
        [_value_at(n, equal) for n in numbers]
        for numbers in (value.shape, value.stride())
    )
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)
