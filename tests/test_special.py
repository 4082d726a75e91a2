"""NaN, infinity, subnormal numbers, signed zeros: as specified by IEEE 754 and the instructions, in the simulator and in the printed text
on a CPU.

Random formulas are the subject `special-formulas` of the campaigns; these tests are the cases that it found, and tests of its oracle.
"""

import functools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from campaign.subjects.special import Ieee, disagreements, rounded
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.errors import FireironError
from fireiron.executable.fma import HFMA
from fireiron.executable.hfma2 import BFMA2
from fireiron.sim import simulate
from fireiron.specs.arithmetic import LARGER, SMALLER, convert

INF, NAN = np.inf, np.nan
SPECIAL = np.array([0.0, -0.0, NAN, INF, -INF, 1.0, -1.0, 3e9, -3e9, 300.0, -129.5, 2.0**-127, -(2.0**-149)])


def bits(values):
    """The compared value: the bits, all NaN being equal."""
    return [("nan" if np.isnan(one) else (float(one), bool(np.signbit(one)))) for one in np.asarray(values).astype(np.float64).ravel()]


@pytest.mark.parametrize("source", [np.float32, np.float64], ids=str)
@pytest.mark.parametrize("target", [float16, bfloat16, float32, float8_e4m3, float8_e5m2, int32, int8, uint8], ids=str)
def test_conversions_are_those_of_the_instructions(source, target):
    generator = np.random.default_rng(5)
    with np.errstate(over="ignore", under="ignore"):
        drawn = np.ldexp(generator.standard_normal(2000), generator.integers(-160, 140, 2000)).astype(source)
    ties = (1 + np.arange(64) * 2.0**-9)[:, None] + np.array([0, 2.0**-40, -(2.0**-40), 2.0**-12])
    values = np.concatenate([SPECIAL.astype(source), drawn, ties.ravel().astype(source)])
    got, want = convert(values, target), rounded(values, target)
    assert not disagreements(got, want, 0).any(), values[disagreements(got, want, 0)][:5]


def test_conversions_by_hand():
    with np.errstate(over="ignore"):
        assert convert(np.float32([NAN, INF, -INF, 3e9, -2.9, 2.9]), int32).tolist() == [0, 2**31 - 1, -(2**31), 2**31 - 1, -2, 2]
        assert convert(np.float64([NAN, 1e300]), int32).tolist() == [0, 2**31 - 1]
        assert convert(np.float32([300, -129.5, INF, -INF, NAN]), int8).tolist() == [127, -128, 127, -128, 0]
        assert convert(np.float32([300, -1, INF, NAN, 254.9]), uint8).tolist() == [255, 0, 255, 0, 254]
    assert bits(convert(np.float32([500, -INF, NAN]), float8_e4m3)) == bits([448, -448, NAN])
    assert bits(convert(np.float32([6e4, -INF]), float8_e5m2)) == bits([57344, -57344])
    just_above = np.float64(1 + 2.0**-8 + 2.0**-40)  # rounded to float32 it is a tie of two numbers, and rounded down
    assert float(convert(just_above, bfloat16)) == 1 + 2.0**-7
    assert float(convert(np.int32(2**25 + 2**17 + 1), bfloat16)) == 2**25 + 2**18
    assert bits(convert(np.float64([1e39, -1e39, 1e-300]), bfloat16)) == bits([INF, -INF, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64, float16.to_numpy(), bfloat16.to_numpy()], ids=str)
def test_maxima_of_zeros_and_nan(dtype):
    """PTX ISA, max: of a number and NaN the number; +0 > -0. `reduce` agrees for many values in any order."""
    left, right = (one.ravel().astype(dtype) for one in np.meshgrid(SPECIAL[:7], SPECIAL[:7]))
    ieee = Ieee(dtype)
    for extreme, name in ((LARGER, "max"), (SMALLER, "min")):
        want = ieee.exactly(name, left, right)
        assert bits(extreme(left, right)) == bits(want)
        assert bits(extreme.reduce(np.stack([left, right]), axis=0)) == bits(want)
    assert bits(LARGER(np.asarray(-0.0, dtype), 0)) == bits([0.0]) and bits(
        SMALLER(np.asarray(0.0, dtype), np.asarray(-0.0, dtype))
    ) == bits([-0.0])
    assert LARGER(np.int32(-3), np.int32(0)) == 0


def kernel(formula, sources, result, target="sm_90"):
    spec = Pointwise(formula, 4, 16, dtype=sources, y_dtype=result)(*(GL,) * (len(sources) + 1))(Kernel)
    return Pointwise.tile(4, 16).to(Block).tile(1, 1).to(Thread).done()(spec).program(target)


