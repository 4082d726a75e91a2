"""Traces: what each agent of a block does, in order, for one choice of lengths of the loops that are known only at run time.

An *agent* is a warp. Each kind of statement has a rule that says what it adds to a trace; a kind without a rule is refused.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import attrs

from fireiron.check.races.loops import Lengths, Loops, decided
from fireiron.check.races.places import Footprint, Pattern, Places, at, stages
from fireiron.check.scene import Scene, Use
from fireiron.ir import Barrier, Comment, Commit, Exec, For, Let, Stmt, Wait, statements, unknown
from fireiron.values.expr import Expr, conjuncts, constant
from fireiron.values.machine import SH


class Kind(enum.IntEnum):
    """What an access does; atomic additions need no order among each other."""

    WRITE = 0
    READ = 1
    ADD = 2


@attrs.frozen(eq=False)
class Touch:
    """An access in some iteration. Touches of one `step` are one execution of one statement, whose own threads order them.

    `under_way` says that its effect comes later than the statement: at the wait for its group.
    """

    step: int
    footprint: Footprint
    fixed: Mapping[str, int]
    kind: Kind
    under_way: bool

    @property
    def use(self) -> Use:
        """The access."""
        return self.footprint.use


Event: TypeAlias = "Touch | Barrier | Commit | Wait"
Trace: TypeAlias = "tuple[Event, ...]"


@attrs.frozen(eq=False, slots=False)
class Site:
    """An access as traces need it.

    `loops` are those around it that are taken as a whole, `guards` the conditions that its pattern applies, `scalar` those that
    loops in order and lengths decide; `needed` names the loops in order that the pattern depends on, `stage` and `copy` are
    the two parts of its copy's number, `stride` the bytes of a copy.
    """

    use: Use
    loops: tuple[For, ...]
    guards: tuple[Expr, ...]
    scalar: tuple[Expr, ...]
    needed: tuple[str, ...]
    stage: Expr
    copy: Expr
    stride: int
    known: frozenset[str]

    @functools.cached_property
    def kind(self) -> Kind:
        """What it does."""
        return Kind.ADD if self.use.atomic else Kind.WRITE if self.use.access.write else Kind.READ

    @functools.cached_property
    def under_way(self) -> bool:
        """Whether its effect comes later."""
        return self.use.statement.asynchronous and self.use.access.write


class Tracer:
    """The program as traces; patterns are made once and used in all iterations."""

    def __init__(self, scene: Scene, places: Places, loops: Loops) -> None:
        self.scene, self.places, self.loops = scene, places, loops
        self.sites: dict[int, list[Site]] = {}
        for use in loops.uses:
            self.sites.setdefault(id(use.statement), []).append(self._site(use))
        self.patterns: dict[Any, Pattern] = {}
        self.steps = 0
        for statement in statements(scene.kernel.body):
            if type(statement) not in _RULES:
                raise unknown(statement, "the race check")

    def trace(self, lengths: Lengths) -> Trace:
        """What each warp does; all warps run the same statements."""
        events: list[Event] = []
        self._list(self.scene.kernel.body, {}, lengths, events)
        return tuple(events)

    def _list(self, body: Sequence[Stmt], fixed: Mapping[str, int], lengths: Lengths, events: list[Event]) -> None:
        for statement in body:
            _RULES[type(statement)](self, statement, fixed, lengths, events)

    def _ordering(self, statement: Any, fixed: Mapping[str, int], lengths: Lengths, events: list[Event]) -> None:
        events.append(statement)

    def _nothing(self, statement: Any, fixed: Mapping[str, int], lengths: Lengths, events: list[Event]) -> None:
        pass

    def _loop(self, statement: For, fixed: Mapping[str, int], lengths: Lengths, events: list[Event]) -> None:
        if constant(statement.extent) == 0:
            return
        if id(statement) not in self.loops.ordered:
            self._list(statement.body, fixed, lengths, events)
            return
        for value in self.loops.iterations(statement, fixed, lengths) if self.loops.matters(statement) else ():
            self._list(statement.body, {**fixed, statement.var.name: value}, lengths, events)

    def _exec(self, statement: Exec, fixed: Mapping[str, int], lengths: Lengths, events: list[Event]) -> None:
        for site in self.sites.get(id(statement), ()):
            if all(decided(guard, self.scene, fixed, lengths) is not False for guard in site.scalar):
                events.append(Touch(self.steps, self._footprint(site, fixed), fixed, site.kind, site.under_way))
                self.steps += not statement.collective
        self.steps += statement.collective

    # -------------------------------------------------------------------------------------- accesses

    def _site(self, use: Use) -> Site:
        ordered = self.loops.in_order(use.loops)
        whole = tuple(loop for loop in use.loops if loop.var.name not in ordered)
        known = frozenset({"thread", *(loop.var.name for loop in use.loops)})
        conditions = conjuncts(use.statement.active)
        guards = tuple(one for one in conditions if self.scene.roots(one) <= known and not self.scene.roots(one) <= ordered)
        buffer = self.scene.kernel.buffer(use.access.buffer)
        stage, copy = stages(self.scene, use.access.copy, ordered)
        parts = (*use.access.base, copy) if buffer.memory == SH else self.places.parts(use.access)
        bounded = tuple(base for base, bound in zip(use.access.base, use.access.bounds, strict=True) if bound is not None)
        needed = tuple(sorted(self.scene.needs((*parts, *bounded, *guards)) & ordered))
        stride = buffer.elements.high * buffer.dtype.bytes if buffer.memory == SH else 0
        return Site(use, whole, guards, tuple(one for one in conditions if one not in guards), needed, stage, copy, stride, known)

    def _footprint(self, site: Site, fixed: Mapping[str, int]) -> Footprint:
        values = {name: fixed[name] for name in site.needed}
        key = (id(site), *values.values())
        pattern = self.patterns.get(key)
        if pattern is None:
            pattern = self.patterns[key] = self.places.pattern(site.use, site.copy, site.loops, values, site.guards, site.known)
        shift = at(site.stage, fixed) * site.stride if site.stride else 0
        return self.places.space(site.use.access.buffer).footprint(pattern, shift)


_RULES: Mapping[type[Stmt], Callable[..., None]] = {
    Exec: Tracer._exec,
    For: Tracer._loop,
    Let: Tracer._nothing,
    Comment: Tracer._nothing,
    Barrier: Tracer._ordering,
    Commit: Tracer._ordering,
    Wait: Tracer._ordering,
}
"""What a statement adds to a trace."""
