"""Exports of kernel graphs: the files, the refusals, the launcher on a recording driver, and the runtime's launcher as C++."""

import json
import re
import shutil

import pytest
from exports import built
from graph_examples import chain, decode, layer_norm, of_elements
from test_export import CC, CUDA_H, STRICT, needs_cc

from fireiron import *
from fireiron.cli import main
from fireiron.export.graph_unit import GraphUnit

CXX = shutil.which("g++") or shutil.which("c++")


def test_files(tmp_path):
    exported = export(chain(), tmp_path, arch="sm_80")
    kernels = [f"both_{kernel}{end}" for kernel in ("square", "shift") for end in (".h", ".cu", ".cubin", "_driver.h", "_driver.c")]
    assert [path.name for path in exported.files] == ["both.h", "both.cu", "both_driver.h", "both_driver.c", *kernels]
    assert set(exported.build) == {"static library", "shared library", "driver launcher"}
    header = exported.files[0].read_text()
    assert "const char *both_check(const float *X, float *Z, void *scratch);" in header and "both_scratch_bytes(void)" in header
    assert "square: X -> Y; see both_square.h" in header and "X: argument, X of square, read by square, shift." in header
    again = export(chain().compile("sm_80"), tmp_path / "again")
    for path, other in zip(exported.files, again.files, strict=True):
        assert path.read_bytes() == other.read_bytes(), path.name
    with pytest.raises(StoreError, match="exists"):
        export(chain(), tmp_path, arch="sm_80")
    with pytest.raises(StoreError, match="earlier export"):
        export(chain(), tmp_path, arch="sm_80", cubin=False, overwrite=True)


