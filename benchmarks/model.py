"""
A decoder whose ops are registered, beside the same one without registrations.

``python benchmarks/model.py --base SITE`` compiles it once for all numbers of tokens, and
once more in each of Inductor's modes that a GPU has. The table shows the medians of one call
in µs: ``tuned`` with RMSNorm and SwiGLU registered, ``plain`` without, both also on the
stock base in SITE. On a GPU a call's launches are queued before it is timed.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import logging
import random
import statistics
import time
from typing import Any, TYPE_CHECKING

import torch.nn.functional as F
from beside import answer, device_name, end_turn, in_turns, is_patched, write_results
from runtime import ratio, register, sampler
from runtime_workloads import COLUMNS, DEVICE, DTYPE, ON_GPU, Op, RMS_NORM, SWIGLU
from torch._inductor.exc import InductorError

import torch
from torch import nn
from torch._inductor import config


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    # Of one call in µs, by mode, variant and number of tokens.
    Times = dict[str, dict[str, dict[int, float]]]

LAYERS = 8 if ON_GPU else 2
HEADS = COLUMNS // 128
INNER = 11008 * COLUMNS // 4096
TOKENS = (1, 4, 16, 40, 128, 300, 1024, 2048, 4096) if ON_GPU else (4, 40, 300, 1024)
SPLIT_POINTS, LARGEST = [16, 128, 1024], 8192
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "CUDA graphs": {"triton.cudagraphs": True},
    "max-autotune": {"max_autotune": True},
}
TURNS, ROUNDS_A_TURN = 10, 3
# Some 3 ms, in which a host launches what is left of a decoder's kernels.
FLUSHES = 50


class Layer(nn.Module):
    """
    Attention and a gated product, each behind a norm and added to what it read.

    Args:
        norm: of tokens and weights of its columns.
        gated: of tokens and weights of both products in one.
    """

    def __init__(
        self, norm: Callable[..., Tensor], gated: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self._norm, self._gated = norm, gated
        self.before, self.between = ones(COLUMNS), ones(COLUMNS)
        self.heads, self.mixed = (
            weights(COLUMNS, 3 * COLUMNS),
            weights(COLUMNS, COLUMNS),
        )
        self.up, self.down = weights(COLUMNS, 2 * INNER), weights(INNER, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        heads = (self._norm(x, self.before) @ self.heads).view(len(x), 3, HEADS, -1)
        query, key, value = heads.permute(1, 2, 0, 3).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + mixed[0].transpose(0, 1).reshape(len(x), COLUMNS) @ self.mixed
        return x + self._gated(self._norm(x, self.between), self.up) @ self.down


def ones(size: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(size, device=DEVICE, dtype=DTYPE))


def weights(rows: int, columns: int) -> nn.Parameter:
    values = torch.randn(rows, columns, device=DEVICE, dtype=DTYPE)
    return nn.Parameter(values * rows**-0.5)


def decoder(norm: Callable[..., Tensor], gated: Callable[..., Tensor]) -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(norm, gated) for _ in range(LAYERS)))


def tokens(count: int) -> Tensor:
    return torch.randn(count, COLUMNS, device=DEVICE, dtype=DTYPE)


def compile_variants(
    ops: tuple[Callable[..., Tensor], Callable[..., Tensor]],
) -> tuple[dict[str, Any], dict[str, float]]:
    """
    The decoder by variant, compiled, and how many seconds that took.

    Without ``tuned`` where the base cannot compile it.
    """
    compiled, seconds = {}, {}
    for name, fns in {"plain": (RMS_NORM.fn, SWIGLU.fn), "tuned": ops}.items():
        model = decoder(*fns)
        x = tokens(256)
        torch._dynamo.mark_dynamic(x, 0)
        compiled[name] = torch.compile(model)
        start = time.perf_counter()
        try:
            result = compiled[name](x)
        except InductorError:
            if name == "plain" or is_patched():
                raise
            del compiled[name]
            continue
        if ON_GPU:
            torch.cuda.synchronize()
        seconds[name] = time.perf_counter() - start
        torch.testing.assert_close(result, model(x), atol=0.2, rtol=0.1)
    return compiled, seconds


def measure(modes: list[str]) -> tuple[Times, dict[str, dict[str, float]]]:
    """Also how many seconds each variant took to compile, by mode."""
    times: Times = {}
    seconds: dict[str, dict[str, float]] = {}
    order, sample = random.Random(0), sampler(FLUSHES)
    norm, gated = (register(in_ranges(op), op.fn.__name__) for op in (RMS_NORM, SWIGLU))
    for mode in modes:
        torch._dynamo.reset()
        end_turn()
        with config.patch(MODES[mode]):
            variants, seconds[mode] = compile_variants((norm, gated))
        times[mode] = {name: {} for name in variants}
        for size in TOKENS:
            for name, median in medians(variants, size, sample, order).items():
                times[mode][name][size] = median
    return times, seconds


def in_ranges(op: Op) -> Op:
    return dataclasses.replace(op, split_points=SPLIT_POINTS, largest=LARGEST)


def medians(
    variants: dict[str, Any],
    size: int,
    sample: Callable[[Callable[[], Any]], float],
    order: random.Random,
) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(TURNS):
        end_turn()
        x = tokens(size)
        for name in variants:  # a CUDA graph is recorded in the second call
            for _ in range(2):
                variants[name](x)
        for _ in range(ROUNDS_A_TURN):
            for name in order.sample(list(variants), len(variants)):
                samples[name].append(sample(functools.partial(variants[name], x)))
    return {name: statistics.median(values) for name, values in samples.items()}


def table(ours: Any, theirs: Any = None) -> str:
    """Markdown: a table for each mode, ratios last."""
    lines = [
        f"# {ours['device']}, torch {ours['torch']}",
        "",
        f"Medians of one call of {LAYERS} layers of {COLUMNS} columns, µs, by tokens.",
        "Base and patched take turns. What is not there does not compile.",
    ]
    for mode, times in ours["times"].items():
        sizes = list(times["plain"])
        rows = dict(times)
        seconds = dict(ours["seconds"][mode])
        if theirs:
            rows |= {f"base: {v}": row for v, row in theirs["times"][mode].items()}
            spent = theirs["seconds"][mode].items()
            seconds |= {f"base: {v}": value for v, value in spent}
        lines += ["", f"## {mode}", "", f"| | {' | '.join(sizes)} | compiled in, s |"]
        lines.append("| --- |" + " ---: |" * (len(sizes) + 1))
        for name, row in rows.items():
            values = [f"{row[s]:.1f}" for s in sizes] + [f"{seconds[name]:.1f}"]
            lines.append(f"| {name} | {' | '.join(values)} |")
        ratios = {"tuned / plain": ratio(times["tuned"], times["plain"])}
        if theirs:
            for name, row in theirs["times"][mode].items():
                ratios[f"base: {name} / tuned"] = ratio(row, times["tuned"])
        for name, numbers in ratios.items():
            lines.append(f"| {name} | {' | '.join(f'{n:.3f}' for n in numbers)} | |")
    return "\n".join(lines) + "\n"


def work(modes: list[str]) -> None:
    """Measures in this process; the last line printed is the result as JSON."""
    torch._logging.set_logs(inductor=logging.ERROR)
    with torch.no_grad(), config.patch(fx_graph_cache=False):
        times, seconds = measure(modes)
    device = device_name(DEVICE)
    answer(
        {
            "device": device,
            "torch": torch.__version__,
            "times": times,
            "seconds": seconds,
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--base", help="a folder with the stock base, for PYTHONPATH")
    on_device = list(MODES) if ON_GPU else ["default"]
    parser.add_argument("--modes", nargs="+", choices=MODES, default=on_device)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.modes)
    worker = ["--worker", "--modes", *options.modes]
    sites = [None, options.base] if options.base else [None]
    ours, *base = in_turns(__file__, worker, sites)
    whole = options.modes == on_device
    write_results("model", ours["device"], table(ours, *base), whole)
    return None


if __name__ == "__main__":
    main()
