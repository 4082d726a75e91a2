"""shfl.sync in its four modes: the lanes of a warp receive values of other lanes (Graphene, Table 1; PTX ISA, "shfl.sync").

>>> from fireiron import *
>>> leaf = Shfl(1, 32, 1)(RF, RF)(Warp)
>>> [instruction.name for instruction in INSTRUCTIONS if not instruction.mismatches(leaf, ARCHITECTURES[-1])]
['SHFL_BFLY']
"""

from __future__ import annotations

from collections.abc import Sequence

from fireiron.errors import ArgumentError, call_site
from fireiron.frozen import frozen
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Context, Draft, Executable, Mismatch
from fireiron.performing.by_lanes import level_mismatch, memory_mismatch, require_whole_warps, shape_mismatch, statements_by_lanes, tile_of
from fireiron.performing.ownership_mismatch import ownership_mismatch
from fireiron.spec import Spec
from fireiron.specs.formula import Element, Index
from fireiron.values.document import Assignment, Call
from fireiron.values.machine import GL, RF, SH, Architecture, Warp, bfloat16, float16, float32, float64, int32
from fireiron.values.units import same_threads

TYPES = (float32, float64, int32, float16, bfloat16)
"""Element types with an overload of `__shfl_sync`."""

MODES = {
    "bfly": ("^", "xor_", "whose number differs in the bits of the mask"),
    "idx": ("=", "", "with a given number in its group"),
    "up": ("-", "up_", "with a lower number, by delta, in its group"),
    "down": ("+", "down_", "with a higher number, by delta, in its group"),
}
"""The operator of a formula, the CUDA function, and a description, by the mode of the instruction."""

WARP = 32
"""Threads of a warp."""

LANES = LaneMap.along((32, 1), ((32, 0, 1),), ((1, 1, 1),))
"""Lane t owns value v of thread t."""


@frozen
class Shuffle(Executable):
    """`Shfl<mask>(32,v)(RF -> GL|SH|RF)(Warp)`: a lane receives value v of the lane that the mode specifies (`MODES`)."""

    mode: str = "bfly"

    def __attrs_post_init__(self) -> None:
        super().__attrs_post_init__()
        if self.mode not in MODES:
            raise ArgumentError("shfl: unknown mode", got=self.mode, legal=MODES, at=call_site())

    @property
    def kind(self) -> str:
        """Return the kind of spec with the same effect."""
        return "Shfl" if self.mode == "bfly" else f"Shfl{self.mode.capitalize()}"

    def performs(self) -> str:
        return f"{self.kind}(32,v)(RF,RF)(Warp), each lane receives from the lane {MODES[self.mode][2]}"

    def may_perform(self, spec: Spec) -> bool:
        return same_threads(spec.level, Warp) and self._source(spec) is not None

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        source = self._source(spec)
        if source is None or len(spec.dims) != 2:
            return (Mismatch("spec", self.kind, spec.title),)
        mismatches = [*level_mismatch(spec, Warp), *shape_mismatch(spec, tile_of(spec, self._maps()), multiples=True)]
        if str(spec.size(spec.dims[0])) != "32":
            mismatches.append(Mismatch("shape", "32 threads", str(spec.size(spec.dims[0]))))
        mismatches += [*memory_mismatch(spec, "src", (RF,)), *memory_mismatch(spec, "dst", (GL, SH, RF))]
        if spec.src.dtype not in TYPES or spec.src.dtype != spec.dst.dtype:
            mismatches.append(Mismatch("type", " or ".join(map(str, TYPES)), f"{spec.src.dtype} to {spec.dst.dtype}"))
        return tuple(mismatches)

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        mismatches = list(self.mismatches(spec, context.architecture))
        for name in () if mismatches else ("src", "dst"):
            if spec.operands[name].tensor.name in context.owners:
                mismatches += ownership_mismatch(LANES, spec, name, context)
        return tuple(mismatches)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        require_whole_warps(self.name, spec, draft)
        return statements_by_lanes(self, spec, draft, self._maps())

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        source = self._source(statement.spec)
        assert source is not None
        width = (str(source.width),) if source.width not in (0, WARP) else ()
        given = ("0xffffffff", printer.element(statement, "src"), str(source.number), *width)
        value = Call(f"__shfl_{MODES[self.mode][1]}sync", given)
        return [Assignment(printer.element(statement, "dst"), value)]

    def _source(self, spec: Spec) -> Index | None:
        """Return the source lane of each lane if a spec is a copy in this mode; None for other specs."""
        only = spec.definition.only
        value = None if only is None or only.sign != "=" or only.reduction is not None else only.value
        if not isinstance(value, Element) or not value.index or tuple(spec.uses) != ("src", "dst") or value.dims != spec.tile_dims:
            return None
        first, *others = value.index
        return first if first.sign == MODES[self.mode][0] and all(index.plain for index in others) else None

    def _maps(self) -> dict[str, LaneMap]:
        return {"src": LANES, "dst": LANES}


SHUFFLES = tuple(Shuffle(f"SHFL_{mode.upper()}", mode) for mode in MODES)
SHUFFLE, SHFL_IDX, SHFL_UP, SHFL_DOWN = SHUFFLES

INSTRUCTIONS = SHUFFLES

__all__ = ["SHFL_DOWN", "SHFL_IDX", "SHFL_UP", "SHUFFLE", "Shuffle"]
