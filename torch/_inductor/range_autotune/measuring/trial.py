"""
Whether a candidate survives one call, found out in a process of its own.

A call that never returns, or ends its process, cannot be survived where it is made. With
``torch._inductor.config.autotune_in_subproc`` candidates are therefore called there first,
at each size that they are measured at: what writes outside of its tensors may do so at one
size and not at another, and a call costs little once its module is loaded.

Not tried are candidates that call custom ops, which only this process knows, collectives,
and constants other than tensors.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
from typing import Any, TYPE_CHECKING

from torch._dynamo.device_interface import get_interface_for_device
from torch._inductor.codecache import PyCodeCache

import torch

from ... import config
from ..errors import is_out_of_memory
from ..inputs import TensorSpec
from ..times import failure_of


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..times import Failure


@dataclasses.dataclass(frozen=True)
class SentTensor:
    """A tensor whose values travel to the other process, in the CPU's memory."""

    flat: torch.Tensor
    size: tuple[int, ...]
    stride: tuple[int, ...]
    device: torch.device

    @classmethod
    def of(cls, tensor: torch.Tensor) -> SentTensor:
        """Without what its storage has around it."""
        size, stride = tuple(tensor.shape), tensor.stride()
        length = TensorSpec(size, stride, tensor.dtype, tensor.device).storage_length
        flat = tensor.detach().as_strided((length,), (1,)).cpu().clone()
        return cls(flat, size, stride, tensor.device)

    def make(self) -> torch.Tensor:
        """The tensor, on its device."""
        return self.flat.to(self.device).as_strided(self.size, self.stride)


@dataclasses.dataclass(frozen=True)
class Verdict:
    """
    How a trial ended that came to its end.

    Args:
        failure: why the candidate is out; None if it is not.
        reusable: whether the process is good for others, which it is not after an error
            that left the device unusable.
    """

    failure: Failure | None
    reusable: bool = True


@dataclasses.dataclass(frozen=True)
class Trial:
    """
    One call of a candidate, to be pickled and made in another process.

    Args:
        key, path: of the generated module.
        constants: the module's, by name.
        arguments: of its ``call``.
        settings: Inductor's, where they differ from the default.
    """

    key: str
    path: str
    constants: Mapping[str, SentTensor]
    arguments: Sequence[int | TensorSpec | SentTensor]
    settings: Mapping[str, Any]

    def load(self) -> Failure | None:
        """
        Imports what the module needs, finds its kernels; for the other process.

        Returns:
            What went wrong: not the candidate, which was loaded before.
        """
        try:
            self._module()
        except Exception as e:
            return failure_of(e)
        return None

    def _module(self) -> Any:
        with config.patch(dict(self.settings)):
            return _load(self.key, self.path)

    def __call__(self) -> Verdict:
        """Makes the call; for the other process."""
        devices = {a.device for a in self.arguments if not isinstance(a, int)}
        try:
            with config.patch(dict(self.settings)), torch.no_grad():
                self._call()
            _synchronize(devices)
        except Exception as e:
            # There was less memory than there is for those who measure.
            failure = None if is_out_of_memory(e) else failure_of(e)
        else:
            return Verdict(None)
        return Verdict(failure and failure.of("it does not run"), _are_usable(devices))

    def _call(self) -> None:
        module = self._module()
        constants = {name: constant.make() for name, constant in self.constants.items()}
        vars(module).update(constants)
        try:
            module.call([a if isinstance(a, int) else a.make() for a in self.arguments])
        finally:  # the module stays, and those who measure need the memory
            for name in constants:
                delattr(module, name)


@functools.cache
def _load(key: str, path: str) -> Any:
    return PyCodeCache.load_by_key_path(key, path, attrs={})


def _synchronize(devices: set[torch.device]) -> None:
    for device in devices:
        if device.type != "cpu":
            get_interface_for_device(device).synchronize(device)
            # The measuring process needs the memory next.
            torch.get_device_module(device).empty_cache()


def _are_usable(devices: set[torch.device]) -> bool:
    """Whether devices still work: some errors stay until the process ends."""
    try:
        for device in devices:
            torch.zeros(1, device=device)
        _synchronize(devices)
    except Exception:
        return False
    return True


def settle_in() -> None:
    """
    Leaves the terminal to the process that this one works for, and crashes to the system.

    Inductor's crash handler prints a stack trace and hides the signal.
    """
    import resource  # Unix has it

    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for crash in (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
        signal.signal(crash, signal.SIG_DFL)
