"""Inductor's graph passes on a candidate, as on the same code in the op's place."""

from __future__ import annotations

import logging
import operator
from collections import Counter
from typing import Any, TYPE_CHECKING

import torch

from ... import config
from ...virtualized import V
from ..graphs.control_flow import all_nodes
from ..graphs.functional import arguments_written
from ..graphs.symbolic_graphs import copied
from ..registering.signatures import may_hold_tensors
from ..sizes.guards import frozen_shapes


if TYPE_CHECKING:
    from collections.abc import Collection

    from torch.fx import GraphModule

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Users' passes look for things in whole models, each once.
_WITHOUT_USERS_PASSES = {
    "joint_custom_pre_pass": None,
    "joint_custom_post_pass": None,
    "post_grad_custom_pre_pass": None,
    "post_grad_custom_post_pass": None,
}
# They move values, and compute none.
_COPIES = (
    torch.ops.aten._to_copy.default,
    torch.ops.aten.clone.default,
    torch.ops.prims.convert_element_type.default,
    torch.ops.prims.device_put.default,
)


def _device(gm: GraphModule) -> torch.device | None:
    """Of its first tensor, as Inductor takes it for the graph around it."""
    values = (node.meta["val"] for node in gm.graph.find_nodes(op="placeholder"))
    return next((v.device for v in values if isinstance(v, torch.Tensor)), None)


def optimized(gm: GraphModule) -> GraphModule:
    """
    The graph as Inductor's passes make it: patterns such as attention replaced, random
    numbers drawn from seeds.

    Args:
        gm: kept as it is, and returned where a pass fails or would guard on a size, or
            where ops write: passes move nodes as if none did.
    """
    if any(map(arguments_written, all_nodes(gm))):
        return gm
    from ...fx_passes.joint_graph import joint_graph_passes
    from ...fx_passes.post_grad import post_grad_passes, view_to_reshape
    from ...fx_utils import FakeTensorUpdater

    result = copied(gm)
    fakes = FakeTensorUpdater(result)
    try:
        with frozen_shapes(), config.patch(_WITHOUT_USERS_PASSES):
            # Patterns are made once a device, which takes seconds.
            result = joint_graph_passes(result, _device(gm))
            # Views of a copy that is gone are views of an input, which the next passes must
            # know not to write to.
            fakes.incremental_update()
            view_to_reshape(result)
            post_grad_passes(result, V.graph.is_inference)
    except Exception as e:
        log.debug("Not optimized: %s", e)
        return gm
    return result


def is_other_form(before: GraphModule, after: GraphModule) -> bool:
    """
    Whether passes have replaced what a graph computes by other ops that Inductor generates
    code for, so that either form may be the faster one.

    A softmax of scaled values is an example: the form that overflows later takes 1.4 times
    as long. Not so for ops that call libraries, nor for random numbers.
    """
    old, new = _ops_that_compute(before), _ops_that_compute(after)
    random = any(
        torch.Tag.nondeterministic_seeded in getattr(op, "tags", ()) for op in old
    )
    added = (new - old).keys()
    return bool(added) and not random and _is_generated(added)


def _ops_that_compute(gm: GraphModule) -> Counter[Any]:
    calls = [node.target for node in all_nodes(gm) if node.op == "call_function"]
    return Counter(filter(_computes, calls))


def _computes(target: Any) -> bool:
    if not isinstance(target, torch._ops.OpOverload):
        return target is not operator.getitem
    takes_tensors = any(map(may_hold_tensors, target._schema.arguments))
    return takes_tensors and not target.is_view and target not in _COPIES


def _is_generated(targets: Collection[Any]) -> bool:
    from torch.utils.flop_counter import flop_registry

    from ...lowering import fallbacks, lowerings

    return all(
        isinstance(target, torch._ops.OpOverload)
        and target in lowerings
        and target not in fallbacks
        and target._overloadpacket not in flop_registry
        and not target._schema.is_mutable
        for target in targets
    )
