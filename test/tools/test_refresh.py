# Owner(s): ["module: inductor"]
"""refresh: edits in a tree become patches; rebase: the series moves to another base."""

import unittest

from made_up import (
    BASE_FILES,
    edited_graph,
    fingerprint,
    GRAPH,
    HEADER,
    JOINED,
    MadeUpTestCase,
    SCHEDULER,
    write_files,
)

from tools.apply import apply, check, revert, standing
from tools.lint import lint
from tools.problems import Refused
from tools.refresh import rebase, refresh
from tools.trees import Kind


class RefreshTestCase(MadeUpTestCase):
    def setUp(self):
        super().setUp()
        self.tree = self.make_tree(Kind.SOURCE)
        self.pristine = fingerprint(self.tree.root)

    def patch_text(self, slug):
        return (self.checkout.patches_folder / f"{slug}.patch").read_text()

    def edit(self, path, text):
        write_files(self.tree.root, {path: text})

    def assert_round_trip(self, expected):
        """The tree is applied with ``expected``; revert and apply give the same."""
        for path, text in expected.items():
            self.assertEqual((self.tree.root / path).read_text(), text)
        self.assertTrue(standing(self.tree).is_applied)
        patched = fingerprint(self.tree.root)
        revert(self.tree)
        self.assertEqual(fingerprint(self.tree.root), self.pristine)
        apply(self.checkout, self.tree)
        self.assertEqual(fingerprint(self.tree.root), patched)

    def refused(self, function, *arguments, **options):
        before = fingerprint(self.folder)
        with self.assertRaises(Refused) as caught:
            function(*arguments, **options)
        self.assertEqual(fingerprint(self.folder), before)
        return self.shorten(caught.exception)


