"""Compile micro-kernels in plain C++ for the host, execute them, and compare the results with the meaning of their specs.

The simulator never looks at a text, and without a GPU nothing else would. Each statement that a text performs is tried by itself, as one
thread would execute it: arrays of its shapes and, as far as they are numbers, of its strides; whole tiles and tiles at an edge, adding up
and not. Outside the tensor lies what spoils each result that it gets into, and nothing may be written there.
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
from fireiron.ir import Access, Buffer, Exec, Kernel, execs
from fireiron.values.expr import FALSE, TRUE, constant

COMPILERS: Final = ("g++", "clang++", "c++")
"""C++ compilers of the host; the first that exists is used."""

_TURNS: Final = 3
"""Number of trials of each kind, with different numbers."""

_SECONDS: Final = 20.0
"""Time limit in seconds for compiling and for executing a text."""

_GUARD: Final = 64
"""Guard elements before and after each array, which no text may write."""

_NEAR: Final[Mapping[str, float]] = {"float64": 1e-9, "float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}
"""How far a result may be off, relative to the largest number: texts may add up in another order, and use other functions."""

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


@attrs.frozen
class Trial:
    """What came of a micro-kernel's text on the host: `executed` where it was, `wrong` where a result is not what the spec means.

    Where nobody says what its spec `meant`, not even the simulator can stand in for it.
    """

    name: str
    said: str
    executed: bool = False
    wrong: str | None = None
    meant: bool = True


class _NotTried(Exception):
    """The reason why a text cannot be executed."""


def trials(kernel: Kernel) -> tuple[Trial, ...]:
    """Execute each micro-kernel of a kernel; return the results."""
    found: dict[str, list[Exec]] = {}
    for statement, _ in execs(kernel.body):
        if isinstance(statement.instruction, MicroKernel):
            found.setdefault(statement.instruction.name, []).append(statement)
    return tuple(_tried(name, kernel, statements) for name, statements in found.items())


def _tried(name: str, kernel: Kernel, statements: list[Exec]) -> Trial:
    made: dict[str, _Harness] = {}
    count = 0
    try:
        for statement in statements:
            harness = _Harness(kernel, statement)
            made.setdefault(harness.source(), harness)
        for source, harness in made.items():
            wrong, tried = harness.compared(source)
            if wrong is not None:
                said = f"executed on the host, {harness.statement.spec}: {wrong}"
                return Trial(name, said, True, said)
            count += tried
    except _NotTried as error:
        meant = all(statement.spec.kind.executes for statement in statements)
        return Trial(name, f"NOT executed on the host: {error}", meant=meant)
    return Trial(name, f"executed on the host ({_compiler_name()}), {count} trials agree with what its spec means", True)


def host_compiler() -> str | None:
    """Return the path of the host's C++ compiler."""
    return next(filter(None, map(shutil.which, COMPILERS)), None)


def _compiler_name() -> str:
    found = host_compiler()
    return "" if found is None else Path(found).name


@attrs.frozen(slots=False)
class _Array:
    """An operand of a statement as flat memory: its shape by the dimensions of the spec, steps, and where its bytes begin."""

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
        """With what lies before and behind."""
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.steps, strict=True)) + 2 * _GUARD

    @property
    def end(self) -> int:
        """The first byte behind, a multiple of 16."""
        return -(-(self.begin + self.elements * self.buffer.dtype.bytes) // 16) * 16

    def inner(self, cut: Mapping[str, int]) -> tuple[int, ...]:
        """Its sizes where the tensor ends inside: along each dimension that can be cut, what is left."""
        return tuple(cut[dim] if bounded else size for dim, size, bounded in zip(self.dims, self.shape, self.bounded, strict=True))

    @functools.cached_property
    def places(self) -> Any:
        """Where each element lies, in the array's shape."""
        import numpy

        grid = numpy.indices(self.shape) if self.shape else numpy.zeros((0,), int)
        return _GUARD + sum((step * one for step, one in zip(self.steps, grid, strict=False)), numpy.zeros(self.shape, int))


def _dense(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[:position]) for position in range(len(shape)))


