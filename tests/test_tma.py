"""TMA: specs that it matches and refuses, which instruction determines the storage, maps and boxes, and copies by threads otherwise."""

import re

import attrs
import pytest
from ringed import (
    ORDERS,
    ROWS_OF_128_BYTES,
    TARGET,
    all_of_kind,
    by_warps,
    errors,
    float16_gemm,
    inputs_of,
    is_load,
    outcome,
    product,
    require_right,
)

from fireiron import *
from fireiron import ARCHITECTURES, ir
from fireiron.ir.smem_layouts import chunk_layout, smem_layout_of, swizzle_of
from fireiron.lower.walk import grow_tree
from fireiron.values.expr import constant
from fireiron.values.tensor import whole_view

np = pytest.importorskip("numpy")
SM_90A = next(one for one in ARCHITECTURES if one.name == "sm_90a")
CHUNKED = {"layout": RowMajor, "swizzle": ROWS_OF_128_BYTES}


def view(name, memory, shape=(64, 64), dtype=float16, layout=RowMajor, **fields):
    return whole_view(Tensor(name, shape, dtype, memory, layout, **fields))


def load(level=Block, src=None, dst=None, **fields):
    """A load that TMA accepts or refuses: `src` and `dst` state how it differs from a row-major tile of 64 x 64 float16 values."""
    return Move.on(level, view("src", GL, **{**fields, **(src or {})}), view("dst", SH, **{**CHUNKED, **fields, **(dst or {})}))


def store(level=Warpgroup, src=None, dst=None, **fields):
    return Move.on(level, view("src", SH, **{**CHUNKED, **fields, **(src or {})}), view("dst", GL, **{**fields, **(dst or {})}))


def differences(instruction, spec, target=SM_90A):
    """`(field, wanted, got)` for each mismatch of an instruction and a spec."""
    context = attrs.evolve(grow_tree(spec, (), SM_90A, INSTRUCTIONS).context, architecture=target)
    return [(one.field, one.wanted, one.got) for one in instruction.fits(spec, context)]


# ---------------------------------------------------------------------------------------------- accepted specs


@pytest.mark.parametrize("target", ARCHITECTURES, ids=str)
def test_from_hopper_on(target):
    mismatches = [differences(TMA_LOAD, load(), target), differences(TMA_STORE, store(), target)]
    wrong = [[("target", "sm_90 or newer", target.name)]] * 2
    assert [[one[0] for one in each] for each in mismatches] == ([[], []] if target.capability >= 90 else [["target"], ["target"]])
    assert target.capability >= 90 or [each[0][2] for each in mismatches] == [each[0][2] for each in wrong]


@pytest.mark.parametrize("dtype", [float16, bfloat16, float32, int8, int32], ids=str)
def test_any_element_type(dtype):
    columns = 128 // dtype.bytes
    same = {"shape": (64, columns), "dtype": dtype, "layout": RowMajor, "swizzle": swizzle_of(128, dtype.bytes)}
    plain = {"shape": (64, columns), "dtype": dtype}
    assert differences(TMA_LOAD, load(src=plain, dst=same)) == []
    assert differences(TMA_STORE, store(src=same, dst=plain)) == []


LOADS = {
    "another spec": (Init(64, 64)(SH)(Block), ("spec", "Move", "Init")),
    "level": (load(Warp), ("level", "Block", "Warp")),
    "memories": (Move.on(Block, view("src", SH), view("dst", GL)), ("memories", "GL -> SH", "SH -> GL")),
    "dimensions": (Move.on(Block, view("src", GL, (64,)), view("dst", SH, (64,))), ("shape", "two dimensions", "64")),
    "types": (load(dst={"dtype": float32}), ("dst type", "float16", "float32")),
    "strides": (load(src={"layout": RowMajor(ld=68)}), ("src strides", "multiples of 16 bytes", "68 elements of 2 bytes")),
    "no neighbors": (load(src={"layout": Layout((64, 64), (128, 2))}), ("src layout", "contiguous along one dimension", "(64,64):(128,2)")),
    "storage": (
        load(dst={"swizzle": None}),
        (
            "dst storage", "swizzled chunks, which a reader or storage_layout must choose",
            "rows that are not chunks of 128, 64, 32 or 16 bytes ((64,64):(64,1), no swizzle)",
        ),
    ),
    "the other order": (load(src={"layout": ColMajor}), ("dst storage", "contiguous along the dimension of src", "the other order")),
}  # fmt: skip

