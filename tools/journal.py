"""All or nothing in a tree: what apply changes is written down first, with the files as they were.

The journal is the hidden folder :data:`FOLDER` in the tree's root. It comes into being
whole, by a rename, before the first file changes; its marker ``complete`` comes after
the last. Whatever an apply or a revert that was killed leaves behind, :func:`rollback`
brings the tree back.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TYPE_CHECKING

from tools import disk
from tools.checkout import LABEL


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FOLDER = f".{LABEL}"
_BEING_WRITTEN = f"{FOLDER}.new"
_BEING_REMOVED = f"{FOLDER}.old"
_NEW_FILE_MODE = 0o644


@dataclass(frozen=True)
class Content:
    """A regular file: two with the same bytes are equal, whatever their modes."""

    sha256: str
    mode: int = field(compare=False)


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


State = Content | Link | None


@dataclass(frozen=True)
class Edit:
    """What a file shall be: ``content``, a link to ``link``, or with neither absent."""

    path: str
    content: bytes | None = None
    link: Path | None = None

    @property
    def state(self) -> State:
        """The state that the edit leads to; its mode is that of a new file."""
        if self.link is not None:
            return Link(str(self.link))
        if self.content is None:
            return None
        return Content(hashlib.sha256(self.content).hexdigest(), _NEW_FILE_MODE)


@dataclass(frozen=True)
class Change:
    """One file's states on both sides of an apply; ``path`` is relative to the tree."""

    path: str
    before: State
    after: State


@dataclass(frozen=True)
class Journal:
    """What one apply does to the tree at ``root``.

    ``folders`` are those it makes, ``compiled`` the .pyc files of touched modules that
    were there, ``record_sha256`` tells whether torch was installed anew since.
    """

    root: Path
    linked: bool
    patches: tuple[str, ...]
    record_sha256: str
    changes: tuple[Change, ...]
    folders: tuple[str, ...]
    compiled: tuple[str, ...]

    @property
    def is_complete(self) -> bool:
        """Whether the apply, or a later revert, was not interrupted."""
        return (self.root / FOLDER / "complete").exists()

    @property
    def paths(self) -> frozenset[str]:
        """The files that the apply changes."""
        return frozenset(change.path for change in self.changes)

    def backup(self, path: str) -> Path:
        """Where the file's former content is kept."""
        return self.root / FOLDER / "before" / path

    def edited(self) -> list[str]:
        """Files that are neither as before nor as apply left them."""
        return [
            change.path
            for change in self.changes
            if state_of(self.root / change.path) not in (change.before, change.after)
        ]


def state_of(path: Path) -> State:
    """The state of a file in a tree, None where there is none."""
    if path.is_symlink():
        return Link(os.readlink(path))
    if not path.exists():
        return None
    mode = stat.S_IMODE(path.stat().st_mode)
    return Content(hashlib.sha256(path.read_bytes()).hexdigest(), mode)


def read_journal(root: Path) -> Journal | None:
    """The journal of the tree at ``root``, None where there is none."""
    file = root / FOLDER / "journal.json"
    if not file.exists():
        return None
    fields = json.loads(file.read_text())
    fields["changes"] = tuple(
        Change(item["path"], _state_from(item["before"]), _state_from(item["after"]))
        for item in fields["changes"]
    )
    for name in ("patches", "folders", "compiled"):
        fields[name] = tuple(fields[name])
    return Journal(root=root, **fields)


def has_leftovers(root: Path) -> bool:
    """Whether a killed apply or revert left parts of a journal that no longer matter."""
    return any((root / name).exists() for name in (_BEING_WRITTEN, _BEING_REMOVED))


def clear_leftovers(root: Path) -> None:
    """Remove them; the tree's own files are not concerned."""
    for name in (_BEING_WRITTEN, _BEING_REMOVED):
        if (root / name).exists():
            disk.remove_folder(root / name)


