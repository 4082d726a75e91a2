"""Tensor maps at launches and in exports: encoding, kernel arguments, and refusals."""

import ctypes
import sys
import threading

import fake_gpu
import making
import pytest
from exports import built, cuda_headers, nvcc
from fake_gpu import FakeGpu
from mapped import MAIN, MAP, copying, exported_copy, kernel_of
from problems import library
from test_export import CC, CUDA_H, STRICT, needs_cc, needs_nvcc

from fireiron import *
from fireiron.gpu import launch, maps
from fireiron.gpu.maps import MapForm
from fireiron.strategies import hopper
from fireiron.values.machine import DType

torch = fake_gpu.torch


@pytest.fixture
def gpu(monkeypatch):
    gpu = FakeGpu()
    takes(gpu, 128, 8, 4, 4)
    monkeypatch.setitem(sys.modules, "cupy", gpu.cupy)
    monkeypatch.setattr(launch, "_driver", lambda: gpu)
    monkeypatch.setattr(launch, "_parameter_sizes", lambda function: gpu.sizes)
    maps.encoded.cache_clear()
    yield gpu
    maps.encoded.cache_clear()


@pytest.fixture(scope="module")
def program():
    return copying()


def takes(gpu, *sizes):
    """Bytes of the kernel's parameters."""
    gpu.sizes, gpu.parameters = sizes, len(sizes)


def float16_array(gpu, *shape, **options):
    return gpu.array(shape, "float16", **options)


def form(**changes):
    fields = {"name": "A", "dtype": float16, "extents": (96, 100), "strides": (192,), "box": (64, 64), "span": 128}
    return MapForm(**{**fields, **changes})


def values(gpu):
    """The arguments of each launch: for a map its first word, which is its address."""
    return [step[-1] for step in gpu.launches]


# ---------------------------------------------------------------------------------------------- kernel arguments


def test_a_kernel_gets_the_map_instead_of_the_pointer(gpu, program):
    src, dst = float16_array(gpu, 100, 96), float16_array(gpu, 100, 96)
    kernel = kernel_of(program)
    assert kernel(src, out=dst) is dst
    assert values(gpu) == [[src.data.ptr, dst.data.ptr, 100, 96]]
    none_128_zeros = (0, 3, 2, 0)  # not interleaved, 128-byte swizzle, 128-byte L2 promotion, zeros out of bounds
    assert gpu.maps == [(6, src.data.ptr, (96, 100), (192,), (64, 64), none_128_zeros)]


def test_a_buffer_that_is_accessed_both_ways_has_both(gpu):
    """Its maps first, each once, then the pointer."""
    other = making.tensor_map("src_tall", "src", (1, 0), (64, 128), 128)
    program = copying(maps=(MAP, other, None, MAP))
    takes(gpu, 128, 128, 8, 8, 4, 4)
    src, dst = float16_array(gpu, 100, 96), float16_array(gpu, 100, 96)
    kernel_of(program)(src, out=dst)
    assert values(gpu) == [[src.data.ptr, src.data.ptr, src.data.ptr, dst.data.ptr, 100, 96]]
    assert [asked[4] for asked in gpu.maps] == [(64, 64), (64, 128)]


def test_a_map_of_the_output(gpu):
    program = copying(maps=(making.tensor_map("dst_map", "dst", (1, 0), (64, 64), 128),))
    takes(gpu, 8, 128, 4, 4)
    src, dst = float16_array(gpu, 100, 96), float16_array(gpu, 100, 96)
    kernel_of(program)(src, out=dst)
    assert values(gpu) == [[src.data.ptr, dst.data.ptr, 100, 96]] and gpu.maps[0][1] == dst.data.ptr


