# Owner(s): ["module: inductor"]
"""
Random autotuned ops in random models: compiled equals eager on both sides of each
boundary, in one compilation.

Implementations of most cases add a marker of their own, so that a result tells which one
ran; in the others all are equal. ``make fuzz`` runs 1,000 cases, or
``CUSTOM_OP_FUZZ_EXAMPLES`` many. A failing case is printed as Python: ``check(Case(…))``
repeats it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
import logging
import math
import operator
import os
import random
import traceback
from typing import Any, TYPE_CHECKING
from unittest import mock

from hypothesis import given, HealthCheck, note, seed, settings
from hypothesis import strategies as st
from torch._inductor.lowering import user_lowerings
from torch._inductor.test_case import run_tests, TestCase
from torch.testing import assert_close
from torch.testing._internal.inductor_utils import GPU_TYPE, HAS_GPU
from torch.utils import _pytree as pytree

import torch
from torch._inductor import config
from torch._inductor.kernel.custom_op import (
    CustomOpConfig,
    CustomOpRangeConfig,
    register_custom_op_autotuning,
)
from torch._inductor.range_autotune.measuring import calls, measure_ranges
from torch._inductor.range_autotune.times import Timing


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    Values = dict[str, Any]

DEVICE = GPU_TYPE if HAS_GPU else "cpu"
# Set by `make fuzz`: then cases are random, and all run whatever fails.
FUZZ_EXAMPLES = int(os.environ.get("CUSTOM_OP_FUZZ_EXAMPLES", "0"))
FUZZ_SEED = int(os.environ.get("CUSTOM_OP_FUZZ_SEED", random.getrandbits(32)))
EXAMPLES = settings(
    max_examples=FUZZ_EXAMPLES or 8,
    deadline=None,
    derandomize=not FUZZ_EXAMPLES,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
PROGRESS_EVERY = 20
FALLBACK = -1
MARKER = 64
# A stride that no size equals: Dynamo guards on those that do in the first call.
STEP = 53
TOLERANCES = {torch.bfloat16: {"rtol": 2e-2, "atol": 2e-2}}

# A tensor as a view of memory laid out otherwise. Each takes a function from a shape to a
# dense tensor, and the shape.
LAYOUTS: dict[str, Callable[[Callable[..., Tensor], list[int]], Tensor]] = {
    "contiguous": lambda make, shape: make(shape),
    "transposed": lambda make, shape: make(shape[::-1]).permute(
        *reversed(range(len(shape)))
    ),
    "sliced": lambda make, shape: make([*shape[:-1], STEP * shape[-1]])[..., ::STEP],
    "offset": lambda make, shape: make([*shape[:-1], shape[-1] + 1])[..., 1:],
    "expanded": lambda make, shape: make([1, *shape[1:]]).expand(shape),
}
# What happens to the dynamic dimension of each tensor before the op, and to its size.
RESIZES: dict[str, tuple[Callable[[Tensor, int], Tensor], Callable[[int], int]]] = {
    "none": (lambda x, dim: x, lambda n: n),
    "twice": (lambda x, dim: torch.cat([x, x], dim), lambda n: 2 * n),
    "tail": (lambda x, dim: x.narrow(dim, 1, x.shape[dim] - 1), lambda n: n - 1),
    "padded": (
        lambda x, dim: torch.cat([x, x.narrow(dim, 0, 1)], dim),
        lambda n: n + 1,
    ),
}


def reversed_rows(x: Tensor) -> Tensor:
    """By places in it."""
    return x[torch.arange(x.shape[0] - 1, -1, -1, device=x.device)]


PROLOGUES: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "pointwise": lambda x: torch.where(x > 0, x, -1 * x).to(x.dtype),
    "row_sum": lambda x: (x + x.sum(-1, keepdim=True)).to(x.dtype),
    "viewed": lambda x: (x.reshape(-1) * 3).view(x.shape),
    "masked": lambda x: torch.where(
        torch.arange(x.shape[-1], device=x.device) > 1, x, 0
    ),
    "gathered": reversed_rows,
}
EPILOGUES: dict[str, Callable[[list[Tensor], Tensor], Any]] = {
    "none": lambda outs, x: outs,
    "pointwise": lambda outs, x: torch.where(outs[0] > 0, outs[0], 0) * 2 + 1,
    "residual": lambda outs, x: (
        [out + x for out in outs if out.dim() == x.dim()] + outs
    ),
    "gathered": lambda outs, x: [
        out + reversed_rows(x) if out.dim() == x.dim() else out for out in outs
    ],
    "transposed": lambda outs, x: [
        out.mT * 2 if out.dim() > 1 else out for out in outs
    ],
    "viewed": lambda outs, x: [out.reshape(-1, 1).mT * 2 for out in outs],
    "sliced": lambda outs, x: [torch.atleast_1d(out)[..., :1] * 2 for out in outs],
    "broadcast": lambda outs, x: [
        (out * 2).expand(2, *out.shape) + out for out in outs
    ],
    "reduced": lambda outs, x: [out.sum() for out in outs],
    "shared": lambda outs, x: (outs, outs[0] > 1, outs[-1] * 2),
}
# What is written to a tensor that the model is given, of what the op returns of its size.
UPDATES: dict[str, Callable[[Tensor, int, Tensor], Any]] = {
    "none": lambda to, dim, out: None,
    "copied": lambda to, dim, out: to.copy_(out * 2),
    "added": lambda to, dim, out: to.copy_(torch.where(out > 0, to, out)),
    "a_part": lambda to, dim, out: to[..., :1].copy_(out[..., :1]),
    "reversed": lambda to, dim, out: to.index_copy_(
        dim,
        torch.arange(to.shape[dim] - 1, -1, -1, device=to.device),
        out.to(to.dtype),
    ),
}
EXTRA_TENSORS = ("same", "row", "scalar", "again", "none", "optional", "list")
OUTPUTS = ("Tensor", "(Tensor, Tensor)", "Tensor[]")
VARIANTS = (
    "direct",
    "others_first",
    "in_place",
    "by_parts",
    "transposed",
    "captured",
    "written",
    "op_itself",
)
NAMINGS = ("same", "renamed", "keywords")
# Calls of the op in the model: one; one each for two sets of inputs, with dynamic sizes of
# their own; the second reading what the first returns.
CALLS = ("once", "apart", "in_a_row")
# Too many to become part of the code.
CAPTURED_ZEROS = torch.zeros(9, device=DEVICE)


@torch.library.custom_op("custom_op_fuzz_writes::write", mutates_args=("out",))
def write(x: torch.Tensor, out: torch.Tensor) -> None:
    out.copy_(x)


write.register_fake(lambda x, out: None)


@torch.library.custom_op("custom_op_fuzz_writes::add_places", mutates_args=())
def add_places(x: torch.Tensor) -> torch.Tensor:
    """Adds to each element a number that depends on where it is in memory."""
    places = torch.zeros((), dtype=torch.int64, device=x.device)
    for count, stride in zip(x.shape, x.stride()):
        steps = torch.arange(count, device=x.device) * (stride if count > 1 else 0)
        places = places.unsqueeze(-1) + steps
    return x.contiguous() + (places % 5).to(x.dtype)


add_places.register_fake(lambda x: x.new_empty(x.shape))


@dataclasses.dataclass(frozen=True)
class Case:
    """
    An op, its implementations, and a model that calls it.

    Args:
        shape: of ``x``, with the size that the first call has in ``dim``.
        extra: kinds of the op's further tensors, ``EXTRA_TENSORS``.
        layouts: of ``x`` and of each further tensor.
        dispatch_on: index among the op's tensors that have the dynamic size.
        scale: its schema and the value passed, None to leave it at its default.
        keyword_only: whether what follows the first tensors may only be named.
        variants: how each implementation computes, and how it names its parameters.
        winners: of each range, FALLBACK for the op itself.
        marked: whether implementations add a marker.
        deferred: whether choices wait until the graph is lowered.
        training: whether there is a backward pass, which calls the op too.
        reads_places: whether the op's results depend on the strides of its first tensor.
        update: of ``x`` in place, before the epilogue.
        asks: whether the size that is dispatched on is less than this, each implementation,
            which computes in another way then; None if none asks. Not of those marked.
    """

    shape: tuple[int, ...]
    dim: int
    dtype: torch.dtype
    extra: tuple[str, ...]
    layouts: tuple[str, ...]
    dispatch_on: int
    negative_dim: bool
    scale: tuple[str, Any] | None
    keyword_only: bool
    outputs: str
    transposed_output: bool
    resize: str
    prologue: str
    epilogue: str
    variants: tuple[tuple[str, str], ...]
    ranges: tuple[tuple[int, float], ...]
    winners: tuple[int, ...]
    marked: bool
    fusion: bool
    all_dynamic: bool
    calls: str = "once"
    deferred: bool = True
    training: bool = False
    reads_places: bool = False
    update: str = "none"
    asks: int | None = None

    def schema(self, name: str) -> str:
        kinds = {"none": "Tensor?", "optional": "Tensor?", "list": "Tensor[]"}
        required = ["Tensor x"]
        optional = []
        for letter, kind in zip("yz", self.extra):
            declared = f"{kinds.get(kind, 'Tensor')} {letter}"
            if kind in ("none", "optional"):
                optional.append(f"{declared}=None")
            else:
                required.append(declared)
        optional += [self.scale[0]] if self.scale else []
        star = ["*"] if self.keyword_only and optional else []
        return f"{name}({', '.join(required + star + optional)}) -> {self.outputs}"

    def inputs(self, size: int, more: int = 0) -> list[Tensor]:
        """
        ``x`` and the further tensors, a tensor each, two for a list.

        Args:
            more: added to the other sizes, where all are dynamic.
        """
        shape = [n + more * (self.all_dynamic and n > 1) for n in self.shape]
        shape[self.dim] = size
        tensors = [self._tensor(self.layouts[0], shape, 0)]
        for kind, layout in zip(self.extra, self.layouts[1:]):
            wanted = {"row": shape[-1:], "scalar": []}.get(kind, shape)
            count = {"again": 0, "none": 0, "list": 2}.get(kind, 1)
            number = len(tensors)
            tensors += [self._tensor(layout, wanted, number + i) for i in range(count)]
        return tensors

    def _tensor(self, layout: str, shape: list[int], number: int) -> Tensor:
        def make(shape: Sequence[int]) -> Tensor:
            count = torch.arange(math.prod(shape), device=DEVICE) + number
            return ((count * 7) % 5 - 2).to(self.dtype).reshape(shape)

        return LAYOUTS[layout if shape else "contiguous"](make, shape)

    def dynamic_dim(self, tensor: Tensor) -> int | None:
        """The dimension of an input that has the dynamic size."""
        if tensor.dim() == len(self.shape):
            return self.dim
        is_row = tensor.dim() == 1 and self.dim == len(self.shape) - 1
        return 0 if is_row else None

    def dispatch(self) -> tuple[str, int]:
        """The op's tensor and its dimension."""
        candidates = [("x", self.dim)]
        for name, kind in zip("yz", self.extra):
            if kind in ("same", "again", "optional"):
                candidates.append((name, self.dim))
            elif kind == "row" and self.dim == len(self.shape) - 1:
                candidates.append((name, 0))
        name, dim = candidates[self.dispatch_on % len(candidates)]
        rank = 1 if self.extra and ("row", name) in zip(self.extra, "yz") else None
        return name, dim - (rank or len(self.shape)) if self.negative_dim else dim

    def model(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """
        What is compiled.

        Args:
            call: of the op, in its order.
        """
        resize, _ = RESIZES[self.resize]

        def resized(tensor: Tensor) -> Tensor:
            dim = self.dynamic_dim(tensor)
            return tensor if dim is None else resize(tensor, dim)

        def fn(*inputs: Tensor) -> Any:
            tensors = [resized(tensor) for tensor in inputs]
            x = tensors[0] = PROLOGUES[self.prologue](tensors[0])
            args, kwargs = self._arguments(tensors)
            outs = pytree.tree_leaves(call(*args, **kwargs))
            if self.calls == "in_a_row":
                outs = pytree.tree_leaves(call(outs[0], *args[1:], **kwargs))
            self._update(inputs[0], outs[0])
            return EPILOGUES[self.epilogue](outs, x)

        def apart(*inputs: Tensor) -> Any:
            half = len(inputs) // 2
            return fn(*inputs[:half]), fn(*inputs[half:])

        return apart if self.calls == "apart" else fn

    def _update(self, to: Tensor, out: Tensor) -> None:
        if self.resize == "tail":
            to = to.narrow(self.dim, 1, to.shape[self.dim] - 1)
        UPDATES[self.update](to, self.dim, out.narrow(self.dim, 0, to.shape[self.dim]))

    def _arguments(self, tensors: list[Tensor]) -> tuple[list[Any], Values]:
        queue = tensors[1:]
        args, kwargs = [tensors[0]], {}
        for name, kind in zip("yz", self.extra):
            if kind == "list":
                args.append([queue.pop(0), queue.pop(0)])
            elif kind == "optional":
                kwargs[name] = queue.pop(0)
            elif kind == "again":
                args.append(tensors[0])
            elif kind != "none":
                args.append(queue.pop(0))
        if self.scale and self.scale[1] is not None:
            value = self.scale[1]
            kwargs["scale"] = tensors[0].shape[self.dim] if value == "size" else value
        return args, kwargs

    def compute(self, values: Values, variant: str = "direct") -> Any:
        """What the op computes from its arguments by name."""
        x, *others = tensors_in(values)
        add = operator.xor if x.dtype == torch.bool else operator.add
        # The sum of two truths is one, whatever it is added to.
        others = [other.to(x.dtype) for other in others]
        if self.reads_places:
            x = add_places(x)
        acc = x.clone(memory_format=torch.contiguous_format)
        if variant == "others_first" and others:
            for other in others[1:]:
                others[0] = add(others[0], other)
            others = others[:1]
        for other in others:
            if variant == "in_place" and x.dtype != torch.bool:
                acc += other
            else:
                acc = add(acc, other)
        if variant == "captured":
            acc = add(acc, CAPTURED_ZEROS[0].to(acc.dtype))
        if values.get("scale") is not None:
            acc = acc * values["scale"]
        acc = copied(acc, variant)
        if acc.dim() > 1 and (self.transposed_output != (variant == "transposed")):
            acc = acc.mT.clone(memory_format=torch.contiguous_format).mT
        else:
            acc = acc.clone(memory_format=torch.contiguous_format)
        if self.outputs == "Tensor":
            return acc
        total = acc.sum(self.dim - 1 if len(self.shape) > 1 else 0)
        return [acc, total] if self.outputs == "Tensor[]" else (acc, total)

    def gradients(self, results: Any, inputs: Sequence[Tensor]) -> list[Tensor | None]:
        """Of the inputs, none where nothing is trained."""
        if not self.training:
            return []
        loss = sum(
            (result * i).sum()
            for i, result in enumerate(pytree.tree_leaves(results), 1)
            if result.requires_grad
        )
        return [*torch.autograd.grad(loss, inputs, allow_unused=True)]

    def register_backward(self, op: Any, library: Any) -> None:
        """
        Something that calls the op with the gradient for its first tensor, the derivative
        or not.
        """

        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            others = inputs[1:]
            ctx.others = [None if isinstance(o, torch.Tensor) else o for o in others]
            ctx.tensors = [isinstance(other, torch.Tensor) for other in others]
            ctx.save_for_backward(*(o for o in others if isinstance(o, torch.Tensor)))

        def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
            saved = iter(ctx.saved_tensors)
            others = [
                next(saved) if is_tensor else other
                for is_tensor, other in zip(ctx.tensors, ctx.others)
            ]
            first, *_ = pytree.tree_leaves(op(grad, *others))
            return first, *(None for _ in others)

        torch.library.register_autograd(
            op._name, backward, setup_context=setup_context, lib=library
        )

    def implementation(self, index: int, op: Any) -> Callable[..., Any]:
        variant, naming = self.variants[index]

        def compute(values: Values) -> Any:
            if variant == "op_itself":
                return self.marked_as(index, op(**values))
            is_small = self.asks is not None and self._is_small(values)
            how = "others_first" if is_small else variant
            return self.marked_as(index, self.compute(values, how))

        return named_as(compute, op, naming)

    def _is_small(self, values: Values) -> bool:
        name, dim = self.dispatch()
        return values[name].shape[dim] < self.asks

    def marked_as(self, index: int, result: Any) -> Any:
        """An op's result with the marker of a candidate."""
        if not self.marked or index == FALLBACK:
            return result
        return pytree.tree_map(lambda out: out + MARKER * (index + 1), result)

    def dispatched(self, size: int) -> int:
        """The dispatch dimension where the model's own dynamic size is ``size``."""
        return RESIZES[self.resize][1](size)

    def expected(self, op: Any, winners: Sequence[int]) -> Callable[..., Any]:
        """The eager model; the candidates of ``winners`` run, one for each call."""
        left = iter(winners)
        return self.model(
            lambda *args, **kwargs: self.marked_as(next(left), op(*args, **kwargs))
        )

    def winner_at(self, dispatched: int) -> int:
        """The candidate that runs at a value of the dispatch dimension."""
        for (start, end), index in zip(self.ranges, self.winners):
            if start <= dispatched < end:
                return index
        return FALLBACK

    def winners_at(self, dispatched: int, calls: int) -> tuple[int, ...]:
        """The candidates that run in calls that are decided together."""
        first = self.winner_at(dispatched)
        if first == FALLBACK:
            return (FALLBACK,) * calls
        others = [*range(len(self.variants)), FALLBACK]
        return tuple(others[(first + i) % len(others)] for i in range(calls))

    def index_of(self, winners: Sequence[int]) -> int:
        """Where candidates are among the combinations, whose last is the op itself."""
        base = len(self.variants) + 1
        index = 0
        for winner in winners:
            index = index * base + (base - 1 if winner == FALLBACK else winner)
        return FALLBACK if index == base ** len(winners) - 1 else index

    def sizes(self) -> list[tuple[int, ...]]:
        """
        Of the model, one for each set of inputs: the first call's, then those on both
        sides of each boundary.
        """
        grow = self.dispatched
        bounds = {int(b) for pair in self.ranges for b in pair if b != math.inf}
        bounds |= {self.asks} - {None}
        at = [next(n for n in itertools.count(2) if grow(n) >= b) for b in bounds]
        found = {n for size in at for n in (size - 1, size) if grow(n) >= 2 and n >= 2}
        sizes = [self.shape[self.dim], *sorted(found)]
        return list(
            zip(sizes, reversed(sizes)) if self.calls == "apart" else zip(sizes)
        )


def copied(x: Tensor, variant: str) -> Tensor:
    """By writing to a new tensor, if that is how the variant computes."""
    result = torch.empty_like(x)
    if variant == "written":
        write(x, result)
        return result
    if variant == "by_parts":
        result[..., :1] = x[..., :1]
        result[..., 1:] = x[..., 1:]
        return result
    return x


def tensors_in(values: Values) -> list[Tensor]:
    leaves = pytree.tree_leaves([values[name] for name in "xyz" if name in values])
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def named_as(
    fn: Callable[[Values], Any], op: Any, naming: str = "same"
) -> Callable[..., Any]:
    """A callable with parameters of its own for a function of the op's arguments by name."""
    kind = inspect.Parameter
    arguments = op._schema.arguments

    def renamed(a: Any) -> bool:
        return naming == "renamed" and a.name != "scale" and not a.kwarg_only

    new = {a.name: f"the_{a.name}" if renamed(a) else a.name for a in arguments}
    parameters = [
        inspect.Parameter(
            new[a.name],
            kind.KEYWORD_ONLY if a.kwarg_only else kind.POSITIONAL_OR_KEYWORD,
            default=a.default_value if a.has_default_value() else kind.empty,
        )
        for a in arguments
    ]
    if naming == "keywords":
        parameters = [inspect.Parameter("given", kind.VAR_KEYWORD)]
    signature = inspect.Signature(parameters)

    def impl(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if naming == "keywords":
            return fn(bound.arguments["given"])
        return fn({a.name: bound.arguments[new[a.name]] for a in arguments})

    impl.__signature__ = signature
    impl.__name__ = f"impl_{naming}"
    return impl


@st.composite
def cases(draw: Callable[[Any], Any]) -> Case:
    rank = draw(st.integers(1, 3))
    shape = [draw(st.sampled_from([2, 3, 5, 1, 0])) for _ in range(rank)]
    dim = draw(st.integers(0, rank - 1))
    shape[dim] = draw(st.integers(4, 40))
    # Autograd of custom ops knows neither lists nor arguments that may only be named.
    training = draw(st.integers(0, 3)) == 0
    dtypes = [torch.float32, torch.bfloat16, torch.int64, torch.bool]
    dtype = torch.float32 if training else draw(st.sampled_from(dtypes))
    kinds = [kind for kind in EXTRA_TENSORS if not (training and kind == "list")]
    extra = tuple(draw(st.lists(st.sampled_from(kinds), max_size=2)))
    # One element repeated along a size that is none of the first call's would be a guard.
    layouts = [name for name in LAYOUTS if name != "expanded" or dim > 0]
    edges = sorted(draw(st.sets(st.integers(3, 48), min_size=2, max_size=4)))
    edges = draw(st.sampled_from([[0], []])) + edges
    edges += draw(st.sampled_from([[math.inf], []]))
    ranges = list(itertools.pairwise(edges))
    if len(ranges) > 2 and draw(st.booleans()):
        del ranges[1]
    # Writing to a part of the dynamic size is a guard on it. Of booleans, Inductor's C++
    # code for it may not compile ("operands to ?: have different types").
    in_parts = dim < rank - 1 and dtype != torch.bool
    possible = [v for v in VARIANTS if v != "by_parts" or in_parts]
    variants = draw(
        st.lists(
            st.tuples(st.sampled_from(possible), st.sampled_from(NAMINGS)),
            min_size=2,
            max_size=3,
        )
    )
    layouts_drawn = tuple(draw(st.sampled_from(layouts)) for _ in range(1 + len(extra)))
    # Nothing is written to an element that several indices stand for.
    is_updated = not training and layouts_drawn[0] != "expanded"
    scales = [("float scale=2.0", value) for value in (None, 0.5)]
    scales += [("SymInt? scale=None", value) for value in (None, 3, "size")]
    outputs = [kind for kind in OUTPUTS if not (training and kind == "Tensor[]")]
    asks = draw(st.sampled_from([None, None, 8, 20]))
    is_marked = not (dtype == torch.bool or training or asks)
    return Case(
        shape=tuple(shape),
        dim=dim,
        dtype=dtype,
        extra=extra,
        layouts=layouts_drawn,
        dispatch_on=draw(st.integers(0, 2)),
        negative_dim=draw(st.booleans()),
        scale=draw(st.sampled_from([None, *scales])),
        keyword_only=not training and draw(st.booleans()),
        outputs=draw(st.sampled_from(outputs)),
        transposed_output=draw(st.booleans()),
        resize=draw(st.sampled_from(list(RESIZES))),
        prologue=draw(st.sampled_from(list(PROLOGUES))),
        epilogue=draw(st.sampled_from(list(EPILOGUES))),
        variants=tuple(variants),
        ranges=tuple(ranges),
        winners=tuple(draw(st.integers(-1, len(variants) - 1)) for _ in ranges),
        marked=is_marked and draw(st.integers(0, 3)) > 0,
        fusion=draw(st.booleans()),
        all_dynamic=draw(st.booleans()),
        calls=draw(st.sampled_from(CALLS)),
        deferred=draw(st.integers(0, 3)) > 0,
        training=training,
        # Eager and compiled gradients may lie otherwise in memory.
        reads_places=not (dtype == torch.bool or training) and draw(st.booleans()),
        update=draw(st.sampled_from(list(UPDATES))) if is_updated else "none",
        asks=asks,
    )


@contextlib.contextmanager
def registered(case: Case, name: str) -> Iterator[Any]:
    """The case's op with its implementations."""

    def fake(*args: Any, **kwargs: Any) -> Any:
        # Of sizes alone, so that no stride is compared with another.
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda t: t.new_empty(t.shape), (args, kwargs)
        )
        return kernel(*args, **kwargs)

    with (
        torch.library._scoped_library("custom_op_fuzz", "FRAGMENT") as library,
        mock.patch.dict(user_lowerings),
    ):
        library.define(case.schema(name))
        op = getattr(torch.ops.custom_op_fuzz, name).default
        kernel = named_as(case.compute, op)
        library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"custom_op_fuzz::{name}", fake, lib=library)
        if case.training:
            case.register_backward(op, library)
        tensor_name, dim = case.dispatch()
        impls = [case.implementation(i, op) for i in range(len(case.variants))]
        if case.negative_dim:
            configs = [CustomOpRangeConfig(tensor_name, dim, list(case.ranges), impls)]
        else:
            configs = [
                CustomOpConfig(
                    impl, tensor_name=tensor_name, dim_index=dim, dim_range=sizes
                )
                for sizes in case.ranges
                for impl in impls
            ]
        register_custom_op_autotuning(op, configs=configs)
        yield op


