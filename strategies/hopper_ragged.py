"""Grouped GEMM of packed rows on Hopper: D[m] = A[m]·B[g] for the rows `begin[g] <= m < end[g]` of group g.

    grouped_ragged(M,N,K,G)(GL,GL,GL,GL,GL)(Kernel)
      tile(bm,bn).to(Block).rasterize(group_m=8)   grouped_ragged(128,128,K,G)(GL,...)(Block)
      split(g=1).skip_masked_tiles()   grouped_ragged(128,128,K,1)(GL,...)(Block)   one group after another, skipping those of other rows
      step(product)                    MatMul(128,128,K)(GL,GL,RF)(Block)
        split(bk).pipeline(stages)     MatMul(128,128,64)(GL,GL,RF)(Block)           one circular buffer for all groups
          .warp_specialize()                a producer fills it, and searches the groups itself
        load(A, SH), load(B, SH)       MatMul(128,128,64)(SH,SH,RF)(Block)           TMA
        tile(64,bn).to(Warpgroup)      MatMul(64,128,64)(SH,SH,RF)(Warpgroup)        WGMMA
      step(store)                      Move(128,128)(RF,GL)(Block)                   convert, store through shared memory by TMA

The definition is that of `grouped_ragged`. A thread has the accumulators of a group in addition to the result, so a warpgroup has at most
64 x 192. With one warpgroup per block (`bm` 64) two blocks share an SM: one computes while the other stores.

`clustered` has clusters of two blocks along columns. Both have the same rows, so they process the same groups, and each loads half of A's
tile for both: a tile of 128 x 128 reads a quarter less from L2. Along rows the groups of the two blocks would depend on the data.
"""

from fireiron import *
from fireiron.strategies import grouped_ragged

SIZES = grouped_ragged.SIZES

bm = Tunable("bm", 128, 64, 192)
bn = Tunable("bn", 128, 64, 192, 96)
bk = Tunable("bk", 64, 128, 32)
stages = Tunable("stages", 4, 2, 3, 5, 6, 8)
epi_n = Tunable("epi_n", 64, 32, 128, 192)
group_m = Tunable("group_m", 8, 1, 2, 4, 16)
producer_threads = Tunable("producer_threads", 128, 32)

product = (
    MatMul.split(bk)
    .pipeline(stages)
    .warp_specialize(producer_threads)
    .load(A, SH, Move.done())
    .load(B, SH, Move.done())
    .tile(64, bn)
    .to(Warpgroup)
    .done()
)

store = Move.tile(64, bn).to(Warpgroup).tile(64, epi_n).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()


def by_rings(cluster_n=1):
    """Return the strategy with clusters of `cluster_n` blocks along columns."""
    tiles = grouped_ragged.definition.tile(m=bm, n=bn).to(Block)
    tiles = tiles.cluster(1, cluster_n) if cluster_n > 1 else tiles
    return tiles.rasterize(group_m=group_m).split(g=1).skip_masked_tiles().step("product", product).step("store", store).done()


strategy = by_rings()
clustered = by_rings(2)

spec = grouped_ragged.spec
