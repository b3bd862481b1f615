"""Small made-up trees and a made-up checkout for the tests of ``tools``."""

import base64
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path


REPO_ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPO_ROOT))

from expecttest import TestCase

from tools.__main__ import main
from tools.checkout import Checkout
from tools.git import Scratch
from tools.patches import Patch
from tools.plan import patched_files
from tools.trees import detect, Kind, Tree


GRAPH = "torch/_inductor/graph.py"
SCHEDULER = "torch/_inductor/scheduler.py"
REPLACED = "torch/_inductor/kernel/custom_op.py"
JOINED = "torch/_inductor/range_autotune/ranges.py"

BASE_FILES = {
    "torch/__init__.py": "from .version import __version__\n",
    "torch/_inductor/__init__.py": "",
    GRAPH: "".join(f"graph_{number} = {number}\n" for number in range(1, 41)),
    SCHEDULER: "".join(f"step_{number} = {number}\n" for number in range(1, 31)),
    REPLACED: "whose = 'the base'\n",
}
OUR_FILES = {
    REPLACED: "whose = 'ours'\n",
    "torch/_inductor/range_autotune/__init__.py": "",
    JOINED: "ranges = ()\n",
}
HEADER = """Subject: [inductor] {subject}

Why: the choice has to be made late.

Why not a module of ours: the caller is upstream's.

Upstream-Status: Pending
Applies-To: 7.1.0
Remove-When: upstream has the hook
"""
BASE_TOML = """version = "7.1.0"
tag = "v7.1.0"
build = 1
[replaces]
"{replaced}" = "{sha256}"
[wheels]
"""


def sha256(content):
    return hashlib.sha256(content.encode()).hexdigest()


def write_files(root, files):
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)


def make_patch(name, subject, before, after):
    """A patch file's parsed content; before and after map path to text."""
    with Scratch() as scratch:
        snapshots = []
        for files in (before, after):
            scratch.write({path: text.encode() for path, text in files.items()})
            snapshots.append(scratch.snapshot())
        patch = Patch(name, HEADER.format(subject=subject), b"", ())
        return patch.with_diff(scratch.diff(*snapshots))


def edited_graph(*numbers, text=None):
    """graph.py with the given lines changed, as one patch after the other does."""
    content = text or BASE_FILES[GRAPH]
    for number in numbers:
        content = content.replace(f"= {number}\n", f"= {number}  # patched\n")
    return content


def fingerprint(root):
    """Every path below ``root`` with its kind, mode and content."""
    entries = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            entries[name] = os.readlink(path)
        else:
            content = path.read_bytes() if path.is_file() else b""
            entries[name] = (stat.S_IMODE(path.stat().st_mode), content)
    return entries


