"""Fireiron: a scheduling language for GPU kernels, embedded in Python. Written by `make names`."""

# ruff: noqa: I001
__version__: str
from fireiron import optim as optim
from fireiron.attention import attention as attention
from fireiron.conv2d import conv2d as conv2d
from fireiron.cost import Prediction as Prediction
from fireiron.cost import predict as predict
from fireiron.cost.gpus import Gpu as Gpu
from fireiron.decomp.coalesced_copy import CoalescedCopy as CoalescedCopy
from fireiron.decomp.done import Done as Done
from fireiron.decomp.epilog import Epilog as Epilog
from fireiron.decomp.load import Load as Load
from fireiron.decomp.mma_tile import MmaTile as MmaTile
from fireiron.decomp.print_values import PrintValues as PrintValues
from fireiron.decomp.repack import Repack as Repack
from fireiron.decomp.rfactor import Rfactor as Rfactor
from fireiron.decomp.set_memory import SetMemory as SetMemory
from fireiron.decomp.skip_steps import SkipSteps as SkipSteps
from fireiron.decomp.split import Split as Split
from fireiron.decomp.split_k import SplitK as SplitK
from fireiron.decomp.step import StepOf as StepOf
from fireiron.decomp.tile import Strided as Strided
from fireiron.decomp.tile import Tile as Tile
from fireiron.decomp.to_gpus import ToGpus as ToGpus
from fireiron.derive import Derivation as Derivation
from fireiron.derive import schedule as schedule
from fireiron.draw import draw as draw
from fireiron.draw import explore as explore
from fireiron.elementwise import elementwise as elementwise
from fireiron.errors import ArgumentError as ArgumentError
from fireiron.errors import CacheWarning as CacheWarning
from fireiron.errors import DecompositionError as DecompositionError
from fireiron.errors import FireironError as FireironError
from fireiron.errors import FireironWarning as FireironWarning
from fireiron.errors import IncompleteError as IncompleteError
from fireiron.errors import LaunchError as LaunchError
from fireiron.errors import LayoutError as LayoutError
from fireiron.errors import MatchError as MatchError
from fireiron.errors import ResourceError as ResourceError
from fireiron.errors import SimulationError as SimulationError
from fireiron.errors import StoreError as StoreError
from fireiron.errors import SynchronizationError as SynchronizationError
from fireiron.errors import VerificationError as VerificationError
from fireiron.errors import WrongResultError as WrongResultError
from fireiron.executable import INSTRUCTIONS as INSTRUCTIONS
from fireiron.executable import instruction as instruction
from fireiron.executable.atomic_add import ThreadAtomicAdd as ThreadAtomicAdd
from fireiron.executable.atomic_extreme import ThreadAtomicExtreme as ThreadAtomicExtreme
from fireiron.executable.bulk import BULK_ADD as BULK_ADD
from fireiron.executable.bulk import BulkAdd as BulkAdd
from fireiron.executable.cp_async import CP_ASYNC as CP_ASYNC
from fireiron.executable.cp_async import CpAsync as CpAsync
from fireiron.executable.fma import BFMA as BFMA
from fireiron.executable.fma import DFMA as DFMA
from fireiron.executable.fma import FFMA as FFMA
from fireiron.executable.fma import Fma as Fma
from fireiron.executable.fma import HFMA as HFMA
from fireiron.executable.fma import IMAD as IMAD
from fireiron.executable.hfma2 import BFMA2 as BFMA2
from fireiron.executable.hfma2 import HFMA2 as HFMA2
from fireiron.executable.hfma2 import Hfma2 as Hfma2
from fireiron.executable.ldmatrix import LDMATRIX as LDMATRIX
from fireiron.executable.ldmatrix import LdMatrix as LdMatrix
from fireiron.executable.ldmatrix_warpgroup import LDMATRIX_WARPGROUP as LDMATRIX_WARPGROUP
from fireiron.executable.ldmatrix_warpgroup import LDMATRIX_WARPGROUP_COL as LDMATRIX_WARPGROUP_COL
from fireiron.executable.ldmatrix_warpgroup import LDMATRIX_WARPGROUP_T as LDMATRIX_WARPGROUP_T
from fireiron.executable.ldmatrix_warpgroup import LDMATRIX_WARPGROUP_T_COL as LDMATRIX_WARPGROUP_T_COL
from fireiron.executable.ldmatrix_warpgroup import LdMatrixWarpgroup as LdMatrixWarpgroup
from fireiron.executable.look_back import LOOK_BACK as LOOK_BACK
from fireiron.executable.look_back import LookBackInstruction as LookBackInstruction
from fireiron.executable.micro_kernel import MicroKernel as MicroKernel
from fireiron.executable.mma_f16 import HMMA_163216_F32_BF16_N4 as HMMA_163216_F32_BF16_N4
from fireiron.executable.mma_f16 import HMMA_163216_F32_N4 as HMMA_163216_F32_N4
from fireiron.executable.mma_f16 import HMMA_16816_F16 as HMMA_16816_F16
from fireiron.executable.mma_f16 import HMMA_16816_F32 as HMMA_16816_F32
from fireiron.executable.mma_f16 import HMMA_16816_F32_BF16 as HMMA_16816_F32_BF16
from fireiron.executable.mma_f16 import HMMA_16816_F32_BF16_K4 as HMMA_16816_F32_BF16_K4
from fireiron.executable.mma_f16 import HMMA_16816_F32_K4 as HMMA_16816_F32_K4
from fireiron.executable.mma_f16 import HMMA_1688_F16 as HMMA_1688_F16
from fireiron.executable.mma_f16 import HMMA_1688_F32 as HMMA_1688_F32
from fireiron.executable.mma_f16 import HMMA_1688_F32_BF16 as HMMA_1688_F32_BF16
from fireiron.executable.mma_f16 import InterleavedMma as InterleavedMma
from fireiron.executable.mma_f64 import DMMA_16816 as DMMA_16816
from fireiron.executable.mma_f64 import DMMA_1684 as DMMA_1684
from fireiron.executable.mma_f64 import DMMA_1688 as DMMA_1688
from fireiron.executable.mma_f64 import DMMA_884 as DMMA_884
from fireiron.executable.mma_fp8 import QMMA_16816_F16_E4M3 as QMMA_16816_F16_E4M3
from fireiron.executable.mma_fp8 import QMMA_16816_F16_E4M3_E5M2 as QMMA_16816_F16_E4M3_E5M2
from fireiron.executable.mma_fp8 import QMMA_16816_F16_E5M2 as QMMA_16816_F16_E5M2
from fireiron.executable.mma_fp8 import QMMA_16816_F16_E5M2_E4M3 as QMMA_16816_F16_E5M2_E4M3
from fireiron.executable.mma_fp8 import QMMA_16816_F32_E4M3 as QMMA_16816_F32_E4M3
from fireiron.executable.mma_fp8 import QMMA_16816_F32_E4M3_E5M2 as QMMA_16816_F32_E4M3_E5M2
from fireiron.executable.mma_fp8 import QMMA_16816_F32_E5M2 as QMMA_16816_F32_E5M2
from fireiron.executable.mma_fp8 import QMMA_16816_F32_E5M2_E4M3 as QMMA_16816_F32_E5M2_E4M3
from fireiron.executable.mma_fp8 import QMMA_16832_F16_E4M3 as QMMA_16832_F16_E4M3
from fireiron.executable.mma_fp8 import QMMA_16832_F16_E4M3_E5M2 as QMMA_16832_F16_E4M3_E5M2
from fireiron.executable.mma_fp8 import QMMA_16832_F16_E5M2 as QMMA_16832_F16_E5M2
from fireiron.executable.mma_fp8 import QMMA_16832_F16_E5M2_E4M3 as QMMA_16832_F16_E5M2_E4M3
from fireiron.executable.mma_fp8 import QMMA_16832_F32_E4M3 as QMMA_16832_F32_E4M3
from fireiron.executable.mma_fp8 import QMMA_16832_F32_E4M3_E5M2 as QMMA_16832_F32_E4M3_E5M2
from fireiron.executable.mma_fp8 import QMMA_16832_F32_E5M2 as QMMA_16832_F32_E5M2
from fireiron.executable.mma_fp8 import QMMA_16832_F32_E5M2_E4M3 as QMMA_16832_F32_E5M2_E4M3
from fireiron.executable.mma_int8 import IMMA_16816_S8 as IMMA_16816_S8
from fireiron.executable.mma_int8 import IMMA_16832_S8 as IMMA_16832_S8
from fireiron.executable.mma_int8 import IMMA_8816_S8 as IMMA_8816_S8
from fireiron.executable.mma_sp import HMMA_SP_16832_F16 as HMMA_SP_16832_F16
from fireiron.executable.mma_sp import HMMA_SP_16832_F32 as HMMA_SP_16832_F32
from fireiron.executable.mma_sp import HMMA_SP_16832_F32_BF16 as HMMA_SP_16832_F32_BF16
from fireiron.executable.mma_sp import IMMA_SP_16864_S8 as IMMA_SP_16864_S8
from fireiron.executable.mma_sp import QMMA_SP_16864_F32_E4M3 as QMMA_SP_16864_F32_E4M3
from fireiron.executable.mma_sp import QMMA_SP_16864_F32_E4M3_E5M2 as QMMA_SP_16864_F32_E4M3_E5M2
from fireiron.executable.mma_sp import QMMA_SP_16864_F32_E5M2 as QMMA_SP_16864_F32_E5M2
from fireiron.executable.mma_sp import QMMA_SP_16864_F32_E5M2_E4M3 as QMMA_SP_16864_F32_E5M2_E4M3
from fireiron.executable.mma_sp import SparseMma as SparseMma
from fireiron.executable.mma_tf32 import HMMA_1684_F32_TF32 as HMMA_1684_F32_TF32
from fireiron.executable.mma_tf32 import HMMA_1688_F32_TF32 as HMMA_1688_F32_TF32
from fireiron.executable.mma_volta import HMMA_884X4_F16_NN as HMMA_884X4_F16_NN
from fireiron.executable.mma_volta import HMMA_884X4_F16_NT as HMMA_884X4_F16_NT
from fireiron.executable.mma_volta import HMMA_884X4_F16_TN as HMMA_884X4_F16_TN
from fireiron.executable.mma_volta import HMMA_884X4_F16_TT as HMMA_884X4_F16_TT
from fireiron.executable.mma_volta import HMMA_884X4_F32_NN as HMMA_884X4_F32_NN
from fireiron.executable.mma_volta import HMMA_884X4_F32_NT as HMMA_884X4_F32_NT
from fireiron.executable.mma_volta import HMMA_884X4_F32_TN as HMMA_884X4_F32_TN
from fireiron.executable.mma_volta import HMMA_884X4_F32_TT as HMMA_884X4_F32_TT
from fireiron.executable.mma_volta import HMMA_884_F16_NN as HMMA_884_F16_NN
from fireiron.executable.mma_volta import HMMA_884_F16_NT as HMMA_884_F16_NT
from fireiron.executable.mma_volta import HMMA_884_F16_TN as HMMA_884_F16_TN
from fireiron.executable.mma_volta import HMMA_884_F16_TT as HMMA_884_F16_TT
from fireiron.executable.mma_volta import HMMA_884_F32_NN as HMMA_884_F32_NN
from fireiron.executable.mma_volta import HMMA_884_F32_NT as HMMA_884_F32_NT
from fireiron.executable.mma_volta import HMMA_884_F32_TN as HMMA_884_F32_TN
from fireiron.executable.mma_volta import HMMA_884_F32_TT as HMMA_884_F32_TT
from fireiron.executable.movmatrix import MOVMATRIX_COL as MOVMATRIX_COL
from fireiron.executable.movmatrix import MOVMATRIX_ROW as MOVMATRIX_ROW
from fireiron.executable.movmatrix import MovMatrix as MovMatrix
from fireiron.executable.pointwise import APPROXIMATE_PAIRS as APPROXIMATE_PAIRS
from fireiron.executable.pointwise import ApproximatePairs as ApproximatePairs
from fireiron.executable.pointwise import SKIP_IF_IDENTITY as SKIP_IF_IDENTITY
from fireiron.executable.pointwise import SkipIfIdentity as SkipIfIdentity
from fireiron.executable.pointwise import ThreadPointwise as ThreadPointwise
from fireiron.executable.print_value import PrintValue as PrintValue
from fireiron.executable.reduce import ThreadReduce as ThreadReduce
from fireiron.executable.shuffle import SHFL_DOWN as SHFL_DOWN
from fireiron.executable.shuffle import SHFL_IDX as SHFL_IDX
from fireiron.executable.shuffle import SHFL_UP as SHFL_UP
from fireiron.executable.shuffle import SHUFFLE as SHUFFLE
from fireiron.executable.shuffle import Shuffle as Shuffle
from fireiron.executable.stmatrix import STMATRIX as STMATRIX
from fireiron.executable.stmatrix import StMatrix as StMatrix
from fireiron.executable.stmatrix_warpgroup import STMATRIX_WARPGROUP as STMATRIX_WARPGROUP
from fireiron.executable.stmatrix_warpgroup import STMATRIX_WARPGROUP_COL as STMATRIX_WARPGROUP_COL
from fireiron.executable.stmatrix_warpgroup import STMATRIX_WARPGROUP_T as STMATRIX_WARPGROUP_T
from fireiron.executable.stmatrix_warpgroup import STMATRIX_WARPGROUP_T_COL as STMATRIX_WARPGROUP_T_COL
from fireiron.executable.stmatrix_warpgroup import StMatrixWarpgroup as StMatrixWarpgroup
from fireiron.executable.terms import ThreadTerm as ThreadTerm
from fireiron.executable.thread_move import EVICT_FIRST as EVICT_FIRST
from fireiron.executable.thread_move import EvictFirstMove as EvictFirstMove
from fireiron.executable.thread_move import ThreadInit as ThreadInit
from fireiron.executable.thread_move import ThreadMove as ThreadMove
from fireiron.executable.thread_move import vector as vector
from fireiron.executable.tma import TMA_ADD as TMA_ADD
from fireiron.executable.tma import TMA_LOAD as TMA_LOAD
from fireiron.executable.tma import TMA_STORE as TMA_STORE
from fireiron.executable.tma import TmaAdd as TmaAdd
from fireiron.executable.tma import TmaLoad as TmaLoad
from fireiron.executable.tma import TmaStore as TmaStore
from fireiron.executable.tma_digits import TMA_DIGIT_LOAD as TMA_DIGIT_LOAD
from fireiron.executable.tma_digits import TmaDigitLoad as TmaDigitLoad
from fireiron.executable.tma_vector import TMA_VECTOR_LOAD as TMA_VECTOR_LOAD
from fireiron.executable.tma_vector import TmaVectorLoad as TmaVectorLoad
from fireiron.executable.wgmma import WGMMA as WGMMA
from fireiron.executable.wgmma import Wgmma as Wgmma
from fireiron.executable.wgmma_sp import SparseWgmma as SparseWgmma
from fireiron.executable.wgmma_sp import WGMMA_SP as WGMMA_SP
from fireiron.executable.wmma import FILL_FRAGMENT as FILL_FRAGMENT
from fireiron.executable.wmma import FillFragment as FillFragment
from fireiron.executable.wmma import LOAD_MATRIX_SYNC as LOAD_MATRIX_SYNC
from fireiron.executable.wmma import MMA_SYNC as MMA_SYNC
from fireiron.executable.wmma import MatrixSync as MatrixSync
from fireiron.executable.wmma import MmaSync as MmaSync
from fireiron.executable.wmma import STORE_MATRIX_SYNC as STORE_MATRIX_SYNC
from fireiron.experts import experts as experts
from fireiron.export import Exported as Exported
from fireiron.export import export as export
from fireiron.function import Function as Function
from fireiron.function import function as function
from fireiron.ir.lanes import LaneMap as LaneMap
from fireiron.kernel_graph import KernelGraph as KernelGraph
from fireiron.language.strategy import Strategy as Strategy
from fireiron.language.tree import Child as Child
from fireiron.language.tree import Context as Context
from fireiron.language.tree import Decomposition as Decomposition
from fireiron.language.tree import Executable as Executable
from fireiron.language.tree import Expansion as Expansion
from fireiron.language.tree import Mismatch as Mismatch
from fireiron.language.tree import Refinement as Refinement
from fireiron.language.tunable import Derived as Derived
from fireiron.language.tunable import Tunable as Tunable
from fireiron.latent_attention import latent_attention as latent_attention
from fireiron.linear_cross_entropy import linear_cross_entropy as linear_cross_entropy
from fireiron.matmul import matmul as matmul
from fireiron.measure.sweeps import sweep as sweep
from fireiron.paged_attention import paged_attention as paged_attention
from fireiron.performing.mma import Mma as Mma
from fireiron.refine.align import Align as Align
from fireiron.refine.cast_on_copy import CastOnCopy as CastOnCopy
from fireiron.refine.cluster import Cluster as Cluster
from fireiron.refine.defer import Defer as Defer
from fireiron.refine.layout import TileOrder as TileOrder
from fireiron.refine.longest_first import LongestFirst as LongestFirst
from fireiron.refine.look_back import LookBack as LookBack
from fireiron.refine.max_shared_bytes import MaxSharedBytes as MaxSharedBytes
from fireiron.refine.min_blocks_per_sm import MinBlocksPerSm as MinBlocksPerSm
from fireiron.refine.mma_in_flight import MmaInFlight as MmaInFlight
from fireiron.refine.no_sync import NoSync as NoSync
from fireiron.refine.order_mma import OrderMma as OrderMma
from fireiron.refine.ordered import Ordered as Ordered
from fireiron.refine.overlap import Overlap as Overlap
from fireiron.refine.pad import Pad as Pad
from fireiron.refine.permute import Permute as Permute
from fireiron.refine.persistent import Persistent as Persistent
from fireiron.refine.pingpong import PingPong as PingPong
from fireiron.refine.pipeline import Pipeline as Pipeline
from fireiron.refine.prefetch_epilogue import PrefetchEpilogue as PrefetchEpilogue
from fireiron.refine.programmatic_launch import ProgrammaticLaunch as ProgrammaticLaunch
from fireiron.refine.rasterize import Rasterize as Rasterize
from fireiron.refine.reduce_in_last_block import ReduceInLastBlock as ReduceInLastBlock
from fireiron.refine.reuse_buffer import ReuseBuffer as ReuseBuffer
from fireiron.refine.separate_masked_tiles import SeparateMaskedTiles as SeparateMaskedTiles
from fireiron.refine.share_barriers import ShareBarriers as ShareBarriers
from fireiron.refine.share_barriers import share_barriers as share_barriers
from fireiron.refine.share_stages import ShareStages as ShareStages
from fireiron.refine.skip_masked_tiles import SkipMaskedTiles as SkipMaskedTiles
from fireiron.refine.stages import Stages as Stages
from fireiron.refine.stagger_blocks import StaggerBlocks as StaggerBlocks
from fireiron.refine.storage_layout import StorageLayout as StorageLayout
from fireiron.refine.stream_k import StreamK as StreamK
from fireiron.refine.swizzle_storage import SwizzleStorage as SwizzleStorage
from fireiron.refine.sync import Sync as Sync
from fireiron.refine.to import To as To
from fireiron.refine.unchecked import Unchecked as Unchecked
from fireiron.refine.unroll import Unroll as Unroll
from fireiron.refine.warp_specialize import WarpSpecialize as WarpSpecialize
from fireiron.spec import AnySpec as AnySpec
from fireiron.spec import Kind as Kind
from fireiron.spec import Parameter as Parameter
from fireiron.spec import Spec as Spec
from fireiron.specs.allocate import Allocate as Allocate
from fireiron.specs.atomic_add import AtomicAdd as AtomicAdd
from fireiron.specs.atomic_extremes import AtomicMax as AtomicMax
from fireiron.specs.atomic_extremes import AtomicMin as AtomicMin
from fireiron.specs.compression import compress_2_4 as compress_2_4
from fireiron.specs.compression import decompress_2_4 as decompress_2_4
from fireiron.specs.derivative import derivative as derivative
from fireiron.specs.fused import Fused as Fused
from fireiron.specs.init import Init as Init
from fireiron.specs.matmul import MatMul as MatMul
from fireiron.specs.move import Move as Move
from fireiron.specs.operand import A as A
from fireiron.specs.operand import B as B
from fireiron.specs.operand import C as C
from fireiron.specs.operand import DST as DST
from fireiron.specs.operand import Operand as Operand
from fireiron.specs.operand import SRC as SRC
from fireiron.specs.pointwise import BinaryPointwise as BinaryPointwise
from fireiron.specs.pointwise import Pointwise as Pointwise
from fireiron.specs.pointwise import UnaryPointwise as UnaryPointwise
from fireiron.specs.reduction import Reduction as Reduction
from fireiron.specs.rfactor import rfactor as rfactor
from fireiron.specs.scan import LinearRecurrence as LinearRecurrence
from fireiron.specs.scan import Scan as Scan
from fireiron.specs.shfl import Shfl as Shfl
from fireiron.specs.shfl import ShflDown as ShflDown
from fireiron.specs.shfl import ShflIdx as ShflIdx
from fireiron.specs.shfl import ShflUp as ShflUp
from fireiron.specs.sparse_matmul import SparseMatMul as SparseMatMul
from fireiron.specs.tile_prefix import StatePrefix as StatePrefix
from fireiron.specs.tile_prefix import TilePrefix as TilePrefix
from fireiron.ssd import linear_attention as linear_attention
from fireiron.ssd import ssd as ssd
from fireiron.tune import tune as tune
from fireiron.tune.records import Choice as Choice
from fireiron.tune.records import OutdatedRecordWarning as OutdatedRecordWarning
from fireiron.tune.records import Record as Record
from fireiron.tune.records import Records as Records
from fireiron.tune.records import best_strategy as best_strategy
from fireiron.values.affine import AffineIndex as AffineIndex
from fireiron.values.affine import DigitTerm as DigitTerm
from fireiron.values.distribution import Portion as Portion
from fireiron.values.expr import Const as Const
from fireiron.values.expr import Expr as Expr
from fireiron.values.expr import Var as Var
from fireiron.values.expr import all_of as all_of
from fireiron.values.expr import any_of as any_of
from fireiron.values.expr import assume_positive as assume_positive
from fireiron.values.expr import ceildiv as ceildiv
from fireiron.values.expr import equal as equal
from fireiron.values.expr import minimum as minimum
from fireiron.values.expr import sym as sym
from fireiron.values.indirect import DimIndex as DimIndex
from fireiron.values.indirect import TableIndex as TableIndex
from fireiron.values.layout import Layout as Layout
from fireiron.values.layout import Swizzle as Swizzle
from fireiron.values.machine import ARCHITECTURES as ARCHITECTURES
from fireiron.values.machine import Architecture as Architecture
from fireiron.values.machine import Block as Block
from fireiron.values.machine import COORD as COORD
from fireiron.values.machine import DType as DType
from fireiron.values.machine import FR as FR
from fireiron.values.machine import GL as GL
from fireiron.values.machine import GPU as GPU
from fireiron.values.machine import Kernel as Kernel
from fireiron.values.machine import Lane as Lane
from fireiron.values.machine import Level as Level
from fireiron.values.machine import Memory as Memory
from fireiron.values.machine import Node as Node
from fireiron.values.machine import QuadPair as QuadPair
from fireiron.values.machine import RF as RF
from fireiron.values.machine import SH as SH
from fireiron.values.machine import Thread as Thread
from fireiron.values.machine import VAL as VAL
from fireiron.values.machine import Warp as Warp
from fireiron.values.machine import Warpgroup as Warpgroup
from fireiron.values.machine import bfloat16 as bfloat16
from fireiron.values.machine import float16 as float16
from fireiron.values.machine import float32 as float32
from fireiron.values.machine import float64 as float64
from fireiron.values.machine import float8_e4m3 as float8_e4m3
from fireiron.values.machine import float8_e5m2 as float8_e5m2
from fireiron.values.machine import int32 as int32
from fireiron.values.machine import int64 as int64
from fireiron.values.machine import int8 as int8
from fireiron.values.machine import tf32 as tf32
from fireiron.values.machine import uint8 as uint8
from fireiron.values.strides import ANY as ANY
from fireiron.values.strides import AnyStride as AnyStride
from fireiron.values.strides import Strides as Strides
from fireiron.values.tensor import ColMajor as ColMajor
from fireiron.values.tensor import Cut as Cut
from fireiron.values.tensor import Dim as Dim
from fireiron.values.tensor import Fixed as Fixed
from fireiron.values.tensor import MatrixLayout as MatrixLayout
from fireiron.values.tensor import Mode as Mode
from fireiron.values.tensor import RowMajor as RowMajor
from fireiron.values.tensor import Tensor as Tensor
from fireiron.values.tensor import Through as Through
from fireiron.values.tensor import UnitMode as UnitMode
from fireiron.values.tensor import View as View

