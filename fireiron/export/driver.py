"""Print `NAME_driver.h` and `NAME_driver.c`: a launcher of `NAME.cubin` in plain C, for the CUDA driver."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fireiron._version import VERSION
from fireiron.export.tensor_maps import ENCODERS
from fireiron.export.unit import DEFAULT_SHARED, Unit, c_text, header
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.values.machine import Architecture

if TYPE_CHECKING:
    from fireiron.gpu.toolchain import Compiled
    from fireiron.ir import Kernel

_PROTOTYPES = """\
typedef struct NAME_driver {
  CUmodule module;
  CUfunction kernel;
MEMBERS} NAME_driver;

/* Load the bytes of NAME.cubin into the current context; CUDA_ERROR_INVALID_IMAGE if they differ from this export. */
CUresult NAME_driver_load(NAME_driver *loaded, const void *image, size_t bytes);

/* The same from a file; CUDA_ERROR_FILE_NOT_FOUND if it cannot be read. */
CUresult NAME_driver_load_file(NAME_driver *loaded, const char *path);

/* Unload; CUDA_ERROR_INVALID_VALUE if nothing is loaded. */
CUresult NAME_driver_unload(NAME_driver *loaded);
"""

_LOADING = """\
CUresult NAME_driver_load(NAME_driver *loaded, const void *image, size_t bytes)
{
  CUresult status;
  unsigned long hash = 2166136261UL;
  size_t position;
  if (loaded == NULL || image == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  loaded->module = NULL;
  loaded->kernel = NULL;
  if (bytes != MACRO_CUBIN_BYTES)
    return CUDA_ERROR_INVALID_IMAGE;
  for (position = 0; position < bytes; ++position)
    hash = ((hash ^ ((const unsigned char *)image)[position]) * 16777619UL) & 0xffffffffUL;
  if (hash != MACRO_CUBIN_HASH)
    return CUDA_ERROR_INVALID_IMAGE;
  status = cuModuleLoadData(&loaded->module, image);
  if (status != CUDA_SUCCESS)
    return status;
  status = cuModuleGetFunction(&loaded->kernel, loaded->module, "NAME_kernel");
FUNCTIONSRESERVE  if (status != CUDA_SUCCESS)
    NAME_driver_unload(loaded);
  return status;
}

CUresult NAME_driver_load_file(NAME_driver *loaded, const char *path)
{
  CUresult status;
  size_t bytes;
  unsigned char *image;
  FILE *file;
  if (loaded == NULL || path == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  loaded->module = NULL;
  loaded->kernel = NULL;
  image = (unsigned char *)malloc(MACRO_CUBIN_BYTES + 1); /* one more shows a longer file */
  if (image == NULL)
    return CUDA_ERROR_OUT_OF_MEMORY;
  file = fopen(path, "rb");
  if (file == NULL) {
    free(image);
    return CUDA_ERROR_FILE_NOT_FOUND;
  }
  bytes = fread(image, 1, MACRO_CUBIN_BYTES + 1, file);
  fclose(file);
  status = NAME_driver_load(loaded, image, bytes);
  free(image);
  return status;
}

CUresult NAME_driver_unload(NAME_driver *loaded)
{
  CUresult status;
  if (loaded == NULL || loaded->module == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  status = cuModuleUnload(loaded->module);
  loaded->module = NULL;
  loaded->kernel = NULL;
  return status;
}
"""

_RESERVE = """\
  if (status == CUDA_SUCCESS)
    status = cuFuncSetAttribute(loaded->{}, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, {});
"""

_FUNCTION = """\
  if (status == CUDA_SUCCESS)
    status = cuModuleGetFunction(&loaded->{member}, loaded->module, "{name}");
"""

_ALLOW = """\
  if (status == CUDA_SUCCESS)
    status = cuFuncSetAttribute(loaded->kernel, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1);
"""


def driver_header(unit: Unit, compiled: Compiled) -> str:
    """Return the text of `NAME_driver.h`."""
    name, stream, loaded = unit.name, unit.local("stream"), unit.local("loaded")
    major, minor = compiled.toolchain
    head = [
        f"{name}_driver: {name}.cubin launched through the CUDA driver, written by Fireiron {VERSION}. For C and C++.",
        "",
        f"NVRTC {major}.{minor} compiled {name}.cubin, for a driver of CUDA {major} or newer and {_devices(unit.kernel.architecture)}.",
        "",
        *unit.contract(),
        "",
        *(f"Build: {line}" for line in driver_build(unit).values()),
        "and link with -lcuda.",
    ]
    constants = [
        *unit.constants(),
        f"#define {unit.macro('CUBIN_BYTES')} {len(compiled.cubin)}UL",
        f"#define {unit.macro('CUBIN_HASH')} 0x{fnv(compiled.cubin):08x}UL /* FNV-1a */",
    ]
    body = [
        *_instantiate(unit, _PROTOTYPES),
        "/* Check the arguments without a launch: NULL if they are legal, else a static text with the reason. */",
        f"const char *{name}_driver_check({unit.parameters(pointer='CUdeviceptr ')});",
        "",
        *_scratch_header(unit),
        "/* Launch in the context into which the kernel was loaded; CUDA_ERROR_INVALID_VALUE if the check refuses the arguments. */",
        f"CUresult {name}_driver_launch(const {name}_driver *{loaded},",
        f"    {unit.parameters(f'CUstream {stream}', pointer='CUdeviceptr ')});",
    ]
    return header(f"FIREIRON_{name.upper()}_DRIVER_H", head, ("cuda.h", "stddef.h"), constants, body)


def driver_build(unit: Unit) -> dict[str, str]:
    """Return the C compiler command for each file that can be built."""
    return {"driver launcher": f"cc -O2 -I$CUDA_HOME/include -c {unit.name}_driver.c -o {unit.name}_driver.o"}


def driver_source(unit: Unit) -> str:
    """Return the text of `NAME_driver.c`."""
    name = unit.name
    lines = [
        f"/* {name}_driver.h has the contract and the command that builds this file. */",
        f'#include "{name}_driver.h"',
        "",
        *unit.export_guard(f"{name}_driver.h"),
        "",
        "#include <stdint.h>",
        "#include <stdio.h>",
        "#include <stdlib.h>",
        "",
        *unit.minimum(),
        *unit.check_function(),
        "",
        f"const char *{name}_driver_check({unit.parameters(pointer='CUdeviceptr ')})",
        "{",
        f"  return {unit.check_call()};",
        "}",
        "",
        *_scratch(unit),
        *_instantiate(unit, _LOADING),
        *_launch(unit),
        "",
    ]
    return "\n".join(lines)


def _instantiate(unit: Unit, template: str) -> list[str]:
    members = {kernel.name: _member(unit, kernel) for kernel in unit.kernels}
    sizes = [(members[kernel.name], kernel.dynamic_shared_bytes) for kernel in unit.kernels]
    reserve = "".join(_RESERVE.format(member, size) for member, size in sizes if size > DEFAULT_SHARED)
    reserve += _ALLOW if unit.wide_clusters else ""
    before = [launch.kernel.name for launch in unit.preceding]
    values = {
        "MEMBERS": "".join(f"  CUfunction {members[name]};\n" for name in before),
        "FUNCTIONS": "".join(_FUNCTION.format(member=members[name], name=name) for name in before),
        "RESERVE": reserve,
        "MACRO_": unit.macro(""),
        "NAME": unit.name,
    }
    return re.sub("MEMBERS|FUNCTIONS|RESERVE|MACRO_|NAME", lambda match: values[match[0]], template).split("\n")


def _member(unit: Unit, kernel: Kernel) -> str:
    """Return the name of a kernel in the struct of loaded functions."""
    return kernel.name.removeprefix(f"{unit.name}_")


def _scratch_header(unit: Unit) -> list[str]:
    if not unit.temporaries:
        return []
    comment = f"/* Bytes of scratch memory that a launch needs, at a multiple of {unit.macro('ALIGN_SCRATCH')}. */"
    return [comment, f"{unit.scratch_prototype('_driver')};", ""]


def _scratch(unit: Unit) -> list[str]:
    if not unit.temporaries:
        return []
    return [unit.scratch_prototype("_driver"), "{", f"  return {unit.scratch_call};", "}", ""]


def _preceding_launches(unit: Unit, loaded: str, stream: str, status: str) -> list[str]:
    """Return the C code of the preceding launches. If a launch fails, the launcher returns its error."""
    arguments = unit.local("arguments_of_copy")
    lines: list[str] = []
    for launch in unit.preceding:
        kernel = launch.kernel
        passed = ", ".join(f"&{name}" for name in launch.arguments(unit.address))
        lines += [
            "  {",
            *(f"    unsigned long long {line}" for line in unit.reciprocals(kernel)),
            f"    void *{arguments}[] = {{{passed}}};",
            f"    {status} = cuLaunchKernel({loaded}->{_member(unit, kernel)},",
            f"                            (unsigned)({c_text(kernel.grid)}), 1, 1, {kernel.threads}, 1, 1,",
            f"                            {kernel.dynamic_shared_bytes}, {stream}, {arguments}, NULL);",
            f"    if ({status} != CUDA_SUCCESS)",
            f"      return {status};",
            "  }",
        ]
    return lines


def _launch(unit: Unit) -> list[str]:
    loaded, stream, status, arguments = (unit.local(name) for name in ("loaded", "stream", "status", "arguments"))
    config, attribute = unit.local("config"), unit.local("attribute")
    lines = [
        f"CUresult {unit.name}_driver_launch(const {unit.name}_driver *{loaded},",
        f"    {unit.parameters(f'CUstream {stream}', pointer='CUdeviceptr ')})",
        "{",
        *(
            f"  CUdeviceptr {unit.address(temporary.name)} = {unit.scratch} + {unit.offset(number)};"
            for number, temporary in enumerate(unit.temporaries)
        ),
        *_map_storage(unit),
        *(f"  unsigned long long {reciprocal.name};" for reciprocal in unit.kernel.reciprocals),
        f"  void *{arguments}[] = {{{', '.join(f'&{argument}' for argument in unit.arguments)}}};",
        *([f"  CUresult {status};"] if unit.kernel.effects[Zeroed].names or unit.preceding else []),
        *(
            [f"  CUlaunchConfig {config} = {{0}};", f"  CUlaunchAttribute {attribute};"]
            if unit.kernel.effects[DependentLaunch].enabled
            else []
        ),
        f"  if ({loaded} == NULL || {loaded}->kernel == NULL || {unit.name}_driver_check({unit.check_arguments}) != NULL)",
        "    return CUDA_ERROR_INVALID_VALUE;",
        *(f"  {line}" for line in unit.reciprocals()),
        *(f"  {line}" for line in unit.encodings(*ENCODERS, "CUDA_ERROR_INVALID_VALUE")),
    ]
    for name, width, pitch, rows, bits in unit.zeroed():
        fill = f"cuMemsetD8Async({name}, 0, {width} * {rows}, {stream})"
        step = fill if width == pitch else f"cuMemsetD2D8Async({name}, {pitch}, 0, {width}, {rows}, {stream})"
        if bits:
            step = f"cuMemsetD2D32Async({name}, {pitch}, {bits:#x}u, {width} / 4, {rows}, {stream})"
        lines += [f"  {status} = {step};", f"  if ({status} != CUDA_SUCCESS)", f"    return {status};"]
    lines += _preceding_launches(unit, loaded, stream, status)
    if unit.kernel.effects[DependentLaunch].enabled:
        return [*lines, *_programmatic_launch(unit, loaded, stream, arguments), "}"]
    return [
        *lines,
        f"  return cuLaunchKernel({loaded}->kernel, (unsigned)({c_text(unit.kernel.grid)}), 1, 1, {unit.macro('THREADS')}, 1, 1,",
        f"                        {unit.dynamic}, {stream}, {arguments}, NULL);",
        "}",
    ]


def _programmatic_launch(unit: Unit, loaded: str, stream: str, arguments: str) -> list[str]:
    """Return the launch of the last kernel with programmatic dependent launch."""
    config, attribute = unit.local("config"), unit.local("attribute")
    return [
        f"  {attribute}.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;",
        f"  {attribute}.value.programmaticStreamSerializationAllowed = 1;",
        f"  {config}.gridDimX = (unsigned)({c_text(unit.kernel.grid)});",
        f"  {config}.gridDimY = {config}.gridDimZ = {config}.blockDimY = {config}.blockDimZ = 1;",
        f"  {config}.blockDimX = {unit.macro('THREADS')};",
        f"  {config}.sharedMemBytes = {unit.dynamic};",
        f"  {config}.hStream = {stream};",
        f"  {config}.attrs = &{attribute};",
        f"  {config}.numAttrs = 1;",
        f"  return cuLaunchKernelEx(&{config}, {loaded}->kernel, {arguments}, NULL);",
    ]


def _map_storage(unit: Unit) -> list[str]:
    """Return the C declaration of the tensor maps, in a byte array that is aligned to 64 bytes at run time.

    C before C11 cannot specify this alignment.
    """
    if not unit.maps:
        return []
    storage, maps = unit.local("room"), unit.local("maps")
    return [
        f"  unsigned char {storage}[{len(unit.maps)} * sizeof(CUtensorMap) + 63];",
        f"  CUtensorMap *{maps} = (CUtensorMap *)(((uintptr_t){storage} + 63) & ~(uintptr_t)63);",
    ]


def _devices(architecture: Architecture) -> str:
    """Describe the GPUs that run machine code for an architecture: the same major capability, and an equal or larger minor capability."""
    major, minor = divmod(architecture.capability, 10)
    if architecture.name.endswith("a"):
        return f"GPUs of compute capability {major}.{minor} only"
    return f"GPUs of compute capability {major}.{minor} or above, below {major + 1}.0"


def fnv(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of a file. It detects a file of a different export, but no malicious changes."""
    value = 2166136261
    for byte in data:
        value = (value ^ byte) * 16777619 & 0xFFFFFFFF
    return value
