"""Never silent: a line before each slow step, and a heartbeat while it lasts.

``python -m tools.progress "what it does" COMMAND …`` runs a command and prints a
heartbeat whenever the command itself prints nothing.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterator

HEARTBEAT_S = 4.0
_CHUNK_BYTES = 65536


@contextmanager
def step(what: str) -> Iterator[None]:
    """Print ``what`` now, and again with the seconds every :data:`HEARTBEAT_S` until done."""
    started_s = time.monotonic()
    print(f"==> {what}", flush=True)
    done = threading.Event()
    beat = threading.Thread(target=_beat, args=(what, started_s, done), daemon=True)
    beat.start()
    try:
        yield
    finally:
        done.set()
        beat.join()
    print(f"    done in {time.monotonic() - started_s:.1f} s", flush=True)


def _beat(what: str, started_s: float, done: threading.Event) -> None:
    while not done.wait(HEARTBEAT_S):
        _print_beat(what, started_s)


def _print_beat(what: str, started_s: float) -> None:
    print(f"    … {what}: {time.monotonic() - started_s:.0f} s", flush=True)


def main(arguments: list[str]) -> int:
    """Run ``arguments[1:]`` as the step ``arguments[0]``; returns its exit status.

    The command's last line stays the last one: test runners close with their summary.
    """
    what, *command = arguments
    print(f"==> {what}", flush=True)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        assert process.stdout is not None
        _relay(process.stdout.fileno(), what)
    return process.returncode


def _relay(source: int, what: str) -> None:
    """Pass on all that comes from the file descriptor, with heartbeats in its silences."""
    started_s, at_line_start = time.monotonic(), True
    while True:
        ready, _, _ = select.select([source], [], [], HEARTBEAT_S)
        if not ready:
            print("" if at_line_start else "\n", end="")
            _print_beat(what, started_s)
            at_line_start = True
        elif chunk := os.read(source, _CHUNK_BYTES):
            at_line_start = chunk.endswith(b"\n")
            _pass_on(chunk)
        else:
            return


def _pass_on(chunk: bytes) -> None:
    sys.stdout.flush()
    os.write(sys.stdout.fileno(), chunk)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
