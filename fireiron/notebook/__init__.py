"""Rich display of values in notebooks: tables, trees and pictures as HTML, and texts over several lines that still evaluate.

A view is a function of `views` from a value to HTML, by the name of its class; `laid_out` breaks the text of an expression into lines.
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
    """Return a value of this package as HTML; as text if it has no view."""
    from fireiron.draw.tables import text
    from fireiron.notebook.views import VIEWS

    view = _of_class(VIEWS, value)
    return text(pretty(value)) if view is None else view(value)


def pretty(value: Any) -> str:
    """The `repr` of a value over several lines, an expression of the same value where the `repr` is; of findings, of what was predicted
    or tuned, their tables.
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
