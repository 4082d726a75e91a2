"""Print the common parts of the files of an export: the contract as text, and the C function that checks it."""

from __future__ import annotations

import functools
import hashlib
import operator
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron._version import VERSION
from fireiron.errors import ArgumentError, LaunchError
from fireiron.export.preceding_launches import SCRATCH_ALIGN, PrecedingLaunch, Temporary, temporaries
from fireiron.export.tensor_maps import encodings, map_facts, maps_of
from fireiron.gpu.maps import GRANULE
from fireiron.ir import Counter, TensorMap, Workspace
from fireiron.ir.cluster import PORTABLE
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.ir.reciprocal import ONE_HALF, Reciprocal
from fireiron.specs.fused import positive_numbers
from fireiron.values.expr import FALSE, INT_MAX, TRUE, AnyOf, Equal, Expr, Min, Var, as_expr, constant, is_cuda_name
from fireiron.values.layout import Layout
from fireiron.values.tensor import MatrixLayout, whole_view

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.ir import Buffer, Kernel
    from fireiron.spec import Spec

DEFAULT_SHARED: Final = 48 * 1024
"""Bytes of shared memory per block that need no opt-in (CUDA C++ Programming Guide, compute capabilities)."""

C_TYPES: Final = ("float", "double", "int", "long long", "signed char")
"""Element types that C has too. Pointers to other types are pointers to void."""

WORKSPACE_ALIGN: Final = 16
"""Alignment in bytes of a workspace: that of the widest load."""

_RESERVED: Final = (
    *("restrict", "_Bool", "NULL", "size_t", "uintptr_t", "dim3", "cudaError_t", "cudaStream_t"),
    *("CUresult", "CUstream", "CUdeviceptr", "CUmodule", "CUfunction", "CUtensorMap", "cuuint32_t", "cuuint64_t"),
)
"""Names that a parameter in a header must not have, in addition to the keywords of C++."""


