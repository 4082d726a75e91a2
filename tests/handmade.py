"""Hand-made kernel IR: the input of a pass, without a strategy and without the preceding passes."""

import making

from fireiron import *
from fireiron.values.expr import TRUE, ZERO, Var, as_expr
from fireiron.values.machine import Kernel as KernelLevel
from fireiron.values.machine import as_architecture
from fireiron.values.tensor import Mode, Tensor

THREAD = Var("thread", 0, 31)


def parameters(spec):
    """The buffers of a kernel's operands."""
    for name, view in spec.operands.items():
        storage = view.tensor.storage()
        yield making.buffer(view.tensor, storage, storage.extent, parameter=True, written=name in spec.outputs)


def local(name, shape, memory, dtype=float32, layout=ColMajor, **fields):
    """A local buffer of the kernel; one in registers stores its elements in the order of `layout`."""
    tensor = Tensor(name, tuple(map(as_expr, shape)), dtype, memory, layout, **fields)
    storage = tensor.storage()
    return making.buffer(tensor, storage, storage.extent, written=True)


def kernel_of(spec, body, *buffers, threads=32, grid=1, target="sm_80", symbols=()):
    """A kernel that performs `spec` by the statements of `body`."""
    spec = spec(KernelLevel)
    everything = (*parameters(spec), *buffers)
    return making.kernel("handmade", as_architecture(target), as_expr(grid), threads, everything, tuple(symbols), tuple(body), spec)


def access(buffer, base, shape=None, bounds=None, write=False):
    """The access to `shape` adjacent elements from `base` on, which are in bounds below `bounds`."""
    shape = shape or (1,) * len(base)
    return making.access(
        buffer,
        tuple(map(as_expr, base)),
        tuple((Mode(as_expr(size), as_expr(1)),) for size in shape),
        tuple(None if bound is None else as_expr(bound) for bound in bounds or (None,) * len(base)),
        write,
        unit_modes=((),) * len(base),
    )


def execution(instruction, spec, *accesses, accumulate=ZERO, active=TRUE, **fields):
    """The statement in which an instruction performs a spec."""
    return making.execution(instruction, spec, accesses, accumulate=as_expr(accumulate), active=active, **fields)
