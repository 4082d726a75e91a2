"""Workspaces in GPU memory, for kernels of which several blocks produce a result together.

A workspace starts with semaphores, which are zero before a launch and after it; partial results follow. Launches that run in order may
share a workspace. Like a tile counter, each stream has a separate one, and so has each stream of each captured graph (see `counters`).
Workspaces are never freed: a larger one replaces a smaller one, which launches that were prepared or captured before still use.
"""

from __future__ import annotations

import functools
import threading

from fireiron.gpu import launch
from fireiron.gpu.counters import stream_key


class Workspaces:
    """The workspaces of one GPU; thread-safe."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._known: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._lock = threading.Lock()

    def of(self, size: int, stream: int) -> int:
        """Return the address of a workspace of at least `size` bytes for launches on a stream.

        Raises:
            LaunchError: the GPU has too little free memory.
        """
        key = stream_key(stream)
        with self._lock:
            address, known = self._known.get(key, (0, 0))
            if known < size:
                known = max(size, min(2 * known, 2 * size))
                address = launch.zeros(self._device, known)
                self._known[key] = address, known
            return address


@functools.cache
def workspaces(device: int, looks_back: bool = False) -> Workspaces:
    """Return the workspaces of a GPU, which all kernels share.

    Scans across blocks (`looks_back`) have separate ones, whose words no partial results overwrite.
    """
    return Workspaces(device)


__all__ = ["Workspaces", "workspaces"]
