"""Find loads to shared memory by single threads: each thread gets a copy of the tile that no other thread reads."""

from __future__ import annotations

from collections.abc import Iterator

from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.decomp.load import Load
from fireiron.inspect.show import main_child, short


def private_tiles(program: Program) -> Iterator[Finding]:
    """Yield a warning for each load from global to shared memory by one thread of several, with the number of copies.

    Raises: the errors of the program if it has no tree.
    """
    threads = program.lowered.threads
    seen: set[str | None] = set()
    for node in program.tree.nodes():
        step, main = node.step, main_child(node)
        if not isinstance(step, Load) or not step.memory.in_shared or node.spec.level.threads != 1 or threads == 1 or main is None:
            continue
        source, copied = (spec.operands.get(step.operand) for spec in (node.spec, main[1].spec))
        if source is None or copied is None or not source.memory.of_grid or copied.tensor.name in seen:
            continue
        seen.add(copied.tensor.name)
        message = (
            f"{copied.tensor.name}: each of {threads} threads loads its own tile to shared memory, which no other thread reads; "
            f"{short(step)} before the tile of the {node.spec.level} loads one tile for all threads of the block"
        )
        yield Finding("private", "warning", copied.tensor.name, message, step.origin, None, {"copies": threads})


__all__ = ["private_tiles"]
