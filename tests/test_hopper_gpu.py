"""On an H100 or H200: the strategy hopper, bit-equal to NumPy on integer data, on poisoned output (oracle O11)."""

import attrs
import numpy as np
import pytest
from hopper_cases import ORDERS, SIZES, SKINNY_TILES, SMALL_TILES, TILES, float16_gemm
from test_gpu import check

from fireiron import *
from fireiron.gpu import launch
from fireiron.strategies import hopper, hopper_skinny, hopper_small

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(launch.visible_arch() != "sm_90", reason="needs a GPU of compute capability 9.0"),
    pytest.mark.skipif(not launch.gpu_available(), reason="needs CuPy (pip install 'fireiron[cuda13]')"),
]

M, N, K = (sym(name, multiple_of=8) for name in "MNK")


@pytest.mark.parametrize(
    "sizes", [(8, 8, 8), (136, 264, 72), (1000, 504, 304), (2048, 1536, 1024)], ids=lambda sizes: "x".join(map(str, sizes))
)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles(tile, sizes):
    check(hopper.strategy.with_(**dict(tile)), float16_gemm(*sizes))


@pytest.mark.parametrize("tile", [TILES[0], TILES[4], TILES[6]], ids=str)
@pytest.mark.parametrize("orders", ORDERS)
def test_storage_orders(orders, tile):
    check(hopper.strategy.with_(**dict(tile)), float16_gemm(520, 392, 328, orders=orders))


@pytest.mark.parametrize("mma_in_flight", [0, 1])
@pytest.mark.parametrize("tile", SMALL_TILES, ids=str)
def test_small(tile, mma_in_flight):
    for sizes in ((8, 8, 8), (256, 256, 256), (520, 392, 328)):
        for orders in ("NNN", "NTN", "NNT"):
            check(hopper_small.strategy.with_(**dict(tile), mma_in_flight=mma_in_flight), float16_gemm(*sizes, orders=orders))


@pytest.mark.parametrize("mma_in_flight", [0, 1])
@pytest.mark.parametrize("tile", [*SKINNY_TILES, (("bm", 8), ("epi_m", 8), ("stages", 12))], ids=str)
def test_skinny(tile, mma_in_flight):
    for sizes in ((1, 8, 8), (16, 4096, 4096), (64, 1032, 2056), (1032, 24, 520)):
        for orders in ("NNN", "NTN", "NNT"):
            check(hopper_skinny.strategy.with_(**dict(tile), mma_in_flight=mma_in_flight), float16_gemm(*sizes, orders=orders))


@pytest.mark.parametrize("parts", [2, 8])
def test_skinny_split_over_k(parts):
    check(hopper_skinny.split_k.with_(num_splits=parts), float16_gemm(16, 520, 8200, c_dtype=float32))


@pytest.mark.parametrize("result", [float16, bfloat16, float32], ids=str)
@pytest.mark.parametrize("kind", [float16, bfloat16], ids=str)
def test_types(kind, result):
    if bfloat16 in (kind, result):
        pytest.importorskip("ml_dtypes")
    check(hopper.strategy, float16_gemm(520, 264, 136, dtype=kind, c_dtype=result))


@pytest.mark.parametrize("sizes", [*SIZES, (4095, 257, 99), (513, 1000, 1001)], ids=lambda sizes: "x".join(map(str, sizes)))
def test_any_size(sizes):
    check(hopper.strategy, float16_gemm(*sizes))


def test_sizes_known_at_run_time():
    """More tiles than blocks, as many, and one."""
    spec = float16_gemm(M, N, K)
    for sizes in ((8, 8, 8), (128, 256, 64), (1000, 504, 304), (4096, 2048, 72), (24, 4096, 1024)):
        check(hopper.strategy, spec, **dict(zip("MNK", sizes, strict=True)))


