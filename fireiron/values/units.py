"""Index expressions for the unit of a level that a thread belongs to, and for its number there, from its number in the block."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator

from fireiron.errors import DecompositionError
from fireiron.values.expr import ZERO, Expr, Var, as_expr
from fireiron.values.layout import Layout, complement, reading, sum_of_digits
from fireiron.values.machine import LEVELS, Block, Kernel, Level, Thread

BLOCK = Var("block", 0, 2**31 - 1)
"""`blockIdx.x`."""

THREAD = Var("thread", 0, 1023)
"""`threadIdx.x`."""


@functools.lru_cache(maxsize=256)
def _numbering(level: Level) -> tuple[Layout, Layout]:
    """Layouts that map a position in the parent to the thread's number in its unit, and to the unit's number.

    They invert `position = layout(thread in the unit) + complement(unit)`.

    The last digit of the unit's number is unbounded, since a parent may be a block of any size.
    """
    layout = level.layout or Layout(1)
    units = complement(layout, 2 * _span(layout))
    return reading(_weighted(layout)), reading(_weighted(units), closed=False)


def _weighted(layout: Layout) -> Iterator[tuple[int, int, int]]:
    """The leaves as (stride, size, weight in the integer coordinate)."""
    weight = 1
    for size, stride in layout.modes:
        if size > 1:
            yield stride, size, weight
        weight *= size


def _span(layout: Layout) -> int:
    """The size of the range from 0 that consists of whole copies of a layout and its complement."""
    return max((stride * size for size, stride in layout.modes), default=1)


def thread_of(level: Level) -> Level:
    """The level of single threads of a level: that of the smallest enclosing group that has one.

    >>> from fireiron.values.machine import QuadPair, Warpgroup
    >>> thread_of(QuadPair), thread_of(Warpgroup)
    (Lane, Thread)
    """
    groups = (level, *level.ancestors())
    return next((one for group in groups for one in LEVELS if one.threads == 1 and one.parent == group), Thread)


def thread_name(level: Level, word: str) -> str:
    """A name for a thread's number in its unit of a level in generated code: `lane` in a warp, the word with a prefix such as `quadpair_`
    in others.
    """
    unit = thread_of(level)
    return unit.label if unit.parent == level else f"{level.label}_{word}"


def index_in(level: Level, thread: Expr = THREAD) -> Expr:
    """A thread's number inside its unit of a level."""
    if level in (Block, Kernel) or level.parent is None:
        return thread
    return as_expr(sum_of_digits(index_in(level.parent, thread), _numbering(level)[0].digits))


def same_threads(level: Level, other: Level) -> bool:
    """Whether the units of two levels are the same threads in the same order; instructions compare levels this way, not by name.

    >>> from fireiron.values.machine import Block, Level, Warp
    >>> same_threads(Level("Mine", Block, Layout(32)), Warp)
    True
    """
    return level is other or (level.threads == other.threads is not None and _threads_alike(level, other))


@functools.lru_cache(maxsize=256)
def _threads_alike(level: Level, other: Level) -> bool:
    return index_in(level) == index_in(other)


def unit_in(level: Level, parent: Level, thread: Expr = THREAD) -> Expr:
    """The number of a thread's unit of `level` in its unit of `parent`; a `DecompositionError` if one does not contain the other."""
    if level == parent:
        return ZERO
    if level.threads == 1:
        return index_in(parent, thread)
    if level.parent is None:
        raise DecompositionError(f"{level} is not a group of threads inside {parent}")
    inside = as_expr(sum_of_digits(index_in(level.parent, thread), _numbering(level)[1].digits))
    if level.parent == parent:
        return inside
    count = count_in(level, level.parent)
    return unit_in(level.parent, parent, thread) * count + inside


def count_in(level: Level, parent: Level, threads: int | None = None) -> int:
    """The number of whole units of `level` in one unit of `parent`, for a block of `threads` threads; an error if that is unknown.

    >>> from fireiron.values.machine import QuadPair
    >>> [count_in(QuadPair, Block, threads) for threads in (8, 20, 32, 48)]
    [0, 1, 4, 4]
    """
    total = parent.threads if parent.threads is not None else threads
    if total is None or level.threads is None:
        raise DecompositionError(f"the number of {level} units in a {parent} is not known yet")
    left = 0 if parent.threads is not None else total % _period(level)
    return (total - left) // level.threads + (_first_part(level, left) if left >= level.threads else 0)


@functools.lru_cache(maxsize=256)
def _first_part(level: Level, threads: int) -> int:
    """The number of units, from unit 0 on, that are completely among the first `threads` threads of a period; units may interleave."""
    counts = Counter(unit_in(level, Block).evaluate({THREAD.name: thread}) for thread in range(threads))
    return next(unit for unit in itertools.count() if counts[unit] != level.threads)


def threads_for(units: int, level: Level) -> int:
    """The smallest number of threads, numbered from 0, that contain `units` units of a level.

    Interleaved units need the same threads: even two of a warp's four quad-pairs need all its 32 threads.
    """
    assert level.threads is not None
    period = _period(level)
    return -(-units * level.threads // period) * period


def _period(level: Level) -> int:
    """The number of consecutive threads that consist of whole units."""
    period = _span(level.layout or Layout(1))
    if level.parent is None or level.parent.threads is None:
        return period
    around = _period(level.parent)
    return period if around == level.parent.threads else around


def check_below(level: Level, current: Level, within: object, at: str | None) -> None:
    """Refuse a level that is not below the current one."""
    if not isinstance(level, Level):
        raise DecompositionError("to(level): the argument must be a level", got=level, legal=LEVELS[1:], at=at)
    detached = level.threads == 1 and level.parent is not None and current in level.parent.ancestors()
    if current.is_above_launch:
        raise DecompositionError(
            f"to({level}): {current} consists of launches, but this step divides the work of one launch", within=within, at=at,
            hint=f"first a step that divides {current} into launches",
        )  # fmt: skip
    if (level.is_below(current) and not detached and not current.is_launch) or (level == Block and current.is_launch):
        return
    hint = None
    if level.threads is not None and current.is_launch:
        hint = "distribute tiles over Block first: .tile(...).to(Block)"
    elif detached:
        hint = f"distribute tiles over {level.parent} first" + (", or use Thread" if level.threads == 1 else "")
    raise DecompositionError(f"to({level}): {level} is not below {current}, the level of this spec", within=within, at=at, hint=hint)
