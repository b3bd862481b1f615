# Owner(s): ["module: inductor"]
"""What is known of the values that sizes can have."""

import sympy
from range_autotune_testing import SiteTestCase
from torch._inductor.test_case import run_tests
from torch._inductor.virtualized import V
from torch.utils._sympy.functions import FloorDiv

from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.sizes.guards import is_about_index_width
from torch._inductor.range_autotune.sizes.size_conditions import size_bounds


class TestBounds(SiteTestCase):
    def test_unknown(self):
        self.assertExpectedInline(str(size_bounds(self.s0)), """[2, inf)""")
        self.assertExpectedInline(str(size_bounds(2 * self.s0 + 5)), """[9, inf)""")

    def test_declared(self):
        bounded = self.symbol("bounded", 32, (8, 64))
        self.assertExpectedInline(str(size_bounds(bounded)), """[8, 65)""")
        self.assertExpectedInline(str(size_bounds(2 * bounded + 1)), """[17, 130)""")

    def test_guarded(self):
        self.guard(sympy.Le(self.s0, 128))
        self.assertExpectedInline(str(size_bounds(self.s0)), """[2, 129)""")

    def test_where_indices_need_more_bits(self):
        """As behind the code of a forward pass, which has 32 bits for them."""
        V.graph.sizevars.check_leq(self.s0, 2**31 - 1)
        known = V.graph.sizevars.shape_env.bound_sympy(self.s0)
        self.assertEqual(known.upper, 2**31 - 1)
        self.assertExpectedInline(str(size_bounds(self.s0)), """[2, inf)""")
        self.assertExpectedInline(str(size_bounds(2 * self.s0 + 5)), """[9, inf)""")
        self.guard(sympy.Le(self.s0, 4096))
        self.assertExpectedInline(str(size_bounds(self.s0)), """[2, 4097)""")

    def test_static(self):
        self.assertEqual(size_bounds(sympy.Integer(7)), DimRange(7, 8))
        self.assertEqual(size_bounds(sympy.Integer(0)), DimRange(0, 1))

    def test_never_negative(self):
        self.assertEqual(size_bounds(self.s0 - 50).start, 0)

    def test_which_conditions_are_about_the_width_of_indices(self):
        for parts, offset in ((1, 0), (3, 0), (64, 0), (2000, 0), (1, 8), (1, -8)):
            limit = (2**31 - 1 + offset) // parts
            self.assertTrue(is_about_index_width(self.s0 <= limit))
            self.assertTrue(is_about_index_width(limit > 8 * self.s0 - 64))
        self.assertFalse(is_about_index_width(self.s0 <= 100_000))
        self.assertFalse(is_about_index_width(sympy.Eq(self.s0, 2**21)))
        # The next power of two is shifted by 32 bits on the way, too.
        self.assertFalse(is_about_index_width(FloorDiv(self.s0, 2**32) + self.s0 > 16))


if __name__ == "__main__":
    run_tests()
