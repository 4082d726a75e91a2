"""`done`: the residual spec must match an instruction, or the given micro-kernel (Fireiron, section 3.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import attrs

from fireiron.errors import ArgumentError, DecompositionError, MatchError, call_site
from fireiron.executable import exported_name
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.frozen import frozen
from fireiron.ir import Comment, Hole, Stmt
from fireiron.ir.rewrite import by_identities
from fireiron.language.plain import plain
from fireiron.language.substrategy import written
from fireiron.language.tree import Child, Context, Decomposition, Draft, Executable, Expansion, Mismatch, legal_among, verb
from fireiron.performing.descriptors import stated_storage
from fireiron.performing.layout_propagation import Following, element_of, elementwise, undistributed
from fireiron.spec import AnySpec, Spec
from fireiron.specs.fused import fused
from fireiron.stepping.cross_thread_reduction import reduced_by, reduction, require_apart
from fireiron.stepping.cross_thread_scan import scan
from fireiron.stepping.exchange import distributed_differently, exchange
from fireiron.stepping.predicated_region import knows, require_same_elements
from fireiron.stepping.steps import implied, in_order, workers_of
from fireiron.stepping.vectors import awaits_reader, from_memory_to_shared, in_vectors
from fireiron.values.machine import RF, SH, WARPGROUP_ARCHITECTURE, Block, Thread, Warpgroup, as_architecture, float32
from fireiron.values.sharer import BLOCK, GRID

BY_ALL_THREADS: Final = "copied by all threads"
"""The beginning of a comment that states why no instruction performs all of a copy."""


@frozen
class Done(Decomposition):
    """Match the residual spec with an instruction or a micro-kernel, which ends the chain; see the verb `done`."""

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
        """Return the step for the argument of the verb."""
        if isinstance(executable, str):
            executable = MicroKernel.of(executable)
        return Done(executable)

    def label(self) -> str:
        return f"done({'' if self.executable is None else exported_name(self.executable) or repr(self.executable)})"

    def summary(self) -> str:
        return f"done({'' if self.executable is None else self.executable.name})"

    def threads(self, spec: Spec, context: Context) -> int | None:
        if fused(spec) is not None:
            return workers_of(spec, self, context)
        return getattr(self.executable, "threads", None)

    def threads_of_copies(self, spec: Spec, context: Context) -> int | None:
        return workers_of(spec, self, context, copies=True) if fused(spec) is not None else None

    def expand(self, spec: Spec, context: Context) -> Expansion:
        definition = fused(spec)
        if definition is not None and context.workers is not None:
            is_undecomposed = definition.product is not None and definition.strategy_of(definition.product.name) is None
            return self._whole_definition(spec, context) if is_undecomposed else in_order(spec, self, context)
        if context.workers is None or spec.allocates:
            return Expansion((), ())
        if context.needed is not None:
            if not context.decides and not knows(context.needed, context):
                return Expansion((), (Hole("open"),), waits=True)
            require_same_elements(spec, context.needed, context)
        draft = context.draft()
        spec, executable = self._performed(spec, context)
        if executable is not None:
            return draft.expansion((), executable.emit(spec, draft))
        if not context.decides and (undistributed(spec, context) or self._waits_for_storage(spec, context)):
            return Expansion((), (Hole("open"),), waits=True)
        following = Following.of(spec, context) or reduced_by(spec, context)
        across = None if following is None else self._between_threads(following, context)
        if across is not None:
            return across
        if following is not None and following.shared and not following.mismatches(context):
            inner, active = following.below(draft)
            return draft.expansion((Child("held", inner, (self,), active),), (Hole("held"),))
        if spec.scans:
            raise self._without_owner(spec)
        executable = self._of_threads(following, context)
        if executable is None or following is None:
            if self._is_shared_copy(spec):
                return self._by_all_threads(spec, context, draft)
            alone = Following.alone(spec, context)
            if (alone is not None or self._is_computed_by_all(spec)) and awaits_reader(spec, context):
                return Expansion((), (Hole("open"),), waits=True)
            if self._is_computed_by_all(spec):
                return draft.expansion((Child("dealt", spec, (*in_vectors(spec, context), self)),), (Hole("dealt"),))
            executable = None if alone is None else self._of_element(alone, context)
            if alone is not None and executable is not None:
                return draft.expansion((), alone.statements(executable, draft))
            raise self._refused(spec, context)
        return draft.expansion((), following.statements(executable, draft))

    @classmethod
    def choices(cls, spec: Spec, context: Context) -> Iterator[Done]:
        yield from legal_among((Done(),), spec, context)
        worth = (
            candidate
            for candidate in context.instructions
            if candidate.may_perform(spec) and not candidate.mismatches(spec, context.architecture)
        )
        yield from legal_among(map(Done, worth), spec, context)

    def _waits_for_storage(self, spec: Spec, context: Context) -> bool:
        """Whether a bulk copy matches, except that readers have not decided the storage of its destination yet; then the leaf waits."""
        if not spec.copies or not spec.dst.tensor.free or spec.dst.tensor.name in context.whole.chosen_storage:
            return False
        engines = (engine for engine in self._requested(context) if engine.mechanism.counted and engine.may_perform(spec))
        return any([mismatch.field for mismatch in engine.fits(spec, context)] == ["dst storage"] for engine in engines)

    def _is_shared_copy(self, spec: Spec) -> bool:
        """Whether a spec is a copy between global and shared memory by several threads, in which any thread may copy any element."""
        sharers = {memory.shared_by for memory in spec.memories}
        is_group = spec.level.threads != 1 and not spec.level.is_launch
        return self.executable is None and spec.copies and is_group and sharers == {GRID, BLOCK}

    def _is_computed_by_all(self, spec: Spec) -> bool:
        """Whether all threads of a level compute a temporary in shared memory, in vectors."""
        return self.executable is None and spec.pointwise and from_memory_to_shared(spec)

    def _by_all_threads(self, spec: Spec, context: Context, draft: Draft) -> Expansion:
        """Distribute a copy over all threads in 16-byte pieces, because no instruction performs all of it; a comment gives the reason."""
        (copy,) = written(AnySpec.coalesced_copy(16 // spec.src.dtype.bytes))
        steps = (attrs.evolve(copy, origin=self.origin), self)
        candidates = (*context.instructions, *context.left_out)
        engine = next(
            (instruction for instruction in candidates if instruction.mechanism.by_engine and instruction.may_perform(spec)), None
        )
        notes: tuple[Stmt, ...] = ()
        if engine is not None:
            why = "; ".join(f"{mismatch.field} {mismatch.wanted}, got {mismatch.got}" for mismatch in engine.fits(spec, context))
            text = f"{engine.name} requires {why}" if why else f"{engine.name} {context.left_out_because}"
            notes = (Comment(f"{BY_ALL_THREADS}: {text}"),)
        return draft.expansion((Child("dealt", spec, steps),), (*notes, Hole("dealt")))

    def _whole_definition(self, spec: Spec, context: Context) -> Expansion:
        """Match a fused definition whose matmul is not decomposed: one instruction must perform all of it."""
        try:
            return implied(self, spec, context)
        except MatchError as error:
            definition = fused(spec)
            assert definition is not None and definition.product is not None
            error.hint = f'.step("{definition.product.name}", MatMul. ... .done()), or epilog(RF) and the steps of a matmul'
            raise

    def _between_threads(self, following: Following, context: Context) -> Expansion | None:
        """Expand a reduction or an exchange between threads: they combine the elements that they own, or send them to their readers."""
        following.require_distributed_once(context)
        if following.spec.scans:
            elsewhere = distributed_differently(following, context)
            return exchange(following, elsewhere[0], self, context) if elsewhere else scan(following, self, context.draft())
        if following.spec.reduces:
            if self.executable is not None:
                return None
            _require_terms(following, context)
            return reduction(following, self, context)
        elsewhere = distributed_differently(following, context)
        return exchange(following, elsewhere[0], self, context) if elsewhere else None

    def _without_owner(self, spec: Spec) -> DecompositionError:
        """Return the error about a scan whose elements no thread owns."""
        return DecompositionError(
            f"{spec}: no statement determines which thread scans which elements", got=f"elements in {spec.src.memory}", within=spec,
            legal="a source or a result in registers", at=self.origin,
            hint="load the source to registers: .load('X', RF, Move.tile(1, 128).to(Warp).tile(1, 4).to(Lane).done())",
        )  # fmt: skip

    def _requested(self, context: Context) -> tuple[Executable, ...]:
        return context.instructions if self.executable is None else (self.executable,)

    def _worth_comparing(self, spec: Spec, context: Context) -> tuple[Executable, ...]:
        """Return the executables for the kind of spec; these are compared with it field by field."""
        if self.executable is None:
            return _candidates(context.instructions, spec)
        return (self.executable,) if self.executable.may_perform(spec) else ()

    def _performed(self, spec: Spec, context: Context) -> tuple[Spec, Executable | None]:
        """Return the executable that performs a spec, after that spec, which is given or in its plain form."""
        executable = self._whole(spec, context)
        if executable is not None:
            return spec, executable
        simple = plain(spec)
        return simple, None if simple is spec else self._whole(simple, context)

    def _whole(self, spec: Spec, context: Context) -> Executable | None:
        """Return the executable that performs a spec as a whole."""
        if spec.in_parts and spec.reduces:
            require_apart(spec)
            return None
        if spec.in_parts:
            raise DecompositionError(
                f"{spec}: several blocks accumulate to C, and only the store of an epilog is atomic",
                hint=".epilog(RF) after tile(...).to(Block)",
            )
        return next((candidate for candidate in self._worth_comparing(spec, context) if not candidate.fits(spec, context)), None)

    def match(self, spec: Spec, context: Context) -> Executable:
        """Return the executable that performs a spec as a whole, or each thread's elements.

        Raises: MatchError with the nearest executables.
        """
        spec, executable = self._performed(spec, context)
        executable = executable or self._of_threads(Following.of(spec, context), context)
        alone = Following.alone(spec, context) if executable is None else None
        executable = executable if alone is None else self._of_element(alone, context)
        if executable is None:
            raise self._refused(spec, context)
        return executable

    def _of_threads(self, following: Following | None, context: Context) -> Executable | None:
        """Return the executable that performs each thread's element; other statements determine which thread owns it."""
        if following is None or following.mismatches(context):
            return None
        return self._of_element(following, context)

    def _of_element(self, following: Following, context: Context) -> Executable | None:
        """The executable that performs the element of each thread."""
        element = following.element
        worth = self._worth_comparing(element, context)
        return next((candidate for candidate in worth if not candidate.mismatches(element, context.architecture)), None)

    def _refused(self, spec: Spec, context: Context) -> MatchError:
        def rows() -> str:
            _, near = nearest(spec, context, self._requested(context))
            return table(near[:3] if self.executable is None else near) + _other_target(near)

        if self.executable is not None:
            return MatchError(f"{self.executable} does not perform {spec}:", rows=rows)
        advice = _target_of_wgmma(spec, context)
        advice += "".join(advise(spec) for advise in (_accumulator, _missing_loads, _operands_of_wgmma, _strategy_of_step))
        return MatchError(
            f"no instruction of {context.architecture} performs {spec}; the nearest:",
            rows=rows,
            hint=f"{advice}fireiron explain STRATEGY shows the steps that would close the gap",
        )


