"""A graph by itself as a Python module: generated where it is lowered, loaded anywhere."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import re
import sys
import weakref
from typing import Any, TYPE_CHECKING

from torch._dynamo.utils import counters

import torch

from ... import config
from ...virtualized import V
from ..emitting.operation_config import tag
from ..graphs.captures import constants_may_be_real
from ..sizes.guards import (
    recorded_guards,
    without_optional_guards,
    without_symbols_of_failures,
)
from ..sizes.size_hints import generate_as, generate_for
from .threads import Once


if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from types import ModuleType

    import sympy
    from torch.utils._ordered_set import OrderedSet

    from ...codecache import PyCodeCache
    from ...graph import GraphLowering
    from ..sizes.size_conditions import Values

output_code_log = torch._logging.getArtifactLogger(__name__, "output_code")


class SubgraphModule:
    """
    A graph as a Python module of its own, generated and then loaded once.

    Loading submits the module's kernels to the compile workers and waits for them. Any
    thread may do it; it needs none of the handlers of the graph being compiled.

    The module's ``call`` takes one list: the values of the graph's symbols, then one
    argument for each placeholder; it empties the list. Lowering the rest of the graph may
    settle a symbol's value meanwhile: the module takes it all the same.

    Args:
        graph: lowered, with its code generated.
        source: the generated code.
        symbols: those whose values ``call`` takes.
        conditions: on symbols, under which the code is valid.

    Attributes:
        constants: what the code refers to by name, as attributes of the module.
    """

    def __init__(
        self,
        graph: GraphLowering,
        source: str,
        symbols: Sequence[sympy.Symbol],
        conditions: Sequence[sympy.Basic],
    ) -> None:
        self.symbols = tuple(symbols)
        self.conditions = tuple(conditions)
        self.constants = {**graph.constants, **graph.torchbind_constants}
        self.source = source
        # Inductor's config overrides are context variables.
        self._context = contextvars.copy_context()
        self._loaded: Once[Any] = Once(
            lambda: self.run_in_context(lambda: self._load(graph))
        )

    def load(self) -> Any:
        """
        The module; later callers wait for the first.

        Raises:
            What compiling raised, for every caller.
        """
        return self._loaded.get()

    def run_in_context(self, call: Callable[[], Any]) -> Any:
        """What ``call`` returns under the config that the code was generated under."""
        return self._context.copy().run(call)

    def _load(self, graph: GraphLowering) -> Any:
        from ...codecache import PyCodeCache

        counters["inductor"]["subgraph_module_loads"] += 1
        with V.set_graph_handler(graph), _compilers_of_this_thread(graph):
            key, path = PyCodeCache.write(self.source)
            module = PyCodeCache.load_by_key_path(key, path, attrs=self.constants)
        # The process keeps all modules that it loads, and the tensors and kernels in them.
        weakref.finalize(self, _release, module, [*self.constants], PyCodeCache)
        return module


def _release(
    module: ModuleType, constants: Sequence[str], listed: type[PyCodeCache]
) -> None:
    """
    Lets go of tensors at once, and of the module as soon as nobody uses it: it refers to
    itself, so that it takes a garbage collection more.
    """
    for name in constants:
        vars(module).pop(name, None)
    with contextlib.suppress(ValueError):
        listed.modules.remove(module)
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


def _compilers_of_this_thread(graph: GraphLowering) -> AbstractContextManager[Any]:
    """
    Keeps C++ code away from Inductor's pool of threads for it.

    Modules are loaded several at a time as it is; and a compiler that hangs would block
    the pool for all that comes after, and then the exit of the process, which joins it.
    """
    on_cpu = graph.device_types <= {"cpu"}
    return config.patch(compile_threads=1) if on_cpu else contextlib.nullcontext()


class TrustsInputs:
    """Mixin for lowerings of graphs inside another one, which has checked what it passes."""

    bound_unbacked_symbols: OrderedSet[sympy.Symbol]

    def create_deferred_runtime_asserts(
        self, n: torch.fx.Node, new_unbacked_defs: OrderedSet[sympy.Symbol]
    ) -> None:
        """None on inputs, which may be about symbols that only the graph around knows."""
        if n.op == "placeholder":
            self.bound_unbacked_symbols |= new_unbacked_defs
        else:
            super().create_deferred_runtime_asserts(n, new_unbacked_defs)  # type: ignore[misc]

    def make_subgraph(self, *args: Any, **kwargs: Any) -> GraphLowering:
        """Of control flow: what is taken for sizes here is so there."""
        subgraph = super().make_subgraph(*args, **kwargs)  # type: ignore[misc]
        generate_as(subgraph, self)  # type: ignore[arg-type]  # a mixin of graphs
        return subgraph


@functools.cache
def _module_lowering() -> type[GraphLowering]:
    """A class whose base is not there yet when Inductor's lowerings are imported."""
    from ...graph import GraphLowering

    return type("ModuleLowering", (TrustsInputs, GraphLowering), {})


def generate_module(
    gm: torch.fx.GraphModule,
    fake_inputs: Sequence[Any],
    symbols: Sequence[sympy.Symbol],
    name: str,
    config_patches: Mapping[str, Any],
    hints: Values | None = None,
    optional_guards: bool = True,
) -> SubgraphModule:
    """
    Lowers a graph by itself and generates its code, to be benchmarked.

    Needs the handlers of the graph being compiled; adds no guard to it.

    Args:
        fake_inputs: one for each placeholder; symbolic if ``symbols`` is not empty.
        symbols: all in the inputs' sizes; their values are the module's first arguments.
        config_patches: Inductor config to lower under; of the operations' kernels, too.
        hints: sizes to generate it for, by symbol; by default the model's own.
        optional_guards: whether Inductor may ask for guards that it can do without, at the
            price of slower code.
    """
    counters["inductor"]["subgraph_modules_generated"] += 1
    graph = _module_lowering()(
        gm=gm,
        example_inputs=fake_inputs,
        shape_env=V.graph._shape_env,
        is_inference=V.graph.is_inference,
        is_backward=V.graph.is_backward,
        name="benchmark_" + re.sub(r"\W", "_", name),
    )
    graph.bw_donated_idxs = None  # places among the inputs of the graph being compiled
    generate_for(graph, hints)
    for symbol in symbols:
        graph.graph_inputs[symbol.name] = symbol
        graph.graph_input_names.append(symbol.name)
    with (
        V.set_graph_handler(graph),
        # What is made up to measure with may lead to NaN.
        config.patch(cpp_wrapper=False, nan_asserts=False),
        recorded_guards() as conditions,
        without_symbols_of_failures(V.graph.sizevars.shape_env),
    ):
        with (
            config.patch(dict(config_patches)),
            constants_may_be_real(),
            contextlib.nullcontext() if optional_guards else without_optional_guards(),
        ):
            graph.run(*fake_inputs)
        tag(graph.operations, config_patches)
        code, _ = graph.codegen()
        output_code_log.debug("Benchmark code of %s:\n%s", name, code.value)
        return SubgraphModule(graph, code.value, symbols, conditions)
