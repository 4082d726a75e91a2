"""Programmatic dependent launch on an H100 or H200: chains of kernels that overlap, each of which reads the output of its predecessor."""

import making
import numpy as np
import pytest
from hopper_cases import TILES, float16_gemm
from test_gpu import check

from fireiron import *
from fireiron.gpu import launch
from fireiron.strategies import hmma_ampere, hopper

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(launch.visible_arch() != "sm_90", reason="needs a GPU of compute capability 9.0"),
    pytest.mark.skipif(not launch.gpu_available(), reason="needs CuPy (pip install 'fireiron[cuda13]')"),
]

LENGTH = 60

small = MatMul.tile(32, 32).to(Block).epilog(RF, float32, Init.tile(16, 16).to(Warp).done(), Move.tile(16, 16).to(Warp).done())
small = small.split(32).load(A, SH, Move.coalesced_copy(4).done()).load(B, SH, Move.coalesced_copy(4).done())
small = small.tile(16, 16).to(Warp).split(16).unroll().load(A, RF, Move.done()).load(B, RF, Move.done()).tile(16, 8).unroll().done()

STRATEGIES = {
    "plain loads": small,
    "cp.async": hmma_ampere.strategy,
    "TMA, persistent": hopper.strategy,
    "TMA": hopper.strategy.with_(**dict(TILES[4])),
}


READY = ("TMA, persistent", "TMA")
"""Strategies whose producer loads by TMA: no kernel of the chain writes the second operands, so they may be loaded before the wait."""


def with_programmatic_launch(name, ready=()):
    return STRATEGIES[name].at(Tile).refine(ProgrammaticLaunch(ready))


@pytest.mark.parametrize("name", STRATEGIES)
def test_single_launch(name):
    check(with_programmatic_launch(name), float16_gemm(256, 264, 128))


@pytest.mark.parametrize("name", READY)
def test_single_launch_with_no_wait(name):
    """Loops with fewer iterations than stages, as many, and more."""
    for K in (64, 384, 1000):
        check(with_programmatic_launch(name, B), float16_gemm(256, 264, K))


def steps(name, size, ready=()):
    """A chain: each kernel multiplies the output of its predecessor by a permutation and overwrites its predecessor's input."""
    import cupy

    generator = np.random.default_rng(5)
    kernel = with_programmatic_launch(name, ready)(float16_gemm(size, size, size)).compile()
    first = cupy.asarray(generator.integers(-1000, 1000, (size, size)).astype(np.float16))
    orders = [generator.permutation(size) for _ in range(3)]
    factors = [cupy.asarray(np.eye(size, dtype=np.float16)[order]) for order in orders]
    pair = [cupy.empty((size, size), np.float16) for _ in range(2)]
    launches, source = [], first
    for step in range(LENGTH):
        launches.append(kernel.prepare(source, factors[step % 3], out=pair[step % 2]))
        source = pair[step % 2]
    expected = first
    for step in range(LENGTH):
        expected = expected[:, cupy.asarray(np.argsort(orders[step % 3]))]
    return launches, pair, expected


@pytest.mark.parametrize("size", [128, 512, 1024])
@pytest.mark.parametrize("name", STRATEGIES)
def test_each_kernel_reads_the_output_of_its_predecessor(name, size):
    """Also, no kernel overwrites what its predecessor still reads: two arrays are written alternately, and the result is exact."""
    require_exact(*steps(name, size))


@pytest.mark.parametrize("size", [128, 512, 1024])
@pytest.mark.parametrize("name", READY)
def test_chain_with_no_wait_operands(name, size):
    """They are loaded before the preceding kernel exits, and its output afterwards. Length 128 has fewer iterations than stages."""
    launches, pair, expected = steps(name, size, B)
    assert making.effect_of(with_programmatic_launch(name, B)(float16_gemm(size, size, size)).program("sm_90a").ir, "ready") == ("B",)
    require_exact(launches, pair, expected)


def require_exact(launches, pair, expected):
    """Check the result of the chain, ten times."""
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    for _ in range(10):
        for array in pair:
            array.fill(np.nan)
        cupy.cuda.Device().synchronize()
        for start in launches:
            start(stream=stream)
        stream.synchronize()
        cupy.testing.assert_array_equal(pair[(LENGTH - 1) % 2], expected)


@pytest.mark.parametrize("name", STRATEGIES)
def test_cuda_graph_keeps_programmatic_launch(name):
    import cupy

    launches, pair, expected = steps(name, 256)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        stream.begin_capture()
        for start in launches:
            start(stream=stream)
        graph = stream.end_capture()
    for _ in range(10):
        for array in pair:
            array.fill(np.nan)
        cupy.cuda.Device().synchronize()
        graph.launch(stream)
        stream.synchronize()
        cupy.testing.assert_array_equal(pair[(LENGTH - 1) % 2], expected)


def test_mixed_with_ordinary_launches():
    """A kernel with programmatic launch after an ordinary one, and vice versa."""
    import cupy

    a, b = (cupy.asarray(np.random.default_rng(seed).integers(-3, 4, (512, 512)).astype(np.float16)) for seed in (1, 2))
    kernel = with_programmatic_launch("TMA")(float16_gemm(512, 512, 512)).compile()
    out, stream = cupy.empty((512, 512), np.float16), cupy.cuda.Stream(non_blocking=True)
    expected = (2 * a.astype(np.float32)) @ b.astype(np.float32) + 1
    for _ in range(50):
        with stream:
            twice = a * np.float16(2)
            kernel(twice, b, out=out, stream=stream)
            out += np.float16(1)
        stream.synchronize()
        assert bool((out == expected.astype(np.float16)).all())
