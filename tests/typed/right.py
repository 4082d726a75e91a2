"""User code in which type checkers find no error and know the types. Read by `test_types.py`, never run."""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

import fireiron
from fireiron import *
from fireiron.check import Findings, check
from fireiron.compiler import Program
from fireiron.generated_verbs import FusedKernel, FusedSpec, FusedStrategy, MatMulLoad, MatMulSpec, MatMulStrategy, MatMulTile, MoveStrategy
from fireiron.gpu.kernel import CompiledKernel
from fireiron.tune.result import Result, Tuning

Array = NDArray[np.float32]

# ---------------------------------------------------------------------------------------------- chains

bm, bn = Tunable("bm", 64, 128), Tunable("bn", 64, 128)
assert_type(MatMul.tile(bm, bn), MatMulTile)
assert_type(MatMul.tile(64, 64).to(Block).layout(ColMajor).unroll(), MatMulTile)
assert_type(MatMul.tile(m=bm * 2, n=np.int64(8)).tile(Strided((4, 32), (bn // 4, 16))).tile(Layout(2, 4), 8), MatMulTile)
assert_type(MatMul.tile(8, 8).to(Block).epilog(RF).split(8).load(A, SH).pad(4).swizzle_storage(), MatMulLoad)
assert_type(MatMul.load(MatMul.a, SH, Move.coalesced_copy(4).done()).no_sync().to_row_major(), MatMulLoad)
copy: Strategy = Move.tile(1, 4).to(Thread).done(EVICT_FIRST)
product: MatMulStrategy = (
    MatMul.tile(bm, bn).to(Block).max_shared_bytes(48 * 1024).rasterize(group_m=8).persistent(132).programmatic_launch(no_wait=B)
)
product = product.epilog(RF, init=Init.tile(1, 1).to(Thread).done(), store=copy)
product = product.split(k=32).pipeline(3).warp_specialize().mma_in_flight(1).load(A, SH, copy).load("B", SH).stages(2)
product = product.tile(64, 64).to(Warp).mma_tile().done()
assert_type(MatMul.tile(64, 64).to(Block).split_k(2, Warp, 8).pad(1).tile(8, 8), MatMulTile)
assert_type(MatMul.repack(A, order=RowMajor).tile(64, 64).to(Block).cluster(2).longest_first("m").swizzle(lambda uid: uid ^ 1), MatMulTile)
assert_type(Move.tile(8, 8).to(Warp).coalesced_copy(bm).done(), MoveStrategy)
assert_type(AnySpec.tile(1, 1).to(Thread).then(MatMul.mma_tile()).done(HMMA_16816_F32).finished, bool)


def slow(strategy: Strategy, spec: Spec) -> Strategy:
    """A function that takes a strategy of any kind continues with the verbs of the language, and with chains."""
    return strategy.load(A, SH).split(8).then(MatMul.mma_tile()).done().fallback(strategy)(spec)


def simple(tile: int, threads: int | Tunable = 4) -> Strategy:
    return MatMul.tile(tile, tile).to(Block).tile(threads, threads).to(Thread).epilog(RF).split(8).tile(1, 1).done()


assert_type(product.at(Load, "A").refine(Pad(4)).at(Tile).unrefine(Unroll).unrefined().with_(bm=64), Strategy)
assert_type(product.tunables(), dict[str, Tunable])
assert_type(list(product.legal_assignments("sm_90")), list[dict[str, int]])
assert_type(Strategy.from_json(product.to_json()), Strategy)

# ---------------------------------------------------------------------------------------------- specs

K = sym("K", multiple_of=8)
spec = MatMul(128, 256, K, dtype=float16, c_dtype=float32, A=RowMajor, B=ColMajor(ld=512), accumulate=True)(GL, GL, GL)(Kernel)
assert_type(spec, MatMulSpec)
assert_type(spec.A, View)
assert_type(spec.sizes, tuple[Expr, ...])
assert_type(spec.tile(64, 64).to(Block), MatMulTile)
assert_type(spec.reference(np.ones((2, 3)), np.ones((3, 2))).ndim, int)
assert_type(Move(M=64, N=32)(GL, SH)(Block).tile(8, 8).coalesced_copy(4).result, Spec)
assert_type(Init(8, 8, value=float("-inf"))(RF)(Warp).value, float)
assert_type(UnaryPointwise("relu", 64, K)(GL, GL)(Kernel).operation, str)
assert_type(Reduction(64, 8, by="max", axes=-1)(GL, GL)(Kernel).split(2).tile(4).to(Block).result, Spec)
Scale = Kind("Scale", "y[i,j] = {by} * x[i,j]", (Parameter("by"),)).starter
assert_type(Scale.tile(1, 1).to(Thread).done().start == Scale, bool)

# ---------------------------------------------------------------------------------------------- kernels

a, b = np.ones((128, 64), np.float32), np.ones((64, 256), np.float32)
bound = simple(16)(MatMul(128, 256, 64)(GL, GL, GL)(Kernel))
kernel = bound.compile("sm_80", options=("--use_fast_math",))
assert_type(kernel, CompiledKernel)
kernel(a, b).astype(np.float16)
kernel(A=a, B=b).astype(np.float16)
kernel(a, B=b).astype(np.float16)
assert_type(kernel(a, B=b, out=np.empty((128, 256), np.float32)).shape, tuple[int, int])
assert_type(kernel(a, b, out=np.empty((128, 256), np.float32)).shape, tuple[int, int])
assert_type(kernel.grid(M=128), int)
assert_type(bound.program(ARCHITECTURES[0]), Program)
assert_type(check(bound.program().ir), Findings)
assert_type(bound.cuda(), str)
assert_type(fireiron.matmul(a, b).dtype, np.dtype[np.float32])
fireiron.matmul(a, b, epilogue="relu(acc + bias[n])", bias=a[0])
heads = np.ones((1, 8, 64, 64), np.float16)
result, sums = fireiron.attention(heads, heads, heads, causal=True, lse=True)
assert_type(result.dtype, np.dtype[np.float16])

# ---------------------------------------------------------------------------------------------- results of tools

prediction = predict(bound, "A100", {"K": 64})
assert_type(prediction, Prediction)
assert_type((prediction.us, prediction.bottleneck, prediction.parts["DRAM"], prediction.tflops), tuple[float, str, float, float])
tuning = tune(product, spec, arch="sm_90", fixed={"bm": 64}, search="random", trials=8, prune=2.0)
assert_type(tuning, Tuning)
assert_type(tuning.best, Record | None)
assert_type(tuning.results, tuple[Result, ...])
assert_type(best_strategy(spec, "sm_90", default=True), Strategy)
for finding in check(bound.program().ir):
    assert_type((finding.kind, finding.severity, finding.message, finding.at), tuple[str, str, str, str | None])
draw(bound, ["tree", "tiles"], "gemm.html", sizes={"K": 64})
export(kernel, "folder", arch="sm_90")

# ---------------------------------------------------------------------------------------------- definitions

total = Fused(
    name="total", dims="m n", loop="n", operands={"X": "m n", "y": "m"},
    init={"zero": "s[m] = 0"}, body={"s": "s[m] += sum(n, X[m,n])"}, final={"y": "y[m] = s[m]"},
)  # fmt: skip
assert_type(total(m=64, n=K, dtype=float16, X=ColMajor), FusedSpec)
rows = (
    total.tile(m=1)
    .to(Block)
    .set_memory("s", RF)
    .split(n=32)
    .skip_masked_tiles()
    .defer("s", after="zero")
    .rfactor("s", 4)
    .step("s", AnySpec.done())
)
assert_type(rows.skip_steps("s", where="s == 0").done(), FusedStrategy)
assert_type(rows.done()(total(m=64, n=64)).compile(), FusedKernel)
assert_type(MatMul.fuse_epilogue("relu(acc)").tile(m=8, n=8).to(Block).epilog(RF).prefetch_epilogue(enable=False).done(), FusedStrategy)
