"""What benchmarks share: workers on this torch or on the base's, results, workloads."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from typing import Any, Self, TYPE_CHECKING

import torch.nn.functional as F

import torch


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

RESULTS = pathlib.Path(__file__).parent / "results"
# Threads of OpenMP wait for more work about as long before they give up their cores.
_SPIN_S = 0.03
# How a worker's lines begin that its parent looks for.
_END_OF_TURN = "end of turn"
_ANSWER = "answer: "


def in_process(
    script: str,
    arguments: list[str],
    site: str | None = None,
    variables: Mapping[str, str] | None = None,
) -> Any:
    """
    What a script answers, run in a process of its own.

    Args:
        site: a folder with another torch, for PYTHONPATH; this process's by default.
        variables: of its environment.
    """
    with _Worker(script, arguments, site, variables or {}) as worker:
        while worker.take_turn():
            pass
        return worker.answer()


def in_turns(
    script: str, arguments: list[str], sites: Sequence[str | None]
) -> list[Any]:
    """
    What a script answers on each of several torches, with fresh caches.

    Each has a process, of which one runs at a time, until it calls ``end_turn``: what
    else the machine does, and how fast it is, hits all of them alike.
    """
    with contextlib.ExitStack() as stack:
        workers = []
        for site in sites:
            variables = stack.enter_context(fresh_caches())
            worker = _Worker(script, arguments, site, variables)
            workers.append(stack.enter_context(worker))
        running = workers
        while running:
            running = [worker for worker in running if worker.take_turn()]
        return [worker.answer() for worker in workers]


class _Worker:
    """A process that runs a script; killed at the end of the context."""

    def __init__(
        self,
        script: str,
        arguments: list[str],
        site: str | None,
        variables: Mapping[str, str],
    ) -> None:
        self._command = [sys.executable, script, *arguments]
        self._site = site
        self._env = {**os.environ, **variables}
        if site:
            before = self._env.get("PYTHONPATH")
            self._env["PYTHONPATH"] = f"{site}{os.pathsep}{before}" if before else site
        self._process: subprocess.Popen[str] | None = None
        self._answer = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process:
            self._process.kill()
            self._process.communicate()

    def take_turn(self) -> bool:
        """Lets it run; whether it ended its turn, or else itself."""
        if self._process is None:
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(
                self._command, env=self._env, stdin=pipe, stdout=pipe, text=True
            )
        else:
            print(file=self._process.stdin, flush=True)
        for line in self._process.stdout or ():
            if line.startswith(_END_OF_TURN):
                return True
            if line.startswith(_ANSWER):
                self._answer = line.removeprefix(_ANSWER)
        return False

    def answer(self) -> Any:
        """What it answered; it has ended."""
        if not self._process or self._process.wait() or not self._answer:
            on_site = f" on {self._site}" if self._site else ""
            sys.exit(f"the worker failed{on_site}: {self._command}")
        return json.loads(self._answer)


@contextlib.contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """Variables for processes that share caches, empty at first and gone at the end."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        yield {"TORCHINDUCTOR_CACHE_DIR": folder}


def end_turn() -> None:
    """In a worker: waits until the others have had their turns."""
    print(f"\n{_END_OF_TURN}", flush=True)
    sys.stdin.readline()
    time.sleep(_SPIN_S)


def answer(result: Any) -> None:
    """In a worker: its answer, the last that it prints."""
    print(f"\n{_ANSWER}{json.dumps(result)}", flush=True)


def is_patched() -> bool:
    """Whether the torch of this process has our modules."""
    return importlib.util.find_spec("torch._inductor.range_autotune") is not None


def device_name(device: str) -> str:
    """For people, of ``cuda`` or ``cpu``."""
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def write_results(benchmark: str, device: str, text: str, whole: bool = True) -> None:
    """Prints a table and keeps it in the folder of results, if it is the whole one."""
    print(text)
    if not whole:
        return
    RESULTS.mkdir(exist_ok=True)
    name = device.lower().replace(" ", "-")
    (RESULTS / f"{benchmark}-{name}.md").write_text(text)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def norm_by_mean(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    mean_square = wide.square().mean(-1, keepdim=True)
    return (wide * torch.rsqrt(mean_square + 1e-6) * weight.float()).to(x.dtype)


def norm_by_blocks(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    partial = wide.square().view(x.shape[0], -1, 64).sum(-1)
    mean_square = partial.sum(-1, keepdim=True) / x.shape[1]
    return (wide * torch.rsqrt(mean_square + 1e-6) * weight.float()).to(x.dtype)
