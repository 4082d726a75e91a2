"""What type checkers read, because names and verbs that folders give are found when the package is loaded: `fireiron/__init__.pyi`, and
`fireiron/generated_verbs.pyi` by `offered.py`.

`make names` writes them; `test_contracts.py` compares them with what the package gives.
"""

import ast
from pathlib import Path

import offered

import fireiron

STUB = Path(fireiron.__file__).with_suffix(".pyi")
HEAD = '''"""Fireiron: a scheduling language for GPU kernels, embedded in Python. Written by `make names`."""

# ruff: noqa: I001
__version__: str
'''


MODULES = {("fireiron", "optim")}
"""Modules that are attributes of the package."""


def homes():
    """The module of each public name: of those imported by name, of those loaded when used, of those defined in a folder."""
    for node in ast.parse(Path(fireiron.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, node.module
    yield from ((name, f"fireiron.{module}") for name, module in fireiron._LATER.items())
    yield from ((name, module.__name__) for module in fireiron._STATED for name in getattr(module, "__all__", ()))


def qualified():
    """Names that are used as `fireiron.NAME` only, since `*` would hide a strategy's file of the same name: imported as themselves."""
    for node in ast.parse(Path(fireiron.__file__).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            yield from (alias.asname for alias in node.names if alias.asname == alias.name)


def text():
    """The stub."""
    modules_by_name = dict(homes())
    rows = sorted({(modules_by_name[name], name) for name in (*fireiron.__all__, *qualified(), *fireiron._LATER)} | MODULES)
    public = "".join(f"    {name!r},\n" for name in sorted(fireiron.__all__)).replace("'", '"')
    return HEAD + "".join(f"from {module} import {name} as {name}\n" for module, name in rows) + f"\n__all__ = [\n{public}]\n"


if __name__ == "__main__":
    STUB.write_text(text())
    offered.STUB.write_text(offered.text())
