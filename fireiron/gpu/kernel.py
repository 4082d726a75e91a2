"""Compiled kernels: calls with NumPy arrays run in the simulator, calls with GPU arrays on the GPU."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

import attrs

from fireiron.compiler import Program
from fireiron.display import Displayed
from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu import programs, toolchain
from fireiron.gpu.arguments import (
    as_operand,
    by_position,
    check_apart,
    check_facts,
    check_view,
    element_strides,
    evaluated,
    host_view,
    in_order,
    misaligned,
    new_on_host,
    overlapping,
    returned,
    solve_symbols,
    steps_of,
)
from fireiron.gpu.arrays import library_of, masked, refused
from fireiron.gpu.launch import Launcher, newest_loadable
from fireiron.gpu.prepared import Calls, PreparedLaunch, PreparedLaunches, calls_of, refuse_reading
from fireiron.gpu.sequence import Route, route
from fireiron.ir import Kernel
from fireiron.operators import traced_by_jax, untraced
from fireiron.spec import sizes_of
from fireiron.values.machine import ARCHITECTURES, DType
from fireiron.values.scalars import value_of

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

    from fireiron.check import Findings
    from fireiron.check.resources import Occupancy
    from fireiron.gpu.interface import Callee

    Scalar = float | numpy.number[Any] | numpy.bool_

    class Shaped(Protocol):
        """An array of NumPy, CuPy, PyTorch or JAX, for type checkers."""

        @property
        def shape(self) -> Any: ...


ArrayT = TypeVar("ArrayT", bound="Shaped")

__all__ = [
    "CompiledKernel",
    "PreparedLaunch",
    "PreparedLaunches",
    "UpstreamKernel",
    "architecture_here",
    "check_facts",
    "element_strides",
    "evaluated",
    "solve_symbols",
    "target_for",
]


def _options(owner: Any, field: Any, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(option, str) for option in value):
        raise ArgumentError("compile: options must be a tuple of texts", got=value, legal='("--use_fast_math",)')


@attrs.frozen(eq=False, slots=False)
class CompiledKernel(Displayed):
    """A callable kernel.

    `kernel(a, b)` or `kernel(A=a, B=b)` returns the output, and `kernel(a, b, out=c)` writes it to `c`. Run-time sizes and strides are read
    from the arrays; sizes that no shape determines are keywords. Arrays have the logical shape (`M x K`, ...). More than one output is
    returned as a tuple in the order of the spec's `outputs`; `out` is then a tuple or a mapping by name. `options` are additional options
    of NVRTC.

    If the program has more than one launch, as with `repack`, each call executes all of them in order on the same stream, with new
    temporaries. `compiled`, `resources` and `asm` are those of the last launch.
    """

    program: Program
    options: tuple[str, ...] = attrs.field(default=(), validator=_options)

    @property
    def ir(self) -> Kernel:
        """The final kernel IR."""
        return programs.recalled(self.program).ir

    @functools.cached_property
    def asm(self) -> Mapping[str, Any]:
        """The forms of the code: `"cuda"`, and, computed when needed, `"ptx"`, `"cubin"` and `"sass"` (by nvdisasm or cuobjdump)."""
        return _Asm(self)

    @functools.cached_property
    def compiled(self) -> toolchain.Compiled:
        """The output of NVRTC, from the compile cache or compiled now. It requires no GPU.

        On a machine with a GPU, the NVRTC is not newer than the driver.
        """
        from fireiron.gpu import cache

        text = programs.recalled(self.program).text
        programs.remember(self.program)
        begun, newest = self.program.early, newest_loadable()
        with self.program.timed("nvrtc"):
            if begun is not None and not self.options and (begun.text, begun.newest) == (text, newest):
                return begun.result()
            return cache.compile_cached(text, self.program.architecture.name, options=self.options, newest=newest)

    @property
    def compiler(self) -> toolchain.Toolchain | None:
        """The NVRTC that compiles the kernel; None if no installed NVRTC supports the target."""
        return toolchain.serving(self.program.architecture.name, newest_loadable())

    def begin(self, *others: CompiledKernel) -> None:
        """Lower and check the program; an NVRTC for the target, if installed, compiles the text concurrently.

        All compilations, also those of `others`, begin before the first check.

        Raises: the errors of lowering and of the checks. Errors of NVRTC are raised when the machine code is needed.
        """
        from fireiron.gpu import early

        kernels = (self, *others)
        known = [programs.recalled(kernel.program) for kernel in kernels]
        if self.compiler is None or any(kernel.options for kernel in kernels):
            for program in known:
                _ = program.ir
        else:
            early.prove(*known)

    def ready(self) -> CompiledKernel:
        """Lower, check and print the kernel, and compile it if an NVRTC for the target is installed; return the kernel.

        Raises: the errors of these stages; LaunchError if NVRTC refuses the text or an option.
        """
        for launch in self.route.before:
            launch.kernel.ready()
        self.begin()
        _ = self.program.cuda
        programs.remember(self.program)
        if self.compiler is not None:
            _ = self.compiled
        return self

    @functools.cached_property
    def resources(self) -> toolchain.KernelResources:
        """Registers and spills, as ptxas reports them, and the static and dynamic shared memory of a block."""
        resources = self.compiled.resources[self.ir.name]
        dynamic = self.ir.dynamic_shared_bytes
        return attrs.evolve(resources, shared_bytes=resources.shared_bytes + dynamic, dynamic_shared_bytes=dynamic)

    @property
    def occupancy(self) -> Occupancy:
        """The occupancy, with the registers that the compiler uses."""
        from fireiron.check.resources import occupancy

        return occupancy(self.ir, self.resources.registers)

    @property
    def seconds(self) -> Mapping[str, float]:
        """Wall time of each stage from the strategy to machine code, in seconds. Compiles the kernel if necessary.

        `"nvrtc"` is the time until the machine code is available: milliseconds for a cached kernel (`compiled.cached`; then
        `compiled.seconds` is the original compile time).
        """
        _ = self.compiled
        return dict(self.program.seconds)

    def report(self) -> str:
        """Return registers and shared memory by buffer, with lines of the strategy, spills, and occupancy with its limit.

        For `wgmma` with A operands that stay in registers through a loop, also report whether the compiler overwrites them, if a
        disassembler is installed.

        Raises: LaunchError if the compiler overwrites them.
        """
        from fireiron.check.ptxas_register_hazard import holds_operand_in_registers
        from fireiron.check.resources import Measured, report
        from fireiron.gpu.sass_register_check import registers_intact

        resources = self.resources
        text = report(self.ir, Measured(resources.registers, resources.spill_stores, resources.spill_loads, resources.stack_frame))
        return f"{text}\n{registers_intact(self.asm['cubin'])}" if holds_operand_in_registers(self.ir) else text

    def check(self) -> Findings:
        """Return all findings, errors first, then warnings: what `fireiron check` prints about a strategy.

        They are the findings of the checks about all launches, refinements without effect, idle units, slow copies, and long sums in a
        16-bit type. Requires no GPU.
        """
        from fireiron.inspect.findings import findings

        return findings(self.program)

    @property
    def proof(self) -> str:
        """A line that states whether the independent checks passed in this process, or when the cached program was generated."""
        return programs.recalled(self.program).proof

    def __repr__(self) -> str:
        chosen = "".join(f", {name}={value}" for name, value in self.program.chosen.items())
        return f"<kernel {self.program.name} of {self.program.spec} for {self.program.architecture}{chosen}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return CompiledKernel, (self.program, self.options)

    @property
    def block(self) -> int:
        """The number of threads of a block."""
        return self.ir.threads

    def grid(self, **sizes: int) -> int:
        """Return the number of blocks for run-time sizes. Raises: `ArgumentError` if a size is missing."""
        missing = [var.name for var in sizes_of(self.program.spec) if var.name not in sizes]
        if missing:
            raise ArgumentError(f"the grid depends on {', '.join(missing)}", hint=f"kernel.grid({missing[0]}=..., ...)")
        symbols = solve_symbols(self.program.inner, {}, self.route.own(sizes) if self.route.before else sizes)
        check_facts(self.ir, symbols)
        return evaluated(self.ir.grid, symbols)

    def as_torch_op(self, name: str, into: bool = False, gradient: Callee | None = None) -> Any:
        """Register the kernel as a PyTorch operator, `torch.ops.NAMESPACE.NAME`, which `torch.compile` and `torch.export` do not change.

        It takes tensors and numbers in the order of the inputs, then sizes that no tensor determines. It returns the output, or a
        tuple of all outputs. It launches on the current stream, so CUDA graphs capture it. Without `gradient` it has no gradient;
        `torch.library.register_autograd(name, ...)` adds one, too. A second registration of a name replaces the first.

        Args:
            name: `"mine::gemm"`.
            into: take the outputs as the last arguments, fill or accumulate into them, and return nothing.
            gradient: a compiled kernel or kernel graph that computes gradients. It reads inputs and outputs of this kernel by their names,
                and `dY`, the gradient of the output `Y`. It writes `dX` for inputs `X`. It becomes the operator `NAME_backward`.

        Raises: ArgumentError if `name` is not the name of an operator, the kernel accumulates into its output and `into` is False, or the
            gradient has other arguments or results.
        """
        from fireiron.gpu.torch_operator import operator_of

        return operator_of(self, name, into, gradient)

    def as_jax_function(self, gradient: Callee) -> Callable[..., Any]:
        """Return the kernel as a function of JAX with a gradient, `jax.custom_vjp`.

        It takes arrays and numbers in the order of the inputs, and returns the output, or a tuple of all outputs. In a program that JAX
        traces, the forward and the backward pass are custom calls. Numbers that are passed by value are Python numbers.

        Args:
            gradient: a compiled kernel or kernel graph that computes gradients, with the names of `as_torch_op`: it reads inputs and
                outputs of this kernel, and `dY`, the gradient of the output `Y`. It writes `dX` for inputs `X`.

        Raises: ArgumentError if the kernel accumulates into its output, or the gradient has other arguments or results. A call raises it if
            JAX requires a gradient that is not written.
        """
        from fireiron.gpu.jax_function import function_of

        return function_of(self, gradient)

    @property
    def scalars(self) -> Mapping[str, DType]:
        """The inputs that are numbers passed by value, with their types."""
        return {name: view.dtype for name, view in self.program.spec.operands.items() if view.memory.by_value}

    @overload
    def __call__(self, *, out: None = None, **sizes: int) -> NDArray[Any]: ...

    @overload
    def __call__(
        self, *arrays: ArrayT | Scalar, out: tuple[ArrayT, ...] | Mapping[str, ArrayT], stream: object = None, **named: ArrayT | Scalar
    ) -> tuple[ArrayT, ...]: ...

    @overload
    def __call__(self, *arrays: ArrayT | Scalar, out: ArrayT | None = None, stream: object = None, **named: ArrayT | Scalar) -> ArrayT: ...

    @untraced("torch.compile cannot trace fireiron's kernels: op = kernel.as_torch_op('mine::gemm'), and call op")
    def __call__(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: Any) -> Any:
        """Run on the arrays of the inputs; see the class.

        Raises:
            ArgumentError: the arrays are too many, too few, in different places, or their shapes do not fit the spec.
            LaunchError: the type, layout or alignment of an array differs from that of the kernel's parameter, or an output overlaps an
                input or another output; the same for NumPy and GPU arrays.
            SimulationError: the simulator detected a race, an access out of bounds or uninitialized data.
        """
        if sizes:
            arrays, sizes = by_position(self.program.spec, arrays, sizes)
        if traced_by_jax(*arrays):
            from fireiron.gpu.jax_calls import traced_call

            return traced_call(self, arrays, out, stream, sizes)
        if self.route.before:
            arrays, out, sizes = self._up_to_last(arrays, out, stream, sizes)
        done = self._calls(arrays, out, stream, sizes)
        if done is not None:
            return done
        self._check_on_host(arrays, out)
        if stream is not None:
            raise ArgumentError(
                "stream= requires arrays on a GPU", got="NumPy arrays", hint="remove stream=, because the simulator is synchronous"
            )
        given = dict(zip(self._calls.inputs, arrays, strict=True))
        given |= {name: value_of(name, given[name], dtype, name in self._calls.positive) for name, dtype in self._calls.scalars.values()}
        return self._simulated(given, out, sizes)

    @functools.cached_property
    def route(self) -> Route:
        """The launches before the last one, and the data passed between launches."""
        program = programs.recalled(self.program)
        return route(program, [UpstreamKernel(launch.program, self.options) for launch in program.preceding])

    def _up_to_last(
        self, arrays: tuple[Any, ...], out: Any, stream: Any, sizes: Mapping[str, int]
    ) -> tuple[tuple[Any, ...], Any, dict[str, int]]:
        """Execute all launches except the last one, and return the arguments of the last one."""
        path = self.route
        outs = None if out is None or not path.writes else in_order(self.program.spec, out)
        call_arrays = path.run(arrays, outs, stream, sizes)
        return path.last(call_arrays), path.filled(call_arrays) if path.writes else out, path.own(sizes)

    def prepare(self, *arrays: Any, out: Any = None, stream: Any = None, **sizes: int) -> PreparedLaunch | PreparedLaunches:
        """Check and load a launch once, so that each `prepared()` has minimal overhead.

        Without `out`, an output is allocated once. `stream` is used only for this allocation.

        Raises:
            ArgumentError: an argument is wrong, or is in host memory.
            LaunchError: the arrays do not fit the kernel, or there is no GPU.
        """
        arrays, sizes = by_position(self.program.spec, arrays, sizes)
        if self.route.before:
            return self._prepared_in_order(arrays, out, stream, sizes)
        calls = self._calls
        given = arrays if out is None else (*arrays, *in_order(calls.spec, out))
        if len(arrays) != len(calls.inputs) or calls.read(given, calls.names[: len(given)]) is None:
            self._check_on_host(arrays, out)
            raise ArgumentError(
                "a prepared launch requires arrays on a GPU", got="NumPy arrays", hint="call the kernel, which runs in the simulator"
            )
        return PreparedLaunch(calls, arrays, out, stream, sizes)

    def _prepared_in_order(self, arrays: tuple[Any, ...], out: Any, stream: Any, sizes: Mapping[str, int]) -> PreparedLaunches:
        """Prepare all launches. Launches that only write temporaries run once."""
        path = self.route
        path.require_prepared(arrays)
        call_arrays = path.call_arrays(arrays, None if out is None else in_order(self.program.spec, out))
        before: list[PreparedLaunch] = []
        for launch in path.before:
            given = tuple(call_arrays[place] for place in launch.takes)
            own = {name: value for name, value in sizes.items() if name in launch.sizes}
            before.append(PreparedLaunch(launch.kernel._calls, given, launch.filled(call_arrays), stream, own))
            launch.store(call_arrays, before[-1].out if path.writes else before[-1](stream=stream))
        filled = path.filled(call_arrays) if path.writes else out
        last = PreparedLaunch(self._calls, path.last(call_arrays), filled, stream, path.own(sizes))
        return PreparedLaunches(path, before, last, call_arrays)

    def _check_on_host(self, arrays: tuple[Any, ...], out: Any) -> None:
        """Refuse arrays other than NumPy arrays: the arrays are not all on a GPU, so the call runs in the simulator."""
        import numpy

        inputs = self._calls.inputs
        if len(arrays) != len(inputs):
            raise ArgumentError(f"{len(arrays)} arrays given, {self.program.spec.title} reads {len(inputs)}", legal=inputs)
        given = zip(self._calls.names, arrays if out is None else (*arrays, *in_order(self._calls.spec, out)))
        passed = {name: one for place, (name, one) in enumerate(given) if place not in self._calls.scalars}
        on_host = [name for name, array in passed.items() if isinstance(array, numpy.ndarray)]
        for name, array in passed.items():
            if name not in on_host and library_of(type(array)) is None:
                raise refused(name, array)
            if isinstance(array, numpy.ma.MaskedArray):
                raise masked(name)
        if len(on_host) < len(passed):
            others = ", ".join(name for name in passed if name not in on_host)
            raise ArgumentError(
                f"{on_host[0]} is a NumPy array, {others} not", hint="all arrays on the GPU, or all NumPy for the simulator"
            )

    def completed(self, arrays: tuple[Any, ...], outs: tuple[Any, ...], stream: Any, sizes: Mapping[str, int]) -> tuple[Any, ...]:
        """Return all outputs of a call with these arrays: the given ones, and new ones for None. Launch nothing.

        Raises: ArgumentError for a program of several launches, whose kernels may read other arrays.
        """
        if self.route.before:
            raise ArgumentError(
                f"{self.program.name} has several launches: its outputs are either all given or all new", hint="remove out="
            )
        new = self._calls.missing(arrays, outs, stream, sizes)
        if new is None:
            self._check_on_host(arrays, None)
            shapes = {name: array.shape for name, array in zip(self._calls.inputs, arrays, strict=True) if hasattr(array, "shape")}
            symbols = solve_symbols(self.program.spec, shapes, sizes)
            absent = [name for name, out in zip(self.program.spec.outputs, outs, strict=True) if out is None]
            new = tuple(new_on_host(self.ir.buffer(name), symbols) for name in absent)
        rest = iter(new)
        return tuple(next(rest) if out is None else out for out in outs)

    # ------------------------------------------------------------------------------------------ the simulator

    def _simulated(self, given: dict[str, Any], out: Any, sizes: Mapping[str, int]) -> Any:
        from fireiron.sim import simulate

        spec = self.program.inner
        outs = {} if out is None else dict(zip(spec.outputs, in_order(spec, out), strict=True))
        steps = steps_of({name: host_view(array) for name, array in (given | outs).items() if hasattr(array, "strides")})
        symbols = solve_symbols(spec, {name: array.shape for name, array in given.items()}, sizes, steps)
        if out is None:
            refuse_reading(spec, symbols)
        check_facts(self.ir, symbols)
        self._check_arrays({**given, **outs}, symbols)
        logical = {name: as_operand(self.ir.buffer(name), array, symbols) for name, array in (given | outs).items()}
        results = simulate(self.ir, logical, symbols).outputs
        filled = outs or {name: new_on_host(self.ir.buffer(name), symbols) for name in spec.outputs}
        for name, array in filled.items():
            array[...] = results[name].reshape(array.shape)
        return returned(tuple(filled.values()))

    def _check_arrays(self, given: Mapping[str, Any], symbols: Mapping[str, int]) -> None:
        """Check NumPy arrays like arrays on a GPU: a simulated call must also run there. `given` are inputs, then outputs."""
        import numpy

        spec = self.program.inner
        named = {operand: name for operand, name in zip((*spec.inputs, *spec.outputs), self._calls.names, strict=True) if operand in given}
        for operand in spec.outputs:
            if operand in given and not given[operand].flags.writeable:
                raise LaunchError(f"{named[operand]} is read-only", hint="remove out=, or pass a writable array")
        for operand, name in named.items():
            buffer, array = self.ir.buffer(operand), given[operand]
            check_view(name, buffer, host_view(array), symbols, spec)
            if operand in spec.outputs:
                check_apart(name, host_view(array))
            if array.ctypes.data % buffer.tensor.align and not buffer.memory.by_value:
                raise misaligned(name, buffer, array.ctypes.data)
        for first, second in itertools.combinations(named, 2):
            if second in spec.outputs and numpy.shares_memory(given[first], given[second]):
                raise overlapping(named[second], named[first])

    # ------------------------------------------------------------------------------------------ the GPU

    @functools.cached_property
    def _calls(self) -> Calls:
        return calls_of(self.ir, self._load)

    @property
    def launcher(self) -> Launcher:
        """The kernel, loaded on the current GPU."""
        from fireiron.gpu import launch

        return self._calls.launcher(launch.require_cupy().cuda.Device().id)

    def _load(self) -> Launcher:
        """Load the kernel on the current GPU."""
        from fireiron.gpu import launch

        target, device = self.program.architecture.name, launch.device_arch()
        if not _runs_on(target, device):
            raise LaunchError(f"the kernel is compiled for {target}, the GPU is {device}", hint=f'compile("{device}")')
        cluster = 1 if self.ir.cluster is None else self.ir.cluster.blocks
        loaded = launch.load(self.compiled.cubin, self.ir.name, self.ir.dynamic_shared_bytes, cluster)
        if self.ir.awaits_copies:
            self._require_resident(loaded, launch.multiprocessors(), cluster)
        return loaded

    def _require_resident(self, loaded: Launcher, multiprocessors: int, cluster: int) -> None:
        """Refuse a grid that is not resident at once, if blocks wait for copies by other blocks.

        Clusters need SMs of one part of the GPU, so the driver reports how many are resident.
        """
        blocks, resident = evaluated(self.ir.grid, {}), self.occupancy.blocks * multiprocessors
        if cluster > 1:
            resident = loaded.resident_clusters(blocks, self.ir.threads) * cluster
        if blocks > resident:
            raise LaunchError(
                f"{self.ir.name}: blocks wait for copies by other blocks, so all must be resident at once", got=f"{blocks} blocks",
                legal=f"at most {resident} on this GPU", hint=f"persistent({resident}) on the tile of blocks, or without overlap(...)",
            )  # fmt: skip


class UpstreamKernel(CompiledKernel):
    """A kernel whose outputs only later launches read: that of a launch before the last one, or of a kernel graph."""

    def exchange_by(self, address: int, symbols: Mapping[str, int]) -> None:
        """Exchange data with other GPUs by workspaces at an address; `symbols` has the number of this GPU."""
        self._calls.exchange_by(address, symbols)

    @functools.cached_property
    def _calls(self) -> Calls:
        return calls_of(self.ir, self._load, between=True)


class _Asm(dict[str, Any]):
    def __init__(self, kernel: CompiledKernel) -> None:
        super().__init__(cuda=kernel.program.cuda)
        self.kernel = kernel

    def __missing__(self, key: str) -> Any:
        if key not in ("ptx", "cubin", "sass"):
            raise ArgumentError(f"asm[{key!r}]: the kernel has no such form", legal=["cuda", "ptx", "cubin", "sass"])
        if key == "sass":
            from fireiron.gpu.disassembly import sass

            self["sass"] = sass(self["cubin"])
        else:
            self["ptx"], self["cubin"] = self.kernel.compiled.ptx, self.kernel.compiled.cubin
        return self[key]


def architecture_here() -> str | None:
    """Return the best target of the current GPU, the default target; None without a GPU.

    Raises:
        LaunchError: this package does not support the generation of the GPU.
    """
    from fireiron.gpu import launch

    device = launch.visible_arch()
    return None if device is None else target_for(device)


def target_for(device: str) -> str:
    """Return the best target of a GPU of architecture `device`: the same architecture, or the nearest lower one that the GPU runs.

    If a capability has two targets, the architecture-specific one is chosen, because it has more instructions: `"sm_90a"` for an H100
    or H200, whose architecture is `"sm_90"`.

    Raises:
        LaunchError: this package does not support the generation of the GPU.
    """
    served = [architecture for architecture in ARCHITECTURES if _runs_on(architecture.name, device)]
    if not served:
        raise LaunchError(f"the GPU is {device}, which is not supported", legal=[architecture.name for architecture in ARCHITECTURES])
    return max(served, key=lambda architecture: (architecture.capability, architecture.name)).name


def _capability(name: str) -> str:
    return name.rstrip("a")


def _runs_on(target: str, device: str) -> bool:
    """Return whether the GPU runs a cubin: same major capability, same or higher minor; with suffix `a` exactly this capability."""
    code, gpu = int(_capability(target)[3:]), int(_capability(device)[3:])
    return code == gpu if target.endswith("a") else code // 10 == gpu // 10 and code <= gpu
