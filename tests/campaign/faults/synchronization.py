"""Faults in the synchronization of a block's threads, asynchronous copies and MMAs: barriers, waits, commits, fences, stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import making

from campaign.faults.kind import DEPTH, EVERY, PRODUCERS, Kind, Planted, Spot, changes, dropped, is_shared, spots
from fireiron import ir
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.cp_async import CP_ASYNC_GROUPS
from fireiron.ir.mechanisms.tma_store import TMA_STORES
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.values.expr import Mod, mod

BULK, GROUP, PRODUCT = TMA_STORES, CP_ASYNC_GROUPS, WGMMA_GROUPS
COPIES = "pipeline ampere-tasks fused"
NO_CONFLICT = "what it orders does not meet, or another statement orders it"


def of(mechanism: ir.Mechanism) -> Callable[[ir.Stmt], bool]:
    """Predicate: waits and commits for given groups."""
    return lambda one: one.mechanism is mechanism


def reaching(reach: ir.FenceKind) -> Callable[[ir.Stmt], bool]:
    """Predicate: fences of a given kind."""
    return lambda one: one.kind is reach


def weaker(wait: ir.Wait) -> ir.Wait:
    """A wait that leaves one more group in flight."""
    return attrs.evolve(wait, groups=wait.groups + 1)


def in_loops(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers at the end of a loop, which order an iteration before the next one, removed."""
    for spot in spots(kernel, ir.Barrier):
        ends = not any(is_shared(kernel, one) for one in spot.after)
        if spot.path and ends and _inside_loop(kernel, spot):
            yield str(spot), lambda spot=spot: spot.with_one()


def _inside_loop(kernel: ir.Kernel, spot: Spot) -> bool:
    body: tuple[ir.Stmt, ...] = kernel.body
    for place, number in spot.path:
        last = body[place]
        body = last.children[number]
    return isinstance(last, ir.For)


