"""
A choice that waits: its candidates compile while the rest of the graph is lowered.

The lowering of an autotuned op returns a buffer with the op's own layout. When the
scheduler is about to start, the choice is made and the chosen graph is lowered in the
buffer's place, before anything is fused.
"""

from __future__ import annotations

import contextlib
import contextvars
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters
from torch.utils._ordered_set import OrderedSet

from .. import ir
from ..virtualized import V
from .choice import FusedChoiceCaller
from .last_resort import making_choices
from .neighbours.apart import boundaries


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from ..graph import GraphLowering
    from .tuning import Tuning

    Resolve = Callable[[], Sequence[ir.TensorBox]]


class DeferredBuffer(ir.MultiTemplateBuffer):
    """
    Stands for one output of a choice that waits.

    Args:
        layout: of the op's own output.
        waiting: what all outputs of one call site share.
    """

    def __init__(self, layout: ir.FixedLayout, waiting: _Waiting) -> None:
        tuning = waiting.tuning
        choices = [
            FusedChoiceCaller(tuning, index, layout) for index in tuning.standing.traced
        ]
        inputs = tuning.called.site.inputs
        super().__init__(
            layout=layout,
            inputs=[box for box in inputs if isinstance(box, ir.TensorBox)],
            choice_timings_fn=lambda _: {c: c.time_ms() for c in choices},
            unfiltered_choices=[*choices],
            allowed_prologue_inps=OrderedSet(),
        )
        self.waiting = waiting
        # What readers read in its place, if that is not a buffer of the same layout.
        self.view: ir.ReinterpretView | None = None

    def codegen_reference(self, writer: Any = None) -> str:
        """
        What stands for it in generated code.

        Kernels that Inductor generates load by flat index, in the layout that this buffer
        has had from the start; all others get the memory in that layout.
        """
        if self.view is not None:
            return self.view.codegen_reference(writer)
        return super().codegen_reference(writer)


class _Waiting:
    """
    A choice that waits, and the buffers that stand for its outputs.

    Args:
        resolve: makes the choice and lowers what was chosen; returns realized results in
            the op's strides, one for each output.
    """

    def __init__(self, tuning: Tuning, resolve: Resolve) -> None:
        self.tuning = tuning
        self._resolve = resolve
        # Inductor's config may be another one here than when the scheduler starts.
        self._context = contextvars.copy_context()
        # Nor are calls of these tuned in what was chosen: it may be called by them itself.
        calls = (call.op for call in tuning.site.calls)
        self._not_tuned = {*V.active_user_lowering_ops, *calls}
        called = tuning.called
        for box in called.site.written_inputs:  # who reads it as it was comes before
            V.graph.mark_buffer_mutated(box.get_name())
        self.stand_ins = [
            DeferredBuffer(layout, self) for layout in called.outputs.layouts
        ]

    def resolve(self) -> None:
        """Puts what was chosen in the place of the buffers that stand for it."""
        graph = V.graph
        operations, buffers = len(graph.operations), len(graph.buffers)
        site = self.tuning.called.site
        made = site.without_written(self.stand_ins)
        unread = [self.stand_ins[i] for i in site.written]
        names = [stand_in.get_name() for stand_in in (*made, *unread)]
        with (
            lowered_as_not_registered(self._not_tuned),
            _earlier_readers_settled(site.written_inputs),
        ):
            results = site.without_written(self._context.run(self._resolve))
            owned = _own_buffers(results, made, graph.buffers[buffers:])
        for buffer in graph.buffers[buffers:]:
            buffer.decide_layout()  # as at the end of lowering, which is over
        new_buffers = graph.buffers[buffers:]
        _hand_on(self.stand_ins, graph.operations[operations:])
        graph.operations[:] = _moved(graph.operations, operations, self.stand_ins)
        graph.buffers[:] = _moved(graph.buffers, buffers, self.stand_ins)
        # The next one to be made is named by how many there are: one for each name.
        graph.buffers += self.stand_ins[len(new_buffers) :]
        _number_operations(graph)
        _rename_buffers([buffer for buffer, _ in owned], new_buffers, names)
        for stand_in, (_, view) in zip(made, owned):
            stand_in.view = view


@contextlib.contextmanager
def lowered_as_not_registered(ops: Iterable[Any]) -> Iterator[None]:
    """Ops in candidates' graphs are no calls to be tuned."""
    added = {op for op in ops if op not in V.active_user_lowering_ops}
    V.active_user_lowering_ops.update(added)
    try:
        yield
    finally:
        V.active_user_lowering_ops.difference_update(added)


