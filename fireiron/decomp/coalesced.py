"""`coalesced`: a cooperative copy that touches far memory in its own order, neighbouring threads neighbouring vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.language.substrategy import written
from fireiron.language.tree import Context, Decomposition, Expansion, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.spec import AnySpec, Spec
from fireiron.values.expr import as_expr, constant
from fireiron.values.tensor import ColMajor, RowMajor, View
from fireiron.values.units import thread_of


def _elements(value: Any) -> Any:
    return integral(value, "coalesced")


MOST_UNROLLED = 16
"""Most iterations of a thread that are unrolled: single-element copies have many, whose addresses would fill the registers."""


@attrs.frozen
class Coalesced(Decomposition):
    """Vectors of `elements` neighbours, dealt to threads in storage order; see the verb `coalesced`."""

    verb: ClassVar[str] = "coalesced"
    kinds: ClassVar[tuple[str, ...]] = ("Move",)
    elements: Any = attrs.field(converter=_elements)

    @staticmethod
    def of(elements: Any) -> Coalesced:
        """The step from the argument of the verb."""
        return Coalesced(count(elements, "coalesced"))

    def label(self) -> str:
        return f"coalesced({self.elements})"

    def expand(self, spec: Spec, context: Context) -> Expansion:
        return self._tile(spec, context).expand(spec, context)

    def threads(self, spec: Spec, context: Context) -> int | None:
        return self._tile(spec, context).threads(spec, context)

    def _tile(self, spec: Spec, context: Context) -> Decomposition:
        if not spec.moves:
            raise DecompositionError(f"coalesced: {spec.title} is no copy", legal="Move")
        if spec.level.threads == 1:
            raise DecompositionError("coalesced: a single thread has nobody to share the copy with", hint=".tile(1, 4).unroll()")
        name = _far(spec)
        view = spec.operands[name]
        stored = view.storage_order
        order = tuple(spec.dims.index(spec.uses[name][dim]) for dim in stored)
        along = order[0]
        width = chosen(self.elements, "coalesced")
        width = math.gcd(width, constant(spec.sizes[along]) or 1, _alignment(view, stored[0]))
        sizes = tuple(width if dim == along else 1 for dim in range(len(order)))
        dealt = {(0,): RowMajor, (0, 1): ColMajor, (1, 0): RowMajor}.get(order, order)
        tile = AnySpec.tile(*sizes).to(thread_of(spec.level)).layout(dealt)
        many = context.workers is not None and _turns(spec, width, context) > MOST_UNROLLED
        (step,) = written(tile if many else tile.unroll())
        return step

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Coalesced]:
        whole = all(constant(size) is not None for size in spec.sizes)
        if spec.moves and not spec.level.is_launch and spec.level.threads != 1 and whole:
            yield from (Coalesced(width) for width in (1, 2, 4, 8))


def _turns(spec: Spec, width: int, context: Context) -> int:
    """How many vectors a thread copies."""
    threads = spec.level.threads or context.workers or 1
    sizes = [constant(size) or 1 for size in spec.sizes]
    return math.prod(sizes) // (width * threads)


def _far(spec: Spec) -> str:
    """The operand whose accesses cost most: the one further from the threads; of two alike, the source."""
    return "dst" if spec.dst.memory.depth < spec.src.memory.depth else "src"


def _alignment(view: View, along: int) -> int:
    """A number of elements of which every row's start in the view, and its end, is a multiple."""
    parts = [view.dims[along].base.factor, view.extent(along).factor]
    for dim, digits in enumerate(view.tensor.storage().dims):
        parts += [as_expr(digit.weight).factor for digit in digits] if dim != view.axis(along) else []
    return math.gcd(*parts)


@verb()
def coalesced(elements: Integer) -> Coalesced:
    """A copy by all threads of the group, each a vector of neighbours, in the storage order of the memory further away.

    Args: the most elements of a vector; fewer where sizes or leading dimensions prove no more. Legal on a `Move` of a group of threads.
    rewrite: Move(m,n)(Block) --> Move(1,elements)(Thread), or Move(elements,1)(Thread) where storage is column-major

    >>> from fireiron import *
    >>> print(Move(64, 32)(GL, SH)(Block).coalesced(4).result)
    Move(4,1)(GL,SH)(Thread)

    Source: CUDA C++ Programming Guide, "Device Memory Accesses".
    """
    return Coalesced.of(elements)


EXAMPLES = (Coalesced(4),)
"""Any of the kind, which cannot be made without arguments."""

__all__ = ["Coalesced"]
