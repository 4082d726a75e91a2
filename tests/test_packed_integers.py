"""Packed integers of 4 bits, and bytes, converted to pairs of 16-bit floats by operations on bits, against exact integers.

All oracles must agree bit by bit: `reference()`, the simulator, the printed text on a CPU, and NumPy. Formulas that are no provable pattern
use the plain conversion. Injected faults in the printed text are found.
"""

import itertools
import random

import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed

from fireiron import *
from fireiron.check import safety
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.performing.packed_integers import fields_of
from fireiron.sim import simulate
from fireiron.specs.formula import formula_of
from fireiron.specs.steps import with_coordinates, with_extents

SHIFTS = ("4 * (k % {e})", "(k % {e}) * 4", "k * 4 % {b}", "(k % {e}) << 2", "(k & {e1}) * 4", "4 * (k & {e1})")
"""Shifts of the field number k of words of e fields."""

OTHER_SHIFTS = ("{b} - 4 - 4 * (k % {e})", "4 * ({e1} - k % {e})", "4 * ((k + 1) % {e})")
"""Shifts of other orders of the fields, which have no pairs."""

FORMS = {"": 0, " - 8": -8, " + 3": 3, " - 1000": -1000}
"""What is added to a field, and its value."""


def unpacked(shift, added="", fields=8, kind=int32, result=float16, scaled=False):
    """A definition that unpacks to shared memory, and the spec of a problem with a partial tile."""
    shift = shift.format(e=fields, e1=fields - 1, b=4 * fields)
    value = f"(P[n,k // {fields}] >> ({shift}) & 15){added}"
    operands = {"P": "n q", **({"S": "n"} if scaled else {}), "Y": "n k"}
    definition = Fused(
        name="unpacked", dims="n k q", operands=operands, types={"P": kind, "w": result, "Y": result, **({"S": result} if scaled else {})},
        body={"w": f"w[n,k] = ({value}) * S[n]" if scaled else f"w[n,k] = {value}", "out": "Y[n,k] = w[n,k]"},
    )  # fmt: skip
    tile = definition.tile(n=8, k=64).to(Block).set_memory("w", SH).step("out", Move.coalesced_copy(8).done()).done()
    return tile(definition(n=11, k=136))


def inputs(spec, seed=0):
    random_numbers = np.random.default_rng(seed)
    arrays = {}
    for name in spec.inputs:
        array = spec.operands[name].tensor.array
        shape, kind = tuple(int(size.high) for size in array.shape), array.dtype
        if kind.kind == "int":
            info = np.iinfo(kind.numpy)
            arrays[name] = random_numbers.integers(info.min, info.max, shape, endpoint=True).astype(kind.numpy)
        else:
            arrays[name] = random_numbers.integers(-3, 4, shape).astype(kind.to_numpy())
    return arrays


