# Owner(s): ["module: inductor"]
"""
Tests of ``range_autotune.writes.writes_in_one_loop`` and ``parts_of_concatenations``:
what moves elements within a tensor, such as rotary embeddings.
"""

import re
from unittest import mock

from test_custom_op_autotune import ramp
from test_range_autotune_in_place import InPlaceTestCase, KERNEL, NEW_MEMORY, tuned
from torch._inductor.dependencies import WeakDep
from torch._inductor.scheduler import SchedulerNode
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import HAS_GPU, requires_gpu

import torch
from torch._inductor.range_autotune.writes import parts_of_concatenations
from torch._inductor.range_autotune.writes.writes_in_one_loop import (
    meet_in_one_iteration,
)


LOOP = "async_compile.triton(" if HAS_GPU else "#pragma omp for"
COLUMNS = 16


def by_halves(x, cos, sin):
    a, b = x.chunk(2, -1)
    low, high = a * cos - b * sin, b * cos + a * sin
    a.copy_(low)
    b.copy_(high)


def by_pairs(x, cos, sin):
    a, b = x[..., ::2], x[..., 1::2]
    x.copy_(torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2))


def joined(x, cos, sin):
    a, b = x.chunk(2, -1)
    x.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], -1))


def joined_before_it_is_turned(x, cos, sin):
    a, b = x.chunk(2, -1)
    turned = torch.cat([-b, a], -1) * torch.cat([sin, sin], -1)
    x.copy_(x * torch.cat([cos, cos], -1) + turned)


def joined_and_cast(x, cos, sin):
    a, b = x.double().chunk(2, -1)
    x.copy_(torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype))


