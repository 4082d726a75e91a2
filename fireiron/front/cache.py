"""Keep what was made for keys in memory, and forget what was not used for longest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Generic, TypeVar

Value = TypeVar("Value")

MOST_KERNELS: Final = 256
"""Most kernels in memory; above it the least recently used one is dropped."""


class LruCache(Generic[Value]):
    """Values by key, at most `MOST_KERNELS`; under `lock` they are made, by one thread at a time."""

    def __init__(self, lock: AbstractContextManager[Any]) -> None:
        self.entries: OrderedDict[Any, Value] = OrderedDict()
        self._lock = lock

    def recall(self, key: Any, make: Callable[[], Value]) -> Value:
        """What was kept for a key, else what is made now."""
        entries = self.entries
        value = entries.get(key)
        if value is not None:
            try:  # noqa: SIM105 (in every call, and a context manager costs as much as the rest of it)
                entries.move_to_end(key)
            except KeyError:  # another thread forgot it meanwhile
                pass
            return value
        with self._lock:
            value = entries.get(key) or make()
            self.keep(key, value)
        return value

    def keep(self, key: Any, value: Value) -> None:
        """Keep a value as the one that was used last."""
        self.entries[key] = value
        self.entries.move_to_end(key)
        while len(self.entries) > MOST_KERNELS:
            self.entries.popitem(last=False)

    def forget(self, condition: Callable[[Value], bool]) -> None:
        """Forget the values for which a condition holds."""
        for key in [key for key, value in self.entries.items() if condition(value)]:
            del self.entries[key]


__all__ = ["MOST_KERNELS", "LruCache"]