def test_reciprocals_follow_the_sizes(gpu):
    """64 bits each, for calls and for prepared launches."""
    chosen = dict(hopper.defaults(4096, 4096, 4096)[0])
    program = hopper.strategy.with_(**chosen)(hopper.spec(*(sym(name, multiple_of=8) for name in "MNK"))).program("sm_90a")
    takes(gpu, 128, 128, 128, 4, 4, 4, 8, 8)
    a, b, c = float16_array(gpu, 1000, 64), float16_array(gpu, 64, 520), float16_array(gpu, 1000, 520)
    kernel = kernel_of(program)
    kernel(a, b, out=c)
    kernel.prepare(a, b, out=c)()
    sizes = {"M": 1000, "N": 520, "K": 64}
    given = [one.data.ptr for one in (a, b, c)] + [sizes[var.name] for var in program.ir.symbols]
    # 3 columns and groups of 4 rows, 4 of the 8 rows in the last
    assert values(gpu) == [[*given, -(-(1 << 63) // 12), 1 << 61]] * 2
    takes(gpu, 128, 128, 128, 4, 4, 4, 4, 4)
    with pytest.raises(LaunchError, match="its parameter has 4 bytes, the argument 8"):
        kernel_of(program)(a, b, out=c)


def test_the_parameters_of_the_machine_code_are_checked(gpu, program):
    """Kernel and launcher must agree on which parameters are maps."""
    takes(gpu, 8, 8, 4, 4)
    with pytest.raises(LaunchError, match="its parameter has 8 bytes, the argument 128"):
        kernel_of(program)(float16_array(gpu, 100, 96), out=float16_array(gpu, 100, 96))


def test_column_major_arrays_are_contiguous_along_the_first_dimension(gpu):
    program = copying(104, 96, src=ColMajor(ld=112), maps=(making.tensor_map("src_map", "src", (0, 1), (32, 96), 64),))
    takes(gpu, 128, 8)
    src, dst = float16_array(gpu, 104, 96, order="F", ld=112), float16_array(gpu, 104, 96)
    kernel_of(program)(src, out=dst)
    assert gpu.maps == [(6, src.data.ptr, (104, 96), (224,), (32, 96), (0, 2, 2, 0))]


def test_one_row_has_no_stride(gpu):
    """If no element is a stride away, the array's own stride, 8 bytes here, need not be valid for TMA."""
    program = copying(1, sym("K", multiple_of=4))
    takes(gpu, 128, 8, 4)
    kernel_of(program)(float16_array(gpu, 1, 4), out=float16_array(gpu, 1, 4))
    assert gpu.maps[0][2:4] == ((4, 1), (16,))
    kernel_of(program)(float16_array(gpu, 1, 12), out=float16_array(gpu, 1, 12))
    assert gpu.maps[1][2:4] == ((12, 1), (32,)), "no shorter than the row"


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("dtype", "kind", "box"),
    [
        (float16, 6, (64, 8)),
        (bfloat16, 9, (64, 8)),
        (float32, 7, (32, 8)),
        (tf32, 7, (32, 8)),
        (float64, 8, (16, 8)),
        (int32, 3, (32, 8)),
        (int8, 0, (128, 8)),
        (float8_e4m3, 0, (128, 8)),
        (DType("bits16", 16, "int", "unsigned short", "uint16"), 1, (64, 8)),
    ],
)
def test_element_types(gpu, dtype, kind, box):
    form(dtype=dtype, box=box, strides=(1024,)).encode(4096)
    assert gpu.maps == [(kind, 4096, (96, 100), (1024,), box, (0, 3, 2, 0))]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("span", "swizzle"), [(16, 0), (32, 1), (64, 2), (128, 3)])
def test_swizzles(gpu, span, swizzle):
    form(box=(8, 64), span=span).encode(4096)
    assert gpu.maps[0][-1] == (0, swizzle, 2, 0)


def test_without_a_swizzle_a_box_is_as_wide_as_any(gpu):
    form(box=(256, 256), span=16).encode(4096)
    assert gpu.maps[0][4] == (256, 256)


def test_memory_layout_of_a_map(gpu):
    """128 bytes aligned to 64, which a launcher takes by value."""
    first, second = form().encode(4096), form().encode(8192)
    assert first.address % 64 == second.address % 64 == 0 and abs(first.address - second.address) >= 128
    assert bytes(first.value) == ctypes.string_at(first.address, 128) and len(bytes(first.value)) == 128
    assert first.value.tobytes()[:8] == (4096).to_bytes(8, "little")


def test_a_launcher_takes_a_map_by_value(gpu):
    given = []
    launcher = launch.Launcher("k", 0, (128, 4), lambda *call: given.append(call), gpu.cupy.ndarray)
    encoded = form().encode(4096)
    launcher(1, 64, (encoded, 3))
    assert given[0][2][0] == encoded.value and given[0][2][0].nbytes == 128
    with pytest.raises(LaunchError, match="its parameter has 4 bytes, the argument 128"):
        launcher(1, 64, (encoded, encoded))


# ---------------------------------------------------------------------------------------------- when maps are encoded


def test_the_second_launch_encodes_nothing(gpu, program):
    kernel = kernel_of(program)
    first, second = [(float16_array(gpu, 100, 96), float16_array(gpu, 100, 96)) for _ in range(2)]
    for src, dst in (first, second, first, second):
        kernel(src, out=dst)
    assert [asked[1] for asked in gpu.maps] == [first[0].data.ptr, second[0].data.ptr]
    assert values(gpu)[2:] == values(gpu)[:2]


def test_kernels_share_the_maps_of_an_array(gpu, program):
    src, dst = float16_array(gpu, 100, 96), float16_array(gpu, 100, 96)
    for _ in range(2):
        kernel_of(program)(src, out=dst)
    assert len(gpu.launches) == 2 and len(gpu.maps) == 1


def test_another_shape_at_the_same_address_is_another_map(gpu, program):
    room = fake_gpu.memory(100 * 96 * 2)
    kernel = kernel_of(program)
    for shape in ((100, 96), (96, 96), (100, 88), (100, 96)):
        kernel(gpu.cupy.ndarray(shape, "float16", room), out=float16_array(gpu, *shape))
    assert [asked[1:4] for asked in gpu.maps] == [
        (room.ctypes.data, (96, 100), (192,)),
        (room.ctypes.data, (96, 96), (192,)),
        (room.ctypes.data, (88, 100), (176,)),
    ]


def test_the_number_of_cached_maps_is_bounded(gpu):
    assert maps.encoded.cache_parameters()["maxsize"] == maps.KEPT
    tensor_form = form()
    for number in range(1, maps.KEPT + 10):
        tensor_form.encode(16 * number)
        tensor_form.encode(16)
    assert maps.encoded.cache_info().currsize == maps.KEPT
    before = len(gpu.maps)
    tensor_form.encode(16)  # the most recently used one
    tensor_form.encode(32)  # the least recently used one
    assert [asked[1] for asked in gpu.maps[before:]] == [32]


def test_an_evicted_map_lives_as_long_as_its_launch(gpu, program):
    kernel, src, dst = kernel_of(program), float16_array(gpu, 100, 96), float16_array(gpu, 100, 96)
    prepared = kernel.prepare(src, out=dst)
    maps.encoded.cache_clear()
    for number in range(1, 200):
        form().encode(16 * number)  # would reuse the memory
    prepared()
    assert values(gpu) == [[src.data.ptr, dst.data.ptr, 100, 96]]


def test_a_prepared_launch_encodes_once(gpu, program):
    kernel, src, dst = kernel_of(program), float16_array(gpu, 100, 96), float16_array(gpu, 100, 96)
    prepared = kernel.prepare(src, out=dst)
    maps.encoded.cache_clear()
    for _ in range(3):
        assert prepared() is dst
    assert len(gpu.maps) == 1 and values(gpu) == [[src.data.ptr, dst.data.ptr, 100, 96]] * 3


def test_a_prepared_launch_follows_a_tensor_that_moves(gpu, torch, program):
    kernel = kernel_of(program)
    src, dst = (torch.Tensor((100, 96), (96, 1), torch.float16) for _ in range(2))
    prepared = kernel.prepare(src, out=dst)
    prepared()
    src.bytes = fake_gpu.memory(100 * 96 * 2)
    prepared()
    prepared()
    assert [asked[1] for asked in gpu.maps] == [values(gpu)[0][0], src.data_ptr()]
    assert values(gpu)[1:] == [[src.data_ptr(), dst.data_ptr(), 100, 96]] * 2


def test_a_prepared_launch_on_other_arrays(gpu, program):
    kernel, arrays = kernel_of(program), [float16_array(gpu, 100, 96) for _ in range(4)]
    prepared = kernel.prepare(arrays[0], out=arrays[1])
    prepared(arrays[2], out=arrays[3])
    prepared()
    assert [given[:2] for given in values(gpu)] == [[arrays[n].data.ptr, arrays[n + 1].data.ptr] for n in (2, 0)]


def test_threads_launch_at_once(gpu, program):
    """Each launch uses the map of its array."""
    kernel, pairs = kernel_of(program), [(float16_array(gpu, 100, 96), float16_array(gpu, 100, 96)) for _ in range(6)]
    failures = []

    def work(pair):
        try:
            for _ in range(100):
                kernel(pair[0], out=pair[1])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(pair,)) for pair in pairs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and len(gpu.launches) == 600
    assert sorted(set(map(tuple, values(gpu)))) == sorted((src.data.ptr, dst.data.ptr, 100, 96) for src, dst in pairs)


