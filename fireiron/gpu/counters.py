"""Tile counters in GPU memory, for kernels with a dynamic tile scheduler.

A counter is zero before a launch and behind it, as the kernel itself sees to. So launches that run one after the other share one, and those
that may run at the same time must not: each stream has a counter of its own, and so has each stream of each graph that is captured, as a
graph runs when the streams that it was captured from do other work. A graph's own launches of one stream are in order, and its runs too.
"""

from __future__ import annotations

import functools
import threading

from fireiron.gpu import launch

APART = 32
"""Bytes between two counters: a separate L2 sector for each."""

TOGETHER = 1024
"""Number of counters per allocation."""

_PER_THREAD = 2
"""CU_STREAM_PER_THREAD: another stream in each thread."""


class Counters:
    """The counters of one GPU; thread-safe."""

    def __init__(self, device: int) -> None:
        self._device = device
        self._known: dict[tuple[int, int, int], int] = {}
        self._free: list[int] = []
        self._lock = threading.Lock()

    def of(self, stream: int) -> int:
        """Return the address of the counter for a launch on a stream."""
        thread = threading.get_ident() if stream == _PER_THREAD else 0
        key = (stream or launch.LEGACY, thread, launch.capture_of(stream))
        found = self._known.get(key)
        if found is not None:
            return found
        with self._lock:
            if key not in self._known:
                if not self._free:
                    start = launch.zeros(self._device, APART * TOGETHER)
                    self._free = [start + APART * number for number in reversed(range(TOGETHER))]
                self._known[key] = self._free.pop()
            return self._known[key]


@functools.cache
def counters(device: int) -> Counters:
    """Return the counters of a GPU, which all kernels share."""
    return Counters(device)


__all__ = ["Counters", "counters"]
