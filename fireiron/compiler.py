"""The four arrows in one place: spec + strategy -> tree -> IR -> CUDA C++, each stage made once, on demand."""

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
from fireiron.ir import Buffer, Kernel, verify
from fireiron.ir.effects.chaining import Chaining
from fireiron.ir.verifier import verify_asks
from fireiron.language import launching
from fireiron.language.launching import Part, Plan
from fireiron.language.tree import Executable, Node
from fireiron.spec import Spec
from fireiron.values.expr import FALSE, constant, is_cuda_name
from fireiron.values.machine import Architecture, as_architecture

if TYPE_CHECKING:
    from fireiron import cuda as printer
    from fireiron.check import Finding
    from fireiron.gpu.early import EarlyCompilation
    from fireiron.language.strategy import Strategy
    from fireiron.lower.passes import Passes
    from fireiron.lower.walk import Grown
    from fireiron.values.tensor import Storage

# The passes, the checks and the printer are imported where they are used: a program that was kept needs none of them.

ERRORS: Mapping[str, type[FireironError]] = {"race": SynchronizationError, "resources": ResourceError}
"""What is raised for an error that a check reports, by the finding's kind: for any other kind a `DecompositionError`."""


@attrs.frozen(eq=False)
class Launch:
    """One launch of a program.

    `program` is that of its kernel alone: its tree, its IR, its text. `arrays` says which array of the whole program each operand of the
    kernel is: an operand of the program's spec, or a temporary, which the first launch that writes it makes. `name` is what it is called
    among the launches: what the step that asked for it says, and nothing for the last one; `reason` is why it was asked for.
    """

    name: str
    program: Program = attrs.field(repr=False)
    reason: str
    arrays: Mapping[str, str]

    @property
    def kernel(self) -> Kernel:
        """Its final kernel IR."""
        return self.program.ir

    @property
    def spec(self) -> Spec:
        """What its kernel performs, on arrays that have the names of its operands."""
        return self.program.inner

    @property
    def reads(self) -> tuple[str, ...]:
        """The arrays that it reads, outputs that it adds to among them."""
        spec = self.spec
        added = spec.outputs if spec.atomic or spec.accumulate != FALSE else ()
        return tuple(dict.fromkeys(self.arrays[name] for name in (*spec.inputs, *added) if not spec.operands[name].memory.counts))

    @property
    def writes(self) -> tuple[str, ...]:
        """The arrays that it writes."""
        return tuple(self.arrays[name] for name in self.spec.outputs)

    def __str__(self) -> str:
        return f"{self.program.name}: {self.spec}" + (f", since {self.reason}" if self.reason else "")


