"""The steps by which a tree is changed: each is atomic, so that a kill leaves no half file."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from pathlib import Path


def about_to(_step: str, _path: Path) -> None:
    """Called before each step; tests interrupt here, and nothing else hooks in."""


def write(path: Path, content: bytes, mode: int) -> None:
    """Write a new file; not atomic: for files that :func:`move` puts in place later."""
    about_to("write", path)
    path.write_bytes(content)
    path.chmod(mode)


def copy(source: Path, target: Path) -> None:
    """Copy a file with its mode and times; a link is copied as a link."""
    about_to("copy", target)
    shutil.copy2(source, target, follow_symlinks=False)


def link(target: Path, destination: str) -> None:
    """Make ``target`` a symbolic link to ``destination``."""
    about_to("link", target)
    target.symlink_to(destination)


def move(source: Path, target: Path) -> None:
    """Put ``source`` at ``target``, in place of what is there; atomic."""
    about_to("move", target)
    os.replace(source, target)


def remove(path: Path) -> None:
    """Remove a file or link, if it is there."""
    about_to("remove", path)
    path.unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    """Make a folder and those above it, where missing."""
    about_to("make folder", path)
    path.mkdir(parents=True, exist_ok=True)


def remove_empty_folder(path: Path) -> None:
    """Remove a folder if it is there and empty."""
    about_to("remove folder", path)
    if path.is_dir() and not any(path.iterdir()):
        path.rmdir()


def remove_folder(path: Path) -> None:
    """Remove a folder with all that is in it, if it is there."""
    about_to("remove folder", path)
    if path.is_dir():
        shutil.rmtree(path)
