"""
Splits whose number of parts is known in a candidate's ranges, with the size of each part.

Inductor counts the parts of others at the size that the model is compiled with, which may have
another number of them.
"""

from __future__ import annotations

import operator
from typing import Any, TYPE_CHECKING

import torch

from .node_kinds import arguments_of
from .symbolic_graphs import copied


if TYPE_CHECKING:
    from torch.fx import GraphModule, Node

_SPLIT = torch.ops.aten.split.Tensor


def with_sizes_of_parts(gm: GraphModule) -> GraphModule:
    """A candidate's graph as it is lowered; a copy where that changes anything."""
    if not any(map(_is_counted, gm.graph.nodes)):
        return gm
    gm = copied(gm)
    for node in filter(_is_counted, [*gm.graph.nodes]):
        with gm.graph.inserting_before(node):
            _give_sizes(node)
    gm.recompile()
    return gm


def _is_counted(node: Node) -> bool:
    """Whether it splits a dimension whose size is symbolic, or in parts whose size is."""
    if node.op != "call_function" or node.target is not _SPLIT:
        return False
    given = arguments_of(node)
    size = given["self"].meta["val"].shape[given.get("dim", 0)]
    return not (isinstance(size, int) and isinstance(given["split_size"], int))


def _give_sizes(split: Node) -> None:
    graph, given, parts = split.graph, arguments_of(split), split.meta["val"]
    x, each, dim = given["self"], given["split_size"], given.get("dim", 0)
    last: Any = parts[-1].shape[dim]
    if not isinstance(last, int):
        whole, value = (
            x.meta["val"].shape[dim],
            getattr(each, "meta", {}).get("val", each),
        )
        size = graph.call_function(torch.ops.aten.sym_size.int, (x, dim))
        before = graph.call_function(operator.mul, (each, len(parts) - 1))
        rest = graph.call_function(operator.sub, (size, before))
        size.meta["val"], before.meta["val"] = whole, value * (len(parts) - 1)
        rest.meta["val"], last = last, rest
    sizes = [*[each] * (len(parts) - 1), last]
    given_sizes = graph.call_function(
        torch.ops.aten.split_with_sizes.default, (x, sizes, dim)
    )
    given_sizes.meta = {**split.meta}
    split.replace_all_uses_with(given_sizes)
    graph.erase_node(split)
