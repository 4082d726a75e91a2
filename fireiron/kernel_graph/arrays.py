"""The arrays of a kernel graph: which operands of its kernels are the same array, and what the caller passes and gets.

An operand is named by its kernel, `split.P`. An array has the name of the operand that writes it, or, for an argument, of the first
operand that reads it.
"""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

from fireiron.errors import ArgumentError, DecompositionError, closest
from fireiron.frozen import frozen
from fireiron.spec import Spec
from fireiron.specs.fused import scattered_outputs
from fireiron.values.expr import FALSE, constant
from fireiron.values.tensor import Tensor, View

Pairs = tuple[tuple[str, str], ...]
"""Connections: an input, and the array that it reads."""


@frozen(eq=False)
class Arrays:
    """The arrays of a graph.

    Attributes:
        of: by operand of a kernel, its array.
        inputs: the arguments, in the order of their first use.
        outputs: the results.
        names: by argument and result, its name for users: that of the operand, with its kernel if two have the same name.
    """

    of: Mapping[str, str]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    names: Mapping[str, str]


def arrays_of(specs: Mapping[str, Spec], connect: Pairs, outputs: tuple[str, ...]) -> Arrays:
    """Return the arrays of a graph with these kernels, in order, whose connections `expanded` returned.

    Raises: an ArgumentError for a connection or an output that is not legal, a DecompositionError if the operands of a connection have
        different shapes, types or storage.
    """
    _require_order(specs, connect)
    sources, of = dict(connect), dict[str, str]()
    for kernel, spec in specs.items():
        for name in (*spec.inputs, *spec.outputs):
            operand = f"{kernel}.{name}"
            of[operand] = of[sources[operand]] if operand in sources else operand
    for target, source in connect:
        _require_same(target, _view(specs, target), source, _view(specs, source))
    inputs = tuple(f"{kernel}.{name}" for kernel, spec in specs.items() for name in spec.inputs if f"{kernel}.{name}" not in sources)
    _require_used(specs, of, inputs, outputs)
    _require_written(specs, outputs)
    return Arrays(of, inputs, outputs, _short_names((*inputs, *outputs)))


def expanded(specs: Mapping[str, Spec], connect: Iterable[tuple[str, str]]) -> Pairs:
    """Return connections of operands: `combine` to `split` connects each input of `combine` with the name of an output of `split`.

    Raises: an ArgumentError for unknown names, for an input that is connected twice, and for an output as the reader of an array.
    """
    pairs, result = list(connect), dict[str, str]()
    stated = {target for target, _ in pairs}
    for target, source in pairs:
        for operand, array in _connected(specs, target, source, stated):
            if operand in result:
                raise ArgumentError(f"connect: {operand} is connected twice", got=(result[operand], array))
            result[operand] = array
    return tuple(result.items())


def unread(specs: Mapping[str, Spec], connect: Pairs) -> tuple[str, ...]:
    """Return the outputs of kernels that no kernel reads."""
    read = {source for _, source in connect}
    return tuple(operand for kernel, spec in specs.items() for name in spec.outputs if (operand := f"{kernel}.{name}") not in read)


def require_outputs(specs: Mapping[str, Spec], outputs: Sequence[str]) -> None:
    """Refuse results that are not outputs of kernels, and results that are named twice."""
    known = [f"{kernel}.{name}" for kernel, spec in specs.items() for name in spec.outputs]
    for place, output in enumerate(outputs):
        if output not in known:
            raise ArgumentError("outputs: not an output of a kernel", got=output, legal=known)
        if output in outputs[:place]:
            raise ArgumentError(f"outputs: {output} is named twice", got=tuple(outputs))


