"""What one call of an op was given: its arguments by name, and the inputs among them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TYPE_CHECKING

import sympy
from torch.utils import _pytree as pytree

import torch

from .. import ir
from ..utils import convert_shape_to_inductor
from ..virtualized import V
from .candidates.site_inputs import (
    as_number,
    at_strides_of,
    exprs_of,
    fake_of,
    is_same_input,
    layout_text_of,
    normalized,
)
from .errors import NotTunable
from .graphs.graph_text import graph_text, node_numbers, SymbolNames, value_text
from .graphs.node_kinds import is_conjugated, is_number
from .neighbours.region_inputs import (
    places_given,
    unread_outputs,
    updated_inputs,
    written_outputs,
)
from .registering.signatures import all_arguments
from .sizes.guards import replaced, symbols_of


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from .registration import DispatchDim


_as_strided = torch.ops.aten.as_strided.default

CONJUGATED = (
    "it reads what is conjugated only as it is read, which Inductor's IR does not tell"
)


@dataclasses.dataclass(frozen=True)
class Slot:
    """Stands for an input in a call site's arguments."""

    index: int


@dataclasses.dataclass(frozen=True)
class Inner:
    """Stands for a value that a region computes before it calls the op."""

    node: torch.fx.Node


@dataclasses.dataclass(frozen=True)
class CallSite:
    """
    One call of an op in the graph that is being lowered, maybe with its neighbours.

    Args:
        arguments: every argument by name in the op's order, defaults included; a Slot in
            place of each input and an Inner in place of each value that the body
            computes, wherever they are nested.
        inputs: IR tensors, realized and with frozen layouts, and sympy expressions for
            symbolic integers, some of which may be known by now. Sizes are symbolic.
        body: the graph around the call, one placeholder for each input; None where the
            call stands alone.
        call: the op's node in the body.
        following: other calls in the same body that are decided together with this one,
            in order; of the same inputs and body.
    """

    op: torch._ops.OpOverload
    arguments: Mapping[str, Any]
    inputs: tuple[Any, ...]
    body: torch.fx.Graph | None = None
    call: torch.fx.Node | None = None
    following: tuple[CallSite, ...] = ()

    @functools.cached_property
    def written(self) -> dict[int, int]:
        """Outputs that are written to inputs: by index the input's."""
        return {} if self.body is None else written_outputs(self.body)

    def without_unread(self, results: Iterable[Any]) -> list[Any]:
        """Of results, those that anybody reads."""
        unread = set() if self.body is None else unread_outputs(self.body)
        return [result for i, result in enumerate(results) if i not in unread]

    @property
    def written_inputs(self) -> list[Any]:
        """The inputs that are written to, one of those that are parts of one buffer."""
        written = (self.inputs[at] for at in self.written.values())
        return [*{box.get_name(): box for box in written}.values()]

    def without_written(self, values: Iterable[Any]) -> list[Any]:
        """Of values that stand for the outputs, those for what is not written to inputs."""
        written = self.written
        return [value for i, value in enumerate(values) if i not in written]

    def with_written(self, values: Iterable[Any]) -> list[Any]:
        """The reverse: the inputs in the places of those that are written to them."""
        both = [*values]
        for i, at in sorted(self.written.items()):
            both.insert(i, self.inputs[at])
        return both

    @functools.cached_property
    def updated(self) -> set[int]:
        """The indices of inputs that are read and written to."""
        return set() if self.body is None else updated_inputs(self.body)

    @functools.cached_property
    def places(self) -> dict[int, list[sympy.Expr]]:
        """Inputs that tell where to read or write; by index how many places there may be."""
        places = {} if self.body is None else places_given(self.body)
        return {at: convert_shape_to_inductor(sizes) for at, sizes in places.items()}

    @property
    def calls(self) -> tuple[CallSite, ...]:
        """All calls that are decided together, in order."""
        return (self, *self.following)

    @classmethod
    def from_call(
        cls,
        op: torch._ops.OpOverload,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> CallSite:
        """
        The call site of one op's call.

        Args:
            args, kwargs: what a lowering is called with.

        Raises:
            NotTunable: for an argument that no benchmark can be given.
        """
        inputs: list[Any] = []

        def to_slot(leaf: Any) -> Any:
            leaf = normalized(leaf)
            if isinstance(leaf, sympy.Basic) and not leaf.free_symbols:
                return as_number(leaf)
            if not isinstance(leaf, (ir.TensorBox, sympy.Basic)):
                return leaf
            inputs.append(leaf)
            return Slot(len(inputs) - 1)

        arguments = {
            name: pytree.tree_map(
                to_slot, value, is_leaf=lambda x: isinstance(x, ir.IRNode)
            )
            for name, value in all_arguments(op, args, kwargs).items()
        }
        if not any(isinstance(leaf, ir.TensorBox) for leaf in inputs):
            raise NotTunable("it has no tensor argument")
        return cls(op, arguments, tuple(inputs))

    @classmethod
    def from_region(
        cls, body: torch.fx.Graph, calls: Sequence[torch.fx.Node], inputs: Sequence[Any]
    ) -> CallSite:
        """
        The call site that a region is: its ops, and the neighbours around them.

        Args:
            calls: the ops' nodes in the body, in order.
            inputs: what the region's lowering is called with, for each placeholder.

        Raises:
            NotTunable: for an input that no benchmark can be given.
        """
        placeholders = body.find_nodes(op="placeholder")
        if any(map(is_conjugated, placeholders)):
            raise NotTunable(CONJUGATED)
        strided = body.find_nodes(op="call_function", target=_as_strided)
        read_by_ops = {n for call in (*calls, *strided) for n in call.all_input_nodes}
        written = [*written_outputs(body).values()]
        for index in written:
            inputs[index].realize()
        leaves = tuple(
            normalized(at_strides_of(node, leaf) if node in read_by_ops else leaf)
            for node, leaf in zip(placeholders, inputs)
        )
        if any(
            isinstance(leaf, sympy.Basic) and leaf.is_integer is not True
            for leaf in leaves
        ):
            raise NotTunable("a number that its neighbours read is not an integer")
        for index in written:
            if not is_same_input(leaves[index], inputs[index]):
                raise NotTunable("it writes to what is no input of the graph")
        first, *rest = (
            cls(call.target, _arguments_in(call, placeholders), leaves, body, call)  # type: ignore[arg-type]  # an OpOverload
            for call in calls
        )
        return dataclasses.replace(first, following=tuple(rest))

    def run(
        self, leaves: Sequence[Any], *call_ops: Callable[[dict[str, Any]], Any]
    ) -> Any:
        """
        What the call site computes from ``leaves`` in place of its inputs.

        Args:
            call_ops: each called with its op's arguments by name; they stand in for the
                ops, one for each of ``calls``.

        Returns:
            What the one call returns, or a list of what the body returns.
        """
        if self.body is None:
            return call_ops[0](self.filled(leaves, {}))
        calls = {
            site.call: (site, fn) for site, fn in zip(self.calls, call_ops, strict=True)
        }
        values = iter(leaves)
        env: dict[Any, Any] = {}
        for node in self.body.nodes:
            if node.op == "placeholder":
                env[node] = next(values)
            elif node in calls:
                site, call_op = calls[node]
                env[node] = call_op(site.filled(leaves, env))
            elif node.op == "call_function":
                call: Any = node.target
                args: Any = torch.fx.map_arg(node.args, env.__getitem__)
                kwargs: Any = torch.fx.map_arg(node.kwargs, env.__getitem__)
                env[node] = call(*args, **kwargs)
        results: Any = self.body.output_node().args[0]
        return [env[node] for node in results]

    def filled(
        self, leaves: Sequence[Any], env: Mapping[torch.fx.Node, Any]
    ) -> dict[str, Any]:
        """The op's arguments by name with ``leaves`` in place of the inputs."""

        def fill(leaf: Any) -> Any:
            if isinstance(leaf, Slot):
                return leaves[leaf.index]
            return env[leaf.node] if isinstance(leaf, Inner) else leaf

        return pytree.tree_map(fill, dict(self.arguments))

    def fake_arguments(self) -> dict[str, Any]:
        """The op's arguments by name as fake tensors and SymInts, sizes symbolic."""
        nodes = self.body.nodes if self.body else ()
        env = {node: node.meta["val"] for node in nodes if "val" in node.meta}
        return self.filled(self.fake_inputs(), env)

    @property
    def tensor_names(self) -> frozenset[str]:
        """The arguments that hold tensors or lists of tensors."""
        return frozenset(
            name
            for name, value in self.arguments.items()
            if any(self._is_tensor(leaf) for leaf in pytree.tree_leaves(value))
        )

    def _is_tensor(self, leaf: Any) -> bool:
        if isinstance(leaf, Slot):
            return isinstance(self.inputs[leaf.index], ir.TensorBox)
        return isinstance(leaf, Inner) and not is_number(leaf.node)

    def parameter_of(self, index: int) -> str | None:
        """The argument that holds an input; None if only the op's neighbours read it."""
        for name, value in self.arguments.items():
            if Slot(index) in pytree.tree_leaves(value):
                return name
        return None

    def exprs(self) -> list[sympy.Expr]:
        """Sizes, strides and offset of each input, and what SymInts are; symbolic."""
        return [expr for leaf in self.inputs for expr in exprs_of(leaf)]

    def symbols(self) -> list[sympy.Symbol]:
        """All symbols in the inputs' sizes, strides and offsets, sorted."""
        return symbols_of(self.inputs)

    def layout_text(self, symbols: SymbolNames) -> str:
        """
        All that decides what candidates compute here, with symbolic sizes.

        The same for call sites that differ in the names of symbols and nodes only.

        Args:
            symbols: names them as they are met.

        Raises:
            Unhashable: for an argument whose content is unknown.
        """
        lines = [str(self.op)]
        lines += [f"input: {layout_text_of(leaf, symbols)}" for leaf in self.inputs]
        numbers = node_numbers(self.body) if self.body else {}

        def text(leaf: Any) -> str:
            if isinstance(leaf, Slot):
                return f"input {leaf.index}"
            if isinstance(leaf, Inner):
                made = leaf.node
                strides = () if is_number(made) else made.meta["val"].stride()
                shown = [*map(symbols, convert_shape_to_inductor(strides))]
                return f"n{numbers[made]} strides {shown}"
            return value_text(leaf, symbols)

        lines += [
            f"{name}: {pytree.tree_map(text, value)}"
            for call in self.calls
            for name, value in call.arguments.items()
        ]
        if self.body is not None:
            calls = [f"n{numbers[s.call]}" for s in self.calls if s.call is not None]
            lines.append(f"{graph_text(self.body, symbols)}\ncalls {calls}")
        bound = V.graph.sizevars.shape_env.bound_sympy
        lines += [f"{symbols(s)} in {bound(s)}" for s in symbols.met]
        return "\n".join(lines)

    def fake_inputs(self) -> list[Any]:
        """A fake tensor or SymInt for each input, sizes symbolic."""
        with V.fake_mode:
            return [fake_of(leaf) for leaf in self.inputs]

    def size_of(self, dim: DispatchDim) -> sympy.Expr:
        """
        The size that a choice depends on, symbolic.

        Raises:
            ValueError: if the tensor has no such dimension.
            NotTunable: if the tensor is None here.
        """
        shape = self._shape_of(dim.tensor_name)
        if not -len(shape) <= dim.dim_index < len(shape):
            raise ValueError(
                f"Dimension index {dim.dim_index} out of range for tensor "
                f"'{dim.tensor_name}' with shape [{', '.join(map(str, shape))}]"
            )
        return replaced(shape[dim.dim_index])

    def _shape_of(self, tensor_name: str) -> list[Any]:
        leaf = self.arguments[tensor_name]
        if isinstance(leaf, Slot):
            return self.inputs[leaf.index].get_size()
        if isinstance(leaf, Inner):
            return convert_shape_to_inductor(leaf.node.meta["val"].shape)
        raise NotTunable(f"dispatch tensor '{tensor_name}' is {leaf}")


def _arguments_in(
    call: torch.fx.Node, placeholders: Sequence[torch.fx.Node]
) -> dict[str, Any]:
    """A call's arguments by name in a body, with Slots and Inners."""

    def stand_in(leaf: Any) -> Any:
        if not isinstance(leaf, torch.fx.Node):
            return leaf
        if leaf in placeholders:
            return Slot(placeholders.index(leaf))
        return Inner(leaf)

    op = call.target
    assert isinstance(op, torch._ops.OpOverload)
    return {
        name: pytree.tree_map(stand_in, value)
        for name, value in all_arguments(op, call.args, call.kwargs).items()
    }
