"""
What is taken for the sizes of a graph while its code is generated, which runs at others.

Where Inductor chooses, into how many parts to split a reduction for one, it looks at the
hints of symbols, the sizes that the model is compiled with. A graph inside of the model's may
be lowered with others, and have sizes that are known where it runs.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import sympy

from ...sizevars import SizeVarAllocator
from ...virtualized import V
from .narrowed_sizes import value_at_all_of_few


if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...graph import GraphLowering
    from .size_conditions import Values


# What Triton kernels say of sizes, and what their names end with, which depends on it.
_OF_HINTS = re.compile(
    r"'?(size_hints|tiling_scores)'?\s*[=:]\s*\{[^}]*\}|_[0-9a-f]{10}(?!\w)"
)

# Where the part of a module begins that runs it on inputs of its own.
_BENCHMARK = "\ndef get_args("


class _OwnSizes(SizeVarAllocator):
    """
    Takes sizes for others than the model's own, and for what they are where they are known.

    Other guards keep looking at the model's.

    Args:
        known: whose shape environment, which stays as it is.
        hints: of symbols; others have their own.
    """

    def __init__(self, known: SizeVarAllocator, hints: Values) -> None:
        super().__init__(known.shape_env)
        self.precomputed_replacements = known.precomputed_replacements
        self.inv_precomputed_replacements = known.inv_precomputed_replacements
        self.hints = {
            self.replacements.get(symbol, symbol): sympy.Integer(value)
            for symbol, value in hints.items()
        }
        # What ``replace_backed_symbols_with_hints`` reads.
        backed = self.backed_var_to_val
        others = {s: value for s, value in self.hints.items() if s in backed}
        self.backed_var_to_val = {**backed, **others}

    def optimization_hint(
        self, expr: sympy.Expr | int, fallback: int | None = None
    ) -> int:
        """See the base; of what has precomputed sizes in it, too."""
        if self.hints and isinstance(expr, sympy.Expr):
            expr = self.remove_precomputed_replacements(expr)
            expr = expr.xreplace(self.replacements).xreplace(self.hints)
        return super().optimization_hint(expr, fallback)

    def guarding_hint_or_throw(self, expr: sympy.Expr | int) -> int:
        """See the base; no guard is needed for what a size is wherever the code runs."""
        known = value_at_all_of_few(sympy.sympify(expr), self.shape_env)
        return super().guarding_hint_or_throw(expr) if known is None else int(known)


def generate_for(graph: GraphLowering, hints: Values | None) -> None:
    """
    Has a graph inside of the model's, which is to be lowered, generate its code for some sizes.

    Args:
        hints: by symbol; without any for those that the model is compiled with.
    """
    graph.sizevars = _OwnSizes(graph.sizevars, hints or {})


def generate_as(graph: GraphLowering, parent: GraphLowering) -> None:
    """Has a graph inside of such a graph do so for the same sizes."""
    if isinstance(parent.sizevars, _OwnSizes):
        generate_for(graph, parent.sizevars.hints)


@contextlib.contextmanager
def hinted(hints: Values) -> Iterator[None]:
    """What is decided in the block is so for some sizes, by symbol."""
    graph = V.graph
    known = graph.sizevars
    graph.sizevars = _OwnSizes(known, hints)
    try:
        yield
    finally:
        graph.sizevars = known


def without_hints(source: str) -> str:
    """
    Generated code without what it says of the sizes that it was generated for: what two
    sources have in common that differ in how well their kernels' blocks fit these.
    """
    code, _, end = source.rpartition(_BENCHMARK)
    return _OF_HINTS.sub("", code or end)
