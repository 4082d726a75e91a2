"""Read the properties of an array that select a kernel: shape, strides, type, alignment and GPU.

Supported arrays: NumPy, CuPy, PyTorch, JAX, and others with `__cuda_array_interface__` or DLPack.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import attrs

from fireiron import operators
from fireiron.batches import Places, Shape, packed
from fireiron.copies import library
from fireiron.errors import ArgumentError
from fireiron.frozen import frozen
from fireiron.values.machine import DTYPES, DType
from fireiron.values.strides import Strides

ALIGNMENT: Final = 16
"""Bytes of the widest access. Specs assume this alignment if an array has it."""

MOST_ALIGNED: Final = 64
"""Largest alignment in bytes that keys distinguish."""

TYPES: Final[Mapping[str, DType]] = {dtype.numpy: dtype for dtype in reversed(DTYPES)}
"""Element types by their names in NumPy. The name float32 means float32, not tf32."""


@frozen
class Operand:
    """The properties of an array that select a kernel. `steps` counts elements, `align` bytes; `device` is None for the host."""

    shape: Shape
    steps: Shape
    dtype: str
    align: int
    device: int | None

    @property
    def places(self) -> Places:
        """The shape and the strides."""
        return self.shape, self.steps

    @property
    def repeats(self) -> bool:
        """Whether several indices share an element, as after a broadcast."""
        return any(step == 0 and size > 1 for size, step in zip(self.shape, self.steps, strict=True))

    @property
    def transposed(self) -> Operand:
        """The same memory with its dimensions in reverse order."""
        return self.at((self.shape[::-1], self.steps[::-1]))

    def at(self, places: Places) -> Operand:
        """Return the same memory with another shape and other strides."""
        return attrs.evolve(self, shape=places[0], steps=places[1])

    def strides(self, dims: Iterable[str]) -> Strides:
        """Return the stride of each dimension, with the alignment that a spec may assume."""
        return Strides(**dict(zip(dims, self.steps, strict=True))).aligned(min(self.align, ALIGNMENT))


Given = Mapping[str, Operand]
"""Operands by the name of their argument."""


def key_of(array: Any) -> Any:
    """Return a key for the properties of an array. It consists of attributes that are fast to read."""
    kind = type(array).__module__.partition(".")[0]
    if kind == "torch":
        return array.shape, array.stride(), array.dtype, _alignment(array.data_ptr()), array.get_device()
    if kind == "cupy":
        return array.shape, array.strides, array.dtype, _alignment(array.data.ptr), array.data.device_id
    return operand_of(array, "the array")


def operand_of(array: Any, name: str) -> Operand:
    """Return the properties of an array. Raises: `ArgumentError` if it is neither on a GPU nor a NumPy array."""
    kind = library(array)
    if kind == "numpy" and hasattr(array, "strides"):
        align = min(_alignment(array.__array_interface__["data"][0]), ALIGNMENT)  # a larger alignment would be a coincidence
        return Operand(array.shape, _steps(array.strides, array.dtype.itemsize, name), array.dtype.name, align, None)
    if kind == "torch":
        if not array.is_cuda:
            raise operators.refused_on_host("", name, array.device)
        dtype = str(array.dtype).removeprefix("torch.")
        return Operand(tuple(array.shape), array.stride(), dtype, _alignment(array.data_ptr()), array.get_device())
    if kind == "cupy":
        steps = _steps(array.strides, array.dtype.itemsize, name)
        return Operand(array.shape, steps, array.dtype.name, _alignment(array.data.ptr), array.data.device_id)
    return _foreign(array, name)


def operands_of(arrays: Mapping[str, Any]) -> dict[str, Operand]:
    """Return the properties of arrays by name, without those that are None."""
    return {name: operand_of(array, name) for name, array in arrays.items() if array is not None}


def _foreign(array: Any, name: str) -> Operand:
    """Return the properties of another library's array on a GPU, by `__cuda_array_interface__` or DLPack (assumed row-major)."""
    shape, dtype = getattr(array, "shape", None), getattr(array, "dtype", None)
    if operators.traced_by_jax(array):
        return Operand(tuple(array.shape), packed(array.shape), str(dtype), ALIGNMENT, _current_device())
    on_gpu = hasattr(array, "__dlpack_device__") and array.__dlpack_device__()[0] in (2, 13)
    if shape is None or dtype is None or not (on_gpu or hasattr(array, "__cuda_array_interface__")):
        legal = "a CuPy, PyTorch or JAX array on a GPU, or a NumPy array for the simulator"
        raise ArgumentError(f"{name} is neither an array on a GPU nor a NumPy array", got=type(array).__name__, legal=legal)
    device = array.__dlpack_device__()[1] if on_gpu else _current_device()
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is None:
        return Operand(tuple(shape), packed(shape), str(dtype), ALIGNMENT, device)
    import numpy

    size = numpy.dtype(interface["typestr"]).itemsize
    strides = interface.get("strides")
    steps = packed(shape) if strides is None else _steps(tuple(strides), size, name)
    return Operand(tuple(shape), steps, str(dtype), _alignment(interface["data"][0]), device)


def _current_device() -> int:
    from fireiron.gpu import launch

    return int(launch.require_cupy().cuda.Device().id)


def _steps(strides: Shape, size: int, name: str) -> Shape:
    """Return strides in elements."""
    if any(stride % size for stride in strides):
        raise ArgumentError(f"{name}: the strides {strides}, in bytes, are not multiples of the element size {size}", hint="pass a copy")
    return tuple(stride // size for stride in strides)


def _alignment(address: int) -> int:
    """Return the largest power of two, up to 64, that divides an address."""
    low = address & (MOST_ALIGNED - 1)
    return low & -low or MOST_ALIGNED


# ---------------------------------------------------------------------------------------------- several arrays


def is_empty(arrays: Iterable[Any]) -> bool:
    """Return whether an array has no elements. Arguments without a shape are refused elsewhere."""
    return any(isinstance(shape := getattr(array, "shape", None), tuple) and 0 in shape for array in arrays)


def each(out: Any, names: Iterable[str] = ()) -> tuple[Any, ...]:
    """Return the arrays for outputs as a tuple. `out` is an array, a tuple, a list, or a mapping with `names`."""
    if isinstance(out, Mapping):
        return tuple(out[name] for name in names)
    return tuple(out) if isinstance(out, tuple | list) else (out,)


def joined(results: Sequence[Any]) -> Any:
    """Return a single result as it is, and several results as a tuple."""
    return tuple(results) if len(results) > 1 else results[0]


def refuse_places(given: Given, asked: str, hint: str) -> None:
    """Refuse arrays that are on different GPUs, or some on a GPU and some on the host."""
    if len({operand.device for operand in given.values()}) > 1:
        places = {name: "host" if operand.device is None else f"GPU {operand.device}" for name, operand in given.items()}
        raise ArgumentError(f"{asked}the arrays are in different places", got=places, hint=hint)


__all__ = ["ALIGNMENT", "MOST_ALIGNED", "TYPES", "Given", "Operand", "each", "is_empty", "joined", "key_of", "operand_of", "operands_of"]
