"""Kernels with a fault: a statement removed, or two exchanged."""

import attrs

from fireiron.ir import Acquire, Barrier, Commit, Exec, Fence, For, Release, Wait

ORDERING = (Barrier, Wait, Fence, Commit, Acquire, Release)


def faults(kernel):
    """Each fault by its name, with its kernel."""
    for name, body in _bodies(kernel.body, ""):
        yield name, attrs.evolve(kernel, body=body)


def _bodies(body, around):
    for number, stmt in enumerate(body):
        where = f"{around}{number}"
        without = (*body[:number], *body[number + 1 :])
        if isinstance(stmt, (Exec, *ORDERING)):
            yield f"without {where} {_called(stmt)}", without
        if number + 1 < len(body) and _moves(stmt) and _moves(body[number + 1]):
            exchanged = (*body[:number], body[number + 1], stmt, *body[number + 2 :])
            yield f"exchanged {where} {_called(stmt)} and {_called(body[number + 1])}", exchanged
        if isinstance(stmt, Release):
            first = next((at + 1 for at, each in enumerate(body) if isinstance(each, Acquire)), number)
            if first < number:
                yield f"moved up {where} {_called(stmt)}", (*body[:first], stmt, *body[first:number], *body[number + 1 :])
        for place, inner in enumerate(stmt.children):
            for name, changed in _bodies(inner, f"{where}."):
                children = tuple(changed if at == place else each for at, each in enumerate(stmt.children))
                yield name, (*body[:number], stmt.rebuilt(children), *body[number + 1 :])


def _moves(stmt):
    """Whether it does work, or orders other statements."""
    return isinstance(stmt, (Exec, For, *ORDERING))


def _called(stmt):
    if isinstance(stmt, Exec):
        return "/".join(stmt.path or ())
    if isinstance(stmt, For):
        return f"For {stmt.var}"
    return f"{type(stmt).__name__} {getattr(stmt, 'ring', '') or (getattr(stmt, 'mechanism', None) and stmt.mechanism.name) or getattr(stmt, 'reason', '')}"
