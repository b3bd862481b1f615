"""
Autotuning of custom ops: the public face.

An op's author registers several implementations, each maybe only for a range of sizes.
When a model that calls the op is compiled, they are measured, and the compiled code runs
the best one for every size that it meets.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any, TYPE_CHECKING

from torch._inductor.lowering import validate_ir
from torch._inductor.select_algorithm import ExternKernelChoice

from torch._inductor import ir
from torch._inductor.range_autotune.caching.stale_code import install
from torch._inductor.range_autotune.call_site import CallSite
from torch._inductor.range_autotune.ops.functional_variants import (
    check_has_variant,
    define_variant,
)
from torch._inductor.range_autotune.ops.triton_ops import keep_whole
from torch._inductor.range_autotune.registering.configs import (
    CustomOpConfig,
    CustomOpRangeConfig,
)
from torch._inductor.range_autotune.registering.contests import (
    make_contest,
    parse_configs,
    parse_split,
)
from torch._inductor.range_autotune.registering.parsing import (
    naming,
    parse_name,
    parse_op,
    parse_options,
    warn_if_decomposed,
)
from torch._inductor.range_autotune.registering.signatures import (
    implementation_name,
    is_tensor_argument,
)
from torch._inductor.range_autotune.registration import Candidate, Contest, Registration
from torch._inductor.range_autotune.registry import registration_of


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import torch
    from torch._inductor.range_autotune.candidates.traced_candidates import (
        TracedCandidate,
    )
    from torch._inductor.range_autotune.registration import NumericsCheck
    from torch._inductor.range_autotune.tuning import Tuning

__all__ = [
    "CustomOpConfig",
    "CustomOpRangeConfig",
    "autotune_custom_op",
    "register_custom_op_autotuning",
]


@dataclasses.dataclass(frozen=True)
class AutotunedLowering:
    """The lowering of a registered op; ``user_lowerings`` is the registry."""

    registration: Registration

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See ``lower_call``; None if the compilation began before the registration."""
        from torch._inductor.range_autotune.lowering import lower_call

        registration = registration_of(self.registration.op)
        if registration is None:
            return None
        result = lower_call(registration, args, kwargs)
        if result is not None:
            validate_ir(result)
        return result


def register_custom_op_autotuning(
    custom_op: torch._library.custom_ops.CustomOpDef | torch._ops.OpOverload,
    configs: Sequence[CustomOpConfig | CustomOpRangeConfig] | None = None,
    config_generator: Callable[[dict[str, torch.Tensor]], list[CustomOpConfig]]
    | None = None,
    name: str | None = None,
    input_gen_fns: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] | None = None,
    dispatch_on: dict[str, Any] | None = None,
    split_points: list[int] | None = None,
    min_speedup_threshold: float = 1.0,
    benchmark_with_cudagraphs: bool = False,
    *,
    include_fallback: bool = True,
    representative_sizes: Sequence[int] | None = None,
    numerics_check: NumericsCheck = "off",
) -> None:
    """
    Makes ``torch.compile`` choose among implementations of an op by measuring them.

    The op itself, called eagerly, competes too. With ranges the choice is made for each
    range of a size, and compiled code dispatches on the size that it meets, without a
    guard on it. Registering an op again replaces what was registered; a call that raises
    changes nothing. Code in which the op was compiled before is dropped, and compiled
    again when it is next called; a compilation that is under way ends under the
    registrations that it began with.

    Ranges are given in one of three forms: range fields on CustomOpConfigs,
    CustomOpRangeConfigs, or ``dispatch_on`` with ``split_points``. They say which
    candidates compete where; a range in which no one candidate is good at all sizes is
    cut where its winner changes.

    Args:
        custom_op: made by ``torch.library.custom_op``, or an overload such as
            ``torch.ops.aten.mm.default``. One that writes to its arguments is tuned where
            these are the model's own, see ``functional_calls``.
        configs: the candidates. Either these or ``config_generator``.
        config_generator: called at compile time with the tensor arguments by name, as
            fake tensors (sizes may be symbolic); returns the configs, none for no tuning.
        name: in logs; the op's name and ``_autotuned`` by default.
        input_gen_fns: by parameter; called with a zero tensor that has the shape, dtype
            and device to benchmark at, returns the tensor to benchmark with. One of another
            shape is not used; of another dtype or device it is converted.
        dispatch_on: ``{"tensor_name": …, "dim": …}``, and as ``"range_upper_bound"`` the
            typical size in the last range.
        split_points: the last sizes of all ranges but the unbounded one, increasing.
        min_speedup_threshold: an implementation wins only where it is this many times as
            fast as the op itself.
        benchmark_with_cudagraphs: measure replayed CUDA graphs; of candidates with
            collectives, the device's time alone. Otherwise a candidate that calls Python
            is charged the host's time, unless the model is compiled to CUDA graphs.
        include_fallback: whether the op itself competes. It stays the last resort.
        representative_sizes: sizes of the dispatch dimension to measure at, for the
            ranges that hold any of them. By default the ends and the middle of a range;
            of one without an end its start, twice that, what the model is compiled with
            if that is larger, and sizes beyond where another may be ahead.
        numerics_check: whether each candidate is compared with the op itself on the
            benchmark inputs, and one that differs draws a warning ("warn") or is left
            out as well ("drop").

    Raises:
        TypeError, ValueError: for input that is not as described.

    Example::

        register_custom_op_autotuning(
            my_op,
            configs=[
                CustomOpRangeConfig(
                    "x", 1, [(0, 512), (512, math.inf)], [short_impl, long_impl]
                )
            ],
        )
    """
    op = parse_op(custom_op)
    with naming(op):
        check_has_variant(op)
        split, unbounded_size = parse_split(op, dispatch_on, split_points)
        configs = parse_configs(op, configs, config_generator)
        registration = Registration(
            op=op,
            name=parse_name(op, name),
            contest=None if configs is None else make_contest(op, configs, split),
            options=parse_options(
                op,
                input_gen_fns=input_gen_fns,
                min_speedup_threshold=min_speedup_threshold,
                benchmark_with_cudagraphs=benchmark_with_cudagraphs,
                include_fallback=include_fallback,
                unbounded_size=unbounded_size,
                representative_sizes=representative_sizes,
                numerics_check=numerics_check,
            ),
            config_generator=config_generator,
            split=split,
        )
    warn_if_decomposed(op)
    keep_whole(op)
    if op._schema.is_mutable:
        define_variant(op)
    install(op, AutotunedLowering(registration))


