"""The puzzles, from the first to the last."""

from __future__ import annotations

from typing import Final

from fireiron.puzzles.goals import Barriers, Executes, NoWarnings, Predicted, ReadsOnce, SharedBytes, Threads, Vectors
from fireiron.puzzles.puzzle import Puzzle

_ROWS = "order=RowMajor"
_HALF = f"dtype=float16, c_dtype=float16, {_ROWS}"

_STAGED = """    .load(A, SH, Move.coalesced_copy(8).done()).swizzle_storage()
    .load(B, SH, Move.coalesced_copy(8).done()).swizzle_storage()"""
_FRAGMENTS = """    .tile(32, 32).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done())
    .tile(16, 16).mma_tile().done()"""

PUZZLES: Final = (
    Puzzle(
        title="Add two vectors",
        text="A thread of the start reads and writes single elements that are not adjacent to those of the next thread.",
        setup="""add = Fused(name="add", dims="m", operands={"X": "m", "Y": "m", "Z": "m"}, body={"out": "Z[m] = X[m] + Y[m]"})
problem = add(m=1000, dtype=float32)""",
        start="add.tile(m=1024).to(Block).tile(m=8).to(Thread).done()",
        target="sm_80",
        goals=(Vectors(16, ("X", "Y", "Z")), NoWarnings(("coalescing",)), Threads(128)),
        hints=(
            "A float32 has 4 bytes. How many elements does a thread need for 16 bytes?",
            'load("X", RF, Move.done()) copies the tile of a thread to registers, in vectors.',
        ),
        solution='add.tile(m=1024).to(Block).tile(m=4).to(Thread).load("X", RF, Move.done()).load("Y", RF, Move.done()).done()',
    ),
    Puzzle(
        title="Sum the rows of a matrix",
        text="A block of the start has one row and 32 threads, each with 16 elements. Give a row to a warp, and several rows to a block.",
        setup="""row_sum = Fused(name="row_sum", dims="m n", operands={"X": "m n", "Y": "m"}, body={"sum": "Y[m] = sum(n, X[m,n])"})
problem = row_sum(m=50, n=512, dtype=float32)""",
        start='row_sum.tile(m=1).to(Block).load("X", RF, Move.tile(1, 16).to(Thread).done()).done()',
        target="sm_80",
        goals=(
            Executes("SHFL", "shuffles between the lanes of a warp"),
            Vectors(16, ("X",)),
            NoWarnings(("coalescing",)),
            Threads(128),
            SharedBytes(0),
        ),
        hints=(
            'tile(m=4).to(Block): a block has four rows. The copy of load("X", RF, ...) decides which thread has which elements.',
            "Move.tile(1, 512).to(Warp) gives a row to a warp; .tile(1, 4).to(Lane) gives four adjacent elements to a lane.",
            "done() reduces the registers of a warp by shuffles.",
        ),
        solution='row_sum.tile(m=4).to(Block).load("X", RF, Move.tile(1, 512).to(Warp).tile(1, 4).to(Lane).done()).done()',
    ),
    Puzzle(
        title="Transpose a matrix",
        text="Reads or writes of the start access a sector per element. Go through shared memory, without bank conflicts.",
        setup="""transpose = Fused(name="transpose", dims="m n", operands={"X": "m n", "Y": "n m"}, body={"copy": "Y[n,m] = X[m,n]"})
problem = transpose(m=96, n=160, dtype=float32)""",
        start="transpose.tile(m=32, n=32).to(Block).tile(m=1, n=1).to(Thread).done()",
        target="sm_80",
        goals=(NoWarnings(("coalescing", "banks")), SharedBytes(5000, least=1)),
        hints=(
            'load("X", SH, Move.tile(1, 1).to(Thread).done()) copies the tile of the block, row by row.',
            "A warp must now read a column of the tile, so that it writes adjacent elements of Y.",
            'step("copy", Move...) gives the strategy of a step. Its Move reads shared memory, and has the shape of Y.',
            "A column of 32 float32 values is in one bank if a row has 32 of them. pad(1) makes the rows longer.",
        ),
        solution="""(
    transpose.tile(m=32, n=32).to(Block)
    .load("X", SH, Move.tile(1, 1).to(Thread).done()).pad(1)
    .step("copy", Move.tile(1, 32).to(Warp).tile(1, 1).to(Lane).done()).done()
)""",
    ),
    Puzzle(
        title="Softmax of rows",
        text="The start reads each row three times. Keep it in the registers of a warp.",
        setup="""softmax = Fused(
    name="softmax",
    dims="m n",
    operands={"X": "m n", "Y": "m n"},
    body={
        "top": "top[m] = max(n, X[m,n])",
        "power": "e[m,n] = exp(X[m,n] - top[m])",
        "sum": "total[m] = sum(n, e[m,n])",
        "out": "y[m,n] = e[m,n] / total[m]",
        "store": "Y[m,n] = y[m,n]",
    },
)
problem = softmax(m=10, n=256, dtype=float32)""",
        start="softmax.tile(m=32).to(Block).tile(m=1).to(Thread).done()",
        target="sm_80",
        goals=(ReadsOnce("X"), Vectors(16, ("X", "Y")), SharedBytes(0), Executes("SHFL", "shuffles between the lanes of a warp")),
        hints=(
            "As in puzzle 2, the copy to registers decides which lane has which elements.",
            "Temporaries are distributed like the operands that they are computed from.",
        ),
        solution='softmax.tile(m=4).to(Block).load("X", RF, Move.tile(1, 256).to(Warp).tile(1, 4).to(Lane).done()).done()',
    ),
    Puzzle(
        title="Multiply through shared memory",
        text=(
            "A warp of the start reads each element of A and B from global memory again. Stage tiles of A and B in shared memory. "
            "One element per thread is enough."
        ),
        setup=f"problem = MatMul(128, 96, 64, {_ROWS})(GL, GL, GL)(Kernel)",
        start="MatMul.tile(32, 32).to(Block).epilog(RF).tile(1, 1).to(Thread).split(1).done()",
        target="sm_80",
        goals=(SharedBytes(8192, least=1024), NoWarnings(("banks",)), Barriers(2)),
        hints=(
            "split(8) before the tiles of threads makes a loop over k for the whole block; load(A, SH) and load(B, SH) come after it.",
            "The barriers are inferred: one after the copies, one before the next copies.",
        ),
        solution="MatMul.tile(32, 32).to(Block).epilog(RF).split(8).load(A, SH).load(B, SH).tile(1, 1).to(Thread).split(1).done()",
    ),
    Puzzle(
        title="Registers",
        text="Each multiply-add of the start reads two numbers from shared memory. Give a thread a tile of C, in registers.",
        setup=f"problem = MatMul(160, 256, 40, {_ROWS})(GL, GL, GL)(Kernel)",
        start="MatMul.tile(32, 32).to(Block).epilog(RF).split(8).load(A, SH).load(B, SH).tile(1, 1).to(Thread).split(1).done()",
        target="sm_80",
        goals=(Predicted("A100", 12000, f"MatMul(4096, 4096, 4096, {_ROWS})(GL, GL, GL)(Kernel)"), NoWarnings(("banks",))),
        hints=(
            "With a tile of 8 x 8, a thread reads 16 numbers for 64 multiply-adds.",
            "load(A, RF, Move.tile(8, 1).done()) after split(1) keeps a column of A in registers.",
            "Coalesced copies of four elements: load(A, SH, Move.coalesced_copy(4).done()).",
            "Strided((4, 64), (4, 64)): a thread has four rows and four more at an offset of 64; to_col_major() stores A by columns.",
        ),
        solution="""(
    MatMul.tile(128, 128).to(Block).epilog(RF).split(8)
    .load(A, SH, Move.coalesced_copy(4).done()).to_col_major().pad(4)
    .load(B, SH, Move.coalesced_copy(4).done())
    .tile(64, 32).to(Warp).tile(Strided((4, 32), (4, 16))).to(Lane).split(1)
    .load(A, RF, Move.tile(4, 1).done()).load(B, RF, Move.tile(1, 4).done())
    .tile(1, 1).done()
)""",
    ),
    Puzzle(
        title="Tensor cores",
        text="The start multiplies by threads. A warp can execute mma.sync, which multiplies 16 x 8 x 16 elements.",
        setup=f"problem = MatMul(128, 128, 64, {_HALF})(GL, GL, GL)(Kernel)",
        start="""(
    MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(16)
    .load(A, SH).load(B, SH).tile(4, 8).to(Thread).split(1).tile(1, 1).done()
)""",
        target="sm_80",
        goals=(Executes("HMMA", "tensor cores (mma.sync)"), Executes("LDMATRIX", "ldmatrix"), NoWarnings(("banks",))),
        hints=(
            "The chain ends at Warp: tile(32, 32).to(Warp).split(16), then load A and B to RF, tile(16, 16), mma_tile(), done().",
            "Move.done() to RF uses the register layout of the instruction.",
            "swizzle_storage() after load(A, SH, ...) places the rows of a fragment in different banks.",
        ),
        solution=f"""(
    MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(32)
{_STAGED}
{_FRAGMENTS}
)""",
    ),
    Puzzle(
        title="A software pipeline",
        text="Make the copies of later iterations run while the tensor cores compute: cp.async, within 48 KB of shared memory.",
        setup=f"problem = MatMul(128, 64, 128, {_HALF})(GL, GL, GL)(Kernel)",
        start="""(
    MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(32)
    .load(A, SH, Move.coalesced_copy(8).done()).swizzle_storage()
    .load(B, SH, Move.coalesced_copy(8).done()).swizzle_storage()
    .tile(32, 32).to(Warp).split(16).load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 16).mma_tile().done()
)""",
        target="sm_80",
        goals=(
            Executes("CP_ASYNC", "asynchronous copies (cp.async)"),
            Executes("HMMA", "tensor cores (mma.sync)"),
            SharedBytes(49152, least=24000),
            NoWarnings(("banks",)),
        ),
        hints=("A refinement of split(32) gives the shared tiles several stages.", "pipeline(3): two copies run ahead."),
        solution=f"""(
    MatMul.tile(64, 64).to(Block).epilog(RF, float32).split(32).pipeline(3)
{_STAGED}
{_FRAGMENTS}
)""",
    ),
    Puzzle(
        title="A fused epilogue",
        text="One kernel for a product, a bias and a ReLU, on tensor cores. The product is a step of the definition.",
        setup="""layer = Fused(
    name="layer",
    dims="m n k",
    operands={"A": "m k", "B": "k n", "bias": "n", "C": "m n"},
    body={"product": "acc[m,n] = sum(k, A[m,k] * B[k,n])", "out": "C[m,n] = relu(acc[m,n] + bias[n])"},
)
problem = layer(m=128, n=64, k=64)""",
        start='layer.tile(m=32, n=32).to(Block).step("product", MatMul.tile(1, 1).to(Thread).split(1).done()).done()',
        target="sm_80",
        goals=(Executes("HMMA", "tensor cores (mma.sync)"), NoWarnings(("banks",)), SharedBytes(32768, least=1024)),
        hints=(
            "The start gives the step a strategy of MatMul. It can be any that you know, also one with split, load and mma_tile.",
            "The accumulators of the step are in registers as the instruction has them, and the epilogue follows.",
        ),
        solution=f"""layer.tile(m=64, n=64).to(Block).step("product", (
    MatMul.split(32)
{_STAGED}
{_FRAGMENTS}
)).done()""",
    ),
    Puzzle(
        title="Hopper",
        text="TMA copies tiles, wgmma multiplies them from shared memory, and a producer warp issues the copies.",
        setup=f"problem = MatMul(128, 128, 192, {_HALF})(GL, GL, GL)(Kernel)",
        start="""(
    MatMul.tile(128, 64).to(Block).epilog(RF, float32).split(64).load(A, SH, Move.done()).load(B, SH, Move.done())
    .tile(64, 64).to(Warpgroup).done()
)""",
        target="sm_90a",
        goals=(Executes("TMA_LOAD", "TMA for A and B"), Executes("WGMMA", "wgmma"), SharedBytes(131072, least=49152)),
        hints=(
            "TMA needs a circular buffer of stages, and a warp that fills it.",
            "Two refinements of split(64): pipeline(stages) and warp_specialize().",
        ),
        solution="""(
    MatMul.tile(128, 64).to(Block).epilog(RF, float32)
    .split(64).pipeline(3).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    .tile(64, 64).to(Warpgroup).done()
)""",
    ),
)
