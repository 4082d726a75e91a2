"""Tensor maps on a GPU with TMA: a hand-written kernel loads tiles with the maps of launches (oracle: NumPy)."""

import mapped
import numpy as np
import pytest
from exports import built, cuda_headers, nvcc
from mapped import MAIN, MAP, TEXT, copying, exported_copy

from fireiron import *
from fireiron.gpu import launch
from fireiron.gpu.maps import MapForm
from fireiron.gpu.toolchain import compile_cuda

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(launch.visible_arch() != "sm_90", reason="needs a GPU of compute capability 9.0"),
    pytest.mark.skipif(not launch.gpu_available(), reason="needs CuPy (pip install 'fireiron[cuda13]')"),
]


@pytest.fixture(scope="module")
def cubin():
    return compile_cuda(TEXT, "sm_90a", newest=launch.driver_version()).cubin


def random(*shape):
    import cupy

    return cupy.asarray(np.random.default_rng(7).standard_normal(shape).astype(np.float16))


@pytest.mark.parametrize("shape", [(64, 64), (100, 96), (1, 8), (200, 328)])
def test_calls_and_prepared_launches(cubin, shape):
    import cupy

    kernel = mapped.kernel_of(copying(), cubin)
    for src in (random(*shape), random(*shape) + 1):
        cupy.testing.assert_array_equal(kernel(src), src)
        dst = cupy.full(shape, np.nan, np.float16)
        prepared = kernel.prepare(src, out=dst)
        for _ in range(2):
            src += 1
            dst[...] = np.nan
            assert prepared() is dst
            cupy.testing.assert_array_equal(dst, src)


def test_a_graph_keeps_its_captured_map(cubin):
    """The driver copies a map when the launch is captured: nothing must be kept alive for the replay."""
    import cupy

    kernel, src, dst = mapped.kernel_of(copying(), cubin), random(100, 96), cupy.zeros((100, 96), np.float16)
    kernel(src, out=dst)
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.begin_capture()
        kernel(src, out=dst)
        graph = stream.end_capture()
        kernel(random(100, 96), out=cupy.empty_like(dst))
        dst[...] = 0
        graph.launch(stream)
        stream.synchronize()
    cupy.testing.assert_array_equal(dst, src)


def test_a_map_by_value_and_zeros_beyond_the_edge(cubin):
    """Into more than the array has: elements past the edge are zero."""
    import cupy

    src, dst = random(100, 96), cupy.full((128, 128), np.nan, np.float16)
    expected = np.zeros((128, 128), np.float16)
    expected[:100, :96] = src.get()
    launcher = launch.load(cubin, "move")
    assert launcher.parameters == (128, 8, 4, 4)
    encode = MapForm("src", float16, (96, 100), (192,), MAP.box, MAP.span).encode
    launcher(4, 64, (encode(src.data.ptr), dst, 128, 128))
    np.testing.assert_array_equal(dst.get(), expected)
    dst[...] = np.nan
    fixed = launcher.fixed(0, 4, 64, 2, (128, 128), parameters=[launch.Mapped(0, encode), 1, 2, 3])
    fixed((src.data.ptr, dst.data.ptr), 0)
    np.testing.assert_array_equal(dst.get(), expected)
    with pytest.raises(LaunchError, match="its parameter has 128 bytes, the argument 8"):
        launcher(4, 64, (src, dst, 128, 128))


@pytest.mark.parametrize(("span", "box"), [(128, (64, 64)), (64, (32, 64)), (16, (256, 256))])
def test_the_driver_accepts_what_the_checks_accept(span, box):
    src = random(1, 8)
    MapForm("A", float16, (2**32, 2**31), (2**40 - 16,), box, span).encode(src.data.ptr)
    MapForm("A", float8_e4m3, (8,) * 5, (16,) * 4, (16, 1, 2, 3, 256), span).encode(src.data.ptr + 16 * 7)
    MapForm("A", tf32, (1, 1), (16,), (4, 1), span).encode(src.data.ptr)


@pytest.mark.skipif(nvcc() is None, reason="needs nvcc")
def test_exported_launchers(tmp_path, monkeypatch):
    exported = exported_copy(tmp_path, monkeypatch)
    built(*exported.build["object"].split(), folder=tmp_path)
    (tmp_path / "run.cpp").write_text(MAIN)
    built("cc", "-O2", f"-I{cuda_headers()}", "-c", "copy_driver.c", "-o", "driver.o", folder=tmp_path)
    built(nvcc(), "-std=c++17", "run.cpp", "copy.o", "driver.o", "-lcuda", "-o", "run", folder=tmp_path)
    assert built(tmp_path / "run", folder=tmp_path).stdout == "copied\n"
