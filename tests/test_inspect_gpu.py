"""On a GPU: the driver and Fireiron agree about a kernel: registers, shared memory, and blocks per SM."""

import attrs
import pytest
from problems import NAMES, library

from fireiron import *
from fireiron.check.resources import occupancy
from fireiron.gpu import launch
from fireiron.gpu.kernel import CompiledKernel
from fireiron.gpu.toolchain import compile_cuda
from fireiron.values.machine import as_architecture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not launch.gpu_available(), reason="needs a CUDA GPU and CuPy (pip install 'fireiron[cuda13]')"),
]

NEEDY = """extern "C" __global__ void k(float* a, int n) {
  extern __shared__ float shared[];
  float sums[COUNT];
  for (int i = 0; i < COUNT; ++i) sums[i] = a[i * 64 + threadIdx.x];
  for (int round = 0; round < n; ++round)
    for (int i = 0; i < COUNT; ++i) sums[i] = fmaf(sums[(i + 1) % COUNT], sums[i], shared[round]);
  for (int i = 0; i < COUNT; ++i) a[i * 64 + threadIdx.x] = sums[i];
}
"""
THREADS = (32, 33, 64, 96, 128, 160, 192, 256, 288, 384, 512, 640, 768, 1024)
SHARED = (0, 1, 1000, 1024, 4000, 16 * 1024, 20000, 48 * 1024, 57 * 1024, 75 * 1024, 99 * 1024)


def loaded(cubin, name, dynamic):
    """A driver function that may use the given amount of dynamic shared memory."""
    import cupy

    module = cupy.cuda.Module()
    module.load(cubin)
    function = module.get_function(name)
    cupy.cuda.driver.funcSetAttribute(function.ptr, cupy.cuda.driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic)
    return function


def driver_blocks(function, threads, dynamic):
    import cupy

    return cupy.cuda.driver.occupancyMaxActiveBlocksPerMultiprocessor(function.ptr, threads, dynamic)


@pytest.mark.parametrize("name", NAMES)
def test_every_strategy(name):
    import cupy

    module = library(name)
    kernel = module.strategy(module.spec(512, 512, 512)).compile()
    used = kernel.resources
    function = loaded(kernel.asm["cubin"], kernel.ir.name, used.dynamic_shared_bytes)
    driver = cupy.cuda.driver
    assert driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_NUM_REGS, function.ptr) == used.registers
    static = driver.funcGetAttribute(driver.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, function.ptr)
    assert static + used.dynamic_shared_bytes == used.shared_bytes
    assert driver_blocks(function, kernel.ir.threads, used.dynamic_shared_bytes) == kernel.occupancy.blocks >= 1


@pytest.mark.parametrize("most", [16, 24, 32, 40, 48, 56, 64, 72, 80, 96, 104, 128, 144, 168, 200, 232, 255])
def test_every_shape(most):
    """All combinations of registers, threads and shared memory of a block."""
    arch = as_architecture(launch.device_arch())
    module = library("listing_2")
    plain = CompiledKernel(module.strategy(module.spec(128, 128, 128)).program(arch)).ir
    options = (f"--maxrregcount={most}", f"-DCOUNT={most}")
    compiled = compile_cuda(NEEDY, arch.name, options=options, newest=launch.driver_version(), werror=False)
    registers = compiled.resources["k"].registers
    assert registers > most - 24, "the kernel needs what it may take"
    function = loaded(compiled.cubin, "k", SHARED[-1])
    for threads in THREADS:
        for shared in SHARED:
            ours = occupancy(attrs.evolve(plain, threads=threads, shared_bytes=shared), registers)
            assert ours.blocks == driver_blocks(function, threads, shared), (threads, registers, shared, ours)
