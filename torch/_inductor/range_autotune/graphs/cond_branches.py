"""``torch.cond`` in candidates' graphs, as Inductor lowers it."""

from __future__ import annotations

import operator
from typing import Any, TYPE_CHECKING

import torch

from .control_flow import copy_for_output
from .node_memory import memory_of


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from torch.fx import GraphModule, Node


def with_tuples(gm: GraphModule) -> GraphModule:
    """
    Has branches that return a tensor return a tuple of it, and copies of what they are given.

    Dynamo sees to that in a model; implementations are traced without it.

    Args:
        gm: changed, and the graphs in it.
    """
    cond = torch.ops.higher_order.cond
    for node in gm.graph.find_nodes(op="call_function", target=cond):
        for branch in node.args[1:3]:
            _return_tuple(with_tuples(getattr(gm, branch.target)))
        value = node.meta["val"]
        if isinstance(value, torch.Tensor):
            with gm.graph.inserting_after(node):
                item = gm.graph.call_function(operator.getitem, (node, 0))
            node.replace_all_uses_with(item, lambda user, item=item: user is not item)
            item.meta["val"] = value
            node.meta["val"] = (value,)
            gm.recompile()
    return gm


def _return_tuple(gm: GraphModule) -> None:
    output = gm.graph.output_node()
    results: Any = output.args[0]
    if isinstance(results, torch.fx.Node):
        results = (results,)
    output.args = (tuple(_with_own_memory(results)),)
    gm.recompile()


def _with_own_memory(results: Iterable[Any]) -> Iterator[Any]:
    """Results of a branch, copied where they share memory with its inputs or each other."""
    taken: set[Node] = set()
    for result in results:
        if not _is_tensor(result):
            yield result
            continue
        memory = memory_of(result)
        if memory in taken or memory.op in ("placeholder", "get_attr"):
            yield copy_for_output(result)
        else:
            taken.add(memory)
            yield result


def _is_tensor(result: Any) -> bool:
    is_node = isinstance(result, torch.fx.Node)
    return is_node and isinstance(result.meta.get("val"), torch.Tensor)
