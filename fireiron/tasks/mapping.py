"""Mappings as values: the processors on which the tasks of a program run, and the memories of their tensors (Cypress, section 3.3).

A `Mapping` has instances of variants. Each instance has a processor, a memory for each tensor, values for its tunables, and the instances
that its launches run. The results of a program do not depend on its mapping.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

import attrs

from fireiron.display import Displayed
from fireiron.errors import ArgumentError, FireironError, StoreError, call_site, closest, shown
from fireiron.frozen import frozen
from fireiron.language.former import present_fields
from fireiron.language.store.converter import Store
from fireiron.language.store.documents import parsed, pretty
from fireiron.language.strategy import Strategy
from fireiron.language.tunable import Derived, Tunable, chosen
from fireiron.values.machine import GL, RF, SH, Block, Kernel, Level, Memory, Thread, Warp, Warpgroup, as_integer
from fireiron.values.typed import check_types

AnyClass = TypeVar("AnyClass")


def _with_known_fields(kind: type[AnyClass]) -> type[AnyClass]:
    """Make a class refuse calls with unknown arguments by an `ArgumentError` that lists its fields."""
    original, fields = kind.__init__, inspect.signature(kind)

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            fields.bind(*arguments, **named)
        except TypeError as error:
            got = [*map(shown, arguments), *named]
            raise ArgumentError(f"{kind.__name__}: {error}", got=got, legal=tuple(fields.parameters), at=call_site()) from None
        original(self, *arguments, **named)

    kind.__init__ = init  # type: ignore[method-assign]
    return kind


@attrs.frozen(repr=False)
class Processor:
    """A kind of processor that runs tasks, and the level of specs that it performs."""

    name: str
    level: Level

    def __repr__(self) -> str:
        return self.name


@attrs.frozen(repr=False)
class Place:
    """The place of a tensor while a task runs: a memory of the machine, or NONE (`memory` None) for no separate copy."""

    name: str
    memory: Memory | None = None

    def __repr__(self) -> str:
        return self.name


HOST: Final = Processor("HOST", Kernel)
BLOCK: Final = Processor("BLOCK", Block)
WARPGROUP: Final = Processor("WARPGROUP", Warpgroup)
WARP: Final = Processor("WARP", Warp)
THREAD: Final = Processor("THREAD", Thread)

NONE: Final = Place("NONE")
GLOBAL: Final = Place("GLOBAL", GL)
SHARED: Final = Place("SHARED", SH)
REGISTER: Final = Place("REGISTER", RF)


@frozen
class Machine:
    """The names that a mapping may use: processors, the outermost first, and the places that each of them can access.

    The registers of a group of threads are the registers of all its threads.
    """

    name: str
    processors: tuple[Processor, ...]
    reaches: tuple[tuple[Processor, tuple[Place, ...]], ...]

    def __attrs_post_init__(self) -> None:
        check_types(self)
        if not self.processors or [processor.name for processor, _ in self.reaches] != [processor.name for processor in self.processors]:
            raise ArgumentError(
                f"machine {self.name}: reaches must list the places of each processor, in order", got=self.reaches, legal=self.processors,
                at=call_site(),
            )  # fmt: skip

    @property
    def places(self) -> tuple[Place, ...]:
        """All places, and NONE."""
        return tuple(dict.fromkeys((NONE, *(place for _, places in self.reaches for place in places))))

    def reached(self, processor: Processor) -> tuple[Place, ...]:
        """The places that a processor can access."""
        return dict(self.reaches)[processor]

    def depth(self, processor: Processor) -> int:
        """The nesting depth of a processor."""
        return self.processors.index(processor)


def _machine(name: str, *inside: Processor) -> Machine:
    """A machine with blocks, whose groups `inside` can access registers."""
    groups = tuple((processor, (GLOBAL, SHARED, REGISTER)) for processor in inside)
    return Machine(name, (HOST, BLOCK, *inside), ((HOST, (GLOBAL,)), (BLOCK, (GLOBAL, SHARED)), *groups))


AMPERE: Final = _machine("Ampere", WARP, THREAD)
HOPPER: Final = _machine("Hopper", WARPGROUP, WARP, THREAD)
MACHINES: Final = (AMPERE, HOPPER)


MOST_STAGES: Final = 16
"""Maximum number of stages of a circular buffer."""

MOST_BLOCKS: Final = 16
"""Maximum number of blocks per cluster."""


def listed(value: Any) -> tuple[Any, ...]:
    """Convert a list of values to a tuple; refuse a text or a single value."""
    try:
        if not isinstance(value, str):
            return tuple(value)
    except TypeError:
        pass
    raise ArgumentError("the value must be a list", got=value, legal="[...]", at=call_site())


def is_open(value: object) -> bool:
    """Whether a value is a tunable, or computed from tunables, without a value yet."""
    return isinstance(value, (Tunable, Derived))


def _is_count(value: Any) -> bool:
    """Whether a value is a non-negative integer, or a tunable."""
    return is_open(value) or (as_integer(value) is not None and value >= 0)


def _as_bool(value: Any, what: str) -> Any:
    """A truth value, or a tunable of 0 and 1."""
    if is_open(value) or isinstance(value, bool):
        return value
    if as_integer(value) not in (0, 1):
        raise ArgumentError(f"{what} must be true or false", got=value, legal="True False, or a tunable of 0 and 1", at=call_site())
    return bool(value)


@_with_known_fields
@frozen
class Stored:
    """The layout of a copy in shared memory.

    Rows are padded by `pad` elements. With `swizzle`, 16-byte pieces are permuted so that those of eight rows use all banks. `order` is
    `"row"` or `"col"`; by default, it is the order of the source. `stages` is the number of stages of the circular buffer that a producer
    fills; 0 means the number of stages of the pipeline. With `reuse`, the copy may use the bytes of dead buffers.
    """

    swizzle: bool = False
    pad: int = 0
    order: str = ""
    stages: int = 0
    reuse: bool = False

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.order, str) or self.order not in ("", "row", "col") or not _is_count(self.pad):
            raise ArgumentError(
                "Stored: order must be row or col, and pad must not be negative",
                got=(self.order, self.pad),
                legal="an order of row or col, and a pad of 0 or more",
                at=call_site(),
            )
        if not _is_count(self.stages) or (not is_open(self.stages) and self.stages > MOST_STAGES):
            raise ArgumentError("Stored: stages is out of range", got=self.stages, legal=f"0 to {MOST_STAGES}", at=call_site())
        object.__setattr__(self, "swizzle", _as_bool(self.swizzle, "Stored: swizzle"))

    def __str__(self) -> str:
        words = [f"{name} {value}" for name, value in (("order", self.order), ("pad", self.pad), ("stages", self.stages)) if value]
        words += ["swizzled"] if self.swizzle is True else [f"swizzle {self.swizzle}"] if self.swizzle else []
        return ", ".join(words) or "plain"


def pairs(value: Any) -> tuple[tuple[str, Any], ...]:
    """Values by name as sorted pairs."""
    try:
        values = dict(value)
    except (TypeError, ValueError):
        values = {None: None}
    if not all(isinstance(name, str) for name in values):
        raise ArgumentError("the values must be a dictionary by name", got=value, legal='{"U": 128}', at=call_site())
    return tuple(sorted(values.items()))


@_with_known_fields
@frozen
class TaskMapping(Displayed):
    """An instance of a variant: its processor, the places of its tensors, and the instances that its launches run, in order.

    Further fields:

    - `layouts`: the layouts of the instance's copies in shared memory, by the name of the tensor.
    - `pipeline`: the number of stages of the loops of the instance. With `interleave`, the copies are issued between the steps of the inner
      loop. With `warpspecialize`, `producer_threads` dedicated threads (a warp or a warpgroup) issue the loads, and `mma_in_flight` wgmma
      groups stay in flight when the next iteration starts (None: the compiler chooses the number).
    - `strategy`: for an instance of a Leaf, a chain of verbs that performs its spec at the level of its processor.
    - For the launches of a `prange` on BLOCK: `group_m` and `raster` specify the tile order, as the arguments of `rasterize` do
      (0: row-major). At most `persistent` blocks are launched, and each block runs several launches. The blocks of a `cluster` load shared
      data once, by multicast (Hopper).
    """

    instance: str
    variant: str
    proc: Processor
    mems: tuple[Place, ...] = attrs.field(converter=listed)
    tunables: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=pairs)
    calls: tuple[str, ...] = attrs.field(default=(), converter=listed)
    entrypoint: bool = False
    warpspecialize: bool = False
    pipeline: int = 0
    layouts: tuple[tuple[str, Stored], ...] = attrs.field(default=(), converter=pairs)
    producer_threads: int = 32
    interleave: bool = False
    mma_in_flight: int | None = None
    group_m: int = 0
    raster: int = 0
    persistent: int = 0
    cluster: tuple[int, ...] = attrs.field(default=(), converter=listed)
    strategy: Strategy | None = None

    def __attrs_post_init__(self) -> None:
        if self.strategy is not None and not isinstance(self.strategy, Strategy):
            raise ArgumentError(
                f"{self.instance}: strategy must be a Strategy",
                got=self.strategy,
                legal="MatMul.tile(...).to(Warp). ... .done()",
                at=call_site(),
            )
        for word, names in (("instance", (self.instance,)), ("variant", (self.variant,)), ("calls", self.calls)):
            if not all(isinstance(name, str) and name for name in names):
                raise ArgumentError(
                    f"{self.instance}: {word} must be a name, or a list of names for calls",
                    got=getattr(self, word),
                    legal="names of instances and variants",
                    at=call_site(),
                )
        for name, value in self.tunables:
            if not is_open(value) and (isinstance(value, bool) or not isinstance(value, (int, str, Processor))):
                raise ArgumentError(
                    f"{self.instance}: the tunable {name} has a value of a wrong type",
                    got=value,
                    legal="an int, a str or a processor",
                    at=call_site(),
                )
        if not isinstance(self.entrypoint, bool):
            raise ArgumentError(
                f"{self.instance}: entrypoint must be true or false", got=self.entrypoint, legal="True False", at=call_site()
            )
        if not all(isinstance(layout, Stored) for _, layout in self.layouts):
            raise ArgumentError(f"{self.instance}: layouts must be Stored(...)", got=dict(self.layouts), at=call_site())
        if not isinstance(self.proc, Processor):
            raise ArgumentError(
                f"{self.instance}: proc is not a processor", got=self.proc, legal="HOST BLOCK WARPGROUP WARP THREAD", at=call_site()
            )
        if not all(isinstance(place, Place) for place in self.mems):
            raise ArgumentError(f"{self.instance}: mems must be places", got=self.mems, legal="NONE GLOBAL SHARED REGISTER", at=call_site())
        if not _is_count(self.pipeline):
            raise ArgumentError(
                f"{self.instance}: pipeline must be a number of stages", got=self.pipeline, legal="0 1 2 ...", at=call_site()
            )
        object.__setattr__(self, "warpspecialize", _as_bool(self.warpspecialize, f"{self.instance}: warpspecialize"))

        numbers = (
            self.pipeline,
            self.warpspecialize,
            self.producer_threads,
            self.mma_in_flight,
            self.group_m,
            self.raster,
            self.persistent,
        )
        if not any(map(is_open, (*numbers, *self.cluster, self.interleave))):
            self._check_loop()
            self._check_grid()

    def check(self) -> None:
        """Refuse an instance that cannot run: with tunables without values, or with `warpspecialize` but without stages."""
        values = {field.name: getattr(self, field.name) for field in attrs.fields(TaskMapping)} | dict(self.tunables)
        values |= {
            f"{field.name} of {name}": getattr(layout, field.name) for name, layout in self.layouts for field in attrs.fields(Stored)
        }
        for name, value in values.items():
            if is_open(value):
                chosen(value, f"instance {self.instance}: {name}")
        if self.warpspecialize and not self.pipeline:
            raise ArgumentError(
                f"{self.instance}: warpspecialize requires a pipeline, because a producer fills its stages", legal="pipeline=3"
            )
        self._check_loop()
        self._check_grid()

    def _check_loop(self) -> None:
        """Refuse illegal fields of the instance's loop."""
        if self.producer_threads not in (32, 128):
            raise ArgumentError(
                f"{self.instance}: producer_threads must be the size of a warp or a warpgroup",
                got=self.producer_threads,
                legal=(32, 128),
                at=call_site(),
            )
        if self.interleave and self.pipeline < 2:
            raise ArgumentError(
                f"{self.instance}: interleave requires a pipeline of at least two stages", got=f"pipeline={self.pipeline}",
                legal="pipeline=2 or more", at=call_site(),
            )  # fmt: skip
        if self.mma_in_flight is not None and not (self.warpspecialize and 0 <= self.mma_in_flight < self.pipeline):
            raise ArgumentError(
                f"{self.instance}: mma_in_flight={self.mma_in_flight} is illegal for {self.pipeline} stages",
                hint="set warpspecialize=True, and use fewer groups than stages", at=call_site(),
            )  # fmt: skip

    def _check_grid(self) -> None:
        """Refuse illegal fields for the blocks of a kernel."""
        blocks_fields = {"group_m": self.group_m, "persistent": self.persistent, "cluster": math.prod(self.cluster) > 1}
        requested = [name for name, value in blocks_fields.items() if value]
        if requested and self.proc != HOST:
            raise ArgumentError(
                f"{self.instance}: {requested[0]} applies only to an instance that launches blocks",
                got=self.proc,
                legal="HOST",
                at=call_site(),
            )
        numbers = (self.group_m, self.persistent, *self.cluster)
        if any(as_integer(number) is None or number < 0 for number in numbers) or not math.prod(self.cluster) <= MOST_BLOCKS:
            raise ArgumentError(
                f"{self.instance}: group_m, persistent and the sizes of the cluster must be integers in range", got=numbers,
                legal=f"0 or more, and at most {MOST_BLOCKS} blocks in a cluster", at=call_site(),
            )  # fmt: skip
        if self.raster not in (0, 1, 2) or (self.raster and not self.group_m) or (self.raster == 2 and self.group_m != 1):
            raise ArgumentError(
                f"{self.instance}: raster={self.raster} is illegal for group_m={self.group_m}",
                legal="raster=0; raster=1 with group_m of 1 or more; raster=2 with group_m=1",
                at=call_site(),
            )


