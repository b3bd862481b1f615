# Owner(s): ["module: inductor"]
"""Times as values: how they follow from samples."""

from torch._inductor.test_case import run_tests, TestCase

from torch._inductor.range_autotune.times import Timing, timing_of, usual_timing_of


class TestSamples(TestCase):
    def test_more_samples_make_a_time_more_certain(self):
        few, many = ([1.0 + 0.5 * i / n for i in range(n)] for n in (5, 50))
        times = [timing_of(samples) for samples in (few, many)]
        self.assertEqual([round(time.error, 6) for time in times], [0.1, 0.01])

    def test_the_usual_time_is_the_lower_quartile(self):
        samples = [1.0, 2.0, 3.0, 4.0, 5.0]
        self.assertEqual(timing_of(samples), Timing(1.0, 1.0))
        self.assertEqual(usual_timing_of(samples), Timing(2.0, 0.5))
        self.assertEqual(usual_timing_of([2.0]), Timing(2.0))
        self.assertEqual(usual_timing_of([0.0, 0.0]), Timing(0.0))

    def test_what_is_slow_now_and_then_is_certain_where_it_is_not(self):
        samples = [1.0] * 4 + [2.0] * 3
        self.assertEqual(timing_of(samples), Timing(1.0))
        self.assertEqual(timing_of([2.0, 1.0]), Timing(1.0, 1.0))
        self.assertEqual(timing_of([2.0]), Timing(2.0))
        self.assertEqual(timing_of([0.0, 0.0]), Timing(0.0))


if __name__ == "__main__":
    run_tests()
