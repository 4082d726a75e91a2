"""On an H100 or H200: batches by TMA with arrays of three and four dimensions, and `matmul`, bit-equal on integers (oracle O11)."""

import itertools

import numpy as np
import pytest
from hopper_cases import TILES
from test_batched import LETTERS, THREE_BLOCKS, float16_gemm, symbols
from test_gpu import check

from fireiron import *
from fireiron.gpu import launch
from fireiron.strategies import hopper_batched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(launch.visible_arch() != "sm_90", reason="needs a GPU of compute capability 9.0"),
    pytest.mark.skipif(not launch.gpu_available(), reason="needs CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.mark.parametrize("sizes", [(8, 8, 8, 3), (136, 264, 72, 5), (1000, 504, 304, 7), (256, 512, 1024, 32)], ids=str)
@pytest.mark.parametrize("tile", TILES, ids=str)
def test_tiles(tile, sizes):
    check(hopper_batched.strategy.with_(**dict(tile)), hopper_batched.spec(*sizes))


@pytest.mark.parametrize("orders", list(itertools.product((RowMajor, ColMajor), repeat=3)), ids=str)
@pytest.mark.parametrize("signature", ["bmk,bkn->bmn", "bmk,kn->bmn"])
def test_storage_orders(signature, orders):
    check(hopper_batched.strategy, hopper_batched.spec(520, 392, 328, 5, signature=signature, **dict(zip("ABC", orders))))


@pytest.mark.parametrize("signature", LETTERS)
def test_letters(signature):
    check(THREE_BLOCKS, float16_gemm(signature, m=200, n=136, k=264, b=7))


def test_two_batch_dimensions():
    spec = MatMul(3, 5, 200, 136, 264, signature="abmk,abkn->abmn", dtype=float16, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    check(MatMul.tile(a=1, b=1).to(Block).then(THREE_BLOCKS), spec)


@pytest.mark.parametrize("sizes", [(1, 1, 1, 1), (3, 5, 7, 9), (65, 63, 33, 4), (513, 1000, 1001, 3)], ids=str)
def test_any_size(sizes):
    check(hopper_batched.strategy, hopper_batched.spec(*sizes))


def test_sizes_known_at_run_time():
    """More tiles than blocks, as many, and one."""
    sizes, batch = symbols()
    spec = hopper_batched.spec(*sizes, batch)
    for M, N, K, count in ((8, 8, 8, 1), (128, 256, 64, 132), (1000, 504, 304, 5), (24, 1024, 512, 300)):
        check(hopper_batched.strategy, spec, M=M, N=N, K=K, batch=count)


SHAPES = [
    ((5, 200, 264), (5, 264, 136)),
    ((5, 200, 264), (264, 136)),
    ((200, 264), (5, 264, 136)),
    ((1, 200, 264), (5, 264, 136)),
    ((3, 33, 65), (3, 65, 17)),
]


@pytest.mark.parametrize("stored", ["row", "col", "interleaved"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["cupy", "torch"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_matmul(dtype, kind, shapes, stored):
    xp = pytest.importorskip(kind)
    generator = np.random.default_rng(5)
    given = [generator.integers(-2, 3, shape).astype(dtype) for shape in shapes]
    expected = given[0].astype("float64") @ given[1].astype("float64")

    def reordered(array):
        orders = {
            "row": range(array.ndim),
            "col": (*range(array.ndim - 2), array.ndim - 1, array.ndim - 2),
            "interleaved": (1, 0, 2)[: array.ndim],
        }
        order = [int(axis) for axis in orders[stored]]
        moved = np.ascontiguousarray(array.transpose(order))
        placed = xp.asarray(moved) if kind == "cupy" else xp.from_numpy(moved).cuda()
        back = [order.index(axis) for axis in range(array.ndim)]
        return placed.transpose(back) if kind == "cupy" else placed.permute(back)

    a, b = map(reordered, given)
    out = xp.full(expected.shape, 77, dtype=a.dtype, **({} if kind == "cupy" else {"device": "cuda"}))
    for target in (None, out):
        got = matmul(a, b, target)
        assert target is None or got is target
        assert type(got) is type(a) and tuple(got.shape) == expected.shape
        on_host = got.get() if kind == "cupy" else got.cpu().numpy()
        np.testing.assert_array_equal(on_host.astype("float64"), expected)
