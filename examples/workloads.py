"""Three ops whose best implementation depends on a size, at sizes fit for two cores."""

from __future__ import annotations

import dataclasses
import math
import types
from typing import Any, TYPE_CHECKING

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._library.custom_ops import CustomOpDef

    from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Workload:
    """
    An op, its implementations, and a model around a call of it.

    Args:
        implementations: by name.
        register: registers the op for autotuning.
        around: the model's work on the op's result.
        inputs: makes the op's arguments for a size of the dispatch dimension.
        dispatch_dim: of the first argument.
        sizes: to run at, the first is compiled with.
    """

    title: str
    op: CustomOpDef
    implementations: dict[str, Callable[..., Tensor]]
    register: Callable[[], None]
    around: Callable[[Tensor], Tensor]
    inputs: Callable[[int], tuple[Tensor, ...]]
    dispatch_dim: int
    sizes: Sequence[int]

    def model(self, name: str, fn: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """
        The model with ``fn`` in the op's place.

        It has a code object of its own: what was compiled for one model is not looked at
        for another.
        """

        def forward(*args: Tensor) -> Tensor:
            return self.around(fn(*args))

        code = forward.__code__.replace(co_name=name)
        return types.FunctionType(
            code, forward.__globals__, name, None, forward.__closure__
        )


@torch.library.custom_op("workloads::weighted_scale", mutates_args=())
def weighted_scale(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Args: x [batch, sequence, hidden], weight [hidden]."""
    return x * weight


@weighted_scale.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def scale_by_einsum(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bsh,h->bsh", x, weight)


def scale_by_chunks(x: Tensor, weight: Tensor) -> Tensor:
    chunks = zip(x.chunk(4, dim=-1), weight.chunk(4, dim=-1))
    return torch.cat([part * scale for part, scale in chunks], dim=-1)


def scale_by_broadcast(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight.view(1, 1, -1)


def register_weighted_scale() -> None:
    register_custom_op_autotuning(
        weighted_scale,
        configs=[
            CustomOpRangeConfig(
                "x",
                1,
                ranges=[(0, 512), (512, 2048), (2048, math.inf)],
                implementations=[scale_by_einsum, scale_by_chunks, scale_by_broadcast],
            )
        ],
        name="weighted_scale",
    )


@torch.library.custom_op("workloads::rms_norm", mutates_args=())
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Args: x [rows, columns], weight [columns]."""
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, eps)


@rms_norm.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return torch.empty_like(x)


def norm_by_mean(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def norm_by_matmul(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """The sum of squares of each row as a product with a column of ones."""
    ones = torch.ones(x.shape[1], 1, dtype=x.dtype, device=x.device)
    mean_square = torch.mm(x.square(), ones) / x.shape[1]
    return x * torch.rsqrt(mean_square + eps) * weight


def norm_by_blocks(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """Partial sums of 64 columns first."""
    partial = x.square().view(x.shape[0], -1, 64).sum(-1)
    mean_square = partial.sum(-1, keepdim=True) / x.shape[1]
    return x * torch.rsqrt(mean_square + eps) * weight


def register_rms_norm() -> None:
    """The base's form: a split point belongs to the range below it."""
    register_custom_op_autotuning(
        rms_norm,
        configs=[
            CustomOpConfig(norm_by_mean),
            CustomOpConfig(norm_by_matmul),
            CustomOpConfig(norm_by_blocks),
        ],
        dispatch_on={"tensor_name": "x", "dim": 0, "range_upper_bound": 1024},
        split_points=[63],
        name="rms_norm",
    )


@torch.library.custom_op("workloads::thin_mm", mutates_args=())
def thin_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Args: a [M, K], b [K, N] with K much larger than N."""
    return torch.mm(a, b)


@thin_mm.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape[0], b.shape[1])


def mm_direct(a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b)


def mm_split_k(a: Tensor, b: Tensor, splits: int = 8) -> Tensor:
    """Products of parts of K, then their sum."""
    m, k = a.shape
    parts = a.view(m, splits, k // splits).transpose(0, 1)
    return torch.bmm(parts, b.view(splits, k // splits, b.shape[1])).sum(0)


def mm_by_dot_products(a: Tensor, b: Tensor) -> Tensor:
    return (a[:, None, :] * b.t()).sum(-1)


def register_thin_mm() -> None:
    """Range fields on each config: dot products compete on the small-M side only."""
    small, medium, large = (0, 9), (9, 129), (129, math.inf)
    entries: list[tuple[Callable[..., Tensor], dict[str, Any], tuple[Any, ...]]] = [
        (mm_by_dot_products, {}, (small,)),
        (mm_split_k, {"splits": 2}, (small, medium, large)),
        (mm_split_k, {"splits": 8}, (small, medium, large)),
        (mm_direct, {}, (small, medium, large)),
    ]
    register_custom_op_autotuning(
        thin_mm,
        configs=[
            CustomOpConfig(
                impl, tensor_name="a", dim_index=0, dim_range=sizes, **params
            )
            for impl, params, ranges in entries
            for sizes in ranges
        ],
        representative_sizes=[129, 512],
        name="thin_mm",
    )


WORKLOADS = (
    Workload(
        title="weighted scale: x [2, size, 256] * weight [256], then relu and + 1",
        op=weighted_scale,
        implementations={
            "einsum": scale_by_einsum,
            "chunks": scale_by_chunks,
            "broadcast": scale_by_broadcast,
        },
        register=register_weighted_scale,
        around=lambda y: torch.relu(y) + 1,
        inputs=lambda size: (torch.randn(2, size, 256), torch.randn(256)),
        dispatch_dim=1,
        sizes=(256, 16, 511, 512, 2047, 2048, 4096),
    ),
    Workload(
        title="RMSNorm: x [size, 1024], then silu",
        op=rms_norm,
        implementations={
            "mean": norm_by_mean,
            "matmul": norm_by_matmul,
            "blocks": norm_by_blocks,
        },
        register=register_rms_norm,
        around=torch.nn.functional.silu,
        inputs=lambda size: (torch.randn(size, 1024), torch.randn(1024)),
        dispatch_dim=0,
        sizes=(32, 2, 63, 64, 256, 1024, 2048),
    ),
    Workload(
        title="split-K GEMM: a [size, 4096] @ b [4096, 64], then relu",
        op=thin_mm,
        implementations={
            "direct": mm_direct,
            "split_k": mm_split_k,
            "dots": mm_by_dot_products,
        },
        register=register_thin_mm,
        around=torch.relu,
        inputs=lambda size: (torch.randn(size, 4096), torch.randn(4096, 64)),
        dispatch_dim=0,
        sizes=(16, 2, 8, 9, 128, 129, 512),
    ),
)
