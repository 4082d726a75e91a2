"""`products`: the groups of a warpgroup's products, and what orders them with the other uses of its registers.

Products that follow each other with nothing between are a batch: a fence of the registers stands in front of it, and behind it the commit
that makes it a group. A thread that touches registers of products under way waits for all of them first. When the factors in shared
memory are free again is for `wait` to say, which knows who writes there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from fireiron.ir import Comment, Commit, Completion, Dependence, Exec, Fence, For, Kernel, Let, Reach, Roles, Stmt, Wait, execs

PRODUCT = Completion.PRODUCT


def products(kernel: Kernel) -> Kernel:
    """The kernel with fences, commits, and waits for registers, around the products of its warpgroups."""
    if not any(statement.completion is PRODUCT for statement, _ in execs(kernel.body)):
        return kernel
    settled = _Settled(kernel)
    body, _ = settled.run(_batched(kernel.body, settled.others), frozenset())
    return attrs.evolve(kernel, body=body)


# ---------------------------------------------------------------------------------------------- batches


def _batched(body: Iterable[Stmt], others: Sequence[Exec]) -> tuple[Stmt, ...]:
    """A list with each run of products between a fence and a commit; `others` touch the same registers."""
    result: list[Stmt] = []
    run: list[Stmt] = []
    for statement in body:
        if _is_product(statement) or (run and isinstance(statement, Let)):
            run.append(statement)
            continue
        result += _batch(run, others)
        run = []
        inner = tuple(_batched(child, others) for child in statement.children)
        result.append(statement.rebuilt(inner) if inner else statement)
    return (*result, *_batch(run, others))


def _is_product(statement: Stmt) -> bool:
    """Whether nothing but products happens in a statement."""
    if isinstance(statement, Exec):
        return statement.completion is PRODUCT
    inner = [one for child in statement.children for one in child if not isinstance(one, (Let, Comment))]
    return bool(inner) and all(_is_product(one) for one in inner)


def _batch(run: Sequence[Stmt], others: Sequence[Exec]) -> list[Stmt]:
    if not run:
        return []
    products = [one for one, _ in execs(run)]
    return [Fence(Reach.REGISTERS, orders=_met(others, products, first_writes=True)), *run, Commit(PRODUCT)]


def _met(before: Iterable[Exec], behind: Sequence[Exec], first_writes: bool) -> tuple[Dependence, ...]:
    """The dependences between statements by a buffer that some of the first write, or that both touch."""
    return tuple(
        Dependence(x.buffer, one, other, (x.write, y.write))
        for one in before
        for x in one.accesses
        if x.write or not first_writes
        for other in behind
        for y in other.accesses
        if x.buffer == y.buffer and (x.write or y.write)
    )


# ---------------------------------------------------------------------------------------------- waits for registers


class _Settled:
    """Puts a wait in front of whatever else touches registers of products under way."""

    def __init__(self, kernel: Kernel) -> None:
        self.private = {buffer.name for buffer in kernel.buffers if buffer.memory.private}
        inside = [one for one, _ in execs(kernel.body)]
        self.products = [one for one in inside if one.completion is PRODUCT]
        self.others = [one for one in inside if one.completion is not PRODUCT and self._registers([one])]

    def run(self, body: Sequence[Stmt], flying: frozenset[str]) -> tuple[tuple[Stmt, ...], frozenset[str]]:
        """A list with its waits, and the registers that are under way behind it, if those of `flying` were in front."""
        result: list[Stmt] = []
        for statement in body:
            inside = () if isinstance(statement, Roles) else tuple(execs((statement,)))
            others = self._registers(one for one, _ in inside if one.completion is not PRODUCT)
            used = self._registers(one for one, _ in inside if one.completion is PRODUCT)
            if flying & others and not (isinstance(statement, For) and flying & others <= used):
                names = ", ".join(sorted(flying & others))
                reason = f"{names} {'is' if len(flying & others) == 1 else 'are'} there"
                later = [one for one, _ in inside if one.completion is not PRODUCT]
                orders = tuple(one for one in _met(self.products, later, first_writes=False) if one.buffer in flying)
                wait = Wait(0, reason, PRODUCT, orders=orders)
                result.insert(_in_front_of_notes(result), wait)
                flying = frozenset()
            if isinstance(statement, Roles):
                statement = statement.rebuilt(tuple(self.run(child, frozenset())[0] for child in statement.children))
            elif isinstance(statement, Wait) and statement.completion is PRODUCT and not statement.groups:
                flying = frozenset()
            elif isinstance(statement, For):
                # What one iteration leaves under way the next one finds.
                _, behind = self.run(statement.body, flying)
                inner, behind = self.run(statement.body, flying | behind)
                statement, flying = statement.rebuilt((inner,)), flying | behind
            else:
                flying |= used
            result.append(statement)
        return tuple(result), flying

    def _registers(self, inside: Iterable[Exec]) -> frozenset[str]:
        return frozenset(access.buffer for one in inside for access in one.accesses if access.buffer in self.private)


def _in_front_of_notes(body: Sequence[Stmt]) -> int:
    """The position in front of the comments at the end of a list, which are about what comes behind them."""
    position = len(body)
    while position and isinstance(body[position - 1], Comment):
        position -= 1
    return position
