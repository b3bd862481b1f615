"""The type check: our modules as they stand in an environment's torch, and the rest of this checkout.

``python -m tools.typecheck VENV``. Our ``torch/`` alone is no package that a checker could
follow imports in; linked into the torch of ``VENV`` it is.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tools.checkout import this_checkout
from tools.trees import detect


ALSO_CHECKED = ("setup.py", "tools", "examples", "benchmarks")


def main(venv: Path) -> int:
    """Print what pyrefly finds, with paths of this checkout; returns its exit status."""
    checkout, site_packages = this_checkout(), detect(venv).root
    others = [name for name in ALSO_CHECKED if (checkout.root / name).exists()]
    folders = [name for name in others if (checkout.root / name).is_dir()]
    modules = [str(site_packages / path) for path in checkout.owned_modules()]
    command = [
        *(
            str(Path(sys.executable).parent / "pyrefly"),
            "check",
            "--config=pyproject.toml",
        ),
        *("--output-format=min-text", "--python-interpreter-path", sys.executable),
        *(f"--search-path={path}" for path in (site_packages, ".", *folders)),
        *(*others, *modules),
    ]
    done = subprocess.run(command, cwd=checkout.root, capture_output=True, text=True)
    shown = os.path.relpath(site_packages, checkout.root)
    print((done.stdout + done.stderr).replace(f"{shown}/", "").strip())
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
