"""The base's own files: for diffs against modules and files that the tree no longer has."""

from __future__ import annotations

import hashlib
import zipfile
from typing import TYPE_CHECKING

from tools.apply import standing
from tools.git import GitFailed, run_git
from tools.problems import refuse
from tools.trees import detect, Kind, Tree
from tools.wheels import base_wheel_here


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.checkout import Checkout


def reader_of_base(base: Path) -> Callable[[str], bytes | None]:
    """Reads files of the base from its wheel or from a tree, by their path in a tree."""
    if base.is_file() and base.suffix == ".whl":
        return lambda path: _from_wheel(base, path)
    return standing(detect(base)).view().read


def reader_for_edits(
    checkout: Checkout, tree: Tree, base: Path | None
) -> Callable[[str], bytes | None]:
    """Reads files as they were before the developer edited them in ``tree``.

    A git checkout has them itself; for other trees ``base`` names a base wheel or a
    pristine tree, and without it the wheel that ``make`` has downloaded serves.
    """
    if base is None and tree.kind is Kind.SOURCE and (tree.root / ".git").exists():
        return lambda path: _from_git(tree.root, path)
    if found := base or base_wheel_here(checkout):
        return reader_of_base(found)
    raise refuse(
        tree.root,
        expected="edits only in files that the series touches already",
        found="edits in others, whose former content is not known",
        remedy="name the base's wheel, or a pristine tree: --base PATH",
    )


def edited_files(tree: Tree) -> set[str]:
    """Python files under ``torch/`` that are not as git, or RECORD, has them."""
    if tree.kind is Kind.SOURCE:
        if not (tree.root / ".git").exists():
            return set()
        said = run_git("diff", "--name-only", "HEAD", "--", "torch", cwd=tree.root)
        return {path for path in said.decode().splitlines() if path.endswith(".py")}
    recorded = tree.recorded_files()
    modules = {
        path for path in recorded if path.startswith("torch/") and path.endswith(".py")
    }
    return {path for path in modules if _sha256(tree.root / path) != recorded[path]}


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else ""


def _from_wheel(wheel: Path, path: str) -> bytes | None:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(path) if path in archive.namelist() else None


def _from_git(root: Path, path: str) -> bytes | None:
    try:
        return run_git("show", f"HEAD:{path}", cwd=root)
    except GitFailed:
        return None
