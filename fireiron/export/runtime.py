"""Print `NAME.h` and `NAME.cu`: the kernel with a launcher for the CUDA runtime."""

from __future__ import annotations

from typing import Final

from fireiron._version import VERSION
from fireiron.export.tensor_maps import ENCODERS
from fireiron.export.unit import DEFAULT_SHARED, Unit, c_text, header
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed

_OLDEST_OF_13: Final = 75  # the oldest compute capability for which CUDA 13 generates code


def runtime_header(unit: Unit) -> str:
    """Return the text of `NAME.h`."""
    name, stream = unit.name, unit.local("stream")
    head = [f"{name}: {unit.kernel.spec} on {unit.kernel.architecture}, written by Fireiron {VERSION}. For C and C++.", ""]
    head += [*unit.contract(), "", *_build_instructions(unit)]
    body = [
        "/* Check the arguments without a launch: NULL if they are legal, else a static text with the reason. */",
        f"const char *{name}_check({unit.parameters()});",
        "",
        f"/* Launch on the current device; returns before the kernel completes. If {name}_check refuses the arguments, it",
        " * returns cudaErrorInvalidValue without a launch; other codes are those of the CUDA runtime. Any thread may call it,",
        " * also while the stream is captured into a graph. */",
        f"cudaError_t {name}_launch({unit.parameters(f'cudaStream_t {stream}')});",
        "",
        *_scratch_header(unit),
        f"/* The value of {unit.macro('VERSION')} when the library was built. */",
        f"const char *{name}_version(void);",
    ]
    includes = ("cuda_runtime_api.h", *(["stddef.h"] if unit.temporaries else []))
    return header(f"FIREIRON_{name.upper()}_H", head, includes, unit.constants(), body)


def runtime_build(unit: Unit) -> dict[str, str]:
    """Return the nvcc command for each kind of file that can be built."""
    name, nvcc = unit.name, f"nvcc -std=c++17 -O3 {nvcc_target(unit.kernel.architecture.name)}"
    return {
        "object": f"{nvcc} -c {name}.cu -o {name}.o",
        "static library": f"{nvcc} --lib {name}.cu -o lib{name}.a",
        "shared library": f"{nvcc} --shared -Xcompiler -fPIC {name}.cu -o lib{name}.so",
    }


def nvcc_target(name: str) -> str:
    """Return nvcc's option for a target. `-arch=sm_90a` would also generate PTX for other GPUs, which lack the instructions of sm_90a."""
    return f"-gencode arch=compute_{name[3:]},code={name}" if name.endswith("a") else f"-arch={name}"


def _build_instructions(unit: Unit) -> list[str]:
    old = unit.kernel.architecture.capability < _OLDEST_OF_13
    version = " of CUDA 12 (13 dropped this target)" if old else " of CUDA 12.5 or newer" if unit.maps else ""
    return [
        f"Build with nvcc{version}, one of",
        *(f"  {line}" for line in runtime_build(unit).values()),
        "A program links the object or the library, and the CUDA runtime: -lcudart, or nvcc as its linker. The kernel was checked",
        "with nvcc's default arithmetic: denormals, rounded division, contraction to FMA. --use_fast_math changes the results.",
    ]


def runtime_source(unit: Unit) -> str:
    """Return the text of `NAME.cu`."""
    name = unit.name
    lines = [
        f"// {name}.h has the contract and the commands that build this file.",
        f'#include "{name}.h"',
        "",
        *unit.export_guard(f"{name}.h"),
        "",
        *(["#include <cuda.h>"] if unit.maps else []),
        "#include <stdint.h>",
        "",
        unit.text.rstrip("\n"),
        "",
        *unit.check_function(),
        "",
        f'extern "C" const char *{name}_check({unit.parameters()})',
        "{",
        f"  return {unit.check_call()};",
        "}",
        "",
        *_scratch(unit),
        *_encoder(unit),
        *_fill(unit),
        *_launch(unit),
        "",
        f'extern "C" const char *{name}_version(void)',
        "{",
        f"  return {unit.macro('VERSION')};",
        "}",
        "",
    ]
    return "\n".join(lines)


