"""
Measured times that survive the process, in Inductor's local cache directory.

An entry holds what was found out about all candidates in one measurement: at one call site,
at concrete sizes. It is used together too, since times of different runs cannot be
compared. ``torch._inductor.config.autotune_local_cache`` switches it off, and
``force_disable_caches`` every cache.

Whatever is wrong with an entry, it counts as not there; whatever keeps one from being
written, tuning goes on without.
"""

from __future__ import annotations

import json
import logging
import math
import pathlib
from itertools import chain
from types import NoneType
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters

from ... import config
from ...runtime.cache_dir_utils import cache_dir
from ..contents.content import Unhashable
from ..kernel_configs.kernel_config_ranges import ConfigRecord
from ..times import Failure, Findings, Timing
from .timing_keys import cache_key, Environment, FORMAT


if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..kernel_configs.kernel_config_ranges import ConfigTimes
    from ..measuring.numerics import Comparison

log = logging.getLogger("torch._inductor.kernel.custom_op")

_FOLDER = "custom_op_timings"
# What reading a file may raise that is not one, or not one of ours.
_UNREADABLE = (
    OSError,
    ValueError,
    TypeError,
    KeyError,
    AttributeError,
    OverflowError,
    RecursionError,
)


def lookup(measurement: str, candidates: Mapping[int, str]) -> Findings | None:
    """
    What was found out about candidates that were measured together.

    Args:
        measurement: as ``measurement_text`` gives it.
        candidates: their texts, as ``candidate_text`` gives them, by index.

    Returns:
        None if one is missing.
    """
    path = _path(measurement)
    if path is None:
        return None
    findings = _read(path, candidates)
    counters["inductor"][f"custom_op_timing_cache_{'hit' if findings else 'miss'}"] += 1
    return findings


def store(measurement: str, candidates: Mapping[int, str], findings: Findings) -> None:
    """
    Keeps what was found out together, in place of what an earlier run did.

    Failures that may pass are left out, so that these candidates are measured again.
    """
    _write(_path(measurement), _to_json(findings, candidates))


def lookup_record(measurement: str, candidate: str) -> ConfigRecord | None:
    """
    What was found out about the configs of a candidate's kernels; None if nothing was.

    Args:
        measurement: as ``measurement_text`` gives it, for the sizes that the model is compiled with.
        candidate: as ``candidate_text`` gives it.
    """
    path = _path(_of_configs(measurement, candidate))
    if path is None:
        return None
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            return None
        usual = {str(kernel): str(name) for kernel, name in content["usual"].items()}
        in_doubt = [kernel for kernel in content["in_doubt"] if kernel in usual]
        at = {int(size): _times_from_json(times) for size, times in content["at"]}
        return ConfigRecord(usual, in_doubt, at)
    except _UNREADABLE:
        return None


def store_record(measurement: str, candidate: str, record: ConfigRecord) -> None:
    """Keeps what ``lookup_record`` finds, but for sizes with failures that may pass."""
    at = [
        (
            size,
            {
                kernel: {name: _time_to_json(time) for name, time in configs.items()}
                for kernel, configs in times.items()
            },
        )
        for size, times in record.at.items()
        if not any(
            map(_may_pass, chain.from_iterable(c.values() for c in times.values()))
        )
    ]
    path = _path(_of_configs(measurement, candidate))
    content = {"usual": {**record.usual}, "in_doubt": [*record.in_doubt], "at": at}
    _write(path, content)


def _of_configs(measurement: str, candidate: str) -> str:
    return f"{measurement}\nconfigs of {candidate}"


def _times_from_json(saved: Mapping[str, Any]) -> ConfigTimes:
    return {
        kernel: {
            str(name): time
            for name, known in configs.items()
            if (time := _time_from_json(known)) is not None
        }
        for kernel, configs in saved.items()
    }


def _write(path: pathlib.Path | None, content: Mapping[str, Any]) -> None:
    if path is None:
        return
    from ...codecache import write_atomic

    text = json.dumps({"format": FORMAT, **content}, indent=1)
    try:
        write_atomic(str(path), text, make_dirs=True)
    except OSError as e:
        log.info("Measured times cannot be cached: %s", e)


def _path(measurement: str) -> pathlib.Path | None:
    """None where the cache is off."""
    if config.force_disable_caches or not config.autotune_local_cache:
        return None
    try:
        key = cache_key(measurement, Environment.current())
    except Unhashable as e:
        log.debug("No times are cached: %s", e)
        return None
    return pathlib.Path(cache_dir()) / _FOLDER / key[:2] / f"{key}.json"


def _to_json(findings: Findings, candidates: Mapping[int, str]) -> dict[str, Any]:
    known = {
        text: {
            **({"out": True} if index in findings.out else {}),
            **_time_to_json(findings.times.get(index)),
            **_comparison_to_json(findings, index),
        }
        for index, text in candidates.items()
        if _lasts(findings, index)
    }
    return {"not_measured": findings.not_measured, "candidates": known}


def _lasts(findings: Findings, index: int) -> bool:
    """Whether what was found out holds in another process, too."""
    time = findings.times.get(index)
    if time is None:
        return findings.not_measured is not None or index in findings.out
    return not (_may_pass(time) or _may_pass(findings.comparisons.get(index)))


def _may_pass(result: Timing | Failure | Comparison) -> bool:
    return isinstance(result, Failure) and result.may_pass


def _time_to_json(time: Timing | Failure | None) -> dict[str, Any]:
    if isinstance(time, Timing):
        return {"ms": time.ms, "error": time.error}
    return {} if time is None else {"failure": time.reason, "all": time.everywhere}


def _comparison_to_json(findings: Findings, index: int) -> dict[str, Any]:
    if index not in findings.comparisons:
        return {}
    result = findings.comparisons[index]
    if isinstance(result, Failure):
        return {"not_compared": result.reason}
    return {"mismatch": result}


def _read(path: pathlib.Path, candidates: Mapping[int, str]) -> Findings | None:
    """What a file holds of candidates; None unless it is there and has all of them."""
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            return None
        saved = {i: content["candidates"][text] for i, text in candidates.items()}
        times = {i: _time_from_json(known) for i, known in saved.items()}
        return Findings(
            {i: time for i, time in times.items() if time is not None},
            {i: c for i, known in saved.items() for c in _comparisons_from_json(known)},
            _text_or_none(content["not_measured"]),
            frozenset(i for i, known in saved.items() if "out" in known),
        )
    except _UNREADABLE:
        return None


def _time_from_json(saved: Mapping[str, Any]) -> Timing | Failure | None:
    if "failure" in saved:
        return Failure(str(saved["failure"]), everywhere=bool(saved["all"]))
    if "ms" not in saved:
        return None
    timing = Timing(float(saved["ms"]), float(saved["error"]))
    if not (math.isfinite(timing.ms) and timing.ms >= 0 and timing.error >= 0):
        raise ValueError(f"{timing} is no time")
    return timing


def _comparisons_from_json(saved: Mapping[str, Any]) -> list[Comparison]:
    """None or one."""
    if "not_compared" in saved:
        return [Failure(str(saved["not_compared"]))]
    return [_text_or_none(saved["mismatch"])] if "mismatch" in saved else []


def _text_or_none(saved: Any) -> str | None:
    if not isinstance(saved, str | NoneType):
        raise TypeError(f"{saved} is no text")
    return saved
