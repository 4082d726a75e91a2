"""Factories of kernel IR for tests, one per node and named after it; all hand-made IR uses them.

A test passes what it tests: required fields by position, the rest by keyword. All other fields have their defaults here, so a new or moved
field of a node changes this file and no test. `handmade` adds short forms: kernels of a spec, accesses to adjacent elements.
`test_making.py` forbids other constructor calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from fireiron import ir
from fireiron.executable.cp_async import CP_ASYNC
from fireiron.ir.asks.consumer_groups import ConsumerGroups
from fireiron.ir.asks.deferred import Deferred
from fireiron.ir.asks.dynamic_tiles import DynamicTiles
from fireiron.ir.asks.ordered_mma import OrderedMma
from fireiron.ir.asks.pending_mmas import PendingMmas
from fireiron.ir.asks.pipelined import Pipelined
from fireiron.ir.asks.producer_threads import ProducerThreads
from fireiron.ir.effect import Effects
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.residency import Residency
from fireiron.ir.effects.shared_bound import SharedBound
from fireiron.ir.effects.unchecked import Unchecked
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.values.expr import Expr, as_expr
from fireiron.values.machine import as_architecture
from fireiron.values.tensor import Mode, Tensor

Body = Sequence[ir.Stmt]

# ---------------------------------------------------------------------------------------------- kernels and buffers


def kernel(
    name: str = "handmade", architecture: Any = "sm_80", grid: Expr | int = 1, threads: int = 32, buffers: Sequence[ir.Buffer] = (),
    symbols: Sequence[Any] = (), body: Body = (), spec: Any = None, **fields: Any,
) -> ir.Kernel:  # fmt: skip
    """A kernel that performs `spec` with the statements of `body`; `fields` as for `evolved`."""
    target = as_architecture(architecture)
    return evolved(ir.Kernel(name, target, as_expr(grid), threads, tuple(buffers), tuple(symbols), tuple(body), spec), **fields)


def evolved(kernel: ir.Kernel, **fields: Any) -> ir.Kernel:
    """A kernel with other fields, or with other effects, by their words (`EFFECTS`)."""
    words = {name: fields.pop(name) for name in [*fields] if name in EFFECTS}
    return attrs.evolve(kernel, effects=_effect(kernel.effects, words), **fields)


def effect_of(kernel: ir.Kernel, word: str) -> Any:
    """The value of a kernel effect, by its word."""
    kind, field = EFFECTS[word]
    return getattr(kernel.effects[kind], field)


EFFECTS = {
    "resident": (Residency, "blocks"), "within": (SharedBound, "bytes"), "zeroed": (Zeroed, "names"), "unchecked": (Unchecked, "reasons"),
    "chained": (DependentLaunch, "enabled"), "ready": (DependentLaunch, "no_wait"),
}  # fmt: skip
"""The tests' words for the effects of a kernel: the class of the effect, and its field."""


def _effect(effects: Effects, words: Mapping[str, Any]) -> Effects:
    for word, value in words.items():
        kind, field = EFFECTS[word]
        effects = effects.with_(attrs.evolve(effects[kind], **{field: value}))
    return effects


def buffer(tensor: Tensor, storage: Any = None, elements: Expr | int | None = None, **fields: Any) -> ir.Buffer:
    """A buffer of a tensor, stored as the tensor is."""
    storage = tensor.storage() if storage is None else storage
    return ir.Buffer(tensor, storage, storage.extent if elements is None else elements, **fields)


def access(buffer: str, base: Sequence[Expr], modes: Any = None, bounds: Any = None, write: bool = False, **fields: Any) -> ir.Access:
    """The access to one element at `base`, or to those of `modes`."""
    modes = ((Mode(as_expr(1), as_expr(1)),),) * len(base) if modes is None else modes
    return ir.Access(buffer, base, modes, (None,) * len(base) if bounds is None else bounds, write, **fields)