def _connected(specs: Mapping[str, Spec], target: str, source: str, stated: Iterable[str]) -> list[tuple[str, str]]:
    """Return the connections of operands that an entry of `connect` states."""
    for text in (target, source):
        _require_known(specs, text)
    if ("." in target) != ("." in source):
        raise ArgumentError(
            f"connect: {target} is {_kind(target)}, and {source} is {_kind(source)}", legal="two operands, or two kernels",
            hint='connect={"combine.P": "split.P"}, or connect={"combine": "split"} for all operands of the same name',
        )  # fmt: skip
    if "." in target:
        _require_input(specs, target, source)
        return [(target, source)]
    outputs = specs[source].outputs
    pairs = [(f"{target}.{name}", f"{source}.{name}") for name in specs[target].inputs if name in outputs]
    if not pairs:
        raise ArgumentError(
            f"connect: no input of {target} has the name of an output of {source}", got=specs[target].inputs, legal=outputs,
            hint="connect the operands: " + f'connect={{"{target}.{specs[target].inputs[0]}": "{source}.{outputs[0]}"}}',
        )  # fmt: skip
    return [pair for pair in pairs if pair[0] not in stated]


def _kind(text: str) -> str:
    return "an operand" if "." in text else "a kernel"


def _require_known(specs: Mapping[str, Spec], text: object) -> None:
    """Refuse anything but a kernel, or an operand of a kernel."""
    if not isinstance(text, str):
        raise ArgumentError("connect: not the name of an operand", got=text, legal='"split.P"')
    kernel, dot, operand = text.partition(".")
    if kernel not in specs:
        raise ArgumentError(f"connect: {text}: the graph has no kernel {kernel}", legal=list(specs), hint=_did_you_mean(kernel, specs))
    known = (*specs[kernel].inputs, *specs[kernel].outputs)
    if dot and operand not in known:
        raise ArgumentError(f"connect: {kernel} has no operand {operand}", got=text, legal=known, hint=_did_you_mean(operand, known))


def _did_you_mean(name: str, known: Iterable[str]) -> str | None:
    near = closest(name, known)
    return None if near is None else f"did you mean {near}?"


def _require_input(specs: Mapping[str, Spec], target: str, source: str) -> None:
    """Refuse a connection whose reader is an output."""
    kernel, _, operand = target.partition(".")
    if operand in specs[kernel].outputs:
        raise ArgumentError(
            f"connect: {target} is an output of {kernel}, so two kernels would write {source}", got=target,
            legal=[f"{kernel}.{name}" for name in specs[kernel].inputs], hint="connect inputs; each array is written by one kernel",
        )  # fmt: skip


def _require_order(specs: Mapping[str, Spec], connect: Pairs) -> None:
    """Refuse a kernel that reads an array of itself or of a later kernel."""
    place = {kernel: number for number, kernel in enumerate(specs)}
    readers = [(target, source, target.partition(".")[0], source.partition(".")[0]) for target, source in connect]
    for target, source, reader, writer in readers:
        if place[writer] < place[reader]:
            continue
        if writer == reader:
            raise ArgumentError(
                f"connect: {target} and {source} belong to one kernel, whose blocks are not ordered", hint="connect another kernel"
            )  # fmt: skip
        graph = {kernel: {before for _, _, after, before in readers if after == kernel} for kernel in specs}
        try:
            order = ", ".join(graphlib.TopologicalSorter(graph).static_order())
        except graphlib.CycleError as error:
            cycle = " -> ".join(error.args[1])
            raise ArgumentError(f"connect: the kernels depend on each other: {cycle}", got=f"{target} reads {source}") from None
        raise ArgumentError(
            f"connect: {target} reads {source}, but {writer} is after {reader}", got=", ".join(specs), legal=order,
            hint=f"kernels run in the order of kernels=: {order}",
        )  # fmt: skip


def _view(specs: Mapping[str, Spec], operand: str) -> View:
    kernel, _, name = operand.partition(".")
    return specs[kernel].operands[name]


def _require_same(target: str, view: View, source: str, other: View) -> None:
    """Refuse a connection of operands that cannot be the same array."""
    for operand, part in ((target, view), (source, other)):
        if part.shape != part.tensor.shape:
            raise DecompositionError(f"connect: {operand} is a part of an array", legal="operands that are whole arrays")
    for what, got, legal in _differences(view.tensor.array, other.tensor.array):
        raise DecompositionError(
            f"connect: {target} and {source} {what}", got=f"{target}: {got}", legal=f"{source}: {legal}", hint=_hint(what)
        )  # fmt: skip


