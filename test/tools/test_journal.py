# Owner(s): ["module: inductor"]
"""An apply or a revert killed at any step: repeated or reverted, nothing is lost."""

import unittest
from unittest import mock

from made_up import fingerprint, MadeUpTestCase

from tools import disk
from tools.apply import apply, revert, standing, status
from tools.trees import Kind


class Killed(BaseException):
    """Like a signal: no `except Exception` sees it."""


class Interruption:
    """Stands in for disk.about_to; kills at step ``at``, and counts."""

    def __init__(self, at):
        self.at, self.steps = at, 0

    def __call__(self, step, path):
        self.steps += 1
        if self.steps == self.at:
            raise Killed(f"{step} {path}")


def killed_at(at, function, *arguments, **options):
    """Run the function, killed at step ``at``; returns whether it got that far."""
    with mock.patch.object(disk, "about_to", Interruption(at)):
        try:
            function(*arguments, **options)
        except Killed:
            return True
    return False


class TestInterruption(MadeUpTestCase):
    def setUp(self):
        super().setUp()
        self.tree = self.make_tree(Kind.INSTALLED)
        self.pristine = fingerprint(self.tree.root)
        apply(self.checkout, self.tree)
        self.patched = fingerprint(self.tree.root)
        revert(self.tree)

    def at_every_step(self, function, prepare, recover, expected):
        at = 1
        prepare()
        while killed_at(at, function):
            recover()
            self.assertEqual(
                fingerprint(self.tree.root), expected, f"killed at step {at}"
            )
            revert(self.tree)
            prepare()
            at += 1
        self.assertGreater(at, 20)

    def apply(self):
        apply(self.checkout, self.tree)

    def apply_if_needed(self):
        if not standing(self.tree).is_applied:
            self.apply()

    def revert(self):
        revert(self.tree)

    def test_apply_then_revert(self):
        self.at_every_step(self.apply, self.revert, self.revert, self.pristine)

    def test_apply_then_apply(self):
        self.at_every_step(self.apply, self.revert, self.apply, self.patched)

    def test_revert_then_revert(self):
        self.at_every_step(
            self.revert, self.apply_if_needed, self.revert, self.pristine
        )

    def test_revert_then_apply(self):
        self.at_every_step(
            self.revert, self.apply_if_needed, self.apply_if_needed, self.patched
        )

    def test_linking_killed_then_linked_again(self):
        apply(self.checkout, self.tree, link=True)
        linked = fingerprint(self.tree.root)
        revert(self.tree)
        at = 1
        while killed_at(at, apply, self.checkout, self.tree, link=True):
            apply(self.checkout, self.tree, link=True)
            self.assertEqual(fingerprint(self.tree.root), linked)
            revert(self.tree)
            at += 1

    def test_status_tells_an_interrupted_apply(self):
        self.assertTrue(killed_at(30, self.apply))
        self.assertIn(
            "state: interrupted; repeat the apply, or revert",
            status(self.checkout, self.tree),
        )


if __name__ == "__main__":
    unittest.main()
