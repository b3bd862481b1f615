"""What several test files of ``torch._inductor.range_autotune`` share."""

from unittest import mock

from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import TestCase

import torch
from torch._inductor.kernel.custom_op import register_custom_op_autotuning
from torch._inductor.range_autotune.registration import Registration


class OpTestCase(TestCase):
    """Tests with ops and registrations of their own."""

    def setUp(self):
        super().setUp()
        scope = torch.library._scoped_library("range_autotune_test", "FRAGMENT")
        self._library = self.enterContext(scope)
        self.enterContext(mock.patch.dict(user_lowerings))

    def define_op(self, schema: str) -> torch._ops.OpOverload:
        """An op without kernels from a schema such as ``f(Tensor x) -> Tensor``."""
        name = self._library.define(schema)
        return getattr(torch.ops.range_autotune_test, name).default

    def register(self, op, *args, **kwargs) -> Registration:
        """What ``register_custom_op_autotuning`` registered."""
        register_custom_op_autotuning(op, *args, **kwargs)
        return user_lowerings[getattr(op, "_opoverload", op)].registration

    def assert_raises_inline(self, error: type[Exception], call, expected: str) -> None:
        """``call`` raises exactly ``error`` with the expected text, written in place."""
        with self.assertRaises(error) as caught:
            call()
        self.assertIs(type(caught.exception), error)
        self.assertExpectedInline(str(caught.exception), expected, skip=1)