@attrs.frozen(eq=False, slots=False)
class Unit:
    """A kernel with the name of its export.

    Functions are called `NAME_...` and the kernel `NAME_kernel`. Preceding kernels are called `NAME_copy_...` if they copy an operand, or
    else `NAME_before_...`.
    """

    name: str
    kernel: Kernel
    program: Program
    preceding: tuple[PrecedingLaunch, ...] = ()

    @staticmethod
    def of(program: Program, name: str) -> Unit:
        """Return the unit of a program.

        Raises: an `ArgumentError` if the name is not a legal, unreserved identifier of C; a `LaunchError` if no sizes are legal.
        """
        require_export_name(name)
        before = tuple(PrecedingLaunch.of(launch, name, program) for launch in program.preceding)
        unit = Unit(name, attrs.evolve(program.ir, name=f"{name}_kernel"), program, before)
        _refuse_zeroing_after_write(unit)
        for parameter in unit.names:
            if parameter in _RESERVED or parameter.startswith(f"{name}_"):
                raise ArgumentError(f"export: {parameter} has another meaning in the header of {name}", hint="rename the symbol")
        for text, condition in unit.facts:
            if condition == FALSE:
                raise LaunchError(f"no sizes are legal for the kernel: {text}", within=unit.kernel.spec)
        return unit

    @property
    def spec(self) -> Spec:
        """Return the spec that all launches together perform."""
        return self.program.spec

    @functools.cached_property
    def text(self) -> str:
        """Return the CUDA C++ code of the kernels, without launchers."""
        from fireiron import cuda

        return cuda.emit(*self.kernels)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """Return the kernels in launch order."""
        return (*(launch.kernel for launch in self.preceding), self.kernel)

    @functools.cached_property
    def temporaries(self) -> tuple[Temporary, ...]:
        """Return the arrays in scratch memory."""
        return temporaries(self.program)

    @property
    def only_copies(self) -> bool:
        """Whether all preceding launches only copy operands of the kernel."""
        return all(launch.copied is not None for launch in self.preceding)

    @functools.cached_property
    def symbols(self) -> tuple[Var, ...]:
        """Return the run-time sizes: first those of the last kernel, then those of preceding launches, such as strides of their arrays."""
        return tuple(dict.fromkeys(symbol for kernel in reversed(self.kernels) for symbol in kernel.symbols))

    @property
    def operand_parameters(self) -> tuple[Buffer, ...]:
        """Return the parameters that are operands, in the order of the spec, as the caller stores them."""
        if not self.preceding:
            return tuple(buffer for buffer in self.kernel.buffers if buffer.parameter)
        operands = self.program.spec.operands.items()
        return tuple(self._as_stored(name) for name, view in operands if view.memory.of_grid)

    def _as_stored(self, name: str) -> Buffer:
        """Return an operand as the caller stores it, with the largest alignment that a launch requires."""
        buffer = self.program.stored(name)
        align = max(
            launch.kernel.buffer(operand).tensor.align
            for launch in self.program.launches
            for operand, array in launch.arrays.items()
            if array == name
        )
        return attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, align=align))

    @functools.cached_property
    def maps(self) -> tuple[TensorMap, ...]:
        """Return the tensor maps that the launcher encodes."""
        return maps_of(self.kernel)

    @functools.cached_property
    def facts(self) -> tuple[tuple[str, Expr], ...]:
        """Return the conditions on sizes: those of the kernels, and those of the tensor maps."""
        facts = [fact for kernel in reversed(self.kernels) for fact in kernel.facts]
        facts += [fact for fact in map_facts(self.kernel).items() if fact[1] != TRUE]
        first = {condition: text for text, condition in reversed(facts)}
        return tuple(dict.fromkeys((first[condition], condition) for _, condition in facts))

    def align(self, buffer: Buffer) -> int:
        """Return the alignment in bytes of an operand's address."""
        return max(buffer.tensor.align, GRANULE) if self._maps_of(buffer) else buffer.tensor.align

    def _maps_of(self, buffer: Buffer) -> list[TensorMap]:
        """Return the tensor maps of an operand, without those of temporaries."""
        return [tensor_map for tensor_map in self.maps if self.array(tensor_map.buffer) == buffer.name]

    @functools.cached_property
    def _arrays(self) -> Mapping[str, str]:
        return self.program.launches[-1].arrays

    def array(self, operand: str) -> str:
        """Return the array of an operand of the last kernel."""
        return self._arrays.get(operand, operand)

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Return the arrays, for which a caller passes pointers. The kernel takes the pointer, tensor maps, or both."""
        return tuple(buffer for buffer in self.operand_parameters if not buffer.memory.by_value)

    @property
    def dynamic(self) -> int:
        """Return the bytes of dynamic shared memory."""
        return self.kernel.dynamic_shared_bytes

    @property
    def wide_clusters(self) -> bool:
        """Whether the clusters of the kernel are larger than the portable cluster size."""
        return self.kernel.cluster is not None and self.kernel.cluster.blocks > PORTABLE

    @property
    def version(self) -> str:
        """Return the origin of the kernel, in one line."""
        operands = ", ".join(f"{operand.name} {operand.dtype} {_layout(operand)}" for operand in self.operand_parameters)
        chosen = " ".join(f"{name}={value}" for name, value in self.program.chosen.items())
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        spec = self.kernel.spec if self.only_copies else self.program.spec
        parts = [f"fireiron {VERSION}", str(spec), operands, chosen, self.kernel.architecture.name, f"kernel {digest}"]
        return "; ".join(part for part in parts if part)

    # ------------------------------------------------------------------------------------------ names

    @property
    def names(self) -> list[str]:
        """Return the names of the parameters."""
        return [*(operand.name for operand in self.operand_parameters), *(symbol.name for symbol in self.symbols)]

    @property
    def check_arguments(self) -> str:
        """Return the arguments that a launcher passes to the check function."""
        return ", ".join([*self.names, *([self.scratch] if self.temporaries else []), *self.counters])

    @property
    def counters(self) -> list[str]:
        """Return the name of the parameter for the tile counter or the workspace, if the kernel has one."""
        provided = (self.kernel.counter, self.kernel.workspace)
        return [self.local(parameter.name) for parameter in provided if parameter is not None]

    @property
    def scratch(self) -> str:
        """Return the name of the parameter for scratch memory."""
        return self.local("scratch")

    def address(self, array: str) -> str:
        """Return the name of an array's address in a launcher."""
        return self.local(array) if any(temporary.name == array for temporary in self.temporaries) else array

    def operand_address(self, operand: str) -> str:
        """Return the name in a launcher of the address of an operand of the last kernel."""
        return self.address(self.array(operand))

    @property
    def arguments(self) -> list[str]:
        """Return the kernel arguments in a launcher, in order."""
        maps = {tensor_map.name: f"{self.local('maps')}[{number}]" for number, tensor_map in enumerate(self.maps)}
        parameters = [parameter for parameter in self.kernel.parameters if not isinstance(parameter, (Counter, Workspace))]
        arguments = (
            maps[parameter.name] if isinstance(parameter, TensorMap) else self.operand_address(parameter.name) for parameter in parameters
        )
        return [*arguments, *self.counters]

    def reciprocals(self, kernel: Kernel | None = None) -> list[str]:
        """Return C statements that compute the reciprocals of sizes for a kernel; None: the last kernel."""
        return [f"{reciprocal.name} = {_reciprocal(reciprocal)};" for reciprocal in (kernel or self.kernel).reciprocals]

    def macro(self, name: str) -> str:
        """Return the name of a macro."""
        return f"{self.name.upper()}_{name}"

    def local(self, name: str) -> str:
        """Return a name that differs from all parameters."""
        while name in self.names or any(name == reciprocal.name for kernel in self.kernels for reciprocal in kernel.reciprocals):
            name += "_"
        return name

    def parameters(self, *more: str, pointer: str = "") -> str:
        """Return the parameters of a C function: operands (of type `pointer` or typed), sizes, scratch memory, counters, and `more`."""
        pointers = [
            f"{number_type(buffer) if buffer.memory.by_value else pointer or pointer_type(buffer)}{buffer.name}"
            for buffer in self.operand_parameters
        ]
        scratch = [f"{pointer or 'void *'}{self.scratch}"] if self.temporaries else []
        counters = [f"{pointer or 'void *'}{counter}" for counter in self.counters]
        return ", ".join([*pointers, *self._sizes(), *scratch, *counters, *more])

    def _sizes(self) -> list[str]:
        return [f"int {symbol.name}" for symbol in self.symbols]

    # ------------------------------------------------------------------------------------------ the contract

    def contract(self) -> list[str]:
        """Return the requirements on a caller, as lines of English text."""
        kernel = self.kernel
        lines = ["Operands, in GPU memory:", *(f"  {line}" for buffer in self.operands for line in self._operand(buffer))]
        numbers = [operand for operand in self.operand_parameters if operand.memory.by_value]
        if numbers:
            lines += [
                "Numbers, passed by value:",
                *(f"  {number.name}: {number.dtype}{_in_bits(number)}{self._sign(number)}" for number in numbers),
            ]
        outputs, inputs = ([operand.name for operand in self.operands if operand.written == written] for written in (True, False))
        others = [*(["each other"] if len(outputs) > 1 else []), *inputs]
        if others:
            lines.append(f"{' and '.join(outputs)} must not overlap {' or '.join(others)}.")
        if self.temporaries:
            lines.append(
                f"{self.scratch}: GPU memory of {self.name}_scratch_bytes bytes, at a multiple of {SCRATCH_ALIGN} bytes. Each launch"
            )
            what = "first copies operands into it" if self.only_copies else "stores temporaries in it"
            reasons = list(dict.fromkeys(f"  {launch.reason}." for launch in self.preceding if launch.reason))
            lines.append(f"{what}, so concurrent launches need separate scratch memory{':' if reasons else '.'}")
            lines += reasons
        lines += self._workspace()
        for counter in self.counters if self.kernel.workspace is None else ():
            lines.append(f"{counter}: 4 bytes of GPU memory, at a multiple of 4, zero before the first launch: the tile counter, which")
            lines.append("each launch resets to zero. Concurrent launches need separate counters.")
        if self.symbols:
            lines += ["Run-time sizes:", *(f"  {_range(symbol)}" for symbol in self.symbols)]
        fixed = [f"{dim} < {size}" for dim, size in zip(self.spec.dims, self.spec.sizes, strict=True) if constant(size) is not None]
        if fixed:
            lines.append(f"Fixed sizes: {', '.join(fixed)}.")
        lines += [f"Requires: {text}{_condition(condition)}." for text, condition in self.facts]
        lines += [f"UNCHECKED, races are not excluded: {reason}" for kernel in self.kernels for reason in kernel.effects[Unchecked].reasons]
        lines.append(f"A launch has {_readable(kernel.grid)} blocks of {kernel.threads} threads.")
        lines += [
            f"Before it {_named(launch)} has {_readable(launch.kernel.grid)} blocks of {launch.kernel.threads} threads."
            for launch in self.preceding
        ]
        if kernel.cluster is not None:
            lines.append(f"They form clusters of {kernel.cluster.blocks} blocks (__cluster_dims__).")
        if kernel.effects[DependentLaunch].enabled:
            lines.append(
                "Programmatic dependent launch: it may start before the preceding kernel in the stream completes, and waits for it."
            )
        tiles = [spec for _, spec in self.program.trace() if spec.level.name == "Block"]
        return [*lines, *(f"A block performs {_readable(spec)}." for spec in tiles[:1])]

    def _workspace(self) -> list[str]:
        """Return the requirements on the workspace, as lines."""
        if self.kernel.workspace is None:
            return []
        size, semaphores = _readable(self.kernel.workspace_bytes), _readable(self.kernel.workspace.semaphores)
        return [
            f"{self.counters[0]}: GPU memory of {size} bytes, at a multiple of {WORKSPACE_ALIGN}, for results of several blocks. Its first "
            f"{semaphores} ints",
            "are zero before the first launch, and each launch resets them to zero. Concurrent launches need separate workspaces.",
        ]

    def _operand(self, buffer: Buffer) -> list[str]:
        labels = [Var(dim) for dim in self.spec.kind.array_dims(self.spec.definition, buffer.name)]
        shape = " x ".join(map(_readable, buffer.array.shape))
        name, align = buffer.name, self.align(buffer)
        kind = "" if buffer.dtype.cuda in C_TYPES else f" ({buffer.dtype.cuda})"
        if not labels:
            return [f"{name}: one element of {buffer.dtype}{kind}, {self._role(buffer)}; the address is a multiple of {align} bytes."]
        offset = _readable(buffer.array_storage.address(labels))
        return [
            f"{name}: {shape} elements of {buffer.dtype}{kind}, {self._role(buffer)};",
            f"   element ({', '.join(map(str, labels))}) is {name}[{offset}]; the address is a multiple of {align} bytes.",
            *self._as_table(buffer),
            *(f"   {_copied(tensor_map)}" for tensor_map in self._maps_of(buffer)),
        ]

    def _as_table(self, buffer: Buffer) -> Iterable[str]:
        """Return the requirement on an array of integers whose elements are indices of operands."""
        for other in self.operands:
            for table in other.storage.tables:
                if table.array == buffer.name:
                    dropped = "elements by other numbers are not written" if table.drops else "others are clamped"
                    clamped = "not checked" if table.promised else dropped
                    yield f"   Its elements are indices of {other.name}, from 0 to {_readable(table.most)}; {clamped}."

    def _role(self, buffer: Buffer) -> str:
        spec = self.spec
        adds = TRUE if spec.atomic else spec.accumulate
        if not buffer.written:
            return "read"
        zeroed = self.kernel.effects[Zeroed]
        if buffer.name in map(self.array, zeroed.names):
            value = next(zeroed.value(name) for name in zeroed.names if self.array(name) == buffer.name)
            start, how = (f"set to {value}", "combined") if value else ("zeroed", "accumulated")
            return f"{start} by the launcher, then {how} in no fixed order"
        return "written" if adds == FALSE else "accumulated" if adds == TRUE else f"accumulated if {_readable(adds)}, else written"

    def _sign(self, buffer: Buffer) -> str:
        """Return the requirement on a number that is passed by value."""
        return ", above 0 and finite" if buffer.name in positive_numbers(self.spec) else ""

    def constants(self) -> list[str]:
        """Return the macros that all headers define."""
        rows = [
            ("VERSION", quoted(self.version)),
            ("ARCHITECTURE", quoted(self.kernel.architecture.name)),
            ("THREADS", f"{self.kernel.threads} /* per block */"),
            ("SHARED_BYTES", f"{self.kernel.shared_bytes} /* shared memory per block */"),
        ]
        rows += [(f"ALIGN_{operand.name.upper()}", f"{self.align(operand)} /* bytes */") for operand in self.operands]
        rows += [("ALIGN_SCRATCH", f"{SCRATCH_ALIGN} /* bytes */")] if self.temporaries else []
        rows += [("EXPORT", f"{self.identity} /* equal in all files of an export */")]
        return [f"#define {self.macro(name)} {value}" for name, value in rows]

    @functools.cached_property
    def identity(self) -> str:
        """Return a C constant that identifies the export: a hash of the kernel, its contract and its checks."""
        contents = "\n".join([self.version, *self.contract(), *self.check_function()])
        return f"0x{hashlib.sha256(contents.encode()).hexdigest()[:8]}UL"

    def export_guard(self, file: str) -> list[str]:
        """Return preprocessor lines that require the header of the same export."""
        return [f"#if {self.macro('EXPORT')} != {self.identity}", f"#error {file} belongs to another export than this file", "#endif"]

    # ------------------------------------------------------------------------------------------ host code

    def check_function(self) -> list[str]:
        """Return a static function in C and C++ that checks addresses, numbers and sizes. It returns the error text, or null."""
        scattered = self._strided_outputs()
        lines = [line.replace("NAME", self.name) for line in _OVERLAPS] if scattered else []
        lines += self._scratch_bytes()
        lines += [f"static const char *{self.name}_refusal({self.parameters(pointer='uintptr_t ')})", "{"]
        for buffer in scattered:
            for quantity, values in (("sizes", buffer.array.shape), ("strides", buffer.array_storage.steps)):
                numbers = ", ".join(c_text(as_expr(value)) for value in values if value is not None)
                lines.append(f"  const long long {self.local(f'{buffer.name}_{quantity}')}[] = {{{numbers}}};")
        unrestricted = [operand for operand in self.operand_parameters if operand.memory.by_value and not self._sign(operand)]
        lines += [f"  (void){buffer.name};" for buffer in unrestricted]
        wrong = (*self._wrong_sizes(), *self._overlapping(), *self._wrong_numbers(), *self._wrong_addresses(), *self._overlaps())
        for condition, text in wrong:
            lines += [f"  if ({condition})", f"    return {quoted(text)};"]
        return [*lines, "  return 0;", "}"]

    def check_call(self) -> str:
        """Return the call of the check function with the parameters of a public function."""
        arguments = [
            *(operand.name if operand.memory.by_value else f"(uintptr_t){operand.name}" for operand in self.operand_parameters),
            *(symbol.name for symbol in self.symbols),
            *([f"(uintptr_t){self.scratch}"] if self.temporaries else []),
            *(f"(uintptr_t){counter}" for counter in self.counters),
        ]
        return f"{self.name}_refusal({', '.join(arguments)})"

    def _wrong_sizes(self) -> Iterable[tuple[str, str]]:
        for symbol in self.symbols:
            above = f" || {symbol} > {symbol.high}" if symbol.high < INT_MAX else ""  # compilers warn about a test that cannot fail
            multiple = f" || {symbol} % {symbol.multiple_of} != 0" if symbol.multiple_of > 1 else ""
            yield f"{symbol} < {symbol.low}{above}{multiple}", f"required: {_range(symbol)}"
        for text, condition in self.facts:
            if condition != TRUE:
                yield f"!({c_text(condition)})", f"required: {text}{_condition(condition)}"

    def _wrong_numbers(self) -> Iterable[tuple[str, str]]:
        """Yield checks of numbers that must be positive; NaN is not positive."""
        for buffer in self.operand_parameters:
            if buffer.memory.by_value and self._sign(buffer):
                yield f"!({buffer.name} > 0{_finite(buffer)})", f"{buffer.name} must be above 0 and finite"

    def _wrong_addresses(self) -> Iterable[tuple[str, str]]:
        for buffer in self.operands:
            yield f"{buffer.name} == 0", f"{buffer.name} is NULL"
            if (align := self.align(buffer)) > 1:
                yield f"{buffer.name} % {align} != 0", f"the address of {buffer.name} is not a multiple of {align} bytes"
            yield f"{_elements(buffer)} > (UINTPTR_MAX - {buffer.name}) / {buffer.dtype.bytes}", f"{buffer.name} exceeds the address space"
        if self.temporaries:
            yield f"{self.scratch} == 0", f"{self.scratch} is NULL"
            yield f"{self.scratch} % {SCRATCH_ALIGN} != 0", f"the address of {self.scratch} is not a multiple of {SCRATCH_ALIGN} bytes"
            yield f"{self.scratch_call} > UINTPTR_MAX - {self.scratch}", f"{self.scratch} exceeds the address space"
        for counter in self.counters:
            yield f"{counter} == 0", f"{counter} is NULL"
            align = 4 if self.kernel.workspace is None else WORKSPACE_ALIGN
            yield f"{counter} % {align} != 0", f"the address of {counter} is not a multiple of {align} bytes"

    def _overlaps(self) -> Iterable[tuple[str, str]]:
        for index, out in enumerate(self.operands):
            for other_index, other in enumerate(self.operands):
                if out.written and (other_index < index or not other.written):
                    condition = f"{out.name} < {other.name} + {_bytes(other)} && {other.name} < {out.name} + {_bytes(out)}"
                    yield condition, f"{out.name} overlaps {other.name}"
        for buffer in self.operands if self.temporaries else ():
            end = f"{self.scratch} + {self.scratch_call}"
            yield f"{buffer.name} < {end} && {self.scratch} < {buffer.name} + {_bytes(buffer)}", f"{self.scratch} overlaps {buffer.name}"

    def _strided_outputs(self) -> list[Buffer]:
        """Return the outputs with run-time strides, whose elements may overlap."""
        known = [operand for operand in self.operands if isinstance(operand.array.layout, Layout) and not operand.array.layout.static]
        return [operand for operand in known if operand.written and None not in operand.array_storage.steps]

    def _overlapping(self) -> Iterable[tuple[str, str]]:
        for buffer in self._strided_outputs():
            sizes, strides = (self.local(f"{buffer.name}_{quantity}") for quantity in ("sizes", "strides"))
            yield f"{self.name}_overlaps({len(buffer.array.shape)}, {sizes}, {strides})", f"elements of {buffer.name} overlap"

    def zeroed(self) -> Iterable[tuple[str, str, str, str, int]]:
        """Yield the address, row bytes, row pitch, number of rows and bits of an element of each output that the launcher sets.

        The launcher must not write the padding between rows. The bits are those of elements of 4 bytes, or 0 for any element.
        """
        for name in self.kernel.effects[Zeroed].names:
            buffer = self.kernel.buffer(name)
            row, step, rows = _rows(buffer)
            width, pitch = (f"(size_t)({c_text(value)}) * {buffer.dtype.bytes}" for value in (row, step))
            yield self.array(name), width, pitch, f"(size_t)({c_text(rows)})", self.kernel.effects[Zeroed].bits(name, buffer.dtype)

    # ------------------------------------------------------------------------------------------ scratch memory

    def scratch_prototype(self, infix: str = "") -> str:
        """Return the prototype of the function that computes the bytes of scratch memory for given sizes."""
        return f"size_t {self.name}{infix}_scratch_bytes({', '.join(self._sizes()) or 'void'})"

    @property
    def scratch_call(self) -> str:
        """Return the call that computes the bytes of scratch memory from the parameters."""
        return f"{self.name}_bytes_of_copies({', '.join(symbol.name for symbol in self.symbols)})"

    def _scratch_bytes(self) -> list[str]:
        """Return the static function that computes the bytes of scratch memory."""
        if not self.temporaries:
            return []
        prototype = f"static size_t {self.name}_bytes_of_copies({', '.join(self._sizes()) or 'void'})"
        return [prototype, "{", f"  return {self.offset(len(self.temporaries))};", "}", ""]

    def offset(self, number: int) -> str:
        """Return the byte offset of a temporary in scratch memory, as C."""
        return " + ".join(rounded_bytes(temporary.buffer) for temporary in self.temporaries[:number]) or "0"

    def encodings(self, encode: str, pixels: str, failure: str) -> list[str]:
        """Return C that encodes the tensor maps into `local("maps")`, and returns `failure` on an error.

        `encode` is the name of the driver's function, and `pixels` that for maps in im2col mode.
        """
        return encodings(self.kernel, self.local, encode, pixels, failure, self.operand_address)

    def minimum(self) -> list[str]:
        """Return a definition of `min`, which C lacks, if an expression of the host needs it."""
        values = [
            *(kernel.grid for kernel in self.kernels),
            *(temporary.buffer.elements for temporary in self.temporaries),
            *(condition for _, condition in self.facts),
            *map(extent, self.operands),
            *(reciprocal.divisor for kernel in self.kernels for reciprocal in kernel.reciprocals),
        ]
        return ["#define min(a, b) ((a) < (b) ? (a) : (b))", ""] if any(map(has_minimum, values)) else []


