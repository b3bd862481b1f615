"""
The time that a candidate may take, where it can be ended.

Tracing, generating code and calls run on the thread that compiles; Python code there is
ended by an exception. A call into C is not: its end is waited for, and the candidate is
out then. Loading runs in threads of its own, see ``modules.limited_executor``.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
import time
from typing import Any, TYPE_CHECKING, TypeVar

from .settings import TIME_LIMIT, time_limit_s


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")

# What a time limit may be for, in messages.
A_CALL = "a call of it"

# An exception that was swallowed, by a bare `except:` for one, is raised again.
_AGAIN_S = 1.0
# Until a thread is looked at again that could not be interrupted.
_SOON_S = 0.001
_START = threading.Thread.start.__code__


class Exited(Exception):
    """A call would have ended more than itself."""


class _Interruption(BaseException):
    """Of a call that has taken too long."""


class TookTooLong(Exception):
    """A candidate was ended, or is not waited for any longer; says what it was at."""

    def __init__(self, what: str, limit_s: float) -> None:
        super().__init__(f"{what} takes longer than {limit_s:g} s, see {TIME_LIMIT}")


def call_candidate(call: Callable[..., T], *args: Any) -> T:
    """A call of a candidate within its time limit; raises what ``call_within`` does."""
    return call_within(time_limit_s(), A_CALL, call, *args)


def call_within(
    limit_s: float | None, what: str, call: Callable[..., T], *args: Any
) -> T:
    """
    Calls, and ends Python code of the call that runs longer than the limit.

    May be nested. Nothing is raised in this thread after the call, and no thread is left.

    Args:
        what: the call is, for the message.

    Raises:
        TookTooLong: if the limit was passed, also where the call came back by itself.
        Exited: if the call raised what was to end more than itself, such as SystemExit.
    """
    if limit_s is None:
        return _contained(call, *args)
    alarm = _Alarm(limit_s)
    result, error = _run(alarm, lambda: _contained(call, *args))
    interrupted = error is None or isinstance(error, (Exception, alarm.interruption))
    if alarm.has_rung() and interrupted:
        error = None
        raise TookTooLong(what, limit_s)
    try:
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # what call returned
    finally:
        error = None  # see _run


def _contained(call: Callable[..., T], *args: Any) -> T:
    try:
        return call(*args)
    except (Exception, KeyboardInterrupt, GeneratorExit, _Interruption):
        raise
    except BaseException as e:
        raise Exited(f"it raised {type(e).__name__}: {e}") from e


def _run(alarm: _Alarm, call: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """
    What the call returned and raised, with the alarm stopped.

    The interruption may be raised at any place between ``start`` and the end of ``stop``.
    Setting ``over`` is none: once it is set at most one interruption is on its way, and
    there is a handler for that one.
    """
    result, error = None, None
    try:
        try:
            alarm.start()
            result = call()
            alarm.over = True
        except BaseException as e:
            alarm.over = True
            error = e
        alarm.stop()
    except BaseException as e:
        alarm.over = True
        alarm.stop()
        if not isinstance(e, alarm.interruption):  # Ctrl-C
            error = e
    try:
        return result, error
    finally:
        # Frames are kept by their exception; one that kept it in turn would keep itself,
        # and the call's tensors, until the garbage collector comes by.
        error = None


class _Alarm:
    """
    Raises ``interruption``, a BaseException, in the thread that made it.

    Args:
        limit_s: rings then, and every ``_AGAIN_S`` after, until it is stopped.
    """

    def __init__(self, limit_s: float) -> None:
        # A class of its own tells it from that of a limit around this one.
        self.interruption: type[BaseException] = type(
            "_Interruption", (_Interruption,), {}
        )
        self.over = False
        self._limit_s = limit_s
        self._deadline_s = time.monotonic() + limit_s
        self._raised = False
        self._thread_id = threading.get_ident()
        self._stopped = threading.Event()
        # Who holds it may raise. `stop` takes it for good; it can be taken twice because
        # `stop` may be interrupted, and called again.
        self._may_raise = threading.RLock()

    def start(self) -> None:
        """Limits what this thread does from now on."""
        thread = threading.Thread(
            target=self._watch, name="custom_op_time_limit", daemon=True
        )
        thread.start()

    def _watch(self) -> None:
        wait_s = min(self._limit_s, threading.TIMEOUT_MAX)
        while not self._stopped.wait(wait_s):
            if not self._may_raise.acquire(blocking=False):
                return
            try:
                if self.over:
                    return
                with _no_thread_begun_by(self._thread_id) as may_raise:
                    if may_raise:
                        self._raised = True
                        _set_async_exception(self._thread_id, self.interruption)
            finally:
                self._may_raise.release()
            wait_s = _AGAIN_S if may_raise else _SOON_S

    def stop(self) -> None:
        """Takes back an interruption that is on its way; there will be no other."""
        self._may_raise.acquire()
        if self._raised:
            _take_back(self.interruption)
        self._stopped.set()

    def has_rung(self) -> bool:
        """Whether the limit is passed; for a stopped alarm."""
        return self._raised or time.monotonic() > self._deadline_s


@contextlib.contextmanager
def _no_thread_begun_by(thread_id: int) -> Iterator[bool]:
    """
    Whether no thread is about to begin that a thread waits for in ``Thread.start``; if so, none
    is in the block.

    In CPython 3.11 what is to be raised in the one may be raised in the new one, before that
    has told that it has begun: the other would wait for good.
    """
    # Private, but the only lock that there is.
    with threading._active_limbo_lock:  # type: ignore[attr-defined]
        begun = threading._limbo  # type: ignore[attr-defined]
        yield not (begun and _starts_a_thread(thread_id))


def _starts_a_thread(thread_id: int) -> bool:
    frame = sys._current_frames().get(thread_id)
    while frame is not None and frame.f_code is not _START:
        frame = frame.f_back
    return frame is not None


def _take_back(exception: type[BaseException]) -> None:
    """
    Catches what may be on its way to this thread.

    CPython 3.11 is told that there is something to raise even when it is given nothing: with
    nothing there it looks for it before each step of each thread from then on, and never gets
    beyond the first step of a function that is traced, as debuggers do.
    """
    try:
        while True:  # raised in the loop, if not before
            _set_async_exception(threading.get_ident(), exception)
    except exception:
        pass


def _set_async_exception(thread_id: int, exception: type[BaseException]) -> None:
    """Makes a thread raise before its next step in Python."""
    given = ctypes.py_object(exception)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread_id), given)
