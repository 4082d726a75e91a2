"""Code shared by ldmatrix and stmatrix of a warpgroup: each warp moves 16 x 16 elements of a tile of 64 x 16 or 16 x 64.

Lanes own them as in wgmma's fragments of 16 bits (PTX ISA, "Register Fragments for wgmma"), and address rows of eight elements. With
`swapped` the 64 rows of the fragment are columns of the tile; `along` is the dimension in which shared memory is contiguous.
"""

from __future__ import annotations

import functools

from fireiron.ir import Hole, Stmt, filled
from fireiron.ir.lanes import LaneMap
from fireiron.ir.register_ownership import Digit, DigitKind
from fireiron.language.dividing import divide, loop_over
from fireiron.language.tree import Draft, Executable, Mismatch
from fireiron.performing.by_lanes import one_statement
from fireiron.performing.layout_propagation import views_of_thread, with_modes
from fireiron.spec import Spec
from fireiron.values.expr import Expr, constant
from fireiron.values.machine import Warp, Warpgroup
from fireiron.values.tensor import Storage, View
from fireiron.values.units import index_in

TOGETHER = 8
"""Elements of a matrix row that one lane addresses: 16 bytes."""


def tile_of_warpgroup(swapped: bool) -> tuple[int, int]:
    """Return the tile that a warpgroup moves at once."""
    return (16, 64) if swapped else (64, 16)


def statements_by_warps(executable: Executable, spec: Spec, draft: Draft, swapped: bool, maps: dict[str, LaneMap]) -> tuple[Stmt, ...]:
    """Return loops over tiles of a warpgroup, in which each warp moves its part; `maps` are the lane maps of a warp."""
    views, digits = divide(spec, dict(zip(spec.dims, tile_of_warpgroup(swapped), strict=True)), executable.name)
    views, program, _ = loop_over(spec, views, digits, True, draft, (Hole("tile"),))
    warp = index_in(Warpgroup, draft.thread) // 32
    part = _of_warp(spec.with_operands(**views), 1 if swapped else 0, warp)
    vectors = tuple(TOGETHER if view.memory.in_shared else 2 for view in part.operands.values())
    return filled(program, {"tile": (one_statement(executable, part, draft, maps, vectors=vectors),)})


def _of_warp(spec: Spec, dim: int, warp: Expr) -> Spec:
    """Return the part of a tile that a warp moves: 16 of the 64 elements along a dimension."""
    kept = [Digit(dim, 16, 1, DigitKind.VALUES) for dim in (0, 1)]
    views = views_of_thread(spec, with_modes(spec, kept), [Digit(dim, 4, 16, DigitKind.THREADS, warp)])
    return spec.at_level(Warp, **views)


@functools.cache
def owned_by_warp(swapped: bool) -> LaneMap:
    """Return the map from lane and register to the element of 16 x 16, in register order."""
    m, n = (1, 0) if swapped else (0, 1)
    return LaneMap.along((16, 16), ((4, n, 2), (8, m, 1)), ((2, n, 1), (2, m, 8), (2, n, 8)))


@functools.cache
def addressed_by_warp(swapped: bool, along: int) -> LaneMap:
    """Return the map from lane to the row of eight elements that it addresses."""
    if along == 0:
        return addressed_by_warp(not swapped, 1).transposed((1, 0))
    second, third = ((2, 1, 8), (2, 0, 8)) if swapped else ((2, 0, 8), (2, 1, 8))
    return LaneMap.along((16, 16), ((8, 0, 1), second, third), ((TOGETHER, 1, 1),))


def rows_mismatch(name: str, view: View, storage: Storage, along: int) -> tuple[Mismatch, ...]:
    """Return why rows of eight elements of an operand in shared memory are not contiguous, or not at multiples of 16 bytes."""
    if rows_together(view, storage, along):
        return ()
    expected = f"{TOGETHER} contiguous {'columns' if along else 'rows'}, at multiples of 16 bytes"
    return (Mismatch(f"{name} storage", expected, f"{storage.layout}{'' if storage.swizzle is None else f', {storage.swizzle}'}"),)


def rows_together(view: View, storage: Storage, along: int) -> bool:
    """Whether each group of eight elements along a dimension is contiguous, and starts at a multiple of 16 bytes."""
    swizzle = storage.swizzle
    if not storage.layout.static or (swizzle is not None and swizzle.bits and swizzle.base < 3):
        return False
    if any(len(dim.modes) != 1 or constant(dim.modes[0].stride) != 1 for dim in view.dims) or view.dims[along].base.factor % TOGETHER:
        return False
    sizes = [constant(size) or 0 for size in view.tensor.shape]
    line, other = ([storage.part(view.axis(dim), place) for place in range(sizes[view.axis(dim)])] for dim in (along, 1 - along))
    starts = [*line[::TOGETHER], *other]
    return all(start % TOGETHER == 0 for start in starts) and all(
        coordinate == line[number - number % TOGETHER] + number % TOGETHER for number, coordinate in enumerate(line)
    )
