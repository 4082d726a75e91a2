"""Export a kernel graph: the files of each kernel, and a launcher that calls the launchers of the kernels in order.

    NAME_KERNEL.h, NAME_KERNEL.cu, ...   each kernel, as the export of one kernel
    NAME.h, NAME.cu                      the launcher of the graph, which calls those of the kernels, for the CUDA runtime
    NAME_driver.h, NAME_driver.c         the same for the CUDA driver, in plain C

Workspaces are in the caller's scratch memory. The launcher checks the arguments of all kernels before it launches the first one.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import attrs

from fireiron._version import VERSION
from fireiron.errors import ArgumentError
from fireiron.export.preceding_launches import SCRATCH_ALIGN
from fireiron.export.unit import (
    Unit,
    c_text,
    extent,
    has_minimum,
    header,
    number_type,
    pointer_type,
    quoted,
    require_export_name,
    rounded_bytes,
)
from fireiron.frozen import frozen
from fireiron.kernel_graph.program import GraphProgram
from fireiron.spec import sizes_of
from fireiron.values.expr import Expr, Var

if TYPE_CHECKING:
    from fireiron.ir import Buffer


@frozen
class Interface:
    """The words of an API: the infix of its functions, its types, and its status codes."""

    infix: str
    status: str
    stream: str
    pointer: str
    address: str
    success: str
    invalid: str
    null: str

    @property
    def is_driver(self) -> bool:
        """Whether it is the CUDA driver's, whose pointers are integers."""
        return bool(self.pointer)


RUNTIME: Final = Interface("", "cudaError_t", "cudaStream_t", "", "void *", "cudaSuccess", "cudaErrorInvalidValue", "nullptr")
DRIVER: Final = Interface(
    "_driver", "CUresult", "CUstream", "CUdeviceptr ", "CUdeviceptr ", "CUDA_SUCCESS", "CUDA_ERROR_INVALID_VALUE", "NULL"
)


