"""`wrap_boxes`: TMA loads boxes of the front of an array instead of boxes that are wholly out of bounds, if their values do not matter."""

import numpy as np
import pytest
from ringed import TARGET, errors, float16_gemm, inputs_of, outcome, product

from fireiron import *
from fireiron import ir
from fireiron.lower import wrap_boxes as wrapping
from fireiron.lower.wrap_boxes import independent_dims
from fireiron.sim import simulate
from fireiron.specs.epilogue import epilogue
from fireiron.strategies import gemm_row_sum

TILE = {"tiles": (64, 64, 64)}
CASES = {
    "tiles that complete a cluster, along m": ((136, 72, 72), {"cluster": (4, 1), **TILE}, "NN", {("A", 0): 160}),
    "tiles that complete a cluster, along n": ((64, 136, 72), {"cluster": (1, 4), **TILE}, "NN", {("B", 1): 192}),
    "A contiguous along m": ((136, 64, 64), {"cluster": (4, 1), **TILE}, "TT", {("A", 0): 192}),
    "the second box of a tile": ((64, 160, 64), {"tiles": (64, 128, 64)}, "NN", {("B", 1): 192}),
    "shared parts of boxes": ((72, 64, 64), {"tiles": (64, 64, 64), "cluster": (1, 2)}, "NN", {("A", 0): 80}),
    "persistent blocks": ((64, 160, 72), {"tiles": (64, 128, 64), "blocks": 1}, "NN", {("B", 1): 192}),
}
"""Sizes, options of `ringed.product`, storage orders, and the dimensions of arrays whose coordinates are remainders, with their divisor."""


def loads_of(kernel):
    """The loads of a ring."""
    return [stmt for stmt, _ in ir.execs(kernel.body) if stmt.ring and stmt.tensor_map is not None]


def wrapped(program):
    """The dimensions of arrays whose coordinates the pass changes, with the least extent that it uses."""
    before, after = (loads_of(program.stages[name]) for name in ("fold_single_trip", "wrap_boxes"))
    known = {value for stmt in before for value in stmt.accesses[0].base}
    changed = {}
    for stmt in after:
        for axis, value in enumerate(stmt.accesses[0].base):
            if value not in known and value.high < 1 << 20 and "%" in str(value):
                changed[stmt.accesses[0].buffer, axis] = value.high + stmt.accesses[0].shape[axis]
    return changed


@pytest.mark.parametrize("title", CASES)
def test_results_are_right_and_rows_that_are_read_instead_reach_no_other_row(title):
    """The first rows of A and columns of B are NaN: they are loaded in place of those out of bounds, and only their own results are NaN."""
    sizes, options, orders, expected = CASES[title]
    spec = float16_gemm(*sizes, orders=orders)
    program = product(**options)(spec).program(TARGET)
    assert wrapped(program) == expected and not errors(program.ir)
    arrays, result = inputs_of(spec)
    assert outcome(program.ir, arrays, result, order=1) == "right"
    (name, axis), *_ = expected
    assert f"// a box past the end of {name} loads its front (%), faster than zeros; only results" in program.cuda
    arrays[name][(slice(8),) if axis == 0 else (slice(None), slice(8))] = np.nan
    got = np.isnan(simulate(program.ir, arrays, {}).outputs["C"])
    own = np.zeros(got.shape, bool)
    own[(slice(8),) if name == "A" else (slice(None), slice(8))] = True
    assert np.array_equal(got, own)


@pytest.mark.parametrize(
    ("sizes", "options"), [((128, 64, 72), {"cluster": (2, 1)}), ((100, 72, 136), {}), ((sym("M"), 160, 64), {})], ids=str
)
def test_other_kernels_stay_the_same(sizes, options):
    """No box of these is wholly out of bounds, or the size is known at run time only."""
    stages = product(**TILE, **options)(float16_gemm(*sizes)).program(TARGET).stages
    assert stages["wrap_boxes"] is stages["fold_single_trip"]


def test_elements_that_a_step_reduces_must_be_zero(monkeypatch):
    """Boxes past the end of K are zeros. An injected fault, remainders along k too, makes the result wrong."""
    spec, strategy = float16_gemm(64, 64, 40, orders="NT"), product(tiles=(64, 64, 128))
    arrays, result = inputs_of(spec)
    program = strategy(spec).program(TARGET)
    assert not wrapped(program) and outcome(program.ir, arrays, result) == "right"
    monkeypatch.setattr(wrapping, "independent_dims", lambda spec: frozenset("mnk"))
    faulty = strategy(spec).program(TARGET)
    assert outcome(faulty.lowered, arrays, result) == "wrong"


def test_a_box_with_an_element_in_bounds_keeps_its_place(monkeypatch):
    """An injected fault, remainders by the complete boxes only, makes the result wrong."""
    sizes, options, *_ = CASES["tiles that complete a cluster, along m"]
    monkeypatch.setattr(wrapping, "ceildiv", lambda extent, box: extent // box)
    faulty = product(**options)(float16_gemm(*sizes)).program(TARGET)
    arrays, result = inputs_of(float16_gemm(*sizes))
    assert outcome(faulty.lowered, arrays, result) == "wrong"


def of_steps(final):
    """A definition with a matmul and further steps."""
    steps = {"body": {"product": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, "init": {"zero": "acc[m,n] = 0"}}
    return Fused(name="f", dims="m n k", loop="k", operands={"A": "m k", "B": "k n", "D": "m n"}, final=final, **steps)


SPECS = {
    "a matmul": (float16_gemm(64, 64, 64), "mn"),
    "an elementwise epilogue": (epilogue("relu(acc + bias[n])")(m=64, n=64, k=64), "mn"),
    "row sums as a further output": (gemm_row_sum.definition(m=64, n=64, k=64), "m"),
    "maxima of rows": (of_steps({"max": "y[m] = max(n, acc[m,n])", "store": "D[m,n] = acc[m,n] - y[m]"})(m=64, n=64, k=64), "m"),
    "a transposed temporary": (of_steps({"store": "D[m,n] = acc[m,n] + acc[n,m]"})(m=64, n=64, k=64), ""),
}


@pytest.mark.parametrize("title", SPECS)
def test_dimensions_whose_elements_past_the_end_reach_no_result(title):
    spec, expected = SPECS[title]
    assert independent_dims(spec) == set(expected)