@contextlib.contextmanager
def lowered_as_registered(ops: Iterable[Any]) -> Iterator[None]:
    """Ops are calls to be tuned, inside of ``lowered_as_not_registered``."""
    hidden = V.active_user_lowering_ops.intersection(ops)
    V.active_user_lowering_ops.difference_update(hidden)
    try:
        yield
    finally:
        V.active_user_lowering_ops.update(hidden)


@contextlib.contextmanager
def _earlier_readers_settled(written: Iterable[ir.TensorBox]) -> Iterator[None]:
    """
    Hides readers that come before a write from its lowering, behind the rest of the graph,
    which would realize them again.
    """
    users = V.graph.name_to_users
    names = [box.get_name() for box in written]
    earlier = {name: users.pop(name, []) for name in names}
    try:
        yield
    finally:
        for name, readers in earlier.items():
            users[name] = [*readers, *users.get(name, [])]


def defer(tuning: Tuning, resolve: Resolve) -> list[ir.TensorBox]:
    """
    IR nodes that stand for a call site's outputs until the scheduler starts; for those that
    are written to its inputs, these.
    """
    counters["inductor"]["custom_op_choices_deferred"] += 1
    site, stand_ins = tuning.called.site, _Waiting(tuning, resolve).stand_ins
    made = site.without_written(stand_ins)
    return site.with_written(map(ir.TensorBox.create, made))


def resolve_choices(graph: GraphLowering) -> None:
    """
    Makes the choices that wait in a graph. Called when its scheduler is about to start.

    Args:
        graph: lowered, and the one that is being compiled; changed in place.
    """
    with making_choices(graph):
        while buffer := next(
            (op for op in graph.operations if isinstance(op, DeferredBuffer)), None
        ):
            buffer.waiting.resolve()


def _moved(nodes: list[Any], known: int, dead: Sequence[Any]) -> list[Any]:
    """The nodes behind the first ``known``, in the place of the first that is dead."""
    at = next(i for i, node in enumerate(nodes) if node is dead[0])
    gone = {id(node) for node in dead}
    rest = [node for node in nodes[at:known] if id(node) not in gone]
    return nodes[:at] + nodes[known:] + rest


def _own_buffers(
    results: Sequence[ir.TensorBox], stand_ins: Sequence[Any], made: Sequence[ir.Buffer]
) -> list[tuple[ir.Buffer, ir.ReinterpretView | None]]:
    """
    For each result a buffer of its own, and the view of it that the result is, if it is one.

    Results that have none, such as a view of an input, are copied.

    Args:
        results: realized, with the strides of their stand-ins.
        made: the buffers that lowering the results has made.
    """
    mine = {id(buffer) for buffer in made}
    owned = []
    for result, stand_in in zip(results, stand_ins):
        layout = stand_in.get_layout()
        buffer, view = _buffer_and_view(result)
        is_view_written = (
            view is not None and stand_in.get_name() in V.graph.mutated_buffers
        )
        is_base = _starts_at_base(buffer, view) and not is_view_written
        if id(buffer) not in mine or not is_base:
            copied = ir.ExternKernel.copy_input(result)
            copied = ir.ExternKernel.require_exact_strides(copied, layout.stride)
            buffer, view = _buffer_and_view(copied)
        mine.discard(id(buffer))
        owned.append((buffer, view))
    return owned


def _buffer_and_view(box: Any) -> tuple[ir.Buffer, ir.ReinterpretView | None]:
    node: Any = box
    view = None
    while isinstance(node, (ir.MutableBox, ir.ReinterpretView)):
        if isinstance(node, ir.ReinterpretView):
            view = node
        node = node.data
    assert isinstance(node, ir.Buffer), type(node)
    return node, view


def _starts_at_base(buffer: ir.Buffer, view: ir.ReinterpretView | None) -> bool:
    """Whether an index into the view is one into the buffer."""
    if isinstance(buffer.layout, (ir.NonOwningLayout, ir.MutationLayoutSHOULDREMOVE)):
        return False
    if view is None:
        return True
    return view.get_layout().offset == 0 and view.get_dtype() == buffer.get_dtype()


