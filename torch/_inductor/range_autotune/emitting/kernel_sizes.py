"""
What a Triton kernel's source says of other sizes than those that it is generated for.

Its configs for these are made where it is loaded, see ``kernel_configs.configs_for_sizes``.
"""

from __future__ import annotations

from typing import Any, TYPE_CHECKING

from ... import config
from ...runtime.runtime_utils import next_power_of_2
from ...virtualized import V
from ..kernel_configs.configs_for_sizes import OTHER_HINTS, OTHER_SIZES_OPTION
from ..sizes.size_hints import hinted


if TYPE_CHECKING:
    from collections.abc import Mapping

    import sympy


def meta_of_other_sizes(numels: Mapping[str, sympy.Expr]) -> dict[str, Any]:
    """
    What a kernel's source says of other sizes in its ``inductor_meta``.

    Called by Triton's code generation.

    Args:
        numels: what the kernel runs over, by prefix, symbolic.
    """
    others: list[dict[str, int]] = []
    symbols = {symbol.name: symbol for symbol in V.graph.sizevars.backed_var_to_val}
    for sizes in getattr(config, OTHER_SIZES_OPTION):
        values = {symbols[name]: size for name, size in sizes if name in symbols}
        with hinted(values):
            hint = V.graph.sizevars.optimization_hint
            others.append({p: next_power_of_2(int(hint(n))) for p, n in numels.items()})
    return {OTHER_HINTS: others} if others else {}
