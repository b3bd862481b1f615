# Owner(s): ["module: inductor"]
"""C++ loops of graphs with an autotuned op: in threads where the size at run time is worth it."""

import functools
import math
import re

from range_autotune_testing import ExpTestCase
from torch._inductor.test_case import run_tests
from torch._inductor.utils import run_and_get_cpp_code
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import CustomOpRangeConfig


def rows_and_columns(y):
    return torch.softmax(y, 1)


def scans_and_all(y):
    return y.sum(), y.cumsum(1)


@instantiate_parametrized_tests
class TestParallelLoops(ExpTestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(config.patch({"cpp.threads": 2, "cpp.min_chunk_size": 512}))
        self.enterContext(config.patch(fx_graph_cache=False))
        self.register(
            self.op, [CustomOpRangeConfig("x", 0, [(0, math.inf)], [torch.exp])]
        )

    def pragmas(self, model, *shape, dynamic=(0,)):
        """Of a model's kernels, when it is compiled at a shape."""
        torch._dynamo.reset()
        x = torch.randn(shape)
        for dim in dynamic:
            torch._dynamo.mark_dynamic(x, dim)
        self.compiled = torch.compile(model)
        _, code = run_and_get_cpp_code(self.compiled, x)
        return sorted({*re.findall("#pragma omp parallel(.*)", code)})

    def assert_right_at(self, model, *shapes):
        with torch._dynamo.config.patch(error_on_recompile=True):
            for shape in shapes:
                x = torch.randn(shape)
                self.assertEqual(self.compiled(x), model(x))

    @parametrize("rows", (2, 4096))
    def test_as_many_as_there_are(self, rows):
        def model(x):
            return rows_and_columns(self.op(x))

        pragmas = self.pragmas(model, rows, 64)
        self.assertEqual(pragmas, [" num_threads(2) if(64L*ks0 >= 1024)"])
        self.assert_right_at(model, (2, 64), (15, 64), (16, 64), (500, 64))

    @parametrize("rows", (2, 4096))
    def test_of_which_one_number_is_made(self, rows):
        def model(x):
            return scans_and_all(self.op(x))

        pragmas = self.pragmas(model, rows, 60)
        self.assertEqual(pragmas, [" num_threads(2) if(60L*ks0 >= 1024)"])
        self.assert_right_at(model, (2, 60), (17, 60), (18, 60), (3000, 60))

    def test_two_sizes(self):
        def model(x):
            return self.op(x) + 1

        pragmas = self.pragmas(model, 2, 3, dynamic=(0, 1))
        self.assertEqual(pragmas, [" num_threads(2) if(ks0*ks1 >= 1024)"])
        self.assert_right_at(model, (2, 5), (40, 50))

    def test_each_loop_by_what_it_does(self):
        def model(x):
            y = self.op(x)
            return y + 1, y[:, :8].sum(1), y.new_ones(4096)

        pragmas = self.pragmas(model, 40, 32)
        self.assertEqual(
            pragmas,
            [
                " num_threads(2)",
                " num_threads(2) if(32L*ks0 >= 1024)",
                " num_threads(2) if(8L*ks0 >= 1024)",
            ],
        )
        self.assert_right_at(model, (3, 32), (31, 32), (200, 32))

    def test_of_constant_sizes_as_before(self):
        def model(x):
            return self.op(x) + 1

        self.assertEqual(self.pragmas(model, 2, 64, dynamic=()), [])
        self.assertEqual(self.pragmas(model, 64, 64, dynamic=()), [" num_threads(2)"])

    def test_where_it_is_known(self):
        def model(x, low, high):
            torch._check(x.shape[0] >= low)
            torch._check(x.shape[0] <= high)
            return self.op(x) + 1

        few = functools.partial(model, low=2, high=15)
        self.assertEqual(self.pragmas(few, 8, 64), [])
        many = functools.partial(model, low=16, high=999)
        self.assertEqual(self.pragmas(many, 30, 64), [" num_threads(2)"])

    def test_where_the_runtime_chooses_threads(self):
        def model(x):
            return self.op(x) + 1

        with config.patch({"cpp.dynamic_threads": True}):
            self.assertEqual(self.pragmas(model, 2, 64), [""])

    def test_in_no_other_graphs(self):
        self.assertEqual(self.pragmas(rows_and_columns, 2, 64), [])
        self.assertEqual(self.pragmas(rows_and_columns, 400, 64), [" num_threads(2)"])

    def test_in_one_thread(self):
        def model(x):
            return self.op(x) + 1

        with config.patch({"cpp.threads": 1}):
            self.assertEqual(self.pragmas(model, 400, 64), [])


if __name__ == "__main__":
    run_tests()
