# Owner(s): ["module: inductor"]
"""apply, revert, check and status on made-up trees of every kind."""

import shutil
import unittest

from made_up import (
    BASE_FILES,
    edited_graph,
    fingerprint,
    GRAPH,
    JOINED,
    MadeUpTestCase,
    OUR_FILES,
    REPLACED,
    SCHEDULER,
    write_files,
)

from tools.apply import apply, check, revert, standing, status
from tools.problems import Refused
from tools.trees import detect, Kind


class TestApplyAndRevert(MadeUpTestCase):
    def test_every_kind_is_patched_and_comes_back_byte_for_byte(self):
        for kind in Kind:
            for link in (False, True):
                with self.subTest(kind=kind, link=link):
                    tree = self.make_tree(kind, name=f"{kind.name}{link}")
                    before = fingerprint(tree.root)
                    apply(self.checkout, tree, link=link)
                    self.assertEqual(
                        (tree.root / GRAPH).read_text(), edited_graph(3, 33)
                    )
                    self.assertEqual((tree.root / GRAPH).stat().st_mode & 0o777, 0o755)
                    self.assertIn("# hook", (tree.root / SCHEDULER).read_text())
                    for path, text in OUR_FILES.items():
                        self.assertEqual((tree.root / path).read_text(), text)
                        self.assertEqual((tree.root / path).is_symlink(), link)
                    revert(tree)
                    self.assertEqual(fingerprint(tree.root), before)

    def test_compiled_files_go_and_come_back(self):
        tree = self.make_tree()
        old = {"torch/_inductor/kernel/__pycache__/custom_op.cpython-311.pyc": "old"}
        write_files(tree.root, old)
        before = fingerprint(tree.root)
        apply(self.checkout, tree, link=True)
        for path in old:
            self.assertFalse((tree.root / path).exists())
        compiled = dict.fromkeys(old, "new")
        compiled[
            "torch/_inductor/range_autotune/__pycache__/ranges.cpython-311.pyc"
        ] = "new"
        write_files(tree.root, compiled)
        revert(tree)
        self.assertEqual(fingerprint(tree.root), before)

    def test_an_empty_or_missing_series_applies_our_modules_alone(self):
        shutil.rmtree(self.checkout.patches_folder)
        tree = self.make_tree()
        said = apply(self.checkout, tree)
        self.assertExpectedInline(
            self.shorten(said), """applied: 0 patches, 3 files, in /installed"""
        )
        self.assertEqual((tree.root / GRAPH).read_text(), BASE_FILES[GRAPH])

    def test_windows_line_ends_are_kept(self):
        tree = self.make_tree(crlf=True)
        apply(self.checkout, tree)
        content = (tree.root / GRAPH).read_bytes().decode()
        self.assertEqual(content, edited_graph(3, 33).replace("\n", "\r\n"))

    def test_reverting_a_pristine_tree_changes_nothing(self):
        tree = self.make_tree()
        before = fingerprint(tree.root)
        self.assertExpectedInline(
            self.shorten(revert(tree)), """nothing to revert in /installed"""
        )
        self.assertEqual(fingerprint(tree.root), before)

    def test_git_sees_no_change_after_a_revert_of_a_source_checkout(self):
        tree = self.make_tree(Kind.SOURCE)
        apply(self.checkout, tree)
        self.assertIn(GRAPH, self.git(tree.root, "status", "--short"))
        revert(tree)
        self.assertEqual(self.git(tree.root, "status", "--short"), "")


