"""Tasks: programs whose meaning is that of their sequential text, with nothing about machines (Cypress, section 3.2).

A task has variants, functions of tensors. An Inner one makes tensors, takes them apart and launches tasks; a Leaf one works on data. The
functions run twice over: in NumPy, task by task (`sequential`), and once with loop variables for numbers, by which the compiler reads
them (`step`). What they call here is passed on to whoever runs them.
"""

from __future__ import annotations

import contextvars
import enum
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError, DecompositionError, call_site, closest
from fireiron.tasks.mapping import Mapping, Processor, TaskMapping
from fireiron.tasks.partition import Blocks, Partition, mma_pieces
from fireiron.values.expr import Expr, as_expr, ceildiv, constant
from fireiron.values.machine import DType, as_dtype


class Form(enum.Enum):
    """What a variant does: `Inner` ones launch tasks, `Leaf` ones work on data."""

    Inner = "Inner"
    Leaf = "Leaf"


Inner: Final = Form.Inner
Leaf: Final = Form.Leaf

processor: Final = Processor
"""The kind of a tunable that is a processor."""


@attrs.frozen
class Wanted:
    """The default of a parameter that the mapping binds: the kind of its value."""

    kind: type


def tunable(kind: type) -> Any:
    """The default of a keyword-only parameter of a variant: an `int`, a `str` or a `processor`, which the mapping says."""
    if kind not in (int, str, Processor):
        raise ArgumentError("tunable: an unknown kind", got=kind, legal="int str processor", at=call_site())
    return Wanted(kind)


