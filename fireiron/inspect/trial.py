"""Compile micro-kernels in plain C++ for the host, execute them, and compare the results with the meaning of their specs.

The simulator does not execute the text of a micro-kernel. This module tests the text without a GPU. One thread executes each statement
alone, on arrays with the statement's shapes and constant strides: with complete and partial tiles, with and without accumulation. Elements
out of bounds have values that change each result that uses them. The text must not write them.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from fireiron.cuda.micro_kernel import step_of
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.frozen import frozen
from fireiron.ir import Access, Buffer, Exec, Kernel, execs
from fireiron.values.expr import FALSE, TRUE, constant

COMPILERS: Final = ("g++", "clang++", "c++")
"""C++ compilers of the host; the first that exists is used."""

_REPEATS: Final = 3
"""Number of trials of each kind, with different values."""

_SECONDS: Final = 20.0
"""Time limit in seconds, for the compilation and for the execution of a text."""

_GUARD: Final = 64
"""Number of guard elements before and after each array, which a text must not write."""

_TOLERANCE: Final[Mapping[str, float]] = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""Tolerance relative to the largest value. A text may sum in a different order, and use different functions."""

_PRELUDE: Final = """\
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
using std::max;
using std::min;
#define __restrict__ __restrict
#define __device__
#define __forceinline__ inline
typedef _Float16 __half;
typedef _Float16 half;
inline float __half2float(__half number) { return number; }
inline __half __float2half(float number) { return number; }
inline __half __float2half_rn(float number) { return number; }
inline __half __hfma(__half a, __half b, __half c) { return __half(float(a) * float(b) + float(c)); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
template <class T> T __ldg(const T* from) { return *from; }
"""

_MAIN: Final = """\
int main()
{
  static unsigned char arrays[TOTAL];
  int sizes[SIZES + 1];
  int accumulate;
  while (fread(sizes, sizeof(int), SIZES, stdin) == SIZES && fread(&accumulate, sizeof accumulate, 1, stdin) == 1) {
    if (fread(arrays, 1, TOTAL, stdin) != TOTAL) return 1;
    trial(arrays, sizes, accumulate);
    fwrite(arrays, 1, TOTAL, stdout);
  }
}
"""


@frozen
class Trial:
    """The result of executing the text of a micro-kernel on the host.

    `executed` is false if the host cannot execute the text. `wrong` is the first difference from the meaning of the spec. If `has_meaning`
    is false, the simulator cannot execute the spec either.
    """

    name: str
    summary: str
    executed: bool = False
    wrong: str | None = None
    has_meaning: bool = True


class _NotExecutable(Exception):
    """The reason why a text cannot be executed."""


def trials(kernel: Kernel) -> tuple[Trial, ...]:
    """Execute each micro-kernel of a kernel; return the results."""
    by_name: dict[str, list[Exec]] = {}
    for statement, _ in execs(kernel.body):
        if isinstance(statement.instruction, MicroKernel):
            by_name.setdefault(statement.instruction.name, []).append(statement)
    return tuple(_trial_of(name, kernel, statements) for name, statements in by_name.items())


def _trial_of(name: str, kernel: Kernel, statements: list[Exec]) -> Trial:
    harnesses: dict[str, _Harness] = {}
    count = 0
    try:
        for statement in statements:
            harness = _Harness(kernel, statement)
            harnesses.setdefault(harness.source(), harness)
        for source, harness in harnesses.items():
            wrong, tried = harness.first_difference(source)
            if wrong is not None:
                summary = f"executed on the host, {harness.statement.spec}: {wrong}"
                return Trial(name, summary, True, summary)
            count += tried
    except _NotExecutable as error:
        has_meaning = all(statement.spec.kind.executes for statement in statements)
        return Trial(name, f"NOT executed on the host: {error}", has_meaning=has_meaning)
    return Trial(name, f"executed on the host ({_compiler_name()}), {count} trials agree with its spec", True)


def host_compiler() -> str | None:
    """Return the path of the host's C++ compiler."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def _compiler_name() -> str:
    path = host_compiler()
    return "" if path is None else Path(path).name


@attrs.frozen(slots=False)
class _Array:
    """An operand of a statement in flat memory: its shape in the order of the spec's dimensions, strides, and first byte."""

    name: str
    access: Access
    buffer: Buffer
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    named: tuple[bool, ...]
    bounded: tuple[bool, ...]
    begin: int

    @property
    def elements(self) -> int:
        """Return the number of elements, including the guards."""
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.steps, strict=True)) + 2 * _GUARD

    @property
    def end(self) -> int:
        """Return the first byte past the end, rounded up to a multiple of 16."""
        return -(-(self.begin + self.elements * self.buffer.dtype.bytes) // 16) * 16

    def inner(self, cut: Mapping[str, int]) -> tuple[int, ...]:
        """Return the sizes of a partial tile. `cut` contains the remaining size of each dimension."""
        return tuple(cut[dim] if bounded else size for dim, size, bounded in zip(self.dims, self.shape, self.bounded, strict=True))

    @functools.cached_property
    def offsets(self) -> Any:
        """Return the offset of each element, in the array's shape."""
        import numpy

        grid = numpy.indices(self.shape) if self.shape else numpy.zeros((0,), int)
        return _GUARD + sum((step * index for step, index in zip(self.steps, grid, strict=False)), numpy.zeros(self.shape, int))


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[:position]) for position in range(len(shape)))


