"""The library's strategy for Hopper, in the simulator: its tiles, storage orders and element types, at awkward sizes (oracle: NumPy)."""

import itertools

import pytest
from hopper_cases import ORDERS, SIZES, SKINNY_TILES, SMALL_TILES, TILES, float16_gemm
from ringed import errors, inputs_of, outcome

from fireiron import *
from fireiron.language.library import BY_WARPGROUPS, defaults, find, work_of
from fireiron.strategies import hopper, hopper_skinny, hopper_small

M, N, K = (sym(name, multiple_of=8) for name in "MNK")
SMALL = {"bm": 64, "bn": 64, "wm": 64, "wn": 64, "stages": 2}


def require_right(strategy, spec, sizes=None, seed=1):
    program = strategy(spec).program()
    assert program.architecture.name == "sm_90a" and errors(program.ir) == []
    arrays, expected = inputs_of(spec, sizes)
    assert outcome(program.ir, arrays, expected, seed, sizes) == "right", spec
    return program


@pytest.mark.sampled(6)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles(tile):
    """Every default tile of the library, at a size that it does not divide."""
    bm, bn, bk = (dict(tile)[name] for name in ("bm", "bn", "bk"))
    require_right(hopper.strategy.with_(**dict(tile)), float16_gemm(bm + 8, bn + 24, 2 * bk + 8))


@pytest.mark.parametrize("mma_in_flight", [0, 1])
@pytest.mark.parametrize("tile", SMALL_TILES, ids=str)
def test_small_tiles(tile, mma_in_flight):
    bm, bn, bk = (dict(tile)[name] for name in ("bm", "bn", "bk"))
    require_right(hopper_small.strategy.with_(**dict(tile), mma_in_flight=mma_in_flight), float16_gemm(bm + 8, bn + 24, 2 * bk + 8))


@pytest.mark.parametrize("orders", ["NNN", "NTN", "NNT"])
@pytest.mark.parametrize("tile", [*SKINNY_TILES, (("bm", 8), ("epi_m", 8)), (("bm", 64), ("epi_m", 64), ("bn", 8), ("epi_n", 8))], ids=str)
def test_skinny_tiles(tile, orders):
    """As many rows or columns as the tile has, and one less; a ring that wraps around more than once."""
    tile = {**dict(tile), "bk": 64, "stages": 4}
    m, n = tile["bm"], tile.get("bn", 64)
    sizes = (m - 1, n + 8, 328) if m < 64 and orders == "NNN" else (m, n, 328)
    require_right(hopper_skinny.strategy.with_(**tile, mma_in_flight=0 if orders == "NTN" else 1), float16_gemm(*sizes, orders=orders))


@pytest.mark.parametrize("orders", ["NNN", "NTN"])
@pytest.mark.parametrize("parts", [2, 8])
def test_skinny_split_over_k(parts, orders):
    """Several blocks per tile, each with a ring over its chunks of k; also fewer chunks than blocks."""
    strategy = hopper_skinny.split_k.with_(num_splits=parts, stages=2, bk=64)
    require_right(strategy, float16_gemm(16, 72, 456, orders=orders, c_dtype=float32))


@pytest.mark.parametrize("orders", ORDERS)
def test_storage_orders(orders):
    program = require_right(hopper.strategy.with_(**SMALL), float16_gemm(72, 136, 72, orders=orders))
    assert program.cuda.count("tma_load(") > 2


@pytest.mark.parametrize("kind", [float16, bfloat16], ids=str)
@pytest.mark.parametrize("result", [float16, bfloat16, float32], ids=str)
def test_types(kind, result):
    require_right(hopper.strategy.with_(**SMALL), float16_gemm(72, 64, 40, dtype=kind, c_dtype=result))


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
def test_any_size(sizes):
    """If TMA supports none or only some of the arrays, all threads copy, unless the operands are copied first (see test_repack.py)."""
    strategy = hopper.strategy.with_(**SMALL)
    require_right(Strategy(strategy.steps[2:], start=strategy.start), float16_gemm(*sizes))


ORDERS_OF_BLOCKS = {"rasterize(group_n=2)": {"group_m": 2, "raster": 1}, "hilbert()": {"group_m": 1, "raster": 2}}


@pytest.mark.parametrize("order", ORDERS_OF_BLOCKS)
def test_orders_of_blocks(order):
    """With one block per tile, and with persistent blocks, whose producer computes the tile itself."""
    strategy = hopper.strategy.with_(**SMALL, **ORDERS_OF_BLOCKS[order])
    program = require_right(strategy.with_(num_blocks=65536), float16_gemm(200, 136, 72))
    assert f".{order}" in program.cuda and program.cuda.count("= hilbert(") == (order == "hilbert()")
    program = require_right(strategy.with_(num_blocks=132), float16_gemm(M, N, K), {"M": 200, "N": 136, "K": 72})
    assert program.cuda.count("= hilbert(tile, ") == 2 * (order == "hilbert()")


