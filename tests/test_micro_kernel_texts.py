"""All names of a micro-kernel's contract in the texts of some kernels, as a readable golden: `goldens/micro_kernels.cu`. The generators
test the results.
"""

from pathlib import Path

from goldens.readable import differences

from fireiron import *

GOLDEN = Path(__file__).resolve().parent / "goldens" / "micro_kernels.cu"

DOT = "for (int p = 0; p < a_size_k; ++p) c_at(0, 0) = (accumulate || p ? c_at(0, 0) : c_type(0)) + a_at(0, p) * b_at(p, 0);"
STRIDES = """
// by pointers; a_at, scratch and "c_size_m" appear only here
c[0] = accumulate ? c[0] + a[0] * b[0] : a[0] * b[0];
/* b_stride_n is not used */ const char* name = "b_size_n";
c[c_stride_m] = a[a_stride_m] * b[b_stride_k] + float(a_size_m + b_size_k + c_size_n);
"""
WITH_REGISTERS = """
for (int r = 0; r < c_registers; ++r) {
  if (c_m(r) < a_size_m && c_n(r) < b_size_n)
    for (int p = 0; p < a_size_k; ++p)
      c[r] = (accumulate || p ? c[r] : c_type(0)) + c_type(a_at(c_m(r), p)) * c_type(b_at(p, c_n(r)));
}
"""
SCRATCH = """
if (threadIdx.x < scratch_size) scratch[threadIdx.x] = 0;
__syncthreads();
dst_at(0, 0) = src_at(0, 0);
"""


def threads(chain):
    return chain.tile(8, 8).to(Block).tile(1, 1).to(Thread)


def with_registers(memory, text, **loads):
    """A block whose accumulators are owned by its threads."""
    element_tiles = Move.tile(2, 2).to(Thread).tile(1, 1).done()
    chain = MatMul.tile(8, 8).to(Block).epilog(RF, Init.tile(2, 2).to(Thread).tile(1, 1).done(), element_tiles).split(4)
    chain = (
        chain.load(A, memory, Move.tile(1, 1).to(Thread).done()).pad(1).load(B, memory, Move.tile(1, 1).to(Thread).done()).to_row_major()
    )
    return chain.done(MicroKernel("held", text))


def product(*sizes, **options):
    return MatMul(*sizes, **options)(GL, GL, GL)(Kernel)


def scaled(memory, text):
    problem = Pointwise("y[m] = alpha * x[m]", 9)(memory, GL, GL)(Kernel)
    return problem.tile(8).to(Block).tile(1).to(Thread).done(MicroKernel("scale", text))


ROWS, K = sym("rows", multiple_of=2), sym("k")

KERNELS = {
    "one line at the edge": lambda: threads(MatMul).split(4).done(MicroKernel("dot", DOT))(product(9, 8, 6)),
    "one line of two statements": lambda: (
        threads(MatMul).split(4).split(1).done(MicroKernel("two", "c[0] += a[0] * b[0]; c[0] += 0;"))(product(8, 8, 6))
    ),
    "sizes at run time": lambda: threads(MatMul).split(4).done(MicroKernel("dot", DOT))(product(ROWS, 8, K)),
    "sums that are added": lambda: threads(MatMul).split(4).done(MicroKernel("dot", DOT))(product(9, 8, K, accumulate=True)),
    "strides": lambda: (
        MatMul.tile(8, 8).to(Block).tile(2, 2).to(Thread).split(2).done(MicroKernel("strides", STRIDES))(product(8, 8, K, A=RowMajor, C=RowMajor(ld=12)))
    ),
    "elements apart": lambda: (
        threads(MatMul).split(Layout((2, 2, 3), (1, 4, 16))).done(MicroKernel("dot", DOT))(product(8, 8, K, dtype=float16, c_dtype=float32))
    ),
    "elements two apart": lambda: threads(MatMul).split(Layout(3, 2)).done(MicroKernel("dot", DOT))(product(8, 8, 7)),
    "registers of a block": lambda: with_registers(SH, WITH_REGISTERS)(product(9, 8, 6)),
    "registers of a block, at run time": lambda: with_registers(SH, WITH_REGISTERS)(product(9, K, 8, dtype=float16, c_dtype=float32, accumulator=float32)),
    "factors in shared memory, swizzled": lambda: (
        MatMul.tile(8, 8).to(Block).split(4).load(A, SH).swizzle_storage(Swizzle(1, 0, 3)).load(B, SH).tile(1, 1).to(Thread)
        .done(MicroKernel("dot", DOT))(product(8, 9, 6))
    ),
    "a copy with scratch": lambda: (
        Move.tile(4, 4).to(Block).done(MicroKernel("copy", SCRATCH, scratch_bytes=24, threads=16))(Move(9, K)(GL, GL)(Kernel))
    ),
    "operands called as arrays are": lambda: scaled(GL, "y[0] = *alpha * x_at(0);"),
    "an operand that is not used": lambda: scaled(GL, "y[0] = x_at(0);"),
    "a number by value": lambda: scaled(VAL, "y[0] = alpha * x_at(0);"),
}  # fmt: skip


def text():
    parts = []
    for name, make in KERNELS.items():
        parts += [f"// ---- {name}", make().cuda("sm_80").strip(), ""]
    return "\n".join(parts)


def test_the_texts_equal_the_golden():
    changes = differences(GOLDEN, text())
    assert not changes, changes
