"""
The configs of a candidate's Triton kernels, chosen over several sizes.

By itself Inductor keeps the config with which a kernel's first call is the fastest. Two that
are as fast as each other there may not be at other sizes: of a LayerNorm's kernel (H200,
4096 columns), either was taken by chance at 256 rows, and one takes 8 % longer at 8192.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, TYPE_CHECKING

from ..runtime.triton_heuristics import (
    CachingAutotuner,
    CachingAutotunerPlugin,
    DEFER,
)
from .measure import Failure, failure_of, GpuSampler, slowdowns, Timing


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping

    import torch

    from .measure import Sampler

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Of each config; the lowest counts, and a call before them loads the kernel.
_SAMPLES = 3
# Counted with every time: what is noise of the shortest kernels is little beside a launch.
_LAUNCH_MS = 0.005
# One of a kernel that takes so long.
_LONG_MS = 5.0


class ConfigSearch(CachingAutotunerPlugin):
    """
    Launches candidates' kernels with each of their configs, until one is decided on.

    Candidates may have kernels in common, which are decided on once.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sampler: Sampler | None = None
        self._times: dict[CachingAutotuner, list[dict[Hashable, Timing | Failure]]] = {}
        self._over = False

    def is_undecided(self, module: Any) -> bool:
        """Whether a kernel of a loaded module was called that still has several configs."""
        return any(kernel in self._times for kernel in _kernels_of(module))

    def call(self, module: Any, run: Callable[[], Any]) -> None:
        """Calls a candidate, its kernels with all configs that they have."""
        kernels = _kernels_of(module)
        try:
            for kernel in kernels:
                kernel._plugins.append(self)
            run()
        finally:
            for kernel in kernels:
                kernel._plugins[:] = [p for p in kernel._plugins if p is not self]

    def pre_autotune(
        self, autotuner: CachingAutotuner, *args: Any, stream: Any, **kwargs: Any
    ) -> Any:
        """
        Called by Inductor where it would choose at this size; launches the kernel instead.

        Raises:
            What every config raised.
        """
        if self._over:  # an interrupt kept it from being removed
            return DEFER
        sampler = self._sampler = self._sampler or GpuSampler(self._device)
        arguments, named = autotuner.clone_args(*args, **kwargs)
        times: dict[Hashable, Timing | Failure] = {}
        error: Exception | None = None
        for launcher in autotuner.launchers:
            launch = functools.partial(launcher, *arguments, **named, stream=stream)
            try:
                launch()
                times[launcher] = Timing(_LAUNCH_MS + _lowest(sampler, launch))
            except Exception as e:
                error = e
                times[launcher] = failure_of(e)
        scores = slowdowns({None: times})
        if not scores:
            assert error is not None
            raise error
        self._times.setdefault(autotuner, []).append(times)
        best: Any = min(scores, key=scores.__getitem__)
        return best(*args, **kwargs, stream=stream)

    def decide(self) -> None:
        """Has each kernel keep the config that is the best over all calls as yet."""
        for kernel, calls in self._times.items():
            scores = slowdowns(dict(enumerate(calls)))
            # Somebody else may have called it meanwhile, and so decided.
            if scores and set(scores) <= set(kernel.launchers):
                _keep_best(kernel, scores)
        self._times.clear()
        self._sampler = None
        self._over = True


def _lowest(sampler: Sampler, launch: Callable[[], Any]) -> float:
    """In ms."""
    samples = [sampler(launch)]
    while len(samples) < _SAMPLES and samples[0] < _LONG_MS:
        samples.append(sampler(launch))
    return min(samples)


def _kernels_of(module: Any) -> list[CachingAutotuner]:
    kernels = [k for k in vars(module).values() if isinstance(k, CachingAutotuner)]
    return list(dict.fromkeys(kernels))


def _keep_best(kernel: CachingAutotuner, scores: Mapping[Hashable, float]) -> None:
    """As if Inductor had taken these times: it drops the others and fills its cache."""
    kernel.benchmark_all_configs = lambda *_, **__: scores  # type: ignore[method-assign]
    try:
        kernel.autotune_to_one_config()
    except Exception as e:  # then Inductor decides, where it is called next
        log.debug("No config is decided on", exc_info=e)
    finally:
        del kernel.benchmark_all_configs
