"""Execute the cells of docs/notebook.ipynb in order and store their outputs; with --check, report whether they are up to date instead.

No part of Jupyter is needed: a cell's last expression is displayed as in a notebook, by the `_repr_..._` methods of its value.
"""

import ast
import contextlib
import io
import json
import sys
from pathlib import Path

NOTEBOOK = Path(__file__).parent / "notebook.ipynb"
KINDS = {"text/html": "_repr_html_", "image/svg+xml": "_repr_svg_"}
"""The display types of a value, by method, in addition to its text."""


class Printer:
    """The printer argument of `_repr_pretty_`."""

    def __init__(self):
        self.written = ""

    def text(self, text):
        """Write a text."""
        self.written += text


def plain(value):
    """The text of a value, on several lines if it has them."""
    if not hasattr(value, "_repr_pretty_"):
        return repr(value)
    printer = Printer()
    value._repr_pretty_(printer, False)
    return printer.written


def lines(text):
    """A text as a notebook stores it: a list of lines with their line ends."""
    return text.splitlines(keepends=True)


def shown(value):
    """What a notebook shows for a value, by kind."""
    data = {kind: lines(getattr(value, method)()) for kind, method in KINDS.items() if hasattr(value, method)}
    return {**data, "text/plain": lines(plain(value))}


def run(source, scope, number):
    """The outputs of a cell: what it printed, and its last expression, if it ends with one."""
    tree = ast.parse(source)
    last = ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), scope)
        if last is not None:
            value = eval(compile(last, f"cell {number}", "eval"), scope)
    outputs = [{"output_type": "stream", "name": "stdout", "text": lines(printed.getvalue())}] if printed.getvalue() else []
    if value is not None:
        outputs.append({"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": shown(value)})
    return outputs


def executed(notebook):
    """The notebook with the outputs of all its cells, run in order in one namespace."""
    scope, cells, number = {"__name__": "__main__"}, [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            cell = {**cell, "execution_count": number, "outputs": run("".join(cell["source"]), scope, number)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def text_of(notebook):
    """The notebook as it is stored."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def main():
    """1 if the notebook was not up to date, with --check."""
    stored = NOTEBOOK.read_text(encoding="utf-8")
    new_text = text_of(executed(json.loads(stored)))
    if "--check" not in sys.argv:
        NOTEBOOK.write_text(new_text, encoding="utf-8")
    elif new_text != stored:
        print(f"{NOTEBOOK.name} is not up to date: python docs/make_notebook.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
