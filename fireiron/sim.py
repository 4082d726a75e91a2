"""Kernel IR executed in NumPy, for all threads of all blocks, with shadow memory that finds every race.

The simulator derives what happens from the IR alone: which elements a statement touches from its accesses and the buffers'
storage, what it does with them from its spec (`Spec.perform`). Threads, blocks and loops around a single statement are array
axes (elements, loops, threads, blocks); all other loops run in Python. Three things are watched:

- *bounds*: coordinates outside a tensor, addresses outside a buffer, and guard rows around every array in global memory;
- *fresh memory*: registers, shared memory and outputs are poisoned, and a read of what was never written is named;
- *races*: shadow memory keeps, per address of shared and written global memory, the last writer and the readers since, with
  the barriers passed at that time. Two threads at one address, one of them writing, need a barrier between them.

A multiply-add of float32 is a multiplication, then an addition: rounded twice, where FFMA rounds once. On integers of
moderate size both are exact, so tests compare exactly.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias

import attrs
import numpy as np

from fireiron.errors import ArgumentError, SimulationError
from fireiron.expr import FALSE, TRUE, Expr, Var, compiled, conjuncts
from fireiron.ir import Access, Barrier, Buffer, Comment, Exec, For, Kernel, Let, Stmt, scratch_access, verify
from fireiron.machine import GL, SH, Block
from fireiron.spec import MatMulSpec, MoveSpec
from fireiron.tensor import swizzled
from fireiron.units import THREAD, unit_in

Array: TypeAlias = Any
Environment: TypeAlias = "dict[str, Any]"
Value: TypeAlias = Callable[[Mapping[str, Any]], Any]
Event: TypeAlias = "tuple[Any, Environment]"

_COORDINATE = Var("#coordinate")
_ADDRESS = Var("#address")
_EPOCH: Final = 20
"""Bits of a clock that count warp barriers; those above count block barriers."""

_CHUNK_BYTES: Final = 1 << 21
"""Working memory of the blocks that one Python thread simulates together: what a core keeps in its cache."""

_MOST_ELEMENTS: Final = 1 << 21
"""Most elements of one vectorised statement; more loops run in Python."""

_POISON: Final = {"float": 0xFF, "int": 0x5A}
"""The byte that fills fresh memory: floats are NaN; integers are 0x5A5A..., and reads of them are found by a mask."""


@attrs.frozen(eq=False)
class Simulation:
    """What a simulated launch left behind.

    `outputs` are the written parameters in logical shape; `blocks` those executed, of `threads` threads each. `statements`
    counts executed statements and `barriers` passed barriers, both of one block; `read_bytes` and `written_bytes` count what
    all threads asked of global memory.
    """

    outputs: dict[str, Array]
    blocks: tuple[int, ...]
    threads: int
    seconds: float
    statements: int
    barriers: int
    read_bytes: int
    written_bytes: int


def simulate(
    kernel: Kernel,
    arrays: Mapping[str, Array],
    symbols: Mapping[str, int] = {},
    *,
    blocks: Sequence[int] | None = None,
    shadow: bool = True,
    order: random.Random | None = None,
) -> Simulation:
    """Execute a kernel; a `SimulationError` names the first race, access out of bounds or read of uninitialised data.

    `arrays` are the parameters by buffer name, in logical shape; an output may be left out, and then starts as poison (NaN
    for floats). `symbols` are the sizes known at run time. `blocks` is a sample of blocks instead of the whole grid. `shadow`
    watches for races. With `order`, each warp runs on its own from barrier to barrier, warps in random order; without it all
    threads of a block go in step. See the module's text for what fp32 multiply-adds round.
    """
    start = time.perf_counter()
    verify(kernel, final=True)
    plan = _Plan(kernel, _checked_symbols(kernel, symbols))
    chosen = _chosen_blocks(plan, blocks)
    launch = _Launch(plan, arrays, chosen, shadow, order)
    launch.run()
    _name_poison(plan, arrays, launch)
    return Simulation(launch.outputs(), chosen, kernel.threads, time.perf_counter() - start, *launch.counts)


# ---------------------------------------------------------------------------------------------- arguments


def _checked_symbols(kernel: Kernel, given: Mapping[str, int]) -> dict[str, int]:
    known = {symbol.name for symbol in kernel.symbols}
    for name in given:
        if name not in known:
            raise ArgumentError(f"{kernel.name} has no symbol {name}", legal=sorted(known) or "none")
    values: dict[str, int] = {}
    for symbol in kernel.symbols:
        if symbol.name not in given:
            raise ArgumentError(f"{kernel.name}: the symbol {symbol.name} has no value", hint=f"symbols={{{symbol.name!r}: ...}}")
        value = given[symbol.name]
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise ArgumentError(f"symbol {symbol.name}: not an integer", got=value)
        values[symbol.name] = int(value.__index__())
        if not symbol.low <= values[symbol.name] <= symbol.high or values[symbol.name] % symbol.multiple_of:
            legal = f"{symbol.low} ... {symbol.high}" + (f", multiples of {symbol.multiple_of}" if symbol.multiple_of > 1 else "")
            raise ArgumentError(f"symbol {symbol.name}={values[symbol.name]} breaks the facts it was declared with", legal=legal)
    for text, condition in kernel.facts:
        if not compiled(condition)(values):
            raise ArgumentError(f"{kernel.name} requires that {text}: {condition}", got=values)
    return values


def _chosen_blocks(plan: _Plan, blocks: Sequence[int] | None) -> tuple[int, ...]:
    if blocks is None:
        return tuple(range(plan.grid))
    for block in blocks:
        if isinstance(block, bool) or not hasattr(block, "__index__") or not 0 <= int(block) < plan.grid:
            raise ArgumentError("blocks: no such block in the grid", got=block, legal=f"0 ... {plan.grid - 1}")
    return tuple(dict.fromkeys(int(block) for block in blocks))


# ---------------------------------------------------------------------------------------------- the plan: what does not depend on data


class _Operand:
    """One access of a statement, as functions of the environment; read and write of an output are two operands."""

    def __init__(self, plan: _Plan, access: Access, conditions: Iterable[Expr], write: bool, scope: _Scope) -> None:
        buffer = plan.buffers[access.buffer]
        self.access, self.buffer, self.write = access, buffer, write
        elements = access.elements()
        self.count = len(elements)
        self.tile = access.shape
        self.offsets = [np.array([element[dim] for element in elements]) for dim in range(len(access.base))]
        self.sizes = tuple(plan.number(size) for size in buffer.tensor.shape)
        self.base = tuple(map(compiled, access.base))
        self.bounds = tuple(None if bound is None else compiled(bound) for bound in access.bounds)
        self.conditions = tuple(compiled(condition) for condition in conditions)
        storage = access.storage or buffer.storage
        self.digits = tuple(_contribution(modes) for modes in storage.dims)
        self.swizzle = None if storage.swizzle is None else compiled(swizzled(_ADDRESS, storage.swizzle))
        self.copy = compiled(access.copy)
        self.elements = plan.number(buffer.elements)
        self.total = plan.number(buffer.total)
        self.watched = buffer.memory == SH or (buffer.memory == GL and buffer.written)
        self.depends = [scope.closure(dim, bound) for dim, bound in zip(access.base, access.bounds, strict=True)]
        everything = scope.closure(*access.expressions(), *conditions)
        loops = scope.loops
        self.key = tuple(name for name in loops if name in everything)
        self.keys = [tuple(name for name in loops if name in names) for names in self.depends]
        self.kept = len(self.key) < len(loops)
        self.by_block = "block" in everything

    @property
    def origin(self) -> str | None:
        return self.access.origin


def _contribution(modes: Iterable[Any]) -> Value:
    """What a coordinate adds to the address."""
    total: Expr = FALSE
    for mode in modes:
        total = total + mode.offset(_COORDINATE)
    return compiled(total)


class _Site:
    """A statement with the loops around it that become array axes, and the names bound in them."""

    def __init__(self, plan: _Plan, statement: Exec, nest: Sequence[For], lets: Sequence[Let], scope: _Scope) -> None:
        self.statement = statement
        self.enclosing = tuple(scope.loops)
        self.loops = tuple((loop.var.name, compiled(loop.extent)) for loop in nest)
        self.lets = tuple((let.var.name, compiled(let.value)) for let in lets)
        self.accumulate: Value | bool = compiled(statement.accumulate)
        if statement.accumulate in (TRUE, FALSE):
            self.accumulate = statement.accumulate == TRUE
        self.collective = statement.collective or statement.scratch is not None
        self.level = Block if statement.spec.level.threads is None else statement.spec.level
        self.inputs: list[tuple[str, _Operand]] = []
        self.outputs: list[tuple[str, _Operand, _Operand]] = []
        active = conjuncts(statement.active)
        late = () if isinstance(self.accumulate, bool) else (statement.accumulate,)
        for name, access in statement.operands.items():
            if name in statement.spec.outputs:
                read = _Operand(plan, access, (*active, *late), False, scope)
                self.outputs.append((name, _Operand(plan, access, active, True, scope), read))
            else:
                self.inputs.append((name, _Operand(plan, access, active, False, scope)))
        self.active = tuple(map(compiled, active))
        self.scratch = None
        if statement.scratch is not None:
            self.scratch = _Operand(plan, scratch_access(statement.scratch), active, True, scope)
        self.multiply_add = _is_multiply_add(statement)
        self.copy = isinstance(statement.spec, MoveSpec) and all(self.operand_count(name) == 1 for name in ("src", "dst"))
        self.operand_list = [operand for _, operand in self.inputs] + [one for _, *pair in self.outputs for one in pair]

    def operand_count(self, name: str) -> int:
        return len(self.statement.operands[name].elements())

    def place(self, env: Environment) -> Environment:
        """Values of the loops around the statement."""
        return {name: env[name] for name in self.enclosing}

    @property
    def what(self) -> str:
        return f"{self.statement.instruction.name} {self.statement.spec}"


def _is_multiply_add(statement: Exec) -> bool:
    """A product of two elements whose meaning is one multiplication and one addition in the type of C."""
    if not isinstance(statement.spec, MatMulSpec) or any(len(access.elements()) != 1 for access in statement.accesses):
        return False
    return statement.spec.C.dtype.name in ("float32", "float64", "int32")


@attrs.define(eq=False)
class _Loop:
    """A loop that runs in Python."""

    name: str
    extent: Value
    body: list[Any]


@attrs.define(eq=False)
class _Nest:
    """Loops around one statement: `vector` has some of them as axes, `outer` the others; `plain` runs all of them."""

    outer: list[tuple[str, Value]]
    vector: _Site
    plain: list[Any]


@attrs.define(eq=False)
class _Name:
    """A name for a value."""

    name: str
    value: Value


class _Scope:
    """Loops around a position, outermost first, and what each name there is computed from."""

    def __init__(self, loops: tuple[str, ...] = (), names: Mapping[str, frozenset[str]] | None = None) -> None:
        self.loops = loops
        self.names = dict(names or {})

    def closure(self, *values: Expr | None) -> frozenset[str]:
        found: set[str] = set()
        for value in values:
            for var in () if value is None else value.variables():
                found |= self.names.get(var.name, frozenset((var.name,)))
        return frozenset(found)

    def inside(self, name: str) -> _Scope:
        return _Scope((*self.loops, name), self.names)

    def bind(self, let: Let) -> None:
        self.names[let.var.name] = self.closure(let.value)


class _Plan:
    """The program with every expression compiled, loops marked as array axes or Python loops."""

    def __init__(self, kernel: Kernel, symbols: Mapping[str, int]) -> None:
        self.kernel, self.symbols = kernel, dict(symbols)
        self.buffers = {buffer.name: buffer for buffer in kernel.buffers}
        self.grid = self.number(kernel.grid)
        self.pitch = -(-kernel.threads // 32) * 32
        self.block_loops = False
        self.largest = kernel.threads
        self.sites: list[_Site] = []
        self.components = _components([buffer for buffer in kernel.buffers if buffer.memory == SH])
        self.mixed = any(len({buffer.dtype.bytes for buffer in part}) > 1 for part in self.components)
        self.granule = min((buffer.dtype.bytes for buffer in kernel.buffers if buffer.memory == SH), default=1)
        self.nodes = self._list(kernel.body, _Scope())
        shared = [one for site in self.sites for one in site.operand_list if one.buffer.memory == SH]
        self.uniform = not self.block_loops and not any(operand.by_block for operand in shared)
        """Whether shared memory is touched alike in all blocks, so that one block's shadow stands for all."""

    def number(self, value: Expr) -> int:
        """The value of an expression over symbols."""
        return int(compiled(value)(self.symbols))

    def _list(self, body: Sequence[Stmt], scope: _Scope) -> list[Any]:
        nodes: list[Any] = []
        for statement in body:
            match statement:
                case Let():
                    scope.bind(statement)
                    nodes.append(_Name(statement.var.name, compiled(statement.value)))
                case For():
                    nodes.append(self._for(statement, scope))
                case Exec():
                    nodes.append(self._site(statement, (), (), scope))
                case Barrier():
                    nodes.append(statement)
        return nodes

    def _site(self, statement: Exec, nest: Sequence[For], lets: Sequence[Let], scope: _Scope) -> _Site:
        self.sites.append(site := _Site(self, statement, nest, lets, scope))
        return site

    def _for(self, loop: For, scope: _Scope) -> Any:
        self.block_loops |= "block" in scope.closure(loop.extent)
        plain_scope = scope.inside(loop.var.name)
        nest = _perfect_nest(loop)
        plain = self._list(loop.body, plain_scope)
        if nest is not None:
            loops, lets, statement = nest
            vector = self._vector_loops(loops, lets, statement, scope)
            if vector:
                outer = [one for one in loops if one not in vector]
                inner = scope
                for one in outer:
                    inner = inner.inside(one.var.name)
                site = self._site(statement, vector, lets, _with_lets(inner, lets))
                names = [(one.var.name, compiled(one.extent)) for one in outer]
                return _Nest(names, site, [_Loop(loop.var.name, compiled(loop.extent), plain)])
        return _Loop(loop.var.name, compiled(loop.extent), plain)

    def _vector_loops(self, loops: list[For], lets: list[Let], statement: Exec, scope: _Scope) -> list[For]:
        """The loops on which all that is written depends; none where the statement may read what another turn writes."""
        if statement.collective or statement.scratch is not None or self._aliases(statement):
            return []
        inner = _with_lets(scope, lets)
        names = {loop.var.name for loop in loops}
        if any(not inner.closure(loop.extent).isdisjoint(names) for loop in loops):
            return []
        writes = [access for name, access in statement.operands.items() if name in statement.spec.outputs]
        used = [inner.closure(*access.base, access.copy) & names for access in writes]
        if any(one != used[0] for one in used[1:]):
            return []
        known = {symbol.name for symbol in self.kernel.symbols}
        chosen = [loop for loop in loops if loop.var.name in used[0] and {var.name for var in loop.extent.variables()} <= known]
        size = self.kernel.threads * max(len(access.elements()) for access in statement.accesses)
        while chosen and size * _product(self.number(loop.extent) for loop in chosen) > _MOST_ELEMENTS:
            chosen = chosen[1:]
        if any(loop.var.name in used[0] for loop in loops if loop not in chosen) and chosen != loops[len(loops) - len(chosen) :]:
            return []
        self.largest = max(self.largest, size * _product(self.number(loop.extent) for loop in chosen))
        return chosen

    def _aliases(self, statement: Exec) -> bool:
        """Whether an input may lie where an output is written."""
        spec = statement.spec
        writes = [access for name, access in statement.operands.items() if name in spec.outputs]
        reads = [access for name, access in statement.operands.items() if name not in spec.outputs]
        part = {buffer.name: number for number, group in enumerate(self.components) for buffer in group}
        places = [part.get(access.buffer, access.buffer) for access in writes]
        return len(set(places)) < len(places) or any(part.get(access.buffer, access.buffer) in places for access in reads)


