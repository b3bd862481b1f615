"""
Configs of Triton kernels for other sizes than those that a model is compiled with.

Inductor makes a kernel's configs from the sizes at hand. Compiled for 16 rows of 4096 columns,
silu(x) * x + 1 has blocks of 256 and 512 elements: at 16384 rows it takes 1.31 times as long as
with the 1024 that it has when it is compiled for many (H100). Candidates' kernels have the
configs for other sizes, too; which is the best where is measured, as between any others.

Asked by Inductor where a kernel is loaded, maybe in a process that compiles it.
"""

from __future__ import annotations

import functools
import math
from typing import Any, TYPE_CHECKING

from .kernel_config_names import names_its_config


if TYPE_CHECKING:
    from collections.abc import Callable

# Inductor config: for kernels, other sizes that they run at, by names of symbols.
OTHER_SIZES_OPTION = "custom_op_other_sizes"
# In a kernel's ``inductor_meta``: the hints of its sizes that Inductor would have elsewhere.
OTHER_HINTS = "custom_op_other_hints"
_CONFIGS = "custom_op_configs_for_others"


def for_other_sizes(smaller: bool) -> Callable[..., Any]:
    """
    Decorates what makes a kernel's configs, to make those for its other hints, too.

    Args:
        smaller: whether those for less than the kernel's own hints are of use.
    """

    def decorate(heuristic: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(heuristic)
        def make(size_hints: dict[str, int], *args: Any, **kwargs: Any) -> Any:
            meta = kwargs.get("inductor_meta") or {}
            if not (kwargs.get("return_configs") or names_its_config(meta)):
                kwargs_of_others = {**kwargs, "return_configs": True}
                meta[_CONFIGS] = [
                    config
                    for hints in meta.get(OTHER_HINTS, ())
                    if smaller or _elements(hints) > _elements(size_hints)
                    for config in heuristic({**hints}, *args, **kwargs_of_others)
                ]
            return heuristic(size_hints, *args, **kwargs)

        return make

    return decorate


def configs_for_others(inductor_meta: dict[str, Any]) -> list[Any]:
    """What a kernel has for its other hints; is taken out of its ``inductor_meta``."""
    return inductor_meta.pop(_CONFIGS, [])


def _elements(hints: dict[str, int]) -> int:
    return math.prod(hints.values())
