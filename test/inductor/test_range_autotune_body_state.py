# Owner(s): ["module: inductor"]
"""Which bodies of custom ops may be traced in the op's place."""

import functools
import math
import random
from unittest import mock

import torch.nn.functional as F
from range_autotune_testing import made_up_times
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.candidate_indices import PLAIN_INDEX
from torch._inductor.range_autotune.ops.body_state import may_read_state
from torch._inductor.range_autotune.ops.op_bodies import body_on, written_bodies


SCALE = 2.0


@functools.cache
def table(n):
    return torch.arange(n, dtype=torch.float32)


def scaled_by_root(x):
    return x * math.sqrt(2)


def scaled_by_global(x):
    return x * SCALE


def of_torch(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    y = F.rms_norm(x, (x.shape[-1],), None, eps) + torch.ops.aten.sin(x).float()
    return torch.cat([y for _ in range(2)]).to(torch.float32)


def of_functions(x: torch.Tensor) -> torch.Tensor:
    return (lambda y: scaled_by_root(y) * max(1, len(y.shape)))(x)


def of_a_global(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


def of_a_function_of_a_global(x: torch.Tensor) -> torch.Tensor:
    return scaled_by_global(x)


def of_a_cache(x: torch.Tensor) -> torch.Tensor:
    return x + table(x.shape[-1])


def of_chance(x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def of_torch_s_chance(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rand_like(x)


def of_where_it_lies(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if x.storage_offset() % 2 == 0 else x * 3


def of_the_mode(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.is_anomaly_enabled() or x.is_inference() else x * 3


def of_the_environment(x: torch.Tensor) -> torch.Tensor:
    import os

    return x * len(os.environ)


def of_a_closure():
    values = [2.0]

    def body(x: torch.Tensor) -> torch.Tensor:
        return x * values[0]

    return body


def of_a_method():
    add = torch.ones(4).add

    def bound(x: torch.Tensor) -> torch.Tensor:
        return add(x)

    return bound


def that_reads_a_file(x: torch.Tensor) -> torch.Tensor:
    with open("factor") as file:
        return x * float(file.read())


def that_prints(x: torch.Tensor) -> torch.Tensor:
    print(x.shape)
    return x + 1


def that_seeds(x: torch.Tensor) -> torch.Tensor:
    torch.manual_seed(0)
    return x + torch.rand_like(x)


def that_looks_names_up(x: torch.Tensor) -> torch.Tensor:
    return x * globals()["SCALE"]


def that_asks_if_it_is_compiled(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if torch.compiler.is_compiling() else x


def that_asks_for_a_type(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if type(x) is torch.Tensor else x


def of_a_switch(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if torch.backends.cudnn.enabled else 3)


def of_inductor_s_config(x: torch.Tensor) -> torch.Tensor:
    return x * (2 if torch._inductor.config.max_autotune else 3)


def of_the_rank(x: torch.Tensor) -> torch.Tensor:
    return x * torch.distributed.get_rank()


def that_asks_for_an_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * 2 if hasattr(x, "scale") else x


def that_changes_the_number_of_threads(x: torch.Tensor) -> torch.Tensor:
    torch.set_num_threads(torch.get_num_threads() + 1)
    return x + 1


def of_the_seed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.initial_seed()


def of_its_op_s_attribute(x: torch.Tensor) -> torch.Tensor:
    return x * with_attribute.scale


def that_counts_calls(x: torch.Tensor) -> torch.Tensor:
    with_attribute.calls = 1
    return x + 1


def of_a_kernel(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def of_another_op(x: torch.Tensor) -> torch.Tensor:
    return with_attribute(x) if x.device.type == "cpu" else x


def kernel_of(factor):
    def kernel(x: torch.Tensor) -> torch.Tensor:
        return x * factor[0]

    return kernel


def define_op(fn):
    op = torch.library.custom_op(f"body_state::{fn.__name__}", mutates_args=())(fn)
    op.register_fake(torch.empty_like)
    return op


with_attribute = torch.library.custom_op(
    "body_state::with_attribute", of_a_kernel, mutates_args=()
)
with_attribute.scale = 2.0


@instantiate_parametrized_tests
class TestBodies(TestCase):
    @parametrize(
        "fn", (of_torch, of_functions, of_another_op), name_fn=lambda fn: fn.__name__
    )
    def test_of_arguments_alone(self, fn):
        op = define_op(fn)
        self.assertFalse(may_read_state(written_bodies(op)[None]))

    @parametrize(
        "fn",
        (
            of_a_global,
            of_a_function_of_a_global,
            of_a_cache,
            of_chance,
            of_torch_s_chance,
            of_where_it_lies,
            of_the_mode,
            of_the_environment,
            of_a_closure(),
            of_a_method(),
            that_reads_a_file,
            that_prints,
            that_seeds,
            that_looks_names_up,
            that_asks_if_it_is_compiled,
            that_asks_for_a_type,
            of_a_switch,
            of_inductor_s_config,
            of_the_rank,
            that_asks_for_an_attribute,
            that_changes_the_number_of_threads,
            of_the_seed,
            of_its_op_s_attribute,
            that_counts_calls,
        ),
        name_fn=lambda fn: fn.__name__,
    )
    def test_of_more(self, fn):
        op = define_op(fn)
        self.assertTrue(may_read_state(written_bodies(op)[None]))

    def test_kernel_of_a_device(self):
        op = define_op(of_a_kernel)
        op.register_kernel("cpu")(of_a_global)
        bodies = {None: of_a_kernel, "cpu": of_a_global}
        self.assertEqual(written_bodies(op), bodies)
        self.assertFalse(may_read_state(bodies[None]))
        self.assertTrue(may_read_state(bodies["cpu"]))

    def test_kernel_that_is_disabled(self):
        op = define_op(of_a_kernel)
        op.register_kernel("cpu")(of_a_global)
        with op.set_kernel_enabled("cpu", enabled=False):
            self.assertIs(body_on(op, "cpu"), of_a_kernel)
            x = torch.ones(2)
            self.assertEqual(op(x), of_a_kernel(x))
        self.assertIs(body_on(op, "cpu"), of_a_global)

    def test_compiled_code_follows_what_it_reads(self):
        """Here an implementation is slower than all else, and the body does not compete."""
        factor = [2.0]

        def times_factor(x: torch.Tensor) -> torch.Tensor:
            return x * factor[0]

        op = define_op(times_factor)
        kernel = torch.library.custom_op("body_state::kernel", mutates_args=())(
            kernel_of(factor)
        )
        kernel.register_fake(torch.empty_like)
        measured = set()

        def ms(size, index):
            measured.add(index)
            return 2.0 if index == 0 else 1.0

        with mock.patch.dict(user_lowerings):
            register_custom_op_autotuning(op, configs=[CustomOpConfig(kernel)])
            compiled = torch.compile(lambda x: op(x.sin()) + 1)
            x = torch.randn(8, 4)
            with made_up_times(ms):
                self.assertEqual(compiled(x), x.sin() * 2 + 1)
            factor[0] = 3.0
            self.assertEqual(compiled(x), x.sin() * 3 + 1)
        self.assertNotIn(PLAIN_INDEX, measured)


if __name__ == "__main__":
    run_tests()
