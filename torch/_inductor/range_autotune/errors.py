"""Why a candidate or a call is out, as an error and as text."""

from __future__ import annotations

import os
import traceback

import torch

from .limits import TookTooLong


# What the CPU's allocator raises is a RuntimeError.
_NO_MEMORY_ON_CPU = "DefaultCPUAllocator: can't allocate memory"
# It says why in the last line.
_IN_TORCHSCRIPT = "The following operation failed in the TorchScript interpreter."


class CandidateError(Exception):
    """A candidate cannot compete; says why."""


class NotTunable(Exception):
    """This call can only be lowered as if the op were not registered; says why."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there is not enough memory, on whatever device."""
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        _NO_MEMORY_ON_CPU in str(error)
    )


def one_line(error: BaseException) -> str:
    """An exception for a warning; an assertion that says nothing gets its place."""
    lines, kind = str(error).strip().splitlines() or [""], type(error).__name__
    first = lines[-1 if lines[0] == _IN_TORCHSCRIPT else 0].strip()
    if not first or first.endswith(":"):
        return f"{kind}: {first}".rstrip(": ") + _place_of_assertion(error)
    says_all = isinstance(error, (CandidateError, NotTunable, TookTooLong))
    return first if says_all else f"{kind}: {first}"


def _place_of_assertion(error: BaseException) -> str:
    """Where the assertion behind an exception is, if that was the first to be raised."""
    while error.__cause__ is not None:
        error = error.__cause__
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or not isinstance(error, AssertionError):
        return ""
    last = frames[-1]
    return f" in {last.name} ({os.path.basename(last.filename)}:{last.lineno})"
