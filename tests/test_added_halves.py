"""Outputs in 16-bit floats, and vectors of float32, to which blocks add: the types of targets, the error bound, faults (oracle: float64)."""

import random
import re

import attrs
import numpy as np
import pytest
from printed_text import COMPILER, HostProgram, Printed
from test_added import copy, product_of

from fireiron import *
from fireiron import ir
from fireiron.check import check, safety
from fireiron.errors import FireironError
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.language.store import dumps, loads
from fireiron.measure.judge import Judge
from fireiron.measure.rounding import expected
from fireiron.sim import simulate

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")


def product(dtype=float16):
    """A matmul divided along its reduction dimension: blocks add the pairs of their fragments."""
    definition = Fused(
        name="parts", dims="m n d", operands={"S": "m n", "K": "n d", "dQ": "m d"}, types={"S": float16, "K": float16, "dQ": dtype},
        body={"mm": "dQ[m,d] += sum(n, S[m,n] * K[n,d])"},
    )  # fmt: skip
    tiles = definition.tile(m=64, n=32, d=32).to(Block).load("S", SH, copy).load("K", SH, copy)
    return tiles.step("mm", product_of(32, 32)).done()(definition(m=100, n=72, d=40))


def batch(dtype=float16, width=8, d=48):
    """A sum over a batch, of vectors of a thread."""
    definition = Fused(
        name="heads", dims="b h m d", batch="b h", operands={"X": "b h m d", "Y": "b m d"}, types={"X": float16, "Y": dtype},
        body={"t": "t[m,d] = X[b,h,m,d] * 2", "add": "Y[b,m,d] += t[m,d]"},
    )  # fmt: skip
    return definition.tile(b=1, h=1, m=8, d=32).to(Block).tile(m=1, d=width).to(Thread).done()(definition(b=2, h=3, m=20, d=d))


def iterations(dtype=float16):
    """Sums in each iteration of a loop, by lanes of warps."""
    definition = Fused(
        name="rows", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, types={"y": dtype}, body={"t": "t[m,n] = X[m,n] * 2", "add": "y[m] += sum(n, t[m,n])"},
    )  # fmt: skip
    rows = definition.tile(m=4).to(Block).tile(m=1).to(Warp).split(n=32).load("X", RF, Move.tile(1, 1).to(Lane).done())
    return rows.done()(definition(m=10, n=100, types={"X": float32}))


def scattered(dtype=float16, width=2):
    """The gradient of an embedding: rows that a table selects."""
    definition = Fused(
        name="embedding", dims="m n r", operands={"G": "m n", "rows": "m", "dE": "r n"}, types={"G": float16, "dE": dtype, "rows": int32},
        body={"add": "dE[rows[m],n] += G[m,n]"},
    )  # fmt: skip
    return definition.tile(m=8, n=64).to(Block).tile(m=1, n=width).to(Thread).done()(definition(m=30, n=64, r=9))


KERNELS = {"product": product, "batch": batch, "iterations": iterations, "scattered": scattered}
OUTPUTS = {"product": "dQ", "batch": "Y", "iterations": "y", "scattered": "dE"}


def arrays_of(spec, seed=0, whole=True):
    """Small integers, whose sums are exact, or normally distributed numbers."""
    numbers = np.random.default_rng(seed)
    arrays = {}
    for name in (one for one in spec.inputs if not one.startswith("index_")):
        shape, kind = tuple(int(size.high) for size in spec.operands[name].tensor.array.shape), spec.operands[name].dtype
        if kind.kind == "int":
            arrays[name] = numbers.integers(-1, 9, shape).astype(np.int32)
        else:
            arrays[name] = (numbers.integers(-2, 3, shape) if whole else numbers.standard_normal(shape)).astype(kind.to_numpy())
    return arrays


def right(name, arrays):
    """The result in float64, without the definition."""
    a, *more = (array.astype(np.float64) for array in arrays.values())
    if name == "scattered":
        total = np.zeros((9, 64))
        rows = arrays["rows"]
        np.add.at(total, rows[rows >= 0], a[rows >= 0])
        return total
    return a @ more[0] if name == "product" else 2 * a.sum(1)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", KERNELS)