class TestRefresh(RefreshTestCase):
    def test_nothing_edited_writes_the_same_bytes(self):
        apply(self.checkout, self.tree)
        before = fingerprint(self.checkout.root)
        for slug in ("graph-first", "scheduler-hook", "graph-second"):
            refresh(self.checkout, self.tree, slug)
        self.assertEqual(fingerprint(self.checkout.root), before)

    def test_the_last_patch(self):
        apply(self.checkout, self.tree)
        edited = edited_graph(3, 33, 37)
        self.edit(GRAPH, edited)
        said = refresh(self.checkout, self.tree, "graph-second")
        self.assertExpectedInline(said, """written: graph-second.patch""")
        self.assertIn("+graph_37 = 37  # patched", self.patch_text("graph-second"))
        header = HEADER.format(subject="Do graph-second")
        self.assertTrue(self.patch_text("graph-second").startswith(header))
        self.assert_round_trip({GRAPH: edited})

    def test_a_patch_between_others_carries_those_behind_it(self):
        apply(self.checkout, self.tree)
        edited = edited_graph(3, 20, 33)
        self.edit(GRAPH, edited)
        refresh(self.checkout, self.tree, "graph-first.patch")
        self.assertIn("+graph_20 = 20  # patched", self.patch_text("graph-first"))
        self.assertNotIn("+graph_20", self.patch_text("graph-second"))
        self.assertEqual(lint(self.checkout), [])
        self.assert_round_trip({GRAPH: edited})

    def test_edits_that_a_later_patch_overlaps(self):
        apply(self.checkout, self.tree)
        self.edit(GRAPH, edited_graph(3, 33).replace("33  # patched", "33  # edited"))
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, self.tree, "graph-first"),
            """graph-first.patch: expected edits that later patches leave alone, found edits in lines that a later patch changes too; refresh that later patch, or `revert TREE`, `apply --before graph-first.patch TREE` and edit there""",
        )

    def test_edits_that_undo_a_later_patch(self):
        apply(self.checkout, self.tree)
        self.edit(GRAPH, edited_graph(3))
        said = self.refused(refresh, self.checkout, self.tree, "graph-first")
        self.assertIn("refresh that later patch", said)

    def test_a_patch_emptied_to_be_dropped(self):
        apply(self.checkout, self.tree)
        edited = edited_graph(33)
        self.edit(GRAPH, edited)
        refresh(self.checkout, self.tree, "graph-first")
        self.assertExpectedInline(
            self.messages(lint(self.checkout)),
            """graph-first.patch: expected a git diff, found none; drop the patch, or refresh it""",
        )
        self.assert_round_trip({GRAPH: edited})
        (self.checkout.patches_folder / "graph-first.patch").unlink()
        series = self.checkout.patches_folder / "series"
        series.write_text(series.read_text().replace("graph-first.patch\n", ""))
        self.assertEqual(lint(self.checkout), [])
        revert(self.tree)
        apply(self.checkout, self.tree)
        self.assert_round_trip({GRAPH: edited})

    def test_a_file_that_no_patch_touched_before(self):
        (self.checkout.patches_folder / "series").write_text("graph-first.patch\n")
        apply(self.checkout, self.tree)
        edited = BASE_FILES[SCHEDULER].replace("= 2\n", "= 2  # late\n")
        self.edit(SCHEDULER, edited)
        refresh(self.checkout, self.tree, "graph-first")
        self.assert_round_trip({SCHEDULER: edited, GRAPH: edited_graph(3)})

    def test_a_new_patch(self):
        apply(self.checkout, self.tree)
        edited = edited_graph(3, 20, 33)
        self.edit(GRAPH, edited)
        refresh(self.checkout, self.tree, "late-choice", new=True)
        series = (self.checkout.patches_folder / "series").read_text().splitlines()
        self.assertEqual(series[-1], "late-choice.patch")
        self.assertExpectedInline(
            self.patch_text("late-choice"),
            """\
Subject: TODO

Why: TODO

Why not a module of ours: TODO

Upstream-Status: Pending
Applies-To: 7.1.0
Remove-When: TODO
---
diff --git a/torch/_inductor/graph.py b/torch/_inductor/graph.py
index ab4f8412d6c28bd3bd66aa3e78df63e97762f90c..3c95aef67fda0f45e98fe1344dc69516898bd222 100644
--- a/torch/_inductor/graph.py
+++ b/torch/_inductor/graph.py
@@ -17,7 +17,7 @@ graph_16 = 16
 graph_17 = 17
 graph_18 = 18
 graph_19 = 19
-graph_20 = 20
+graph_20 = 20  # patched
 graph_21 = 21
 graph_22 = 22
 graph_23 = 23
""",
        )
        self.assertExpectedInline(
            self.messages(lint(self.checkout)),
            """late-choice.patch: expected a header without gaps, found TODO; fill it in""",
        )
        self.assert_round_trip({GRAPH: edited})

    def test_an_installed_torch_and_links(self):
        self.tree = self.make_tree(Kind.INSTALLED)
        self.pristine = fingerprint(self.tree.root)
        (self.checkout.patches_folder / "series").write_text("graph-first.patch\n")
        apply(self.checkout, self.tree, link=True)
        edited = BASE_FILES[SCHEDULER] + "late = 1\n"
        self.edit(SCHEDULER, edited)
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, self.tree, "late", new=True),
            """/installed: expected edits only in files that the series touches already, found edits in others, whose former content is not known; name the base's wheel, or a pristine tree: --base PATH""",
        )
        base = self.make_tree(Kind.WHEEL).root
        refresh(self.checkout, self.tree, "late", new=True, base=base)
        self.assertTrue((self.tree.root / JOINED).is_symlink())
        self.assertEqual((self.tree.root / SCHEDULER).read_text(), edited)
        revert(self.tree)
        self.assertEqual(fingerprint(self.tree.root), self.pristine)

    def test_a_patch_made_again_by_hand(self):
        self.run_tools("apply", self.tree.root, "--before", "graph-second.patch")
        edited = edited_graph(3, 35)
        self.edit(GRAPH, edited)
        code, _out, err = self.run_tools("refresh", "graph-second", self.tree.root)
        self.assertEqual((code, err), (0, ""))
        self.assertIn("+graph_35 = 35  # patched", self.patch_text("graph-second"))
        self.assertNotIn("graph_33 = 33  # patched", self.patch_text("graph-second"))
        self.assert_round_trip({GRAPH: edited})


