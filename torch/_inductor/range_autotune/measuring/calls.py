"""One call of each candidate at a size, on inputs that stand for the call site's."""

from __future__ import annotations

import logging
from typing import Any, TYPE_CHECKING

import torch

from ... import config
from ..errors import is_out_of_memory, one_line
from ..graphs.computed_indices import check_places, told_places
from ..graphs.integer_division import check_divisors
from ..inputs import make_inputs
from ..limits import call_candidate
from ..sizes.guards import replaced
from ..sizes.size_conditions import may_hold
from ..sizes.size_points import concrete, Purpose, SizePoint, values_of
from ..times import Failure
from .trial_process import try_in_process


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ..modules.subgraph_module import SubgraphModule
    from ..registration import InputGenFns
    from ..standing import ContestedRange, Standing
    from ..tuning import Tuning

    Runner = Callable[[], Any]

log = logging.getLogger("torch._inductor.kernel.custom_op")


def leave_inputs() -> None:
    """Does nothing: for inputs that no candidate writes to."""


class Runners(dict[int, "Runner"]):
    """
    One call of each candidate at a size, by index; all on the same inputs.

    Args:
        inputs: in place of the call site's.
        restore: undoes what calls write to the inputs.
    """

    def __init__(
        self,
        calls: Mapping[int, Runner] | None = None,
        inputs: Sequence[Any] = (),
        restore: Callable[[], None] = leave_inputs,
    ) -> None:
        super().__init__(calls or {})
        self.inputs = inputs
        self.restore = restore

    def only(self, indices: Iterable[int]) -> Runners:
        """Those of some candidates."""
        calls = {index: self[index] for index in indices}
        return Runners(calls, self.inputs, self.restore)

    def results_of(self, index: int) -> Any:
        """What a candidate makes of the inputs as they were; raises what it does."""
        self.restore()
        return call_candidate(self[index])


class HeldInputs:
    """
    What stands for the call site's inputs, at one size at a time: made when it is first
    asked for there, and kept until another size is.
    """

    def __init__(self, tuning: Tuning) -> None:
        self._tuning = tuning
        self.drop()

    def at(self, point: SizePoint) -> list[Any]:
        """Raises as ``make_inputs``."""
        if self._point != point:
            self.drop()
            self._inputs = inputs_at(self._tuning, point)
            self._point = point
        return self._inputs

    def drop(self) -> None:
        """Makes room for others, or for new ones at that size."""
        self._point: SizePoint | None = None
        self._inputs: list[Any] = []


def runners_at(
    tuning: Tuning, competing: ContestedRange, point: SizePoint, held: HeldInputs
) -> tuple[Runners, dict[int, Failure]]:
    """
    One call of each candidate at a size, and those that are known to fail there. No calls
    if there is not enough memory, or if the user's generators fail at a size that nobody
    named.
    """
    standing = tuning.standing
    try:
        failures = _failures_in_process(tuning, competing, point)
        inputs = held.at(point)
        restore = _restorer(tuning, inputs)
    except Exception as e:
        is_named = point.purpose is Purpose.STAND_FOR_RANGE
        if is_named and not is_out_of_memory(e):
            raise
        tell_not_measured(tuning, point, one_line(e))
        return Runners(), {}
    if not tuning.ranks:
        failures |= _failures_by_inputs(tuning, competing, point, inputs)
    runners = {
        index: runner_at(module, point, inputs)
        for index, module in modules_in(standing, competing).items()
        if index not in failures
    }
    return Runners(runners, inputs, restore), failures


def modules_in(
    standing: Standing, competing: ContestedRange
) -> dict[int, SubgraphModule]:
    """Those of the candidates that compete in a range, by index."""
    modules = standing.modules.items()
    return {i: module for i, module in modules if standing.competes(i, competing)}


def runner_at(
    module: SubgraphModule, point: SizePoint, inputs: Sequence[Any]
) -> Runner:
    """One call of a candidate with a call site's inputs at a size."""
    call = module.load().call
    arguments = [*values_of(module.symbols, point.values), *inputs]
    return lambda: call([*arguments])


