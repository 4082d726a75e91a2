"""Launch a kernel: the properties of arrays are checked once per signature, and each call only checks addresses.

A call reads addresses and signatures of its arrays (`fireiron.gpu.arrays`). The first call with a signature checks types, shapes, strides,
sizes and GPUs, loads the kernel and computes the grid. Later calls only check alignment and overlap, which depend on addresses, and launch.
"""

from __future__ import annotations

import functools
import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from fireiron import recorder
from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu import launch
from fireiron.gpu.arguments import (
    buffer_shape,
    byte_strides,
    check_apart,
    check_facts,
    check_view,
    evaluated,
    in_order,
    keeps_elements,
    misaligned,
    output_names,
    overlapping,
    reads_output,
    returned,
    share_memory,
    solve_symbols,
    steps_of,
)
from fireiron.gpu.arrays import NO_DEVICE, ArrayView, Library, Order, Scalars, Signature, library_of
from fireiron.gpu.counters import counters
from fireiron.gpu.maps import MapForm
from fireiron.gpu.workspaces import workspaces
from fireiron.ir import Buffer, Counter, Kernel, TensorMap, Workspace
from fireiron.ir.effects.dependent_launch import DependentLaunch
from fireiron.ir.effects.zeroed import Zeroed
from fireiron.spec import Spec
from fireiron.specs.fused import positive_numbers
from fireiron.values.scalars import bits_of, value_of

NOWHERE = -(1 << 64)
"""Size of an argument without an address: a number passed by value ends before every array."""

KEPT = 1024
"""Maximum number of cached signatures of a kernel. The oldest signature is removed first."""

if TYPE_CHECKING:
    from fireiron.gpu.sequence import PrecedingLaunch, Route

T = TypeVar("T")


class _Kept(Generic[T]):
    """Values by key, for the last `KEPT` new keys; thread-safe."""

    def __init__(self) -> None:
        self._values: dict[Any, T] = {}
        self._lock = threading.Lock()
        self.get = self._values.get

    def __len__(self) -> int:
        return len(self._values)

    def add(self, key: Any, value: T) -> T:
        with self._lock:
            while len(self._values) >= KEPT:
                del self._values[next(iter(self._values))]
            self._values[key] = value
        return value


Readings = tuple[list[int], tuple[Signature, ...], list[Order]]
"""The arrays of one call, in the order of the spec: addresses, signatures, and dependences on their producers."""


class _Output:
    """Allocates the output for inputs of a signature."""

    def __init__(
        self, library: Library, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, device: int, between: bool = False
    ) -> None:
        self._library, self._device = library, device
        self._make = library.maker(shape, strides, dtype, device)
        self._finish = library.between if between else library.finished
        self._final = type(library).finished is Library.finished
        self._current = launch.require_cupy().cuda.runtime.getDevice

    def make(self, stream: object) -> tuple[Any, ...]:
        """Return a new array, in a tuple, on the given stream or the library's current one."""
        if stream is None and self._current() == self._device:
            return (self._make(),)
        return (self._there(stream, self._make),)

    def finished(self, arrays: tuple[Any, ...], stream: object) -> Any:
        """Return the array for the caller."""
        return arrays[0] if self._final else self._there(stream, self._finish, arrays[0])

    def _there(self, stream: object, action: Callable[..., Any], *arguments: Any) -> Any:
        with launch.on_device(self._device):
            if stream is None:
                return action(*arguments)
            with self._library.using(stream, self._device):
                return action(*arguments)


class _Outputs:
    """Allocates more than one output, in order."""

    def __init__(self, parts: Sequence[_Output]) -> None:
        self._parts = parts

    def make(self, stream: object) -> tuple[Any, ...]:
        """Return new arrays."""
        return tuple(array for part in self._parts for array in part.make(stream))

    def missing(self, given: Sequence[Any], stream: object) -> tuple[Any, ...]:
        """Return new arrays for those that are None."""
        return tuple(array for part, out in zip(self._parts, given, strict=True) if out is None for array in part.make(stream))

    def finished(self, arrays: tuple[Any, ...], stream: object) -> Any:
        """Return the arrays for the caller as a tuple."""
        return tuple(part.finished((array,), stream) for part, array in zip(self._parts, arrays, strict=True))


