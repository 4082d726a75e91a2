"""Tile counters in GPU memory, for kernels with a dynamic tile scheduler.

A counter is zero before a launch, and the kernel resets it to zero. Launches that run in order may share a counter. Launches that may run
at the same time must not share one, so each stream has a separate counter. Each stream of each captured graph also has a separate counter,
because a graph may run while the streams that it was captured from do other work. The launches of one stream in a graph run in order, and
so do the runs of a graph.
"""

from __future__ import annotations

import functools
import threading

from fireiron.gpu import launch

COUNTER_STRIDE = 32
"""Bytes between two counters, so that each counter has a separate L2 sector."""

COUNTERS_PER_ALLOCATION = 1024
"""Number of counters per allocation."""

_PER_THREAD = 2
"""CU_STREAM_PER_THREAD: a different stream in each thread."""


def stream_key(stream: int) -> tuple[int, int, int]:
    """Return a key that is equal for launches that run in order: the stream, and for some streams the thread or the captured graph."""
    thread = threading.get_ident() if stream == _PER_THREAD else 0
    return stream or launch.LEGACY, thread, launch.capture_of(stream)


class Counters:
    """The counters of one GPU; thread-safe."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._known: dict[tuple[int, int, int], int] = {}
        self._free: list[int] = []
        self._lock = threading.Lock()

    def of(self, stream: int) -> int:
        """Return the address of the counter for launches on a stream."""
        key = stream_key(stream)
        address = self._known.get(key)
        if address is not None:
            return address
        with self._lock:
            if key not in self._known:
                if not self._free:
                    start = launch.zeros(self._device, COUNTER_STRIDE * COUNTERS_PER_ALLOCATION)
                    self._free = [start + COUNTER_STRIDE * number for number in reversed(range(COUNTERS_PER_ALLOCATION))]
                self._known[key] = self._free.pop()
            return self._known[key]


@functools.cache
def counters(device: int) -> Counters:
    """Return the counters of a GPU, which all kernels share."""
    return Counters(device)


__all__ = ["Counters", "counters", "stream_key"]
