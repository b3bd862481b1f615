"""
The writes of a region: in its graph they are values that it returns, and that who reads them
there reads.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import torch

from ..graphs.node_kinds import arguments_of
from ..graphs.node_memory import memory_of, users_of_memory
from ..graphs.write_ops import AS_VALUES, stands_for_write
from .in_place import is_copy_to, writes_of_call
from .memory_layout import are_of_one_shape, readers_of_elements


if TYPE_CHECKING:
    from collections.abc import Collection

# In the metadata of writes.
_IS_UNREAD = "custom_op_unread"
_IS_BY_OP = "custom_op_by_op"


def is_write(node: torch.fx.Node) -> bool:
    """Whether a node writes in a way that a region may."""
    return node.target in AS_VALUES


def mark_by_op(write: torch.fx.Node) -> None:
    """Marks a write as one of a call that reads a value where its op reads what it writes to."""
    write.meta[_IS_BY_OP] = True


def is_by_op(write: torch.fx.Node) -> bool:
    """Whether a write is so marked, see ``mark_by_op``."""
    return _IS_BY_OP in write.meta


def value_written(write: torch.fx.Node) -> Any:
    """What a write puts there."""
    given = arguments_of(write)
    return given["src"] if "src" in given else given["values"]


def places_written(write: torch.fx.Node) -> torch.Tensor:
    """What it writes over, fake; indexing guards on sizes as calling it does."""
    given: Any = torch.fx.map_arg(arguments_of(write), lambda node: node.meta["val"])
    if "indices" not in given:
        return given["self"]
    return torch.ops.aten.index.Tensor(given["self"], given["indices"])


def writes_value_as_it_is(write: torch.fx.Node) -> bool:
    """Whether what is read where it has written is the value, neither cast nor broadcast."""
    return is_copy_to(write) and are_of_one_shape(*write.args[:2])  # type: ignore[arg-type]  # nodes


def read_writes_at_source(nodes: Collection[torch.fx.Node]) -> set[torch.fx.Node]:
    """
    Has nodes outside read the tensor that a write of these writes to, not its result.

    Returns:
        Those nodes, which are to stay behind the write.
    """
    behind = set()
    for write in filter(is_write, nodes):
        behind.update(
            write.replace_all_uses_with(
                write.args[0],  # type: ignore[arg-type]  # a node
                delete_user_cb=lambda user: user not in nodes,
            )
        )
    return behind - {*nodes}


def mark_unread(nodes: Collection[torch.fx.Node]) -> None:
    """
    Marks the writes of a region to what the graph has computed and nobody reads behind it.

    Args:
        nodes: of the region; the others read the tensors that these write to.
    """
    for write in filter(is_write, nodes):
        memory = memory_of(write)
        read_behind = any(u > write for u in users_of_memory(memory) - {*nodes})
        if memory.op == "call_function" and not read_behind and is_copy_to(write):
            write.meta[_IS_UNREAD] = True


def writes_as_values(graph: torch.fx.Graph) -> None:
    """
    Has a region's graph return what it writes to, behind all else, in place of writing; who
    reads that there reads the value.
    """
    output = graph.output_node()
    for write in [node for node in graph.nodes if is_write(node)]:
        given = arguments_of(write)
        op = AS_VALUES[write.target]  # type: ignore[index]  # an OpOverload
        with graph.inserting_before(output):
            arguments = tuple(given.values())[: len(op._schema.arguments)]
            value = graph.call_function(op, arguments)
        if write.meta.get(_IS_UNREAD):
            value.update_kwarg("unread", True)
        if write.meta.get(_IS_BY_OP):
            value.update_kwarg("by_op", True)
        value.meta = {**write.meta, "val": given["self"].meta["val"]}
        if writes_value_as_it_is(write):
            write.replace_all_uses_with(
                value_written(write), delete_user_cb=lambda user: user is not output
            )
        write.replace_all_uses_with(value)
        graph.erase_node(write)
        returned: Any = output.args[0]
        if value not in returned:
            output.args = ((*returned, value),)


def values_as_writes(graph: torch.fx.Graph) -> None:
    """
    The reverse for what ops write in place, unless what was there is read behind them: has a
    region's graph, which returns what is written to, write right behind them.
    """
    for call in [*graph.nodes]:
        for write in filter(stands_for_write, writes_of_call(call)):
            to, value = write.args
            assert isinstance(to, torch.fx.Node) and isinstance(value, torch.fx.Node)
            if any(node > value for node in readers_of_elements(to)):
                continue
            with graph.inserting_after(value):
                written = graph.call_function(torch.ops.aten.copy_.default, (to, value))
            written.meta = {**write.meta, _IS_UNREAD: write.kwargs.get("unread")}
            write.replace_all_uses_with(to)
            graph.erase_node(write)