def test_raster_groups_and_the_curve_are_two_orders():
    with pytest.raises(DecompositionError, match="Hilbert's curve has no groups"):
        _ = hopper.strategy.with_(**SMALL, group_m=8, raster=2)(float16_gemm(64, 64, 64)).program().ir


def test_sizes_known_at_run_time():
    """One kernel for all of them."""
    program = require_right(hopper.strategy.with_(**SMALL, num_blocks=132), float16_gemm(M, N, K), {"M": 72, "N": 136, "K": 200})
    assert "tma_load(" in program.cuda and "tma_store(" in program.cuda


# ---------------------------------------------------------------------------------------------- defaults of the library


def chosen(spec, target="sm_90a"):
    return defaults(spec, target)[0]


def test_the_default_tile_follows_the_waves_of_blocks():
    def tile(*sizes):
        name, values = chosen(float16_gemm(*sizes))
        return name, values["bm"], values["bn"]

    assert {size: tile(size, size, size) for size in (256, 512, 768, 1024, 1536, 2048, 4096, 5376)} == {
        256: ("hopper_small", 16, 64),
        512: ("hopper_small", 32, 64),
        768: ("hopper", 64, 128),
        1024: ("hopper", 64, 128),
        1536: ("hopper", 192, 96),
        2048: ("hopper", 128, 256),
        4096: ("hopper", 128, 256),
        5376: ("hopper", 192, 192),
    }
    for values in hopper.defaults(4096, 4096, 4096):
        assert values["bm"] * values["bn"] <= 192 * 192


def test_rows_that_begin_inside_lines():
    assert work_of(float16_gemm(512, 512, 512)).row_alignments == (128, 128) and work_of(float16_gemm(520, 520, 520)).row_alignments == (
        16,
        16,
    )


def test_few_rows_or_columns_have_a_separate_strategy():
    """One tile contains all of them, so that the large matrix is read once."""
    for M in (1, 4, 16, 17):
        few = 16 if M <= 16 else 32
        assert chosen(float16_gemm(M, 8192, 8192)) == ("hopper_skinny", hopper_skinny.defaults(M, 8192, 8192)[0])
        assert chosen(float16_gemm(M, 8192, 8192))[1]["bm"] == few
    name, values = chosen(float16_gemm(64, 8192, 8192))
    assert (name, values["bm"], values["bn"]) == ("hopper", 64, 64)
    name, values = chosen(float16_gemm(8192, 16, 8192, orders="TTN"))
    assert (name, values["bm"], values["bn"]) == ("hopper_skinny", 64, 16)
    assert chosen(float16_gemm(72, 8192, 8192))[0] != "hopper_skinny" and hopper_skinny.defaults(72, 8192, 8192) == ()


@pytest.mark.parametrize("name", BY_WARPGROUPS)
def test_values_that_a_strategy_states_are_its_own(name):
    module = {"hopper": hopper, "hopper_small": hopper_small, "hopper_skinny": hopper_skinny}[name]
    stated = [one for sizes in ((512, 512, 512), (16, 4096, 4096), (4096, 24, 64)) for one in module.defaults(*sizes)]
    assert all(module.strategy.with_(**values) for values in stated)


def test_where_another_strategy_is_the_default():
    """Older targets, other types, and rows that TMA does not support and that are not worth a copy."""
    assert chosen(float16_gemm(4096, 4096, 4096), "sm_90")[0] == "hmma_ampere"
    assert chosen(float16_gemm(16, 4097, 4096))[0] == "split_k" and chosen(float16_gemm(4096, 4097, 4096))[0] == "hopper"
    assert chosen(float16_gemm(64, 4097, 4096))[0] == "split_k" and chosen(float16_gemm(100, 97, 97))[0] == "split_k"
    assert chosen(MatMul(1024, 1024, 1024)(GL, GL, GL)(Kernel))[0] == "gemm_nn"
    assert chosen(float16_gemm(M, N, K)) == ("hopper", {})


@pytest.mark.parametrize(("size", "layouts"), list(itertools.product((8, 40, 1024), ({}, {"B": ColMajor}, {"A": ColMajor, "C": ColMajor}))))
def test_defaults_are_legal(size, layouts):
    spec = MatMul(size, size, size, **{"dtype": float16, "c_dtype": float16, "A": RowMajor, "B": RowMajor, "C": RowMajor, **layouts})
    name, values = chosen(spec(GL, GL, GL)(Kernel))
    assert name.startswith("hopper")
    assert find(name).strategy.with_(**values)(spec(GL, GL, GL)(Kernel)).program("sm_90a").ir.rings
