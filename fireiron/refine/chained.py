"""Blocks that begin while the kernel before ends: `chained` on a tile dealt to Block."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir.effects.chaining import Chaining
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.operand import Operand, operand_name


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(map(operand_name, value if isinstance(value, (tuple, list)) else (value,)))
    if len(set(names)) < len(names):
        raise DecompositionError("chained: `ready` names operands, each once", got=value, legal="chained(ready=B)")
    return names


@attrs.frozen(repr=False)
class Chained(Refinement):
    """The kernel is launched while the kernel before it in its stream still ends, and waits for it before it touches global memory.

    What comes before that, barriers and registers, takes no time then. Legal on a tile that is dealt to Block, from sm_90 on, for a kernel
    whose outputs need not be zero before. PTX ISA, "griddepcontrol"; CUDA C++ Programming Guide, "Programmatic Dependent Launch".
    rewrite: S --> let the next kernel begin; wait for the kernel before; S

    `ready` names inputs of which the user promises that no kernel of the chain writes them, such as weights: whoever launches sees to
    it that they are complete before the first kernel of the chain begins. As much of them as a ring holds is loaded before the wait.
    Legal where a producer loads them by TMA and each block has one tile.
    rewrite: wait; for k: load(A), load(B) --> for k in the first turns: load(B); wait; load(A); for k behind: load(A), load(B)

    Source: decision 31.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).chained()
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> for line in text.splitlines():
    ...     if "griddepcontrol" in line:
    ...         print(line.strip())
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    ready: tuple[str, ...] = attrs.field(default=(), converter=_names)

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[Chained]:
        yield Chained()
        yield from (Chained((name,)) for name in spec.inputs)

    def plan(self, plan: Any) -> Any:
        return plan.saying(Chaining(True, self.ready))

    def __repr__(self) -> str:
        return f"Chained(ready={self.ready!r})" if self.ready else "Chained()"

    def __str__(self) -> str:
        names = ", ".join(repr(Operand(name)) for name in self.ready)
        return f"chained(ready={names if len(self.ready) == 1 else f'({names})'})" if self.ready else "chained()"


@verb()
def chained(ready: Operand | str | tuple[Operand | str, ...] = ()) -> Chained:
    """Launch the kernel while the one before it in the stream still ends; it waits for that one before it touches global memory.

    Legal on a tile that is dealt to Block, from sm_90 on, where no output has to be zero before.
    rewrite: S --> let the next kernel begin; wait for the kernel before; S

    `ready` names inputs of which you promise that no kernel of the chain writes them, `chained(ready=B)`: a producer loads their first
    turns before the wait. Legal with `specialize`, where a block has one tile.
    """
    return Chained(ready)


__all__ = ["Chained"]