# ---------------------------------------------------------------------------------------------- pieces of text


_OVERLAPS: Final = (
    "/* Whether elements overlap: in ascending order, each stride must exceed the extent of the dimensions with smaller strides. */",
    "static int NAME_overlaps(int rank, const long long *sizes, const long long *strides)",
    "{",
    "  long long reach = 0, last = 0;",
    "  int round, dim;",
    "  for (round = 0; round < rank; ++round) {",
    "    int next = -1;",
    "    for (dim = 0; dim < rank; ++dim)",
    "      if (sizes[dim] > 1 && strides[dim] == 0)",
    "        return 1;",
    "      else if (sizes[dim] > 1 && strides[dim] > last && (next < 0 || strides[dim] < strides[next]))",
    "        next = dim;",
    "      else if (sizes[dim] > 1 && next >= 0 && dim != next && strides[dim] == strides[next])",
    "        return 1;",
    "    if (next < 0)",
    "      return 0;",
    "    if (strides[next] <= reach)",
    "      return 1;",
    "    last = strides[next];",
    "    reach += last * (sizes[next] - 1);",
    "  }",
    "  return 0;",
    "}",
    "",
)


def _named(launch: PrecedingLaunch) -> str:
    """Return the name of a preceding launch in the contract."""
    return launch.kernel.name if launch.copied is None else f"the copy of {launch.copied}"


