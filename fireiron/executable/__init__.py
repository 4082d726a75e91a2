"""Instructions, one family a file. An instruction set is an immutable tuple; extend it by making a new one.

May import: values, specs, ir, language.
"""

from __future__ import annotations

from fireiron.executable.atomic_add import ATOMIC_ADD
from fireiron.executable.cp_async import CP_ASYNC
from fireiron.executable.fma import SCALAR
from fireiron.executable.hfma2 import BFMA2, HFMA2
from fireiron.executable.ldmatrix import LDMATRIX
from fireiron.executable.mma_f16 import MMA_F16
from fireiron.executable.mma_f64 import MMA_F64
from fireiron.executable.mma_fp8 import MMA_FP8
from fireiron.executable.mma_int8 import MMA_INT8
from fireiron.executable.mma_tf32 import MMA_TF32
from fireiron.executable.mma_volta import MMA_VOLTA
from fireiron.executable.movmatrix import MOVMATRIX
from fireiron.executable.pointwise import POINTWISE, POINTWISE2
from fireiron.executable.reduce import REDUCE
from fireiron.executable.stmatrix import STMATRIX
from fireiron.executable.thread_move import INIT, MOVE
from fireiron.executable.wmma import WMMA
from fireiron.language.tree import Executable

INSTRUCTIONS: tuple[Executable, ...] = (
    *SCALAR, HFMA2, BFMA2, MOVE, INIT, POINTWISE, POINTWISE2, REDUCE, ATOMIC_ADD,
    *MMA_F16, *MMA_FP8, *MMA_INT8, *MMA_TF32, *MMA_F64, *MMA_VOLTA, *LDMATRIX, *STMATRIX, *MOVMATRIX, *WMMA,
    *CP_ASYNC,
)  # fmt: skip
"""The built-in instructions; each knows the architectures that have it."""
