"""On an H100 or H200: preceding copy kernels, in calls, prepared launches and graphs, for arrays of several libraries (oracle: NumPy)."""

import numpy as np
import pytest
from hopper_cases import ORDERS, float16_gemm
from test_gpu import check

from fireiron import *
from fireiron.gpu import launch
from fireiron.strategies import hopper, hopper_batched

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(launch.visible_arch() != "sm_90", reason="needs a GPU of compute capability 9.0"),
    pytest.mark.skipif(not launch.gpu_available(), reason="needs CuPy (pip install 'fireiron[cuda13]')"),
]

SIZES = (513, 1000, 1001)
STRATEGY = hopper.strategy.with_(bm=64, bn=128, wm=64, wn=128, stages=3)


def arrays(seed, sizes=SIZES):
    import cupy

    generator = np.random.default_rng(seed)
    M, N, K = sizes
    return [cupy.asarray(generator.integers(-2, 3, shape).astype(np.float16)) for shape in ((M, K), (K, N))]


def product(a, b):
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (65, 63, 33), (513, 1000, 1001), (1001, 513, 1000)], ids=str)
def test_products(sizes, orders):
    check(STRATEGY, float16_gemm(*sizes, orders=orders))


@pytest.mark.parametrize("orders", ["NNN", "NTN", "TNN", "TTN"])
@pytest.mark.parametrize("sizes", [(128, 256, 192), (65, 63, 33), (513, 1000, 1001), (1024, 512, 768)], ids=str)
@pytest.mark.parametrize("dtype", [tf32, int8], ids=str)
def test_transposed_operands(dtype, sizes, orders):
    library_strategy = hopper.integers if dtype == int8 else hopper.strategy
    strategy = library_strategy.with_(bm=64, bn=128, wm=64, wn=128, stages=3, bk=128 // dtype.bytes, epi_n=32)
    check(strategy, float16_gemm(*sizes, orders=orders, dtype=dtype, c_dtype=int32 if dtype == int8 else float32))


@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("sizes", [(256, 128, 192), (65, 63, 33), (513, 1000, 1001)], ids=str)
def test_transposed_eight_bit_floats(sizes, orders):
    """Small integers, which they represent; through PyTorch, which has such arrays."""
    torch = pytest.importorskip("torch")
    M, N, K = sizes
    strategy = hopper.strategy.with_(bm=64, bn=128, wm=64, wn=128, stages=3, bk=128, epi_n=32)
    kernel = strategy(float16_gemm(M, N, K, f"{orders}N", dtype=float8_e4m3, c_dtype=float32)).compile()
    a, b = (torch.randint(-2, 3, shape, device="cuda").float() for shape in ((M, K), (K, N)))
    given = [one.to(torch.float8_e4m3fn) for one in (a, b)]
    given = [one if order == "N" else one.t().contiguous().t() for one, order in zip(given, orders, strict=True)]
    assert torch.equal(kernel(*given), (a.double() @ b.double()).float())


@pytest.mark.parametrize("orders", ["NN", "NT", "TN", "TT"])
def test_stacks(orders):
    import cupy

    layouts = {name: RowMajor if order == "N" else ColMajor for name, order in zip("AB", orders, strict=True)}
    generator = np.random.default_rng(1)
    for dtype, result, library_strategy in ((float16, float16, hopper_batched.strategy), (int8, int32, hopper_batched.integers)):
        spec = hopper_batched.spec(65, 130, 67, batch=5, dtype=dtype, c_dtype=result, **layouts)
        kernel = library_strategy.with_(bm=64, bn=64, wm=64, wn=64, bk=128 // dtype.bytes, epi_n=32, stages=3)(spec).compile()
        a, b = (generator.integers(-2, 3, shape).astype(dtype.to_numpy()) for shape in ((5, 65, 67), (5, 67, 130)))
        given = [cupy.asarray(one if order == "N" else one.swapaxes(1, 2).copy()) for one, order in zip((a, b), orders, strict=True)]
        given = [one if order == "N" else one.swapaxes(1, 2) for one, order in zip(given, orders, strict=True)]
        np.testing.assert_array_equal(kernel(*given).get(), (a.astype(np.float32) @ b.astype(np.float32)).astype(result.to_numpy()))


def test_one_kernel_for_all_sizes():
    spec = float16_gemm(*map(sym, "MNK"))
    for sizes in ((1, 1, 1), (65, 63, 33), (513, 1000, 1001)):
        check(STRATEGY, spec, **dict(zip("MNK", sizes, strict=True)))


def test_prepared_launches_copy_again():
    """They run on the same arrays with their current contents, and on others like them."""
    import cupy

    kernel = STRATEGY(float16_gemm(*SIZES)).compile()
    (a, b), (c, d) = arrays(1), arrays(2)
    prepared = kernel.prepare(a, b)
    cupy.testing.assert_array_equal(prepared(), product(a, b))
    cupy.testing.assert_array_equal(prepared(c, d), product(c, d))
    a[...] = c
    assert prepared() is prepared.out
    cupy.testing.assert_array_equal(prepared.out, product(c, b))
    out = cupy.full((SIZES[0], SIZES[1]), np.nan, np.float16)
    assert prepared(c, d, out=out) is out
    cupy.testing.assert_array_equal(out, product(c, d))
    with pytest.raises(ArgumentError):
        prepared(c)


def test_graphs_hold_the_copies():
    import cupy

    kernel = STRATEGY(float16_gemm(*SIZES)).compile()
    (a, b), (c, _) = arrays(1), arrays(2)
    prepared = kernel.prepare(a, b)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        prepared()
        graph = stream.end_capture()
        a[...] = c
        prepared.out.fill(0)
        graph.launch(stream)
        stream.synchronize()
        cupy.testing.assert_array_equal(prepared.out, product(c, b))


def test_streams_of_ones_own():
    """With many calls in flight on two streams, the new arrays of one are not those of the other."""
    import cupy

    kernel = STRATEGY(float16_gemm(*SIZES)).compile()
    problems = [arrays(seed) for seed in range(6)]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]
    results = [kernel(a, b, stream=streams[number % 2]) for number, (a, b) in enumerate(problems)]
    for stream in streams:
        stream.synchronize()
    for (a, b), result in zip(problems, results, strict=True):
        cupy.testing.assert_array_equal(result, product(a, b))


def test_torch():
    torch = pytest.importorskip("torch")
    kernel = STRATEGY(float16_gemm(*SIZES)).compile()
    a, b = (torch.randint(-2, 3, shape, device="cuda").half() for shape in ((SIZES[0], SIZES[2]), (SIZES[2], SIZES[1])))
    assert torch.equal(kernel(a, b), (a.float() @ b.float()).half())


def test_matmul_of_slices():
    """Odd rows, odd addresses, and strides of several elements."""
    import cupy

    import fireiron

    a, b = arrays(5, (700, 900, 1100))
    for left, right in ((a[:, 1:], b[1:]), (a[1:, :333], b[:333, 1:]), (a.T[:300].T, b[:300, ::1])):
        cupy.testing.assert_array_equal(fireiron.matmul(left, right), product(left, right))
