"""Tasks: programs whose meaning is that of their sequential text, with nothing about machines (Cypress, section 3.2).

A task has variants, functions of tensors. An Inner one makes tensors, takes them apart and launches tasks; a Leaf one works on data. The
functions run twice over: in NumPy, task by task (`sequential`), and once with loop variables for numbers, by which the compiler reads
them (`step`). What they call here is passed on to whoever runs them.
"""

from __future__ import annotations

import contextlib
import contextvars
import enum
import importlib
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, DecompositionError, FireironError, call_site, closest, shown
from fireiron.executable.micro_kernel import MicroKernel
from fireiron.specs.verbs import fitting
from fireiron.tasks.digest import digest
from fireiron.tasks.external import in_order
from fireiron.tasks.mapping import Mapping, Processor, TaskMapping
from fireiron.tasks.opaque import opaque
from fireiron.tasks.partition import Axes, Blocks, First, Partition, Slices, mma_pieces
from fireiron.tasks.scalar import Scalar, operand, scalar
from fireiron.tasks.turns import Made, Record, Said, require_alike
from fireiron.values.expr import Expr, Var, as_expr, ceildiv, constant
from fireiron.values.machine import DType, as_dtype, int32


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


@fitting
def tunable(kind: type) -> Any:
    """The default of a keyword-only parameter of a variant: an `int`, a `str` or a `processor`, which the mapping says."""
    if not any(kind is one for one in (int, str, Processor)):
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as functions are: by the name under which the module has it."""
        return _variant, (self.function.__module__, self.function.__qualname__)

    @property
    def digest(self) -> str:
        """Hex digits that tell it from others wherever it is written down: of its text, and of what it says of itself."""
        kinds = [[name, kind.__name__] for name, kind in self.tunables]
        return digest(self.function, self.task, self.form.value, sorted(self.reads), sorted(self.writes), list(self.tensors), kinds)

    @property
    def recorded(self) -> dict[str, Any]:
        """What of it counts in the hash of a strategy."""
        return {"digest": self.digest}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused: a task is launched."""
        raise DecompositionError(f"{self.name}: a task is not called", hint=f'launch("{self.task}", ...)', at=call_site())


def _variant(module: str, name: str) -> Variant:
    """A variant by its names, for another process."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not isinstance(found, Variant):
        raise ArgumentError(f"{module} has no variant {name}", legal="a variant at the top of a module", at=call_site())
    return found


@fitting
def task(name: str, form: Form, *, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Variant]:
    """A variant of the task `name`: the function below, whose tensors it `reads` and `writes`.

    Raises: ArgumentError where these are no parameters, where a keyword parameter is no tunable, and for what is no plain function of
    tensors: a generator, one with `*args`, defaults, or a tunable among its tensors.
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError("task: a name first", got=name, legal='@task("copy", Leaf, reads=["src"], writes=["dst"])', at=call_site())
    for word, names in (("reads", reads), ("writes", writes)):
        if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
            raise ArgumentError(f"task({shown(name)}): {word} are names", got=names, legal=f'{word}=["C"]', at=call_site())

    def made(function: Callable[..., Any]) -> Variant:
        origin = _require_function(function, name)
        parameters = inspect.signature(function).parameters.values()
        tensors = tuple(one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD)
        named = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
        if not isinstance(form, Form):
            raise ArgumentError(f"{function.__name__}: neither Inner nor Leaf", got=form, legal="Inner Leaf", at=origin)
        unknown = [one for one in (*reads, *writes) if one not in tensors]
        if unknown:
            raise ArgumentError(f"{function.__name__}: no tensor {unknown[0]} to read or write", legal=tensors or "none", at=origin)
        wrong = [one for one, default in named.items() if not isinstance(default, Wanted)]
        if wrong:
            raise ArgumentError(f"{function.__name__}: {wrong[0]} is no tunable", legal=f"{wrong[0]}=tunable(int)", at=origin)
        tunables = tuple((one, default.kind) for one, default in named.items())
        return Variant(name, form, frozenset(reads), frozenset(writes), function, tensors, tunables, origin)

    return made


