"""Refinements, one per file. The folder is the registry: `__all__` of a file lists the names that `fireiron` exports.

May import: values, specs, ir, language.
"""

from __future__ import annotations

from typing import Final

from fireiron import folders

MODULES: Final = folders.modules(__name__, __path__)
"""The modules of this folder, in alphabetical order."""
