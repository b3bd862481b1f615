"""
A graph whose code fails with what was chosen is compiled without choices.

Candidates are compiled before they win, but a winner's code becomes one with what is
generated around it, of which nothing was compiled before. The ops themselves, called as
they are, stand between their neighbours.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import logging
from typing import Any, TYPE_CHECKING

from torch._dynamo.exc import ShortenTraceback, SkipFrame

import torch

from .compiled_graph import known_tunings
from .errors import is_out_of_memory, one_line
from .graphs.collectives import several_ranks
from .graphs.control_flow import all_called
from .graphs.symbolic_graphs import copied
from .modules.subgraph_module import TrustsInputs
from .registry import registration_of, without_registrations


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.fx import GraphModule

    from ..graph import GraphLowering

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Of the compilation under way: not empty while all choices that came up are made.
_made: contextvars.ContextVar[list[bool]] = contextvars.ContextVar("custom_op_choices")


def with_last_resort(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates Inductor's ``codegen_and_compile``: compiles the graph again, without choices, if
    it fails after they were made. The FX graph cache does not keep the result of that.

    Graphs without registered ops have none, though they may be compiled while others' are
    made. What fails before, such as an input generator of the user's, is raised; also where
    ranks have agreed on a choice, which one of them must not drop.
    """

    @functools.wraps(compile_graph)
    def wrapper(scheme: Any, gm: GraphModule, *args: Any) -> Any:
        found = {called: registration_of(called) for called in all_called(gm)}
        tuned = {op: registration for op, registration in found.items() if registration}
        agreed = any(r.mentions_collective for r in tuned.values()) and several_ranks()
        untouched = _copy(gm, {}) if tuned else gm
        with _noting_choices() as made:
            try:
                return compile_graph(scheme, gm, *args)
            except (ShortenTraceback, SkipFrame):
                raise
            except Exception as e:
                if agreed or not (tuned and made) or is_out_of_memory(e):
                    raise
                log.warning(
                    "The code of what was chosen does not compile among its neighbours; the "
                    "graph is compiled with %s as called: %s",
                    ", ".join(sorted(map(str, tuned))),
                    one_line(e),
                    exc_info=e,
                )
        with without_registrations():
            result = compile_graph(scheme, untouched, *args)
        result.is_last_resort = True
        return result

    return wrapper


@contextlib.contextmanager
def _noting_choices() -> Iterator[list[bool]]:
    made: list[bool] = []
    token = _made.set(made)
    try:
        yield made
    finally:
        _made.reset(token)


@contextlib.contextmanager
def making_choices(graph: GraphLowering) -> Iterator[None]:
    """
    The block makes those that wait in a graph.

    Args:
        graph: a model's or that of a branch in it; of others nothing is noted.
    """
    made = _made.get(None)
    if made is None or graph.is_const_graph or isinstance(graph, TrustsInputs):
        yield
        return
    made.clear()
    yield
    if known_tunings():
        made.append(True)


def _copy(gm: GraphModule, known: dict[GraphModule, GraphModule]) -> GraphModule:
    """
    Of a graph and those in it, before passes change them; tensors are the same.

    Args:
        known: copies by what they are of; is added to.
    """
    if gm in known:
        return known[gm]
    copy = known[gm] = copied(gm)
    copy.meta = dict(gm.meta)
    for name, value in vars(gm).items():
        vars(copy).setdefault(name, value)
    for name, child in gm._modules.items():
        if isinstance(child, torch.fx.GraphModule):
            setattr(copy, name, _copy(child, known))
    return copy
