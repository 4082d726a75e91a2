"""Exports: the files, the refusals by their C code, what compiles; without a GPU, and largely without CUDA."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import outputs
import pytest
from exports import CASES, K, M, N, built, cuda_headers, main_text, nvcc
from problems import library
from toys.in_launches import InLaunches
from toys.sequence import SEQUENCE

from fireiron import *
from fireiron.cli import main
from fireiron.gpu.toolchain import compile_cuda

CC = shutil.which("cc") or shutil.which("gcc")
STRICT = ["-Wall", "-Wextra", "-pedantic", "-Werror"]
needs_cc = pytest.mark.skipif(CC is None, reason="needs a C compiler")
needs_nvcc = pytest.mark.skipif(nvcc() is None or cuda_headers() is None, reason="needs nvcc and the headers of the CUDA toolkit")

plain = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()


def small(*sizes, **options):
    return plain(MatMul(*(sizes or (64, 48, 20)), **options)(GL, GL, GL)(Kernel))


# ---------------------------------------------------------------------------------------------- files


def test_files(tmp_path):
    exported = export(small(), tmp_path / "new" / "folder", "gemm", arch="sm_80")
    names = ["gemm.h", "gemm.cu", "gemm.cubin", "gemm_driver.h", "gemm_driver.c"]
    assert [path.name for path in exported.files] == names
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(names)
    assert exported.files[2].read_bytes()[:4] == b"\x7fELF" and b"gemm_kernel" in exported.files[2].read_bytes()
    assert set(exported.build) == {"object", "static library", "shared library", "driver launcher"}
    assert exported.build["object"] == "nvcc -std=c++17 -O3 -arch=sm_80 -c gemm.cu -o gemm.o"
    header = exported.files[0].read_text()
    assert all(line in header for what, line in exported.build.items() if what != "driver launcher")
    assert exported.build["driver launcher"] in exported.files[3].read_text()


def test_equal_in_every_process(tmp_path):
    """The bytes contain no date, path or process number."""
    case = "from fireiron.strategies import split_k_blocks as s; from fireiron import export; import sys\n"
    case += "export(s.strategy(s.spec(64, 64, 512)), sys.argv[1], 'gemm', arch='sm_80')"
    for folder in ("one", "two"):
        subprocess.run([sys.executable, "-c", case, tmp_path / folder], check=True)
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes(), path.name


def test_existing_files_are_not_overwritten(tmp_path):
    (tmp_path / "gemm.cu").write_text("mine")
    with pytest.raises(StoreError, match=r"gemm\.cu exists"):
        export(small(), tmp_path, "gemm", cubin=False)
    assert [path.name for path in tmp_path.iterdir()] == ["gemm.cu"] and (tmp_path / "gemm.cu").read_text() == "mine"
    export(small(), tmp_path, "gemm", cubin=False, overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"gemm.cu", "gemm.h"} and "gemm_kernel" in (tmp_path / "gemm.cu").read_text()


def test_machine_code_of_another_export_is_removed(tmp_path):
    export(small(), tmp_path, "gemm")
    with pytest.raises(StoreError, match="earlier export"):
        export(small(64, 64, 64), tmp_path, "gemm", cubin=False, overwrite=True)
    assert "MatMul(64,48,20)" in (tmp_path / "gemm.h").read_text()
    export(small(64, 64, 64), tmp_path, "gemm", overwrite=True)
    assert "MatMul(64,64,64)" in (tmp_path / "gemm_driver.h").read_text()


def test_exports_are_atomic(tmp_path, monkeypatch):
    """If a file appears between the check and the write, or the disk fails, written files are removed."""
    link = Path.hardlink_to

    def race(self, target):
        if self.name == "gemm.cu":
            self.write_text("theirs")
        link(self, target)

    monkeypatch.setattr(Path, "hardlink_to", race)
    with pytest.raises(StoreError, match=r"gemm\.cu exists"):
        export(small(), tmp_path, "gemm", cubin=False)
    assert [path.name for path in tmp_path.iterdir()] == ["gemm.cu"] and (tmp_path / "gemm.cu").read_text() == "theirs"


def test_folder_that_is_a_file(tmp_path):
    (tmp_path / "taken").write_text("")
    with pytest.raises(StoreError, match="taken"):
        export(small(), tmp_path / "taken", cubin=False)
    (tmp_path / "gemm.h").mkdir()
    with pytest.raises(StoreError, match=r"gemm\.h is not a regular file"):
        export(small(), tmp_path, "gemm", cubin=False, overwrite=True)


def test_exported_files(tmp_path):
    compiled = small().compile("sm_80")
    by_kernel = export(compiled, tmp_path / "kernel", cubin=False)
    by_strategy = export(small(), tmp_path / "strategy", arch="sm_80", cubin=False)
    export(compiled.program, tmp_path / "program", arch="sm_80", cubin=False)
    assert [path.name for path in by_kernel.files] == ["matmul.h", "matmul.cu"]
    for path, other in zip(by_kernel.files, by_strategy.files, strict=True):
        assert path.read_bytes() == other.read_bytes() == (tmp_path / "program" / path.name).read_bytes()
    with pytest.raises(ArgumentError, match="compiled for sm_80"):
        export(compiled, tmp_path / "other", arch="sm_90")
    with pytest.raises(ArgumentError, match="not a kernel"):
        export("matmul", tmp_path / "other")
    with pytest.raises(ArgumentError, match="not bound"):
        export(plain, tmp_path / "other")


@pytest.mark.parametrize("name", ["", "a b", "class", "restrict", "1st", "_x", "a__b", "ü", "../up", "dim3", 3])
def test_names(tmp_path, name):
    with pytest.raises(ArgumentError, match="identifier of C"):
        export(small(), tmp_path, name, cubin=False)
    assert list(tmp_path.iterdir()) == []


def test_names_of_sizes(tmp_path):
    with pytest.raises(ArgumentError, match="restrict"):
        export(small(sym("restrict"), 8, 8), tmp_path, cubin=False)
    with pytest.raises(ArgumentError, match="gemm_launch"):
        export(small(sym("gemm_launch"), 8, 8), tmp_path, "gemm", cubin=False)
    exported = export(small(sym("stream"), sym("status"), sym("blocks")), tmp_path, "gemm", cubin=False)
    assert "int stream, int status, int blocks, cudaStream_t stream_" in exported.files[0].read_text()


def test_old_targets_name_their_compiler(tmp_path):
    assert "nvcc of CUDA 12" in export(small(), tmp_path, "old", arch="sm_52", cubin=False).files[0].read_text()
    assert "CUDA 12" not in export(small(), tmp_path, "recent", arch="sm_75", cubin=False).files[0].read_text()


# ---------------------------------------------------------------------------------------------- the contract


def test_contract(tmp_path):
    case = CASES["added_padded"]
    text = export(library(case.strategy).strategy(case.spec), tmp_path, "added", arch="sm_80", cubin=False).files[0].read_text()
    assert "A: M x K elements of float16 (__half), read;" in text and "element (m, k) is A[" in text
    assert "C: M x N elements of float32, zeroed by the launcher, then accumulated" in text
    assert "element (m, n) is C[" in text and "ldc * m" in text
    assert "8 <= N <= 2147479552, a multiple of 8" in text
    assert "Requires: the leading dimension of C is at least N" in text
    assert "C must not overlap A or B." in text
    assert "const void *A, const void *B, float *C, int M, int N, int K, int ldc, cudaStream_t stream" in text
    assert "A block performs MatMul(64,64," in text
    assert '#define ADDED_ARCHITECTURE "sm_80"' in text and "#define ADDED_THREADS 128" in text and "#define ADDED_ALIGN_C 16" in text
    assert "C float32 row-major ld=ldc" in text and "num_splits=16 bk=64" in text


def test_contract_of_several_outputs(tmp_path):
    header, source = (path.read_text() for path in export(outputs.elements, tmp_path, "cross", arch="sm_80", cubin=False).files)
    assert "a: 40 x 50 elements of float32, read;" in header and "transposed: 50 x 40 elements of float64, written;" in header
    assert "total and apart and transposed must not overlap each other or a or b." in header
    assert "const float *a, const float *b, float *total, int *apart, double *transposed, cudaStream_t stream" in header
    pairs = re.findall(r'return "(\w+) overlaps (\w+)"', source)
    outs, inputs = ("total", "apart", "transposed"), ("a", "b")
    assert set(map(frozenset, pairs)) == {frozenset((out, other)) for out in outs for other in (*outs, *inputs) if out != other}
    assert (
        len(pairs) == 9 and "void *arguments[] = {(void *)&a, (void *)&b, (void *)&total, (void *)&apart, (void *)&transposed};" in source
    )
    fill = Init.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()(Init(64, 64)(GL)(Kernel))
    assert "overlap" not in export(fill, tmp_path, "fill", arch="sm_80", cubin=False).files[0].read_text()


def test_version_names_the_kernel(tmp_path):
    """Another tunable value gives another version."""
    entry = library("split_k_blocks")
    texts = []
    for parts in (16, 8):
        exported = export(entry.strategy.with_(num_splits=parts)(entry.spec(64, 64, 512)), tmp_path / str(parts), "gemm", cubin=False)
        texts.append(next(line for line in exported.files[0].read_text().split("\n") if "GEMM_VERSION" in line))
    assert texts[0] != texts[1] and "fireiron" in texts[0]


def test_zeroing(tmp_path):
    packed = export(CASES["added"].program("sm_80"), tmp_path, "packed", cubin=False).files[1].read_text()
    assert "cudaMemsetAsync(C, 0, (size_t)(64) * 4 * (size_t)(70), stream)" in packed
    padded = export(CASES["added_padded"].program("sm_80"), tmp_path, "padded", cubin=False).files[1].read_text()
    assert "cudaMemset2DAsync(C, (size_t)(ldc) * 4, 0, (size_t)(N) * 4, (size_t)(M), stream)" in padded
    assert "Memset" not in export(CASES["floats"].program("sm_80"), tmp_path, "plain", cubin=False).files[1].read_text()


def test_shared_memory_above_the_default_is_requested(tmp_path):
    large = export(CASES["static_halves"].program("sm_80"), tmp_path, "large", cubin=False).files[1].read_text()
    assert "cudaFuncSetAttribute(large_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 98304)" in large
    assert "cudaFuncSetAttribute" not in export(small(), tmp_path, "small", cubin=False).files[1].read_text()


# ---------------------------------------------------------------------------------------------- the command


def test_command(tmp_path, capsys):
    arguments = ["export", "gemm_nn", "-M", "128", "-N", "128", "-K", "16", "--arch", "sm_80", "-o", str(tmp_path)]
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert (
        str(tmp_path / "gemm_nn.cubin") in out
        and "nvcc -std=c++17 -O3 -arch=sm_80 --shared -Xcompiler -fPIC gemm_nn.cu -o libgemm_nn.so" in out
    )
    assert main(arguments) == 2 and "exists" in capsys.readouterr().err
    assert main([*arguments, "--force", "--name", "other", "--no-cubin", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["name"] == "other" and value["files"] == [str(tmp_path / "other.h"), str(tmp_path / "other.cu")]
    assert main([*arguments, "--name", "a-b"]) == 2


def test_command_names_a_users_strategy(tmp_path, capsys):
    path = tmp_path / "mine.py"
    path.write_text("from fireiron import *\nfast = MatMul.tile(32, 32).to(Block).tile(4, 4).to(Thread).split(1).tile(1, 1).done()\n")
    for argument, name in ((f"{path}:fast", "fast"), (str(path), "mine")):
        assert main(["export", argument, "-o", str(tmp_path / name), "--no-cubin"]) == 0
        assert (tmp_path / name / f"{name}.cu").exists()
    capsys.readouterr()
    assert main(["export", str(path)]) == 2 and "-o" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------- without CUDA: a stand-in driver

CUDA_H = """
#ifndef CUDA_H
#define CUDA_H
#include <stddef.h>
typedef unsigned long long CUdeviceptr;
typedef struct module_ *CUmodule;
typedef struct function_ *CUfunction;
typedef struct stream_ *CUstream;
typedef enum { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1, CUDA_ERROR_OUT_OF_MEMORY = 2, CUDA_ERROR_INVALID_IMAGE = 200,
               CUDA_ERROR_FILE_NOT_FOUND = 301, CUDA_ERROR_NOT_FOUND = 500 } CUresult;
