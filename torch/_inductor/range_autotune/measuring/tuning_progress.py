"""
A bar for tuning that takes long: on a terminal, where tqdm is installed.

It counts the steps of one op or graph, compilations and measurements alike. PyTorch does
not depend on tqdm; without it, or where nobody looks, nothing is written.
``torch._inductor.config.custom_op_autotune_progress`` switches it off.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import Any, TYPE_CHECKING

from ... import config


if TYPE_CHECKING:
    from collections.abc import Iterator

# Tuning that is over before that shows nothing.
_DELAY_S = 3.0


class TuningProgress:
    """Counts steps, from any thread."""

    def __init__(self, bar: Any | None) -> None:
        self._bar = bar
        self._lock = threading.Lock()

    def add_steps(self, steps: int) -> None:
        """There are more to do than was known."""
        with self._lock:
            if self._bar is not None:
                self._bar.total += steps

    def done(self, what: str) -> None:
        """
        One step is over.

        Args:
            what: shown behind the bar.
        """
        with self._lock:
            if self._bar is not None:
                self._bar.set_postfix_str(what, refresh=False)
                self._bar.update()

    def close(self) -> None:
        """Takes the bar off the terminal; steps that end later do not count."""
        with self._lock:
            if self._bar is not None:
                self._bar.close()
            self._bar = None


@contextlib.contextmanager
def tuning_progress(name: str, steps: int) -> Iterator[TuningProgress]:
    """
    A bar on standard error for as long as the block lasts, however it ends.

    Args:
        name: of the op or graph.
        steps: how many are known as yet.
    """
    progress = TuningProgress(_bar(name, steps))
    try:
        yield progress
    finally:
        progress.close()


def _is_on_terminal() -> bool:
    """No for whatever cannot tell: a process may have no standard error, or one of its own."""
    try:
        return bool(sys.stderr.isatty())
    except Exception:
        return False


def _bar(name: str, steps: int) -> Any | None:
    """None where no bar is to be shown."""
    if not (config.custom_op_autotune_progress and _is_on_terminal()):
        return None
    try:
        from tqdm import tqdm
    except ImportError:
        return None

    class Bar(tqdm):
        # Else a thread of its own watches each bar.
        monitor_interval = 0

    return Bar(
        total=steps,
        desc=f"Tuning {name}",
        file=sys.stderr,
        delay=_DELAY_S,
        leave=False,
        miniters=1,
    )
