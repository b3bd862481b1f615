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
import functools
from typing import Any, TYPE_CHECKING

from ...runtime.triton_heuristics import (
    CachingAutotuner,
    CachingAutotunerPlugin,
    DEFER,
)
from ..measure import GpuSampler
from ..times import Failure, failure_of, Timing, timing_of
from ..winners import slowdowns
from .kernel_config_names import content_name_of, text_of
from .settled_kernels import can_be_named, keep_best, kernels_of, SettledKernel


if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    import torch

    from .settled_kernels import LauncherTimes

# Of each config; the lowest counts, and a call before them loads the kernel. So many, or
# the fewest of a call that takes so long.
_SAMPLES, _FEWEST, _LONG_MS = 3, 1, 5.0
# The same where it is to be told which config is better at one size.
_SAMPLES_AGAIN, _FEWEST_AGAIN = 7, 3
# Inductor chooses the configs of calls that take longer; a search would take seconds.
_TOO_LONG_MS = 100.0


class ConfigSearch(CachingAutotunerPlugin):
    """
    Calls candidates with each config of their kernels, until these settle on one.

    Candidates may have kernels in common, which settle once. Between ``settle`` and ``close``
    a kernel goes on with one config, and may still be called with all. Which one it is goes
    into the source of winners' kernels; Inductor's cache has it of those that cannot name it.

    Args:
        device: a GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._sampler: GpuSampler | None = None
        self._turn = 0
        self._trials: dict[CachingAutotuner, _Trial] = {}
        self._times: dict[CachingAutotuner, list[LauncherTimes]] = {}
        self._settled: dict[CachingAutotuner, SettledKernel] = {}
        self._with_events = True
        self._over = False

    def is_undecided(self, module: Any) -> bool:
        """Whether a kernel of a loaded module was called that still has several configs."""
        return any(kernel in self._times for kernel in kernels_of(module))

    def call(self, module: Any, run: Callable[[], Any]) -> None:
        """Calls a candidate, its kernels with all configs that they have."""
        tried = self._try(kernels_of(module), run, _SAMPLES, _FEWEST)
        for kernel, times in tried.items():
            self._times.setdefault(kernel, []).append(times)

    def settle(self) -> None:
        """Has each kernel go on with the config that is the best over all calls as yet."""
        for kernel, calls in self._times.items():
            scores = slowdowns(dict(enumerate(calls)))
            # Somebody else may have called it meanwhile, and so decided.
            if not scores or not set(scores) <= set(kernel.launchers):
                continue
            best = min(scores, key=scores.__getitem__)
            if can_be_named(kernel, best):
                self._settled[kernel] = SettledKernel.on(best, kernel, calls)
            else:
                keep_best(kernel, scores)
        self._times.clear()
        self._sampler = None  # and its memory

    def usual_configs(self, module: Any) -> dict[str, str]:
        """
        The configs that a candidate's kernels have settled on.

        Returns:
            As ``kernel_config_names`` has them: by content, as text.
        """
        return {
            name: usual
            for kernel in kernels_of(module)
            if (settled := self._settled.get(kernel))
            and (name := content_name_of(kernel))
            and (usual := text_of(settled.best.config))
        }

    def in_doubt(self, module: Any) -> list[str]:
        """Those of these kernels that may be faster with another config at some size."""
        return [
            name
            for kernel in kernels_of(module)
            if (settled := self._settled.get(kernel))
            and settled.is_in_doubt()
            and (name := content_name_of(kernel))
        ]

    def times_with_each(
        self, module: Any, run: Callable[[], Any]
    ) -> dict[str, dict[str, Timing | Failure]]:
        """
        Calls a candidate again, its kernels with all their configs.

        Returns:
            Of kernels that have settled, by content: the times of a call by config.
        """
        settled = {
            kernel: self._settled[kernel]
            for kernel in kernels_of(module)
            if kernel in self._settled and self._settled[kernel].holds_for(kernel)
        }
        try:
            for kernel in settled:
                settled[kernel].undo(kernel)
            tried = self._try([*settled], run, _SAMPLES_AGAIN, _FEWEST_AGAIN)
        finally:
            for kernel in settled:
                settled[kernel].apply(kernel)
        return {
            name: {
                text: time
                for launcher, time in times.items()
                if (text := text_of(launcher.config))
            }
            for kernel, times in tried.items()
            if (name := content_name_of(kernel))
        }

    def close(self) -> None:
        """
        Gives kernels all their configs back.

        A later search in this process may come upon the same kernels.
        """
        for kernel, settled in self._settled.items():
            if settled.holds_for(kernel):
                settled.undo(kernel)
        self._settled.clear()
        self._trials.clear()
        self._sampler = None
        self._over = True

    def _try(
        self,
        kernels: Sequence[CachingAutotuner],
        run: Callable[[], Any],
        samples: int,
        fewest: int,
    ) -> dict[CachingAutotuner, LauncherTimes]:
        """
        Times of a call by config, for each of the kernels that have several.

        Args:
            samples: of each config, or the fewest of a long call.
        """
        self._trials.clear()
        try:
            for kernel in kernels:
                kernel._plugins.append(self)
            self._try_configs(run, samples, fewest)
        finally:
            for kernel in kernels:
                kernel._plugins[:] = [p for p in kernel._plugins if p is not self]
        tried = {kernel: trial.times() for kernel, trial in self._trials.items()}
        return {kernel: times for kernel, times in tried.items() if times}

    def _try_configs(self, run: Callable[[], Any], samples: int, fewest: int) -> None:
        self._take_turn(0, run)
        if not self._trials:
            return
        call_ms = self._sample(0, run)
        if call_ms > _TOO_LONG_MS:
            self._trials.clear()
            return
        if call_ms > _LONG_MS:
            samples = fewest
        turns = max(len(kernel.launchers) for kernel in self._trials)
        for turn in range(1, turns):
            self._take_turn(turn, run)
        for turn in range(1, samples * turns):  # that of turn 0 is there
            self._sample(turn, run)
        self._sample_undisturbed(run, samples)

    def _take_turn(self, turn: int, run: Callable[[], Any]) -> None:
        """One call, its kernels with the config whose turn it is."""
        self._turn = turn
        for trial in self._trials.values():
            trial.launches = []
        run()

    def _sample(self, turn: int, run: Callable[[], Any]) -> float:
        """Notes what launches take in such a call, the fastest if the sampler repeats it."""
        calls: list[dict[_Trial, list[_Launch]]] = []

        def call() -> None:
            self._take_turn(turn, run)
            calls.append({trial: trial.launches for trial in self._trials.values()})

        call_ms = self._gpu(call)
        for trial in calls[-1]:
            trial.note([launches[trial] for launches in calls if launches.get(trial)])
        return call_ms

    def _sample_undisturbed(self, run: Callable[[], Any], samples: int) -> None:
        """Notes what a call takes without events in it, which make a short one longer."""
        self._with_events = False
        try:
            turn = functools.partial(self._take_turn, 0, run)
            call_ms = min(self._gpu(turn) for _ in range(samples))
        finally:
            self._with_events = True
        for trial in self._trials.values():
            trial.note_call(call_ms)

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
            if self._with_events:
                start.record()
            try:
                result = launcher(*args, **kwargs, stream=stream)
            except Exception as e:
                trial.failures[launcher] = failure_of(e)
                if len(trial.failures) == len(launchers):
                    raise
                continue
            if self._with_events:
                end.record()
            trial.launches.append(_Launch(launcher, start, end))
            return result
        return DEFER


@dataclasses.dataclass(frozen=True)
class _Launch:
    """Of a kernel with a config, between two events."""

    launcher: Hashable
    start: Any
    end: Any

    def ms(self) -> float:
        """Between the events."""
        return self.start.elapsed_time(self.end)


@dataclasses.dataclass(eq=False)
class _Trial:
    """
    The configs of one kernel in calls of a candidate.

    Args:
        launches: those of the call at hand.
        failures: of configs that raised.
        own_ms: of each config, its launches within one call together.
        rest_ms: what is left of a call without them; None if that is not known.
    """

    launches: list[_Launch] = dataclasses.field(default_factory=list)
    failures: dict[Hashable, Failure] = dataclasses.field(default_factory=dict)
    own_ms: dict[Hashable, list[float]] = dataclasses.field(default_factory=dict)
    rest_ms: float | None = None

    def note(self, calls: Sequence[Sequence[_Launch]]) -> None:
        """Adds the fastest of some calls, unless their launches were not with one config."""
        config = _config_of([launch for launches in calls for launch in launches])
        if config is not None:
            ms = min(sum(launch.ms() for launch in launches) for launches in calls)
            self.own_ms.setdefault(config, []).append(ms)

    def note_call(self, call_ms: float) -> None:
        """Says what the call at hand took without events in it."""
        config = _config_of(self.launches)
        if config in self.own_ms:
            self.rest_ms = max(call_ms - min(self.own_ms[config]), 0.0)

    def times(self) -> LauncherTimes:
        """Those of a call with each config; none if none was sampled."""
        if self.rest_ms is None:
            return {}
        timings = {
            config: timing_of([self.rest_ms + ms for ms in samples])
            for config, samples in self.own_ms.items()
        }
        return {**timings, **self.failures}


def _config_of(launches: Sequence[_Launch]) -> Hashable | None:
    """The one that all have; None if they differ or there are none."""
    configs = {launch.launcher for launch in launches}
    return configs.pop() if len(configs) == 1 else None
