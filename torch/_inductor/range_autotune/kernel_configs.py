"""
The configs of a candidate's Triton kernels, chosen over several sizes.

By itself Inductor keeps the config with which a kernel's first call is the fastest. Two that
are as fast as each other there may not be at other sizes: of a LayerNorm's kernel (H200,
4096 columns), either was taken by chance at 256 rows, and one takes 8 % longer at 8192.

Configs take turns within calls of the candidate. A kernel by itself finds caches otherwise
than behind those that wrote its inputs: of two for what follows a matrix product (SwiGLU,
H200), one was chosen for the 0.4 µs that it takes less by itself at small sizes. Of a call
that is 0.1 µs, and at 4096 rows it takes 1.9 µs more of 43.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from typing import Any, TYPE_CHECKING

from ..codegen.multi_kernel import MultiKernelCall
from ..runtime.triton_heuristics import (
    CachingAutotuner,
    CachingAutotunerPlugin,
    DEFER,
)
from .measure import Failure, failure_of, GpuSampler, slowdowns, Timing


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    import torch

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Of each config; the lowest counts, and a call before them loads the kernel.
_SAMPLES = 3
# One of a call that takes so long.
_LONG_MS = 5.0
# None: Inductor chooses, where it would take seconds.
_TOO_LONG_MS = 100.0


class ConfigSearch(CachingAutotunerPlugin):
    """
    Calls candidates with each config of their kernels, until one is decided on.

    Candidates may have kernels in common, which are decided on once.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sampler: GpuSampler | None = None
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
            self._try_configs(run)
        finally:
            for kernel in kernels:
                kernel._plugins[:] = [p for p in kernel._plugins if p is not self]
        for kernel, trial in self._trials.items():
            if times := trial.times():
                self._times.setdefault(kernel, []).append(times)

    def _try_configs(self, run: Callable[[], Any]) -> None:
        self._take_turn(0, run)
        if not self._trials:
            return
        if self._sample(0, run) > _TOO_LONG_MS:
            self._trials.clear()
            return
        turns = max(len(kernel.launchers) for kernel in self._trials)
        for turn in range(1, turns):
            self._take_turn(turn, run)
        for turn in range(1, _SAMPLES * turns):  # that of turn 0 is there
            if self._sample(turn, run) > _LONG_MS and turn >= turns - 1:
                break

    def _take_turn(self, turn: int, run: Callable[[], Any]) -> None:
        """One call, its kernels with the config whose turn it is."""
        self._turn = turn
        for trial in self._trials.values():
            trial.launches = []
        run()

    def _sample(self, turn: int, run: Callable[[], Any]) -> float:
        """The time of such a call in ms, the fastest if the sampler repeats it."""
        calls: list[tuple[Any, Any, dict[_Trial, list[_Launch]]]] = []

        def call() -> None:
            start, end = self._gpu.event(), self._gpu.event()
            start.record()
            self._take_turn(turn, run)
            end.record()
            trials = self._trials.values()
            calls.append((start, end, {trial: trial.launches for trial in trials}))

        self._gpu(call)
        call_ms, fastest = min(
            ((start.elapsed_time(end), i) for i, (start, end, _) in enumerate(calls))
        )
        for trial, launches in calls[fastest][-1].items():
            trial.note(launches, call_ms)
        return call_ms

    @property
    def _gpu(self) -> GpuSampler:
        if self._sampler is None:
            self._sampler = GpuSampler(self._device)
        return self._sampler

    def pre_autotune(
        self, autotuner: CachingAutotuner, *args: Any, stream: Any, **kwargs: Any
    ) -> Any:
        """
        Called by Inductor where it would choose at this size; launches the kernel instead.

        Raises:
            What the last config raised, if all did.
        """
        if self._over:  # an interrupt kept it from being removed
            return DEFER
        trial = self._trials.setdefault(autotuner, _Trial())
        launchers = autotuner.launchers
        first = self._turn % len(launchers)
        for launcher in (*launchers[first:], *launchers[:first]):
            if launcher in trial.failures:
                continue
            start, end = self._gpu.event(), self._gpu.event()
            start.record()
            try:
                result = launcher(*args, **kwargs, stream=stream)
            except Exception as e:
                trial.failures[launcher] = failure_of(e)
                if len(trial.failures) == len(launchers):
                    raise
                continue
            end.record()
            trial.launches.append(_Launch(launcher, start, end))
            return result
        return DEFER

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


@dataclasses.dataclass(frozen=True)
class _Launch:
    """Of a kernel with a config, between two events."""

    launcher: Hashable
    start: Any
    end: Any


@dataclasses.dataclass(eq=False)
class _Trial:
    """
    The configs of one kernel in calls of a candidate.

    Args:
        launches: those of the call at hand.
        failures: of configs that raised.
        lowest_ms: of each config, its launches within one call together.
        rest_ms: what is left of a call without them, at the lowest.
    """

    launches: list[_Launch] = dataclasses.field(default_factory=list)
    failures: dict[Hashable, Failure] = dataclasses.field(default_factory=dict)
    lowest_ms: dict[Hashable, float] = dataclasses.field(default_factory=dict)
    rest_ms: float = math.inf

    def note(self, launches: Sequence[_Launch], call_ms: float) -> None:
        """Adds a call that is done, unless its launches were not all with one config."""
        configs = {launch.launcher for launch in launches}
        if len(configs) != 1:
            return
        (config,) = configs
        own_ms = sum(launch.start.elapsed_time(launch.end) for launch in launches)
        self.lowest_ms[config] = min(own_ms, self.lowest_ms.get(config, math.inf))
        self.rest_ms = min(self.rest_ms, call_ms - own_ms)

    def times(self) -> dict[Hashable, Timing | Failure]:
        """Those of a call with each config; none if none was sampled."""
        if not self.lowest_ms:
            return {}
        lowest = self.lowest_ms.items()
        timings = {config: Timing(self.rest_ms + ms) for config, ms in lowest}
        return {**timings, **self.failures}


def _kernels_of(module: Any) -> list[CachingAutotuner]:
    """A loaded module's; none if some are alternatives that Inductor compares itself."""
    values = vars(module).values()
    if any(isinstance(value, MultiKernelCall) for value in values):
        return []
    kernels = [value for value in values if isinstance(value, CachingAutotuner)]
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
