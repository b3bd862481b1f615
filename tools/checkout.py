"""This repository as the tools see it: the base it is made for, our modules, the series."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.patches import Patch, read_series


if TYPE_CHECKING:
    from collections.abc import Mapping

LABEL = "rangetune"


@dataclass(frozen=True)
class BaseRelease:
    """What ``base.toml`` says.

    ``replaces`` maps a module of the base that ours replaces to the SHA-256 of the
    base's file, ``wheels`` the file name of a known base wheel to its SHA-256.
    """

    version: str
    tag: str
    build: int
    replaces: Mapping[str, str]
    wheels: Mapping[str, str]

    @property
    def requirement(self) -> str:
        """What pip is asked for: never torch without its version."""
        return f"torch=={self.version}"

    @property
    def local_label(self) -> str:
        """What a patched wheel adds to its local version."""
        return f"{LABEL}.{self.build}"


@dataclass(frozen=True)
class Checkout:
    """A checkout of this repository, at ``root``."""

    root: Path

    @property
    def base(self) -> BaseRelease:
        """The base, read anew from ``base.toml``."""
        fields = tomllib.loads((self.root / "base.toml").read_text())
        return BaseRelease(**fields)

    @property
    def patches_folder(self) -> Path:
        """Where the git series is."""
        return self.root / "torch_patches"

    def series(self) -> tuple[Patch, ...]:
        """The patches in the order of ``torch_patches/series``; empty without one."""
        return read_series(self.patches_folder)

    def owned_modules(self) -> dict[str, Path]:
        """Our modules: path in a tree (``torch/…/x.py``) to the file here."""
        return self._python_files("torch")

    def inductor_tests(self) -> dict[str, Path]:
        """Our tests that go upstream with the modules, likewise."""
        return self._python_files("test/inductor")

    def _python_files(self, folder: str) -> dict[str, Path]:
        found = sorted((self.root / folder).rglob("*.py"))
        return {path.relative_to(self.root).as_posix(): path for path in found}

    def inputs_digest(self, base_wheel_sha256: str) -> str:
        """A SHA-256 over all that decides what a patched wheel contains."""
        inputs = [
            self.root / "base.toml",
            *sorted(self.patches_folder.glob("*")),
            *self.owned_modules().values(),
            *self._python_files("tools").values(),
        ]
        digest = hashlib.sha256(base_wheel_sha256.encode())
        for path in inputs:
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            digest.update(
                f"{path.relative_to(self.root).as_posix()}\0{content}\0".encode()
            )
        return digest.hexdigest()


def this_checkout() -> Checkout:
    """The checkout that this module belongs to."""
    return Checkout(Path(__file__).resolve().parents[1])
