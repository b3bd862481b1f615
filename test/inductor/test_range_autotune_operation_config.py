# Owner(s): ["module: inductor"]
"""Config that operations bring along: who has it, and which code is generated under it."""

from types import SimpleNamespace
from unittest import mock

from torch._inductor.codegen.simd import SIMDScheduling
from torch._inductor.graph import GraphLowering
from torch._inductor.scheduler import (
    ForeachKernelSchedulerNode,
    NestedReduction,
    Scheduler,
    SchedulerNode,
)
from torch._inductor.test_case import run_tests, TestCase
from torch.testing._internal.common_utils import (
    instantiate_parametrized_tests,
    parametrize,
)

from torch._inductor import config
from torch._inductor.range_autotune.emitting.operation_config import tag
from torch._inductor.range_autotune.kernel_configs.kernel_config_names import (
    KERNEL_CONFIGS_OPTION,
)


class Operation:
    """What is asked of one."""

    def __init__(self, *subgraphs):
        self.subgraphs = subgraphs
        self.patches = {}

    def get_subgraphs(self):
        return self.subgraphs

    def set_config_patches(self, patches):
        self.patches = patches

    def get_config_patches(self):
        return self.patches


class TestTag(TestCase):
    def test_operations_and_those_in_their_subgraphs(self):
        inner = Operation()
        graph = mock.Mock(spec=GraphLowering, operations=[inner])
        not_lowered = SimpleNamespace(graph=None)
        outer = Operation(SimpleNamespace(graph=graph), not_lowered)
        patches = {"max_autotune": True}
        tag([outer], patches)
        self.assertEqual((outer.patches, inner.patches), (patches, patches))
        inner.patches["max_autotune"] = False
        self.assertEqual((outer.patches, patches), ({"max_autotune": True},) * 2)

    def test_what_is_there_stays_without_patches(self):
        operation = Operation()
        tag([operation], {"max_autotune": True})
        tag([operation], {})
        self.assertEqual(operation.patches, {"max_autotune": True})


def node_of(*operations):
    """Of the scheduler, fused from one for each."""
    fused = mock.MagicMock()
    nodes = [mock.Mock(spec=SchedulerNode, node=o) for o in operations]
    fused.get_nodes.return_value = nodes
    for part in (fused.node1, fused.node2):
        part.group = None, (4, 4)
        part.ancestors = part.get_operation_names.return_value = set()
    return fused


def generate_from_nodes(scheduling, node):
    scheduling.generate_kernel_code_from_nodes(node.get_nodes(), benchmark_kernel=True)


@instantiate_parametrized_tests
class TestKernels(TestCase):
    @parametrize(
        "generate, owner, begins_with",
        (
            (SIMDScheduling.codegen_node, SIMDScheduling, "_codegen_nodes"),
            (
                SIMDScheduling.codegen_mix_order_reduction,
                SIMDScheduling,
                "_codegen_mix_order_reduction",
            ),
            (
                SIMDScheduling.codegen_nested_reduction,
                NestedReduction,
                "_classify_nested_pointwise_nodes",
            ),
            (generate_from_nodes, SIMDScheduling, "generate_node_schedule"),
        ),
    )
    def test_are_generated_under_it(self, generate, owner, begins_with):
        first, second = Operation(), Operation()
        first.patches = {"triton.multi_kernel": 1}
        second.patches = {"triton.persistent_reductions": False}
        seen = []

        class Begun(Exception):
            pass

        def begin(*_):
            seen.append(config.triton.multi_kernel)
            seen.append(config.triton.persistent_reductions)
            raise Begun

        node = node_of(first, second)
        for part in node.get_nodes():
            part.is_template.return_value = False
            part.is_reduction.return_value = True
            part.group = None, (4, 4)
        with (
            mock.patch.object(owner, begins_with, begin),
            config.patch({"triton.coalesce_tiling_analysis": False}),
            self.assertRaises(Begun),
        ):
            generate(SIMDScheduling(mock.MagicMock()), node)
        self.assertEqual(seen, [1, False])
        self.assertEqual(config.triton.multi_kernel, 0)

    def test_are_no_part_of_a_combo_kernel(self):
        plain, own, named, none = Operation(), Operation(), Operation(), None
        own.patches = {"triton.persistent_reductions": False}
        named.patches = {
            KERNEL_CONFIGS_OPTION: {"kernel": "config"}
        }  # of kernels that are none
        nodes = [node_of(plain, none), node_of(plain, own), node_of(named)]
        for order, node in enumerate(nodes):
            node.min_order = order
        combined = []

        def combinable_nodes(nodes):
            combined.extend(nodes)
            return []

        with mock.patch.multiple(
            ForeachKernelSchedulerNode,
            group_nodes_for_combo_kernels=lambda _: [nodes],
            combinable_nodes=combinable_nodes,
        ):
            Scheduler.create_combo_kernel_nodes(mock.MagicMock(nodes=nodes))
        self.assertEqual(combined, [nodes[0], nodes[2]])


if __name__ == "__main__":
    run_tests()