def _create_fallback_choice(op_overload: torch._ops.OpOverload) -> ExternKernelChoice:
    """The one ``select_algorithm`` choice that calls an op eagerly; made on first use."""
    name = re.sub(r"\W", "_", op_overload.name()) + "_fallback"
    return ExternKernelChoice.lookup(name) or ExternKernelChoice(
        kernel=op_overload,
        name=name,
        has_out_variant=False,
        op_overload=op_overload,
        use_fallback_kernel=True,
    )


def autotune_custom_op(
    name: str,
    decompositions: list[Callable[..., Any]],
    inputs: list[Any],
    non_tensor_args: list[dict[str, Any]],
    op_overload: torch._ops.OpOverload,
    user_input_gen_fns: dict[str, Callable[[torch.Tensor], torch.Tensor]] | None = None,
    config_patches_list: list[dict[str, Any]] | None = None,
    min_speedup_threshold: float = 1.0,
    benchmark_with_cudagraphs: bool = False,
) -> tuple[Any, ir.ChoiceCaller]:
    """
    Tunes one call of an op during lowering, at the sizes that the model is compiled with.

    Args:
        decompositions: the implementations.
        inputs: IR nodes for the op's tensor parameters, in its order.
        non_tensor_args: for each implementation its other arguments by name; the op
            itself is called with those of the first that it has parameters for.
        user_input_gen_fns: by parameter, see ``register_custom_op_autotuning``.
        config_patches_list: Inductor config for each implementation.

    Returns:
        The lowered winner, nested as the op's outputs are, and what won: ``gm`` and
        ``decomposition`` are None if that is the op itself.
    """
    from torch._inductor.range_autotune.candidates.preparing import prepare
    from torch._inductor.range_autotune.lowering import decide, decide_others, emit
    from torch._inductor.range_autotune.modules import compiling

    _check_decompositions(name, decompositions, inputs, non_tensor_args)
    patches = config_patches_list or [{} for _ in decompositions]
    candidates = tuple(
        Candidate(f"{implementation_name(fn)}#{i}", fn, params, patch)
        for i, (fn, params, patch) in enumerate(
            zip(decompositions, non_tensor_args, patches)
        )
    )
    options = parse_options(
        op_overload,
        input_gen_fns=user_input_gen_fns,
        min_speedup_threshold=min_speedup_threshold,
        benchmark_with_cudagraphs=benchmark_with_cudagraphs,
    )
    registration = Registration(op_overload, name, Contest(candidates, None), options)
    given = _arguments_by_name(op_overload, inputs, non_tensor_args[0])
    tuning = prepare(registration, CallSite.from_call(op_overload, (), given))
    if not tuning.standing.traced:
        tuning.standing.tell()
        raise RuntimeError(f"No valid choices generated for {name}")
    for case in tuning.cases:
        if case.winners is None:
            compiling.submit(case)
        if case.standing.suspended:
            compiling.submit_guarded(case)
    winners = decide(tuning)
    tuning.standing.tell()
    results = emit([(tuning, winners), *decide_others(tuning)])
    winner = tuning.standing.traced[winners[0].value.index]
    choice = _winning_choice(winner, tuning, inputs)
    return tuning.called.outputs.nested(results), choice


def _check_decompositions(
    name: str, decompositions: Any, inputs: Any, non_tensor_args: Any
) -> None:
    if not isinstance(decompositions, (list, tuple)):
        raise TypeError(
            "decompositions must be a list or tuple of callables, got "
            f"{type(decompositions)}"
        )
    if not inputs:
        raise RuntimeError(f"Custom op '{name}' requires tensor inputs for autotuning")
    if not decompositions or len(decompositions) != len(non_tensor_args):
        raise ValueError(
            "decompositions and non_tensor_args must have same length, got "
            f"{len(decompositions)} decompositions and {len(non_tensor_args)} kwargs"
        )


def _arguments_by_name(
    op: torch._ops.OpOverload, inputs: Sequence[Any], others: Mapping[str, Any]
) -> dict[str, Any]:
    arguments = op._schema.arguments
    tensors = [a.name for a in arguments if is_tensor_argument(a)]
    known = {a.name for a in arguments}
    return {
        **{key: value for key, value in others.items() if key in known},
        **dict(zip(tensors, inputs)),
    }


def _winning_choice(
    winner: TracedCandidate, tuning: Tuning, inputs: list[Any]
) -> ir.ChoiceCaller:
    layout = tuning.outputs.layouts[0]
    choice = ir.ChoiceCaller(f"{tuning.name}_{winner.name}", inputs, layout, "")
    if winner.candidate.impl is not None:
        choice.gm = winner.graph
        choice.decomposition = winner.candidate.impl
        choice.decomposition_kwargs = dict(winner.candidate.params)
        choice.config_patches = dict(winner.candidate.config_patches)
    return choice
