"""git at work in a scratch repository of its own: the trees to patch are never touched here."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Self, TYPE_CHECKING


if TYPE_CHECKING:
    from collections.abc import Mapping

# Exports carry it in every commit, so that exporting again gives the same bytes.
FIXED_DATE = "2026-01-01T00:00:00+0000"

_MOVED_HUNK = re.compile(
    r"^(Hunk #\d+ succeeded at .*(?:offset|fuzz).*?|Context reduced to .*?)\.?$",
    re.MULTILINE,
)
_ERROR = re.compile(r"^error: (?!while searching)(.*)$", re.MULTILINE)


class GitFailed(Exception):
    """git answered with an error; the text is what it said."""


def run_git(*arguments: str, cwd: Path, stdin: bytes | None = None) -> bytes:
    """Run git away from the user's settings and return what it printed.

    Raises :class:`GitFailed` with its error text.
    """
    command = ["git", "-c", "core.quotePath=false", *arguments]
    done = subprocess.run(
        command, cwd=cwd, input=stdin, env=_environment(), capture_output=True
    )
    if done.returncode:
        raise GitFailed(done.stderr.decode(errors="replace").strip())
    return done.stdout


def _environment() -> dict[str, str]:
    kept = {key: text for key, text in os.environ.items() if not key.startswith("GIT_")}
    return kept | {
        "LC_ALL": "C",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_COMMITTER_NAME": "rangetune",
        "GIT_COMMITTER_EMAIL": "rangetune@localhost",
    }


class Scratch:
    """A throw-away git repository in a temporary folder; use it as a context manager."""

    def __init__(self) -> None:
        self._temporary = tempfile.TemporaryDirectory(prefix="rangetune-")
        self.root = Path(self._temporary.name)
        run_git("init", "--quiet", cwd=self.root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._temporary.cleanup()

    def write(self, files: Mapping[str, bytes | None]) -> None:
        """Write each file, or remove it where its content is None."""
        for path, content in files.items():
            target = self.root / path
            if content is None:
                target.unlink(missing_ok=True)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(content)

    def read(self, path: str) -> bytes | None:
        """The file's content, None where there is none."""
        target = self.root / path
        return target.read_bytes() if target.exists() else None

    def apply_strictly(self, diff: bytes) -> None:
        """Apply ``diff`` to the files here; raises GitFailed on any offset or fuzz."""
        if not diff:  # git refuses one that refresh has emptied
            return
        command = ("apply", "--verbose", "--whitespace=nowarn", "--check")
        said = self._said_by(*command, stdin=diff)
        if moved := _MOVED_HUNK.search(said):
            raise GitFailed(moved[1])
        run_git("apply", "--whitespace=nowarn", cwd=self.root, stdin=diff)

    def apply_loosely(self, diff: bytes) -> str:
        """Apply ``diff`` with offsets and one line of context; returns git's notes."""
        command = ("apply", "--verbose", "--whitespace=nowarn", "-C1")
        said = self._said_by(*command, stdin=diff)
        return "\n".join(_MOVED_HUNK.findall(said))

    def _said_by(self, *arguments: str, stdin: bytes) -> str:
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.root,
            input=stdin,
            env=_environment(),
            capture_output=True,
        )
        said = done.stderr.decode(errors="replace")
        if done.returncode:
            raise GitFailed("; ".join(_ERROR.findall(said)) or said)
        return said

    def snapshot(self) -> str:
        """The id of a git tree with all files as they are now."""
        run_git("add", "--all", "--force", cwd=self.root)
        return run_git("write-tree", cwd=self.root).decode().strip()

    def diff(self, before: str, after: str) -> bytes:
        """The diff between two snapshots, in the form that patch files have."""
        options = ("-p", "--full-index", "--no-renames")
        return run_git("diff-tree", *options, before, after, cwd=self.root)

    def commit(self, message: str, author: str) -> None:
        """Commit all files as they are now."""
        run_git("add", "--all", "--force", cwd=self.root)
        run_git(
            *(
                "commit",
                "--quiet",
                "--allow-empty",
                "--no-verify",
                "--cleanup=verbatim",
            ),
            *(f"--author={author}", f"--date={FIXED_DATE}", "--file=-"),
            cwd=self.root,
            stdin=message.encode(),
        )

    def format_patches(
        self, since: str, destination: Path, signature: str
    ) -> list[Path]:
        """Write the commits after ``since`` as files for ``git am``, the same bytes each time."""
        options = ("--zero-commit", "--full-index", "--no-renames", "--no-numbered")
        said = run_git(
            *("format-patch", *options),
            *(f"--signature={signature}", f"--output-directory={destination}", since),
            cwd=self.root,
        )
        return [Path(line) for line in said.decode().splitlines()]

    def merge(self, base: bytes, ours: bytes, theirs: bytes) -> bytes:
        """Three-way merge of one file; raises GitFailed on a conflict."""
        names = {".merge/ours": ours, ".merge/base": base, ".merge/theirs": theirs}
        self.write(names)
        merged = run_git("merge-file", "--stdout", "--quiet", *names, cwd=self.root)
        self.write(dict.fromkeys(names))
        return merged
