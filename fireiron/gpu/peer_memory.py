"""Memory of all GPUs of a host at equal distances in the address space of each process.

PyTorch's symmetric memory allocates a part on each GPU and maps the parts of other GPUs, at unrelated addresses. A kernel with one address
per part would need a branch, and a tensor map per part. So the same physical memory is mapped again, part after part, in one reserved range
(CUDA driver API, "Virtual Memory Management"): the parts of all GPUs are then one array with a constant stride.
"""

from __future__ import annotations

import ctypes
from typing import Any, Final

from fireiron.errors import LaunchError

_PINNED_DEVICE: Final = 1
"""CU_MEM_LOCATION_TYPE_DEVICE."""

_READ_WRITE: Final = 3
"""CU_MEM_ACCESS_FLAGS_PROT_READWRITE."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


def _driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise LaunchError("the NVIDIA driver is not installed (no libcuda.so.1)", hint="simulate: pass NumPy arrays") from error


def _require(driver: ctypes.CDLL, status: int, what: str) -> None:
    if status:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(status, ctypes.byref(text))
        raise LaunchError(f"{what}: {(text.value or b'unknown error').decode()}", got=f"CUDA error {status}")


class PeerMemory:
    """The parts of one symmetric allocation, mapped at addresses `address + gpu * stride`, in bytes.

    Args:
        pointers: the addresses of the part of each GPU in this process, in the order of ranks.
        device: the GPU of this process.
        distance: the distance of parts, a multiple of 2 MiB; None for the bytes of a part.

    Raises: LaunchError if the driver refuses, or if the parts differ in size, or are larger than the distance.
    """

    def __init__(self, pointers: list[int], device: int, distance: int | None = None) -> None:
        self._driver = driver = _driver()
        self._handles: list[ctypes.c_uint64] = []
        self._mapped = 0
        self._base = ctypes.c_uint64()
        ranges = [self._range(pointer) for pointer in pointers]
        sizes, offsets = {size for _, size in ranges}, {pointer - base for pointer, (base, _) in zip(pointers, ranges, strict=True)}
        if len(sizes) != 1 or len(offsets) != 1:
            raise LaunchError("the parts of a symmetric allocation differ in size", got=sorted(sizes), hint="the same shape on each GPU")
        size = sizes.pop()
        self.stride = size if distance is None else distance
        if size > self.stride:
            raise LaunchError(
                "the parts of a symmetric allocation are larger than their distance", got=size, legal=f"at most {self.stride}"
            )
        self._size = ctypes.c_size_t(size)
        whole = ctypes.c_size_t(self.stride * len(pointers))
        status = driver.cuMemAddressReserve(ctypes.byref(self._base), whole, 0, ctypes.c_uint64(0), ctypes.c_ulonglong(0))
        _require(driver, status, "a range of addresses for all GPUs")
        for gpu, pointer in enumerate(pointers):
            handle = ctypes.c_uint64()
            _require(driver, driver.cuMemRetainAllocationHandle(ctypes.byref(handle), ctypes.c_void_p(pointer)), f"memory of GPU {gpu}")
            self._handles.append(handle)
            at = ctypes.c_uint64(self._base.value + gpu * self.stride)
            status = driver.cuMemMap(at, self._size, ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
            _require(driver, status, f"map the memory of GPU {gpu}")
            self._mapped += 1
            access = _Access(_Location(_PINNED_DEVICE, device), _READ_WRITE)
            status = driver.cuMemSetAccess(at, self._size, ctypes.byref(access), ctypes.c_size_t(1))
            _require(driver, status, f"access to the memory of GPU {gpu}")
        self.address = self._base.value + offsets.pop()
        self.device, self.gpus = device, len(pointers)
        self.bytes = self.stride * len(pointers)
        self.base = self._base.value

    def _range(self, pointer: int) -> tuple[int, int]:
        """Return the first address and the bytes of the allocation that contains an address."""
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        status = self._driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(pointer))
        _require(self._driver, status, "the range of a symmetric allocation")
        return base.value, size.value

    def close(self) -> None:
        """Unmap the parts; no launch may use them any more."""
        for gpu in range(self._mapped):
            self._driver.cuMemUnmap(ctypes.c_uint64(self._base.value + gpu * self.stride), self._size)
        for handle in self._handles:
            self._driver.cuMemRelease(handle)
        if self._base.value:
            self._driver.cuMemAddressFree(self._base, ctypes.c_size_t(self.stride * len(self._handles)))
        self._mapped, self._handles, self._base = 0, [], ctypes.c_uint64()

    def tensor(self, shape: tuple[int, ...], strides: tuple[int, ...], dtype: Any) -> Any:
        """Return a PyTorch tensor at `address`, with strides in elements."""
        import cupy
        import torch

        memory = cupy.cuda.UnownedMemory(self.base, self.bytes, self, self.device)
        flat = cupy.ndarray((self.bytes,), cupy.uint8, cupy.cuda.MemoryPointer(memory, 0))
        elements = torch.from_dlpack(flat).view(dtype)
        return torch.as_strided(elements, shape, strides, (self.address - self.base) // dtype.itemsize)


__all__ = ["PeerMemory"]
