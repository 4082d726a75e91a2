"""Paths of this package and its strategy library, and a test whether a file belongs to the package."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).parent
"""The folder of this package."""

_OWN: Final = f"{PACKAGE}{os.sep}"
_INSTALLED: Final = f"{PACKAGE / 'strategies'}{os.sep}"


def library_folder() -> Path:
    """Return the folder of the strategy library, even if another package is called `strategies`."""
    from fireiron import strategies

    return Path(next(iter(strategies.__path__)))


@functools.lru_cache(maxsize=1024)  # called for each frame between a call and the user's line
def is_own(filename: str) -> bool:
    """Return whether a source file belongs to this package. Files of the strategy library count as files of the user."""
    return filename.startswith(_OWN) and not filename.startswith(_INSTALLED)
