"""Workloads of the runtime benchmark: ops with real implementations, between neighbours."""

from __future__ import annotations

import dataclasses
from typing import Any, TYPE_CHECKING

import torch.nn.functional as F
from beside import norm_by_blocks, norm_by_mean, rms_norm

import torch


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

ON_GPU = torch.cuda.is_available()
if ON_GPU:
    from runtime_by_hand import GATED_NORM, ROTATION, TWO_NORMS
else:
    GATED_NORM = TWO_NORMS = ROTATION = {}
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.bfloat16 if ON_GPU else torch.float32
QUANTIZED = torch.float8_e4m3fn
# The CPU gets smaller work in all but the first, so that the whole run takes half an hour.
SCALE = 1 if ON_GPU else 8
COLUMNS = 4096 // SCALE
INNER = 7168 // SCALE
HIDDEN = 1024 // SCALE
RANK = 128 // SCALE
VOCABULARY = 32768 // SCALE
BLOCK = 64
HEAD = 128
TILE = 128
QUERIES = 32 // SCALE
KEYS = 8 // SCALE


@dataclasses.dataclass(frozen=True)
class Op:
    """
    Args:
        fn: the op's body; the rest take the same arguments.
        split_points: of the dispatch on the first dimension of the first argument.
        largest: the typical size in the last range.
        written: the arguments that it writes to.
        multiples: by implementation that only takes sizes that are multiples: of what.
    """

    fn: Callable[..., Any]
    fake: Callable[..., Any]
    implementations: Mapping[str, Callable[..., Any]]
    split_points: list[int]
    largest: int
    written: tuple[str, ...] = ()
    multiples: Mapping[str, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Workload:
    """
    Ops and their neighbours.

    Args:
        inputs: for a size; all that have the size as first of two dimensions are dynamic.
        around: calls what is in the ops' place, and the neighbours.
        max_autotune: whether plain code competes with Inductor's own tuning, too.
        by_hand: kernels that compute the same, by name.
        on_base: whether the base can compile it; it cannot dispatch on a view's size, nor
            register an op that writes to its arguments, nor take an implementation for
            multiples only.
    """

    name: str
    ops: tuple[Op, ...]
    sizes: tuple[int, ...]
    inputs: Callable[[int], tuple[Tensor, ...]]
    around: Callable[..., Any]
    max_autotune: bool = False
    on_base: bool = True
    by_hand: dict[str, Callable[..., Tensor]] = dataclasses.field(default_factory=dict)


def random(*shape: int, dtype: torch.dtype = DTYPE) -> Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=dtype)


def like_first(x: Tensor, *_: Tensor) -> Tensor:
    return torch.empty_like(x)


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a @ b


