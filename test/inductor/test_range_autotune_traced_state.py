# Owner(s): ["module: inductor"]
"""What implementations remember of being traced: nothing."""

import functools
from typing import ClassVar

from range_autotune_testing import OpTestCase
from torch._inductor.test_case import run_tests, TestCase
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
    subtest,
)

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.contents.content import content_digest, Unhashable
from torch._inductor.range_autotune.ops import traced_state
from torch._inductor.range_autotune.ops.traced_state import state_restored


_tables = {}
_table = None


@functools.cache
def cached_table(n):
    return torch.ones(n).cumsum(0)


@functools.cache
def width():
    return 8


def through_cache(x):
    return x * cached_table(x.shape[1])


def through_dict(x):
    if "table" not in _tables:
        _tables["table"] = (torch.ones(8), 8)
    return x * _tables["table"][0]


def through_global(x):
    global _table  # noqa: PLW0603  # as users do
    if _table is None:
        _table = torch.ones(8)
    return x * _table


def through_width(x):
    return x * width() if cached_table else x


class LazyTable(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", None)
        self.sizes = []

    def forward(self, x):
        self.sizes.append(x.shape[1])
        if self.table is None:
            self.table = torch.ones(8)
        return x * self.table


def closure():
    table = None

    def through_cell(x):
        nonlocal table
        table = torch.ones(8) if table is None else table
        return x * table

    return through_cell


class OfClass:
    """What several callables remember in their class, or in objects that it keeps."""

    table = None
    made: ClassVar = {}

    def __init__(self):
        self.own = torch.ones(8)

    @classmethod
    def in_class(cls, x):
        cls.table = torch.ones(8) if cls.table is None else cls.table
        return x * cls.table

    @classmethod
    def in_object_of_class(cls, x):
        if 0 not in cls.made:
            cls.made[0] = cls()
        return x * cls.made[0].own


class WithSlots:
    __slots__ = ("table",)

    def __call__(self, x):
        if not hasattr(self, "table"):
            self.table = torch.ones(8)
        return x * self.table


class WithProperty:
    def __init__(self):
        self.found = []

    @property
    def table(self):
        if not self.found:
            self.found.append(torch.ones(8))
        return self.found[0]

    def __call__(self, x):
        return x * self.table


_place_for_one = [None]
_places = []


def in_element(x):
    if _place_for_one[0] is None:
        _place_for_one[0] = torch.ones(8)
    return x * _place_for_one[0]


def at_the_end(x):
    if not _places:
        _places.extend((8, torch.ones(8)))
    return x * _places[1]


def in_default(x, _tables=[]):  # noqa: B006
    if not _tables:
        _tables.append((torch.ones(8),))
    return x * _tables[0][0]


class TestStateRestored(TestCase):
    def trace(self, function):
        """Calls it with a fake tensor; what it keeps is not to be seen behind that."""
        with FakeTensorMode(), state_restored(function):
            result = function(torch.randn(2, 8))
            self.assertIsInstance(result, FakeTensor)

    def assert_forgets(self, function):
        self.trace(function)
        x = torch.randn(2, 8)
        self.assertEqual(type(function(x)), torch.Tensor)
        # What it keeps of a call that was no trace is not lost.
        self.assertEqual(function(x), function(x))

    def test_cache(self):
        cached_table.cache_clear()
        self.assert_forgets(through_cache)
        kept = cached_table(8)
        self.trace(through_width)
        self.assertIs(cached_table(8), kept)

    def test_dict_in_a_global(self):
        _tables.clear()
        self.assert_forgets(functools.partial(through_dict))
        self.assertEqual(_tables.keys(), {"table"})

    def test_global(self):
        self.assert_forgets(through_global)

    @parametrize(
        "function",
        (
            in_element,
            at_the_end,
            in_default,
            subtest(OfClass.in_class, name="in_class"),
            subtest(OfClass.in_object_of_class, name="in_object_of_class"),
            subtest(WithSlots(), name="in_slot"),
            subtest(WithProperty(), name="in_list_of_an_object"),
        ),
    )
    def test_lists_classes_and_objects(self, function):
        self.assert_forgets(function)

    def test_what_a_list_had_before(self):
        real, places = torch.zeros(8), []

        def changes(x):
            places[0] = x + 1
            places.append(x)
            places.append("no tensor")
            return x

        places.append(real)
        self.trace(changes)
        self.assertEqual(len(places), 1)
        self.assertIs(places[0], real)

    def test_what_goes_with_a_tensor(self):
        class Cached:
            rows = 0
            table = None

            def __call__(self, x):
                if x.shape[0] > self.rows:
                    self.rows, self.table = x.shape[0], torch.ones(x.shape[0], 1)
                return x * self.table[: x.shape[0]]

        cached = Cached()
        self.assert_forgets(cached)
        self.assertEqual(vars(cached).keys(), {"rows", "table"})
        table = cached.table
        with FakeTensorMode(), state_restored(cached):
            cached(torch.randn(9, 8))
        self.assertEqual(cached.rows, 2)
        self.assertIs(cached.table, table)

    def test_buffer_of_a_module(self):
        lazy = LazyTable()
        self.trace(lazy)
        self.assertIsNone(lazy.table)
        self.assertEqual(lazy.sizes, [8])
        self.assert_forgets(torch.nn.Sequential(lazy).forward)

    def test_closure(self):
        self.assert_forgets(closure())

    def test_closure_that_is_not_bound_yet(self):
        def fills(x):
            nonlocal table
            table = torch.ones(8)
            return x * table

        self.trace(fills)
        (cell,) = fills.__closure__
        with self.assertRaisesRegex(ValueError, "empty"):
            _ = cell.cell_contents
        table = None

    def test_after_an_error(self):
        cached_table.cache_clear()

        def fails(x):
            through_cache(x)
            raise RuntimeError("no such kernel")

        with self.assertRaisesRegex(RuntimeError, "no such kernel"):
            self.trace(fails)
        self.assertEqual(cached_table.cache_info().currsize, 0)

    def overlapping(self, function, first_ends_first=True):
        """Traces it twice as two threads do; it fills in each, and again before each ends."""
        traces = [state_restored(function) for _ in range(2)]
        for trace in traces:
            trace.__enter__()
            self.refill(function)
        for trace in traces if first_ends_first else reversed(traces):
            self.refill(function)
            trace.__exit__(None, None, None)

    def refill(self, function):
        """What it remembers is made anew, by a trace."""
        with FakeTensorMode():
            function(fill=True)

    def assert_overlapping_traces_forget(self, function, kept):
        """
        Args:
            kept: calls it, and returns what it remembers; None for nothing.
        """
        for before in (None, torch.ones(2)):
            for first_ends_first in (False, True):
                function(before)
                self.overlapping(function, first_ends_first)
                self.assertIs(kept(), before)

    def test_overlapping_traces_of_a_dict(self):
        tables = {}

        def fills(value=None, fill=False):
            tables["table"] = torch.ones(2) if fill else value
            if tables["table"] is None:
                del tables["table"]

        self.assert_overlapping_traces_forget(fills, lambda: tables.get("table"))

    def test_overlapping_traces_of_a_closure(self):
        table = None

        def fills(value=None, fill=False):
            nonlocal table
            table = torch.ones(2) if fill else value

        self.assert_overlapping_traces_forget(fills, lambda: table)

    def test_overlapping_traces_of_an_attribute(self):
        lazy = LazyTable()

        def fills(value=None, fill=False):
            lazy.table = torch.ones(2) if fill else value

        self.assert_overlapping_traces_forget(fills, lambda: lazy.table)

    @parametrize("before", (0, 1))
    @parametrize("first_ends_first", (False, True))
    def test_overlapping_traces_of_a_cache(self, before, first_ends_first):
        @functools.cache
        def table(number):
            return torch.ones(2)

        numbers = iter(range(100))

        def fills(fill):
            table(next(numbers))

        for _ in range(before):
            table(next(numbers))
        self.overlapping(fills, first_ends_first)
        self.assertEqual(table.cache_info().currsize, 0)

    def test_fake_tensors_of_nobody_known(self):
        tables = {}

        def fills():
            tables["table"] = torch.ones(2)

        with FakeTensorMode():
            fills()
        mine = tables["table"]
        with state_restored(fills):
            pass
        self.assertIs(tables["table"], mine)
        with FakeTensorMode(), state_restored(fills):
            fills()
        self.assertEqual(tables, {})

    def test_nothing_is_remembered_behind_a_trace(self):
        self.overlapping(lambda fill: None)
        self.assertEqual(traced_state._under_way, [])

    def test_contents_of_fake_tensors(self):
        with FakeTensorMode():
            fake = torch.ones(8)
        with self.assertRaises(Unhashable):
            content_digest(fake)


instantiate_parametrized_tests(TestStateRestored)


class TestCompiled(OpTestCase):
    def test_op_with_the_same_cache(self):
        @torch.library.custom_op("traced_state::op", mutates_args=())
        def op(x: torch.Tensor) -> torch.Tensor:
            return through_cache(x)

        op.register_fake(torch.empty_like)
        self.addCleanup(op._lib._destroy)
        cached_table.cache_clear()
        impls = [through_cache, lambda x: cached_table(x.shape[1]) * x]
        register_custom_op_autotuning(
            op, configs=[CustomOpRangeConfig("x", 0, [(0, 16), (16, 64)], impls)]
        )
        x = torch.randn(20, 8)
        torch._dynamo.mark_dynamic(x, 0)
        for fn in (lambda x: op(x).relu(), lambda x: op(x).sum(1)):
            self.assertEqual(torch.compile(fn)(x), fn(x))
        self.assertEqual(op(x), through_cache(x))


if __name__ == "__main__":
    run_tests()
