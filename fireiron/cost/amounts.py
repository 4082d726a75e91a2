"""Define the counted values: a block's demands on the parts of a GPU, in total, by statement and by phase."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import attrs

from fireiron.frozen import frozen
from fireiron.ir import For, Stmt
from fireiron.values.expr import Expr


@frozen
class Amounts:
    """A block's demands on each part of the GPU.

    Attributes:
        instructions: warp instructions, including those of the next fields, but without address computations.
        memory: loads and stores of warps, including asynchronous copies.
        mma: matrix instructions of warps, counted as `mma.sync` with rows of 32 bytes of A.
        fma: multiply-adds of warps, by type of the sum. A packed pair counts as one.
        tensor: operations of the tensor cores, by type of A.
        shared: wavefronts of 128 bytes through shared memory, and through L1 to and from GL.
        conflicts: additional wavefronts due to bank conflicts, which `shared` includes.
        sectors: sectors of 32 bytes of GL that instructions request.
        l2_read, l2_written: bytes of GL that miss in L1.
        flops: operations of specs.
        barriers: barriers of the block.
        touched: 32-bit registers of arrays, times 32 lanes, that instructions read or write.
    """

    instructions: float = 0.0
    memory: float = 0.0
    mma: float = 0.0
    fma: dict[str, float] = attrs.field(factory=dict)
    tensor: dict[str, float] = attrs.field(factory=dict)
    shared: float = 0.0
    conflicts: float = 0.0
    sectors: float = 0.0
    l2_read: float = 0.0
    l2_written: float = 0.0
    flops: float = 0.0
    barriers: float = 0.0
    touched: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return Amounts(*map(_sum, _values(self), _values(other)))

    def times(self, factor: float) -> Amounts:
        """Return the amounts multiplied by a factor."""
        return self if factor == 1 else Amounts(*(_scaled(value, factor) for value in _values(self)))


_values: Callable[[Amounts], tuple[Any, ...]] = operator.attrgetter(*(field.name for field in attrs.fields(Amounts)))
"""All fields, in order."""


def _sum(left: Any, right: Any) -> Any:
    """Return the sum of two fields. Fields that are counted by type are added by type."""
    if isinstance(left, dict):
        return {key: left.get(key, 0.0) + right.get(key, 0.0) for key in (*left, *right)} if right else left
    return left + right


def _scaled(value: Any, factor: float) -> Any:
    """Return a field multiplied by a factor. Fields that are counted by type are multiplied by type."""
    return {key: amount * factor for key, amount in value.items()} if isinstance(value, dict) else value * factor


@frozen
class Traffic:
    """The traffic of an operand in GL to or from device memory.

    `bytes` are the distinct bytes of a block, and `array_bytes` those of the array. `tiles(count)` is the number of distinct start
    positions of the first `count` blocks in the array.
    """

    buffer: str
    write: bool
    bytes: float
    array_bytes: float
    tiles: Callable[[int], int]


@frozen
class Operation:
    """A statement: its amounts for one execution by `warps` warps of a block, and the latency class of its results.

    Attributes:
        kind: the latency class: `"global"`, `"shared"`, `"mma"`, `"fma"`, or an empty text.
        reads, writes: the operands in registers, with the index of their copy.
        accumulates: whether the statement also reads the old value of the result.
        result_names: the names on which the position of the results depends.
        into_shared: whether the statement writes shared memory.
        asynchronous: whether it is an asynchronous copy that completes in groups.
    """

    amounts: Amounts
    warps: float
    kind: str
    reads: tuple[tuple[str, Expr], ...]
    writes: tuple[tuple[str, Expr], ...]
    accumulates: bool
    result_names: frozenset[str]
    into_shared: bool
    asynchronous: bool


@frozen
class Phase:
    """A part of the program, and its amounts for one block.

    With `stores`, it writes the results and is the last phase. The surrounding loops `loops` repeat it. `concurrent` are the programs of
    other roles, which run at the same time.
    """

    name: str
    body: tuple[Stmt, ...]
    stores: bool = False
    amounts: Amounts = Amounts()
    loops: tuple[For, ...] = ()
    concurrent: tuple[Stmt, ...] = ()
