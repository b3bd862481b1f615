# Owner(s): ["module: inductor"]
"""Tests of ``range_autotune.kernel_configs.kernel_config_names``, without Triton."""

from types import SimpleNamespace

from torch._inductor.runtime.hints import HeuristicType
from torch._inductor.runtime.triton_heuristics import cached_autotune
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import Placeholder

from torch._inductor import config
from torch._inductor.range_autotune.kernel_configs.kernel_config_names import (
    configs_of_kernel,
    content_name,
    content_name_of,
    function_name,
    KERNEL_CONFIGS_OPTION,
    text_of,
    with_config_named,
)


def triton_config(warps, **kwargs):
    return SimpleNamespace(kwargs=kwargs, num_warps=warps, num_stages=2, maxnreg=64)


def source(**inductor_meta):
    """That of a kernel as code generation leaves it to be named."""
    meta = {
        "grid_type": "Grid1D",
        "kernel_name": str(Placeholder.DESCRIPTIVE_NAME),
        **inductor_meta,
    }
    name = Placeholder.KERNEL_NAME
    return f"@pointwise(\n    inductor_meta={meta!r},\n)\ndef {name}(x):\n    pass\n"


def meta_in(text):
    """A source's ``inductor_meta``, as Python reads it."""
    (line,) = (x for x in text.splitlines() if "inductor_meta=" in x)
    return eval(line.strip().removeprefix("inductor_meta=").removesuffix(","))


class TestNamedConfigs(TestCase):
    def test_from_a_launcher_to_the_kernel_of_a_branch(self):
        chosen = triton_config(8, XBLOCK=16, R0_BLOCK=2048, waves_per_eu=None)
        text = source(num_load=2)
        with config.patch(
            {KERNEL_CONFIGS_OPTION: {content_name(text): text_of(chosen)}}
        ):
            named = with_config_named(text)
        meta = meta_in(named)
        self.assertEqual(
            {key: meta[key] for key in meta_in(text)}, meta_in(text), "what was there"
        )
        offered = [triton_config(4, XBLOCK=1), triton_config(8, XBLOCK=1)]
        (config_of_kernel,) = configs_of_kernel(offered, meta)
        self.assertEqual(vars(config_of_kernel), vars(chosen))
        self.assertEqual(vars(offered[0]), vars(triton_config(4, XBLOCK=1)))
        self.assertFalse(meta["dynamic_scale_rblock"])

    def test_other_kernels_are_as_they_were(self):
        for named in ({}, {content_name("another"): text_of(triton_config(4))}):
            with config.patch({KERNEL_CONFIGS_OPTION: named}):
                self.assertEqual(with_config_named(source()), source())
        offered, meta = [triton_config(4), triton_config(8)], {}
        self.assertIs(configs_of_kernel(offered, meta), offered)
        self.assertEqual(meta, {})

    def test_kernels_with_different_configs_have_different_names(self):
        texts = {source()}
        for warps in (4, 8):
            named = {content_name(source()): text_of(triton_config(warps))}
            with config.patch({KERNEL_CONFIGS_OPTION: named}):
                texts.add(with_config_named(source()))
        self.assertEqual(len(set(map(content_name, texts))), 3)

    def test_all_have_one_function(self):
        """What was compiled to be measured is not compiled again under another name."""
        plain = f"triton_per_fused_mean_{content_name(source())}"
        self.assertEqual(function_name(plain, source()), plain)
        for warps in (4, 8):
            named = {content_name(source()): text_of(triton_config(warps, XBLOCK=1))}
            with config.patch({KERNEL_CONFIGS_OPTION: named}):
                text = with_config_named(source())
            kernel_name = f"triton_per_fused_mean_{content_name(text)}"
            self.assertNotEqual(kernel_name, plain)
            self.assertEqual(function_name(kernel_name, text), plain)
            self.assertEqual(function_name("triton_", text), "triton_")

    def test_the_name_of_a_loaded_kernel(self):
        name = content_name(source())
        kernel = SimpleNamespace(custom_kernel=False, inductor_meta={})
        kernel.inductor_meta["kernel_name"] = f"triton_per_fused_add_mean_{name}"
        self.assertEqual(content_name_of(kernel), name)
        kernel.custom_kernel = True
        self.assertIsNone(content_name_of(kernel))

    def test_a_config_that_is_no_text(self):
        self.assertIsNone(text_of(triton_config(4, hook=print)))

    def test_inductor_makes_no_other_configs(self):
        made = {}

        def autotuner(fn, configs, inductor_meta, **others):
            made.update(configs=configs, inductor_meta=inductor_meta)

        chosen = triton_config(16, XBLOCK=1)
        with config.patch(
            {KERNEL_CONFIGS_OPTION: {content_name(source()): text_of(chosen)}}
        ):
            meta = meta_in(with_config_named(source()))
        cached_autotune(
            None,
            [triton_config(4, XBLOCK=8), triton_config(8, XBLOCK=8)],
            triton_meta={},
            heuristic_type=HeuristicType.POINTWISE,
            filename=__file__,
            inductor_meta=meta,
            caching_autotuner_cls=autotuner,
        )(SimpleNamespace(fn=lambda x, XBLOCK: None))
        self.assertEqual([vars(c) for c in made["configs"]], [vars(chosen)])
        self.assertIs(made["inductor_meta"]["dynamic_scale_rblock"], False)


if __name__ == "__main__":
    run_tests()
