"""`done`: the residual spec must match an instruction, or the given micro-kernel (Fireiron, section 3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import attrs

from fireiron.errors import ArgumentError, DecompositionError, MatchError, call_site
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.ir import Comment, Hole, Stmt
from fireiron.ir.rewrite import by_identities
from fireiron.language.plain import plain
from fireiron.language.substrategy import written
from fireiron.language.tree import Child, Context, Decomposition, Draft, Executable, Expansion, Mismatch, legal_among, verb
from fireiron.performing.layout_propagation import Following, element_of, unheld
from fireiron.spec import AnySpec, Spec
from fireiron.specs.fused import fused
from fireiron.stepping.cross_thread_reduction import reduced_by, reduction, require_apart
from fireiron.stepping.exchange import exchange, held_otherwise
from fireiron.stepping.predicated_region import knows, require_alike
from fireiron.stepping.steps import implied, in_order, workers_of
from fireiron.values.machine import Thread
from fireiron.values.sharer import BLOCK, GRID


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
        return Done(executable)

    def label(self) -> str:
        return f"done({'' if self.executable is None else repr(self.executable)})"

    def summary(self) -> str:
        return f"done({'' if self.executable is None else self.executable.name})"

    def threads(self, spec: Spec, context: Context) -> int | None:
        if fused(spec) is not None:
            return workers_of(spec, self, context)
        return getattr(self.executable, "threads", None)

    def threads_of_copies(self, spec: Spec, context: Context) -> int | None:
        return workers_of(spec, self, context, copies=True) if fused(spec) is not None else None

    def expand(self, spec: Spec, context: Context) -> Expansion:
        made = fused(spec)
        if made is not None and context.workers is not None:
            whole = made.product is not None and made.strategy_of(made.product.name) is None
            return self._alone(spec, context) if whole else in_order(spec, self, context)
        if context.workers is None or spec.allocates:
            return Expansion((), ())
        if context.needed is not None:
            if not context.decides and not knows(context.needed, context):
                return Expansion((), (Hole("open"),), waits=True)
            require_alike(spec, context.needed, context)
        draft = context.draft()
        spec, found = self._performed(spec, context)
        if found is not None:
            return draft.expansion((), found.emit(spec, draft))
        if not context.decides and (unheld(spec, context) or self._unsettled(spec, context)):
            return Expansion((), (Hole("open"),), waits=True)
        following = Following.of(spec, context) or reduced_by(spec, context)
        across = None if following is None else self._across_threads(following, context)
        if across is not None:
            return across
        if following is not None and following.shared and not following.mismatches(context):
            inner, active = following.below(draft)
            return draft.expansion((Child("held", inner, (self,), active),), (Hole("held"),))
        found = self._of_threads(following, context)
        if found is None or following is None:
            if self._is_shared_copy(spec):
                return self._by_all_threads(spec, context, draft)
            raise self._refused(spec, context)
        return draft.expansion((), following.statements(found, draft))

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Done]:
        yield from legal_among((Done(),), spec, context)
        worth = (one for one in context.instructions if one.may_perform(spec) and not one.mismatches(spec, context.architecture))
        yield from legal_among(map(Done, worth), spec, context)

    def _unsettled(self, spec: Spec, context: Context) -> bool:
        """Whether an engine copies to a free buffer as soon as a reader says how it lies, which may wait itself."""
        if not spec.copies or not spec.dst.tensor.free or spec.dst.tensor.name in context.whole.settled:
            return False
        engines = (one for one in self._asked(context) if one.mechanism.counted and one.may_perform(spec))
        return any([found.field for found in one.fits(spec, context)] == ["dst storage"] for one in engines)

    def _is_shared_copy(self, spec: Spec) -> bool:
        """Whether a spec is a copy between global and shared memory by several threads, who can share it as they like."""
        sharers = {one.shared_by for one in spec.memories}
        several = spec.level.threads != 1 and not spec.level.is_launch
        return self.executable is None and spec.copies and several and sharers == {GRID, BLOCK}

    def _by_all_threads(self, spec: Spec, context: Context, draft: Draft) -> Expansion:
        """A copy that no instruction does as a whole, in pieces of 16 bytes by all threads, with the reason."""
        (copy,) = written(AnySpec.coalesced_copy(16 // spec.src.dtype.bytes))
        steps = (attrs.evolve(copy, origin=self.origin), self)
        candidates = (*context.instructions, *context.left_out)
        engine = next((one for one in candidates if one.mechanism.by_engine and one.may_perform(spec)), None)
        notes: tuple[Stmt, ...] = ()
        if engine is not None:
            why = "; ".join(f"{one.field} {one.wanted}, got {one.got}" for one in engine.fits(spec, context))
            text = f"{engine.name} wants {why}" if why else f"{engine.name} does all loads of a producer, or none"
            notes = (Comment(f"by all threads: {text}"),)
        return draft.expansion((Child("dealt", spec, steps),), (*notes, Hole("dealt")))

    def _alone(self, spec: Spec, context: Context) -> Expansion:
        """A definition around a product that nothing has decomposed yet: an instruction for all of it, or none."""
        try:
            return implied(self, spec, context)
        except MatchError as error:
            made = fused(spec)
            assert made is not None and made.product is not None
            error.hint = f'.step("{made.product.name}", MatMul. ... .done()), or epilog(RF) and the steps of a product'
            raise

    def _across_threads(self, following: Following, context: Context) -> Expansion | None:
        """What threads do together: they reduce what each of them holds, or one brings another what it needs."""
        following.require_dealt_once(context)
        if following.spec.reduces:
            if self.executable is not None:
                return None
            _require_terms(following, context)
            return reduction(following, self, context)
        elsewhere = held_otherwise(following, context)
        return exchange(following, elsewhere[0], self, context) if elsewhere else None

    def _asked(self, context: Context) -> tuple[Executable, ...]:
        return context.instructions if self.executable is None else (self.executable,)

    def _worth(self, spec: Spec, context: Context) -> tuple[Executable, ...]:
        """Those that are worth comparing with a spec."""
        if self.executable is None:
            return _candidates(context.instructions, spec)
        return (self.executable,) if self.executable.may_perform(spec) else ()

    def _performed(self, spec: Spec, context: Context) -> tuple[Spec, Executable | None]:
        """The executable that performs a spec as it is, or its plain form; and in which of them."""
        found = self._whole(spec, context)
        if found is not None:
            return spec, found
        simple = plain(spec)
        return simple, None if simple is spec else self._whole(simple, context)

    def _whole(self, spec: Spec, context: Context) -> Executable | None:
        """The executable that performs a spec as it is."""
        if spec.in_parts and spec.reduces:
            require_apart(spec)
            return None
        if spec.in_parts:
            raise DecompositionError(
                f"{spec}: several blocks add to C, and only the store of an epilog adds atomically",
                hint=".epilog(RF) behind tile(...).to(Block)",
            )
        return next((one for one in self._worth(spec, context) if not one.fits(spec, context)), None)

    def match(self, spec: Spec, context: Context) -> Executable:
        """The executable that performs a spec, or by which its threads do their parts; a `MatchError` with the nearest if there is none."""
        spec, found = self._performed(spec, context)
        found = found or self._of_threads(Following.of(spec, context), context)
        if found is None:
            raise self._refused(spec, context)
        return found

    def _of_threads(self, following: Following | None, context: Context) -> Executable | None:
        """The executable by which threads that follow perform a spec."""
        if following is None or following.mismatches(context):
            return None
        element = following.element
        worth = self._worth(element, context)
        return next((one for one in worth if not one.mismatches(element, context.architecture)), None)

    def _refused(self, spec: Spec, context: Context) -> MatchError:
        def rows() -> str:
            _, near = nearest(spec, context, self._asked(context))
            return table(near[:3] if self.executable is None else near) + _other_target(near)

        if self.executable is not None:
            return MatchError(f"{self.executable} does not perform {spec}:", rows=rows)
        return MatchError(
            f"no instruction of {context.architecture} performs {spec}; the nearest:",
            rows=rows,
            hint="fireiron explain STRATEGY shows the steps that would close the gap",
        )


@by_identities  # a leaf that waits is asked each time that more is known of who holds its registers
def _candidates(asked: tuple[Executable, ...], spec: Spec) -> tuple[Executable, ...]:
    """Those of some executables that are worth comparing with a spec, which nothing but the two decides."""
    return tuple(one for one in asked if one.may_perform(spec))


def _require_terms(following: Following, context: Context) -> None:
    """Refuse a reduction of which its threads do not hold all that it reduces."""
    wrong = following.mismatches(context)
    if wrong:
        rows = "".join(f"\n      {one.field:<8} wants {one.wanted}, got {one.got}" for one in wrong)
        name = following.spec.operands[following.name].tensor.name
        raise MatchError(
            f"{following.spec}: its threads do not hold all of {name} that it reduces:{rows}",
            hint=f"a load of {following.name} at this level, or reduce at the level whose threads hold it",
        )


Compared = list[tuple[Executable, tuple[Mismatch, ...]]]


def nearest(spec: Spec, context: Context, asked: tuple[Executable, ...] | None = None) -> tuple[Executable | None, Compared]:
    """The first executable that performs a spec as a whole, else the first by threads that follow; and all with their differences,
    fewest first where none does."""
    asked = context.instructions if asked is None else asked
    compared = [(one, differences(one, spec, context)) for one in asked]
    if all(mismatches for _, mismatches in compared) and (simple := plain(spec)) is not spec:
        return nearest(simple, context, asked)
    performing = [one for one, mismatches in compared if not mismatches]
    found = next((one for one in performing if not one.fits(spec, context)), performing[0] if performing else None)
    if found is not None:
        return found, compared
    return None, sorted(compared, key=lambda pair: (*(_differs(pair[1], what) for what in ("spec", "memory")), len(pair[1])))


def differences(one: Executable, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
    """Why an executable does not perform a spec: as it is, or where it performs single elements, by threads that follow."""
    mismatches = one.fits(spec, context)
    if mismatches and (simple := plain(spec)) is not spec:
        return differences(one, simple, context)
    following = Following.of(spec, context)
    if not mismatches or (following is None and not unheld(spec, context)):
        return mismatches
    if one.mismatches(element_of(spec, Thread) if following is None else following.element, context.architecture):
        return mismatches
    if following is None:
        return (*mismatches, Mismatch("registers", "an operand of which something else says who holds what", "none"))
    return following.mismatches(context)


def _differs(mismatches: tuple[Mismatch, ...], what: str) -> bool:
    """Whether it is for another kind of spec, or for operands that lie elsewhere: farther than by any other field."""
    return any(one.field.endswith(what) for one in mismatches)


def table(compared: Compared) -> str:
    """Differences, field by field."""
    rows = []
    for executable, mismatches in compared:
        rows.append(f"    {executable.name:<10} {executable.performs()}")
        rows += [f"      {one.field:<8} wants {one.wanted}, got {one.got}" for one in mismatches]
    return "\n".join(rows)


def _other_target(compared: Compared) -> str:
    """A line that names the target on which the nearest executable would match; empty where more than the target differs."""
    executable, mismatches = compared[0]
    if [one.field for one in mismatches] != ["target"]:
        return ""
    target = mismatches[0].wanted.split()[0]
    return f'\n    made for {target} it matches {executable.name}: compile("{target}"), --arch {target}'


@verb()
def done(executable: Executable | str | None = None) -> Done:
    """The residual spec must match an instruction of the target, the given executable, or the given micro-kernel.

    Args: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file: one beside the file of the strategy,
        or in the working directory.
    Legal where it performs the spec: its kind, level, memories, sizes and types, on the target; a micro-kernel takes any spec.
    rewrite: spec --> instruction      (Fireiron, section 3.4)

    >>> from fireiron import *
    >>> leaf = MatMul(16, 16, 8)(GL, GL, GL)(Kernel).tile(4, 4).to(Block).tile(1, 1).to(Thread).split(1)
    >>> print(leaf.result)
    MatMul(1,1,1)(GL,GL,GL)(Thread)
    >>> "fmaf(" in leaf.done().cuda()
    True
    >>> "c[0] += a[0] * b[0];" in leaf.done("c[0] += a[0] * b[0];").cuda()
    True
    """
    return Done.of(executable)


__all__ = ["Done"]
