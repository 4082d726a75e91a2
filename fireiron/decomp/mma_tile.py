"""`mma_tile`: decompose a contiguous 16x16 tile of a warp into tiles of the target's matrix instruction (Fireiron, section 5.3)."""

from __future__ import annotations

from typing import Any, ClassVar

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.frozen import frozen
from fireiron.language.plain import plain
from fireiron.language.substrategy import written
from fireiron.language.tree import Context, Decomposition, Executable, Expansion, verb
from fireiron.performing.mma import Mma
from fireiron.spec import AnySpec, Spec
from fireiron.specs.fused import fused
from fireiron.stepping.steps import implied
from fireiron.values.expr import constant
from fireiron.values.machine import Architecture, Warp, float32
from fireiron.values.units import same_threads

SIDE = 16
"""Rows and columns of the tile that `mma_tile` expects."""


@frozen
class MmaTile(Decomposition):
    """Tiles for `instruction`, or for the first matrix instruction of the target that fits the spec; see the verb `mma_tile`."""

    verb: ClassVar[str] = "mma_tile"
    kinds: ClassVar[tuple[str, ...]] = ("MatMul", "Fused")
    instruction: Executable | None = None

    def __attrs_post_init__(self) -> None:
        if self.instruction is not None and not isinstance(self.instruction, Mma):
            raise ArgumentError(
                "mma_tile: not a matrix instruction", got=self.instruction, legal="HMMA_16816_F32 ..., or nothing", at=call_site()
            )

    @staticmethod
    def of(instruction: Any) -> MmaTile:
        """Return the step for the argument of the verb."""
        return MmaTile(instruction)

    def label(self) -> str:
        return f"mma_tile({'' if self.instruction is None else self.instruction.name})"

    def expand(self, spec: Spec, context: Context) -> Expansion:
        definition = fused(spec)
        if definition is not None and definition.product is not None:
            return implied(self, spec, context)
        spec = _checked(plain(spec))
        mma = self._chosen(spec, context.architecture, context.instructions)
        tile, split = _tile_and_split(mma)
        tiles = tile.expand(spec, context)
        (body,) = tiles.children
        return tiles.followed(body.name, split.expand(body.spec, context.after(tiles).enter(body)))

    def _chosen(self, spec: Spec, architecture: Architecture, instructions: tuple[Executable, ...]) -> Mma:
        if isinstance(self.instruction, Mma):
            if not _divides(self.instruction, spec):
                depth = self.instruction.shape[2]
                raise DecompositionError(
                    f"{self.label()}: the instruction's {depth} elements of k do not divide the {spec.size('k')} of the spec",
                    hint=f"split({depth}), or a multiple, first; or another instruction",
                )
            return self.instruction
        capability = architecture.capability
        known = [
            instruction
            for instruction in instructions
            if isinstance(instruction, Mma) and instruction.capability <= capability <= (instruction.last or capability)
        ]
        for mma in known:
            if _types_fit(mma, spec) and _divides(mma, spec):
                return mma
        raise DecompositionError(
            f"mma_tile: no matrix instruction of {architecture} for {spec} of {spec.A.dtype}, {spec.B.dtype} and {spec.C.dtype}",
            legal=[mma.name for mma in known] or "none",
            hint="other element types"
            + (" (float32 operands are multiplied as tf32: MatMul(..., dtype=tf32))" if spec.A.dtype == float32 else "")
            + ", another accumulator type in epilog(RF, float32, ...), or a larger split",
        )


def _tile_and_split(mma: Mma) -> tuple[Decomposition, ...]:
    """Return a tile for the rows and columns of an instruction, and a split for its k.

    A warp loops over the tiles. If the instruction is executed by groups smaller than a warp, each group computes one tile.
    """
    tile = AnySpec.tile(*mma.shape[:2])
    return written((tile.unroll() if mma.level == Warp else tile.to(mma.level)).split(mma.shape[2]).unroll())


def _types_fit(mma: Mma, spec: Spec) -> bool:
    return mma.factors == {"A": spec.A.dtype, "B": spec.B.dtype} and spec.C.dtype == mma.result


def _divides(mma: Mma, spec: Spec) -> bool:
    return all((constant(size) or 0) % part == 0 for size, part in zip(spec.sizes, mma.shape, strict=True))


def _checked(spec: Spec) -> Spec:
    if not spec.multiplies:
        if spec.contracts:
            got = " ".join(f"{dim}={spec.size(dim)}" for dim in spec.dims)
            raise DecompositionError(
                f"mma_tile: {spec.signature} has more than m, n and k", got=got, hint="tiles of 1 along its other dimensions first"
            )
        raise DecompositionError(f"mma_tile: {spec.title} is not a matrix multiplication", legal="MatMul")
    if not same_threads(spec.level, Warp):
        raise DecompositionError(
            f"mma_tile: a matrix instruction needs the level Warp, but this spec is at the level {spec.level}",
            hint="tile(...).to(Warp) first",
        )
    sizes = tuple(constant(size) for size in spec.C.shape)
    if sizes != (SIDE, SIDE):
        raise DecompositionError(
            f"mma_tile needs {SIDE}x{SIDE} elements of C, got {'x'.join(map(str, spec.C.shape))}",
            hint="tile(16, 16).unroll() first",
        )
    for dim in spec.C.dims:
        if len(dim.modes) != 1 or constant(dim.modes[0].stride) != 1:
            raise DecompositionError("mma_tile: the tile of C is not contiguous", hint="use tile(16, 16) without strides")
    return spec


@verb()
def mma_tile(instruction: Executable | None = None) -> MmaTile:
    """Decompose a contiguous 16x16 tile of a warp into tiles of the target's matrix instruction.

    Args: instruction: for example `HMMA_16816_F32`. By default the target decides: for float16, m8n8k4 by quad-pairs on Volta, m16n8k8 on
    Turing, m16n8k16 from Ampere on; other element types have other shapes.
    Legal at Warp for 16 x 16 elements of C, if the k of the instruction divides the k of the spec.
    rewrite: MatMul(16,16,K)(Warp) --> for n: for k: MatMul(16,8,16)(Warp)      (Fireiron, section 5.3)

    >>> from fireiron import *
    >>> mm = MatMul(16, 16, 16, dtype=float16, c_dtype=float32)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).tile(16, 16).to(Warp)
    >>> print(mm.mma_tile().result)
    MatMul(16,8,16)(GL,GL,GL)(Warp)
    """
    return MmaTile.of(instruction)


__all__ = ["MmaTile"]
