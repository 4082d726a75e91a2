"""Where the tasks of a program run, and where their tensors are: mappings as values (Cypress, section 3.3).

A `Mapping` names instances of variants. Each has a processor, a memory for each tensor, values for its tunables, and the instances that its
launches become. No mapping changes what a program computes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import attrs

from fireiron.errors import ArgumentError, call_site, closest
from fireiron.values.machine import GL, RF, SH, Block, Kernel, Level, Memory, Thread, Warp, Warpgroup, as_integer


@attrs.frozen(repr=False)
class Processor:
    """A kind of processor that runs tasks, and the level of specs that it performs."""

    name: str
    level: Level = attrs.field(eq=False)

    def __repr__(self) -> str:
        return self.name


@attrs.frozen(repr=False)
class Place:
    """Where a tensor is while a task runs: a memory of the machine, or none, where it must not be made there (`memory` None)."""

    name: str
    memory: Memory | None = attrs.field(default=None, eq=False)

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


@attrs.frozen
class Machine:
    """What a mapping may name: processors, from the outermost in, and the places that each of them reaches.

    Registers of a group of threads are those of its threads together.
    """

    name: str
    processors: tuple[Processor, ...]
    reaches: tuple[tuple[Processor, tuple[Place, ...]], ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """All places, and NONE."""
        return tuple(dict.fromkeys((NONE, *(place for _, places in self.reaches for place in places))))

    def reached(self, processor: Processor) -> tuple[Place, ...]:
        """The places that a processor reaches."""
        return dict(self.reaches)[processor]

    def depth(self, processor: Processor) -> int:
        """How far inside a processor is."""
        return self.processors.index(processor)


def _usual(name: str, *inside: Processor) -> Machine:
    """A machine of blocks, of which the groups `inside` reach registers."""
    groups = tuple((one, (GLOBAL, SHARED, REGISTER)) for one in inside)
    return Machine(name, (HOST, BLOCK, *inside), ((HOST, (GLOBAL,)), (BLOCK, (GLOBAL, SHARED)), *groups))


AMPERE: Final = _usual("Ampere", WARP, THREAD)
HOPPER: Final = _usual("Hopper", WARPGROUP, WARP, THREAD)
MACHINES: Final = (AMPERE, HOPPER)


def _instances(value: Iterable[TaskMapping]) -> tuple[TaskMapping, ...]:
    return tuple(value)


@attrs.frozen
class Stored:
    """How a copy in shared memory lies: rows `pad` elements longer, or `swizzle`d so that 16-byte pieces of eight rows lie in all banks.

    `order` is `"row"` or `"col"`; empty for that of the source.
    """

    swizzle: bool = False
    pad: int = 0
    order: str = ""

    def __attrs_post_init__(self) -> None:
        if self.order not in ("", "row", "col") or as_integer(self.pad) is None or self.pad < 0:
            raise ArgumentError("Stored: an order and a pad", got=(self.order, self.pad), legal="row or col, 0 and more", at=call_site())


def _pairs(value: Any) -> tuple[tuple[str, Any], ...]:
    """Tunables by name, sorted."""
    return tuple(sorted(dict(value).items()))


@attrs.frozen
class TaskMapping:
    """An instance of a variant: on which processor, with which tensors where, and the instances that its launches become, in order.

    `layouts` say by the tensor's name how a copy that the instance has in shared memory lies. `pipeline` is the depth of the loops of the
    instance; with `warpspecialize` a warp of its own loads ahead by so much.
    """

    instance: str
    variant: str
    proc: Processor
    mems: tuple[Place, ...] = attrs.field(converter=tuple)
    tunables: tuple[tuple[str, Any], ...] = attrs.field(default=(), converter=_pairs)
    calls: tuple[str, ...] = attrs.field(default=(), converter=tuple)
    entrypoint: bool = False
    warpspecialize: bool = False
    pipeline: int = 0
    layouts: tuple[tuple[str, Stored], ...] = attrs.field(default=(), converter=_pairs)

    def __attrs_post_init__(self) -> None:
        if not all(isinstance(one, Stored) for _, one in self.layouts):
            raise ArgumentError(f"{self.instance}: layouts are Stored(...)", got=dict(self.layouts), at=call_site())
        if not isinstance(self.proc, Processor):
            raise ArgumentError(
                f"{self.instance}: proc is no processor", got=self.proc, legal="HOST BLOCK WARPGROUP WARP THREAD", at=call_site()
            )
        if not all(isinstance(one, Place) for one in self.mems):
            raise ArgumentError(f"{self.instance}: mems are places", got=self.mems, legal="NONE GLOBAL SHARED REGISTER", at=call_site())
        if as_integer(self.pipeline) is None or self.pipeline < 0:
            raise ArgumentError(f"{self.instance}: pipeline is a depth", got=self.pipeline, legal="0 1 2 ...", at=call_site())
        if self.warpspecialize and not self.pipeline:
            raise ArgumentError(
                f"{self.instance}: warpspecialize without a pipeline, whose stages a warp would fill", legal="pipeline=3", at=call_site()
            )

    def plain(self) -> dict[str, Any]:
        """The instance in types of JSON."""
        tunables = {name: {"processor": one.name} if isinstance(one, Processor) else one for name, one in self.tunables}
        return {
            **attrs.asdict(self, recurse=False),
            "proc": self.proc.name,
            "mems": [one.name for one in self.mems],
            "tunables": tunables,
            "calls": list(self.calls),
            "layouts": {name: attrs.asdict(one) for name, one in self.layouts},
        }


@attrs.frozen
class Mapping:
    """Instances, one of them the entry point, for a machine. Equal by value, so that mappings may be kept in sets and compared.

    Raises: ArgumentError where names are not unique or unknown, where there is not one entry point, where a processor does not reach a
    memory, or where a call goes outwards.
    """

    instances: tuple[TaskMapping, ...] = attrs.field(converter=_instances)
    machine: Machine = HOPPER

    def __attrs_post_init__(self) -> None:
        names = [one.instance for one in self.instances]
        if len(set(names)) != len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ArgumentError(f"Mapping: two instances are called {twice}", at=call_site())
        roots = [one.instance for one in self.instances if one.entrypoint]
        if len(roots) != 1:
            raise ArgumentError(
                "Mapping: one instance is the entry point", got=roots or "none", legal="entrypoint=True once", at=call_site()
            )
        for one in self.instances:
            self._check(one, names)

    def _check(self, one: TaskMapping, names: list[str]) -> None:
        if one.proc not in self.machine.processors:
            raise ArgumentError(f"{one.instance}: {self.machine.name} has no {one.proc}", legal=self.machine.processors, at=call_site())
        for position, place in enumerate(one.mems):
            if place != NONE and place not in self.machine.reached(one.proc):
                raise ArgumentError(
                    f"{one.instance}: {one.proc} does not reach {place}, where tensor {position} is to be",
                    legal=(NONE, *self.machine.reached(one.proc)), at=call_site(),
                )  # fmt: skip
        for name in one.calls:
            if name not in names:
                meant = closest(name, names)
                raise ArgumentError(
                    f"{one.instance}: calls {name}, which is no instance", legal=names, hint=f"{meant}?" if meant else None, at=call_site()
                )
            if self.machine.depth(self[name].proc) < self.machine.depth(one.proc):
                raise ArgumentError(
                    f"{one.instance} runs on {one.proc}, and calls {name} on {self[name].proc}, which lies around it",
                    legal=self.machine.processors[self.machine.depth(one.proc) :], at=call_site(),
                )  # fmt: skip

    def __getitem__(self, name: str) -> TaskMapping:
        """An instance by its name."""
        for one in self.instances:
            if one.instance == name:
                return one
        raise ArgumentError(f"Mapping: no instance {name}", legal=[one.instance for one in self.instances], at=call_site())

    @property
    def root(self) -> TaskMapping:
        """The entry point."""
        return next(one for one in self.instances if one.entrypoint)

    def with_(self, instance: str, **changes: Any) -> Mapping:
        """The mapping with another instance in the place of one: fields by name, and among them single tunables.

        >>> from fireiron.tasks import *
        >>> one = TaskMapping("copy", "copy_all", HOST, [GLOBAL, GLOBAL], dict(U=8), entrypoint=True)
        >>> Mapping([one]).with_("copy", U=16)["copy"].tunables
        (('U', 16),)
        """
        old = self[instance]
        fields = {name: changes.pop(name) for name in tuple(changes) if name in attrs.fields_dict(TaskMapping)}
        unknown = [name for name in changes if name not in dict(old.tunables)]
        if unknown:
            raise ArgumentError(f"{instance}: no tunable {unknown[0]}", legal=[name for name, _ in old.tunables] or "none", at=call_site())
        tunables = {**dict(fields.pop("tunables", old.tunables)), **changes}
        new = attrs.evolve(old, tunables=tunables, **fields)
        return attrs.evolve(self, instances=tuple(new if one is old else one for one in self.instances))

    def diff(self, other: Mapping) -> tuple[str, ...]:
        """What differs in another mapping, a line for each field of an instance; the lines name what this one has first."""
        before, after = ({one.instance: one for one in each.instances} for each in (self, other))
        lines = [f"{name}: only in the first" for name in before if name not in after]
        for name, new in after.items():
            lines += [f"{name}: only in the second"] if name not in before else _differences(before[name], new)
        return tuple(lines)

    def to_json(self) -> str:
        """The mapping as JSON, for a machine of this package."""
        return json.dumps({"machine": self.machine.name, "instances": [one.plain() for one in self.instances]}, indent=1)

    @staticmethod
    def from_json(text: str, machines: Iterable[Machine] = MACHINES) -> Mapping:
        """The mapping that `to_json` wrote; an `ArgumentError` where it names what none of the machines has."""
        found = json.loads(text)
        machine = _named(found["machine"], machines, "machine")
        return Mapping(tuple(_read(one, machine) for one in found["instances"]), machine)


def _differences(old: TaskMapping, new: TaskMapping) -> list[str]:
    fields = [name for name in attrs.fields_dict(TaskMapping) if name != "tunables" and getattr(old, name) != getattr(new, name)]
    lines = [f"{new.instance}.{name}: {getattr(old, name)} -> {getattr(new, name)}" for name in fields]
    before, after = dict(old.tunables), dict(new.tunables)
    for name in sorted({*before, *after}):
        if before.get(name) != after.get(name):
            lines.append(f"{new.instance}.{name}: {before.get(name)} -> {after.get(name)}")
    return lines


def _named(name: str, values: Iterable[Any], what: str) -> Any:
    known = {one.name: one for one in values}
    if name not in known:
        raise ArgumentError(f"no {what} {name}", legal=tuple(known), at=call_site())
    return known[name]


def _read(found: dict[str, Any], machine: Machine) -> TaskMapping:
    def value(one: Any) -> Any:
        return _named(one["processor"], machine.processors, "processor") if isinstance(one, dict) else one

    return TaskMapping(
        **{
            **found,
            "proc": _named(found["proc"], machine.processors, "processor"),
            "mems": tuple(_named(one, machine.places, "place") for one in found["mems"]),
            "tunables": {name: value(one) for name, one in found["tunables"].items()},
            "layouts": {name: Stored(**one) for name, one in found["layouts"].items()},
        }
    )
