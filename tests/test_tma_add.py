"""Additions of tiles by TMA, and sums of a tile that another step adds to an output (oracle: float64)."""

import random

import attrs
import making
import numpy as np
import pytest
from near import Near
from printed_text import COMPILER, HostProgram, Printed
from test_tma import CHUNKED, SM_90A, differences, view

from fireiron import *
from fireiron import ARCHITECTURES, ir
from fireiron.check import safety
from fireiron.errors import DecompositionError, SimulationError
from fireiron.executable.tma import TMA_ADD, TMA_STORE
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")

PARTS = Fused(
    name="parts", dims="m n d", operands={"S": "m n", "K": "n d", "dQ": "m d", "top": "m n"}, types={"dQ": float32},
    body={
        "product": "part[m,d] = sum(n, S[m,n] * K[n,d])",
        "between": "top[m,n] = S[m,n] * 2",
        "add": "dQ[m,d] += part[m,d]",
    },
)  # fmt: skip
"""A product along n, which blocks divide: the step `add` adds the part of a tile, and may follow other steps."""

copy, fragments = Move.coalesced_copy(8).done(), Move.done()
SIZES = {"m": 100, "n": 136, "d": 72}


def by_tma(columns=64, **sizes):
    """Parts by wgmma, through shared memory; TMA adds them."""
    tiles = PARTS.tile(m=64, n=64, d=64).to(Block).load("S", SH, Move.done()).load("K", SH, copy).swizzle_storage()
    added = AtomicAdd.tile(64, 64).to(Warpgroup).tile(64, columns).unroll().load(SRC, SH, Move.done()).done()
    tiles = tiles.step("product", MatMul.tile(64, 64).to(Warpgroup).split(16).unroll().done()).step("add", added)
    return tiles.done()(PARTS(**(sizes or SIZES)))


def by_warps(tma=False):
    """The same parts by mma.sync; threads add the elements that they own, or TMA adds the tiles of warps."""
    mma = MatMul.tile(16, 16).unroll().mma_tile().done()
    product = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)
    tiles = PARTS.tile(m=64, n=64, d=64).to(Block).load("S", SH, copy).load("K", SH, copy)
    tiles = tiles.step("product", product)
    added = AtomicAdd.tile(32, 32).to(Warp).load(SRC, SH, Move.done()).done()
    return (tiles.step("add", added) if tma else tiles).done()(PARTS(**SIZES))


def arrays(sizes=SIZES, seed=0):
    generator = np.random.default_rng(seed)
    shapes = {"S": (sizes["m"], sizes["n"]), "K": (sizes["n"], sizes["d"])}
    return {name: generator.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}


def right(given):
    return {"dQ": given["S"].astype(float) @ given["K"].astype(float), "top": 2 * given["S"].astype(float)}