@attrs.frozen(eq=False, slots=False)
class Program(Displayed):
    """A bound strategy on a target.

    `launches` are the launches in order. Most strategies have one; steps such as `repack` make others before it. Tree, kernel IR and all
    that is made of it are those of the last one, whose operands may be temporaries that others wrote.

    `chosen` are the values its tunables took, `seconds` the wall time of each stage that has been made: `"tunables"` (the search
    for legal values), `"tree"`, `"walk"`, each pass, `"verify"`, `"check"` and `"print"`.
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
        """The program of a bound strategy; tunables without a value take the first legal combination."""
        target = as_architecture(strategy.target if architecture is None else architecture)
        assert strategy.spec is not None
        if name is not None and not (is_cuda_name(name) and name not in _reserved() and not name.startswith("__")):
            raise ArgumentError(
                "the name of a kernel must be an identifier that means nothing else in CUDA C++", got=name, legal="my_kernel"
            )
        if not isinstance(instructions, tuple) or not all(isinstance(one, Executable) for one in instructions):
            raise ArgumentError("instructions must be a tuple of executables", got=instructions, legal="(Mine(), *INSTRUCTIONS)")
        said = next((step.whole_kernel[1] for step in strategy.steps if step.whole_kernel[1]), "")
        label = name or said or _kernel_name(strategy.spec.title)
        if not strategy.tunables():
            return Program(strategy, strategy.spec, target, instructions, label)
        start = time.perf_counter()
        with collecting.put_off():
            program = _first_legal(strategy, target, instructions, label)
        spent = time.perf_counter() - start
        stages = dict(program.seconds)
        program.seconds.clear()
        program.seconds.update({"tunables": spent - sum(stages.values()), **stages})
        return program

    @contextlib.contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """The time of what is done inside goes into `seconds`; garbage is collected behind it."""
        start = time.perf_counter()
        with collecting.put_off():
            yield
        self.seconds[stage] = time.perf_counter() - start

    @functools.cached_property
    def _plan(self) -> Plan:
        """The launches before the last one, and the last, as specs and steps."""
        made = launching.plan(self.name, self.spec, self.strategy.steps, lambda spec: lambda: self._as_given(spec))
        if made.before:
            from fireiron.check.launches import check_launches

            for finding in check_launches(self.spec, (*made.before, made.last)):
                raise DecompositionError(finding.message, within=self.spec)
        return made

    @functools.cached_property
    def _given(self) -> dict[Spec, Grown | None]:
        """By spec, the trees that the steps of the last launch make of it."""
        return {}

    def _as_given(self, spec: Spec) -> tuple[Node, Mapping[str, Storage]] | None:
        """The tree of the steps after those that make launches, for operands as they are; None where these steps refuse it."""
        from fireiron.lower.walk import grow_tree

        if spec not in self._given:
            steps = self.strategy.steps[launching.front(self.strategy.steps) :]
            try:
                self._given[spec] = grow_tree(spec, steps, self.architecture, self.instructions)
            except FireironError:
                self._given[spec] = None
        grown = self._given[spec]
        return None if grown is None else (grown.node, grown.context.whole.settled)

    def _launched(self, part: Part) -> Iterator[Launch]:
        """The launches of a part: one, or those that its own strategy makes."""
        program = self._of(part, f"{self.name}_{part.kernel}")
        for launch in program.launches:
            arrays = {name: part.arrays.get(array, f"{part.kernel}_{array}") for name, array in launch.arrays.items()}
            alone = launch.program
            if alone is program and program.preceding:
                alone = self._of(program._plan.last, program.name)
            yield Launch(launch.name or part.name, alone, launch.reason or part.reason, arrays)

    def _of(self, part: Part, name: str) -> Program:
        """The program of a part by itself."""
        strategy = attrs.evolve(self.strategy, steps=part.steps, spec=part.spec, start=part.spec.starter, others=(), refused=())
        return Program(strategy, part.spec, self.architecture, self.instructions, name)

    @functools.cached_property
    def preceding(self) -> tuple[Launch, ...]:
        """The launches before the last one, in order; none for most strategies."""
        return tuple(launch for part in self._plan.before for launch in self._launched(part))

    @property
    def launches(self) -> tuple[Launch, ...]:
        """All launches, in order: the last one is of the program's own tree and IR."""
        return (*self.preceding, Launch("", self, "", self._plan.last.arrays))

    def stored(self, operand: str) -> Buffer:
        """An operand as the caller stores it: the parameter of the first launch that touches it, called as the operand is."""
        for launch in self.launches:
            for name, array in launch.arrays.items():
                if array == operand:
                    buffer = launch.program.ir.buffer(name)
                    return buffer if name == operand else attrs.evolve(buffer, tensor=attrs.evolve(buffer.tensor, name=operand))
        raise ArgumentError(f"no launch of {self.name} touches {operand}", legal=list(self.spec.operands))

    @property
    def inner(self) -> Spec:
        """The spec of the last launch: the spec itself where there is one."""
        return self._plan.last.spec

    @functools.cached_property
    def grown(self) -> Grown:
        """The decomposition tree with the threads of a block and the grid."""
        from fireiron.lower.walk import grow_tree

        with self.timed("tree"):
            last = self._plan.last
            known = self._given.get(last.spec) if "_given" in self.__dict__ else None
            return grow_tree(last.spec, last.steps, self.architecture, self.instructions) if known is None else known

    @property
    def tree(self) -> Node:
        """The decomposition tree."""
        return self.grown.node

    @functools.cached_property
    def least_shared(self) -> int:
        """Bytes of shared memory that a block needs at least, known from the tree: the operands of one spec, with all their stages."""
        return max(_shared_bytes(node.spec) for node in self.tree.nodes())

    @functools.cached_property
    def _sequential(self) -> dict[str, Kernel]:
        """The kernel IR after the walk and after each pass before synchronisation, by name."""
        from fireiron.lower.footprint import require_small
        from fireiron.lower.passes import SEQUENTIAL
        from fireiron.lower.walk import walk

        grown = self.grown
        with self.timed("walk"):
            kernel = attrs.evolve(walk(grown, self.inner, self.name), title=tuple(self.title()))
            require_small(kernel)
            self._require_ready(kernel)
        return self._passed({"walk": kernel}, SEQUENTIAL)

    def _require_ready(self, kernel: Kernel) -> None:
        """Nothing is called ready that a launch before writes: a `DecompositionError`."""
        arrays = self._plan.last.arrays if kernel.effects[Chaining].ready else {}
        written = {array: launch.spec.copies for launch in self.preceding for array in launch.writes} if arrays else {}
        for name in kernel.effects[Chaining].ready:
            if arrays[name] in written:
                what = "copied by the launch in front" if written[arrays[name]] else "written by a launch before"
                raise DecompositionError(
                    f"programmatic_launch(no_wait={name}): {name} is {what}, for which the kernel has to wait",
                    within=self.inner,
                    hint="store it as the kernel reads it, or leave it out of ready=",
                )

    def _passed(self, stages: dict[str, Kernel], passes: Passes) -> dict[str, Kernel]:
        """Stages, and what further passes make of the last of them."""
        kernel = next(reversed(stages.values()))
        for name, function in passes:
            with self.timed(name):
                made = function(kernel)
                kernel = made if made is kernel else verify(made)
                verify_asks(kernel, (*stages, name))
            stages[name] = kernel
        return stages

    @property
    def walked(self) -> Kernel:
        """The kernel IR as the walk leaves it: the program of the tree, before any pass."""
        return self._sequential["walk"]

    @property
    def sequential(self) -> Kernel:
        """The kernel IR before synchronisation: all that decides about its speed, but not yet whether it is legal."""
        return next(reversed(self._sequential.values()))

    @functools.cached_property
    def stages(self) -> dict[str, Kernel]:
        """The kernel IR after the walk and after each pass, by name."""
        from fireiron.lower.passes import PASSES, SEQUENTIAL

        return self._passed(dict(self._sequential), PASSES[len(SEQUENTIAL) :])

    @functools.cached_property
    def lowered(self) -> Kernel:
        """The final kernel IR, verified, before the independent checks; a `ResourceError` where the target lacks what it needs."""
        from fireiron.check.resources import lacking

        kernel = next(reversed(self.stages.values()))
        with self.timed("verify"):
            verified = verify(kernel, final=True)
            for finding in lacking(verified):
                raise _error_of(finding)
            return verified

    @functools.cached_property
    def ir(self) -> Kernel:
        """The final kernel IR, of which no independent check reports an error (see `fireiron.check.PROMISES`).

        Raises: a `SynchronizationError` for a race, a `ResourceError` for resources that the target lacks, a `DecompositionError` for
        any other error: an access that is out of bounds or misaligned, a read of what was never written.
        """
        from fireiron.check import safety

        kernel = self.lowered
        with self.timed("check"):
            findings = (*safety(kernel), *self._of_launches())
        for finding in findings:
            raise _error_of(finding)
        return kernel

    def _of_launches(self) -> tuple[Finding, ...]:
        """What the kernels of several launches say of arrays that contradicts their order."""
        if not self.preceding:
            return ()
        from fireiron.check.launches import check_effects

        return tuple(check_effects([(launch, launch.program.grown.whole.effects) for launch in self.launches]))

    @functools.cached_property
    def unproved_text(self) -> str:
        """`text` before the independent checks have passed, for a compiler that runs at the same time; nothing launches it."""
        from fireiron import cuda as printer

        kernel = self.lowered
        with self.timed("print"):
            return printer.emit(kernel)

    @functools.cached_property
    def text(self) -> str:
        """CUDA C++ of the kernel of the last launch: a whole unit."""
        _ = self.ir
        return self.unproved_text

    @property
    def cuda(self) -> str:
        """CUDA C++: one unit with the kernels of all launches, in their order."""
        from fireiron import cuda as printer

        return self.text if not self.preceding else printer.emit(*(launch.program.ir for launch in self.launches))

    @property
    def lines(self) -> tuple[printer.Line, ...]:
        """The lines of `cuda`, each with the steps of the tree that made it, as paths from the root (see `Node.paths`).

        A line of the whole kernel has none. Where there are several launches, a path begins with the name of its kernel.
        """
        from fireiron import cuda as printer

        return tuple(printer.printed(*(launch.program.ir for launch in self.launches)))

    @functools.cached_property
    def early(self) -> EarlyCompilation | None:
        """The compilation of `unproved_text` that began while the checks ran, if one did."""
        return None

    def begin_early(self, compilation: EarlyCompilation) -> None:
        """Note the compilation of `unproved_text` that has begun."""
        self.__dict__["early"] = compilation

    # ------------------------------------------------------------------------------------------ kept on disk

    @property
    def is_made(self) -> bool:
        """Whether IR and text are there."""
        return "text" in self.__dict__

    @property
    def is_asked(self) -> bool:
        """Whether it was looked for among the programs that are kept."""
        return "key" in self.__dict__

    @functools.cached_property
    def key(self) -> str | None:
        """What it is kept under, if it was looked for and can be kept."""
        return None

    @functools.cached_property
    def kept_since(self) -> float | None:
        """When what was kept of it was made and proved, in seconds since 1970; None where that was done here."""
        return None

    @property
    def proof(self) -> str:
        """Where the independent checks passed: here, or when the program was made that the cache on disk kept."""
        _ = self.ir
        if self.kept_since is None:
            return "checked in this process"
        return f"checked on {time.strftime('%Y-%m-%d', time.gmtime(self.kept_since))}, as the cache on disk kept it"

    @property
    def parts(self) -> tuple[Any, ...]:
        """What is kept of it: the launches as specs and steps, the final IR, which all checks passed, and its text."""
        return self._plan, self.ir, self.text

    def asked(self, key: str | None) -> None:
        """Note under which key it was looked for."""
        self.__dict__["key"] = key

    def adopt(self, parts: tuple[Any, ...], since: float) -> None:
        """Take what was kept of an equal program, made and proved at a time."""
        plan, ir, text = parts
        if not isinstance(plan, Plan) or not isinstance(ir, Kernel) or not isinstance(text, str) or ir.name != self.name:
            raise ValueError("it is no program of this name")
        self.__dict__.update(_plan=plan, lowered=ir, ir=ir, text=text, kept_since=float(since))

    def title(self) -> list[str]:
        """The strategy, a step a line, for the header of the printed kernel."""
        return [line for step in self.strategy.steps for line in step.title()]

    def trace(self) -> tuple[tuple[str, Spec], ...]:
        """Each step of the main chain with the spec after it; `tile` and `to` apart, as in the paper's listings."""
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
    """Names that mean something in every kernel."""
    from fireiron.lower.walk import RESERVED

    return RESERVED


