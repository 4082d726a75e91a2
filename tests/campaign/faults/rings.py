"""Faults in the synchronization of producers and consumers, of alternating warpgroups, and of the blocks of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import attrs
import making

from campaign.faults.kind import PRODUCERS, Kind, Planted, changes, dropped, spots
from fireiron import ir
from fireiron.ir.dynamic_scheduler import ClaimTile, ExitIfDone
from fireiron.values.expr import TRUE, Var, all_of, as_expr, less

LAST = "no later turn of the stage waits for it, or no turn comes to it"


def side(which: ir.StageState) -> Callable[[ir.Stmt], bool]:
    """Predicate: acquires and releases of a given stage state."""
    return lambda stmt: stmt.state is which


def later(fills: int) -> Callable[[ir.Stmt], ir.Stmt]:
    """The same operation, a given number of fills later."""
    return lambda stmt: attrs.evolve(stmt, fill_index=stmt.fill_index + fills)


def other_side(stmt: ir.Acquire) -> ir.Stmt:
    """A wait for the opposite state of the stage."""
    return attrs.evolve(stmt, state=ir.StageState.EMPTY if stmt.state is ir.StageState.FULL else ir.StageState.FULL)


def by_all_lanes(stmt: ir.Release) -> ir.Stmt:
    """An arrival by each lane."""
    return attrs.evolve(stmt, active=TRUE)


def of_rings(kernel: ir.Kernel, when: Callable[[ir.Ring], bool] = lambda ring: True) -> Iterator[ir.Ring]:
    """The rings that satisfy a predicate."""
    return filter(when, kernel.rings)


def released_later(which: ir.StageState) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Arrivals at the next stage; a ring of one stage has only one, and the text of an arrival names only the stage."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for spot in spots(kernel, ir.Release, side(which)):
            if kernel.ring(spot.one.ring).stages > 1:
                yield str(spot), lambda spot=spot: spot.with_one(later(1)(spot.one))

    return plant


def by_rounds(kernel: ir.Kernel) -> Iterator[Planted]:
    """Waits for a stage, one cycle later than its use."""
    for spot in spots(kernel, ir.Acquire):
        stages = kernel.ring(spot.one.ring).stages
        yield str(spot), lambda spot=spot, stages=stages: spot.with_one(later(stages)(spot.one))


def of_another_ring(kernel: ir.Kernel) -> Iterator[Planted]:
    """Waits and arrivals at the mbarriers of another ring."""
    names = [ring.name for ring in kernel.rings]
    if len(names) > 1:
        for spot in spots(kernel, (ir.Acquire, ir.Release)):
            for name in names:
                if name != spot.one.ring:
                    yield f"{spot}, {name}", lambda spot=spot, name=name: spot.with_one(attrs.evolve(spot.one, ring=name))


def early(kernel: ir.Kernel) -> Iterator[Planted]:
    """Stages released before the wait or barrier that precedes their release."""
    for spot in spots(kernel, ir.Release, side(ir.StageState.EMPTY)):
        waits = [at for at, other in enumerate(spot.before) if isinstance(other, (ir.Wait, ir.Barrier))]
        if waits and any(isinstance(stmt, ir.Exec | ir.For) for stmt in spot.before):
            at = waits[-1]
            moved = (*spot.before[:at], spot.one, *spot.before[at:], *spot.after)
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def before_use(kernel: ir.Kernel) -> Iterator[Planted]:
    """Stages released before their uses, right after the wait for them."""
    for spot in spots(kernel, ir.Release):
        at = next((at for at in reversed(range(spot.position)) if _waits_for(spot.body[at], spot.one)), None)
        if at is not None and any(isinstance(stmt, ir.Exec | ir.For) for stmt in spot.body[at + 1 : spot.position]):
            moved = (*spot.body[: at + 1], spot.one, *spot.body[at + 1 : spot.position], *spot.after)
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def _waits_for(stmt: ir.Stmt, release: ir.Release) -> bool:
    return isinstance(stmt, ir.Acquire) and stmt.ring == release.ring and stmt.state is not release.state


def swapped(kernel: ir.Kernel) -> Iterator[Planted]:
    """A wait and the arrival after it, exchanged."""
    for spot in spots(kernel, ir.Release):
        at = next((at for at in reversed(range(spot.position)) if _waits_for(spot.body[at], spot.one)), None)
        if at is not None:
            moved = (*spot.body[:at], spot.one, *spot.body[at + 1 : spot.position], spot.body[at], *spot.after)
            yield str(spot), lambda spot=spot, moved=moved: spot.with_list(moved)


def not_by_one_warp(kernel: ir.Kernel) -> Iterator[Planted]:
    """Arrivals by all warps but the first."""
    for spot in spots(kernel, ir.Release, side(ir.StageState.EMPTY)):
        condition = less(as_expr(31), kernel.thread)
        if kernel.workers > 32 and not kernel.ring(spot.one.ring).is_order:
            arrival = attrs.evolve(spot.one, active=all_of((spot.one.active, condition)))
            yield str(spot), lambda spot=spot, stmt=arrival: spot.with_one(stmt)


def with_ring(change: Callable[[ir.Ring], ir.Ring], when: Callable[[ir.Ring], bool]) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """The kernel with one ring changed."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for ring in of_rings(kernel, when):
            rings = tuple(change(stmt) if stmt is ring else stmt for stmt in kernel.rings)
            yield ring.name, lambda rings=rings: attrs.evolve(kernel, rings=rings)

    return plant


