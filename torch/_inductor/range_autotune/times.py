"""What a candidate took, or why it has no time: values, by size and range."""

from __future__ import annotations

import dataclasses
import statistics
from typing import TYPE_CHECKING

import torch

from .errors import is_out_of_memory, one_line
from .limits import TookTooLong


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .measuring.numerics import Comparison
    from .ranges import DimRange


@dataclasses.dataclass(frozen=True)
class Timing:
    """
    What one call of a candidate takes.

    Args:
        ms: in milliseconds.
        error: the estimated error of sampling, relative to ``ms``.
    """

    ms: float
    error: float = 0.0


@dataclasses.dataclass(frozen=True)
class Failure:
    """
    Why a candidate has no time.

    Args:
        may_pass: whether it is transient: memory that others held, a time limit, a device
            that an earlier kernel broke. The cache of times does not keep it.
        everywhere: whether it is not to be called at other sizes, either.
        lacks_memory: whether less memory was free than a call takes.
    """

    reason: str
    may_pass: bool = False
    everywhere: bool = False
    lacks_memory: bool = False

    def of(self, what: str) -> Failure:
        """The same, saying what failed."""
        return dataclasses.replace(self, reason=f"{what}: {self.reason}")


Times = dict[int, "Timing | Failure"]


@dataclasses.dataclass(frozen=True)
class Findings:
    """
    What was found out about candidates in one measurement, by index.

    Args:
        times: empty where nothing could be measured.
        comparisons: with the op's results, if they were asked for.
        not_measured: why nothing can be measured there, by whatever process.
        out: candidates that were not called there because they had been rejected before.
    """

    times: Times = dataclasses.field(default_factory=dict)
    comparisons: Mapping[int, Comparison] = dataclasses.field(default_factory=dict)
    not_measured: str | None = None
    out: frozenset[int] = frozenset()


@dataclasses.dataclass(frozen=True)
class RangeTimes:
    """
    What was measured in one range: the times of candidates by concrete size.

    Args:
        lender: the range that was measured instead, if nothing could be in this one.
    """

    sizes: DimRange
    at: Mapping[int | None, Times]
    lender: DimRange | None = None


def failure_of(error: BaseException) -> Failure:
    """What a candidate raised, as a value; nothing of the candidate is kept alive by it."""
    reason = one_line(error)
    if is_out_of_memory(error):
        return Failure(f"out of memory: {reason}", may_pass=True, lacks_memory=True)
    passes = isinstance(error, (TookTooLong, TimeoutError, torch.AcceleratorError))
    return Failure(reason, may_pass=passes, everywhere=passes)


def timing_of(samples: Sequence[float]) -> Timing:
    """
    From samples in ms: the lowest, for others on the machine only ever add to one. Its
    error is the mean distance between neighbours in the lowest quarter of the samples.
    """
    lowest = min(samples)
    if len(samples) == 1 or not lowest:
        return Timing(lowest)
    quartile, *_ = _quartiles(samples)
    gap = (quartile - lowest) / ((len(samples) - 1) / 4)
    return Timing(lowest, gap / lowest)


def usual_timing_of(samples: Sequence[float]) -> Timing:
    """
    From samples in ms on a CPU: their lower quartile.

    Who reads and writes more memory is slowed down more by others on the machine, which
    the lowest does not tell. Of 624 choices between an op called eagerly and its
    implementations, made from samples on a shared machine with two cores, the mean time of
    who was chosen was 3 % above the best one's in 61 and 10 % in 24 by the lowest; in 43
    and 15 by the quartile, in 55 and 14 by the median.
    """
    if len(samples) == 1:
        return Timing(samples[0])
    quartile, median, _ = _quartiles(samples)
    gap = (median - min(samples)) / ((len(samples) - 1) / 2)
    return Timing(quartile, gap / quartile if quartile else 0.0)


def _quartiles(samples: Sequence[float]) -> list[float]:
    return statistics.quantiles(samples, n=4, method="inclusive")
