"""Decompositions, one a file. The folder is the registry: a file says by `__all__` which of its names stand in `fireiron`.
What several share stands in `stepping`.

May import: values, specs, ir, language, refine, performing, executable, stepping.
"""

from __future__ import annotations

from typing import Final

from fireiron import folders

MODULES: Final = folders.modules(__name__, __path__)
"""The files of the folder, in the order of their names."""
