"""Batched GEMM on Hopper: TMA with arrays of more than two dimensions, and the library's strategy, in the simulator."""

import itertools
import re

import attrs
import numpy as np
import pytest
from hopper_cases import TILES
from printed_text import COMPILER, HostProgram, Printed
from ringed import ROWS_OF_128_BYTES, errors, inputs_of, is_load, outcome, product, ring_faults, with_changed
from test_tma import differences

from fireiron import *
from fireiron import ir
from fireiron.batched_matmul import is_batched
from fireiron.check import safety
from fireiron.gpu.maps import MapForm
from fireiron.gpu.toolchain import compile_cuda, toolchains
from fireiron.language.library import defaults
from fireiron.measure.norms import tolerance_of
from fireiron.measure.products import product as made_on_the_gpu
from fireiron.measure.products import product_bounds
from fireiron.measure.rounding import error_bounds
from fireiron.strategies import hmma_ampere, hopper, hopper_batched
from fireiron.values.expr import as_expr, constant
from fireiron.values.tensor import whole_view

SMALL = {"bm": 64, "bn": 64, "wm": 64, "wn": 64, "stages": 2}
THREE_BLOCKS = MatMul.tile(b=1).to(Block).then(product((64, 64, 64), stages=2, blocks=3, group_m=2))
"""Persistent blocks in raster groups, with tiles of several matrices."""

LETTERS = ("bmk,bkn->bmn", "bmk,kn->bmn", "mk,bkn->bmn", "bkm,bnk->bmn", "mbk,bkn->bmn", "bmk,bnk->nbm")
"""Batched operands, one matrix for all, transposed matrices, and interleaved matrices."""