typedef enum { CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8 } CUfunction_attribute;
CUresult cuModuleLoadData(CUmodule *module, const void *image);
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name);
CUresult cuModuleUnload(CUmodule module);
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value);
CUresult cuMemsetD8Async(CUdeviceptr start, unsigned char value, size_t count, CUstream stream);
CUresult cuMemsetD2D8Async(CUdeviceptr start, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream);
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra);
#endif
"""
"""The part of the driver's header that the launcher needs."""

DRIVER_C = """
#include <stdio.h>
#include <string.h>
#include <cuda.h>
#include "gemm_driver.h"
CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
  *module = (CUmodule)1;
  printf("load %.3s\\n", (const char *)image + 1);
  return CUDA_SUCCESS;
}
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
  (void)module;
  *function = (CUfunction)(size_t)(strncmp(name, "gemm_copy", 9) ? 3 : 2); /* how many pointers it takes */
  printf("function %s\\n", name);
  return strncmp(name, "gemm_", 5) ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { (void)module; printf("unload\\n"); return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
  (void)function;
  printf("attribute %d %d\\n", (int)attribute, value);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD8Async(CUdeviceptr start, unsigned char value, size_t count, CUstream stream)
{
  (void)stream;
  printf("set %llx %d %lu\\n", start, value, (unsigned long)count);
  return CUDA_SUCCESS;
}
CUresult cuMemsetD2D8Async(CUdeviceptr start, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream)
{
  (void)stream;
  printf("set %llx %lu %d %lu %lu\\n", start, (unsigned long)pitch, value, (unsigned long)width, (unsigned long)height);
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra)
{
  int position, pointers = (int)(size_t)function;
  (void)stream; (void)extra;
  printf("launch %u %u %u %u %u %u %u:", gx, gy, gz, bx, by, bz, shared);
  for (position = 0; position < pointers; ++position)
    printf(" %llx", *(CUdeviceptr *)arguments[position]);
  for (; position < pointers + SYMBOLS; ++position)
    printf(" %d", *(int *)arguments[position]);
  for (; position < pointers + SYMBOLS + RECIPROCALS; ++position)
    printf(" %llx", *(unsigned long long *)arguments[position]);
  printf("\\n");
  return CUDA_SUCCESS;
}
int main(int argc, char **argv)
{
  gemm_driver loaded;
  (void)argc;
  if (gemm_driver_load_file(&loaded, "nowhere") != CUDA_ERROR_FILE_NOT_FOUND) return 1;
  if (gemm_driver_load_file(&loaded, argv[0]) != CUDA_ERROR_INVALID_IMAGE) return 2;
  if (gemm_driver_load_file(&loaded, "gemm.cubin") != CUDA_SUCCESS) return 3;
  CALLS
  return gemm_driver_unload(&loaded) != CUDA_SUCCESS;
}
"""