class _Harness:
    """A host program around the text of one statement."""

    def __init__(self, kernel: Kernel, statement: Exec) -> None:
        self.kernel, self.statement = kernel, statement
        level = statement.spec.level
        if not statement.spec.kind.executes:
            raise _NotExecutable(f"{statement.spec.title} has no executable meaning")
        if level.threads != 1 or statement.collective:
            raise _NotExecutable(f"all threads of a {level} execute its text, but the host has one thread")
        self.arrays: list[_Array] = []
        for name, access in statement.operands.items():
            self.arrays.append(self._array(name, access, self.arrays[-1].end if self.arrays else 0))

    def _array(self, name: str, access: Access, begin: int) -> _Array:
        buffer = self.kernel.buffer(access.buffer)
        spec = self.statement.spec
        dims = tuple(spec.uses[name])
        axes = [spec.operands[name].axis(number) for number in range(len(dims))]
        shape = tuple(access.shape[axis] for axis in axes)
        steps = [step_of(buffer, access, axis) for axis in axes]
        step_values = tuple(0 if step is None else constant(step) or 0 for step in steps)
        usable = all(step > 0 or size == 1 for step, size in zip(step_values, shape, strict=True)) and _distinct_offsets(shape, step_values)
        named = tuple(step is not None for step in steps)
        bounded = tuple(access.bounds[axis] is not None for axis in axes)
        return _Array(name, access, buffer, dims, shape, step_values if usable else _dense(shape), named, bounded, begin)

    # ------------------------------------------------------------------------------------------ text

    def source(self) -> str:
        """Return the program in C++."""
        assert isinstance(self.statement.instruction, MicroKernel)
        lines = [line for number, array in enumerate(self.arrays) for line in self._declarations(number, array)]
        head = "static void trial(unsigned char* trial_bytes, const int* trial_sizes, int trial_adds)"
        body = [head, "{", "  const bool accumulate = trial_adds;", *lines, "{", self.statement.instruction.text, "}", "}"]
        total = f"#define TOTAL {self.arrays[-1].end}\n#define SIZES {sum(len(array.dims) for array in self.arrays)}"
        return "\n".join([_PRELUDE, total, *body, _MAIN])

    def _declarations(self, number: int, array: _Array) -> Iterator[str]:
        """Yield the names that a text may use for an operand."""
        name, kind = array.name.lower(), array.buffer.dtype.cuda
        element = kind if array.access.write else f"const {kind}"
        first = f"reinterpret_cast<{kind}*>(trial_bytes + {array.begin}) + {_GUARD}"
        yield f"  using {name}_type = {kind};"
        if array.buffer.memory.by_value:
            yield f"  const {kind} {name} = *({first});"
            return
        yield f"  {element}* const {name} = {first};"
        arguments = ", ".join(f"int index_{position}" for position in range(len(array.dims)))
        offset = " + ".join(["0", *(f"index_{position} * {step}" for position, step in enumerate(array.steps))])
        yield f"  const auto {name}_at = [&]({arguments}) -> {element}& {{ return {name}[{offset}]; }};"
        slot = sum(len(other.dims) for other in self.arrays[:number])
        for position, dim in enumerate(array.dims):
            if array.named[position]:
                yield f"  const int {name}_stride_{dim} = {array.steps[position]};"
            if array.bounded[position]:
                yield f"  const int {name}_size_{dim} = trial_sizes[{slot + position}];"
            else:
                yield f"  constexpr int {name}_size_{dim} = {array.shape[position]};"

    # ------------------------------------------------------------------------------------------ execution

    def first_difference(self, source: str) -> tuple[str | None, int]:
        """Return the first difference (None if there is none) and the number of trials."""
        import numpy

        generator = numpy.random.default_rng(0)
        cases = [self._case(generator, edge, adds) for _ in range(_REPEATS) for edge in self._edges() for adds in self._accumulate_values()]
        given = b"".join(case.given for case in cases)
        output = _run_program(source, given)
        total = self.arrays[-1].end
        if len(output) != total * len(cases):
            return "the text terminated the program", len(cases)
        for number, case in enumerate(cases):
            wrong = self._error(case, output[number * total : (number + 1) * total])
            if wrong is not None:
                return wrong, number + 1
        return None, len(cases)

    def _edges(self) -> tuple[bool, ...]:
        cuttable = any(size > 1 and bounded for one in self.arrays for size, bounded in zip(one.shape, one.bounded, strict=True))
        return (False, True) if cuttable else (False,)

    def _accumulate_values(self) -> tuple[bool, ...]:
        adds = self.statement.accumulate
        return (True,) if adds == TRUE else (False,) if adds == FALSE else (False, True)

    def _case(self, generator: Any, edge: bool, adds: bool) -> _Case:
        """Return a case with small integers in bounds and poison out of bounds. At an `edge` the tile is partial, but not empty."""
        import numpy

        spec = self.statement.spec
        cut = {dim: int(generator.integers(1, max(size, 2))) for one in self.arrays for dim, size in zip(one.dims, one.shape, strict=True)}
        sizes = {array.name: array.inner(cut) if edge else array.shape for array in self.arrays}
        memory = bytearray(self.arrays[-1].end)
        values, inside = {}, {}
        for array in self.arrays:
            numbers = generator.integers(0 if array.buffer.dtype.name.startswith("u") else -3, 4, array.shape)
            within = numpy.ones(array.shape, bool)
            for axis, size in enumerate(sizes[array.name]):
                within &= numpy.indices(array.shape)[axis] < size
            flat = _flat(array, memory)
            flat[...] = _poison(array)
            flat[array.offsets] = numpy.where(within, numbers, _poison(array))
            outside = spec.outside(array.name) if array.name in spec.inputs else 0
            values[array.name] = numpy.where(within, numbers, outside).astype(flat.dtype)
            inside[array.name] = within
        all_sizes = [size for one in self.arrays for size in sizes[one.name]]
        head = struct.pack(f"{len(all_sizes) + 1}i", *all_sizes, adds)
        return _Case(head + bytes(memory), bytes(memory), spec.perform(values, adds), inside)

    def _error(self, case: _Case, memory: bytes) -> str | None:
        """Return the first error: a wrong result, or a write out of bounds."""
        import numpy

        for array in self.arrays:
            before, after = _flat(array, bytearray(case.memory)), _flat(array, bytearray(memory))
            written = numpy.zeros(before.shape, bool)
            if array.access.write:
                written[array.offsets[case.inside[array.name]]] = True
            overwritten = numpy.flatnonzero(
                (before.view(numpy.uint8) != after.view(numpy.uint8)).reshape(before.size, -1).any(axis=1) & ~written
            )
            if overwritten.size:
                return f"it writes {array.name.lower()}[{overwritten[0] - _GUARD}], which is out of bounds"
            if array.access.write:
                wrong = _difference(array, after[array.offsets], numpy.asarray(case.expected[array.name]), case.inside[array.name])
                if wrong is not None:
                    return wrong
        return None


