"""Inductor's graph passes on a candidate, as on the same code in the op's place."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch

from .. import config
from ..codegen.subgraph import copied
from ..virtualized import V
from .functional import written
from .guards import frozen_shapes


if TYPE_CHECKING:
    from torch.fx import GraphModule

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Users' passes look for things in whole models, each once.
_WITHOUT_USERS_PASSES = {
    "joint_custom_pre_pass": None,
    "joint_custom_post_pass": None,
    "post_grad_custom_pre_pass": None,
    "post_grad_custom_post_pass": None,
}


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
    if any(map(written, gm.graph.nodes)):
        return gm
    from ..fx_passes.joint_graph import joint_graph_passes
    from ..fx_passes.post_grad import post_grad_passes, view_to_reshape

    try:
        with frozen_shapes(), config.patch(_WITHOUT_USERS_PASSES):
            # Patterns are made once a device, which takes seconds.
            result = joint_graph_passes(copied(gm), _device(gm))
            view_to_reshape(result)
            post_grad_passes(result, V.graph.is_inference)
    except Exception as e:
        log.debug("Not optimized: %s", e)
        return gm
    return result
