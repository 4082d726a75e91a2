"""The compilers, and the parts of launching that need no GPU; the last tests run only with one."""

from __future__ import annotations

import os
import pickle
import types
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from attrs import frozen

from fireiron.errors import LaunchError
from fireiron.gpu import launch, toolchain
from fireiron.gpu.launch import Launcher, device_arch, driver_version, gpu_available, load
from fireiron.gpu.toolchain import Compiled, KernelResources, Toolchain, compile_cuda, toolchains

ARCHS = ("sm_52", "sm_70", "sm_75", "sm_80", "sm_90")

needs_nvrtc = pytest.mark.skipif(not toolchains(), reason="no NVRTC is installed (pip install 'fireiron[check]')")
needs_gpu = pytest.mark.skipif(not gpu_available(), reason="no GPU, or no CuPy")

SAXPY = """#include <cuda_fp16.h>
extern "C" __global__ void __launch_bounds__(128) saxpy(const __half* x, float* y, float a, int n) {
  __shared__ float tile[128];
  const int i = blockIdx.x * 128 + threadIdx.x;
  tile[threadIdx.x] = i < n ? __half2float(x[i]) : 0.0f;
  __syncthreads();
  if (i < n) y[i] += a * tile[threadIdx.x];
}
"""
STORE = 'extern "C" __global__ void store(float* a) {\n  a[threadIdx.x] = 1.0f;\n}\n'
UNUSED = 'extern "C" __global__ void k(float* a) {\n  int unused = 3;\n  a[threadIdx.x] = 1.0f;\n}\n'


def serving(arch: str) -> str:
    """`arch`; the test is skipped if no installed compiler supports it."""
    if not any(chain.serves(arch) for chain in toolchains()):
        pytest.skip(f"no installed NVRTC serves {arch}")
    return arch


def common() -> str:
    """An architecture that every CUDA 12 and 13 supports."""
    return serving("sm_80")


def refused(source: str, arch: str, **options: object) -> str:
    with pytest.raises(LaunchError) as caught:
        compile_cuda(source, arch, **options)  # type: ignore[arg-type]
    return str(caught.value)


# --- compilers --------------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_toolchains_are_sorted_and_know_their_archs() -> None:
    versions = [chain.version for chain in toolchains()]
    assert versions == sorted(set(versions), reverse=True)
    assert all(80 in chain.archs and chain.serves("sm_90a") and not chain.serves("sm_33") for chain in toolchains())


@needs_nvrtc
@pytest.mark.parametrize("arch", ARCHS)
def test_half_precision_header_and_resources(arch: str) -> None:
    compiled = compile_cuda(SAXPY, serving(arch))
    used = compiled.resources["saxpy"]
    assert list(compiled.resources) == ["saxpy"]
    assert 4 <= used.registers <= 32
    assert used.shared_bytes == 512
    assert (used.spill_stores, used.spill_loads, used.stack_frame) == (0, 0, 0)
    assert f".target {arch}" in compiled.ptx
    assert compiled.cubin.startswith(b"\x7fELF")
    assert compiled.arch == arch
    assert 0 < compiled.seconds < 60


@needs_nvrtc
def test_the_newest_compiler_that_serves_is_taken() -> None:
    serving_80 = [chain.version for chain in toolchains() if chain.serves("sm_80")]
    assert compile_cuda(STORE, common()).toolchain == serving_80[0]
    assert compile_cuda(STORE, common(), newest=serving_80[-1]).toolchain == serving_80[-1]


@needs_nvrtc
def test_compiling_twice_gives_equal_values_that_hash_and_pickle() -> None:
    first, second = compile_cuda(STORE, common()), compile_cuda(STORE, common())
    assert first == second
    assert hash(first) == hash(second)
    assert pickle.loads(pickle.dumps(first)) == first


@needs_nvrtc
def test_denormals_are_preserved_unless_fast_math_is_requested() -> None:
    divide = 'extern "C" __global__ void divide(float* a) { a[0] = a[1] / a[2]; }'
    assert "div.rn.f32" in compile_cuda(divide, common()).ptx
    assert "div.approx.ftz.f32" in compile_cuda(divide, common(), fast_math=True).ptx


