# Owner(s): ["module: inductor"]
"""What a virtual environment runs: base, wheel or links, with pip and the build stood in for."""

import shutil
import subprocess
import unittest
from unittest import mock

from made_up import edited_graph, GRAPH, JOINED, MadeUpTestCase, REPLACED, write_files

from tools import environment
from tools.environment import use_base, use_links, use_wheel
from tools.problems import Refused
from tools.trees import detect
from tools.wheels import BaseWheel


SITE_PACKAGES = "venv/lib/python3.11/site-packages"


class TestEnvironment(MadeUpTestCase):
    """pip 'installs' by laying a made-up tree of the wheel's kind into the environment."""

    def setUp(self):
        super().setUp()
        self.venv = self.folder / "venv"
        write_files(
            self.venv, {"pyvenv.cfg": "", "lib/python3.11/site-packages/x.py": ""}
        )
        base = BaseWheel(self.folder / "base.whl", "7.1.0+cpu", "0" * 64)
        self.installed = []
        for name, stand_in in {
            "base_wheel_path": lambda checkout: base.path,
            "inspect": lambda checkout, path: base,
            "build": lambda checkout, wheel, dist, reuse: self.folder / "patched.whl",
            "_pip_install": self.pip_install,
        }.items():
            patcher = mock.patch.object(environment, name, stand_in)
            patcher.start()
            self.addCleanup(patcher.stop)
        self.inputs = self.checkout.inputs_digest(base.sha256)

    def pip_install(self, venv, what, *arguments):
        name = arguments[-1].rpartition("/")[2]
        self.installed.append(name)
        site_packages = self.folder / SITE_PACKAGES
        for path in site_packages.glob("torch*"):
            shutil.rmtree(path)
        tree = self.make_tree(name=SITE_PACKAGES)
        if name == "patched.whl":
            tree = self.as_patched_wheel_install(tree)
            file = tree.dist_info / "rangetune.json"
            file.write_text(file.read_text().replace('"old"', f'"{self.inputs}"'))

    def tree(self):
        return detect(self.venv)

    def test_base_once(self):
        use_base(self.checkout, self.venv)
        said = use_base(self.checkout, self.venv)
        self.assertExpectedInline(self.shorten(said), """torch 7.1.0+cpu is in /venv""")
        self.assertEqual(self.installed, ["base.whl"])

    def test_base_in_place_of_wheel_and_links(self):
        use_wheel(self.checkout, self.venv)
        use_links(self.checkout, self.venv)
        use_base(self.checkout, self.venv)
        self.assertEqual(self.installed, ["base.whl", "patched.whl", "base.whl"])
        self.assertFalse((self.tree().root / REPLACED).is_symlink())
        use_links(self.checkout, self.venv)
        use_base(self.checkout, self.venv)
        self.assertFalse((self.tree().root / JOINED).is_symlink())

    def test_wheel_over_the_base_once(self):
        use_wheel(self.checkout, self.venv)
        said = use_wheel(self.checkout, self.venv)
        self.assertExpectedInline(
            self.shorten(said), """torch 7.1.0+cpu.rangetune.1 is in /venv"""
        )
        self.assertEqual(self.installed, ["base.whl", "patched.whl"])

    def test_wheel_again_when_its_inputs_changed(self):
        use_wheel(self.checkout, self.venv)
        write_files(self.checkout.root, {JOINED: "edited = 1\n"})
        use_wheel(self.checkout, self.venv)
        self.assertEqual(self.installed, ["base.whl", "patched.whl", "patched.whl"])

    def test_links_over_the_wheel_and_the_wheel_again(self):
        use_wheel(self.checkout, self.venv)
        use_links(self.checkout, self.venv)
        self.assertTrue((self.tree().root / REPLACED).is_symlink())
        use_wheel(self.checkout, self.venv)
        self.assertFalse((self.tree().root / REPLACED).is_symlink())
        self.assertEqual(self.installed, ["base.whl", "patched.whl"])

    def test_links_over_a_wheel_of_another_series_bring_the_base_back(self):
        use_wheel(self.checkout, self.venv)
        (self.checkout.patches_folder / "series").write_text("graph-first.patch\n")
        use_links(self.checkout, self.venv)
        self.assertEqual(self.installed, ["base.whl", "patched.whl", "base.whl"])
        self.assertEqual((self.tree().root / GRAPH).read_text(), edited_graph(3))

    def test_links_over_the_base_follow_edits(self):
        use_links(self.checkout, self.venv)
        write_files(self.checkout.root, {JOINED: "edited = 1\n"})
        self.assertEqual((self.tree().root / JOINED).read_text(), "edited = 1\n")

    def test_edits_in_the_environment_are_never_lost(self):
        use_links(self.checkout, self.venv)
        write_files(self.tree().root, {GRAPH: "edited = 1\n"})
        with self.assertRaises(Refused):
            use_wheel(self.checkout, self.venv)
        self.assertEqual((self.tree().root / GRAPH).read_text(), "edited = 1\n")

    def test_the_command_line(self):
        code, out, err = self.run_tools("use", "links", self.venv)
        self.assertEqual((code, err), (0, ""))
        self.assertExpectedInline(
            out, """linked: 3 patches, 5 files, in /venv/lib/python3.11/site-packages"""
        )


class TestPip(MadeUpTestCase):
    def test_a_failure_is_told(self):
        failed = subprocess.CompletedProcess([], 1)
        with (
            mock.patch.object(environment.subprocess, "run", return_value=failed),
            mock.patch.object(environment, "step"),
            self.assertRaises(Refused) as caught,
        ):
            environment._pip_install(self.folder / "venv", "install", "x.whl")
        self.assertExpectedInline(
            self.shorten(caught.exception),
            """/venv: expected pip to install torch, found pip's error above; mend that and repeat""",
        )


if __name__ == "__main__":
    unittest.main()