def _require_function(function: Any, name: str) -> str:
    """The line of a function that may be a variant; refused where it is none."""
    if not inspect.isfunction(function):
        raise ArgumentError(f'task("{name}"): no function', got=function, legal="def ...(C, A, B, *, U=tunable(int))", at=call_site())
    code, title = function.__code__, function.__name__
    origin = f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_firstlineno}"
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ArgumentError(f"{title}: a generator, which launches nothing when it is called", legal="no yield, no await", at=origin)
    for one in inspect.signature(function).parameters.values():
        if one.kind not in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY):
            raise ArgumentError(f"{title}: the tensors of a task have names, {one} has not", legal="C, A, B", at=origin)
        if one.kind is one.POSITIONAL_OR_KEYWORD and one.default is not one.empty:
            kind = f"{one.name}=tunable(int)" if isinstance(one.default, Wanted) else f"{one.name}={one.default!r}"
            raise ArgumentError(f"{title}: {kind} stands among the tensors", legal="tunables behind *: (C, *, U=tunable(int))", at=origin)
    return origin


@attrs.frozen(init=False)
class Tasks(Displayed):
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
            lines = [one.origin for one in variants if one.name == twice]
            raise ArgumentError(
                f"Tasks: two variants are called {twice}", got=lines, legal="a name for each: instances say theirs", at=call_site()
            )
        shapes: dict[str, Variant] = {}
        for one in variants:
            first = shapes.setdefault(one.task, one)
            if first.tensors != one.tensors:
                raise ArgumentError(
                    f"{one.name}: variants of {one.task} take the same tensors", got=one.tensors, legal=first.tensors, at=one.origin
                )
        self.__attrs_init__(variants)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of its tasks."""
        return tuple(dict.fromkeys(one.task for one in self.variants))

    def __getitem__(self, name: str) -> Variant:
        """A variant by its name."""
        for one in self.variants:
            if one.name == name:
                return one
        meant = closest(name, [one.name for one in self.variants])
        raise ArgumentError(
            f"no variant {name}", legal=[one.name for one in self.variants], hint=f"{meant}?" if meant else None, at=call_site()
        )

    def check(self, mapping: Mapping) -> None:
        """Refuse a mapping that does not fit: unknown variants, tensors without a memory, tunables that are missing, unknown or of
        another kind, calls of a Leaf."""
        if not isinstance(mapping, Mapping):
            raise ArgumentError("a program wants a mapping", got=mapping, legal="Mapping([TaskMapping(...), ...])", at=call_site())
        for one in mapping.instances:
            _check_instance(self, self[one.variant], one)


def require_program(program: object) -> None:
    """Refuse what is no program."""
    if not isinstance(program, Tasks):
        raise ArgumentError("no program of tasks", got=program, legal="Tasks(gemm_host, gemm_block, ...)", at=call_site())


def _check_instance(program: Tasks, variant: Variant, one: TaskMapping) -> None:
    where = f"instance {one.instance} of {variant.name}"
    one.check()
    if variant.form is Inner and one.strategy is not None:
        leaves = [each.name for each in program.variants if each.task == variant.task and each.form is Leaf]
        raise ArgumentError(
            f"{where}: a strategy performs the work of a Leaf", got=one.strategy, legal=leaves or "a Leaf of the task", at=variant.origin
        )
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

    `parameter` is the argument of the running variant that it is part of; None for what the variant made itself, as number `made`. `scope`
    is the run of a variant whose tensor it is, `taken` the partitions and places by which it is a piece.
    """

    data: Any = attrs.field(repr=False)
    extents: tuple[Any, ...]
    dtype: DType
    parameter: str | None = None
    scope: Any = attrs.field(default=None, repr=False)
    made: int = attrs.field(default=0, repr=False)
    taken: tuple[Any, ...] = attrs.field(default=(), repr=False)

    @property
    def called(self) -> str:
        """The argument that it is part of, or how it came about."""
        return self.parameter or "what make_tensor made"

    @property
    def known_as(self) -> tuple[Any, ...]:
        """Which part of which tensor it is, for the variant that has it."""
        return (self.parameter or Made(self.made), *self.taken)

    @property
    def shape(self) -> tuple[Any, ...]:
        """How many elements it has along each dimension."""
        return tuple(map(scalar, self.extents))

    @property
    def rank(self) -> int:
        """How many dimensions it has."""
        return len(self.extents)

    def __getitem__(self, index: object) -> Any:
        """Refused: elements are the business of what `call_external` names."""
        raise DecompositionError(
            f"a task does not touch elements of its tensors, as of {self.called}",
            got=index, legal="partition_by_blocks(...)[i, j], and call_external(...) in a Leaf", at=call_site(),
        )  # fmt: skip

    def __setitem__(self, index: object, value: object) -> None:
        """Refused, as elements are."""
        self[index]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused, as elements are."""
        return self["as an array"]

    def __array_function__(self, *args: Any) -> Any:
        """Refused, as elements are."""
        return self["by NumPy"]

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        """Refused, as elements are."""
        return self["by NumPy"]

    def __add__(self, other: object) -> Any:
        """Refused, as elements are."""
        return self["in arithmetic"]

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = __add__

    def __iter__(self) -> Iterator[Any]:
        """Refused, as elements are."""
        return iter(self["one by one"])


@attrs.frozen
class Pieces:
    """The pieces into which a partition divides a tensor: an index names one."""

    tensor: TaskTensor
    partition: Partition

    def __getitem__(self, index: Any) -> TaskTensor:
        """One piece, whose coordinates begin at zero; an error where the index has not as many numbers as the partition."""
        place = index if isinstance(index, tuple) else (index,)
        counts = self.partition.counts(self.tensor.extents)
        if len(place) != len(counts):
            raise DecompositionError(
                f"{self.partition}: {len(place)} indices", legal=f"{len(counts)}: of {' x '.join(map(str, counts))} pieces", at=call_site()
            )
        shape = self.partition.shape(self.tensor.extents)
        running().require_own("a piece", self.tensor)
        place = tuple(map(operand, place))
        data = running().piece(self.tensor, self.partition, place, shape)
        taken = (*self.tensor.taken, self.partition, place)
        return attrs.evolve(self.tensor, data=data, extents=shape, taken=taken)

    def __iter__(self) -> Iterator[Any]:
        """Refused: the pieces are those of a loop's indices."""
        raise DecompositionError(f"{self.partition}: pieces have indices", legal="for i in prange(...): ... pieces[i]", at=call_site())


