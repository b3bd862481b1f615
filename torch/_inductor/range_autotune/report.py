"""What a user is told of a choice: the log block of one op, and its warnings."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from torch._dynamo.utils import counters
from torch.utils import _pytree as pytree

import torch

from .ranges import fill_gaps, Segment
from .sizes.equal_sizes import text_of


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .call_site import CallSite
    from .ranges import DimRange
    from .sizes.equal_sizes import EqualSizes
    from .times import RangeTimes
    from .tuning import Tuning
    from .winners import KernelConfigs

log = logging.getLogger("torch._inductor.kernel.custom_op")

_SYMBOL = r"\b[su]\d+\b"


def warn_left_out(
    op_name: str,
    candidate_name: str,
    reason: str,
    site: CallSite,
    where: DimRange | None,
    known: bool,
) -> None:
    """
    The one warning that a candidate's failure costs.

    Args:
        where: the range that it is out of, if it is one.
        known: whether it was said of another combination with the part that failed.
    """
    counters["inductor"]["custom_op_candidates_left_out"] += 1
    log.log(
        logging.DEBUG if known else logging.WARNING,
        "%s: candidate '%s' is left out%s: %s%s",
        op_name,
        candidate_name,
        f" in range {where}" if where else "",
        reason,
        _symbols_in(reason, site),
    )


def log_equal_sizes(
    op_name: str, equal: EqualSizes, site: CallSite, others_compete: bool
) -> None:
    """
    That implementations compete only where sizes are equal, or multiples, and which these are.

    Args:
        others_compete: where they are not.
    """
    sizes = text_of(equal)
    log.info(
        "%s: implementations need %s%s; where that is not so, %s. "
        "If it always is, say so with torch._check in the op's fake kernel",
        op_name,
        sizes,
        _symbols_in(sizes, site),
        "the others compete" if others_compete else "the op itself runs",
    )


def _symbols_in(text: str, site: CallSite) -> str:
    """What symbols that a text names are of the op's arguments, in brackets."""
    symbols = re.findall(_SYMBOL, text)
    places: dict[str, str] = {}
    # Where one is a size by itself says more than where it is a part of one.
    for size, place in sorted(_sizes_of_arguments(site), key=lambda told: len(told[0])):
        for symbol in re.findall(_SYMBOL, size):
            places.setdefault(symbol, f"{place} is {size}")
    told = dict.fromkeys(places[symbol] for symbol in symbols if symbol in places)
    return f" ({', '.join(told)})" if told else ""


def _sizes_of_arguments(site: CallSite) -> Iterator[tuple[str, str]]:
    """Each as text, and where it is."""
    for call in site.calls:
        for name, value in call.fake_arguments().items():
            for path, leaf in pytree.tree_leaves_with_path(value):
                place = f"{name}{pytree.keystr(path)}"
                if isinstance(leaf, torch.SymInt):
                    yield str(leaf), place
                for dim, size in enumerate(getattr(leaf, "shape", ())):
                    yield str(size), f"{place}.shape[{dim}]"


def log_header(tuning: Tuning) -> None:
    """Opens the block."""
    if tuning.table is None:
        log.info("=== Autotuning for %s ===", tuning.name)
        return
    log.info("=== Range-based Autotuning for %s ===", tuning.name)
    log.info("Dispatch dimension: %s", tuning.table.dim)


def log_winners(tuning: Tuning, winners: Sequence[Segment[int]]) -> None:
    """The log block of one op: winners at INFO, times and kernels' configs at DEBUG."""
    _log_cuts(tuning)
    rows = [(r, _winner_in(winners, r.sizes)) for r in tuning.measured]
    for row, winner in rows:
        _log_choice(tuning, row, winner)
    if tuning.table is not None:
        _log_summary(tuning, rows)
    _log_kernel_configs(winners, tuning.kernel_configs)


def _log_summary(tuning: Tuning, rows: Sequence[tuple[RangeTimes, int]]) -> None:
    log.info("=== Range-based Autotuning Summary for %s ===", tuning.name)
    for row, winner in rows:
        log.info("  Range %s: %s", row.sizes, tuning.standing.name_of(winner))
    if gaps := ", ".join(map(str, _gaps(tuning))):
        log.info("  In no range, where the op itself runs: %s", gaps)
    if len({winner for _, winner in rows}) > 1:
        log.info("=== Different ranges selected different implementations ===")
    else:
        log.info("=== All ranges selected the same implementation ===")


def _gaps(tuning: Tuning) -> list[DimRange]:
    """Sizes that can occur and are in none of the ranges."""
    ranges = [Segment(r.possible, True) for r in tuning.standing.ranges]
    filled = fill_gaps(ranges, tuning.bounds, False)
    return [segment.sizes for segment in filled if not segment.value]


def _log_kernel_configs(
    winners: Sequence[Segment[int]], configs: Sequence[Segment[KernelConfigs]]
) -> None:
    """Where a winner's kernels change their configs; which ones they have at DEBUG."""
    for won in winners:
        parts = [part for part in configs if part.sizes.overlaps(won.sizes)]
        if cuts := ", ".join(str(part.sizes.start) for part in parts[1:]):
            log.info("Range %s: kernels change their configs at %s", won.sizes, cuts)
        for part in parts:
            for kernel, text in part.value:
                log.debug("  Kernel %s in range %s: %s", kernel, part.sizes, text)


def _log_cuts(tuning: Tuning) -> None:
    """Of ranges that are in pieces."""
    for competing in tuning.standing.ranges:
        starts = [
            row.sizes.start
            for row in tuning.measured
            if row.sizes.start in competing.sizes and row.sizes != competing.sizes
        ]
        if cuts := ", ".join(map(str, starts[1:])):
            sizes = competing.sizes
            log.info("Range %s is cut at %s: its winner changes there", sizes, cuts)


def _winner_in(winners: Sequence[Segment[int]], sizes: DimRange) -> int:
    return next(s.value for s in winners if s.sizes.overlaps(sizes))


def _log_choice(tuning: Tuning, row: RangeTimes, winner: int) -> None:
    """Of one range, and the times that it follows from; loans are told once."""
    timed = {index for times in row.at.values() for index in times}
    how = (
        f"as in range {row.lender}, for nothing could be measured"
        if row.lender
        else f"after benchmarking {len(timed)} candidates"
    )
    name = tuning.standing.name_of(winner)
    log.info("Range %s: Selected implementation '%s' %s", row.sizes, name, how)
    if not row.lender:
        _log_times(tuning, row)


def _log_times(tuning: Tuning, row: RangeTimes) -> None:
    for size, times in row.at.items():
        for index, result in times.items():
            name = tuning.standing.name_of(index)
            log.debug("  %s at size %s: %s", name, size, result)
