"""What a kind of fault is, and where in a kernel faults are planted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from fireiron import ir

Planted = tuple[str, Callable[[], ir.Kernel]]
"""Where a fault is, and what makes the kernel with it."""

FINDERS = ("synchronisation", "index", "resources")
"""What a fault is about: of the first both detectors of races must find it, of the others anyone."""

DEPTH: Any = "threads pipeline fused"
RINGS: Any = "ring share"
PRODUCERS: Any = "ring cluster turns dynamic share attention warpgroups hopper-tasks"
EVERY: Any = f"{DEPTH} {PRODUCERS} ampere-tasks"


@attrs.frozen
class Kind:
    """A kind of fault: all places of a kernel where it can be planted, and the forms of kernels in which it is looked for.

    `needless` says, of a place that no detector finds, by which reason of this kind it may make no difference; the runs that show it are
    the subject's.
    """

    name: str
    about: str = attrs.field(validator=attrs.validators.in_(FINDERS))
    forms: tuple[str, ...] = attrs.field(converter=lambda text: tuple(text.split()))
    plant: Callable[[ir.Kernel], Iterator[Planted]]
    needless: str = ""


@attrs.frozen(eq=False)
class Spot:
    """A statement by the lists that lead to it: in each, a position, and which list of that statement comes next."""

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
        """The statements in front of it in its list."""
        return self.body[: self.position]

    @property
    def behind(self) -> tuple[ir.Stmt, ...]:
        """The statements behind it in its list."""
        return self.body[self.position + 1 :]

    def with_list(self, statements: Iterable[ir.Stmt]) -> ir.Kernel:
        """The kernel with another list in the place of the one in which it stands."""
        return attrs.evolve(self.kernel, body=_with_list(self.kernel.body, self.path, tuple(statements)))

    def with_one(self, *statements: ir.Stmt) -> ir.Kernel:
        """The kernel with others in the place of the statement."""
        return self.with_list((*self.before, *statements, *self.behind))

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
    """All statements of some kinds, in program order."""

    def inside(body: tuple[ir.Stmt, ...], path: tuple[tuple[int, int], ...]) -> Iterator[Spot]:
        for position, one in enumerate(body):
            if isinstance(one, kinds) and when(one):
                yield Spot(kernel, path, body, position)
            for number, child in enumerate(one.children):
                yield from inside(child, (*path, (position, number)))

    return inside(kernel.body, ())


def changes(
    kinds: Any, change: Callable[[Any], Any], when: Callable[[Any], bool] = lambda one: True
) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """Faults that put another statement, or several, or none, in the place of one; where `change` gives the same there is none."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for spot in spots(kernel, kinds, when):
            found = change(spot.one)
            found = found if isinstance(found, tuple) else (found,)
            if found != (spot.one,):
                yield str(spot), lambda spot=spot, found=found: spot.with_one(*found)

    return plant


def dropped(one: ir.Stmt) -> tuple[ir.Stmt, ...]:
    """No statement in its place."""
    return ()


def is_shared(kernel: ir.Kernel, statement: ir.Stmt) -> bool:
    """Whether a statement, or one inside it, touches shared memory."""
    return any(kernel.buffer(access.buffer).memory.of_block for one, _ in ir.execs((statement,)) for access in one.accesses)
