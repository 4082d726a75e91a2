"""Integers in formulas are exact: `reference()`, the simulator and the printed text, executed on the CPU, compared with Python integers.

The formulas are random, made of coordinates, extents, constants and elements of uint8, int8 and int32, near the limits of 31, 32 and 63
bits. This file evaluates them with Python integers, which have no width. FIREIRON_FUZZ multiplies draws.
"""

import math
import os
import random

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.errors import ArgumentError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.specs import meaning
from fireiron.specs.formula import Number, Operation, formula_of
from fireiron.specs.meaning import number_of

SEED = 20281128
SCALE = int(os.environ.get("FIREIRON_FUZZ", "1"))
SIZES = {"m": 11, "n": 37}
EACH = 12
"""Formulas per kernel."""

NUMBERS = (0, 1, 2, 3, 7, 127, 128, 255, 256, 46341, 65536, 2**24 + 1, 100000000, 2**31 - 1, 2**31, 3000000000, 2**32 - 1, 2**32, 2**40 + 1)
TENSORS = {"a": uint8, "b": int8, "c": int32, "d": int64}
RESULTS = (int32, uint8, int8, float32, int64)


@attrs.frozen
class Node:
    """A value or a condition: its text, and its integer at a point, which gives the read values by name."""

    text: str
    at: object


def leaf(random):
    kind = random.randrange(8)
    if kind < 2:
        name = random.choice("mn")
        return Node(name, lambda point: point[name])
    if kind == 2:
        name = random.choice("mn")
        return Node(f"size({name})", lambda point: SIZES[name])
    if kind < 5:
        number = random.choice(NUMBERS)
        return Node(str(number), lambda point: number)
    name = random.choice("abccd")
    return Node(f"{name}[m,n]", lambda point: point[name])


BITS = ("//", "%", "<<", ">>", "&", "or", "xor", "~")
"""The operators that only integers have; each has a generator in `of_bits`."""

CALLS = ("clamp", "floor", "int32", "mulhi", "bits", "e2m1", "e8m0", "philox")
"""Functions of integers; each has a generator in `of_calls`."""


