"""What apply would do to a tree, worked out without touching it: edits, or reasons not to."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.git import GitFailed, Scratch
from tools.journal import Edit, Journal, state_of
from tools.patches import ABSENT, blob_id, FileChange, Patch
from tools.problems import Problem
from tools.trees import Kind, Tree


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tools.checkout import Checkout

Files = dict[str, bytes | None]

_PRISTINE = (
    "use a pristine tree (`python -m tools revert TREE`, or install the base anew)"
)


@dataclass(frozen=True)
class Plan:
    """The edits that patch a tree, and the problems that forbid them."""

    edits: tuple[Edit, ...]
    patches: tuple[str, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class View:
    """A tree as it was before its journal, and without files a former torch left there."""

    root: Path
    journal: Journal | None = None
    hidden: frozenset[str] = frozenset()

    def read(self, path: str) -> bytes | None:
        """The file's bytes, None where there is none."""
        if path in self.hidden:
            return None
        file = self.root / path
        if self.journal and path in self.journal.paths:
            file = self.journal.backup(path)
        return file.read_bytes() if file.exists() else None


def as_text(content: bytes | None) -> bytes | None:
    r"""The content with ``\n`` line ends: Windows wheels have ``\r\n`` in all their files."""
    if content and content.count(b"\r\n") == content.count(b"\n"):
        return content.replace(b"\r\n", b"\n")
    return content


def with_line_ends_of(original: bytes | None, content: bytes | None) -> bytes | None:
    r"""``content``, which has ``\n`` line ends, with those of ``original``."""
    if content is None or as_text(original) == original:
        return content
    return content.replace(b"\n", b"\r\n")


def text_sha256(content: bytes | None) -> str:
    r"""SHA-256 of a file with ``\n`` line ends, empty for none."""
    text = as_text(content)
    return hashlib.sha256(text).hexdigest() if text is not None else ""


def make_plan(
    checkout: Checkout, tree: Tree, view: View, *, link: bool, patches: Sequence[Patch]
) -> Plan:
    """Work out an apply of our modules and of ``patches`` to the tree that ``view`` shows."""
    if tree.is_from_patched_wheel:
        return _plan_over_wheel(checkout, tree, view, link=link, patches=patches)
    versions = tuple(tree.version_problems(checkout.base))
    if versions:  # every file would differ: one clear reason is enough
        return Plan((), (), versions)
    paths = sorted({change.path for patch in patches for change in patch.changes})
    files = {path: view.read(path) for path in paths}
    states, problems = play(patches, files)
    edits = [
        Edit(path, with_line_ends_of(files[path], content))
        for path, content in states[-1].items()
    ]
    owned = tuple(_owned_problems(checkout, view))
    return Plan(
        edits=(*edits, *_owned_edits(checkout, link=link)),
        patches=tuple(patch.name for patch in patches),
        problems=(*owned, *problems),
    )


def play(
    patches: Iterable[Patch], files: Mapping[str, bytes | None]
) -> tuple[list[Files], list[Problem]]:
    r"""Apply patches one after the other to ``files``, strictly.

    Returns the files' states (``\n`` line ends): before the first patch, after it, and so on;
    and a problem for each file that is not what a patch expects, once for each file.
    """
    current: Files = {path: as_text(content) for path, content in files.items()}
    states, problems, spoilt = [dict(current)], list[Problem](), set[str]()
    with Scratch() as scratch:
        scratch.write(current)
        for patch in patches:
            paths = {change.path for change in patch.changes}
            found = [] if paths & spoilt else list(_play_one(scratch, patch, current))
            problems += found
            if found or paths & spoilt:
                spoilt |= paths
            states.append(dict(current))
    return states, problems


def _play_one(scratch: Scratch, patch: Patch, current: Files) -> Iterator[Problem]:
    unlike = [
        change
        for change in patch.changes
        if blob_id(current[change.path]) != change.before
    ]
    if unlike:
        yield from (
            _unlike_base(patch, change, current[change.path]) for change in unlike
        )
        return
    try:
        scratch.apply_strictly(patch.diff)
    except GitFailed as failure:
        yield _does_not_apply(patch, str(failure))
        return
    for change in patch.changes:
        current[change.path] = scratch.read(change.path)
        if blob_id(current[change.path]) != change.after:
            yield _does_not_apply(
                patch, f"{change.path} comes out unlike its index line"
            )


