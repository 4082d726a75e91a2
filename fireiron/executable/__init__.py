"""Instructions, one family a file. An instruction set is an immutable tuple; extend it by making a new one.

The folder is the registry: a file states its `INSTRUCTIONS`, and by `__all__` which of its names are in `fireiron`.
Code shared by several families is in `performing`.

May import: values, specs, ir, language, performing.
"""

from __future__ import annotations

from typing import Final

from fireiron import folders
from fireiron.language.tree import Executable
from fireiron.performing import mma

MODULES: Final = tuple(sorted((*folders.modules(__name__, __path__), mma), key=lambda module: module.__name__.rpartition(".")[2]))
"""The files of the folder, and that of the class of all forms of mma.sync, in the order of their names."""

_RANKED: Final = sorted(MODULES, key=lambda module: getattr(module, "RANK", 0))

INSTRUCTIONS: Final[tuple[Executable, ...]] = tuple(
    instruction for module in _RANKED for instruction in getattr(module, "INSTRUCTIONS", ())
)
"""The built-in instructions; each knows the architectures that have it. The first that performs a spec is taken: in a family the
order is its own, and families come in the order of their names, later those of a higher `RANK`, as two rarely perform one spec."""