class TestRefusals(MadeUpTestCase):
    """Each leaves the tree as it was; the message names file, expectation and remedy."""

    def refused(self, tree, **options):
        before = fingerprint(tree.root)
        with self.assertRaises(Refused) as caught:
            apply(self.checkout, tree, **options)
        self.assertEqual(fingerprint(tree.root), before)
        return self.shorten(caught.exception)

    def test_another_version(self):
        self.assertExpectedInline(
            self.refused(self.make_tree(version="7.2.0+cu130")),
            """\
/installed/torch/version.py: expected version 7.1.0, found 7.2.0+cu130; use a tree of v7.1.0, or move the series to that release (README: move to another base)
/installed/torch-7.2.0+cu130.dist-info/METADATA: expected version 7.1.0, found 7.2.0+cu130; use a tree of v7.1.0, or move the series to that release (README: move to another base)""",
        )

    def test_a_source_checkout_of_another_version(self):
        tree = self.make_tree(Kind.SOURCE)
        write_files(tree.root, {"version.txt": "7.2.0a0\n"})
        self.assertExpectedInline(
            self.refused(detect(tree.root)),
            """/source/version.txt: expected version 7.1.0, found 7.2.0a0; use a tree of v7.1.0, or move the series to that release (README: move to another base)""",
        )

    def test_a_tree_patched_already(self):
        tree = self.make_tree()
        apply(self.checkout, tree)
        self.assertExpectedInline(
            self.refused(tree),
            """/installed: expected a tree not yet patched, found one that apply has patched; `python -m tools revert TREE` first""",
        )
        self.assertExpectedInline(
            self.refused(tree, link=True),
            """/installed: expected a tree not yet patched, found one that apply has patched; `python -m tools revert TREE` first""",
        )

    def test_a_tree_patched_by_other_means(self):
        tree = self.make_tree()
        write_files(tree.root, {GRAPH: edited_graph(3)})
        self.assertExpectedInline(
            self.refused(tree),
            """torch/_inductor/graph.py: expected the file that graph-first.patch is made for (git blob 2f454efce7a007180cc6847731bdc399ef9fe9ab), found the file as graph-first.patch leaves it (the tree is patched already); use a pristine tree (`python -m tools revert TREE`, or install the base anew)""",
        )

    def test_a_tree_from_a_patched_wheel(self):
        tree = self.as_patched_wheel_install(self.make_tree())
        self.assertExpectedInline(
            self.refused(tree),
            """/installed: expected a tree not yet patched, found version 7.1.0+cpu.rangetune.1, from a patched wheel; use a pristine tree (`python -m tools revert TREE`, or install the base anew)""",
        )

    def test_an_edited_upstream_file(self):
        tree = self.make_tree()
        write_files(tree.root, {GRAPH: BASE_FILES[GRAPH] + "edited = 1\n"})
        self.assertExpectedInline(
            self.refused(tree),
            """torch/_inductor/graph.py: expected the file that graph-first.patch is made for (git blob 2f454efce7a007180cc6847731bdc399ef9fe9ab), found git blob 37ce104de1fd7248d29bd4850043731d67760f7b; use a pristine tree (`python -m tools revert TREE`, or install the base anew)""",
        )

    def test_an_edited_module_that_ours_replaces(self):
        tree = self.make_tree()
        write_files(tree.root, {REPLACED: "whose = 'somebody's'\n"})
        self.assertExpectedInline(
            self.refused(tree),
            """torch/_inductor/kernel/custom_op.py: expected the base's module (sha256 d6d45db70f935748561990e6ef1a612d3d516475a760302469d827cbdf84946e), found sha256 417cd05f2bd8a3ee171f7ebd9a79bdada5edcad3acff38dfe07764333e4ba7e8; use a pristine tree (`python -m tools revert TREE`, or install the base anew)""",
        )

    def test_a_module_of_the_base_that_is_not_listed_as_replaced(self):
        tree = self.make_tree()
        write_files(tree.root, {JOINED: "there = 'already'\n"})
        self.assertExpectedInline(
            self.refused(tree),
            """torch/_inductor/range_autotune/ranges.py: expected no such file, as base.toml does not list it, found sha256 c17f0f1d79813cda3f4c38307f702bf89322e734189f4a971d5ddb32a2f252a3; use a pristine tree (`python -m tools revert TREE`, or install the base anew); if ours replaces a module of the base, list it in base.toml""",
        )

    def test_a_missing_file(self):
        tree = self.make_tree()
        (tree.root / SCHEDULER).unlink()
        self.assertExpectedInline(
            self.refused(tree),
            """torch/_inductor/scheduler.py: expected the file that scheduler-hook.patch is made for (git blob 9f0f7c77771ff5476147cf422def3d8a558d0a37), found no such file; use a pristine tree (`python -m tools revert TREE`, or install the base anew)""",
        )

    def test_hunks_at_other_lines(self):
        self.edit_patch("graph-first", "@@ -1,6 +1,6 @@", "@@ -4,6 +4,6 @@")
        self.assertExpectedInline(
            self.refused(self.make_tree()),
            """graph-first.patch: expected hunks that apply without offset or fuzz, found Hunk #1 succeeded at 1 (offset -3 lines); make it again: `python -m tools refresh graph-first.patch TREE`""",
        )

    def test_hunks_with_other_context(self):
        self.edit_patch("graph-first", " graph_5 = 5", " graph_5 = 50")
        self.assertExpectedInline(
            self.refused(self.make_tree()),
            """graph-first.patch: expected hunks that apply without offset or fuzz, found patch failed: torch/_inductor/graph.py:1; torch/_inductor/graph.py: patch does not apply; make it again: `python -m tools refresh graph-first.patch TREE`""",
        )

    def test_all_problems_are_listed_and_the_exit_status_is_1(self):
        tree = self.make_tree()
        write_files(tree.root, {GRAPH: "edited = 1\n", SCHEDULER: "edited = 2\n"})
        code, out, err = self.run_tools("check", tree.root)
        self.assertEqual((code, out), (1, ""))
        self.assertExpectedInline(
            err,
            """\
error: torch/_inductor/graph.py: expected the file that graph-first.patch is made for (git blob 2f454efce7a007180cc6847731bdc399ef9fe9ab), found git blob 6d6bc5831c9249effeeb49f2b2ba166da2ca81d4; use a pristine tree (`python -m tools revert TREE`, or install the base anew)
error: torch/_inductor/scheduler.py: expected the file that scheduler-hook.patch is made for (git blob 9f0f7c77771ff5476147cf422def3d8a558d0a37), found git blob a4eec917e20995748204cc8d7f21040e276240d0; use a pristine tree (`python -m tools revert TREE`, or install the base anew)""",
        )