def test_sums_are_exact_for_integers(name):
    bound = KERNELS[name](bfloat16 if name == "batch" else float16)
    program = bound.program("sm_90a")
    assert [finding for finding in check(program.lowered) if finding.severity == "error"] == []
    arrays = arrays_of(bound.spec)
    want = right(name, arrays)
    for order in (None, random.Random(1)):
        assert np.array_equal(simulate(program.ir, arrays, order=order).outputs[OUTPUTS[name]].astype(float), want)
    assert np.array_equal(np.asarray(bound.spec.reference(*arrays.values())).astype(float), want)
    assert parse_kernel(graphene_text(program)).cuda == program.cuda and loads(dumps(bound)) == bound


WIDTHS = [
    (batch, float16, 1, "sm_80", 1), (batch, float16, 2, "sm_80", 2), (batch, float16, 8, "sm_80", 2), (batch, float16, 8, "sm_90a", 8),
    (batch, bfloat16, 4, "sm_90a", 4), (scattered, float16, 4, "sm_80", 2), (scattered, float16, 4, "sm_90a", 4),
]  # fmt: skip


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("kernel", "dtype", "width", "target", "count"), WIDTHS)
def test_adjacent_elements_are_added_at_once(kernel, dtype, width, target, count):
    text = kernel(dtype, width).cuda(target)
    calls = set(re.findall(r"\badd_(?:(\d)_)?in_memory\(&", re.sub(r"\(\s+&", "(&", text)))
    assert calls == {str(count) if count > 1 else ""}
    ptx = {1: "f16 ", 2: "f16x2 ", 4: "v2.f16x2 ", 8: "v4.f16x2 "}[count]
    assert f"red.global.add.noftz.{ptx.replace('f16', 'bf16') if dtype == bfloat16 else ptx}[%0]" in text


@pytest.mark.parametrize(
    ("width", "d", "target", "count"), [(8, 48, "sm_90a", 4), (2, 48, "sm_90", 2), (8, 48, "sm_80", 1), (2, 47, "sm_90a", 1)]
)
def test_vectors_of_float32(width, d, target, count):
    """Since sm_90, two or four adjacent float32 are added at once, if they are aligned."""
    bound = batch(float32, width, d)
    program = bound.program(target)
    calls = set(re.findall(r"\b(?:add_(\d)_floats_in_memory|atomicAdd)\(&", re.sub(r"\(\s+&", "(&", program.cuda)))
    assert calls == {str(count) if count > 1 else ""}
    assert (f"red.global.add.v{count}.f32 [%0]" in program.cuda) == (count > 1)
    assert [finding for finding in check(program.lowered) if finding.severity == "error"] == []
    arrays = arrays_of(bound.spec)
    assert np.array_equal(simulate(program.ir, arrays).outputs["Y"], right("batch", arrays))


def test_fragments_are_added_in_pairs():
    """Lanes have two adjacent float32 of an accumulator."""
    assert "add_2_floats_in_memory(" in product(float32).cuda("sm_90a")
    assert parse_kernel(graphene_text(product(float32).program("sm_90a"))).cuda == product(float32).cuda("sm_90a")


def test_odd_rows_are_added_element_by_element():
    """Rows of 47 elements start at odd addresses, so no pair is aligned."""
    bound = batch(float16, 2, d=47)
    text = bound.cuda("sm_80")
    assert "f16x2" not in text and "red.global.add.noftz.f16 " in text
    arrays = arrays_of(bound.spec)
    assert np.array_equal(simulate(bound.program("sm_80").ir, arrays).outputs["Y"].astype(float), right("batch", arrays))


@pytest.mark.parametrize(("dtype", "target", "first"), [(float16, "sm_60", "sm_70"), (bfloat16, "sm_80", "sm_90")])
def test_targets_without_the_instruction_are_refused(dtype, target, first):
    with pytest.raises(FireironError) as refused:
        batch(dtype, 1).cuda(target)
    assert f"{first} or newer" in str(refused.value)


def test_a_sum_that_only_the_tiles_divide_is_refused():
    """`=` states one rounding, so blocks may not add parts in 16 bits."""
    sums = Fused(name="sums", dims="m n", operands={"X": "m n", "y": "m"}, body={"t": "y[m] = sum(n, X[m,n])"})
    strategy = sums.tile(m=8, n=8).to(Block).tile(m=1, n=1).to(Thread).done()
    with pytest.raises(FireironError):
        strategy(sums(m=16, n=16)).cuda("sm_80")