def _accumulator(spec: Spec) -> str:
    """Return the advice to add a missing accumulator of a matmul of warps or warpgroups; else an empty text."""
    if not spec.multiplies or spec.C.memory.private or not spec.level.is_below(Block) or spec.level.threads == 1:
        return ""
    dtype = "" if spec.C.dtype == float32 else ", float32"
    return f".epilog(RF{dtype}) after .tile(...).to(Block), because tensor cores accumulate in registers; "


def _target_of_wgmma(spec: Spec, context: Context) -> str:
    """Return the advice to compile a matmul of a warpgroup for the target that has wgmma; else an empty text."""
    hopper, target = as_architecture(WARPGROUP_ARCHITECTURE), context.architecture
    if not spec.multiplies or spec.level != Warpgroup or target == hopper or target.capability != hopper.capability:
        return ""
    return f'compile("{hopper}") or --arch {hopper}, which has wgmma; '


def _missing_loads(spec: Spec) -> str:
    """Return the advice to load operands of a matmul of warps or warpgroups that are still in global memory; else an empty text."""
    if not spec.multiplies or spec.level.threads == 1 or not spec.level.is_below(Block) or not spec.C.memory.private:
        return ""
    memory = SH if spec.level == Warpgroup else RF
    loads = [f".load({name}, {memory}, Move.done())" for name in "AB" if spec.operands[name].memory.of_grid]
    return f"{' and '.join(loads)} before the tile of the {spec.level}; " if loads else ""


