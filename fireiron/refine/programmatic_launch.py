"""Programmatic dependent launch (PDL): `programmatic_launch` on a tile distributed over blocks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import DecompositionError
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.language.tree import Context, Decomposition, Refinement, verb
from fireiron.spec import Spec
from fireiron.specs.operand import Operand, operand_name


def _names(value: Any) -> tuple[str, ...]:
    names = tuple(map(operand_name, value if isinstance(value, (tuple, list)) else (value,)))
    if len(set(names)) < len(names):
        raise DecompositionError(
            "programmatic_launch: `no_wait` must name each operand once", got=value, legal="programmatic_launch(no_wait=B)"
        )
    return names


@attrs.frozen(repr=False)
class ProgrammaticLaunch(Refinement):
    """Overlap the start of this kernel with the end of the previous one in the stream (programmatic dependent launch).

    The kernel waits for the previous one before its first access to global memory, so its prologue (setup of mbarriers and registers)
    overlaps the end of the previous kernel. Legal on a tile distributed over blocks, from sm_90 on, for a kernel whose outputs need not be
    zeroed before it.
    rewrite: S --> launch dependents; wait for the previous kernel; S

    `no_wait` names inputs, such as weights, that no kernel of the sequence writes: the user promises that they are complete before the
    first kernel starts. The producer fills the circular buffer with their tiles before the wait. Legal if warps of a producer load these
    inputs, by TMA or by copies of their threads, and each block has one tile.
    rewrite: wait; for k: load(A), load(B) --> for the first k: load(B); wait; load(A); for the other k: load(A), load(B)

    Source: PTX ISA, "griddepcontrol"; CUDA C++ Programming Guide, "Programmatic Dependent Launch"; decision 31.

    >>> from fireiron import *
    >>> blocks = MatMul(64, 64, 64)(GL, GL, GL)(Kernel).tile(16, 16).to(Block).programmatic_launch()
    >>> text = blocks.tile(1, 1).to(Thread).split(1).done().cuda()
    >>> for line in text.splitlines():
    ...     if "griddepcontrol." in line:
    ...         print(line.strip())
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    """

    applies_to: ClassVar[tuple[str, ...]] = ("tile",)
    no_wait: tuple[str, ...] = attrs.field(default=(), converter=_names)

    @classmethod
    def choices(cls, step: Decomposition, spec: Spec, context: Context) -> Iterator[ProgrammaticLaunch]:
        yield ProgrammaticLaunch()
        yield from (ProgrammaticLaunch((name,)) for name in spec.inputs)

    def plan(self, plan: Any) -> Any:
        return plan.with_effect(DependentLaunch(True, self.no_wait))

    def __repr__(self) -> str:
        return f"ProgrammaticLaunch(no_wait={self.no_wait!r})" if self.no_wait else "ProgrammaticLaunch()"

    def __str__(self) -> str:
        names = ", ".join(repr(Operand(name)) for name in self.no_wait)
        argument = f"no_wait={names if len(self.no_wait) == 1 else f'({names})'}" if self.no_wait else ""
        return f"programmatic_launch({argument})"


@verb()
def programmatic_launch(no_wait: Operand | str | tuple[Operand | str, ...] = ()) -> ProgrammaticLaunch:
    """Overlap the start of this kernel with the end of the previous one in the stream (programmatic dependent launch).

    The kernel waits for the previous one before its first access to global memory. Legal on a tile distributed over blocks, from sm_90 on,
    where no output must be zeroed before the kernel.
    rewrite: S --> launch dependents; wait for the previous kernel; S

    Args: no_wait: inputs that no kernel of the sequence writes (you promise this), as in `programmatic_launch(no_wait=B)`. The producer
    loads their first tiles before the wait. Legal with `warp_specialize`, if a block has one tile.
    """
    return ProgrammaticLaunch(no_wait)


__all__ = ["ProgrammaticLaunch"]
