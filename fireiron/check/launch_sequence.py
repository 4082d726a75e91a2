"""Check kernels that run in order and pass arrays to each other, from their final IR.

The accesses in the IR decide what a kernel reads and writes, not the operands of its spec:

- a kernel reads an array only after the caller or an earlier kernel has written all of it, and each result is written;
- all kernels that access an array agree on its element type, shape and strides;
- a kernel with programmatic dependent launch waits before it accesses an array that an earlier kernel may access.

Source: PTX ISA, "griddepcontrol"; CUDA C++ Programming Guide, "Programmatic Dependent Launch"; decisions 31 and 94.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final, Protocol

from fireiron.check.finding import Finding
from fireiron.check.launches import Launch, check_effects, part_of
from fireiron.check.written_parts import WrittenParts, error
from fireiron.frozen import frozen
from fireiron.ir import Buffer, Exec, GridDepAction, GridDepControl, Kernel, Roles, Stmt, statements
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.specs.fused import scattered_outputs
from fireiron.values.expr import FALSE, constant, tables_of

OLDEST: Final = 90
"""The first compute capability with programmatic dependent launch."""


class KernelLaunch(Launch, Protocol):
    """A launch with its final kernel IR."""

    @property
    def kernel(self) -> Kernel:
        """The final kernel IR, whose parameters have the names of the operands."""


def check_sequence(launches: Sequence[KernelLaunch], inputs: Collection[str], outputs: Collection[str]) -> Iterator[Finding]:
    """The errors between launches that run in this order on one stream.

    Args:
        launches: each has its kernel IR, and the array of each operand.
        inputs: the arrays that the caller passes.
        outputs: the arrays that the caller gets.
    """
    yield from _uninitialized(launches, inputs, outputs)
    yield from _written_twice(launches, inputs)
    yield from _different(launches)
    yield from check_effects([(launch, launch.kernel.effects) for launch in launches])
    for place, launch in enumerate(launches):
        yield from _started_early(launch, {array for other in launches[:place] for array in other.arrays.values()})


# ---------------------------------------------------------------------------------------------- which arrays a kernel accesses


def reads(kernel: Kernel) -> tuple[str, ...]:
    """The parameters in global memory that a kernel reads, tables of indices included, in the order of its parameters."""
    return _parameters(kernel, {name for stmt in statements(kernel.body) for name in _read_by(kernel, stmt)})


def writes(kernel: Kernel) -> tuple[str, ...]:
    """The parameters in global memory that a kernel writes, in the order of its parameters."""
    return _parameters(
        kernel, {access.buffer for stmt in statements(kernel.body) if isinstance(stmt, Exec) for access in stmt.accesses if access.write}
    )


def _parameters(kernel: Kernel, names: Collection[str]) -> tuple[str, ...]:
    return tuple(buffer.name for buffer in kernel.buffers if buffer.name in names and _is_array(buffer))


def _is_array(buffer: Buffer) -> bool:
    return buffer.parameter and buffer.memory.of_grid and not buffer.memory.by_value and not buffer.memory.is_coordinate


def _read_by(kernel: Kernel, statement: Stmt) -> set[str]:
    """The buffers that a statement reads, without those of the statements inside it."""
    tables = {name for value in statement.expressions for name in tables_of(value)}
    if not isinstance(statement, Exec):
        return tables
    indexed = {table.array for access in statement.accesses for table in kernel.buffer(access.buffer).storage.tables}
    return tables | indexed | {access.buffer for access in statement.accesses if not access.write}


def _adds(launch: KernelLaunch) -> bool:
    """Whether a launch adds to the initial values of its outputs."""
    return launch.spec.atomic or launch.spec.accumulate != FALSE


# ---------------------------------------------------------------------------------------------- initialization


def _uninitialized(launches: Sequence[KernelLaunch], inputs: Collection[str], outputs: Collection[str]) -> Iterator[Finding]:
    """Errors for arrays that are read, or returned, before all of their elements are written."""
    parts = WrittenParts(complete=set(inputs))
    for launch in launches:
        zeroed = launch.kernel.effects[Zeroed].names
        for name in reads(launch.kernel):
            yield from _unwritten(launch, name, _array_of(launch, name), parts)
        for name in writes(launch.kernel):
            array = _array_of(launch, name)
            started = array in inputs or array in parts.written or array in outputs
            if not started and name in scattered_outputs(launch.spec):
                yield error(
                    array, f"{launch.name} writes only the elements of {array} that its indices name, and {array} has no other values"
                )
            if not started and _adds(launch) and name not in zeroed:
                yield error(array, f"{launch.name} adds to {array}, which has no initial values")
            if name in zeroed or name in scattered_outputs(launch.spec):
                parts.complete.add(array)  # the launcher, or the caller, gives all elements a value; otherwise it is reported above
            if name in launch.spec.operands:
                parts.write(array, part_of(launch, name))
    for array in outputs:
        if array not in parts.written:
            yield error(array, f"no kernel writes the result {array}")


def _array_of(launch: KernelLaunch, name: str) -> str:
    """The array of a parameter; a parameter that is no operand belongs to the kernel alone."""
    return launch.arrays.get(name, f"{launch.name}.{name}")


def _unwritten(launch: KernelLaunch, name: str, array: str, parts: WrittenParts) -> Iterator[Finding]:
    if array in parts.complete:
        return
    if name not in launch.spec.operands:
        yield error(array, f"{launch.name} reads {name}, which is not an operand of its spec")
    elif array not in parts.written:
        yield error(array, f"{launch.name} reads {array}, which neither the caller passes nor an earlier kernel writes")
    else:
        yield from parts.missing(array, part_of(launch, name), f"{launch.name} reads {array}")


def _written_twice(launches: Sequence[KernelLaunch], inputs: Collection[str]) -> Iterator[Finding]:
    """Errors for arrays that a kernel writes although they are arguments, or operands that it also reads."""
    for launch in launches:
        for name in writes(launch.kernel):
            array = _array_of(launch, name)
            if array in inputs:
                yield error(array, f"{launch.name} writes {array}, which is an argument")
            for other in reads(launch.kernel):
                if other != name and _array_of(launch, other) == array:
                    yield error(array, f"{launch.name} writes {array} as {name} and reads it as {other}, but its blocks are not ordered")


# ---------------------------------------------------------------------------------------------- agreement


def _different(launches: Sequence[KernelLaunch]) -> Iterator[Finding]:
    """Errors for arrays that two kernels access as arrays of different types, shapes or strides."""
    first: dict[str, tuple[KernelLaunch, Buffer]] = {}
    for launch in launches:
        for buffer in launch.kernel.buffers:
            if not buffer.parameter or not buffer.memory.of_grid or buffer.memory.is_coordinate:
                continue
            array = _array_of(launch, buffer.name)
            other, known = first.setdefault(array, (launch, buffer))
            difference = _difference(known, buffer)
            if difference is not None:
                what, before, now = difference
                yield error(array, f"{launch.name} and {other.name} access {array} with different {what}: {now}, {before}")


def _difference(buffer: Buffer, other: Buffer) -> tuple[str, str, str] | None:
    """What differs between two parameters of one array, and both values; None if nothing does."""
    if buffer.dtype != other.dtype:
        return "element types", str(buffer.dtype), str(other.dtype)
    shape, other_shape = buffer.array.shape, other.array.shape
    if shape != other_shape:
        return "shapes", " x ".join(map(str, shape)), " x ".join(map(str, other_shape))
    sizes = frozenset(var for size in shape for var in size.variables())
    for size, step, other_step in zip(shape, buffer.array_storage.steps, other.array_storage.steps, strict=True):
        if constant(size) == 1 or step == other_step:  # a dimension of one element may have any stride
            continue
        if step is None or other_step is None or step.variables() | other_step.variables() <= sizes:
            return "strides", str(buffer.array.layout), str(other.array.layout)
    return None  # run-time strides are compared by each call


# ---------------------------------------------------------------------------------------------- programmatic dependent launch


@frozen
class _Walked:
    """The result of a walk: the parameters that are accessed before the wait, whether all threads have waited, and whether some have."""

    early: frozenset[str]
    all_waited: bool
    some_waited: bool


def _started_early(launch: KernelLaunch, earlier: Collection[str]) -> Iterator[Finding]:
    """Errors for a kernel that starts before the previous one ends, and does not wait for it."""
    kernel = launch.kernel
    dependent = kernel.effects[DependentLaunch]
    if not dependent.enabled:
        return
    if kernel.architecture.capability < OLDEST:
        yield error(
            launch.name, f"{launch.name} uses programmatic dependent launch, which {kernel.architecture} does not have", "sm_90 or newer"
        )
    walked = _walk(kernel, kernel.body, False)
    if not walked.some_waited:
        yield error(launch.name, f"{launch.name} starts before the previous kernel ends, and never waits for it")
    for name in _parameters(kernel, walked.early):
        array = _array_of(launch, name)
        if name in dependent.no_wait and name not in writes(kernel):
            continue  # a promise about the arrays of the caller; `check_effects` reports arrays of this sequence
        where = f"which an earlier kernel accesses as {array}" if array in earlier else f"the array {array}"
        yield error(array, f"{launch.name} accesses {name} before it waits for the previous kernel, {where}")


def _walk(kernel: Kernel, body: Sequence[Stmt], waited: bool) -> _Walked:
    """Walk statements in program order. A wait inside a loop or a branch orders only what follows it there."""
    early: frozenset[str] = frozenset()
    some = waited
    for stmt in body:
        if isinstance(stmt, GridDepControl):
            waited = waited or stmt.action == GridDepAction.WAIT
            some = some or waited
            continue
        if not waited:
            early |= _read_by(kernel, stmt)
            early |= {access.buffer for access in stmt.accesses} if isinstance(stmt, Exec) else set()
        parts = [_walk(kernel, child, waited) for child in stmt.children]
        early = early.union(*(part.early for part in parts))
        some = some or any(part.some_waited for part in parts)
        waited = waited or (isinstance(stmt, Roles) and all(part.all_waited for part in parts))
    return _Walked(early, waited, some)


__all__ = ["KernelLaunch", "check_sequence", "reads", "writes"]
