"""What there is to decide at a call site, and what was found out about it."""

from __future__ import annotations

import dataclasses
from typing import Any, TYPE_CHECKING

from .. import config
from .candidate_indices import (
    APART,
    FALLBACK_INDEX,
    kind_of_variant,
    PLAIN_INDEX,
)
from .settings import fusion_speedup_threshold
from .winners import ChoiceRules


if TYPE_CHECKING:
    from concurrent.futures import Future

    import sympy

    import torch

    from .call_site import CallSite
    from .candidates.contract import Outputs
    from .dispatch import Branches
    from .ranges import DimRange, Segment
    from .registration import RangeTable, Registration
    from .sizes.equal_sizes import EqualSizes
    from .sizes.size_points import SizePoint
    from .standing import Standing
    from .times import RangeTimes
    from .winners import KernelConfigs, Winner


@dataclasses.dataclass(frozen=True)
class Otherwise:
    """
    What runs at a call site where sizes are not equal: the best of those that do not need
    them to be.

    Args:
        equal: sizes that what is tuned needs to be.
        tuning: what there is to decide where they are not; maybe with fewer equal sizes, and
            something else where they are not either.
    """

    equal: EqualSizes
    tuning: Tuning


@dataclasses.dataclass(frozen=True)
class Sequences:
    """
    Arguments that are made up as what is told of sequences.

    Args:
        names: of the arguments.
        rows: how many there are in all sequences, or in each, symbolic.
        by_length: whether they are the sequences' lengths, else their offsets.
    """

    names: tuple[str, ...]
    rows: sympy.Expr
    by_length: bool = False


@dataclasses.dataclass
class Tuning:
    """
    One call site on its way to a winner table.

    Args:
        table: the ranges as they were registered; None where no size is dispatched on.
        size: the dispatch dimension, symbolic; None where none is dispatched on.
        bounds: the values that ``size`` can have.
        standing: who competes in which ranges, and who is out.
        ranks: those that measure in step and take one decision; None for this one alone.
        hosts: for each of the ranks the first one on its host.
        loads: futures of the candidates' modules, by index.
        points: with representative sizes of ranges, by range.
        measured: the times that the winners follow from, range by range.
        kernel_configs: of winners, for parts of their ranges.
        winners: over all sizes that can occur; None until it is decided.
        branches: of dispatches, lowered; equal call sites share them.
        first: an equal call site, which is compiled and measured in this one's place.
        made_at: the dispatch dimension's size that the model is compiled with, if code of
            candidates depends on it.
        sequences: arguments that are measured as lengths or offsets; None if none are.
        can_call_op: whether code around the choice can call the op itself.
        otherwise: what runs where sizes differ that are one size in all of this; None if
            there are no such sizes.
    """

    outputs: Outputs
    table: RangeTable | None
    size: sympy.Expr | None
    bounds: DimRange
    standing: Standing
    ranks: tuple[int, ...] | None = None
    hosts: tuple[int, ...] = ()
    loads: dict[int, Future[Any]] = dataclasses.field(default_factory=dict)
    points: dict[DimRange, list[SizePoint]] = dataclasses.field(default_factory=dict)
    measured: list[RangeTimes] = dataclasses.field(default_factory=list)
    kernel_configs: tuple[Segment[KernelConfigs], ...] = ()
    winners: tuple[Segment[Winner], ...] | None = None
    branches: Branches = dataclasses.field(default_factory=dict)
    first: Tuning | None = None
    made_at: int | None = None
    sequences: Sequences | None = None
    can_call_op: bool = True
    otherwise: Otherwise | None = None

    @property
    def cases(self) -> list[Tuning]:
        """What there is to decide, in the order in which it is tested which one a call is."""
        others = self.otherwise.tuning.cases if self.otherwise else []
        return [self, *others]

    @property
    def called(self) -> Tuning:
        """The case that no size needs to be equal in, with all symbols that the model has."""
        return self.cases[-1]

    @property
    def source(self) -> Tuning:
        """The call site that is compiled and measured for this one; itself if first."""
        return self.first or self

    @property
    def registration(self) -> Registration:
        """What the candidates were registered by."""
        return self.standing.registration

    @property
    def site(self) -> CallSite:
        """Where the op, or its region, is called."""
        return self.standing.site

    @property
    def name(self) -> str:
        """The registration's, for logs."""
        return self.standing.name

    @property
    def device(self) -> torch.device:
        """Where candidates run."""
        return self.outputs.device

    @property
    def fallback_competes(self) -> bool:
        """Whether the op itself may win by its time; it is the last resort in any case."""
        forced = config.test_configs.force_custom_op_decomposition is False
        is_in = self.registration.options.include_fallback or forced
        return is_in and self.can_call_op

    def choice_rules(self) -> ChoiceRules:
        """How the winners follow from the times."""
        variants = self.standing.variants
        apart = {i: of for i, of in variants.items() if kind_of_variant(i) == APART}
        return ChoiceRules(
            fallback=FALLBACK_INDEX,
            plain=PLAIN_INDEX,
            apart=apart,
            forms={i: of for i, of in variants.items() if i not in apart},
            fusion_speedup=fusion_speedup_threshold() or 0.0,
            min_speedup=self.registration.options.min_speedup_threshold,
            force=config.test_configs.force_custom_op_decomposition,
            merge=not config.test_configs.force_no_impl_grouping,
        )
