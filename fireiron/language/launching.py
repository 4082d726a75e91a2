"""Divide a spec into several launches.

All blocks of a phase are complete only at the end of a launch. If one part of a step needs the complete result of another part, the step
therefore makes a launch of each part. Launches run in order, on the caller's arrays and on temporaries that the program allocates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from fireiron.errors import DecompositionError
from fireiron.frozen import frozen
from fireiron.spec import Spec
from fireiron.values.expr import constant
from fireiron.values.tensor import Storage, Tensor, View

if TYPE_CHECKING:
    from fireiron.language.tree import Decomposition, Node

Tree = Callable[[], "tuple[Node, Mapping[str, Storage]] | None"]


@frozen(eq=False)
class Given:
    """The inputs of a step that makes launches.

    Attributes:
        spec: the spec of the caller, before any step made launches.
        tree: a function that returns the tree of this spec as one launch, with the storage that instructions chose for buffers; None if
        this
            launch is illegal.
    """

    spec: Spec
    tree: Tree


@frozen
class OverlapPlan:
    """How a launch performs a copy that it reads: the sizes of the regions that readers wait for, and the copying warps of a block.

    `called` is the spec of the joined launch, if the launch of the remaining spec reads what this launch computes, and adds the parts of
    all GPUs. `given` is the operand of the joined launch that it copies.
    """

    tile: tuple[int, ...]
    warps: int
    called: Spec | None = None
    given: View | None = None


@frozen(eq=False)
class LaunchRequest:
    """A launch that a step makes, before the launch of the remaining spec.

    The names of the tensors in its spec refer to arrays: operands of the program, or temporaries. The first launch that writes a temporary
    allocates it.

    Attributes:
        name, reason: texts for readers of the program.
        spec: the spec of the launch.
        steps: its strategy; None for the steps after this step, as for the remaining spec.
        arrays: by operand, the name of the array if it differs from that of the tensor.
        kernel: the suffix of the kernel's name (default: `name` in lower case).
        overlap: for a copy that is performed in the launch of the remaining spec, how; None for a separate launch.
    """

    name: str
    spec: Spec
    reason: str = ""
    steps: tuple[Decomposition, ...] | None = None
    arrays: Mapping[str, str] = attrs.field(factory=dict)
    kernel: str = ""
    overlap: OverlapPlan | None = None


@frozen(eq=False)
class Launches:
    """The result of a step that makes launches: the launches, and the remaining spec for the following steps, or for its own `steps`."""

    before: tuple[LaunchRequest, ...]
    spec: Spec
    steps: tuple[Decomposition, ...] | None = None


@frozen(eq=False)
class Part:
    """A complete launch, without its tree. `arrays` maps operands of `spec` to arrays of the program."""

    name: str
    spec: Spec
    reason: str
    steps: tuple[Decomposition, ...]
    arrays: Mapping[str, str]
    kernel: str = ""


@frozen(eq=False)
class OverlappedCopy:
    """A copy that the last launch performs while it reads the result, or a sum over GPUs that it performs while it computes the parts.

    Attributes:
        copy: the copy, from `src` to `dst`; or the sum.
        operand: the operand of the last launch that is the result of the copy, or that the sum adds.
        plan: the regions and the copying or adding warps.
        called: the joined launch, in which the operand is the part of the GPU, or the result of the sum.
    """

    copy: Part
    operand: str
    plan: OverlapPlan
    called: Part


@frozen(eq=False)
class Plan:
    """The launches before the last one, and the last launch, whose steps start at the level `Kernel`.

    If the last launch also performs a copy, `last` is the launch that only reads the result, and `overlapped.called` both.
    """

    before: tuple[Part, ...]
    last: Part
    overlapped: OverlappedCopy | None = None

    @property
    def called(self) -> Part:
        """The last launch, with the operands that it receives."""
        return self.last if self.overlapped is None else self.overlapped.called


def count_launch_steps(steps: tuple[Decomposition, ...]) -> int:
    """Return the number of steps at the start of a chain that make launches."""
    return next((place for place, step in enumerate(steps) if not step.makes_launches), len(steps))


def plan(name: str, spec: Spec, steps: tuple[Decomposition, ...], tree: Callable[[Spec], Tree]) -> Plan:
    """Return the launches of a spec under a chain of steps; `tree` makes `Given.tree` for a spec.

    Raises: a `DecompositionError` if a step refuses the spec, or if its result is not a sequence of launches.
    """
    count, given, before = count_launch_steps(steps), spec, list[Part]()
    last, copies = steps[count:], list[tuple[LaunchRequest, int, Spec]]()
    for place, step in enumerate(steps[:count]):
        launches = step.launches(spec, Given(given, tree(given)))
        _require_below(step, spec, launches)
        copies += [(launch, place, spec) for launch in launches.before if launch.overlap]
        separate = [launch for launch in launches.before if not launch.overlap]
        if copies and separate:
            raise DecompositionError(
                f"{step.summary()} makes a launch after a step with overlap, whose copy is performed in the last launch",
                legal="overlap in the last step that makes launches", within=spec, hint="remove overlap(...)",
            )  # fmt: skip
        before += [_part(launch, steps[place + 1 :] if launch.steps is None else launch.steps) for launch in separate]
        given = launches.spec if spec.level.is_above_launch else given
        spec = launches.spec
        if launches.steps is not None:
            last = launches.steps
            break
    if spec.level.is_above_launch:
        hint = "to_gpus(dim) first" if spec.level.gpus else f"first use a step that makes launches of {spec.level}"
        what = f"{steps[count].summary()} divides the work of one launch" if steps[count:] else "no step divides it into launches"
        raise DecompositionError(
            f"{spec} consists of launches: {what}", within=spec, hint=hint
        )  # fmt: skip
    _require_addressable(spec)
    if copies:
        return _overlapping(name, spec, tuple(before), last, steps, copies)
    if not before:  # a single launch keeps the names of tensors
        return Plan((), Part(name, spec, "", last, {operand: view.tensor.name for operand, view in spec.operands.items()}, name.lower()))
    result = Plan(tuple(before), _part(LaunchRequest(name, spec), last))
    _require_same_layout(result)
    return result


def _overlapping(
    name: str, spec: Spec, before: tuple[Part, ...], last: tuple[Decomposition, ...], steps: tuple[Decomposition, ...],
    copies: list[tuple[LaunchRequest, int, Spec]],
) -> Plan:  # fmt: skip
    """Return the launches if the last one performs a copy. Raises: a `DecompositionError` if it would perform several."""
    (copy, place, source), *others = copies
    assert copy.overlap is not None
    if copy.overlap.called is not None and not others:
        return _adding(name, spec, before, last, steps, place, copy)
    if others:
        raise DecompositionError(
            f"overlap: a launch performs one copy, and {copy.name} and {others[0][0].name} are copied", legal="one load with overlap",
            within=spec,
        )  # fmt: skip
    operand = next(operand for operand, view in spec.operands.items() if view.tensor.name == copy.arrays["dst"])
    given = source.operands[operand] if copy.overlap.given is None else copy.overlap.given
    called = _part(LaunchRequest(name, spec.with_operands(**{operand: given})), steps[place:])
    part = _part(copy, () if copy.steps is None else copy.steps)
    result = Plan(before, _part(LaunchRequest(name, spec), last), OverlappedCopy(part, operand, copy.overlap, called))
    _require_same_layout(Plan(before, called))
    return result


def _adding(
    name: str, spec: Spec, before: tuple[Part, ...], last: tuple[Decomposition, ...], steps: tuple[Decomposition, ...], place: int,
    request: LaunchRequest,
) -> Plan:  # fmt: skip
    """Return the launches if the last one computes the sums of a GPU, which `spec` specifies, and adds those of all GPUs, as requested."""
    assert request.overlap is not None and request.overlap.called is not None
    called = _part(LaunchRequest(name, request.overlap.called), steps[place:])
    sum_ = _part(request, () if request.steps is None else request.steps)
    return Plan(before, _part(LaunchRequest(name, spec), last), OverlappedCopy(sum_, "C", request.overlap, called))


def _part(request: LaunchRequest, steps: tuple[Decomposition, ...]) -> Part:
    """Return the launch with tensors named as its operands, like parameters of kernels."""
    spec = request.spec
    _require_addressable(spec)
    names = {operand: view.tensor.name for operand, view in spec.operands.items()}
    renamed = {
        operand: attrs.evolve(view, tensor=view.tensor.renamed(operand))
        for operand, view in spec.operands.items()
        if names[operand] != operand
    }
    own = spec.with_operands(**renamed) if renamed else spec
    return Part(request.name, own, request.reason, steps, {**names, **request.arrays}, request.kernel or request.name.lower())


def _require_addressable(spec: Spec) -> None:
    """Refuse a launch that reads parts of other GPUs whose distance is not that of their elements: those of a size known at run time."""
    for name, view in spec.operands.items():
        array = view.tensor.array
        axis = array.portion.gpu_axis if array.portion is not None and array.portion.joined else None
        if axis is not None and array.portion is not None and constant(array.shape[axis]) != array.portion.joined:
            raise DecompositionError(
                f"the launch reads parts of {name} of all GPUs, whose size is known only at run time", got=str(array.shape[axis]),
                legal=f"a copy of the parts: to_gpus(...).load({name!r}, GL), without overlap", within=spec,
            )  # fmt: skip


def _require_below(step: Decomposition, spec: Spec, launches: Launches) -> None:
    """Refuse launches at a wrong level: below that of a spec above launches, otherwise that of the spec."""
    for part in (*(launch.spec for launch in launches.before), launches.spec):
        legal = part.level.is_below(spec.level) and part.level.has_arguments if spec.level.is_above_launch else part.level == spec.level
        if not legal:
            raise DecompositionError(
                f"{step.summary()} divides {spec.level} into {part}", legal=str(spec.level.consists_of or spec.level), within=spec,
                hint=f"launches of {spec.level} need a level below it whose operands are arrays",
            )  # fmt: skip


def _require_same_layout(launches: Plan) -> None:
    """Refuse launches that access the same array with different shapes, element types or storage."""
    first: dict[str, tuple[str, Tensor]] = {}
    for part in (*launches.before, launches.last):
        for operand, view in part.spec.operands.items():
            if view.tensor.array.portion is not None:
                continue
            known, tensor = first.setdefault(part.arrays[operand], (part.name, view.tensor.array))
            if view.memory.of_grid and _facts(view.tensor.array) != _facts(tensor):
                raise DecompositionError(
                    f"the launches {known} and {part.name} access the array {part.arrays[operand]} with different shapes, types or storage",
                    got=_described(view.tensor.array), legal=_described(tensor), within=part.spec,
                )  # fmt: skip


def _facts(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.memory, tensor.storage()


def _described(tensor: Tensor) -> str:
    return f"{' x '.join(map(str, tensor.shape))} {tensor.dtype} {tensor.layout}"


__all__ = ["LaunchRequest", "Given", "Launches", "OverlapPlan", "OverlappedCopy", "Part", "Plan", "count_launch_steps", "plan"]
