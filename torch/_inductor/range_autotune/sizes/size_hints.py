"""
The sizes that code is generated for: which runs at any, and is to be fast at these.

Where Inductor chooses, into how many parts to split a reduction for one, it looks at the
hints of symbols, the sizes that the model is compiled with. A graph inside of that one may
be lowered with others. Guards keep looking at the model's.
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

import sympy

from ...sizevars import SizeVarAllocator
from ...virtualized import V


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


class _OtherHints(SizeVarAllocator):
    """
    Knows of sizes what a shape environment does, but that they are about others.

    Args:
        known: whose shape environment, which stays as it is.
        hints: of symbols; others have their own.
    """

    def __init__(self, known: SizeVarAllocator, hints: Values) -> None:
        super().__init__(known.shape_env)
        self.precomputed_replacements = known.precomputed_replacements
        self.inv_precomputed_replacements = known.inv_precomputed_replacements
        # What ``replace_backed_symbols_with_hints`` reads.
        self.backed_var_to_val = {
            **self.backed_var_to_val,
            **{symbol: sympy.Integer(value) for symbol, value in hints.items()},
        }

    def optimization_hint(
        self, expr: sympy.Expr | int, fallback: int | None = None
    ) -> int:
        """See the base; of what has precomputed sizes in it, too."""
        if isinstance(expr, sympy.Expr):
            expr = self.remove_precomputed_replacements(expr)
            expr = expr.xreplace(self.replacements).xreplace(self.backed_var_to_val)
        return super().optimization_hint(expr, fallback)


def generate_for(graph: GraphLowering, hints: Values | None) -> None:
    """
    Has a graph that is to be lowered generate its code for some sizes.

    Args:
        hints: by symbol; without any for those that the model is compiled with.
    """
    if hints:
        graph.sizevars = _OtherHints(graph.sizevars, hints)


@contextlib.contextmanager
def about(hints: Values) -> Iterator[None]:
    """What is decided in the block is so for some sizes, by symbol."""
    graph = V.graph
    known = graph.sizevars
    graph.sizevars = _OtherHints(known, hints)
    try:
        yield
    finally:
        graph.sizevars = known


def without_hints(source: str) -> str:
    """
    Generated code without what it says of the sizes that it was generated for: what two
    sources have in common that differ in how well their kernels' blocks fit these.
    """
    return _OF_HINTS.sub("", source.partition(_BENCHMARK)[0])
