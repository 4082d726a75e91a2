"""Exports on a GPU: C++ programs, built by nvcc with the exported files, compare with their own loops, bit by bit."""

import ctypes
import re
import subprocess
from pathlib import Path

import numpy as np
import outputs
import pytest
from exports import CASES, built, cuda_headers, main_text, nvcc

from fireiron import *
from fireiron.gpu import launch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
    pytest.mark.skipif(nvcc() is None or cuda_headers() is None, reason="needs nvcc and the headers of the CUDA toolkit"),
]


def driver_library():
    """The driver's library on this machine, which may lack the name that linkers search."""
    ctypes.CDLL("libcuda.so.1")
    return re.search(r"\S*/libcuda\.so\S*", Path("/proc/self/maps").read_text())[0]


def run(name, case, arch, folder):
    """Build the program with both launchers and run it."""
    exported = export(case.program(arch), folder, name, newest=launch.driver_version())
    built(*exported.build["object"].split(), folder=folder)
    built("cc", "-O2", "-I", cuda_headers(), "-c", f"{name}_driver.c", "-o", "driver.o", folder=folder)
    (folder / "main.cpp").write_text(main_text(name, case, arch))
    built(nvcc(), "-std=c++17", "-DDRIVER", "main.cpp", f"{name}.o", "driver.o", "-Xlinker", driver_library(), "-o", "main", folder=folder)
    return subprocess.run([folder / "main", "gpu", f"{name}.cubin"], cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize("name", CASES)
def test_program(tmp_path, name):
    result = run(name, CASES[name], launch.device_arch(), tmp_path)
    assert (result.stdout, result.returncode) == ("results ok\n", 0), result.stderr


def test_wrong_target(tmp_path):
    """A library for another GPU reports this; nothing crashes, nothing is silently skipped."""
    if launch.device_arch() == "sm_120":
        pytest.skip("the GPU is the one that this test takes for another")
    result = run("floats", CASES["floats"], "sm_120", tmp_path)
    assert result.returncode == 1 and "no kernel image" in result.stdout


def test_several_outputs(tmp_path):
    """The shared library, loaded here: each output is separate; overlapping ones are refused and nothing is written."""
    import cupy

    bound = outputs.by_elements(outputs.cross(sym("M"), 50))
    exported = export(bound, tmp_path, "cross", arch=launch.device_arch(), cubin=False, newest=launch.driver_version())
    built(*exported.build["shared library"].split(), folder=tmp_path)
    launches = ctypes.CDLL(str(tmp_path / "libcross.so")).cross_launch
    launches.argtypes = [*(ctypes.c_void_p,) * 5, ctypes.c_int, ctypes.c_void_p]
    inputs = outputs.drawn(bound.spec, {"M": 41})
    right = bound.spec.reference(*inputs.values())
    on_gpu = [cupy.asarray(one, order="F" if one.flags.fnc else "C") for one in inputs.values()]
    outs = [cupy.full_like(cupy.asarray(one), 77, order=order) for one, order in zip(right, "FCC", strict=True)]
    total, apart, transposed = (one.data.ptr for one in outs)
    a, b = (one.data.ptr for one in on_gpu)
    for wrong in ((total, total, transposed), (total, apart, apart), (a, apart, transposed), (total, apart, b)):
        assert launches(a, b, *wrong, 41, None) == 1
    assert all((one == 77).all() for one in outs)
    assert launches(a, b, total, apart, transposed, 41, None) == 0
    cupy.cuda.Device().synchronize()
    for result, other in zip(outs, right, strict=True):
        np.testing.assert_array_equal(cupy.asnumpy(result), other)
