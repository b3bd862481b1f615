"""
What the choice among winners costs the host, over the inlined winner.

``python benchmarks/dispatch_cost.py`` compiles an op that is small enough for the host's
time to be all that counts, with 1, 2, 4, and 8 forced winners, and calls the generated
code in turns, at a size in each range, in Python and in C++. Tables show the medians of
one call in µs and what the dispatch adds to the single winner's; they go to
``benchmarks/results/``. On a GPU if there is one.
"""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
import time
from typing import Any, TYPE_CHECKING

from beside import device_name, write_results
from torch._inductor.codecache import PyCodeCache
from torch._inductor.utils import run_and_get_code

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WINNERS = (1, 2, 4, 8)
RANGE = 8
COLUMNS = 4
CALLS = 200
ROUNDS = 101


def scaled(factor: float) -> Callable[[Tensor, Tensor], Tensor]:
    """An implementation that differs from the others, in a constant only."""
    return lambda x, y: x * factor + y


def register(winners: int) -> Any:
    """An op with as many ranges, and one candidate in each."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    op = torch.library.custom_op(f"dispatch_cost::op{winners}", mutates_args=())(fn)

    @op.register_fake
    def _(x: Tensor, y: Tensor) -> Tensor:
        torch._check(x.shape == y.shape)
        return torch.empty_like(x)

    starts = [i * RANGE for i in range(winners)]
    configs = [
        CustomOpConfig(
            scaled(start + 2.0),
            tensor_name="x",
            dim_index=0,
            dim_range=(start, math.inf if start == starts[-1] else start + RANGE),
        )
        for start in starts
    ]
    register_custom_op_autotuning(op, configs=configs, include_fallback=False)
    return op


def arguments(size: int) -> tuple[Tensor, Tensor]:
    x, y = (torch.randn(size, COLUMNS, device=DEVICE) for _ in range(2))
    return x, y


def generated_call(winners: int) -> Callable[[list[Any]], Any]:
    """The ``call`` of the generated module; takes the size and the tensors."""
    args = arguments(RANGE)
    for arg in args:
        torch._dynamo.mark_dynamic(arg, 0)
    _, codes = run_and_get_code(torch.compile(register(winners)), *args)
    assert len(re.findall(r" if \(?s\d+ < ", codes[-1])) == winners - 1, codes[-1]
    return PyCodeCache.load(codes[-1]).call


def sample(call: Callable[[list[Any]], Any], inputs: list[Any]) -> float:
    """The time of one call in µs."""
    start = time.perf_counter()
    for _ in range(CALLS):
        call(list(inputs))
    elapsed = time.perf_counter() - start
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    return elapsed / CALLS * 1e6


@dataclasses.dataclass
class Cost:
    """Medians in µs of one size: of the single winner, and with each dispatch."""

    size: int
    times: dict[int, float]


def measure(cpp_wrapper: bool) -> list[Cost]:
    with config.patch(cpp_wrapper=cpp_wrapper, force_disable_caches=True):
        calls = {winners: generated_call(winners) for winners in WINNERS}
    costs = []
    for size in range(RANGE // 2, max(WINNERS) * RANGE, RANGE):
        first: Any = torch.tensor(size) if cpp_wrapper else size
        inputs = [first, *arguments(size)]
        samples: dict[int, list[float]] = {winners: [] for winners in WINNERS}
        for _ in range(ROUNDS):
            for winners, call in calls.items():
                samples[winners].append(sample(call, inputs))
        costs.append(Cost(size, {w: statistics.median(t) for w, t in samples.items()}))
    return costs


def table(costs: list[Cost]) -> str:
    """Markdown; the last line is the mean over all sizes."""
    several = WINNERS[1:]
    heads = ["size", "one winner", *(f"{w} winners add" for w in several)]
    lines = [f"| {' | '.join(heads)} |", "| ---: " * len(heads) + "|"]
    rows = [(str(cost.size), cost.times) for cost in costs]
    means = {w: statistics.fmean(c.times[w] for c in costs) for w in WINNERS}
    for name, times in [*rows, ("mean", means)]:
        added = [f"{times[w] - times[1]:+.2f}" for w in several]
        lines.append(f"| {name} | {times[1]:.2f} | {' | '.join(added)} |")
    return "\n".join(lines)


def main() -> None:
    device = device_name(DEVICE)
    lines = [f"# {device}, torch {torch.__version__}", ""]
    lines.append("The host's time of one call, µs: medians.")
    for wrapper in ("Python", "C++"):
        costs = table(measure(cpp_wrapper=wrapper == "C++"))
        lines += ["", f"## {wrapper} wrapper", "", costs]
    write_results("dispatch-cost", device, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
