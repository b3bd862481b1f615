"""The patch set as commits that ``git am`` takes onto the base's tag, for a PR upstream."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tools.apply import standing
from tools.git import run_git, Scratch
from tools.lint import lint
from tools.plan import as_text, make_plan
from tools.problems import raise_if_any, refuse
from tools.trees import Kind


if TYPE_CHECKING:
    from pathlib import Path

    from tools.checkout import Checkout
    from tools.patches import Patch
    from tools.trees import Tree

DEFAULT_AUTHOR = "rangetune <rangetune@localhost>"

_OWNED_MESSAGE = """[inductor] Choose custom op implementations for every size of a dynamic dimension

Modules of the rangetune patch set for PyTorch {version}, with their tests. They come
first because the hooks of the following commits call into them.
"""


def export(checkout: Checkout, tree: Tree, destination: Path) -> list[Path]:
    """Write one mail for our modules and tests and one for each patch; returns the files.

    ``tree`` is a pristine source checkout of the base. Exporting again gives the same
    bytes. Raises Refused where lint or check find fault, or where ``destination`` has
    patches already.
    """
    raise_if_any(lint(checkout))
    _must_be_pristine_source(checkout, tree)
    if any(destination.glob("*.patch")):
        raise refuse(
            destination,
            expected="no patches yet",
            found="some",
            remedy="remove them, or name another folder",
        )
    series = checkout.series()
    ours = checkout.owned_modules() | checkout.inductor_tests()
    touched = {change.path for patch in series for change in patch.changes}
    view = standing(tree).view()
    with Scratch() as scratch:
        scratch.write(
            {path: as_text(view.read(path)) for path in sorted(touched | ours.keys())}
        )
        scratch.commit("the base", DEFAULT_AUTHOR)
        scratch.write({path: file.read_bytes() for path, file in ours.items()})
        scratch.commit(
            _OWNED_MESSAGE.format(version=checkout.base.version), DEFAULT_AUTHOR
        )
        for patch in series:
            scratch.apply_strictly(patch.diff)
            scratch.commit(_message(patch), patch.author or DEFAULT_AUTHOR)
        root = (
            run_git("rev-list", "--max-parents=0", "HEAD", cwd=scratch.root)
            .decode()
            .strip()
        )
        return scratch.format_patches(root, destination, signature=checkout.base.tag)


def _must_be_pristine_source(checkout: Checkout, tree: Tree) -> None:
    if tree.kind is not Kind.SOURCE:
        raise refuse(
            tree.root,
            expected=f"a PyTorch source checkout at {checkout.base.tag}",
            found=f"an {tree.kind.value}, which lacks the tests that ours replace",
            remedy="name a source checkout",
        )
    view = standing(tree).view()
    plan = make_plan(checkout, tree, view, link=False, patches=checkout.series())
    raise_if_any(plan.problems)


def _message(patch: Patch) -> str:
    trailers = "\n".join(f"{name}: {text}" for name, text in patch.trailers.items())
    return "\n\n".join([patch.subject, *patch.paragraphs, trailers]) + "\n"
