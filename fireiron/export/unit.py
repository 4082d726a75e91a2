"""What the files of an export share: the contract in words, and the C function that holds a caller to it."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron._version import VERSION
from fireiron.errors import ArgumentError, LaunchError
from fireiron.export.before import SCRATCH_ALIGN, Before, Temporary, temporaries
from fireiron.export.maps import encodings, map_facts, maps_of
from fireiron.gpu.maps import GRANULE
from fireiron.ir import Counter, TensorMap
from fireiron.ir.cluster import PORTABLE
from fireiron.ir.effects.chaining import Chaining
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
"""Bytes of shared memory per block without opt-in (CUDA C++ Programming Guide, compute capabilities)."""

C_TYPES: Final = ("float", "double", "int", "signed char")
"""Element types that C has too; pointers to others are pointers to void."""

_TAKEN: Final = (
    *("restrict", "_Bool", "NULL", "size_t", "uintptr_t", "dim3", "cudaError_t", "cudaStream_t"),
    *("CUresult", "CUstream", "CUdeviceptr", "CUmodule", "CUfunction", "CUtensorMap", "cuuint32_t", "cuuint64_t"),
)
"""Names that a header must not give to a parameter, beyond the keywords of C++."""


@attrs.frozen(eq=False, slots=False)
class Unit:
    """A kernel under the name of its export: functions are called `NAME_...`, the kernel itself `NAME_kernel`, those that are launched
    before it `NAME_copy_...` where they copy an operand, else `NAME_before_...`.
    """

    name: str
    kernel: Kernel
    program: Program
    before: tuple[Before, ...] = ()

    @staticmethod
    def of(program: Program, name: str) -> Unit:
        """The unit of a program; a name that C or its headers would misread is refused."""
        if not is_cuda_name(name) or name in _TAKEN or name.startswith("_") or "__" in name:
            legal = "ASCII letters, digits and single _, a letter first, no keyword of C or C++"
            raise ArgumentError("export: a name must be an identifier of C", got=name, legal=legal)
        before = tuple(Before.of(launch, name, program) for launch in program.preceding)
        unit = Unit(name, attrs.evolve(program.ir, name=f"{name}_kernel"), program, before)
        _require_zeroed_first(unit)
        for parameter in unit.names:
            if parameter in _TAKEN or parameter.startswith(f"{name}_"):
                raise ArgumentError(f"export: {parameter} means something else in the header of {name}", hint="rename the symbol")
        for text, condition in unit.facts:
            if condition == FALSE:
                raise LaunchError(f"the kernel serves no sizes: {text}", within=unit.kernel.spec)
        return unit

    @property
    def spec(self) -> Spec:
        """What all launches perform together."""
        return self.program.spec

    @functools.cached_property
    def text(self) -> str:
        """CUDA C++ of the kernels alone."""
        from fireiron import cuda

        return cuda.emit(*self.kernels)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernels in the order of their launches."""
        return (*(one.kernel for one in self.before), self.kernel)

    @functools.cached_property
    def temporaries(self) -> tuple[Temporary, ...]:
        """The arrays in scratch memory."""
        return temporaries(self.program)

    @property
    def copies_alone(self) -> bool:
        """Whether launches before the kernel do nothing but copy operands of it."""
        return all(one.copied is not None for one in self.before)

    @functools.cached_property
    def symbols(self) -> tuple[Var, ...]:
        """The sizes known at run time: those of the kernel, then others of launches before it, strides of the arrays that they read."""
        return tuple(dict.fromkeys(symbol for kernel in reversed(self.kernels) for symbol in kernel.symbols))

    @property
    def given(self) -> tuple[Buffer, ...]:
        """The parameters that are operands, in the order of the spec, as the caller stores them."""
        if not self.before:
            return tuple(buffer for buffer in self.kernel.buffers if buffer.parameter)
        operands = self.program.spec.operands.items()
        return tuple(self._stored(name) for name, view in operands if view.memory.of_grid)

    def _stored(self, name: str) -> Buffer:
        """An operand as the caller stores it, at an address that serves all launches."""
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
        """The tensor maps that the launcher encodes."""
        return maps_of(self.kernel)

    @functools.cached_property
    def facts(self) -> tuple[tuple[str, Expr], ...]:
        """The conditions on sizes: those of the kernels, and those of the tensor maps."""
        facts = [fact for kernel in reversed(self.kernels) for fact in kernel.facts]
        facts += [fact for fact in map_facts(self.kernel).items() if fact[1] != TRUE]
        first = {condition: text for text, condition in reversed(facts)}
        return tuple(dict.fromkeys((first[condition], condition) for _, condition in facts))

    def align(self, buffer: Buffer) -> int:
        """Bytes of which the address of an operand is a multiple."""
        return max(buffer.tensor.align, GRANULE) if self._maps_of(buffer) else buffer.tensor.align

    def _maps_of(self, buffer: Buffer) -> list[TensorMap]:
        """The tensor maps of an operand itself, not of a temporary."""
        return [one for one in self.maps if self.array(one.buffer) == buffer.name]

    @functools.cached_property
    def _arrays(self) -> Mapping[str, str]:
        return self.program.launches[-1].arrays

    def array(self, operand: str) -> str:
        """The array that an operand of the last kernel is."""
        return self._arrays.get(operand, operand)

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """The arrays, for each of which a caller passes a pointer; the kernel takes it, or tensor maps, or both."""
        return tuple(buffer for buffer in self.given if not buffer.memory.by_value)

    @property
    def dynamic(self) -> int:
        """Bytes of dynamic shared memory."""
        return self.kernel.dynamic_shared_bytes

    @property
    def wide_clusters(self) -> bool:
        """Whether its clusters have more blocks than need no permission."""
        return self.kernel.cluster is not None and self.kernel.cluster.blocks > PORTABLE

    @property
    def version(self) -> str:
        """Where the kernel comes from, on one line."""
        operands = ", ".join(f"{one.name} {one.dtype} {_layout(one)}" for one in self.given)
        chosen = " ".join(f"{name}={value}" for name, value in self.program.chosen.items())
        digest = hashlib.sha256(self.text.encode()).hexdigest()[:16]
        spec = self.kernel.spec if self.copies_alone else self.program.spec
        parts = [f"fireiron {VERSION}", str(spec), operands, chosen, self.kernel.architecture.name, f"kernel {digest}"]
        return "; ".join(part for part in parts if part)

    # ------------------------------------------------------------------------------------------ names

    @property
    def names(self) -> list[str]:
        """The names of the parameters."""
        return [*(one.name for one in self.given), *(symbol.name for symbol in self.symbols)]

    @property
    def passed(self) -> str:
        """What a launcher passes on to the function that checks it."""
        return ", ".join([*self.names, *([self.scratch] if self.temporaries else []), *self.counters])

    @property
    def counters(self) -> list[str]:
        """The name of the parameter for what counts tiles, if the kernel has one."""
        return [] if self.kernel.counter is None else [self.local(self.kernel.counter.name)]

    @property
    def scratch(self) -> str:
        """The name of the parameter for scratch memory."""
        return self.local("scratch")

    def place(self, array: str) -> str:
        """The name of an array's address, in a launcher."""
        return self.local(array) if any(one.name == array for one in self.temporaries) else array

    def placed(self, operand: str) -> str:
        """The name of the address of an operand of the last kernel, in a launcher."""
        return self.place(self.array(operand))

    @property
    def arguments(self) -> list[str]:
        """What a launcher passes to the kernel, in order."""
        maps = {one.name: f"{self.local('maps')}[{number}]" for number, one in enumerate(self.maps)}
        arguments = [one for one in self.kernel.parameters if not isinstance(one, Counter)]
        return [*(maps[one.name] if isinstance(one, TensorMap) else self.placed(one.name) for one in arguments), *self.counters]

    def reciprocals(self, kernel: Kernel | None = None) -> list[str]:
        """C that works out the reciprocals that a kernel takes, the last one if none is named, of sizes that were checked."""
        return [f"{one.name} = {_reciprocal(one)};" for one in (kernel or self.kernel).reciprocals]

    def macro(self, name: str) -> str:
        """The name of a macro."""
        return f"{self.name.upper()}_{name}"

    def local(self, name: str) -> str:
        """A name that no parameter has."""
        while name in self.names or any(name == one.name for kernel in self.kernels for one in kernel.reciprocals):
            name += "_"
        return name

    def parameters(self, *more: str, pointer: str = "") -> str:
        """The parameters of a C function: the operands (as `pointer`, or typed ones), the sizes, scratch memory, and more."""
        pointers = [f"{_number(one) if one.memory.by_value else pointer or _pointer(one)}{one.name}" for one in self.given]
        scratch = [f"{pointer or 'void *'}{self.scratch}"] if self.temporaries else []
        counters = [f"{pointer or 'void *'}{one}" for one in self.counters]
        return ", ".join([*pointers, *self._sizes(), *scratch, *counters, *more])

    def _sizes(self) -> list[str]:
        return [f"int {symbol.name}" for symbol in self.symbols]

    # ------------------------------------------------------------------------------------------ the contract

    def contract(self) -> list[str]:
        """What a caller keeps to, in English."""
        kernel = self.kernel
        lines = ["Operands, in GPU memory:", *(f"  {line}" for one in self.operands for line in self._operand(one))]
        numbers = [one for one in self.given if one.memory.by_value]
        if numbers:
            lines += ["Numbers, passed by value:", *(f"  {one.name}: {one.dtype}{_in_bits(one)}{self._sign(one)}" for one in numbers)]
        outputs, inputs = ([one.name for one in self.operands if one.written == written] for written in (True, False))
        others = [*(["each other"] if len(outputs) > 1 else []), *inputs]
        if others:
            lines.append(f"{' and '.join(outputs)} must not overlap {' or '.join(others)}.")
        if self.temporaries:
            lines.append(
                f"{self.scratch}: GPU memory of {self.name}_scratch_bytes bytes, at a multiple of {SCRATCH_ALIGN} bytes. Each launch"
            )
            what = "copies operands there first" if self.copies_alone else "makes temporaries there"
            reasons = list(dict.fromkeys(f"  {one.reason}." for one in self.before if one.reason))
            lines.append(f"{what}, so launches that may run at the same time need scratch memory each{':' if reasons else '.'}")
            lines += reasons
        for counter in self.counters:
            lines.append(f"{counter}: 4 bytes of GPU memory, at a multiple of 4, zero before the first launch: blocks count tiles there,")
            lines.append("and each launch leaves it zero. Launches that may run at the same time need one each.")
        if self.symbols:
            lines += ["Sizes, known at run time:", *(f"  {_range(symbol)}" for symbol in self.symbols)]
        fixed = [f"{dim} < {size}" for dim, size in zip(self.spec.dims, self.spec.sizes, strict=True) if constant(size) is not None]
        if fixed:
            lines.append(f"Sizes, built in: {', '.join(fixed)}.")
        lines += [f"Requires: {text}{_condition(condition)}." for text, condition in self.facts]
        lines += [f"UNCHECKED, races are not excluded: {reason}" for one in self.kernels for reason in one.effects[Unchecked].reasons]
        lines.append(f"A launch has {_readable(kernel.grid)} blocks of {kernel.threads} threads.")
        lines += [
            f"Before it {_named(one)} has {_readable(one.kernel.grid)} blocks of {one.kernel.threads} threads." for one in self.before
        ]
        if kernel.cluster is not None:
            lines.append(f"They are clusters of {kernel.cluster.blocks}, which the kernel says itself.")
        if kernel.effects[Chaining].chained:
            lines.append("It may begin while the kernel before it in the stream ends, and waits for it before it touches memory.")
        tiles = [spec for _, spec in self.program.trace() if spec.level.name == "Block"]
        return [*lines, *(f"A block performs {_readable(spec)}." for spec in tiles[:1])]

    def _operand(self, buffer: Buffer) -> list[str]:
        labels = [Var(dim) for dim in self.spec.uses[buffer.name]]
        shape = " x ".join(map(_readable, buffer.tensor.shape))
        name, place, align = buffer.name, _readable(buffer.storage.address(labels)), self.align(buffer)
        kind = "" if buffer.dtype.cuda in C_TYPES else f" ({buffer.dtype.cuda})"
        if not labels:
            return [f"{name}: one element of {buffer.dtype}{kind}, {self._role(buffer)}; the address is a multiple of {align} bytes."]
        return [
            f"{name}: {shape} elements of {buffer.dtype}{kind}, {self._role(buffer)};",
            f"   element ({', '.join(map(str, labels))}) is {name}[{place}]; the address is a multiple of {align} bytes.",
            *(f"   {_copied(one)}" for one in self._maps_of(buffer)),
        ]

    def _role(self, buffer: Buffer) -> str:
        spec = self.spec
        adds = TRUE if spec.atomic else spec.accumulate
        if not buffer.written:
            return "read"
        if buffer.name in map(self.array, self.kernel.effects[Zeroed].names):
            return "set to zero by the launcher, then added to in no fixed order"
        return "written" if adds == FALSE else "added to" if adds == TRUE else f"added to if {_readable(adds)}, else written"

    def _sign(self, buffer: Buffer) -> str:
        """What a number passed by value has to be."""
        return ", above 0 and finite" if buffer.name in positive_numbers(self.spec) else ""

    def constants(self) -> list[str]:
        """The macros that all headers define, alike."""
        rows = [
            ("VERSION", quoted(self.version)),
            ("ARCHITECTURE", quoted(self.kernel.architecture.name)),
            ("THREADS", f"{self.kernel.threads} /* a block */"),
            ("SHARED_BYTES", f"{self.kernel.shared_bytes} /* of shared memory a block */"),
        ]
        rows += [(f"ALIGN_{one.name.upper()}", f"{self.align(one)} /* bytes */") for one in self.operands]
        rows += [("ALIGN_SCRATCH", f"{SCRATCH_ALIGN} /* bytes */")] if self.temporaries else []
        rows += [("EXPORT", f"{self.identity} /* the files of one export agree on it */")]
        return [f"#define {self.macro(name)} {value}" for name, value in rows]

    @functools.cached_property
    def identity(self) -> str:
        """A number of C by which the files of one export know each other: of the kernel, its contract and its checks."""
        said = "\n".join([self.version, *self.contract(), *self.refusal()])
        return f"0x{hashlib.sha256(said.encode()).hexdigest()[:8]}UL"

    def agreed(self, file: str) -> list[str]:
        """Lines of a source by which it is built beside the header of its own export alone."""
        return [f"#if {self.macro('EXPORT')} != {self.identity}", f"#error {file} is of another export than this file", "#endif"]

    # ------------------------------------------------------------------------------------------ host code

    def refusal(self) -> list[str]:
        """A static function of addresses, numbers and sizes, the same in C and C++: the text of a refusal, or null."""
        scattered = self._scattered()
        lines = [line.replace("NAME", self.name) for line in _OVERLAPS] if scattered else []
        lines += self._scratch_bytes()
        lines += [f"static const char *{self.name}_refusal({self.parameters(pointer='uintptr_t ')})", "{"]
        for one in scattered:
            for what, values in (("sizes", one.tensor.shape), ("strides", one.storage.steps)):
                numbers = ", ".join(c_text(as_expr(value)) for value in values if value is not None)
                lines.append(f"  const long long {self.local(f'{one.name}_{what}')}[] = {{{numbers}}};")
        lines += [f"  (void){one.name};" for one in self.given if one.memory.by_value and not self._sign(one)]  # each is served
        wrong = (*self._wrong_sizes(), *self._overlapping(), *self._wrong_numbers(), *self._wrong_addresses(), *self._overlaps())
        for condition, text in wrong:
            lines += [f"  if ({condition})", f"    return {quoted(text)};"]
        return [*lines, "  return 0;", "}"]

    def refused(self) -> str:
        """The call of that function with the parameters of a public one."""
        arguments = [
            *(one.name if one.memory.by_value else f"(uintptr_t){one.name}" for one in self.given),
            *(symbol.name for symbol in self.symbols),
            *([f"(uintptr_t){self.scratch}"] if self.temporaries else []),
            *(f"(uintptr_t){one}" for one in self.counters),
        ]
        return f"{self.name}_refusal({', '.join(arguments)})"

    def _wrong_sizes(self) -> Iterable[tuple[str, str]]:
        for symbol in self.symbols:
            above = f" || {symbol} > {symbol.high}" if symbol.high < INT_MAX else ""  # a compiler warns of a test that cannot fail
            multiple = f" || {symbol} % {symbol.multiple_of} != 0" if symbol.multiple_of > 1 else ""
            yield f"{symbol} < {symbol.low}{above}{multiple}", f"required: {_range(symbol)}"
        for text, condition in self.facts:
            if condition != TRUE:
                yield f"!({c_text(condition)})", f"required: {text}{_condition(condition)}"

    def _wrong_numbers(self) -> Iterable[tuple[str, str]]:
        """Those that the definition wants above 0; NaN is not."""
        for one in self.given:
            if one.memory.by_value and self._sign(one):
                yield f"!({one.name} > 0{_finite(one)})", f"{one.name} must be above 0 and finite"

    def _wrong_addresses(self) -> Iterable[tuple[str, str]]:
        for one in self.operands:
            yield f"{one.name} == 0", f"{one.name} is NULL"
            if (align := self.align(one)) > 1:
                yield f"{one.name} % {align} != 0", f"the address of {one.name} is no multiple of {align} bytes"
            yield f"{_elements(one)} > (UINTPTR_MAX - {one.name}) / {one.dtype.bytes}", f"{one.name} ends beyond all addresses"
        if self.temporaries:
            yield f"{self.scratch} == 0", f"{self.scratch} is NULL"
            yield f"{self.scratch} % {SCRATCH_ALIGN} != 0", f"the address of {self.scratch} is no multiple of {SCRATCH_ALIGN} bytes"
            yield f"{self.scratch_call} > UINTPTR_MAX - {self.scratch}", f"{self.scratch} ends beyond all addresses"
        for counter in self.counters:
            yield f"{counter} == 0", f"{counter} is NULL"
            yield f"{counter} % 4 != 0", f"the address of {counter} is no multiple of 4 bytes"

    def _overlaps(self) -> Iterable[tuple[str, str]]:
        for place, out in enumerate(self.operands):
            for before, other in enumerate(self.operands):
                if out.written and (before < place or not other.written):
                    condition = f"{out.name} < {other.name} + {_bytes(other)} && {other.name} < {out.name} + {_bytes(out)}"
                    yield condition, f"{out.name} overlaps {other.name}"
        for one in self.operands if self.temporaries else ():
            end = f"{self.scratch} + {self.scratch_call}"
            yield f"{one.name} < {end} && {self.scratch} < {one.name} + {_bytes(one)}", f"{self.scratch} overlaps {one.name}"

    def _scattered(self) -> list[Buffer]:
        """The outputs of which strides alone decide whether elements share a place."""
        known = [one for one in self.operands if isinstance(one.tensor.layout, Layout) and not one.tensor.layout.static]
        return [one for one in known if one.written and None not in one.storage.steps]

    def _overlapping(self) -> Iterable[tuple[str, str]]:
        for one in self._scattered():
            sizes, strides = (self.local(f"{one.name}_{what}") for what in ("sizes", "strides"))
            yield f"{self.name}_overlaps({len(one.tensor.shape)}, {sizes}, {strides})", f"elements of {one.name} overlap"

    def zeroed(self) -> Iterable[tuple[str, str, str, str]]:
        """Of each output that blocks add to: its name, the bytes of a row, from one row to the next, and rows.

        The space between rows is not the kernel's to write.
        """
        for name in self.kernel.effects[Zeroed].names:
            buffer = self.kernel.buffer(name)
            row, step, rows = _rows(buffer)
            width, pitch = (f"(size_t)({c_text(value)}) * {buffer.dtype.bytes}" for value in (row, step))
            yield self.array(name), width, pitch, f"(size_t)({c_text(rows)})"

    # ------------------------------------------------------------------------------------------ scratch memory

    def scratch_prototype(self, infix: str = "") -> str:
        """The function that says how many bytes of scratch memory sizes need."""
        return f"size_t {self.name}{infix}_scratch_bytes({', '.join(self._sizes()) or 'void'})"

    @property
    def scratch_call(self) -> str:
        """What it returns, for the sizes that are parameters."""
        return f"{self.name}_bytes_of_copies({', '.join(symbol.name for symbol in self.symbols)})"

    def _scratch_bytes(self) -> list[str]:
        """The static function behind it."""
        if not self.temporaries:
            return []
        prototype = f"static size_t {self.name}_bytes_of_copies({', '.join(self._sizes()) or 'void'})"
        return [prototype, "{", f"  return {self.offset(len(self.temporaries))};", "}", ""]

    def offset(self, number: int) -> str:
        """Bytes of scratch memory before a temporary, in C."""
        return " + ".join(map(_rounded, self.temporaries[:number])) or "0"

    def encodings(self, encode: str, failure: str) -> list[str]:
        """C that encodes the tensor maps into `local("maps")` by the function `encode`, and returns `failure` where one is refused."""
        return encodings(self.kernel, self.local, encode, failure, self.placed)

    def minimum(self) -> list[str]:
        """`min`, which CUDA C++ has and C has not, if an expression of the host needs it."""
        values = [
            *(one.grid for one in self.kernels),
            *(one.buffer.elements for one in self.temporaries),
            *(condition for _, condition in self.facts),
            *map(_extent, self.operands),
            *(reciprocal.divisor for one in self.kernels for reciprocal in one.reciprocals),
        ]
        return ["#define min(a, b) ((a) < (b) ? (a) : (b))", ""] if any(map(_has_minimum, values)) else []


