"""Instructions of a warp as the paper writes them: by what one thread of it addresses and receives (Graphene, Table 2, Figure 1d).

A spec here has what a group holds together; the paper's atomic Move by `ldmatrix` has the row of shared memory that a thread addresses,
`[1,8].fp16.SH`, and the registers in which it receives two elements of each of the four matrices, `[2,2].[1,2].fp16.RF`.
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
_INSTRUCTION: Final = next(one for one in LDMATRIX if (one.matrices, one.along, one.pairs) == ((2, 2), 1, 1))
_LANE: Final = 8
"""Elements that a lane addresses: a row of one of the matrices."""


def move_of_lanes(level: Level, result: View | Tiled, source: View, where: str) -> Leaf:
    """The Move of a warp that each of its threads writes down for itself; a `LayoutError` where no instruction does it."""
    if not same_threads(level, Warp):
        _refuse(f"the threads of {level} together fill the registers of each", "<<<[1].thread>>> for what each does alone")
    if not isinstance(result, Tiled):
        _refuse(f"%{result.tensor.name} is not tiled by the matrices of which it has parts", "%11 = %2.tile([1, 2])")
    tiles, inside = (tuple(constant(Dim(modes).size) for modes in dims) for dims in _parts(result))
    if tiles != (2, 2) or inside != (1, 2):
        _refuse(f"each thread receives [{_listed(tiles)}].[{_listed(inside)}]", "[2,2].[1,2]")
    row = [axis for axis, dim in enumerate(source.dims) if constant(dim.size) != 1]
    if source.memory != SH or len(row) != 1 or constant(source.dims[row[0]].size) != _LANE or not _neighbors(source, row[0]):
        _refuse(f"each thread addresses [{_listed(tuple(source.shape))}] in {source.memory.name}", "8 neighbors in shared memory")
    if source.dtype not in (float16, bfloat16) or result.view.dtype != source.dtype:
        _refuse(f"{source.dtype} becomes {result.view.dtype}", "fp16 or bf16, the same on both sides")
    spec: Spec = Move.on(Warp, whole_view(_matrix(source)), whole_view(_matrix(result.view)))
    return Leaf(spec, _INSTRUCTION, (("src", _addressed(source)), ("dst", _received(result))), where)


def _refuse(what: str, legal: str) -> NoReturn:
    raise LayoutError(f"no instruction of a warp moves this: {what}", legal=legal, hint=_ATOMIC)


def _listed(sizes: tuple[Any, ...]) -> str:
    return ",".join(map(str, sizes))


def _parts(tiled: Tiled) -> tuple[list[tuple[Mode, ...]], list[tuple[Mode, ...]]]:
    """The modes of the tiles, and of what is in one, by dimension."""
    return [part.outer for part in tiled.cuts], [part.inner for part in tiled.cuts]


def _neighbors(view: View, axis: int) -> bool:
    """Whether the elements of a dimension lie side by side."""
    step = view.tensor.storage().steps[view.axis(axis)]
    return step is not None and constant(step) == 1 and [constant(mode.stride) for mode in view.dims[axis].modes] == [1]


def _matrix(view: View) -> Tensor:
    """What all lanes have of a tensor, as the instruction counts it."""
    return Tensor(view.tensor.name, (as_expr(16), as_expr(16)), view.dtype, view.memory, RowMajor)


def _undealt(view: View) -> tuple[tuple[UnitMode, ...], ...]:
    """No mode is dealt to units: each thread has all of its registers, and addresses shared memory by its own number."""
    return tuple(() for _ in view.numerals)


def _addressed(view: View) -> Access:
    """The row that a lane addresses."""
    modes = tuple(dim.modes or (Mode(as_expr(1), as_expr(1)),) for dim in view.numerals)
    rank = range(len(view.numerals))
    axis = next(axis for axis in rank if constant(view.numerals[axis].size) == _LANE)
    points = tuple(tuple(number if one == axis else 0 for one in rank) for number in range(_LANE))
    bases = tuple(dim.base for dim in view.numerals)
    return Access(
        view.tensor.name, bases, modes, tuple(dim.bound for dim in view.numerals), False, view.copy, _undealt(view), points=points
    )


def _received(tiled: Tiled) -> Access:
    """The registers that a lane receives: two of each matrix, the matrices by rows."""
    view, (tiles, inside) = tiled.view, _parts(tiled)
    points = []
    for place in itertools.product(range(2), range(2)):
        for element in itertools.product(range(1), range(2)):
            at = [Dim(outer).at(i) + Dim(inner).at(j) for outer, inner, i, j in zip(tiles, inside, place, element, strict=True)]
            points.append(tuple(int(constant(one) or 0) for one in at))
    modes = tuple((*inner, *outer) or (Mode(as_expr(1), as_expr(1)),) for inner, outer in zip(inside, tiles, strict=True))
    bases = tuple(dim.base for dim in view.numerals)
    return Access(
        view.tensor.name, bases, modes, tuple(dim.bound for dim in view.numerals), True, view.copy, _undealt(view), points=tuple(points)
    )


__all__ = ["move_of_lanes"]
