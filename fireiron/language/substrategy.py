"""Strategies inside strategies: the copy of a load, the init and the store of an epilog."""

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
    """What has steps: a strategy, which is defined above those that take one as an argument."""

    __slots__: tuple[()] = ()

    steps: tuple[Decomposition, ...]
    spec: Spec | None
    start: Starter | AnyStarter
    others: tuple[Any, ...]


def written(strategy: Chain) -> tuple[Decomposition, ...]:
    """The steps of a strategy that a decomposition writes itself, as users do: they come from no line of theirs."""
    return tuple(attrs.evolve(step, origin=None) for step in strategy.steps)


def inner_chains(step: Decomposition) -> dict[str, tuple[Decomposition, ...]]:
    """The strategies inside a step, by argument: the copy of a load, the init and the store of an epilog."""
    chains = {}
    for field in attrs.fields(type(step)):
        value = getattr(step, field.name)
        if field.init and isinstance(value, tuple) and value and all(isinstance(part, Decomposition) for part in value):
            chains[field.alias] = value
    return chains


def default_copy(order: MatrixLayout = RowMajor, rank: int = 2) -> tuple[Decomposition, ...]:
    """The copy, or other work on elements, that is always right: one element a thread, neighbours along `order`, threads in turns.

    It is for any number of dimensions: `steps_at` makes it for those of the spec that it meets.
    """
    return _default_copy(order, rank)


@functools.cache
def _default_copy(order: MatrixLayout, rank: int) -> tuple[Decomposition, ...]:
    tile = AnySpec.tile(*(1,) * rank).to(Thread)
    return written((tile if order == RowMajor else tile.layout(order)).done())


def steps_at(steps: tuple[Decomposition, ...], spec: Spec) -> tuple[Decomposition, ...]:
    """The steps of a copy for a spec: the default copy has its rank, and that of a single thread has nobody to deal to."""
    if steps != default_copy():
        return steps
    made = default_copy(rank=len(spec.tile_dims))
    return tuple(step.unrefined() for step in made) if spec.level.threads == 1 else made


def steps_for(move: Any, what: str, starters: tuple[str, ...]) -> tuple[Decomposition, ...]:
    """The steps of a strategy given as an argument; the default copy for None or `_`; an error for a bound or an empty one."""
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
            f"{what}: not a strategy", got=move, legal=f"{starters[0]}.tile(...).to(...).done(), or nothing", at=call_site()
        )
    if isinstance(move.start, Starter) and move.start.kind.title not in starters:
        raise DecompositionError(
            f"{what}: the strategy starts from {move.start.title}, what it decomposes is a {' or a '.join(starters)}",
            hint=f"build it from {starters[0]}",
            at=call_site(),
        )
    if move.others:
        raise DecompositionError(
            f"{what}: fallback() chooses between whole strategies", hint="call it on the outermost one", at=call_site()
        )
    return move.steps


def require_steps(value: Any, what: str) -> tuple[Decomposition, ...]:
    """The steps of a chain, `done` at most at its end; refused where they are anything else."""
    if not isinstance(value, tuple) or any(not isinstance(step, Decomposition) for step in value):
        raise ArgumentError(f"{what}: not a tuple of decompositions", got=value, legal="strategy.steps", at=call_site())
    if any(step.verb == "done" for step in value[:-1]):
        raise DecompositionError(f"{what}: the chain goes on behind done()", within=chain(value, summary=True), at=call_site())
    return value


def chain(steps: tuple[Decomposition, ...], summary: bool = False) -> str:
    """Steps as they are written in a chain; as a summary, without long texts."""
    return "".join(f".{step.summary() if summary else step.label()}" for step in steps)


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    return sorted({*small, *(number // size for size in small)})


def fits(spec: Spec, dim: str, size: int) -> bool:
    """Whether tiles of a size along a dimension divide the views of all operands alike."""
    try:
        divide(spec, {dim: size}, "")
    except DecompositionError:
        return False
    return True


def copies_of(memory: Memory, spec: Spec, draft: Draft) -> tuple[int, Expr]:
    """How many units own a copy of a buffer at this level, and this thread's copy."""
    if memory.private or spec.level in (Block, Kernel):
        return 1, ZERO
    if draft.workers is None:
        return 1, ZERO
    return draft.units(spec.level, Block), draft.unit(spec.level, Block)


def temporary(
    spec: Spec, draft: Draft, name: str, shape: Iterable[Expr | int], dtype: DType, memory: Memory, layout: MatrixLayout = ColMajor
) -> tuple[View, Child]:
    """A new tensor for the steps of a decomposition of `spec`, a copy for each unit of its level, and the child that allocates it.

    Its hole stands where the decomposition's program wants it: it has no statements. Its bytes, or registers, are those of the kernel.
    """
    copies, copy = copies_of(memory, spec, draft)
    tensor = Tensor(draft.fresh(name), tuple(map(as_expr, shape)), dtype, memory, layout, copies=copies, origin=draft.origin)
    view = whole_view(tensor, copy)
    return view, Child(tensor.name, Allocate.on(spec.level, view), default_copy()[-1:])