@_with_known_fields
@frozen
class Mapping(Displayed):
    """Instances for a machine, one of which is the entry point. Mappings are equal by value and hashable.

    `max_shared_bytes` bounds the shared memory of a block (0: all that the target has). If the bound requires it, tensors that are never
    live at the same time share bytes.

    Raises: ArgumentError if names are not unique or unknown, if there is not exactly one entry point, if a processor cannot access a place,
    if a call goes outwards, or if an instance launches itself.
    """

    instances: tuple[TaskMapping, ...] = attrs.field(converter=listed)
    machine: Machine = HOPPER
    max_shared_bytes: int = 0

    def __attrs_post_init__(self) -> None:
        for instance in self.instances:
            if not isinstance(instance, TaskMapping):
                raise ArgumentError("Mapping: not an instance", got=instance, legal="TaskMapping(...)", at=call_site())
        if not isinstance(self.machine, Machine):
            raise ArgumentError("Mapping: not a machine", got=self.machine, legal=[machine.name for machine in MACHINES], at=call_site())
        if as_integer(self.max_shared_bytes) is None or self.max_shared_bytes < 0:
            raise ArgumentError(
                "Mapping: max_shared_bytes must be a number of bytes",
                got=self.max_shared_bytes,
                legal="0 for all that the target has",
                at=call_site(),
            )
        names = [instance.instance for instance in self.instances]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError(f"Mapping: two instances are called {twice}", at=call_site())
        roots = [instance.instance for instance in self.instances if instance.entrypoint]
        if len(roots) != 1:
            raise ArgumentError(
                "Mapping: exactly one instance must be the entry point", got=roots or "none", legal="entrypoint=True once", at=call_site()
            )
        for instance in self.instances:
            if instance.proc not in self.machine.processors:
                raise ArgumentError(
                    f"{instance.instance}: {self.machine.name} has no {instance.proc}", legal=self.machine.processors, at=call_site()
                )
        for instance in self.instances:
            self._check(instance, names)
        self._require_tree(self.root, (), set())

    def _require_tree(self, instance: TaskMapping, around: tuple[str, ...], seen: set[str]) -> None:
        """Refuse instances that launch themselves, directly or indirectly."""
        if instance.instance in around:
            circle = (*around[around.index(instance.instance) :], instance.instance)
            raise ArgumentError(
                f"Mapping: {instance.instance} launches itself", got=" -> ".join(circle), legal="calls without a cycle", at=call_site()
            )
        for name in () if instance.instance in seen else dict.fromkeys(instance.calls):
            self._require_tree(self[name], (*around, instance.instance), seen)
        seen.add(instance.instance)

    def _check(self, instance: TaskMapping, names: list[str]) -> None:
        for position, place in enumerate(instance.mems):
            if place != NONE and place not in self.machine.reached(instance.proc):
                raise ArgumentError(
                    f"{instance.instance} of {instance.variant}: {instance.proc} cannot access {place}, the place of tensor {position}",
                    legal=(NONE, *self.machine.reached(instance.proc)), at=call_site(),
                )  # fmt: skip
        for name in instance.calls:
            if name not in names:
                nearest = closest(name, names)
                raise ArgumentError(
                    f"{instance.instance}: calls {name}, which is not an instance",
                    legal=names,
                    hint=f"{nearest}?" if nearest else None,
                    at=call_site(),
                )
            if self.machine.depth(self[name].proc) < self.machine.depth(instance.proc):
                raise ArgumentError(
                    f"{instance.instance} runs on {instance.proc}, and calls {name} on {self[name].proc}, an outer processor",
                    legal=self.machine.processors[self.machine.depth(instance.proc) :], at=call_site(),
                )  # fmt: skip

    def __getitem__(self, name: str) -> TaskMapping:
        """An instance by its name."""
        for instance in self.instances:
            if instance.instance == name:
                return instance
        raise ArgumentError(f"Mapping: no instance {name}", legal=[instance.instance for instance in self.instances], at=call_site())

    @property
    def root(self) -> TaskMapping:
        """The entry point."""
        return next(instance for instance in self.instances if instance.entrypoint)

    def with_(self, instance: str, **changes: Any) -> Mapping:
        """The mapping with an instance replaced: fields by name, including single tunables.

        >>> from fireiron.tasks import *
        >>> instance = TaskMapping("copy", "copy_all", HOST, [GLOBAL, GLOBAL], dict(U=8), entrypoint=True)
        >>> Mapping([instance]).with_("copy", U=16)["copy"].tunables
        (('U', 16),)
        """
        old = self[instance]
        fields = {name: changes.pop(name) for name in tuple(changes) if name in attrs.fields_dict(TaskMapping)}
        unknown = [name for name in changes if name not in dict(old.tunables)]
        if unknown:
            raise ArgumentError(f"{instance}: no tunable {unknown[0]}", legal=[name for name, _ in old.tunables] or "none", at=call_site())
        tunables = {**dict(fields.pop("tunables", old.tunables)), **changes}
        new = attrs.evolve(old, tunables=tunables, **fields)
        return attrs.evolve(self, instances=tuple(new if instance is old else instance for instance in self.instances))

    def diff(self, other: Mapping) -> tuple[str, ...]:
        """The differences to another mapping, one line per field of an instance: `this value -> the other's`."""
        if not isinstance(other, Mapping):
            raise ArgumentError("Mapping.diff: not a mapping", got=other, legal="a Mapping", at=call_site())
        before, after = ({instance.instance: instance for instance in mapping.instances} for mapping in (self, other))
        lines = [f"machine: {self.machine.name} -> {other.machine.name}"] if self.machine != other.machine else []
        lines += (
            [f"max_shared_bytes: {self.max_shared_bytes} -> {other.max_shared_bytes}"]
            if self.max_shared_bytes != other.max_shared_bytes
            else []
        )
        lines += [f"{name}: only in the first" for name in before if name not in after]
        for name, new in after.items():
            lines += [f"{name}: only in the second"] if name not in before else _differences(before[name], new)
        return tuple(lines)

    def to_json(self) -> str:
        """The mapping as JSON. A machine of this package is stored by name, a user's machine in full."""
        return pretty(plain_mapping(self, Store(()))) + "\n"

    @staticmethod
    def from_json(text: str, machines: Iterable[Machine] = MACHINES) -> Mapping:
        """The mapping that `to_json` wrote. Raises: StoreError if the text is not one.

        A machine that is stored by name must be one of `machines`.
        """
        if not isinstance(text, str):
            raise ArgumentError("Mapping.from_json: not a text", got=text, legal="the text that to_json returned", at=call_site())
        store = Store(())
        try:
            plain = parsed(text)
            return store.reporting_errors(lambda: read_mapping(plain, store, machines), "mapping")
        except FireironError as error:
            raise error.located(at=call_site()) from None


