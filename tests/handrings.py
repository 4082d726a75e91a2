"""Hand-made kernels with a ring: four consumer warps and one elected producer thread, with an injected fault if requested."""

import itertools
from types import SimpleNamespace

import attrs
import making
from touching import PROXY_FENCE, SM_80, SPEC, WARP_BARRIER, Engine, T, buffer, reads, touch, writes

from fireiron import *
from fireiron import ir
from fireiron.check import AccessTrace, check_races
from fireiron.check.access_trace import Use
from fireiron.check.races.footprints import Footprint
from fireiron.check.races.traces import AccessEvent, Kind
from fireiron.ir.mechanism import AT_ONCE
from fireiron.ir.mechanisms.tma import TMA_LOADS
from fireiron.values.expr import ONE, Var, as_expr, equal, less, minimum

WIDTH = 128
"""Elements per stage."""

BLOCK, ITERATION, TILE, J = Var("block", 0, 63), Var("turn", 0, 63), Var("tile", 0, 63), Var("j", 0, 63)
TAKEN = Var("taken", 0, 1 << 20)
LANE_0 = equal(T % 32, 0)
NUMBERS = itertools.count(1000)


def ring(stages=2, name="ring", buffers=("s",), consumers=4, **fields):
    """A ring of a buffer."""
    return making.ring(name, stages, buffers, bytes=WIDTH * 4, consumers=consumers, **fields)


def staged(stages=2, name="s", offset=0):
    """The buffer of a ring."""
    plain = buffer(name, WIDTH, offset)
    return attrs.evolve(plain, tensor=attrs.evolve(plain.tensor, copies=stages))


def load(fill, stages=2, width=WIDTH, name="ring", to="s", **options):
    """A load into the stage of a fill."""
    fill = as_expr(fill)
    how = {"copy": fill % stages, "instruction": Engine(), "mechanism": TMA_LOADS, "ring": name, "fill_index": fill, **options}
    return touch(0, write=True, name=to, width=width, **how)


def full(fill, name="ring"):
    return making.acquire(name, ir.StageState.FULL, as_expr(fill))


def empty(fill, name="ring"):
    return making.acquire(name, ir.StageState.EMPTY, as_expr(fill))


def filled(fill, name="ring", **options):
    return making.release(name, ir.StageState.FULL, as_expr(fill), **options)


def emptied(fill, name="ring", active=LANE_0, **options):
    return making.release(name, ir.StageState.EMPTY, as_expr(fill), active=active, **options)


def produce(fill, stages=2):
    """The producer's statements for a fill."""
    return empty(fill), filled(fill), load(fill, stages)


def consume(fill, stages=2, place=T):
    """The consumer's statements for a fill."""
    return full(fill), reads(place, copy=as_expr(fill) % stages), PROXY_FENCE, WARP_BARRIER, emptied(fill)


def roles(consumer, producer, threads=128):
    """The roles, in order."""
    return making.roles(
        (making.role("consumers", 0, threads, tuple(consumer)), making.role("producer", threads, 32, tuple(producer), elected=True))
    )


def ringed(consumer, producer, *, stages=2, rings=None, buffers=None, grid=1, before=(), after=(), symbols=(), threads=128, **options):
    """The kernel with the given roles."""
    rings = (ring(stages, consumers=threads // 32),) if rings is None else rings
    buffers = (staged(stages),) if buffers is None else buffers
    body = (*before, roles(consumer, producer, threads), *after)
    options = {"rings": tuple(rings), "workers": threads, **options}
    return making.kernel("k", SM_80, as_expr(grid), threads + 32, tuple(buffers), tuple(symbols), body, SPEC, **options)


def over_tiles(tiles, blocks, *body, increment=ONE, prior_iterations=None, first=0, step=1):
    """The loop of a block over its tiles, with the number of iterations of the inner loop in earlier tiles."""
    tiles = as_expr(tiles)
    extent = tiles // blocks + less(BLOCK, tiles % blocks)
    return making.loop(
        ITERATION,
        extent,
        (making.let(TILE, BLOCK + ITERATION * blocks), *body),
        prior_iterations=prior_iterations,
        increment=increment,
        first=first,
        step=step,
    )


def grid_of(tiles, blocks):
    """The grid of such a kernel."""
    return minimum(as_expr(tiles), as_expr(blocks))


def event(
    atoms,
    kind=Kind.WRITE,
    step=None,
    mechanism=AT_ONCE,
    engine=False,
    fill=None,
    use=None,
    warps=8,
    elements=32,
    stage=0,
    name="s",
):
    """An access to atoms by each warp, or by the given warps; a separate statement."""
    if use is None:
        statement = (reads if kind is Kind.READ else writes)(T, width=elements, mechanism=mechanism, name=name)
        statement = attrs.evolve(statement, instruction=Engine() if engine else statement.instruction)
        use = Use(statement, (), statement.accesses[0])
    by_warp = [atoms.get(warp, []) for warp in range(warps)] if isinstance(atoms, dict) else [list(atoms)] * warps
    by_engine = use.statement.instruction.mechanism.by_engine
    pattern = SimpleNamespace(use=use, width=4, mechanism=use.statement.mechanism, by_engine=by_engine)
    footprint = Footprint(None, pattern, 0, by_warp)
    asynchronous = mechanism is not AT_ONCE
    return AccessEvent(next(NUMBERS) if step is None else step, footprint, {}, kind, asynchronous, fill, stage)


def messages_of(program):
    """The messages of the race check, all of which are errors."""
    findings = check_races(AccessTrace(program))
    assert all(one.severity == "error" and one.kind == "race" for one in findings)
    return [one.message for one in findings]


__all__ = [name for name in dir() if not name.startswith("_")]