def _refuse_zeroing_after_write(unit: Unit) -> None:
    """Refuse a kernel if a preceding launch writes one of its zeroed outputs, because launchers zero outputs before all launches."""
    written = {array for launch in unit.program.preceding for array in launch.writes}
    late = [name for name in map(unit.array, unit.kernel.effects[Zeroed].names) if name in written]
    if late:
        raise ArgumentError(
            f"export: {late[0]} is zeroed before the last launch, but a preceding launch writes {late[0]}",
            legal="outputs that only one launch writes", hint="use split_k without zeroed outputs in the last launch",
        )  # fmt: skip


def rounded_bytes(buffer: Buffer) -> str:
    """Return C for the bytes of an array in scratch memory, rounded up to the start of the next one."""
    return f"((size_t)({c_text(buffer.elements)}) * {buffer.dtype.bytes} + {SCRATCH_ALIGN - 1}) / {SCRATCH_ALIGN} * {SCRATCH_ALIGN}"


def require_export_name(name: object) -> None:
    """Refuse a name that is not a legal, unreserved identifier of C."""
    if not is_cuda_name(name) or name in _RESERVED or str(name).startswith("_") or "__" in str(name):
        legal = "ASCII letters, digits and single _, a letter first, not a keyword of C or C++"
        raise ArgumentError("export: a name must be an identifier of C", got=name, legal=legal)


