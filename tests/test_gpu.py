"""On a GPU: every strategy, bit-equal to NumPy on integer data, on poisoned output (oracle O11)."""

import numpy as np
import pytest
from problems import NAMES, SIZES, integers, library, sizes_of_run_time, stored

from fireiron import *
from fireiron.gpu import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

LAYOUTS = {
    "nn": {},
    "nt": {"B": RowMajor},
    "tn": {"A": RowMajor},
    "tt": {"A": RowMajor, "B": RowMajor},
    "row": {"A": RowMajor, "B": RowMajor, "C": RowMajor},
}


def run(strategy, spec, generator, **sizes):
    """The output of a kernel on the GPU, and NumPy's result."""
    import cupy

    a, b = (
        integers(tuple(sizes.get(str(size)) or int(str(size)) for size in spec.operands[name].shape), spec.operands[name].dtype, generator)
        for name in "AB"
    )
    kernel = strategy(spec).compile()
    arrays = [stored(array, spec.operands[name].tensor.layout, cupy) for name, array in (("A", a), ("B", b))]
    expected = spec.reference(a, b)
    out = stored(np.full(expected.shape, 77, spec.C.dtype.to_numpy()), spec.C.tensor.layout, cupy)
    kernel(*arrays, out=out)
    return cupy.asnumpy(out), expected


def check(strategy, spec, **sizes):
    got, expected = run(strategy, spec, np.random.default_rng(7), **sizes)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "x".join(map(str, sizes)))
@pytest.mark.parametrize("name", NAMES)
def test_strategy(name, sizes):
    module = library(name)
    check(module.strategy, module.spec(*sizes))


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("listing_1", "hgemm_nt")])
def test_paper_size(name):
    module = library(name)
    check(module.strategy, module.spec(*module.SIZES))


@pytest.mark.parametrize("layouts", LAYOUTS)
@pytest.mark.parametrize("name", NAMES)
def test_layouts(name, layouts):
    check(library(name).strategy, library(name).spec(130, 70, 33, **LAYOUTS[layouts]))


@pytest.mark.parametrize("name", [name for name in NAMES if name != "listing_1"])
def test_symbolic(name):
    module = library(name)
    spec = module.spec(*sizes_of_run_time(name))
    for M, N, K in ((131, 257, 19), (128, 128, 8), (1, 3, 5)):
        check(module.strategy, spec, M=M, N=N, K=K)


@pytest.mark.parametrize("dtype", [float64, float16, bfloat16, int32, int8], ids=str)
@pytest.mark.parametrize("name", ["naive", "listing_1", "listing_2", "maxwell", "gemm_nn", "gemm_tt"])
def test_dtypes(name, dtype):
    if dtype == bfloat16:
        pytest.importorskip("ml_dtypes")
    check(library(name).strategy, library(name).spec(129, 127, 33, dtype=dtype))


@pytest.mark.parametrize("dtype", [float16, bfloat16], ids=str)
def test_accumulator(dtype):
    spec = library("maxwell").spec(200, 100, 700, dtype=dtype, c_dtype=float32, accumulator=float32)
    check(library("maxwell").strategy, spec)
    check(library("maxwell").strategy, library("maxwell").spec(200, 100, 90, dtype=dtype, accumulator=float32))


def test_more_than_65535_blocks():
    check(MatMul.tile(1, 1).to(Block).tile(1, 1).to(Thread).split(1).done(), library("naive").spec(300, 300, 3))


def test_leading_dimensions():
    import cupy

    module = library("gemm_nn")
    spec = module.spec(100, 60, 40, A=ColMajor(ld=112), B=ColMajor(ld=sym("ldb")), C=ColMajor(ld=104))
    generator = np.random.default_rng(3)
    a, b = integers((100, 40), float32, generator), integers((40, 60), float32, generator)
    out = stored(np.full((100, 60), 77, np.float32), ColMajor, cupy, ld=104)
    kernel = module.strategy(spec).compile()
    kernel(stored(a, ColMajor, cupy, ld=112), stored(b, ColMajor, cupy, ld=48), out=out, ldb=48)
    np.testing.assert_array_equal(cupy.asnumpy(out), a @ b)
    with pytest.raises(LaunchError, match="strides"):
        kernel(stored(a, ColMajor, cupy), stored(b, ColMajor, cupy, ld=48), out=out, ldb=48)


def test_accumulate():
    import cupy

    generator = np.random.default_rng(5)
    a, b, c = integers((70, 30), float32, generator), integers((30, 50), float32, generator), integers((70, 50), float32, generator)
    spec = library("naive").spec(70, 50, 30, accumulate=True)
    out = stored(c, ColMajor, cupy)
    library("naive").strategy(spec).compile()(stored(a, ColMajor, cupy), stored(b, ColMajor, cupy), out=out)
    np.testing.assert_array_equal(cupy.asnumpy(out), a @ b + c)


def test_large_offsets_need_64_bits():
    import cupy

    rows, columns = 3, 2**30
    module = MatMul.tile(1, 4096).to(Block).tile(1, 16).to(Thread).tile(1, 1).split(1).done()
    spec = MatMul(rows, sym("N"), 1, dtype=int8, c_dtype=int32, A=RowMajor, B=RowMajor, C=RowMajor)(GL, GL, GL)(Kernel)
    a = cupy.asarray(np.array([[1], [2], [3]], dtype=np.int8))
    b = cupy.ones((1, columns), dtype=cupy.int8)
    kernel = module(spec).compile()
    c = kernel(a, b)
    assert int(c[2].min()) == int(c[2].max()) == 3 and int(c[1, -1]) == 2


@pytest.mark.parametrize("chunk", range(40))
def test_random_strategies(chunk):
    import cupy
    from generator import draw
    from test_random import problem, program_to_paste

    for seed in range(chunk * 5, chunk * 5 + 5):
        drawn, _ = draw(seed)
        arrays, expected = problem(drawn, seed)
        spec = drawn.spec
        leading = {name: drawn.leading(name) for name in "ABC"}
        device = {name: stored(array, spec.operands[name].tensor.layout, cupy, leading[name]) for name, array in arrays.items()}
        out = device.pop("C", None)
        if out is None:
            out = stored(np.full(expected.shape, 77, expected.dtype), spec.C.tensor.layout, cupy, leading["C"])
        drawn.strategy.compile()(device["A"], device["B"], out=out)
        assert np.array_equal(cupy.asnumpy(out), expected), program_to_paste(drawn)


def test_torch_arrays_and_streams():
    torch = pytest.importorskip("torch")
    module = library("gemm_nn")
    kernel = module.strategy(module.spec(130, 70, 40, A=RowMajor, B=RowMajor, C=RowMajor)).compile()
    a, b = (torch.randint(-3, 4, shape, device="cuda").float() for shape in ((130, 40), (40, 70)))
    out = torch.full((130, 70), float("nan"), device="cuda")
    assert kernel(a, b, out=out) is out
    torch.cuda.synchronize()
    assert torch.equal(out, a @ b)
