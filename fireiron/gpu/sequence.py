"""Execute programs of more than one launch: determine which arrays each launch reads and writes.

A call has one list of all arrays: the inputs, the outputs, and the temporaries, in the order in which launches allocate them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fireiron.compiler import Launch, Program
from fireiron.errors import ArgumentError, FireironError
from fireiron.frozen import frozen
from fireiron.gpu.arguments import returned
from fireiron.gpu.arrays import Library, library_of, refused
from fireiron.spec import symbols_of

if TYPE_CHECKING:
    from fireiron.gpu.kernel import CompiledKernel

Places = tuple[int, ...]
"""Positions in the list of a call's arrays."""


@frozen(eq=False)
class PrecedingLaunch:
    """A launch before the last one.

    `takes` and `fills` are the positions of its inputs and outputs. `makes` is the position of its output if each call allocates a single
    output. `sizes` are the names of the run-time sizes that it uses. `what` is its name in errors.
    """

    kernel: CompiledKernel
    takes: Places
    fills: Places
    makes: int | None
    sizes: frozenset[str]
    what: str

    def run(self, call_arrays: list[Any], stream: Any, sizes: Mapping[str, int]) -> None:
        """Launch, and store the new temporaries in the list."""
        try:
            if self.makes is not None and not sizes:  # the fast path of most calls
                call_arrays[self.makes] = self.kernel(*[call_arrays[place] for place in self.takes], stream=stream)
                return
            own = {name: value for name, value in sizes.items() if name in self.sizes}
            self.store(
                call_arrays, self.kernel(*[call_arrays[place] for place in self.takes], out=self.filled(call_arrays), stream=stream, **own)
            )
        except FireironError as error:
            raise error.located(within=self.what) from None

    def filled(self, call_arrays: Sequence[Any]) -> Any:
        """Return the existing arrays that it writes; None if it allocates new ones."""
        return returned(tuple(call_arrays[place] for place in self.fills)) if call_arrays[self.fills[0]] is not None else None

    def store(self, call_arrays: list[Any], result: Any) -> None:
        """Store the new temporaries at their positions."""
        for place, array in zip(self.fills, (result,) if len(self.fills) == 1 else result, strict=True):
            call_arrays[place] = array