def inputs_at(tuning: Tuning, point: SizePoint) -> list[Any]:
    """What stands for the call site's inputs at a size; raises as ``make_inputs``."""
    return make_inputs(
        tuning.site, point, _input_gen_fns(tuning, point), tuning.outputs.tensors
    )


def _input_gen_fns(tuning: Tuning, point: SizePoint) -> InputGenFns:
    """The user's, and those of lengths or offsets of sequences."""
    given, told = tuning.registration.options.input_gen_fns, tuning.sequences
    if told is None:
        return given
    rows = concrete(told.rows, point.values)

    def lengths(like: torch.Tensor) -> torch.Tensor:
        return torch.full_like(like, rows)

    def offsets(like: torch.Tensor) -> torch.Tensor:
        numbers = torch.arange(like.numel(), device=like.device)
        return numbers * rows // max(like.numel() - 1, 1)

    made_up = dict.fromkeys(told.names, lengths if told.by_length else offsets)
    return {**given, **made_up}


def _restorer(tuning: Tuning, inputs: Sequence[Any]) -> Callable[[], None]:
    """
    What undoes the updates of inputs in place: called again and again with what they have
    become, candidates would soon be measured on infinities, or on numbers too small for a
    CPU to be fast with.
    """
    updated = [inputs[at] for at in tuning.site.updated]
    kept = [tensor.clone() for tensor in updated]

    def restore() -> None:
        for tensor, values in zip(updated, kept):
            tensor.copy_(values)

    return restore if updated else leave_inputs


def _failures_in_process(
    tuning: Tuning, competing: ContestedRange, point: SizePoint
) -> dict[int, Failure]:
    """Of candidates that another process did not survive, or not in time."""
    if not config.autotune_in_subproc or tuning.ranks:
        return {}
    standing = tuning.standing
    modules = {
        index: module
        for index, module in modules_in(standing, competing).items()
        if not standing.traced[index].calls_python
    }
    gen_fns = _input_gen_fns(tuning, point)
    return try_in_process(modules, tuning.site, point, gen_fns)


def _failures_by_inputs(
    tuning: Tuning, competing: ContestedRange, point: SizePoint, inputs: Sequence[Any]
) -> dict[int, Failure]:
    """Of candidates that the process, or its device, would not survive, see ``check_inputs``."""
    failures = {}
    for index in modules_in(tuning.standing, competing):
        try:
            check_inputs(tuning, index, point, lambda: inputs)
        except Exception as e:
            reason = f"it does not run: {one_line(e)}; integers are made up, see input_gen_fns"
            failures[index] = Failure(reason)
    return failures


def check_inputs(
    tuning: Tuning, index: int, point: SizePoint, inputs: Callable[[], Sequence[Any]]
) -> None:
    """
    Raises what PyTorch raises where generated code would end the process, or leave a GPU
    unusable: it divides integers by zero on a CPU, or has an index that is out of bounds.

    Args:
        inputs: makes those at the size, if they are needed.
    """
    traced = tuning.standing.traced
    # Zeros that are indices themselves are in bounds.
    given_are_zeros = not _input_gen_fns(tuning, point)
    on_cpu = tuning.device.type == "cpu"
    if on_cpu:
        check_divisors(traced[index].graph, inputs)

    def length(size: Any) -> int:
        return concrete(size, point.values)

    # An op that is called as it is may index as others do; on a CPU it raises.
    is_opaque = not on_cpu and traced[index].calls_python
    for candidate in traced.values() if is_opaque else [traced[index]]:
        graph = candidate.graph
        told = told_places(graph.graph, also_given=not given_are_zeros)
        if told:
            check_places(graph, told, inputs(), length)


def broken_condition(tuning: Tuning, point: SizePoint) -> str | None:
    """What a size breaks of the conditions of candidates' code: 32 bits for an index, say."""
    for module in tuning.standing.modules.values():
        for condition in module.conditions:
            if not may_hold(replaced(condition), point.values):
                return f"it breaks a condition of the code, {condition}"
    return None


def tell_not_measured(tuning: Tuning, point: SizePoint, reason: str) -> None:
    """Logs that no candidate is called at a size, and why."""
    log.info("%s: size %s is not measured: %s", tuning.name, point.size, reason)
