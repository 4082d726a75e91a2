"""Fireiron: a scheduling language for GPU kernels, embedded in Python."""

from typing import TYPE_CHECKING

from fireiron._version import VERSION as __version__
from fireiron.decomp.coalesced import Coalesced
from fireiron.decomp.done import Done
from fireiron.decomp.epilog import Epilog
from fireiron.decomp.load import Load
from fireiron.decomp.mma_tile import MmaTile
from fireiron.decomp.split import Split
from fireiron.decomp.split_k import SplitK
from fireiron.decomp.tile import Strided, Tile
from fireiron.draw import draw
from fireiron.errors import (
    ArgumentError,
    CacheWarning,
    DecompositionError,
    FireironError,
    FireironWarning,
    IncompleteError,
    LaunchError,
    LayoutError,
    MatchError,
    ResourceError,
    SimulationError,
    StoreError,
    SynchronizationError,
    VerificationError,
    WrongResultError,
)
from fireiron.executable import INSTRUCTIONS
from fireiron.executable.atomic_add import ThreadAtomicAdd
from fireiron.executable.cp_async import CP_ASYNC, CpAsync
from fireiron.executable.fma import BFMA, DFMA, FFMA, HFMA, IMAD, Fma
from fireiron.executable.hfma2 import BFMA2, HFMA2, Hfma2
from fireiron.executable.ldmatrix import LDMATRIX, LdMatrix
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.executable.mma import Mma
from fireiron.executable.mma_f16 import (
    HMMA_1688_F16,
    HMMA_1688_F32,
    HMMA_1688_F32_BF16,
    HMMA_16816_F16,
    HMMA_16816_F32,
    HMMA_16816_F32_BF16,
)
from fireiron.executable.mma_f64 import DMMA_884, DMMA_1684, DMMA_1688, DMMA_16816
from fireiron.executable.mma_fp8 import (
    QMMA_16816_F16_E4M3,
    QMMA_16816_F16_E4M3_E5M2,
    QMMA_16816_F16_E5M2,
    QMMA_16816_F16_E5M2_E4M3,
    QMMA_16816_F32_E4M3,
    QMMA_16816_F32_E4M3_E5M2,
    QMMA_16816_F32_E5M2,
    QMMA_16816_F32_E5M2_E4M3,
    QMMA_16832_F16_E4M3,
    QMMA_16832_F16_E4M3_E5M2,
    QMMA_16832_F16_E5M2,
    QMMA_16832_F16_E5M2_E4M3,
    QMMA_16832_F32_E4M3,
    QMMA_16832_F32_E4M3_E5M2,
    QMMA_16832_F32_E5M2,
    QMMA_16832_F32_E5M2_E4M3,
)
from fireiron.executable.mma_int8 import IMMA_8816_S8, IMMA_16816_S8, IMMA_16832_S8
from fireiron.executable.mma_tf32 import HMMA_1684_F32_TF32, HMMA_1688_F32_TF32
from fireiron.executable.mma_volta import (
    HMMA_884_F16_NN,
    HMMA_884_F16_NT,
    HMMA_884_F16_TN,
    HMMA_884_F16_TT,
    HMMA_884_F32_NN,
    HMMA_884_F32_NT,
    HMMA_884_F32_TN,
    HMMA_884_F32_TT,
    HMMA_884X4_F16_NN,
    HMMA_884X4_F16_NT,
    HMMA_884X4_F16_TN,
    HMMA_884X4_F16_TT,
    HMMA_884X4_F32_NN,
    HMMA_884X4_F32_NT,
    HMMA_884X4_F32_TN,
    HMMA_884X4_F32_TT,
)
from fireiron.executable.movmatrix import MOVMATRIX_COL, MOVMATRIX_ROW, MovMatrix
from fireiron.executable.pointwise import ThreadPointwise
from fireiron.executable.reduce import ThreadReduce
from fireiron.executable.stmatrix import STMATRIX, StMatrix
from fireiron.executable.thread_move import ThreadInit, ThreadMove, vector
from fireiron.executable.wmma import FILL_FRAGMENT, LOAD_MATRIX_SYNC, MMA_SYNC, STORE_MATRIX_SYNC, FillFragment, MatrixSync, MmaSync
from fireiron.export import Exported, export
from fireiron.ir.lanes import LaneMap
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Child, Context, Decomposition, Executable, Expansion, Mismatch, Refinement
from fireiron.language.tunable import Derived, Tunable
from fireiron.matmul import matmul
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
from fireiron.spec import Kind, Parameter, Spec
from fireiron.specs.allocate import Allocate
from fireiron.specs.atomic_add import AtomicAdd
from fireiron.specs.init import Init
from fireiron.specs.matmul import MatMul
from fireiron.specs.move import Move
from fireiron.specs.operand import DST, SRC, A, B, C, Operand
from fireiron.specs.pointwise import BinaryPointwise, Pointwise, UnaryPointwise
from fireiron.specs.reduction import Reduction
from fireiron.specs.shfl import Shfl
from fireiron.tune import tune
from fireiron.values.expr import Const, Expr, Var, all_of, any_of, ceildiv, equal, minimum, positive, sym
from fireiron.values.layout import Layout, Swizzle
from fireiron.values.machine import (
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
    float8_e4m3,
    float8_e5m2,
    float16,
    float32,
    float64,
    int8,
    int32,
    tf32,
)
from fireiron.values.tensor import ColMajor, Cut, Dealt, Dim, Fixed, MatrixLayout, Mode, RowMajor, Tensor, View