@frozen(eq=False)
class Route:
    """The launches before the last one, and the positions of the arrays that the last launch reads and writes (`takes`, `fills`).

    `foreign` are the sizes that the last launch does not use. `numbers` are the inputs that are passed by value. `writes` is whether a
    launch before the last one writes outputs of the program, so that they must be allocated before the first launch.
    """

    before: tuple[PrecedingLaunch, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    temporaries: int
    takes: Places
    fills: Places
    foreign: frozenset[str]
    numbers: frozenset[str]
    writes: bool
    title: str

    def call_arrays(self, arrays: Sequence[Any], outs: Sequence[Any] | None) -> list[Any]:
        """Return the list of a call with these arrays."""
        return [*arrays, *([None] * len(self.outputs) if outs is None else outs), *[None] * self.temporaries]

    def run(self, arrays: tuple[Any, ...], outs: Sequence[Any] | None, stream: Any, sizes: Mapping[str, int]) -> list[Any]:
        """Execute all launches except the last one, and return the list of arrays.

        Raises: ArgumentError if the number of arrays is wrong, or if more than one launch writes an array that can be written only once.
        """
        if len(arrays) != len(self.inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, {self.title} reads {len(self.inputs)}", legal=self.inputs)
        if self.writes and outs is None:
            self.require_writable(arrays)
        call_arrays = self.call_arrays(arrays, outs)
        for launch in self.before:
            launch.run(call_arrays, stream, sizes)
        return call_arrays

    def require_writable(self, arrays: Sequence[Any]) -> None:
        """Refuse arrays of a library whose outputs can be written only once."""
        for array in arrays:
            library = library_of(type(array))
            if library is not None and type(library).finished is not Library.finished:
                raise ArgumentError(
                    f"several launches of {self.title} write {', '.join(self.outputs)}, and a {library.name} array is written only once",
                    hint="pass arrays of CuPy or PyTorch",
                )

    def require_prepared(self, arrays: Sequence[Any]) -> None:
        """Refuse arrays that prepared launches do not support.

        Raises: ArgumentError if the number of arrays is wrong, or they are not on a GPU, or can be written only once.
        """
        if len(arrays) != len(self.inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, {self.title} reads {len(self.inputs)}", legal=self.inputs)
        for name, array in zip(self.inputs, arrays, strict=True):
            if name in self.numbers or library_of(type(array)) is not None:
                continue
            if not hasattr(array, "__array_interface__"):
                raise refused(name, array)
            raise ArgumentError(
                "a prepared launch requires arrays on a GPU", got="NumPy arrays", hint="call the kernel, which runs in the simulator"
            )
        if self.writes:
            self.require_writable(arrays)

    def own(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes for the last launch, including unknown sizes, which it refuses."""
        return {name: value for name, value in sizes.items() if name not in self.foreign} if sizes else {}

    def last(self, call_arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Return the inputs of the last launch."""
        return tuple([call_arrays[place] for place in self.takes])

    def filled(self, call_arrays: Sequence[Any]) -> Any:
        """Return the outputs of the last launch that are already allocated, because earlier launches also write them."""
        return returned(tuple(call_arrays[place] for place in self.fills))


def route(program: Program, kernels: Sequence[CompiledKernel]) -> Route:
    """Return the route of a program; `kernels` are those of the launches before the last one.

    Raises: ArgumentError if a launch writes both existing and new arrays, or the last launch does not write all outputs.
    """
    spec = program.spec
    inputs, outputs = tuple(spec.inputs), tuple(spec.outputs)
    places = {name: place for place, name in enumerate((*inputs, *outputs))}
    for launch in program.launches:
        for array in launch.writes:
            places.setdefault(array, len(places))
    *before, last = program.launches
    _require_all_outputs(last, outputs)
    known = [frozenset(var.name for var in symbols_of(launch.spec)) for launch in program.launches]
    steps, existing = list[PrecedingLaunch](), set(outputs)
    for launch, kernel, names in zip(before, kernels, known, strict=False):
        fills = _fills(launch, places)
        is_new = _require_all_new_or_existing(launch, existing)
        steps.append(
            PrecedingLaunch(kernel, _takes(launch, places), fills, fills[0] if is_new and len(fills) == 1 else None, names, _what(launch))
        )
        existing |= set(launch.writes)
    written = {array for launch in before for array in launch.writes}
    return Route(
        tuple(steps),
        inputs,
        outputs,
        len(places) - len(inputs) - len(outputs),
        _takes(last, places),
        _fills(last, places),
        frozenset(var.name for var in symbols_of(spec)) - known[-1],
        frozenset(name for name in inputs if spec.operands[name].memory.by_value),
        bool(written & set(outputs)),
        spec.title,
    )


def _require_all_outputs(last: Launch, outputs: tuple[str, ...]) -> None:
    if set(last.writes) != set(outputs):
        raise ArgumentError(
            f"the last launch must write all outputs, but {last.program.name} writes {', '.join(last.writes)}", legal=outputs,
            hint="put a launch that writes all outputs last",
        )  # fmt: skip


def _require_all_new_or_existing(launch: Launch, existing: set[str]) -> bool:
    """Return whether a launch allocates all arrays that it writes. Refuse launches that write both new and existing arrays."""
    new = [array not in existing for array in launch.writes]
    if any(new) and not all(new):
        raise ArgumentError(
            f"{launch.program.name} writes both new temporaries and arrays that exist before it", got=launch.writes,
            legal="only new temporaries, or only existing arrays", hint="use two launches",
        )  # fmt: skip
    return all(new)


def _takes(launch: Launch, places: Mapping[str, int]) -> Places:
    return tuple(places[launch.arrays[name]] for name in launch.spec.inputs)


def _fills(launch: Launch, places: Mapping[str, int]) -> Places:
    return tuple(places[launch.arrays[name]] for name in launch.spec.outputs)


def _what(launch: Launch) -> str:
    return f"the preceding copy of {launch.name}" if launch.spec.copies else f"the preceding launch {launch.name}"


__all__ = ["PrecedingLaunch", "Places", "Route", "route"]
