# Owner(s): ["module: inductor"]
"""torch.cond in candidates' graphs."""

import operator

from torch._inductor.test_case import run_tests, TestCase
from torch.fx.experimental.proxy_tensor import make_fx

import torch
from torch._inductor.range_autotune.candidates.traced_candidates import TracedCandidate
from torch._inductor.range_autotune.graphs.cond_branches import with_tuples
from torch._inductor.range_autotune.registration import Candidate


cond = torch.ops.higher_order.cond


def traced(fn):
    return make_fx(fn)(torch.ones(4))


def of_one_tensor(x):
    def inner(x):
        return cond(x.prod() > 8, torch.sin, torch.cos, (x,))

    y = cond(x.sum() > 3, inner, torch.neg, (x,))
    return y + y.sum()


def of_tuples(x):
    return cond(x.sum() > 3, lambda x: (x.sin(), x), lambda x: (x.cos(), x + 1), (x,))


@torch.library.custom_op("control_flow::op", mutates_args=())
def op(x: torch.Tensor) -> torch.Tensor:
    return x + 1


op.register_fake(torch.empty_like)


def of_an_op(x):
    return cond(x.sum() > 3, torch.sin, op, (x,))


class TestControlFlow(TestCase):
    def test_calls_of_python_in_branches(self):
        for fn, calls in ((of_an_op, True), (of_one_tensor, False)):
            candidate = TracedCandidate(Candidate("fn", fn), traced(fn))
            self.assertEqual(candidate.calls_python, calls)

    def test_branches_that_return_a_tensor(self):
        gm = with_tuples(traced(of_one_tensor))
        gm.graph.lint()
        for graph in (gm, gm.true_graph_0):
            (node,) = graph.graph.find_nodes(op="call_function", target=cond)
            self.assertIsInstance(node.meta["val"], tuple)
            (item,) = node.users
            self.assertIs(item.target, operator.getitem)
            self.assertEqual(item.meta["val"].shape, (4,))
            for branch in node.args[1:3]:
                output = getattr(graph, branch.target).graph.output_node()
                self.assertIsInstance(output.args[0], tuple)
        for x in (torch.ones(4), torch.full((4,), 2.0), torch.zeros(4)):
            self.assertEqual(gm(x), of_one_tensor(x))

    def test_branches_that_return_tuples(self):
        """They stay, but for copies of what they are given."""
        gm = traced(of_tuples)
        before = str(gm.graph)
        gm = with_tuples(gm)
        self.assertEqual(str(gm.graph), before)
        for branch in (gm.true_graph_0, gm.false_graph_0):
            x = torch.ones(4)
            results = branch(x)
            memory = {r.untyped_storage().data_ptr() for r in (x, *results)}
            self.assertEqual(len(memory), 1 + len(results))


if __name__ == "__main__":
    run_tests()
