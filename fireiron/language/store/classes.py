"""The stored classes: built-in classes by name, values that are stored by name, and conversions of stored fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from fireiron import decomp, executable, folders, refine, specs
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.set_memory import SetMemory
from fireiron.decomp.split import Split
from fireiron.decomp.split_k import SplitK
from fireiron.decomp.tile import Strided, Tile
from fireiron.decomp.to_gpus import ToGpus
from fireiron.errors import ArgumentError
from fireiron.executable.atomic_add import ATOMIC_ADD
from fireiron.executable.thread_move import INIT, MOVE
from fireiron.ir.lanes import LaneMap
from fireiron.language import former
from fireiron.language.store.expressions import expression
from fireiron.language.strategy import (
    EpilogStrategy,
    LoadStrategy,
    SetMemoryStrategy,
    SplitKStrategy,
    SplitStrategy,
    Strategy,
    TileStrategy,
    ToGpusStrategy,
)
from fireiron.language.tree import Decomposition, Executable
from fireiron.language.tunable import Derived, Tunable
from fireiron.spec import Kind, Parameter, Spec, Starter
from fireiron.specs.fused import FusedKind, definition, definition_fields
from fireiron.specs.fused_texts import NAMES
from fireiron.specs.steps import PARTS
from fireiron.values.affine import AffineIndex, DigitTerm
from fireiron.values.distribution import Portion
from fireiron.values.indirect import DimIndex, TableIndex
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import DTYPES, LEVELS, NAMED_MEMORIES, DType, Level, Memory
from fireiron.values.orders import Distributed
from fireiron.values.sharer import SHARERS, Sharer
from fireiron.values.tensor import ColMajor, Dim, Fixed, MatrixLayout, Mode, RowMajor, Tensor, Through, View

_PUBLIC: Final = folders.public((*decomp.MODULES, *refine.MODULES, *executable.MODULES))

_STARTERS: Final = tuple(one for one in folders.public(specs.modules()).values() if isinstance(one, Starter))

CLASSES: Final[Mapping[str, type[Any]]] = {
    **{one.__name__: one for one in _PUBLIC.values() if isinstance(one, type)},
    **{
        cls.__name__: cls
        for cls in (
            Tunable, Derived, LaneMap, View, Dim, Mode, Fixed, Tensor, Distributed, Portion, Through, DimIndex, TableIndex, AffineIndex,
            DigitTerm,
            MatrixLayout, Layout, Swizzle, DType, Memory, Level, Sharer, Kind, Parameter, Spec,
        )
    },
    "Fused": FusedKind,
    **{f"{one!r}Spec": Spec for one in _STARTERS},
}  # fmt: skip
"""The built-in classes by stored name."""

FORMER_EXECUTABLES: Final[Mapping[str, Executable]] = {"LaneMove": MOVE, "LaneInit": INIT, "LaneAtomicAdd": ATOMIC_ADD}
"""Replacements for classes in older texts. They were copies and inits of lanes, which are now distributed over threads."""

STARTERS: Final[Mapping[str, Starter]] = {repr(one): one for one in _STARTERS}
"""The kinds of specs from which a chain can start, by text."""

OMITTED: Final[Mapping[str, Mapping[str, Any]]] = {"BinaryPointwise": {"operation": "+"}}
"""Parameters that older files omit, by kind, with their default."""

CHAINS: Final[Mapping[type[Decomposition], type[Strategy]]] = {
    Tile: TileStrategy, Split: SplitStrategy, SplitK: SplitKStrategy, Load: LoadStrategy, Epilog: EpilogStrategy,
    SetMemory: SetMemoryStrategy, ToGpus: ToGpusStrategy,
}  # fmt: skip
"""The class of a chain by its last step: it has the methods that refine that step."""

NAMED: Final[Mapping[Any, Mapping[str, Any]]] = {
    DType: {one.name: one for one in DTYPES},
    Memory: {
        **(memories := {memory.name: memory for memory in NAMED_MEMORIES}),
        **{first: memories[name] for first, name in former.MEMORIES.items()},
    },
    Level: {one.name: one for one in LEVELS},
    Sharer: {one.name: one for one in SHARERS},
    MatrixLayout: {repr(one): one for one in (ColMajor, RowMajor)},
}
"""Values that are stored by name, by class; other values of these classes are stored as objects."""


def _tree(value: Any) -> Any:
    """Return a tree of sizes or strides with run-time values as texts."""
    if isinstance(value, tuple):
        return tuple(map(_tree, value))
    return expression(value) if isinstance(value, str) else value


WRITERS: Final[Mapping[type[Any], Callable[[Any], Mapping[str, Any]]]] = {FusedKind: definition_fields}
"""Classes whose stored fields differ from their attributes."""

_TEXTS: Final = tuple[tuple[str, str], ...]
MAKERS: Final[Mapping[type[Any], tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], Any]]]] = {
    Strided: ({"dims": tuple[tuple[Any, Any], ...]}, lambda fields: Strided(*fields["dims"])),
    Tunable: ({"name": str, "values": tuple[int, ...]}, lambda fields: Tunable(fields["name"], *fields["values"])),
    FusedKind: (
        {"name": str, "dims": str, "operands": _TEXTS, **dict.fromkeys(PARTS, _TEXTS), **dict.fromkeys(NAMES, str),
         "types": tuple[tuple[str, DType], ...], "mask": _TEXTS, "ranges": _TEXTS, "outside": _TEXTS},
        definition,
    ),
    Layout: ({"shape": Any, "stride": Any}, lambda fields: Layout(_tree(fields["shape"]), _tree(fields["stride"]))),
}  # fmt: skip
"""Classes whose values are not made from their annotated fields: the stored fields, and the function that makes a value."""


def _former_level(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert the threads of a level from two lists, sizes and strides."""
    if not {"sizes", "strides"} <= set(fields):
        return fields
    others = {name: value for name, value in fields.items() if name not in ("sizes", "strides")}
    return others | {"layout": {"type": "Layout", "shape": fields["sizes"], "stride": fields["strides"]}}