def _unlike_base(patch: Patch, change: FileChange, content: bytes | None) -> Problem:
    expected = (
        f"git blob {change.before}" if change.before != ABSENT else "no such file"
    )
    found = f"git blob {blob_id(content)}" if content is not None else "no such file"
    if blob_id(content) == change.after:
        found = f"the file as {patch.name} leaves it (the tree is patched already)"
    return Problem(
        change.path,
        f"the file that {patch.name} is made for ({expected})",
        found,
        _PRISTINE,
    )


def _does_not_apply(patch: Patch, reason: str) -> Problem:
    return Problem(
        patch.name,
        expected="hunks that apply without offset or fuzz",
        found=reason,
        remedy=f"make it again: `python -m tools refresh {patch.name} TREE`",
    )


def _owned_edits(checkout: Checkout, *, link: bool) -> Iterator[Edit]:
    for path, ours in checkout.owned_modules().items():
        yield Edit(path, link=ours) if link else Edit(path, content=ours.read_bytes())


def _owned_problems(checkout: Checkout, view: View) -> Iterator[Problem]:
    replaces = checkout.base.replaces
    for path in checkout.owned_modules():
        digest = text_sha256(view.read(path))
        if path in replaces and digest != replaces[path]:
            yield Problem(
                path,
                expected=f"the base's module (sha256 {replaces[path]})",
                found=f"sha256 {digest}" if digest else "no such file",
                remedy=_PRISTINE,
            )
        elif path not in replaces and digest:
            yield Problem(
                path,
                expected="no such file, as base.toml does not list it",
                found=f"sha256 {digest}",
                remedy=f"{_PRISTINE}; if ours replaces a module of the base, list it in base.toml",
            )


def _plan_over_wheel(
    checkout: Checkout, tree: Tree, view: View, *, link: bool, patches: Sequence[Patch]
) -> Plan:
    """Links instead of the modules that an installed patched wheel brought."""
    if not link or tree.kind is not Kind.INSTALLED:
        found = f"version {tree.version}, from a patched wheel"
        return Plan(
            (),
            (),
            (Problem(str(tree.root), "a tree not yet patched", found, _PRISTINE),),
        )
    modules: dict[str, str] = tree.manifest.get("modules", {})
    removed = [path for path in modules if path not in checkout.owned_modules()]
    edits = (*(Edit(path) for path in removed), *_owned_edits(checkout, link=True))
    problems = (
        *_unlike_series(patches, tree.manifest.get("patched", {}), view),
        *_unlike_manifest(modules, view),
    )
    return Plan(edits, tuple(patch.name for patch in patches), problems)


def patched_files(patches: Iterable[Patch]) -> dict[str, str]:
    """The upstream files that the patches change, with the git blobs that come out."""
    return {change.path: change.after for patch in patches for change in patch.changes}


def _unlike_series(
    patches: Sequence[Patch], in_wheel: Mapping[str, str], view: View
) -> Iterator[Problem]:
    wanted = patched_files(patches)
    for path in sorted(wanted.keys() | in_wheel.keys()):
        if blob_id(as_text(view.read(path))) != wanted.get(path):
            yield Problem(
                path,
                expected=f"the file as this series leaves it ({wanted.get(path, 'unpatched')})",
                found="another: the wheel was made from another series, or the file was edited",
                remedy="install a wheel made from this checkout, or the base, first",
            )


def _unlike_manifest(modules: Mapping[str, str], view: View) -> Iterator[Problem]:
    for path, digest in modules.items():
        found = text_sha256(view.read(path))
        if found != digest:
            yield Problem(
                path,
                expected=f"the patched wheel's module (sha256 {digest})",
                found=f"sha256 {found}" if found else "no such file",
                remedy="install the wheel, or the base, anew",
            )


def left_by_former_torch(tree: Tree, journal: Journal) -> frozenset[str]:
    """Files that a journal's apply added and that a reinstall of torch left in place."""
    recorded = tree.recorded_files()
    return frozenset(
        change.path
        for change in journal.changes
        if change.before is None
        and change.path not in recorded
        and state_of(tree.root / change.path) == change.after
    )
