"""Find refinements without effect: the printed kernel is the same without them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import attrs

from fireiron import cuda
from fireiron.check import Finding
from fireiron.compiler import Program
from fireiron.errors import FireironError
from fireiron.ir import Kernel
from fireiron.language.tree import Decomposition, Refinement
from fireiron.refine.no_sync import NoSync
from fireiron.refine.sync import Sync
from fireiron.refine.to import To
from fireiron.refine.unchecked import Unchecked

_EXCLUDED = (To, Sync, NoSync)
"""`to` determines which unit computes a tile. The kernel IR itself shows whether `sync` and `no_sync` have an effect."""


def ineffective(program: Program) -> Iterator[Finding]:
    """Yield a note for each refinement, also in nested chains, without which the printed kernel is the same.

    Each refinement is omitted alone and the kernel is printed again. A refinement in a chain that is used several times is reported only if
    it has no effect in any use. Equal refinements share a note. Raises: the errors of the program if it has no kernel.
    """
    text = _text(program.ir)
    same: dict[tuple[str, str | None], bool] = {}
    for step, refinement, steps in _without_each(program.strategy.steps):
        key = refinement.label(), step.origin
        if same.get(key, True):
            changed = attrs.evolve(program, strategy=attrs.evolve(program.strategy, steps=steps))
            same[key] = _is_legal(changed) if isinstance(refinement, Unchecked) else _prints(changed, text)
    lines: dict[str, list[str | None]] = {}
    for (label, origin), without_effect in same.items():
        if without_effect:
            lines.setdefault(label, []).append(origin)
    for label, origins in lines.items():
        others = f" (also {', '.join(map(str, origins[1:]))})" if origins[1:] else ""
        why = "there is no race" if label.startswith("unchecked(") else "the printed kernel is the same without it"
        message = f"{label} has no effect: {why}; remove it{others}"
        yield Finding("ineffective", "note", None, message, origins[0], None, {"refinement": label.partition("(")[0]})


def _text(kernel: Kernel) -> str:
    """Return the kernel's text without the strategy in its header."""
    return cuda.emit(attrs.evolve(kernel, title=()))


def _is_legal(program: Program) -> bool:
    """Whether the checks report no error. In this case no race needs to be unchecked."""
    try:
        _ = program.ir
    except FireironError:
        return False
    return True


def _prints(program: Program, text: str) -> bool:
    """Return whether a program prints the given text. The program is not checked."""
    try:
        return _text(program.lowered) == text
    except FireironError:  # the program needs the refinement
        return False


def _without_each(value: Any) -> Iterator[tuple[Decomposition, Refinement, Any]]:
    """Yield, for each refinement in a value of steps: the step, the refinement, and the value without it."""
    if isinstance(value, tuple):
        for position, element in enumerate(value):
            for step, refinement, changed in _without_each(element):
                yield step, refinement, (*value[:position], changed, *value[position + 1 :])
        return
    if not isinstance(value, Decomposition):
        return
    for refinement in value.refinements:
        if not isinstance(refinement, _EXCLUDED):
            rest = tuple(other for other in value.refinements if other is not refinement)
            yield value, refinement, attrs.evolve(value, refinements=rest)
    for field in attrs.fields(type(value)):
        if field.name != "refinements" and field.init:
            for step, refinement, changed in _without_each(getattr(value, field.name)):
                yield step, refinement, attrs.evolve(value, **{field.name: changed})