@attrs.frozen(eq=False, slots=False)
class GraphUnit:
    """A kernel graph with the name of its export; `units` are its kernels, called `NAME_KERNEL`."""

    name: str
    program: GraphProgram
    units: Mapping[str, Unit]

    @staticmethod
    def of(program: GraphProgram, name: str) -> GraphUnit:
        """Return the unit of a graph.

        Raises: an `ArgumentError` if a name is not legal in C, if two parameters have the same name, or if the strides of a workspace are
            known only at run time; the errors of `Unit.of`, with the name of the kernel.
        """
        from fireiron.kernel_graph.program import of_kernel

        require_export_name(name)
        program.require_legal()
        _require_kernel_names(program)
        units = {}
        for kernel, part in program.kernels.items():
            with of_kernel(program.name, kernel):
                units[kernel] = Unit.of(part, f"{name}_{kernel}")
        unit = GraphUnit(name, program, units)
        unit._require_names()
        for kernel, array in unit.workspaces:
            strides = set(unit._stride_arrays(kernel))
            unknown = sorted(symbol for symbol in strides if array in unit._stride_arrays(kernel)[symbol])
            if unknown:
                raise ArgumentError(
                    f"export: the workspace {array} has the stride {unknown[0]}, which is known only at run time",
                    legal="RowMajor, ColMajor or strides that its sizes determine", hint=f"state the storage of {array} in the specs",
                )  # fmt: skip
        return unit

    def _require_names(self) -> None:
        """Refuse parameters with equal names."""
        names = self.names
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ArgumentError(f"export: two parameters are called {twice}", got=names, hint="rename an operand or a symbol")
        for parameter in names:
            if parameter.startswith(f"{self.name}_"):
                raise ArgumentError(f"export: {parameter} has another meaning in the header of {self.name}", hint="use another name")

    # ------------------------------------------------------------------------------------------ arrays

    @property
    def arrays(self) -> tuple[str, ...]:
        """Return the arguments and results, in the order of the parameters."""
        return (*self.program.graph.inputs, *self.program.graph.outputs)

    @functools.cached_property
    def workspaces(self) -> tuple[tuple[str, str], ...]:
        """Return the workspaces with the kernels that write them, in the order of these kernels."""
        return tuple((array.partition(".")[0], array) for array in self.program.graph.workspaces)

    @functools.cached_property
    def parameter_names(self) -> Mapping[str, str]:
        """Return the name of the parameter of each argument and result: `square_X` for `square.X`."""
        names = self.program.graph.arrays.names
        return {array: names[array].replace(".", "_") for array in self.arrays}

    def buffer(self, array: str) -> Buffer:
        """Return an array as the kernel that writes it, or reads it first, stores it."""
        kernel, _, operand = array.partition(".")
        return next(buffer for buffer in self.units[kernel].operand_parameters if buffer.name == operand)

    def array_of(self, kernel: str, operand: str) -> str:
        """Return the array of an operand of a kernel."""
        return self.program.graph.arrays.of[f"{kernel}.{operand}"]

    # ------------------------------------------------------------------------------------------ sizes

    def _stride_arrays(self, kernel: str) -> dict[str, tuple[str, ...]]:
        """Return the arrays of each stride that is known only at run time, by its symbol."""
        unit = self.units[kernel]
        sizes = {size.name for size in sizes_of(unit.spec)}
        strides = [symbol.name for symbol in unit.symbols if symbol.name not in sizes]
        used = {
            self.array_of(kernel, buffer.name): {
                var.name for step in buffer.array_storage.steps if step is not None for var in step.variables()
            }
            for buffer in unit.operands
        }
        return {stride: tuple(array for array, names in used.items() if stride in names) for stride in strides}

    @functools.cached_property
    def symbol_names(self) -> Mapping[tuple[str, str], str]:
        """Return the parameter of each symbol of a kernel: its own name, or `KERNEL_ldc` if it is the stride of another array elsewhere."""
        arrays = {kernel: self._stride_arrays(kernel) for kernel in self.units}
        meanings: dict[str, set[tuple[str, ...]]] = {}
        for strides in arrays.values():
            for stride, used in strides.items():
                meanings.setdefault(stride, set()).add(used)
        sizes = {size.name for unit in self.units.values() for size in sizes_of(unit.spec)}
        return {
            (kernel, symbol.name): f"{kernel}_{symbol.name}"
            if symbol.name in arrays[kernel] and (len(meanings[symbol.name]) > 1 or symbol.name in sizes)
            else symbol.name
            for kernel, unit in self.units.items()
            for symbol in unit.symbols
        }

    @functools.cached_property
    def symbols(self) -> tuple[str, ...]:
        """Return the parameters that are sizes and strides, in the order of their first use."""
        return tuple(dict.fromkeys(self.symbol_names.values()))

    # ------------------------------------------------------------------------------------------ names

    @property
    def names(self) -> list[str]:
        """Return the names of the parameters that kernels and sizes determine."""
        return [*self.parameter_names.values(), *self.symbols, *self.counters.values()]

    @functools.cached_property
    def counters(self) -> Mapping[str, str]:
        """Return the parameter of the tile counter of each kernel that has one."""
        return {kernel: f"{kernel}_counter" for kernel, unit in self.units.items() if unit.counters}

    @functools.cached_property
    def scratch(self) -> str:
        """Return the name of the parameter for scratch memory; empty if no kernel needs some."""
        needed = self.workspaces or any(unit.temporaries for unit in self.units.values())
        return self.local("scratch") if needed else ""

    def local(self, name: str) -> str:
        """Return a name that differs from all parameters."""
        while name in self.names:
            name += "_"
        return name

    def macro(self, name: str) -> str:
        """Return the name of a macro."""
        return f"{self.name.upper()}_{name}"

    def function(self, name: str, api: Interface) -> str:
        """Return the name of a function."""
        return f"{self.name}{api.infix}_{name}"

    # ------------------------------------------------------------------------------------------ parameters

    def parameters(self, api: Interface, *more: str) -> str:
        """Return the parameters of a C function: arguments, results, sizes, scratch memory, counters, and `more`."""
        parts = []
        for array, name in self.parameter_names.items():
            buffer = self.buffer(array)
            parts.append(f"{number_type(buffer) if buffer.memory.by_value else api.pointer or pointer_type(buffer)}{name}")
        parts += self._sizes()
        parts += [f"{api.address}{self.scratch}"] if self.scratch else []
        parts += [f"{api.address}{counter}" for counter in self.counters.values()]
        return ", ".join([*parts, *more])

    def _sizes(self) -> list[str]:
        return [f"int {symbol}" for symbol in self.symbols]

    def passed(self, more: Sequence[str] = ()) -> str:
        """Return the parameters as arguments of another function of the export."""
        scratch = [self.scratch] if self.scratch else []
        return ", ".join([*self.parameter_names.values(), *self.symbols, *scratch, *self.counters.values(), *more])

    def arguments(self, kernel: str, api: Interface, *more: str) -> str:
        """Return the arguments of a function of a kernel; workspaces are at the local addresses."""
        unit = self.units[kernel]
        parts = [self._address(kernel, buffer, api) for buffer in unit.operand_parameters]
        parts += [self.symbol_names[kernel, symbol.name] for symbol in unit.symbols]
        if unit.temporaries:
            parts.append(self._cast(self.own_scratch(kernel), "void *", api))
        parts += [self.counters[kernel]] if kernel in self.counters else []
        return ", ".join([*parts, *more])

    def _address(self, kernel: str, buffer: Buffer, api: Interface) -> str:
        array = self.array_of(kernel, buffer.name)
        if array in self.parameter_names:
            return self.parameter_names[array]
        return self._cast(self.workspace_address(array), pointer_type(buffer), api)

    def _cast(self, address: str, kind: str, api: Interface) -> str:
        return f"({api.address.strip()}){address}" if api.is_driver else f"({kind}){address}"

    # ------------------------------------------------------------------------------------------ scratch memory

    def workspace_address(self, array: str) -> str:
        """Return the name of the address of a workspace."""
        return self.local(f"at_{array.replace('.', '_')}")

    def own_scratch(self, kernel: str) -> str:
        """Return the name of the address of the scratch memory of one kernel."""
        return self.local(f"scratch_of_{kernel}")

    def parts(self, api: Interface) -> list[tuple[str, str]]:
        """Return the name of the address and the bytes, as C, of each part of scratch memory.

        The parts of a kernel follow those of earlier kernels, so an address depends on sizes that earlier checks have accepted.
        """
        parts = []
        for kernel, unit in self.units.items():
            parts += [(self.workspace_address(array), self._bytes(array)) for writer, array in self.workspaces if writer == kernel]
            if unit.temporaries:
                sizes = ", ".join(self.symbol_names[kernel, symbol.name] for symbol in unit.symbols)
                used = f"{unit.name}{api.infix}_scratch_bytes({sizes})"
                parts.append((self.own_scratch(kernel), f"({used} + {SCRATCH_ALIGN - 1}) / {SCRATCH_ALIGN} * {SCRATCH_ALIGN}"))
        return parts

    def _bytes(self, array: str) -> str:
        return rounded_bytes(self.buffer(array))

    def addresses(self, api: Interface) -> list[str]:
        """Return C that defines the addresses of all parts of scratch memory."""
        lines, at = [], f"(uintptr_t){self.scratch}"
        for name, size in self.parts(api):
            lines.append(f"const uintptr_t {name} = {at};")
            at = f"{name} + {size}"
        return lines

    def total(self, api: Interface) -> str:
        """Return the bytes of scratch memory as C."""
        return " + ".join(size for _, size in self.parts(api)) or "0"

    # ------------------------------------------------------------------------------------------ checks

    def wrong(self, api: Interface) -> list[tuple[str, str]]:
        """Return conditions under which the arguments are illegal, with texts, that no kernel checks: scratch memory, and overlaps."""
        wrong = []
        if self.scratch:
            bytes_of = f"{self.function('scratch_bytes', api)}({', '.join(self.symbols)})"
            end = f"(uintptr_t){self.scratch} + {bytes_of}"
            wrong.append((f"{bytes_of} > UINTPTR_MAX - (uintptr_t){self.scratch}", f"{self.scratch} exceeds the address space"))
            for array, name in self.parameter_names.items():
                if not self.buffer(array).memory.by_value:
                    condition = f"(uintptr_t){name} < {end} && (uintptr_t){self.scratch} < {self._end(array)}"
                    wrong.append((condition, f"{self.scratch} overlaps {name}"))
        for first, second in self.apart():
            name, other = self.parameter_names[first], self.parameter_names[second]
            condition = f"(uintptr_t){name} < {self._end(second)} && (uintptr_t){other} < {self._end(first)}"
            wrong.append((condition, f"{name} overlaps {other}, which a later kernel reads or another kernel writes"))
        return wrong

    def _end(self, array: str) -> str:
        """Return the address after an array, as C."""
        kernel = array.partition(".")[0]
        buffer, renamed = self.buffer(array), {}
        for symbol in self.units[kernel].symbols:
            name = self.symbol_names[kernel, symbol.name]
            if name != symbol.name:
                renamed[symbol] = Var(name, symbol.low, symbol.high, symbol.multiple_of)
        elements: Expr = extent(buffer).substitute(renamed) if renamed else extent(buffer)
        return f"(uintptr_t){self.parameter_names[array]} + (uintptr_t)({c_text(elements)}) * {buffer.dtype.bytes}"

    def apart(self) -> list[tuple[str, str]]:
        """Return the pairs of a result and another result, or an argument that a later kernel reads."""
        graph, order = self.program.graph, list(self.units)
        pairs = []
        for place, result in enumerate(graph.outputs):
            writer = order.index(result.partition(".")[0])
            pairs += [(result, other) for other in graph.outputs[:place] if other.partition(".")[0] != result.partition(".")[0]]
            later = {self.array_of(kernel, name) for kernel in order[writer + 1 :] for name in graph.specs[kernel].inputs}
            pairs += [(result, array) for array in graph.inputs if array in later and not self.buffer(array).memory.by_value]
        return pairs

    # ------------------------------------------------------------------------------------------ contract

    @functools.cached_property
    def version(self) -> str:
        """Return the origin of the graph, in one line."""
        parts = [f"{kernel}: {unit.version}" for kernel, unit in self.units.items()]
        return f"fireiron {VERSION}; {str(self.program.graph).splitlines()[0]}; {'; '.join(parts)}"

    @functools.cached_property
    def identity(self) -> str:
        """Return a C constant that identifies the export."""
        contents = "\n".join([self.version, *self.contract(), *(unit.identity for unit in self.units.values())])
        return f"0x{hashlib.sha256(contents.encode()).hexdigest()[:8]}UL"

    def contract(self) -> list[str]:
        """Return the requirements on a caller, as lines of English text."""
        graph = self.program.graph
        lines = [
            "Kernels, in order on one stream:",
            *(f"  {kernel}: {graph.flow(kernel)}; see {unit.name}.h" for kernel, unit in self.units.items()),
        ]
        lines += ["Arguments and results, with the requirements in the headers of the kernels:"]
        for array, name in self.parameter_names.items():
            kernel, _, operand = array.partition(".")
            role = "result" if array in graph.outputs else "argument"
            readers = [other for other, spec in graph.specs.items() if any(self.array_of(other, one) == array for one in spec.inputs)]
            read = f", read by {', '.join(readers)}" if readers else ""
            lines.append(f"  {name}: {role}, {operand} of {kernel}{read}.")
        if self.scratch:
            lines.append(f"{self.scratch}: GPU memory of {self.name}_scratch_bytes bytes, at a multiple of {SCRATCH_ALIGN} bytes, for the")
            lines.append("workspaces. Concurrent launches need separate scratch memory.")
        for kernel, counter in self.counters.items():
            lines.append(f"{counter}: the tile counter of {kernel}, 4 bytes of GPU memory, zero before the first launch.")
        return [*lines, "Results must not overlap each other, or arguments that the same kernel or a later one reads."]

    def constants(self) -> list[str]:
        """Return the macros that all headers define."""
        rows = [
            ("VERSION", quoted(self.version)),
            ("ARCHITECTURE", quoted(self.program.architecture.name)),
            ("KERNELS", str(len(self.units))),
        ]
        rows += [("ALIGN_SCRATCH", f"{SCRATCH_ALIGN} /* bytes */")] if self.scratch else []
        rows += [("EXPORT", f"{self.identity} /* equal in all files of an export */")]
        return [f"#define {self.macro(name)} {value}" for name, value in rows]

    def guards(self, file: str) -> list[str]:
        """Return preprocessor lines that require the headers of the same export, of the graph and of its kernels."""
        lines = [f"#if {self.macro('EXPORT')} != {self.identity}", f"#error {file} belongs to another export than this file", "#endif"]
        return [*lines, *(line for unit in self.units.values() for line in unit.export_guard(f"{unit.name}.h"))]

    # ------------------------------------------------------------------------------------------ code

    def minimum(self) -> list[str]:
        """Return a definition of `min`, which C lacks, if an expression needs it."""
        values = [*(self.buffer(array).elements for _, array in self.workspaces)]
        values += [extent(self.buffer(array)) for array in self.parameter_names if not self.buffer(array).memory.by_value]
        return ["#define min(a, b) ((a) < (b) ? (a) : (b))", ""] if any(map(has_minimum, values)) else []

    def scratch_prototype(self, api: Interface) -> str:
        """Return the prototype of the function that computes the bytes of scratch memory."""
        return f"size_t {self.function('scratch_bytes', api)}({', '.join(self._sizes()) or ('void' if api.is_driver else '')})"

    def prototypes(self, api: Interface) -> list[str]:
        """Return the prototypes for a header; `loaded` is the first parameter of the driver's launcher."""
        stream = self.local("stream")
        scratch = [f"/* Bytes of scratch memory that a launch needs, at a multiple of {self.macro('ALIGN_SCRATCH')}. */",
                   f"{self.scratch_prototype(api).replace('()', '(void)')};", ""] if self.scratch else []  # fmt: skip
        first = f"const {self.name}_driver *{self.local('loaded')}, " if api.is_driver else ""
        return [
            "/* Check the arguments of all kernels without a launch: NULL if they are legal, else a static text with the reason. */",
            f"const char *{self.function('check', api)}({self.parameters(api)});",
            "",
            *scratch,
            f"/* Launch all kernels in order; {api.invalid} without a launch if {self.function('check', api)} refuses the arguments. */",
            f"{api.status} {self.function('launch', api)}({first}{self.parameters(api, f'{api.stream} {stream}')});",
            "",
        ]

    def functions(self, api: Interface) -> list[str]:
        """Return the code of the functions."""
        linkage = "" if api.is_driver else 'extern "C" '
        lines = []
        if self.scratch:
            lines += [f"{linkage}{self.scratch_prototype(api)}", "{", f"  return {self.total(api)};", "}", ""]
        return [*lines, *self._check(api, linkage), "", *self._launch(api, linkage), ""]

    def _check(self, api: Interface, linkage: str) -> list[str]:
        why = self.local("why")
        lines = [f"{linkage}const char *{self.function('check', api)}({self.parameters(api)})", "{"]
        lines += [*(f"  {line}" for line in self.addresses(api)), f"  const char *{why} = {api.null};"]
        if self.scratch:
            at, most = f"(uintptr_t){self.scratch}", f"a multiple of {SCRATCH_ALIGN} bytes"
            lines += [f"  if ({at} == 0)", f"    return {quoted(f'{self.scratch} is NULL')};"]
            lines += [f"  if ({at} % {SCRATCH_ALIGN} != 0)", f"    return {quoted(f'the address of {self.scratch} is not {most}')};"]
        for kernel, unit in self.units.items():
            lines += [f"  {why} = {unit.name}{api.infix}_check({self.arguments(kernel, api)});"]
            lines += [f"  if ({why} != {api.null})", f"    return {why};"]
        for condition, text in self.wrong(api):
            lines += [f"  if ({condition})", f"    return {quoted(text)};"]
        return [*lines, f"  return {why};", "}"]

    def _launch(self, api: Interface, linkage: str) -> list[str]:
        stream, status, loaded = (self.local(name) for name in ("stream", "status", "loaded"))
        first = f"const {self.name}_driver *{loaded}, " if api.is_driver else ""
        missing = f"{loaded} == NULL || " if api.is_driver else ""
        lines = [
            f"{linkage}{api.status} {self.function('launch', api)}({first}{self.parameters(api, f'{api.stream} {stream}')})",
            "{",
            *(f"  {line}" for line in self.addresses(api)),
            f"  {api.status} {status} = {api.success};",
            f"  if ({missing}{self.function('check', api)}({self.passed()}) != {api.null})",
            f"    return {api.invalid};",
        ]
        for kernel, unit in self.units.items():
            own = f"&{loaded}->{kernel}, " if api.is_driver else ""
            lines += [f"  {status} = {unit.name}{api.infix}_launch({own}{self.arguments(kernel, api, stream)});"]
            lines += [f"  if ({status} != {api.success})", f"    return {status};"]
        return [*lines, f"  return {status};", "}"]


