"""shfl.sync.bfly: the lanes of a warp exchange what they hold, in pairs (Graphene, Table 1; PTX ISA, "shfl.sync")."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from fireiron.executable.by_lanes import level_mismatch, memory_mismatch, require_whole_warps, shape_mismatch, statements_by_lanes, tile_of
from fireiron.executable.ldmatrix import held_mismatch
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Context, Draft, Executable, Mismatch
from fireiron.spec import Spec
from fireiron.specs.formula import Element
from fireiron.values.document import Assignment, Call
from fireiron.values.machine import GL, RF, SH, Architecture, Warp, bfloat16, float16, float32, float64, int32

TYPES = (float32, float64, int32, float16, bfloat16)
"""Element types of which `__shfl_xor_sync` has a form."""

LANES = LaneMap.along((32, 1), ((32, 0, 1),), ((1, 1, 1),))
"""Lane t holds value v of thread t."""


@attrs.frozen
class Shuffle(Executable):
    """`Shfl<mask>(32,v)(RF -> GL|SH|RF)(Warp)`: a lane receives value v of the lane whose number differs in the bits of the mask."""

    def performs(self) -> str:
        return "Shfl(32,v)(RF,RF)(Warp), each lane from the one whose number differs in the mask"

    def may_perform(self, spec: Spec) -> bool:
        return spec.level == Warp and _flips(spec) is not None

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if _flips(spec) is None or len(spec.dims) != 2:
            return (Mismatch("spec", "Shfl", spec.title),)
        found = [*level_mismatch(spec, Warp), *shape_mismatch(spec, tile_of(spec, self._maps()), multiples=True)]
        if str(spec.size(spec.dims[0])) != "32":
            found.append(Mismatch("shape", "32 threads", str(spec.size(spec.dims[0]))))
        found += [*memory_mismatch(spec, "src", (RF,)), *memory_mismatch(spec, "dst", (GL, SH, RF))]
        if spec.src.dtype not in TYPES or spec.src.dtype != spec.dst.dtype:
            found.append(Mismatch("type", " or ".join(map(str, TYPES)), f"{spec.src.dtype} to {spec.dst.dtype}"))
        return tuple(found)

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        found = list(self.mismatches(spec, context.architecture))
        for name in () if found else ("src", "dst"):
            if spec.operands[name].tensor.name in context.held:
                found += held_mismatch(LANES, spec, name, context)
        return tuple(found)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        require_whole_warps(self.name, spec, draft)
        return statements_by_lanes(self, spec, draft, self._maps())

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        value = Call("__shfl_xor_sync", ("0xffffffff", printer.element(statement, "src"), str(_flips(statement.spec))))
        return [Assignment(printer.element(statement, "dst"), value)]

    def _maps(self) -> dict[str, LaneMap]:
        return {"src": LANES, "dst": LANES}


def _flips(spec: Spec) -> int | None:
    """The mask, where a spec is a copy from the thread whose number differs in it; None for any other."""
    only = spec.definition.only
    value = None if only is None or only.sign != "=" or only.reduction is not None else only.value
    if not isinstance(value, Element) or tuple(spec.uses) != ("src", "dst") or value.dims != spec.tile_dims:
        return None
    first, *others = (one.flip for one in value.index)
    return first if first and not any(others) else None


SHUFFLE = Shuffle("SHFL_BFLY")

INSTRUCTIONS = (SHUFFLE,)

__all__ = ["SHUFFLE", "Shuffle"]
