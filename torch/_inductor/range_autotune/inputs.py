"""
Benchmark inputs that agree with each other, for one size of the dispatch dimension.

Every size and stride of every input follows from its own expression. Sizes are symbolic
where they are sympy expressions and concrete where they are ints.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, TYPE_CHECKING

import sympy
from torch._logging import warning_once
from torch.utils._python_dispatch import _disable_current_modes

import torch

from .candidates.contract import layout_of
from .errors import is_out_of_memory
from .graphs.node_kinds import is_integral
from .measuring.free_memory import free_bytes
from .ops.functional_variants import registered_op
from .sizes.size_points import concrete


if TYPE_CHECKING:
    from collections.abc import Sequence

    from .. import ir
    from .call_site import CallSite
    from .registration import InputGenFns
    from .sizes.size_conditions import Values
    from .sizes.size_points import SizePoint

log = logging.getLogger("torch._inductor.kernel.custom_op")

# Benchmark tensors may take this part of what is free; temporaries need some.
_USABLE_MEMORY = 0.7


@dataclasses.dataclass(frozen=True)
class TensorSpec:
    """
    A benchmark tensor to be made, maybe in another process; sizes are concrete.

    Args:
        places: of integers, how many numbers from 0 on they run through in turns.
    """

    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    places: int = 1

    @property
    def storage_length(self) -> int:
        """In elements."""
        if 0 in self.size:
            return 0
        return 1 + sum((s - 1) * step for s, step in zip(self.size, self.stride))

    def make(self) -> torch.Tensor:
        """Random if floating, else zero, which is valid where it is an index, or in turns."""
        if self.places > 1:
            numbers = torch.arange(self.storage_length, device=self.device)
            flat = (numbers % self.places).to(self.dtype)
        else:
            flat = _fill(self.storage_length, self.dtype, self.device)
        return flat.as_strided(self.size, self.stride)

    def make_zero(self) -> torch.Tensor:
        """For input generators."""
        return torch.empty_strided(
            self.size, self.stride, dtype=self.dtype, device=self.device
        ).zero_()


def make_inputs(
    site: CallSite,
    point: SizePoint,
    input_gen_fns: InputGenFns,
    outputs: Sequence[torch.Tensor] = (),
) -> list[Any]:
    """
    Concrete arguments for the call site's inputs: tensors, and ints for SymInts.

    Floating tensors are random, all others zero, which is valid where they are indices; but
    what tells a region where to read tables or to write are as many places as there are.

    Args:
        outputs: of the call that they are for, see ``check_memory``.

    Raises:
        MemoryError: if the call would take more than the memory at hand.
        ValueError: if an input generator fails, or returns no tensor with values.
    """
    described = describe_inputs(site, point, input_gen_fns, outputs)
    with _disable_current_modes(), torch.no_grad():
        return [x.make() if isinstance(x, TensorSpec) else x for x in described]


def describe_inputs(
    site: CallSite,
    point: SizePoint,
    input_gen_fns: InputGenFns,
    outputs: Sequence[torch.Tensor] = (),
) -> list[Any]:
    """
    What ``make_inputs`` makes inputs of, with the same exceptions.

    Returns:
        One for each input: an int, a TensorSpec, or the tensor of an input generator.
    """
    check_memory(site, point.values, outputs)
    with _disable_current_modes(), torch.no_grad():
        return [
            _describe_input(site, i, point.values, input_gen_fns)
            for i in range(len(site.inputs))
        ]


def _describe_input(
    site: CallSite, index: int, values: Values, input_gen_fns: InputGenFns
) -> Any:
    node = site.inputs[index]
    if isinstance(node, sympy.Basic):
        return concrete(node, values)
    spec = _spec(node.get_layout(), values)
    name = site.parameter_of(index)
    if name is not None and name in input_gen_fns:
        shaped = spec.make_zero()
        is_written = index in site.written.values()
        try:
            made = input_gen_fns[name](shaped)
        except Exception as e:
            if is_out_of_memory(e):
                raise
            raise ValueError(
                f"input_gen_fns['{name}'] of {registered_op(site.op)} fails for a tensor of shape "
                f"{[*shaped.shape]}: {type(e).__name__}: {e}"
            ) from e
        fitting = _generated(site, name, made, shaped, is_written)
        if fitting is not None:
            return fitting
    places = [concrete(size, values) for size in site.places.get(index, [1])]
    return dataclasses.replace(spec, places=min(places))


def _spec(layout: ir.Layout, values: Values) -> TensorSpec:
    return TensorSpec(
        tuple(concrete(s, values) for s in layout.size),
        tuple(concrete(s, values) for s in layout.stride),
        layout.dtype,
        layout.device,
    )


def _fill(length: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    if is_integral(dtype):
        return torch.zeros(length, dtype=dtype, device=device)
    if dtype.itemsize > 1:
        return torch.randn(length, dtype=dtype, device=device)
    if dtype is torch.float4_e2m1fn_x2:
        packed = torch.randint(0, 256, (length,), dtype=torch.uint8, device=device)
        return packed.view(dtype)
    return torch.randn(length, dtype=torch.float32, device=device).to(dtype)


def _generated(
    site: CallSite, name: str, made: Any, wanted: torch.Tensor, is_written: bool
) -> torch.Tensor | None:
    """
    What an input generator made, as compiled code expects it: its dtype, device, strides.

    A tensor of another shape than the argument's is not used (None), and the user is warned.

    Args:
        is_written: by candidates, so that it has to be a copy: the user may keep it.
    """
    is_tensor = isinstance(made, torch.Tensor)
    if not is_tensor or made.is_meta or made.layout is not torch.strided:
        got = f"one of {made.layout} on {made.device}" if is_tensor else type(made)
        raise ValueError(
            f"input_gen_fns['{name}'] of {registered_op(site.op)} must return a dense tensor of shape "
            f"{[*wanted.shape]}, got {got}"
        )
    if made.shape != wanted.shape:
        warning_once(
            log,
            "input_gen_fns['%s'] of %s returns a tensor of shape %s for an argument of "
            "another shape, and is not used there: return one of its argument's shape",
            name,
            registered_op(site.op),
            tuple(made.shape),
        )
        return None
    made = made.to(wanted.device, wanted.dtype)
    if made.stride() == wanted.stride() and not is_written:
        return made
    # Along a stride of 0 there is one element, however many there seem to be.
    wanted_part = wanted
    for dim in range(wanted.dim()):
        if wanted.stride(dim) == 0 and wanted.size(dim):
            made = made.narrow(dim, 0, 1)
            wanted_part = wanted_part.narrow(dim, 0, 1)
    wanted_part.copy_(made)
    return wanted


def have_memory(
    site: CallSite, point: SizePoint, outputs: Sequence[torch.Tensor]
) -> bool:
    """Whether a call takes no more than the memory at hand, see ``check_memory``."""
    try:
        check_memory(site, point.values, outputs)
    except MemoryError:
        return False
    return True


def check_memory(
    site: CallSite, values: Values, outputs: Sequence[torch.Tensor] = ()
) -> None:
    """
    Raises MemoryError if a call's inputs, a copy of each that it updates, and its outputs
    take more than the memory at hand, of which temporaries need some.

    Args:
        outputs: fake, sizes symbolic.
    """
    needed: dict[torch.device, int] = {}
    for spec in _specs_of_call(site, values, outputs):
        tensor_bytes = spec.storage_length * spec.dtype.itemsize
        needed[spec.device] = needed.get(spec.device, 0) + tensor_bytes
    for device, needed_bytes in needed.items():
        left_bytes = free_bytes(device)
        if left_bytes is not None and needed_bytes > _USABLE_MEMORY * left_bytes:
            raise MemoryError(
                f"inputs and outputs take {needed_bytes} bytes on {device}, where "
                f"{left_bytes} are free"
            )


def _specs_of_call(
    site: CallSite, values: Values, outputs: Sequence[torch.Tensor]
) -> list[TensorSpec]:
    """Of a call's inputs, a copy of each that it updates, and its outputs."""
    given = [*site.inputs, *(site.inputs[i] for i in site.updated)]
    tensors = [node for node in given if not isinstance(node, sympy.Basic)]
    layouts = [node.get_layout() for node in tensors] + [*map(layout_of, outputs)]
    return [_spec(layout, values) for layout in layouts]


def has_long_tensor(
    site: CallSite, values: Values, outputs: Sequence[torch.Tensor]
) -> bool:
    """Whether 32 bits are too few to index a tensor that a call has or returns."""
    specs = _specs_of_call(site, values, outputs)
    return any(spec.storage_length > torch.iinfo(torch.int32).max for spec in specs)
