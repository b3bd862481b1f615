# Owner(s): ["module: inductor"]
"""``SubgraphChoiceCaller.precompile()``: alone, in ``select_algorithm``, in our own tuning."""

import ast
import concurrent.futures
import itertools
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

from range_autotune_testing import (
    dense_layout,
    in_threads,
    made_fx,
    SymbolicTestCase,
    THREADS,
)
from torch._dynamo.utils import counters
from torch._inductor.debug import DebugContext
from torch._inductor.fx_passes.b2b_gemm import _make_unoptimized_b2b_gemm_choice
from torch._inductor.graph import GraphLowering
from torch._inductor.kernel.mm import (
    decompose_k_subgraph_template,
    mm_contiguous_subgraph_template,
)
from torch._inductor.lowering import user_lowerings
from torch._inductor.select_algorithm import (
    autotune_select_algorithm,
    ExternKernelChoice,
    get_algorithm_selector_cache,
    realize_inputs,
)
from torch._inductor.test_case import run_tests, TestCase
from torch._inductor.utils import run_and_get_code
from torch._inductor.virtualized import NullHandler, V
from torch.testing import FileCheck
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

import torch
from torch._inductor import config, ir, select_algorithm
from torch._inductor.codegen import subgraph
from torch._inductor.codegen.subgraph import (
    precompilable,
    SubgraphChoiceCaller,
    SubgraphTemplate,
)
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.modules import threads
from torch._inductor.range_autotune.modules.subgraph_module import SubgraphModule


# Only a failing test waits so long.
LONG_S = 60
LOG = "torch._inductor.codegen.subgraph"
_numbers = itertools.count()


# Graphs that need no kernel of their own load at once.
def by_mm(x, y):
    return torch.mm(x, y)


def by_bmm(x, y):
    return torch.bmm(x[None], y[None])[0]


def count(name):
    return counters["inductor"][name]


class Loads:
    """
    What loading a choice's module does, in place of the real thing or before it.

    Args:
        before: called with the module's source in the thread that loads.
    """

    def __init__(self, before=lambda source: None):
        self.threads = []
        real = SubgraphModule._load

        def load(module, graph):
            self.threads.append(threading.current_thread())
            before(module.source)
            return real(module, graph)

        self.patch = mock.patch.object(SubgraphModule, "_load", load)


class PrecompileTestCase(SymbolicTestCase):
    def setUp(self):
        super().setUp()
        counters.clear()
        self.enterContext(V.set_debug_handler(DebugContext()))
        self.s0 = self.symbol("s0", 16)
        self.x, self.y = self.tensor([self.s0, 4]), self.tensor([4, 4])
        self.args = torch.randn(16, 4), torch.randn(4, 4)

    def choice(self, fn=by_mm, name="t", nodes=None):
        nodes = nodes or [self.x, self.y]
        return SubgraphTemplate(name).generate(
            name, nodes, dense_layout(nodes[0]), made_fx(fn)
        )

    def loads(self, before=lambda source: None):
        loads = Loads(before)
        self.enterContext(loads.patch)
        return loads

    def waiting_loads(self):
        """Loads that tell when the first runs, and go on when they are released."""
        running, release = threading.Event(), threading.Event()
        self.addCleanup(release.set)

        def wait(_):
            running.set()
            release.wait(LONG_S)

        return self.loads(wait), running, release

    def benchmark(self, choice):
        return choice.benchmark(*self.args, out=torch.empty(16, 4))

    def in_pool(self, *choices, workers=THREADS):
        """Precompiles in threads that know nothing of the graph being compiled."""
        with ThreadPoolExecutor(workers) as pool:
            futures = [pool.submit(choice.precompile) for choice in choices]
        return [future.result() for future in futures]

    def assert_compiled(self, generated, loaded):
        self.assertEqual(count("subgraph_modules_generated"), generated)
        self.assertEqual(count("subgraph_module_loads"), loaded)


