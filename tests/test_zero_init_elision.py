"""The pass `zero_init_elision`: elided zeros, exact results in random order, and accumulators that stay unchanged."""

import random

import attrs
import numpy as np
import pytest
from handmade import access, execution
from ringed import errors
from touching import Engine, i, kernel, loop

from fireiron import *
from fireiron import ir
from fireiron.executable.thread_move import INIT
from fireiron.ir import verify
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.lower.passes import PASSES
from fireiron.lower.zero_init_elision import _is_zero, zero_init_elision
from fireiron.sim import simulate
from fireiron.strategies import attention
from fireiron.values.expr import FALSE, TRUE, ZERO, Var, less

TARGET = "sm_90a"
j = Var("j", 0, 1 << 20)
copy, product = Move.done(), MatMul.split(16).unroll().done()
ZERO_STEP, STORE = {"zero": "acc[m,n] = 0"}, {"store": "C[m,n] = acc[m,n]"}


def fused(each, first=ZERO_STEP, **operands):
    every = {"A": "m k", "B": "k n", **operands, "C": "m n"}
    return Fused(name="made", dims="m n k", loop="k", operands=every, init=first, body=each, final=STORE)


HORNER = fused({"scale": "acc[m,n] = acc[m,n] * X[m]", "mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, X="m")
PARTS = fused({"mm": "t[m,n] = sum(k, A[m,k] * B[k,n])", "add": "acc[m,n] = acc[m,n] + t[m,n]"})
LATER = fused({"f": "f[m] = X[m] * 2", "scale": "acc[m,n] = acc[m,n] * f[m]", "mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, X="m")


def kernel_of(definition, k=200, delay=None, m=64):
    chain = definition.tile(m=m, n=64).to(Block).split(k=64).pipeline(2).warp_specialize()
    chain = chain.defer(delay[0], after=delay[1]) if delay else chain
    chain = chain.load("A", SH, copy).load("B", SH, copy).tile(m=64).to(Warpgroup).step("mm", product)
    stored = Move.tile(64, 64).unroll().load(SRC, SH, copy).cast_on_copy().done()
    return (
        chain.step("store", stored)
        .done()(definition(m=m, n=64, k=k, types={"X": float32} if "X" in definition.fused_definition.uses else {}))
        .program(TARGET)
    )


def inits(kernel):
    return {access.buffer for one, _ in ir.execs(kernel.body) if one.spec.fills for access in one.accesses}


def adding(kernel):
    """The condition under which each MMA accumulates."""
    return [str(one.accumulate) for one, _ in ir.execs(kernel.body) if one.mechanism is WGMMA_GROUPS]


def outcome(kernel, definition, k=200, order=None, values=None):
    """Whether a kernel computes the definition, one block of k after the other, in small integers."""
    draw = np.random.default_rng(4)
    arrays = {"A": draw.integers(-2, 3, (64, k)).astype(np.float16), "B": draw.integers(-2, 3, (k, 64)).astype(np.float16)}
    expected, factor = np.zeros((64, 64)), 1
    if "X" in definition.fused_definition.uses:
        factors = draw.integers(1, 3, (64, 1)).astype(np.float32)
        arrays["X"], factor = factors[:, 0] / (2 if definition is LATER else 1), factors
    for begin in range(0, k, 64):
        expected = expected * factor + arrays["A"][:, begin : begin + 64].astype(float) @ arrays["B"][begin : begin + 64].astype(float)
    got = simulate(kernel, arrays, values or {}, order=None if order is None else random.Random(order)).outputs["C"]
    return bool((got.astype(float) == expected).all())


@pytest.mark.parametrize("k", [64, 200, sym("k", multiple_of=8)], ids=["one turn", "several", "run time"])
@pytest.mark.parametrize("definition", [HORNER, PARTS], ids=["factors", "in the loop"])
def test_results(definition, k):
    kernel = kernel_of(definition, k).ir
    assert not errors(kernel)
    assert inits(kernel) == (set() if definition is HORNER else {"acc"})
    sizes = (200, 40) if isinstance(k, Var) else (k,)
    for size, order in ((size, order) for size in sizes for order in (None, 3)):
        assert outcome(kernel, definition, size, order, {"k": size} if isinstance(k, Var) else None), (size, order)


def test_when_it_accumulates():
    assert adding(kernel_of(HORNER).ir) == ["any_of((0 < k, 0 < mm_k,))"]
    assert adding(kernel_of(PARTS).ir) == ["0 < mm_k"]
    (scaled,) = (one for one, _ in ir.execs(kernel_of(HORNER).stages["zero_init_elision"].body) if one.spec.pointwise)
    assert str(scaled.active) == "0 < k"
    text = kernel_of(HORNER).text
    assert "the first MMA initializes acc" in text and "k > 0 || mm_k > 0);" in text


def test_a_deferred_loop():
    """The first MMA is that of the loop's first iteration, and that of the last iteration accumulates; before the loop nothing is scaled."""
    kernel = kernel_of_deferred(200)
    assert adding(kernel) == ["any_of((0 < k, 0 < mm_k,))", "1"]
    scales = [loops for one, loops in ir.execs(kernel.body) if one.spec.pointwise and any(part.buffer == "acc" for part in one.accesses)]
    assert [loops[0].var.name for loops in scales] == ["k"] and not inits(kernel)


def kernel_of_deferred(k):
    chain = LATER.tile(m=64, n=64).to(Block).split(k=64).pipeline(2).warp_specialize().defer("mm", after="f")
    chain = chain.load("A", SH, copy).load("B", SH, copy).tile(m=64).to(Warpgroup).step("mm", product).done()
    program = chain(LATER(m=64, n=64, k=k, types={"X": float32})).program(TARGET)
    kernel = program.walked
    for name, function in PASSES:
        kernel = verify(function(kernel))
        if name == "zero_init_elision":
            return kernel
    raise AssertionError


@pytest.mark.parametrize("k", [200, sym("k", multiple_of=8)], ids=["known", "run time"])
def test_results_of_a_deferred_loop(k):
    """With loads by all threads: MMAs of an iteration are in flight while the next operand is computed."""
    chain = LATER.tile(m=64, n=64).to(Block).split(k=64).pipeline(2).defer("mm", after="f")
    chain = chain.load("A", SH, Move.coalesced_copy(8).done()).load("B", SH, Move.coalesced_copy(8).done()).tile(m=64).to(Warpgroup)
    spec = LATER(m=64, n=64, k=k, types={"X": float32})
    kernel = chain.step("mm", product).step("store", Move.done()).done()(spec).program(TARGET).ir
    assert not errors(kernel) and not inits(kernel)
    values = None if isinstance(k, int) else {"k": 200}
    assert all(outcome(kernel, LATER, order=order, values=values) for order in (None, 3))


STAY = {
    "something is added first": fused({"more": "acc[m,n] = acc[m,n] + X[m]", "mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, X="m"),
    "it is read first": fused({"t": "t[m,n] = acc[m,n]", "s": "acc[m,n] = acc[m,n] * X[m]", "mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, X="m"),
    "divided by": fused({"s": "acc[m,n] = X[m] / acc[m,n]", "mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, X="m"),
    "not zero": fused(
        {"s": "acc[m,n] = acc[m,n] * X[m]", "mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}, {"one": "acc[m,n] = 1"}, X="m"
    ),
    "cleared once": fused({"mm": "acc[m,n] += sum(k, A[m,k] * B[k,n])"}),
}  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", STAY)
def test_what_stays(name):
    kernel = kernel_of(STAY[name]).stages["zero_init_elision"]
    assert inits(kernel) == {"acc"} and adding(kernel) == ["1"]


def test_an_accumulator_cleared_once_per_iteration_begins_with_its_mma():
    """ptxas would zero one accumulator after the first MMAs of another, and serialize them (C7517)."""
    program = kernel_of(STAY["cleared once"], 64)
    assert inits(program.stages["zero_init_elision"]) == set() and adding(program.stages["zero_init_elision"]) == ["0 < mm_k"]
    assert not errors(program.ir) and outcome(program.ir, STAY["cleared once"], 64)


def test_mma_of_warps_is_left_alone():
    program = attention.strategy(attention.spec(64, 128, 64)).program("sm_80")
    assert program.stages["zero_init_elision"] is program.stages["defer"]


@pytest.mark.parametrize("fault", ["never adds", "always adds", "adds from the second turn on"])
def test_wrong_predicates_are_noticed(fault):
    """By exact results; the simulator detects uninitialized registers."""
    kernel = kernel_of(HORNER).ir
    (loop,) = (one for one in ir.statements(kernel.body) if isinstance(one, ir.For) and one.var.name == "k" and adding_inside(one))
    wrong = {"never adds": FALSE, "always adds": TRUE, "adds from the second turn on": loop.var > ZERO}[fault]
    body = ir.edited(kernel.body, lambda one: attrs.evolve(one, accumulate=wrong) if one.mechanism is WGMMA_GROUPS else one)
    try:
        right = outcome(attrs.evolve(kernel, body=body), HORNER)
    except FireironError:
        right = False
    assert not right


def adding_inside(loop):
    return any(one.mechanism is WGMMA_GROUPS for one, _ in ir.execs(loop.body))


def is_zeroing(statement):
    return isinstance(statement, ir.For) and all(one.spec.fills for one, _ in ir.execs((statement,)))


@pytest.mark.parametrize(
    ("what", "changed"),
    [
        ("no turn", lambda one: attrs.evolve(one, extent=Var("some", 0, 4)) if one.var.name == "k" else one),
        ("more than is added to", lambda one: attrs.evolve(one, extent=one.extent * 2) if is_zeroing(one) else one),
    ],
)
def test_zeros_that_may_be_read_stay(what, changed):
    """A loop that may have no iteration, and elements that no MMA of the step writes."""
    kernel = kernel_of(HORNER).stages["defer"]
    body = ir.rewritten(kernel.body, lambda one: (changed(one) if isinstance(one, ir.For) else one,))
    kernel = attrs.evolve(kernel, body=body)
    assert (
        zero_init_elision(kernel) == kernel and zero_init_elision(kernel_of(HORNER).stages["defer"]) != kernel_of(HORNER).stages["defer"]
    ), what


def test_elision_is_idempotent():
    kernel = kernel_of(HORNER).stages["zero_init_elision"]
    assert zero_init_elision(kernel) == kernel


# ---------------------------------------------------------------------------------------------- hand-made programs


def mma(place, width):
    """An MMA that adds to `width` registers from `place` on."""
    target = access("acc", (place,), (width,), write=True)
    spec = MatMul(1, 1, 1)(SH, SH, RF)(Warpgroup)
    return execution(Engine(), spec, access("a", (0,)), access("b", (0,)), target, accumulate=TRUE, mechanism=WGMMA_GROUPS)


CLEARED = execution(INIT, Init(1, 1)(RF)(Thread), access("acc", (0,), (8,), write=True))


def first_adds(*body):
    """When the first MMA after a zero of 8 registers accumulates, if the zero is elided."""
    elided_body = zero_init_elision(kernel(CLEARED, *body)).body
    (mma_exec,) = (one for one, _ in ir.execs(elided_body) if one.mechanism is WGMMA_GROUPS)
    return str(mma_exec.accumulate) if CLEARED not in elided_body else "stays"


def test_a_loop_over_parts_of_the_accumulator_overwrites_and_a_loop_over_the_sum_accumulates():
    assert first_adds(loop(2, mma(i * 4, 4))) == "0"
    assert first_adds(loop(2, mma(0, 8))) == "0 < i"
    assert first_adds(loop(3, loop(2, mma(j * 4, 4), var=j))) == "0 < i"


def test_a_zero_of_more_or_fewer_registers_than_the_mma_accumulates_stays():
    assert [first_adds(loop(count, mma(i * 4, 4))) for count in (1, 2, 3)] == ["stays", "0", "stays"]
    assert first_adds(loop(Var("n", 0, 2), mma(i * 4, 4))) == "stays"


def test_zeros_before_conditional_mma_other_instructions_and_reads_stay():
    whole = mma(0, 8)
    assert first_adds(whole) == "0"
    assert first_adds(attrs.evolve(whole, active=less(kernel().thread, 64))) == "stays"
    assert first_adds(attrs.evolve(whole, accumulate=less(0, Var("n", 0, 2)))) == "stays"
    for change in (
        {"mechanism": AT_ONCE},
        {"accesses": (*whole.accesses[:2], attrs.evolve(whole.accesses[2], write=False))},
        {"accesses": (whole.accesses[0], attrs.evolve(whole.accesses[2], write=False), whole.accesses[2])},
    ):
        program = kernel(CLEARED, attrs.evolve(whole, **change))
        assert zero_init_elision(program) == program


# ---------------------------------------------------------------------------------------------- factors of the accumulator


@pytest.mark.parametrize(
    ("value", "zero"),
    [
        ("acc[m,n]", True), ("X[m]", False), ("0", False), ("acc[m,n] * X[m]", True), ("X[m] * acc[m,n]", True), ("X[m] * 2", False),
        ("acc[m,n] / X[m]", True), ("X[m] / acc[m,n]", False), ("acc[m,n] / acc[m,n]", False), ("X[m] / X[m]", False),
        ("acc[m,n] + acc[m,n]", True), ("acc[m,n] + X[m]", False), ("X[m] - acc[m,n]", False), ("acc[m,n] - acc[m,n] * X[m]", True),
        ("-acc[m,n]", True), ("-X[m]", False), ("exp(acc[m,n])", False), ("max(acc[m,n], 0)", False),
    ],
)  # fmt: skip
def test_what_stays_zero_where_the_accumulator_is(value, zero):
    definition = Fused(
        name="one",
        dims="m n",
        operands={"X": "m", "Y": "m n", "C": "m n"},
        body={"a": "acc[m,n] = Y[m,n] * X[m]", "b": f"C[m,n] = {value}"},
    )
    formula = definition.kind.fused_definition.steps[1].formula.value
    assert _is_zero(formula, "acc") is zero
    assert not _is_zero(None, "acc")