def _operands_of_wgmma(spec: Spec) -> str:
    """Return the advice for operands that no matmul of a warpgroup can read: float32, or with a storage that a load specifies."""
    if not spec.multiplies or spec.level != Warpgroup:
        return ""
    if spec.A.dtype == spec.B.dtype == float32:
        return "dtype=tf32 in the spec, for the same float32 arrays; "
    stated = {name: stated_storage(spec.operands[name]) for name in "AB" if spec.operands[name].memory == SH}
    return "".join(f"remove {given} from the load of {name}: wgmma determines the storage; " for name, given in stated.items() if given)


def _strategy_of_step(spec: Spec) -> str:
    """Return the advice for an elementwise step of a block that has a dimension which none of its operands in registers has."""
    private = [name for name, view in spec.operands.items() if view.memory.private]
    if not private or spec.level != Block or not elementwise(spec):
        return ""
    missing = [dim for name in spec.outputs for dim in spec.uses[name] if all(dim not in spec.uses[other] for other in private)]
    if not missing:
        return ""
    chain = "AnySpec.tile(...).to(Warp).tile(...).to(Lane).done()"
    return f"no operand in registers has {', '.join(missing)}, so the step needs a strategy of its own: .step(STEP, {chain}); "


@by_identities  # a leaf that waits is matched again after each decision about register ownership
def _candidates(executables: tuple[Executable, ...], spec: Spec) -> tuple[Executable, ...]:
    """Return the executables that may perform a spec. The result depends only on the arguments, so it is cached."""
    return tuple(executable for executable in executables if executable.may_perform(spec))


