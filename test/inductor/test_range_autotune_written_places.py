# Owner(s): ["module: inductor"]
"""
Tests of ``range_autotune.writes.written_places``: implementations that write a slice of
an argument, or to several places of it.
"""

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from test_custom_op_autotune import DEVICE, ramp
from test_range_autotune_in_place import InPlaceTestCase, NEW_MEMORY, tuned
from torch._inductor.test_case import run_tests
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.range_autotune.writes import without_copies
from torch._inductor.range_autotune.writes.written_places import try_write_places_only


def two_slices(x, cache, slots):
    rows = cache.view(-1, 8)
    rows[slots, :4] = x
    rows[slots, 4:] = x + 1


def keys_and_values(x, cache, slots):
    keys, values = cache.unbind(0)
    keys.view(-1, 8)[slots, 1:5] = x
    values.view(-1, 8)[slots, 1:5] = x + 1


def one_of_two(x, cache, slots):
    cache[1, 2:4].copy_(x.sum(0)[:1])


def row_upon_row(x, cache, slots):
    rows = cache.view(-1, 8)[:, 2:6]
    rows[slots] = x
    rows[slots] += x


def read_before(x, cache, slots):
    total = cache.sum()
    cache[0, 0, 0] = total
    cache[0, 1, 0] = total + 1


def read_behind(x, cache, slots):
    before = cache[0, 0].clone()
    cache[0, 0] = 0
    cache[0, 1] = before + 1


IN_PLACE = (
    two_slices,
    keys_and_values,
    one_of_two,
    row_upon_row,
    read_before,
    read_behind,
)


def all_replaced(x, cache, slots):
    cache[..., :4] = x.sum(0)
    cache[..., 4:] = 1


def halves_turned(x, cache, slots):
    low, high = cache.clone().chunk(2, -1)
    cache[..., :4] = -high
    cache[..., 4:] = low


def rows_scattered(x, cache, slots):
    rows = cache.view(-1, 8)
    places = torch.arange(99, device=x.device).flip(0)[:, None].expand(-1, 8)
    rows.scatter_(0, places, rows[1:100].clone())


WHOLE = (all_replaced, halves_turned, rows_scattered)


def moved(x, cache, slots):
    cache[1:] = cache[:-1].clone()


def rows_put_elsewhere(x, cache, slots):
    rows = cache.view(-1, 8)
    rows[torch.arange(99, device=x.device).flip(0)] = rows[1:100].clone()


def columns_moved(x, cache, slots):
    cache[..., 5:].copy_(cache.clone()[..., :3])


MOVED = (moved, rows_put_elsewhere, columns_moved)

VIEWS = (
    lambda c, i: c.select(0, i % c.shape[0]),
    lambda c, i: c.select(-1, i % c.shape[-1]),
    lambda c, i: c[i % c.shape[0] :],
    lambda c, i: c[..., : i + 1],
    lambda c, i: c[..., i % 2 :: 2],
    lambda c, i: c.unbind(0)[i % c.shape[0]],
    lambda c, i: c.split(3, -1)[0],
    lambda c, i: c.mT,
)
VIEW = st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=2)
STEP = st.tuples(st.integers(0, 5), VIEW, VIEW)


def view_of(cache, path):
    for which, i in path:
        cache = VIEWS[which](cache, i) if cache.dim() > 1 else cache
    return cache


def take_step(step, x, cache, slots):
    kind, path, other = step
    view, read = view_of(cache, path), view_of(cache, other)
    value = x.sum() * 0.1
    if kind == 0:
        view.copy_(value)
    elif kind == 1:
        view.mul_(0.5)
    elif kind == 2:
        view.copy_(view * 0.5 + read.sum() * 0.01)
    elif kind == 3:
        view[slots[:2] % view.shape[0]] = value
    elif kind == 4:
        view[slots[:2] % view.shape[0]] += value
    else:
        cache.copy_(cache.clone() + read.cos().sum() * 0.01)


