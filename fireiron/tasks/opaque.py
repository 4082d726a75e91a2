"""Micro-kernels as leaves: CUDA C++ that nothing here looks into, with a Python function for its meaning, where one is given.

The spec of such a call says which tensors the text reads and writes, and no more. Its dimensions are called as the caller says,
`"mn,mk,kn"`, by which the text asks for sizes and strides (`a_size_k`); two of one name have one size.
"""

from __future__ import annotations

import functools
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.spec import Kind
from fireiron.specs.formula import Definition, Element, Formula, Index
from fireiron.specs.integers import Range
from fireiron.values.machine import DType


@attrs.frozen
class OpaqueDefinition(Definition):
    """What is `given` to a text, each tensor with its dimensions, of which it writes some."""

    given: tuple[tuple[str, tuple[str, ...]], ...] = ()
    joins: bool = False

    only = None
    sets_numbers = False
    moved_indices = ()
    pointwise = False
    copies = moves = fills = allocates = is_product_sum = multiplies = contracts = reduces = False

    def __str__(self) -> str:
        taken = [f"{name}[{','.join(dims)}]" for name, dims in self.given]
        return f"{', '.join(self.outputs)} by a text of {', '.join(taken)}"

    @functools.cached_property
    def uses(self) -> Mapping[str, tuple[str, ...]]:
        """The dimensions of each operand."""
        return dict(self.given)

    @functools.cached_property
    def dims(self) -> tuple[str, ...]:
        """All dimensions: those of the first result, then the others."""
        return tuple(dict.fromkeys((*self.tile_dims, *(dim for _, dims in self.given for dim in dims))))


@attrs.frozen
class OpaqueKind(Kind):
    """The kind of a call of a micro-kernel."""

    made: OpaqueDefinition = attrs.field(kw_only=True)
    kernel: MicroKernel = attrs.field(kw_only=True)
    meaning: Callable[..., None] | None = attrs.field(kw_only=True)

    def definition(self, parameters: tuple[tuple[str, Any], ...], rank: int = 2) -> Definition:
        return self.made

    def of_views(self, parameters: tuple[tuple[str, Any], ...], views: tuple[Any, ...]) -> Definition:
        return self.made

    def perform(
        self,
        made: Definition,
        values: Mapping[str, Any],
        types: Mapping[str, DType],
        accumulate: Any,
        made_in: DType | None = None,
        ranges: Mapping[str, Range] | None = None,
    ) -> dict[str, Any]:
        """The arrays that are written, by the Python function; each unit of those that perform it at once has its own."""
        import numpy

        self.check_meaning(made)
        assert self.meaning is not None
        inner = {name: len(dims) for name, dims in self.made.given}
        units = numpy.broadcast_shapes(*(numpy.shape(values[name])[rank:] for name, rank in inner.items()))
        arrays = {}
        for name, rank in inner.items():
            shape = numpy.shape(values[name])
            own = numpy.broadcast_to(values[name], (*shape[:rank], *units))
            unwritten = name in made.outputs and accumulate is False
            arrays[name] = numpy.full_like(own, _unwritten(types[name])) if unwritten else own.copy()
        for unit in numpy.ndindex(*units):
            found = self.meaning(*(arrays[name][(..., *unit)] for name in inner))
            if found is not None:
                raise ArgumentError(f"the meaning of {self.kernel} changes its arrays, and returns nothing", got=type(found).__name__)
        return {name: arrays[name] for name in made.outputs}

    @property
    def executes(self) -> bool:
        return self.meaning is not None

    def check_meaning(self, made: Definition) -> None:
        if self.meaning is None:
            hint = "call_external(..., meaning=a function of arrays)"
            raise DecompositionError(f"{self.kernel} is not executed: nobody says what its text computes", hint=hint)

    def short(self, spec: Any) -> str | None:
        return None


def _unwritten(dtype: DType) -> float:
    """What stands where nothing was written."""
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
    """The kind of a call on tensors of these names, of which a variant reads and writes some.

    Raises: ArgumentError where dimensions are not named as there are, nothing is written, or what is written is read in part.
    """
    outputs = [name for name in names if name in writes]
    if not outputs:
        raise ArgumentError(f"{kernel}: it writes nothing", legal='writes=["C"] of the variant', at=call_site())
    joined = {name for name in outputs if name in reads}
    if joined not in (set(), set(outputs)):
        raise ArgumentError(f"{kernel}: it reads a part of what it writes", got=sorted(joined), legal=(outputs, "none"), at=call_site())
    if meaning is not None and not callable(meaning):
        raise ArgumentError(f"{kernel}: its meaning is a function of arrays", got=meaning, at=call_site())
    given = tuple(zip(names, _dims(kernel, ranks, dims), strict=True))
    formulas = tuple(Formula(Element(name, tuple(map(Index, dict(given)[name])))) for name in outputs)
    title = kernel.name if kernel.name.isidentifier() else "micro_kernel"
    return OpaqueKind(title, "", made=OpaqueDefinition(formulas, given, bool(joined)), kernel=kernel, meaning=meaning)


def _dims(kernel: MicroKernel, ranks: Sequence[int], dims: str | None) -> list[tuple[str, ...]]:
    """The names of the dimensions of each tensor: letters, as they are said, or all different."""
    if dims is None:
        letters = iter(string.ascii_lowercase[8:] + string.ascii_lowercase[:8])
        return [tuple(next(letters) for _ in range(rank)) for rank in ranks]
    found = [tuple(one.strip()) for one in dims.split(",")]
    right = [len(one) for one in found] == list(ranks) and all(dim.isalpha() and dim.islower() for one in found for dim in one)
    if not right or any(len(set(one)) != len(one) for one in found):
        raise ArgumentError(
            f"{kernel}: dims names each dimension of each tensor", got=dims, legal=f'"mn,mk,kn", of {ranks} letters', at=call_site()
        )
    return found
