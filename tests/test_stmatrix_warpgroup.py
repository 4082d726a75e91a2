"""Accumulators of wgmma stored by stmatrix: its four forms, their requirements, and the fence after them."""

import re

import pytest
from ringed import dropped, errors, inputs_of, outcome, with_changed

from fireiron import *
from fireiron.check import check
from fireiron.executable.stmatrix_warpgroup import STMATRIX_WARPGROUP, StMatrixWarpgroup
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.ir import Fence, FenceKind, execs
from fireiron.strategies import hopper, hopper_skinny
from fireiron.values.machine import as_architecture

TALL = {"bm": 128, "bn": 64, "wm": 64, "wn": 64, "stages": 2}
FLAT = {"bm": 32, "bn": 128, "wm": 32, "wn": 64, "epi_m": 32, "stages": 2}
FORMS = (
    (TALL, RowMajor, "STMATRIX_WARPGROUP", False),
    (TALL, ColMajor, "STMATRIX_WARPGROUP_COL", True),
    (FLAT, RowMajor, "STMATRIX_WARPGROUP_T", True),
    (FLAT, ColMajor, "STMATRIX_WARPGROUP_T_COL", False),
)


def program(tile, sizes=(136, 136, 72), **options):
    return hopper.strategy.with_(**tile)(hopper.spec(*sizes, **options)).program("sm_90a")


def stores(kernel):
    return {one.instruction for one, _ in execs(kernel.body) if isinstance(one.instruction, StMatrixWarpgroup)}


@pytest.mark.parametrize(("tile", "order", "name", "transposed"), FORMS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("kind", [float16, bfloat16], ids=str)
def test_forms(tile, order, name, transposed, kind):
    """The storage orders of the tile in registers and in memory decide; results are right at sizes that the tile does not divide."""
    stored = program(tile, C=order, c_dtype=kind)
    assert [one.name for one in stores(stored.ir)] == [name]
    assert (".x4.trans.shared" in stored.cuda) == transposed
    assert not re.search(r"__float2(half|bfloat16)_rn\(c_rf", stored.cuda), "pairs are rounded together"
    assert errors(stored.ir) == []
    spec = stored.ir.spec
    assert outcome(stored.ir, *inputs_of(spec), 1) == "right"


@pytest.mark.parametrize(("tile", "order"), [one[:2] for one in FORMS], ids=str)
@pytest.mark.parametrize(("rows", "chunk"), [(32, 32), (32, 16), (16, 32), (64, 64)])
def test_no_bank_conflicts(tile, order, rows, chunk):
    """With spans of 128, 64 and 32 bytes."""
    narrow = {"epi_m": min(rows, tile["wm"]), "epi_n": chunk} if tile is FLAT else {"epi_m": 64, "epi_n": chunk}
    if tile is FLAT:
        narrow["epi_n"] = 64
    stored = program({**tile, **narrow}, C=order)
    assert stores(stored.ir)
    (finding,) = [one for one in check(stored.ir) if "store_c_sh written by STMATRIX" in str(one)]
    assert "no bank conflict" in str(finding)


def test_where_threads_store():
    """32-bit results, and rows that are not multiples of 16 bytes, are stored by each thread."""
    assert not stores(program(TALL, c_dtype=float32).ir)
    eight = hopper_skinny.strategy.with_(bm=8, epi_m=8)(hopper_skinny.spec(8, 64, 256)).program("sm_90a")
    assert not stores(eight.ir) and errors(eight.ir) == []
    assert outcome(eight.ir, *inputs_of(eight.ir.spec), 1) == "right"


def test_mismatches_are_reported():
    spec = Move(64, 16, dst_dtype=float16, dst=RowMajor)(RF, SH)(Warpgroup)

    def fields(other, target="sm_90a"):
        return [one.field for one in STMATRIX_WARPGROUP.mismatches(other, as_architecture(target))]

    assert fields(spec) == []
    assert fields(spec, "sm_80") == ["target"]
    assert fields(spec.at_level(Warp)) == ["level"]
    assert fields(Move(64, 16, dst=RowMajor)(RF, SH)(Warpgroup)) == ["dst type"]
    assert fields(Move(64, 24, dst_dtype=float16, dst=RowMajor)(RF, SH)(Warpgroup)) == ["shape"]
    assert fields(Move(64, 16, dst_dtype=float16, dst=ColMajor)(RF, SH)(Warpgroup)) == ["dst storage"]


def test_rows_of_other_warpgroups_are_refused():
    """A warpgroup stores only what it owns."""
    store = Move.tile(128, 64).to(Warpgroup).tile(64, 64).unroll().load(SRC, SH, Move.done()).cast_on_copy().done()
    chain = MatMul.tile(128, 128).to(Block).epilog(RF, float32, Init.done(), store).split(64).pipeline(2).warp_specialize()
    chain = chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 128).to(Warpgroup).done()
    with pytest.raises(DecompositionError, match="STMATRIX_WARPGROUP"):
        _ = chain(hopper.spec(128, 128, 128)).program("sm_90a").ir


@pytest.mark.parametrize("tile", [TALL, FLAT], ids=["tall", "flat"])
def test_the_fence_is_needed(tile):
    """TMA reads what stmatrix wrote: both detectors report a missing proxy fence."""
    kernel = program(tile).ir
    broken = with_changed(kernel, lambda one: isinstance(one, Fence) and one.kind is FenceKind.ASYNC_PROXY, 0, dropped)
    assert errors(broken) != [] and outcome(broken, *inputs_of(kernel.spec), 1) != "right"


@pytest.mark.sampled(9)
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("order", [RowMajor, ColMajor], ids=str)
@pytest.mark.parametrize("mma_in_flight", [0, 1])
@pytest.mark.parametrize(("bm", "bk", "stages"), [(16, 64, 8), (16, 128, 8), (16, 256, 4), (64, 128, 6), (8, 128, 8), (32, 256, 4)])
def test_mma_is_not_serialized(bm, bk, stages, mma_in_flight, order):
    """The compiler moves conversions of single accumulators before the wait, and then serializes all MMAs (C7514); not conversions of
    pairs.
    """
    skinny = hopper_skinny.strategy.with_(bm=bm, epi_m=bm, bk=bk, stages=stages, mma_in_flight=mma_in_flight)
    for K in (bk, 4 * bk, 4096):
        program_of_tile = skinny(hopper_skinny.spec(16, 128, K, B=order)).program("sm_90a")
        (resources,) = compile_cuda(program_of_tile.cuda, "sm_90a").resources.values()
        assert resources.spill_stores == resources.stack_frame == 0