def c_text(value: Expr) -> str:
    """Return a C expression of sizes, with 64 bits where 32 bits could overflow."""
    from fireiron.cuda import expression

    return expression(value)


def starred(lines: Iterable[str]) -> list[str]:
    """Format lines for a C comment. No line closes the comment."""
    return [f" * {_plain(line).replace('*/', '* /').replace('/*', '/ *')}".rstrip() for line in lines]


def quoted(text: str) -> str:
    """Return a string literal of C, without trigraphs."""
    escaped = _plain(text).replace("\\", "\\\\").replace('"', '\\"').replace("??", '?""?')
    return f'"{escaped}"'


def header(guard: str, head: list[str], includes: tuple[str, ...], constants: list[str], body: list[str]) -> str:
    """Return a header for C and C++."""
    opening = ["/*", *starred(head), " */", f"#ifndef {guard}", f"#define {guard}", "", *(f"#include <{one}>" for one in includes)]
    linkage = ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    closing = ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""]
    return "\n".join([*opening, "", *constants, *linkage, *body, *closing])


def _plain(text: object) -> str:
    """Convert to printable ASCII in one line."""
    return re.sub(r"[^ -~]+", " ", str(text))


def _readable(value: Any) -> str:
    return str(value).replace("//", "/")


def _condition(condition: Expr) -> str:
    if isinstance(condition, AnyOf):
        return f" ({' or '.join(_readable(_equation(child)) for child in condition.children)})"
    return f" ({_readable(condition)})" if constant(condition) is None else ""


