"""Mistakes of a user: in each line with `# wrong: WORDS` type checkers find an error that contains these words, and in no other.

Words separated by ` | ` are those of one checker or another. Read by `test_types.py`, never run.
"""

import numpy as np

from fireiron import *

a = np.ones((64, 64), np.float32)
spec = MatMul(64, 64, 64)(GL, GL, GL)(Kernel)
bound = MatMul.tile(8, 8).to(Block).done()(spec)

# ---------------------------------------------------------------------------------------------- verbs of another kind
Move.mma_tile()  # wrong: "mma_tile"
MatMul.coalesced_copy(4)  # wrong: "coalesced_copy"
Move.tile(8, 8).to(Warp).mma_tile()  # wrong: "mma_tile"
MatMul.tile(8, 8).to(Warp).coalesced_copy(4)  # wrong: "coalesced_copy"
MatMul.tile(8, 8).to(Block).load(A, SH).coalesced_copy(4)  # wrong: "coalesced_copy"
MatMul.skip_steps("s", where="s == 0")  # wrong: "skip_steps"
MatMul.set_memory("s", RF)  # wrong: "set_memory"
Move.split(4)  # wrong: "split"
Move.epilog(RF)  # wrong: "epilog"
Move.split_k(2, Warp, 4)  # wrong: "split_k"
Init.load("dst", SH)  # wrong: "load"
spec.coalesced_copy(4)  # wrong: callable

# ---------------------------------------------------------------------------------------------- refinements of another step
MatMul.to(Block)  # wrong: "to"
MatMul.tile(8, 8).pad(4)  # wrong: "pad"
MatMul.split(8).cluster(2)  # wrong: "cluster"
MatMul.split(8).to(Block)  # wrong: "to"
MatMul.load(A, SH).unroll()  # wrong: "unroll"
MatMul.epilog(RF).pipeline(2)  # wrong: "pipeline"
MatMul.tile(8, 8).prefetch_epilogue()  # wrong: "prefetch_epilogue"
MatMul.tile(8, 8).stagger_blocks()  # wrong: "stagger_blocks"
MatMul.tile(8, 8).done().to(Block)  # wrong: "to"

# ---------------------------------------------------------------------------------------------- misspelled names
MatMul.tyle(8, 8)  # wrong: "tyle"
MatMul.tile(8, 8).swizle(8)  # wrong: "swizle"
MatMul(64, 64, 64, layout=RowMajor)  # wrong: layout
Move(64, 64, dtpye=float16)  # wrong: dtpye
bound.compiled()  # wrong: "compiled"

# ---------------------------------------------------------------------------------------------- arguments of other types
MatMul.tile("8", 8)  # wrong: "str" | Literal['8']
MatMul.tile(8.0, 8)  # wrong: "float"
MatMul.tile(m="8")  # wrong: "str" | Literal['8']
MatMul.tile(sym("M"), 8)  # wrong: "Var"
MatMul.tile((8, 8))  # wrong: tuple[
MatMul.split("k")  # wrong: "str" | Literal['k']
MatMul.split_k(2, "Warp", 8)  # wrong: "Level"
MatMul.load(4, SH)  # wrong: "int" | Literal[4]
MatMul.load(A)  # wrong: memory
MatMul.load(A, "SH")  # wrong: "Memory"
MatMul.load(A, SH, 4)  # wrong: "int" | Literal[4]
MatMul.epilog("RF")  # wrong: "Memory"
MatMul.done(4)  # wrong: "int" | Literal[4]
MatMul.tile(8, 8).to("Block")  # wrong: "Level"
MatMul.tile(8, 8).cluster("2")  # wrong: "str" | Literal['2']
MatMul.tile(8, 8).layout("row")  # wrong: "MatrixLayout
MatMul.split(8).pipeline("3")  # wrong: "str" | Literal['3']
MatMul.load(A, SH).pad("4")  # wrong: "str" | Literal['4']
Move.coalesced_copy("4")  # wrong: "str" | Literal['4']
MatMul("64", 64, 64)  # wrong: "str" | Literal['64']
MatMul(64, 64)  # wrong: "K"
MatMul(64, 64, 64, dtype=16)  # wrong: "DType
Move(64, "64")  # wrong: "str" | Literal['64']
MatMul(64, 64, 64)("GL", GL, GL)  # wrong: "Memory"
MatMul(64, 64, 64)(GL, GL, GL)(RF)  # wrong: "Level"
Tunable("bm", "64")  # wrong: "int"

# ---------------------------------------------------------------------------------------------- calls of strategies and kernels
bound(a, a)  # wrong: "Spec
bound.with_(bm="64")  # wrong: "SupportsIndex"
bound.compile(90)  # wrong: "Architecture | str | None"
bound.at("tile")  # wrong: type[Decomposition]
bound.refine(Pad)  # wrong: "Refinement"
bound.compile()(a, a, M="64")  # wrong: No overload | "M" of type "int"
bound.compile().grid(M="64")  # wrong: "int"
predict(spec)  # wrong: No overload | Program
tune(spec)  # wrong: "Strategy"
_ = predict(bound).micros  # wrong: "micros"