class TestRefreshRefusals(RefreshTestCase):
    def test_a_tree_that_is_not_applied(self):
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, self.tree, "graph-first"),
            """/source: expected a tree that `python -m tools apply` has patched over the base, found one without a finished apply; apply the series to a pristine tree, edit that one, and refresh from it""",
        )

    def test_a_tree_from_a_patched_wheel(self):
        tree = self.as_patched_wheel_install(self.make_tree())
        apply(self.checkout, tree, link=True)
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, tree, "graph-first"),
            """/installed: expected a tree that `python -m tools apply` has patched over the base, found one from a patched wheel; apply the series to a pristine tree, edit that one, and refresh from it""",
        )

    def test_a_new_patch_without_edits(self):
        apply(self.checkout, self.tree)
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, self.tree, "late", new=True),
            """/source: expected edits for a new patch, found none; edit the tree first""",
        )

    def test_a_new_patch_of_an_old_name(self):
        apply(self.checkout, self.tree)
        self.edit(GRAPH, "edited = 1\n")
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, self.tree, "graph-first", new=True),
            """graph-first.patch: expected a new name, found a patch of that name; leave --new out""",
        )

    def test_an_unknown_name(self):
        apply(self.checkout, self.tree)
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, self.tree, "late"),
            """late.patch: expected an applied patch, or the one behind the last applied, found the end of the series; name one of these, or add one with --new""",
        )

    def test_our_module_edited_in_the_tree(self):
        apply(self.checkout, self.tree)
        self.edit(JOINED, "edited = 1\n")
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, self.tree, "graph-first"),
            """torch/_inductor/range_autotune/ranges.py: expected edits to our modules in this checkout, found edits in the tree; carry them over to torch/_inductor/range_autotune/ranges.py here and take them back in the tree""",
        )

    def test_a_series_changed_since_the_apply(self):
        apply(self.checkout, self.tree)
        (self.checkout.patches_folder / "graph-second.patch").unlink()
        self.add_patch(
            self.checkout,
            "graph-second",
            {GRAPH: edited_graph(3)},
            {GRAPH: edited_graph(3, 32)},
        )
        (self.checkout.patches_folder / "series").write_text(
            "graph-first.patch\nscheduler-hook.patch\ngraph-second.patch\n"
        )
        self.assertExpectedInline(
            self.refused(refresh, self.checkout, self.tree, "graph-second"),
            """torch/_inductor/graph.py: expected the series as it was applied, found one changed since; keep the edits elsewhere, `revert --discard TREE`, apply, and edit again""",
        )


class TestRebase(RefreshTestCase):
    def new_base(self, graph):
        (self.checkout.root / "base.toml").write_text(
            (self.checkout.root / "base.toml").read_text().replace("7.1.0", "7.2.0")
        )
        self.tree = self.make_tree(Kind.WHEEL, version="7.2.0", name="new base")
        self.edit(GRAPH, graph)
        self.pristine = fingerprint(self.tree.root)

    def test_moved_lines(self):
        self.new_base("moved = 1\n" * 7 + BASE_FILES[GRAPH])
        self.assertTrue(check(self.checkout, self.tree))
        self.assertExpectedInline(
            rebase(self.checkout, self.tree),
            """\
graph-first.patch: Hunk #1 succeeded at 8 (offset 7 lines)
scheduler-hook.patch: applies as it is
graph-second.patch: Hunk #1 succeeded at 37 (offset 7 lines)""",
        )
        self.assertEqual(check(self.checkout, self.tree), ())
        self.assertEqual(fingerprint(self.tree.root), self.pristine)
        apply(self.checkout, self.tree)
        self.assert_round_trip({GRAPH: "moved = 1\n" * 7 + edited_graph(3, 33)})

    def test_other_context(self):
        self.new_base(BASE_FILES[GRAPH].replace("graph_1 =", "other_1 ="))
        self.assertExpectedInline(
            rebase(self.checkout, self.tree),
            """\
graph-first.patch: Hunk #1 succeeded at 2 (offset 2 lines)
Context reduced to (1/1) to apply fragment at 2
scheduler-hook.patch: applies as it is
graph-second.patch: applies as it is""",
        )
        self.assertEqual(check(self.checkout, self.tree), ())

    def test_a_patch_that_does_not_apply_is_named_and_can_be_made_by_hand(self):
        self.new_base(BASE_FILES[GRAPH].replace("graph_33 = 33", "renamed = 33"))
        with self.assertRaises(Refused) as caught:
            rebase(self.checkout, self.tree)
        self.assertExpectedInline(
            self.shorten(caught.exception),
            """graph-second.patch: expected a patch that applies to the new base, if loosely, found patch failed: torch/_inductor/graph.py:30; torch/_inductor/graph.py: patch does not apply; `apply --before graph-second.patch TREE`, edit the tree, `refresh graph-second.patch TREE`, `revert TREE`, and this again""",
        )
        self.run_tools("apply", self.tree.root, "--before", "graph-second.patch")
        edited = (
            (self.tree.root / GRAPH).read_text().replace("renamed = 33", "renamed = 34")
        )
        self.edit(GRAPH, edited)
        refresh(self.checkout, self.tree, "graph-second")
        self.assert_round_trip({GRAPH: edited})

    def test_a_tree_of_another_version(self):
        (self.checkout.root / "base.toml").write_text(
            (self.checkout.root / "base.toml").read_text().replace("7.1.0", "7.2.0")
        )
        self.assertExpectedInline(
            self.refused(rebase, self.checkout, self.tree),
            """/source/version.txt: expected version 7.2.0, found 7.1.0a0; use a tree of v7.2.0, or move the series to that release (README: move to another base)""",
        )


if __name__ == "__main__":
    unittest.main()
