"""Decoders of the model benchmark, of ops that are given to them."""

from __future__ import annotations

import dataclasses
from typing import Any, TYPE_CHECKING

import torch.nn.functional as F
from runtime_workloads import (
    ADD_NORM,
    COLUMNS,
    DEVICE,
    DTYPE,
    HEAD,
    KEYS,
    ON_GPU,
    Op,
    QUERIES,
    random,
    RMS_NORM,
    ROTARY,
    STORE,
    SWIGLU,
    VOCABULARY,
)

import torch
from torch import nn


if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

LAYERS = 8 if ON_GPU else 2
HEADS = COLUMNS // HEAD
INNER = 11008 * COLUMNS // 4096
LARGEST = 8192


@dataclasses.dataclass(frozen=True)
class Decoder:
    """
    A model of ops.

    Args:
        make: of the ops' bodies, or of the ops; the same weights each time.
        inputs: for a number of tokens, the first dimension of each.
        on_base: whether the base can register the ops; not those that write to arguments.
    """

    ops: tuple[Op, ...]
    make: Callable[..., nn.Module]
    inputs: Callable[[int], tuple[Tensor, ...]]
    on_base: bool = True


class Layer(nn.Module):
    """
    Attention and a gated product, each behind a norm and added to what it read.

    Args:
        norm: of tokens and weights of its columns.
        gated: of tokens and weights of both products in one.
    """

    def __init__(
        self, norm: Callable[..., Tensor], gated: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self._norm, self._gated = norm, gated
        self.before, self.between = ones(COLUMNS), ones(COLUMNS)
        self.heads, self.mixed = (
            weights(COLUMNS, 3 * COLUMNS),
            weights(COLUMNS, COLUMNS),
        )
        self.up, self.down = weights(COLUMNS, 2 * INNER), weights(INNER, COLUMNS)

    def forward(self, x: Tensor) -> Tensor:
        heads = (self._norm(x, self.before) @ self.heads).view(len(x), 3, HEADS, -1)
        query, key, value = heads.permute(1, 2, 0, 3).unsqueeze(1)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + mixed[0].transpose(0, 1).reshape(len(x), COLUMNS) @ self.mixed
        return x + self._gated(self._norm(x, self.between), self.up) @ self.down


class ServingLayer(nn.Module):
    """
    The same as serving engines have it: ops that write to the residual, to heads that are
    turned in place, and to the layer's cache of keys and values.

    Args:
        add_norm: see ``runtime_workloads.add_norm_``, as the others.
        gated: of tokens and weights of both products in one.
    """

    def __init__(
        self,
        add_norm: Callable[..., None],
        turn: Callable[..., None],
        store: Callable[..., None],
        gated: Callable[..., Tensor],
    ) -> None:
        super().__init__()
        self._add_norm, self._turn, self._store = add_norm, turn, store
        self._gated = gated
        self._widths = [n * HEAD for n in (QUERIES, KEYS, KEYS)]
        self.before, self.between = ones(COLUMNS), ones(COLUMNS)
        self.heads = weights(COLUMNS, sum(self._widths))
        self.mixed = weights(QUERIES * HEAD, COLUMNS)
        self.up, self.down = weights(COLUMNS, 2 * INNER), weights(INNER, COLUMNS)
        cache = torch.zeros(2, LARGEST, KEYS * HEAD, device=DEVICE, dtype=DTYPE)
        self.register_buffer("cache", cache)

    def forward(
        self, x: Tensor, residual: Tensor, cos: Tensor, sin: Tensor, at: Tensor
    ) -> Tensor:
        self._add_norm(x, residual, self.before)
        query, key, value = (x @ self.heads).split(self._widths, -1)
        self._turn(query, key, cos.unsqueeze(1), sin.unsqueeze(1))
        self._store(key, value, self.cache, at)
        query, key, value = (
            part.unflatten(-1, (-1, HEAD)).transpose(0, 1).unsqueeze(0)
            for part in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        x = mixed[0].transpose(0, 1).flatten(1) @ self.mixed
        self._add_norm(x, residual, self.between)
        return self._gated(x, self.up) @ self.down


class ServingDecoder(nn.Module):
    """Of ids of tokens, their angles' cosines and sines, and their places in the caches."""

    def __init__(self, *ops: Callable[..., Any]) -> None:
        super().__init__()
        self.table = weights(VOCABULARY, COLUMNS)
        self.layers = nn.ModuleList(ServingLayer(*ops) for _ in range(LAYERS))

    def forward(self, ids: Tensor, cos: Tensor, sin: Tensor, at: Tensor) -> Tensor:
        for other in (cos, sin, at):
            torch._check(other.shape[0] == ids.shape[0])
        x = F.embedding(ids, self.table)
        residual = torch.zeros_like(x)
        for layer in self.layers:
            x = layer(x, residual, cos, sin, at)
        return x + residual


def ones(size: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(size, device=DEVICE, dtype=DTYPE))


def weights(rows: int, columns: int) -> nn.Parameter:
    values = torch.randn(rows, columns, device=DEVICE, dtype=DTYPE)
    return nn.Parameter(values * rows**-0.5)


def _plain(*ops: Callable[..., Any]) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(Layer(*ops) for _ in range(LAYERS)))


def _serving(*ops: Callable[..., Any]) -> nn.Module:
    torch.manual_seed(0)
    return ServingDecoder(*ops)


def _serving_inputs(count: int) -> tuple[Tensor, ...]:
    ids = torch.randint(VOCABULARY, (count,), device=DEVICE)
    cos, sin = (f(random(count, HEAD // 2)) for f in (torch.cos, torch.sin))
    return ids, cos, sin, torch.randperm(LARGEST, device=DEVICE)[:count].clone()


DECODERS = {
    "decoder": Decoder(
        (RMS_NORM, SWIGLU), _plain, lambda count: (random(count, COLUMNS),)
    ),
    "decoder that writes in place": Decoder(
        (ADD_NORM, ROTARY, STORE, SWIGLU), _serving, _serving_inputs, on_base=False
    ),
}
