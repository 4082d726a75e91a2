"""The values that counting yields: what a block asks of the parts of a GPU, in all, by statement and by phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from fireiron.ir import Stmt
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
    fma: Mapping[str, float] = attrs.field(factory=dict)
    tensor: Mapping[str, float] = attrs.field(factory=dict)
    shared: float = 0.0
    conflicts: float = 0.0
    sectors: float = 0.0
    l2_read: float = 0.0
    l2_written: float = 0.0
    flops: float = 0.0
    barriers: float = 0.0
    touched: float = 0.0

    def __add__(self, other: Amounts) -> Amounts:
        return _combined(self, other, lambda a, b: a + b)

    def times(self, factor: float) -> Amounts:
        """So many times."""
        return self if factor == 1 else _combined(self, self, lambda a, _: a * factor)


_FIELDS = tuple(field.name for field in attrs.fields(Amounts))


def _combined(one: Amounts, other: Amounts, function: Callable[[float, float], float]) -> Amounts:
    values: dict[str, Any] = {}
    for name in _FIELDS:
        left, right = getattr(one, name), getattr(other, name)
        if isinstance(left, Mapping):
            values[name] = {key: function(left.get(key, 0.0), right.get(key, 0.0)) for key in {**left, **right}}
        else:
            values[name] = function(left, right)
    return Amounts(**values)


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
    """A part of the program, and what it amounts to for one block; with `stores`, it writes the results and comes last."""

    name: str
    body: tuple[Stmt, ...]
    stores: bool = False
    amounts: Amounts = Amounts()
