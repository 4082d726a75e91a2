"""Code shared by instructions of a warp: statements from lane maps, and loops over tiles if a spec has several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import Exec, Hole, Stmt, filled
from fireiron.ir.lanes import LaneMap
from fireiron.ir.text import Braces, Item, Registers
from fireiron.language.dividing import divide, loop_over
from fireiron.language.tree import Context, Draft, Executable, Mismatch, edge_refused
from fireiron.spec import Spec
from fireiron.values.expr import Expr, Var, constant
from fireiron.values.machine import Architecture, DType, Level, Memory
from fireiron.values.tensor import View
from fireiron.values.units import index_in, same_threads, thread_name


def lane_number(level: Level, draft: Draft) -> Expr:
    """Return the thread's index inside its unit of a level, as a named value."""
    return draft.let(thread_name(level, "lane"), index_in(level, draft.thread))


def tile_of(spec: Spec, maps: Mapping[str, LaneMap]) -> dict[str, int]:
    """Return the sizes of an instruction's tile by dimension of the spec."""
    coarse = spec.definition.coarse
    return {
        dim: size * count
        for name, dims in spec.uses.items()
        for dim, size, count in zip(dims, maps[name].tile, coarse.get(name, (1,) * len(dims)), strict=True)
    }


def require_whole_warps(name: str, spec: Spec, context: Context) -> None:
    """Refuse an instruction for a part of a warp if only some parts are active: PTX requires all lanes of the warp."""
    definitions = context.whole.definitions
    active = context.active
    while not active.variables().isdisjoint(definitions):
        active = active.substitute({var: definitions[var] for var in active.variables() & set(definitions)})
    if (spec.level.threads or 1) >= 32 or context.thread not in active.variables():
        return
    warp, lane = Var("#warp", 0, max(context.thread.high // 32, 0)), Var("#lane", 0, 31)
    if lane in active.substitute({context.thread: warp * 32 + lane}).variables():
        raise DecompositionError(
            f"{name} requires all lanes of a warp, but only those with {context.active} take part",
            within=spec,
            at=context.origin,
            hint=f"choose a number of tiles that uses all units of {spec.level} in a warp",
        )


def statements_by_lanes(
    executable: Executable, spec: Spec, draft: Draft, maps: Mapping[str, LaneMap], spread: Iterable[str] = (), **options: Any
) -> tuple[Stmt, ...]:
    """Return the statement of a spec: one tile of the instruction, or loops over tiles."""
    views, digits = divide(spec, tile_of(spec, maps), executable.name)
    if not digits:
        return (one_statement(executable, spec, draft, maps, spread, **options),)
    views, program, _ = loop_over(spec, views, digits, True, draft, (Hole("tile"),))
    inner = one_statement(executable, spec.with_operands(**views), draft, maps, spread, **options)
    return filled(program, {"tile": (inner,)})


def one_statement(
    executable: Executable,
    spec: Spec,
    draft: Draft,
    maps: Mapping[str, LaneMap],
    spread: Iterable[str] = (),
    vectors: tuple[int, ...] = (),
) -> Exec:
    """Return the statement of one tile; `vectors` are the numbers of elements of each operand that the instruction processes at once.

    Raises: DecompositionError if a tile may be partly out of bounds, and the instruction cannot mask elements.
    """
    lane = lane_number(spec.level, draft)
    accesses = []
    for name, view in spec.operands.items():
        if view.bounded and not executable.handles_edges:
            raise edge_refused(executable, spec, name)
        access = maps[name].access(view, lane, name in spec.outputs, draft.origin)
        accesses.append(attrs.evolve(access, spread=True) if name in spread else access)
    return Exec(
        executable,
        spec,
        tuple(accesses),
        spec.accumulate,
        draft.active,
        vectors=vectors,
        lane_maps=tuple(maps[name] for name in spec.operands),
        lane=lane,
        origin=draft.origin,
    )


def registers_together(view: View) -> int:
    """Return the number of elements of an operand in a 32-bit register: PTX packs 8-bit and 16-bit elements."""
    return max(4 // view.dtype.bytes, 1)


def shape_mismatch(spec: Spec, tile: Mapping[str, int], multiples: bool) -> tuple[Mismatch, ...]:
    """Return why a spec is not the instruction's tile, or not a multiple of it."""
    sizes = {dim: constant(spec.size(dim)) for dim in spec.dims}
    fits = all(size is not None and (size % tile[dim] == 0 if multiples else size == tile[dim]) for dim, size in sizes.items())
    if fits:
        return ()
    expected = "x".join(str(tile[dim]) for dim in spec.dims)
    return (Mismatch("shape", f"{'multiples of ' if multiples else ''}{expected}", "x".join(map(str, spec.sizes))),)


def product_mismatch(spec: Spec) -> tuple[Mismatch, ...]:
    """Return why a spec is not a product of two matrices."""
    if spec.multiplies:
        return ()
    if not spec.contracts:
        return (Mismatch("spec", "MatMul", spec.title),)
    sizes = " ".join(f"{dim}={spec.size(dim)}" for dim in spec.dims)
    return (Mismatch("shape", "m, n and k, and other dimensions of 1 element", f"{sizes} of {spec.signature}"),)


def level_mismatch(spec: Spec, level: Level) -> tuple[Mismatch, ...]:
    """Return why a spec's level is not the instruction's."""
    return () if same_threads(spec.level, level) else (Mismatch("level", level.name, spec.level.name),)


def type_mismatch(spec: Spec, operand: str, dtypes: tuple[DType, ...]) -> tuple[Mismatch, ...]:
    """Return why an operand's element type is not the instruction's."""
    got = getattr(spec, operand).dtype
    return () if got in dtypes else (Mismatch(f"{operand} type", " or ".join(map(str, dtypes)), str(got)),)


def memory_mismatch(spec: Spec, operand: str, memories: tuple[Memory, ...]) -> tuple[Mismatch, ...]:
    """Return why an operand is not in a memory that the instruction accepts."""
    got = getattr(spec, operand).memory
    if any(got.like(memory) for memory in memories):
        return ()
    return (Mismatch(f"{operand} memory", " or ".join(memory.name for memory in memories), got.name),)


def target_mismatch(architecture: Architecture, first: int) -> tuple[Mismatch, ...]:
    """Return why a target does not have the instruction."""
    if architecture.capability >= first:
        return ()
    return (Mismatch("target", f"sm_{first} or newer", architecture.name),)


# ---------------------------------------------------------------------------------------------- text


def registers(first: int, count: int) -> str:
    """Return operands of inline PTX in braces: `{%0, %1}`."""
    return "{" + ", ".join(f"%{number}" for number in range(first, first + count)) + "}"


def listed(constraint: str, name: str, count: int) -> str:
    """Return the elements of an array as operands of inline PTX."""
    return ", ".join(f'"{constraint}"({name}[{number}])' for number in range(count))


def with_registers(items: Sequence[Item], *operands: Registers) -> Sequence[Item]:
    """Return items with the items before them that gather operands from separate registers, and those after them that write back."""
    if not any(operand.before for operand in operands):
        return items
    before = [item for operand in operands for item in operand.before]
    after = [item for operand in operands for item in operand.after]
    return [Braces("", (*before, *items, *after))]