class TestRevertRefusals(MadeUpTestCase):
    def test_edits_since_apply(self):
        tree = self.make_tree()
        pristine = fingerprint(tree.root)
        apply(self.checkout, tree)
        write_files(tree.root, {GRAPH: "edited = 1\n"})
        with self.assertRaises(Refused) as caught:
            revert(tree)
        self.assertEqual((tree.root / GRAPH).read_text(), "edited = 1\n")
        self.assertExpectedInline(
            self.shorten(caught.exception),
            """torch/_inductor/graph.py: expected the file as apply left it, found one edited since; `python -m tools refresh PATCH TREE` makes a patch of the edits, `python -m tools revert --discard TREE` drops them""",
        )
        revert(tree, discard=True)
        self.assertEqual(fingerprint(tree.root), pristine)

    def test_a_patched_wheel(self):
        tree = self.as_patched_wheel_install(self.make_tree())
        with self.assertRaises(Refused) as caught:
            revert(tree)
        self.assertExpectedInline(
            self.shorten(caught.exception),
            """/installed: expected a tree patched by `python -m tools apply`, found version 7.1.0+cpu.rangetune.1, from a patched wheel; install the base's wheel over it: pip install --force-reinstall --no-deps""",
        )


class TestLinks(MadeUpTestCase):
    def test_linking_again_changes_nothing(self):
        tree = self.make_tree()
        apply(self.checkout, tree, link=True)
        linked = fingerprint(tree.root)
        said = apply(self.checkout, tree, link=True)
        self.assertExpectedInline(
            self.shorten(said),
            """up to date: 3 patches, 5 files, linked into /installed""",
        )
        self.assertEqual(fingerprint(tree.root), linked)

    def test_linking_again_follows_modules_that_came_and_went(self):
        tree = self.make_tree()
        pristine = fingerprint(tree.root)
        apply(self.checkout, tree, link=True)
        (self.checkout.root / JOINED).unlink()
        new = "torch/_inductor/range_autotune/dispatch.py"
        write_files(self.checkout.root, {new: "new = 1\n"})
        apply(self.checkout, tree, link=True)
        self.assertFalse((tree.root / JOINED).is_symlink())
        self.assertEqual((tree.root / new).read_text(), "new = 1\n")
        revert(tree)
        self.assertEqual(fingerprint(tree.root), pristine)

    def test_linking_again_follows_the_series(self):
        tree = self.make_tree()
        apply(self.checkout, tree, link=True)
        (self.checkout.patches_folder / "series").write_text("graph-first.patch\n")
        apply(self.checkout, tree, link=True)
        self.assertEqual((tree.root / GRAPH).read_text(), edited_graph(3))
        self.assertEqual((tree.root / SCHEDULER).read_text(), BASE_FILES[SCHEDULER])

    def test_links_over_a_patched_wheel_and_back(self):
        tree = self.as_patched_wheel_install(self.make_tree())
        (self.checkout.root / JOINED).unlink()
        wheel = fingerprint(tree.root)
        apply(self.checkout, tree, link=True)
        self.assertTrue((tree.root / REPLACED).is_symlink())
        self.assertFalse((tree.root / JOINED).exists())
        apply(self.checkout, tree, link=True)
        revert(tree)
        self.assertEqual(fingerprint(tree.root), wheel)

    def test_links_over_a_wheel_of_another_series_are_refused(self):
        tree = self.as_patched_wheel_install(self.make_tree())
        (self.checkout.patches_folder / "series").write_text("graph-first.patch\n")
        self.assertExpectedInline(
            self.messages(check(self.checkout, tree, link=True)),
            """\
torch/_inductor/graph.py: expected the file as this series leaves it (8221a52b8dd35cd6510a88083cd72e1bda38c872), found another: the wheel was made from another series, or the file was edited; install a wheel made from this checkout, or the base, first
torch/_inductor/scheduler.py: expected the file as this series leaves it (unpatched), found another: the wheel was made from another series, or the file was edited; install a wheel made from this checkout, or the base, first""",
        )

    def test_links_over_a_wheel_with_an_edited_module_are_refused(self):
        tree = self.as_patched_wheel_install(self.make_tree())
        write_files(tree.root, {JOINED: "edited = 1\n"})
        self.assertExpectedInline(
            self.messages(check(self.checkout, tree, link=True)),
            """torch/_inductor/range_autotune/ranges.py: expected the patched wheel's module (sha256 f67558a0993a91a388a3fc88062b7530bef15ccac403aa50ecf36cccac4f6a57), found sha256 897a99300bd2da3689433928a98b835efd6e98f6e1da9e69e36a04dd6897a04e; install the wheel, or the base, anew""",
        )


