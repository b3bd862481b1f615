"""
The inputs of a call site: IR tensors with frozen layouts, and sympy expressions.

Sizes are symbolic.
"""

from __future__ import annotations

import math
from typing import Any, TYPE_CHECKING

import sympy
from torch.fx.experimental.sym_node import SymNode

import torch

from ... import ir
from ...utils import convert_shape_to_inductor, GPU_ALIGN_BYTES
from ...virtualized import V
from ..errors import NotTunable
from ..sizes.guards import replaced


if TYPE_CHECKING:
    from ..graphs.graph_text import SymbolNames


def normalized(leaf: Any) -> Any:
    """A frozen tensor, a sympy expression, or a plain Python value."""
    if isinstance(leaf, ir.ShapeAsConstantBuffer):
        leaf = leaf.expr
    if isinstance(leaf, ir.IRNode):
        return _frozen(leaf)
    if isinstance(leaf, sympy.Basic):
        if leaf.free_symbols and leaf.is_integer is not True:
            raise NotTunable(f"symbolic argument {leaf} is not an integer")
        return replaced(leaf)
    return leaf


def _frozen(node: ir.IRNode) -> ir.TensorBox:
    realized = ir.ExternKernel.realize_input(node)
    if not ir.is_storage_and_layout(realized):
        raise NotTunable(f"argument of type {type(realized).__name__} has no layout")
    box = ir.TensorBox(realized)
    box.freeze_layout()
    return box


def as_number(value: sympy.Basic) -> Any:
    """An expression without symbols, as Python has it."""
    if value in (sympy.true, sympy.false):
        return bool(value)
    return int(value) if value.is_integer else float(value)  # type: ignore[arg-type]


def at_strides_of(node: torch.fx.Node, leaf: Any) -> Any:
    """An op's kernel may count on the strides that it has in eager mode."""
    if not isinstance(leaf, ir.TensorBox):
        return leaf
    strides = convert_shape_to_inductor(node.meta["val"].stride())
    return ir.ExternKernel.require_exact_strides(leaf, strides)


def is_same_input(leaf: Any, given: Any) -> bool:
    """
    Whether a tensor is one that the graph is given or has computed, or a buffer of a model
    compiled ahead, or a part of one, in the memory where that lies.
    """
    if not (isinstance(leaf, ir.TensorBox) and isinstance(given, ir.TensorBox)):
        return False
    storage = _storage_of(given)
    if _storage_of(leaf) is not storage or not isinstance(storage, ir.StorageBox):
        return False
    is_computed = isinstance(storage.data, ir.Operation)
    return is_computed or storage.is_input_buffer() or storage.is_module_buffer()


def _storage_of(tensor: ir.TensorBox) -> ir.IRNode:
    data = tensor.data
    return data.data if isinstance(data, ir.ReinterpretView) else data


def exprs_of(leaf: Any) -> list[sympy.Expr]:
    """An input's sizes, strides, and what matters of its offset, or what a SymInt is; symbolic."""
    if isinstance(leaf, sympy.Basic):
        return [replaced(leaf)]
    layout = leaf.get_layout()
    exprs = [replaced(e) for e in (*layout.size, *layout.stride)]
    return exprs + _offset_that_matters(leaf)


def _offset_that_matters(tensor: ir.IRNode) -> list[sympy.Expr]:
    """
    Where a tensor starts, as far as code for it depends on that: at a fixed place, as one
    layer's part of a cache, its alignment only. One number, such as a seed, lies anywhere.
    """
    if not tensor.get_size():
        return []
    offset = replaced(tensor.get_layout().offset)
    if offset.free_symbols:
        return [offset]
    return [
        offset
        % (GPU_ALIGN_BYTES // math.gcd(GPU_ALIGN_BYTES, tensor.get_dtype().itemsize))
    ]


def layout_text_of(leaf: Any, symbols: SymbolNames) -> str:
    """All that decides what candidates compute from an input, but for its values."""
    if isinstance(leaf, sympy.Basic):
        return symbols(leaf)
    sizes = ", ".join(map(symbols, leaf.get_size()))
    strides = ", ".join(map(symbols, leaf.get_stride()))
    offset = ", ".join(map(symbols, _offset_that_matters(leaf)))
    kind = f"{leaf.get_dtype()} {leaf.get_device()}"
    return f"{kind} [{sizes}] strides [{strides}] from {offset}"


def fake_of(leaf: Any) -> Any:
    """A fake tensor or a SymInt; called in fake mode."""
    shape_env = V.graph.sizevars.shape_env
    if isinstance(leaf, sympy.Integer):  # a tracer makes a new symbol for an int
        return torch.SymInt(SymNode(leaf, shape_env, int, int(leaf)))
    if isinstance(leaf, sympy.Basic):
        return shape_env.create_symintnode(leaf, hint=None)
    return ir.ir_node_to_tensor(leaf)
