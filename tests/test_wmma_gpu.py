"""On a GPU: the WMMA functions in every type and layout, and Listings 3 and 5, bit-equal to NumPy on integer data (oracle O11)."""

import itertools

import numpy as np
import pytest
from problems import SIZES, integers, library, stored
from test_gpu import check
from test_wmma import FR16, LAYOUTS, PRODUCTS, aligned, direct, ids

from fireiron import *
from fireiron.gpu import launch
from fireiron.values.machine import as_architecture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]


def skip_where_older(fragment, factor, result):
    """Skip if the GPU lacks an instruction."""
    spec = MatMul(*fragment.fragment, dtype=factor, c_dtype=result)(fragment, fragment, fragment)(Warp)
    lacks = [one for one in MMA_SYNC.mismatches(spec, as_architecture(launch.device_arch())) if one.field == "target"]
    if lacks:
        pytest.skip(f"the product needs {lacks[0].wanted}")


@pytest.mark.parametrize("layouts", LAYOUTS, ids=ids)
@pytest.mark.parametrize(("fragment", "factor", "result"), PRODUCTS, ids=ids)
def test_products(fragment, factor, result, layouts):
    skip_where_older(fragment, factor, result)
    if not aligned(fragment, factor, result, layouts):
        pytest.skip("refused: its tiles are not aligned")
    m, n, k = fragment.fragment
    options = dict(zip("ABC", layouts), dtype=factor, c_dtype=result)
    check(direct(fragment, result), MatMul(8 * m, 6 * n, 5 * max(k, 16), **options)(GL, GL, GL)(Kernel))


@pytest.mark.parametrize("layouts", LAYOUTS, ids=ids)
@pytest.mark.parametrize(("fragment", "factor", "result"), PRODUCTS, ids=ids)
def test_products_from_shared_memory(fragment, factor, result, layouts):
    skip_where_older(fragment, factor, result)
    if not aligned(fragment, factor, result, layouts):
        pytest.skip("refused: its tiles are not aligned")
    m, n, k = fragment.fragment
    pad = 16 // factor.bytes
    strategy = direct(fragment, result, lambda chain: chain.load(A, SH).pad(pad).load(B, SH).pad(pad))
    options = dict(zip("ABC", layouts), dtype=factor, c_dtype=result)
    check(strategy, MatMul(8 * m, 6 * n, 5 * k + 3, **options)(GL, GL, GL)(Kernel))


@pytest.mark.parametrize("dtype", [float16, float32, float64, int32], ids=str)
@pytest.mark.parametrize(("source", "target"), list(itertools.product((ColMajor, RowMajor), repeat=2)), ids=ids)
def test_copies_through_accumulators(dtype, source, target):
    import cupy

    fragment = FR(8, 8, 4) if dtype == float64 else FR16
    skip_where_older(fragment, float64 if dtype == float64 else float16, float64 if dtype == float64 else float32)
    m, n, _ = fragment.fragment
    warp_tiles = Move.tile(m, n).to(Warp).done()
    strategy = Move.tile(2 * m, 2 * n).to(Block).load(SRC, fragment, warp_tiles).then(warp_tiles)
    spec = Move(8 * m, 6 * n, dtype=dtype, src=source, dst=target)(GL, GL)(Kernel)
    array = integers((8 * m, 6 * n), dtype, np.random.default_rng(4), -100, 100)
    out = stored(np.full(array.shape, 77, array.dtype), target, cupy)
    strategy(spec).compile(launch.device_arch())(stored(array, source, cupy), out=out)
    np.testing.assert_array_equal(cupy.asnumpy(out), array)


def test_accumulate():
    import cupy

    generator = np.random.default_rng(6)
    spec = MatMul(128, 64, 48, dtype=float16, c_dtype=float32, C=RowMajor, accumulate=True)(GL, GL, GL)(Kernel)
    a, b = integers((128, 48), float16, generator), integers((48, 64), float16, generator)
    c = integers((128, 64), float32, generator)
    out = stored(c, RowMajor, cupy)
    kernel = direct(FR16, float32)(spec).compile(launch.device_arch())
    kernel(stored(a, ColMajor, cupy), stored(b, ColMajor, cupy), out=out)
    np.testing.assert_array_equal(cupy.asnumpy(out), a.astype(np.float32) @ b.astype(np.float32) + c)


def test_tf32_drops_the_last_13_bits():
    """Multiplied with the identity, the operands show their precision."""
    import cupy

    fragment = FR(16, 16, 8)
    skip_where_older(fragment, tf32, float32)
    a = np.random.default_rng(2).standard_normal((64, 32)).astype(np.float32)
    spec = MatMul(64, 32, 32, dtype=tf32, c_dtype=float32)(GL, GL, GL)(Kernel)
    out = stored(np.zeros((64, 32), np.float32), ColMajor, cupy)
    kernel = direct(fragment, float32)(spec).compile(launch.device_arch())
    kernel(stored(a, ColMajor, cupy), stored(np.eye(32, dtype=np.float32), ColMajor, cupy), out=out)
    np.testing.assert_array_equal(cupy.asnumpy(out), (a.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32))


@pytest.mark.parametrize("sizes", [*SIZES, (129, 65, 33), (64, 64, 16), (512, 384, 640), (1024, 1024, 1024)], ids=str)
@pytest.mark.parametrize("name", ["wmma_simple", "wmma_optimized"])
def test_listings(name, sizes):
    module = library(name)
    check(module.strategy, module.spec(*sizes))


@pytest.mark.parametrize("bk", [32, 64, 128])
def test_tunables(bk):
    module = library("wmma_optimized")
    check(module.strategy.with_(bk=bk), module.spec(300, 256, 520))


@pytest.mark.parametrize("options", [{"dtype": bfloat16}, {"A": ColMajor, "B": RowMajor, "C": ColMajor}, {"c_dtype": float16}], ids=str)
@pytest.mark.parametrize("name", ["wmma_simple", "wmma_optimized"])
def test_options(name, options):
    if options.get("dtype") == bfloat16:
        skip_where_older(FR16, bfloat16, float32)
    module = library(name)
    for sizes in ((256, 128, 128), (70, 130, 20)):
        check(module.strategy, module.spec(*sizes, **options))


@pytest.mark.parametrize("name", ["wmma_simple", "wmma_optimized"])
def test_sizes_known_at_run_time(name):
    module = library(name)
    for multiple, sizes in ((1, (131, 257, 19)), (8, (136, 200, 72)), (128, (256, 128, 384))):
        spec = module.spec(*(sym(dim, multiple_of=multiple) for dim in "MNK"))
        check(module.strategy, spec, **dict(zip("MNK", sizes)))


@pytest.mark.parametrize("name", ["wmma_simple", "wmma_optimized"])
def test_floats(name):
    """float16 operands, exact products, float32 sums: within the bound of adding K terms in any order."""
    import cupy

    module = library(name)
    generator = np.random.default_rng(9)
    a, b = generator.standard_normal((256, 512)).astype(np.float16), generator.standard_normal((512, 128)).astype(np.float16)
    kernel = module.strategy(module.spec(256, 128, 512)).compile(launch.device_arch())
    out = kernel(stored(a, RowMajor, cupy), stored(b, ColMajor, cupy))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    bound = 512 * 2.0**-22 * (np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)))
    assert (np.abs(cupy.asnumpy(out) - exact) <= bound).all()
