"""
The time of compiling, tuning included, patched build beside the base.

``python benchmarks/compile.py --base SITE`` times the first call of compiled models, each in
a process of its own with a cache folder of its own, on the torch it runs on and on the
stock base in SITE (a folder for PYTHONPATH). It prints the medians and, last, the ratios
with the goal beside each, and writes both to ``benchmarks/results/``.

The model is made of chains of one op (an RMSNorm, whose implementations are in
``IMPLEMENTATIONS``) between pointwise neighbours, and of other layers. Where the op is not
registered, it is called eagerly. What tuning takes is what it adds to compiling the model
with an implementation in the op's place.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import os
import statistics
import sys
import time
import warnings
from typing import Any, TYPE_CHECKING

import torch.nn.functional as F
from beside import (
    answer,
    device_name,
    fresh_caches,
    in_process,
    is_patched,
    norm_by_blocks,
    norm_by_mean,
    rms_norm,
    write_results,
)
from torch._dynamo.utils import counters
from torch._inductor.async_compile import AsyncCompile

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

ROWS = 256
SPLIT_POINTS = [16, 64, 256, 1024]
LARGEST = 4096
WIDTH = 1024
OTHER_LAYERS = 12


def norm_by_vector_norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    mean_square = length * length / x.shape[1]
    return (wide * torch.rsqrt(mean_square + 1e-6) * weight.float()).to(x.dtype)


def norm_by_chunks(x: Tensor, weight: Tensor) -> Tensor:
    """As much of a row at a time as a small cache holds."""
    chunks = x.float().chunk(4, dim=-1)
    squares = torch.cat([c.square().sum(-1, keepdim=True) for c in chunks], -1)
    scale = torch.rsqrt(squares.sum(-1, keepdim=True) / x.shape[1] + 1e-6)
    return (torch.cat([c * scale for c in chunks], -1) * weight.float()).to(x.dtype)


def norm_by_matmul(x: Tensor, weight: Tensor) -> Tensor:
    """The sum on the units that multiply matrices."""
    wide = x.float()
    mean_square = wide.square() @ wide.new_full((x.shape[1], 1), 1 / x.shape[1])
    return (wide * torch.rsqrt(mean_square + 1e-6) * weight.float()).to(x.dtype)


def norm_by_welford(x: Tensor, weight: Tensor) -> Tensor:
    """Stable in one pass, whatever the mean."""
    wide = x.float()
    variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
    mean_square = variance + mean * mean
    return (wide * torch.rsqrt(mean_square + 1e-6) * weight.float()).to(x.dtype)


IMPLEMENTATIONS = (
    norm_by_mean,
    norm_by_blocks,
    norm_by_vector_norm,
    norm_by_chunks,
    norm_by_matmul,
    norm_by_welford,
)


@dataclasses.dataclass(frozen=True)
class Job:
    """
    A model to compile.

    Args:
        device: ``cuda`` or ``cpu``.
        candidates: how many implementations are registered; 0: the op is not.
        direct: whether an implementation is in the op's place.
        together: whether all of them are, side by side and not tuned: what compiling them
            takes alone.
        chains: of calls of the op, each on columns of another number.
        calls: of the op in each chain.
        other: layers without the op.
        options: Inductor's config; what this torch lacks of it is left out.
    """

    device: str
    candidates: int = 0
    direct: bool = False
    together: bool = False
    chains: int = 1
    calls: int = 1
    other: int = 0
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def register(job: Job) -> Callable[[Tensor, Tensor], Tensor]:
    """The op, registered in the form that the base has too."""
    op = torch.library.custom_op("compile_time::norm", mutates_args=())(rms_norm)
    op.register_fake(lambda x, weight: torch.empty_like(x))
    if job.candidates:
        chosen = IMPLEMENTATIONS[: job.candidates]
        register_custom_op_autotuning(
            op,
            configs=[CustomOpConfig(fn) for fn in chosen],
            dispatch_on={"tensor_name": "x", "dim": 0, "range_upper_bound": LARGEST},
            split_points=SPLIT_POINTS,
        )
    return op


def other_layer(x: Tensor, weight: Tensor) -> Tensor:
    hidden = F.gelu(F.layer_norm(x, x.shape[-1:]) @ weight)
    return torch.softmax(hidden, -1) * torch.sigmoid(x)


def make_model(job: Job) -> tuple[Callable[..., list[Tensor]], list[list[Any]]]:
    """A model with its arguments; the first dimension of all inputs is dynamic."""
    ops: Sequence[Any] = IMPLEMENTATIONS[: job.candidates if job.together else 1]
    if not (job.direct or job.together):
        ops = [register(job)]

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=job.device)

    def inputs(width: int) -> Tensor:
        x = random(ROWS, width)
        torch._dynamo.mark_dynamic(x, 0)
        return x

    widths = [WIDTH + 256 * i for i in range(job.chains)]
    chains = [[inputs(w), [random(w) for _ in range(job.calls)]] for w in widths]
    # Layers of other widths, which share no kernels.
    others = [[inputs(w), random(w, w)] for w in range(64, 64 + 8 * job.other, 8)]

    def chain(op: Any, x: Tensor, weights: list[Tensor]) -> Tensor:
        for weight in weights:
            x = torch.relu(op(x, weight)) + x
        return x

    def model(chains: Any, others: Any) -> list[Tensor]:
        results = [chain(op, x, weights) for x, weights in chains for op in ops]
        return results + [other_layer(x, weight) for x, weight in others]

    return model, [chains, others]


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def warm_up(device: str) -> None:
    """What a process does once: lazy imports, C++ headers, compile workers, clocks."""
    x, weight = (torch.randn(n, 48, device=device) for n in (64, 48))
    torch._dynamo.mark_dynamic(x, 0)
    torch.compile(lambda x, weight: torch.softmax(x.sin() @ weight, -1) + 1)(x, weight)
    if device == "cuda":
        AsyncCompile.wait_pool_ready()
    synchronize(device)
    counters.clear()


def benchmark_runs() -> int:
    """Of candidates, in this process: a graph from a cache brings the counts of its own."""
    counts = counters["inductor"]
    from_cache = counts["fxgraph_cache_hit"] and not counts["fxgraph_cache_miss"]
    return 0 if from_cache else counts["custom_op_candidate_timings"]


def work(job: Job) -> None:
    """Compiles in this process; answers with the seconds that the first call took."""
    torch._logging.set_logs(inductor=logging.ERROR)
    warnings.simplefilter("ignore")
    warm_up(job.device)
    model, args = make_model(job)
    if not (job.direct or job.together):
        for x, weights in args[0]:  # what the op itself does on its first call
            torch.ops.compile_time.norm(x, weights[0])
    known = {
        name: value for name, value in job.options.items() if hasattr(config, name)
    }
    with config.patch(known):
        start = time.perf_counter()
        torch.compile(model)(*args)
        synchronize(job.device)
        elapsed_s = time.perf_counter() - start
    answer(
        {
            "s": elapsed_s,
            "timings": benchmark_runs(),
            "patched": is_patched(),
            "torch": torch.__version__,
            "ignored": sorted(set(job.options) - set(known)),
        }
    )


@dataclasses.dataclass(frozen=True)
class Run:
    """
    A job on one torch.

    Args:
        on_base: on the stock base, not on this torch.
        again: what counts is the second process with the same caches.
    """

    job: Job
    on_base: bool = False
    again: bool = False

    def once(self, base: str) -> Any:
        """What the worker answers, with caches that were empty before."""
        arguments = ["--worker", json.dumps(dataclasses.asdict(self.job))]
        site = base if self.on_base else None
        with fresh_caches() as variables:
            if self.again:
                in_process(__file__, arguments, site, variables)
            result = in_process(__file__, arguments, site, variables)
        if result["patched"] == self.on_base:
            sys.exit(f"{'base' if self.on_base else 'patched'} wanted, found the other")
        return result


@dataclasses.dataclass(frozen=True)
class Row:
    """
    A line of the table of goals.

    Args:
        runs: by name.
        ratio: of median seconds by name, if times matter.
        goal: the largest ratio that is good.
        silent: the run in which nothing may be measured.
    """

    work: str
    runs: dict[str, Run]
    ratio: Callable[[Mapping[str, float]], float] | None = None
    goal: float = math.inf
    silent: str | None = None


def beside_base(work: str, job: Job, goal: float) -> Row:
    runs = {"base": Run(job, on_base=True), "patched": Run(job)}
    return Row(work, runs, lambda s: s["patched"] / s["base"], goal)


def table_of_goals(devices: list[str]) -> list[Row]:
    """What is measured; rows for one kind of device only are left out on the other."""
    device = devices[-1]
    candidates = 6 if device == "cuda" else 4
    one = Job(device, candidates)
    many = dataclasses.replace(one, calls=24)
    anew = dataclasses.replace(one, options={"fx_graph_cache": False})
    layers = Job(device, candidates, chains=3, other=OTHER_LAYERS)
    serial = {"defer_custom_op_choices": False, "custom_op_autotune_threads": 1}

    def unregistered(job: Job) -> Run:
        return Run(dataclasses.replace(job, candidates=0))

    def untuned(job: Job) -> Run:
        return Run(dataclasses.replace(job, direct=True))

    def tuning(work: str, job: Job, goal: float) -> Row:
        row = beside_base(work, job, goal)
        together = dataclasses.replace(job, together=True)
        row.runs["its candidates side by side, not tuned"] = Run(together)
        return row

    rows = [tuning("5 ranges × 4 candidates, CPU", Job("cpu", 4), 1 / 5)]
    if "cuda" in devices:
        rows.append(tuning("5 ranges × 6 candidates, GPU", Job("cuda", 6), 1 / 4))
    rows += [
        Row(
            "tuning 24 call sites of one op, over tuning one",
            {
                "24 sites": Run(many),
                "24 sites, not tuned": untuned(many),
                "1 site": Run(one),
                "1 site, not tuned": untuned(one),
            },
            lambda s: (
                (s["24 sites"] - s["24 sites, not tuned"])
                / (s["1 site"] - s["1 site, not tuned"])
            ),
            1.3,
        ),
        Row(
            "a second process, over the same model not registered",
            {
                "registered": Run(many, again=True),
                "not registered": dataclasses.replace(unregistered(many), again=True),
            },
            lambda s: s["registered"] / s["not registered"],
            1.1,
            silent="registered",
        ),
        Row(
            "a second process that compiles anew",
            {"registered": Run(anew, again=True)},
            silent="registered",
        ),
        Row(
            "other work to lower, over deferral off and one thread",
            {
                "as it comes": Run(layers),
                "serial": Run(dataclasses.replace(layers, options=serial)),
            },
            lambda s: s["as it comes"] / s["serial"],
            0.6,
        ),
        beside_base("no registration", Job(device, chains=0, other=OTHER_LAYERS), 1.01),
    ]
    return rows


@dataclasses.dataclass
class Measured:
    """What the runs of a row took: seconds and benchmark runs by name."""

    row: Row
    seconds: dict[str, list[float]]
    timings: dict[str, int]

    def medians(self) -> dict[str, float]:
        return {name: statistics.median(s) for name, s in self.seconds.items()}


def measure(row: Row, base: str, repeats: int) -> Measured:
    """Takes the runs in turns, so that drift hits all alike."""
    measured = Measured(row, {name: [] for name in row.runs}, {})
    for _ in range(repeats):
        for name, run in row.runs.items():
            result = run.once(base)
            measured.seconds[name].append(result["s"])
            measured.timings[name] = result["timings"]
            note = f", without {result['ignored']}" if result["ignored"] else ""
            print(f"{row.work}: {name}: {result['s']:.2f} s{note}", file=sys.stderr)
    return measured


def text_of(measured: list[Measured], device: str, repeats: int) -> str:
    """Markdown, ratios last."""
    lines = [
        f"# {device}, {os.cpu_count()} cores, torch {torch.__version__}",
        "",
        f"The first call of a compiled model, s; {repeats} runs each with fresh caches.",
        "",
        "| work | run | median | lowest | highest | benchmark runs |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for m in measured:
        for name, median in m.medians().items():
            low, high = min(m.seconds[name]), max(m.seconds[name])
            numbers = (
                f"{median:.2f} | {low:.2f} | {high:.2f} | {m.timings[name] or '–'}"
            )
            lines.append(f"| {m.row.work} | {name} | {numbers} |")
    lines += ["", "| work | ratio | goal |", "| --- | ---: | ---: |"]
    for m in measured:
        if m.row.ratio:
            ratio = m.row.ratio(m.medians())
            lines.append(f"| {m.row.work} | {ratio:.2f} | ≤ {m.row.goal:.2f} |")
        if m.row.silent:
            runs = m.timings[m.row.silent]
            lines.append(f"| {m.row.work}: benchmark runs | {runs} | 0 |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--base", help="a folder with the stock base, for PYTHONPATH")
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each (%(default)s)"
    )
    parser.add_argument("--only", default="", help="rows whose name has this text")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(Job(**json.loads(options.worker)))
    if not options.base:
        parser.error("--base is needed")
    devices = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    rows = [row for row in table_of_goals(devices) if options.only in row.work]
    measured = [measure(row, options.base, options.repeats) for row in rows]
    device = device_name(devices[-1])
    text = text_of(measured, device, options.repeats)
    write_results("compile", device, text, whole=not options.only)
    return None


if __name__ == "__main__":
    main()