@fitting
def partition(tensor: TaskTensor, by: Partition) -> Pieces:
    """The pieces of a tensor by any partition, one of the user's own among them."""
    if not isinstance(tensor, TaskTensor) or not isinstance(by, Partition):
        raise ArgumentError(
            "partition: a tensor of a task and a Partition", got=(tensor, by), legal="tensors of this variant, or pieces[i]", at=call_site()
        )
    try:
        by.check(tensor.extents)
    except FireironError as error:
        error.got = error.got or f"{tensor.called}: {' x '.join(map(str, tensor.extents))}"
        raise
    return Pieces(tensor, by)


@fitting
def cdiv(number: Any, by: Any) -> Any:
    """The quotient, rounded up; of sizes that are known only at run time, too."""
    divisor = operand(by)
    if divisor.low < 1:
        raise ArgumentError(f"cdiv({shown(number)}, {shown(by)}): it divides by a positive number", at=call_site())
    return scalar(ceildiv(operand(number), divisor))


def plain(size: Any) -> Any:
    """A size as an integer where it is known, as an expression where not."""
    value = as_expr(size)
    number = constant(value)
    return value if number is None else number


CALL: Final = "call"
"""What of a launch a leaf's work is; else it is the copy of an argument."""


@attrs.frozen
class Launch:
    """A launch of a program under a mapping, the same for whoever reads it: the numbers of launches from the entry point on.

    Of each variant on the way it is the place in its text, counted, and how often that was entered before. `what` is the call, or the copy
    of an argument `in` or `out`.
    """

    path: tuple[tuple[int, int], ...]
    what: str

    def __str__(self) -> str:
        return f"{'.'.join(f'{place}' if not times else f'{place}+{times}' for place, times in self.path) or 'entry'} {self.what}"