class MadeUpTimes:
    """
    In place of timing: each candidate is run once, and the winner of the size takes less
    than the others.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        # Call sites that are measured, with the candidates that are not left out.
        self._measured: list[tuple[Any, set[int]]] = []
        self._make_inputs = calls.make_inputs
        self._size: int | None = None

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        with (
            mock.patch.object(calls, "make_inputs", self.make_inputs),
            mock.patch.object(measure_ranges, "time_candidates", self.time_candidates),
        ):
            yield

    def make_inputs(self, site: Any, point: Any, *args: Any) -> Any:
        self._size = point.size
        if not self._measured or self._measured[-1][0] is not site:
            self._measured.append((site, set()))
        return self._make_inputs(site, point, *args)

    def time_candidates(self, runners: Any, *_: Any) -> Any:
        assert self._size is not None
        for run in runners.values():
            run()
        site, _ = self._measured[-1]
        self._measured[-1] = (site, set(runners))
        winner = self.case.index_of(self._winners(self._size, len(self._measured) - 1))
        if self.case.asks is not None:
            winner = max(runners)  # for one of the answers, if there is one
        return {index: Timing(1.0 + (index != winner)) for index in runners}

    def winners(self, dispatched: Sequence[int]) -> list[int]:
        """
        The candidates that run, one for each call.

        Args:
            dispatched: the dispatch dimension in each set of inputs.
        """
        found: list[int] = []
        while len(found) < (1 if self.case.calls == "once" else 2):
            size = dispatched[len(found) % len(dispatched)]
            found += self._winners(size, len(found))
        return found

    def _winners(self, dispatched: int, number: int) -> tuple[int, ...]:
        """Of a call, by its number, and of those that are decided together with it."""
        if not self._measured:
            return (FALLBACK,)
        # Equal calls share what is measured for the first.
        site, running = self._measured[min(number, len(self._measured) - 1)]
        count = len(site.calls)
        winners = self.case.winners_at(dispatched, count)
        is_in = self.case.index_of(winners) in running
        return winners if is_in else (FALLBACK,) * count


_numbers = itertools.count()


@contextlib.contextmanager
def warned() -> Iterator[list[str]]:
    """What a user is warned of."""
    log = logging.getLogger("torch._inductor.kernel.custom_op")
    handler, messages = logging.Handler(logging.WARNING), []
    handler.emit = lambda record: messages.append(record.getMessage())
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


def check(case: Case) -> int:
    """
    Compiles a case once; it must equal eager at each of its sizes.

    Returns:
        The number of candidates that were left out, for a guard in their code.
    """
    torch._dynamo.reset()
    times = MadeUpTimes(case)
    with (
        registered(case, f"op{next(_numbers)}") as op,
        times.in_place(),
        warned() as warnings,
        config.patch(
            {
                "enable_custom_op_fusion": case.fusion,
                "defer_custom_op_choices": case.deferred,
                "test_configs.force_no_impl_grouping": True,
                # Another case's made-up times are no part of a cache key.
                "fx_graph_cache": False,
            }
        ),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        compiled = torch.compile(case.model(op), fullgraph=True)
        for i, sizes in enumerate(case.sizes()):
            inputs, given = (
                [x for size in sizes for x in case.inputs(size, more=i % 2)]
                for _ in range(2)
            )
            for tensor in (*inputs, *given):
                tensor.requires_grad_(case.training)
            for tensor in inputs:
                mark_dynamic(case, tensor)
            with torch._dynamo.config.patch(error_on_recompile=i > 0):
                result = compiled(*inputs)
                gradients = case.gradients(result, inputs)
            winners = times.winners([case.dispatched(size) for size in sizes])
            expected = case.expected(op, winners)(*given)
            where = f"at {sizes}, winners {winners}"
            assert_same(result, expected, where)
            assert_same(inputs, given, f"updated {where}")
            assert_same(gradients, case.gradients(expected, given), f"grad {where}")
    assert all("guards on a size" in w for w in warnings), warnings
    return len(warnings)


def mark_dynamic(case: Case, tensor: Tensor) -> None:
    if (dim := case.dynamic_dim(tensor)) is not None:
        torch._dynamo.mark_dynamic(tensor, dim)
    for other in range(tensor.dim()) if case.all_dynamic else ():
        if tensor.shape[other] > 1:
            torch._dynamo.mark_dynamic(tensor, other)


def assert_same(result: Any, expected: Any, where: str) -> None:
    results, wanted = pytree.tree_leaves(result), pytree.tree_leaves(expected)
    assert len(results) == len(wanted), where
    for i, (got, want) in enumerate(zip(results, wanted)):
        if want is None:
            assert got is None, where
            continue
        tolerance = TOLERANCES.get(want.dtype, {})
        where_of_it = f"output {i} {where}: "
        assert_close(got, want, **tolerance, msg=where_of_it.__add__)


# Found by fuzzing: sizes made of symbols that were found equal to others, and an op whose
# own fake kernel guards on a size, alone and in a region.
FOUND = (
    Case(
        shape=(31,),
        dim=0,
        dtype=torch.float32,
        extra=("same",),
        layouts=("contiguous", "contiguous"),
        dispatch_on=0,
        negative_dim=True,
        scale=None,
        keyword_only=False,
        outputs="Tensor",
        transposed_output=False,
        resize="tail",
        prologue="none",
        epilogue="none",
        variants=(("direct", "same"), ("direct", "same")),
        ranges=((0, 10), (10, math.inf)),
        winners=(0, 1),
        marked=False,
        fusion=False,
        all_dynamic=False,
    ),
    Case(
        shape=(10, 1),
        dim=0,
        dtype=torch.bfloat16,
        extra=("again", "optional"),
        layouts=("transposed",) * 3,
        dispatch_on=1,
        negative_dim=True,
        scale=None,
        keyword_only=True,
        outputs="Tensor[]",
        transposed_output=True,
        resize="tail",
        prologue="row_sum",
        epilogue="none",
        variants=(
            ("op_itself", "same"),
            ("others_first", "keywords"),
            ("others_first", "same"),
        ),
        ranges=((0, 19), (27, 28), (28, 37)),
        winners=(-1, 0, 2),
        marked=True,
        fusion=False,
        all_dynamic=True,
    ),
    Case(
        shape=(32, 5, 3),
        dim=0,
        dtype=torch.float32,
        extra=("same", "list"),
        layouts=("transposed", "sliced", "contiguous"),
        dispatch_on=0,
        negative_dim=True,
        scale=None,
        keyword_only=True,
        outputs="(Tensor, Tensor)",
        transposed_output=True,
        resize="tail",
        prologue="none",
        epilogue="residual",
        variants=(
            ("in_place", "keywords"),
            ("by_parts", "keywords"),
            ("transposed", "keywords"),
        ),
        ranges=((0, 12), (21, 42), (42, 47), (47, math.inf)),
        winners=(2, 0, -1, 0),
        marked=False,
        fusion=True,
        all_dynamic=True,
    ),
    Case(
        shape=(24, 5, 2),
        dim=0,
        dtype=torch.float32,
        extra=("row",),
        layouts=("sliced", "sliced"),
        dispatch_on=2,
        negative_dim=True,
        scale=None,
        keyword_only=True,
        outputs="Tensor",
        transposed_output=True,
        resize="tail",
        prologue="pointwise",
        epilogue="transposed",
        variants=(("op_itself", "same"),) * 3,
        ranges=((0, 4), (4, 10), (10, 24), (24, 27), (27, math.inf)),
        winners=(1, 2, 2, 1, 0),
        marked=True,
        fusion=True,
        all_dynamic=False,
    ),
)


class TestFuzz(TestCase):
    def test_found_before(self):
        for case in FOUND:
            check(case)

    @seed(FUZZ_SEED)
    @EXAMPLES
    @given(cases())
    def run_cases(self, case: Case) -> None:
        note(f"check({case})")
        self.examples += 1
        if FUZZ_EXAMPLES and self.examples % PROGRESS_EVERY == 0:
            self.report()
        try:
            self.left_out += check(case)
        except Exception:
            if not FUZZ_EXAMPLES:
                raise
            self.failing.append(case)
            print(f"\nFAILED check({case})\n{traceback.format_exc()}", flush=True)

    def test_compiled_equals_eager(self):
        self.examples, self.left_out = 0, 0
        self.failing: list[Case] = []
        self.run_cases()
        if FUZZ_EXAMPLES:
            self.report()
        self.assertEqual(self.failing, [])

    def report(self) -> None:
        print(
            f"{self.examples} examples, {len(self.failing)} failures, {self.left_out} "
            f"candidates left out (CUSTOM_OP_FUZZ_SEED={FUZZ_SEED})",
            flush=True,
        )


if __name__ == "__main__":
    run_tests()
