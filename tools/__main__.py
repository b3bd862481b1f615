"""The command line: ``python -m tools COMMAND --help`` explains each command."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tools.apply import apply, check, revert, status
from tools.checkout import Checkout, this_checkout
from tools.environment import use_base, use_links, use_wheel
from tools.export import export
from tools.git import GitFailed
from tools.lint import lint
from tools.problems import raise_if_any, refuse, Refused
from tools.refresh import rebase, refresh
from tools.trees import detect


def main(arguments: list[str] | None = None, checkout: Checkout | None = None) -> int:
    """Run one command and return the exit status: 1 for a refusal, 0 otherwise."""
    options = _parser().parse_args(arguments)
    try:
        print(options.run(checkout or this_checkout(), options))
    except Refused as refused:
        for problem in refused.problems:
            print(f"error: {problem}", file=sys.stderr)
        return 1
    except (GitFailed, OSError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    return 0


def _apply(checkout: Checkout, options: argparse.Namespace) -> str:
    patches = checkout.series()
    if options.before:
        names = [patch.name for patch in patches]
        before = f"{options.before.removesuffix('.patch')}.patch"
        if before not in names:
            raise refuse(
                "--before",
                expected=f"one of {names}",
                found=options.before,
                remedy="name one",
            )
        patches = patches[: names.index(before)]
    return apply(checkout, detect(options.tree), link=options.link, patches=patches)


def _revert(_checkout: Checkout, options: argparse.Namespace) -> str:
    return revert(detect(options.tree), discard=options.discard)


def _check(checkout: Checkout, options: argparse.Namespace) -> str:
    raise_if_any(lint(checkout))
    if options.tree is None:
        return f"the series is in order: {len(checkout.series())} patches"
    raise_if_any(check(checkout, detect(options.tree), link=options.link))
    return f"apply would succeed: {options.tree}"


def _status(checkout: Checkout, options: argparse.Namespace) -> str:
    return status(checkout, detect(options.tree))


def _refresh(checkout: Checkout, options: argparse.Namespace) -> str:
    tree = detect(options.tree)
    return refresh(checkout, tree, options.patch, new=options.new, base=options.base)


def _rebase(checkout: Checkout, options: argparse.Namespace) -> str:
    return rebase(checkout, detect(options.tree))


def _export(checkout: Checkout, options: argparse.Namespace) -> str:
    written = export(checkout, detect(options.tree), options.destination)
    return "\n".join(str(path) for path in written)


def _use(checkout: Checkout, options: argparse.Namespace) -> str:
    return {"base": use_base, "wheel": use_wheel, "links": use_links}[options.what](
        checkout, options.venv
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: object, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.set_defaults(run=run)
        return added

    added = command("apply", _apply, "patch a tree")
    _add_tree(added)
    _add_link(added)
    added.add_argument(
        "--before",
        metavar="PATCH",
        help="stop before this patch, to make it again by hand",
    )
    added = command("revert", _revert, "bring a tree back to what it was before apply")
    _add_tree(added)
    added.add_argument(
        "--discard", action="store_true", help="drop edits made in patched files"
    )
    added = command(
        "check",
        _check,
        "lint the series; with a tree, list what would keep apply from it",
    )
    _add_tree(added, optional=True)
    _add_link(added)
    _add_tree(command("status", _status, "say what a tree is and how it stands"))
    _add_refresh(
        command("refresh", _refresh, "make a patch again from edits in a patched tree")
    )
    _add_tree(
        command(
            "rebase",
            _rebase,
            "make all patches again for a pristine tree of another base",
        )
    )
    added = command("export", _export, "write the patch set as mails for git am")
    _add_tree(added)
    added.add_argument("destination", type=Path, help="a folder, made if missing")
    added = command(
        "use",
        _use,
        "have an environment run the base, the patched wheel, or this checkout by links",
    )
    added.add_argument("what", choices=("base", "wheel", "links"))
    added.add_argument("venv", type=Path, help="a virtual environment")
    return parser


def _add_tree(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    text = "a PyTorch source checkout, an unpacked wheel, a virtual environment with torch, or its python"
    parser.add_argument("tree", type=Path, nargs="?" if optional else None, help=text)


def _add_link(parser: argparse.ArgumentParser) -> None:
    text = "make our modules links, so that edits in this checkout take effect at once"
    parser.add_argument("--link", action="store_true", help=text)


def _add_refresh(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("patch", help="the patch's name")
    _add_tree(parser)
    parser.add_argument("--new", action="store_true", help="add a patch of that name")
    parser.add_argument(
        "--base",
        type=Path,
        help="a base wheel or pristine tree, for files not patched before",
    )


if __name__ == "__main__":
    sys.exit(main())
