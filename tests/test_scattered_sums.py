"""Additions at indices from tables and at digits: histograms, gradients of embeddings, sums of groups (oracle: `numpy.add.at`)."""

import random

import attrs
import making
import numpy as np
import pytest
from near import Near
from printed_text import COMPILER, HostProgram, Printed
from test_added import rewritten, stored
from test_scalar_outputs import copy, lanes, product, threads

from fireiron import *
from fireiron.check import check
from fireiron.check.access_trace import AccessTrace
from fireiron.check.table_indices import wrong_tables
from fireiron.errors import ArgumentError, DecompositionError, SimulationError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate
from fireiron.values.expr import all_of, conjuncts

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")


def summed(shape, places, values):
    """Sums of values at indices; those outside of the array are omitted."""
    result = np.zeros(shape)
    inside = np.ones(len(places[0]), bool)
    for place, size in zip(places, shape, strict=False):
        inside &= (place >= 0) & (place < size)
    np.add.at(result, tuple(place[inside] for place in places), np.broadcast_to(values, (len(inside), *np.shape(values)[1:]))[inside])
    return result


def histogram():
    count = Fused(name="histogram", dims="n b", operands={"X": "n", "H": "b"}, types={"H": int32}, body={"count": "H[X[n]] += 1"})
    strategy = count.tile(n=64).to(Block).tile(n=1).to(Thread).done()
    return strategy(count(n=200, b=13)), {"X": 13}, lambda x: summed([13], [x], 1)


def two_tables():
    count = Fused(
        name="pairs", dims="n b c", operands={"X": "n", "Z": "n", "H": "b c"}, types={"H": int32}, body={"count": "H[X[n],Z[n]] += 1"}
    )
    strategy = count.tile(n=64).to(Block).tile(n=2).to(Thread).done()
    return strategy(count(n=200, b=5, c=3)), {"X": 5, "Z": 3}, lambda x, z: summed([5, 3], [x, z], 1)


def weighted():
    count = Fused(
        name="weighted", dims="n b", operands={"X": "n", "w": "n", "H": "b"}, types={"H": float32},
        body={"t": "t[n] = w[n] * w[n]", "count": "H[X[n]] += t[n]"},
    )  # fmt: skip
    strategy = count.tile(n=64).to(Block).load("w", RF, threads).done()
    return strategy(count(n=200, b=13)), {"X": 13}, lambda x, w: summed([13], [x], w * w)


def embedding():
    gradient = Fused(
        name="embedding", dims="m n r", operands={"G": "m n", "rows": "m", "Y": "r n"}, types={"Y": float32},
        body={"add": "Y[rows[m],n] += G[m,n]"},
    )  # fmt: skip
    strategy = gradient.tile(m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    return strategy(gradient(m=sym("M"), n=40, r=9)), {"rows": 9}, lambda g, rows: summed([9, 40], [rows], g)


def sums_of_rows():
    sums = Fused(
        name="row_sums", dims="m n r", operands={"G": "m n", "rows": "m", "Y": "r"}, types={"Y": float32},
        body={"add": "Y[rows[m]] += sum(n, G[m,n])"},
    )  # fmt: skip
    strategy = sums.tile(m=8, n=32).to(Block).load("G", RF, lanes).done()
    return strategy(sums(m=30, n=70, r=9)), {"rows": 9}, lambda g, rows: summed([9], [rows], g.sum(1))


def products():
    rows = Fused(
        name="scattered_gemm", dims="m n k r", operands={"A": "m k", "B": "k n", "rows": "m", "Y": "r n"}, types={"Y": float32},
        body={"mm": "Y[rows[m],n] += sum(k, A[m,k] * B[k,n])"},
    )  # fmt: skip
    strategy = rows.tile(m=64, n=64, k=32).to(Block).load("A", SH, copy).load("B", SH, copy).step("mm", product).done()
    return strategy(rows(m=100, n=72, k=64, r=9)), {"rows": 9}, lambda a, b, rows: summed([9, 72], [rows], a @ b)


def groups():
    sums = Fused(
        name="groups", dims="m n q", operands={"G": "m n", "Y": "m q"}, types={"Y": float32}, body={"add": "Y[m,n // 4] += G[m,n]"}
    )
    strategy = sums.tile(m=8, n=32).to(Block).tile(m=1, n=1).to(Thread).done()
    return strategy(sums(m=30, n=40)), {}, lambda g: g.reshape(30, 10, 4).sum(2)


CASES = {case.__name__: case for case in (histogram, two_tables, weighted, embedding, sums_of_rows, products, groups)}
SYMBOLS = {"M": 30}


def symbols_of(name):
    return SYMBOLS if name == "embedding" else {}


def arrays_of(bound, tables, seed=0):
    """Random inputs; some numbers of tables are no indices."""
    generator, spec, arrays = np.random.default_rng(seed), bound.spec, {}
    for name in [name for name in spec.inputs if not name.startswith("index_")]:
        shape = [int(size.evaluate(SYMBOLS)) for size in spec.operands[name].tensor.array.shape]
        numbers = generator.integers(-2, tables[name] + 2, shape) if name in tables else generator.standard_normal(shape)
        arrays[name] = numbers.astype(spec.operands[name].dtype.to_numpy())
    return arrays


def case_of(name, seed=0):
    bound, tables, right = CASES[name]()
    arrays = arrays_of(bound, tables, seed)
    values = right(*(array if key in tables else array.astype(float) for key, array in arrays.items()))
    return bound, arrays, Near(bound.spec, arrays, {bound.spec.outputs[0]: values}, symbols_of(name))


@pytest.mark.parametrize("name", CASES)
def test_sums_equal_float64(name):
    bound, arrays, near = case_of(name)
    kernel = bound.program("sm_80").ir
    (output,) = bound.spec.outputs
    assert not [finding for finding in check(kernel) if finding.severity == "error"]
    for order in (None, random.Random(1)):
        near.require(simulate(kernel, arrays, symbols_of(name), order=order).outputs)
    near.require({output: bound.spec.reference(*arrays.values())})
    called = bound.compile("sm_80")(*arrays.values())
    near.require({output: called})
    near.require({output: bound.compile("sm_80")(*arrays.values(), out=np.full_like(called, 7))})


@pytest.mark.parametrize("name", ["histogram", "embedding", "products", "groups"])
def test_definitions_are_values_with_texts(name):
    bound, _, _ = CASES[name]()
    definition = bound.spec.starter
    definition.check()
    program = bound.program("sm_80")
    assert eval(repr(definition)) == definition and eval(repr(bound.spec)) == bound.spec and loads(dumps(bound)) == bound
    assert parse_kernel(graphene_text(program)).text == program.text and f"Zeroed {bound.spec.outputs[0]}" in graphene_text(program)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_printed_sums_on_a_cpu(tmp_path):
    cases = {name: case_of(name, number) for number, name in enumerate(CASES)}
    host = HostProgram([Printed.of(bound.program("sm_80")) for bound, _, _ in cases.values()], tmp_path)
    for number, (name, (_, arrays, near)) in enumerate(cases.items()):
        near.require(host.run(number, arrays, symbols_of(name), number))


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.nightly)])
def test_sums_compile(arch):
    for case in CASES.values():
        assert compile_cuda(case()[0].cuda(arch), arch).ptx


