"""apply, revert, check and status: the plan meets the journal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tools.journal import (
    clear_leftovers,
    commit,
    forget,
    has_leftovers,
    Journal,
    read_journal,
    remove_added,
    rollback,
)
from tools.plan import left_by_former_torch, make_plan, Plan, View
from tools.problems import Problem, raise_if_any, refuse, Refused


if TYPE_CHECKING:
    from collections.abc import Sequence

    from tools.checkout import Checkout
    from tools.patches import Patch
    from tools.trees import Tree


@dataclass(frozen=True)
class Standing:
    """How a tree stands: its journal, and whether that speaks of a torch since replaced."""

    tree: Tree
    journal: Journal | None

    @property
    def is_stale(self) -> bool:
        """Whether torch was installed anew over the journal's tree."""
        journal = self.journal
        return (
            journal is not None and journal.record_sha256 != self.tree.record_sha256()
        )

    @property
    def is_applied(self) -> bool:
        """Whether an apply was finished and still holds."""
        return (
            self.journal is not None and self.journal.is_complete and not self.is_stale
        )

    @property
    def is_interrupted(self) -> bool:
        """Whether an apply or a revert was killed on the way."""
        if self.journal is None:
            return has_leftovers(self.tree.root)
        return not self.journal.is_complete and not self.is_stale

    def view(self) -> View:
        """The tree as it was before any apply."""
        if self.journal is None:
            return View(self.tree.root)
        if self.is_stale:
            return View(
                self.tree.root, hidden=left_by_former_torch(self.tree, self.journal)
            )
        return View(self.tree.root, self.journal)


def standing(tree: Tree) -> Standing:
    """How the tree stands now."""
    return Standing(tree, read_journal(tree.root))


def apply(
    checkout: Checkout,
    tree: Tree,
    *,
    link: bool = False,
    patches: Sequence[Patch] | None = None,
) -> str:
    """Patch the tree and say so; with ``link`` our modules become links to this checkout.

    ``patches`` are the series unless given. Raises Refused, with the tree as it was,
    if anything is not as it must be. An apply that was interrupted is done anew, one
    with ``link`` that was done before is brought up to date.
    """
    now = standing(tree)
    if now.is_applied and not (link and now.journal and now.journal.linked):
        raise _already_applied(tree)
    patches = checkout.series() if patches is None else patches
    plan = make_plan(checkout, tree, now.view(), link=link, patches=patches)
    raise_if_any(plan.problems)
    if now.is_applied and now.journal and _says_the_same(now.journal, plan):
        return f"up to date: {_what(plan)}, linked into {tree.root}"
    undo(now)
    commit(
        tree.root,
        plan.edits,
        linked=link,
        patches=plan.patches,
        record_sha256=tree.record_sha256(),
    )
    return f"{'linked' if link else 'applied'}: {_what(plan)}, in {tree.root}"


def revert(tree: Tree, *, discard: bool = False) -> str:
    """Bring the tree back to what it was before apply, byte for byte, and say so.

    Raises Refused if patched files were edited since, unless ``discard`` is given.
    """
    now = standing(tree)
    if now.journal is None and tree.is_from_patched_wheel:
        raise refuse(
            tree.root,
            expected="a tree patched by `python -m tools apply`",
            found=f"version {tree.version}, from a patched wheel",
            remedy="install the base's wheel over it: pip install --force-reinstall --no-deps",
        )
    undo(now, discard=discard)
    if now.journal is None:
        return f"nothing to revert in {tree.root}"
    return f"reverted: {tree.root}"


def undo(now: Standing, *, discard: bool = False) -> None:
    """Take back whatever apply did, finished or not, to this torch or to a former one."""
    journal = now.journal
    if journal is None:
        clear_leftovers(now.tree.root)
    elif now.is_stale:
        remove_added(journal, left_by_former_torch(now.tree, journal))
        forget(now.tree.root)
    else:
        if not discard:
            raise_if_any(_edited(path) for path in journal.edited())
        rollback(journal)


def check(checkout: Checkout, tree: Tree, *, link: bool = False) -> tuple[Problem, ...]:
    """All reasons for which apply would be refused; touches nothing."""
    now = standing(tree)
    if now.is_applied and not (link and now.journal and now.journal.linked):
        return _already_applied(tree).problems
    try:
        series = checkout.series()
        return make_plan(checkout, tree, now.view(), link=link, patches=series).problems
    except Refused as refused:
        return refused.problems


def status(checkout: Checkout, tree: Tree) -> str:
    """A few lines on what the tree is, how it stands, and each patch."""
    now = standing(tree)
    lines = [
        f"{tree.kind.value}: {tree.root}",
        f"version: {tree.version} (this series is for {checkout.base.version})",
        f"state: {_state(checkout, now)}",
        *(
            f"edited since: {path}"
            for path in (now.journal.edited() if now.is_applied and now.journal else ())
        ),
        f"our modules: {len(checkout.owned_modules())}, {len(checkout.base.replaces)} in place of the base's",
        *_patch_lines(checkout, now),
    ]
    return "\n".join(lines)


def _state(checkout: Checkout, now: Standing) -> str:
    if now.is_interrupted:
        return "interrupted; repeat the apply, or revert"
    if now.is_applied and now.journal:
        base = "a patched wheel" if now.tree.is_from_patched_wheel else "the base"
        return f"linked over {base}" if now.journal.linked else "applied"
    if now.tree.is_from_patched_wheel:
        return "from a patched wheel"
    problems = check(checkout, now.tree)
    return f"modified, or not the base: {problems[0]}" if problems else "pristine"


def _patch_lines(checkout: Checkout, now: Standing) -> list[str]:
    series = [patch.name for patch in checkout.series()]
    in_tree = now.journal.patches if now.is_applied and now.journal else ()
    if now.tree.is_from_patched_wheel:
        in_tree = tuple(now.tree.manifest.get("patches", ()))
    lines = [
        f"  {'applied    ' if name in in_tree else 'not applied'}  {name}"
        for name in series
    ]
    dropped = [
        f"  applied      {name} (no longer in the series)"
        for name in in_tree
        if name not in series
    ]
    return [f"patches: {len(series)}", *lines, *dropped]


def _says_the_same(journal: Journal, plan: Plan) -> bool:
    done = {change.path: change.after for change in journal.changes}
    return done == {edit.path: edit.state for edit in plan.edits}


def _what(plan: Plan) -> str:
    modules = sum(1 for edit in plan.edits if edit.link or edit.content is not None)
    return f"{len(plan.patches)} patches, {modules} files"


def _already_applied(tree: Tree) -> Refused:
    return refuse(
        tree.root,
        expected="a tree not yet patched",
        found="one that apply has patched",
        remedy="`python -m tools revert TREE` first",
    )


def _edited(path: str) -> Problem:
    return Problem(
        path,
        expected="the file as apply left it",
        found="one edited since",
        remedy="`python -m tools refresh PATCH TREE` makes a patch of the edits, "
        "`python -m tools revert --discard TREE` drops them",
    )