def _kernel_name(title: str) -> str:
    """What the kernel of a spec is called where nothing is said: its title, with `_kernel` after what CUDA C++ means something by."""
    label = title.lower()
    return f"{label}_kernel" if label in _reserved() else label


def _error_of(finding: Finding) -> FireironError:
    """The error that stops compilation where a check reports one."""
    return ERRORS.get(finding.kind, DecompositionError)(finding.message, within=finding.access, at=finding.at)


def _shared_bytes(spec: Spec) -> int:
    """Bytes of the operands of a spec that lie in shared memory, as far as they are known."""
    tensors = {view.tensor.name: view.tensor for view in spec.operands.values() if view.tensor.memory.in_shared}.values()
    return sum((constant(tensor.storage().extent) or 0) * tensor.copies * tensor.dtype.bytes for tensor in tensors)


MOST_IN_ORDER = 16
"""Combinations of tunables that are tried before the compiler tests whether to give up."""

MOST_PASSED = 128
"""Combinations that are skipped in order if some nearby are legal; then one of these is taken."""

MOST_TRIED = 96
"""More combinations that are lowered for that test; those whose buffers cannot fit are known from the tree and do not count."""


class _Search:
    """The combinations of a strategy's tunables that were tried, with what each failure said: its kind, and how far from fitting it is."""

    def __init__(self, strategy: Strategy, target: Architecture, instructions: tuple[Executable, ...], label: str) -> None:
        self.strategy, self.target, self.instructions, self.label = strategy, target, instructions, label
        self.first: Mapping[str, int] | None = None
        self.failures: dict[tuple[int, ...], tuple[str, int]] = {}
        self.said: dict[str, str] = {}
        self.lowered = 0

    def program(self, values: Mapping[str, int]) -> Program | None:
        """The program with these values; None where it is not legal."""
        key = tuple(values.values())
        if key in self.failures:
            return None
        self.first = values if self.first is None else self.first
        try:
            program = self._made(values)
            if program.least_shared > self.target.shared_per_block:  # as lowering would find out, with all buffers
                self._note(key, f"ResourceError: {program.least_shared} bytes of shared memory", program.least_shared)
                return None
            self.lowered += 1
            _ = program.lowered if program.tree.complete else None
        except FireironError as error:
            amounts = [int(number) for number in re.findall(r"\d+", error.asked)] if isinstance(error, ResourceError) else []
            self._note(key, f"{type(error).__name__}: {error.headline}", amounts[0] if amounts else 0)
            return None
        return program

    def _made(self, values: Mapping[str, int]) -> Program:
        assert self.strategy.spec is not None
        return Program(self.strategy.with_(**values), self.strategy.spec, self.target, self.instructions, self.label, values)

    def _note(self, key: tuple[int, ...], text: str, amount: int) -> None:
        kind = re.sub(r"\d+", "", text)
        self.failures[key] = kind, amount
        self.said.setdefault(kind, text)

    def near(self) -> Program | None:
        """The program of a legal combination near one that fails otherwise, or fits better; None where there is none.

        From the first one, then from one that fails in each new way, and from the one that is nearest to fitting, one tunable after
        the other takes all its values.
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
        """Why values are not legal, as lowering says it."""
        try:
            _ = self._made(values).lowered
        except FireironError as error:
            return error
        raise AssertionError(f"{values} are legal")

    def refusal(self) -> FireironError:
        """The first failure, with what became of the others."""
        assert self.first is not None
        first = self._failure(self.first)
        known = self.strategy.tunables()
        total, tried = math.prod(len(tunable.values) for tunable in known.values()), len(self.failures)
        names = ", ".join(map(repr, known.values()))
        hint = f"no combination of the tunables is legal ({names}); the first fails as above"
        if tried < total:
            hint = f"{tried} of the {total} combinations of the tunables were tried, and none is legal; the first fails as above"
            hint += "; list(strategy.legal_assignments(target)) tries all"
        others = [text for text in self.said.values() if first.headline not in text][:3]
        first.hint = "; ".join([hint, *(f"others: {text}" for text in others), *([first.hint] if first.hint else [])])
        return first


def _first_legal(strategy: Strategy, target: Architecture, instructions: tuple[Executable, ...], label: str) -> Program:
    """The program with the first legal combination of the tunables' values, or with one nearby where the first is far from the start."""
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