def filled(ring: ir.Ring) -> bool:
    """Whether loads fill the ring."""
    return bool(ring.buffers)


def to_another_stage(kernel: ir.Kernel) -> Iterator[Planted]:
    """Loads and their readers, each alone, at the next stage."""
    staged = {name: ring.stages for ring in kernel.rings for name in ring.buffers if ring.stages > 1}
    for spot in spots(kernel, ir.Exec):
        for position, access in enumerate(spot.one.accesses):
            if access.buffer in staged:
                moved = attrs.evolve(access, copy=(access.copy + 1) % staged[access.buffer])
                if moved != access:
                    stmt = attrs.evolve(spot.one, accesses=_put(spot.one.accesses, position, moved))
                    yield f"{spot}, {access.buffer}", lambda spot=spot, stmt=stmt: spot.with_one(stmt)


def _put(values, position, value):
    return (*values[:position], value, *values[position + 1 :])


def last_iteration_dropped(kernel: ir.Kernel) -> Iterator[Planted]:
    """Loops without their last iteration, in one role alone. Loops over claimed tiles exit early anyway."""
    for spot in spots(kernel, ir.For, lambda stmt: any(isinstance(part, ir.Acquire) for part in stmt.body)):
        if any(isinstance(part, ClaimTile) for part in spot.one.body):
            continue
        yield str(spot), lambda spot=spot: spot.with_one(attrs.evolve(spot.one, extent=spot.one.extent - spot.one.step))


def counted_wrongly(kernel: ir.Kernel) -> Iterator[Planted]:
    """Loops over tiles whose fill count grows by one too many, in one role alone."""
    for spot in spots(kernel, ir.For, lambda stmt: stmt.prior_iterations is not None):
        for more in (-1, 1):
            yield f"{spot}, {more}", lambda spot=spot, more=more: spot.with_one(attrs.evolve(spot.one, increment=spot.one.increment + more))


def roles_swapped(kernel: ir.Kernel) -> Iterator[Planted]:
    """Two roles with exchanged programs."""
    for spot in spots(kernel, ir.Roles):
        first, *rest = spot.one.roles
        for number, other in enumerate(rest):
            roles = [attrs.evolve(first, body=other.body), *rest]
            roles[number + 1] = attrs.evolve(other, body=first.body)
            yield f"{spot}, {other.name}", lambda spot=spot, roles=roles: spot.with_one(making.roles(tuple(roles)))


