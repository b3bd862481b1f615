"""A patched wheel from the base's wheel: unpack, patch, give it its version, pack."""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tools.apply import apply
from tools.checkout import Checkout, LABEL, this_checkout
from tools.journal import forget
from tools.plan import patched_files, text_sha256
from tools.problems import refuse, Refused
from tools.progress import step
from tools.trees import detect, MANIFEST, public_version, Tree


if TYPE_CHECKING:
    from tools.checkout import BaseRelease

BASE_WHEEL_VARIABLE = "TORCH_BASE_WHEEL"

# The time of every file in a patched wheel, so that packing again gives the same bytes: 2026-01-01.
_SOURCE_DATE_EPOCH = "1767225600"

_USAGE = """python setup.py bdist_wheel [--dist-dir DIR] [--reuse]

Makes a patched wheel in dist/ from the base's wheel: the one that TORCH_BASE_WHEEL names
(any platform and CPython), or the one that `pip download` finds for this Python.
For a source build, patch the source instead: python -m tools apply /path/to/pytorch"""


@dataclass(frozen=True)
class BaseWheel:
    """A base wheel that was found fit; ``version`` is that of its METADATA."""

    path: Path
    version: str
    sha256: str

    def patched_name(self, base: BaseRelease) -> str:
        """The patched wheel's file name: only the version differs."""
        name, _, tags = self.path.name.split("-", 2)
        return f"{name}-{labelled(self.version, base)}-{tags}"


def labelled(version: str, base: BaseRelease) -> str:
    """``2.13.0+cpu`` to ``2.13.0+cpu.rangetune.1``, ``2.13.0`` to ``2.13.0+rangetune.1``."""
    return f"{version}{'.' if '+' in version else '+'}{base.local_label}"


def base_wheel_path(checkout: Checkout) -> Path:
    """The base wheel that TORCH_BASE_WHEEL names, or pip's, downloaded once into build/."""
    if here := base_wheel_here(checkout):
        return here
    folder = _download_folder(checkout)
    _download(checkout.base.requirement, folder)
    return next(folder.glob("torch-*.whl"))


def base_wheel_here(checkout: Checkout) -> Path | None:
    """The same without asking pip: None where nothing was downloaded yet."""
    if named := os.environ.get(BASE_WHEEL_VARIABLE):
        return Path(named)
    return next(_download_folder(checkout).glob("torch-*.whl"), None)


def _download_folder(checkout: Checkout) -> Path:
    python = f"{sys.implementation.cache_tag}-{sysconfig.get_platform()}"
    return checkout.root / "build" / "base" / python / checkout.base.version


def inspect(checkout: Checkout, path: Path) -> BaseWheel:
    """Look a base wheel over without unpacking it; raises Refused if it is none."""
    if not zipfile.is_zipfile(path):
        found = "a damaged file" if path.exists() else "no such file"
        raise refuse(
            path, expected="the base's wheel", found=found, remedy="download it anew"
        )
    version, base = _metadata_version(path), checkout.base
    if LABEL in version or public_version(version) != base.version:
        raise refuse(
            path,
            expected=f"the base's wheel, of version {base.version}",
            found=f"version {version}"
            + (", patched already" if LABEL in version else ""),
            remedy=f"name another in {BASE_WHEEL_VARIABLE}, or unset it to have pip find one",
        )
    with path.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    known = base.wheels.get(path.name, digest)
    if known != digest:
        raise refuse(
            path, expected=f"sha256 {known}", found=digest, remedy="download it anew"
        )
    return BaseWheel(path.resolve(), version, digest)


def build(
    checkout: Checkout, wheel: BaseWheel, dist: Path, *, reuse: bool = False
) -> Path:
    """Make the patched wheel in ``dist`` and return its path.

    With ``reuse``, a wheel that was made from the same inputs is left in place.
    Raises Refused, with nothing left behind, where a step fails.
    """
    target = dist / wheel.patched_name(checkout.base)
    inputs = checkout.inputs_digest(wheel.sha256)
    if reuse and target.exists() and manifest_of(target).get("inputs") == inputs:
        return target
    if importlib.util.find_spec("wheel") is None:
        remedy = f"{sys.executable} -m pip install -r requirements-dev.txt"
        raise refuse(
            sys.executable, expected="the package `wheel`", found="none", remedy=remedy
        )
    dist.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".making-", dir=dist) as temporary:
        made = _make(checkout, wheel, inputs, Path(temporary))
        os.replace(made, target)
    return target


