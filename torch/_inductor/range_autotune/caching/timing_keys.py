"""
What names measured times: all that they depend on, in digests and texts.

The same names mean that an earlier process measured the same candidates in the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import pathlib
import platform
from typing import TYPE_CHECKING

import torch

from ... import config
from ...cpp_builder import get_compiler_version_info, get_cpp_compiler
from ..contents.content import content_digest, digest, Unhashable
from ..graphs.graph_text import graph_text, SymbolNames


if TYPE_CHECKING:
    from ..call_site import CallSite
    from ..candidates.traced_candidates import TracedCandidate
    from ..registration import TuningOptions
    from ..sizes.size_conditions import Values

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Of what a file holds; another number makes all older files misses.
FORMAT = 5
_CPU_INFO = pathlib.Path("/proc/cpuinfo")  # Linux has it


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
        from ...codecache import CacheBase, torch_key

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
    All of Inductor's config, as a digest.

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
    return digest((FORMAT, measurement, dataclasses.astuple(environment)))


def measurement_text(
    site: CallSite,
    options: TuningOptions,
    values: Values,
    hosts: tuple[int, ...],
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
        hints = {names(symbol): value for symbol, value in traced.hints.items()}
        how = (candidate.config_patches, known, sorted(hints.items()))
        return content_digest((graph, candidate.impl, candidate.params, how))
    except Unhashable as e:
        log.debug("No times of '%s' are cached: %s", traced.name, e)
        return None
