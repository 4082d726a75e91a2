"""Match a Move that is written per thread, as in the paper, with `ldmatrix` (Graphene, Table 2, Figure 1d).

Other specs have the operands of the whole warp. The operands of the paper's atomic Move belong to one thread. The source is the row of
shared memory that the thread addresses, `[1,8].fp16.SH`. The result is the registers in which the thread receives two elements of each of
the four matrices, `[2,2].[1,2].fp16.RF`.
"""

from __future__ import annotations

import itertools
from typing import Any, Final, NoReturn

from fireiron.errors import LayoutError
from fireiron.executable.ldmatrix import LDMATRIX
from fireiron.graphene.written import Leaf
from fireiron.ir import Access
from fireiron.spec import Spec
from fireiron.specs.move import Move
from fireiron.values.expr import as_expr, constant
from fireiron.values.machine import SH, Level, Warp, bfloat16, float16
from fireiron.values.tensor import Dim, Mode, RowMajor, Tensor, Tiled, UnitMode, View, whole_view
from fireiron.values.units import same_threads

_ATOMIC: Final = "%11:[2,2].[1,2].fp16.RF <- Move<<<[32].thread>>>(%10:[1,8].fp16.SH), by ldmatrix"
_INSTRUCTION: Final = next(load for load in LDMATRIX if (load.matrices, load.along, load.pairs) == ((2, 2), 1, 1))
_ROW_ELEMENTS: Final = 8
"""Number of elements that a lane addresses: one row of a matrix."""


def move_of_lanes(level: Level, result: View | Tiled, source: View, where: str) -> Leaf:
    """Return the leaf for a Move of a warp that is written per thread.

    Raises: a `LayoutError` if the Move is not an `ldmatrix`.
    """
    if not same_threads(level, Warp):
        _refuse(f"the threads of {level} together fill private registers of each thread", "<<<[1].thread>>> for a Move of one thread")
    if not isinstance(result, Tiled):
        _refuse(f"%{result.tensor.name} is not tiled into the matrices of the instruction", "%11 = %2.tile([1, 2])")
    tiles, inside = (tuple(constant(Dim(modes).size) for modes in dims) for dims in _parts(result))
    if tiles != (2, 2) or inside != (1, 2):
        _refuse(f"each thread receives [{_listed(tiles)}].[{_listed(inside)}]", "[2,2].[1,2]")
    row = [axis for axis, dim in enumerate(source.dims) if constant(dim.size) != 1]
    if source.memory != SH or len(row) != 1 or constant(source.dims[row[0]].size) != _ROW_ELEMENTS or not _contiguous(source, row[0]):
        _refuse(f"each thread addresses [{_listed(tuple(source.shape))}] in {source.memory.name}", "8 adjacent elements in shared memory")
    if source.dtype not in (float16, bfloat16) or result.view.dtype != source.dtype:
        _refuse(f"it moves {source.dtype} to {result.view.dtype}", "fp16 or bf16, the same for source and result")
    spec: Spec = Move.on(Warp, whole_view(_matrix(source)), whole_view(_matrix(result.view)))
    return Leaf(spec, _INSTRUCTION, (("src", _addressed(source)), ("dst", _received(result))), where)


def _refuse(what: str, legal: str) -> NoReturn:
    raise LayoutError(f"no warp instruction performs this Move: {what}", legal=legal, hint=_ATOMIC)


def _listed(sizes: tuple[Any, ...]) -> str:
    return ",".join(map(str, sizes))


def _parts(tiled: Tiled) -> tuple[list[tuple[Mode, ...]], list[tuple[Mode, ...]]]:
    """Return the modes that select a tile, and those inside of a tile, by dimension."""
    return [part.outer for part in tiled.cuts], [part.inner for part in tiled.cuts]


def _contiguous(view: View, axis: int) -> bool:
    """Whether adjacent elements of a dimension are contiguous in memory."""
    step = view.tensor.storage().steps[view.axis(axis)]
    return step is not None and constant(step) == 1 and [constant(mode.stride) for mode in view.dims[axis].modes] == [1]


def _matrix(view: View) -> Tensor:
    """Return the 16x16 tensor of the instruction, which all lanes together hold or address."""
    return Tensor(view.tensor.name, (as_expr(16), as_expr(16)), view.dtype, view.memory, RowMajor)


def _no_unit_modes(view: View) -> tuple[tuple[UnitMode, ...], ...]:
    """Distribute no mode over units: each thread has its own registers, and its address contains the thread index."""
    return tuple(() for _ in view.numerals)


def _addressed(view: View) -> Access:
    """Return the access to the row that a lane addresses."""
    modes = tuple(dim.modes or (Mode(as_expr(1), as_expr(1)),) for dim in view.numerals)
    rank = range(len(view.numerals))
    axis = next(axis for axis in rank if constant(view.numerals[axis].size) == _ROW_ELEMENTS)
    points = tuple(tuple(number if dim == axis else 0 for dim in rank) for number in range(_ROW_ELEMENTS))
    bases = tuple(dim.base for dim in view.numerals)
    return Access(
        view.tensor.name, bases, modes, tuple(dim.bound for dim in view.numerals), False, view.copy, _no_unit_modes(view), points=points
    )


def _received(tiled: Tiled) -> Access:
    """Return the access to the registers that a lane receives: two elements of each matrix, matrices in row-major order."""
    view, (tiles, inside) = tiled.view, _parts(tiled)
    points = []
    for tile_index in itertools.product(range(2), range(2)):
        for element in itertools.product(range(1), range(2)):
            at = [Dim(outer).at(i) + Dim(inner).at(j) for outer, inner, i, j in zip(tiles, inside, tile_index, element, strict=True)]
            points.append(tuple(int(constant(one) or 0) for one in at))
    modes = tuple((*inner, *outer) or (Mode(as_expr(1), as_expr(1)),) for inner, outer in zip(inside, tiles, strict=True))
    bases = tuple(dim.base for dim in view.numerals)
    return Access(
        view.tensor.name,
        bases,
        modes,
        tuple(dim.bound for dim in view.numerals),
        True,
        view.copy,
        _no_unit_modes(view),
        points=tuple(points),
    )


__all__ = ["move_of_lanes"]