def _with_lets(scope: _Scope, lets: Iterable[Let]) -> _Scope:
    inner = _Scope(scope.loops, scope.names)
    for let in lets:
        inner.bind(let)
    return inner


def _product(values: Iterable[int]) -> int:
    total = 1
    for value in values:
        total *= value
    return total


def _perfect_nest(loop: For) -> tuple[list[For], list[Let], Exec] | None:
    """The loops, names and the only statement of a nest; None if it has barriers or more statements."""
    loops, lets = [loop], []
    body = loop.body
    while True:
        lets += [one for one in body if isinstance(one, Let)]
        rest = [one for one in body if not isinstance(one, (Let, Comment))]
        if len(rest) != 1:
            return None
        if isinstance(rest[0], Exec):
            return loops, lets, rest[0]
        if not isinstance(rest[0], For):
            return None
        loops.append(rest[0])
        body = rest[0].body


def _components(buffers: list[Buffer]) -> list[list[Buffer]]:
    """Shared buffers grouped so that only those of one group overlap."""
    groups: list[list[Buffer]] = []
    end = -1
    for buffer in sorted(buffers, key=lambda one: one.offset):
        if buffer.offset < end:
            groups[-1].append(buffer)
        else:
            groups.append([buffer])
        end = max(end, buffer.offset + buffer.bytes)
    return groups


# ---------------------------------------------------------------------------------------------- memory


class _Memory:
    """The rows of one buffer: `rows` of them from row `first`, each with the value of every block of a chunk.

    Behind all rows of the array lie one that is zero, where masked reads go, and one that takes masked writes. `defined`
    tells which values were written, where that is watched.
    """

    def __init__(self, data: Array, first: int, rows: int, zero: int, defined: Array | None) -> None:
        self.data, self.first, self.rows, self.zero, self.defined = data, first, rows, zero, defined
        self.flat = data.reshape(-1)
        self.width = data.shape[1]
        self.complete = defined is None
        self.checks = 0

    def settle(self) -> None:
        """Notice, now and then, that everything was written, so that nothing needs to be watched any more."""
        self.checks += 1
        if self.checks & (self.checks - 1) == 0 and self.defined is not None:
            self.complete = bool(self.defined[self.first : self.first + self.rows].all())


def _mask_of(data: Array, zero: int, watched: bool, value: bool = False) -> Array | None:
    if not watched:
        return None
    defined = np.full(data.shape, value)
    defined[zero:] = True
    return defined


