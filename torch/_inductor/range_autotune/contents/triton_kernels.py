"""What Triton kernels of users consist of, without what launches leave in them."""

from __future__ import annotations

import sys
from typing import Any

from torch._higher_order_ops.triton_kernel_wrap import TraceableTritonKernelWrapper


# By module and class. Of a function its source, since it may be replaced and has the types of
# parameters; Triton's own key of it stays as it was when it was first asked for, whatever
# becomes of the globals and helpers that are read.
_COUNTS = {
    ("jit", "JITCallable"): (
        "fn",
        "src",
        "do_not_specialize",
        "do_not_specialize_on_alignment",
        "noinline",
        "debug",
    ),
    ("autotuner", "Autotuner"): (
        "fn",
        "configs",
        "keys",
        "reset_to_zero",
        "restore_value",
        "early_config_prune",
        "perf_model",
        "configs_top_k",
        "pre_hook",
        "post_hook",
    ),
    ("autotuner", "Heuristics"): ("fn", "values"),
}


def kernel_parts(value: Any) -> tuple[Any, ...] | None:
    """
    What counts of a kernel, of what is around one, or of a config; None of anything else.

    Not what it was called with, what was compiled or found to be the best, and which number
    it has in a table of the process.
    """
    if isinstance(value, TraceableTritonKernelWrapper):
        return (type(value), value.kernel, value.grid)
    if _is_of_triton(value, "autotuner", "Config"):
        # Launches may add to the fields; copies have them in another order.
        return (type(value), sorted(vars(value).items()))
    for (module, name), attributes in _COUNTS.items():
        if _is_of_triton(value, module, name):
            return (type(value), *(getattr(value, a, None) for a in attributes))
    return None


def _is_of_triton(value: Any, module: str, name: str) -> bool:
    """False where nobody has imported Triton, or it has no such class."""
    runtime = sys.modules.get(f"triton.runtime.{module}")
    return isinstance(value, getattr(runtime, name, ()))
