"""Faults planted in the synchronisation of a kernel: waits, barriers, commits, fences and stages of its final IR."""

import attrs

from fireiron import ir
from fireiron.ir.mechanisms.wgmma import WGMMA_GROUPS
from fireiron.values.expr import Mod, mod
from fireiron.values.machine import SH


def located(body, kind, path=()):
    """`(path, statement)` of all statements of a kind."""
    for position, one in enumerate(body):
        if isinstance(one, kind):
            yield (*path, position), one
        if isinstance(one, ir.For):
            yield from located(one.body, kind, (*path, position))


def list_at(body, path):
    """The list in which a path ends."""
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
    """`(name, faulty kernel)`: each wait, barrier, commit and fence in all ways, and stages used too early."""
    for path, one in located(kernel.body, (ir.Wait, ir.Barrier, ir.Commit, ir.Fence)):
        for name, statements in _at(kernel, list_at(kernel.body, path), path[-1]):
            yield f"{name}: {one} at {path}", attrs.evolve(kernel, body=with_list(kernel.body, path, statements))
    for name, change in (("one stage less", _one_stage_less), ("stored a stage further", _one_stage_further)):
        changed = attrs.evolve(kernel, body=_staged(kernel, kernel.body, change))
        if changed != kernel:
            yield name, changed


def dropped(kernel):
    """`(statement, kernel without it)` for each wait, barrier, commit, fence, acquire and release, those of roles too."""
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
    one, before, behind = body[position], body[:position], body[position + 1 :]
    yield "dropped", before + behind
    if isinstance(one, ir.Wait):
        yield "raised", [*before, attrs.evolve(one, groups=one.groups + 1), *behind]
        if one.mechanism is WGMMA_GROUPS and behind and isinstance(behind[0], ir.Exec):
            yield "behind the next statement", [*before, behind[0], one, *behind[1:]]
    elif isinstance(one, ir.Fence):
        if behind and (one.kind is ir.FenceKind.WGMMA_REGISTERS or isinstance(behind[0], ir.Barrier)):
            yield "behind the next statement", [*before, behind[0], one, *behind[1:]]
    elif isinstance(one, ir.Barrier):
        if one.scope == ir.BLOCK_SCOPE and kernel.threads > 32:
            yield "narrowed", [*before, attrs.evolve(one, scope=ir.WARP_SCOPE), *behind]
        waits = before[-1:] if before and isinstance(before[-1], ir.Wait) else []
        if waits:
            yield "before its wait", [*before[:-1], one, *waits, *behind]
        rest = behind
        target = next((number for number, other in enumerate(rest) if _is_shared(kernel, other)), None)
        if target is not None:
            start = before[: len(before) - len(waits)]
            yield "behind the next touch", [*start, *rest[: target + 1], *waits, one, *rest[target + 1 :]]


def _is_shared(kernel, statement):
    return any(kernel.buffer(access.buffer).memory == SH for one, _ in ir.execs((statement,)) for access in one.accesses)


def _staged(kernel, body, change):
    result = []
    for one in body:
        if isinstance(one, ir.For):
            one = attrs.evolve(one, body=_staged(kernel, one.body, change))
        elif isinstance(one, ir.Exec):
            accesses = [
                change(access) if kernel.buffer(access.buffer).memory == SH and isinstance(access.copy, Mod) else access
                for access in one.accesses
            ]
            one = attrs.evolve(one, accesses=tuple(accesses))
        result.append(one)
    return tuple(result)


def _one_stage_less(access):
    return attrs.evolve(access, copy=mod(access.copy.left, access.copy.right - 1))


def _one_stage_further(access):
    return attrs.evolve(access, copy=mod(access.copy.left + 1, access.copy.right)) if access.write else access