def _differences(old: TaskMapping, new: TaskMapping) -> list[str]:
    """Return a line for each field that differs. If the variants differ, the line of the variants also shows their tunables."""
    fields = [field.name for field in attrs.fields(TaskMapping) if field.name not in ("variant", "tunables")]
    lines = [f"{new.instance}.{name}: {_shown(value)} -> {_shown(other)}" for name, value, other in _differing(old, new, fields)]
    if old.variant != new.variant:
        return [f"{new.instance}: {old.variant} {_shown(old.tunables)} -> {new.variant} {_shown(new.tunables)}", *lines]
    before, after = dict(old.tunables), dict(new.tunables)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            lines.append(f"{new.instance}.{name}: {before.get(name, 'none')} -> {after.get(name, 'none')}")
    return lines


def _differing(old: TaskMapping, new: TaskMapping, fields: Iterable[str]) -> list[tuple[str, Any, Any]]:
    return [(name, getattr(old, name), getattr(new, name)) for name in fields if getattr(old, name) != getattr(new, name)]


def _shown(value: Any) -> str:
    """A field of an instance, in a line of differences."""
    if not isinstance(value, tuple):
        return str(value)
    parts = [f"{part[0]}{' ' if isinstance(part[1], Stored) else '='}{part[1]}" if isinstance(part, tuple) else str(part) for part in value]
    return " ".join(parts) or "none"


