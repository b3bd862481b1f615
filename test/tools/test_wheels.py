# Owner(s): ["module: inductor"]
"""The patched wheel, made from a small made-up base wheel."""

import base64
import csv
import hashlib
import os
import subprocess
import sys
import unittest
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from unittest import mock

from made_up import (
    edited_graph,
    GRAPH,
    MadeUpTestCase,
    OUR_FILES,
    REPO_ROOT,
)

from tools import wheels
from tools.apply import apply
from tools.problems import Refused
from tools.trees import detect, Kind
from tools.wheels import base_wheel_path, build, inspect, manifest_of


class WheelTestCase(MadeUpTestCase):
    def setUp(self):
        super().setUp()
        self.dist = self.folder / "dist"

    def make_wheel(self, version="7.1.0+cpu", module_version=None):
        """A base wheel; ``module_version`` is what its torch/version.py says."""
        tree = self.make_tree(Kind.WHEEL, version=version, name=f"unpacked {version}")
        content = f"__version__ = '{module_version or version}'\n"
        (tree.root / "torch/version.py").write_text(content)
        bases = self.folder / "bases"
        bases.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "wheel",
            "pack",
            "--dest-dir",
            bases,
            tree.root,
        ]
        subprocess.run(command, check=True, capture_output=True)
        return next(bases.glob(f"torch-{version}-*.whl"))

    def build(self, path, **options):
        with redirect_stdout(StringIO()):
            return build(
                self.checkout, inspect(self.checkout, path), self.dist, **options
            )

    def refused(self, path):
        with self.assertRaises(Refused) as caught:
            self.build(path)
        self.assertEqual(list(self.dist.glob("*")) + list(self.dist.glob(".*")), [])
        return self.shorten(caught.exception)


class TestBuild(WheelTestCase):
    def test_versions(self):
        cases = {
            ("7.1.0+cpu", "7.1.0+cpu"): (
                "7.1.0+cpu.rangetune.1",
                "7.1.0+cpu.rangetune.1",
            ),
            ("7.1.0", "7.1.0"): ("7.1.0+rangetune.1", "7.1.0+rangetune.1"),
            # as the wheels for CUDA on PyPI have it
            ("7.1.0", "7.1.0+cu130"): ("7.1.0+rangetune.1", "7.1.0+cu130.rangetune.1"),
        }
        for (version, module_version), (new, new_module) in cases.items():
            with self.subTest(version=version, module_version=module_version):
                made = self.build(self.make_wheel(version, module_version))
                self.assertEqual(made.name, f"torch-{new}-cp311-cp311-linux_x86_64.whl")
                with zipfile.ZipFile(made) as archive:
                    info = f"torch-{new}.dist-info"
                    module = archive.read("torch/version.py").decode()
                    metadata = archive.read(f"{info}/METADATA").decode()
                    tags = archive.read(f"{info}/WHEEL").decode()
                self.assertEqual(module, f"__version__ = '{new_module}'\n")
                self.assertIn(f"\nVersion: {new}\n", metadata)
                self.assertIn("\nVersion: of text\n", metadata)
                self.assertIn("\nTag: cp311-cp311-linux_x86_64\n", tags)

    def test_contents_record_and_modes(self):
        base = self.make_wheel()
        made = self.build(base)
        with zipfile.ZipFile(made) as archive, zipfile.ZipFile(base) as before:
            names = set(archive.namelist())
            self.assertFalse([name for name in names if name.startswith(".rangetune")])
            self.assertEqual(archive.read(GRAPH).decode(), edited_graph(3, 33))
            for path, text in OUR_FILES.items():
                self.assertEqual(archive.read(path).decode(), text)
            (record,) = [name for name in names if name.endswith("/RECORD")]
            rows = list(csv.reader(archive.read(record).decode().splitlines()))
            self.assertEqual({row[0] for row in rows}, names)
            for path, digest, size in rows:
                if path != record:
                    content = archive.read(path)
                    wanted = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
                    self.assertEqual(digest, "sha256=" + wanted.decode().rstrip("="))
                    self.assertEqual(int(size), len(content))
            for entry in before.infolist():
                if entry.filename in names:
                    mode = archive.getinfo(entry.filename).external_attr >> 16
                    self.assertEqual(mode, entry.external_attr >> 16, entry.filename)
            self.assertEqual(archive.getinfo(GRAPH).external_attr >> 16 & 0o777, 0o755)

    def test_pip_takes_the_base_s_requirement_for_met(self):
        from packaging.requirements import Requirement

        requirement = Requirement(self.checkout.base.requirement)
        self.assertIn(
            wheels.labelled("7.1.0+cpu", self.checkout.base), requirement.specifier
        )

    def test_again_gives_the_same_bytes(self):
        base = self.make_wheel()
        first = self.build(base).read_bytes()
        self.assertEqual(self.build(base).read_bytes(), first)
        with zipfile.ZipFile(next(self.dist.iterdir())) as archive:
            times = {entry.date_time[:3] for entry in archive.infolist()}
        self.assertEqual(times, {(2026, 1, 1)})

    def test_an_unpacked_patched_wheel_is_known_as_such(self):
        made = self.build(self.make_wheel())
        root = self.folder / "again"
        with zipfile.ZipFile(made) as archive:
            archive.extractall(root)
        self.assertTrue(detect(root).is_from_patched_wheel)
        with self.assertRaises(Refused):
            apply(self.checkout, detect(root))

    def test_reuse_looks_at_all_inputs(self):
        base = self.make_wheel()
        made = self.build(base)
        inputs = manifest_of(made)["inputs"]
        with mock.patch.object(
            wheels, "_make", side_effect=AssertionError("made again")
        ):
            self.assertEqual(self.build(base, reuse=True), made)
        for path in (
            "base.toml",
            "torch_patches/graph-first.patch",
            next(iter(OUR_FILES)),
            "tools/x.py",
        ):
            with (self.checkout.root / path).open("a") as file:
                file.write("\n")
            again = manifest_of(self.build(base, reuse=True))["inputs"]
            self.assertNotEqual(again, inputs, path)
            inputs = again


