"""
Measured times that survive the process, in Inductor's local cache directory.

An entry holds what was found out about all candidates in one measurement: at one call site,
at concrete sizes. It is used together too, since times of different runs cannot be
compared. ``torch._inductor.config.autotune_local_cache`` switches it off, and
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
from itertools import chain
from types import NoneType
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters

import torch

from .. import config
from ..cpp_builder import get_compiler_version_info, get_cpp_compiler
from ..runtime.cache_dir_utils import cache_dir
from .content import content_digest, digest, Unhashable
from .graph_text import graph_text, SymbolNames
from .kernel_config_ranges import ConfigRecord
from .times import Failure, Timing


if TYPE_CHECKING:
    from collections.abc import Mapping

    from .call_site import CallSite
    from .candidates import TracedCandidate
    from .kernel_config_ranges import ConfigTimes
    from .numerics import Comparison
    from .registration import TuningOptions
    from .size_conditions import Values
    from .times import Times

log = logging.getLogger("torch._inductor.kernel.custom_op")

_FOLDER = "custom_op_timings"
# Of what a file holds; another number makes all older files misses.
_FORMAT = 3
# What reading a file may raise that is not one, or not one of ours.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)
_CPU_INFO = pathlib.Path("/proc/cpuinfo")  # Linux has it


@dataclasses.dataclass(frozen=True)
class Entry:
    """
    What was found out about candidates in one measurement, by index.

    Args:
        times: empty where nothing could be measured.
        comparisons: with the op's results, if they were asked for.
        not_measured: why nothing can be measured there, by whatever process.
        out: candidates that were not called there because they had been rejected before.
    """

    times: Times = dataclasses.field(default_factory=dict)
    comparisons: Mapping[int, Comparison] = dataclasses.field(default_factory=dict)
    not_measured: str | None = None
    out: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class Environment:
    """
    What decides a time besides candidate and measurement.

    Args:
        torch_source: a digest of PyTorch's own source, the measuring included.
        system: versions and name of the current GPU, as Inductor's other caches know it.
        accelerators: the names of all devices, in order.
        cpu: kind and model, and the compiler of code for it.
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
    # Those of an accelerator that tells no names, as MPS, are all of one kind.
    name_of = getattr(module, "get_device_name", lambda index: module.__name__)
    return tuple(map(name_of, range(count)))


@functools.cache
def _cpu() -> tuple[str, ...]:
    capability = torch.backends.cpu.get_cpu_capability()
    model = platform.processor()
    if _CPU_INFO.exists():
        lines = _CPU_INFO.read_text().splitlines()
        model = next((line for line in lines if line.startswith("model name")), model)
    return (platform.machine(), capability, model, _cpp_compiler())


def _cpp_compiler() -> str:
    """Its version; empty where there is none, as where nothing runs on the CPU."""
    try:
        return get_compiler_version_info(get_cpp_compiler())
    except RuntimeError:
        return ""