def mm_direct(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def split_k(splits: int) -> Callable[[Tensor, Tensor], Tensor]:
    def mm_split_k(a: Tensor, b: Tensor) -> Tensor:
        m, k = a.shape
        parts = a.view(m, splits, k // splits).transpose(0, 1)
        others = b.view(splits, k // splits, -1)
        if ON_GPU:
            products = torch.bmm(parts, others, out_dtype=torch.float32)
        else:
            products = torch.bmm(parts, others)
        return products.sum(0).to(a.dtype)

    mm_split_k.__name__ = f"mm_split_k_{splits}"
    return mm_split_k


def softmax(x: torch.Tensor) -> torch.Tensor:
    return F.softmax(x, -1)


def softmax_direct(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def softmax_by_blocks(x: Tensor) -> Tensor:
    blocks = x.float().view(x.shape[0], -1, BLOCK)
    largest = blocks.amax(-1).amax(-1, keepdim=True)
    shifted = (blocks - largest.unsqueeze(-1)).exp()
    total = shifted.sum(-1).sum(-1, keepdim=True)
    return (shifted / total.unsqueeze(-1)).view_as(x).to(x.dtype)


def layer_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight)


def layer_norm_direct(x: Tensor, weight: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight)


def layer_norm_by_moments(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    mean = wide.mean(-1, keepdim=True)
    variance = wide.square().mean(-1, keepdim=True) - mean.square()
    scaled = (wide - mean) * torch.rsqrt(variance + 1e-5)
    return (scaled * weight.float()).to(x.dtype)


def swiglu(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    gate, value = (x @ weight).chunk(2, -1)
    return F.silu(gate) * value


def swiglu_one_product(x: Tensor, weight: Tensor) -> Tensor:
    gate, value = (x @ weight).chunk(2, -1)
    return F.silu(gate) * value


def swiglu_two_products(x: Tensor, weight: Tensor) -> Tensor:
    half = weight.shape[1] // 2
    return F.silu(x @ weight[:, :half]) * (x @ weight[:, half:])


def scan(x: torch.Tensor) -> torch.Tensor:
    return x.cumsum(-1)


def scan_direct(x: Tensor) -> Tensor:
    return x.cumsum(-1)


def scan_by_chunks(x: Tensor) -> Tensor:
    chunks = x.view(x.shape[0], -1, BLOCK)
    inside = chunks.cumsum(-1)
    before = inside[..., -1].cumsum(-1) - inside[..., -1]
    return (inside + before.unsqueeze(-1)).view_as(x)


def scan_by_products(x: Tensor) -> Tensor:
    chunks = x.view(x.shape[0], -1, BLOCK)
    ones = torch.ones(BLOCK, BLOCK, dtype=x.dtype, device=x.device).triu()
    inside = chunks @ ones
    before = inside[..., -1].cumsum(-1) - inside[..., -1]
    return (inside + before.unsqueeze(-1)).view_as(x)


def add_norm_(x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor) -> None:
    residual.add_(x)
    x.copy_(rms_norm(residual, weight))


def add_norm_by_mean(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    residual.add_(x)
    x.copy_(norm_by_mean(residual, weight))


def add_norm_by_blocks(x: Tensor, residual: Tensor, weight: Tensor) -> None:
    total = residual + x
    x.copy_(norm_by_blocks(total, weight))
    residual.copy_(total)


def gated_norm_in_place(
    norm: Callable[..., None], x: Tensor, residual: Tensor, gate: Tensor, weight: Tensor
) -> Tensor:
    """As serving engines have it: the sum goes to the residual, its norm to the input."""
    torch._check(residual.shape[0] == x.shape[0])
    torch._check(gate.shape[0] == x.shape[0])
    norm(x, residual, weight)
    return F.silu(gate) * x


def norm_between_sums(
    norm: Callable[..., Tensor], x: Tensor, a: Tensor, b: Tensor, c: Tensor, w: Tensor
) -> Tensor:
    """As in a decoder: the sum that is normed is added to later."""
    total = x + a @ b
    return F.silu(total + norm(total, w) @ c @ b)


def quantized_norm(
    norm: Callable[..., Tensor], x: Tensor, residual: Tensor, weight: Tensor
) -> tuple[Tensor, Tensor]:
    """As in front of a product of 8-bit numbers, with a scale for each row."""
    y = norm(x + residual, weight).float()
    scale = y.abs().amax(-1, keepdim=True) / torch.finfo(QUANTIZED).max
    return (y / scale).to(QUANTIZED), scale


def rotated_norm_of_heads(
    norm: Callable[..., Tensor], x: Tensor, cos: Tensor, sin: Tensor, weight: Tensor
) -> Tensor:
    """As in front of attention: each head normed, then turned by its row's angles."""
    y = norm(x.view(-1, HEAD), weight).view(len(x), -1, HEAD)
    halves = y.chunk(2, dim=-1)
    turned = torch.cat([-halves[1], halves[0]], dim=-1)
    return y * cos.unsqueeze(1) + turned * sin.unsqueeze(1)


def norm_into_cache(
    norm: Callable[..., Tensor], x: Tensor, weight: Tensor, cache: Tensor, at: Tensor
) -> None:
    """As the keys of new tokens."""
    torch._check(at.shape[0] == x.shape[0])  # else plain code has a kernel for each
    cache[at.squeeze(1)] = norm(x, weight) * 0.5


def norm_into_parts_of_cache(
    norm: Callable[..., Tensor], x: Tensor, weight: Tensor, cache: Tensor, at: Tensor
) -> None:
    """As keys and values, which one tensor holds."""
    torch._check(at.shape[0] == x.shape[0])
    y = norm(x, weight)
    cache[0][at.squeeze(1)] = y
    cache[1][at.squeeze(1)] = F.silu(y)


def norm_heads(x: torch.Tensor, weight: torch.Tensor) -> None:
    heads = x.view(x.shape[0], -1, HEAD)
    heads.copy_(rms_norm(heads, weight))


def norm_heads_by_mean(x: Tensor, weight: Tensor) -> None:
    heads = x.view(x.shape[0], -1, HEAD)
    heads.copy_(norm_by_mean(heads, weight))


def queries_and_keys(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows with values behind them, as many as there are angles."""
    for other in (cos, sin):  # else plain code has a kernel for each
        torch._check(other.shape[0] == qkv.shape[0])
    q, k, _ = qkv.split([QUERIES * HEAD, KEYS * HEAD, KEYS * HEAD], -1)
    return q, k


def norms_turned(
    norm: Callable[..., None],
    turn: Callable[..., None],
    qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    weights: Tensor,
) -> Tensor:
    """As in front of attention that norms queries and keys."""
    q, k = queries_and_keys(qkv, cos, sin)
    norm(q, weights[0])
    norm(k, weights[1])
    turn(q, k, cos.unsqueeze(1), sin.unsqueeze(1))
    return qkv


def store(
    keys: torch.Tensor, values: torch.Tensor, cache: torch.Tensor, at: torch.Tensor
) -> None:
    cache[0][at] = keys
    cache[1][at] = values


def store_both(keys: Tensor, values: Tensor, cache: Tensor, at: Tensor) -> None:
    cache[:, at] = torch.stack([keys, values])


def scaled_into_cache(
    store: Callable[..., None],
    keys: Tensor,
    values: Tensor,
    scale: Tensor,
    cache: Tensor,
    at: Tensor,
) -> None:
    """As the keys and values of new tokens."""
    for other in (values, at):  # else plain code has a kernel for each
        torch._check(other.shape[0] == keys.shape[0])
    store(keys * scale, values + 1, cache, at.squeeze(1))


def turn(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> None:
    for heads in (x.view(x.shape[0], -1, HEAD) for x in (q, k)):
        a, b = heads.chunk(2, -1)
        heads.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], -1))


def turn_at_once(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    heads = torch.cat([x.view(x.shape[0], -1, HEAD) for x in (q, k)], 1)
    a, b = heads.chunk(2, -1)
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    queries = q.shape[1] // HEAD
    q.copy_(turned[:, :queries].flatten(1))
    k.copy_(turned[:, queries:].flatten(1))


def same_rows(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> None:
    for other in (cos, sin):
        torch._check(other.shape[0] == q.shape[0])


def queries_and_keys_turned(
    turn: Callable[..., None], qkv: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """As behind the product that makes queries, keys and values, side by side."""
    q, k = queries_and_keys(qkv, cos, sin)
    turn(q, k, cos.unsqueeze(1), sin.unsqueeze(1))
    return qkv


def quantize_tiles(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """A scale for each tile; the last rows' may be cut off."""
    rows = -(-x.shape[0] // TILE) * TILE
    padded = F.pad(x, (0, 0, 0, rows - x.shape[0]))
    quantized, scales = quantize_whole_tiles(padded)
    return quantized[: x.shape[0]], scales


def quantize_whole_tiles(x: Tensor) -> tuple[Tensor, Tensor]:
    tiles = x.float().view(x.shape[0] // TILE, TILE, -1, TILE)
    scales = tile_scales(tiles.abs().amax((1, 3)))
    quantized = tiles / scales[:, None, :, None]
    return quantized.view(x.shape).to(QUANTIZED), scales


def quantize_by_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    """Nothing is padded but the largest values of rows."""
    parts = x.float().unflatten(1, (-1, TILE))
    largest = parts.abs().amax(-1)
    number = (x.shape[0] + TILE - 1) // TILE
    padded = F.pad(largest, (0, 0, 0, number * TILE - x.shape[0]))
    scales = tile_scales(padded.view(number, TILE, -1).amax(1))
    own = scales[torch.arange(x.shape[0], device=x.device) // TILE]
    return (parts / own.unsqueeze(-1)).flatten(1).to(QUANTIZED), scales


def tile_scales(largest: Tensor) -> Tensor:
    return largest.clamp(min=1e-4) / torch.finfo(QUANTIZED).max


def norm_of_embedding(
    norm: Callable[..., Tensor], ids: Tensor, table: Tensor, weight: Tensor
) -> Tensor:
    """As in front of a decoder's first layer."""
    embedded = F.embedding(ids.squeeze(1), table)
    return F.silu(norm(embedded, weight)) + embedded


RMS_NORM = Op(
    rms_norm,
    like_first,
    {"mean": norm_by_mean, "blocks": norm_by_blocks},
    [512],
    32768,
)
ADD_NORM = Op(
    add_norm_,
    lambda *_: None,
    {"mean": add_norm_by_mean, "blocks": add_norm_by_blocks},
    [512],
    32768,
    written=("x", "residual"),
)
STORE = Op(
    store,
    lambda *_: None,
    {"one by one": store, "both": store_both},
    [512],
    8192,
    written=("cache",),
)
ROTARY = Op(
    turn,
    same_rows,
    {"one by one": turn, "at once": turn_at_once},
    [512],
    8192,
    written=("q", "k"),
)
HEAD_NORM = Op(
    norm_heads,
    lambda *_: None,
    {"direct": norm_heads, "mean": norm_heads_by_mean},
    [512],
    8192,
    written=("x",),
)
QUANTIZATION = Op(
    quantize_tiles,
    lambda x: (
        torch.empty_like(x, dtype=QUANTIZED),
        x.new_empty(-(-x.shape[0] // TILE), x.shape[1] // TILE, dtype=torch.float32),
    ),
    {
        "whole tiles": quantize_whole_tiles,
        "padded": quantize_tiles,
        "by rows": quantize_by_rows,
    },
    [512],
    8192,
    multiples={"whole tiles": TILE},
)
LAYER_NORM = Op(
    layer_norm,
    like_first,
    {"direct": layer_norm_direct, "moments": layer_norm_by_moments},
    [512],
    8192,
)
GEMM = Op(
    mm,
    lambda a, b: a.new_empty(a.shape[0], b.shape[1]),
    {"direct": mm_direct} | {f"split {n}": split_k(n) for n in (4, 8, 16, 32)},
    [16, 128, 1024, 4096],
    8192,
)
SOFTMAX = Op(
    softmax,
    like_first,
    {"direct": softmax_direct, "blocks": softmax_by_blocks},
    [512],
    8192,
)
SWIGLU = Op(
    swiglu,
    lambda x, weight: x.new_empty(x.shape[0], weight.shape[1] // 2),
    {"one product": swiglu_one_product, "two products": swiglu_two_products},
    [64, 1024],
    4096,
)
SCAN = Op(
    scan,
    like_first,
    {
        "direct": scan_direct,
        "chunks": scan_by_chunks,
        "products": scan_by_products,
    },
    [64, 1024],
    4096,
)
ROWS = (32, 128, 300, 512, 2048, 5000, 8192)

WORKLOADS = (
    Workload(
        name="RMSNorm (4096 columns, bfloat16), then silu(gate) * y + 1",
        ops=(RMS_NORM,),
        sizes=(*ROWS, 32768),
        inputs=lambda n: tuple(
            random(*shape, dtype=torch.bfloat16)
            for shape in ((n, 4096), (n, 4096), (4096,))
        ),
        around=lambda fn, x, gate, weight: F.silu(gate) * fn(x, weight) + 1,
        by_hand=GATED_NORM,
    ),
    Workload(
        name=f"RMSNorm ({COLUMNS} columns) of a sum t = x + a @ b, then silu(t + y @ c @ b)",
        ops=(RMS_NORM,),
        sizes=ROWS,
        inputs=lambda n: (
            random(n, COLUMNS),
            random(n, RANK),
            random(RANK, COLUMNS),
            random(COLUMNS, RANK),
            random(COLUMNS),
        ),
        around=norm_between_sums,
    ),
    Workload(
        name=f"RMSNorm ({COLUMNS} columns) of x + residual, then rows quantized",
        ops=(RMS_NORM,),
        sizes=ROWS,
        inputs=lambda n: (random(n, COLUMNS), random(n, COLUMNS), random(COLUMNS)),
        around=quantized_norm,
    ),
    Workload(
        name=f"RMSNorm ({COLUMNS} columns), then rows written to a cache",
        ops=(RMS_NORM,),
        sizes=ROWS,
        inputs=lambda n: (
            random(n, COLUMNS),
            random(COLUMNS),
            random(2 * ROWS[-1], COLUMNS),
            torch.randperm(n, device=DEVICE).unsqueeze(1),
        ),
        around=norm_into_cache,
    ),
    Workload(
        name=f"RMSNorm ({COLUMNS} columns), then rows written to two parts of a cache",
        ops=(RMS_NORM,),
        sizes=ROWS,
        inputs=lambda n: (
            random(n, COLUMNS),
            random(COLUMNS),
            random(2, 2 * ROWS[-1], COLUMNS),
            torch.randperm(n, device=DEVICE).unsqueeze(1),
        ),
        around=norm_into_parts_of_cache,
    ),
    Workload(
        name=f"x and residual become RMSNorm(x + residual) and that sum, in place, then "
        f"silu(gate) * x ({COLUMNS} columns)",
        ops=(ADD_NORM,),
        sizes=ROWS,
        inputs=lambda n: (
            random(n, COLUMNS),
            random(n, COLUMNS),
            random(n, COLUMNS),
            random(COLUMNS),
        ),
        around=gated_norm_in_place,
        on_base=False,
    ),
    Workload(
        name=f"keys * scale and values + 1 ({HIDDEN} columns) go into one cache, in place",
        ops=(STORE,),
        sizes=ROWS,
        inputs=lambda n: (
            random(n, HIDDEN),
            random(n, HIDDEN),
            random(HIDDEN),
            random(2, 2 * ROWS[-1], HIDDEN),
            torch.randperm(n, device=DEVICE).unsqueeze(1),
        ),
        around=scaled_into_cache,
        on_base=False,
    ),
    Workload(
        name=f"rotary embedding of {QUERIES} queries and {KEYS} keys, in place",
        ops=(ROTARY,),
        sizes=ROWS,
        inputs=lambda n: (
            random(n, (QUERIES + 2 * KEYS) * HEAD),
            *(f(random(n, HEAD // 2)) for f in (torch.cos, torch.sin)),
        ),
        around=queries_and_keys_turned,
        on_base=False,
        by_hand=ROTATION,
    ),
    Workload(
        name=f"RMSNorm of each of {QUERIES} queries and {KEYS} keys, then their rotary "
        "embedding, in place",
        ops=(HEAD_NORM, ROTARY),
        sizes=ROWS,
        inputs=lambda n: (
            random(n, (QUERIES + 2 * KEYS) * HEAD),
            *(f(random(n, HEAD // 2)) for f in (torch.cos, torch.sin)),
            random(2, HEAD),
        ),
        around=norms_turned,
        on_base=False,
        by_hand=ROTATION,
    ),
    Workload(
        name=f"silu(gate) * x ({COLUMNS} columns), then quantized by {TILE} x {TILE}",
        ops=(QUANTIZATION,),
        sizes=ROWS,
        inputs=lambda n: (random(n, COLUMNS), random(n, COLUMNS)),
        around=lambda quantize, x, gate: quantize(F.silu(gate) * x),
        on_base=False,
    ),
    Workload(
        name=f"RMSNorm ({COLUMNS} columns) of an embedding e, then silu(y) + e",
        ops=(RMS_NORM,),
        sizes=ROWS,
        inputs=lambda n: (
            torch.randint(VOCABULARY, (n, 1), device=DEVICE),
            random(VOCABULARY, COLUMNS),
            random(COLUMNS),
        ),
        around=norm_of_embedding,
    ),
    Workload(
        name=f"split-K GEMM ([M, {INNER}] @ [{INNER}, 256]), then relu(y + bias) * 2",
        ops=(GEMM,),
        sizes=(4, 16, 17, 40, 64, 128, 129, 200, 512, 1024, 2048, 4096, 8192),
        inputs=lambda n: (random(n, INNER), random(INNER, 256), random(256)),
        around=lambda fn, a, b, bias: torch.relu(fn(a, b) + bias) * 2,
        max_autotune=ON_GPU,
    ),
    Workload(
        name=f"softmax ({COLUMNS} columns) of x * 0.125, then y * gate",
        ops=(SOFTMAX,),
        sizes=ROWS,
        inputs=lambda n: (random(n, COLUMNS), random(n, COLUMNS)),
        around=lambda fn, x, gate: fn(x * 0.125) * gate,
    ),
    Workload(
        name=f"LayerNorm ({COLUMNS} columns), then gelu(y) + x",
        ops=(LAYER_NORM,),
        sizes=ROWS,
        inputs=lambda n: (random(n, COLUMNS), random(COLUMNS)),
        around=lambda fn, x, weight: F.gelu(fn(x, weight)) + x,
    ),
    Workload(
        name=f"SwiGLU ([M, {HIDDEN}] @ [{HIDDEN}, {2 * HIDDEN}]), then y * 2 + x",
        ops=(SWIGLU,),
        sizes=(4, 40, 64, 200, 1024, 2500, 4096),
        inputs=lambda n: (random(n, HIDDEN), random(HIDDEN, 2 * HIDDEN)),
        around=lambda fn, x, weight: fn(x, weight) * 2 + x,
    ),
    Workload(
        name=f"chunked scan ({COLUMNS} columns), then y * gate",
        ops=(SCAN,),
        sizes=(4, 40, 64, 200, 1024, 2500, 4096),
        inputs=lambda n: (random(n, COLUMNS).float(), random(n, COLUMNS)),
        around=lambda fn, x, gate: fn(x) * gate,
    ),
    Workload(
        name=f"LayerNorm(RMSNorm(x) * gate) + x ({COLUMNS} columns)",
        ops=(RMS_NORM, LAYER_NORM),
        sizes=ROWS,
        inputs=lambda n: (random(n, COLUMNS), random(n, COLUMNS), random(COLUMNS)),
        around=lambda first, second, x, gate, weight: (
            second(first(x, weight) * gate, weight) + x
        ),
        by_hand=TWO_NORMS,
    ),
    Workload(
        name=f"RMSNorm of heads ({COLUMNS // HEAD} of {HEAD}), then rotary embedding",
        ops=(RMS_NORM,),
        sizes=ROWS,
        inputs=lambda n: (
            random(n, COLUMNS),
            random(n, HEAD),
            random(n, HEAD),
            random(HEAD),
        ),
        around=rotated_norm_of_heads,
        on_base=False,
    ),
)
