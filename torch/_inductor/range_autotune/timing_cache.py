"""
Measured times that survive the process, in Inductor's local cache directory.

An entry holds the times of all candidates that were measured together at one place: one
call site at concrete sizes. They are used together too, since times of different runs
cannot be compared. ``torch._inductor.config.autotune_local_cache`` switches it off, and
``force_disable_caches`` every cache.

Whatever is wrong with an entry, it counts as not there; whatever keeps one from being
written, tuning goes on without.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
import pathlib
import platform
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters

import torch

from .. import config
from ..runtime.cache_dir_utils import cache_dir
from .cache_key import content_digest, digest, Unhashable
from .graph_text import graph_text, SymbolNames
from .measure import Failure, Timing


if TYPE_CHECKING:
    from collections.abc import Mapping

    from .call_site import CallSite
    from .candidates import TracedCandidate
    from .inputs import Values
    from .measure import Times
    from .registration import TuningOptions

log = logging.getLogger("torch._inductor.kernel.custom_op")

_FOLDER = "custom_op_timings"
# Of what a file holds; another number makes all older files misses.
_FORMAT = 1
_CPU_INFO = pathlib.Path("/proc/cpuinfo")  # Linux has it


@dataclasses.dataclass(frozen=True)
class Environment:
    """
    What decides a time besides candidate and place.

    Args:
        torch_source: a digest of PyTorch's own source, the measuring included.
        system: versions and name of the current GPU, as Inductor's other caches know it.
        accelerators: the names of all devices, in order.
        cpu: kind and model.
        threads: that an op may use on the CPU.
        inductor_config: a digest of all options that caches look at.
        numerics: settings outside of Inductor's config that choose kernels.
    """

    torch_source: str
    system: str
    accelerators: tuple[str, ...]
    cpu: tuple[str, ...]
    threads: int
    inductor_config: str
    numerics: tuple[str, ...]

    @classmethod
    def current(cls) -> Environment:
        """
        This process's.

        Raises:
            Unhashable: if an option has a value whose content is unknown.
        """
        from ..codecache import CacheBase, torch_key

        return cls(
            torch_source=torch_key().hex(),
            system=json.dumps(CacheBase.get_system(), sort_keys=True),
            accelerators=_accelerators(),
            cpu=_cpu(),
            threads=torch.get_num_threads(),
            inductor_config=_config_digest(config.get_hash()),
            numerics=_numerics(),
        )


@functools.lru_cache(maxsize=8)
def _config_digest(options: bytes) -> str:
    """
    Args:
        options: changes with the config; what it is made of takes milliseconds to read.
    """
    return content_digest(config.save_config_portable())


def _accelerators() -> tuple[str, ...]:
    if not torch.accelerator.is_available():
        return ()
    module = torch.get_device_module()
    count = torch.accelerator.device_count()
    return tuple(module.get_device_name(index) for index in range(count))


@functools.cache
def _cpu() -> tuple[str, ...]:
    capability = torch.backends.cpu.get_cpu_capability()
    model = platform.processor()
    if _CPU_INFO.exists():
        lines = _CPU_INFO.read_text().splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    return (platform.machine(), capability, model)


def _numerics() -> tuple[str, ...]:
    matmul = torch.backends.cuda.matmul
    settings = (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        matmul.allow_fp16_reduced_precision_reduction,
        matmul.allow_bf16_reduced_precision_reduction,
    )
    return tuple(map(str, settings))


def cache_key(place: str, environment: Environment) -> str:
    """The name of an entry; what candidates it must hold is looked up in it."""
    return digest((_FORMAT, place, dataclasses.astuple(environment)))


def place_text(site: CallSite, options: TuningOptions, values: Values) -> str | None:
    """
    Where candidates are measured: the call site, its concrete sizes, and how.

    Args:
        values: for each of the call site's symbols.

    Returns:
        None if something in it has no content that could be compared.
    """
    names = SymbolNames()
    try:
        how = content_digest((options.input_gen_fns, options.benchmark_with_cudagraphs))
        layout = site.layout_text(names)
    except Unhashable as e:
        log.debug("No times of %s are cached: %s", site.op, e)
        return None
    sizes = [values.get(symbol) for symbol in names.met]
    return f"{layout}\nat {sizes}, {how}"


def candidate_text(traced: TracedCandidate) -> str | None:
    """
    A digest of all in a candidate that decides what runs; its name does not.

    Returns:
        None if something in it has no content that could be compared.
    """
    candidate = traced.candidate
    try:
        graph = graph_text(traced.graph.graph, SymbolNames(), traced.graph)
        return content_digest(
            (graph, candidate.impl, candidate.params, candidate.config_patches)
        )
    except Unhashable as e:
        log.debug("No times of '%s' are cached: %s", traced.name, e)
        return None


def lookup(place: str, candidates: Mapping[int, str]) -> Times | None:
    """
    The times of candidates that were measured together.

    Args:
        place: as ``place_text`` gives it.
        candidates: their texts, as ``candidate_text`` gives them, by index.

    Returns:
        None if one is missing.
    """
    path = _path(place)
    if path is None:
        return None
    entry = _read(path)
    found = {i: entry[text] for i, text in candidates.items() if text in entry}
    hit = len(found) == len(candidates)
    counters["inductor"][f"custom_op_timing_cache_{'hit' if hit else 'miss'}"] += 1
    return found if hit else None


def store(place: str, candidates: Mapping[int, str], times: Times) -> None:
    """
    Keeps times that were measured together, in place of those from an earlier run.

    Failures that may pass are left out, so that these candidates are measured again.
    """
    path = _path(place)
    if path is None:
        return
    entry = {
        text: _to_json(times[index])
        for index, text in candidates.items()
        if index in times and not _may_pass(times[index])
    }
    from ..codecache import write_atomic

    content = json.dumps({"format": _FORMAT, "times": entry}, indent=1)
    try:
        write_atomic(str(path), content, make_dirs=True)
    except OSError as e:
        log.info("Measured times cannot be cached: %s", e)


def _path(place: str) -> pathlib.Path | None:
    """None where the cache is off."""
    if config.force_disable_caches or not config.autotune_local_cache:
        return None
    try:
        key = cache_key(place, Environment.current())
    except Unhashable as e:
        log.debug("No times are cached: %s", e)
        return None
    return pathlib.Path(cache_dir()) / _FOLDER / key[:2] / f"{key}.json"


def _may_pass(time: Timing | Failure) -> bool:
    return isinstance(time, Failure) and time.may_pass


def _read(path: pathlib.Path) -> dict[str, Timing | Failure]:
    """What a file holds; nothing if it is not there or not as it should be."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            return {}
        return {text: _from_json(time) for text, time in content["times"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}


def _to_json(time: Timing | Failure) -> dict[str, Any]:
    if isinstance(time, Failure):
        return {"failure": time.reason}
    return {"ms": time.ms, "error": time.error}


def _from_json(time: dict[str, Any]) -> Timing | Failure:
    if "failure" in time:
        return Failure(str(time["failure"]))
    timing = Timing(float(time["ms"]), float(time["error"]))
    if not (math.isfinite(timing.ms) and timing.ms >= 0 and timing.error >= 0):
        raise ValueError(f"{timing} is no time")
    return timing
