# Owner(s): ["module: inductor"]
"""What Triton kernels of users count by, without Triton; and that its classes have that."""

import copy
import unittest
from unittest import mock

from range_autotune_testing import (
    made_up_triton,
    MadeUpAutotuner,
    MadeUpConfig,
    MadeUpHeuristics,
    MadeUpJitFunction,
)
from torch._higher_order_ops.triton_kernel_wrap import TraceableTritonKernelWrapper
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.utils._triton import has_triton_package

from torch._inductor.range_autotune.contents.content import content_digest
from torch._inductor.range_autotune.contents.triton_kernels import _COUNTS, kernel_parts


FACTOR = 2


def shifted(x):
    return x + 1


def shifted_more(x):
    return x + 2


step = MadeUpJitFunction(shifted)


def body(x, BLOCK):
    return step(x) * FACTOR + BLOCK


def other_body(x, BLOCK):
    return x


def block(args):
    return args["n"]


def other_block(args):
    return 2 * args["n"]


def kernel(**options):
    return MadeUpJitFunction(body, **options)


def block_config(number=64, **options):
    return MadeUpConfig({"BLOCK": number}, **options)


def autotuned(fn=None, configs=None, key=("n",), **options):
    configs = configs or [block_config(), block_config(128)]
    return MadeUpAutotuner(fn or kernel(), configs, list(key), **options)


def by_heuristics(fn=None, value=block):
    return MadeUpHeuristics(fn or kernel(), {"BLOCK": value})


CHANGES = {
    "source": (kernel, lambda: kernel(src="another")),
    "function": (kernel, lambda: MadeUpJitFunction(other_body, src="def body")),
    "not_specialized": (kernel, lambda: kernel(do_not_specialize=["x"])),
    "inlining": (kernel, lambda: kernel(noinline=True)),
    "kernel": (autotuned, lambda: autotuned(kernel(src="another"))),
    "config": (autotuned, lambda: autotuned(configs=[block_config()])),
    "order_of_configs": (
        autotuned,
        lambda: autotuned(configs=[block_config(128), block_config()]),
    ),
    "warps": (
        lambda: autotuned(configs=[block_config()]),
        lambda: autotuned(configs=[block_config(num_warps=8)]),
    ),
    "registers": (
        lambda: autotuned(configs=[block_config()]),
        lambda: autotuned(configs=[block_config(maxnreg=64)]),
    ),
    "hook_of_a_config": (
        lambda: autotuned(configs=[block_config(pre_hook=block)]),
        lambda: autotuned(configs=[block_config(pre_hook=other_block)]),
    ),
    "key": (autotuned, lambda: autotuned(key=["n", "m"])),
    "what_is_restored": (autotuned, lambda: autotuned(restore_value=["x"])),
    "what_is_zeroed": (autotuned, lambda: autotuned(reset_to_zero=["x"])),
    "pruning": (
        lambda: autotuned(early_config_prune=block),
        lambda: autotuned(early_config_prune=other_block),
    ),
    "performance_model": (
        lambda: autotuned(perf_model=block),
        lambda: autotuned(perf_model=other_block),
    ),
    "number_of_the_best": (autotuned, lambda: autotuned(configs_top_k=1)),
    "heuristic": (by_heuristics, lambda: by_heuristics(value=other_block)),
    "kernel_of_heuristics": (
        by_heuristics,
        lambda: by_heuristics(kernel(src="another")),
    ),
    "heuristic_of_an_autotuned_kernel": (
        lambda: autotuned(by_heuristics()),
        lambda: autotuned(by_heuristics(value=other_block)),
    ),
}
KERNELS = {
    "kernel": kernel,
    "autotuned": autotuned,
    "by_heuristics": by_heuristics,
    "autotuned_by_heuristics": lambda: autotuned(by_heuristics()),
    "heuristics_of_an_autotuned_one": lambda: by_heuristics(autotuned()),
}


@instantiate_parametrized_tests
class TestKernels(TestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(made_up_triton())

    @parametrize("what", list(CHANGES))
    def test_counts(self, what):
        """Made anew, as by each trace or in another process, it counts the same."""
        made, changed = CHANGES[what]
        self.assertEqual(content_digest(made()), content_digest(made()))
        self.assertNotEqual(content_digest(made()), content_digest(changed()))

    @parametrize("which", list(KERNELS))
    def test_what_launches_leave_does_not_count(self, which):
        launched = KERNELS[which]()
        before = content_digest(launched)
        launched.launch()
        self.assertEqual(content_digest(launched), before)

    @parametrize("which", list(KERNELS))
    def test_globals_and_helpers_count_as_they_are(self, which):
        """Triton's key stays as it was when it was first asked for."""
        launched = KERNELS[which]()
        launched.launch()
        digests = {content_digest(launched)}
        with mock.patch(f"{__name__}.FACTOR", 3):
            digests.add(content_digest(launched))
        with mock.patch.object(step, "fn", shifted_more):
            digests.add(content_digest(launched))
        self.assertEqual(len(digests), 3)

    def test_copies_of_configs_have_their_fields_in_another_order(self):
        config = block_config()
        copied = copy.copy(config)
        vars(copied).clear()
        vars(copied).update(reversed(vars(config).items()))
        self.assertEqual(content_digest(config), content_digest(copied))
        copied.num_consumer_groups = 2
        self.assertNotEqual(content_digest(config), content_digest(copied))

    def test_numbers_of_wrapped_kernels_do_not_count(self):
        def wrapped(number, **options):
            wrapper = TraceableTritonKernelWrapper.__new__(TraceableTritonKernelWrapper)
            wrapper.kernel, wrapper.grid = kernel(**options), (1,)
            wrapper.kernel_idx = number
            return wrapper

        digests = [
            content_digest(w) for w in (wrapped(0), wrapped(1), wrapped(0, src="other"))
        ]
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])

    def test_nothing_else_is_a_kernel(self):
        for value in (None, 1, block, MadeUpConfig, object()):
            self.assertIsNone(kernel_parts(value))


@unittest.skipUnless(has_triton_package(), "needs Triton")
class TestTriton(TestCase):
    def test_its_kernels_have_what_counts(self):
        import triton

        with mock.patch(
            "inspect.getsourcelines", return_value=(["def body(x): ...\n"], 1)
        ):
            jitted = triton.jit(body)
        wrapped = triton.heuristics({"BLOCK": block})(jitted)
        tuned = triton.autotune([triton.Config({"N": 1})], key=["x"])(wrapped)
        names = ("JITCallable", "Heuristics", "Autotuner")
        for name, value in zip(names, (jitted, wrapped, tuned), strict=True):
            self.assertIsNotNone(kernel_parts(value))
            (attributes,) = (found for key, found in _COUNTS.items() if name in key)
            self.assertEqual([a for a in attributes if not hasattr(value, a)], [])
            self.assertEqual(content_digest(value), content_digest(value))
        (config,) = tuned.configs
        self.assertEqual(
            content_digest(config), content_digest(triton.Config({"N": 1}))
        )


if __name__ == "__main__":
    run_tests()
