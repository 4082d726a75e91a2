"""Exported kernels that several tests build, and the C++ program that runs them: one per kernel, with a separate reference."""

import functools
import shutil
import subprocess
from pathlib import Path

import attrs
from problems import library

from fireiron import *
from fireiron.cuda import expression
from fireiron.export.unit import Unit

FLOAT16 = {"dtype": float16, "c_dtype": float32, "A": RowMajor, "B": RowMajor}
M, N, K, LDC = sym("M"), sym("N", multiple_of=8), sym("K", multiple_of=8), sym("ldc", multiple_of=4)


@attrs.frozen
class Case:
    """A kernel to export, from the library or not, with the values of its run-time sizes."""

    strategy: object
    spec: object
    sizes: dict = attrs.field(factory=dict, hash=False)

    def program(self, arch):
        strategy = library(self.strategy).strategy if isinstance(self.strategy, str) else self.strategy
        return strategy(self.spec).program(arch)


REPACKED = MatMul.repack(A).repack(B, order=ColMajor).tile(32, 64).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
"""Preceding copies for a GEMM that needs no alignment."""

CASES = {
    "static_halves": Case("hmma_ampere", library("hmma_ampere").spec(256, 128, 192)),
    "any_halves": Case("hmma_ampere", library("hmma_ampere").spec(M, N, K), {"M": 131, "N": 264, "K": 200}),
    "added": Case("split_k_blocks", library("split_k_blocks").spec(70, 64, 1000)),
    "added_padded": Case("split_k_blocks", MatMul(M, N, K, C=RowMajor(ld=LDC), **FLOAT16)(GL, GL, GL)(Kernel), {"M": 65, "N": 72, "K": 520, "ldc": 84}),
    "floats": Case("gemm_nn", library("gemm_nn").spec(130, 70, 33)),
    "padded": Case("gemm_nn", MatMul(60, 50, 40, A=ColMajor(ld=64), B=RowMajor(ld=52), C=ColMajor(ld=68))(GL, GL, GL)(Kernel)),
    "accumulated": Case("gemm_nn", MatMul(M, N, K, accumulate=True)(GL, GL, GL)(Kernel), {"M": 33, "N": 16, "K": 24}),
    "own_store": Case("maxwell", library("maxwell").spec(sym("M"), 256, sym("K")), {"M": 200, "K": 17}),
    "fragments": Case("wmma_simple", library("wmma_simple").spec(64, 128, 64)),
    "copied": Case(REPACKED, MatMul(65, 50, 33, dtype=float16, c_dtype=float32, A=RowMajor, B=RowMajor)(GL, GL, GL)(Kernel)),
    "any_copied": Case(REPACKED, MatMul(M, sym("N"), sym("K"), **FLOAT16)(GL, GL, GL)(Kernel), {"M": 65, "N": 50, "K": 33}),
    "integers": Case("naive", library("naive").spec(20, 30, 40, dtype=int32)),
}  # fmt: skip
"""By the name of the export."""


@functools.cache
def nvcc():
    """The CUDA compiler of this machine; None if there is none."""
    return shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")


@functools.cache
def cuda_headers():
    """The folder of the toolkit's headers; None if there is none."""
    if nvcc() is None:
        return None
    folder = Path(nvcc()).resolve().parent.parent
    folders = [path.parent for path in (folder / "include" / "cuda.h", *folder.glob("targets/*/include/cuda.h"), Path("/usr/local/cuda/include/cuda.h"))
             if path.exists()]  # fmt: skip
    return folders[0] if folders else None


def built(*command, folder):
    """Run a compiler in a folder; its diagnostics are those of the test."""
    result = subprocess.run([str(part) for part in command], cwd=folder, capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout}{result.stderr}"
    return result


def main_text(name, case, arch):
    """The C++ program that checks one kernel, on the GPU with the argument `gpu`."""
    unit = Unit.of(case.program(arch), name)
    kernel, copied = unit.kernel, bool(unit.temporaries)
    buffers = {buffer.name: buffer for buffer in unit.operand_parameters}
    at = {}
    for operand, buffer in buffers.items():
        first, second = (Var(dim) for dim in kernel.spec.uses[operand])
        at[operand] = f"[=](int {first}, int {second}) {{ return (size_t)({expression(buffer.storage.address((first, second)))}); }}"
    sizes = [symbol.name for symbol in kernel.symbols]
    values = {
        "NAME": name,
        "SIZES": " ".join(f"const int {size} = {case.sizes[size]};" for size in sizes),
        "EXTENTS": " ".join(f"const int rows_{dim} = {expression(kernel.spec.size(dim))};" for dim in kernel.spec.dims),
        "ALL_SIZES": "".join(f", {size}" for size in sizes) + ", scratch" * copied,
        "DRIVER_SIZES": "".join(f", {size}" for size in sizes) + ", (CUdeviceptr)scratch" * copied,
        "BAD_SIZES": "".join(", 0" for size in sizes) + ", scratch" * copied,
        "SCRATCH": "void *scratch = far + (3ull << 30);" * copied,
        "SCRATCH_REFUSALS": SCRATCH_REFUSALS.replace("@SIZES@", ", ".join(sizes)) * copied,
        "SCRATCH_GPU": f"CUDA(cudaMalloc(&scratch, {name}_scratch_bytes({', '.join(sizes)})));" * copied,
        "HAS_SIZES": "true" if sizes else "false",
        "ADDS": "1" if kernel.spec.accumulate == Const(1) else "0",
        "CU_STREAM": "CUstream",
        **{f"AT_{operand}": text for operand, text in at.items()},
        **{f"COUNT_{operand}": f"(size_t)({expression(buffer.elements)})" for operand, buffer in buffers.items()},
        **{f"TYPE_{operand}": buffer.dtype.cuda for operand, buffer in buffers.items()},
    }
    text = MAIN
    for key in (*(key for key in values if key.startswith("SCRATCH")), *sorted(values, key=len, reverse=True)):
        text = text.replace(f"@{key}@", values[key])
    return text