def float16_gemm(signature="bmk,bkn->bmn", m=72, n=136, k=72, b=3, **options):
    """A GEMM of batched row-major float16 matrices, unless specified otherwise."""
    sizes = {"m": m, "n": n, "k": k, "b": b}
    options = {"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **options}
    result = signature.split("->")[1]
    return MatMul(*(sizes[dim] for dim in result), k, signature=signature, **options)(GL, GL, GL)(Kernel)


def require_right(strategy, spec, sizes=None, seed=1, target="sm_90a"):
    program = strategy(spec).program(target)
    assert errors(program.ir) == []
    arrays, expected = inputs_of(spec, sizes)
    assert outcome(program.ir, arrays, expected, seed, sizes) == "right", spec
    return program


def by_tma(program):
    """The operands copied by TMA."""
    return {one.buffer for one in program.ir.maps}


# ---------------------------------------------------------------------------------------------- TMA


def part_of(rank, layout=RowMajor, dtype=float16, extent=64):
    """A tile of 64 x 64 of an array whose leading dimensions have five elements each."""
    view = whole_view(Tensor("src", (*[5] * (rank - 2), extent, extent), dtype, GL, layout))
    for _ in range(rank - 2):
        view = view.at(0, as_expr(3), True)
    return view


@pytest.mark.parametrize("rank", range(2, 8))
def test_ranks(rank):
    """A tile of an array of two to five dimensions."""
    inside = whole_view(Tensor("dst", (64, 64), float16, SH, RowMajor, swizzle=ROWS_OF_128_BYTES))
    mismatches = differences(TMA_LOAD, Move.on(Block, part_of(rank), inside))
    assert mismatches == ([] if rank <= 5 else [("src array", "2 to 5 dimensions", f"{rank}")])
    back = attrs.evolve(inside, tensor=attrs.evolve(inside.tensor, name="src"))
    stored = attrs.evolve(part_of(rank), tensor=attrs.evolve(part_of(rank).tensor, name="dst"))
    mismatches = differences(TMA_STORE, Move.on(Warpgroup, back, stored))
    assert mismatches == ([] if rank <= 5 else [("dst array", "2 to 5 dimensions", f"{rank}")])


@pytest.mark.parametrize("apart", [0, 4096, 4100])
def test_distances_between_matrices(apart):
    """Multiples of 16 bytes, not 0; otherwise all threads copy, and the text states the reason, unless the batch is copied first."""
    spec = float16_gemm(m=64, n=64, k=64, A=Strides(b=apart, m=64, k=1))
    strategy = hopper_batched.strategy.with_(**SMALL)
    assert [one.name for one in strategy(spec).program().preceding] == (["A"] if apart == 4100 else [])
    program = Strategy(strategy.steps[2:], spec, strategy.start).program()
    arrays, _ = inputs_of(spec)
    arrays["A"] = np.broadcast_to(arrays["A"][:1], arrays["A"].shape) if apart == 0 else arrays["A"]
    assert errors(program.ir) == [] and outcome(program.ir, arrays, spec.reference(*arrays.values()), 1) == "right"
    if apart == 4096:
        assert by_tma(program) == {"A", "B", "C"}
    else:
        assert "A" not in by_tma(program)
        assert f"TMA_LOAD requires src strides multiples of 16 bytes, got {apart} elements of 2 bytes" in program.cuda


def test_maps_and_coordinates():
    """A map has the array's dimensions, the contiguous one first; a box has one element along the batch."""
    program = hopper_batched.strategy(hopper_batched.spec(256, 512, 128, batch=5)).program()
    maps = {one.buffer: one for one in program.ir.maps}
    assert {name: (one.order, one.box, one.span) for name, one in maps.items()} == {
        "A": ((2, 1, 0), (64, 128, 1), 128),
        "B": ((2, 1, 0), (64, 64, 1), 128),
        "C": ((2, 1, 0), (64, 64, 1), 128),
    }
    form = MapForm.of(maps["A"], "A", program.ir.buffer("A"), {})
    assert (form.extents, form.strides) == ((128, 256, 5), (256, 65536))
    assert "cp.async.bulk.tensor.3d.shared::cluster" in program.cuda and "tensor.2d" not in program.cuda
    assert re.search(r"tma_load_3d\(a_sh_address[^;]*, &A_map, k \* 64, block_m \* 128, block_b, k_ring_full", program.cuda)
    one_matrix = hopper_batched.strategy(hopper_batched.spec(256, 512, 128, batch=5, signature="bmk,kn->bmn")).program().cuda
    assert "tensor.3d.shared::cluster" in one_matrix and "tensor.2d.shared::cluster" in one_matrix


def test_two_batch_dimensions():
    """Two batch dimensions: arrays of four dimensions."""
    spec = MatMul(2, 3, 72, 64, 40, signature="abmk,abkn->abmn", dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    inner = product((64, 64, 64), stages=2, blocks=3, group_m=2)
    for chain in (MatMul.tile(a=1, b=1).to(Block), MatMul.tile(a=1).to(Block).tile(b=1).to(Block)):
        program = require_right(chain.then(inner), spec)
        assert by_tma(program) == {"A", "B", "C"} and "tensor.4d" in program.cuda


# ---------------------------------------------------------------------------------------------- the strategy


@pytest.mark.parametrize("orders", list(itertools.product((RowMajor, ColMajor), repeat=3)), ids=str)
@pytest.mark.parametrize("signature", ["bmk,bkn->bmn", "bmk,kn->bmn"])
def test_storage_orders(signature, orders):
    spec = hopper_batched.spec(72, 136, 72, 3, signature=signature, **dict(zip("ABC", orders)))
    assert by_tma(require_right(hopper_batched.strategy.with_(**SMALL), spec)) == {"A", "B", "C"}


@pytest.mark.parametrize("signature", LETTERS)
def test_persistent_blocks(signature):
    """Three blocks for the tiles of all matrices, in any order of warps and TMA."""
    for seed in (1, 2):
        program = require_right(THREE_BLOCKS, float16_gemm(signature), seed=seed)
        assert constant(program.ir.grid) == 3 and by_tma(program) == {"A", "B", "C"}


@pytest.mark.parametrize("kind", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("result", [float16, bfloat16, float32], ids=str)
def test_types(kind, result):
    require_right(hopper_batched.strategy.with_(**SMALL), hopper_batched.spec(72, 64, 40, 2, dtype=kind, c_dtype=result))


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (8, 8, 8, 2), (3, 5, 7, 3), (65, 63, 33, 2), (72, 129, 40, 2), (200, 64, 57, 1)], ids=str)
def test_any_size(sizes):
    """If TMA supports none or only some of the arrays, all threads copy: the same strategy."""
    require_right(hopper_batched.strategy.with_(**SMALL), hopper_batched.spec(*sizes))


@pytest.mark.parametrize("tile", [TILES[1], TILES[3], TILES[5], TILES[7]], ids=str)
def test_tiles(tile):
    bm, bn, bk = (dict(tile)[name] for name in ("bm", "bn", "bk"))
    require_right(hopper_batched.strategy.with_(**dict(tile)), hopper_batched.spec(bm + 8, bn + 24, 2 * bk + 8, 2))


def symbols():
    return tuple(sym(name, multiple_of=8, high=65536) for name in "MNK"), sym("batch", high=4096)


def test_sizes_known_at_run_time():
    """One kernel for all sizes and batches; blocks store distinct tiles, and no tile is past the end of the batch."""
    sizes, batch = symbols()
    program = require_right(THREE_BLOCKS, hopper_batched.spec(*sizes, batch), {"M": 72, "N": 136, "K": 40, "batch": 2})
    assert by_tma(program) == {"A", "B", "C"}


def test_raster_groups_of_batches_with_run_time_sizes():
    """Also with mma.sync, one block per tile."""
    sizes, batch = symbols()
    strategy = MatMul.tile(b=1).to(Block).then(hmma_ampere.strategy)
    for count in (4, batch):
        assert errors(strategy(hopper_batched.spec(*sizes, count)).program("sm_80").ir) == []


# ---------------------------------------------------------------------------------------------- what the checks detect


def changed(kernel, name, change):
    """The kernel with another value of a name, wherever it is defined."""

    def edit(stmt):
        return (attrs.evolve(stmt, value=change(stmt.value)),) if isinstance(stmt, ir.Let) and stmt.var.name == name else (stmt,)

    body = ir.rewritten(kernel.body, edit)
    assert body != kernel.body
    return attrs.evolve(kernel, body=body)


@pytest.mark.nightly
@pytest.mark.parametrize("meaning", [lambda matrix: as_expr(0), lambda matrix: matrix // 2], ids=["the first", "every second"])
@pytest.mark.parametrize("run_time", [False, True])
@pytest.mark.parametrize(
    "strategy", [hopper_batched.strategy.with_(num_blocks=65536), THREE_BLOCKS], ids=["a tile each", "blocks that stay"]
)
def test_blocks_at_the_same_matrix(strategy, run_time, meaning):
    """Two blocks that store the same tile are reported for any sizes."""
    sizes, batch = symbols() if run_time else ((520, 520, 72), 4)
    kernel = strategy(hopper_batched.spec(*sizes, batch)).program().lowered
    assert errors(kernel) == []
    assert any(one.kind == "race" for one in safety(changed(kernel, "block_b", meaning)))


@pytest.mark.parametrize("run_time", [False, True])
def test_a_batch_that_is_too_small(run_time):
    """Tiles of one matrix more than there is are reported, and not masked, since no tile edge is there."""
    sizes, batch = symbols() if run_time else ((520, 520, 72), 4)
    kernel = THREE_BLOCKS(hopper_batched.spec(*sizes, batch)).program().lowered
    buffers = tuple(
        attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, shape=(buffer.tensor.shape[0] - 1, *buffer.tensor.shape[1:])))
        if buffer.parameter
        else buffer
        for buffer in kernel.buffers
    )
    messages = errors(attrs.evolve(kernel, buffers=buffers))
    assert any("coordinate" in one and "dimension 0" in one for one in messages), messages


def test_producer_and_consumer_synchronization_across_matrices():
    """A ring that continues from matrix to matrix: both detectors report each removed wait, arrival, fence and commit."""
    spec = float16_gemm(m=72, n=72, k=72)
    kernel = THREE_BLOCKS(spec).program().lowered
    arrays, expected = inputs_of(spec)
    faults = [(name, faulty) for name, faulty in ring_faults(kernel) if name.startswith(("dropped", "a load", "fewer bytes"))]
    # The store of each chunk is waited for before the next one, so the final wait is redundant.
    faults = [(name, faulty) for name, faulty in faults if "all stores have read" not in name]
    assert len(faults) > 10
    for name, faulty in faults:
        assert errors(faulty), name
        assert any(outcome(faulty, arrays, expected, order) != "right" for order in (None, 1, 2, 3, 4, 5)), name


def test_a_load_of_another_matrix_is_wrong():
    """The batch coordinate matters: with that of the first matrix, values are wrong."""
    spec = float16_gemm()
    kernel = THREE_BLOCKS(spec).program().lowered
    arrays, expected = inputs_of(spec)

    def first(load):
        outside, inside = load.accesses
        return (attrs.evolve(load, accesses=(attrs.evolve(outside, base=(as_expr(0), *outside.base[1:])), inside)),)

    assert outcome(with_changed(kernel, is_load, 0, first), arrays, expected) == "wrong"


# ---------------------------------------------------------------------------------------------- text


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++ or clang++) on the path")
def test_printed_text(tmp_path):
    """The text executed on the CPU: matrices of each storage order, one for all, of a slice, and of four dimensions."""
    stacks = MatMul(2, 3, 72, 64, 40, signature="abmk,abkn->abmn", dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    padded = float16_gemm(A=Strides(b=8000, m=80, k=1), C=Strides(b=12000, m=1, n=80))
    cases = [(THREE_BLOCKS, spec) for spec in (*map(float16_gemm, LETTERS), padded)]
    cases.append((MatMul.tile(a=1).to(Block).then(THREE_BLOCKS), stacks))
    for part in (cases[:4], cases[4:]):  # descriptors address all of shared memory, and the arrays of all texts exist at once
        programs = [strategy(spec).program("sm_90a") for strategy, spec in part]
        assert all(by_tma(one) == {"A", "B", "C"} for one in programs)
        host = HostProgram([Printed.of(one) for one in programs], tmp_path)
        for (number, (_, spec)), seed in itertools.product(enumerate(part), (0, 1)):
            arrays, expected = inputs_of(spec)
            np.testing.assert_array_equal(host.run(number, arrays, seed=seed)["C"], expected, err_msg=str(spec))


def in_clusters(cluster, **options):
    """A batched GEMM with clusters: multicast loads of three dimensions, or of one matrix for all."""
    return MatMul.tile(b=1).to(Block).then(product(**{"tiles": (64, 64, 64), "cluster": cluster, "group_m": 2, **options}))


@pytest.mark.nightly
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
def test_the_printed_text_in_clusters(tmp_path):
    cases = [
        (in_clusters((2, 1)), hopper_batched.spec(200, 136, 72, 3)),
        (in_clusters((2, 1), blocks=4), hopper_batched.spec(200, 136, 72, 3, signature="bmk,kn->bmn")),
        (in_clusters((1, 2), blocks=4), hopper_batched.spec(72, 136, 136, 2)),
    ]
    programs = [strategy(spec).program("sm_90a") for strategy, spec in cases]
    assert ["tma_load_multicast_3d(" in one.cuda for one in programs] == [True, False, True]
    assert "tma_load_multicast(" in programs[1].cuda
    host = HostProgram([Printed.of(one) for one in programs], tmp_path)
    for (number, (_, spec)), seed in itertools.product(enumerate(cases), (0, 1)):
        arrays, expected = inputs_of(spec)
        np.testing.assert_array_equal(host.run(number, arrays, seed=seed)["C"], expected, err_msg=str(spec))


@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
def test_clusters_compile():
    strategy = in_clusters((2, 1), tiles=(128, 256, 64), warpgroup=(64, 256), stages=4, blocks=132)
    program = strategy(hopper_batched.spec(1000, 1016, 520, 5)).program("sm_90a")
    compiled = compile_cuda(program.cuda, "sm_90a")
    assert "tma_load_multicast_3d(" in program.cuda and compiled.resources[program.name].spill_stores == 0 and "C75" not in compiled.log


@pytest.mark.sampled(3)
@pytest.mark.skipif(not toolchains(), reason="no NVRTC installed (pip install 'fireiron[check]')")
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_compiles(tile):
    """Without spills or warnings of serialized MMAs, at a size for which such a tile is chosen."""
    size, batch = (1000, 5) if dict(tile)["bm"] > 32 else (256, 2)
    program = hopper_batched.strategy.with_(**dict(tile))(hopper_batched.spec(size, size + 16, 520, batch)).program()
    compiled = compile_cuda(program.cuda, "sm_90a")
    report = compiled.resources[program.name]
    assert report.spill_stores == report.spill_loads == report.stack_frame == 0 and "C75" not in compiled.log


def test_rank_of_another_name_is_refused():
    with pytest.raises(DecompositionError, match="is not a dimension, or is given twice"):
        _ = hopper_batched.strategy(hopper.spec(64, 64, 64)).program().ir


# ---------------------------------------------------------------------------------------------- defaults of the library


def test_defaults():
    """The tile is chosen by waves over the whole batch; elsewhere a strategy for single matrices, preceded by a tile of one matrix."""
    assert is_batched(float16_gemm()) and not is_batched(hopper.spec(64, 64, 64))

    def tile(*sizes):
        name, values = defaults(hopper_batched.spec(*sizes), "sm_90a")[0]
        assert name == "hopper_batched"
        return values["bm"], values["bn"]

    assert tile(1024, 1024, 1024, 16) == (128, 256)
    assert tile(128, 128, 128, 1) == (16, 64)
    sizes, batch = symbols()
    assert defaults(hopper_batched.spec(*sizes, batch), "sm_90a")[0] == ("hopper_batched", {})
    assert defaults(hopper_batched.spec(1024, 1024, 1024, 16), "sm_90")[0][0] == "hmma_ampere"
    assert defaults(hopper_batched.spec(1024, 1020, 1024, 16), "sm_90a")[0][0] == "hopper_batched", "copied first"
    assert defaults(float16_gemm(b=20, A=Strides(b=72 * 72 + 4, m=72, k=1)), "sm_90a")[0][0] == "hopper_batched"
    assert defaults(float16_gemm(m=40, A=Strides(b=72 * 72 + 4, m=72, k=1)), "sm_90a")[0][0] == "split_k", "not worth a copy"
    assert defaults(MatMul(2, 8, 8, 8, signature="xyz,xzw->xyw")(GL, GL, GL)(Kernel)) == (), "other letters"


@pytest.mark.parametrize("signature", LETTERS)
def test_references_of_measurements(signature):
    """In float64, matrix by matrix."""
    spec = float16_gemm(signature, m=5, n=6, k=7)
    arrays, expected = inputs_of(spec)
    reference = made_on_the_gpu(np, spec, arrays["A"], arrays["B"])
    np.testing.assert_array_equal(reference, expected)
    (bounds,) = error_bounds(spec, arrays, {}).values()
    np.testing.assert_allclose(product_bounds(np, spec, [arrays["A"], arrays["B"]], reference, None), bounds, rtol=1e-9)
    assert 0 < tolerance_of(spec) < tolerance_of(hopper.spec(5, 6, 7)), "fewer elements may differ more"


def test_exported(tmp_path):
    """The launcher encodes three-dimensional maps, and reports the required distances between matrices."""
    spec = hopper_batched.spec(256, 512, 128, 5, A=Strides(b=sym("apart", multiple_of=8), m=128, k=1))
    export(hopper_batched.strategy(spec), tmp_path, "gemm", arch="sm_90a", cubin=False)
    text = "".join(path.read_text() for path in sorted(tmp_path.iterdir()))
    assert "{128, 256, 5}" in text and "{64, 128, 1}" in text and "TENSOR_MAP_DATA_TYPE_FLOAT16, 3, " in text
    assert re.search(r"\{256, \(cuuint64_t\)\(.*apart", text)


def test_unbounded_sizes_are_named():
    """Offsets that may need more than 64 bits are refused before anything is printed, and the proposed bounds suffice."""

    def result_(**sizes):
        b, m, n, k = (sizes.get(name, sym(name, multiple_of=8)) for name in "SMNK")
        spec = MatMul(b, m, n, k, signature="bmk,bkn->bmn")(GL, GL, GL)(Kernel)
        return MatMul.tile(1, 16, 16).to(Block).tile(1, 2, 2).to(Thread).split(8).tile(1, 1, 1).split(1).done()(spec).program("sm_80")

    sizes = {}
    for _ in range(3):
        with pytest.raises(DecompositionError, match="may need more than 64 bits: bound ") as error:
            _ = result_(**sizes).ir
        proposed = str(error.value).split("bound ")[1].split(", or less")[0]
        sizes |= {one.name: one for one in eval(f"[{proposed}]")}
        if set(sizes) == set("SMNK"):
            break
    assert "long long" in result_(**sizes).cuda
