# Owner(s): ["module: inductor"]
"""Every form of registration becomes one table, or an error that says what to do."""

import dataclasses
import functools
import math
from unittest import mock

import numpy as np
from range_autotune_testing import OpTestCase
from torch._inductor.decomposition import (
    decompositions,
    fast_random_decomps,
    select_decomp_table,
)
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor.kernel.custom_op import CustomOpConfig, CustomOpRangeConfig
from torch._inductor.range_autotune.registration import Candidate


SPLIT = {"tensor_name": "x", "dim": 1}


@torch.library.custom_op("range_autotune_registration::scaled", mutates_args=())
def scaled(x: torch.Tensor, weight: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return x * weight * scale


@scaled.register_fake
def _(x, weight, scale=1.0):
    return torch.empty_like(x)


OP = scaled._opoverload
LOG = "torch._inductor.kernel.custom_op"


def short(x, weight, scale=1.0):
    return x * weight * scale


def long(x, weight, scale=1.0, chunk=1):
    return weight * x * scale


def on(dim_range, impl=short, tensor_name="x", dim_index=1, **params):
    """A config with range fields."""
    return CustomOpConfig(
        impl,
        tensor_name=tensor_name,
        dim_index=dim_index,
        dim_range=dim_range,
        **params,
    )


def table(contest):
    """Where each candidate competes, by name."""
    if contest.table is None:
        return ", ".join(c.name for c in contest.candidates)
    lines = [str(contest.table.dim)]
    for row in contest.table.rows:
        names = ", ".join(contest.candidates[i].name for i in row.candidates)
        lines.append(f"{row.sizes}: {names}")
    return "\n".join(lines)


@instantiate_parametrized_tests
class TestForms(OpTestCase):
    def test_integers_of_numpy(self):
        points, sizes = np.array([512, 2048]), [np.int64(64)]
        split = self.register(
            scaled,
            [CustomOpConfig(short)],
            dispatch_on={"tensor_name": "x", "dim": np.int64(1)},
            split_points=[*points],
        )
        ranges = CustomOpRangeConfig("x", np.int32(1), [(0, points[0])], [short])
        listed = self.register(scaled, [ranges], representative_sizes=sizes)
        self.assertEqual(listed.options.representative_sizes, (64,))
        for table in (split.contest.table, listed.contest.table):
            numbers = [d.dim_index for d in table.dims]
            numbers += [
                n for row in table.rows for n in (row.sizes.start, row.sizes.end)
            ]
            self.assertLessEqual({*map(type, numbers)}, {int, float})

    @parametrize(
        "form",
        [
            {
                "configs": [
                    on((513, math.inf), short),
                    on((0, 513), short),
                    on((0, 513), long, chunk=4),
                    on((513, math.inf), long, chunk=4),
                ]
            },
            {
                "configs": CustomOpRangeConfig(
                    "x",
                    1,
                    [(0, 513), (513, math.inf)],
                    [short, CustomOpConfig(long, chunk=4)],
                )
            },
            {
                "configs": [CustomOpConfig(short), CustomOpConfig(long, chunk=4)],
                "dispatch_on": SPLIT,
                "split_points": [512],
            },
        ],
        name_fn=lambda form: "_".join([type(form["configs"]).__name__, *form]),
    )
    def test_every_form_makes_the_same_table(self, form):
        contest = self.register(scaled, **form).contest
        self.assertExpectedInline(
            table(contest),
            """\
x[1]
[0, 513): short, long(chunk=4)
[513, inf): short, long(chunk=4)""",
        )
        self.assertEqual([c.impl for c in contest.candidates], [short, long])
        self.assertEqual([c.params for c in contest.candidates], [{}, {"chunk": 4}])

    def test_without_ranges(self):
        configs = [CustomOpConfig(short), CustomOpConfig(), CustomOpConfig(scale=2.0)]
        self.assertExpectedInline(
            table(self.register(scaled, configs).contest),
            """short, default, default(scale=2.0)""",
        )

    def test_rows_are_sorted_and_may_leave_gaps(self):
        configs = [on((2048, math.inf)), on((0, 512), long), on((0, 512))]
        self.assertExpectedInline(
            table(self.register(scaled, configs).contest),
            """\
x[1]
[0, 512): long, short
[2048, inf): short""",
        )

    def test_forms_with_ranges_go_together(self):
        configs = [
            CustomOpRangeConfig("x", 1, [(0, 8), (8, 16)], [short]),
            on((8, 16), long),
        ]
        self.assertExpectedInline(
            table(self.register(scaled, configs).contest),
            """\
x[1]
[0, 8): short
[8, 16): short, long""",
        )

    def test_an_overload_is_as_good_as_a_custom_op(self):
        configs = [CustomOpConfig(short)]
        registration = self.register(OP, configs)
        self.assertIs(registration.op, OP)
        self.assertEqual(registration.contest, self.register(OP, configs).contest)

    def test_config_generator(self):
        registration = self.register(
            scaled,
            config_generator=list,
            dispatch_on={**SPLIT, "range_upper_bound": 4096},
            split_points=[512],
        )
        self.assertIsNone(registration.contest)
        self.assertIs(registration.config_generator, list)
        split = registration.split
        self.assertEqual(str(split.dim), "x[1]")
        self.assertEqual([str(r) for r in split.ranges], ["[0, 513)", "[513, inf)"])
        self.assertEqual(registration.options.unbounded_size, 4096)

    def test_options(self):
        registration = self.register(
            scaled,
            [CustomOpConfig(short)],
            name="my_name",
            input_gen_fns={"weight": torch.ones_like},
            min_speedup_threshold=1.1,
            benchmark_with_cudagraphs=True,
            include_fallback=False,
            representative_sizes=[64, 128],
            numerics_check="drop",
        )
        self.assertEqual(registration.name, "my_name")
        self.assertExpectedInline(
            str(dataclasses.asdict(registration.options)).replace(", '", ",\n'"),
            f"""\
{{'input_gen_fns': {{'weight': {torch.ones_like}}},
'min_speedup_threshold': 1.1,
'benchmark_with_cudagraphs': True,
'include_fallback': False,
'unbounded_size': None,
'representative_sizes': (64, 128),
'numerics_check': 'drop'}}""",
        )

    def test_config_patch_that_is_an_alias(self):
        patches = {"force_disable_caches": True}
        registration = self.register(
            scaled, [CustomOpConfig(short, config_patches=patches)]
        )
        (candidate,) = registration.contest.candidates
        self.assertEqual(candidate.config_patches, patches)
        # A function of the module, not a config.
        with self.assertRaisesRegex(ValueError, "Unknown config 'patch'"):
            self.register(scaled, [CustomOpConfig(short, config_patches={"patch": 1})])

    def test_unknown_config_patch(self):
        with self.assertRaises(ValueError) as caught:
            self.register(
                scaled, [CustomOpConfig(short, config_patches={"max_autotun": True})]
            )
        self.assertExpectedInline(
            str(caught.exception),
            """Unknown config 'max_autotun' in config_patches for range_autotune_registration.scaled.default; torch._inductor.config has none of that name. Similar: ['max_autotune', 'max_autotune_gemm', 'max_autotune_pointwise']""",
        )

    def test_config_patch_without_a_name(self):
        with self.assertRaisesRegex(TypeError, r"scaled.*got 1 for a name"):
            self.register(scaled, [CustomOpConfig(short, config_patches={1: 2})])

    def test_threshold_that_is_no_number(self):
        for bad in (float("nan"), -1.0, "1.1"):
            with self.assertRaisesRegex(ValueError, "must be a number of at least 0"):
                self.register(
                    scaled, [CustomOpConfig(short)], min_speedup_threshold=bad
                )

    def test_default_name(self):
        registration = self.register(scaled, [CustomOpConfig(short)])
        self.assertEqual(
            registration.name, "range_autotune_registration::scaled_autotuned"
        )


class TestCandidates(OpTestCase):
    def candidates(self, *configs):
        return self.register(scaled, list(configs)).contest.candidates

    def test_equal_configs_in_several_ranges_are_one_candidate(self):
        candidates = self.candidates(
            on((0, 8), long, chunk=4),
            on((8, 16), long, chunk=4),
            on((16, 32), long, chunk=4, config_patches={"max_autotune": True}),
            on((32, 64), long, chunk=4, config_patches={"max_autotune": True}),
        )
        self.assertEqual([c.params for c in candidates], [{"chunk": 4}] * 2)
        self.assertEqual(
            [c.config_patches for c in candidates], [{}, {"max_autotune": True}]
        )

    def test_parameters_that_have_no_plain_truth(self):
        table = torch.ones(2, 2)
        first, second = self.candidates(
            on((0, 8), long, chunk=table),
            on((8, 16), long, chunk=table),
            on((16, 32), long, chunk=table.clone()),
        )
        self.assertEqual(first.name, "long(chunk=Tensor)")
        self.assertEqual(second.name, "long(chunk=Tensor)#2")

    def test_implementations_that_have_no_plain_truth(self):
        @dataclasses.dataclass
        class Scale:
            table: torch.Tensor

            def __call__(self, x, weight):
                return x * weight * self.table

        first = Scale(torch.ones(2))
        candidates = self.candidates(
            on((0, 8), first), on((8, 16), first), on((16, 32), Scale(torch.ones(2)))
        )
        self.assertEqual([c.name for c in candidates], ["Scale", "Scale#2"])

    def test_a_config_given_twice_competes_once(self):
        registration = self.register(scaled, [on((0, 8)), on((0, 8))])
        self.assertExpectedInline(
            table(registration.contest),
            """\
x[1]
[0, 8): short""",
        )

    def test_names_are_unique(self):
        candidates = self.candidates(
            CustomOpConfig(lambda x, weight: x * weight),
            CustomOpConfig(lambda x, weight: weight * x),
            CustomOpConfig(long, chunk=1),
            CustomOpConfig(functools.partial(long), chunk=1),
            CustomOpConfig(long, {"max_autotune": True}, chunk=1),
            CustomOpConfig(long),
        )
        self.assertExpectedInline(
            "\n".join(c.name for c in candidates),
            """\
<lambda>
<lambda>#2
long(chunk=1)
long(chunk=1)#2
long(chunk=1)#3
long""",
        )

    def test_a_config_s_own_dicts_are_not_shared_with_the_user(self):
        patches = {"max_autotune": True}
        config = CustomOpConfig(short, patches)
        patches.clear()
        self.assertEqual(config.config_patches, {"max_autotune": True})


@instantiate_parametrized_tests
class TestErrors(OpTestCase):
    def assert_refused(self, error, call, expected):
        """As described, and what was registered before is still there."""
        before = self.register(scaled, [CustomOpConfig(short)])
        self.assert_raises_inline(error, call, expected)
        self.assertIs(user_lowerings[OP].registration, before)

    def refused(self, error, **arguments):
        """The message that a registration with these arguments is refused with."""
        before = self.register(scaled, [CustomOpConfig(short)])
        with self.assertRaises(error) as caught:
            self.register(scaled, **{"configs": [CustomOpConfig(short)], **arguments})
        self.assertIs(type(caught.exception), error)
        self.assertIs(user_lowerings[OP].registration, before)
        return str(caught.exception)

    @parametrize("form", ["fields", "range_config", "split_points"])
    def test_tensor_is_no_parameter(self, form):
        ways = {
            "fields": {"configs": [on((0, 512), tensor_name="y")]},
            "range_config": {
                "configs": [CustomOpRangeConfig("y", 1, [(0, 512)], [short])]
            },
            "split_points": {
                "dispatch_on": {**SPLIT, "tensor_name": "y"},
                "split_points": [512],
            },
        }
        self.assertEqual(
            self.refused(ValueError, **ways[form]),
            "Tensor 'y' not found in function arguments. "
            "Available arguments: ['x', 'weight', 'scale'] (registering range_autotune_registration.scaled.default)",
        )

    def test_tensor_is_another_parameter(self):
        self.assertExpectedInline(
            self.refused(ValueError, configs=[on((0, 512), tensor_name="scale")]),
            """Argument 'scale' of range_autotune_registration.scaled.default is of type float, not a tensor. Tensor arguments: ['x', 'weight']""",
        )

    def test_tensor_is_a_list_of_them(self):
        op = self.define_op("f(Tensor? x, Tensor[] ys) -> Tensor")
        self.register(op, [on((0, 512), impl=lambda x, ys: x)])
        with self.assertRaisesRegex(ValueError, "List.Tensor.*Tensor arguments: ..x.."):
            self.register(op, [on((0, 512), torch.cat, tensor_name="ys")])

    @parametrize("dim", [5, 3, -4])
    @torch._dynamo.config.patch(suppress_errors=False)
    def test_dimension_out_of_range(self, dim):
        self.register(scaled, [on((0, 512), dim_index=dim)])
        x = torch.ones(2, 128, 512)
        message = (
            rf"ValueError: Dimension index {dim} out of range for tensor 'x' with shape "
            r"\[2, 128, 512\]"
        )
        with self.assertRaisesRegex(Exception, message):
            torch.compile(scaled, dynamic=False)(x, x)

    def test_ranges_overlap(self):
        self.assertExpectedInline(
            self.refused(ValueError, configs=[on((0, 512)), on((256, 1024), long)]),
            """Ranges 0 and 1 overlap: [0, 512) and [256, 1024) (registering range_autotune_registration.scaled.default)""",
        )
        self.assert_refused(
            ValueError,
            lambda: CustomOpRangeConfig("x", 1, [(0, 512), (256, 1024)], [short]),
            """Ranges 0 and 1 overlap: [0, 512) and [256, 1024)""",
        )

    @parametrize(
        "dim_range", [(512, 512), (-1, 512), (0, math.nan), (0, 1, 2), 512, (0.0, 2)]
    )
    def test_no_range(self, dim_range):
        for make in (on, lambda r: CustomOpRangeConfig("x", 1, [r], [short])):
            with self.assertRaisesRegex(ValueError, "^Range 0 (is not valid|must be)"):
                make(dim_range)

    def test_duplicate_split_points(self):
        self.assertExpectedInline(
            self.refused(ValueError, dispatch_on=SPLIT, split_points=[512, 512]),
            """split_points[1] is a duplicate of 512: [512, 512] (registering range_autotune_registration.scaled.default)""",
        )

    def test_implementation_not_callable(self):
        self.assert_refused(
            TypeError,
            lambda: CustomOpRangeConfig("x", 1, [(0, 512)], [short, "long"]),
            """Implementation 1 must be callable, got <class 'str'>""",
        )
        self.assert_refused(
            TypeError,
            lambda: CustomOpConfig("long"),
            """decomposition must be callable, got <class 'str'>""",
        )

    def test_config_patches_are_no_dict(self):
        self.assert_refused(
            TypeError,
            lambda: CustomOpConfig(short, 5),
            "config_patches must be a dict from names in torch._inductor.config to "
            "values, got <class 'int'>",
        )

    @parametrize("missing", ["tensor_name", "dim_index", "dim_range"])
    def test_one_range_field_is_missing(self, missing):
        fields = {"tensor_name": "x", "dim_index": 0, "dim_range": (0, 512)}
        del fields[missing]
        with self.assertRaises(ValueError) as caught:
            CustomOpConfig(short, chunk=4, **fields)
        self.assertEqual(
            str(caught.exception),
            f"CustomOpConfig(short, chunk=4) has {' and '.join(fields)} but lacks "
            f"{missing}: give all three range fields or none",
        )

    def test_two_range_fields_are_missing(self):
        self.assert_refused(
            ValueError,
            lambda: CustomOpConfig(short, dim_range=(0, 512)),
            """CustomOpConfig(short) has dim_range but lacks tensor_name and dim_index: give all three range fields or none""",
        )

    @parametrize(
        "name,index,message",
        [
            (1, 0, "tensor_name must be a string, got <class 'int'>"),
            ("x", "0", "dim_index must be an integer, got <class 'str'>"),
            ("x", True, "dim_index must be an integer, got <class 'bool'>"),
        ],
    )
    def test_no_dimension(self, name, index, message):
        for make in (
            lambda: on((0, 512), tensor_name=name, dim_index=index),
            lambda: CustomOpRangeConfig(name, index, [(0, 512)], [short]),
        ):
            with self.assertRaises(TypeError) as caught:
                make()
            self.assertEqual(str(caught.exception), message)

    def test_mixing_configs_with_and_without_range_fields(self):
        self.assertExpectedInline(
            self.refused(ValueError, configs=[on((0, 512)), CustomOpConfig(long)]),
            """Mixing configs with and without range fields is not possible for range_autotune_registration.scaled.default. Without: CustomOpConfig(long). Give every config tensor_name, dim_index and dim_range, or none""",
        )

    def test_mixing_a_config_of_ranges_and_one_without(self):
        ranges = CustomOpRangeConfig("x", 0, [(0, 512)], [short])
        self.assertIn(
            "Without: CustomOpConfig(long). Give",
            self.refused(ValueError, configs=[ranges, CustomOpConfig(long)]),
        )

    def test_range_fields_beside_split_points(self):
        configs = [on((0, 512)), CustomOpConfig(long)]
        self.assertExpectedInline(
            self.refused(
                ValueError, configs=configs, dispatch_on=SPLIT, split_points=[512]
            ),
            """The configs of range_autotune_registration.scaled.default have range fields of their own, so dispatch_on and split_points must be left out""",
        )

    def test_range_fields_inside_a_range_config(self):
        self.assert_refused(
            ValueError,
            lambda: CustomOpRangeConfig("x", 1, [(0, 512)], [long, on((0, 8))]),
            """Implementation 1, CustomOpConfig(short), has range fields of its own inside a CustomOpRangeConfig""",
        )

    @parametrize("other", [{"dim_index": 0}, {"tensor_name": "weight"}])
    def test_two_dispatch_dimensions(self, other):
        message = self.refused(
            ValueError, configs=[on((0, 512)), on((512, math.inf), **other)]
        )
        dims = sorted({"x[1]", "x[0]" if "dim_index" in other else "weight[1]"})
        self.assertEqual(
            message,
            f"The configs of {OP} dispatch on more than one dimension: "
            f"{', '.join(dims)}. All must name the same tensor and dimension",
        )

    def test_unknown_tuning_parameter(self):
        self.assertExpectedInline(
            self.refused(ValueError, configs=[on((0, 8), long, chunks=4)]),
            """Unknown parameter 'chunks' in a config for range_autotune_registration.scaled.default: implementation 'long' of range_autotune_registration.scaled.default has no such parameter. Its parameters: ['x', 'weight', 'scale', 'chunk']""",
        )

    def test_input_gen_fns_of_a_number(self):
        with self.assertLogs(LOG, "WARNING") as logs:
            made = {"x": torch.ones_like, "scale": torch.ones_like}
            self.register(scaled, [CustomOpConfig(short)], input_gen_fns=made)
        self.assertExpectedInline(
            "\n".join(record.getMessage() for record in logs.records),
            """input_gen_fns['scale'] of range_autotune_registration.scaled.default is never called: the argument is of type float, and only tensors are made up for benchmarks. Leave it out""",
        )

    def test_unknown_name_in_input_gen_fns(self):
        self.assertExpectedInline(
            self.refused(ValueError, input_gen_fns={"y": torch.ones_like}),
            """Unknown argument name 'y' in input_gen_fns. Available argument names: ['x', 'weight', 'scale'] (registering range_autotune_registration.scaled.default)""",
        )

    def test_input_generator_not_callable(self):
        self.assertExpectedInline(
            self.refused(TypeError, input_gen_fns={"x": "ones"}),
            """input_gen_fns['x'] of range_autotune_registration.scaled.default must be callable, got <class 'str'>""",
        )
        self.assertExpectedInline(
            self.refused(TypeError, input_gen_fns=[torch.ones_like]),
            """input_gen_fns of range_autotune_registration.scaled.default must be a dict from argument names to callables, got <class 'list'>""",
        )

    def test_empty_lists(self):
        self.assertExpectedInline(
            self.refused(ValueError, configs=[]),
            """At least one config must be provided for range_autotune_registration.scaled.default""",
        )
        self.assertExpectedInline(
            self.refused(ValueError, dispatch_on=SPLIT, split_points=[]),
            """split_points must be a non-empty list of integers, got [] (registering range_autotune_registration.scaled.default)""",
        )
        self.assert_refused(
            ValueError,
            lambda: CustomOpRangeConfig("x", 1, [], [short]),
            """ranges must be a non-empty list of pairs (start, end), got []""",
        )
        self.assert_refused(
            ValueError,
            lambda: CustomOpRangeConfig("x", 1, [(0, 8)], []),
            """implementations must be a non-empty list of callables or CustomOpConfigs, got []""",
        )

    def test_configs_of_another_type(self):
        self.assertExpectedInline(
            self.refused(TypeError, configs={short}),
            """configs must be a list or tuple, got <class 'set'> (registering range_autotune_registration.scaled.default)""",
        )
        self.assertExpectedInline(
            self.refused(TypeError, configs=[CustomOpConfig(short), long]),
            """Each config must be a CustomOpConfig object or a CustomOpRangeConfig, got <class 'function'> at index 1 (registering range_autotune_registration.scaled.default)""",
        )

    def test_configs_or_a_generator(self):
        self.assertExpectedInline(
            self.refused(ValueError, configs=None),
            """Must specify either 'configs' or 'config_generator' for range_autotune_registration.scaled.default. Use 'config_generator' for shape-dependent configs.""",
        )
        self.assertExpectedInline(
            self.refused(ValueError, config_generator=list),
            """Cannot specify both 'configs' and 'config_generator' for range_autotune_registration.scaled.default. Use 'config_generator' for shape-dependent configs.""",
        )
        self.assertExpectedInline(
            self.refused(TypeError, configs=None, config_generator="short"),
            """config_generator must be callable, got <class 'str'> (registering range_autotune_registration.scaled.default)""",
        )

    @parametrize("op", [short, "aten::mm"])
    def test_no_op(self, op):
        with self.assertRaises(TypeError) as caught:
            self.register(op, [CustomOpConfig(short)])
        self.assertEqual(
            str(caught.exception),
            f"custom_op must be a CustomOpDef or OpOverload, got {type(op)}.",
        )

    def test_overloads_of_an_op_are_named(self):
        with self.assertRaisesRegex(TypeError, "give one of them: .*aten.add.Tensor"):
            self.register(torch.ops.aten.add, [CustomOpConfig(short)])

    def test_op_that_writes_to_a_list_and_returns_what_is_no_tensor(self):
        op = self.define_op("add_(Tensor(a!) x, Tensor(b!)? y) -> (Tensor, int)")
        self.assert_raises_inline(
            ValueError,
            lambda: self.register(op, [CustomOpConfig(short)]),
            """range_autotune_test.add_.default writes to a list, or to what may be None, and returns ['int']; such an op cannot be tuned. Register one that returns nothing, or tensors""",
        )
        self.assertNotIn(op, user_lowerings)

    def test_op_that_returns_what_it_writes_to(self):
        op = self.define_op("add_(Tensor(a!) x) -> Tensor(a!)")
        self.assert_raises_inline(
            ValueError,
            lambda: self.register(op, [CustomOpConfig(short)]),
            """range_autotune_test.add_.default returns an argument that it writes to, and is no custom op whose tags say so (torch.Tag.inplace, torch.Tag.out). Tag it, or have it return nothing""",
        )

    @parametrize(
        "dispatch_on,message",
        [
            ("x", "dispatch_on must be a dict with 'tensor_name' and 'dim' keys"),
            ({"dim": 1}, "dispatch_on must contain 'tensor_name' and 'dim' keys"),
            ({**SPLIT, "dims": 1}, "Unknown key 'dims' in dispatch_on. Known keys: "),
            ({**SPLIT, "tensor_name": 1}, r"dispatch_on\['tensor_name'\] must be of"),
            ({**SPLIT, "dim": "1"}, r"dispatch_on\['dim'\] must be of <class 'int'>"),
            ({**SPLIT, "dim": True}, r"dispatch_on\['dim'\] must be of <class 'int'>"),
            ({**SPLIT, "dim": False}, r"dispatch_on\['dim'\] must be of <class 'int'>"),
            ({**SPLIT, "range_upper_bound": 0}, "must be a positive integer, got 0"),
            ({**SPLIT, "range_upper_bound": True}, "a positive integer, got True"),
            ({**SPLIT, "unbounded_size": 2.0}, "must be a positive integer, got 2.0"),
        ],
    )
    def test_dispatch_on(self, dispatch_on, message):
        refused = self.refused(ValueError, dispatch_on=dispatch_on, split_points=[8])
        self.assertRegex(refused, message)

    @parametrize("given", ["dispatch_on", "split_points"])
    def test_dispatch_on_and_split_points_go_together(self, given):
        value = {"dispatch_on": SPLIT, "split_points": [512]}[given]
        self.assertEqual(
            self.refused(ValueError, **{given: value}),
            "Both dispatch_on and split_points must be specified for range-based "
            f"autotuning of {OP}",
        )

    @parametrize("threshold", [-1.0, "1", None, True])
    def test_min_speedup_threshold(self, threshold):
        self.assertEqual(
            self.refused(ValueError, min_speedup_threshold=threshold),
            f"min_speedup_threshold of {OP} must be a number of at least 0, got "
            f"{threshold!r}",
        )

    @parametrize("size", [0, -8, 8.0, True, "8"])
    def test_representative_sizes(self, size):
        self.assertEqual(
            self.refused(ValueError, representative_sizes=[8, size]),
            f"representative_sizes[1] of {OP} must be an integer of at least 1, got "
            f"{size!r}",
        )

    def test_op_that_is_decomposed(self):
        op = self.define_op("twice(Tensor x) -> Tensor")
        with self.assertNoLogs(LOG, "WARNING"):
            self.register(op, [CustomOpConfig(lambda x: x + x)])
        self._library.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        with self.assertLogs(LOG, "WARNING") as logs:
            self.register(op, [CustomOpConfig(lambda x: x + x)])
        (record,) = logs.records
        self.assertExpectedInline(
            record.getMessage(),
            """range_autotune_test.twice.default is decomposed before Inductor sees it, so that it is never tuned: it has a CompositeImplicitAutograd kernel. Register an op that it is made of, or call one of your own (torch.library.custom_op) in its place""",
        )

    def test_decompositions_that_are_registered_later(self):
        self.addCleanup(fast_random_decomps.cache_clear)
        fast_random_decomps.cache_clear()
        op = self.define_op("tuned(Tensor x) -> Tensor")
        self.register(op, [CustomOpConfig(lambda x: x + x)])
        other = self.define_op("decomposed(Tensor x) -> Tensor")
        with mock.patch.dict(decompositions, {other: lambda x: x + x}):
            self.assertIn(other, select_decomp_table())

    def test_a_switch_that_is_none(self):
        self.assertExpectedInline(
            self.refused(TypeError, include_fallback="no"),
            """include_fallback of range_autotune_registration.scaled.default must be True or False, got 'no'""",
        )
        message = self.refused(TypeError, benchmark_with_cudagraphs=None)
        self.assertIn("benchmark_with_cudagraphs of", message)

    def test_name_that_is_no_string(self):
        self.assertExpectedInline(
            self.refused(TypeError, name=3),
            """name of range_autotune_registration.scaled.default must be a string, got 3""",
        )

    def test_no_representative_sizes(self):
        self.assertExpectedInline(
            self.refused(ValueError, representative_sizes=[]),
            """representative_sizes of range_autotune_registration.scaled.default is empty; leave it out for the default sizes""",
        )

    def test_representative_sizes_are_a_list(self):
        self.assertExpectedInline(
            self.refused(TypeError, representative_sizes=8),
            """representative_sizes of range_autotune_registration.scaled.default must be a list or tuple, got <class 'int'>""",
        )


class TestReplacing(OpTestCase):
    def test_registering_again_replaces(self):
        first = self.register(scaled, [CustomOpConfig(short)])
        second = self.register(scaled, [CustomOpConfig(long)], name="second")
        self.assertIs(user_lowerings[OP].registration, second)
        self.assertNotEqual(first, second)
        self.assertEqual([c.name for c in second.contest.candidates], ["long"])

    def test_a_failed_first_registration_leaves_the_op_unregistered(self):
        user_lowerings.pop(OP, None)
        with self.assertRaises(ValueError):
            self.register(scaled, [CustomOpConfig(short)], input_gen_fns={"y": abs})
        self.assertNotIn(OP, user_lowerings)


class TestCandidate(TestCase):
    def test_does_the_same_as(self):
        def candidate(scale):
            return Candidate(str(scale), short, {"scale": scale})

        self.assertTrue(candidate(2).does_the_same_as(candidate(2)))
        for other in (1, 2.0, True):
            self.assertFalse(candidate(2).does_the_same_as(candidate(other)))
        self.assertFalse(candidate(1).does_the_same_as(candidate(True)))


if __name__ == "__main__":
    run_tests()
