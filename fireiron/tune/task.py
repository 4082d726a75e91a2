"""The tuning task, and the steps of a candidate: lowering, prediction, compilation. Separate processes execute the steps (`child.py`)."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import io
import json
import math
import operator
import pickle
import sys
from collections.abc import Iterable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import attrs

from fireiron._version import VERSION
from fireiron.decomp.print_values import PrintValues
from fireiron.errors import ArgumentError, FireironError, StoreError
from fireiron.executable import INSTRUCTIONS
from fireiron.language.strategy import Strategy
from fireiron.language.tree import Executable
from fireiron.specs.fused import fused
from fireiron.specs.fused_definition import FusedDefinition
from fireiron.specs.steps import Step
from fireiron.tasks.program import Variant
from fireiron.tune.record import describe, strategy_hash
from fireiron.values.machine import as_architecture, as_integer

if TYPE_CHECKING:
    from fireiron.compiler import Program
    from fireiron.gpu.kernel import CompiledKernel
    from fireiron.gpu.toolchain import Compiled
    from fireiron.spec import Spec

USER_FILE: Final = "fireiron file "
"""The prefix of the module names that `library` gives to users' files."""


@attrs.frozen(eq=False, slots=False)
class Task:
    """A bound strategy with open tunables, for a target.

    `fixed` has the tunables that are not searched; `sizes` the values of run-time sizes; `name` is the strategy's name in records.
    """

    strategy: Strategy
    architecture: str
    fixed: Mapping[str, int] = attrs.field(factory=dict)
    sizes: Mapping[str, int] = attrs.field(factory=dict)
    name: str = "strategy"
    instructions: tuple[Executable, ...] | None = None

    @functools.cached_property
    def space(self) -> Space:
        """The combinations of values."""
        known = self.strategy.tunables()
        return Space({name: (self.fixed[name],) if name in self.fixed else known[name].values for name in known})

    @functools.cached_property
    def whole(self) -> Space:
        """All combinations, including those that `fixed` excludes."""
        return Space({name: tunable.values for name, tunable in self.strategy.tunables().items()})

    def program(self, values: Mapping[str, int]) -> Program:
        """Return the program for values of all tunables."""
        return self.strategy.with_(**values).program(self.architecture, self.instructions)

    @functools.cached_property
    def unrecorded(self) -> str:
        """Return the reason why the spec cannot be recorded; "" if it can."""
        assert self.strategy.spec is not None
        try:
            describe(self.strategy.spec)
        except StoreError as error:
            return why(error)
        return ""

    def describe(self) -> dict[str, Any]:
        """The identity of the task, for the first line of a journal."""
        spec = self.strategy.spec
        assert spec is not None
        plain = {
            "fireiron": VERSION,
            "strategy": self.name,
            "strategy_hash": strategy_hash(self.strategy),
            "spec": _unrecorded_spec(spec) if self.unrecorded else describe(spec),
            "sizes": dict(self.sizes),
            "architecture": self.architecture,
        }
        if self.instructions is not None:
            plain["instructions"] = hashlib.sha256(repr(self.instructions).encode()).hexdigest()[:16]
        return json.loads(json.dumps(plain))  # type: ignore[no-any-return]

    @property
    def operations(self) -> float:
        """Return the floating-point operations of one launch: two for each multiplication of matmuls; 0 for other specs.

        Masked elements are included.
        """
        spec = self.strategy.spec
        assert spec is not None
        definition = fused(spec)
        if definition is None:
            products: list[Iterable[str]] = [spec.dims] if spec.title == "MatMul" else []
        else:
            products = [_dims_of(step, definition) for step in definition.steps if step.formula.contracts]
        return sum(2.0 * math.prod(int(spec.size(dim).evaluate(self.sizes)) for dim in dims) for dims in products)


def _dims_of(step: Step, definition: FusedDefinition) -> set[str]:
    """Return the dimensions over which a step is repeated: those of its formula, its loops and the parallel parts around it."""
    return {*step.formula.over, *step.formula.dims, *definition.batch, *definition.loops_around(step)}


def _unrecorded_spec(spec: Spec) -> dict[str, str]:
    """Return a text that identifies a spec which records cannot store, for the journal."""
    return {"kind": spec.title, "text": spec.notation, "digest": hashlib.sha256(repr(spec).encode()).hexdigest()[:16]}


