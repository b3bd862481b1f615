"""
The process that trials of candidates run in.

It is one of Inductor's TuningProcess: started once, killed at the limit, started again when it
is needed again. (Those of multiprocessing would run the user's main module.)
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import pickle
import signal
import subprocess
import threading
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters
from torch._inductor.autotune_process import TuningProcess
from torch._inductor.runtime.cache_dir_utils import cache_dir

import torch

from ... import config
from ..errors import one_line
from ..inputs import describe_inputs
from ..limits import A_CALL, TookTooLong
from ..settings import time_limit_s
from ..sizes.size_points import values_of
from ..times import Failure, failure_of
from .trial import SentTensor, settle_in, Trial, Verdict


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..call_site import CallSite
    from ..modules.subgraph_module import SubgraphModule
    from ..registration import InputGenFns
    from ..sizes.size_points import SizePoint

log = logging.getLogger("torch._inductor.kernel.custom_op")

# It takes 7 s on a machine with two cores, most of it imports.
_START_LIMIT_S = 300.0
# From when a killed process is gone from the system's view; more means that it is stuck
# in a driver, and nobody can do anything about it.
_END_LIMIT_S = 10.0
# More than a selector takes is not needed.
_LONGEST_WAIT_S = 1e6
# Inductor settings of these types travel; others are hooks of this process.
_PLAIN = (bool, int, float, str, tuple, type(None))


def try_in_process(
    modules: Mapping[int, SubgraphModule],
    site: CallSite,
    point: SizePoint,
    input_gen_fns: InputGenFns,
) -> dict[int, Failure]:
    """
    Calls candidates once at a size, each in another process, within their time limit.

    Args:
        modules: loaded ones, by candidate; of those that can be tried.

    Returns:
        By candidate why it is out.

    Raises:
        MemoryError, ValueError: see ``describe_inputs``.
    """
    described = describe_inputs(site, point, input_gen_fns)
    inputs = [SentTensor.of(x) if isinstance(x, torch.Tensor) else x for x in described]
    failures = {}
    for index, module in modules.items():
        numbers = values_of(module.symbols, point.values)
        trial = make_trial(module, [*numbers, *inputs])
        failure = None if trial is None else PROCESS.try_one(trial, time_limit_s())
        if failure is not None:
            failures[index] = failure
    return failures


def make_trial(module: SubgraphModule, arguments: Sequence[Any]) -> Trial | None:
    """None if the module has constants that cannot travel."""
    constants = {
        name: SentTensor.of(constant)
        for name, constant in module.constants.items()
        if isinstance(constant, torch.Tensor)
    }
    if len(constants) < len(module.constants):
        return None
    loaded = module.load()
    return Trial(
        loaded.key,
        loaded.__file__,
        constants,
        arguments,
        module.run_in_context(_settings),
    )


def _settings() -> dict[str, Any]:
    changed = config._get_dict(skip_default=True)  # type: ignore[attr-defined]  # a config module's class has it
    plain = {k: v for k, v in changed.items() if isinstance(v, _PLAIN)}
    # One call does not need compile workers of its own.
    return {**plain, "compile_threads": 1}


class TrialProcess:
    """
    The process that trials run in; started when one is needed, one trial at a time.

    It ignores Ctrl-C and ends with the process that started it.
    """

    def __init__(self) -> None:
        self._cannot_start = False
        self._forget()
        atexit.register(self.end)
        if hasattr(os, "register_at_fork"):  # not on Windows
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        """After a fork the process is the parent's."""
        self._lock = threading.Lock()
        self._process: TuningProcess | None = None

    def try_one(self, trial: Trial, limit_s: float | None) -> Failure | None:
        """Why a candidate is out; None if it is not, or if no process can be had."""
        counters["inductor"]["custom_op_candidate_trials"] += 1
        with self._lock:
            try:
                return self._outcome(trial, limit_s)
            except Exception as e:  # what it is sent or answers cannot be, for one
                self.end()
                return self._not_tried(trial, one_line(e))
            except BaseException:  # its answer would be taken for a later one
                self.end()
                raise

    def end(self) -> None:
        """Ends the process at once; the next trial starts another one."""
        process, self._process = self._process, None
        if process is None:
            return
        process.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.process.wait(_END_LIMIT_S)
        with contextlib.suppress(OSError):  # for what could not be sent any more
            process.close()

    def _outcome(self, trial: Trial, limit_s: float | None) -> Failure | None:
        if not self._is_running() and not self._start():
            return None
        if problem := self._ask(trial.load, _START_LIMIT_S):
            return self._not_tried(trial, problem.reason)
        answer = self._ask(trial, limit_s)
        if not isinstance(answer, Verdict):
            return answer
        if not answer.reusable:
            self.end()
        return answer.failure

    def _not_tried(self, trial: Trial, reason: str) -> None:
        log.info("%s cannot be tried in another process: %s", trial.path, reason)

    def _is_running(self) -> bool:
        return self._process is not None and self._process.alive()

    def _start(self) -> bool:
        if self._cannot_start:
            return False
        counters["inductor"]["custom_op_trial_processes"] += 1
        self.end()
        try:
            self._process = TuningProcess(device=None)
            problem = self._ask(settle_in, _START_LIMIT_S)
        except (OSError, ValueError) as e:  # ValueError: on Windows
            problem = failure_of(e)
        if problem is None:
            return True
        self.end()
        self._cannot_start = True
        why = "Candidates are not tried in a process of their own: %s"
        log.warning(why, problem.reason)
        return False

    def _ask(self, job: Any, limit_s: float | None) -> Any:
        """
        Has a job done.

        Returns:
            What it returned; if it did not, a failure, of the candidate at all sizes.
        """
        process = self._process
        assert process is not None
        wait_s = None if limit_s is None else min(limit_s, _LONGEST_WAIT_S)
        try:
            process.put(job, extra_env=_environment())
            if process.selector.select(wait_s):
                return process.get()
        except (EOFError, BrokenPipeError, pickle.UnpicklingError):
            return Failure(self._crash(process), everywhere=True)
        self.end()
        reason = str(TookTooLong(A_CALL, wait_s or 0.0))
        return Failure(reason, may_pass=True, everywhere=True)

    def _crash(self, process: TuningProcess) -> str:
        """What became of a process that closed its pipes."""
        try:
            status = process.process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "its process stopped answering"
        finally:
            self.end()
        if status >= 0:
            return f"it ended its process with status {status}"
        return f"it crashed with signal {-status} ({signal.strsignal(-status)})"


def _environment() -> dict[str, str]:
    """Where the other process finds what was compiled here."""
    names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    cache_dir()  # sets the first
    return {name: os.environ[name] for name in names if name in os.environ}


PROCESS = TrialProcess()