class TestPrecompile(PrecompileTestCase):
    @parametrize("generated_before", (False, True))
    def test_many_threads_on_one_choice(self, generated_before):
        choice = self.choice()
        if generated_before:
            choice.generate()

        def precompile():
            choice.precompile()
            return choice._module()

        modules = in_threads(precompile)
        self.assertEqual(len({id(module) for module in modules}), 1)
        self.assert_compiled(1, 1)
        self.assertFalse(choice.failed)

    def test_many_choices_in_many_threads(self):
        choices = [self.choice(fn) for fn in (by_mm, by_bmm) for _ in range(3)]
        self.in_pool(*choices)
        self.assert_compiled(6, 6)
        for choice in choices:
            (result,) = choice._module().call([16, *self.args])
            self.assertEqual(result, torch.mm(*self.args))
        self.assertEqual(self.shape_env.guards, [])

    def test_the_second_caller_waits(self):
        _, running, release = self.waiting_loads()
        choice = self.choice()
        choice.generate()
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(choice.precompile)
            self.assertTrue(running.wait(LONG_S))
            second = pool.submit(self.benchmark, choice)
            done, _ = concurrent.futures.wait([first, second], timeout=0.2)
            self.assertEqual(done, set())
            release.set()
            self.assertGreater(second.result(LONG_S), 0)
        self.assert_compiled(1, 1)

    def test_benchmark_uses_it(self):
        loads = self.loads()
        choice = self.choice()
        choice.generate()
        self.assert_compiled(1, 0)
        self.in_pool(choice)
        self.assertGreater(self.benchmark(choice), 0)
        choice.benchmark_collective(*self.args, out=torch.empty(16, 4))
        self.assert_compiled(1, 1)
        self.assertNotIn(threading.main_thread(), loads.threads)

    def test_benchmark_without_it_compiles_once(self):
        loads = self.loads()
        choice = self.choice()
        self.assert_compiled(0, 0)
        for _ in range(2):
            self.assertGreater(self.benchmark(choice), 0)
        self.assert_compiled(1, 1)
        self.assertEqual(loads.threads, [threading.main_thread()])

    def test_idempotent(self):
        choice = self.choice()
        for _ in range(3):
            choice.precompile()
            choice.generate()
        self.assert_compiled(1, 1)

    def test_the_thread_has_no_handlers_and_gets_none(self):
        choice = self.choice()

        def precompile():
            before = type(V.graph)
            choice.precompile()
            return before, type(V.graph)

        with ThreadPoolExecutor(1) as pool:
            seen = pool.submit(precompile).result()
        self.assertEqual(seen, (NullHandler, NullHandler))
        self.assert_compiled(1, 1)

    @parametrize("generated_before", (False, True))
    def test_config_is_that_of_the_lowering_thread(self, generated_before):
        seen = []

        def note(*_):
            seen.append(config.realize_reads_threshold)

        self.loads(note)
        real = subgraph.generate_module
        with (
            mock.patch.object(
                subgraph, "generate_module", lambda *args: note() or real(*args)
            ),
            config.patch(realize_reads_threshold=7),
        ):
            choice = self.choice()
            if generated_before:
                choice.generate()
            with config.patch(realize_reads_threshold=8):
                self.in_pool(choice)
        self.assertEqual(seen, [7, 7])

    def test_patches_of_the_choice_come_on_top(self):
        seen = []
        lower = GraphLowering.run

        def noting(graph, *args):
            seen.append((config.max_autotune, config.max_autotune_gemm))
            return lower(graph, *args)

        choice = self.choice()
        choice.config_patches = {"max_autotune": True}
        with (
            mock.patch.object(GraphLowering, "run", noting),
            config.patch(max_autotune_gemm=True),
        ):
            self.in_pool(choice)
        self.assertEqual(seen, [(True, False)])

    @parametrize("step", ("generate", "load"))
    def test_an_error_is_kept_for_benchmark(self, step):
        error = ValueError("no compiler\nand a long story")
        failing = mock.Mock(side_effect=error)
        if step == "load":
            self.loads(failing)
        else:
            self.enterContext(mock.patch.object(subgraph, "generate_module", failing))
        choice = self.choice()
        choice.generate()
        with self.assertLogs(LOG, logging.WARNING) as logs:
            self.assertEqual(self.in_pool(choice), [None])
        self.assertEqual(
            [record.getMessage() for record in logs.records],
            [f"{choice} is left out, it does not compile: ValueError: no compiler"],
        )
        self.assertTrue(choice.failed)
        for _ in range(2):
            with self.assertRaises(ValueError) as caught:
                self.benchmark(choice)
            self.assertIs(caught.exception, error)
        self.assertEqual(failing.call_count, 1)

    def test_one_error_leaves_other_choices_alone(self):
        def fail(source):
            if "bmm" in source:
                raise RuntimeError("no compiler")

        self.loads(fail)
        bad, good = self.choice(by_bmm), self.choice(by_mm)
        with self.assertLogs(LOG, logging.WARNING):
            self.in_pool(bad, good)
        self.assertEqual((bad.failed, good.failed), (True, False))
        self.assertGreater(self.benchmark(good), 0)

    def test_pool_shutdown_while_loading(self):
        loads, running, release = self.waiting_loads()
        first, second = self.choice(), self.choice()
        for choice in (first, second):
            choice.generate()
        pool = ThreadPoolExecutor(1)
        futures = [pool.submit(choice.precompile) for choice in (first, second)]
        self.assertTrue(running.wait(LONG_S))
        pool.shutdown(wait=False, cancel_futures=True)
        release.set()
        self.assertGreater(self.benchmark(first), 0)
        self.assertTrue(futures[1].cancelled())
        self.assertGreater(self.benchmark(second), 0)
        self.assertEqual(len(loads.threads), 2)
        self.assertIs(loads.threads[1], threading.main_thread())

    def test_kernels_are_loaded_without_ast_objects(self):
        """Which is why old Pythons may load them in threads."""
        choice = self.choice(lambda x, y: x @ y + 1)
        choice.generate()
        self.assertTrue(choice.loads_in_any_thread())
        with mock.patch.object(ast, "parse", side_effect=AssertionError) as parse:
            self.in_pool(choice)
        self.assertEqual(parse.call_count, 0)
        (result,) = choice._module().call([16, *self.args])
        self.assertEqual(result, torch.mm(*self.args) + 1)


