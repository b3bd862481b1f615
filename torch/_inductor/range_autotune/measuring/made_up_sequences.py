"""
Integers that are made up as lengths or offsets of sequences, where zeros lead out of bounds.

Of rows with offsets of all zeros, each is behind the last sequence, and who looks up to which
one it belongs cannot be measured; nor who takes the last row of each, of lengths of zeros.
Offsets from 0 to the number of rows are what such ops are given, or lengths.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import sympy

from ..errors import one_line
from ..graphs.node_kinds import INDEX_DTYPES
from ..tuning import Sequences
from .calls import broken_condition, check_inputs


if TYPE_CHECKING:
    from collections.abc import Iterator

    from ... import ir
    from ..sizes.size_points import SizePoint
    from ..tuning import Tuning
    from .calls import HeldInputs
    from .measuring_points import ScheduledPoint

log = logging.getLogger("torch._inductor.kernel.custom_op")

_MOST_NUMBERS = 4  # that are tried


def choose_sequences(tuning: Tuning, first: ScheduledPoint, held: HeldInputs) -> None:
    """
    Has arguments made up as told of sequences if that lets more candidates be called.

    Args:
        first: where candidates are measured first.
        held: asked for inputs at that size.
    """
    _, point = first
    if tuning.ranks or broken_condition(tuning, point):
        return
    best, chosen = _count_out(tuning, point, held), None
    if not best:
        return
    for option in _options(tuning):
        tuning.sequences = option
        held.drop()
        out = _count_out(tuning, point, held)
        if out < best:
            best, chosen = out, option
        if not best:
            break
    tuning.sequences = chosen
    held.drop()
    if chosen:
        names = ", ".join(chosen.names)
        kind = "lengths" if chosen.by_length else "offsets"
        log.info("%s: measured with %s of sequences as %s", tuning.name, kind, names)


def _options(tuning: Tuning) -> Iterator[Sequences]:
    """Of all arguments that may be told of them, then of each; of any number of rows."""
    given = tuning.registration.options.input_gen_fns
    site, kinds = tuning.site, dict[str, set[bool]]()
    for i, node in enumerate(site.inputs):
        name = site.parameter_of(i)
        if name is not None and name not in given:
            kinds.setdefault(name, set()).add(_may_be_told(node))
    names = [name for name, found in kinds.items() if found == {True}]
    together = [tuple(names)] if len(names) > 1 else []
    for option in [*together, *((name,) for name in names)]:
        for rows in _numbers_of_rows(tuning):
            yield Sequences(option, rows)
            yield Sequences(option, rows, by_length=True)


def _numbers_of_rows(tuning: Tuning) -> list[sympy.Expr]:
    """What may be one: the size that is dispatched on first; then numbers, and sizes."""
    inputs = tuning.site.inputs
    numbers = [node for node in inputs if isinstance(node, sympy.Basic)]
    tensors = [node.get_size() for node in inputs if not isinstance(node, sympy.Basic)]
    # The last dimension is that of features.
    sizes = [size for sizes in tensors for size in sizes[:-1]]
    found = [tuning.size, *numbers, *sizes]
    return [*dict.fromkeys(rows for rows in found if rows is not None)][:_MOST_NUMBERS]


def _may_be_told(node: ir.TensorBox | sympy.Expr) -> bool:
    if isinstance(node, sympy.Basic):
        return False
    return len(node.get_size()) == 1 and node.get_dtype() in INDEX_DTYPES


def _count_out(tuning: Tuning, point: SizePoint, held: HeldInputs) -> int:
    """How many candidates cannot be called."""
    return sum(
        not _can_call(tuning, index, point, held) for index in tuning.standing.traced
    )


def _can_call(tuning: Tuning, index: int, point: SizePoint, held: HeldInputs) -> bool:
    try:
        check_inputs(tuning, index, point, lambda: held.at(point))
    except Exception as e:
        log.debug("%s: with %s: %s", tuning.name, tuning.sequences, one_line(e))
        return False
    return True
