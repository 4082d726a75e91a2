"""The compilation pipeline: spec + strategy -> tree -> IR -> CUDA C++. Each stage is computed once, when needed."""

from __future__ import annotations

import contextlib
import functools
import math
import re
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from fireiron import collecting
from fireiron.display import Displayed
from fireiron.errors import ArgumentError, DecompositionError, FireironError, ResourceError, SynchronizationError
from fireiron.executable import INSTRUCTIONS
from fireiron.frozen import frozen
from fireiron.ir import Buffer, Kernel, verify
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.verifier import verify_asks
from fireiron.language import launching
from fireiron.language.launching import Part, Plan
from fireiron.language.tree import Executable, Node
from fireiron.spec import Spec, sizes_of, with_strides
from fireiron.values.expr import FALSE, Expr, Var, constant, is_cuda_name
from fireiron.values.machine import Architecture, DType, as_architecture

if TYPE_CHECKING:
    from fireiron import cuda as printer
    from fireiron.check import Finding
    from fireiron.gpu.early import EarlyCompilation
    from fireiron.language.strategy import Strategy
    from fireiron.lower.passes import Passes
    from fireiron.lower.walk import ExpandedTree
    from fireiron.values.tensor import Storage

# The passes, the checks and the printer are imported where they are used, because a cached program needs none of them.

ERRORS: Mapping[str, type[FireironError]] = {"race": SynchronizationError, "resources": ResourceError}
"""The error class for an error finding, by kind; other kinds raise a `DecompositionError`."""


@frozen(eq=False)
class Launch:
    """One launch of a program.

    Attributes:
        program: the program of its kernel: its tree, IR and text.
        arrays: the array of each operand of the kernel: an operand of the program's spec, or a temporary. The first launch that writes a
            temporary allocates it.
        name, reason: texts of the step that added the launch; empty for the last launch.
    """

    name: str
    program: Program = attrs.field(repr=False)
    reason: str
    arrays: Mapping[str, str]

    @property
    def kernel(self) -> Kernel:
        """The final kernel IR."""
        return self.program.ir

    @property
    def spec(self) -> Spec:
        """The spec of the kernel, whose arrays have the names of its operands."""
        return self.program.inner

    @property
    def reads(self) -> tuple[str, ...]:
        """The arrays that the launch reads, including outputs to which it accumulates."""
        spec = self.spec
        added = spec.outputs if spec.atomic or spec.accumulate != FALSE else ()
        return tuple(dict.fromkeys(self.arrays[name] for name in (*spec.inputs, *added) if not spec.operands[name].memory.is_coordinate))

    @property
    def reads_of_all_gpus(self) -> tuple[str, ...]:
        """The arrays of which the launch reads the parts of all GPUs of a node."""
        operands = self.spec.operands
        return tuple(dict.fromkeys(self.arrays[name] for name in self.spec.inputs if operands[name].tensor.of_all_gpus))

    @property
    def writes(self) -> tuple[str, ...]:
        """The arrays that the launch writes."""
        return tuple(self.arrays[name] for name in self.spec.outputs)

    def __str__(self) -> str:
        return f"{self.program.name}: {self.spec}" + (f", since {self.reason}" if self.reason else "")


