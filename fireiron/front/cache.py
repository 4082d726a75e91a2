"""Keep values in memory in a least-recently-used cache."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

Value = TypeVar("Value")

MOST_KERNELS: Final = 256
"""Maximum number of kernels in memory."""


class LruCache(Generic[Value]):
    """A cache of at most `MOST_KERNELS` values by key. Only the thread that holds `lock` creates a value."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.entries: OrderedDict[Any, Value] = OrderedDict()
        self._lock = lock

    def recall(self, key: Any, make: Callable[[], Value]) -> Value:
        """Return the value of a key. If the cache lacks it, create and cache it."""
        entries = self.entries
        value = entries.get(key)
        if value is not None:
            try:  # noqa: SIM105 (a context manager would double the time of a call)
                entries.move_to_end(key)
            except KeyError:  # another thread removed it
                pass
            return value
        with self._lock:
            value = entries.get(key) or make()
            self.keep(key, value)
        return value

    def keep(self, key: Any, value: Value) -> None:
        """Add a value as the most recently used value."""
        self.entries[key] = value
        self.entries.move_to_end(key)
        while len(self.entries) > MOST_KERNELS:
            self.entries.popitem(last=False)

    def forget(self, condition: Callable[[Value], bool]) -> None:
        """Remove the values for which a condition holds."""
        for key in [key for key, value in self.entries.items() if condition(value)]:
            del self.entries[key]


__all__ = ["MOST_KERNELS", "LruCache"]