def a_part(x, cos, sin):
    turned, rest = x[..., : COLUMNS // 2], x[..., COLUMNS // 2 :]
    a, b = turned.chunk(2, -1)
    cos, sin = cos[..., : COLUMNS // 4], sin[..., : COLUMNS // 4]
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    x.copy_(torch.cat([turned, rest], -1))


def in_one_row(x, cos, sin):
    heads = x.view(x.shape[0], 1, -1, COLUMNS)
    a, b = heads.chunk(2, -1)
    cos, sin = cos[:, None], sin[:, None]
    turned = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    x.copy_(turned.reshape(x.shape))


ROTATIONS = (
    by_halves,
    by_pairs,
    joined,
    joined_before_it_is_turned,
    joined_and_cast,
    a_part,
    in_one_row,
)


def shifted(x, cos, sin):
    x.copy_(torch.cat([x[..., 1:], x[..., :1]], -1))


def transposed(x, cos, sin):
    square = x[..., :2]
    square.copy_(torch.cat([square[:, 1:] * 2, square[:, :1] + 1], 1).mT)


def parts_of_another_row(x, cos, sin):
    x[:, 1, :4] = torch.cat([x[..., 2:4] * 2, x[..., :2] + 1], -1)[:, 0]


def from_the_row_before(x, cos, sin):
    a, b = x.chunk(2, -1)
    low = torch.cat([b[:1], b[:-1]])
    a.copy_(low * 2)
    b.add_(1)


def read_behind_a_write(x, cos, sin):
    a, b = x.chunk(2, -1)
    a.mul_(cos)
    b.add_(a * sin)
    a.add_(b)


def first_of_all(x, cos, sin):
    a, b = x.chunk(2, -1)
    low, high = a[..., :1] * cos, b * sin
    a.copy_(low)
    b.copy_(high)


def of_unequal_sizes(x, cos, sin):
    x.copy_(torch.cat([x[..., 3:] * 2, x[..., :3] + 1], -1))


OTHERS = (
    shifted,
    transposed,
    parts_of_another_row,
    from_the_row_before,
    read_behind_a_write,
    first_of_all,
    of_unequal_sizes,
)


def fake(x, cos, sin):
    torch._check(x.shape[0] == cos.shape[0])
    torch._check(x.shape[0] == sin.shape[0])


def make(rows):
    """Two heads, and what they are turned by."""
    heads = (ramp(rows, 2 * COLUMNS) % 97 * 0.1).view(rows, 2, COLUMNS)
    cos, sin = (ramp(rows, COLUMNS // 2) % n * 0.1 for n in (7, 11))
    return [heads, cos[:, None], sin[:, None]]


@instantiate_parametrized_tests
class TestWritesInOneLoop(InPlaceTestCase):
    dims = ((0, 0), (1, 0), (2, 0))

    def code_of(self, impl):
        """Of an op with one implementation, which wins, compiled by itself."""

        def turn_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
            impl(x, cos, sin)

        op = tuned(turn_, ["x"], impl, fake=fake)

        def fn(x, cos, sin):
            op(x, cos, sin)

        code = self.check(fn, make, dims=self.dims)
        self.assertNotIn("torch.ops.in_place", code)
        return code

    @parametrize("impl", ROTATIONS, name_fn=lambda impl: impl.__name__)
    def test_rotations(self, impl):
        code = self.code_of(impl)
        self.assertNotIn(NEW_MEMORY, code)
        self.assertEqual((code.count(KERNEL), code.count(LOOP)), (1, 1))

    @parametrize("impl", OTHERS, name_fn=lambda impl: impl.__name__)
    def test_others(self, impl):
        self.code_of(impl)

    def test_what_is_read_twice_is_computed_once_for_each_part(self):
        def impl(x, cos, sin):
            a, b = x.chunk(2, -1)
            y = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
            for _ in range(4):
                y = (y * y + y).tanh()  # which no error grows in
            x.copy_(y)

        new_call = parts_of_concatenations.new_call
        with mock.patch.object(
            parts_of_concatenations, "new_call", side_effect=new_call
        ) as called:
            self.code_of(impl)
        self.assertLess(called.call_count, 100)

    def test_queries_and_keys_of_one_product(self):
        def turn_(
            x: torch.Tensor, keys: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
        ) -> None:
            joined(x, cos, sin)
            joined(keys, cos, sin)

        def fake_of_both(x, keys, cos, sin):
            fake(x, cos, sin)

        op = tuned(turn_, ["x", "keys"], turn_, fake=fake_of_both)

        def fn(x, cos, sin):
            both = torch.cat([x, x[:, :1] * 2], 1)
            op(both[:, :2], both[:, 2:], cos, sin)
            return both

        code = self.check(fn, make, dims=self.dims)
        self.assertEqual(len(re.findall(NEW_MEMORY, code)), 1)  # what is returned
        self.assertNotIn("torch.ops.in_place", code)

    def test_without_an_op(self):
        """Halves of what a graph has computed, which nobody registered an op for."""

        def fn(x, cos, sin):
            x = torch.sort(x, -1)[0]
            a, b = x.chunk(2, -1)
            low, high = a * cos - b * sin, b * cos + a * sin
            torch.ops.aten.copy_(a, low)
            torch.ops.aten.copy_(b, high)
            return x

        args = make(100)
        self.assertEqual(torch.compile(fn)(*args), fn(*args))

    @requires_gpu()
    def test_behind_a_template(self):
        """Which has no loop that others could be one with."""

        def fn(x, weight):
            product = x @ weight
            x.add_(1)
            return product + 1

        options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
        given, expected = ([ramp(64, 64) * 0.01, ramp(64, 64) * 0.01] for _ in range(2))
        result = torch.compile(fn, options=options)(*given)
        self.assertEqual(result, fn(*expected), atol=0.1, rtol=1e-2)
        self.assertEqual(given, expected)

    def test_template_is_no_loop(self):
        template, write = (SchedulerNode.__new__(SchedulerNode) for _ in range(2))
        template.outputs = [mock.Mock(get_name=lambda: "buf0")]
        template._body = None
        scheduler = mock.Mock(mutation_real_name={"buf1": "x"})
        dep = WeakDep("buf0", mutating_buf="buf1")
        self.assertFalse(meet_in_one_iteration(scheduler, dep, template, write))


if __name__ == "__main__":
    run_tests()
