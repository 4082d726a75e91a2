"""The rules of the package, one or more per file. A file states its `RULES`; `RANK` orders files (default 0, small ones first).

The order is that of preference: the search tries skeletons in this order, and applies tricks in this order.
"""

from __future__ import annotations

from typing import Final

from fireiron import folders
from fireiron.derive.rule import Rule

MODULES: Final = folders.modules(__name__, __path__)
"""The modules of this folder, in alphabetical order."""

RULES: Final[tuple[Rule, ...]] = tuple(
    rule for module in sorted(MODULES, key=lambda module: getattr(module, "RANK", 0)) for rule in getattr(module, "RULES", ())
)
"""All rules, in order of preference."""