CASES = [
    ("y[m,n] = relu(x[m,n])", float32, float32, [NAN, -0.0, 0.0, -INF, INF], [0.0, 0.0, 0.0, 0.0, INF]),
    ("y[m,n] = max(x[m,n], -0.0)", float16, float16, [0.0, -0.0, NAN], [0.0, -0.0, -0.0]),
    ("y[m,n] = exp2(x[m,n])", float32, float32, [-126, -127, -149, 128, NAN, -INF, INF], [2.0**-126, 0.0, 0.0, INF, NAN, 0.0, INF]),
    ("y[m,n] = exp2(x[m,n])", float64, float64, [-127.0, 1024.0], [2.0**-127, INF]),
    ("y[m,n] = gelu(x[m,n])", float32, float32, [3e38, INF, -INF, NAN], [float(np.float32(3e38)), INF, NAN, NAN]),
    ("y[m,n] = rsqrt(x[m,n])", float32, float32, [0.0, -0.0, INF, -1.0], [INF, -INF, 0.0, NAN]),
    ("y[m,n] = x[m,n] * 2", float32, int32, [NAN, 2e9, -2e9, INF, -0.7], [0, 2**31 - 1, -(2**31), 2**31 - 1, -1]),
    ("y[m,n] = x[m,n] * 2", float32, int8, [150.0, -0.7, NAN], [127, -1, 0]),
    ("y[m,n] = x[m,n] * 2", float64, bfloat16, [0.5 + 2.0**-9 + 2.0**-41], [1 + 2.0**-7]),
    ("y[m,n] = -x[m,n] / 8", int8, float32, [0, 8, -128], [0.0, -1.0, 16.0]),  # the minus is one of integers
    ("y[m,n] = where(x[m,n] < 0, 1, x[m,n])", float32, float32, [NAN, -0.0, -INF], [NAN, -0.0, 1]),
    ("y[m,n] = where(x[m,n] != x[m,n], 7, x[m,n])", float32, float32, [NAN, -0.0], [7, -0.0]),
]


def filled(values, dtype):
    """An array of the values, repeated."""
    with np.errstate(over="ignore"):
        return np.resize(np.asarray(values), (4, 16)).astype(dtype.to_numpy())


@pytest.mark.parametrize(("formula", "source", "result", "given", "wanted"), CASES, ids=[f"{one[0]} {one[2]}" for one in CASES])
def test_special_numbers_in_the_simulator(formula, source, result, given, wanted):
    got = simulate(kernel(formula, (source,), result).ir, {"x": filled(given, source)}).outputs["y"]
    assert bits(got) == bits(filled(wanted, result))


def test_functions_of_integers_alone_have_no_negative_zero():
    ieee = Ieee(np.float32)
    assert bits(ieee.exactly("neg", np.array([0, 3]))) == bits([0.0, -3.0])
    assert bits(ieee.exactly("neg", np.zeros(1, np.float32))) == bits([-0.0])
    assert bits(ieee.exactly("mul", ieee.exactly("neg", np.array([0])), np.float32([-2.0]))) == bits([-0.0])


def test_pairs_of_two_types_are_no_pair():
    """bfloat16 and bfloat16 to float16: no instruction does it, and the text would not compile."""
    spec = Pointwise("y[m,n] = x[m,n] + z[m,n]", 8, 16, dtype=(bfloat16, bfloat16), y_dtype=float16)(GL, GL, GL)(Kernel)
    pairs = Pointwise.tile(8, 16).to(Block).tile(1, 2).to(Thread).done()
    with pytest.raises(FireironError, match="all float16, or all bfloat16"):
        _ = pairs(spec).program("sm_90").ir


# ---------------------------------------------------------------------------------------------- fused multiply-add

FUSED = {
    bfloat16: [
        (1 + 2.0**-4, 1 + 2.0**-4, 2.0**-30),  # the product is a tie: the addend decides, however small it is
        (1 + 2.0**-4, 1 + 2.0**-4, -(2.0**-100)),
        (-1 - 2.0**-4, 1 + 2.0**-4, 2.0**-133),
        (1.5, 1 + 2.0**-6, 2.0**-70),  # an odd number below, an even one above
        (1.5, 1 + 2.0**-6, -(2.0**-70)),
        (2.0**-100, 2.0**-100, 1 + 2.0**-7),  # the sum is not a tie: the product is small
        (2.0**64, 2.0**64, -(2.0**127)),  # infinite in float32 before the sum
        (2.0**127, 2 - 2.0**-8 + 2.0**-8, -(2.0**119)),
        (2.0**127, 2 - 2.0**-7, 2.0**118),
        (2.0**-67, 2.0**-67, 2.0**-133),  # a tie of subnormal numbers, and values next to it
        (2.0**-67, 2.0**-67, 0.0),
        (1.5 * 2.0**-67, 2.0**-67, -(2.0**-133)),
    ],
    float16: [
        (1 + 2.0**-6, 1 + 2.0**-6 - 2.0**-7, 2.0**-24),
        (1 + 2.0**-5, 1 + 2.0**-6, 2.0**-24),
        (1 + 2.0**-5, 1 + 2.0**-6, -(2.0**-24)),
        (2.0**-12, 2.0**-13, 2.0**-24),
        (256.0, 256.0, -16.0),
        (2.0**-20, 2.0**-20, 1 + 2.0**-10),
    ],
}


