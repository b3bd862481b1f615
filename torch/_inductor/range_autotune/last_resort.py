"""
A graph whose code fails with what was chosen is compiled as if no op were registered.

Candidates are compiled before they win, but a winner's code becomes one with what is
generated around it, of which nothing was compiled before.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from typing import Any, TYPE_CHECKING

import torch

from .control_flow import all_nodes
from .errors import one_line
from .stale_code import registration_of, without_registrations


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.fx import GraphModule

    from ..graph import GraphLowering

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Of the compilation under way; filled when all choices of its graph are made.
_made: contextvars.ContextVar[list[bool]] = contextvars.ContextVar("custom_op_choices")


def with_last_resort(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """
    Of what compiles a graph, Inductor's ``codegen_and_compile``: makes a second try, with no
    op registered, if the first one fails behind the choices.

    What fails before, such as an input generator of the user's, is raised.
    """

    @functools.wraps(compile_graph)
    def wrapper(scheme: Any, gm: GraphModule, *args: Any) -> Any:
        ops = {node.target for node in all_nodes(gm) if registration_of(node.target)}
        if not ops:
            return compile_graph(scheme, gm, *args)
        untouched = _copy(gm)
        with _noting_choices() as made:
            try:
                return compile_graph(scheme, gm, *args)
            except Exception as e:
                if not made:
                    raise
                names = ", ".join(sorted(map(str, ops)))
                log.warning(
                    "The code of what was chosen does not compile among its neighbours; the "
                    "graph is compiled as if %s were not registered: %s",
                    names,
                    one_line(e),
                    exc_info=e,
                )
        with without_registrations():
            return compile_graph(scheme, untouched, *args)

    return wrapper


@contextlib.contextmanager
def _noting_choices() -> Iterator[list[bool]]:
    made: list[bool] = []
    token = _made.set(made)
    try:
        yield made
    finally:
        _made.reset(token)


def note_choices_made(graph: GraphLowering) -> None:
    """Called when nothing is left to be chosen in a graph, a candidate's or branch's, too."""
    from .subgraph_module import TrustsInputs

    is_part = isinstance(graph, TrustsInputs) or hasattr(graph, "parent")
    if (made := _made.get(None)) is not None and not (is_part or graph.is_const_graph):
        made.append(True)


def _copy(gm: GraphModule) -> GraphModule:
    """Of a graph and those in it, before passes change them; tensors are the same."""
    from ..codegen.subgraph import copied

    copy = copied(gm)
    copy.meta = dict(gm.meta)
    for name, value in vars(gm).items():
        vars(copy).setdefault(name, value)
    for name, child in gm.named_children():
        if isinstance(child, torch.fx.GraphModule):
            setattr(copy, name, _copy(child))
    return copy