# ---------------------------------------------------------------------------------------------- refusals


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"strides": (200,)}, "which does not support this stride between rows\n  got     '200 bytes'\n  legal   multiples of 16"),
        ({"strides": (2**40,)}, "below 2^40"),
        ({"strides": (0,)}, "got     '0 bytes'"),
        ({"extents": (2**32 + 8, 2)}, "A is too long for TMA"),
        ({"extents": (8,) * 6, "strides": (16,) * 5, "box": (8,) * 6}, "6 dimensions"),
        ({"extents": (), "strides": (), "box": ()}, "0 dimensions"),
        ({"box": (64, 257)}, "TMA cannot copy 64 x 257 elements of A\n  got     257\n  legal   1 to 256"),
        ({"box": (64, 0)}, "1 to 256"),
        ({"box": (64,)}, "got     '1 dimensions'\n  legal   2"),
        ({"box": (4, 64)}, "rows of 8 bytes"),
        ({"box": (72, 64)}, "got     'rows of 144 bytes'\n  legal   at most the span, 128"),
        ({"box": (64, 64), "span": 64}, "at most the span, 64"),
        ({"span": 256}, "legal   16 32 64 128"),
    ],
)
def test_arrays_unsupported_by_tma(gpu, changes, message):
    with pytest.raises(LaunchError) as caught:
        form(**changes)
    assert message in str(caught.value)


