"""
The time of one call behind a dispatch, patched build beside the base.

``python benchmarks/runtime.py --base SITE`` measures the torch it runs on and the stock
base in SITE (a folder for PYTHONPATH), one process each, prints a table of medians in µs,
and writes it to ``benchmarks/results/``. On a GPU if there is one.

Each workload is one op between pointwise neighbours. ``forced`` is a dispatch among forced
winners, one for each range; ``tuned`` the free choice; the rest are the implementations in
the op's place, fused with its neighbours by plain ``torch.compile``.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import logging
import statistics
import time
from typing import Any, TYPE_CHECKING

import torch.nn.functional as F
from beside import (
    answer,
    device_name,
    in_process,
    norm_by_blocks,
    norm_by_mean,
    rms_norm,
    write_results,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
ROUNDS = 31
# The CPU gets smaller work, so that the whole run takes minutes there too.
SCALE = 1 if ON_GPU else 8


@dataclasses.dataclass(frozen=True)
class Workload:
    """
    An op, its implementations by name, and its neighbours.

    Args:
        split_points: of the dispatch on the first dimension of the first argument.
        inputs: for a size; all that have the size as first dimension are dynamic.
        around: calls a function in the op's place, and the neighbours.
    """

    name: str
    fn: Callable[..., Tensor]
    fake: Callable[..., Tensor]
    implementations: dict[str, Callable[..., Tensor]]
    split_points: list[int]
    largest: int
    sizes: tuple[int, ...]
    inputs: Callable[[int], tuple[Tensor, ...]]
    around: Callable[..., Tensor]


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE)


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def mm_direct(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def split_k(splits: int) -> Callable[[Tensor, Tensor], Tensor]:
    def mm_split_k(a: Tensor, b: Tensor) -> Tensor:
        m, k = a.shape
        parts = a.view(m, splits, k // splits).transpose(0, 1)
        others = b.view(splits, k // splits, -1)
        if ON_GPU:
            products = torch.bmm(parts, others, out_dtype=torch.float32)
        else:
            products = torch.bmm(parts, others)
        return products.sum(0).to(a.dtype)

    mm_split_k.__name__ = f"mm_split_k_{splits}"
    return mm_split_k


COLUMNS = 4096 // SCALE
INNER = 7168 // SCALE

WORKLOADS = (
    Workload(
        name=f"RMSNorm ({COLUMNS} columns), then silu(gate) * y + 1",
        fn=rms_norm,
        fake=lambda x, weight: torch.empty_like(x),
        implementations={"mean": norm_by_mean, "blocks": norm_by_blocks},
        split_points=[512],
        largest=8192,
        sizes=(32, 128, 512, 2048, 8192, 32768)[: 6 if ON_GPU else 5],
        inputs=lambda n: (random(n, COLUMNS), random(n, COLUMNS), random(COLUMNS)),
        around=lambda fn, x, gate, weight: F.silu(gate) * fn(x, weight) + 1,
    ),
    Workload(
        name=f"split-K GEMM ([M, {INNER}] @ [{INNER}, 256]), then relu(y + bias) * 2",
        fn=mm,
        fake=lambda a, b: a.new_empty(a.shape[0], b.shape[1]),
        implementations={"direct": mm_direct}
        | {f"split {n}": split_k(n) for n in (4, 8, 16, 32)},
        split_points=[16, 128, 1024],
        largest=4096,
        sizes=(4, 16, 17, 40, 64, 128, 129, 200, 512, 1024, 2048, 4096),
        inputs=lambda n: (random(n, INNER), random(INNER, 256), random(256)),
        around=lambda fn, a, b, bias: torch.relu(fn(a, b) + bias) * 2,
    ),
)


def register(workload: Workload, number: int) -> Any:
    """The workload's op, in the form of registration that the base has too."""
    op = torch.library.custom_op(f"runtime::op{number}", mutates_args=())(workload.fn)
    op.register_fake(workload.fake)
    register_custom_op_autotuning(
        op,
        configs=[CustomOpConfig(fn) for fn in workload.implementations.values()],
        dispatch_on={
            "tensor_name": op._opoverload._schema.arguments[0].name,
            "dim": 0,
            "range_upper_bound": workload.largest,
        },
        split_points=workload.split_points,
    )
    return op


