"""Storage specified by the stride of each named dimension, and the values of strides that are kernel arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.values.expr import SYMBOL_MAX, Expr, Var, constant
from fireiron.values.layout import Layout
from fireiron.values.tensor import MatrixLayout, Storage


@attrs.frozen(repr=False)
class AnyStride:
    """A stride that is a kernel argument, read from the array that is passed; `ANY(8)` is a multiple of 8 elements.

    It is less than 2**31 elements; 0 (a broadcast array) is legal for inputs.

    >>> from fireiron import *
    >>> rows = Move(64, 32, src=Strides(m=ANY(8), n=1))(GL, GL)(Kernel)
    >>> "stride_src_m" in rows.tile(8, 8).to(Block).tile(1, 8).to(Thread).done().cuda()
    True
    """

    multiple_of: int = 1

    def __attrs_post_init__(self) -> None:
        if isinstance(self.multiple_of, bool) or not isinstance(self.multiple_of, int) or not 1 <= self.multiple_of <= SYMBOL_MAX:
            raise ArgumentError(
                "ANY(n): n must be a positive integer, of which the stride is a multiple", got=self.multiple_of, legal=f"1 ... {SYMBOL_MAX}"
            )

    def __call__(self, multiple_of: int) -> AnyStride:
        """A stride that is a multiple of `multiple_of` elements; otherwise vectors along another dimension are not provably aligned."""
        return AnyStride(multiple_of)

    def named(self, operand: str, dim: str) -> Var:
        """The kernel parameter for this stride of an operand."""
        return Var(f"stride_{operand}_{dim}", 0, SYMBOL_MAX, self.multiple_of, True)

    def __repr__(self) -> str:
        return "ANY" if self.multiple_of == 1 else f"ANY({self.multiple_of})"

    __str__ = __repr__


ANY = AnyStride()
"""A stride that is a kernel argument and is read from the array; `ANY(8)` is a multiple of 8, `ANY()` any number."""

USUAL_ALIGNMENT: Final = 16
"""Alignment in bytes of an array, unless a spec specifies another one: that of the widest load."""

MOST_ALIGNED: Final = 256
"""Alignment in bytes of CUDA allocations (CUDA C++ Programming Guide, "Device Memory Accesses")."""


@attrs.frozen(init=False, repr=False)
class Strides:
    """Storage specified by the stride, in elements, of each dimension: `Strides(m=ANY, k=1)`.

    A stride is an integer, an expression of symbols, or `ANY`. With stride 0, an input has the same element along a dimension.

    >>> from fireiron import *
    >>> spec = Move(64, 32, src=Strides(m=ANY, n=1), dst=Strides(m=1, n=64))(GL, GL)(Kernel)
    >>> print(spec.operands["src"].tensor.storage().layout)
    (64,32):(stride_src_m,1)

    Legal when each dimension of the operand has a stride that cannot be negative, and no two elements of an output have the same address.
    """

    by_dim: tuple[tuple[str, int | Expr | AnyStride], ...]
    align: int = USUAL_ALIGNMENT

    def __init__(self, **by_dim: int | Expr | AnyStride) -> None:
        self.__attrs_init__(tuple((dim, _checked(dim, stride)) for dim, stride in by_dim.items()))

    def aligned(self, bytes: int) -> Strides:
        """The same strides for an array aligned to `bytes` bytes, 16 by default; fewer if slices may start anywhere.

        Each launch checks the alignment; loads and stores are not wider.
        """
        if not _is_alignment(bytes):
            raise ArgumentError(
                f"{self}.aligned(bytes): bytes must be a power of two", got=bytes, legal=f"a power of two up to {MOST_ALIGNED}"
            )
        strides = Strides(**dict(self.by_dim))
        object.__setattr__(strides, "align", bytes)
        return strides

    def layout(self, operand: str, dims: Sequence[str], sizes: Sequence[Expr]) -> Layout:
        """The layout of an operand with these dimensions; an `ArgumentError` if the names differ."""
        named = dict(self.by_dim)
        if set(named) != set(dims):
            wanted = ", ".join(f"{dim}=..." for dim in dims)
            raise ArgumentError(f"{operand}={self}: its dimensions are {', '.join(dims)}", legal=f"Strides({wanted})")
        steps = [named[dim].named(operand, dim) if isinstance(named[dim], AnyStride) else named[dim] for dim in dims]  # type: ignore[union-attr]
        return Layout(tuple(sizes), tuple(steps))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        more = "" if self.align == USUAL_ALIGNMENT else f".aligned({self.align})"
        return f"Strides({', '.join(f'{dim}={stride!r}' for dim, stride in self.by_dim)}){more}"

    __str__ = __repr__


def _is_alignment(value: object) -> bool:
    return type(value) is int and 1 <= value <= MOST_ALIGNED and value & (value - 1) == 0


def _checked(dim: str, stride: object) -> int | Expr | AnyStride:
    if isinstance(stride, AnyStride):
        return stride
    number = constant(stride) if isinstance(stride, Expr) else stride
    if number is None and isinstance(stride, Expr):
        if stride.low < 0 or not all(var.parameter for var in stride.variables()):
            what = f"Strides({dim}={stride}): the stride may be negative, or contains variables that are not symbols"
            raise ArgumentError(what, legal='sym("ld"), ANY')
        return stride
    if isinstance(number, bool) or not isinstance(number, int):
        raise ArgumentError(f"Strides({dim}=...): a stride is an integer, a symbol or ANY", got=stride, legal='1, sym("ld"), ANY')
    if number < 0:
        hint = "pass a copy, because a kernel begins at the array's first element"
        raise ArgumentError(f"Strides({dim}={number}): a stride must not be negative", legal="0, 1, 2, ...", hint=hint)
    return number


StorageOrder = MatrixLayout | Strides | Layout
"""The ways to specify the storage of an operand."""


def strides_of(operand: str, dims: Sequence[str], layout: object) -> Strides | None:
    """The `Strides` of a layout; None if a dimension has several strides, or if the operand is a part of a tensor with more dimensions."""
    if not isinstance(layout, Layout) or not isinstance(layout.stride, tuple) or any(len(mode.leaves) != 1 for mode in layout):
        return None
    if len(dims) != len(layout):
        return None
    named: dict[str, int | Expr | AnyStride] = {}
    for dim, (_, stride) in zip(dims, layout.leaves, strict=True):
        any_stride = AnyStride(stride.multiple_of) if isinstance(stride, Var) else None
        named[dim] = any_stride if any_stride is not None and any_stride.named(operand, dim) == stride else stride
    return Strides(**named)


def strides_repr(operand: str, dims: Sequence[str], layout: Layout, align: int) -> str | None:
    """`Strides(...)` with this layout; None if there is none."""
    strides = strides_of(operand, dims, layout) if _is_alignment(align) else None
    return None if strides is None else repr(strides.aligned(align))


# ---------------------------------------------------------------------------------------------- strides of arrays


def symbolic_strides(storage: Storage, shape: Sequence[int], strides: Sequence[int]) -> Iterator[tuple[str, int, int]]:
    """The values of strides that are symbols, read from an array: name, value and dimension. A dimension of one element has no stride."""
    for dim, (step, size, stride) in enumerate(zip(storage.steps, shape, strides, strict=False)):  # other ranks are refused elsewhere
        if isinstance(step, Var) and size != 1:
            yield step.name, stride, dim


def strides_chosen(storage: Storage, shape: Sequence[int], known: Mapping[str, int]) -> dict[str, int]:
    """Values for strides that no array determines: compact, the last dimension first, after the known ones."""
    chosen: dict[str, int] = {}
    pairs = [(step, size) for step, size in zip(storage.steps, shape, strict=True) if step is not None]
    known_steps = [(step, size) for step, size in pairs if all(var.name in known for var in step.variables())]
    reach = max([1, *(int(step.evaluate(known)) * size for step, size in known_steps)])
    for step, size in reversed(pairs):
        if isinstance(step, Var) and step.name not in known and step.name not in chosen:
            least = max(reach, step.low)
            chosen[step.name] = -(-least // step.multiple_of) * step.multiple_of
            reach = chosen[step.name] * size
    return chosen


def addresses_are_distinct(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether all elements have different addresses: in ascending order, each stride is larger than the extent of the previous dimensions.

    Arrays whose dimensions interleave, such as 2 x 3 with strides 3 and 2, count as overlapping.
    """
    reach = 0
    for stride, size in sorted((stride, size) for size, stride in zip(shape, strides, strict=True) if size > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def surely_overlaps(storage: Storage, shape: Sequence[Expr]) -> bool:
    """Whether elements share an address for all run-time sizes and strides."""
    pairs = [(constant(size), None if step is None else constant(step)) for size, step in zip(shape, storage.steps, strict=True)]
    known = [(size, step) for size, step in pairs if size is not None and step is not None]
    if any(step == 0 and size != 1 for size, step in pairs):
        return True
    return None not in storage.steps and not addresses_are_distinct(*zip(*known, strict=True)) if known else False
