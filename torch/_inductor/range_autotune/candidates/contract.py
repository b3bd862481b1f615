"""What a candidate must keep to: outputs as the op's own, in memory of their own."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from types import NoneType
from typing import Any, TYPE_CHECKING

import sympy
from torch.fx.experimental.proxy_tensor import get_proxy_mode, PythonKeyTracer
from torch.utils import _pytree as pytree

import torch

from ... import ir
from ...utils import convert_shape_to_inductor, convert_symint_to_expr
from ...virtualized import V
from ..errors import CandidateError
from ..graphs.captures import captured_tensors
from ..graphs.control_flow import all_nodes, copy_for_output
from ..graphs.functional import arguments_written
from ..graphs.node_kinds import arguments_of, is_index
from ..graphs.node_memory import memory_of
from ..graphs.write_ops import stands_for_write
from ..registering.signatures import tensors_in
from ..sizes.guards import frozen_shapes, known_answer
from ..writes.writes_as_values import places_written, value_written


if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


_as_strided = torch.ops.aten.as_strided.default
_WRITES_TO_PLACES = (
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._unsafe_index_put.default,
)


@dataclasses.dataclass(frozen=True)
class Outputs:
    """
    What a call site returns: fake tensors with symbolic sizes, and what is known anyway.

    Args:
        tensors: what its graph returns, flat.
        spec: how all results are nested.
        of_ops: what each op itself returns, flat; the contract of every candidate.
        known: results that are no tensors, by place among all: None, an integer, or a
            sympy expression.
    """

    tensors: tuple[torch.Tensor, ...]
    spec: pytree.TreeSpec
    of_ops: tuple[tuple[Any, ...], ...]
    known: Mapping[int, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def from_call(
        cls,
        results: Sequence[Any],
        spec: pytree.TreeSpec,
        of_ops: Sequence[Sequence[Any]],
    ) -> Outputs:
        """
        What the ops at a call site return is what each candidate must.

        Args:
            results: of a call site where each op runs itself, flat.

        Raises:
            CandidateError: for a result that no graph can be given, or if none is a tensor.
        """
        for value in itertools.chain(results, *of_ops):
            if not isinstance(value, torch.Tensor | int | torch.SymInt | NoneType):
                kind = type(value).__name__
                raise CandidateError(
                    f"it returns a {kind}, no tensor or integer or None"
                )
        if not (tensors := tensors_in(results)):
            raise CandidateError("it returns no tensor")
        known = {
            i: convert_symint_to_expr(value)  # type: ignore[arg-type]  # or None
            for i, value in enumerate(results)
            if not isinstance(value, torch.Tensor)
        }
        return cls(tuple(tensors), spec, tuple(map(tuple, of_ops)), known)

    def nested(self, made: Iterable[Any]) -> Any:
        """What stands for the tensors, and what is known, nested as the call site's results."""
        flat = [*made]
        for place, value in sorted(self.known.items()):
            flat.insert(place, value)
        return pytree.tree_unflatten(flat, self.spec)

    def without_known(self, results: Iterable[Any]) -> list[Any]:
        """Of what stands for all results, flat, that for the tensors."""
        return [result for i, result in enumerate(results) if i not in self.known]

    @property
    def device(self) -> torch.device:
        """Where they are computed: on an accelerator if one of them is there."""
        return main_device(tensor.device for tensor in self.tensors)

    @property
    def layouts(self) -> list[ir.FixedLayout]:
        """Those of the tensors."""
        return [*map(layout_of, self.tensors)]


def layout_of(fake: torch.Tensor, is_pinned: bool = False) -> ir.FixedLayout:
    """A fake tensor's, sizes symbolic."""
    return ir.FixedLayout(
        fake.device,
        fake.dtype,
        convert_shape_to_inductor(fake.shape),
        convert_shape_to_inductor(fake.stride()),
        is_pinned=is_pinned,
    )


def main_device(devices: Iterable[torch.device]) -> torch.device:
    """The first that is no CPU; of CPUs alone the first."""
    first, *rest = devices
    return next((d for d in (first, *rest) if d.type != "cpu"), first)


def check_outputs(values: Sequence[Any], expected: Sequence[Any]) -> None:
    """Raises CandidateError unless fake ``values`` are as the op's own."""
    if len(values) != len(expected):
        raise CandidateError(
            f"it returns {len(values)} outputs, the op {len(expected)}"
        )
    for i, (value, wanted) in enumerate(zip(values, expected)):
        if isinstance(wanted, torch.Tensor):
            _check_tensor(i, value, wanted)
        elif not _is_same(value, wanted):
            got = "a tensor" if isinstance(value, torch.Tensor) else repr(value)
            raise CandidateError(f"output {i} is {got}, the op's is {wanted!r}")


def _is_same(value: Any, expected: int | torch.SymInt | None) -> bool:
    """Whether what should be no tensor is provably what the op returns."""
    if not (
        type(value) in (int, torch.SymInt) and type(expected) in (int, torch.SymInt)
    ):
        return value is expected
    return known_equal([value], [expected])


def _check_tensor(index: int, value: Any, expected: torch.Tensor) -> None:
    if not isinstance(value, torch.Tensor):
        raise CandidateError(f"output {index} is {value!r}, not a tensor")
    for what in ("dtype", "device"):
        got, wanted = getattr(value, what), getattr(expected, what)
        if got != wanted:
            raise CandidateError(
                f"output {index} has {what} {got}, the op's has {wanted}"
            )
    if not known_equal(value.shape, expected.shape):
        raise CandidateError(
            f"output {index} has shape {list(value.shape)}, the op's has "
            f"{list(expected.shape)}"
        )