def make_task(
    strategy: Any, spec: Any, architecture: Any, *, fixed: Mapping[str, int], sizes: Mapping[str, int], name: str, instructions: Any = None
) -> Task:
    """Return the task of the arguments of `tune`. Raises: `ArgumentError` if they do not match the strategy."""
    if not isinstance(strategy, Strategy):
        raise ArgumentError("tune: strategy must be a Strategy", got=strategy, legal="MatMul.tile(...)...done()")
    bound = strategy if spec is None else strategy(spec)
    if bound.spec is None:
        raise ArgumentError("tune: the strategy is not bound to a spec", hint="tune(strategy, MatMul(M,N,K)(GL,GL,GL)(Kernel))")
    printing = next((step for step in bound.steps if isinstance(step, PrintValues)), None)
    if printing is not None:
        raise ArgumentError(
            "tune: the strategy prints values, which takes most of the time of a kernel", got=printing.label(),
            legal="a strategy without print_values",
            hint=f"remove .{printing.label()}",
        )  # fmt: skip
    known = bound.tunables()
    for tunable, value in fixed.items():
        if tunable not in known:
            raise ArgumentError(f"{tunable}={value}: the strategy has no such tunable", legal=known or "none")
        if value not in known[tunable].values:
            raise ArgumentError(f"{tunable}={value}: not among its values", legal=known[tunable].values)
    target = as_architecture(bound.target if architecture is None else architecture).name
    return Task(bound, target, dict(fixed), _run_time_sizes(bound, sizes), name, _other(instructions))


def _other(instructions: Any) -> tuple[Executable, ...] | None:
    return None if instructions is None or instructions is INSTRUCTIONS else instructions


def _run_time_sizes(strategy: Strategy, sizes: Mapping[str, int]) -> dict[str, int]:
    from fireiron.spec import sizes_of, symbols_of, with_strides

    assert strategy.spec is not None
    symbols = {var.name: var for var in symbols_of(strategy.spec)}
    for name, value in sizes.items():
        if name not in symbols:
            raise ArgumentError(f"{name}={value}: the spec has no such run-time size", legal=symbols or "none")
        number = as_integer(value)
        if number is None or not symbols[name].low <= number <= symbols[name].high or number % symbols[name].multiple_of:
            legal = f"{symbols[name].low} ... {symbols[name].high}, multiples of {symbols[name].multiple_of}"
            raise ArgumentError(f"{name}={value} is not legal for this spec", legal=legal)
    missing = [var.name for var in sizes_of(strategy.spec) if var.name not in sizes]
    if missing:
        hint = f"sizes={{{missing[0]!r}: 4096}}; on the command line --size {missing[0]}=4096"
        raise ArgumentError(f"tuning requires values of the run-time sizes {', '.join(missing)}", hint=hint)
    known = with_strides(strategy.spec, {name: int(value) for name, value in sizes.items()})
    return {name: known[name] for name in symbols}


# ---------------------------------------------------------------------------------------------- the space


@attrs.frozen(eq=False)
class Space:
    """The combinations of the tunables' values, numbered in the order of `Strategy.assignments`."""

    values: Mapping[str, tuple[int, ...]]

    def __len__(self) -> int:
        return math.prod(len(values) for values in self.values.values())

    def __getitem__(self, number: int) -> dict[str, int]:
        """Return the combination with a number.

        >>> Space({"bm": (16, 32), "bn": (8, 64)})[2]
        {'bm': 32, 'bn': 8}
        """
        chosen: dict[str, int] = {}
        for name in reversed(list(self.values)):
            number, digit = divmod(number, len(self.values[name]))
            chosen[name] = self.values[name][digit]
        return {name: chosen[name] for name in self.values}

    def number(self, values: Mapping[str, int]) -> int:
        """Return the index of a combination. Raises: ValueError if it is not in this space."""
        if set(values) != set(self.values):
            raise ValueError(f"{values} are not values of the tunables {' '.join(self.values)}")
        number = 0
        for name, legal in self.values.items():
            number = number * len(legal) + legal.index(values[name])
        return number


# ---------------------------------------------------------------------------------------------- steps of a candidate


@attrs.frozen(kw_only=True)
class Surveyed:
    """The properties of a candidate before it is compiled: only numbers, no IR.

    If no code can be generated, `reason` is the reason; otherwise it is None. `registers` and `spilled` are predictions, per thread.
    """

    reason: str | None = None
    predicted_us: float | None = None
    bottleneck: str = ""
    threads: int | None = None
    shared_bytes: int | None = None
    registers: int | None = None
    spilled: int = 0

    def plain(self) -> dict[str, Any]:
        """Return the facts as JSON, without empty fields."""
        return {name: value for name, value in attrs.asdict(self).items() if value not in (None, "")}

    @staticmethod
    def of(plain: Mapping[str, Any]) -> Surveyed:
        """Return the value of a mapping made by `plain`."""
        fields = {field.name for field in attrs.fields(Surveyed)}
        return Surveyed(**{name: value for name, value in plain.items() if name in fields})


def survey(task: Task, values: Mapping[str, int]) -> Surveyed:
    """Lower a candidate and predict its time. The fastest tests come first: the tree, then the passes, then the cost model."""
    from fireiron import cost

    try:
        program = task.program(values)
        _ = program.tree.complete
        kernel = program.lowered
    except FireironError as error:
        return Surveyed(reason=why(error))
    prediction = cost.predict(program, sizes=dict(task.sizes) or None)
    return Surveyed(
        predicted_us=prediction.us,
        bottleneck=prediction.bottleneck,
        threads=kernel.threads,
        shared_bytes=kernel.shared_bytes,
        registers=prediction.registers.given,
        spilled=prediction.registers.spilled,
    )


