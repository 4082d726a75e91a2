"""The values that counting yields: what a block asks of the parts of a GPU, in all, by statement and by phase."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import attrs

from fireiron.ir import For, Stmt
from fireiron.values.expr import Expr


@attrs.frozen
class Amounts:
    """What a block asks of each part of the GPU.

    Attributes:
        instructions: instructions of warps, those of the next fields included; addresses are not counted here.
        memory: loads and stores of warps, copies under way included.
        mma: matrix instructions of warps, as `mma.sync` with rows of 32 bytes of A.
        fma: multiply-adds of warps, by type of the sum; a packed pair counts as one.
        tensor: operations of the tensor cores, by type of A.
        shared: passes of 128 bytes through shared memory, and through L1 on the way from and to GL.
        conflicts: those of `shared` that bank conflicts add.
        sectors: sectors of 32 bytes of GL that instructions ask for.
        l2_read, l2_written: bytes of GL that L1 does not serve.
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
        """So many times."""
        return self if factor == 1 else Amounts(*(_scaled(value, factor) for value in _values(self)))


_values: Callable[[Amounts], tuple[Any, ...]] = operator.attrgetter(*(field.name for field in attrs.fields(Amounts)))
"""All fields, in order."""


def _sum(one: Any, other: Any) -> Any:
    """The sum of two fields, for each type where they are counted by type."""
    if isinstance(one, dict):
        return {key: one.get(key, 0.0) + other.get(key, 0.0) for key in (*one, *other)} if other else one
    return one + other


def _scaled(value: Any, factor: float) -> Any:
    """A field so many times, for each type where it is counted by type."""
    return {key: one * factor for key, one in value.items()} if isinstance(value, dict) else value * factor


@attrs.frozen
class Traffic:
    """What one operand in GL moves to or from device memory: different `bytes` of a block, of an array of `array_bytes`.

    `tiles(count)` says how many different places of the array the first `count` blocks start at.
    """

    buffer: str
    write: bool
    bytes: float
    array_bytes: float
    tiles: Callable[[int], int]


@attrs.frozen
class Operation:
    """One statement: its amounts for one execution by `warps` warps of a block, and how its results come.

    `kind` is what they wait for: `"global"`, `"shared"`, `"mma"`, `"fma"`, or nothing. `reads` and `writes` are its operands in registers
    with their copies; `accumulates` where the old value is read too, and `moves` are the names on which the place of the results depends;
    `into_shared` where shared memory is written.
    """

    amounts: Amounts
    warps: float
    kind: str
    reads: tuple[tuple[str, Expr], ...]
    writes: tuple[tuple[str, Expr], ...]
    accumulates: bool
    moves: frozenset[str]
    into_shared: bool
    asynchronous: bool


@attrs.frozen
class Phase:
    """A part of the program, and what it amounts to for one block; with `stores`, it writes the results and comes last.

    It is repeated by the loops `loops` around; `beside` are the programs of other roles, which run at the same time.
    """

    name: str
    body: tuple[Stmt, ...]
    stores: bool = False
    amounts: Amounts = Amounts()
    loops: tuple[For, ...] = ()
    beside: tuple[Stmt, ...] = ()