# ---------------------------------------------------------------------------------------------- JSON


def plain_mapping(mapping: Mapping, store: Store) -> dict[str, Any]:
    """Return a mapping as JSON values, without the fields that have default values."""
    bound = {"max_shared_bytes": mapping.max_shared_bytes} if mapping.max_shared_bytes else {}
    instances = [_plain_instance(instance, store) for instance in mapping.instances]
    return {"machine": _plain_machine(mapping.machine, store), **bound, "instances": instances}


def _plain_machine(machine: Machine, store: Store) -> Any:
    if machine in MACHINES:
        return machine.name
    return {
        "name": machine.name,
        "processors": {processor.name: store.plain(processor.level) for processor in machine.processors},
        "places": {place.name: store.plain(place.memory) for place in machine.places if place != NONE},
        "reaches": {processor.name: [place.name for place in places] for processor, places in machine.reaches},
    }


def _plain_instance(instance: TaskMapping, store: Store) -> dict[str, Any]:
    fields = {
        field.name: getattr(instance, field.name) for field in attrs.fields(TaskMapping) if getattr(instance, field.name) != field.default
    }
    plain: dict[str, Callable[[Any], Any]] = {
        "proc": lambda proc: proc.name,
        "mems": lambda mems: [place.name for place in mems],
        "tunables": lambda pairs: {name: _plain_value(value, store) for name, value in pairs},
        "layouts": lambda pairs: {name: _plain_layout(layout, store) for name, layout in pairs},
    }
    return {name: plain.get(name, store.plain)(value) for name, value in fields.items()}


