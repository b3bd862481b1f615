"""
The configs of a candidate's Triton kernels, chosen over several sizes.

By itself Inductor keeps the config with which a kernel's first call is the fastest. Two that
are as fast as each other there may not be at other sizes: of a LayerNorm's kernel (H200,
4096 columns), either was taken by chance at 256 rows, and one takes 8 % longer at 8192.

Configs take turns within calls of the candidate. A kernel by itself finds caches otherwise
than behind those that wrote its inputs: of two for what follows a matrix product (SwiGLU,
H200, 4096 rows), one takes 10 % longer than the other there and 40 % where it belongs.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any, TYPE_CHECKING

from torch._dynamo.device_interface import get_interface_for_device

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
# One of a call that takes so long.
_LONG_MS = 5.0


class ConfigSearch(CachingAutotunerPlugin):
    """
    Calls candidates with each config of their kernels, until one is decided on.

    Candidates may have kernels in common, which are decided on once.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sampler: Sampler | None = None
        self._turn = 0
        self._trials: dict[CachingAutotuner, _Trial] = {}
        self._times: dict[CachingAutotuner, list[dict[Hashable, Timing | Failure]]] = {}
        self._over = False

    def is_undecided(self, module: Any) -> bool:
        """Whether a kernel of a loaded module was called that still has several configs."""
        return any(kernel in self._times for kernel in _kernels_of(module))

    def call(self, module: Any, run: Callable[[], Any]) -> None:
        """Calls a candidate, its kernels with all configs that they have."""
        kernels = _kernels_of(module)
        self._trials.clear()
        try:
            for kernel in kernels:
                kernel._plugins.append(self)
            self._take_turns(run)
        finally:
            for kernel in kernels:
                kernel._plugins[:] = [p for p in kernel._plugins if p is not self]
        for kernel, trial in self._trials.items():
            self._times.setdefault(kernel, []).append(trial.times())

    def _take_turns(self, run: Callable[[], Any]) -> None:
        self._turn = 0
        run()
        turns = max((len(kernel.launchers) for kernel in self._trials), default=0)
        for self._turn in range(1, turns):
            run()
        for self._turn in range(_SAMPLES * turns):
            sample_ms = self._sample(run)
            for trial in self._trials.values():
                trial.note(sample_ms)
            if sample_ms > _LONG_MS and self._turn >= turns - 1:
                break

    def _sample(self, run: Callable[[], Any]) -> float:
        """Of a call, in ms; the kernels' trials have events of the call alone."""

        def from_here() -> None:
            for trial in self._trials.values():
                trial.launches.clear()
            run()

        self._sampler = self._sampler or GpuSampler(self._device)
        return self._sampler(from_here)

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
        trial = self._trials.setdefault(autotuner, _Trial())
        first = self._turn % len(autotuner.launchers)
        in_turn = [*autotuner.launchers[first:], *autotuner.launchers[:first]]
        error: Exception | None = None
        for launcher in in_turn:
            if launcher in trial.failures:
                continue
            start, end = self._event(), self._event()
            start.record()
            try:
                result = launcher(*args, **kwargs, stream=stream)
            except Exception as e:
                error = e
                trial.failures[launcher] = failure_of(e)
                continue
            end.record()
            trial.launches.append((launcher, start, end))
            return result
        raise error or RuntimeError("no config of the kernel runs")

    def _event(self) -> Any:
        return get_interface_for_device(self._device.type).Event(enable_timing=True)

    def decide(self) -> None:
        """Has each kernel keep the config that is the best over all calls as yet."""
        for kernel, calls in self._times.items():
            scores = slowdowns(dict(enumerate(calls)))
            # Somebody else may have called it meanwhile, and so decided.
            if scores and set(scores) <= set(kernel.launchers):
                _keep_best(kernel, scores)
        self._times.clear()
        self._trials.clear()
        self._sampler = None
        self._over = True


@dataclasses.dataclass
class _Trial:
    """
    The configs of one kernel in calls of a candidate.

    Args:
        launches: those of the call at hand: a config with the events around it.
        failures: of configs that raised.
        lowest_ms: of each config, its launches within one call together.
        rest_ms: what is left of a call without them, at the lowest.
    """

    launches: list[tuple[Hashable, Any, Any]] = dataclasses.field(default_factory=list)
    failures: dict[Hashable, Failure] = dataclasses.field(default_factory=dict)
    lowest_ms: dict[Hashable, float] = dataclasses.field(default_factory=dict)
    rest_ms: float = math.inf

    def note(self, call_ms: float) -> None:
        """Adds a call that took so long and is done."""
        of_one = {launcher for launcher, *_ in self.launches}
        if len(of_one) != 1:  # it was not launched, or not with the same one each time
            return
        (launcher,) = of_one
        own_ms = sum(start.elapsed_time(end) for _, start, end in self.launches)
        self.lowest_ms[launcher] = min(own_ms, self.lowest_ms.get(launcher, math.inf))
        self.rest_ms = min(self.rest_ms, max(call_ms - own_ms, 0.0))

    def times(self) -> dict[Hashable, Timing | Failure]:
        """A call's with each config that was sampled."""
        lowest = self.lowest_ms.items()
        timings = {launcher: Timing(self.rest_ms + ms) for launcher, ms in lowest}
        return {**timings, **self.failures}


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
