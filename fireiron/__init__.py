"""Fireiron: a scheduling language for GPU kernels, embedded in Python."""

from fireiron._version import VERSION as __version__
from fireiron.decomp.done import Done
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.split import Split
from fireiron.decomp.tile import Strided, Tile
from fireiron.errors import (
    ArgumentError,
    DecompositionError,
    FireironError,
    IncompleteError,
    LaunchError,
    LayoutError,
    MatchError,
    ResourceError,
    SimulationError,
    StoreError,
    SynchronizationError,
    VerificationError,
)
from fireiron.executable import INSTRUCTIONS
from fireiron.executable.fma import BFMA, DFMA, FFMA, HFMA, IMAD, Fma
from fireiron.executable.hfma2 import BFMA2, HFMA2, Hfma2
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.pointwise import ThreadPointwise
from fireiron.executable.thread_move import ThreadInit, ThreadMove, vector
from fireiron.expr import Const, Expr, Var, all_of, any_of, ceildiv, equal, minimum, positive, sym
from fireiron.layout import Layout, Swizzle
from fireiron.machine import (
    ARCHITECTURES,
    FR,
    GL,
    RF,
    SH,
    Architecture,
    Block,
    DType,
    Kernel,
    Lane,
    Level,
    Memory,
    QuadPair,
    Thread,
    Warp,
    Warpgroup,
    bfloat16,
    float16,
    float32,
    float64,
    int8,
    int32,
)
from fireiron.operand import DST, SRC, A, B, C, Operand
from fireiron.pointwise import BinaryPointwise, BinaryPointwiseSpec
from fireiron.refine.align import Align
from fireiron.refine.layout import Layout as DealOrder
from fireiron.refine.no_sync import NoSync
from fireiron.refine.pad import Pad
from fireiron.refine.permute import Permute
from fireiron.refine.reuse_buffer import ReuseBuffer
from fireiron.refine.storage_layout import StorageLayout
from fireiron.refine.swizzle import SwizzleStorage
from fireiron.refine.sync import Sync
from fireiron.refine.to import To
from fireiron.refine.unchecked import Unchecked
from fireiron.refine.unroll import Unroll
from fireiron.spec import Init, InitSpec, MatMul, MatMulSpec, Move, MoveSpec, Spec
from fireiron.strategy import Strategy
from fireiron.tensor import ColMajor, Cut, Dealt, Dim, MatrixLayout, Mode, RowMajor, Tensor, View
from fireiron.tree import Child, Context, Decomposition, Executable, Expansion, Mismatch, Refinement
from fireiron.tunable import Derived, Tunable

__all__ = [
    "A",
    "ARCHITECTURES",
    "Align",
    "Architecture",
    "ArgumentError",
    "B",
    "BFMA",
    "BFMA2",
    "BinaryPointwise",
    "BinaryPointwiseSpec",
    "Block",
    "C",
    "Child",
    "ColMajor",
    "Const",
    "Context",
    "Cut",
    "DFMA",
    "DST",
    "DType",
    "DealOrder",
    "Dealt",
    "Decomposition",
    "DecompositionError",
    "Derived",
    "Dim",
    "Done",
    "Epilog",
    "Executable",
    "Expansion",
    "Expr",
    "FFMA",
    "FR",
    "FireironError",
    "Fma",
    "GL",
    "HFMA",
    "HFMA2",
    "Hfma2",
    "IMAD",
    "INSTRUCTIONS",
    "IncompleteError",
    "Init",
    "InitSpec",
    "Kernel",
    "Lane",
    "LaunchError",
    "Layout",
    "LayoutError",
    "Level",
    "Load",
    "MatMul",
    "MatMulSpec",
    "MatchError",
    "MatrixLayout",
    "Memory",
    "MicroKernel",
    "Mismatch",
    "Mode",
    "Move",
    "MoveSpec",
    "NoSync",
    "Operand",
    "Pad",
    "Permute",
    "QuadPair",
    "RF",
    "Refinement",
    "ResourceError",
    "ReuseBuffer",
    "RowMajor",
    "SH",
    "SRC",
    "SimulationError",
    "Spec",
    "Split",
    "StorageLayout",
    "StoreError",
    "Strategy",
    "Strided",
    "Swizzle",
    "SwizzleStorage",
    "Sync",
    "SynchronizationError",
    "Tensor",
    "Thread",
    "ThreadInit",
    "ThreadMove",
    "ThreadPointwise",
    "Tile",
    "To",
    "Tunable",
    "Unchecked",
    "Unroll",
    "Var",
    "VerificationError",
    "View",
    "Warp",
    "Warpgroup",
    "all_of",
    "any_of",
    "bfloat16",
    "ceildiv",
    "equal",
    "float16",
    "float32",
    "float64",
    "int32",
    "int8",
    "minimum",
    "positive",
    "sym",
    "vector",
]
