"""
Workloads of the runtime benchmark as single Triton kernels, written by hand.

A program keeps one row in registers. They compute in float32, as accurately as generated
code does: ``libdevice.exp`` and not ``tl.exp``, with which the first takes 6 % less.
"""

# ruff: noqa: ANN001, ANN202 (Triton reads the annotations of kernels)

from __future__ import annotations

from typing import Any, TYPE_CHECKING

import triton
import triton.language as tl
from triton.language.extra import libdevice

import torch


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

KEYS = 8


@triton.jit
def _row(x, gate, weight, columns: tl.constexpr):
    """Where the program's row starts; it, its RMSNorm, its gates, and the weights."""
    start = tl.program_id(0).to(tl.int64) * columns
    column = tl.arange(0, columns)
    row = tl.load(x + start + column).to(tl.float32)
    scale = tl.load(weight + column).to(tl.float32)
    gates = tl.load(gate + start + column).to(tl.float32)
    normed = row * libdevice.rsqrt(tl.sum(row * row) / columns + 1e-6) * scale
    return start, row, normed, gates, scale


@triton.jit
def _gated_norm(x, gate, weight, out, columns: tl.constexpr):
    start, _, normed, gates, _ = _row(x, gate, weight, columns)
    silu = gates / (1 + libdevice.exp(-gates))
    tl.store(out + start + tl.arange(0, columns), silu * normed + 1)


@triton.jit
def _two_norms(x, gate, weight, out, columns: tl.constexpr):
    start, row, normed, gates, scale = _row(x, gate, weight, columns)
    centered = normed * gates
    centered -= tl.sum(centered) / columns
    variance = tl.sum(centered * centered) / columns
    second = centered * libdevice.rsqrt(variance + 1e-5) * scale
    tl.store(out + start + tl.arange(0, columns), second + row)


@triton.jit
def _turned(qkv, cos, sin, weights, row_size, queries, half: tl.constexpr):
    """Of one head; each is normed before where there are weights, of queries and of keys."""
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, half)
    low = qkv + row * row_size + head * 2 * half + column
    a, b = tl.load(low).to(tl.float32), tl.load(low + half).to(tl.float32)
    if weights is not None:
        scale = libdevice.rsqrt((tl.sum(a * a) + tl.sum(b * b)) / (2 * half) + 1e-6)
        weight = weights + (head >= queries).to(tl.int32) * 2 * half + column
        a *= scale * tl.load(weight).to(tl.float32)
        b *= scale * tl.load(weight + half).to(tl.float32)
    c = tl.load(cos + row * half + column).to(tl.float32)
    s = tl.load(sin + row * half + column).to(tl.float32)
    tl.store(low, a * c - b * s)
    tl.store(low + half, b * c + a * s)


def _turn(warps: int) -> Callable[..., Tensor]:
    """A function of queries, keys and values side by side, of cosines and of sines."""

    def call(
        qkv: Tensor, cos: Tensor, sin: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        rows, half = cos.shape
        row_size = qkv.shape[1]
        heads = row_size // (2 * half) - KEYS  # as many values as keys
        args = qkv, cos, sin, weights, row_size, heads - KEYS, half
        _turned[rows, heads](*args, num_warps=warps)
        return qkv

    return call


def _by_warps(kernel: Any) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Functions of x, gate and weight."""

    def launcher(warps: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        def call(x: Tensor, gate: Tensor, weight: Tensor) -> Tensor:
            out = torch.empty_like(x)
            kernel[(x.shape[0],)](x, gate, weight, out, x.shape[1], num_warps=warps)
            return out

        return call

    return {f"by hand, {warps} warps": launcher(warps) for warps in (4, 8, 16)}


GATED_NORM = _by_warps(_gated_norm)
TWO_NORMS = _by_warps(_two_norms)
ROTATION = {f"by hand, {warps} warps": _turn(warps) for warps in (1, 2)}