def _equation(condition: Expr) -> object:
    return f"{condition.left} == {condition.right}" if isinstance(condition, Equal) else condition


def _range(symbol: Var) -> str:
    multiple = f", a multiple of {symbol.multiple_of}" if symbol.multiple_of > 1 else ""
    return f"{symbol.low} <= {symbol} <= {symbol.high}{multiple}"


def _copied(tensor_map: TensorMap) -> str:
    """Describe a tensor map for a caller: the array is copied in boxes."""
    box = " x ".join(map(str, tensor_map.box))
    if tensor_map.im2col is not None:
        box = f"{tensor_map.box[0]} channels of {tensor_map.box[1]} pixels"
    swizzle = f", swizzled in spans of {tensor_map.span} bytes" if tensor_map.span > GRANULE else ""
    return f"copied by TMA in boxes of {box}{swizzle}; the launcher encodes the tensor map."


def _layout(buffer: Buffer) -> str:
    layout = buffer.array.layout
    if buffer.memory.by_value:
        return "by value"
    if not isinstance(layout, MatrixLayout):
        return str(layout)
    return f"{layout.order}-major" + ("" if layout.leading is None else f" ld={_readable(layout.leading)}")


def _reciprocal(reciprocal: Reciprocal) -> str:
    """Return C for the reciprocal of a size."""
    return f"0x{ONE_HALF - 1:x}ULL / (unsigned long long)({c_text(reciprocal.divisor)}) + 1"