def words_of_philox(seed, counter):
    """Philox4x32-10 in Python integers."""
    counter, key = [*(word % 2**32 for word in counter), *[0] * (4 - len(counter))], [seed % 2**32, (seed >> 32) % 2**32]
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [second // 2**32 ^ counter[1] ^ key[0], second % 2**32, first // 2**32 ^ counter[3] ^ key[1], first % 2**32]
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return counter


def _bits_of_scale(number):
    """The bits of 2^(n - 127) in float32; of its NaN for 255."""
    return 0x7FC00000 if number == 255 else number << 23 or 1 << 22


def of_calls(random, kind, left, other):
    """A function of integers, or of a float whose result is an integer."""
    first, second = sorted(random.choices(NUMBERS, k=2))
    match kind:
        case "clamp":
            return Node(f"clamp({left.text}, -{first}, {second})", lambda point: min(max(left.at(point), -first), second))
        case "floor":
            return Node(f"{random.choice(('floor', 'round'))}({left.text})", left.at)
        case "int32":
            return Node(f"int32({left.text})", lambda point: (left.at(point) + 2**31) % 2**32 - 2**31)
        case "mulhi" if random.random() < 0.5:
            return Node(
                f"mulhi({left.text} & 0xffffffff, {other.text} & 0xfffffff)",
                lambda point: (left.at(point) % 2**32) * (other.at(point) % 2**28) >> 32,
            )
        case "mulhi":
            return Node(
                f"mulhi(int32({left.text}), int32({other.text}))",
                lambda point: ((left.at(point) + 2**31) % 2**32 - 2**31) * ((other.at(point) + 2**31) % 2**32 - 2**31) >> 32,
            )
        case "bits":
            return Node("bits(X[m,n])", lambda point: int(np.float32(point["X"]).view(np.uint32)))
        case "e2m1":
            halves = (0, 1, 2, 3, 4, 6, 8, 12)
            return Node(f"int32(e2m1({left.text}) * 2)", lambda point: halves[left.at(point) % 8] * (-1) ** (left.at(point) // 8 % 2))
        case "e8m0":
            return Node(f"bits(e8m0({left.text}))", lambda point: _bits_of_scale(left.at(point) % 256))
    seed, number = random.choice((0, 5, 2**31 - 1, 2**40 + 7)), random.randrange(4)
    if random.random() < 0.5:
        return Node(f"philox({seed}, {left.text})", lambda point: words_of_philox(seed, [left.at(point)])[0])
    return Node(
        f"philox(m - {seed}, {left.text}, n, {other.text}, 77, {number})",
        lambda point: words_of_philox(point["m"] - seed, [left.at(point), point["n"], other.at(point), 77])[number],
    )


def of_bits(random, kind, left, other):
    """An operator that only integers have; its right operand is legal, or made legal."""
    constant = random.choice((1, 2, 3, 7, 10, 16, 127, 128, 1000, 2**31 - 1, 2**33))
    positive = Node(f"max(1, {other.text})", lambda point, other=other: max(other.at(point), 1))
    if random.random() < 0.6:
        positive = Node(str(constant), lambda point: constant)
    count = random.choice((0, 1, 3, 8, 16, 31, 32, 40, 63))
    bits = 63 if random.random() < 0.3 else 15
    few = Node(f"({other.text} & {bits})", lambda point, other=other: other.at(point) & bits)
    if random.random() < 0.5:
        few = Node(str(count), lambda point: count)
    mask = random.choice((0xFF, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFF0000, 1, 0xFFFFFFFFFF))
    if kind in ("&", "or", "xor") and random.random() < 0.5:
        other = Node(hex(mask) if random.random() < 0.5 else str(mask), lambda point: mask)
    match kind:
        case "//":
            return Node(f"({left.text} // {positive.text})", lambda point: left.at(point) // positive.at(point))
        case "%":
            return Node(f"({left.text} % {positive.text})", lambda point: left.at(point) % positive.at(point))
        case "<<":
            return Node(f"({left.text} << {few.text})", lambda point: left.at(point) << few.at(point))
        case ">>":
            return Node(f"({left.text} >> {few.text})", lambda point: left.at(point) >> few.at(point))
        case "&":
            return Node(f"({left.text} & {other.text})", lambda point: left.at(point) & other.at(point))
        case "or":
            return Node(f"({left.text} | {other.text})", lambda point: left.at(point) | other.at(point))
        case "xor":
            return Node(f"({left.text} ^ {other.text})", lambda point: left.at(point) ^ other.at(point))
    return Node(f"(~{left.text})", lambda point: ~left.at(point))


def value(random, depth):
    if depth == 0 or random.random() < 0.15:
        return leaf(random)
    kind = random.choice(("+", "+", "+", "-", "-", "-", "*", "*", "*", "^", "|", "<", ">", "r", "?", *BITS, *BITS, *CALLS))
    left, other = value(random, depth - 1), value(random, depth - 1)
    if kind in "<>" and left.text.startswith(("m", "n", "size")):  # a name as the first argument denotes a reduced dimension
        left = Node(f"(0 + {left.text})", left.at)
    if kind in BITS:
        return of_bits(random, kind, left, other)
    if kind in CALLS:
        return of_calls(random, kind, left, other)
    match kind:
        case "+":
            return Node(f"({left.text} + {other.text})", lambda point: left.at(point) + other.at(point))
        case "-":
            return Node(f"({left.text} - {other.text})", lambda point: left.at(point) - other.at(point))
        case "*":
            return Node(f"({left.text} * {other.text})", lambda point: left.at(point) * other.at(point))
        case "^":
            return Node(f"(-{left.text})", lambda point: -left.at(point))
        case "|":
            return Node(f"abs({left.text})", lambda point: abs(left.at(point)))
        case "<":
            return Node(f"min({left.text}, {other.text})", lambda point: min(left.at(point), other.at(point)))
        case ">":
            return Node(f"max({left.text}, {other.text})", lambda point: max(left.at(point), other.at(point)))
        case "r":
            return Node(f"relu({left.text})", lambda point: max(left.at(point), 0))
    test = condition(random, depth - 1)
    return Node(f"where({test.text}, {left.text}, {other.text})", lambda point: (left if test.at(point) else other).at(point))


COMPARED = {
    "<": int.__lt__, "<=": int.__le__, ">": int.__gt__, ">=": int.__ge__, "==": int.__eq__, "!=": int.__ne__,
}  # fmt: skip


def condition(random, depth):
    sign = random.choice(list(COMPARED))
    left, other = value(random, depth), value(random, max(depth - 1, 0))
    if random.random() < 0.2:
        number = random.choice(NUMBERS)
        other = Node(f"{number}.0" if random.random() < 0.5 else str(number), lambda point: number)
    first = Node(f"{left.text} {sign} {other.text}", lambda point: COMPARED[sign](left.at(point), other.at(point)))
    if random.random() < 0.2 and depth > 0:
        second = condition(random, depth - 1)
        if random.random() < 0.5:
            return Node(f"({first.text} and {second.text})", lambda point: first.at(point) and second.at(point))
        return Node(f"({first.text} or {second.text})", lambda point: first.at(point) or second.at(point))
    return first


def sizes_of(symbolic):
    return {"m": sym("M", high=1 << 20), "n": sym("N", high=1 << 20)} if symbolic else SIZES


def alone(text, result, symbolic):
    """A definition with only this formula, to test its refusal."""
    definition = Fused(name="one", dims="m n", operands={**operands_of(text), "Y": "m n"}, body={"one": f"Y[m,n] = {text}"})
    return definition(**sizes_of(symbolic), types={**types_of(text), "Y": result})


def operands_of(text):
    return {name: "m n" for name in (*TENSORS, "X") if f"{name}[" in text}


def types_of(text):
    return {name: {**TENSORS, "X": float32}[name] for name in operands_of(text)}


def drawn(seed, symbolic):
    """Legal formulas, each with its exact integers and the type of its result, and the number of refused ones."""
    source, formulas, refused = random.Random(seed), [], 0
    while len(formulas) < EACH:
        result = source.choice(RESULTS)
        if source.random() < 0.3:
            test = condition(source, 3)
            node, result = Node(f"where({test.text}, X[m,n], 0)", lambda point, test=test: point["X"] if test.at(point) else 0), float32
        else:
            node = value(source, 3)
        if "[" not in node.text:
            continue
        try:
            alone(node.text, result, symbolic)
        except ArgumentError as error:
            assert "64 bits" in str(error), (node.text, error)
            refused += 1
            continue
        formulas.append((node, result))
    return formulas, refused


def stored(number, result):
    """An exact integer as an element of a type: its lower bits, or the nearest float."""
    if result.kind == "float":
        return np.int64(number).astype(np.float32) if -(2**63) <= number < 2**63 else None
    return np.array(number & ((1 << result.bits) - 1), np.uint64).astype(result.to_numpy())


def arrays(seed):
    source, shape = np.random.default_rng(seed), tuple(SIZES.values())
    edges = source.choice([-(2**31), 2**31 - 1, -1, 0, 1, 46341, -46341, 2**24 + 1], shape)
    wide = np.where(source.random(shape) < 0.5, edges, source.integers(-(2**31), 2**31, shape)).astype(np.int32)
    return {
        "a": source.choice([0, 0, 1, 127, 128, 255], shape).astype(np.uint8),
        "b": source.choice([-128, -127, -1, 0, 1, 127], shape).astype(np.int8),
        "c": wide, "d": np.where(source.random(shape) < 0.5, wide, source.integers(-(2**63), 2**63, shape)), "X": source.integers(1, 100, shape).astype(np.float32),
    }  # fmt: skip


def kernel_of(formulas, symbolic):
    text = " ".join(node.text for node, _ in formulas)
    outputs = {f"Y{number}": "m n" for number in range(len(formulas))}
    definition = Fused(
        name="drawn", dims="m n", operands={**operands_of(text), **outputs},
        body={f"s{number}": f"Y{number}[m,n] = {node.text}" for number, (node, _) in enumerate(formulas)},
    )  # fmt: skip
    types = {**types_of(text), **{f"Y{number}": result for number, (_, result) in enumerate(formulas)}}
    spec = definition(**sizes_of(symbolic), types=types)
    return spec, definition.tile(m=4, n=32).to(Block).tile(m=1, n=1).to(Thread).done()(spec)


def expected(formulas, given):
    """The exact results, element by element; None for values that exceed 64 bits and are approximated in float."""
    results = []
    for node, result in formulas:
        rows = []
        for m in range(SIZES["m"]):
            points = ({"m": m, "n": n, **{name: int(one[m, n]) for name, one in given.items()}} for n in range(SIZES["n"]))
            rows.append([stored(node.at(point), result) for point in points])
        results.append(rows)
    return results


def is_float_beyond(node, result, symbolic):
    """Whether some integer of a formula may exceed 64 bits and is computed in float, with intermediate rounding."""
    if result.kind != "float":
        return False
    try:
        alone(f"max({node.text}, 0)", int32, symbolic)
    except ArgumentError:
        return True
    return False


def assert_exact(formulas, got, right, what, symbolic):
    for (node, result), computed, rows in zip(formulas, got, right, strict=True):
        if is_float_beyond(node, result, symbolic):
            continue
        want = np.array(rows, result.to_numpy())
        wrong = np.argwhere(np.asarray(computed) != want)
        place = tuple(wrong[0]) if len(wrong) else ()
        assert not len(wrong), f"{what}: {node.text} as {result} at {place}: {np.asarray(computed)[place]}, {want[place]} expected"


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbols"])
def test_drawn_formulas(symbolic, tmp_path):
    kernels = []
    for seed in range(SEED, SEED + 2 * SCALE):
        formulas, refused = drawn(seed, symbolic)
        spec, strategy = kernel_of(formulas, symbolic)
        kernels.append((seed, formulas, spec, strategy))
        assert refused < 10 * EACH, refused
    host = HostProgram([Printed.of(strategy.program("sm_80")) for _, _, _, strategy in kernels], tmp_path)
    symbols = {"M": SIZES["m"], "N": SIZES["n"]} if symbolic else None
    for number, (seed, formulas, spec, strategy) in enumerate(kernels):
        given = {name: one for name, one in arrays(seed).items() if name in spec.operands}
        right = expected(formulas, given)
        assert_exact(formulas, spec.reference(*given.values()), right, f"seed {seed}, reference()", symbolic)
        assert_exact(formulas, strategy.compile("sm_80")(*given.values()), right, f"seed {seed}, the simulator", symbolic)
        text = host.run(number, given, symbols, seed)
        assert_exact(formulas, [text[name] for name in spec.outputs], right, f"seed {seed}, the text", symbolic)


def strategy_of(definition):
    return definition.tile(m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()


def of_two(formula, **operands):
    """A definition of one step on matrices."""
    return Fused(name="one", dims="m n", operands={**operands, "Y": "m n"}, body={"one": f"Y[m,n] = {formula}"})


def everywhere(spec, arrays, tmp_path, symbols=None):
    """The results of the three oracles: the meaning, the simulator and the printed text."""
    strategy = strategy_of(spec.starter)(spec)
    host = HostProgram([Printed.of(strategy.program("sm_80"))], tmp_path)
    (text,) = host.run(0, arrays, symbols).values()
    return spec.reference(*arrays.values()), strategy.compile("sm_80")(*arrays.values()), text


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")


@needs_compiler
def test_a_condition_beyond_32_bits(tmp_path):
    spec = of_two("where(m * 100000000 + n < 3000000000, X[m,n], 0)", X="m n")(m=40, n=32, dtype=float32)
    for got in everywhere(spec, {"X": np.ones((40, 32), np.float32)}, tmp_path):
        assert (got[:30] == 1).all() and (got[30:] == 0).all()


@needs_compiler
@pytest.mark.parametrize("literal", ["3000000000", "3000000000.0", "3e9"])
def test_whole_number_with_integers_is_an_integer(literal, tmp_path):
    """2999999999 and 3000000001 are the same float."""
    spec = of_two(f"where(m * 2999999999 < {literal}, X[m,n], 0)", X="m n")(m=2, n=32, dtype=float32)
    for got in everywhere(spec, {"X": np.ones((2, 32), np.float32)}, tmp_path):
        assert (got == 1).all()


@needs_compiler
def test_unsigned_bytes(tmp_path):
    """A result in a narrower type has the lower bits; in a wider type it is unchanged."""
    given = {"A": np.arange(256, dtype=np.uint8).reshape(8, 32)}
    for result in (uint8, int8, int32, float16, float32):
        spec = of_two("A[m,n] - 1", A="m n")(m=8, n=32, types={"A": uint8, "Y": result})
        for number, got in enumerate(everywhere(spec, given, tmp_path)):
            np.testing.assert_array_equal(got, (np.arange(256).reshape(8, 32) - 1).astype(result.to_numpy()), err_msg=f"{result} {number}")


@needs_compiler
def test_integers_are_computed_before_conversion_to_float(tmp_path):
    """A difference of large sums is exact and converted once; each sum alone would be rounded as a float."""
    spec = of_two("(a[m,n] - z[m]) * s", a="m n", z="m", s="")(m=8, n=32, types={"a": int32, "z": int32, "Y": float32})
    base = 2**30 + 64 * np.arange(8, dtype=np.int32)
    given = {"a": (base[:, None] + np.arange(32)).astype(np.int32), "z": base, "s": np.float32(0.5)}
    for got in everywhere(spec, given, tmp_path):
        np.testing.assert_array_equal(got, np.broadcast_to(np.arange(32) * np.float32(0.5), (8, 32)))


@needs_compiler
@pytest.mark.parametrize("result", [float16, bfloat16, float32, float64], ids=str)
def test_wide_integers_are_rounded_once(result, tmp_path):
    """Halfway between two floats, and slightly beyond, where double rounding would show."""
    halfway = [2**40 + 2**31 + 1, 2**54 + 2**45 + 1, 2**54 + 2**30 + 1, 2**33 + 2**8 + 1, 2**62 + 2**53 + 1, 2048 + 1, 4096 + 2 + 1]
    for number in halfway:
        spec = of_two(f"m * {number} - {number} + A[m,n] * 0", A="m n")(m=3, n=32, types={"A": uint8, "Y": result})
        exact = [nearest(one, result) for one in (-number, 0, number)]
        got_everywhere = everywhere(spec, {"A": np.zeros((3, 32), np.uint8)}, tmp_path)
        for oracle, got in enumerate(got_everywhere):
            assert [float(one) for one in got[:, 0]] == exact, (number, oracle)


def nearest(number, dtype):
    """The float of a type nearest to an integer, ties to even; computed with Python integers."""
    size, least = abs(number), max(abs(number).bit_length() - dtype.mantissa, 0)
    quotient, rest = size >> least, size & ((1 << least) - 1)
    half = 1 << least >> 1
    quotient += rest > half or (least > 0 and rest == half and quotient % 2 == 1)
    rounded = quotient << least
    if dtype == float16 and rounded > 65504:
        rounded = float("inf")
    return float(rounded) if number >= 0 else -float(rounded)


@needs_compiler
def test_an_integer_sum_added_to_a_float_is_converted(tmp_path):
    definition = Fused(
        name="total", dims="m n", loop="n", operands={"q": "m n", "y": "m"},
        init={"half": "t[m] = 0.5"}, body={"sum": "t[m] += sum(n, q[m,n])"}, final={"y": "y[m] = t[m]"},
    )  # fmt: skip
    spec = definition(m=8, n=64, types={"q": int8, "y": float32})
    strategy = definition.tile(m=8).to(Block).split(n=8).tile(m=1).to(Thread).done()(spec)
    q = np.random.default_rng(0).integers(-128, 128, (8, 64)).astype(np.int8)
    host = HostProgram([Printed.of(strategy.program("sm_80"))], tmp_path)
    for got in (spec.reference(q), strategy.compile("sm_80")(q), host.run(0, {"q": q})["y"]):
        np.testing.assert_array_equal(got, q.sum(1, dtype=int) + np.float32(0.5))


@needs_compiler
@pytest.mark.parametrize("by", ["sum", "prod", "max"])
def test_reductions_of_integers_that_become_floats_do_not_wrap_around(by, tmp_path):
    definition = Fused(name="large", dims="m n", operands={"c": "m n", "y": "m"}, body={"y": f"y[m] = {by}(n, c[m,n])"})
    spec = definition(m=8, n=2, types={"c": int32, "y": float32})
    strategy = definition.tile(m=8).to(Block).tile(m=1).to(Thread).done()(spec)
    c = np.array(
        [[2**31 - 1, 2**31 - 1], [-(2**31), -(2**31)], [2**31 - 1, -(2**31)], [65537, 65537], [1, 2], [0, -5], [-1, -1], [3, 0]], np.int32
    )
    right = {"sum": np.sum, "prod": np.prod, "max": np.max}[by](c.astype(np.int64), axis=1).astype(np.float32)
    host = HostProgram([Printed.of(strategy.program("sm_80"))], tmp_path)
    for got in (spec.reference(c), strategy.compile("sm_80")(c), host.run(0, {"c": c})["y"]):
        np.testing.assert_array_equal(got, right)


def test_a_fraction_is_no_factor_of_an_integer_sum():
    with pytest.raises(ArgumentError, match="a factor that is not an integer"):
        Kind("Scaled", "C[m,n] += sum(k, 0.5 * A[m,k] * B[k,n])").starter(8, 8, 8, dtype=int8, c_dtype=int32)(GL, GL, GL)(Kernel)
    assert Kind("Scaled", "C[m,n] += sum(k, 2 * A[m,k] * B[k,n])").starter(8, 8, 8, dtype=int8, c_dtype=int32)(GL, GL, GL)(Kernel)


def test_the_width_is_that_of_the_ranges():
    """32 bits if they suffice, otherwise 64; addresses use `long long` if they need more than 32 bits."""
    text = "where(m * size(n) + n < 3000000000, X[m,n], 0)"
    definition = of_two(text, X="m n")
    small, large = (strategy_of(definition)(definition(m=size, n=size, dtype=float32)).cuda("sm_80") for size in (1024, 65536))
    assert "static_cast<long long>" not in small and "static_cast<long long>" in large
    bounded = definition(m=sym("M", high=4096), n=sym("N", high=4096), dtype=float32)
    assert "static_cast<long long>" not in strategy_of(definition)(bounded).cuda("sm_80")
    free = definition(m=sym("M"), n=sym("N"), dtype=float32)
    assert "static_cast<long long>" in strategy_of(definition)(free).cuda("sm_80")


def test_values_beyond_64_bits_are_refused_with_sizes_to_bound():
    definition = of_two("where(m * size(n) * size(m) + n < 3000000000, X[m,n], 0)", X="m n")
    with pytest.raises(ArgumentError, match=r'm \* size\(n\) \* size\(m\).*may need more than 64 bits[\s\S]*sym\("M", high=65536\)'):
        definition(m=sym("M"), n=sym("N"), dtype=float32)
    assert definition(m=sym("M", high=65536), n=sym("N", high=65536), dtype=float32)


def test_of_elements_beyond_64_bits_lower_ones_do_and_floats_do():
    """Values stored as integers or converted to float need no bound; compared or ordered values do."""
    cube = "c[m,n] * c[m,n] * c[m,n]"
    for formula, result in ((cube, int32), (f"{cube} * 0.5", float32), (f"max({cube}, 0) * 0.5", float32)):
        assert of_two(formula, c="m n")(m=8, n=32, types={"c": int32, "Y": result})
    for formula in (f"max({cube}, 0)", f"where({cube} < 7, c[m,n], 0)"):
        with pytest.raises(ArgumentError, match="64 bits"):
            of_two(formula, c="m n")(m=8, n=32, types={"c": int32, "Y": int32})


def test_constants_of_more_than_64_bits_are_folded_exactly():
    """The formula uses the low bits alone; elements out of bounds are computed from constants before the kernel runs."""
    of = lambda name, *arguments: Operation(name, tuple(map(Number, arguments)))
    assert number_of(Operation("<<", (of("abs", 4294967295), Number(40)))) == 4294967295 << 40
    assert number_of(of("^", 1 << 70, 1 << 70)) == 0 and number_of(of("//", -7, 2)) == -4
    assert math.isnan(number_of(of("<<", 0.5, 3)))


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("result", [float16, bfloat16, float32, float64, int8, uint8, int32], ids=str)
def test_nvrtc_takes_each_width(result):
    formulas = (
        "abs(c[m,n]) * m + max(c[m,n] - 1, m * 3000000000)",
        "where(c[m,n] - 2147483648 <= min(m * 4294967296, n), relu(c[m,n] - n), -c[m,n])",
        "c[m,n] * c[m,n] * c[m,n] - 3000000000",
        "c[m,n] * 7 + X[m,n]",
        "(c[m,n] // 7 ^ c[m,n] % (n + 1)) + (c[m,n] * 3000000000 >> 33)",
        "(c[m,n] * 0x9e3779b9 & 0xffffffff) >> (c[m,n] & 31) | ~c[m,n] << 20",
        "where((c[m,n] & 0xffffffff) > c[m,n] // 2, 1, m % 3) + abs(c[m,n] & 0xffffffff)",
        "philox(c[m,n], m) + mulhi(c[m,n], 7) + mulhi(c[m,n] & 0xffffffff, philox(3, n, m)) + clamp(c[m,n], -3, n)",
        "bits(X[m,n]) // 3 + int32(floor(X[m,n])) + int32(c[m,n] * 5)",
        "uniform(c[m,n], m) * sin(X[m,n]) + clamp(round(X[m,n]), -1, cos(X[m,n])) + from_bits(c[m,n] * m) + (c[m,n] & 0xffffffff) * 0.5",
    )
    for formula in formulas:
        operands = {"c": "m n", **({"X": "m n"} if "X[" in formula else {})}
        definition = of_two(formula, **operands)
        spec = definition(m=8, n=32, types={"c": int32, "Y": result, **({"X": float32} if "X[" in formula else {})})
        compile_cuda(strategy_of(definition)(spec).cuda("sm_80"), "sm_80")


@pytest.mark.parametrize("number", [-(10**30), 1 << 63, (1 << 64) + (1 << 45), -1000000015047466219876688855040])
def test_whole_numbers_beyond_64_bits_are_floats_where_floats_are_stored(number):
    """A running maximum begins at -1e30, which the text of its spec writes as an integer."""
    result = meaning.perform(formula_of(f"dst[m] = {number}"), {"dst": np.zeros(4, np.float32)}, {"dst": float32}, False)
    assert np.array_equal(result, np.full(4, number, np.float32))
