"""
Tensors that an implementation brings along, from a closure or a module for one: constants
of its graph.

Fake tensors that are traced must not meet real ones, which would be computed with, and
written to, while the graph is made.
"""

from __future__ import annotations

import contextlib
from typing import Any, TYPE_CHECKING

from torch._higher_order_ops.utils import _in_hop_compile
from torch.fx.experimental.proxy_tensor import (
    get_proxy_mode,
    PythonKeyTracer,
    track_tensor_tree,
)
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import torch

from ...virtualized import V


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch._subclasses.fake_tensor import FakeTensorMode

# AOTInductor lets weights be replaced without constants whose names begin so.
_NAME = "_tensor_constant_captured_"
# Others wrap tensors, fake ones maybe.
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
# What `torch.tensor` calls: make_fx knows such constants.
_MAKE_CONSTANTS = (
    torch.ops.aten.lift.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten.lift_fresh_copy.default,
)


class CapturesAsConstants(TorchDispatchMode):
    """
    While make_fx traces, turns real tensors into attributes of the graph.

    Args:
        fake_mode: of the graph's inputs.
    """

    supports_higher_order_operators = True

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """
        Whether Dynamo works on functions that are called: on those of control flow and of
        flex_attention, to make inputs of what they capture, and on no others.
        """
        return _in_hop_compile()

    def __init__(self, fake_mode: FakeTensorMode) -> None:
        super().__init__()
        self._fake_mode = fake_mode
        # By id; the real tensor, which keeps its id taken, and what stands for it.
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func not in _MAKE_CONSTANTS:
            args, kwargs = pytree.tree_map(self._traced, (args, kwargs))
        return func(*args, **(kwargs or {}))

    def _traced(self, value: Any) -> Any:
        if type(value) not in _PLAIN_TENSORS:
            return value
        if id(value) not in self._known:
            self._known[id(value)] = value, self._constant(value)
        return self._known[id(value)][1]

    def _constant(self, tensor: torch.Tensor) -> torch.Tensor:
        mode = get_proxy_mode()
        assert mode is not None, "nothing is traced"
        tracer = mode.tracer
        assert isinstance(tracer, PythonKeyTracer), type(tracer)
        name = tracer.get_fresh_qualname(_NAME)
        setattr(tracer.root, name, tensor)
        fake = fake_constant(self._fake_mode, tensor)
        proxy = tracer.create_proxy("get_attr", name, (), {})
        return track_tensor_tree(fake, proxy, constant=None, tracer=tracer)


def fake_constant(fake_mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    """A fake tensor with a real one's sizes; constants that share memory share theirs."""
    return fake_mode.fake_tensor_converter.from_real_tensor(fake_mode, tensor)


@contextlib.contextmanager
def constants_may_be_real() -> Iterator[None]:
    """
    While a graph with constants is lowered: an operation that Inductor does not generate,
    such as a custom op, is called with fake inputs then, and with the constants themselves.
    """
    fake_mode = V.fake_mode
    before, fake_mode.allow_non_fake_inputs = fake_mode.allow_non_fake_inputs, True
    try:
        yield
    finally:
        fake_mode.allow_non_fake_inputs = before


def captured_tensors(gm: torch.fx.GraphModule) -> dict[torch.fx.Node, torch.Tensor]:
    """A graph's constants, by the nodes that get them; without those of torch.tensor."""
    nodes = gm.graph.find_nodes(op="get_attr")
    return {n: getattr(gm, n.target) for n in nodes if n.target.startswith(_NAME)}


def captures_to_inputs(gm: torch.fx.GraphModule) -> list[torch.Tensor]:
    """Has a graph take its constants behind its other inputs; returns them."""
    captured = captured_tensors(gm)
    for node in captured:
        with gm.graph.inserting_before(node):
            _replace(node, gm.graph.placeholder(str(node.target)))
    gm.recompile()
    return list(captured.values())


def inputs_to_captures(gm: torch.fx.GraphModule, tensors: list[torch.Tensor]) -> None:
    """Makes a graph's last inputs constants again."""
    inputs = gm.graph.find_nodes(op="placeholder")
    for i, (node, tensor) in enumerate(zip(reversed(inputs), reversed(tensors))):
        setattr(gm, f"{_NAME}{i}", tensor)
        with gm.graph.inserting_before(node):
            _replace(node, gm.graph.create_node("get_attr", f"{_NAME}{i}"))


def _replace(node: torch.fx.Node, by: torch.fx.Node) -> None:
    by.meta = dict(node.meta)
    node.replace_all_uses_with(by)
    node.graph.erase_node(node)