@needs_nvrtc
def test_an_option_replaces_its_default() -> None:
    needs_20 = '#if __cplusplus < 202002L\n#error old\n#endif\nextern "C" __global__ void k() {}'
    assert "old" in refused(needs_20, common())
    assert "k" in compile_cuda(needs_20, common(), options=("--std=c++20",)).resources


@needs_nvrtc
def test_spills_and_stack_are_counted() -> None:
    body = "".join(f"  float v{i} = a[{i} * n];\n" for i in range(64)) + "  __syncthreads();\n"
    body += "".join(f"  a[{i} * n + 1] = v{i};\n" for i in range(64))
    source = f'extern "C" __global__ void k(volatile float* a, int n) {{\n{body}}}\n'
    used = compile_cuda(source, common(), options=("--maxrregcount=24",)).resources["k"]
    assert used.registers == 24
    assert min(used.spill_stores, used.spill_loads, used.stack_frame) > 0


# --- refusals ---------------------------------------------------------------------------------------------------------


@needs_nvrtc
def test_a_warning_is_an_error_unless_allowed() -> None:
    text = refused(UNUSED, common())
    assert "1 warning" in text
    assert 'variable "unused" was declared but never referenced' in text
    assert ">    2 |   int unused = 3;" in text
    assert "k" in compile_cuda(UNUSED, common(), werror=False).resources


@needs_nvrtc
def test_an_error_shows_the_line_and_its_context() -> None:
    text = refused('extern "C" __global__ void k(float* a) {\n  a[0] = foo;\n  bar(a);\n}\n', common())
    assert "sm_80: 2 errors" in text
    assert 'line 2: error: identifier "foo" is undefined' in text
    assert ">    2 |   a[0] = foo;" in text
    assert ">    3 |   bar(a);" in text
    assert '     1 | extern "C" __global__ void k(float* a) {' in text


@needs_nvrtc
@pytest.mark.parametrize(("arch", "feature"), [("sm_70", "ldmatrix"), ("sm_75", "m16n8k16")])
def test_an_instruction_of_a_newer_arch_shows_its_line_in_the_source(arch: str, feature: str) -> None:
    words = ", ".join(f'"=r"(a[{i}])' for i in range(4))
    if feature == "ldmatrix":
        line = f'asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{%0,%1,%2,%3}}, [%4];" : {words} : "r"(x));'
    else:
        mma = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
        line = f'asm volatile("{mma}" : {words.replace("=r", "+f")} : "r"(x));'
    kind = "unsigned" if feature == "ldmatrix" else "float"
    source = f'extern "C" __global__ void k({kind}* a) {{\n  int x = threadIdx.x;\n\n  {line}\n}}\n'
    text = refused(source, serving(arch))
    assert f"{feature}' requires .target sm_" in text
    assert f">    4 |   {line}" in text


@needs_nvrtc
def test_a_remark_that_wgmma_is_not_run_as_written_is_refused() -> None:
    registers = ", ".join(f'"+f"(d[{i}])' for i in range(4))
    wgmma = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0,%1,%2,%3}, %4, %4, 1, 1, 1, 0, 0;"
    source = f"""extern "C" __global__ void __launch_bounds__(128) k(float* a) {{
  float d[4] = {{a[0], a[1], a[2], a[3]}};
  asm volatile("{wgmma}" : {registers} : "l"(1ULL));
  a[0] = d[0] + 1.0f;
}}
"""
    text = refused(source, serving("sm_90a"))
    assert "(C75" in text
    assert "injected" in text
    assert "k" in compile_cuda(source, "sm_90a", werror=False).resources


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_20", "sm_999"])
def test_an_unsupported_arch_lists_the_supported_ones(arch: str) -> None:
    text = refused(STORE, arch)
    assert f"no installed CUDA compiler generates code for {arch}" in text
    assert f"{toolchains()[0]}: sm_" in text
    assert "pip install 'fireiron[check]'" in text


