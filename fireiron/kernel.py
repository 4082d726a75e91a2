"""Compiled kernels: called with NumPy arrays they run in the simulator, with arrays on a GPU on the GPU."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import attrs

from fireiron import toolchain
from fireiron.compiler import Program
from fireiron.cuda import dynamic_shared_bytes
from fireiron.errors import ArgumentError, LaunchError
from fireiron.expr import Expr, constant
from fireiron.ir import Buffer, Kernel
from fireiron.spec import Spec
from fireiron.tensor import MatrixLayout


@attrs.frozen(eq=False, slots=False)
class CompiledKernel:
    """A kernel ready to be called.

    `kernel(a, b)` returns the output, `kernel(a, b, out=c)` fills it; run-time sizes are read from the arrays' shapes, and
    those that no shape tells (a leading dimension) are keywords. Arrays have the logical shape (`M x K`, ...).
    """

    program: Program

    @property
    def ir(self) -> Kernel:
        """The final kernel IR."""
        return self.program.ir

    @functools.cached_property
    def asm(self) -> Mapping[str, Any]:
        """`"cuda"`, and, compiled when first asked for, `"ptx"` and `"cubin"`."""
        return _Asm(self)

    @functools.cached_property
    def compiled(self) -> toolchain.Compiled:
        """What NVRTC made of the text; no GPU is needed. On a GPU machine no newer NVRTC than the driver is used."""
        from fireiron import launch

        newest = launch.driver_version() if launch.gpu_available() else None
        return toolchain.compile_cuda(self.program.cuda, self.program.architecture.name, newest=newest)

    @property
    def resources(self) -> toolchain.KernelResources:
        """Registers, spills and shared bytes, as ptxas reports them."""
        return self.compiled.resources[self.ir.name]

    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: int) -> Any:
        """Run on the arrays of the inputs; see the class."""
        import numpy

        spec = self.program.spec
        if len(arrays) != len(spec.inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, {spec.title} reads {len(spec.inputs)}", legal=spec.inputs)
        given = dict(zip(spec.inputs, arrays, strict=True))
        passed = given if out is None else {**given, "out": out}
        on_host = [name for name, array in passed.items() if isinstance(array, numpy.ndarray)]
        if len(on_host) == len(passed):
            return self._simulated(given, out, sizes)
        for name, array in passed.items():
            if name in on_host:
                others = ", ".join(other for other in passed if other not in on_host)
                raise ArgumentError(f"{name} is a NumPy array, {others} not", hint="all arrays on the GPU, or all NumPy for the simulator")
            if not hasattr(array, "__cuda_array_interface__") and not hasattr(array, "__dlpack__"):
                raise ArgumentError(
                    f"{name} is no array", got=type(array).__name__, legal="NumPy, or anything with __cuda_array_interface__ or __dlpack__"
                )
        return self._launched(given, out, stream, sizes)

    # ------------------------------------------------------------------------------------------ the simulator

    def _simulated(self, given: Mapping[str, Any], out: Any, sizes: Mapping[str, int]) -> Any:
        from fireiron.sim import simulate

        symbols = solve_symbols(self.program.spec, {name: array.shape for name, array in given.items()}, sizes)
        (output,) = self.program.spec.outputs
        values = dict(given)
        if out is not None:
            self._check_out(out, symbols)
            values[output] = out
        elif _reads_output(self.program.spec, symbols):
            raise ArgumentError(f"the kernel adds to {output}", hint=f"pass it: kernel(..., out={output.lower()})")
        check_facts(self.ir, symbols)
        result = simulate(self.ir, values, symbols).outputs[output]
        if out is None:
            return result
        out[...] = result
        return out

    def _check_out(self, out: Any, symbols: Mapping[str, int]) -> None:
        (output,) = self.program.spec.outputs
        view = self.program.spec.operands[output]
        shape = tuple(evaluated(size, symbols) for size in view.shape)
        if tuple(out.shape) != shape or str(out.dtype) != view.dtype.numpy:
            raise ArgumentError(f"out: {tuple(out.shape)} {out.dtype}, the kernel writes {shape} {view.dtype}")
        if not out.flags.writeable:
            raise ArgumentError("out: the array is read-only", hint="pass a copy")

    # ------------------------------------------------------------------------------------------ the GPU

    @functools.cached_property
    def launcher(self) -> Any:
        """The kernel, loaded on the current GPU."""
        from fireiron import launch

        target, device = self.program.architecture.name, launch.device_arch()
        if _capability(target) != _capability(device) and not (target[-1] != "a" and _runs_on(target, device)):
            raise LaunchError(f"the kernel is compiled for {target}, the GPU is {device}", hint=f'compile("{device}")')
        return launch.load(self.compiled.cubin, self.ir.name, dynamic_shared_bytes(self.ir))

    def _launched(self, given: Mapping[str, Any], out: Any, stream: Any, sizes: Mapping[str, int]) -> Any:
        from fireiron import launch

        cupy = launch.require_cupy()
        spec = self.program.spec
        device = {name: _on_this_gpu(cupy, name, array) for name, array in given.items()}
        symbols = solve_symbols(spec, {name: array.shape for name, array in device.items()}, sizes)
        (output,) = spec.outputs
        if out is None:
            if _reads_output(spec, symbols):
                raise ArgumentError(f"the kernel adds to {output}", hint=f"pass it: kernel(..., out={output.lower()})")
            out = _allocated(cupy, self.ir.buffer(output), symbols)
        device[output] = _on_this_gpu(cupy, "out", out, written=True)
        check_facts(self.ir, symbols)
        for name, array in device.items():
            check_array(self.ir, self.ir.buffer(name), array, symbols)
        _check_overlap(device, output)
        pointers = [device[buffer.name] for buffer in self.ir.buffers if buffer.parameter]
        values = [symbols[var.name] for var in self.ir.symbols]
        grid = evaluated(self.ir.grid, symbols)
        for name in self.ir.zeroed:
            launch.zero(device[name], stream)
        self.launcher(grid, self.ir.threads, (*pointers, *values), stream)
        return out


class _Asm(dict[str, Any]):
    def __init__(self, kernel: CompiledKernel) -> None:
        super().__init__(cuda=kernel.program.cuda)
        self.kernel = kernel

    def __missing__(self, key: str) -> Any:
        if key not in ("ptx", "cubin"):
            raise ArgumentError(f"asm[{key!r}]: no such form", legal=["cuda", "ptx", "cubin"])
        self["ptx"], self["cubin"] = self.kernel.compiled.ptx, self.kernel.compiled.cubin
        return self[key]


def _capability(name: str) -> str:
    return name.rstrip("a")


def _runs_on(target: str, device: str) -> bool:
    """A cubin runs on the same major capability, at the same minor or above."""
    ours, theirs = int(_capability(target)[3:]), int(_capability(device)[3:])
    return ours // 10 == theirs // 10 and ours <= theirs


def _reads_output(spec: Spec, symbols: Mapping[str, int]) -> bool:
    """Whether the kernel adds to what the output holds."""
    accumulate = getattr(spec, "accumulate", None)
    return accumulate is not None and bool(accumulate.evaluate(symbols))


def evaluated(value: Expr, symbols: Mapping[str, int]) -> int:
    """An expression of sizes as an integer."""
    return int(value.evaluate(symbols))


def solve_symbols(spec: Spec, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, int]) -> dict[str, int]:
    """The run-time sizes, from the arrays' shapes and from keywords; checked against each other and their facts."""
    from fireiron.lower.walk import symbols_of

    known: dict[str, int] = {}
    symbols = {var.name: var for var in symbols_of(spec)}
    for name, value in given.items():
        if name not in symbols:
            raise ArgumentError(f"{name}={value}: the kernel has no such size", legal=symbols or "none")
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"{name}={value!r}: must be an integer")
        known[name] = value
    for name, shape in shapes.items():
        extents = spec.operands[name].shape
        if len(shape) != len(extents):
            raise ArgumentError(f"{name} has {len(shape)} dimensions, the kernel reads {len(extents)}")
        for size, extent in zip(shape, extents, strict=True):
            if extent in symbols.values():
                known.setdefault(str(extent), size)
    for layout_name, view in spec.operands.items():
        layout = view.tensor.layout
        leading = layout.leading if isinstance(layout, MatrixLayout) else None
        if leading is not None and constant(leading) is None and leading in symbols.values() and str(leading) not in known:
            raise ArgumentError(
                f"the leading dimension {leading} of {layout_name} is known only at run time", hint=f"kernel(..., {leading}=...)"
            )
    missing = [name for name in symbols if name not in known]
    if missing:
        raise ArgumentError(f"no shape tells {', '.join(missing)}", hint=f"kernel(..., {missing[0]}=...)")
    for name, value in known.items():
        var = symbols[name]
        if not var.low <= value <= var.high or value % var.multiple_of:
            raise ArgumentError(f"{name}={value}", legal=f"{var.low} <= {name} <= {var.high}, a multiple of {var.multiple_of}")
    for name, shape in shapes.items():
        wanted = tuple(evaluated(size, known) for size in spec.operands[name].shape)
        if tuple(shape) != wanted:
            raise ArgumentError(f"{name} has the shape {tuple(shape)}, the kernel was made for {wanted}")
    return known


