"""8-bit factors of products of 16-bit floats: fragments are converted in pairs, and lane maps have adjacent elements (oracle: NumPy)."""

import functools

import numpy as np
import printed_text
import pytest

from fireiron import *
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.sim import simulate

BY_K = {float16: HMMA_16816_F32_K4, bfloat16: HMMA_16816_F32_BF16_K4}
BY_N = {float16: HMMA_163216_F32_N4, bfloat16: HMMA_163216_F32_BF16_N4}

PROBLEMS = [
    (float16, float8_e4m3, "k"),
    (bfloat16, float8_e5m2, "n"),
    (float16, float8_e5m2, "plain"),
    (bfloat16, float8_e4m3, "k"),
    (float16, float8_e4m3, "n"),
    (float16, int8, "plain"),
]
"""The types of both factors, and the dimension that the lane maps interleave. B is stored by columns, or by rows with `n`."""


@functools.cache
def program(kind, small, interleaved, target="sm_90a"):
    order = RowMajor if interleaved == "n" else ColMajor
    spec = MatMul(16, 32, 32, dtype=(kind, small), c_dtype=float32, A=RowMajor, B=order, C=RowMajor)(GL, GL, GL)(Kernel)
    rows = spec.tile(16, 32).to(Block).load(A, SH, Move.coalesced_copy(8).done()).load(B, SH, Move.coalesced_copy(16).done())
    steps = rows.tile(16, 32).to(Warp).epilog(RF, float32).split(16).unroll()
    steps = steps.load(A, RF, Move.done()).load(B, RF, Move.done()).cast_on_copy()
    if interleaved == "plain":
        return steps.tile(16, 16).unroll().mma_tile().done().program(target)
    steps = steps.tile(16, 8).unroll().done(BY_K[kind]) if interleaved == "k" else steps.tile(16, 32).done(BY_N[kind])
    return steps.program(target)


def factors(kind, small):
    """Random factors; B has all numbers of its type but NaN and infinity."""
    draw = np.random.default_rng(3)
    bits = np.arange(1024, dtype=np.uint8).reshape(32, 32).view(small.to_numpy())
    b = np.where(np.isfinite(bits.astype(float)), bits.astype(float), 1).astype(small.to_numpy())
    return draw.standard_normal((16, 32)).astype(kind.to_numpy()), draw.permuted(b, axis=0)


@pytest.mark.parametrize(("kind", "small", "interleaved"), PROBLEMS)
def test_products(kind, small, interleaved):
    """The product is that of the converted numbers, and 8-bit floats are converted in pairs."""
    a, b = factors(kind, small)
    bound = program(kind, small, interleaved)
    expected = a.astype(float) @ b.astype(float)
    got = simulate(bound.ir, {"A": a, "B": b}).outputs["C"]
    np.testing.assert_allclose(got, expected, atol=1e-6 * np.abs(a.astype(float)).sum(1).max() * np.abs(b.astype(float)).max())
    assert ("_pair_to_" in bound.cuda) == (small != int8)


@pytest.mark.skipif(printed_text.COMPILER is None, reason="no C++ compiler")
def test_printed_text(tmp_path):
    """The text itself, with NaN and infinity, equals the simulator."""
    bounds = [program(*problem) for problem in PROBLEMS[:3]]
    host = printed_text.HostProgram([printed_text.Printed.of(one) for one in bounds], tmp_path)
    for number, ((kind, small, _), bound) in enumerate(zip(PROBLEMS, bounds, strict=False)):
        a, b = factors(kind, small)
        b[3, 5], b[7, 11] = np.nan, np.nan if small == float8_e4m3 else np.inf
        got, expected = host.run(number, {"A": a, "B": b}, seed=number)["C"], simulate(bound.ir, {"A": a, "B": b}).outputs["C"]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-3)
        assert np.isnan(got[:, 5]).all() and np.isfinite(got).sum() == 16 * 30


@pytest.mark.skipif(not toolchains(), reason="no NVRTC")
@pytest.mark.parametrize("target", ("sm_80", "sm_90a"))
def test_compiled(target):
    for kind, small, interleaved in PROBLEMS[:2]:
        bound = program(kind, small, interleaved, target)
        assert not compile_cuda(bound.cuda, target).resources[bound.name].stack_frame


def test_loads_have_the_width_of_a_register():
    """The four elements of a lane are one load, along k or along n."""
    for kind, small, interleaved in PROBLEMS[:2]:
        text = program(kind, small, interleaved).cuda
        assert "*reinterpret_cast<unsigned int*>(&piece[0])" in text and ("__byte_perm" in text) == (interleaved == "n")


def test_types_that_are_refused():
    spec = MatMul(16, 16, 16, dtype=(float8_e4m3, float16), c_dtype=float32)(GL, GL, GL)(Kernel).tile(16, 16).to(Block)
    with pytest.raises(DecompositionError, match="no type with all numbers of float16"):
        _ = spec.load(B, SH).cast_on_copy().result
    with pytest.raises(DecompositionError, match="has no single destination"):
        _ = Pointwise("y[m] = x[m]", 32)(GL, GL)(Kernel).tile(32).to(Block).load("x", SH).cast_on_copy().result


def test_notation():
    for kind in (float16, bfloat16):
        for instruction in (BY_K[kind], BY_N[kind]):
            assert eval(repr(instruction)) is instruction
