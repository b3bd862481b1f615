"""The three kinds of tree that can be patched, and what a tree says about itself."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import subprocess
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, TYPE_CHECKING

from tools.checkout import LABEL
from tools.problems import Problem, refuse


if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.checkout import BaseRelease

MANIFEST = f"{LABEL}.json"

_PUBLIC_VERSION = re.compile(r"\d+(?:\.\d+)*")
_SITE_PACKAGES = (
    "lib/python*/site-packages",
    "lib64/python*/site-packages",
    "Lib/site-packages",
)
_WHERE_IS_PLATLIB = "import sysconfig; print(sysconfig.get_path('platlib'))"


class Kind(Enum):
    """What kind of tree it is."""

    SOURCE = "PyTorch source checkout"
    WHEEL = "unpacked wheel"
    INSTALLED = "installed torch"


@dataclass(frozen=True)
class Tree:
    """A folder that contains ``torch/``.

    ``versions`` maps each file that states the version to what it states;
    ``dist_info`` is None for a source checkout.
    """

    root: Path
    kind: Kind
    versions: dict[str, str]
    dist_info: Path | None

    @property
    def version(self) -> str:
        """The version, as ``torch.__version__`` has it."""
        return next(iter(self.versions.values()))

    @property
    def is_from_patched_wheel(self) -> bool:
        """Whether any of the versions has this patch set's label."""
        return any(LABEL in version for version in self.versions.values())

    @property
    def manifest(self) -> dict[str, Any]:
        """What a patched wheel says it contains; empty for any other tree."""
        file = self.dist_info / MANIFEST if self.dist_info else None
        return json.loads(file.read_text()) if file and file.exists() else {}

    @property
    def record(self) -> Path | None:
        """The list of installed files; None for a source checkout."""
        return self.dist_info / "RECORD" if self.dist_info else None

    def record_sha256(self) -> str:
        """Changes when torch is installed anew; empty without a RECORD."""
        if self.record and self.record.exists():
            return hashlib.sha256(self.record.read_bytes()).hexdigest()
        return ""

    def recorded_files(self) -> dict[str, str]:
        """Path to SHA-256 for what RECORD lists; empty without a RECORD."""
        if not (self.record and self.record.exists()):
            return {}
        with self.record.open(newline="", encoding="utf-8") as lines:
            return {
                path: _hex(digest) for path, digest, _ in csv.reader(lines) if digest
            }

    def version_problems(self, base: BaseRelease) -> Iterator[Problem]:
        """A problem for each file that states another version than the base's."""
        for file, version in self.versions.items():
            if public_version(version) != base.version:
                yield Problem(
                    str(self.root / file),
                    expected=f"version {base.version}",
                    found=version,
                    remedy=f"use a tree of {base.tag}, or move the series to that release "
                    "(README: move to another base)",
                )


def public_version(version: str) -> str:
    """``2.13.0`` for ``2.13.0+cpu`` and for the ``2.13.0a0`` of a source checkout."""
    match = _PUBLIC_VERSION.match(version)
    return match[0] if match else ""


def detect(where: Path) -> Tree:
    """The tree at ``where``: its root, its ``torch`` folder, a virtual environment, or a python.

    Raises Refused where there is none.
    """
    root = _root_of(where)
    if not (root / "torch" / "__init__.py").is_file():
        raise refuse(
            where,
            expected="a PyTorch source checkout, an unpacked wheel, an environment with torch, or its python",
            found="no torch/__init__.py",
            remedy="name the folder that contains torch/",
        )
    dist_info = next(iter(sorted(root.glob("torch-*.dist-info"))), None)
    if dist_info:
        return _distribution(root, dist_info)
    return _source(root)


def _root_of(where: Path) -> Path:
    if where.is_file() and os.access(where, os.X_OK):
        said = subprocess.run(
            [where, "-c", _WHERE_IS_PLATLIB], capture_output=True, text=True
        )
        return Path(said.stdout.strip() or where)
    if (where / "pyvenv.cfg").exists():
        folders = [
            folder
            for pattern in _SITE_PACKAGES
            for folder in sorted(where.glob(pattern))
        ]
        with_torch = [folder for folder in folders if (folder / "torch").is_dir()]
        return with_torch[0].absolute() if with_torch else where
    if (where / "__init__.py").exists() and (where / "_inductor").is_dir():
        return where.absolute().parent
    return where.absolute()


def _distribution(root: Path, dist_info: Path) -> Tree:
    kind = Kind.INSTALLED if (dist_info / "INSTALLER").exists() else Kind.WHEEL
    metadata = dist_info / "METADATA"
    versions = {
        "torch/version.py": _field(
            root / "torch/version.py", r"^__version__ = ['\"](.+?)['\"]"
        ),
        f"{dist_info.name}/METADATA": _field(metadata, r"^Version: *(\S+)"),
    }
    return Tree(root, kind, versions, dist_info)


def _source(root: Path) -> Tree:
    if not (root / "version.txt").is_file():
        raise refuse(
            root,
            expected="version.txt (source checkout) or torch-*.dist-info (wheel, installed torch)",
            found="neither",
            remedy="name the root of a whole tree",
        )
    version = (root / "version.txt").read_text().strip()
    return Tree(root, Kind.SOURCE, {"version.txt": version}, None)


def _field(file: Path, pattern: str) -> str:
    content = file.read_text(errors="replace") if file.is_file() else ""
    match = re.search(pattern, content, re.MULTILINE)
    return match[1] if match else "no version"


def _hex(record_digest: str) -> str:
    encoded = record_digest.partition("=")[2]
    return base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).hex()