FORMS = {
    "tma": (by_tma, "sm_90a"),
    "tma in two pieces": (lambda: by_tma(32), "sm_90a"),
    "tma for warps": (lambda: by_warps(True), "sm_90"),
    "threads": (by_warps, "sm_80"),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_block_adds_its_part(form):
    make, target = FORMS[form]
    bound = make()
    kernel, given = bound.program(target).ir, arrays()
    PARTS.check()
    assert making.effect_of(kernel, "zeroed") == ("dQ",)
    assert not [finding for finding in safety(kernel) if finding.severity == "error"]
    near = Near(bound.spec, given, right(given))
    for order in (None, random.Random(1)):
        near.require(simulate(kernel, given, order=order).outputs)
    near.require(dict(zip(("dQ", "top"), bound.spec.reference(*given.values()), strict=True)))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_printed_text_runs(tmp_path):
    bound, given = by_tma(), arrays()
    host = HostProgram([Printed.of(bound.program("sm_90a"))], tmp_path)
    for seed in range(2):
        Near(bound.spec, given, right(given)).require(host.run(0, given, seed=seed))


def test_text_and_notation():
    bound = by_tma()
    program = bound.program("sm_90a")
    assert "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group" in program.cuda and "tma_add(&dQ_map" in program.cuda
    assert "TMA_ADD" in {stmt.instruction.name for stmt in ir.statements(program.ir.body) if isinstance(stmt, ir.Exec)}
    text = graphene_text(program)
    assert parse_kernel(text).text == program.text
    assert loads(dumps(bound)).program("sm_90a").cuda == program.cuda


@needs_nvrtc
def test_compiles():
    assert "cp.reduce.async.bulk.tensor" in compile_cuda(by_tma().cuda("sm_90a"), "sm_90a").ptx


# ---------------------------------------------------------------------------------------------- injected faults


def without(kernel, kind, where=lambda stmt: True):
    """The kernel without the statements of a kind."""

    def each(body):
        for stmt in body:
            if hasattr(stmt, "body"):
                yield attrs.evolve(stmt, body=tuple(each(stmt.body)))
            elif not (isinstance(stmt, kind) and where(stmt)):
                yield stmt

    return attrs.evolve(kernel, body=tuple(each(kernel.body)))


def test_a_missing_addition_is_found():
    kernel, given = by_tma().program("sm_90a").ir, arrays()
    planted = without(kernel, ir.Exec, lambda stmt: stmt.atomic)
    planted = without(planted, (ir.Commit, ir.Wait), lambda stmt: stmt.mechanism == TMA_STORES)
    assert Near(by_tma().spec, given, right(given)).wrong(simulate(planted, given).outputs)


def test_a_store_in_place_of_an_addition_is_found():
    def stored(stmt):
        spec = Move.on(Warpgroup, stmt.spec.src, stmt.spec.dst)
        return attrs.evolve(stmt, spec=spec, instruction=TMA_STORE)

    def each(body):
        for stmt in body:
            if isinstance(stmt, ir.Exec) and stmt.atomic:
                yield stored(stmt)
            else:
                yield attrs.evolve(stmt, body=tuple(each(stmt.body))) if hasattr(stmt, "body") else stmt

    kernel = by_tma().program("sm_90a").ir
    planted = attrs.evolve(kernel, body=tuple(each(kernel.body)))
    with pytest.raises(SimulationError, match="race on dQ"):
        simulate(planted, arrays())


def test_a_missing_fence_is_found():
    planted = without(by_tma().program("sm_90a").ir, ir.Fence, lambda stmt: stmt.kind == ir.FenceKind.ASYNC_PROXY)
    with pytest.raises(SimulationError):
        simulate(planted, arrays())


# ---------------------------------------------------------------------------------------------- refusals


def added(level=Warpgroup, src=None, dst=None, **fields):
    fields = {"dtype": float32, "shape": (64, 32), **fields}
    chunked = {**CHUNKED, "swizzle": None, "layout": RowMajor}
    return AtomicAdd.on(level, view("src", SH, **{**chunked, **fields, **(src or {})}), view("dst", GL, **{**fields, **(dst or {})}))


@pytest.mark.parametrize("target", ARCHITECTURES, ids=str)
def test_from_hopper_on(target):
    fields = [field for field, *_ in differences(TMA_ADD, added(), target)]
    assert ("target" in fields) == (target.capability < 90)


@pytest.mark.parametrize(("spec", "mismatch"), [
    (Move.on(Warpgroup, view("src", SH), view("dst", GL)), ("spec", "AtomicAdd", "Move")),
    (added(Block), ("level", "Warpgroup or Warp", "Block")),
    (added(dtype=float64), ("dst type", "float32 or int32", "float64")),
    (added(src={"dtype": float32}, dst={"dtype": int32}), ("dst type", "float32", "int32")),
])  # fmt: skip
def test_mismatches(spec, mismatch):
    assert mismatch in differences(TMA_ADD, spec, SM_90A)


def test_a_store_is_no_addition():
    assert ("spec", "Move", "AtomicAdd") in differences(TMA_STORE, added(), SM_90A)


@pytest.mark.parametrize("body", [
    {"part": "part[m] = sum(n, X[m,n])", "add": "y[m] += part[m] * 2"},
    {"part": "part[m] = sum(n, X[m,n])", "add": "y[m] += part[m]", "other": "z[m] = part[m]"},
    {"part": "part[m] = max(n, X[m,n])", "add": "y[m] += part[m]"},
])  # fmt: skip
def test_only_a_sum_that_is_only_added_may_be_divided(body):
    """Elsewhere a step needs the complete result."""
    operands = {"X": "m n", "y": "m"} | ({"z": "m"} if "other" in body else {})
    sums = Fused(name="sums", dims="m n", operands=operands, body=body, types={"y": float32})
    with pytest.raises(DecompositionError, match=r"tile\(n=32\): n is a reduction dimension"):
        sums.tile(m=8, n=32).to(Block).done()(sums(m=16, n=64)).cuda("sm_80")
