"""A candidate with its neighbours, in the form in which Inductor's buffers have choices."""

from __future__ import annotations

import math
from typing import Any, TYPE_CHECKING

from .. import ir
from ..runtime.benchmarking import benchmarker
from .dispatch import emit_winner
from .sizes.size_points import hint_point, values_of
from .times import Timing


if TYPE_CHECKING:
    import torch

    from .tuning import Tuning


class FusedChoiceCaller(ir.ChoiceCaller):
    """
    A candidate of a call site: its implementation and the neighbours fused with it.

    Args:
        index: of the candidate in ``tuning``, which may be decided later.
        layout: of what the choice is made for.
    """

    def __init__(self, tuning: Tuning, index: int, layout: ir.OutputSpec) -> None:
        self.traced = tuning.standing.traced[index]
        name = f"{tuning.name}_{self.traced.name}"
        super().__init__(name, list(tuning.site.inputs), layout, "")  # type: ignore[arg-type]  # SymInts among them
        self._tuning = tuning
        self._index = index
        self.gm = self.traced.graph

    def precompile(self) -> None:
        """Compiles it for benchmarks; raises what compiling raised."""
        self._tuning.source.standing.modules[self._index].load()

    def benchmark(self, *args: Any, out: torch.Tensor) -> float:
        """
        The time of one call in ms, at the sizes that the model is compiled with.

        Args:
            args: concrete tensors and ints, one for each input.
            out: not written; the compiled graph allocates its outputs.
        """
        source = self._tuning.source
        module = source.standing.modules[self._index]
        symbols = values_of(module.symbols, hint_point(source.site).values)
        call = module.load().call
        return benchmarker.benchmark(
            lambda: call([*symbols, *args]), device=source.device
        )

    def time_ms(self) -> float:
        """Measured at the size nearest to what the model is compiled with; inf if not."""
        source = self._tuning.source
        hint = hint_point(source.site, source.size).size or 0
        times = [
            (abs((size or 0) - hint), at[self._index])
            for row in source.measured
            for size, at in row.at.items()
            if self._index in at
        ]
        _, nearest = min(times, key=lambda t: t[0], default=(0, None))
        return nearest.ms if isinstance(nearest, Timing) else math.inf

    def hash_key(self) -> str:
        """The same for candidates that compile to the same code."""
        traced = self.traced
        text = traced.code_text() or f"object {id(traced)}"
        return f"{text}\n{traced.known}\n{traced.made_for}\n{traced.kernel_configs}"

    def output_node(self) -> ir.TensorBox:
        """The candidate lowered in place; of several outputs the first."""
        return emit_winner(self.traced, self._tuning.site, self._tuning.outputs)[0]

    def info_dict(self) -> dict[str, Any]:
        """For the autotune log."""
        return {"backend": "custom_op", "kernel_name": self.name}