def _plain_value(value: Any, store: Store) -> Any:
    return {"processor": value.name} if isinstance(value, Processor) else store.plain(value)


def _plain_layout(layout: Stored, store: Store) -> dict[str, Any]:
    fields = {field.name: getattr(layout, field.name) for field in attrs.fields(Stored)}
    return {name: store.plain(value) for name, value in fields.items() if value not in (False, 0, "")}


def read_mapping(plain: Any, store: Store, machines: Iterable[Machine] = MACHINES) -> Mapping:
    """The mapping that `plain_mapping` wrote. Raises: StoreError if the value is not one."""
    fields = _object(_present("Mapping", plain), "a mapping", ("machine", "instances"), ("max_shared_bytes",))
    if isinstance(fields["machine"], str):
        machine = _named(fields["machine"], machines, "machine")
    else:
        machine = _read_machine(fields["machine"], store)
    if not isinstance(fields["instances"], list):
        raise StoreError("a mapping: its instances must be a list", got=fields["instances"])
    return Mapping(tuple(_read(instance, machine, store) for instance in fields["instances"]), machine, fields.get("max_shared_bytes", 0))


def _present(kind: str, plain: Any) -> Any:
    """A stored object with the present names of its fields."""
    return present_fields(kind, plain) if isinstance(plain, dict) else plain