def why(error: FireironError) -> str:
    """Return an error in one line: its headline and the offending value."""
    got = "" if error.got is None else f", got {error.got!r}"
    first = error.headline
    return " ".join(f"{first}{got}".split())


@attrs.frozen(kw_only=True)
class Built:
    """A compiled candidate that passed the race check. `compiled` is None if the measurement needs no machine code."""

    text: str
    compiled: Compiled | None = attrs.field(default=None, repr=False)
    registers: int | None = None
    spills: int | None = None
    threads: int | None = None
    shared_bytes: int | None = None
    seconds: float | None = None


def build(task: Task, values: Mapping[str, int], newest: tuple[int, int] | None, compiles: bool) -> Built:
    """Print the kernel, which checks it for races, and compile it through the disk cache.

    Raises: FireironError if the kernel is illegal, or the compiler refuses it.
    """
    from fireiron.gpu import cache

    program = task.program(values)
    digest = hashlib.sha256(program.cuda.encode()).hexdigest()[:16]
    kernel = program.ir
    if not compiles:
        return Built(text=digest, threads=kernel.threads, shared_bytes=kernel.shared_bytes)
    compiled = cache.compile_cached(program.text, program.architecture.name, newest=newest)
    used = compiled.resources[kernel.name]
    return Built(
        text=digest,
        compiled=attrs.evolve(compiled, ptx="", log=""),
        registers=used.registers,
        spills=used.spill_stores + used.spill_loads,
        threads=kernel.threads,
        shared_bytes=max(used.shared_bytes, kernel.shared_bytes),
        seconds=round(compiled.seconds, 3),
    )


@attrs.frozen(eq=False, slots=False)
class Candidate:
    """The argument of a measurement: values, and the kernel, which is built on first use."""

    task: Task
    values: Mapping[str, int]
    built: Built | None = None
    predicted_us: float | None = None

    @functools.cached_property
    def program(self) -> Program:
        """The program."""
        return self.task.program(self.values)

    @functools.cached_property
    def kernel(self) -> CompiledKernel:
        """The kernel, with the machine code that another process compiled."""
        from fireiron.gpu.kernel import CompiledKernel

        kernel = CompiledKernel(self.program)
        if self.built is not None and self.built.compiled is not None:
            vars(kernel)["compiled"] = self.built.compiled  # functools.cached_property reads it there
        return kernel


# ---------------------------------------------------------------------------------------------- pickling


def packed(*objects: Any) -> bytes:
    """Return the objects as bytes that `pickle.loads` reads in another process.

    Raises: ArgumentError: an object cannot be pickled, or another process cannot import its class.
    """
    body = io.BytesIO()
    try:
        _Pickler(body).dump(objects)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ArgumentError(
            f"the tuning task cannot be sent to another process: {error}",
            hint="use no local functions, and define classes at the top level of a module",
        ) from None
    if "__main__" in _modules(body.getvalue()):
        raise ArgumentError(
            "the tuning task uses a class of the main program, which other processes cannot import",
            hint="define it in a separate module, or next to the strategy in path.py",
        )
    return body.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles classes of a user's file by the path of the file. Its module has no importable name, so the file is loaded again."""

    def reducer_override(self, value: Any) -> Any:
        function = getattr(value, "function", None)  # a variant of a task has the name of its function
        named = function if isinstance(value, Variant) else value
        place = getattr(named, "__module__", None) if isinstance(named, (type, FunctionType)) else None
        if isinstance(place, str) and place.startswith(USER_FILE):
            return _of_users_file, (place, _name_in(named))
        if isinstance(value, Variant) and function is not None:
            return _of_module, (place, _name_in(function))
        return NotImplemented


def _name_in(named: Any) -> str:
    """Return the name of a class or a function in its module."""
    name = str(named.__qualname__)
    if "<" in name or named.__module__ == "__main__":
        raise pickle.PicklingError(f"{name} of {named.__module__}")
    return name


def _of_module(module: str, name: str) -> Any:
    return operator.attrgetter(name)(importlib.import_module(module))


def _of_users_file(module: str, name: str) -> Any:
    from fireiron.language.library import find

    if module not in sys.modules:
        with contextlib.suppress(FireironError):  # the file is loaded even if its strategies are not named `strategy`
            find(module.removeprefix(USER_FILE))
    return operator.attrgetter(name)(sys.modules[module])


def _modules(body: bytes) -> set[str]:
    """Return the modules that a pickle imports, and possibly other texts in it."""
    import pickletools

    modules: set[str] = set()
    texts: list[str] = []
    for opcode, argument, _ in pickletools.genops(body):
        if opcode.name == "GLOBAL":
            modules.add(str(argument).split(" ")[0])
        elif opcode.name == "STACK_GLOBAL":
            modules.update(texts)  # the module is one of the texts before it
        elif isinstance(argument, str):
            texts.append(argument)
    return modules
