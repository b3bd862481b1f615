# Owner(s): ["module: inductor"]
"""
Tests of ``range_autotune.writes.write_hazards`` and of the patches that call it: what is
read and written in place by ops that nobody registered, too.
"""

import itertools

from test_custom_op_autotune import ramp
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import HAS_GPU, requires_gpu
from torch.utils import _pytree as pytree

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.writes.write_hazards import is_copy_needed


if HAS_GPU:
    import triton
    import triton.language as tl

    @triton.jit
    def doubled_plus(x, y, n, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        here = at < n
        doubled = tl.load(x + at, here) * 2
        tl.store(x + at, doubled, here)
        tl.store(x + at, doubled + tl.load(y + at, here), here)


_numbers = itertools.count()


def new_op(is_registered):
    """Writes to its first argument, and reads the other one behind that."""

    def fn(x: torch.Tensor, y: torch.Tensor) -> None:
        x.mul_(2)
        x.add_(y)

    op = torch.library.custom_op(f"hazards::op{next(_numbers)}", fn, mutates_args=["x"])
    if is_registered:
        register_custom_op_autotuning(op, configs=[CustomOpConfig(fn)])
    return op


def copy_beside(op, x, z):
    op(x, x.clone())
    return x + 1


def copy_of_a_product_beside(op, x, z):
    y = x @ z
    op(y, y.clone())
    return y + 1


def part_of_a_copy_beside(op, x, z):
    copy = x.clone()
    op(x.view(-1)[:6], copy.view(-1)[:6])
    return x + copy


def copy_in_another_place_beside(op, x, z):
    copy = x.clone()
    op(x[1:], copy[:-1])


def copy_read_behind(op, x, z):
    before = x.clone()
    op(x, z)
    z.copy_(before)


def no_change_read_behind(op, x, z):
    before = torch.cat([x * 1 + 0]).repeat(1, 1)
    op(x, z)
    z.copy_(before.view(-1).view_as(z))


def copy_read_behind_a_sum(op, x, z):
    z[:] = x[:]
    x.add_(1)
    return x


def pointwise_read_behind(op, x, z):
    before = x.cos()
    op(x, before)
    return before + x


def flipped_between_writes(op, x, z):
    x[torch.tensor([1, 2], device=x.device)] = z[:2]
    x.copy_(x.flip(0) * 2)


def one_element_between_writes(op, x, z):
    x[torch.tensor([1, 2], device=x.device)] = z[:2]
    x.copy_(x * 0.5 + x[1, 1])
    return x.cos()


def copied_before_it_is_written_again(op, x, z):
    x[torch.arange(9, device=x.device)] += 1
    z.copy_(x)
    x[:60] *= 2


def kept_before_it_is_written_again(op, x, z):
    op(x, z)
    before = x.cos()
    x[:60] *= 2
    z.copy_(before)
    return z


def put_twice_before_it_is_written_again(op, x, z):
    i = torch.arange(9, device=x.device)
    x[i] += 1
    x[i + 20] *= 2
    z.copy_(x)
    x.copy_(x.flip(0))


def copy_put_elsewhere(op, x, z):
    x[torch.arange(59, device=x.device).flip(0)] = x[5:].clone()


def copy_moved(op, x, z):
    x[5:] = x[:-5].clone()


def part_of_a_copy_moved(op, x, z):
    x[:, 5:].copy_(x.clone()[:, :-5])


def new_tagged_op(tag, is_registered):
    """Adds its second argument to the first one, which it returns."""

    def add_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.add_(y)

    def add(y: torch.Tensor, *, x: torch.Tensor) -> torch.Tensor:
        return x.copy_(y + 1)

    fn = add_ if tag is torch.Tag.inplace else add
    name = f"hazards::op{next(_numbers)}"
    op = torch.library.custom_op(name, fn, mutates_args=["x"], tags=tag)
    if is_registered:
        register_custom_op_autotuning(op, configs=[CustomOpConfig(fn)])
    return op if fn is add_ else lambda x, y: op(y, x=x)


def result_is_written(op, x, z):
    op(x, z).add_(1)
    return x * 2


def result_is_read_behind_a_write(op, x, z):
    result = op(x, z)
    x.mul_(2)
    return result * 3


def part_of_a_result_is_written(op, x, z):
    op(x[1:], z[1:])[:, 3:].mul_(2)


def result_is_read_and_its_memory(op, x, z):
    new = torch.zeros_like(x)
    return op(new, z) * 3, new


TAGGED_CASES = (
    result_is_written,
    result_is_read_behind_a_write,
    part_of_a_result_is_written,
    result_is_read_and_its_memory,
)
CASES = (
    copy_put_elsewhere,
    copy_moved,
    part_of_a_copy_moved,
    copy_beside,
    copy_of_a_product_beside,
    part_of_a_copy_beside,
    copy_in_another_place_beside,
    copy_read_behind,
    no_change_read_behind,
    copy_read_behind_a_sum,
    pointwise_read_behind,
    flipped_between_writes,
    one_element_between_writes,
    copied_before_it_is_written_again,
    kept_before_it_is_written_again,
    put_twice_before_it_is_written_again,
)


@instantiate_parametrized_tests
class TestWriteHazards(TestCase):
    def check(self, fn):
        """Compiled it returns what it does in eager mode, and writes the same."""
        given, expected = ([ramp(64, 64) * 0.01, ramp(64, 64).mT * 0.01] for _ in "12")
        results = torch.compile(fn)(*given), fn(*expected)
        compiled, eager = (
            [r for r in pytree.tree_leaves(result) if r is not None]
            for result in results
        )
        self.assertEqual([*compiled, *given], [*eager, *expected])

    @parametrize("is_registered", (False, True))
    @parametrize("case", CASES, name_fn=lambda case: case.__name__)
    def test_as_eager(self, case, is_registered):
        op = new_op(is_registered)
        self.check(lambda x, z: case(op, x, z))

    @parametrize("tag", (torch.Tag.inplace, torch.Tag.out))
    @parametrize("is_registered", (False, True))
    @parametrize("case", TAGGED_CASES, name_fn=lambda case: case.__name__)
    def test_results_that_are_arguments(self, case, is_registered, tag):
        op = new_tagged_op(tag, is_registered)
        self.check(lambda x, z: case(op, x, z))

    @requires_gpu()
    def test_copy_beside_what_a_triton_kernel_writes(self):
        def fn(x, z):
            doubled_plus[(triton.cdiv(x.numel(), 64),)](x, x.clone(), x.numel(), 64)
            return x + 1

        self.check(fn)

    @parametrize("is_read_behind", (False, True))
    def test_copy_is_needed_behind_writes_only(self, is_read_behind):
        graph = torch.fx.Graph()
        x, z = (graph.placeholder(name) for name in "xz")
        copy = graph.call_function(torch.ops.aten.clone.default, (x,))
        read = graph.call_function(torch.ops.aten.cos.default, (copy,))
        write = graph.call_function(torch.ops.aten.copy_.default, (x, z))
        if is_read_behind:
            write.append(read)
        graph.output(read)
        self.assertEqual(is_copy_needed(copy, x), is_read_behind)

    def test_view_is_no_copy(self):
        graph = torch.fx.Graph()
        x, z = (graph.placeholder(name) for name in "xz")
        view = graph.call_function(torch.ops.aten.view.default, (x, [-1]))
        graph.call_function(torch.ops.aten.copy_.default, (x, z))
        graph.output(graph.call_function(torch.ops.aten.cos.default, (view,)))
        self.assertFalse(is_copy_needed(view, x))


if __name__ == "__main__":
    run_tests()
