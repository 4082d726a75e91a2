"""Listing 3 of the Fireiron paper: the simplest use of tensor cores, one WMMA fragment of C per warp, loaded from global memory.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            MatMul(64,64,K)(GL,GL,GL)(Block)
      epilog(FR, float32, init, store) MatMul(64,64,K)(GL,GL,FR)(Block)        16 fragments, one per warp
      split(16)                        MatMul(64,64,16)(GL,GL,FR)(Block)
      tile(16,16).to(Warp)             MatMul(16,16,16)(GL,GL,FR)(Warp)        16 warps
      load(A, FR)                      MatMul(16,16,16)(FR,GL,FR)(Warp)        load_matrix_sync
      load(B, FR)                      MatMul(16,16,16)(FR,FR,FR)(Warp)        load_matrix_sync
      done()                           mma_sync

It is the first kernel of NVIDIA's sample cudaTensorCoreGemm: A and C row-major, B column-major. A fragment is loaded and stored
as a whole, so sizes that are not multiples of the tiles need `guarded`. It copies through shared memory: loads fill elements out of
bounds with zeros, and stores skip them.
"""

from fireiron import *

SIZES = (1024, 1024, 1024)

fragment = FR(16, 16, 16)
bm = Tunable("bm", 64, 32, 128)
bn = Tunable("bn", 64, 32, 128)

init = Init.tile(16, 16).to(Warp).done()
store = Move.tile(16, 16).to(Warp).done()
store_through_shared = Move.load(SRC, SH, store).tile(1, 1).to(Thread).done()


def simple(store):
    """Return the steps of Listing 3 before its loads."""
    return MatMul.tile(bm, bn).to(Block).epilog(fragment, float32, init, store).split(16)


warp_level = MatMul.tile(16, 16).to(Warp).load(A, fragment, Move.done()).load(B, fragment, Move.done()).done()

listing_3 = simple(store).then(warp_level)
guarded = simple(store_through_shared).load(A, SH).pad(8).load(B, SH).pad(8).then(warp_level)

strategy = listing_3.fallback(guarded)


def spec(M, N, K, **options):
    """Return the problem: float16 with float32 accumulators and results; by default A and C are row-major, B column-major."""
    usual = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "C": RowMajor}
    return MatMul(M, N, K, **usual | options)(GL, GL, GL)(Kernel)
