"""Tasks: programs with the meaning of their sequential text, independent of machines (Cypress, section 3.2).

A task has variants, which are functions of tensors. An Inner variant allocates tensors, partitions them and launches tasks; a Leaf variant
accesses data. Variants are executed in two ways: in NumPy, task by task (`sequential`), and by the compiler, once, with loop variables
instead of numbers (`step`). The functions of this module delegate to the current runner.
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
from fireiron.frozen import frozen
from fireiron.specs.verbs import checked_arguments
from fireiron.tasks.digest import digest
from fireiron.tasks.external import in_order
from fireiron.tasks.iteration_trace import Action, NewTensor, Trace, require_same_actions
from fireiron.tasks.mapping import Mapping, Processor, TaskMapping
from fireiron.tasks.opaque import opaque
from fireiron.tasks.partition import Axes, Blocks, First, Partition, Slices, mma_pieces
from fireiron.tasks.scalar import Scalar, operand, scalar
from fireiron.values.expr import Expr, Var, as_expr, ceildiv, constant
from fireiron.values.machine import DType, as_dtype, int32


class Form(enum.Enum):
    """The form of a variant: `Inner` variants launch tasks, `Leaf` variants access data."""

    Inner = "Inner"
    Leaf = "Leaf"


Inner: Final = Form.Inner
Leaf: Final = Form.Leaf

processor: Final = Processor
"""The kind of a tunable whose value is a processor."""


@frozen
class TunableKind:
    """The default of a parameter whose value the mapping specifies: the kind of the value."""

    kind: type


@checked_arguments
def tunable(kind: type) -> Any:
    """The default of a keyword-only parameter of a variant: an `int`, a `str` or a `processor`, whose value the mapping specifies."""
    if not any(kind is legal for legal in (int, str, Processor)):
        raise ArgumentError("tunable: the kind is unknown", got=kind, legal="int str processor", at=call_site())
    return TunableKind(kind)


@attrs.frozen(eq=False)
class Variant:
    """One implementation of a task: a function of tensors, its privileges (the tensors that it may read and write), and its tunables."""

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
        """Pickle by the name in the module, as functions are."""
        return _variant, (self.function.__module__, self.function.__qualname__)

    @property
    def digest(self) -> str:
        """Hex digits that identify its code and its declaration."""
        kinds = [[name, kind.__name__] for name, kind in self.tunables]
        return digest(self.function, self.task, self.form.value, sorted(self.reads), sorted(self.writes), list(self.tensors), kinds)

    @property
    def recorded(self) -> dict[str, Any]:
        """Its contribution to the hash of a strategy."""
        return {"digest": self.digest}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse the call: a task must be launched."""
        raise DecompositionError(f"{self.name}: a task must be launched, not called", hint=f'launch("{self.task}", ...)', at=call_site())


def _variant(module: str, name: str) -> Variant:
    """Find a variant by its names, for unpickling."""
    value: Any = importlib.import_module(module)
    for part in name.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Variant):
        raise ArgumentError(f"{module} has no variant {name}", legal="a variant at the top of a module", at=call_site())
    return value


