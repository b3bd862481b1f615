"""The threads that candidates are loaded in, and what crosses from one to another."""

from __future__ import annotations

import atexit
import contextvars
import functools
import re
import sys
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Executor, Future
from typing import Any, Generic, TYPE_CHECKING, TypeVar

from .. import config
from ..virtualized import threadlocal


if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

T = TypeVar("T")

# https://github.com/python/cpython/issues/106905: where two threads build `ast` objects
# at a time, either may get a SystemError. Turning text into code builds none.
PYTHON_BUILDS_AST_IN_ONE_THREAD = sys.version_info[:2] == (3, 11) and (
    sys.version_info.micro <= 8
)
# Compiled by a compiler that is no part of this process, from text.
_KERNELS_WITHOUT_AST = frozenset({"cpp", "cpp_pybinding", "wait"})
# What the end of the process waits for loads that go on. Most are done by then; native
# code does not like to be cut off; a compiler that hangs must not keep the process.
_EXIT_WAIT_S = 5.0


def autotune_threads() -> int:
    """In how many threads candidates are loaded; 1: in the one that lowers."""
    from ..async_compile import get_compile_threads

    threads = config.custom_op_autotune_threads
    return max(get_compile_threads() if threads is None else threads, 1)


def loads_in_any_thread(source: str) -> bool:
    """
    Whether generated code may be loaded while other threads do what they like.

    On CPython 3.11.8 and older that is not so for code whose loading builds ``ast``
    objects. Triton does as it compiles a kernel in this process, that is until the pool
    of compile workers is up; code in Python's other dialects is taken to do so.
    """
    from ..async_compile import AsyncCompile

    if not PYTHON_BUILDS_AST_IN_ONE_THREAD:
        return True
    kinds = set(re.findall(r"\basync_compile\.(\w+)\(", source)) - _KERNELS_WITHOUT_AST
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
        self._error: BaseException | None = None

    def get(self) -> T:
        """
        The value.

        Raises:
            What computing it raised, for every caller.
        """
        with self._lock:
            if self._compute is not None:
                try:
                    self._value = self._compute()
                except BaseException as e:
                    self._error = e
                finally:
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


class DaemonThreads(Executor):
    """
    A pool whose threads end when there is nothing to do, or with the process.

    A ``ThreadPoolExecutor`` keeps the process until its last call returns.
    """

    def __init__(self, max_workers: int, name: str = "inductor_precompile") -> None:
        self._max_workers = max_workers
        self._name = name
        self._lock = threading.Lock()
        self._calls: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """See Executor."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise RuntimeError("no calls are taken after shutdown")
            self._calls.append((future, functools.partial(fn, *args, **kwargs)))
            if len(self._threads) < self._max_workers:
                thread = threading.Thread(
                    target=self._work, name=self._name, daemon=True
                )
                self._threads.add(thread)
                _running.add(thread)
                thread.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """See Executor. Without ``wait``, calls go on or are left to hang."""
        with self._lock:
            self._closed = True
            if cancel_futures:
                for future, _ in self._calls:
                    future.cancel()
            threads = list(self._threads)
        if wait:
            for thread in threads:
                thread.join()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._calls:
                    self._threads.discard(threading.current_thread())
                    return
                future, call = self._calls.popleft()
            if future.set_running_or_notify_cancel():
                _complete(future, call, BaseException)
            del future, call


def _complete(
    future: Future[T], call: Callable[[], T], kept: type[BaseException]
) -> None:
    try:
        future.set_result(call())
    except kept as e:
        future.set_exception(e)


_running: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


@atexit.register
def _wait_at_exit() -> None:
    deadline = time.monotonic() + _EXIT_WAIT_S
    for thread in list(_running):
        thread.join(max(deadline - time.monotonic(), 0))


class Loading:
    """
    Starts loads: in other threads where there are any to use, else at once.

    As a context, waits at the end, or cancels what has not started if there is an error.

    Args:
        threads: as many at a time; with 1 there is no pool.
    """

    def __init__(self, threads: int | None = None) -> None:
        threads = autotune_threads() if threads is None else threads
        self._pool = DaemonThreads(threads) if threads > 1 else None

    def submit(self, load: Callable[[], T], source: str = "") -> Future[T]:
        """
        The future result of a load, which needs nothing of this thread.

        Args:
            source: the code that is loaded; it may be unfit for other threads.
        """
        if self._pool is not None and loads_in_any_thread(source):
            return self._pool.submit(load)
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()
        _complete(future, load, Exception)
        return future

    def __enter__(self) -> Loading:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            failed = error is not None
            self._pool.shutdown(wait=not failed, cancel_futures=failed)