@attrs.frozen(eq=False)
class _Case:
    """One trial: the input of the program, the initial arrays, the expected values, and which elements are in bounds."""

    given: bytes
    memory: bytes
    expected: Mapping[str, Any]
    inside: Mapping[str, Any]


def _distinct_offsets(shape: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    """Whether all elements have distinct offsets below 2**20."""
    offsets = {sum(map(math.prod, zip(index, steps, strict=True))) for index in itertools.product(*map(range, shape))}
    return len(offsets) == math.prod(shape) and max(offsets, default=0) < 1 << 20


def _flat(array: _Array, memory: bytearray) -> Any:
    """Return the elements of an array in the program's memory."""
    import numpy

    return numpy.frombuffer(memory, array.buffer.dtype.to_numpy(), array.elements, array.begin)


def _poison(array: _Array) -> float:
    """Return a value that changes each result that uses it."""
    return math.nan if array.buffer.dtype.kind == "float" else 101


def _difference(array: _Array, actual: Any, expected: Any, inside: Any) -> str | None:
    import numpy

    actual, expected = actual.astype(numpy.float64), numpy.broadcast_to(expected, array.shape).astype(numpy.float64)
    allowed = _TOLERANCE.get(array.buffer.dtype.name, 0.0) * max(1.0, float(numpy.abs(expected[inside]).max(initial=0.0)))
    wrong = numpy.argwhere(inside & ~(numpy.abs(actual - expected) <= allowed))
    if not wrong.size:
        return None
    at = tuple(map(int, wrong[0]))
    return f"{array.name.lower()}_at({', '.join(map(str, at))}) is {actual[at]:g}, but the spec requires {expected[at]:g}"


def _run_program(source: str, given: bytes) -> bytes:
    """Compile and run the program, and return its output.

    Raises: `_NotExecutable` if the host's compiler refuses the program.
    """
    compiler = host_compiler()
    if compiler is None:
        raise _NotExecutable(f"no C++ compiler is installed ({' or '.join(COMPILERS[:2])})")
    with tempfile.TemporaryDirectory(prefix="fireiron") as folder:
        path = Path(folder) / "trial.cpp"
        path.write_text(source, encoding="utf-8")
        compilation = _run([compiler, "-std=c++17", "-w", "-O1", "-ffp-contract=off", str(path), "-o", str(path.with_suffix(""))])
        if compilation.returncode:
            first = re.search(r"error: (.*)", compilation.stderr.decode(errors="replace"))
            raise _NotExecutable(f"it is not plain C++ ({_compiler_name()}: {first[1] if first else 'refused'})")
        return _run([str(path.with_suffix(""))], given).stdout


def _run(command: list[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=given, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _NotExecutable(f"it takes longer than {_SECONDS:.0f} s") from None
    except OSError as error:
        raise _NotExecutable(f"{Path(command[0]).name}: {error.strerror or error}") from None
