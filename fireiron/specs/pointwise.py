"""`BinaryPointwise`: an operation on two tensors, element by element (Graphene, Table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.spec import Spec, SpecShape, Starter, check_matrices, check_memories, located
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, Level, Memory, as_dtype, float32
from fireiron.values.tensor import ColMajor, MatrixLayout, Tensor, View, whole_view

OPERATIONS: tuple[str, ...] = ("+", "-", "*")
"""The operations, by their symbol."""


def check_operation(value: object) -> str:
    """One of `OPERATIONS`, or an `ArgumentError`."""
    if not isinstance(value, str) or value not in OPERATIONS:
        raise ArgumentError("BinaryPointwise: unknown operation", got=value, legal=OPERATIONS)
    return value


@attrs.frozen(repr=False)
class BinaryPointwiseSpec(Spec):
    """`dst[m, n] = lhs[m, n] op rhs[m, n]`."""

    title: ClassVar[str] = "BinaryPointwise"
    dims: ClassVar[tuple[str, ...]] = ("m", "n")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {"lhs": ("m", "n"), "rhs": ("m", "n"), "dst": ("m", "n")}
    tile_dims: ClassVar[tuple[str, ...]] = ("m", "n")
    outputs: ClassVar[tuple[str, ...]] = ("dst",)
    pointwise: ClassVar[bool] = True

    lhs: View
    rhs: View
    dst: View
    operation: str = attrs.field(default="+", converter=check_operation)

    @property
    def starter(self) -> Starter:
        return BinaryPointwise

    def reference(self, *inputs: Any) -> Any:
        """The operation in NumPy, in the element type."""
        return self._apply(*self.given(inputs))

    def perform(self, values: Mapping[str, Any], accumulate: Any) -> dict[str, Any]:
        """New values of dst."""
        return {"dst": self._apply(values["lhs"], values["rhs"])}

    def _apply(self, left: Any, right: Any) -> Any:
        import numpy

        function = {"+": numpy.add, "-": numpy.subtract, "*": numpy.multiply}[self.operation]
        with numpy.errstate(over="ignore"):
            return function(left, right).astype(self.dst.dtype.to_numpy())

    def __str__(self) -> str:
        sizes = ",".join(str(size) for size in self.sizes)
        return f"BinaryPointwise<{self.operation}>({sizes})({','.join(memory.name for memory in self.memories)})({self.level})"


@attrs.frozen
class _Shape:
    operation: str
    sizes: tuple[Expr, ...]
    dtype: DType
    layouts: tuple[MatrixLayout, ...]

    @located
    def __call__(self, *memories: Memory) -> SpecShape:
        return SpecShape(self, check_memories(memories, BinaryPointwiseSpec))

    def build(self, memories: tuple[Memory, ...], level: Level) -> BinaryPointwiseSpec:
        rows = zip(("lhs", "rhs", "dst"), memories, self.layouts, strict=True)
        left, right, target = (whole_view(Tensor(name, self.sizes, self.dtype, memory, layout)) for name, memory, layout in rows)
        return BinaryPointwiseSpec(level, left, right, target, self.operation)


class BinaryPointwiseStarter(Starter):
    """The name `BinaryPointwise`."""

    @located
    def __call__(
        self,
        operation: str,
        M: Expr | int,
        N: Expr | int,
        *,
        dtype: DType = float32,
        lhs: MatrixLayout = ColMajor,
        rhs: MatrixLayout = ColMajor,
        dst: MatrixLayout = ColMajor,
    ) -> _Shape:
        """`dst (M x N) = lhs op rhs`; then the memories of lhs, rhs and dst, then the level."""
        sizes, layouts = check_matrices(self.spec_class, (M, N), {"lhs": lhs, "rhs": rhs, "dst": dst})
        return _Shape(check_operation(operation), sizes, as_dtype(dtype), layouts)


BinaryPointwise: Final = BinaryPointwiseStarter(BinaryPointwiseSpec)