class MadeUpTestCase(TestCase):
    """A made-up checkout with three patches, and trees of all kinds to patch."""

    maxDiff = None

    def setUp(self):
        super().setUp()
        self.folder = Path(tempfile.mkdtemp(prefix="made-up-")).resolve()
        self.addCleanup(shutil.rmtree, self.folder)
        self.checkout = self.make_checkout()

    def make_checkout(self):
        root = self.folder / "checkout"
        write_files(root, OUR_FILES)
        base_toml = BASE_TOML.format(
            replaced=REPLACED, sha256=sha256(BASE_FILES[REPLACED])
        )
        write_files(
            root,
            {
                "base.toml": base_toml,
                "tools/x.py": "",
                "test/inductor/test_x.py": "ok = 1\n",
            },
        )
        checkout = Checkout(root)
        graph = BASE_FILES[GRAPH]
        self.add_patch(
            checkout, "graph-first", {GRAPH: graph}, {GRAPH: edited_graph(3)}
        )
        self.add_patch(
            checkout,
            "scheduler-hook",
            {SCHEDULER: BASE_FILES[SCHEDULER]},
            {SCHEDULER: BASE_FILES[SCHEDULER].replace("= 9\n", "= 9  # hook\n")},
        )
        self.add_patch(
            checkout,
            "graph-second",
            {GRAPH: edited_graph(3)},
            {GRAPH: edited_graph(3, 33)},
        )
        return checkout

    def add_patch(self, checkout, slug, before, after):
        patch = make_patch(f"{slug}.patch", f"Do {slug}", before, after)
        write_files(
            checkout.root, {f"torch_patches/{slug}.patch": patch.to_bytes().decode()}
        )
        with (checkout.patches_folder / "series").open("a") as series:
            series.write(f"{slug}.patch\n")

    def edit_patch(self, slug, old, new):
        file = self.checkout.patches_folder / f"{slug}.patch"
        content = file.read_text()
        self.assertIn(old, content)
        file.write_text(content.replace(old, new))

    def make_tree(
        self, kind=Kind.INSTALLED, version="7.1.0+cpu", name=None, crlf=False
    ) -> Tree:
        root = self.folder / (name or kind.name.lower())
        files = BASE_FILES | {
            "torch/version.py": f"__version__ = '{version}'\ndebug = False\n"
        }
        if crlf:
            files = {path: text.replace("\n", "\r\n") for path, text in files.items()}
        write_files(root, files)
        (root / GRAPH).chmod(0o755)
        if kind is Kind.SOURCE:
            return self.make_source(root)
        self.add_dist_info(root, version)
        if kind is Kind.INSTALLED:
            write_files(root, {f"torch-{version}.dist-info/INSTALLER": "pip\n"})
        return detect(root)

    def make_source(self, root):
        (root / "torch/version.py").unlink()
        tests = {"test/inductor/test_x.py": "ok = 0\n"}
        write_files(root, {"version.txt": "7.1.0a0\n"} | tests)
        self.git(root, "init", "--quiet")
        self.git(root, "add", "--all")
        self.git(root, "commit", "--quiet", "--message=base")
        return detect(root)

    def add_dist_info(self, root, version):
        rows = []
        for path in sorted(root.rglob("*.py")):
            if path.is_symlink():  # left by an apply, not brought by pip
                continue
            digest = base64.urlsafe_b64encode(
                hashlib.sha256(path.read_bytes()).digest()
            )
            name = path.relative_to(root).as_posix()
            rows.append(
                f"{name},sha256={digest.decode().rstrip('=')},{path.stat().st_size}\n"
            )
        info = f"torch-{version}.dist-info"
        rows.append(f"{info}/RECORD,,\n")
        metadata = f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n\nVersion: of text\n"
        wheel = "Wheel-Version: 1.0\nGenerator: made up\nRoot-Is-Purelib: false\nTag: cp311-cp311-linux_x86_64\n"
        write_files(
            root,
            {
                f"{info}/METADATA": metadata,
                f"{info}/WHEEL": wheel,
                f"{info}/RECORD": "".join(rows),
            },
        )

    def as_patched_wheel_install(self, tree):
        """What pip leaves of a wheel that this checkout made."""
        version = f"{tree.version}.rangetune.1"
        shutil.rmtree(tree.dist_info)
        write_files(tree.root, OUR_FILES)
        write_files(tree.root, {"torch/version.py": f"__version__ = '{version}'\n"})
        write_files(tree.root, {GRAPH: edited_graph(3, 33)})
        hooked = BASE_FILES[SCHEDULER].replace("= 9\n", "= 9  # hook\n")
        write_files(tree.root, {SCHEDULER: hooked})
        self.add_dist_info(tree.root, version)
        modules = {path: sha256(text) for path, text in OUR_FILES.items()}
        patches = [patch.name for patch in self.checkout.series()]
        manifest = json.dumps(
            {
                "modules": modules,
                "patches": patches,
                "patched": patched_files(self.checkout.series()),
                "inputs": "old",
            }
        )
        info = f"torch-{version}.dist-info"
        write_files(
            tree.root,
            {f"{info}/rangetune.json": manifest, f"{info}/INSTALLER": "pip\n"},
        )
        return detect(tree.root)

    def git(self, root, *arguments):
        identity = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=root, capture_output=True, text=True
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def run_tools(self, *arguments):
        """Exit status and both outputs of the command line, with temporary paths shortened."""
        command = [str(argument) for argument in arguments]
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            status = main(command, self.checkout)
        return status, self.shorten(out.getvalue()), self.shorten(err.getvalue())

    def shorten(self, text):
        return str(text).replace(str(self.folder), "").strip()

    def messages(self, problems):
        return self.shorten("\n".join(str(problem) for problem in problems))
