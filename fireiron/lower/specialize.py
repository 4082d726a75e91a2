"""`specialize`: a program with loads that TMA does becomes the programs of two roles, a producer of its own and the consumers.

The passes before see one sequential program. Here the producer takes the loads, with the loops and names around them, and the consumers the
rest; each turn of a ring is acquired before it is filled or used, and released behind. Products still read a stage when the next turn
begins, so its release comes `in flight` turns later.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir import (
    WARP_SCOPE,
    Acquire,
    Barrier,
    Comment,
    Commit,
    Completion,
    Exec,
    For,
    Kernel,
    Let,
    Peers,
    Release,
    Ring,
    Role,
    Roles,
    Side,
    Stmt,
    SyncPoint,
    Wait,
    execs,
    statements,
    unknown,
)
from fireiron.values.expr import Expr, all_of, as_expr, equal, less
from fireiron.values.machine import Warp
from fireiron.values.units import index_in

WARP_THREADS, GROUP_THREADS = 32, 128

KEPT = 40
"""Registers that a thread of a producing warpgroup keeps: 24 are the least, with which some producers spill."""

KEPT_IN_CLUSTER = 56
"""The same where it sends to other blocks: of those with 40 some spill; consumers of two warpgroups get as many as with 48."""

FOR_CONSUMERS = (Exec, Comment, SyncPoint, Commit)
"""Statements of which a producer has none, but for its loads."""

REGISTERS = 65536
"""Registers of a block at most."""


def specialize(kernel: Kernel) -> Kernel:
    """The kernel with its producer and consumers apart; a `DecompositionError` for TMA loads without a ring."""
    lonely = next((one for one, _ in execs(kernel.body) if one.completion is Completion.RING and not one.ring), None)
    if lonely is not None:
        raise DecompositionError(
            f"{lonely.instruction.name} loads by a producer, and none is asked for",
            within=lonely.spec,
            at=lonely.origin,
            hint=".split(64).pipeline(4).specialize(), or .coalesced(8) in the load for copies by all threads",
        )
    loops = [one for one in statements(kernel.body) if isinstance(one, For) and one.producers]
    if not loops:
        return kernel
    producers = max(one.producers for one in loops)
    rings = tuple(_counted(kernel, ring) for ring in kernel.rings)
    names = tuple(one for one in kernel.body if isinstance(one, Let))
    program = tuple(one for one in kernel.body if not isinstance(one, Let))
    lane = index_in(Warp, kernel.thread)
    consume = _Consumers({ring.name: ring for ring in rings}, _in_flight(kernel), equal(lane, 0), _fillers(kernel))
    kept, given = _registers(kernel.workers, producers, KEPT if kernel.cluster is None else KEPT_IN_CLUSTER)
    roles = Roles(
        (
            Role("consumers", 0, kernel.workers, consume.list(program), registers=given),
            Role("producer", kernel.workers, producers, _produced(program), elected=True, registers=kept),
        )
    )
    return attrs.evolve(kernel, body=(*names, roles), rings=rings, threads=kernel.workers + producers)


def _counted(kernel: Kernel, ring: Ring) -> Ring:
    """The ring with the bytes that fill a stage, and the warps that empty it."""
    loads = [one for one, _ in execs(kernel.body) if one.ring == ring.name]
    size = sum(_brought(one) * kernel.buffer(one.accesses[1].buffer).dtype.bytes for one in loads)
    blocks = len({rank for peers in _fillers(kernel).get(ring.name, ()) for rank in peers.ranks(0)}) or 1
    return attrs.evolve(ring, bytes=size, consumers=-(-kernel.workers // WARP_THREADS) * blocks)


def _brought(load: Exec) -> int:
    """The elements that a block receives by a load: of those who share it, each brings as many."""
    return math.prod(load.accesses[1].shape) * (1 if load.multicast is None else load.multicast.count)


def _fillers(kernel: Kernel) -> dict[str, tuple[Peers, ...]]:
    """For each ring whose stages blocks of a cluster fill for each other, who they are: whoever sends to a block receives from it, too."""
    found: dict[str, dict[Peers, None]] = {}
    for one, _ in execs(kernel.body):
        if one.multicast is not None:
            found.setdefault(one.ring, {})[one.multicast] = None
    return {ring: tuple(peers) for ring, peers in found.items()}


def _in_flight(kernel: Kernel) -> int:
    """How many groups of products run on while the next turn begins: with several warpgroups one fills the gaps of the others."""
    return 1 if kernel.workers <= GROUP_THREADS else 0


def _registers(workers: int, producers: int, kept: int) -> tuple[int, int]:
    """The registers that each thread of the producer keeps, and that each consumer gets; 0 where they stay as launched."""
    if producers < GROUP_THREADS or workers % GROUP_THREADS:
        return 0, 0
    groups = workers // GROUP_THREADS
    launched = min(REGISTERS // (workers + producers) // 8 * 8, 248)
    given = (launched * (groups + 1) - kept) // groups // 8 * 8
    return (kept, min(given, 248)) if given > launched else (0, 0)


# ---------------------------------------------------------------------------------------------- producer


def _produced(body: Iterable[Stmt]) -> tuple[Stmt, ...]:
    """The loads of a list, each turn of a ring acquired and announced."""
    kept: list[Stmt] = []
    for statement in body:
        if isinstance(statement, Exec) and statement.ring:
            kept.append(statement)
        elif isinstance(statement, For):
            inner = _produced(statement.body)
            if any(True for _ in execs(inner)):
                kept.append(attrs.evolve(statement, body=(*_announced(statement, inner), *inner), producers=0))
        elif isinstance(statement, Let):
            kept.append(statement)
    return tuple(kept)


def _announced(loop: For, inner: Sequence[Stmt]) -> tuple[Stmt, ...]:
    if not loop.producers:
        return ()
    load = next(one for one, _ in execs(inner))
    return (Acquire(load.ring, Side.EMPTY, load.turn), Release(load.ring, Side.FULL, load.turn))


# ---------------------------------------------------------------------------------------------- consumers


@attrs.frozen
class _Consumers:
    """Makes the program of the consumers; `first` is the condition of the lane that speaks for its warp, `fillers` are to whom, if not to
    its own block alone.
    """

    rings: dict[str, Ring]
    in_flight: int
    first: Expr
    fillers: dict[str, tuple[Peers, ...]]

    def list(self, body: Iterable[Stmt]) -> tuple[Stmt, ...]:
        """A list without its loads, each turn acquired before it is used and released behind."""
        kept: list[Stmt] = []
        for statement in body:
            if isinstance(statement, Exec) and statement.ring:
                while kept and isinstance(kept[-1], Comment):  # it is about the load
                    kept.pop()
            elif isinstance(statement, For) and statement.producers:
                kept += self._turns(statement)
            elif isinstance(statement, For):
                kept.append(statement.rebuilt((self.list(statement.body),)))
            elif isinstance(statement, (Let, *FOR_CONSUMERS)):
                kept.append(statement)
            else:
                raise unknown(statement, "specialize")
        return tuple(kept)

    def _turns(self, loop: For) -> tuple[Stmt, ...]:
        load = next(one for one, _ in execs(loop.body) if one.ring)
        uses = self.list(loop.body)
        ring, turn = load.ring, load.turn
        by_engine = any(one.completion is Completion.PRODUCT for one, _ in execs(uses))
        # A turn in flight keeps its stage: of one stage there is none to go on with.
        late = min(self.in_flight, self.rings[ring].stages - 1) if loop.in_flight is None else loop.in_flight
        late = late if by_engine else 0
        names = ", ".join(self.rings[ring].buffers)
        done: Stmt = Barrier(WARP_SCOPE, f"all lanes have read {names}")
        if by_engine:
            done = Wait(
                late,
                f"{names} of {('this turn', 'the turn before')[late] if late < 2 else f'{late} turns before'} have been read",
                Completion.PRODUCT,
            )
        began = less(as_expr(late - 1), loop.var)
        to = self.fillers.get(ring, ())
        release = Release(ring, Side.EMPTY, turn - late, self.first if not late else all_of((self.first, began)), to)
        inner = attrs.evolve(loop, body=(Acquire(ring, Side.FULL, turn), *uses, done, release), producers=0)
        if not late:
            return (inner,)
        last = [
            Release(ring, Side.EMPTY, number, all_of((self.first, less(as_expr(step), loop.extent))), to)
            for step in reversed(range(late))
            for number in [turn.substitute({loop.var: loop.extent - 1 - step})]
        ]
        return (inner, Wait(0, f"{names} of the last turn have been read", Completion.PRODUCT), *last)