def _require_kernel_names(program: GraphProgram) -> None:
    """Refuse kernels whose files or macros would have the names of others."""
    kernels = list(program.kernels)
    for place, kernel in enumerate(kernels):
        if kernel == "driver":
            raise ArgumentError(
                "export: a kernel called driver would have the files of the launcher for the driver", hint="rename the kernel"
            )
        same = [other for other in kernels[:place] if other.upper() == kernel.upper()]
        if same:
            raise ArgumentError(f"export: {same[0]} and {kernel} would have the same macros", hint="names that differ not only in case")


# ---------------------------------------------------------------------------------------------- files


def graph_runtime_header(unit: GraphUnit) -> str:
    """Return the text of `NAME.h`."""
    name = unit.name
    head = [f"{name}: kernels on {unit.program.architecture}, written by Fireiron {VERSION}. For C and C++.", "", *unit.contract(), ""]
    head += ["Build with nvcc, one of", *(f"  {line}" for line in graph_runtime_build(unit).values())]
    body = [
        *unit.prototypes(RUNTIME),
        f"/* The value of {unit.macro('VERSION')} when the library was built. */",
        f"const char *{name}_version(void);",
    ]
    includes = ("cuda_runtime_api.h", *(["stddef.h"] if unit.scratch else []))
    return header(f"FIREIRON_{name.upper()}_H", head, includes, unit.constants(), body)


