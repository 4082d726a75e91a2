"""Pictures of the reference: what a verb or a refinement does to a small kernel, drawn from its program."""

import attrs

from fireiron import *


@attrs.frozen
class Drawn:
    """A picture: its caption, a bound strategy, and what is drawn of it."""

    words: str
    strategy: Strategy
    kind: str

    @property
    def svg(self):
        """The picture as text."""
        return draw(self.strategy, self.kind).svg


PRODUCT = MatMul(128, 128, 64)(GL, GL, GL)(Kernel)
FLOAT16 = MatMul(256, 128, 128, dtype=float16, c_dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)

copy = Move.tile(1, 1).to(Thread).done()


def staged(tile=(4, 4), copies=(copy, copy), refined=lambda chain: chain):
    """A small GEMM through shared memory, with its accumulator in registers."""
    chain = MatMul.tile(32, 32).to(Block).epilog(RF).split(8).load(A, SH, copies[0])
    return refined(chain).load(B, SH, copies[1]).tile(*tile).to(Thread).split(1).tile(1, 1).done()


def on_tensor_cores(refined=lambda chain: chain):
    """A float16 GEMM by `mma.sync`, from shared memory."""
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32, Init.tile(32, 32).to(Warp).done(), Move.tile(32, 32).to(Warp).done())
    copy = Move.coalesced_copy(8).done()
    chain = refined(chain.split(32).pipeline(3).load(A, SH, copy)).load(B, SH, copy).swizzle_storage()
    chain = chain.tile(32, 32).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done())
    return chain.tile(16, 16).mma_tile().done()


def ring(refined=lambda chain: chain):
    """A float16 GEMM by `wgmma`, whose stages a producer fills by TMA."""
    chain = refined(MatMul.tile(128, 64).to(Block))
    chain = chain.epilog(RF, float32).split(64).pipeline(2).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    return chain.tile(64, 64).to(Warpgroup).done()


def _blocks(refined):
    return refined(MatMul.tile(16, 16).to(Block)).tile(1, 1).to(Thread).split(1).done()(PRODUCT)


def _shared():
    return MatMul.tile(16, 16).to(Block).split_k(2, Warp, 8).epilog(RF).split(8).tile(4, 2).to(Lane).split(1).tile(1, 1).done()(PRODUCT)


OF = {
    "verbs/tile": Drawn("Tiles of 32 x 32 for blocks, and of 4 x 4 for threads", staged()(PRODUCT), "tiles"),
    "verbs/load": Drawn("A and B go through shared memory, the accumulators stay in registers", staged()(PRODUCT), "tree"),
    "verbs/coalesced": Drawn("Adjacent threads copy adjacent vectors", on_tensor_cores()(FLOAT16), "tiles"),
    "verbs/mma_tile": Drawn("Lanes of a warp that own the operands of m16n8k16", on_tensor_cores()(FLOAT16), "lanes"),
    "verbs/split_k": Drawn("Two warps share k, and their partial results are added in shared memory", _shared(), "tree"),
    "instructions/mma_f16": Drawn("Lane map (TV layout) of m16n8k16", on_tensor_cores()(FLOAT16), "lanes"),
    "instructions/wgmma": Drawn("Lane map (TV layout) of a 64 x 64 wgmma", ring()(FLOAT16), "lanes"),
    "refinements-load/swizzle": Drawn(
        "Banks of shared memory, A with a swizzle", on_tensor_cores(lambda chain: chain.swizzle_storage())(FLOAT16), "banks"
    ),
    "refinements-load/pad": Drawn(
        "Banks of shared memory, A with padded rows", on_tensor_cores(lambda chain: chain.pad(8))(FLOAT16), "banks"
    ),
    "refinements-split/pipeline": Drawn("Three stages, filled and read in each iteration", on_tensor_cores()(FLOAT16), "timeline"),
    "refinements-split/specialize": Drawn("A producer and its consumers", ring()(FLOAT16), "timeline"),
    "refinements-tile/bands": Drawn("Groups of two tile rows", _blocks(lambda chain: chain.rasterize(group_m=2)), "tiles"),
    "refinements-tile/layout": Drawn("Blocks numbered column by column", _blocks(lambda chain: chain.layout(ColMajor)), "tiles"),
}
"""The pictures by page and section of the reference, whose key is the first name of its heading."""
