"""Masks that compare a digit, `first[e] <= m // 64 and m // 64 < last[e]`: iterations are masked as a whole, so no element is tested.

The results in the simulator, in the printed text on a CPU and by the reference are compared with NumPy, for empty ranges, too. Detectors
find injected faults.
"""

import contextlib
import functools
import random

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import safety
from fireiron.errors import FireironError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir import For, Let, rewritten
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate
from fireiron.specs.steps import Step
from fireiron.stepping.masks import AtLeast, linear_conjuncts
from fireiron.strategies import experts

TMA, COPY, PARTS = Move.done(), Move.coalesced_copy(8).done(), Move.done()

SUMS = experts.weight_product
LANES = MatMul.tile(16, 16).unroll().mma_tile().done()


def hopper(bk=64):
    tiles = SUMS.tile(e=1, k=64, n=64).to(Block).persistent(4).split(m=bk).skip_masked_tiles().pipeline(3).warp_specialize(128)
    tiles = tiles.load("A", SH, TMA).load("B", SH, TMA).tile(k=64).to(Warpgroup)
    return tiles.step("product", MatMul.split(16).unroll().done()).done()


def ampere(bk=32, placed=False):
    tiles = SUMS.tile(e=1, k=64, n=64).to(Block).split(m=bk).skip_masked_tiles().pipeline(2)
    tiles = tiles.load("A", SH, COPY).swizzle_storage().load("B", SH, COPY).swizzle_storage()
    if placed:
        warps = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, PARTS).load(B, RF, PARTS).then(LANES)
        return tiles.set_memory("product_left", SH).step("product", warps).done()
    tiles = tiles.tile(k=32, n=32).to(Warp).split(m=16).unroll().load("A", RF, PARTS).load("B", RF, PARTS)
    return tiles.step("product", LANES).done()


# For each kernel: strategy, rows, target.
KERNELS = {
    "hopper": (hopper(), 448, "sm_90a"),
    "two iterations of a run": (hopper(32), 224, "sm_90a"),
    "ampere": (ampere(), 320, "sm_80"),
    "one iteration": (ampere(64), 64, "sm_80"),
    "masked elements": (ampere(128, placed=True), 384, "sm_80"),
}


def problem(name):
    return SUMS(e=4, m=KERNELS[name][1], k=72, n=64)


@functools.cache
def program(name):
    strategy, _, target = KERNELS[name]
    return strategy(problem(name)).program(target)