def once(a, b, c, dtype):
    """a b + c rounded to nearest even, in Fractions: exact, and rounded once."""
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    info = ml_dtypes.finfo(dtype.to_numpy())
    size, exponent = abs(exact), int(info.minexp)
    while size >= Fraction(2) ** (exponent + 1):
        exponent += 1
    step = Fraction(2) ** (exponent - info.nmant)
    near = round(size / step) * step  # Fractions round to even
    return math.copysign(math.inf if near > Fraction(float(info.max)) else float(near), exact)


def drawn_ties(dtype, count=150):
    """Products that are ties, or near them, with small addends."""
    info, generator = ml_dtypes.finfo(dtype.to_numpy()), np.random.default_rng(4)
    cases = []
    while len(cases) < count:
        a, b = (float(1 + generator.integers(2**info.nmant) * 2.0**-info.nmant) for _ in range(2))
        half = Fraction(a) * Fraction(b) * 2 ** (info.nmant + 1) / (2 if a * b >= 2 else 1)
        if half.denominator == 1 and half % 2:
            small = float(generator.choice([0.0, 1.0, -1.0])) * 2.0 ** float(generator.integers(info.minexp - info.nmant, -info.nmant - 2))
            cases.append((float(generator.choice([-a, a])), b, small))
    return cases


def products(dtype, instruction, m, n):
    """C[i,j] = A[i,1] B[1,j] + A[i,0], as B[0,j] is 1: a chain of two multiply-adds, of which the first is exact."""
    spec = MatMul(16, 16, 2, dtype=dtype, c_dtype=dtype)(GL, GL, GL)(Kernel)
    thread = MatMul.tile(16, 16).to(Block).epilog(RF).tile(4, 4).to(Thread).split(1).load(A, RF).load(B, RF)
    return thread.tile(m, n).done(instruction)(spec).program("sm_90")


def formulas(dtype, text):
    """A formula on pairs."""
    definition = Fused(name="sums", dims="m n", operands=dict.fromkeys("abcy", "m n"), body={"y": text})
    lane = Move.tile(1, 256).to(Warp).tile(1, 8).to(Lane).done()
    return definition.tile(m=1, n=256).to(Block).load("a", RF, lane).done()(definition(m=1, n=256, dtype=dtype)).program("sm_90")


SUMS = [
    (bfloat16, "y[m,n] = c[m,n] - a[m,n] * b[m,n]", -1, 1),
    (bfloat16, "y[m,n] = max(a[m,n] * b[m,n] - c[m,n], a[m,n])", 1, -1),
    (float16, "y[m,n] = a[m,n] * b[m,n] + c[m,n]", 1, 1),
]
CHAINS = [(bfloat16, BFMA2, 2, 1), (float16, HFMA, 1, 1)]


@functools.cache
def rounded_once():
    """Programs, their inputs, and the results of `fma.rn.bf16x2` and `fma.rn.f16x2`, at and near ties."""
    cases = []
    for dtype, instruction, m, n in CHAINS:
        a, b, c = zip(*[*FUSED[dtype], *drawn_ties(dtype)][:16], strict=True)
        wanted = np.array([[once(x, y, z, dtype) for y in b] for x, z in zip(a, c, strict=True)])
        arrays = {"A": np.stack([c, a], 1), "B": np.stack([np.ones(16), b])}
        cases.append((products(dtype, instruction, m, n), arrays, wanted, dtype))
    for dtype, text, sign, other in SUMS:
        a, b, c = (np.resize(one, (1, 256)) for one in zip(*FUSED[dtype], *drawn_ties(dtype, 240), strict=True))
        wanted = np.array([once(sign * x, y, other * z, dtype) for x, y, z in zip(a.flat, b.flat, c.flat, strict=True)])[None]
        cases.append((formulas(dtype, text), {"a": a, "b": b, "c": c}, np.fmax(wanted, a) if "max" in text else wanted, dtype))
    return [
        (program, {name: one.astype(dtype.to_numpy()) for name, one in arrays.items()}, wanted) for program, arrays, wanted, dtype in cases
    ]


def not_rounded_once(program, outputs, wanted):
    (got,) = outputs.values()
    return [(str(program.spec), float(got[tuple(at)]), wanted[tuple(at)]) for at in np.argwhere(got.astype(np.float64) != wanted)[:5]]


def test_a_product_and_a_sum_are_rounded_once_in_the_simulator():
    assert sum("__hfma2(" in program.cuda for program, *_ in rounded_once()) == 4
    for program, arrays, wanted in rounded_once():
        assert not not_rounded_once(program, simulate(program.ir, arrays).outputs, wanted)


# ---------------------------------------------------------------------------------------------- the text on a CPU


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_special_numbers_in_the_printed_text(tmp_path):
    fused = rounded_once()
    programs = [*(kernel(formula, (source,), result) for formula, source, result, *_ in CASES), *(program for program, *_ in fused)]
    host = HostProgram([Printed.of(program) for program in programs], tmp_path)
    for number, (formula, source, result, given, wanted) in enumerate(CASES):
        assert bits(host.run(number, {"x": filled(given, source)})["y"]) == bits(filled(wanted, result)), formula
    for number, (program, arrays, wanted) in enumerate(fused, len(CASES)):
        assert not not_rounded_once(program, host.run(number, arrays), wanted)
