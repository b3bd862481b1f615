"""Calls of candidates with each config of their Triton kernels, beside those that are timed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ... import config
from ..kernel_configs.kernel_config_ranges import ConfigRecord
from ..limits import call_candidate
from .calls import (
    broken_condition,
    check_inputs,
    inputs_at,
    modules_in,
    runner_at,
)
from .conclusions import choose_kernel_configs
from .measuring_points import spread
from .recall import remember_records


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..kernel_configs.kernel_config_ranges import ConfigTimes
    from ..kernel_configs.kernel_config_search import ConfigSearch
    from ..sizes.size_points import SizePoint
    from ..tuning import Tuning
    from .calls import HeldInputs
    from .measuring_points import ScheduledPoint

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Where kernels are launched with all their configs, beside the size that comes first.
_OTHER_SIZES = 3


def caller_ahead(
    tuning: Tuning,
    first: ScheduledPoint,
    held: HeldInputs,
    search: ConfigSearch,
) -> Callable[[int], None]:
    """
    What calls a candidate where it is measured first, while others are compiled.

    Its Triton kernels are launched with all their configs. Errors are ignored: they recur,
    and are reported, when the candidate is timed. Nothing is called on a CPU, whose cores
    are the compilers', nor what is to be called by all ranks in step or in another process
    before.

    Args:
        held: asked for those at that size, if anybody is called.
        search: for the configs of their kernels.
    """
    competing, point = first
    waits = tuning.ranks or config.autotune_in_subproc
    if waits or tuning.device.type == "cpu" or broken_condition(tuning, point):
        return lambda index: None

    def call(index: int) -> None:
        if tuning.standing.competes(index, competing):
            _call_ahead(tuning, index, point, held, search)

    return call


def _call_ahead(
    tuning: Tuning,
    index: int,
    point: SizePoint,
    held: HeldInputs,
    search: ConfigSearch,
) -> None:
    """Calls a candidate before it is timed, whatever comes of it."""

    def call() -> None:
        module = tuning.standing.modules[index]
        check_inputs(tuning, index, point, lambda: held.at(point))
        search.call(module.load(), runner_at(module, point, held.at(point)))

    try:
        call_candidate(call)
    except Exception as e:
        log.debug("%s: a call ahead of time failed", tuning.name, exc_info=e)


def settle_on_configs(
    tuning: Tuning,
    scheduled: Sequence[ScheduledPoint],
    held: HeldInputs,
    search: ConfigSearch,
) -> None:
    """Calls candidates at other sizes, too, whose kernels have several configs."""
    for competing, point in spread(scheduled[1:], _OTHER_SIZES):
        undecided = [
            index
            for index, module in modules_in(tuning.standing, competing).items()
            if search.is_undecided(module.load())
        ]
        if undecided and not broken_condition(tuning, point):
            for index in undecided:
                _call_ahead(tuning, index, point, held, search)
            held.drop()
    search.settle()


def compare_configs(tuning: Tuning, search: ConfigSearch) -> None:
    """Calls winners with other configs of their kernels; keeps those of parts of ranges."""
    records: dict[int, ConfigRecord] = {}

    def record_of(index: int) -> ConfigRecord:
        if index not in records:
            records[index] = _record(tuning, index, search)
        return records[index]

    def times_at(index: int, point: SizePoint) -> ConfigTimes:
        at = records[index].at
        assert point.size is not None
        if point.size in at:
            return at[point.size]
        try:
            at[point.size] = _config_times(tuning, index, search, point)
        except Exception as e:
            log.debug("%s: a call with other configs failed", tuning.name, exc_info=e)
            return {}
        return at[point.size]

    choose_kernel_configs(tuning, record_of, times_at)
    remember_records(tuning, records)


def _record(tuning: Tuning, index: int, search: ConfigSearch) -> ConfigRecord:
    """What is known of a candidate's kernels before it is called with each config again."""
    if index not in tuning.standing.modules:
        return ConfigRecord()
    module = tuning.standing.modules[index].load()
    return ConfigRecord(search.usual_configs(module), search.in_doubt(module))


def _config_times(
    tuning: Tuning, index: int, search: ConfigSearch, point: SizePoint
) -> ConfigTimes:
    """What a call of a candidate takes with each config of its kernels, if it can be told."""
    if broken_condition(tuning, point):
        return {}
    module = tuning.standing.modules[index]

    def call() -> ConfigTimes:
        inputs = inputs_at(tuning, point)
        check_inputs(tuning, index, point, lambda: inputs)
        run = runner_at(module, point, inputs)
        return search.times_with_each(module.load(), run)

    times = call_candidate(call)
    log.debug("%s: with each config at size %s: %s", tuning.name, point.size, times)
    return times
