"""Faults in the resources of a kernel and in its printed instructions: vectors, offsets, bytes, threads, blocks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import attrs
import making

from campaign.faults.kind import DEPTH, EVERY, PRODUCERS, Kind, Planted, spots
from fireiron import ir
from fireiron.values.expr import Var, as_expr, constant

IN_SHARED = "threads pipeline fused ring share attention hopper-tasks ampere-tasks"


def wider(kernel: ir.Kernel) -> Iterator[Planted]:
    """Two adjacent pieces of an operand loaded or stored as one vector."""
    for spot in spots(kernel, ir.Exec, lambda one: bool(one.pieces) and not one.collective):
        for position, pieces in enumerate(spot.one.pieces):
            for at, (first, second) in enumerate(itertools.pairwise(pieces)):
                if first.width == second.width:
                    joined = attrs.evolve(first, width=2 * first.width)
                    changed = (*pieces[:at], joined, *pieces[at + 2 :])
                    changed_stmt = attrs.evolve(spot.one, pieces=(*spot.one.pieces[:position], changed, *spot.one.pieces[position + 1 :]))
                    yield f"{spot}, {spot.one.accesses[position].buffer}", lambda spot=spot, one=changed_stmt: spot.with_one(one)
                    break


def with_buffer(change: Callable[[ir.Kernel, ir.Buffer], Iterator[ir.Buffer]]) -> Callable[[ir.Kernel], Iterator[Planted]]:
    """One buffer at another shared-memory offset."""

    def plant(kernel: ir.Kernel) -> Iterator[Planted]:
        for number, buffer in enumerate(kernel.buffers):
            if buffer.memory.of_block:
                for changed in change(kernel, buffer):
                    buffers = (*kernel.buffers[:number], changed, *kernel.buffers[number + 1 :])
                    yield f"{buffer.name} at byte {changed.offset}", lambda buffers=buffers: attrs.evolve(kernel, buffers=buffers)

    return plant


def misaligned(kernel: ir.Kernel, buffer: ir.Buffer) -> Iterator[ir.Buffer]:
    """One element further."""
    yield attrs.evolve(buffer, offset=buffer.offset + buffer.dtype.bytes)


def upon_another(kernel: ir.Kernel, buffer: ir.Buffer) -> Iterator[ir.Buffer]:
    """In the bytes of another buffer."""
    for other in kernel.buffers:
        if other.memory.of_block and other.name != buffer.name and not buffer.shares(other):
            yield attrs.evolve(buffer, offset=other.offset)


def upon_barriers(kernel: ir.Kernel) -> Iterator[Planted]:
    """The mbarriers of a ring in the bytes of a buffer, or of another ring."""
    for number, ring in enumerate(kernel.rings):
        others = [one.offset for one in kernel.buffers if one.memory.of_block]
        for offset in [*others, *(one.offset for one in kernel.rings if one is not ring)]:
            rings = (*kernel.rings[:number], attrs.evolve(ring, offset=offset), *kernel.rings[number + 1 :])
            yield f"{ring.name} at byte {offset}", lambda rings=rings: attrs.evolve(kernel, rings=rings)


def barriers_misaligned(kernel: ir.Kernel) -> Iterator[Planted]:
    """The mbarriers of a ring misaligned."""
    for number, ring in enumerate(kernel.rings):
        for more in (1, 4):
            rings = (*kernel.rings[:number], attrs.evolve(ring, offset=ring.offset + more), *kernel.rings[number + 1 :])
            yield f"{ring.name}, {more} bytes on", lambda rings=rings: attrs.evolve(kernel, rings=rings)


def with_too_few_bytes(kernel: ir.Kernel) -> Iterator[Planted]:
    """Less shared memory than the buffers occupy."""
    if kernel.shared_bytes:
        yield "16 bytes less", lambda: attrs.evolve(kernel, shared_bytes=kernel.shared_bytes - 16)


def with_other_threads(kernel: ir.Kernel) -> Iterator[Planted]:
    """A warp more or less, of those to which tiles are assigned."""
    for more in (-32, 32):
        if kernel.workers + more > 0:
            changed = {"threads": kernel.threads + more, "workers": kernel.workers + more}
            yield f"{more} threads", lambda changed=changed: attrs.evolve(kernel, **changed)


def with_other_blocks(kernel: ir.Kernel) -> Iterator[Planted]:
    """One block less; with persistent blocks any number is right."""
    yield "a block less", lambda: attrs.evolve(kernel, grid=kernel.grid - 1)


def with_a_block_more(kernel: ir.Kernel) -> Iterator[Planted]:
    """One block too many, or a cluster, whose number all expressions of the kernel use."""
    blocks = constant(kernel.grid)
    if blocks is not None:
        more = blocks + (1 if kernel.cluster is None else kernel.cluster.blocks)
        wider = {kernel.block: Var(kernel.block.name, 0, more - 1)}
        body = ir.rewritten(kernel.body, lambda one: (one.substitute(wider),))
        yield "a block more", lambda: attrs.evolve(kernel, grid=as_expr(more), body=body)


def with_too_many_registers(kernel: ir.Kernel) -> Iterator[Planted]:
    """Roles whose threads request more registers than an SM has, or an invalid number."""
    for spot in spots(kernel, ir.Roles):
        for number, role in enumerate(spot.one.roles):
            for registers in (504, 100, 8):
                if role.registers:
                    roles = list(spot.one.roles)
                    roles[number] = attrs.evolve(role, registers=registers)
                    yield f"{role.name}, {registers}", lambda spot=spot, roles=roles: spot.with_one(making.roles(tuple(roles)))


def _kind(name: str, forms: str, plant: Callable[[ir.Kernel], Iterator[Planted]], needless: str = "") -> Kind:
    return Kind(name, "resources", forms, plant, needless)


KINDS = (
    _kind("vector too wide", DEPTH, wider, "the neighbors lie side by side, and under one condition"),
    _kind("buffer misaligned", IN_SHARED, with_buffer(misaligned), "nothing wider than an element goes there, and nothing lies behind"),
    _kind("buffers in the same bytes", IN_SHARED, with_buffer(upon_another), "the one is dead when the other is written"),
    _kind("barriers of a ring in other bytes", PRODUCERS, upon_barriers),
    _kind("barriers of a ring misaligned", PRODUCERS, barriers_misaligned),
    _kind("too few bytes of shared memory", IN_SHARED, with_too_few_bytes, "the last bytes are padding"),
    _kind("another number of threads", EVERY, with_other_threads, "the others have no work"),
    _kind("a block less", "threads pipeline fused ampere-tasks", with_other_blocks),
    _kind("a block more", "threads pipeline fused ring cluster share ampere-tasks", with_a_block_more, "blocks stay, any number of them is right"),
    _kind("registers of roles", PRODUCERS, with_too_many_registers),
)  # fmt: skip
