"""The GPU as an oracle: a compiled kernel is launched between guard zones, and its outputs, its inputs and the zones are checked."""

import functools

import numpy as np
from zones import placed, written_outside

from fireiron.errors import FireironError
from fireiron.gpu import launch
from fireiron.gpu.arguments import keeps_elements, reads_output
from fireiron.gpu.kernel import CompiledKernel, architecture_here
from fireiron.language.strategy import Strategy
from fireiron.spec import sizes_of


class Typed:
    """An array whose library has no name for its element type: 8-bit floats are bytes in CuPy."""

    def __init__(self, array, dtype):
        self.array, self.dtype = array, dtype

    @property
    def __cuda_array_interface__(self):
        typestr = f"|V{self.dtype.itemsize}" if self.array.dtype != self.dtype else self.array.dtype.str
        return {**self.array.__cuda_array_interface__, "typestr": typestr}


def typed(views, arrays):
    """The arrays of a call by name: as they are, or all as `Typed` if the element type of one has no name."""
    dtypes = {name: views[name].dtype.to_numpy() for name in arrays}
    unnamed = any(getattr(array, "dtype", dtypes[name]) != dtypes[name] for name, array in arrays.items())
    wrapped = lambda name, array: Typed(array, dtypes[name]) if unnamed and hasattr(array, "__cuda_array_interface__") else array
    return [wrapped(name, array) for name, array in arrays.items()]


class Device:
    """The GPU: launches between guard zones of a given number of bytes."""

    def __init__(self, zone=1024):
        self.xp, self.zone = launch.require_cupy(), zone

    def compiled(self, strategy: Strategy, options=()):
        """The kernel of a bound strategy for this GPU; None if the project refuses it for this target."""
        try:
            program = strategy.program(architecture_here())
            _ = program.cuda
        except FireironError:
            return None
        return CompiledKernel(program, options).ready()

    def run(self, kernel, arrays, sizes, repeats=1):
        """The outputs of each launch by name, and the errors in the surrounding memory; outputs that are accumulated into or written in part
        are initialized from `arrays`, or to zero.
        """
        spec, xp, wrong, results = kernel.program.spec, self.xp, [], []
        operands = [name for name in spec.inputs if not spec.operands[name].memory.is_coordinate]
        by_value = {name for name in operands if spec.operands[name].memory.by_value}
        given = {
            name: arrays[name] if name in by_value else placed(xp, spec.operands[name], sizes, arrays[name], self.zone)[1]
            for name in operands
        }
        symbols = {one.name: sizes[one.name] for one in sizes_of(spec)}
        adds, parts = reads_output(spec, sizes), keeps_elements(spec)
        for _ in range(repeats):
            zones = {}
            for name in spec.outputs:
                view = spec.operands[name]
                start = arrays.get(name, np.zeros([int(size.evaluate(sizes)) for size in view.tensor.array.shape], view.dtype.to_numpy()))
                zones[name] = placed(xp, view, sizes, start if adds or name in parts else None, self.zone)
            called = typed(spec.operands, given | {name: array for name, (_, array) in zones.items()})
            outs = tuple(called[len(given) :])
            kernel(*called[: len(given)], out=outs[0] if len(outs) == 1 else outs, **symbols)
            results.append({name: array.get().view(spec.operands[name].dtype.to_numpy()) for name, (_, array) in zones.items()})
            wrong += [
                f"{name}: written outside"
                for name, (memory, array) in zones.items()
                if not adds and name not in parts and written_outside(memory.get(), array, self.zone)
            ]
        wrong += [
            f"{name}, an input, was written"
            for name in set(operands) - by_value
            if not np.array_equal(
                given[name].get().view(spec.operands[name].dtype.to_numpy()).astype(np.float64),
                np.asarray(arrays[name], np.float64),
                equal_nan=True,
            )
        ]
        return results, wrong


EVERY = 4
"""One in this many random kernels is compiled for the GPU and launched: compilation dominates the time of a draw."""

PLAIN = ("--ptxas-options=-O0",)
"""Without the optimization of ptxas: a kernel right then and wrong with it shows a defect of the compiler, and is counted by its seed."""


@functools.cache
def here() -> Device | None:
    """The GPU of this process; None if there is none."""
    return Device() if launch.gpu_available() else None
