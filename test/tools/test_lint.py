# Owner(s): ["module: inductor"]
"""Every rule of the series lint, with its exact words."""

import unittest

from made_up import (
    BASE_FILES,
    HEADER,
    MadeUpTestCase,
    REPLACED,
    SCHEDULER,
)

from tools.lint import lint


class TestLint(MadeUpTestCase):
    def lint(self):
        return self.messages(lint(self.checkout))

    def add(self, slug, path, before, after):
        self.add_patch(self.checkout, slug, {path: before}, {path: after})

    def test_a_series_in_order(self):
        self.assertEqual(self.lint(), "")
        self.assertEqual(
            self.run_tools("check"), (0, "the series is in order: 3 patches", "")
        )

    def test_no_series(self):
        for file in self.checkout.patches_folder.iterdir():
            file.unlink()
        self.assertEqual(self.lint(), "")

    def test_entry_without_a_file(self):
        (self.checkout.patches_folder / "scheduler-hook.patch").unlink()
        self.assertExpectedInline(
            self.lint(),
            """torch_patches/series: expected a file for its entry scheduler-hook.patch, found none; add it or drop the entry""",
        )
        self.assertExpectedInline(
            self.run_tools("check")[2],
            """error: torch_patches/series: expected a file for its entry scheduler-hook.patch, found none; add it or drop the entry""",
        )
        tree = self.make_tree()
        self.assertExpectedInline(
            self.run_tools("apply", tree.root)[2],
            """error: torch_patches/series: expected a file for its entry scheduler-hook.patch, found none; add torch_patches/scheduler-hook.patch or drop the entry""",
        )

    def test_file_without_an_entry(self):
        (self.checkout.patches_folder / "series").write_text("graph-first.patch\n")
        self.assertExpectedInline(
            self.lint(),
            """\
graph-second.patch: expected an entry in torch_patches/series, found none; add it or remove the file
scheduler-hook.patch: expected an entry in torch_patches/series, found none; add it or remove the file""",
        )

    def test_entry_twice(self):
        series = self.checkout.patches_folder / "series"
        series.write_text(series.read_text() + "graph-first.patch\n")
        self.assertExpectedInline(
            self.lint(),
            """torch_patches/series: expected graph-first.patch once, found it 2 times; drop the others""",
        )

    def test_name(self):
        self.add("0004_Graph", SCHEDULER, "step = 1\n", "step = 2\n")
        self.assertIn("words-with-dashes.patch", self.lint())
        self.assertExpectedInline(
            self.lint().splitlines()[0],
            """torch_patches/series: expected names like words-with-dashes.patch, found 0004_Graph.patch; rename it; order comes from the series alone""",
        )

    def test_subject(self):
        self.edit_patch("graph-first", "Subject: ", "")
        self.assertExpectedInline(
            self.lint(),
            """graph-first.patch: expected a line 'Subject: ...', found none; write it into the header, before ---""",
        )

    def test_subject_of_another(self):
        self.edit_patch("graph-second", "Do graph-second", "Do graph-first")
        self.assertExpectedInline(
            self.lint(),
            """graph-second.patch: expected a subject of its own, found that of graph-first.patch; say what each does, or make them one""",
        )

    def test_reasons(self):
        self.edit_patch("graph-first", "Why: the choice has to be made late.", "Why:")
        self.edit_patch(
            "graph-first", "Why not a module of ours: the caller", "Anyway: the caller"
        )
        self.assertExpectedInline(
            self.lint(),
            """\
graph-first.patch: expected a paragraph 'Why: ...', found none; write it into the header, before ---
graph-first.patch: expected a paragraph 'Why not a module of ours: ...', found none; write it into the header, before ---""",
        )

    def test_each_trailer(self):
        for line in HEADER.strip().splitlines()[-3:]:
            self.edit_patch("graph-first", line, line.partition(":")[0] + ":")
        self.assertExpectedInline(
            self.lint(),
            """\
graph-first.patch: expected a trailer 'Upstream-Status: ...', found none; write it into the header, before ---
graph-first.patch: expected a trailer 'Applies-To: ...', found none; write it into the header, before ---
graph-first.patch: expected a trailer 'Remove-When: ...', found none; write it into the header, before ---""",
        )

    def test_status(self):
        self.edit_patch("graph-first", "Status: Pending", "Status: Wanted")
        self.edit_patch("graph-second", "Status: Pending", "Status: Submitted (a link)")
        self.assertExpectedInline(
            self.lint(),
            """graph-first.patch: expected Upstream-Status: Pending|Submitted|Inappropriate, found Wanted; use one of them first, details behind it""",
        )

    def test_applies_to(self):
        self.edit_patch("graph-first", "Applies-To: 7.1.0", "Applies-To: 7.0.0, 7.0.1")
        self.edit_patch("graph-second", "Applies-To: 7.1.0", "Applies-To: 7.0.0, 7.1.0")
        self.assertExpectedInline(
            self.lint(),
            """graph-first.patch: expected Applies-To: with 7.1.0, the version of base.toml, found 7.0.0 7.0.1; add that version once it applies there""",
        )

    def test_gaps_of_a_new_header(self):
        self.edit_patch("graph-first", "the choice has to be made late", "TODO")
        self.assertExpectedInline(
            self.lint(),
            """graph-first.patch: expected a header without gaps, found TODO; fill it in""",
        )

    def test_no_diff(self):
        file = self.checkout.patches_folder / "graph-second.patch"
        file.write_text(HEADER.format(subject="Do nothing"))
        self.assertExpectedInline(
            self.lint(),
            """graph-second.patch: expected a git diff, found none; drop the patch, or refresh it""",
        )

    def test_module_of_ours(self):
        self.add("ours", REPLACED, BASE_FILES[REPLACED], "whose = 'both'\n")
        self.assertExpectedInline(
            self.lint(),
            """ours.patch: expected only files that are not ours, found torch/_inductor/kernel/custom_op.py; put it into torch/_inductor/kernel/custom_op.py here""",
        )

    def test_file_that_no_wheel_has(self):
        self.add("cpp", "torch/csrc/x.cpp", "int x;\n", "int y;\n")
        self.add("setup", "setup.py", "x = 1\n", "x = 2\n")
        self.assertExpectedInline(
            self.lint(),
            """\
cpp.patch: expected only Python files under torch/, found torch/csrc/x.cpp; a wheel takes no others; leave it out
setup.patch: expected only Python files under torch/, found setup.py; a wheel takes no others; leave it out""",
        )

    def test_new_file(self):
        self.add_patch(self.checkout, "new", {}, {"torch/_inductor/new.py": "x = 1\n"})
        self.assertExpectedInline(
            self.lint(),
            """new.patch: expected torch/_inductor/new.py edited, found it added, removed, renamed or with another mode; edit the file in place; a new one is a module of ours, under torch/""",
        )

    def test_short_index_line(self):
        file = self.checkout.patches_folder / "scheduler-hook.patch"
        lines = file.read_text().splitlines()
        lines = [
            "index 1234567..89abcde 100644" if line.startswith("index") else line
            for line in lines
        ]
        file.write_text("\n".join(lines) + "\n")
        self.assertExpectedInline(
            self.lint(),
            """scheduler-hook.patch: expected a full index line for torch/_inductor/scheduler.py, found none; refresh it""",
        )

    def test_file_twice_in_a_patch(self):
        file = self.checkout.patches_folder / "scheduler-hook.patch"
        content = file.read_text()
        diff = content[content.index("diff --git") :]
        file.write_text(content + diff)
        self.assertExpectedInline(
            self.lint(),
            """\
scheduler-hook.patch: expected torch/_inductor/scheduler.py once, found it 2 times; refresh it
scheduler-hook.patch: expected torch/_inductor/scheduler.py as scheduler-hook.patch leaves it (614ab6152de9201948d18143856d36cf23c16389), found 9f0f7c77771ff5476147cf422def3d8a558d0a37; mend the order in the series, or refresh it""",
        )

    def test_trailing_whitespace(self):
        self.edit_patch("scheduler-hook", "# hook", "# hook ")
        self.assertExpectedInline(
            self.lint(),
            """scheduler-hook.patch: expected added lines without trailing whitespace, found '+step_9 = 9  # hook '; strip it and refresh""",
        )

    def test_order(self):
        (self.checkout.patches_folder / "series").write_text(
            "graph-second.patch\nscheduler-hook.patch\ngraph-first.patch\n"
        )
        self.assertExpectedInline(
            self.lint(),
            """graph-first.patch: expected torch/_inductor/graph.py as graph-second.patch leaves it (ab4f8412d6c28bd3bd66aa3e78df63e97762f90c), found 2f454efce7a007180cc6847731bdc399ef9fe9ab; mend the order in the series, or refresh it""",
        )

    def test_replaced_module_that_is_not_there(self):
        (self.checkout.root / REPLACED).unlink()
        self.assertExpectedInline(
            self.lint(),
            """base.toml: expected a module of ours at torch/_inductor/kernel/custom_op.py, found none; write it, or drop its line from [replaces]""",
        )

    def test_the_repository_s_own_series(self):
        from tools.checkout import this_checkout

        self.assertEqual([str(problem) for problem in lint(this_checkout())], [])


if __name__ == "__main__":
    unittest.main()