def number_type(buffer: Buffer) -> str:
    """Return the C type of a number that is passed by value. If C lacks the type, an unsigned integer contains its bits."""
    if buffer.dtype.cuda in C_TYPES:
        return f"{buffer.dtype.cuda} "
    return {1: "unsigned char ", 2: "unsigned short "}[buffer.dtype.bytes]


def _finite(buffer: Buffer) -> str:
    """Return the condition that a positive number is finite. If C lacks a float type, its bits are compared with those of infinity."""
    dtype = buffer.dtype
    if dtype.kind == "int":
        return ""
    infinity = ((1 << (dtype.bits - dtype.mantissa)) - 1) << (dtype.mantissa - 1)
    largest = {"float": "<= 3.40282347e+38F", "double": "<= 1.7976931348623157e+308"}
    return f" && {buffer.name} {largest.get(dtype.cuda) or f'< {infinity:#x}'}"


def _in_bits(buffer: Buffer) -> str:
    return "" if buffer.dtype.cuda in C_TYPES else f", its bits as an {number_type(buffer).strip()}"


def pointer_type(buffer: Buffer) -> str:
    """Return the C type of the address of an array."""
    kind = buffer.dtype.cuda if buffer.dtype.cuda in C_TYPES else "void"
    return f"{kind} *" if buffer.written else f"const {kind} *"


