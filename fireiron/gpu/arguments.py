"""Check the arguments of a call against the kernel: sizes, element types, strides, alignment, overlap."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from fireiron.errors import ArgumentError, FireironError, LaunchError, shown
from fireiron.gpu.arrays import NO_DEVICE, ArrayView
from fireiron.ir import Buffer, Kernel
from fireiron.spec import Spec, symbols_of, with_strides
from fireiron.specs.fused import fused, scattered_outputs
from fireiron.values.expr import Expr, Var, as_expr
from fireiron.values.layout import Layout
from fireiron.values.machine import DTYPES, DType
from fireiron.values.strides import addresses_are_distinct, symbolic_strides
from fireiron.values.tensor import MatrixLayout, Tensor


def overlapping(output: str, other: str) -> LaunchError:
    """Return the error of an output that shares memory with another array."""
    hint = "pass another array and exchange the two after the call: other threads may read elements after they are written"
    return LaunchError(f"{output} overlaps {other} in memory, but kernels make no updates in place", hint=hint)


def output_names(spec: Spec) -> tuple[str, ...]:
    """Return the names of the outputs in messages: `out` for a single output, otherwise the names of the operands."""
    return ("out",) if len(spec.outputs) == 1 else spec.outputs


def in_order(spec: Spec, given: Any, what: str = "out") -> tuple[Any, ...]:
    """Return the outputs in the order of the spec. `given` is the only output, or a tuple or a mapping by name of several outputs.

    Raises: ArgumentError if the number or the names of the outputs differ.
    """
    names = spec.outputs
    if len(names) == 1:
        return (given,)
    legal = f"a tuple ({', '.join(names)}), or a mapping by name"
    if isinstance(given, Mapping):
        unknown, missing = [name for name in given if name not in names], [name for name in names if name not in given]
        if unknown:
            raise ArgumentError(f"{what}: {spec.title} has no output {unknown[0]!r}", legal=names)
        if missing:
            raise ArgumentError(f"{what}: {', '.join(missing)} missing", legal=legal)
        return tuple(given[name] for name in names)
    if not isinstance(given, (tuple, list)):
        raise ArgumentError(f"{what}: {spec.title} has {len(names)} outputs", got=type(given).__name__, legal=legal)
    if len(given) != len(names):
        raise ArgumentError(f"{what}: {len(given)} arrays are given, but {spec.title} has {len(names)} outputs", legal=legal)
    return tuple(given)


def returned(arrays: tuple[Any, ...]) -> Any:
    """Return the result of a call: the only output, or a tuple of several outputs."""
    return arrays[0] if len(arrays) == 1 else arrays


def reads_output(spec: Spec, symbols: Mapping[str, int]) -> bool:
    """Return whether the kernel accumulates into the output."""
    return spec.atomic or bool(spec.accumulate.evaluate(symbols))


def evaluated(value: Expr, symbols: Mapping[str, int]) -> int:
    """Evaluate an expression of sizes to an integer."""
    return int(value.evaluate(symbols))


def keeps_elements(spec: Spec) -> tuple[str, ...]:
    """Return the outputs of which the kernel leaves some elements unchanged: it writes those that a table names."""
    return scattered_outputs(spec)


Steps = Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
"""Shapes and strides of arrays, in elements, by operand."""


def array_shape(spec: Spec, name: str) -> tuple[Expr, ...]:
    """Return the shape of an operand's array. In a program of several launches, the operand of a launch may be a part of the array."""
    view = spec.operands[name]
    if view.tensor.through is not None:
        return view.tensor.array.shape
    if is_divided(view.tensor):
        return tuple(size for dim in range(len(view.dims)) for size, _ in _leaves(view.tensor, view.axis(dim)))
    return tuple(map(view.extent, range(len(view.dims))))


def is_divided(tensor: Tensor) -> bool:
    """Whether a dimension of a tensor has several strides: its array has one dimension for each of them, the slowest first."""
    return tensor.through is None and isinstance(tensor.layout, Layout) and len(tensor.layout.leaves) > len(tensor.shape)


def _leaves(tensor: Tensor, dim: int) -> tuple[tuple[Expr, Expr], ...]:
    """Return sizes and strides of the dimensions of an array that are one dimension of a tensor, the slowest first."""
    mode = list(tensor.storage().layout)[dim]
    return tuple((as_expr(size), as_expr(stride)) for size, stride in reversed(mode.leaves))


