"""Values that show themselves in notebooks: as HTML where that is shown, else as text over several lines."""

from __future__ import annotations

from typing import Any


class Displayed:
    """A value with a picture of itself for notebooks, in `fireiron.notebook`; nothing of that is loaded before it is asked for."""

    __slots__: tuple[()] = ()

    def _repr_html_(self) -> str:
        from fireiron.notebook import html

        return html(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        from fireiron.notebook import pretty

        printer.text("..." if cycle else pretty(self))
