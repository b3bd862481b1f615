# Owner(s): ["module: inductor"]
"""Why a candidate is out, as an error and as text."""

from torch._inductor.test_case import run_tests, TestCase

import torch
from torch._inductor.range_autotune.errors import (
    CandidateError,
    is_out_of_memory,
    NotTunable,
    one_line,
)


class TestOneLine(TestCase):
    def test_one_line(self):
        self.assertEqual(one_line(ValueError("a\nb")), "ValueError: a")
        self.assertEqual(one_line(CandidateError("why\nmore")), "why")
        self.assertEqual(one_line(KeyError()), "KeyError")
        self.assertEqual(one_line(NotTunable("why")), "why")

    def test_one_line_of_torchscript(self):
        @torch.jit.script
        def failing(x: torch.Tensor) -> torch.Tensor:
            return x.view(3)

        with self.assertRaises(RuntimeError) as raised:
            failing(torch.ones(4))
        self.assertIn("shape '[3]' is invalid", one_line(raised.exception))

    def test_one_line_of_an_error_that_says_nothing(self):
        def fail():
            raise AssertionError

        try:
            try:
                fail()
            except AssertionError as e:
                raise RuntimeError("AssertionError: \n  target: f") from e
        except RuntimeError as e:
            self.assertRegex(
                one_line(e),
                r"^RuntimeError: AssertionError in fail \(test_range_autotune_errors.py:\d+\)$",
            )


class TestOutOfMemory(TestCase):
    def test_errors(self):
        self.assertTrue(is_out_of_memory(MemoryError()))
        self.assertTrue(is_out_of_memory(torch.OutOfMemoryError("too much")))
        self.assertFalse(is_out_of_memory(RuntimeError("broken")))

    def test_of_the_cpu(self):
        with self.assertRaises(RuntimeError) as caught:
            torch.empty(2**60, dtype=torch.int8)
        self.assertTrue(is_out_of_memory(caught.exception))


if __name__ == "__main__":
    run_tests()
