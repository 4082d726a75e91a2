"""Try other steps: findings propose only what compiles."""

from __future__ import annotations

from typing import Any

import attrs

from fireiron.compiler import Program
from fireiron.errors import FireironError
from fireiron.language.substrategy import inner_chains
from fireiron.language.tree import Decomposition


def replaced(steps: tuple[Decomposition, ...], old: Decomposition, new: Decomposition) -> tuple[Decomposition, ...]:
    """Return steps, including nested ones, with a step replaced."""
    changed: list[Decomposition] = []
    for step in steps:
        if step == old and step.origin == old.origin:
            changed.append(new)
            continue
        nested: dict[str, Any] = {name: replaced(inner, old, new) for name, inner in inner_chains(step).items()}
        changed.append(attrs.evolve(step, **nested) if nested else step)
    return tuple(changed)


def with_steps(program: Program, steps: tuple[Decomposition, ...]) -> Program | None:
    """Return the program with other steps; None if it is illegal."""
    changed = attrs.evolve(program, strategy=attrs.evolve(program.strategy, steps=steps))
    try:
        _ = changed.ir
    except FireironError:
        return None
    return changed


__all__ = ["replaced", "with_steps"]