def graph_runtime_source(unit: GraphUnit) -> str:
    """Return the text of `NAME.cu`."""
    name = unit.name
    lines = [
        f"// {name}.h has the contract and the commands that build this file with those of the kernels.",
        f'#include "{name}.h"',
        *(f'#include "{part.name}.h"' for part in unit.units.values()),
        "",
        *unit.guards(f"{name}.h"),
        "",
        "#include <stdint.h>",
        "",
        *unit.minimum(),
        *unit.functions(RUNTIME),
        f'extern "C" const char *{name}_version(void)',
        "{",
        f"  return {unit.macro('VERSION')};",
        "}",
        "",
    ]
    return "\n".join(lines)


def graph_runtime_build(unit: GraphUnit) -> dict[str, str]:
    """Return the nvcc command for each kind of file that can be built."""
    from fireiron.export.runtime import nvcc_target

    sources = " ".join(f"{name}.cu" for name in (unit.name, *(part.name for part in unit.units.values())))
    nvcc = f"nvcc -std=c++17 -O3 {nvcc_target(unit.program.architecture.name)}"
    return {
        "static library": f"{nvcc} --lib {sources} -o lib{unit.name}.a",
        "shared library": f"{nvcc} --shared -Xcompiler -fPIC {sources} -o lib{unit.name}.so",
    }


