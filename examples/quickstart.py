"""
An op with three implementations, chosen by the length of a sequence.

Prints the log block of the choice, then compares with eager at sizes on both sides of
each boundary: one compilation serves them all.
"""

import logging
import math
import sys

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)


@torch.library.custom_op("quickstart::weighted_scale", mutates_args=())
def weighted_scale(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * weight


@weighted_scale.register_fake
def _(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def short_sequence_impl(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.einsum("bsh,h->bsh", x, weight)


def medium_sequence_impl(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    chunks = zip(x.chunk(4, dim=-1), weight.chunk(4, dim=-1))
    return torch.cat([part * scale for part, scale in chunks], dim=-1)


def long_sequence_impl(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * weight.view(1, 1, -1)


register_custom_op_autotuning(
    weighted_scale,
    configs=[
        CustomOpRangeConfig(
            tensor_name="x",
            dim_index=1,
            ranges=[(0, 512), (512, 2048), (2048, math.inf)],
            implementations=[
                short_sequence_impl,
                medium_sequence_impl,
                long_sequence_impl,
            ],
        )
    ],
)


def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.relu(weighted_scale(x, weight)) + 1


def main() -> None:
    logger = logging.getLogger("torch._inductor.kernel.custom_op")
    logger.setLevel(logging.INFO)
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.propagate = False

    compiled = torch.compile(model)
    weight = torch.randn(256)
    # Code from a cache would be right, but there would be nothing to show.
    with torch._inductor.config.patch(force_disable_caches=True):
        x = torch.randn(2, 128, 256)
        torch._dynamo.mark_dynamic(x, 1)
        compiled(x, weight)

    with torch._dynamo.config.patch(error_on_recompile=True):
        for size in (2, 511, 512, 2047, 2048, 5000):
            x = torch.randn(2, size, 256)
            torch.testing.assert_close(compiled(x, weight), model(x, weight))
    print("right at all sizes, compiled once")


if __name__ == "__main__":
    main()
