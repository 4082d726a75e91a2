"""`AtomicAdd`: an addition to memory that several threads, of any block, make at once and none gets lost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import attrs

from fireiron.spec import MoveShape, Spec, Starter, check_matrices, convert, converting, located
from fireiron.values.expr import Expr
from fireiron.values.machine import DType, Level, Memory, float32
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

    @property
    def starter(self) -> Starter:
        return AtomicAdd

    def reference(self, *inputs: Any) -> Any:
        """What is added to dst: src, converted to its type."""
        (src,) = self.given(inputs)
        return convert(src, self.dst.dtype)

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
        sizes, layouts = check_matrices(self.spec_class, (M, N), {"src": src, "dst": dst})
        return AtomicAddShape(sizes, converting(dtype, dst_dtype), layouts)


AtomicAdd: Final = AtomicAddStarter(AtomicAddSpec)