@pytest.mark.parametrize("arch", ["volta", "90", "compute_80", "sm_", ""])
def test_a_malformed_arch_is_refused(arch: str) -> None:
    assert "a target must be written as sm_XX" in refused(STORE, arch)


def test_without_a_compiler_the_error_explains_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "toolchains", tuple)
    text = refused(STORE, "sm_80")
    assert "none is installed" in text
    assert "pip install 'fireiron[check]'" in text


@needs_nvrtc
def test_a_cap_that_leaves_no_compiler_is_named() -> None:
    assert "of CUDA 1.0 or older generates code for sm_80" in refused(STORE, "sm_80", newest=(1, 0))


@needs_nvrtc
def test_a_missing_header_and_a_bad_option_are_refused() -> None:
    text = refused("#include <cuda_nope.h>\n" + STORE, common())
    assert 'open source file "cuda_nope.h"' in text
    assert "pip install 'fireiron[check]'" in text
    assert "unrecognized option --nope" in refused(STORE, common(), options=("--nope",))


def test_a_described_compiler_is_loaded_only_to_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREIRON_CACHE_DIR", os.fspath(tmp_path))
    chain = next(chain for chain in toolchains() if os.sep in chain.library)
    described = toolchain._open.__wrapped__
    assert described(chain.library) == chain
    (file,) = tmp_path.iterdir()
    loads: list[str] = []
    monkeypatch.setattr(toolchain, "_loaded", lambda library: loads.append(library) or chain)
    assert described(chain.library) == chain and loads == []
    for damaged in (b"", b"[[13, 0]]", b"[[13], [90]]", b'[[13, "0"], [90]]', b"[[13, 0], []]", b"{}", b"[[13, 0], [90.5]]", b"\xff"):
        file.write_bytes(damaged)
        assert described(chain.library) == chain and loads.pop(), damaged
        assert described(chain.library) == chain and loads == [], "the damaged description has been replaced"
    monkeypatch.setenv("FIREIRON_NO_CACHE", "1")
    assert described(chain.library) == chain and loads.pop()


def test_another_build_has_another_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREIRON_CACHE_DIR", os.fspath(tmp_path))
    first, second = tmp_path / "a" / "libnvrtc.so", tmp_path / "b" / "libnvrtc.so"
    for path, content in ((first, b"one"), (second, b"two")):
        path.parent.mkdir()
        path.write_bytes(content)
    monkeypatch.setattr(
        toolchain, "_loaded", lambda library: Toolchain((13, 0) if "a" in library.split(os.sep) else (12, 0), (90,), library)
    )
    described = toolchain._open.__wrapped__
    for _ in range(2):
        assert [described(os.fspath(path)).version for path in (first, second)] == [(13, 0), (12, 0)]


def test_a_description_that_cannot_be_stored_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("FIREIRON_CACHE_DIR", os.fspath(tmp_path / "file"))
    chain = toolchains()[0]
    assert toolchain._open.__wrapped__(chain.library) == chain


def test_unloadable_libraries_give_no_toolchain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_open", lambda library: None)
    assert toolchains() == ()


# --- logs and headers -------------------------------------------------------------------------------------------------

