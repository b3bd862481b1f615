"""The threads that candidates are loaded in, for which nobody waits longer than a limit."""

from __future__ import annotations

import atexit
import collections
import threading
import time
import weakref
from concurrent import futures
from typing import Any, TYPE_CHECKING, TypeVar

from ..limits import TookTooLong


if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# What the end of the process waits for loads that go on. Most are done by then; native
# code does not like to be cut off; a compiler that hangs must not keep the process.
_EXIT_WAIT_S = 5.0


class LimitedExecutor:
    """
    Runs calls in threads that nobody waits for longer than a limit.

    A call that takes longer makes room for the next one, and neither keeps the process
    from exiting, as a ThreadPoolExecutor's would. Threads end as soon as no call waits.

    Args:
        threads: how many calls run at once, not counting those past the limit.
        what: the calls are, for the message.
        limit_s: of each call, from when it begins; None for none.
    """

    def __init__(self, threads: int, what: str, limit_s: float | None) -> None:
        self._threads = threads
        self._what = what
        self._limit_s = limit_s
        self._lock = threading.Lock()
        self._workers = 0
        self._waiting: collections.deque[tuple[futures.Future[Any], Any]] = (
            collections.deque()
        )

    def submit(self, call: Callable[..., T], *args: Any) -> futures.Future[T]:
        """
        Has a thread make a call, as soon as one is free.

        Returns:
            A future; its exception is TookTooLong if the call is not waited for any more.
        """
        future: futures.Future[T] = futures.Future()
        with self._lock:
            self._waiting.append((future, lambda: call(*args)))
            if self._workers < self._threads:
                self._add_worker(future)
        return future

    def _add_worker(self, future: futures.Future[Any]) -> None:
        """Starts a thread; if none can be started and no other runs, the call fails."""
        try:
            _start_daemon(self._work)
            self._workers += 1
        except RuntimeError as e:
            if not self._workers:
                self._waiting.pop()
                future.set_exception(e)

    def _work(self) -> None:
        """Serves what waits, until nothing does."""
        while True:
            with self._lock:
                if not self._waiting:
                    self._workers -= 1
                    return
                future, call = self._waiting.popleft()
            self._serve(future, call)
            del future, call

    def _serve(self, future: futures.Future[T], call: Callable[[], T]) -> None:
        if _exiting.is_set():
            future.cancel()
        if not future.set_running_or_notify_cancel():
            return None
        if self._limit_s is None:
            return fulfil(future, call)
        done: futures.Future[T] = futures.Future()
        try:
            _start_daemon(lambda: fulfil(done, call))
        except RuntimeError as e:
            return future.set_exception(e)
        futures.wait([done], self._limit_s)
        if done.done():
            return fulfil(future, done.result)
        return future.set_exception(TookTooLong(self._what, self._limit_s))


def fulfil(future: futures.Future[T], call: Callable[[], T]) -> None:
    """Gives a future the result or the error of a call."""
    try:
        result = call()
    except BaseException as e:
        future.set_exception(e)
    else:
        future.set_result(result)


_daemons: weakref.WeakSet[threading.Thread] = weakref.WeakSet()
_daemons_lock = threading.Lock()
# From then on no call begins.
_exiting = threading.Event()


def _start_daemon(target: Callable[[], None]) -> None:
    thread = threading.Thread(target=target, name="custom_op_load", daemon=True)
    with _daemons_lock:
        thread.start()
        _daemons.add(thread)


@atexit.register
def _wait_at_exit() -> None:
    _exiting.set()
    deadline_s = time.monotonic() + _EXIT_WAIT_S
    with _daemons_lock:
        daemons = list(_daemons)
    for thread in daemons:
        thread.join(max(deadline_s - time.monotonic(), 0))
