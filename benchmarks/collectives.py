"""
The time of all_reduce + relu + scale on two ranks: tuned, and each implementation.

``python benchmarks/collectives.py`` takes NCCL and two GPUs, with ``--cpu`` gloo and two
processes with smaller tensors. It prints a table of medians in µs over rounds in which
all variants take turns, in any order, each time that of the slowest rank, and writes it
to ``benchmarks/results/``. An implementation that fails on a rank is left out with a message.
After ``--minutes`` everything is killed, and what is measured by then is shown.

all_reduce in place is no variant of its own: Inductor lowers the functional form to it.
NVLink multicast is off, as not every host has it.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import itertools
import json
import logging
import math
import os
import pathlib
import random
import statistics
import tempfile
import time
from typing import Any, TYPE_CHECKING

import torch.distributed as dist
import torch.multiprocessing as mp
from beside import device_name, write_results

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.errors import one_line


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

RANKS = 2
COLUMNS = 4096
# Of a sample; one more call before them brings the ranks into step.
CALLS = 5
ROUNDS = {"cuda": 31, "cpu": 11}
KIBIBYTES = {"cuda": (64, 256 * 1024), "cpu": (64, 4 * 1024)}
# Written before each call on a GPU: no cache holds it, and a launch hides behind it, also
# that of two collectives on a busy host (1 ms on an H200).
FLUSHED_BYTES = 4 * 2**30
ENVIRONMENT = {
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}

c10d = torch.ops._c10d_functional
log = logging.getLogger("torch._inductor.kernel.custom_op")
_symmetric: dict[str, Tensor] = {}


def group_name() -> str:
    return dist.distributed_c10d._get_default_group().group_name


def all_reduce(x: torch.Tensor) -> torch.Tensor:
    return c10d.wait_tensor(c10d.all_reduce(x, "sum", group_name()))


def reduce_scatter_all_gather(x: Tensor) -> Tensor:
    name = group_name()
    flat = x.reshape(-1)
    part = c10d.wait_tensor(c10d.reduce_scatter_tensor(flat, "sum", RANKS, name))
    return c10d.wait_tensor(c10d.all_gather_into_tensor(part, RANKS, name)).view(
        x.shape
    )


def all_gather_sum(x: Tensor) -> Tensor:
    """More bytes over the wire, but one step, and the sum takes the epilogue."""
    parts = c10d.wait_tensor(c10d.all_gather_into_tensor(x, RANKS, group_name()))
    return parts.view(RANKS, *x.shape).sum(0)


def symmetric_buffer(x: Tensor) -> Tensor:
    """The start of a buffer that all ranks can read, as long as ``x``."""
    return _symmetric["buffer"][: x.numel()]


@torch.library.custom_op("bench_collectives::one_shot", mutates_args=())
def one_shot_op(x: torch.Tensor, group_name: str) -> torch.Tensor:
    result = torch.ops.symm_mem.one_shot_all_reduce_copy(
        symmetric_buffer(x), x.reshape(-1), "sum", group_name
    )
    return result.view(x.shape)


@torch.library.custom_op("bench_collectives::two_shot", mutates_args=())
def two_shot_op(x: torch.Tensor, group_name: str) -> torch.Tensor:
    buffer, result = symmetric_buffer(x), torch.empty_like(x)
    buffer.copy_(x.reshape(-1))
    torch.ops.symm_mem.two_shot_all_reduce_out(
        buffer, "sum", group_name, result.view(-1)
    )
    return result


@one_shot_op.register_fake
@two_shot_op.register_fake
def _(x: Tensor, group_name: str) -> Tensor:
    return torch.empty_like(x)


def one_shot(x: Tensor) -> Tensor:
    return one_shot_op(x, group_name())


def two_shot(x: Tensor) -> Tensor:
    return two_shot_op(x, group_name())


IMPLEMENTATIONS = (all_reduce, reduce_scatter_all_gather, all_gather_sum)
SYMMETRIC = (one_shot, two_shot)


def row_counts(device: str) -> list[int]:
    """Powers of two, from the smallest tensor to the largest."""
    smallest, largest = KIBIBYTES[device]
    row_bytes = COLUMNS * dtype_of(device).itemsize
    count = int(math.log2(largest // smallest)) + 1
    return [(smallest * 1024 // row_bytes) << i for i in range(count)]


def dtype_of(device: str) -> torch.dtype:
    return torch.bfloat16 if device == "cuda" else torch.float32


def agreed(value: Any, control: Any) -> list[Any]:
    """The values of all ranks."""
    values = [None] * RANKS
    dist.all_gather_object(values, value, control)
    return values


def works_everywhere(name: str, attempt: Callable[[], Any], control: Any) -> bool:
    """Whether an attempt succeeds on every rank; says which ones it does not on."""
    try:
        attempt()
        error = None
    except Exception as e:
        error = one_line(e)
    errors = agreed(error, control)
    for rank, reason in enumerate(errors):
        if reason is not None and dist.get_rank() == 0:
            print(f"{name} is left out, on rank {rank}: {reason}", flush=True)
    return not any(errors)


def make_symmetric_buffer(elements: int) -> None:
    import torch.distributed._symmetric_memory as symm_mem

    device = torch.device("cuda", torch.cuda.current_device())
    buffer = symm_mem.empty((elements,), dtype=torch.bfloat16, device=device)
    symm_mem.rendezvous(buffer, dist.distributed_c10d._get_default_group())
    _symmetric["buffer"] = buffer


def check(fn: Callable[[Tensor], Tensor], x: Tensor, expected: float) -> None:
    """Raises unless a function of an ``x`` full of ranks' numbers is as expected."""
    result = fn(x + dist.get_rank())
    if not torch.equal(result, torch.full_like(x, expected)):
        raise ValueError(f"it returns {result.flatten()[0].item()}, not {expected}")