def _numerics() -> tuple[str, ...]:
    """Settings that decide what PyTorch's own kernels do, and how fast they are."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    settings = (
        torch.get_float32_matmul_precision(),
        torch.are_deterministic_algorithms_enabled(),
        cuda.matmul.allow_fp16_reduced_precision_reduction,
        cuda.matmul.allow_bf16_reduced_precision_reduction,
        cuda.matmul.allow_fp16_accumulation,
        cuda.flash_sdp_enabled(),
        cuda.mem_efficient_sdp_enabled(),
        cuda.math_sdp_enabled(),
        cuda.cudnn_sdp_enabled(),
        cuda.preferred_blas_library(),
        cuda.preferred_linalg_library(),
        cudnn.enabled,
        cudnn.benchmark,
        cudnn.allow_tf32,
        torch.backends.mkldnn.enabled,
    )
    return tuple(map(str, settings))


def cache_key(measurement: str, environment: Environment) -> str:
    """The name of an entry; what candidates it must hold is looked up in it."""
    return digest((_FORMAT, measurement, dataclasses.astuple(environment)))


def measurement_text(
    site: CallSite,
    options: TuningOptions,
    values: Values,
    hosts: tuple[int, ...] = (),
) -> str | None:
    """
    Where candidates are measured: the call site, its concrete sizes, and how.

    Args:
        values: for each of the call site's symbols.
        hosts: for each rank that measures in step the first one on its host.

    Returns:
        None if something in it has no content that could be compared.
    """
    names = SymbolNames()
    try:
        how = content_digest(
            (
                options.input_gen_fns,
                options.benchmark_with_cudagraphs,
                options.numerics_check,
                hosts,
            )
        )
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
    candidate, names = traced.candidate, SymbolNames()
    try:
        graph = graph_text(traced.graph.graph, names, traced.graph)
        known = traced.known and (names(traced.known.size), str(traced.known.sizes))
        return content_digest(
            (graph, candidate.impl, candidate.params, candidate.config_patches, known)
        )
    except Unhashable as e:
        log.debug("No times of '%s' are cached: %s", traced.name, e)
        return None


def lookup(measurement: str, candidates: Mapping[int, str]) -> Entry | None:
    """
    What was found out about candidates that were measured together.

    Args:
        measurement: as ``measurement_text`` gives it.
        candidates: their texts, as ``candidate_text`` gives them, by index.

    Returns:
        None if one is missing.
    """
    path = _path(measurement)
    if path is None:
        return None
    entry = _read(path, candidates)
    counters["inductor"][f"custom_op_timing_cache_{'hit' if entry else 'miss'}"] += 1
    return entry


def store(measurement: str, candidates: Mapping[int, str], entry: Entry) -> None:
    """
    Keeps what was found out together, in place of what an earlier run did.

    Failures that may pass are left out, so that these candidates are measured again.
    """
    _write(_path(measurement), _to_json(entry, candidates))


def lookup_record(measurement: str, candidate: str) -> ConfigRecord | None:
    """
    What was found out about the configs of a candidate's kernels; None if nothing was.

    Args:
        measurement: as ``measurement_text`` gives it, for the sizes that the model is compiled with.
        candidate: as ``candidate_text`` gives it.
    """
    path = _path(_of_configs(measurement, candidate))
    if path is None:
        return None
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            return None
        usual = {str(kernel): str(name) for kernel, name in content["usual"].items()}
        in_doubt = [kernel for kernel in content["in_doubt"] if kernel in usual]
        at = {int(size): _times_from_json(times) for size, times in content["at"]}
        return ConfigRecord(usual, in_doubt, at)
    except _UNREADABLE:
        return None


def store_record(measurement: str, candidate: str, record: ConfigRecord) -> None:
    """Keeps what ``lookup_record`` finds, but for sizes with failures that may pass."""
    at = [
        (
            size,
            {
                kernel: {name: _time_to_json(time) for name, time in configs.items()}
                for kernel, configs in times.items()
            },
        )
        for size, times in record.at.items()
        if not any(
            map(_may_pass, chain.from_iterable(c.values() for c in times.values()))
        )
    ]
    path = _path(_of_configs(measurement, candidate))
    content = {"usual": {**record.usual}, "in_doubt": [*record.in_doubt], "at": at}
    _write(path, content)


def _of_configs(measurement: str, candidate: str) -> str:
    return f"{measurement}\nconfigs of {candidate}"


def _times_from_json(saved: Mapping[str, Any]) -> ConfigTimes:
    return {
        kernel: {
            str(name): time
            for name, known in configs.items()
            if (time := _time_from_json(known)) is not None
        }
        for kernel, configs in saved.items()
    }


def _write(path: pathlib.Path | None, content: Mapping[str, Any]) -> None:
    if path is None:
        return
    from ..codecache import write_atomic

    text = json.dumps({"format": _FORMAT, **content}, indent=1)
    try:
        write_atomic(str(path), text, make_dirs=True)
    except OSError as e:
        log.info("Measured times cannot be cached: %s", e)


def _path(measurement: str) -> pathlib.Path | None:
    """None where the cache is off."""
    if config.force_disable_caches or not config.autotune_local_cache:
        return None
    try:
        key = cache_key(measurement, Environment.current())
    except Unhashable as e:
        log.debug("No times are cached: %s", e)
        return None
    return pathlib.Path(cache_dir()) / _FOLDER / key[:2] / f"{key}.json"


def _to_json(entry: Entry, candidates: Mapping[int, str]) -> dict[str, Any]:
    known = {
        text: {
            **({"out": True} if index in entry.out else {}),
            **_time_to_json(entry.times.get(index)),
            **_comparison_to_json(entry, index),
        }
        for index, text in candidates.items()
        if _lasts(entry, index)
    }
    return {"not_measured": entry.not_measured, "candidates": known}


def _lasts(entry: Entry, index: int) -> bool:
    """Whether what was found out holds in another process, too."""
    time = entry.times.get(index)
    if time is None:
        return entry.not_measured is not None or index in entry.out
    return not (_may_pass(time) or _may_pass(entry.comparisons.get(index)))


def _may_pass(result: Timing | Failure | Comparison) -> bool:
    return isinstance(result, Failure) and result.may_pass


def _time_to_json(time: Timing | Failure | None) -> dict[str, Any]:
    if isinstance(time, Timing):
        return {"ms": time.ms, "error": time.error}
    return {} if time is None else {"failure": time.reason, "all": time.everywhere}


def _comparison_to_json(entry: Entry, index: int) -> dict[str, Any]:
    if index not in entry.comparisons:
        return {}
    result = entry.comparisons[index]
    if isinstance(result, Failure):
        return {"not_compared": result.reason}
    return {"mismatch": result}


def _read(path: pathlib.Path, candidates: Mapping[int, str]) -> Entry | None:
    """What a file holds of candidates; None unless it is there and has all of them."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != _FORMAT:
            return None
        saved = {i: content["candidates"][text] for i, text in candidates.items()}
        times = {i: _time_from_json(known) for i, known in saved.items()}
        return Entry(
            {i: time for i, time in times.items() if time is not None},
            {i: c for i, known in saved.items() for c in _comparisons_from_json(known)},
            _text_or_none(content["not_measured"]),
            frozenset(i for i, known in saved.items() if "out" in known),
        )
    except _UNREADABLE:
        return None


def _time_from_json(saved: Mapping[str, Any]) -> Timing | Failure | None:
    if "failure" in saved:
        return Failure(str(saved["failure"]), everywhere=bool(saved["all"]))
    if "ms" not in saved:
        return None
    timing = Timing(float(saved["ms"]), float(saved["error"]))
    if not (math.isfinite(timing.ms) and timing.ms >= 0 and timing.error >= 0):
        raise ValueError(f"{timing} is no time")
    return timing


def _comparisons_from_json(saved: Mapping[str, Any]) -> list[Comparison]:
    """None or one."""
    if "not_compared" in saved:
        return [Failure(str(saved["not_compared"]))]
    return [_text_or_none(saved["mismatch"])] if "mismatch" in saved else []


def _text_or_none(saved: Any) -> str | None:
    if not isinstance(saved, str | NoneType):
        raise TypeError(f"{saved} is no text")
    return saved
