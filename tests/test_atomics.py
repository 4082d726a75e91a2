"""The thread-level rows of Graphene's Table 2, as residual specs in whole kernels: matched, compiled, simulated."""

import numpy as np
import pytest

from fireiron import *
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")


def through(memory_steps, M, N, dtype):
    """A Move kernel with steps in between."""
    spec = Move(M, N, dtype=dtype)(GL, GL)(Kernel)
    return memory_steps(spec.tile(M, N).to(Block))(spec)


def simulated(program, spec):
    data = {
        name: np.random.default_rng(1)
        .integers(-5, 6, [int(str(s)) for s in spec.operands[name].shape])
        .astype(spec.operands[name].dtype.to_numpy())
        for name in spec.inputs
    }
    (output,) = spec.outputs
    np.testing.assert_array_equal(simulate(program.ir, data).outputs[output], spec.reference(*data.values()))


@needs_nvrtc
@pytest.mark.parametrize(
    ("dtype", "count", "first", "second", "load", "store"),
    [
        (float32, 1, RF, None, "ld.global", "st.global"),
        (float16, 8, RF, None, "ld.global.nc.v4.u32|ld.global.nc.v4.b32|ld.global.v4", "st.global.v4"),
        (float32, 4, RF, SH, "st.shared.v4", "st.global.v4"),
        (float64, 2, RF, None, "ld.global.nc.v2|ld.global.v2", "st.global.v2"),
        (int8, 16, RF, None, "v4", "v4"),
    ],
)
def test_moves(dtype, count, first, second, load, store):
    import re

    M, N = 64 * count, 2
    spec = Move(M, N, dtype=dtype)(GL, GL)(Kernel)
    chain = spec.tile(M, N).to(Block).tile(count, 1).to(Thread).load(SRC, first, Move.done())
    if second is not None:
        chain = chain.load(SRC, second, Move.done())
    program = chain.done().program("sm_90")
    ptx = compile_cuda(program.cuda, "sm_90").ptx
    assert re.search(load, ptx) and re.search(store, ptx), ptx
    simulated(program, spec)


@needs_nvrtc
@pytest.mark.parametrize(("operation", "dtype", "shape", "text"), [
    ("*", float16, (1, 1), "__hmul("), ("+", float16, (2, 1), "__hadd2("), ("-", bfloat16, (2, 1), "__hsub2("),
    ("*", float32, (1, 1), " * "), ("+", int32, (1, 1), " + "), ("-", float64, (1, 1), " - "),
])  # fmt: skip
def test_pointwise(operation, dtype, shape, text):
    spec = BinaryPointwise(operation, 64, 6, dtype=dtype)(GL, GL, GL)(Kernel)
    chain = (
        spec.tile(32, 6)
        .to(Block)
        .tile(4, 1)
        .to(Thread)
        .load("lhs", RF, Move.done())
        .load("rhs", RF, Move.done())
        .tile(*shape)
        .unroll()
        .done()
    )
    program = chain.program("sm_90")
    assert text in program.cuda
    compile_cuda(program.cuda, "sm_90")
    simulated(program, spec)


@pytest.mark.parametrize(("dtype", "shape", "name"), [
    (float32, (1, 1), "FFMA"), (float16, (1, 1), "HFMA"), (float16, (2, 1), "HFMA2"), (float16, (1, 2), "HFMA2"),
    (bfloat16, (2, 1), "BFMA2"), (float64, (1, 1), "DFMA"), (int32, (1, 1), "IMAD"), (int8, (1, 1), "IMAD"),
])  # fmt: skip
def test_matmul_leaves(dtype, shape, name):
    spec = MatMul(*shape, 1, dtype=dtype)(RF, RF, RF)(Thread)
    matching = [one.name for one in INSTRUCTIONS if not one.mismatches(spec, ARCHITECTURES[-1])]
    assert matching == [name]


def test_half_needs_its_architecture():
    spec = MatMul(32, 32, 8, dtype=float16)(GL, GL, GL)(Kernel)
    strategy = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    with pytest.raises(MatchError, match="sm_53 or newer"):
        _ = strategy(spec).program("sm_52").ir
    mixed = MatMul.tile(32, 32).to(Block).epilog(SH).split(4).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    wide = MatMul(32, 32, 8, dtype=float16, accumulator=float32)(GL, GL, GL)(Kernel)
    text = mixed(wide).cuda("sm_52")
    assert "fmaf(" in text and "__half2float(A[" in text
