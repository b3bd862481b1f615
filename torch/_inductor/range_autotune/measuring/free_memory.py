"""How much memory is left on a device."""

from __future__ import annotations

import contextlib
import pathlib
from typing import TYPE_CHECKING

import torch


if TYPE_CHECKING:
    from collections.abc import Iterator

# Of Linux; elsewhere nothing is known of a CPU's memory.
_MEMORY_INFO = pathlib.Path("/proc/meminfo")
_GROUPS_OF_PROCESS = pathlib.Path("/proc/self/cgroup")
_GROUPS = pathlib.Path("/sys/fs/cgroup")
# Files of a control group, by the version of control groups: what it may take, what it
# takes, and in what takes part the name of files that are given up if need be.
_FILES_OF_GROUP = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


def free_bytes(device: torch.device) -> int | None:
    """
    What tensors may take without anybody else giving way; None where it cannot be known.

    A CPU's is what there is, or what the process's control groups leave, as in a container.
    """
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept  # for tensors like these
    if device.type == "cpu" and _MEMORY_INFO.exists():
        fields = dict(line.split(":") for line in _lines(_MEMORY_INFO))
        available = int(fields["MemAvailable"].split()[0]) * 1024
        return min([available, *_left_in_groups()])
    return None


def _left_in_groups() -> Iterator[int]:
    """For each group that the process is in, and that has a limit, what it does not take."""
    for line in _lines(_GROUPS_OF_PROCESS) if _GROUPS_OF_PROCESS.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version, root = (1, _GROUPS / "memory") if controllers else (2, _GROUPS)
        # In a container the root is the container's group, and the path that of its host.
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root):
                # A group without a limit has no such file, or no number in it.
                with contextlib.suppress(OSError, ValueError):
                    yield _left_in(folder, version)


def _left_in(group: pathlib.Path, version: int) -> int:
    limit, taken, reclaimable = _FILES_OF_GROUP[version]
    parts = dict(line.split() for line in _lines(group / "memory.stat"))
    kept = int((group / taken).read_text()) - int(parts.get(reclaimable, 0))
    return max(int((group / limit).read_text()) - kept, 0)


def _lines(file: pathlib.Path) -> list[str]:
    return file.read_text().splitlines()
