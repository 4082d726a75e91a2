"""`Reduction`: partial results, stacked along a third dimension, added up (Graphene, Table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.spec import Spec, SpecShape, Starter, as_condition, check_matrices, check_memories, convert, converting, located
from fireiron.values.expr import FALSE, Expr
from fireiron.values.machine import DType, Level, Memory, float32
from fireiron.values.tensor import ColMajor, MatrixLayout, Tensor, View, whole_view


@attrs.frozen(repr=False)
class ReductionSpec(Spec):
    """`dst[m, n] = sum over p of src[m, n, p]`, added to dst where `accumulate` holds.

    The sum is made in the type of src (float32 for 16-bit floats), in the order of p, and converted once.
    """

    title: ClassVar[str] = "Reduction"
    dims: ClassVar[tuple[str, ...]] = ("m", "n", "p")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {"src": ("m", "n", "p"), "dst": ("m", "n")}
    tile_dims: ClassVar[tuple[str, ...]] = ("m", "n")
    outputs: ClassVar[tuple[str, ...]] = ("dst",)
    sums: ClassVar[bool] = True

    src: View
    dst: View
    accumulate: Expr = attrs.field(default=FALSE, converter=as_condition)

    @property
    def starter(self) -> Starter:
        return Reduction

    def reference(self, *inputs: Any) -> Any:
        """The sum in float64 (int64 for integers), rounded once to the type of dst."""
        import numpy

        wide = numpy.float64 if self.src.dtype.kind == "float" else numpy.int64
        (src,) = self.given(inputs)
        return convert(src.astype(wide).sum(axis=2), self.dst.dtype)

    def perform(self, values: Mapping[str, Any], accumulate: Any) -> dict[str, Any]:
        """Added in the order of p."""
        import numpy

        wide = numpy.float32 if self.src.dtype.kind == "float" and self.src.dtype.bits < 32 else self.src.dtype.to_numpy()
        parts = [values["src"][:, :, p].astype(wide, copy=False) for p in range(values["src"].shape[2])]
        if accumulate is not False:
            old = values["dst"].astype(wide, copy=False)
            parts.insert(0, old if accumulate is True else numpy.where(accumulate, old, 0).astype(wide))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return {"dst": convert(total, self.dst.dtype)}


@attrs.frozen
class _Shape:
    sizes: tuple[Expr, ...]
    dtypes: tuple[DType, DType]
    layouts: tuple[MatrixLayout, ...]
    accumulate: Expr

    @located
    def __call__(self, *memories: Memory) -> SpecShape:
        return SpecShape(self, check_memories(memories, ReductionSpec))

    def build(self, memories: tuple[Memory, ...], level: Level) -> ReductionSpec:
        rows = zip(("src", "dst"), (self.sizes, self.sizes[:2]), self.dtypes, memories, self.layouts, strict=True)
        src, dst = (whole_view(Tensor(name, size, dtype, memory, layout)) for name, size, dtype, memory, layout in rows)
        return ReductionSpec(level, src, dst, self.accumulate)


class ReductionStarter(Starter):
    """The name `Reduction`."""

    @located
    def __call__(
        self,
        M: Expr | int,
        N: Expr | int,
        P: Expr | int,
        *,
        dtype: DType = float32,
        dst_dtype: DType | None = None,
        accumulate: Expr | bool = FALSE,
        src: MatrixLayout = ColMajor,
        dst: MatrixLayout = ColMajor,
    ) -> _Shape:
        """`dst (M x N) = sum over p of src (M x N x P)`; then the memories of src and dst, then the level.

        >>> from fireiron import *
        >>> print(Reduction(64, 32, 4)(GL, GL)(Kernel).tile(32, 32).to(Block).tile(1, 1).to(Thread).result)
        Reduction(1,1,4)(GL,GL)(Thread)
        """
        sizes, layouts = check_matrices(self.spec_class, (M, N, P), {"src": src, "dst": dst})
        return _Shape(sizes, converting(dtype, dst_dtype), layouts, as_condition(accumulate))


Reduction: Final = ReductionStarter(ReductionSpec)
