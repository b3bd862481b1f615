"""A region's call as if it stood alone, to tell what is its neighbours' doing."""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from torch.utils import _pytree as pytree

import torch

from ... import ir
from ...utils import convert_symint_to_expr
from ..call_site import CallSite
from .contract import layout_of


if TYPE_CHECKING:
    import sympy


def without_neighbours(site: CallSite) -> CallSite:
    """A call of a region; what neighbours compute for it is an input, made up."""
    arguments = pytree.tree_map_only(
        (torch.Tensor, torch.SymInt), _made_up, site.fake_arguments()
    )
    return CallSite.from_call(site.op, (), arguments)


def _made_up(value: Any) -> ir.TensorBox | sympy.Expr:
    """For a fake tensor, or a symbolic integer."""
    if not isinstance(value, torch.Tensor):
        return convert_symint_to_expr(value)
    buffer = ir.InputBuffer(name="made_up", layout=layout_of(value))
    return ir.TensorBox(ir.StorageBox(buffer))
