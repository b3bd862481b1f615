# Owner(s): ["module: inductor"]
"""Which kind of tree a path is, and what it says of its version."""

import unittest

from made_up import GRAPH, MadeUpTestCase, write_files

from tools.problems import Refused
from tools.trees import detect, Kind, public_version


class TestDetect(MadeUpTestCase):
    def refused(self, path):
        with self.assertRaises(Refused) as caught:
            detect(path)
        return self.shorten(caught.exception)

    def test_each_kind_by_its_root_and_its_torch_folder(self):
        versions = {
            Kind.SOURCE: "7.1.0a0",
            Kind.WHEEL: "7.1.0+cpu",
            Kind.INSTALLED: "7.1.0+cpu",
        }
        for kind, version in versions.items():
            tree = self.make_tree(kind)
            for path in (tree.root, tree.root / "torch"):
                found = detect(path)
                self.assertEqual(
                    (found.root, found.kind, found.version), (tree.root, kind, version)
                )
                self.assertFalse(found.is_from_patched_wheel)

    def test_a_virtual_environment(self):
        tree = self.make_tree(name="venv/lib/python3.11/site-packages")
        write_files(self.folder / "venv", {"pyvenv.cfg": ""})
        self.assertEqual(detect(self.folder / "venv"), tree)

    def test_a_python(self):
        tree = self.make_tree()
        python = self.folder / "python"
        python.write_text(f"#!/bin/sh\necho {tree.root}\n")
        python.chmod(0o755)
        self.assertEqual(detect(python), tree)
        self.assertIn(
            "no torch/__init__.py", self.refused(self.folder / "checkout" / "base.toml")
        )

    def test_no_torch(self):
        self.assertExpectedInline(
            self.refused(self.folder),
            """: expected a PyTorch source checkout, an unpacked wheel, an environment with torch, or its python, found no torch/__init__.py; name the folder that contains torch/""",
        )
        write_files(self.folder / "venv", {"pyvenv.cfg": ""})
        self.assertIn("no torch/__init__.py", self.refused(self.folder / "venv"))

    def test_torch_without_a_version(self):
        write_files(self.folder, {"x/torch/__init__.py": ""})
        self.assertExpectedInline(
            self.refused(self.folder / "x"),
            """/x: expected version.txt (source checkout) or torch-*.dist-info (wheel, installed torch), found neither; name the root of a whole tree""",
        )

    def test_this_checkout_is_no_tree(self):
        self.assertIn("no torch/__init__.py", self.refused(self.checkout.root))

    def test_a_patched_wheel_by_either_version(self):
        for path in ("torch/version.py", "torch-7.1.0+cpu.dist-info/METADATA"):
            tree = self.make_tree(name=path.replace("/", "-"))
            content = (tree.root / path).read_text()
            write_files(tree.root, {path: content.replace("+cpu", "+cpu.rangetune.1")})
            self.assertTrue(detect(tree.root).is_from_patched_wheel)


class TestTree(MadeUpTestCase):
    def test_public_version(self):
        said = ["2.13.0", "2.13.0+cpu", "2.13.0a0", "2.13.0a0+git0123", "2.13", "none"]
        self.assertEqual(
            [public_version(version) for version in said],
            ["2.13.0", "2.13.0", "2.13.0", "2.13.0", "2.13", ""],
        )

    def test_recorded_files_are_in_hex(self):
        import hashlib

        tree = self.make_tree()
        digest = hashlib.sha256((tree.root / GRAPH).read_bytes()).hexdigest()
        self.assertEqual(tree.recorded_files()[GRAPH], digest)
        self.assertEqual(self.make_tree(Kind.SOURCE).recorded_files(), {})

    def test_both_versions_are_looked_at(self):
        tree = self.make_tree()
        write_files(tree.root, {"torch/version.py": "__version__ = '7.2.0'\n"})
        problems = list(detect(tree.root).version_problems(self.checkout.base))
        self.assertExpectedInline(
            self.messages(problems),
            """/installed/torch/version.py: expected version 7.1.0, found 7.2.0; use a tree of v7.1.0, or move the series to that release (README: move to another base)""",
        )


if __name__ == "__main__":
    unittest.main()