def _read_machine(plain: Any, store: Store) -> Machine:
    fields = _object(plain, "a machine", ("name", "processors", "places", "reaches"))
    levels = _object(fields["processors"], "processors")
    processors = {name: Processor(name, store.value(level, Level)) for name, level in levels.items()}
    memories = _object(fields["places"], "places")
    places = {name: Place(name, store.value(memory, Memory)) for name, memory in memories.items()}
    places["NONE"] = NONE
    reaches = tuple(
        (
            _named(name, processors.values(), "processor"),
            tuple(_named(name_of_place, places.values(), "place") for name_of_place in _texts(names, "places")),
        )
        for name, names in _object(fields["reaches"], "reaches").items()
    )
    return Machine(fields["name"], tuple(processors.values()), reaches)


def _object(plain: Any, what: str, required: Iterable[str] = (), optional: Iterable[str] = ()) -> dict[str, Any]:
    """Return an object with the `required` fields and possibly `optional` ones. Without `required`, any fields are legal."""
    if not isinstance(plain, dict):
        raise StoreError(f"{what}: not an object", got=plain)
    missing = [name for name in required if name not in plain]
    unknown = [name for name in plain if required and name not in (*required, *optional)]
    if missing or unknown:
        problem = f"{missing[0]!r} is missing" if missing else f"{unknown[0]!r} is unknown"
        raise StoreError(f"{what}: the field {problem}", legal=(*required, *optional))
    return plain