def run_driver(tmp_path, strategy, calls, symbols, reciprocals=0):
    """The output of the launcher on a recording driver, for calls `A, B, C, sizes...`."""
    export(strategy, tmp_path, "gemm", arch="sm_80")
    (tmp_path / "cuda.h").write_text(CUDA_H)
    texts = []
    for arguments in calls:
        texts.append(
            f"{{ const char *why = gemm_driver_check({arguments}); CUresult code = gemm_driver_launch(&loaded, {arguments}, NULL);"
        )
        texts.append('printf("%d %s\\n", (int)code, why ? why : "served"); }')
    counts = DRIVER_C.replace("SYMBOLS", str(symbols)).replace("RECIPROCALS", str(reciprocals))
    (tmp_path / "main.c").write_text(counts.replace("CALLS", "\n".join(texts)))
    built(CC, "-std=c99", *STRICT, "-I.", "gemm_driver.c", "main.c", "-o", "main", folder=tmp_path)
    return built(tmp_path / "main", folder=tmp_path).stdout.splitlines()


@needs_cc
def test_driver_launcher(tmp_path):
    case = CASES["added_padded"]
    calls = [
        "0x10000, 0x20000, 0x1000000, 65, 72, 520, 84",
        "0x10000, 0x20000, 0x1000000, 65, 73, 520, 84",
        "0x10000, 0x20000, 0x1000000, 65, 72, 520, 68",
        "0x10000, 0x20000, 0x1000000, 0, 72, 520, 84",
        "0x10000, 0x20008, 0x1000000, 65, 72, 520, 84",
        "0x10000, 0x2000000, 0x11000, 65, 72, 520, 84",
        "0x10000, 0x2000000, 0x2000010, 65, 72, 520, 84",
        "0x10000, 0x1000000, 0x20810, 65, 72, 520, 84",  # C begins where A ends: 65 * 520 float16 values
        "0x10000, 0x1000000, 0x20800, 65, 72, 520, 84",
        "0x1000000, 0x10000, 0xffaae0, 65, 72, 520, 84",  # C ends where B begins: 64 * 84 + 72 floats
        "0x1000000, 0x10000, 0xffaaf0, 65, 72, 520, 84",
        "0x1000000000, 0x40000000000, 0x20000000000, 2147479552, 2147479552, 8, 2147479552",
    ]
    lines = run_driver(tmp_path, case.program("sm_80"), calls, 4)
    assert lines[:3] == ["load ELF", "function gemm_kernel", "attribute 8 65536"]
    served = [line for line in lines if line.startswith("launch")]
    assert served[0] == "launch 64 1 1 128 1 1 65536: 10000 20000 1000000 65 72 520 84"  # 2 x 2 tiles, 16 parts
    assert next(line for line in lines if line.startswith("set")) == "set 1000000 336 0 288 65"
    why = [line for line in lines if line[:2] in ("0 ", "1 ")]
    assert len(served) == 3 and len(why) == len(calls)
    assert [line[0] for line in why] == list("011111101011")
    for line, part in zip(
        why[1:7], ("multiple of 8", "leading dimension of C", "1 <= M", "address of B", "C overlaps A", "C overlaps B"), strict=True
    ):
        assert part in line
    assert "C overlaps A" in why[8] and "C overlaps A" in why[10] and "grid" in why[11]
    assert lines[-1] == "unload"