def test_the_command(tmp_path, capsys):
    path = tmp_path / "graphs.py"
    path.write_text("from graph_examples import chain\ngraph = chain()\n")
    assert main(["export", f"{path}:graph", "--arch", "sm_80", "-o", str(tmp_path / "files"), "--no-cubin", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["name"] == "graph" and len(value["files"]) == 6


@pytest.mark.parametrize(
    ("graph", "name", "message"),
    [
        (chain(), "a-b", "a name must be an identifier of C"),
        (KernelGraph("one", {"driver": of_elements(square="Y[n] = X[n]")}), "one", "a kernel called driver"),
        (KernelGraph("one", {"a": of_elements(square="Y[n] = X[n]"), "A": of_elements(square="Z[n] = X[n]")}), "one", "same macros"),
        (
            KernelGraph("one", {"a": of_elements(sym("X"), a="Y[n] = W[n]"), "b": of_elements(50, b="Z[n] = X[n]")}),
            "one",
            "two parameters are called X",
        ),
        (chain(sym("both_launch")), "both", "both_launch has another meaning"),
    ],
)
def test_refused_exports(tmp_path, graph, name, message):
    with pytest.raises(ArgumentError, match=message):
        export(graph, tmp_path, name, arch="sm_90", cubin=False)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ArgumentError, match="compiled for sm_90"):
        export(chain().program("sm_90"), tmp_path, arch="sm_80")


TILES = MatMul.tile(8, 8).to(Block).tile(1, 1).to(Thread).split(1).done()


def test_strides_of_workspaces_are_known():
    """A stride of a workspace is not a parameter; strides of arguments are, one for each array."""
    m, ld = sym("M"), sym("ldc")
    first = TILES(MatMul(m, 8, 8, C=RowMajor(ld=ld))(GL, GL, GL)(Kernel))
    second = TILES(MatMul(m, 8, 8, A=RowMajor(ld=ld))(GL, GL, GL)(Kernel))
    graph = KernelGraph("padded", {"first": first, "second": second}, {"second.A": "first.C"})
    with pytest.raises(ArgumentError, match=r"the workspace first\.C has the stride ldc"):
        GraphUnit.of(graph.program("sm_80"), "padded")
    apart = KernelGraph("apart", {"first": first, "second": TILES(MatMul(m, 8, 8, C=RowMajor(ld=ld))(GL, GL, GL)(Kernel))})
    unit = GraphUnit.of(apart.program("sm_80"), "apart")
    assert unit.symbols == ("M", "first_ldc", "second_ldc") and not unit.scratch


MAIN_C = """
#include <stdio.h>
#include <string.h>
#include <cuda.h>
#include "both_driver.h"
CUresult cuModuleLoadData(CUmodule *module, const void *image) { (void)image; *module = (CUmodule)1; return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
  (void)module;
  *function = (CUfunction)(size_t)(strcmp(name, "both_square_kernel") ? 3 : 2); /* how many pointers it takes */
  return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { printf("unload %d\\n", (int)(size_t)module); return CUDA_SUCCESS; }
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
  (void)function; (void)attribute; (void)value;
  return CUDA_SUCCESS;
}
CUresult cuLaunchKernel(CUfunction function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void **arguments, void **extra)
{
  int position, pointers = (int)(size_t)function;
  (void)gy; (void)gz; (void)by; (void)bz; (void)shared; (void)extra;
  printf("launch %u %u on %d:", gx, bx, (int)(size_t)stream);
  for (position = 0; position < pointers; ++position)
    printf(" %llx", *(CUdeviceptr *)arguments[position]);
  printf(" %d\\n", *(int *)arguments[pointers]);
  return CUDA_SUCCESS;
}
static void call(const both_driver *loaded, CUdeviceptr X, CUdeviceptr Z, int n, CUdeviceptr scratch)
{
  const char *why = both_driver_check(X, Z, n, scratch);
  CUresult code = both_driver_launch(loaded, X, Z, n, scratch, (CUstream)5);
  printf("%d %s\\n", (int)code, why ? why : "served");
}
int main(void)
{
  both_driver loaded;
  const char *const paths[2] = {"both_square.cubin", "both_shift.cubin"}, *const wrong[2] = {"both_square.cubin", "both_square.cubin"};
  if (both_driver_load_files(&loaded, wrong) != CUDA_ERROR_INVALID_IMAGE) return 1;
  if (both_driver_load_files(&loaded, paths) != CUDA_SUCCESS) return 2;
  printf("%lu %lu\\n", (unsigned long)both_driver_scratch_bytes(70), (unsigned long)both_driver_scratch_bytes(1));
  call(&loaded, 0x10000, 0x20000, 70, 0x30000);
  call(&loaded, 0x10000, 0x20000, 0, 0x30000);
  call(&loaded, 0x10000, 0x20000, 70, 0);
  call(&loaded, 0x10000, 0x20000, 70, 0x30010);
  call(&loaded, 0x10000, 0x20000, 70, 0x20000);
  call(&loaded, 0x10000, 0x10000, 70, 0x30000);
  call(&loaded, 0x10000, 0, 70, 0x30000);
  call(NULL, 0x10000, 0x20000, 70, 0x30000);
  return both_driver_unload(&loaded) != CUDA_SUCCESS;
}
"""


@needs_cc
def test_driver_launcher(tmp_path):
    export(chain(sym("n")), tmp_path, arch="sm_80")
    (tmp_path / "cuda.h").write_text(CUDA_H)
    (tmp_path / "main.c").write_text(MAIN_C)
    sources = ["both_driver.c", "both_square_driver.c", "both_shift_driver.c", "main.c"]
    built(CC, "-std=c99", *STRICT, "-I.", *sources, "-o", "main", folder=tmp_path)
    lines = built(tmp_path / "main", folder=tmp_path).stdout.splitlines()
    assert lines[0] == "unload 1", "a kernel that was loaded before an error"
    assert lines[1] == "512 256"
    launches = [line for line in lines if line.startswith("launch")]
    assert launches == ["launch 3 32 on 5: 10000 30000 70", "launch 3 32 on 5: 10000 30000 20000 70"]
    served = [line for line in lines if re.match(r"\d+ [a-zA-Z]", line)]
    assert served[0] == "0 served"
    expected = (
        "required: 1 <= n",
        "scratch is NULL",
        "the address of scratch is not a multiple of 256 bytes",
        "Z overlaps Y",
        "Z overlaps X",
        "Z is NULL",
    )
    for line, text in zip(served[1:], expected, strict=False):
        assert line.startswith("1 ") and text in line, (line, text)
    assert served[-1] == "1 served" and lines[-2:] == ["unload 1", "unload 1"]


RUNTIME_H = """
#ifndef CUDA_RUNTIME_API_H
#define CUDA_RUNTIME_API_H
typedef enum { cudaSuccess = 0, cudaErrorInvalidValue = 1 } cudaError_t;
typedef struct stream_ *cudaStream_t;
#endif
"""


@pytest.mark.skipif(CXX is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("graph", [chain(sym("n")), layer_norm(sym("m"), 50, dependent=True), decode()], ids=lambda graph: graph.name)
def test_runtime_launcher_compiles(tmp_path, graph):
    """The launcher of the graph is C++ without kernels."""
    exported = export(graph, tmp_path, arch="sm_90", cubin=False)
    (tmp_path / "cuda_runtime_api.h").write_text(RUNTIME_H)
    built(
        CXX, "-std=c++17", "-Wall", "-Wextra", "-Werror", "-I.", "-x", "c++", "-c", f"{graph.name}.cu", "-o", "launcher.o", folder=tmp_path
    )
    built(CC, "-std=c99", *STRICT, "-I.", "-x", "c", "-c", f"{graph.name}.h", "-o", "header.o", folder=tmp_path)
    assert len(exported.files) == 6


def test_results_are_apart_from_later_arguments():
    kernels = {"one": of_elements(one="Y[n] = X[n] * X[n]"), "two": of_elements(two="Z[n] = Y[n] + W[n]")}
    unit = GraphUnit.of(KernelGraph("apart", kernels, {"two.Y": "one.Y"}, ("one.Y", "two.Z")).program("sm_80"), "apart")
    assert set(unit.apart()) == {("one.Y", "two.W"), ("two.Z", "one.Y")} and not unit.scratch
    assert GraphUnit.of(chain().program("sm_80"), "both").apart() == []


def test_a_kernel_with_its_own_scratch_memory(tmp_path):
    rows = {"A": RowMajor, "B": RowMajor, "C": RowMajor}
    first = TILES(MatMul(9, 7, 5, **rows)(GL, GL, GL)(Kernel))
    second = MatMul.repack(A).then(TILES)(MatMul(9, 6, 7, **rows)(GL, GL, GL)(Kernel))
    graph = KernelGraph("chained", {"first": first, "second": second}, {"second.A": "first.C"})
    source = export(graph, tmp_path, arch="sm_80", cubin=False).files[1].read_text()
    assert "const uintptr_t scratch_of_second = at_first_C + " in source and "chained_second_scratch_bytes()" in source
    assert "chained_second_launch((const float *)at_first_C, second_B, C, (void *)scratch_of_second, stream)" in source.replace(
        "second_C", "C"
    )