instantiate_parametrized_tests(TestPrecompile)


class TestKeys(PrecompileTestCase):
    def test_config_is_in_the_key(self):
        first, second, third = (self.choice() for _ in range(3))
        second.config_patches = {"realize_reads_threshold": 9}
        third.config_patches = {"realize_reads_threshold": 9}
        self.assertNotEqual(first.hash_key(), second.hash_key())
        self.assertEqual(second.hash_key(), third.hash_key())
        self.assertEqual(second.kernel_hash_key(), second.hash_key())

    def test_branches_are_in_the_key(self):
        def branching(marker):
            def fn(x, y):
                return torch.cond(
                    y.sum() > 0, lambda x: x.sin() + marker, lambda x: x.cos(), (x,)
                )

            return fn

        keys = [self.choice(branching(marker)).hash_key() for marker in (1, 1, 2)]
        self.assertEqual(keys[0], keys[1])
        self.assertNotEqual(keys[0], keys[2])

    def test_names_without_a_number_are_whole(self):
        def named(name):
            return SubgraphChoiceCaller(
                name, [self.x, self.y], dense_layout(self.x), "", made_fx(by_mm)
            )

        keys = {named(name).hash_key() for name in ("gemm_left", "gemm_right")}
        self.assertEqual(len(keys), 2)