class TestReinstalledTorch(MadeUpTestCase):
    """pip replaces what RECORD lists and leaves our journal and added modules behind."""

    def reinstall(self, tree):
        shutil.rmtree(tree.dist_info)
        for path in BASE_FILES:
            (tree.root / path).unlink()
        write_files(tree.root, BASE_FILES)
        (tree.root / GRAPH).chmod(0o755)
        self.add_dist_info(tree.root, "7.1.0+cu130")
        write_files(tree.root, {"torch-7.1.0+cu130.dist-info/INSTALLER": "pip\n"})
        write_files(tree.root, {"torch/version.py": "__version__ = '7.1.0+cu130'\n"})
        return detect(tree.root)

    def test_revert_drops_the_journal_and_what_it_added(self):
        tree = self.make_tree()
        apply(self.checkout, tree, link=True)
        tree = self.reinstall(tree)
        self.assertTrue(standing(tree).is_stale)
        revert(tree)
        self.assertEqual(
            {
                path
                for path in fingerprint(tree.root)
                if "rangetune" in path or "range_autotune" in path
            },
            set(),
        )
        self.assertEqual((tree.root / GRAPH).read_text(), BASE_FILES[GRAPH])

    def test_modules_that_a_patched_wheel_brought_since_stay(self):
        tree = self.make_tree()
        apply(self.checkout, tree)
        tree = self.as_patched_wheel_install(tree)
        installed = fingerprint(tree.root)
        revert(tree)
        kept = {path for path in installed if not path.startswith(".rangetune")}
        self.assertEqual(set(fingerprint(tree.root)), kept)

    def test_apply_starts_anew(self):
        tree = self.make_tree()
        apply(self.checkout, tree, link=True)
        tree = self.reinstall(tree)
        apply(self.checkout, tree)
        self.assertFalse((tree.root / JOINED).is_symlink())
        self.assertEqual((tree.root / GRAPH).read_text(), edited_graph(3, 33))


class TestStatus(MadeUpTestCase):
    def status(self, tree):
        return self.shorten(status(self.checkout, tree))

    def test_pristine(self):
        self.assertExpectedInline(
            self.status(self.make_tree(Kind.WHEEL)),
            """\
unpacked wheel: /wheel
version: 7.1.0+cpu (this series is for 7.1.0)
state: pristine
our modules: 3, 1 in place of the base's
patches: 3
  not applied  graph-first.patch
  not applied  scheduler-hook.patch
  not applied  graph-second.patch""",
        )

    def test_applied_in_part_and_edited(self):
        tree = self.make_tree(Kind.SOURCE)
        self.run_tools("apply", tree.root, "--before", "graph-second.patch")
        write_files(tree.root, {GRAPH: "edited = 1\n"})
        self.assertExpectedInline(
            self.status(tree),
            """\
PyTorch source checkout: /source
version: 7.1.0a0 (this series is for 7.1.0)
state: applied
edited since: torch/_inductor/graph.py
our modules: 3, 1 in place of the base's
patches: 3
  applied      graph-first.patch
  applied      scheduler-hook.patch
  not applied  graph-second.patch""",
        )

    def test_linked(self):
        tree = self.make_tree()
        apply(self.checkout, tree, link=True)
        self.assertIn("state: linked over the base", self.status(tree))

    def test_from_a_patched_wheel(self):
        tree = self.as_patched_wheel_install(self.make_tree())
        self.assertExpectedInline(
            self.status(tree),
            """\
installed torch: /installed
version: 7.1.0+cpu.rangetune.1 (this series is for 7.1.0)
state: from a patched wheel
our modules: 3, 1 in place of the base's
patches: 3
  applied      graph-first.patch
  applied      scheduler-hook.patch
  applied      graph-second.patch""",
        )

    def test_modified(self):
        tree = self.make_tree()
        write_files(tree.root, {REPLACED: "edited = 1\n"})
        self.assertIn("state: modified, or not the base", self.status(tree))


if __name__ == "__main__":
    unittest.main()