def sampler() -> Callable[[Callable[[], Any]], float]:
    """Returns a function from a call to its time in µs."""
    if not ON_GPU:
        return sample_on_cpu
    flushed = torch.empty(256 * 2**20, dtype=torch.int8, device=DEVICE)

    def sample_on_gpu(call: Callable[[], Any]) -> float:
        start, end = torch.cuda.Event(True), torch.cuda.Event(True)
        flushed.zero_()
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e3

    return sample_on_gpu


def sample_on_cpu(call: Callable[[], Any]) -> float:
    start, calls = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < 1e-3 or not calls:
        call()
        calls += 1
    return elapsed / calls * 1e6


def compile_variants(workload: Workload, op: Any) -> dict[str, Callable[..., Tensor]]:
    """The model by variant, each compiled once for all sizes."""
    forced = {
        "test_configs.force_no_impl_grouping": True,
        "test_configs.force_custom_op_decomposition": True,
    }
    plans: dict[str, tuple[Any, dict[str, Any]]] = {
        "forced": (op, forced),
        "tuned": (op, {}),
        **{name: (fn, {}) for name, fn in workload.implementations.items()},
    }
    compiled = {}
    for name, (fn, patches) in plans.items():
        source = f"def model(*args): return around(fn, *args)  # {name}"
        scope = {"around": workload.around, "fn": fn}
        exec(compile(source, name, "exec"), scope)  # a code object of its own
        args = workload.inputs(256)
        for arg in args:
            if arg.shape[0] == 256 and arg.dim() == 2:
                torch._dynamo.mark_dynamic(arg, 0)
        compiled[name] = torch.compile(scope["model"])
        with config.patch(patches):
            compiled[name](*args)
    return compiled


def measure() -> dict[str, dict[str, dict[int, float]]]:
    """Medians in µs by workload, variant and size."""
    results: dict[str, dict[str, dict[int, float]]] = {}
    sample = sampler()
    for number, workload in enumerate(WORKLOADS):
        torch._dynamo.reset()
        variants = compile_variants(workload, register(workload, number))
        times: dict[str, dict[int, float]] = {name: {} for name in variants}
        for size in workload.sizes:
            args = workload.inputs(size)
            samples: dict[str, list[float]] = {name: [] for name in variants}
            for _ in range(ROUNDS):
                for name, fn in variants.items():
                    samples[name].append(sample(functools.partial(fn, *args)))
            for name, values in samples.items():
                times[name][size] = statistics.median(values)
        results[workload.name] = times
    return results


def table(ours: Any, base: Any) -> str:
    """Markdown: a table for each workload, ratios last."""
    lines = [
        f"# {ours['device']}, torch {ours['torch']}",
        "",
        "Medians of one call, µs.",
    ]
    for name, times in ours["times"].items():
        sizes = list(times["tuned"])
        fixed = [v for v in times if v not in ("forced", "tuned")]
        rows = dict(times)
        if base:
            rows["base: forced"] = base["times"][name]["forced"]
            rows["base: tuned"] = base["times"][name]["tuned"]
        lines += ["", f"## {name}", "", f"| | {' | '.join(sizes)} |"]
        lines += ["| --- |" + " ---: |" * len(sizes)]
        for row, values in rows.items():
            lines.append(f"| {row} | {' | '.join(f'{values[s]:.1f}' for s in sizes)} |")
        best = {s: min(times[v][s] for v in fixed) for s in sizes}
        ratios = {
            "tuned / best implementation": [times["tuned"][s] / best[s] for s in sizes]
        }
        if base:
            ratios["base: forced / forced"] = [
                rows["base: forced"][s] / times["forced"][s] for s in sizes
            ]
            ratios["base: tuned / tuned"] = [
                rows["base: tuned"][s] / times["tuned"][s] for s in sizes
            ]
        for row, numbers in ratios.items():
            lines.append(f"| {row} | {' | '.join(f'{n:.2f}' for n in numbers)} |")
    return "\n".join(lines) + "\n"


def work() -> None:
    """Measures in this process; the last line printed is the result as JSON."""
    torch._logging.set_logs(inductor=logging.ERROR)
    with config.patch(fx_graph_cache=False):
        times = measure()
    device = device_name(DEVICE)
    answer({"device": device, "torch": torch.__version__, "times": times})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--base", help="a folder with the stock base, for PYTHONPATH")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work()
    worker = ["--worker"]
    ours = in_process(__file__, worker)
    base = in_process(__file__, worker, options.base) if options.base else None
    write_results("runtime", ours["device"], table(ours, base))
    return None


if __name__ == "__main__":
    main()
