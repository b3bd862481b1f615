"""
The time of one call behind a dispatch, patched build beside the base.

``python benchmarks/runtime.py --base SITE`` measures the torch it runs on and the stock
base in SITE (a folder for PYTHONPATH), in processes that take turns, prints a table of
medians in µs, and writes that of all workloads to ``benchmarks/results/``. On a GPU if
there is one.

Each workload is one op, or two in a row, between pointwise neighbours. ``forced`` is a
dispatch among forced winners, one for each range; ``tuned`` the free choice; the rest are
the implementations in the ops' place, and the ops' bodies (``plain``), fused with their
neighbours by ``torch.compile``, and on a GPU kernels of all that by hand.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
import operator
import random
import statistics
import time
from typing import Any, TYPE_CHECKING

from beside import (
    answer,
    device_name,
    end_turn,
    in_turns,
    is_patched,
    write_results,
)
from runtime_workloads import DEVICE, ON_GPU, Op, Workload, WORKLOADS

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


# The variants with a dispatch.
OURS = ("forced", "tuned")
# On a CPU one code differs by 10 to 15 % from one process to another now and then.
PROCESSES = 1 if ON_GPU else 3
TURNS, ROUNDS_A_TURN = 24 // PROCESSES, 4
# In bytes. On a CPU one code was 20 to 40 % slower in one process than in another, for as
# long as its inputs and results had the same places.
SHIFTS = range(2**20, 2**20 + 4096, 64)
# Of the cache, 60 µs each on an H200: longer than the host takes to launch a call, or, where
# it is busy, twice as many, and so on.
FLUSHES, MOST_FLUSHES = 4, 32


def define(op: Op, name: str) -> Any:
    """The op as PyTorch calls it, with nothing registered to choose from."""
    define = torch.library.custom_op(f"runtime::{name}", mutates_args=op.written)
    custom_op = define(op.fn)
    custom_op.register_fake(op.fake)
    return custom_op


def register(op: Op, name: str) -> Any:
    """The op, in the form of registration that the base has too."""
    custom_op = define(op, name)
    register_custom_op_autotuning(
        custom_op,
        configs=[CustomOpConfig(fn) for fn in op.implementations.values()],
        dispatch_on={
            "tensor_name": custom_op._opoverload._schema.arguments[0].name,
            "dim": 0,
            "range_upper_bound": op.largest,
        },
        split_points=op.split_points,
    )
    return custom_op


def sampler(flushes: int = FLUSHES) -> Callable[[Callable[[], Any]], float]:
    """
    Returns a function from a call to its time in µs.

    Args:
        flushes: of a GPU's cache, before the call; more if they end before it is launched.
    """
    if not ON_GPU:
        return sample_on_cpu
    flushed = torch.empty(256 * 2**20, dtype=torch.int8, device=DEVICE)

    def sample_on_gpu(call: Callable[[], Any], flushes: int = flushes) -> float:
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        for _ in range(flushes):
            flushed.zero_()
        start.record()
        call()
        end.record()
        is_launched = not start.query()
        torch.cuda.synchronize()
        if not is_launched and flushes < MOST_FLUSHES:
            return sample_on_gpu(call, 2 * flushes)
        return start.elapsed_time(end) * 1e3

    return sample_on_gpu


def sample_on_cpu(call: Callable[[], Any]) -> float:
    start, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < 1e-3 or not calls:
        call()
        calls += 1
    return elapsed / calls * 1e6


def moved_inputs(
    workload: Workload, size: int, order: random.Random
) -> tuple[tuple[torch.Tensor, ...], torch.Tensor]:
    """Inputs behind a block of another length each time, and that block."""
    before = torch.empty(order.choice(SHIFTS), dtype=torch.uint8)
    return workload.inputs(size), before


def plans(workload: Workload, tuned: list[Any]) -> dict[str, tuple[Any, dict]]:
    """What is in the ops' place and the Inductor config to compile under, by variant."""
    forced = {
        "test_configs.force_no_impl_grouping": True,
        "test_configs.force_custom_op_decomposition": True,
    }
    bodies = [op.fn for op in workload.ops]
    fixed = {
        variant: ([op.implementations[n] for op, n in zip(workload.ops, names)], {})
        for variant, names in names_of_choices(workload).items()
    }
    others = {"plain": (bodies, {})}
    if workload.max_autotune:
        others["plain, max-autotune"] = (bodies, {"max_autotune": True})
    return {"forced": (tuned, forced), "tuned": (tuned, {}), **fixed, **others}


def names_of_choices(workload: Workload) -> dict[str, tuple[str, ...]]:
    """An implementation for each op in all ways, by variant."""
    choices = itertools.product(*(op.implementations for op in workload.ops))
    return {" + ".join(names): names for names in choices}


def takes(workload: Workload, variant: str, size: int) -> bool:
    """Whether the implementations in the ops' place can be called at a size."""
    names = names_of_choices(workload).get(variant, ())
    factors = [op.multiples.get(name, 1) for op, name in zip(workload.ops, names)]
    return all(size % factor == 0 for factor in factors)


def compile_variants(workload: Workload, tuned: list[Any]) -> dict[str, Any]:
    """The model by variant, each compiled once for all sizes, and kernels by hand."""
    compiled = {}
    for name, (fns, patches) in plans(workload, tuned).items():
        source = f"def model(*args): return around(*fns, *args)  # {name}"
        scope = {"around": workload.around, "fns": fns}
        exec(compile(source, name, "exec"), scope)  # a code object of its own
        args = workload.inputs(256)
        for arg in args:
            if arg.shape[0] == 256 and arg.dim() == 2:
                torch._dynamo.mark_dynamic(arg, 0)
        compiled[name] = torch.compile(scope["model"])
        with config.patch(patches):
            compiled[name](*args)
    for kernel in workload.by_hand.values():
        # They may write to their arguments.
        given, also_given = ([arg.clone() for arg in args] for _ in range(2))
        result, expected = kernel(*given), compiled["plain"](*also_given)
        torch.testing.assert_close(result, expected, atol=0.1, rtol=0.05)
    return {**compiled, **workload.by_hand}


