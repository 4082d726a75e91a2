"""Check that vector loads and stores are aligned and uniformly in bounds, and that buffers are inside shared memory.

The check verifies `vectorize`, `allocate` and `guard` from the final IR alone. It uses the address bits that are known for any thread,
block, loop and size (`known_bits`). If these do not decide, it enumerates all threads and iterations. A vector that is not proved correct
is an error.

- *Aligned*: the first element of a vector is at a multiple of the vector's size, and so is its buffer (PTX ISA, "Operands as addresses";
  CUDA C++ Programming Guide, "Device Memory Accesses").
- *Whole*: its elements are contiguous, and all in bounds or all out of bounds, since only one of them is tested.
- *Inside*: a buffer with all its copies ends within the block's shared memory and overlaps no live buffer and no mbarrier.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fireiron.check.access_trace import MANY, AccessTrace, Frame, Use
from fireiron.check.finding import Finding, described, line_of
from fireiron.check.known_bits import Bits, KnownBits, power_of_two
from fireiron.ir import Acquire, Buffer, Exec, Kernel, Piece, Release, Roles, Stmt, execs, statements
from fireiron.ir.opaque import is_opaque, tile_origin
from fireiron.values.expr import FALSE, ONE, TRUE, ZERO, Expr, as_expr, constant, less
from fireiron.values.indirect import Table
from fireiron.values.layout import Digit, Swizzle, require_integer

LARGEST = 16
"""Bytes of the widest load or store of one thread. Every array in shared memory starts at a multiple of it."""

MATRIX_BYTES, SMALL_MATRIX_BYTES = 32, 16
"""A WMMA matrix begins at a multiple of 256 bits, of 128 for elements of 8 bits (CUDA C++ Programming Guide, "Warp Matrix Functions")."""

BARRIER = 8
"""Bytes of an mbarrier, and its alignment (PTX ISA, "mbarrier object")."""

ROW_BYTES = 16
"""The stride between rows (or columns) of a matrix is a multiple of this many bytes."""


def check_alignment(access_trace: AccessTrace) -> tuple[Finding, ...]:
    """All vectors that are not proved aligned and whole, and all misplaced shared buffers."""
    return (*_Shared(access_trace).findings(), *_Vectors(access_trace).findings())


# ---------------------------------------------------------------------------------------------- shared memory


class _Shared:
    """The placement of the buffers of a block."""

    def __init__(self, access_trace: AccessTrace) -> None:
        self.kernel: Kernel = access_trace.kernel
        self.live_ranges = _live_ranges(access_trace)
        self.buffers = [buffer for buffer in self.kernel.buffers if buffer.memory.of_block and buffer.name in self.live_ranges]

    def findings(self) -> Iterator[Finding]:
        """A finding for each buffer outside of shared memory, each misaligned one, and each pair that overlaps illegally."""
        for buffer in self.buffers:
            end = buffer.offset + buffer.bytes
            if buffer.memory.in_shared and not 0 <= buffer.offset <= end <= self.kernel.shared_bytes:
                yield _of_buffer(
                    buffer, f"occupies bytes {buffer.offset} ... {end - 1}, but the block has {self.kernel.shared_bytes} bytes", end=end
                )
            if buffer.offset % max(LARGEST, buffer.tensor.align):
                yield _of_buffer(buffer, f"starts at byte {buffer.offset}, which is not a multiple of {max(LARGEST, buffer.tensor.align)}")
        if self.kernel.shared_bytes > self.kernel.architecture.shared_per_block:
            message = f"the kernel needs {self.kernel.shared_bytes} bytes of shared memory, but {self.kernel.architecture} has at most"
            yield Finding("alignment", "error", None, f"{message} {self.kernel.architecture.shared_per_block}")
        for first, second in itertools.combinations(self.buffers, 2):
            yield from self._shared_by(first, second)
        yield from self._barriers()

    def _barriers(self) -> Iterator[Finding]:
        """Ring mbarriers that are outside of shared memory, misaligned, or overlap anything: they are live all the time."""
        occupied = [(buffer.name, buffer.offset, buffer.offset + buffer.bytes) for buffer in self.buffers]
        for ring in self.kernel.rings:
            begin, end = ring.offset, ring.offset + ring.barrier_bytes
            what = f"the mbarriers of {ring.name} occupy bytes {begin} ... {end - 1} of shared memory"
            shared = [name for name, first, last in occupied if first < end and begin < last]
            if shared:
                yield Finding("alignment", "error", None, f"{what}, which overlap {', '.join(shared)}")
            if begin % BARRIER or not 0 <= begin <= end <= self.kernel.shared_bytes:
                legal = f"multiples of {BARRIER} in the block's {self.kernel.shared_bytes} bytes"
                yield Finding("alignment", "error", None, f"{what}; legal: {legal}")
            occupied.append((f"the mbarriers of {ring.name}", begin, end))

    def _shared_by(self, buffer: Buffer, other: Buffer) -> Iterator[Finding]:
        if other.offset >= buffer.offset + buffer.bytes or buffer.offset >= other.offset + other.bytes:
            return
        (begin, end), (other_begin, other_end) = self.live_ranges[buffer.name], self.live_ranges[other.name]
        apart = end < other_begin or other_end < begin
        if not apart:
            yield _of_buffer(other, f"overlaps {buffer.name} while both are live")
        elif not (buffer.tensor.reuse or other.tensor.reuse):
            yield _of_buffer(other, f"overlaps {buffer.name}, which no refinement requests")


def _live_ranges(access_trace: AccessTrace) -> dict[str, tuple[int, int]]:
    """The first and the last statement of the outermost statement list that accesses each buffer.

    A buffer that a loop accesses is live during the whole loop. In a program with roles, the list is that of the consumers: each fill of
    the producer is awaited there. What another role reads is live until the end of the list.
    """
    live_ranges: dict[str, tuple[int, int]] = {}
    for index, outermost in enumerate(_outermost(access_trace.kernel)):
        for statement in statements((outermost,)):
            for name in _accessed_buffers(access_trace.kernel, statement):
                live_ranges[name] = (live_ranges.get(name, (index, index))[0], index)
    end = 1 + max((last for _, last in live_ranges.values()), default=0)
    for name in _read_by_others(access_trace.kernel) & live_ranges.keys():
        live_ranges[name] = (live_ranges[name][0], end)
    return live_ranges


def _read_by_others(kernel: Kernel) -> set[str]:
    """The buffers that roles other than the consumers read."""
    roles = (role for stmt in kernel.body if isinstance(stmt, Roles) for role in stmt.roles if role.first >= kernel.workers)
    return {access.buffer for role in roles for stmt, _ in execs(role.body) for access in stmt.accesses if not access.write}


def _outermost(kernel: Kernel) -> Iterator[Stmt]:
    for statement in kernel.body:
        if isinstance(statement, Roles):
            consumers = [role for role in statement.roles if role.first < kernel.workers and not role.elected]
            yield from consumers[0].body if len(consumers) == 1 else (statement,)
        else:
            yield statement


def _accessed_buffers(kernel: Kernel, statement: Stmt) -> tuple[str, ...]:
    """The buffers that a statement accesses or waits for."""
    if isinstance(statement, (Acquire, Release)):
        return kernel.ring(statement.ring).buffers
    if not isinstance(statement, Exec):
        return ()
    names = tuple(access.buffer for access in statement.accesses)
    return names if statement.scratch is None else (*names, statement.scratch.name)


def _swizzle_keeps(start: Bits, count: int, swizzle: Swizzle) -> bool:
    """Whether a swizzle maps `count` addresses from the first on to themselves: all bits that it XORs into others are 0."""
    source = ((1 << swizzle.bits) - 1) << (swizzle.base + max(swizzle.shift, 0))
    return all(not source & ~(start + Bits.of(step)).zeros for step in range(count))


def _of_buffer(buffer: Buffer, what: str, **details: Any) -> Finding:
    message = f"{buffer.name} {what}"
    return Finding("alignment", "error", buffer.name, message, buffer.tensor.origin, details={"offset": buffer.offset, **details})


# ---------------------------------------------------------------------------------------------- vectors


class _Vectors:
    """The pieces of all accesses, as the pass `guard` produced them."""

    def __init__(self, access_trace: AccessTrace) -> None:
        self.access_trace, self.kernel = access_trace, access_trace.kernel
        self.known = KnownBits(access_trace.lets)

    def findings(self) -> Iterator[Finding]:
        """The first problem of each access."""
        for use in self.access_trace.uses:
            if use.statement.performed == FALSE:
                continue
            problem = self._matrix_problem(use) if is_opaque(self.kernel, use.statement) else self._problem(use)
            if problem is not None:
                access = described(use.statement, use.access)
                details = {"vector": use.width}
                message = f"{use.access.buffer}: {problem}"
                at = line_of(use.statement, use.access)
                yield Finding("alignment", "error", use.access.buffer, message, at, access, details)

    def _problem(self, use: Use) -> str | None:
        """Why a vector of an access is not proved aligned and whole; None if it is."""
        buffer = self.kernel.buffer(use.access.buffer)
        for piece in use.pieces:
            if piece.width == 1:
                continue
            size = piece.width * buffer.dtype.bytes
            if power_of_two(piece.width) is None or size > LARGEST:
                return f"{piece.width} elements of {buffer.dtype.bytes} bytes form a vector, but no load or store has {size} bytes"
            if _start_multiple(buffer) % size:
                return f"a vector has {size} bytes, but the buffer starts at a multiple of {_start_multiple(buffer)} bytes only"
            problem = self._not_contiguous(use, buffer, piece) or self._straddles_bound(use, piece)
            if problem is not None:
                return problem
        return None

    # -------------------------------------------------------------------------------------- aligned, contiguous

    def _not_contiguous(self, use: Use, buffer: Buffer, piece: Piece) -> str | None:
        """Why the elements of a vector may not be contiguous from a multiple of its width on; None if they are."""
        if self._proved(use, buffer, piece):
            return None
        expressions = [buffer.address(use.access, use.access.elements()[piece.first + step]) for step in range(piece.width)]
        frame = self._frame(use, expressions)
        if frame is None:
            return (
                f"a vector of {piece.width} elements is at address {expressions[0]}, which is not proved to be a multiple of {piece.width}"
            )
        addresses = np.stack([frame.full(place) for place in expressions], axis=-1)
        first = addresses[..., :1]
        wrong = ((first % piece.width != 0) | (addresses - first != np.arange(piece.width))).any(axis=-1) & self._active_threads(use, frame)
        if not wrong.any():
            return None
        index = tuple(int(one) for one in np.argwhere(wrong)[0])
        where = ", ".join(f"{name} {value}" for name, value in frame.at(index).items())
        listed = ", ".join(map(str, addresses[index]))
        wanted = f"{piece.width} contiguous addresses from a multiple of {piece.width} on"
        return f"{where or 'every thread'} accesses addresses {listed} as a vector, which are not {wanted}"

    def _place_changes(self, table: Table, dim: int, coordinate: Bits, reach: Sequence[int]) -> bool:
        """Whether elements at these steps from a coordinate may have different places in an array of integers."""
        return any(_digit_changes(coordinate, digit, reach) != [0] * len(reach) for digit in list(table.layout)[dim].digits)

    def _proved(self, use: Use, buffer: Buffer, piece: Piece) -> bool:
        """Whether the known bits prove it for all threads, blocks, iterations and sizes."""
        access, storage = use.access, use.access.storage or buffer.storage
        offsets = access.elements()[piece.first : piece.first + piece.width]
        start, steps = Bits.of(0), [0] * piece.width
        for dim, digits in enumerate(storage.dims):
            coordinate = self.known.of(access.base[dim]) + Bits.of(offsets[0][dim])
            reach = [offset[dim] - offsets[0][dim] for offset in offsets]
            for digit in digits:
                start = start + _digit_bits(coordinate, digit) * self.known.of(as_expr(digit.weight))
                if any(reach):
                    change, weight = _digit_changes(coordinate, digit, reach), constant(digit.weight)
                    if change is None or (weight is None and any(change)):
                        return False
                    steps = [step + part * (weight or 0) for step, part in zip(steps, change, strict=True)]
            if any(reach) and any(self._place_changes(table, dim, coordinate, reach) for table in storage.tables):
                return False
            if any(reach) and storage.computes(dim):
                return self._proved_by_addresses(use, buffer, piece)
            if any(reach) and any(dim == own for own, _ in storage.reversed):
                return False
        start = start + self.known.of(storage.offset)
        for _, stride in storage.reversed:
            start = start + Bits() * self.known.of(stride)
        for stride in (*(table.stride for table in storage.tables), *(part.stride for part in storage.computed)):
            start = start + Bits() * self.known.of(stride)
        width = power_of_two(piece.width)
        assert width is not None
        if storage.swizzle is not None and storage.swizzle.base < width and not _swizzle_keeps(start, piece.width, storage.swizzle):
            return False  # it reads or flips bits that count the elements of the vector
        if start.trailing_zeros < width or steps != list(range(piece.width)):
            return bool(storage.computed) and self._proved_by_addresses(use, buffer, piece)
        return access.copy == ZERO or (self.known.of(access.copy) * self.known.of(buffer.elements)).trailing_zeros >= width

    def _proved_by_addresses(self, use: Use, buffer: Buffer, piece: Piece) -> bool:
        """Whether addresses with computed indices differ by constants: `(lane + 4) % 8 * 8 + 1` follows `(lane + 4) % 8 * 8`."""
        first, *others = (buffer.address(use.access, offset) for offset in use.access.elements()[piece.first : piece.first + piece.width])
        width = power_of_two(piece.width)
        assert width is not None
        contiguous = all(constant(other - first) == number for number, other in enumerate(others, 1))
        return contiguous and self.known.of(first).trailing_zeros >= width

    # -------------------------------------------------------------------------------------- in bounds as a whole, or out of bounds

    def _straddles_bound(self, use: Use, piece: Piece) -> str | None:
        """Why some elements of a vector may be in bounds and others out of bounds; None if not."""
        offsets = use.access.elements()[piece.first : piece.first + piece.width]
        for dim, bound in enumerate(use.access.bounds):
            steps = [offset[dim] for offset in offsets]
            if bound is not None and min(steps) != max(steps) and not self._inside_together(use, use.access.base[dim], steps, bound):
                return f"a vector of {piece.width} elements is not proved to be below {bound} as a whole, if its first element is"
        if any(not window.same(offsets, use.access.base) for window in self.kernel.buffer(use.access.buffer).storage.windows):
            return f"a vector of {piece.width} elements may be partly outside of the array"
        return None

    def _inside_together(self, use: Use, base: Expr, steps: Sequence[int], bound: Expr) -> bool:
        first, last = base + min(steps), base + max(steps)
        span = (max(steps) - min(steps)).bit_length()
        if self.known.of(first).trailing_zeros >= span and self.known.of(bound).trailing_zeros >= span:
            return True
        limit, unit = constant(bound), 1 << self.known.of(first).trailing_zeros
        if limit is not None and (limit - 1) // unit * unit + max(steps) - min(steps) < limit:  # the largest first element below it
            return True
        if less(last, bound) == TRUE:
            return True
        frame = self._frame(use, (base, bound))
        if frame is None:
            return False
        limit = frame.full(bound)
        apart = (frame.full(first) < limit) != (frame.full(last) < limit)
        return not (apart & self._active_threads(use, frame)).any()

    # -------------------------------------------------------------------------------------- all threads and iterations

    def _frame(self, use: Use, values: Sequence[Expr]) -> Frame | None:
        """All threads and iterations that values depend on; None if sizes or blocks are involved, or if there are too many."""
        static = frozenset({"thread", *(loop.var.name for loop in use.loops if constant(loop.extent) is not None)})
        conditions, _ = self.access_trace.guards(use.statement, static)
        needed = self.access_trace.needs((*values, *conditions))
        axes = self.access_trace.loop_axes(use.loops, needed, MANY // (self.kernel.threads * len(use.access.elements())))
        if axes is None or not needed <= {"thread", *(name for name, _ in axes)}:
            return None
        return self.access_trace.frame([("thread", self.access_trace.threads), *axes])

    def _active_threads(self, use: Use, frame: Frame) -> Any:
        """The threads that may execute a statement; conditions on sizes and blocks are assumed to hold."""
        static = frozenset({"thread", *(name for name, _ in frame.axes)})
        conditions, _ = self.access_trace.guards(use.statement, static)
        result = np.ones(frame.shape, dtype=bool)
        for condition in conditions:
            result &= frame.full(condition) != 0
        return result

    # -------------------------------------------------------------------------------------- matrices of WMMA

    def _matrix_problem(self, use: Use) -> str | None:
        """Why a matrix is not proved to be one that a fragment is loaded from or stored to; matrices in registers need no check."""
        buffer = self.kernel.buffer(use.access.buffer)
        if buffer.memory.private:
            return None
        size = SMALL_MATRIX_BYTES if buffer.dtype.bytes == 1 else MATRIX_BYTES
        if any(bound is not None for bound in use.access.bounds):
            return "a fragment is accessed as a whole, but a part of its matrix may be out of bounds"
        if _start_multiple(buffer) % size:
            return (
                f"a matrix must start at a multiple of {size} bytes, but the buffer starts at a multiple of {_start_multiple(buffer)} only"
            )
        if buffer.storage.swizzle is not None or None in buffer.storage.steps:
            return "a fragment needs rows or columns with a fixed stride, which its storage does not have"
        return self._matrix_misaligned(use, buffer, size)

    def _matrix_misaligned(self, use: Use, buffer: Buffer, size: int) -> str | None:
        origin, start = tile_origin(self.kernel, use.access), Bits.of(0)
        for base, offset, step in zip(origin.base, origin.elements()[0], buffer.storage.steps, strict=True):
            assert step is not None
            start = start + (self.known.of(base) + Bits.of(offset)) * self.known.of(step)
            if step != ONE and _byte_multiple(self.known.of(step), buffer) % ROW_BYTES:
                return f"the stride of rows or columns of a matrix, {step} elements, is not proved to be a multiple of {ROW_BYTES} bytes"
        start = start + self.known.of(origin.copy) * self.known.of(buffer.elements)
        if _byte_multiple(start, buffer) % size:
            return (
                f"a matrix at address {buffer.address(origin, origin.elements()[0])} is not proved to start at a multiple of {size} bytes"
            )
        return None


def _byte_multiple(elements: Bits, buffer: Buffer) -> int:
    """A power of two of which a number of elements, in bytes, is a multiple."""
    return (1 << min(elements.trailing_zeros, 16)) * buffer.dtype.bytes


def _start_multiple(buffer: Buffer) -> int:
    """A number of bytes of which the start of a buffer is a multiple."""
    if buffer.memory.of_block:
        return math.gcd(buffer.offset, max(LARGEST, buffer.tensor.align)) if buffer.offset else max(LARGEST, buffer.tensor.align)
    return buffer.tensor.align


def _digit_bits(coordinate: Bits, digit: Digit) -> Bits:
    """The known bits of a digit of a coordinate."""
    exponent = power_of_two(digit.step)
    if exponent is None:
        return Bits()
    quotient = coordinate.shifted(exponent)
    if digit.open:
        return quotient
    number = require_integer(digit.size)
    size = power_of_two(number)
    if size is None:  # the remainder has the bits of the quotient below the lowest set bit of the divisor
        mask = (number & -number) - 1
        return Bits(quotient.zeros & mask, quotient.ones & mask)
    return quotient.lowest(size)


def _digit_changes(coordinate: Bits, digit: Digit, reach: Sequence[int]) -> list[int] | None:
    """The increase of a digit at each step from a coordinate; None if it is unknown."""
    if digit.step == 1 and digit.open:
        return list(reach)
    size = None if digit.open else require_integer(digit.size)
    powers = power_of_two(digit.step) is not None and (size is None or power_of_two(size) is not None)
    if powers and min(reach) >= 0 and not any(step & ~coordinate.zeros for step in reach):  # no addition carries
        return [step // digit.step if size is None else step // digit.step % size for step in reach]
    span = 1 << max(reach).bit_length()
    if min(reach) < 0 or 1 << coordinate.trailing_zeros < span:
        return None
    if digit.step % span == 0:
        return [0] * len(reach)  # all steps are within one value of the digit
    if span % digit.step:
        return None
    counted = span // digit.step
    if size is None or size % counted == 0:
        return [step // digit.step for step in reach]
    return [step // digit.step % size for step in reach] if counted % size == 0 else None
