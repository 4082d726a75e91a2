"""`BinaryPointwise`: an operation on two tensors, element by element (Graphene, Table 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.spec import Spec, Starter, check_layout, check_level, check_memory, check_size
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, Level, Memory, as_dtype, float32
from fireiron.values.tensor import ColMajor, MatrixLayout, Tensor, View, whole_view

OPERATIONS: tuple[str, ...] = ("+", "-", "*")
"""The operations, by their symbol."""


def _check_operation(_spec: Any, _field: Any, value: object) -> None:
    if not isinstance(value, str) or value not in OPERATIONS:
        raise ArgumentError("BinaryPointwise: unknown operation", got=value, legal=OPERATIONS)


@attrs.frozen(repr=False)
class BinaryPointwiseSpec(Spec):
    """`dst[m, n] = lhs[m, n] op rhs[m, n]`."""

    title: ClassVar[str] = "BinaryPointwise"
    dims: ClassVar[tuple[str, ...]] = ("m", "n")
    uses: ClassVar[Mapping[str, tuple[str, ...]]] = {"lhs": ("m", "n"), "rhs": ("m", "n"), "dst": ("m", "n")}
    tile_dims: ClassVar[tuple[str, ...]] = ("m", "n")
    outputs: ClassVar[tuple[str, ...]] = ("dst",)

    lhs: View
    rhs: View
    dst: View
    operation: str = attrs.field(default="+", validator=_check_operation)

    def reference(self, *inputs: Any) -> Any:
        """The operation in NumPy, in the element type."""
        import numpy

        if len(inputs) != 2:
            raise ArgumentError(f"reference(lhs, rhs): {len(inputs)} arrays")
        return self._apply(*(numpy.asarray(array) for array in inputs))

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

    def __call__(self, *memories: Memory) -> _Placed:
        if len(memories) != 3:
            raise ArgumentError(f"{len(memories)} memories given, one is needed for each operand", legal="lhs rhs dst")
        return _Placed(self, tuple(check_memory(memory, "memory") for memory in memories))


@attrs.frozen
class _Placed:
    shape: _Shape
    memories: tuple[Memory, ...]

    def __call__(self, level: Level) -> BinaryPointwiseSpec:
        rows = zip(("lhs", "rhs", "dst"), self.memories, self.shape.layouts, strict=True)
        sizes, dtype = self.shape.sizes, self.shape.dtype
        left, right, target = (whole_view(Tensor(name, sizes, dtype, memory, layout)) for name, memory, layout in rows)
        return BinaryPointwiseSpec(check_level(level), left, right, target, self.shape.operation)


class BinaryPointwiseStarter(Starter):
    """The name `BinaryPointwise`."""

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
        if not isinstance(operation, str) or operation not in OPERATIONS:
            raise ArgumentError("BinaryPointwise: unknown operation", got=operation, legal=OPERATIONS)
        sizes = (check_size(M, "M"), check_size(N, "N"))
        layouts = tuple(check_layout(layout, name, sizes) for name, layout in (("lhs", lhs), ("rhs", rhs), ("dst", dst)))
        return _Shape(operation, sizes, as_dtype(dtype), layouts)


BinaryPointwise: Final = BinaryPointwiseStarter(BinaryPointwiseSpec)