def over_best(samples: dict[str, list[float]], ours: str) -> float:
    """
    How many times as long as the best of the fixed variants one of ours takes, from what
    was measured in the same rounds: what slows a round down slows all of it down.
    """
    return max(
        statistics.median(map(operator.truediv, samples[ours], values))
        for name, values in samples.items()
        if name not in OURS
    )


def measure(chosen: str) -> dict[str, dict[str, dict[str, dict[int, float]]]]:
    """
    Medians by workload and size: in µs, by variant (``times``), and those of ours over
    that of the best other one (``over best``).
    """
    results: dict[str, dict[str, dict[str, dict[int, float]]]] = {}
    sample = sampler()
    # On a CPU no variant shall fault its pages in anew where others do not, by chance:
    # see `keep_heap` in the patched build, and the base has none.
    torch.empty(31 * 2**20, dtype=torch.uint8)
    order = random.Random(0)
    for number, workload in enumerate(WORKLOADS):
        if chosen not in workload.name or not (workload.on_base or is_patched()):
            continue
        torch._dynamo.reset()
        tuned = [register(op, f"op{number}_{i}") for i, op in enumerate(workload.ops)]
        end_turn()
        variants = compile_variants(workload, tuned)
        times: dict[str, dict[int, float]] = {name: {} for name in variants}
        ratios: dict[str, dict[int, float]] = {name: {} for name in OURS}
        for size in workload.sizes:
            samples: dict[str, list[float]] = {
                name: [] for name in variants if takes(workload, name, size)
            }
            for _ in range(TURNS):
                end_turn()
                args, _before = moved_inputs(workload, size, order)
                for _ in range(ROUNDS_A_TURN):
                    # What ran before leaves its traces in caches.
                    for name in order.sample(list(samples), len(samples)):
                        call = functools.partial(variants[name], *args)
                        samples[name].append(sample(call))
            for name, values in samples.items():
                times[name][size] = statistics.median(values)
            for name in OURS:
                ratios[name][size] = over_best(samples, name)
        results[workload.name] = {"times": times, "over best": ratios}
    return results


def median_of(results: Sequence[Any]) -> Any:
    """Of results of several processes, leaf by leaf; what is no number is the first's."""
    first = results[0]
    if isinstance(first, dict):
        return {key: median_of([result[key] for result in results]) for key in first}
    return statistics.median(results) if isinstance(first, float) else first


def ratio(times: dict[str, float], others: dict[str, float]) -> list[float]:
    """Size by size."""
    return [times[size] / others[size] for size in times]


def table(patched: Any, base: Any = None) -> str:
    """Markdown: a table for each workload, ratios last."""
    lines = [
        f"# {patched['device']}, torch {patched['torch']}",
        "",
        "Medians of one call, µs. Base and patched take turns. The others are all but the",
        "dispatches and the base; ratios to the best of them are medians over rounds in",
        "which each is called once.",
    ]
    if PROCESSES > 1:
        lines[-1] += f" All are medians over {PROCESSES} processes of each."
    for name, measured in patched["workloads"].items():
        times = measured["times"]
        sizes = list(times["tuned"])
        rows = dict(times)
        theirs = base["workloads"].get(name, {}).get("times") if base else None
        if theirs:
            rows.update({f"base: {v}": theirs[v] for v in (*OURS, "plain")})
        lines += ["", f"## {name}", "", f"| | {' | '.join(sizes)} |"]
        lines += ["| --- |" + " ---: |" * len(sizes)]
        for row, values in rows.items():
            cells = [f"{values[s]:.1f}" if s in values else "–" for s in sizes]
            lines.append(f"| {row} | {' | '.join(cells)} |")
        ratios = {
            f"{ours} / best of the others": [*measured["over best"][ours].values()]
            for ours in OURS
        }
        if theirs:
            for ours in OURS:
                ratios[f"base: {ours} / {ours}"] = ratio(theirs[ours], times[ours])
            ratios["base: plain / tuned"] = ratio(theirs["plain"], times["tuned"])
        for row, numbers in ratios.items():
            lines.append(f"| {row} | {' | '.join(f'{n:.2f}' for n in numbers)} |")
    return "\n".join(lines) + "\n"


def work(chosen: str) -> None:
    """Measures in this process; the last line printed is the result as JSON."""
    torch._logging.set_logs(inductor=logging.ERROR)
    with config.patch(fx_graph_cache=False):
        workloads = measure(chosen)
    device = device_name(DEVICE)
    answer({"device": device, "torch": torch.__version__, "workloads": workloads})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--base", help="a folder with the stock base, for PYTHONPATH")
    parser.add_argument("--only", default="", help="workloads with this in their name")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(options.only)
    worker = ["--worker", "--only", options.only]
    sites = [None, options.base] if options.base else [None]
    results = in_turns(__file__, worker, sites * PROCESSES)
    ours, *base = (median_of(results[i :: len(sites)]) for i in range(len(sites)))
    text = table(ours, *base)
    write_results("runtime", ours["device"], text, whole=not options.only)
    return None


if __name__ == "__main__":
    main()
