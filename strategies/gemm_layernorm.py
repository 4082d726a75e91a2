"""GEMM, bias and LayerNorm of whole rows: D = norm(A·B + bias) * gamma + beta, on tensor cores from Ampere on.

    gemm_layernorm(M,N,K)(GL,GL,GL,GL,GL,GL)(Kernel)
      tile(bm).to(Block)               gemm_layernorm(64,256,K)(GL,GL,GL,GL,GL,GL)(Block)
      step(product)                    MatMul(64,256,K)(GL,GL,RF)(Block)
        split(bk).pipeline(stages)     MatMul(64,256,32)(GL,GL,RF)(Block)           copies of 16 bytes, in flight
        load(A, SH), load(B, SH)       MatMul(64,256,32)(SH,SH,RF)(Block)           swizzled
        tile(wm,wn).to(Warp)           MatMul(32,64,32)(SH,SH,RF)(Warp)
        split(16).pipeline(2)          MatMul(32,64,16)(SH,SH,RF)(Warp)             fragments loaded one step early
        load(A, RF), load(B, RF)       MatMul(32,64,16)(RF,RF,RF)(Warp)             ldmatrix.x4
        tile(16,16).mma_tile()         MatMul(16,8,16)(RF,RF,RF)(Warp)              HMMA
      sum, variance                    Reduction(64,256)(RF,RF)(Block)              over lanes by shuffles, over warps in shared memory
      step(store)                      Move(64,256)(RF,GL)(Block)                   through shared memory, in pieces of 16 bytes

A block has whole rows: N is a constant, limited by the registers of a block, such as 64 to 256.
"""

from fireiron import *
from fireiron.strategies._fused import orders, product

SIZES = (8192, 256, 1024)

bm = Tunable("bm", 64, 32, 128)
bk = Tunable("bk", 32, 64)
wm = Tunable("wm", 32, 64, 16)
wn = Tunable("wn", 64, 32, 128)
stages = Tunable("stages", 4, 3, 5)

definition = Fused(
    name="gemm_layernorm",
    dims="m n k",
    operands={"A": "m k", "B": "k n", "bias": "n", "gamma": "n", "beta": "n", "D": "m n"},
    body={
        "product": "x[m,n] = sum(k, A[m,k] * B[k,n])",
        "bias": "x[m,n] = x[m,n] + bias[n]",
        "sum": "mean[m] = sum(n, x[m,n])",
        "mean": "mean[m] = mean[m] / size(n)",
        "center": "x[m,n] = x[m,n] - mean[m]",
        "square": "q[m,n] = x[m,n] * x[m,n]",
        "variance": "r[m] = sum(n, q[m,n])",
        "root": "r[m] = rsqrt(r[m] / size(n) + 1e-05)",
        "scale": "x[m,n] = x[m,n] * r[m] * gamma[n] + beta[n]",
        "store": "D[m,n] = x[m,n]",
    },
)

copy, fragments = Move.coalesced_copy(8).done(), Move.done()

main_loop = (
    MatMul.split(bk)
    .pipeline(stages, interleave=True)
    .load(A, SH, copy)
    .swizzle_storage()
    .load(B, SH, copy)
    .swizzle_storage()
    .tile(wm, wn)
    .to(Warp)
    .split(16)
    .unroll()
    .pipeline(2)
    .load(A, RF, fragments)
    .load(B, RF, fragments)
    .then(product)
)

store = Move.load(SRC, SH, Move.tile(wm, wn).to(Warp).done()).cast_on_copy().swizzle_storage().reuse_buffer().coalesced_copy(8).done()

strategy = (
    definition.tile(m=bm)
    .to(Block)
    .load("bias", RF, fragments)
    .load("gamma", RF, fragments)
    .load("beta", RF, fragments)
    .step("product", main_loop)
    .step("store", store)
    .done()
)


def spec(M, N, K, **options):
    """Return the problem: row-major float16 with float32 accumulators by default; C is the storage order of D."""
    return definition(m=M, n=N, k=K, **orders(options, {"A": "A", "B": "B", "C": "D"}))