@needs_cc
def test_driver_launcher_sends_reciprocals(tmp_path, monkeypatch):
    """Reciprocals of the tiles of a raster group and of the last group's rows; for refused sizes none is computed, since it may divide by
    0.
    """
    monkeypatch.setattr("fireiron.lower.divide.repeats_divisions", lambda kernel: True)
    strategy = (
        MatMul.tile(16, 16).to(Block).rasterize(group_m=4).split(8).load(A, SH).load(B, SH).tile(4, 4).to(Thread).split(1).tile(1, 1).done()
    )
    program = strategy(MatMul(*map(sym, "MNK"))(GL, GL, GL)(Kernel)).program("sm_80")
    calls = ["0x10000, 0x20000, 0x30000, 96, 49, 8", "0x10000, 0x20000, 0x30000, 96, -10, 8", "0x10000, 0x20000, 0x30000, 1, 1, 1"]
    lines = run_driver(tmp_path, program, calls, 3, len(program.ir.reciprocals))
    expected = [(-(-(1 << 63) // (4 * 4)), -(-(1 << 63) // 2)), (1 << 61, 1 << 63)]
    served = [line for line in lines if line.startswith("launch")]
    assert [line.split()[-2:] for line in served] == [[f"{one:x}" for one in pair] for pair in expected]
    assert [line[0] for line in lines if line[:2] in ("0 ", "1 ")] == list("010")


def test_driver_launcher_of_copies(tmp_path):
    """All launches in order, the last one with the copies instead of the operands; none if the scratch memory is unsuitable."""
    case = CASES["copied"]
    calls = [f"0x10000, 0x20000, 0x30000, {scratch}" for scratch in ("0x40000", "0", "0x40080", "0x20c00", "0x10000")]
    lines = run_driver(tmp_path, case.program("sm_80"), calls, 0)
    assert lines[:4] == ["load ELF", "function gemm_kernel", "function gemm_copy_a", "function gemm_copy_b"]
    offset = 0x40000 + -(-65 * 40 * 2 // 256) * 256
    served = [line.partition(": ")[2] for line in lines if line.startswith("launch")]
    assert served == ["10000 40000", f"20000 {offset:x}", f"40000 {offset:x} 30000"]
    why = [line for line in lines if line[:2] in ("0 ", "1 ")]
    assert why == [
        "0 served", "1 scratch is NULL", "1 the address of scratch is not a multiple of 256 bytes", "1 scratch overlaps B", "1 scratch overlaps A",
    ]  # fmt: skip


LAUNCHED = {
    "added": (InLaunches("k", 3), plain),
    "temporaries": (InLaunches("k", 2, plain.steps), AnySpec.tile(8, 8).to(Block).tile(1, 1).to(Thread).done()),
}


def in_launches(name):
    """A GEMM of the level above a launch."""
    step, rest = LAUNCHED[name]
    return MatMul.then(step).then(rest)(MatMul(32, 32, 24, C=RowMajor)(GL, GL, GL)(SEQUENCE)).program("sm_80")


@needs_cc
def test_driver_launcher_of_launches_that_add(tmp_path):
    """All of them on the caller's arrays, without scratch memory."""
    lines = run_driver(tmp_path, in_launches("added"), ["0x10000, 0x20000, 0x30000", "0x10000, 0x20000, 0"], 0)
    assert lines[:4] == ["load ELF", "function gemm_kernel", "function gemm_before_part0", "function gemm_before_part1"]
    assert [line.partition(": ")[2] for line in lines if line.startswith("launch")] == ["10000 20000 30000"] * 3
    assert [line for line in lines if line[:2] in ("0 ", "1 ")] == ["0 served", "1 C is NULL"]
    header = (tmp_path / "gemm.h").read_text()
    assert "scratch" not in header and "C: 32 x 32 elements of float32, written;" in header
    assert "Before it gemm_before_part1 has" in header and "Fixed sizes: m < 32, n < 32, k < 24." in header


@needs_cc
def test_driver_launcher_of_temporaries(tmp_path):
    calls = [f"0x10000, 0x20000, 0x30000, {scratch}" for scratch in ("0x40000", "0", "0x30800")]
    lines = run_driver(tmp_path, in_launches("temporaries"), calls, 0)
    second = 0x40000 + 32 * 32 * 4
    assert [line.partition(": ")[2] for line in lines if line.startswith("launch")] == [
        "10000 20000 40000", f"10000 20000 {second:x}", f"40000 {second:x} 30000",
    ]  # fmt: skip
    assert [line for line in lines if line[:2] in ("0 ", "1 ")] == ["0 served", "1 scratch is NULL", "1 scratch overlaps C"]
    header = (tmp_path / "gemm.h").read_text()
    assert "stores temporaries in it, so concurrent launches need separate scratch memory:" in header
    assert "its terms are added apart." in header and "size_t gemm_scratch_bytes(void);" in header


def test_launches_that_are_more_than_loads_and_stores_are_refused(tmp_path):
    programmatic = MatMul.tile(8, 8).to(Block).programmatic_launch().tile(1, 1).to(Thread).split(1).done()
    bound = MatMul.then(InLaunches()).then(programmatic)(MatMul(32, 32, 24, C=RowMajor)(GL, GL, GL)(SEQUENCE))
    with pytest.raises(
        ArgumentError,
        match="the launch part0 uses tensor maps, programmatic launch, a cluster, a tile counter, a workspace or zeroed outputs",
    ):
        export(bound, tmp_path, arch="sm_90", cubin=False)


def test_contract_of_copies(tmp_path):
    """Operands as the caller stores them, why they are copied, and the required memory."""
    case = CASES["any_copied"]
    folder = tmp_path / "files"
    header = export(case.program("sm_80"), folder, "gemm", cubin=False).files[0].read_text()
    assert "element (m, k) is A[K * m + k]" in header and "element (k, n) is B[N * k + n]" in header
    assert "the row stride of A is K elements of 2 bytes." in header and "B is contiguous along n, and ColMajor is requested." in header
    assert "size_t gemm_scratch_bytes(int M, int N, int K);" in header and "#define GEMM_ALIGN_SCRATCH 256" in header
    assert "copied by TMA" not in header


def test_copies_that_are_more_than_loads_and_stores_are_refused(tmp_path):
    move = Move.tile(16, 64).to(Block).programmatic_launch().tile(1, 1).to(Thread).tile(1, 1).done()
    strategy = MatMul.repack(A, move).then(plain)
    with pytest.raises(
        ArgumentError, match="the copy of A uses tensor maps, programmatic launch, a cluster, a tile counter, a workspace or zeroed outputs"
    ):
        export(strategy(MatMul(64, 64, 33, A=RowMajor)(GL, GL, GL)(Kernel)), tmp_path, arch="sm_90", cubin=False)


@pytest.mark.nightly
@needs_nvcc
def test_hopper_with_copies_compiles(tmp_path):
    """Tensor maps of scratch memory; everything compiled by nvcc and the C compiler."""
    from fireiron.strategies import hopper

    exported = export(hopper.strategy(hopper.spec(M, sym("N"), sym("K"))), tmp_path, "gemm")
    built(*exported.build["object"].replace("-O3", "-O1").split(), "-Werror", "all-warnings", folder=tmp_path)
    built(CC, "-std=c99", *STRICT, "-isystem", cuda_headers(), "-c", "gemm_driver.c", "-o", "driver.o", folder=tmp_path)
    assert "(void *)(uintptr_t)copy_of_A" in (tmp_path / "gemm.cu").read_text()


@needs_cc
def test_driver_launcher_of_fixed_sizes(tmp_path):
    lines = run_driver(tmp_path, small(), ["0x10000, 0x20000, 0x30000", "0x10000, 0, 0x30000", "0x10001, 0x20000, 0x30000"], 0)
    assert lines[2:] == [
        "launch 4 1 1 64 1 1 0: 10000 20000 30000", "0 served", "1 B is NULL", "1 the address of A is not a multiple of 16 bytes", "unload",
    ]  # fmt: skip


@needs_cc
def test_driver_launcher_of_several_outputs(tmp_path):
    """Adjacent outputs are accepted in any order; outputs that share a byte, or are inside an input, are not."""
    calls = [
        "0x10000, 0x20000, 0x20100, 64",
        "0x10000, 0x20100, 0x20000, 64",
        "0x10000, 0x20000, 0x200f0, 64",
        "0x10000, 0x200f0, 0x20000, 64",
        "0x10000, 0x20000, 0x20000, 64",
        "0x10000, 0x10400, 0x20000, 64",
        "0x10000, 0x20000, 0x104f0, 64",
        "0x10000, 0x20000, 0x10500, 64",  # where src ends: 64 * 5 floats
        "0x10000, 0x20000, 0, 64",
    ]
    lines = run_driver(tmp_path, outputs.by_rows(outputs.rows(sym("M", multiple_of=8), 5)), calls, 1)
    assert lines[2] == "launch 8 1 1 8 1 1 0: 10000 20000 20100 64"
    assert [line for line in lines if line[:2] in ("0 ", "1 ")] == [
        "0 served", "0 served", "1 largest overlaps total", "1 largest overlaps total", "1 largest overlaps total",
        "1 total overlaps src", "1 largest overlaps src", "0 served", "1 largest is NULL",
    ]  # fmt: skip


@needs_cc
@pytest.mark.parametrize(
    ("dtype", "served", "refused"),
    [
        (float32, ("0.5f", "1e-45f"), ("0.0f", "-1.0f", "1.0f / none", "0.0f / none")),
        (float16, ("0x3800", "1", "0x7bff"), ("0", "0x8001", "0x7c00", "0x7e00")),
        (int32, ("1",), ("0", "-1")),
    ],
    ids=str,
)
def test_driver_launcher_of_numbers_above_0(tmp_path, dtype, served, refused):
    """Zero, negative numbers, infinity and NaN; numbers without a declared condition are passed unchanged."""
    definition = Fused(
        name="scaled", dims="m", operands={"X": "m", "W": "m", "Y": "m", "factor": "", "added": ""}, positive="factor",
        body={"y": "Y[m] = (X[m] + W[m]) * factor + added"},
    )  # fmt: skip
    strategy = definition.tile(m=32).to(Block).done()(definition(m=64, types={"factor": dtype}))
    calls = [f"0x10000, 0x20000, 0x30000, {one.replace('none', '(float)(argc - 1)')}, 0.0f" for one in (*served, *refused)]
    lines = run_driver(tmp_path, strategy, calls, 0)
    why = [line for line in lines if line[:2] in ("0 ", "1 ")]
    assert why == ["0 served"] * len(served) + ["1 factor must be above 0 and finite"] * len(refused)
    assert sum(line.startswith("launch") for line in lines) == len(served)
    header = (tmp_path / "gemm.h").read_text()
    assert re.search(rf"  factor: {dtype}.*, above 0 and finite\n", header) and "  added: float32\n" in header


@needs_cc
def test_driver_launcher_refuses_another_cubin(tmp_path):
    """One changed byte, of equal length."""
    export(small(), tmp_path, "gemm", arch="sm_80")
    data = bytearray((tmp_path / "gemm.cubin").read_bytes())
    data[len(data) // 2] ^= 1
    (tmp_path / "gemm.cubin").write_bytes(data)
    (tmp_path / "cuda.h").write_text(CUDA_H)
    (tmp_path / "main.c").write_text(DRIVER_C.replace("CALLS", "").replace("SYMBOLS", "0").replace("RECIPROCALS", "0"))
    built(CC, "-std=c99", *STRICT, "-I.", "gemm_driver.c", "main.c", "-o", "main", folder=tmp_path)
    assert subprocess.run([tmp_path / "main"], cwd=tmp_path).returncode == 3


@needs_cc
@pytest.mark.parametrize("language", ["c", "c++"])
@pytest.mark.parametrize("name", ["added_padded", "static_halves", "integers"])
def test_headers_are_c_and_cpp(tmp_path, name, language):
    """With stubs of the CUDA headers, in any order, twice."""
    export(CASES[name].program("sm_80"), tmp_path, name)
    (tmp_path / "cuda.h").write_text(CUDA_H)
    (tmp_path / "cuda_runtime_api.h").write_text("typedef int cudaError_t;\ntypedef struct stream_ *cudaStream_t;\n")
    (tmp_path / "main.c").write_text(
        f'#include "{name}_driver.h"\n#include "{name}.h"\n#include "{name}.h"\nint main(void) {{ return 0; }}\n'
    )
    built(CC, "-x", language, "-std=c99" if language == "c" else "-std=c++11", *STRICT, "-I.", "-fsyntax-only", "main.c", folder=tmp_path)


# ---------------------------------------------------------------------------------------------- with nvcc


LONG = ("added", "copied", "floats", "integers", "padded", "static_halves")
"""Cases whose host code is covered by others; each builds a program."""


@needs_nvcc
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.nightly) if name in LONG else name for name in CASES])
def test_compiles_links_and_refuses(tmp_path, name):
    """The whole procedure of a C++ user except the GPU: build command, header, link; refusals need no GPU."""
    case = CASES[name]
    exported = export(case.program("sm_80"), tmp_path, name)
    built(
        *exported.build["object"].replace("-O3", "-O1").split(), "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", folder=tmp_path
    )
    (tmp_path / "main.cpp").write_text(main_text(name, case, "sm_80"))
    built(nvcc(), "-std=c++17", "main.cpp", f"{name}.o", "-o", "main", folder=tmp_path)
    assert built(tmp_path / "main", folder=tmp_path).stdout == "refusals ok\n"
    built(CC, "-std=c99", *STRICT, "-isystem", cuda_headers(), "-c", f"{name}_driver.c", "-o", "driver.o", folder=tmp_path)
    (tmp_path / "plain.c").write_text(f"#include \"{name}.h\"\nint main(void) {{ return {name}_version()[0] != 'f'; }}\n")
    built(CC, "-std=c99", *STRICT, "-isystem", cuda_headers(), "-fsyntax-only", "plain.c", folder=tmp_path)


@needs_nvcc
def test_two_exports_in_one_program(tmp_path):
    """Neither names nor kernels collide."""
    for name in ("first", "second"):
        exported = export(small(), tmp_path, name, arch="sm_80", cubin=False)
        built(*exported.build["object"].split(), folder=tmp_path)
    calls = "first_check(0, 0, 0) && second_check(0, 0, 0) ? 0 : 1"
    (tmp_path / "main.cpp").write_text(f'#include "first.h"\n#include "second.h"\nint main() {{ return {calls}; }}\n')
    built(nvcc(), "main.cpp", "first.o", "second.o", "-o", "main", folder=tmp_path)
    built(tmp_path / "main", folder=tmp_path)


@needs_nvcc
def test_libraries(tmp_path):
    exported = export(small(M, N, K), tmp_path, "gemm", arch="sm_80", cubin=False)
    for what in ("static library", "shared library"):
        built(*exported.build[what].replace("-O3", "-O0").split(), folder=tmp_path)
    (tmp_path / "main.cpp").write_text('#include "gemm.h"\nint main() { return gemm_check(0, 0, 0, 1, 8, 8) ? 0 : 1; }\n')
    built(nvcc(), "main.cpp", "-L.", "-lgemm", "-Xlinker", f"-rpath={tmp_path}", "-o", "main", folder=tmp_path)
    built(tmp_path / "main", folder=tmp_path)
    assert "libgemm.so" in subprocess.run(["ldd", tmp_path / "main"], capture_output=True, text=True).stdout


def test_the_cubin_is_of_the_kernel_in_the_source(tmp_path):
    """The text in NAME.cu before the launcher is the source of the machine code."""
    _, source, cubin, *_ = export(small(), tmp_path, "gemm", arch="sm_80").files
    text = source.read_text()
    kernel = text[text.index("// MatMul(") : text.index("static const char *gemm_refusal")].rstrip("\n") + "\n"
    assert compile_cuda(kernel, "sm_80").cubin == cubin.read_bytes()


@needs_nvcc
def test_the_program_of_the_documentation(tmp_path):
    page = (Path(__file__).parent.parent / "docs" / "export.md").read_text()
    (tmp_path / "use.cpp").write_text(re.search(r"```cpp\n(.*?)```", page, re.DOTALL)[1])
    case = CASES["any_halves"]
    export(case.program("sm_90"), tmp_path, "hgemm", cubin=False)
    built(nvcc(), "-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra", "-c", "use.cpp", folder=tmp_path)


# ---------------------------------------------------------------------------------------------- wrong calls

HOSTILE_C = """
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
static FILE *fopen_of_nothing(const char *path, const char *mode);
#include "gemm_driver.c"
static unsigned long long state = 88172645463325252ULL;
static unsigned long long drawn(void) { state ^= state << 13; state ^= state >> 7; state ^= state << 17; return state; }
static int size(void)
{
  static const int odd[] = {INT_MIN_, -1, 0, 1, 7, 8, 9, 64, 65, 4096, 65535, 65536, 1 << 20, 2147479551, 2147479552, 2147479553,
  2147483647}; if (drawn() % 4) return (int)(drawn() % 64 + 1) * 8;
  return drawn() % 3 ? odd[drawn() % (sizeof odd / sizeof *odd)] : (int)drawn();
}
static CUdeviceptr address(void)
{
  static const CUdeviceptr odd[] = {0, 1, 8, 16, 0x10000, 0x10010, 0x10008, 0x7fffffffffff0ULL, 0x8000000000000000ULL, ~0ULL, ~0ULL - 15,
  ~0ULL - 4095}; if (drawn() % 4) return drawn() & 0x3ffff0ULL;
  return drawn() % 3 ? odd[drawn() % (sizeof odd / sizeof *odd)] : drawn() % 2 ? drawn() & ~15ULL : drawn();
}
"""
"""Random calls that a launcher must survive: sizes and addresses of all kinds."""


def hostile(tmp_path, program, operands, sizes, calls=4000):
    """The check's answers for random calls, as lines: the arguments, then the error; undefined behavior in C ends the process."""
    export(program, tmp_path, "gemm", arch="sm_80")
    (tmp_path / "cuda.h").write_text(CUDA_H)
    values = [f"CUdeviceptr p{one} = address();" for one in range(operands)] + [f"int n{one} = size();" for one in range(sizes)]
    names = [f"p{one}" for one in range(operands)] + [f"n{one}" for one in range(sizes)]
    form = " ".join(["%llu"] * operands + ["%d"] * sizes)
    body = f'{" ".join(values)} const char *why = gemm_driver_check({", ".join(names)}); printf("{form}|%s\\n", {", ".join(names)}, why ? why : "served");'
    main = f"int main(void) {{ int i; for (i = 0; i < {calls}; ++i) {{ {body} }} return 0; }}\n"
    head = HOSTILE_C.replace("INT_MIN_", "(-2147483647 - 1)").replace(
        "static FILE *fopen_of_nothing(const char *path, const char *mode);\n", ""
    )
    (tmp_path / "main.c").write_text(head + main)
    built(CC, "-std=gnu99", "-O1", "-fsanitize=undefined", "-fno-sanitize-recover=all", "-ffunction-sections", "-Wl,--gc-sections", "-I.",
          "main.c", "-o", "main", folder=tmp_path)  # fmt: skip
    for line in built(tmp_path / "main", folder=tmp_path).stdout.splitlines():
        numbers, _, why = line.partition("|")
        yield [int(one) for one in numbers.split()], why


@needs_cc
def test_random_arguments_are_rejected_or_correct(tmp_path):
    """Compared with a check in unbounded integers: ranges, leading dimensions, alignment, ends past all addresses, overlaps."""
    served = 0
    for (a, b, c, m, n, k, ldc), why in hostile(tmp_path, CASES["added_padded"].program("sm_80"), 3, 4):
        right = (
            1 <= m <= 2147479552
            and 8 <= n <= 2147479552
            and 8 <= k <= 2147479552
            and n % 8 == k % 8 == ldc % 4 == 0
            and n <= ldc <= 2147479552
        )
        right = right and all(p and p % 16 == 0 for p in (a, b, c))
        ends = (a + 2 * m * k, b + 2 * k * n, c + 4 * ((m - 1) * ldc + n))
        right = right and all(end <= 2**64 for end in ends) and (c >= ends[0] or a >= ends[2]) and (c >= ends[1] or b >= ends[2])
        assert why == "served" if right and "grid" not in why else why != "served", (a, b, c, m, n, k, ldc, why)
        served += right
    assert served > 10


@needs_cc
def test_launchers_refuse_null_pointers(tmp_path):
    """A null pointer instead of the loaded kernel, its bytes, or a path; kernels never loaded or already unloaded."""
    calls = [
        "gemm_driver_load(NULL, argv, 8)", "gemm_driver_load(&fresh, NULL, GEMM_CUBIN_BYTES)", "gemm_driver_load_file(NULL, argv[0])",
        "gemm_driver_load_file(&fresh, NULL)", "gemm_driver_unload(NULL)", "gemm_driver_unload(&fresh)", "gemm_driver_launch(NULL, 16, 4096 * 8, 4096 * 16, NULL)",
        "gemm_driver_launch(&fresh, 16, 4096 * 8, 4096 * 16, NULL)", "gemm_driver_unload(&loaded)", "gemm_driver_unload(&loaded)",
    ]  # fmt: skip
    export(small(), tmp_path, "gemm", arch="sm_80")
    (tmp_path / "cuda.h").write_text(CUDA_H)
    statements = "\n".join(f'printf("%d\\n", (int){call});' for call in calls)
    text = (
        DRIVER_C.replace("SYMBOLS", "0")
        .replace("RECIPROCALS", "0")
        .replace("CALLS", f"gemm_driver fresh = {{0}};\n{statements}\nreturn 0;")
    )
    (tmp_path / "main.c").write_text(text)
    built(CC, "-std=gnu99", "-I.", "gemm_driver.c", "main.c", "-o", "main", folder=tmp_path)
    lines = built(tmp_path / "main", folder=tmp_path).stdout.splitlines()
    assert lines[2:] == ["1"] * 8 + ["unload", "0", "1"]


@needs_cc
@pytest.mark.parametrize("which", ["gemm.h", "gemm_driver.h"])
def test_files_of_two_exports_do_not_build_together(which, tmp_path):
    """As a writer leaves them that is killed between two files."""
    export(small(), tmp_path / "new", "gemm", arch="sm_80")
    export(small(128, 48, 20), tmp_path / "old", "gemm", arch="sm_80")
    (tmp_path / "new" / which).write_bytes((tmp_path / "old" / which).read_bytes())
    (tmp_path / "new" / "cuda.h").write_text(CUDA_H)
    (tmp_path / "new" / "cuda_runtime_api.h").write_text("typedef int cudaError_t; typedef void *cudaStream_t;")
    source = {"gemm.h": "gemm.cu", "gemm_driver.h": "gemm_driver.c"}[which]
    compiled = subprocess.run([CC, "-x", "c", "-fsyntax-only", "-I.", source], cwd=tmp_path / "new", capture_output=True, text=True)
    assert f"{which} belongs to another export than this file" in compiled.stderr
