"""What the tools say when they refuse: where, what was expected, what came, what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True)
class Problem:
    """One reason to refuse.

    ``where`` is a file of the tree or of this repository, or a folder or wheel.
    """

    where: str
    expected: str
    found: str
    remedy: str

    def __str__(self) -> str:
        return (
            f"{self.where}: expected {self.expected}, found {self.found}; {self.remedy}"
        )


class Refused(Exception):
    """Raised before anything was changed; ``problems`` is never empty."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def refuse(where: object, *, expected: str, found: str, remedy: str) -> Refused:
    """The exception for a single problem, to be raised by the caller."""
    return Refused([Problem(str(where), expected, found, remedy)])


def raise_if_any(problems: Iterable[Problem]) -> None:
    """Raise :class:`Refused` with all ``problems``, if there are any."""
    if collected := tuple(problems):
        raise Refused(collected)