@checked_arguments
def task(name: str, form: Form, *, reads: Sequence[str] = (), writes: Sequence[str] = ()) -> Callable[[Callable[..., Any]], Variant]:
    """Declare a function as a variant of the task `name`, which `reads` and `writes` some of its tensors.

    Raises: ArgumentError if these are not parameters, if a keyword parameter is not a tunable, and for functions other than plain functions
    of tensors: generators, and functions with `*args`, defaults, or a tunable among the tensors.
    """
    if not isinstance(name, str) or not name:
        raise ArgumentError(
            "task: the first argument must be the name of the task",
            got=name,
            legal='@task("copy", Leaf, reads=["src"], writes=["dst"])',
            at=call_site(),
        )
    for word, names in (("reads", reads), ("writes", writes)):
        if (
            isinstance(names, str)
            or not isinstance(names, Sequence)
            or not all(isinstance(name_of_tensor, str) for name_of_tensor in names)
        ):
            raise ArgumentError(f"task({shown(name)}): {word} must be a list of names", got=names, legal=f'{word}=["C"]', at=call_site())

    def decorated(function: Callable[..., Any]) -> Variant:
        origin = _require_function(function, name)
        parameters = inspect.signature(function).parameters.values()
        tensors = tuple(parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD)
        named = {parameter.name: parameter.default for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
        if not isinstance(form, Form):
            raise ArgumentError(f"{function.__name__}: the form must be Inner or Leaf", got=form, legal="Inner Leaf", at=origin)
        unknown = [tensor for tensor in (*reads, *writes) if tensor not in tensors]
        if unknown:
            raise ArgumentError(f"{function.__name__} has no tensor {unknown[0]} to read or write", legal=tensors or "none", at=origin)
        wrong = [keyword for keyword, default in named.items() if not isinstance(default, TunableKind)]
        if wrong:
            raise ArgumentError(f"{function.__name__}: {wrong[0]} is not a tunable", legal=f"{wrong[0]}=tunable(int)", at=origin)
        tunables = tuple((keyword, default.kind) for keyword, default in named.items())
        return Variant(name, form, frozenset(reads), frozenset(writes), function, tensors, tunables, origin)

    return decorated


def _require_function(function: Any, name: str) -> str:
    """The line of a function that may be a variant; other functions are refused."""
    if not inspect.isfunction(function):
        raise ArgumentError(
            f'task("{name}") must decorate a function', got=function, legal="def ...(C, A, B, *, U=tunable(int))", at=call_site()
        )
    code, title = function.__code__, function.__name__
    origin = f"{'/'.join(Path(code.co_filename).parts[-2:])}:{code.co_firstlineno}"
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise ArgumentError(
            f"{title}: a variant must not be a generator or a coroutine, because calling it launches nothing",
            legal="no yield, no await",
            at=origin,
        )
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ArgumentError(f"{title}: each tensor of a task needs a name, and {parameter} has none", legal="C, A, B", at=origin)
        if parameter.kind is parameter.POSITIONAL_OR_KEYWORD and parameter.default is not parameter.empty:
            kind = (
                f"{parameter.name}=tunable(int)"
                if isinstance(parameter.default, TunableKind)
                else f"{parameter.name}={parameter.default!r}"
            )
            raise ArgumentError(f"{title}: {kind} is among the tensors", legal="tunables after the *: (C, *, U=tunable(int))", at=origin)
    return origin


@attrs.frozen(init=False)
class Tasks(Displayed):
    """A program: the variants of its tasks.

    Raises: ArgumentError if two variants have the same name, or variants of one task have different tensors.
    """

    variants: tuple[Variant, ...]

    def __init__(self, *variants: Variant) -> None:
        for variant in variants:
            if not isinstance(variant, Variant):
                raise ArgumentError("Tasks: not a variant of a task", got=variant, legal="functions under @task(...)", at=call_site())
        names = [variant.name for variant in variants]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            lines = [variant.origin for variant in variants if variant.name == twice]
            raise ArgumentError(
                f"Tasks: two variants are named {twice}",
                got=lines,
                legal="unique names, because instances refer to variants by name",
                at=call_site(),
            )
        shapes: dict[str, Variant] = {}
        for variant in variants:
            first = shapes.setdefault(variant.task, variant)
            if first.tensors != variant.tensors:
                raise ArgumentError(
                    f"{variant.name}: variants of {variant.task} must have the same tensors",
                    got=variant.tensors,
                    legal=first.tensors,
                    at=variant.origin,
                )
        self.__attrs_init__(variants)

    @property
    def tasks(self) -> tuple[str, ...]:
        """The names of its tasks."""
        return tuple(dict.fromkeys(variant.task for variant in self.variants))

    def __getitem__(self, name: str) -> Variant:
        """A variant by its name."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        nearest = closest(name, [variant.name for variant in self.variants])
        raise ArgumentError(
            f"the program has no variant {name}",
            legal=[variant.name for variant in self.variants],
            hint=f"{nearest}?" if nearest else None,
            at=call_site(),
        )

    def check(self, mapping: Mapping) -> None:
        """Refuse a mapping that does not fit the program.

        Raises: ArgumentError if a variant is unknown, if the number of memories is wrong, if a tunable is missing, unknown or of a wrong
        type, or if an instance of a Leaf has calls.
        """
        if not isinstance(mapping, Mapping):
            raise ArgumentError("a program requires a mapping", got=mapping, legal="Mapping([TaskMapping(...), ...])", at=call_site())
        for instance in mapping.instances:
            _check_instance(self, self[instance.variant], instance)


def require_program(program: object) -> None:
    """Refuse anything but a program."""
    if not isinstance(program, Tasks):
        raise ArgumentError("the value is not a program of tasks", got=program, legal="Tasks(gemm_host, gemm_block, ...)", at=call_site())


def _check_instance(program: Tasks, variant: Variant, instance: TaskMapping) -> None:
    where = f"instance {instance.instance} of {variant.name}"
    instance.check()
    if variant.form is Inner and instance.strategy is not None:
        leaves = [candidate.name for candidate in program.variants if candidate.task == variant.task and candidate.form is Leaf]
        raise ArgumentError(
            f"{where}: only an instance of a Leaf may have a strategy",
            got=instance.strategy,
            legal=leaves or "a Leaf of the task",
            at=variant.origin,
        )
    if len(instance.mems) != len(variant.tensors):
        raise ArgumentError(
            f"{where}: the number of memories differs from the number of tensors",
            got=instance.mems,
            legal=variant.tensors,
            at=variant.origin,
        )
    wanted, given = dict(variant.tunables), dict(instance.tunables)
    for name in wanted:
        if name not in given:
            raise ArgumentError(f"{where}: the tunable {name} has no value", legal=f"{name}={wanted[name].__name__}", at=variant.origin)
    for name, value in given.items():
        if name not in wanted:
            raise ArgumentError(f"{where}: the variant has no tunable {name}", legal=tuple(wanted) or "none", at=variant.origin)
        if not isinstance(value, wanted[name]) or isinstance(value, bool):
            raise ArgumentError(
                f"{where}: the tunable {name} has a value of a wrong type", got=value, legal=wanted[name].__name__, at=variant.origin
            )
    places = zip(variant.tensors, instance.mems, strict=True)
    shared = [name for name, place in places if place.memory is not None and place.memory.of_block]
    for name, _ in instance.layouts:
        if name not in shared:
            raise ArgumentError(f"{where}: {name} has a layout, but is not in SHARED", legal=shared or "none", at=variant.origin)
    if variant.form is Leaf and instance.calls:
        raise ArgumentError(f"{where}: a Leaf must not launch tasks", got=instance.calls, legal="calls=[]", at=variant.origin)


# ---------------------------------------------------------------------------------------------- running


@attrs.frozen(eq=False)
class TaskTensor:
    """A tensor, or a piece of one, as a variant sees it: the shape and the element type, without access to elements.

    `data` belongs to the runner. `parameter` is the variant's argument that the tensor is, or is a piece of. It is None for a tensor that
    the variant allocated, which has the number `allocation`. `scope` is the execution of the variant that owns the tensor. `selection` has
    the partitions and indices that select a piece.
    """

    data: Any = attrs.field(repr=False)
    extents: tuple[Any, ...]
    dtype: DType
    parameter: str | None = None
    scope: Any = attrs.field(default=None, repr=False)
    allocation: int = attrs.field(default=0, repr=False)
    selection: tuple[Any, ...] = attrs.field(default=(), repr=False)

    @property
    def called(self) -> str:
        """The name of the argument that it is part of, for messages."""
        return self.parameter or "a tensor of make_tensor"

    @property
    def known_as(self) -> tuple[Any, ...]:
        """Its identity for the variant that owns it: the tensor, and the part of it."""
        return (self.parameter or NewTensor(self.allocation), *self.selection)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The number of elements along each dimension."""
        return tuple(map(scalar, self.extents))

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.extents)

    def __getitem__(self, index: object) -> Any:
        """Refuse element access, which only `call_external` may do."""
        raise DecompositionError(
            f"a task must not access elements of a tensor, here of {self.called}",
            got=index, legal="partition_by_blocks(...)[i, j], and call_external(...) in a Leaf", at=call_site(),
        )  # fmt: skip

    def __setitem__(self, index: object, value: object) -> None:
        """Refuse element access."""
        self[index]

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse element access."""
        return self["as an array"]

    def __array_function__(self, *args: Any) -> Any:
        """Refuse element access."""
        return self["by NumPy"]

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        """Refuse element access."""
        return self["by NumPy"]

    def __add__(self, other: object) -> Any:
        """Refuse element access."""
        return self["in arithmetic"]

    __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __matmul__ = __rmatmul__ = __truediv__ = __rtruediv__ = __add__

    def __iter__(self) -> Iterator[Any]:
        """Refuse element access."""
        return iter(self["one by one"])


@frozen
class Pieces:
    """The pieces of a tensor under a partition, accessed by index."""

    tensor: TaskTensor
    partition: Partition

    def __getitem__(self, index: Any) -> TaskTensor:
        """One piece, whose coordinates start at zero. Raises: DecompositionError for a wrong number of indices."""
        place = index if isinstance(index, tuple) else (index,)
        counts = self.partition.counts(self.tensor.extents)
        if len(place) != len(counts):
            raise DecompositionError(
                f"{self.partition}: {len(place)} indices are given",
                legal=f"{len(counts)} indices, of {' x '.join(map(str, counts))} pieces",
                at=call_site(),
            )
        shape = self.partition.shape(self.tensor.extents)
        running().require_own("an index", self.tensor)
        place = tuple(map(operand, place))
        data = running().piece(self.tensor, self.partition, place, shape)
        selection = (*self.tensor.selection, self.partition, place)
        return attrs.evolve(self.tensor, data=data, extents=shape, selection=selection)

    def __iter__(self) -> Iterator[Any]:
        """Refuse iteration: pieces must be accessed by the indices of a loop."""
        raise DecompositionError(
            f"{self.partition}: its pieces cannot be iterated over", legal="for i in prange(...): ... pieces[i]", at=call_site()
        )


@checked_arguments
def partition(tensor: TaskTensor, by: Partition) -> Pieces:
    """The pieces of a tensor under any partition, including user-defined ones."""
    if not isinstance(tensor, TaskTensor) or not isinstance(by, Partition):
        raise ArgumentError(
            "partition requires a tensor of a task and a Partition",
            got=(tensor, by),
            legal="tensors of this variant, or pieces[i]",
            at=call_site(),
        )
    try:
        by.check(tensor.extents)
    except FireironError as error:
        error.got = error.got or f"{tensor.called}: {' x '.join(map(str, tensor.extents))}"
        raise
    return Pieces(tensor, by)


@checked_arguments
def cdiv(number: Any, by: Any) -> Any:
    """Return the quotient, rounded up. Sizes that are known only at run time are legal."""
    divisor = operand(by)
    if divisor.low < 1:
        raise ArgumentError(f"cdiv({shown(number)}, {shown(by)}): the divisor must be positive", at=call_site())
    return scalar(ceildiv(operand(number), divisor))


def plain(size: Any) -> Any:
    """A size as an integer if it is known, otherwise as an expression."""
    value = as_expr(size)
    number = constant(value)
    return value if number is None else number


CALL: Final = "call"
"""The `what` of a `Launch` that is a call of a Leaf. Other launches are copies of arguments."""


@frozen
class Launch:
    """The identity of a launch of a program under a mapping, which is the same in event IR and in the compiler.

    `path` has an entry for each variant on the path from the entry point: the number of the launch in the variant's text, and how often it
    was entered before. `what` is `call`, or the copy of an argument: `in NAME` or `out NAME`.
    """

    path: tuple[tuple[int, int], ...]
    what: str

    def __str__(self) -> str:
        return f"{'.'.join(f'{place}' if not times else f'{place}+{times}' for place, times in self.path) or 'entry'} {self.what}"


@attrs.define(eq=False)
class Frame:
    """A running variant: its instance, and the launches that it has executed so far, by their positions in its text (`sites`)."""

    variant: Variant
    mapping: TaskMapping
    sites: dict[object, TaskMapping] = attrs.field(factory=dict)
    open: list[str | None] = attrs.field(factory=list)
    """The lines of the open loops of the variant."""
    trace: Trace = attrs.field(factory=Trace)
    works: bool = False
    entered: dict[object, int] = attrs.field(factory=dict)
    """How often the launch at each position was entered."""
    at: tuple[int, int] = (0, 0)
    """The current launch: the number of its position, and how often it was entered before."""


@attrs.define(eq=False)
class Runner:
    """Runs variants of a program under a mapping. Subclasses implement loops, pieces, new tensors and work on data."""

    program: Tasks
    mapping: Mapping
    frames: list[Frame] = attrs.field(factory=list, init=False)
    dry: bool = attrs.field(default=False, init=False)
    """Whether the iteration is executed only for comparison, without entering its launches."""

    @property
    def here(self) -> Frame:
        """The running variant."""
        return self.frames[-1]

    # ------------------------------------------------------------------------------------------ for subclasses

    def piece(self, tensor: TaskTensor, by: Partition, place: tuple[Expr, ...], shape: tuple[Any, ...]) -> Any:
        """The data of a piece."""
        raise NotImplementedError

    def loop(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        """The indices of a loop of launches."""
        raise NotImplementedError

    def again(self) -> contextlib.AbstractContextManager[None] | None:
        """Return the context for executing an iteration a second time, to compare both executions; None if that is unnecessary."""
        return None

    def apart(self, tensor: TaskTensor, other: TaskTensor) -> bool:
        """Whether two tensors are known to be disjoint."""
        raise NotImplementedError

    def tensor(self, shape: tuple[Any, ...], dtype: DType) -> Any:
        """The data of a new tensor."""
        raise NotImplementedError

    def coordinates(self, tensor: TaskTensor, dim: int) -> Any:
        """The data of the coordinates of a piece along a dimension."""
        raise NotImplementedError

    def extent(self, tensor: TaskTensor, dim: int) -> Any:
        """The data of the extent of the whole tensor, of which `tensor` is a piece."""
        raise NotImplementedError

    def enter(self, instance: TaskMapping, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Run an instance on tensors."""
        raise NotImplementedError

    def external(self, function: Any, tensors: tuple[TaskTensor, ...], options: dict[str, Any]) -> None:
        """Work on data."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ operations of variants

    def start(self, tensors: tuple[TaskTensor, ...]) -> None:
        """Run the entry point."""
        instance = self.mapping.root
        with_runner(self, lambda: self.enter(instance, self.program[instance.variant], tensors))

    def call(self, instance: TaskMapping, variant: Variant, tensors: Sequence[TaskTensor]) -> None:
        """Run the function of an instance. Refuse missing launches, and loops that it left early."""
        frame = Frame(variant, instance)
        given = [
            TaskTensor(tensor.data, tensor.extents, tensor.dtype, name, frame)
            for name, tensor in zip(variant.tensors, tensors, strict=True)
        ]
        self.frames.append(frame)
        try:
            self._require_whole(frame, variant.function(*given, **dict(instance.tunables)))
        except FireironError as error:
            raise error.located(within=f"instance {instance.instance} of {variant.name}") from None
        except ZeroDivisionError:
            raise DecompositionError(
                f"instance {instance.instance}: {variant.name} divides by zero", got=dict(instance.tunables) or None,
                legal="sizes of 1 or more", at=variant.origin,
            ) from None  # fmt: skip
        self.frames.pop()

    def _require_whole(self, frame: Frame, returned: object) -> None:
        """Refuse a variant that left a loop early, did not launch all calls, did nothing, or returned a value."""
        instance, variant = frame.mapping, frame.variant
        if returned is not None:
            raise DecompositionError(
                f"{variant.name}: a task must not return a value",
                got=returned,
                legal="results in tensors that it writes",
                at=variant.origin,
            )
        if frame.open:
            _refuse_left(variant, frame.open[-1])
        left = instance.calls[len(frame.sites) :]
        if left:
            raise DecompositionError(
                f"instance {instance.instance}: {variant.name} has {len(frame.sites)} launches, but {len(instance.calls)} calls",
                got=list(instance.calls), legal=f"{len(frame.sites)} calls", at=variant.origin,
            )  # fmt: skip
        if variant.writes and not frame.sites and not frame.works:
            raise DecompositionError(
                f"{variant.name} declares that it writes {', '.join(sorted(variant.writes))}, but does nothing",
                legal="launch(...)" if variant.form is Inner else "call_external(...)", at=variant.origin,
            )  # fmt: skip

    def require_own(self, what: str, *tensors: Any) -> None:
        """Refuse tensors that belong to another execution of a variant: the privileges on them are unknown here."""
        for tensor in tensors:
            if tensor.scope is not None and tensor.scope is not self.here:
                raise DecompositionError(
                    f"{self.here.variant.name}: {what} uses {tensor.called} of {tensor.scope.variant.name}, which is not an argument of "
                    f"{self.here.variant.name}",
                    legal=self.here.variant.tensors, hint="pass the tensor to the launch", at=call_site(),
                )  # fmt: skip

    def looped(self, extents: tuple[Any, ...], parallel: bool) -> Iterator[Any]:
        """Run a loop of launches. It counts as open until its last iteration has ended."""
        here, line = self.here, call_site()
        here.trace.actions.append(Action("prange" if parallel else "srange", line, tuple(map(as_expr, extents))))
        here.open.append(line)
        depth = len(here.open)

        def require_here() -> None:
            if self.here is not here or len(here.open) != depth:
                _refuse_left(self.here.variant, self.here.open[-1] if self.here.open else line)

        count = 0
        for count, index in enumerate(self.loop(extents, parallel), 1):  # noqa: B007
            here.trace.variables += _variables(index)
            mark = here.trace.mark()
            yield index
            require_here()
            again = None if self.dry else self.again()
            if again is not None:
                first, second_mark = here.trace.since(mark), here.trace.mark()
                with again, self._dry_run():
                    yield index
                require_here()
                require_same_actions(here.variant.name, line, first, here.trace.since(second_mark))
                here.trace.back_to(second_mark)
        if not count:  # the positions of its launches count among the calls
            with self._dry_run():
                yield (0,) * len(extents) if len(extents) > 1 else 0
            require_here()
        here.open.pop()

    @contextlib.contextmanager
    def _dry_run(self) -> Iterator[None]:
        outer, self.dry = self.dry, True
        yield
        self.dry = outer

    def launched(self, name: str, site: object, tensors: tuple[Any, ...]) -> None:
        """Launch a task by name, from a position in the text of the running variant."""
        here = self.here
        if not isinstance(name, str):
            raise ArgumentError(
                f"{here.variant.name}: launch requires the name of a task", got=name, legal=self.program.tasks, at=call_site()
            )
        if here.variant.form is Leaf:
            raise DecompositionError(
                f"{here.variant.name}: a Leaf must not launch tasks", got=f'launch("{name}")', legal="Inner", at=call_site()
            )
        if name not in self.program.tasks:
            nearest = closest(name, self.program.tasks)
            raise DecompositionError(
                f'{here.variant.name}: launch("{name}"), but the program has no such task', legal=self.program.tasks,
                hint=f"{nearest}?" if nearest else None, at=call_site(),
            )  # fmt: skip
        for number, tensor in enumerate(tensors):
            require_tensor(f'{here.variant.name}: launch("{name}"), argument {number}', tensor)
        here.trace.actions.append(Action(f'launch("{name}")', call_site(), tuple(tensor.known_as for tensor in tensors)))
        instance = here.sites.get(site)
        if instance is None:
            instance = self._called(name, len(here.sites))
            here.sites[site] = instance
        variant = self.program[instance.variant]
        if variant.task != name:
            raise DecompositionError(
                f"instance {here.mapping.instance} launches {name}, but its call is {instance.instance}, an instance of {variant.task}",
                legal=[each.instance for each in self.mapping.instances if self.program[each.variant].task == name] or "none",
                at=call_site(),
            )  # fmt: skip
        if len(tensors) != len(variant.tensors):
            raise DecompositionError(
                f'{here.variant.name}: launch("{name}") passes {len(tensors)} tensors', legal=variant.tensors, at=call_site()
            )
        self.require_own(f'launch("{name}")', *tensors)
        self._check_privileges(variant, tensors)
        self._check_apart(variant, tensors)
        if not self.dry:
            times = here.entered.get(site, 0)
            here.entered[site], here.at = times + 1, (list(here.sites).index(site), times)
            self.enter(instance, variant, tensors)

    def launch_of(self, what: str, inside: bool = False) -> Launch:
        """Return the identity of the current launch, or, if `inside`, of the launch that the running variant belongs to."""
        return Launch(tuple(frame.at for frame in self.frames[: len(self.frames) - inside]), what)

    def _check_apart(self, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Refuse arguments of a launch that may overlap, if the launch writes one of them: their copies would differ."""
        for (name, first), (other, second) in itertools.combinations(zip(variant.tensors, tensors, strict=True), 2):
            writes = [written for written in (name, other) if written in variant.writes]
            if writes and not self.dry and not self.apart(first, second):
                raise DecompositionError(
                    f"{self.here.variant.name}: {variant.name} writes {writes[0]}, which may overlap with "
                    f"{other if writes[0] == name else name}",
                    got="the same tensor, or pieces that are not proved disjoint", legal="disjoint tensors",
                    hint="pass one argument with both privileges", at=call_site(),
                )  # fmt: skip

    def _called(self, name: str, number: int) -> TaskMapping:
        here = self.here
        if number >= len(here.mapping.calls):
            raise DecompositionError(
                f'instance {here.mapping.instance}: launch("{name}") is launch {number + 1}, '
                f"but the mapping has {len(here.mapping.calls)} calls",
                legal=[each.instance for each in self.mapping.instances if self.program[each.variant].task == name] or "none",
                hint=f'calls=[..., "an instance of {name}"]', at=call_site(),
            )  # fmt: skip
        return self.mapping[here.mapping.calls[number]]

    def _check_privileges(self, variant: Variant, tensors: tuple[TaskTensor, ...]) -> None:
        """Refuse a launch with more privileges on a tensor than the launching variant has."""
        caller = self.here.variant
        for name, tensor in zip(variant.tensors, tensors, strict=True):
            for verb, callee_tensors, caller_tensors in (("reads", variant.reads, caller.reads), ("writes", variant.writes, caller.writes)):
                if name in callee_tensors and tensor.parameter is not None and tensor.parameter not in caller_tensors:
                    raise DecompositionError(
                        f"{variant.name} {verb} {name}, but {caller.name}, which passes {tensor.parameter} for it, has no such privilege",
                        legal=f'{verb}=[..., "{tensor.parameter}"] of {caller.name}', at=call_site(),
                    )  # fmt: skip

    def externally(self, function: Any, tensors: tuple[Any, ...], options: dict[str, Any]) -> None:
        """Call a function on data."""
        name = self.here.variant.name
        if self.here.variant.form is Inner:
            raise DecompositionError(
                f"{name}: an Inner variant must not access data", got=f"call_external({function!r})", legal="Leaf", at=call_site()
            )
        for number, tensor in enumerate(tensors):
            require_tensor(f"{name}: call_external({function!r}), operand {number}", tensor)
        self.require_own("call_external", *tensors)
        self.here.works = True
        try:
            if isinstance(function, MicroKernel):
                function, options = self._opaque(function, tensors, options)
            self.external(function, tensors, {word: _bare(option) for word, option in options.items()})
        except FireironError as error:
            raise error.located(at=call_site()) from None

    def _opaque(self, kernel: MicroKernel, tensors: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """The kind and the options of a call of a micro-kernel on tensors."""
        variant, names = self.here.variant, [str(tensor.parameter) for tensor in tensors]
        if len(set(names)) != len(names) or set(names) - set(variant.tensors):
            raise ArgumentError(
                f"{variant.name}: a micro-kernel takes each tensor of the variant at most once",
                got=names,
                legal=variant.tensors,
                at=call_site(),
            )
        unknown = [name for name in options if name not in ("meaning", "dims")]
        if unknown:
            raise ArgumentError(f"call_external({kernel}) has no option {unknown[0]}", legal=("meaning", "dims"), at=call_site())
        ranks = [tensor.rank for tensor in tensors]
        kind = opaque(kernel, names, ranks, variant.reads, variant.writes, options.get("dims"), options.get("meaning"))
        return kind.starter, {"accumulate": True} if kind.opaque_definition.accumulates else {}


def _refuse_left(variant: Variant, line: str | None) -> NoReturn:
    raise DecompositionError(
        f"{variant.name}: a loop of a task must run to its end, and its iterations must not alternate with those of another loop",
        legal="a loop without break, return, next() or zip()",
        at=line,
    )


def _variables(index: Any) -> list[Var]:
    """The variables of a loop's index, when the compiler reads the variant."""
    indices = index if isinstance(index, tuple) else (index,)
    return [
        index_value.expression for index_value in indices if isinstance(index_value, Scalar) and isinstance(index_value.expression, Var)
    ]


def _bare(value: Any) -> Any:
    """Return an option for a spec, with expressions instead of the variant's scalars."""
    return value.expression if isinstance(value, Scalar) else tuple(map(_bare, value)) if type(value) is tuple else value


def require_tensor(what: str, value: object) -> None:
    """Refuse anything but a tensor of a task."""
    if not isinstance(value, TaskTensor):
        hint = "select one piece: pieces[i, j]" if isinstance(value, Pieces) else None
        raise ArgumentError(f"{what} is not a tensor", got=value, legal="tensors of this variant, or pieces[i]", hint=hint, at=call_site())


_RUNNER: contextvars.ContextVar[Runner] = contextvars.ContextVar("runner")
"""The runner of variants in this thread, to which `launch` and the other functions delegate."""


def with_runner(runner: Runner, function: Callable[[], None]) -> None:
    """Call a function under a runner."""
    token = _RUNNER.set(runner)
    try:
        function()
    finally:
        _RUNNER.reset(token)


def running() -> Runner:
    """The current runner. Raises: DecompositionError outside tasks."""
    runner = _RUNNER.get(None)
    if runner is None:
        raise DecompositionError("no task is running: only variants of tasks can launch tasks and partition tensors", at=call_site())
    return runner


def launch(name: str, *tensors: TaskTensor, **named: Any) -> None:
    """Launch a task on tensors; the mapping specifies the variant and the processor."""
    if named:
        raise ArgumentError(
            f'launch("{name}"): tensors must be positional arguments', got=list(named), legal="tensors in order", at=call_site()
        )
    caller = sys._getframe(1)
    running().launched(name, (caller.f_code, caller.f_lasti), tensors)


@checked_arguments
def srange(*extents: Any) -> Iterator[Any]:
    """Iterate over the indices of sequential launches: a number, or for more than one extent a tuple, the last index fastest."""
    return running().looped(_checked(extents, "srange"), parallel=False)


@checked_arguments
def prange(*extents: Any) -> Iterator[Any]:
    """Iterate over the indices of launches that run in any order or concurrently. No launch may write elements that another accesses."""
    return running().looped(_checked(extents, "prange"), parallel=True)


def _checked(extents: tuple[Any, ...], what: str) -> tuple[Any, ...]:
    if not extents:
        raise ArgumentError(f"{what} requires at least one extent", legal=f"{what}(4)", at=call_site())
    sizes = tuple(map(operand, extents))
    if any(size.low < 0 and constant(size) is not None for size in sizes):
        raise ArgumentError(f"{what}: an extent is negative", got=extents, legal=f"{what}(4)", at=call_site())
    return tuple(map(plain, sizes))


@checked_arguments
def make_tensor(shape: Sequence[Any], dtype: Any) -> TaskTensor:
    """Return a new tensor, whose elements are undefined until a task writes them."""
    if isinstance(shape, str) or not isinstance(shape, Sequence):
        raise ArgumentError(
            "make_tensor requires one size per dimension", got=shape, legal="make_tensor((64, 64), float32)", at=call_site()
        )
    try:
        wanted, sizes = as_dtype(dtype), tuple(plain(operand(size)) for size in shape)
    except ArgumentError as error:
        raise error.located(at=call_site()) from None
    if not sizes or any(isinstance(size, int) and size < 1 for size in sizes):
        raise ArgumentError("make_tensor: the tensor has no elements", got=shape, legal="1 or more along each dimension", at=call_site())
    runner = running()
    record = runner.here.trace
    record.actions.append(Action("make_tensor", call_site(), (*map(as_expr, sizes), wanted.name)))
    record.allocations += 1
    return TaskTensor(runner.tensor(sizes, wanted), sizes, wanted, scope=runner.here, allocation=record.allocations - 1)


def call_external(function: Any, *tensors: TaskTensor, **options: Any) -> None:
    """Perform a spec on data: `"matmul"` (C += A B), `"copy"` (dst, src), `"fill"` (dst), or any kind of spec, such as `Pointwise`.

    The tensors are the operands of the spec, in the order of its short form or by name. An operand `x` that a formula reads and writes is
    passed as `x` and `x_before`. If the option `done` is a `MicroKernel`, its CUDA C++ implements the spec.

    A `MicroKernel` may also be the function, on tensors that the variant reads and writes. Then `meaning` is a function that changes NumPy
    arrays and replaces the kernel in simulations, and `dims` names the dimensions of the tensors: `"mn,mk,kn"`.
    """
    named = {name: value for name, value in options.items() if isinstance(value, TaskTensor)}
    options = {name: value for name, value in options.items() if name not in named}
    running().externally(function, (*tensors, *in_order(function, named, options)), options)


def coordinates(tensor: TaskTensor, dim: int) -> TaskTensor:
    """Return the coordinates of a piece along a dimension, in the entry point's tensor that contains it.

    For a piece that overhangs, they continue past the end of the tensor. Legal in a Leaf that reads the tensor.
    """
    _require_read("coordinates", tensor)
    return TaskTensor(running().coordinates(tensor, dim), (tensor.shape[dim],), int32)


def extent(tensor: TaskTensor, dim: int) -> TaskTensor:
    """Return the extent, along a dimension, of the entry point's tensor that contains a piece. Legal in a Leaf that reads the tensor."""
    _require_read("extent", tensor)
    return TaskTensor(running().extent(tensor, dim), (), int32)


def _require_read(what: str, tensor: TaskTensor) -> None:
    """Refuse an Inner variant, and a tensor that the variant does not read."""
    variant = running().here.variant
    reader = "an Inner variant" if variant.form is Inner else variant.name
    if variant.form is Inner or tensor.parameter not in variant.reads:
        raise DecompositionError(
            f"{variant.name}: {what} requires a tensor that a Leaf reads, but {reader} does not read {tensor.called}",
            legal=f'a Leaf with reads=[..., "{tensor.parameter}"]', at=call_site(),
        )  # fmt: skip


def axes(tensor: TaskTensor, *dims: int) -> TaskTensor:
    """Return the tensor with the dimensions `dims` in this order, for example the transposed matrix. Other dimensions must have size 1."""
    tensor_by_axes: TaskTensor = partition(tensor, Axes(dims))[()]
    return tensor_by_axes


@checked_arguments
def partition_by_blocks(tensor: TaskTensor, sizes: Sequence[Any]) -> Pieces:
    """Partition a tensor into blocks of contiguous elements, with one size per dimension. Blocks at the end may overhang."""
    _require_sizes("partition_by_blocks", sizes)
    return partition(tensor, Blocks(tuple(plain(operand(size)) for size in sizes)))


@checked_arguments
def partition_by_first(tensor: TaskTensor, sizes: Sequence[Any], takers: Any) -> Pieces:
    """Partition a tensor into blocks for launch 0 of `takers` launches; the pieces of other launches are empty.

    The last index of a piece is the number of the launch.
    """
    _require_sizes("partition_by_first", sizes)
    return partition(tensor, First(tuple(sizes), plain(takers)))


def _require_sizes(what: str, sizes: Any) -> None:
    """Refuse anything but a list of sizes."""
    if isinstance(sizes, str) or not isinstance(sizes, Sequence):
        raise ArgumentError(f"{what} requires one size per dimension", got=sizes, legal="(64, 64)", at=call_site())


@checked_arguments
def partition_by_slices(tensor: TaskTensor, dim: int = 0) -> Pieces:
    """Partition a tensor into one piece per coordinate along a dimension, for example the matrices of a batch.

    Pieces do not have this dimension.
    """
    return partition(tensor, Slices(dim))


@checked_arguments
def partition_by_mma(tensor: TaskTensor, instruction: str, processor: Processor, operand: str) -> Pieces:
    """Partition an operand of a matrix instruction, `"A"`, `"B"` or `"C"`, into the parts of warps or threads.

    For a tensor with one number per row of C, the operand is `"rows"`. For a tensor with four numbers per row, one per thread that has
    elements of the row, it is `"parts"`.
    """
    return partition(tensor, mma_pieces(instruction, processor, operand))
