# Owner(s): ["module: inductor"]
"""Indices computed from made-up integers, of which some would be out of bounds."""

import contextlib
import logging

from range_autotune_testing import OpTestCase
from torch._inductor.test_case import run_tests
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig
from torch._inductor.range_autotune.graphs.computed_indices import (
    check_places,
    told_places,
)


ROWS, PLACES = torch.arange(12.0).view(6, 2), torch.tensor([0, 2, 5])


def graph_of(fn, *args):
    return make_fx(fn, tracing_mode="fake")(*args)


def segments(x, offsets):
    """The number of the segment that each row is in."""
    rows = torch.arange(x.shape[0], device=x.device)
    return (rows[:, None] >= offsets[None]).sum(1) - 1


def sums_by_adding(x, offsets):
    sums = x.new_zeros(offsets.shape[0] - 1, x.shape[1])
    return sums.index_add(0, segments(x, offsets), x)


def sums_by_scattering(x, offsets):
    sums = x.new_zeros(offsets.shape[0] - 1, x.shape[1])
    return sums.scatter_add(0, segments(x, offsets)[:, None].expand_as(x), x)


@instantiate_parametrized_tests
class TestToldPlaces(OpTestCase):
    @parametrize(
        "fn, is_computed",
        (
            (lambda x, at: x[at], False),
            (lambda x, at: x[at.view(1, 3)[:, 1:]], False),
            (lambda x, at: x[at + 1], True),
            (lambda x, at: x[at.to(torch.int32)], False),
            (lambda x, at: x[x[:, 0].long()], True),
            (lambda x, at: x[at[at + 1]], True),
            (lambda x, at: x.gather(0, at[:, None] * 2), True),
            (lambda x, at: x.index_select(0, at * 2), True),
            (lambda x, at: x.index_put((at * 2,), x[:3]), True),
            (lambda x, at: x[at.argsort()], False),
            (lambda x, at: x[at.sort()[1]], False),
            (lambda x, at: x[at.sort()[0] + 1], True),
            (lambda x, at: x[torch.arange(3) + 1], False),
            (lambda x, at: x + at.sum(), False),
        ),
    )
    def test_what_is_computed(self, fn, is_computed):
        told = told_places(graph_of(fn, ROWS, PLACES).graph)
        self.assertEqual(bool(told), is_computed)

    def test_given_ones_where_they_count(self):
        graph = graph_of(lambda x, at: x[at], ROWS, PLACES).graph
        self.assertEqual(len(told_places(graph, also_given=True)), 1)

    @parametrize(
        "fn",
        (
            lambda x, at: x[at + 1].sin(),
            lambda x, at: x[at - 1].sin(),
            lambda x, at: x.gather(0, at[:, None] - 1),
            lambda x, at: torch.scatter(x, 0, (at - 1)[:, None], x),
            lambda x, at: x[(x[at + 3, 0] * 0).long()].sin(),
        ),
    )
    def test_bounds(self, fn):
        graph = graph_of(fn, ROWS, PLACES)
        told = told_places(graph.graph)
        fine = PLACES.clamp(1, 2)
        check_places(graph, told, [ROWS, fine], int)
        for wrong in (fine + 20, fine - 20):
            with self.assertRaisesRegex(
                IndexError, "of 6 is given an index of -?[0-9]+"
            ):
                check_places(graph, told, [ROWS, wrong], int)

    @parametrize(
        "fn, may_count",
        (
            (lambda x, at: x[at - 1], True),
            (lambda x, at: x.index_put((at - 1,), x[:3]), True),
            (lambda x, at: x.gather(0, at[:, None] - 1), False),
            (lambda x, at: torch.scatter(x, 0, at[:, None] - 1, x), False),
        ),
    )
    def test_those_that_count_from_the_end(self, fn, may_count):
        graph = graph_of(fn, ROWS, PLACES)
        raised = contextlib.nullcontext()
        if not may_count:
            raised = self.assertRaisesRegex(IndexError, "an index of -1")
        with raised:
            check_places(graph, told_places(graph.graph), [ROWS, PLACES], int)

    def test_places_that_nobody_writes_are_out_of_bounds(self):
        def inverse(x, order):
            places = torch.empty(3, dtype=order.dtype)
            return x[places.scatter(0, order, torch.arange(3))]

        graph = graph_of(inverse, ROWS, PLACES)
        told = told_places(graph.graph)
        check_places(graph, told, [ROWS, torch.tensor([2, 0, 1])], int)
        with self.assertRaisesRegex(IndexError, "an index of 9223372036854775807"):
            check_places(graph, told, [ROWS, torch.zeros_like(PLACES)], int)

    def test_no_more_is_computed(self):
        def fails(x):
            raise AssertionError("it is called")

        graph = graph_of(lambda x, at: x.exp()[at + 1], ROWS, PLACES)
        (node,) = graph.graph.find_nodes(
            op="call_function", target=torch.ops.aten.exp.default
        )
        node.target = fails
        check_places(graph, told_places(graph.graph), [ROWS, PLACES - 1], int)