@attrs.frozen(eq=False, slots=False)
class Program(Displayed):
    """A bound strategy on a target.

    Most strategies have one launch; steps such as `repack` add launches before it. Tree, kernel IR and text are those of the last launch,
    whose operands may be temporaries of earlier ones.

    `chosen` are the values of tunables. `seconds` are the wall times of the computed stages: `"tunables"` (the search for legal values),
    `"tree"`, `"walk"`, each pass, `"verify"`, `"check"` and `"print"`.
    """

    strategy: Strategy
    spec: Spec
    architecture: Architecture
    instructions: tuple[Executable, ...] = INSTRUCTIONS
    name: str = ""
    chosen: Mapping[str, int] = attrs.field(factory=dict)
    seconds: dict[str, float] = attrs.field(factory=dict, init=False, repr=False)

    def __repr__(self) -> str:
        chosen = "".join(f", {name}={value}" for name, value in self.chosen.items())
        return f"<program {self.name} of {self.spec} for {self.architecture}{chosen}>"

    @staticmethod
    def of(
        strategy: Strategy, architecture: Any = None, instructions: tuple[Executable, ...] = INSTRUCTIONS, name: str | None = None
    ) -> Program:
        """Return the program of a bound strategy; tunables without a value get the first legal combination."""
        target = as_architecture(strategy.target if architecture is None else architecture)
        assert strategy.spec is not None
        if name is not None and not (is_cuda_name(name) and name not in _reserved() and not name.startswith("__")):
            raise ArgumentError(
                "the name of a kernel must be an identifier without another meaning in CUDA C++", got=name, legal="my_kernel"
            )
        if not isinstance(instructions, tuple) or not all(isinstance(instruction, Executable) for instruction in instructions):
            raise ArgumentError("instructions must be a tuple of executables", got=instructions, legal="(Mine(), *INSTRUCTIONS)")
        refinement_name = next((step.whole_kernel[1] for step in strategy.steps if step.whole_kernel[1]), "")
        label = name or refinement_name or _kernel_name(strategy.spec.title)
        if not strategy.tunables():
            return Program(strategy, strategy.spec, target, instructions, label)
        start = time.perf_counter()
        with collecting.postponed():
            program = _first_legal(strategy, target, instructions, label)
        spent = time.perf_counter() - start
        stages = dict(program.seconds)
        program.seconds.clear()
        program.seconds.update({"tunables": spent - sum(stages.values()), **stages})
        return program

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the enclosed block to `seconds`; postpone garbage collection until its end."""
        start = time.perf_counter()
        with collecting.postponed():
            yield
        self.seconds[stage] = time.perf_counter() - start

    @functools.cached_property
    def _plan(self) -> Plan:
        """The launches before the last one, and the last, as specs and steps."""
        plan = launching.plan(self.name, self.spec, self.strategy.steps, lambda spec: lambda: self._as_given(spec))
        if plan.before:
            from fireiron.check.launches import check_launches

            for finding in check_launches(self.spec, (*plan.before, plan.last)):
                raise DecompositionError(finding.message, within=self.spec)
        return plan

    @functools.cached_property
    def _given(self) -> dict[Spec, ExpandedTree | FireironError]:
        """The tree of the last launch's steps, or the error that refuses them, by spec."""

        return {}

    def _as_given(self, spec: Spec) -> tuple[Node, Mapping[str, Storage]] | None:
        """Return the tree of the steps after those that make launches, for the operands of a spec; None if they are illegal."""
        from fireiron.lower.walk import grow_tree

        if spec not in self._given:
            steps = self.strategy.steps[launching.count_launch_steps(self.strategy.steps) :]
            try:
                self._given[spec] = grow_tree(spec, steps, self.architecture, self.instructions)
            except FireironError as error:
                self._given[spec] = error
        tree = self._given[spec]
        return None if isinstance(tree, FireironError) else (tree.node, tree.context.whole.chosen_storage)

    def _launched(self, part: Part) -> Iterator[Launch]:
        """Return the launches of a part: one, or those that its strategy specifies."""
        program = self._of(part, f"{self.name}_{part.kernel}")
        for launch in program.launches:
            arrays = {name: part.arrays.get(array, f"{part.kernel}_{array}") for name, array in launch.arrays.items()}
            alone = launch.program
            if alone is program and program.preceding:
                alone = program.last
            yield Launch(launch.name or part.name, alone, launch.reason or part.reason, arrays)

    def _of(self, part: Part, name: str) -> Program:
        """Return the program of a part."""
        strategy = attrs.evolve(self.strategy, steps=part.steps, spec=part.spec, start=part.spec.starter, others=(), refused=())
        return Program(strategy, part.spec, self.architecture, self.instructions, name)

    @functools.cached_property
    def preceding(self) -> tuple[Launch, ...]:
        """The launches before the last one, in order; usually none."""
        return tuple(launch for part in self._plan.before for launch in self._launched(part))

    @property
    def last(self) -> Program:
        """The program of the last launch, without those before it; the program itself if it has one launch."""
        if not self.preceding and self.inner == self.spec:
            return self
        program, plan = self._of(self._plan.called, self.name), self._plan
        if plan.overlapped is not None:  # its steps begin above the level of the joined launch
            program.__dict__["_plan"] = Plan((), plan.last, plan.overlapped)
        return program

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches, in order; the last has the program's own tree and IR."""
        return (*self.preceding, Launch("", self, "", self._plan.called.arrays))

    @property
    def barriers(self) -> tuple[str, ...]:
        """Why a barrier of all GPUs of a node precedes each launch, and follows the last one; empty texts for none."""
        reasons: list[str] = []
        ordered: set[str] = set()
        for launch in self.launches:
            awaits = launch.program is self and self._plan.overlapped is not None  # it waits for other GPUs itself
            crossing = [array for array in launch.reads_of_all_gpus if array not in ordered and not awaits]
            ordered |= set(crossing)
            reasons.append(f"other GPUs write {', '.join(crossing)}" if crossing else "")
        return (*reasons, f"other GPUs read {', '.join(sorted(ordered))}, which may change afterwards" if ordered else "")

    def stored(self, operand: str) -> Buffer:
        """Return an operand as the caller stores it: the parameter of the first launch that accesses it."""
        for launch in self.launches:
            for name, array in launch.arrays.items():
                if array == operand:
                    buffer = launch.program.ir.buffer(name)
                    return buffer if name == operand else attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, name=operand))
        raise ArgumentError(f"no launch of {self.name} accesses {operand}", legal=list(self.spec.operands))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The names of the inputs, in the order of a call."""
        return tuple(self.spec.inputs)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs, in order."""
        return tuple(self.spec.outputs)

    def shape(self, operand: str) -> tuple[Expr, ...]:
        """Return the extents of an operand's array."""
        view = self.spec.operands[operand]
        return view.tensor.array.shape if view.tensor.through is not None else tuple(map(view.extent, range(len(view.dims))))

    @property
    def numbers(self) -> Mapping[str, DType]:
        """The inputs that are numbers passed by value, with their types."""
        return {name: view.dtype for name, view in self.spec.operands.items() if view.memory.by_value}

    @property
    def sizes(self) -> tuple[Var, ...]:
        """The run-time sizes, without strides."""
        return sizes_of(self.spec)

    @property
    def adds_to(self) -> tuple[str, ...]:
        """The outputs to whose initial values the kernel adds."""
        return self.outputs if self.spec.atomic or constant(self.spec.accumulate) != 0 else ()

    def symbols_for(self, name: str, known: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return known sizes with the strides of packed arrays, for the storage of one operand."""
        return {**known, **with_strides(self.spec, known)}

    @property
    def inner(self) -> Spec:
        """The spec of the last launch; `spec` itself if it is the only one."""
        return self._plan.called.spec

    @functools.cached_property
    def grown(self) -> ExpandedTree:
        """The decomposition tree with the number of threads and the grid."""
        from fireiron.lower.walk import grow_tree

        with self.timed("tree"):
            last = self._plan.last
            known = self._given.get(last.spec) if "_given" in self.__dict__ else None
            if isinstance(known, FireironError):
                raise known
            return grow_tree(last.spec, last.steps, self.architecture, self.instructions) if known is None else known

    @property
    def tree(self) -> Node:
        """The decomposition tree."""
        return self.grown.node

    @functools.cached_property
    def least_shared(self) -> int:
        """A lower bound of the shared memory of a block in bytes, from the tree: the operands of one spec, with all stages."""
        return max(_shared_bytes(node.spec) for node in self.tree.nodes())

    @functools.cached_property
    def _sequential(self) -> dict[str, Kernel]:
        """The kernel IR after the walk and after each pass before synchronization, by name."""
        from fireiron.lower.footprint import require_small
        from fireiron.lower.passes import SEQUENTIAL
        from fireiron.lower.walk import walk

        tree = self.grown
        with self.timed("walk"):
            kernel = attrs.evolve(walk(tree, self._plan.last.spec, self.name), title=tuple(self.title()))
            require_small(kernel)
            self._require_ready(kernel)
        return self._passed({"walk": kernel}, SEQUENTIAL)

    def _require_ready(self, kernel: Kernel) -> None:
        """Refuse `no_wait` for operands that an earlier launch writes."""
        arrays = self._plan.called.arrays if kernel.effects[DependentLaunch].no_wait else {}
        written = {array: launch.spec.copies for launch in self.preceding for array in launch.writes} if arrays else {}
        for name in kernel.effects[DependentLaunch].no_wait:
            if arrays[name] in written:
                what = "copies" if written[arrays[name]] else "writes"
                raise DecompositionError(
                    f"programmatic_launch(no_wait={name}): a preceding launch {what} {name}, so the kernel must wait for it",
                    within=self.inner,
                    hint="store it in the layout that the kernel reads, or remove it from no_wait",
                )

    def _passed(self, stages: dict[str, Kernel], passes: Passes) -> dict[str, Kernel]:
        """Return the stages, extended by further passes."""
        kernel = next(reversed(stages.values()))
        for name, function in passes:
            with self.timed(name):
                result = function(kernel)
                kernel = result if result is kernel else verify(result)
                verify_asks(kernel, (*stages, name))
            stages[name] = kernel
        return stages

    @property
    def walked(self) -> Kernel:
        """The kernel IR after the walk: the program of the tree, before any pass."""
        return self._sequential["walk"]

    @property
    def sequential(self) -> Kernel:
        """The kernel IR before synchronization. It determines the speed, but may still be illegal."""
        return next(reversed(self._sequential.values()))

    @functools.cached_property
    def stages(self) -> dict[str, Kernel]:
        """The kernel IR after the walk and after each pass, by name."""
        from fireiron.lower.passes import PASSES, SEQUENTIAL

        return self._passed(dict(self._sequential), PASSES[len(SEQUENTIAL) :])

    @functools.cached_property
    @collecting.postponed()
    def lowered(self) -> Kernel:
        """The final kernel IR, verified, before the independent checks. Raises: `ResourceError` if it exceeds the target's resources."""
        kernel, copied = self._verified(next(reversed(self.stages.values()))), self._plan.overlapped
        if copied is None:
            return kernel
        copy = self._copy.lowered
        if copied.plan.called is not None:
            from fireiron.lower.exchange import exchanged

            gpus = constant(copied.copy.spec.operands["P"].tensor.shape[-1]) or 1
            return self._verified(exchanged(kernel, copy, copied.called.spec, gpus, copied.plan.tile, copied.plan.warps))
        from fireiron.lower.overlap import overlapped

        return self._verified(overlapped(kernel, copy, copied.called.spec, copied.operand, copied.plan.tile, copied.plan.warps))

    @functools.cached_property
    def _copy(self) -> Program:
        """The program of the copy that the last launch performs."""
        assert self._plan.overlapped is not None
        part = self._plan.overlapped.copy
        return self._of(part, f"{self.name}_{part.kernel}")

    def _verified(self, kernel: Kernel) -> Kernel:
        from fireiron.check.resources import resource_errors

        with self.timed("verify"):
            verified = verify(kernel, final=True)
            for finding in resource_errors(verified):
                raise _error_of(finding)
            return verified

    @functools.cached_property
    @collecting.postponed()
    def ir(self) -> Kernel:
        """The final kernel IR, without errors of the independent checks (see `fireiron.check.PROMISES`).

        Raises: a `SynchronizationError` for a race, a `ResourceError` if it exceeds the target's resources, a `DecompositionError` for
        other errors: accesses out of bounds, misaligned accesses, reads of uninitialized memory.
        """
        from fireiron.check import safety

        kernel = self.lowered
        with self.timed("check"):
            findings = (*safety(kernel), *self._of_launches())
        for finding in findings:
            raise _error_of(finding)
        return kernel

    def _of_launches(self) -> tuple[Finding, ...]:
        """Return the contradictions between the order of launches and their accesses to arrays."""
        if not self.preceding:
            return ()
        from fireiron.check.launches import check_effects

        return tuple(check_effects([(launch, launch.program.grown.whole.effects) for launch in self.launches]))

    @functools.cached_property
    def unproved_text(self) -> str:
        """The text before the independent checks, for a concurrent compilation; it must not be launched."""
        from fireiron import cuda as printer

        kernel = self.lowered
        with self.timed("print"):
            return printer.emit(kernel)

    @functools.cached_property
    @collecting.postponed()
    def text(self) -> str:
        """CUDA C++ of the kernel of the last launch: a complete unit."""
        _ = self.ir
        return self.unproved_text

    @property
    def cuda(self) -> str:
        """CUDA C++: one unit with the kernels of all launches, in their order."""
        if not self.preceding:
            return self.text
        from fireiron import cuda as printer

        return printer.emit(*(launch.program.ir for launch in self.launches))

    @property
    def lines(self) -> tuple[printer.Line, ...]:
        """The lines of `cuda`, each with the paths of the tree nodes that produced it (see `Node.paths`).

        A line that belongs to the complete kernel has no path. With several launches, a path starts with the name of its kernel.
        """
        from fireiron import cuda as printer

        return tuple(printer.printed(*(launch.program.ir for launch in self.launches)))

    @functools.cached_property
    def early(self) -> EarlyCompilation | None:
        """The compilation of `unproved_text` that runs concurrently with the checks, if any."""
        return None

    def begin_early(self, compilation: EarlyCompilation) -> None:
        """Store the concurrent compilation of `unproved_text`."""
        self.__dict__["early"] = compilation

    # ------------------------------------------------------------------------------------------ disk cache

    @property
    def is_complete(self) -> bool:
        """Whether IR and text exist."""
        return "text" in self.__dict__

    @property
    def has_key(self) -> bool:
        """Whether the program was looked up in the disk cache."""
        return "key" in self.__dict__

    @functools.cached_property
    def key(self) -> str | None:
        """The key in the disk cache; None if the program was not looked up, or cannot be cached."""
        return None

    @functools.cached_property
    def cached_since(self) -> float | None:
        """The time at which the cached program was checked, in seconds since 1970; None if it was checked in this process."""
        return None

    @property
    def proof(self) -> str:
        """Where the independent checks passed, as text: in this process, or on the date at which the program was cached."""
        _ = self.ir
        if self.cached_since is None:
            return "checked in this process"
        return f"checked on {time.strftime('%Y-%m-%d', time.gmtime(self.cached_since))}, as the cache on disk kept it"

    @property
    def parts(self) -> tuple[Any, ...]:
        """The cached parts: the launches as specs and steps, the final checked IR, and the text."""
        return self._plan, self.ir, self.text

    def set_key(self, key: str | None) -> None:
        """Store the key under which the program was looked up."""
        self.__dict__["key"] = key

    def adopt(self, parts: tuple[Any, ...], since: float) -> None:
        """Use the cached parts of an equal program, checked at a given time."""
        plan, ir, text = parts
        if not isinstance(plan, Plan) or not isinstance(ir, Kernel) or not isinstance(text, str) or ir.name != self.name:
            raise ValueError("it is not a program of this name")
        self.__dict__.update(_plan=plan, lowered=ir, ir=ir, text=text, cached_since=float(since))

    def title(self) -> list[str]:
        """The strategy, one step per line, for the header comment of the printed kernel."""
        steps, own = self.strategy.steps, self._plan.last.steps
        whole = steps if steps[len(steps) - len(own) :] == own else own
        return [line for step in whole for line in step.title()]

    def trace(self) -> tuple[tuple[str, Spec], ...]:
        """Return each step of the main chain with the spec after it; `tile` and `to` are separate, as in the paper's listings."""
        rows: list[tuple[str, Spec]] = []
        node = self.tree
        while node.step is not None and node.children and not node.step.ends:
            names = [name for name, _ in node.children]
            child = node.children[names.index("body") if "body" in names else -1][1]
            if child.spec.level != node.spec.level:
                rows.append((node.step.unrefined().summary(), child.spec.at_level(node.spec.level)))
                rows.append((f"to({child.spec.level})", child.spec))
            else:
                rows.append((node.step.summary(), child.spec))
            node = child
        return tuple(rows)


def _reserved() -> frozenset[str]:
    """Return the names that are reserved in every kernel."""
    from fireiron.lower.walk import RESERVED

    return RESERVED


def _kernel_name(title: str) -> str:
    """Return the default name of a spec's kernel: its title, with `_kernel` if the title has a meaning in CUDA C++."""
    label = title.lower()
    return f"{label}_kernel" if label in _reserved() else label


def _error_of(finding: Finding) -> FireironError:
    """Return the exception for an error finding."""
    return ERRORS.get(finding.kind, DecompositionError)(finding.message, within=finding.access, at=finding.at)


def _shared_bytes(spec: Spec) -> int:
    """Return the bytes of a spec's operands in shared memory, as far as they are known."""
    tensors = {view.tensor.name: view.tensor for view in spec.operands.values() if view.tensor.memory.in_shared}.values()
    return sum((constant(tensor.storage().extent) or 0) * tensor.copies * tensor.dtype.bytes for tensor in tensors)


MOST_IN_ORDER = 16
"""Number of combinations of tunables to try in order before the search for a nearby legal combination."""

MOST_PASSED = 128
"""Maximum number of combinations to try in order if a nearby one is legal. If none of these is legal, the nearby one is used."""

MOST_TRIED = 96
"""Maximum number of combinations that this search lowers. Those whose buffers are too large according to the tree do not count."""


class _Search:
    """The tried combinations of a strategy's tunables, with the kind of each error and the excess of resources."""

    def __init__(self, strategy: Strategy, target: Architecture, instructions: tuple[Executable, ...], label: str) -> None:
        self.strategy, self.target, self.instructions, self.label = strategy, target, instructions, label
        self.first: Mapping[str, int] | None = None
        self.failures: dict[tuple[int, ...], tuple[str, int]] = {}
        self.messages: dict[str, str] = {}
        self.lowered = 0

    def program(self, values: Mapping[str, int]) -> Program | None:
        """Return the program with these values; None if it is illegal."""
        key = tuple(values.values())
        if key in self.failures:
            return None
        self.first = values if self.first is None else self.first
        try:
            program = self._program_with(values)
            if program.least_shared > self.target.shared_per_block:  # lowering would report this, too
                self._note(key, f"ResourceError: {program.least_shared} bytes of shared memory", program.least_shared)
                return None
            self.lowered += 1
            _ = program.lowered if program.tree.complete else None
        except FireironError as error:
            amounts = [int(number) for number in re.findall(r"\d+", error.asked)] if isinstance(error, ResourceError) else []
            self._note(key, f"{type(error).__name__}: {error.headline}", amounts[0] if amounts else 0)
            return None
        return program

    def _program_with(self, values: Mapping[str, int]) -> Program:
        assert self.strategy.spec is not None
        return Program(self.strategy.with_(**values), self.strategy.spec, self.target, self.instructions, self.label, values)

    def _note(self, key: tuple[int, ...], text: str, amount: int) -> None:
        kind = re.sub(r"\d+", "", text)
        self.failures[key] = kind, amount
        self.messages.setdefault(kind, text)

    def near(self) -> Program | None:
        """Return the program of a legal combination near a promising illegal one; None if there is none.

        Vary one tunable at a time, starting from the first combination, from one with each new kind of error, and from the one with the
        least excess of resources.
        """
        known = self.strategy.tunables()
        waiting = {"": {name: tunable.values[0] for name, tunable in known.items()}}
        least: dict[str, int] = {}
        most = self.lowered + MOST_TRIED
        while waiting:
            values = waiting.pop(next(iter(waiting)))
            for name, value in [(name, value) for name, tunable in known.items() for value in tunable.values]:
                other = {**values, name: value}
                program = self.program(other)
                if program is not None:
                    return program
                kind, amount = self.failures[tuple(other.values())]
                if kind not in least or amount < least[kind]:
                    least[kind], waiting[kind] = amount, other
                if self.lowered >= most:
                    return None
        return None

    def _failure(self, values: Mapping[str, int]) -> FireironError:
        """Return the error for illegal values."""
        try:
            _ = self._program_with(values).lowered
        except FireironError as error:
            return error
        raise AssertionError(f"{values} are legal")

    def refusal(self) -> FireironError:
        """Return the first error, with a summary of the others."""
        assert self.first is not None
        first = self._failure(self.first)
        known = self.strategy.tunables()
        total, tried = math.prod(len(tunable.values) for tunable in known.values()), len(self.failures)
        names = ", ".join(map(repr, known.values()))
        hint = f"no combination of the tunables is legal ({names}); the first fails as above"
        if tried < total:
            hint = f"{tried} of the {total} combinations of the tunables were tried, and none is legal; the first fails as above"
            hint += "; list(strategy.legal_assignments(target)) tries all"
        others = [text for text in self.messages.values() if first.headline not in text][:3]
        first.hint = "; ".join([hint, *(f"others: {text}" for text in others), *([first.hint] if first.hint else [])])
        return first


def _first_legal(strategy: Strategy, target: Architecture, instructions: tuple[Executable, ...], label: str) -> Program:
    """Return the program with the first legal combination of values, or with a nearby one if the first one is late in the order."""
    search = _Search(strategy, target, instructions, label)
    near: Program | None = None
    for number, values in enumerate(strategy.assignments()):
        if number == MOST_IN_ORDER:
            near = search.near()
        if number >= (MOST_IN_ORDER if near is None else MOST_PASSED):
            break
        program = search.program(values)
        if program is not None:
            return program
    if near is not None:
        return near
    raise search.refusal() from None