def inputs(rows, seed=0):
    """Small integers; ranges that are empty, overlap, or are beyond the rows."""
    numbers = np.random.default_rng(seed)
    a, b = (numbers.integers(-2, 3, (rows, columns)).astype(np.float16) for columns in (72, 64))
    runs = -(-rows // 64)
    first, last = np.array([0, 1, 1, runs], np.int32), np.array([1, 1, runs + 3, runs + 1], np.int32)
    return {"A": a, "B": b, "first": first, "last": last}


def expected(arrays):
    ranges = [slice(64 * begin, 64 * end) for begin, end in zip(arrays["first"], arrays["last"], strict=True)]
    return np.stack([arrays["A"][rows].astype(float).T @ arrays["B"][rows] for rows in ranges])


def is_right(kernel, name, order=None):
    arrays = inputs(KERNELS[name][1])
    return np.array_equal(simulate(kernel, arrays, order=order).outputs["D"], expected(arrays))


@pytest.mark.parametrize("name", KERNELS)
def test_right(name):
    strategy, rows, _ = KERNELS[name]
    whole = program(name)
    assert safety(whole.lowered) == ()
    assert is_right(whole.ir, name) and is_right(whole.ir, name, random.Random(1))
    arrays = inputs(rows)
    assert np.array_equal(whole.spec.reference(*arrays.values()), expected(arrays))
    assert loads(dumps(strategy(problem(name)))) == strategy(problem(name))
    assert parse_kernel(graphene_text(whole)).cuda == whole.cuda
    assert ("where(" in whole.cuda) is (name == "masked elements")
    if any(one.serves(whole.architecture.name) for one in toolchains()):
        report = compile_cuda(whole.cuda, whole.architecture.name).resources[whole.name]
        assert report.spill_stores == report.stack_frame == 0


def test_not_finite_rows_of_others():
    """Rows of other experts have no effect, whatever they contain: 0 * NaN would be NaN."""
    arrays = inputs(448)
    right = expected(arrays)[0]
    arrays["A"][64:], arrays["B"][64:] = np.nan, np.inf
    with np.errstate(all="ignore"):
        assert np.array_equal(simulate(program("hopper").ir, arrays).outputs["D"][0], right)


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
@pytest.mark.parametrize("name", ["ampere", pytest.param("hopper", marks=pytest.mark.nightly)])
def test_texts_on_a_cpu(name, tmp_path):
    arrays = inputs(KERNELS[name][1])
    host = HostProgram([Printed.of(program(name))], tmp_path)
    assert np.array_equal(host.run(0, arrays, {}, 0)["D"], expected(arrays))


def changed_lets(kernel, change):
    """The kernel with other numbers of iterations, in all roles."""
    return attrs.evolve(
        kernel,
        body=rewritten(kernel.body, lambda stmt: (change(stmt) if isinstance(stmt, Let) and "iterations" in stmt.var.name else stmt,)),
    )


@pytest.mark.parametrize("fault", ["one less", "one role"])
def test_faults_are_found(fault):
    kernel = program("hopper").ir
    seen = []

    def change(stmt):
        seen.append(stmt)
        if fault == "one role" and len(seen) > 1:
            return stmt
        return attrs.evolve(stmt, value=stmt.value // 2)

    wrong = changed_lets(kernel, change)
    assert wrong != kernel
    with contextlib.suppress(FireironError):
        assert any(finding.severity == "error" for finding in safety(wrong)) or not is_right(wrong, "hopper")


def test_loops_without_iterations():
    """A range without rows executes nothing: the loop's length is a number that the kernel reads."""
    lets = [stmt for stmt in flat(program("hopper").ir.body) if isinstance(stmt, Let) and "m_iterations" in stmt.var.name]
    loops = [stmt for stmt in flat(program("hopper").ir.body) if isinstance(stmt, For) and stmt.extent in [let.var for let in lets]]
    assert len(lets) == len(loops) == 2 and all(let.var.low == 0 for let in lets)


def flat(statements):
    for stmt in statements:
        yield stmt
        for child in stmt.children:
            yield from flat(child)


CONDITIONS = {
    "n // 64 < e[b]": (((("e", 64), ("index_n", -1)), -1, 64)),
    "n // 64 <= e[b]": (((("e", 64), ("index_n", -1)), 63, 64)),
    "e[b] <= n // 64": (((("e", -64), ("index_n", 1)), 0, 64)),
    "n // 64 > e[b]": (((("e", -64), ("index_n", 1)), -64, 64)),
    "n // 64 < e[b] + 1": None,
    "n // m < e[b]": None,
    "n // 64 < m + e[b]": None,
}


@pytest.mark.parametrize("text", CONDITIONS)
def test_conditions(text):
    definition = Fused(
        name="one", dims="b n m", batch="b", loop="n", operands={"X": "n m", "e": "b", "y": "b m"}, types={"e": int32},
        init={"zero": "t[m] = 0"}, final={"out": "y[b,m] = t[m]"},
        body={"mask": f"x[n,m] = where({text.replace('// m ', '// (m + 1) ')}, X[n,m], 0)", "sum": "t[m] += sum(n, x[n,m])"},
    )  # fmt: skip
    mask: Step = definition.fused_definition.steps[1]
    (bound,) = linear_conjuncts(mask.formula.value.arguments[0], {"e"})
    want = CONDITIONS[text]
    assert bound == (None if want is None else AtLeast(*want))
    if bound is not None:
        assert bound.compares({"e"})


def test_masks_of_parts_stay():
    """With runs of 64 rows and iterations of 128, the mask stays."""
    assert "product_left" in program("masked elements").cuda and "product_left" not in program("ampere").cuda
