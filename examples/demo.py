"""
The tuned op beside every fixed implementation and beside plain ``torch.compile``.

For each workload: the log of the choice, times at sizes on both sides of the boundaries,
the number of recompilations, and the largest difference from eager.
"""

from __future__ import annotations

import logging
import statistics
import sys
import time
from typing import Any, TYPE_CHECKING

from workloads import Workload, WORKLOADS

import torch


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

_ROUNDS = 9
_SAMPLE_S = 0.002


def say(text: str = "") -> None:
    print(text, flush=True)


def show_choices() -> None:
    logger = logging.getLogger("torch._inductor.kernel.custom_op")
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("    %(message)s"))
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    logger.propagate = False


def compile_once(
    name: str, fn: Callable[..., Tensor], workload: Workload
) -> Callable[..., Tensor]:
    """The model with ``fn`` in it, compiled at the first size for all sizes."""
    say(f"  compiling {name} …")
    compiled = torch.compile(workload.model(name, fn))
    args = workload.inputs(workload.sizes[0])
    torch._dynamo.mark_dynamic(args[0], workload.dispatch_dim)
    compiled(*args)
    return compiled


def sample_us(fn: Callable[..., Tensor], args: tuple[Tensor, ...]) -> float:
    calls, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < _SAMPLE_S or not calls:
        fn(*args)
        calls += 1
    return elapsed / calls * 1e6


def medians_us(
    variants: dict[str, Callable[..., Tensor]], args: tuple[Tensor, ...]
) -> dict[str, float]:
    """Times of one call, in turns so that drift hits all alike."""
    samples: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(_ROUNDS):
        for name, fn in variants.items():
            samples[name].append(sample_us(fn, args))
    return {name: statistics.median(times) for name, times in samples.items()}


def unregistered(op: Any) -> Any:
    """The same op by another name: registering one drops the code that has it."""
    twin = torch.library.custom_op(f"{op._qualname}_plain", mutates_args=())(
        op._init_fn
    )
    twin.register_fake(op._abstract_fn)
    return twin


def run(workload: Workload) -> None:
    say(f"\n=== {workload.title}")
    eager = workload.model("eager", workload.op)
    variants = {"plain": compile_once("plain", unregistered(workload.op), workload)}
    for name, implementation in workload.implementations.items():
        variants[name] = compile_once(name, implementation, workload)
    workload.register()
    tuned = compile_once("tuned", workload.op, workload)
    variants = {"tuned": tuned, **variants}

    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    say("\n  µs      " + "".join(f"{name:>12}" for name in variants))
    worst = 0.0
    for size in sorted(workload.sizes):
        args = workload.inputs(size)
        worst = max(worst, (tuned(*args) - eager(*args)).abs().max().item())
        times = medians_us(variants, args)
        say(f"  {size:>6}  " + "".join(f"{t:12.1f}" for t in times.values()))
    recompiled = torch._dynamo.utils.counters["stats"]["unique_graphs"] - before
    say(f"\n  recompilations: {recompiled}")
    say(f"  largest difference from eager: {worst:.2g}")


def main() -> None:
    say(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    say("'plain' is torch.compile of the model with the op unregistered, the columns")
    say("behind it are the implementations in the op's place; 'tuned' chooses by size")
    show_choices()
    # Code from a cache would be as good, but it would have no choice to show.
    with torch._inductor.config.patch(fx_graph_cache=False):
        for workload in WORKLOADS:
            torch._dynamo.reset()
            run(workload)


if __name__ == "__main__":
    main()
