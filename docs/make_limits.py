"""Writes the tables of docs/limits.md anew: the numbers at which the compiler and the tools around it decide otherwise, or give up."""

import ast
import importlib
import itertools
import pkgutil
from pathlib import Path

from tabulate import tabulate

import fireiron

PAGE = Path(__file__).parent / "limits.md"

INTRODUCTION = """\
# Limits and thresholds

The numbers at which something is decided otherwise: up to how many turns a loop is unrolled, how many registers a producer keeps,
how much is enumerated before a check gives up, how long a search looks. Each has its reason where it stands; this page is written
from there (`python docs/make_limits.py`), so that none changes by the way.
"""

TITLES = {
    "check": "Checks",
    "cli": "Commands",
    "cost": "Cost model",
    "cuda": "Printing",
    "decomp": "Decompositions",
    "draw": "Pictures",
    "executable": "Instructions",
    "export": "Export",
    "gpu": "Launching",
    "graphene": "Notation of tensors and threads",
    "inspect": "Explaining",
    "ir": "Kernels between passes",
    "language": "Strategies",
    "lower": "Passes",
    "measure": "Measuring",
    "notebook": "Notebooks",
    "performing": "What instructions share",
    "refine": "Refinements",
    "sim": "Simulator",
    "specs": "Specs",
    "stepping": "What decompositions share",
    "tasks": "Tasks",
    "tune": "Tuning",
    "values": "Values",
}
OTHERS = "At the top"


def limits():
    """`(module, name, value, meaning)` of each number of a module that a text stands behind."""
    for found in sorted(pkgutil.walk_packages(fireiron.__path__, "fireiron."), key=lambda one: one.name):
        if found.name.endswith("__main__") or ".strategies" in found.name:
            continue
        module = importlib.import_module(found.name)
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        for name, meaning in _texts(tree.body):
            value = getattr(module, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield found.name.removeprefix("fireiron."), name, value, meaning


def _texts(body):
    for one, following in itertools.pairwise(body):
        target = one.targets[0] if isinstance(one, ast.Assign) else one.target if isinstance(one, ast.AnnAssign) else None
        text = following.value.value if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant) else None
        if isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_") and isinstance(text, str):
            yield target.id, " ".join(text.split())


def page():
    """The text of the page."""
    parts = {}
    for module, name, value, meaning in limits():
        title = TITLES.get(module.partition(".")[0], OTHERS)
        shown = f"{value:,}" if isinstance(value, int) else f"{value:g}"
        parts.setdefault(title, []).append((f"`{module}.{name}`", shown, meaning.replace("|", "\\|")))
    headers = ["where", "number", "meaning"]
    tables = (f"## {title}\n\n{tabulate(rows, headers, 'github', disable_numparse=True)}\n" for title, rows in sorted(parts.items()))
    return "\n".join((INTRODUCTION, *tables))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
