"""`AtomicAdd`: an addition to memory that several threads, of any block, make at once and none gets lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.expr import Expr
from fireiron.machine import DType, Level, Memory, as_dtype, float32
from fireiron.spec import Spec, Starter, check_layout, check_level, check_memory, check_size, convert, located
from fireiron.tensor import ColMajor, MatrixLayout, Tensor, View, whole_view


@attrs.frozen(repr=False)
class AtomicAddSpec(Spec):
    """`dst += src`, each element in one step; the order in which threads add is not specified."""

    title: ClassVar[str] = "AtomicAdd"
    dims: ClassVar[tuple[str, ...]] = ("m", "n")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {"src": ("m", "n"), "dst": ("m", "n")}
    tile_dims: ClassVar[tuple[str, ...]] = ("m", "n")
    outputs: ClassVar[tuple[str, ...]] = ("dst",)
    atomic: ClassVar[bool] = True

    src: View
    dst: View

    def reference(self, *inputs: Any) -> Any:
        """What is added to dst: src, converted to its type."""
        import numpy

        if len(inputs) != 1:
            raise ArgumentError(f"reference(src): {len(inputs)} arrays")
        return convert(numpy.asarray(inputs[0]), self.dst.dtype)

    def perform(self, values: Mapping[str, Any], accumulate: Any) -> dict[str, Any]:
        """What is added to dst."""
        return {"dst": convert(values["src"], self.dst.dtype)}


@attrs.frozen
class _Shape:
    sizes: tuple[Expr, ...]
    dtypes: tuple[DType, DType]
    layouts: tuple[MatrixLayout, MatrixLayout]

    @located
    def __call__(self, *memories: Memory) -> _Placed:
        if len(memories) != 2:
            raise ArgumentError(f"{len(memories)} memories given, one is needed for each operand", legal="src dst")
        return _Placed(self, tuple(check_memory(memory, "memory") for memory in memories))


@attrs.frozen
class _Placed:
    shape: _Shape
    memories: tuple[Memory, ...]

    @located
    def __call__(self, level: Level) -> AtomicAddSpec:
        rows = zip(("src", "dst"), self.shape.dtypes, self.memories, self.shape.layouts, strict=True)
        src, dst = (whole_view(Tensor(name, self.shape.sizes, dtype, memory, layout)) for name, dtype, memory, layout in rows)
        return AtomicAddSpec(check_level(level), src, dst)


class AtomicAddStarter(Starter):
    """The name `AtomicAdd`."""

    @located
    def __call__(
        self,
        M: Expr | int,
        N: Expr | int,
        *,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        src: MatrixLayout = ColMajor,
        dst: MatrixLayout = ColMajor,
    ) -> _Shape:
        """`dst (M x N) += src (M x N)`; then the memories of src and dst, then the level."""
        sizes = (check_size(M, "M"), check_size(N, "N"))
        layouts = (check_layout(src, "src", sizes), check_layout(dst, "dst", sizes))
        first = as_dtype(dtype)
        return _Shape(sizes, (first, first if dst_dtype is None else as_dtype(dst_dtype)), layouts)


AtomicAdd: Final = AtomicAddStarter(AtomicAddSpec)
