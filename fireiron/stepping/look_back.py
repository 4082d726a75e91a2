"""The tiles of a scan that blocks compute in one pass: which steps allow it, and the words by which blocks exchange totals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from fireiron.errors import DecompositionError
from fireiron.ir.effects.joint_tiles import Combination, JointTiles
from fireiron.language.substrategy import default_copy
from fireiron.language.tree import Child, Draft
from fireiron.spec import Spec
from fireiron.specs.allocate import Allocate
from fireiron.specs.fused import fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import Step, shown
from fireiron.values.expr import Expr, as_expr, constant
from fireiron.values.machine import GL, Block, DType, float32, int32
from fireiron.values.tensor import Dim, Fixed, Mode, RowMajor, Tensor, View


class Steps(Protocol):
    """The part of the expansion of a definition that this file uses."""

    spec: Spec
    draft: Draft

    @property
    def definition(self) -> FusedDefinition: ...

    def _place(self, dim: str) -> tuple[Dim, Expr]: ...


def words_of_tiles(step: Step, dims: Sequence[str], dtype: DType, steps: Steps) -> tuple[tuple[View, ...] | None, list[Child]]:
    """Return the words of this tile in the arrays of all totals of a scan, and the children that allocate them; None without `look_back`.

    `dims` are the dimensions of the scan, the scanned one last. The arrays have a dimension for each dimension of the definition along
    which blocks have different rows, and one for the tiles.
    """
    if steps.draft.whole.effects[JointTiles].combination is not Combination.LOOK_BACK:
        return None, []
    *rows, along = dims
    place = steps._place(along)[0]
    if not place.fixed:
        return None, []
    _require_legal(step, along, place, steps)
    places = {dim: steps._place(dim)[0] for dim in steps.definition.order if dim != along and _is_counted(dim, rows, steps)}
    numerals = [_row(places[dim], kept=dim in rows) for dim in places]
    numerals.append(Dim((Mode(1, 1),), None, (Fixed(place.fixed[0].size, 1, True, place.fixed[0].index),)))
    order = list(places)
    axes = (*(order.index(dim) for dim in rows), len(order))
    shape = (*(_extent(numeral) for numeral in numerals[:-1]), place.fixed[0].size)
    kind = dtype if dtype.bits >= 32 else float32 if dtype.kind == "float" else int32
    views, children = [], []
    for name in ("words", "factors") if step.formula.recurs else ("words",):
        tensor = Tensor(steps.draft.fresh(f"{step.name}_{name}"), shape, kind, GL, RowMajor, origin=steps.draft.origin)
        view = View(tensor, tuple(numerals), axes=axes)
        views.append(view)
        children.append(Child(tensor.name, Allocate.on(steps.spec.level, view), default_copy()[-1:]))
    return tuple(views), children


def _is_counted(dim: str, rows: Sequence[str], steps: Steps) -> bool:
    """Whether blocks differ in a dimension, or a tile has several rows along it."""
    try:
        place = steps._place(dim)[0]
    except StopIteration:
        return dim in rows
    return dim in rows or any(constant(digit.size) != 1 for digit in place.fixed)


def _row(place: Dim, kept: bool) -> Dim:
    """Return the rows of a tile without a bound, or their first one: rows past the end have words, too."""
    return Dim(place.modes if kept else (Mode(1, 1),), None, place.fixed)


def _extent(numeral: Dim) -> Expr:
    """Return the number of rows of all tiles, including those past the end."""
    total = as_expr(1)
    for size in (*(mode.size for mode in numeral.modes), *(digit.size for digit in numeral.fixed)):
        total = total * size
    return total


def _require_legal(step: Step, along: str, place: Dim, steps: Steps) -> None:
    """Refuse steps, tiles and levels with which blocks cannot scan tiles."""
    definition, spec = steps.definition, steps.spec
    if spec.level != Block:
        raise _refused(
            steps, step, f"a {spec.level} scans its own rows", "a scan by all threads of a block",
            "remove .to(...) after the tile of the block; a load distributes the elements over threads",
        )  # fmt: skip
    if definition.around or definition.loops:
        raise _refused(steps, step, "the scan is in a loop", "steps without a loop", "split(...) without look_back")
    sizes = [constant(mode.size) for mode in place.modes]
    tile = None if None in sizes else math.prod(size for size in sizes if size is not None)
    if len(place.fixed) != 1 or tile is None or constant(place.fixed[0].stride) != tile or not place.fixed[0].unit:
        raise _refused(
            steps, step, f"the tiles along {along} are not contiguous", "one tile of contiguous elements per block", f"tile({along}=4096)"
        )
    for other in definition.steps:
        if along in other.formula.over or along not in other.formula.target.dims:
            verb = "reduces" if along in other.formula.over else "does not have"
            raise _refused(
                steps, step, f"step {other.name} {verb} {along}, of which a block has one tile", f"steps with {along} in their result",
                f"compute {other.formula.output} in another kernel",
            )  # fmt: skip


def _refused(steps: Steps, step: Step, why: str, legal: str, hint: str) -> DecompositionError:
    return DecompositionError(
        f"look_back: step {step.name} scans tiles of other blocks, but {why}", got=shown(step.formula), legal=legal, within=steps.spec,
        at=steps.draft.origin, hint=hint,
    )  # fmt: skip


def dims_of_scans(spec: Spec) -> tuple[str, ...]:
    """Return the dimensions along which steps of a definition scan."""
    definition = fused(spec)
    return () if definition is None else tuple(dict.fromkeys(dim for step in definition.steps for dim in step.formula.along))


__all__ = ["dims_of_scans", "words_of_tiles"]