class _Plan:
    """The result of the checks for arrays of one signature: the launch, and the remaining checks of addresses."""

    def __init__(self, names: Sequence[str], buffers: Sequence[Buffer], views: Sequence[ArrayView], libraries: Sequence[Library]) -> None:
        self.names, self.buffers, self.views = names, buffers, views
        arrays = [place for place, buffer in enumerate(buffers) if not buffer.memory.by_value]
        self.device = views[arrays[0]].device
        self._aligns = tuple(1 if buffer.memory.by_value else buffer.tensor.align for buffer in buffers)
        self._spans = tuple(NOWHERE if buffer.memory.by_value else view.end for buffer, view in zip(buffers, views, strict=True))
        self._apart = [(place, before) for place, buffer in enumerate(buffers) if buffer.written for before in arrays if before < place]
        self._stream = _current_stream([names[place] for place in arrays], [libraries[place] for place in arrays])
        self._place: Callable[[Any], Sequence[int]] | None = None
        self.launch: launch.FixedLaunch

    def launches(self, fixed: launch.FixedLaunch, places: Sequence[int]) -> _Plan:
        """Return the plan with its launch, which takes the addresses at these positions of the plan."""
        self.launch = fixed
        if list(places) != list(range(len(self.names))):
            self._place = operator.itemgetter(*places)
        return self

    def check(self, addresses: Sequence[int]) -> None:
        """Check alignment, and that the output, the last array, overlaps no input."""
        start = addresses[-1]
        stop = start + self._spans[-1]
        bad = start % self._aligns[-1]
        for address, align, span in zip(addresses[:-1], self._aligns, self._spans):
            bad = bad or address % align or (address < stop and start < address + span)
        if bad:
            self._refuse(addresses)

    def _refuse(self, addresses: Sequence[int]) -> None:
        """Raise the error, unless the arrays are interleaved and do not overlap."""
        for name, buffer, address, align in zip(self.names, self.buffers, addresses, self._aligns, strict=True):
            if address % align:
                raise misaligned(name, buffer, address)
        for place, before in self._apart:
            if share_memory(self.views[before], addresses[before], self.views[place], addresses[place]):
                raise overlapping(self.names[place], self.names[before])

    def placed(self, addresses: Sequence[int]) -> Sequence[int]:
        """Return the addresses in the order of the kernel's parameters."""
        return addresses if self._place is None else self._place(addresses)

    def stream(self, stream: object) -> int:
        """Return the stream to launch on: the given stream, or the current stream of the arrays' library."""
        return self._stream(self.device) if stream is None else launch.stream_address(stream, self.device)

    def run(self, addresses: Sequence[int], orders: Sequence[Order], stream: object) -> None:
        """Launch on arrays of this signature."""
        self.check(addresses)
        at = self._stream(self.device) if stream is None else launch.stream_address(stream, self.device)
        if recorder.current.recording is not None:
            self._record(recorder.current.recording, addresses, not orders and stream is None)
        if orders:
            return self._ordered(addresses, orders, at)
        self.launch(addresses if self._place is None else self._place(addresses), at)

    def _record(self, recording: recorder.Recording, addresses: Sequence[int], is_whole: bool) -> None:
        recording.launches.append((self, tuple(addresses)))
        recording.is_whole = recording.is_whole and is_whole

    def _ordered(self, addresses: Sequence[int], orders: Sequence[Order], at: int) -> None:
        with launch.on_device(self.device):
            for order in orders:
                order.before(at)
            self.launch(self.placed(addresses), at)
            for order in orders:
                order.after(at)


class _MultiOutputPlan(_Plan):
    """The plan of a kernel with more than one output."""

    def check(self, addresses: Sequence[int]) -> None:
        """Check alignment, and that no output overlaps an input or another output."""
        spans = self._spans
        bad = any(address % align for address, align in zip(addresses, self._aligns))
        for place, before in self._apart:
            start, other = addresses[place], addresses[before]
            bad = bad or (other < start + spans[place] and start < other + spans[before])
        if bad:
            self._refuse(addresses)