__all__ = [
    "A",
    "ANY",
    "APPROXIMATE_PAIRS",
    "ARCHITECTURES",
    "AffineIndex",
    "Align",
    "Allocate",
    "AnySpec",
    "AnyStride",
    "ApproximatePairs",
    "Architecture",
    "ArgumentError",
    "AtomicAdd",
    "AtomicMax",
    "AtomicMin",
    "B",
    "BFMA",
    "BFMA2",
    "BULK_ADD",
    "BinaryPointwise",
    "Block",
    "BulkAdd",
    "C",
    "COORD",
    "CP_ASYNC",
    "CacheWarning",
    "CastOnCopy",
    "Child",
    "Choice",
    "Cluster",
    "CoalescedCopy",
    "ColMajor",
    "Const",
    "Context",
    "CpAsync",
    "Cut",
    "DFMA",
    "DMMA_16816",
    "DMMA_1684",
    "DMMA_1688",
    "DMMA_884",
    "DST",
    "DType",
    "Decomposition",
    "DecompositionError",
    "Defer",
    "Derived",
    "DigitTerm",
    "Dim",
    "DimIndex",
    "Done",
    "EVICT_FIRST",
    "Epilog",
    "EvictFirstMove",
    "Executable",
    "Expansion",
    "Exported",
    "Expr",
    "FFMA",
    "FILL_FRAGMENT",
    "FR",
    "FillFragment",
    "FireironError",
    "FireironWarning",
    "Fixed",
    "Fma",
    "Fused",
    "GL",
    "GPU",
    "Gpu",
    "HFMA",
    "HFMA2",
    "HMMA_163216_F32_BF16_N4",
    "HMMA_163216_F32_N4",
    "HMMA_16816_F16",
    "HMMA_16816_F32",
    "HMMA_16816_F32_BF16",
    "HMMA_16816_F32_BF16_K4",
    "HMMA_16816_F32_K4",
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
    "HMMA_SP_16832_F16",
    "HMMA_SP_16832_F32",
    "HMMA_SP_16832_F32_BF16",
    "Hfma2",
    "IMAD",
    "IMMA_16816_S8",
    "IMMA_16832_S8",
    "IMMA_8816_S8",
    "IMMA_SP_16864_S8",
    "INSTRUCTIONS",
    "IncompleteError",
    "Init",
    "InterleavedMma",
    "Kernel",
    "KernelGraph",
    "Kind",
    "LDMATRIX",
    "LDMATRIX_WARPGROUP",
    "LDMATRIX_WARPGROUP_COL",
    "LDMATRIX_WARPGROUP_T",
    "LDMATRIX_WARPGROUP_T_COL",
    "LOAD_MATRIX_SYNC",
    "LOOK_BACK",
    "Lane",
    "LaneMap",
    "LaunchError",
    "Layout",
    "LayoutError",
    "LdMatrix",
    "LdMatrixWarpgroup",
    "Level",
    "LinearRecurrence",
    "Load",
    "LongestFirst",
    "LookBack",
    "LookBackInstruction",
    "MMA_SYNC",
    "MOVMATRIX_COL",
    "MOVMATRIX_ROW",
    "MatMul",
    "MatchError",
    "MatrixLayout",
    "MatrixSync",
    "MaxSharedBytes",
    "Memory",
    "MicroKernel",
    "MinBlocksPerSm",
    "Mismatch",
    "Mma",
    "MmaInFlight",
    "MmaSync",
    "MmaTile",
    "Mode",
    "MovMatrix",
    "Move",
    "NoSync",
    "Node",
    "Operand",
    "OrderMma",
    "Ordered",
    "OutdatedRecordWarning",
    "Overlap",
    "Pad",
    "Parameter",
    "Permute",
    "Persistent",
    "PingPong",
    "Pipeline",
    "Pointwise",
    "Portion",
    "Prediction",
    "PrefetchEpilogue",
    "PrintValue",
    "PrintValues",
    "ProgrammaticLaunch",
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
    "QMMA_SP_16864_F32_E4M3",
    "QMMA_SP_16864_F32_E4M3_E5M2",
    "QMMA_SP_16864_F32_E5M2",
    "QMMA_SP_16864_F32_E5M2_E4M3",
    "QuadPair",
    "RF",
    "Rasterize",
    "Record",
    "Records",
    "ReduceInLastBlock",
    "Reduction",
    "Refinement",
    "Repack",
    "ResourceError",
    "ReuseBuffer",
    "Rfactor",
    "RowMajor",
    "SH",
    "SHFL_DOWN",
    "SHFL_IDX",
    "SHFL_UP",
    "SHUFFLE",
    "SKIP_IF_IDENTITY",
    "SRC",
    "STMATRIX",
    "STMATRIX_WARPGROUP",
    "STMATRIX_WARPGROUP_COL",
    "STMATRIX_WARPGROUP_T",
    "STMATRIX_WARPGROUP_T_COL",
    "STORE_MATRIX_SYNC",
    "Scan",
    "SeparateMaskedTiles",
    "SetMemory",
    "ShareBarriers",
    "ShareStages",
    "Shfl",
    "ShflDown",
    "ShflIdx",
    "ShflUp",
    "Shuffle",
    "SimulationError",
    "SkipIfIdentity",
    "SkipMaskedTiles",
    "SkipSteps",
    "SparseMatMul",
    "SparseMma",
    "SparseWgmma",
    "Spec",
    "Split",
    "SplitK",
    "StMatrix",
    "StMatrixWarpgroup",
    "Stages",
    "StaggerBlocks",
    "StatePrefix",
    "StepOf",
    "StorageLayout",
    "StoreError",
    "Strategy",
    "StreamK",
    "Strided",
    "Strides",
    "Swizzle",
    "SwizzleStorage",
    "Sync",
    "SynchronizationError",
    "TMA_ADD",
    "TMA_DIGIT_LOAD",
    "TMA_LOAD",
    "TMA_STORE",
    "TMA_VECTOR_LOAD",
    "TableIndex",
    "Tensor",
    "Thread",
    "ThreadAtomicAdd",
    "ThreadAtomicExtreme",
    "ThreadInit",
    "ThreadMove",
    "ThreadPointwise",
    "ThreadReduce",
    "ThreadTerm",
    "Through",
    "Tile",
    "TileOrder",
    "TilePrefix",
    "TmaAdd",
    "TmaDigitLoad",
    "TmaLoad",
    "TmaStore",
    "TmaVectorLoad",
    "To",
    "ToGpus",
    "Tunable",
    "UnaryPointwise",
    "Unchecked",
    "UnitMode",
    "Unroll",
    "VAL",
    "Var",
    "VerificationError",
    "View",
    "WGMMA",
    "WGMMA_SP",
    "Warp",
    "WarpSpecialize",
    "Warpgroup",
    "Wgmma",
    "WrongResultError",
    "all_of",
    "any_of",
    "assume_positive",
    "best_strategy",
    "bfloat16",
    "ceildiv",
    "compress_2_4",
    "decompress_2_4",
    "derivative",
    "draw",
    "elementwise",
    "equal",
    "explore",
    "export",
    "float16",
    "float32",
    "float64",
    "float8_e4m3",
    "float8_e5m2",
    "instruction",
    "int32",
    "int64",
    "int8",
    "matmul",
    "minimum",
    "predict",
    "rfactor",
    "share_barriers",
    "sweep",
    "sym",
    "tf32",
    "tune",
    "uint8",
    "vector",
]
