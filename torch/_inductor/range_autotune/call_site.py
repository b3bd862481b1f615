"""What one call of an op was given: its arguments by name, and the inputs among them."""

from __future__ import annotations

import dataclasses
from typing import Any, TYPE_CHECKING

import sympy
from torch.utils import _pytree as pytree

from .. import ir
from ..codegen.subgraph import free_symbols
from ..virtualized import V


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from .registration import DispatchDim


class NotTunable(Exception):
    """This call can only be lowered as if the op were not registered; says why."""


@dataclasses.dataclass(frozen=True)
class Slot:
    """Stands for an input in a call site's arguments."""

    index: int


@dataclasses.dataclass(frozen=True)
class CallSite:
    """
    One call of an op in the graph that is being lowered.

    Args:
        arguments: every argument by name in the op's order, defaults included; a Slot in
            place of each input, wherever it is nested.
        inputs: IR tensors, realized and with frozen layouts, and sympy expressions for
            symbolic integers. Sizes are symbolic.
    """

    op: torch._ops.OpOverload
    arguments: Mapping[str, Any]
    inputs: tuple[Any, ...]

    @classmethod
    def from_call(
        cls,
        op: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> CallSite:
        """
        Args:
            args, kwargs: what a lowering is called with.

        Raises:
            NotTunable: for an argument that no benchmark can be given.
        """
        inputs: list[Any] = []

        def to_slot(leaf: Any) -> Any:
            leaf = _normalize_leaf(leaf)
            if not isinstance(leaf, (ir.TensorBox, sympy.Basic)):
                return leaf
            inputs.append(leaf)
            return Slot(len(inputs) - 1)

        schema = op._schema.arguments
        named = {argument.name: value for argument, value in zip(schema, args)}
        named.update(kwargs)
        arguments = {
            argument.name: pytree.tree_map(
                to_slot,
                named.get(argument.name, argument.default_value),
                is_leaf=lambda x: isinstance(x, ir.IRNode),
            )
            for argument in schema
        }
        if not any(isinstance(leaf, ir.TensorBox) for leaf in inputs):
            raise NotTunable("it has no tensor argument")
        return cls(op, arguments, tuple(inputs))

    def filled(self, leaves: Sequence[Any]) -> dict[str, Any]:
        """The arguments by name with ``leaves`` in place of the inputs."""
        return pytree.tree_map(
            lambda x: leaves[x.index] if isinstance(x, Slot) else x,
            dict(self.arguments),
        )

    @property
    def tensor_names(self) -> frozenset[str]:
        """The arguments that hold tensors or lists of tensors."""
        return frozenset(
            name
            for name, value in self.arguments.items()
            if any(self._is_tensor(leaf) for leaf in pytree.tree_leaves(value))
        )

    def _is_tensor(self, leaf: Any) -> bool:
        return isinstance(leaf, Slot) and isinstance(
            self.inputs[leaf.index], ir.TensorBox
        )

    def parameter_of(self, index: int) -> str:
        """The name of the argument that holds an input."""
        return next(
            name
            for name, value in self.arguments.items()
            if Slot(index) in pytree.tree_leaves(value)
        )

    def symbols(self) -> list[sympy.Symbol]:
        """All symbols in the inputs\' sizes, strides and offsets, sorted."""
        return free_symbols(self.inputs)

    def fake_inputs(self) -> list[Any]:
        """A fake tensor or SymInt for each input, sizes symbolic."""
        with V.fake_mode:
            return [_fake(leaf) for leaf in self.inputs]

    def size_of(self, dim: DispatchDim) -> sympy.Expr:
        """
        The size that a choice depends on, symbolic.

        Raises:
            ValueError: if the tensor has no such dimension.
            NotTunable: if the tensor is None here.
        """
        slot = self.arguments[dim.tensor_name]
        if not isinstance(slot, Slot):
            raise NotTunable(f"dispatch tensor '{dim.tensor_name}' is {slot}")
        shape = self.inputs[slot.index].get_size()
        if not -len(shape) <= dim.dim_index < len(shape):
            raise ValueError(
                f"Dimension index {dim.dim_index} out of range for tensor "
                f"'{dim.tensor_name}' with shape [{', '.join(map(str, shape))}]"
            )
        return sympy.sympify(shape[dim.dim_index])


def _normalize_leaf(leaf: Any) -> Any:
    """A frozen tensor, a sympy expression with symbols, or a plain Python value."""
    if isinstance(leaf, ir.ShapeAsConstantBuffer):
        leaf = leaf.expr
    if isinstance(leaf, ir.IRNode):
        return _frozen(leaf)
    if isinstance(leaf, sympy.Basic):
        if leaf.free_symbols and leaf.is_integer is not True:
            raise NotTunable(f"symbolic argument {leaf} is not an integer")
        return leaf if leaf.free_symbols else _plain(leaf)
    return leaf


def _plain(value: sympy.Basic) -> Any:
    if value in (sympy.true, sympy.false):
        return bool(value)
    return int(value) if value.is_integer else float(value)  # type: ignore[arg-type]


def _frozen(node: ir.IRNode) -> ir.TensorBox:
    realized = ir.ExternKernel.realize_input(node)
    if not ir.is_storage_and_layout(realized):
        raise NotTunable(f"argument of type {type(realized).__name__} has no layout")
    box = ir.TensorBox(realized)
    box.freeze_layout()
    return box


def _fake(leaf: Any) -> Any:
    if isinstance(leaf, sympy.Basic):
        return V.graph.sizevars.shape_env.create_symintnode(leaf, hint=None)
    return ir.ir_node_to_tensor(leaf)