@pytest.mark.parametrize("tile", [TILES[0], TILES[1], TILES[4], TILES[7]], ids=str)
def test_every_run_gives_the_same_bits(tile):
    """A race would show: sums of one element are computed in one order."""
    import cupy

    generator = np.random.default_rng(7)
    a, b = (cupy.asarray(generator.standard_normal(shape).astype(np.float16)) for shape in ((3000, 1032), (1032, 2008)))
    kernel = hopper.strategy.with_(**dict(tile))(float16_gemm(3000, 2008, 1032)).compile()
    first, again = (cupy.full((3000, 2008), np.nan, np.float16) for _ in range(2))
    kernel(a, b, out=first)
    for _ in range(50):
        again.fill(np.nan)
        kernel(a, b, out=again)
        cupy.testing.assert_array_equal(first, again)
    expected = a.astype(np.float32) @ b.astype(np.float32)
    assert float(cupy.abs(first.astype(np.float32) - expected).max()) < 0.25


@pytest.mark.parametrize("sizes", [(65536, 40000, 64), (65537, 40001, 66), (40001, 65544, 8), (64, 64, 1 << 26)], ids=str)
def test_matrices_of_more_than_two_to_the_31_elements(sizes):
    """The first and the last rows, and some between: all of C would take minutes in float64."""
    import cupy

    M, N, K = sizes
    cupy.get_default_memory_pool().free_all_blocks()
    if cupy.cuda.Device().mem_info[0] < 40 << 30:
        pytest.skip("needs 40 GiB of free memory on the GPU")
    generator = cupy.random.default_rng(3)
    few = min(K, 4096)  # sums are exact, and random numbers for all of K would take 100 GiB
    a, b, c = cupy.zeros((M, K), np.float16), cupy.ones((K, N), np.float16), cupy.full((M, N), np.nan, np.float16)
    a[:, :few], b[:few] = generator.integers(-1, 2, (M, few)), generator.integers(-1, 2, (few, N))
    hopper.strategy(float16_gemm(*sizes)).compile()(a, b, out=c)
    assert M * N > 1 << 31 or M * K > 1 << 31
    for first in (0, M // 2, M - 7):
        expected = a[first : first + 7, :few].astype(np.float32) @ b[:few].astype(np.float32)
        cupy.testing.assert_array_equal(c[first : first + 7].astype(np.float32), expected)
    assert not bool(cupy.isnan(c).any())


# ---------------------------------------------------------------------------------------------- clusters

CLUSTERS = {
    "two along m": ((2, 1), {"bm": 128, "bn": 256, "wn": 256}),
    "two along n": ((1, 2), {"bm": 128, "bn": 128, "wn": 128}),
    "four": ((2, 2), {"bm": 128, "bn": 128, "wn": 128, "num_blocks": 65536}),
    "four along m": ((4, 1), {"bm": 64, "bn": 128, "wn": 128, "stages": 6, "num_blocks": 65536}),
    "eight": ((4, 2), {"bm": 64, "bn": 64, "wn": 64, "num_blocks": 65536}),
    "sixteen": ((4, 4), {"bm": 64, "bn": 64, "wn": 64, "num_blocks": 65536}),
    "a warpgroup produces": ((2, 1), {"bm": 256, "bn": 192, "wm": 128, "wn": 192, "stages": 3, "producer_threads": 128}),
}


def clustered(cluster, values):
    """The strategy with its tiles in clusters."""
    steps = list(hopper.strategy.steps)
    tile_step = next(number for number, step in enumerate(steps) if step.verb == "tile")
    steps[tile_step] = steps[tile_step].refined(Cluster(*cluster))
    return attrs.evolve(hopper.strategy, steps=tuple(steps)).with_(**values)


@pytest.mark.parametrize("sizes", [(8, 24, 200), (1000, 504, 304), (4096, 2048, 1024)], ids=lambda sizes: "x".join(map(str, sizes)))
@pytest.mark.parametrize("name", CLUSTERS)
def test_clusters(name, sizes):
    """Blocks load for each other: bit-equal, also if clusters extend past the edge."""
    check(clustered(*CLUSTERS[name]), float16_gemm(*sizes))


@pytest.mark.parametrize("orders", ORDERS)
def test_clusters_in_all_storage_orders(orders):
    check(clustered(*CLUSTERS["four"]), float16_gemm(520, 392, 328, orders=orders))


@pytest.mark.parametrize("name", ["two along m", "four", "a warpgroup produces"])
def test_clusters_of_sizes_known_at_run_time(name):
    for sizes in ((8, 8, 8), (1000, 504, 304), (4096, 2048, 72)):
        check(clustered(*CLUSTERS[name]), float16_gemm(M, N, K), **dict(zip("MNK", sizes, strict=True)))
