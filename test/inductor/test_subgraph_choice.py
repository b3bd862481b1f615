# Owner(s): ["module: inductor"]
"""Graphs as choices of an algorithm: compiled, benchmarked; guards while that is done."""

import gc
import itertools
import weakref
from unittest import mock

import sympy
from range_autotune_testing import dense_layout, GraphTestCase, in_threads, made_fx
from torch._dynamo.source import ConstantSource
from torch._dynamo.utils import counters
from torch._inductor.autotune_process import SubgraphCPUBenchmarkRequest
from torch._inductor.debug import DebugContext
from torch._inductor.graph import GraphLowering
from torch._inductor.lowering import user_lowerings
from torch._inductor.select_algorithm import autotune_select_algorithm, realize_inputs
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import V
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true
from torch.testing import FileCheck
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU
from torch.utils._sympy.functions import FloorDiv

import torch
from torch._inductor import config, ir
from torch._inductor.codegen import subgraph
from torch._inductor.codegen.subgraph import (
    SubgraphChoiceCaller,
    SubgraphTemplate,
)
from torch._inductor.range_autotune.contents.content import Unhashable
from torch._inductor.range_autotune.modules.subgraph_module import (
    generate_module,
    SubgraphModule,
)
from torch._inductor.range_autotune.ranges import DimRange
from torch._inductor.range_autotune.sizes.guards import (
    recorded_guards,
    without_optional_guards,
)
from torch._inductor.range_autotune.sizes.known_sizes import knowing, KnownSize


aten = torch.ops.aten
DEVICE = GPU_TYPE if HAS_GPU else "cpu"
_numbers = itertools.count()


def affine(x, y):
    return x * 2 + y


def affine_by_sum(x, y):
    return x + y + x