def usable(device: str, control: Any) -> list[Callable[..., Any]]:
    """The implementations that work on every rank, called eagerly."""
    rows = row_counts(device)
    impls = list(IMPLEMENTATIONS)
    make = functools.partial(make_symmetric_buffer, rows[-1] * COLUMNS)
    if device == "cuda" and works_everywhere("symmetric memory", make, control):
        impls += SYMMETRIC
    x = torch.ones(rows[0], COLUMNS, dtype=dtype_of(device), device=device)
    total = sum(1 + rank for rank in range(RANKS))
    return [
        impl
        for impl in impls
        if works_everywhere(
            impl.__name__, functools.partial(check, impl, x, total), control
        )
    ]


def register(rows: list[int], impls: list[Callable[..., Any]]) -> Any:
    """An op with a range around each size."""
    op = torch.library.custom_op("bench_collectives::all_reduce", mutates_args=())(
        all_reduce
    )
    op.register_fake(torch.empty_like)
    bounds = [0, *(a + a // 2 for a in rows[:-1]), math.inf]
    ranges = list(itertools.pairwise(bounds))
    register_custom_op_autotuning(
        op,
        configs=[CustomOpRangeConfig("x", 0, ranges, impls)],
        # As here, where launches hide behind what was before.
        benchmark_with_cudagraphs=True,
        representative_sizes=rows,
    )
    return op


def compiled(name: str, fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """all_reduce + relu + scale, with a code object of its own."""
    source = f"def model(x): return relu(fn(x)) * 0.5  # {name}"
    scope = {"relu": torch.relu, "fn": fn}
    exec(compile(source, name, "exec"), scope)
    return torch.compile(scope["model"])


def variants_of(
    device: str, impls: list[Callable[..., Any]], control: Any
) -> dict[str, Callable[[Tensor], Tensor]]:
    """What is compared, each compiled once for all sizes."""
    rows = row_counts(device)
    x = torch.ones(rows[len(rows) // 2], COLUMNS, dtype=dtype_of(device), device=device)
    torch._dynamo.mark_dynamic(x, 0)
    expected = 0.5 * sum(1 + rank for rank in range(RANKS))
    fns = {impl.__name__: impl for impl in impls} | {"tuned": register(rows, impls)}
    variants = {}
    for name, fn in fns.items():
        start = time.perf_counter()
        model = compiled(name, fn)
        attempt = functools.partial(check_first, model, x, expected)
        if works_everywhere(name, attempt, control):
            variants[name] = model
        if dist.get_rank() == 0:
            print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)
    return variants


def check_first(fn: Callable[[Tensor], Tensor], x: Tensor, expected: float) -> None:
    """The call that compiles gets ``x`` itself, whose rows are marked dynamic."""
    fn(x)
    check(fn, x, expected)


def sampler(device: str) -> Callable[[Callable[[], Any]], float]:
    """From a call to its time in µs, of several in a row."""
    if device == "cpu":
        return sample_on_cpu
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.int8, device=device)

    def sample_on_gpu(call: Callable[[], Any]) -> float:
        call()
        events = []
        for _ in range(CALLS):
            start, end = torch.cuda.Event(True), torch.cuda.Event(True)
            flushed.zero_()
            start.record()
            call()
            end.record()
            events.append((start, end))
        torch.cuda.synchronize()
        return statistics.median(a.elapsed_time(b) for a, b in events) * 1e3

    return sample_on_gpu


def sample_on_cpu(call: Callable[[], Any]) -> float:
    call()
    start = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - start) / CALLS * 1e6


def measure(
    variants: dict[str, Callable[[Tensor], Tensor]],
    x: Tensor,
    control: Any,
) -> dict[str, float]:
    """Medians in µs; each sample is that of the slowest rank."""
    sample = sampler(x.device.type)
    samples: dict[str, list[float]] = {name: [] for name in variants}
    order = random.Random(0)  # the same on every rank
    for _ in range(ROUNDS[x.device.type]):
        for name in order.sample(list(variants), len(variants)):
            samples[name].append(sample(functools.partial(variants[name], x)))
    of_ranks = agreed(samples, control)
    return {
        name: statistics.median(map(max, zip(*(s[name] for s in of_ranks))))
        for name in variants
    }


def logged_choices() -> list[str]:
    """Takes the log of tuning; warnings are printed."""
    lines: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            if record.levelno >= logging.WARNING:
                print(lines[-1], flush=True)

    log.addHandler(Kept())
    log.setLevel(logging.INFO)
    log.propagate = False
    return lines


def work(rank: int, device: str, folder: str) -> None:
    """One rank; the first keeps the results of each size in a file."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, f"inductor{rank}")
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, f"triton{rank}")
    torch._logging.set_logs(inductor=logging.ERROR)
    init: dict[str, Any] = {
        "init_method": f"file://{folder}/store",
        "rank": rank,
        "world_size": RANKS,
    }
    if device == "cuda":
        torch.cuda.set_device(rank)
        init["device_id"] = torch.device(device, rank)
    else:
        torch.set_num_threads(1)
    backend = {"cuda": "nccl", "cpu": "gloo"}[device]
    dist.init_process_group(backend, timeout=datetime.timedelta(minutes=2), **init)
    # Of two ranks of which one fails, the other comes when its collective has timed out.
    control = dist.new_group(backend="gloo", timeout=datetime.timedelta(minutes=4))
    choices = logged_choices() if rank == 0 else []
    variants = variants_of(device, usable(device, control), control)
    times: dict[int, dict[str, float]] = {}
    for rows in row_counts(device):
        x = torch.randn(rows, COLUMNS, device=device).to(dtype_of(device))
        times[rows] = measure(variants, x, control)
        if rank == 0:
            result = {"times": times, "choices": choices}
            partial = pathlib.Path(folder, "partial")
            partial.write_text(json.dumps(result))
            partial.replace(pathlib.Path(folder, "result"))
    dist.destroy_process_group()


def size_name(rows: int, device: str) -> str:
    kibibytes = rows * COLUMNS * dtype_of(device).itemsize // 1024
    return f"{kibibytes} KiB" if kibibytes < 1024 else f"{kibibytes // 1024} MiB"


def table(result: Any, device: str) -> str:
    """Markdown, the ratio last."""
    times: dict[str, dict[str, float]] = result["times"]
    names = list(next(iter(times.values())))
    fixed = [name for name in names if name != "tuned"]
    sizes = [size_name(int(rows), device) for rows in times]
    lines = [
        f"# {RANKS} x {device_name(device)}, torch {torch.__version__}",
        "",
        "all_reduce + relu + scale: medians of one call on the slowest rank, µs.",
        "",
        f"| | {' | '.join(sizes)} |",
        "| --- |" + " ---: |" * len(sizes),
    ]
    for name in names:
        cells = " | ".join(f"{of[name]:.1f}" for of in times.values())
        lines.append(f"| {name} | {cells} |")
    if "tuned" in names:
        ratios = [of["tuned"] / min(of[n] for n in fixed) for of in times.values()]
        cells = " | ".join(f"{ratio:.2f}" for ratio in ratios)
        lines.append(f"| tuned / best of the others | {cells} |")
    chosen = [line for line in result["choices"] if line.startswith("  Range")]
    return "\n".join([*lines, "", "Chosen, by rows:", "", *chosen]) + "\n"


def run_ranks(device: str, folder: str, limit_s: float) -> None:
    """Runs the ranks; kills them when one fails, or at the limit."""
    ranks = mp.start_processes(
        work, (device, folder), nprocs=RANKS, join=False, start_method="spawn"
    )
    assert ranks is not None
    end = time.monotonic() + limit_s
    try:
        while not ranks.join(timeout=1):
            if time.monotonic() > end:
                print(f"killed after {limit_s:.0f} s", flush=True)
                break
    except Exception as e:
        print(f"a rank failed: {e}", flush=True)
    finally:
        for process in ranks.processes:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.strip().split("\n\n")[0])
    parser.add_argument("--cpu", action="store_true", help="gloo on the CPU")
    parser.add_argument("--minutes", type=float, default=8, help="after them, kill it")
    options = parser.parse_args()
    device = "cpu" if options.cpu else "cuda"
    if device == "cuda" and torch.cuda.device_count() < RANKS:
        raise SystemExit(f"needs {RANKS} GPUs, or --cpu")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with tempfile.TemporaryDirectory() as folder:
        run_ranks(device, folder, options.minutes * 60)
        result = pathlib.Path(folder, "result")
        if not result.exists():
            raise SystemExit("nothing was measured")
        found = json.loads(result.read_text())
    write_results("collectives", device_name(device), table(found, device))
    if len(found["times"]) < len(row_counts(device)):
        raise SystemExit("not all sizes were measured")


if __name__ == "__main__":
    main()
