"""Candidates compiled to be measured: generated here, loaded in other threads."""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import as_completed, Future
from concurrent.futures import wait as wait_for
from typing import Any, TYPE_CHECKING

from torch.fx import GraphModule

from .candidates import FALLBACK_INDEX, TracedCandidate
from .inputs import is_about_index_width
from .limits import call_within, fulfil, LimitedExecutor, time_limit_s
from .measure import Failure, failure_of
from .subgraph_module import generate_module, SubgraphModule
from .threads import autotune_threads, loads_in_any_thread
from .tuning import known_tunings, outermost_graph


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from .tuning import Tuning


# In the metadata of graphs that are compiled to be measured.
_IS_CANDIDATE = "custom_op_candidate"
_DIGITS_OF_SUFFIX = 10
_LOADING = "loading its code"


def kernel_suffix(source: str) -> str | None:
    """
    What tells a kernel from others of its kind, in place of a running number.

    With one name a kernel is compiled once, for a candidate's benchmark and where that
    candidate wins. Called by Triton's code generation.

    Args:
        source: the kernel's, its name left open.

    Returns:
        None for kernels of graphs without an autotuned op.
    """
    graph = outermost_graph()
    module = graph.module
    candidate = isinstance(module, GraphModule) and _IS_CANDIDATE in module.meta
    if not (candidate or known_tunings(graph)):
        return None
    return hashlib.sha256(source.encode()).hexdigest()[:_DIGITS_OF_SUFFIX]


def submit(tuning: Tuning) -> None:
    """
    Generates each candidate once, whatever the number of its ranges, and starts its load.

    While one is generated here, those before it are compiled in other threads: the largest
    first, so that little is left to wait for behind the last.
    """
    order = list(tuning.traced)
    for index in sorted(order, key=lambda i: -len(tuning.traced[i].graph.graph.nodes)):
        if index == FALLBACK_INDEX and not _fallback_runs(tuning):
            continue
        module = _generate(tuning, index, tuning.traced[index])
        if module is not None:
            tuning.modules[index] = module
            tuning.loads[index] = _load(module)
    tuning.modules = {i: tuning.modules[i] for i in order if i in tuning.modules}


def wait(
    tuning: Tuning, done: Callable[[str], None], loaded: Callable[[int], None]
) -> None:
    """
    Waits for the loads; those that failed are out.

    Args:
        done: told of each.
        loaded: given the index of each that is loaded, as soon as it is.
    """
    indices = {load: index for index, load in tuning.loads.items()}
    for load in as_completed(indices):
        done("compiled")
        if load.exception() is None:
            loaded(indices[load])
    for index, load in tuning.loads.items():
        if error := load.exception():
            tuning.reject(index, failure_of(error).of("it does not compile"))
    tuning.loads.clear()


def wait_for_quiet(tunings: Iterable[Tuning]) -> None:
    """Waits until no candidate of these is being loaded, whether that works or not."""
    wait_for([load for tuning in tunings for load in tuning.loads.values()])


def _load(module: SubgraphModule) -> Future[Any]:
    """Starts a load, in another thread where there are any to use."""
    limit_s, threads = time_limit_s(), autotune_threads()
    serial = threads == 1 and limit_s is None
    if serial or not loads_in_any_thread(module.source):
        future: Future[Any] = Future()
        fulfil(future, lambda: call_within(limit_s, _LOADING, module.load))
        return future
    future = _executor(threads, limit_s).submit(module.load)
    if threads == 1:
        wait_for([future])
    return future


@functools.cache
def _executor(threads: int, limit_s: float | None) -> LimitedExecutor:
    return LimitedExecutor(threads, _LOADING, limit_s)


def _generate(
    tuning: Tuning, index: int, traced: TracedCandidate
) -> SubgraphModule | None:
    """The candidate's module; None if it is out."""
    traced.graph.meta[_IS_CANDIDATE] = True
    try:
        module = call_within(
            time_limit_s(),
            "generating its code",
            generate_module,
            traced.graph,
            tuning.site.fake_inputs(),
            tuning.site.symbols(),
            f"{tuning.name}_{traced.name}",
            traced.candidate.config_patches,
        )
    except Exception as e:
        tuning.reject(index, failure_of(e).of("it does not compile"))
        return None
    guards = [c for c in module.conditions if not is_about_index_width(c)]
    if guards and index != FALLBACK_INDEX:
        tuning.reject(index, Failure(f"its code guards on a size: {guards[0]}"))
        return None
    return module


def _fallback_runs(tuning: Tuning) -> bool:
    checks = tuning.registration.options.numerics_check != "off"
    return checks or tuning.fallback_competes