def _former_lane_map(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a lane map's layouts from lists of (size, dimension, stride)."""
    tile, lanes, values = (fields.get(name) for name in ("tile", "lanes", "values"))
    if not isinstance(lanes, list) or not isinstance(values, list):
        return fields
    parts = [tuple(tuple(part) if isinstance(part, list) else part for part in one) for one in (lanes, values)]
    lane_map = LaneMap.along(tuple(tile) if isinstance(tile, list) else tile, *parts)  # type: ignore[arg-type]
    return {**fields, "lanes": _plain(lane_map.lanes), "values": _plain(lane_map.values)}


def _plain(layout: Layout) -> Mapping[str, Any]:
    sizes, strides = zip(*layout.modes, strict=True) if layout.modes else ((), ())
    return {"type": "Layout", "shape": [*sizes], "stride": [*strides]}


def _former_dim(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a dimension whose first coordinate was stored in a separate field."""
    if not {"base", "dealt"} & set(fields):
        return fields
    base, dealt = fields.get("base", 0), fields.get("dealt", [])
    fixed = [_fixed(1, 1, False, base)] if base != 0 else []
    fixed += [{**one, "type": "Fixed", "index": 0} for one in dealt]
    return {**{name: value for name, value in fields.items() if name not in ("base", "dealt")}, "fixed": fixed}


def _former_view(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a view with separate fields for its dimensions and for coordinates in the last dimensions of its tensor."""
    if "dims" not in fields:
        return fields
    dims, at = fields["dims"], fields.get("at", [])
    rest = {name: value for name, value in fields.items() if name not in ("dims", "at")}
    if not at:
        return {**rest, "numerals": dims}
    more = [{"type": "Dim", "modes": [], "fixed": [_fixed(1, 1, False, one)]} for one in at]
    return {**rest, "numerals": [*dims, *more], "axes": [*range(len(dims))]}


def _fixed(size: Any, stride: Any, unit: bool, index: Any) -> Mapping[str, Any]:
    return {"type": "Fixed", "size": size, "stride": stride, "unit": unit, "index": index}


def _former_definition(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the fields that a definition omits if they are empty: promises about numbers and tables, masks, and values outside of arrays."""
    return {"positive": "", "mask": [], "ranges": [], "distinct": "", "outside": [], **fields}


FORMER: Final[Mapping[type[Any], Callable[[Mapping[str, Any]], Mapping[str, Any]]]] = {
    Level: _former_level,
    LaneMap: _former_lane_map,
    Dim: _former_dim,
    View: _former_view,
    FusedKind: _former_definition,
}
"""Conversions of classes that have other fields in older documents; they convert JSON."""


HIGHER_LAYER: Final = ("TaskProgram",)
"""Classes of higher layers. They convert themselves by the methods `stored` and `of_stored`."""


def class_of_higher_layer(name: str) -> type[Any] | None:
    """Return the class of a higher layer with this name; None if there is none."""
    if name not in HIGHER_LAYER:
        return None
    from fireiron.tasks.step import TaskProgram

    return TaskProgram


def class_table(classes: Iterable[type[Any]]) -> dict[str, type[Any]]:
    """Return the built-in and the user's classes by name; refuse two of the same name."""
    table = dict(CLASSES)
    for cls in classes:
        if not isinstance(cls, type) or not attrs.has(cls):
            raise ArgumentError("classes: this is not an attrs class", got=cls, hint="decorate it with @attrs.frozen")
        if table.get(cls.__name__, cls) is not cls:
            raise ArgumentError(f"classes: another stored class is called {cls.__name__}", hint="rename your class")
        table[cls.__name__] = cls
    return table
