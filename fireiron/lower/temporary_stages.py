"""Stages of temporaries: iterations of a loop use the copies of a shared buffer alternately, as `stages` of a `set_memory` requests.

    for k: write w; read w   -->   for k: write w[k % stages]; read w[k % stages]

So a thread may write the values of the next iteration while other threads, or MMAs in flight, still read those of this one. The loop is the
innermost one around all accesses to the buffer. Each of its iterations writes what it reads, because loop-carried temporaries have no
stages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from fireiron.ir import Buffer, Exec, For, Kernel, Stmt, execs
from fireiron.ir.rewrite import edited
from fireiron.values.expr import as_expr, constant, mod


def with_stages(kernel: Kernel) -> Kernel:
    """The kernel whose computed temporaries have their requested stages; one if a split has a single iteration, and so no loop."""
    for buffer in kernel.buffers:
        if buffer.tensor.alternating:
            kernel = _staged(kernel, buffer)
    return kernel


def _staged(kernel: Kernel, buffer: Buffer) -> Kernel:
    """The kernel with stages of one buffer."""
    name, stages = buffer.name, buffer.tensor.alternating
    loop = _loop_around(kernel.body, name)
    tensor = attrs.evolve(buffer.tensor, copies=buffer.tensor.copies * (1 if loop is None else stages), alternating=0)
    buffers = tuple(attrs.evolve(one, tensor=tensor) if one is buffer else one for one in kernel.buffers)
    body = kernel.body if loop is None else _in_loop(kernel.body, loop, name, stages)
    return attrs.evolve(kernel, body=body, buffers=buffers)


def _accesses(stmt: Stmt, name: str) -> bool:
    return any(access.buffer == name for inner, _ in execs((stmt,)) for access in inner.accesses)


def _loop_around(body: Sequence[Stmt], name: str) -> For | None:
    """The innermost loop that contains all accesses to a buffer, without the loops of a single statement that fills or reads it."""
    accessing = [stmt for stmt in body if _accesses(stmt, name)]
    if len(accessing) != 1:
        return None
    (stmt,) = accessing
    inner = next((found for child in stmt.children if (found := _loop_around(child, name)) is not None), None)
    if inner is not None or not isinstance(stmt, For) or constant(stmt.extent) == 1:
        return inner
    return stmt


def _in_loop(body: Sequence[Stmt], loop: For, name: str, stages: int) -> tuple[Stmt, ...]:
    """A statement list in which the iterations of a loop use the copies of a buffer alternately."""
    stage = mod(loop.var, as_expr(stages))

    def edit(stmt: Exec) -> Exec:
        accesses = tuple(
            attrs.evolve(access, copy=access.copy * stages + stage) if access.buffer == name else access for access in stmt.accesses
        )
        return attrs.evolve(stmt, accesses=accesses)

    result: list[Stmt] = []
    for stmt in body:
        if stmt is loop:
            period = math.lcm(loop.period or 1, stages)
            stmt = attrs.evolve(loop, body=tuple(edited(loop.body, edit)), period=period)
        elif stmt.children:
            stmt = stmt.rebuilt(tuple(_in_loop(child, loop, name, stages) for child in stmt.children))
        result.append(stmt)
    return tuple(result)


__all__ = ["with_stages"]