STORES = {
    "another spec": (Init(64, 64)(SH)(Block), ("spec", "Move", "Init")),
    "level": (store(Block), ("level", "Warpgroup or Warp", "Block")),
    "memories": (Move.on(Warp, view("src", GL), view("dst", SH)), ("memories", "SH -> GL", "GL -> SH")),
    "dimensions": (Move.on(Warp, view("src", SH, (64,)), view("dst", GL, (64,))), ("shape", "two dimensions", "64")),
    "types": (store(dst={"dtype": float32}), ("dst type", "float16", "float32")),
    "strides": (store(dst={"layout": RowMajor(ld=68)}), ("dst strides", "multiples of 16 bytes", "68 elements of 2 bytes")),
    "no neighbors": (store(dst={"layout": Layout((64, 64), (128, 2))}), ("dst layout", "contiguous along one dimension", "(64,64):(128,2)")),
    "storage": (
        store(src={"swizzle": None}),
        (
            "src storage", "chunks contiguous along the dimension of dst",
            "rows that are not chunks of 128, 64, 32 or 16 bytes ((64,64):(64,1), no swizzle)",
        ),
    ),
    "the other order": (
        store(dst={"layout": ColMajor}), ("src storage", "chunks contiguous along the dimension of dst", "contiguous along the other dimension"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOADS)
def test_loads_that_do_not_match(name):
    spec, difference = LOADS[name]
    assert difference in differences(TMA_LOAD, spec)


@pytest.mark.parametrize("name", STORES)
def test_stores_that_do_not_match(name):
    spec, difference = STORES[name]
    assert difference in differences(TMA_STORE, spec)


@pytest.mark.parametrize("free", [True, False])
def test_tiles_of_buffers_of_three_dimensions_are_not_stored(free):
    tensors = (Tensor("src", (2, 64, 64), float16, SH, RowMajor, free=free), Tensor("dst", (2, 64, 64), float16, GL, RowMajor))
    matrices = (whole_view(one).at(0, Const(1), unit=False) for one in tensors)
    assert differences(TMA_STORE, Move.on(Warp, *matrices)) == [("src storage", "a buffer of two dimensions", "2x64x64")]


def test_an_addition_is_no_store():
    spec = AtomicAdd(64, 64, dtype=float32)(SH, GL)(Warp)
    assert TMA_STORE.mismatches(spec, SM_90A) != ()


def test_strided_tiles_are_reported():
    outside, inside = (whole_view(Tensor(name, (128, 128), float16, memory, RowMajor)) for name, memory in (("src", GL), ("dst", SH)))
    tile = Move.tile(Strided((8, 16), (8, 16))).to(Warp)(Move.on(Block, outside, inside)).result
    assert ("src tile", "contiguous rows and columns", "a strided tile") in differences(TMA_LOAD, tile)


def test_a_store_of_half_a_piece_is_reported():
    """Rows of four float16 values have eight bytes, and TMA copies pieces of 16."""
    pieces = Move.tile(64, 4).to(Warpgroup).load(SRC, SH, Move.done()).cast_on_copy().done()
    chain = MatMul.tile(64, 8).to(Block).epilog(RF, float32, Init.done(), pieces).split(64).pipeline(2).warp_specialize()
    strategy = chain.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(64, 8).to(Warpgroup).done()
    with pytest.raises(DecompositionError) as caught:
        _ = strategy(float16_gemm(64, 8, 64)).program(TARGET).ir
    assert "TMA_STORE: rows of 4 elements of float16 are not a multiple of 16 bytes" in str(caught.value)
    assert "another tile, or .coalesced_copy(8) for a store by all threads" in str(caught.value)


# ---------------------------------------------------------------------------------------------- storage


def stored(kernel, name):
    """The chunk layout of a buffer."""
    buffer = kernel.buffer(name)
    return smem_layout_of(buffer.storage, whole_view(buffer.tensor), buffer.dtype.bytes)


@pytest.mark.parametrize("orders", ORDERS)
def test_the_reader_settles_the_storage_of_a_load(orders):
    """wgmma determines the storage of its operands, contiguous as in their source; TMA loads them into it."""
    kernel = product((64, 64, 64), (64, 64))(float16_gemm(64, 64, 64, orders=orders)).program(TARGET).ir
    for name, order in zip(("a_sh", "b_sh"), ORDERS[orders], strict=True):
        chunks = stored(kernel, name)
        assert (chunks.along, chunks.span) == (1 if order == RowMajor else 0, 128)


@pytest.mark.parametrize(("columns", "span"), [(64, 128), (32, 64), (16, 32), (8, 16)])
def test_a_store_settles_its_own(columns, span):
    """The widest span that divides its rows."""
    kernel = require_right(product((64, columns, 64), (64, columns), chunk=columns), float16_gemm(64, 2 * columns, 64)).ir
    assert (stored(kernel, "store_c_sh").along, stored(kernel, "store_c_sh").span) == (1, span)
    assert {one.tensor_map.span for one in all_of_kind(kernel, ir.Exec) if one.instruction == TMA_STORE} == {span}


def test_a_storage_that_the_load_asks_for():
    """Consumers without requirements read the storage that the user specified; without one TMA is not selected."""
    spec = float16_gemm(64, 64, 128, c_dtype=float32)
    assert "tma_load(" in by_warps()(spec).program(TARGET).cuda
    chain = MatMul.tile(64, 64).to(Block).split(64).pipeline(2).warp_specialize().load(A, SH, Move.done()).load(B, SH, Move.done())
    program = chain.tile(8, 4).to(Thread).tile(1, 1).split(1).done()(float16_gemm(64, 64, 128)).program(TARGET)
    assert "tma_load(" not in program.cuda
    assert "copied by all threads: TMA_LOAD requires dst storage swizzled chunks, which" in program.cuda


# ---------------------------------------------------------------------------------------------- maps and boxes


def maps_of(kernel):
    return {one.name: one for one in kernel.maps}


@pytest.mark.parametrize("orders", ORDERS)
def test_maps_follow_the_order_of_an_array(orders):
    """The contiguous dimension comes first; a box is as wide as a row of a chunk, and as high as the tile."""
    kernel = product((64, 128, 64), (64, 64))(float16_gemm(64, 128, 64, orders=orders)).program(TARGET).ir
    maps_by_name, (a, b) = maps_of(kernel), ORDERS[orders]
    assert (maps_by_name["A_map"].order, maps_by_name["A_map"].box) == (((1, 0), (64, 64)) if a == RowMajor else ((0, 1), (64, 64)))
    assert (maps_by_name["B_map"].order, maps_by_name["B_map"].box) == (((1, 0), (64, 64)) if b == RowMajor else ((0, 1), (64, 128)))
    assert maps_by_name["C_map"].box == (64, 64) and {one.span for one in maps_by_name.values()} == {128}


def boxes_of(text, name):
    return [" ".join(one.split()) for one in re.findall(rf"{name}\(([^;]*)\);", text[text.index('extern "C"') :])]


def test_a_tile_of_several_chunks_is_several_boxes():
    """128 columns of float16 are two chunks, which are 64 x 128 elements apart in memory."""
    loads = boxes_of(product((64, 128, 64), (64, 128))(float16_gemm(128, 256, 64)).program(TARGET).cuda, "tma_load")
    of_b = [one for one in loads if "&B_map" in one]
    assert (
        len(of_b) == 2
        and "block_n * 128 + 64" in of_b[1]
        and "block_n * 128 + 64" not in of_b[0]
        and of_b[1].startswith("b_sh_address + b_sh_panel_bytes,")
    )


def test_boxes_have_at_most_256_rows():
    """384 rows are two boxes of 192 (CUDA Driver API, boxDim)."""
    strategy = MatMul.tile(384, 64).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(64).pipeline(1).warp_specialize()
    strategy = strategy.load(A, SH, Move.done()).load(B, SH, Move.done()).tile(128, 64).to(Warpgroup).done()
    program = require_right(strategy, float16_gemm(384, 64, 128), orders=(None,))
    assert maps_of(program.ir)["A_map"].box == (64, 192)
    of_a = [one for one in boxes_of(program.cuda, "tma_load") if "&A_map" in one]
    assert len(of_a) == 2 and "192" in of_a[1] and program.ir.rings[0].bytes == (384 + 64) * 64 * 2


@pytest.mark.parametrize(
    ("tiles", "warpgroup"), [((128, 64, 64), (64, 64)), ((64, 128, 128), (64, 128)), ((64, 96, 64), (64, 96)), ((16, 128, 64), (16, 64))]
)
@pytest.mark.parametrize("orders", ["NN", "TT"])
def test_boxes_are_the_whole_tile_once(tiles, warpgroup, orders):
    """As many bytes as the full barrier expects, which is the size of the buffers of a stage."""
    kernel = product(tiles, warpgroup, tma=False)(float16_gemm(*tiles, orders=orders)).program(TARGET).ir
    sizes = 0
    for load in filter(is_load, all_of_kind(kernel, ir.Exec)):
        rows, width = load.tensor_map.box[1], load.tensor_map.box[0]
        tile = sorted(constant(size) for size in load.accesses[1].shape)
        assert width * 2 == load.tensor_map.span and tile[0] * tile[1] % (rows * width) == 0
        sizes += tile[0] * tile[1] * 2
    (ring,) = kernel.rings
    assert ring.bytes == sizes == sum(constant(kernel.buffer(name).elements) * 2 for name in ring.buffers)


def test_coordinates_begin_with_the_contiguous_dimension():
    text = product((128, 64, 64), (64, 64))(float16_gemm(256, 128, 192)).program(TARGET).cuda
    (a, b) = boxes_of(text, "tma_load")
    assert re.search(r"&A_map, k \* 64, block_m \* 128,", a) and re.search(r"&B_map, block_n \* 64, k \* 64,", b)
    (c,) = boxes_of(text, "tma_store")
    assert re.match(r"&C_map, block_n \* 64, (block_m \* 128 \+ warpgroup \* 64|.*warpgroup.*),", c)


def test_maps_are_parameters_in_the_order_of_the_arrays():
    program = product()(float16_gemm(128, 64, 192)).program(TARGET)
    names = re.findall(r"const __grid_constant__ TensorMap (\w+)", program.cuda)
    assert names == ["A_map", "B_map", "C_map"] == [one.name for one in program.ir.maps]
    assert all(f"prefetch_tensor_map(&{name});" in program.cuda for name in names)


# ---------------------------------------------------------------------------------------------- copies by threads


@pytest.mark.parametrize(
    ("sizes", "options", "by_all"),
    [
        (
            (128, 64, 100),
            {},
            ["src strides multiples of 16 bytes, got 100 elements of 2 bytes", "TMA_LOAD performs either all loads of a producer or none"],
        ),
        (
            (136, 71, 40),
            {},
            [
                "TMA_LOAD performs either all loads of a producer or none",
                "src strides multiples of 16 bytes, got 71",
                "dst strides multiples of",
            ],
        ),
        (
            (136, 71, 33),
            {},
            ["src strides multiples of 16 bytes, got 33", "src strides multiples of 16 bytes, got 71", "dst strides multiples of"],
        ),
        ((128, 64, 128), {"A": RowMajor(ld=132)}, ["src strides multiples of 16 bytes, got 132", "TMA_LOAD performs either all loads"]),
    ],
    ids=["A", "B and C", "all", "a leading dimension"],
)
@pytest.mark.parametrize("blocks", [0, 2])
def test_all_threads_copy(sizes, options, by_all, blocks):
    """One strategy for all sizes: a producer executes all loads of a ring or none, and the text states the reason."""
    program = require_right(product(blocks=blocks), float16_gemm(*sizes, **options))
    comments = dict.fromkeys(re.findall(r"// copied by all threads: (.*)", program.cuda))
    assert len(comments) == len(by_all) and all(any(wanted in one for one in comments) for wanted in by_all), comments
    assert "tma_load(" not in program.cuda and "mbarrier" not in program.cuda and program.ir.rings == ()
    assert program.ir.threads == program.ir.workers


def test_a_store_by_all_threads_with_loads_by_a_producer():
    program = require_right(product(), float16_gemm(128, 72, 64, C=RowMajor(ld=76)))
    assert "tma_load(" in program.cuda and "tma_store(" not in program.cuda
    assert "copied by all threads: TMA_STORE requires dst strides multiples of 16 bytes, got 76 elements of 2 bytes" in program.cuda


def test_sizes_without_known_factors():
    """A run-time size is a multiple of 16 bytes only if it is declared so."""
    free, eights = (float16_gemm(sym("M"), sym("N", multiple_of=n), sym("K", multiple_of=n)) for n in (1, 8))
    assert "tma_load(" in product()(eights).program(TARGET).cuda
    program = product()(free).program(TARGET)
    assert "tma_load(" not in program.cuda and "src strides multiples of 16 bytes, got K elements of 2 bytes" in program.cuda
    sizes = {"M": 131, "N": 67, "K": 70}
    arrays, expected = inputs_of(free, sizes)
    assert errors(program.ir) == [] and outcome(program.ir, arrays, expected, 1, sizes) == "right"


def test_a_chunk_layout_by_hand():
    """A two-chunk storage layout written by the user is loaded unchanged."""
    chain = MatMul.tile(64, 64).to(Block).epilog(RF, float32, Init.done(), Move.done()).split(128).pipeline(2).warp_specialize()
    chain = chain.load(A, SH, Move.done()).storage_layout(chunk_layout((64, 128), 1, 128, 2)).swizzle_storage(ROWS_OF_128_BYTES)
    strategy = chain.load(B, SH, Move.done()).tile(64, 64).to(Warpgroup).done()
    program = require_right(strategy, float16_gemm(64, 64, 256))
    assert len([one for one in boxes_of(program.cuda, "tma_load") if "&A_map" in one]) == 2


def test_arrays_at_odd_addresses_are_copied_by_threads():
    """A tensor map requires addresses that are multiples of 16 bytes; an array of another alignment declares it."""
    spec = float16_gemm(64, 64, 64)
    loose = spec.with_operands(A=attrs.evolve(spec.A, tensor=attrs.evolve(spec.A.tensor, align=2)))
    text = product((64, 64, 64), (64, 64), 2)(loose).program(TARGET).cuda
    assert "tma_load(" not in text and "tma_store(" in text  # one loop waits for its copies with one mechanism