def in_another_copy(kernel: ir.Kernel) -> Iterator[Planted]:
    """Groups or warps with separate copies of a buffer, all using the first one."""
    names = {buffer.name for buffer in kernel.buffers if buffer.memory.of_block and buffer.tensor.copies > 1}
    names -= {name for ring in kernel.rings for name in ring.buffers}
    loops = {stmt.var for stmt in ir.statements(kernel.body) if isinstance(stmt, ir.For)}
    names -= {access.buffer for stmt, _ in ir.execs(kernel.body) for access in stmt.accesses if access.copy.variables() & loops}  # stages
    for name in sorted(names):

        def moved(stmt: ir.Exec, name: str = name) -> ir.Exec:
            accesses = tuple(attrs.evolve(access, copy=access.copy * 0) if access.buffer == name else access for access in stmt.accesses)
            return attrs.evolve(stmt, accesses=accesses)

        body = ir.edited(kernel.body, moved)
        if body != kernel.body:
            yield name, lambda body=body: attrs.evolve(kernel, body=body)


def of_the_same_tiles(kernel: ir.Kernel) -> Iterator[Planted]:
    """Alternating groups that all compute the tiles of the first one."""
    for spot in spots(kernel, ir.For, lambda stmt: stmt.step > 1 and stmt.first > 0):
        yield str(spot), lambda spot=spot: spot.with_one(attrs.evolve(spot.one, first=0))


# ---------------------------------------------------------------------------------------------- clusters


def masks(peers: ir.BlockSet, kernel: ir.Kernel) -> Iterator[tuple[str, ir.BlockSet]]:
    """Faulty sets of blocks as destinations of a statement."""
    blocks = kernel.cluster.blocks
    yield "one block left out", attrs.evolve(peers, pattern=peers.pattern & (peers.pattern - 1))
    yield "the last block left out", attrs.evolve(peers, pattern=peers.pattern ^ 1 << peers.pattern.bit_length() - 1)
    yield "a block beyond", attrs.evolve(peers, pattern=peers.pattern | 1 << blocks)


def loads_for_others(kernel: ir.Kernel) -> Iterator[Planted]:
    """Multicast loads that go to other blocks, or only to their own block."""
    for spot in spots(kernel, ir.Exec, lambda stmt: stmt.multicast is not None):
        yield f"{spot}, alone", lambda spot=spot: spot.with_one(attrs.evolve(spot.one, multicast=None))
        for name, peers in masks(spot.one.multicast, kernel):
            yield f"{spot}, {name}", lambda spot=spot, peers=peers: spot.with_one(attrs.evolve(spot.one, multicast=peers))


def arrivals_of_others(kernel: ir.Kernel) -> Iterator[Planted]:
    """Multicast arrivals that go to other blocks, or only to their own block."""
    for spot in spots(kernel, ir.Release, lambda stmt: stmt.to != ()):
        yield f"{spot}, alone", lambda spot=spot: spot.with_one(attrs.evolve(spot.one, to=()))
        for position, release in enumerate(spot.one.to):
            for name, peers in masks(release, kernel):
                to = _put(spot.one.to, position, peers)
                if _reached(kernel, to) != _reached(kernel, spot.one.to):
                    yield f"{spot}, {name}", lambda spot=spot, to=to: spot.with_one(attrs.evolve(spot.one, to=to))


def _reached(kernel: ir.Kernel, to: tuple[ir.BlockSet, ...]) -> list[set[int]]:
    ranks = range(kernel.cluster.blocks)
    return [{stmt for part in to for stmt in part.ranks(part.first.evaluate(dict(kernel.cluster.values(rank))))} for rank in ranks]


# ---------------------------------------------------------------------------------------------- dynamic tiles


def of_tiles(
    change: Callable[[ClaimTile], tuple[ir.Stmt, ...] | ir.Stmt], takes: bool | None = None
) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """The statements that hold a tile number, by which thread claims it or receives it."""
    return changes(ClaimTile, change, lambda stmt: takes in (None, stmt.takes))