def _texts(plain: Any, what: str) -> list[str]:
    if not isinstance(plain, list) or not all(isinstance(text, str) for text in plain):
        raise StoreError(f"{what}: not a list of names", got=plain)
    return plain


def _named(name: Any, values: Iterable[Any], what: str) -> Any:
    known = {value.name: value for value in values}
    if not isinstance(name, str) or name not in known:
        raise StoreError(f"no {what} {name}", legal=tuple(known))
    return known[name]


def _read(plain: Any, machine: Machine, store: Store) -> TaskMapping:
    names = [field.name for field in attrs.fields(TaskMapping)]
    fields = dict(_object(_present("TaskMapping", plain), "an instance", names[:4], names[4:]))
    for name in ("instance", "variant"):
        if not isinstance(fields[name], str):
            raise StoreError(f"an instance: its {name} must be a text", got=fields[name])
    fields["proc"] = _named(fields["proc"], machine.processors, "processor")
    fields["mems"] = tuple(_named(name, machine.places, "place") for name in _texts(fields["mems"], "mems"))
    fields["calls"] = _texts(fields.get("calls", []), "calls")
    tunables = _object(fields.get("tunables", {}), "tunables")
    fields["tunables"] = {name: _read_value(value, machine, store) for name, value in tunables.items()}
    layouts = _object(fields.get("layouts", {}), "layouts")
    fields["layouts"] = {name: Stored(**_read_layout(layout, store)) for name, layout in layouts.items()}
    others = {name: value for name, value in fields.items() if name in names[7:] and name not in ("layouts", "strategy")}
    fields |= {name: store.value(value, Any) for name, value in others.items()}
    if fields.get("strategy") is not None:
        fields["strategy"] = store.value(fields["strategy"], Strategy)
    if not isinstance(fields.get("entrypoint", False), bool):
        raise StoreError("an instance: entrypoint must be true or false", got=fields["entrypoint"])
    return TaskMapping(**fields)


def _read_value(plain: Any, machine: Machine, store: Store) -> Any:
    if isinstance(plain, dict) and "processor" in plain:
        return _named(plain["processor"], machine.processors, "processor")
    return store.value(plain, Any)


def _read_layout(plain: Any, store: Store) -> dict[str, Any]:
    names = [field.name for field in attrs.fields(Stored)]
    fields = _object(plain, "a layout")
    unknown = [name for name in fields if name not in names]
    if unknown:
        raise StoreError(f"a layout: the field {unknown[0]!r} is unknown", legal=names)
    return {name: store.value(value, Any) for name, value in fields.items()}