def test_the_least_and_the_most_that_tma_supports(gpu):
    form(extents=(2**32, 1), strides=(2**40 - 16,), box=(256, 256), span=16).encode(16)
    form(extents=(8,) * 5, strides=(16,) * 4, box=(8,) * 5).encode(16)
    form(extents=(1,), strides=(), box=(8,), span=32).encode(16)
    form(extents=(8, 8), strides=(16,), box=(8, 1)).encode(16)
    assert len(gpu.maps) == 4


def test_arrays_that_tma_does_not_support(gpu):
    """Messages use the caller's name of the array."""
    program = copying(100, 100)
    with pytest.raises(LaunchError, match=r"src is read or written by TMA, which does not support this stride between rows") as caught:
        kernel_of(program)(float16_array(gpu, 100, 100), out=float16_array(gpu, 100, 100))
    assert "200 bytes" in str(caught.value) and "RowMajor(ld=...)" in caught.value.hint
    assert not gpu.launches and not gpu.maps


def test_addresses_that_tma_does_not_support(gpu):
    with pytest.raises(LaunchError, match="A is read or written by TMA, and starts at an address that is not a multiple of 16") as caught:
        form().encode(4104)
    assert caught.value.got == "0x1008, 8 bytes after a multiple" and "fresh array" in caught.value.hint
    assert not gpu.maps


def test_an_old_driver(gpu, monkeypatch):
    monkeypatch.setattr(launch, "_driver", lambda: object())
    with pytest.raises(LaunchError, match="does not support tensor maps"):
        form().encode(4096)


def test_a_driver_that_refuses(gpu):
    gpu.map_status = 1
    with pytest.raises(LaunchError, match=r"refuses a tensor map of \(96, 100\) elements at 0x1000") as caught:
        form().encode(4096)
    assert caught.value.got == "CUDA error 1; strides (192,) bytes, box (64, 64), swizzle 3"
    gpu.map_status = 0
    assert form().encode(4096).address  # a refusal is not cached


# ---------------------------------------------------------------------------------------------- exports

