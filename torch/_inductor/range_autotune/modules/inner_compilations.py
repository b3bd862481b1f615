"""
Compilations that begin while another one measures: what is called may compile something.

A custom op may call a function that is compiled in its first call. In a call of the
compiled model that is one like any other; while that is compiled, Inductor takes it for a
part of it.
"""

from __future__ import annotations

import contextlib
import functools
from typing import Any, TYPE_CHECKING

from torch.utils._ordered_set import OrderedSet

from ...triton_bundler import TritonBundler
from ...virtualized import NullHandler, V


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_BUNDLE = ("_entries", "_static_autotuners", "_winners")


@contextlib.contextmanager
def outside_of_compilation() -> Iterator[None]:
    """In the block compilations are by themselves, whatever is being compiled around it."""
    with (
        V.set_aot_compilation(False),
        V.set_distributed_autotune_state(NullHandler()),
        V.set_active_user_lowering_ops(OrderedSet()),
    ):
        yield


def with_own_bundle(compile_graph: Callable[..., Any]) -> Callable[..., Any]:
    """
    Decorates Inductor's ``_compile_fx_inner``: Triton kernels of an inner compilation are
    bundled for its own cache entry, and not for that of the graph compiled around it. Not for
    compilations in several threads, which share the one bundle of the process.
    """

    @functools.wraps(compile_graph)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        outer = {name: getattr(TritonBundler, name) for name in _BUNDLE}
        if outer["_entries"] is None:
            return compile_graph(*args, **kwargs)
        TritonBundler.end_compile()
        try:
            return compile_graph(*args, **kwargs)
        finally:
            for name, value in outer.items():
                setattr(TritonBundler, name, value)

    return wrapper
