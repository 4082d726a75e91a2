"""Split-k on a GPU: bit-equal to NumPy on integer data, over previous contents of the output, on streams and in graphs (oracle O11)."""

import numpy as np
import pytest
from problems import integers, library, stored
from test_split_k import LAYOUTS, LIBRARY, SIZES, SYMBOLS, blocks, tiled

from fireiron import *
from fireiron.gpu import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]
both = pytest.mark.parametrize("name", LIBRARY)


def placed(spec, seed=7, **sizes):
    """Integer inputs and an output with contents that must not count, on the host."""
    generator = np.random.default_rng(seed)
    shapes = {name: tuple(sizes.get(str(size)) or int(str(size)) for size in view.shape) for name, view in spec.operands.items()}
    a, b = (integers(shapes[name], spec.operands[name].dtype, generator) for name in "AB")
    return a, b, np.full(shapes["C"], 77, spec.C.dtype.to_numpy())


def verify(strategy, spec, times=2, **sizes):
    import cupy

    a, b, c = placed(spec, **sizes)
    kernel = strategy(spec).compile(launch.device_arch())
    device = [stored(array, spec.operands[name].tensor.layout, cupy) for name, array in (("A", a), ("B", b), ("C", c))]
    for _ in range(times):
        kernel(*device[:2], out=device[2])
        np.testing.assert_array_equal(cupy.asnumpy(device[2]), spec.reference(a, b))


@both
@pytest.mark.parametrize("sizes", (*SIZES, (1000, 500, 300), (64, 64, 8192), (16, 24, 4100)), ids=lambda sizes: "x".join(map(str, sizes)))
def test_sizes(name, sizes):
    verify(library(name).strategy, library(name).spec(*sizes))


@both
@pytest.mark.parametrize("layouts", LAYOUTS, ids=lambda one: "".join(str(part)[0] for part in one.values()))
def test_layouts(name, layouts):
    verify(library(name).strategy, library(name).spec(130, 70, 333, **layouts))


@both
def test_sizes_known_at_run_time(name):
    spec = library(name).spec(*SYMBOLS)
    for M, N, K in ((131, 257, 190), (128, 128, 1024), (1, 3, 5)):
        verify(library(name).strategy, spec, M=M, N=N, K=K)


@both
def test_tunables(name):
    strategy = library(name).strategy
    for values in ({"num_splits": 4}, {"num_splits": 8, "bk": 32, "stages": 3}, {"bm": 32, "bn": 32}, {"bm": 64, "bn": 64, "stages": 2}):
        verify(strategy.with_(**values), library(name).spec(100, 200, 1100))


@pytest.mark.parametrize("dtype", [float32, float64, int32], ids=str)
def test_types(dtype):
    spec = MatMul(100, 70, 333, dtype=dtype)(GL, GL, GL)(Kernel)
    verify(tiled(3, 8), spec)
    verify(blocks(5, 8), spec)


def test_adds_to_c():
    import cupy

    spec = MatMul(100, 70, 333, accumulate=True)(GL, GL, GL)(Kernel)
    a, b, c = placed(spec)
    for strategy in (tiled(3, 8), blocks(5, 8)):
        device = [stored(array, ColMajor, cupy) for array in (a, b, c)]
        strategy(spec).compile(launch.device_arch())(*device[:2], out=device[2])
        np.testing.assert_array_equal(cupy.asnumpy(device[2]), a @ b + c)


def test_elements_between_columns_are_unchanged():
    """Only C is set to zero, not the rest of the matrix of which it is a part."""
    import cupy

    spec = MatMul(100, 70, 333, C=ColMajor(ld=128))(GL, GL, GL)(Kernel)
    a, b, _ = placed(spec)
    matrix = cupy.full((70, 128), 9, dtype=cupy.float32)
    out = matrix.T[:100]
    blocks(5, 8)(spec).compile(launch.device_arch())(stored(a, ColMajor, cupy), stored(b, ColMajor, cupy), out=out)
    np.testing.assert_array_equal(cupy.asnumpy(out), a @ b)
    assert bool((matrix[:, 100:] == 9).all())


@pytest.mark.parametrize("own", [False, True], ids=["current", "given"])
def test_streams_and_graphs(own):
    """The memset runs on the kernel's stream, and is captured with it."""
    import cupy

    spec = library("split_k_blocks").spec(64, 64, 4096)
    a, b, c = placed(spec)
    kernel = library("split_k_blocks").strategy(spec).compile(launch.device_arch())
    device = [stored(array, RowMajor, cupy) for array in (a, b, c)]
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    if own:
        kernel(*device[:2], out=device[2], stream=stream)
    else:
        with stream:
            kernel(*device[:2], out=device[2])
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(device[2]), spec.reference(a, b))
    with stream:
        stream.begin_capture()
        kernel(*device[:2], out=device[2])
        graph = stream.end_capture()
    for _ in range(3):
        graph.launch(stream)
    stream.synchronize()
    np.testing.assert_array_equal(cupy.asnumpy(device[2]), spec.reference(a, b))


@both
def test_floats(name):
    """Sums of floats are within the bound of float32 accumulation."""
    import cupy

    spec = library(name).spec(96, 80, 4096, c_dtype=float32)
    generator = np.random.default_rng(1)
    a, b = (generator.standard_normal(shape).astype(np.float16) for shape in ((96, 4096), (4096, 80)))
    out = stored(np.zeros((96, 80), np.float32), RowMajor, cupy)
    library(name).strategy(spec).compile(launch.device_arch())(stored(a, RowMajor, cupy), stored(b, RowMajor, cupy), out=out)
    bound = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)) * 4096 * 2.0**-24
    assert (np.abs(cupy.asnumpy(out) - a.astype(np.float64) @ b.astype(np.float64)) <= bound).all()
