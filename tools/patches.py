"""Patch files: a header for people, trailers for the tools, a git diff; and their order.

A patch file is::

    Subject: what it does, in one line

    Why: …

    Why not a module of ours: …

    Upstream-Status: Pending | Submitted | Inappropriate
    Applies-To: 2.13.0
    Remove-When: …
    ---
    diff --git a/torch/… b/torch/…
    index <40 hex digits>..<40 hex digits> 100644
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.problems import refuse


if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ABSENT = "0" * 40
TRAILERS = ("Upstream-Status", "Applies-To", "Remove-When")

_DIFF_START = re.compile(rb"^diff --git ", re.MULTILINE)
_FILE = re.compile(r"^diff --git a/(?P<old>\S+) b/(?P<new>\S+)$")
_INDEX = re.compile(r"^index (?P<old>[0-9a-f]{40})\.\.(?P<new>[0-9a-f]{40})(?: \d+)?$")
_TRAILER = re.compile(rf"^(?P<name>{'|'.join(TRAILERS)}):(?P<value>.*)$")


@dataclass(frozen=True)
class FileChange:
    """One file of a diff; ``before`` and ``after`` are git blob ids.

    They are empty where the diff has no full ``index`` line, :data:`ABSENT` for a file
    that the patch makes or removes. ``extended`` holds git's extended header lines
    (renames, modes, binary), which no patch here may need.
    """

    path: str
    before: str
    after: str
    extended: tuple[str, ...] = ()


@dataclass(frozen=True)
class Patch:
    """A patch file, parsed but not judged: ``tools.lint`` does that."""

    name: str
    header: str
    diff: bytes
    changes: tuple[FileChange, ...]

    @property
    def subject(self) -> str:
        """The subject line's text, empty without one."""
        return _field(self.header, "Subject")

    @property
    def author(self) -> str:
        """The optional ``From:`` line's text, empty without one."""
        return _field(self.header, "From")

    @property
    def paragraphs(self) -> tuple[str, ...]:
        """The body's paragraphs, without subject, author and trailers."""
        lines = [
            line
            for line in self.header.splitlines()
            if not line.startswith(("Subject:", "From:")) and not _TRAILER.match(line)
        ]
        blocks = re.split(r"\n\s*\n", "\n".join(lines))
        return tuple(block.strip() for block in blocks if block.strip())

    @property
    def trailers(self) -> Mapping[str, str]:
        """Trailer name to its text."""
        found = map(_TRAILER.match, self.header.splitlines())
        return {match["name"]: match["value"].strip() for match in found if match}

    def with_diff(self, diff: bytes) -> Patch:
        """The same patch with another diff under its header."""
        return Patch(self.name, self.header, diff, _changes(diff))

    def to_bytes(self) -> bytes:
        """The file's content; parsing it gives this patch again."""
        return f"{self.header.rstrip()}\n---\n".encode() + self.diff


def blob_id(content: bytes | None) -> str:
    """git's id of a file with that content; :data:`ABSENT` for None."""
    if content is None:
        return ABSENT
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def parse_patch(name: str, content: bytes) -> Patch:
    """Parse a patch file; never raises on a malformed one."""
    match = _DIFF_START.search(content)
    start = match.start() if match else len(content)
    header = content[:start].decode(errors="replace").partition("\n---\n")[0]
    diff = content[start:]
    return Patch(name, header.rstrip(), diff, _changes(diff))


def series_names(folder: Path) -> list[str]:
    """The file names that ``series`` in ``folder`` lists; none without a series."""
    series = folder / "series"
    lines = series.read_text().splitlines() if series.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.startswith("#")]


def read_series(folder: Path) -> tuple[Patch, ...]:
    """The patches of ``folder`` in order; raises Refused where a file is missing."""
    return tuple(read_patch(folder / name) for name in series_names(folder))


def read_patch(path: Path) -> Patch:
    """One patch file; raises Refused where it is missing."""
    if not path.is_file():
        raise refuse(
            f"{path.parent.name}/series",
            expected=f"a file for its entry {path.name}",
            found="none",
            remedy=f"add {path.parent.name}/{path.name} or drop the entry",
        )
    return parse_patch(path.name, path.read_bytes())


def _field(header: str, name: str) -> str:
    match = re.search(rf"^{name}:(.*)$", header, re.MULTILINE)
    return match[1].strip() if match else ""


def _changes(diff: bytes) -> tuple[FileChange, ...]:
    text = diff.decode(errors="surrogateescape")
    sections = re.split(r"^(?=diff --git )", text, flags=re.MULTILINE)
    return tuple(_change(section) for section in sections if section)


def _change(section: str) -> FileChange:
    head, _, _ = section.partition("\n@@")
    lines = head.splitlines()
    file = _FILE.match(lines[0])
    index = next(filter(None, map(_INDEX.match, lines)), None)
    extended = tuple(
        line for line in lines[1:] if not line.startswith(("index ", "--- ", "+++ "))
    )
    return FileChange(
        path=file["new"] if file else lines[0].removeprefix("diff --git "),
        before=index["old"] if index else "",
        after=index["new"] if index else "",
        extended=extended,
    )
