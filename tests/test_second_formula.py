"""The second evaluation of formulas, `second_formula`, for functions of integers and bits: against published vectors, and `reference()`."""

import random

import numpy as np
import pytest
from second_formula import Formulas, results

from fireiron import *

SIZES = {"m": 6, "n": 8}


def value_of(text):
    formulas = Formulas("m", {"m": 1}, {}, {})
    formulas.do(f"y[m] = {text}")
    return formulas.tensors["y"][0]


def test_published_vectors():
    """Philox4x32-10 of Salmon and others (Random123, kat_vectors): a counter and key of zeros, and of ones."""
    assert [value_of(f"philox(0, 0, 0, 0, 0, {word})") for word in range(4)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    counter = "0 - 1, 4294967295, 4294967295, 4294967295, 4294967295"
    assert [value_of(f"philox({counter}, {word})") for word in range(4)] == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("bits(1.0)", 0x3F800000), ("from_bits(0xc0490fdb)", -np.float32(np.pi)), ("mulhi(4294967295, 4294967295)", 4294967294),
        ("mulhi(0 - 1, 5)", -1), ("int32(4294967295)", -1), ("int32(3e9)", 2147483647), ("int32(0 - 2.75)", -2), ("int32(0.0 / 0.0)", 0),
        ("int32(1 << 31)", -(2**31)), ("int32(0.0 - inf)", -(2**31)), ("uniform(0, 0)", (0x6627E8D5 >> 8) / 2**24),
        ("e2m1(7)", 6), ("e2m1(0 - 7)", -0.5), ("e2m1(26)", -1), ("e8m0(0)", 2.0**-127), ("e8m0(383)", 1), ("e8m0(254)", 2.0**127),
    ],
)  # fmt: skip
def test_by_hand(text, want):
    assert value_of(text) == want


FORMS = (
    "philox(seed, m, n)", "philox(P[m,n], n, m, 3, P[m,n], 2)", "uniform(seed, m, n) * X[m,n]", "bits(X[m,n]) & 0xff", "bits(X[m,n]) >> 23",
    "from_bits(bits(X[m,n]) ^ 0x80000000)", "mulhi(P[m,n], Q[m,n])", "mulhi(P[m,n] & 0xffffffff, 0x9e3779b9)", "int32(X[m,n] * 1000)",
    "int32(P[m,n] + Q[m,n])", "int32(P[m,n] * 3) // 7", "where(philox(seed, m) % 2 == 0, int32(P[m,n] << 3), n)",
    "abs(int32(P[m,n] ^ Q[m,n]) % 1000)", "int32(from_bits(P[m,n] & 0x4fffffff))", "int32(max(P[m,n], Q[m,n]) + 1)",
    "e2m1(P[m,n] >> 4 * (n % 8)) * e8m0(Q[m,n] >> 8 & 127)", "int32(e2m1((P[m,n] >> 8) * (Q[m,n] >> 8)) * 2) + n",
)  # fmt: skip


@pytest.mark.parametrize("text", FORMS)
def test_equals_the_reference(text):
    """Products of integers stay below 2^53, since the second evaluation computes in float64."""
    declaration = {
        "name": "one", "dims": "m n", "operands": {"P": "m n", "Q": "m n", "X": "m n", "seed": "", "Y": "m n"},
        "body": {"one": f"Y[m,n] = {text}", "all": "Y[m,n] = Y[m,n]"},
    }  # fmt: skip
    random_numbers = np.random.default_rng(random.Random(text).getrandbits(32))
    given = {name: random_numbers.integers(-(2**31), 2**31, (6, 8)).astype(np.int32) for name in "PQ"}
    given |= {"X": random_numbers.standard_normal((6, 8)).astype(np.float32), "seed": np.int32(random_numbers.integers(0, 2**31))}
    given = {name: array for name, array in given.items() if name in text}
    declaration["operands"] = {name: dims for name, dims in declaration["operands"].items() if name in given or name == "Y"}
    declaration["body"] = {"one": f"Y[m,n] = {text}"}
    kinds = {name: array.dtype.name for name, array in given.items()} | {"Y": "float64"}
    definition = Fused(**declaration)
    got = definition(**SIZES, types={name: {"int32": int32, "float32": float32, "float64": float64}[kind] for name, kind in kinds.items()})
    want = results(declaration, SIZES, given)["Y"]
    assert np.allclose(got.reference(*given.values()), want, rtol=1e-6, equal_nan=True)
