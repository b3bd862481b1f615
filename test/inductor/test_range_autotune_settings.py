# Owner(s): ["module: inductor"]
"""What Inductor's config says, checked."""

from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from torch._inductor import config
from torch._inductor.range_autotune.settings import time_limit_s


@instantiate_parametrized_tests
class TestTimeLimit(TestCase):
    def test_default(self):
        self.assertEqual(time_limit_s(), 600.0)

    @parametrize("value", (None, 5, 0.5))
    def test_good_values(self, value):
        with config.patch(custom_op_candidate_time_limit_s=value):
            self.assertEqual(time_limit_s(), value)

    @parametrize("value", (0, -1.0, float("nan"), float("inf"), True, "5"))
    def test_bad_values(self, value):
        with (
            config.patch(custom_op_candidate_time_limit_s=value),
            self.assertRaisesRegex(ValueError, f"limit, got {value!r}$"),
        ):
            time_limit_s()

    def test_message(self):
        with (
            config.patch(custom_op_candidate_time_limit_s=-1),
            self.assertRaises(ValueError) as caught,
        ):
            time_limit_s()
        self.assertExpectedInline(
            str(caught.exception),
            """torch._inductor.config.custom_op_candidate_time_limit_s must be a positive number of seconds, or None for no limit, got -1""",
        )


if __name__ == "__main__":
    run_tests()
