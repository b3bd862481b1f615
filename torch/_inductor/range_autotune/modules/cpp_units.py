"""
C++ kernels of several modules, compiled in one translation unit.

Reading the headers and linking is most of what a kernel takes: six kernels of an RMSNorm's
implementations took 4.9 s one by one and 1.1 s in one unit (GCC 12, precompiled headers).

The unit's library is put where Inductor keeps the library of each of its kernels. So each
is found by whoever loads it: the modules it was compiled for, the graph that gets the
winner, later processes. A unit that does not compile does no harm: its kernels are
compiled one by one as they are loaded.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from torch._dynamo.utils import counters

from ..errors import one_line


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ...cpp_builder import CppBuilder
    from .subgraph_module import SubgraphModule

log = logging.getLogger("torch._inductor.kernel.custom_op")

_BINDING = "cpp_pybinding"
_INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.MULTILINE)
# So much source, in characters, fills a unit: 0.15 s of compiling beyond the 0.7 s that
# are the same for any. What comes after it goes into another one, for another thread.
_FULL = 12_000
# What a kernel's source has in common with all others, one of each per library.
_ENTRY = "kernel"


@dataclasses.dataclass(frozen=True)
class CppKernel:
    """
    A kernel as generated code has it.

    Args:
        argtypes: C++ types of the arguments.
        source: defines the function ``kernel``.
    """

    argtypes: tuple[str, ...]
    source: str


def kernels_of(module: SubgraphModule) -> list[CppKernel]:
    """
    The C++ kernels that a module compiles when it is loaded.

    Builds ``ast`` objects, see ``threads.py``.
    """
    if _BINDING not in module.source:
        return []
    calls = [
        node
        for node in ast.walk(ast.parse(module.source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == _BINDING
    ]
    literals = [[ast.literal_eval(arg) for arg in call.args] for call in calls]
    return [CppKernel(tuple(argtypes), source) for argtypes, source in literals]


def is_full(kernels: Iterable[CppKernel]) -> bool:
    """Whether others should go into another unit, which another thread compiles."""
    return sum(len(kernel.source) for kernel in kernels) >= _FULL


def compile_together(
    kernels: Iterable[tuple[SubgraphModule, CppKernel]],
    begin: Callable[[], None] = lambda: None,
) -> None:
    """
    Compiles kernels that no cache has, in a unit for each of the compilers' command lines.

    May be called in any thread. Raises nothing where a unit does not compile.

    Args:
        kernels: each with its module, whose config it is compiled under.
        begin: called when nothing but compilers is left to run, unless that fails before.
    """
    try:
        libraries: dict[str, dict[str, _Library]] = {}
        for module, kernel in kernels:
            find = functools.partial(_missing, kernel)
            for library in module.run_in_context(find):
                libraries.setdefault(library.command, {})[library.target] = library
        together = [list(same.values()) for same in libraries.values() if len(same) > 1]
        units = [(parts, _unit_of(parts)) for parts in together]
        begin()
        for parts, unit in units:
            _build(parts, unit)
    except Exception as e:
        log.info("C++ kernels are compiled one by one: %s", one_line(e))


@dataclasses.dataclass(frozen=True)
class _Library:
    """
    A kernel's library that is not there yet.

    Args:
        builder: of the kernel by itself.
        lock: path of the lock that is held by whoever makes it.
    """

    builder: CppBuilder
    lock: str

    @property
    def target(self) -> str:
        """Its path."""
        return self.builder.get_target_file_path()

    @property
    def source(self) -> Path:
        """What it is made from: the kernel and its Python bindings."""
        return Path(self.target).with_suffix(".cpp")

    @property
    def key(self) -> str:
        """What tells the kernel from all others; letters and digits."""
        return self.source.name.partition(".")[0]

    @property
    def module(self) -> str:
        """The name under which Python imports it."""
        return f"{self.key}.{_ENTRY}"

    @property
    def command(self) -> str:
        """The compiler's, without what tells it from that of other kernels."""
        stem = str(Path(self.target).with_suffix(""))
        return self.builder.get_command_line().replace(stem, "")