def _array_dims(spec: Spec, name: str) -> tuple[str, ...]:
    return spec.kind.array_dims(spec.definition, name)


def solve_symbols(spec: Spec, shapes: Mapping[str, Any], given: Mapping[str, int], steps: Steps | None = None) -> dict[str, int]:
    """Return the run-time sizes, and the strides in elements, from keywords and from the shapes and strides of arrays.

    A new output is contiguous, so its strides follow from its shape.
    Raises: ArgumentError if a size is unknown, has two different values, or violates the bounds of its symbol. LaunchError if a stride
        violates the bounds of its symbol.
    """
    known: dict[str, int] = {}
    symbols = {var.name: var for var in symbols_of(spec)}
    for name, value in given.items():
        if name not in symbols:
            raise ArgumentError(
                f"{name}={shown(value)}: the kernel has no such size", legal=symbols or "none", hint=", ".join(_calls_of(spec))
            )
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"{name}={shown(value)}: must be an integer")
        known[name] = value
    for name, shape in shapes.items():
        extents = array_shape(spec, name)
        if len(shape) != len(extents):
            order = f"the arguments in this order: {', '.join(spec.inputs)}"
            raise ArgumentError(f"{name} has {len(shape)} dimension{'s' * (len(shape) != 1)}, the kernel reads {len(extents)}", hint=order)
        for size, extent in zip(shape, extents, strict=True):
            if extent in symbols.values():
                known.setdefault(str(extent), size)
    _solve_strides(spec, symbols, known, steps or {})
    missing = [name for name in symbols if name not in known]
    if missing:
        raise ArgumentError(f"no shape determines {', '.join(missing)}", hint=f"kernel(..., {missing[0]}=...)")
    for name, value in known.items():
        var = symbols[name]
        if not var.low <= value <= var.high or value % var.multiple_of:
            raise ArgumentError(
                f"{name}={value} is not legal for this kernel", legal=f"{var.low} <= {name} <= {var.high}, a multiple of {var.multiple_of}"
            )
    for name, shape in shapes.items():
        expected = tuple(evaluated(size, known) for size in array_shape(spec, name))
        if tuple(shape) != expected:
            shape_of = {other: tuple(evaluated(size, known) for size in array_shape(spec, other)) for other in shapes}
            swapped = next((one for one in shapes if one != name and (tuple(shapes[one]), shape_of[one]) == (expected, tuple(shape))), None)
            hint = f"exchange {name} and {swapped}" if swapped else "a kernel for these sizes, or for sizes of run time: sym('M')"
            raise ArgumentError(f"{name} has the shape {tuple(shape)}, the kernel was made for {expected}", hint=hint)
    return known


def _solve_strides(spec: Spec, symbols: Mapping[str, Var], known: dict[str, int], steps: Steps) -> None:
    """Add symbolic strides to the known sizes: first those of the given arrays, then those of new arrays."""
    for name, (shape, given) in steps.items():
        if is_divided(spec.operands[name].tensor):
            continue  # its strides are numbers
        for symbol, stride, dim in symbolic_strides(spec.operands[name].tensor.array.storage(), shape, given):
            if symbol not in known:
                _check_stride(symbols[symbol], stride, name, _array_dims(spec, name)[dim])
                known[symbol] = stride
    known.update(with_strides(spec, known))


def _check_stride(symbol: Var, stride: int, operand: str, dim: str) -> None:
    """Refuse a stride that does not fit the kernel's parameter, or that violates the kernel's assumptions."""
    if symbol.low <= stride <= symbol.high and stride % symbol.multiple_of == 0:
        return
    hint = "pass a copy"
    if stride < 0:
        hint = "this is a reversed view, and kernels need strides of at least 0: pass a copy"
    elif stride > symbol.high:
        hint = "bound the kernel's sizes: a stride is a parameter of 32 bits"
    elif stride == 0:
        hint = "this is a broadcast view: make the spec with a stride of 0 or ANY, or pass a copy"
    elif symbol.multiple_of > 1:
        hint = "pass a copy, or make the spec with fewer multiples: it takes narrower vectors then"
    legal = f"{symbol.low} ... {symbol.high}" + (f", multiples of {symbol.multiple_of}" if symbol.multiple_of > 1 else "")
    raise LaunchError(
        f"{operand} has a stride along {dim}, in elements, that the kernel does not support", got=stride, legal=legal, hint=hint
    )