# ---------------------------------------------------------------------------------------------- pieces of text


_OVERLAPS: Final = (
    "/* Whether elements share a place: from the smallest stride on, each must lead beyond all that lies within the ones before. */",
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


def _named(launch: Before) -> str:
    """What the contract calls a launch before the last one."""
    return launch.kernel.name if launch.copied is None else f"the copy of {launch.copied}"


def _require_zeroed_first(unit: Unit) -> None:
    """Refuse a kernel whose outputs are set to zero after a launch before it wrote them: launchers do that first."""
    written = {array for launch in unit.program.preceding for array in launch.writes}
    late = [name for name in map(unit.array, unit.kernel.effects[Zeroed].names) if name in written]
    if late:
        raise ArgumentError(
            f"export: {late[0]} is set to zero before the last launch, and a launch before it writes {late[0]}",
            legal="outputs that one launch writes", hint="split_k without zeroed outputs, in the last launch",
        )  # fmt: skip


def _rounded(temporary: Temporary) -> str:
    """Bytes of a temporary, up to where the next one begins."""
    made = temporary.buffer
    return f"((size_t)({c_text(made.elements)}) * {made.dtype.bytes} + {SCRATCH_ALIGN - 1}) / {SCRATCH_ALIGN} * {SCRATCH_ALIGN}"


def c_text(value: Expr) -> str:
    """A C expression of sizes, in 64 bits where 32 could overflow."""
    from fireiron.cuda import expression

    return expression(value)


def starred(lines: Iterable[str]) -> list[str]:
    """Lines inside a comment of C, which none of them ends."""
    return [f" * {_plain(line).replace('*/', '* /').replace('/*', '/ *')}".rstrip() for line in lines]


def quoted(text: str) -> str:
    """A string literal of C, without what could be a trigraph."""
    escaped = _plain(text).replace("\\", "\\\\").replace('"', '\\"').replace("??", '?""?')
    return f'"{escaped}"'


def header(guard: str, head: list[str], includes: tuple[str, ...], constants: list[str], body: list[str]) -> str:
    """A header for C and C++."""
    opening = ["/*", *starred(head), " */", f"#ifndef {guard}", f"#define {guard}", "", *(f"#include <{one}>" for one in includes)]
    linkage = ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", ""]
    closing = ["", "#ifdef __cplusplus", "}", "#endif", "", f"#endif /* {guard} */", ""]
    return "\n".join([*opening, "", *constants, *linkage, *body, *closing])


def _plain(text: object) -> str:
    """Printable ASCII on one line."""
    return re.sub(r"[^ -~]+", " ", str(text))


def _readable(value: Any) -> str:
    return str(value).replace("//", "/")


def _condition(condition: Expr) -> str:
    if isinstance(condition, AnyOf):
        return f" ({' or '.join(_readable(_compared(one)) for one in condition.children)})"
    return f" ({_readable(condition)})" if constant(condition) is None else ""


def _compared(condition: Expr) -> object:
    return f"{condition.left} == {condition.right}" if isinstance(condition, Equal) else condition


def _range(symbol: Var) -> str:
    multiple = f", a multiple of {symbol.multiple_of}" if symbol.multiple_of > 1 else ""
    return f"{symbol.low} <= {symbol} <= {symbol.high}{multiple}"


def _copied(tensor_map: TensorMap) -> str:
    """What a caller reads of a map: the array is copied in boxes."""
    box = " x ".join(map(str, tensor_map.box))
    swizzle = f", swizzled in spans of {tensor_map.span} bytes" if tensor_map.span > GRANULE else ""
    return f"copied by TMA in boxes of {box}{swizzle}; the launcher makes the tensor map."


def _layout(buffer: Buffer) -> str:
    layout = buffer.tensor.layout
    if buffer.memory.by_value:
        return "by value"
    if not isinstance(layout, MatrixLayout):
        return str(layout)
    return f"{layout.order}-major" + ("" if layout.leading is None else f" ld={_readable(layout.leading)}")


def _reciprocal(one: Reciprocal) -> str:
    """C for the reciprocal of a size."""
    return f"0x{ONE_HALF - 1:x}ULL / (unsigned long long)({c_text(one.divisor)}) + 1"


def _number(buffer: Buffer) -> str:
    """The C type of a number that is passed by value: where C has none, an unsigned one of its bits."""
    if buffer.dtype.cuda in C_TYPES:
        return f"{buffer.dtype.cuda} "
    return {1: "unsigned char ", 2: "unsigned short "}[buffer.dtype.bytes]


def _finite(buffer: Buffer) -> str:
    """The condition that a number above 0 is not infinite; of a float that C has not its bits are below those of infinity."""
    dtype = buffer.dtype
    if dtype.kind == "int":
        return ""
    infinity = ((1 << (dtype.bits - dtype.mantissa)) - 1) << (dtype.mantissa - 1)
    largest = {"float": "<= 3.40282347e+38F", "double": "<= 1.7976931348623157e+308"}
    return f" && {buffer.name} {largest.get(dtype.cuda) or f'< {infinity:#x}'}"


def _in_bits(buffer: Buffer) -> str:
    return "" if buffer.dtype.cuda in C_TYPES else f", its bits as an {_number(buffer).strip()}"


def _pointer(buffer: Buffer) -> str:
    kind = buffer.dtype.cuda if buffer.dtype.cuda in C_TYPES else "void"
    return f"{kind} *" if buffer.written else f"const {kind} *"


def _extent(buffer: Buffer) -> Expr:
    """Elements from the first to the last of a parameter, both included: less than its rows take where they are padded."""
    total: Expr = as_expr(1)
    for size, step in zip(buffer.tensor.shape, buffer.storage.steps, strict=True):
        if step is None:
            raise ArgumentError(f"export: {buffer.name}: no array is stored as {buffer.tensor.layout}", legal="one stride a dimension")
        total = total + (size - 1) * step
    return total


def _elements(buffer: Buffer) -> str:
    return f"(uintptr_t)({c_text(_extent(buffer))})"


def _bytes(buffer: Buffer) -> str:
    return f"{_elements(buffer)} * {buffer.dtype.bytes}"


def _rows(buffer: Buffer) -> tuple[Expr, Expr, Expr]:
    """A matrix in memory: elements of a row, elements from one row to the next, rows (columns, where these lie together)."""
    shape, order, steps = buffer.tensor.shape, whole_view(buffer.tensor).order, buffer.storage.steps
    if len(shape) > 2 or order is None or None in steps:
        what = f"export: {buffer.name} is set to zero before the launch, and is stored as {buffer.tensor.layout}"
        raise ArgumentError(what, legal="a matrix whose rows or columns lie together")
    if len(shape) == 1:
        return shape[0], shape[0], as_expr(1)
    fast = 0 if order == "col" else 1
    step = steps[1 - fast]
    assert step is not None
    return shape[fast], step, shape[1 - fast]


def _has_minimum(value: Expr) -> bool:
    return isinstance(value, Min) or any(map(_has_minimum, value.children))