SCRATCH_REFUSALS = r"""
  EXPECT(@NAME@_scratch_bytes(@SIZES@) >= 2 * (65 * 40 + 50 * 40) && @NAME@_scratch_bytes(@SIZES@) % 256 == 0);
  void *const good = scratch;
  scratch = nullptr;
  EXPECT(std::strcmp(@NAME@_check(a_far, b_far, c_far@ALL_SIZES@), "scratch is NULL") == 0);
  scratch = static_cast<char *>(good) + 64;
  EXPECT(std::strcmp(@NAME@_check(a_far, b_far, c_far@ALL_SIZES@), "the address of scratch is not a multiple of 256 bytes") == 0);
  scratch = a_far;
  EXPECT(std::strcmp(@NAME@_check(a_far, b_far, c_far@ALL_SIZES@), "scratch overlaps A") == 0);
  scratch = reinterpret_cast<char *>(c_far) - 256;
  EXPECT(std::strcmp(@NAME@_check(a_far, b_far, c_far@ALL_SIZES@), "scratch overlaps C") == 0);
  scratch = good;
"""
"""Calls refused because of their scratch memory."""

MAIN = r"""
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>
#include <vector>

#include "@NAME@.h"
#ifdef DRIVER
#include "@NAME@_driver.h"
#endif

static int failures = 0;
#define EXPECT(condition) \
  do { if (!(condition)) { ++failures; std::printf("line %d: %s\n", __LINE__, #condition); } } while (0)
#define CUDA(call) \
  do { const cudaError_t code = (call); if (code != cudaSuccess) { std::printf("line %d: %s\n", __LINE__, cudaGetErrorString(code)); return 1; } } while (0)

template <class T> static T as(int value) { return static_cast<T>(static_cast<float>(value)); }

template <class T> static std::vector<T> numbers(size_t count, unsigned seed)
{
  std::vector<T> result(count);
  for (T &one : result) {
    seed = seed * 1664525u + 1013904223u;
    one = as<T>(static_cast<int>(seed >> 24) % 5 - 2);
  }
  return result;
}

int main(int argc, char **argv)
{
  @SIZES@
  @EXTENTS@
  const auto a_at = @AT_A@;
  const auto b_at = @AT_B@;
  const auto c_at = @AT_C@;
  using TA = @TYPE_A@;
  using TB = @TYPE_B@;
  using TC = @TYPE_C@;
  char *const far = reinterpret_cast<char *>(1ull << 40);
  TA *const a_far = reinterpret_cast<TA *>(far);
  TB *const b_far = reinterpret_cast<TB *>(far + (1ull << 30));
  TC *const c_far = reinterpret_cast<TC *>(far + (1ull << 31));
  @SCRATCH@

  // refusals: nothing is launched, so no GPU is needed
  EXPECT(@NAME@_check(a_far, b_far, c_far@ALL_SIZES@) == nullptr);
  EXPECT(std::strcmp(@NAME@_check(nullptr, b_far, c_far@ALL_SIZES@), "A is NULL") == 0);
  EXPECT(@NAME@_check(a_far, reinterpret_cast<TB *>(far + 8), c_far@ALL_SIZES@) != nullptr);
  EXPECT(std::strcmp(@NAME@_check(a_far, b_far, reinterpret_cast<TC *>(a_far)@ALL_SIZES@), "C overlaps A") == 0);
  EXPECT(std::strcmp(@NAME@_check(a_far, b_far, reinterpret_cast<TC *>(b_far)@ALL_SIZES@), "C overlaps B") == 0);
  EXPECT(@NAME@_launch(a_far, b_far, nullptr@ALL_SIZES@, nullptr) == cudaErrorInvalidValue);
  EXPECT(@NAME@_launch(a_far, b_far, reinterpret_cast<TC *>(far + 4)@ALL_SIZES@, nullptr) == cudaErrorInvalidValue);
  if (@HAS_SIZES@) {
    EXPECT(@NAME@_check(a_far, b_far, c_far@BAD_SIZES@) != nullptr || !@HAS_SIZES@);
    EXPECT(@NAME@_launch(a_far, b_far, c_far@BAD_SIZES@, nullptr) == cudaErrorInvalidValue || !@HAS_SIZES@);
  }
  @SCRATCH_REFUSALS@
  EXPECT(std::strncmp(@NAME@_version(), "fireiron ", 9) == 0);
  if (argc < 2) {
    std::printf(failures ? "failed\n" : "refusals ok\n");
    return failures != 0;
  }

  // results: small integers, so that every order of adding gives the same
  const std::vector<TA> a = numbers<TA>(@COUNT_A@, 1);
  const std::vector<TB> b = numbers<TB>(@COUNT_B@, 2);
  std::vector<TC> before(@COUNT_C@, as<TC>(77)), expected = before, got = before;
  for (int m = 0; m < rows_m; ++m)
    for (int n = 0; n < rows_n; ++n) {
      int sum = @ADDS@ ? 77 : 0;
      for (int k = 0; k < rows_k; ++k)
        sum += static_cast<int>(static_cast<float>(a[a_at(m, k)])) * static_cast<int>(static_cast<float>(b[b_at(k, n)]));
      expected[c_at(m, n)] = as<TC>(sum);
    }
  TA *a_gpu;
  TB *b_gpu;
  TC *c_gpu;
  const size_t bytes = got.size() * sizeof(TC);
  CUDA(cudaMalloc(&a_gpu, a.size() * sizeof(TA)));
  CUDA(cudaMalloc(&b_gpu, b.size() * sizeof(TB)));
  CUDA(cudaMalloc(&c_gpu, bytes));
  CUDA(cudaMemcpy(a_gpu, a.data(), a.size() * sizeof(TA), cudaMemcpyHostToDevice));
  CUDA(cudaMemcpy(b_gpu, b.data(), b.size() * sizeof(TB), cudaMemcpyHostToDevice));
  @SCRATCH_GPU@
  cudaStream_t stream;
  CUDA(cudaStreamCreate(&stream));
  const auto same = [&](const char *what) {
    if (cudaMemcpy(got.data(), c_gpu, bytes, cudaMemcpyDeviceToHost) != cudaSuccess || std::memcmp(got.data(), expected.data(), bytes) != 0) {
      ++failures;
      std::printf("%s: wrong result\n", what);
    }
    return cudaMemcpy(c_gpu, before.data(), bytes, cudaMemcpyHostToDevice);
  };
  CUDA(cudaMemcpy(c_gpu, before.data(), bytes, cudaMemcpyHostToDevice));

  CUDA(@NAME@_launch(a_gpu, b_gpu, c_gpu@ALL_SIZES@, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(same("launch"));

  EXPECT(@NAME@_launch(a_gpu, b_gpu, reinterpret_cast<TC *>(reinterpret_cast<char *>(c_gpu) + 4)@ALL_SIZES@, stream) == cudaErrorInvalidValue);
  EXPECT(@NAME@_launch(a_gpu, b_gpu, reinterpret_cast<TC *>(a_gpu)@ALL_SIZES@, stream) == cudaErrorInvalidValue);
  EXPECT(cudaGetLastError() == cudaSuccess);

  cudaGraph_t graph;
  cudaGraphExec_t ready;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  CUDA(@NAME@_launch(a_gpu, b_gpu, c_gpu@ALL_SIZES@, stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&ready, graph, 0));
  CUDA(cudaGraphLaunch(ready, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(same("graph"));

#ifdef DRIVER
  @NAME@_driver loaded;
  EXPECT(@NAME@_driver_load_file(&loaded, "no such file") == CUDA_ERROR_FILE_NOT_FOUND);
  EXPECT(@NAME@_driver_load_file(&loaded, argv[0]) == CUDA_ERROR_INVALID_IMAGE);
  EXPECT(@NAME@_driver_load_file(&loaded, argv[2]) == CUDA_SUCCESS);
  const CUdeviceptr pa = (CUdeviceptr)a_gpu, pb = (CUdeviceptr)b_gpu, pc = (CUdeviceptr)c_gpu;
  EXPECT(@NAME@_driver_launch(&loaded, pa, pb, pc + 4@DRIVER_SIZES@, (CUstream)stream) == CUDA_ERROR_INVALID_VALUE);
  EXPECT(@NAME@_driver_launch(&loaded, pa, pb, pc@DRIVER_SIZES@, (CUstream)stream) == CUDA_SUCCESS);
  CUDA(cudaStreamSynchronize(stream));
  CUDA(same("driver"));
  EXPECT(@NAME@_driver_unload(&loaded) == CUDA_SUCCESS);
#endif
  std::printf(failures ? "failed\n" : "results ok\n");
  return failures != 0;
}
"""
