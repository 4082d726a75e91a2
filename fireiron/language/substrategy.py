"""Strategies inside strategies: the copy of a load, and the init and store of an epilog."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site
from fireiron.language.dividing import divide
from fireiron.language.tree import Child, Decomposition, Draft
from fireiron.spec import AnySpec, AnyStarter, Spec, Starter
from fireiron.specs.allocate import Allocate
from fireiron.values.expr import ZERO, Expr, as_expr
from fireiron.values.machine import Block, DType, Kernel, Memory, Thread
from fireiron.values.tensor import ColMajor, MatrixLayout, RowMajor, Tensor, View, whole_view


class Chain:
    """The base class of strategies, for steps that take a strategy as an argument; their files must not import `Strategy`."""

    __slots__: tuple[()] = ()

    steps: tuple[Decomposition, ...]
    spec: Spec | None
    start: Starter | AnyStarter
    others: tuple[Any, ...]


def written(strategy: Chain) -> tuple[Decomposition, ...]:
    """Return the steps of a strategy that a decomposition makes, without a line of the user's file as their origin."""
    return tuple(attrs.evolve(step, origin=None) for step in strategy.steps)


def inner_chains(step: Decomposition) -> dict[str, tuple[Decomposition, ...]]:
    """Return the strategies inside a step, by argument: the copy of a load, the init and the store of an epilog."""
    chains = {}
    kind: Any = type(step)
    for name, alias in _arguments(kind):
        value = getattr(step, name)
        if isinstance(value, tuple) and value and all(isinstance(part, Decomposition) for part in value):
            chains[alias] = value
    return chains


@functools.cache
def _arguments(step: Any) -> tuple[tuple[str, str], ...]:
    """The fields of a kind of step that are arguments, with the names of these."""
    return tuple((field.name, field.alias) for field in attrs.fields(step) if field.init)


def default_copy(order: MatrixLayout = RowMajor, rank: int = 2) -> tuple[Decomposition, ...]:
    """Return the steps of a copy, or other elementwise work, that are always legal: each thread takes every n-th element along `order`.

    `steps_at` adapts them to the rank of a spec.
    """
    return _default_copy(order, rank)


@functools.cache
def _default_copy(order: MatrixLayout, rank: int) -> tuple[Decomposition, ...]:
    tile = AnySpec.tile(*(1,) * max(rank, 1)).to(Thread)
    copy = written((tile if order == RowMajor else tile.layout(order)).done())
    return copy if rank else (attrs.evolve(copy[0], sizes=()), *copy[1:])  # type: ignore[call-arg]  # one element: the first thread


def steps_at(steps: tuple[Decomposition, ...], spec: Spec) -> tuple[Decomposition, ...]:
    """Return the steps of a copy for a spec: the default copy with its rank, and not distributed if a single thread executes it."""
    if steps != default_copy():
        return steps
    copy = default_copy(rank=len(spec.tile_dims))
    return tuple(step.unrefined() for step in copy) if spec.level.threads == 1 else copy


def steps_for(move: Any, what: str, starters: tuple[str, ...]) -> tuple[Decomposition, ...]:
    """Return the steps of a strategy given as an argument; the default copy for None or `_`. Refuse a bound or an empty strategy."""
    if move is None:
        return default_copy()
    if isinstance(move, Chain) and move.spec is not None:
        raise DecompositionError(
            f"{what}: the strategy is bound to a spec", hint=f"build it from {starters[0]}, not from a spec", at=call_site()
        )
    if isinstance(move, AnyStarter) or (isinstance(move, Starter) and move.kind.title in starters):
        raise DecompositionError(f"{what}: {move!r} has no steps yet", hint=f"{move!r}.tile(...).to(...).done()", at=call_site())
    if not isinstance(move, Chain):
        raise ArgumentError(
            f"{what}: the argument is not a strategy", got=move, legal=f"{starters[0]}.tile(...).to(...).done(), or nothing", at=call_site()
        )
    if isinstance(move.start, Starter) and move.start.kind.title not in starters:
        raise DecompositionError(
            f"{what}: the strategy starts from {move.start.title}, but it must decompose a {' or a '.join(starters)}",
            hint=f"build it from {starters[0]}",
            at=call_site(),
        )
    if move.others:
        raise DecompositionError(
            f"{what}: fallback() is legal only for complete strategies", hint="call it on the outermost strategy", at=call_site()
        )
    return move.steps


def require_steps(value: Any, what: str) -> tuple[Decomposition, ...]:
    """Return the steps of a chain; refuse anything else, and steps after `done`."""
    if not isinstance(value, tuple) or [step for step in value if not isinstance(step, Decomposition)]:
        raise ArgumentError(f"{what}: the steps are not a tuple of decompositions", got=value, legal="strategy.steps", at=call_site())
    if [step for step in value[:-1] if step.verb == "done"]:
        raise DecompositionError(f"{what}: the chain has steps after done()", within=chain(value, summary=True), at=call_site())
    return value


def chain(steps: tuple[Decomposition, ...], summary: bool = False) -> str:
    """Return steps as calls in a chain; with `summary`, without long texts."""
    return "".join(f".{step.summary() if summary else step.label()}" for step in steps)


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def fits(spec: Spec, dim: str, size: int) -> bool:
    """Return whether tiles of a size along a dimension are legal for the views of all operands."""
    try:
        divide(spec, {dim: size}, "")
    except DecompositionError:
        return False
    return True


def copies_of(memory: Memory, spec: Spec, draft: Draft) -> tuple[int, Expr]:
    """Return the number of copies of a buffer, one per unit of the level, and the index of this thread's copy."""
    if memory.private or spec.level in (Block, Kernel):
        return 1, ZERO
    if draft.workers is None:
        return 1, ZERO
    units = draft.units(spec.level, Block)
    # Threads beyond the only whole unit are idle, so their index of a unit is not one of a copy.
    return units, ZERO if units == 1 else draft.unit(spec.level, Block)


def temporary(
    spec: Spec, draft: Draft, name: str, shape: Iterable[Expr | int], dtype: DType, memory: Memory, layout: MatrixLayout = ColMajor
) -> tuple[View, Child]:
    """Return a new tensor for the steps of a decomposition, with a copy for each unit of the level, and the child that allocates it.

    The child has no statements, so its hole can be anywhere in the decomposition's program. Its bytes or registers count for the kernel.
    """
    copies, copy = copies_of(memory, spec, draft)
    tensor = Tensor(draft.fresh(name), tuple(map(as_expr, shape)), dtype, memory, layout, copies=copies, origin=draft.origin)
    view = whole_view(tensor, copy)
    return view, Child(tensor.name, Allocate.on(spec.level, view), default_copy()[-1:])
