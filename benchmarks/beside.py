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
from typing import Any, TYPE_CHECKING

import torch.nn.functional as F

import torch


if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

RESULTS = pathlib.Path(__file__).parent / "results"


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
    env = {**os.environ, **(variables or {})}
    if site:
        before = env.get("PYTHONPATH")
        env["PYTHONPATH"] = os.pathsep.join([site, before] if before else [site])
    command = [sys.executable, script, *arguments]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"the worker failed{f' on {site}' if site else ''}: {command}")
    return json.loads(done.stdout.splitlines()[-1])


@contextlib.contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """Variables for processes that share caches, empty at first and gone at the end."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        yield {"TORCHINDUCTOR_CACHE_DIR": folder}


def answer(result: Any) -> None:
    """Prints what ``in_process`` returns, as the last line."""
    print()
    print(json.dumps(result))


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
