"""Launches that a step asks for: what the steps after it leave to a single launch, and what comes before.

All blocks of a launch wait for all blocks of the one before in nothing but the end of that launch. So a step whose parts depend on each
other as wholes makes launches of them: they run in order, on the caller's arrays and on temporaries that the program allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from fireiron.errors import DecompositionError
from fireiron.spec import Spec
from fireiron.values.tensor import Storage, Tensor

if TYPE_CHECKING:
    from fireiron.language.tree import Decomposition, Node

Tree = Callable[[], "tuple[Node, Mapping[str, Storage]] | None"]


@attrs.frozen(eq=False)
class Given:
    """What a step that makes launches may ask.

    `spec` is the whole kernel as the caller stores its operands, before any step asked for a launch. `tree()` is the tree that the steps
    of one launch make of it, with the storages that instructions chose for its buffers; None where they refuse it.
    """

    spec: Spec
    tree: Tree


@attrs.frozen(eq=False)
class Asked:
    """A launch that a step asks for, before what it leaves: `name` and `reason` are what readers are told, `kernel` ends the name of its
    kernel (none: the name, in small letters).

    Operands of its spec are arrays by the names of their tensors: operands of the program, or temporaries, which the first launch that
    writes one makes. `arrays` names those of operands whose tensors have other names. `steps` are its strategy; None: the steps after
    this one, as for what is left.
    """

    name: str
    spec: Spec
    reason: str = ""
    steps: tuple[Decomposition, ...] | None = None
    arrays: Mapping[str, str] = attrs.field(factory=dict)
    kernel: str = ""


@attrs.frozen(eq=False)
class Launches:
    """What a step makes of a spec: launches, and the spec that is left to the steps after it."""

    before: tuple[Asked, ...]
    spec: Spec


@attrs.frozen(eq=False)
class Part:
    """A launch of which everything is known but the tree: `arrays` says, by operand of `spec`, which array of the program it is."""

    name: str
    spec: Spec
    reason: str
    steps: tuple[Decomposition, ...]
    arrays: Mapping[str, str]
    kernel: str = ""


@attrs.frozen(eq=False)
class Plan:
    """The launches before the last one, and the last: its spec and its steps, which begin at the level `Kernel`."""

    before: tuple[Part, ...]
    last: Part


def front(steps: tuple[Decomposition, ...]) -> int:
    """How many steps at the start of a chain make launches."""
    return next((place for place, step in enumerate(steps) if not step.makes_launches), len(steps))


def plan(name: str, spec: Spec, steps: tuple[Decomposition, ...], tree: Callable[[Spec], Tree]) -> Plan:
    """The launches of a spec under a chain of steps; `tree` is what `Given.tree` is made of, by the spec as given.

    Raises: a `DecompositionError` where a step refuses the spec, or what it makes is no sequence of launches.
    """
    count, given, before = front(steps), spec, list[Part]()
    for place, step in enumerate(steps[:count]):
        made = step.launches(spec, Given(given, tree(given)))
        _require_below(step, spec, made)
        before += [_part(asked, steps[place + 1 :] if asked.steps is None else asked.steps) for asked in made.before]
        given = made.spec if spec.level.is_above_launch else given
        spec = made.spec
    if spec.level.is_above_launch:
        what = f"{steps[count].summary()} divides the work of one launch" if steps[count:] else "no step makes launches of it"
        raise DecompositionError(
            f"{spec} consists of launches: {what}", within=spec, hint=f"first a step that makes launches of {spec.level}"
        )  # fmt: skip
    if not before:  # its tensors keep their names
        return Plan(
            (), Part(name, spec, "", steps[count:], {operand: view.tensor.name for operand, view in spec.operands.items()}, name.lower())
        )
    launches = Plan(tuple(before), _part(Asked(name, spec), steps[count:]))
    _require_alike(launches)
    return launches


def _part(asked: Asked, steps: tuple[Decomposition, ...]) -> Part:
    """The launch with its tensors named as its operands, as parameters of kernels are."""
    spec = asked.spec
    names = {operand: view.tensor.name for operand, view in spec.operands.items()}
    renamed = {
        operand: attrs.evolve(view, tensor=attrs.evolve(view.tensor, name=operand))
        for operand, view in spec.operands.items()
        if names[operand] != operand
    }
    own = spec.with_operands(**renamed) if renamed else spec
    return Part(asked.name, own, asked.reason, steps, {**names, **asked.arrays}, asked.kernel or asked.name.lower())


def _require_below(step: Decomposition, spec: Spec, made: Launches) -> None:
    """What a step makes of a level above a launch is of levels below it; of a launch, launches."""
    for part in (*(asked.spec for asked in made.before), made.spec):
        legal = part.level.is_below(spec.level) and part.level.has_arguments if spec.level.is_above_launch else part.level == spec.level
        if not legal:
            raise DecompositionError(
                f"{step.summary()}: makes {part} of {spec.level}", legal=str(spec.level.consists_of or spec.level), within=spec,
                hint=f"launches of {spec.level} are at a level below it that has arrays as operands",
            )  # fmt: skip


def _require_alike(made: Plan) -> None:
    """One array is the same to all launches that touch it: shape, element type, storage."""
    first: dict[str, tuple[str, Tensor]] = {}
    for part in (*made.before, made.last):
        for operand, view in part.spec.operands.items():
            known, tensor = first.setdefault(part.arrays[operand], (part.name, view.tensor))
            if view.memory.of_grid and _facts(view.tensor) != _facts(tensor):
                raise DecompositionError(
                    f"the launches {known} and {part.name} see the array {part.arrays[operand]} otherwise",
                    got=_described(view.tensor), legal=_described(tensor), within=part.spec,
                )  # fmt: skip


def _facts(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.memory, tensor.storage()


def _described(tensor: Tensor) -> str:
    return f"{' x '.join(map(str, tensor.shape))} {tensor.dtype} {tensor.layout}"


__all__ = ["Asked", "Given", "Launches", "Part", "Plan", "front", "plan"]
