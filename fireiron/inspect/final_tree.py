"""The tree of a program with the instructions of its final kernel, so that all views of a strategy name the same instruction.

Passes change instructions after the tree is expanded: under a pipeline, a copy that matches as loads and stores becomes an asynchronous
copy, and adjacent elements are combined.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from fireiron.compiler import Program
from fireiron.errors import FireironError
from fireiron.ir import Exec, Kernel, Stmt, execs, rewritten
from fireiron.language.tree import Executable, Node

Key = tuple[tuple[str, ...], str | None]
"""The buffers of a statement, and the line of the strategy."""


def used_instructions(kernel: Kernel) -> Mapping[Key, tuple[Executable, ...]]:
    """Return the instructions of a final kernel, by the buffers that they access and the line of the strategy."""
    used: dict[Key, dict[Executable, None]] = {}
    for stmt, _ in execs(kernel.body):
        if isinstance(stmt.instruction, Executable):
            used.setdefault(_key(stmt), {})[stmt.instruction] = None
    return {key: tuple(instructions) for key, instructions in used.items()}


def final_tree(program: Program) -> Node:
    """Return the tree with the instructions of the final kernel; unchanged if there is no kernel."""
    if not program.tree.complete:
        return program.tree
    try:
        used = used_instructions(program.lowered)
    except FireironError:
        return program.tree
    return _changed(program.tree, used)


def _changed(node: Node, used: Mapping[Key, tuple[Executable, ...]]) -> Node:
    def edit(stmt: Stmt) -> tuple[Stmt, ...]:
        if not isinstance(stmt, Exec):
            return (stmt,)
        return tuple(attrs.evolve(stmt, instruction=instruction) for instruction in used.get(_key(stmt), (stmt.instruction,)))

    children = tuple((name, _changed(child, used)) for name, child in node.children)
    return attrs.evolve(node, program=rewritten(node.program, edit), children=children)


def _key(stmt: Exec) -> Key:
    return tuple(access.buffer for access in stmt.accesses), stmt.origin


__all__ = ["final_tree", "used_instructions"]