def _missing(kernel: CppKernel) -> list[_Library]:
    """The library of a kernel; none if it is there, or on its way in this process."""
    from ...codecache import CppPythonBindingsCodeCache

    found = []

    def submit(compile_alone: functools.partial[None]) -> None:
        lock, builders = compile_alone.args
        found.extend(_Library(builder, lock) for builder in builders)

    CppPythonBindingsCodeCache.load_pybinding_async(
        kernel.argtypes, kernel.source, submit_fn=submit
    )
    return found


def _unit_of(libraries: Sequence[_Library]) -> CppBuilder:
    from ...codecache import write
    from ...cpp_builder import CppBuilder

    first = libraries[0]
    key, path = write(_text(libraries), "unit.cpp", extra=first.command)
    return CppBuilder(
        name=f"{key}.unit",
        sources=path,
        BuildOption=first.builder._build_option,
        output_dir=str(Path(path).parent),
    )


def _build(libraries: Sequence[_Library], unit: CppBuilder) -> None:
    from torch.utils._filelock import FileLock

    from ...codecache import _worker_compile_cpp, get_lock_dir, LOCK_TIMEOUT

    counters["inductor"]["custom_op_cpp_units"] += 1
    path = unit.get_target_file_path()
    _worker_compile_cpp(str(Path(get_lock_dir(), f"{Path(path).stem}.lock")), (unit,))
    for library in libraries:
        with FileLock(library.lock, timeout=LOCK_TIMEOUT):
            _install(path, Path(library.target))


def _install(unit: str, target: Path) -> None:
    """A copy, which is there as a whole or not at all."""
    if not target.exists():
        copy = target.with_suffix(".unit")
        shutil.copy(unit, copy)
        copy.replace(target)


def _text(libraries: Sequence[_Library]) -> str:
    """The unit's source. What it exports makes the module that Python asks for by name."""
    sources = [library.source.read_text() for library in libraries]
    includes = {line.strip(): None for s in sources for line in _INCLUDE.findall(s)}
    parts = [_part(library.key, s) for library, s in zip(libraries, sources)]
    cases = "".join(
        f'    if (PyUnicode_CompareWithASCIIString(name, "{library.module}") == 0)\n'
        f"        return PyInit_{_ENTRY}_{library.key}();\n"
        for library in libraries
    )
    return "\n".join([*includes, *parts, _EXPORTS.replace("CASES\n", cases)])


def _part(key: str, source: str) -> str:
    """
    A kernel's source, its names kept from those of others.

    Two names are exported: no other kernel has them in any library of the process.
    """
    exported = (_ENTRY, f"PyInit_{_ENTRY}")
    return "\n".join(
        [
            *(f"#define {name} {name}_{key}" for name in exported),
            f"namespace unit_{key} {{",
            _INCLUDE.sub("", source),
            "}",
            *(f"#undef {name}" for name in exported),
            f"using unit_{key}::PyInit_{_ENTRY}_{key};",
        ]
    )


_EXPORTS = """
static PyObject* module_named(PyObject* name) {
CASES
    return PyErr_Format(PyExc_ImportError, "a unit without the kernel %U", name);
}

static PyObject* create_module(PyObject* spec, PyModuleDef*) {
    PyObject* name = PyObject_GetAttrString(spec, "name");
    if (name == nullptr) return nullptr;
    PyObject* module = module_named(name);
    Py_DECREF(name);
    return module;
}

static PyModuleDef_Slot unit_slots[] = {
    {Py_mod_create, reinterpret_cast<void*>(create_module)},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, nullptr}};

static PyModuleDef unit_module = {
    PyModuleDef_HEAD_INIT, "kernel", nullptr, 0, nullptr, unit_slots};

PyMODINIT_FUNC PyInit_kernel(void) { return PyModuleDef_Init(&unit_module); }
"""
