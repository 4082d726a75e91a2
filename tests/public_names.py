"""What type checkers read, because names and verbs that folders give are found when the package is loaded: `fireiron/__init__.pyi` and
`fireiron/found.pyi`.

`make names` writes them; `test_contracts.py` compares them with what the package gives.
"""

import ast
import inspect
import itertools
import re
import typing
from pathlib import Path

import fireiron
from fireiron import found

STUB = Path(fireiron.__file__).with_suffix(".pyi")
HEAD = '''"""Fireiron: a scheduling language for GPU kernels, embedded in Python. Written by `make names`."""

# ruff: noqa: I001
__version__: str
'''


def homes():
    """The module of each public name: of those imported by name, of those loaded when used, of those that a folder gives."""
    for node in ast.parse(Path(fireiron.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, node.module
    yield from ((name, f"fireiron.{module}") for name, module in fireiron._LATER.items())
    yield from ((name, module.__name__) for module in fireiron._STATED for name in getattr(module, "__all__", ()))


def qualified():
    """Names that are used as `fireiron.NAME` only, as `*` would hide a strategy's file of the same name: imported as themselves."""
    for node in ast.parse(Path(fireiron.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname for alias in node.names if alias.asname == alias.name)


def text():
    """The stub."""
    found = dict(homes())
    rows = sorted((found[name], name) for name in (*fireiron.__all__, *qualified()))
    return HEAD + "".join(f"from {module} import {name} as {name}\n" for module, name in rows)


WIDTH = 140
"""Characters of a line, as the formatter has it."""

VERBS = STUB.with_name("found.pyi")
VERBS_HEAD = '''"""Verbs of steps and refinements that are found in their folders. Written by `make names`."""
'''


def parameter(one, hints):
    """A parameter as a stub has it: its type with the module in front, and that it has a default, but not which."""
    mark = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
    default = "" if one.default is one.empty else " = ..."
    hint = hints.get(one.name, typing.Any)
    return f"{mark}{one.name}: {repr(hint) if hint.__module__ == 'typing' else inspect.formatannotation(hint)}{default}"


def method(name, one):
    """The stub of a found verb."""
    hints = typing.get_type_hints(one.makes)
    _, *others = inspect.signature(one).parameters.values()
    rows = [parameter(each, hints) for each in others if each.kind is not each.KEYWORD_ONLY]
    named = [parameter(each, hints) for each in others if each.kind is each.KEYWORD_ONLY]
    rows += ["*", *named] if named else []
    rows, end = ["self", *rows], ") -> fireiron.language.strategy.Strategy: ...\n"
    line = f"    def {name}({', '.join(rows)}{end}"
    if len(line) <= WIDTH + 1:
        return line
    inner = f"        {', '.join(rows)}\n"
    return f"    def {name}(\n" + (inner if len(inner) <= WIDTH + 1 else "".join(f"        {row},\n" for row in rows)) + f"    {end}"


def verbs():
    """The stub of the verbs that are found."""
    classes = ""
    for owner in (found.FoundSteps, found.FoundRefinements):
        methods = "".join(method(name, one) for name, one in sorted(vars(owner).items()) if hasattr(one, "makes"))
        classes += f"\nclass {owner.__name__}:\n    __slots__ = ()\n{methods}"
    modules = sorted(
        {*re.findall(r"\b((?:fireiron|typing|collections)(?:\.[a-z]\w*)*)\.\w", classes)}, key=lambda one: (one.startswith("fireiron"), one)
    )
    groups = [
        "".join(f"import {one}\n" for one in group) for _, group in itertools.groupby(modules, lambda one: one.startswith("fireiron"))
    ]
    return "\n".join([VERBS_HEAD, *groups]) + classes


if __name__ == "__main__":
    STUB.write_text(text())
    VERBS.write_text(verbs())
