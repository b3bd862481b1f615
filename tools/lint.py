"""Rules for the series and its patches; every answer says what to do."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

from tools.patches import ABSENT, parse_patch, Patch, series_names, TRAILERS
from tools.problems import Problem


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tools.checkout import BaseRelease, Checkout

STATUSES = ("Pending", "Submitted", "Inappropriate")
REASONS = ("Why:", "Why not a module of ours:")
UNFILLED = "TODO"

_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*\.patch")
_TRAILING_SPACE = re.compile(rb"^\+.*[ \t\r]+$", re.MULTILINE)


def lint(checkout: Checkout) -> list[Problem]:
    """All that is wrong with the series, in the order of the series; touches nothing."""
    folder = checkout.patches_folder
    names = series_names(folder)
    files = {path.name: path for path in sorted(folder.glob("*.patch"))}
    patches = [
        parse_patch(name, files[name].read_bytes())
        for name in dict.fromkeys(names)
        if name in files
    ]
    owned = checkout.owned_modules().keys() | checkout.base.replaces.keys()
    return [
        *_series_problems(names, list(files)),
        *_replaced_problems(checkout),
        *_subject_problems(patches),
        *(
            problem
            for patch in patches
            for problem in _header_problems(patch, checkout.base)
        ),
        *(problem for patch in patches for problem in _diff_problems(patch, owned)),
        *_order_problems(patches),
    ]


def _series_problems(names: Sequence[str], files: Sequence[str]) -> Iterator[Problem]:
    where = "torch_patches/series"
    for name, count in Counter(names).items():
        if count > 1:
            yield Problem(where, f"{name} once", f"it {count} times", "drop the others")
        if name not in files:
            yield Problem(
                where,
                f"a file for its entry {name}",
                "none",
                "add it or drop the entry",
            )
        if not _SLUG.fullmatch(name):
            remedy = "rename it; order comes from the series alone"
            yield Problem(where, "names like words-with-dashes.patch", name, remedy)
    for name in files:
        if name not in names:
            yield Problem(
                name,
                "an entry in torch_patches/series",
                "none",
                "add it or remove the file",
            )


def _replaced_problems(checkout: Checkout) -> Iterator[Problem]:
    for path in checkout.base.replaces.keys() - checkout.owned_modules().keys():
        remedy = "write it, or drop its line from [replaces]"
        yield Problem("base.toml", f"a module of ours at {path}", "none", remedy)


def _subject_problems(patches: Sequence[Patch]) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for patch in patches:
        if patch.subject and patch.subject in first:
            remedy = "say what each does, or make them one"
            yield Problem(
                patch.name,
                "a subject of its own",
                f"that of {first[patch.subject]}",
                remedy,
            )
        first.setdefault(patch.subject, patch.name)


def _header_problems(patch: Patch, base: BaseRelease) -> Iterator[Problem]:
    def missing(what: str) -> Problem:
        return Problem(patch.name, what, "none", "write it into the header, before ---")

    if not patch.subject:
        yield missing("a line 'Subject: ...'")
    for reason in REASONS:
        if not any(_says(paragraph, reason) for paragraph in patch.paragraphs):
            yield missing(f"a paragraph '{reason} ...'")
    for trailer in TRAILERS:
        if not patch.trailers.get(trailer):
            yield missing(f"a trailer '{trailer}: ...'")
    if UNFILLED in patch.header:
        yield Problem(patch.name, "a header without gaps", UNFILLED, "fill it in")
    yield from _trailer_problems(patch, base)


def _says(paragraph: str, reason: str) -> bool:
    return paragraph.startswith(reason) and bool(paragraph.removeprefix(reason).strip())


def _trailer_problems(patch: Patch, base: BaseRelease) -> Iterator[Problem]:
    upstream_status = patch.trailers.get("Upstream-Status", "")
    if upstream_status and upstream_status.split()[0] not in STATUSES:
        expected = f"Upstream-Status: {'|'.join(STATUSES)}"
        yield Problem(
            patch.name,
            expected,
            upstream_status,
            "use one of them first, details behind it",
        )
    versions = re.split(r"[\s,]+", patch.trailers.get("Applies-To", ""))
    if any(versions) and base.version not in versions:
        expected = f"Applies-To: with {base.version}, the version of base.toml"
        yield Problem(
            patch.name,
            expected,
            " ".join(versions),
            "add that version once it applies there",
        )


def _diff_problems(patch: Patch, owned: set[str]) -> Iterator[Problem]:
    if not patch.changes:
        yield Problem(patch.name, "a git diff", "none", "drop the patch, or refresh it")
    for path, count in Counter(change.path for change in patch.changes).items():
        if count > 1:
            yield Problem(patch.name, f"{path} once", f"it {count} times", "refresh it")
    for change in patch.changes:
        for expected, found, remedy in _change_problems(change.path, owned):
            yield Problem(patch.name, expected, found, remedy)
        if change.extended or ABSENT in (change.before, change.after):
            remedy = (
                "edit the file in place; a new one is a module of ours, under torch/"
            )
            yield Problem(
                patch.name,
                f"{change.path} edited",
                "it added, removed, renamed or with another mode",
                remedy,
            )
        elif not change.before:
            yield Problem(
                patch.name, f"a full index line for {change.path}", "none", "refresh it"
            )
    for line in _TRAILING_SPACE.findall(patch.diff):
        found = repr(line.decode(errors="replace"))
        yield Problem(
            patch.name,
            "added lines without trailing whitespace",
            found,
            "strip it and refresh",
        )


def _change_problems(path: str, owned: set[str]) -> Iterator[tuple[str, str, str]]:
    if path in owned:
        yield "only files that are not ours", path, f"put it into {path} here"
    if not path.startswith("torch/") or not path.endswith(".py"):
        yield (
            "only Python files under torch/",
            path,
            "a wheel takes no others; leave it out",
        )


def _order_problems(patches: Sequence[Patch]) -> Iterator[Problem]:
    latest: dict[str, tuple[str, str]] = {}
    for patch in patches:
        for change in patch.changes:
            name, blob = latest.get(change.path, ("", change.before))
            if blob != change.before:
                expected = f"{change.path} as {name} leaves it ({blob})"
                yield Problem(
                    patch.name,
                    expected,
                    change.before,
                    "mend the order in the series, or refresh it",
                )
            latest[change.path] = (patch.name, change.after)
