"""Names that the printer creates, and their scopes."""

from __future__ import annotations

from collections.abc import Callable


class Names:
    """The names that the printer creates; none of them occurs in the kernel."""

    def __init__(self, used: set[str]) -> None:
        self.used = used
        self.kept: set[str] = set()
        """Names that are visible everywhere, such as those of functions; they remain in use at the end of a scope."""

    def scope(self) -> Callable[[], None]:
        """Begin a scope; the returned function ends it, and frees the names created in it."""
        outside = set(self.used)

        def release() -> None:
            self.used = outside | self.kept

        return release

    def keep(self, wanted: str) -> str:
        """A fresh name that is visible everywhere."""
        name = self.fresh(wanted)
        self.kept.add(name)
        return name

    def reserve(self, names: set[str]) -> None:
        """Make names unavailable everywhere."""
        self.used |= names
        self.kept |= names

    def drop(self, name: str) -> None:
        """End the scope of a name, which is then free."""
        self.used.discard(name)

    def fresh(self, wanted: str) -> str:
        """The wanted name, with a number if it is in use."""
        name = self.free(wanted)
        self.used.add(name)
        return name

    def free(self, wanted: str) -> str:
        """The wanted name, with a number if it is in use; it remains free."""
        name, number = wanted, 1
        while name in self.used:
            number += 1
            name = f"{wanted}{number}"
        return name


__all__ = ["Names"]
