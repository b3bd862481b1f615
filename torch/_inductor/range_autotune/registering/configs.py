"""The values that a user writes to say which implementations compete, and where."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from types import NoneType
from typing import Any, TYPE_CHECKING

from ..ranges import as_int, DimRange, parse_range, parse_ranges
from .signatures import implementation_name


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class CustomOpConfig:
    """
    One candidate: an implementation, its tuning parameters, and where it competes.

    Args:
        decomposition: the implementation, with the op's signature or a part of it; the
            op itself if left out.
        config_patches: Inductor config under which it is lowered and its Triton kernels
            are generated, for instance ``{"coordinate_descent_tuning": True}``. What
            concerns a graph as a whole (fusion, C++ code) is up to the graph's config.
        tensor_name, dim_index, dim_range: the candidate competes where
            ``tensor_name.size(dim_index)`` is in the half-open ``dim_range``; all three
            or none. A negative index counts from the end.
        params: passed to the implementation by name, in place of the op's argument of
            that name.

    Raises:
        TypeError: if the implementation is not callable or the patches are no dict.
        ValueError: for a range that is none or a part of the three range fields.
    """

    def __init__(
        self,
        decomposition: Callable[..., Any] | None = None,
        config_patches: dict[str, Any] | None = None,
        *,
        tensor_name: str | None = None,
        dim_index: int | None = None,
        dim_range: Any = None,
        **params: Any,
    ) -> None:
        if decomposition is not None and not callable(decomposition):
            raise TypeError(
                f"decomposition must be callable, got {type(decomposition)}"
            )
        if not isinstance(config_patches, (Mapping, NoneType)):
            raise TypeError(
                "config_patches must be a dict from names in torch._inductor.config to "
                f"values, got {type(config_patches)}"
            )
        self.decomposition = decomposition
        self.config_patches = dict(config_patches or {})
        self.params = params
        self._check_range_fields(
            tensor_name=tensor_name, dim_index=dim_index, dim_range=dim_range
        )
        self.tensor_name = tensor_name
        self.dim_index = as_int(dim_index)
        self.dim_range: DimRange | None = (
            None if dim_range is None else parse_range(dim_range)
        )

    def _check_range_fields(self, **fields: Any) -> None:
        missing = [name for name, value in fields.items() if value is None]
        if missing and len(missing) < len(fields):
            given = [name for name in fields if name not in missing]
            raise ValueError(
                f"{self!r} has {' and '.join(given)} but lacks {' and '.join(missing)}: "
                "give all three range fields or none"
            )
        if not missing:
            _check_dimension(fields["tensor_name"], fields["dim_index"])

    def get_decomposition(
        self, default_impl: Callable[..., Any] | None = None
    ) -> Callable[..., Any]:
        """The implementation, or ``default_impl`` if the config names none."""
        chosen = self.decomposition or default_impl
        if not callable(chosen):
            raise TypeError(
                f"{self!r} names no implementation and no default was given: pass one "
                "as its first argument"
            )
        return chosen

    def __repr__(self) -> str:
        impl = self.decomposition
        parts = ["default" if impl is None else implementation_name(impl)]
        parts += [f"{name}={value}" for name, value in self.params.items()]
        return f"CustomOpConfig({', '.join(parts)})"


class CustomOpRangeConfig:
    """
    Several implementations that all compete in each of several ranges.

    Args:
        tensor_name, dim_index: the size that the choice depends on,
            ``tensor_name.size(dim_index)``; a negative index counts from the end.
        ranges: half-open pairs, sorted; gaps run the op itself.
        implementations: callables, or CustomOpConfigs without range fields.

    Raises:
        TypeError: for an implementation that is not callable.
        ValueError: for bad ranges, or an empty list.
    """

    def __init__(
        self,
        tensor_name: str,
        dim_index: int,
        ranges: Sequence[Any],
        implementations: Sequence[Callable[..., Any] | CustomOpConfig],
    ) -> None:
        _check_dimension(tensor_name, dim_index)
        self.tensor_name = tensor_name
        self.dim_index = as_int(dim_index)
        self.ranges = parse_ranges(ranges)
        if not isinstance(implementations, (list, tuple)) or not implementations:
            raise ValueError(
                "implementations must be a non-empty list of callables or "
                f"CustomOpConfigs, got {implementations!r}"
            )
        self.implementations = tuple(
            _as_config(impl, i) for i, impl in enumerate(implementations)
        )

    def __repr__(self) -> str:
        ranges = ", ".join(map(str, self.ranges))
        return (
            f"CustomOpRangeConfig({self.tensor_name}[{self.dim_index}] in {ranges}: "
            f"{', '.join(map(repr, self.implementations))})"
        )


def _as_config(impl: Any, index: int) -> CustomOpConfig:
    if isinstance(impl, CustomOpConfig):
        if impl.dim_range is not None:
            raise ValueError(
                f"Implementation {index}, {impl!r}, has range fields of its own inside a "
                "CustomOpRangeConfig"
            )
        return impl
    if not callable(impl):
        raise TypeError(f"Implementation {index} must be callable, got {type(impl)}")
    return CustomOpConfig(impl)


def _check_dimension(tensor_name: Any, dim_index: Any) -> None:
    """Raises TypeError unless they are a name and an index."""
    if not isinstance(tensor_name, str):
        raise TypeError(f"tensor_name must be a string, got {type(tensor_name)}")
    if not isinstance(dim_index, numbers.Integral) or isinstance(dim_index, bool):
        raise TypeError(f"dim_index must be an integer, got {type(dim_index)}")