def with_own_memory(results: Iterable[Any], inputs: Iterable[Any]) -> list[Any]:
    """
    Copies outputs that share memory with an input or an earlier one, or start inside theirs:
    callers may write to what an op returns. What is to be conjugated or negated when it is read
    is so before: readers of what the op returns do neither.
    """
    seen = {_storage(x) for x in inputs if isinstance(x, torch.Tensor)}
    owned = []
    for returned in results:
        if not isinstance(returned, torch.Tensor):
            owned.append(returned)
            continue
        result = returned.resolve_conj().resolve_neg()
        at_start = known_equal([result.storage_offset()], [0])
        is_own = _storage(result) not in seen
        owned.append(result if is_own and at_start else result.clone())
        seen.add(_storage(owned[-1]))
    return owned


def copy_returned_inputs(graph: torch.fx.Graph) -> None:
    """
    Copies outputs that are a tensor that the graph captures, or that passes have found to
    equal that or an input.
    """
    output = graph.output_node()
    for node in output.all_input_nodes:
        is_given = memory_of(node).op in ("placeholder", "get_attr")
        if is_given and not stands_for_write(node):
            output.replace_input_with(node, copy_for_output(node))


def check_graph(graph: torch.fx.GraphModule) -> None:
    """
    Raises CandidateError if a graph writes to memory that is not its own, but for what its
    region writes to.
    """
    _check_writes_kept(graph)
    _check_no_writes(graph)


def check_layouts_read(graph: torch.fx.GraphModule, alone: bool) -> None:
    """
    Raises CandidateError for ``as_strided`` of what neighbours compute, or of a view of what is
    computed: generated code may have laid that out otherwise than it was traced.

    Args:
        alone: whether all that is computed is the candidate's own.
    """
    for node in graph.graph.find_nodes(op="call_function", target=_as_strided):
        memory = memory_of(node.args[0])
        is_own = alone and memory is node.args[0]
        if memory.op == "call_function" and not is_own:
            raise CandidateError(
                "it reads with as_strided what is computed, whose layout generated code "
                "may change"
            )


def _check_writes_kept(graph: torch.fx.GraphModule) -> None:
    """What a region writes to is still memory that it is given."""
    for node in graph.graph.nodes:
        if stands_for_write(node) and memory_of(node.args[0]).op != "placeholder":
            raise CandidateError(f"{node.target} would write to a copy")


def _check_no_writes(graph: torch.fx.GraphModule) -> None:
    """What is still written after functionalization must be the graph's own."""
    given = dict.fromkeys(graph.graph.find_nodes(op="placeholder"), "an argument")
    given |= dict.fromkeys(captured_tensors(graph), "a tensor that it captures")
    taken = {
        _storage(node.meta["val"]): what
        for node, what in given.items()
        if isinstance(node.meta["val"], torch.Tensor)
    }
    _check_not_written(graph.graph.nodes, taken)


@contextlib.contextmanager
def refusing_writes_to(arguments: Any) -> Iterator[None]:
    """
    While an implementation is traced, raises CandidateError at the end if it has written to
    one of its arguments, also by giving that another shape.

    Where the op's neighbours compute an argument, functionalization leaves no trace of such
    a write but that those who read it behind the op read what was written.

    Args:
        arguments: nested tensors as it is called with them.
    """
    mode = get_proxy_mode()
    assert mode is not None and isinstance(mode.tracer, PythonKeyTracer), mode
    nodes = mode.tracer.graph.nodes
    before = len(nodes)
    tensors = tensors_in(arguments)
    taken = dict.fromkeys(map(_storage, tensors), "an argument")
    yield
    _check_not_written(itertools.islice(nodes, before, None), taken)


def _check_not_written(
    nodes: Iterable[torch.fx.Node], taken: Mapping[int, str]
) -> None:
    """
    Raises CandidateError if a node writes to memory that is taken.

    Args:
        taken: what is in it, by storage.
    """
    for node in nodes:  # none in a branch, see functionalized
        for value in [argument.meta.get("val") for argument in arguments_written(node)]:
            if isinstance(value, torch.Tensor) and _storage(value) in taken:
                raise CandidateError(
                    f"it writes to {taken[_storage(value)]} with {node.target}"
                )


def check_values_fit(graph: torch.fx.GraphModule) -> None:
    """
    Asks whether values that a graph writes to places of a tensor have as many elements as
    these, as eager mode does. Tracing does not, and generated code would read behind them.
    Neighbours' writes are asked about as they join.

    Raises what a trace does that asks it.
    """
    for node in all_nodes(graph):
        if node.target in _WRITES_TO_PLACES and not _has_mask(node):
            with frozen_shapes():
                value_written(node).meta["val"].expand(places_written(node).shape)


def _has_mask(write: torch.fx.Node) -> bool:
    """Whether the places are those where something is true, and as many as data tell."""
    indices = [index for index in arguments_of(write)["indices"] if index is not None]
    return not all(is_index(index.meta["val"]) for index in indices)


def pin_strides(graph: torch.fx.GraphModule, outputs: Outputs) -> None:
    """Compiled by itself, the graph returns the op's strides, as it must where it wins."""
    meta = graph.graph.find_nodes(op="output")[0].meta
    meta["user_visible_output_idxs"] = list(range(len(outputs.tensors)))
    meta["original_output_strides"] = [t.stride() for t in outputs.tensors]


def known_equal(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """
    Whether sizes are provably equal; asked of their expressions, which no tracer sees.

    ``sizevars`` would say no where they are not for the size that the model is compiled
    with, which may be outside of what is known of it.
    """
    shape_env = V.graph.sizevars.shape_env
    return len(a) == len(b) and all(
        x == y or known_answer(sympy.Eq(x, y), shape_env) == sympy.true
        for x, y in zip(convert_shape_to_inductor(a), convert_shape_to_inductor(b))
    )


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
