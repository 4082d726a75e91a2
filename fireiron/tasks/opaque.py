"""Micro-kernels that Leaf variants call: opaque CUDA C++, whose meaning a Python function may define.

The spec of such a call specifies only which tensors the code reads and writes. The caller names the dimensions, for example `"mn,mk,kn"`,
and the code refers to sizes and strides by these names (`a_size_k`). Dimensions with equal names have equal sizes.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.frozen import frozen
from fireiron.spec import Kind
from fireiron.specs.bits import Range
from fireiron.specs.formula import Definition, Element, Formula, Index
from fireiron.values.machine import DType


@frozen
class OpaqueDefinition(Definition):
    """The operands of a micro-kernel with their dimensions (`given`), of which it writes the outputs. If `joins`, it also reads them."""

    given: tuple[tuple[str, tuple[str, ...]], ...] = ()
    accumulates: bool = False

    only = None
    sets_numbers = False
    moved_indices = ()
    pointwise = False
    copies = moves = fills = allocates = is_product_sum = multiplies = contracts = reduces = False

    def __str__(self) -> str:
        operands = [f"{name}[{','.join(dims)}]" for name, dims in self.given]
        return f"{', '.join(self.outputs)} by CUDA C++ from {', '.join(operands)}"

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand."""
        return dict(self.given)

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """All dimensions: those of the first result, then the others."""
        return tuple(dict.fromkeys((*self.tile_dims, *(dim for _, dims in self.given for dim in dims))))


@frozen
class OpaqueKind(Kind):
    """The kind of a call of a micro-kernel."""

    opaque_definition: OpaqueDefinition = attrs.field(kw_only=True)
    kernel: MicroKernel = attrs.field(kw_only=True)
    meaning: Callable[..., None] | None = attrs.field(kw_only=True)

    def definition(self, parameters: tuple[tuple[str, Any], ...], rank: int = 2) -> Definition:
        return self.opaque_definition

    def of_views(self, parameters: tuple[tuple[str, Any], ...], views: tuple[Any, ...]) -> Definition:
        return self.opaque_definition

    def perform(
        self,
        definition: Definition,
        values: Mapping[str, Any],
        types: Mapping[str, DType],
        accumulate: Any,
        compute_type: DType | None = None,
        ranges: Mapping[str, Range] | None = None,
    ) -> dict[str, Any]:
        """Compute the written arrays by the Python function, separately for each unit that executes the call."""
        import numpy

        self.check_meaning(definition)
        assert self.meaning is not None
        inner = {name: len(dims) for name, dims in self.opaque_definition.given}
        units = numpy.broadcast_shapes(*(numpy.shape(values[name])[rank:] for name, rank in inner.items()))
        arrays = {}
        for name, rank in inner.items():
            shape = numpy.shape(values[name])
            own = numpy.broadcast_to(values[name], (*shape[:rank], *units))
            unwritten = name in definition.outputs and accumulate is False
            arrays[name] = numpy.full_like(own, _unwritten(types[name])) if unwritten else own.copy()
        for unit in numpy.ndindex(*units):
            result = self.meaning(*(arrays[name][(..., *unit)] for name in inner))
            if result is not None:
                raise ArgumentError(f"the meaning of {self.kernel} must change its arrays and return None", got=type(result).__name__)
        return {name: arrays[name] for name in definition.outputs}

    @property
    def executes(self) -> bool:
        return self.meaning is not None

    def check_meaning(self, definition: Definition) -> None:
        if self.meaning is None:
            hint = "pass a function of arrays: call_external(..., meaning=function)"
            raise DecompositionError(f"{self.kernel} cannot be simulated: its meaning is unknown", hint=hint)

    def short(self, spec: Any) -> str | None:
        return None


def _unwritten(dtype: DType) -> float:
    """The initial value of outputs."""
    return 0 if dtype.kind == "int" else float("nan")


def opaque(
    kernel: MicroKernel,
    names: Sequence[str],
    ranks: Sequence[int],
    reads: frozenset[str],
    writes: frozenset[str],
    dims: str | None,
    meaning: Callable[..., None] | None,
) -> OpaqueKind:
    """Return the kind of a micro-kernel's call on tensors with these names and ranks.

    Raises: ArgumentError if the names of dimensions do not fit, if no tensor is written, or if some of the written tensors are read but not
    all of them.
    """
    outputs = [name for name in names if name in writes]
    if not outputs:
        raise ArgumentError(f"{kernel} writes no tensor", legal='writes=["C"] of the variant', at=call_site())
    joined = {name for name in outputs if name in reads}
    if joined not in (set(), set(outputs)):
        raise ArgumentError(
            f"{kernel} reads some of the tensors that it writes, but not all of them",
            got=sorted(joined),
            legal=(outputs, "none"),
            at=call_site(),
        )
    if meaning is not None and not callable(meaning):
        raise ArgumentError(f"{kernel}: meaning must be a function of arrays", got=meaning, at=call_site())
    given = tuple(zip(names, _dims(kernel, ranks, dims), strict=True))
    formulas = tuple(Formula(Element(name, tuple(map(Index, dict(given)[name])))) for name in outputs)
    title = kernel.name if kernel.name.isidentifier() else "micro_kernel"
    return OpaqueKind(title, "", opaque_definition=OpaqueDefinition(formulas, given, bool(joined)), kernel=kernel, meaning=meaning)


def _dims(kernel: MicroKernel, ranks: Sequence[int], dims: str | None) -> list[tuple[str, ...]]:
    """The names of the dimensions of each tensor: letters, as specified, or all different."""
    if dims is None:
        letters = iter(string.ascii_lowercase[8:] + string.ascii_lowercase[:8])
        return [tuple(next(letters) for _ in range(rank)) for rank in ranks]
    dims_by_tensor = [tuple(part.strip()) for part in dims.split(",")]
    right = [len(part) for part in dims_by_tensor] == list(ranks) and all(
        dim.isalpha() and dim.islower() for part in dims_by_tensor for dim in part
    )
    if not right or any(len(set(part)) != len(part) for part in dims_by_tensor):
        raise ArgumentError(
            f"{kernel}: dims must name each dimension of each tensor",
            got=dims,
            legal=f'a text such as "mn,mk,kn", with {ranks} letters',
            at=call_site(),
        )
    return dims_by_tensor
