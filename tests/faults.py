"""Faults injected into the synchronization of a kernel: waits, barriers, commits, fences and stages of its final IR."""

import attrs

from fireiron import ir
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.values.expr import Mod, mod
from fireiron.values.machine import SH


def located(body, kind, path=()):
    """`(path, statement)` of all statements of a kind."""
    for position, stmt in enumerate(body):
        if isinstance(stmt, kind):
            yield (*path, position), stmt
        if isinstance(stmt, ir.For):
            yield from located(stmt.body, kind, (*path, position))


def list_at(body, path):
    """The list that contains the statement of a path."""
    for position in path[:-1]:
        body = body[position].body
    return list(body)


def with_list(body, path, statements):
    """The statements with another list at the end of a path."""
    if len(path) == 1:
        return tuple(statements)
    position = path[0]
    inner = attrs.evolve(body[position], body=with_list(body[position].body, path[1:], statements))
    return (*body[:position], inner, *body[position + 1 :])


def faults(kernel):
    """`(name, faulty kernel)`: each wait, barrier, commit and fence changed in all ways, and stages used too early."""
    for path, stmt in located(kernel.body, (ir.Wait, ir.Barrier, ir.Commit, ir.Fence)):
        for name, statements in _at(kernel, list_at(kernel.body, path), path[-1]):
            yield f"{name}: {stmt} at {path}", attrs.evolve(kernel, body=with_list(kernel.body, path, statements))
    for name, change in (("one stage less", _one_stage_less), ("stored a stage further", _one_stage_further)):
        changed = attrs.evolve(kernel, body=_staged(kernel, kernel.body, change))
        if changed != kernel:
            yield name, changed


def dropped(kernel):
    """`(statement, kernel without it)` for each wait, barrier, commit, fence, acquire and release, including those of roles."""
    kinds = (ir.Wait, ir.Barrier, ir.Commit, ir.Fence, ir.Acquire, ir.Release)
    for number in range(sum(isinstance(one, kinds) for one in ir.statements(kernel.body))):
        seen = []

        def drop(statement, number=number, seen=seen):
            seen += [statement] if isinstance(statement, kinds) else []
            return () if isinstance(statement, kinds) and len(seen) - 1 == number else (statement,)

        body = ir.rewritten(kernel.body, drop)
        yield seen[number], attrs.evolve(kernel, body=body)


def _at(kernel, body, position):
    """The list with a fault at a position."""
    stmt, before, after = body[position], body[:position], body[position + 1 :]
    yield "dropped", before + after
    if isinstance(stmt, ir.Wait):
        yield "raised", [*before, attrs.evolve(stmt, groups=stmt.groups + 1), *after]
        if stmt.mechanism is WGMMA_GROUPS and after and isinstance(after[0], ir.Exec):
            yield "behind the next statement", [*before, after[0], stmt, *after[1:]]
    elif isinstance(stmt, ir.Fence):
        if after and (stmt.kind is ir.FenceKind.WGMMA_REGISTERS or isinstance(after[0], ir.Barrier)):
            yield "behind the next statement", [*before, after[0], stmt, *after[1:]]
    elif isinstance(stmt, ir.Barrier):
        if stmt.scope == ir.BLOCK_SCOPE and kernel.threads > 32:
            yield "narrowed", [*before, attrs.evolve(stmt, scope=ir.WARP_SCOPE), *after]
        waits = before[-1:] if before and isinstance(before[-1], ir.Wait) else []
        if waits:
            yield "before its wait", [*before[:-1], stmt, *waits, *after]
        rest = after
        target = next((number for number, other in enumerate(rest) if _is_shared(kernel, other)), None)
        if target is not None:
            start = before[: len(before) - len(waits)]
            yield "behind the next touch", [*start, *rest[: target + 1], *waits, stmt, *rest[target + 1 :]]


def _is_shared(kernel, statement):
    return any(kernel.buffer(access.buffer).memory == SH for one, _ in ir.execs((statement,)) for access in one.accesses)


def _staged(kernel, body, change):
    result = []
    for stmt in body:
        if isinstance(stmt, ir.For):
            stmt = attrs.evolve(stmt, body=_staged(kernel, stmt.body, change))
        elif isinstance(stmt, ir.Exec):
            accesses = [
                change(access) if kernel.buffer(access.buffer).memory == SH and isinstance(access.copy, Mod) else access
                for access in stmt.accesses
            ]
            stmt = attrs.evolve(stmt, accesses=tuple(accesses))
        result.append(stmt)
    return tuple(result)


def _one_stage_less(access):
    return attrs.evolve(access, copy=mod(access.copy.left, access.copy.right - 1))


def _one_stage_further(access):
    return attrs.evolve(access, copy=mod(access.copy.left + 1, access.copy.right)) if access.write else access
