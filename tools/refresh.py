"""Patches made again: from edits in a patched tree, or for another base.

What a patch does is never written by hand: apply the series to a tree, edit the tree's
upstream files, and ``refresh`` tells the edits to the patch that is named.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools import disk
from tools.apply import apply, Standing, standing, undo
from tools.git import GitFailed, Scratch
from tools.journal import Edit
from tools.lint import UNFILLED
from tools.patches import Patch, series_names
from tools.plan import as_text, Files, play, with_line_ends_of
from tools.pristine import edited_files, reader_for_edits
from tools.problems import Problem, raise_if_any, refuse, Refused


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tools.checkout import Checkout
    from tools.journal import Journal
    from tools.trees import Tree

_TEMPLATE = f"""Subject: {UNFILLED}

Why: {UNFILLED}

Why not a module of ours: {UNFILLED}

Upstream-Status: Pending
Applies-To: {{version}}
Remove-When: {UNFILLED}"""


@dataclass(frozen=True)
class Edited:
    """An applied tree with edits: the applied patches, the states that they lead through, the tree now.

    ``unrecorded`` are the files, with their former content, that no applied patch touches.
    """

    patches: tuple[Patch, ...]
    states: tuple[Files, ...]
    target: Files
    unrecorded: Files


def refresh(
    checkout: Checkout,
    tree: Tree,
    name: str,
    *,
    new: bool = False,
    base: Path | None = None,
) -> str:
    """Tell the edits in ``tree`` to the patch ``name`` and say which files were written.

    ``new`` adds a patch of that name behind the applied ones. A patch between others
    is merged with those behind it, which are made again. ``base`` is a base wheel or
    pristine tree, for edits in files that no patch touches yet: a git checkout needs
    none, and elsewhere the wheel in build/ serves. Afterwards the tree is patched with the series as it is then.
    Raises Refused, before anything is written, where that cannot be done.
    """
    name = name if name.endswith(".patch") else f"{name}.patch"
    now = _applied(tree)
    edited = _read_edits(checkout, now, base)
    before, written = _remake(checkout, edited, name, new=new)
    if edited.target == edited.states[-1] and name not in [
        p.name for p in edited.patches
    ]:
        raise _no_edits(tree)
    _write(checkout, written)
    if new:
        _enter(checkout, name, after=[patch.name for patch in edited.patches])
    _reseat(checkout, now, edited.unrecorded, (*before, *written))
    return "written: " + ", ".join(patch.name for patch in written)


def rebase(checkout: Checkout, tree: Tree) -> str:
    """Make every patch again for the base that ``tree`` is, with offsets and fuzz allowed.

    The tree is left as it is. A patch that does not apply at all stops it, with those
    before it written: README says how to go on.
    """
    raise_if_any(tree.version_problems(checkout.base))
    view, notes = standing(tree).view(), list[str]()
    series = checkout.series()
    paths = sorted({change.path for patch in series for change in patch.changes})
    with Scratch() as scratch:
        scratch.write({path: as_text(view.read(path)) for path in paths})
        before = scratch.snapshot()
        for patch in series:
            notes.append(_applied_loosely(scratch, patch))
            after = scratch.snapshot()
            _write(checkout, [patch.with_diff(scratch.diff(before, after))])
            before = after
    return "\n".join(notes) or "no patches"


def _applied_loosely(scratch: Scratch, patch: Patch) -> str:
    try:
        moved = scratch.apply_loosely(patch.diff)
    except GitFailed as failure:
        raise refuse(
            patch.name,
            expected="a patch that applies to the new base, if loosely",
            found=str(failure),
            remedy=f"`apply --before {patch.name} TREE`, edit the tree, `refresh {patch.name} TREE`, "
            "`revert TREE`, and this again",
        ) from failure
    return f"{patch.name}: {moved or 'applies as it is'}"


def _applied(tree: Tree) -> Standing:
    now = standing(tree)
    if now.is_applied and not tree.is_from_patched_wheel:
        return now
    raise refuse(
        tree.root,
        expected="a tree that `python -m tools apply` has patched over the base",
        found="one from a patched wheel"
        if tree.is_from_patched_wheel
        else "one without a finished apply",
        remedy="apply the series to a pristine tree, edit that one, and refresh from it",
    )


def _read_edits(checkout: Checkout, now: Standing, base: Path | None) -> Edited:
    tree, journal, view = now.tree, now.journal, now.view()
    assert journal is not None
    owned = checkout.owned_modules().keys()
    raise_if_any(_is_ours(path) for path in journal.edited() if path in owned)
    patches = tuple(
        patch for patch in checkout.series() if patch.name in journal.patches
    )
    beyond = sorted(edited_files(tree) - journal.paths - owned)
    former = reader_for_edits(checkout, tree, base) if beyond else view.read
    unrecorded: Files = {path: former(path) for path in beyond}
    touched = {change.path for patch in patches for change in patch.changes}
    files = {path: view.read(path) for path in sorted(touched)} | unrecorded
    states, problems = play(patches, files)
    raise_if_any(problems)
    raise_if_any(_changed_since(journal, patches, files, states[-1]))
    target = {path: _text(tree.root / path) for path in files}
    return Edited(patches, tuple(states), target, unrecorded)


def _changed_since(
    journal: Journal, patches: Sequence[Patch], files: Files, final: Files
) -> Iterator[Problem]:
    done = {change.path: change.after for change in journal.changes}
    for path in sorted({change.path for patch in patches for change in patch.changes}):
        now = Edit(path, with_line_ends_of(files[path], final[path])).state
        if done.get(path) != now:
            yield Problem(
                path,
                expected="the series as it was applied",
                found="one changed since",
                remedy="keep the edits elsewhere, `revert --discard TREE`, apply, and edit again",
            )


def _remake(
    checkout: Checkout, edited: Edited, name: str, *, new: bool
) -> tuple[tuple[Patch, ...], tuple[Patch, ...]]:
    """The patches to keep, and those to write anew behind them."""
    names = [patch.name for patch in edited.patches]
    if name in names and not new:
        index = names.index(name)
        states = _merged_states(edited, index)
        return edited.patches[:index], _with_diffs(edited.patches[index:], states)
    patch = _template(checkout, name) if new else _next(checkout, name, len(names))
    return edited.patches, _with_diffs([patch], [edited.states[-1], edited.target])


def _merged_states(edited: Edited, index: int) -> list[Files]:
    """States from before patch ``index`` to the end, with the edits told to that patch."""
    old, states = edited.states, [edited.states[index]]
    name = edited.patches[index].name
    with Scratch() as scratch:
        states.append(_merge(scratch, name, old[-1], old[index + 1], edited.target))
        for before, after in zip(old[index + 1 :], old[index + 2 :], strict=False):
            states.append(_merge(scratch, name, before, states[-1], after))
    if states[-1] != edited.target:
        raise _overlaps(name)
    return states


def _merge(
    scratch: Scratch, name: str, base: Files, ours: Files, theirs: Files
) -> Files:
    try:
        return {
            path: scratch.merge(
                base[path] or b"", ours[path] or b"", theirs[path] or b""
            )
            for path in base
        }
    except GitFailed as failure:
        raise _overlaps(name) from failure


def _with_diffs(patches: Sequence[Patch], states: Sequence[Files]) -> tuple[Patch, ...]:
    with Scratch() as scratch:
        snapshots = []
        for state in states:
            scratch.write(state)
            snapshots.append(scratch.snapshot())
        steps = zip(patches, snapshots, snapshots[1:], strict=False)
        return tuple(
            patch.with_diff(scratch.diff(old, new)) for patch, old, new in steps
        )


def _template(checkout: Checkout, name: str) -> Patch:
    if (checkout.patches_folder / name).exists() or name in series_names(
        checkout.patches_folder
    ):
        raise refuse(
            name,
            expected="a new name",
            found="a patch of that name",
            remedy="leave --new out",
        )
    return Patch(name, _TEMPLATE.format(version=checkout.base.version), b"", ())


def _next(checkout: Checkout, name: str, applied: int) -> Patch:
    following = checkout.series()[applied : applied + 1]
    if [patch.name for patch in following] != [name]:
        raise refuse(
            name,
            expected="an applied patch, or the one behind the last applied",
            found=following[0].name if following else "the end of the series",
            remedy="name one of these, or add one with --new",
        )
    return following[0]


def _write(checkout: Checkout, patches: Sequence[Patch]) -> None:
    for patch in patches:
        (checkout.patches_folder / patch.name).write_bytes(patch.to_bytes())


def _enter(checkout: Checkout, name: str, after: list[str]) -> None:
    series = checkout.patches_folder / "series"
    lines = series.read_text().splitlines() if series.exists() else []
    places = [number for number, line in enumerate(lines) if line.strip() in after]
    lines.insert(places[-1] + 1 if places else len(lines), name)
    series.write_text("\n".join(lines) + "\n")


def _reseat(
    checkout: Checkout, now: Standing, unrecorded: Files, patches: Sequence[Patch]
) -> None:
    """Patch the tree anew; the edits are in the patches by now."""
    root = now.tree.root
    assert now.journal is not None
    for path, content in unrecorded.items():
        mode = (root / path).stat().st_mode & 0o777
        staged = root / f"{path}.former"
        disk.write(staged, content or b"", mode)
        disk.move(staged, root / path)
    undo(now, discard=True)
    apply(checkout, now.tree, link=now.journal.linked, patches=patches)


def _text(file: Path) -> bytes | None:
    return as_text(file.read_bytes()) if file.exists() else None


def _is_ours(path: str) -> Problem:
    return Problem(
        path,
        expected="edits to our modules in this checkout",
        found="edits in the tree",
        remedy=f"carry them over to {path} here and take them back in the tree",
    )


def _overlaps(name: str) -> Refused:
    return refuse(
        name,
        expected="edits that later patches leave alone",
        found="edits in lines that a later patch changes too",
        remedy=f"refresh that later patch, or `revert TREE`, `apply --before {name} TREE` and edit there",
    )


def _no_edits(tree: Tree) -> Refused:
    return refuse(
        tree.root,
        expected="edits for a new patch",
        found="none",
        remedy="edit the tree first",
    )