if TYPE_CHECKING:
    from fireiron.cost import Prediction, predict
    from fireiron.cost.gpus import Gpu
    from fireiron.measure.sweeps import sweep
    from fireiron.tune.records import Choice, OutdatedRecordWarning, Record, Records, best

_LATER = {
    "Choice": "tune.records",
    "Gpu": "cost.gpus",
    "OutdatedRecordWarning": "tune.records",
    "Prediction": "cost",
    "Record": "tune.records",
    "Records": "tune.records",
    "best": "tune.records",
    "predict": "cost",
    "sweep": "measure.sweeps",
}
"""Names that no strategy needs, and the modules they are loaded from when they are used."""


if not TYPE_CHECKING:  # where types are checked, a name that does not exist must be seen

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module 'fireiron' has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(f"fireiron.{_LATER[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Gpu",
    "Prediction",
    "predict",
    "Resident",
    "Pipeline",
    "CP_ASYNC",
    "CpAsync",
    "Converted",
    "CacheWarning",
    "Coalesced",
    "Bands",
    "A",
    "ARCHITECTURES",
    "Align",
    "Architecture",
    "ArgumentError",
    "AtomicAdd",
    "B",
    "BFMA",
    "BFMA2",
    "Allocate",
    "BinaryPointwise",
    "Parameter",
    "Pointwise",
    "Shfl",
    "UnaryPointwise",
    "Block",
    "C",
    "Child",
    "Choice",
    "ColMajor",
    "Const",
    "Context",
    "Cut",
    "DFMA",
    "DMMA_16816",
    "DMMA_1684",
    "DMMA_1688",
    "DMMA_884",
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
    "Exported",
    "FFMA",
    "FILL_FRAGMENT",
    "FR",
    "FillFragment",
    "FireironError",
    "Fixed",
    "FireironWarning",
    "Fma",
    "GL",
    "draw",
    "HFMA",
    "HFMA2",
    "HMMA_16816_F16",
    "HMMA_16816_F32",
    "HMMA_16816_F32_BF16",
    "HMMA_1684_F32_TF32",
    "HMMA_1688_F16",
    "HMMA_1688_F32",
    "HMMA_1688_F32_BF16",
    "HMMA_1688_F32_TF32",
    "HMMA_884X4_F16_NN",
    "HMMA_884X4_F16_NT",
    "HMMA_884X4_F16_TN",
    "HMMA_884X4_F16_TT",
    "HMMA_884X4_F32_NN",
    "HMMA_884X4_F32_NT",
    "HMMA_884X4_F32_TN",
    "HMMA_884X4_F32_TT",
    "HMMA_884_F16_NN",
    "HMMA_884_F16_NT",
    "HMMA_884_F16_TN",
    "HMMA_884_F16_TT",
    "HMMA_884_F32_NN",
    "HMMA_884_F32_NT",
    "HMMA_884_F32_TN",
    "HMMA_884_F32_TT",
    "Hfma2",
    "IMAD",
    "IMMA_16816_S8",
    "IMMA_16832_S8",
    "IMMA_8816_S8",
    "INSTRUCTIONS",
    "IncompleteError",
    "Init",
    "Kernel",
    "Kind",
    "LDMATRIX",
    "LOAD_MATRIX_SYNC",
    "Lane",
    "LaneMap",
    "LaunchError",
    "Layout",
    "LayoutError",
    "LdMatrix",
    "Level",
    "Load",
    "MOVMATRIX_COL",
    "MOVMATRIX_ROW",
    "MMA_SYNC",
    "MatMul",
    "MatchError",
    "MatrixSync",
    "MatrixLayout",
    "Memory",
    "MicroKernel",
    "Mismatch",
    "Mma",
    "MmaTile",
    "MmaSync",
    "Mode",
    "MovMatrix",
    "Move",
    "NoSync",
    "Operand",
    "OutdatedRecordWarning",
    "Pad",
    "Permute",
    "QMMA_16816_F16_E4M3",
    "QMMA_16816_F16_E4M3_E5M2",
    "QMMA_16816_F16_E5M2",
    "QMMA_16816_F16_E5M2_E4M3",
    "QMMA_16816_F32_E4M3",
    "QMMA_16816_F32_E4M3_E5M2",
    "QMMA_16816_F32_E5M2",
    "QMMA_16816_F32_E5M2_E4M3",
    "QMMA_16832_F16_E4M3",
    "QMMA_16832_F16_E4M3_E5M2",
    "QMMA_16832_F16_E5M2",
    "QMMA_16832_F16_E5M2_E4M3",
    "QMMA_16832_F32_E4M3",
    "QMMA_16832_F32_E4M3_E5M2",
    "QMMA_16832_F32_E5M2",
    "QMMA_16832_F32_E5M2_E4M3",
    "QuadPair",
    "RF",
    "Record",
    "Records",
    "Reduction",
    "Refinement",
    "ResourceError",
    "ReuseBuffer",
    "RowMajor",
    "SH",
    "SRC",
    "STMATRIX",
    "STORE_MATRIX_SYNC",
    "SimulationError",
    "Spec",
    "Split",
    "SplitK",
    "StMatrix",
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
    "ThreadAtomicAdd",
    "ThreadInit",
    "ThreadMove",
    "ThreadPointwise",
    "ThreadReduce",
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
    "WrongResultError",
    "all_of",
    "any_of",
    "best",
    "bfloat16",
    "ceildiv",
    "equal",
    "export",
    "float16",
    "float32",
    "float64",
    "float8_e4m3",
    "float8_e5m2",
    "int32",
    "int8",
    "matmul",
    "minimum",
    "positive",
    "sweep",
    "sym",
    "tf32",
    "tune",
    "vector",
]