def by_position(spec: Spec, arrays: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, int]]:
    """Return the inputs in the order of the spec, and the sizes, from arrays by position and keyword arguments.

    Raises: ArgumentError for an input that is given twice or missing, and for other keyword arguments that are not sizes.
    """
    own = {name for name in spec.inputs if name in named} - {var.name for var in symbols_of(spec)}
    sizes = {name: value for name, value in named.items() if name not in own}
    require_sizes(spec, sizes)
    if not own:
        return arrays, sizes
    twice = [name for name in spec.inputs[: len(arrays)] if name in own]
    missing = [name for name in spec.inputs[len(arrays) :] if name not in own]
    if twice or missing:
        what = f"{', '.join(twice)}: given by position and by name" if twice else f"{', '.join(missing)}: missing"
        raise ArgumentError(what, got=f"{len(arrays)} by position, by name {', '.join(sorted(own))}", legal=", ".join(_calls_of(spec)))
    return (*arrays, *(named[name] for name in spec.inputs[len(arrays) :])), sizes


def require_sizes(spec: Spec, given: Mapping[str, Any]) -> None:
    """Refuse keyword arguments that are not integers: only sizes are passed by these names."""
    others = {name: value for name, value in given.items() if not isinstance(value, numbers.Integral)}
    if not others:
        return
    operands, known = {name.upper() for name in spec.operands}, {var.name for var in symbols_of(spec)}
    arrays = [name for name, value in others.items() if name.upper() in operands or hasattr(value, "shape")]
    if arrays:
        raise ArgumentError(f"{', '.join(arrays)}: no input has this name", legal=list(spec.inputs), hint=", ".join(_calls_of(spec)))
    name, value = next(iter(others.items()))
    if name in known:
        raise ArgumentError(f"{name}={shown(value)}: must be an integer")
    legal = [*_calls_of(spec), "stream=...", *(f"{size}=..." for size in known)]
    raise ArgumentError(f"{name}: the kernel takes no such argument", got=value, legal=", ".join(legal))


def _calls_of(spec: Spec) -> tuple[str, str]:
    """Return the text of a call without and with outputs, for hints."""
    inputs, outputs = [name.lower() for name in spec.inputs], ", ".join(name.lower() for name in spec.outputs)
    filled = f"out={outputs}" if len(spec.outputs) == 1 else f"out=({outputs})"
    return f"kernel({', '.join(inputs)})", f"kernel({', '.join([*inputs, filled])})"


