"""Faults injected into the guards of a kernel: which threads store and load, in its final IR."""

import attrs

from fireiron import ir
from fireiron.values.expr import all_of, conjuncts


def with_conditions(kernel, buffer, write, change):
    """The kernel with each condition of the accesses to a buffer changed by `change(condition)`; None drops it.

    Conditions of a statement as a whole count as those of its outputs.
    """

    def changed(condition):
        parts = (change(part) for part in conjuncts(condition))
        return all_of(part for part in parts if part is not None)

    def statement_of(stmt):
        if not isinstance(stmt, ir.Exec) or not any(access.buffer == buffer and access.write == write for access in stmt.accesses):
            return (stmt,)
        pieces = tuple(
            tuple(attrs.evolve(piece, condition=changed(piece.condition)) for piece in parts)
            if access.buffer == buffer and access.write == write
            else parts
            for access, parts in zip(stmt.accesses, stmt.pieces, strict=True)
        )
        return (attrs.evolve(stmt, guard=changed(stmt.guard) if write else stmt.guard, pieces=pieces),)

    return attrs.evolve(kernel, body=ir.rewritten(kernel.body, statement_of))