class TestTemplate(TestCase):
    """Choices made and chosen in the lowering of a compiled model."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        self.enterContext(mock.patch.dict(user_lowerings))

    def op_lowered_by(self, lower):
        """x * 2 + y, lowered by a function of realized inputs."""

        def fn(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return affine(x, y)

        name = f"subgraph_choice::op{next(_numbers)}"
        op = torch.library.custom_op(name, mutates_args=())(fn)
        op.register_fake(lambda x, y: torch.empty_like(x))
        user_lowerings[op._opoverload] = lambda x, y: lower(*realize_inputs(x, y))
        return op

    def choose(self, x, y):
        """A lowering that chooses between two graphs; the second is the faster one."""
        choices = [
            SubgraphTemplate("affine").generate(
                name=fn.__name__,
                input_nodes=[x, y],
                layout=dense_layout(x),
                make_fx_graph=made_fx(fn),
                description="two ways",
            )
            for fn in (affine, affine_by_sum)
        ]
        benchmarked = []

        def benchmark(choice, *args, out):
            benchmarked.append((choice.name, [tuple(arg.shape) for arg in args]))
            return 1.0 if "by_sum" in choice.name else 2.0

        with mock.patch.object(SubgraphChoiceCaller, "benchmark", benchmark):
            result = autotune_select_algorithm(
                "affine", choices, [x, y], choices[0].layout
            )
        self.benchmarked = benchmarked
        return result[0] if isinstance(result, tuple) else result

    @parametrize("dynamic", (False, True))
    def test_the_chosen_graph_is_emitted(self, dynamic):
        op = self.op_lowered_by(self.choose)
        compiled = torch.compile(lambda x, y: op(x + 1, y).relu(), dynamic=dynamic)
        for n in (6, 9):
            x, y = torch.randn(2, n, 5, device=DEVICE)
            if n == 6:
                result, (code, *_) = run_and_get_code(compiled, x, y)
            else:
                result = compiled(x, y)
            self.assertEqual(result, affine(x + 1, y).relu())
        FileCheck().check("def affine_by_sum_").run(code)
        names = {name.rstrip("0123456789") for name, _ in self.benchmarked}
        self.assertEqual(names, {"affine_", "affine_by_sum_"})
        shape = (6, 5) if dynamic else (9, 5)
        self.assertEqual(
            {tuple(shapes) for _, shapes in self.benchmarked}, {(shape,) * 2}
        )

    def test_a_subclass_with_a_generate_of_its_own(self):
        class ScaledTemplate(SubgraphTemplate):
            def __init__(self):
                super().__init__(name="scaled")

            def generate(self, input_nodes, layout, scale):
                return super().generate(
                    name=f"scaled_by_{scale}",
                    input_nodes=input_nodes,
                    layout=layout,
                    make_fx_graph=made_fx(lambda x, y: x * scale + y),
                )

        def lower(x, y):
            choice = ScaledTemplate().generate([x, y], dense_layout(x), scale=2)
            self.assertRegex(choice.name, r"^scaled_by_2_\d+$")
            self.assertIsInstance(choice.output_node().data.data, ir.SubgraphBuffer)
            return choice.output_node()

        op = self.op_lowered_by(lower)
        x, y = torch.randn(2, 6, 5, device=DEVICE)
        self.assertEqual(torch.compile(op)(x, y), affine(x, y))

    def test_benchmark_compiles_once(self):
        times = []

        def lower(x, y):
            choice = SubgraphTemplate("t").generate(
                "t", [x, y], dense_layout(x), made_fx(affine)
            )
            self.assertEqual(counters["inductor"]["subgraph_modules_generated"], 0)
            args = [torch.randn(6, 5, device=DEVICE) for _ in range(2)]
            out = torch.full((6, 5), 7.0, device=DEVICE)
            times.extend(choice.benchmark(*args, out=out) for _ in range(2))
            choice.benchmark_collective(*args, out=out)
            self.assertEqual(counters["inductor"]["subgraph_modules_generated"], 1)
            self.assertEqual(counters["inductor"]["subgraph_module_loads"], 1)
            self.assertEqual(out, torch.full_like(out, 7.0))
            return choice.output_node()

        op = self.op_lowered_by(lower)
        x, y = torch.randn(2, 6, 5, device=DEVICE)
        self.assertEqual(torch.compile(op, dynamic=True)(x, y), affine(x, y))
        self.assertEqual([time > 0 for time in times], [True, True])

    def test_benchmark_in_another_process(self):
        requests = []

        def lower(x, y):
            with config.patch(pipeline_max_autotune_gemm=True):
                choice = SubgraphTemplate("t").generate(
                    "t", [x, y], dense_layout(x), made_fx(affine)
                )
            requests.append(choice.bmreq)
            values = choice.sym_input_values
            args = [torch.randn(values[0], 5, device=DEVICE) for _ in range(2)]
            choice.bmreq.make_run_fn(*args, out=args[0])()
            return choice.output_node()

        op = self.op_lowered_by(lower)
        x, y = torch.randn(2, 6, 5, device=DEVICE)
        torch._dynamo.mark_dynamic(x, 0)
        torch._dynamo.mark_dynamic(y, 0)
        self.assertEqual(torch.compile(op)(x, y), affine(x, y))
        if DEVICE == "cpu":
            self.assertIsInstance(requests[0], SubgraphCPUBenchmarkRequest)
        self.assertEqual(requests[0].sym_input_values[0], 6)


instantiate_parametrized_tests(TestTemplate)


class TestChoice(GraphTestCase):
    def choice(self, *nodes, fn=affine, name="t", **kwargs):
        nodes = list(nodes or (self.x, self.y))
        return SubgraphTemplate(name).generate(
            name, nodes, dense_layout(nodes[0]), made_fx(fn), **kwargs
        )

    def test_names(self):
        first, second = self.choice(), self.choice()
        number = int(first.name.removeprefix("t_"))
        self.assertEqual(second.name, f"t_{number + 1}")
        self.assertEqual(str(first), f"SubgraphCaller(t_{number})")
        self.assertEqual(
            first.info_dict(), {"backend": "subgraph", "kernel_name": first.name}
        )
        self.assertEqual(first.autoheuristic_id(), f"subgraph_t_{number}")

    def test_hash_key(self):
        key = self.choice().hash_key()
        self.assertEqual(self.choice().hash_key(), key)
        transposed = self.tensor([self.s0, 4], [1, self.s0])
        others = [
            self.choice(fn=affine_by_sum),
            self.choice(name="u"),
            self.choice(transposed, self.y),
        ]
        self.assertEqual(len({key, *(other.hash_key() for other in others)}), 4)

    def test_constants_are_in_the_key(self):
        def key(value):
            choice = self.choice()
            choice.gm.register_buffer("constant", torch.tensor(value))
            choice.gm.graph.get_attr("constant")
            return choice.hash_key()

        keys = [key(value) for value in (1.0, 1.0, 2.0)]
        self.assertEqual(keys[0], keys[1])
        self.assertNotEqual(keys[0], keys[2])

    def test_what_has_no_content_has_a_key_of_its_own(self):
        unknown = mock.patch.object(subgraph, "graph_text", side_effect=Unhashable)
        with unknown:
            choices = self.choice(), self.choice()
            choices[1].name = choices[0].name  # as one of another process may have
            keys = [choice.hash_key() for choice in choices]
            self.assertEqual(choices[0].hash_key(), keys[0])
        self.assertNotEqual(*keys)

    def test_symbol_values_are_hints(self):
        choice = self.choice()
        self.assertEqual(choice.sym_inputs, [self.s0])
        self.assertEqual(choice.sym_input_values, [100])
        self.assertEqual(choice.benchmark_inputs[0].shape, (100, 4))

    @parametrize("index", (0, 1))
    def test_symbol_values_of_generated_inputs(self, index):
        choice = self.choice(input_gen_fns={index: lambda node: torch.zeros(33, 4)})
        self.assertEqual(choice.sym_input_values, [33])
        self.assertEqual(choice.benchmark_inputs[index].shape, (33, 4))

    def test_no_symbols(self):
        choice = self.choice(self.tensor([6, 4]), self.tensor([6, 4]))
        self.assertEqual((choice.sym_inputs, choice.sym_input_values), ([], []))

    def test_example_inputs_are_symbolic(self):
        choice = self.choice()
        self.assertEqual(choice.example_inputs[0].shape[0].node.expr, self.s0)

    def test_data_dependent_sizes_are_refused(self):
        unbacked = self.shape_env.create_unbacked_symint().node.expr
        node = self.tensor([unbacked, 4])
        with self.assertRaisesRegex(AssertionError, "has data-dependent sizes"):
            self.choice(node, node)

    def test_no_benchmark_request(self):
        choice = self.choice()
        with self.assertRaises(AssertionError) as caught:
            choice.bmreq  # noqa: B018
        self.assertEqual(
            str(caught.exception),
            f"{choice.name} has no benchmark request: pipeline_max_autotune_gemm was "
            "off when it was made",
        )


instantiate_parametrized_tests(TestChoice)


class TestCustomOpChoices(GraphTestCase):
    def choices(self, *fns, non_tensor_args=None, **kwargs):
        return SubgraphTemplate("t").generate_custom_op_choices(
            name="my_op",
            decompositions=list(fns),
            input_nodes=[self.x, self.y],
            non_tensor_args=non_tensor_args or [{} for _ in fns],
            **kwargs,
        )

    def test_one_choice_for_each(self):
        def scaled(x, y, k):
            return x * k + y

        patches = [{"realize_reads_threshold": 7}, {}]
        arguments = [{"k": 0.5}, {}]
        choices = self.choices(
            scaled, affine, non_tensor_args=arguments, config_patches_list=patches
        )
        names = [choice.name.rstrip("0123456789") for choice in choices]
        self.assertEqual(names, ["my_op_scaled_k_0_5_", "my_op_affine_"])
        self.assertEqual([c.config_patches for c in choices], patches)
        self.assertEqual([c.decomposition for c in choices], [scaled, affine])
        self.assertEqual([c.decomposition_kwargs for c in choices], arguments)
        self.assertEqual(
            [c.description for c in choices], ["CustomOp scaled", "CustomOp affine"]
        )
        self.assertEqual(list(choices[0].layout.size), [self.s0, 4])
        (mul,) = choices[0].gm.graph.find_nodes(
            op="call_function", target=aten.mul.Tensor
        )
        self.assertEqual(mul.args[1], 0.5)

    def test_what_guards_is_left_out(self):
        def guards(x, y):
            return x + y if x.shape[0] > 50 else x - y

        (choice,) = self.choices(guards, affine)
        self.assertIs(choice.decomposition, affine)
        self.assertEqual(counters["inductor"]["custom_op_decomp_guard_skips"], 1)
        self.assertEqual(self.shape_env.guards, [])

    def test_other_errors_are_raised(self):
        def broken(x, y):
            raise RuntimeError("broken")

        with self.assertRaisesRegex(RuntimeError, "broken"):
            self.choices(broken)

    @parametrize("what", ("dtype", "stride", "size"))
    def test_layouts_must_agree(self, what):
        other = {
            "dtype": lambda x, y: (x + y).double(),
            "stride": lambda x, y: (x + y).t().contiguous().t(),
            "size": lambda x, y: (x + y)[:, :2],
        }[what]
        with self.assertRaisesRegex(
            AssertionError,
            r"^Layout mismatch in custom op 'my_op': my_op__lambda__\d+ ",
        ):
            self.choices(affine, other)

    def test_lengths_must_agree(self):
        with self.assertRaises(AssertionError) as caught:
            self.choices(affine, non_tensor_args=[{}, {}])
        self.assertEqual(
            str(caught.exception), "my_op: 1 implementations but 2 dicts of arguments"
        )

    def test_tensors_belong_in_input_nodes(self):
        with self.assertRaises(AssertionError) as caught:
            self.choices(affine, non_tensor_args=[{"k": torch.zeros(2)}])
        self.assertEqual(
            str(caught.exception),
            "my_op: argument 'k' is a tensor; tensors belong in input_nodes",
        )

    def test_one_tensor_output_only(self):
        with self.assertRaisesRegex(AssertionError, "Expected single tensor output"):
            self.choices(lambda x, y: (x, y))

    def test_input_generators(self):
        choices = self.choices(
            affine, input_gen_fns=dict.fromkeys((0, 1), lambda _: torch.zeros(21, 4))
        )
        self.assertEqual(choices[0].sym_input_values, [21])


instantiate_parametrized_tests(TestCustomOpChoices)


class TestRecordedGuards(GraphTestCase):
    def test_collects_and_does_not_add(self):
        sizevars = V.graph.sizevars
        with recorded_guards() as found:
            self.assertTrue(self.shape_env.evaluate_expr(self.s0 > 50))
            self.assertFalse(self.shape_env.evaluate_expr(sympy.Eq(self.s0, 7)))
            self.assertEqual(sizevars.guard_int(self.s0), 100)
        self.assertEqual(
            found, [self.s0 > 50, sympy.Ne(self.s0, 7), sympy.Eq(self.s0, 100)]
        )
        self.assertEqual(self.shape_env.guards, [])

    def test_what_is_known_is_no_condition(self):
        with recorded_guards() as found:
            self.shape_env.evaluate_expr(self.s0 >= 2)
            self.shape_env.evaluate_expr(sympy.Eq(self.s0, 1))
        self.assertEqual(found, [])

    def test_answers_are_those_of_the_range_that_is_known(self):
        """The model is compiled with 100 and 8."""
        s1 = self.shape_env.create_symbol(8, ConstantSource("s1"))
        product = self.s0 * s1
        for size, sizes, condition, answer in (
            (product, DimRange(4, 17), product <= 16, True),
            (self.s0, DimRange(17, 33), FloorDiv(16, FloorDiv(self.s0, 17)), 16),
        ):
            with knowing(KnownSize(size, sizes)), recorded_guards() as found:
                self.assertEqual(self.shape_env.evaluate_expr(condition), answer)
            self.assertEqual(found, [])

    def test_data_dependent_symbols(self):
        unbacked = self.shape_env.create_unbacked_symint()
        with recorded_guards() as found:
            self.assertFalse(guard_or_false(unbacked == 7))
        self.assertEqual(found, [])

    def test_what_is_to_be_asserted_of_data_dependent_symbols(self):
        unbacked = self.shape_env.create_unbacked_symint().node.expr
        expect = self.shape_env.guard_or_defer_runtime_assert
        expect(unbacked >= 3, "why")
        asserts = {**self.shape_env.deferred_runtime_asserts}
        with recorded_guards() as found:
            for expected in (unbacked >= 2, sympy.Eq(2 * unbacked, 6)):
                self.shape_env.guard_or_defer_runtime_assert(expected, "why")
        self.assertEqual(found, [sympy.Eq(2 * unbacked, 6)])
        self.assertEqual(self.shape_env.deferred_runtime_asserts, asserts)

    def test_optional_guards(self):
        """Not even where it would hold at the size that the model is compiled with."""
        open_question = self.shape_env.create_symboolnode(self.s0 > 50)
        known = self.shape_env.create_symboolnode(self.s0 >= 2)
        with recorded_guards() as found, without_optional_guards():
            self.assertFalse(guard_or_false(open_question))
            self.assertTrue(guard_or_true(open_question))
            self.assertTrue(V.graph.sizevars.guard_or_false(self.s0 >= 2))
            self.assertTrue(guard_or_false(known))
            self.assertEqual(found, [])
            self.assertTrue(bool(open_question))
        self.assertEqual(found, [self.s0 > 50])
        self.assertTrue(guard_or_false(open_question))
        self.assertEqual(len(self.shape_env.guards), 1)

    def test_guards_are_added_again_behind(self):
        condition = self.s0 > 50
        with recorded_guards() as found:
            self.shape_env.guard_or_defer_runtime_assert(condition, "why")
        self.assertEqual((len(found), self.shape_env.guards), (1, []))
        self.shape_env.guard_or_defer_runtime_assert(condition, "why")
        self.assertEqual(len(self.shape_env.guards), 1)

    def test_what_is_generated_inside_counts_for_itself(self):
        with recorded_guards() as outer:
            self.shape_env.evaluate_expr(self.s0 > 50)
            with recorded_guards() as inner:
                self.shape_env.evaluate_expr(self.s0 > 60)
            self.shape_env.evaluate_expr(self.s0 > 70)
        self.assertEqual(inner, [self.s0 > 60])
        self.assertEqual(outer, [self.s0 > 50, self.s0 > 70])
        self.guard(self.s0 > 50)
        self.assertEqual(len(self.shape_env.guards), 1)

    def test_ends_with_an_error(self):
        evaluate = self.shape_env.evaluate_expr
        with self.assertRaises(ZeroDivisionError), recorded_guards():
            raise ZeroDivisionError
        self.assertEqual(self.shape_env.evaluate_expr, evaluate)
        self.guard(self.s0 > 50)
        self.assertEqual(len(self.shape_env.guards), 1)


class TestModule(GraphTestCase):
    def setUp(self):
        super().setUp()
        self.enterContext(V.set_debug_handler(DebugContext()))

    def module(self, fn=affine_by_sum):
        gm = self.trace(fn, self.x, self.y)
        ir.gm_original_output_strides(gm)
        return generate_module(gm, self.fakes(self.x, self.y), [self.s0], "my op/1", {})

    def test_one_module_serves_all_sizes(self):
        module = self.module().load()
        for n in (2, 100, 513):
            x, y = torch.randn(2, n, 4)
            args = [n, x, y]
            (result,) = module.call(args)
            self.assertEqual(result, 2 * x + y)
            self.assertEqual(args, [])
        self.assertEqual(self.shape_env.guards, [])

    def test_is_kept_by_who_uses_it(self):
        module = self.module()
        loaded = weakref.ref(module.load())
        call = loaded().call
        del module
        gc.collect()
        x = torch.ones(3, 4)
        self.assertEqual(call([3, x, x])[0], 3 * x)
        del call
        gc.collect()
        self.assertIsNone(loaded())

    def test_donated_inputs_are_those_of_the_graph_being_compiled(self):
        donated = mock.Mock(return_value=[0, 1])
        with (
            mock.patch("torch._inductor.graph.get_donated_idxs", donated),
            mock.patch.object(V.graph, "is_backward", True),
        ):
            module = self.module(affine).load()
        x, y = torch.ones(2, 7, 4)
        module.call([7, x, y])
        self.assertEqual((x, y), (torch.ones(7, 4), torch.ones(7, 4)))
        donated.assert_called()

    def test_symbols_of_a_lowering_that_fails_are_not_pending(self):
        """As those that the lowering of flex_attention makes for itself."""

        def fails(graph, *args):
            graph.sizevars.shape_env.create_unbacked_symint()
            raise RuntimeError("no lowering")

        with (
            mock.patch.object(GraphLowering, "run", fails),
            self.assertRaisesRegex(RuntimeError, "no lowering"),
        ):
            self.module()
        self.assertEqual(self.shape_env.pending_fresh_unbacked_symbols, [])

    def test_loads_once_in_many_threads(self):
        module = self.module()
        loaded = in_threads(module.load)
        self.assertEqual(counters["inductor"]["subgraph_module_loads"], 1)
        self.assertTrue(callable(loaded[0].call))
        self.assertEqual({id(m) for m in loaded}, {id(module.load())})

    def test_an_error_is_raised_for_every_caller(self):
        module = SubgraphModule(V.graph, "raise RuntimeError('no compiler')", (), ())
        errors = in_threads(module.load)
        self.assertEqual({type(e) for e in errors}, {RuntimeError})
        with self.assertRaisesRegex(RuntimeError, "no compiler"):
            module.load()
        self.assertEqual(counters["inductor"]["subgraph_module_loads"], 1)

    def test_an_interrupt_is_no_error_of_the_module(self):
        module = SubgraphModule(V.graph, "", (), ())
        with mock.patch.object(module, "_load", side_effect=KeyboardInterrupt):
            self.assertRaises(KeyboardInterrupt, module.load)
        module.load()
        self.assertEqual(counters["inductor"]["subgraph_module_loads"], 1)

    def test_loads_under_the_config_it_was_made_under(self):
        seen = []
        with config.patch(realize_reads_threshold=7):
            module = SubgraphModule(V.graph, "", (), ())

        def load(graph):
            seen.append(config.realize_reads_threshold)

        with mock.patch.object(module, "_load", load):
            in_threads(module.load)
        self.assertEqual(seen, [7])

    def test_lowers_under_its_config_and_generates_under_its_operations(self):
        gm = self.trace(affine, self.x, self.y)
        ir.gm_original_output_strides(gm)
        patches = {"realize_reads_threshold": 7}
        seen = []

        def spy(name):
            method = getattr(GraphLowering, name)

            def noting(graph, *args):
                tags = [o.get_config_patches() for o in graph.operations]
                seen.append((config.realize_reads_threshold, config.cpp_wrapper, tags))
                return method(graph, *args)

            return mock.patch.object(GraphLowering, name, noting)

        fakes = self.fakes(self.x, self.y)
        with spy("run"), spy("codegen"), config.patch(cpp_wrapper=True):
            usual = config.realize_reads_threshold
            generate_module(gm, fakes, [self.s0], "t", patches)
        self.assertEqual(seen, [(7, False, []), (usual, False, [patches])])


if __name__ == "__main__":
    run_tests()