def extent(buffer: Buffer) -> Expr:
    """Return the number of elements from the first to the last element of a parameter, without padding after the last row."""
    total: Expr = as_expr(1)
    for size, step in zip(buffer.array.shape, buffer.array_storage.steps, strict=True):
        if step is None:
            raise ArgumentError(f"export: {buffer.name} is stored as {buffer.array.layout}", legal="one stride per dimension")
        total = total + (size - 1) * step
    return total


def _elements(buffer: Buffer) -> str:
    return f"(uintptr_t)({c_text(extent(buffer))})"


def _bytes(buffer: Buffer) -> str:
    return f"{_elements(buffer)} * {buffer.dtype.bytes}"


def _rows(buffer: Buffer) -> tuple[Expr, Expr, Expr]:
    """Return the elements of a row, the row stride and the number of rows. If columns are contiguous, return those of columns."""
    shape, order, steps = buffer.array.shape, whole_view(buffer.array).order, buffer.array_storage.steps
    if len(shape) not in (1, 2) and isinstance(buffer.array.layout, MatrixLayout) and buffer.array.layout.leading is None:
        elements = functools.reduce(operator.mul, shape, as_expr(1))  # all elements are contiguous
        return elements, elements, as_expr(1)
    if len(shape) > 2 or order is None or None in steps:
        message = f"export: {buffer.name} is zeroed before the launch, but stored as {buffer.tensor.layout}"
        raise ArgumentError(message, legal="a matrix whose rows or columns are contiguous, or contiguous elements")
    if len(shape) == 1:
        return shape[0], shape[0], as_expr(1)
    contiguous = 0 if order == "col" else 1
    step = steps[1 - contiguous]
    assert step is not None
    return shape[contiguous], step, shape[1 - contiguous]


def has_minimum(value: Expr) -> bool:
    """Return whether an expression has a minimum, which C lacks."""
    return isinstance(value, Min) or any(map(has_minimum, value.children))
