# Owner(s): ["module: inductor"]
"""The real thing: the base's wheel, patched, installed over the base, used, and back again.

Slow (two installs of torch), so it has a file of its own and runs beside the others. It takes the
wheel in dist/ where that was made from the same inputs.
"""

import subprocess
import sys
import unittest
import zipfile

from made_up import MadeUpTestCase, REPO_ROOT

from tools.checkout import this_checkout
from tools.progress import step
from tools.wheels import base_wheel_path, build, inspect


EXAMPLE = REPO_ROOT / "examples" / "quickstart.py"
IMPORT_ALL = "import torch._inductor.kernel.custom_op, torch._inductor.codegen.subgraph"


class TestRealWheel(MadeUpTestCase):
    def setUp(self):
        super().setUp()
        self.checkout = this_checkout()
        self.base = inspect(self.checkout, base_wheel_path(self.checkout))
        self.venv = self.folder / "venv"
        subprocess.run([sys.executable, "-m", "venv", self.venv], check=True)
        self.python = self.venv / "bin" / "python"

    def run_python(self, *arguments):
        """Run the environment's python, away from the checkout, and return what it printed."""
        done = subprocess.run(
            [self.python, *arguments], cwd=self.folder, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def pip(self, *arguments):
        return self.run_python("-m", "pip", *arguments)

    def torch_version(self):
        return self.run_python("-c", "import torch; print(torch.__version__)").strip()

    def assert_modules_are_in(self, wheel):
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
        for name in this_checkout().owned_modules():
            self.assertIn(name, names)

    def test_install_use_and_back(self):
        requirement = self.checkout.base.requirement
        wheel = build(self.checkout, self.base, REPO_ROOT / "dist", reuse=True)
        self.assert_modules_are_in(wheel)
        with step("install the base"):
            self.pip("install", "--quiet", str(self.base.path), "numpy")
        base_version = self.torch_version()
        with step("install the patched wheel over it"):
            self.pip("install", "--quiet", "--no-deps", "--force-reinstall", str(wheel))
        self.assertIn("No broken requirements", self.pip("check"))
        label = self.checkout.base.local_label
        joint = "." if "+" in base_version else "+"
        self.assertEqual(self.torch_version(), f"{base_version}{joint}{label}")
        self.assertIn(
            "already satisfied", self.pip("install", "--no-deps", requirement)
        )
        self.run_python("-c", IMPORT_ALL)
        if EXAMPLE.exists():
            with step("run the example"):
                print(self.run_python(str(EXAMPLE)))
        with step("go back to the base"):
            self.pip(
                *("install", "--quiet", "--no-deps", "--force-reinstall"),
                str(self.base.path),
            )
        self.assertEqual(self.torch_version(), base_version)
        self.assertEqual(self.joined_modules(), [])

    def joined_modules(self):
        """Modules of ours that the base does not have and that are there all the same."""
        replaced = self.checkout.base.replaces
        joined = [
            path for path in self.checkout.owned_modules() if path not in replaced
        ]
        root = next(self.venv.glob("lib/python*/site-packages"))
        return [path for path in joined if (root / path).exists()]


if __name__ == "__main__":
    unittest.main()