@attrs.frozen(eq=False)
class Variant:
    """One implementation of a task: a function of tensors, with those that it may read and write, and its tunables."""

    task: str
    form: Form
    reads: frozenset[str]
    writes: frozenset[str]
    function: Callable[..., Any] = attrs.field(repr=False)
    tensors: tuple[str, ...]
    tunables: tuple[tuple[str, type], ...]
    origin: str

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: a task is launched."""
        raise DecompositionError(f"{self.name}: a task is not called", hint=f'launch("{self.task}", ...)', at=call_site())


def task(name: str, form: Form, *, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Variant]:
    """A variant of the task `name`: the function below, whose tensors it `reads` and `writes`.

    Raises: ArgumentError where these are no parameters, or a keyword parameter is no tunable.
    """

    def made(function: Callable[..., Any]) -> Variant:
        parameters = inspect.signature(function).parameters.values()
        tensors = tuple(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD)
        named = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
        code = function.__code__
        origin = f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_firstlineno}"
        if not isinstance(form, Form):
            raise ArgumentError(f"{function.__name__}: neither Inner nor Leaf", got=form, at=origin)
        unknown = [one for one in (*reads, *writes) if one not in tensors]
        if unknown:
            raise ArgumentError(f"{function.__name__}: no tensor {unknown[0]} to read or write", legal=tensors, at=origin)
        wrong = [one for one, default in named.items() if not isinstance(default, Wanted)]
        if wrong:
            raise ArgumentError(f"{function.__name__}: {wrong[0]} is no tunable", legal=f"{wrong[0]}=tunable(int)", at=origin)
        tunables = tuple((one, default.kind) for one, default in named.items())
        return Variant(name, form, frozenset(reads), frozenset(writes), function, tensors, tunables, origin)

    return made


@attrs.frozen(init=False)
class Tasks:
    """A program: the variants of its tasks.

    Raises: ArgumentError where two variants have one name, or those of one task take different tensors.
    """

    variants: tuple[Variant, ...]

    def __init__(self, *variants: Variant) -> None:
        for one in variants:
            if not isinstance(one, Variant):
                raise ArgumentError("Tasks: not a variant of a task", got=one, legal="functions under @task(...)", at=call_site())
        names = [one.name for one in variants]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError(f"Tasks: two variants are called {twice}", at=call_site())
        shapes: dict[str, Variant] = {}
        for one in variants:
            first = shapes.setdefault(one.task, one)
            if first.tensors != one.tensors:
                raise ArgumentError(
                    f"{one.name}: variants of {one.task} take the same tensors", got=one.tensors, legal=first.tensors, at=one.origin
                )
        self.__attrs_init__(variants)

    def __getitem__(self, name: str) -> Variant:
        """A variant by its name."""
        for one in self.variants:
            if one.name == name:
                return one
        meant = closest(name, [one.name for one in self.variants])
        raise ArgumentError(f"no variant {name}", legal=[one.name for one in self.variants], hint=f"{meant}?" if meant else None)

    def check(self, mapping: Mapping) -> None:
        """Refuse a mapping that does not fit: unknown variants, tensors without a memory, tunables that are missing, unknown or of
        another kind, calls of a Leaf."""
        for one in mapping.instances:
            _check_instance(self[one.variant], one)


def _check_instance(variant: Variant, one: TaskMapping) -> None:
    where = f"instance {one.instance} of {variant.name}"
    if len(one.mems) != len(variant.tensors):
        raise ArgumentError(f"{where}: a memory for each tensor", got=one.mems, legal=variant.tensors, at=variant.origin)
    wanted, given = dict(variant.tunables), dict(one.tunables)
    for name in wanted:
        if name not in given:
            raise ArgumentError(f"{where}: the tunable {name} has no value", legal=f"{name}={wanted[name].__name__}", at=variant.origin)
    for name, value in given.items():
        if name not in wanted:
            raise ArgumentError(f"{where}: no tunable {name}", legal=tuple(wanted) or "none", at=variant.origin)
        if not isinstance(value, wanted[name]) or isinstance(value, bool):
            raise ArgumentError(f"{where}: the tunable {name}", got=value, legal=wanted[name].__name__, at=variant.origin)
    places = zip(variant.tensors, one.mems, strict=True)
    shared = [name for name, place in places if place.memory is not None and place.memory.of_block]
    for name, _ in one.layouts:
        if name not in shared:
            raise ArgumentError(f"{where}: a layout for {name}, which it has not in SHARED", legal=shared or "none", at=variant.origin)
    if variant.form is Leaf and one.calls:
        raise ArgumentError(f"{where}: a Leaf launches nothing", got=one.calls, legal="calls=[]", at=variant.origin)


# ---------------------------------------------------------------------------------------------- running


@attrs.frozen(eq=False)
class TaskTensor:
    """A tensor that a variant sees: its shape, its element type, and parts of it; no data. `data` is the runner's.

    `parameter` is the argument of the running variant that it is part of; None for what the variant made itself.
    """

    data: Any = attrs.field(repr=False)
    shape: tuple[Any, ...]
    dtype: DType
    parameter: str | None = None

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.shape)

    def __getitem__(self, index: object) -> Any:
        """Refused: elements are the business of what `call_external` names."""
        raise DecompositionError(
            "a task does not touch elements of its tensors", got=index, legal="call_external(...) in a Leaf", at=call_site()
        )

    __array__ = __getitem__


@attrs.frozen
class Pieces:
    """The pieces into which a partition divides a tensor: an index names one."""

    tensor: TaskTensor
    partition: Partition

    def __getitem__(self, index: Any) -> TaskTensor:
        """One piece, whose coordinates begin at zero; an error where the index has not as many numbers as the partition."""
        place = index if isinstance(index, tuple) else (index,)
        counts = self.partition.counts(self.tensor.shape)
        if len(place) != len(counts):
            raise DecompositionError(
                f"{self.partition}: {len(place)} indices", legal=f"{len(counts)}: of {' x '.join(map(str, counts))} pieces", at=call_site()
            )
        shape = self.partition.shape(self.tensor.shape)
        data = running().piece(self.tensor, self.partition, tuple(as_expr(one) for one in place), shape)
        return TaskTensor(data, shape, self.tensor.dtype, self.tensor.parameter)


def partition(tensor: TaskTensor, by: Partition) -> Pieces:
    """The pieces of a tensor by any partition, one of the user's own among them."""
    if not isinstance(tensor, TaskTensor) or not isinstance(by, Partition):
        raise ArgumentError("partition: a tensor of a task and a Partition", got=(tensor, by), at=call_site())
    by.check(tensor.shape)
    return Pieces(tensor, by)