def _fill(unit: Unit) -> list[str]:
    """Return the kernel that sets elements of 4 bytes to a number other than zero, and its launch; nothing if no output needs it."""
    if not unit.kernel.effects[Zeroed].values:
        return []
    return [
        f"static __global__ void {unit.name}_set(unsigned *array, unsigned bits, size_t width, size_t pitch, size_t rows)",
        "{",
        "  const size_t threads = (size_t)gridDim.x * blockDim.x;",
        "  for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < width * rows; i += threads)",
        "    array[i / width * pitch + i % width] = bits;",
        "}",
        "",
        f"static cudaError_t {unit.name}_fill(void *array, unsigned bits, size_t width, size_t pitch, size_t rows, cudaStream_t stream)",
        "{",
        f"  {unit.name}_set<<<256, 256, 0, stream>>>((unsigned *)array, bits, width, pitch, rows);",
        "  return cudaGetLastError();",
        "}",
        "",
    ]


def _launch(unit: Unit) -> list[str]:
    stream, arguments, blocks = (unit.local(name) for name in ("stream", "arguments", "blocks"))
    return [
        f'extern "C" cudaError_t {unit.name}_launch({unit.parameters(f"cudaStream_t {stream}")})',
        "{",
        f"  if ({unit.name}_check({unit.check_arguments}) != nullptr)",
        "    return cudaErrorInvalidValue;",
        *(f"  {line}" for line in (*_temporary_addresses(unit), *_maps(unit), *_preparation(unit), *_preceding_launches(unit))),
        *(f"  unsigned long long {line}" for line in unit.reciprocals()),
        f"  const unsigned {blocks} = static_cast<unsigned>({c_text(unit.kernel.grid)});",
        f"  void *{arguments}[] = {{{', '.join(f'(void *)&{argument}' for argument in unit.arguments)}}};",
        *(_programmatic_launch(unit) if unit.kernel.effects[DependentLaunch].enabled else _plain(unit)),
        "}",
    ]


def _scratch_header(unit: Unit) -> list[str]:
    if not unit.temporaries:
        return []
    return [
        f"/* Bytes of scratch memory that a launch needs, at a multiple of {unit.macro('ALIGN_SCRATCH')}. */",
        f"{unit.scratch_prototype()};",
        "",
    ]


def _scratch(unit: Unit) -> list[str]:
    if not unit.temporaries:
        return []
    return [f'extern "C" {unit.scratch_prototype()}'.replace("(void)", "()"), "{", f"  return {unit.scratch_call};", "}", ""]


def _temporary_addresses(unit: Unit) -> list[str]:
    """Return the definitions of the temporaries' addresses in scratch memory."""
    return [
        f"void *const {unit.address(temporary.name)} = static_cast<char *>({unit.scratch}) + {unit.offset(number)};"
        for number, temporary in enumerate(unit.temporaries)
    ]


def _preceding_launches(unit: Unit) -> list[str]:
    """Return the C code of the preceding launches. If a launch fails, the launcher returns its error."""
    stream, status, arguments = unit.local("stream"), unit.local("status"), unit.local("arguments")
    lines: list[str] = []
    for launch in unit.preceding:
        kernel = launch.kernel
        passed = ", ".join(f"(void *)&{name}" for name in launch.arguments(unit.address))
        lines += [
            "{",
            *(f"  unsigned long long {line}" for line in unit.reciprocals(kernel)),
            f"  void *{arguments}[] = {{{passed}}};",
            f"  {status} = cudaLaunchKernel(",
            f"      reinterpret_cast<const void *>({kernel.name}),",
            f"      dim3(static_cast<unsigned>({c_text(kernel.grid)})), dim3({kernel.threads}), {arguments},",
            f"      {kernel.dynamic_shared_bytes}, {stream});",
            f"  if ({status} != cudaSuccess)",
            f"    return {status};",
            "}",
        ]
    return lines


def _plain(unit: Unit) -> list[str]:
    """Return the C code that launches the last kernel."""
    stream, arguments, blocks = (unit.local(name) for name in ("stream", "arguments", "blocks"))
    return [
        "  return cudaLaunchKernel(",
        f"      reinterpret_cast<const void *>({unit.kernel.name}), dim3({blocks}), dim3({unit.macro('THREADS')}), {arguments},",
        f"      {unit.dynamic}, {stream});",
    ]


