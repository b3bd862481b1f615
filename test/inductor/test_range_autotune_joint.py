# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.neighbours.joint``."""

import dataclasses
import gc
import math
import sys
import weakref
from unittest import mock

from range_autotune_testing import OpTestCase
from torch._inductor.test_case import run_tests

import torch
from torch._inductor.kernel.custom_op import CustomOpConfig, CustomOpRangeConfig
from torch._inductor.range_autotune.neighbours.joint import can_join, joined


MODULE = sys.modules[joined.__module__]


def named(*names):
    impls = []
    for name in names:

        def impl(x):
            return x.clone()

        impl.__name__ = name
        impls.append(impl)
    return impls


class TestJoint(OpTestCase):
    def registered(self, names, ranges, **options):
        op = self.define_op(f"f{next(self.numbers)}(Tensor x) -> Tensor")
        config = CustomOpRangeConfig("x", 0, ranges, named(*names))
        return self.register(op, [config], name="+".join(names), **options)

    def setUp(self):
        super().setUp()
        self.numbers = iter(range(100))

    def table(self, *registrations):
        joint = joined(registrations)
        return {
            str(row.sizes): [joint.contest.candidates[i].name for i in row.candidates]
            for row in joint.contest.table.rows
        }

    def test_one_stays_itself(self):
        only = self.registered("a", [(0, 8)])
        self.assertIs(joined([only]), only)

    def test_same_for_the_same(self):
        pair = self.registered("a", [(0, 8)]), self.registered("b", [(0, 8)])
        self.assertIs(joined(pair), joined(pair))

    def test_collectives_of_each_count(self):
        """Also of an op whose own function runs them and whose implementations do not."""

        def reduces(x: torch.Tensor) -> torch.Tensor:
            return torch.ops._c10d_functional.all_reduce(x, "sum", "0")

        first = self.registered("a", [(0, 8)])
        op = torch.library.custom_op("joint::reduces", mutates_args=())(reduces)
        impl = CustomOpRangeConfig("x", 0, [(0, 8)], named("b"))
        second = self.register(op, [impl], name="b")
        self.assertFalse(first.mentions_collective)
        self.assertTrue(second.mentions_collective)
        self.assertTrue(joined([first, second]).mentions_collective)

    def test_while_another_thread_drops_it(self):
        class Dropped(dict):
            def __setitem__(self, key, value):
                pass

            def setdefault(self, key, value):
                return value

        pair = self.registered("a", [(0, 8)]), self.registered("b", [(0, 8)])
        with mock.patch.object(MODULE, "_joined", Dropped()):
            self.assertEqual(joined(pair).name, "a + b")

    def test_while_another_thread_joins_them(self):
        pair = self.registered("a", [(0, 8)]), self.registered("b", [(0, 8)])
        join, others = MODULE._join, []

        def join_behind_another(registrations):
            if not others:
                others.append(None)
                others[0] = joined(pair)
            return join(registrations)

        with mock.patch.object(MODULE, "_join", join_behind_another):
            mine = joined(pair)
        self.assertIs(mine, others[0])

    def test_nothing_of_what_was_replaced_is_kept(self):
        pair = [self.registered(name, [(0, 8)]) for name in "ab"]
        captured = weakref.ref(joined(pair).contest.candidates[0].parts[0].impl)
        for old in pair:
            config = CustomOpRangeConfig("x", 0, [(0, 8)], named("c"))
            self.register(old.op, [config])
        joined([self.registered(name, [(0, 8)]) for name in "de"])
        del pair, old
        gc.collect()
        self.assertIsNone(captured())

    def test_combinations_over_the_union_of_ranges(self):
        table = self.table(
            self.registered("a", [(0, 8), (8, math.inf)]),
            self.registered("b", [(4, 16)]),
        )
        both = ["a + b", "a + fallback", "fallback + b"]
        self.assertEqual(
            table,
            {
                "[0, 4)": ["a + fallback"],
                "[4, 8)": both,
                "[8, 16)": both,
                "[16, inf)": ["a + fallback"],
            },
        )

    def test_without_the_op_itself(self):
        """But at sizes for which it has no implementation."""
        table = self.table(
            self.registered("a", [(0, 8), (8, math.inf)], include_fallback=False),
            self.registered("b", [(0, 16)], include_fallback=False),
        )
        both, alone = ["a + b"], ["a + fallback"]
        expected = {"[0, 8)": both, "[8, 16)": both, "[16, inf)": alone}
        self.assertEqual(table, expected)

    def test_without_the_op_itself_there_are_fewer_combinations(self):
        everywhere, part = [(4, math.inf), (0, 4)], [(2, math.inf), (0, 1)]
        for ranges, number in ((sorted(everywhere), 4), (sorted(part), 8)):
            pair = [
                self.registered(names, ranges, include_fallback=False)
                for names in ("ab", "cd")
            ]
            self.assertEqual(len(joined(pair).contest.candidates), number)

    def test_gap_of_both_is_a_gap(self):
        table = self.table(
            self.registered("a", [(0, 4), (8, 12)]), self.registered("b", [(0, 4)])
        )
        self.assertEqual(list(table), ["[0, 4)", "[8, 12)"])

    def test_three_in_a_row(self):
        joint = joined([self.registered(name, [(0, 8)]) for name in "abc"])
        self.assertEqual(len(joint.contest.candidates), 7)
        self.assertEqual(joint.name, "a + b + c")
        self.assertEqual(joint.contest.candidates[0].name, "a + b + c")

    def test_one_op_takes_one_implementation_where_there_are_many(self):
        """Each its own where that is few combinations."""
        op, other = self.registered("abc", [(0, 8)]), self.registered("d", [(0, 8)])
        self.assertEqual(len(joined([op, op]).contest.candidates), 15)
        self.assertTrue(can_join([op, other, op]))
        parts = [c.parts for c in joined([op, other, op]).contest.candidates]
        self.assertEqual(len(parts), 7)
        self.assertTrue(all(first is third for first, _, third in parts))
        different = self.registered("efg", [(0, 8)])
        self.assertFalse(can_join([op, other, different]))

    def test_sizes_to_measure_at(self):
        joint = joined(
            [
                self.registered("a", [(0, 8)], representative_sizes=[2, 3]),
                self.registered("b", [(0, 8)], representative_sizes=[3, 5]),
            ]
        )
        self.assertEqual(joint.options.representative_sizes, (2, 3, 5))

    def test_typical_size_of_a_range_without_an_end(self):
        names = iter("abcd")

        def typical_of(*sizes):
            parts = [self.registered(next(names), [(0, 8)]) for _ in sizes]
            parts = [
                dataclasses.replace(
                    part, options=dataclasses.replace(part.options, unbounded_size=size)
                )
                for part, size in zip(parts, sizes)
            ]
            return joined(parts).options.unbounded_size

        self.assertEqual(typical_of(None, 16), 16)
        self.assertIsNone(typical_of(None, None))

    def test_can_join(self):
        a, b = (self.registered(name, [(0, 8)]) for name in ("a", "b"))
        many = self.registered("cdefghij", [(0, 8)])
        checked = self.registered("k", [(0, 8)], numerics_check="drop")
        made = self.registered("l", [(0, 8)], input_gen_fns={"x": lambda x: x})
        self.assertTrue(can_join([a, b]))
        self.assertTrue(can_join([many]))
        self.assertFalse(can_join([a, many]))
        self.assertFalse(can_join([a, checked]))
        self.assertFalse(can_join([made, made]))

    def test_without_ranges_or_with_generated_configs(self):
        op = self.define_op("plain(Tensor x) -> Tensor")
        ranged = self.registered("a", [(0, 8)])
        plain = self.register(op, [CustomOpConfig(*named("b"))])
        self.assertFalse(can_join([ranged, plain]))
        generated = self.register(op, config_generator=lambda fakes: [])
        self.assertFalse(can_join([ranged, generated]))

    def test_under_several_configs(self):
        def patched(name, patches):
            op = self.define_op(f"{name}(Tensor x) -> Tensor")
            impl = CustomOpConfig(*named(name), config_patches=patches)
            configs = [CustomOpRangeConfig("x", 0, [(0, 8)], [impl])]
            return self.register(op, configs)

        tuned, same = (patched(name, {"max_autotune": True}) for name in "ab")
        self.assertFalse(can_join([tuned, patched("c", {})]))
        self.assertTrue(can_join([tuned, same]))
        (both,) = (
            c for c in joined([tuned, same]).contest.candidates if c.name == "a + b"
        )
        self.assertEqual(both.config_patches, {"max_autotune": True})


if __name__ == "__main__":
    run_tests()