class _Harness:
    """A host program around the text of one statement."""

    def __init__(self, kernel: Kernel, statement: Exec) -> None:
        self.kernel, self.statement = kernel, statement
        level = statement.spec.level
        if not statement.spec.kind.executes:
            raise _NotTried(f"{statement.spec.title} has no meaning")
        if level.threads != 1 or statement.collective:
            raise _NotTried(f"its text is for all threads of a {level}, but the host has one")
        self.arrays: list[_Array] = []
        for name, access in statement.operands.items():
            self.arrays.append(self._array(name, access, self.arrays[-1].end if self.arrays else 0))

    def _array(self, name: str, access: Access, begin: int) -> _Array:
        buffer = self.kernel.buffer(access.buffer)
        spec = self.statement.spec
        dims = tuple(spec.uses[name])
        axes = [spec.operands[name].axis(number) for number in range(len(dims))]
        shape = tuple(access.shape[axis] for axis in axes)
        found = [step_of(buffer, access, axis) for axis in axes]
        known = tuple(0 if one is None else constant(one) or 0 for one in found)
        usable = all(step > 0 or size == 1 for step, size in zip(known, shape, strict=True)) and _apart(shape, known)
        named = tuple(one is not None for one in found)
        bounded = tuple(access.bounds[axis] is not None for axis in axes)
        return _Array(name, access, buffer, dims, shape, known if usable else _dense(shape), named, bounded, begin)

    # ------------------------------------------------------------------------------------------ text

    def source(self) -> str:
        """Return the program in C++."""
        assert isinstance(self.statement.instruction, MicroKernel)
        lines = [line for number, one in enumerate(self.arrays) for line in self._declared(number, one)]
        head = "static void trial(unsigned char* trial_bytes, const int* trial_sizes, int trial_adds)"
        body = [head, "{", "  const bool accumulate = trial_adds;", *lines, "{", self.statement.instruction.text, "}", "}"]
        total = f"#define TOTAL {self.arrays[-1].end}\n#define SIZES {sum(len(one.dims) for one in self.arrays)}"
        return "\n".join([_PRELUDE, total, *body, _MAIN])

    def _declared(self, number: int, one: _Array) -> Iterator[str]:
        """Yield the names that a text may use for an operand."""
        name, kind = one.name.lower(), one.buffer.dtype.cuda
        element = kind if one.access.write else f"const {kind}"
        first = f"reinterpret_cast<{kind}*>(trial_bytes + {one.begin}) + {_GUARD}"
        yield f"  using {name}_type = {kind};"
        if one.buffer.memory.by_value:
            yield f"  const {kind} {name} = *({first});"
            return
        yield f"  {element}* const {name} = {first};"
        arguments = ", ".join(f"int index_{position}" for position in range(len(one.dims)))
        place = " + ".join(["0", *(f"index_{position} * {step}" for position, step in enumerate(one.steps))])
        yield f"  const auto {name}_at = [&]({arguments}) -> {element}& {{ return {name}[{place}]; }};"
        slot = sum(len(other.dims) for other in self.arrays[:number])
        for position, dim in enumerate(one.dims):
            if one.named[position]:
                yield f"  const int {name}_stride_{dim} = {one.steps[position]};"
            if one.bounded[position]:
                yield f"  const int {name}_size_{dim} = trial_sizes[{slot + position}];"
            else:
                yield f"  constexpr int {name}_size_{dim} = {one.shape[position]};"

    # ------------------------------------------------------------------------------------------ execution

    def compared(self, source: str) -> tuple[str | None, int]:
        """Return the first difference, or None, and the number of trials."""
        import numpy

        generator = numpy.random.default_rng(0)
        cases = [self._case(generator, edge, adds) for _ in range(_TURNS) for edge in self._edges() for adds in self._adds()]
        given = b"".join(case.given for case in cases)
        found = _executed(source, given)
        total = self.arrays[-1].end
        if len(found) != total * len(cases):
            return "the text terminated the program", len(cases)
        for number, case in enumerate(cases):
            wrong = self._wrong(case, found[number * total : (number + 1) * total])
            if wrong is not None:
                return wrong, number + 1
        return None, len(cases)

    def _edges(self) -> tuple[bool, ...]:
        cuttable = any(size > 1 and bounded for one in self.arrays for size, bounded in zip(one.shape, one.bounded, strict=True))
        return (False, True) if cuttable else (False,)

    def _adds(self) -> tuple[bool, ...]:
        adds = self.statement.accumulate
        return (True,) if adds == TRUE else (False,) if adds == FALSE else (False, True)

    def _case(self, generator: Any, edge: bool, adds: bool) -> _Case:
        """Small integers inside, what spoils results outside; at an `edge` some elements of each dimension lie inside, at least one."""
        import numpy

        spec = self.statement.spec
        cut = {dim: int(generator.integers(1, max(size, 2))) for one in self.arrays for dim, size in zip(one.dims, one.shape, strict=True)}
        sizes = {one.name: one.inner(cut) if edge else one.shape for one in self.arrays}
        memory = bytearray(self.arrays[-1].end)
        values, inside = {}, {}
        for one in self.arrays:
            numbers = generator.integers(0 if one.buffer.dtype.name.startswith("u") else -3, 4, one.shape)
            within = numpy.ones(one.shape, bool)
            for axis, size in enumerate(sizes[one.name]):
                within &= numpy.indices(one.shape)[axis] < size
            flat = _flat(one, memory)
            flat[...] = _spoils(one)
            flat[one.places] = numpy.where(within, numbers, _spoils(one))
            outside = spec.outside(one.name) if one.name in spec.inputs else 0
            values[one.name] = numpy.where(within, numbers, outside).astype(flat.dtype)
            inside[one.name] = within
        said = [size for one in self.arrays for size in sizes[one.name]]
        head = struct.pack(f"{len(said) + 1}i", *said, adds)
        return _Case(head + bytes(memory), bytes(memory), spec.perform(values, adds), inside)

    def _wrong(self, case: _Case, memory: bytes) -> str | None:
        """The first difference: in a result, or of what no text may write."""
        import numpy

        for one in self.arrays:
            before, after = _flat(one, bytearray(case.memory)), _flat(one, bytearray(memory))
            written = numpy.zeros(before.shape, bool)
            if one.access.write:
                written[one.places[case.inside[one.name]]] = True
            spoilt = numpy.flatnonzero(
                (before.view(numpy.uint8) != after.view(numpy.uint8)).reshape(before.size, -1).any(axis=1) & ~written
            )
            if spoilt.size:
                return f"it writes {one.name.lower()}[{spoilt[0] - _GUARD}], which is out of bounds"
            if one.access.write:
                wrong = _unlike(one, after[one.places], numpy.asarray(case.wanted[one.name]), case.inside[one.name])
                if wrong is not None:
                    return wrong
        return None