MAP_H = """
#include <stdint.h>
typedef uint64_t cuuint64_t;
typedef uint32_t cuuint32_t;
typedef struct { cuuint64_t opaque[16]; } CUtensorMap;
typedef enum { CU_TENSOR_MAP_DATA_TYPE_FLOAT16 = 6, CU_TENSOR_MAP_DATA_TYPE_UINT8 = 0 } CUtensorMapDataType;
typedef enum { CU_TENSOR_MAP_INTERLEAVE_NONE } CUtensorMapInterleave;
typedef enum { CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_128B = 3 } CUtensorMapSwizzle;
typedef enum { CU_TENSOR_MAP_L2_PROMOTION_L2_128B = 2 } CUtensorMapL2promotion;
typedef enum { CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE } CUtensorMapFloatOOBfill;
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType kind, cuuint32_t rank, void *address, const cuuint64_t *extents,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);
#endif
"""
"""The additional parts of the driver's header that launchers with maps need."""

MAIN_C = """
#include <stdio.h>
#include <cuda.h>
#include "gemm_driver.h"
CUresult cuModuleLoadData(CUmodule *module, const void *image) { (void)module; (void)image; return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *f, CUmodule m, const char *name) { (void)f; (void)m; (void)name; return CUDA_SUCCESS; }
CUresult cuModuleUnload(CUmodule module) { (void)module; return CUDA_SUCCESS; }
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType kind, cuuint32_t rank, void *address, const cuuint64_t *extents,
                                const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
  map->opaque[0] = (uintptr_t)address;
  printf("map %lu: %d %d %lx; %d %d; %d; %d %d; %d %d; %d %d %d %d\\n", (unsigned long)((uintptr_t)map % 64), (int)kind, (int)rank,
         (unsigned long)(uintptr_t)address, (int)extents[0], (int)extents[1], (int)strides[0], (int)box[0], (int)box[1], (int)steps[0],
         (int)steps[1], (int)interleave, (int)swizzle, (int)promotion, (int)fill);
  return (uintptr_t)address == 0x5000 ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra)
{
  (void)function; (void)stream; (void)extra; (void)gy; (void)gz; (void)by; (void)bz; (void)shared;
  printf("launch %u %u: %lx %llx %d %d %d\\n", gx, bx, (unsigned long)((CUtensorMap *)arguments[0])->opaque[0],
         *(CUdeviceptr *)arguments[1], *(int *)arguments[2], *(int *)arguments[3], *(int *)arguments[4]);
  return CUDA_SUCCESS;
}
static void launched(CUdeviceptr src, CUdeviceptr dst, int M, int N, int ld)
{
  static gemm_driver loaded;
  const char *why = gemm_driver_check(src, dst, M, N, ld);
  loaded.module = (CUmodule)&loaded;
  loaded.kernel = (CUfunction)&loaded;
  printf("%d %s\\n", (int)gemm_driver_launch(&loaded, src, dst, M, N, ld, NULL), why ? why : "served");
}
int main(void)
{
  launched(0x10000, 0x80000, 100, 96, 104);
  launched(0x10000, 0x80000, 100, 96, 100);
  launched(0x10000, 0x80000, 1, 4, 5);
  launched(0x10008, 0x80000, 100, 96, 104);
  launched(0x5000, 0x80000, 100, 96, 104);
  return 0;
}
"""


@needs_cc
def test_the_launcher_in_c_encodes_the_maps(tmp_path, monkeypatch):
    exported_copy(tmp_path, monkeypatch, "gemm")
    (tmp_path / "cuda.h").write_text(CUDA_H.replace("#endif\n", MAP_H))
    (tmp_path / "main.c").write_text(MAIN_C)
    built(CC, "-std=c99", *STRICT, "-I.", "gemm_driver.c", "main.c", "-o", "main", folder=tmp_path)
    assert built(tmp_path / "main", folder=tmp_path).stdout.splitlines() == [
        "map 0: 6 2 10000; 96 100; 208; 64 64; 1 1; 0 3 2 0", "launch 4 64: 10000 80000 100 96 104", "0 served",
        "1 required: the row stride of src is a multiple of 16 bytes (M == 1 or ld % 8 == 0)",
        "map 0: 6 2 10000; 4 1; 16; 64 64; 1 1; 0 3 2 0", "launch 1 64: 10000 80000 1 4 5", "0 served",
        "1 the address of src is not a multiple of 16 bytes",
        "map 0: 6 2 5000; 96 100; 208; 64 64; 1 1; 0 3 2 0", "1 served",
    ]  # fmt: skip


