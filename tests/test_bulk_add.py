"""Additions of contiguous tiles in bulk, in the storage order of accumulators (oracle: float64)."""

import random

import making
import numpy as np
import pytest
from near import Near
from printed_text import COMPILER, HostProgram, Printed
from test_tma import SM_90A, differences, view
from test_tma_add import PARTS, arrays, needs_nvrtc, right, without

from fireiron import *
from fireiron import ARCHITECTURES, ir
from fireiron.check import safety
from fireiron.errors import LaunchError, MatchError, SimulationError
from fireiron.executable.bulk import BULK_ADD
from fireiron.gpu.toolchain import compile_cuda
from fireiron.graphene import graphene_text, parse_kernel
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.language.store import dumps, loads
from fireiron.sim import simulate

SIZES = {"m": 128, "n": 136, "d": 64}
FRAGMENTS = Layout(((8, 2, 4, 2), (2, 4, 8)), ((16, 2, 128, 4096), (1, 4, 512)))
"""The order of the registers of wgmma, for 128 x 64 elements: tiles of 64 x 64, then parts of 64 x 8, then four elements per thread."""

TILES = Layout(((64, 2), 64), ((1, 4096), 64))
"""Tiles of 64 x 64 elements, each with contiguous columns."""

copy = Move.coalesced_copy(8).done()


def by_bulk(columns=64, order=FRAGMENTS, threads=False):
    """Parts by wgmma; each warpgroup adds its tile in bulk, or its threads add vectors."""
    tiles = PARTS.tile(m=64, n=64, d=64).to(Block).load("S", SH, Move.done()).load("K", SH, copy).swizzle_storage()
    tiles = tiles.step("product", MatMul.tile(64, 64).to(Warpgroup).split(16).unroll().done())
    added = AtomicAdd.tile(64, 64).to(Warpgroup).tile(64, columns).unroll().load(SRC, SH, Move.done()).done()
    return (tiles if threads else tiles.step("add", added)).done()(PARTS(**SIZES, dQ=order))


def by_warps():
    """Parts by mma.sync; each warp adds a tile of 32 x 32 elements with contiguous rows."""
    mma, fragments = MatMul.tile(16, 16).unroll().mma_tile().done(), Move.done()
    product = MatMul.tile(32, 32).to(Warp).split(16).unroll().load(A, RF, fragments).load(B, RF, fragments).then(mma)
    tiles = PARTS.tile(m=64, n=64, d=64).to(Block).load("S", SH, copy).load("K", SH, copy).step("product", product)
    added = AtomicAdd.tile(32, 32).to(Warp).load(SRC, SH, Move.done()).done()
    return tiles.step("add", added).done()(PARTS(**SIZES, dQ=Layout(((32, 4), (32, 2)), ((32, 2048), (1, 1024)))))


FORMS = {"fragments": by_bulk, "in two pieces": lambda: by_bulk(32), "columns": lambda: by_bulk(order=TILES), "warps": by_warps}


@pytest.mark.parametrize("form", FORMS)
def test_each_block_adds_its_part(form):
    bound = FORMS[form]()
    program, given = bound.program("sm_90a"), arrays(SIZES)
    assert "bulk_add(" in program.cuda and "dQ_map" not in program.cuda
    assert making.effect_of(program.ir, "zeroed") == ("dQ",)
    assert not [finding for finding in safety(program.ir) if finding.severity == "error"]
    near = Near(bound.spec, given, right(given))
    for order in (None, random.Random(1)):
        near.require(simulate(program.ir, given, order=order).outputs)


def test_threads_store_vectors_of_four():
    assert "float4" in by_bulk().cuda("sm_90a") and "float4" not in by_bulk(order=TILES).cuda("sm_90a")


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_printed_text_runs(tmp_path):
    bound, given = by_bulk(), arrays(SIZES)
    host = HostProgram([Printed.of(bound.program("sm_90a"))], tmp_path)
    Near(bound.spec, given, right(given)).require(host.run(0, given, seed=1))


def test_text_and_notation():
    bound = by_bulk()
    program = bound.program("sm_90a")
    assert "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32" in program.cuda
    assert parse_kernel(graphene_text(program)).text == program.text
    assert loads(dumps(bound)).program("sm_90a").cuda == program.cuda


