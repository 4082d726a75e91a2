"""Generate docs/limits.md: the numbers that change a decision of the compiler or its tools."""

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

These numbers change a decision of the compiler or its tools: the iterations up to which a loop is unrolled, the registers of a
producer warpgroup, the cases that a check enumerates before it is undecided, the time limits of a search. Each number and its
meaning come from the source (`python docs/make_limits.py`). A test compares this page with the source, so no number changes
unnoticed.
"""

TITLES = {
    "check": "Checks",
    "cli": "Commands",
    "cost": "Cost model",
    "cuda": "CUDA printer",
    "decomp": "Decompositions",
    "draw": "Pictures",
    "executable": "Instructions",
    "export": "Export",
    "gpu": "GPU and launches",
    "graphene": "Graphene texts",
    "inspect": "Inspection",
    "ir": "Kernel IR",
    "language": "Strategies",
    "lower": "Passes",
    "measure": "Measurement",
    "notebook": "Notebooks",
    "performing": "Shared code of instructions",
    "refine": "Refinements",
    "sim": "Simulator",
    "specs": "Specs",
    "stepping": "Shared code of decompositions",
    "tasks": "Task programs",
    "tune": "Tuning",
    "values": "Values",
}
OTHERS = "Calls, caches and files"


def limits():
    """Yield `(module, name, value, meaning)` for each documented number of a module."""
    for module_info in sorted(pkgutil.walk_packages(fireiron.__path__, "fireiron."), key=lambda one: one.name):
        if module_info.name.endswith("__main__") or ".strategies" in module_info.name:
            continue
        module = importlib.import_module(module_info.name)
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        for name, meaning in _texts(tree.body):
            value = getattr(module, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                yield module_info.name.removeprefix("fireiron."), name, value, meaning


def _texts(body):
    for stmt, following in itertools.pairwise(body):
        target = stmt.targets[0] if isinstance(stmt, ast.Assign) else stmt.target if isinstance(stmt, ast.AnnAssign) else None
        text = following.value.value if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant) else None
        if isinstance(target, ast.Name) and target.id.isupper() and not target.id.startswith("_") and isinstance(text, str):
            yield target.id, " ".join(text.split())


def page():
    """Return the text of the page."""
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