class TestUpstreamsChoices(PrecompileTestCase):
    """Of mm and b2b_gemm; both choose between them on a GPU only."""

    @parametrize("left", (False, True))
    def test_b2b_gemm(self, left):
        graph = torch.fx.Graph()
        (x,) = (graph.placeholder("x"),)
        graph.output(graph.call_function(torch.ops.aten.neg.default, (x,)))
        epilogue = ir.Subgraph(
            name="epilogue", graph_module=torch.fx.GraphModule({}, graph)
        )
        nodes = [self.x, self.y, self.tensor([4, 3])]
        choice = _make_unoptimized_b2b_gemm_choice(
            left, epilogue, nodes, dense_layout(self.x, [self.s0, 3])
        )
        self.in_pool(choice)
        a, b, c = *self.args, torch.randn(4, 3)
        (result,) = choice._module().call([16, a, b, c])
        self.assertEqual(result, -(a @ b @ c))
        self.assertEqual(self.shape_env.guards, [])
        tag = "left" if left else "right"
        self.assertTrue(choice.hash_key().startswith(f"unoptimized_b2b_gemm_{tag}-"))

    def test_contiguous_mm(self):
        nodes = [self.x, self.tensor([4, 4], [1, 4])]
        layout = dense_layout(self.x)
        choice = mm_contiguous_subgraph_template.generate(nodes, layout)
        self.assertEqual(precompilable([choice]), {choice})
        self.assert_compiled(1, 0)
        self.in_pool(choice)
        a, b = self.args[0], self.args[1].t()
        (result,) = choice._module().call([16, a, b])
        self.assertEqual(result, a @ b)

    def test_decompose_k(self):
        nodes = [self.tensor([8, 64]), self.tensor([64, 8])]
        choices = [
            decompose_k_subgraph_template.generate(
                nodes, dense_layout(nodes[0], [8, 8]), k_split=k_split
            )
            for k_split in (4, 8, 4)
        ]
        keys = [choice.kernel_hash_key() for choice in choices]
        self.assertEqual(keys[0], keys[2])
        self.assertNotEqual(keys[0], keys[1])
        # Its bmm exists on GPUs only: here no choice compiles, and none raises.
        self.assertEqual(precompilable(choices), set(choices))
        with self.assertLogs(LOG, logging.WARNING) as logs:
            self.in_pool(*choices)
        self.assertEqual([choice.failed for choice in choices], [True] * 3)
        self.assertIn("only supported for CUDA or XPU", logs.output[0])


instantiate_parametrized_tests(TestUpstreamsChoices)


class TestOffered(PrecompileTestCase):
    """What select_algorithm may precompile in threads."""

    def other(self, **attributes):
        choice = ir.ChoiceCaller("other", [], dense_layout(self.x), "")
        vars(choice).update(attributes)
        return choice

    def affected(self, affected):
        for module in (threads, subgraph):
            self.enterContext(
                mock.patch.object(module, "PYTHON_BUILDS_AST_IN_ONE_THREAD", affected)
            )

    @parametrize("affected", (False, True))
    def test_others_not_on_affected_pythons(self, affected):
        self.affected(affected)
        template = self.other(precompile=lambda: None)
        ours, extern = self.choice(), self.other()
        offered = precompilable([template, ours, extern])
        self.assertEqual(offered, {ours} if affected else {template, ours})
        self.assert_compiled(1, 0)

    @parametrize("affected", (False, True))
    def test_triton_in_this_process_not_on_affected_pythons(self, affected):
        self.affected(affected)
        module = SubgraphModule(V.graph, "k = async_compile.triton('k', '')", (), ())
        with (
            mock.patch.object(subgraph, "generate_module", lambda *_: module),
            config.patch(compile_threads=1),
        ):
            choice = self.choice()
            self.assertEqual(precompilable([choice]), set() if affected else {choice})

    def test_what_has_no_code_is_offered_to_fail_there(self):
        failing = mock.Mock(side_effect=ValueError("no code"))
        with mock.patch.object(subgraph, "generate_module", failing):
            choice = self.choice()
            self.assertEqual(precompilable([choice]), {choice})


instantiate_parametrized_tests(TestOffered)