def _programmatic_launch(unit: Unit) -> list[str]:
    """Return the C code that launches the last kernel with programmatic dependent launch."""
    stream, arguments, blocks, config, attribute = (unit.local(name) for name in ("stream", "arguments", "blocks", "config", "attribute"))
    return [
        f"  cudaLaunchAttribute {attribute};",
        f"  {attribute}.id = cudaLaunchAttributeProgrammaticStreamSerialization;",
        f"  {attribute}.val.programmaticStreamSerializationAllowed = 1;",
        f"  cudaLaunchConfig_t {config} = {{}};",
        f"  {config}.gridDim = dim3({blocks});",
        f"  {config}.blockDim = dim3({unit.macro('THREADS')});",
        f"  {config}.dynamicSmemBytes = {unit.dynamic};",
        f"  {config}.stream = {stream};",
        f"  {config}.attrs = &{attribute};",
        f"  {config}.numAttrs = 1;",
        f"  return cudaLaunchKernelExC(&{config}, reinterpret_cast<const void *>({unit.kernel.name}), {arguments});",
    ]


def _encoder(unit: Unit) -> list[str]:
    """Return C functions that get those of the driver through the runtime, so that programs need not link the driver."""
    return [
        line
        for function, name, _ in _encoders(unit)
        for line in (
            f"static decltype(&{function}) {name}()",
            "{",
            "  void *found = nullptr;",
            "  cudaDriverEntryPointQueryResult result;",
            f'  if (cudaGetDriverEntryPointByVersion("{function}", &found, 12000, cudaEnableDefault, &result) != cudaSuccess)',
            "    return nullptr;",
            f"  return reinterpret_cast<decltype(&{function})>(found);",
            "}",
            "",
        )
    ]


def _encoders(unit: Unit) -> list[tuple[str, str, str]]:
    """Return the driver's functions that encode the maps, each with the name of a C function that gets it, and of a variable."""
    names = [(f"{unit.name}_encoder", "encode"), (f"{unit.name}_pixel_encoder", "encode_pixels")]
    used = {tensor_map.im2col is not None for tensor_map in unit.maps}
    parts = zip(ENCODERS, names, (False, True), strict=True)
    return [(function, name, unit.local(variable)) for function, (name, variable), pixels in parts if pixels in used]


def _maps(unit: Unit) -> list[str]:
    if not unit.maps:
        return []
    encoders = _encoders(unit)
    return [
        *(
            line
            for _, name, encode in encoders
            for line in (f"static const auto {encode} = {name}();", f"if ({encode} == nullptr)", "  return cudaErrorNotSupported;")
        ),
        f"CUtensorMap {unit.local('maps')}[{len(unit.maps)}];",
        *unit.encodings(unit.local("encode"), unit.local("encode_pixels"), "cudaErrorInvalidValue"),
    ]


def _preparation(unit: Unit) -> list[str]:
    """Return the C code of the steps before the launches. If a step fails, the launcher returns its error.

    Each launch requests shared memory above 48 KiB. The request takes a fraction of the launch time, and is correct after a device reset.
    """
    stream, status = unit.local("stream"), unit.local("status")
    steps = []
    for kernel in unit.kernels:
        if (dynamic := kernel.dynamic_shared_bytes) > DEFAULT_SHARED:
            steps.append(f"cudaFuncSetAttribute({kernel.name}, cudaFuncAttributeMaxDynamicSharedMemorySize, {dynamic})")
    if unit.wide_clusters:
        steps.append(f"cudaFuncSetAttribute({unit.kernel.name}, cudaFuncAttributeNonPortableClusterSizeAllowed, 1)")
    for name, width, pitch, rows, bits in unit.zeroed():
        if bits:
            steps.append(f"{unit.name}_fill({name}, {bits:#x}u, {width} / 4, {pitch} / 4, {rows}, {stream})")
        elif width == pitch:
            steps.append(f"cudaMemsetAsync({name}, 0, {width} * {rows}, {stream})")
        else:
            steps.append(f"cudaMemset2DAsync({name}, {pitch}, 0, {width}, {rows}, {stream})")
    lines = [f"cudaError_t {status};"] if steps or unit.preceding else []
    for step in steps:
        lines += [f"{status} = {step};", f"if ({status} != cudaSuccess)", f"  return {status};"]
    return lines
