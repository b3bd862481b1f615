"""What torch a virtual environment runs: the base, the patched wheel, or this checkout by links."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tools.apply import apply, standing, undo
from tools.problems import refuse, Refused
from tools.progress import step
from tools.trees import detect, Tree
from tools.wheels import base_wheel_path, build, inspect


if TYPE_CHECKING:
    from pathlib import Path

    from tools.checkout import Checkout


def use_base(checkout: Checkout, venv: Path) -> str:
    """Have the base in ``venv``, without links and not from a patched wheel."""
    tree = _torch_in(venv) or _install_base(checkout, venv)
    undo(standing(tree))
    if tree.is_from_patched_wheel:
        tree = _install_base(checkout, venv, "--force-reinstall", "--no-deps")
    return f"torch {tree.version} is in {venv}"


def use_wheel(checkout: Checkout, venv: Path) -> str:
    """Build the patched wheel where its inputs changed, and install it over the base."""
    tree = _torch_in(venv) or _install_base(checkout, venv)
    base_wheel = inspect(checkout, base_wheel_path(checkout))
    wheel = build(checkout, base_wheel, checkout.root / "dist", reuse=True)
    undo(standing(tree))
    if tree.manifest.get("inputs") != checkout.inputs_digest(base_wheel.sha256):
        options = ("--force-reinstall", "--no-deps")
        _pip_install(venv, "install the patched wheel", *options, str(wheel))
    return f"torch {detect(venv).version} is in {venv}"


def use_links(checkout: Checkout, venv: Path) -> str:
    """Link our modules into the torch of ``venv``, the base or a wheel of this series."""
    tree = _torch_in(venv) or _install_base(checkout, venv)
    try:
        return apply(checkout, tree, link=True)
    except Refused:
        if not tree.is_from_patched_wheel:
            raise
    use_base(checkout, venv)
    return apply(checkout, detect(venv), link=True)


def _install_base(checkout: Checkout, venv: Path, *options: str) -> Tree:
    wheel = inspect(checkout, base_wheel_path(checkout))
    _pip_install(venv, "install the base", *options, str(wheel.path))
    return detect(venv)


def _torch_in(venv: Path) -> Tree | None:
    try:
        return detect(venv)
    except Refused:
        return None


def _pip_install(venv: Path, what: str, *arguments: str) -> None:
    python = venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    command = [str(python), "-m", "pip", "install", "--quiet", "--progress-bar=off"]
    with step(what):
        done = subprocess.run([*command, *arguments])
    if done.returncode:
        raise refuse(
            venv,
            expected="pip to install torch",
            found="pip's error above",
            remedy="mend that and repeat",
        )