def _registers(plan: _Plan, buffer: Buffer, width: int, careful: bool) -> _Memory:
    rows = max(plan.number(buffer.elements), 1) * plan.kernel.threads
    data = np.empty((rows + 2, width), buffer.dtype.to_numpy())
    data.view(np.uint8)[:] = _POISON[buffer.dtype.kind]
    data[rows] = 0
    return _Memory(data, 0, rows, rows, _mask_of(data, rows, careful or buffer.dtype.kind == "int"))


def _shared(plan: _Plan, width: int, careful: bool) -> dict[str, _Memory]:
    """Buffers that overlap are views of the same bytes."""
    result = {}
    for group in plan.components:
        start = group[0].offset
        size = max(buffer.offset + buffer.bytes for buffer in group) - start
        size = -(-size // 16) * 16
        raw = np.empty((size + 32) * width, np.uint8)
        raw[:] = _POISON["float" if any(buffer.dtype.kind == "float" for buffer in group) else "int"]
        raw[size * width :] = 0
        for buffer in group:
            dtype = buffer.dtype.to_numpy()
            data = raw.view(dtype).reshape(-1, width)
            zero = size // dtype.itemsize
            first = (buffer.offset - start) // dtype.itemsize
            watched = careful or buffer.dtype.kind == "int"
            result[buffer.name] = _Memory(data, first, plan.number(buffer.total), zero, _mask_of(data, zero, watched))
    return result


class _Global:
    """A parameter in flat global memory with poisoned guard rows around, and poison between rows that are padded."""

    def __init__(self, plan: _Plan, buffer: Buffer, given: Array | None, careful: bool) -> None:
        self.buffer = buffer
        self.shape = tuple(plan.number(size) for size in buffer.tensor.shape)
        dtype = buffer.dtype.to_numpy()
        extent = plan.number(buffer.elements)
        guard = min(max([64, *(extent // max(size, 1) for size in self.shape)]), 1 << 14)
        self.flat = np.empty(2 * guard + extent + 2, dtype)
        self.bytes = self.flat.view(np.uint8)
        self.bytes[:] = _POISON[buffer.dtype.kind]
        zero = 2 * guard + extent
        self.flat[zero] = 0
        self.places = guard + self._addresses(plan)
        if given is not None:
            self.flat[self.places] = given
        watched = given is None and (careful or buffer.dtype.kind == "int")
        defined = _mask_of(self.flat.reshape(-1, 1), zero, watched)
        self.memory = _Memory(self.flat.reshape(-1, 1), guard, extent, zero, defined)
        self.guard, self.end, self.zero = guard, guard + extent, zero

    def _addresses(self, plan: _Plan) -> Array:
        storage = self.buffer.storage
        total: Array = np.zeros((1,) * len(self.shape), np.int64)
        for dim, (modes, size) in enumerate(zip(storage.dims, self.shape, strict=True)):
            index = np.arange(size).reshape([-1 if other == dim else 1 for other in range(len(self.shape))])
            total = total + _contribution(modes)({**plan.symbols, _COORDINATE.name: index})
        if storage.swizzle is not None:
            total = compiled(swizzled(_ADDRESS, storage.swizzle))({_ADDRESS.name: total})
        return np.broadcast_to(total, self.shape)

    @property
    def array(self) -> Array:
        """The tensor in logical shape."""
        return self.flat[self.places]

    def check_guards(self) -> None:
        """Refuse a kernel that wrote outside the tensor."""
        item = self.flat.itemsize
        touched = self.bytes[: self.zero * item].reshape(-1, item) != _POISON[self.buffer.dtype.kind]
        rows = touched.any(axis=1)
        rows[self.places] = False
        if rows.any():
            address = int(np.flatnonzero(rows)[0]) - self.guard
            raise SimulationError(
                f"{self.buffer.name}: address {address}, outside the tensor, was written",
                legal=f"elements of the {' x '.join(map(str, self.shape))} tensor",
            )


def _parameters(plan: _Plan, arrays: Mapping[str, Array], careful: bool) -> dict[str, _Global]:
    names = {buffer.name for buffer in plan.kernel.buffers if buffer.parameter}
    for name in arrays:
        if name not in names:
            raise ArgumentError(f"{plan.kernel.name} has no parameter {name}", legal=sorted(names))
    result = {}
    for buffer in plan.kernel.buffers:
        if buffer.memory != GL:
            continue
        given = arrays.get(buffer.name)
        if given is not None:
            _check_array(plan, buffer, given)
        elif not buffer.written:
            raise ArgumentError(f"{plan.kernel.name}: the input {buffer.name} is missing", legal=sorted(names))
        result[buffer.name] = _Global(plan, buffer, given, careful)
    return result


def _check_array(plan: _Plan, buffer: Buffer, given: Array) -> None:
    shape = tuple(plan.number(size) for size in buffer.tensor.shape)
    if not isinstance(given, np.ndarray):
        raise ArgumentError(f"{buffer.name}: not a NumPy array", got=type(given).__name__)
    if given.shape != shape:
        raise ArgumentError(f"{buffer.name}: wrong shape", got=given.shape, legal=f"{shape}")
    if given.dtype != buffer.dtype.to_numpy():
        raise ArgumentError(f"{buffer.name}: wrong element type", got=str(given.dtype), legal=buffer.dtype.name)
    layout = buffer.tensor.layout
    leading = getattr(layout, "leading", None)
    if leading is not None:
        need = shape[0] if getattr(layout, "order", "col") == "col" else shape[-1]
        if plan.number(leading) < need:
            what = f"{buffer.name}: the leading dimension is less than a row or column"
            raise ArgumentError(what, got=plan.number(leading), legal=f"at least {need}")


# ---------------------------------------------------------------------------------------------- places: the index arrays of an access


class _View:
    """Registers with the same numbers in all threads: a strided window, updated in place."""

    def __init__(self, memory: _Memory, numbers: Array, threads: int, group: _Group) -> None:
        self.memory, self.rows = memory, numbers
        self.start, self.steps = int(numbers.flat[0]), _steps(numbers)
        self.shape = (*numbers.shape, len(group.threads), memory.width)
        self.threads, self.first = threads, int(group.threads[0])
        self.data = self._window(memory.data)

    def _window(self, data: Array) -> Array:
        row = data.strides[0]
        strides = (*(step * self.threads * row for step in self.steps or ()), row, data.strides[1])
        return np.lib.stride_tricks.as_strided(data[self.start * self.threads + self.first :], self.shape, strides)

    def get(self) -> Array:
        return self.data

    def put(self, values: Array) -> None:
        self.data[...] = values

    def defined(self) -> Array:
        return self._window(self.memory.defined)

    def define(self) -> None:
        self._window(self.memory.defined)[...] = True


def _steps(numbers: Array) -> tuple[int, ...] | None:
    """The step of an array along each axis, if it is affine in its indices."""
    first = int(numbers.flat[0])
    steps = []
    total: Array = np.int64(first)
    for axis, size in enumerate(numbers.shape):
        index = tuple(1 if other == axis else 0 for other in range(numbers.ndim))
        step = int(numbers[index]) - first if size > 1 else 0
        steps.append(step)
        total = total + (np.arange(size) * step).reshape([-1 if other == axis else 1 for other in range(numbers.ndim)])
    return tuple(steps) if np.array_equal(np.broadcast_to(total, numbers.shape), numbers) else None


class _Rows:
    """Rows that are the same in all blocks: axes elements, loops, threads; a value is a row, over blocks."""

    def __init__(self, memory: _Memory, rows: Array) -> None:
        self.memory, self.rows = memory, rows
        self.shape = (*rows.shape, memory.width)
        self.touched: Any = None

    def get(self) -> Array:
        memory = self.memory
        if memory.width == 1:
            return memory.flat.take(self.rows).reshape(self.shape)
        return memory.data.take(self.rows, axis=0)

    def put(self, values: Array) -> None:
        if self.memory.width == 1:
            self.memory.flat[self.rows] = values[..., 0]
        else:
            self.memory.data[self.rows] = values

    def defined(self) -> Array:
        assert self.memory.defined is not None
        return self.memory.defined.take(self.rows, axis=0)

    def define(self) -> None:
        assert self.memory.defined is not None
        self.memory.defined[self.rows] = True


class _Flat:
    """Positions in a flat array: axes elements, loops, threads, blocks."""

    def __init__(self, memory: _Memory, rows: Array) -> None:
        self.memory, self.rows = memory, rows
        self.shape = rows.shape
        self.touched: Any = None

    def get(self) -> Array:
        return self.memory.flat.take(self.rows)

    def put(self, values: Array) -> None:
        self.memory.flat[self.rows] = values

    def defined(self) -> Array:
        assert self.memory.defined is not None
        return self.memory.defined.reshape(-1).take(self.rows)

    def define(self) -> None:
        assert self.memory.defined is not None
        self.memory.defined.reshape(-1)[self.rows] = True


class _Held:
    """A part of a distributed array, whole in its unit of threads: where each element is read, and all places of each.

    `rows` is where an element (by unit) is read; `targets` and `sources` are rows to write with the elements they take.
    """

    def __init__(self, memory: _Memory, rows: Array, targets: Array, sources: Array) -> None:
        self.memory, self.rows, self.targets, self.sources = memory, rows, targets, sources
        self.shape = (*rows.shape, memory.width)

    def get(self) -> Array:
        return self.memory.data.take(self.rows, axis=0)

    def put(self, values: Array) -> None:
        self.memory.data[self.targets] = np.broadcast_to(values, self.shape).reshape(-1, self.memory.width)[self.sources]

    def defined(self) -> Array:
        assert self.memory.defined is not None
        return self.memory.defined.take(self.rows, axis=0)

    def define(self) -> None:
        assert self.memory.defined is not None
        self.memory.defined[self.targets] = True


_Place: TypeAlias = "_View | _Rows | _Flat | _Held"


class _NotDistinct(Exception):
    """Turns of a loop write the same element: it cannot be an array axis."""


# ---------------------------------------------------------------------------------------------- shadow memory


class _Shadow:
    """Per address: the last writer and the readers since the last barrier, as least and greatest thread, with the clock.

    Threads are numbered across blocks, each block from a multiple of `pitch`, so that 32 neighbours are a warp.
    """

    def __init__(self, size: int, pitch: int) -> None:
        self.pitch = pitch
        self.writer = [np.full(size, -1, np.int64) for _ in range(2)]
        self.reader = [np.full(size, -1, np.int64) for _ in range(2)]
        self.write_clock, self.read_clock = (np.full(size, -1, np.int64) for _ in range(2))
        self.write_log = np.zeros(size, np.int32)
        self.read_log = [np.zeros(size, np.int32) for _ in range(2)]
        self.tags = np.zeros(size, np.int32)

    def conflicts(self, old: list[Array], clocks: Array, keys: Array, low: Array, high: Array, clock: int) -> Array:
        """Positions whose threads are not ordered with those recorded."""
        then = clocks[keys]
        recent = then >= (clock >> _EPOCH << _EPOCH)
        former = old[0][keys], old[1][keys]
        least, greatest = np.minimum(former[0], low), np.maximum(former[1], high)
        strangers = least // self.pitch != greatest // self.pitch
        if not recent.any() and not strangers[then >= 0].any():
            return ()
        same_warp = least // 32 == greatest // 32
        unordered = strangers | np.where(same_warp, then >= clock, recent)
        return np.flatnonzero((then >= 0) & (least != greatest) & unordered)

    def read(self, keys: Array, low: Array, high: Array, clock: int, log: int) -> None:
        """Record readers; those that a barrier has ordered before these are forgotten."""
        former, then = [one[keys] for one in self.reader], self.read_clock[keys]
        least, greatest = np.minimum(former[0], low), np.maximum(former[1], high)
        same_block = least // self.pitch == greatest // self.pitch
        old = (then < 0) | (same_block & (then < (clock >> _EPOCH << _EPOCH))) | ((least // 32 == greatest // 32) & (then < clock))
        lower, higher = old | (low <= former[0]), old | (high >= former[1])
        for side, (mine, better) in enumerate(((low, lower), (high, higher))):
            self.reader[side][keys] = np.where(better, mine, former[side])
            self.read_log[side][keys] = np.where(better, log, self.read_log[side][keys])
        self.read_clock[keys] = clock

    def write(self, keys: Array, low: Array, high: Array, clock: int, log: int) -> None:
        """Record writers."""
        self.writer[0][keys], self.writer[1][keys] = low, high
        self.write_clock[keys], self.write_log[keys] = clock, log

    def gathered(self, keys: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
        """Distinct addresses with the least and greatest thread of each."""
        numbers = np.arange(keys.size, dtype=np.int32)
        self.tags[keys] = numbers
        if (self.tags[keys] == numbers).all():
            return keys, low, high
        order = np.argsort(keys, kind="stable")
        keys, low, high = keys[order], low[order], high[order]
        starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
        return keys[starts], np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)


# ---------------------------------------------------------------------------------------------- a launch


class _Repeated:
    """One statement's touches of one shadow, with no barrier and no other statement between: how often each place was touched."""

    def __init__(self, site: Any, clock: int, group: Any) -> None:
        self.site, self.clock, self.group = site, clock, group
        self.places: dict[int, tuple[Any, int]] = {}

    def goes_on(self, site: Any, clock: int, group: Any) -> bool:
        """Whether a touch belongs to the same run of touches."""
        return self.site is site and self.clock == clock and self.group is group

    def settled(self, operand: Any, place: Any) -> bool:
        """Whether all operands were touched twice where they are now, so that once more changes nothing; counts the touch."""
        former, count = self.places.get(id(operand), (None, 0))
        if former is not place:
            self.places = {number: (other, 0) for number, (other, _) in self.places.items()}
            count = 0
        self.places[id(operand)] = (place, count + 1)
        return count >= 2 and all(times >= 2 for _, times in self.places.values())


class _Launch:
    """One simulated launch: global memory, the blocks in chunks, shadow memory."""

    def __init__(
        self,
        plan: _Plan,
        arrays: Mapping[str, Array],
        blocks: tuple[int, ...],
        shadow: bool,
        order: random.Random | None,
        careful: bool = False,
    ) -> None:
        self.plan, self.blocks, self.order, self.careful, self.shadow = plan, blocks, order, careful, shadow
        self.parameters = _parameters(plan, arrays, careful)
        self.shadows: dict[str, _Shadow] = {}
        if shadow:
            for name, one in self.parameters.items():
                if one.buffer.written:
                    self.shadows[name] = _Shadow(one.flat.size, plan.pitch)
        self.log: list[tuple[_Site, _Operand, Environment]] = []
        self.lock = threading.RLock()
        self.counts = [0, 0, 0, 0]

    def run(self) -> None:
        """Execute all chunks; of several errors the one in the first block counts."""
        chunks = self._chunks()
        seeds = [None if self.order is None else random.Random(self.order.getrandbits(64)) for _ in chunks]
        jobs = [(number, chunk, seed) for number, (chunk, seed) in enumerate(zip(chunks, seeds, strict=True))]
        workers = min(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1, len(jobs))
        if workers <= 1:
            runs = [self._chunk(*job) for job in jobs]
        else:
            with ThreadPoolExecutor(workers) as pool:
                futures = [pool.submit(self._chunk, *job) for job in jobs]
                try:
                    runs = [future.result() for future in futures]
                finally:
                    for future in futures:
                        future.cancel()
        for run in runs:
            self.counts[2] += run.read_bytes
            self.counts[3] += run.written_bytes
        if runs:
            self.counts[0], self.counts[1] = runs[0].statements, runs[0].barriers
        for parameter in self.parameters.values():
            parameter.check_guards()

    def _chunks(self) -> list[tuple[int, ...]]:
        plan, blocks = self.plan, self.blocks
        if plan.block_loops or plan.mixed:
            return [(block,) for block in blocks]
        size = plan.kernel.shared_bytes
        for buffer in plan.kernel.buffers:
            if buffer.memory.private:
                size += plan.number(buffer.elements) * buffer.dtype.bytes * plan.kernel.threads
        width = max(1, min(_CHUNK_BYTES // max(size, 1), _MOST_ELEMENTS // plan.largest, 256, -(-len(blocks) // 2)))
        return [blocks[start : start + width] for start in range(0, len(blocks), width)]

    def _chunk(self, number: int, blocks: tuple[int, ...], order: random.Random | None) -> _Run:
        with np.errstate(all="ignore"):
            run = _Run(self, blocks, watch=self.shadow and (number == 0 or not self.plan.uniform))
            run.execute(order)
        return run

    def note(self, site: _Site, operand: _Operand, env: Environment) -> int:
        """A number under which the statement and its loop values are found again."""
        self.log.append((site, operand, site.place(env)))
        return len(self.log) - 1

    def outputs(self) -> dict[str, Array]:
        """The written parameters."""
        return {name: one.array for name, one in self.parameters.items() if one.buffer.written}


def _name_poison(plan: _Plan, arrays: Mapping[str, Array], launch: _Launch) -> None:
    """Where NaN reached an output, execute a block again with every value watched, which names the first bad read."""
    for name, parameter in launch.parameters.items():
        if not parameter.buffer.written or parameter.buffer.dtype.kind != "float":
            continue
        bad = parameter.places[np.isnan(parameter.array)]
        if name in launch.shadows and bad.size:
            shadow = launch.shadows[name]
            bad = bad[shadow.write_clock[bad] >= 0]
            blocks = tuple(dict.fromkeys((shadow.writer[0][bad[:1]] // plan.pitch).tolist()))
        else:
            blocks = launch.blocks[:1]
        if bad.size:
            _Launch(plan, arrays, blocks, False, launch.order, careful=True).run()


@attrs.define(eq=False)
class _Group:
    """Threads that run together: all of a block, or a warp."""

    threads: Array
    environment: Environment
    epoch: int = 0
    places: dict[Any, Any] = attrs.field(factory=dict)
    parts: dict[Any, Any] = attrs.field(factory=dict)
    own: dict[Any, _Group] = attrs.field(factory=dict)


class _Run:
    """A chunk of blocks, executed together."""

    def __init__(self, launch: _Launch, blocks: tuple[int, ...], watch: bool) -> None:
        plan = launch.plan
        self.launch, self.plan, self.blocks, self.watch = launch, plan, blocks, watch
        self.width = len(blocks)
        self.numbers = np.array(blocks, dtype=np.int64)[None, :]
        self.memories: dict[str, _Memory] = {name: one.memory for name, one in launch.parameters.items()}
        self.memories |= _shared(plan, self.width, launch.careful)
        for buffer in plan.kernel.buffers:
            if buffer.memory.private:
                self.memories[buffer.name] = _registers(plan, buffer, self.width, launch.careful)
        self.shared_shadow: _Shadow | None = None
        if watch and plan.components:
            units = max(buffer.offset + buffer.bytes for part in plan.components for buffer in part) // plan.granule + 1
            self.shared_shadow = _Shadow(units * (1 if plan.uniform else self.width), plan.pitch)
        self.epoch = 0
        self.latest: dict[int, _Repeated] = {}
        self.temporary: dict[Any, Array] = {}
        self.statements = self.barriers = self.read_bytes = self.written_bytes = 0

    # ------------------------------------------------------------------------------------------ control

    def execute(self, order: random.Random | None) -> None:
        """All threads in step, or warp by warp."""
        threads = np.arange(self.plan.kernel.threads)
        if order is None:
            group = self._group(threads)
            for event, env in self._body(self.plan.nodes, group.environment, group):
                if isinstance(event, Barrier):
                    self._pass([group], event)
                else:
                    self._collective(event, env, group)
        else:
            warps = [self._group(threads[start : start + 32]) for start in range(0, threads.size, 32)]
            _Warps(self, warps, order).run()

    def _group(self, threads: Array) -> _Group:
        env: Environment = dict(self.plan.symbols)
        env["thread"], env["block"] = threads[:, None], self.numbers
        return _Group(threads, env)

    def _pass(self, groups: Sequence[_Group], barrier: Barrier) -> None:
        self.barriers += 1
        if barrier.scope == "block":
            self.epoch += 1
            for group in groups:
                group.epoch = 0
        else:
            for group in groups:
                group.epoch += 1

    def _body(self, nodes: list[Any], env: Environment, group: _Group) -> Generator[Event, None, None]:
        for node in nodes:
            if isinstance(node, _Site):
                if node.collective:
                    yield node, env
                else:
                    self._exec(node, env, group)
            elif isinstance(node, _Nest):
                if not self._nest(node, env, group):
                    yield from self._body(node.plain, env, group)
            elif isinstance(node, _Loop):
                for value in range(self._extent(node, env)):
                    env[node.name] = value
                    yield from self._body(node.body, env, group)
                env.pop(node.name, None)
            elif isinstance(node, _Name):
                env[node.name] = node.value(env)
            else:
                yield node, env

    def _extent(self, loop: _Loop, env: Environment) -> int:
        extent = np.asarray(loop.extent(env))
        if extent.size != 1 and (extent != extent.flat[0]).any():
            raise SimulationError(f"loop {loop.name} has an extent that differs between threads", within=self._where(env))
        return int(extent.flat[0])

    def _nest(self, nest: _Nest, env: Environment, group: _Group) -> bool:
        """Execute a nest with some loops as axes; False if that is not legal, before anything has been executed."""
        if not nest.outer:
            try:
                self._exec(nest.vector, env, group)
            except _NotDistinct:
                return False
            return True
        for values in itertools.product(*(range(int(np.asarray(extent(env)).flat[0])) for _, extent in nest.outer)):
            for (name, _), value in zip(nest.outer, values, strict=True):
                env[name] = value
            try:
                self._exec(nest.vector, env, group)
            except _NotDistinct:
                return False
        for name, _ in nest.outer:
            env.pop(name, None)
        return True

    # ------------------------------------------------------------------------------------------ one statement

    def _exec(self, site: _Site, env: Environment, group: _Group) -> None:
        accumulate = site.accumulate
        if not isinstance(accumulate, bool):
            accumulate = self._accumulate(site, env)
        inputs = [(name, operand, self._place(site, operand, env, group)) for name, operand in site.inputs]
        outputs = []
        for name, write, read in site.outputs:
            place = self._place(site, write, env, group)
            old = None if accumulate is False else place if accumulate is True else self._place(site, read, env, group)
            outputs.append((name, write, read, place, old))
        self.statements += 1
        reads = [(operand, place) for _, operand, place in inputs] + [(read, old) for _, _, read, _, old in outputs if old is not None]
        for touch in (*reads, *((write, place) for _, write, _, place, _ in outputs)):
            if touch[0].watched or not touch[1].memory.complete:
                self._touch(site, (touch,), env, group)
        if site.multiply_add:
            self._multiply_add(site, inputs[0][2], inputs[1][2], outputs[0][3], accumulate, outputs[0][4])
        elif site.copy:
            self._copy(site, inputs[0][2], outputs[0][3])
        else:
            self._perform(site, inputs, outputs, accumulate)

    def _accumulate(self, site: _Site, env: Environment) -> Any:
        """Whether old values are added to: a truth value, or an array where threads, blocks or turns differ."""
        assert callable(site.accumulate)
        value = np.asarray(site.accumulate(_vector_environment(site, env)), dtype=bool)
        if value.all():
            return True
        return value if value.any() else False

    def _multiply_add(self, site: _Site, a: _Place, b: _Place, c: _Place, accumulate: Any, old: _Place | None) -> None:
        left, right = a.get(), b.get()
        dtype = c.memory.data.dtype
        left, right = left.astype(dtype, copy=False), right.astype(dtype, copy=False)
        if not isinstance(c, _View) or accumulate is not True:
            base: Any = dtype.type(0) if old is None else old.get()
            c.put(np.broadcast_to(base + left * right, c.shape))
            return
        target = c.data
        axis = next((axis for axis in range(target.ndim - 2) if target.shape[axis] > 1), None)
        if axis is None or target.nbytes <= 1 << 17:
            product = self._temporary(target.shape, dtype)
            np.multiply(left, right, out=product)
            np.add(target, product, out=target)
            return
        lead = (slice(None),) * axis
        product = self._temporary(target[(*lead, 0)].shape, dtype)
        for turn in range(target.shape[axis]):
            part = target[(*lead, turn)]
            x = left[(*lead, turn if left.shape[axis] > 1 else 0)]
            y = right[(*lead, turn if right.shape[axis] > 1 else 0)]
            np.multiply(x, y, out=product)
            np.add(part, product, out=part)

    def _temporary(self, shape: tuple[int, ...], dtype: Any) -> Array:
        found = self.temporary.get((shape, dtype))
        if found is None:
            found = self.temporary[shape, dtype] = np.empty(shape, dtype)
        return found

    def _copy(self, site: _Site, source: _Place, target: _Place) -> None:
        assert isinstance(site.statement.spec, MoveSpec)
        values = source.get()
        if values.dtype != target.memory.data.dtype:
            values = site.statement.spec.perform({"src": values}, False)["dst"]
        target.put(values if isinstance(target, _View) else np.broadcast_to(values, target.shape))

    def _perform(self, site: _Site, inputs: list[Any], outputs: list[Any], accumulate: Any) -> None:
        """The general case: operands with their element dimensions first, then the spec's own meaning."""
        values = {name: _unfolded(place.get(), operand) for name, operand, place in inputs}
        for name, write, _, place, old in outputs:
            before = np.broadcast_to(np.zeros((), place.memory.data.dtype), place.shape) if old is None else old.get()
            values[name] = _unfolded(before, write)
        results = site.statement.spec.perform(values, accumulate)
        for name, write, _, place, _ in outputs:
            place.put(np.broadcast_to(_folded(results[name], write), place.shape))

    # ------------------------------------------------------------------------------------------ collective statements

    def _collective(self, site: _Site, env: Environment, group: _Group) -> None:
        """A statement that units of threads perform together: on the whole operands, once per unit."""
        units = np.broadcast_to(np.asarray(compiled(unit_in(site.level, Block, _thread(self.plan)))(env)), (group.threads.size, 1))[:, 0]
        present, leaders = np.unique(units, return_index=True)
        unit = np.searchsorted(present, units)
        self._check_uniform(site, env, leaders[unit])
        small: Environment = {name: _at_threads(value, leaders, group.threads.size) for name, value in env.items()}
        team = group.own.setdefault(site.level, _Group(group.threads[leaders], small))
        team.epoch = group.epoch
        lasts = np.array([group.threads[units == one].max() for one in present])
        span = (group.threads[leaders], lasts)
        accumulate = site.accumulate if isinstance(site.accumulate, bool) else self._accumulate(site, small)
        inputs = [(name, operand, self._shared_place(site, operand, env, small, group, team, unit)) for name, operand in site.inputs]
        outputs = []
        for name, write, read in site.outputs:
            place = self._shared_place(site, write, env, small, group, team, unit)
            old = None if accumulate is False else self._shared_place(site, read, env, small, group, team, unit)
            outputs.append((name, write, read, place, old))
        self.statements += 1
        reads = [(operand, place) for _, operand, place in inputs] + [(read, old) for _, _, read, _, old in outputs if old is not None]
        touches = [*reads, *((write, place) for _, write, _, place, _ in outputs)]
        if site.statement.collective:
            for number in range(len(leaders)):
                self._touch(site, touches, small, team, (*span, number))
        else:
            for touch in touches:
                self._touch(site, (touch,), small, team)
        if site.scratch is not None:
            self._scratch(site, site.scratch, small, team, group)
        self._perform(site, inputs, outputs, accumulate)

    def _check_uniform(self, site: _Site, env: Environment, leader: Array) -> None:
        """All threads of a unit must mean the same operands."""
        values = [*site.active, *(one for operand in site.operand_list for one in (*operand.base, operand.copy))]
        for value in values:
            result = np.asarray(value(env))
            if result.ndim == 2 and result.shape[0] > 1 and (result != result[leader]).any():
                what = f"{site.what}: threads of one {site.level} disagree about its operands"
                raise SimulationError(what, within=self._where(env), at=site.statement.origin)

    def _shared_place(
        self, site: _Site, operand: _Operand, env: Environment, small: Environment, group: _Group, team: _Group, unit: Array
    ) -> _Place:
        if operand.buffer.memory.private and site.statement.collective:
            return self._held(site, operand, env, small, group, unit)
        return self._locate(site, operand, small, team)

    def _held(self, site: _Site, operand: _Operand, env: Environment, small: Environment, group: _Group, unit: Array) -> _Held:
        """The places of a distributed operand, from what its buffer says each thread holds in each register."""
        memory, buffer, threads = self.memories[operand.buffer.name], operand.buffer, self.plan.kernel.threads
        register = Var("#register", 0, max(operand.elements - 1, 0))
        values = {**env, register.name: np.arange(operand.elements)[:, None, None]}
        held: Array = np.int64(0)
        valid: Array = np.True_
        for coordinate, size in zip(buffer.held(register), operand.sizes, strict=True):
            value = np.asarray(compiled(coordinate)(values))
            held = held * size + value
            valid = valid & (value >= 0) & (value < size)
        shape = (operand.elements, group.threads.size, 1)
        held, valid = (np.broadcast_to(one, (*shape[:2], max(one.shape[-1:] or (1,))))[..., 0] for one in (held, valid))
        mask, coordinates, _ = self._coordinates(site, operand, small, group, cached=False)
        wanted: Array = np.int64(0)
        for value, size in zip(coordinates, operand.sizes, strict=True):
            wanted = wanted * size + value
        count = _product(operand.sizes)
        units = int(unit.max()) + 1
        wanted = np.broadcast_to(wanted, (operand.count, units, wanted.shape[-1]))[..., 0]
        allowed = np.broadcast_to(np.True_ if mask is None else mask, (operand.count, units, 1 if mask is None else mask.shape[-1]))[..., 0]
        rows = np.arange(operand.elements)[:, None] * threads + group.threads
        where = np.broadcast_to(unit, rows.shape) * count + np.where(valid, held, 0)
        holder = np.full(units * count, -1)
        holder[where[valid]] = rows[valid]
        keys = np.arange(units) * count + np.where(allowed, wanted, 0)
        found = holder[keys]
        if (allowed & (found < 0)).any():
            element, number = np.argwhere(allowed & (found < 0))[0]
            place = self._coordinate_text(operand, int(wanted[element, number]))
            what = f"{site.what}: no thread of {site.level} {number} holds {buffer.name}{place}"
            raise SimulationError(what, within=self._where(env), at=site.statement.origin)
        position = np.full(units * count, -1)
        position[keys[allowed]] = np.arange(keys.size).reshape(keys.shape)[allowed]
        taken = valid & (position[where] >= 0)
        return _Held(memory, np.where(allowed, found, memory.zero), rows[taken], position[where[taken]])

    def _coordinate_text(self, operand: _Operand, number: int) -> str:
        digits: list[int] = []
        for size in reversed(operand.sizes):
            number, digit = divmod(number, max(size, 1))
            digits.append(digit)
        return f"[{', '.join(map(str, reversed(digits)))}]"

    def _scratch(self, site: _Site, operand: _Operand, env: Environment, team: _Group, group: _Group) -> None:
        """All threads may write anywhere in the statement's own memory, and leave nothing of use there."""
        memory = self.memories[operand.buffer.name]
        place = _Rows(memory, memory.first + np.arange(memory.rows)[:, None])
        ends = (group.threads[:1], group.threads[-1:], 0)
        self._touch(site, ((operand, place),), env, team, ends)
        memory.data[memory.first : memory.first + memory.rows].view(np.uint8)[:] = _POISON[operand.buffer.dtype.kind]
        if memory.defined is not None:
            memory.defined[memory.first : memory.first + memory.rows] = False
            memory.complete = False

    # ------------------------------------------------------------------------------------------ where an access goes

    def _place(self, site: _Site, operand: _Operand, env: Environment, group: _Group) -> _Place:
        if not operand.kept and operand.key:
            return self._locate(site, operand, env, group)
        key = (operand, *(env[name] for name in operand.key))
        found = group.places.get(key)
        if found is None:
            found = group.places[key] = self._locate(site, operand, env, group)
        return found

    def _locate(self, site: _Site, operand: _Operand, env: Environment, group: _Group) -> _Place:
        memory, private = self.memories[operand.buffer.name], operand.buffer.memory.private
        mask, coordinates, parts = self._coordinates(site, operand, env, group, cached=True)
        env = _vector_environment(site, env)
        numbers = self._address(site, operand, env, mask, coordinates, parts, group)
        if private and mask is None:
            view = self._view(site, operand, env, numbers, group)
            if view is not None:
                return view
        rows = numbers * self.plan.kernel.threads + group.threads[:, None] if private else numbers + memory.first
        if operand.write and site.loops:
            self._check_distinct(self._full(site, env, operand, rows[..., 0], group))
        if mask is not None:
            rows = np.where(mask, rows, memory.zero + operand.write)
        if operand.buffer.memory == GL:
            self._count(site, operand, rows, mask, env, group)
            return _Flat(memory, self._full(site, env, operand, rows, group, self.width) if operand.write else rows)
        if rows.shape[-1] == 1:
            return _Rows(memory, self._full(site, env, operand, rows[..., 0], group) if operand.write else rows[..., 0])
        rows = rows * self.width + np.arange(self.width)
        return _Flat(memory, self._full(site, env, operand, rows, group, self.width) if operand.write else rows)

    def _full(self, site: _Site, env: Environment, operand: _Operand, rows: Array, group: _Group, *blocks: int) -> Array:
        """Index arrays of what is written name every turn, thread and block."""
        shape = (operand.count, *(env[name].size for name, _ in site.loops), group.threads.size, *blocks)
        return rows if rows.shape == shape else np.ascontiguousarray(np.broadcast_to(rows, shape))

    def _check_distinct(self, rows: Array) -> None:
        """Turns of a loop that is an axis must write different elements; masks only take elements away."""
        if np.unique(rows).size != rows.size:
            raise _NotDistinct

    def _count(self, site: _Site, operand: _Operand, rows: Array, mask: Array | None, env: Environment, group: _Group) -> None:
        """Bytes of global memory that all threads ask for."""
        size = operand.count * _product(env[name].size for name, _ in site.loops) * group.threads.size * self.width
        if mask is not None:
            size = size * int(np.count_nonzero(mask)) // mask.size
        if operand.write:
            self.written_bytes += size * operand.buffer.dtype.bytes
        else:
            self.read_bytes += size * operand.buffer.dtype.bytes

    def _view(self, site: _Site, operand: _Operand, env: Environment, numbers: Array, group: _Group) -> _View | None:
        """The registers as a strided window, where their numbers are the same in all threads and affine in the loops."""
        same = numbers[..., :1, :1]
        if group.threads[-1] - group.threads[0] + 1 != group.threads.size or (numbers != same).any():
            return None
        window = same[..., 0, 0]
        if operand.write:
            window = np.broadcast_to(window, (operand.count, *(env[name].size for name, _ in site.loops)))
            if site.loops:
                self._check_distinct(window)
        return None if _steps(window) is None else _View(self.memories[operand.buffer.name], window, self.plan.kernel.threads, group)

    def _coordinates(
        self, site: _Site, operand: _Operand, env: Environment, group: _Group, cached: bool
    ) -> tuple[Array | None, list[Array], list[tuple[Array, int, int]]]:
        """The mask of elements that take part, coordinates, and each coordinate's part of the address with its range."""
        vector = _vector_environment(site, env)
        rank = len(site.loops) + 3
        mask: Array | None = None
        for condition in operand.conditions:
            mask = _both(mask, _aligned(np.asarray(condition(vector), dtype=bool), rank))
        coordinates, parts, doubtful = [], [], False
        for dim in range(len(operand.base)):
            names = operand.keys[dim]
            key = (operand, dim, *(env[name] for name in names)) if cached and len(names) < len(site.enclosing) else None
            part = group.parts.get(key) if key is not None else None
            if part is None:
                part = self._dimension(operand, dim, vector, rank)
                if key is not None:
                    group.parts[key] = part
            value, contribution, inside, ok = part
            mask = _both(mask, inside)
            coordinates.append(value)
            parts.append(contribution)
            doubtful |= not ok
        if doubtful:
            self._check_coordinates(site, operand, vector, mask, coordinates, group)
        return mask, coordinates, parts

    def _dimension(
        self, operand: _Operand, dim: int, env: Environment, rank: int
    ) -> tuple[Array, tuple[Array, int, int], Array | None, bool]:
        """Coordinates; their part of the address with its range; which lie inside; whether the tensor provably holds all that count."""
        value = _aligned(np.asarray(operand.base[dim](env)), rank)
        if operand.count > 1:
            value = value + operand.offsets[dim].reshape((-1,) + (1,) * (rank - 1))
        low, high = int(value.min()), int(value.max())
        bound, inside = operand.bounds[dim], None
        size = operand.sizes[dim]
        ok = low >= 0 and high < size
        if bound is not None:
            limit = np.asarray(bound(env))
            if (high >= limit).any():
                inside = value < limit
                ok = low >= 0 and bool((limit <= size).all())
        digit = _aligned(np.asarray(operand.digits[dim]({**self.plan.symbols, _COORDINATE.name: value})), rank)
        return value, (digit, int(digit.min()), int(digit.max())), inside, ok

    def _check_coordinates(
        self, site: _Site, operand: _Operand, env: Environment, mask: Array | None, coordinates: list[Array], group: _Group
    ) -> None:
        for dim, (value, size) in enumerate(zip(coordinates, operand.sizes, strict=True)):
            bad = (value < 0) | (value >= size)
            bad = bad if mask is None else bad & mask
            if bad.any():
                where = _first(bad, site, env, group, self.width)
                element = tuple(_pick(one, where[0]) for one in coordinates)
                raise SimulationError(
                    f"{operand.buffer.name}[{', '.join(map(str, element))}] is outside the tensor: thread {where[1]} of block "
                    f"{self._block(where[2])} {'writes' if operand.write else 'reads'} it",
                    got=f"coordinate {dim} is {element[dim]}",
                    legal=f"0 ... {size - 1}",
                    within=f"{site.what}, {self._where(env, where[3])}",
                    at=operand.origin or site.statement.origin,
                    hint="a guard is missing or wrong",
                )

    def _block(self, position: int) -> int:
        return int(self.blocks[min(position, self.width - 1)])

    def _address(
        self,
        site: _Site,
        operand: _Operand,
        env: Environment,
        mask: Array | None,
        coordinates: list[Array],
        parts: list[tuple[Array, int, int]],
        group: _Group,
    ) -> Array:
        """Addresses in elements from the start of the buffer."""
        low, high = sum(part[1] for part in parts), sum(part[2] for part in parts)
        ordered = sorted((part[0] for part in parts), key=lambda one: one.size)
        address = functools.reduce(np.add, ordered) if ordered else np.zeros((1,) * (len(site.loops) + 3), np.int64)
        proved = operand.swizzle is None
        if operand.swizzle is not None:
            safe = address if low >= 0 else np.maximum(address, 0)
            address = operand.swizzle({_ADDRESS.name: safe})
        copy = np.asarray(operand.copy(env))
        if copy.any():
            address = address + copy * operand.elements
            low, high = low + int(copy.min()) * operand.elements, high + int(copy.max()) * operand.elements
        if not (proved and low >= 0 and high < operand.total):
            bad = (address < 0) | (address >= operand.total)
            bad = bad if mask is None else bad & mask
            if bad.any():
                where = _first(bad, site, env, group, self.width)
                element = tuple(_pick(one, where[0]) for one in coordinates)
                raise SimulationError(
                    f"address {_pick(address, where[0])} of {operand.buffer.name}[{', '.join(map(str, element))}] is outside the buffer: "
                    f"thread {where[1]} of block {self._block(where[2])} {'writes' if operand.write else 'reads'} it",
                    legal=f"0 ... {operand.total - 1}",
                    within=f"{site.what}, {self._where(env, where[3])}",
                    at=operand.origin or site.statement.origin,
                )
        return address

    # ------------------------------------------------------------------------------------------ what is watched

    def _clock(self, group: _Group) -> int:
        return (self.epoch << _EPOCH) + group.epoch

    def _shadow_of(self, operand: _Operand) -> _Shadow | None:
        if not operand.watched:
            return None
        return self.shared_shadow if operand.buffer.memory == SH else self.launch.shadows.get(operand.buffer.name)

    def _touch(self, site: _Site, touches: Sequence[tuple[_Operand, _Place]], env: Environment, group: _Group, span: Any = None) -> None:
        """Check accesses against what came before, then record them; all of them at once where one statement orders them itself.

        A statement that touches the same places over and over, with no barrier and no other statement between, changes nothing.
        """
        if span is None and len(touches) == 1:
            if self._settled(site, *touches[0], group):
                return
        else:
            self.latest.clear()
        with self.launch.lock:
            for operand, place in touches:
                self._check(site, operand, place, env, group, span)
            for operand, place in touches:
                self._record(site, operand, place, env, group, span)

    def _settled(self, site: _Site, operand: _Operand, place: _Place, group: _Group) -> bool:
        shadow = self._shadow_of(operand)
        if shadow is None:
            return False
        run = self.latest.get(id(shadow))
        if run is None or not run.goes_on(site, self._clock(group), group):
            run = self.latest[id(shadow)] = _Repeated(site, self._clock(group), group)
        return run.settled(operand, place)

    def _check(self, site: _Site, operand: _Operand, place: _Place, env: Environment, group: _Group, span: Any) -> None:
        if not operand.write and not place.memory.complete:
            defined = place.defined()
            if not defined.all():
                self._uninitialised(site, operand, defined, env, group)
            place.memory.settle()
        shadow = self._shadow_of(operand)
        if shadow is None:
            return
        keys, low, high = self._touched(shadow, operand, place, group, span)
        if operand.write and span is None and (low != high).any():
            where = int(np.flatnonzero(low != high)[0])
            former = int(low[where]), site, operand, site.place(env)
            self._race_text(site, operand, place, int(keys[where]), former, int(high[where]), env, group)
        for reader in (False, True) if operand.write else (False,):
            sides, clocks = (shadow.reader, shadow.read_clock) if reader else (shadow.writer, shadow.write_clock)
            found = shadow.conflicts(sides, clocks, keys, low, high, self._clock(group))
            if len(found):
                self._race(site, operand, shadow, place, keys, low, high, int(found[0]), reader, env, group)

    def _record(self, site: _Site, operand: _Operand, place: _Place, env: Environment, group: _Group, span: Any) -> None:
        if operand.write and not place.memory.complete:
            place.define()
        shadow = self._shadow_of(operand)
        if shadow is not None:
            record = shadow.write if operand.write else shadow.read
            record(*self._touched(shadow, operand, place, group, span), self._clock(group), self.launch.note(site, operand, env))

    def _touched(self, shadow: _Shadow, operand: _Operand, place: Any, group: _Group, span: Any) -> tuple[Array, Array, Array]:
        """Distinct keys with the least and greatest thread that touches each; `span` are those of all units, and the unit asked for."""
        if span is None and place.touched is not None:
            return place.touched  # type: ignore[no-any-return]
        low, high, unit = span or (group.threads, group.threads, None)
        keys, valid, ids = self._keys(operand, place, group, (low, high))
        if unit is not None:
            valid = valid & (ids[0] % self.plan.pitch == low[unit])
        touched = shadow.gathered(keys[valid], *(one[valid] for one in ids))
        if span is None:
            place.touched = touched
        return touched

    def _keys(self, operand: _Operand, place: Any, group: _Group, span: tuple[Array, Array]) -> tuple[Array, Array, list[Array]]:
        """Shadow keys, which of them take part, and thread numbers (least, greatest), all in one shape."""
        memory, rows = place.memory, place.rows
        shared = operand.buffer.memory == SH
        if isinstance(place, _Rows):
            rows = rows[..., None]
            if not self.plan.uniform:
                rows = np.broadcast_to(rows, (*rows.shape[:-1], self.width))
            row = rows
            block: Array = np.arange(rows.shape[-1])
        else:
            rows = np.broadcast_to(rows, (*rows.shape[:-1], self.width))
            row = rows // self.width if shared else rows
            block = np.arange(self.width)
        ids = [one[:, None] + (self.numbers[:, : block.size] * self.plan.pitch) for one in span]
        shape = np.broadcast_shapes(rows.shape, ids[0].shape)
        valid = np.broadcast_to(row < memory.zero, shape)
        if not shared:
            return np.broadcast_to(rows, shape), valid, [np.broadcast_to(one, shape) for one in ids]
        parts = operand.buffer.dtype.bytes // self.plan.granule
        keys = (row - memory.first) * parts + operand.buffer.offset // self.plan.granule
        keys = np.broadcast_to(keys * block.size + block, shape)
        if parts > 1:
            keys = keys[..., None] + np.arange(parts) * block.size
            shape = keys.shape
            valid = np.broadcast_to(valid[..., None], shape)
            ids = [np.broadcast_to(one[..., None], shape) for one in ids]
        return keys, valid, [np.broadcast_to(one, shape) for one in ids]

    # ------------------------------------------------------------------------------------------ messages

    def _where(self, env: Environment, more: Mapping[str, int] | None = None) -> str:
        names = {name: value for name, value in env.items() if isinstance(value, int) and name not in self.plan.symbols}
        return ", ".join(f"{name}={value}" for name, value in {**names, **(more or {})}.items()) or "outside loops"

    def _uninitialised(self, site: _Site, operand: _Operand, defined: Array, env: Environment, group: _Group) -> None:
        vector = _vector_environment(site, env)
        where = _first(~defined, site, vector, group, self.width)
        element = self._element(site, operand, env, group, where[0])
        raise SimulationError(
            f"{operand.buffer.name}{element} is read before anything was written to it: thread {where[1]} of block {self._block(where[2])}",
            within=f"{site.what}, {self._where(env, where[3])}",
            at=operand.origin or site.statement.origin,
            hint="an init or a copy is missing, or writes with other addresses than this reads",
        )

    def _element(self, site: _Site, operand: _Operand, env: Environment, group: _Group, index: tuple[int, ...]) -> str:
        """Coordinates, and the address, of one position of an access."""
        mask, coordinates, parts = self._coordinates(site, operand, env, group, cached=False)
        address = self._address(site, operand, _vector_environment(site, env), mask, coordinates, parts, group)
        element = ", ".join(str(_pick(one, index)) for one in coordinates)
        kind = "register" if operand.buffer.memory.private else "address"
        return f"[{element}] ({kind} {_pick(address, index)})"

    def _race(
        self,
        site: _Site,
        operand: _Operand,
        shadow: _Shadow,
        place: Any,
        keys: Array,
        low: Array,
        high: Array,
        position: int,
        reader: bool,
        env: Environment,
        group: _Group,
    ) -> None:
        key = int(keys[position])
        sides = shadow.reader if reader else shadow.writer
        mine = int(low[position]), int(high[position])
        pairs = [(int(sides[side][key]), me, side) for side in (0, 1) for me in mine]
        other, me, side = max(pairs, key=lambda pair: (pair[0] // 32 != pair[1] // 32, pair[0] != pair[1]))
        log = int(shadow.read_log[side][key] if reader else shadow.write_log[key])
        self._race_text(site, operand, place, key, (other, *self.launch.log[log]), me, env, group)

    def _race_text(
        self,
        site: _Site,
        operand: _Operand,
        place: Any,
        key: int,
        former: tuple[int, _Site, _Operand, Environment],
        me: int,
        env: Environment,
        group: _Group,
    ) -> None:
        keys, valid, ids = self._keys(operand, place, group, (group.threads, group.threads))
        found = np.argwhere((keys == key) & valid & (ids[0] == me))
        if not len(found):
            found = np.argwhere((keys == key) & valid)
        index = tuple(int(one) for one in found[0])[: len(site.loops) + 3]
        vector = _vector_environment(site, env)
        more = {name: _pick(vector[name], (*index[1 : 1 + len(site.loops)], 0, 0)[-vector[name].ndim :]) for name, _ in site.loops}
        other, old_site, old_operand, old_env = former
        element = self._element(site, operand, env, group, index)
        verbs = ["writes" if old_operand.write else "reads", "writes" if operand.write else "reads"]
        lines = [old_operand.origin or old_site.statement.origin, operand.origin or site.statement.origin]
        strangers = other // self.plan.pitch != me // self.plan.pitch
        same = strangers or (old_site is site and old_env == site.place(env))
        hint = "deal each element to one thread only" if same else "a barrier between the two"
        names = [self._thread_name(one, strangers) for one in (other, me)]
        then = self._where(old_env)
        raise SimulationError(
            f"race on {operand.buffer.name}{element}: {names[0]} {verbs[0]} it ({old_site.what} at {lines[0]}, {then}), "
            f"{names[1]} {verbs[1]} it ({site.what} at {lines[1]}), and no barrier orders them",
            within=f"block {me // self.plan.pitch}, {self._where(env, more)}",
            at=operand.origin or site.statement.origin,
            hint=hint,
        )

    def _thread_name(self, number: int, with_block: bool) -> str:
        block, thread = divmod(number, self.plan.pitch)
        return f"thread {thread} of block {block}" if with_block else f"thread {thread}"


def _thread(plan: _Plan) -> Var:
    return Var(THREAD.name, 0, plan.kernel.threads - 1)


def _at_threads(value: Any, chosen: Array, threads: int) -> Any:
    """A named value at some threads only."""
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.shape[0] == threads and threads > 1:
        return value[chosen]
    return value


def _vector_environment(site: _Site, env: Environment) -> Environment:
    """The environment with loops as axes in front of threads and blocks."""
    if not (site.loops or site.lets):
        return env
    result = dict(env)
    count = len(site.loops)
    for axis, (name, extent) in enumerate(site.loops):
        size = int(np.asarray(extent(env)).flat[0])
        result[name] = np.arange(size).reshape((1,) * axis + (size,) + (1,) * (count - axis + 1))
    for name, value in site.lets:
        result[name] = value(result)
    return result


def _aligned(values: Array, rank: int) -> Array:
    """The array with axes of size 1 in front."""
    return values.reshape((1,) * (rank - values.ndim) + values.shape)


def _both(mask: Array | None, more: Array | None) -> Array | None:
    if more is None or (mask is not None and more.all()):
        return mask
    if more.all():
        return None
    return more if mask is None else mask & more


def _pick(values: Array, index: tuple[int, ...]) -> int:
    """A value of an array that is broadcast to the shape of the index."""
    values = np.asarray(values)
    index = index[len(index) - values.ndim :]
    return int(values[tuple(min(one, size - 1) for one, size in zip(index, values.shape, strict=True))])


def _first(bad: Array, site: _Site, env: Environment, group: _Group, width: int) -> tuple[tuple[int, ...], int, int, dict[str, int]]:
    """The first true position: its index, thread, block in the chunk, and values of the loops that are axes."""
    index = tuple(int(one) for one in np.argwhere(bad)[0])
    rank = len(site.loops) + 3
    index = index if len(index) == rank else (*index, 0)[:rank]
    thread = int(group.threads[min(index[-2], group.threads.size - 1)])
    loops = {name: index[1 + axis] for axis, (name, _) in enumerate(site.loops)}
    return index, thread, index[-1], loops


def _unfolded(values: Array, operand: _Operand) -> Array:
    """The element axis as the operand's dimensions."""
    if operand.count == 1:
        return values.reshape((1,) * (len(operand.tile) - 1) + values.shape)
    rank = len(operand.tile)
    values = values.reshape((*operand.tile[::-1], *values.shape[1:]))
    return values.transpose((*range(rank - 1, -1, -1), *range(rank, values.ndim)))


def _folded(values: Array, operand: _Operand) -> Array:
    """The operand's dimensions as one element axis, the first dimension fastest."""
    rank = len(operand.tile)
    values = values.transpose((*range(rank - 1, -1, -1), *range(rank, values.ndim)))
    return values.reshape((operand.count, *values.shape[rank:]))


# ---------------------------------------------------------------------------------------------- warps in random order


class _Warps:
    """Warps as coroutines that stop at barriers and at statements which several warps perform together."""

    def __init__(self, run: _Run, warps: list[_Group], order: random.Random) -> None:
        self.run_, self.warps, self.order = run, warps, order

    def run(self) -> None:
        """Execute all warps to their end."""
        run = self.run_
        tasks = [run._body(run.plan.nodes, warp.environment, warp) for warp in self.warps]
        ready = list(range(len(tasks)))
        waiting: dict[int, Event] = {}
        while ready:
            warp = ready.pop(self.order.randrange(len(ready)))
            event = next(tasks[warp], None)
            if event is not None and isinstance(event[0], Barrier) and event[0].scope == "warp":
                run._pass([self.warps[warp]], event[0])
                ready.append(warp)
            elif event is not None and isinstance(event[0], _Site) and self._inside_warp(event[0]):
                run._collective(event[0], event[1], self.warps[warp])
                ready.append(warp)
            elif event is not None:
                waiting[warp] = event
            if not ready and waiting:
                self._meet(waiting)
                ready = sorted(waiting)
                waiting = {}

    def _inside_warp(self, site: _Site) -> bool:
        threads = site.level.threads
        return site.scratch is None and threads is not None and threads <= 32 and site.level != Block

    def _meet(self, waiting: dict[int, Event]) -> None:
        """All warps have stopped: at the same statement, or for ever."""
        events = [waiting.get(warp) for warp in range(len(self.warps))]
        first = next(event for event in events if event is not None)
        for warp, event in enumerate(events):
            if event is None or event[0] is not first[0]:
                stopped = next(iter(waiting))
                where = "has ended" if event is None else f"waits at {_named(event[0])}"
                raise SimulationError(
                    f"deadlock: warp {stopped} waits at {_named(first[0])}, warp {warp} {where}",
                    within=self.run_._where(first[1]),
                    hint="every warp must reach the same barriers",
                )
        if isinstance(first[0], Barrier):
            self.run_._pass(self.warps, first[0])
        else:
            self._together(first[0], [waiting[warp][1] for warp in range(len(self.warps))])

    def _together(self, site: _Site, environments: list[Environment]) -> None:
        threads = np.concatenate([warp.threads for warp in self.warps])
        env: Environment = {}
        for name, value in environments[0].items():
            env[name] = value if not isinstance(value, np.ndarray) else self._joined([one[name] for one in environments])
        env["block"] = environments[0]["block"]
        group = _Group(threads, env, max(warp.epoch for warp in self.warps))
        self.run_._collective(site, env, group)

    def _joined(self, values: list[Array]) -> Array:
        parts = []
        for value, warp in zip(values, self.warps, strict=True):
            value = np.asarray(value)
            if value.ndim < 2:
                return values[0]
            parts.append(np.broadcast_to(value, (warp.threads.size, value.shape[1])))
        return np.concatenate(parts)


def _named(event: Any) -> str:
    return f"the {event.scope} barrier ({event.reason})" if isinstance(event, Barrier) else str(event.what)


__all__ = ["Simulation", "simulate"]
