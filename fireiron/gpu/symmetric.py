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
    """

    part: Any
    memory: PeerMemory
    whole: Any
    handle: Any

    @staticmethod
    def of(
        shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any, group: Any, device: Any, distance: int | None = None
    ) -> Shared:
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
        stride, gpus = memory.stride // dtype.itemsize, len(handle.buffer_ptrs)
        whole = memory.tensor((gpus, *shape), (stride, *strides), dtype)
        return Shared(flat.as_strided(shape, strides), memory, whole, handle)


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
        """Return the allocation whose part is exactly this tensor; None if there is none."""
        shared = self._known.get(tensor.data_ptr())
        if shared is None or shared.part.shape != tensor.shape or shared.part.stride() != tensor.stride():
            return None
        return shared if shared.part.dtype == tensor.dtype else None

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
