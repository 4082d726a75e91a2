"""Rich display of values in notebooks: HTML if supported, otherwise text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Shown:
    """The display functions: `repr`, until `fireiron/__init__.py` sets those of `fireiron.notebook`."""

    @staticmethod
    def html(value: object) -> str | None:
        """Return the value as HTML; None to display it as text."""
        return None

    @staticmethod
    def pretty(value: object) -> str:
        """Return the value as text of several lines."""
        return repr(value)


def set_display_functions(html: Callable[[object], str], pretty: Callable[[object], str]) -> None:
    """Set the display functions."""
    for name, view in (("html", html), ("pretty", pretty)):
        setattr(Shown, name, staticmethod(view))


class Displayed:
    """A value with a rich display by `fireiron.notebook`, which is imported when needed."""

    __slots__: tuple[()] = ()

    def _repr_html_(self) -> str | None:
        return Shown.html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text("..." if cycle else Shown.pretty(self))