def piece(first: int, width: int = 1, **fields: Any) -> ir.Piece:
    """Adjacent elements that a statement accesses together."""
    return ir.Piece(first, width, **fields)


def tensor_map(name: str, buffer: str, order: Any, box: Any, span: Any) -> ir.TensorMap:
    """The map by which TMA addresses a box of an array."""
    return ir.TensorMap(name, buffer, order, box, span)


# ---------------------------------------------------------------------------------------------- statements


def hole(child: str) -> ir.Hole:
    """The position of a child's program."""
    return ir.Hole(child)


def comment(text: str) -> ir.Comment:
    """A comment in the text."""
    return ir.Comment(text)


def step_marker(step: Any) -> ir.StepMarker:
    """The marker before the statements of a step."""
    return ir.StepMarker(step)


def let(var: Any, value: Expr) -> ir.Let:
    """A name for a value."""
    return ir.Let(var, value)


def loop(var: Any, extent: Expr, body: Body = (), **plan: Any) -> ir.For:
    """A loop with its plan: `unroll`, `period`, ..., and its asks: `stages`, `producers`, ..."""
    planned = ir.For(var, extent, body, **{name: value for name, value in plan.items() if name not in ASKED})
    return with_asks(planned, **{name: value for name, value in plan.items() if name in ASKED})


ASKED = {
    "stages": (Pipelined, "stages"), "interleave": (Pipelined, "interleave"), "producer_threads": (ProducerThreads, "threads"), "mma_in_flight": (PendingMmas, "groups"),
    "consumer_groups": (ConsumerGroups, "groups"), "defer": (Deferred, ""), "ordered_mma": (OrderedMma, ""), "dynamic_tiles": (DynamicTiles, ""),
}  # fmt: skip
"""The tests' words for the asks of a loop: the class of the ask, and its field; empty for all fields together."""


def ask_of(loop: ir.For, word: str) -> Any:
    """The value of a loop's ask, by its word; for all fields together the ask itself."""
    kind, field = ASKED[word]
    return getattr(loop.asks[kind], field) if field else loop.asks[kind]


def with_asks(loop: ir.For, **words: Any) -> ir.For:
    """The loop with its asks replaced: `stages=3`, `producers=32`."""
    for name, value in words.items():
        kind, field = ASKED[name]
        loop = loop.with_asks(attrs.evolve(loop.asks[kind], **{field: value}) if field else kind(*value))
    return loop


def execution(instruction: Any, spec: Any, accesses: Sequence[ir.Access], **fields: Any) -> ir.Exec:
    """The statement in which an instruction performs a spec."""
    return ir.Exec(instruction, spec, accesses, **fields)


def async_copy(copy: ir.Exec, **fields: Any) -> ir.Exec:
    """An asynchronous copy from global to shared memory, complete after a wait for its group: cp.async of one word."""
    return attrs.evolve(copy, instruction=CP_ASYNC[-1], mechanism=CP_ASYNC_GROUPS, **fields)


def if_any_lane(needed: Any, body: Body = ()) -> ir.IfAnyLane:
    """Statements that execute only if needed."""
    return ir.IfAnyLane(needed, body)


def sync_point(require: bool | None, subject: str, **fields: Any) -> ir.SyncPoint:
    """A requested or forbidden barrier."""
    return ir.SyncPoint(require, subject, **fields)


# ---------------------------------------------------------------------------------------------- synchronization


def scope(name: str, threads: int | None) -> ir.Scope:
    """The threads that synchronize at a barrier."""
    return ir.Scope(name, threads)


def barrier(scope: ir.Scope = ir.BLOCK_SCOPE, reason: str = "", **fields: Any) -> ir.Barrier:
    """A barrier of the threads of a scope."""
    return ir.Barrier(scope, reason, **fields)


def cluster_barrier(reason: str = "") -> ir.ClusterBarrier:
    """A barrier of the blocks of a cluster."""
    return ir.ClusterBarrier(reason)


