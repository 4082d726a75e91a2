"""On a GPU: results that several blocks produce together, launched again, on streams and in graphs. The kernels are those of the simulator's
tests, and larger ones with many blocks.
"""

import numpy as np
import pytest
import test_joint_tiles

from fireiron import *
from fireiron.gpu import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

AMPERE = test_joint_tiles.tensor_cores
SHAPES = ((16, 4096, 4096), (1, 1000, 8192), (100, 136, 5000), (64, 64, 16384))


def tensor(array):
    torch = pytest.importorskip("torch")
    return torch.from_numpy(array).cuda()


def inputs_of(spec, seed=3):
    """Small integers, so that sums are exact."""
    generator = np.random.default_rng(seed)
    shapes = {name: tuple(int(size.low) for size in spec.operands[name].tensor.shape) for name in spec.inputs}
    arrays = {name: generator.integers(-2, 3, shape).astype(spec.operands[name].dtype.to_numpy()) for name, shape in shapes.items()}
    return [tensor(np.asfortranarray(array) if spec.operands[name].tensor.layout == ColMajor else array) for name, array in arrays.items()]


def linear(parts):
    chain = test_joint_tiles.linear.split_k(parts, Block, 32).reduce_in_last_block()
    return chain.tile(m=32, n=64).to(Block).step("product", AMPERE).done()


@pytest.mark.parametrize("name", test_joint_tiles.both())
def test_kernels_of_the_simulator(name):
    strategy, spec = test_joint_tiles.both()[name]
    given = inputs_of(spec)
    kernel = strategy(spec).compile()
    expected = spec.reference(*(one.cpu().numpy() for one in given))
    for _ in range(3):  # semaphores are zero again
        np.testing.assert_array_equal(kernel(*given).cpu().numpy(), expected)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("parts", [1, 4, 7])
def test_epilogues_of_large_matmuls(shape, parts):
    m, n, k = shape
    spec = test_joint_tiles.linear(m=m, n=n, k=k)
    a, b, bias = inputs_of(spec)
    kernel = linear(parts)(spec).compile()
    expected = (a.float() @ b.float() + bias).relu().half()
    for _ in range(5):
        assert bool((kernel(a, b, bias) == expected).all())


def test_results_are_equal_in_each_run():
    """Of random floats, by the last block and by ordered additions."""
    torch = pytest.importorskip("torch")
    spec = MatMul(256, 128, 4096)(GL, GL, GL)(Kernel)
    a, b = (torch.randn(shape, device="cuda").t() for shape in ((4096, 256), (128, 4096)))
    for ordered in (False, True):
        kernel = test_joint_tiles.simple(16, 8, ordered=ordered)(spec).compile()
        first = kernel(a, b).clone()
        assert all(bool((kernel(a, b) == first).all()) for _ in range(20))
        assert float((first - a @ b).abs().max()) < 0.05


def test_streams_and_graphs():
    """Each stream has a workspace; a captured launch is replayed."""
    torch = pytest.importorskip("torch")
    spec = test_joint_tiles.linear(m=32, n=256, k=4096)
    a, b, bias = inputs_of(spec)
    kernel, expected = linear(8)(spec).compile(), (a.float() @ b.float() + bias).relu().half()
    streams = [torch.cuda.Stream() for _ in range(3)]
    results = []
    for stream in streams:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            results += [kernel(a, b, bias) for _ in range(10)]
    torch.cuda.synchronize()
    assert all(bool((result == expected).all()) for result in results)
    out, graph = torch.zeros_like(expected), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(3):
            kernel(a, b, bias, out=out)
    for _ in range(5):
        out.zero_()
        graph.replay()
        kernel(a, b, bias)
        torch.cuda.synchronize()
        assert bool((out == expected).all())


def test_ordered_additions_in_a_loop():
    strategy, spec = test_joint_tiles.looped(m=64, n=512, k=16)
    a, b = inputs_of(spec)
    kernel = strategy(spec).compile()
    expected = (a.double() @ b.double().t() @ b.double()).float()
    for _ in range(3):
        assert bool((kernel(a, b) == expected).all())