def _current_stream(names: Sequence[str], libraries: Sequence[Library]) -> Callable[[int], int]:
    """Return a function for the current stream of the arrays' libraries, which must agree."""
    owners: dict[Library, str] = {}
    for name, library in zip(names, libraries, strict=True):
        if type(library).owns_stream:
            owners.setdefault(library, name)
    if len(owners) < 2:
        return next(iter(owners), libraries[0]).stream

    def agreed(device: int) -> int:
        (first, first_name), *others = owners.items()
        stream = first.stream(device)
        for other, name in others:
            if not launch.same_stream(stream, other.stream(device)):
                asked = f"{first_name} is an array of {first.name}, {name} one of {other.name}, and their current streams differ"
                raise LaunchError(asked, hint="specify the stream: kernel(..., stream=...)")
        return stream

    return agreed


class Calls:
    """The calls of a kernel with one output, on arrays on GPUs. `load` loads the kernel on the current GPU.

    With `between`, only the next launch reads a new output.
    """

    def __init__(self, kernel: Kernel, load: Callable[[], launch.Launcher], between: bool) -> None:
        self._kernel, self._load, self._between = kernel, load, between
        self.spec: Spec = kernel.spec
        self.inputs: tuple[str, ...] = tuple(kernel.spec.inputs)
        self.outputs = output_names(kernel.spec)
        self.names = (*self.inputs, *self.outputs)
        views = [(name, kernel.spec.operands[name]) for name in self.inputs]
        self.scalars = {place: (name, view.dtype) for place, (name, view) in enumerate(views) if view.memory.by_value}
        self.positive = frozenset(positive_numbers(kernel.spec))
        self._plans: _Kept[_Plan] = _Kept()
        self._outputs: _Kept[_Output | _Outputs] = _Kept()
        self._launchers: dict[int, launch.Launcher] = {}
        self._exchange: tuple[int, Mapping[str, int]] | None = None
        self._lock = threading.RLock()

    def exchange_by(self, address: int, symbols: Mapping[str, int]) -> None:
        """Launch with the workspaces of all GPUs at an address, and with these values of symbols, such as the number of this GPU."""
        self._exchange = address, symbols

    def launcher(self, device: int) -> launch.Launcher:
        """Return the kernel, loaded once on a GPU."""
        launcher = self._launchers.get(device)
        if launcher is None:
            with self._lock, launch.on_device(device):
                launcher = self._launchers.get(device) or self._load()
                self._launchers[device] = launcher
        return launcher

    def __call__(self, arrays: tuple[Any, ...], out: Any, stream: object, sizes: Mapping[str, int]) -> Any:
        """Launch, and return the output; None for a wrong number of arrays, or arrays of an unknown library."""
        if out is None:
            return self._allocating(arrays, stream, sizes)
        readings = self.read((*arrays, out), self.names)
        if readings is None:
            return None
        addresses, signatures, orders = readings
        self.plan(signatures, sizes).run(addresses, orders, stream)
        return out

    def read(self, arrays: tuple[Any, ...], names: Sequence[str]) -> Readings | None:
        """Return the arrays' addresses and signatures; None as for a call."""
        if len(arrays) != len(names):
            return None
        addresses, signatures, orders = [], [], []
        scalars = self.scalars if names is not self.outputs else {}
        for place, (name, array) in enumerate(zip(names, arrays)):
            if place in scalars:
                dtype = scalars[place][1]
                addresses.append(bits_of(value_of(name, array, dtype, name in self.positive)))
                signatures.append(Scalars.signature(dtype))
                continue
            library = library_of(type(array))
            if library is None:
                return None
            address, signature, order = library.read(name, array)
            addresses.append(address)
            signatures.append(signature)
            if order is not None:
                orders.append(order)
        return addresses, tuple(signatures), orders

    def _allocating(self, arrays: tuple[Any, ...], stream: object, sizes: Mapping[str, int]) -> Any:
        readings = self.read(arrays, self.inputs)
        if readings is None:
            return None
        addresses, signatures, orders = readings
        output = self.output(signatures, sizes)
        outs = output.make(stream)
        recorder.note_allocated(outs)
        new = self.read(outs, self.outputs)
        assert new is not None
        self.plan((*signatures, *new[1]), sizes).run([*addresses, *new[0]], orders, stream)
        return output.finished(outs, stream)

    def missing(self, arrays: tuple[Any, ...], given: Sequence[Any], stream: object, sizes: Mapping[str, int]) -> tuple[Any, ...] | None:
        """Return new arrays for the outputs that are None; None for a wrong number of arrays, or arrays of an unknown library."""
        readings = self.read(arrays, self.inputs)
        if readings is None:
            return None
        outputs = self.output(readings[1], sizes)
        new = outputs.missing(given, stream) if isinstance(outputs, _Outputs) else outputs.make(stream)
        recorder.note_allocated(new)
        return new

    # ------------------------------------------------------------------------------------------ once per signature

    def plan(self, signatures: tuple[Signature, ...], sizes: Mapping[str, int]) -> _Plan:
        """Return the plan for these signatures, of inputs and outputs."""
        key = (signatures, tuple(sizes.items())) if sizes else signatures
        plan = self._plans.get(key)
        return self._plans.add(key, self._planned(signatures, sizes)) if plan is None else plan

    def output(self, signatures: tuple[Signature, ...], sizes: Mapping[str, int]) -> _Output | _Outputs:
        """Return the allocation of outputs for inputs of these signatures."""
        key = (signatures, tuple(sizes.items()))
        return self._outputs.get(key) or self._outputs.add(key, self._output_for(signatures, sizes))

    def _views(self, signatures: Sequence[Signature]) -> list[ArrayView]:
        views = [signature[0].view(signature) for signature in signatures]
        on_gpu = [(name, view.device) for name, view in zip(self.names, views) if view.device != NO_DEVICE]
        for name, device in on_gpu:
            if device != on_gpu[0][1]:
                asked = f"{on_gpu[0][0]} is on GPU {on_gpu[0][1]}, but {name} is on GPU {device}"
                raise LaunchError(asked, hint="copy one of them, because a kernel runs on one GPU")
        return views

    def _symbols(self, views: Sequence[ArrayView], sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the values of sizes and strides from the arrays of inputs, and of outputs if given."""
        shapes = {name: view.shape for name, view in zip(self.inputs, views)}
        return solve_symbols(self.spec, shapes, sizes, steps_of(dict(zip((*self.inputs, *self.spec.outputs), views))))

    def _output_for(self, signatures: Sequence[Signature], sizes: Mapping[str, int]) -> _Output | _Outputs:
        place = next((place for place in range(len(signatures)) if place not in self.scalars), None)
        if place is None:
            raise ArgumentError(
                f"{self.spec.title} reads no array that determines the GPU of its output", hint="pass the output: kernel(out=...)"
            )
        views = self._views(signatures)
        symbols = self._symbols(views, sizes)
        refuse_reading(self.spec, symbols)
        check_facts(self._kernel, symbols)
        buffers = [self._kernel.buffer(name) for name in self.spec.outputs]
        library, device = signatures[place][0], views[place].device
        parts = [
            _Output(library, buffer_shape(buffer, symbols), byte_strides(buffer, symbols), buffer.dtype, device, self._between)
            for buffer in buffers
        ]
        return parts[0] if len(parts) == 1 else _Outputs(parts)

    def _planned(self, signatures: Sequence[Signature], sizes: Mapping[str, int]) -> _Plan:
        kernel, views = self._kernel, self._views(signatures)
        symbols = self._symbols(views, sizes)
        if kernel.exchanges:
            if self._exchange is None:
                raise ArgumentError(f"{kernel.name} waits for other GPUs", hint="kernel.over(group), in a process per GPU")
            symbols |= self._exchange[1]
        for name, view, signature in list(zip(self.names, views, signatures, strict=True))[len(self.inputs) :]:
            if view.readonly:
                reason = "a JAX array, which cannot be written" if signature[0].name == "JAX" else "read-only"
                raise LaunchError(f"{name} is {reason}", hint="remove out=, or pass a writable array")
        check_facts(kernel, symbols)
        order = (*self.inputs, *self.spec.outputs)
        buffers = [kernel.buffer(name) for name in order]
        for name, buffer, view in zip(self.names, buffers, views, strict=True):
            check_view(name, buffer, view, symbols, self.spec)
            if buffer.written:
                check_apart(name, view)
        places = [order.index(buffer.name) for buffer in kernel.buffers if buffer.parameter]
        zeroed = [(place, views[order.index(kernel.buffers[place].name)]) for place in range(len(places)) if self._zeroed(place)]
        fills = [(place, launch.fill_of(view.shape, view.strides, view.itemsize, self._bits(place))) for place, view in zeroed]
        device = next(view.device for view in views if view.device != NO_DEVICE)
        scalars = {position: self.scalars[place][1].bytes for position, place in enumerate(places) if place in self.scalars}
        values = [*(symbols[var.name] for var in kernel.symbols), *(reciprocal.value(symbols) for reciprocal in kernel.reciprocals)]
        parameters = self._parameters(dict(zip(order, self.names, strict=True)), symbols)
        grid = evaluated(kernel.grid, symbols)
        counter = self._provided(device, symbols)
        pointers = len(places) + (counter is not None)
        given = device, grid, kernel.threads, pointers, values, fills, scalars, parameters
        fixed = self.launcher(device).fixed(*given, programmatic=kernel.effects[DependentLaunch].enabled, counter=counter)
        plan = _Plan if len(self.outputs) == 1 else _MultiOutputPlan
        return plan(self.names, buffers, views, [signature[0] for signature in signatures]).launches(fixed, places)

    def _parameters(self, names: Mapping[str, str], symbols: Mapping[str, int]) -> list[launch.Parameter] | None:
        """Return the kernel's parameters in order; None if these are all operands, then all numbers.

        `names` are the operands in messages.
        """
        kernel = self._kernel
        if not any(isinstance(parameter, (TensorMap, Counter, Workspace)) for parameter in kernel.parameters):
            return None
        arguments = [buffer.name for buffer in kernel.buffers if buffer.parameter]
        arguments += [provided.name for provided in (kernel.counter, kernel.workspace) if provided is not None]
        arguments += [*(var.name for var in kernel.symbols), *(reciprocal.name for reciprocal in kernel.reciprocals)]
        return [
            self._mapped(parameter, arguments, names, symbols) if isinstance(parameter, TensorMap) else arguments.index(parameter.name)
            for parameter in kernel.parameters
        ]

    def _mapped(
        self, parameter: TensorMap, arguments: Sequence[str], names: Mapping[str, str], symbols: Mapping[str, int]
    ) -> launch.Mapped:
        """Return the parameter of a tensor map, of an argument or of a buffer in the workspace."""
        buffer, workspace = self._kernel.buffer(parameter.buffer), self._kernel.workspace
        form = MapForm.of(parameter, names.get(buffer.name, buffer.name), buffer, symbols)
        if not buffer.workspace or workspace is None:
            return launch.Mapped(arguments.index(buffer.name), form.encode, form.tiled)
        offset = evaluated(self._kernel.workspace_offset(buffer), symbols)
        return launch.Mapped(arguments.index(workspace.name), lambda address: form.encode(address + offset))

    def _bits(self, place: int) -> int:
        """The bits to which the launcher sets the elements of an output."""
        buffer = next(buffer for number, buffer in enumerate(b for b in self._kernel.buffers if b.parameter) if number == place)
        return self._kernel.effects[Zeroed].bits(buffer.name, buffer.dtype)

    def _provided(self, device: int, symbols: Mapping[str, int]) -> Callable[[int], int] | None:
        """Return the function from a stream to the memory that the launcher provides: a tile counter or a workspace; None if none."""
        if self._exchange is not None:
            address, _ = self._exchange
            return lambda stream: address
        if self._kernel.workspace is not None:
            pool = workspaces(device, self._kernel.workspace.looks_back)
            return functools.partial(pool.of, evaluated(self._kernel.workspace_bytes, symbols))
        return None if self._kernel.counter is None else counters(device).of

    def _zeroed(self, place: int) -> bool:
        parameters = [buffer.name for buffer in self._kernel.buffers if buffer.parameter]
        return parameters[place] in self._kernel.effects[Zeroed].names


class MultiOutputCalls(Calls):
    """The calls of a kernel with more than one output: `out` is a tuple or a mapping, and a tuple is returned."""

    def __call__(self, arrays: tuple[Any, ...], out: Any, stream: object, sizes: Mapping[str, int]) -> Any:
        if out is None:
            return self._allocating(arrays, stream, sizes)
        outs = in_order(self.spec, out)
        readings = self.read((*arrays, *outs), self.names)
        if readings is None:
            return None
        addresses, signatures, orders = readings
        self.plan(signatures, sizes).run(addresses, orders, stream)
        return outs


def calls_of(kernel: Kernel, load: Callable[[], launch.Launcher], between: bool = False) -> Calls:
    """Return the calls of a kernel, by its number of outputs."""
    return (Calls if len(kernel.spec.outputs) == 1 else MultiOutputCalls)(kernel, load, between)


def refuse_reading(spec: Spec, symbols: Mapping[str, int]) -> None:
    """Refuse to allocate outputs that the kernel accumulates into."""
    if reads_output(spec, symbols):
        lower = ", ".join(name.lower() for name in spec.outputs)
        how = f"it: kernel(..., out={lower})" if len(spec.outputs) == 1 else f"them: kernel(..., out=({lower}))"
        raise ArgumentError(f"the kernel adds to {', '.join(spec.outputs)}", hint=f"pass {how}")
    kept = keeps_elements(spec)
    if kept:
        lower = ", ".join(name.lower() for name in spec.outputs)
        hint = f"pass an array of zeros, or of the values to keep: kernel(..., out={lower if len(spec.outputs) == 1 else f'({lower})'})"
        raise ArgumentError(f"the kernel writes only the elements of {kept[0]} that its indices name", hint=hint)


class PreparedLaunch:
    """A kernel with its arrays, for repeated launches: `kernel.prepare(a, b, out=c)`.

    `prepared()` runs on the same arrays, which it keeps alive, and writes the same output `out` (a tuple for more than one output). Its
    launch overhead is minimal. `prepared(a2, b2, out=c2)` runs on other arrays, which must have the same library, element type, shape,
    strides and GPU; without `out`, it writes a new output.

    JAX arrays, and arrays with only `__cuda_array_interface__` or DLPack, are read again for each launch. The shapes and strides of other
    arrays are not read again: do not change them in place (`tensor.t_()`).
    """

    def __init__(self, calls: Calls, arrays: tuple[Any, ...], out: Any, stream: object, sizes: Mapping[str, int]) -> None:
        self._calls, self._arrays, self._sizes = calls, arrays, dict(sizes)
        self._has_many_outputs = len(calls.outputs) > 1
        self._given = None if out is None else returned(in_order(calls.spec, out))
        self.out = returned(calls.output(self._read(arrays)[1], sizes).make(stream)) if out is None else self._given
        self._prepare()
        if self._foreign:
            self.out = self._given  # a new output is only used for the checks

    def _read(self, arrays: tuple[Any, ...]) -> Readings:
        names = self._calls.names
        readings = self._calls.read(arrays, names[: len(arrays)])
        if readings is None:
            raise ArgumentError("a prepared launch runs on a GPU", hint="pass arrays of the library that it was prepared for")
        return readings

    def _prepare(self) -> None:
        outs = in_order(self._calls.spec, self.out)
        addresses, self._signatures, _ = self._read((*self._arrays, *outs))
        self._foreign = not all(type(signature[0]).owns_stream or signature[4] == NO_DEVICE for signature in self._signatures)
        self._plan = self._calls.plan(self._signatures, self._sizes)
        self._plan.check(addresses)
        placed = self._plan.placed(addresses)
        self._ready = self._plan.launch.frame(placed), placed
        address_readers = [getattr(array, "data_ptr", None) for array in (*self._arrays, *outs)]
        self._address_readers = [
            (read_address, address) for read_address, address in zip(address_readers, addresses, strict=True) if read_address is not None
        ]

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None) -> Any:
        """Run on the same arrays, or on others with the same signature.

        Raises:
            ArgumentError: the arrays do not have the prepared signature.
            LaunchError: the arrays are misaligned or overlap, or the driver refuses the launch.
        """
        if arrays or out is not None or self._foreign:
            return self._others(arrays, out, stream)
        for read_address, address in self._address_readers:
            if read_address() != address:  # PyTorch can give a tensor other memory
                self._prepare()
                break
        plan, (frame, addresses) = self._plan, self._ready
        plan.launch.fire(frame, addresses, plan.stream(stream))
        return self.out

    def _others(self, arrays: tuple[Any, ...], out: Any, stream: Any) -> Any:
        if not arrays:
            arrays, out = self._arrays, self._given if out is None else out
        inputs = self._calls.inputs
        if len(arrays) != len(inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, the launch was prepared for {len(inputs)}", legal=inputs)
        if out is None:
            self._compare(self._read(arrays)[1])
            return self._calls(arrays, None, stream, self._sizes)
        if self._has_many_outputs:
            out = in_order(self._calls.spec, out)
        addresses, signatures, orders = self._read((*arrays, *out) if self._has_many_outputs else (*arrays, out))
        if signatures != self._signatures:
            self._compare(signatures)
        self._plan.run(addresses, orders, stream)
        return out

    def _compare(self, signatures: Sequence[Signature]) -> None:
        for name, before, now in zip(self._calls.names, self._signatures, signatures):
            if before != now and _distinguished(before) != _distinguished(now):
                raise ArgumentError(
                    f"{name} differs from the array that the launch was prepared for",
                    got=_described(now),
                    legal=_described(before),
                    hint="call the kernel, or prepare another launch",
                )

    def __repr__(self) -> str:
        return f"<prepared launch of {self._calls._kernel.name} on GPU {self._plan.device}>"


class PreparedLaunches:
    """A program of more than one launch for repeated execution, like a `PreparedLaunch`. Its temporaries are allocated once.

    All runs use the same temporaries, so two streams must not run it at the same time.
    """

    def __init__(self, path: Route, before: Sequence[PreparedLaunch], last: PreparedLaunch, call_arrays: Sequence[Any]) -> None:
        self._path, self._before, self._last, self._call_arrays = (
            path,
            tuple(zip(path.before, before, strict=True)),
            last,
            list(call_arrays),
        )
        self._again = all(launch.out is not None for launch in before)

    @property
    def out(self) -> Any:
        """The output of `prepared()`."""
        return self._last.out

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None) -> Any:
        """Run on the same arrays, or on others with the same signature; raises the errors of a `PreparedLaunch`."""
        path = self._path
        if not arrays and self._again and (out is None or not path.writes):
            for _, launch in self._before:
                launch(stream=stream)
            return self._last(out=out, stream=stream)
        if arrays and len(arrays) != len(path.inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, the launch was prepared for {len(path.inputs)}")
        call_arrays, new = self._changed(arrays, out)
        for step, launch in self._before:
            if new.isdisjoint((*step.takes, *step.fills)):
                result = launch(stream=stream)
            else:
                result = launch(
                    *(call_arrays[place] for place in step.takes),
                    out=None if launch.out is None else step.filled(call_arrays),
                    stream=stream,
                )
            new.update(place for place, array in zip(step.fills, _results(result, step), strict=True) if array is not call_arrays[place])
            step.store(call_arrays, result)
        return self._last(*path.last(call_arrays), out=path.filled(call_arrays) if path.writes else out, stream=stream)

    def _changed(self, arrays: Sequence[Any], out: Any) -> tuple[list[Any], set[int]]:
        """Return the arrays of a run, and the positions of those that differ from the prepared ones."""
        path, call_arrays, inputs = self._path, list(self._call_arrays), len(self._path.inputs)
        call_arrays[: len(arrays)] = arrays
        new = set(range(len(arrays)))
        if path.writes and (arrays or out is not None):
            outs = [None] * len(path.outputs) if out is None else in_order(self._last._calls.spec, out)
            call_arrays[inputs : inputs + len(path.outputs)] = outs
            new |= set(range(inputs, inputs + len(path.outputs)))
        return call_arrays, new

    def __repr__(self) -> str:
        kind = "copies" if all(launch._calls.spec.copies for _, launch in self._before) else "before"
        return f"<prepared launches: {len(self._before)} {kind}, {self._last!r}>"


def _results(result: Any, step: PrecedingLaunch) -> Sequence[Any]:
    return (result,) if len(step.fills) == 1 else tuple(result)


def _distinguished(signature: Signature) -> tuple[Any, ...]:
    """Return what a launch depends on: an array's dimension of one element may have any stride."""
    view = signature[0].view(signature)
    strides = tuple(step for size, step in zip(view.shape, view.strides, strict=True) if size != 1)
    return signature[0], view.shape, strides, view.dtype, view.device


def _described(signature: Signature) -> str:
    library = signature[0]
    view = library.view(signature)
    return f"{library.name} {view.dtype}, shape {view.shape}, strides {view.strides} bytes, GPU {view.device}"