_LOADING: Final = """\
{status} {name}_driver_load({name}_driver *loaded, const void *const *images, const size_t *bytes)
{{
  {status} status = CUDA_SUCCESS;
  if (loaded == NULL || images == NULL || bytes == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  {clear}
{images}
  return status;
}}

{status} {name}_driver_load_files({name}_driver *loaded, const char *const *paths)
{{
  {status} status = CUDA_SUCCESS;
  if (loaded == NULL || paths == NULL)
    return CUDA_ERROR_INVALID_VALUE;
  {clear}
{files}
  return status;
}}

{status} {name}_driver_unload({name}_driver *loaded)
{{
  {status} status = CUDA_SUCCESS, other;
  if (loaded == NULL)
    return CUDA_ERROR_INVALID_VALUE;
{unload}
  return status;
}}
"""


def graph_driver_header(unit: GraphUnit) -> str:
    """Return the text of `NAME_driver.h`."""
    name = unit.name
    head = [f"{name}_driver: {len(unit.units)} kernels launched through the CUDA driver, written by Fireiron {VERSION}. For C and C++.", ""]
    head += [*unit.contract(), "", *(f"Build: {line}" for line in graph_driver_build(unit).values()), "and link with -lcuda."]
    order = ", ".join(f"{part.name}.cubin" for part in unit.units.values())
    body = [
        f"typedef struct {name}_driver {{",
        *(f"  {part.name}_driver {kernel};" for kernel, part in unit.units.items()),
        f"}} {name}_driver;",
        "",
        f"/* Load the bytes of {order}, in this order, into the current context; nothing is loaded after an error. */",
        f"CUresult {name}_driver_load({name}_driver *loaded, const void *const *images, const size_t *bytes);",
        "",
        "/* The same from files. */",
        f"CUresult {name}_driver_load_files({name}_driver *loaded, const char *const *paths);",
        "",
        "/* Unload all kernels; CUDA_ERROR_INVALID_VALUE if nothing is loaded. */",
        f"CUresult {name}_driver_unload({name}_driver *loaded);",
        "",
        *unit.prototypes(DRIVER),
    ]
    text = header(f"FIREIRON_{name.upper()}_DRIVER_H", head, ("cuda.h", "stddef.h"), unit.constants(), body)
    includes = "\n".join(f'#include "{part.name}_driver.h"' for part in unit.units.values())
    return text.replace("#include <stddef.h>\n", f"#include <stddef.h>\n{includes}\n", 1)


