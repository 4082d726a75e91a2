"""A section of the language reference, and what its makers share."""

import inspect
import re

import attrs
from docstrings import Parts


@attrs.frozen
class Section:
    """A section of the reference: its heading, how it is written, what the docstring says, and further lines of Markdown.

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
        """The parts that it should have and its docstring does not."""
        return tuple(one for one in self.needs if not getattr(self.parts, one))

    @property
    def anchor(self):
        """Its place on the page, as the reader of Markdown makes it of the heading."""
        return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", self.title.replace("`", "")).strip().lower())


def prose(text):
    """Text of a docstring as Markdown: nothing in it is HTML, and a sign outside of backticks and indented lines is no mark-up.

    `*word*` stays what it is, and arguments become a list.
    """
    pieces = re.split(r"((?:^ {4}.*\n?)+|`[^`]*`)", ARGUMENTS.sub(_listed, text), flags=re.MULTILINE)
    return "".join(one if number % 2 else _plain(one) for number, one in enumerate(pieces))


ARGUMENTS = re.compile(r"^(Args|Raises):\n((?: {4}.*\n?)+)", re.MULTILINE)
"""Arguments, or errors, one a line, with further lines further to the right."""


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
        one
        for one in vars(module).values()
        if inspect.isclass(one) and issubclass(one, base) and one.__module__ == module.__name__ and one.__name__ in module.__all__
    ]
