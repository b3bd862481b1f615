"""
Triton kernels whose source says which config they have.

A kernel's configs are made where its source is loaded, and Inductor keeps the one that is
the best at the first call. What a winner was measured with is emitted: its kernels name their
configs, each branch of a dispatch its own.
"""

from __future__ import annotations

import copy
import hashlib
import json
import re
from typing import Any, TYPE_CHECKING

from ... import config
from ...utils import Placeholder


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...runtime.triton_heuristics import CachingAutotuner

# Inductor config: for kernels, by content, the text of their config.
KERNEL_CONFIGS_OPTION = "custom_op_kernel_configs"
# In a kernel's ``inductor_meta``.
_FIELD = "custom_op_kernel_config"
_NAME = f"'kernel_name': '{Placeholder.DESCRIPTIVE_NAME}'"
_DIGITS = 10


def content_name(source: str) -> str:
    """
    A name for a kernel that others of its kind do not have.

    Args:
        source: the kernel's, its name left open.
    """
    return hashlib.sha256(source.encode()).hexdigest()[:_DIGITS]


def content_name_of(kernel: CachingAutotuner) -> str | None:
    """
    That of a loaded kernel, whose full name ends with it.

    Returns:
        None for kernels that their source cannot name a config of: those that a user
        wrote, and combo kernels, which have one for each part.
    """
    meta = kernel.inductor_meta
    if kernel.custom_kernel or "combo_grid_meta" in meta:
        return None
    return str(meta.get("kernel_name")).rpartition("_")[2]


def with_config_named(source: str) -> str:
    """
    A kernel's source that names its config, if Inductor's config has one for it.

    Called by Triton's code generation.

    Args:
        source: the kernel's, its name left open.
    """
    named: Mapping[str, str] = getattr(config, KERNEL_CONFIGS_OPTION)
    text = named.get(content_name(source)) if named else None
    if text is None:
        return source
    return source.replace(_NAME, f"{_NAME}, '{_FIELD}': {text!r}", 1)


def function_name(kernel_name: str, source: str) -> str:
    """
    The name of a kernel's function, from the kernel's.

    A kernel that names its config has the function of the one that does not, which was
    compiled to be measured.

    Args:
        source: the kernel's, its name left open.
    """
    plain = re.sub(rf", '{_FIELD}': '[^']*'", "", source, count=1)
    own = content_name(source)
    if plain == source or not kernel_name.endswith(own):
        return kernel_name
    return kernel_name.removesuffix(own) + content_name(plain)


def text_of(triton_config: Any) -> str | None:
    """A config as text; None if it has parts that no text can be made of."""
    parts = {
        "kwargs": triton_config.kwargs,
        "num_warps": triton_config.num_warps,
        "num_stages": triton_config.num_stages,
    }
    try:
        return json.dumps(parts, sort_keys=True)
    except TypeError:
        return None


def configs_of_kernel(
    configs: Sequence[Any], inductor_meta: dict[str, Any]
) -> Sequence[Any]:
    """
    The configs that a kernel has: the one that its source names, or else all.

    Called where Inductor has made them.

    Args:
        configs: Triton's.
        inductor_meta: the kernel's, as in its source; is added to.
    """
    text = inductor_meta.get(_FIELD)
    if text is None:
        return configs
    inductor_meta["dynamic_scale_rblock"] = False
    named = copy.deepcopy(configs[0])
    for part, value in json.loads(text).items():
        setattr(named, part, value)
    return [named]
