# Owner(s): ["module: inductor"]
"""
Tests of ``range_autotune.writes.in_place``: ops that write to what others see, such as
a cache, a residual, or the result of a product.
"""

import itertools
import re
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from range_autotune_testing import one_config_each, only
from test_custom_op_autotune import (
    AutotuneTestCase,
    DEVICE,
    made_up_times,
    no_recompile,
    ramp,
    RANGES,
)
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import HAS_GPU, requires_gpu

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune import inputs
from torch._inductor.range_autotune.kernel_configs import kernel_config_ranges
from torch._inductor.range_autotune.writes.without_copies import without_copies


if HAS_GPU:
    import triton
    import triton.language as tl

    @triton.jit
    def store_row(x, cache, places, stride, COLUMNS: tl.constexpr):
        row, columns = tl.program_id(0), tl.arange(0, COLUMNS)
        to = cache + tl.load(places + row) * stride
        tl.store(to + columns, tl.load(x + row * COLUMNS + columns))


KERNEL = "async_compile.triton(" if HAS_GPU else "async_compile.cpp_pybinding("
NEW_MEMORY = "= empty_strided_"
LOGGER = "torch._inductor.kernel.custom_op"
# The op itself, an implementation, and others by range.
WINNERS = (-1, 0, "by range")

_numbers = itertools.count()


def tuned(fn, written, *impls, fake=None, tags=(), **options):
    """An op of rows ``x`` that writes, with implementations that do the same."""
    name = f"in_place::op{next(_numbers)}"
    op = torch.library.custom_op(name, mutates_args=written, tags=tags)(fn)
    if fake:
        op.register_fake(fake)
    ranges = CustomOpRangeConfig("x", 0, RANGES, [*impls])
    register_custom_op_autotuning(op, configs=[ranges], **options)
    return op


def times(winner):
    """As ``made_up_times`` takes them; by range if that is what the first output has rows of."""
    if winner == "by range":
        return lambda rows, i: 1.0 if i == (0 if rows < 512 else 1) else 2.0
    return only(winner)


def add_(y: torch.Tensor, x: torch.Tensor) -> None:
    y.add_(x)


def add_out(y, x):
    torch.add(y, x, out=y)


def add_copy(y, x):
    y.copy_(x + y * 1)


def adding():
    return tuned(add_, ["y"], add_out, add_copy)


def normalize_(x: torch.Tensor, residual: torch.Tensor) -> None:
    residual.add_(x)
    x.copy_(residual / (residual.abs().sum(-1, keepdim=True) + 1))


def normalize_sum(x, residual):
    total = residual + x
    torch.div(total, total.abs().sum(-1, keepdim=True) + 1, out=x)
    residual.copy_(total)


def normalize_blocks(x, residual):
    residual.add_(x)
    blocks = [block.abs().sum(-1, keepdim=True) for block in residual.chunk(2, -1)]
    x.copy_(residual / (blocks[0] + blocks[1] + 1))


def halve_(x: torch.Tensor) -> None:
    x.div_(x.abs().sum(-1, keepdim=True) + 1)


def halve_out(x):
    torch.div(x, 1 + x.abs().sum(-1, keepdim=True), out=x)


class InPlaceTestCase(AutotuneTestCase):
    def check(
        self,
        fn,
        make,
        winner=0,
        sizes=(2, 511, 512, 3000),
        dims=((0, 0), (1, 0)),
        **tolerances,
    ):
        """
        Compiled at one size, right at others: results, and what is written to arguments.

        Returns:
            The code.
        """
        args = make(128)
        for index, dim in dims:
            torch._dynamo.mark_dynamic(args[index], dim)
        compiled = torch.compile(fn)
        with made_up_times(times(winner)):
            _, codes = run_and_get_code(compiled, *args)
        for size in sizes:
            given, expected = make(size), make(size)
            with no_recompile:
                results = compiled(*given)
            both = (results, given), (fn(*expected), expected)
            self.assertEqual(*both, msg=f"at size {size}", **tolerances)
        return codes[-1]

    def assert_calls_on_same_memory(self, code):
        calls = re.findall(r"torch\.ops\.in_place\.op\d+\.default\((.+)\)", code)
        self.assertEqual(len(calls), 2)
        self.assertEqual(*calls)


