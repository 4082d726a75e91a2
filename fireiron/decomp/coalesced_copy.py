"""`coalesced_copy`: a cooperative copy in which adjacent threads access adjacent vectors of the more distant memory."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.language.substrategy import written
from fireiron.language.tree import Context, Decomposition, Expansion, verb
from fireiron.language.tunable import Integer, chosen, count, integral
from fireiron.spec import AnySpec, Spec
from fireiron.values.expr import as_expr, constant
from fireiron.values.tensor import ColMajor, RowMajor, View
from fireiron.values.units import thread_of


def _width(value: Any) -> Any:
    return integral(value, "coalesced_copy")


MOST_UNROLLED = 16
"""Maximum number of vectors per thread for which the loop is unrolled. With more, the addresses would need too many registers."""


@frozen
class CoalescedCopy(Decomposition):
    """Vectors of `width` contiguous elements, distributed over threads in storage order; see the verb `coalesced_copy`."""

    verb: ClassVar[str] = "coalesced_copy"
    kinds: ClassVar[tuple[str, ...]] = ("Move",)
    width: Any = attrs.field(converter=_width)

    @staticmethod
    def of(width: Any) -> CoalescedCopy:
        """Return the step for the argument of the verb."""
        return CoalescedCopy(count(width, "coalesced_copy"))

    def label(self) -> str:
        return f"coalesced_copy({self.width})"

    def expand(self, spec: Spec, context: Context) -> Expansion:
        return self._tile(spec, context).expand(spec, context)

    def threads(self, spec: Spec, context: Context) -> int | None:
        return self._tile(spec, context).threads(spec, context)

    def _tile(self, spec: Spec, context: Context) -> Decomposition:
        if not spec.moves:
            raise DecompositionError(f"coalesced_copy: {spec.title} is not a copy", legal="Move")
        if not spec.dims:
            raise DecompositionError("coalesced_copy: one element has nothing to divide", got=spec, hint=".done()")
        if spec.level.threads == 1:
            raise DecompositionError("coalesced_copy: a single thread cannot share a copy", hint=".tile(1, 4).unroll()")
        name = _far(spec)
        view = spec.operands[name]
        stored = view.storage_order
        order = tuple(spec.dims.index(spec.uses[name][dim]) for dim in stored)
        along = order[0]
        width = chosen(self.width, "coalesced_copy")
        width = math.gcd(width, constant(spec.sizes[along]) or 1, _alignment(view, stored[0]))
        sizes = tuple(width if dim == along else 1 for dim in range(len(order)))
        order_of_threads = {(0,): RowMajor, (0, 1): ColMajor, (1, 0): RowMajor}.get(order, order)
        tile = AnySpec.tile(*sizes).to(thread_of(spec.level)).layout(order_of_threads)
        many = context.workers is not None and _vectors_per_thread(spec, width, context) > MOST_UNROLLED
        (step,) = written(tile if many else tile.unroll())
        return step

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[CoalescedCopy]:
        is_static = all(constant(size) is not None for size in spec.sizes)
        if spec.moves and spec.dims and not spec.level.is_launch and spec.level.threads != 1 and is_static:
            yield from (CoalescedCopy(width) for width in (1, 2, 4, 8))


def _vectors_per_thread(spec: Spec, width: int, context: Context) -> int:
    """The number of vectors that each thread copies."""
    threads = spec.level.threads or context.workers or 1
    sizes = [constant(size) or 1 for size in spec.sizes]
    return math.prod(sizes) // (width * threads)


def _far(spec: Spec) -> str:
    """Return the operand in the more distant memory, whose accesses are more expensive; the source if the distances are equal."""
    return "dst" if spec.dst.memory.depth < spec.src.memory.depth else "src"


def _alignment(view: View, along: int) -> int:
    """Return a number of elements that divides the offsets of the starts and ends of all rows of the view."""
    times = view.tensor.storage().repeats(view.axis(along))
    extent = view.extent(along) if times == 1 else (view.extent(along) + (times - 1)) // times
    parts = [view.dims[along].base.factor // times, extent.factor]
    for dim, digits in enumerate(view.tensor.storage().dims):
        parts += [as_expr(digit.weight).factor for digit in digits] if dim != view.axis(along) else []
    return math.gcd(*parts)


@verb()
def coalesced_copy(width: Integer) -> CoalescedCopy:
    """Copy with all threads of a group: each copies vectors of contiguous elements, in the storage order of the more distant memory.

    Args: width: the maximum number of elements per vector. Vectors are narrower if sizes and leading dimensions do not prove their
    alignment. Legal on a `Move` of a group of threads.
    rewrite: Move(m,n)(Block) --> Move(1,width)(Thread), or Move(width,1)(Thread) if the storage is column-major

    >>> from fireiron import *
    >>> print(Move(64, 32)(GL, SH)(Block).coalesced_copy(4).result)
    Move(4,1)(GL,SH)(Thread)

    Source: CUDA C++ Programming Guide, "Device Memory Accesses".
    """
    return CoalescedCopy.of(width)


EXAMPLES = (CoalescedCopy(4),)
"""Examples of the class, which has no default arguments."""

__all__ = ["CoalescedCopy"]