@pytest.mark.nightly
@needs_compiler
def test_texts_on_a_cpu(tmp_path):
    kernels = [
        ("product", product()),
        ("batch", batch(bfloat16)),
        ("scattered", scattered()),
        ("batch", batch(float32)),
        ("product", product(float32)),
    ]
    host = HostProgram([Printed.of(bound.program("sm_90a")) for _, bound in kernels], tmp_path)
    for number, (name, bound) in enumerate(kernels):
        arrays = arrays_of(bound.spec, number)
        assert np.array_equal(host.run(number, arrays)[OUTPUTS[name]].astype(float), right(name, arrays)), name


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_compiled(target):
    for bound in (product(), batch(), scattered(), batch(float32)):
        program = bound.program(target)
        assert compile_cuda(program.cuda, target).resources[program.name].spill_stores == 0


# ---------------------------------------------------------------------------------------------- the error bound


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", KERNELS)
def test_the_bound_holds_for_every_order(name):
    bound = KERNELS[name]()
    kernel, arrays = bound.program("sm_80").ir, arrays_of(bound.spec, 3, whole=False)
    judge = Judge(bound.spec, {}, arrays, float32)
    for order in (None, random.Random(1), random.Random(2)):
        assert judge.wrong(OUTPUTS[name], simulate(kernel, arrays, order=order).outputs[OUTPUTS[name]]) is None
    assert judge.closest[OUTPUTS[name]].fraction > 0.003


@pytest.mark.parametrize("dtype", [float16, bfloat16])
def test_the_bound_covers_single_additions(dtype):
    """Each term is added separately, in increasing order, and in the given one: the most rounding errors that a strategy may have."""
    definition = Fused(
        name="sums", dims="m n", loop="n", operands={"X": "m n", "y": "m"}, types={"X": float32, "y": dtype}, body={"add": "y[m] += sum(n, X[m,n])"}
    )  # fmt: skip
    spec, kind = definition(m=40, n=400), dtype.to_numpy()
    x = np.random.default_rng(0).standard_normal((40, 400)).astype(np.float32)
    bounded = expected(spec, {"X": x}, {})["y"]
    for array in (x, np.sort(x, axis=1), np.sort(abs(x), axis=1)):
        bounded = expected(spec, {"X": array}, {})["y"]
        total = np.zeros(40, kind)
        for term in array.T:
            total = (total + term.astype(kind)).astype(kind)
        assert np.all(abs(total.astype(float) - bounded.value) <= bounded.error)
    # positive terms below the spacing of bfloat16 near their sum may all be lost
    assert np.all(bounded.error < abs(x).sum(1) * (1.03 if dtype == bfloat16 else 0.1))


def test_a_sum_that_may_overflow_has_no_bound():
    definition = Fused(
        name="sums", dims="m n", operands={"X": "m n", "y": "m"}, types={"X": float32, "y": float16}, body={"add": "y[m] += sum(n, X[m,n])"}
    )  # fmt: skip
    x = np.array([[60000, 60000, -60000, -60000], [1, 2, 3, 4]], np.float32)
    assert list(np.isinf(expected(definition(m=2, n=4), {"X": x}, {})["y"].error)) == [True, False]


def first(kernel, change):
    """The kernel with one changed atomic addition."""
    done = []

    def changed(stmt):
        if isinstance(stmt, ir.Exec) and stmt.atomic and not done:
            done.append(stmt)
            return change(stmt)
        return (stmt,)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, changed))


def moved(stmt):
    """The addition to the elements after those of the statement."""
    source, target = stmt.accesses
    return (attrs.evolve(stmt, accesses=(source, attrs.evolve(target, base=(*target.base[:-1], target.base[-1] + 1)))),)


@pytest.mark.parametrize("dtype", [float16, float32])
def test_faults_are_found(dtype):
    """A missing addition, an addition that counts twice, and a pair at an odd address."""
    bound = batch(dtype, 2)
    kernel, arrays = bound.program("sm_90a").ir, arrays_of(bound.spec, 3, whole=False)
    judge = Judge(bound.spec, {}, arrays)
    for change in (lambda stmt: (), lambda stmt: (stmt, stmt)):
        assert judge.wrong("Y", simulate(first(kernel, change), arrays).outputs["Y"]) is not None
    findings = safety(first(kernel, moved))
    assert any(finding.kind == "alignment" for finding in findings), findings


@needs_compiler
def test_a_fault_of_the_text_is_found(tmp_path):
    bound = batch(float16, 2)
    printed = Printed.of(bound.program("sm_80"))
    host = HostProgram([printed.changed(r"__floats2half2_rn\(t\[0\], t\[1\]\)", "__floats2half2_rn(t[1], t[0])")], tmp_path)
    arrays = arrays_of(bound.spec)
    assert not np.array_equal(host.run(0, arrays)["Y"].astype(float), right("batch", arrays))
