"""Rows of tokens between GPUs that store different experts: dispatch to the GPU of an expert, and combine on the GPU of the token.

    dispatch(T,bm,N,G,R)(GL,GL,GL,GL,GL)(Node(2))   X over g, all others over t
      to_gpus("t")                                  dispatch(T/2,bm,N,G,R)(GL,...)(Kernel) on each GPU, which reads rows of all GPUs
      tile(t=1, m=rows, n=256).to(Block)            dispatch(1,8,256,G,R)(GL,...)(Block)
        .layout(ColMajor)                           blocks of all tiles alternate, so stores of zeros overlap with the link
      load("X", RF)                                 Move(1,8)(GL,RF)(Lane)              a vector of 16 bytes of one row

X[g,r,n] is row r of the tokens of GPU g. Tables state, for each row of a tile of an expert, the GPU and the row of its token, and the
number of rows of the tile that are filled. So each GPU reads rows of all GPUs directly: the ranges depend on data, and each row crosses
the link once.

`combined` adds the rows of the experts of each token, times their weights, in the order of the choices, in float32: a GPU reads the
results D[g,p,n] of all GPUs, and stores its own tokens. Results are the same in each run.

Tables come from `fireiron.distributed_experts`. Barriers of all GPUs precede and follow a launch.
"""

from fireiron import *

SIZES = (64, 256, 8)

rows = Tunable("rows", 8, 4, 2, 1, 16)
"""Rows of a block."""

columns = Tunable("columns", 256, 512, 1024)
"""Columns of a block."""

TABLES = {"gpu": int32, "row": int32, "filled": int32}

dispatched_rows = Fused(
    name="dispatch", dims="t m n g r", batch="t", types=TABLES,
    operands={"X": "g r n", "gpu": "t m", "row": "t m", "filled": "t", "Y": "t m n"},
    body={"copy": "y[m,n] = where(m < filled[t], X[gpu[t,m],row[t,m],n], 0)", "store": "Y[t,m,n] = y[m,n]"},
)  # fmt: skip

combined_rows = Fused(
    name="combine", dims="i n j g p", scan="j", types={"V": float32, "gpu": int32, "place": int32},
    operands={"D": "g p n", "gpu": "i j", "place": "i j", "V": "i j", "Y": "i n"},
    init={"zero": "acc[i,n] = 0"},
    body={"add": "acc[i,n] = acc[i,n] + D[gpu[i,j],place[i,j],n] * V[i,j]"},
    final={"store": "Y[i,n] = acc[i,n]"},
)  # fmt: skip

vectors = Move.tile(1, 256).to(Warp).tile(1, 8).to(Lane).done()

dispatched = dispatched_rows.tile(t=1, m=rows, n=columns).to(Block).layout(ColMajor).load("X", RF, vectors).done()
combined = combined_rows.tile(i=rows, n=columns).to(Block).split(j=1).unroll().tile(i=1, n=8).to(Thread).done()

strategy = dispatched_rows.to_gpus("t").then(dispatched)
combine = combined_rows.to_gpus("i").then(combined)


def spec(M, N, K, gpus=2, form="dispatch", rows=16, **options):
    """Return the problem of `gpus` GPUs: K tiles of `rows` rows of N elements, from M tokens; or M tokens with K choices each.

    Args: `form`: "dispatch" or "combine".
    """
    node = {"level": Node(gpus), "g": gpus}
    if form == "dispatch":
        over = {name: RowMajor.over(GPU, "t") for name in ("gpu", "row", "filled", "Y")}
        return dispatched_rows(t=K, m=rows, n=N, r=M, X=RowMajor.over(GPU, "g"), **over, **node, **options)
    over = {name: RowMajor.over(GPU, "i") for name in ("gpu", "place", "V", "Y")}
    return combined_rows(i=M, n=N, j=K, p=M * K, D=RowMajor.over(GPU, "g"), **over, **node, **options)
