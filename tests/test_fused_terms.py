"""Sums of expressions, squares and products along a dimension: separate steps compute the terms before the reduction."""

import random

import numpy as np
import pytest
from fused_examples import copy, fragments, inputs, mma
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import safety
from fireiron.errors import ArgumentError
from fireiron.sim import simulate

ROWS = {"X": "m n", "t": "m"}
by_lanes = Move.tile(1, 64).to(Warp).tile(1, 2).to(Lane).done()


def of_rows(formula, **operands):
    definition = Fused(name="rows", dims="m n", operands={**ROWS, **operands}, body={"s": f"t[m] = {formula}"})
    return definition, definition.tile(m=2).to(Block).load("X", RF, by_lanes).done()(definition(m=3, n=100, dtype=float32))


SUMS = {
    "sum(n, exp(X[m,n]) * 2)": lambda x, g: (np.exp(x) * 2).sum(1),
    "sum(n, X[m,n] * X[m,n])": lambda x, g: (x * x).sum(1),
    "max(n, abs(X[m,n]))": lambda x, g: abs(x).max(1),
    "sum(n, relu(X[m,n]) * g[n])": lambda x, g: (np.maximum(x, 0) * g).sum(1),
    "sum(n, where(n <= m + 5, X[m,n], 0))": lambda x, g: np.array([x[row, : row + 6].sum() for row in range(3)]),
    "prod(n, X[m,n])": lambda x, g: x.prod(1),
    "prod(n, 1 + X[m,n] * 0.01)": lambda x, g: (1 + x * 0.01).prod(1),
}


def test_rows(tmp_path):
    """In the simulator and in the printed text; the last iteration overhangs the end of a row."""
    definitions = {text: of_rows(text, **({"g": "n"} if "g[" in text else {})) for text in SUMS}
    programs = [strategy.program("sm_80") for _, strategy in definitions.values()]
    host = HostProgram([Printed.of(one) for one in programs], tmp_path) if COMPILER else None
    for number, ((text, right), program) in enumerate(zip(SUMS.items(), programs, strict=True)):
        definition, strategy = definitions[text]
        assert eval(repr(definition)) == definition
        arrays = inputs(strategy.spec)
        arrays["X"] *= 1.5  # so that products of 100 are far from zero, and from infinity
        wanted = right(arrays["X"].astype(float), arrays.get("g", np.zeros(1)).astype(float))
        assert np.allclose(strategy.spec.reference(*arrays.values()), wanted, rtol=1e-5)
        assert not [finding for finding in safety(program.ir) if finding.severity == "error"]
        results = [simulate(program.ir, arrays, order=random.Random(0)).outputs["t"]]
        results += [host.run(number, arrays)["t"]] if host else []
        assert all(np.allclose(one, wanted, rtol=1e-4, atol=0 if "prod" in text else 1e-5) for one in results), text


def test_a_carried_product():
    definition = Fused(
        name="carried", dims="m n", loop="n", operands=ROWS, init={"one": "p[m] = 1"}, body={"p": "p[m] *= prod(n, 1 + X[m,n] * 0.01)"},
        final={"t": "t[m] = p[m]"},
    )  # fmt: skip
    definition.check()
    chunk = definition.tile(m=2).to(Block).tile(m=1).to(Warp).split(n=32).load("X", RF, Move.tile(1, 1).to(Lane).done()).done()
    x = np.random.default_rng(0).standard_normal((3, 70)).astype(np.float32)
    t = chunk(definition(m=3, n=70, dtype=float32)).compile("sm_80")(x)
    assert np.allclose(t, (1 + x * 0.01).prod(1), rtol=1e-5)
    element_copy = Move.tile(1, 1).to(Lane).done()
    twice = Fused(
        name="twice", dims="m n", loop="n", operands=ROWS, init={"one": "p[m] = 1"},
        body={"part": "q[m] = prod(n, X[m,n])", "p": "p[m] = p[m] * q[m]"}, final={"t": "t[m] = p[m]"},
    )  # fmt: skip
    parts = twice.rfactor("part", 32).tile(m=2).to(Block).tile(m=1).to(Warp).split(n=32).load("X", RF, element_copy).done()
    program = parts(twice(m=3, n=70, dtype=float32)).program("sm_80")
    assert np.allclose(simulate(program.ir, {"X": 1 + x * 0.01}).outputs["t"], t, rtol=1e-5)
    assert program.cuda.index("__shfl_xor_sync") > program.cuda.index("// t: ") - 1000 and "p_whole" in program.cuda
    with pytest.raises(ArgumentError, match="depends on the number of elements of n"):
        Fused(
            name="lost", dims="m n", loop="n", operands=ROWS, init={"one": "p[m] = 1"}, body={"p": "p[m] = prod(n, X[m,n])"},
            final={"t": "t[m] = p[m]"},
        ).check()  # fmt: skip


def test_a_factor_that_is_an_expression():
    definition = Fused(
        name="gemm", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"},
        body={"mm": "acc[m,n] = sum(k, relu(A[m,k]) * B[k,n])", "store": "C[m,n] = acc[m,n]"},
    )  # fmt: skip
    assert "mm_left[m,k] = relu(A[m,k])" in str(definition) and eval(repr(definition)) == definition
    product = MatMul.tile(16, 16).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)
    strategy = definition.tile(m=32, n=32).to(Block).set_memory("mm_left", SH, pad=8).load("B", SH, copy).step("mm", product).done()
    a, b = (np.random.default_rng(0).standard_normal(shape).astype(np.float16) for shape in ((40, 32), (32, 40)))
    c = strategy(definition(m=40, n=40, k=32)).compile("sm_80")(a, b)
    assert np.allclose(c, np.maximum(a, 0).astype(np.float32) @ b.astype(np.float32), atol=2e-2)


def test_names_of_terms_are_new():
    definition = Fused(
        name="twice", dims="m n", operands={"s_terms": "m n", "t": "m"}, body={"s": "t[m] = sum(n, s_terms[m,n] * s_terms[m,n])"}
    )
    assert "s_terms_[m,n] = s_terms[m,n] * s_terms[m,n]" in str(definition)


@pytest.mark.parametrize("value", ["max(k, A[m,k] + B[k,n])", "sum(k, A[m,k] * B[k,n] * 2)"])
def test_too_many_terms_are_refused(value):
    with pytest.raises(ArgumentError, match="step mm: no tensor in the expression of (max|sum) has all of its dimensions k, m, n"):
        Fused(name="x", dims="m n k", operands={"A": "m k", "B": "k n", "C": "m n"}, body={"mm": f"C[m,n] = {value}"})
