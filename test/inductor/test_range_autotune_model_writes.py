# Owner(s): ["module: inductor"]
"""
Tests of ``range_autotune.writes.model_writes``: what a model with registered ops writes
itself to parts of its inputs.
"""

import re

from test_custom_op_fusion import (
    FusionTestCase,
    kernel_calls,
    rows,
    SIZES,
    tuned_op,
)
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import HAS_GPU

import torch
from torch._inductor import config


LENGTH = 400
NEW_MEMORY = "= empty_strided_"


def given(n):
    """Rows, a cache of keys and values, and places in it."""
    places = torch.arange(n, device=rows(1).device).flip(0) + 3
    return rows(n), rows(2 * LENGTH).view(2, LENGTH, 8).cos(), places


def rows_of_each(y, cache, places):
    cache[0][places] = y
    cache[1][places] = y.sin()


def unbound(y, cache, places):
    keys, values = cache.unbind()
    keys[places] = y
    values[places] = y.sin()


def copied(y, cache, places):
    cache[0].index_copy_(0, places, y)
    cache[1].index_copy_(0, places, y.sin())


def of_each_row(y, cache, places):
    cache[:, places] = torch.stack((y, y.sin()))


def heads(y, cache, places):
    cache.view(2, LENGTH, 2, 4)[0, places, 1] = y[:, :4]


def scales_behind_bytes(y, cache, places):
    cache[:, 28:].view(torch.float32)[places] = y[:, :1]


def bits_of_another_dtype(y, cache, places):
    cache.view(torch.bfloat16)[1][places] = y.bfloat16()


def places_read_from_there(y, cache, places):
    part = cache[0]
    part[part[:99] ^ 1] = 5


def places_read_from_all(y, cache, places):
    cache[cache[:99] ^ 1] = 5


def from_itself(y, cache, places):
    part = cache[0]
    part.copy_(part.index_put((torch.arange(LENGTH).flip(0).to(y.device),), part))


def one_of_two_copies(y, cache, places):
    both = cache.expand(2, LENGTH, 8).index_put((places * 0, places), y)
    cache.copy_(both[1])


def numbers(*shape):
    count = torch.Size(shape).numel()
    return (torch.arange(count, device=rows(1).device) * 7 % LENGTH).view(shape)


def floats(*shape):
    return numbers(*shape).cos()


# What is written is not what a view of the input's elements has at places known before.
ELSEWHERE = {
    scales_behind_bytes: lambda: numbers(LENGTH, 32).to(torch.uint8),
    bits_of_another_dtype: lambda: numbers(2, LENGTH, 8).to(torch.int16),
    places_read_from_there: lambda: numbers(2, LENGTH),
    places_read_from_all: lambda: numbers(LENGTH),
    from_itself: lambda: floats(2, LENGTH, 8),
    one_of_two_copies: lambda: floats(LENGTH, 8),
}


def opaque(fn, written, fake=lambda *_: None):
    """An op that is not registered, and is told the strides of what it is given."""
    op = torch.library.custom_op(f"writes::{fn.__name__}", fn, mutates_args=written)
    op.register_fake(fake)
    return op