@attrs.frozen(eq=False)
class _Case:
    """One trial: what the program reads, the arrays in it, what is wanted, and which elements lie inside."""

    given: bytes
    memory: bytes
    wanted: Mapping[str, Any]
    inside: Mapping[str, Any]


def _apart(shape: tuple[int, ...], steps: tuple[int, ...]) -> bool:
    """Whether elements lie at places of their own, and not too far from each other."""
    places = {sum(map(math.prod, zip(index, steps, strict=True))) for index in itertools.product(*map(range, shape))}
    return len(places) == math.prod(shape) and max(places, default=0) < 1 << 20


def _flat(one: _Array, memory: bytearray) -> Any:
    """The elements of an array in the program's memory."""
    import numpy

    return numpy.frombuffer(memory, one.buffer.dtype.to_numpy(), one.elements, one.begin)


def _spoils(one: _Array) -> float:
    """What is seen in each result that it gets into."""
    return math.nan if one.buffer.dtype.kind == "float" else 101


def _unlike(one: _Array, found: Any, wanted: Any, inside: Any) -> str | None:
    import numpy

    found, wanted = found.astype(numpy.float64), numpy.broadcast_to(wanted, one.shape).astype(numpy.float64)
    allowed = _NEAR.get(one.buffer.dtype.name, 0.0) * max(1.0, float(numpy.abs(wanted[inside]).max(initial=0.0)))
    wrong = numpy.argwhere(inside & ~(numpy.abs(found - wanted) <= allowed))
    if not wrong.size:
        return None
    at = tuple(map(int, wrong[0]))
    return f"{one.name.lower()}_at({', '.join(map(str, at))}) is {found[at]:g} but the spec means {wanted[at]:g}"


def _executed(source: str, given: bytes) -> bytes:
    """What the program writes; `_NotTried` where the host's compiler does not take it."""
    compiler = host_compiler()
    if compiler is None:
        raise _NotTried(f"no C++ compiler is installed ({' or '.join(COMPILERS[:2])})")
    with tempfile.TemporaryDirectory(prefix="fireiron") as folder:
        path = Path(folder) / "trial.cpp"
        path.write_text(source, encoding="utf-8")
        made = _done([compiler, "-std=c++17", "-w", "-O1", "-ffp-contract=off", str(path), "-o", str(path.with_suffix(""))])
        if made.returncode:
            first = re.search(r"error: (.*)", made.stderr.decode(errors="replace"))
            raise _NotTried(f"it is not plain C++ ({_compiler_name()}: {first[1] if first else 'refused'})")
        return _done([str(path.with_suffix(""))], given).stdout


def _done(command: list[str], given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run(command, input=given, capture_output=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _NotTried(f"it takes longer than {_SECONDS:.0f} s") from None
    except OSError as error:
        raise _NotTried(f"{Path(command[0]).name}: {error.strerror or error}") from None