@instantiate_parametrized_tests
class TestInPlace(InPlaceTestCase):
    @parametrize("winner", WINNERS)
    def test_input_of_the_graph(self, winner):
        op = adding()

        def fn(x, y):
            torch._check(x.shape[0] == y.shape[0])
            op(y, x)

        code = self.check(fn, lambda n: [ramp(n, 4), ramp(n, 4)], winner)
        self.assertNotIn(NEW_MEMORY, code)
        self.assertEqual(code.count(KERNEL), {-1: 0, 0: 1, "by range": 2}[winner])
        self.assertEqual(
            len(re.findall(r"torch\.ops\.in_place\.op\d+\.default\(arg\d", code)),
            int(winner == -1),
        )

    @parametrize("winner", WINNERS)
    def test_neighbours_join_where_it_is_read(self, winner):
        op = tuned(normalize_, ["x", "residual"], normalize_sum, normalize_blocks)

        def fn(x, residual, weight):
            torch._check(x.shape[0] == residual.shape[0])
            x = x @ weight
            op(x, residual)
            return torch.relu(x) + 1

        weight = torch.eye(8, device=DEVICE)
        make = lambda n: [ramp(n, 8), ramp(n, 8) - 9, weight]  # noqa: E731
        code = self.check(fn, make, winner)
        if winner == 0:  # nobody reads the product again, which is not written to
            (call,) = [
                line
                for line in code.splitlines()
                if "buf0" in line and ("cpp_fused" in line or ".run(" in line)
            ]
            self.assertEqual(call.count("buf0"), 1)
        if winner != "by range":
            self.assertEqual(code.count(KERNEL), 1)

    @parametrize("winner", WINNERS)
    @parametrize(
        "options",
        ({"cpp_wrapper": True}, {"defer_custom_op_choices": True}),
        name_fn=lambda options: next(iter(options)),
    )
    def test_one_residual_for_all_layers(self, winner, options):
        op = tuned(normalize_, ["x", "residual"], normalize_sum, normalize_blocks)

        def fn(x, residual, weight):
            torch._check(x.shape[0] == residual.shape[0])
            residual = residual + 1
            for _ in range(2):
                x = x @ weight
                op(x, residual)
            return x, residual.cos()

        weight = torch.eye(8, device=DEVICE)
        with config.patch(options):
            make = lambda n: [ramp(n, 8), ramp(n, 8) - 9, weight]  # noqa: E731
            code = self.check(fn, make, winner)
        if winner != -1:  # each layer is tuned
            self.assertNotRegex(code, r"in_place[.:]+op\d")

    @parametrize("winner", WINNERS)
    @parametrize("residual", ("given", "computed", "constant"))
    def test_calls_in_a_row_are_one(self, residual, winner):
        op = tuned(normalize_, ["x", "residual"], normalize_sum, normalize_blocks)

        make_residual = {
            "given": lambda y: y,
            "computed": torch.sin,
            "constant": torch.ones_like,
        }[residual]

        def fn(x, y):
            torch._check(x.shape[0] == y.shape[0])
            x, y = x.cos(), make_residual(y)
            op(x, y)
            op(x, y)
            return x + y

        with self.assertNoLogs(LOGGER, "WARNING"):
            make = lambda n: [ramp(n, 8), ramp(n, 8) - 9]  # noqa: E731
            code = self.check(fn, make, winner)
        if winner == "by range":
            self.assertEqual(len(re.findall(r"_args = \[", code)), 1)
        elif winner == 0:
            self.assertEqual(code.count(KERNEL), 1)
        else:
            self.assert_calls_on_same_memory(code)

    def test_names_where_fewer_tensors_are_made_than_are_waited_for(self):
        """What is written and not read is none; the next call's tensors get names of their own."""

        def mix_(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            mixed = x * 2 + y
            x.mul_(0.5).add_(y)
            return mixed

        op = tuned(mix_, ["x"], mix_, fake=lambda x, y: torch.empty_like(x))

        def fn(x, y, weight):
            first = op(x, y)
            product = y @ weight
            second = op(first, product)
            third = op(product, x)
            return second, product, third

        make = lambda n: [ramp(8, 8), ramp(8, 8) - 9, torch.eye(8, device=DEVICE)]  # noqa: E731
        with self.assertNoLogs(LOGGER, "WARNING"):
            self.check(fn, make, sizes=(8,), dims=())

    @parametrize("is_given", (False, True))
    def test_calls_in_a_row_where_no_implementation_works(self, is_given):
        def fails(x, residual):
            raise RuntimeError("not here")

        op = tuned(normalize_, ["x", "residual"], fails)

        def fn(x):
            residual = torch.ones_like(x) if is_given else x.sin()
            x = x if is_given else x.cos()
            op(x, residual)
            op(x, residual)
            return x + residual

        with self.assertLogs(LOGGER, "WARNING"):
            code = self.check(fn, lambda n: [ramp(n, 8)], dims=((0, 0),))
        self.assert_calls_on_same_memory(code)
        # What is computed before, and the result.
        self.assertEqual(code.count(NEW_MEMORY), 2 if is_given else 3)

    def test_calls_in_a_row_with_reads_between(self):
        """Of what is between both: by a view that is made before, and by what is made of it."""
        op = tuned(normalize_, ["x", "residual"], normalize_sum, normalize_blocks)

        def fn(x, residual):
            torch._check(x.shape[0] == residual.shape[0])
            part, x = x[:, 1:3], x * 2
            op(x, residual)
            between = part + residual[:, 1:3]
            row = residual[0]
            op(x, residual)
            return between, row + 1, x[:, 4:]

        make = lambda n: [ramp(n, 8), ramp(n, 8) - 9]  # noqa: E731
        self.check(fn, make)

    @parametrize("winner", (-1, 0, 1))
    def test_rows_of_a_cache(self, winner):
        def store(x: torch.Tensor, cache: torch.Tensor, places: torch.Tensor) -> None:
            cache.view(-1, cache.shape[-1])[places] = x

        def put(x, cache, places):
            cache.view(-1, cache.shape[-1]).index_put_((places,), x)

        def copied(x, cache, places):
            cache.view(-1, cache.shape[-1]).index_copy_(0, places, x)

        op = tuned(store, ["cache"], put, copied)

        def fn(x, places, cache):
            torch._check(x.shape[0] == places.shape[0])
            op(x * 2, cache[1], places)
            return cache[1, 0] + 1

        def make(n):
            cache = torch.zeros(2, 500, 8, 4, device=DEVICE)
            return [ramp(n, 4), torch.arange(n, device=DEVICE).flip(0), cache]

        code = self.check(fn, make, winner)
        # One kernel computes the rows, and maybe writes them, one reads the first of them.
        self.assertLessEqual(code.count(KERNEL), 2)
        self.assertNotRegex(code, r"fused_\w*copy")
        self.assertEqual(code.count(NEW_MEMORY), 2 if winner == -1 else 1)

    def test_rows_of_a_quantized_cache(self):
        """Its integers are no places, which measuring must not write."""

        def store(x: torch.Tensor, cache: torch.Tensor, places: torch.Tensor) -> None:
            cache[places] = (x * 8).to(cache.dtype)

        def put(x, cache, places):
            cache.index_put_((places,), (x * 8).to(cache.dtype))

        op = tuned(store, ["cache"], put)

        def fn(x, places, cache):
            torch._check(places.shape[0] == x.shape[0])
            op(x * 2, cache, places)
            return cache[0] + 1

        def make(n):
            cache = torch.zeros(5000, 4, dtype=torch.int8, device=DEVICE)
            return [ramp(n, 4) % 7, torch.arange(n, device=DEVICE).flip(0), cache]

        code = self.check(fn, make)
        self.assertNotIn("torch.ops.in_place", code)

    @parametrize("winner", (-1, 0))
    @parametrize("deferred", (True, False))
    def test_layers_of_one_cache(self, winner, deferred):
        """Each is given its own part, and takes no more memory than that to be measured."""

        def store(
            x: torch.Tensor,
            keys: torch.Tensor,
            values: torch.Tensor,
            places: torch.Tensor,
        ) -> None:
            keys[places] = x * 2
            values[places] = x + values[:1]

        def put(x, keys, values, places):
            values.index_put_((places,), x + values[:1])
            keys.index_put_((places,), x + x)

        def copied(x, keys, values, places):
            values.index_copy_(0, places, values[:1] + x)
            keys.index_copy_(0, places, 2 * x)

        op = tuned(store, ["keys", "values"], put, copied)

        def fn(x, places, cache):
            torch._check(x.shape[0] == places.shape[0])
            for layer in range(3):
                x = x.cumsum(-1)
                op(x, cache[layer, 0], cache[layer, 1], places)
                x = x + cache[layer, 1, :1]
            return x.cumsum(-1) + cache[1, 0, 5]

        def make(n):
            places = torch.arange(n, device=DEVICE).flip(0)
            return [ramp(n, 4), places, ramp(50 * 2 * 3000, 4).view(50, 2, 3000, 4)]

        part_bytes = 3000 * 4 * 4
        with (
            config.patch(defer_custom_op_choices=deferred),
            mock.patch.object(inputs, "free_bytes", lambda device: 20 * part_bytes),
            self.assertLogs(LOGGER, "INFO") as logs,
        ):
            code = self.check(fn, make, winner)
        self.assertEqual("\n".join(logs.output).count("that of an equal call"), 2)
        self.assertEqual(
            len(re.findall(r"torch\.ops\.in_place\.op\d+\.default\(", code)),
            3 if winner == -1 else 0,
        )
        self.assertNotRegex(code, rf"{NEW_MEMORY}\w+\(\(3000,")

    def first_row_added(self):
        """An op whose first result has its rows, so that times may be by range."""

        def add_first_(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            y.add_(x[:1])
            return x * 2

        def add_behind(y, x):
            y.copy_(x[:1] + y)
            return x + x

        fake = lambda y, x: torch.empty_like(x)  # noqa: E731
        return tuned(add_first_, ["y"], add_first_, add_behind, fake=fake)

    def test_not_parts_of_a_cache_that_overlap(self):
        """One is read for all rows of the other, which are written."""
        op = self.first_row_added()

        def fn(x, cache):
            return op(cache[:300], x + cache[200:201])

        make = lambda n: [ramp(n, 4), ramp(500, 4)]  # noqa: E731
        code = self.check(fn, make, "by range", dims=((0, 0),))
        self.assertEqual(code.count("def size_branch"), 2)

    def test_part_of_a_cache_that_is_read_by_places_in_all_of_it(self):
        op = self.first_row_added()

        def fn(x, cache):
            every_other = cache[1].as_strided((100, 4), (8, 1), 800)
            return op(cache[0], x + every_other[3] + cache[1, 6])

        make = lambda n: [ramp(n, 4), ramp(400, 4).view(2, 200, 4)]  # noqa: E731
        code = self.check(fn, make, "by range", dims=((0, 0),))
        self.assertEqual(code.count("def size_branch"), 2)

    def test_implementations_see_how_an_argument_lies(self):
        """As in eager mode, though they are given copies to write to."""

        def add_by_rows(y, x):
            if y.stride() != (16, 2):
                raise RuntimeError(f"it lies otherwise: {y.stride()}")
            y.copy_(y + x)

        op = tuned(add_, ["y"], add_by_rows)

        def fn(x, y):
            torch._check(x.shape[0] == y.shape[0])
            op(y[:, 1::2], x)

        with self.assertNoLogs(LOGGER, "WARNING"):
            code = self.check(fn, lambda n: [ramp(n, 8), ramp(n, 16)])
        self.assertNotIn("torch.ops.in_place", code)
        self.assertNotIn(NEW_MEMORY, code)

    @requires_gpu()
    @parametrize("winner", (-1, 0))
    def test_triton_kernel_of_a_part_of_a_cache(self, winner):
        """It is told strides, and so that of each row in the cache itself."""

        def store(x: torch.Tensor, cache: torch.Tensor, places: torch.Tensor) -> None:
            cache[places] = x

        def by_rows(x, cache, places):
            store_row[(x.shape[0],)](x, cache, places, cache.stride(0), x.shape[1])

        op = tuned(store, ["cache"], by_rows)

        def fn(x, places, cache):
            torch._check(x.shape[0] == places.shape[0])
            op(x * 2, cache[:, 1], places)

        def make(n):
            places = torch.arange(n, device=DEVICE).flip(0)
            return [ramp(n, 4), places, torch.zeros(4000, 2, 4, device=DEVICE)]

        code = self.check(fn, make, winner)
        self.assertEqual(code.count(NEW_MEMORY), 1)  # of the rows

    @parametrize("winner", (-1, 0))
    def test_parts_of_a_tensor(self, winner):
        op = adding()

        def fn(x):
            out = x.new_zeros(x.shape[0], 8)
            op(out[:, :4], x)
            op(out[:, 4:], x * 2)
            return out

        self.check(fn, lambda n: [ramp(n, 4)], winner, dims=((0, 0),))

    @parametrize("winner", WINNERS)
    def test_heads_of_one_product(self, winner):
        def turn_(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> None:
            q.copy_(q.flip(-1) * x[:, None])
            k.copy_(k.flip(-1) * x[:, None])

        def halves(x, q, k):
            for heads in (q, k):
                low, high = heads.clone().chunk(2, -1)
                heads[..., :2] = high.flip(-1) * x[:, None]
                heads[..., 2:] = low.flip(-1) * x[:, None]

        op = tuned(turn_, ["q", "k"], turn_, halves)

        def fn(x, weight):
            heads = x @ weight
            q, k, v = heads.split([8, 4, 4], -1)
            op(x, q.view(-1, 2, 4), k.view(-1, 1, 4))
            return q + 1, k + v, heads

        weight = torch.eye(4, 16, device=DEVICE)
        code = self.check(fn, lambda n: [ramp(n, 4), weight], winner, dims=((0, 0),))
        if winner == -1:  # neither heads nor the product are copied
            self.assertEqual(code.count(NEW_MEMORY), 3)

    @parametrize("winner", (-1, 0))
    def test_computed_memory_of_which_another_view_is_copied(self, winner):
        """What computes it is one buffer for all of its views."""
        op = tuned(halve_, ["x"], halve_out)

        def fn(x, weight):
            product = x @ weight
            product.view(-1, 3, 4)[:, 0].copy_(product[:, 4:8].sin())
            op(product[:, 4:8])
            low = product.view(-1, 3, 4)[:, 0].exp()
            op(product)
            return low, product[:, 2:6] * 1

        self.check(
            fn, lambda n: [ramp(n, 8) / 99, ramp(8, 12) / 9], winner, dims=[(0, 0)]
        )

    @parametrize("winner", WINNERS)
    def test_part_whose_offset_is_symbolic(self, winner):
        """The layers of a cache lie a dynamic size apart."""
        op = adding()

        def fn(x, cache):
            torch._check(x.shape[0] == cache.shape[1])
            op(cache[1], x)
            return cache[:, 0].sum()

        make = lambda n: [ramp(n, 4), ramp(3, n, 4) - 9]  # noqa: E731
        self.check(fn, make, winner, dims=((0, 0), (1, 1)))

    @parametrize(
        "winner,size,dtype",
        [
            (0, 16, torch.float32),
            (0, 16, torch.float64),
            (1, 16, torch.float32),
            (1, 128, torch.float32),
        ],
    )
    def test_heads_of_a_part(self, winner, size, dtype):
        """They are written by the loop that computes them, a head for each of its rows."""

        def norm_(x: torch.Tensor) -> None:
            heads = x.view(x.shape[0], -1, size)
            values = heads.to(dtype)
            heads.copy_(values / (values.abs().sum(-1, keepdim=True) + 1))

        def multiplied(x):
            heads = x.view(x.shape[0], -1, size)
            values = heads.to(dtype)
            heads.copy_(values * (1 + values.abs().sum(-1, keepdim=True)).reciprocal())

        def flattened(x):
            values = x.view(x.shape[0], -1, size).to(dtype)
            sums = values.abs().sum(-1, keepdim=True) + 1
            x.copy_((values / sums).to(x.dtype).flatten(1))

        op = tuned(norm_, ["x"], multiplied, flattened)

        def fn(heads):
            op(heads[:, 2 * size : 4 * size])

        make = lambda n: [ramp(n, 5 * size) / n]  # noqa: E731
        one_config = mock.patch.object(
            kernel_config_ranges, "configs_by_range", one_config_each
        )
        with one_config:
            code = self.check(fn, make, winner, dims=((0, 0),))
        self.assertEqual(code.count(KERNEL), 1, msg=code)

    def norm_and_turn(self):
        def turn_(x: torch.Tensor, k: torch.Tensor, by: torch.Tensor) -> None:
            x.copy_(x.flip(-1) * by)
            k.copy_(k.flip(-1) * by)

        def turned(x, k, by):
            x.copy_(by * x.flip(-1))
            k.copy_(by * k.flip(-1))

        norm, turn = tuned(halve_, ["x"], halve_out), tuned(turn_, ["x", "k"], turned)

        def fn(heads, by):
            q, k, _ = heads.split([16, 8, 8], -1)
            q, k = q.view(-1, 4, 4), k.view(-1, 2, 4)
            norm(q)
            norm(k)
            turn(q, k, by)

        return fn

    @parametrize("winner", WINNERS)
    def test_norms_of_heads_that_are_turned_then(self, winner):
        """Three calls on two parts of a product."""
        norm_and_turn = self.norm_and_turn()

        def fn(x, weight, by):
            torch._check(x.shape[0] == by.shape[0])
            product = x @ weight
            norm_and_turn(product, by)
            return product.sin(), product[:, 16:24]

        def make(n):
            weight = ramp(8, 32) / 256 - 0.5
            return [ramp(n, 8) / (8 * n), weight, ramp(n, 1, 1) / n]

        code = self.check(fn, make, winner, dims=((0, 0), (2, 0)))
        if winner == -1:
            calls = re.findall(r"torch\.ops\.in_place\.op\d+\.default\((.+)\)", code)
            tensor = r"reinterpret_tensor\(.+?\), \d+\)"
            q, k, turned = (re.findall(tensor, call) for call in calls)
            self.assertEqual(q + k, turned, msg=code)
        elif winner == 0:
            self.assertNotRegex(code, r"in_place[.:]+op\d")
            if not HAS_GPU:  # which has loops of another size in a kernel of their own
                self.assertEqual(code.count(KERNEL), 1, msg=code)
        else:
            # From a size on the first two by their implementation, and the last one itself.
            self.assertEqual(len(re.findall(r"_args = \[", code)), 1)
            tensor = r"reinterpret_tensor\((\w+)_input_0, .+tensor\(\1_input_0,"
            self.assertRegex(code, rf"\.op\d+\.default\({tensor}")
            self.assertNotRegex(code, r"fused_\w*_copy_\d")

    def test_norms_of_heads_of_one_size_that_are_turned_then(self):
        """They are not decided together, and each is where the ones before have written."""
        fn = self.norm_and_turn()
        make = lambda n: [ramp(n, 32) / (32 * n), ramp(n, 1, 1) / n]  # noqa: E731
        with self.assertNoLogs(LOGGER, "WARNING"):
            code = self.check(fn, make, sizes=(128,), dims=())
        self.assertNotRegex(code, r"in_place[.:]+op\d")

    def test_not_parts_that_overlap(self):
        def shift_(x: torch.Tensor, y: torch.Tensor) -> None:
            y.copy_(x.clone())

        op = tuned(shift_, ["y"], shift_)

        def fn(x, weight):
            x = x @ weight
            op(x[:, :3], x[:, 1:])
            return x

        weight = torch.eye(4, device=DEVICE)
        with self.assertLogs(LOGGER, "INFO") as logs:
            self.check(fn, lambda n: [ramp(n, 4), weight], dims=((0, 0),))
        self.assertIn("other arguments share memory with 'y'", logs.output[0])

    @parametrize("winner", WINNERS)
    @parametrize("is_given", (False, True))
    def test_argument_that_may_be_none(self, is_given, winner):
        """Such as the keys of a rotary embedding, beside the queries."""

        def turn_(x: torch.Tensor, keys: torch.Tensor | None) -> None:
            for heads in (x,) if keys is None else (x, keys):
                heads.copy_(torch.cat([-heads[:, 2:], heads[:, :2]], 1))

        def by_halves(x, keys):
            for heads in (x, keys):
                if heads is not None:
                    low, high = heads.clone().chunk(2, 1)
                    torch.cat([-high, low], 1, out=heads)

        op = tuned(turn_, ["x", "keys"], by_halves, turn_)

        def fn(x, keys, weight):
            torch._check(x.shape[0] == keys.shape[0])
            queries = x @ weight
            op(queries, keys if is_given else None)
            return queries * 2

        weight = torch.eye(4, device=DEVICE)
        code = self.check(fn, lambda n: [ramp(n, 4), ramp(n, 4) + 1, weight], winner)
        self.assertEqual("torch.ops.in_place" in code, winner == -1)

    @parametrize("winner", WINNERS)
    def test_list_of_tensors(self, winner):
        """Such as the parameters of a layer; one of them is a copy that others read."""

        def step_(x: torch.Tensor, into: list[torch.Tensor]) -> None:
            for tensor in into:
                tensor.add_(x)

        def at_once(x, into):
            torch._foreach_add_(into, [x] * len(into))

        op = tuned(step_, ["into"], at_once, step_)

        def fn(x, y, z):
            torch._check(x.shape[0] == y.shape[0])
            torch._check(x.shape[0] == z.shape[0])
            copy = z * 1
            op(x * 2, [y, copy, z])
            return copy + 1

        make = lambda n: [ramp(n, 4), ramp(n, 4) + 1, ramp(n, 4) + 2]  # noqa: E731
        code = self.check(fn, make, winner, dims=((0, 0), (1, 0), (2, 0)))
        self.assertEqual("torch.ops.in_place" in code, winner == -1)

    @parametrize("winner", WINNERS)
    def test_argument_is_what_the_op_returns(self, winner):
        def fn(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return y.add_(x)

        op = tuned(fn, ["y"], add_out, add_copy, tags=torch.Tag.inplace)

        def model(x, y):
            torch._check(x.shape[0] == y.shape[0])
            result = op(y[:, 1:], x)
            y.mul_(2)
            op(result, x).add_(1)
            return result * 2

        make = lambda n: [ramp(n, 3), ramp(n, 4)]  # noqa: E731
        code = self.check(model, make, winner)
        self.assertEqual("torch.ops.in_place" in code, winner == -1)

    @parametrize("winner", WINNERS)
    def test_arguments_are_what_the_op_returns(self, winner):
        def fn(
            x: torch.Tensor, *, half: torch.Tensor, total: torch.Tensor
        ) -> tuple[torch.Tensor, torch.Tensor]:
            return half.copy_(x / 2), total.copy_(x.sum(1, keepdim=True))

        def impl(x, *, half, total):
            torch.div(x, 2, out=half)
            torch.sum(x, 1, keepdim=True, out=total)

        op = tuned(fn, ["half", "total"], impl, fn, tags=torch.Tag.out)

        def model(x, half):
            torch._check(x.shape[0] == half.shape[0])
            total = x.new_empty(x.shape[0], 1)
            written = op(x + 1, half=half, total=total)
            written[0].add_(1)
            return written[1] * 3, total

        make = lambda n: [ramp(n, 4), ramp(n, 4)]  # noqa: E731
        code = self.check(model, make, winner)
        self.assertEqual("torch.ops.in_place" in code, winner == -1)

    @parametrize("winner", (-1, 0))
    def test_results_beside_what_is_written(self, winner):
        def fn(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            y.add_(x)
            return y.sum(-1)

        def impl(y, x):
            y.copy_(y + x)
            return torch.sum(y, -1)

        op = tuned(fn, ["y"], impl, fake=lambda y, x: y.new_empty(y.shape[:-1]))

        def model(x, y, weight):
            torch._check(x.shape[0] == y.shape[0])
            y = (y @ weight).view(-1, 2, 2)
            total = op(y, x.view(-1, 2, 2))
            return total + 1, y * 2

        weight = torch.eye(4, device=DEVICE)
        make = lambda n: [ramp(n, 4), ramp(n, 4), weight]  # noqa: E731
        code = self.check(model, make, winner)
        self.assertLessEqual(code.count(KERNEL), 2)

    @parametrize("winner", (-1, 0))
    def test_what_is_written_has_no_elements(self, winner):
        def fn(y: torch.Tensor, x: torch.Tensor) -> None:
            y.add_(x)

        op = tuned(fn, ["y"], lambda y, x: y.copy_(y + x) and None)

        def model(x, y):
            op(y, x * 2)
            op(y, x)
            return y + 1

        for x in (ramp(0, 4), ramp(4, 0)):
            torch._dynamo.reset()
            with made_up_times(only(winner)):
                compiled = torch.compile(model, fullgraph=True)
                self.assertEqual(compiled(x, x.clone()), model(x, x.clone()))

    def test_results_where_no_implementation_works(self):
        """The op is called once, and in place."""

        def fn(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            y.add_(x)
            return y.sum(-1)

        def guards(y, x):
            y.add_(x if y.shape[0] // 8 % 2 else x + 0)
            return y.sum(-1)

        op = tuned(fn, ["y"], guards, fake=lambda y, x: y.new_empty(y.shape[:-1]))

        def model(x, y):
            torch._check(x.shape[0] == y.shape[0])
            return op(y, x) + 1, y * 2

        with self.assertLogs(LOGGER, "WARNING") as logs:
            code = self.check(model, lambda n: [ramp(n, 4), ramp(n, 4)])
        self.assertIn("'guards' is left out: it guards on a size", logs.output[0])
        called = re.findall(r"= torch\.ops\.in_place\.op\d+\.default\(", code)
        self.assertEqual(len(called), 1)

    def test_parts_of_a_tensor_where_no_implementation_works(self):
        """Such as queries and keys side by side: the op itself writes to both."""

        def turn_(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> None:
            low.add_(x)
            high.mul_(x)

        def guards(x, low, high):
            low.add_(x)
            high.mul_(x if len(x) > 2 else 1)

        op = tuned(turn_, ["low", "high"], guards)

        def fn(x, both):
            torch._check(x.shape[0] == both.shape[0])
            op(x, both[:, :4], both[:, 4:])

        with self.assertLogs(LOGGER, "WARNING") as logs:
            code = self.check(fn, lambda n: [ramp(n, 4), ramp(n, 8)])
        self.assertIn("guards", logs.output[0])
        self.assertNotIn(NEW_MEMORY, code)
        self.assertEqual(
            len(re.findall(r"torch\.ops\.in_place\.op\d+\.default\(", code)), 1
        )

    @parametrize("winner", (-1, 0))
    def test_value_that_is_computed_where_it_is_read(self, winner):
        """It is a tensor of its own where it is written to."""

        def fn(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            y.mul_(x)
            return y.cos()

        def impl(y, x):
            y.copy_(y * x)
            return torch.cos(y)

        op = tuned(fn, ["y"], impl, fake=lambda y, x: torch.empty_like(y))

        def model(x, y):
            torch._check(x.shape[0] == y.shape[0])
            y[:, :2] = x[:, 2:] * 0.5
            first = op(y, x.cos())
            return first * x, op(x, y)

        make = lambda n: [ramp(n, 4) * 1e-3, ramp(n, 4) * -1e-3]  # noqa: E731
        code = self.check(model, make, winner, atol=1e-4, rtol=1e-4)
        self.assertEqual("torch.ops.in_place" in code, winner == -1)

    @parametrize("winner", (-1, 0))
    def test_what_was_there_is_read_too(self, winner):
        op = adding()

        def fn(x, y):
            torch._check(x.shape[0] == y.shape[0])
            before = y.cos()
            op(y, before)
            return before + x, y + before

        self.check(fn, lambda n: [ramp(n, 4), ramp(n, 4)], winner)

    @parametrize("winner", (-1, 0))
    def test_one_size(self, winner):
        op = tuned(normalize_, ["x", "residual"], normalize_sum)

        def fn(x, residual):
            op(x, residual)
            return x * 2

        with made_up_times(times(winner)):
            given, expected = ([ramp(8, 8), ramp(8, 8) - 9] for _ in range(2))
            result, (code,) = run_and_get_code(torch.compile(fn), *given)
        self.assertEqual((result, given), (fn(*expected), expected))
        self.assertEqual(code.count(KERNEL), 1)

    def test_results_that_nobody_reads_are_not_compared(self):
        op = tuned(
            normalize_,
            ["x", "residual"],
            normalize_sum,
            lambda x, residual: residual.add_(x * 2) and None,
            numerics_check="drop",
        )

        def fn(x, residual, weight):
            torch._check(x.shape[0] == residual.shape[0])
            x = x @ weight
            op(x, residual)
            return residual * 2

        weight = torch.eye(8, device=DEVICE)
        with self.assertLogs(LOGGER, "WARNING") as logs:
            code = self.check(fn, lambda n: [ramp(n, 8), ramp(n, 8) - 9, weight])
        self.assertEqual(len(logs.output), 1, logs.output)
        self.assertEqual(code.count(KERNEL), 1)

    def test_neighbours_that_implementations_do_not_work_with(self):
        """The op and its write are tuned alone."""

        def alone(y, x):
            ops = get_proxy_mode().tracer.graph.find_nodes(
                op="call_function", target=torch.ops.aten.cos.default
            )
            if ops:
                raise RuntimeError("neighbours")
            torch.add(y, x, out=y)

        op = tuned(add_, ["y"], alone)

        def fn(x, y):
            torch._check(x.shape[0] == y.shape[0])
            op(y, x.cos())
            return y + 1

        with self.assertLogs(LOGGER, "INFO") as logs:
            code = self.check(fn, lambda n: [ramp(n, 4), ramp(n, 4)])
        self.assertIn("do not work with these neighbours", logs.output[0])
        self.assertNotIn("torch.ops.in_place", code)
        self.assertEqual(code.count(NEW_MEMORY), 1)

    def test_candidates_left_out_are_told_of(self):
        def guards(y, x):
            torch.add(y, x if y.shape[0] // 8 % 2 else x + 0, out=y)

        op = tuned(add_, ["y"], guards)

        def fn(x, y):
            op(y, x)

        with self.assertLogs(LOGGER, "WARNING") as logs:
            code = self.check(fn, lambda n: [ramp(n, 4), ramp(n, 4)])
        self.assertRegex(logs.output[0], "'guards' is left out: it guards on a size, ")
        self.assertNotIn(NEW_MEMORY, code)
        self.assertNotIn(KERNEL, code)

    def test_not_without_regions(self):
        op = adding()

        def fn(x, y):
            torch._check(x.shape[0] == y.shape[0])
            op(y, x)

        with (
            config.patch(enable_custom_op_fusion=False),
            self.assertLogs(LOGGER, "INFO") as logs,
        ):
            self.check(fn, lambda n: [ramp(n, 4), ramp(n, 4)])
        self.assertIn("it writes to 'y' in place, and nothing joins", logs.output[0])

    def test_not_what_no_region_takes_in(self):
        op = adding()

        def fn(x, y):
            torch._check(x.shape[0] == y.shape[1])
            op(y.t(), x)

        with self.assertLogs(LOGGER, "INFO") as logs:
            code = self.check(
                fn, lambda n: [ramp(n, 4), ramp(4, n)], dims=((0, 0), (1, 1))
            )
        self.assertRegex(
            logs.output[0],
            r"in_place.op\d+.default is not tuned here: no region takes in what it writes",
        )
        self.assertIn("torch.ops.in_place", code)

    @parametrize("winner", (-1, 0))
    def test_what_was_there_is_written_elsewhere(self, winner):
        """Behind the op, as all that a region writes."""
        op = adding()

        def fn(x, y, z):
            torch._check(x.shape[0] == y.shape[0])
            torch._check(x.shape[0] == z.shape[0])
            before = y.clone()
            op(y, x * 2)
            z.copy_(before)
            return y.cos()

        make = lambda n: [ramp(n, 4), ramp(n, 4) - 9, ramp(n, 4)]  # noqa: E731
        self.check(fn, make, winner, dims=((0, 0), (1, 0), (2, 0)))


class TestWithoutCopies(TestCase):
    @parametrize("is_written_elsewhere", (False, True))
    def test_unless_it_is_written_elsewhere_as_it_was(self, is_written_elsewhere):
        """Behind the op, as all that a region writes."""
        graph = torch.fx.Graph()
        y, x, z = (graph.placeholder(name) for name in "yxz")
        copy = graph.call_function(torch.ops.aten.clone.default, (y,))
        for node in (y, x, z, copy):
            node.meta["val"] = torch.zeros(2, 4)
        call = graph.call_function(adding()._opoverload, (copy, x))
        writes = [(y, copy), (z, y)] if is_written_elsewhere else [(y, copy)]
        to = torch.ops.inductor_write.copy.default
        graph.output(tuple(graph.call_function(to, args) for args in writes))
        lowered = without_copies(torch.fx.GraphModule({}, graph)).graph
        (found,) = lowered.find_nodes(op="call_function", target=call.target)
        kept = lowered.find_nodes(op="call_function", target=copy.target)
        self.assertEqual(len(kept), int(is_written_elsewhere))
        self.assertEqual(found.args[0].op == "placeholder", not is_written_elsewhere)

    @parametrize(
        "dtype,is_read,is_kept",
        (
            (torch.float32, False, False),
            (torch.float32, True, True),
            (torch.float64, False, True),
        ),
    )
    def test_what_is_copied_to_an_argument_is_written(self, dtype, is_read, is_kept):
        """Unless the copy makes another dtype of it, or others read that."""
        graph = torch.fx.Graph()
        y, x = (graph.placeholder(name) for name in "yx")
        value = graph.call_function(torch.ops.aten.sin.default, (x,))
        copy = graph.call_function(torch.ops.aten.copy.default, (y, value))
        for node in (y, copy):
            node.meta["val"] = torch.zeros(2, 4)
        for node in (x, value):
            node.meta["val"] = torch.zeros(2, 4, dtype=dtype)
        to = torch.ops.inductor_write.copy.default
        write = graph.call_function(to, (y, copy))
        graph.output((write, copy) if is_read else (write,))
        lowered = without_copies(torch.fx.GraphModule({}, graph)).graph
        (write,) = lowered.find_nodes(op="call_function", target=to)
        written = copy.target if is_kept else value.target
        self.assertIs(write.args[1].target, written)

    @parametrize("order", ("copy of what is written", "copy before", "read behind"))
    def test_writes_to_one_copy(self, order):
        """A copy of a copy is none, but where both are needed."""
        graph = torch.fx.Graph()
        y, x = (graph.placeholder(name) for name in "yx")
        op, clone = adding()._opoverload, torch.ops.aten.clone.default
        first = graph.call_function(clone, (y,))
        calls = []
        if order != "copy before":
            calls.append(graph.call_function(op, (first, x)))
        second = graph.call_function(clone, (first,))
        if order == "copy before":
            calls.append(graph.call_function(op, (first, x)))
        calls.append(graph.call_function(op, (second, x)))
        graph.output((second, first) if order == "read behind" else (second,))
        for node in (y, x, first, second):
            node.meta["val"] = torch.zeros(2, 4)
        lowered = without_copies(torch.fx.GraphModule({}, graph)).graph
        written = [c.args[0] for c in lowered.find_nodes(op="call_function", target=op)]
        is_one = order == "copy of what is written"
        self.assertEqual(len({*written}), 1 if is_one else 2)


instantiate_parametrized_tests(TestWithoutCopies)

# Of the tensors of a model, one more.
MAKES = (
    lambda x, y: x.sin(),
    lambda x, y: x - 0.5 * y,
    lambda x, y: x.flip(-1) + x.sum(-1, keepdim=True) * 0.1,
    lambda x, y: x.mT.cos().mT,
    lambda x, y: x @ y[:1].expand(4, 4),
    lambda x, y: torch.cat([x[:, 2:], y[:, :2]], -1),
)
ADD = tuned(add_, ["y"], add_out, add_copy)
NORMALIZE = tuned(normalize_, ["x", "residual"], normalize_sum, normalize_blocks)


def put(x, y):
    x[torch.arange(x.shape[0], device=x.device).flip(0)] = y * 0.5


# What writes to the first one.
WRITES = (
    lambda x, y: x.copy_(y.sin()),
    put,
    ADD,
    lambda x, y: ADD(x.view(-1, 2, 2), y.reshape(-1, 2, 2)),
    lambda x, y: ADD(x[:, 1:3], y[:, :2]),
    NORMALIZE,
)
PLACES = st.integers(0, 9)
STEPS = st.tuples(st.booleans(), st.integers(0, 5), PLACES, PLACES)


class TestRandomModels(InPlaceTestCase):
    @settings(max_examples=8, deadline=None, derandomize=True, database=None)
    @given(
        st.lists(STEPS, min_size=4, max_size=9),
        st.lists(PLACES, min_size=2, max_size=3),
        st.sampled_from((-1, 0, "by range")),
    )
    def test_as_eager(self, steps, returned, winner):
        def fn(*given):
            for other in given[1:]:
                torch._check(other.shape[0] == given[0].shape[0])
            known = [*given]
            for writes, which, to, value in steps:
                x, y = known[to % len(known)], known[value % len(known)]
                if not writes:
                    known.append(MAKES[which](x, y))
                elif x is not y:
                    WRITES[which](x, y)
            return [known[at % len(known)] * 1 for at in returned]

        def make(n):
            generator = torch.Generator().manual_seed(n)
            tensors = (torch.randn(n, 4, generator=generator) for _ in range(3))
            return [tensor.to(DEVICE) for tensor in tensors]

        torch._dynamo.reset()
        dims = [(i, 0) for i in range(3)]
        self.check(fn, make, winner, (5, 511, 512), dims, atol=1e-4, rtol=1e-4)


if __name__ == "__main__":
    run_tests()
