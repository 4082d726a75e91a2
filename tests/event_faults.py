"""Kernels with a fault: a statement less, or two in the other order."""

import attrs

from fireiron.ir import Acquire, Barrier, Commit, Exec, Fence, For, Release, Wait

ORDERING = (Barrier, Wait, Fence, Commit, Acquire, Release)


def faults(kernel):
    """Each fault by its name, with the kernel that has it."""
    for name, body in _bodies(kernel.body, ""):
        yield name, attrs.evolve(kernel, body=body)


def _bodies(body, around):
    for number, one in enumerate(body):
        where = f"{around}{number}"
        without = (*body[:number], *body[number + 1 :])
        if isinstance(one, (Exec, *ORDERING)):
            yield f"without {where} {_called(one)}", without
        if number + 1 < len(body) and _moves(one) and _moves(body[number + 1]):
            exchanged = (*body[:number], body[number + 1], one, *body[number + 2 :])
            yield f"exchanged {where} {_called(one)} and {_called(body[number + 1])}", exchanged
        if isinstance(one, Release):
            first = next((at + 1 for at, each in enumerate(body) if isinstance(each, Acquire)), number)
            if first < number:
                yield f"moved up {where} {_called(one)}", (*body[:first], one, *body[first:number], *body[number + 1 :])
        for place, inner in enumerate(one.children):
            for name, changed in _bodies(inner, f"{where}."):
                children = tuple(changed if at == place else each for at, each in enumerate(one.children))
                yield name, (*body[:number], one.rebuilt(children), *body[number + 1 :])


def _moves(one):
    """Whether it does work, or orders others."""
    return isinstance(one, (Exec, For, *ORDERING))


def _called(one):
    if isinstance(one, Exec):
        return "/".join(one.path or ())
    if isinstance(one, For):
        return f"For {one.var}"
    return f"{type(one).__name__} {getattr(one, 'ring', '') or (getattr(one, 'mechanism', None) and one.mechanism.name) or getattr(one, 'reason', '')}"