class TestRefusals(WheelTestCase):
    def test_another_version(self):
        self.assertExpectedInline(
            self.refused(self.make_wheel("7.2.0+cpu")),
            """/bases/torch-7.2.0+cpu-cp311-cp311-linux_x86_64.whl: expected the base's wheel, of version 7.1.0, found version 7.2.0+cpu; name another in TORCH_BASE_WHEEL, or unset it to have pip find one""",
        )

    def test_a_wheel_patched_already(self):
        made = self.build(self.make_wheel())
        self.dist = self.folder / "other"
        self.assertExpectedInline(
            self.refused(made),
            """/dist/torch-7.1.0+cpu.rangetune.1-cp311-cp311-linux_x86_64.whl: expected the base's wheel, of version 7.1.0, found version 7.1.0+cpu.rangetune.1, patched already; name another in TORCH_BASE_WHEEL, or unset it to have pip find one""",
        )

    def test_no_such_file(self):
        self.assertExpectedInline(
            self.refused(self.folder / "torch-7.1.0.whl"),
            """/torch-7.1.0.whl: expected the base's wheel, found no such file; download it anew""",
        )

    def test_a_file_cut_short(self):
        base = self.make_wheel()
        base.write_bytes(base.read_bytes()[:-100])
        self.assertExpectedInline(
            self.refused(base),
            """/bases/torch-7.1.0+cpu-cp311-cp311-linux_x86_64.whl: expected the base's wheel, found a damaged file; download it anew""",
        )

    def test_a_file_with_a_damaged_byte(self):
        base = self.make_wheel()
        with zipfile.ZipFile(base) as archive:
            entry = archive.getinfo("torch/_inductor/scheduler.py")
        content = bytearray(base.read_bytes())
        content[entry.header_offset + 30 + len(entry.filename) + 5] ^= 0xFF
        base.write_bytes(content)
        self.assertIn("wheel unpack: expected success, found", self.refused(base))

    def test_a_file_that_its_record_does_not_know(self):
        base = self.make_wheel()
        with zipfile.ZipFile(base, "a") as archive:
            archive.writestr("torch/extra.py", "extra = 1\n")
        self.assertExpectedInline(
            self.refused(base),
            """wheel unpack: expected success, found No hash found for file 'torch/extra.py'; is the base's wheel whole?""",
        )

    def test_a_known_wheel_with_other_bytes(self):
        base = self.make_wheel()
        with (self.checkout.root / "base.toml").open("a") as toml:
            toml.write(f'"{base.name}" = "{"0" * 64}"\n')
        self.assertIn(f"expected sha256 {'0' * 64}, found", self.refused(base))

    def test_an_edited_module(self):
        base = self.make_wheel()
        with (self.checkout.root / "base.toml").open("a") as toml:
            toml.write("")
        (self.checkout.root / "base.toml").write_text(
            (self.checkout.root / "base.toml")
            .read_text()
            .replace('_op.py" = "', '_op.py" = "0')
        )
        self.assertIn("custom_op.py: expected the base's module", self.refused(base))

    def test_not_a_wheel_of_torch(self):
        path = self.folder / "torch-7.1.0-py3-none-any.whl"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.py", "")
        self.assertExpectedInline(
            self.refused(path),
            """/torch-7.1.0-py3-none-any.whl: expected the base's wheel, of version 7.1.0, found version unknown (no METADATA of torch); name another in TORCH_BASE_WHEEL, or unset it to have pip find one""",
        )


