"""Symmetric memory of a process group: PyTorch allocates a part on each GPU, and each process maps the parts of all GPUs as one array."""

from __future__ import annotations

import functools
import math
from typing import Any

import attrs

from fireiron.errors import ArgumentError, LaunchError
from fireiron.gpu.peer_memory import PeerMemory


@attrs.frozen(eq=False)
class Shared:
    """A symmetric allocation.

    Attributes:
        part: the part on the GPU of this process.
        memory: the parts of all GPUs, mapped at equal distances.
        whole: the parts of all GPUs as one array, whose first dimension is the GPU.
        handle: PyTorch's handle, which keeps the mapping of the peers.
        elements: the number of elements of the part.
    """

    part: Any
    memory: PeerMemory
    whole: Any
    handle: Any
    elements: int

    @staticmethod
    def of(shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, group: Any, device: Any, distance: int | None = None) -> Shared:
        """Allocate a part with these strides on each GPU. All processes of the group call this together, with equal arguments.

        `distance` are the bytes from a part to the next one; by default the parts are adjacent.

        Raises: LaunchError if PyTorch or the driver has no symmetric memory on these GPUs.
        """
        import torch
        import torch.distributed._symmetric_memory as symmetric

        elements = max(math.prod(shape), 1)
        try:
            flat = symmetric.empty((elements,), dtype=dtype, device=device)
            handle = symmetric.rendezvous(flat, group)
        except RuntimeError as error:
            raise _unavailable(str(error)) from error
        if handle is None:
            raise _unavailable("no handle")
        torch.cuda.synchronize(device)
        memory = PeerMemory(list(handle.buffer_ptrs), device.index, distance)
        part = flat.as_strided(shape, strides)
        return Shared(part, memory, _whole(part, memory), handle, elements)

    def whole_of(self, part: Any) -> Any:
        """Return the parts of all GPUs as one array, for a tensor at the start of the allocation: each GPU has one of the same shape."""
        same = part.shape == self.part.shape and part.stride() == self.part.stride()
        return self.whole if same else _whole(part, self.memory)


def _whole(part: Any, memory: PeerMemory) -> Any:
    """Return the parts of all GPUs, each of the shape and strides of one, as one array."""
    stride = memory.stride // part.dtype.itemsize
    return memory.tensor((memory.gpus, *part.shape), (stride, *part.stride()), part.dtype)


def _unavailable(reason: str) -> LaunchError:
    hint = "GPUs of one host that are connected by NVLink, or the functions of fireiron.distributed, which fall back to NCCL"
    return LaunchError("PyTorch has no symmetric memory on these GPUs", got=reason, hint=hint)


class Allocations:
    """The symmetric allocations of a process group that users made, by address."""

    def __init__(self) -> None:
        self._known: dict[int, Shared] = {}

    def add(self, shared: Shared) -> Any:
        """Keep an allocation, and return its part."""
        self._known[shared.part.data_ptr()] = shared
        return shared.part

    def of(self, tensor: Any) -> Shared | None:
        """Return the allocation at whose start a tensor is, as its part or as a view of it; None if there is none."""
        shared = self._known.get(tensor.data_ptr())
        if shared is None or shared.part.dtype != tensor.dtype:
            return None
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return shared if last < shared.elements else None

    def remove(self, tensor: Any) -> None:
        """Free an allocation. Raises: ArgumentError for a tensor that is not the part of one."""
        shared = self.of(tensor)
        if shared is None:
            raise ArgumentError("release: the tensor is not an allocation of this group", legal="a result of empty(...)")
        del self._known[tensor.data_ptr()]
        shared.memory.close()


@functools.cache
def allocations(group: Any) -> Allocations:
    """Return the allocations of a process group."""
    return Allocations()


__all__ = ["Allocations", "Shared", "allocations"]