class TestCompiled(OpTestCase):
    def logged(self, model, calls):
        """What is logged when a model is compiled; its results are compared with eager's."""
        torch._dynamo.reset()
        with (
            config.patch(fx_graph_cache=False),
            self.assertLogs("torch._inductor.kernel.custom_op", logging.INFO) as logs,
        ):
            compiled = torch.compile(model, dynamic=True)
            for args in calls:
                self.assertEqual(compiled(*args), model(*args))
        return logs.records

    def tuned(self, *implementations):
        """What is logged when a sum over segments is, whose offsets are made up."""
        op = self.define_op("sums(Tensor x, Tensor offsets) -> Tensor")
        self._library.impl("sums", sums_by_adding, "CPU")
        self._library.impl(
            "sums",
            lambda x, offsets: x.new_empty(offsets.shape[0] - 1, x.shape[1]),
            "Meta",
        )
        configs = [CustomOpRangeConfig("x", 0, [(0, 99)], [*implementations])]
        self.register(op, configs=configs)
        return self.logged(
            lambda x, offsets: op(x * 2, offsets) + 1,
            [
                (torch.randn(size, 4), torch.tensor([0, size // 2, size // 2, size]))
                for size in (40, 6, 2, 98)
            ],
        )

    def test_offsets_of_sequences_are_made_up(self):
        records = self.tuned(sums_by_adding, sums_by_scattering)
        self.assertEqual([r for r in records if r.levelno >= logging.WARNING], [])
        log = " ".join(record.getMessage() for record in records)
        self.assertIn("measured with offsets of sequences as offsets", log)

    def test_rows_may_be_a_number(self):
        """As they are in a backward pass, where what is given has a row for each sequence."""

        def by_segment(sums, offsets, rows):
            return sums[segments(torch.empty(rows, 1), offsets)]

        op = self.define_op("rows(Tensor sums, Tensor offsets, SymInt rows) -> Tensor")
        self._library.impl("rows", by_segment, "CPU")

        def like_result(sums, offsets, rows):
            torch._check(offsets.shape[0] == sums.shape[0] + 1)
            return sums.new_empty(rows, sums.shape[1])

        self._library.impl("rows", like_result, "Meta")
        configs = [CustomOpRangeConfig("sums", 0, [(0, 99)], [by_segment])]
        self.register(op, configs=configs)

        calls = []
        for number, rows in ((3, 40), (2, 7)):
            offsets = torch.tensor([0, *[rows // 2] * (number - 1), rows])
            calls.append((torch.randn(rows, 4), torch.randn(number, 4), offsets))
        records = self.logged(
            lambda x, sums, offsets: op(sums * 2, offsets, x.shape[0]) + x, calls
        )
        log = " ".join(record.getMessage() for record in records)
        self.assertIn("offsets of sequences as offsets", log)
        self.assertNotIn("left out", log)

    def test_lengths_of_sequences_are_made_up(self):
        def last(x, lengths):
            at = (lengths - 1)[:, None, None].expand(-1, 1, x.shape[2])
            return x.gather(1, at).squeeze(1)

        def last_by_product(x, lengths):
            rows = torch.arange(x.shape[1], device=x.device)
            return ((rows == lengths[:, None] - 1).to(x.dtype)[:, None] @ x).squeeze(1)

        op = self.define_op("last(Tensor x, Tensor lengths) -> Tensor")
        self._library.impl("last", last, "CPU")
        self._library.impl(
            "last", lambda x, _: x.new_empty(x.shape[0], x.shape[2]), "Meta"
        )
        configs = [CustomOpRangeConfig("x", 1, [(0, 99)], [last, last_by_product])]
        self.register(op, configs=configs)
        records = self.logged(
            lambda x, lengths: op(x * 2, lengths) + 1,
            [(torch.randn(2, n, 4), torch.tensor([n // 2, n])) for n in (40, 3, 98)],
        )
        log = " ".join(record.getMessage() for record in records)
        self.assertIn("measured with lengths of sequences as lengths", log)
        self.assertNotIn("left out", log)

    def test_who_is_out_of_bounds_anyway_is_left_out(self):
        def beyond(x, offsets):
            sums = x.new_zeros(offsets.shape[0] - 1, x.shape[1])
            return sums.index_add(0, segments(x, offsets * 0), x)

        records = self.tuned(beyond, sums_by_scattering)
        warnings = [r.getMessage() for r in records if r.levelno >= logging.WARNING]
        self.assertEqual(len(warnings), 1)
        self.assertIn("candidate 'beyond' is left out", warnings[0])
        self.assertIn("integers are made up, see input_gen_fns", warnings[0])


if __name__ == "__main__":
    run_tests()