@instantiate_parametrized_tests
class TestWrittenPlaces(InPlaceTestCase):
    def code_of(self, impl, sizes=(2, 511, 512, 600), **tolerances):
        """
        Of an op with one implementation; what it writes is compared to eager.

        Returns:
            The code, and whether the implementation writes to places only.
        """

        def fn(x: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
            impl(x, cache, slots)

        def fake(x, cache, slots):
            torch._check(x.shape[0] == slots.shape[0])

        op = tuned(fn, ["cache"], impl, fake=fake)

        def model(x, slots, cache):
            op(x * 2, cache[1], slots)

        def make(n):
            slots = torch.arange(n, device=DEVICE).flip(0)
            return [ramp(n, 4) * 0.01, slots, ramp(2, 2, 700, 8) * 0.001]

        answers = []

        def told(write):
            answers.append(try_write_places_only(write))
            return answers[-1]

        with mock.patch.object(without_copies, "try_write_places_only", told):
            code = self.check(model, make, 0, sizes, **tolerances)
        return code, any(answers)

    @parametrize("impl", IN_PLACE, name_fn=lambda impl: impl.__name__)
    def test_is_written_in_place(self, impl):
        code, is_in_place = self.code_of(impl, atol=1e-3, rtol=1e-4)
        self.assertTrue(is_in_place)
        for memory in code.split(NEW_MEMORY)[1:]:  # but for what is written
            self.assertNotIn("700", memory.splitlines()[0])

    @parametrize("impl", WHOLE, name_fn=lambda impl: impl.__name__)
    def test_is_copied_as_a_whole(self, impl):
        _, is_in_place = self.code_of(impl, atol=1e-3, rtol=1e-4)
        self.assertFalse(is_in_place)

    @parametrize("impl", MOVED, name_fn=lambda impl: impl.__name__)
    def test_is_moved_within_a_tensor(self, impl):
        _, is_in_place = self.code_of(impl)
        self.assertTrue(is_in_place)

    def test_changes_outside_of_what_is_written_are_made_in_a_copy(self):
        def impl(x, cache, slots):
            changed = cache.index_put((slots[:1] * 0,), x.sum())
            cache[:, :2] = changed[:, :2]

        code, _ = self.code_of(impl, atol=1e-3, rtol=1e-4)
        self.assertRegex(code, NEW_MEMORY + r".*700")

    def test_what_another_write_has_made_is_read_behind_it(self):
        def turn_(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
            high[:, :1] = high[:, 1:2] + x[:, :1]
            low[:, :1] = low[:, 1:2] - high[:, :1]
            high[:, 2:3] = low[:, :1] * 2

        op = tuned(turn_, ["low", "high"], turn_)

        def model(x, low, high):
            torch._check(x.shape[0] == low.shape[0])
            torch._check(x.shape[0] == high.shape[0])
            op(x, low, high)

        dims = ((0, 0), (1, 0), (2, 0))
        self.check(
            model, lambda n: [ramp(n, 4), ramp(n, 4), ramp(n, 4) + 1], 0, dims=dims
        )

    @parametrize("winner", (-1, 0, "by range"))
    def test_views_of_one_cache(self, winner):
        def store(x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
            for cache, value in ((keys, x), (values, x + 1)):
                cache.view(-1, 8)[: x.shape[0], :4] = value

        op = tuned(store, ["keys", "values"], store)

        def model(x, cache):
            torch._check(x.shape[0] <= 7000)
            op(x * 2, *cache.unbind(0))
            return cache[1, 0, 0] + 1

        def make(n):
            return [ramp(n, 4), torch.zeros(2, 10, 700, 8, device=DEVICE)]

        code = self.check(model, make, winner, dims=((0, 0),))
        for memory in code.split(NEW_MEMORY)[1:]:  # but for what is returned
            self.assertNotIn("700", memory.splitlines()[0])

    @settings(max_examples=6, deadline=None, derandomize=True, database=None)
    @given(st.lists(STEP, min_size=1, max_size=4))
    def test_random_writes(self, steps):
        def impl(x, cache, slots):
            for step in steps:
                take_step(step, x, cache, slots)

        torch._dynamo.reset()
        self.code_of(impl, sizes=(5, 511, 512), atol=1e-3, rtol=1e-3)


if __name__ == "__main__":
    run_tests()
