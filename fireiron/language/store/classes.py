"""What is stored: the built-in classes by name, values that stand by name, and how values are made from their fields."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from fireiron.decomp.coalesced import Coalesced
from fireiron.decomp.done import Done
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.mma_tile import MmaTile
from fireiron.decomp.split import Split
from fireiron.decomp.split_k import SplitK
from fireiron.decomp.tile import Strided, Tile
from fireiron.errors import ArgumentError
from fireiron.executable.atomic_add import ATOMIC_ADD, ThreadAtomicAdd
from fireiron.executable.cp_async import CpAsync
from fireiron.executable.fma import Fma
from fireiron.executable.hfma2 import Hfma2
from fireiron.executable.ldmatrix import LdMatrix
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.mma import Mma
from fireiron.executable.movmatrix import MovMatrix
from fireiron.executable.pointwise import ThreadPointwise
from fireiron.executable.reduce import ThreadReduce
from fireiron.executable.stmatrix import StMatrix
from fireiron.executable.thread_move import INIT, MOVE, ThreadInit, ThreadMove
from fireiron.executable.wmma import FillFragment, MatrixSync, MmaSync
from fireiron.ir.lanes import LaneMap
from fireiron.language.strategy import EpilogStrategy, LoadStrategy, SplitKStrategy, SplitStrategy, Strategy, TileStrategy
from fireiron.language.tree import Decomposition, Executable
from fireiron.language.tunable import Derived, Tunable
from fireiron.refine.align import Align
from fireiron.refine.bands import Bands
from fireiron.refine.converted import Converted
from fireiron.refine.layout import DealOrder
from fireiron.refine.no_sync import NoSync
from fireiron.refine.pad import Pad
from fireiron.refine.permute import Permute
from fireiron.refine.pipeline import Pipeline
from fireiron.refine.resident import Resident
from fireiron.refine.reuse_buffer import ReuseBuffer
from fireiron.refine.storage_layout import StorageLayout
from fireiron.refine.swizzle import SwizzleStorage
from fireiron.refine.sync import Sync
from fireiron.refine.to import To
from fireiron.refine.unchecked import Unchecked
from fireiron.refine.unroll import Unroll
from fireiron.spec import Init, InitSpec, MatMul, MatMulSpec, Move, MoveSpec, Starter
from fireiron.specs.atomic_add import AtomicAdd, AtomicAddSpec
from fireiron.specs.pointwise import BinaryPointwise, BinaryPointwiseSpec
from fireiron.specs.reduction import Reduction, ReductionSpec
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import DTYPES, FRAGMENTS, LEVELS, MEMORIES, DType, Level, Memory
from fireiron.values.tensor import ColMajor, Dealt, Dim, MatrixLayout, Mode, RowMajor, Tensor, View

CLASSES: Final[Mapping[str, type[Any]]] = {
    **{
        one.__name__: one
        for one in (
            Tile, Split, SplitK, Load, Epilog, Done, Coalesced, Strided, Tunable, Derived,
            Align, NoSync, Pad, Permute, ReuseBuffer, StorageLayout, SwizzleStorage, Sync, To, Unchecked, Unroll,
            Bands, Converted, Pipeline, Resident, CpAsync,
            Fma, Hfma2, MicroKernel, ThreadMove, ThreadInit, ThreadPointwise, ThreadReduce, ThreadAtomicAdd,
            MmaTile, Mma, LaneMap, LdMatrix, StMatrix, MovMatrix, MmaSync, MatrixSync, FillFragment,
            MatMulSpec, MoveSpec, InitSpec, BinaryPointwiseSpec, ReductionSpec, AtomicAddSpec, View, Dim, Mode, Dealt, Tensor,
            MatrixLayout, Layout, Swizzle, DType, Memory, Level,
        )
    },
    "DealOrder": DealOrder,
}  # fmt: skip
"""The built-in classes by the name under which they are stored."""

FORMER: Final[Mapping[str, Executable]] = {"LaneMove": MOVE, "LaneInit": INIT, "LaneAtomicAdd": ATOMIC_ADD}
"""What stands in older texts under classes that are no more: copies and inits of lanes, which threads now do that follow."""

STARTERS: Final[Mapping[str, Starter]] = {repr(one): one for one in (MatMul, Move, Init, BinaryPointwise, Reduction, AtomicAdd)}
"""What a chain may start from, by its text."""

CHAINS: Final[Mapping[type[Decomposition], type[Strategy]]] = {
    Tile: TileStrategy, Split: SplitStrategy, SplitK: SplitKStrategy, Load: LoadStrategy, Epilog: EpilogStrategy,
}  # fmt: skip
"""The class of a chain by its last step: it has the methods that refine that step."""

NAMED: Final[Mapping[Any, Mapping[str, Any]]] = {
    DType: {one.name: one for one in DTYPES},
    Memory: {one.name: one for one in (*MEMORIES, *FRAGMENTS)},
    Level: {one.name: one for one in LEVELS},
    MatrixLayout: {repr(one): one for one in (ColMajor, RowMajor)},
}
"""Values that stand by name, by their class; others of the class are objects, as any value."""

MAKERS: Final[Mapping[type[Any], tuple[Mapping[str, Any], Callable[[Mapping[str, Any]], Any]]]] = {
    Strided: ({"dims": tuple[tuple[Any, Any], ...]}, lambda fields: Strided(*fields["dims"])),
    Tunable: ({"name": str, "values": tuple[int, ...]}, lambda fields: Tunable(fields["name"], *fields["values"])),
    Layout: ({"shape": Any, "stride": Any}, lambda fields: Layout(fields["shape"], fields["stride"])),
}
"""Classes that are not made from their annotated fields by name: the fields, and how to make one."""


def class_table(classes: Iterable[type[Any]]) -> dict[str, type[Any]]:
    """The built-in classes and a user's, by name; two of one name are refused, because a text could mean either."""
    table = dict(CLASSES)
    for cls in classes:
        if not isinstance(cls, type) or not attrs.has(cls):
            raise ArgumentError("classes: not an attrs class", got=cls, hint="decorate it with @attrs.frozen")
        if table.get(cls.__name__, cls) is not cls:
            raise ArgumentError(f"classes: another stored class is called {cls.__name__}", hint="rename yours")
        table[cls.__name__] = cls
    return table
