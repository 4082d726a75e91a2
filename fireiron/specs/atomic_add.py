"""`AtomicAdd`: an addition to memory that several threads, of any block, make at once and none gets lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.errors import ArgumentError
from fireiron.spec import MoveShape, Spec, Starter, check_layout, check_size, convert, located
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, Level, Memory, as_dtype, float32
from fireiron.values.tensor import ColMajor, MatrixLayout, View


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
class AtomicAddShape(MoveShape):
    """`AtomicAdd(M, N)`, waiting for the memories of src and dst."""

    def build(self, memories: tuple[Memory, ...], level: Level) -> Any:
        """The spec at a level."""
        src, dst = self.views(memories)
        return AtomicAddSpec(level, src, dst)


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
    ) -> AtomicAddShape:
        """`dst (M x N) += src (M x N)`; then the memories of src and dst, then the level."""
        sizes = (check_size(M, "M"), check_size(N, "N"))
        layouts = (check_layout(src, "src", sizes), check_layout(dst, "dst", sizes))
        first = as_dtype(dtype)
        return AtomicAddShape(sizes, (first, first if dst_dtype is None else as_dtype(dst_dtype)), layouts)


AtomicAdd: Final = AtomicAddStarter(AtomicAddSpec)
