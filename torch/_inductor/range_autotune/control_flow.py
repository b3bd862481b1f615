"""``torch.cond`` in candidates' graphs, in the form that Inductor lowers."""

from __future__ import annotations

import operator

import torch


def with_tuples(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """
    Has branches that return a tensor return a tuple of it.

    They do behind Dynamo, without which implementations are traced.

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


def _return_tuple(gm: torch.fx.GraphModule) -> None:
    output = gm.graph.output_node()
    if isinstance(output.args[0], torch.fx.Node):
        output.args = (output.args,)
        gm.recompile()
