"""
Indices that are computed from what a graph is given, such as the segment of each row from the
offsets of segments. Those are made up for benchmarks, and what is computed may be out of bounds:
generated C++ ends the process then, and a GPU is of no more use to it.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, TYPE_CHECKING

from torch.fx import Interpreter

import torch

from .node_kinds import (
    arguments_of,
    indexed,
    is_empty,
    is_index,
    is_integral,
    is_part_or_alias,
    moves_elements,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from torch.fx import Graph, GraphModule, Node

    # What tells where, and the length of the dimension that it is for, as in the metadata.
    Place = tuple[Node, Any]

_aten, _prims = torch.ops.aten, torch.ops.prims
# In bounds of what they order, whatever that is; of those that return several, the second is.
_PLACES = (_aten.argmax, _aten.argmin, _aten.argsort)
_VALUES_AND_PLACES = (_aten.sort, _aten.topk, _aten.kthvalue, _aten.max, _aten.min)
_COPIES = (_aten.clone, _aten._to_copy, _prims.convert_element_type)


def check_places(
    graph: GraphModule,
    told: Mapping[Node, Sequence[Place]],
    inputs: Sequence[Any],
    length: Callable[[Any], int],
) -> None:
    """
    Computes what tells where, and no more of the graph than that.

    Args:
        told: see ``told_places``.
        inputs: one for each placeholder, concrete.
        length: the concrete value of a size in the graph's metadata.

    Raises:
        IndexError: if an index is out of bounds.
    """
    needed = _with_sources(index for places in told.values() for index, _ in places)
    run = Interpreter(graph)
    given = iter(inputs)
    for node in graph.graph.nodes:
        for index, size in told.get(node, ()):
            _check(node, run.env[index], length(size))
        if node.op == "placeholder":
            run.env[node] = next(given)
        elif node in needed:
            try:
                run.env[node] = run.run_node(node)
            except NotImplementedError:  # of what only stands for something
                return
            if is_empty(node) and is_index(node.meta["val"]):  # may hold anything
                run.env[node].fill_(torch.iinfo(run.env[node].dtype).max)


def _check(node: Node, index: torch.Tensor, length: int) -> None:
    if not index.numel():
        return
    least, most = (int(extreme) for extreme in index.aminmax())
    from_end = "indices" in _parameters(node.target)  # as x[-1]
    lowest = -length if from_end else 0
    if least < lowest or most >= length:
        wrong = least if least < lowest else most
        raise IndexError(f"{node.target} of {length} is given an index of {wrong}")


def told_places(graph: Graph, also_given: bool = False) -> dict[Node, list[Place]]:
    """
    Nodes that read or write where integers tell that are computed from a graph's inputs.

    Args:
        also_given: whether those count that are inputs, or in other order or shape.
    """
    if not any(map(_tells_where, graph.nodes)):
        return {}
    computed: dict[Node, bool] = {}  # those that depend on inputs; not if only moved
    told: dict[Node, list[Place]] = {}
    for node in graph.nodes:
        if places := [at for at in _places(node) if computed.get(at[0])]:
            told[node] = places
        if node.op == "placeholder" and isinstance(node.meta["val"], torch.Tensor):
            computed[node] = also_given
            continue
        sources = [n for n in _sources(node) if n in computed]
        if sources:
            computed[node] = not _is_moved(node) or any(map(computed.get, sources))
    return told


def _sources(node: Node) -> Sequence[Node]:
    """What the values of a node's result depend on; nothing where they are places in that."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _PLACES:
        return ()
    if node.target is operator.getitem and node.args[1] == 1:
        called = getattr(node.args[0].target, "overloadpacket", None)  # type: ignore[union-attr]  # a node
        return () if called in _VALUES_AND_PLACES else node.all_input_nodes
    places = {index for index, _ in _places(node)}
    if places and not _writes(node):
        return [read for read in node.all_input_nodes if read not in places]
    return node.all_input_nodes


def _is_moved(node: Node) -> bool:
    """Whether a node's result has values of what it is computed from, and no others."""
    packet = getattr(node.target, "overloadpacket", None)
    if packet in _COPIES:
        read, made = (n.meta["val"].dtype for n in (node.all_input_nodes[0], node))
        return is_integral(read) or not is_integral(made)
    reads_where_told = bool(_places(node)) and not _writes(node)
    return is_part_or_alias(node) or moves_elements(node) or reads_where_told


@functools.cache
def _parameters(target: Any) -> frozenset[str]:
    """The names of those of an op of PyTorch, or of one that stands for a write."""
    if not isinstance(target, torch._ops.OpOverload):
        return frozenset()
    return frozenset(argument.name for argument in target._schema.arguments)


def _tells_where(node: Node) -> bool:
    return bool(_parameters(node.target) & {"index", "indices"})


def _writes(node: Node) -> bool:
    return bool(_parameters(node.target) & {"value", "values", "src", "source"})


def _places(node: Node) -> list[Place]:
    """What tells a node where to read or write, be it in any op of PyTorch."""
    if not _tells_where(node):
        return []
    if node.target.namespace != "aten" or "self" not in _parameters(node.target):  # type: ignore[union-attr]  # an op
        return indexed(node)
    given = arguments_of(node)
    sizes = given["self"].meta["val"].shape
    index, indices = given.get("index"), given.get("indices")
    pairs: Iterable[Place] = ()
    if isinstance(indices, (list, tuple)):
        pairs = zip(indices, sizes)
    elif "dim" in given and sizes:
        pairs = [(index, sizes[given["dim"]])]  # type: ignore[list-item]  # a node
    return [(at, size) for at, size in pairs if _is_index(at)]


def _is_index(at: Any) -> bool:
    value = at.meta.get("val") if isinstance(at, torch.fx.Node) else None
    return isinstance(value, torch.Tensor) and is_index(value)


def _with_sources(nodes: Iterable[Node]) -> set[Node]:
    """Nodes and all that they are computed from."""
    found: set[Node] = set()
    left = [*nodes]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += node.all_input_nodes
    return found