def graph_driver_source(unit: GraphUnit) -> str:
    """Return the text of `NAME_driver.c`."""
    name, kernels = unit.name, list(unit.units.items())

    def loads(suffix: str, source: str) -> str:
        calls = []
        for place, (kernel, part) in enumerate(kernels):
            calls += [
                "  if (status == CUDA_SUCCESS)",
                f"    status = {part.name}_driver_{suffix}(&loaded->{kernel}, {source.format(place)});",
            ]
        return "\n".join([*calls, "  if (status != CUDA_SUCCESS)", f"    {name}_driver_unload(loaded);"])

    unload = []
    for kernel, part in kernels:
        unload += [f"  other = {part.name}_driver_unload(&loaded->{kernel});", "  status = status == CUDA_SUCCESS ? other : status;"]
    loading = _LOADING.format(
        status="CUresult", name=name, clear="\n  ".join(f"loaded->{kernel}.module = NULL;" for kernel, _ in kernels),
        images=loads("load", "images[{0}], bytes[{0}]"), files=loads("load_file", "paths[{0}]"), unload="\n".join(unload),
    )  # fmt: skip
    lines = [
        f"/* {name}_driver.h has the contract and the command that builds this file. */",
        f'#include "{name}_driver.h"',
        "",
        *unit.guards(f"{name}_driver.h"),
        "",
        "#include <stdint.h>",
        "",
        *unit.minimum(),
        loading,
        *unit.functions(DRIVER),
    ]
    return "\n".join(lines)


def graph_driver_build(unit: GraphUnit) -> dict[str, str]:
    """Return the C compiler command for the launchers."""
    sources = " ".join(f"{name}_driver.c" for name in (unit.name, *(part.name for part in unit.units.values())))
    return {"driver launcher": f"cc -O2 -I$CUDA_HOME/include -c {sources}"}


__all__ = [
    "GraphUnit",
    "graph_driver_build",
    "graph_driver_header",
    "graph_driver_source",
    "graph_runtime_build",
    "graph_runtime_header",
    "graph_runtime_source",
]