def manifest_of(wheel: Path) -> dict[str, object]:
    """What a patched wheel says of itself; empty for any other wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if name.endswith(f".dist-info/{MANIFEST}")
        ]
        return json.loads(archive.read(names[0])) if names else {}


def main(arguments: list[str]) -> int:
    """setup.py's command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="setup.py", usage=_USAGE)
    parser.add_argument("command", choices=["bdist_wheel"])
    parser.add_argument(
        "--dist-dir", "-d", type=Path, default=None, help="instead of dist/"
    )
    parser.add_argument(
        "--reuse", action="store_true", help="keep a wheel made from the same inputs"
    )
    options = parser.parse_args(arguments)
    checkout = this_checkout()
    try:
        wheel = inspect(checkout, base_wheel_path(checkout))
        dist = options.dist_dir or checkout.root / "dist"
        print(build(checkout, wheel, dist, reuse=options.reuse))
    except (Refused, OSError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


def _make(checkout: Checkout, wheel: BaseWheel, inputs: str, temporary: Path) -> Path:
    with step(f"unpack {wheel.path.name}"):
        _run_wheel("unpack", "--dest", "unpacked", str(wheel.path), cwd=temporary)
    (root,) = (temporary / "unpacked").iterdir()
    with step("patch it"):
        tree = detect(root)
        print(f"    {apply(checkout, tree)}")
        forget(root)
        _give_version(checkout, tree, inputs)
    with step(f"pack {wheel.patched_name(checkout.base)}"):
        (temporary / "packed").mkdir()
        _run_wheel("pack", "--dest-dir", "packed", str(root), cwd=temporary)
    (made,) = (temporary / "packed").iterdir()
    return made


def _give_version(checkout: Checkout, tree: Tree, inputs: str) -> None:
    assert tree.dist_info is not None
    base = checkout.base
    old = tree.versions[f"{tree.dist_info.name}/METADATA"]
    _replace(tree.root / "torch/version.py", tree.version, labelled(tree.version, base))
    _replace(
        tree.dist_info / "METADATA",
        f"Version: {old}",
        f"Version: {labelled(old, base)}",
    )
    dist_info = tree.dist_info.rename(
        tree.root / f"torch-{labelled(old, base)}.dist-info"
    )
    manifest = {
        "base": base.version,
        "build": base.build,
        "inputs": inputs,
        "patches": [patch.name for patch in checkout.series()],
        "patched": patched_files(checkout.series()),
        "modules": {
            path: text_sha256(file.read_bytes())
            for path, file in checkout.owned_modules().items()
        },
    }
    (dist_info / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _replace(file: Path, old: str, new: str) -> None:
    content = file.read_bytes()
    file.write_bytes(content.replace(old.encode(), new.encode(), 1))


def _metadata_version(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        names = [
            name
            for name in archive.namelist()
            if re.fullmatch(r"torch-[^/]+\.dist-info/METADATA", name)
        ]
        content = archive.read(names[0]).decode(errors="replace") if names else ""
    match = re.search(r"^Version: *(\S+)", content, re.MULTILINE)
    return match[1] if match else "unknown (no METADATA of torch)"


def _download(requirement: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--progress-bar=off",
    ]
    with step(f"download the base's wheel: {requirement}"):
        done = subprocess.run([*command, "--quiet", "--dest", folder, requirement])
    if done.returncode or not any(folder.glob("torch-*.whl")):
        raise refuse(
            requirement,
            expected="a wheel for this Python from pip",
            found="none (pip's error is above)",
            remedy=f"name a base wheel in {BASE_WHEEL_VARIABLE}",
        )


def _run_wheel(*arguments: str, cwd: Path) -> None:
    command = [sys.executable, "-m", "wheel", *arguments]
    environment = os.environ | {"SOURCE_DATE_EPOCH": _SOURCE_DATE_EPOCH}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or ["nothing"]
        raise refuse(
            f"wheel {arguments[0]}",
            expected="success",
            found=said[-1],
            remedy="is the base's wheel whole?",
        )
