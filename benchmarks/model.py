"""
Decoders whose ops are registered, beside the same ones without registrations.

``python benchmarks/model.py --base SITE`` compiles each once for all numbers of tokens, and
once more in each of Inductor's modes that a GPU has. The table shows the medians of one call
in µs: ``tuned`` with the ops registered, ``called`` without, ``plain`` with their bodies in
their place, all also on the stock base in SITE, which registers no ops that write in place. On a
GPU a call's launches are queued before it is timed.
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

from beside import answer, device_name, end_turn, in_turns, is_patched, write_results
from model_decoders import Decoder, DECODERS, LARGEST, LAYERS
from runtime import define, ratio, register, sampler
from runtime_workloads import COLUMNS, DEVICE, ON_GPU, Op
from torch._inductor.exc import InductorError

import torch
from torch._inductor import config


if TYPE_CHECKING:
    from collections.abc import Callable

    # Of one call in µs, by decoder and mode, variant and number of tokens.
    Times = dict[str, dict[str, dict[int, float]]]

TOKENS = (1, 4, 16, 40, 128, 300, 1024, 2048, 4096) if ON_GPU else (4, 40, 300, 1024)
SPLIT_POINTS = [16, 128, 1024]
MODES: dict[str, dict[str, Any]] = {
    "default": {},
    "CUDA graphs": {"triton.cudagraphs": True},
    "max-autotune": {"max_autotune": True},
}
TURNS, ROUNDS_A_TURN = 10, 3
# Some 3 ms, in which a host launches what is left of a decoder's kernels.
FLUSHES = 50


def compile_variants(
    decoder: Decoder, variants: dict[str, tuple[Callable[..., Any], ...]]
) -> tuple[dict[str, Any], dict[str, float]]:
    """
    The decoder by variant, compiled, and how many seconds that took.

    Without ``tuned`` where the base cannot compile it.

    Args:
        variants: what is in the ops' places.
    """
    compiled, seconds = {}, {}
    for name, fns in variants.items():
        model = decoder.make(*fns)
        args = decoder.inputs(256)
        for arg in args:
            torch._dynamo.mark_dynamic(arg, 0)
        compiled[name] = torch.compile(model)
        start = time.perf_counter()
        try:
            result = compiled[name](*args)
        except InductorError:
            if name != "tuned" or is_patched():
                raise
            del compiled[name]
            continue
        if ON_GPU:
            torch.cuda.synchronize()
        seconds[name] = time.perf_counter() - start
        torch.testing.assert_close(result, model(*args), atol=0.2, rtol=0.1)
    return compiled, seconds


def measure(chosen: str, modes: list[str]) -> tuple[Times, dict[str, dict[str, float]]]:
    """Also how many seconds each variant took to compile, by decoder and mode."""
    times: Times = {}
    seconds: dict[str, dict[str, float]] = {}
    order, sample = random.Random(0), sampler(FLUSHES)
    for number, (title, decoder) in enumerate(DECODERS.items()):
        if chosen not in title:
            continue
        made = {"plain": lambda op, _: op.fn, "called": define}
        if decoder.on_base or is_patched():
            made["tuned"] = register
        variants = {
            variant: tuple(
                make(in_ranges(op), f"{op.fn.__name__}_{variant}_{number}")
                for op in decoder.ops
            )
            for variant, make in made.items()
        }
        for mode in modes:
            row = f"{title}, {mode}"
            torch._dynamo.reset()
            end_turn()
            with config.patch(MODES[mode]):
                compiled, seconds[row] = compile_variants(decoder, variants)
            times[row] = {name: {} for name in compiled}
            for size in TOKENS:
                medians_of = medians(decoder, compiled, size, sample, order)
                for name, median in medians_of.items():
                    times[row][name][size] = median
    return times, seconds


def in_ranges(op: Op) -> Op:
    return dataclasses.replace(op, split_points=SPLIT_POINTS, largest=LARGEST)


def medians(
    decoder: Decoder,
    variants: dict[str, Any],
    size: int,
    sample: Callable[[Callable[[], Any]], float],
    order: random.Random,
) -> dict[str, float]:
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(TURNS):
        end_turn()
        args = decoder.inputs(size)
        for name in variants:  # a CUDA graph is recorded in the second call
            for _ in range(2):
                variants[name](*args)
        for _ in range(ROUNDS_A_TURN):
            for name in order.sample(list(variants), len(variants)):
                call = functools.partial(variants[name], *args)
                samples[name].append(sample(call))
    return {name: statistics.median(values) for name, values in samples.items()}


def table(ours: Any, theirs: Any = None) -> str:
    """Markdown: a table for each decoder and mode, ratios last."""
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
        ratios = {
            f"tuned / {name}": ratio(times["tuned"], times[name])
            for name in ("plain", "called")
        }
        if theirs:
            for name, row in theirs["times"][mode].items():
                ratios[f"base: {name} / tuned"] = ratio(row, times["tuned"])
        for name, numbers in ratios.items():
            lines.append(f"| {name} | {' | '.join(f'{n:.3f}' for n in numbers)} | |")
    return "\n".join(lines) + "\n"


def work(chosen: str, modes: list[str]) -> None:
    """Measures in this process; the last line printed is the result as JSON."""
    torch._logging.set_logs(inductor=logging.ERROR)
    with torch.no_grad(), config.patch(fx_graph_cache=False):
        times, seconds = measure(chosen, modes)
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
    parser.add_argument("--only", default="", help="decoders with this in their name")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.only, options.modes)
    worker = ["--worker", "--only", options.only, "--modes", *options.modes]
    sites = [None, options.base] if options.base else [None]
    ours, *base = in_turns(__file__, worker, sites)
    whole = options.modes == on_device and not options.only
    write_results("model", ours["device"], table(ours, *base), whole)
    return None


if __name__ == "__main__":
    main()
