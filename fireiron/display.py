"""Values that show themselves in notebooks: as HTML where that is shown, else as text over several lines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Shown:
    """How values are shown: as their `repr`, until `fireiron/__init__.py` tells the views of `fireiron.notebook`."""

    @staticmethod
    def html(value: object) -> str | None:
        """The value as HTML; None where it is shown as text."""
        return None

    @staticmethod
    def pretty(value: object) -> str:
        """The value as text over several lines."""
        return repr(value)


def tell(html: Callable[[object], str], pretty: Callable[[object], str]) -> None:
    """Show values so."""
    for name, view in (("html", html), ("pretty", pretty)):
        setattr(Shown, name, staticmethod(view))


class Displayed:
    """A value with a picture of itself for notebooks, in `fireiron.notebook`; nothing of that is loaded before it is asked for."""

    __slots__: tuple[()] = ()

    def _repr_html_(self) -> str | None:
        return Shown.html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("..." if cycle else Shown.pretty(self))
