"""Kernels of a node: programs whose launches each GPU performs, connected by arrays that all GPUs can access.

Calls with NumPy arrays run in the simulator, with the complete arrays. On GPUs, each process has one GPU and the parts of arrays that this
GPU stores: `kernel.over(group)` returns what the process calls.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NoReturn

import attrs

from fireiron.compiler import Launch, Program
from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.gpu.arguments import by_position, evaluated, in_order, returned, solve_symbols
from fireiron.gpu.barrier import PeerBarrier
from fireiron.gpu.exchange import ExchangeMemory
from fireiron.gpu.kernel import CompiledKernel, UpstreamKernel
from fireiron.gpu.symmetric import Shared, allocations
from fireiron.spec import Spec, symbols_of
from fireiron.values.distribution import Portion
from fireiron.values.expr import SYMBOL_MAX, ZERO
from fireiron.values.tensor import Tensor


class NodeKernel(CompiledKernel):
    """A callable program for the GPUs of a node.

    `kernel(a, b)` with NumPy arrays simulates all GPUs, and returns the complete output. `kernel.over(group)` runs on GPUs.
    """

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: Any) -> Any:
        """Simulate the launches on all GPUs with complete NumPy arrays.

        Raises:
            ArgumentError: the arrays are too many, too few, of other shapes, or not NumPy arrays.
            SimulationError: the simulator detected a race, an access out of bounds or uninitialized data.
        """
        import numpy

        from fireiron.sim.node import simulate_node

        spec = self.program.spec
        arrays, sizes = by_position(spec, arrays, sizes)
        if len(arrays) != len(spec.inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, {spec.title} reads {len(spec.inputs)}", legal=spec.inputs)
        for name, array in zip(spec.inputs, arrays, strict=True):
            if not isinstance(array, numpy.ndarray):
                raise ArgumentError(
                    f"{name}: a kernel for {spec.level} needs a process per GPU", got=type(array), hint="kernel.over(group) on GPUs"
                )
        if stream is not None:
            raise ArgumentError("stream= requires arrays on a GPU", got="NumPy arrays", hint="kernel.over(group) on GPUs")
        given = dict(zip(spec.inputs, arrays, strict=True))
        symbols = solve_symbols(spec, {name: array.shape for name, array in given.items()}, sizes)
        results = simulate_node(spec, self.program.launches, given, symbols)
        if out is not None:
            for name, array in zip(spec.outputs, in_order(spec, out), strict=True):
                array[...] = results[name]
            return out
        return returned(tuple(results[name] for name in spec.outputs))

    def over(self, group: Any = None, seconds: float | None = None) -> NodeRun:
        """Return what this process calls on its GPU. All processes of the group must call this method, and then its result, together.

        Args:
            group: a process group of `torch.distributed` with as many processes as the node has GPUs; None for the default group.
            seconds: how long a GPU waits for another one (None: 600). After that, no launch of this process runs any more, and calls and
                `synchronize` raise a LaunchError with the place.

        Raises: ArgumentError for a group of another size; LaunchError if PyTorch or the driver lacks symmetric memory.
        """
        return NodeRun(self, group, seconds)

    def prepare(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: int) -> NoReturn:
        """A kernel of a node has no prepared launch in one process. Raises: ArgumentError."""
        raise ArgumentError(f"a kernel for {self.program.spec.level} needs a process per GPU", hint="kernel.over(group)")


@frozen
class _Step:
    """A launch of a run, whether a barrier of all GPUs precedes it, and the run-time sizes that it takes."""

    launch: Launch
    kernel: UpstreamKernel
    waits: bool
    sizes: tuple[str, ...]


class NodeRun:
    """A kernel of a node in one process of a group. A call takes the parts of the inputs that the GPU of this process stores.

    Inputs that other GPUs read must be in symmetric memory: `run.array("A")` returns the part of A, to be filled before the call.
    """

    def __init__(self, kernel: NodeKernel, group: Any = None, seconds: float | None = None) -> None:
        import torch
        import torch.distributed as distributed

        self.kernel, self.spec = kernel, kernel.program.spec
        self.group = distributed.group.WORLD if group is None else group
        if not distributed.is_initialized() or self.group is None:
            raise ArgumentError("over(group): no process group", hint="torch.distributed.init_process_group(...), under torchrun")
        self.gpus, self.rank = distributed.get_world_size(self.group), distributed.get_rank(self.group)
        if self.gpus != self.spec.level.gpus:
            raise ArgumentError(
                f"over(group): the kernel is for {self.spec.level}", got=f"{self.gpus} processes", legal=f"{self.spec.level.gpus} processes"
            )
        self.device = torch.device("cuda", torch.cuda.current_device())
        self._steps = _steps(kernel)
        self._symmetric: dict[str, Shared] = {}
        self._local: dict[str, Any] = {}
        self._layouts: dict[tuple[str, tuple[int, ...]], tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self._most = _largest_sizes(self.spec)
        self._views: dict[tuple[Shared, Portion, Any], Any] = {}
        exchanging = [step for step in self._steps if step.launch.kernel.exchanges]
        self._exchanges = [ExchangeMemory(step.launch.kernel, self.group, self.rank, self.device, seconds) for step in exchanging]
        for step, memory in zip(exchanging, self._exchanges, strict=True):
            step.kernel.exchange_by(memory.address, memory.symbols)
        self._barrier = PeerBarrier(self.group, self.rank, self.gpus, self.device, _places(self._steps), seconds) if self.shared else None

    @functools.cached_property
    def shared(self) -> tuple[str, ...]:
        """The arrays of which other GPUs read parts: inputs, and results of earlier launches."""
        return tuple(dict.fromkeys(array for step in self._steps for array in step.launch.reads_of_all_gpus))

    def array(self, name: str) -> Any:
        """Return the part of an array that the GPU of this process stores, as a PyTorch tensor that all GPUs can read.

        With run-time sizes, it has the largest sizes; smaller parts are views of its start. All processes must call this method in the same
        order. Raises: ArgumentError for an array that no other GPU reads.
        """
        if name not in self.shared:
            raise ArgumentError(f"array({name!r}): no other GPU reads it", legal=self.shared or "none", hint="a tensor on the GPU")
        if name not in self._symmetric:
            self._symmetric[name] = self._allocated(name)
        return self._symmetric[name].part

    def part_like(self, name: str, part: Any) -> Any:
        """Return `array(name)`, or a view of its start, with the shape of a part."""
        whole = self.array(name)
        if whole.shape == part.shape:
            return whole
        return whole.as_strided(part.shape, _strides_like(whole, part.shape))

    def __call__(self, *arrays: Any, out: Any = None) -> Any:
        """Run all launches on the current stream, and return the part of the output that the GPU of this process stores.

        Raises: ArgumentError for wrong arrays; LaunchError as calls of kernels do.
        """
        import torch

        spec = self.spec
        self.check()
        if len(arrays) != len(spec.inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, {spec.title} reads {len(spec.inputs)}", legal=spec.inputs)
        stored = dict(zip(spec.inputs, arrays, strict=True))
        sizes = self._sizes(stored)
        for name, array in stored.items():
            self._check(name, array, sizes)
        outs = {} if out is None else dict(zip(spec.outputs, in_order(spec, out), strict=True))
        for name in spec.outputs:
            dtype = _torch_type(spec.operands[name].tensor)
            shape, strides = self._layout(name, sizes)
            stored[name] = outs[name] if name in outs else torch.empty_strided(shape, strides, dtype=dtype, device=self.device)
        try:
            self._run(stored, sizes)
        finally:
            self.check()
        return returned(tuple(stored[name] for name in spec.outputs))

    def _run(self, stored: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        """Run all launches. After the last one, other GPUs may still read parts of this one, so all GPUs wait for each other."""
        waits = False
        for place, step in enumerate(self._steps):
            if step.waits and self._barrier is not None:
                self._barrier(place)
                waits = True
            self._launch(step, stored, sizes)
        if waits and self._barrier is not None:
            self._barrier(len(self._steps))

    def check(self) -> None:
        """Raise a LaunchError with the place if another GPU did not arrive in time. Does not wait for launches."""
        if self._barrier is not None:
            self._barrier.check()
        for memory in self._exchanges:
            memory.check()

    def synchronize(self) -> None:
        """Wait for all launches of the current stream. Raises: LaunchError with the place if another GPU did not arrive in time."""
        import torch

        try:
            torch.cuda.current_stream().synchronize()
        except RuntimeError:
            self.check()
            raise
        self.check()

    def close(self) -> None:
        """Free the symmetric memory. The tensors of `array` are invalid afterwards."""
        for shared in self._symmetric.values():
            shared.memory.close()
        for memory in self._exchanges:
            memory.close()
        self._symmetric.clear()
        self._views.clear()

    # ------------------------------------------------------------------------------------------ arrays

    def _allocated(self, name: str) -> Shared:
        return Shared.of(*self._layout(name, self._most), _torch_type(self._tensor_of(name)), self.group, self.device)

    def _sizes(self, inputs: Mapping[str, Any]) -> Mapping[str, int]:
        """Return the run-time sizes for the parts of inputs. Raises: ArgumentError for sizes that the kernel does not support."""
        if not self._most:
            return self._most
        wholes = {}
        for name, array in inputs.items():
            tensor, dims = self.spec.operands[name].tensor.array, self.spec.kind.array_dims(self.spec.definition, name)
            shape = tuple(getattr(array, "shape", ()))
            over = [dim == tensor.distributed_over for dim in dims]
            wholes[name] = tuple(size * self.gpus if place < len(over) and over[place] else size for place, size in enumerate(shape))
        return solve_symbols(self.spec, wholes, {})

    def _layout(self, name: str, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shape and the strides of an array as one GPU stores it."""
        key = name, tuple(sizes.values())
        if key not in self._layouts:
            self._layouts[key] = _shape_and_strides(self._tensor_of(name), sizes)
        return self._layouts[key]

    def _fitted(self, name: str, tensor: Any, sizes: Mapping[str, int]) -> Any:
        """Return the start of an allocation of the largest sizes, as an array of the given sizes."""
        return tensor if sizes == self._most else tensor.as_strided(*self._layout(name, sizes))

    def _tensor_of(self, name: str) -> Tensor:
        """Return the part of an array as one GPU stores it."""
        if name in self.spec.operands:
            tensor = self.spec.operands[name].tensor.array
            return attrs.evolve(tensor, shape=_part_sizes(self.spec, name), layout=tensor.order)
        return next(
            tensor
            for step in self._steps
            for operand, array in step.launch.arrays.items()
            if array == name and (tensor := step.launch.spec.operands[operand].tensor).portion is None
        )

    def _check(self, name: str, array: Any, sizes: Mapping[str, int]) -> None:
        import torch

        if not isinstance(array, torch.Tensor) or array.device != self.device:
            raise ArgumentError(f"{name} must be a PyTorch tensor on {self.device}", got=getattr(array, "device", type(array)))
        shape, strides = self._layout(name, sizes)
        if tuple(array.shape) != shape:
            raise ArgumentError(f"{name}: the part of a GPU has another shape", got=tuple(array.shape), legal=shape)
        if name in self.shared and self._allocation(name, array, sizes) is None:
            raise ArgumentError(
                f"{name}: other GPUs read it, and this tensor is not in symmetric memory, or has other strides",
                got=f"strides {array.stride()}", legal=f"strides {strides}",
                hint=f'{name.lower()} = run.array("{name}"), or fireiron.distributed.empty(shape, dtype)',
            )  # fmt: skip

    def _allocation(self, name: str, array: Any, sizes: Mapping[str, int]) -> Shared | None:
        """Return the symmetric allocation of a given input; None if it has none with the strides of the operand."""
        own = self._symmetric.get(name)
        if own is not None and array.data_ptr() == own.part.data_ptr():
            return own
        shared = allocations(self.group).of(array)
        return shared if shared is not None and array.stride() == self._layout(name, sizes)[1] else None

    def _portion(self, array: str, portion: Portion | None, stored: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
        """Return what a launch accesses of an array."""
        if portion is None or portion.gpu_axis is None:
            tensor = self._own(array, stored, sizes)
            if portion is not None and portion.divided is not None:
                return tensor.unflatten(portion.divided, (self.gpus, -1)).movedim(portion.divided, 0)
            return tensor if portion is None else tensor.chunk(self.gpus, portion.own_along)[self.rank]
        shared = self._allocation(array, stored[array], sizes) if array in self.spec.inputs else None
        if shared is None:
            self.array(array)
            shared = self._symmetric[array]
        part = stored[array] if array in self.spec.inputs else self._fitted(array, shared.part, sizes)
        key = shared, portion, part.shape
        if key not in self._views:
            whole = shared.whole_of(part)
            if portion.own_along is not None:
                whole = whole.chunk(self.gpus, portion.own_along + 1)[self.rank]
            whole = whole.squeeze(portion.gpu_axis + 1) if portion.joined else whole
            self._views[key] = whole.movedim(0, portion.gpu_axis)
        return self._views[key]

    def _own(self, array: str, stored: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
        """Return the array of this GPU: an argument, or a temporary, which is allocated once."""
        import torch

        if array in stored:
            return stored[array]
        if array in self.shared:
            return self._fitted(array, self.array(array), sizes)
        if array not in self._local:
            shape, strides = self._layout(array, self._most)
            self._local[array] = torch.empty_strided(shape, strides, dtype=_torch_type(self._tensor_of(array)), device=self.device)
        return self._fitted(array, self._local[array], sizes)

    # ------------------------------------------------------------------------------------------ launches

    def _launch(self, step: _Step, stored: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
        spec = step.launch.spec
        arrays = {
            name: self._portion(step.launch.arrays[name], view.tensor.array.portion, stored, sizes)
            for name, view in spec.operands.items()
            if view.memory.of_grid
        }
        inputs = tuple(arrays[name] for name in spec.inputs)
        own = {name: sizes[name] for name in step.sizes}
        step.kernel(*inputs, out=returned(tuple(arrays[name] for name in spec.outputs)), **own)


def _steps(kernel: NodeKernel) -> tuple[_Step, ...]:
    """Return the launches. A barrier precedes the first launch that reads parts of other GPUs, and each that reads later results."""
    steps: list[_Step] = []
    given = symbols_of(kernel.program.spec)
    for launch, reason in zip(kernel.program.launches, kernel.program.barriers, strict=False):
        alone = launch.program.last if launch.program is kernel.program else launch.program
        sizes = tuple(var.name for var in symbols_of(launch.spec) if var in given)
        steps.append(_Step(launch, UpstreamKernel(alone, kernel.options), bool(reason), sizes))
    return tuple(steps)


def _part_sizes(spec: Spec, name: str) -> tuple[Any, ...]:
    """Return the shape of the part of an operand that a GPU stores."""
    tensor, gpus = spec.operands[name].tensor.array, spec.level.gpus or 1
    dims = spec.kind.array_dims(spec.definition, name)
    return tuple(size // gpus if dim == tensor.distributed_over else size for dim, size in zip(dims, tensor.shape, strict=True))


def _shape_and_strides(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape and the strides in elements of an array, for values of run-time sizes."""
    steps = (ZERO if step is None else step for step in tensor.storage().steps)
    return tuple(evaluated(size, sizes) for size in tensor.shape), tuple(evaluated(step, sizes) for step in steps)


def _strides_like(whole: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a dense matrix of a shape, in the order of another one."""
    rows, columns = shape
    return (columns, 1) if whole.stride(1) == 1 else (1, rows)


def _largest_sizes(spec: Spec) -> dict[str, int]:
    """Return the largest values of the run-time sizes, for which memory is allocated. Raises: ArgumentError for a size without a bound."""
    symbols = symbols_of(spec)
    unbounded = next((var for var in symbols if var.high >= SYMBOL_MAX - var.multiple_of), None)
    if unbounded is not None:
        raise ArgumentError(
            f"over(group): {unbounded.name} has no upper bound, and memory for other GPUs is allocated once", got=f"{unbounded.name}",
            legal=f'sym("{unbounded.name}", multiple_of={unbounded.multiple_of}, high=65536)',
        )  # fmt: skip
    return {var.name: var.high // var.multiple_of * var.multiple_of for var in symbols}


def _places(steps: tuple[_Step, ...]) -> tuple[str, ...]:
    """Return what a GPU waits for at the barrier before each launch, and at the last barrier."""
    before = (f"before launch {number} of {len(steps)}, {step.launch.program.name}" for number, step in enumerate(steps, 1))
    return (*before, f"after the last launch, {steps[-1].launch.program.name}")


def _torch_type(tensor: Tensor) -> Any:
    import torch

    return getattr(torch, tensor.dtype.numpy)


def kernel_of(program: Program, options: tuple[str, ...] = ()) -> CompiledKernel:
    """Return the kernel of a program: one for a node, if its spec is at the level of a node."""
    return (CompiledKernel if program.spec.level.gpus is None else NodeKernel)(program, options)


__all__ = ["NodeKernel", "NodeRun", "kernel_of"]