def check_facts(kernel: Kernel, symbols: Mapping[str, int]) -> None:
    """The conditions on sizes under which the kernel was generated."""
    for text, condition in kernel.facts:
        if not condition.evaluate(symbols):
            raise LaunchError(f"the kernel does not serve these sizes: {text} ({condition})", got=dict(symbols))


def element_strides(buffer: Buffer, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """The steps between elements of a parameter, in elements."""
    return tuple(evaluated(modes[0].weight, symbols) for modes in buffer.storage.dims)


def check_array(kernel: Kernel, buffer: Buffer, array: Any, symbols: Mapping[str, int]) -> None:
    """Type, shape, strides and alignment of an array on the GPU; strides are checked, never assumed."""
    if str(array.dtype) != buffer.dtype.numpy:
        raise LaunchError(f"{buffer.name} has elements of {array.dtype}, the kernel was made for {buffer.dtype}")
    shape = tuple(evaluated(size, symbols) for size in buffer.tensor.shape)
    if tuple(array.shape) != shape:
        raise LaunchError(f"{buffer.name} has the shape {tuple(array.shape)}, the kernel was made for {shape}")
    wanted = tuple(step * buffer.dtype.bytes for step in element_strides(buffer, symbols))
    differs = [dim for dim in range(len(shape)) if shape[dim] > 1 and array.strides[dim] != wanted[dim]]
    if differs:
        raise LaunchError(
            f"{buffer.name} has strides of {tuple(array.strides)} bytes, the kernel was made for {wanted} ({buffer.tensor.layout})",
            hint="pass an array of this layout, or make the spec with RowMajor / ColMajor(ld=...)",
        )
    if array.data.ptr % buffer.tensor.align:
        raise LaunchError(
            f"{buffer.name} starts at an address that is no multiple of {buffer.tensor.align} bytes", hint="copy it to a fresh array"
        )


def _on_this_gpu(cupy: Any, name: str, array: Any, written: bool = False) -> Any:
    """The array as CuPy sees it, never a copy: what lies elsewhere is refused."""
    if written and type(array).__module__.split(".")[0].startswith("jax"):
        raise LaunchError("out is a JAX array, which cannot be written", hint="leave out= away, or pass a CuPy or PyTorch array")
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        kind = array.__dlpack_device__()[0] if hasattr(array, "__dlpack_device__") else None
        if written or kind not in (2, 13):
            raise LaunchError(f"{name} is not in GPU memory", got=type(array).__name__, hint="copy it there, say with cupy.asarray")
        result = cupy.from_dlpack(array)
    else:
        result = cupy.asarray(array)
        if result.size and result.data.ptr != interface["data"][0]:
            raise LaunchError(f"{name} is in the memory of another GPU", hint="run on the GPU that holds the arrays")
    if result.device.id != cupy.cuda.Device().id:
        raise LaunchError(
            f"{name} is on GPU {result.device.id}, the current one is {cupy.cuda.Device().id}", hint="with cupy.cuda.Device(...):"
        )
    return result


def _check_overlap(device: Mapping[str, Any], output: str) -> None:
    start, stop = _extent(device[output])
    for name, array in device.items():
        if name != output:
            low, high = _extent(array)
            if low < stop and start < high:
                raise LaunchError(f"out overlaps {name} in memory", hint="pass another array")


def _extent(array: Any) -> tuple[int, int]:
    span = sum((size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)) + array.itemsize
    return array.data.ptr, array.data.ptr + span


def _allocated(cupy: Any, buffer: Buffer, symbols: Mapping[str, int]) -> Any:
    shape = tuple(evaluated(size, symbols) for size in buffer.tensor.shape)
    flat = cupy.empty(evaluated(buffer.elements, symbols), dtype=buffer.dtype.to_numpy())
    strides = tuple(step * buffer.dtype.bytes for step in element_strides(buffer, symbols))
    return cupy.ndarray(shape, flat.dtype, flat.data, strides)