# ---------------------------------------------------------------------------------------------- injected faults


def with_guard(name, change):
    """The kernel of a case with changed conditions of its additions."""
    kernel = CASES[name]()[0].program("sm_80").ir
    return rewritten(kernel, lambda add: (attrs.evolve(add, guard=change(add.guard)),))


@pytest.mark.parametrize("name", ["histogram", "embedding"])
def test_an_addition_at_a_number_that_is_no_index_is_found(name):
    _, arrays, _ = case_of(name)
    planted = with_guard(name, lambda guard: all_of(part for part in conjuncts(guard) if "lookup" not in repr(part)))
    assert any("the number may be no index" in str(finding) for finding in wrong_tables(AccessTrace(planted)))
    with pytest.raises(SimulationError):
        simulate(planted, arrays, symbols_of(name))


@pytest.mark.parametrize("name", ["histogram", "embedding", "sums_of_rows"])
def test_a_store_or_a_missing_addition_is_found(name):
    bound, arrays, near = case_of(name)
    kernel = bound.program("sm_80").ir
    (output,) = bound.spec.outputs
    planted = rewritten(kernel, lambda add: (stored(add),))
    with pytest.raises(SimulationError, match=f"race on {output}"):
        simulate(planted, arrays, symbols_of(name), order=random.Random(1))
    assert near.wrong(simulate(rewritten(kernel, lambda add: ()), arrays, symbols_of(name)).outputs)
    try:
        assert np.isnan(simulate(making.evolved(kernel, zeroed=()), arrays, symbols_of(name)).outputs[output]).any()
    except SimulationError as error:
        assert "read before any write" in str(error)


# ---------------------------------------------------------------------------------------------- refusals


def test_distinct_is_for_stores():
    with pytest.raises(ArgumentError, match="distinct are tables by which outputs are written"):
        Fused(name="h", dims="n b", operands={"X": "n", "H": "b"}, types={"H": int32}, body={"c": "H[X[n]] += 1"}, distinct="X")


@pytest.mark.parametrize(("body", "words"), [
    ({"a": "H[X[n]] += 1", "b": "y[n] = H[X[n]] * 2"}, "step b reads it before all blocks have added"),
    ({"a": "H[X[n]] += 1", "b": "y[n] = X[n] * 2", "c": "H[X[n]] = 2"}, "elements of X may be equal"),
    ({"a": "H[n - 1] += 1", "b": "y[n] = X[n] * 2"}, "is written at an affine index"),
    ({"a": "H[X[n]] += 1", "b": "X[n] = y[n] * 2"}, "X is written, and H\\[X\\[n\\]\\] reads it as an index"),
])  # fmt: skip
def test_what_cannot_be_added_is_refused(body, words):
    with pytest.raises(ArgumentError, match=words):
        Fused(name="h", dims="n b", operands={"X": "n", "y": "n", "H": "b"}, types={"H": int32}, body=body)


def test_an_instruction_that_tests_no_element_is_refused():
    count = Fused(
        name="h", dims="n b", operands={"X": "n", "w": "n", "H": "b"}, types={"H": float32, "w": float32}, body={"c": "H[X[n]] += w[n]"}
    )
    text = count.tile(n=64).to(Block).step("c", AnySpec.tile(1).to(Thread).done("for (;;) {}")).done()
    with pytest.raises(DecompositionError, match="writes H, whose elements have numbers in X"):
        text(count(n=100, b=4)).cuda("sm_80")
