"""
Ops of torch that Inductor decomposes: whole in the graph where they are registered.

A registered one is to be tuned first; its decomposition competes as its plain lowering, and
is what it is lowered to where it is not tuned.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, TYPE_CHECKING

from torch.fx.experimental.symbolic_shapes import _ShapeEnvGuardError

from ...decomposition import select_decomp_table
from ...lowering import fallback_handler, lowerings
from ..call_site import CallSite
from ..candidate_indices import FALLBACK
from ..errors import NotTunable, one_line
from ..graphs.symbolic_graphs import inline_subgraph_to_ir_nodes, trace_subgraph
from ..registry import registrations_in_force
from .candidate_calls import call_of_candidate
from .op_bodies import decompositions_without


if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

log = logging.getLogger("torch._inductor.kernel.custom_op")


def decompositions_of_untuned() -> dict[Any, Callable[..., Any]]:
    """Inductor's table without the ops that the compilation under way tunes."""
    table = select_decomp_table()
    registered = (of_op.op for of_op in registrations_in_force().values())
    whole = {op for op in registered if op in table}
    for op in whole:
        lowerings.setdefault(op, LoweringByDecomposition(op))
    return decompositions_without(whole) if whole else table


@dataclasses.dataclass(frozen=True)
class LoweringByDecomposition:
    """
    What such an op has among Inductor's lowerings, for calls that are not tuned: eager calls
    where its decomposition guards on a size, or is not for such arguments.
    """

    op: torch._ops.OpOverload

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Lowers a call of the op."""
        try:
            site = CallSite.from_call(self.op, args, kwargs)
            call = call_of_candidate(FALLBACK, site)
            graph = trace_subgraph(
                lambda *leaves: site.run(leaves, call), site.fake_inputs()
            )
        except (NotTunable, _ShapeEnvGuardError) as e:
            log.info("%s is called eagerly: %s", self.op, one_line(e))
            eager = fallback_handler(self.op, add_to_fallback_set=False)
            return eager(*args, **kwargs)
        return inline_subgraph_to_ir_nodes(graph, [*site.inputs], self.op.name())
