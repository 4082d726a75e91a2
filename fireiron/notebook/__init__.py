"""Display values in notebooks: tables, trees and pictures as HTML, and expressions over several lines.

A view is a function of `views` that converts a value to HTML. It is found by the name of the value's class. `laid_out` breaks the text of
an expression into lines.

May import: everything but the command line.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, TypeVar

from fireiron.errors import repr_of
from fireiron.notebook.layout import laid_out

T = TypeVar("T")


def html(value: Any) -> str:
    """Return a value of this package as HTML. A value without a view is shown as text."""
    from fireiron.draw.tables import text
    from fireiron.notebook.views import VIEWS

    view = _of_class(VIEWS, value)
    return text(pretty(value)) if view is None else view(value)


def pretty(value: Any) -> str:
    """Return the `repr` of a value over several lines. If the `repr` is an expression, the result evaluates to the same value.

    For findings, predictions, records and tuning results, return their text or table.
    """
    from fireiron.generated_verbs import StepVerbs
    from fireiron.notebook.views import TEXTS

    text_of = _of_class(TEXTS, value)
    if text_of is not None:
        return text_of(value)
    of_language = {name for name, method in vars(StepVerbs).items() if inspect.isfunction(getattr(method, "made_by", None))}
    return laid_out(repr_of(value), opens={"then", *of_language})


def _of_class(by_class: Mapping[str, T], value: Any) -> T | None:
    """Return the entry for the class of a value, or for one of its base classes."""
    return next((by_class[kind.__name__] for kind in type(value).__mro__ if kind.__name__ in by_class), None)


__all__ = ["html", "laid_out", "pretty"]