class TestSelection(TestCase):
    """Subgraph choices through autotune_select_algorithm, in a compiled model."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        get_algorithm_selector_cache().cache_clear()
        counters.clear()
        self.enterContext(mock.patch.dict(user_lowerings))
        self.enterContext(config.patch(fx_graph_cache=False))
        self.args = torch.randn(6, 4), torch.randn(4, 4)
        self.selected = []

    def op(self, fns=(by_mm, by_bmm), extern=False, **options):
        """x @ y, chosen among graphs."""

        def lower(x, y):
            x, y = realize_inputs(x, y)
            layout = dense_layout(x)
            self.choices = [
                SubgraphTemplate(fn.__name__).generate(
                    fn.__name__, [x, y], layout, made_fx(fn)
                )
                for fn in fns
            ]
            if extern:
                self.choices.append(aten_mm().bind([x, y], layout))
            node, choice = autotune_select_algorithm(
                "selection", self.choices, [x, y], layout, **options
            )
            self.selected.append(choice)
            return node

        name = f"subgraph_precompile::op{next(_numbers)}"
        op = torch.library.custom_op(name, mutates_args=())(typed_mm)
        op.register_fake(lambda x, y: torch.empty_like(x))
        user_lowerings[op._opoverload] = lower
        return op

    def check(self, op, **compile_options):
        compiled = torch.compile(op, **compile_options)
        result, (code, *_) = run_and_get_code(compiled, *self.args)
        self.assertEqual(result, torch.mm(*self.args))
        return code

    def loads(self, before=lambda source: None):
        loads = Loads(before)
        self.enterContext(loads.patch)
        return loads

    @parametrize("dynamic", (False, True))
    def test_all_are_loaded_in_threads(self, dynamic):
        loads = self.loads()
        code = self.check(self.op(extern=True), dynamic=dynamic)
        self.assertEqual(count("subgraph_modules_generated"), 2)
        self.assertEqual(count("select_algorithm_num_precompiles"), 2)
        self.assertEqual(len(loads.threads), 2)
        self.assertNotIn(threading.main_thread(), loads.threads)
        self.assertTrue(all(thread.daemon for thread in loads.threads))
        if isinstance(self.selected[0], SubgraphChoiceCaller):
            FileCheck().check(f"def {self.selected[0].name}(").run(code)

    def test_without_threads_they_are_compiled_on_demand(self):
        loads = self.loads()
        self.check(self.op(precompilation_timeout_seconds=0))
        self.assertEqual(count("select_algorithm_num_precompiles"), 0)
        self.assertEqual(loads.threads, [threading.main_thread()] * 2)

    def test_cached_timings_need_no_code(self):
        self.check(self.op())
        self.assertEqual(count("subgraph_modules_generated"), 2)
        torch._dynamo.reset()
        self.check(self.op())
        self.assertEqual(count("subgraph_modules_generated"), 2)
        self.assertEqual(count("subgraph_module_loads"), 2)
        self.assertEqual(self.selected[0].hash_key(), self.selected[1].hash_key())

    @parametrize("step", ("generate", "load"))
    def test_one_that_fails_leaves_the_others(self, step):
        """Also with errors that select_algorithm lets pass through its benchmarks."""

        def fail(source):
            if "bmm" in source:
                raise ValueError("no compiler")

        if step == "load":
            self.loads(fail)
        else:
            real = subgraph.generate_module
            self.enterContext(
                mock.patch.object(
                    subgraph,
                    "generate_module",
                    lambda gm, *rest: fail(gm.code) or real(gm, *rest),
                )
            )
        with self.assertLogs(LOG, logging.WARNING) as logs:
            self.check(self.op())
        self.assertIn("by_bmm", self.choices[1].name)
        self.assertIs(self.selected[0], self.choices[0])
        self.assertEqual([c.failed for c in self.choices], [False, True])
        self.assertEqual(len(logs.records), 1)

    def test_one_that_hangs_leaves_the_others(self):
        running, release = threading.Event(), threading.Event()
        self.addCleanup(release.set)
        hanging = []

        def hang(source):
            if "bmm" in source:
                hanging.append(threading.current_thread())
                running.set()
                release.wait(LONG_S)

        loads = self.loads(hang)

        def as_completed(futures, timeout):
            """The time is up when only what hangs is left."""
            (hanging,) = (f for f, c in futures.items() if "bmm" in c.name)
            rest = [f for f in futures if f is not hanging]
            yield from concurrent.futures.as_completed(rest, LONG_S)
            raise TimeoutError

        with mock.patch.object(select_algorithm, "as_completed", as_completed):
            self.check(self.op(precompilation_timeout_seconds=1))
        self.assertTrue(running.wait(LONG_S))
        (thread,) = hanging
        for other in set(loads.threads) - {thread}:  # one may load both
            other.join(LONG_S)
            self.assertFalse(other.is_alive())
        self.assertTrue(thread.is_alive())
        self.assertIs(self.selected[0], self.choices[0])
        self.assertEqual([c.failed for c in self.choices], [False, True])
        self.assertTrue(all(thread.daemon for thread in loads.threads))

    def test_an_error_that_nobody_survives(self):
        self.loads(mock.Mock(side_effect=ValueError("no compiler")))
        with (
            self.assertLogs(LOG, logging.WARNING),
            self.assertRaisesRegex(Exception, "All choices failed to compile"),
        ):
            self.check(self.op())


instantiate_parametrized_tests(TestSelection)


def typed_mm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, y)


def aten_mm():
    name = "subgraph_precompile_mm"
    return ExternKernelChoice.lookup(name) or ExternKernelChoice(
        torch.mm, name=name, op_overload=torch.ops.aten.mm.out
    )


class TestOwnTuning(TestCase):
    """The number of threads that candidates of autotuned custom ops are loaded in."""

    def setUp(self):
        super().setUp()
        torch._dynamo.reset()
        counters.clear()
        self.enterContext(mock.patch.dict(user_lowerings))
        self.enterContext(config.patch(fx_graph_cache=False))

    def loading_threads(self, **options):
        """The threads that three modules were loaded in: two candidates, and the op."""
        name = f"subgraph_precompile::tuned{next(_numbers)}"
        op = torch.library.custom_op(name, mutates_args=())(typed_mm)
        op.register_fake(lambda x, y: torch.empty_like(x))
        register_custom_op_autotuning(
            op, [CustomOpConfig(by_mm), CustomOpConfig(by_bmm)]
        )
        loads = Loads()
        x, y = torch.randn(6, 4), torch.randn(4, 4)
        with loads.patch, config.patch(options):
            result = torch.compile(op)(x, y)
        self.assertEqual(result, x @ y)
        self.assertEqual(len(loads.threads), 3)
        return set(loads.threads)

    @parametrize(
        "options",
        (
            {"custom_op_autotune_threads": 1},
            {"custom_op_autotune_threads": None, "compile_threads": 1},
        ),
    )
    def test_one_is_serial(self, options):
        used = self.loading_threads(custom_op_candidate_time_limit_s=None, **options)
        self.assertEqual(used, {threading.current_thread()})

    def test_one_is_serial_under_a_limit(self):
        """In threads that can be left behind, but never two at a time."""
        running, most = [], []

        def load(module):
            running.append(module)
            most.append(len(running))
            result = original(module)
            running.remove(module)
            return result

        original = SubgraphModule.load
        with mock.patch.object(SubgraphModule, "load", load):
            self.loading_threads(custom_op_autotune_threads=1)
        self.assertEqual(max(most), 1)

    @parametrize(
        "options",
        (
            {"custom_op_autotune_threads": 2},
            {"custom_op_autotune_threads": None, "compile_threads": 2},
        ),
    )
    def test_more_are_beside_the_lowering(self, options):
        used = self.loading_threads(**options)
        self.assertNotIn(threading.current_thread(), used)

    def test_the_number_is_no_part_of_cache_keys(self):
        self.assertIn("custom_op_autotune_threads", config._cache_config_ignore_prefix)


instantiate_parametrized_tests(TestOwnTuning)


if __name__ == "__main__":
    run_tests()
