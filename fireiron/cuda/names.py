"""Names of the text itself, with the scopes that they belong to."""

from __future__ import annotations

from collections.abc import Callable


class Names:
    """Names that the printer makes; none of them occurs in the kernel."""

    def __init__(self, taken: set[str]) -> None:
        self.taken = taken
        self.kept: set[str] = set()
        """Names that are visible everywhere, such as those of functions; they stay taken at the end of a scope."""

    def scope(self) -> Callable[[], None]:
        """Begin a scope: what this returns ends it, after which the names made in it are free again."""
        outside = set(self.taken)

        def release() -> None:
            self.taken = outside | self.kept

        return release

    def keep(self, wanted: str) -> str:
        """A fresh name that is visible everywhere."""
        name = self.fresh(wanted)
        self.kept.add(name)
        return name

    def drop(self, name: str) -> None:
        """The scope of a name ends: the name is free again."""
        self.taken.discard(name)

    def fresh(self, wanted: str) -> str:
        """The wanted name, with a number if it is taken."""
        name = self.free(wanted)
        self.taken.add(name)
        return name

    def free(self, wanted: str) -> str:
        """The wanted name, with a number if it is taken; it stays free."""
        name, number = wanted, 1
        while name in self.taken:
            number += 1
            name = f"{wanted}{number}"
        return name


__all__ = ["Names"]