class TestFindingTheBase(WheelTestCase):
    def test_the_variable_names_it(self):
        with mock.patch.dict(os.environ, {wheels.BASE_WHEEL_VARIABLE: "a/b.whl"}):
            self.assertEqual(str(base_wheel_path(self.checkout)), "a/b.whl")

    def test_pip_is_asked_once_and_for_the_very_version(self):
        calls = []

        def download(command):
            calls.append([str(word) for word in command])
            (command[command.index("--dest") + 1] / "torch-7.1.0-x.whl").touch()
            return subprocess.CompletedProcess(command, 0)

        with (
            mock.patch.dict(os.environ),
            mock.patch.object(wheels.subprocess, "run", download),
            redirect_stdout(StringIO()),
        ):
            os.environ.pop(wheels.BASE_WHEEL_VARIABLE, None)
            first = base_wheel_path(self.checkout)
            self.assertEqual(base_wheel_path(self.checkout), first)
        self.assertEqual(len(calls), 1)
        self.assertEqual(calls[0][-1], "torch==7.1.0")
        self.assertIn("--no-deps", calls[0])

    def test_pip_finds_none(self):
        failed = subprocess.CompletedProcess([], 1)
        with (
            mock.patch.dict(os.environ),
            mock.patch.object(wheels.subprocess, "run", return_value=failed),
            redirect_stdout(StringIO()),
            self.assertRaises(Refused) as caught,
        ):
            os.environ.pop(wheels.BASE_WHEEL_VARIABLE, None)
            base_wheel_path(self.checkout)
        self.assertExpectedInline(
            self.shorten(caught.exception),
            """torch==7.1.0: expected a wheel for this Python from pip, found none (pip's error is above); name a base wheel in TORCH_BASE_WHEEL""",
        )


class TestCommandLine(WheelTestCase):
    def test_a_refusal_is_one_line_and_exit_status_1(self):
        command = [sys.executable, "setup.py", "bdist_wheel", "--dist-dir", self.dist]
        environment = os.environ | {wheels.BASE_WHEEL_VARIABLE: str(self.make_wheel())}
        done = subprocess.run(
            command, cwd=REPO_ROOT, env=environment, capture_output=True, text=True
        )
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn(
            "expected the base's wheel, of version 2.13.0, found version 7.1.0+cpu",
            done.stderr,
        )
        self.assertFalse(self.dist.exists())

    def test_help_says_what_it_can_do(self):
        out = StringIO()
        with redirect_stdout(out), self.assertRaises(SystemExit) as caught:
            wheels.main(["--help"])
        self.assertEqual(caught.exception.code, 0)
        self.assertIn("python -m tools apply /path/to/pytorch", out.getvalue())

    def test_other_commands_are_refused(self):
        err = StringIO()
        with redirect_stderr(err), self.assertRaises(SystemExit) as caught:
            wheels.main(["install"])
        self.assertEqual(caught.exception.code, 2)
        self.assertIn("python setup.py bdist_wheel", err.getvalue())


if __name__ == "__main__":
    unittest.main()