def commit(
    root: Path,
    edits: Sequence[Edit],
    *,
    linked: bool,
    patches: Sequence[str],
    record_sha256: str,
) -> None:
    """Make the edits; the tree must have no journal."""
    clear_leftovers(root)
    journal = Journal(
        root=root,
        linked=linked,
        patches=tuple(patches),
        record_sha256=record_sha256,
        changes=tuple(_change(root, edit) for edit in edits),
        folders=tuple(_missing_folders(root, edits)),
        compiled=tuple(_compiled(root, [edit.path for edit in edits])),
    )
    _write_down(journal)
    for path in journal.compiled:
        disk.remove(root / path)
    for edit, change in zip(edits, journal.changes, strict=True):
        _make(root, edit, change.after)
    disk.write(root / FOLDER / "complete", b"", _NEW_FILE_MODE)


def rollback(journal: Journal) -> None:
    """Bring every file back to what it was and remove the journal; may be repeated."""
    root = journal.root
    clear_leftovers(root)
    disk.remove(root / FOLDER / "complete")
    for path in _compiled(root, [change.path for change in journal.changes]):
        disk.remove(root / path)
    for change in journal.changes:
        _restore(journal, change.path, was_there=change.before is not None)
    for path in journal.compiled:
        _restore(journal, path, was_there=True)
    remove_folders(journal)
    forget(root)


def forget(root: Path) -> None:
    """Remove the journal and leave the files as they are: nothing can be reverted then."""
    clear_leftovers(root)
    disk.move(root / FOLDER, root / _BEING_REMOVED)
    disk.remove_folder(root / _BEING_REMOVED)


def remove_folders(journal: Journal) -> None:
    """Remove the folders that the apply made, inner ones first, where they are empty."""
    for folder in sorted(journal.folders, key=len, reverse=True):
        disk.remove_empty_folder(journal.root / folder)


def remove_added(journal: Journal, paths: Iterable[str]) -> None:
    """Remove files that the apply added, with what was compiled from them."""
    paths = list(paths)
    for path in [*_compiled(journal.root, paths), *paths]:
        disk.remove(journal.root / path)
    remove_folders(journal)


def _state_from(fields: dict[str, Any] | None) -> State:
    if fields is None:
        return None
    return Link(**fields) if "target" in fields else Content(**fields)


def _change(root: Path, edit: Edit) -> Change:
    before, after = state_of(root / edit.path), edit.state
    if isinstance(after, Content) and isinstance(before, Content):
        after = Content(after.sha256, before.mode)
    return Change(edit.path, before, after)


def _missing_folders(root: Path, edits: Iterable[Edit]) -> list[str]:
    wanted = {
        folder
        for edit in edits
        for parent in Path(edit.path).parents
        for folder in (parent, parent / "__pycache__")
    }
    return sorted(
        folder.as_posix() for folder in wanted if not (root / folder).exists()
    )


def _compiled(root: Path, paths: Iterable[str]) -> list[str]:
    return sorted(
        file.relative_to(root).as_posix()
        for path in map(Path, paths)
        for file in (root / path.parent / "__pycache__").glob(f"{path.stem}.*.pyc")
    )


def _write_down(journal: Journal) -> None:
    folder = journal.root / _BEING_WRITTEN
    disk.make_folder(folder)
    present = [change.path for change in journal.changes if change.before is not None]
    for path in [*present, *journal.compiled]:
        backup = folder / "before" / path
        disk.make_folder(backup.parent)
        disk.copy(journal.root / path, backup)
    fields = dataclasses.asdict(journal)
    fields.pop("root")
    content = json.dumps(fields, indent=1).encode()
    disk.write(folder / "journal.json", content, _NEW_FILE_MODE)
    disk.move(folder, journal.root / FOLDER)


def _make(root: Path, edit: Edit, after: State) -> None:
    target, staged = root / edit.path, root / FOLDER / "staged"
    if after is None:
        disk.remove(target)
        return
    disk.make_folder(target.parent)
    disk.remove(staged)
    if isinstance(after, Link):
        disk.link(staged, after.target)
    else:
        assert edit.content is not None
        disk.write(staged, edit.content, after.mode)
    disk.move(staged, target)


def _restore(journal: Journal, path: str, *, was_there: bool) -> None:
    target, staged = journal.root / path, journal.root / FOLDER / "staged"
    if not was_there:
        disk.remove(target)
        return
    disk.make_folder(target.parent)
    disk.remove(staged)
    disk.copy(journal.backup(path), staged)
    disk.move(staged, target)
