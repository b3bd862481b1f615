"""
Configs of reductions' Triton kernels for other sizes than a model is compiled with.

Inductor makes a kernel's configs from the sizes at hand, of rows that are not long a single one.
Compiled for 16 rows of 1024 elements, which get 8 warps each, a norm takes 1.09 times as long at
2048 rows as with the one warp that it has when it is compiled for many (H100). Kernels of
candidates have the configs for other sizes, too; which is the best where is measured, as
between any others. Pointwise kernels have several as it is.

Asked by Inductor where a kernel is loaded, maybe in a process that compiles it.
"""

from __future__ import annotations

import functools
from typing import Any, TYPE_CHECKING

from .kernel_config_names import names_its_config


if TYPE_CHECKING:
    from collections.abc import Callable

# Inductor config: for kernels, other sizes that they run at, by names of symbols.
OTHER_SIZES_OPTION = "custom_op_other_sizes"
# In a kernel's ``inductor_meta``: the hints of its sizes that Inductor would have elsewhere.
OTHER_HINTS = "custom_op_other_hints"
_CONFIGS = "custom_op_configs_for_others"


def for_other_sizes(heuristic: Callable[..., Any]) -> Callable[..., Any]:
    """Decorates what makes a kernel's configs, to make those for its other hints, too."""

    @functools.wraps(heuristic)
    def make(size_hints: dict[str, int], *args: Any, **kwargs: Any) -> Any:
        meta = kwargs.get("inductor_meta") or {}
        if not (kwargs.get("return_configs") or names_its_config(meta)):
            kwargs_of_others = {**kwargs, "return_configs": True}
            meta[_CONFIGS] = [
                config
                for hints in meta.get(OTHER_HINTS, ())
                for config in heuristic({**hints}, *args, **kwargs_of_others)
            ]
        return heuristic(size_hints, *args, **kwargs)

    return make


def configs_for_others(inductor_meta: dict[str, Any]) -> list[Any]:
    """What a kernel has for its other hints; is taken out of its ``inductor_meta``."""
    return inductor_meta.pop(_CONFIGS, [])
