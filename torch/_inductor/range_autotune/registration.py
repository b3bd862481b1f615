"""What competes where: each form of registration as one normalized, frozen value."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, get_args, Literal, TYPE_CHECKING

from .registering.signatures import same_value


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch

    from .ranges import DimRange
    from .registering.configs import CustomOpConfig

    InputGenFns = Mapping[str, Callable[[torch.Tensor], torch.Tensor]]
    ConfigGenerator = Callable[[dict[str, torch.Tensor]], Sequence[CustomOpConfig]]

# Whether results that differ from the op's are looked for, and what becomes of who has some.
NumericsCheck = Literal["off", "warn", "drop"]
NUMERICS_CHECKS: tuple[NumericsCheck, ...] = get_args(NumericsCheck)


@dataclasses.dataclass(frozen=True)
class DispatchDim:
    """The size that the choice depends on: ``tensor_name.size(dim_index)``."""

    tensor_name: str
    dim_index: int

    def __str__(self) -> str:
        return f"{self.tensor_name}[{self.dim_index}]"


@dataclasses.dataclass(frozen=True)
class Candidate:
    """
    An implementation with its tuning parameters and Inductor config patches.

    Args:
        name: unique in its registration.
        impl: the callable, None for the op itself.
        parts: where calls are decided together, the candidate of each.
    """

    name: str
    impl: Callable[..., Any] | None
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_patches: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parts: tuple[Candidate, ...] = ()

    def does_the_same_as(self, other: Candidate) -> bool:
        """Equal but for the name, as far as it is known."""
        return (
            same_value(self.impl, other.impl)
            and self.params.keys() == other.params.keys()
            and all(
                type(v) is type(other.params[k]) and same_value(v, other.params[k])
                for k, v in self.params.items()
            )
            and same_value(self.config_patches, other.config_patches)
        )


@dataclasses.dataclass(frozen=True)
class Row:
    """
    A box over the dispatch dimensions and who competes in it.

    Args:
        box: one range for each of the table's dimensions.
        candidates: indices into the registration's candidates.
    """

    box: tuple[DimRange, ...]
    candidates: tuple[int, ...]

    @property
    def sizes(self) -> DimRange:
        """The range of the only dimension there is as yet."""
        (sizes,) = self.box
        return sizes


@dataclasses.dataclass(frozen=True)
class RangeTable:
    """Rows sorted by their boxes, which share no size; gaps are allowed."""

    dims: tuple[DispatchDim, ...]
    rows: tuple[Row, ...]

    @property
    def dim(self) -> DispatchDim:
        """The only dimension there is as yet."""
        (dim,) = self.dims
        return dim


@dataclasses.dataclass(frozen=True)
class Split:
    """Ranges of a size in all of which all configs compete."""

    dim: DispatchDim
    ranges: tuple[DimRange, ...]


@dataclasses.dataclass(frozen=True)
class Contest:
    """The candidates and, if the choice depends on a size, where each competes."""

    candidates: tuple[Candidate, ...]
    table: RangeTable | None


@dataclasses.dataclass(frozen=True)
class TuningOptions:
    """
    How a registration is measured; the same for all its ranges.

    Args:
        input_gen_fns: makes the benchmark tensor of a parameter from a tensor of its
            shape, dtype and device.
        min_speedup_threshold: fallback time over candidate time that a candidate needs.
        include_fallback: whether the op itself competes.
        unbounded_size: the typical size in a range without an end, None for twice its
            start.
        representative_sizes: sizes at which to measure, in place of the default ones in
            the ranges that hold any of them.
        numerics_check: what happens to a candidate whose results differ from the op's.
    """

    input_gen_fns: InputGenFns = dataclasses.field(default_factory=dict)
    min_speedup_threshold: float = 1.0
    benchmark_with_cudagraphs: bool = False
    include_fallback: bool = True
    unbounded_size: int | None = None
    representative_sizes: tuple[int, ...] = ()
    numerics_check: NumericsCheck = "off"


@dataclasses.dataclass(frozen=True)
class Registration:
    """
    All that ``register_custom_op_autotuning`` was told about one op.

    Args:
        contest: None where ``config_generator`` makes it at compile time.
        split: where all configs compete, in the form with ``split_points``.
        joins: those of ops in a row that are decided together here; ``op`` is of the first.
    """

    op: torch._ops.OpOverload
    name: str
    contest: Contest | None
    options: TuningOptions
    config_generator: ConfigGenerator | None = None
    split: Split | None = None
    joins: tuple[Registration, ...] = ()

    @functools.cached_property
    def mentions_collective(self) -> bool:
        """Whether it may run collectives: see ``mentions_collective``."""
        from .graphs.collectives import mentions_collective

        return mentions_collective(self)

    @property
    def dim(self) -> DispatchDim | None:
        """What is dispatched on, as far as it is known before configs are generated."""
        if self.contest is not None and self.contest.table is not None:
            return self.contest.table.dim
        return None if self.split is None else self.split.dim
