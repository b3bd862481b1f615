"""Triton kernels of loaded modules, and which of their configs they go on with."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, TYPE_CHECKING

from ...codegen.multi_kernel import MultiKernelCall
from ...runtime.triton_heuristics import CachingAutotuner
from ..times import Timing
from .kernel_config_names import content_name_of, text_of


if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from ..times import Failure

    LauncherTimes = Mapping[Any, Timing | Failure]

log = logging.getLogger("torch._inductor.kernel.custom_op")

# A config that takes no longer than so many times as long as another at one size may be the
# faster one at the next.
_CLOSE = 1.05
# Of kernels for which Inductor goes on from the best of several configs.
_TUNED_FURTHER = ("coordinate_descent_tuning", "combo_tuning_groups")


def kernels_of(module: Any) -> list[CachingAutotuner]:
    """A loaded module's; none if some are alternatives that Inductor compares itself."""
    values = vars(module).values()
    if any(isinstance(value, MultiKernelCall) for value in values):
        return []
    kernels = [value for value in values if isinstance(value, CachingAutotuner)]
    return list(dict.fromkeys(kernels))


@dataclasses.dataclass(frozen=True)
class SettledKernel:
    """
    A kernel that goes on with one of its configs.

    Args:
        launchers: with each config.
        compiled: what they are made of.
        kept: the launcher of the one that it goes on with.
        calls: the times that it follows from.
    """

    launchers: list[Any]
    compiled: list[Any]
    kept: list[Any]
    calls: Sequence[LauncherTimes]

    @classmethod
    def on(
        cls, best: Any, kernel: CachingAutotuner, calls: Sequence[LauncherTimes]
    ) -> SettledKernel:
        """A kernel that has several, from now on with the best."""
        settled = cls(kernel.launchers, kernel.compile_results, [best], calls)
        settled.apply(kernel)
        return settled

    def apply(self, kernel: CachingAutotuner) -> None:
        """Has it go on with the one, also where it is loaded once more."""
        kernel.launchers = self.kept
        kernel._prune_compile_results_to_launcher(self.best)

    def undo(self, kernel: CachingAutotuner) -> None:
        """Gives it back the others."""
        kernel.launchers, kernel.compile_results = self.launchers, self.compiled
        kernel._cached_launcher = None

    def holds_for(self, kernel: CachingAutotuner) -> bool:
        """Whether its config was not chosen by others since."""
        return kernel.launchers is self.kept

    @property
    def best(self) -> Any:
        """The launcher that is kept."""
        return self.kept[0]

    def is_in_doubt(self) -> bool:
        """Whether another may be faster at some size: it was, or close, in one of the calls."""
        for times in self.calls:
            ms = {c: time.ms for c, time in times.items() if isinstance(time, Timing)}
            limit = _CLOSE * ms.pop(self.best)
            if any(other < limit for other in ms.values()):
                return True
        return False


def can_be_named(kernel: CachingAutotuner, launcher: Any) -> bool:
    """Whether a kernel's source can name the config that a launcher has."""
    tuned_further = any(map(kernel.inductor_meta.get, _TUNED_FURTHER))
    named = content_name_of(kernel) is not None and text_of(launcher.config) is not None
    return named and not tuned_further


def keep_best(kernel: CachingAutotuner, scores: Mapping[Hashable, float]) -> None:
    """As if Inductor had taken these times: it drops the others and fills its cache."""
    kernel.benchmark_all_configs = lambda *_, **__: scores  # type: ignore[method-assign]
    try:
        kernel.autotune_to_one_config()
    except Exception as e:  # then Inductor decides, where it is called next
        log.debug("No config is decided on", exc_info=e)
    finally:
        del kernel.benchmark_all_configs