def two_tiles(stmt: ClaimTile) -> tuple[ir.Stmt, ...]:
    """Two tiles claimed in one iteration."""
    return stmt, attrs.evolve(stmt, var=Var("other", 0, 9))


def _kind(name: str, forms: str, plant: Callable[[ir.Kernel], Iterator[Planted]], needless: str = "") -> Kind:
    return Kind(name, "synchronization", forms, plant, needless)


EACH = {"acquire": ir.Acquire, "release": ir.Release}
FULL, EMPTY = ir.StageState.FULL, ir.StageState.EMPTY

KINDS = (
    *(_kind(f"{word} {which.value} dropped", PRODUCERS, changes(kind, dropped, side(which)), LAST) for word, kind in EACH.items() for which in (FULL, EMPTY)),
    *(_kind(f"acquire {which.value} a turn later", PRODUCERS, changes(ir.Acquire, later(1), side(which)), LAST) for which in (FULL, EMPTY)),
    *(_kind(f"release {which.value} a turn later", PRODUCERS, released_later(which), LAST) for which in (FULL, EMPTY)),
    _kind("acquire a turn early", PRODUCERS, changes(ir.Acquire, later(-1)), LAST),
    _kind("acquire of the wrong phase", PRODUCERS, by_rounds),
    _kind("acquire of the wrong side", PRODUCERS, changes(ir.Acquire, other_side)),
    _kind("acquire or release of another ring", "share attention warpgroups dynamic turns hopper-tasks", of_another_ring),
    _kind("acquire and release swapped", PRODUCERS, swapped),
    _kind("release before the wait", PRODUCERS, early, LAST),
    _kind("release before the use", PRODUCERS, before_use, LAST),
    _kind("release by all lanes", PRODUCERS, changes(ir.Release, by_all_lanes), LAST),
    _kind("release of a warp left out", PRODUCERS, not_by_one_warp, LAST),
    _kind("bytes of a stage too many", PRODUCERS, with_ring(lambda ring: attrs.evolve(ring, bytes=ring.bytes + 16), filled)),
    _kind("bytes of a stage too few", PRODUCERS, with_ring(lambda ring: attrs.evolve(ring, bytes=ring.bytes - 16), filled)),
    _kind("arrivals counted too many", PRODUCERS, with_ring(lambda ring: attrs.evolve(ring, consumers=ring.consumers + 1), lambda ring: True)),
    _kind("arrivals counted too few", PRODUCERS, with_ring(lambda ring: attrs.evolve(ring, consumers=ring.consumers - 1), lambda ring: ring.consumers > 1)),
    _kind("load or product of another stage", PRODUCERS, to_another_stage),
    _kind("last turn left out by a role", PRODUCERS, last_iteration_dropped),
    _kind("turns counted wrongly from tile to tile", "attention", counted_wrongly),
    _kind("roles swapped", PRODUCERS, roles_swapped),
    _kind("groups in one copy", "turns warpgroups ring hopper-tasks ampere-tasks threads", in_another_copy),
    _kind("groups on the same tiles", "turns", of_the_same_tiles),
    _kind("cluster's barrier dropped", "cluster", changes(ir.ClusterBarrier, dropped)),
    _kind("load for other blocks than wait", "cluster", loads_for_others),
    _kind("arrival at other blocks than load", "cluster", arrivals_of_others, LAST),
    _kind("loop over tiles never left", "dynamic", changes(ExitIfDone, dropped)),
    _kind("tile of the next turn", "dynamic", of_tiles(later(1))),
    _kind("two tiles taken at a turn", "dynamic", of_tiles(two_tiles, True)),
    _kind("tile taken by those who are told", "dynamic", of_tiles(lambda stmt: attrs.evolve(stmt, takes=not stmt.takes))),
)  # fmt: skip
