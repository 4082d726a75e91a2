"""Copies and inits that follow: each lane moves, or sets, exactly what an instruction of the main chain makes it hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.executable.by_lanes import shape_mismatch, statements_by_lanes, tile_of
from fireiron.ir import Exec, Stmt
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Item, Printer
from fireiron.language.tree import Context, Draft, Executable, Mismatch
from fireiron.spec import Spec
from fireiron.values.document import Assignment
from fireiron.values.machine import GL, RF, SH, Architecture


def followed(spec: Spec, context: Context) -> LaneMap | None:
    """The lane map of the main chain for the operand in registers."""
    for view in spec.operands.values():
        if view.memory == RF and view.tensor.name in context.held:
            found: LaneMap = context.held[view.tensor.name]
            return found
    return None


def _follow_mismatches(spec: Spec, context: Context) -> tuple[Mismatch, ...]:
    lane_map = followed(spec, context)
    if lane_map is None:
        return (Mismatch("registers", "an operand that an instruction of several lanes holds", "none"),)
    if lane_map.threads != spec.level.threads:
        return (Mismatch("level", f"a group of {lane_map.threads} threads", spec.level.name),)
    return shape_mismatch(spec, tile_of(spec, dict.fromkeys(spec.operands, lane_map)), multiples=True)


@attrs.frozen
class LaneMove(Executable):
    """`Move(r,c)` between registers and GL or SH by a group of lanes, of which each copies what it holds.

    The main chain decides who holds what: fragments that no `ldmatrix` can load, and accumulators on their way out. Types
    are converted; neighbours that a lane holds side by side are moved together where that is provably aligned.
    """

    handles_edges: ClassVar[bool] = True

    def performs(self) -> str:
        return "Move(r,c)(GL|SH -> RF)(Warp|QuadPair) or (RF -> GL|SH), whole tiles of an instruction, each lane what it holds"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.copies:
            return (Mismatch("spec", "Move", spec.title),)
        found = []
        if spec.level.threads in (1, None):
            found.append(Mismatch("level", "Warp or QuadPair", spec.level.name))
        if (spec.src.memory == RF) == (spec.dst.memory == RF) or {spec.src.memory, spec.dst.memory} - {GL, SH, RF}:
            found.append(Mismatch("memory", "RF on one side, GL or SH on the other", f"{spec.src.memory} -> {spec.dst.memory}"))
        return tuple(found)

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or _follow_mismatches(spec, context)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        return statements_by_lanes(self, spec, draft, dict.fromkeys(spec.operands, _required(spec, draft)))

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        return printer.moved(statement)


@attrs.frozen
class LaneInit(Executable):
    """`Init(r,c)(RF)` by a group of lanes, of which each sets what it holds."""

    def performs(self) -> str:
        return "Init(r,c)(RF)(Warp|QuadPair), whole tiles of an instruction, each lane what it holds"

    def mismatches(self, spec: Spec, architecture: Architecture) -> tuple[Mismatch, ...]:
        if not spec.fills:
            return (Mismatch("spec", "Init", spec.title),)
        found = []
        if spec.level.threads in (1, None):
            found.append(Mismatch("level", "Warp or QuadPair", spec.level.name))
        if spec.dst.memory != RF:
            found.append(Mismatch("dst memory", "RF", spec.dst.memory.name))
        return tuple(found)

    def fits(self, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
        return self.mismatches(spec, context.architecture) or _follow_mismatches(spec, context)

    def emit(self, spec: Spec, draft: Draft) -> tuple[Stmt, ...]:
        return statements_by_lanes(self, spec, draft, {"dst": _required(spec, draft)})

    def cuda(self, printer: Printer, statement: Exec) -> Sequence[Item]:
        access = statement.operands["dst"]
        value = printer.literal(statement.spec.value, statement.spec.dst.dtype)
        return [Assignment(printer.place(access, offset), value) for offset in access.elements()]


def _required(spec: Spec, context: Context) -> LaneMap:
    lane_map = followed(spec, context)
    if lane_map is None:
        raise DecompositionError(f"{spec}: no instruction of the main chain says which lane holds what", within=spec)
    return lane_map


LANE_MOVE = LaneMove("LaneMove")
LANE_INIT = LaneInit("LaneInit")