def _hand_on(
    stand_ins: Sequence[DeferredBuffer], operations: Sequence[ir.Operation]
) -> None:
    """Has the graph know of operations what it knows of the stand-ins that they replace."""
    graph = V.graph
    names = [operation.get_operation_name() for operation in operations]
    for stand_in in stand_ins:
        known = stand_in.get_operation_name()
        behind = graph.additional_buffer_deps.pop(known, ())
        for name in names if behind else ():
            graph.additional_buffer_deps[name].update(behind)
        for kind in _sets_of_operations(graph):
            if known in kind:
                kind.discard(known)
                kind.update(names)


def _number_operations(graph: GraphLowering) -> None:
    """Names operations by their places, so that the next one to be made gets a new name."""
    names = {
        op.get_operation_name(): graph.qualify_name(f"op{place}")
        for place, op in enumerate(graph.operations)
    }
    for operation, name in zip(graph.operations, names.values()):
        operation.operation_name = name
    graph.name_to_op = {op.get_operation_name(): op for op in graph.operations}
    for listed in graph.lists.values():
        listed[:] = [names[name] for name in listed]
    for known in _sets_of_operations(graph):
        _rename_members(known, names)
    _rename_keys(graph.additional_buffer_deps, names)


def _rename_buffers(
    owned: Sequence[ir.Buffer], new: Sequence[ir.Buffer], names: Sequence[str]
) -> None:
    """
    Gives buffers the names that their readers know; the others fill the numbers.

    Args:
        names: to be given, those that are known to the readers of ``owned`` first.
    """
    graph = V.graph
    # The graphs in flex_attention have none: its kernel knows them by what they were
    # registered with.
    new = [buffer for buffer in new if buffer.name is not None]
    mine = {id(buffer) for buffer in owned}
    others = [buffer for buffer in new if id(buffer) not in mine]
    free = [buffer.get_name() for buffer in new]
    renamed = {
        b.get_name(): name for b, name in zip([*owned, *others], [*names, *free])
    }
    for old in (*names, *renamed):
        del graph.name_to_buffer[old]
    for buffer in new:
        buffer.name = renamed[buffer.get_name()]
        graph.name_to_buffer[buffer.name] = buffer
    for known in _sets_of_names(graph):
        _rename_members(known, renamed)
    for table in _tables_by_name(graph):
        _rename_keys(table, renamed)
    for buffer in new:
        _rename_within(buffer, renamed)


def _sets_of_operations(graph: GraphLowering) -> list[Any]:
    """What a graph knows of operations by the sets that their names are in."""
    return [graph.low_precision_codegen_ops, graph.invoke_quant_ops]


def _rename_members(known: Any, renamed: Mapping[str, str]) -> None:
    now = [renamed[old] for old in known if old in renamed]
    known.difference_update(renamed)
    known.update(now)


def _rename_keys(table: dict[str, Any], renamed: Mapping[str, str]) -> None:
    moved = {renamed[old]: table.pop(old) for old in [*table] if old in renamed}
    table.update(moved)


def _sets_of_names(graph: GraphLowering) -> list[Any]:
    """What a graph knows of buffers by the sets that their names are in."""
    return [
        graph.mutated_buffers,
        graph.never_reuse_buffers,
        graph.unaligned_buffers,
        graph.no_fuse_buffer_names,
        boundaries(graph),
        *graph.additional_buffer_deps.values(),
        *graph.additional_star_deps.values(),
    ]


def _tables_by_name(graph: GraphLowering) -> list[dict[str, Any]]:
    """What else a graph knows of buffers."""
    return [
        graph.additional_star_deps,
        graph.buffer_to_padded_size,
        graph.buffer_layout_constraints,
    ]


def _rename_within(buffer: ir.Buffer, renamed: Mapping[str, str]) -> None:
    """Names that a buffer keeps as text."""

    def now(name: str) -> str:
        return renamed.get(name, name)

    if isinstance(buffer, ir.MutationOutput | ir.FallbackKernel):
        buffer.mutation_names = [now(name) for name in buffer.mutation_names]
    if isinstance(buffer, ir.FallbackKernel):
        buffer.alias_names = [now(name) for name in buffer.alias_names]
    if isinstance(buffer, ir.TemplateBuffer):
        fusable = buffer.epilogue_fusable_outputs
        buffer.epilogue_fusable_outputs = {now(k): now(v) for k, v in fusable.items()}
        allowed = buffer.allowed_prologue_inps
        buffer.allowed_prologue_inps = OrderedSet(map(now, allowed))