def cdiv(number: Any, by: Any) -> Any:
    """The quotient, rounded up; of sizes that are known only at run time, too."""
    return plain(ceildiv(as_expr(number), as_expr(by)))


def plain(size: Any) -> Any:
    """A size as an integer where it is known, as an expression where not."""
    value = as_expr(size)
    number = constant(value)
    return value if number is None else number


@attrs.define(eq=False)
class Frame:
    """A variant that runs as an instance: the launches that it has made so far, by their places in its text."""

    variant: Variant
    one: TaskMapping
    sites: dict[object, TaskMapping] = attrs.field(factory=dict)


@attrs.define(eq=False)
class Runner:
    """Runs variants of a program as a mapping says. Subclasses say what loops, pieces, new tensors and work on data are."""

    program: Tasks
    mapping: Mapping
    frames: list[Frame] = attrs.field(factory=list, init=False)

    @property
    def here(self) -> Frame:
        """The variant that runs."""
        return self.frames[-1]

    # ------------------------------------------------------------------------------------------ what subclasses say

    def piece(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...], shape: tuple[Any, ...]) -> Any:
        """The data of a piece."""
        raise NotImplementedError

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        """The indices of a group of launches."""
        raise NotImplementedError

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Any:
        """The data of a new tensor."""
        raise NotImplementedError

    def enter(self, one: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Run an instance on tensors."""
        raise NotImplementedError

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        """Work on data."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ what variants call

    def start(self, tensors: tuple[TaskTensor, ...]) -> None:
        """Run the entry point."""
        one = self.mapping.root
        with_runner(self, lambda: self.enter(one, self.program[one.variant], tensors))

    def call(self, one: TaskMapping, variant: Variant, tensors: Sequence[TaskTensor]) -> None:
        """Run the function of an instance, and refuse calls that it did not make."""
        given = [TaskTensor(each.data, each.shape, each.dtype, name) for name, each in zip(variant.tensors, tensors, strict=True)]
        self.frames.append(Frame(variant, one))
        variant.function(*given, **dict(one.tunables))
        left = one.calls[len(self.here.sites) :]
        if left:
            raise DecompositionError(
                f"instance {one.instance}: {variant.name} has {len(self.here.sites)} launches", got=f"calls {list(one.calls)}",
                legal=f"{len(self.here.sites)} calls", at=variant.origin,
            )  # fmt: skip
        self.frames.pop()

    def launched(self, name: str, site: object, tensors: tuple[Any, ...]) -> None:
        """The launch of a task by name, from a place in the text of the variant that runs."""
        here = self.here
        if here.variant.form is Leaf:
            raise DecompositionError(
                f"{here.variant.name}: a Leaf launches nothing", got=f'launch("{name}")', legal="Inner", at=call_site()
            )
        one = here.sites.get(site)
        if one is None:
            one = self._called(name, len(here.sites))
            here.sites[site] = one
        variant = self.program[one.variant]
        if variant.task != name:
            raise DecompositionError(
                f"instance {here.one.instance}: launches {name}, and its call is {one.instance}, a {variant.task}",
                legal=[each.instance for each in self.mapping.instances if self.program[each.variant].task == name] or "none",
                at=call_site(),
            )  # fmt: skip
        if len(tensors) != len(variant.tensors) or not all(isinstance(each, TaskTensor) for each in tensors):
            raise DecompositionError(f'launch("{name}"): it takes other tensors', got=len(tensors), legal=variant.tensors, at=call_site())
        self._check_privileges(variant, tensors)
        self.enter(one, variant, tensors)

    def _called(self, name: str, number: int) -> TaskMapping:
        here = self.here
        if number >= len(here.one.calls):
            raise DecompositionError(
                f'instance {here.one.instance}: launch("{name}") is launch {number + 1}, and the mapping has {len(here.one.calls)} calls',
                hint=f'calls=[..., "an instance of {name}"]', at=call_site(),
            )  # fmt: skip
        return self.mapping[here.one.calls[number]]

    def _check_privileges(self, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Refuse a launch that may do more with a tensor than the variant that launches it."""
        mine = self.here.variant
        for name, each in zip(variant.tensors, tensors, strict=True):
            for verb, theirs, own in (("reads", variant.reads, mine.reads), ("writes", variant.writes, mine.writes)):
                if name in theirs and each.parameter is not None and each.parameter not in own:
                    raise DecompositionError(
                        f"{variant.name} {verb} {name}, which is {each.parameter} of {mine.name}, and {mine.name} may not",
                        legal=f'{verb}=[..., "{each.parameter}"] of {mine.name}', at=call_site(),
                    )  # fmt: skip

    def externally(self, function: Any, tensors: tuple[Any, ...], options: dict[str, Any]) -> None:
        """A call of what works on data."""
        if self.here.variant.form is Inner:
            raise DecompositionError(
                f"{self.here.variant.name}: an Inner variant touches no data",
                got=f"call_external({function!r})",
                legal="Leaf",
                at=call_site(),
            )
        self.external(function, tensors, options)


_RUNNER: contextvars.ContextVar[Runner] = contextvars.ContextVar("runner")
"""Who runs the variants of this thread: what `launch` and the others are passed on to."""


def with_runner(runner: Runner, function: Callable[[], None]) -> None:
    """Call a function whose launches a runner takes."""
    token = _RUNNER.set(runner)
    try:
        function()
    finally:
        _RUNNER.reset(token)


def running() -> Runner:
    """Who runs the variants; a `DecompositionError` outside tasks."""
    found = _RUNNER.get(None)
    if found is None:
        raise DecompositionError("outside a task: only variants of tasks launch tasks and take tensors apart", at=call_site())
    return found


def launch(name: str, *tensors: TaskTensor) -> None:
    """Launch a task on tensors; which variant, and where, the mapping says."""
    caller = sys._getframe(1)
    running().launched(name, (caller.f_code, caller.f_lasti), tensors)


def srange(*extents: Any) -> Iterator[Any]:
    """The indices of launches in this order: a number, or of several extents a tuple, the last fastest."""
    return running().loop(_checked(extents, "srange"), parallel=False)


def prange(*extents: Any) -> Iterator[Any]:
    """The indices of launches in any order, or at once: no one writes what another touches."""
    return running().loop(_checked(extents, "prange"), parallel=True)


def _checked(extents: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if not extents:
        raise ArgumentError(f"{what}: no extent", legal=f"{what}(4)", at=call_site())
    return extents


def make_tensor(shape: Sequence[Any], dtype: Any) -> TaskTensor:
    """A new tensor, whose elements are anything until a task writes them."""
    wanted = as_dtype(dtype)
    sizes = tuple(plain(one) for one in shape)
    return TaskTensor(running().tensor(sizes, wanted), sizes, wanted)


def call_external(function: Any, *tensors: TaskTensor, **options: Any) -> None:
    """Work on data: `"matmul"` (C += A B), `"copy"` (dst, src), `"fill"` (dst), or any kind of spec, such as `Pointwise`, whose operands
    the tensors then are, in the order of its short form."""
    running().externally(function, tensors, options)


def partition_by_blocks(tensor: TaskTensor, sizes: Sequence[Any]) -> Pieces:
    """Blocks of neighbours, of so many elements along each dimension; those at the end may overhang."""
    return partition(tensor, Blocks(tuple(sizes)))


def partition_by_mma(tensor: TaskTensor, instruction: str, processor: Processor, operand: str) -> Pieces:
    """The parts of an operand, `"A"`, `"B"` or `"C"`, of a matrix instruction that a warp or a thread works on."""
    return partition(tensor, mma_pieces(instruction, processor, operand))