LOG = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
ptxas         .     632 bytes stack frame, 1064 bytes spill stores, 1376 bytes spill loads
ptxas info    : Used 109 registers, used 2 barriers, 256 bytes cumulative stack size, 8192 bytes smem, 364 bytes cmem[0]
ptxas info    : Function properties for helper
ptxas         .     8 bytes stack frame, 4 bytes spill stores, 4 bytes spill loads
"""


def test_a_called_function_does_not_overwrite_the_kernel_report() -> None:
    assert toolchain.resources_of(LOG) == {"k": KernelResources(109, 1064, 1376, 632, 8192, 2)}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("nvrtc: warning : Architectures prior to '<compute/sm>_75' are deprecated and may be removed in a future release", None),
        ("ptxas info    : Used 4 registers, used 0 barriers", None),
        ("ptxas info    : (C7519) warpgroup.arrive is injected in around line 9 by compiler to allow use of registers in GMMA", None),
        ("ptxas info    : (C7514) Potential Performance Loss: wgmma.mma_async instructions are serialized", "warning"),
        ("ptxas info    : (C7508) setmaxnreg ignored; unable to determine register count at entry", "warning"),
        ("ptxas warning : Registers are spilled to local memory in function 'k', 8 bytes spill stores", "warning"),
        ("ptxas fatal   : Ptx assembly aborted due to errors", None),
        ("ptxas fatal   : Value 'sm_20' is not defined for option 'gpu-name'", "error"),
        ("/usr/include/cuda_fp16.hpp(12): warning #177-D: unused", "warning"),
        ("nvrtc: error: failed to open libnvrtc-builtins.so.13.0.", "error"),
    ],
)
def test_classification_of_diagnostics(line: str, kind: str | None) -> None:
    diagnostics = toolchain._diagnostics(line)
    assert [diagnostic.kind for diagnostic in diagnostics] == ([kind] if kind else [])


def test_many_errors_are_cut() -> None:
    errors = [toolchain._Diagnostic("error", "no", line) for line in range(1, 21)]
    assert "... and 12 more lines" in toolchain._shown(errors, "\n" * 20)


def bundling() -> Toolchain:
    for chain in toolchains():
        if hasattr(toolchain._library(chain.library), "nvrtcInstallBundledHeaders"):
            return chain
    pytest.skip("no installed NVRTC carries headers (13.3 or newer)")


def test_bundled_headers_are_unpacked_once_and_completely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path))
    folder = toolchain._bundled_headers(bundling())
    assert folder is not None
    assert list((tmp_path / "fireiron").iterdir()) == [folder]
    assert (folder / "cuda_fp16.h").exists()
    monkeypatch.setattr(toolchain, "_unpack_headers", None)
    assert toolchain._include_folders(bundling()) == (os.fspath(folder), os.fspath(folder / "cccl"))


def test_a_cache_that_cannot_be_written_falls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path / "file"))
    assert toolchain._bundled_headers(bundling()) is None


def test_headers_in_a_cache_that_is_shut(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a folder is unreadable, or its name too long, the next candidate is used."""
    monkeypatch.setattr(toolchain, "user_cache", lambda: Path("/tmp", "x" * 300))
    assert toolchain._bundled_headers(bundling()) is None


# --- launching --------------------------------------------------------------------------------------------------------


class FakeArray:
    """A stand-in for cupy.ndarray."""


@frozen
class Pointer:
    """An array of another library."""

    address: int

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        return {"data": (self.address, False)}


@frozen
class Stream:
    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def recorder(*sizes: int) -> tuple[Launcher, list[tuple[object, ...]]]:
    """A launcher of a kernel with parameters of given sizes, and its launches."""
    calls: list[tuple[object, ...]] = []

    def function(*args: object) -> None:
        calls.append(args)

    return Launcher("k", 1024, sizes, function, FakeArray), calls


def test_a_launch_converts_each_argument_to_its_parameter() -> None:
    launcher, calls = recorder(8, 8, 4, 8, 4, 128)
    array, descriptor = FakeArray(), np.zeros(1, "V128")
    launcher(3, (32, 4), (array, Pointer(4096), 7, 8, 0.5, descriptor), Stream(99))
    ((grid, block, values, shared, stream),) = calls
    assert (grid, block, shared, stream) == ((3,), (32, 4), 1024, launch._Stream(99))
    assert isinstance(values, tuple)
    assert values == (array, np.uintp(4096), np.int32(7), np.int64(8), np.float32(0.5), descriptor)
    assert [value.dtype.itemsize for value in values[1:]] == [8, 4, 8, 4, 128]


