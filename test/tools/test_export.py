# Owner(s): ["module: inductor"]
"""export: mails that git am takes onto the base, the same bytes each time."""

import unittest

from made_up import (
    edited_graph,
    fingerprint,
    GRAPH,
    MadeUpTestCase,
    OUR_FILES,
    SCHEDULER,
    write_files,
)

from tools.apply import apply
from tools.export import export
from tools.problems import Refused
from tools.trees import Kind


class TestExport(MadeUpTestCase):
    def setUp(self):
        super().setUp()
        self.tree = self.make_tree(Kind.SOURCE)

    def refused(self, tree, destination):
        with self.assertRaises(Refused) as caught:
            export(self.checkout, tree, destination)
        return self.shorten(caught.exception)

    def test_git_am_takes_it(self):
        mails = export(self.checkout, self.tree, self.folder / "mails")
        self.git(self.tree.root, "am", "--keep-non-patch", "--quiet", *map(str, mails))
        log = self.git(
            self.tree.root, "log", "--format=%an %ad %s", "--date=iso", "--reverse"
        )
        self.assertExpectedInline(
            "\n".join(log.splitlines()[1:]),
            """\
rangetune 2026-01-01 00:00:00 +0000 [inductor] Choose custom op implementations for every size of a dynamic dimension
rangetune 2026-01-01 00:00:00 +0000 [inductor] Do graph-first
rangetune 2026-01-01 00:00:00 +0000 [inductor] Do scheduler-hook
rangetune 2026-01-01 00:00:00 +0000 [inductor] Do graph-second""",
        )
        for path, text in OUR_FILES.items():
            self.assertEqual((self.tree.root / path).read_text(), text)
        self.assertEqual(
            (self.tree.root / "test/inductor/test_x.py").read_text(), "ok = 1\n"
        )
        self.assertEqual((self.tree.root / GRAPH).read_text(), edited_graph(3, 33))
        self.assertEqual((self.tree.root / GRAPH).stat().st_mode & 0o777, 0o755)
        self.assertIn("# hook", (self.tree.root / SCHEDULER).read_text())

    def test_the_message_has_reasons_and_trailers(self):
        mails = export(self.checkout, self.tree, self.folder / "mails")
        self.assertExpectedInline(
            mails[1].read_text().partition("\ndiff --git")[0],
            """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: rangetune <rangetune@localhost>
Date: Thu, 1 Jan 2026 00:00:00 +0000
Subject: [PATCH] [inductor] Do graph-first

Why: the choice has to be made late.

Why not a module of ours: the caller is upstream's.

Upstream-Status: Pending
Applies-To: 7.1.0
Remove-When: upstream has the hook
---
 torch/_inductor/graph.py | 2 +-
 1 file changed, 1 insertion(+), 1 deletion(-)
""",
        )

    def test_again_gives_the_same_bytes(self):
        first = [
            file.read_bytes()
            for file in export(self.checkout, self.tree, self.folder / "a")
        ]
        again = [
            file.read_bytes()
            for file in export(self.checkout, self.tree, self.folder / "b")
        ]
        self.assertEqual(first, again)

    def test_from_an_applied_tree_it_is_the_same(self):
        first = [
            file.read_bytes()
            for file in export(self.checkout, self.tree, self.folder / "a")
        ]
        apply(self.checkout, self.tree)
        again = [
            file.read_bytes()
            for file in export(self.checkout, self.tree, self.folder / "b")
        ]
        self.assertEqual(first, again)

    def test_an_author_of_a_patch_is_kept(self):
        self.edit_patch(
            "scheduler-hook", "Subject:", "From: A Person <a@localhost>\nSubject:"
        )
        mails = export(self.checkout, self.tree, self.folder / "mails")
        self.assertIn("From: A Person <a@localhost>\n", mails[2].read_text())

    def test_the_tree_is_not_touched(self):
        before = fingerprint(self.tree.root)
        export(self.checkout, self.tree, self.folder / "mails")
        self.assertEqual(fingerprint(self.tree.root), before)

    def test_a_tree_without_tests(self):
        tree = self.make_tree(Kind.WHEEL)
        self.assertExpectedInline(
            self.refused(tree, self.folder / "mails"),
            """/wheel: expected a PyTorch source checkout at v7.1.0, found an unpacked wheel, which lacks the tests that ours replace; name a source checkout""",
        )

    def test_a_destination_with_patches(self):
        export(self.checkout, self.tree, self.folder / "mails")
        self.assertExpectedInline(
            self.refused(self.tree, self.folder / "mails"),
            """/mails: expected no patches yet, found some; remove them, or name another folder""",
        )

    def test_a_modified_tree(self):
        write_files(self.tree.root, {SCHEDULER: "edited = 1\n"})
        self.assertIn(SCHEDULER, self.refused(self.tree, self.folder / "mails"))

    def test_a_series_with_faults(self):
        self.edit_patch("graph-first", "Status: Pending", "Status: Wanted")
        self.assertIn("Upstream-Status", self.refused(self.tree, self.folder / "mails"))


if __name__ == "__main__":
    unittest.main()
