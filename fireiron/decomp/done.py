"""`done`: the residual spec must match an instruction, or the given micro-kernel (Fireiron, section 3.4)."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, MatchError, call_site
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.ir import Hole
from fireiron.language.substrategy import one_by_one
from fireiron.language.tree import Context, Decomposition, Executable, Expansion, Mismatch
from fireiron.spec import Spec
from fireiron.values.expr import ONE


@attrs.frozen
class Done(Decomposition):
    """The end of a chain; see the verb `done`."""

    verb: ClassVar[str] = "done"
    executable: Executable | None = None

    def __attrs_post_init__(self) -> None:
        if self.executable is not None and not isinstance(self.executable, Executable):
            raise ArgumentError(
                "done: neither an executable nor a micro-kernel",
                got=self.executable,
                legal="an Executable, CUDA C++ text, a file.cu",
                at=call_site(),
            )

    @staticmethod
    def of(executable: Any) -> Done:
        """The end of a chain from the argument of the verb."""
        if isinstance(executable, str):
            executable = MicroKernel.of(executable)
        return Done(executable, origin=call_site())

    def label(self) -> str:
        return f"done({'' if self.executable is None else repr(self.executable)})"

    def summary(self) -> str:
        return f"done({'' if self.executable is None else self.executable.name})"

    def threads(self, spec: Spec, context: Context) -> int | None:
        return getattr(self.executable, "threads", None)

    def expand(self, spec: Spec, context: Context) -> Expansion:
        if context.workers is None:
            return Expansion((), ())
        if context.unfinished and self._waits(spec, context):
            return Expansion((), (Hole("open"),))
        draft = context.draft()
        return draft.expansion((), self.match(spec, context).emit(spec, draft))

    def _waits(self, spec: Spec, context: Context) -> bool:
        """Whether what performs a spec must follow an instruction of the main chain, which is not there yet."""
        asked = context.instructions if self.executable is None else (self.executable,)
        alone = [one for one in asked if not one.mismatches(spec, context.architecture)]
        return bool(alone) and all(one.fits(spec, context) for one in alone)

    def dealing(self, spec: Spec, context: Context) -> tuple[Decomposition, ...]:
        """A thread sets and stores the several elements that it computes at once one by one; a group, as its instruction holds them.

        A `DecompositionError` for a micro-kernel of a group, whose text alone knows which thread holds what.
        """
        if spec.level.threads == 1:
            sizes = [size for name in spec.outputs for size in spec.operands[name].shape]
            return () if all(size == ONE for size in sizes) else (one_by_one(),)
        if isinstance(self.executable, MicroKernel):
            raise DecompositionError(
                f"the micro-kernel {self.executable.name} performs {spec} as a whole: which thread holds what of C, only its text knows",
                within=spec,
                at=self.origin,
                legal="epilog(memory, init, store)",
                hint="an init and a store by micro-kernels too, or tiles for Thread before done(...)",
            )
        return ()

    def match(self, spec: Spec, context: Context) -> Executable:
        """The executable that performs a spec; a `MatchError` with the nearest ones if there is none."""
        if spec.partial:
            raise DecompositionError(
                f"{spec}: several blocks add to C, and only the store of an epilog adds atomically",
                hint=".epilog(RF) behind tile(...).to(Block)",
            )
        if self.executable is not None:
            mismatches = self.executable.fits(spec, context)
            if mismatches:
                raise MatchError(f"{self.executable} does not perform {spec}:\n{table([(self.executable, mismatches)])}")
            return self.executable
        found = next((one for one in context.instructions if not one.fits(spec, context)), None)
        if found is not None:
            return found
        _, near = nearest(spec, context)
        raise MatchError(
            f"no instruction of {context.architecture} performs {spec}; the nearest:\n{table(near[:3])}",
            hint="fireiron explain STRATEGY shows the steps that would close the gap",
        )


def nearest(spec: Spec, context: Context) -> tuple[Executable | None, list[tuple[Executable, tuple[Mismatch, ...]]]]:
    """The first executable that performs a spec, and all others, fewest differences first."""
    compared = [(one, one.fits(spec, context)) for one in context.instructions]
    for one, mismatches in compared:
        if not mismatches:
            return one, compared
    return None, sorted(compared, key=lambda pair: (*(_differs(pair[1], what) for what in ("spec", "memory")), len(pair[1])))


def _differs(mismatches: tuple[Mismatch, ...], what: str) -> bool:
    """Whether it is for another kind of spec, or for operands that lie elsewhere: farther than by any other field."""
    return any(one.field.endswith(what) for one in mismatches)


def table(compared: list[tuple[Executable, tuple[Mismatch, ...]]]) -> str:
    """Differences, field by field."""
    rows = []
    for executable, mismatches in compared:
        rows.append(f"    {executable.name:<10} {executable.performs()}")
        rows += [f"      {one.field:<8} wants {one.wanted}, got {one.got}" for one in mismatches]
    return "\n".join(rows)


__all__ = ["DecompositionError", "Done", "nearest", "table"]