@instantiate_parametrized_tests
class TestWrittenInPlace(FusionTestCase):
    @parametrize("write", (rows_of_each, unbound, copied, of_each_row, heads))
    def test_rows_of_a_part(self, write):
        op = tuned_op()

        def fn(x, cache, places):
            y = op(x).cos()
            write(y, cache, places)
            return y

        compiled, code = self.compile(fn, *given(SIZES[0]))
        self.check_values(compiled, fn, given)
        self.assertNotRegex(code, rf"{NEW_MEMORY}\w+\(\((2, )?{LENGTH}")
        # A GPU has loops of another size in a kernel of their own.
        kernels = 2 if HAS_GPU and write in (of_each_row, heads) else 1
        calls = kernel_calls(code)
        self.assertEqual([n for n in calls.values() if n], [kernels] * 2, msg=code)

    @parametrize("write", ELSEWHERE, name_fn=lambda write: write.__name__)
    def test_what_is_not_written_to_places_as_it_is(self, write):
        op = tuned_op()

        def fn(x, cache, places):
            y = op(x)
            write(y, cache, places)
            return y

        def make(n):
            x, _, places = given(n)
            return x, ELSEWHERE[write](), places

        compiled, _ = self.compile(fn, *make(SIZES[0]))
        self.check_values(compiled, fn, make)

    def test_slices(self):
        op = tuned_op()

        def fn(x, cache):
            y = op(x)
            cache[0, :5] = y[:1]
            cache[1, 5:9].mul_(2)
            return y

        make = lambda n: given(n)[:2]  # noqa: E731
        compiled, code = self.compile(fn, *make(SIZES[0]))
        self.check_values(compiled, fn, make)
        self.assertNotRegex(code, rf"{NEW_MEMORY}\w+\(\((2, )?{LENGTH}")

    def test_layers_that_read_what_others_have_written(self):
        op = tuned_op()

        def fn(x, cache, places):
            for layer in cache.unbind():
                before = layer[4]
                x = op(x)
                layer[places] = x.sin()
                x = x + layer[:1] + before
                layer[:3].mul_(2)
            return x + cache[1, 1]

        compiled, code = self.compile(fn, *given(SIZES[0]))
        self.check_values(compiled, fn, given)
        self.assertNotRegex(code, rf"{NEW_MEMORY}\w+\(\((2, )?{LENGTH}")

    def test_what_an_op_reads_then(self):
        def attend(
            x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
        ) -> torch.Tensor:
            return x + keys.sum(0) * values.stride(0) + values[3]

        read = opaque(attend, (), lambda x, *_: torch.empty_like(x))
        op = tuned_op()

        def fn(x, cache, places):
            y = op(x)
            rows_of_each(y, cache, places)
            return read(y, cache[0], cache[1, :, ::2].repeat(1, 2))

        compiled, code = self.compile(fn, *given(SIZES[0]))
        self.check_values(compiled, fn, given)
        copies = re.findall(rf"{NEW_MEMORY}\w+\(\((?:2, )?{LENGTH}", code)
        self.assertEqual(len(copies), 1, msg=code)  # of the repeated columns

    def test_where_choices_are_not_fused(self):
        """Nor are the model's own writes touched."""
        op = tuned_op()

        def fn(x, cache, places):
            rows_of_each(op(x), cache, places)

        with config.patch(enable_custom_op_fusion=False):
            compiled, code = self.compile(fn, *given(SIZES[0]))
        self.check_values(compiled, fn, given)
        self.assertRegex(code, rf"{NEW_MEMORY}\w+\(\({LENGTH}")


class TestKeptAsCopies(FusionTestCase):
    """Where what was there, or was there in between, is read behind the write."""

    def check_values_of(self, fn):
        compiled, _ = self.compile(fn, *given(SIZES[0]))
        self.check_values(compiled, fn, given)

    def test_what_was_there(self):
        op = tuned_op()

        def fn(x, cache, places):
            y = op(x)
            before = cache[0] * 1
            cache[0][places] = y
            return (before + cache[0]).sum(0) + op(y)

        self.check_values_of(fn)

    def test_what_was_there_in_between(self):
        op = tuned_op()

        def fn(x, cache, places):
            y = op(x)
            state = cache[0].index_put([places], y)
            cache[0].copy_(state)
            cache[0][places] = op(y.flip(0))
            return state[5] + y

        self.check_values_of(fn)

    def test_what_others_write_in_between(self):
        op = tuned_op()

        def fn(x, cache, places):
            state = cache.select_scatter(op(x)[0].expand(LENGTH, 8), 0, 0)
            cache.mul_(2)
            kept = cache[0, 7] * 1
            cache.copy_(state)
            return kept + x

        self.check_values_of(fn)

    def test_state_that_an_op_writes_to(self):
        def triple(x: torch.Tensor) -> None:
            x.mul_(3)

        write = opaque(triple, ["x"])
        op = tuned_op()

        def fn(x, cache, places):
            state = cache[0].index_put([places], op(x))
            cache[0].copy_(state)
            write(state)
            return state + 1

        self.check_values_of(fn)

    def test_parts_put_into_each_other(self):
        op = tuned_op()

        def fn(x, cache, places):
            cache[0][places] = op(x)
            cache[1, :200] = cache[0, 100:300]
            cache[0, 3:203] = cache[1, 1:201]
            return x

        self.check_values_of(fn)


if __name__ == "__main__":
    run_tests()