def narrowed(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers of a block, or of a warpgroup, narrowed to a warp."""
    for spot in spots(kernel, ir.Barrier):
        if kernel.threads > 32 and (spot.one.scope.threads or kernel.threads) > 32:
            yield str(spot), lambda spot=spot: spot.with_one(attrs.evolve(spot.one, scope=ir.WARP_SCOPE))


def of_other_threads(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers that expect other threads than arrive: twice or half as many."""
    for spot in spots(kernel, ir.Barrier):
        threads = spot.one.scope.threads or kernel.workers
        for count in {threads * 2, threads // 2} - {0}:
            scope = making.scope(f"{count} threads", count)
            if threads > 32 and count > 32:
                yield f"{spot}, {count} threads", lambda spot=spot, scope=scope: spot.with_one(attrs.evolve(spot.one, scope=scope))


def after_the_reader(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers, with the waits before them, moved after the next access to shared memory."""
    for spot in spots(kernel, ir.Barrier):
        waits = _waits(spot)
        rest = list(spot.after)
        target = next((number for number, other in enumerate(rest) if is_shared(kernel, other)), None)
        if target is not None:
            start = spot.before[: len(spot.before) - len(waits)]
            moved = (*start, *rest[: target + 1], *waits, spot.one, *rest[target + 1 :])
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def before_the_writer(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers moved before the preceding access to shared memory."""
    for spot in spots(kernel, ir.Barrier):
        last = next((at for at in reversed(range(spot.position)) if is_shared(kernel, spot.body[at])), None)
        if last is not None:
            moved = (*spot.body[:last], spot.one, *spot.body[last : spot.position], *spot.after)
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def before_its_wait(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers moved before the preceding wait."""
    for spot in spots(kernel, ir.Barrier):
        waits = _waits(spot)
        if waits:
            moved = (*spot.before[: len(spot.before) - len(waits)], spot.one, *waits, *spot.after)
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def _waits(spot: Spot) -> tuple[ir.Stmt, ...]:
    return spot.before[-1:] if spot.before and isinstance(spot.before[-1], ir.Wait) else ()


def after_the_next(
    kinds: type[ir.Stmt], when: Callable[[ir.Stmt], bool], next_one: Callable[[ir.Stmt], bool]
) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Statements moved after the next one that satisfies a predicate, with none of the same class in between."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for spot in spots(kernel, kinds, when):
            rest = spot.after
            target = next((number for number, other in enumerate(rest) if next_one(other)), None)
            if target is not None and not any(isinstance(one, kinds) and when(one) for one in rest[:target]):
                moved = (*spot.before, *rest[: target + 1], spot.one, *rest[target + 1 :])
                yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)

    return plant


def in_stages(change: Callable[[ir.Access], ir.Access]) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Accesses to other stages of a pipeline, all of one buffer. In one thread alone this gives wrong results, but no race."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        if kernel.workers == 1:
            return
        staged = {
            access.buffer
            for stmt, _ in ir.execs(kernel.body)
            for access in stmt.accesses
            if kernel.buffer(access.buffer).memory.of_block and isinstance(access.copy, Mod)
        }
        for name in sorted(staged):

            def edit(stmt: ir.Exec, name: str = name) -> ir.Exec:
                accesses = [
                    change(access) if access.buffer == name and isinstance(access.copy, Mod) else access for access in stmt.accesses
                ]
                return attrs.evolve(stmt, accesses=tuple(accesses))

            body = ir.edited(kernel.body, edit)
            if body != kernel.body:
                yield name, lambda body=body: attrs.evolve(kernel, body=body)

    return plant


def stage_less(access: ir.Access) -> ir.Access:
    """The same with one stage less."""
    return attrs.evolve(access, copy=mod(access.copy.left, access.copy.right - 1))


def stage_further(access: ir.Access) -> ir.Access:
    """Written one stage later than it is read."""
    return attrs.evolve(access, copy=mod(access.copy.left + 1, access.copy.right)) if access.write else access


def is_product(stmt: ir.Stmt) -> bool:
    """Whether a statement is an asynchronous MMA."""
    return isinstance(stmt, ir.Exec) and stmt.mechanism is PRODUCT


def uses_registers(stmt: ir.Stmt) -> bool:
    """Whether threads themselves perform the work, in the statement or inside it."""
    return any(work.mechanism is AT_ONCE for work, _ in ir.execs((stmt,)))


def after_reads(kernel: ir.Kernel) -> Iterator[Planted]:
    """Fences before the release of a stage that threads have read, each left out."""
    for spot in spots(kernel, ir.Fence, reaching(ir.FenceKind.ASYNC_PROXY)):
        if any(is_release(stmt) for stmt in spot.after):
            yield str(spot), lambda spot=spot: spot.with_one()


def is_release(stmt: ir.Stmt) -> bool:
    """Whether a statement releases a stage as empty."""
    return isinstance(stmt, ir.Release) and stmt.state is ir.StageState.EMPTY


def is_barrier(stmt: ir.Stmt) -> bool:
    """Whether the statement synchronizes threads."""
    return isinstance(stmt, ir.Barrier)


def _kind(name: str, forms: str, plant: Callable[[ir.Kernel], Iterator[Planted]], needless: str = NO_CONFLICT) -> Kind:
    return Kind(name, "synchronization", forms, plant, needless)


KINDS = (
    _kind("barrier dropped", EVERY, changes(ir.Barrier, dropped)),
    _kind("barrier of a loop's end dropped", DEPTH, in_loops),
    _kind("barrier narrowed to a warp", EVERY, narrowed),
    _kind("barrier of other threads", EVERY, of_other_threads),
    _kind("barrier behind the reader", DEPTH, after_the_reader),
    _kind("barrier before the writer", EVERY, before_the_writer),
    _kind("barrier before its wait", COPIES, before_its_wait),
    _kind("wait for copies dropped", COPIES, changes(ir.Wait, dropped, of(GROUP))),
    _kind("wait for copies raised", COPIES, changes(ir.Wait, weaker, of(GROUP))),
    _kind("commit of copies dropped", COPIES, changes(ir.Commit, dropped, of(GROUP)), "its copies are waited for with those of the next group"),
    _kind("stage reused early", "pipeline", in_stages(stage_less)),
    _kind("stored a stage further", "pipeline", in_stages(stage_further)),
    _kind("wait for products dropped", PRODUCERS, changes(ir.Wait, dropped, of(PRODUCT))),
    _kind("wait for products raised", PRODUCERS, changes(ir.Wait, weaker, of(PRODUCT))),
    _kind("wait for products behind the reader", PRODUCERS, after_the_next(ir.Wait, of(PRODUCT), uses_registers)),
    _kind("commit of products dropped", PRODUCERS, changes(ir.Commit, dropped, of(PRODUCT)), "its products are waited for with the next group"),
    _kind("fence of registers dropped", PRODUCERS, changes(ir.Fence, dropped, reaching(ir.FenceKind.WGMMA_REGISTERS)), "no thread touched them"),
    _kind("fence of registers behind the product", PRODUCERS, after_the_next(ir.Fence, reaching(ir.FenceKind.WGMMA_REGISTERS), is_product)),
    _kind("fence of the proxy dropped", f"{PRODUCERS} bulk", changes(ir.Fence, dropped, reaching(ir.FenceKind.ASYNC_PROXY))),
    _kind("fence of the proxy behind the barrier", f"{PRODUCERS} bulk", after_the_next(ir.Fence, reaching(ir.FenceKind.ASYNC_PROXY), is_barrier)),
    _kind("fence after reads dropped", "readers", after_reads),
    _kind("fence of reads after their release", "readers", after_the_next(ir.Fence, reaching(ir.FenceKind.ASYNC_PROXY), is_release)),
    _kind("wait for stores dropped", f"{PRODUCERS} bulk", changes(ir.Wait, dropped, of(BULK)), "another wait stands between it and the next touch"),
    _kind("wait for stores raised", f"{PRODUCERS} bulk", changes(ir.Wait, weaker, of(BULK)), "another wait stands between it and the next touch"),
    _kind("commit of stores dropped", f"{PRODUCERS} bulk", changes(ir.Commit, dropped, of(BULK)), "its stores are waited for with the next group"),
)  # fmt: skip
