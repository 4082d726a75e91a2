"""`synchronize`: the fewest barriers that order every hazard, from which thread touches which address.

A hazard is a pair of accesses to one address by different threads, at least one a write. In its innermost common statement
list it is an interval of positions, cyclic when carried by a loop; a barrier inside, of its scope or a wider one, meets it.
Lists are solved inside out by exact interval stabbing, the latest position preferred. `no_sync` forbids a position, `sync`
requires one; those that change nothing are noted on the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import attrs

from fireiron.errors import SynchronizationError
from fireiron.ir import (
    BLOCK_SCOPE,
    WARP_SCOPE,
    Barrier,
    Comment,
    Commit,
    Exec,
    For,
    Ineffective,
    Kernel,
    Let,
    Scope,
    Stmt,
    SyncPoint,
    Wait,
    unknown,
)
from fireiron.lower.hazards import Exposure, Finder, Hazard, Summary, joined, of_barrier, of_loop
from fireiron.lower.stabbing import fewest
from fireiron.lower.touches import Touches

SCOPES: tuple[Scope, ...] = (WARP_SCOPE, BLOCK_SCOPE)
"""The scopes of inferred barriers, each inside the next.

A warpgroup's would be right too where blockDim is a multiple of 128 (`synchronize(kernel, (WARP_SCOPE, WARPGROUP_SCOPE,
BLOCK_SCOPE))`), but no kernel of the library has a hazard that stops at one, it takes one of the 16 named barriers of a
block, and nobody has measured it.
"""


def synchronize(kernel: Kernel, scopes: Sequence[Scope] = SCOPES) -> Kernel:
    """The kernel with barriers, sync points resolved.

    Raises:
        SynchronizationError: a barrier is needed where it is forbidden.
        VerificationError: a statement of unknown kind.
    """
    legal = tuple(scope for scope in scopes if (scope.threads or 0) <= 32 or kernel.threads % (scope.threads or 1) == 0)
    pass_ = _Synchronizer(kernel, legal)
    body, _ = pass_.solved(kernel.body, None, ())
    return attrs.evolve(kernel, body=body, ineffective=(*kernel.ineffective, *pass_.ineffective))


@attrs.define(eq=False)
class _Items:
    """A list as the statements between which a barrier may stand, each with what goes in front of it, and the wishes for positions."""

    statements: list[tuple[Stmt, ...]] = attrs.field(factory=list)
    summaries: list[Summary] = attrs.field(factory=list)
    commits: list[int] = attrs.field(factory=list)
    preferred: list[int] = attrs.field(factory=list)
    required: dict[int, SyncPoint] = attrs.field(factory=dict)
    forbidden: dict[int, SyncPoint] = attrs.field(factory=dict)
    leading: list[Stmt] = attrs.field(factory=list)

    def add(self, statement: Stmt, summary: Summary) -> None:
        """One more statement, behind the comments and names that belong to it."""
        self.statements.append((*self.leading, statement))
        self.summaries.append(summary)
        self.leading = []

    def finish(self, nothing: Summary) -> None:
        """What stands last without a statement behind it."""
        if self.leading:
            self.statements.append(tuple(self.leading))
            self.summaries.append(nothing)

    @property
    def order(self) -> list[int]:
        """All positions where a barrier may stand, the best first: where somebody wished for it, then the latest."""
        others = [position for position in range(len(self.statements), -1, -1) if position not in self.preferred]
        return [position for position in (*self.preferred, *others) if position not in self.forbidden]


class _Synchronizer:
    def __init__(self, kernel: Kernel, scopes: tuple[Scope, ...]) -> None:
        self.kernel, self.scopes = kernel, scopes
        self.nothing: Summary = (Exposure(),) * len(scopes)
        self.touches = Touches(kernel, scopes)
        self.ineffective: list[Ineffective] = []

    def solved(self, body: Sequence[Stmt], loop: For | None, loops: tuple[For, ...]) -> tuple[tuple[Stmt, ...], Summary]:
        """The list with barriers, and what of it is exposed."""
        items = _Items()
        for statement in body:
            self._item(items, statement, loops)
        items.finish(self.nothing)
        hazards = Finder(self.touches, self.scopes, items.summaries, loop, loops, items.commits).hazards()
        return self._merged(items, self._placed(items, hazards))

    def _item(self, items: _Items, statement: Stmt, loops: tuple[For, ...]) -> None:
        match statement:
            case SyncPoint():
                self._wish(items, statement)
            case For():
                inner, summary = self.solved(statement.body, statement, (*loops, statement))
                items.add(statement.rebuilt((inner,)), of_loop(summary, statement))
            case Exec():
                touches = self.touches.of(statement, loops)
                items.add(statement, (Exposure(touches, touches),) * len(self.scopes))
            case Barrier(scope=scope):
                items.add(statement, of_barrier(scope, self.scopes))
            case Commit():
                items.commits.append(len(items.statements))
                items.add(statement, self.nothing)
            case Comment() | Let() | Wait():
                items.leading.append(statement)
            case _:
                raise unknown(statement, "synchronize")

    def _wish(self, items: _Items, point: SyncPoint) -> None:
        position = len(items.statements)
        if point.require is None:
            items.preferred.append(position)
            return
        wishes = items.required if point.require else items.forbidden
        if position in wishes:
            self._note(point, "another one stands at the same place")
        wishes.setdefault(position, point)

    def _note(self, point: SyncPoint, why: str) -> None:
        self.ineffective.append(Ineffective("sync" if point.require else "no_sync", point.subject, why, point.origin))

    # -------------------------------------------------------------------------------------- barriers

    def _placed(self, items: _Items, hazards: list[Hazard]) -> dict[int, Barrier]:
        given = dict.fromkeys(items.required, BLOCK_SCOPE)
        possible = [hazard for hazard in hazards if self._can_be_met(items, hazard)]
        intervals = dict.fromkeys(hazard.interval for hazard in possible)
        chosen = {**given, **fewest(intervals, items.order, given)}
        for position, point in items.forbidden.items():
            if not any(position in hazard.interval.positions for hazard in hazards):
                self._note(point, "nothing needs a barrier there")
        reasons = credited(possible, chosen, [buffer.name for buffer in self.kernel.buffers])
        return {position: Barrier(scope, reasons.get(position, "asked for by sync")) for position, scope in chosen.items()}

    def _can_be_met(self, items: _Items, hazard: Hazard) -> bool:
        allowed = [position for position in hazard.interval.positions if position not in items.forbidden or position in items.required]
        if allowed or self.kernel.unchecked:
            return bool(allowed)
        wishes = [point for position, point in items.forbidden.items() if position in hazard.interval.positions]
        names = ", ".join(f"no_sync on {point.subject} ({point.origin})" for point in wishes)
        raise SynchronizationError(
            f"race on {hazard.before.access.buffer}: {hazard.witness}, and no barrier may stand between: {names}",
            at=wishes[-1].origin,
            hint="remove no_sync from the last load before the use; one barrier behind the last load covers all of them",
        )

    def _merged(self, items: _Items, barriers: Mapping[int, Barrier]) -> tuple[tuple[Stmt, ...], Summary]:
        merged: list[Stmt] = []
        parts: list[Summary] = []
        for position in range(len(items.statements) + 1):
            if position in barriers:
                merged.append(barriers[position])
                parts.append(of_barrier(barriers[position].scope, self.scopes))
            if position < len(items.statements):
                merged += items.statements[position]
                parts.append(items.summaries[position])
        return tuple(merged), joined(parts, self.scopes)


# ---------------------------------------------------------------------------------------------- what a barrier is for


def credited(hazards: Iterable[Hazard], chosen: Mapping[int, Scope], names: Sequence[str]) -> dict[int, str]:
    """For each barrier what it orders, each hazard credited to one: to one that already does the like, else to the first on its way."""
    candidates = [(hazard, [at for at in hazard.interval.positions if at in chosen and hazard.interval.met(at, chosen[at])]) for hazard in hazards]
    done: dict[int, set[tuple[str, bool]]] = {}
    for hazard, barriers in sorted(candidates, key=lambda one: len(one[1])):
        what = (hazard.before.access.buffer, hazard.frees)
        ordered = (at for at in barriers if what in done.get(at, ()))
        done.setdefault(next(ordered, barriers[0]), set()).add(what)
    return {position: _reason(what, names) for position, what in done.items()}


def _reason(what: set[tuple[str, bool]], names: Sequence[str]) -> str:
    """Buffers complete (written before) or free again (read before, written behind), in the order of the kernel."""
    complete = ", ".join(name for name in names if (name, False) in what)
    free = ", ".join(name for name in names if (name, True) in what)
    if complete == free:
        return f"{complete} complete and free again"
    return "; ".join([f"{complete} complete"] * bool(complete) + [f"{free} free again"] * bool(free))