def commit(mechanism: ir.Mechanism = CP_ASYNC_GROUPS) -> ir.Commit:
    """The end of a group of asynchronous operations."""
    return ir.Commit(mechanism)


def wait(groups: int = 0, **fields: Any) -> ir.Wait:
    """A wait until at most the given number of groups is pending."""
    return ir.Wait(groups, **fields)


def fence(kind: ir.FenceKind, reason: str = "", **fields: Any) -> ir.Fence:
    """A fence."""
    return ir.Fence(kind, reason, **fields)


def grid_dep_control(action: Any) -> ir.GridDepControl:
    """Programmatic dependence on the preceding kernel, or of the next one."""
    return ir.GridDepControl(action)


# ---------------------------------------------------------------------------------------------- rings, roles and clusters


def ring(name: str, stages: int, buffers: Sequence[str], **fields: Any) -> ir.Ring:
    """A ring of stages."""
    return ir.Ring(name, stages, buffers, **fields)


def acquire(ring: str, state: ir.StageState, fill_index: Expr) -> ir.Acquire:
    """A wait for a stage of a ring."""
    return ir.Acquire(ring, state, fill_index)


def release(ring: str, state: ir.StageState, fill_index: Expr, **fields: Any) -> ir.Release:
    """The arrival that releases a stage of a ring."""
    return ir.Release(ring, state, fill_index, **fields)


def role(name: str, first: int, threads: int, body: Body = (), **fields: Any) -> ir.Role:
    """The program of some warps of a block."""
    return ir.Role(name, first, threads, body, **fields)


def roles(roles: Sequence[ir.Role]) -> ir.Roles:
    """The roles of the threads of a block."""
    return ir.Roles(roles)


def claim_tile(var: Any, tiles: Expr, ring: str, fill_index: Expr, **fields: Any) -> ir.ClaimTile:
    """Claim the next tile from a counter."""
    return ir.ClaimTile(var, tiles, ring, fill_index, **fields)


def exit_if_done(tile: Expr, tiles: Expr) -> ir.ExitIfDone:
    """The end of a block's tiles."""
    return ir.ExitIfDone(tile, tiles)


def counter(name: str) -> ir.Counter:
    """A counter from which blocks claim tiles."""
    return ir.Counter(name)


def block_cluster(sizes: Any, places: Any) -> ir.BlockCluster:
    """The blocks of a cluster."""
    return ir.BlockCluster(sizes, places)


def block_set(pattern: Any, first: Any) -> ir.BlockSet:
    """A set of blocks of a cluster."""
    return ir.BlockSet(pattern, first)


def semaphore_barrier(action: ir.SemaphoreAction, index: Expr, blocks: Expr, group: str = "tile", **fields: Any) -> ir.SemaphoreBarrier:
    """A barrier at which one thread uses a semaphore."""
    return ir.SemaphoreBarrier(**{"scope": ir.BLOCK_SCOPE, **fields}, action=action, group=group, index=index, blocks=blocks)


FACTORIES = {
    ir.Kernel: kernel, ir.Buffer: buffer, ir.Access: access, ir.Piece: piece, ir.TensorMap: tensor_map, ir.Hole: hole, ir.Comment: comment,
    ir.StepMarker: step_marker, ir.Let: let, ir.For: loop, ir.Exec: execution, ir.IfAnyLane: if_any_lane, ir.SyncPoint: sync_point, ir.Scope: scope,
    ir.Barrier: barrier, ir.ClusterBarrier: cluster_barrier, ir.Commit: commit, ir.Wait: wait, ir.Fence: fence, ir.GridDepControl: grid_dep_control,
    ir.Ring: ring, ir.Acquire: acquire, ir.Release: release, ir.Role: role, ir.Roles: roles, ir.ClaimTile: claim_tile, ir.ExitIfDone: exit_if_done,
    ir.Counter: counter, ir.BlockCluster: block_cluster, ir.BlockSet: block_set, ir.SemaphoreBarrier: semaphore_barrier,
}  # fmt: skip
"""The factory of each class."""
