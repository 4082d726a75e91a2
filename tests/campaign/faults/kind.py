"""Kinds of faults, and the positions in a kernel where they are injected."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from fireiron import ir

Planted = tuple[str, Callable[[], ir.Kernel]]
"""The position of a fault, and the function that makes the faulty kernel."""

FINDERS = ("synchronization", "index", "resources")
"""The family of a fault: for the first, both race detectors must report it, for the others any detector."""

DEPTH: Any = "threads pipeline fused"
RINGS: Any = "ring share"
PRODUCERS: Any = "ring cluster turns dynamic share attention warpgroups placed hopper-tasks readers storing"
EVERY: Any = f"{DEPTH} {PRODUCERS} ampere-tasks bulk scan"


@attrs.frozen
class Kind:
    """A kind of fault: all positions of a kernel where it can be injected, and the forms of kernels in which it is tried.

    `needless` states why a fault that no detector reports may have no effect; the runs that show this belong to the subject.
    """

    name: str
    about: str = attrs.field(validator=attrs.validators.in_(FINDERS))
    forms: tuple[str, ...] = attrs.field(converter=lambda text: tuple(text.split()))
    plant: Callable[[ir.Kernel], Iterator[Planted]]
    needless: str = ""


@attrs.frozen(eq=False)
class Spot:
    """A statement by the lists that lead to it: in each list a position, and the list of that statement that comes next."""

    kernel: ir.Kernel
    path: tuple[tuple[int, int], ...]
    body: tuple[ir.Stmt, ...]
    position: int

    @property
    def one(self) -> Any:
        """The statement."""
        return self.body[self.position]

    @property
    def before(self) -> tuple[ir.Stmt, ...]:
        """The preceding statements in its list."""
        return self.body[: self.position]

    @property
    def after(self) -> tuple[ir.Stmt, ...]:
        """The following statements in its list."""
        return self.body[self.position + 1 :]

    def with_list(self, statements: Iterable[ir.Stmt]) -> ir.Kernel:
        """The kernel with the list that contains the statement replaced."""
        return attrs.evolve(self.kernel, body=_with_list(self.kernel.body, self.path, tuple(statements)))

    def with_one(self, *statements: ir.Stmt) -> ir.Kernel:
        """The kernel with the statement replaced."""
        return self.with_list((*self.before, *statements, *self.after))

    def __str__(self) -> str:
        return f"{type(self.one).__name__} at {'/'.join(str(place) for place, _ in self.path)}{'/' if self.path else ''}{self.position}"


def _with_list(body: tuple[ir.Stmt, ...], path: tuple[tuple[int, int], ...], statements: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    if not path:
        return statements
    (place, number), *rest = path
    children = list(body[place].children)
    children[number] = _with_list(children[number], tuple(rest), statements)
    return (*body[:place], body[place].rebuilt(tuple(children)), *body[place + 1 :])


def spots(kernel: ir.Kernel, kinds: Any, when: Callable[[Any], bool] = lambda one: True) -> Iterator[Spot]:
    """All statements of some classes, in program order."""

    def inside(body: tuple[ir.Stmt, ...], path: tuple[tuple[int, int], ...]) -> Iterator[Spot]:
        for position, stmt in enumerate(body):
            if isinstance(stmt, kinds) and when(stmt):
                yield Spot(kernel, path, body, position)
            for number, child in enumerate(stmt.children):
                yield from inside(child, (*path, (position, number)))

    return inside(kernel.body, ())


def changes(
    kinds: Any, change: Callable[[Any], Any], when: Callable[[Any], bool] = lambda one: True
) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Faults that replace a statement by another one, several, or none; no fault if `change` returns the statement itself."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for spot in spots(kernel, kinds, when):
            replacement = change(spot.one)
            replacement = replacement if isinstance(replacement, tuple) else (replacement,)
            if replacement != (spot.one,):
                yield str(spot), lambda spot=spot, found=replacement: spot.with_one(*found)

    return plant


def dropped(stmt: ir.Stmt) -> tuple[ir.Stmt, ...]:
    """Remove the statement."""
    return ()


def is_shared(kernel: ir.Kernel, statement: ir.Stmt) -> bool:
    """Whether a statement, or one inside it, accesses shared memory."""
    return any(kernel.buffer(access.buffer).memory.of_block for one, _ in ir.execs((statement,)) for access in one.accesses)