def _differences(tensor: Tensor, other: Tensor) -> Iterator[tuple[str, str, str]]:
    """Yield how two tensors differ, so that they cannot be the same array; the most important difference first."""
    if _passed(tensor) != _passed(other):
        yield "are passed differently", _passed(tensor), _passed(other)
    if tensor.dtype != other.dtype:
        yield "have different element types", str(tensor.dtype), str(other.dtype)
    if tensor.shape != other.shape:
        yield "have different shapes", _shape(tensor), _shape(other)
    elif _differently_stored(tensor, other):
        yield "have different storage", str(tensor.layout), str(other.layout)


def _hint(what: str) -> str | None:
    if what == "have different shapes":
        return "use equal sizes, and the same sym(...) for a run-time size"
    return None if what == "are passed differently" else "change one of the specs"


def _passed(tensor: Tensor) -> str:
    return "a number" if tensor.memory.by_value else "an array"


def _shape(tensor: Tensor) -> str:
    return " x ".join(map(str, tensor.shape))


def _differently_stored(tensor: Tensor, other: Tensor) -> bool:
    """Return whether two tensors of equal shapes have different strides. Run-time strides are compared by each call."""
    steps = zip(tensor.shape, tensor.storage().steps, other.storage().steps, strict=True)
    known = [(constant(size), step, written) for size, step, written in steps if step is not None and written is not None]
    if len(known) < len(tensor.shape):
        return tensor.storage() != other.storage()
    return any(size != 1 and None not in (constant(step), constant(written)) and step != written for size, step, written in known)


def _require_used(specs: Mapping[str, Spec], of: Mapping[str, str], inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Refuse a kernel whose results neither another kernel nor the caller gets."""
    read = {of[f"{kernel}.{name}"] for kernel, spec in specs.items() for name in spec.inputs} - set(inputs)
    for kernel, spec in specs.items():
        written = [f"{kernel}.{name}" for name in spec.outputs]
        if not any(array in read or array in outputs for array in written):
            raise ArgumentError(
                f"outputs: nothing uses the results of {kernel}", got=tuple(outputs), legal=written,
                hint=f"add {written[0]} to outputs=, or leave {kernel} out",
            )  # fmt: skip


def _require_written(specs: Mapping[str, Spec], outputs: Sequence[str]) -> None:
    """Refuse a kernel that accumulates into a workspace, or writes a part of it, because nothing initializes it."""
    for kernel, spec in specs.items():
        hidden = [name for name in spec.outputs if f"{kernel}.{name}" not in outputs]
        if hidden and (spec.atomic or spec.accumulate != FALSE):
            raise DecompositionError(
                f"{kernel} adds to {', '.join(hidden)}, which is a workspace without initial values", within=spec,
                hint=f"use a spec that overwrites it, or add {kernel}.{hidden[0]} to outputs= and pass out=",
            )  # fmt: skip
        if hidden and all(spec.operands[name].memory.by_value or spec.operands[name].memory.is_coordinate for name in spec.inputs):
            raise DecompositionError(
                f"{kernel} reads no array, so no argument determines the GPU of its workspace {hidden[0]}",
                within=spec, hint=f"let it read an array, or add {kernel}.{hidden[0]} to outputs= and pass out=",
            )  # fmt: skip
        partly = [name for name in scattered_outputs(spec) if name in hidden]
        if partly:
            raise DecompositionError(
                f"{kernel} writes only the elements of {partly[0]} that its indices name, and it is a workspace without initial values",
                within=spec, hint=f"write all elements, or add {kernel}.{partly[0]} to outputs= and pass out=",
            )  # fmt: skip


def _short_names(arrays: Sequence[str]) -> dict[str, str]:
    """Return names for users: the operand if it is unique, otherwise with its kernel."""
    operands = [array.partition(".")[2] for array in arrays]
    return {array: operand if operands.count(operand) == 1 else array for array, operand in zip(arrays, operands, strict=True)}


__all__ = ["Arrays", "Pairs", "arrays_of", "expanded", "require_outputs", "unread"]