def _require_terms(following: Following, context: Context) -> None:
    """Refuse a reduction of a register operand if its threads do not own all elements that it reduces."""
    wrong = following.mismatches(context)
    if wrong:
        rows = "".join(f"\n      {mismatch.field:<8} requires {mismatch.wanted}, got {mismatch.got}" for mismatch in wrong)
        name = following.spec.operands[following.name].tensor.name
        raise MatchError(
            f"{following.spec}: the threads do not own all elements of {name} that they reduce:{rows}",
            hint=f"load {following.name} at this level, or reduce at the level whose threads own it",
        )


Comparison = list[tuple[Executable, tuple[Mismatch, ...]]]


def nearest(spec: Spec, context: Context, executables: tuple[Executable, ...] | None = None) -> tuple[Executable | None, Comparison]:
    """Return the first executable that performs a spec, and the comparisons with all executables.

    An executable that performs the spec as a whole precedes one that performs it element by element. If none matches, the comparisons are
    sorted by `_distance`.
    """
    executables = context.instructions if executables is None else executables
    compared = [(executable, differences(executable, spec, context)) for executable in executables]
    if all(mismatches for _, mismatches in compared) and (simple := plain(spec)) is not spec:
        return nearest(simple, context, executables)
    performing = [executable for executable, mismatches in compared if not mismatches]
    first = next((executable for executable in performing if not executable.fits(spec, context)), performing[0] if performing else None)
    if first is not None:
        return first, compared
    return None, sorted(compared, key=lambda pair: _distance(pair[1]))


def _distance(mismatches: tuple[Mismatch, ...]) -> tuple[int, ...]:
    """How far an instruction is from a spec, for sorting: a copy that lacks only an owner of its registers is near."""
    unowned = _differs(mismatches, "registers")
    places = (_differs(mismatches, what) for what in ("level", ("memory", "memories")))
    return _differs(mismatches, "spec"), not unowned, len(mismatches) > 1, *places, len(mismatches)


def differences(executable: Executable, spec: Spec, context: Context) -> tuple[Mismatch, ...]:
    """Return the reasons why an executable does not perform a spec, as a whole or element by element."""
    mismatches = executable.fits(spec, context)
    if mismatches and (simple := plain(spec)) is not spec:
        return differences(executable, simple, context)
    following = Following.of(spec, context)
    if not mismatches or (following is None and not undistributed(spec, context)):
        return mismatches
    if executable.mismatches(element_of(spec, Thread) if following is None else following.element, context.architecture):
        return mismatches
    if following is None:
        return (*mismatches, Mismatch("registers", "an operand whose thread ownership another statement decides", "none"))
    of_owners = following.mismatches(context)
    return mismatches if of_owners and spec.level.threads == 1 else of_owners


def _differs(mismatches: tuple[Mismatch, ...], what: str | tuple[str, ...]) -> bool:
    """Whether a field whose name ends with `what`, or with one of several texts, differs."""
    return any(mismatch.field.endswith(what) for mismatch in mismatches)


def table(compared: Comparison) -> str:
    """Format the differences of each executable, field by field."""
    rows = []
    for executable, mismatches in compared:
        rows.append(f"    {executable.name:<10} {executable.performs()}")
        rows += [f"      {mismatch.field:<8} requires {mismatch.wanted}, got {mismatch.got}" for mismatch in mismatches]
    return "\n".join(rows)


def _other_target(compared: Comparison) -> str:
    """Return a line that names the target on which the nearest executable matches; empty if other fields differ, too."""
    executable, mismatches = compared[0]
    if [mismatch.field for mismatch in mismatches] != ["target"]:
        return ""
    target = mismatches[0].wanted.split()[0]
    return f'\n    for {target} it matches {executable.name}: compile("{target}"), --arch {target}'


@verb()
def done(executable: Executable | str | None = None) -> Done:
    """Match the residual spec with an instruction of the target, the given executable, or the given micro-kernel.

    Args: executable: nothing, an `Executable`, a `MicroKernel`, CUDA C++ text, or the name of a `.cu` file in the folder of the strategy's
        file or in the working directory.
    Legal if the executable performs the spec: kind, level, memories, sizes and types must match, and the target must support it. A
    micro-kernel performs any spec.
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