def steps_of(views: Mapping[str, ArrayView]) -> Steps:
    """Return shapes and strides of arrays in elements. Strides are rounded down; `check_view` refuses strides of partial elements."""
    return {name: (view.shape, tuple(stride // view.itemsize for stride in view.strides)) for name, view in views.items()}


def check_apart(name: str, view: ArrayView) -> None:
    """Refuse an output whose elements share memory: threads would overwrite each other's results."""
    if not addresses_are_distinct(view.shape, view.strides):
        hint = "pass an array without broadcast dimensions or overlapping windows"
        raise LaunchError(f"{name}: its elements overlap in memory", got=f"shape {view.shape}, strides {view.strides} bytes", hint=hint)


def check_facts(kernel: Kernel, symbols: Mapping[str, int]) -> None:
    """Check the conditions on sizes for which the kernel was generated. A `LaunchError` names the first violated condition."""
    for text, condition in kernel.facts:
        if not condition.evaluate(symbols):
            raise LaunchError(f"the kernel does not support these sizes: {text} ({condition})", got=dict(symbols))


def element_strides(buffer: Buffer, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Return the strides of a parameter in elements."""
    if is_divided(buffer.array):
        return tuple(evaluated(step, symbols) for dim in range(len(buffer.array.shape)) for _, step in _leaves(buffer.array, dim))
    return tuple(evaluated(step, symbols) for step in buffer.array_storage.steps if step is not None)


def byte_strides(buffer: Buffer, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Return the strides of a parameter in bytes."""
    return tuple(step * buffer.dtype.bytes for step in element_strides(buffer, symbols))


def buffer_shape(buffer: Buffer, symbols: Mapping[str, int]) -> tuple[int, ...]:
    """Return the shape of a parameter."""
    if is_divided(buffer.array):
        return tuple(evaluated(size, symbols) for dim in range(len(buffer.array.shape)) for size, _ in _leaves(buffer.array, dim))
    return tuple(evaluated(size, symbols) for size in buffer.array.shape)


def check_view(name: str, buffer: Buffer, view: ArrayView, symbols: Mapping[str, int], spec: Spec) -> None:
    """Check the type, shape and strides of an array, called `name` in messages.

    Raises: LaunchError if one of them differs from that of the kernel's parameter.
    """
    if view.dtype not in types_of(buffer):
        raise LaunchError(
            f"{name} has elements of another type than the kernel was made for",
            got=view.dtype, legal=" ".join(types_of(buffer)), hint=_hint_on_type(view.dtype, buffer, spec),
        )  # fmt: skip
    shape = buffer_shape(buffer, symbols)
    if view.shape != shape:
        raise LaunchError(f"{name} does not have the shape that the kernel expects", got=view.shape, legal=str(shape))
    expected = byte_strides(buffer, symbols)
    differs = [dim for dim in range(len(shape)) if shape[dim] > 1 and view.strides[dim] != expected[dim]]
    if differs:
        raise LaunchError(
            f"{name} has other strides than the kernel was made for ({buffer.array.layout}), in bytes",
            got=view.strides,
            legal=str(expected),
            hint=_hint_on_strides(buffer, spec, view, [view.strides[dim] for dim in differs], expected),
        )


def types_of(buffer: Buffer) -> tuple[str, ...]:
    """Return the legal element types of a parameter's array, by NumPy's names: an input may have any type with the same storage."""
    return (buffer.dtype.numpy, *(() if buffer.written else buffer.dtype.numpy_aliases))


def _hint_on_type(given: str, buffer: Buffer, spec: Spec) -> str:
    """Return the hint for a wrong element type: the spec with this type if kernels exist for it, or a conversion."""
    match = next((dtype for dtype in DTYPES if given in (dtype.numpy, *dtype.numpy_aliases)), None)
    if match == buffer.dtype:  # an output of a type that only inputs may have
        return f"pass an array of {buffer.dtype.numpy}"
    if match is None:
        return f"convert it to one of {' '.join(dict.fromkeys(dtype.numpy for dtype in DTYPES))}"
    if fused(spec):
        word = f"types={{{buffer.name!r}: {match}}}"
    elif buffer.name in spec.outputs and spec.inputs:
        word = f"{buffer.name.lower()}_dtype={match}"
    else:
        word = f"dtype={match}"
    if not _is_legal(match, buffer, spec):
        return f"convert the array to {buffer.dtype.numpy}: {spec.title} takes no {match}"
    return f"make the spec with {word}, or convert the array"


def _is_legal(dtype: DType, buffer: Buffer, spec: Spec) -> bool:
    """Whether the operand of a buffer may have another type in a spec of this kind."""
    views = {name: view for name, view in spec.operands.items() if view.tensor.name == buffer.name}
    changed = {name: attrs.evolve(view, tensor=attrs.evolve(view.tensor, dtype=dtype)) for name, view in views.items()}
    try:
        changed_spec = spec.at_level(spec.level, **changed)
        changed_spec.kind.check_integers(changed_spec)
    except FireironError:
        return False
    return True


_REORDERED = {
    "col": ("RowMajor", "numpy.asfortranarray(x), cupy.asfortranarray(x), or x.T.contiguous().T of PyTorch"),
    "row": ("ColMajor", "numpy.ascontiguousarray(x), cupy.ascontiguousarray(x), or x.contiguous() of PyTorch"),
}
"""By the storage order that a kernel requires: the layout of the other order, and the functions that convert an array to this order."""


def _hint_on_strides(buffer: Buffer, spec: Spec, view: ArrayView, differing: Sequence[int], expected: tuple[int, ...]) -> str:
    if 0 in differing:
        return f"this is a broadcast view: make the spec with {_by_dim(buffer, spec)}, or pass a copy"
    if min(differing) < 0:
        return "this is a reversed view: pass a copy"
    if not isinstance(buffer.array.layout, MatrixLayout):
        return f"make the spec with {_by_dim(buffer, spec)}, or pass an array of these strides"
    other, how = _REORDERED[buffer.array.layout.order]
    if view.itemsize in view.strides and view.strides.index(view.itemsize) != expected.index(view.itemsize):
        return f"make the spec with {buffer.name}={other}, or pass an array of its layout: {how}"
    orders = f"{buffer.name}=RowMajor(ld=...), ColMajor(ld=...) or {_by_dim(buffer, spec).partition('=')[2]}"
    return f"make the spec with {orders}, or pass an array of its layout: {how}"


def _by_dim(buffer: Buffer, spec: Spec) -> str:
    """Return the text of a spec whose operand may have any strides."""
    return f"{buffer.name}=Strides({', '.join(f'{dim}=ANY' for dim in _array_dims(spec, buffer.name))})"


def host_view(array: Any) -> ArrayView:
    """Return the view of a NumPy array; it has no device."""
    return ArrayView(array.shape, array.strides, str(array.dtype), array.dtype.itemsize, NO_DEVICE, not array.flags.writeable)


def new_on_host(buffer: Buffer, symbols: Mapping[str, int]) -> Any:
    """Allocate a NumPy array for a parameter, with the parameter's layout."""
    import numpy

    shape, strides = buffer_shape(buffer, symbols), byte_strides(buffer, symbols)
    size = sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + buffer.dtype.bytes
    return numpy.ndarray(shape, buffer.dtype.to_numpy(), numpy.empty(size, numpy.uint8), 0, strides)


def as_operand(buffer: Buffer, array: Any, symbols: Mapping[str, int]) -> Any:
    """Return a NumPy array in the shape of the operand, if a dimension has several strides; else, and a number, unchanged."""
    if not is_divided(buffer.array):
        return array
    return array.reshape([evaluated(size, symbols) for size in buffer.array.shape])


def as_stored(tensor: Tensor, array: Any, sizes: Mapping[str, int]) -> Any:
    """Store a NumPy array in the layout of a parameter. Elements at the same address (a stride of 0) get the value of the last one.

    Raises: an `ArgumentError` if the parameter's storage is too small.
    """
    import numpy

    tensor = tensor.array
    steps = [evaluated(step, sizes) for step in tensor.storage().steps if step is not None]
    if None in tensor.storage().steps or addresses_are_distinct(array.shape, steps):
        return array
    extent = evaluated(tensor.storage().extent, sizes)
    require_room(tensor.name, array.shape, steps, extent)
    flat = numpy.empty(extent, array.dtype)
    stored = numpy.lib.stride_tricks.as_strided(flat, array.shape, [step * flat.itemsize for step in steps])
    stored[...] = array
    return stored


def require_room(name: str, shape: Sequence[int], steps: Sequence[int], extent: int) -> None:
    """Refuse elements past the end of a parameter's storage: rows longer than its leading dimension."""
    needed = 1 + sum(step * (size - 1) for size, step in zip(shape, steps, strict=True)) if 0 not in shape else 0
    if needed > extent:
        raise ArgumentError(
            f"{name}: {' x '.join(map(str, shape))} elements with strides of {', '.join(map(str, steps))} need {needed} elements",
            legal=f"at most {extent}, the size of its storage",
            hint="use smaller sizes, or a larger leading dimension",
        )


def misaligned(name: str, buffer: Buffer, address: int) -> LaunchError:
    """Return the error for a misaligned address."""
    asked = f"{name} starts at an address that is not a multiple of {buffer.tensor.align} bytes"
    got = f"{address:#x}, {address % buffer.tensor.align} bytes after a multiple"
    here = address & -address
    other = f", or make the spec with {buffer.name}=Strides(...).aligned({here})" if here >= buffer.dtype.bytes else ""
    return LaunchError(asked, got=got, hint=f"copy it to a fresh array{other}")


class _Placed:
    """Memory at an address, with NumPy's array interface, for `numpy.shares_memory`, which does not read the memory."""

    def __init__(self, view: ArrayView, address: int) -> None:
        typestr = f"|V{view.itemsize}"
        self.__array_interface__ = {"shape": view.shape, "strides": view.strides, "typestr": typestr, "data": (address, True), "version": 3}


def share_memory(view: ArrayView, address: int, other: ArrayView, other_address: int) -> bool:
    """Return whether two arrays have a byte in common. Interleaved arrays may have none."""
    import numpy

    if view.device != other.device:
        return False
    return numpy.shares_memory(numpy.asarray(_Placed(view, address)), numpy.asarray(_Placed(other, other_address)))
