"""Listing 3 of the Fireiron paper: the simplest use of tensor cores, one WMMA fragment of C a warp, straight from global memory.

    MatMul(M,N,K)(GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block)            MatMul(64,64,K)(GL,GL,GL)(Block)
      epilog(FR, float32, init, store) MatMul(64,64,K)(GL,GL,FR)(Block)        16 fragments, one a warp
      split(16)                        MatMul(64,64,16)(GL,GL,FR)(Block)
      tile(16,16).to(Warp)             MatMul(16,16,16)(GL,GL,FR)(Warp)        16 warps
      load(A, FR)                      MatMul(16,16,16)(FR,GL,FR)(Warp)        load_matrix_sync
      load(B, FR)                      MatMul(16,16,16)(FR,FR,FR)(Warp)        load_matrix_sync
      done()                           mma_sync

It is the first kernel of NVIDIA's sample cudaTensorCoreGemm: A and C row-major, B column-major. A fragment is loaded and stored
as a whole, so sizes that are no multiples of the tiles take `guarded`: the same strategy with a step through shared memory on
the way in, which fills what lies outside, and on the way out, which leaves it alone.
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
    """Listing 3 down to its loads."""
    return MatMul.tile(bm, bn).to(Block).epilog(fragment, float32, init, store).split(16)


warp_level = MatMul.tile(16, 16).to(Warp).load(A, fragment, Move.done()).load(B, fragment, Move.done()).done()

listing_3 = simple(store).then(warp_level)
guarded = simple(store_through_shared).load(A, SH).pad(8).load(B, SH).pad(8).then(warp_level)

strategy = listing_3.fallback(guarded)


def spec(M, N, K, **options):
    """Half precision with float32 sums and results; A and C row-major, B column-major, unless said otherwise."""
    usual = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "C": RowMajor}
    return MatMul(M, N, K, **usual | options)(GL, GL, GL)(Kernel)
