"""GEMM with a 2:4 sparse A on tensor cores from Ampere on: mma.sp, ldmatrix, swizzled shared memory, software-pipelined cp.async.

    SparseMatMul(M,N,K)(GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   SparseMatMul(128,128,K)(GL,GL,GL,GL)(Block)
      epilog(RF, float32, ...)         SparseMatMul(128,128,K)(GL,GL,GL,RF)(Block)      stored through shared memory
      split(bk).pipeline(stages)       SparseMatMul(128,128,64)(GL,GL,GL,RF)(Block)     copies of 16 bytes, in flight
      load(A, SH).swizzle_storage()    SparseMatMul(128,128,64)(SH,GL,GL,RF)(Block)     32 kept elements of k
      load("E", SH)                    SparseMatMul(128,128,64)(SH,SH,GL,RF)(Block)     8 bytes of metadata
      load(B, SH).swizzle_storage()    SparseMatMul(128,128,64)(SH,SH,SH,RF)(Block)
      tile(wm,wn).to(Warp)             SparseMatMul(64,64,64)(SH,SH,SH,RF)(Warp)
      split(kk).pipeline(lookahead)    SparseMatMul(64,64,32)(SH,SH,SH,RF)(Warp)        fragments loaded one step early
      load(A, RF), load("E", RF), load(B, RF)      SparseMatMul(64,64,32)(RF,RF,RF,RF)(Warp)
      tile(16,8).unroll()              SparseMatMul(16,8,32)(RF,RF,RF,RF)(Warp)
      done()                           mma.sp

`compress_2_4` returns A and E. K is a multiple of 8. `integers` is the same for int8, with int32 accumulators, and `floats` for 8-bit
floats: their instruction has 64 elements of k.
"""

from fireiron import *

SIZES = (4096, 4096, 4096)

bm = Tunable("bm", 128, 64, 256)
bn = Tunable("bn", 128, 64, 256)
bk = Tunable("bk", 64, 128)
wm = Tunable("wm", 64, 32)
wn = Tunable("wn", 64, 32)
stages = Tunable("stages", 4, 3, 5)
lookahead = Tunable("lookahead", 1, 2)

init = Init.tile(wm, wn).to(Warp).done()
stage = Move.tile(wm, wn).to(Warp).done()
store = Move.load(SRC, SH, stage).cast_on_copy().pad(8).reuse_buffer().coalesced_copy(8).done()
copy, fragments = Move.coalesced_copy(16).done(), Move.done()


def by_warps(kk, accumulator):
    """Return the strategy for an instruction with `kk` elements of k, which accumulates in the given type."""
    return (
        SparseMatMul.tile(bm, bn)
        .to(Block)
        .rasterize(group_m=8)
        .epilog(RF, accumulator, init, store)
        .split(bk)
        .pipeline(stages, interleave=True)
        .load(A, SH, copy)
        .swizzle_storage()
        .load("E", SH, copy)
        .load(B, SH, copy)
        .swizzle_storage()
        .tile(wm, wn)
        .to(Warp)
        .split(kk)
        .unroll()
        .pipeline(lookahead)
        .load(A, RF, fragments)
        .load("E", RF, fragments)
        .load(B, RF, fragments)
        .tile(16, 8)
        .unroll()
        .done()
    )


strategy = by_warps(32, float32)

integers = by_warps(64, int32).with_(bk=128)

floats = by_warps(64, float32).with_(bk=128)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default; `A` is the storage order of the metadata, too."""
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    return SparseMatMul(M, N, K, E=options["A"], **options)(GL, GL, GL, GL)(Kernel)


def defaults(M, N, K):
    """Return tiles for large and for small matrices."""
    return (
        {"bm": 128, "bn": 256, "bk": 64, "wm": 64, "wn": 64, "stages": 3, "lookahead": 1},
        {"bm": 128, "bn": 128, "bk": 64, "wm": 64, "wn": 64, "stages": 4, "lookahead": 1},
        {"bm": 128, "bn": 128, "bk": 128, "wm": 64, "wn": 64, "stages": 3, "lookahead": 1},
        {"bm": 64, "bn": 64, "bk": 64, "wm": 32, "wn": 32, "stages": 5, "lookahead": 1},
    )