@pytest.mark.parametrize(
    ("sizes", "args", "message"),
    [
        ((8, 4), (FakeArray(),), "'k' takes 2 arguments"),
        ((4,), (2**31,), "argument 0 of 'k': it does not fit a parameter of 4 bytes"),
        ((8,), (np.int32(1),), "its parameter has 8 bytes, the argument 4"),
        ((4,), (FakeArray(),), "its parameter has 4 bytes, the argument 8"),
        ((8,), (np.zeros(4),), "it is not in GPU memory"),
        ((8,), (True,), "it is not in GPU memory"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(sizes: tuple[int, ...], args: tuple[object, ...], message: str) -> None:
    launcher, calls = recorder(*sizes)
    with pytest.raises(LaunchError, match="argument") as caught:
        launcher(1, 1, args)
    assert message in str(caught.value)
    assert not calls


def test_a_plain_number_needs_a_known_size() -> None:
    launcher = Launcher("k", 0, None, lambda *args: None, FakeArray)
    launcher(1, 1, (np.int32(1), FakeArray()))
    with pytest.raises(LaunchError, match=r"pass np\.int32"):
        launcher(1, 1, (1,))


@pytest.mark.parametrize("grid", [0, (), (1, 2, 3, 4), (1, -1)])
def test_an_empty_grid_is_refused(grid: int | tuple[int, ...]) -> None:
    launcher, _ = recorder()
    with pytest.raises(LaunchError, match="one to three sizes"):
        launcher(grid, 1, ())


def test_arguments_other_than_streams_are_refused() -> None:
    launcher, calls = recorder()
    launcher(1, 1, (), 5)
    assert calls[0][-1] == launch._Stream(5)
    with pytest.raises(LaunchError, match="not a CUDA stream"):
        launcher(1, 1, (), "default")


def test_driver_errors_name_the_launch() -> None:
    def function(*args: object) -> None:
        raise RuntimeError("CUDA_ERROR_INVALID_VALUE: invalid argument")

    with pytest.raises(LaunchError, match=r"refuses to launch 'k' with grid \(1,\), block \(2048,\)"):
        Launcher("k", 0, (), function, FakeArray)(1, 2048, ())


class FakeDriver:
    """The parts of CuPy that `load` uses, of a GPU with 96 KiB of shared memory per block and a kernel with 1 KiB of static memory."""

    CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 1, 8

    def __init__(self) -> None:
        self.reserved: list[int] = []
        self.ndarray = FakeArray
        self.cuda = self.driver = self.runtime = self
        self.attributes = {"MaxSharedMemoryPerBlockOptin": 96 * 1024}
        self.compute_capability = "70"
        self.ptr = 0

    def Module(self) -> FakeDriver:
        return self

    def Device(self) -> FakeDriver:
        return self

    def load(self, cubin: bytes) -> None:
        if not cubin.startswith(b"\x7fELF"):
            raise RuntimeError("CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid")

    def get_function(self, name: str) -> FakeDriver:
        return self

    def driverGetVersion(self) -> int:
        return 12080

    def funcGetAttribute(self, attribute: int, function: int) -> int:
        return {1: 1024}[attribute]

    def funcSetAttribute(self, function: int, attribute: int, value: int) -> None:
        assert attribute == 8
        self.reserved.append(value)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(launch, "require_cupy", lambda: fake)
    monkeypatch.setattr(launch, "_parameter_sizes", lambda function: (8, 4))
    return fake


@pytest.mark.parametrize(("dynamic", "reserved"), [(0, []), (47 * 1024, []), (48 * 1024, [48 * 1024]), (95 * 1024, [95 * 1024])])
def test_shared_memory_above_48_kib_is_reserved(driver: FakeDriver, dynamic: int, reserved: list[int]) -> None:
    launcher = load(b"\x7fELF", "k", dynamic)
    assert (launcher.name, launcher.dynamic_shared, launcher.parameters) == ("k", dynamic, (8, 4))
    assert driver.reserved == reserved


def test_too_much_shared_memory_and_foreign_code_are_refused(driver: FakeDriver) -> None:
    with pytest.raises(LaunchError, match="at most 98304 on this GPU"):
        load(b"\x7fELF", "k", 96 * 1024)
    with pytest.raises(LaunchError, match="compile it for sm_70 with a CUDA not newer than the driver's 12.8"):
        load(b"PTX", "k", 0)


@pytest.mark.skipif(gpu_available(), reason="there is a GPU")
@pytest.mark.parametrize("ask", [device_arch, driver_version, lambda: load(b"", "k", 0)])
def test_without_a_gpu_the_error_explains_installation(ask: Callable[[], object]) -> None:
    with pytest.raises(LaunchError, match=r"pip install 'fireiron\[cuda13\]'"):
        ask()


# --- on a GPU ---------------------------------------------------------------------------------------------------------


def compiled_here(source: str) -> Compiled:
    return compile_cuda(source, serving(device_arch()), newest=driver_version())


@needs_gpu
def test_saxpy_on_the_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    launcher = load(compiled_here(SAXPY).cubin, "saxpy", dynamic_shared=0)
    assert launcher.parameters in (None, (8, 8, 4, 4))
    n = 1000
    x, y = cupy.arange(n, dtype=cupy.float16), cupy.ones(n, dtype=cupy.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    cupy.cuda.Device().synchronize()
    launcher((n + 127) // 128, 128, (x, y, np.float32(0.5), np.int32(n)), stream)
    stream.synchronize()
    expected = 1 + 0.5 * np.arange(n, dtype=np.float16).astype(np.float32)
    np.testing.assert_array_equal(cupy.asnumpy(y), expected)


@needs_gpu
def test_more_than_48_kib_of_shared_memory_on_the_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    source = """extern "C" __global__ void k(int* out, int words) {
  extern __shared__ int data[];
  for (int i = threadIdx.x; i < words; i += blockDim.x) data[i] = i;
  __syncthreads();
  if (threadIdx.x == 0) *out = data[words - 1];
}
"""
    limit = cupy.cuda.Device().attributes["MaxSharedMemoryPerBlockOptin"]
    cubin = compiled_here(source).cubin
    out = cupy.zeros(1, dtype=cupy.int32)
    load(cubin, "k", dynamic_shared=limit)(1, 128, (out, np.int32(limit // 4)))
    assert int(out[0]) == limit // 4 - 1
    with pytest.raises(LaunchError, match="shared memory a block"):
        load(cubin, "k", dynamic_shared=limit + 1)


@needs_gpu
def test_bad_loads_and_launches_on_the_gpu() -> None:
    cupy = pytest.importorskip("cupy")
    cubin = compiled_here(STORE).cubin
    with pytest.raises(LaunchError, match="does not load kernel 'nope'"):
        load(cubin, "nope", dynamic_shared=0)
    with pytest.raises(LaunchError, match="refuses to launch 'store'"):
        load(cubin, "store", dynamic_shared=0)(1, 2048, (cupy.zeros(1, dtype=cupy.float32),))


# --- where compilers and headers are found ----------------------------------------------------------------------------


def touched(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_libraries_of_toolkits_and_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "_TOOLKITS", tmp_path / "local")
    monkeypatch.setattr(toolchain.sys, "prefix", os.fspath(tmp_path / "environment"))
    expected = [
        tmp_path / "environment" / "lib" / "libnvrtc.so.13",
        tmp_path / "local" / "cuda-13.0" / "lib64" / "libnvrtc.so.13",
        tmp_path / "local" / "cuda-12.6" / "lib64" / "libnvrtc.so.12",
    ]
    touched(
        *expected, tmp_path / "local" / "cuda-12.6" / "lib64" / "libnvrtc.so.alt", tmp_path / "local" / "other" / "lib64" / "libnvrtc.so.11"
    )
    assert [*map(Path, toolchain._toolkit_libraries())] == expected


def test_files_of_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wheel that is not installed has none, and one without a list of its files neither."""

    class Wheel:
        def __init__(self, record: str | None) -> None:
            self.record = record

        def read_text(self, name: str) -> str | None:
            return self.record if name == "RECORD" else None

        def locate_file(self, name: str) -> Path:
            return tmp_path / name

    wheels = {
        "full": Wheel('nvidia/lib/libnvrtc.so.13,sha256=x,1\n"nvidia/a, b/libnvrtc.so.12",,\nnvidia/cuda_fp16.h,,\n'),
        "bare": Wheel(None),
    }

    def distribution(name: str) -> Wheel:
        if name not in wheels:
            raise toolchain.importlib.metadata.PackageNotFoundError(name)
        return wheels[name]

    monkeypatch.setattr(toolchain.importlib.metadata, "distribution", distribution)
    assert toolchain.wheel_files("full", "libnvrtc.so") == (tmp_path / "nvidia/lib/libnvrtc.so.13", tmp_path / "nvidia/a, b/libnvrtc.so.12")
    assert len(toolchain.wheel_files("full")) == 3 and toolchain.wheel_files("bare") == toolchain.wheel_files("none") == ()


@pytest.mark.parametrize("library", ["libnvrtc.so.13", "{}/lib/libnvrtc.so.13"])
def test_folders_of_headers(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers next to the library count for a library with a path; then those of wheels, then those of toolkits."""
    wheel = tmp_path / "wheel" / "cuda_fp16.h"
    monkeypatch.setattr(toolchain, "wheel_files", lambda name, part="": (wheel,) if name == toolchain._HEADER_WHEELS[0] else ())
    monkeypatch.setattr(toolchain, "_TOOLKITS", tmp_path)
    chain = Toolchain((13, 1), (80,), library.format(tmp_path))
    own = [tmp_path / "include"] if os.sep in chain.library else []
    kits = [tmp_path / name / "include" for name in ("cuda-13.1", "cuda-13", "cuda")]
    assert [*toolchain._header_folders(chain)] == [*own, wheel.parent, *kits]

    monkeypatch.setattr(toolchain, "_bundled_headers", lambda chain: None)
    assert toolchain._include_folders(chain) == ()
    touched(kits[1] / "cuda_fp16.h", kits[2] / "cuda_fp16.h", kits[1] / "crt" / "mma.h")
    (kits[1] / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 12060\n")
    (kits[2] / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  13010\n")
    assert toolchain._include_folders(chain) == (os.fspath(kits[2]),), "those of CUDA 12 do not count, and there is no folder cccl"
    touched(kits[2] / "cccl" / "version")
    assert toolchain._include_folders(chain) == (os.fspath(kits[2]), os.fspath(kits[2] / "cccl"))


def test_builtins_are_loaded_before_the_library_next_to_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    class Library:
        def __init__(self, path: str) -> None:
            loaded.append(path)
            self.nvrtcGetErrorString = types.SimpleNamespace(restype=None)

    monkeypatch.setattr(toolchain.ctypes, "CDLL", Library)
    builtins = tmp_path / "libnvrtc-builtins.so.13.0"
    touched(builtins)
    library = os.fspath(tmp_path / "libnvrtc.so.13")
    assert toolchain._library.__wrapped__(library).nvrtcGetErrorString.restype is toolchain.ctypes.c_char_p
    assert loaded == [os.fspath(builtins), library]
    toolchain._library.__wrapped__("libnvrtc.so.13")
    assert loaded[2:] == ["libnvrtc.so.13"]


@pytest.mark.parametrize("status", [0, 1])
def test_headers_are_unpacked_next_to_their_folder(status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the same folder, because a rename does not cross file systems. Nothing is left of a failure."""
    used: list[Path] = []

    def install(folder: bytes, force: object, log: object) -> int:
        used.append(Path(os.fsdecode(folder)))
        touched(used[-1] / "cuda_fp16.h")
        return status

    monkeypatch.setattr(toolchain, "_library", lambda library: types.SimpleNamespace(nvrtcInstallBundledHeaders=install))
    folder = tmp_path / "deep" / "cache" / "cuda-headers-13.3"
    toolchain._unpack_headers(Toolchain((13, 3), (80,), "libnvrtc.so.13"), folder)
    assert used[0].parent == folder.parent and used[0].name.startswith("cuda-headers-13.3.")
    assert [*folder.parent.iterdir()] == ([folder] if status == 0 else [])
    assert not folder.exists() or (folder / "cuda_fp16.h").exists()


def test_resources_are_zero_unless_reported() -> None:
    assert KernelResources() == KernelResources(0, 0, 0, 0, 0, 0, 0)
