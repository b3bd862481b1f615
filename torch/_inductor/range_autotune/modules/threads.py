"""The threads that candidates are loaded in, and what crosses from one to another."""

from __future__ import annotations

import contextvars
import re
import sys
import threading
from typing import Any, Generic, TYPE_CHECKING, TypeVar

from ... import config
from ...virtualized import threadlocal


if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# https://github.com/python/cpython/issues/106905: where two threads build `ast` objects
# at a time, either may get a SystemError. Turning text into code builds none.
PYTHON_BUILDS_AST_IN_ONE_THREAD = sys.version_info[:2] == (3, 11) and (
    sys.version_info.micro <= 8
)
# Compiled by a compiler that is no part of this process, from text.
_KERNELS_WITHOUT_AST = frozenset({"cpp", "cpp_pybinding"})


def autotune_threads() -> int:
    """In how many threads candidates are loaded; 1: in the one that lowers."""
    from ...async_compile import get_compile_threads

    threads = config.custom_op_autotune_threads
    return max(get_compile_threads() if threads is None else threads, 1)


def loads_in_any_thread(source: str) -> bool:
    """
    Whether generated code may be loaded while other threads do what they like.

    On CPython 3.11.8 and older that is not so for code whose loading builds ``ast``
    objects. Triton does as it compiles a kernel in this process, that is until the pool
    of compile workers is up; code in Python's other dialects is taken to do so.
    """
    if not PYTHON_BUILDS_AST_IN_ONE_THREAD:
        return True
    return _compiled_by_workers(_kernels_in(source) - _KERNELS_WITHOUT_AST)


def is_compiled_by_workers(source: str) -> bool:
    """
    Whether generated code has no kernels but those that compile workers have had since it
    was generated. Loading it takes them over.
    """
    return _compiled_by_workers(_kernels_in(source))


def _kernels_in(source: str) -> set[str]:
    """Their kinds, by Inductor's names."""
    return set(re.findall(r"\basync_compile\.(\w+)\(", source)) - {"wait"}


def _compiled_by_workers(kinds: set[str]) -> bool:
    from ...async_compile import AsyncCompile

    return not kinds or (kinds == {"triton"} and AsyncCompile.use_process_pool())


class Once(Generic[T]):
    """
    A value that is computed once, for whoever asks first; others wait.

    Args:
        compute: dropped afterwards with all that it refers to.
    """

    def __init__(self, compute: Callable[[], T]) -> None:
        self._compute: Callable[[], T] | None = compute
        self._lock = threading.Lock()
        self._value: Any = None
        self._error: Exception | None = None

    def get(self) -> T:
        """
        The value.

        Raises:
            What computing it raised, for every caller; an interrupt for the one that was
            interrupted, and the next one starts anew.
        """
        with self._lock:
            if self._compute is not None:
                try:
                    self._value = self._compute()
                except Exception as e:
                    self._error = e
                self._compute = None
        if self._error is not None:
            raise self._error
        return self._value


def as_from_here(fn: Callable[[], T]) -> Callable[[], T]:
    """
    Returns a call of ``fn`` for any thread, with what is the caller's own now.

    That is Inductor's config overrides, which are context variables, and V's handlers.
    What they refer to is shared: whether other threads may use it meanwhile is for the
    caller to know.
    """
    context = contextvars.copy_context()
    handlers = dict(vars(threadlocal))

    def call() -> T:
        here = vars(threadlocal)
        others = dict(here)
        here.clear()
        here.update(handlers)
        try:
            return context.copy().run(fn)
        finally:
            here.clear()
            here.update(others)

    return call
