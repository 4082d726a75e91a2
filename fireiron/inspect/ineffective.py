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

_TOLD_OTHERWISE = (To, Sync, NoSync)
"""`to` says what is computed where; of `sync` and `no_sync` the kernel itself knows, beside which barriers they stand."""


def ineffective(program: Program) -> Iterator[Finding]:
    """Yield a note for each refinement, also of nested chains, without which the printed kernel is the same.

    Each is left out alone and the kernel printed anew; one that stands in a chain used several times counts in all of them together,
    and equal ones share a note. Raises the program's own errors where it has no kernel.
    """
    text = _text(program.ir)
    same: dict[tuple[str, str | None], bool] = {}
    for step, refinement, steps in _left_out(program.strategy.steps):
        key = refinement.label(), step.origin
        if same.get(key, True):
            other = attrs.evolve(program, strategy=attrs.evolve(program.strategy, steps=steps))
            same[key] = _is_legal(other) if isinstance(refinement, Unchecked) else _prints(other, text)
    lines: dict[str, list[str | None]] = {}
    for (label, origin), without_effect in same.items():
        if without_effect:
            lines.setdefault(label, []).append(origin)
    for label, origins in lines.items():
        others = f" (also {', '.join(map(str, origins[1:]))})" if origins[1:] else ""
        why = "there is no race" if label.startswith("unchecked(") else "the kernel is printed the same without it"
        message = f"{label} has no effect: {why}; drop it{others}"
        yield Finding("ineffective", "note", None, message, origins[0], None, {"refinement": label.partition("(")[0]})


def _text(kernel: Kernel) -> str:
    """Return the kernel's text without the strategy in its header."""
    return cuda.emit(attrs.evolve(kernel, title=()))


def _is_legal(program: Program) -> bool:
    """Whether all that a check calls an error is absent, so that nothing need be left unchecked."""
    try:
        _ = program.ir
    except FireironError:
        return False
    return True


def _prints(program: Program, text: str) -> bool:
    """Return whether a program prints as a text that was checked; if it does not, it need not be checked."""
    try:
        return _text(program.lowered) == text
    except FireironError:  # then it is needed
        return False


def _left_out(value: Any) -> Iterator[tuple[Decomposition, Refinement, Any]]:
    """Yield a value made of steps with one refinement left out: the step, the refinement, and the value without it."""
    if isinstance(value, tuple):
        for position, one in enumerate(value):
            for step, refinement, other in _left_out(one):
                yield step, refinement, (*value[:position], other, *value[position + 1 :])
        return
    if not isinstance(value, Decomposition):
        return
    for refinement in value.refinements:
        if not isinstance(refinement, _TOLD_OTHERWISE):
            rest = tuple(one for one in value.refinements if one is not refinement)
            yield value, refinement, attrs.evolve(value, refinements=rest)
    for field in attrs.fields(type(value)):
        if field.name != "refinements" and field.init:
            for step, refinement, other in _left_out(getattr(value, field.name)):
                yield step, refinement, attrs.evolve(value, **{field.name: other})
