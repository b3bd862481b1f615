"""
Candidates that contain collectives: ranks measure in step and take one decision.

A collective hangs unless every rank runs it, so that ranks must agree on who competes
before a candidate is run, and on times before a winner is chosen.
"""

from __future__ import annotations

import itertools
import pickle
import time
from typing import Any, TYPE_CHECKING

import torch.distributed as dist
from torch._dynamo.utils import counters

import torch

from .. import config
from ..utils import is_collective_op
from .measure import Failure, failure_of, Timing


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from .measure import Times

_exchanges = itertools.count()


def has_collective(graphs: Iterable[torch.fx.GraphModule]) -> bool:
    """Whether any of the graphs calls a collective."""
    return any(
        is_collective_op(name) or is_collective_op(f"torch.ops.{name}")
        for graph in graphs
        for node in graph.graph.nodes
        if node.op == "call_function"
        for name in [str(node.target)]
    )


def can_measure() -> bool:
    """Whether there is a group of ranks to measure with."""
    return dist.is_available() and dist.is_initialized()


def common_to_all_ranks(indices: Iterable[int]) -> list[int]:
    """The indices that every rank of the default group has."""
    gathered = _gather(sorted(indices))
    return sorted(set(gathered[0]).intersection(*gathered[1:]))


def common_reasons(reasons: Mapping[int, str]) -> dict[int, str]:
    """What any rank has against candidates, by index; the same on every rank."""
    found: dict[int, str] = {}
    for rank, theirs in enumerate(_gather(dict(reasons))):
        for index, reason in theirs.items():
            found.setdefault(index, f"on rank {rank}: {reason}")
    return found


def time_in_step(
    runners: Mapping[int, Callable[[], Any]], device: torch.device
) -> Times:
    """
    Times candidates that every rank has, and agrees on the times.

    Every rank runs the same calls in the same order, ``collective_benchmark_nruns`` of
    each candidate. What raises on one rank is a failure on all; a rank that is slow makes
    the others wait. A collective that one rank never enters ends with the group's timeout.

    Args:
        runners: one call of each candidate, by index; the same indices on every rank.

    Returns:
        The slowest rank's times, the same on every rank.
    """
    times: Times = {}
    for index in sorted(runners):
        counters["inductor"]["custom_op_candidate_timings"] += 1
        times[index] = _agreed(_time_one(runners[index], device))
    return times


def _time_one(run: Callable[[], Any], device: torch.device) -> Timing | Failure:
    runs = config.collective_benchmark_nruns
    try:
        run()
        _synchronize(device)
        dist.barrier()
        start = time.perf_counter()
        for _ in range(runs):
            run()
        _synchronize(device)
    except Exception as e:
        return failure_of(e)
    return Timing((time.perf_counter() - start) * 1e3 / runs)


def _agreed(mine: Timing | Failure) -> Timing | Failure:
    """The failure of any rank, else the time of the slowest."""
    slowest_ms = 0.0
    for rank, result in enumerate(_gather(mine)):
        if isinstance(result, Failure):
            return Failure(f"on rank {rank}: {result.reason}")
        slowest_ms = max(slowest_ms, result.ms)
    return Timing(slowest_ms)


def _gather(value: Any) -> list[Any]:
    """
    One value from each rank, in their order.

    They travel through the group's store: no device is needed, and no thread of the
    group's backend touches Python objects. Ranks make the same exchanges in the same
    order, since they compile the same program.
    """
    store = dist.distributed_c10d._get_default_store()
    prefix = f"custom_op_autotuning/{next(_exchanges)}"
    store.set(f"{prefix}/{dist.get_rank()}", pickle.dumps(value).hex())
    keys = [f"{prefix}/{rank}" for rank in range(dist.get_world_size())]
    store.wait(keys)
    return [pickle.loads(bytes.fromhex(store.get(key).decode())) for key in keys]


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.get_device_module(device).synchronize()
