"""A section of the language reference, and functions for all kinds of sections."""

import inspect
import re

import attrs
from docstrings import Parts


@attrs.frozen
class Section:
    """A section of the reference: its heading, signatures, the parts of its docstring, and further lines of Markdown.

    `needs` are the parts that its docstring has to have; a refinement's `refines` are the verbs of steps that it is for.
    """

    title: str
    written: tuple[str, ...]
    parts: Parts
    notes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ("sentence",)
    refines: tuple[str, ...] = ()

    @property
    def missing(self):
        """The parts of `needs` that its docstring lacks."""
        return tuple(one for one in self.needs if not getattr(self.parts, one))

    @property
    def anchor(self):
        """Its anchor, as the Markdown library derives it from the heading."""
        return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", self.title.replace("`", "")).strip().lower())


def prose(text):
    """Text of a docstring as Markdown: nothing in it is HTML, and signs outside backticks and indented lines are not mark-up.

    `*word*` stays unchanged, and arguments become a list.
    """
    pieces = re.split(r"((?:^ {4}.*\n?)+|`[^`]*`)", ARGUMENTS.sub(_listed, text), flags=re.MULTILINE)
    return "".join(one if number % 2 else _plain(one) for number, one in enumerate(pieces))


ARGUMENTS = re.compile(r"^(Args|Raises):\n((?: {4}.*\n?)+)", re.MULTILINE)
"""Arguments, or errors, one per line, with continuation lines indented."""


def _listed(match):
    items = re.split(r"\n(?= {4}\w)", match[2].rstrip("\n"))
    return "\n".join([f"{match[1]}:", "", *(re.sub(r"^(\w+):", r"- `\1`:", " ".join(one.split())) for one in items), ""])


def _plain(text):
    return re.sub(r"(?<![\w*])(\*\w[^*\n]*\*)(?![\w*])|([*_|])", lambda sign: sign[1] or f"\\{sign[2]}", text).replace("<", "&lt;")


def classes(package, base):
    return [one for module in package.MODULES if hasattr(module, "__all__") for one in own(module, base)]


def own(module, base):
    """The public classes of a family that a module defines."""
    return [
        cls
        for cls in vars(module).values()
        if inspect.isclass(cls) and issubclass(cls, base) and cls.__module__ == module.__name__ and cls.__name__ in module.__all__
    ]
