"""Faults in what orders the threads of a block and their asynchronous copies and products: barriers, waits, commits, fences, stages."""

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
NO_MEETING = "what it orders does not meet, or another statement orders it"


def of(mechanism: ir.Mechanism) -> Callable[[ir.Stmt], bool]:
    """Which waits and commits are for such groups."""
    return lambda one: one.mechanism is mechanism


def reaching(reach: ir.FenceKind) -> Callable[[ir.Stmt], bool]:
    """Which fences reach so far."""
    return lambda one: one.kind is reach


def weaker(one: ir.Wait) -> ir.Wait:
    """A wait that leaves a group more under way."""
    return attrs.evolve(one, groups=one.groups + 1)


def in_loops(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers at the end of a loop, which order what one iteration does with what the next one does, dropped."""
    for spot in spots(kernel, ir.Barrier):
        ends = not any(is_shared(kernel, one) for one in spot.behind)
        if spot.path and ends and _inside_loop(kernel, spot):
            yield str(spot), lambda spot=spot: spot.with_one()


def _inside_loop(kernel: ir.Kernel, spot: Spot) -> bool:
    body: tuple[ir.Stmt, ...] = kernel.body
    for place, number in spot.path:
        last = body[place]
        body = last.children[number]
    return isinstance(last, ir.For)


def narrowed(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers of a block, or of a warpgroup, that hold warps alone."""
    for spot in spots(kernel, ir.Barrier):
        if kernel.threads > 32 and (spot.one.scope.threads or kernel.threads) > 32:
            yield str(spot), lambda spot=spot: spot.with_one(attrs.evolve(spot.one, scope=ir.WARP_SCOPE))


def of_other_threads(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers that count other threads than come to them: twice or half as many neighbours."""
    for spot in spots(kernel, ir.Barrier):
        threads = spot.one.scope.threads or kernel.workers
        for count in {threads * 2, threads // 2} - {0}:
            scope = making.scope(f"{count} threads", count)
            if threads > 32 and count > 32:
                yield f"{spot}, {count} threads", lambda spot=spot, scope=scope: spot.with_one(attrs.evolve(spot.one, scope=scope))


def behind_the_reader(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers, with the waits in front of them, behind the next touch of shared memory."""
    for spot in spots(kernel, ir.Barrier):
        waits = _waits(spot)
        rest = list(spot.behind)
        target = next((number for number, other in enumerate(rest) if is_shared(kernel, other)), None)
        if target is not None:
            start = spot.before[: len(spot.before) - len(waits)]
            moved = (*start, *rest[: target + 1], *waits, spot.one, *rest[target + 1 :])
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def before_the_writer(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers in front of the touch of shared memory behind which they stand."""
    for spot in spots(kernel, ir.Barrier):
        last = next((at for at in reversed(range(spot.position)) if is_shared(kernel, spot.body[at])), None)
        if last is not None:
            moved = (*spot.body[:last], spot.one, *spot.body[last : spot.position], *spot.behind)
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def before_its_wait(kernel: ir.Kernel) -> Iterator[Planted]:
    """Barriers in front of the wait that they stand behind."""
    for spot in spots(kernel, ir.Barrier):
        waits = _waits(spot)
        if waits:
            moved = (*spot.before[: len(spot.before) - len(waits)], spot.one, *waits, *spot.behind)
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def _waits(spot: Spot) -> tuple[ir.Stmt, ...]:
    return spot.before[-1:] if spot.before and isinstance(spot.before[-1], ir.Wait) else ()


def behind_the_next(
    kinds: type[ir.Stmt], when: Callable[[ir.Stmt], bool], next_one: Callable[[ir.Stmt], bool]
) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Statements behind the next one of which something holds, with nothing of the kind in between."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for spot in spots(kernel, kinds, when):
            rest = spot.behind
            target = next((number for number, other in enumerate(rest) if next_one(other)), None)
            if target is not None and not any(isinstance(one, kinds) and when(one) for one in rest[:target]):
                moved = (*spot.before, *rest[: target + 1], spot.one, *rest[target + 1 :])
                yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)

    return plant


def in_stages(change: Callable[[ir.Access], ir.Access]) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Accesses to the stages of a pipeline that are others, all of one buffer. A thread alone only makes wrong results of it, and no race."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        if kernel.workers == 1:
            return
        staged = {
            access.buffer
            for one, _ in ir.execs(kernel.body)
            for access in one.accesses
            if kernel.buffer(access.buffer).memory.of_block and isinstance(access.copy, Mod)
        }
        for name in sorted(staged):

            def edit(one: ir.Exec, name: str = name) -> ir.Exec:
                accesses = [change(access) if access.buffer == name and isinstance(access.copy, Mod) else access for access in one.accesses]
                return attrs.evolve(one, accesses=tuple(accesses))

            body = ir.edited(kernel.body, edit)
            if body != kernel.body:
                yield name, lambda body=body: attrs.evolve(kernel, body=body)

    return plant


def stage_less(access: ir.Access) -> ir.Access:
    """The same in a stage less."""
    return attrs.evolve(access, copy=mod(access.copy.left, access.copy.right - 1))


def stage_further(access: ir.Access) -> ir.Access:
    """Written a stage further on than it is read."""
    return attrs.evolve(access, copy=mod(access.copy.left + 1, access.copy.right)) if access.write else access


def is_product(one: ir.Stmt) -> bool:
    """Whether it is a product under way."""
    return isinstance(one, ir.Exec) and one.mechanism is PRODUCT


def uses_registers(one: ir.Stmt) -> bool:
    """Whether it is work of threads, in it or inside it, that no engine does."""
    return any(work.mechanism is AT_ONCE for work, _ in ir.execs((one,)))


def is_barrier(one: ir.Stmt) -> bool:
    """Whether it holds threads together."""
    return isinstance(one, ir.Barrier)


def _kind(name: str, forms: str, plant: Callable[[ir.Kernel], Iterator[Planted]], needless: str = NO_MEETING) -> Kind:
    return Kind(name, "synchronisation", forms, plant, needless)


KINDS = (
    _kind("barrier dropped", EVERY, changes(ir.Barrier, dropped)),
    _kind("barrier of a loop's end dropped", DEPTH, in_loops),
    _kind("barrier narrowed to a warp", EVERY, narrowed),
    _kind("barrier of other threads", EVERY, of_other_threads),
    _kind("barrier behind the reader", DEPTH, behind_the_reader),
    _kind("barrier before the writer", EVERY, before_the_writer),
    _kind("barrier before its wait", COPIES, before_its_wait),
    _kind("wait for copies dropped", COPIES, changes(ir.Wait, dropped, of(GROUP))),
    _kind("wait for copies raised", COPIES, changes(ir.Wait, weaker, of(GROUP))),
    _kind("commit of copies dropped", COPIES, changes(ir.Commit, dropped, of(GROUP)), "its copies are waited for with those of the next group"),
    _kind("stage reused early", "pipeline", in_stages(stage_less)),
    _kind("stored a stage further", "pipeline", in_stages(stage_further)),
    _kind("wait for products dropped", PRODUCERS, changes(ir.Wait, dropped, of(PRODUCT))),
    _kind("wait for products raised", PRODUCERS, changes(ir.Wait, weaker, of(PRODUCT))),
    _kind("wait for products behind the reader", PRODUCERS, behind_the_next(ir.Wait, of(PRODUCT), uses_registers)),
    _kind("commit of products dropped", PRODUCERS, changes(ir.Commit, dropped, of(PRODUCT)), "its products are waited for with the next group"),
    _kind("fence of registers dropped", PRODUCERS, changes(ir.Fence, dropped, reaching(ir.FenceKind.WGMMA_REGISTERS)), "no thread touched them"),
    _kind("fence of registers behind the product", PRODUCERS, behind_the_next(ir.Fence, reaching(ir.FenceKind.WGMMA_REGISTERS), is_product)),
    _kind("fence of the proxy dropped", PRODUCERS, changes(ir.Fence, dropped, reaching(ir.FenceKind.ASYNC_PROXY))),
    _kind("fence of the proxy behind the barrier", PRODUCERS, behind_the_next(ir.Fence, reaching(ir.FenceKind.ASYNC_PROXY), is_barrier)),
    _kind("wait for stores dropped", PRODUCERS, changes(ir.Wait, dropped, of(BULK)), "another wait stands between it and the next touch"),
    _kind("wait for stores raised", PRODUCERS, changes(ir.Wait, weaker, of(BULK)), "another wait stands between it and the next touch"),
    _kind("commit of stores dropped", PRODUCERS, changes(ir.Commit, dropped, of(BULK)), "its stores are waited for with the next group"),
)  # fmt: skip