@attrs.define(eq=False)
class Frame:
    """A variant that runs as an instance: the launches that it has made so far, by their places in its text."""

    variant: Variant
    one: TaskMapping
    sites: dict[object, TaskMapping] = attrs.field(factory=dict)
    open: list[str | None] = attrs.field(factory=list)
    """The lines of the loops that the variant is in."""
    record: Record = attrs.field(factory=Record)
    works: bool = False
    entered: dict[object, int] = attrs.field(factory=dict)
    """How often a launch at each place was entered."""
    at: tuple[int, int] = (0, 0)
    """The launch that is made: the number of its place, and how often it was entered before."""


@attrs.define(eq=False)
class Runner:
    """Runs variants of a program as a mapping says. Subclasses say what loops, pieces, new tensors and work on data are."""

    program: Tasks
    mapping: Mapping
    frames: list[Frame] = attrs.field(factory=list, init=False)
    dry: bool = attrs.field(default=False, init=False)
    """Whether a turn is only looked at: what it launches is not entered."""

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

    def again(self) -> contextlib.AbstractContextManager[None] | None:
        """What a second look at a turn stands in, where one is taken to compare it with the first; None where none is."""
        return None

    def apart(self, one: TaskTensor, other: TaskTensor) -> bool:
        """Whether two tensors are known to have no element in common."""
        raise NotImplementedError

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Any:
        """The data of a new tensor."""
        raise NotImplementedError

    def coordinates(self, tensor: TaskTensor, dim: int) -> Any:
        """The data of the coordinates of a piece along a dimension."""
        raise NotImplementedError

    def extent(self, tensor: TaskTensor, dim: int) -> Any:
        """The data of the extent of what a piece is of."""
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
        """Run the function of an instance, and refuse calls that it did not make, and loops that it left before their end."""
        frame = Frame(variant, one)
        given = [TaskTensor(each.data, each.extents, each.dtype, name, frame) for name, each in zip(variant.tensors, tensors, strict=True)]
        self.frames.append(frame)
        try:
            self._require_whole(frame, variant.function(*given, **dict(one.tunables)))
        except FireironError as error:
            raise error.located(within=f"instance {one.instance} of {variant.name}") from None
        except ZeroDivisionError:
            raise DecompositionError(
                f"instance {one.instance}: {variant.name} divides by zero", got=dict(one.tunables) or None, legal="sizes of 1 and more",
                at=variant.origin,
            ) from None  # fmt: skip
        self.frames.pop()

    def _require_whole(self, frame: Frame, found: object) -> None:
        """Refuse a run of a variant that left a loop, did not launch all that it should, or did nothing; `found` is what it returned."""
        one, variant = frame.one, frame.variant
        if found is not None:
            raise DecompositionError(
                f"{variant.name}: a task returns nothing", got=found, legal="tensors that it writes", at=variant.origin
            )
        if frame.open:
            _refuse_left(variant, frame.open[-1])
        left = one.calls[len(frame.sites) :]
        if left:
            raise DecompositionError(
                f"instance {one.instance}: {variant.name} has {len(frame.sites)} launches", got=f"calls {list(one.calls)}",
                legal=f"{len(frame.sites)} calls", at=variant.origin,
            )  # fmt: skip
        if variant.writes and not frame.sites and not frame.works:
            raise DecompositionError(
                f"{variant.name} declares that it writes {', '.join(sorted(variant.writes))}, and does nothing",
                legal="launch(...)" if variant.form is Inner else "call_external(...)", at=variant.origin,
            )  # fmt: skip

    def require_own(self, what: str, *tensors: Any) -> None:
        """Refuse tensors of another run of a variant, which has kept them: what may be done with them is not known here."""
        for each in tensors:
            if each.scope is not None and each.scope is not self.here:
                raise DecompositionError(
                    f"{self.here.variant.name}: {what} of {each.called} of {each.scope.variant.name}, which is no argument of "
                    f"{self.here.variant.name}",
                    legal=self.here.variant.tensors, hint="pass it to the launch", at=call_site(),
                )  # fmt: skip

    def looped(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        """A group of launches, which stands open in the variant that runs until its last turn is over."""
        here, line = self.here, call_site()
        here.record.said.append(Said("prange" if parallel else "srange", line, tuple(map(as_expr, extents))))
        here.open.append(line)
        depth = len(here.open)

        def require_here() -> None:
            if self.here is not here or len(here.open) != depth:
                _refuse_left(self.here.variant, self.here.open[-1] if self.here.open else line)

        turns = 0
        for turns, index in enumerate(self.loop(extents, parallel), 1):  # noqa: B007
            here.record.variables += _variables(index)
            mark = here.record.mark()
            yield index
            require_here()
            again = None if self.dry else self.again()
            if again is not None:
                first, behind = here.record.since(mark), here.record.mark()
                with again, self._only_looking():
                    yield index
                require_here()
                require_alike(here.variant.name, line, first, here.record.since(behind))
                here.record.back_to(behind)
        if not turns:  # its launches have their places among the calls
            with self._only_looking():
                yield (0,) * len(extents) if len(extents) > 1 else 0
            require_here()
        here.open.pop()

    @contextlib.contextmanager
    def _only_looking(self) -> Iterator[None]:
        outer, self.dry = self.dry, True
        yield
        self.dry = outer

    def launched(self, name: str, site: object, tensors: tuple[Any, ...]) -> None:
        """The launch of a task by name, from a place in the text of the variant that runs."""
        here = self.here
        if not isinstance(name, str):
            raise ArgumentError(f"{here.variant.name}: launch wants the name of a task", got=name, legal=self.program.tasks, at=call_site())
        if here.variant.form is Leaf:
            raise DecompositionError(
                f"{here.variant.name}: a Leaf launches nothing", got=f'launch("{name}")', legal="Inner", at=call_site()
            )
        if name not in self.program.tasks:
            meant = closest(name, self.program.tasks)
            raise DecompositionError(
                f'{here.variant.name}: launch("{name}"), and no variant has this task', legal=self.program.tasks,
                hint=f"{meant}?" if meant else None, at=call_site(),
            )  # fmt: skip
        for number, each in enumerate(tensors):
            require_tensor(f'{here.variant.name}: launch("{name}"), argument {number}', each)
        here.record.said.append(Said(f'launch("{name}")', call_site(), tuple(each.known_as for each in tensors)))
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
        if len(tensors) != len(variant.tensors):
            raise DecompositionError(
                f'{here.variant.name}: launch("{name}") with {len(tensors)} tensors', legal=variant.tensors, at=call_site()
            )
        self.require_own(f'launch("{name}")', *tensors)
        self._check_privileges(variant, tensors)
        self._check_apart(variant, tensors)
        if not self.dry:
            times = here.entered.get(site, 0)
            here.entered[site], here.at = times + 1, (list(here.sites).index(site), times)
            self.enter(one, variant, tensors)

    def launch_of(self, what: str, inside: bool = False) -> Launch:
        """The launch that is made, or, `inside` it, the one that runs: and what of it."""
        return Launch(tuple(one.at for one in self.frames[: len(self.frames) - inside]), what)

    def _check_apart(self, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Refuse two arguments of one launch with common elements, of which it writes one: copies of them would differ."""
        for (name, one), (other, also) in itertools.combinations(zip(variant.tensors, tensors, strict=True), 2):
            writes = [each for each in (name, other) if each in variant.writes]
            if writes and not self.dry and not self.apart(one, also):
                raise DecompositionError(
                    f"{self.here.variant.name}: {variant.name} writes {writes[0]}, which may have elements in common with "
                    f"{other if writes[0] == name else name}",
                    got="one tensor, or pieces that are not known to be apart", legal="tensors with no common elements",
                    hint="one argument that is read and written", at=call_site(),
                )  # fmt: skip

    def _called(self, name: str, number: int) -> TaskMapping:
        here = self.here
        if number >= len(here.one.calls):
            raise DecompositionError(
                f'instance {here.one.instance}: launch("{name}") is launch {number + 1}, and the mapping has {len(here.one.calls)} calls',
                legal=[each.instance for each in self.mapping.instances if self.program[each.variant].task == name] or "none",
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
        name = self.here.variant.name
        if self.here.variant.form is Inner:
            raise DecompositionError(
                f"{name}: an Inner variant touches no data", got=f"call_external({function!r})", legal="Leaf", at=call_site()
            )
        for number, each in enumerate(tensors):
            require_tensor(f"{name}: call_external({function!r}), operand {number}", each)
        self.require_own("call_external", *tensors)
        self.here.works = True
        try:
            if isinstance(function, MicroKernel):
                function, options = self._opaque(function, tensors, options)
            self.external(function, tensors, {word: _bare(one) for word, one in options.items()})
        except FireironError as error:
            raise error.located(at=call_site()) from None

    def _opaque(self, kernel: MicroKernel, tensors: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The kind of a call of a micro-kernel on tensors, and its options."""
        mine, names = self.here.variant, [str(one.parameter) for one in tensors]
        if len(set(names)) != len(names) or set(names) - set(mine.tensors):
            raise ArgumentError(
                f"{mine.name}: a micro-kernel takes each tensor of the variant once", got=names, legal=mine.tensors, at=call_site()
            )
        unknown = [name for name in options if name not in ("meaning", "dims")]
        if unknown:
            raise ArgumentError(f"call_external({kernel}): no option {unknown[0]}", legal=("meaning", "dims"), at=call_site())
        ranks = [one.rank for one in tensors]
        kind = opaque(kernel, names, ranks, mine.reads, mine.writes, options.get("dims"), options.get("meaning"))
        return kind.starter, {"accumulate": True} if kind.made.joins else {}


def _refuse_left(variant: Variant, line: str | None) -> NoReturn:
    raise DecompositionError(
        f"{variant.name}: a loop of a task is not left early, nor mixed with another", legal="no break, return, next() or zip()", at=line
    )


def _variables(index: Any) -> list[Var]:
    """The variables of a loop's index, in a reading."""
    found = index if isinstance(index, tuple) else (index,)
    return [one.expression for one in found if isinstance(one, Scalar) and isinstance(one.expression, Var)]


def _bare(value: Any) -> Any:
    """An option as specs take it: expressions for what a variant meets as scalars."""
    return value.expression if isinstance(value, Scalar) else tuple(map(_bare, value)) if type(value) is tuple else value


def require_tensor(what: str, value: object) -> None:
    """Refuse anything but a tensor of a task."""
    if not isinstance(value, TaskTensor):
        hint = "pieces[i, j]: one of them" if isinstance(value, Pieces) else None
        raise ArgumentError(f"{what}: no tensor", got=value, legal="tensors of this variant, or pieces[i]", hint=hint, at=call_site())


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


def launch(name: str, *tensors: TaskTensor, **named: Any) -> None:
    """Launch a task on tensors; which variant, and where, the mapping says."""
    if named:
        raise ArgumentError(f'launch("{name}"): tensors have no names here', got=list(named), legal="in their order", at=call_site())
    caller = sys._getframe(1)
    running().launched(name, (caller.f_code, caller.f_lasti), tensors)


@fitting
def srange(*extents: Any) -> Iterator[Any]:
    """The indices of launches in this order: a number, or of several extents a tuple, the last fastest."""
    return running().looped(_checked(extents, "srange"), parallel=False)


@fitting
def prange(*extents: Any) -> Iterator[Any]:
    """The indices of launches in any order, or at once: no one writes what another touches."""
    return running().looped(_checked(extents, "prange"), parallel=True)


def _checked(extents: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if not extents:
        raise ArgumentError(f"{what}: no extent", legal=f"{what}(4)", at=call_site())
    found = tuple(map(operand, extents))
    if any(one.low < 0 and constant(one) is not None for one in found):
        raise ArgumentError(f"{what}: less than no turns", got=extents, legal=f"{what}(4)", at=call_site())
    return tuple(map(plain, found))


@fitting
def make_tensor(shape: Sequence[Any], dtype: Any) -> TaskTensor:
    """A new tensor, whose elements are anything until a task writes them."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise ArgumentError("make_tensor: a size for each dimension", got=shape, legal="make_tensor((64, 64), float32)", at=call_site())
    try:
        wanted, sizes = as_dtype(dtype), tuple(plain(operand(one)) for one in shape)
    except ArgumentError as error:
        raise error.located(at=call_site()) from None
    if not sizes or any(isinstance(one, int) and one < 1 for one in sizes):
        raise ArgumentError("make_tensor: no elements", got=shape, legal="1 and more along each dimension", at=call_site())
    runner = running()
    record = runner.here.record
    record.said.append(Said("make_tensor", call_site(), (*map(as_expr, sizes), wanted.name)))
    record.made += 1
    return TaskTensor(runner.tensor(sizes, wanted), sizes, wanted, scope=runner.here, made=record.made - 1)


def call_external(function: Any, *tensors: TaskTensor, **options: Any) -> None:
    """Work on data: `"matmul"` (C += A B), `"copy"` (dst, src), `"fill"` (dst), or any kind of spec, such as `Pointwise`, whose operands
    the tensors then are, in the order of its short form or by name; what a formula both reads and writes is `x`, and `x_before`.

    With `done`, a `MicroKernel`, its CUDA C++ performs the spec. Or a `MicroKernel` by itself, whose text may do anything with the tensors
    that the variant reads and writes: `meaning`, a function of NumPy arrays that changes those written, is what runs in its place where
    the text does not, and `dims`, `"mn,mk,kn"`, names their dimensions.
    """
    named = {name: one for name, one in options.items() if isinstance(one, TaskTensor)}
    options = {name: one for name, one in options.items() if name not in named}
    running().externally(function, (*tensors, *in_order(function, named, options)), options)


def coordinates(tensor: TaskTensor, dim: int) -> TaskTensor:
    """The coordinates that a piece has along a dimension, in the entry point's tensor that it is a piece of; those behind its end count on.

    For a Leaf that reads the tensor.
    """
    _require_read("coordinates", tensor)
    return TaskTensor(running().coordinates(tensor, dim), (tensor.shape[dim],), int32)


def extent(tensor: TaskTensor, dim: int) -> TaskTensor:
    """How many elements the entry point's tensor that a piece is of has along a dimension: a number."""
    _require_read("extent", tensor)
    return TaskTensor(running().extent(tensor, dim), (), int32)


def _require_read(what: str, tensor: TaskTensor) -> None:
    """Refuse an Inner variant, and a tensor that the variant does not read."""
    mine = running().here.variant
    if mine.form is Inner or tensor.parameter not in mine.reads:
        raise DecompositionError(
            f"{mine.name}: {what} of {tensor.called}, which {'an Inner variant' if mine.form is Inner else mine.name} does not read",
            legal=f'a Leaf with reads=[..., "{tensor.parameter}"]', at=call_site(),
        )  # fmt: skip


def axes(tensor: TaskTensor, *dims: int) -> TaskTensor:
    """The same elements by these dimensions in this order, such as the transposed matrix; the others have one coordinate."""
    found: TaskTensor = partition(tensor, Axes(dims))[()]
    return found


@fitting
def partition_by_blocks(tensor: TaskTensor, sizes: Sequence[Any]) -> Pieces:
    """Blocks of neighbours, of so many elements along each dimension; those at the end may overhang."""
    _require_sizes("partition_by_blocks", sizes)
    return partition(tensor, Blocks(tuple(plain(operand(one)) for one in sizes)))


@fitting
def partition_by_first(tensor: TaskTensor, sizes: Sequence[Any], takers: Any) -> Pieces:
    """Blocks of neighbours for the first of so many takers alone, whose number is the last index: the pieces of others have no elements."""
    _require_sizes("partition_by_first", sizes)
    return partition(tensor, First(tuple(sizes), plain(takers)))


def _require_sizes(what: str, sizes: Any) -> None:
    """Refuse what is no list of sizes."""
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise ArgumentError(f"{what}: a size for each dimension", got=sizes, legal="(64, 64)", at=call_site())


@fitting
def partition_by_slices(tensor: TaskTensor, dim: int = 0) -> Pieces:
    """Of a stack of matrices each matrix: a piece for each coordinate along a dimension, without that dimension."""
    return partition(tensor, Slices(dim))


@fitting
def partition_by_mma(tensor: TaskTensor, instruction: str, processor: Processor, operand: str) -> Pieces:
    """The parts of an operand, `"A"`, `"B"` or `"C"`, of a matrix instruction that a warp or a thread works on.

    Of numbers for each row of C, `"rows"` are those of a vector; `"parts"` four of each row, one for each thread that has some of it.
    """
    return partition(tensor, mma_pieces(instruction, processor, operand))
