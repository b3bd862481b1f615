# Owner(s): ["module: inductor"]
"""Patch files: what is read from them, and that writing gives the same bytes."""

import subprocess
import unittest

from made_up import edited_graph, GRAPH, MadeUpTestCase

from tools.patches import ABSENT, blob_id, parse_patch, series_names


class TestPatches(MadeUpTestCase):
    def test_fields(self):
        patch = self.checkout.series()[0]
        self.assertEqual(patch.subject, "[inductor] Do graph-first")
        self.assertEqual(patch.author, "")
        self.assertEqual(
            patch.paragraphs,
            (
                "Why: the choice has to be made late.",
                "Why not a module of ours: the caller is upstream's.",
            ),
        )
        self.assertEqual(
            patch.trailers,
            {
                "Upstream-Status": "Pending",
                "Applies-To": "7.1.0",
                "Remove-When": "upstream has the hook",
            },
        )
        (change,) = patch.changes
        self.assertEqual(change.path, GRAPH)
        self.assertEqual(change.before, blob_id(edited_graph().encode()))
        self.assertEqual(change.after, blob_id(edited_graph(3).encode()))

    def test_writing_what_was_read_gives_the_same_bytes(self):
        for patch in self.checkout.series():
            content = (self.checkout.patches_folder / patch.name).read_bytes()
            self.assertEqual(patch.to_bytes(), content)

    def test_malformed_files_are_parsed_for_lint_to_judge(self):
        for content in (b"", b"Subject: x\n", b"diff --git nonsense\n@@", b"\xff\xfe"):
            parse_patch("x.patch", content)

    def test_blob_id_is_git_s(self):
        said = subprocess.run(
            ["git", "hash-object", "--stdin"], input=b"x = 1\n", capture_output=True
        )
        self.assertEqual(blob_id(b"x = 1\n"), said.stdout.decode().strip())
        self.assertEqual(blob_id(None), ABSENT)

    def test_the_series_may_have_comments_and_may_be_missing(self):
        series = self.checkout.patches_folder / "series"
        series.write_text("# the order\n\n  a.patch  \nb.patch\n")
        self.assertEqual(
            series_names(self.checkout.patches_folder), ["a.patch", "b.patch"]
        )
        self.assertEqual(series_names(self.folder), [])


if __name__ == "__main__":
    unittest.main()