def right(arrays, shift, added, fields):
    """The values by NumPy, from the formula's text."""
    k = np.arange(136)
    words = arrays["P"].astype(np.int64)[:, k // fields]
    values = ((words >> eval(shift.format(e=fields, e1=fields - 1, b=4 * fields), {"k": k})) & 15) + FORMS[added]
    return values * arrays["S"].astype(np.int64)[:, None] if "S" in arrays else values


CASES = [
    *((shift, added, 8, int32, float16, scaled) for (shift, added), scaled in zip(itertools.product(SHIFTS, (" - 8",)), itertools.cycle((False, True)))),
    *((SHIFTS[0], added, 8, int32, float16, False) for added in FORMS),
    *((SHIFTS[0], " - 8", 8, int32, bfloat16, scaled) for scaled in (False, True)),
    *((SHIFTS[number], " - 8", 2, kind, result, False) for number, (kind, result) in enumerate(itertools.product((int8, uint8), (float16, bfloat16)))),
    (SHIFTS[0], "", 4, int32, float16, False),
]  # fmt: skip


def texts_of(shift, added, fields, kind, result, scaled):
    bound = unpacked(shift, added, fields, kind, result, scaled)
    return bound, bound.program("sm_80")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_fields_are_exact(case):
    bound, program = texts_of(*case)
    assert "int4_pair_to_" in program.cuda and safety(program.lowered) == ()
    arrays = inputs(bound.spec, len(str(case)))
    want = right(arrays, *case[:3])
    assert np.array_equal(np.asarray(bound.spec.reference(*arrays.values()), float), want)
    assert np.array_equal(np.asarray(simulate(program.ir, arrays, order=random.Random(0)).outputs["Y"], float), want)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_texts_on_a_cpu(tmp_path):
    """All texts as one program of the host."""
    chosen = CASES[:: 1 if len(CASES) < 20 else 2]
    programs = [texts_of(*case) for case in chosen]
    host = HostProgram([Printed.of(program) for _, program in programs], tmp_path)
    for number, (case, (bound, _)) in enumerate(zip(chosen, programs, strict=True)):
        arrays = inputs(bound.spec, number)
        assert np.array_equal(host.run(number, arrays)["Y"].astype(float), right(arrays, *case[:3])), case


@pytest.mark.parametrize("shift", OTHER_SHIFTS)
def test_other_orders_are_unpacked_one_by_one(shift):
    bound = unpacked(shift, " - 8")
    program = bound.program("sm_80")
    assert "int4_pair" not in program.cuda
    arrays = inputs(bound.spec)
    assert np.array_equal(simulate(program.ir, arrays).outputs["Y"].astype(float), right(arrays, shift, " - 8", 8))


@pytest.mark.parametrize(
    ("value", "is_pattern"),
    [
        ("(P[k] >> 4 * (k % 8)) & 15", True), ("((P[k] >> 4 * (k % 8)) & 15) - 8", True), ("8 + ((P[k] >> 4 * (k % 8)) & 15)", True),
        ("8 - ((P[k] >> 4 * (k % 8)) & 15)", False), ("(P[k] >> 4 * (k % 8)) & 7", False), ("(P[k] >> 3 * (k % 8)) & 15", False),
        ("(P[k] >> 4 * (k % 7)) & 15", False), ("(P[k] >> 4 * (k % 16)) & 15", False), ("(P[k] >> 8 * (k % 4)) & 15", False),
        ("(P[k] >> 4 * (n % 8)) & 15", False), ("(P[k] >> (k & 5) * 4) & 15", False), ("(L[k] >> 4 * (k % 8)) & 15", False),
        ("((P[k] >> 4 * (k % 8)) & 15) - 8.5", False), ("(P[k] >> S[k]) & 15", False),
    ],
)  # fmt: skip
def test_patterns(value, is_pattern):
    parsed = with_coordinates(formula_of(with_extents(f"y[k] = {value}")).value, ("k", "n"))
    types = {"P": int32, "L": int64, "S": int32, "index_k": int32, "index_n": int32}
    assert (fields_of(parsed, types) is not None) is is_pattern


def matmul(weights, types, target="sm_80", registers=False, **operands):
    """A product of float16 with unpacked weights: from shared memory, or in the registers of an MMA."""
    definition = Fused(
        name="weights", dims="m n k q" if "q" in str(operands) else "m n k", loop="k", operands={"A": "m k", **operands, "C": "m n"}, types=types,
        init={"zero": "acc[m,n] = 0"}, body={"weight": f"w[n,k] = {weights}", "mm": "acc[m,n] += sum(k, A[m,k] * w[n,k])"},
        final={"store": "C[m,n] = acc[m,n]"},
    )  # fmt: skip
    copies, fragment = Move.coalesced_copy(8).done(), Move.done()
    if registers:
        warp = MatMul.tile(32, 16).to(Warp).load(A, RF, fragment).tile(16, 16).unroll().mma_tile().done()
        chain = definition.tile(m=32, n=16).to(Block).split(k=16).load("A", SH, copies).step("mm", warp).done()
    else:
        warps = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragment).load(B, RF, fragment).tile(16, 16).unroll().mma_tile()
        chain = definition.tile(m=64, n=64).to(Block).split(k=32).pipeline(2).load("A", SH, copies).swizzle_storage()
        chain = (
            chain.load(next(iter(operands)), SH, Move.coalesced_copy(4).done())
            .set_memory("w", SH)
            .swizzle_storage()
            .step("mm", warps.done())
            .done()
        )
    return chain(definition(m=64, n=64, k=64))


NIBBLES = "(P[n,k // 8] >> 4 * (k % 8) & 15) - 8"
PRODUCTS = {
    "fields in shared memory": matmul(NIBBLES, {"P": int32}, P="n q"),
    "fields in registers": matmul(NIBBLES, {"P": int32}, registers=True, P="n q"),
    "bytes": matmul("W[n,k] * 2", {"W": int8}, W="n k"),
    "unsigned bytes": matmul("W[n,k] - 128", {"W": uint8}, W="n k"),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name, tmp_path):
    bound = PRODUCTS[name]
    program = bound.program("sm_80")
    function = {"fields in shared memory": "int4_pair_to_half2_of_word<", "fields in registers": "int4_pair_to_half2("}.get(
        name, "int8_pair_to_half2("
    )
    assert function in program.cuda and safety(program.lowered) == ()
    arrays = inputs(bound.spec)
    k = np.arange(64)
    if "P" in arrays:
        weights = ((arrays["P"].astype(np.int64)[:, k // 8] >> 4 * (k % 8)) & 15) - 8
    else:
        weights = arrays["W"].astype(np.int64) * 2 if name == "bytes" else arrays["W"].astype(np.int64) - 128
    want = (arrays["A"].astype(np.float64) @ weights.T).astype(np.float16)
    assert np.array_equal(simulate(program.ir, arrays, order=random.Random(0)).outputs["C"], want)
    if COMPILER is not None:
        assert np.array_equal(HostProgram([Printed.of(program)], tmp_path).run(0, arrays)["C"], want)


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", [*PRODUCTS, "bfloat16"])
def test_compiled(name, target):
    bound = PRODUCTS.get(name) or unpacked(SHIFTS[0], " - 8", result=bfloat16, scaled=True)
    program = bound.program(target)
    report = compile_cuda(program.cuda, target).resources[program.name]
    assert report.spill_stores == report.stack_frame == 0


FAULTS = {
    "another base": (r"0x64086408u", "0x64076408u"),
    "another field": (r"of_word<2>", "of_word<0>"),
    "bytes in another order": (r"0x5410 : 0x7632", "0x7632 : 0x5410"),
    "another mask": (r"field % 4 \* 4 \+ 4\)\) & 0x000f000f", "field % 4 * 4 + 4)) & 0x0007000f"),
}


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_faults_of_texts_are_found(tmp_path):
    bound, program = texts_of(*CASES[0])
    host = HostProgram([Printed.of(program).changed(*fault) for fault in FAULTS.values()], tmp_path)
    arrays = inputs(bound.spec)
    for number, name in enumerate(FAULTS):
        assert not np.array_equal(host.run(number, arrays)["Y"].astype(float), right(arrays, *CASES[0][:3])), name