def test_the_contract_describes_maps(tmp_path):
    header, source = (path.read_text() for path in export(copying(), tmp_path, "gemm", cubin=False).files)
    assert "copied by TMA in boxes of 64 x 64, swizzled in spans of 128 bytes; the launcher encodes the tensor map." in header
    assert "nvcc of CUDA 12.5 or newer" in header and "16 bytes apart" not in header  # N is a multiple of 8
    assert "{(void *)&maps[0], (void *)&dst, (void *)&M, (void *)&N}" in source
    plain, source = (path.read_text() for path in export(copying(maps=(None,)), tmp_path, "plain", cubin=False).files)
    assert "TMA" not in plain and "cuda.h" not in source and "{(void *)&src, (void *)&dst, (void *)&M, (void *)&N}" in source


def test_maps_at_an_address_of_bytes(tmp_path):
    """The address of an array is a multiple of 16 bytes, whatever its elements, if it has a map."""
    spec = {"dtype": int8, "maps": (making.tensor_map("src_map", "src", (1, 0), (64, 64), 16),)}
    header, source = (path.read_text() for path in export(copying(64, 48, **spec), tmp_path, "gemm", cubin=False).files)
    assert "#define GEMM_ALIGN_SRC 16" in header and "CU_TENSOR_MAP_DATA_TYPE_UINT8" in source and "CU_TENSOR_MAP_SWIZZLE_NONE" in source
    assert "extents[] = {48, 64};" in source and "strides[] = {48};" in source


def test_arrays_unsupported_by_tma_are_not_exported(tmp_path):
    with pytest.raises(LaunchError, match="no sizes are legal for the kernel: the row stride of src is a multiple of 16 bytes"):
        export(copying(100, 100), tmp_path, "gemm", cubin=False)
    with pytest.raises(LaunchError, match="TMA cannot copy 64 x 300 elements of src"):
        export(copying(maps=(making.tensor_map("src_map", "src", (1, 0), (64, 300), 128),)), tmp_path, "gemm", cubin=False)


@needs_nvcc
def test_code_for_one_gpu_is_built_for_it_alone(tmp_path):
    """Code for sm_90, which nvcc would add for `-arch=sm_90a`, has no wgmma."""
    hopper = library("hopper")
    exported = export(hopper.strategy(hopper.spec(512, 512, 512)), tmp_path, "gemm", arch="sm_90a", cubin=False)
    source = exported.files[1].read_text()
    assert "wgmma" in source and "{(void *)&maps[0], (void *)&maps[1], (void *)&maps[2]}" in source
    assert exported.build["object"] == "nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -c gemm.cu -o gemm.o"
    built(*exported.build["object"].split(), "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", folder=tmp_path)


@needs_nvcc
def test_exports_compile_and_need_no_driver_to_link(tmp_path, monkeypatch):
    exported = exported_copy(tmp_path, monkeypatch)
    strict = ("-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra")
    built(*exported.build["object"].replace("-O3", "-O1").split(), *strict, folder=tmp_path)
    built(CC, "-std=c99", *STRICT, "-isystem", cuda_headers(), "-c", "copy_driver.c", "-o", "driver.o", folder=tmp_path)
    (tmp_path / "main.cpp").write_text('#include "copy.h"\nint main() { return copy_check(0, 0, 1, 8, 8) == 0; }\n')
    built(nvcc(), "-std=c++17", "main.cpp", "copy.o", "-o", "main", folder=tmp_path)
    built(tmp_path / "main", folder=tmp_path)
    (tmp_path / "run.cpp").write_text(MAIN)
    built(nvcc(), "-std=c++17", *strict, "-c", "run.cpp", "-o", "run.o", folder=tmp_path)


def test_element_types_of_tensor_maps():
    """The numbers of CUtensorMapDataType in cuda.h; for types that it lacks, unsigned integers of the same size."""
    names = {float16: 6, float32: 7, tf32: 7, float64: 8, bfloat16: 9, int32: 3, int64: 5, int8: 0, float8_e4m3: 0, uint8: 0}
    assert {dtype: maps.kind_of(dtype) for dtype in names} == names
