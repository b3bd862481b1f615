"""
What the size that a model is compiled with costs it at others.

``python benchmarks/first_size.py`` compiles each workload at a small and at a large size: as
it is, and with its op registered for two ranges. Calls of all, and of what is compiled as it is
at the very size, take turns. Tables of medians in µs go to ``benchmarks/results/``. On a
GPU if there is one.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import logging
import random
import statistics
from typing import Any, TYPE_CHECKING

from beside import answer, device_name, fresh_caches, in_process, write_results
from runtime import register, sampler
from runtime_workloads import DEVICE, DTYPE, ON_GPU, Op

import torch
from torch._inductor import config


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

TURNS = 48
COLUMNS = 4096 if ON_GPU else 256
VOCABULARY = 128 * 1024
INNER = 4096


@dataclasses.dataclass(frozen=True)
class Work:
    """
    Args:
        inputs: for a size, the first one of each that is passed on to the op.
        dynamic: how many of the inputs have that size, from the first on.
        at: the two sizes to compile at.
        options: Inductor config to compile all under.
    """

    name: str
    op: Op
    inputs: Callable[[int], tuple[Tensor, ...]]
    dynamic: int
    at: tuple[int, int]
    sizes: tuple[int, ...]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def made(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=DTYPE)


def weight_gradient(x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Of an RMSNorm: one number for each column, from all rows."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)
    return (wide * scale * gradient.float()).sum(0).to(x.dtype)


def gradient_like(x: Tensor, gradient: Tensor) -> Tensor:
    torch._check(x.shape[0] == gradient.shape[0])
    return x.new_empty(x.shape[1])


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1, torch.float32)


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight)


def op_of(fn: Any, fake: Any, split: int, largest: int) -> Op:
    return Op(fn, fake, {fn.__name__: fn}, [split], largest)


GRADIENT = Work(
    f"gradient of an RMSNorm's weight ({COLUMNS} columns): a sum over rows",
    op_of(weight_gradient, gradient_like, 1024, 32768),
    lambda n: (made(n, COLUMNS), made(n, COLUMNS)),
    dynamic=2,
    at=(16 if ON_GPU else 2, 8192),
    sizes=(16, 128, 256, 1024, 8192, 32768),
)
ON_ROWS = functools.partial(
    Work,
    dynamic=1,
    at=(4 if ON_GPU else 2, 2048),
    sizes=(2, 4, 16, 64, 128, 512, 2048),
)
WORKS = [
    GRADIENT,
    ON_ROWS(
        f"softmax of {VOCABULARY if ON_GPU else COLUMNS} columns",
        op_of(
            softmax, functools.partial(torch.empty_like, dtype=torch.float32), 128, 2048
        ),
        lambda n: (made(n, VOCABULARY if ON_GPU else COLUMNS),),
    ),
]
if ON_GPU:
    WORKS.append(
        ON_ROWS(
            f"relu([M, {INNER}] @ [{INNER}, {INNER}]), max_autotune",
            op_of(product, lambda x, w: x.new_empty(x.shape[0], w.shape[1]), 256, 4096),
            lambda n: (made(n, INNER), made(INNER, INNER)),
            at=(16, 4096),
            sizes=(2, 16, 64, 256, 1024, 4096, 8192),
            options={"max_autotune": True},
        )
    )


def compiled_at(work: Work, size: int, fn: Any) -> Any:
    """A model of one call, compiled with the size dynamic."""
    scope = {"fn": fn}
    exec("def model(*args): return fn(*args)", scope)  # a code object of its own
    model, args = torch.compile(scope["model"]), work.inputs(size)
    for arg in args[: work.dynamic]:
        torch._dynamo.mark_dynamic(arg, 0)
    with config.patch(work.options):
        model(*args)
    return model


def measure(number: int, work: Work) -> dict[str, dict[int, float]]:
    """Medians in µs, by variant and size."""
    op = register(work.op, f"first_size{number}")
    variants, there = {}, {}
    for first in work.at:
        for name, fn in (("plain", work.op.fn), ("tuned", op)):
            variants[f"{name}, compiled at {first}"] = compiled_at(work, first, fn)
    for size in work.sizes:
        there[size] = compiled_at(work, size, work.op.fn)
    times: dict[str, dict[int, float]] = {}
    sample, order = sampler(), random.Random(0)
    for size in work.sizes:
        args, calls = (
            work.inputs(size),
            {**variants, "plain, compiled there": there[size]},
        )
        samples: dict[str, list[float]] = {name: [] for name in calls}
        for call in calls.values():
            call(*args)
        for _ in range(TURNS):
            for name in order.sample([*calls], len(calls)):
                call = functools.partial(calls[name], *args)
                samples[name].append(sample(call))
        for name, values in samples.items():
            times.setdefault(name, {})[size] = statistics.median(values)
    return times


def table(measured: dict[str, dict[str, dict[str, float]]]) -> str:
    """Markdown: a table for each workload, ratios last."""
    lines = [f"# {device_name(DEVICE)}, torch {torch.__version__}", ""]
    lines += ["Medians of one call, µs, in turns."]
    for name, times in measured.items():
        there = times["plain, compiled there"]
        rows = {row: [f"{us:.1f}" for us in at.values()] for row, at in times.items()}
        for row, at in times.items():
            if at is not there:
                ratios = [f"{at[size] / there[size]:.2f}" for size in there]
                rows[f"{row} / plain, compiled there"] = ratios
        lines += ["", f"## {name}", "", f"| | {' | '.join(there)} |"]
        lines += ["| --- |" + " ---: |" * len(there)]
        lines += [f"| {row} | {' | '.join(cells)} |" for row, cells in rows.items()]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().worker:
        torch._logging.set_logs(inductor=logging.ERROR)
        with config.patch(fx_graph_cache=False):
            answer({work.name: measure(i, work) for i, work in enumerate(WORKS)})
        return
    with fresh_caches() as variables:
        measured = in_process(__file__, ["--worker"], variables=variables)
    write_results("first-size", device_name(DEVICE), table(measured))


if __name__ == "__main__":
    main()
