# Owner(s): ["module: inductor"]
"""Ranks that measure in step and take one decision."""

from __future__ import annotations

import itertools
import logging
import math
import operator
import os
import tempfile
import unittest
from unittest import mock

import torch.distributed as dist
import torch.multiprocessing as mp
from torch._inductor.test_case import run_tests, TestCase

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune import collectives
from torch._inductor.range_autotune.measure import Failure, Timing


RANGES = [(0, 64), (64, math.inf)]


def graph_calling(target):
    graph = torch.fx.Graph()
    graph.call_function(target, (graph.placeholder("x"),))
    return torch.fx.GraphModule({}, graph)


class TestAgreement(TestCase):
    def gathered(self, *values):
        return mock.patch.object(collectives, "_gather", lambda _: list(values))

    def test_detection(self):
        c10d = torch.ops._c10d_functional
        plain, with_one = (
            graph_calling(operator.neg),
            graph_calling(c10d.all_reduce.default),
        )
        self.assertFalse(collectives.has_collective([plain]))
        self.assertTrue(collectives.has_collective([plain, with_one]))

    def test_only_what_every_rank_has(self):
        with self.gathered([0, 1, 2], [-1, 1, 2], [2, 1]):
            self.assertEqual(collectives.common_to_all_ranks([0]), [1, 2])

    def test_what_one_rank_has_against_a_candidate_all_have(self):
        with self.gathered({}, {2: "differs"}, {2: "differs", 3: "broken"}):
            self.assertEqual(
                collectives.common_reasons({}),
                {2: "on rank 1: differs", 3: "on rank 2: broken"},
            )

    def test_the_slowest_rank_counts(self):
        with self.gathered(Timing(1.0), Timing(3.0), Timing(2.0)):
            self.assertEqual(collectives._agreed(Timing(1.0)), Timing(3.0))

    def test_a_failure_on_one_rank_is_one_on_all(self):
        with self.gathered(Timing(1.0), Failure("broken"), Timing(2.0)):
            self.assertEqual(
                collectives._agreed(Timing(1.0)), Failure("on rank 1: broken")
            )

    def test_without_a_group_the_op_itself_runs(self):
        op, _ = reducing_op(rank=0)
        logger = "torch._inductor.kernel.custom_op"
        with (
            self.assertLogs(logger, logging.WARNING) as logs,
            mock.patch.object(collectives.dist, "is_initialized", lambda: False),
            mock.patch(
                "torch._inductor.range_autotune.compiling.generate_module"
            ) as generate,
        ):
            generate.return_value.configure_mock(conditions=(), source="")
            code = torch._inductor.utils.run_and_get_code(
                torch.compile(lambda x: op(x) + 1, dynamic=True), torch.ones(8, 4)
            )[1][-1]
        self.assertIn("no process group", logs.records[-1].getMessage())
        self.assertIn("collectives.reduced", code)


_numbers = itertools.count()


def reducing_op(rank):
    """
    The sum of a tensor over ranks, and its implementations.

    Each adds its own marker, so that the result tells which one ran. The one that only
    works on rank 0 must win nowhere.
    """
    name = f"collectives::reduced{next(_numbers)}"
    c10d = torch.ops._c10d_functional

    def eager(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    op = torch.library.custom_op(name, mutates_args=())(eager)
    op.register_fake(torch.empty_like)

    def functional(x):
        return c10d.wait_tensor(c10d.all_reduce(x, "sum", "0")) + 1

    def in_place(x):
        return c10d.wait_tensor(c10d.all_reduce_(x.clone(), "sum", "0")) + 2

    def on_rank_0_only(x):
        if rank:
            raise RuntimeError("not on this rank")
        return x + 3

    impls = [functional, in_place, on_rank_0_only]
    register_custom_op_autotuning(
        op,
        configs=[CustomOpRangeConfig("x", 0, RANGES, impls)],
        include_fallback=False,
    )
    return op, [impl.__name__ for impl in impls]


def made_up_time(run, device):
    """Each rank finds another candidate fast; the slowest rank's times decide."""
    rows = run()[0].shape[0]
    made_up_time.calls += 1
    first = made_up_time.calls % 2 == 1
    if rows < 64:
        return Timing((1.0, 4.0)[dist.get_rank()] if first else 3.0)
    return Timing((5.0, 1.0)[dist.get_rank()] if first else 9.0)


made_up_time.calls = 0


def run_rank(rank, world_size, folder):
    torch.set_num_threads(1)  # ranks share the machine's cores
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(folder, f"cache{rank}")
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
    )
    try:
        op, _ = reducing_op(rank)

        def fn(x):
            return torch.relu(op(x * 2)) * 3

        # The autograd kernel of wait_tensor waits with the interpreter's lock held,
        # which gloo's threads need now and then.
        with torch.inference_mode():
            results = compile_and_run(fn, rank)
        torch.save(results, os.path.join(folder, f"results{rank}"))
    finally:
        dist.destroy_process_group()


def compile_and_run(fn, rank):
    x = torch.ones(8, 4)
    torch._dynamo.mark_dynamic(x, 0)
    compiled = torch.compile(fn)
    with mock.patch.object(collectives, "_time_one", made_up_time):
        compiled(x)
    with torch._dynamo.config.patch(error_on_recompile=True):
        return {
            rows: compiled(torch.full((rows, 4), rank + 1.0)).unique().tolist()
            for rows in (2, 63, 64, 200)
        }


# Under gloo a rank waits forever now and then: where, is not yet understood.
@unittest.skipUnless(os.environ.get("TEST_TWO_RANKS") == "1", "set TEST_TWO_RANKS=1")
class TestTwoRanks(TestCase):
    def test_both_emit_the_same_choice(self):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(run_rank, (2, folder), nprocs=2)
            results = [torch.load(f"{folder}/results{rank}") for rank in range(2)]
        # The sum over ranks is 2 * 1 + 2 * 2 = 6. Below 64 rows the in-place form takes
        # 3 ms on its slowest rank and the functional one 4, from there on 9 and 5.
        expected = {2: 3.0 * 8, 63: 3.0 * 8, 64: 3.0 * 7, 200: 3.0 * 7}
        for result in results:
            self.assertEqual(result, {rows: [v] for rows, v in expected.items()})


if __name__ == "__main__":
    run_tests()
