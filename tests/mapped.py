"""A hand-made kernel with TMA loads: IR in which a copy has a tensor map, and the text written by hand."""

import types

import attrs
import making

from fireiron import *
from fireiron.gpu.kernel import CompiledKernel
from fireiron.ir import edited

M, N = sym("M"), sym("N", multiple_of=8)
COPY = Move.tile(64, 64).to(Block).tile(8, 8).to(Thread).tile(1, 1).done()
MAP = making.tensor_map("src_map", "src", (1, 0), (64, 64), 128)

TEXT = """
#include <cuda_fp16.h>
struct __align__(64) Map { unsigned long long words[16]; };
extern "C" __global__ void __launch_bounds__(64) move(const __grid_constant__ Map src_map, __half *dst, const int M, const int N)
{
  __shared__ __align__(1024) __half tile[64 * 64];
  __shared__ unsigned long long full;
  const unsigned barrier = __cvta_generic_to_shared(&full), start = __cvta_generic_to_shared(tile);
  const int across = (N + 63) / 64, m = blockIdx.x / across * 64, n = blockIdx.x % across * 64;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;" :: "r"(barrier) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(start), "l"(&src_map), "r"(n), "r"(m), "r"(barrier) : "memory");
  }
  __syncthreads();
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(barrier) : "memory");
  for (int place = threadIdx.x; place < 64 * 64; place += 64) {
    const int row = place / 64, column = place % 64;
    if (m + row < M && n + column < N)
      dst[(long long)(m + row) * N + n + column] = tile[row * 64 + (column / 8 ^ row % 8) * 8 + column % 8];
  }
}
"""
"""Copies `src` tile by tile: M and N are those of `dst`, so a larger `dst` shows elements past the edge."""

MAIN = r"""
#include <cstdio>
#include <cstring>
#include <vector>
#include "copy.h"
#include "copy_driver.h"
int main()
{
  const int M = 100, N = 96, ld = 104;
  std::vector<unsigned short> from(M * ld), to(M * N);
  for (int place = 0; place < M * ld; ++place) from[place] = place % 65521;
  void *src, *dst;
  if (cudaMalloc(&src, 2 * M * ld) != cudaSuccess || cudaMalloc(&dst, 2 * M * N) != cudaSuccess) return 1;
  cudaMemcpy(src, from.data(), 2 * M * ld, cudaMemcpyHostToDevice);
  copy_driver loaded;
  if (copy_driver_load_file(&loaded, "copy.cubin") != CUDA_SUCCESS) return 2;
  for (int way = 0; way < 2; ++way) {
    cudaMemset(dst, 255, 2 * M * N);
    int code = way == 0 ? (int)copy_launch(src, dst, M, N, ld, nullptr)
                        : (int)copy_driver_launch(&loaded, (CUdeviceptr)src, (CUdeviceptr)dst, M, N, ld, nullptr);
    if (code || cudaMemcpy(to.data(), dst, 2 * M * N, cudaMemcpyDeviceToHost) != cudaSuccess) return 3 + way;
    for (int m = 0; m < M; ++m)
      if (std::memcmp(&to[m * N], &from[m * ld], 2 * N)) return 5 + way;
  }
  if (copy_check(src, dst, M, N, 100) == nullptr || copy_launch(src, dst, M, N, 100, nullptr) != cudaErrorInvalidValue) return 7;
  std::puts("copied");
  return 0;
}
"""
"""Runs both launchers of an export named `copy`, whose rows are padded."""


def exported_copy(folder, monkeypatch, name="copy"):
    """An export of the hand-written text, with a run-time leading dimension."""
    text = TEXT.replace("const int N)", "const int N, const int ld)")
    monkeypatch.setattr("fireiron.cuda.emit", lambda kernel: text.replace(" move(", f" {kernel.name}("))
    return export(copying(M, sym("N"), src=RowMajor(ld=sym("ld"))), folder, name)


def copying(rows=M, columns=N, dtype=float16, maps=(MAP,), **layouts):
    """A program that copies a matrix, whose statement has these tensor maps, one after the other."""
    spec = Move(rows, columns, dtype=dtype, **{"src": RowMajor, "dst": RowMajor, **layouts})(GL, GL)(Kernel)
    program = COPY(spec).program("sm_90a")
    body = [one for each in maps for one in edited(program.ir.body, lambda statement, each=each: attrs.evolve(statement, tensor_map=each))]
    program.__dict__["ir"] = attrs.evolve(program.ir, body=tuple(body))
    return program


def kernel_of(program, cubin=b"\x7fELF"):
    """The kernel of a program, with machine code that was made elsewhere, or is simulated."""
    kernel = CompiledKernel(program)
    kernel.__dict__["compiled"] = types.SimpleNamespace(cubin=cubin)
    return kernel