@needs_nvrtc
def test_compiles():
    assert "cp.reduce.async.bulk.global" in compile_cuda(by_bulk().cuda("sm_90a"), "sm_90a").ptx


def test_an_array_has_a_dimension_for_each_stride():
    """The array of dQ has the rows 64 i + 16 j + 8 k + l as dimensions i, j, k, l; it may be reshaped to rows and columns."""
    kernel, given = by_bulk().compile("sm_90a"), arrays(SIZES)
    dq, top = kernel(*given.values())
    assert dq.shape == (2, 4, 2, 8, 8, 4, 2) and [step // 4 for step in dq.strides] == [4096, 128, 2, 16, 512, 4, 1]
    Near(kernel.program.spec, given, right(given)).require({"dQ": dq.reshape(128, 64), "top": top})
    kernel(*given.values(), out=(np.zeros_like(dq, order="K"), top))
    with pytest.raises(LaunchError, match="strides"):
        kernel(*given.values(), out=(np.zeros(dq.shape, np.float32), top))


# ---------------------------------------------------------------------------------------------- injected faults


def test_a_missing_addition_is_found():
    planted, given = without(by_bulk().program("sm_90a").ir, ir.Exec, lambda stmt: stmt.atomic), arrays(SIZES)
    planted = without(planted, (ir.Commit, ir.Wait), lambda stmt: stmt.mechanism == TMA_STORES)
    assert Near(by_bulk().spec, given, right(given)).wrong(simulate(planted, given).outputs)


def test_a_missing_fence_is_found():
    planted = without(by_bulk().program("sm_90a").ir, ir.Fence, lambda stmt: stmt.kind == ir.FenceKind.ASYNC_PROXY)
    with pytest.raises(SimulationError):
        simulate(planted, arrays(SIZES))


def test_another_order_in_shared_memory_is_refused():
    """The instruction copies bytes, so a buffer in another order would permute the tile."""
    spec = added(src={"layout": RowMajor})
    assert differences(BULK_ADD, spec, SM_90A) == [("src storage", f"that of dst, {ORDER}", "(64,64):(64,1), no swizzle")]


# ---------------------------------------------------------------------------------------------- refusals

ORDER = Layout(((8, 2, 4), (2, 4, 8)), ((16, 2, 128), (1, 4, 512)))


def added(level=Warpgroup, src=None, dst=None, **fields):
    fields = {"dtype": float32, "shape": (64, 64), "layout": ORDER, **fields}
    return AtomicAdd.on(level, view("src", SH, **{**fields, **(src or {})}), view("dst", GL, **{**fields, **(dst or {})}))


@pytest.mark.parametrize("target", ARCHITECTURES, ids=str)
def test_from_hopper_on(target):
    assert differences(BULK_ADD, added(), target) == [] or target.capability < 90


@pytest.mark.parametrize(("spec", "field"), [
    (Move.on(Warpgroup, view("src", SH), view("dst", GL)), "spec"),
    (added(Block), "level"),
    (added(dtype=float64), "dst type"),
    (added(src={"dtype": float32}, dst={"dtype": int32}), "dst type"),
    (added(dst={"layout": Layout((64, 64), (128, 1))}), "dst tile"),
    (added(dst={"layout": Layout(((48, 2), 64), ((1, 4096), 64))}), "dst tile"),
    (added(dst={"align": 4}), "dst address"),
])  # fmt: skip
def test_mismatches(spec, field):
    assert field in [name for name, *_ in differences(BULK_ADD, spec, SM_90A)]


def test_tiles_that_may_end_out_of_bounds_are_refused():
    """The last tile of 96 rows has 32: the instruction would add past the end."""
    tiles = PARTS.tile(m=64, n=64, d=64).to(Block).load("S", SH, Move.done()).load("K", SH, copy).swizzle_storage()
    tiles = tiles.step("product", MatMul.tile(64, 64).to(Warpgroup).split(16).unroll().done())
    added = AtomicAdd.tile(64, 64).to(Warpgroup).load(SRC, SH, Move.done()).done(BULK_ADD)
    with pytest.raises(MatchError, match="a tile that is never partly out of bounds"):
        tiles.step("add", added).done()(PARTS(m=96, n=136, d=64, dQ=Layout(((32, 3), 64), ((1, 2048), 32)))).cuda("sm_90a")
